"""A cancelled run's list, worked off in a browser from the first line of the run list to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import intents
from pipelines.effects import Told
from pipelines.models import Effect, ReconciliationItem, Run
from pipelines.transitions import cancel_run
from tests.browser.looking import Window
from tests.cast import Hand, Person

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]


@pytest.mark.parametrize("scripted", [True, False])
def test_what_a_cancel_left_is_worked_off(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Hand, scripted: bool
) -> None:
    """R37, P75: the effect by what is found out about it, the attempt by a note; with JavaScript and without."""
    run = start_run({"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}, name="payroll")
    job = hand.take()
    intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", "declared", key="i-7")])
    cancel_run(run.id, actor=people["operator"].actor, reason="wrong month")
    page: Any = window(people["approver"], java_script_enabled=scripted).page
    page.get_by_role("link", name="1 ended run with open items").click()
    page.get_by_role("heading", name="May still go on outside").wait_for()
    page.get_by_role("link", name="Settle… pay: attempt 1 may still run").click()
    page.get_by_label("Reason").fill("its host was switched off")
    page.get_by_role("button", name="Settle it").click()
    page.get_by_text("its host was switched off").first.wait_for()
    page.get_by_role("link", name="Reconcile… pay: nobody knows").click()
    page.get_by_label("It did not happen").check()
    page.get_by_label("Reason").fill("the bank has no such order")
    page.get_by_role("button", name="Say so").click()
    page.get_by_text("Kept. The effect is reconciled absent.").wait_for()
    assert Effect.objects.get().state == "reconciled_absent"
    assert not ReconciliationItem.objects.filter(resolved_at=None).exists()
    page.goto(page.url.split("/console/")[0] + f"/console/runs/{run.id}/")
    page.get_by_text("all settled").wait_for()
