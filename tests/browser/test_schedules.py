"""Planning and following backfills in Chromium: by mouse, by keyboard, without JavaScript, narrow and wide."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from pipelines import blackout_rows, lanes, triggers
from pipelines.models import Application, Environment, Run, Trigger
from recovery import backfills
from recovery.models import Backfill
from tests.browser.looking import UNREACHABLE, Window
from tests.cast import Hand, Person
from tests.recovery.backfilled import finish, runs_of, trigger_of, wish

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]
NAMELESS = """[...document.querySelectorAll("main :is(a, button, select, input:not([type=hidden]), textarea)")]
    .filter((part) => part.checkVisibility() && !(part.textContent.trim() || part.ariaLabel || part.labels?.length))
    .map((part) => part.outerHTML.slice(0, 120))"""


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    """Daily at 08:00 UTC."""
    return trigger_of(people["admin"].actor, environment, application, name="rates")


def test_a_window_is_picked_by_mouse_recounted_live_and_started(
    window: Open, people: dict[str, Person], trigger: Trigger
) -> None:
    """O53, O57: the address says what was picked, and what was typed stays while the plan is counted again."""
    one = window(people["operator"])
    one.go(f"/console/triggers/{trigger.id}/backfill/?month=2026-06")
    one.page.get_by_role("button", name="Friday 22 May 2026").click()
    one.page.get_by_text("Now the other end").wait_for()
    one.page.get_by_role("button", name="Wednesday 20 May 2026").click()
    one.page.locator("#tally", has_text="3 to run").wait_for()
    assert "from=2026-05-20&to=2026-05-22" in one.page.url
    chosen = one.page.locator('.day[aria-pressed="true"]')
    assert chosen.count() == 3
    assert one.page.get_by_label("From").input_value() == "2026-05-20"
    one.page.get_by_label("Reason").fill("rates were missing")
    one.page.get_by_label("At most at a time").fill("2")
    one.page.get_by_role("button", name="Make 3 runs, 2 at a time").wait_for()
    assert one.page.get_by_label("Reason").input_value() == "rates were missing"
    one.page.get_by_label("Order").select_option("newest")
    one.page.locator(".consequences", has_text="newest first").wait_for()
    assert "order=newest" in one.page.url
    one.page.reload()
    one.page.locator("#tally", has_text="3 to run").wait_for()
    one.page.get_by_label("Reason").fill("rates were missing")
    one.page.get_by_role("button", name="Make 3 runs, 2 at a time").click()
    one.page.wait_for_url("**/console/backfills/*/")
    made = Backfill.objects.get()
    assert (made.reason, made.max_concurrent, made.order) == ("rates were missing", 2, "newest")
    assert len(runs_of(made.id)) == 3


def test_the_planner_is_worked_by_keyboard_alone(window: Open, people: dict[str, Person], trigger: Trigger) -> None:
    one = window(people["operator"])
    keys = one.page.keyboard
    one.page.keyboard.press("g")
    one.page.keyboard.press("b")
    one.page.wait_for_url("**/console/triggers/")
    one.page.locator("body").press("j")
    keys.press("Enter")
    one.page.wait_for_url(f"**/console/triggers/{trigger.id}/")
    one.page.get_by_role("link", name="Plan a backfill").focus()
    keys.press("Enter")
    one.page.wait_for_url("**/backfill/**")
    one.page.get_by_label("From").focus()
    keys.type("2026-05-20")
    keys.press("Tab")
    keys.type("2026-05-20")
    one.page.locator("#tally", has_text="1 to run").wait_for()
    one.go(f"/console/triggers/{trigger.id}/backfill/?month=2026-05")
    one.page.locator("#d-2026-05-20").focus()
    keys.press("Enter")
    one.page.get_by_text("Now the other end").wait_for()
    assert one.page.evaluate("document.activeElement.id") == "d-2026-05-20", "the focus stays on the day"
    keys.press("ArrowRight")
    keys.press("ArrowDown")
    keys.press("ArrowLeft")
    assert one.page.evaluate("document.activeElement.id") == "d-2026-05-27"
    keys.press("Enter")
    one.page.locator("#tally", has_text="8 to run").wait_for()
    one.page.get_by_label("Reason").focus()
    keys.type("by hand")
    keys.press("Enter")
    one.page.wait_for_url("**/console/backfills/*/")
    assert len(runs_of(Backfill.objects.get().id)) == 8


def test_planning_starting_and_cancelling_work_without_javascript(
    window: Open, people: dict[str, Person], trigger: Trigger
) -> None:
    one = window(people["operator"], java_script_enabled=False)
    one.go(f"/console/triggers/{trigger.id}/backfill/?month=2026-05")
    one.page.locator("#d-2026-05-20").click()
    one.page.locator("#d-2026-05-22").click()
    assert one.page.url.endswith("?from=2026-05-20&to=2026-05-22&month=2026-05")
    one.page.get_by_label("At most at a time").fill("3")
    one.page.get_by_role("button", name="Show the plan").click()
    one.page.get_by_role("button", name="Make 3 runs, 3 at a time").click()
    one.page.locator(".tally", has_text="of 3 over").wait_for()
    one.page.get_by_role("link", name="Cancel…").click()
    one.page.get_by_label("Reason").fill("wrong days")
    one.page.locator("main button.primary").click()
    one.page.get_by_text("The backfill is cancelled.").wait_for()
    assert Backfill.objects.get().state == "cancelled"


def test_progress_follows_by_itself_and_stops_when_all_is_over(
    window: Open, people: dict[str, Person], trigger: Trigger, hand: Hand
) -> None:
    made = backfills.start(
        wish(trigger, "2026-05-20T00:00Z", "2026-05-22T23:00Z", max_concurrent=3), people["operator"].actor
    ).backfill
    one = window(people["operator"])
    one.go(f"/console/backfills/{made.id}/")
    one.page.locator(".tally", has_text="0 of 3 over").wait_for()
    hand.finish()
    one.page.locator(".tally", has_text="3 of 3 over").wait_for()
    while lanes.let_in([made.id]) or hand.finish():
        pass
    finish(hand, made.id)
    one.page.locator("#progress .badge", has_text="Completed").wait_for()
    assert one.page.locator("#progress[data-live]").count() == 0
    assert not Run.objects.exclude(status="completed").exists()


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 390), ("light", 1280)])
def test_no_page_of_schedules_is_wider_than_its_window_and_everything_has_a_name(
    window: Open, people: dict[str, Person], trigger: Trigger, width: int, theme: str
) -> None:
    long = "a-very-long-name-" * 12
    changes = {"name": long, "input": {"k" * 400: "v" * 400}}
    triggers.change(trigger.id, actor=people["admin"].actor, changes=changes, reason="r" * 900)
    asked = wish(trigger, "2026-05-20T00:00Z", "2026-05-22T23:00Z", reason="r" * 900)
    made = backfills.start(asked, people["operator"].actor).backfill
    blackout_rows.create(
        actor=people["admin"].actor,
        wanted={"name": long, "kind": "dates", "dates": [date(2030, 1, day) for day in range(1, 29)], "reason": long},
    )
    one: Any = window(people["admin"], viewport={"width": width, "height": 900}, color_scheme=theme)
    for path in (
        "triggers/",
        "triggers/new/",
        f"triggers/{trigger.id}/",
        f"triggers/{trigger.id}/change/",
        f"triggers/{trigger.id}/backfill/?from=2026-05-20&to=2026-05-25",
        "backfills/",
        f"backfills/{made.id}/",
        f"backfills/{made.id}/ticks/",
        f"backfills/{made.id}/cancel/",
        "blackouts/",
        "blackouts/new/",
        "blackouts/freeze/",
    ):
        one.go(f"/console/{path}")
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert one.page.evaluate(NAMELESS) == [], path
        assert one.page.evaluate(UNREACHABLE) == [], path
        small = one.page.evaluate(
            "[...document.querySelectorAll('main :is(a.btn, button, .day)')].filter((part) => part.checkVisibility()"
            " && !part.matches('.sr') && part.getBoundingClientRect().height < 24).map((part) => part.outerHTML)"
        )
        assert small == [], path
    assert re.search(r"/console/blackouts/freeze/$", one.page.url)
