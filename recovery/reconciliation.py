"""What people find out about something done outside, and what that makes of the effect and of its stage.

Every finding is kept and only ever added, also when it changes nothing: a committed effect needs one that says the same
before it may be repeated, and one that contradicts it forbids that for good. Serves O44, O46, R13, F62, I7.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipelines.access import RESOLVE, Actor
from pipelines.audit import Entry
from pipelines.errors import Refusal
from pipelines.models import Effect, Stage
from pipelines.moves import Moves, RunRow, StageRow
from pipelines.sql import execute, query
from pipelines.states import (
    COMMITTED_EFFECT,
    EFFECT_MOVES,
    OPEN_EFFECT,
    TERMINAL_ATTEMPT,
    EffectClass,
    EffectState,
    RunStatus,
    StageState,
)
from recovery.evidence import Summary, effect_of, keep
from recovery.models import EffectEvidence, Reconciliation
from recovery.operations import Done
from recovery.states import OperationKind, Outcome
from recovery.transitions import on_run

# outcome → what it does to an open effect, and to a stage that waits for it
EFFECT_ACTIONS: dict[str, str] = {
    Outcome.COMMITTED: "reconcile_committed",
    Outcome.ABSENT: "reconcile_absent",
    Outcome.CONTRADICTED: "contradict",
}
STAGE_ACTIONS = EFFECT_ACTIONS


@dataclass(frozen=True, slots=True)
class Finding:
    """What somebody found out. `output` is what a committed stage completes with; any JSON."""

    outcome: str
    note: str = ""
    evidence: Summary | None = None
    output: Any = None
    has_output: bool = False

    def request(self, effect_id: uuid.UUID | None) -> dict[str, Any]:
        """What makes two requests the same."""
        told = self.evidence
        return {
            "effect_id": str(effect_id) if effect_id else None,
            "outcome": self.outcome,
            "note": self.note,
            "evidence": told and [told.summary, told.source, told.clean, told.is_sealed],
            "output": self.output if self.has_output else None,
            "has_output": self.has_output,
        }


def reconcile_effect(
    run_id: uuid.UUID, effect_id: uuid.UUID, finding: Finding, *, actor: Actor, reason: str = "", key: str = ""
) -> Done:
    """Keeps what was found out about one effect.

    unknown, or still declared by an attempt that ended → reconciled_committed, reconciled_absent, contradicted. One
    that is settled keeps its state: the finding confirms or contradicts it. No stage moves; of a cancelled run too.
    Refused: an effect of an attempt that still runs (`stage_state_invalid`); committed, outside, without a key
    (`effect_key_required`).
    """
    effect = effect_of_workspace(actor, run_id, effect_id)

    def carry_out(moves: Moves, run: RunRow, entry: Entry) -> dict[str, Any]:
        stage = moves.stages[effect.stage_id]
        state, kept = _settle(moves, stage, effect_id, finding, actor)
        moves.save()
        return _told(run, stage, kept, effect_id=str(effect_id), effect_state=state)

    return on_run(
        OperationKind.RECONCILE,
        run_id,
        actor=actor,
        carry_out=carry_out,
        capability=RESOLVE,
        action="effect.reconcile",
        reason=reason or finding.note,
        key=key,
        request=finding.request(effect_id),
        stage_id=effect.stage_id,
    )


def reconcile_stage(stage: Stage, finding: Finding, *, actor: Actor, reason: str = "", key: str = "") -> Done:
    """needs_reconciliation → completed with the output given, ready again, or failed.

    Refused: `needs_reconciliation` while any of its effects is open, and for absent while one of this epoch is
    committed; another state; a run that is cancelled or past its deadline; committed without an output.
    """
    if finding.outcome == Outcome.COMMITTED and not finding.has_output:
        message = "what was committed is completed with an output; it may be an empty text"
        raise Refusal("validation_error", message, errors={"output": [message]})

    def carry_out(moves: Moves, run: RunRow, entry: Entry) -> dict[str, Any]:
        row = moves.stages[stage.id]
        _check_stage(moves, run, row, finding)
        kept = _keep(run.id, row.id, None, finding, None, actor)
        _move_stage(moves, row, finding, reason or finding.note)
        moves.settle()
        moves.save()
        # it is about no single effect: it stays with the operation
        told = {} if finding.evidence is None else {"evidence": finding.evidence.as_json()}
        return _told(run, row, kept, **told)

    return on_run(
        OperationKind.RECONCILE,
        stage.run_id,
        actor=actor,
        carry_out=carry_out,
        capability=RESOLVE,
        action="stage.reconcile",
        reason=reason or finding.note,
        key=key,
        request=finding.request(None),
        stage_id=stage.id,
    )


def effect_of_workspace(actor: Actor, run_id: uuid.UUID, effect_id: uuid.UUID) -> Effect:
    """The effect, if it is one of that run and the run is one of the actor's workspace; any other id is 404."""
    effect = effect_of(run_id, effect_id)
    if not Stage.objects.filter(id=effect.stage_id, run__workspace_id=actor.workspace_id).exists():
        raise Refusal("not_found", "the run has no such effect")
    return effect


# below: under the run's lock


def _settle(
    moves: Moves, stage: StageRow, effect_id: uuid.UUID, finding: Finding, actor: Actor
) -> tuple[str, Reconciliation]:
    """The effect's state afterwards, and what was kept."""
    effect = effect_of(stage.run_id, effect_id)
    if effect.state in OPEN_EFFECT:
        _check_settling(moves, effect, finding)
        for action in _path(effect, finding):
            _move_effect(moves, stage, effect, action, finding.note)
    evidence = None if finding.evidence is None else keep(effect, finding.evidence, actor)[0]
    return effect.state, _keep(stage.run_id, stage.id, effect, finding, evidence, actor)


def _check_settling(moves: Moves, effect: Effect, finding: Finding) -> None:
    attempts = moves.attempts("id = %s", effect.attempt)
    if attempts and attempts[0].state not in TERMINAL_ATTEMPT:
        raise Refusal("stage_state_invalid", "its attempt is still running and may yet tell what became of it")
    is_outside = effect.effect_class != EffectClass.INTERNAL_STATE
    if finding.outcome == Outcome.COMMITTED and is_outside and not effect.key:
        message = "it was declared without an idempotency key: it cannot be told as committed; skip the stage instead"
        raise Refusal("effect_key_required", message)


def _path(effect: Effect, finding: Finding) -> Sequence[str]:
    doubt = ["doubt"] if effect.state == EffectState.DECLARED else []
    return [*doubt, EFFECT_ACTIONS[finding.outcome]]


def _move_effect(moves: Moves, stage: StageRow, effect: Effect, action: str, note: str) -> None:
    origin, to = EffectState(effect.state), EFFECT_MOVES[action][EffectState(effect.state)]
    execute(
        "UPDATE pipelines_effect SET state = %s, settled_at = CASE WHEN %s THEN recourse_now() END WHERE id = %s",
        [to, to not in OPEN_EFFECT, effect.id],
    )
    effect.state = to
    told = {"effect": str(effect.id), "class": effect.effect_class, "step": effect.step_id, "key": effect.key}
    moves.event(f"effect.{action}", stage.run_id, stage.id, effect.attempt, origin, to, reason=note, data=told)


def _check_stage(moves: Moves, run: RunRow, stage: StageRow, finding: Finding) -> None:
    if run.status == RunStatus.CANCELLED:
        detail = "a cancelled run stays cancelled: reconcile its effects one by one, as evidence; fork it to go on"
        raise Refusal("execution_state_invalid", detail, extra={"instead": "fork"})
    if run.is_final or run.is_past_deadline(moves.now):
        raise Refusal("deadline_exceeded", "the run passed its deadline; fork it to go on", extra={"instead": "fork"})
    if stage.state != StageState.NEEDS_RECONCILIATION:
        raise Refusal("stage_state_invalid", f"a stage that is {stage.state} has nothing to reconcile")
    effects = query(
        "SELECT id, state, epoch FROM pipelines_effect WHERE stage_id = %s AND effect_class <> 'internal_state'"
        " ORDER BY declared_at, id",
        [stage.id],
    )
    if unsettled := [str(effect_id) for effect_id, state, _ in effects if state in OPEN_EFFECT]:
        detail = f"{stage.name} has {len(unsettled)} effects of which nobody knows: reconcile them first"
        raise Refusal("needs_reconciliation", detail, extra={"effects": unsettled})
    committed = [
        str(effect_id) for effect_id, state, epoch in effects if state in COMMITTED_EFFECT and epoch == stage.epoch
    ]
    if finding.outcome == Outcome.ABSENT and committed:
        detail = f"{stage.name} did something outside: it is not absent; complete it, or say that it contradicts itself"
        raise Refusal("needs_reconciliation", detail, extra={"effects": committed})


def _move_stage(moves: Moves, stage: StageRow, finding: Finding, reason: str) -> None:
    action = STAGE_ACTIONS[finding.outcome]
    clean: dict[str, Any] = {"last_error_code": "", "last_error_message": "", "failure_disposition": ""}
    if finding.outcome == Outcome.COMMITTED:
        output = moves.output(stage, json.dumps(finding.output, separators=(",", ":")), attempt=None)
        moves.stage(stage, action, reason=reason, output_id=output, **clean)
    elif finding.outcome == Outcome.ABSENT:
        moves.stage(stage, action, reason=reason, **clean)
    else:
        code = stage.last_error_code or "CONTRADICTED"
        moves.stage(stage, action, reason=reason, failure_disposition="contradicted", last_error_code=code)


def _keep(
    run_id: uuid.UUID,
    stage_id: uuid.UUID,
    effect: Effect | None,
    finding: Finding,
    evidence: EffectEvidence | None,
    actor: Actor,
) -> Reconciliation:
    kept: Reconciliation = Reconciliation.objects.create(
        run_id=run_id,
        stage_id=stage_id,
        effect=effect,
        outcome=finding.outcome,
        evidence=evidence,
        note=finding.note,
        user_id=cast(int, actor.user_id),  # people's alone
    )
    return kept


def _told(run: RunRow, stage: StageRow, kept: Reconciliation, **more: Any) -> dict[str, Any]:
    return {
        "reconciliation_id": str(kept.id),
        "outcome": kept.outcome,
        "stage_status": stage.state,
        "run_status": run.status,
        **more,
    }
