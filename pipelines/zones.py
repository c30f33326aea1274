"""Time zones as the package `tzdata` has them, never as the host has them, and the days on which their clocks change.

Whatever `TZ`, `TIME_ZONE` or the files of the host say moves nothing here, so all hosts agree (F98, F99).

Limit: changes are found by asking for the offset once a day, so two within one day that cancel out would be missed. No
zone has had or announced any less than six days apart; a test holds that against the package as installed.
"""

from __future__ import annotations

import calendar
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise
from zoneinfo import ZoneInfo

from pipelines.errors import Refusal

LONGEST_NAME = 64
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


@cache
def names() -> frozenset[str]:
    """Every name of the time zone database, spelled as it spells them; links such as `Asia/Calcutta` are names too."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    return frozenset(listed) - {"Factory"}  # the zone of clocks that nobody has set


def zone(name: str) -> ZoneInfo:
    """The zone of that name. Refused with `timezone_invalid` when there is none; near matches are offered."""
    if not isinstance(name, str) or name not in names():
        raise _unknown(name)
    return _load(name)


@cache
def _load(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def _unknown(name: object) -> Refusal:
    if not isinstance(name, str) or not name.strip():
        message = "The name of a time zone is needed, such as Europe/Berlin or UTC."
    elif len(name) > LONGEST_NAME:
        message = f"A name of a time zone has at most {LONGEST_NAME} characters."
    else:
        near = _near(name)
        offered = f" Did you mean {' or '.join(near)}?" if near else " Names are those of IANA, such as Europe/Berlin."
        message = f"There is no time zone {name!a}.{offered}"
    return Refusal("timezone_invalid", message, errors={"timezone": [message]})


def _near(name: str) -> list[str]:
    """Up to three names that may have been meant: other case, the city alone, a slip of the keys."""
    wanted = name.strip().replace(" ", "_").casefold()
    folded = {known.casefold(): known for known in sorted(names(), reverse=True)}
    if wanted in folded:
        return [folded[wanted]]
    cities = sorted(known for low, known in folded.items() if low.rsplit("/", 1)[-1] == wanted)
    close = [folded[low] for low in difflib.get_close_matches(wanted, folded, n=3, cutoff=0.75)]
    return (cities or close)[:3]


@dataclass(frozen=True, slots=True)
class Change:
    """An instant from which on the clocks of a zone show another time."""

    at: datetime  # UTC
    before: timedelta
    after: timedelta

    @property
    def from_wall(self) -> datetime:
        """What the clocks would have shown at this instant."""
        return wall(self.at, self.before)

    @property
    def to_wall(self) -> datetime:
        """What they show instead."""
        return wall(self.at, self.after)

    @property
    def days(self) -> tuple[date, date]:
        """First and last local day that the change touches: times that do not exist, those they may be moved to, times
        that exist twice."""
        low, high = sorted((self.from_wall, self.to_wall))
        moved = max(self.after - self.before, timedelta())
        return low.date(), (high + moved).date()


@dataclass(frozen=True, slots=True)
class Seam:
    """Local days in a row that changes touch, and those changes. Every other day has one offset from end to end."""

    first: date
    last: date
    changes: tuple[Change, ...]

    def instants(self, local: datetime) -> list[datetime]:
        """When the clocks show this time, in order: never, once, or more than once."""
        offsets = [self.changes[0].before, *(change.after for change in self.changes)]
        begins = [None, *(change.at for change in self.changes)]
        found = []
        for offset, begin, end in zip(offsets, begins, [*begins[1:], None], strict=True):
            at = instant(local, offset)
            if (begin is None or at >= begin) and (end is None or at < end):
                found.append(at)
        return found

    def leaves_out(self, local: datetime) -> Change:
        """The change by which this time, which no clock shows, is left out."""
        return next(change for change in self.changes if change.from_wall <= local < change.to_wall)

    def repeats(self, local: datetime) -> Change | None:
        """The change by which clocks show this time twice, when they do."""
        return next((change for change in self.changes if change.to_wall <= local < change.from_wall), None)


def wall(at: datetime, offset: timedelta) -> datetime:
    """What a clock with this offset shows: a time without zone."""
    return at.replace(tzinfo=None) + offset


def instant(local: datetime, offset: timedelta) -> datetime:
    """When a clock with this offset shows the time, in UTC."""
    return local.replace(tzinfo=UTC) - offset


def seam_of(name: str, day: date) -> Seam | None:
    """The seam that the local day belongs to, or None: its offset is one and the same from end to end."""
    return _seams(name, day.year).get(day)


@lru_cache(maxsize=4096)
def _seams(name: str, year: int) -> dict[date, Seam]:
    """By day, those of the year, with the neighbours' that reach into it: both years see the same seam."""
    seams: list[Seam] = []
    for change in (found for near in (year - 1, year, year + 1) for found in changes(name, near)):
        first, last = change.days
        if seams and first <= seams[-1].last:
            joined = seams.pop()
            seams.append(Seam(min(joined.first, first), max(joined.last, last), (*joined.changes, change)))
        else:
            seams.append(Seam(first, last, (change,)))
    return {day: seam for seam in seams for day in _days(seam) if day.year == year}


def _days(seam: Seam) -> Iterator[date]:
    return (seam.first + timedelta(days=index) for index in range((seam.last - seam.first).days + 1))


@lru_cache(maxsize=4096)
def changes(name: str, year: int) -> tuple[Change, ...]:
    """The changes of one year of UTC."""
    within = zone(name)
    begin = datetime(year, 1, 1, tzinfo=UTC) - SECOND  # one at its first instant is its own
    days = 366 if calendar.isleap(year) else 365
    asked = [(at, _offset(within, at)) for at in (begin + index * DAY for index in range(days + 1))]
    return tuple(_between(within, low, high) for (low, before), (high, after) in pairwise(asked) if before != after)


def _between(within: ZoneInfo, low: datetime, high: datetime) -> Change:
    before = _offset(within, low)
    while high - low > SECOND:
        middle = low + (high - low) // SECOND // 2 * SECOND
        if _offset(within, middle) == before:
            low = middle
        else:
            high = middle
    return Change(high, before, _offset(within, high))


def _offset(within: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(within).utcoffset() or timedelta()
