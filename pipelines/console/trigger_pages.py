"""Screens of triggers: all of them with what comes, what came and what was missed; one with its ledger and history.

What is changed here goes through `pipelines.triggers`, which checks the right again and writes the audit event.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import releases, trigger_queries, unserved
from pipelines.access import RELEASE, Actor
from pipelines.console.offers import Offer, missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.console.trigger_acts import WORDS
from pipelines.errors import Refusal
from pipelines.models import Environment, Pipeline, Trigger, TriggerVersion
from pipelines.paging import read_cut
from pipelines.schedules import Due, Schedule
from pipelines.states import SkipReason, TickState
from pipelines.trigger_queries import BY_INSTANT, Standing

VERSIONS = 20  # of its history
CHOICES = 20  # of a filter
LONGEST_TOLD = 60  # of a setting in a line of history
BEFORE_IT = 20  # of what is the same before the first difference of two long texts
# as its facts call them; any other is called as on the wire
CALLED = {
    "timezone": "Time zone",
    "gap": "A time left out",
    "overlap": "A time twice",
    "overlap_policy": "While one is unfinished, a tick",
    "catch_up": "Late ticks",
    "catch_up_limit": "At most so many late ticks",
    "start_within": "Late after",
    "spread": "Spread over",
    "deadline_seconds": "Deadline of its runs",
    "starts_at": "No ticks before",
    "ends_at": "No ticks after",
}
SECONDS = ("start_within", "spread", "deadline_seconds")


@dataclass(frozen=True, slots=True)
class Line:
    """A trigger as a line of the list."""

    trigger: Trigger
    standing: Standing
    schedule: Schedule
    sentence: str

    @property
    def state(self) -> tuple[str, str]:
        return state(self.trigger, self.standing)

    @property
    def when(self) -> str:
        """The sentence without its zone, which a list says beside it, so that no cut takes it away."""
        return self.schedule.when()

    @property
    def next(self) -> Due | None:
        return next(iter(self.standing.next_ticks), None) if self.trigger.enabled else None


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a trigger's history; `told` says what it set otherwise than the one before."""

    version: TriggerVersion
    told: list[tuple[str, str, str]]  # (setting as the page calls it, before, after)


@require_safe
@screen
def trigger_list(request: ScreenRequest) -> HttpResponse:
    """The triggers of the workspace, newest first, narrowed by the address."""
    actor = request.visit.actor
    params = request.GET.copy()
    params.pop("seen", None)
    page = trigger_queries.trigger_list(actor, params, read_cut(params))
    lines = lines_of(page.rows)
    token = _token(lines)
    if request.htmx and request.GET.get("seen") == token:
        return HttpResponse(status=204)
    context = {
        "page": page,
        "lines": lines,
        "token": token,
        "choices": _choices(actor),
        "refusal": refusal(actor, "make or change a trigger"),
        "address": request.build_absolute_uri("/"),
        "tab": "triggers",
    }
    return show(request, "triggers/list.html", context, part="triggers/_list.html")


@require_safe
@screen
def trigger_page(request: ScreenRequest, trigger_id: uuid.UUID) -> HttpResponse:
    """One trigger: its settings, what comes next and why, its ledger newest first, and how it was set before."""
    actor = request.visit.actor
    trigger = trigger_queries.find_trigger(actor, trigger_id)
    ledger = trigger_queries.ticks(trigger, request.GET, read_cut(request.GET, BY_INSTANT))
    runs = trigger_queries.runs_of(ledger.rows)
    line = lines_of([trigger])[0]
    unready, lacking = readiness(trigger)
    context = {
        "line": line,
        "trigger": trigger,
        "schedule": line.schedule,
        "page": ledger,
        "ticks": [(tick, runs.get(tick.run) if tick.run else None) for tick in ledger.rows],
        "states": TickState.values,
        "reasons": [reason for reason in SkipReason.values if reason != SkipReason.EXISTING],
        "changes": history(trigger),
        "offers": offers(trigger, actor),
        "words": {name: words[getattr(trigger, name)] for name, words in WORDS.items()},
        "unready": unready,
        "lacking": lacking,
        "tab": "triggers",
    }
    return show(request, "triggers/trigger.html", context)


def readiness(trigger: Trigger) -> tuple[str, list[str]]:
    """Why no run can be made of its ticks now, blank where one can; and the handlers of such a run that no live worker
    of its application has."""
    try:
        managed = releases.managed(trigger.workspace_id, trigger.pipeline_id, trigger.environment_id)
    except Refusal as refusal:
        return refusal.detail, []
    lacking = unserved.lacking(
        [stage["handler"] for stage in managed.definition["stages"]],
        workspace_id=trigger.workspace_id,
        environment_id=trigger.environment_id,
        application_id=trigger.application_id,
    )
    return "", lacking


def lines_of(triggers: list[Trigger]) -> list[Line]:
    """The triggers with where they stand, in a fixed number of statements."""
    standing = trigger_queries.standing(triggers) if triggers else {}
    found = []
    for trigger in triggers:
        schedule = Schedule.of(trigger)
        found.append(Line(trigger, standing[trigger.id], schedule, schedule.sentence()))
    return found


def _token(lines: list[Line]) -> str:
    """Changes whenever a line would; times that only pass are the browser's to write."""
    told = [
        (
            line.trigger.id,
            line.trigger.version,
            line.state,
            line.next.at if line.next else None,
            (last.id, last.state) if (last := line.standing.last_tick) else None,
            line.standing.last_status,
            line.standing.missed,
        )
        for line in lines
    ]
    return sha256(repr(told).encode()).hexdigest()[:16]


def state(trigger: Trigger, standing: Standing) -> tuple[str, str]:
    """How a trigger stands: a state for its glyph, and the word."""
    if not trigger.enabled:
        return "paused", "Off"
    if standing.blackout:
        return "blocked", "Held"
    return ("active", "On") if standing.next_ticks else ("retired", "Over")


def offers(trigger: Trigger, actor: Actor) -> list[Offer]:
    """Changing it, and switching it on or off."""
    why_not = refusal(actor, "change a trigger")
    switch = ("trigger-disable", "Switch off…") if trigger.enabled else ("trigger-enable", "Switch on…")
    return [Offer("trigger-change", "Change…", trigger.id, why_not, is_page=True), Offer(*switch, trigger.id, why_not)]


def refusal(actor: Actor, what: str) -> str:
    return "" if actor.may(RELEASE) else missing_right(actor, RELEASE, what)


def history(trigger: Trigger) -> list[Change]:
    """The newest changes, each beside the one before it."""
    versions = list(trigger_queries.versions(trigger)[: VERSIONS + 1])
    told = [Change(after, _differences(before.settings, after.settings)) for after, before in pairwise(versions)]
    if versions and len(versions) <= VERSIONS:
        told.append(Change(versions[-1], []))
    return told


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    names = [*before, *(name for name in after if name not in before)]
    return [
        (CALLED.get(name, name), *_cut(_told(name, before.get(name)), _told(name, after.get(name))))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _told(name: str, value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return f"{value} s" if name in SECONDS else WORDS.get(name, {}).get(str(value), str(value))


def _cut(before: str, after: str) -> tuple[str, str]:
    """Two texts as far as a line bears them, from shortly before the place where they differ."""
    start = 0
    if len(before) > LONGEST_TOLD or len(after) > LONGEST_TOLD:
        differ = (place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
        start = max(0, next(differ, min(len(before), len(after))) - BEFORE_IT)
    first, second = (
        f"{'…' if start else ''}{text[start : start + LONGEST_TOLD]}{'…' if len(text) > start + LONGEST_TOLD else ''}"
        for text in (before, after)
    )
    return first, second


def _choices(actor: Actor) -> dict[str, list[str]]:
    pipelines = Pipeline.objects.filter(workspace_id=actor.workspace_id).order_by("slug")
    environments = Environment.objects.filter(workspace_id=actor.workspace_id).order_by("rank", "slug")
    return {
        "pipeline": list(pipelines.values_list("slug", flat=True)[:CHOICES]),
        "environment": list(environments.values_list("slug", flat=True)[:CHOICES]),
    }
