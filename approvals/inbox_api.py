"""The operations API's routes for what waits for people: the inbox, deciding and withdrawing (contract §3)."""

from __future__ import annotations

import uuid
from typing import Any, cast

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema

from approvals import inbox, requests
from approvals.inbox import ASKED, GATE, MINE, OPERATION, TYPES, VIEWS, WAITING, Item, Verdict
from approvals.requests import Answer
from approvals.rules import DECIDING_ROLES
from approvals.states import RequestCause, RequestState
from approvals.transitions import decide_gate
from pipelines.access import DECIDE, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb, Verb, page_answer
from pipelines.api.operations_serializers import HUGE, time
from pipelines.api.shapes import AnyJson, Flag, Identifier, JsonObject, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.errors import Refusal
from pipelines.filters import chosen
from pipelines.models import GateMoment
from pipelines.paging import read_cut
from pipelines.states import GateState, StageState

STATES = list(dict.fromkeys([*GateState.values, *RequestState.values]))


class DecisionView(Shape):
    """What somebody decided. `counts` is false once they left, or got another role."""

    decided_by = Text()
    role = Text(allow_null=True, help_text="theirs at that time; none of an application")
    approved = Flag()
    reason = Text(allow_null=True)
    at = Moment()
    counts = Flag()


class WhyNotView(Shape):
    """Why you may not decide it, with the code of the refusal."""

    code = Text()
    detail = Text()


class ApprovalItem(Shape):
    """A gate, or a request for agreement to an operation. `plan` is what would be done, as it was judged and shown."""

    id = Identifier(help_text="of a request its operation's")
    type = OneOf(TYPES)
    kind = Text(help_text="the operation's; of a gate `gate`")
    operation_id = Identifier(allow_null=True)
    execution_id = Identifier(allow_null=True)
    execution_name = Text(blank=True)
    environment = Text(blank=True)
    pipeline = Text(allow_null=True)
    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    status = Text(help_text="the operation's; of a gate its state")
    state = OneOf(STATES, help_text="of the gate or the request itself")
    cause = OneOf(RequestCause.values, allow_null=True, help_text="what a request waits for")
    moment = OneOf(GateMoment.values, allow_null=True, help_text="of a gate: before the stage's work or after it")
    epoch = Whole(min_value=1, max_value=HUGE, allow_null=True, help_text="of a gate")
    attempt_id = Identifier(allow_null=True, help_text="of a gate after the work: whose result is offered")
    require_person = Flag(help_text="whether the owning application may not decide it")
    round = Whole(min_value=1, max_value=HUGE, help_text="how often a request was asked anew, with another plan")
    disposition = Text(allow_null=True)
    reasons = ListOf(child=JsonObject(max_bytes=HUGE))
    plan = AnyJson(allow_null=True)
    plan_digest = Text(allow_null=True)
    requested_by = Text(allow_null=True, help_text="null when nobody knows any more")
    reason = Text(allow_null=True)
    why = ListOf(child=Text(), help_text="what asks for agreement")
    created_at = Moment(help_text="when it was asked for; who got their role later may not decide")
    opened_at = Moment(help_text="when this round was")
    expires_at = Moment(allow_null=True)
    closed_at = Moment(allow_null=True)
    approver_role = OneOf(DECIDING_ROLES, help_text="it, or a higher one")
    need = Whole(min_value=1, max_value=HUGE)
    have = Whole(min_value=0, max_value=HUGE, help_text="how many of those agreed; of what waits: whose word counts")
    decisions = ListOf(child=DecisionView())
    may_decide = Flag(help_text="whether you may, now")
    why_not = WhyNotView(allow_null=True)
    may_withdraw = Flag(help_text="whether you may: you asked for it, and it waits")


class DecisionRequest(PlannedVerb):
    """A reason is required to reject. A dry run answers what it would do now."""

    approved = Flag()


class WithdrawRequest(Verb):
    later = ()


class Standing(Shape):
    """Where a gate or a request stands. `status` is the operation's; of a gate its state."""

    id = Identifier()
    type = OneOf(TYPES)
    operation_id = Identifier(allow_null=True)
    execution_id = Identifier(allow_null=True, help_text="the run that was asked about")
    stage_id = Identifier(allow_null=True)
    status = Text()
    state = OneOf(STATES)
    disposition = Text(allow_null=True)
    round = Whole(min_value=1, max_value=HUGE)
    have = Whole(min_value=0, max_value=HUGE)
    need = Whole(min_value=1, max_value=HUGE)
    expires_at = Moment(allow_null=True)
    plan_digest = Text(allow_null=True)
    replayed = Flag()


class DecisionAnswer(Standing):
    """Where it stands after the decision: `open` while more people must agree."""

    approved = Flag()
    target_execution_id = Identifier(allow_null=True, help_text="the new run of a fork")
    stage_status = OneOf(StageState.values, allow_null=True, help_text="of a gate")


class GatePreview(Shape):
    """What a decision on a gate would do now: to the gate, and to its stage."""

    id = Identifier()
    type = OneOf([GATE])
    execution_id = Identifier()
    stage_id = Identifier()
    stage = Text()
    approved = Flag()
    state = OneOf(GateState.values)
    stage_status = OneOf(StageState.values)
    have = Whole(min_value=0, max_value=HUGE)
    need = Whole(min_value=1, max_value=HUGE)


class GivenView(Shape):
    """What who asks wrote for the stage, in full; a plan holds the digest of it alone."""

    what = OneOf(("input", "output", "override_reason"))
    text = Text(blank=True)


class RequestPreview(Shape):
    """The plan of an operation as it is now, in full as a dry run of the verb itself tells it."""

    kind = Text()
    execution_id = Identifier()
    disposition = Text()
    plan_digest = Text()
    given = GivenView(required=False)


DECIDED = PolymorphicProxySerializer(
    "DecisionAnswerOrPreview", [DecisionAnswer, GatePreview, RequestPreview], resource_type_field_name=None
)


class Approvals(OperationsEndpoint):
    """What waits for people, what you may decide now, what you asked for, or what was decided; newest first."""

    access = {"GET": VIEW}
    filters = ("view", "type")
    for_key = True

    @extend_schema(
        parameters=[
            OpenApiParameter("view", OpenApiTypes.STR, enum=VIEWS, default=WAITING),
            OpenApiParameter("type", OpenApiTypes.STR, enum=TYPES, many=True),
            *list_parameters(),
        ],
        responses=wire.listed(ApprovalItem),
    )
    def get(self, call: Call) -> HttpResponse:
        view, types = _view(call), chosen(call.params, "type", TYPES) or TYPES
        found = inbox.listed(call.actor, view, read_cut(call.params), types)
        return page_answer(call.request, found, [approval_item(one) for one in found.rows])


class DecisionEndpoint(OperationsEndpoint):
    """A verb on one gate or request."""

    def find(self, actor: Actor, **ids: uuid.UUID) -> Item:
        return inbox.find(actor, ids["approval_id"])


class Decision(DecisionEndpoint):
    """Approves or rejects; on the last approval that is needed it goes on at once, as it was planned."""

    access = {"POST": DECIDE}
    bodies = {"POST": DecisionRequest}
    actions = {"POST": "operation.decide"}

    def tried(self, method: str, target: Any) -> str:
        return "gate.decide" if isinstance(target, Item) and target.type == GATE else super().tried(method, target)

    @extend_schema(request=DecisionRequest, responses=DECIDED)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; the same decision again changes nothing, so there is nothing to remember
        item, approved = call.target, call.body["approved"]
        if call.is_dry_run:
            return answer(_preview(item, call.actor, approved=approved))
        if item.type == GATE:
            return answer(_decide_gate(item, call, approved=approved))
        decided = requests.decide_request(
            item.id, actor=call.actor, approved=approved, reason=call.reason, plan_digest=call.plan_digest
        )
        target = str(decided.target) if decided.target else None
        more = {"approved": approved, "target_execution_id": target, "stage_status": None}
        return answer(_standing(item, decided) | more)


class Withdrawal(DecisionEndpoint):
    """Takes a request back; only who asked for it does."""

    access = {"POST": VIEW}
    bodies = {"POST": WithdrawRequest}
    actions = {"POST": "operation.withdraw"}

    @extend_schema(request=WithdrawRequest, responses=Standing)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key
        item = call.target
        if item.type == GATE:
            raise Refusal("stage_state_invalid", "a gate belongs to its run and is not withdrawn; cancel the run")
        return answer(_standing(item, requests.withdraw(item.id, actor=call.actor, reason=call.reason)))


def _view(call: Call) -> str:
    views = chosen(call.params, "view", VIEWS) or (WAITING,)
    if len(views) > 1:
        message = f"one of: {', '.join(VIEWS)}"
        raise Refusal("validation_error", f"view: {message}", errors={"view": [message]})
    if views[0] == MINE:
        call.actor.require(DECIDE)  # a missing right is said, never shown as an empty list
    if views[0] in (MINE, ASKED) and not call.actor.is_person:
        raise Refusal("permission_denied", f"an application's key has no view {views[0]}: that is a person's")
    return views[0]


def _preview(item: Item, actor: Actor, *, approved: bool) -> dict[str, Any]:
    """What a decision would do now, whoever looks; refused when nobody can decide it any more."""
    if item.type == OPERATION:
        given = requests.given(item.id, actor=actor)
        told = {"given": {"what": given.what, "text": given.text}} if given else {}
        return {**requests.preview(item.id, actor=actor).plan, **told}
    if item.over is not None:
        raise Refusal(item.over.code, item.over.words)
    have = item.have + approved
    state, stage_status = GateState.REJECTED, StageState.FAILED
    if approved and have < item.count:
        state, stage_status = GateState.OPEN, StageState.WAITING
    elif approved:
        state = GateState.APPROVED
        stage_status = StageState.READY if item.moment == GateMoment.BEFORE else StageState.COMPLETED
    return {
        "id": str(item.id),
        "type": GATE,
        "execution_id": str(item.run_id),
        "stage_id": str(item.stage_id),
        "stage": item.stage,
        "approved": approved,
        "state": state,
        "stage_status": stage_status,
        "have": have,
        "need": item.count,
    }


def _decide_gate(item: Item, call: Call, *, approved: bool) -> dict[str, Any]:
    decided = decide_gate(
        cast(uuid.UUID, item.stage_id), actor=call.actor, approved=approved, reason=call.reason, gate_id=item.id
    )
    return {
        "id": str(item.id),
        "type": GATE,
        "operation_id": None,
        "execution_id": _text(item.run_id),
        "target_execution_id": None,
        "stage_id": str(decided.stage_id),
        "stage_status": decided.stage_state,
        "approved": decided.approved,
        "status": decided.gate_state,
        "state": decided.gate_state,
        "disposition": None,
        "round": item.round,
        "have": decided.have,
        "need": decided.need,
        "expires_at": time(item.expires_at),
        "plan_digest": None,
        "replayed": decided.replayed,
    }


def _standing(item: Item, told: Answer) -> dict[str, Any]:
    return {
        "id": str(item.id),
        "type": OPERATION,
        "operation_id": str(item.id),
        "execution_id": _text(told.run_id),
        "stage_id": _text(item.stage_id),
        "status": told.status,
        "state": told.state,
        "disposition": told.disposition or None,
        "round": told.round,
        "have": told.have,
        "need": told.need,
        "expires_at": time(told.expires_at),
        "plan_digest": told.plan_digest or None,
        "replayed": told.replayed,
    }


def approval_item(item: Item) -> dict[str, Any]:
    return {
        "id": str(item.id),
        "type": item.type,
        "kind": item.kind,
        "operation_id": str(item.id) if item.type == OPERATION else None,
        "execution_id": _text(item.run_id),
        "execution_name": item.run_name,
        "environment": item.environment,
        "pipeline": item.pipeline or None,
        "stage_id": _text(item.stage_id),
        "stage": item.stage or None,
        "status": item.status,
        "state": item.state,
        "cause": item.cause or None,
        "moment": item.moment or None,
        "epoch": item.epoch,
        "attempt_id": _text(item.attempt_id),
        "require_person": item.require_person,
        "round": item.round,
        "disposition": item.disposition or None,
        "reasons": list(item.reasons),
        "plan": item.plan,
        "plan_digest": item.plan_digest or None,
        "requested_by": item.requested_by or None,
        "reason": item.reason or None,
        "why": list(item.why),
        "created_at": time(item.asked_at),
        "opened_at": time(item.opened_at),
        "expires_at": time(item.expires_at),
        "closed_at": time(item.closed_at),
        "approver_role": item.role,
        "need": item.count,
        "have": item.have,
        "decisions": [_decision(one) for one in item.decisions],
        "may_decide": item.may_decide,
        "why_not": {"code": item.why_not.code, "detail": item.why_not.words} if item.why_not else None,
        "may_withdraw": item.may_withdraw,
    }


def _decision(made: Verdict) -> dict[str, Any]:
    return {
        "decided_by": made.who,
        "role": made.role or None,
        "approved": made.approved,
        "reason": made.reason or None,
        "at": time(made.at),
        "counts": made.counts,
    }


def _text(found: uuid.UUID | None) -> str | None:
    return str(found) if found else None


urlpatterns = [
    path("approvals", Approvals.as_view()),
    path("approvals/<str:approval_id>/decision", Decision.as_view()),
    path("approvals/<str:approval_id>/withdraw", Withdrawal.as_view()),
]
