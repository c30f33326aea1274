"""Months of days for the planner of backfills: what each day's ticks came to, and which days are chosen. Pure.

A day is one glyph, however many ticks it has: it is called after the worst of what became of them, and its label counts
them all. Days are those of the schedule's zone.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from pipelines.cron import FIRST_DAY, LAST_DAY

FAILED, MISSED, ACTIVE, CANCELLED, COMPLETED, DUE = "failed", "missed", "running", "cancelled", "completed", "due"
WORST_FIRST = (FAILED, MISSED, ACTIVE, CANCELLED, COMPLETED, DUE)
WORDS = {
    FAILED: "failed",
    MISSED: "missed",
    ACTIVE: "unfinished",
    CANCELLED: "cancelled",
    COMPLETED: "completed",
    DUE: "yet to come",
}
SHOWN = 2  # months at once

Counts = Mapping[str, int]  # by what became of them


@dataclass(frozen=True, slots=True)
class Day:
    """One button. `status` is blank where the day has no ticks."""

    date: date
    status: str
    label: str
    is_chosen: bool
    is_today: bool

    @property
    def key(self) -> str:
        return self.date.isoformat()


@dataclass(frozen=True, slots=True)
class Month:
    """Weeks from Monday to Sunday; None where a week reaches into another month."""

    first: date
    weeks: list[list[Day | None]]

    @property
    def title(self) -> str:
        return f"{self.first:%B} {self.first.year}"


def months(last: date, fates: Mapping[date, Counts], chosen: tuple[date, date] | None, today: date) -> list[Month]:
    """The months up to that of `last`, with what became of the ticks of each day."""
    return [
        _month(first, fates, chosen, today)
        for first in (shifted(last, -back) for back in reversed(range(SHOWN)))
        if reaches(first)
    ]


def reaches(day: date) -> bool:
    """Whether schedules do."""
    return FIRST_DAY <= day <= LAST_DAY


def shifted(day: date, months_later: int) -> date:
    """The first of a month before or after that of the day."""
    years, month = divmod(day.year * 12 + day.month - 1 + months_later, 12)
    return date(min(max(years, 1), 9999), month + 1, 1)


def span(last: date) -> tuple[date, date]:
    """The first and last day that `months(last)` shows."""
    first, end = shifted(last, 1 - SHOWN), shifted(last, 1)
    return first, end - timedelta(days=1)


def told(counts: Counts) -> str:
    """What became of ticks, in words: "24 ticks: 2 failed, 22 completed"."""
    total = sum(counts.values())
    if not total:
        return "no ticks"
    parts = [f"{counts[fate]:,} {WORDS[fate]}" for fate in WORST_FIRST if counts.get(fate)]
    if total == 1:
        return next(WORDS[fate] for fate in WORST_FIRST if counts.get(fate))
    return f"{total:,} ticks: {', '.join(parts)}"


def picked(anchor: date | None, day: date) -> tuple[date, date]:
    """The days that picking one chooses: itself, or all between it and the one that was picked before."""
    return (min(anchor, day), max(anchor, day)) if anchor else (day, day)


def _month(first: date, fates: Mapping[date, Counts], chosen: tuple[date, date] | None, today: date) -> Month:
    weeks: list[list[Day | None]] = [
        [_day(date(first.year, first.month, number), fates, chosen, today) if number else None for number in numbers]
        for numbers in calendar.monthcalendar(first.year, first.month)
    ]
    return Month(first, weeks)


def _day(day: date, fates: Mapping[date, Counts], chosen: tuple[date, date] | None, today: date) -> Day:
    counts = fates.get(day, {})
    is_chosen = chosen is not None and chosen[0] <= day <= chosen[1]
    return Day(
        date=day,
        status=next((fate for fate in WORST_FIRST if counts.get(fate)), ""),
        label=f"{day:%A} {day.day} {day:%B} {day.year}: {told(counts)}",
        is_chosen=is_chosen,
        is_today=day == today,
    )
