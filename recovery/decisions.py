"""What waits for somebody's decision, as the present screens and routes ask for it: by its operation."""

from __future__ import annotations

import uuid

from django.db.models import Exists, OuterRef, QuerySet

from approvals import requests
from approvals.models import ApprovalRequest
from pipelines.access import DECIDE, RESOLVE, Actor
from pipelines.errors import Refusal
from recovery import operations
from recovery.models import Operation
from recovery.operations import Done
from recovery.states import PENDING_OPERATION, OperationState

# what a decision is about → the right that it needs
RIGHTS = {OperationState.REVIEW_REQUIRED: RESOLVE, OperationState.AWAITING_APPROVAL: DECIDE}


def waiting(actor: Actor) -> QuerySet[Operation]:
    """What waits for somebody's decision in the actor's workspace."""
    return _of_workspace(actor).filter(state__in=sorted(PENDING_OPERATION))


def find(operation_id: uuid.UUID, actor: Actor) -> Operation:
    """An operation that waits for a decision or got one; any other id is 404."""
    asked = Exists(ApprovalRequest.objects.filter(subject=OuterRef("id")))
    found = _of_workspace(actor).filter(asked, id=operation_id).first()
    if found is None:
        raise Refusal("not_found", "there is nothing of that id to decide")
    return found


def decide_operation(
    operation_id: uuid.UUID, *, actor: Actor, approved: bool, reason: str = "", plan_digest: str = ""
) -> Done:
    answer = requests.decide_request(
        operation_id, actor=actor, approved=approved, reason=reason, plan_digest=plan_digest
    )
    return operations.done(Operation.objects.get(id=operation_id), replayed=answer.replayed)


def _of_workspace(actor: Actor) -> QuerySet[Operation]:
    rows = Operation.objects.filter(workspace_id=actor.workspace_id)
    return rows.select_related("run", "stage", "requested_by", "resolved_by")
