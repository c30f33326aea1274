"""The ledger: every tick gets one row, whoever records it, when, and after whatever pause."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from pipelines import ledger, triggers
from pipelines.models import Blackout, Tick, Trigger, Workspace
from tests.cast import Person
from tests.clock import Clock
from tests.scheduled import MakeTrigger, assert_ledger_holds, expected, instants, run_pass, runs, set_to, states

pytestmark = pytest.mark.django_db


def test_a_tick_is_recorded_before_its_run_is_made_and_once(make_trigger: MakeTrigger, clock: Clock) -> None:
    """O49, I18: the row names the run that is to be, and what made it."""
    set_to(clock, "2026-05-20T07:59:30+00:00")
    trigger = make_trigger("0 8 * * *", "UTC")
    assert ledger.record() == 0
    clock.advance(31)
    assert ledger.record() == 1
    tick = Tick.objects.get()
    assert (tick.at, tick.state) == (datetime(2026, 5, 20, 8, tzinfo=UTC), "due")
    assert tick.run is not None
    assert tick.previous_at == datetime(2026, 5, 19, 8, tzinfo=UTC)
    assert (tick.rule, tick.local_time) == ("fixed_time", "2026-05-20T08:00:00+00:00")
    assert (tick.cron, tick.timezone, tick.version) == ("0 8 * * *", "UTC", 1)
    assert runs(trigger) == []
    assert ledger.record() == 0
    trigger.refresh_from_db()
    assert trigger.next_at == datetime(2026, 5, 21, 8, tzinfo=UTC)
    assert run_pass() == (0, 1)
    (run,) = runs(trigger)
    assert run.id == tick.run
    assert run_pass() == (0, 0)
    assert_ledger_holds()


def test_every_pass_finds_what_came_since_the_last_and_nothing_before_the_trigger_was_made(
    make_trigger: MakeTrigger, clock: Clock
) -> None:
    set_to(clock, "2026-05-20T08:00:00+00:00")
    trigger = make_trigger("*/20 * * * *", start_within=86_400, overlap_policy="allow")
    for minutes in (5, 20, 1, 39, 0):
        clock.advance(minutes=minutes)
        run_pass()
    assert instants(trigger) == ["2026-05-20 08:20", "2026-05-20 08:40", "2026-05-20 09:00"]
    assert states(trigger) == {"dispatched": 3}
    assert_ledger_holds()


def test_start_and_end_of_a_trigger_are_ticks_of_it_and_nothing_beyond_them(
    make_trigger: MakeTrigger, clock: Clock
) -> None:
    now = set_to(clock, "2026-05-20T08:30:00+00:00")
    begin, end = now.replace(hour=10, minute=0), now.replace(hour=12, minute=0)
    trigger = make_trigger(starts_at=begin, ends_at=end, start_within=86_400, overlap_policy="allow")
    assert trigger.next_at == begin
    clock.advance(hours=8)
    run_pass()
    assert instants(trigger) == ["2026-05-20 10:00", "2026-05-20 11:00", "2026-05-20 12:00"]
    trigger.refresh_from_db()
    assert trigger.next_at is None
    clock.advance(days=2)
    assert run_pass() == (0, 0)


# what is found too late


@pytest.mark.parametrize(
    ("catch_up", "limit", "made"),
    [("none", 100, 0), ("latest", 100, 1), ("all", 100, 4), ("all", 3, 3), ("all", 0, 0)],
)
def test_what_is_found_too_late_is_caught_up_on_as_the_trigger_says(
    make_trigger: MakeTrigger, clock: Clock, catch_up: str, limit: int, made: int
) -> None:
    """Four hours without a scheduler; the newest come first in what is caught up on."""
    set_to(clock, "2026-05-20T08:30:00+00:00")
    trigger = make_trigger(catch_up=catch_up, catch_up_limit=limit, overlap_policy="allow")
    clock.advance(hours=4)
    assert run_pass() == (4, made)
    assert states(trigger) == {
        name: count for name, count in (("dispatched", made), ("skipped(catch-up)", 4 - made)) if count
    }
    assert instants(trigger, state="dispatched") == instants(trigger)[4 - made :]
    clock.advance(hours=1)
    run_pass()
    clock.advance(minutes=1)
    assert run_pass() == (0, 0), "nothing comes back later"


def test_a_suspended_process_does_not_play_every_tick_it_slept_through(make_trigger: MakeTrigger, clock: Clock) -> None:
    """F110: stopped for an hour on a schedule of minutes, `latest`: one run."""
    set_to(clock, "2026-05-20T08:00:30+00:00")
    trigger = make_trigger("* * * * *", catch_up="latest", overlap_policy="allow")
    clock.advance(minutes=1)
    run_pass()
    assert states(trigger) == {"dispatched": 1}
    clock.advance(hours=1)
    run_pass()
    assert states(trigger) == {"dispatched": 2, "skipped(catch-up)": 59}
    assert instants(trigger, state="dispatched") == ["2026-05-20 08:01", "2026-05-20 09:01"]


def test_a_tick_that_was_slept_through_is_recovered_in_a_minute_that_does_not_match(
    make_trigger: MakeTrigger, clock: Clock
) -> None:
    """F111: the same policy after sleep as after a restart; with `none` it is missed, and told so."""
    set_to(clock, "2026-05-20T08:00:30+00:00")
    recovers = make_trigger("10 * * * *", catch_up="latest", name="recovers")
    does_not = make_trigger("10 * * * *", catch_up="none", name="does-not")
    clock.advance(minutes=17)
    assert run_pass() == (2, 1)
    assert states(recovers) == {"dispatched": 1}
    assert states(does_not) == {"skipped(catch-up)": 1}


@pytest.mark.parametrize("restarts", [True, False])
def test_a_daily_run_before_midnight_starts_once_when_the_restart_is_after_it(
    make_trigger: MakeTrigger, clock: Clock, restarts: bool
) -> None:
    """F100: 23:30 Asia/Tokyo, to be started within an hour, the scheduler back at 00:10 of the next local day."""
    set_to(clock, "2026-05-20T14:00:00+00:00")  # 23:00 in Tokyo
    trigger = make_trigger("30 23 * * *", "Asia/Tokyo", start_within=3600)
    if not restarts:
        clock.advance(minutes=30)
        assert run_pass() == (1, 1)
        clock.advance(minutes=40)
    else:
        clock.advance(minutes=70)
    run_pass()
    for _ in range(3):
        clock.advance(minutes=10)
        run_pass()
    assert states(trigger) == {"dispatched": 1}
    assert instants(trigger) == ["2026-05-20 14:30"]
    assert Tick.objects.get().local_time == "2026-05-20T23:30:00+09:00"


def test_overdue_starts_are_spread_and_each_has_its_own_moment(make_trigger: MakeTrigger, clock: Clock) -> None:
    """F113: 200 overdue schedules, spread over 30 minutes from when they were found, not all in one minute."""
    now = set_to(clock, "2026-05-20T08:30:00+00:00")
    for number in range(200):
        make_trigger("0 9 * * *", name=f"t{number}", catch_up="latest", spread=1800)
    clock.advance(hours=3)
    assert ledger.record() == 200
    found = now + timedelta(hours=3)
    starts = sorted(Tick.objects.values_list("start_at", flat=True))
    assert found <= starts[0]
    assert starts[-1] <= found + timedelta(seconds=1860)
    assert len(set(starts)) > 150
    minutes = [
        sum(found + timedelta(minutes=m) <= at < found + timedelta(minutes=m + 1) for at in starts) for m in range(31)
    ]
    assert max(minutes) < 25, "no minute gets more than a fair share of them"
    _, first = run_pass()
    assert first < 25
    clock.advance(minutes=15)
    _, half = run_pass()
    assert 60 < first + half < 140
    clock.advance(minutes=16)
    run_pass()
    assert Tick.objects.filter(state="dispatched").count() == 200


def test_a_spread_start_is_the_same_whoever_records_it(make_trigger: MakeTrigger, clock: Clock) -> None:
    set_to(clock, "2026-05-20T08:30:00+00:00")
    trigger = make_trigger("0 9 * * *", spread=600)
    clock.advance(minutes=30, seconds=1)
    assert run_pass()[0] == 1
    tick = Tick.objects.get()
    at = datetime(2026, 5, 20, 9, tzinfo=UTC)
    assert at <= tick.start_at <= at + timedelta(seconds=600)
    first = tick.start_at
    Tick.objects.all().delete()
    Trigger.objects.update(recorded_until=at - timedelta(hours=1), next_at=at)
    ledger.record()
    assert Tick.objects.get().start_at == first
    assert trigger.spread == 600


# zones and clocks of hosts


@pytest.mark.parametrize("zone", ["Europe/London", "Pacific/Auckland", "America/New_York"])
def test_the_zone_of_host_and_settings_moves_no_tick(
    make_trigger: MakeTrigger, clock: Clock, settings: Any, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """F98, F99: on the day on which the host's clocks go back, a schedule in UTC has its 24 ticks."""
    set_to(clock, "2026-10-24T23:59:00+00:00")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    settings.TIME_ZONE = zone
    try:
        trigger = make_trigger(start_within=86_400, overlap_policy="allow")
        local = make_trigger("30 2 * * *", "Europe/Berlin", name="local", start_within=86_400)
        clock.advance(days=1)
        run_pass()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert instants(trigger) == [f"2026-10-25 {hour:02}:00" for hour in range(24)]
    assert instants(local) == ["2026-10-25 00:30"]
    assert Tick.objects.get(trigger=local).local_time == "2026-10-25T02:30:00+02:00"


def test_intervals_over_a_change_of_clocks_are_between_two_instants(make_trigger: MakeTrigger, clock: Clock) -> None:
    """F88: daily 02:30 New York over the night in which that time does not exist."""
    set_to(clock, "2026-03-07T00:00:00+00:00")
    trigger = make_trigger("30 2 * * *", "America/New_York", start_within=86_400, overlap_policy="allow")
    for _ in range(3):
        clock.advance(days=1)
        run_pass()
    assert instants(trigger) == ["2026-03-07 07:30", "2026-03-08 07:00", "2026-03-09 06:30"]
    ticks = list(Tick.objects.order_by("at"))
    assert [tick.rule for tick in ticks] == ["fixed_time", "gap_first_existing", "fixed_time"]
    assert [tick.previous_at for tick in ticks[1:]] == [tick.at for tick in ticks[:-1]]
    assert all(tick.previous_at is not None and tick.previous_at < tick.at for tick in ticks)


# off and on


def test_a_trigger_switched_on_after_a_month_fires_nothing_and_says_what_it_missed(
    make_trigger: MakeTrigger, clock: Clock, people: dict[str, Person]
) -> None:
    """F103: off for 30 days, hourly; on: no run, 720 missed."""
    actor = people["release_manager"].actor
    set_to(clock, "2026-05-20T08:30:00+00:00")
    trigger = make_trigger(catch_up="all", catch_up_limit=1000, overlap_policy="allow")
    triggers.switch(trigger.id, actor=actor, enabled=False)
    clock.advance(days=30)
    trigger = triggers.switch(trigger.id, actor=actor, enabled=True)
    assert run_pass() == (0, 0)
    assert states(trigger) == {"skipped(paused)": 720}
    assert runs(trigger) == []
    clock.advance(hours=1)
    run_pass()
    assert states(trigger) == {"skipped(paused)": 720, "dispatched": 1}
    assert_ledger_holds()


def test_while_a_trigger_is_off_the_passes_record_its_ticks_as_paused(
    make_trigger: MakeTrigger, clock: Clock, people: dict[str, Person]
) -> None:
    set_to(clock, "2026-05-20T08:30:00+00:00")
    trigger = make_trigger(enabled=False)
    for _ in range(3):
        clock.advance(hours=1)
        assert run_pass() == (1, 0)
    assert states(trigger) == {"skipped(paused)": 3}


# bounds, blackouts, faults


def test_after_a_very_long_absence_the_newest_ticks_have_rows(
    make_trigger: MakeTrigger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones stay without a row, missed too; one pass ends, whatever was missed."""
    monkeypatch.setattr(ledger, "MOST_TICKS", 50)
    monkeypatch.setattr(ledger, "MOST_ROWS", 60)
    set_to(clock, "2026-05-20T08:00:30+00:00")
    several = [make_trigger("* * * * *", name=f"t{number}") for number in range(3)]
    clock.advance(days=1)
    assert ledger.record() == 150
    for trigger in several:
        assert instants(trigger)[0] == "2026-05-21 07:11"
        assert len(instants(trigger)) == 50
    assert ledger.record() == 0


def test_a_tick_in_a_blackout_is_skipped_with_the_blackouts_name_and_is_not_what_is_caught_up_on(
    make_trigger: MakeTrigger, clock: Clock, workspace: Workspace
) -> None:
    """F117: no starts inside a window over midnight in which the clocks go back."""
    Blackout.objects.create(
        workspace=workspace,
        name="night",
        kind="weekly",
        timezone="Europe/Berlin",
        days=[1, 2, 3, 4, 5, 6, 7],
        from_time=time_of_day(22),
        to_time=time_of_day(6),
    )
    set_to(clock, "2026-10-24T18:00:10+00:00")  # 20:00 in Berlin
    trigger = make_trigger("0 * * * *", "Europe/Berlin", overlap_policy="allow")
    for _ in range(13):
        clock.advance(hours=1)
        run_pass()
    # 22:00 CEST to 06:00 CET are nine hours
    assert states(trigger) == {"dispatched": 4, "skipped(blackout)": 9}
    assert instants(trigger, reason="blackout") == [
        *(f"2026-10-24 {hour}:00" for hour in range(20, 24)),
        *(f"2026-10-25 {hour:02}:00" for hour in range(5)),
    ]
    assert set(Tick.objects.filter(reason="blackout").values_list("detail", flat=True)) == {"night"}
    latest = make_trigger("0 * * * *", "Europe/Berlin", name="latest", catch_up="latest")
    clock.advance(hours=18)  # until 02:00 in the night
    ledger.record()
    assert instants(latest, state="due") == ["2026-10-25 20:00"], "the last before the night"


def test_a_trigger_whose_schedule_cannot_be_read_any_more_holds_up_no_other(
    make_trigger: MakeTrigger, clock: Clock
) -> None:
    set_to(clock, "2026-05-20T08:30:00+00:00")
    broken, good = make_trigger(name="broken", catch_up="all"), make_trigger(name="good")
    Trigger.objects.filter(id=broken.id).update(timezone="Mars/Olympus")
    clock.advance(minutes=30)
    assert run_pass() == (1, 1)
    assert states(good) == {"dispatched": 1}
    assert run_pass() == (0, 0), "it is left alone for a while"
    Trigger.objects.filter(id=broken.id).update(timezone="UTC")
    clock.advance(minutes=2)
    assert run_pass() == (1, 1)
    assert states(broken) == {"dispatched": 1}, "nothing of it was lost"


def test_a_pass_takes_as_many_statements_for_many_triggers_as_for_one(make_trigger: MakeTrigger, clock: Clock) -> None:
    set_to(clock, "2026-05-20T08:30:00+00:00")
    make_trigger(name="alone", overlap_policy="allow")
    clock.advance(minutes=30)
    run_pass()
    clock.advance(hours=1)
    with CaptureQueriesContext(connection) as alone:
        assert run_pass() == (1, 1)
    for number in range(25):
        make_trigger("0 * * * *", name=f"t{number}", overlap_policy="queue_all" if number % 2 else "allow")
    clock.advance(hours=1)
    with CaptureQueriesContext(connection) as many:
        assert run_pass() == (26, 26)
    assert len(many) == len(alone)


def test_the_metric_says_which_trigger_missed_what(make_trigger: MakeTrigger, clock: Clock, client: Client) -> None:
    """F106: the scheduler stands still for ten minutes; rows and metric equal the oracle's count."""
    set_to(clock, "2026-05-20T08:00:30+00:00")
    minutes = make_trigger("* * * * *", name="minutes", overlap_policy="allow")
    hours = make_trigger("5 * * * *", name="hours")
    clock.advance(minutes=1)
    run_pass()
    begin = clock.now()
    clock.advance(minutes=10)
    late = told(client, "recourse_trigger_overdue_seconds")
    assert 500 < late["minutes",] < 600
    assert 300 < late["hours",] < 400
    run_pass()
    missed = len(expected(minutes, begin, clock.now())) - 1  # the last was in time
    assert missed == 9
    assert states(minutes) == {"dispatched": 2, "skipped(catch-up)": missed}
    assert states(hours) == {"skipped(catch-up)": 1}
    assert told(client, "recourse_ticks") == {
        ("minutes", "", "dispatched"): 2,
        ("minutes", "catch-up", "skipped"): missed,
        ("hours", "catch-up", "skipped"): 1,
    }
    assert set(told(client, "recourse_trigger_overdue_seconds").values()) == {0}


def told(client: Client, metric: str) -> dict[tuple[str, ...], float]:
    """The metric's numbers, by its labels without the trigger's id."""
    families = text_string_to_metric_families(client.get("/metrics").content.decode())
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "trigger"): sample.value
        for family in families
        for sample in family.samples
        if sample.name == metric
    }
