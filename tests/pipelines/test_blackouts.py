"""Whether a blackout holds, and until when: by the wall clocks of its zone, in the database (F117, contract §4)."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import blackouts, zones
from pipelines.errors import Refusal
from pipelines.models import Application, Blackout, Environment, Trigger, Workspace
from pipelines.sql import query
from tests.clock import CLOCK, Clock
from tests.factories import EnvironmentFactory, PipelineFactory, WorkspaceFactory
from tests.pipelines.blackout_nights import holding, on_dates, period, stand_at, utc, weekly

pytestmark = pytest.mark.django_db

BERLIN = "Europe/Berlin"


def until(workspace: Workspace, environment: Environment | None = None) -> datetime | None:
    found = blackouts.active(workspace.id, environment.id if environment else None)
    assert found is not None
    return found.until


# whether


@pytest.mark.parametrize(
    ("at", "holds"),
    [
        # clocks go forward at 01:00 UTC: the night has seven hours
        ("2026-03-28T20:59:59", False),
        ("2026-03-28T21:00:00", True),
        ("2026-03-29T00:59:59", True),
        ("2026-03-29T01:00:00", True),
        ("2026-03-29T03:59:59", True),
        ("2026-03-29T04:00:00", False),
        # clocks go back at 01:00 UTC: the night has nine hours
        ("2026-10-24T19:59:59", False),
        ("2026-10-24T20:00:00", True),
        ("2026-10-25T00:30:00", True),
        ("2026-10-25T01:30:00", True),
        ("2026-10-25T04:59:59", True),
        ("2026-10-25T05:00:00", False),
        # and an ordinary one
        ("2026-06-01T19:59:59.999999", False),
        ("2026-06-01T20:00:00", True),
        ("2026-06-02T03:59:59.999999", True),
        ("2026-06-02T04:00:00", False),
    ],
)
def test_a_night_follows_the_clocks_on_the_wall_also_when_they_change(
    workspace: Workspace, at: str, holds: bool
) -> None:
    """F117: 22:00–06:00 in Berlin."""
    weekly(workspace, "22:00-06:00", BERLIN)
    assert (holding(workspace, at) is not None) is holds


@pytest.mark.parametrize(
    ("at", "holds"),
    [
        # 2026-03-29: 02:00 becomes 03:00, so the window is over at once when the clocks jump
        ("2026-03-29T00:59:59", True),
        ("2026-03-29T01:00:00", False),
        # 2026-10-25: 03:00 becomes 02:00, so the clocks show 02:00 until 02:30 twice
        ("2026-10-25T00:29:59", True),
        ("2026-10-25T00:30:00", False),
        ("2026-10-25T01:00:00", True),
        ("2026-10-25T01:29:59", True),
        ("2026-10-25T01:30:00", False),
    ],
)
def test_a_time_that_clocks_leave_out_is_never_and_one_that_they_repeat_is_twice(
    workspace: Workspace, at: str, holds: bool
) -> None:
    weekly(workspace, "01:00-02:30", BERLIN)
    assert (holding(workspace, at) is not None) is holds


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins(workspace: Workspace) -> None:
    weekly(workspace, "22:00-06:00", days=[5])  # Fridays; 2026-01-02 is one
    assert not holding(workspace, "2026-01-02T05:00:00")  # Thursday's night has none
    assert holding(workspace, "2026-01-02T22:00:00")
    assert holding(workspace, "2026-01-03T05:59:59")
    assert not holding(workspace, "2026-01-03T06:00:00")
    assert not holding(workspace, "2026-01-03T22:00:00")


def test_sunday_s_night_ends_on_monday(workspace: Workspace) -> None:
    weekly(workspace, "23:30-00:30", days=[7])  # 2026-01-04 is a Sunday
    assert holding(workspace, "2026-01-04T23:30:00")
    assert holding(workspace, "2026-01-05T00:29:59")
    assert not holding(workspace, "2026-01-05T00:30:00")
    assert not holding(workspace, "2026-01-04T00:29:59")


def test_until_midnight_ends_with_the_day(workspace: Workspace) -> None:
    weekly(workspace, "22:00-00:00", days=[1])  # 2026-01-05 is a Monday
    assert holding(workspace, "2026-01-05T23:59:59.999999")
    assert not holding(workspace, "2026-01-06T00:00:00")


def test_from_and_to_the_same_means_a_whole_day(workspace: Workspace) -> None:
    weekly(workspace, "00:00-00:00", BERLIN, days=[3])  # 2026-01-07 is a Wednesday
    assert not holding(workspace, "2026-01-06T22:59:59")
    assert holding(workspace, "2026-01-06T23:00:00")
    assert holding(workspace, "2026-01-07T22:59:59")
    assert not holding(workspace, "2026-01-07T23:00:00")
    Blackout.objects.update(from_time=time(9), to_time=time(9))
    assert not holding(workspace, "2026-01-07T07:59:59")
    assert holding(workspace, "2026-01-07T08:00:00")
    assert holding(workspace, "2026-01-08T07:59:59")
    assert not holding(workspace, "2026-01-08T08:00:00")


def test_dates_are_days_of_the_zone(workspace: Workspace) -> None:
    on_dates(workspace, "2026-03-29", "2026-12-25", zone=BERLIN)
    for at, holds in {
        "2026-03-28T22:59:59": False,
        "2026-03-28T23:00:00": True,
        "2026-03-29T21:59:59": True,  # a day of 23 hours
        "2026-03-29T22:00:00": False,
        "2026-12-24T23:00:00": True,
        "2026-12-25T23:00:00": False,
    }.items():
        assert bool(holding(workspace, at)) is holds, at


def test_a_period_begins_with_its_first_instant_and_ends_before_its_last(workspace: Workspace) -> None:
    one = period(workspace, "2026-01-10T00:00:00", "2026-01-11T00:00:00")
    for at, holds in {
        "2026-01-09T23:59:59.999999": False,
        "2026-01-10T00:00:00": True,
        "2026-01-10T23:59:59.999999": True,
        "2026-01-11T00:00:00": False,
    }.items():
        assert bool(holding(workspace, at)) is holds, at
    one.delete()
    one = period(workspace, "2026-01-10T00:00:00", None)
    assert holding(workspace, "2199-01-01T00:00:00")
    assert not holding(workspace, "2026-01-09T00:00:00")
    one.delete()
    period(workspace, None, "2026-01-10T00:00:00")
    assert holding(workspace, "1999-01-01T00:00:00")
    assert not holding(workspace, "2026-01-10T00:00:00")


def test_it_holds_where_it_is_for_and_nowhere_else(
    workspace: Workspace, environments: dict[str, Environment], application: Application
) -> None:
    at, production, staging = "2026-01-10T12:00:00", environments["production"], environments["staging"]
    trigger = _trigger(workspace, production, application)
    other = WorkspaceFactory()
    one = period(workspace, "2026-01-10T00:00:00", None)
    assert holding(workspace, at)
    assert holding(workspace, at, staging)
    assert holding(workspace, at, staging, trigger.id)
    assert not holding(other, at, EnvironmentFactory(workspace=other))

    Blackout.objects.update(environment=production)
    assert holding(workspace, at, production)
    assert holding(workspace, at, production, trigger.id)
    assert not holding(workspace, at, staging)
    assert not holding(workspace, at)

    Blackout.objects.update(environment=None, trigger=trigger)
    assert holding(workspace, at, production, trigger.id)
    assert not holding(workspace, at, production)
    assert not holding(workspace, at, production, _trigger(workspace, production, application).id)

    Blackout.objects.filter(id=one.id).update(trigger=None, enabled=False)
    assert not holding(workspace, at, production, trigger.id)


def test_of_several_a_freeze_is_named_then_the_oldest(workspace: Workspace) -> None:
    at = "2026-01-10T12:00:00"
    period(workspace, "2026-01-10T00:00:00", None, name="second")
    assert holding(workspace, at) == "second"
    period(workspace, "2026-01-01T00:00:00", None, name="third")
    assert holding(workspace, at) == "second"
    period(workspace, "2026-01-10T00:00:00", None, name="the freeze", is_freeze=True)
    assert holding(workspace, at) == "the freeze"


@pytest.mark.parametrize(
    ("told", "constraint"),
    [
        ({"kind": "weekly", "days": [1], "from_time": time(1)}, "blackout_says_when"),
        ({"kind": "weekly", "days": [], "from_time": time(1), "to_time": time(2)}, "blackout_says_when"),
        ({"kind": "weekly", "days": [0], "from_time": time(1), "to_time": time(2)}, "blackout_says_when"),
        ({"kind": "dates"}, "blackout_says_when"),
        ({"kind": "period", "starts_at": utc("2026-01-02"), "ends_at": utc("2026-01-01")}, "blackout_says_when"),
        ({"kind": "monthly", "starts_at": utc("2026-01-02")}, "blackout_kind_known"),
        (
            {"kind": "weekly", "days": [1], "from_time": time(1), "to_time": time(2), "is_freeze": True},
            "blackout_freeze_is_a_period",
        ),
        ({"kind": "period", "ends_at": utc("2026-01-02"), "is_freeze": True}, "blackout_freeze_is_a_period"),
    ],
)
def test_the_database_takes_no_blackout_that_does_not_say_when(
    workspace: Workspace, told: dict[str, Any], constraint: str
) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Blackout.objects.create(workspace=workspace, name="wrong", **told)


# until when


@pytest.mark.parametrize(
    ("times", "now", "ends"),
    [
        ("22:00-06:00", "2026-03-28T21:00:00", "2026-03-29T04:00:00"),
        ("22:00-06:00", "2026-10-24T20:00:00", "2026-10-25T05:00:00"),
        ("22:00-06:00", "2026-10-25T01:30:00", "2026-10-25T05:00:00"),
        # the clocks jump out of it, and back into it
        ("01:00-02:30", "2026-03-29T00:10:00", "2026-03-29T01:00:00"),
        ("01:00-02:30", "2026-10-24T23:10:00", "2026-10-25T00:30:00"),
        ("01:00-02:30", "2026-10-25T01:10:00", "2026-10-25T01:30:00"),
        ("02:30-04:37:11", "2026-10-25T00:40:00", "2026-10-25T01:00:00"),
        ("02:30-04:37:11", "2026-10-25T01:40:00", "2026-10-25T03:37:11"),
        ("02:30-04:37:11", "2026-03-29T01:00:00", "2026-03-29T02:37:11"),
        ("09:00-09:00", "2026-03-28T12:00:00", None),  # on every day: it never ends
    ],
)
def test_it_says_until_when_to_the_second(
    workspace: Workspace, clock: Clock, times: str, now: str, ends: str | None
) -> None:
    weekly(workspace, times, BERLIN)
    stand_at(clock, now)
    assert until(workspace) == (utc(ends) if ends else None)


def test_what_follows_without_a_gap_counts_as_one(workspace: Workspace, clock: Clock) -> None:
    stand_at(clock, "2026-01-01T23:00:00")
    weekly(workspace, "22:00-06:00")
    assert until(workspace) == utc("2026-01-02T06:00:00")
    period(workspace, "2026-01-02T06:00:00", "2026-01-02T23:00:00")
    assert until(workspace) == utc("2026-01-03T06:00:00")
    on_dates(workspace, "2026-01-03", "2026-01-04")
    assert until(workspace) == utc("2026-01-05T06:00:00")
    on_dates(workspace, "2026-01-05", enabled=False)
    assert until(workspace) == utc("2026-01-05T06:00:00")
    period(workspace, "2026-01-05T06:00:01", None)  # a second too late to follow
    assert until(workspace) == utc("2026-01-05T06:00:00")
    period(workspace, "2026-01-05T05:00:00", "2026-12-30T00:00:00")
    assert until(workspace) is None


def test_what_is_for_elsewhere_lengthens_nothing(
    workspace: Workspace, environments: dict[str, Environment], clock: Clock
) -> None:
    stand_at(clock, "2026-01-01T23:00:00")
    weekly(workspace, "22:00-06:00")
    period(workspace, "2026-01-01T00:00:00", None, environment=environments["production"])
    assert until(workspace, environments["staging"]) == utc("2026-01-02T06:00:00")
    assert until(workspace, environments["production"]) is None


def test_nobody_looks_further_than_a_year(workspace: Workspace, clock: Clock) -> None:
    stand_at(clock, "2026-01-01T12:00:00")
    one = period(workspace, "2026-01-01T00:00:00", "2027-01-02T12:00:00")
    assert until(workspace) == utc("2027-01-02T12:00:00")
    Blackout.objects.filter(id=one.id).update(ends_at=utc("2027-01-02T12:30:00"))
    assert until(workspace) is None


windows = st.builds(
    dict,
    start=st.times().map(lambda at: at.replace(second=0, microsecond=0)),
    end=st.times().map(lambda at: at.replace(second=0, microsecond=0)),
    days=st.lists(st.integers(1, 7), min_size=1, max_size=7, unique=True).map(sorted),
)
# zones whose rules stand: of others the data of the database and of Python's package may differ, and the former decides
CHANGING = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC")


def _wall(moment: datetime, zone: str) -> datetime:
    return moment.astimezone(zones.zone(zone)).replace(tzinfo=None)


def _covers(window: dict[str, Any], zone: str, moment: datetime) -> bool:
    """The same once more, from Python's own data of zones."""
    wall = _wall(moment, zone)
    today, clock, start, end = wall.isoweekday(), wall.time(), window["start"], window["end"]
    if start < end:
        return today in window["days"] and start <= clock < end
    yesterday = (wall - timedelta(days=1)).isoweekday()
    return (today in window["days"] and clock >= start) or (yesterday in window["days"] and clock < end)


@settings(max_examples=60)
@given(st.lists(windows, min_size=1, max_size=3), st.sampled_from(CHANGING), st.data())
def test_whether_and_until_when_are_what_walking_minute_by_minute_finds(
    found: list[dict[str, Any]], zone: str, data: st.DataObject
) -> None:
    """Against an oracle that knows nothing of the database, around changes of clocks and elsewhere."""
    changes = [one for year in (2026, 2027) for one in _changes(zone, year)] or [utc("2026-05-05")]
    near = data.draw(st.sampled_from(changes))
    now = near + timedelta(minutes=data.draw(st.integers(-36 * 60, 36 * 60)))
    minutes = [now + timedelta(minutes=step) for step in range(4 * 24 * 60)]
    expected = [any(_covers(window, zone, at) for window in found) for at in minutes]
    sql = "SELECT recourse_blackout(%s::uuid, NULL, NULL, at) IS NOT NULL FROM unnest(%s::timestamptz[]) AS at"
    try:
        with transaction.atomic():
            workspace = WorkspaceFactory(ladder=())
            for window in found:
                weekly(workspace, f"{window['start']:%H:%M}-{window['end']:%H:%M}", zone, days=window["days"])
            assert [row[0] for row in query(sql, [workspace.id, minutes[::7]])] == expected[::7]
            stand_at(CLOCK, now + timedelta(seconds=1))
            active = blackouts.active(workspace.id, None)
            assert (active is not None) is expected[0]
            if active is not None and False in expected:
                assert active.until == minutes[expected.index(False)]
            transaction.set_rollback(True)
    finally:
        CLOCK.shift = timedelta()


def _changes(zone: str, year: int) -> list[datetime]:
    """The hours before which the offset of the zone changes in a year."""
    start = datetime(year, 1, 1, tzinfo=UTC)
    hours = [start + timedelta(hours=step) for step in range(366 * 24)]
    offsets = [hour.astimezone(zones.zone(zone)).utcoffset() for hour in hours]
    return [hour for hour, one, other in zip(hours[1:], offsets, offsets[1:], strict=False) if one != other]


# what is told


def test_what_holds_is_told_with_whose_it_is_and_asks_the_database_once_where_nothing_does(
    workspace: Workspace, environment: Environment, people: dict[str, Any], clock: Clock
) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert blackouts.active(workspace.id, environment.id) is None
    assert len(queries) == 1
    stand_at(clock, "2026-01-10T12:00:00")
    who = people["release_manager"].user
    period(
        workspace,
        "2026-01-10T00:00:00",
        None,
        name="freeze",
        is_freeze=True,
        reason="an incident",
        created_by=who,
    )
    found = blackouts.active(workspace.id, environment.id)
    assert found is not None
    assert (found.name, found.reason, found.until, found.is_freeze) == ("freeze", "an incident", None, True)
    assert found.sentence() == (
        f"nothing starts: freeze 'freeze' by {who.get_username()} since 2026-01-10 00:00:00 UTC, until it is lifted"
    )
    assert blackouts.Active.from_json(found.as_json()) == found


def test_what_holds_is_refused_unless_somebody_says_why(
    workspace: Workspace, environment: Environment, clock: Clock
) -> None:
    assert not blackouts.require_open(workspace.id, environment.id)
    assert not blackouts.require_open(workspace.id, environment.id, "for nothing")
    weekly(workspace, "22:00-06:00", BERLIN, reason="the batch windows of others")
    stand_at(clock, "2026-10-24T20:00:00")
    for blank in ("", "  "):
        with pytest.raises(Refusal) as refused:
            blackouts.require_open(workspace.id, environment.id, blank)
        assert (refused.value.code, refused.value.status) == ("blackout_active", 409)
        assert refused.value.extra["override"] == "override_reason"
        assert refused.value.extra["blackout"]["until"] == "2026-10-25T05:00:00+00:00"
        assert refused.value.detail == (
            "nothing starts: blackout 'nights', until 2026-10-25 05:00:00 UTC (the batch windows of others);"
            " give override_reason to start it all the same"
        )
    assert blackouts.require_open(workspace.id, environment.id, "the auditors wait")


def _trigger(workspace: Workspace, environment: Environment, application: Application) -> Trigger:
    return Trigger.objects.create(
        workspace=workspace,
        name="nightly",
        pipeline=PipelineFactory(workspace=workspace),
        environment=environment,
        application=application,
        cron="0 8 * * *",
        timezone="UTC",
        recorded_until=utc("2026-01-01"),
    )
