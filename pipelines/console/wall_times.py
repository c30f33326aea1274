"""Times as people write them on screens: a day, what the clocks of a zone show, or an instant with its offset. Pure."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from pipelines.cron import FIRST_DAY, LAST_DAY
from pipelines.schedule_days import begins, of_wall
from pipelines.zones import zone

DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
WALL = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2})?", re.ASCII)


def read(text: str, timezone: str) -> datetime:
    """The instant in UTC; a day means its first one. ValueError for what cannot be meant."""
    if DAY.fullmatch(text):
        return within(begins(timezone, date.fromisoformat(text)))
    if WALL.fullmatch(text):
        return within(of_wall(timezone, datetime.fromisoformat(text)))
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("a time without its offset")
    try:
        return within(found.astimezone(UTC))
    except OverflowError:
        raise ValueError("out of range") from None


def write(moment: datetime, timezone: str) -> str:
    """An instant as `read` takes it: what the clocks show, with the offset where that alone names another instant."""
    shown = moment.astimezone(zone(timezone))
    plain = shown.replace(tzinfo=None, second=0, microsecond=0)
    if of_wall(timezone, plain) == moment:
        return f"{plain:%Y-%m-%d %H:%M}"
    return shown.isoformat()


def ways(timezone: str) -> str:
    """What may be written."""
    return (
        f"a day (2026-05-20), a time of {timezone} (2026-05-20 08:00), "
        "or an instant with its offset (2026-05-20T08:00:00+00:00)"
    )


def within(moment: datetime) -> datetime:
    """The moment, when schedules reach it."""
    if not FIRST_DAY.year <= moment.year <= LAST_DAY.year:
        raise ValueError("out of range")
    return moment
