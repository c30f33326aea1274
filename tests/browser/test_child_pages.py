"""Runs that a stage started, as a browser shows them: nothing beyond the edge, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import children
from pipelines.children import Wish
from pipelines.creation import Intent
from pipelines.models import Run
from tests.browser.looking import Window
from tests.browser.test_narrow import PUSHED
from tests.cast import Hand, Person, stage_of

pytestmark = pytest.mark.django_db(transaction=True)
LONG = "a-very-long-name-" * 12


@pytest.mark.parametrize("width", [390, 1280])
def test_parents_and_children_show_each_other_at_any_width(
    window: Callable[..., Window], start_run: Callable[..., Run], hand: Hand, people: dict[str, Person], width: int
) -> None:
    """F73, O57."""
    run = start_run({"name": LONG})
    job = hand.take()
    told = []
    for key, on_parent_end in (("k" * 190, "cancel"), ("night", "leave")):
        intent = Intent(name=LONG, stages=[stage_of({"name": "work", "handler": "Child"})])
        wish = Wish(key, intent, on_parent_end=on_parent_end)
        started = children.start(hand.holder, job.stage.id, job.attempt_id, wish)
        assert started is not None
        told.append(started.child.run_id)
    hand.report(job, "waiting", awaits_runs=told)
    one = window(people["operator"], viewport={"width": width, "height": 844})
    for path in (f"runs/{run.id}/", f"runs/{run.id}/children/", f"runs/{told[0]}/", f"runs/{run.id}/cancel/"):
        assert one.go(f"/console/{path}").status == 200, path
        room: Any = one.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert room[0] <= room[1], path
        assert one.page.evaluate(PUSHED) == [], path
    shown = one.page.inner_text("main")
    assert "Ends too" in shown
    assert "May go on" in shown
