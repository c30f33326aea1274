"""Whole stories in Chromium: by keyboard, by dialog, without JavaScript, narrow and wide. No console error anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast

import pytest
import rfc8785

from pipelines.creation import Place
from pipelines.models import AttemptProgress, Effect, Run
from recovery.models import Operation
from tests.browser.looking import UNREACHABLE, Window
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.stories import EXTERNAL, effect_of, in_review, leave_uncertain
from tests.verbs import skip_stage

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]

# resolves when the page wanted to ask for news and kept still
HELD_BACK = """new Promise((done) => document.addEventListener(
    "htmx:beforeRequest", (event) => setTimeout(() => event.defaultPrevented && done())))"""


def test_a_failed_run_is_found_understood_and_retried_by_keyboard(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """P86, P88: from the list to the retry without a mouse; the dialog shows what will happen before it does."""
    run = start_run("load", "publish", name="orders", key="orders:2026-05-30")
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="row is there", traceback="line 88")
    start_run("load", name="other")
    page = window(people["operator"]).page
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=orders**")
    page.locator("body").press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/console/runs/{run.id}/")
    assert page.get_by_text("Failed at load").is_visible()
    page.locator('[id^="a-"]').first.click()
    page.get_by_text("line 88").wait_for()
    page.get_by_role("link", name="Retry…").focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    dialog.get_by_text("load · begins epoch 2; its counters start anew").wait_for()
    dialog.get_by_label("Reason").fill("table was locked")
    dialog.get_by_label("Reason").press("Enter")
    page.get_by_text("load runs again, in epoch 2.").wait_for()
    assert stages_of(run)[0].epoch == 2


def test_a_refusal_shows_in_the_dialog_and_a_running_page_follows_by_itself(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", name="orders")
    one = window(people["operator"])
    page = one.page
    one.go(f"/console/runs/{run.id}/")
    page.get_by_role("link", name="Pause…").click()
    page.locator("dialog[open]").wait_for()
    job = hand.take()
    hand.report(job, output=1)
    page.get_by_role("button", name="Pause the run").click()
    page.get_by_text("Not done: this is how it stands now").wait_for()
    page.get_by_text("A run that is completed cannot be paused").wait_for()
    page.keyboard.press("Escape")
    page.locator(".head .badge", has_text="Completed").wait_for()
    assert page.locator("[data-live]").count() == 0


def test_new_runs_wait_behind_a_pill_and_rows_change_in_place(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", name="first-run")
    page = window(people["operator"]).page
    page.locator(f"#row-{run.id} .badge", has_text="Queued").wait_for()
    hand.take()
    start_run("load", name="second-run")
    page.locator(f"#row-{run.id} .badge", has_text="Running").wait_for()
    assert page.get_by_text("second-run").count() == 0
    page.get_by_text("1 new run — show").click()
    page.get_by_text("second-run").wait_for()


def test_everything_that_matters_works_without_javascript(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", "publish", name="orders")
    job = hand.take()
    hand.report(job, "failed", error_code="UNIQUE", error_message="row is there", traceback="line 88")
    page = window(people["operator"], java_script_enabled=False).page
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="Attempt 1: open").click()
    assert page.get_by_text("line 88").is_visible()
    page.get_by_role("link", name="Back to orders").click()
    page.get_by_role("link", name="Skip…").click()
    page.get_by_label("Reason").fill("not needed today")
    page.get_by_role("button", name="Skip load").click()
    assert page.get_by_text("load is skipped.").is_visible()
    assert [stage.state for stage in stages_of(run)] == ["skipped", "ready"]
    page.get_by_role("group").locator("summary", has_text="acme").click()
    page.get_by_role("button", name="Dark theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_keys_toggle_the_theme_and_tell_themselves(window: Open, people: dict[str, Person]) -> None:
    page = window(people["viewer"], color_scheme="light").page
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.keyboard.press("?")
    told = page.locator("#keys[open]").inner_text()
    for words in ("search", "light or dark", "go to workers"):
        assert words in told
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("w")
    page.wait_for_url("**/console/workers/")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_page_is_wider_than_its_window(
    width: int, window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """400 % zoom of 1280 pixels is 320: everything reflows; only tables scroll, inside their panel."""
    long = "a-very-long-name-" * 12
    run = start_run(*[{"name": f"{long}{number}"} for number in range(4)], name=long, key="k" * 190)
    job = hand.take()
    hand.report(job, "failed", error_code="E" * 90, error_message="m" * 4000, traceback="t" * 4000)
    one = window(people["operator"], viewport={"width": width, "height": 800})
    for path in (
        "/console/",
        f"/console/runs/{run.id}/",
        f"/console/attempts/{job.attempt_id}/",
        f"/console/stages/{job.stage.id}/retry/",
        "/console/dead-letters/",
        "/console/workers/",
        "/console/workspaces/",
    ):
        one.go(path)
        room: Any = one.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert room[0] <= room[1], path


def test_what_one_has_opened_stays_open_while_the_page_goes_on(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """Nothing moves under the pointer: a live update keeps the attempt that is being read."""
    stage = {"name": "load", "options": {"max_retries": 3, "retry_interval": 0.2}}
    run = start_run(stage, name="orders")
    hand.report(hand.take(), "failed", error_code="UPSTREAM", error_message="502", traceback="line 88")
    one = window(people["viewer"])
    page = one.page
    one.go(f"/console/runs/{run.id}/")
    page.get_by_role("link", name="Attempt 1: open").click()
    page.get_by_text("line 88").wait_for()
    job = hand.take()
    page.get_by_role("link", name="Attempt 2: open").wait_for()
    assert page.get_by_text("line 88").is_visible()
    page.get_by_role("link", name="Attempt 1: open").click()
    page.get_by_text("line 88").wait_for(state="hidden")
    hand.report(job, output=1)
    page.locator(".head .badge", has_text="Completed").wait_for()


def test_a_live_page_keeps_what_is_unfolded_focused_or_being_copied(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """Nothing is folded up, and no mark is lost, because the run went on; once it is let go, the page follows."""
    run = start_run({"name": "load", "input": "the-input-text"}, "publish", name="orders")
    job = hand.take()
    one = window(people["viewer"])
    page = one.page
    one.go(f"/console/runs/{run.id}/")
    page.locator("summary", has_text="waits only for others").click()
    page.locator("#open-input").click()
    page.locator("#copy-id").focus()
    AttemptProgress.objects.create(attempt_id=job.attempt_id, percent=50, message="half way")
    page.get_by_text("half way").first.wait_for()
    assert page.get_by_text("the-input-text").is_visible()
    assert page.locator(".blockers .who", has_text="publish").is_visible()
    assert page.evaluate("document.activeElement.id") == "copy-id"
    page.get_by_text("the-input-text").dblclick(position={"x": 40, "y": 16})
    hand.report(job, output=1)
    page.evaluate(HELD_BACK)
    assert page.evaluate("getSelection().toString()").strip() in ("the", "the-input-text", "input")
    page.evaluate("getSelection().removeAllRanges()")
    page.locator(".stages .badge", has_text="Completed").wait_for()


def test_times_go_on_by_the_servers_clock_whatever_this_machines_says(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """An operator's clock that is an hour off makes no run an hour old, and the time a stage takes is seen to grow."""
    run = start_run("load", name="orders")
    hand.take()
    one = window(people["viewer"])
    one.page.clock.install(time=datetime.now(UTC) + timedelta(hours=1))
    one.go(f"/console/runs/{run.id}/")
    one.page.clock.run_for(70_000)
    took = one.page.locator(".stages td.num [data-since]").inner_text()
    assert re.fullmatch(r"1m \d\ds", took), took


def test_a_dead_letter_is_redriven_in_a_dialog_on_a_narrow_screen(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", name="orders", key="orders:7")
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="row is there", retryable=False)
    one = window(people["operator"], viewport={"width": 390, "height": 800})
    one.go("/console/dead-letters/")
    one.page.get_by_role("link", name="Redrive…").click()
    dialog = one.page.locator("dialog[open]")
    dialog.get_by_text("load · begins epoch 2; its counters start anew").wait_for()
    dialog.get_by_label("Reason").fill("row removed")
    dialog.get_by_role("button", name="Redrive it").click()
    one.page.get_by_text("load in orders runs again, in epoch 2.").wait_for()
    assert stages_of(run)[0].epoch == 2


def test_every_link_and_button_has_a_name_at_every_width(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """What is hidden on a narrow screen takes no link's only name with it."""
    run = start_run("load", name="orders")
    hand.take()
    one = window(people["operator"], viewport={"width": 390, "height": 800})
    for path in ("/console/", f"/console/runs/{run.id}/", "/console/dead-letters/", "/console/workers/"):
        one.go(path)
        for role in ("link", "button"):
            assert one.page.get_by_role(cast(Any, role), name=re.compile(r"^\s*$")).count() == 0, (path, role)


def test_what_scrolls_can_be_reached_by_keyboard(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """A long traceback or a wide table scrolls inside its panel: with the arrow keys too."""
    start_run("load", name="orders")
    job = hand.take()
    lines = "\n".join(f"line {number}" for number in range(200))
    hand.report(job, "failed", error_code="UNIQUE", error_message="row is there", traceback=lines)
    one = window(people["viewer"], viewport={"width": 390, "height": 800})
    for path in (f"/console/attempts/{job.attempt_id}/", "/console/workers/"):
        one.go(path)
        stuck: Any = one.page.evaluate(UNREACHABLE)
        assert stuck == [], path


def test_a_rerun_is_looked_at_chosen_and_made_in_a_dialog(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """O17, O57: another start is shown in the same dialog before anything is made of it."""
    run = start_run("load", "publish", name="orders")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="UNIQUE", retryable=False)
    one = window(people["operator"])
    one.go(f"/console/runs/{run.id}/")
    one.page.get_by_role("link", name="Rerun…").click()
    dialog = one.page.locator("dialog[open]")
    dialog.get_by_text("1 stage: load · done in epoch 1 of the source").wait_for()
    assert one.page.evaluate("document.activeElement.id") == "from_step_id", (
        "the first question, and no button, has focus"
    )
    dialog.press("Enter")
    assert not Operation.objects.exists()
    dialog.get_by_label("Start at").select_option("load")
    dialog.get_by_role("button", name="Show the plan for this choice").click()
    dialog.get_by_text("This is another plan than the one before").wait_for()
    dialog.get_by_text("load · runs at once; from a clean start").wait_for()
    dialog.get_by_label("Reason").fill("wrong rates")
    dialog.get_by_role("button", name="Make the new run").click()
    one.page.get_by_text("This is the new run; orders stays as it was.").wait_for()
    assert [stage.state for stage in stages_of(Run.objects.get(recovered_from=run))] == ["ready", "pending"]


def test_when_the_world_moved_the_dialog_shows_the_new_plan(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """F51: what changed is marked, and nothing was done."""
    run = start_run({"name": "load", "run_next_if_failed": True}, "publish", name="orders")
    hand.report(hand.take(), "failed", error_code="X")
    publish = stages_of(run)[1]
    one = window(people["operator"])
    one.go(f"/console/runs/{run.id}/?stage=0")
    one.page.get_by_role("link", name="Retry…").click()
    dialog = one.page.locator("dialog[open]")
    dialog.get_by_label("Reason").fill("again")
    skip_stage(publish.id, actor=people["admin"].actor, reason="not today")
    dialog.get_by_role("button", name="Retry load").click()
    dialog.get_by_text("This is another plan than the one before").wait_for()
    assert dialog.locator("li.new").count() == 1
    assert stages_of(run)[0].epoch == 1
    dialog.get_by_role("button", name="Retry load").click()
    one.page.get_by_text("load runs again, in epoch 2.").wait_for()


def test_evidence_review_and_decision_work_without_javascript(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """O45: from the inbox to the new run, and evidence on the way, by plain links and forms."""
    review = _reviewed(start_run, hand)
    page = window(people["approver"], java_script_enabled=False).page
    page.get_by_role("link", name="Approvals 1").click()
    page.get_by_role("link", name="Rerun of payroll").click()
    page.get_by_role("link", name="To the run").click()
    page.get_by_role("link", name="External http").click()
    page.get_by_role("link", name="Reconcile…").click()
    page.get_by_label("It happened").check()
    page.get_by_label("Reason").fill("seen at the bank")
    page.get_by_role("button", name="Say so").click()
    page.get_by_text("approver-acme: seen at the bank").wait_for()
    page.goto(page.url.split("/console/")[0] + f"/console/operations/{review.id}/")
    page.get_by_role("link", name="Look and decide").click()
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("This is another plan than the one before").wait_for()
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("it goes on as a new run").wait_for()
    assert Run.objects.filter(recovered_from=review.run).count() == 1


def test_a_worker_dies_between_effect_and_result_and_the_run_goes_on_by_what_people_found(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    """R13, O44, F62: the run says what is unknown, leads to the effect, and goes on once both are settled."""
    run = start_run("collect", {"name": "pay", **EXTERNAL}, "book", name="payroll")
    hand.report(hand.take(), output={"people": 3})
    leave_uncertain(run, hand, clock, {"key": "charge-7"})
    operator, approver = window(people["operator"]), window(people["approver"])
    for one in (operator, approver):
        one.go(f"/console/runs/{run.id}/")
    operator.page.locator(".head .badge", has_text="Blocked at pay").wait_for()
    operator.page.get_by_text("external http pay with key charge-7 is unknown").wait_for()
    assert operator.page.get_by_role("link", name="Reconcile…").count() == 0, "an operator may not say what happened"
    page = approver.page
    dialog = page.locator("dialog[open]")
    page.get_by_role("link", name="Reconcile…").click()
    dialog.get_by_role("link", name="External http with key charge-7, unknown since").click()
    page.get_by_role("link", name="Add evidence…").click()
    summary = {"charge": "ch_1", "outcome": "committed"}
    dialog.get_by_label("Who says so").fill("the bank")
    dialog.get_by_label("Summary as JSON").fill(json.dumps(summary))
    dialog.get_by_label("Its digest").fill(sha256(rfc8785.dumps(summary)).hexdigest())
    dialog.get_by_label("Clean").check()
    dialog.get_by_role("button", name="Add it").click()
    page.get_by_text("The sealed summary of the bank is kept.").wait_for()
    page.get_by_role("link", name="Reconcile…").click()
    dialog.get_by_role("radio", name="It happened").check()
    dialog.get_by_label("Reason").fill("ch_1 is in the list")
    dialog.get_by_role("button", name="Say so").click()
    page.get_by_text("Now pay itself can be reconciled").wait_for()
    page.get_by_role("link", name="Reconcile the stage…").click()
    dialog.get_by_role("radio", name="It happened").check()
    dialog.get_by_label("Output, where it happened").fill('{"charge": "ch_1"}')
    dialog.get_by_label("Reason").fill("ch_1 is in the list")
    dialog.get_by_role("button", name="Reconcile pay").click()
    page.get_by_text("pay is completed.").wait_for()
    hand.report(hand.take(), output="booked")
    operator.page.locator(".head .badge", has_text="Completed").wait_for()
    assert [stage.attempt_number for stage in stages_of(run)] == [1, 1, 1], "nothing was done twice"


def test_what_an_operator_asks_for_in_production_is_agreed_to_by_another_and_leads_to_the_new_run(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], place: Place, environments: dict[str, Any]
) -> None:
    """Model §5, O59: asked for, kept, looked at, agreed to, made; and the graph tells it."""
    production = environments["production"]
    there = Place(place.workspace_id, place.application_id, production.id, production.slug)
    run = start_run("load", "publish", name="payroll", in_place=there)
    worker = Hand(there, "prod-1", ["Handler"])
    worker.report(worker.take(), output=1)
    worker.report(worker.take(), "failed", error_code="X", retryable=False)
    one, another = window(people["operator"]), window(people["approver"])
    one.go(f"/console/runs/{run.id}/")
    one.page.get_by_role("link", name="Rerun…").click()
    dialog = one.page.locator("dialog[open]")
    dialog.get_by_text("1 of admin, approver, release manager, other than who asks").wait_for()
    dialog.get_by_label("Reason").fill("the table is back")
    dialog.get_by_role("button", name="Ask for approval").last.click()
    one.page.get_by_text("waits until somebody else approves it").wait_for()
    one.page.get_by_role("link", name="Follow or withdraw").click()
    one.page.get_by_text("Who asked for it does not decide it").wait_for()
    assert one.page.get_by_role("button", name="Approve").count() == 0, "never by who asked"
    assert Run.objects.count() == 1
    page = another.page
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.get_by_text("the table is back").wait_for()
    page.locator("body").press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/approvals/**")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Approved: Rerun of payroll; it goes on as a new run.").wait_for()
    (made,) = Run.objects.filter(recovered_from=run)
    page.get_by_role("link", name="To the new run").click()
    page.wait_for_url(f"**/console/runs/{made.id}/")
    assert [stage.state for stage in stages_of(made)] == ["completed", "ready"]
    another.go(f"/console/runs/{made.id}/evidence/")
    assert page.get_by_text("approved by approver-acme").is_visible()
    assert page.get_by_text("this run").first.is_visible()


@pytest.mark.parametrize("width", [320, 1280])
def test_no_page_of_recovery_is_wider_than_its_window_and_every_link_has_a_name(
    width: int, window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    long = "a-very-long-name-" * 12
    review = _reviewed(start_run, hand, name=long, key="k" * 190)
    Effect.objects.update(external_ref="r" * 900, request_hash="h" * 190, detail={"d" * 400: "e" * 400})
    run, effect = review.run_id, Effect.objects.get().id
    one = window(people["admin"], viewport={"width": width, "height": 800})
    for path in (
        "operations/",
        f"operations/{review.id}/",
        f"approvals/{review.id}/",
        "approvals/?view=waiting",
        f"runs/{run}/",
        f"runs/{run}/rerun/",
        f"runs/{run}/replay/",
        f"runs/{run}/evidence/",
        f"runs/{run}/effects/",
        f"runs/{run}/checkpoints/",
        f"runs/{run}/checkpoints/1/",
        f"runs/{run}/checkpoints/changes/?one=1&other=2",
        f"effects/{effect}/",
        f"effects/{effect}/evidence/",
        f"effects/{effect}/reconcile/",
    ):
        one.go(f"/console/{path}")
        room: Any = one.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert room[0] <= room[1], path
        assert one.page.evaluate(UNREACHABLE) == [], path
        for role in ("link", "button"):
            assert one.page.get_by_role(cast(Any, role), name=re.compile(r"^\s*$")).count() == 0, (path, role)


def _reviewed(start_run: Callable[..., Run], hand: Hand, name: str = "payroll", key: str = "payroll:7") -> Any:
    """A rerun in review: a committed effect of the stage that would run again is not cleared."""
    stage = {"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}
    run = start_run(stage, "book", name=name, key=key)
    job = hand.take()
    effect_of(run, "pay", key=key)
    hand.report(job, "failed", error_code="DECLINED", retryable=False)
    return in_review(Run.objects.get(id=run.id), from_step_id="pay")
