"""Operations that a run's reader should know of: somebody, or the engine, still has to do something about them."""

from __future__ import annotations

from datetime import datetime

from pipelines.blockers import ENGINE, PERSON, Blocker
from pipelines.models import Run
from recovery.models import Operation
from recovery.states import PENDING_OPERATION, TERMINAL_OPERATION, OperationState

MOST = 20


def blockers(run: Run) -> list[Blocker]:
    """One for each operation on the run that is neither ended nor dispatched, oldest first; at most `MOST`."""
    settled = sorted({*TERMINAL_OPERATION, OperationState.DISPATCHED})
    waiting = Operation.objects.filter(run=run).exclude(state__in=settled)
    return [
        _blocker(one) for one in waiting.select_related("requested_by", "stage").order_by("created_at", "id")[:MOST]
    ]


def _blocker(operation: Operation) -> Blocker:
    stage = operation.stage.name if operation.stage else ""
    what = (
        f"the {operation.kind}{f' of {stage}' if stage else ''} that {operation.requested_by.get_username()} asked for"
    )
    asked = f"{what} at {_time(operation.created_at)}"
    if operation.state in PENDING_OPERATION:
        return Blocker(PERSON, f"{asked} {_pending(operation)}", None, operation.stage_id, stage)
    target = f"has reserved run {operation.target}, which is" if operation.target else "is"
    cause = f"{asked} {target} not dispatched yet; the next sweep carries it on"
    return Blocker(ENGINE, cause, operation.updated_at, operation.stage_id, stage)


def _pending(operation: Operation) -> str:
    if operation.state == OperationState.AWAITING_APPROVAL:
        return "waits for approval by somebody else"
    first = next((str(reason.get("text", "")) for reason in operation.reasons), "")
    why = f": {first}" if first else ""
    return f"is in review{why}; somebody else with the right lets it go on or denies it"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
