"""Deciding gates. The application's own answer and a person's go through the same function."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from approvals.four_eyes import Approval, Question, Voter, counted, voters, why_not
from approvals.votes import asked_by_gate, requesters_of
from pipelines import pinned
from pipelines.access import DECIDE, Actor
from pipelines.audit import NO_OP, audited, standing
from pipelines.errors import Refusal
from pipelines.models import Attempt, Gate, GateDecision, GateMoment, Run
from pipelines.moves import DEADLINE_EXCEEDED, Moves, RunRow, StageRow
from pipelines.sql import query
from pipelines.states import GateState, NoticeKind, RunStatus
from pipelines.transitions import lock_run

DECIDED = frozenset({GateState.APPROVED, GateState.REJECTED})


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a decision on a stage's gate. While fewer than `need` approvals count it stays open; `replayed`: it
    was decided so by the same before."""

    stage_id: uuid.UUID
    stage_state: str
    approved: bool
    reason: str
    gate_id: uuid.UUID
    gate_state: str
    have: int
    need: int
    replayed: bool


def decide_gate(
    stage_id: uuid.UUID, *, actor: Actor, approved: bool, reason: str = "", gate_id: uuid.UUID | None = None
) -> Decision:
    """Approves or rejects the gate for which a stage waits; with `gate_id`, that one and no other.

    The last approval that it needs closes it, and so does one rejection. After the work: waiting → completed with the
    output it offered; before it: waiting → ready. Rejected: failed with `gate_denied`, final in this run. The same
    decision and reason by the same decider again changes nothing; another from them, or any about a decided gate, is
    `gate_decision_conflict`.

    Who may not decide: `permission_denied`, also an application where a person is required; who asked for it:
    `self_approval`. Expired: `approval_stale`; cancelled run: `execution_state_invalid`; past the deadline:
    `deadline_exceeded`; not waiting: `stage_state_invalid`; an approval in a run that no longer stands on what it
    pinned: `definition_changed`. People give a reason to reject. Serves P78–P83, I9, F130,
    F131, F133, F135, F136, F138.
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
        ballot = _ballot(moves, stage, gate_id, actor)
        gate, mine = ballot.gate, ballot.mine
        entry.data |= {"gate": str(gate.id), "need": gate.count}
        repeats = mine is not None and (mine.approved, mine.reason) == (approved, reason)
        if not (repeats and gate.state in DECIDED):
            _check_right(ballot)
            if actor.is_person and not approved and not reason.strip():
                raise Refusal(
                    "validation_error", "a rejection needs a reason", errors={"reason": ["must not be blank"]}
                )
            _check_open(ballot)
            if approved:
                pinned.require(run.id)
            if mine is not None and not repeats:
                raise Refusal("gate_decision_conflict", "you decided about this gate already, and a decision is final")
        if repeats:
            entry.outcome = NO_OP
        else:
            _decide(ballot, approved, reason)
            entry.after = standing(run, stage)
        have = ballot.have()
        entry.data["have"] = have
    return Decision(stage_id, stage.state, approved, reason, gate.id, gate.state, have, gate.count, repeats)


@dataclass(slots=True)
class _Ballot:
    """A gate of a locked run, what was decided about it so far, and who wants to decide now.

    `voter` is the person as the member that they are by now, whatever their session says.
    """

    moves: Moves
    stage: StageRow
    gate: Gate
    question: Question
    decisions: list[GateDecision]
    actor: Actor
    voter: Voter | None

    @property
    def run(self) -> RunRow:
        return self.moves.runs[self.stage.run_id]

    @property
    def mine(self) -> GateDecision | None:
        who = (self.actor.user_id, self.actor.application_id)
        return next((one for one in self.decisions if (one.user_id, one.application_id) == who), None)

    def have(self) -> int:
        """How many approvals count: all that were needed, once it is approved."""
        if self.gate.state == GateState.APPROVED:
            return self.gate.count
        given = [Approval(one.user_id, one.member) for one in self.decisions if one.approved and one.user_id]
        people = voters(self.gate.workspace_id, [one.user_id for one in given]) if given else {}
        return counted(self.question, given, people)


def _ballot(moves: Moves, stage: StageRow, gate_id: uuid.UUID | None, actor: Actor) -> _Ballot:
    """The gate that is meant: the one named, or the newest of the stage's epoch. Refused when there is none."""
    gates = Gate.objects.filter(stage_id=stage.id)
    gates = gates.filter(id=gate_id) if gate_id else gates.filter(epoch=stage.epoch)
    gate = gates.order_by("-opened_at", "-id").first()
    if gate is None:
        if gate_id:
            raise Refusal("not_found", "there is no such gate")
        _check_run(moves.runs[stage.run_id], moves)
        raise Refusal("stage_state_invalid", "this stage does not wait for a decision")
    run = Run.objects.only("requesters", "recovered_from_id").get(id=stage.run_id)
    question = asked_by_gate(gate, requesters_of(run))
    voter = voters(gate.workspace_id, [actor.user_id]).get(actor.user_id) if actor.user_id is not None else None
    return _Ballot(moves, stage, gate, question, list(gate.decisions.order_by("id")), actor, voter)


def _check_right(ballot: _Ballot) -> None:
    """Four eyes; of an application only that no person is required: its own stages are all that it can name."""
    if not ballot.actor.is_person:
        if ballot.gate.require_person:
            raise Refusal("permission_denied", "this gate requires a person; an application does not decide it")
        return
    refused = why_not(ballot.question, ballot.voter)
    if refused is not None:
        raise refused


def _check_run(run: RunRow, moves: Moves) -> None:
    if run.failure_code == DEADLINE_EXCEEDED or run.is_past_deadline(moves.now):
        raise Refusal("deadline_exceeded", "the run passed its deadline; start a newly approved run")
    if run.status == RunStatus.CANCELLED:
        raise Refusal("execution_state_invalid", "the run was cancelled")


def _check_open(ballot: _Ballot) -> None:
    """Refuses a decision about a gate that takes none, saying why."""
    gate = ballot.gate
    if gate.state in DECIDED:
        raise Refusal("gate_decision_conflict", f"this gate was already {gate.state}; a decision is final")
    _check_run(ballot.run, ballot.moves)
    if gate.state == GateState.CANCELLED:
        raise Refusal("stage_state_invalid", "this gate was cancelled; the stage does not wait for it")
    if gate.state == GateState.EXPIRED or (gate.expires_at is not None and gate.expires_at <= ballot.moves.now):
        raise Refusal("approval_stale", "this gate expired; silence never consents")
    newest = Attempt.objects.filter(stage_id=gate.stage_id, number=ballot.stage.attempt_number)
    if gate.attempt and (gate.attempt, gate.request_digest) not in newest.values_list("id", "request_digest"):
        raise Refusal("stale_execution", "this gate is about another attempt than the stage's newest")


def _decide(ballot: _Ballot, approved: bool, reason: str) -> None:
    """Keeps the decision, and closes the gate when that settles it."""
    moves, stage, gate, actor, voter = ballot.moves, ballot.stage, ballot.gate, ballot.actor, ballot.voter
    decision = GateDecision.objects.create(
        gate=gate,
        user_id=actor.user_id,
        application_id=actor.application_id,
        member=voter.member if voter else None,
        role=voter.role if voter else "",
        approved=approved,
        reason=reason,
        at=moves.now,
    )
    ballot.decisions.append(decision)
    have = ballot.have() if actor.is_person else gate.count
    told = {"gate": str(gate.id), "have": have, "need": gate.count}
    if approved and have < gate.count:
        moves.event("gate.vote", stage.run_id, stage.id, reason=reason, data=told)
        moves.save()
        return
    if approved:
        gate.state = GateState.APPROVED
        moves.close_gate(gate.id, stage, "approve", reason=reason)
        if gate.moment == GateMoment.AFTER:
            moves.stage(stage, "approve_after", reason=reason, output_id=gate.output)
        else:
            moves.stage(stage, "approve_before", reason=reason)
    else:
        gate.state = GateState.REJECTED
        moves.close_gate(gate.id, stage, "reject", reason=reason)
        message = reason or "rejected without a reason"
        trouble = {"last_error_code": "gate_denied", "last_error_message": message}
        moves.stage(stage, "deny", reason=reason, failure_disposition="gate_denied", **trouble)
    facts = {"approved": approved, "by": actor.name, "have": ballot.have(), "need": gate.count}
    moves.notice(NoticeKind.DECIDED, stage.run_id, stage.id, gate.id, facts)
    moves.settle()
    moves.save()
