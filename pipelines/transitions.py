"""What people and applications do to whole runs: pause, resume, cancel. Each: lock, check, write, record, announce.

Another workspace's or application's run is 404, before anything else is looked at.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipelines import remains
from pipelines.access import CANCEL, Actor
from pipelines.audit import NO_OP, audited, standing
from pipelines.errors import Refusal
from pipelines.moves import DEADLINE_EXCEEDED, HasEnd, Moves, Owner, RunRow
from pipelines.states import OPERATOR_PAUSE, RUN_NO_OPS, RUN_VERBS, RunStatus, StageState


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a cancel. `reconciliation` lists what may still go on outside, as `remains.told` does."""

    run_id: uuid.UUID
    repeated: bool
    reconciliation: list[dict[str, Any]]


def cancel_run(run_id: uuid.UUID, *, actor: Actor, reason: str = "") -> Cancelled:
    """Ends a run with every unfinished stage, gate and attempt in one transaction; late results are fenced.

    It stops our work and lists what may still go on outside; it never claims that outside work stopped. Again: the
    same answer, nothing changed. Completed or failed: `execution_state_invalid`. Serves P72–P75, R10, F30, F65, F75.
    """
    with audited(actor, "run.cancel", run=run_id, reason=reason) as entry:
        moves, run = lock_run(run_id, actor)
        actor.require(CANCEL)
        entry.before = standing(run)
        cancelled = cancel(moves, run, reason)
        entry.after = standing(run)
        if cancelled.repeated:
            entry.outcome = NO_OP
    return cancelled


# The verbs themselves, on a run that the caller has locked, for an actor whose right the caller has checked.


def pause(moves: Moves, run: RunRow, reason: str, until: datetime | None = None) -> None:
    """Nothing more is handed out; at `until` a sweep resumes the run, unless a person did so or paused it anew."""
    check_verb(run, "pause", moves.now)
    moves.pause(run, reason or OPERATOR_PAUSE, until)
    idle = [stage for stage in run.stages if stage.state == StageState.DISPATCHED]
    for attempt in moves.active_attempts([stage.id for stage in idle]):
        moves.attempt(attempt, "release", cause="taken back: the run was paused")
    for stage in idle:
        moves.stage(stage, "take_back", reason="the run was paused")
    data = {"until": until.isoformat()} if until else None
    moves.event("run.pause", run.id, reason=reason, data=data)
    moves.settle()
    moves.save()


def resume(moves: Moves, run: RunRow, reason: str) -> None:
    check_verb(run, "resume", moves.now)
    moves.resume(run)
    moves.event("run.resume", run.id, reason=reason)
    moves.settle()
    moves.save()


def cancel(moves: Moves, run: RunRow, reason: str) -> Cancelled:
    if run.status in RUN_NO_OPS["cancel"]:
        return Cancelled(run.id, True, remains.told(run.id))
    check_verb(run, "cancel", moves.now)
    left = moves.end_run(run, RunStatus.CANCELLED, reason=reason)
    moves.save()
    return Cancelled(run.id, False, remains.as_listed(left))


def lock_run(run_id: uuid.UUID, actor: Actor) -> tuple[Moves, RunRow]:
    """Locks one run that the actor may know of; any other id is 404."""
    owner = Owner(actor.workspace_id, actor.application_id, actor.environment_id)
    moves = Moves.lock([run_id], actor=actor.name, owner=owner)
    run = moves.runs.get(run_id)
    if run is None:
        raise Refusal("not_found", "there is no such run")
    return moves, run


def check_verb(run: HasEnd, verb: str, now: datetime) -> None:
    """Refuses a verb that the run's state does not take, naming what would help.

    A run past its deadline takes none, whether or not a sweep has come by to end it (R31).
    """
    overdue = not run.is_terminal and run.is_past_deadline(now)
    if run.status in RUN_VERBS[verb] and not overdue:
        return
    if overdue or run.failure_code == DEADLINE_EXCEEDED:
        raise Refusal(
            "deadline_exceeded", f"the run passed its deadline; it cannot be {_PAST[verb]}; only a new run helps"
        )
    hint = "; a cancelled run stays cancelled" if run.status == RunStatus.CANCELLED else ""
    raise Refusal("execution_state_invalid", f"a run that is {run.status} cannot be {_PAST[verb]}{hint}")


_PAST = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}
