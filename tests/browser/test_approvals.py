"""Deciding in Chromium: by another person, twice at once, from a page that is over, narrow and wide, in both themes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from approvals.models import ApprovalRequest, RequestDecision
from approvals.transitions import decide_gate
from pipelines.models import Gate, GateDecision, Run
from recovery.models import Operation
from tests.browser.looking import UNREACHABLE, Window
from tests.cast import Hand, Person, stages_of
from tests.recovery.stories import effect_of, payroll_in_review

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]
StartRun = Callable[..., Run]


@pytest.fixture
def gate(start_run: StartRun) -> Gate:
    """An open gate that two people must approve."""
    asked = {"when": "before", "count": 2, "expires_in": 3600}
    run = start_run({"name": "publish", "approval": asked}, "notify", name="orders")
    return Gate.objects.get(run=run)


@pytest.fixture
def reviewed(start_run: StartRun, hand: Hand) -> Operation:
    return payroll_in_review(start_run, hand)


def test_two_people_approve_a_gate_by_keyboard_and_each_sees_the_other(
    window: Open, people: dict[str, Person], gate: Gate
) -> None:
    """P84, F138: from the top bar to the decision; what the other one does shows beside the form, and takes no text."""
    one, another = window(people["approver"]), window(people["admin"])
    for each in (one, another):
        each.page.keyboard.press("g")
        each.page.keyboard.press("a")
        each.page.wait_for_url("**/console/approvals/")
        each.page.locator("body").press("j")
        each.page.keyboard.press("Enter")
        each.page.wait_for_url(f"**/console/approvals/{gate.id}/")
    another.page.get_by_label("Reason").fill("half a sentence, still")
    one.page.get_by_label("Reason").fill("rates are right")
    one.page.get_by_role("button", name="Approve, as 1 of 2").dblclick()
    one.page.get_by_text("Your approval counts: 1 of 2.").first.wait_for()
    assert GateDecision.objects.count() == 1
    another.page.get_by_text("approver-acme approver: rates are right").wait_for()
    assert another.page.get_by_label("Reason").input_value() == "half a sentence, still"
    another.page.get_by_role("button", name="Approve").click()
    another.page.get_by_text("publish is approved: it is ready now.").wait_for()
    assert [stage.state for stage in stages_of(gate.run)] == ["ready", "pending"]
    link = one.page.get_by_text("Show it as it is now")
    assert "underline" in link.evaluate("one => getComputedStyle(one).textDecorationLine"), "it looks like a link"
    link.click()
    one.page.locator(".head .badge", has_text="Approved").wait_for()
    assert one.page.get_by_role("button", name="Approve").count() == 0


def test_an_empty_rejection_stays_on_the_page_and_approving_needs_no_reason(
    window: Open, people: dict[str, Person], gate: Gate
) -> None:
    one = window(people["approver"])
    one.go(f"/console/approvals/{gate.id}/")
    one.page.get_by_role("button", name="Reject").click()
    assert one.page.evaluate("document.activeElement.id") == "reason", "the browser asks for the reason"
    assert not GateDecision.objects.exists()
    one.page.get_by_role("button", name="Approve").click()
    one.page.get_by_text("Your approval counts").wait_for()


def test_going_back_and_deciding_otherwise_is_refused_and_shows_how_it_stands(
    window: Open, people: dict[str, Person], start_run: StartRun
) -> None:
    """F136, F138: a page from the past decides nothing."""
    run = start_run({"name": "publish", "approval": {"when": "before"}}, name="orders")
    gate = Gate.objects.get(run=run)
    one = window(people["approver"])
    page = one.page
    one.go("/console/approvals/")
    page.get_by_role("link", name="Gate before publish in orders").click()
    page.get_by_label("Reason").fill("fine")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("publish is approved: it is ready now.").wait_for()
    page.reload()
    assert page.get_by_role("button", name="Approve").count() == 0
    other = window(people["admin"])
    fresh = Gate.objects.get(run=start_run({"name": "load", "approval": {"when": "before"}}, name="other"))
    other.go(f"/console/approvals/{fresh.id}/")
    decide_gate(fresh.stage_id, actor=people["approver"].actor, approved=True, reason="mine", gate_id=fresh.id)
    other.page.get_by_label("Reason").fill("wrong table")
    other.page.get_by_role("button", name="Reject").click()
    other.page.get_by_text("Not done: this is how it stands now").wait_for()
    assert other.page.get_by_role("button", name="Reject").count() == 0
    assert [made.approved for made in GateDecision.objects.filter(gate__in=[gate, fresh])] == [True, True]


def test_a_request_is_approved_without_javascript_after_its_plan_moved(
    window: Open, people: dict[str, Person], reviewed: Operation
) -> None:
    """F51: the new plan in place of the old one, what was typed still there, and one run in the end."""
    page = window(people["approver"], java_script_enabled=False).page
    page.get_by_role("link", name="Approvals 1").click()
    page.get_by_role("link", name="Rerun of payroll").click()
    effect_of(reviewed.run, "pay", key="charge-8")
    page.get_by_label("Reason").fill("seen at the bank")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("This is another plan than the one before").wait_for()
    assert page.locator("li.new").count() > 0
    assert page.get_by_label("Reason").input_value() == "seen at the bank"
    assert not RequestDecision.objects.exists()
    page.get_by_text("What the next plan did otherwise").click()
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Approved: Rerun of payroll; it goes on as a new run.").wait_for()
    page.get_by_role("button", name="Approve").is_hidden()
    assert Run.objects.filter(recovered_from=reviewed.run).count() == 1
    assert list(ApprovalRequest.objects.order_by("round").values_list("state", flat=True)) == [
        "superseded",
        "approved",
    ]


def test_the_inbox_holds_still_and_counts_what_is_new(
    window: Open, people: dict[str, Person], start_run: StartRun, gate: Gate
) -> None:
    one = window(people["approver"])
    one.go("/console/approvals/")
    start_run({"name": "load", "approval": {"when": "before"}}, name="other")
    pill = one.page.get_by_role("link", name="1 new — show")
    pill.wait_for()
    assert one.page.get_by_text("Gate before load in other").count() == 0
    pill.click()
    one.page.get_by_text("Gate before load in other").wait_for()


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 400), ("light", 1280)])
def test_no_page_of_approvals_is_wider_than_its_window_and_everything_has_a_name(
    theme: str, width: int, window: Open, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    long = "a-very-long-name-" * 12
    run = start_run({"name": long, "approval": {"when": "after", "count": 3, "expires_in": 60}}, name=long)
    hand.report(hand.take(), output={"k" * 400: ["v" * 400] * 30})
    gate = Gate.objects.get(run=run)
    decide_gate(gate.stage_id, actor=people["admin"].actor, approved=True, reason="r" * 900, gate_id=gate.id)
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": theme}
    one, viewer = window(people["approver"], **options), window(people["viewer"], **options)
    for path in ("", "?view=waiting", "?view=asked", "?view=decided", f"{gate.id}/"):
        for each in (one, viewer):
            each.go(f"/console/approvals/{path}")
            room: Any = each.page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert room[0] <= room[1], path
            assert each.page.evaluate(UNREACHABLE) == [], path
            for role in ("link", "button", "textbox"):
                assert each.page.get_by_role(cast(Any, role), name=re.compile(r"^\s*$")).count() == 0, (path, role)
