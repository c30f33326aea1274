"""The operations API's routes for acting on runs, stages and dead letters, and for what was done (contract §3)."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import queries
from pipelines.access import RECOVER, STEER, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb, page_answer
from pipelines.list_filters import DeadLetterFilter
from pipelines.models import DeadLetter
from pipelines.paging import page_of, read_cut
from recovery import dead_letters, reconciliation_api, serializers
from recovery.filters import OperationFilter
from recovery.queries import operations
from recovery.transitions import (
    cancel_as_operation,
    pause_as_operation,
    resume_as_operation,
    retry_stage,
    skip_stage,
)


class Pause(OperationsEndpoint):
    """Stops further dispatch; what runs may finish (P60, P61). Answers exactly these two fields (O9)."""

    access = {"POST": STEER}
    bodies = {"POST": Verb}
    actions = {"POST": "run.pause"}

    @extend_schema(request=Verb, responses=wire.Signal)
    def post(self, call: Call) -> HttpResponse:
        done = pause_as_operation(call.target.id, actor=call.actor, reason=call.reason, key=call.key)
        return answer({"execution_id": str(done.run_id), "status": "pause_signal_sent"})


class Resume(OperationsEndpoint):
    """Lets a paused run go on (P63). Answers exactly these two fields (O10)."""

    access = {"POST": STEER}
    bodies = {"POST": Verb}
    actions = {"POST": "run.resume"}

    @extend_schema(request=Verb, responses=wire.Signal)
    def post(self, call: Call) -> HttpResponse:
        done = resume_as_operation(call.target.id, actor=call.actor, reason=call.reason, key=call.key)
        return answer({"execution_id": str(done.run_id), "status": "resume_signal_sent"})


class Cancel(OperationsEndpoint):
    """Ends a run and everything unfinished in it, and lists what may still go on outside (P72–P75)."""

    access = {"POST": STEER}
    bodies = {"POST": Verb}
    actions = {"POST": "run.cancel"}

    @extend_schema(request=Verb, responses=serializers.CancelAnswer)
    def post(self, call: Call) -> HttpResponse:
        done = cancel_as_operation(call.target.id, actor=call.actor, reason=call.reason, key=call.key)
        return answer(serializers.cancel_answer(done))


class Retry(OperationsEndpoint):
    """Begins a new epoch of a stage, in place; nothing of the old one is erased (P65–P68)."""

    access = {"POST": RECOVER}
    bodies = {"POST": wire.RetryRequest}
    actions = {"POST": "stage.retry"}

    @extend_schema(request=wire.RetryRequest, responses=serializers.StageVerbAnswer)
    def post(self, call: Call) -> HttpResponse:
        done = retry_stage(
            call.target.id,
            actor=call.actor,
            scope=call.body["scope"],
            reason=call.reason,
            new_input=call.body.get("input"),
            acknowledge_effects=call.body["acknowledge_effects"],
            key=call.key,
        )
        return answer(serializers.verb_answer(done))


class Skip(OperationsEndpoint):
    """Leaves a stage out on purpose; what waits for it may go on (P69–P71)."""

    access = {"POST": RECOVER}
    bodies = {"POST": wire.SkipRequest}
    actions = {"POST": "stage.skip"}

    @extend_schema(request=wire.SkipRequest, responses=serializers.StageVerbAnswer)
    def post(self, call: Call) -> HttpResponse:
        done = skip_stage(
            call.target.id,
            actor=call.actor,
            reason=call.reason,
            output=call.body.get("output"),
            has_output="output" in call.body,
            key=call.key,
        )
        return answer(serializers.verb_answer(done))


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


class LetterEndpoint(OperationsEndpoint):
    """A verb on one dead letter."""

    access = {"POST": RECOVER}
    bodies = {"POST": Verb}

    def find(self, actor: Actor, **ids: uuid.UUID) -> DeadLetter:
        letter = queries.dead_letters(actor).filter(id=ids["letter_id"]).first()
        if letter is None:
            raise not_found()
        return letter


class Acknowledge(LetterEndpoint):
    """Somebody has seen it and deals with it."""

    actions = {"POST": "dead_letter.acknowledge"}

    @extend_schema(request=Verb, responses=serializers.LetterVerbAnswer)
    def post(self, call: Call) -> HttpResponse:
        done = dead_letters.acknowledge(call.target.id, actor=call.actor, reason=call.reason, key=call.key)
        return answer(serializers.verb_answer(done))


class Redrive(LetterEndpoint):
    """Begins a new epoch of the stage, and closes the letter with it."""

    bodies = {"POST": wire.RedriveRequest}
    actions = {"POST": "dead_letter.redrive"}

    @extend_schema(request=wire.RedriveRequest, responses=serializers.LetterVerbAnswer)
    def post(self, call: Call) -> HttpResponse:
        done = dead_letters.redrive(
            call.target.id,
            actor=call.actor,
            reason=call.reason,
            acknowledge_effects=call.body["acknowledge_effects"],
            key=call.key,
        )
        return answer({**serializers.verb_answer(done), "dead_letter_status": "redriven"})


class Discard(LetterEndpoint):
    """It will not be done; the stage stays failed. Needs a reason."""

    actions = {"POST": "dead_letter.discard"}

    @extend_schema(request=Verb, responses=serializers.LetterVerbAnswer)
    def post(self, call: Call) -> HttpResponse:
        done = dead_letters.discard(call.target.id, actor=call.actor, reason=call.reason, key=call.key)
        return answer(serializers.verb_answer(done))


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
    *reconciliation_api.urlpatterns,
]
