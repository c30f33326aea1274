"""What time alone does: expired leases, undelivered jobs, timeouts, gates, deadlines, runs that nobody moved on.

Each sweep is an idempotent step. Many may run side by side: runs that another transaction holds are passed over and
met again. A row that cannot be handled is logged and walked past, so it holds up nothing behind it. Everything due is
in the database, so a dead beat or a lost message only delays. Serves F02, F05, F15, F19, F21, F23, F25, R30, R31.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines import awaited_runs, lanes, outcomes, places, throttle_lines
from pipelines.moves import AttemptRow, Moves
from pipelines.sql import query
from pipelines.states import NoticeKind

log = structlog.get_logger(__name__)
BATCH = 200

Step = Callable[[Moves, Sequence[uuid.UUID]], int]


def sweep() -> dict[str, int]:
    """Runs every sweep once and says how many rows each one moved."""
    return {
        "deadlines": enforce_deadlines(),  # first: nothing of a run that is over is handed out once more
        "leases": expire_leases(),
        "undelivered": return_undelivered(),
        "timeouts": time_out_attempts(),
        "gates": expire_gates(),
        "pauses": end_pauses(),
        "stuck": move_on_stuck_runs(),
        "children": awaited_runs.sweep(),  # after what may have ended their parents, or them
        "lines": throttle_lines.sweep(),
        "places": places.pass_on(),
        "let_in": lanes.let_in(),  # last: where the others made room
    }


def expire_leases(limit: int = BATCH) -> int:
    """running attempts whose lease has ended → lost; their stages recover, give up, or wait for reconciliation."""
    return _walk(
        "SELECT id, run_id, expires_at FROM pipelines_attempt WHERE state = 'running' AND expires_at <= recourse_now()"
        " AND (expires_at, id) > (%s, %s) ORDER BY expires_at, id LIMIT %s",
        _attempt_step(
            lambda moves, attempt: attempt.state == "running" and attempt.expires_at <= moves.now,
            lambda moves, judge, attempt: outcomes.lose(moves, moves.stages[attempt.stage_id], attempt),
        ),
        limit,
    )


def return_undelivered(limit: int = BATCH) -> int:
    """dispatched attempts that nobody acquired in time → undelivered; their stages become ready again or give up. Of an
    import that nobody handed in → timed out."""
    return _walk(
        "SELECT id, run_id, expires_at FROM pipelines_attempt WHERE state = 'dispatched'"
        " AND expires_at <= recourse_now() AND (expires_at, id) > (%s, %s) ORDER BY expires_at, id LIMIT %s",
        _attempt_step(
            lambda moves, attempt: attempt.state == "dispatched" and attempt.expires_at <= moves.now,
            _not_answered,
        ),
        limit,
    )


def time_out_attempts(limit: int = BATCH) -> int:
    """running attempts past their time limit → timed_out, whatever their lease says (P40)."""
    return _walk(
        "SELECT id, run_id, timeout_at FROM pipelines_attempt WHERE state = 'running' AND timeout_at <= recourse_now()"
        " AND (timeout_at, id) > (%s, %s) ORDER BY timeout_at, id LIMIT %s",
        _attempt_step(
            lambda moves, attempt: (
                attempt.state == "running" and attempt.timeout_at is not None and attempt.timeout_at <= moves.now
            ),
            lambda moves, judge, attempt: outcomes.time_out(moves, judge, moves.stages[attempt.stage_id], attempt),
        ),
        limit,
    )


def expire_gates(limit: int = BATCH) -> int:
    """open gates past their end → expired, their stages → failed. Silence never consents."""

    def step(moves: Moves, gate_ids: Sequence[uuid.UUID]) -> int:
        rows = query(
            "SELECT id, stage_id, count FROM pipelines_gate WHERE id = ANY(%s) AND state = 'open'"
            " AND expires_at <= recourse_now() AND run_id = ANY(%s)",
            [list(gate_ids), list(moves.runs)],
        )
        for gate_id, stage_id, count in rows:
            stage = moves.stages[stage_id]
            message = "nobody decided in time" if count == 1 else "too few decided in time"
            moves.close_gate(gate_id, stage, "expire", reason=message)
            trouble = {"last_error_code": "gate_expired", "last_error_message": message}
            moves.stage(stage, "deny", reason=message, failure_disposition="gate_expired", **trouble)
            moves.notice(NoticeKind.EXPIRED, stage.run_id, stage.id, gate_id, {"need": count})
        return len(rows)

    return _walk(
        "SELECT id, run_id, expires_at FROM pipelines_gate WHERE state = 'open' AND expires_at <= recourse_now()"
        " AND (expires_at, id) > (%s, %s) ORDER BY expires_at, id LIMIT %s",
        step,
        limit,
    )


def enforce_deadlines(limit: int = BATCH) -> int:
    """Unfinished runs past their deadline → failed, `deadline_exceeded`, for good; pauses and waits count."""

    def step(moves: Moves, run_ids: Sequence[uuid.UUID]) -> int:
        return moves.end_overdue()

    return _walk(
        "SELECT id, id, deadline_at FROM pipelines_run WHERE status NOT IN ('completed', 'failed', 'cancelled')"
        " AND deadline_at <= recourse_now() AND (deadline_at, id) > (%s, %s) ORDER BY deadline_at, id LIMIT %s",
        step,
        limit,
    )


def end_pauses(limit: int = BATCH) -> int:
    """Runs paused until a time that has come → what their stages imply. Only the pause that named the time is ended:
    a resume clears it, and another pause has its own or none."""

    def step(moves: Moves, run_ids: Sequence[uuid.UUID]) -> int:
        due = [run for run in moves.runs.values() if run.paused and run.paused_until and run.paused_until <= moves.now]
        for run in due:
            until = run.paused_until.isoformat() if run.paused_until else None
            moves.resume(run)
            moves.event(
                "run.resume", run.id, reason="the time until which it was paused has come", data={"until": until}
            )
        return len(due)

    return _walk(
        "SELECT id, id, paused_until FROM pipelines_run WHERE status NOT IN ('completed', 'failed', 'cancelled')"
        " AND paused_until <= recourse_now() AND (paused_until, id) > (%s, %s) ORDER BY paused_until, id LIMIT %s",
        step,
        limit,
    )


def move_on_stuck_runs(limit: int = BATCH, quiet_seconds: int = 30) -> int:
    """Unfinished runs that should have moved on and did not: their stages say otherwise than their status.

    The engine commits both together, so this finds nothing but the traces of a fault or of rows changed by hand (F25).
    Runs that their lanes hold are left to these. Besides, imports that are ready: they begin to be awaited once the
    run's baseline can be looked at again.
    """

    def step(moves: Moves, run_ids: Sequence[uuid.UUID]) -> int:
        before = {run.id: run.status for run in moves.runs.values()}
        before_that = {stage.id: stage.state for stage in moves.stages.values()}
        moves.settle()
        moved = sum(run.status != before[run.id] for run in moves.runs.values())
        return moved or sum(moves.stages[stage_id].state != state for stage_id, state in before_that.items())

    return _walk(
        f"""
        SELECT r.id, r.id, r.updated_at FROM pipelines_run r
        WHERE r.status NOT IN ('completed', 'failed', 'cancelled') AND NOT r.held
            AND r.updated_at <= recourse_now() - interval '{int(quiet_seconds)} seconds'
            AND (r.updated_at, r.id) > (%s, %s)
            AND NOT EXISTS (
                SELECT FROM pipelines_stage s WHERE s.run_id = r.id
                    AND s.state NOT IN ('pending', 'completed', 'failed', 'skipped', 'cancelled')
                    AND NOT (s.state = 'ready' AND s.mode = 'import' AND r.changed IS NULL)
            )
        ORDER BY r.updated_at, r.id LIMIT %s
        """,
        step,
        limit,
    )


def _attempt_step(
    still_due: Callable[[Moves, AttemptRow], bool], end: Callable[[Moves, outcomes.Judge, AttemptRow], None]
) -> Step:
    def step(moves: Moves, attempt_ids: Sequence[uuid.UUID]) -> int:
        judge = outcomes.Judge(moves)
        due = [
            attempt
            for attempt in moves.attempts("id = ANY(%s) AND run_id = ANY(%s)", list(attempt_ids), list(moves.runs))
            if still_due(moves, attempt)
        ]
        for attempt in due:
            end(moves, judge, attempt)
        return len(due)

    return step


def _not_answered(moves: Moves, judge: outcomes.Judge, attempt: AttemptRow) -> None:
    stage = moves.stages[attempt.stage_id]
    if stage.awaits_import:
        outcomes.time_out_import(moves, judge, stage, attempt)
    else:
        outcomes.undeliver(moves, stage, attempt)


def _walk(find: str, step: Step, limit: int) -> int:
    """Goes through everything due in order of time, a batch a transaction, until the end is reached."""
    total, after = 0, ("-infinity", "00000000-0000-0000-0000-000000000000")
    while True:
        due = query(find, [*after, limit])
        if not due:
            return total
        after = (due[-1][2], due[-1][0])
        try:
            total += _apply(step, due)
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            log.exception("sweep.batch_failed", rows=len(due))
            total += sum(_apply_alone(step, row) for row in due)
        if len(due) < limit:
            return total


def _apply(step: Step, due: Sequence[tuple[Any, ...]]) -> int:
    with transaction.atomic():
        moves = Moves.lock([row[1] for row in due], skip_locked=True)
        moved = step(moves, [row[0] for row in due])
        moves.settle()
        moves.save()
    return moved


def _apply_alone(step: Step, row: tuple[Any, ...]) -> int:
    try:
        return _apply(step, [row])
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("sweep.row_failed", id=str(row[0]))
        return 0
