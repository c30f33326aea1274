"""What people find out about something done outside, and what that makes of the effect and of its stage.

Every finding is kept and only ever added, also when it changes nothing: a committed effect needs one that says the same
before it may be repeated, and one that contradicts it forbids that for good. Serves O44, O46, R13, F62, I7.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, cast

from pipelines.access import RESOLVE, Actor
from pipelines.aftermath import settle_with_effect
from pipelines.effects import Identity, event_data
from pipelines.errors import Refusal
from pipelines.models import Effect, Run, Stage
from pipelines.moves import Moves, RunRow, StageRow
from pipelines.sql import execute
from pipelines.states import EFFECT_MOVES, OPEN_EFFECT, EffectState
from recovery.evidence import Summary, effect_of, keep
from recovery.models import EffectEvidence, Reconciliation
from recovery.operations import Done
from recovery.plans import OFFERING, RECONCILING, Asked, Plan
from recovery.states import OperationKind, Outcome
from recovery.transitions import Verb, perform


@dataclass(frozen=True, slots=True)
class Finding:
    """What somebody found out. `output` is what a committed stage completes with; any JSON."""

    outcome: str
    note: str = ""
    evidence: Summary | None = None
    output: Any = None
    has_output: bool = False


def ask_about_effect(
    run_id: uuid.UUID, effect_id: uuid.UUID, finding: Finding, *, actor: Actor, reason: str = ""
) -> Asked:
    """Refused with `not_found` unless it is an effect of that run, and the run one of the actor's workspace."""
    effect = effect_of(run_id, effect_id)
    if not Run.objects.filter(id=run_id, workspace_id=actor.workspace_id).exists():
        raise Refusal("not_found", "the run has no such effect")
    return _asked(run_id, effect.stage_id, effect_id, finding, reason)


def ask_about_stage(stage: Stage, finding: Finding, *, reason: str = "") -> Asked:
    """Refused: committed without an output, for the stage is to complete with it."""
    if finding.outcome == Outcome.COMMITTED and not finding.has_output:
        message = "what was committed is completed with an output; it may be an empty text"
        raise Refusal("validation_error", message, errors={"output": [message]})
    return _asked(stage.run_id, stage.id, None, finding, reason)


def reconcile_effect(
    run_id: uuid.UUID,
    effect_id: uuid.UUID,
    finding: Finding,
    *,
    actor: Actor,
    reason: str = "",
    key: str = "",
    plan_digest: str = "",
) -> Done:
    """Keeps what was found out about one effect.

    unknown, or still declared by an attempt that ended → reconciled_committed, reconciled_absent, contradicted. One
    that is settled keeps its state: the finding confirms or contradicts it. No stage moves; of a cancelled run too.
    Refused: an effect of an attempt that still runs (`stage_state_invalid`); committed, outside, without a key
    (`effect_key_required`). What a cancel listed of it is settled by it.
    """

    def carry_out(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
        found = effect_of(run.id, effect_id)
        stage = moves.stages[found.stage_id]
        if found.state in OPEN_EFFECT:
            for action in (["doubt"] if found.state == EffectState.DECLARED else []) + [RECONCILING[finding.outcome]]:
                _move_effect(moves, stage, found, action, finding.note)
        evidence = None if finding.evidence is None else keep(found, finding.evidence, actor)[0]
        kept = _keep(stage, found, finding, evidence, actor)
        settle_with_effect(moves, run, found, finding.note, actor)
        moves.save()
        return {**_told(run, stage, kept), "effect_id": str(found.id), "effect_state": found.state}

    asked = ask_about_effect(run_id, effect_id, finding, actor=actor, reason=reason)
    verb = Verb(RESOLVE, "effect.reconcile", carry_out)
    return perform(asked, actor=actor, key=key, plan_digest=plan_digest, verb=verb)


def reconcile_stage(
    stage: Stage, finding: Finding, *, actor: Actor, reason: str = "", key: str = "", plan_digest: str = ""
) -> Done:
    """needs_reconciliation → completed with the output given, ready again, or failed; of a stage the actor may see.

    Where a gate stands after the work it opens, and offers that output: whoever found it does not thereby decide it.
    Refused: `needs_reconciliation` while any of its effects is open, and for absent while one of this epoch is
    committed; another state; a run that is cancelled or past its deadline; committed without an output.
    """

    def carry_out(moves: Moves, run: RunRow, asked: Asked, plan: Plan) -> dict[str, Any]:
        row = moves.stages[stage.id]
        kept = _keep(row, None, finding, None, actor)
        _move_stage(moves, row, finding, reason or finding.note)
        moves.settle()
        moves.save()
        # it is about no single effect: it stays with the operation
        told = {} if finding.evidence is None else {"evidence": finding.evidence.as_json()}
        return {**_told(run, row, kept), **told}

    asked = ask_about_stage(stage, finding, reason=reason)
    verb = Verb(RESOLVE, "stage.reconcile", carry_out)
    return perform(asked, actor=actor, key=key, plan_digest=plan_digest, verb=verb)


def _asked(run_id: uuid.UUID, stage_id: uuid.UUID, effect_id: uuid.UUID | None, finding: Finding, reason: str) -> Asked:
    choices = {
        "effect_id": str(effect_id) if effect_id else None,
        "outcome": finding.outcome,
        "note": finding.note,
        "evidence": finding.evidence.as_json() if finding.evidence else None,
        "output": finding.output if finding.has_output else None,
        "has_output": finding.has_output,
    }
    return Asked(OperationKind.RECONCILE, run_id, stage_id, choices, reason or finding.note)


# below: under the run's lock, as planned


def _move_effect(moves: Moves, stage: StageRow, effect: Effect, action: str, note: str) -> None:
    origin, to = EffectState(effect.state), EFFECT_MOVES[action][EffectState(effect.state)]
    execute(
        "UPDATE pipelines_effect SET state = %s, settled_at = CASE WHEN %s THEN recourse_now() END WHERE id = %s",
        [to, to not in OPEN_EFFECT, effect.id],
    )
    effect.state = to
    told = event_data(effect.id, Identity(effect.effect_class, effect.step_id, effect.key))
    moves.event(f"effect.{action}", stage.run_id, stage.id, effect.attempt, origin, to, reason=note, data=told)


def _move_stage(moves: Moves, stage: StageRow, finding: Finding, reason: str) -> None:
    action = RECONCILING[finding.outcome]
    clean: dict[str, Any] = {"last_error_code": "", "last_error_message": "", "failure_disposition": ""}
    if finding.outcome == Outcome.COMMITTED:
        output = moves.output(stage, json.dumps(finding.output, separators=(",", ":")), attempt=None)
        if (stage.approval or {}).get("when") == "after":
            (attempt,) = moves.attempts("stage_id = %s AND number = %s", stage.id, stage.attempt_number)
            moves.stage(stage, OFFERING, reason=reason, **clean)
            moves.open_gate(stage, "after", attempt=attempt, output=output)
        else:
            moves.stage(stage, action, reason=reason, output_id=output, **clean)
    elif finding.outcome == Outcome.ABSENT:
        moves.stage(stage, action, reason=reason, **clean)
    else:
        code = stage.last_error_code or "CONTRADICTED"
        moves.stage(stage, action, reason=reason, failure_disposition="contradicted", last_error_code=code)


def _keep(
    stage: StageRow, effect: Effect | None, finding: Finding, evidence: EffectEvidence | None, actor: Actor
) -> Reconciliation:
    kept: Reconciliation = Reconciliation.objects.create(
        run_id=stage.run_id,
        stage_id=stage.id,
        effect=effect,
        outcome=finding.outcome,
        evidence=evidence,
        note=finding.note,
        user_id=cast(int, actor.user_id),  # people's alone
    )
    return kept


def _told(run: RunRow, stage: StageRow, kept: Reconciliation) -> dict[str, Any]:
    return {
        "reconciliation_id": str(kept.id),
        "outcome": kept.outcome,
        "stage_status": stage.state,
        "run_status": run.status,
    }
