"""What the list of operations may be filtered by."""

from __future__ import annotations

from pipelines.filters import AnyId, AnyOf, Before, ListFilter, Since
from recovery.states import OperationKind, OperationState


class OperationFilter(ListFilter):
    """Operations by kind, state, run, stage, person and time."""

    kind = AnyOf(choices=OperationKind.values)
    status = AnyOf("state", choices=OperationState.values)
    execution_id = AnyId("run_id")
    stage_id = AnyId()
    requested_by = AnyOf("requested_by__username")
    created_after = Since("created_at")
    created_before = Before("created_at")
