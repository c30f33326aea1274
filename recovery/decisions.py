"""Deciding operations that wait for somebody: in review, or awaiting approval. Four eyes, whichever way they come.

What is let go on is planned and judged again under the lock of its run: what was decided on is what is done, or nothing
is. Serves O45, F130, F131, F133, F138, model §2 Operation and §5.
"""

from __future__ import annotations

import uuid
from typing import cast

from django.db.models import Q, QuerySet

from pipelines.access import DECIDE, RESOLVE, Actor
from pipelines.audit import NO_OP, audited
from pipelines.errors import Refusal
from pipelines.moves import Moves, RunRow
from pipelines.transitions import lock_run
from recovery import forks, operations, world
from recovery.models import Operation, OperationDecision
from recovery.operations import Done
from recovery.plans import Plan, make_plan
from recovery.states import PENDING_OPERATION, Disposition, OperationState
from recovery.transitions import carry_on

# what a decision is about → the right that it needs
RIGHTS = {OperationState.REVIEW_REQUIRED: RESOLVE, OperationState.AWAITING_APPROVAL: DECIDE}


def waiting(actor: Actor) -> QuerySet[Operation]:
    """What waits for somebody's decision in the actor's workspace."""
    return _of_workspace(actor).filter(state__in=sorted(PENDING_OPERATION))


def find(operation_id: uuid.UUID, actor: Actor) -> Operation:
    """An operation that waits for a decision or got one; any other id is 404."""
    wanted = Q(state__in=sorted(PENDING_OPERATION)) | Q(decisions__isnull=False)
    found = _of_workspace(actor).filter(wanted, id=operation_id).distinct().first()
    if found is None:
        raise Refusal("not_found", "there is nothing of that id to decide")
    return found


def preview(operation: Operation) -> Plan:
    """What letting it go on would do now. Nothing is locked or written; refused when it waits no longer."""
    if operation.state not in PENDING_OPERATION:
        raise _final(operation)
    if operation.kind in forks.FORKS:
        return forks.plan_again(operation)[1]
    return make_plan(world.read(operation.run_id), operations.asked_of(operation))


def decide_operation(
    operation_id: uuid.UUID, *, actor: Actor, approved: bool, reason: str = "", plan_digest: str = ""
) -> Done:
    """Lets an operation go on, or denies it for good, by somebody who has the right and did not ask for it.

    Approved: a verb in place is carried out, a fork is reserved and dispatched; the disposition stays as recorded, with
    `resolved_by` where it was in review. Refused: `permission_denied`, `self_approval`, a rejection without a reason;
    `plan_changed` when the world moved: then it waits anew, with the new plan; `recovery_denied` when the verdict
    forbids it by now. The same decision by the same person changes nothing; any other is `gate_decision_conflict`.
    """
    operation = find(operation_id, actor)
    action = "operation.approve" if approved else "operation.reject"
    told = {"operation": str(operation_id), "kind": operation.kind}
    with audited(actor, action, run=operation.run_id, stage=operation.stage_id, reason=reason, **told) as entry:
        entry.on_behalf_of = operations.on_behalf_of(operation, actor)
        moves, run = lock_run(operation.run_id, actor)
        operation = Operation.objects.select_for_update(no_key=True).get(id=operation_id)
        entry.before, entry.plan_digest = {"operation": operation.state}, operation.plan_digest
        _check_right(operation, actor)
        if not approved and not reason:
            message = "a request is rejected only with a reason"
            raise Refusal("validation_error", message, errors={"reason": [message]})
        answer: Done | Refusal
        if _repeats(operation, actor, approved, reason):
            entry.outcome = NO_OP
            answer = operations.done(operation, replayed=True)
        elif approved:
            answer = _let_go_on(moves, run, operation, actor, reason, plan_digest)
        else:
            operations.move(operation, "deny")
            _keep(operation, actor, approved=False, reason=reason)
            operations.update(operation)
            answer = operations.done(operation)
        entry.after = {"operation": operation.state}
        if isinstance(answer, Refusal):
            entry.keep_refused(answer)
    if isinstance(answer, Refusal):
        raise answer
    if operation.state == OperationState.RESERVED:
        return forks.dispatch(operation, actor=actor)
    return answer


# below: under the locks of the run and of the operation


def _check_right(operation: Operation, actor: Actor) -> None:
    actor.require(RIGHTS.get(OperationState(operation.state), DECIDE))
    if operation.requested_by_id == actor.user_id:
        raise Refusal("self_approval", "who asked for it does not decide it; somebody else must look at it")


def _repeats(operation: Operation, actor: Actor, approved: bool, reason: str) -> bool:
    """Whether the actor decided just this before; a decision that is there already is final."""
    if operation.state in PENDING_OPERATION:
        return False
    mine = operation.decisions.filter(user_id=cast(int, actor.user_id)).first()
    if mine is not None and (mine.approved, mine.reason) == (approved, reason):
        return True
    raise _final(operation)


def _final(operation: Operation) -> Refusal:
    return Refusal("gate_decision_conflict", f"this request is {operation.state} already; a decision is final")


def _let_go_on(
    moves: Moves, run: RunRow, operation: Operation, actor: Actor, reason: str, plan_digest: str
) -> Done | Refusal:
    if plan_digest and plan_digest != operation.plan_digest:
        detail = "the plan that was looked at is not the one that waits by now"
        raise Refusal("plan_changed", detail, extra={"plan": operation.plan, "plan_digest": operation.plan_digest})
    if operation.kind in forks.FORKS:
        answer = _let_fork_go_on(operation, actor)
    else:
        answer = carry_on(moves, run, operation, actor=actor)
    if not isinstance(answer, Refusal):
        _keep(operation, actor, approved=True, reason=reason)
    return answer


def _let_fork_go_on(operation: Operation, actor: Actor) -> Done | Refusal:
    _, plan = forks.plan_again(operation)
    if plan.digest != operation.plan_digest:
        operations.judged_anew(operation, plan, actor)
        answer = operations.plan_changed(plan)
        if plan.verdict.disposition == Disposition.RECOVERY_DENIED:
            answer = operations.hold_back(operation)
        elif not plan.verdict.lets_go_on and operation.state == OperationState.AWAITING_APPROVAL:
            operations.move(operation, "ask_review")
        operations.update(operation)
        return answer
    was_in_review = operation.state == OperationState.REVIEW_REQUIRED
    forks.allow(operation, plan)
    try:
        forks.check_right(operation, agreed=True)
    except Refusal as refused:
        return forks.failed(operation, refused)
    if was_in_review:
        operation.resolved_by_id = actor.user_id
    operations.update(operation)
    return operations.done(operation)


def _keep(operation: Operation, actor: Actor, *, approved: bool, reason: str) -> None:
    who = cast(int, actor.user_id)  # people's alone
    OperationDecision.objects.create(operation=operation, user_id=who, approved=approved, reason=reason)


def _of_workspace(actor: Actor) -> QuerySet[Operation]:
    rows = Operation.objects.filter(workspace_id=actor.workspace_id)
    return rows.select_related("run", "stage", "requested_by", "resolved_by")
