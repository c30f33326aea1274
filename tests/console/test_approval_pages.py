"""The inbox and the decision page: what waits for whom, what follows, and that only the form decides (P84)."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRequest, ApprovalRule, RequestDecision
from pipelines.access import CAPABILITIES, DECIDE
from pipelines.models import AuditEvent, Gate, GateDecision, Member, Role, Run, Workspace
from pipelines.sweeps import expire_gates
from recovery.models import Operation
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.console.test_planned_acts import shown
from tests.recovery.stories import effect_of, in_review, payroll_in_review
from tests.verbs import retry_stage

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]
BEFORE = {"name": "publish", "approval": {"when": "before"}}
TWO = {"name": "publish", "approval": {"when": "before", "count": 2, "require_person": True}}
OUTSIDE = {"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}
ATTACK = '"><script>alert(1)</script>'


def told(page: Any) -> str:
    """The page as a reader sees it."""
    return unescape(text_of(page))


def digest(page: Any) -> str:
    """The plan that the form names."""
    found = re.search(r'name="plan_digest" value="([0-9a-f]+)"', page.content.decode())
    assert found
    return found[1]


def address_of(item: Gate | Operation, act: str = "") -> str:
    return f"/console/approvals/{item.id}/{act + '/' if act else ''}"


@pytest.fixture
def gate(start_run: StartRun) -> Gate:
    """The open gate before publish in orders."""
    run = start_run(BEFORE, "notify", name="orders")
    return Gate.objects.get(run=run)


@pytest.fixture
def reviewed(start_run: StartRun, hand: Hand) -> Operation:
    """A rerun that is in review, because a committed effect is not cleared."""
    return payroll_in_review(start_run, hand)


# gates


def test_a_gate_before_the_work_says_what_follows_and_a_form_decides_it(
    browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    """P79, P84."""
    approver = browse(people["approver"])
    page = told(approver.get(address_of(gate)))
    for words in (
        "Gate before publish in orders",
        "Begins publish goes to a worker that has registered Handler",
        "Covers every attempt of epoch 1: a retry by the machine asks nobody again",
        "Fails publish, for good in this run: neither a retry nor a skip reopens it",
        "Held 1 stage behind it, for good in this run: notify",
        "Ends the run is failed: nothing else of it is under way",
        "1 of approver, release manager or admin, never who asked; or the application billing",
        "Nobody has decided yet.",
    ):
        assert words in page
    answer = approver.post(address_of(gate, "approve"), {"reason": "looks\n right"}, follow=True)
    assert answer.redirect_chain == [(address_of(gate), 303)]
    assert stages_of(gate.run)[0].state == "ready"
    assert "publish is approved: it is ready now." in told(answer)
    assert "Approved approver-acme approver : looks right" in told(answer)
    assert "<textarea" not in answer.content.decode(), "there is nothing to decide any more"


def test_a_gate_after_the_work_shows_what_it_hands_on_and_who_goes_on(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """P77, P79: the result with its size and digest, the attempt that made it, and which stages may begin."""
    run = start_run(
        {"name": "publish", "approval": {"when": "after", "expires_in": 60}},
        {"name": "notify", "depends_on": ["publish"]},
        {"name": "check", "depends_on": []},
        {"name": "archive", "depends_on": ["publish", "check"]},
        name="orders",
    )
    hand.report(hand.take(), output={"rows": 8812})
    gate = Gate.objects.get(run=run)
    approver = browse(people["approver"])
    page = approver.get(address_of(gate))
    for words in (
        "Gate after publish in orders",
        "Completes publish, with the result that it offers",
        "Then 1 stage may begin: notify",
        "Later 1 stage, once the rest that they wait for lets them: archive",
        "Kept the result that it offers stays readable and never counts",
        '{"rows":8812}',
        "13 bytes",
        "publish fails: silence never consents",
        "Expires",
    ):
        assert words in told(page), words
    assert f'/console/attempts/{gate.attempt}/"' in page.content.decode()
    assert stages_of(run)[0].output_digest == "" or "Ends" not in told(page)
    approver.post(address_of(gate, "approve"))
    assert [stage.state for stage in stages_of(run)] == ["completed", "ready", "ready", "pending"]


def test_a_rejection_needs_a_reason_and_is_final(browse: Browse, people: dict[str, Person], gate: Gate) -> None:
    """P80: without a reason nothing is decided, and the field says why."""
    approver = browse(people["approver"])
    answer = approver.post(address_of(gate, "reject"), {"reason": "  \n "})
    assert answer.status_code == 400
    field = re.search(r'<textarea id="reason"[^>]*>', answer.content.decode())
    assert field
    assert 'aria-invalid="true"' in field[0]
    assert "autofocus" in field[0], "on a phone it is far below what the top of the page says"
    assert not GateDecision.objects.exists()
    answer = approver.post(address_of(gate, "reject"), {"reason": "wrong rates"}, follow=True)
    assert "publish is rejected: it is failed now." in told(answer)
    assert "Rejected approver-acme approver : wrong rates" in told(answer)
    assert stages_of(gate.run)[0].state == "failed"
    late = browse(people["admin"]).post(address_of(gate, "approve"), {"reason": "they are right"})
    assert late.status_code == 409
    assert "Not done: this is how it stands now" in told(late)
    assert GateDecision.objects.count() == 1


def test_a_reason_that_is_too_long_is_refused_and_still_there(
    browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    answer = browse(people["approver"]).post(address_of(gate, "approve"), {"reason": "x" * 2001})
    assert answer.status_code == 400
    assert "x" * 2001 in answer.content.decode()
    assert Gate.objects.get().state == "open"


def test_several_approvals_are_counted_and_one_that_counts_no_more_is_shown_as_void(
    browse: Browse, people: dict[str, Person], start_run: StartRun
) -> None:
    """F140, model §5: one person counts once; who left does not count, and their decision stays readable."""
    run = start_run(TWO, name="orders")
    gate = Gate.objects.get(run=run)
    approver, admin = browse(people["approver"]), browse(people["admin"])
    assert "Counts the next one is not the last: 1 more approval must follow" in told(approver.get(address_of(gate)))
    answer = approver.post(address_of(gate, "approve"), {"reason": "fine"}, follow=True)
    assert "Your approval counts: 1 of 2. It waits for the rest." in told(answer)
    assert "You have decided it already; one person counts once." in told(answer)
    assert "Approve, as 2 of 2" in told(admin.get(address_of(gate)))
    Member.objects.filter(user=people["approver"].user).delete()
    page = told(admin.get(address_of(gate)))
    assert "Void approver-acme approver : fine" in page
    assert "Approve, as 1 of 2" in page
    admin.post(address_of(gate, "approve"))
    assert stages_of(run)[0].state == "waiting"
    browse(people["release_manager"]).post(address_of(gate, "approve"))
    assert stages_of(run)[0].state == "ready"


def test_an_expired_gate_has_no_buttons_and_takes_no_decision(
    browse: Browse, people: dict[str, Person], start_run: StartRun, clock: Clock
) -> None:
    """F136: also in the moment before a sweep has said so."""
    run = start_run({"name": "publish", "approval": {"when": "before", "expires_in": 60}}, name="orders")
    gate = Gate.objects.get(run=run)
    approver = browse(people["approver"])
    clock.advance(61)
    for _ in range(2):
        page = approver.get(address_of(gate))
        assert "formaction" not in page.content.decode()
        answer = approver.post(address_of(gate, "approve"), {"reason": "late"})
        assert answer.status_code == 409
        assert "expired" in told(answer)
        expire_gates()
    assert Gate.objects.get().state == "expired"
    assert not GateDecision.objects.exists()


@pytest.mark.parametrize("role", Role.values)
def test_each_role_is_offered_the_form_or_told_why_not(
    role: str, browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    """Model §5: in words in place of the buttons, and refused all the same."""
    visitor = browse(people[role])
    page = visitor.get(address_of(gate))
    assert page.status_code == 200
    may = role in CAPABILITIES[DECIDE]
    assert ("formaction" in page.content.decode()) == may
    assert (f"The role {role} may not decide this" in told(page)) != may
    assert visitor.post(address_of(gate, "approve")).status_code == (303 if may else 403)
    assert Gate.objects.get().state == ("approved" if may else "open")


def test_who_started_the_run_decides_nothing_superusers_included(
    browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    """F130, F131: said beforehand, refused, and in the audit."""
    admin = people["admin"]
    admin.user.is_superuser = admin.user.is_staff = True
    admin.user.save()
    Run.objects.filter(id=gate.run_id).update(requesters=[admin.user.id])
    visitor = browse(admin)
    page = visitor.get(address_of(gate))
    assert "Who asked for it does not decide it; somebody else must look at it." in told(page)
    assert "formaction" not in page.content.decode()
    assert "Nothing waits for you" in told(visitor.get("/console/approvals/"))
    for act in ("approve", "reject"):
        assert visitor.post(address_of(gate, act), {"reason": "mine"}).status_code == 403
    assert Gate.objects.get().state == "open"
    denied = AuditEvent.objects.filter(user=admin.user).values_list("outcome", "code", "channel")
    assert set(denied) == {("denied", "self_approval", "console")}
    assert len(denied) == 2


def test_a_role_that_came_after_the_question_does_not_decide_it(
    browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    """F135."""
    Member.objects.filter(user=people["operator"].user).update(role=Role.APPROVER)
    visitor = browse(people["operator"])
    assert "which is after this was asked for" in told(visitor.get(address_of(gate)))
    assert visitor.post(address_of(gate, "approve")).status_code == 403
    assert Gate.objects.get().state == "open"


def test_looking_decides_nothing_whatever_the_address(
    browse: Browse, people: dict[str, Person], gate: Gate, reviewed: Operation
) -> None:
    """A link alone never decides: neither does a prefetch, nor a mail scanner that follows it."""
    approver = browse(people["approver"])
    for item in (gate, reviewed):
        for act in ("", "approve", "reject", "withdraw"):
            for headers in ({}, {"Sec-Purpose": "prefetch"}, {"HX-Request": "true"}):
                assert approver.get(address_of(item, act), {"reason": "x"}, headers=headers).status_code == 200
                assert approver.head(address_of(item, act)).status_code == 200
    assert Gate.objects.get().state == "open"
    assert ApprovalRequest.objects.get().state == "open"
    assert not GateDecision.objects.exists()
    assert not RequestDecision.objects.exists()


def test_the_link_of_a_message_leads_through_the_log_in_to_its_page_in_its_own_workspace(
    people: dict[str, Person], other_workspace: Workspace, gate: Gate
) -> None:
    """Whoever is in several workspaces need not choose; nobody is let past the log-in, and nothing is decided by it."""
    user = people["approver"].user
    other_workspace.members.create(user=user, role=Role.VIEWER)
    link = f"{address_of(gate)}?workspace=acme"
    visitor = Visitor()
    answer = visitor.get(link)
    assert answer.headers["Location"] == f"/console/login/?{urlencode({'next': link})}"
    visitor.force_login(user)
    assert "Gate before publish in orders" in told(visitor.get(link))
    assert Gate.objects.get().state == "open"
    assert visitor.post(address_of(gate, "approve")).status_code == 303
    assert Gate.objects.get().state == "approved"


def test_a_form_of_another_site_decides_nothing(people: dict[str, Person], gate: Gate) -> None:
    """A decision needs the token of our own page."""
    visitor = Client(enforce_csrf_checks=True)
    visitor.force_login(people["approver"].user)
    assert visitor.post(address_of(gate, "approve"), {"reason": "x"}).status_code == 403
    assert Gate.objects.get().state == "open"
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', visitor.get(address_of(gate)).content.decode())
    assert token
    answer = visitor.post(address_of(gate, "approve"), {"reason": "x", "csrfmiddlewaretoken": token[1]})
    assert answer.status_code == 303
    assert Gate.objects.get().state == "approved"


def test_the_same_form_sent_twice_decides_once_and_an_opposite_one_is_refused(
    browse: Browse, people: dict[str, Person], gate: Gate, reviewed: Operation
) -> None:
    """F138: a refresh, a double click, a form of yesterday."""
    approver = browse(people["approver"])
    plan = digest(approver.get(address_of(reviewed)))
    for item in (gate, reviewed):
        form = {"reason": "seen", "plan_digest": plan}
        answers = [approver.post(address_of(item, "approve"), form) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [303, 303]
        assert approver.post(address_of(item, "reject"), {"reason": "no"}).status_code == 409
    assert GateDecision.objects.count() == 1
    assert RequestDecision.objects.count() == 1
    assert Run.objects.filter(recovered_from=reviewed.run).count() == 1


def test_earlier_gates_of_the_stage_stay_readable(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """F139: a new attempt asks anew, and the old answer is one click away."""
    run = start_run({"name": "publish", "approval": {"when": "after"}}, name="orders")
    hand.report(hand.take(), output=1)
    first = Gate.objects.get(run=run)
    browse(people["approver"]).post(address_of(first, "approve"), {"reason": "first time"})
    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="again")
    hand.report(hand.take(), output=2)
    second = Gate.objects.get(run=run, state="open")
    page = browse(people["approver"]).get(address_of(second))
    assert "Other gates of publish Approved Gate after it, epoch 1" in told(page)
    assert f'href="{address_of(first)}"' in page.content.decode()
    old = told(browse(people["approver"]).get(address_of(first)))
    assert "approver-acme approver : first time" in old
    assert "Open Gate after it, epoch 2" in old
    assert "operator-acme" in told(page), "who retried it asks for it"


# requests


def test_what_is_in_review_says_why_and_only_somebody_else_lets_it_go_on(
    browse: Browse, people: dict[str, Person], reviewed: Operation
) -> None:
    """O44, O45: the reasons, the effect that may repeat with its key, and who may decide."""
    approver = browse(people["approver"])
    inbox = told(approver.get("/console/approvals/"))
    assert "Review Rerun of payroll development" in inbox
    assert "Runs 2 stages (pay, book), may repeat 1 effect outside. Pay: external http; no clean sealed" in inbox
    assert "Approvals 1" in inbox, "the top bar says how many wait"
    detail = text_of(approver.get(f"/console/operations/{reviewed.id}/"))
    assert "Verdict operator review required" in detail
    assert "it waits for somebody other than" in detail
    page = approver.get(address_of(reviewed))
    assert "May repeat pay: external http, committed; the outside system knows it by charge-7" in told(page)
    assert "Verdict operator review required" in told(page)
    form = {"plan_digest": digest(page), "reason": "the bank has none"}
    answer = approver.post(address_of(reviewed, "approve"), form, follow=True)
    fork = Run.objects.get(recovered_from=reviewed.run)
    assert "Approved: Rerun of payroll; it goes on as a new run." in told(answer)
    assert f'href="/console/runs/{fork.id}/"' in answer.content.decode()
    reviewed.refresh_from_db()
    assert reviewed.disposition == "operator_review_required"
    assert "let go on by approver-acme" in text_of(approver.get(f"/console/operations/{reviewed.id}/"))


def test_an_operation_is_rejected_only_with_a_reason_and_for_good(
    browse: Browse, people: dict[str, Person], reviewed: Operation
) -> None:
    approver = browse(people["approver"])
    assert approver.post(address_of(reviewed, "reject"), {"reason": " "}).status_code == 400
    approver.post(address_of(reviewed, "reject"), {"reason": "it was paid"})
    reviewed.refresh_from_db()
    assert (reviewed.state, Run.objects.filter(recovered_from=reviewed.run).exists()) == ("denied", False)
    again = browse(people["admin"]).post(address_of(reviewed, "approve"), {"reason": "yes it was not"})
    assert again.status_code == 409
    page = told(browse(people["admin"]).get(address_of(reviewed)))
    assert "Rejected approver-acme approver : it was paid" in page
    assert "Approve" not in page.replace("Approvals", "").replace("Approved", ""), "there is nothing to decide any more"
    assert "Rejected approver-acme: it was paid" in told(approver.get(f"/console/operations/{reviewed.id}/"))


def test_whoever_asked_sees_why_they_may_not_decide_and_may_withdraw(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """F130: admins included; said beforehand, and refused all the same. What is withdrawn is never done."""
    admin, approver = people["admin"], browse(people["approver"])
    run = start_run(OUTSIDE, name="payroll")
    job = hand.take()
    effect_of(run, "pay")
    hand.report(job, "failed", error_code="DECLINED", retryable=False)
    operation = in_review(Run.objects.get(id=run.id), admin.actor, from_step_id="pay")
    visitor = browse(admin)
    page = visitor.get(address_of(operation))
    assert "Who asked for it does not decide it" in told(page)
    assert "formaction" not in page.content.decode()
    assert "Withdraw it" in told(page)
    assert "Rerun of payroll" in told(visitor.get("/console/approvals/?view=asked"))
    assert "Nothing waits for you" in told(visitor.get("/console/approvals/"))
    assert visitor.post(address_of(operation, "approve"), {"reason": "mine"}).status_code == 403
    assert "Withdraw it" not in told(approver.get(address_of(operation)))
    assert approver.post(address_of(operation, "withdraw")).status_code == 403
    answer = visitor.post(address_of(operation, "withdraw"), {"reason": "not needed"}, follow=True)
    assert "Withdrawn: Rerun of payroll. Nothing of it was done." in told(answer)
    operation.refresh_from_db()
    assert operation.state == "withdrawn"
    late = approver.post(address_of(operation, "approve"), {"reason": "go"})
    assert late.status_code == 409
    assert not Run.objects.filter(recovered_from=run).exists()


def test_a_plan_that_moved_comes_back_marked_with_what_was_typed_and_is_asked_anew(
    browse: Browse, people: dict[str, Person], reviewed: Operation
) -> None:
    """F51, F131: nothing is done; the page names the new plan, and what the round before it said stays readable."""
    approver = browse(people["approver"])
    page = approver.get(address_of(reviewed))
    effect_of(reviewed.run, "pay", key="charge-8")
    answer = approver.post(address_of(reviewed, "approve"), {"plan_digest": digest(page), "reason": "seen it"})
    assert answer.status_code == 409
    assert "This is another plan than the one before" in told(answer)
    assert "New: pay: external http, committed; the outside system knows it by charge-8" in told(answer)
    assert "Not done: this is how it stands now" not in told(answer), "it is said once"
    assert ">seen it</textarea>" in answer.content.decode()
    assert not Run.objects.filter(recovered_from=reviewed.run).exists()
    assert digest(answer) != digest(page)
    assert "Superseded Round 1" in told(answer)
    assert "asked anew, round 2" in told(approver.get("/console/approvals/"))
    approver.post(address_of(reviewed, "approve"), {"plan_digest": digest(answer), "reason": "seen it"})
    assert Run.objects.filter(recovered_from=reviewed.run).count() == 1


def test_the_page_says_beforehand_that_approving_would_ask_anew_or_come_to_nothing(
    browse: Browse, people: dict[str, Person], reviewed: Operation
) -> None:
    """F51: looking ahead changes nothing of what waits."""
    approver = browse(people["approver"])
    before = digest(approver.get(address_of(reviewed)))
    effect_of(reviewed.run, "pay", key="charge-8")
    page = approver.get(address_of(reviewed))
    assert "The world has moved since this was asked" in told(page)
    assert "New: pay: external http, committed; the outside system knows it by charge-8" in told(page)
    assert digest(page) == before
    assert "The world has moved" not in told(browse(people["viewer"]).get(address_of(reviewed)))
    effect_of(reviewed.run, "pay", "contradicted", key="charge-9")
    page = approver.get(address_of(reviewed))
    assert "It could not be done as things stand" in told(page)
    assert ApprovalRequest.objects.get().state == "open"
    answer = approver.post(address_of(reviewed, "approve"), {"plan_digest": before, "reason": "go on"})
    assert answer.status_code == 409
    assert "formaction" not in answer.content.decode(), "its verdict forbids it: nobody overrides that"
    assert not Run.objects.filter(recovered_from=reviewed.run).exists()
    assert "Its verdict forbids it by now." in told(approver.get("/console/approvals/?view=decided"))


def test_a_form_that_shows_an_older_plan_than_the_one_that_waits_decides_nothing(
    browse: Browse, people: dict[str, Person], reviewed: Operation
) -> None:
    """F136: two people look; the world moves; the first one's approval is of a plan that is over."""
    approver, admin = browse(people["approver"]), browse(people["admin"])
    old = digest(approver.get(address_of(reviewed)))
    effect_of(reviewed.run, "pay", key="charge-8")
    admin.post(address_of(reviewed, "approve"), {"plan_digest": old, "reason": "mine"})
    answer = approver.post(address_of(reviewed, "approve"), {"plan_digest": old, "reason": "mine too"})
    assert answer.status_code == 409
    assert "This is another plan than the one before" in told(answer)
    assert not RequestDecision.objects.exists()
    assert not Run.objects.filter(recovered_from=reviewed.run).exists()


@pytest.mark.parametrize("approved", [True, False])
def test_a_retry_that_a_rule_is_about_is_asked_for_in_its_dialog_and_done_once_somebody_agreed(
    approved: bool, browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """F140, model §5: a rule binds admins too; the same form again tells where it stands and asks nobody twice."""
    ApprovalRule.objects.create(workspace_id=people["admin"].actor.workspace_id, name="retries", kinds=["retry"])
    run = start_run("load", name="orders")
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    admin, approver = browse(people["admin"]), browse(people["approver"])
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    page = admin.get(address)
    assert "Ask for approval" in told(page)
    form = {"shown": shown(page), "reason": "the table is back"}
    answer = admin.post(address, form, follow=True)
    assert "waits until somebody else approves it" in told(answer)
    assert stages_of(run)[0].state == "failed"
    request = ApprovalRequest.objects.get()
    assert "Retry of load in orders development Runs 1 stage (load)" in told(approver.get("/console/approvals/"))
    act = "approve" if approved else "reject"
    path = f"/console/approvals/{request.subject}/"
    answer = approver.post(f"{path}{act}/", {"plan_digest": request.plan_digest, "reason": "I see"}, follow=True)
    said = "Approved: Retry of load in orders; it is done." if approved else "Rejected: Retry of load in orders."
    assert said in told(answer)
    assert (stages_of(run)[0].state, stages_of(run)[0].epoch) == (("ready", 2) if approved else ("failed", 1))
    again = admin.post(address, form, follow=True)
    assert again.status_code in (200, 409), "the same form again"
    assert (ApprovalRequest.objects.count(), Operation.objects.count()) == (1, 1)
    assert stages_of(run)[0].epoch == (2 if approved else 1)


def test_who_asked_and_why_stand_before_what_follows_and_whether_one_approval_is_enough(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """P84: on a narrow screen too nobody decides before they have read that; who must agree is said once."""
    two = {"name": "retries", "kinds": ["retry"], "count": 2}
    ApprovalRule.objects.create(workspace_id=people["admin"].actor.workspace_id, **two)
    run = start_run("load", name="orders")
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    operator = browse(people["operator"])
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    operator.post(address, {"shown": shown(operator.get(address)), "reason": "the table is back"})
    path = f"/console/approvals/{ApprovalRequest.objects.get().subject}/"
    page = told(browse(people["approver"]).get(path))
    asked = "Asked by operator-acme just now : “the table is back” expires in"
    places = [page.index(words) for words in (asked, "Counts the next one is not the last: 1 more", "Your decision")]
    assert places == sorted(places)
    assert page.count("the table is back") == 1
    assert "Needs approval" not in page
    form = {"plan_digest": ApprovalRequest.objects.get().plan_digest}
    after = told(browse(people["approver"]).post(f"{path}approve/", form, follow=True))
    assert "Counts the next one" not in after, "the next one is the last"


# the inbox


def test_long_lists_are_paged_and_lead_back(browse: Browse, people: dict[str, Person], start_run: StartRun) -> None:
    for number in range(3):
        start_run({**BEFORE, "name": f"stage-{number}"}, name="orders")
    approver = browse(people["approver"])
    first = approver.get("/console/approvals/?page_size=2")
    assert "Gate before stage-2 in orders" in told(first)
    assert "Gate before stage-0 in orders" not in told(first)
    older = re.search(r'href="([^"]+)" rel="next"', first.content.decode())
    assert older
    second = approver.get(f"/console/approvals/{unescape(older[1])}")
    assert "Gate before stage-0 in orders" in told(second)
    assert "Gate before stage-1 in orders" not in told(second)
    assert 'rel="prev"' in second.content.decode()


def test_little_time_left_is_a_warning_and_an_end_far_off_is_not(
    browse: Browse, people: dict[str, Person], start_run: StartRun, clock: Clock
) -> None:
    """A tenth of the time, an hour at most; the page itself warns too."""
    start_run({"name": "scope", "approval": {"when": "before", "expires_in": 600}}, name="orders")
    approver = browse(people["approver"])
    warning = 'data-status="blocked">Expires'
    assert warning not in approver.get("/console/approvals/").content.decode()
    clock.advance(545)
    assert warning in approver.get("/console/approvals/").content.decode()
    assert re.search(r"Expires in \d+ s", told(approver.get(address_of(Gate.objects.get()))))


def test_a_fork_of_nobody_knows_whom_is_decided_by_nobody(
    browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    """F133: said with what to do instead."""
    Run.objects.filter(id=gate.run_id).update(recovered_from=gate.run_id, requesters=[])
    admin = browse(people["admin"])
    page = told(admin.get(address_of(gate)))
    assert "nobody can be a second person: cancel it and ask anew" in page
    assert "Asked by nobody known" in page
    assert admin.post(address_of(gate, "approve")).status_code == 403
    assert Gate.objects.get().state == "open"


def test_each_list_says_what_is_in_it_and_helps_when_it_is_empty(
    browse: Browse, people: dict[str, Person], gate: Gate
) -> None:
    """P84: for me, all that wait, asked by me, decided; whoever may decide nothing is told so once."""
    approver, viewer = browse(people["approver"]), browse(people["viewer"])
    assert "Gate Gate before publish in orders development" in told(approver.get("/console/approvals/"))
    everything = told(viewer.get("/console/approvals/?view=waiting"))
    assert "Gate before publish in orders" in everything
    assert everything.count("Your role, viewer, may not decide; it needs one of") == 1
    assert "What you asked for is under Asked by me" in told(viewer.get("/console/approvals/"))
    assert "when your role may decide it" not in told(viewer.get("/console/approvals/")), "it may decide nothing"
    assert "You asked for nothing that needs others" in told(viewer.get("/console/approvals/?view=asked"))
    assert "Nothing was decided yet" in told(viewer.get("/console/approvals/?view=decided"))
    approver.post(address_of(gate, "approve"), {"reason": "fine"})
    decided = told(viewer.get("/console/approvals/?view=decided"))
    assert "Approved Gate before publish in orders" in decided
    assert "approver-acme: fine" in decided
    assert "Once approved" not in decided, "what is over would do nothing any more"
    assert "Nothing waits for a decision" in told(viewer.get("/console/approvals/?view=waiting"))
    assert viewer.get("/console/approvals/?view=everything").status_code == 400
    assert viewer.get("/console/approvals/?cursor=nonsense").status_code == 400


def test_the_top_bar_counts_what_one_may_decide_and_no_further_than_needed(
    browse: Browse, people: dict[str, Person], start_run: StartRun
) -> None:
    gates = [{**BEFORE, "name": f"stage-{number}", "depends_on": []} for number in range(101)]
    start_run(*gates, {"name": "last", "depends_on": ["stage-0"]})
    assert "Approvals 99+" in told(browse(people["approver"]).get("/console/workers/"))
    assert re.search(r"Approvals\s+Triggers", told(browse(people["operator"]).get("/console/workers/")))


def test_a_list_being_read_holds_still_and_counts_what_is_new(
    browse: Browse, people: dict[str, Person], start_run: StartRun, gate: Gate
) -> None:
    """Nothing moves under the pointer: 204 while nothing changed, newer ones wait behind a pill."""
    approver = browse(people["approver"])
    polled = re.search(r'data-live hx-get="([^"]+)"', approver.get("/console/approvals/").content.decode())
    assert polled
    address = f"/console/approvals/{unescape(polled[1])}"
    assert approver.part(address).status_code == 204
    start_run({**BEFORE, "name": "later"}, name="others")
    part = approver.part(address)
    assert "1 new — show" in told(part)
    assert "Gate before later in others" not in told(part)
    assert "<html" not in part.content.decode()
    assert "Gate before later in others" in told(approver.get("/console/approvals/"))


def test_how_it_stands_follows_by_itself_beside_the_form(
    browse: Browse, people: dict[str, Person], start_run: StartRun
) -> None:
    """What somebody types is no part of what is fetched; a form that is over says so."""
    gate = Gate.objects.get(run=start_run(TWO, name="orders"))
    approver, admin = browse(people["approver"]), browse(people["admin"])
    polled = re.search(r'data-live hx-get="([^"]+)"', approver.get(address_of(gate)).content.decode())
    assert polled
    address = unescape(polled[1])
    assert approver.part(address).status_code == 204
    admin.post(address_of(gate, "approve"), {"reason": "fine"})
    part = approver.part(address)
    assert "Approved admin-acme admin : fine" in told(part)
    assert "<form" not in part.content.decode()
    assert "Show it as it is now" not in told(part)
    admin.post(address_of(gate, "reject"), {"reason": "no"})
    browse(people["release_manager"]).post(address_of(gate, "reject"), {"reason": "wrong"})
    over = approver.part(address)
    assert "It is rejected by now" in told(over)
    assert "Show it as it is now" in told(over)
    assert "data-live" not in over.content.decode()


def test_no_list_and_no_page_asks_more_for_more(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """N+1: gates and requests, decisions and stages."""
    approver = browse(people["approver"])
    few = Gate.objects.get(run=start_run(TWO, name="few"))
    lists = [f"/console/approvals/?view={view}" for view in ("mine", "waiting", "asked", "decided")]
    before = {path: _queries(approver, path) for path in lists}
    page = _queries(approver, address_of(few))
    for number in range(5):
        start_run(TWO, *(f"s{more}" for more in range(10)), name=f"many-{number}")
    many = Gate.objects.exclude(id=few.id).first()
    assert many is not None
    for role in ("admin", "release_manager"):
        browse(people[role]).post(address_of(many, "approve"), {"reason": "fine"})
    assert {path: _queries(approver, path) for path in lists}.items() >= {
        (path, count) for path, count in before.items() if "waiting" in path or "mine" in path
    }
    assert _queries(approver, address_of(many)) <= page + 1
    assert max(before.values()) <= 14  # one of them looks for freezes, for the banner


def _queries(visitor: Visitor, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        page = visitor.get(path)
    assert page.status_code == 200
    return len(captured)


def test_names_and_reasons_are_text_and_never_markup(
    browse: Browse, people: dict[str, Person], start_run: StartRun
) -> None:
    gate = Gate.objects.get(run=start_run({**BEFORE, "name": ATTACK}, name=ATTACK))
    approver = browse(people["approver"])
    for path in ("/console/approvals/", address_of(gate)):
        assert "<script>alert" not in approver.get(path).content.decode()
    page = approver.post(address_of(gate, "approve"), {"reason": ATTACK}, follow=True)
    assert "<script>alert" not in page.content.decode()
    assert "<script>alert" not in approver.get("/console/approvals/?view=decided").content.decode()


def test_nobody_finds_what_waits_in_another_workspace(
    browse: Browse, outsider: Person, gate: Gate, reviewed: Operation
) -> None:
    """I16: a foreign id is 404, for looking and for deciding."""
    stranger = browse(outsider)
    for item in (gate, reviewed):
        assert stranger.get(address_of(item)).status_code == 404
        for act in ("approve", "reject", "withdraw"):
            assert stranger.post(address_of(item, act), {"reason": "x"}).status_code == 404
    for view in ("mine", "waiting", "asked", "decided"):
        assert "in orders" not in told(stranger.get(f"/console/approvals/?view={view}"))
    assert Gate.objects.get().state == "open"
