"""The application API's routes for workers (contract §2). Every call names its session and is a heartbeat.

Serves P48–P56. The hot ones (pull, results, renew) cost a fixed number of statements, whatever they carry.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import intents, leases, progress, results, sessions, terminations
from pipelines.api import pulling
from pipelines.api.authentication import WorkerCaller
from pipelines.api.bodies import MIB
from pipelines.api.endpoints import Endpoint, WorkerEndpoint, answer, not_found
from pipelines.api.serializers import (
    Accepted,
    Acknowledged,
    Acknowledgement,
    Commands,
    EffectAnswers,
    EffectsTold,
    Jobs,
    LeaseView,
    Leaving,
    LeftCheckpoint,
    LogLines,
    Noted,
    Nothing,
    OfAttempt,
    OneOfManyResults,
    Progress,
    Pull,
    Registration,
    Release,
    Renewal,
    RenewedLeases,
    ResultReceipts,
    Results,
    Session,
    StageResult,
    StageStatus,
    Terminated,
    left_behind,
)
from pipelines.api.shapes import Wrong, read_id, refusal
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.handler_checkpoints import leave_checkpoint
from pipelines.keys import KeyHolder
from pipelines.postures import Left
from pipelines.results import Receipt, Result
from pipelines.wake import Queue
from pipelines.wire import effects_body, job_body, lease_body, left_body

STALE = "this session does not hold the lease of that attempt; the result is kept as late evidence and moves nothing"


class Bootstrap(Endpoint):
    """Opens a session for a worker and registers the handlers it has (P48)."""

    body = Registration

    @extend_schema(request=Registration, responses=Session)
    def post(self, key: KeyHolder, body: dict[str, Any]) -> HttpResponse:
        session_id, token = sessions.open_session(key, body)
        return answer(
            {
                "workerId": str(session_id),
                "sessionToken": token,
                "application": {"id": str(key.application_id), "name": key.application_name},
                "leaseSeconds": settings.RECOURSE_LEASE_SECONDS,
                "renewSeconds": settings.RECOURSE_RENEW_SECONDS,
                "visibilitySeconds": settings.RECOURSE_VISIBILITY_SECONDS,
            }
        )


class Heartbeat(WorkerEndpoint):
    """A sign of life, for a worker that has nothing else to say."""

    body = Nothing

    @extend_schema(request=Nothing, responses=Commands)
    def post(self, caller: WorkerCaller, body: dict[str, Any]) -> HttpResponse:
        return answer({"commands": caller.holder.commands()})


class Shutdown(WorkerEndpoint):
    """Drains the session: nothing more is handed out; what it holds it may finish."""

    body = Nothing

    @extend_schema(request=Nothing, responses=Commands)
    def post(self, caller: WorkerCaller, body: dict[str, Any]) -> HttpResponse:
        sessions.drain_session(caller.holder.session_id)
        return answer({"commands": [{"command": "drain"}]})


class PullJobs(WorkerEndpoint):
    """Hands out jobs of the session's handlers, waiting for some if asked to (P49). Nothing there: 204."""

    body = Pull

    @extend_schema(request=Pull, responses={200: Jobs, 204: None})
    def post(self, caller: WorkerCaller, body: dict[str, Any]) -> HttpResponse:
        try:
            jobs = pulling.pull(
                caller.holder,
                _queues(caller, body.get("handlers")),
                limit=body["max_jobs"],
                acquire=body["acquire"],
                seconds=body["wait_seconds"],
                gone=_gone(self.request),
            )
        except pulling.Busy:
            return HttpResponse(status=204, headers={"Retry-After": str(random.randint(1, 3))})  # noqa: S311
        if not jobs:
            return HttpResponse(status=204)
        return answer({"jobs": [job_body(job) for job in jobs]})


class AcquireLease(WorkerEndpoint):
    """Takes the lease of a dispatched attempt; only `acquired: true` allows to begin (P4, P50)."""

    body = OfAttempt

    @extend_schema(request=OfAttempt, responses=LeaseView)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        lease = leases.acquire(caller.holder, stage_id, body["execution_id"])
        if lease is None:
            raise not_found()
        return answer(lease_body(lease))


class RenewLease(WorkerEndpoint):
    """Extends one lease (P51)."""

    body = OfAttempt

    @extend_schema(request=OfAttempt, responses=LeaseView)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        execution_id = body["execution_id"]
        (lease,) = leases.renew(caller.holder, [(stage_id, execution_id)])
        if not lease.acquired and not progress.owns_attempt(caller.holder, execution_id, stage_id):
            raise not_found()
        return answer(lease_body(lease))


class RenewLeases(WorkerEndpoint):
    """Extends many leases at once. One that is not the session's is answered `acquired: false` and why."""

    body = Renewal

    @extend_schema(request=Renewal, responses=RenewedLeases)
    def post(self, caller: WorkerCaller, body: dict[str, Any]) -> HttpResponse:
        wanted = [(item["stage_id"], item["execution_id"]) for item in body["leases"]]
        renewed = leases.renew(caller.holder, wanted)
        named = [
            {"stageId": str(lease.stage_id), "executionId": str(lease.execution_id), **lease_body(lease)}
            for lease in renewed
        ]
        return answer({"leases": named})


class ReleaseStage(WorkerEndpoint):
    """Gives a running stage back, for a pause or a drain; nothing is counted."""

    body = Release

    @extend_schema(request=Release, responses=StageStatus)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        state = leases.release(caller.holder, stage_id, body["execution_id"], _left(body))
        if state is None:
            raise not_found()
        return answer({"stageId": str(stage_id), "status": state})


class ReportResult(WorkerEndpoint):
    """Takes one result; 202 once it is durable, the same again gets the same (P52–P56)."""

    body = StageResult
    outage_code = "result_not_confirmed"

    @extend_schema(request=StageResult, responses={202: Accepted})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        (receipt,) = results.report(caller.holder, [_result({"stage_id": stage_id, **body})])
        if receipt.code == "not_found":
            raise not_found()
        if receipt.refusal is not None:
            raise receipt.refusal
        if receipt.code is not None:
            raise Refusal(receipt.code, STALE)
        return answer({"accepted": True, "stageStatus": receipt.stage_state}, 202)


class ReportResults(WorkerEndpoint):
    """Takes up to 200 results in one transaction; each is checked and answered by itself."""

    body = Results
    most_bytes = 16 * MIB
    outage_code = "result_not_confirmed"

    @extend_schema(request=Results, responses={202: ResultReceipts})
    def post(self, caller: WorkerCaller, body: dict[str, Any]) -> HttpResponse:
        told = body["results"]
        checked = [OneOfManyResults.check(item) for item in told]
        good = [_result(item) for item in checked if type(item) is not Wrong]
        receipts = iter(results.report(caller.holder, good))
        answers = [
            _refused_item(sent, item) if type(item) is Wrong else _receipt(next(receipts))
            for sent, item in zip(told, checked, strict=True)
        ]
        return answer({"results": answers}, 202)


class TellEffects(WorkerEndpoint):
    """What a running attempt is about to do outside, or has done. Only a 201 for an intent allows to act (R4, R5).

    An outcome that comes too late is refused as `stale_execution` and kept as late evidence.
    """

    body = EffectsTold

    @extend_schema(request=EffectsTold, responses={201: EffectAnswers})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        told = [Told(**effect) for effect in body["effects"]]
        noted = intents.tell_effects(caller.holder, stage_id, body["execution_id"], told)
        if noted is None:
            raise not_found()
        return answer(effects_body(noted), 201)


class TellTermination(WorkerEndpoint):
    """How the processes of an attempt ended, and which could not be ended (R39); 202 once it is durable.

    From the session that holds or held the attempt, whatever became of it and of its run since. The same again gets the
    same answer; another end, or another session, 409 `stale_execution`.
    """

    body = Terminated
    most_bytes = 2 * MIB

    @extend_schema(request=Terminated, responses={202: Noted})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        if not terminations.tell(caller.holder, stage_id, body["execution_id"], body["termination"]):
            raise not_found()
        return answer({"accepted": True}, 202)


class LeaveCheckpoint(WorkerEndpoint):
    """What a running attempt leaves for the next one in its epoch: its state, and its word on its effects."""

    body = Leaving

    @extend_schema(request=Leaving, responses={201: LeftCheckpoint})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        written = leave_checkpoint(caller.holder, stage_id, body["execution_id"], left_behind(body))
        if written is None:
            raise not_found()
        return answer(left_body(written), 201)


class Acknowledge(WorkerEndpoint):
    """Confirms a delivery; nothing more hangs on it, because a redelivery is a new attempt (P53)."""

    body = Acknowledgement

    @extend_schema(request=Acknowledgement, responses=Acknowledged)
    def post(self, caller: WorkerCaller, body: dict[str, Any]) -> HttpResponse:
        delivery = read_id(body["delivery_id"])
        if delivery is None or not progress.owns_attempt(caller.holder, delivery):
            raise not_found()
        return answer({"deliveryId": str(delivery)})


class ReportProgress(WorkerEndpoint):
    """How far a running attempt is; the latest word only."""

    body = Progress

    @extend_schema(request=Progress, responses={202: Noted})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        execution_id = body["execution_id"]
        progress.note_progress(
            caller.holder, stage_id, execution_id, percent=body.get("percent"), message=body["message"]
        )
        return answer({"accepted": True}, 202)


class AddLogLines(WorkerEndpoint):
    """Log lines of a running attempt."""

    body = LogLines

    @extend_schema(request=LogLines, responses={202: Noted})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        progress.add_log_lines(caller.holder, stage_id, body["execution_id"], body["lines"])
        return answer({"accepted": True}, 202)


urlpatterns = [
    path("workers/bootstrap", Bootstrap.as_view()),
    path("workers/heartbeat", Heartbeat.as_view()),
    path("workers/shutdown", Shutdown.as_view()),
    path("jobs/pull", PullJobs.as_view()),
    path("jobs/ack", Acknowledge.as_view()),
    path("leases/renew", RenewLeases.as_view()),
    path("results", ReportResults.as_view()),
    path("stages/<str:stage_id>/lease/acquire", AcquireLease.as_view()),
    path("stages/<str:stage_id>/lease/renew", RenewLease.as_view()),
    path("stages/<str:stage_id>/release", ReleaseStage.as_view()),
    path("stages/<str:stage_id>/result", ReportResult.as_view()),
    path("stages/<str:stage_id>/effects", TellEffects.as_view()),
    path("stages/<str:stage_id>/checkpoints", LeaveCheckpoint.as_view()),
    path("stages/<str:stage_id>/termination", TellTermination.as_view()),
    path("stages/<str:stage_id>/progress", ReportProgress.as_view()),
    path("stages/<str:stage_id>/logs", AddLogLines.as_view()),
]


def _queues(caller: WorkerCaller, wanted: list[str] | None) -> list[Queue]:
    """The queues of these handlers, or of all that the session registered; another one cannot be pulled (P48)."""
    known = caller.handlers if wanted is None else list(dict.fromkeys(wanted))
    for index, handler in enumerate(known):
        if handler not in caller.handlers:
            message = f"this session did not register the handler {handler!r}"
            raise Refusal("validation_error", message, errors={f"handlers[{index}]": [message]})
    key = caller.key
    return [Queue(key.application_id, key.environment_id, handler) for handler in known]


def _gone(request: HttpRequest) -> pulling.Gone:
    """Tells whether the client has hung up; knows it only under a server that shows its socket."""
    return pulling.hung_up(request.META.get("gunicorn.socket"))


def _result(told: dict[str, Any]) -> Result:
    return Result(**told | {"effects": [Told(**effect) for effect in told["effects"]], "checkpoint": _left(told)})


def _left(told: dict[str, Any]) -> Left | None:
    return left_behind(told["checkpoint"], "checkpoint.") if "checkpoint" in told else None


def _receipt(receipt: Receipt) -> dict[str, Any]:
    told = {
        "stageId": str(receipt.stage_id),
        "executionId": str(receipt.execution_id),
        "accepted": receipt.accepted,
    }
    if receipt.stage_state is not None:
        told["stageStatus"] = receipt.stage_state
    if receipt.code is not None:
        told["code"] = receipt.code
    if receipt.refusal is not None:
        told |= {"detail": receipt.refusal.detail, "errors": receipt.refusal.errors}
    return told


def _refused_item(sent: Any, wrong: Wrong) -> dict[str, Any]:
    names = sent if isinstance(sent, dict) else {}
    why = refusal(wrong)
    return {
        "stageId": _echo(names.get("stageId")),
        "executionId": _echo(names.get("executionId")),
        "accepted": False,
        "code": why.code,
        "detail": why.detail,
        "errors": why.errors,
    }


def _echo(value: Any) -> str | None:
    return value[:100] if isinstance(value, str) else None
