"""What a list says at a glance: for each run the stage that matters and why it stands there.

Whole pages at a time: a fixed number of statements however many runs there are.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from pipelines import queries
from pipelines.access import Actor
from pipelines.filters import RunFilter
from pipelines.models import Run, RunIdentity
from pipelines.paging import Cut
from pipelines.sql import planned
from pipelines.states import OPERATOR_PAUSE, RunStatus, StageState

DIGEST_BYTES = 4

# The stage that speaks for a run: what needs a person first, then what is under way, then what comes next.
TELLING = (
    StageState.NEEDS_RECONCILIATION,
    StageState.FAILED,
    StageState.WAITING,
    StageState.RUNNING,
    StageState.DISPATCHED,
    StageState.RETRY_SCHEDULED,
    StageState.READY,
    StageState.PENDING,
    StageState.CANCELLED,
    StageState.SKIPPED,
    StageState.COMPLETED,
)


@dataclass(frozen=True, slots=True)
class Glance:
    """`done` of `total` stages are completed or skipped; `stage` speaks for the run, `why` says what it says.

    `since` and `due` are times that belong to `why`, for the screen to write.
    """

    done: int
    total: int
    stage: str
    state: str
    why: str
    since: datetime | None = None
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A run as a line: its glance, its idempotency key, its first open context items.

    `digest` changes whenever the line would.
    """

    run: Run
    glance: Glance
    key: str
    context: list[tuple[str, str]]

    @property
    def needs_mark(self) -> bool:
        """Whether nothing else in the line tells the run from others of its name: a fork has its source's context."""
        return bool(self.key or self.run.tick_at or self.run.recovered_from_id or not self.context)

    @property
    def digest(self) -> bytes:
        told = repr((self.run.status, self.run.updated_at, self.run.held, self.glance, self.key, self.context))
        return sha256(told.encode()).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Rows:
    """A page of lines with the cursors of its neighbours."""

    lines: list[Row]
    next: str | None
    previous: str | None


def glances(runs: Sequence[Run]) -> dict[uuid.UUID, Glance]:
    """The glance of each run, in two statements."""
    ids = [run.id for run in runs]
    rows = planned(
        """
        SELECT t.run_id, t.total, t.done, t.name, t.state, t.last_error_code, t.last_error_message, t.handler,
            t.available_at, t.retry_count, g.opened_at, g.expires_at, a.worker, p.percent, p.message
        FROM (
            SELECT DISTINCT ON (s.run_id) s.*, count(*) OVER of_run AS total,
                count(*) FILTER (WHERE s.state IN ('completed', 'skipped')) OVER of_run AS done
            FROM pipelines_stage s WHERE s.run_id = ANY(%(ids)s)
            WINDOW of_run AS (PARTITION BY s.run_id)
            ORDER BY s.run_id, s.run_next_if_failed AND s.state = 'failed', array_position(%(telling)s, s.state::text),
                CASE WHEN s.state IN ('completed', 'skipped') THEN -s.position ELSE s.position END
        ) t
        LEFT JOIN pipelines_gate g ON g.stage_id = t.id AND g.state = 'open'
        LEFT JOIN pipelines_attempt a ON a.stage_id = t.id AND a.state IN ('dispatched', 'running')
        LEFT JOIN pipelines_attemptprogress p ON p.attempt_id = a.id
        """,
        {"ids": ids, "telling": [str(state) for state in TELLING]},
    )
    ends = _ends([run.id for run in runs if run.status == RunStatus.CANCELLED])
    by_run = {run.id: run for run in runs}
    return {row[0]: _glance(by_run[row[0]], row, ends.get(row[0], "")) for row in rows}


def rows(actor: Actor, wanted: RunFilter, cut: Cut) -> Rows:
    """One page of the run list, in a fixed number of statements."""
    page = queries.run_list(actor, wanted, cut)
    return Rows(lines(page.rows), page.next, page.previous)


def rows_of(actor: Actor, run_ids: Sequence[uuid.UUID]) -> list[Row]:
    """The lines of these runs, in this order, without those that are gone or not to be seen."""
    runs = queries.visible_runs(actor).select_related("application", "environment", "pipeline").in_bulk(run_ids)
    return lines([runs[run_id] for run_id in run_ids if run_id in runs])


def lines(runs: Sequence[Run]) -> list[Row]:
    """Runs as lines."""
    ids = [run.id for run in runs]
    seen, keys, context = glances(runs), keys_of(ids), queries.business_keys(ids)
    return [
        Row(run, seen[run.id], keys.get(run.id, ""), _beside(keys.get(run.id, ""), context.get(run.id, [])))
        for run in runs
    ]


def keys_of(run_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """The idempotency keys of these runs, of those that have one."""
    return dict(RunIdentity.objects.filter(run__in=run_ids).values_list("run_id", "key"))


def newer(actor: Actor, wanted: RunFilter, than: datetime, most: int = 50) -> int:
    """How many runs that match are newer than the newest one shown, counted up to `most` + 1."""
    after = than + timedelta(microseconds=1)
    later = replace(wanted, created_after=max(after, wanted.created_after or after))
    return len(queries.run_list(actor, later, Cut(most + 1)).rows)


def up_to(wanted: RunFilter, newest: datetime) -> RunFilter:
    """The filter held at the newest run shown, so that nothing moves while somebody reads."""
    before = newest + timedelta(microseconds=1)
    return replace(wanted, created_before=min(before, wanted.created_before or before))


def _beside(key: str, items: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The context items that the key does not tell already."""
    return [(name, value) for name, value in items if value and value not in key]


def _ends(cancelled: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Who cancelled these runs, and why."""
    if not cancelled:
        return {}
    rows = planned(
        "SELECT DISTINCT ON (run_id) run_id, actor, reason FROM pipelines_event"
        " WHERE run_id = ANY(%s) AND kind = 'run.cancelled' ORDER BY run_id, id DESC",
        [list(cancelled)],
    )
    return {run_id: f"by {actor}: {reason}" if reason else f"by {actor}" for run_id, actor, reason in rows}


def _glance(run: Run, row: tuple[Any, ...], end: str) -> Glance:
    (_, total, done, stage, state, code, message, handler, available_at, retries, opened_at, expires_at, worker) = row[
        :13
    ]
    percent, progress = row[13:]
    why, since, due = "", None, None
    trouble = ": ".join(part for part in (code, message.strip().split("\n")[0]) if part)
    if run.status == RunStatus.CANCELLED:
        why = end
    elif run.status == RunStatus.FAILED:
        why = ": ".join(part for part in (run.failure_code, run.failure_message.strip().split("\n")[0]) if part)
    elif run.status in (RunStatus.PAUSED, RunStatus.PAUSING):
        why = "paused" if run.pause_reason == OPERATOR_PAUSE else f"paused: {run.pause_reason}"
    elif run.status == RunStatus.COMPLETED:
        stage = ""
    elif run.held:
        why = "held until it is its turn"
    elif state == StageState.NEEDS_RECONCILIATION:
        why = f"{trouble}; what it did outside is unknown"
    elif state == StageState.FAILED:
        why = trouble
    elif state == StageState.WAITING:
        awaited = "other runs are awaited" if run.has_children and opened_at is None else "a decision is awaited"
        why, since, due = awaited, opened_at, expires_at
    elif state == StageState.RETRY_SCHEDULED:
        why, due = f"retry {retries} after {trouble}", available_at
    elif state == StageState.DISPATCHED:
        why = f"handed to {worker}"
    elif state == StageState.RUNNING:
        told = f"{percent:g} % {progress}".strip() if percent is not None else progress
        why = f"{worker} · {told}" if told else str(worker or "")
    elif state == StageState.READY:
        why, since = f"waits for a worker for {handler}", available_at
    return Glance(done, total, stage, state, why, since, due)
