"""What a schedule ought to do, found the slow way: every minute is walked and looked at. Nothing of ours is used, only
`zoneinfo` on the same data; the parser is its own.

Where an offset has seconds (Monrovia before 1972) steps are shorter, so that every whole minute of the clock is met.
"""

from __future__ import annotations

import calendar
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

MINUTE, ZERO = timedelta(minutes=1), timedelta()
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
BEGIN, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2038, 1, 1, tzinfo=UTC)

# of several rules for one instant, the one that is told
ORDER = ["fixed_time", "real_time", "overlap_first", "overlap_second", "gap_shift", "gap_first_existing"]

Ticks = dict[datetime, str]


def zone_names() -> list[str]:
    listed = resources.files("tzdata").joinpath("zones").read_text().split()
    return sorted(set(listed) - {"Factory"})


@cache
def zone(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo/" + name).open("rb") as file:
        return ZoneInfo.from_file(file)


@cache
def transitions(name: str) -> list[datetime]:
    """When clocks were or will be changed from 1970 to 2037."""
    within, day = zone(name), timedelta(days=1)
    found, at = [], BEGIN
    before = at.astimezone(within).utcoffset()
    while at < END:
        after = (at + day).astimezone(within).utcoffset()
        if after != before:
            low, high = at, at + day
            while high - low > timedelta(seconds=1):
                middle = low + timedelta(seconds=(high - low).seconds // 2 or 12 * 3600)
                low, high = (middle, high) if middle.astimezone(within).utcoffset() == before else (low, middle)
            found.append(high)
        at, before = at + day, after
    return found


@cache
def margin(name: str) -> timedelta:
    """So much around a window is walked too, in whole hours, that what clocks show twice or leave out is seen whole."""
    within, second = zone(name), timedelta(seconds=1)
    moved = [
        abs((at.astimezone(within).utcoffset() or ZERO) - ((at - second).astimezone(within).utcoffset() or ZERO))
        for at in transitions(name)
    ]
    return timedelta(hours=max(moved, default=ZERO) // timedelta(hours=1) + 2)


@dataclass(frozen=True)
class Expression:
    minutes: set[int]
    hours: set[int]
    days: set[int]
    last: bool
    months: set[int]
    weekdays: set[int]
    nth: set[tuple[int, int]]  # 9 is the last
    both: bool  # day of month and day of week must hold
    real_time: bool

    @classmethod
    def read(cls, text: str) -> Expression:
        minute, hour, day, month, weekday = text.lower().split()
        days = [part for part in day.split(",") if part != "l"]
        weekdays, nth = [], set()
        for part in weekday.split(","):
            if "#" in part:
                name, which = part.split("#")
                nth.add((_number(name, DAYS, 0) % 7, int(which)))
            elif part.endswith("l"):
                nth.add((_number(part[:-1], DAYS, 0) % 7, 9))
            else:
                weekdays.append(part)
        return cls(
            _numbers(minute.split(","), 0, 59),
            _numbers(hour.split(","), 0, 23),
            _numbers(days, 1, 31),
            len(days) < len(day.split(",")),
            _numbers(month.split(","), 1, 12, MONTHS, 1),
            {value % 7 for value in _numbers(weekdays, 0, 7, DAYS, 0)},
            nth,
            day[0] == "*" or weekday[0] == "*",
            minute[0] == "*" or hour[0] == "*",
        )

    def on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        length = calendar.monthrange(day.year, day.month)[1]
        weekday = day.isoweekday() % 7
        by_month = day.day in self.days or (self.last and day.day == length)
        by_week = (
            weekday in self.weekdays
            or (weekday, (day.day + 6) // 7) in self.nth
            or ((weekday, 9) in self.nth and day.day + 7 > length)
        )
        return (by_month and by_week) if self.both else (by_month or by_week)

    def names(self, local: datetime) -> bool:
        return local.second == 0 and local.minute in self.minutes and local.hour in self.hours and self.on(local.date())

    def ever(self) -> bool:
        """28 years have every month beginning on every day of the week, leap years too."""
        start = date(2000, 1, 1)
        return any(self.on(start + timedelta(days=index)) for index in range(28 * 366))


def _numbers(parts: list[str], low: int, high: int, names: list[str] | None = None, first: int = 0) -> set[int]:
    found: set[int] = set()
    for part in parts:
        body, *steps = part.split("/")
        step = int(steps[0]) if steps else 1
        if body == "*":
            start, end = low, high
        elif "-" in body:
            start, end = (_number(value, names, first) for value in body.split("-"))
            if body.endswith("-sun") and start > 0:
                end = 7
        else:
            start = _number(body, names, first)
            end = high if steps else start
        found |= set(range(start, end + 1, step))
    return found


def _number(value: str, names: list[str] | None, first: int) -> int:
    return names.index(value) + first if names and value in names else int(value)


def walk(name: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Every instant at which a minute begins somewhere, with what the clocks of the zone show."""
    within = zone(name)
    probes = [start + timedelta(hours=6 * index) for index in range((end - start) // timedelta(hours=6) + 1)]
    seconds = [
        int(offset.total_seconds()) for at in probes if (offset := at.astimezone(within).utcoffset()) is not None
    ]
    step = timedelta(seconds=math.gcd(60, *seconds))
    at = start
    while at <= end:
        yield at, at.astimezone(within)
        at += step


def ticks(text: str, name: str, gap: str, overlap: str, start: datetime, end: datetime) -> Ticks:
    """Every tick of the window, both ends in it, with its rule. `start` and `end` are whole minutes of UTC."""
    expression = Expression.read(text)
    shown: dict[datetime, list[datetime]] = defaultdict(list)
    made: list[tuple[datetime, str]] = []
    earlier: tuple[datetime, datetime] | None = None
    offset = None
    for at, local in walk(name, start - margin(name), end + margin(name)):
        if expression.names(local):
            shown[local.replace(tzinfo=None, fold=0)].append(at)
        if local.utcoffset() != offset:
            if earlier and not expression.real_time:
                made += _left_out(expression, gap, earlier, (at, local))
            offset = local.utcoffset()
        earlier = (at, local)
    for instants in shown.values():
        if expression.real_time:
            made += [(at, "real_time") for at in instants]
        elif len(instants) == 1:
            made.append((instants[0], "fixed_time"))
        else:
            if overlap in ("first", "both"):
                made.append((instants[0], "overlap_first"))
            if overlap in ("second", "both"):
                made.append((instants[1], "overlap_second"))
    found: Ticks = {}
    for at, rule in made:
        if start <= at <= end:
            found[at] = min(rule, found.get(at, rule), key=ORDER.index)
    return dict(sorted(found.items()))


def _left_out(
    expression: Expression, gap: str, before: tuple[datetime, datetime], after: tuple[datetime, datetime]
) -> Iterator[tuple[datetime, str]]:
    """Clocks were changed between one minute walked and the next: what becomes of the times they left out, if any."""
    shown, shows = (local.replace(tzinfo=None, fold=0) for _, local in (before, after))
    local = shown + (after[0] - before[0])
    local += timedelta(seconds=-local.second % 60)
    while local < shows:
        if expression.names(local) and gap == "first_existing":
            yield after[0], "gap_first_existing"
        if expression.names(local) and gap == "shift":
            yield before[0] + (local - shown), "gap_shift"
        local += MINUTE


# --- what is asked of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One random expression in one zone, with the windows in which it is looked at."""

    label: str
    cron: str
    timezone: str
    gap: str
    overlap: str
    windows: list[tuple[datetime, datetime]]


def case(seed: str, timezone: str) -> Case:
    """The same seed makes the same case."""
    dice = random.Random(seed)
    near = transitions(timezone)
    chosen = dice.sample(near, min(3, len(near)))
    within, days = zone(timezone), timedelta(days=3)
    windows = [(at - days, at + days) for at in (at.replace(second=0) for at in chosen)]
    while len(windows) < 4:  # a plain week; more of them where clocks are hardly ever changed
        start = BEGIN + dice.randrange(68 * 52) * timedelta(weeks=1)
        if not any(start - days <= at <= start + 3 * days for at in near):
            windows.append((start, start + timedelta(days=7)))
    return Case(
        seed,
        possible(dice, dice.choice([at.astimezone(within).hour for at in chosen] or [2])),
        timezone,
        dice.choice(["first_existing", "shift", "skip"]),
        dice.choice(["first", "second", "both"]),
        windows,
    )


def possible(dice: random.Random, hour: int) -> str:
    while not Expression.read(text := expression(dice, hour)).ever():
        pass
    return text


def expression(dice: random.Random, hour: int = 2) -> str:
    """Any that may be written; more often about this hour, and often on every day."""
    about = range(max(hour - 2, 0), min(hour + 2, 24))
    return " ".join(
        (
            _part(dice, 0, 59, star=0.15),
            _part(dice, 0, 23, star=0.15) if dice.random() < 0.4 else _part(dice, about[0], about[-1], star=0.05),
            "*" if dice.random() < 0.55 else _part(dice, 1, 31, star=0.2, extra=lambda: "L"),
            "*" if dice.random() < 0.75 else _part(dice, 1, 12, star=0.2, names=MONTHS),
            "*" if dice.random() < 0.55 else _part(dice, 0, 7, star=0.2, names=DAYS, extra=lambda: _nth(dice)),
        )
    )


def _nth(dice: random.Random) -> str:
    day = _named(dice, dice.randint(0, 7), DAYS)
    return dice.choice([f"{day}L", f"{day}#{dice.randint(1, 5)}"])


def _part(
    dice: random.Random,
    low: int,
    high: int,
    *,
    star: float,
    names: list[str] | None = None,
    extra: Callable[[], str] | None = None,
) -> str:
    if dice.random() < star:
        return dice.choice(["*", f"*/{dice.randint(1, high - low if names is DAYS else high - low + 1)}"])
    longest = 7 if names is DAYS else high - low + 1
    parts = []
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        if extra and dice.random() < 0.25:
            parts.append(extra())
            continue
        one, other = sorted((dice.randint(low, high), dice.randint(low, high)))
        start, end = _named(dice, one, names), _named(dice, other, names)
        parts.append(
            dice.choice(
                [
                    start,
                    start,
                    f"{start}-{end}",
                    f"{start}-{end}/{dice.randint(1, longest)}",
                    f"{start}/{dice.randint(1, longest)}",
                ]
            )
        )
    return ",".join(parts)


def _named(dice: random.Random, value: int, names: list[str] | None) -> str:
    """As a number or by name, in any case; 7 has the name of Sunday too."""
    if names is None or dice.random() < 0.5:
        return str(value)
    name = names[value - 1] if names is MONTHS else names[value % 7]
    return dice.choice([name, name.upper(), name.title()])
