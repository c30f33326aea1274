"""Selecting rows in Chromium: kept over pages, refreshes and live updates, by keyboard and mouse, sent at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Run
from recovery.models import BulkItem, BulkOperation
from tests.browser.looking import Window
from tests.cast import Hand, Person

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]
Start = Callable[..., Run]


def chosen_in(page: Any) -> str:
    return str(page.locator("#selection [data-chosen]").text_content())


def test_sixty_rows_over_three_pages_stay_selected_while_the_list_goes_on(
    window: Open, people: dict[str, Person], start_run: Start, hand: Hand
) -> None:
    """F156: twenty on each of three pages, with live updates and a refresh between them, are sixty."""
    runs = [start_run("load", name=f"run-{number:02}") for number in range(60)]
    shown = window(people["operator"])
    page = shown.page
    shown.go("/console/?page_size=20")
    assert not page.locator("#selection").is_visible()
    page.get_by_label("Select every row of this page").check()
    assert chosen_in(page) == "20 selected"
    hand.take()
    page.locator(f"#row-{runs[0].id}, [data-rows] .badge", has_text="Queued").first.wait_for()
    page.reload()
    assert chosen_in(page) == "20 selected"
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**cursor=**")
    assert chosen_in(page) == "20 selected, 0 of them on this page"
    page.get_by_label("Select every row of this page").check()
    assert chosen_in(page) == "40 selected, 20 of them on this page"
    page.get_by_role("link", name="Older").click()
    page.get_by_text("run-00").wait_for()
    page.get_by_label("Select every row of this page").check()
    # a row that changes in its place stays ticked
    row = page.locator(f"#row-{runs[0].id}")
    row.locator(".badge", has_text="Running").wait_for()
    hand.take()
    page.locator(f"#row-{runs[1].id} .badge", has_text="Running").wait_for()
    assert page.get_by_label("Select run-01").is_checked()
    assert chosen_in(page) == "60 selected, 20 of them on this page"
    page.get_by_role("button", name="Pause…").click()
    page.wait_for_url("**/console/bulk/*/")
    bulk = BulkOperation.objects.get()
    assert (bulk.state, bulk.total) == ("draft", 60)
    assert set(BulkItem.objects.values_list("run", flat=True)) == {run.id for run in runs}
    shown.go("/console/")
    assert not page.locator("#selection").is_visible(), "the draft holds them: they are selected no more"


def test_rows_are_selected_by_keyboard_and_all_that_match_needs_a_filter(
    window: Open, people: dict[str, Person], start_run: Start
) -> None:
    for number in range(3):
        start_run("load", name=f"run-{number}")
    shown = window(people["operator"])
    page = shown.page
    shown.go("/console/")
    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    assert chosen_in(page) == "2 selected"
    assert page.get_by_label("Select run-2").is_checked()
    assert page.get_by_label("Select run-0").is_checked()
    assert page.locator('#selection [name="all"]').is_disabled()
    page.get_by_role("button", name="Clear").click()
    assert not page.locator("#selection").is_visible()
    shown.go("/console/?status=queued")
    page.get_by_label("Select run-1").check()
    page.get_by_label("all that match the filters, on every page").check()
    assert chosen_in(page) == "Not the rows that are ticked, but"
    assert shown.axe() == []
    page.get_by_role("button", name="Cancel…").click()
    page.wait_for_url("**/console/bulk/*/")
    assert page.get_by_role("heading", level=1).text_content() == "Cancel 3 runs in development"
    for theme in ("dark", "light"):
        for width in (1280, 390):
            shown.look(theme=theme, width=width)
            assert shown.faults() == []
            assert shown.axe() == []
    assert BulkOperation.objects.get().state == "draft"


def test_a_bulk_is_started_and_aborted_on_its_page(
    window: Open, people: dict[str, Person], start_run: Start, hand: Hand
) -> None:
    runs = [start_run("load", name=f"run-{number}") for number in range(3)]
    shown = window(people["operator"])
    page = shown.page
    shown.go("/console/?status=queued")
    page.get_by_label("all that match the filters, on every page").evaluate("box => box.click()")
    page.locator('#selection [value="pause"]').evaluate("button => button.click()")
    page.wait_for_url("**/console/bulk/*/")
    page.get_by_label("Reason").fill("the source is late")
    page.get_by_role("button", name="Pause 3 runs").last.click()
    page.get_by_role("heading", name="Progress").wait_for()
    assert BulkOperation.objects.get().state == "running"
    page.get_by_role("link", name="Abort…").click()
    page.get_by_label("Reason").fill("on second thoughts")
    page.get_by_role("button", name="Abort the bulk").last.click()
    page.locator("#progress .badge", has_text="Aborted").wait_for()
    assert not any(Run.objects.filter(id__in=[run.id for run in runs]).values_list("paused", flat=True))
