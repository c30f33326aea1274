"""Backfills on screens: the planner with its calendars, starting what it showed, progress, steering, agreement."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRule
from pipelines import blackout_rows, lanes
from pipelines.models import Application, AuditEvent, Environment, Run, Tick, Trigger
from recovery import backfills
from recovery.models import Backfill
from tests.cast import Hand, Person
from tests.console.conftest import HTMX, Visitor, text_of
from tests.recovery.backfilled import finish, runs_of, trigger_of, wish

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]
WINDOW = {"from": "2026-05-20", "to": "2026-05-22"}
START, END = "2026-05-20T00:00Z", "2026-05-22T23:00Z"


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    """Daily at 08:00 UTC."""
    return trigger_of(people["admin"].actor, environment, application, name="rates")


def planner_of(trigger: Trigger) -> str:
    return f"/console/triggers/{trigger.id}/backfill/"


def form_of(page: Any) -> dict[str, str]:
    """What the form that confirms carries."""
    form = re.split(r'action="[^"]*backfill/start/"', page.content.decode(), maxsplit=1)[1].partition("</form>")[0]
    return {
        name: unescape(value) for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    }


def backfill_of(people: dict[str, Person], trigger: Trigger, **more: Any) -> Backfill:
    """Started, with its first runs let in, as the commit does it."""
    made = backfills.start(wish(trigger, START, END, **more), people["operator"].actor).backfill
    lanes.let_in([made.id])
    return made


def run_to_its_end(hand: Hand, made: Backfill) -> None:
    while lanes.let_in([made.id]) or hand.finish():
        pass
    finish(hand, made.id)


# the planner


def test_the_plan_of_the_guides_window_is_three_ticks_and_is_started_as_shown(
    operator: Visitor, trigger: Trigger
) -> None:
    """O51, O53: both ends belong to the window; looking makes nothing."""
    page = operator.get(planner_of(trigger), {"from": "2026-05-20 08:00", "to": "2026-05-22 08:00"})
    told = unescape(text_of(page))
    assert "3 to run" in told
    assert "0 skipped" in told
    assert "Make 3 runs, 1 at a time" in told
    assert "3 runs, one for each tick from 2026-05-20 08:00 to 2026-05-22 08:00 UTC; oldest first" in told
    assert "no live worker has Handler" in told, "warnings first"
    assert told.index("No worker") < told.index("3 runs, one for each")
    assert not Run.objects.exists()
    assert not Tick.objects.exists()
    answer = operator.post(f"{planner_of(trigger)}start/", form_of(page) | {"reason": "rates were missing"})
    made = Backfill.objects.get()
    assert answer.headers["Location"] == f"/console/backfills/{made.id}/"
    assert made.reason == "rates were missing"
    assert len(runs_of(made.id)) == 3
    event = AuditEvent.objects.get(action="backfill.start")
    assert (event.outcome, event.channel, event.reason) == ("allowed", "console", "rates were missing")


def test_the_same_form_sent_twice_starts_one_backfill(operator: Visitor, trigger: Trigger) -> None:
    form = form_of(operator.get(planner_of(trigger), WINDOW))
    operator.post(f"{planner_of(trigger)}start/", form)
    again = operator.post(f"{planner_of(trigger)}start/", form, follow=True)
    assert "A duplicate request" in text_of(again)
    assert Backfill.objects.count() == 1


def test_when_the_world_moved_the_new_plan_comes_back_marked_and_nothing_is_done(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """F51, F80: what somebody else filled meanwhile is not filled again."""
    form = form_of(operator.get(planner_of(trigger), WINDOW))
    backfills.start(wish(trigger, "2026-05-20T08:00Z", "2026-05-20T08:00Z"), people["admin"].actor)
    answer = operator.post(f"{planner_of(trigger)}start/", form | {"reason": "still here"})
    told = unescape(text_of(answer))
    assert answer.status_code == 409
    assert "This is another plan than the one before" in told
    assert "New: 1 tick that has a run already" in told
    assert "No longer: 3 runs" in told
    assert 'value="still here"' in answer.content.decode()
    assert Backfill.objects.count() == 1
    operator.post(f"{planner_of(trigger)}start/", form_of(answer))
    assert Backfill.objects.count() == 2
    assert Run.objects.count() == 3


def test_days_are_real_buttons_with_their_state_in_their_name(
    operator: Visitor, trigger: Trigger, people: dict[str, Person], hand: Hand
) -> None:
    done = backfill_of(people, trigger, max_concurrent=3)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    finish(hand, done.id)
    page = operator.get(planner_of(trigger), WINDOW).content.decode()
    button = re.search(r'<button name="pick" value="2026-05-20"[^>]*>', page)
    assert button
    assert 'data-status="failed"' in button[0]
    assert 'aria-label="Wednesday 20 May 2026: failed"' in button[0]
    assert 'aria-pressed="true"' in button[0]
    assert 'aria-label="Thursday 21 May 2026: completed"' in page
    assert 'aria-label="Friday 29 May 2026: missed"' in page
    assert 'value="2026-05-29" id="d-2026-05-29" class="day" data-status="missed" aria-pressed="false"' in page


def test_picking_two_days_makes_the_window_and_the_address_says_it(operator: Visitor, trigger: Trigger) -> None:
    """Works as a plain form: each pick leads to an address that is the state."""
    one = operator.get(planner_of(trigger), {"pick": "2026-05-22", "max_concurrent": "3"}, follow=True)
    assert one.status_code == 200
    assert one.redirect_chain[-1][0] == (
        f"{planner_of(trigger)}?from=2026-05-22&to=2026-05-22&max_concurrent=3&anchor=2026-05-22"
    )
    assert "Now the other end" in text_of(one)
    query = {"from": "2026-05-22", "to": "2026-05-22", "anchor": "2026-05-22", "pick": "2026-05-20"}
    other = operator.get(planner_of(trigger), query, follow=True)
    assert other.redirect_chain[-1][0] == f"{planner_of(trigger)}?from=2026-05-20&to=2026-05-22"
    assert "3 to run" in text_of(other)
    part = operator.get(planner_of(trigger), query, headers={**HTMX, "HX-Target": "planner"})
    assert part.headers["HX-Replace-Url"] == f"{planner_of(trigger)}?from=2026-05-20&to=2026-05-22"
    assert part.content.lstrip().startswith(b'<div id="planner"')
    recount = operator.get(planner_of(trigger), WINDOW, headers={**HTMX, "HX-Target": "plan"})
    assert recount.content.lstrip().startswith(b'<aside id="plan"')
    assert b'hx-swap-oob="true"' in recount.content


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"from": "2026-05-22", "to": "2026-05-20"}, "From must not be after to"),
        ({"from": "soon", "to": "2026-05-20"}, "A day (2026-05-20), a time of UTC"),
        ({"from": "2026-05-20T08:00:00.5", "to": "2026-05-20"}, "an instant with its offset"),
        ({**WINDOW, "timezone": "Mars/Olympus"}, "There is no time zone"),
        ({**WINDOW, "cron": "0 0 30 2 *"}, "never happens"),
        ({**WINDOW, "max_concurrent": "0"}, "A whole number from 1 to 1,000"),
        ({**WINDOW, "order": "random"}, "One of oldest, newest"),
        ({"from": "2026-01-01", "to": "2026-05-20", "cron": "* * * * *"}, "more than 100000 ticks"),
        ({"from": "9999-01-01", "to": "9999-12-31"}, "A day (2026-05-20)"),
    ],
)
def test_what_cannot_be_meant_is_named_and_makes_no_plan(
    operator: Visitor, trigger: Trigger, query: dict[str, str], told: str
) -> None:
    page = operator.get(planner_of(trigger), query)
    assert page.status_code == 200
    assert told in unescape(text_of(page))
    assert "Start it" not in text_of(page)


def test_a_window_that_reaches_into_the_future_may_be_looked_at_and_not_started(
    operator: Visitor, trigger: Trigger
) -> None:
    query = {"from": "2030-01-01", "to": "2030-01-03"}
    page = operator.get(planner_of(trigger), query)
    assert "3 to run" in text_of(page)
    answer = operator.post(f"{planner_of(trigger)}start/", form_of(page))
    assert answer.status_code == 422
    assert "must not be in the future" in text_of(answer)
    assert not Backfill.objects.exists()


def test_a_viewer_sees_the_plan_and_is_told_why_there_is_no_button(
    browse: Browse, people: dict[str, Person], trigger: Trigger
) -> None:
    """Model §5: everybody may preview."""
    viewer = browse(people["viewer"])
    page = viewer.get(planner_of(trigger), WINDOW)
    assert "3 to run" in text_of(page)
    assert "may not start a backfill" in text_of(page)
    assert viewer.post(f"{planner_of(trigger)}start/", {}).status_code == 403


def test_many_ticks_stay_one_button_a_day_and_a_light_page(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    minutely = trigger_of(people["admin"].actor, environment, application, cron="* * * * *", name="probe")
    page = operator.get(planner_of(minutely), {"from": "2026-05-01", "to": "2026-05-31"})
    told = unescape(page.content.decode())
    assert "44,640</strong> to run" in told
    assert "Friday 15 May 2026: 1,440 ticks: 1,440 missed" in told
    assert len(page.content) < 150_000


def test_a_blackout_now_asks_for_its_reason_first(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """O57, contract §4."""
    blackout_rows.declare(actor=people["admin"].actor, reason="year end close")
    page = operator.get(planner_of(trigger), WINDOW)
    assert "Frozen now" in text_of(page)
    assert 'name="override_reason"' in page.content.decode()
    refused = operator.post(f"{planner_of(trigger)}start/", form_of(page))
    assert refused.status_code == 409
    assert not Backfill.objects.exists()
    operator.post(f"{planner_of(trigger)}start/", form_of(page) | {"override_reason": "agreed with treasury"})
    assert Backfill.objects.get().override_reason == "agreed with treasury"


def test_whoever_is_to_agree_reads_why_it_may_start_in_a_blackout(
    operator: Visitor, browse: Browse, people: dict[str, Person], trigger: Trigger
) -> None:
    """Nobody agrees to words that they could not read."""
    ApprovalRule.objects.create(workspace_id=trigger.workspace_id, name="backfills", kinds=["backfill"])
    blackout_rows.declare(actor=people["admin"].actor, reason="year end close")
    form = form_of(operator.get(planner_of(trigger), WINDOW))
    operator.post(f"{planner_of(trigger)}start/", form | {"override_reason": "agreed with treasury"})
    page = browse(people["approver"]).get(f"/console/approvals/{Backfill.objects.get().id}/")
    assert "The override reason that was written for it agreed with treasury" in text_of(page)


def test_where_it_would_be_done_is_said_first(
    operator: Visitor,
    browse: Browse,
    people: dict[str, Person],
    trigger: Trigger,
    environments: dict[str, Environment],
    application: Application,
) -> None:
    """O57: a protected environment, and handlers that nobody has, before anything is asked for; also to somebody whom
    nobody needs to agree with."""
    there = trigger_of(people["release_manager"].actor, environments["production"], application, slug="prices")
    manager = browse(people["release_manager"])
    for visitor in (operator, manager):
        told = text_of(visitor.get(planner_of(there), WINDOW))
        assert "Protected production: an operator's backfill waits for approval" in unescape(told)
        assert "no live worker has Handler" in told
    assert "Protected" not in text_of(operator.get(planner_of(trigger), WINDOW))
    assert not Backfill.objects.exists()


# agreement


def test_a_backfill_that_others_must_agree_to_is_asked_for_and_told_in_the_inbox(
    operator: Visitor, browse: Browse, people: dict[str, Person], trigger: Trigger
) -> None:
    """F51, F150: the button says so, and the inbox tells what it would do."""
    ApprovalRule.objects.create(
        workspace_id=trigger.workspace_id, name="backfills", kinds=["backfill"], role="approver", count=1
    )
    page = operator.get(planner_of(trigger), WINDOW)
    assert "Ask for approval of 3 runs" in text_of(page)
    answer = operator.post(f"{planner_of(trigger)}start/", form_of(page) | {"reason": "please"}, follow=True)
    assert "waits until somebody else approves it" in text_of(answer)
    made = Backfill.objects.get()
    assert made.state == "awaiting_approval"
    assert not Run.objects.exists()
    approver = browse(people["approver"])
    inbox = unescape(text_of(approver.get("/console/approvals/")))
    assert re.search(r"makes 3 runs of rates in \w+, from 2026-05-20 08:00", inbox, re.IGNORECASE), inbox
    decision = approver.get(f"/console/approvals/{made.id}/")
    assert "3 runs, one for each tick" in text_of(decision)
    digest = re.search(r'name="plan_digest" value="(\w+)"', decision.content.decode())
    assert digest
    approver.post(f"/console/approvals/{made.id}/approve/", {"plan_digest": digest[1]})
    made.refresh_from_db()
    assert made.state == "running"
    assert len(runs_of(made.id)) == 3


# progress


def test_progress_counts_what_ended_what_is_in_and_what_is_held(
    operator: Visitor, trigger: Trigger, people: dict[str, Person], hand: Hand
) -> None:
    """F116: counted anew each time; unchanged is 204, and what has ended is asked for no more."""
    made = backfill_of(people, trigger)
    address = f"/console/backfills/{made.id}/"
    hand.report(hand.take(), "failed", error_code="MISSING_REQUIRED_DATA", error_message="no fixing", retryable=False)
    page = operator.get(address)
    told = unescape(text_of(page))
    assert "1 of 3 over" in told
    assert "33 %" in told
    assert "MISSING_REQUIRED_DATA no fixing" in told
    assert "held" in told
    seen = re.search(r"seen=(\w+)", page.content.decode())
    assert seen
    assert operator.part(address, seen=seen[1]).status_code == 204
    run_to_its_end(hand, made)
    later = operator.part(address, seen=seen[1])
    assert later.status_code == 200
    assert "3 of 3 over" in text_of(later)
    assert "Completed with failures" in text_of(later)
    assert b"hx-trigger" not in later.content, "what has ended is not asked for any more"


def test_pause_resume_and_cancel_say_what_follows(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """F82: cancelled ticks are missed again, and another backfill may fill them."""
    made = backfill_of(people, trigger)
    address = f"/console/backfills/{made.id}"
    assert "2 runs that were not let in yet" in text_of(operator.get(f"{address}/pause/"))
    operator.post(f"{address}/pause/", {"reason": "load"})
    made.refresh_from_db()
    assert made.state == "paused"
    assert "at most 1 at a time" in text_of(operator.get(f"{address}/resume/"))
    operator.post(f"{address}/resume/")
    told = text_of(operator.get(f"{address}/cancel/"))
    assert "to their end: 1 run that was let in" in told
    assert "2 runs that were held; their ticks are missed again" in told
    assert operator.post(f"{address}/cancel/", {"reason": ""}).status_code == 400
    answer = operator.post(f"{address}/cancel/", {"reason": "wrong days"}, follow=True)
    assert "The backfill is cancelled." in text_of(answer)
    assert "wrong days" in text_of(answer)
    page = operator.get(planner_of(trigger), WINDOW)
    assert "2 to run" in text_of(page)


def test_the_ticks_of_a_backfill_are_listed_with_their_runs(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    first = backfill_of(people, trigger)
    second = backfills.start(wish(trigger, START, "2026-05-23T09:00Z"), people["operator"].actor).backfill
    page = operator.get(f"/console/backfills/{second.id}/ticks/")
    told = unescape(text_of(page))
    assert told.count("Had a run") == 3
    for run in (*runs_of(first.id), *runs_of(second.id)):
        assert f'href="/console/runs/{run.id}/"' in page.content.decode()
    skipped = operator.get(f"/console/backfills/{second.id}/ticks/", {"status": "dispatched"})
    assert "Had a run" not in text_of(skipped)


def test_a_run_says_which_trigger_tick_and_backfill_made_it(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    made = backfill_of(people, trigger)
    run = runs_of(made.id)[-1]
    assert run.held
    page = operator.get(f"/console/runs/{run.id}/")
    assert f'href="/console/triggers/{trigger.id}/"' in page.content.decode()
    assert f'href="/console/backfills/{made.id}/"' in page.content.decode()
    told = unescape(text_of(page))
    assert "Tick Fri 05-22 08:00" in told


def test_pages_cost_the_same_however_many_ticks_there_are(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """F115."""

    def count(address: str, **query: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(address, query).status_code == 200
        return len(queries)

    few = backfills.start(wish(trigger, START, END), people["operator"].actor).backfill
    many = backfills.start(wish(trigger, "2026-01-01T00:00Z", "2026-04-30T00:00Z"), people["operator"].actor).backfill
    for part in ("", "ticks/"):
        count(f"/console/backfills/{few.id}/{part}")
        few_asked = count(f"/console/backfills/{few.id}/{part}")
        assert count(f"/console/backfills/{many.id}/{part}") == few_asked, part
    few_asked = count(planner_of(trigger), **{"from": "2026-06-01", "to": "2026-06-03"})
    assert count(planner_of(trigger), **{"from": "2026-01-01", "to": "2026-09-30"}) == few_asked
    few_asked = count("/console/backfills/")
    for _ in range(5):
        backfills.start(wish(trigger, START, END), people["operator"].actor)
    assert count("/console/backfills/") == few_asked


def test_another_workspaces_backfill_is_not_there(
    browse: Browse, outsider: Person, trigger: Trigger, people: dict[str, Person]
) -> None:
    """I16."""
    made = backfill_of(people, trigger)
    visitor = browse(outsider)
    for part in ("", "ticks/", "pause/", "resume/", "cancel/"):
        assert visitor.get(f"/console/backfills/{made.id}/{part}").status_code == 404, part
    assert visitor.get(planner_of(trigger)).status_code == 404
    assert "No backfill yet" in text_of(visitor.get("/console/backfills/"))
