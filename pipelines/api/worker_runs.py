"""The application API's routes for runs that a stage starts (contract §2)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import children
from pipelines.api.authentication import WorkerCaller
from pipelines.api.endpoints import WorkerEndpoint, answer, not_found
from pipelines.api.serializers import Camel, ChildIntent, ChildrenLookedAt
from pipelines.api.shapes import AnyJson, Flag, Identifier, ListOf, OneOf, Text
from pipelines.children import Wish
from pipelines.creation import Intent
from pipelines.states import RunStatus
from pipelines.wire import children_body, started_body


class ChildFailure(Camel):
    code = Text(blank=True)
    message = Text(blank=True)


class ChildView(Camel):
    """A child as its stage sees it. `runId` is the run that counts, `startedRunId` the one that was started: they
    differ once the child was forked and forks are followed. `outputs` are by stage, of a completed run's last stages;
    `leftOut` names those that are too large together."""

    run_id = Identifier()
    started_run_id = Identifier()
    key = Text()
    name = Text()
    status = OneOf(RunStatus.values)
    is_terminal = Flag()
    failure = ChildFailure(required=False)
    outputs = AnyJson(required=False)
    left_out = ListOf(child=Text())


class StartedChild(Camel):
    """`created` is false where the key stood for a run already."""

    created = Flag()
    run = ChildView()


class ChildrenSeen(Camel):
    runs = ListOf(child=ChildView())


def wish_of(body: dict[str, Any]) -> Wish:
    """What a checked body asks for."""
    intent = Intent(
        name=body.get("name"), stages=body.get("stages", ()), pipeline=body.get("pipeline"), input=body.get("input")
    )
    return Wish(body["key"], intent, body.get("environment"), body["on_parent_end"], body["follow"])


class StartRun(WorkerEndpoint):
    """Starts a run for a stage, or finds the one that its key stands for: 200 with the same run (N9, F129)."""

    body = ChildIntent

    @extend_schema(request=ChildIntent, responses={201: StartedChild, 200: StartedChild})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        started = children.start(caller.holder, stage_id, body["execution_id"], wish_of(body))
        if started is None:
            raise not_found()
        return answer(started_body(started), 201 if started.created else 200)


class LookAtRuns(WorkerEndpoint):
    """How runs that the stage started stand now, in the order asked."""

    body = ChildrenLookedAt

    @extend_schema(request=ChildrenLookedAt, responses=ChildrenSeen)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        seen = children.look(caller.holder, stage_id, body["execution_id"], body["runs"])
        if seen is None:
            raise not_found()
        return answer(children_body(seen))


urlpatterns = [
    path("stages/<str:stage_id>/runs", StartRun.as_view()),
    path("stages/<str:stage_id>/runs/look", LookAtRuns.as_view()),
]
