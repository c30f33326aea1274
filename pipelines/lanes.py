"""Lanes: so many of their runs are let in at once, and the others are held, in order of their rank.

A held run is a whole run whose stages are all pending; letting it in is a move like any other. How many are in is
counted from the runs, under the lock on the lane's row, so no slot can leak and no number of callers lets in more than
the capacity. In are the runs that are neither held nor ended, whatever they wait for. Recovered work obeys its lane: a
run that a person reopens, and one forked from a run of the lane, are held and let in by rank like all others (F52). A
paused run is passed over while it is held. While a blackout holds, only runs that somebody gave a reason for are let
in, past those that wait for its end.

The sweep looks at every lane; where runs of a lane end, `Moves.save` looks at it as soon as that has committed.
Serves O55, F52, F81, F82, F85.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from pipelines.moves import Moves
from pipelines.sql import execute, query

log = structlog.get_logger(__name__)
BATCH = 200  # runs let in by one transaction
MOST_COUNTED = 1000
MOST_NAMED = 3  # of those that are in


def open_lane(lane_id: uuid.UUID, workspace_id: uuid.UUID, capacity: int | None, is_background: bool) -> None:
    """Makes the lane, open; one that is there already stays as it is."""
    execute(
        "INSERT INTO pipelines_lane (id, workspace_id, capacity, is_open, is_background) VALUES (%s, %s, %s, true, %s)"
        " ON CONFLICT (id) DO NOTHING",
        [lane_id, workspace_id, capacity, is_background],
    )


def rank(at: datetime, *, newest_first: bool = False) -> int:
    """The place of a tick's run in its lane."""
    return int(-at.timestamp() if newest_first else at.timestamp())


def set_lane(lane_id: uuid.UUID, **changes: int | bool | None) -> None:
    """Changes `capacity` or `is_open` of a lane, or both; once that has committed, what may go in is let in.

    In the caller's transaction, which waits for whoever is letting in: after it nothing goes in by the old settings.
    """
    if unknown := changes.keys() - {"capacity", "is_open"}:
        raise TypeError(f"a lane has no {', '.join(sorted(unknown))} to change")
    execute(
        "UPDATE pipelines_lane SET capacity = CASE WHEN %s THEN %s::int ELSE capacity END,"
        " is_open = coalesce(%s, is_open) WHERE id = %s",
        ["capacity" in changes, changes.get("capacity"), changes.get("is_open"), lane_id],
    )
    let_in_later([lane_id])


def let_in_later(lane_ids: Collection[uuid.UUID]) -> None:
    """Lets in what may go in once this transaction has committed; what comes to nothing then, the sweep does."""
    if lane_ids:
        lanes = sorted(lane_ids)
        transaction.on_commit(lambda: _let_in_now(lanes), robust=True)


def _let_in_now(lane_ids: Sequence[uuid.UUID]) -> None:
    """Waits for whoever is letting in: they counted before there was room, and would leave it to the sweep."""
    try:
        for lane_id in _waiting(lane_ids):
            _let_in(lane_id, wait=True)
    except DatabaseError as error:
        log.warning("lanes.left_to_the_sweep", error=str(error).strip())


def let_in(lane_ids: Sequence[uuid.UUID] | None = None) -> int:
    """Lets in the next runs of these lanes, or of all, as far as there is room; says how many.

    Lanes and runs that others hold are passed over; one lane that cannot be handled holds up no other.
    """
    total = 0
    for lane_id in _occupied() if lane_ids is None else _waiting(lane_ids):
        try:
            total += _let_in(lane_id, wait=False)
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            log.exception("lanes.let_in_failed", lane=str(lane_id))
    return total


@dataclass(frozen=True, slots=True)
class Inside:
    """A run that is in a lane; `tick_at` of those that a schedule made."""

    id: uuid.UUID
    name: str
    tick_at: datetime | None
    status: str

    def sentence(self) -> str:
        at = f" of {self.tick_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if self.tick_at else ""
        return f"{self.name}{at}, {self.status}"


@dataclass(frozen=True, slots=True)
class Turn:
    """How far a held run is from its turn; neither is counted beyond `MOST_COUNTED`. `first` are the first that are
    in."""

    inside: int
    ahead: int  # held as it is, and before it
    first: tuple[Inside, ...] = field(default=(), compare=False)

    def sentence(self) -> str:
        """Both, in words."""
        ahead = f"at least {self.ahead}" if self.ahead == MOST_COUNTED else f"{self.ahead or 'none'}"
        return f"{self.inside or 'none'} {'is' if self.inside < 2 else 'are'} in, {ahead} before it"


@dataclass(frozen=True, slots=True)
class Room:
    """A lane as it stands for a run that comes back to it. `inside` and `waiting` are not counted beyond
    `MOST_COUNTED`."""

    capacity: int | None
    is_open: bool
    is_background: bool  # a backfill's; else its trigger's
    inside: int
    waiting: int  # held, and not paused

    @property
    def holds(self) -> bool:
        """Whether a run that comes back is held: also where there is room, for those before it go first."""
        return self.capacity is not None or not self.is_open

    def sentence(self) -> str:
        """What becomes of such a run, in words."""
        if not self.is_open:
            owner = "backfill" if self.is_background else "trigger"
            return f"it will wait in its lane: its {owner} lets nothing in now"
        running = f"{self.inside} of {self.capacity} running"
        if self.waiting:
            waiting = f"at least {self.waiting}" if self.waiting == MOST_COUNTED else f"{self.waiting}"
            return f"it will wait in its lane: {running}, {waiting} waiting; older ones go first"
        if self.capacity is not None and self.inside >= self.capacity:
            return f"it will wait in its lane: {running}"
        return f"its lane lets it in at once: {running}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.sentence()}


def room_of(lane_id: uuid.UUID) -> Room | None:
    """The lane as it stands now; None when there is none. It may be otherwise as soon as it is told."""
    counted = """(SELECT count(*) FROM (SELECT FROM pipelines_run r WHERE r.lane_id = l.id AND {which}
        AND r.status NOT IN ('cancelled', 'completed', 'failed') ORDER BY r.lane_rank, r.id LIMIT %(most)s) counted)"""
    inside, waiting = counted.format(which="NOT r.held"), counted.format(which="r.held AND NOT r.paused")
    rows = query(
        f"SELECT l.capacity, l.is_open, l.is_background, {inside}, {waiting} FROM pipelines_lane l"  # noqa: S608
        " WHERE l.id = %(lane)s",
        {"lane": lane_id, "most": MOST_COUNTED},
    )
    return Room(*rows[0]) if rows else None


def turn_of(lane_id: uuid.UUID, run_id: uuid.UUID) -> Turn:
    """Where a held run stands in its lane now; those that are paused are passed over."""
    rows = query(
        """
        SELECT
            (SELECT count(*) FROM (SELECT FROM pipelines_run r WHERE r.lane_id = %(lane)s AND NOT r.held
                AND r.status NOT IN ('cancelled', 'completed', 'failed')
                ORDER BY r.lane_rank, r.id LIMIT %(most)s) inside),
            (SELECT count(*) FROM (SELECT FROM pipelines_run r WHERE r.lane_id = %(lane)s AND r.held AND NOT r.paused
                AND r.status NOT IN ('cancelled', 'completed', 'failed')
                AND (r.lane_rank, r.id) < (one.lane_rank, one.id) ORDER BY r.lane_rank, r.id LIMIT %(most)s) ahead)
        FROM pipelines_run one WHERE one.id = %(run)s
        """,
        {"lane": lane_id, "run": run_id, "most": MOST_COUNTED},
    )
    if not rows:
        return Turn(0, 0)
    inside, ahead = rows[0]
    return Turn(inside, ahead, first_inside(lane_id) if inside else ())


def first_inside(lane_id: uuid.UUID, most: int = MOST_NAMED) -> tuple[Inside, ...]:
    """The first runs that are in the lane now, in its order."""
    rows = query(
        "SELECT id, name, tick_at, status FROM pipelines_run WHERE lane_id = %s AND NOT held"
        " AND status NOT IN ('cancelled', 'completed', 'failed') ORDER BY lane_rank, id LIMIT %s",
        [lane_id, most],
    )
    return tuple(Inside(*row) for row in rows)


def _occupied() -> list[uuid.UUID]:
    """The open lanes in which somebody waits, of all: an index probe for each lane with runs, not a row."""
    lanes = query(
        """
        WITH RECURSIVE lane AS (
            (SELECT lane_id FROM pipelines_run
             WHERE lane_id IS NOT NULL AND status NOT IN ('cancelled', 'completed', 'failed')
             ORDER BY lane_id LIMIT 1)
            UNION ALL
            SELECT following.lane_id FROM lane CROSS JOIN LATERAL (
                SELECT r.lane_id FROM pipelines_run r WHERE r.lane_id > lane.lane_id
                    AND r.lane_id IS NOT NULL AND r.status NOT IN ('cancelled', 'completed', 'failed')
                ORDER BY r.lane_id LIMIT 1
            ) following
        )
        SELECT lane_id FROM lane
        """
    )
    return _waiting([row[0] for row in lanes])


def _waiting(lane_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Those of the lanes that are open and in which somebody waits."""
    if not lane_ids:
        return []
    lanes = query(
        "SELECT l.id FROM pipelines_lane l WHERE l.id = ANY(%s) AND l.is_open AND EXISTS (SELECT FROM pipelines_run r"
        " WHERE r.lane_id = l.id AND r.held AND r.status NOT IN ('cancelled', 'completed', 'failed')) ORDER BY l.id",
        [list(lane_ids)],
    )
    return [row[0] for row in lanes]


def _let_in(lane_id: uuid.UUID, *, wait: bool) -> int:
    total = 0
    while True:
        with transaction.atomic():
            due = _next(lane_id, wait=wait)
            moves = Moves.lock(due, skip_locked=True)
            chosen = [run for run in moves.runs.values() if run.held and not run.paused and not run.is_terminal]
            for run in chosen:
                moves.let_in(run)
            moves.settle()
            moves.save()
        total += len(chosen)
        if len(chosen) < BATCH:
            return total


def _next(lane_id: uuid.UUID, *, wait: bool) -> list[uuid.UUID]:
    """Whom to let in now, at most `BATCH`; the lane is locked first, so that nobody else counts meanwhile."""
    lock = "SELECT capacity, is_open FROM pipelines_lane WHERE id = %s FOR NO KEY UPDATE"
    locked = query(lock if wait else f"{lock} SKIP LOCKED", [lane_id])
    if not locked or not locked[0][1]:
        return []
    capacity = locked[0][0]
    # a statement of its own, after the lock: its snapshot sees whom the lock's last holder let in
    return [
        row[0]
        for row in query(
            """
            WITH inside AS MATERIALIZED (
                -- ordered so that it is counted in the lane's own index, not among all that is unfinished
                SELECT count(*) AS runs FROM (
                    SELECT FROM pipelines_run WHERE lane_id = %(lane)s AND NOT held
                        AND status NOT IN ('cancelled', 'completed', 'failed')
                    ORDER BY lane_rank, id LIMIT %(capacity)s::bigint
                ) counted
            ), place AS MATERIALIZED (
                -- all runs of a lane are of one trigger, in one environment
                SELECT recourse_blackout(workspace_id, environment_id, trigger_id, recourse_now()) AS blackout
                FROM (SELECT workspace_id, environment_id, trigger_id FROM pipelines_run
                    WHERE lane_id = %(lane)s AND held AND NOT paused
                        AND status NOT IN ('cancelled', 'completed', 'failed')
                    ORDER BY lane_rank, id LIMIT 1) of
            )
            SELECT id FROM pipelines_run
            WHERE lane_id = %(lane)s AND held AND NOT paused AND status NOT IN ('cancelled', 'completed', 'failed')
                AND (through_blackout OR (SELECT blackout FROM place) IS NULL)
            ORDER BY lane_rank, id
            LIMIT (SELECT least(%(batch)s::bigint, coalesce(%(capacity)s::bigint - runs, %(batch)s)) FROM inside)
            """,
            {"lane": lane_id, "capacity": capacity, "batch": BATCH},
        )
    ]
