"""What operators do to stages in place: retry, skip; and cancel as an operation of its own. Nothing is ever erased.

Every verb: lock the run, check, move, record operation and audit event, announce. With a key, asking again gives the
first answer; the same key for another request is `recovery_idempotency_conflict`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, cast

from django.db import IntegrityError

from pipelines.access import RECOVER, STEER, Actor
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.graph import descendants
from pipelines.moves import Moves, RunRow, StageRow
from pipelines.sql import execute, query
from pipelines.states import CLAIMABLE_STAGE, STAGE_MOVES, RunStatus, StageState, lets_go_on
from pipelines.transitions import cancel, lock_run, pause, resume
from recovery.models import Operation
from recovery.states import Disposition, OperationKind, OperationState

STAGE_ONLY, AND_DOWNSTREAM = "stage", "stage_and_downstream"


class StageFacts(Protocol):
    """A stage as the engine or a screen holds it."""

    @property
    def effect_mode(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def attempt_number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a verb in place."""

    operation_id: uuid.UUID
    run_id: uuid.UUID
    stage_id: uuid.UUID | None
    status: str
    disposition: str
    replayed: bool
    result: dict[str, Any]


def retry_stage(
    stage_id: uuid.UUID,
    *,
    actor: Actor,
    scope: str = STAGE_ONLY,
    reason: str = "",
    new_input: str | None = None,
    acknowledge_effects: bool = False,
    key: str = "",
    letters: str = "resolved",
    before: Callable[[Moves], object] | None = None,
) -> Done:
    """Begins a new epoch of a failed, completed or skipped stage, on the pinned release (P65–P68, R11–R13, F34).

    Scope `stage`: dependants that were not dispatched fall back to pending, later ones are flagged stale. Scope
    `stage_and_downstream`: all descendants begin anew. Refused: a run that is cancelled or past its deadline, a denied
    gate, a stage to be reconciled, an active one, a reason missing for a stage that did not fail, and a stage with
    outside effects, also one behind it that begins anew, unless `acknowledge_effects` says that they were checked.
    `before` looks once more under the lock.
    """
    request = {"scope": scope, "input": new_input, "acknowledge_effects": acknowledge_effects}
    action = OperationKind.REDRIVE if letters == "redriven" else OperationKind.RETRY

    def carry_out(moves: Moves, run: RunRow, stage: StageRow) -> dict[str, Any]:
        if before is not None:
            before(moves)
        later = [_by_position(run)[position] for position in descendants(stage.position, _shape(run))]
        _check_retry(moves, run, stage, reason, acknowledge_effects)
        if scope == AND_DOWNSTREAM:
            for follower in later:
                _check_rewind(moves, follower, acknowledge_effects)
            for follower in later:
                _rewind(moves, follower, reason)
        else:
            for follower in later:
                _step_back(moves, follower, reason)
        _begin_epoch(moves, run, stage, reason)
        if new_input is not None:
            _replace_input(moves, stage, new_input)
        moves.close_dead_letters(stage, letters, reason)
        moves.settle()
        moves.save()
        return {"epoch": stage.epoch, "stage_status": stage.state, "run_status": run.status}

    return _in_place(action, stage_id, actor=actor, reason=reason, key=key, request=request, carry_out=carry_out)


def skip_stage(
    stage_id: uuid.UUID, *, actor: Actor, reason: str, output: Any = None, has_output: bool = False, key: str = ""
) -> Done:
    """Records that a stage is left out on purpose; what waits for it may go on (P69–P71). A reason is required.

    pending, ready, retry_scheduled, failed, needs_reconciliation → skipped. Refused: other states, a denied gate, a run
    that is cancelled or past its deadline.
    """

    def carry_out(moves: Moves, run: RunRow, stage: StageRow) -> dict[str, Any]:
        _check_open(run, "skipped", moves)
        _check_gate(moves, stage)
        if stage.state not in STAGE_MOVES["skip"]:
            raise Refusal("stage_state_invalid", f"a stage that is {stage.state} cannot be skipped")
        body = json.dumps(output, separators=(",", ":"))
        kept = moves.output(stage, body, attempt=None) if has_output else None
        moves.stage(stage, "skip", reason=reason, output_id=kept)
        moves.close_dead_letters(stage, "resolved", reason)
        moves.settle()
        moves.save()
        return {"stage_status": stage.state, "run_status": run.status}

    request = {"output": output if has_output else None, "has_output": has_output}
    return _in_place(
        OperationKind.SKIP,
        stage_id,
        actor=actor,
        reason=reason,
        key=key,
        request=request,
        carry_out=carry_out,
        reason_needed="a stage is skipped only with a reason",
    )


def pause_as_operation(run_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "") -> Done:
    """Pauses a run for a person, and keeps it as an operation (`pipelines.transitions.pause_run` says what moves)."""

    def carry_out(moves: Moves, run: RunRow, entry: Entry) -> dict[str, Any]:
        pause(moves, run, reason)
        return {"run_status": run.status}

    return on_run(OperationKind.PAUSE, run_id, actor=actor, reason=reason, key=key, carry_out=carry_out)


def resume_as_operation(run_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "") -> Done:
    """Resumes a run for a person, and keeps it as an operation."""

    def carry_out(moves: Moves, run: RunRow, entry: Entry) -> dict[str, Any]:
        resume(moves, run, reason)
        return {"run_status": run.status}

    return on_run(OperationKind.RESUME, run_id, actor=actor, reason=reason, key=key, carry_out=carry_out)


def cancel_as_operation(run_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "") -> Done:
    """Cancels a run for a person, and keeps it as an operation with its reconciliation list."""

    def carry_out(moves: Moves, run: RunRow, entry: Entry) -> dict[str, Any]:
        cancelled = cancel(moves, run, reason)
        if cancelled.repeated:
            entry.outcome = NO_OP
        return {"reconciliation": cancelled.reconciliation, "run_status": run.status}

    return on_run(OperationKind.CANCEL, run_id, actor=actor, reason=reason, key=key, carry_out=carry_out)


def on_run(
    kind: OperationKind,
    run_id: uuid.UUID,
    *,
    actor: Actor,
    carry_out: Callable[[Moves, RunRow, Entry], dict[str, Any]],
    capability: str = STEER,
    action: str = "",
    reason: str = "",
    key: str = "",
    request: dict[str, Any] | None = None,
    stage_id: uuid.UUID | None = None,
) -> Done:
    """One verb on one run as an operation: `carry_out` moves the locked run and says what the answer holds.

    Effect, key, operation and audit event commit together. `request` is what else makes two requests the same.
    """
    fingerprint = _fingerprint(kind, run_id, request or {})
    with audited(actor, action or f"run.{kind}", run=run_id, stage=stage_id, reason=reason) as entry:
        moves, run = lock_run(run_id, actor)
        actor.require(capability)
        repeated = _repeat(actor, kind, key, fingerprint)
        if repeated:
            entry.outcome = NO_OP
            return repeated
        result = carry_out(moves, run, entry)
        return _record(
            kind, run_id, stage_id, actor=actor, reason=reason, key=key, fingerprint=fingerprint, result=result
        )


def _in_place(
    kind: OperationKind,
    stage_id: uuid.UUID,
    *,
    actor: Actor,
    reason: str,
    key: str,
    request: dict[str, Any],
    carry_out: Callable[[Moves, RunRow, StageRow], dict[str, Any]],
    reason_needed: str = "",
) -> Done:
    found = query(
        "SELECT s.run_id FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id"
        " WHERE s.id = %s AND r.workspace_id = %s",
        [stage_id, actor.workspace_id],
    )
    if not found:
        raise Refusal("not_found", "there is no such stage")
    run_id = found[0][0]
    fingerprint = _fingerprint(kind, stage_id, request)
    with audited(actor, f"stage.{kind}", run=run_id, stage=stage_id, reason=reason, **_told(request)) as entry:
        actor.require(RECOVER)
        if reason_needed and not reason:
            raise _missing_reason(reason_needed)
        moves, run = lock_run(run_id, actor)
        repeated = _repeat(actor, kind, key, fingerprint)
        if repeated:
            entry.outcome = NO_OP
            return repeated
        result = carry_out(moves, run, moves.stages[stage_id])
        return _record(
            kind, run_id, stage_id, actor=actor, reason=reason, key=key, fingerprint=fingerprint, result=result
        )


def _repeat(actor: Actor, kind: OperationKind, key: str, fingerprint: str) -> Done | None:
    if not key:
        return None
    earlier = Operation.objects.filter(workspace_id=actor.workspace_id, kind=kind, key=key).first()
    if earlier is None:
        return None
    if earlier.fingerprint != fingerprint or earlier.requested_by_id != actor.user_id:
        raise _key_taken()
    return _done(earlier, replayed=True)


def _record(
    kind: OperationKind,
    run_id: uuid.UUID,
    stage_id: uuid.UUID | None,
    *,
    actor: Actor,
    reason: str,
    key: str,
    fingerprint: str,
    result: dict[str, Any],
) -> Done:
    operation = Operation(
        workspace_id=actor.workspace_id,
        kind=kind,
        run_id=run_id,
        stage_id=stage_id,
        requested_by_id=cast(int, actor.user_id),  # operations are people's
        channel=actor.channel,
        key=key,
        fingerprint=fingerprint,
        reason=reason,
        state=OperationState.SUCCEEDED,
        disposition=Disposition.RECOVERY_ALLOWED,
        result=result,
    )
    try:
        operation.save(force_insert=True)
    except IntegrityError as error:
        if "operation_key_once" not in str(error):
            raise
        # two targets raced with one key, each under its own run's lock; the refusal undoes this one
        raise _key_taken() from error
    return _done(operation, replayed=False)


def _key_taken() -> Refusal:
    return Refusal("recovery_idempotency_conflict", "this key was already used for another request")


def _done(operation: Operation, *, replayed: bool) -> Done:
    return Done(
        operation_id=operation.id,
        run_id=operation.run_id,
        stage_id=operation.stage_id,
        status=operation.state,
        disposition=operation.disposition,
        replayed=replayed,
        result=operation.result,
    )


def _check_open(run: RunRow, verb: str, moves: Moves) -> None:
    if run.status == RunStatus.CANCELLED:
        detail = f"a cancelled run stays cancelled: its stages are not {verb}; fork it instead"
        raise Refusal("execution_state_invalid", detail, extra={"instead": "fork"})
    if run.is_final or run.is_past_deadline(moves.now):
        detail = f"the run passed its deadline: its stages are not {verb}; start a new run or fork it"
        raise Refusal("deadline_exceeded", detail, extra={"instead": "fork"})


def _check_gate(moves: Moves, stage: StageRow) -> None:
    if query(
        "SELECT 1 FROM pipelines_gate WHERE stage_id = %s AND epoch = %s AND state = 'rejected'",
        [stage.id, stage.epoch],
    ):
        raise Refusal("gate_denied", f"the gate of {stage.name} was rejected; that is final in this run")


def _check_retry(moves: Moves, run: RunRow, stage: StageRow, reason: str, acknowledged: bool) -> None:
    _check_open(run, "retried", moves)
    if stage.state == StageState.NEEDS_RECONCILIATION:
        raise Refusal("needs_reconciliation", f"what {stage.name} did outside is unknown: reconcile it first")
    _check_gate(moves, stage)
    if stage.state not in STAGE_MOVES["retry"]:
        raise Refusal("stage_state_invalid", f"a stage that is {stage.state} cannot be retried")
    if stage.state != StageState.FAILED and not reason:
        raise _missing_reason(f"a stage that is {stage.state} is retried only with a reason")
    if stage.effect_mode == "external" and not acknowledged:
        raise _unchecked(stage)


def _check_rewind(moves: Moves, stage: StageRow, acknowledged: bool) -> None:
    if stage.state in (StageState.DISPATCHED, StageState.RUNNING, StageState.WAITING):
        raise Refusal("stage_state_invalid", f"{stage.name} behind it is {stage.state}: wait for it or pause first")
    if stage.state == StageState.NEEDS_RECONCILIATION:
        raise Refusal("needs_reconciliation", f"what {stage.name} behind it did outside is unknown: reconcile it first")
    _check_gate(moves, stage)
    if acted_outside(stage) and not acknowledged:
        raise _unchecked(stage)


def acted_outside(stage: StageFacts) -> bool:
    """Whether beginning the stage anew may repeat what an earlier attempt of it did outside."""
    return stage.effect_mode == "external" and stage.state in STAGE_MOVES["rewind"] and stage.attempt_number > 0


def _unchecked(stage: StageRow) -> Refusal:
    detail = (
        f"{stage.name} acts outside, and doing it again may repeat that: check the outside system, then say"
        " acknowledge_effects"
    )
    return Refusal("operator_review_required", detail)


def _rewind(moves: Moves, stage: StageRow, reason: str) -> None:
    if stage.state in STAGE_MOVES["rewind"]:
        moves.stage(stage, "rewind", reason=reason, **_new_epoch(stage))
        moves.close_dead_letters(stage, "resolved", reason)
    elif stage.state != StageState.PENDING:
        moves.stage(stage, "fall_back", reason=reason, available_at=None)


def _step_back(moves: Moves, stage: StageRow, reason: str) -> None:
    if stage.state in CLAIMABLE_STAGE or moves.waits_to_begin(stage):
        moves.cancel_gates([stage], reason)
        moves.stage(stage, "fall_back", reason=reason, available_at=None)
    elif stage.state != StageState.PENDING:
        moves.touch(stage, stale=True)


def _begin_epoch(moves: Moves, run: RunRow, stage: StageRow, reason: str) -> None:
    by_position = _by_position(run)
    may_start = all(lets_go_on(by_position[position]) for position in stage.depends_on)
    gated = (stage.approval or {}).get("when") == "before"
    # what waits for a dependency or a gate goes back to pending, and settling moves it on from there
    action = "retry" if may_start and not gated else "rewind"
    moves.stage(stage, action, reason=reason, data={"epoch": stage.epoch + 1}, **_new_epoch(stage))


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


def _by_position(run: RunRow) -> dict[int, StageRow]:
    return {stage.position: stage for stage in run.stages}


def _shape(run: RunRow) -> dict[int, list[int]]:
    return {stage.position: stage.depends_on for stage in run.stages}


def _missing_reason(message: str) -> Refusal:
    return Refusal("validation_error", message, errors={"reason": [message]})


def _fingerprint(kind: str, target: uuid.UUID, request: dict[str, Any]) -> str:
    told = json.dumps([kind, str(target), request], sort_keys=True, separators=(",", ":"))
    return sha256(told.encode()).hexdigest()


def _told(request: dict[str, Any]) -> dict[str, Any]:
    """What the audit event keeps of a request: the choices, and of contents only whether they were given."""
    return {
        name: value if isinstance(value, bool | str) and name != "input" else value is not None
        for name, value in request.items()
    }
