"""The operations API's routes for what waits for somebody's decision (contract §3)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from approvals.requests import preview
from pipelines.access import DECIDE, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb, page_answer
from pipelines.api.operations_serializers import time
from pipelines.api.shapes import AnyJson, Flag, Identifier, ListOf, Moment, OneOf, Shape, Text
from pipelines.paging import page_of, read_cut
from recovery.decisions import decide_operation, find, waiting
from recovery.models import Operation
from recovery.operations import Done
from recovery.serializers import ReasonView, or_plan
from recovery.states import Disposition, OperationKind, OperationState


class ApprovalItem(Shape):
    """One request that waits: an operation in review or awaiting approval. `plan` is what would be done."""

    id = Identifier()
    type = OneOf(["operation"])
    operation_id = Identifier()
    kind = OneOf(OperationKind.values)
    execution_id = Identifier()
    execution_name = Text(blank=True)
    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    reasons = ListOf(child=ReasonView())
    plan = AnyJson(allow_null=True)
    plan_digest = Text(allow_null=True)
    requested_by = Text()
    reason = Text(allow_null=True)
    created_at = Moment()
    may_decide = Flag(help_text="whether you may: you have the right, and did not ask for it")


class DecisionRequest(PlannedVerb):
    """A reason is required to reject. A dry run answers what letting it go on would do now."""

    approved = Flag()


class DecisionAnswer(Shape):
    id = Identifier()
    operation_id = Identifier()
    execution_id = Identifier(help_text="the run that was asked about")
    target_execution_id = Identifier(allow_null=True)
    approved = Flag()
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    replayed = Flag()
    plan_digest = Text(allow_null=True)


class Approvals(OperationsEndpoint):
    """What waits for a decision, newest first."""

    access = {"GET": VIEW}

    @extend_schema(parameters=list_parameters(), responses=wire.listed(ApprovalItem))
    def get(self, call: Call) -> HttpResponse:
        page = page_of(waiting(call.actor), read_cut(call.params))
        return page_answer(call.request, page, [approval_item(one, call.actor) for one in page.rows])


class Decision(OperationsEndpoint):
    """Approves or rejects; what is approved is done at once, as it was planned."""

    access = {"POST": DECIDE}
    bodies = {"POST": DecisionRequest}
    actions = {"POST": "operation.decide"}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Operation:
        return find(ids["approval_id"], actor)

    @extend_schema(request=DecisionRequest, responses=or_plan(DecisionAnswer))
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; the same decision again changes nothing, so there is nothing to remember
        if call.is_dry_run:
            return answer(dict(preview(call.target.id, actor=call.actor).plan))
        approved: bool = call.body["approved"]
        done = decide_operation(
            call.target.id,
            actor=call.actor,
            approved=approved,
            reason=call.reason,
            plan_digest=call.plan_digest,
        )
        return answer(decision_answer(done, approved=approved))


def approval_item(operation: Operation, actor: Actor) -> dict[str, Any]:
    return {
        "id": str(operation.id),
        "type": "operation",
        "operation_id": str(operation.id),
        "kind": operation.kind,
        "execution_id": str(operation.run_id),
        "execution_name": operation.run.name,
        "stage_id": str(operation.stage_id) if operation.stage_id else None,
        "stage": operation.stage.name if operation.stage else None,
        "status": operation.state,
        "disposition": operation.disposition,
        "reasons": operation.reasons,
        "plan": operation.plan,
        "plan_digest": operation.plan_digest or None,
        "requested_by": operation.requested_by.get_username(),
        "reason": operation.reason or None,
        "created_at": time(operation.created_at),
        "may_decide": actor.may(DECIDE) and operation.requested_by_id != actor.user_id,
    }


def decision_answer(done: Done, *, approved: bool) -> dict[str, Any]:
    return {
        "id": str(done.operation_id),
        "operation_id": str(done.operation_id),
        "execution_id": str(done.run_id),
        "target_execution_id": done.result.get("execution_id"),
        "approved": approved,
        "status": done.status,
        "disposition": done.disposition,
        "replayed": done.replayed,
        "plan_digest": done.plan_digest or None,
    }


urlpatterns = [
    path("approvals", Approvals.as_view()),
    path("approvals/<str:approval_id>/decision", Decision.as_view()),
]
