"""What the planner's address says: window, choices, the month that is shown. The address is the state; no clock here.

A window may be told as days, as times of the zone, or as instants with their offset; days are whole. What cannot be
meant is kept as it was typed, with what is wrong about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from urllib.parse import urlencode

from pipelines import zones
from pipelines.console import wall_times
from pipelines.errors import Refusal
from pipelines.models import Trigger
from pipelines.schedule_days import begins
from pipelines.schedules import Schedule
from recovery.backfill_world import MOST_CONCURRENT
from recovery.models import BackfillOrder, Reprocess
from recovery.screens import calendars

LONGEST = 200  # characters of any of them
USUAL = {"max_concurrent": "1", "order": str(BackfillOrder.OLDEST), "reprocess": str(Reprocess.NONE)}
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
OVERRIDES = ("cron", "timezone", "gap", "overlap")
FIELDS = ("from", "to", *OVERRIDES, "max_concurrent", "order", "reprocess", "month", "anchor")


@dataclass(frozen=True, slots=True)
class Planner:
    """`given` is what was typed, `errors` what is wrong with it. Without `start` and `end` no window is chosen yet."""

    given: Mapping[str, str]
    schedule: Schedule
    start: datetime | None = None
    end: datetime | None = None
    max_concurrent: int = 1
    order: str = BackfillOrder.OLDEST
    reprocess: str = Reprocess.NONE
    month: date = date.min
    anchor: date | None = None
    is_clipped: bool = False  # its last day is today: the window ends now
    errors: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return self.start is not None and self.end is not None and not self.errors

    @property
    def chosen(self) -> tuple[date, date] | None:
        """The first and last day of the window."""
        if self.start is None or self.end is None or self.end < self.start:
            return None
        zone = zones.zone(self.schedule.timezone)
        return self.start.astimezone(zone).date(), self.end.astimezone(zone).date()

    @property
    def overridden(self) -> list[str]:
        return [name for name in OVERRIDES if self.given.get(name)]

    def address(self, **changed: str) -> str:
        """The query that says the same, with some of it otherwise; what is left out goes without saying."""
        told = {name: self.given.get(name, "") for name in FIELDS} | changed
        return urlencode({name: value for name, value in told.items() if value and value != USUAL.get(name)})

    def carried(self) -> dict[str, str]:
        """The same for a form: a day that is not over yet ends where it was looked at."""
        told = {name: value for name, value in self.given.items() if value and name not in ("month", "anchor")}
        if self.end is not None and self.is_clipped:
            told["to"] = wall_times.write(self.end, self.schedule.timezone)
        return told

    def picking(self, day: date) -> Planner:
        """The state after a day of the calendar was picked: the first one begins a window, the second one ends it."""
        first, last = calendars.picked(self.anchor, day)
        told = {**self.given, "from": first.isoformat(), "to": last.isoformat()}
        told["anchor"] = "" if self.anchor else day.isoformat()
        return replace(self, given=told)


def read(
    params: Mapping[str, str], trigger: Trigger, now: datetime, missed: tuple[datetime, datetime] | None
) -> Planner:
    """The state of an address; one that names no window is open at what the trigger missed."""
    given = {name: " ".join(str(params.get(name, "")).split())[:LONGEST].replace("\0", "") for name in FIELDS}
    errors: dict[str, list[str]] = {}
    schedule = _schedule(given, trigger, errors)
    if not given["from"] and not given["to"] and missed:
        given["from"], given["to"] = (wall_times.write(at, schedule.timezone) for at in missed)
    start = _instant(given, "from", schedule.timezone, now, errors)
    end = _instant(given, "to", schedule.timezone, now, errors)
    zone = zones.zone(schedule.timezone)
    return Planner(
        given=given,
        schedule=schedule,
        start=start,
        end=end,
        max_concurrent=_whole(given, "max_concurrent", errors),
        order=_choice(given, "order", BackfillOrder.values, BackfillOrder.OLDEST, errors),
        reprocess=_choice(given, "reprocess", Reprocess.values, Reprocess.NONE, errors),
        month=_month(given) or calendars.shifted((end or now).astimezone(zone).date(), 0),
        anchor=day_of(given["anchor"]),
        is_clipped=bool(wall_times.DAY.fullmatch(given["to"])) and end is not None and now - end < MINUTE,
        errors=errors,
    )


def day_of(text: str) -> date | None:
    """A day that was picked; None for what is none."""
    try:
        found = date.fromisoformat(text) if wall_times.DAY.fullmatch(text) else None
    except ValueError:
        return None
    return found if found and calendars.reaches(found) else None


def _schedule(given: Mapping[str, str], trigger: Trigger, errors: dict[str, list[str]]) -> Schedule:
    told = {name: given[name] or getattr(trigger, name) for name in OVERRIDES}
    try:
        return Schedule.read(**told)
    except Refusal as refusal:
        errors.update({name: list(said) for name, said in (refusal.errors or {}).items()})
        return Schedule.of(trigger)


def _instant(
    given: Mapping[str, str], name: str, timezone: str, now: datetime, errors: dict[str, list[str]]
) -> datetime | None:
    text = given[name]
    if not text:
        return None
    try:
        if wall_times.DAY.fullmatch(text):
            return _whole_day(date.fromisoformat(text), name, timezone, now)
        return wall_times.read(text, timezone)
    except (ValueError, OverflowError):
        errors[name] = [wall_times.ways(timezone)]
        return None


def _whole_day(day: date, name: str, timezone: str, now: datetime) -> datetime:
    """The day's first instant or its last; today's last is the present, as far as it has come."""
    if name == "from":
        return wall_times.within(begins(timezone, day))
    last = wall_times.within(begins(timezone, day + timedelta(days=1)) - SECOND)
    return now.replace(second=0, microsecond=0) if begins(timezone, day) <= now < last else last


def _whole(given: Mapping[str, str], name: str, errors: dict[str, list[str]]) -> int:
    text = given[name] or "1"
    if text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_CONCURRENT:
        return int(text)
    errors[name] = [f"a whole number from 1 to {MOST_CONCURRENT:,}"]
    return 1


def _choice(given: Mapping[str, str], name: str, choices: list[str], default: str, errors: dict[str, list[str]]) -> str:
    text = given[name] or default
    if text not in choices:
        errors[name] = [f"one of {', '.join(choices)}"]
        return default
    return text


def _month(given: Mapping[str, str]) -> date | None:
    return day_of(f"{given['month']}-01") if given["month"] else None
