"""Verbs in place and forks under approval rules: what waits, who counts, what is done once enough have agreed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from approvals.models import ApprovalRule, RequestDecision
from approvals.requests import Agreed, agreed, decide_request, expire_due, preview, withdraw
from pipelines import sweeps
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, DeadLetter, Effect, Member, Notice, Run, Workspace
from pipelines.states import NoticeKind
from recovery import forks, transitions
from recovery.models import Operation
from recovery.operations import Done
from recovery.states import OperationKind
from tests.approvals.asked import agree, join, reject, rounds, rule, states
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.stories import effect_of, in_review
from tests.tampering import past_the_triggers
from tests.verbs import cancel_as_operation, pause_run, retry_stage, skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]
KEY = "0b7e3d1c-1111-4222-8333-444455556666"
FAILED = {"error_code": "BUSINESS_REJECTED"}


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    """A run that failed at its second stage; two stages, one dead letter."""
    run = start_run("first", "second", "third")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", **FAILED)
    return Run.objects.get(id=run.id)


@pytest.fixture
def anna(workspace: Workspace) -> Actor:
    return join(workspace, "approver", "anna")


@pytest.fixture
def bert(workspace: Workspace) -> Actor:
    return join(workspace, "approver", "bert")


def retry(run: Run, actor: Actor, **more: Any) -> Done:
    return retry_stage(stages_of(run)[1].id, actor=actor, reason="again", **more)


def rerun(run: Run, actor: Actor, **more: Any) -> Done:
    return forks.fork(forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=actor), actor=actor, **more)


def second(run: Run) -> tuple[str, int]:
    stage = stages_of(run)[1]
    return stage.state, stage.epoch


def refusal_of(act: Callable[[], Any]) -> Refusal:
    with pytest.raises(Refusal) as refused:
        act()
    return refused.value


# what waits


@pytest.mark.parametrize("role", ["operator", "release_manager", "admin"])
def test_a_rule_binds_every_role(failed: Run, workspace: Workspace, people: People, role: str) -> None:
    """Model §5: nothing is done, and nothing of the run moves, until as many as it says have agreed."""
    rule(workspace, "retry", expires_in=3600)
    done = retry(failed, people[role].actor)
    assert (done.status, done.result) == ("awaiting_approval", {})
    assert second(failed) == ("failed", 1)
    (request,) = rounds(done.operation_id)
    assert (request.cause, request.approver_role, request.count) == ("approval", "approver", 2)
    assert (request.expires_at - request.opened_at).total_seconds() == 3600
    assert request.plan_digest == done.plan_digest == request.plan["plan_digest"]
    assert [one["count"] for one in request.plan["approvals"]] == [2]
    told = Notice.objects.filter(kind=NoticeKind.APPROVAL_ASKED).get()
    assert (told.subject, told.run, told.data["round"]) == (done.operation_id, failed.id, 1)


def test_every_verb_that_a_rule_is_about_answers_202_and_then_what_was_done(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, as_person: Callable[[Person], Api]
) -> None:
    """Contract §3: the fields of every answer; the same key tells where it stands, and in the end what came of it."""
    rule(workspace, "retry", "redrive", "skip", "cancel", "discard", count=1)
    operator, approver = as_person(people["operator"]), people["approver"].actor
    for verb in ("retry", "redrive", "skip", "cancel", "discard"):
        run = start_run("first", "second")
        jobs = hand.pull(10)
        letter = None
        if verb != "cancel":
            hand.report(next(job for job in jobs if job.run_id == run.id), "failed", **FAILED)
            letter = DeadLetter.objects.get(stage__run=run)
        path = {
            "cancel": f"/v1/executions/{run.id}/cancel",
            "redrive": f"/v1/dead-letters/{letter and letter.id}/redrive",
            "discard": f"/v1/dead-letters/{letter and letter.id}/discard",
        }.get(verb, f"/v1/stages/{stages_of(run)[0].id}/{verb}")
        body = {"reason": "it is time", "client_request_id": str(uuid.uuid4())}
        looked = operator.post(path, {"reason": "it is time", "dry_run": True}).json()
        assert [(one["role"], one["count"]) for one in looked["approvals"]] == [("approver", 1)]
        asked = operator.post(path, {**body, "plan_digest": looked["plan_digest"]})
        told = asked.json()
        assert (asked.status_code, told["status"]) == (202, "awaiting_approval"), (verb, told)
        assert set(told) == {
            "operation_id",
            "execution_id",
            "stage_id",
            "status",
            "disposition",
            "replayed",
            "plan_digest",
        }
        again = operator.post(path, body)
        assert (again.status_code, again.json()) == (202, {**told, "replayed": True})
        answer = agree(uuid.UUID(told["operation_id"]), approver, reason="fine")
        assert (answer.status, answer.state, answer.have, answer.need) == ("succeeded", "approved", 1, 1), verb
        after = operator.post(path, body)
        assert (after.status_code, after.json()["replayed"]) == (200, True), after.content
        assert after.json()["operation_id"] == told["operation_id"]


def test_nobody_need_agree_to_nothing(start_run: StartRun, workspace: Workspace, people: People) -> None:
    """A cancel of a cancelled run changes nothing, whatever a rule says."""
    run = start_run("first")
    cancel_as_operation(run.id, actor=people["operator"].actor, reason="stop")
    rule(workspace, "cancel")
    again = cancel_as_operation(run.id, actor=people["operator"].actor, reason="stop")
    assert again.status == "succeeded"


def test_a_pause_waits_for_nobody(start_run: StartRun, workspace: Workspace, people: People) -> None:
    rule(workspace, "cancel")
    run = start_run("first")
    assert pause_run(run.id, actor=people["operator"].actor).status == "succeeded"


# who counts


def test_enough_people_have_it_done_at_once(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor
) -> None:
    """carried out with the last approval that is needed; who retried decides no gate behind it."""
    rule(workspace, "retry")
    asked = retry(failed, people["operator"].actor, key=KEY)
    one = agree(asked.operation_id, anna, reason="looks right", plan_digest=asked.plan_digest)
    assert (one.state, one.have, one.need, one.status) == ("open", 1, 2, "awaiting_approval")
    assert second(failed) == ("failed", 1)
    two = agree(asked.operation_id, bert, reason="yes")
    assert (two.state, two.have, two.need, two.status) == ("approved", 2, 2, "succeeded")
    assert second(failed) == ("ready", 2)
    failed.refresh_from_db()
    assert failed.requesters == [people["operator"].user.pk]
    decisions = RequestDecision.objects.order_by("id")
    assert [(one.user.get_username(), one.role, one.approved) for one in decisions] == [
        ("anna", "approver", True),
        ("bert", "approver", True),
    ]
    events = AuditEvent.objects.filter(action="operation.approve").order_by("at", "id")
    assert [(event.actor, event.on_behalf_of, event.after["approvals"]) for event in events] == [
        ("anna", "operator-acme", 1),
        ("bert", "operator-acme", 2),
    ]
    assert [event.after["operation"] for event in events] == ["awaiting_approval", "succeeded"]


def test_one_person_counts_once(failed: Run, workspace: Workspace, people: People, anna: Actor) -> None:
    """Model §5; F138: the same again changes nothing, another decision of theirs is a conflict."""
    rule(workspace, "retry")
    asked = retry(failed, people["operator"].actor)
    first = agree(asked.operation_id, anna, reason="yes")
    again = agree(asked.operation_id, anna, reason="yes")
    assert (first.replayed, again.replayed, again.have) == (False, True, 1)
    for refused in (
        refusal_of(lambda: agree(asked.operation_id, anna, reason="other words")),
        refusal_of(lambda: reject(asked.operation_id, anna, reason="yes")),
    ):
        assert refused.code == "gate_decision_conflict"
    assert second(failed) == ("failed", 1)
    assert RequestDecision.objects.count() == 1


def test_one_rejection_ends_it_whoever_agreed_before(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor
) -> None:
    rule(workspace, "retry")
    asked = retry(failed, people["operator"].actor, key=KEY)
    agree(asked.operation_id, anna)
    answer = reject(asked.operation_id, bert, "not now")
    assert (answer.state, answer.status) == ("rejected", "denied")
    assert refusal_of(lambda: agree(asked.operation_id, people["admin"].actor)).code == "gate_decision_conflict"
    assert refusal_of(lambda: retry(failed, people["operator"].actor, key=KEY)).code == "recovery_denied"
    assert second(failed) == ("failed", 1)


def test_an_approval_is_void_once_its_giver_has_left_or_changed_roles(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor
) -> None:
    """ADR 0069: counted again with every approval, so that the last one is not the only one that is looked at."""
    rule(workspace, "retry")
    carl = join(workspace, "approver", "carl")
    asked = retry(failed, people["operator"].actor)
    agree(asked.operation_id, anna)
    Member.objects.filter(user_id=anna.user_id).delete()
    assert (agree(asked.operation_id, bert).have, second(failed)) == (1, ("failed", 1))
    Member.objects.filter(user_id=bert.user_id).update(role="admin")
    answer = agree(asked.operation_id, carl)
    assert (answer.state, answer.have) == ("open", 1)
    assert refusal_of(lambda: agree(asked.operation_id, bert)).code == "permission_denied"
    assert agree(asked.operation_id, people["approver"].actor).status == "succeeded"


@pytest.mark.parametrize("how", ["promoted", "joined"])
def test_a_role_gained_after_the_request_does_not_count(
    failed: Run, workspace: Workspace, people: People, how: str, clock: Clock
) -> None:
    """F135."""
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    clock.advance(1)
    if how == "promoted":
        Member.objects.filter(user=people["viewer"].user).update(role="approver")
        actor = people["viewer"].actor
    else:
        actor = join(workspace, "admin", "newcomer")
    refused = refusal_of(lambda: agree(asked.operation_id, actor))
    assert (refused.code, refused.status) == ("permission_denied", 403)
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    assert AuditEvent.objects.filter(action="operation.approve", outcome="denied").count() == 1


def test_a_rule_for_admins_is_decided_by_admins(failed: Run, workspace: Workspace, people: People, anna: Actor) -> None:
    """F140: only the group that the rule asks for may decide."""
    rule(workspace, "retry", role="admin", count=1)
    asked = retry(failed, people["operator"].actor)
    for actor in (anna, people["release_manager"].actor, people["operator"].actor, people["viewer"].actor):
        refused = refusal_of(lambda actor=actor: agree(asked.operation_id, actor))
        assert refused.code in ("permission_denied", "self_approval")
    assert agree(asked.operation_id, people["admin"].actor).status == "succeeded"


@pytest.mark.parametrize("role", ["release_manager", "admin"])
def test_who_asked_does_not_decide_under_a_rule_either(
    failed: Run, workspace: Workspace, people: People, role: str
) -> None:
    """F130, F131: superusers included."""
    rule(workspace, "retry", count=1)
    asked = retry(failed, people[role].actor)
    people[role].user.is_superuser = True
    people[role].user.save()
    for decide in (agree, reject):
        assert refusal_of(lambda decide=decide: decide(asked.operation_id, people[role].actor)).code == "self_approval"
    assert states(asked.operation_id) == ("open", "awaiting_approval")


def test_an_application_decides_no_request(
    failed: Run, workspace: Workspace, people: People, application_actor: Actor
) -> None:
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    for act in (agree, reject, lambda subject, actor: withdraw(subject, actor=actor)):
        refused = refusal_of(lambda act=act: act(asked.operation_id, application_actor))
        assert refused.code == "permission_denied"


def test_another_workspace_finds_nothing(failed: Run, workspace: Workspace, people: People, outsider: Person) -> None:
    """I16."""
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    for act in (
        lambda: agree(asked.operation_id, outsider.actor),
        lambda: reject(asked.operation_id, outsider.actor),
        lambda: withdraw(asked.operation_id, actor=outsider.actor),
        lambda: preview(asked.operation_id, actor=outsider.actor),
    ):
        assert refusal_of(act).code == "not_found"


# a world that moves, and rules that do


def test_a_world_that_moved_opens_another_round_without_approvals(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor, clock: Clock
) -> None:
    """F51, ADR 0069: what changed is told; nobody's approval of one plan counts for another; the old round stays."""
    rule(workspace, "retry", expires_in=3600)
    asked = retry(failed, people["operator"].actor)
    agree(asked.operation_id, anna, plan_digest=asked.plan_digest)
    clock.advance(600)
    skip_stage(stages_of(failed)[2].id, actor=people["admin"].actor, reason="not needed")
    moved = refusal_of(lambda: agree(asked.operation_id, bert, plan_digest=asked.plan_digest))
    assert (moved.code, moved.extra["round"]) == ("plan_changed", 2)
    assert {line["stage"] for line in moved.extra["changed"]} == {"third"}
    before, now = rounds(asked.operation_id)
    assert (before.state, now.state) == ("superseded", "open")
    assert now.plan_digest == moved.extra["plan_digest"] == moved.extra["plan"]["plan_digest"] != before.plan_digest
    assert now.asked_at == before.asked_at == before.opened_at < now.opened_at
    assert (now.expires_at - now.opened_at).total_seconds() == 3600
    assert [one.user_id for one in before.decisions.all()] == [anna.user_id]
    assert not now.decisions.exists()
    assert Notice.objects.filter(kind=NoticeKind.APPROVAL_ASKED).count() == 2
    late = refusal_of(lambda: agree(asked.operation_id, bert, plan_digest=asked.plan_digest))
    assert (late.code, late.extra["plan_digest"]) == ("plan_changed", now.plan_digest)
    assert late.extra["changed"] == moved.extra["changed"]
    assert agree(asked.operation_id, bert, plan_digest=now.plan_digest).have == 1
    assert agree(asked.operation_id, anna, plan_digest=now.plan_digest).status == "succeeded"
    assert second(failed) == ("ready", 2)


def test_what_waits_is_asked_for_no_less_when_the_rule_is_loosened_or_gone(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor
) -> None:
    """a later change never loosens a pending request."""
    made = rule(workspace, "retry")
    asked = retry(failed, people["operator"].actor)
    ApprovalRule.objects.filter(id=made.id).update(count=1)
    assert agree(asked.operation_id, anna).state == "open"
    made.delete()
    assert (agree(asked.operation_id, bert).state, len(rounds(asked.operation_id))) == ("approved", 1)


def test_a_rule_that_was_tightened_asks_anew(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor
) -> None:
    made = rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    ApprovalRule.objects.filter(id=made.id).update(count=2, role="admin")
    moved = refusal_of(lambda: agree(asked.operation_id, anna))
    assert [line["field"] for line in moved.extra["changed"]] == ["approvals", "approvals"]
    now = rounds(asked.operation_id)[-1]
    assert (now.round, now.approver_role, now.count) == (2, "admin", 2)
    assert refusal_of(lambda: agree(asked.operation_id, bert)).code == "permission_denied"
    assert second(failed) == ("failed", 1)


def test_a_review_that_a_rule_is_about_asks_for_the_stricter_of_both_in_one_request(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor
) -> None:
    """ADR 0069."""
    rule(workspace, "rerun", expires_in=7200)
    effect_of(failed, "second")
    operation = in_review(failed, people["operator"].actor)
    (request,) = rounds(operation.id)
    assert (request.cause, request.count) == ("review", 2)
    assert request.expires_at is not None
    assert agree(operation.id, anna).status == "review_required"
    answer = agree(operation.id, bert)
    assert answer.status == "dispatched"
    assert Run.objects.get(recovered_from=failed).id == answer.target
    assert Operation.objects.get(id=operation.id).resolved_by_id == bert.user_id


def test_what_its_verdict_forbids_by_now_is_denied_and_not_decided_any_more(
    failed: Run, workspace: Workspace, people: People, anna: Actor
) -> None:
    """O46: the request is over without another round."""
    rule(workspace, "retry")
    asked = retry(failed, people["operator"].actor)
    agree(asked.operation_id, people["approver"].actor)
    effect_of(failed, "second", "contradicted")
    denied = refusal_of(lambda: agree(asked.operation_id, anna))
    assert (denied.code, denied.extra["disposition"]) == ("recovery_denied", "recovery_denied")
    assert states(asked.operation_id) == ("superseded", "denied")
    assert refusal_of(lambda: agree(asked.operation_id, anna)).code == "gate_decision_conflict"
    with past_the_triggers():
        Effect.objects.all().delete()
    assert retry(failed, people["operator"].actor).status == "awaiting_approval"


# its end


def test_who_asked_withdraws_it_and_nobody_else(failed: Run, workspace: Workspace, people: People, anna: Actor) -> None:
    rule(workspace, "retry")
    operator = people["operator"].actor
    asked = retry(failed, operator, key=KEY)
    for actor in (anna, people["admin"].actor):
        refused = refusal_of(lambda actor=actor: withdraw(asked.operation_id, actor=actor))
        assert (refused.code, refused.status) == ("permission_denied", 403)
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    answer = withdraw(asked.operation_id, actor=operator, reason="found another way")
    assert (answer.state, answer.status, answer.replayed) == ("withdrawn", "withdrawn", False)
    assert withdraw(asked.operation_id, actor=operator).replayed is True
    for act in (lambda: agree(asked.operation_id, anna), lambda: retry(failed, operator, key=KEY)):
        assert refusal_of(act).code == "approval_stale"
    events = AuditEvent.objects.filter(action="operation.withdraw").order_by("at", "id")
    assert [event.outcome for event in events] == ["denied", "denied", "allowed", "no_op"]
    assert second(failed) == ("failed", 1)


def test_what_was_decided_is_not_withdrawn(failed: Run, workspace: Workspace, people: People, anna: Actor) -> None:
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    agree(asked.operation_id, anna)
    refused = refusal_of(lambda: withdraw(asked.operation_id, actor=people["operator"].actor))
    assert refused.code == "gate_decision_conflict"
    assert states(asked.operation_id) == ("approved", "succeeded")


def test_silence_never_consents(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor, clock: Clock
) -> None:
    """F135, F136: past its end nobody decides it, whether or not the sweep has come by."""
    rule(workspace, "retry", expires_in=60)
    asked = retry(failed, people["operator"].actor, key=KEY)
    agree(asked.operation_id, anna)
    clock.advance(59)
    assert expire_due() == 0
    clock.advance(1)
    for act in (agree, reject):
        assert refusal_of(lambda act=act: act(asked.operation_id, bert)).code == "approval_stale"
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    assert (expire_due(), expire_due()) == (1, 0)
    assert states(asked.operation_id) == ("expired", "expired")
    for act in (
        lambda: agree(asked.operation_id, bert),
        lambda: withdraw(asked.operation_id, actor=people["operator"].actor),
        lambda: retry(failed, people["operator"].actor, key=KEY),
    ):
        assert refusal_of(act).code == "approval_stale"
    assert Notice.objects.filter(kind=NoticeKind.EXPIRED, subject=asked.operation_id).count() == 1
    assert second(failed) == ("failed", 1)


def test_a_review_without_a_rule_waits_for_ever(failed: Run, clock: Clock, people: People) -> None:
    effect_of(failed, "second")
    operation = in_review(failed)
    clock.advance(days=400)
    assert expire_due() == 0
    assert agree(operation.id, people["approver"].actor).status == "dispatched"


@pytest.mark.parametrize("verb", ["retry", "skip", "cancel"])
def test_nobody_agrees_to_anything_on_a_run_that_was_cancelled(
    start_run: StartRun, workspace: Workspace, people: People, anna: Actor, verb: str
) -> None:
    """Model §6: `execution_state_invalid`, before the sweep closes the request and after."""
    made = rule(workspace, verb, count=1)
    run = start_run("first", "second")
    actor = people["operator"].actor
    if verb == "retry":
        skip_stage(stages_of(run)[0].id, actor=actor, reason="r")
    ask = {
        "retry": lambda: retry_stage(stages_of(run)[0].id, actor=actor, reason="r"),
        "skip": lambda: skip_stage(stages_of(run)[0].id, actor=actor, reason="r"),
        "cancel": lambda: cancel_as_operation(run.id, actor=actor, reason="r"),
    }[verb]
    asked = ask()
    made.delete()
    cancel_as_operation(run.id, actor=people["admin"].actor, reason="stop")
    for swept in (False, True):
        assert expire_due() == 1 if swept else True
        for act in (agree, reject):
            assert refusal_of(lambda act=act: act(asked.operation_id, anna)).code == "execution_state_invalid"
    assert states(asked.operation_id) == ("expired", "expired")


def test_nobody_agrees_to_anything_on_a_run_past_its_deadline(
    start_run: StartRun, workspace: Workspace, people: People, anna: Actor, clock: Clock
) -> None:
    """human time counts; an expired run refuses approval. By the clock, whether or not a sweep has come by."""
    rule(workspace, "skip", count=1)
    run = start_run("first", "second", deadline_seconds=60)
    asked = skip_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="r")
    clock.advance(61)
    assert refusal_of(lambda: agree(asked.operation_id, anna)).code == "deadline_exceeded"
    assert sweeps.enforce_deadlines() == 1
    assert expire_due() == 1
    assert refusal_of(lambda: agree(asked.operation_id, anna)).code == "deadline_exceeded"
    assert states(asked.operation_id) == ("expired", "expired")


def test_a_fork_may_still_be_agreed_to_once_its_source_is_past_its_deadline(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, anna: Actor, clock: Clock
) -> None:
    """Model §2 Run: what helps then is a new run, or a fork."""
    rule(workspace, "rerun", count=1)
    run = start_run("first", deadline_seconds=60)
    hand.report(hand.take(), "failed", **FAILED)
    asked = rerun(Run.objects.get(id=run.id), people["operator"].actor)
    clock.advance(61)
    assert expire_due() == 0
    assert agree(asked.operation_id, anna).status == "dispatched"


# rights that change


def test_a_requester_who_lost_the_right_has_nothing_done_in_their_name(
    failed: Run, workspace: Workspace, people: People, anna: Actor
) -> None:
    """F150: refused, naming the right, and nothing is written; with the right again it goes on."""
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    member = Member.objects.filter(user=people["operator"].user)
    member.update(role="viewer")
    refused = refusal_of(lambda: agree(asked.operation_id, anna))
    assert (refused.code, refused.status) == ("permission_denied", 403)
    assert "the role viewer may not recover" in refused.detail
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    assert not RequestDecision.objects.exists()
    member.update(role="operator")
    assert agree(asked.operation_id, anna).status == "succeeded"


def test_what_a_requester_who_left_asked_for_is_only_rejected(
    failed: Run, workspace: Workspace, people: People, anna: Actor
) -> None:
    """F133, F150."""
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    Member.objects.filter(user=people["operator"].user).delete()
    refused = refusal_of(lambda: agree(asked.operation_id, anna))
    assert (refused.code, "no member any more" in refused.detail) == ("permission_denied", True)
    assert reject(asked.operation_id, anna).status == "denied"


def test_a_fork_whose_approver_left_before_it_was_made_comes_to_nothing(
    failed: Run, workspace: Workspace, people: People, anna: Actor, bert: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR 0069: approvals are counted again as the reserved run is made; void ones make none, and free the key."""
    rule(workspace, "rerun")
    asked = rerun(failed, people["operator"].actor, key=KEY)
    agree(asked.operation_id, anna)
    with monkeypatch.context() as patch:
        patch.setattr(forks, "dispatch", lambda operation, *, actor: operation)
        agree(asked.operation_id, bert)
    assert states(asked.operation_id) == ("approved", "reserved")
    assert agreed(asked.operation_id) == Agreed(2, 2, asked.plan_digest)
    Member.objects.filter(user_id=anna.user_id).delete()
    assert agreed(asked.operation_id) == Agreed(1, 2, asked.plan_digest)
    assert forks.carry_on_reserved(quiet_seconds=0) == 0
    operation = Operation.objects.get(id=asked.operation_id)
    assert (operation.state, operation.key, operation.target) == ("failed", "", None)
    assert operation.result["code"] == "approval_stale"
    told = AuditEvent.objects.get(action="run.rerun", outcome="denied")
    assert (told.code, told.actor, told.data["operation"]) == (
        "approval_stale",
        "operator-acme",
        str(asked.operation_id),
    )
    assert not Run.objects.filter(recovered_from=failed).exists()


def test_a_decision_can_be_looked_at_without_deciding(
    failed: Run, workspace: Workspace, people: People, anna: Actor
) -> None:
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    looked = preview(asked.operation_id, actor=people["viewer"].actor)
    assert (looked.digest, looked.in_review, looked.denied) == (asked.plan_digest, False, None)
    assert (looked.requirement.role, looked.requirement.count) == ("approver", 1)
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    agree(asked.operation_id, anna)
    assert refusal_of(lambda: preview(asked.operation_id, actor=anna)).code == "gate_decision_conflict"


def test_what_did_otherwise_than_agreed_to_commits_nothing(
    failed: Run, workspace: Workspace, people: People, anna: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F51: approval and effect are one transaction; a fault leaves neither."""
    rule(workspace, "retry", count=1)
    asked = retry(failed, people["operator"].actor)
    monkeypatch.setattr(transitions, "_walk", lambda *_: None)
    with pytest.raises(Exception, match="did otherwise than planned"):
        decide_request(asked.operation_id, actor=anna, approved=True)
    assert states(asked.operation_id) == ("open", "awaiting_approval")
    assert not RequestDecision.objects.exists()
    assert AuditEvent.objects.get(action="operation.approve").outcome == "failed"
