"""The operations API's routes for approval rules: who must agree to which operations (model §5)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from approvals import rule_rows
from approvals.models import ApprovalRule, Counted
from approvals.models.rules import LONGEST_EXPIRY, ApproverRole
from approvals.rules import DEFAULT_EXPIRY, in_words, sentence
from pipelines.access import ADMINISTER, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, page_answer
from pipelines.api.operations_serializers import time
from pipelines.api.shapes import Flag, Identifier, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.filters import AnyOf, ListFilter
from pipelines.paging import page_of, read_cut

MOST_NAMED = 100  # environments or pipelines of one rule
DEFAULTS = {
    "environments": [],
    "pipelines": [],
    "counted": "",
    "at_least": 1,
    "count": 1,
    "expires_in": DEFAULT_EXPIRY,
    "enabled": True,
}


class RuleFilter(ListFilter):
    """Approval rules by the kinds of operations that they are about."""

    kind = AnyOf("kinds", lookup="overlap")


class RuleChange(Shape):
    """What of a rule may change; what is left out stays. What waits is asked for no less than before."""

    name = Text(max_length=255, control=False, required=False)
    kinds = ListOf(child=Text(max_length=20), min_length=1, max_length=20, required=False)
    environments = ListOf(
        child=Text(max_length=100),
        max_length=MOST_NAMED,
        required=False,
        help_text="slugs; `protected` stands for those that are; none: all",
    )
    pipelines = ListOf(
        child=Text(max_length=255), max_length=MOST_NAMED, required=False, help_text="slugs; none: all, and inline runs"
    )
    counted = OneOf(
        ("", *Counted.values), required=False, help_text="what `at_least` is the number of; blank: any size"
    )
    at_least = Whole(min_value=1, max_value=rule_rows.LARGEST_SIZE, required=False)
    role = OneOf(ApproverRole.values, required=False, help_text="theirs or a higher one")
    count = Whole(min_value=1, max_value=20, required=False)
    expires_in = Whole(
        min_value=1, max_value=LONGEST_EXPIRY, required=False, help_text=f"seconds; {in_words(DEFAULT_EXPIRY)} at first"
    )
    enabled = Flag(required=False)


class RuleRequest(RuleChange):
    """A rule. It binds every role, for what is asked from now on."""

    name = Text(max_length=255, control=False)
    kinds = ListOf(child=Text(max_length=20), min_length=1, max_length=20)
    role = OneOf(ApproverRole.values, help_text="theirs or a higher one")


class RuleItem(Shape):
    """A rule, as it reads in words, and what to know about it: too few people to agree, or nothing to be about yet."""

    id = Identifier()
    name = Text()
    kinds = ListOf(child=Text())
    environments = ListOf(child=Text())
    pipelines = ListOf(child=Text())
    counted = OneOf(("", *Counted.values))
    at_least = Whole(min_value=1, max_value=wire.HUGE)
    role = OneOf(ApproverRole.values)
    count = Whole(min_value=1, max_value=wire.HUGE)
    expires_in = Whole(min_value=1, max_value=wire.HUGE)
    enabled = Flag()
    says = Text()
    warnings = ListOf(child=Text())
    created_at = Moment()


class ApprovalRules(OperationsEndpoint):
    """Who must agree to which operations, newest first. POST makes a rule; the same again changes nothing, and answers
    200.
    """

    access = {"GET": VIEW, "POST": ADMINISTER}
    bodies = {"POST": RuleRequest}
    actions = {"POST": rule_rows.SAVE}
    filters = RuleFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(RuleItem))
    def get(self, call: Call) -> HttpResponse:
        rows = RuleFilter.narrow(ApprovalRule.objects.filter(workspace_id=call.actor.workspace_id), call.params)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, rule_items(page.rows, call.actor))

    @extend_schema(request=RuleRequest, responses={201: RuleItem, 200: RuleItem})
    def post(self, call: Call) -> HttpResponse:
        row, is_new = rule_rows.add_rule_once(actor=call.actor, wanted={**DEFAULTS, **call.body})
        return answer(rule_items([row], call.actor)[0], 201 if is_new else 200)


class OneApprovalRule(OperationsEndpoint):
    """Changes a rule, or disables it. It is removed in the admin site."""

    access = {"PATCH": ADMINISTER}
    bodies = {"PATCH": RuleChange}
    actions = {"PATCH": rule_rows.SAVE}

    def find(self, actor: Actor, **ids: uuid.UUID) -> ApprovalRule:
        found = ApprovalRule.objects.filter(id=ids["rule_id"], workspace_id=actor.workspace_id).first()
        if found is None:
            raise not_found()
        return found

    @extend_schema(request=RuleChange, responses=RuleItem)
    def patch(self, call: Call) -> HttpResponse:
        row = rule_rows.change_rule(call.target.id, actor=call.actor, changes=call.body)
        return answer(rule_items([row], call.actor)[0])


def rule_items(rows: Sequence[ApprovalRule], actor: Actor) -> list[dict[str, Any]]:
    warnings = rule_rows.warnings(rows, actor.workspace_id)
    return [
        {
            **{name: getattr(row, name) for name in (*rule_rows.FIELDS, "enabled")},
            "id": str(row.id),
            "expires_in": row.expires_in or DEFAULT_EXPIRY,
            "says": sentence(rule_rows.as_rule(row)),
            "warnings": warnings[row.pk],
            "created_at": time(row.created_at),
        }
        for row in rows
    ]


urlpatterns = [
    path("approval-rules", ApprovalRules.as_view()),
    path("approval-rules/<str:rule_id>", OneApprovalRule.as_view()),
]
