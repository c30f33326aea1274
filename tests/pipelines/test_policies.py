"""Policies: made through `/v1`, in force at once, outranking a stage's own options, and explained (P45–P47)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Attempt, AuditEvent, Policy, Run
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock

StartRun = Callable[..., Run]
PER_SECOND = {"count": 1, "per_seconds": 1}
PATIENT = {"name": "first", "options": {"max_retries": 3, "retry_interval": 10}}


@pytest.fixture
def admin(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["admin"])


def add(admin: Api, name: str, match: dict[str, Any], rule: dict[str, Any], kind: str = "retry", **more: Any) -> Any:
    answer = admin.post("/v1/policies", {"name": name, "kind": kind, "match": match, "rule": rule, **more})
    assert answer.status_code == 201, answer.content
    return answer.json()


def exhaust(hand: Hand, clock: Clock, code: str = "UPSTREAM") -> int:
    """Lets the stage fail until nothing more comes; how many attempts that took."""
    count = 0
    while jobs := hand.pull():
        hand.report(jobs[0], "failed", error_code=code)
        count += 1
        clock.advance(3600)
    return count


def test_a_policy_outranks_the_stages_own_options(start_run: StartRun, hand: Hand, admin: Api, clock: Clock) -> None:
    """P45: policy 1 retry against options 3 → 1 retry, and the attempt says which rule it was."""
    add(admin, "calm", {"handler": "Handler"}, {"max_retries": 1, "retry_interval": 5})
    start_run(PATIENT)
    assert exhaust(hand, clock) == 2
    assert Attempt.objects.order_by("number").first().decision["source"] == "policy:calm"


def test_a_policy_that_does_not_list_the_code_does_not_fall_back(
    start_run: StartRun, hand: Hand, admin: Api, clock: Clock
) -> None:
    """P46: it targets the stage but not the code; the options would allow it → failed at once."""
    add(admin, "narrow", {"stage": "first", "error_codes": ["RATE_LIMIT"]}, {"max_retries": 5, "retry_interval": 1})
    start_run(PATIENT)
    assert exhaust(hand, clock) == 1
    assert Attempt.objects.get().decision["verdict"] == "code_not_listed"


def test_a_policy_for_another_stage_changes_nothing(start_run: StartRun, hand: Hand, admin: Api, clock: Clock) -> None:
    add(admin, "other", {"stage": "second"}, {"max_retries": 0, "retry_interval": 0})
    start_run(PATIENT)
    assert exhaust(hand, clock) == 4


def test_a_paused_policy_rules_nothing_and_rules_again_when_it_is_active(
    start_run: StartRun, hand: Hand, admin: Api, clock: Clock
) -> None:
    policy = add(admin, "none", {}, {"max_retries": 0, "retry_interval": 0}, status="paused")
    start_run(PATIENT)
    assert exhaust(hand, clock) == 4
    assert admin.patch(f"/v1/policies/{policy['id']}", {"status": "active"}).status_code == 200
    start_run(PATIENT)
    assert exhaust(hand, clock) == 1


def test_a_timeout_policy_bounds_an_attempt(start_run: StartRun, hand: Hand, admin: Api) -> None:
    add(admin, "quick", {"environment": "development"}, {"seconds": 5}, kind="timeout")
    start_run({"name": "first", "options": {"timeout": 60}})
    assert hand.take().timeout_seconds == 5


def test_the_effective_policy_is_shown_with_the_ones_it_outranks_and_the_reason(
    start_run: StartRun, admin: Api, api: Api
) -> None:
    """P47: stage > handler > pipeline > environment, then the newest."""
    add(admin, "whole environment", {"environment": "development"}, {"max_retries": 1, "retry_interval": 1})
    add(admin, "older handler", {"handler": "Handler"}, {"max_retries": 2, "retry_interval": 1})
    add(admin, "newer handler", {"handler": "Handler"}, {"max_retries": 3, "retry_interval": 1})
    add(admin, "elsewhere", {"stage": "second"}, {"max_retries": 4, "retry_interval": 1})
    add(admin, "asleep", {"stage": "first"}, {"max_retries": 5, "retry_interval": 1}, status="paused")
    stage = stages_of(start_run("first"))[0]
    told = api.get(f"/v1/stages/{stage.id}/policies").json()
    retry, timeout, rate, concurrency, run_retry = told["policies"]
    assert (retry["kind"], retry["winner"]["name"]) == ("retry", "newer handler")
    assert [policy["name"] for policy in retry["shadowed"]] == ["older handler", "whole environment"]
    assert retry["reason"] == "newer handler targets it by handler; of those as specific it is the newest"
    assert (timeout["kind"], timeout["winner"], timeout["shadowed"]) == ("timeout", None, [])
    assert "its own options rule" in timeout["reason"]
    assert rate["reason"] == "no active rate policy targets this stage, so it begins as soon as it may"
    assert concurrency["reason"] == "no active concurrency policy targets this stage, so it waits for no slot"
    assert run_retry["reason"] == "no active run_retry policy targets this stage, so a run that failed stays failed"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": "magic"}, "kind"),
        ({"name": ""}, "name"),
        ({"match": {"colour": "red"}}, "match.colour"),
        ({"match": {"environment": "not a slug"}}, "match.environment"),
        ({"rule": {"seconds": 3}}, "rule.seconds"),
        ({"rule": {"max_retries": 1}}, "rule.retry_interval"),
        ({"rule": {"max_retries": "1", "retry_interval": 1}}, "rule.max_retries"),
        ({"rule": {"max_retries": 1, "retry_interval": 1, "backoff": "random"}}, "rule.backoff"),
        ({"kind": "timeout", "rule": {"seconds": 0}}, "rule.seconds"),
        ({"kind": "timeout", "rule": {"seconds": 5}, "match": {"error_codes": ["A"]}}, "match.error_codes"),
        ({"kind": "rate", "rule": {"count": 0, "per_seconds": 1}}, "rule.count"),
        ({"kind": "rate", "rule": {"count": 10_001, "per_seconds": 1}}, "rule.count"),
        ({"kind": "rate", "rule": {"count": 1}}, "rule.per_seconds"),
        ({"kind": "rate", "rule": {"count": 1, "per_seconds": 0}}, "rule.per_seconds"),
        ({"kind": "rate", "rule": {"count": 1, "per_seconds": 31 * 86_400 + 1}}, "rule.per_seconds"),
        ({"kind": "rate", "rule": {"max_active": 1}}, "rule.max_active"),
        ({"kind": "rate", "rule": PER_SECOND, "match": {"error_codes": ["A"]}}, "match.error_codes"),
        ({"kind": "concurrency", "rule": {"max_active": 0}}, "rule.max_active"),
        ({"kind": "concurrency", "rule": {"max_active": 10_001}}, "rule.max_active"),
        ({"kind": "concurrency", "rule": {"max_active": True}}, "rule.max_active"),
        ({"kind": "concurrency", "rule": {"max_active": 1.5}}, "rule.max_active"),
        ({"kind": "concurrency", "rule": PER_SECOND}, "rule.count"),
        ({"kind": "concurrency", "rule": {"max_active": 1}, "match": {"error_codes": ["A"]}}, "match.error_codes"),
        ({"status": "asleep"}, "status"),
        ({"priority": 1}, "priority"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(admin: Api, change: dict[str, Any], path: str) -> None:
    body = {"name": "calm", "kind": "retry", "match": {}, "rule": {"max_retries": 1, "retry_interval": 1}, **change}
    answer = admin.post("/v1/policies", body)
    assert answer.status_code == 400
    assert path in answer.json()["errors"]
    assert not Policy.objects.exists()


@pytest.mark.parametrize(
    ("kind", "rule", "words"),
    [
        ("rate", {"count": 0, "per_seconds": 1}, "1"),
        ("rate", {"count": 10_001, "per_seconds": 1}, "10000"),
        ("concurrency", {"max_active": 10_001}, "10000"),
    ],
)
def test_a_refusal_names_the_limit(admin: Api, kind: str, rule: dict[str, Any], words: str) -> None:
    answer = admin.post("/v1/policies", {"name": "much", "kind": kind, "match": {}, "rule": rule})
    (messages,) = answer.json()["errors"].values()
    assert words in messages[0].replace(",", "")


def test_policies_of_kind_rate_and_concurrency_are_made_changed_paused_and_told_in_the_audit(
    admin: Api, as_person: Callable[[Person], Api], people: dict[str, Person]
) -> None:
    """F145: by the same verbs, with the same digest of what is in force; only admins may."""
    for name, kind, rule in (("slow", "rate", PER_SECOND), ("narrow", "concurrency", {"max_active": 3})):
        made = add(admin, name, {"handler": "Handler", "environment": "production"}, rule, kind=kind)
        assert (made["kind"], made["rule"], made["status"]) == (kind, rule, "active")
        path = f"/v1/policies/{made['id']}"
        refused = admin.patch(path, {"rule": {"seconds": 5}})
        assert (refused.status_code, "rule.seconds" in refused.json()["errors"]) == (400, True)
        assert admin.patch(path, {"status": "paused"}).json()["status"] == "paused"
        assert [one["name"] for one in admin.get(f"/v1/policies?kind={kind}").json()["results"]] == [name]
        for role in ("operator", "release_manager"):
            assert as_person(people[role]).patch(path, {"status": "active"}).status_code == 403
        event = AuditEvent.objects.get(action="policy.change", outcome="allowed", data__policy=name)
        assert (event.before, event.after) == ({"status": "active"}, {"status": "paused"})


def test_a_name_is_taken_once_whatever_its_case(admin: Api) -> None:
    add(admin, "Calm", {}, {"max_retries": 1, "retry_interval": 1})
    answer = admin.post(
        "/v1/policies",
        {"name": "calm", "kind": "retry", "match": {}, "rule": {"max_retries": 1, "retry_interval": 1}},
    )
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["name"])
    assert Policy.objects.count() == 1


def test_changes_are_checked_and_kept_in_the_audit(admin: Api) -> None:
    """F145: who changed which rule from what to what."""
    policy = add(admin, "calm", {}, {"max_retries": 1, "retry_interval": 1})
    wrong = admin.patch(f"/v1/policies/{policy['id']}", {"rule": {"seconds": 5}})
    assert (wrong.status_code, "rule.seconds" in wrong.json()["errors"]) == (400, True)
    assert "kind" in admin.patch(f"/v1/policies/{policy['id']}", {"kind": "timeout"}).json()["errors"]
    right = admin.patch(f"/v1/policies/{policy['id']}", {"rule": {"max_retries": 2, "retry_interval": 1}})
    assert right.json()["rule"]["max_retries"] == 2
    kept = AuditEvent.objects.filter(action="policy.change").order_by("at", "id")
    assert [event.outcome for event in kept] == ["failed", "failed", "allowed"]
    event = kept[2]
    assert event.before["rule"]["max_retries"] == 1
    assert event.after["rule"]["max_retries"] == 2
    assert (event.actor, event.channel) == ("admin-acme", "api")


def test_policies_are_listed_by_kind(admin: Api, outsider: Person, as_person: Callable[[Person], Api]) -> None:
    add(admin, "calm", {}, {"max_retries": 1, "retry_interval": 1})
    add(admin, "quick", {}, {"seconds": 5}, kind="timeout")
    assert [policy["name"] for policy in admin.get("/v1/policies").json()["results"]] == ["quick", "calm"]
    assert [policy["name"] for policy in admin.get("/v1/policies?kind=retry").json()["results"]] == ["calm"]
    assert as_person(outsider).get("/v1/policies").json()["results"] == []
