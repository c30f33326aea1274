"""How many ticks each local day of a schedule has, for calendars: counted day by day, not tick by tick. Pure.

A day belongs to what the zone's clocks show. Only days that a change of clocks touches are iterated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import takewhile

from pipelines import cron as crons
from pipelines import zones
from pipelines.schedules import Schedule

DAY = timedelta(days=1)


def counts(schedule: Schedule, first: date, last: date) -> dict[date, int]:
    """The days from first to last that have ticks, with how many."""
    fields = crons.read(schedule.cron)
    found: Counter[date] = Counter()
    touched: set[date] = set()
    for day in _days(first, last):
        seam = zones.seam_of(schedule.timezone, day)
        if seam is not None and day not in touched:
            span = list(_days(seam.first, seam.last))
            touched.update(span)
            # what falls on a day beyond the seam is no tick of the seam: that day is counted by itself
            ticks = schedule.between(begins(schedule.timezone, seam.first), begins(schedule.timezone, seam.last + DAY))
            found.update(
                day for due in ticks if first <= (day := due.local.date()) <= last and seam.first <= day <= seam.last
            )
    for day in takewhile(lambda day: day <= last, fields.days_from(first)):
        if day not in touched:
            found[day] += len(fields.times)
    return dict(found)


def begins(timezone: str, day: date) -> datetime:
    """The first instant at which clocks of the zone show this day, in UTC."""
    local = datetime.combine(day, time())
    seam = zones.seam_of(timezone, day)
    if seam is None:
        return local.replace(tzinfo=zones.zone(timezone)).astimezone(UTC)
    if found := seam.instants(local):
        return found[0]
    return seam.leaves_out(local).at  # midnight itself is left out


def of_wall(timezone: str, local: datetime) -> datetime:
    """When clocks of the zone show this time, the first time; where they leave it out, when they go on."""
    seam = zones.seam_of(timezone, local.date())
    if seam is None:
        return local.replace(tzinfo=zones.zone(timezone)).astimezone(UTC)
    found = seam.instants(local)
    return found[0] if found else seam.leaves_out(local).at


def _days(first: date, last: date) -> Iterator[date]:
    return (first + index * DAY for index in range((last - first).days + 1))
