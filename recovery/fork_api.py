"""The operations API's routes for rerun and replay (contract §3)."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines.access import FORK
from pipelines.api.endpoints import answer
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, StartingVerb
from pipelines.api.shapes import Flag, Identifier, OneOf, Shape, Text
from recovery import forks
from recovery.operations import Done
from recovery.serializers import or_plan
from recovery.states import Disposition, OperationKind, OperationState

SLUG, NAME = 100, 255


class ForkRequest(StartingVerb):
    """What is left out is the source's own: pipeline, environment. `actor_ref` may only name the caller."""

    flow_slug = Text(max_length=NAME, required=False)
    environment = Text(max_length=SLUG, required=False)
    actor_ref = Text(max_length=NAME, required=False)


class RerunRequest(ForkRequest):
    """`from_step_id` starts clean; left out, the run starts where the snapshot stands, with the handler's state."""

    from_step_id = Text(max_length=NAME, required=False)


class ReplayRequest(ForkRequest):
    """`freeze_release` is a hint in the new run's `_recovery`: the release is the one in force now all the same."""

    freeze_release = Flag(default=False)


class ForkAnswer(Shape):
    """The new run, or where the request for it stands: `execution_id` is null while it awaits approval."""

    execution_id = Identifier(allow_null=True)
    original_execution_id = Identifier()
    operation_id = Identifier()
    stage_id = Identifier(allow_null=True)
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    replayed = Flag()
    plan_digest = Text()
    from_step_id = Text(allow_null=True)
    environment = Text()
    release_id = Identifier()
    release_changed = Flag()


ANSWERS = {201: ForkAnswer, 200: or_plan(ForkAnswer), 202: ForkAnswer}


class ForkEndpoint(OperationsEndpoint):
    """Makes a new run out of one that has ended; a dry run answers the plan."""

    access = {"POST": FORK}
    kind: OperationKind

    def fork(self, call: Call, wish: forks.Wish) -> HttpResponse:
        asked = forks.ask_fork(self.kind, call.target, wish, actor=call.actor, reason=call.reason)
        asked = asked.overriding(call.override_reason)
        key = call.key
        if call.is_dry_run:
            return answer(forks.preview(asked, actor=call.actor).shown())
        done = forks.fork(asked, actor=call.actor, key=key, plan_digest=call.plan_digest)
        return answer(fork_answer(done), _status(done))


class Rerun(ForkEndpoint):
    """Goes on from a checkpoint in a new run: what was done is kept, X and all behind it run (O17–O36)."""

    bodies = {"POST": RerunRequest}
    actions = {"POST": "run.rerun"}
    kind = OperationKind.RERUN

    @extend_schema(request=RerunRequest, responses=ANSWERS)
    def post(self, call: Call) -> HttpResponse:
        return self.fork(call, forks.Wish(**_common(call), from_step_id=call.body.get("from_step_id")))


class Replay(ForkEndpoint):
    """Starts the whole thing anew in a new run, on the release that is in force now (O37–O41)."""

    bodies = {"POST": ReplayRequest}
    actions = {"POST": "run.replay"}
    kind = OperationKind.REPLAY

    @extend_schema(request=ReplayRequest, responses=ANSWERS)
    def post(self, call: Call) -> HttpResponse:
        return self.fork(call, forks.Wish(**_common(call), freeze_release=call.body["freeze_release"]))


def _common(call: Call) -> dict[str, Any]:
    return {name: call.body.get(name) for name in ("flow_slug", "environment", "actor_ref")}


def _status(done: Done) -> int:
    if done.status == OperationState.AWAITING_APPROVAL:
        return 202
    return 200 if done.replayed else 201


def fork_answer(done: Done) -> dict[str, Any]:
    told = ("execution_id", "from_step_id", "environment", "release_id", "release_changed")
    return {
        **{name: done.result.get(name) for name in told},
        "original_execution_id": str(done.run_id),
        "operation_id": str(done.operation_id),
        "stage_id": None,
        "status": done.status,
        "disposition": done.disposition,
        "replayed": done.replayed,
        "plan_digest": done.plan_digest,
    }


urlpatterns = [
    path("executions/<str:execution_id>/rerun", Rerun.as_view()),
    path("executions/<str:execution_id>/replay", Replay.as_view()),
]
