"""The screen of workers: who is alive, who is draining, how near to its end the tightest lease is, and who has what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from django.conf import settings
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.console import run_page
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.list_filters import WorkerFilter
from pipelines.models import Attempt, WorkerSession
from pipelines.paging import page_of, read_cut
from pipelines.sql import database_now
from pipelines.states import AttemptState, SessionState

SHOWN = 4  # handlers and attempts of a line; the rest is counted, and in the title


@dataclass(frozen=True, slots=True)
class Line:
    """A session with what it holds. `margin` is when the first of its leases ends, None where it holds none."""

    session: WorkerSession
    held: list[Attempt]
    state: tuple[str, str]  # for the glyph, and the word
    margin: datetime | None

    @property
    def more_handlers(self) -> int:
        return max(0, len(self.session.handlers) - SHOWN)

    @property
    def more_held(self) -> int:
        return max(0, len(self.held) - SHOWN)


@require_safe
@screen
def worker_list(request: ScreenRequest) -> HttpResponse:
    """Worker sessions, those last heard of first, with what they hold."""
    params = request.GET.copy()
    params.pop("seen", None)
    sessions = WorkerFilter.narrow(queries.worker_sessions(request.visit.actor), params)
    page = page_of(sessions, read_cut(params), ("last_seen_at", "id"))
    now = database_now()
    held = run_page.held_by([session.id for session in page.rows])
    lines = [_line(session, held.get(session.id, []), now) for session in page.rows]
    token = sha256(
        repr([(one.session.id, one.state, one.margin, len(one.held)) for one in lines]).encode()
    ).hexdigest()[:16]
    if request.htmx and request.GET.get("seen") == token:
        return HttpResponse(status=204)
    context = {
        "page": page,
        "token": token,
        "lines": lines,
        "quiet": settings.RECOURSE_LEASE_SECONDS,
        "states": SessionState.values,
        "alive": sum(line.state[1] == "Alive" for line in lines),
        "draining": sum(line.state[1] == "Draining" for line in lines),
        "tightest": min((line.margin for line in lines if line.margin), default=None),
    }
    return show(request, "runs/workers.html", context, part="runs/_workers.html")


def _line(session: WorkerSession, held: list[Attempt], now: datetime) -> Line:
    margin = min((one.expires_at for one in held if one.state == AttemptState.RUNNING), default=None)
    return Line(session, held, _state(session, held, now), margin)


def _state(session: WorkerSession, held: list[Attempt], now: datetime) -> tuple[str, str]:
    if session.state == SessionState.ACTIVE:
        return ("active", "Alive") if queries.is_live(session, now) else ("lost", "Silent")
    if session.state == SessionState.DRAINING:
        return ("draining", "Draining") if held else ("pending", "Shut down")
    return session.state, ""
