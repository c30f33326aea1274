"""What people and applications do to whole runs: pause, resume, cancel. Each: lock, check, write, record, announce.

Another workspace's or application's run is 404, before anything else is looked at.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipelines.access import CANCEL, Actor
from pipelines.audit import NO_OP, audited, standing
from pipelines.errors import Refusal
from pipelines.moves import DEADLINE_EXCEEDED, HasEnd, Moves, Owner, RunRow
from pipelines.states import ACTIVE_STAGE, OPERATOR_PAUSE, RUN_NO_OPS, RUN_VERBS, RunStatus, StageState


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a cancel. `reconciliation` lists what may still go on outside: {stageId, attempt, kind, detail}."""

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
        return Cancelled(run.id, True, reconciliation_list(run.id))
    check_verb(run, "cancel", moves.now)
    uncertain = _still_outside(moves, run)  # before the end, while the stages still say what they were doing
    moves.end_run(run, RunStatus.CANCELLED, reason=reason)
    moves.event("run.reconciliation_list", run.id, data=uncertain)
    moves.save()
    return Cancelled(run.id, False, uncertain)


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


def reconciliation_list(run_id: uuid.UUID) -> list[dict[str, Any]]:
    """What was in flight when the run was cancelled, as it was told then."""
    from pipelines.models import Event

    event = Event.objects.filter(run_id=run_id, kind="run.reconciliation_list").order_by("-id").first()
    return event.data if event and event.data else []


_PAST = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def _still_outside(moves: Moves, run: RunRow) -> list[dict[str, Any]]:
    stages = {stage.id: stage for stage in run.stages}
    items = []
    for attempt in moves.active_attempts([stage.id for stage in run.stages if stage.state in ACTIVE_STAGE]):
        if attempt.state == "running":
            stage = stages[attempt.stage_id]
            detail = f"{stage.name}: attempt {attempt.number} may still run at {attempt.worker}; it was told to stop"
            items.append(_item(stage.id, attempt.number, "running_attempt", detail))
    for stage in run.stages:
        if stage.state == StageState.NEEDS_RECONCILIATION:
            detail = f"{stage.name}: what attempt {stage.attempt_number} did outside is unknown"
            items.append(_item(stage.id, stage.attempt_number, "uncertain_effect", detail))
        elif stage.state == StageState.WAITING:
            detail = f"{stage.name}: a decision was being waited for; outside work may depend on it"
            items.append(_item(stage.id, stage.attempt_number, "open_gate", detail))
    return items + _open_effects(moves, run)


def _open_effects(moves: Moves, run: RunRow) -> list[dict[str, Any]]:
    """What attempts of the run said they were about to do outside, and never said whether they had."""
    items = []
    for stage_id, number, effect_class, step_id, key, external_ref in moves.open_effects(run):
        names = "".join(f", {name} {value}" for name, value in (("key", key), ("reference", external_ref)) if value)
        what = " ".join(filter(None, (effect_class.replace("_", " "), step_id)))
        detail = f"{moves.stages[stage_id].name}: nobody knows whether attempt {number} did {what}{names}"
        items.append(_item(stage_id, number, "open_effect", detail))
    return items


def _item(stage_id: uuid.UUID, attempt: int, kind: str, detail: str) -> dict[str, Any]:
    return {"stageId": str(stage_id), "attempt": attempt, "kind": kind, "detail": detail}
