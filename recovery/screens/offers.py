"""What a person could do to an operation or an effect now, and why not: pure; the verbs check again."""

from __future__ import annotations

from pipelines.access import RESOLVE, Actor
from pipelines.console.offers import Offer, missing_right
from pipelines.models import Effect
from pipelines.states import StageState
from recovery.decisions import RIGHTS
from recovery.models import Operation
from recovery.states import PENDING_OPERATION, OperationState


def for_operation(operation: Operation, actor: Actor) -> list[Offer]:
    """Letting it go on, or denying it."""
    refusal = _undecidable(operation, actor)
    return [
        Offer("operation-approve", "Let it go on…", operation.id, refusal),
        Offer("operation-reject", "Deny…", operation.id, refusal, danger=True),
    ]


def for_effect(effect: Effect, actor: Actor) -> list[Offer]:
    """Adding evidence, and saying what was found out; of a cancelled run's effects too. Where its stage waits for that,
    then of the stage."""
    refusal = "" if actor.may(RESOLVE) else missing_right(actor, RESOLVE)
    found = [
        Offer("effect-evidence", "Add evidence…", effect.id, refusal),
        Offer("effect-reconcile", "Reconcile…", effect.id, refusal),
    ]
    if effect.stage.state == StageState.NEEDS_RECONCILIATION:
        found.append(Offer("reconcile", "Reconcile the stage…", effect.stage_id, refusal))
    return found


def _undecidable(operation: Operation, actor: Actor) -> str:
    if operation.state not in PENDING_OPERATION:
        return f"It is {operation.get_state_display().lower().replace('_', ' ')}: there is nothing to decide."
    right = RIGHTS[OperationState(operation.state)]
    if not actor.may(right):
        return missing_right(actor, right)
    if operation.requested_by_id == actor.user_id:
        return "You asked for it: somebody else must look at it."
    return ""
