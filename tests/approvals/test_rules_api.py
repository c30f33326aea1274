"""Approval rules through `/v1`: listed for everybody, changed by admins, refused where they name what is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRule
from approvals.rules import DEFAULT_EXPIRY
from pipelines.ids import new_id
from pipelines.models import AuditEvent, Pipeline, Workspace
from tests.cast import Api, Person

AsPerson = Callable[[Person], Api]
RULES = "/v1/approval-rules"
LEAST = {"name": "careful", "kinds": ["rerun"], "role": "approver"}


@pytest.fixture
def admin(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["admin"])


def add(admin: Api, **more: Any) -> dict[str, Any]:
    answer = admin.post(RULES, {**LEAST, **more})
    assert answer.status_code == 201, answer.content
    made: dict[str, Any] = answer.json()
    return made


def test_a_rule_is_added_and_read_back(admin: Api, workspace: Workspace) -> None:
    """F145: what was added is in the audit, in words too."""
    Pipeline.objects.create(workspace=workspace, slug="nightly", name="Nightly")
    body = {
        "name": "big ones",
        "kinds": ["rerun", "replay", "rerun"],
        "environments": ["production", "protected"],
        "pipelines": ["nightly"],
        "counted": "stages",
        "at_least": 5,
        "role": "release_manager",
        "count": 2,
        "expires_in": 28_800,
    }
    made = add(admin, **body)
    says = (
        "replay, rerun of 5 or more stages in production or protected environments of the pipeline nightly:"
        " 2 release managers within 8 hours"
    )
    told = {name: made.pop(name) for name in ("id", "created_at", "warnings")}
    assert made == {**body, "kinds": ["rerun", "replay"], "enabled": True, "says": says}
    assert told["warnings"] == [
        "needs 2 release managers and the workspace has 2: too few when one of them asks, who may not agree"
    ]
    (listed,) = admin.get(RULES).json()["results"]
    assert listed == made | told
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.channel, event.actor) == (
        "approvalrule.save",
        "allowed",
        "api",
        "admin-acme",
    )
    assert (event.data["id"], event.data["rule"]) == (told["id"], says)


def test_what_is_left_out_is_the_least_that_a_rule_asks_for(admin: Api) -> None:
    made = add(admin)
    assert (made["environments"], made["pipelines"], made["counted"], made["at_least"]) == ([], [], "", 1)
    assert (made["count"], made["expires_in"], made["enabled"]) == (1, DEFAULT_EXPIRY, True)
    assert made["says"] == "rerun: 1 approver within 7 days"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"name": "TAKEN"}, "name"),
        ({"kinds": []}, "kinds"),
        ({"kinds": ["pause"]}, "kinds"),
        ({"kinds": ["rerun", "fork"]}, "kinds"),
        ({"kinds": "rerun"}, "kinds"),
        ({"kinds": [1]}, "kinds[0]"),
        ({"environments": ["prod"]}, "environments"),
        ({"environments": ["Production"]}, "environments"),
        ({"pipelines": ["elsewhere"]}, "pipelines"),
        ({"counted": "money"}, "counted"),
        ({"at_least": 5}, "counted"),
        ({"counted": "stages", "at_least": 0}, "at_least"),
        ({"role": "viewer"}, "role"),
        ({"role": "operator"}, "role"),
        ({"role": "Approver"}, "role"),
        ({"count": 0}, "count"),
        ({"count": 21}, "count"),
        ({"count": "2"}, "count"),
        ({"count": True}, "count"),
        ({"expires_in": 0}, "expires_in"),
        ({"expires_in": 366 * 86_400 + 1}, "expires_in"),
        ({"enabled": "true"}, "enabled"),
        ({"priority": 1}, "priority"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_field(
    admin: Api, workspace: Workspace, other_workspace: Workspace, change: dict[str, Any], path: str
) -> None:
    """Added or changed: nothing is kept. Another workspace's pipeline is as unknown as none."""
    Pipeline.objects.create(workspace=other_workspace, slug="elsewhere", name="Elsewhere")
    add(admin, name="taken")
    rule = add(admin, name="mine")
    before = list(ApprovalRule.objects.order_by("id").values())
    for answer in (admin.post(RULES, {**LEAST, **change}), admin.patch(f"{RULES}/{rule['id']}", change)):
        assert (answer.status_code, answer.json()["code"]) == (400, "validation_error"), answer.content
        assert path in answer.json()["errors"]
    assert list(ApprovalRule.objects.order_by("id").values()) == before
    refused = AuditEvent.objects.filter(outcome="failed", action="approvalrule.save")
    assert [event.code for event in refused] == ["validation_error", "validation_error"]


@pytest.mark.parametrize(
    ("count", "expires_in", "at_least"), [(1, 1, 1), (20, 366 * 86_400, 1_000_000)], ids=["least", "most"]
)
def test_the_limits_themselves_are_taken(admin: Api, count: int, expires_in: int, at_least: int) -> None:
    made = add(admin, name="x" * 255, count=count, expires_in=expires_in, counted="stages", at_least=at_least)
    assert (made["count"], made["expires_in"], made["at_least"]) == (count, expires_in, at_least)


def test_a_rule_is_changed_bit_by_bit(admin: Api) -> None:
    """F145: from what to what; the same again changes nothing, and says so."""
    rule = add(admin, counted="stages", at_least=5)
    path = f"{RULES}/{rule['id']}"
    changed = admin.patch(path, {"count": 3, "name": "careful"}).json()
    assert changed == {**rule, "count": 3, "says": changed["says"], "warnings": changed["warnings"]}
    event = AuditEvent.objects.latest("at", "id")
    assert (event.before, event.after, event.outcome) == ({"count": 1}, {"count": 3}, "allowed")
    admin.patch(path, {"count": 3})
    assert AuditEvent.objects.latest("at", "id").outcome == "no_op"
    assert admin.patch(path, {"name": "Careful"}).json()["name"] == "Careful", "its own name is not taken"
    assert admin.patch(path, {"counted": ""}).json()["at_least"] == 1, "of any size"
    assert admin.patch(path, {"enabled": False}).json()["enabled"] is False
    assert admin.patch(path, {}).status_code == 200


def test_rules_are_listed_by_kind_newest_first(admin: Api, outsider: Person, as_person: AsPerson) -> None:
    add(admin, name="a", kinds=["rerun", "replay"])
    add(admin, name="b", kinds=["skip"])
    assert [rule["name"] for rule in admin.get(RULES).json()["results"]] == ["b", "a"]
    assert [rule["name"] for rule in admin.get(f"{RULES}?kind=replay").json()["results"]] == ["a"]
    assert admin.get(f"{RULES}?colour=red").status_code == 400
    assert as_person(outsider).get(RULES).json()["results"] == []


def test_a_page_of_rules_costs_the_same_however_long_it_is(admin: Api) -> None:
    counts = []
    for number in range(2):
        for index in range(1 + 20 * number):
            add(admin, name=f"{number}-{index}")
        with CaptureQueriesContext(connection) as captured:
            assert admin.get(RULES).status_code == 200
        assert not any("COUNT(" in query["sql"] for query in captured)
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_another_workspaces_rule_is_not_found(admin: Api, outsider: Person, as_person: AsPerson) -> None:
    """I16."""
    rule = add(admin)
    for path in (f"{RULES}/{rule['id']}", f"{RULES}/{new_id()}"):
        answer = as_person(outsider).patch(path, {"enabled": False})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert ApprovalRule.objects.get().enabled
