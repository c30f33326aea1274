"""When schedules are due: the values of the field cases exactly, the strange zones, both directions, and the words."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import Refusal
from pipelines.schedules import Due, Gap, Overlap, Rule, Schedule

BASE = Path(__file__).parents[2]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(ticks: Iterable[Due]) -> list[str]:
    """09-30T16:15: short enough to read."""
    return [f"{due.at:%m-%dT%H:%M}" for due in ticks]


def within(cron: str, timezone: str, start: str, end: str, **policies: str) -> list[Due]:
    """All ticks of a window, proved the same backward."""
    schedule = Schedule.read(cron, timezone, **policies)
    found = list(schedule.between(utc(start), utc(end)))
    assert list(islice(schedule.before(utc(end), inclusive=True), len(found))) == found[::-1]
    return found


def made(ticks: Iterable[Due]) -> list[tuple[str, str]]:
    return [(f"{due.at:%m-%dT%H:%M}", str(due.rule)) for due in ticks]


# --- the field cases ------------------------------------------------------------------------------------------------


def test_the_window_of_the_source_has_its_three_ticks_with_both_ends() -> None:
    """O53."""
    ticks = within("0 8 * * *", "UTC", "2026-05-20T08:00", "2026-05-22T08:00")
    assert times(ticks) == ["05-20T08:00", "05-21T08:00", "05-22T08:00"]


def test_a_night_of_berlin_is_read_on_the_clocks_of_berlin() -> None:
    """F80: one engine counts and creates, four and not three."""
    ticks = within("30 0 * * *", "Europe/Berlin", "2026-03-26T12:00", "2026-03-30T12:00")
    assert times(ticks) == ["03-26T23:30", "03-27T23:30", "03-28T23:30", "03-29T22:30"]


def test_a_time_that_does_not_exist_fires_at_the_first_instant_that_does() -> None:
    """F88: and no interval is empty or turned round."""
    ticks = within("30 2 * * *", "America/New_York", "2026-03-07T05:00", "2026-03-10T04:00")
    assert made(ticks) == [
        ("03-07T07:30", Rule.FIXED_TIME),
        ("03-08T07:00", Rule.GAP_FIRST_EXISTING),
        ("03-09T06:30", Rule.FIXED_TIME),
    ]
    assert all(later.at > earlier.at for earlier, later in pairwise(ticks))
    assert ticks[1].local.isoformat() == "2026-03-08T03:00:00-04:00"


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (Gap.FIRST_EXISTING, [("03-29T01:00", Rule.GAP_FIRST_EXISTING)]),
        (Gap.SHIFT, [("03-29T01:30", Rule.GAP_SHIFT)]),
        (Gap.SKIP, []),
    ],
)
def test_the_missing_half_past_two_of_berlin_goes_by_the_gap_policy(gap: str, expected: Any) -> None:
    """O56, F105."""
    assert made(within("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T12:00", gap=gap)) == expected


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (Overlap.FIRST, [("10-25T00:30", Rule.OVERLAP_FIRST)]),
        (Overlap.SECOND, [("10-25T01:30", Rule.OVERLAP_SECOND)]),
        (Overlap.BOTH, [("10-25T00:30", Rule.OVERLAP_FIRST), ("10-25T01:30", Rule.OVERLAP_SECOND)]),
    ],
)
def test_the_doubled_half_past_two_of_berlin_goes_by_the_overlap_policy(overlap: str, expected: Any) -> None:
    """O56, F105."""
    ticks = within("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T12:00", overlap=overlap)
    assert made(ticks) == expected
    assert {f"{due.local:%H:%M}" for due in ticks} == {"02:30"}


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [("first", ["11-01T05:30"]), ("second", ["11-01T06:30"]), ("both", ["11-01T05:30", "11-01T06:30"])],
)
def test_half_past_one_of_new_york_comes_once_or_at_two_distinct_instants(overlap: str, expected: list[str]) -> None:
    """F90."""
    ticks = within("30 1 * * *", "America/New_York", "2026-11-01T04:00", "2026-11-02T04:00", overlap=overlap)
    assert times(ticks) == expected
    assert [due.local.utcoffset() for due in ticks] == [
        timedelta(hours=-4) if tick == "11-01T05:30" else timedelta(hours=-5) for tick in expected
    ]


def test_the_repeated_hour_of_london_fires_once_unless_asked_otherwise() -> None:
    """F93."""
    assert times(within("30 1 * * *", "Europe/London", "2026-10-25T00:00", "2026-10-26T00:00")) == ["10-25T00:30"]


def test_nine_in_the_morning_stays_nine_on_the_day_clocks_change() -> None:
    """F94."""
    ticks = within("0 9 * * *", "Europe/Berlin", "2026-03-28T00:00", "2026-03-30T23:00")
    assert times(ticks) == ["03-28T08:00", "03-29T07:00", "03-30T07:00"]
    assert {f"{due.local:%H:%M}" for due in ticks} == {"09:00"}


PRINTS = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
from datetime import datetime
from pipelines.schedules import Schedule
for cron, zone in (("0 * * * *", "UTC"), ("30 1 * * *", "Europe/London"), ("30 2 * * *", "Asia/Tokyo")):
    for due in Schedule.read(cron, zone).between(*map(datetime.fromisoformat, sys.argv[1:])):
        print(due.at.isoformat(), due.local.isoformat(), due.rule)
"""


def printed(**environment: str) -> list[str]:
    window = ("2026-10-25T00:00:00+00:00", "2026-10-25T23:59:00+00:00")
    done = subprocess.run(
        [sys.executable, "-c", PRINTS, *window],
        cwd=BASE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_neither_the_hosts_zone_nor_its_zone_data_nor_its_language_move_a_tick(tmp_path: Path) -> None:
    """F98: 24 ticks of UTC on the day London has 25 hours. The host's own Europe/London is a lie here."""
    (tmp_path / "Europe").mkdir()
    tokyo = Path(sys.prefix).glob("lib/python*/site-packages/tzdata/zoneinfo/Asia/Tokyo")
    (tmp_path / "Europe" / "London").write_bytes(next(tokyo).read_bytes())
    plain = printed(TZ="UTC")
    assert len([line for line in plain if "+00:00 2026" in line and line.count("+00:00") == 2]) == 24
    assert "2026-10-25T00:30:00+00:00 2026-10-25T01:30:00+01:00 overlap_first" in plain
    assert printed(TZ="Europe/London", PYTHONTZPATH=str(tmp_path), LC_ALL="tr_TR.UTF-8", LANG="tr_TR.UTF-8") == plain


def test_the_consoles_own_zone_moves_no_tick(settings: Any) -> None:
    """F99."""
    from django.utils import timezone

    before = within("30 0 * * *", "Europe/Berlin", "2026-03-26T12:00", "2026-03-30T12:00")
    settings.TIME_ZONE = "Asia/Kathmandu"
    with timezone.override("Pacific/Apia"):
        assert within("30 0 * * *", "Europe/Berlin", "2026-03-26T12:00", "2026-03-30T12:00") == before


# --- real time and fixed times --------------------------------------------------------------------------------------


def test_an_expression_that_begins_with_a_star_follows_real_time() -> None:
    """Contract §4: both passes of the repeated hour, nothing for the missing one, whatever the policies."""
    policies = {"gap": "shift", "overlap": "second"}
    autumn = within("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T12:00", **policies)
    assert times(autumn) == ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30"]
    assert {due.rule for due in autumn} == {Rule.REAL_TIME}
    assert within("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T12:00", **policies) == []


def test_hourly_has_23_and_25_ticks_on_the_days_clocks_change() -> None:
    for day, count in (("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)):
        ticks = Schedule.read("0 * * * *", "Europe/Berlin").between(utc("2026-01-01T00:00"), utc("2026-12-31T00:00"))
        assert sum(f"{due.local:%Y-%m-%d}" == day for due in ticks) == count


def test_the_same_minutes_written_out_are_fixed_times() -> None:
    """`0,30` is not `*/30`."""
    assert times(within("0,30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T12:00")) == [
        "10-25T00:00",
        "10-25T00:30",
    ]


def test_ticks_that_fall_on_one_instant_are_one_tick_that_tells_the_plainest_rule() -> None:
    ticks = within("0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T12:00")
    assert made(ticks) == [("03-29T01:00", Rule.FIXED_TIME), ("03-29T01:30", Rule.FIXED_TIME)]
    all_missing = within("0-59 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T12:00")
    assert made(all_missing) == [("03-29T01:00", Rule.GAP_FIRST_EXISTING)]


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 0 13 * fri", [6, 13, 20, 27]),  # both restricted: either
        ("0 0 10 * fri", [6, 10, 13, 20, 27]),
        ("0 0 * * fri", [6, 13, 20, 27]),
        ("0 0 */2 * fri", [13, 27]),  # a star restricts nothing: both must hold
        ("0 0 8-14 * */7", [8]),
        ("0 0 * * 0", [1, 8, 15, 22, 29]),
        ("0 0 * * 7", [1, 8, 15, 22, 29]),
        ("0 0 * * SUN", [1, 8, 15, 22, 29]),
        ("0 0 * * sat-sun", [1, 7, 8, 14, 15, 21, 22, 28, 29]),
        ("0 0 * * 6-7", [1, 7, 8, 14, 15, 21, 22, 28, 29]),
        ("0 0 L * *", [30]),
        ("0 0 1,L * *", [1, 30]),
        ("0 0 * * 5L", [27]),
        ("0 0 * * friL", [27]),
        ("0 0 * * mon#1,mon#5", [2, 30]),
        ("0 0 * * 0#5", [29]),
        ("0 0 5-5/2 * *", [5]),
        ("0 0 25/2 * *", [25, 27, 29]),
    ],
)
def test_days_of_november_2026(cron: str, days: list[int]) -> None:
    """Contract §4; its first is a Sunday."""
    ticks = within(cron, "UTC", "2026-11-01T00:00", "2026-11-30T23:59")
    assert [due.at.day for due in ticks] == days


def test_the_last_day_of_february_knows_leap_years() -> None:
    ticks = within("0 12 L 2 *", "UTC", "2023-01-01T00:00", "2025-01-01T00:00")
    assert times(ticks) == ["02-28T12:00", "02-29T12:00"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 0 29 2 */7", "2032-02-29"),  # a Sunday; before it 2004
        ("0 0 * 2 mon#5", "2044-02-29"),
        ("0 0 29 2 *", "2028-02-29"),
    ],
)
def test_what_is_rare_is_found_at_once(cron: str, expected: str) -> None:
    schedule = Schedule.read(cron, "Europe/Berlin")
    assert [f"{due.local:%Y-%m-%d}" for due in schedule.next(1, utc("2026-01-01T00:00"))] == [expected]


# --- strange zones --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        # 2011-12-30 did not exist: Friday's tick at the first instant of Saturday, or a day later, where one is already
        ("first_existing", ["12-29T12:30", "12-30T10:00", "12-30T12:30", "12-31T12:30"]),
        ("shift", ["12-29T12:30", "12-30T12:30", "12-31T12:30"]),
        ("skip", ["12-29T12:30", "12-30T12:30", "12-31T12:30"]),
    ],
)
def test_the_day_that_samoa_left_out(gap: str, expected: list[str]) -> None:
    ticks = within("30 2 * * *", "Pacific/Apia", "2011-12-29T11:00", "2012-01-01T00:00", gap=gap)
    assert times(ticks) == expected
    assert {str(due.rule) for due in ticks} - {"fixed_time"} == ({"gap_first_existing"} if len(ticks) == 4 else set())


def test_the_day_that_kwajalein_had_twice() -> None:
    """1969-09-30 went on for 47 hours, read on its clocks."""
    hourly = Schedule.read("0 * 30 9 *", "Kwajalein").between(utc("1969-09-01T00:00"), utc("1969-10-30T00:00"))
    assert len(list(hourly)) == 47
    ticks = within("30 2 * * *", "Kwajalein", "1969-09-29T00:00", "1969-10-02T00:00", overlap="both")
    assert made(ticks) == [
        ("09-29T15:30", Rule.OVERLAP_FIRST),
        ("09-30T14:30", Rule.OVERLAP_SECOND),
        ("10-01T14:30", Rule.FIXED_TIME),
    ]


def test_half_an_hour_of_lord_howe() -> None:
    spring = within("10 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", "2026-10-04T12:00", gap="shift")
    assert made(spring) == [("10-03T15:40", Rule.GAP_SHIFT)]
    autumn = within("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", "2026-04-05T12:00", overlap="both")
    assert made(autumn) == [("04-04T14:45", Rule.OVERLAP_FIRST), ("04-04T15:15", Rule.OVERLAP_SECOND)]


@pytest.mark.parametrize(
    ("zone", "start", "end", "expected"),
    [
        # clocks go from 00:00 to 01:00: midnight itself is missing
        ("America/Sao_Paulo", "2018-11-03T12:00", "2018-11-05T12:00", ["11-04T03:00", "11-05T02:00"]),
        ("Asia/Beirut", "2026-03-27T12:00", "2026-03-29T12:00", ["03-27T22:00", "03-28T22:00"]),
        # clocks go from 00:00 back to 23:00: midnight is there twice seen from before, and once on the clock
        ("America/Sao_Paulo", "2018-02-17T12:00", "2018-02-19T12:00", ["02-18T03:00", "02-19T03:00"]),
        # no daylight saving at all: Turkey stays where it is from 2016 on
        ("Europe/Istanbul", "2016-03-26T12:00", "2016-03-28T12:00", ["03-26T22:00", "03-27T21:00"]),
        # the standard offset changes: Nepal by a quarter of an hour
        ("Asia/Kathmandu", "1985-12-31T00:00", "1986-01-02T00:00", ["12-31T18:30", "01-01T18:15"]),
    ],
)
def test_midnights_that_clocks_jump_over_or_come_back_to(zone: str, start: str, end: str, expected: list[str]) -> None:
    assert times(within("0 0 * * *", zone, start, end)) == expected


def test_times_of_two_days_may_interleave_and_still_rise() -> None:
    """St. John's went from 00:01 back to 23:01: the new day began, the old one came back, the new one began again."""
    ticks = within("0-1,59 23,0 * * *", "America/St_Johns", "2010-11-07T01:00", "2010-11-07T05:00", overlap="both")
    assert [f"{due.local:%dT%H:%M%z}" for due in ticks] == [
        "06T23:00-0230",
        "06T23:01-0230",
        "06T23:59-0230",
        "07T00:00-0230",
        "06T23:01-0330",
        "06T23:59-0330",
        "07T00:00-0330",
        "07T00:01-0330",
        "07T00:59-0330",
    ]
    assert all(later.at > earlier.at for earlier, later in pairwise(ticks))


def test_a_tick_is_found_from_instants_whose_local_day_is_another_one() -> None:
    """Asked in the middle of a change: the day that was left out counts, and so does the one that began too early."""
    friday = Schedule.read("30 2 * * fri", "Pacific/Apia")
    midnight = utc("2011-12-30T10:00")  # of Saturday; Friday did not exist
    assert times(friday.between(midnight, midnight)) == ["12-30T10:00"]
    assert times(islice(friday.after(midnight), 1)) == ["01-05T12:30"]
    new_day = Schedule.read("0 0 7 11 *", "America/St_Johns")
    old_day = utc("2010-11-07T03:00")  # 23:30 of the 6th for the second time; the 7th has begun before, for a minute
    assert [f"{due.at:%Y-%m-%dT%H:%M}" for due in islice(new_day.before(old_day), 2)] == [
        "2010-11-07T02:30",
        "2009-11-07T03:30",
    ]
    assert f"{next(new_day.after(old_day)).at:%Y-%m-%dT%H:%M}" == "2011-11-07T03:30"


def test_local_mean_time_has_seconds() -> None:
    """Berlin before April 1893: 53 minutes and 28 seconds ahead."""
    ticks = Schedule.read("0 8 * * *", "Europe/Berlin").next(1, utc("1880-01-01T00:00"))
    assert ticks[0].at.isoformat() == "1880-01-01T07:06:32+00:00"
    assert f"{ticks[0].local:%H:%M:%S}" == "08:00:00"


# --- asking ---------------------------------------------------------------------------------------------------------


def test_an_instant_that_is_a_tick_counts_only_when_it_is_asked_for() -> None:
    schedule, at = Schedule.read("0 8 * * *", "UTC"), utc("2026-05-20T08:00")
    assert times(islice(schedule.after(at), 1)) == ["05-21T08:00"]
    assert times(islice(schedule.after(at, inclusive=True), 1)) == ["05-20T08:00"]
    assert times(islice(schedule.before(at), 1)) == ["05-19T08:00"]
    assert times(islice(schedule.before(at, inclusive=True), 1)) == ["05-20T08:00"]
    assert times(islice(schedule.after(at + timedelta(microseconds=1), inclusive=True), 1)) == ["05-21T08:00"]
    assert times(schedule.next(2, at)) == ["05-21T08:00", "05-22T08:00"]


def test_an_instant_may_be_told_in_any_zone_but_not_without_one() -> None:
    schedule = Schedule.read("0 8 * * *", "UTC")
    asked = datetime.fromisoformat("2026-05-20T17:00:00+09:00")
    assert times(islice(schedule.after(asked, inclusive=True), 1)) == ["05-20T08:00"]
    for ask in (schedule.after, schedule.before):
        with pytest.raises(ValueError, match="with a zone"):
            ask(datetime(2026, 5, 20))


def test_a_window_that_ends_before_it_begins_is_empty() -> None:
    assert list(Schedule.read("* * * * *", "UTC").between(utc("2026-01-02T00:00"), utc("2026-01-01T00:00"))) == []


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_time_has_two_ends_and_nothing_breaks_there(zone: str) -> None:
    schedule = Schedule.read("0 0 1 1 *", zone)
    low, high = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    forward = list(schedule.after(low))
    assert list(schedule.before(high)) == forward[::-1]
    assert (forward[0].local.year, forward[-1].local.year) == (1800, 2200)
    assert list(schedule.after(high)) == []
    assert list(schedule.before(low)) == []


def test_a_hundred_thousand_ticks_take_no_memory() -> None:
    """A window of any size is gone through in constant memory; the figure for 1,000,000 is in bench/."""
    ticks = Schedule.read("* * * * *", "Europe/Berlin").after(utc("2026-01-01T00:00"))
    next(ticks)
    tracemalloc.start()
    try:
        assert sum(1 for _ in islice(ticks, 100_000)) == 100_000
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("field", "policies"), [("gap", {"gap": "never"}), ("overlap", {"overlap": "twice"}), ("gap", {"gap": None})]
)
def test_an_unknown_policy_is_refused_by_its_name(field: str, policies: Any) -> None:
    with pytest.raises(Refusal) as refused:
        Schedule.read("0 8 * * *", "UTC", **policies)
    assert refused.value.code == "validation_error"
    assert list(refused.value.errors) == [field]


def test_a_schedule_that_was_read_before_needs_no_reading() -> None:
    """Rows keep what was read; equal schedules are equal."""
    read = Schedule.read(" 0   8 * *  MON-fri ", "Europe/Berlin")
    assert read == Schedule("0 8 * * MON-fri", "Europe/Berlin", "first_existing", "first")
    assert times(read.next(1, utc("2026-11-28T00:00"))) == ["11-30T07:00"]


# --- words for one tick ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "zone", "at", "policies", "told"),
    [
        ("0 8 * * *", "UTC", "2026-01-01T08:00", {}, "08:00 UTC on 2026-01-01"),
        (
            "15 16 * * 1-5",
            "Europe/Berlin",
            "2026-11-30T15:15",
            {},
            "16:15 CET on 2026-11-30 in Europe/Berlin, 15:15 UTC",
        ),
        (
            "30 0 * * *",
            "Europe/Berlin",
            "2026-03-29T22:30",
            {},
            "00:30 CEST on 2026-03-30 in Europe/Berlin, 22:30 UTC on 2026-03-29",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-29T01:00",
            {},
            "02:30 does not exist on 2026-03-29 in Europe/Berlin (clocks go from 02:00 to 03:00): "
            "fires at 03:00 CEST, 01:00 UTC",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-29T01:30",
            {"gap": "shift"},
            "02:30 does not exist on 2026-03-29 in Europe/Berlin (clocks go from 02:00 to 03:00): "
            "fires as much later, at 03:30 CEST, 01:30 UTC",
        ),
        (
            "0-59 2 * * *",
            "Europe/Berlin",
            "2026-03-29T01:00",
            {},
            "02:00, 02:01 and 58 more times do not exist on 2026-03-29 in Europe/Berlin "
            "(clocks go from 02:00 to 03:00): fires at 03:00 CEST, 01:00 UTC",
        ),
        (
            "0,30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-29T01:00",
            {},
            "03:00 CEST on 2026-03-29 in Europe/Berlin, 01:00 UTC; 02:00 and 02:30, left out by clocks that day, "
            "fall on it",
        ),
        (
            "30 2 * * *",
            "Pacific/Apia",
            "2011-12-30T10:00",
            {},
            "02:30 does not exist on 2011-12-30 in Pacific/Apia (clocks go from 00:00 on 2011-12-30 to 00:00 on "
            "2011-12-31): fires at 00:00 UTC+14:00, 10:00 UTC on 2011-12-30",
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-11-01T05:30",
            {},
            "01:30 comes twice on 2026-11-01 in America/New_York (clocks go back from 02:00 to 01:00): "
            "fires the first time, at 01:30 EDT, 05:30 UTC",
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-11-01T06:30",
            {"overlap": "second"},
            "01:30 comes twice on 2026-11-01 in America/New_York (clocks go back from 02:00 to 01:00): "
            "fires the second time, at 01:30 EST, 06:30 UTC",
        ),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T01:30",
            {},
            "02:30 CET on 2026-10-25 in Europe/Berlin, 01:30 UTC; it comes twice (clocks go back from 03:00 to 02:00): "
            "this is the second time",
        ),
    ],
)
def test_every_tick_is_explained(cron: str, zone: str, at: str, policies: Any, told: str) -> None:
    """F105: shown per tick, with the change of clocks that had its part in it."""
    schedule = Schedule.read(cron, zone, **policies)
    ticks = list(schedule.between(utc(at), utc(at)))
    assert [schedule.explain(due) for due in ticks] == [told]


def test_a_time_in_which_a_schedule_holds_has_both_its_ends() -> None:
    """What was before its start is left out, however far back one looks; none of it is needed."""
    hourly = Schedule.read("0 * * * *", "UTC")
    six, eight = datetime(2026, 5, 20, 6, tzinfo=UTC), datetime(2026, 5, 20, 8, tzinfo=UTC)
    hours = [due.at.hour for due in hourly.ahead(datetime(2020, 1, 1, tzinfo=UTC), six, eight)]
    assert hours == [6, 7, 8]
    assert [due.at.hour for due in hourly.ahead(six, six, eight)] == [7, 8], "after the instant, as ever"
    assert [due.at.hour for due in hourly.ahead(six, None, eight)] == [7, 8]
    assert next(hourly.ahead(eight)).at.hour == 9
    assert not list(hourly.ahead(eight, six, eight))
