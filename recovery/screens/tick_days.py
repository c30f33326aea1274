"""What became of a trigger's ticks, counted by local day: one statement and the schedule's own arithmetic, however many
ticks a day has."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, datetime, timedelta

from pipelines import schedule_days
from pipelines.models import Trigger
from pipelines.schedules import Schedule
from pipelines.sql import planned
from recovery.screens.calendars import ACTIVE, COMPLETED, DUE, FAILED, MISSED

DAY = timedelta(days=1)


def fates(trigger: Trigger, schedule: Schedule, first: date, last: date, now: datetime) -> dict[date, dict[str, int]]:
    """By day what became of its ticks. An instant without a row is missed once it is past (contract §4)."""
    days = [first + index * DAY for index in range((last - first).days + 1)]
    edges = [schedule_days.begins(schedule.timezone, day) for day in (*days, last + DAY)]
    found: dict[date, dict[str, int]] = defaultdict(dict)
    for index, fate, count in planned(
        f"""
        SELECT width_bucket(t.at, %(edges)s::timestamptz[]), CASE
            WHEN t.state = 'failed' THEN '{FAILED}' WHEN t.state = 'skipped' THEN '{MISSED}'
            WHEN t.state = 'due' THEN '{ACTIVE}'
            WHEN r.status IS NULL THEN '{COMPLETED}' -- gone by retention, which only takes what has ended
            WHEN r.status IN ('failed', 'cancelled', 'completed') THEN r.status ELSE '{ACTIVE}' END AS fate, count(*)
        FROM pipelines_tick t LEFT JOIN pipelines_run r ON r.id = t.run
        WHERE t.trigger_id = %(trigger)s AND t.at >= %(first)s AND t.at < %(last)s
        GROUP BY 1, 2
        """,  # noqa: S608 - our own words
        {"edges": edges, "trigger": trigger.id, "first": edges[0], "last": edges[-1]},
    ):
        found[days[index - 1]][fate] = count
    for day, expected in schedule_days.counts(schedule, first, last).items():
        past = _past(schedule, day, expected, edges[(day - first).days + 1], now)
        known = sum(found[day].values())
        if without_row := max(past - known, 0):
            found[day][MISSED] = found[day].get(MISSED, 0) + without_row
        if ahead := expected - max(past, known):
            found[day][DUE] = max(ahead, 0)
    return {day: counts for day, counts in found.items() if any(counts.values())}


def _past(schedule: Schedule, day: date, expected: int, end: datetime, now: datetime) -> int:
    """How many ticks of the day are past."""
    if end <= now:
        return expected
    begin = schedule_days.begins(schedule.timezone, day)
    return sum(1 for _ in schedule.between(begin, now)) if begin <= now else 0
