"""The wire shapes of operations: what was asked for, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.api.operations_serializers import HUGE, time
from pipelines.api.shapes import Flag, Identifier, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.states import DeadLetterState, RunStatus, StageState
from recovery.models import Operation
from recovery.states import Disposition, OperationKind, OperationState
from recovery.transitions import Done


class OperationView(Shape):
    id = Identifier()
    operation_id = Identifier()
    kind = OneOf(OperationKind.values)
    execution_id = Identifier()
    stage_id = Identifier(allow_null=True)
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    requested_by = Text()
    channel = Text()
    reason = Text(allow_null=True)
    created_at = Moment()


def operation_view(operation: Operation) -> dict[str, Any]:
    return {
        "id": str(operation.id),
        "operation_id": str(operation.id),
        "kind": operation.kind,
        "execution_id": str(operation.run_id),
        "stage_id": str(operation.stage_id) if operation.stage_id else None,
        "status": operation.state,
        "disposition": operation.disposition,
        "requested_by": operation.requested_by.get_username(),
        "channel": operation.channel,
        "reason": operation.reason or None,
        "created_at": time(operation.created_at),
    }


class VerbAnswer(Shape):
    """What every verb answers at least."""

    operation_id = Identifier()
    execution_id = Identifier()
    stage_id = Identifier(allow_null=True)
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    replayed = Flag()
    plan_digest = Text(allow_null=True)
    execution_status = OneOf(RunStatus.values)


class StageVerbAnswer(VerbAnswer):
    stage_status = OneOf(StageState.values)
    epoch = Whole(min_value=1, max_value=HUGE, required=False)


class LetterVerbAnswer(VerbAnswer):
    dead_letter_status = OneOf(DeadLetterState.values)
    stage_status = OneOf(StageState.values, required=False)
    epoch = Whole(min_value=1, max_value=HUGE, required=False)


class StillOutside(Shape):
    stage_id = Identifier()
    attempt = Whole(min_value=0, max_value=HUGE)
    kind = Text()
    detail = Text()


class CancelAnswer(VerbAnswer):
    """`status` is the run's: cancelled. `reconciliation` lists what may still go on outside."""

    status = OneOf([RunStatus.CANCELLED.value])
    reconciliation = ListOf(child=StillOutside())


def verb_answer(done: Done) -> dict[str, Any]:
    """A verb's answer: the fixed fields, and what the verb itself has to tell."""
    told = {("execution_status" if name == "run_status" else name): value for name, value in done.result.items()}
    return {
        "operation_id": str(done.operation_id),
        "execution_id": str(done.run_id),
        "stage_id": str(done.stage_id) if done.stage_id else None,
        "status": done.status,
        "disposition": done.disposition,
        "replayed": done.replayed,
        "plan_digest": None,
        **told,
    }


def cancel_answer(done: Done) -> dict[str, Any]:
    """A cancel's answer, with the reconciliation list in this API's spelling."""
    items = [_still_outside(item) for item in done.result["reconciliation"]]
    return {**verb_answer(done), "status": RunStatus.CANCELLED.value, "reconciliation": items}


def _still_outside(item: Mapping[str, Any]) -> dict[str, Any]:
    return {("stage_id" if name == "stageId" else name): value for name, value in item.items()}
