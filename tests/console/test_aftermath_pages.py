"""What may still go on outside, on screens: on its run's page, in the list of all, on the run list's first line."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import intents
from pipelines.effects import Told
from pipelines.models import Effect, ReconciliationItem, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.console.conftest import Visitor, text_of

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]
ATTACK = "<script>alert(1)</script>"


@pytest.fixture
def approver(browse: Browse, people: dict[str, Person]) -> Visitor:
    return browse(people["approver"])


@pytest.fixture
def leave(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> Callable[..., Run]:
    """A cancelled run of which an attempt may still run: leave("load")."""

    def cancelled(name: str = "load", **more: Any) -> Run:
        run = start_run(name, **more)
        hand.take()
        cancel_run(run.id, actor=people["operator"].actor)
        return run

    return cancelled


def told(response: Any) -> str:
    return unescape(text_of(response))


def address(item: ReconciliationItem) -> str:
    return f"/console/runs/reconciliation/{item.id}/settle/"


def test_a_list_is_worked_off_without_javascript(leave: Callable[..., Run], approver: Visitor) -> None:
    """R37: from the first line of the run list to the page that says all is settled."""
    run = leave()
    item = ReconciliationItem.objects.get(run=run)
    first = approver.get("/console/")
    assert "1 ended run with open items" in told(first)
    assert 'href="/console/runs/reconciliation/"' in first.content.decode()
    listed = approver.get("/console/runs/reconciliation/")
    assert "Running load: attempt 1 may still run at hand-1; it was told to stop nightly" in told(listed)
    assert f'href="{address(item)}"' in listed.content.decode()
    form = approver.get(address(item))
    assert "Settle what load of nightly left outside" in told(form)
    assert 'method="post"' in form.content.decode()
    done = approver.post(address(item), {"reason": f"killed by hand {ATTACK}"}, follow=True)
    assert done.redirect_chain == [(f"/console/runs/{run.id}/", 303)]
    page = approver.get(f"/console/runs/{run.id}/")
    assert "May still go on outside all settled" in told(page)
    assert "killed by hand" in told(page)
    assert ATTACK not in page.content.decode()
    assert "approver-acme settled what was left outside by load" in told(page)
    assert "Nothing is left to settle" in told(approver.get("/console/runs/reconciliation/"))
    assert "with open items" not in told(approver.get("/console/"))


def test_a_note_is_needed(leave: Callable[..., Run], approver: Visitor) -> None:
    leave()
    item = ReconciliationItem.objects.get()
    answer = approver.post(address(item), {"reason": " "})
    assert (answer.status_code, ReconciliationItem.objects.get().resolved_at) == (400, None)
    assert "A reason is needed" in told(answer)


def test_what_is_settled_stands_and_the_form_says_by_whom(leave: Callable[..., Run], approver: Visitor) -> None:
    leave()
    item = ReconciliationItem.objects.get()
    approver.post(address(item), {"reason": "it had ended"})
    again = approver.get(address(item))
    assert again.status_code == 409
    assert "Approver-acme settled it at" in told(again)
    assert "Settle it" not in told(again)
    other = approver.post(address(item), {"reason": "another word"})
    assert (other.status_code, ReconciliationItem.objects.get().note) == (409, "it had ended")


def test_an_open_effect_leads_to_what_is_found_out_about_it(
    start_run: StartRun, hand: Hand, people: dict[str, Person], approver: Visitor
) -> None:
    run = start_run({"name": "pay", "effect_mode": "external", "effect_protocol": "intent"})
    job = hand.take()
    intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", "declared", key="i-1")])
    cancel_run(run.id, actor=people["operator"].actor)
    effect = Effect.objects.get()
    page = approver.get(f"/console/runs/{run.id}/")
    assert f'href="/console/effects/{effect.id}/reconcile/"' in page.content.decode()
    approver.post(f"/console/effects/{effect.id}/reconcile/", {"outcome": "absent", "reason": "not there"})
    assert "settled with its effect, reconciled absent: not there" in told(approver.get(f"/console/runs/{run.id}/"))


def test_who_may_not_settle_sees_why(leave: Callable[..., Run], operator: Visitor) -> None:
    run = leave()
    for page in (f"/console/runs/{run.id}/", "/console/runs/reconciliation/"):
        assert "Your role, operator, may not" in told(operator.get(page))
    item = ReconciliationItem.objects.get()
    assert (operator.get(address(item)).status_code, operator.post(address(item)).status_code) == (403, 403)
    assert ReconciliationItem.objects.get().resolved_at is None


def test_another_workspace_knows_nothing_of_it(leave: Callable[..., Run], browse: Browse, outsider: Person) -> None:
    leave()
    stranger = browse(outsider)
    assert stranger.get(address(ReconciliationItem.objects.get())).status_code == 404
    assert "Nothing is left to settle" in told(stranger.get("/console/runs/reconciliation/"))
    assert "with open items" not in told(stranger.get("/console/"))


def test_the_list_is_narrowed_by_its_address_and_costs_the_same_however_long(
    leave: Callable[..., Run], approver: Visitor
) -> None:
    run = leave()
    approver.get("/console/runs/reconciliation/")
    counts = []
    for more in (0, 9):
        for _ in range(more):
            leave("other")
        with CaptureQueriesContext(connection) as captured:
            approver.get("/console/runs/reconciliation/")
        counts.append(len(captured))
    assert counts[0] == counts[1]
    narrowed = told(approver.get(f"/console/runs/reconciliation/?execution_id={run.id}"))
    assert "load: attempt 1" in narrowed
    assert "other: attempt 1" not in narrowed
    assert "None that match" in told(approver.get("/console/runs/reconciliation/?kind=open_gate"))
    for wrong in ("kind=x", "colour=red", "cursor=x", "execution_id=1"):
        assert approver.get(f"/console/runs/reconciliation/?{wrong}").status_code == 400
