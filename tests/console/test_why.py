"""Why does this not move? Of a tick and of a backfill, in words, with who holds it and when the engine looks again.

Of runs and stages: tests/pipelines/test_blockers.py. Each cause is built for real.
"""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRule
from pipelines import dispatch, lanes, ledger, queries
from pipelines.blockers import Blocker
from pipelines.models import Application, Environment, Release, Run, Tick, Trigger, Workspace
from pipelines.sql import database_now
from pipelines.tick_blockers import tick_blockers
from recovery import backfill_waiting, backfills
from recovery.models import Backfill
from tests.cast import Hand, Person
from tests.console.conftest import Visitor, text_of
from tests.pipelines.blackout_nights import period
from tests.recovery.backfilled import runs_of, trigger_of, wish
from tests.scheduled import MakeTrigger, run_pass, turn_back

pytestmark = pytest.mark.django_db


def newest(trigger: Trigger) -> Tick:
    return Tick.objects.filter(trigger=trigger).latest("at")


def of_tick(trigger: Trigger) -> list[Blocker]:
    return tick_blockers(newest(trigger), trigger)


def due(trigger: Trigger) -> Tick:
    """A tick that is recorded and that no dispatcher has met yet."""
    turn_back(trigger, hours=1)
    assert ledger.record()
    tick = newest(trigger)
    assert tick.state == "due"
    return tick


def page_of(visitor: Visitor, trigger: Trigger) -> str:
    tick = newest(trigger)
    return unescape(text_of(visitor.get(f"/console/triggers/{trigger.id}/ticks/{tick.id}/")))


# ticks


def test_a_tick_that_is_due_says_that_the_next_pass_decides(make_trigger: MakeTrigger) -> None:
    trigger = make_trigger(catch_up="latest")
    tick = due(trigger)
    (one,) = of_tick(trigger)
    assert (one.holder, one.next_look) == ("the engine", tick.start_at)
    assert one.cause.endswith("and the next pass of the schedule decides")


def test_a_tick_that_is_spread_waits_for_the_clock(make_trigger: MakeTrigger) -> None:
    trigger = make_trigger(spread=3000, catch_up="latest")
    tick = due(trigger)
    Tick.objects.filter(id=tick.id).update(start_at=tick.start_at.replace(year=tick.start_at.year + 1))
    (one,) = of_tick(trigger)
    assert one.holder == "the clock"
    assert one.cause.startswith("it starts at ")


def test_a_due_tick_says_what_would_become_of_it(make_trigger: MakeTrigger, workspace: Workspace) -> None:
    """F117: off, blackout, no release: each as it stands now, and as the dispatcher then does it."""
    trigger = make_trigger(catch_up="latest")
    due(trigger)
    Release.objects.filter(pipeline=trigger.pipeline_id).update(status="superseded")
    (one,) = of_tick(trigger)
    assert "as things stand it fails: " in one.cause
    held = period(workspace, "2020-01-01T00:00:00", None, name="stocktaking")
    (one,) = of_tick(trigger)
    assert "as things stand it is skipped: nothing starts: blackout 'stocktaking'" in one.cause
    Trigger.objects.filter(id=trigger.id).update(enabled=False)
    trigger.refresh_from_db()
    (one,) = of_tick(trigger)
    assert "as things stand it is skipped: the trigger is off" in one.cause
    dispatch.dispatch_due()
    assert newest(trigger).reason == "paused"
    assert held.enabled


def test_a_skipped_tick_says_why_and_what_still_helps(operator: Visitor, make_trigger: MakeTrigger) -> None:
    trigger = make_trigger(overlap_policy="skip", catch_up="all")
    turn_back(trigger, hours=2)
    run_pass()
    tick = newest(trigger)
    assert (tick.state, tick.reason) == ("skipped", "overlap")
    (one,) = of_tick(trigger)
    assert one.holder == "a person"
    assert one.cause.startswith("it was skipped: an earlier run of the trigger was unfinished")
    told = page_of(operator, trigger)
    assert "Why no run came of it" in told
    assert "unless somebody asks for a backfill" in told
    assert "Plan a backfill of it" in told


def test_a_tick_whose_run_could_not_be_made_says_whether_that_still_holds(
    operator: Visitor, make_trigger: MakeTrigger
) -> None:
    trigger = make_trigger(catch_up="latest")
    Release.objects.filter(pipeline=trigger.pipeline_id).update(status="superseded")
    due(trigger)
    dispatch.dispatch_due()
    (one,) = of_tick(trigger)
    assert one.cause.startswith("its run could not be made, release_not_active")
    assert "; that still holds: " in one.cause
    put_back = Release.objects.filter(pipeline=trigger.pipeline_id)
    put_back.update(status="active", activated_at=database_now())
    assert "a run could be made now; no run is made of it unless somebody asks" in of_tick(trigger)[0].cause
    assert "Plan a backfill of it" in page_of(operator, trigger)


def test_a_tick_with_a_run_says_why_the_run_does_not_move(
    operator: Visitor, make_trigger: MakeTrigger, hand: Hand
) -> None:
    """No live worker with the handler is the commonest cause at night; a run that has ended well has none."""
    trigger = make_trigger(catch_up="latest", stages=[{"name": "first", "handler": "Loader"}])
    due(trigger)
    dispatch.dispatch_due()
    (one,) = of_tick(trigger)
    assert (one.holder, one.stage) == ("no worker", "first")
    told = page_of(operator, trigger)
    assert "no live worker has registered the handler Loader" in told
    assert "A worker that registers this handler must come." in told
    Run.objects.filter(trigger=trigger).update(status="completed")
    assert of_tick(trigger) == []
    assert "Nothing holds it" in page_of(operator, trigger)
    Run.objects.filter(trigger=trigger).update(status="cancelled")
    assert of_tick(trigger)[0].cause == "its run was cancelled and stays so; a backfill may do it once more"


def test_a_row_of_the_ledger_opens_to_its_tick(
    operator: Visitor, browse: Callable[[Person], Visitor], outsider: Person, make_trigger: MakeTrigger
) -> None:
    """Without JavaScript it is a page; with it, a row. I16: of another workspace neither."""
    trigger = make_trigger(catch_up="latest")
    due(trigger)
    address = f"/console/triggers/{trigger.id}/ticks/{newest(trigger).id}/"
    assert f'href="{address}"' in operator.get(f"/console/triggers/{trigger.id}/").content.decode()
    row = operator.part(address).content.decode()
    assert row.lstrip().startswith(f'<tr class="detail" id="tick-{newest(trigger).id}">')
    assert browse(outsider).get(address).status_code == 404
    other = make_trigger(pipeline="other", catch_up="latest")
    assert operator.get(f"/console/triggers/{other.id}/ticks/{newest(trigger).id}/").status_code == 404


# runs that are held


def test_a_held_run_says_behind_which_runs_it_waits(
    operator: Visitor, make_trigger: MakeTrigger, people: dict[str, Person]
) -> None:
    """O55, F82."""
    trigger = trigger_of_daily(make_trigger)
    made = backfill_of(people, trigger, max_concurrent=1)
    first, second, third = runs_of(made.id)
    blocker = queries.blockers(third)[0]
    assert [one.id for one in blocker.behind] == [first.id]
    assert blocker.cause.endswith(f"1 is in, 1 before it; in: {first.name} of 2026-05-20 08:00 UTC, queued")
    page = operator.get(f"/console/runs/{third.id}/").content.decode()
    assert f'href="/console/runs/{first.id}/"' in page
    assert f'href="/console/runs/{second.id}/"' not in page, "what is held as it is, is not what it waits for"


# backfills


def trigger_of_daily(make_trigger: MakeTrigger) -> Trigger:
    return make_trigger("0 8 * * *")


def backfill_of(people: dict[str, Person], trigger: Trigger, **more: Any) -> Backfill:
    wanted = wish(trigger, "2026-05-20T00:00Z", "2026-05-22T23:00Z", **more)
    made = backfills.start(wanted, people["operator"].actor).backfill
    lanes.let_in([made.id])
    return made


def of_backfill(made: Backfill) -> list[Blocker]:
    made = Backfill.objects.select_related("trigger", "requested_by").get(id=made.id)
    return backfill_waiting.blockers(made, backfills.progress(made), None)


def test_a_backfill_at_its_limit_names_the_runs_that_fill_it(
    operator: Visitor, make_trigger: MakeTrigger, people: dict[str, Person], hand: Hand
) -> None:
    """F115: which runs, each with its page."""
    made = backfill_of(people, trigger_of_daily(make_trigger), max_concurrent=2)
    (one,) = of_backfill(made)
    first, second, _ = runs_of(made.id)
    assert one.cause.startswith("1 run is held: it lets in 2 at a time, and as many are in")
    assert [inside.id for inside in one.behind] == [first.id, second.id]
    page = operator.get(f"/console/backfills/{made.id}/")
    assert "What it waits for" in text_of(page)
    assert f'href="/console/runs/{second.id}/"' in page.content.decode()


def test_a_backfill_without_a_worker_says_which_handler_is_missing(
    make_trigger: MakeTrigger, people: dict[str, Person]
) -> None:
    made = backfill_of(people, trigger_of_daily(make_trigger), max_concurrent=3)
    (one,) = of_backfill(made)
    assert one.holder == "no worker"
    assert one.cause == "3 runs are let in and ready; no live worker has registered the handler Handler"


def test_a_paused_backfill_says_by_whom_and_why(
    operator: Visitor, make_trigger: MakeTrigger, people: dict[str, Person], hand: Hand
) -> None:
    made = backfill_of(people, trigger_of_daily(make_trigger))
    backfills.pause(made.id, people["admin"].actor, "the source is wrong")
    (one,) = of_backfill(made)
    assert one.holder == "admin-acme"
    assert one.cause.startswith("paused by admin-acme since ")
    assert one.cause.endswith(": the source is wrong; nothing more is let in; 1 let in before goes on to its end")
    told = unescape(text_of(operator.get(f"/console/backfills/{made.id}/")))
    assert "It is up to admin-acme, or another who may." in told


def test_a_backfill_that_others_must_agree_to_says_who(
    make_trigger: MakeTrigger, people: dict[str, Person], workspace: Workspace
) -> None:
    ApprovalRule.objects.create(workspace=workspace, name="two", kinds=["backfill"], role="admin", count=2)
    wanted = wish(trigger_of_daily(make_trigger), "2026-05-20T00:00Z", "2026-05-22T23:00Z")
    made = backfills.start(wanted, people["operator"].actor).backfill
    (one,) = of_backfill(made)
    assert (one.holder, one.asks) == ("a person", made.id)
    assert one.cause.startswith("waits for approval of 2 admins other than operator-acme, who asked for it, 0 so far")


def test_a_backfill_in_a_blackout_waits_for_its_end(
    operator: Visitor, make_trigger: MakeTrigger, people: dict[str, Person], workspace: Workspace, hand: Hand
) -> None:
    made = backfill_of(people, trigger_of_daily(make_trigger))
    period(workspace, "2020-01-01T00:00:00", None, name="stocktaking")
    told = unescape(text_of(operator.get(f"/console/backfills/{made.id}/")))
    assert "2 runs are held; nothing starts: blackout 'stocktaking'" in told
    assert "blackouts and freeze" in told


def test_a_backfill_whose_run_is_blocked_asks_for_a_person_and_one_that_is_over_for_nobody(
    make_trigger: MakeTrigger, people: dict[str, Person], hand: Hand
) -> None:
    made = backfill_of(people, trigger_of_daily(make_trigger), max_concurrent=3)
    first = runs_of(made.id)[0]
    Run.objects.filter(id=first.id).update(status="blocked")
    person = next(one for one in of_backfill(made) if one.holder == "a person")
    assert person.cause == "1 run is let in and cannot move without a person"
    assert [one.id for one in person.behind] == [first.id]
    Run.objects.filter(id=first.id).update(status="queued")
    while lanes.let_in([made.id]) or hand.finish():
        pass
    backfills.carry_on()
    assert of_backfill(made) == []


def test_the_number_of_queries_does_not_grow_with_the_runs(
    make_trigger: MakeTrigger, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    daily = trigger_of(people["admin"].actor, environment, application)
    few = backfills.start(wish(daily, "2026-05-20T00:00Z", "2026-05-22T00:00Z"), people["operator"].actor).backfill
    many = backfills.start(
        wish(daily, "2026-01-01T00:00Z", "2026-04-22T00:00Z", max_concurrent=40), people["operator"].actor
    ).backfill
    counts = []
    for made in (few, many):
        lanes.let_in([made.id])
        found = backfills.progress(made)
        row = Backfill.objects.select_related("trigger").get(id=made.id)
        with CaptureQueriesContext(connection) as captured:
            backfill_waiting.blockers(row, found, None)
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 5
    assert run_pass()
