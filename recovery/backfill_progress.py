"""How far a backfill is: counted from its ticks and their runs whenever somebody asks, and stored nowhere (F116)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pipelines.models import Trigger
from pipelines.sql import planned, query
from pipelines.states import TERMINAL_RUN, RunStatus
from recovery.backfill_plans import estimate, skipped_json, tick_json
from recovery.backfill_world import mean_seconds
from recovery.models import Backfill
from recovery.redoing import Withheld
from recovery.states import BackfillState, BackfillTickState


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a backfill is: what became of its ticks, and how their runs stand, counted from the rows themselves.

    `active` runs were let in and have not ended. `removed` runs are gone by retention. `eta_seconds` is None where
    nobody knows how long a run takes, and while nothing goes on. `recovered` runs are those of the held ones that were
    in before, and ended: a person reopened them, and they wait for their turn again.
    """

    ticks: Mapping[str, int]  # by BackfillTickState
    runs: Mapping[str, int]  # of dispatched ticks: by RunStatus, besides `held` and `removed`
    eta_seconds: float | None = None
    recovered: int = 0

    @property
    def total(self) -> int:
        """The ticks that it was to fill."""
        return sum(self.ticks.values()) - self.ticks.get(BackfillTickState.SKIPPED, 0)

    @property
    def held(self) -> int:
        return self.runs.get("held", 0)

    @property
    def never_in(self) -> int:
        """Held runs that a cancel ends."""
        return self.held - self.recovered

    @property
    def active(self) -> int:
        ended = {*TERMINAL_RUN, "held", "removed"}
        return sum(count for status, count in self.runs.items() if status not in ended)

    @property
    def pending(self) -> int:
        return self.ticks.get(BackfillTickState.PENDING, 0)

    @property
    def dispatched(self) -> int:
        return self.ticks.get(BackfillTickState.DISPATCHED, 0)

    @property
    def failed(self) -> int:
        """Ticks whose run could not be made."""
        return self.ticks.get(BackfillTickState.FAILED, 0)

    @property
    def skipped(self) -> int:
        return self.ticks.get(BackfillTickState.SKIPPED, 0)

    @property
    def completed(self) -> int:
        """Runs that ended well."""
        return self.runs.get(RunStatus.COMPLETED, 0)

    @property
    def troubled(self) -> int:
        """Ticks that failed, and runs that failed or were cancelled."""
        return self.failed + self.runs.get(RunStatus.FAILED, 0) + self.runs.get(RunStatus.CANCELLED, 0)

    @property
    def ended(self) -> int:
        """Ticks about which nothing more happens by itself."""
        return self.total - self.pending - self.held - self.active

    def as_json(self) -> dict[str, Any]:
        return {
            "ticks": {state: self.ticks.get(state, 0) for state in BackfillTickState.values},
            "runs": dict(self.runs),
            "active": self.active,
            "held": self.held,
            "eta_seconds": self.eta_seconds,
        }


def ticks(backfill: Backfill, limit: int | None = None) -> list[dict[str, Any]]:
    """The ticks of a backfill as its answer lists them, oldest first."""
    rows = query(
        "SELECT at, local_time, rule, state, run, error_code, error_message FROM recovery_backfilltick"
        " WHERE backfill_id = %s ORDER BY at LIMIT %s::int",
        [backfill.id, limit],
    )
    return [tick_told(*row) for row in rows]


def failures(backfill: Backfill, limit: int) -> list[dict[str, Any]]:
    """The first ticks, oldest first, whose run could not be made, failed or was cancelled: {tick_time, local_time,
    execution_id, code, message}."""
    rows = query(
        "SELECT t.at, t.local_time, r.id, coalesce(nullif(r.failure_code, ''), nullif(t.error_code, ''), r.status),"
        " coalesce(nullif(r.failure_message, ''), t.error_message)"
        " FROM recovery_backfilltick t LEFT JOIN pipelines_run r ON r.id = t.run"
        " WHERE t.backfill_id = %s AND (t.state = 'failed'"
        " OR (t.state = 'dispatched' AND r.status IN ('failed', 'cancelled'))) ORDER BY t.at LIMIT %s::int",
        [backfill.id, limit],
    )
    return [
        {
            "tick_time": at.astimezone(UTC).isoformat(),
            "local_time": local_time,
            "execution_id": str(run) if run else None,
            "code": code,
            "message": message,
        }
        for at, local_time, run, code, message in rows
    ]


def progress(backfill: Backfill) -> Progress:
    """Counts everything anew, in one statement."""
    rows = planned(
        """
        SELECT t.state, r.status, r.held, count(*), count(*) FILTER (WHERE r.held AND r.started_at IS NOT NULL),
            extract(epoch FROM sum(r.finished_at - r.started_at) FILTER (WHERE r.status = 'completed'))::float
        FROM recovery_backfilltick t LEFT JOIN pipelines_run r ON r.id = t.run AND t.state = 'dispatched'
        -- by plain columns, of which the planner knows that they have few values
        WHERE t.backfill_id = %s GROUP BY t.state, r.status, r.held
        """,
        [backfill.id],
    )
    by_state: dict[str, int] = {}
    runs: dict[str, int] = {}
    seconds, recovered = None, 0
    for state, status, is_held, count, count_recovered, took in rows:
        recovered += count_recovered
        by_state[state] = by_state.get(state, 0) + count
        stands = "held" if is_held else status or "removed"
        if state == BackfillTickState.DISPATCHED:
            runs[stands] = runs.get(stands, 0) + count
        if stands == RunStatus.COMPLETED and took is not None:
            seconds = took / count
    found = Progress(by_state, runs, recovered=recovered)
    if backfill.state != BackfillState.RUNNING:
        return found
    left = found.pending + found.held + found.active
    mean = seconds if seconds is not None or not left else mean_seconds(Trigger.objects.get(id=backfill.trigger_id))
    return replace(found, eta_seconds=estimate(left, backfill.max_concurrent, mean))


def tick_told(
    at: datetime, local_time: str, rule: str, state: str, run: uuid.UUID | None, code: str, message: str
) -> dict[str, Any]:
    if state == BackfillTickState.SKIPPED:
        held_back = Withheld(code, message, str(run)) if code else None
        return skipped_json(at.astimezone(UTC), local_time, rule, run, held_back)
    error = {"code": code, "message": message} if code else None
    return tick_json(at.astimezone(UTC), local_time, rule, state, run, error=error)
