"""Screens of runs, attempts, dead letters and workers: find, parse, call, show."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.console import offers, overview, run_page
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.filters import RUN_FILTERS, moment, read_run_filter, values
from pipelines.list_filters import DeadLetterFilter, WorkerFilter
from pipelines.paging import page_of, read_cut
from pipelines.sql import database_now
from pipelines.states import OPEN_DEAD_LETTER, DeadLetterState

LIVE = ("seen", "top")  # what a list that is being read says about itself


@require_safe
@screen
def run_list(request: ScreenRequest) -> HttpResponse:
    """The runs of the workspace, narrowed by the address. A list being read holds still: `top` is its newest run."""
    actor, wanted, cut = request.visit.actor, read_run_filter(request.GET, LIVE), read_cut(request.GET)
    held = request.GET.get("top") if request.htmx else None
    top = moment(held, "top") if held else None
    rows = overview.rows(actor, overview.up_to(wanted, top) if top else wanted, cut)
    fresh = overview.newer(actor, wanted, top) if top else 0
    token = f"{rows.token}.{fresh}"
    if request.htmx and request.GET.get("seen") == token:
        return HttpResponse(status=204)
    newest = top or (rows.lines[0].run.created_at if rows.lines and cut.position is None else None)
    context = {"rows": rows, "wanted": wanted, "fresh": fresh, "token": token, "top": newest, "filters": RUN_FILTERS}
    return show(request, "runs/list.html", context | _beside_list(request), part="runs/_table.html")


@require_safe
@screen
def run_page_view(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """One run: where it stands, why it does not move, its stages, and the attempts of the one that matters."""
    look = run_page.look(request.visit.actor, run_id, _position(request))
    return show(request, "runs/run.html", {"look": look}, part="runs/_run.html")


@require_safe
@screen
def run_live(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """The run page's living part; 204 while nothing changed since `seen`."""
    if run_page.pulse(request.visit.actor, run_id) == request.GET.get("seen"):
        return HttpResponse(status=204)
    look = run_page.look(request.visit.actor, run_id, _position(request))
    return show(request, "runs/run.html", {"look": look}, part="runs/_run.html")


@require_safe
@screen
def run_events(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Everything that happened to a run, as sentences."""
    run, events = run_page.all_events(request.visit.actor, run_id)
    context = {"run": run, "events": events, "limit": run_page.EVENTS_PER_PAGE}
    return show(request, "runs/events.html", context)


@require_safe
@screen
def attempt_page(request: ScreenRequest, attempt_id: uuid.UUID) -> HttpResponse:
    """One attempt: error, traceback, input, output, logs."""
    look = run_page.attempt_look(request.visit.actor, attempt_id)
    return show(request, "runs/attempt.html", {"look": look}, part="runs/_attempt_row.html")


@require_safe
@screen
def dead_letter_list(request: ScreenRequest) -> HttpResponse:
    """Stages that the machine has given up on, newest first; without `status`, those that still wait for a person."""
    matching = DeadLetterFilter.narrow(queries.dead_letters(request.visit.actor), request.GET)
    states = values(request.GET, "status") or tuple(state for state in DeadLetterState if state in OPEN_DEAD_LETTER)
    found = page_of(matching.filter(state__in=states), read_cut(request.GET), ("opened_at", "id"))
    keys = overview.keys_of([letter.run_id for letter in found.rows])
    actor = request.visit.actor
    letters = [(letter, keys.get(letter.run_id, ""), offers.for_letter(letter, actor)) for letter in found.rows]
    context = {"page": found, "letters": letters, "states": states, "choices": DeadLetterState.values}
    context["refusal"] = offers.recovery_refusal(actor)
    return show(request, "runs/dead_letters.html", context)


@require_safe
@screen
def worker_list(request: ScreenRequest) -> HttpResponse:
    """Worker sessions, those last heard of first, with what they hold."""
    sessions = WorkerFilter.narrow(queries.worker_sessions(request.visit.actor), request.GET)
    found = page_of(sessions, read_cut(request.GET), ("last_seen_at", "id"))
    now = database_now()
    held = run_page.held_by([session.id for session in found.rows])
    workers = [(session, queries.is_live(session, now), held.get(session.id, [])) for session in found.rows]
    return show(
        request, "runs/workers.html", {"page": found, "workers": workers, "quiet": settings.RECOURSE_LEASE_SECONDS}
    )


def _beside_list(request: ScreenRequest) -> dict[str, Any]:
    """What stands around the list: our own address, and facets and spans of time, which a part does not need."""
    address = request.build_absolute_uri("/")
    if request.htmx:
        return {"address": address}
    now = database_now()
    spans = [("last hour", now - timedelta(hours=1)), ("last day", now - timedelta(days=1))]
    return {
        "facets": overview.facets(request.visit.actor),
        "spans": [*spans, ("last week", now - timedelta(days=7))],
        "address": address,
    }


def _position(request: ScreenRequest) -> int | None:
    text = request.GET.get("stage", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else None
