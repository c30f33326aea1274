"""Approval rules from the outside: who is bound, from which size on, and what a change of rules does to what waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRequest, ApprovalRule
from approvals.requests import expire_due
from pipelines import catalog, keys, releases
from pipelines.access import person
from pipelines.creation import Place
from pipelines.models import DeadLetter, Environment, Role, Run
from recovery.agreements import RULED
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.factories import MemberFactory

AsPerson = Callable[[Person], Api]
StartRun = Callable[..., Run]
BINDING = sorted({Role.OPERATOR, Role.RELEASE_MANAGER, Role.ADMIN})


@pytest.fixture
def api_of(people: dict[str, Person], as_person: AsPerson) -> dict[str, Api]:
    """A client for each role."""
    return {role: as_person(person) for role, person in people.items()}


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    """first is completed, second has failed, third waits for it."""
    return fail_second(start_run("first", "second", "third"), hand)


@pytest.fixture
def in_production(start_run: StartRun, place: Place, environments: dict[str, Environment]) -> Run:
    there = Place(place.workspace_id, place.application_id, environments["production"].id, "production")
    return fail_second(start_run("first", "second", "third", in_place=there), Hand(there, "hand-2", ["Handler"]))


def fail_second(run: Run, hand: Hand) -> Run:
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return run


def a_rule(admin: Api, **more: Any) -> str:
    answer = admin.post("/v1/approval-rules", {"name": "careful", "kinds": RULED, "role": "approver", **more})
    assert answer.status_code == 201, answer.content
    return str(answer.json()["id"])


def rerun(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/v1/executions/{run.id}/rerun", body)


def waiting(answer: Any) -> str:
    """The id of what an answer says is waiting."""
    assert (answer.status_code, answer.json()["status"]) == (202, "awaiting_approval"), answer.content
    return str(answer.json()["operation_id"])


def decide(api: Api, request: str, **more: Any) -> Any:
    return api.post(f"/v1/approvals/{request}/decision", {"approved": True, **more})


def one(api: Api, view: str = "waiting") -> dict[str, Any]:
    (item,) = api.get(f"/v1/approvals?view={view}").json()["results"]
    return dict(item)


def state_of(run: Run) -> list[Any]:
    run.refresh_from_db()
    letters = DeadLetter.objects.filter(stage__run=run).values_list("state", flat=True)
    return [run.status, *[(stage.state, stage.epoch) for stage in stages_of(run)], *letters]


def ask(kind: str, api: Api, run: Run, **body: Any) -> Any:
    """Asks for an operation of this kind on a run whose second stage has failed."""
    stage, body = stages_of(run)[1], {"reason": "because", **body}
    match kind:
        case "rerun" | "replay" | "cancel" | "pause":
            return api.post(f"/v1/executions/{run.id}/{kind}", body)
        case "retry" | "skip":
            return api.post(f"/v1/stages/{stage.id}/{kind}", body)
    letter = DeadLetter.objects.get(stage=stage)
    return api.post(f"/v1/dead-letters/{letter.id}/{kind}", body)


# who is bound


@pytest.mark.parametrize("role", BINDING)
@pytest.mark.parametrize("kind", RULED)
def test_a_rule_binds_whoever_asks_and_lets_go_on_once_somebody_else_agrees(
    failed: Run, api_of: dict[str, Api], people: dict[str, Person], kind: str, role: str
) -> None:
    """Model §5: admins too, and nowhere protected. Nothing is done before, all of it after; F130 meanwhile."""
    if kind == "cancel":
        failed = unfinished(failed, api_of["admin"])
    a_rule(api_of["admin"])
    before, runs = state_of(failed), Run.objects.count()
    request = waiting(ask(kind, api_of[role], failed))
    own = decide(api_of[role], request)
    assert (own.status_code, own.json()["code"]) == (
        (403, "permission_denied") if role == "operator" else (403, "self_approval")
    )
    assert state_of(failed) == before
    assert Run.objects.count() == runs
    decided = decide(api_of["approver"], request)
    assert (decided.status_code, decided.json()["state"]) == (200, "approved"), decided.content
    operation = Operation.objects.get(id=request)
    assert operation.requested_by == people[role].user
    if kind in ("rerun", "replay"):
        assert operation.state == "dispatched"
        assert state_of(failed) == before
        assert Run.objects.count() == runs + 1
    else:
        assert operation.state == "succeeded"
        assert state_of(failed) != before
        assert Run.objects.count() == runs


def unfinished(run: Run, api: Api) -> Run:
    """The run with its failed stage begun anew: there is something to cancel."""
    assert ask("retry", api, run).status_code == 200
    return run


def test_who_pauses_waits_for_nobody(failed: Run, api_of: dict[str, Api]) -> None:
    """ADR 0069: whatever the rules say; none is even read."""
    run = unfinished(failed, api_of["admin"])
    a_rule(api_of["admin"])
    ApprovalRule.objects.update(kinds=["pause"])
    with CaptureQueriesContext(connection) as captured:
        answer = ask("pause", api_of["operator"], run)
    assert answer.status_code == 200, answer.content
    assert not any("approvals_approvalrule" in query["sql"] for query in captured)
    assert not ApprovalRequest.objects.exists()


def test_what_no_rule_is_about_costs_one_look_at_the_rules(failed: Run, api_of: dict[str, Api]) -> None:
    a_rule(api_of["admin"], environments=["production"])
    with CaptureQueriesContext(connection) as captured:
        assert ask("retry", api_of["operator"], failed).status_code == 200
    assert sum("approvals_approvalrule" in query["sql"] for query in captured) == 1


def test_an_applications_own_key_is_not_bound(failed: Run, api_of: dict[str, Api], api: Api) -> None:
    """Rules are about operations of people; what is said in docs/explain/approvals.md."""
    run = unfinished(failed, api_of["admin"])
    a_rule(api_of["admin"])
    assert api.post(f"/pipelines/{run.id}/cancel").status_code == 200
    run.refresh_from_db()
    assert run.status == "cancelled"


def test_a_plan_says_whom_it_will_need_to_everybody_who_may_look(failed: Run, api_of: dict[str, Api]) -> None:
    a_rule(api_of["admin"], role="release_manager", count=2, expires_in=28_800)
    asked_for = [
        {
            "role": "release_manager",
            "roles": ["admin", "release_manager"],
            "count": 2,
            "expires_in": 28_800,
            "why": "careful: cancel, discard, redrive, replay, rerun, retry, skip: 2 release managers within 8 hours",
        }
    ]
    plans = [ask("retry", api_of[role], failed, dry_run=True).json() for role in ("viewer", "operator", "admin")]
    assert [plan["approvals"] for plan in plans] == [asked_for] * 3
    request = waiting(ask("retry", api_of["operator"], failed, plan_digest=plans[0]["plan_digest"]))
    item = one(api_of["viewer"])
    assert (item["id"], item["need"], item["approver_role"], item["have"]) == (request, 2, "release_manager", 0)


def test_a_rule_made_after_the_plan_was_looked_at_makes_another_plan(failed: Run, api_of: dict[str, Api]) -> None:
    """Nobody is put before others, or let past them, by a plan that they have not seen."""
    seen = ask("retry", api_of["admin"], failed, dry_run=True).json()
    a_rule(api_of["admin"])
    answer = ask("retry", api_of["admin"], failed, plan_digest=seen["plan_digest"])
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_changed")
    assert answer.json()["plan"]["approvals"][0]["count"] == 1
    assert not ApprovalRequest.objects.exists()


# where, and from which size on


def test_a_rule_for_one_environment_is_decided_by_those_it_names(
    in_production: Run, failed: Run, api_of: dict[str, Api]
) -> None:
    """F140: only they may decide, only they find it among theirs; the same elsewhere waits for nobody."""
    a_rule(api_of["admin"], environments=["production"], role="release_manager", kinds=["retry"])
    assert ask("retry", api_of["operator"], failed).status_code == 200
    request = waiting(ask("retry", api_of["operator"], in_production))
    for role, mine in {"approver": [], "release_manager": [request], "admin": [request]}.items():
        found = api_of[role].get("/v1/approvals?view=mine").json()["results"]
        assert [item["id"] for item in found] == mine
    refused = decide(api_of["approver"], request)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert "release_manager" in refused.json()["detail"]
    assert decide(api_of["release_manager"], request).status_code == 200


def test_protected_stands_for_those_that_are(in_production: Run, failed: Run, api_of: dict[str, Api]) -> None:
    a_rule(api_of["admin"], environments=["protected"])
    assert rerun(api_of["admin"], failed).status_code == 201
    waiting(rerun(api_of["admin"], in_production))


def test_a_rule_for_a_pipeline_is_not_about_others_nor_about_inline_runs(
    failed: Run,
    api_of: dict[str, Api],
    people: dict[str, Person],
    start_run: StartRun,
    hand: Hand,
    environment: Environment,
) -> None:
    admin, runs = people["admin"].actor, {}
    for slug in ("nightly", "billing"):
        pipeline, _ = catalog.save_pipeline(actor=admin, slug=slug, name=slug)
        stages = [{"name": name, "handler": "Handler"} for name in ("first", "second")]
        definition = {"slug": slug, "name": slug, "stages": stages}
        releases.register_release(
            actor=admin, pipeline=pipeline, environment=environment, definition=definition, activate=True
        )
        runs[slug] = fail_second(start_run(pipeline=slug), hand)
    a_rule(api_of["admin"], pipelines=["nightly"])
    waiting(rerun(api_of["admin"], runs["nightly"]))
    assert rerun(api_of["admin"], runs["billing"]).status_code == 201
    assert rerun(api_of["admin"], failed).status_code == 201


@pytest.mark.parametrize(("kind", "touched"), [("rerun", 2), ("replay", 3), ("retry", 2), ("skip", 2)])
def test_a_threshold_binds_from_its_size_on(failed: Run, api_of: dict[str, Api], kind: str, touched: int) -> None:
    """Both sides: what the plan names besides what it keeps. The rule says one more than that, then just that."""
    admin = api_of["admin"]
    plan = ask(kind, admin, failed, dry_run=True).json()
    assert len(plan["run_again"]) + len(plan["then"]) == touched
    rule = a_rule(admin, counted="stages", at_least=touched + 1)
    assert ask(kind, admin, failed, dry_run=True).json()["approvals"] == []
    assert admin.patch(f"/v1/approval-rules/{rule}", {"at_least": touched}).status_code == 200
    assert "or more stages" in ask(kind, admin, failed, dry_run=True).json()["approvals"][0]["why"]
    waiting(ask(kind, admin, failed))
    assert admin.patch(f"/v1/approval-rules/{rule}", {"at_least": touched + 1}).status_code == 200
    assert ask(kind, admin, failed, client_request_id="0b7e3d1c-1111-4222-8333-444455556666").status_code in (200, 201)


def test_several_rules_ask_for_the_strictest_together(failed: Run, api_of: dict[str, Api]) -> None:
    a_rule(api_of["admin"], name="two", count=2)
    a_rule(api_of["admin"], name="managers", role="release_manager", expires_in=60)
    waiting(ask("skip", api_of["operator"], failed))
    item = one(api_of["operator"])
    assert (item["need"], item["approver_role"]) == (2, "release_manager")
    assert [why.partition(":")[0] for why in item["why"]] == ["managers", "two"]


# rules that change while something waits


LOOSER: dict[str, Callable[[Api, str], Any]] = {
    "fewer people": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"count": 1}),
    "a lower role": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"role": "approver"}),
    "more time": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"expires_in": 864_000}),
    "other kinds": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"kinds": ["replay"]}),
    "other places": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"environments": ["staging"]}),
    "larger sizes": lambda admin, rule: admin.patch(
        f"/v1/approval-rules/{rule}", {"counted": "stages", "at_least": 100}
    ),
    "another name": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"name": "careless"}),
    "disabled": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"enabled": False}),
    "deleted": lambda admin, rule: ApprovalRule.objects.filter(id=rule).delete(),
}


@pytest.mark.parametrize("how", LOOSER)
@pytest.mark.parametrize("kind", ["rerun", "retry"])
def test_a_rule_that_is_loosened_changes_nothing_of_what_waits(
    failed: Run, api_of: dict[str, Api], as_person: AsPerson, people: dict[str, Person], kind: str, how: str
) -> None:
    """ADR 0069: the same plan, the same round, as many people; who agreed before it still counts."""
    rule = a_rule(api_of["admin"], role="release_manager", count=2, expires_in=3600)
    request = waiting(ask(kind, api_of["operator"], failed))
    before = one(api_of["operator"])
    assert decide(api_of["admin"], request).json()["have"] == 1
    LOOSER[how](api_of["admin"], rule)
    after = one(api_of["operator"])
    same = ("id", "round", "plan", "plan_digest", "need", "approver_role", "why", "expires_at")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["have"] == 1
    refused = decide(api_of["approver"], request)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert Operation.objects.get(id=request).state == "awaiting_approval"
    last = decide(api_of["release_manager"], request, plan_digest=before["plan_digest"])
    assert (last.status_code, last.json()["state"], last.json()["round"]) == (200, "approved", 1), last.content


STRICTER: dict[str, Callable[[Api, str], Any]] = {
    "more people": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"count": 2}),
    "a higher role": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"role": "release_manager"}),
    "less time": lambda admin, rule: admin.patch(f"/v1/approval-rules/{rule}", {"expires_in": 60}),
    "another rule": lambda admin, rule: a_rule(admin, name="another", count=2),
}


@pytest.mark.parametrize("how", STRICTER)
@pytest.mark.parametrize("kind", ["rerun", "retry"])
def test_a_rule_that_is_made_stricter_asks_anew(
    failed: Run, api_of: dict[str, Api], workspace: Any, kind: str, how: str
) -> None:
    """Nobody's agreement to less counts for more: another round, without approvals, for what is asked for by now."""
    rule = a_rule(api_of["admin"], count=1, expires_in=3600)
    request = waiting(ask(kind, api_of["operator"], failed))
    seen = one(api_of["operator"])["plan_digest"]
    STRICTER[how](api_of["admin"], rule)
    moved = decide(api_of["admin"], request, plan_digest=seen)
    assert (moved.status_code, moved.json()["code"]) == (409, "plan_changed"), moved.content
    after = one(api_of["operator"])
    assert (after["round"], after["have"], after["plan_digest"]) == (2, 0, moved.json()["plan_digest"])
    assert Operation.objects.get(id=request).state == "awaiting_approval"
    (now,) = after["plan"]["approvals"]
    expected = {"more people": 2, "another rule": 2}.get(how, 1)
    assert (after["need"], after["approver_role"]) == (expected, now["role"]) == (now["count"], now["role"])
    assert now["expires_in"] == (60 if how == "less time" else 3600)
    assert decide(api_of["admin"], request).status_code == 200
    if expected == 2:
        assert Operation.objects.get(id=request).state == "awaiting_approval"
        unseen = decide(api_of["release_manager"], request)
        assert (unseen.status_code, unseen.json()["code"]) == (409, "plan_changed"), "they know of the first plan alone"
        seen = unseen.json()["plan_digest"]
        assert decide(api_of["release_manager"], request, plan_digest=seen).json()["state"] == "approved"
    assert ApprovalRequest.objects.get(subject=request, round=2).state == "approved"


def test_a_first_rule_reaches_what_waits_for_another_reason(in_production: Run, api_of: dict[str, Api]) -> None:
    """What an operator asks for where it is protected waits for one; a rule then asks for two."""
    request = waiting(rerun(api_of["operator"], in_production))
    assert one(api_of["operator"])["need"] == 1
    a_rule(api_of["admin"], count=2)
    assert decide(api_of["approver"], request).json()["code"] == "plan_changed"
    item = one(api_of["operator"])
    assert (item["need"], len(item["why"])) == (2, 1), "what covers the other is what is told"


def test_who_stops_an_environment_from_being_protected_lets_nothing_past(
    in_production: Run, api_of: dict[str, Api]
) -> None:
    request = waiting(rerun(api_of["operator"], in_production))
    answer = api_of["admin"].post("/v1/environments", {"slug": "production", "protected": False})
    assert answer.status_code in (200, 201), answer.content
    item = one(api_of["operator"])
    assert (item["id"], item["need"], item["round"]) == (request, 1, 1)
    assert decide(api_of["approver"], request).json()["state"] == "approved"


# time


def test_a_rules_time_ends_a_request_and_agrees_to_nothing(failed: Run, api_of: dict[str, Api], clock: Clock) -> None:
    """F135, F136: at its instant, whether or not a sweep has come by."""
    a_rule(api_of["admin"], expires_in=60)
    early = waiting(ask("retry", api_of["operator"], failed))
    clock.advance(59)
    assert one(api_of["approver"])["may_decide"] is True
    clock.advance(1)
    late = decide(api_of["approver"], early)
    assert (late.status_code, late.json()["code"]) == (409, "approval_stale")
    assert expire_due() == 1
    assert Operation.objects.get(id=early).state == "expired"
    assert [stage.epoch for stage in stages_of(failed)] == [1, 1, 1]


def test_a_rule_without_a_time_gives_seven_days(failed: Run, api_of: dict[str, Api], clock: Clock) -> None:
    a_rule(api_of["admin"])
    ApprovalRule.objects.update(expires_in=None)
    request = waiting(ask("retry", api_of["operator"], failed))
    clock.advance(days=7, seconds=-1)
    assert expire_due() == 0
    clock.advance(1)
    assert expire_due() == 1
    assert decide(api_of["approver"], request).json()["code"] == "approval_stale"


def test_who_joins_after_it_was_asked_for_does_not_count_for_what_a_new_round_asks(
    failed: Run, api_of: dict[str, Api], people: dict[str, Person], as_person: AsPerson, workspace: Any, clock: Clock
) -> None:
    """F135: changing the rules while it waits makes nobody eligible who was not when it was first asked for."""
    rule = a_rule(api_of["admin"])
    request = waiting(ask("retry", api_of["operator"], failed))
    clock.advance(1)
    member = MemberFactory(workspace=workspace, role="admin")
    actor = person(member.user, workspace.id, "api")
    assert actor is not None
    newcomer = as_person(Person(member.user, keys.issue_token(member.user, workspace)[1], actor))
    assert newcomer.patch(f"/v1/approval-rules/{rule}", {"role": "admin"}).status_code == 200
    assert decide(api_of["release_manager"], request).json()["code"] == "plan_changed"
    refused = decide(newcomer, request)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    now = one(api_of["admin"])["plan_digest"]
    assert decide(api_of["admin"], request, plan_digest=now).status_code == 200
