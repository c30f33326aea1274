"""What waits for somebody else: reviews, and what operators ask for in a protected environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.models import RequestDecision
from pipelines.access import Actor, person
from pipelines.creation import Place
from pipelines.models import AuditEvent, Effect, Environment, Member, Run, Stage
from recovery import forks
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of
from tests.factories import MemberFactory
from tests.recovery.stories import clear, effect_of, in_review
from tests.tampering import past_the_triggers

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
FAILED = {"error_code": "BUSINESS_REJECTED"}
KEY = {"client_request_id": "0b7e3d1c-1111-4222-8333-444455556666"}


@pytest.fixture
def operator(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def approver(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    run = start_run("first", "second")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", **FAILED)
    return run


@pytest.fixture
def production(place: Place, environments: dict[str, Environment]) -> Place:
    return Place(place.workspace_id, place.application_id, environments["production"].id, "production")


@pytest.fixture
def in_production(start_run: StartRun, production: Place) -> Run:
    """A run of the protected environment that failed at its second stage."""
    run = start_run("first", "second", in_place=production)
    hand = Hand(production, "hand-2", ["Handler"])
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", **FAILED)
    return run


def rerun(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/v1/executions/{run.id}/rerun", body)


def decide(api: Api, operation: Operation | str, approved: Any = True, **more: Any) -> Any:
    found = operation if isinstance(operation, str) else operation.id
    return api.post(f"/v1/approvals/{found}/decision", {"approved": approved, **more})


def forks_of(run: Run) -> list[Run]:
    return list(Run.objects.filter(recovered_from=run))


# protected environments


def test_what_an_operator_asks_for_in_a_protected_environment_waits(
    in_production: Run, operator: Api, approver: Api
) -> None:
    """Model §5, contract §3: 202, one approver, then the run; the same key afterwards answers with the target."""
    asked = rerun(operator, in_production, **KEY)
    told = asked.json()
    assert (asked.status_code, told["status"], told["execution_id"]) == (202, "awaiting_approval", None)
    assert forks_of(in_production) == []
    again = rerun(operator, in_production, **KEY)
    assert (again.status_code, again.json()["operation_id"], again.json()["replayed"]) == (
        202,
        told["operation_id"],
        True,
    )
    (item,) = approver.get("/v1/approvals").json()["results"]
    assert (item["id"], item["status"], item["may_decide"]) == (told["operation_id"], "awaiting_approval", True)
    assert item["plan"]["plan_digest"] == told["plan_digest"] == item["plan_digest"]
    decided = decide(approver, told["operation_id"], reason="agreed", plan_digest=told["plan_digest"])
    assert (decided.status_code, decided.json()["status"]) == (200, "dispatched"), decided.content
    (target,) = forks_of(in_production)
    assert decided.json()["target_execution_id"] == str(target.id)
    assert [stage.state for stage in stages_of(target)] == ["completed", "ready"]
    assert target.started_by is not None
    assert target.started_by.get_username() == "operator-acme"
    final = rerun(operator, in_production, **KEY)
    assert (final.status_code, final.json()["execution_id"], final.json()["replayed"]) == (200, str(target.id), True)
    assert approver.get("/v1/approvals").json()["results"] == []
    events = AuditEvent.objects.filter(run=in_production.id).order_by("at", "id")
    assert [(event.action, event.outcome) for event in events] == [
        ("execution.recovery_disposition", "allowed"),
        ("run.rerun", "allowed"),
        ("run.rerun", "no_op"),
        ("operation.approve", "allowed"),
        ("run.rerun", "no_op"),
    ]
    assert [event.on_behalf_of for event in events] == ["", "", "", "operator-acme", ""]


@pytest.mark.parametrize("role", ["release_manager", "admin"])
def test_release_managers_and_admins_do_it_directly(
    in_production: Run, people: dict[str, Person], as_person: AsPerson, role: str
) -> None:
    answer = rerun(as_person(people[role]), in_production)
    assert (answer.status_code, answer.json()["status"]) == (201, "dispatched")


def test_the_plan_says_who_must_agree(
    in_production: Run, operator: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    (agreement,) = rerun(operator, in_production, dry_run=True).json()["approvals"]
    assert (agreement["roles"], agreement["count"]) == (["admin", "approver", "release_manager"], 1)
    assert rerun(as_person(people["admin"]), in_production, dry_run=True).json()["approvals"] == []


def test_what_is_rejected_is_denied_for_good(in_production: Run, operator: Api, approver: Api) -> None:
    asked = rerun(operator, in_production, **KEY).json()
    without = decide(approver, asked["operation_id"], approved=False)
    assert (without.status_code, list(without.json()["errors"])) == (400, ["reason"])
    rejected = decide(approver, asked["operation_id"], approved=False, reason="not on a Friday")
    assert (rejected.status_code, rejected.json()["status"]) == (200, "denied")
    after = rerun(operator, in_production, **KEY)
    assert (after.status_code, after.json()["code"]) == (409, "recovery_denied")
    assert forks_of(in_production) == []


# four eyes


@pytest.mark.parametrize("role", ["release_manager", "admin"])
def test_nobody_decides_what_they_asked_for(
    failed: Run, people: dict[str, Person], as_person: AsPerson, role: str
) -> None:
    """F130, F131: with the right and all, by token."""
    effect_of(failed, "second")
    operation = in_review(failed, people[role].actor)
    for approved in (True, False):
        answer = decide(as_person(people[role]), operation, approved=approved, reason="me")
        assert (answer.status_code, answer.json()["code"]) == (403, "self_approval")
    operation.refresh_from_db()
    assert operation.state == "review_required"
    denied = AuditEvent.objects.filter(code="self_approval")
    assert {(event.outcome, event.actor) for event in denied} == {("denied", people[role].actor.name)}
    assert denied.count() == 2
    (item,) = as_person(people[role]).get("/v1/approvals").json()["results"]
    assert item["may_decide"] is False


def test_a_superuser_who_asked_does_not_decide_either(
    failed: Run, people: dict[str, Person], as_person: AsPerson
) -> None:
    """F130."""
    effect_of(failed, "second")
    operation = in_review(failed, people["admin"].actor)
    people["admin"].user.is_superuser = True
    people["admin"].user.save()
    assert decide(as_person(people["admin"]), operation).status_code == 403


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_who_lacks_the_right_does_not_decide(
    failed: Run, people: dict[str, Person], as_person: AsPerson, role: str
) -> None:
    effect_of(failed, "second")
    operation = in_review(failed)
    answer = decide(as_person(people[role]), operation)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert not RequestDecision.objects.exists()


def test_another_workspace_has_nothing_to_decide_here(failed: Run, outsider: Person, as_person: AsPerson) -> None:
    """I16."""
    effect_of(failed, "second")
    operation = in_review(failed)
    assert decide(as_person(outsider), operation).status_code == 404
    assert as_person(outsider).get("/v1/approvals").json()["results"] == []


def test_what_never_waited_is_not_decided(failed: Run, operator: Api, approver: Api) -> None:
    done = rerun(operator, failed).json()
    assert decide(approver, done["operation_id"]).status_code == 404


@pytest.mark.parametrize("approved", ["maybe", "", "true ", 1, None])
def test_an_unclear_answer_is_no_answer(failed: Run, approver: Api, approved: Any) -> None:
    """F135."""
    effect_of(failed, "second")
    operation = in_review(failed)
    answer = decide(approver, operation, approved=approved)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["approved"])


# reviews


def test_a_review_let_go_on_keeps_its_disposition(failed: Run, operator: Api, approver: Api) -> None:
    """Model §2 Disposition: as recorded, with `resolved_by`; the same key then answers with the target."""
    effect_of(failed, "second")
    asked = rerun(operator, failed, **KEY)
    told = asked.json()
    assert (asked.status_code, told["code"]) == (409, "operator_review_required")
    again = rerun(operator, failed, **KEY).json()
    assert (again["operation_id"], again["disposition"], again["reasons"]) == (
        told["operation_id"],
        told["disposition"],
        told["reasons"],
    )
    decided = decide(approver, told["operation_id"], reason="seen it at the provider")
    assert (decided.status_code, decided.json()["disposition"]) == (200, "operator_review_required"), decided.content
    operation = Operation.objects.get(id=told["operation_id"])
    assert operation.resolved_by is not None
    assert (operation.resolved_by.get_username(), operation.state) == ("approver-acme", "dispatched")
    (target,) = forks_of(failed)
    final = rerun(operator, failed, **KEY)
    assert (final.status_code, final.json()["execution_id"]) == (200, str(target.id))
    assert final.json()["disposition"] == "operator_review_required"


def test_a_retry_in_review_is_carried_out_when_let_go_on(failed: Run, operator: Api, approver: Api) -> None:
    effect_of(failed, "second")
    stage = stages_of(failed)[1]
    told = operator.post(f"/v1/stages/{stage.id}/retry", {"reason": "again", **KEY}).json()
    assert told["code"] == "operator_review_required"
    decided = decide(approver, told["operation_id"], reason="fine")
    assert (decided.status_code, decided.json()["status"]) == (200, "succeeded"), decided.content
    stage.refresh_from_db()
    assert (stage.state, stage.epoch) == ("ready", 2)
    again = operator.post(f"/v1/stages/{stage.id}/retry", {"reason": "again", **KEY})
    assert (again.status_code, again.json()["replayed"], again.json()["epoch"]) == (200, True, 2)


def test_a_world_that_moved_asks_anew_with_the_new_plan(
    failed: Run, operator: Api, approver: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    """F51: judged again under the lock; what was looked at is what is done, or nothing is."""
    effect = effect_of(failed, "second")
    operation = in_review(failed)
    clear(effect, as_person(people["admin"]))
    answer = decide(approver, operation, reason="fine")
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_changed")
    assert answer.json()["plan"]["disposition"] == "recovery_allowed_reconciled"
    assert forks_of(failed) == []
    assert not RequestDecision.objects.exists()
    operation.refresh_from_db()
    assert (operation.state, operation.plan_digest) == ("review_required", answer.json()["plan_digest"])
    second = decide(approver, operation, reason="fine", plan_digest=operation.plan_digest)
    assert (second.status_code, second.json()["disposition"]) == (200, "recovery_allowed_reconciled")
    assert len(forks_of(failed)) == 1


def test_what_is_contradicted_meanwhile_is_denied_whoever_agrees(
    failed: Run, operator: Api, approver: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    """O46."""
    effect = effect_of(failed, "second")
    operation = in_review(failed)
    path = f"/v1/executions/{failed.id}/effects/{effect.id}/reconciliation"
    as_person(people["admin"]).post(path, {"outcome": "absent", "note": "nothing there"})
    answer = decide(approver, operation, reason="fine")
    assert (answer.status_code, answer.json()["code"]) == (409, "recovery_denied")
    operation.refresh_from_db()
    assert operation.state == "denied"
    assert forks_of(failed) == []
    verdicts = AuditEvent.objects.filter(action="execution.recovery_disposition").order_by("at", "id")
    assert [event.data["disposition"] for event in verdicts] == ["operator_review_required", "recovery_denied"]


def test_a_plan_that_is_not_the_waiting_one_is_not_agreed_to(failed: Run, approver: Api) -> None:
    effect_of(failed, "second")
    operation = in_review(failed)
    answer = decide(approver, operation, plan_digest="0" * 64)
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_changed")
    assert forks_of(failed) == []


def test_a_source_that_was_begun_anew_meanwhile_is_not_forked(failed: Run, operator: Api, approver: Api) -> None:
    effect = effect_of(failed, "second")
    operation = in_review(failed)
    with past_the_triggers():
        Effect.objects.filter(id=effect.id).delete()
    assert operator.post(f"/v1/stages/{stages_of(failed)[1].id}/retry", {"reason": "again"}).status_code == 200
    answer = decide(approver, operation, reason="fine")
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_state_invalid")
    operation.refresh_from_db()
    assert (operation.state, forks_of(failed)) == ("review_required", [])


# the same decision again


def test_the_same_decision_again_changes_nothing_and_another_is_refused(
    failed: Run, approver: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    """F138: one effect, the same answer; the opposite and somebody else's are conflicts."""
    effect_of(failed, "second")
    operation = in_review(failed)
    first = decide(approver, operation, reason="fine")
    again = decide(approver, operation, reason="fine")
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["target_execution_id"] == first.json()["target_execution_id"]
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)
    for api, approved, reason in (
        (approver, False, "fine"),
        (approver, True, "other words"),
        (as_person(people["admin"]), True, "fine"),
    ):
        answer = decide(api, operation, approved=approved, reason=reason)
        assert (answer.status_code, answer.json()["code"]) == (409, "gate_decision_conflict")
    assert len(forks_of(failed)) == RequestDecision.objects.count() == 1


def test_a_dry_run_of_a_decision_tells_what_it_would_do_now(
    failed: Run, approver: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    """Contract §3: every verb can be looked at first, by whoever may view; what was decided has no plan any more."""
    effect_of(failed, "second")
    operation = in_review(failed)
    viewer = as_person(people["viewer"])
    path = f"/v1/approvals/{operation.id}/decision"
    plan = viewer.post(path, {"approved": True, "dry_run": True})
    assert (plan.status_code, plan.json()["plan_digest"]) == (200, operation.plan_digest), plan.content
    effect_of(failed, "second", key="k-2")
    moved = viewer.post(path, {"approved": True, "dry_run": True}).json()
    assert moved["plan_digest"] != operation.plan_digest
    assert [item["idempotency_key"] for item in moved["may_repeat"]] == ["k-1", "k-2"]
    operation.refresh_from_db()
    assert (operation.state, operation.plan_digest) == ("review_required", plan.json()["plan_digest"])
    assert decide(approver, operation, approved=False, reason="not today").status_code == 200
    late = viewer.post(path, {"approved": True, "dry_run": True})
    assert (late.status_code, late.json()["code"]) == (409, "gate_decision_conflict")


def test_a_retry_in_review_can_be_looked_at_too(failed: Run, operator: Api, approver: Api) -> None:
    effect_of(failed, "second")
    told = operator.post(f"/v1/stages/{stages_of(failed)[1].id}/retry", {"reason": "again"}).json()
    path = f"/v1/approvals/{told['operation_id']}/decision"
    plan = approver.post(path, {"approved": True, "dry_run": True}).json()
    assert (plan["kind"], plan["plan_digest"]) == ("retry", told["plan_digest"])
    assert [line["stage"] for line in plan["run_again"]] == ["second"]


# rights that change


def test_a_requester_who_lost_the_right_gets_no_run(in_production: Run, operator: Api, approver: Api) -> None:
    """F150: asked for as an operator, approved when they are none any more."""
    told = rerun(operator, in_production).json()
    Member.objects.filter(user__username="operator-acme").update(role="viewer")
    answer = decide(approver, told["operation_id"], reason="fine")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert "viewer" in answer.json()["detail"]
    assert forks_of(in_production) == []
    assert Operation.objects.get(id=told["operation_id"]).state == "awaiting_approval"


def test_a_requester_who_left_gets_no_run(in_production: Run, approver: Api) -> None:
    """F133, F150: unknown by now, so refused, with what to do about it; and without a name nobody decides."""
    user = MemberFactory(workspace=in_production.workspace, role="operator").user
    actor = person(user, in_production.workspace_id, "api")
    assert isinstance(actor, Actor)
    asked = forks.ask_fork(forks.OperationKind.RERUN, in_production, forks.Wish(), actor=actor)
    waiting = forks.fork(asked, actor=actor)
    assert decide(Api({}), str(waiting.operation_id), reason="fine").status_code == 401
    Member.objects.filter(user=user).delete()
    answer = decide(approver, str(waiting.operation_id), reason="fine")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert "no member any more" in answer.json()["detail"]
    assert forks_of(in_production) == []
    assert Stage.objects.filter(run=in_production).count() == 2
