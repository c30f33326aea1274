"""What is made by its content: whoever heard no answer may ask again, and makes no second one (O29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.models import ApprovalRule
from pipelines.models import AuditEvent, Blackout, Policy
from tests.cast import Api, Person

pytestmark = pytest.mark.django_db

POLICY = {"name": "calm", "kind": "timeout", "match": {"pipeline": "nightly"}, "rule": {"seconds": 5}}
RULE = {"name": "four eyes", "kinds": ["rerun"], "role": "approver"}
BLACKOUT = {"name": "new year", "kind": "dates", "dates": ["2027-01-01"], "environment": "production"}
MADE: list[tuple[str, dict[str, Any], dict[str, Any], Any, str]] = [
    ("/v1/policies", POLICY, {"rule": {"seconds": 6}}, Policy, "policy.add"),
    ("/v1/approval-rules", RULE, {"count": 2}, ApprovalRule, "approvalrule.save"),
    ("/v1/blackouts", BLACKOUT, {"dates": ["2027-01-02"]}, Blackout, "blackout.save"),
]


@pytest.fixture
def admin(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["admin"])


@pytest.mark.parametrize(("path", "body", "other", "kind", "action"), MADE)
def test_the_same_again_is_the_one_there_is(
    admin: Api, path: str, body: dict[str, Any], other: dict[str, Any], kind: Any, action: str
) -> None:
    """O29: one row, the same answer, and an event that says that nothing was changed."""
    first, again = admin.post(path, body), admin.post(path, body)
    assert (first.status_code, again.status_code) == (201, 200), again.json()
    assert again.json() == first.json()
    assert kind.objects.count() == 1
    outcomes = AuditEvent.objects.filter(action=action).order_by("at", "id").values_list("outcome", flat=True)
    assert list(outcomes) == ["allowed", "no_op"]


@pytest.mark.parametrize(("path", "body", "other", "kind", "action"), MADE[:2])
def test_a_taken_name_with_anything_else_in_it_is_refused(
    admin: Api, path: str, body: dict[str, Any], other: dict[str, Any], kind: Any, action: str
) -> None:
    admin.post(path, body)
    refused = admin.post(path, body | other)
    assert (refused.status_code, set(refused.json()["errors"])) == (400, {"name"})
    assert kind.objects.count() == 1


def test_another_blackout_of_this_name_is_another(
    admin: Api, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Names of blackouts are no identity: other days, another place or another person make another one."""
    made = [
        admin.post("/v1/blackouts", BLACKOUT | {"dates": ["2027-01-01"]}),
        admin.post("/v1/blackouts", BLACKOUT | {"dates": ["2027-01-02"]}),
        admin.post("/v1/blackouts", BLACKOUT | {"environment": "staging"}),
        admin.post("/v1/blackouts", BLACKOUT | {"environment": None}),
        as_person(people["release_manager"]).post("/v1/blackouts", BLACKOUT),
    ]
    assert [answer.status_code for answer in made] == [201] * 5
    assert Blackout.objects.count() == 5


@pytest.mark.parametrize(("path", "body", "other", "kind", "action"), MADE)
def test_who_may_not_make_one_may_not_ask_for_the_one_there_is(
    admin: Api,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
    path: str,
    body: dict[str, Any],
    other: dict[str, Any],
    kind: Any,
    action: str,
) -> None:
    admin.post(path, body)
    assert as_person(people["viewer"]).post(path, body).status_code == 403
