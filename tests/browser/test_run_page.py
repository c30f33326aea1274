"""The run page in a real browser: what is open stays open while the run moves, and everything goes by keyboard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.models import Run
from tests.browser.looking import Window
from tests.cast import Hand, Person

pytestmark = pytest.mark.django_db(transaction=True)

RETRIED = {"name": "load", "options": {"max_retries": 3, "retry_interval": 600}}


def test_what_is_open_stays_open_while_the_run_goes_on(
    window: Callable[..., Window], people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """An attempt that was unfolded, a stage that was chosen, the row under the cursor: all stay as parts change."""
    run = start_run(RETRIED, {"name": "check", "depends_on": []}, {"name": "publish", "depends_on": ["load", "check"]})
    hand.report(hand.take(), "failed", error_code="UPSTREAM", error_message="no answer", traceback="File 'load.py'")
    looking = window(people["operator"])
    page = looking.page
    looking.go(f"/console/runs/{run.id}/?stage=0")
    page.click('#attempts a[aria-label="Attempt 1: open"]')
    page.wait_for_selector("text=File 'load.py'")
    page.click("#open-policies")
    page.keyboard.press("j")
    hand.take()
    page.wait_for_selector("#row-1 .badge[data-status=running]", timeout=15_000)
    assert page.is_visible("text=File 'load.py'")
    assert page.is_visible("#part-data dl")
    assert page.locator("tr.current").count() == 1
    grown = page.locator("#row-1 [data-grows]")
    before = float(grown.get_attribute("width"))
    page.wait_for_function(
        "(before) => document.querySelector('#row-1 [data-grows]').width.baseVal.value > before", arg=before
    )
    page.click("#s-1")
    page.wait_for_selector("#attempts-title:has-text('check')")
    assert page.url.endswith(f"/console/runs/{run.id}/?stage=1")
    assert page.locator("tr[aria-selected]").get_attribute("id") == "row-1"
    page.reload()
    assert "check" in page.inner_text("#stage-title"), "the address is what was opened"


def test_a_stage_is_opened_and_recovered_from_the_keyboard(
    window: Callable[..., Window], people: dict[str, Person], start_run: Callable[..., Run], hand: Hand
) -> None:
    """j and k go over the stages, Enter opens one, r opens the dialog that explains its retry and does nothing yet."""
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="UPSTREAM", retryable=False)
    looking = window(people["operator"])
    page = looking.page
    looking.go(f"/console/runs/{run.id}/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage-title:has-text('publish')")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage-title:has-text('load')")
    page.keyboard.press("r")
    page.wait_for_selector("dialog[open] form.act")
    assert (
        page.locator("dialog form").get_attribute("action")
        == f"/console/stages/{run.stages.get(name='load').id}/retry/"
    )
    assert run.stages.get(name="load").state == "failed", "a key never acts"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_lies_well_in_its_window_whatever_it_holds(
    window: Callable[..., Window],
    people: dict[str, Person],
    start_run: Callable[..., Run],
    hand: Hand,
    theme: str,
    width: int,
) -> None:
    branches = [{"name": f"branch {'x' * 90} {number}", "depends_on": ["first"]} for number in range(3)]
    run = start_run("first", *branches, name="name " * 40, context_items=[{"key": "k" * 200, "value": "v" * 2_000}])
    hand.report(hand.take(), output="o" * 9_000)
    hand.report(hand.take(), "failed", error_code="E" * 90, error_message="m" * 9_000, traceback="t" * 9_000)
    looking = window(people["operator"], viewport={"width": width, "height": 900})
    for address in (f"/console/runs/{run.id}/?stage=1", f"/console/runs/{run.id}/timeline/"):
        looking.go(address)
        looking.look(theme=theme)
        assert looking.faults() == []
        assert looking.axe() == []
