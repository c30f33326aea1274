"""Blackouts for tests, and a clock that stands at any instant, past ones too."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

from pipelines.models import Blackout, Environment, Workspace
from pipelines.sql import query
from tests.clock import Clock

EVERY_DAY = [1, 2, 3, 4, 5, 6, 7]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def stand_at(clock: Clock, moment: datetime | str) -> None:
    """The database's clock says this from now on, and goes on from there."""
    wanted = utc(moment) if isinstance(moment, str) else moment
    clock.shift += wanted - clock.now()


def weekly(workspace: Workspace, times: str, zone: str = "UTC", **more: Any) -> Blackout:
    """weekly(workspace, "22:00-06:00", "Europe/Berlin", days=[5]); on every day unless told."""
    start, end = (time.fromisoformat(text) for text in times.split("-"))
    told = {"name": "nights", "days": EVERY_DAY, **more}
    return Blackout.objects.create(
        workspace=workspace, kind="weekly", timezone=zone, from_time=start, to_time=end, **told
    )


def on_dates(workspace: Workspace, *days: str, zone: str = "UTC", **more: Any) -> Blackout:
    told = {"name": "holidays", **more}
    found = [date.fromisoformat(day) for day in days]
    return Blackout.objects.create(workspace=workspace, kind="dates", timezone=zone, dates=found, **told)


def period(workspace: Workspace, start: str | None, end: str | None, **more: Any) -> Blackout:
    told = {"name": "year's end", **more}
    starts, ends = (utc(text) if text else None for text in (start, end))
    return Blackout.objects.create(workspace=workspace, kind="period", starts_at=starts, ends_at=ends, **told)


def holding(
    workspace: Workspace, at: datetime | str, environment: Environment | None = None, trigger: UUID | None = None
) -> str | None:
    """The name that the database's function says."""
    moment = utc(at) if isinstance(at, str) else at
    place = environment.id if environment else None
    sql = "SELECT recourse_blackout(%s::uuid, %s::uuid, %s::uuid, %s::timestamptz)"
    return query(sql, [workspace.id, place, trigger, moment])[0][0]
