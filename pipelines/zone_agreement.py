"""Whether PostgreSQL's own data of time zones says the same as the package `tzdata`, for the zones that are in use.

Triggers are due by the package, blackouts hold by the database. Where the two differ a blackout may begin an hour
before or after what a schedule's preview shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from pipelines import zones
from pipelines.sql import database_now, query

AHEAD_DAYS = 400
MOST = 200  # zones that are compared


def disagreements() -> list[str]:
    """A sentence for each zone in use of which the two say otherwise in the 400 days to come, in order of their names;
    `MOST` are looked at."""
    now = database_now()
    return [sentence for name in _in_use() if (sentence := _disagreement(name, now))]


def _in_use() -> Iterator[str]:
    rows = query(
        "SELECT timezone FROM pipelines_trigger WHERE enabled UNION"
        " SELECT timezone FROM pipelines_blackout WHERE enabled AND kind <> 'period' ORDER BY timezone LIMIT %s",
        [MOST],
    )
    return (name for (name,) in rows)


def _disagreement(name: str, now: datetime) -> str:
    if not query("SELECT recourse_knows_zone(%s)", [name])[0][0]:
        return f"the database does not know the time zone {name}: a blackout of it holds until it is changed"
    if name not in zones.names():
        return f"tzdata does not know the time zone {name}: a trigger of it is not due any more"
    within = zones.zone(name)
    instants = [now + timedelta(days=day) for day in range(AHEAD_DAYS)]
    rows = query(
        "SELECT at, extract(epoch FROM (at AT TIME ZONE %s) - (at AT TIME ZONE 'UTC'))::int"
        " FROM unnest(%s::timestamptz[]) AS at ORDER BY at",
        [name, instants],
    )
    for at, seconds in rows:
        if _offset(within, at) != seconds:
            return (
                f"the database and tzdata tell {name} apart from {at.astimezone(UTC):%Y-%m-%d} on: blackouts and "
                "schedules of it do not go by the same clock"
            )
    return ""


def _offset(within: ZoneInfo, at: datetime) -> int:
    return int((at.astimezone(within).utcoffset() or timedelta()).total_seconds())
