"""The operations API's routes for acting on runs, stages and dead letters, and for what was done (contract §3)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema, extend_schema_view

from pipelines import queries
from pipelines.access import CANCEL, RECOVER, STEER, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb, page_answer
from pipelines.list_filters import DeadLetterFilter
from pipelines.models import DeadLetter
from pipelines.paging import page_of, read_cut
from recovery import dead_letters, fork_api, reconciliation_api, run_retry_api, serializers, transitions
from recovery.filters import OperationFilter
from recovery.operations import Done
from recovery.plans import Asked
from recovery.queries import operations
from recovery.serializers import or_asked, or_plan
from recovery.states import OperationKind, OperationState
from recovery.transitions import perform, preview


class VerbEndpoint(OperationsEndpoint):
    """A verb that is planned first: a dry run answers the plan, everything else what was done as planned, or 202 when
    others must agree to it."""

    def asked(self, call: Call) -> Asked:
        raise NotImplementedError

    def told(self, done: Done) -> dict[str, Any]:
        return serializers.verb_answer(done)

    def post(self, call: Call) -> HttpResponse:
        asked = self.asked(call)
        if call.is_dry_run:
            return answer(preview(asked, actor=call.actor).shown())
        done = perform(asked, actor=call.actor, key=call.key, plan_digest=call.plan_digest)
        if done.status == OperationState.AWAITING_APPROVAL:
            return answer(serializers.verb_answer(done), 202)
        return answer(self.told(done))


@extend_schema_view(post=extend_schema(request=wire.PauseRequest, responses=or_plan(wire.Signal)))
class Pause(VerbEndpoint):
    """Stops further dispatch; what runs may finish (P60, P61). Answers exactly these two fields (O9)."""

    access = {"POST": STEER}
    bodies = {"POST": wire.PauseRequest}
    actions = {"POST": "run.pause"}

    def asked(self, call: Call) -> Asked:
        return transitions.ask_pause(call.target.id, until=call.body.get("until"), reason=call.reason)

    def told(self, done: Done) -> dict[str, Any]:
        return {"execution_id": str(done.run_id), "status": "pause_signal_sent"}


@extend_schema_view(post=extend_schema(request=PlannedVerb, responses=or_plan(wire.Signal)))
class Resume(VerbEndpoint):
    """Lets a paused run go on (P63). Answers exactly these two fields (O10)."""

    access = {"POST": STEER}
    bodies = {"POST": PlannedVerb}
    actions = {"POST": "run.resume"}

    def asked(self, call: Call) -> Asked:
        return transitions.ask_resume(call.target.id, reason=call.reason)

    def told(self, done: Done) -> dict[str, Any]:
        return {"execution_id": str(done.run_id), "status": "resume_signal_sent"}


@extend_schema_view(post=extend_schema(request=PlannedVerb, responses=or_asked(serializers.CancelAnswer)))
class Cancel(VerbEndpoint):
    """Ends a run and everything unfinished in it, and lists what may still go on outside (P72–P75)."""

    access = {"POST": CANCEL}
    bodies = {"POST": PlannedVerb}
    actions = {"POST": "run.cancel"}

    def asked(self, call: Call) -> Asked:
        return transitions.ask_cancel(call.target.id, reason=call.reason)

    def told(self, done: Done) -> dict[str, Any]:
        return serializers.cancel_answer(done)


@extend_schema_view(post=extend_schema(request=wire.RetryRequest, responses=or_asked(serializers.StageVerbAnswer)))
class Retry(VerbEndpoint):
    """Begins a new epoch of a stage, in place; nothing of the old one is erased (P65–P68)."""

    access = {"POST": RECOVER}
    bodies = {"POST": wire.RetryRequest}
    actions = {"POST": "stage.retry"}

    def asked(self, call: Call) -> Asked:
        return transitions.ask_retry(
            call.target.run_id,
            call.target.id,
            scope=call.body["scope"],
            new_input=call.body.get("input"),
            acknowledge_effects=call.body["acknowledge_effects"],
            reason=call.reason,
        ).overriding(call.override_reason)


@extend_schema_view(post=extend_schema(request=wire.SkipRequest, responses=or_asked(serializers.StageVerbAnswer)))
class Skip(VerbEndpoint):
    """Leaves a stage out on purpose; what waits for it may go on (P69–P71)."""

    access = {"POST": RECOVER}
    bodies = {"POST": wire.SkipRequest}
    actions = {"POST": "stage.skip"}

    def asked(self, call: Call) -> Asked:
        return transitions.ask_skip(
            call.target.run_id,
            call.target.id,
            output=call.body.get("output"),
            has_output="output" in call.body,
            reason=call.reason,
        )


class Operations(OperationsEndpoint):
    """What people asked for and what came of it, newest first."""

    access = {"GET": VIEW}
    filters = OperationFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(serializers.OperationView))
    def get(self, call: Call) -> HttpResponse:
        page = page_of(OperationFilter.narrow(operations(call.actor), call.params), read_cut(call.params))
        return page_answer(call.request, page, [serializers.operation_view(one) for one in page.rows])


class DeadLetters(OperationsEndpoint):
    """The stages that the machine has given up on, newest first."""

    access = {"GET": VIEW}
    filters = DeadLetterFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.DeadLetterView))
    def get(self, call: Call) -> HttpResponse:
        rows = DeadLetterFilter.narrow(queries.dead_letters(call.actor), call.params)
        page = page_of(rows, read_cut(call.params), ("opened_at", "id"))
        return page_answer(call.request, page, [wire.dead_letter_view(one) for one in page.rows])


class LetterEndpoint(VerbEndpoint):
    """A verb on one dead letter."""

    access = {"POST": RECOVER}
    bodies = {"POST": PlannedVerb}

    def find(self, actor: Actor, **ids: uuid.UUID) -> DeadLetter:
        letter = queries.dead_letters(actor).filter(id=ids["letter_id"]).first()
        if letter is None:
            raise not_found()
        return letter


@extend_schema_view(post=extend_schema(request=PlannedVerb, responses=or_plan(serializers.LetterVerbAnswer)))
class Acknowledge(LetterEndpoint):
    """Somebody has seen it and deals with it."""

    actions = {"POST": "dead_letter.acknowledge"}

    def asked(self, call: Call) -> Asked:
        return dead_letters.ask_mark(OperationKind.ACKNOWLEDGE, call.target, reason=call.reason)


@extend_schema_view(post=extend_schema(request=wire.RedriveRequest, responses=or_asked(serializers.LetterVerbAnswer)))
class Redrive(LetterEndpoint):
    """Begins a new epoch of the stage, and closes the letter with it."""

    bodies = {"POST": wire.RedriveRequest}
    actions = {"POST": "dead_letter.redrive"}

    def asked(self, call: Call) -> Asked:
        acknowledged = call.body["acknowledge_effects"]
        asked = dead_letters.ask_redrive(call.target, acknowledge_effects=acknowledged, reason=call.reason)
        return asked.overriding(call.override_reason)


@extend_schema_view(post=extend_schema(request=PlannedVerb, responses=or_asked(serializers.LetterVerbAnswer)))
class Discard(LetterEndpoint):
    """It will not be done; the stage stays failed. Needs a reason."""

    actions = {"POST": "dead_letter.discard"}

    def asked(self, call: Call) -> Asked:
        return dead_letters.ask_mark(OperationKind.DISCARD, call.target, reason=call.reason)


urlpatterns = [
    path("executions/<str:execution_id>/pause", Pause.as_view()),
    path("executions/<str:execution_id>/resume", Resume.as_view()),
    path("executions/<str:execution_id>/cancel", Cancel.as_view()),
    path("stages/<str:stage_id>/retry", Retry.as_view()),
    path("stages/<str:stage_id>/skip", Skip.as_view()),
    path("operations", Operations.as_view()),
    path("dead-letters", DeadLetters.as_view()),
    path("dead-letters/<str:letter_id>/acknowledge", Acknowledge.as_view()),
    path("dead-letters/<str:letter_id>/redrive", Redrive.as_view()),
    path("dead-letters/<str:letter_id>/discard", Discard.as_view()),
    *fork_api.urlpatterns,
    *run_retry_api.urlpatterns,
    *reconciliation_api.urlpatterns,
]
