"""The inbox: what one may decide, what waits, what one asked for, what was decided (P84).

A list being read holds still at its newest line: lines change in place, and newer ones are a count to click.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from approvals import inbox
from approvals.inbox import ASKED, DECIDED, MINE, WAITING, Item
from approvals.screens import words
from approvals.screens.context import MOST
from pipelines.access import DECIDE, Actor
from pipelines.console.offers import missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.filters import moment
from pipelines.paging import Cut, Page, read_cut
from pipelines.sql import database_now

TABS = {MINE: "For me", WAITING: "All that wait", ASKED: "Asked by me", DECIDED: "Decided"}
FRESH = 9  # newer ones are counted no further
HIGHEST = uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the inbox. `gist` is what it would do, or what became of it."""

    item: Item
    title: str
    gist: str
    badge: tuple[str, str]
    roles: str
    is_short: bool


@dataclass(frozen=True, slots=True)
class Tab:
    view: str
    label: str
    is_current: bool


@require_safe
@screen
def approvals(request: ScreenRequest) -> HttpResponse:
    """One of the four lists, newest first; `view` names it."""
    actor, view, cut = request.visit.actor, _view(request), read_cut(request.GET)
    held = request.GET.get("top") if request.htmx and not cut.position else None
    top = moment(held, "top") if held else None
    page = _held(actor, view, top, cut.size) if top else inbox.listed(actor, view, cut)
    fresh = len(inbox.listed(actor, view, Cut(FRESH, (top, HIGHEST), backwards=True)).rows) if top else 0
    token = _token(page, fresh)
    if request.htmx and request.GET.get("seen") == token:
        return HttpResponse(status=204)
    now = database_now()
    newest = _at(page.rows[0], view) if page.rows and not cut.position else None
    context: dict[str, Any] = {
        "page": page,
        "lines": [_line(item, now) for item in page.rows],
        "tabs": [Tab(name, label, name == view) for name, label in TABS.items()],
        "view": view,
        "label": TABS[view],
        "fresh": fresh,
        "token": token,
        "top": top or newest,
        # said once, not on every line
        "refusal": "" if actor.may(DECIDE) else missing_right(actor, DECIDE, "decide"),
    }
    return show(request, "approvals/inbox.html", context, part="approvals/_lines.html")


@require_safe
@screen
def waiting(request: ScreenRequest) -> HttpResponse:
    """How much the person may decide, which the top bar asks for now and then; 204 while it is as `seen`."""
    if not request.htmx:
        return approvals(request)
    actor = request.visit.actor
    count = inbox.count_mine(actor, MOST) if actor.may(DECIDE) else 0
    if request.GET.get("seen") == str(count):
        return HttpResponse(status=204)
    return show(request, "approvals/_waiting.html", {"count": count})


def _view(request: ScreenRequest) -> str:
    view = request.GET.get("view", MINE)
    if view not in TABS:
        message = f"view must be one of: {', '.join(TABS)}"
        raise Refusal("validation_error", message, errors={"view": [message]})
    return view


def _held(actor: Actor, view: str, top: datetime, size: int) -> Page[Item]:
    """The first page as it began at `top`."""
    page = inbox.listed(actor, view, Cut(size, (top, HIGHEST)))
    return Page(page.rows, next=page.next)


def _line(item: Item, now: datetime) -> Line:
    gist, badge = (words.gist, words.kind(item)) if item.is_open else (words.outcome, (item.state, ""))
    return Line(item, words.title(item), gist(item), badge, words.least_role(item), words.is_short(item, now))


def _at(item: Item, view: str) -> datetime | None:
    return item.closed_at if view == DECIDED else item.opened_at


def _token(page: Page[Item], fresh: int) -> str:
    """What changes whenever a line would."""
    told = [(item.id, item.round, item.state, item.have, item.may_decide) for item in page.rows]
    return sha256(repr((told, fresh)).encode()).hexdigest()[:16]
