"""When the console does not answer: nothing is silent, nothing is lost, and all goes on once it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.models import Run
from tests.browser.looking import Window
from tests.cast import Hand, Person, stages_of

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]


def test_a_dialog_that_does_not_come_says_so_and_comes_with_the_next_click(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """Neither a broken line nor a broken server leaves a click without an answer."""
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="LOCKED", retryable=False)
    one = window(people["operator"])
    one.go(f"/console/runs/{run.id}/")
    page, retry = one.page, one.page.get_by_role("link", name="Retry load…")
    for broken in (lambda route: route.abort(), lambda route: route.fulfill(status=502, body="bad gateway")):
        page.route("**/retry/", broken)
        retry.click()
        page.get_by_role("alert").filter(has_text="The console did not answer. Nothing was done").wait_for()
        assert retry.get_attribute("aria-busy") is None
        page.unroute("**/retry/")
    retry.click()
    page.locator("dialog[open] .act").wait_for()
    assert page.get_by_role("alert").count() == 0, "what was said is not true any more"
    forgive(one)


def test_an_act_that_is_not_answered_is_not_said_to_be_undone_and_keeps_what_was_typed(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """F51: what went out may have arrived; sent again, the same form is the same request."""
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="LOCKED", retryable=False)
    one = window(people["operator"])
    one.go(f"/console/runs/{run.id}/")
    one.page.get_by_role("link", name="Retry load…").click()
    dialog = one.page.locator("dialog[open]")
    dialog.get_by_label("Reason").fill("the table is free")
    one.page.route("**/retry/", lambda route: route.abort())
    dialog.get_by_role("button", name="Retry load").click()
    dialog.get_by_role("alert").filter(has_text="it is not known whether this was done").wait_for()
    assert dialog.get_by_label("Reason").input_value() == "the table is free"
    one.page.unroute("**/retry/")
    dialog.get_by_role("button", name="Retry load").click()
    one.page.get_by_text("load runs again, in epoch 2.").wait_for()
    assert stages_of(run)[0].epoch == 2
    forgive(one)


def test_a_live_page_says_when_it_is_not_live(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run]
) -> None:
    """Old numbers are not taken for new ones."""
    run = start_run("load")
    one = window(people["operator"])
    one.go(f"/console/runs/{run.id}/")
    one.page.get_by_text("live", exact=True).wait_for()
    one.page.route("**/live/**", lambda route: route.abort())
    one.page.get_by_text("not reached", exact=True).wait_for()
    one.page.unroute("**/live/**")
    one.page.get_by_text("live", exact=True).wait_for()
    assert one.page.get_by_text("not reached").count() == 0
    forgive(one)


def forgive(one: Window) -> None:
    """What HTMX notes of answers that did not come is what was asked for; anything else stays a complaint."""
    expected = ("htmx:", "Response Status Error Code 502", "502 ")
    one.complaints[:] = [told for told in one.complaints if not told.startswith(expected)]
