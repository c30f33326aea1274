"""Dialogs in a real browser: what is asked and what confirms stay in sight, and nothing covers what has the focus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Run
from tests.browser.looking import Window
from tests.cast import Hand, Person, stages_of
from tests.recovery.stories import EXTERNAL, effect_of

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]

# whether nothing lies above the middle of a part, and it lies in the window
SEEN = """(part) => {
    const box = part.getBoundingClientRect();
    const found = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return !!found && (part === found || part.contains(found));
}"""
FIELDS = "dialog :is(input:not([type=hidden]), select, textarea, button, a, summary):not(.sr)"
SIZES = [(1280, 800), (390, 844)]


@pytest.fixture
def failed(start_run: Callable[..., Run], hand: Hand) -> Run:
    """A run of several stages whose first did something outside and failed: the longest dialogs that there are."""
    run = start_run({"name": "pay", **EXTERNAL}, "book", "report", name="payroll", key="payroll:05")
    job = hand.take()
    for number in range(3):
        effect_of(run, "pay", key=f"charge-{number}")
    hand.report(job, "failed", error_code="DECLINED", error_message="declined by the bank", retryable=False)
    return run


def open_dialog(one: Window, address: str) -> Any:
    one.page.locator(f'a[href="{address}"][hx-target="#dialog"]').first.click()
    one.page.locator("dialog[open] .act").wait_for()
    return one.page.locator("dialog[open]")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_reason_and_the_button_are_in_sight_however_long_the_plan_is(
    window: Open, people: dict[str, Person], failed: Run, width: int, height: int
) -> None:
    """O57, P88: nobody scrolls for what confirms; what is read before scrolls above it."""
    one = window(people["operator"], viewport={"width": width, "height": height})
    stage = stages_of(failed)[0].id
    for address in (
        f"/console/stages/{stage}/retry/",
        f"/console/stages/{stage}/skip/",
        f"/console/runs/{failed.id}/rerun/",
        f"/console/runs/{failed.id}/replay/",
    ):
        one.go(f"/console/runs/{failed.id}/")
        dialog = open_dialog(one, address)
        assert dialog.get_by_label("Reason").evaluate(SEEN), address
        assert dialog.locator("button.primary:not(.sr)").evaluate(SEEN), address
        assert one.page.evaluate(f"({SEEN})(document.activeElement)"), f"{address}: the focus is where nobody sees it"


@pytest.mark.parametrize(("width", "height"), [*SIZES, (1280, 400)])
def test_nothing_covers_what_has_the_focus(
    window: Open, people: dict[str, Person], failed: Run, width: int, height: int
) -> None:
    """WCAG 2.4.11: Tab leads through every field of the checklist, and each scrolls clear of the footer."""
    one = window(people["operator"], viewport={"width": width, "height": height})
    one.go(f"/console/runs/{failed.id}/")
    dialog = open_dialog(one, f"/console/stages/{stages_of(failed)[0].id}/retry/")
    fields = dialog.locator(FIELDS.removeprefix("dialog "))
    seen = set()
    for _ in range(fields.count() + 2):
        one.page.keyboard.press("Tab")
        told = one.page.evaluate("document.activeElement.outerHTML.slice(0, 160)")
        if one.page.evaluate("document.activeElement.closest('dialog') !== null"):
            assert one.page.evaluate(f"({SEEN})(document.activeElement)"), told
            seen.add(told)
    assert len(seen) > 10, "the whole checklist was gone through"
