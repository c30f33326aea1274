"""Cron expressions (contract.md §4): what may be written, and the days and times of day it means, apart from zones.

Five fields: minute, hour, day of month, month, day of week. Names in any case, lists, ranges, steps, `L`, `#`; 0 and 7
are Sunday. A field that begins with `*` restricts nothing: with both day fields restricted either is enough, otherwise
both must hold. The package cronsim reads the fields; what it would take and could be misread is refused before.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache, lru_cache
from typing import Any

from cronsim import CronSim, CronSimError

from pipelines.errors import Refusal

LONGEST = 200  # characters
FIRST_DAY, LAST_DAY = date(1800, 1, 1), date(2200, 12, 31)
ANY_TIME = datetime(2000, 1, 1)
TIMES_OF_DAY = tuple(timedelta(minutes=minute) for minute in range(24 * 60))  # shared by all that was read

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


MONTH = r"(?:\d+|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
WEEKDAY = rf"(?:\d+|{'|'.join(WEEKDAYS)})"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One of the five: its name, its numbers, and what else may stand in it."""

    name: str
    attribute: str  # of cronsim's, with the values
    low: int
    high: int
    size: int  # how many different values there are: no step is longer
    value: str = r"\d+"
    besides: str = r"(?!)"
    also: str = ""

    @property
    def allowed(self) -> str:
        return f"numbers from {self.low} to {self.high}{self.also}, lists (1,3), ranges (1-3), steps (*/2), or *"

    @property
    def shape(self) -> str:
        return rf"(?:\*|{self.value}|{self.value}-{self.value})(?:/\d+)?|{self.besides}"


FIELDS = (
    FieldRule("minute", "minutes", 0, 59, 60),
    FieldRule("hour", "hours", 0, 23, 24),
    FieldRule("day of month", "days", 1, 31, 31, besides="L", also=", L for the last day"),
    FieldRule("month", "months", 1, 12, 12, MONTH, also=", names (jan)"),
    FieldRule(
        "day of week",
        "weekdays",
        0,
        7,
        7,
        WEEKDAY,
        rf"{WEEKDAY}(?:L|#\d+)",
        ", names (mon), friL for the last, mon#1 to mon#5",
    ),
)
DAY_OF_WEEK = FIELDS[4]


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """An expression that was read: the days that it means, and the times of day."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days_of_month: tuple[int, ...]
    last_day: bool  # of the month
    days_of_week: tuple[int, ...]  # 0 is Sunday
    nth_days_of_week: tuple[tuple[int, int], ...]  # (day of week, which one of the month); 0 is the last
    either: bool  # both day fields are restricted, and one is enough
    real_time: bool  # every instant that matches, instead of fixed times
    times: tuple[timedelta, ...]  # since midnight on the clock, rising
    days: Mapping[tuple[int, int], tuple[int, ...]]  # by the month's length and the day of week of its first

    def days_of(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self.months:
            return ()
        first_weekday, length = calendar.monthrange(year, month)
        return self.days[length, first_weekday]

    def days_from(self, first: date) -> Iterator[date]:
        """The days that match, from this one on until the end of 2200."""
        year, month = first.year, first.month
        while year <= LAST_DAY.year:
            for number in self.days_of(year, month):
                if (day := date(year, month, number)) >= first:
                    yield day
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)

    def days_until(self, last: date) -> Iterator[date]:
        """The days that match, from this one back until the beginning of 1800."""
        year, month = last.year, last.month
        while year >= FIRST_DAY.year:
            for number in reversed(self.days_of(year, month)):
                if (day := date(year, month, number)) <= last:
                    yield day
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)


def normal(cron: object) -> str:
    """The expression with one blank between its fields; refused when it is no text of five fields."""
    if not isinstance(cron, str):
        raise _invalid("A cron expression is a text of five fields, such as 0 8 * * mon-fri.")
    if len(cron) > LONGEST:
        raise _invalid(f"A cron expression has at most {LONGEST} characters, not {len(cron)}.")
    if not re.fullmatch(r"[\x20-\x7e\t]*", cron):
        raise _invalid("A cron expression has letters, digits and signs of ASCII only.")
    parts = cron.split()
    if parts and parts[0].startswith("@"):
        instead = SHORTHANDS.get(parts[0].lower())
        raise _invalid(
            f"Shorthands such as {parts[0]} are not taken: "
            + (f"write {instead}." if instead else "a schedule has five fields, such as 0 8 * * mon-fri.")
        )
    if len(parts) != len(FIELDS):
        raise _invalid(
            f"A cron expression has five fields (minute, hour, day of month, month, day of week), not {len(parts)}; "
            "there are none for seconds or years."
        )
    return " ".join(parts)


def read(cron: object) -> Fields:
    """Refused with `cron_invalid`, naming the field and what is allowed; so is what never happens, as 30 February."""
    return _read(normal(cron))


@lru_cache(maxsize=1024)
def _read(text: str) -> Fields:
    parts = [_field(rule, part) for rule, part in zip(FIELDS, text.split(), strict=True)]
    try:
        sim = CronSim(" ".join(parts), ANY_TIME)
    except CronSimError:  # each field is good: it is the days that no month has
        raise _never(text) from None
    days = {kind: tuple(day.day for day in month if sim.match_day(day)) for kind, month in _months().items()}
    lengths = {length for month in sim.months for length in ((28, 29) if month == 2 else (_length(month),))}
    if not any(numbers for (length, _), numbers in days.items() if length in lengths):
        raise _never(text)
    minutes, hours = sorted(sim.minutes), sorted(sim.hours)
    return Fields(
        text=text,
        minutes=tuple(minutes),
        hours=tuple(hours),
        months=tuple(sorted(sim.months)),
        days_of_month=tuple(sorted(sim.days - {CronSim.LAST})),
        last_day=CronSim.LAST in sim.days,
        days_of_week=tuple(sorted({day % 7 for day in sim.weekdays if isinstance(day, int)})),
        nth_days_of_week=tuple(
            sorted({(day[0] % 7, max(day[1], 0)) for day in sim.weekdays if isinstance(day, tuple)})
        ),
        either=not sim.day_and,
        real_time=parts[0].startswith("*") or parts[1].startswith("*"),
        times=tuple(TIMES_OF_DAY[60 * hour + minute] for hour in hours for minute in minutes),
        days=days,
    )


def _length(month: int) -> int:
    return calendar.monthrange(2001, month)[1]


@cache
def _months() -> dict[tuple[int, int], tuple[date, ...]]:
    """Every kind of month there is, by its length and the day of week of its first, with the days of one such month."""
    kinds = {}
    for year in range(2000, 2028):
        for month in range(1, 13):
            first_weekday, length = calendar.monthrange(year, month)
            kinds[length, first_weekday] = tuple(date(year, month, number) for number in range(1, length + 1))
    return kinds


def _field(rule: FieldRule, text: str) -> str:
    """The field as cronsim takes it; refused when a part of it is not allowed."""
    return ",".join(_term(rule, written) for written in text.split(","))


def _term(rule: FieldRule, written: str) -> str:
    term = _with_numbers(written) if rule is DAY_OF_WEEK else written
    if not re.fullmatch(rule.shape, term, re.IGNORECASE):
        raise _not_allowed(rule, written)
    body, _, step = term.partition("/")
    ends = [_values(rule, end) for end in body.split("-")]
    if not all(ends):
        raise _not_allowed(rule, written)
    if not _values(rule, body):
        raise _invalid(f"{rule.name}: the range {body} does not rise; write it as two, each from low to high.")
    if step and not 1 <= int(step) <= rule.size:
        raise _invalid(f"{rule.name}: the step of {written} is not from 1 to {rule.size}.")
    if len(ends) == 2 and ends[0] == ends[1]:
        return body  # cronsim would read 5-5/2 as 5/2, which goes on to the end
    return term


def _values(rule: FieldRule, term: str) -> set[Any] | None:
    """What a part of a field stands for, by cronsim; None when it does not take it."""
    try:
        sim = CronSim(" ".join(term if rule is one else "*" for one in FIELDS), ANY_TIME)
    except CronSimError:
        return None
    return getattr(sim, rule.attribute)


def _with_numbers(term: str) -> str:
    """`friL` as `5L`, and Sunday at the end of a range as 7: `sat-sun` is the weekend."""
    if match := re.fullmatch(rf"({'|'.join(WEEKDAYS)})L", term, re.IGNORECASE):
        return f"{WEEKDAYS.index(match[1].lower())}L"
    return re.sub(r"^(mon|tue|wed|thu|fri|sat|[1-7])-sun(?=/|$)", r"\1-7", term, flags=re.IGNORECASE)


def _not_allowed(rule: FieldRule, written: str) -> Refusal:
    return _invalid(f"{rule.name}: {written or 'nothing'} is not allowed; allowed are {rule.allowed}.")


def _invalid(message: str) -> Refusal:
    return Refusal("cron_invalid", message, errors={"cron": [message]})


def _never(text: str) -> Refusal:
    return _invalid(f"{text} never happens: no month it names has such a day.")
