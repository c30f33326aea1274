"""Screens of blackouts and the freeze: which there are, which hold now and until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import blackout_rows, blackouts
from pipelines.access import RELEASE
from pipelines.console.offers import missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.models import Blackout, BlackoutKind
from pipelines.paging import page_of, read_cut
from pipelines.sql import database_now

DAYS = ("", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST = 6  # dates that are named
TIME = "%Y-%m-%d %H:%M"


@dataclass(frozen=True, slots=True)
class Line:
    """A blackout as a line; `holds` now, or `is_over` for good."""

    blackout: Blackout
    when: str
    holds: bool
    is_over: bool = False

    @property
    def state(self) -> tuple[str, str]:
        if not self.blackout.enabled:
            return "paused", "Off"
        if self.holds:
            return "blocked", "Holds now"
        return ("superseded", "Over") if self.is_over else ("active", "On")

    @property
    def where(self) -> str:
        one = self.blackout
        if one.trigger is not None:
            return f"trigger {one.trigger.name}"
        return one.environment.slug if one.environment else "the whole workspace"


@require_safe
@screen
def blackout_list(request: ScreenRequest) -> HttpResponse:
    """The blackouts of the workspace, newest first; freezes that hold stand above them."""
    actor = request.visit.actor
    page = page_of(blackout_rows.rows(actor.workspace_id), read_cut(request.GET))
    context = {
        "page": page,
        "lines": _lines(page.rows),
        "freezes": [Line(row, when(row), True) for row in blackout_rows.freezes(actor.workspace_id)],
        "refusal": "" if actor.may(RELEASE) else missing_right(actor, RELEASE, "make blackouts, or declare a freeze"),
        "tab": "blackouts",
    }
    return show(request, "triggers/blackouts.html", context)


def _lines(rows: Sequence[Blackout]) -> list[Line]:
    """With whether each holds now, by the database's own predicate, in one statement."""
    holding = blackouts.holding([one.id for one in rows])
    now = database_now()
    return [Line(one, when(one), one.id in holding, one.ends_at is not None and one.ends_at <= now) for one in rows]


def when(blackout: Blackout) -> str:
    """When it holds, in words: "Friday to Sunday, 22:00 to 06:00 the next day, Europe/Berlin time"."""
    zone = blackout.timezone if blackout.timezone == "UTC" else f"{blackout.timezone} time"
    if blackout.kind == BlackoutKind.WEEKLY and blackout.from_time and blackout.to_time:
        start, end = f"{blackout.from_time:%H:%M}", f"{blackout.to_time:%H:%M}"
        over = " the next day" if blackout.to_time <= blackout.from_time else ""
        return f"{_days(blackout.days)}, {start} to {end}{over}, {zone}"
    if blackout.kind == BlackoutKind.DATES:
        dates = sorted(blackout.dates)
        more = f" and {len(dates) - FIRST} more" if len(dates) > FIRST else ""
        return f"{', '.join(f'{one:%Y-%m-%d}' for one in dates[:FIRST])}{more}, whole days, {zone}"
    start = f"from {blackout.starts_at:{TIME}} UTC " if blackout.starts_at else ""
    end = f"{'to' if start else 'until'} {blackout.ends_at:{TIME}} UTC" if blackout.ends_at else "until it is lifted"
    return start + end


def _days(numbers: Sequence[int]) -> str:
    """Days in a row as one: "Monday to Friday, Sunday"."""
    if len(set(numbers)) == len(DAYS) - 1:
        return "Every day"
    runs = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    told = []
    for _, run in runs:
        days = [number for _, number in run]
        first, last = DAYS[days[0]], DAYS[days[-1]]
        told.append(first if first == last else f"{first} to {last}" if len(days) > 2 else f"{first}, {last}")
    return ", ".join(told)
