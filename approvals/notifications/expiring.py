"""Telling in time that nobody has decided yet: gates and requests of which a tenth of their time is left.

That is at least a minute and at most an hour before the end. What has less than two minutes in all is not told of: its
opening was, a moment ago. Each is told of once (`warned_at`), in the transaction that says so; a gate that is decided
at that moment is passed over, and so is the run's lock, which this never waits for.
"""

from __future__ import annotations

from django.db import transaction

from pipelines import notices
from pipelines.sql import query
from pipelines.states import NoticeKind

BATCH, MOST = 500, 2000

_SOON = (
    "{table}.state = 'open' AND {table}.warned_at IS NULL AND {table}.expires_at > recourse_now()"
    " AND {table}.expires_at <= recourse_now() + interval '1 hour'"  # what the index on it can tell
    " AND {table}.expires_at - {table}.opened_at >= interval '2 minutes'"
    " AND {table}.expires_at - greatest(interval '1 minute',"
    " least(interval '1 hour', ({table}.expires_at - {table}.opened_at) / 10)) <= recourse_now()"
)


def warn_expiring(limit: int = BATCH, most: int = MOST) -> int:
    """Writes a notice for every open gate and request that is soon to expire; returns how many. Of each sort, what is
    more than `most` is left to the next call."""
    return _warn("pipelines_gate", "run_id, stage_id, id", limit, most) + _warn(
        "approvals_approvalrequest", "run_id, stage_id, subject", limit, most
    )


def _warn(table: str, told: str, limit: int, most: int) -> int:
    total = 0
    while total < most:
        with transaction.atomic():
            rows = query(
                f"WITH soon AS MATERIALIZED (SELECT id AS one FROM {table} WHERE {_SOON.format(table=table)}"  # noqa: S608
                " ORDER BY expires_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)"
                f" UPDATE {table} t SET warned_at = recourse_now() FROM soon WHERE t.id = soon.one"
                f" RETURNING workspace_id, {told}",
                [limit],
            )
            notices.insert([notices.row(row[0], NoticeKind.EXPIRING, *row[1:]) for row in rows])
        total += len(rows)
        if len(rows) < limit:
            break
    return total
