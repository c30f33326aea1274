"""Screens that make, change and switch triggers. The form shows what the schedule means before it is saved.

`pipelines.triggers` decides and refuses by field; this only reads what was typed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import trigger_queries, triggers
from pipelines.access import RELEASE
from pipelines.console import wall_times
from pipelines.console.acts import Act, Step, check_length, perform
from pipelines.console.screens import ScreenRequest, go_on, of_form, screen, show, typed
from pipelines.errors import Refusal
from pipelines.models import Application, CatchUp, Environment, OverlapPolicy, Pipeline, Trigger
from pipelines.schedules import Due, Gap, Overlap, Schedule
from pipelines.sql import database_now
from pipelines.tick_inputs import NAMES
from pipelines.trigger_queries import NEXT
from pipelines.triggers import BOUNDS, CHOICES, MOMENTS, PLACE, SCHEDULE

acting = require_http_methods(["GET", "HEAD", "POST"])
MOST = 500  # of pipelines or applications to choose from
LONGEST_INPUT = 300_000
TEXTS = ("name", *SCHEDULE, *CHOICES)
FIELDS = (*PLACE, *TEXTS, *BOUNDS, *MOMENTS, "input")
FRESH = {
    "timezone": "UTC",
    "gap": Gap.FIRST_EXISTING,
    "overlap": Overlap.FIRST,
    "overlap_policy": OverlapPolicy.SKIP,
    "catch_up": CatchUp.NONE,
    "catch_up_limit": "100",
    "start_within": "60",
    "spread": "0",
    "input": "{}",
}
WORDS: dict[str, dict[str, str]] = {  # by setting: a choice of one may be called as one of another
    "gap": {
        Gap.FIRST_EXISTING: "at the first time that exists after it",
        Gap.SHIFT: "as much later as clocks went forward",
        Gap.SKIP: "not that day",
    },
    "overlap": {
        Overlap.FIRST: "the first time",
        Overlap.SECOND: "the second time",
        Overlap.BOTH: "both times",
    },
    "overlap_policy": {
        OverlapPolicy.ALLOW: "starts beside it",
        OverlapPolicy.SKIP: "is skipped, and counts as missed",
        OverlapPolicy.QUEUE_ONE: "waits for it, one at most",
        OverlapPolicy.QUEUE_ALL: "waits for it, as many as come",
    },
    "catch_up": {
        CatchUp.NONE: "stay missed until somebody backfills them",
        CatchUp.LATEST: "the latest one runs",
        CatchUp.ALL: "the newest run, as many as below",
    },
}


@dataclass(frozen=True, slots=True)
class Preview:
    """What a schedule means: its sentence and its next ticks, or what is wrong with it."""

    sentence: str = ""
    ticks: list[tuple[Due, str]] = field(default_factory=list)
    timezone: str = "UTC"
    errors: Mapping[str, list[str]] = field(default_factory=dict)


@require_safe
@screen
def schedule_preview(request: ScreenRequest) -> HttpResponse:
    """What the schedule of the address means, for the form that is being filled in."""
    context = {"preview": _preview(request.GET)}
    return show(request, "triggers/preview.html", context, part="triggers/_preview.html")


@acting
@screen
def trigger_new(request: ScreenRequest) -> HttpResponse:
    """A new trigger."""

    def save(wanted: dict[str, Any], reason: str) -> Trigger:
        return triggers.create(actor=request.visit.actor, wanted=wanted, reason=reason)

    asked = {name: request.GET.get(name, "") for name in PLACE}
    return _form(request, None, FRESH | asked, save)


@acting
@screen
def trigger_change(request: ScreenRequest, trigger_id: uuid.UUID) -> HttpResponse:
    """Other settings of a trigger, from now on; the past stays as it is."""
    trigger = trigger_queries.find_trigger(request.visit.actor, trigger_id)

    def save(wanted: dict[str, Any], reason: str) -> Trigger:
        return triggers.change(trigger.id, actor=request.visit.actor, changes=wanted, reason=reason)

    return _form(request, trigger, _given(trigger), save)


@acting
@screen
def trigger_enable(request: ScreenRequest, trigger_id: uuid.UUID) -> HttpResponse:
    """Says what comes next and that nothing that was missed fires, then switches it on (F103)."""
    trigger = trigger_queries.find_trigger(request.visit.actor, trigger_id)
    standing = trigger_queries.standing_of(trigger)
    zone = trigger.timezone
    first = next(iter(standing.next_ticks), None)
    comes = f"{first.local:%a %Y-%m-%d %H:%M} {zone}" if first else "never: its schedule has no further tick"
    steps = [Step("due", "Next", comes)]
    if standing.missed:
        more = "+" if standing.is_capped else ""
        steps.append(Step("missed", "Not fired", f"{standing.missed:,}{more} that it missed; a backfill may fill them"))
    act = Act(
        title=f"Switch on {trigger.name}",
        needs=RELEASE,
        steps=steps,
        button="Switch it on",
        back=_address(trigger),
    )
    return _switch(request, act, trigger, enabled=True)


@acting
@screen
def trigger_disable(request: ScreenRequest, trigger_id: uuid.UUID) -> HttpResponse:
    """Says what becomes of its ticks, then switches it off."""
    trigger = trigger_queries.find_trigger(request.visit.actor, trigger_id)
    act = Act(
        title=f"Switch off {trigger.name}",
        needs=RELEASE,
        steps=[
            Step("paused", "Stops", "no run is made any more when it is due"),
            Step("missed", "Kept", "its ticks go to the ledger as missed; switched on again it fires none of them"),
            Step("running", "Go on", "runs that were made already, and backfills"),
        ],
        button="Switch it off",
        back=_address(trigger),
    )
    return _switch(request, act, trigger, enabled=False)


def _switch(request: ScreenRequest, act: Act, trigger: Trigger, *, enabled: bool) -> HttpResponse:
    def carry_out(reason: str) -> str:
        triggers.switch(trigger.id, actor=request.visit.actor, enabled=enabled, reason=reason)
        state, word = ("active", "on") if enabled else ("paused", "off")
        messages.success(request, f"{trigger.name} is {word}.", state)
        return _address(trigger)

    return perform(request, act, carry_out)


def _form(
    request: ScreenRequest,
    trigger: Trigger | None,
    given: Mapping[str, str],
    save: Callable[[dict[str, Any], str], Trigger],
) -> HttpResponse:
    """Asks for the settings, or with POST saves them; `look` only shows what the schedule means."""
    request.visit.actor.require(RELEASE)
    refusal: Refusal | None = None
    reason = typed(request.POST, "reason")
    if request.method == "POST":
        given = {name: request.POST.get(name, "")[:LONGEST_INPUT].replace("\0", "") for name in FIELDS}
        if "look" not in request.POST:
            try:
                check_length(reason)
                done = save(_wanted(given, trigger), reason)
                messages.success(request, _said(done, trigger), "active" if done.enabled else "paused")
                return go_on(request, _address(done))
            except Refusal as refused:
                refusal = of_form(request, refused)
    actor = request.visit.actor
    context = {
        "trigger": trigger,
        "given": given,
        "reason": reason,
        "refusal": refusal,
        "errors": dict(refusal.errors or {}) if refusal else {},
        "preview": _preview(given),
        "choices": _choices(actor.workspace_id) if trigger is None else {},
        "options": {name: list(words.items()) for name, words in WORDS.items()},
        "names": NAMES,
        "back": _address(trigger) if trigger else reverse("console:triggers"),
        "tab": "triggers",
    }
    return show(request, "triggers/form.html", context, status=refusal.status if refusal else 200)


def _wanted(given: Mapping[str, str], trigger: Trigger | None) -> dict[str, Any]:
    """What was typed, as the wire has it; of a change only what is otherwise than it was shown."""
    errors: dict[str, list[str]] = {}
    wanted: dict[str, Any] = {name: given[name].strip() for name in TEXTS}
    if trigger is None:
        wanted |= {name: given[name].strip() for name in PLACE}
        if not wanted["name"]:
            del wanted["name"]
    for name in BOUNDS:
        text = given[name].strip()
        if text.isascii() and text.isdecimal() and len(text) < 12:
            wanted[name] = int(text)
        elif text or name != "deadline_seconds":
            errors[name] = ["a whole number"]
        else:
            wanted[name] = None
    for name in MOMENTS:
        try:
            wanted[name] = _moment(given[name].strip(), wanted["timezone"])
        except ValueError:
            errors[name] = [wall_times.ways(wanted["timezone"])]
    try:
        wanted["input"] = json.loads(given["input"].strip() or "{}")
    except (ValueError, RecursionError):
        errors["input"] = ["must be a JSON object"]
    if errors:
        raise Refusal("validation_error", "some of it cannot be meant", errors=errors)
    if trigger is not None:
        shown = triggers.settings_of(trigger)
        now = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in wanted.items()}
        return {name: wanted[name] for name in wanted if now[name] != shown[name]}
    return wanted


def _moment(text: str, timezone: str) -> datetime | None:
    if not text:
        return None
    try:
        return wall_times.read(text, timezone)
    except Refusal:  # the zone is refused by itself
        return None


def _given(trigger: Trigger) -> dict[str, str]:
    told = {name: str(getattr(trigger, name)) for name in (*TEXTS, *BOUNDS) if getattr(trigger, name) is not None}
    for name in MOMENTS:
        if (moment := getattr(trigger, name)) is not None:
            told[name] = wall_times.write(moment, trigger.timezone)
    return told | {"input": json.dumps(trigger.input, ensure_ascii=False, indent=2)}


def _preview(given: Mapping[str, str]) -> Preview:
    told = {name: str(given.get(name, ""))[:200].replace("\0", "").strip() for name in SCHEDULE}
    if not told["cron"]:
        return Preview()
    told = {name: value or FRESH.get(name, "") for name, value in told.items()}
    try:
        schedule = Schedule.read(**told)
    except Refusal as refusal:
        return Preview(errors=refusal.errors or {})
    ticks = [(due, schedule.explain(due)) for due in schedule.next(NEXT, database_now())]
    return Preview(schedule.sentence(), ticks, schedule.timezone)


def _choices(workspace_id: uuid.UUID) -> dict[str, list[str]]:
    pipelines = Pipeline.objects.filter(workspace_id=workspace_id).order_by("slug")
    environments = Environment.objects.filter(workspace_id=workspace_id).order_by("rank", "slug")
    applications = Application.objects.filter(workspace_id=workspace_id).order_by("name")
    return {
        "pipeline": list(pipelines.values_list("slug", flat=True)[:MOST]),
        "environment": list(environments.values_list("slug", flat=True)[:MOST]),
        "application": list(applications.values_list("name", flat=True)[:MOST]),
    }


def _said(done: Trigger, before: Trigger | None) -> str:
    if before is None:
        return f"{done.name} is made; its first tick is the next one from now."
    return f"{done.name} is as you set it from now on." if done.version != before.version else "Nothing was otherwise."


def _address(trigger: Trigger) -> str:
    return reverse("console:trigger", args=[trigger.id])
