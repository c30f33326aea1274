"""Screens of operations: what was asked for and what came of it, and the inbox of those that wait for a decision."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from approvals.models import RequestDecision
from pipelines import queries
from pipelines.access import DECIDE
from pipelines.console.acts import Act, Step, answer_of, ask
from pipelines.console.offers import Offer
from pipelines.console.screens import ScreenRequest, go_on, screen, show
from pipelines.errors import Refusal
from pipelines.models import Run
from pipelines.paging import page_of, read_cut
from recovery import decisions
from recovery.filters import OperationFilter
from recovery.models import Operation
from recovery.operations import JUDGED
from recovery.queries import operations
from recovery.screens import offers, plan_lines
from recovery.states import PENDING_OPERATION, OperationKind, OperationState

acting = require_http_methods(["GET", "HEAD", "POST"])
STEPS_IN_LIST = 3


@dataclass(frozen=True, slots=True)
class Waiting:
    """A line of the inbox: what it would do, at a glance, and what one may decide."""

    operation: Operation
    steps: list[Step]
    offers: list[Offer]


@require_safe
@screen
def operation_list(request: ScreenRequest) -> HttpResponse:
    """What people asked for in this workspace, newest first, narrowed by the address."""
    rows = OperationFilter.narrow(operations(request.visit.actor), request.GET).select_related("run", "stage")
    page = page_of(rows.defer("plan", "request", "result"), read_cut(request.GET))
    context = {"page": page, "kinds": OperationKind.values, "states": OperationState.values, "judged": JUDGED}
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
    made = RequestDecision.objects.filter(request__subject=operation.id).select_related("user").order_by("at", "id")
    context = {
        "operation": operation,
        "steps": plan_lines.deeds(operation.plan) if operation.plan else [],
        "verdict": [*_verdict(operation), *(plan_lines.agreements(operation.plan) if operation.plan else ())],
        "decisions": list(made),
        "target": target,
        "offers": offers.for_operation(operation, actor) if operation.state in PENDING_OPERATION else [],
    }
    return show(request, "recovery/operation.html", context)


@require_safe
@screen
def approvals(request: ScreenRequest) -> HttpResponse:
    """What waits for somebody's decision, newest first: the request, what it would do, and whether one may decide."""
    actor = request.visit.actor
    page = page_of(decisions.waiting(actor), read_cut(request.GET))
    lines = [Waiting(one, _gist(one), offers.for_operation(one, actor)) for one in page.rows]
    return show(request, "recovery/approvals.html", {"page": page, "lines": lines})


@acting
@screen
def approve(request: ScreenRequest, operation_id: uuid.UUID) -> HttpResponse:
    """Shows the same plan that was asked for, then lets it go on: planned and judged once more (O45, F130)."""
    return _decide(request, operation_id, approved=True)


@acting
@screen
def reject(request: ScreenRequest, operation_id: uuid.UUID) -> HttpResponse:
    """Denies it for good, with a reason."""
    return _decide(request, operation_id, approved=False)


def _decide(request: ScreenRequest, operation_id: uuid.UUID, *, approved: bool) -> HttpResponse:
    actor = request.visit.actor
    operation = decisions.find(operation_id, actor)
    act = _act(operation, approved)
    reason = " ".join(request.POST.get("reason", "").split())
    if request.method != "POST":
        if why_not := offers.for_operation(operation, actor)[0].refusal:
            return ask(request, replace(act, is_possible=False), reason, Refusal("permission_denied", why_not))
        return ask(request, act, reason)
    try:
        answer_of(act, reason)
        done = decisions.decide_operation(
            operation_id, actor=actor, approved=approved, reason=reason, plan_digest=request.POST.get("shown", "")
        )
    except Refusal as refusal:
        if refusal.status == 404 or refusal.code == "permission_denied":
            raise
        now = _act(decisions.find(operation_id, actor), approved)
        return ask(request, _compared(act, now), reason, refusal)
    return go_on(request, _told(request, operation, approved, done.status, done.result.get("execution_id")))


def _told(request: ScreenRequest, operation: Operation, approved: bool, status: str, target: str | None) -> str:
    word = f"The {operation.kind} of {operation.run.name}"
    if not approved:
        messages.success(request, f"{word} is denied.", "denied")
    elif target:
        messages.success(request, f"{word} goes on as this run.", status)
        return reverse("console:run", args=[target])
    else:
        messages.success(request, f"{word} is done.", status)
    return reverse("console:operation", args=[operation.id])


def _act(operation: Operation, approved: bool) -> Act:
    stage = f" of {operation.stage.name}" if operation.stage else ""
    what = f"the {operation.kind}{stage} of {operation.run.name}"
    return Act(
        title=f"{'Let' if approved else 'Deny'} {what}{' go on' if approved else ''}",
        needs=decisions.RIGHTS.get(OperationState(operation.state), DECIDE),
        steps=_steps(operation) if approved else [Step("denied", "Ends", f"{what}: it will not be done")],
        button="Let it go on" if approved else "Deny it",
        back=reverse("console:operation", args=[operation.id]),
        facts=[
            ("Asked for by", operation.requested_by.get_username()),
            ("Because", operation.reason or "no reason was given"),
        ],
        danger=not approved,
        reason_required=not approved,
        shown=operation.plan_digest,
        digest=operation.plan_digest,
    )


def _compared(before: Act, now: Act) -> Act:
    """The act as it is now; where its plan moved, with what is new in it marked."""
    if before.digest == now.digest:
        return now
    marked = [step if step in before.steps else replace(step, is_new=True) for step in now.steps]
    return replace(now, steps=marked, gone=[step for step in before.steps if step not in now.steps], moved=True)


def _steps(operation: Operation) -> list[Step]:
    """The plan as it was shown; of an operation without one, its verdict."""
    return plan_lines.lines(operation.plan) if operation.plan else _verdict(operation)


def _verdict(operation: Operation) -> list[Step]:
    """Its verdict; nothing for a verb that is never judged, since it repeats nothing outside."""
    if operation.kind not in JUDGED:
        return []
    return plan_lines.verdict({"disposition": operation.disposition, "reasons": operation.reasons})


def _gist(operation: Operation) -> list[Step]:
    """The first lines, what may repeat and why it waits before what is kept."""
    telling = [step for step in _steps(operation) if step.word not in ("Kept", "Verdict")]
    return sorted(telling, key=lambda step: step.word not in ("Because", "May repeat"))[:STEPS_IN_LIST]


def recent(run: Run, most: int) -> Sequence[Operation]:
    """The newest operations on a run, one more than `most` where there are more."""
    rows = Operation.objects.filter(run=run).select_related("requested_by", "stage")
    return list(rows.defer("plan", "request", "result").order_by("-created_at", "-id")[: most + 1])
