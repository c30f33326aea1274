"""Bulk operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from recourse.calls.base import Call, Planned, Some, When, given, page, planned, read, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class BulkOperations(Group[Sender_co]):
    """One verb for many runs, stages or dead letters, at a pace, stopped by failures."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        created_after: When | None = None,
        created_before: When | None = None,
        kind: Some = None,
        requested_by: Some = None,
        status: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.BulkView]]:
        """One page, newest first."""
        return page(
            "v1/bulk-operations",
            next,
            created_after=created_after,
            created_before=created_before,
            kind=kind,
            requested_by=requested_by,
            status=status,
            page_size=page_size,
        )

    iterate = iterates(list)

    @asks
    def get(self, bulk_id: str) -> Call[operations.BulkDetail]:
        """One, with its numbers."""
        return read(f"v1/bulk-operations/{segment(bulk_id)}")

    @lists
    def items(
        self, bulk_id: str, *, next: str | None = None, status: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.BulkItemView]]:
        """One page of its items, and what came of each."""
        return page(f"v1/bulk-operations/{segment(bulk_id)}/items", next, status=status, page_size=page_size)

    @plans
    def start(
        self,
        *,
        kind: Literal["retry", "skip", "cancel", "pause", "resume", "redrive", "discard", "rerun", "replay"],
        execution_ids: Sequence[str] | None = None,
        stage_ids: Sequence[str] | None = None,
        dead_letter_ids: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        override_reason: str | None = None,
        scope: Literal["stage", "stage_and_downstream"] | None = None,
        from_step_id: str | None = None,
        environment: str | None = None,
        freeze_release: bool | None = None,
        until: When | None = None,
        rate: int | None = None,
        canary: int | None = None,
        stop_ratio: float | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.BulkDetail, operations.PlanView]:
        """Does one verb (`kind`) to all that is named, or that the `filter` finds."""
        body = given(
            kind=kind,
            execution_ids=execution_ids,
            stage_ids=stage_ids,
            dead_letter_ids=dead_letter_ids,
            filter=filter,
            override_reason=override_reason,
            scope=scope,
            from_step_id=from_step_id,
            environment=environment,
            freeze_release=freeze_release,
            until=until,
            rate=rate,
            canary=canary,
            stop_ratio=stop_ratio,
            reason=reason,
        )
        return planned("v1/bulk-operations", body, dry_run, plan_digest, client_request_id)

    @asks
    def pause(
        self, bulk_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.BulkDetail]:
        """Begins no further item."""
        body = given(reason=reason)
        return write(f"v1/bulk-operations/{segment(bulk_id)}/pause", body, client_request_id)

    @asks
    def resume(
        self, bulk_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.BulkDetail]:
        """Goes on with what is left."""
        body = given(reason=reason)
        return write(f"v1/bulk-operations/{segment(bulk_id)}/resume", body, client_request_id)

    @asks
    def abort(
        self, bulk_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.BulkDetail]:
        """Ends it: what was not begun is left as it is."""
        body = given(reason=reason)
        return write(f"v1/bulk-operations/{segment(bulk_id)}/abort", body, client_request_id)
