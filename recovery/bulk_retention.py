"""Removing bulks that ended long ago, with their targets: after the same days as runs, whatever became of those.

Never removed: a bulk that has not ended, or whose targets were not yet compared with what was done. Its key is free
again afterwards; audit events and the operations of its targets stay. Serves F152, F162, ADR 0075.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from pipelines import audit
from pipelines.access import Actor
from pipelines.sql import execute, query


def remove(before: datetime) -> int:
    """Removes the bulks that ended before that time, each in a transaction with its audit event; says how many.

    One that somebody holds is passed over.
    """
    total = 0
    while _remove_next(before):
        total += 1
    return total


@transaction.atomic
def _remove_next(before: datetime) -> bool:
    execute("SET LOCAL recourse.retention = 'on'")
    rows = query(
        "SELECT id, workspace_id, kind, total FROM recovery_bulkoperation"
        " WHERE finished_at < %s AND (state = 'expired' OR (verified_at IS NOT NULL"
        " AND state IN ('completed', 'completed_with_failures', 'aborted')))"
        " ORDER BY finished_at LIMIT 1 FOR UPDATE SKIP LOCKED",
        [before],
    )
    if not rows:
        return False
    ((bulk_id, workspace_id, kind, total),) = rows
    execute(
        "DELETE FROM approvals_requestdecision WHERE request_id IN"
        " (SELECT id FROM approvals_approvalrequest WHERE subject = %s)",
        [bulk_id],
    )
    execute("DELETE FROM approvals_approvalrequest WHERE subject = %s", [bulk_id])
    execute("DELETE FROM recovery_bulkitem WHERE bulk_id = %s", [bulk_id])
    execute("DELETE FROM recovery_bulkoperation WHERE id = %s", [bulk_id])
    data = {"bulk": str(bulk_id), "kind": kind, "total": total, "ended_before": before.isoformat()}
    audit.record(Actor("retention", workspace_id, "command"), "bulk.remove", audit.ALLOWED, data=data)
    return True
