"""The operations API's routes for what is guaranteed here, and for what a pipeline lacks (N27, N28)."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import guarantees, guarantees_facts, help_topics, readiness, readiness_facts
from pipelines.access import VIEW, Actor
from pipelines.api.endpoints import answer
from pipelines.api.operations_endpoint import Call, OperationsEndpoint
from pipelines.api.shapes import Identifier, ListOf, OneOf, Shape, Text, Whole
from pipelines.guarantees import Standing, Statement
from pipelines.models import Pipeline
from pipelines.models.runs import EffectMode, EffectProtocol
from pipelines.readiness import Line, State
from pipelines.readiness_facts import Place
from pipelines.repeating import Repeat, StageFacts, Verdict


class StatementView(Shape):
    """What is guaranteed, could be switched on, or is not guaranteed. `because`: what it hangs on; `see`: documents."""

    key = Text()
    standing = OneOf([*Standing])
    title = Text()
    text = Text()
    because = Text(blank=True)
    see = ListOf(child=Text())


class GuaranteesView(Shape):
    """What holds of this console and this workspace as they are set now."""

    statements = ListOf(child=StatementView())


class RepeatView(Shape):
    """Whether a stage is safe to repeat. Every reason says whether it was declared, seen, or is not known."""

    stage = Text()
    handler = Text()
    effect_mode = OneOf(EffectMode.values)
    effect_protocol = OneOf(EffectProtocol.values)
    verdict = OneOf([*Verdict])
    words = Text()
    reasons = ListOf(child=Text())


class ReadinessLineView(Shape):
    """One line of the checklist; `see`: documents."""

    key = Text()
    title = Text()
    state = OneOf([*State])
    why = Text()
    to_do = Text(blank=True)
    see = ListOf(child=Text())


class ReadinessPlaceView(Shape):
    """A pipeline in one environment. `runs`: how many of its newest are of this release, and were looked at."""

    environment = Text()
    release_id = Identifier()
    digest = Text()
    runs = Whole(min_value=0, max_value=readiness_facts.LAST_RUNS)
    checklist = ListOf(child=ReadinessLineView())
    stages = ListOf(child=RepeatView())


class ReadinessView(Shape):
    """What a pipeline lacks, for each environment in which a release is in force."""

    pipeline = Text()
    environments = ListOf(child=ReadinessPlaceView())


class Guarantees(OperationsEndpoint):
    """What is guaranteed here and what is not, as this console and this workspace are set now (N28)."""

    access = {"GET": VIEW}

    @extend_schema(responses=GuaranteesView)
    def get(self, call: Call) -> HttpResponse:
        found = guarantees.statements(guarantees_facts.read(call.actor.workspace_id))
        return answer({"statements": [statement_view(one) for one in found]})


class Readiness(OperationsEndpoint):
    """What a pipeline lacks, and which stages are safe to repeat, wherever a release of it is in force (N27)."""

    access = {"GET": VIEW}

    def find(self, actor: Actor, **ids: Any) -> Pipeline:
        return readiness_facts.find(actor, ids["slug"])

    @extend_schema(responses=ReadinessView)
    def get(self, call: Call) -> HttpResponse:
        places = [place_view(one) for one in readiness_facts.places([call.target])]
        return answer({"pipeline": call.target.slug, "environments": places})


def statement_view(one: Statement) -> dict[str, Any]:
    return {
        "key": one.key,
        "standing": one.standing,
        "title": one.title,
        "text": one.text,
        "because": one.because,
        "see": _documents(*one.see),
    }


def place_view(place: Place) -> dict[str, Any]:
    return {
        "environment": place.environment,
        "release_id": str(place.release_id),
        "digest": place.digest,
        "runs": place.facts.runs,
        "checklist": [_line_view(one) for one in readiness.checklist(place.facts)],
        "stages": [_repeat_view(*one) for one in readiness.repeats(place.facts)],
    }


urlpatterns = [
    path("guarantees", Guarantees.as_view()),
    path("pipelines/<str:slug>/readiness", Readiness.as_view()),
]


def _line_view(one: Line) -> dict[str, Any]:
    return {
        "key": one.key,
        "title": one.title,
        "state": one.state,
        "why": one.why,
        "to_do": one.to_do,
        "see": _documents(one.see),
    }


def _repeat_view(stage: StageFacts, repeat: Repeat) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "handler": stage.handler,
        "effect_mode": stage.effect_mode,
        "effect_protocol": stage.effect_protocol,
        "verdict": repeat.verdict,
        "words": repeat.words,
        "reasons": list(repeat.reasons),
    }


def _documents(*topics: str) -> list[str]:
    """The paths of what to read, each once."""
    return list(dict.fromkeys(path for topic in topics for path in help_topics.BY_KEY[topic].documents))
