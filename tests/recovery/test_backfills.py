"""Backfills from asking to their end: what is made, in which order, how many at once, and what nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from approvals.transitions import decide_gate
from pipelines import creation, dispatch, ledger, retention, tick_inputs, triggers
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Application, AuditEvent, Blackout, Environment, Event, Lane, Release, Run, Tick, Trigger
from pipelines.transitions import cancel_run
from recovery import backfill_work, backfills
from recovery.models import Backfill
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.backfilled import (
    assert_accounted_for,
    at,
    finish,
    pipeline_of,
    runs_of,
    states,
    trigger_of,
    wish,
)
from tests.recovery.bulked import fail, refused
from tests.scheduled import expected, run_pass, set_to

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "0b7e3d1c-1111-4222-8333-444455556666"
WINDOW = ("2026-05-20T08:00:00+00:00", "2026-05-22T08:00:00+00:00")
TEN_DAYS = ("2026-05-01T00:00:00+00:00", "2026-05-10T23:00:00+00:00")


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["admin"].actor, environment, application)


# asking


def test_a_dry_run_counts_and_creates_nothing(trigger: Trigger, people: dict[str, Person]) -> None:
    """O51, O52, O53: three ticks, both ends of the window are in it; viewers may look too."""
    told = backfills.preview(wish(trigger, *WINDOW, max_concurrent=3), people["viewer"].actor).answer()
    assert (told["total_ticks"], told["dispatched"], told["failed"], told["dry_run"]) == (3, 0, 0, True)
    assert [(one["tick_time"], one["status"]) for one in told["ticks"]] == [
        (f"2026-05-{day}T08:00:00+00:00", "pending") for day in (20, 21, 22)
    ]
    assert told["ticks"][0]["rule"] == "fixed_time"
    assert told["missed_because"] == {"not recorded": 3}
    assert told["without_worker"] == ["Handler"]
    assert not Backfill.objects.exists()
    assert not Run.objects.exists()
    assert not Tick.objects.exists()


def test_every_missed_tick_gets_one_run_and_so_many_are_in(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    """O49, O54, O55: a run for every tick at once, `max_concurrent` of them active, the others held as queued."""
    done = backfills.start(wish(trigger, *WINDOW, max_concurrent=2, reason="the feed was down"), operator)
    told = done.as_json()
    assert (told["total_ticks"], told["dispatched"], told["failed"], told["status"]) == (3, 3, 0, "running")
    assert [one["status"] for one in told["ticks"]] == ["dispatched"] * 3
    runs = runs_of(done.backfill.id)
    assert [str(run.id) for run in runs] == [one["execution_id"] for one in told["ticks"]]
    assert [run.held for run in runs] == [False, False, True]
    assert {run.status for run in runs} == {"queued"}
    assert runs[0].requesters == [operator.user_id]
    assert (done.progress.active, done.progress.held) == (2, 1)
    assert_accounted_for(trigger)
    finish(hand, done.backfill.id)
    backfill = Backfill.objects.get()
    assert backfill.state == "completed"
    assert backfill.finished_at is not None
    assert {run.status for run in runs_of(backfill.id)} == {"completed"}
    assert [event.outcome for event in AuditEvent.objects.filter(action="backfill.start")] == ["allowed"]
    assert backfills.progress(backfill).completed == 3


def test_dry_run_and_creation_are_one_engine(
    people: dict[str, Person], environment: Environment, application: Application, operator: Actor
) -> None:
    """F80: daily 00:30 in Berlin over the change of clocks, the same set both times."""
    trigger = trigger_of(people["admin"].actor, environment, application, cron="30 0 * * *", timezone="Europe/Berlin")
    asked = wish(trigger, "2026-03-27T00:00:00+01:00", "2026-03-30T12:00:00+02:00")
    seen = [one["tick_time"] for one in backfills.preview(asked, operator).answer()["ticks"]]
    assert seen == [
        "2026-03-26T23:30:00+00:00",
        "2026-03-27T23:30:00+00:00",
        "2026-03-28T23:30:00+00:00",
        "2026-03-29T22:30:00+00:00",
    ]
    done = backfills.start(asked, operator)
    assert [run.tick_at and run.tick_at.isoformat() for run in runs_of(done.backfill.id)] == seen
    assert [one["tick_time"] for one in done.as_json()["ticks"]] == seen


def test_cron_zone_and_rules_of_a_backfill_rule_it_and_stand_in_its_ledger(trigger: Trigger, operator: Actor) -> None:
    """Contract §4: what is given rules this backfill; the trigger stays as it is."""
    given = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "gap": "shift", "overlap": "both"}
    asked = wish(trigger, "2026-03-29T00:00:00+01:00", "2026-03-29T23:00:00+02:00", **given)
    done = backfills.start(asked, operator)
    (tick,) = Tick.objects.filter(trigger=trigger)
    assert (tick.cron, tick.timezone, tick.gap, tick.overlap) == tuple(given.values())
    assert (tick.rule, tick.local_time) == ("gap_shift", "2026-03-29T03:30:00+02:00")
    assert tick.backfill == done.backfill.id
    (told,) = done.as_json()["ticks"]
    assert (told["rule"], told["local_time"]) == ("gap_shift", "2026-03-29T03:30:00+02:00")
    trigger.refresh_from_db()
    assert (trigger.cron, trigger.timezone, trigger.version) == ("0 8 * * *", "UTC", 1)


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("backfill_window_invalid", {"from_time": at("2026-05-23T00:00:00+00:00")}),
        ("backfill_window_invalid", {"to_time": at("2027-05-23T00:00:00+00:00")}),
        ("validation_error", {"from_time": at("2026-05-20T08:00:00")}),
        ("validation_error", {"to_time": at("2026-05-22T08:00:00")}),
        ("validation_error", {"flow_slug": "other"}),
        ("validation_error", {"workload_id": "00000000-0000-4000-8000-000000000000"}),
        ("validation_error", {"reprocess": "some"}),
        ("validation_error", {"order": "random"}),
        ("validation_error", {"max_concurrent": 0}),
        ("validation_error", {"max_concurrent": 1_001}),
        ("validation_error", {"max_ticks": 0}),
        ("validation_error", {"gap": "never"}),
        ("cron_invalid", {"cron": "0 0 30 2 *"}),
        ("cron_invalid", {"cron": ""}),
        ("timezone_invalid", {"timezone": "Mars/Olympus"}),
        ("environment_unknown", {"environment": "moon"}),
        ("recovery_environment_mismatch", {"environment": "staging"}),
        ("backfill_too_many_ticks", {"cron": "* * * * *"}),
        ("backfill_too_many_ticks", {"cron": "* * * * *", "max_ticks": 2_880}),
        ("backfill_too_many_ticks", {"cron": "* * * * *", "max_ticks": 100_000, "from_time": at("2026-03-01T00:00Z")}),
        ("plan_changed", {"plan_digest": "0" * 64}),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(
    trigger: Trigger, operator: Actor, code: str, more: dict[str, Any]
) -> None:
    digest = more.get("plan_digest", "")
    asked = replace(wish(trigger, *WINDOW), **{name: value for name, value in more.items() if name != "plan_digest"})
    refusal = refused(code, lambda: backfills.start(asked, operator, KEY, digest))
    if refusal.status in (400, 422) and "cron" not in code and "timezone" not in code:
        assert refusal.errors, "the field is named"
    if code != "plan_changed" and ("to_time" not in more or not asked.to_time.tzinfo):
        refused(code, lambda: backfills.preview(asked, operator))
    assert not Backfill.objects.exists()
    assert not Tick.objects.exists()
    assert not Run.objects.exists()
    (event,) = AuditEvent.objects.filter(action="backfill.start")
    assert (event.outcome, event.code) == ("failed", code)
    if code != "plan_changed":
        backfills.start(wish(trigger, *WINDOW), operator, KEY)  # a refused request keeps no key


def test_a_dry_run_may_reach_into_the_future(trigger: Trigger, operator: Actor, clock: Clock) -> None:
    ahead = clock.now() + timedelta(days=3)
    asked = replace(wish(trigger, *WINDOW), from_time=clock.now(), to_time=ahead)
    assert backfills.preview(asked, operator).total_ticks == 3
    refused("backfill_window_invalid", lambda: backfills.start(asked, operator))


def test_exactly_as_many_ticks_as_may_be_are_taken(trigger: Trigger, operator: Actor) -> None:
    """Both sides of the limit: 1,001 minutes are one too many, until `max_ticks` allows them."""
    window = ("2026-05-20T00:00:00+00:00", "2026-05-20T16:40:00+00:00")
    asked = wish(trigger, *window, cron="* * * * *")
    refused("backfill_too_many_ticks", lambda: backfills.preview(asked, operator))
    assert backfills.preview(replace(asked, max_ticks=1_001), operator).total_ticks == 1_001
    refused("backfill_too_many_ticks", lambda: backfills.preview(replace(asked, max_ticks=1_000), operator))
    refused("backfill_too_many_ticks", lambda: backfills.preview(wish(trigger, *WINDOW, max_ticks=2), operator))
    fewer = replace(asked, to_time=at("2026-05-20T16:39:00+00:00"))
    assert backfills.preview(fewer, operator).total_ticks == 1_000
    assert len(backfills.preview(fewer, operator).answer()["ticks"]) == 1_000
    assert len(backfills.preview(fewer, operator).answer(limit=10)["ticks"]) == 10


def test_nobody_else_may_and_nothing_of_another_workspace_is_known(
    trigger: Trigger, people: dict[str, Person], outsider: Person
) -> None:
    """I16, model §5: a viewer looks; only who may recover starts; a foreign id is 404 for all."""
    refused("not_found", lambda: backfills.preview(wish(trigger, *WINDOW), outsider.actor))
    refused("not_found", lambda: backfills.start(wish(trigger, *WINDOW), outsider.actor))
    for role in ("viewer", "approver"):
        refused("permission_denied", partial(backfills.start, wish(trigger, *WINDOW), people[role].actor))
    done = backfills.start(wish(trigger, *WINDOW), people["release_manager"].actor)
    for verb in (backfills.pause, backfills.resume, backfills.cancel):
        refused("not_found", partial(verb, done.backfill.id, outsider.actor))
        refused("permission_denied", partial(verb, done.backfill.id, people["viewer"].actor))
    assert Backfill.objects.get().state == "running"


def test_nothing_runs_without_a_release_in_force(trigger: Trigger, operator: Actor) -> None:
    Release.objects.update(status="revoked")
    refused("release_not_active", lambda: backfills.preview(wish(trigger, *WINDOW), operator))
    refused("release_not_active", lambda: backfills.start(wish(trigger, *WINDOW), operator))
    assert not Backfill.objects.exists()


def test_a_plan_that_was_looked_at_is_done_or_refused_with_the_new_one(
    trigger: Trigger, operator: Actor, people: dict[str, Person], environment: Environment
) -> None:
    """A tick that was filled meanwhile, and another release, are both another plan."""
    seen = backfills.preview(wish(trigger, *WINDOW), operator)
    backfills.start(wish(trigger, WINDOW[0], WINDOW[0]), operator)
    refusal = refused("plan_changed", lambda: backfills.start(wish(trigger, *WINDOW), operator, "", seen.digest))
    assert (refusal.extra["plan"]["total_ticks"], refusal.extra["plan"]["skipped"]) == (2, 1)
    pipeline_of(people["admin"].actor, environment, "fetch", "publish")
    again = refusal.extra["plan_digest"]
    changed = refused("plan_changed", lambda: backfills.start(wish(trigger, *WINDOW), operator, "", again))
    backfills.start(wish(trigger, *WINDOW), operator, "", changed.extra["plan_digest"])
    assert_accounted_for(trigger)


def test_a_key_answers_with_the_first_backfill_and_stands_for_no_other_request(
    trigger: Trigger, operator: Actor, people: dict[str, Person]
) -> None:
    """Model §3.6: the same request under its key is answered with the first result; another one is refused."""
    first = backfills.start(wish(trigger, *WINDOW), operator, KEY)
    again = backfills.start(wish(trigger, *WINDOW), operator, KEY)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.as_json() == {**first.as_json(), "replayed": True}
    for other in (wish(trigger, *TEN_DAYS), wish(trigger, *WINDOW, max_concurrent=2)):
        refused("recovery_idempotency_conflict", partial(backfills.start, other, operator, KEY))
    admin = people["admin"].actor
    refused("recovery_idempotency_conflict", lambda: backfills.start(wish(trigger, *WINDOW), admin, KEY))
    assert Backfill.objects.count() == 1
    outcomes = [event.outcome for event in AuditEvent.objects.filter(action="backfill.start").order_by("at")]
    assert outcomes == ["allowed", "no_op", "failed", "failed", "failed"]


def test_a_repeat_is_the_same_request_though_its_trigger_was_changed_since(
    trigger: Trigger, operator: Actor, people: dict[str, Person]
) -> None:
    """Model §3.6, O32: what a request leaves to its trigger is as it was then; what it says counts as said."""
    first = backfills.start(wish(trigger, *WINDOW), operator, KEY)
    triggers.change(trigger.id, actor=people["admin"].actor, changes={"cron": "0 9 * * *", "timezone": "Europe/Berlin"})
    for same in (wish(trigger, *WINDOW), wish(trigger, *WINDOW, cron="0 8 * * *", timezone="UTC")):
        again = backfills.start(same, operator, KEY)
        assert (again.replayed, again.as_json()["ticks"]) == (True, first.as_json()["ticks"])
    other = wish(trigger, *WINDOW, cron="0 9 * * *")
    refused("recovery_idempotency_conflict", lambda: backfills.start(other, operator, KEY))
    assert (Backfill.objects.count(), Run.objects.count()) == (1, 3)


def test_nothing_to_fill_is_an_answer_and_not_an_error(trigger: Trigger, operator: Actor) -> None:
    backfills.start(wish(trigger, *WINDOW), operator)
    done = backfills.start(wish(trigger, *WINDOW), operator)
    told = done.as_json()
    assert (told["total_ticks"], told["dispatched"], told["skipped"], told["status"]) == (0, 0, 3, "completed")
    assert {one["status"] for one in told["ticks"]} == {"skipped"}
    assert all(one["execution_id"] for one in told["ticks"])
    empty = backfills.start(wish(trigger, "2026-05-20T09:00:00+00:00", "2026-05-20T10:00:00+00:00"), operator)
    assert (empty.as_json()["total_ticks"], empty.status, empty.ticks) == (0, "completed", [])
    assert Run.objects.count() == 3


# which ticks


def test_ticks_that_ran_well_are_left_alone(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    """F108: of ten ticks seven have a run; the default fills three."""
    backfills.start(wish(trigger, TEN_DAYS[0], "2026-05-07T23:00:00+00:00", max_concurrent=10), operator)
    hand.finish()
    done = backfills.start(wish(trigger, *TEN_DAYS), operator)
    assert (done.progress.total, done.progress.skipped) == (3, 7)
    assert [one["status"] for one in done.as_json()["ticks"]] == ["skipped"] * 7 + ["dispatched"] * 3
    assert Run.objects.count() == 10


@pytest.mark.parametrize(("reprocess", "again"), [("none", 0), ("failed", 2), ("all", 3)])
def test_what_is_done_once_more_is_what_was_asked_for(
    trigger: Trigger, operator: Actor, hand: Hand, reprocess: str, again: int
) -> None:
    """Failed and cancelled runs, or all that ended; never one that is unfinished. The ledger names the new run."""
    first = backfills.start(wish(trigger, TEN_DAYS[0], "2026-05-04T23:00:00+00:00", max_concurrent=4), operator)
    fail(hand)
    cancel_run(runs_of(first.backfill.id)[1].id, actor=operator, reason="no")
    hand.report(hand.take())
    done = backfills.start(wish(trigger, TEN_DAYS[0], "2026-05-04T23:00:00+00:00", reprocess=reprocess), operator)
    assert (done.progress.total, done.progress.skipped) == (again, 4 - again)
    named = dict(Tick.objects.filter(trigger=trigger).values_list("at", "run"))
    for run in runs_of(done.backfill.id):
        assert run.tick_at
        assert named[run.tick_at] == run.id
    assert named[at("2026-05-04T08:00:00+00:00")] == runs_of(first.backfill.id)[3].id
    assert_accounted_for(trigger)


def test_newest_first_begins_with_the_newest(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    done = backfills.start(wish(trigger, *WINDOW, order="newest"), operator)
    assert [run.held for run in runs_of(done.backfill.id)] == [True, True, False]
    begun = []
    while jobs := hand.pull():
        tick_at = Run.objects.get(id=jobs[0].run_id).tick_at
        begun.append(tick_at and tick_at.day)
        hand.report(jobs[0])
    assert begun == [22, 21, 20]


def test_a_run_that_somebody_started_at_that_instant_is_no_run_of_the_tick(
    trigger: Trigger, operator: Actor, start_run: Callable[..., Run]
) -> None:
    """F87: two runs, the tick linked to the backfilled one only."""
    manual = start_run(pipeline="rates", input={})
    done = backfills.start(wish(trigger, WINDOW[0], WINDOW[0]), operator)
    (made,) = runs_of(done.backfill.id)
    (tick,) = Tick.objects.filter(trigger=trigger)
    assert tick.run == made.id != manual.id
    manual.refresh_from_db()
    assert (manual.trigger_id, manual.lane_id) == (None, None)


def test_a_backfill_has_its_own_limit_whatever_the_schedule_says(
    people: dict[str, Person], environment: Environment, application: Application, operator: Actor, hand: Hand
) -> None:
    """F107: the schedule skips where a run is unfinished; three of the backfill are in at once all the same."""
    trigger = trigger_of(people["admin"].actor, environment, application, overlap_policy="skip")
    done = backfills.start(wish(trigger, *TEN_DAYS, max_concurrent=3), operator)
    peak = 0
    while jobs := hand.pull(10):
        peak = max(peak, len(jobs))
        assert backfills.progress(done.backfill).active <= 3
        for job in jobs:
            hand.report(job)
    assert peak == 3
    assert Run.objects.filter(status="completed").count() == 10


def test_the_live_schedule_is_where_it_was(trigger: Trigger, operator: Actor, clock: Clock) -> None:
    """F86: last month is filled; the next live tick, and what is recorded, are as before."""
    before = Trigger.objects.values("recorded_until", "next_at", "version", "updated_at").get(id=trigger.id)
    assert before["next_at"]
    done = backfills.start(wish(trigger, *WINDOW), operator)
    backfills.cancel(done.backfill.id, operator)
    backfills.start(wish(trigger, *WINDOW), operator)
    assert Trigger.objects.values("recorded_until", "next_at", "version", "updated_at").get(id=trigger.id) == before
    clock.advance(days=1)
    ledger.record()
    dispatch.dispatch_due()
    assert Tick.objects.filter(trigger=trigger, at=before["next_at"], backfill__isnull=True).exists()


@pytest.mark.parametrize(("catch_up", "live"), [("none", 1), ("all", 10)])
def test_a_window_that_ends_now_leaves_the_live_schedule_its_ticks_and_a_cancel_leaves_no_gap(
    people: dict[str, Person],
    environment: Environment,
    application: Application,
    operator: Actor,
    clock: Clock,
    catch_up: str,
    live: int,
) -> None:
    """I18, F82, F86: the scheduler has stood still for ten minutes. What it still starts is its own; of the others each
    has its row when the backfill is cancelled, though the pass came by meanwhile."""
    begin = set_to(clock, "2026-06-01T08:00:30+00:00")
    more = {"cron": "* * * * *", "catch_up": catch_up, "overlap_policy": "allow"}
    trigger = trigger_of(people["admin"].actor, environment, application, **more)
    clock.advance(minutes=10)
    done = backfills.start(replace(wish(trigger, *WINDOW), from_time=begin, to_time=clock.now()), operator)
    run_pass()
    assert Tick.objects.filter(trigger=trigger, state="dispatched", backfill__isnull=True).count() == live
    assert (done.progress.total, done.progress.skipped) == (10 - live, live)
    assert_accounted_for(trigger)
    if done.progress.total:
        backfills.cancel(done.backfill.id, operator)
    ticks = Tick.objects.filter(trigger=trigger).order_by("at")
    assert list(ticks.values_list("at", flat=True)) == expected(trigger, begin, clock.now())
    assert_accounted_for(trigger)


def test_what_was_skipped_while_the_trigger_was_off_is_missed_and_can_be_filled(
    trigger: Trigger, operator: Actor, people: dict[str, Person], clock: Clock
) -> None:
    triggers.switch(trigger.id, enabled=False, actor=people["admin"].actor, reason="holiday")
    begin = clock.now()
    clock.advance(days=4)
    ledger.record()
    asked = replace(wish(trigger, *WINDOW), from_time=begin, to_time=clock.now())
    plan = backfills.preview(asked, operator)
    assert plan.missed_because == {"paused": 4}
    backfills.start(asked, operator)
    assert set(Tick.objects.filter(trigger=trigger).values_list("state", "reason")) == {("dispatched", "")}


# steering


def test_paused_it_lets_nothing_in_and_resumed_it_goes_on(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    done = backfills.start(wish(trigger, *WINDOW), operator)
    assert backfills.pause(done.backfill.id, operator, "look first").status == "paused"
    hand.finish()
    assert [run.status for run in runs_of(done.backfill.id)] == ["completed", "queued", "queued"]
    assert [run.held for run in runs_of(done.backfill.id)] == [False, True, True]
    assert backfills.pause(done.backfill.id, operator).status == "paused"
    assert backfills.carry_on()["completed"] == 0
    assert backfills.resume(done.backfill.id, operator).status == "running"
    assert backfills.resume(done.backfill.id, operator).status == "running"
    finish(hand, done.backfill.id)
    assert Backfill.objects.get().state == "completed"
    outcomes = AuditEvent.objects.filter(action__in=["backfill.pause", "backfill.resume"]).order_by("at")
    assert [event.outcome for event in outcomes] == ["allowed", "no_op", "allowed", "no_op"]
    for verb in (backfills.pause, backfills.resume, backfills.cancel):
        refused("execution_state_invalid", partial(verb, done.backfill.id, operator))


def test_cancelled_at_forty_percent_every_tick_is_done_or_cancelled_and_the_rest_can_be_filled(
    trigger: Trigger, operator: Actor, hand: Hand, people: dict[str, Person]
) -> None:
    """F82: nothing is stranded, and a new backfill over the same window works."""
    done = backfills.start(wish(trigger, *TEN_DAYS), operator)
    for _ in range(4):
        hand.report(hand.take())
    running = hand.take()
    told = backfills.cancel(done.backfill.id, people["admin"].actor, "enough")
    ended = Event.objects.filter(run__lane_id=done.backfill.id, kind="run.cancelled")
    assert set(ended.values_list("actor", "reason")) == {(people["admin"].user.username, "enough")}
    assert told.status == "cancelled"
    assert states(done.backfill.id) == {"dispatched": 5, "cancelled": 5}
    assert [run.status for run in runs_of(done.backfill.id)] == ["completed"] * 4 + ["running"] + ["cancelled"] * 5
    assert Tick.objects.filter(trigger=trigger).count() == 5, "what had no row before has none again"
    hand.report(running)
    assert Run.objects.get(id=running.run_id).status == "completed"
    assert Backfill.objects.get().finished_at is not None
    assert backfills.cancel(done.backfill.id, operator).status == "cancelled"
    assert_accounted_for(trigger)
    rest = backfills.start(wish(trigger, *TEN_DAYS, max_concurrent=10), operator)
    assert (rest.progress.total, rest.progress.skipped) == (5, 5)
    finish(hand, rest.backfill.id)
    assert Backfill.objects.get(id=rest.backfill.id).state == "completed"
    assert Tick.objects.filter(trigger=trigger, state="dispatched").count() == 10
    assert_accounted_for(trigger)


def test_the_ledger_has_its_rows_back_as_they_were(
    trigger: Trigger, operator: Actor, people: dict[str, Person], hand: Hand, clock: Clock
) -> None:
    """A tick that was skipped is skipped for the same reason again; one done once more has its first run again."""
    begin = clock.now()
    done = replace(wish(trigger, *WINDOW), from_time=begin, to_time=begin + timedelta(days=1))
    triggers.switch(trigger.id, enabled=False, actor=people["admin"].actor)
    clock.advance(days=4)
    ledger.record()
    backfills.start(done, operator)
    hand.finish()
    as_it_was = list(Tick.objects.filter(trigger=trigger).order_by("at").values())
    whole = replace(done, to_time=clock.now(), reprocess="all")
    again = backfills.start(whole, operator)
    assert again.progress.total == 4
    assert list(Tick.objects.filter(trigger=trigger).order_by("at").values()) != as_it_was
    (first, *_) = runs_of(again.backfill.id)
    backfills.cancel(again.backfill.id, operator)
    now = list(Tick.objects.filter(trigger=trigger).order_by("at").values())
    assert now[1:] == as_it_was[1:]
    assert now[0]["run"] == first.id, "what was let in goes on"


def test_many_held_runs_are_cancelled_by_the_sweep(
    trigger: Trigger, operator: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request ends some; until all are ended the backfill is not finished, and each sweep goes on."""
    monkeypatch.setattr(backfill_work, "CANCEL_BATCH", 2)
    monkeypatch.setattr(backfills, "CANCEL_BATCH", 1_000)
    done = backfills.start(wish(trigger, *TEN_DAYS), operator)
    backfills.cancel(done.backfill.id, operator)
    assert Backfill.objects.get().finished_at is None
    assert states(done.backfill.id)["cancelled"] < 9
    backfills.carry_on()
    assert states(done.backfill.id) == {"dispatched": 1, "cancelled": 9}
    assert Backfill.objects.get().finished_at is not None
    assert_accounted_for(trigger)


def test_how_it_ended_says_whether_all_went_well(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    done = backfills.start(wish(trigger, *WINDOW, max_concurrent=3), operator)
    fail(hand)
    assert backfills.carry_on()["completed"] == 0
    finish(hand, done.backfill.id)
    assert Backfill.objects.get().state == "completed_with_failures"
    assert backfills.progress(done.backfill).troubled == 1
    assert backfills.carry_on() == {"filled": 0, "cancelled": 0, "completed": 0}


# blackouts


def freeze(trigger: Trigger, clock: Clock) -> Blackout:
    found: Blackout = Blackout.objects.create(
        workspace_id=trigger.workspace_id, name="audit week", kind="period", starts_at=clock.now(), is_freeze=True
    )
    return found


def test_in_a_blackout_it_starts_only_with_a_reason(
    trigger: Trigger, operator: Actor, hand: Hand, clock: Clock
) -> None:
    """Contract §4: 409 with what holds; a dry run tells it; overridden, its runs are handed out, and the audit says."""
    freeze(trigger, clock)
    told = backfills.preview(wish(trigger, *WINDOW), operator).answer()
    assert told["blackout"]["name"] == "audit week"
    refused("blackout_active", lambda: backfills.start(wish(trigger, *WINDOW), operator))
    assert not Backfill.objects.exists()
    done = backfills.start(wish(trigger, *WINDOW, override_reason="month end"), operator)
    assert all(run.through_blackout for run in runs_of(done.backfill.id))
    assert hand.finish() == 3
    assert AuditEvent.objects.get(action="backfill.start", outcome="allowed").data["override_reason"] == "month end"


def test_a_blackout_holds_back_what_is_not_let_in_yet(
    trigger: Trigger, operator: Actor, hand: Hand, clock: Clock
) -> None:
    """What is in goes on; nothing more comes in until it is lifted, or until somebody resumes it with a reason."""
    done = backfills.start(wish(trigger, *WINDOW, override_reason="just in case"), operator)
    assert Backfill.objects.get().override_reason == "", "nothing had to be overridden"
    running = hand.take()
    freeze(trigger, clock)
    hand.report(running)
    assert hand.finish() == 0
    assert [run.held for run in runs_of(done.backfill.id)] == [False, True, True]
    backfills.pause(done.backfill.id, operator)
    refused("blackout_active", lambda: backfills.resume(done.backfill.id, operator))
    backfills.resume(done.backfill.id, operator, "go", override_reason="the auditors agreed")
    assert hand.finish() == 2
    event = AuditEvent.objects.get(action="backfill.resume", outcome="allowed")
    assert event.data["override_reason"] == "the auditors agreed"


# one tick's failure stays its own


def test_ticks_whose_input_is_too_large_fail_alone(
    trigger: Trigger, operator: Actor, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O54: the others are dispatched; the tick says why and is missed still."""
    fill = tick_inputs.fill

    def filled(template: Any, **told: Any) -> dict[str, Any]:
        if told["due"].at.day == 21:
            raise Refusal("payload_too_large", "the input has more than 256 KiB once it is filled in")
        return fill(template, **told)

    with monkeypatch.context() as patch:
        patch.setattr(tick_inputs, "fill", filled)
        done = backfills.start(wish(trigger, *WINDOW), operator)
    told = done.as_json()
    assert [one["status"] for one in told["ticks"]] == ["dispatched", "failed", "dispatched"]
    assert told["ticks"][1]["error"]["code"] == "payload_too_large"
    assert (told["dispatched"], told["failed"]) == (2, 1)
    assert not Tick.objects.filter(trigger=trigger, at=at("2026-05-21T08:00:00+00:00")).exists()
    finish(hand, done.backfill.id)
    assert Backfill.objects.get().state == "completed_with_failures"
    again = backfills.start(wish(trigger, *WINDOW), operator)
    assert (again.progress.total, again.progress.skipped) == (1, 2)


def test_a_release_that_is_revoked_between_two_batches_fails_what_is_left(
    trigger: Trigger, operator: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has a run keeps it; a release that is only superseded is run all the same, as it was planned."""
    monkeypatch.setattr(backfill_work, "BATCH", 2)
    with monkeypatch.context() as patch:
        patch.setattr(backfills, "AT_ONCE", 0)
        done = backfills.start(wish(trigger, *TEN_DAYS), operator)
    assert backfill_work.fill(done.backfill.id, 2) == 2
    Release.objects.update(status="superseded")
    assert backfill_work.fill(done.backfill.id, 2) == 2
    Release.objects.update(status="revoked")
    backfills.carry_on()
    assert states(done.backfill.id) == {"dispatched": 4, "failed": 6}
    assert {one["error"]["code"] for one in backfills.ticks(done.backfill) if "error" in one} == {"release_not_active"}
    assert Tick.objects.filter(trigger=trigger).count() == 4
    assert_accounted_for(trigger)


def test_a_fault_in_one_tick_of_a_batch_leaves_the_others_their_runs(
    people: dict[str, Person], environment: Environment, application: Application, operator: Actor
) -> None:
    """A null byte that one tick's input has, and no text in the database may have."""
    trigger = trigger_of(people["admin"].actor, environment, application)
    real = creation.insert_runs

    def inserted(drafts: Any, **told: Any) -> None:
        real([replace(one, name="a\x00b") if one.origin.tick_at.day == 3 else one for one in drafts], **told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(creation, "insert_runs", inserted)
        done = backfills.start(wish(trigger, *TEN_DAYS), operator)
    told = {one["tick_time"][8:10]: one for one in done.as_json()["ticks"]}
    assert told.pop("03")["status"] == "failed"
    assert {one["status"] for one in told.values()} == {"dispatched"}
    assert Tick.objects.filter(trigger=trigger).count() == 9
    assert_accounted_for(trigger)


# besides


def test_who_asked_decides_no_gate_of_its_runs(
    people: dict[str, Person], environment: Environment, application: Application, hand: Hand
) -> None:
    """Four eyes: started by the admin, decided by anybody else who may."""
    gated = {"name": "publish", "approval": {"when": "after", "approver_role": "approver"}}
    admin = people["admin"].actor
    trigger = trigger_of(admin, environment, application, gated)
    done = backfills.start(wish(trigger, WINDOW[0], WINDOW[0]), admin)
    hand.report(hand.take(), output=1)
    (run,) = runs_of(done.backfill.id)
    (stage,) = stages_of(run)
    refused("self_approval", lambda: decide_gate(stage.id, actor=admin, approved=True))
    decide_gate(stage.id, actor=people["approver"].actor, approved=True)
    finish(hand, done.backfill.id)
    assert Backfill.objects.get().state == "completed"


def test_a_runs_deadline_begins_when_it_is_let_in(
    people: dict[str, Person], environment: Environment, application: Application, operator: Actor, hand: Hand
) -> None:
    """Model §2, deadline."""
    trigger = trigger_of(people["admin"].actor, environment, application, deadline_seconds=60)
    done = backfills.start(wish(trigger, *WINDOW), operator)
    assert [run.deadline_at is None for run in runs_of(done.backfill.id)] == [False, True, True]


def test_its_runs_may_be_removed_once_it_is_over_and_its_rows_stay(
    trigger: Trigger, operator: Actor, hand: Hand, clock: Clock
) -> None:
    """Retention: while it goes on its ended runs say how it ends."""
    done = backfills.start(wish(trigger, *WINDOW), operator)
    hand.report(hand.take())
    clock.advance(days=3)
    assert retention.remove_older_than(1) == 0
    finish(hand, done.backfill.id)
    clock.advance(days=3)
    assert retention.remove_older_than(1) == 3
    found = backfills.progress(done.backfill)
    assert (found.runs, found.total, found.ended) == ({"removed": 3}, 3, 3)
    told = backfills.answer(Backfill.objects.get())
    assert [one["status"] for one in told.ticks] == ["dispatched"] * 3
    assert backfills.preview(wish(trigger, *WINDOW), operator).total_ticks == 0, "they were done"
    assert backfills.preview(wish(trigger, *WINDOW, reprocess="all"), operator).total_ticks == 3


def test_its_lane_is_background_and_as_wide_as_was_asked(trigger: Trigger, operator: Actor) -> None:
    done = backfills.start(wish(trigger, *WINDOW, max_concurrent=7), operator)
    lane = Lane.objects.get(id=done.backfill.id)
    assert (lane.capacity, lane.is_open, lane.is_background) == (7, True, True)
