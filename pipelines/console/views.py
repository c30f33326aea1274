"""Screens of runs, attempts and workers: find, parse, call, show."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.console import run_page
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.list_filters import WorkerFilter
from pipelines.paging import page_of, read_cut
from pipelines.sql import database_now


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
