"""Screens of one run: the page and what of it lives, its events, its attempts, and long texts as a whole."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.access import Actor
from pipelines.console import run_page, run_parts
from pipelines.console.run_page import RunLook, Wish
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.models import Attempt, Run, Stage, StageOutput

FURTHEST = 5  # digits of a position


@require_safe
@screen
def run(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """One run: where it stands, why it does not move, its stages, and the attempts of the one that matters."""
    look = run_page.look(request.visit.actor, run_id, _wish(request))
    return show(request, "runs/run.html", _context(request, look))


@require_safe
@screen
def run_live(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """What of the run page changed since `seen`, or is otherwise once another stage is opened; 204 while nothing is."""
    wish, seen = _wish(request), request.GET.get("seen", "")
    opened = request.htmx and request.htmx.trigger != "pulse"
    if not opened and run_page.beat(request.visit.actor, run_id) == seen.split("~", 1)[0]:
        return HttpResponse(status=204)
    look = run_page.look(request.visit.actor, run_id, wish)
    context = _context(request, look)
    changed = run_parts.changes(context["parts"], run_parts.read_seen(seen))
    response = show(request, "runs/run.html", {**context, "changed": changed}, part="runs/_pulse.html")
    if opened:
        response["HX-Push-Url"] = f"{reverse('console:run', args=[run_id])}?{_address(look)}"
    return response


@require_safe
@screen
def run_events(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Everything that happened to a run, as sentences."""
    found, events = run_page.all_events(request.visit.actor, run_id)
    context = {"run": found, "events": events, "limit": run_page.EVENTS_PER_PAGE}
    return show(request, "runs/events.html", context)


@require_safe
@screen
def run_timeline(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """The time line as a table: every attempt and every gate of the run, with its times."""
    found, attempts, gates = run_page.timeline(request.visit.actor, run_id)
    limit = run_page.ATTEMPTS_IN_TABLE
    context = {"run": found, "attempts": attempts[:limit], "more": len(attempts) > limit, "gates": gates}
    return show(request, "runs/timeline.html", context)


@require_safe
@screen
def attempt(request: ScreenRequest, attempt_id: uuid.UUID) -> HttpResponse:
    """One attempt: error, why it was or was not tried again, traceback, input, output, logs."""
    look = run_page.attempt_look(request.visit.actor, attempt_id)
    return show(request, "runs/attempt.html", {"look": look}, part="runs/_attempt_row.html")


@require_safe
@screen
def whole_text(request: ScreenRequest, kind: str, text_id: uuid.UUID) -> HttpResponse:
    """A text that screens cut, to its end and byte for byte; plain, whatever it holds."""
    text = _text(request.visit.actor, kind, text_id)
    if text is None:
        raise Refusal("not_found", "there is no such text")
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'inline; filename="{kind}.txt"'
    return response


def _text(actor: Actor, kind: str, item_id: uuid.UUID) -> str | None:
    runs = queries.visible_runs(actor)
    if kind == "run-input":
        return Run.objects.filter(id=item_id, id__in=runs.values("id")).values_list("input", flat=True).first()
    if kind == "stage-input":
        return Stage.objects.filter(id=item_id, run__in=runs).values_list("input", flat=True).first()
    if kind == "output":
        return StageOutput.objects.filter(id=item_id, stage__run__in=runs).values_list("body", flat=True).first()
    found = Attempt.objects.filter(id=item_id, stage__run__in=runs).select_related("stage").first()
    if found is None:
        return None
    if kind == "attempt-input":
        return run_page.input_then(found)[0]
    return {"traceback": found.traceback, "error": found.error_message}.get(kind)


def _context(request: ScreenRequest, look: RunLook) -> dict[str, Any]:
    parts = run_parts.render(look, {"now": look.now, "visit": request.visit})
    since = look.wish.since or look.now
    return {"look": look, "parts": parts, "seen": parts.seen(look.beat), "since": since, "now": look.now}


def _wish(request: ScreenRequest) -> Wish:
    stage, since = request.GET.get("stage", ""), request.GET.get("since", "")
    moment = parse_datetime(since) if len(since) < 40 else None
    return Wish(
        stage=int(stage) if stage.isascii() and stage.isdecimal() and len(stage) < FURTHEST else None,
        rows=request.GET.get("rows") == "all",
        attempts=request.GET.get("attempts") == "all",
        since=moment if moment and moment.tzinfo else None,
    )


def _address(look: RunLook) -> str:
    """The query of the page as it is opened."""
    told = [f"stage={look.chosen.stage.position}"]
    told += ["rows=all"] if look.wish.rows else []
    return "&".join([*told, *(["attempts=all"] if look.wish.attempts else [])])
