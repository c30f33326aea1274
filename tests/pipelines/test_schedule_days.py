"""Counting the ticks of days says what iterating them says, on days with a change of clocks and on all others."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest

from pipelines import schedule_days, zones
from pipelines.schedules import Gap, Overlap, Schedule

CRONS = ("30 2 * * *", "0 0 * * *", "*/5 * * * *", "0 */2 * * *", "15 1,2,3 * * mon-fri", "0 16 L * *", "0 8 * * fri#2")
PLACES = (
    ("Europe/Berlin", date(2026, 3, 27)),
    ("Europe/Berlin", date(2026, 10, 23)),
    ("America/New_York", date(2026, 10, 30)),
    ("Australia/Lord_Howe", date(2026, 4, 3)),
    ("America/Santiago", date(2026, 9, 4)),  # midnight itself is left out
    ("Pacific/Apia", date(2011, 12, 28)),  # a whole day is left out
    ("UTC", date(2026, 2, 27)),
)


@pytest.mark.parametrize("cron", CRONS)
@pytest.mark.parametrize(("zone", "first"), PLACES)
def test_days_have_as_many_ticks_as_the_schedule_gives_them(cron: str, zone: str, first: date) -> None:
    rng = random.Random(f"{cron}{zone}{first}")
    schedule = Schedule(cron, zone, rng.choice(Gap.values), rng.choice(Overlap.values))
    last = first + timedelta(days=rng.randrange(1, 40))
    begin = datetime(first.year, first.month, first.day, tzinfo=UTC) - timedelta(days=2)
    ticks = schedule.between(begin, begin + timedelta(days=46))
    listed = Counter(due.local.date() for due in ticks if first <= due.local.date() <= last)
    assert schedule_days.counts(schedule, first, last) == dict(listed)


@pytest.mark.parametrize(("zone", "first"), PLACES)
def test_a_day_begins_at_the_first_instant_at_which_clocks_show_it(zone: str, first: date) -> None:
    for day in (first + timedelta(days=index) for index in range(5)):
        begin = schedule_days.begins(zone, day)
        within = zones.zone(zone)
        assert begin.astimezone(within).date() >= day
        assert (begin - timedelta(seconds=1)).astimezone(within).date() < day
