"""Compares the targets of a bulk with what was done to them: accepted is not the same as applied (F153).

Done once after its end, by the sweep, a few thousand targets a transaction, and again when somebody asks for it.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections.abc import Mapping

from django.db import transaction

from pipelines.sql import planned, query
from recovery.models import BulkOperation
from recovery.states import OperationKind

AT_ONCE = 5_000
# whether the target stands as it was left; what a person or a worker has done since may be otherwise and is told
_STANDS: Mapping[str, str] = {
    OperationKind.CANCEL: "r.status = 'cancelled'",
    OperationKind.PAUSE: "r.paused",
    OperationKind.RESUME: "NOT r.paused",
    OperationKind.RETRY: "s.epoch >= (o.result->>'epoch')::int",
    OperationKind.REDRIVE: "d.state = 'redriven' AND s.epoch >= (o.result->>'epoch')::int",
    OperationKind.DISCARD: "d.state = 'discarded'",
    OperationKind.SKIP: "s.state = 'skipped'",
    OperationKind.RERUN: "m.recovered_from_id = i.run",
    OperationKind.REPLAY: "m.recovered_from_id = i.run",
}
_FOUND: Mapping[str, str] = {
    **dict.fromkeys((OperationKind.CANCEL, OperationKind.PAUSE, OperationKind.RESUME), "r.status"),
    OperationKind.RETRY: "s.state || ' in epoch ' || s.epoch",
    OperationKind.SKIP: "s.state",
    **dict.fromkeys((OperationKind.REDRIVE, OperationKind.DISCARD), "d.state"),
    **dict.fromkeys((OperationKind.RERUN, OperationKind.REPLAY), "m.status"),
}


def verify(bulk_id: uuid.UUID) -> int:
    """Looks at every target that was done, and keeps which stand otherwise; says how many it looked at."""
    bulk = BulkOperation.objects.get(id=bulk_id)
    after, total = 0, 0
    while True:
        with transaction.atomic():
            rows = planned(
                "UPDATE recovery_bulkitem t SET verified = seen.holds, found = CASE WHEN seen.holds THEN ''"
                " ELSE seen.found END FROM (SELECT i.id, i.position,"
                f" coalesce({_STANDS[bulk.kind]}, false) AS holds, coalesce({_FOUND[bulk.kind]}, 'gone') AS found"
                " FROM recovery_bulkitem i LEFT JOIN pipelines_run r ON r.id = i.run"
                " LEFT JOIN pipelines_run m ON m.id = i.made LEFT JOIN pipelines_stage s ON s.id = i.stage"
                " LEFT JOIN pipelines_deadletter d ON d.id = i.dead_letter"
                " LEFT JOIN recovery_operation o ON o.id = i.operation"
                " WHERE i.bulk_id = %s AND i.state = 'done' AND i.position > %s ORDER BY i.position LIMIT %s) seen"
                " WHERE t.id = seen.id RETURNING seen.position",
                [bulk_id, after, AT_ONCE],
            )
        total += len(rows)
        if len(rows) < AT_ONCE:
            break
        after = max(position for (position,) in rows)
    query(
        "UPDATE recovery_bulkoperation SET verified_at = recourse_now() WHERE id = %s"
        " AND finished_at IS NOT NULL RETURNING 1",
        [bulk_id],
    )
    return total
