"""Why a run does not move: who or what holds each stage, in words, and when the engine looks again. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipelines.models import Attempt, Gate, Run, Stage
from pipelines.states import (
    OPERATOR_PAUSE,
    TERMINAL_RUN,
    TERMINAL_STAGE,
    GateState,
    RunStatus,
    StageState,
    lets_go_on,
)

# holders that are no stage and no worker
PERSON = "a person"
NOBODY = "nobody"  # nothing in this run can change it
NO_WORKER = "no worker"
CLOCK = "the clock"
APPLICATION = "the application"


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that is waited for. Without a stage it holds the whole run.

    `next_look`: when the engine itself looks again; without it somebody else must act, or, for NOBODY, nobody can.
    """

    holder: str
    cause: str
    next_look: datetime | None = None
    stage_id: uuid.UUID | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What must be known besides the stages. `workers` maps a handler to the live workers that registered it."""

    attempts: Mapping[uuid.UUID, Attempt]  # by stage: the active one
    gates: Mapping[uuid.UUID, Gate]  # by stage: the open one
    workers: Mapping[str, Sequence[str]]
    paused_by: str = ""
    paused_at: datetime | None = None


def find_blockers(run: Run, stages: Sequence[Stage], around: Surroundings) -> list[Blocker]:
    """The blockers of a run in stage order, a pause first. A completed or cancelled run has none."""
    if run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        return []
    found = []
    if run.failure_code == "deadline_exceeded":
        return [Blocker(NOBODY, f"the run passed its deadline, {_time(run.deadline_at)}; only a new run helps")]
    if run.paused:
        found.append(Blocker(around.paused_by or PERSON, _pause(run, around)))
    by_position = {stage.position: stage for stage in stages}
    for stage in stages:
        if stage.state == StageState.FAILED and not stage.run_next_if_failed:
            found.append(_failed(stage))
        elif stage.state not in TERMINAL_STAGE and run.status not in TERMINAL_RUN:
            found.extend(_blocks(run, stage, by_position, around))
    return found


def _blocks(run: Run, stage: Stage, by_position: Mapping[int, Stage], around: Surroundings) -> list[Blocker]:
    attempt = around.attempts.get(stage.id)
    match stage.state:
        case StageState.PENDING:
            return [
                _of(stage, by_position[position].name, _dependency(by_position[position]))
                for position in stage.depends_on
                if not lets_go_on(by_position[position])
            ]
        case StageState.READY:
            return [] if run.paused else [_ready(stage, around)]
        case StageState.RETRY_SCHEDULED:
            why = f" after {stage.last_error_code}" if stage.last_error_code else ""
            held = "; the run is paused, so it waits longer" if run.paused else ""
            cause = f"retry {stage.retry_count}{why} is due at {_time(stage.available_at)}{held}"
            return [_of(stage, CLOCK, cause, stage.available_at)]
        case StageState.DISPATCHED if attempt:
            cause = f"handed to {_worker(attempt)}, who has until {_time(attempt.expires_at)} to acquire the lease"
            return [_of(stage, _worker(attempt), cause, attempt.expires_at)]
        case StageState.RUNNING if attempt:
            cause = f"attempt {attempt.number} is leased by {_worker(attempt)} until {_time(attempt.expires_at)}"
            return [_of(stage, _worker(attempt), cause, attempt.expires_at)]
        case StageState.WAITING:
            return [_waiting(stage, around.gates.get(stage.id))]
        case StageState.NEEDS_RECONCILIATION:
            cause = f"what attempt {stage.attempt_number} did outside is unknown; it needs reconciliation"
            return [_of(stage, PERSON, cause)]
    return []


def _pause(run: Run, around: Surroundings) -> str:
    since = f" since {_time(around.paused_at)}" if around.paused_at else ""
    # the code that stands where nobody gave a reason says nothing to a reader
    why = f": {run.pause_reason}" if run.pause_reason not in ("", OPERATOR_PAUSE) else ""
    finishing = ", running attempts may finish" if run.status == RunStatus.PAUSING else ""
    return f"paused by {around.paused_by or 'somebody'}{since}{why}; nothing is handed out{finishing}"


def _ready(stage: Stage, around: Surroundings) -> Blocker:
    workers = around.workers.get(stage.handler, ())
    since = f"ready since {_time(stage.available_at)}"
    if not workers:
        return _of(stage, NO_WORKER, f"{since}; no live worker has registered the handler {stage.handler}")
    named = ", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if len(workers) > 3 else "")
    return _of(stage, named, f"{since}; {len(workers)} live {'worker' if len(workers) == 1 else 'workers'} may pull it")


def _waiting(stage: Stage, gate: Gate | None) -> Blocker:
    if gate is None or gate.state != GateState.OPEN:
        return _of(stage, APPLICATION, "waits for a decision")
    kind = "before the work" if gate.moment == "before" else "about its result"
    until = f"; it expires at {_time(gate.expires_at)}, and then the stage fails" if gate.expires_at else ""
    cause = f"a decision {kind} has been asked for since {_time(gate.opened_at)}{until}"
    return _of(stage, APPLICATION, cause, gate.expires_at)


def _dependency(stage: Stage) -> str:
    if stage.state == StageState.FAILED:
        return f"waits for {stage.name}, which failed: retry it or skip it"
    return f"waits for {stage.name}, which is {stage.get_state_display().lower()}"


def _failed(stage: Stage) -> Blocker:
    if stage.failure_disposition == "gate_denied":
        return _of(stage, NOBODY, "its gate was rejected; that is final in this run")
    code = f" with {stage.last_error_code}" if stage.last_error_code else ""
    return _of(stage, PERSON, f"failed{code}: retry it or skip it")


def _of(stage: Stage, holder: str, cause: str, next_look: datetime | None = None) -> Blocker:
    return Blocker(holder, cause, next_look, stage.id, stage.name)


def _worker(attempt: Attempt) -> str:
    return attempt.worker or "a worker"


def _time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "an unknown time"
