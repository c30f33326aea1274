"""How screens write ticks: local times of a schedule's zone, what became of a tick, and a window as an address."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from pipelines import trigger_queries
from pipelines.console import wall_times
from pipelines.models import Tick, Trigger
from pipelines.schedules import Due, Rule, Schedule
from pipelines.states import SkipReason, TickState
from pipelines.zones import zone

register = template.Library()

SKIPPED = {
    SkipReason.PAUSED: "Missed: it was off",
    SkipReason.OVERLAP: "Missed: one was unfinished",
    SkipReason.BLACKOUT: "Missed: blackout",
    SkipReason.CATCH_UP: "Missed: found too late",
}
MISSED = "missed"


@register.filter
def grouped(count: int) -> str:
    """A count with its thousands apart."""
    return f"{count:,}"


@register.simple_tag
def local(moment: datetime | None, timezone: str, now: datetime | None = None) -> SafeString:
    """A time as the clocks of a zone show it, with the day of the week; without its year where that is this one's."""
    if moment is None:
        return mark_safe("")
    shown = moment.astimezone(zone(timezone))
    years = "" if now is not None and now.astimezone(zone(timezone)).year == shown.year else f"{shown.year}-"
    text = f"{shown:%a} {years}{shown:%m-%d %H:%M}"
    exact = f"{shown:%Y-%m-%d %H:%M:%S %Z}, {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', shown.isoformat(), exact, text)


@register.simple_tag
def tick_badge(tick: Tick, status: str = "") -> SafeString:
    """What became of a tick; of one with a run, what became of that."""
    if tick.state == TickState.DISPATCHED:
        state, words = (status, "") if status else ("completed", "Run is gone")
    elif tick.state == TickState.SKIPPED:
        state, words = MISSED, SKIPPED.get(SkipReason(tick.reason), "Missed")
    elif tick.state == TickState.FAILED:
        state, words = "failed", "Not started"
    else:
        state, words = tick.state, ""
    shown = words or state.replace("_", " ").capitalize()
    return format_html('<span class="badge" data-status="{}">{}</span>', state, shown)


@register.simple_tag
def explained(tick: Due | Tick, schedule: Schedule | None = None) -> str:
    """The rule that made a tick, in words; nothing where the clock simply showed the time."""
    if tick.rule in (Rule.FIXED_TIME, Rule.REAL_TIME):
        return ""
    if isinstance(tick, Tick):
        return trigger_queries.says(tick)
    return schedule.explain(tick) if schedule else ""


@register.simple_tag
def planner(trigger: Trigger, start: datetime | None = None, end: datetime | None = None) -> str:
    """The address of the planner of a trigger, open at a window."""
    address = reverse("console:backfill-planner", args=[trigger.id])
    window = {"from": start, "to": end}
    asked = {name: wall_times.write(at, trigger.timezone) for name, at in window.items() if at is not None}
    return f"{address}?{urlencode(asked)}" if asked else address
