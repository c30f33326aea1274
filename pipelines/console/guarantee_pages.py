"""What is guaranteed here and which stages are safe to repeat, on one screen; the checklist of a pipeline; the help."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from pipelines import guarantees, guarantees_facts, help_topics, readiness, readiness_facts
from pipelines import pipeline_queries as queries
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.guarantees import Standing, Statement
from pipelines.help_topics import Topic
from pipelines.models import Pipeline
from pipelines.paging import read_cut
from pipelines.readiness import Line, State
from pipelines.readiness_facts import Place
from pipelines.repeating import Repeat, StageFacts, Verdict

SIZE = "10"  # pipelines of a page
# the hues in which they are told
OF_STANDING = {Standing.PROMISED: "completed", Standing.OFF: "paused", Standing.NOT_PROMISED: "pending"}
OF_STATE = {State.MET: "completed", State.NOT_MET: "blocked", State.NOT_KNOWN: "pending"}
STATE_WORDS = {State.MET: "Met", State.NOT_MET: "Not met", State.NOT_KNOWN: "Not known"}
OF_VERDICT = {
    Verdict.DECLARED: "completed",
    Verdict.SEEN: "completed",
    Verdict.DOUBTFUL: "blocked",
    Verdict.INTENT: "waiting",
    Verdict.ASKS: "waiting",
    Verdict.AWAITS: "pending",
}


@dataclass(frozen=True, slots=True)
class Told:
    """A statement with the topics that say more."""

    statement: Statement
    topics: list[Topic]


@dataclass(frozen=True, slots=True)
class Shown:
    """A place as it is shown. `lines` are (hue, word, line, topic), `stages` (hue, stage, how it is to repeat)."""

    place: Place
    lines: list[tuple[str, str, Line, Topic]]
    stages: list[tuple[str, StageFacts, Repeat]]
    met: int


@require_safe
@screen
def guarantees_page(request: ScreenRequest) -> HttpResponse:
    """What this console guarantees as it is set now, and a page of pipelines with their stages."""
    actor = request.visit.actor
    params = request.GET.copy()
    params.setdefault("page_size", SIZE)
    page = queries.pipeline_list(actor, request.GET, read_cut(params, (queries.slug,)))
    found = shown(page.rows)
    told = guarantees.statements(guarantees_facts.read(actor.workspace_id))
    context = {
        "groups": [
            (heading, OF_STANDING[standing], [_told(one) for one in told if one.standing == standing])
            for standing, heading in guarantees.HEADINGS.items()
        ],
        "page": page,
        "pipelines": [(one, [two for two in found if two.place.pipeline_id == one.id]) for one in page.rows],
        "most": readiness_facts.LAST_RUNS,
    }
    return show(request, "guarantees/guarantees.html", context)


@require_safe
@screen
def help_page(request: ScreenRequest) -> HttpResponse:
    """What there is to read, by topic: screens, and the paths of documents (N29)."""
    topics = [(topic, [(label, _address(place)) for label, place in topic.screens]) for topic in help_topics.TOPICS]
    return show(request, "guarantees/help.html", {"topics": topics})


def shown(pipelines: Collection[Pipeline]) -> list[Shown]:
    """Where these pipelines have a release in force, with its checklist and whether its stages are safe to repeat."""
    return [_shown(place) for place in readiness_facts.places(pipelines)]


def _shown(place: Place) -> Shown:
    lines = readiness.checklist(place.facts)
    return Shown(
        place,
        [(OF_STATE[one.state], STATE_WORDS[one.state], one, help_topics.BY_KEY[one.see]) for one in lines],
        [(OF_VERDICT[repeat.verdict], stage, repeat) for stage, repeat in readiness.repeats(place.facts)],
        sum(one.state == State.MET for one in lines),
    )


def _told(statement: Statement) -> Told:
    return Told(statement, [help_topics.BY_KEY[one] for one in statement.see])


def _address(place: str) -> str:
    return place if place.startswith("/") else reverse(place)
