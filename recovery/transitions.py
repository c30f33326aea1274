"""What people do to runs and stages in place: pause, resume, cancel, retry, skip, redrive. Nothing is ever erased.

Every verb: lock the run, plan from the locked rows, judge, walk the plan's lines, record operation and audit event,
announce. With a key, asking again gives the first answer; the same key for another request is
`recovery_idempotency_conflict`. With a plan's digest, another plan is `plan_changed`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from approvals.rules import Requirement, Rule
from pipelines import pinned
from pipelines.access import CANCEL, RECOVER, STEER, Actor
from pipelines.audit import NO_OP, Entry, audited, standing
from pipelines.errors import Refusal
from pipelines.moves import IllegalMove, Moves, Owner, RunRow, StageRow
from pipelines.sql import execute, query
from pipelines.states import RUN_NO_OPS, DeadLetterState
from pipelines.transitions import cancel, lock_run, pause, resume
from recovery import agreements, operations, revisions, world
from recovery.models import Operation
from recovery.operations import Done
from recovery.plans import STAGE_ONLY, Asked, Line, Plan, check_blackout, make_plan
from recovery.states import OperationKind, OperationState
from recovery.world import World

CarryOut = Callable[[Moves, RunRow, Asked, Plan], dict[str, Any]]
REPEATING = frozenset({OperationKind.RETRY, OperationKind.REDRIVE})  # whoever asks for one asks for the gates behind it


@dataclass(frozen=True, slots=True)
class Verb:
    """How a planned verb is carried out: by whom, under which name in the audit, and how its lines are walked.

    `needs_reason` refuses a request that gives none, in these words.
    """

    capability: str
    action: str
    carry_out: CarryOut
    needs_reason: str = ""


# Requests. What is asked is the same for a preview, the verb itself, and an operation that is carried on later.


def ask_retry(
    run_id: uuid.UUID,
    stage_id: uuid.UUID,
    *,
    scope: str = STAGE_ONLY,
    new_input: str | None = None,
    acknowledge_effects: bool = False,
    reason: str = "",
) -> Asked:
    """A new epoch of a failed, completed or skipped stage, on the pinned release (P65–P68, R11–R13, F34).

    `plans.plan_retry` says what moves and what is refused. `acknowledge_effects` says that the outside system was
    checked for a stage that does not declare what it does there; it never clears a recorded effect.
    """
    choices = {"scope": scope, "input": new_input, "acknowledge_effects": acknowledge_effects}
    return Asked(OperationKind.RETRY, run_id, stage_id, choices, reason)


def ask_skip(
    run_id: uuid.UUID, stage_id: uuid.UUID, *, output: Any = None, has_output: bool = False, reason: str = ""
) -> Asked:
    """A stage left out on purpose; what waits for it may go on (P69–P71). A reason is required."""
    choices = {"output": output if has_output else None, "has_output": has_output}
    return Asked(OperationKind.SKIP, run_id, stage_id, choices, reason)


def ask_pause(run_id: uuid.UUID, *, until: datetime | None = None, reason: str = "") -> Asked:
    """No further dispatch: queued, running, waiting, blocked → pausing, or paused when nothing is active.

    Attempts only dispatched are taken back at once (released, nothing counted); running ones renew and finish. At
    `until` the engine resumes it by itself. Refused on other states. Serves P60–P62, P64, O8, O9.
    """
    choices = {"until": until.isoformat() if until else None}
    return Asked(OperationKind.PAUSE, run_id, choices=choices, reason=reason)


def ask_resume(run_id: uuid.UUID, *, reason: str = "") -> Asked:
    """A paused run eligible again: pausing, paused → what its stages imply. Resets nothing (P63, P64, P76)."""
    return Asked(OperationKind.RESUME, run_id, reason=reason)


def ask_cancel(run_id: uuid.UUID, *, reason: str = "") -> Asked:
    """The end of a run and of everything unfinished in it, with its reconciliation list (P72–P75)."""
    return Asked(OperationKind.CANCEL, run_id, reason=reason)


# Planning and performing.


def preview(asked: Asked, *, actor: Actor) -> Plan:
    """What the verb would do now, and what it is judged to be. Nothing is locked or written."""
    _check_reason(asked)
    if not _is_visible(asked.run_id, actor):
        raise Refusal("not_found", "there is no such run")
    return plan_in_place(asked, actor=actor)


def perform(asked: Asked, *, actor: Actor, key: str = "", plan_digest: str = "", verb: Verb | None = None) -> Done:
    """Does what is asked, as its plan says, and keeps it as an operation; effect, key and audit event commit together.

    `verb` says how, where it is none of `VERBS`. Refused without a trace but the audit event: a state that the verb
    does not take, what a blackout holds back (`blackout_active`), and `plan_changed`. A verdict that holds it back is
    kept, and answered as `operator_review_required` or `recovery_denied` (I11). What others must agree to first is kept
    too, and answered as `awaiting_approval`. A run that no longer stands on what it pinned (`definition_changed`) is
    blocked for good.
    """
    try:
        return _perform(asked, verb or VERBS[asked.kind], actor=actor, key=key, plan_digest=plan_digest)
    except Refusal as refused:
        if refused.code == "definition_changed":
            with transaction.atomic():
                pinned.stop_changed([asked.run_id])
        raise


def _perform(asked: Asked, verb: Verb, *, actor: Actor, key: str, plan_digest: str) -> Done:
    with audited(
        actor, verb.action, run=asked.run_id, stage=asked.stage_id, reason=asked.reason, **told(asked)
    ) as entry:
        moves, run = lock_run(asked.run_id, actor)
        if revisions.revises(asked):
            revisions.one_at_a_time([asked.run_id])
        actor.require(verb.capability)
        _check_reason(asked)
        earlier = operations.earlier(actor, asked, key)
        if earlier is not None:
            entry.outcome = NO_OP
            answer = operations.answer_again(earlier)
        else:
            answer = _begin(moves, run, asked, verb, entry, actor=actor, key=key, plan_digest=plan_digest)
        if isinstance(answer, Refusal):
            entry.keep_refused(answer)
    if isinstance(answer, Refusal):
        raise answer
    return answer


def plan_in_place(asked: Asked, *, actor: Actor, frozen: Requirement | None = None) -> Plan:
    """What the verb would do now and who must agree to that when `actor` asks for it: at least as many as `frozen`."""
    return plan_from(world.read(asked.run_id), asked, actor=actor, frozen=frozen)


def plan_from(
    now: World,
    asked: Asked,
    *,
    actor: Actor,
    frozen: Requirement | None = None,
    rules: Sequence[Rule] | None = None,
) -> Plan:
    """The same, from a world and, where they were read for many at once, rules that the caller knows."""
    plan = make_plan(now, asked)
    if now.status in RUN_NO_OPS.get(asked.kind, ()):
        return plan  # nobody need agree to nothing
    needed = agreements.needed(
        plan,
        workspace_id=actor.workspace_id,
        kind=asked.kind,
        environment=now.environment,
        is_protected=now.is_protected,
        pipeline=now.pipeline,
        actor=actor,
        frozen=frozen,
        known=rules,
    )
    return agreements.with_agreement(plan, needed)


def _begin(
    moves: Moves, run: RunRow, asked: Asked, verb: Verb, entry: Entry, *, actor: Actor, key: str, plan_digest: str
) -> Done | Refusal:
    stage = moves.stages[asked.stage_id] if asked.stage_id else None
    entry.before = standing(run, stage)
    try:
        plan = plan_in_place(asked, actor=actor)
    except Refusal as refused:
        if refused.code != "gate_denied":
            raise
        operations.record_denied_gate(actor, asked, refused)
        return refused
    check_blackout(plan)
    entry.plan_digest = plan.digest
    operations.check_digest(plan, plan_digest)
    operation = operations.opened(asked, actor=actor, key=key, plan=plan)
    operations.record_verdict(actor, operation)
    refusal = operations.hold_back(operation, plan)
    if operation.state != OperationState.EVALUATING:
        operations.add(operation)
        entry.data |= operations.waiting(operation)
        return refusal or operations.done(operation)
    if run.status in RUN_NO_OPS.get(asked.kind, ()):
        entry.outcome = NO_OP
    carry_out(verb, moves, run, asked, plan, operation)
    operations.add(operation)
    entry.after = standing(run, stage)
    return operations.done(operation)


def carry_out(verb: Verb, moves: Moves, run: RunRow, asked: Asked, plan: Plan, operation: Operation) -> None:
    """Walks the plan, and lets nothing commit that it does not say (F51); under the run's lock. Saving the operation is
    the caller's."""
    operations.move(operation, "allow")
    expected: dict[str, tuple[str, int, bool]] = {
        stage.name: (stage.state, stage.epoch, stage.stale) for stage in run.stages
    }
    expected |= {line.stage: (line.to, line.epoch, line.stale) for line in plan.lines}
    if asked.kind in REPEATING and operation.requested_by_id is not None:
        moves.asked_by(run, operation.requested_by_id)
    operation.result = verb.carry_out(moves, run, asked, plan)
    found = {stage.name: (stage.state, stage.epoch, stage.stale) for stage in run.stages}
    if found != expected:
        other = sorted(name for name in found if found[name] != expected[name])
        raise IllegalMove(f"{asked.kind} of run {run.id} did otherwise than planned to {other}")
    operations.move(operation, "dispatch")
    operations.move(operation, "succeed")


# Carrying out: the lines of a plan, made by `Moves`.


def _retry(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
    stage = moves.stages[_target(asked)]
    if plan.goes_through:
        moves.start_through_blackout(run)
    if plan.lane:
        moves.stand_in_lane(run)
    _walk(moves, run, plan, asked.reason)
    if asked.choices["input"] is not None:
        _replace_input(moves, stage, asked.choices["input"])
    closed = DeadLetterState.REDRIVEN if asked.kind == OperationKind.REDRIVE else DeadLetterState.RESOLVED
    _close_letters(moves, run, plan, asked.reason, {stage.name: closed})
    moves.settle()
    moves.save()
    told = {"dead_letter_status": closed.value} if asked.kind == OperationKind.REDRIVE else {}
    return {**told, "epoch": stage.epoch, "stage_status": stage.state, "run_status": run.status}


def _skip(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
    stage = moves.stages[_target(asked)]
    body = json.dumps(asked.choices["output"], separators=(",", ":"))
    kept = moves.output(stage, body, attempt=None) if asked.choices["has_output"] else None
    if plan.lane:
        moves.stand_in_lane(run)
    moves.stage(stage, "skip", reason=asked.reason, output_id=kept)
    _close_letters(moves, run, plan, asked.reason)
    moves.settle()
    moves.save()
    return {"stage_status": stage.state, "run_status": run.status}


def _pause(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
    until = asked.choices["until"]
    pause(moves, run, asked.reason, datetime.fromisoformat(until) if until else None)
    return {"run_status": run.status}


def _resume(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
    resume(moves, run, asked.reason)
    return {"run_status": run.status}


def _cancel(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
    cancelled = cancel(moves, run, asked.reason)
    return {"reconciliation": cancelled.reconciliation, "run_status": run.status}


def _mark_letter(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
    letter_id, state = asked.choices["dead_letter"], plan.choices["to"]
    execute(
        "UPDATE pipelines_deadletter SET state = %s, closed_at = CASE WHEN %s THEN recourse_now() END WHERE id = %s",
        [state, state != DeadLetterState.ACKNOWLEDGED, letter_id],
    )
    was = plan.choices["was"]
    moves.event(f"dead_letter.{state}", run.id, asked.stage_id, None, was, state, reason=asked.reason)
    moves.save()
    return {"dead_letter_status": state, "run_status": run.status}


VERBS: Mapping[OperationKind, Verb] = {
    OperationKind.RETRY: Verb(RECOVER, "stage.retry", _retry),
    OperationKind.REDRIVE: Verb(RECOVER, "dead_letter.redrive", _retry),
    OperationKind.SKIP: Verb(RECOVER, "stage.skip", _skip, "a stage is skipped only with a reason"),
    OperationKind.PAUSE: Verb(STEER, "run.pause", _pause),
    OperationKind.RESUME: Verb(STEER, "run.resume", _resume),
    OperationKind.CANCEL: Verb(CANCEL, "run.cancel", _cancel),
    OperationKind.ACKNOWLEDGE: Verb(RECOVER, "dead_letter.acknowledge", _mark_letter),
    OperationKind.DISCARD: Verb(
        RECOVER, "dead_letter.discard", _mark_letter, "a dead letter is discarded only with a reason"
    ),
}


def _walk(moves: Moves, run: RunRow, plan: Plan, reason: str) -> None:
    by_name = {stage.name: stage for stage in run.stages}
    for line in (*plan.then, *plan.run_again):
        _make(moves, by_name[line.stage], line, reason)


def _make(moves: Moves, stage: StageRow, line: Line, reason: str) -> None:
    match line.action:
        case "retry" | "rewind":
            moves.stage(stage, line.action, reason=reason, data={"epoch": line.epoch}, **_new_epoch(stage))
        case "fall_back":
            moves.cancel_gates([stage], reason)
            moves.stage(stage, "fall_back", reason=reason, available_at=None)
        case "flag_stale":
            moves.touch(stage, stale=True)


def _close_letters(
    moves: Moves, run: RunRow, plan: Plan, reason: str, otherwise: Mapping[str, DeadLetterState] | None = None
) -> None:
    for stage in run.stages:
        if stage.name in plan.choices["closes_dead_letters"]:
            moves.close_dead_letters(stage, (otherwise or {}).get(stage.name, DeadLetterState.RESOLVED), reason)


def _new_epoch(stage: StageRow) -> dict[str, Any]:
    return {
        "epoch": stage.epoch + 1,
        "retry_count": 0,
        "recovery_count": 0,
        "output_id": None,
        "checkpoint": None,
        "available_at": None,
        "started_at": None,
        "last_error_code": "",
        "last_error_message": "",
        "failure_disposition": "",
        "stale": False,
    }


def _replace_input(moves: Moves, stage: StageRow, new_input: str) -> None:
    previous = query("SELECT input FROM pipelines_stage WHERE id = %s", [stage.id])[0][0]
    execute("UPDATE pipelines_stage SET input = %s WHERE id = %s", [new_input, stage.id])
    moves.event("stage.input_changed", stage.run_id, stage.id, data={"previous": previous, "epoch": stage.epoch})


def _check_reason(asked: Asked) -> None:
    message = VERBS[asked.kind].needs_reason if asked.kind in VERBS else ""
    if message and not asked.reason:
        raise Refusal("validation_error", message, errors={"reason": [message]})


def _target(asked: Asked) -> uuid.UUID:
    if asked.stage_id is None:
        raise IllegalMove(f"{asked.kind} names no stage")
    return asked.stage_id


def _is_visible(run_id: uuid.UUID, actor: Actor) -> bool:
    owner = Owner(actor.workspace_id, actor.application_id, actor.environment_id)
    return bool(
        query(
            "SELECT 1 FROM pipelines_run WHERE id = %s AND workspace_id = coalesce(%s, workspace_id)"
            " AND application_id = coalesce(%s, application_id) AND environment_id = coalesce(%s, environment_id)",
            [run_id, *owner],
        )
    )


def told(asked: Asked) -> dict[str, Any]:
    """What the audit event keeps of a request: the choices, and of contents only whether they were given."""
    return {
        name: value if isinstance(value, bool | str) and name not in ("input", "output") else value is not None
        for name, value in asked.choices.items()
    }
