"""Screens of operations: what was asked for and what came of it. What waits for others is decided in approvals."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from approvals.models import ApprovalRequest, RequestDecision
from pipelines import queries
from pipelines.access import DECIDE
from pipelines.console import overview
from pipelines.console.acts import Step
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.models import Run
from pipelines.paging import page_of, read_cut
from recovery.decision_checks import JUDGED
from recovery.filters import OperationFilter
from recovery.models import Operation
from recovery.queries import operations
from recovery.screens import plan_lines
from recovery.states import PENDING_OPERATION, OperationKind, OperationState


@require_safe
@screen
def operation_list(request: ScreenRequest) -> HttpResponse:
    """What people asked for in this workspace, newest first, narrowed by the address."""
    rows = OperationFilter.narrow(operations(request.visit.actor), request.GET).select_related("run", "stage")
    page = page_of(rows.defer("plan", "request", "result"), read_cut(request.GET))
    keys = overview.keys_of([operation.run_id for operation in page.rows])
    context = {
        "page": page,
        "rows": [(operation, keys.get(operation.run_id, "")) for operation in page.rows],
        "kinds": OperationKind.values,
        "states": OperationState.values,
        "judged": JUDGED,
    }
    return show(request, "recovery/operations.html", context)


@require_safe
@screen
def operation_page(request: ScreenRequest, operation_id: uuid.UUID) -> HttpResponse:
    """One operation: its plan, the verdict with its reasons, who decided what, and what came of it."""
    actor = request.visit.actor
    operation = operations(actor).filter(id=operation_id).select_related("run", "run__environment", "stage").first()
    if operation is None:
        raise Refusal("not_found", "there is no such operation")
    target = queries.visible_runs(actor).filter(id=operation.target).first() if operation.target else None
    asked = ApprovalRequest.objects.filter(subject=operation.id).order_by("-round").first()
    made = RequestDecision.objects.filter(request__subject=operation.id).select_related("user", "request")
    context = {
        "operation": operation,
        "steps": plan_lines.deeds(operation.plan) if operation.plan else [],
        "verdict": [*_verdict(operation), *(plan_lines.agreements(operation.plan) if operation.plan else ())],
        "asked": asked,
        "waits": operation.state in PENDING_OPERATION,
        "may_decide": actor.may(DECIDE),
        "decisions": list(made.order_by("at", "id")),
        "target": target,
    }
    return show(request, "recovery/operation.html", context)


def _verdict(operation: Operation) -> list[Step]:
    """Its verdict; nothing for a verb that is never judged, since it repeats nothing outside."""
    if operation.kind not in JUDGED:
        return []
    return plan_lines.verdict({"disposition": operation.disposition, "reasons": operation.reasons})


def recent(run: Run, most: int) -> Sequence[Operation]:
    """The newest operations on a run, one more than `most` where there are more."""
    rows = Operation.objects.filter(run=run).select_related("requested_by", "stage")
    return list(rows.defer("plan", "request", "result").order_by("-created_at", "-id")[: most + 1])
