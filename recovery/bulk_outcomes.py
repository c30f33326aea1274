"""What becomes of a bulk's target, told from what the single verb answers; pure.

What others agreed to for the whole bulk counts for each target. Where a rule asks for more, or a verdict holds it back,
the target is denied and nobody is asked: one by one it may be (I11).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from approvals.rules import DECIDING_ROLES, Requirement
from pipelines.errors import Refusal
from recovery import agreements
from recovery.models import BulkOperation
from recovery.plans import Plan
from recovery.states import BulkItemState, Disposition

NO_CHANGE = "no_op"
# it stands otherwise by its turn: the verb has nothing to do there
PASSED_BY = frozenset({"execution_state_invalid", "stage_state_invalid", "deadline_exceeded", "not_found"})
# a right, a verdict, a rule or a limit says no
FORBIDDEN = frozenset(
    {
        "permission_denied",
        "operator_review_required",
        "recovery_denied",
        "gate_denied",
        "needs_reconciliation",
        "approval_stale",
        "attempts_exhausted",
        "budget_exhausted",
        "definition_changed",
    }
)


class Held(Exception):
    """A blackout holds the whole bulk; nothing was done or written."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Item:
    """A pending target, whose row is locked."""

    id: int
    position: int
    run: uuid.UUID
    stage: uuid.UUID | None
    dead_letter: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a target. `operation` is what it was carried out as, `made` the run that a fork made of it."""

    state: BulkItemState
    code: str = ""
    message: str = ""
    operation: uuid.UUID | None = None
    made: str | None = None


def key_of(bulk: BulkOperation, item: Item) -> str:
    """The key of the operation that the target is carried out as; nobody else can have it."""
    return f"bulk:{bulk.id}:{item.position}"


def nothing_to_do(status: str) -> Outcome:
    """The outcome of a target whose run already is as the verb would make it."""
    return Outcome(BulkItemState.SKIPPED, NO_CHANGE, f"it is {status} already")


def refused(refusal: Refusal) -> Outcome:
    """The outcome of a target that the single verb refuses."""
    if refusal.code in PASSED_BY:
        return Outcome(BulkItemState.SKIPPED, refusal.code, refusal.detail)
    state = BulkItemState.DENIED if refusal.code in FORBIDDEN else BulkItemState.FAILED
    return Outcome(state, refusal.code, refusal.detail)


def held_back(bulk: BulkOperation, plan: Plan) -> Refusal | None:
    """Why this target is not done in a bulk: its verdict, or agreement that the bulk has not."""
    verdict = plan.verdict
    if not verdict.lets_go_on:
        is_denied = verdict.disposition == Disposition.RECOVERY_DENIED
        why = f": {verdict.reasons[0].text}" if verdict.reasons else ""
        detail = f"this is denied{why}" if is_denied else f"a person must look at this one by itself{why}"
        told = {"disposition": verdict.disposition, "reasons": verdict.reasons_json()}
        return Refusal("recovery_denied" if is_denied else "operator_review_required", detail, extra=told)
    if plan.agreements and not covers(bulk, plan):
        one = plan.agreements[0]
        return Refusal("approval_stale", f"others must agree to this one by itself: {one.why}")
    return None


def covers(bulk: BulkOperation, plan: Plan) -> bool:
    """Whether what others agreed to for the whole bulk is all that this target needs."""
    given = agreements.frozen_in(bulk.plan or {"approvals": ()})
    needed = agreements.frozen_in(plan.as_json())
    return needed is None or (given is not None and _is_enough(given, needed))


def _is_enough(given: Requirement, needed: Requirement) -> bool:
    rank = DECIDING_ROLES.index
    return rank(given.role) >= rank(needed.role) and given.count >= needed.count
