"""The run page while it lives: only what changed comes, each part in its own place; nothing when nothing did."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from pipelines.console import run_page
from pipelines.models import Run
from pipelines.sweeps import sweep
from tests.cast import Hand
from tests.clock import Clock
from tests.console.conftest import HTMX, Visitor, text_of

pytestmark = pytest.mark.django_db

LIGHT = 15_000  # bytes of an update


class Page:
    """A run page in a browser: polls as its own markup says, and keeps what each answer tells it to keep."""

    def __init__(self, visitor: Visitor, run: Run, query: str = "") -> None:
        self.visitor, self.run = visitor, run
        self.take(visitor.get(f"/console/runs/{run.id}/{query}"))

    def take(self, answer: Any) -> Any:
        if answer.status_code == 200:
            html = answer.content.decode()
            pulse = re.search(r'<div id="pulse"[^>]*>', html)
            assert pulse
            link = re.search(r'hx-get="([^"]+)"', pulse[0])
            self.address = unescape(link[1]) if link else ""
            self.kept = dict(re.findall(r'<input type="hidden" name="(seen|since|rows)" value="([^"]*)"', html))
        return answer

    def poll(self) -> Any:
        assert self.address, "the page polls no more"
        return self.take(self._ask(self.address, "pulse"))

    def open(self, position: int) -> Any:
        return self.take(self._ask(f"/console/runs/{self.run.id}/live/?stage={position}", f"s-{position}"))

    def _ask(self, address: str, trigger: str) -> Any:
        return self.visitor.get(f"{address}&{urlencode(self.kept)}", headers={**HTMX, "HX-Trigger": trigger})


def swapped(answer: Any) -> set[str]:
    """The ids of the elements that an answer swaps, each in its own place."""
    return set(re.findall(r'id="((?:part|row)-[\w-]+)" hx-swap-oob="(?:true|delete)"', answer.content.decode()))


def test_nothing_comes_until_something_happened_and_nothing_after_the_end(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    page = Page(operator, start_run("load"))
    assert page.poll().status_code == 204
    job = hand.take()
    part = page.poll()
    assert "Running at load" in text_of(part)
    assert "<html" not in part.content.decode()
    assert page.poll().status_code == 204
    hand.report(job, output=1)
    ended = page.poll()
    assert "Completed" in text_of(ended)
    assert "hx-trigger" not in ended.content.decode()
    assert page.address == ""


def test_only_what_changed_is_sent(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    """The row of the stage that moved, and the parts that tell of it; never the other stages' rows."""
    run = start_run("load", "publish", "notify")
    page = Page(operator, run, "?stage=2")
    hand.take()
    changed = swapped(page.poll())
    assert {"row-0", "part-head", "part-blockers", "part-events"} <= changed
    assert not {"row-1", "row-2", "part-stage", "part-attempts", "part-data", "part-pauses"} & changed


def test_a_run_of_a_hundred_stages_is_kept_current_by_light_answers(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run(*[f"stage-{number}" for number in range(100)])
    page = Page(operator, run)
    sizes = []
    for _ in range(3):
        job = hand.take()
        sizes.append(len(page.poll().content))
        hand.report(job, output=1)
        sizes.append(len(page.poll().content))
    assert max(sizes) <= LIGHT


def test_rows_that_leave_a_fold_are_put_in_their_place(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages that only wait are one row; one of them that begins gets its own, and what was there stays where it is."""
    monkeypatch.setattr(run_page, "ROWS_SHOWN", 3)
    run = start_run(*[f"stage-{number}" for number in range(6)])
    page = Page(operator, run)
    hand.report(hand.take(), output=1)
    answer = page.poll().content.decode()
    assert '<tr id="row-1-5-5" hx-swap-oob="delete">' in answer
    assert re.search(r'<tbody hx-swap-oob="afterend:#row-0">\s*<tr id="row-1"', answer)
    assert re.search(r'<tbody hx-swap-oob="afterend:#row-1">\s*<tr id="row-2-5-4"', answer)
    assert 'id="row-0" hx-swap-oob="true"' in answer, "what has ended since the page was opened is not folded away"
    assert "4 stages: show all" in text_of(operator.get(f"/console/runs/{run.id}/"))
    assert text_of(operator.get(f"/console/runs/{run.id}/?rows=all")).count("show all") == 0


def test_another_stage_is_opened_in_place_and_has_its_own_address(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", "publish")
    hand.report(hand.take(), output=1)
    page = Page(operator, run)
    answer = page.open(0)
    assert answer.headers["HX-Push-Url"] == f"/console/runs/{run.id}/?stage=0"
    assert {"row-0", "row-1", "part-stage", "part-attempts", "part-data"} <= swapped(answer)
    assert "part-facts" not in swapped(answer)
    assert page.poll().status_code == 204, "and stays open"
    assert page.address.endswith("?stage=0")


def test_time_that_passes_moves_the_axis_and_no_row(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    """What goes on is drawn on by the browser; the frame is moved on before now reaches its end."""
    page = Page(operator, start_run("load"))
    hand.take()
    page.poll()
    clock.advance(5)
    assert page.poll().status_code == 204
    clock.advance(30)
    changed = swapped(page.poll())
    assert "part-axis" in changed
    assert "row-0" not in changed


@pytest.mark.parametrize("seen", ["", "x", "~", "~~~", "9.9.9~zz~0.<b>", "9~" + "a" * 9_000, "9~abc~0.12345~7-8.00000"])
def test_whatever_a_page_says_that_it_has_seen_is_answered(
    operator: Visitor, start_run: Callable[..., Run], seen: str
) -> None:
    """Nothing of it comes back as markup."""
    run = start_run("load")
    answer = operator.part(f"/console/runs/{run.id}/live/", seen=seen)
    assert answer.status_code == 200
    assert "<b>" not in answer.content.decode()
    assert {"part-head", "row-0"} <= swapped(answer) | set(re.findall(r'id="(row-0)"', answer.content.decode()))


def test_the_living_part_is_a_whole_page_without_javascript(operator: Visitor, start_run: Callable[..., Run]) -> None:
    answer = operator.get(f"/console/runs/{start_run('load').id}/live/")
    assert answer.status_code == 200
    assert "<html" in answer.content.decode()


def test_a_retry_is_told_by_its_row(operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock) -> None:
    run = start_run({"name": "load", "options": {"max_retries": 2, "retry_interval": 60}})
    page = Page(operator, run)
    hand.report(hand.take(), "failed", error_code="X", error_message="no answer")
    told = text_of(page.poll())
    assert "Retry scheduled" in told
    assert "no answer" in told
    clock.advance(61)
    sweep()
    hand.take()
    assert "Running" in text_of(page.poll())
