"""Bulk operations in Chromium without JavaScript: by hand and by query, from the list to the abort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import DeadLetter, Run
from recovery import bulk_work
from recovery.models import BulkItem, BulkOperation
from tests.browser.looking import Window
from tests.cast import Hand, Person
from tests.recovery.bulked import counted, failing

pytestmark = pytest.mark.django_db(transaction=True)
Open = Callable[..., Window]
Start = Callable[..., Run]


def started(page: Any, button: str, *, rate: int) -> BulkOperation:
    """The draft that is shown, started; its page tells how far it is."""
    page.get_by_label("Reason").fill("the upstream is back")
    page.get_by_label("At most a second").fill(str(rate))
    page.get_by_role("button", name=button).last.click()
    page.locator("#progress").wait_for()
    found = BulkOperation.objects.get()
    assert (found.state, found.rate, found.reason) == ("running", rate, "the upstream is back")
    return found


def aborted(page: Any) -> None:
    page.get_by_role("link", name="Abort…").click()
    page.get_by_label("Reason").fill("the wrong ones")
    page.locator("main button.danger, main button.primary").last.click()
    page.locator("#progress .badge", has_text="Aborted").wait_for()


def test_runs_chosen_by_hand_are_drafted_started_watched_and_aborted(
    window: Open, people: dict[str, Person], start_run: Start
) -> None:
    """F41, F164, F167: the form alone does it; what was not ticked is left alone."""
    runs = [start_run("load", name=f"run-{number}") for number in range(4)]
    page = window(people["operator"], java_script_enabled=False).page
    for run in runs[1:]:
        page.get_by_label(f"Select {run.name}").check()
    page.locator("#selection").get_by_role("button", name="Cancel…").click()
    page.get_by_role("heading", name="If you start it").wait_for()
    draft = BulkOperation.objects.get()
    assert (draft.state, draft.total) == ("draft", 3)
    assert set(BulkItem.objects.values_list("run", flat=True)) == {run.id for run in runs[1:]}
    assert page.get_by_text("cancels 3 runs").is_visible()
    assert set(Run.objects.values_list("status", flat=True)) == {"queued"}, "a draft does nothing"
    bulk = started(page, "Cancel 3 runs", rate=1)
    bulk_work.step(bulk.id)
    page.reload()
    page.locator(".tally", has_text="1 of 3 dealt with").wait_for()
    aborted(page)
    bulk.refresh_from_db()
    assert (bulk.state, counted(bulk)) == ("aborted", {"done": 1, "skipped": 2})
    page.get_by_role("link", name="All its targets").click()
    page.get_by_text("the bulk was aborted").first.wait_for()
    assert Run.objects.filter(status="cancelled").count() == 1


def test_letters_chosen_by_their_filter_are_looked_at_and_redriven(
    window: Open, people: dict[str, Person], start_run: Start, hand: Hand
) -> None:
    """F154, F55: what the filter shows, on every page, and no more; the plan is a dry run that keeps nothing done."""
    failing(start_run, hand, 5)
    for _ in range(2):
        start_run("other")
        hand.report(hand.take(), "failed", error_code="ELSEWHERE", retryable=False)
    one = window(people["operator"], java_script_enabled=False)
    page = one.page
    one.go("/console/dead-letters/?error_code=BUSINESS_REJECTED&page_size=2")
    page.get_by_label("all that match the filters, on every page").check()
    page.locator("#selection").get_by_role("button", name="Redrive…").click()
    page.get_by_text("redrives 5 dead letters").wait_for()
    assert DeadLetter.objects.filter(state="open").count() == 7, "what was looked at is not done"
    bulk = started(page, "Redrive 5 dead letters", rate=1_000)
    while bulk.state == "running":
        bulk_work.step(bulk.id)
        bulk.refresh_from_db()
    page.reload()
    page.locator(".tally", has_text="5 of 5 dealt with").wait_for()
    assert sorted(DeadLetter.objects.values_list("error_code", "state")) == [
        *[("BUSINESS_REJECTED", "redriven")] * 5,
        *[("ELSEWHERE", "open")] * 2,
    ]
