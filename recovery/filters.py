"""What the lists of operations, backfills, their ticks and bulks may be filtered by."""

from __future__ import annotations

from pipelines.filters import AnyId, AnyOf, Before, ListFilter, Since
from recovery.states import BackfillState, BackfillTickState, BulkState, OperationKind, OperationState


class OperationFilter(ListFilter):
    """Operations by kind, state, run, stage, person and time."""

    kind = AnyOf(choices=OperationKind.values)
    status = AnyOf("state", choices=OperationState.values)
    execution_id = AnyId("run_id")
    stage_id = AnyId()
    requested_by = AnyOf("requested_by__username")
    created_after = Since("created_at")
    created_before = Before("created_at")


class BackfillFilter(ListFilter):
    """Backfills by trigger, pipeline and status."""

    trigger = AnyId("trigger_id")
    pipeline = AnyOf("trigger__pipeline__slug")
    status = AnyOf("state", choices=BackfillState.values)


class BackfillTickFilter(ListFilter):
    """The ticks of a backfill by what became of them."""

    status = AnyOf("state", choices=BackfillTickState.values)


class BulkFilter(ListFilter):
    """Bulks by kind, state, person and time."""

    kind = AnyOf(choices=OperationKind.values)
    status = AnyOf("state", choices=BulkState.values)
    requested_by = AnyOf("requested_by__username")
    created_after = Since("created_at")
    created_before = Before("created_at")
