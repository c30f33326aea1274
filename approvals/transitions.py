"""Deciding gates. The application's own answer and a person's go through the same function."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from pipelines.access import DECIDE, Actor
from pipelines.audit import NO_OP, audited, standing
from pipelines.errors import Refusal
from pipelines.models import Gate, GateDecision, GateMoment
from pipelines.moves import RunRow
from pipelines.sql import query
from pipelines.states import GateState, RunStatus
from pipelines.transitions import lock_run


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a decision on a stage's gate."""

    stage_id: uuid.UUID
    stage_state: str
    approved: bool
    reason: str


def decide_gate(stage_id: uuid.UUID, *, actor: Actor, approved: bool, reason: str = "") -> Decision:
    """Approves or rejects the gate for which a stage waits.

    After the work: waiting → completed with the output it offered; before it: waiting → ready. Rejected: failed with
    `gate_denied`, final in this run. The same decision and reason by the same decider again changes nothing; another is
    `gate_decision_conflict`. Expired: `approval_stale`; cancelled run: `execution_state_invalid`; past the deadline:
    `deadline_exceeded`; not waiting: `stage_state_invalid`. Serves P78–P82, I9, F136, F138.
    """
    found = query(
        "SELECT s.run_id FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id"
        " WHERE s.id = %s AND r.workspace_id = %s AND r.application_id = coalesce(%s, r.application_id)"
        " AND r.environment_id = coalesce(%s, r.environment_id)",
        [stage_id, actor.workspace_id, actor.application_id, actor.environment_id],
    )
    if not found:
        raise Refusal("not_found", "there is no such stage")
    action = "gate.approve" if approved else "gate.reject"
    with audited(actor, action, run=found[0][0], stage=stage_id, reason=reason) as entry:
        moves, run = lock_run(found[0][0], actor)
        actor.require(DECIDE)
        stage = moves.stages[stage_id]
        entry.before = standing(run, stage)
        gate = Gate.objects.filter(stage_id=stage_id, epoch=stage.epoch).order_by("-opened_at", "-id").first()
        if gate is not None and _repeats(gate, actor, approved, reason):
            entry.outcome = NO_OP
            return Decision(stage_id, stage.state, approved, reason)
        gate = _open_gate(gate, run, moves.now)
        GateDecision.objects.create(
            gate=gate,
            user_id=actor.user_id,
            application_id=actor.application_id,
            approved=approved,
            reason=reason,
            at=moves.now,
        )
        if not approved:
            moves.close_gate(gate.id, stage, "reject", reason=reason)
            message = reason or "rejected without a reason"
            trouble = {"last_error_code": "gate_denied", "last_error_message": message}
            moves.stage(stage, "deny", reason=reason, failure_disposition="gate_denied", **trouble)
        else:
            moves.close_gate(gate.id, stage, "approve", reason=reason)
            if gate.moment == GateMoment.AFTER:
                moves.stage(stage, "approve_after", reason=reason, output_id=gate.output)
            else:
                moves.stage(stage, "approve_before", reason=reason)
        moves.settle()
        moves.save()
        entry.after = standing(run, stage)
    return Decision(stage_id, stage.state, approved, reason)


def _repeats(gate: Gate, actor: Actor, approved: bool, reason: str) -> bool:
    """Whether this is the decision that closed the gate, told again; another one about a decided gate is a conflict."""
    if gate.state not in (GateState.APPROVED, GateState.REJECTED):
        return False
    last = gate.decisions.order_by("-id").first()
    if (
        last is not None
        and (last.user_id, last.application_id) == (actor.user_id, actor.application_id)
        and last.approved == approved
        and last.reason == reason
    ):
        return True
    raise Refusal("gate_decision_conflict", f"this gate was already {gate.state}; a decision is final")


def _open_gate(gate: Gate | None, run: RunRow, now: datetime) -> Gate:
    """The gate, if it may still be decided; else the refusal that says why not."""
    if run.failure_code == "deadline_exceeded" or (run.deadline_at is not None and run.deadline_at <= now):
        raise Refusal("deadline_exceeded", "the run passed its deadline; start a newly approved run")
    if run.status == RunStatus.CANCELLED:
        raise Refusal("execution_state_invalid", "the run was cancelled")
    if gate is None or gate.state == GateState.CANCELLED:
        raise Refusal("stage_state_invalid", "this stage does not wait for a decision")
    if gate.state == GateState.EXPIRED or (gate.expires_at is not None and gate.expires_at <= now):
        raise Refusal("approval_stale", "this gate expired; silence never consents")
    return gate
