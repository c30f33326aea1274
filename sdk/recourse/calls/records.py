"""What was asked for, what was done, and what is left to look after."""

from __future__ import annotations

from recourse.calls.base import Call, Some, When, page
from recourse.calls.methods import Group, Sender_co, iterates, lists
from recourse.models import operations
from recourse.models.pages import Page


class Operations(Group[Sender_co]):
    """What people asked for, and what came of it."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        created_after: When | None = None,
        created_before: When | None = None,
        execution_id: Some = None,
        kind: Some = None,
        requested_by: Some = None,
        stage_id: Some = None,
        status: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.OperationView]]:
        """One page, newest first."""
        return page(
            "v1/operations",
            next,
            created_after=created_after,
            created_before=created_before,
            execution_id=execution_id,
            kind=kind,
            requested_by=requested_by,
            stage_id=stage_id,
            status=status,
            page_size=page_size,
        )

    iterate = iterates(list)


class AuditEvents(Group[Sender_co]):
    """Who did what, allowed or refused, and the heads of the chain that shows that nothing was changed since."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        action: Some = None,
        actor: Some = None,
        bulk: Some = None,
        channel: Some = None,
        created_after: When | None = None,
        created_before: When | None = None,
        execution_id: Some = None,
        outcome: Some = None,
        request_id: Some = None,
        run: Some = None,
        since: When | None = None,
        stage_id: Some = None,
        until: When | None = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.AuditEventView]]:
        """One page, newest first."""
        return page(
            "v1/audit-events",
            next,
            action=action,
            actor=actor,
            bulk=bulk,
            channel=channel,
            created_after=created_after,
            created_before=created_before,
            execution_id=execution_id,
            outcome=outcome,
            request_id=request_id,
            run=run,
            since=since,
            stage_id=stage_id,
            until=until,
            page_size=page_size,
        )

    iterate = iterates(list)

    @lists
    def heads(self, *, next: str | None = None, page_size: int | None = None) -> Call[Page[operations.AuditHeadView]]:
        """One page of the signed heads of the chain, newest first."""
        return page("v1/audit-heads", next, page_size=page_size)


class Reconciliation(Group[Sender_co]):
    """What runs that were ended left outside, over all runs."""

    @lists
    def list(
        self, *, next: str | None = None, execution_id: Some = None, kind: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.ItemView]]:
        """One page of what waits for somebody to look after."""
        return page("v1/reconciliation", next, execution_id=execution_id, kind=kind, page_size=page_size)

    iterate = iterates(list)
