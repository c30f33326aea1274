"""A cron expression in plain words, and the ways to say a time on the clock. Pure; said from what an expression
means, not from how it is written: `mon-fri` and `1,2,3,4,5` read alike, and every expression has its sentence."""

from __future__ import annotations

import calendar
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from pipelines.cron import Fields

FEW = 6  # so many times of day are listed
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
PLACES = ("last", "first", "second", "third", "fourth", "fifth")


def sentence(fields: Fields) -> str:
    """When it is due: "At 16:15 on Monday to Friday", without zone and full stop."""
    return "".join((_times(fields), _days(fields), _months(fields)))


def listed(parts: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def clock(since: timedelta) -> str:
    """08:30"""
    minutes = since // timedelta(minutes=1)
    return f"{minutes // 60:02}:{minutes % 60:02}"


def at_clock(local: datetime) -> str:
    """02:30; with seconds only where there are any."""
    return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"


def with_zone(local: datetime) -> str:
    """02:30 CEST; where a zone has no letters, how far it is from UTC: 02:30 UTC+03:00."""
    letters, distance = local.tzname() or "", f"{local:%z}"
    return f"{at_clock(local)} {letters if letters.isalpha() else f'UTC{distance[:3]}:{distance[3:5]}'}"


def in_utc(local: datetime, at: datetime) -> str:
    """What follows it: `, 22:30 UTC on 2026-03-29`; the day where it is another one, nothing where all is UTC."""
    if local.tzname() == "UTC":
        return ""
    return f", {at_clock(at)} UTC" + ("" if at.date() == local.date() else f" on {at:%Y-%m-%d}")


def _times(fields: Fields) -> str:
    minutes, hours = fields.minutes, fields.hours
    first, last = clock(fields.times[0]), clock(fields.times[-1])
    within = "" if len(hours) == 24 else f" from {first} to {last}" if _in_a_row(hours) else f" of {_hours(hours)}"
    if len(minutes) == 60:
        return f"Every minute{within}"
    if len(fields.times) <= FEW and len(hours) < 24:
        return f"At {listed([clock(since) for since in fields.times])}"
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 0
    if step and 60 % step == 0 and minutes == tuple(range(0, 60, step)):
        return f"Every {step} minutes{within}"
    if len(minutes) == 1 and len(hours) < 24 and (apart := _step(hours)):
        return f"Every {f'{apart} hours' if apart > 1 else 'hour'} from {first} to {last}"
    told = f"{'minute' if len(minutes) == 1 else 'minutes'} {listed(_runs(minutes, str))}"
    if apart := _long_step(minutes):
        told = f"every {_ordinal(apart)} minute from {minutes[0]} to {minutes[-1]}"
    return f"At {told} of {'every hour' if len(hours) == 24 else _hours(hours)}"


def _hours(hours: Sequence[int]) -> str:
    if apart := _long_step(hours):
        return f"every {_ordinal(apart)} hour from {hours[0]} to {hours[-1]}"
    return f"{'hour' if len(hours) == 1 else 'hours'} {listed(_runs(hours, str))}"


def _days(fields: Fields) -> str:
    of_month, of_week = _days_of_month(fields), _days_of_week(fields)
    if fields.either:
        return f" on {of_month or 'every day'} or on {of_week or 'every day of the week'}"
    if of_month and of_week:
        return f" on {of_week}, but only on {of_month}"
    if of_month or of_week:
        return f" on {of_month or of_week}"
    return " every day" if len(fields.hours) < 24 else ""


def _days_of_month(fields: Fields) -> str:
    numbers = fields.days_of_month
    if len(numbers) == 31:
        return ""
    if apart := _long_step(numbers):
        parts = [f"every {_ordinal(apart)} day from {numbers[0]} to {numbers[-1]}"]
    else:
        parts = [f"{'day' if len(numbers) == 1 else 'days'} {listed(_runs(numbers, str))}"] if numbers else []
    if fields.last_day:
        parts.append("the last day")
    return f"{listed(parts)} of the month"


def _days_of_week(fields: Fields) -> str:
    if len(fields.days_of_week) == 7:
        return ""
    monday_first = sorted((day - 1) % 7 for day in fields.days_of_week)
    parts = _runs(monday_first, lambda day: WEEKDAYS[(day + 1) % 7])
    for day, which in sorted(fields.nth_days_of_week, key=lambda pair: (pair[1] or len(PLACES), pair[0])):
        parts.append(f"the {PLACES[which]} {WEEKDAYS[day]} of the month")
    return listed(parts)


def _months(fields: Fields) -> str:
    if len(fields.months) == 12:
        return ""
    return f" in {listed(_runs(fields.months, calendar.month_name.__getitem__))}"


def _runs(numbers: Sequence[int], say: Callable[[int], str]) -> list[str]:
    """Three and more in a row as one part: 1 to 5, 7, 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        part
        for run in runs
        for part in ([f"{say(run[0])} to {say(run[-1])}"] if len(run) > 2 else [say(number) for number in run])
    ]


def _in_a_row(numbers: Sequence[int]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def _step(numbers: Sequence[int]) -> int:
    """How far apart they are, all alike; 0 for fewer than three, or when they are not."""
    apart = {high - low for low, high in pairwise(numbers)}
    return apart.pop() if len(numbers) > 2 and len(apart) == 1 else 0


def _long_step(numbers: Sequence[int]) -> int:
    """The same for rows that are shorter said by it than as a list."""
    apart = _step(numbers)
    return apart if apart > 1 and len(numbers) > 4 else 0


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
