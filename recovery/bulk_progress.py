"""How far a bulk is: counted from its targets whenever somebody asks, and stored nowhere (F152)."""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipelines.paging import Cut, Page, page
from pipelines.sql import planned, query
from recovery.models import BulkOperation
from recovery.states import BulkItemState, BulkState

State = BulkItemState
PACE_SECONDS = 10  # over which its present pace is told
# Done, and the stage or the run that it made has failed since. One look for each target, by ids alone.
_FAILED_AGAIN = (
    "i.state = 'done' AND (EXISTS (SELECT FROM pipelines_run m WHERE m.id = i.made AND m.status = 'failed')"
    " OR EXISTS (SELECT FROM pipelines_stage s WHERE s.id = i.stage AND s.state = 'failed' AND %(repeats)s"
    " AND i.made IS NULL))"
)
_REPEATS = frozenset({"retry", "redrive"})
LAST = 1_000  # decided targets among which those that failed again are counted


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """What became of a bulk's targets: `total` = pending + done + failed + skipped + denied, always.

    `failed_again`: of the last `LAST` decided, those that were done and whose stage or run has failed since.
    `per_second`: its pace over the last `PACE_SECONDS`. `eta_seconds`: None while it does not run. `mismatched`:
    targets that stood otherwise than they were left, when they were looked at after its end.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    failed_again: int = 0
    per_second: float = 0.0
    eta_seconds: float | None = None
    mismatched: int = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def pending(self) -> int:
        return self.counts.get(State.PENDING, 0)

    @property
    def done(self) -> int:
        return self.counts.get(State.DONE, 0)

    @property
    def failed(self) -> int:
        return self.counts.get(State.FAILED, 0)

    @property
    def skipped(self) -> int:
        return self.counts.get(State.SKIPPED, 0)

    @property
    def denied(self) -> int:
        return self.counts.get(State.DENIED, 0)

    @property
    def decided(self) -> int:
        return self.total - self.pending

    def as_json(self) -> dict[str, Any]:
        told = ("total", "pending", "done", "failed", "skipped", "denied")
        more = ("failed_again", "per_second", "eta_seconds", "mismatched")
        return {name: getattr(self, name) for name in (*told, *more)}


@dataclass(frozen=True, slots=True)
class BulkItemLine:
    """One target: what it is called, what became of it, and how it stands now. `stands` is blank of what is gone."""

    position: int
    state: BulkItemState
    code: str
    message: str
    run_id: uuid.UUID
    run: str
    key: str
    stage_id: uuid.UUID | None
    stage: str
    dead_letter_id: uuid.UUID | None
    stands: str
    operation_id: uuid.UUID | None
    made_id: uuid.UUID | None
    decided_at: datetime | None
    verified: bool | None
    found: str


def progress(bulk: BulkOperation) -> BulkProgress:
    """Counts everything anew."""
    rows = planned(
        "SELECT i.state, count(*), count(*) FILTER (WHERE i.verified = false)"
        " FROM recovery_bulkitem i WHERE i.bulk_id = %s GROUP BY i.state",
        [bulk.id],
    )
    counts = {state: count for state, count, _ in rows}
    pending = counts.get(State.PENDING, 0)
    pace = _pace(bulk) if bulk.state == BulkState.RUNNING else 0.0
    return BulkProgress(
        counts=counts,
        failed_again=_last(bulk, LAST)[2],
        per_second=pace,
        eta_seconds=pending / (pace or bulk.rate) if bulk.state == BulkState.RUNNING else None,
        mismatched=sum(count for *_, count in rows),
    )


def items(bulk: BulkOperation, *, states: Collection[str] = (), cut: Cut) -> Page[BulkItemLine]:
    """A page of the targets, in their order, with how each is called and stands now."""
    conditions = ["i.bulk_id = %(bulk)s"]
    if states:
        conditions.append("i.state = ANY(%(states)s)")
    if cut.position:
        conditions.append(f"i.position {'<' if cut.backwards else '>'} %(position)s")
    rows = planned(
        "SELECT i.position, i.state, i.code, i.message, i.run, coalesce(r.name, ''), coalesce((SELECT k.key"
        " FROM pipelines_runidentity k WHERE k.run_id = i.run LIMIT 1), ''), i.stage,"
        " coalesce(s.name, ''), i.dead_letter, coalesce(CASE WHEN i.dead_letter IS NOT NULL THEN d.state"
        " WHEN i.stage IS NOT NULL THEN s.state ELSE r.status END, ''), i.operation, i.made, i.decided_at, i.verified,"
        " i.found FROM recovery_bulkitem i LEFT JOIN pipelines_run r ON r.id = i.run"
        " LEFT JOIN pipelines_stage s ON s.id = i.stage LEFT JOIN pipelines_deadletter d ON d.id = i.dead_letter"
        f" WHERE {' AND '.join(conditions)}"
        f" ORDER BY i.position {'DESC' if cut.backwards else 'ASC'} LIMIT %(limit)s",
        {
            "bulk": bulk.id,
            "states": sorted(states),
            "position": cut.position[0] if cut.position else None,
            "limit": cut.reach,
        },
    )
    lines = [BulkItemLine(position, State(state), *rest) for position, state, *rest in rows]
    return page(lines, cut, lambda line: (line.position,))


# what the work asks


def is_left(bulk: BulkOperation, *, up_to: int | None = None) -> bool:
    """Whether a target is pending, among all or up to a position."""
    return bool(
        query(
            "SELECT 1 FROM recovery_bulkitem WHERE bulk_id = %s AND state = 'pending'"
            " AND position <= coalesce(%s::int, 2147483647) LIMIT 1",
            [bulk.id, up_to],
        )
    )


def has_failures(bulk: BulkOperation) -> bool:
    """Whether a target failed or was denied."""
    return bool(
        query("SELECT 1 FROM recovery_bulkitem WHERE bulk_id = %s AND state IN ('failed', 'denied') LIMIT 1", [bulk.id])
    )


def nothing_ratio(bulk: BulkOperation, *, last: int, fewest: int) -> float | None:
    """The share of the last targets that came to nothing since it was last let go on: failed, denied, or failed again.

    None while fewer than `fewest` were decided.
    """
    decided, nothing, again = _last(bulk, last)
    return (nothing + again) / decided if decided >= fewest else None


def _last(bulk: BulkOperation, last: int) -> tuple[int, int, int]:
    """Of the last decided since it was last let go on: how many, how many failed or were denied, how many again."""
    if bulk.let_go_at is None:
        return 0, 0, 0
    ((decided, nothing, again),) = planned(
        "SELECT count(*), count(*) FILTER (WHERE i.state IN ('failed', 'denied')),"
        f" count(*) FILTER (WHERE {_FAILED_AGAIN}) FROM ("
        "SELECT l.state, l.stage, l.made FROM recovery_bulkitem l WHERE l.bulk_id = %(bulk)s"
        " AND l.decided_at >= %(since)s ORDER BY l.decided_at DESC LIMIT %(last)s) i",
        {"bulk": bulk.id, "since": bulk.let_go_at, "last": last, "repeats": bulk.kind in _REPEATS},
    )
    return decided, nothing, again


def _pace(bulk: BulkOperation) -> float:
    ((pace,),) = query(
        "SELECT count(*) / greatest(1, least(%(over)s::float, extract(epoch FROM recourse_now() - %(since)s)))"
        " FROM recovery_bulkitem i WHERE i.bulk_id = %(bulk)s"
        " AND i.decided_at > greatest(%(since)s, recourse_now() - make_interval(secs => %(over)s::float))",
        {"bulk": bulk.id, "since": bulk.let_go_at, "over": PACE_SECONDS},
    )
    return float(pace)
