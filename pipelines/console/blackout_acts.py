"""Screens that make and change blackouts, and that declare and lift the freeze: consequences first, then the act.

`pipelines.blackout_rows` decides and refuses by field; this only reads what was typed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import blackout_rows, zones
from pipelines.access import RELEASE
from pipelines.console import wall_times
from pipelines.console.acts import Act, Step, ask, check_length, missing, perform
from pipelines.console.blackout_pages import DAYS
from pipelines.console.screens import ScreenRequest, go_on, of_form, screen, show
from pipelines.errors import Refusal
from pipelines.models import Blackout, BlackoutKind, Environment, Trigger
from pipelines.sql import query

acting = require_http_methods(["GET", "HEAD", "POST"])
MOST = 500  # of environments or triggers to choose from
LONGEST = 20_000  # characters of a field
TEXTS = ("name", "kind", "where", "timezone", "from_time", "to_time", "dates", "starts_at", "ends_at", "reason")
KINDS = (
    (BlackoutKind.WEEKLY, "Every week", "on these days, between these times of the zone's clocks"),
    (BlackoutKind.DATES, "On dates", "on these days of the zone, whole"),
    (BlackoutKind.PERIOD, "Once", "from an instant to another"),
)
CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", re.ASCII)


@acting
@screen
def blackout_new(request: ScreenRequest) -> HttpResponse:
    """A new blackout."""
    return _form(request, None)


@acting
@screen
def blackout_change(request: ScreenRequest, blackout_id: uuid.UUID) -> HttpResponse:
    """Another time, name or reason of a blackout, or whether it is on; where it holds, and its kind, stay."""
    found = blackout_rows.rows(request.visit.actor.workspace_id).filter(id=blackout_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such blackout")
    return _form(request, found)


@acting
@screen
def freeze(request: ScreenRequest) -> HttpResponse:
    """Says what a freeze stops and what goes on, asks for the reason, and declares it."""
    actor = request.visit.actor
    environments = _environments(actor.workspace_id)
    chosen = request.POST.get("environment", request.GET.get("environment", ""))
    act = Act(
        title="Freeze: nothing starts from now on",
        needs=RELEASE,
        steps=[
            Step("blocked", "Waits", f"{_waiting(actor.workspace_id):,} that are queued now, and all that come"),
            Step("missed", "Skipped", "ticks of triggers; the ledger keeps them, a backfill may fill them later"),
            Step("running", "Goes on", "what has begun, to its end"),
            Step("declared", "Needs a reason", "a rerun, replay, retry, redrive or backfill that starts all the same"),
        ],
        button="Declare the freeze",
        back=reverse("console:blackouts"),
        danger=True,
        reason_required=True,
        fields="triggers/_freeze_fields.html",
        answers={"environments": environments, "chosen": chosen, "given": request.POST},
    )

    def carry_out(reason: str) -> str:
        until = _moment(request.POST.get("until", "").strip(), "until", "UTC")
        done = blackout_rows.declare(actor=actor, reason=reason, environment=_slug(chosen), until=until)
        said = "The freeze holds." if done.is_new else "It held already; nothing was otherwise."
        messages.success(request, said, "blocked")
        return reverse("console:blackouts")

    return perform(request, act, carry_out)


@acting
@screen
def freeze_lift(request: ScreenRequest) -> HttpResponse:
    """Says what goes on again, and lifts the freeze of the workspace or of one environment."""
    actor = request.visit.actor
    environments = _environments(actor.workspace_id)
    held = blackout_rows.freezes(actor.workspace_id)
    first = held[0].environment.slug if held and held[0].environment else ""
    chosen = request.POST.get("environment", request.GET.get("environment", first))
    act = Act(
        title="Lift the freeze",
        needs=RELEASE,
        steps=[
            Step(
                "ready",
                "Goes on",
                f"{_waiting(actor.workspace_id):,} that are queued now, as far as nothing else holds",
            ),
            Step("missed", "Stays missed", "what ticks were skipped; a backfill may fill them"),
        ],
        button="Lift the freeze",
        back=reverse("console:blackouts"),
        fields="triggers/_freeze_fields.html",
        answers={"environments": environments, "chosen": chosen, "given": request.POST, "is_lift": True},
        is_possible=bool(held),
    )
    if request.method != "POST" and not held:
        actor.require(RELEASE)
        return ask(request, act, "", Refusal("stale_request", "nothing is frozen"))

    def carry_out(reason: str) -> str:
        lifted = blackout_rows.lift(actor=actor, reason=reason, environment=_slug(chosen))
        if lifted:
            messages.success(request, "The freeze is lifted; what waited goes on.", "active")
        else:
            messages.info(request, "Nothing was frozen there; nothing was otherwise.", "no_op")
        return reverse("console:blackouts")

    return perform(request, act, carry_out)


def _form(request: ScreenRequest, blackout: Blackout | None) -> HttpResponse:
    actor = request.visit.actor
    actor.require(RELEASE)
    given = _given(blackout)
    refusal: Refusal | None = None
    if request.method == "POST":
        given = _typed(request.POST)
        try:
            wanted = _wanted(given, blackout)
            if blackout is None:
                done = blackout_rows.create(actor=actor, wanted=wanted, **_where(given["where"]))
            else:
                done = blackout_rows.change(blackout.id, actor=actor, changes=wanted)
            messages.success(request, f"{done.name} is kept.", "active" if done.enabled else "paused")
            return go_on(request, reverse("console:blackouts"))
        except Refusal as refused:
            refusal = of_form(request, refused)
    context = {
        "blackout": blackout,
        "given": given,
        "refusal": refusal,
        "errors": dict(refusal.errors or {}) if refusal else {},
        "kinds": [kind for kind in KINDS if blackout is None or kind[0] == blackout.kind],
        "days": [(str(number), name) for number, name in enumerate(DAYS) if name],
        "places": _places(actor.workspace_id),
        "tab": "blackouts",
    }
    return show(request, "triggers/blackout_form.html", context, status=refusal.status if refusal else 200)


def _typed(params: QueryDict) -> dict[str, Any]:
    told: dict[str, Any] = {name: params.get(name, "")[:LONGEST].replace("\0", "").strip() for name in TEXTS}
    return told | {"days": params.getlist("days")[:7], "enabled": "enabled" in params}


def _given(blackout: Blackout | None) -> dict[str, Any]:
    if blackout is None:
        return {"kind": BlackoutKind.WEEKLY, "timezone": "UTC", "days": [], "enabled": True}
    zone = blackout.timezone
    return {
        "name": blackout.name,
        "kind": blackout.kind,
        "timezone": zone,
        "days": [str(day) for day in blackout.days],
        "from_time": f"{blackout.from_time:%H:%M}" if blackout.from_time else "",
        "to_time": f"{blackout.to_time:%H:%M}" if blackout.to_time else "",
        "dates": ", ".join(day.isoformat() for day in blackout.dates),
        "starts_at": wall_times.write(blackout.starts_at, zone) if blackout.starts_at else "",
        "ends_at": wall_times.write(blackout.ends_at, zone) if blackout.ends_at else "",
        "reason": blackout.reason,
        "enabled": blackout.enabled,
    }


def _wanted(given: Mapping[str, Any], blackout: Blackout | None) -> dict[str, Any]:
    """What was typed, of the kind that was chosen, as the rows have it."""
    kind = blackout.kind if blackout else given["kind"]
    if not given["name"]:
        raise missing("name", "a name is needed: those who are held up read it")
    if len(given["name"]) > 255:
        raise missing("name", "at most 255 characters")
    check_length(given["reason"])
    if kind not in BlackoutKind.values:
        raise missing("kind", f"one of {', '.join(BlackoutKind.values)}")
    zones.zone(given["timezone"])
    wanted = {name: given[name] for name in ("name", "timezone", "reason", "enabled")}
    if blackout is None:
        wanted["kind"] = kind
    if kind == BlackoutKind.WEEKLY:
        wanted["days"] = [int(day) for day in given["days"] if day in "1234567" and len(day) == 1]
        wanted |= {name: _clock(given[name], name) for name in ("from_time", "to_time")}
    elif kind == BlackoutKind.DATES:
        wanted["dates"] = [_date(text) for text in re.split(r"[\s,;]+", given["dates"]) if text]
    else:
        wanted |= {name: _moment(given[name], name, given["timezone"]) for name in ("starts_at", "ends_at")}
    return wanted


def _where(chosen: str) -> dict[str, Any]:
    kind, _, name = chosen.partition(":")
    if kind == "environment":
        return {"environment": name}
    if kind == "trigger":
        try:
            return {"trigger_id": uuid.UUID(name)}
        except ValueError:
            raise missing("where", "there is no such trigger") from None
    return {}


def _clock(text: str, name: str) -> time | None:
    if text and not CLOCK.fullmatch(text):
        raise missing(name, "a time of day such as 22:00")
    return time.fromisoformat(text) if text else None


def _date(text: str) -> date:
    try:
        if wall_times.DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise missing("dates", f"days such as 2026-12-24; {text[:20]!r} is none")


def _moment(text: str, name: str, timezone: str) -> datetime | None:
    try:
        return wall_times.read(text, timezone) if text else None
    except (ValueError, OverflowError):
        raise missing(name, wall_times.ways(timezone)) from None


def _places(workspace_id: uuid.UUID) -> list[tuple[str, str]]:
    """Where a blackout may hold."""
    triggers = Trigger.objects.filter(workspace_id=workspace_id).order_by("name", "id").values_list("id", "name")
    return [
        ("", "the whole workspace"),
        *((f"environment:{slug}", f"only {slug}") for slug in _environments(workspace_id)),
        *((f"trigger:{trigger_id}", f"only ticks of {name}") for trigger_id, name in triggers[:MOST]),
    ]


def _slug(chosen: str) -> str | None:
    return chosen[:100].replace("\0", "") or None


def _environments(workspace_id: uuid.UUID) -> list[str]:
    rows = Environment.objects.filter(workspace_id=workspace_id).order_by("rank", "slug")
    return list(rows.values_list("slug", flat=True)[:MOST])


def _waiting(workspace_id: uuid.UUID) -> int:
    """Beginnings that wait for a worker now, counted no further than 1,000."""
    sql = (
        "SELECT count(*) FROM (SELECT FROM pipelines_queueentry q JOIN pipelines_environment e"
        " ON e.id = q.environment_id WHERE e.workspace_id = %s AND q.is_start LIMIT 1000) few"
    )
    found: int = query(sql, [workspace_id])[0][0]
    return found
