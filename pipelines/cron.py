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

from cronsim import CronSim, CronSimError

from pipelines.errors import Refusal

LONGEST = 200  # characters
FIRST_DAY, LAST_DAY = date(1800, 1, 1), date(2200, 12, 31)

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One of the five: its place, its name, what may stand in it."""

    name: str
    low: int
    high: int
    size: int  # how many different values there are: no step is longer
    also: str = ""

    @property
    def allowed(self) -> str:
        return f"numbers from {self.low} to {self.high}{self.also}, lists (1,3), ranges (1-3), steps (*/2), or *"


FIELDS = (
    FieldRule("minute", 0, 59, 60),
    FieldRule("hour", 0, 23, 24),
    FieldRule("day of month", 1, 31, 31, ", L for the last day"),
    FieldRule("month", 1, 12, 12, ", names (jan)"),
    FieldRule("day of week", 0, 7, 7, ", names (mon), the last one of the month (friL), the second one (mon#2)"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """An expression that was read: the days that it means, and the times of day."""

    text: str
    times: tuple[timedelta, ...]  # since midnight on the clock, rising
    months: frozenset[int]
    days: Mapping[tuple[int, int], tuple[int, ...]]  # by the month's length and the day of week of its first
    real_time: bool  # every instant that matches, instead of fixed times

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
        sim = CronSim(" ".join(parts), datetime(2000, 1, 1))
    except CronSimError:  # each field is good: it is the days that no month has
        raise _never(text) from None
    days = {kind: tuple(day.day for day in month if sim.match_day(day)) for kind, month in _months().items()}
    fields = Fields(
        text=text,
        times=tuple(
            timedelta(hours=hour, minutes=minute) for hour in sorted(sim.hours) for minute in sorted(sim.minutes)
        ),
        months=frozenset(sim.months),
        days=days,
        real_time=parts[0].startswith("*") or parts[1].startswith("*"),
    )
    lengths = {length for month in fields.months for length in ((28, 29) if month == 2 else (_length(month),))}
    if not any(numbers for (length, _), numbers in days.items() if length in lengths):
        raise _never(text)
    return fields


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
    return ",".join(_term(rule, term) for term in text.split(","))


def _term(rule: FieldRule, written: str) -> str:
    term = written
    if rule is FIELDS[4]:
        term = _weekday_term(term)
    place = FIELDS.index(rule)
    try:
        if term.upper() == "LW" or ("/" in term and "L" in term.upper().split("/")[0].replace("JUL", "")):
            raise CronSimError(written)
        CronSim(" ".join(["*"] * place + [term] + ["*"] * (len(FIELDS) - 1 - place)), datetime(2000, 1, 1))
    except CronSimError:
        raise _invalid(_why(rule, written)) from None
    _, _, step = term.partition("/")
    if step and int(step) > rule.size:
        raise _invalid(f"{rule.name}: the step of {written} is too long: from 1 to {rule.size}.")
    return term


def _weekday_term(term: str) -> str:
    """`friL` as `5L`, and Sunday at the end of a range as 7: `sat-sun` is the weekend."""
    if match := re.fullmatch(r"([a-z]{3})L", term, re.IGNORECASE):
        name = match[1].lower()
        return f"{WEEKDAYS.index(name)}L" if name in WEEKDAYS else term
    return re.sub(r"^(mon|tue|wed|thu|fri|sat|[1-6])-sun(?=/|$)", r"\1-7", term, flags=re.IGNORECASE)


def _why(rule: FieldRule, term: str) -> str:
    if re.fullmatch(r"\w+-\w+(/\d+)?", term) and not any(_is_bad(rule, end) for end in re.split(r"[-/]", term)[:2]):
        return f"{rule.name}: the range {term} does not rise; write it as two, each from low to high."
    return f"{rule.name}: {term or 'nothing'} is not allowed; allowed are {rule.allowed}."


def _is_bad(rule: FieldRule, value: str) -> bool:
    place = FIELDS.index(rule)
    try:
        CronSim(" ".join(["*"] * place + [value] + ["*"] * (len(FIELDS) - 1 - place)), datetime(2000, 1, 1))
    except CronSimError:
        return True
    return False


def _invalid(message: str) -> Refusal:
    return Refusal("cron_invalid", message, errors={"cron": [message]})


def _never(text: str) -> Refusal:
    return _invalid(f"{text} never happens: no month it names has such a day.")
