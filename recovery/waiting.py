"""Operations that a run's reader should know of: somebody, or the engine, still has to do something about them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime

from approvals.models import ApprovalRequest
from approvals.requests import so_far
from approvals.rules import people
from approvals.states import RequestState
from pipelines.blockers import CLOCK, ENGINE, PERSON, Blocker
from pipelines.models import Run
from pipelines.states import RunStatus
from recovery import run_retry_rows
from recovery.models import Operation
from recovery.plans import Asked
from recovery.states import PENDING_OPERATION, TERMINAL_OPERATION, OperationState

MOST = 20


def blockers(run: Run) -> list[Blocker]:
    """One for each operation on the run that is neither ended nor dispatched, oldest first; at most `MOST`."""
    settled = sorted({*TERMINAL_OPERATION, OperationState.DISPATCHED})
    unfinished = Operation.objects.filter(run=run).exclude(state__in=settled)
    found = list(unfinished.select_related("requested_by", "stage").order_by("created_at", "id")[:MOST])
    asked = [one.id for one in found if one.state in PENDING_OPERATION]
    requests = {one.subject: one for one in ApprovalRequest.objects.filter(subject__in=asked, state=RequestState.OPEN)}
    votes = so_far(list(requests.values()))
    return [_blocker(one, requests.get(one.id), votes) for one in found]


def to_retry(run: Run) -> list[Blocker]:
    """That the run retries itself, when, and by which policy."""
    if run.status != RunStatus.FAILED:
        return []
    retry = run_retry_rows.newest(run)
    if retry is None or not run_retry_rows.is_ahead(retry, run):
        return []
    held = run_retry_rows.holding(retry, run)
    cause = run_retry_rows.sentence(retry) + (f"; {held.sentence()}" if held else "")
    return [Blocker(CLOCK, cause, retry.due_at, closed_by="blackout" if held else None)]


def waits_already(asked: Asked) -> str:
    """That the same verb on the same target waits for others already; blank where none does."""
    same = Operation.objects.filter(
        run=asked.run_id, stage=asked.stage_id, kind=asked.kind, state__in=PENDING_OPERATION
    )
    found = same.select_related("requested_by", "stage").order_by("-created_at", "-id").first()
    return f"{_asked(found)} waits for others already: this would be another request" if found else ""


def _blocker(operation: Operation, request: ApprovalRequest | None, votes: Mapping[uuid.UUID, int]) -> Blocker:
    stage = operation.stage.name if operation.stage else ""
    asked = _asked(operation)
    if request is not None:
        cause = f"{asked} {_pending(operation, request, votes[request.id])}"
        return Blocker(PERSON, cause, request.expires_at, operation.stage_id, stage, asks=operation.id)
    target = f"has reserved run {operation.target}, which is" if operation.target else "is"
    cause = f"{asked} {target} not dispatched yet; the next sweep carries it on"
    return Blocker(ENGINE, cause, operation.updated_at, operation.stage_id, stage)


def _asked(operation: Operation) -> str:
    stage = f" of {operation.stage.name}" if operation.stage else ""
    who = operation.asker
    return f"the {operation.kind}{stage} that {who} asked for at {_time(operation.created_at)}"


def _pending(operation: Operation, request: ApprovalRequest, have: int) -> str:
    wanted = people(request.approver_role, request.count)
    needed = f"of {wanted} other than who asked, {have} so far"
    ends = f"; it expires at {_time(request.expires_at)}" if request.expires_at else ""
    if operation.state == OperationState.AWAITING_APPROVAL:
        return f"waits for approval {needed}{ends}"
    first = next((str(reason.get("text", "")) for reason in operation.reasons), "")
    why = f": {first}" if first else ""
    return f"is in review{why}; it goes on with the approval {needed}{ends}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
