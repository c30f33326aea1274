"""The run list, where one begins: what needs a person, every run in a line, and the filters as links.

The address is the view: filters, search, page. An id in the search leads to its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.http import HttpResponse, QueryDict
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_safe
from django_htmx.http import reswap, retarget

from pipelines import queries
from pipelines.console import held_list, overview, run_facets, search, selection
from pipelines.console.held_list import Seen
from pipelines.console.overview import DIGEST_BYTES, Row, Rows
from pipelines.console.run_facets import Attention
from pipelines.console.screens import ScreenRequest, go_on, screen, show
from pipelines.filters import RUN_FILTERS, RunFilter, moment, read_run_filter
from pipelines.paging import Cut, read_cut
from pipelines.sql import database_now
from pipelines.states import RunStatus

LIVE = ("seen", "top")  # what a list that is being read says about itself
MOST_BYTES = 12_000  # of the rows of one live update; what does not fit follows with the next
FILLS = 10  # an empty list fills by itself with so many runs; more are a number with a link
WAYS_OUT = 6  # filters that are tried without, when nothing matches all of them


@dataclass(frozen=True, slots=True)
class View:
    """A standard view of the list: its name, the query that it is, and whether it is the one shown."""

    label: str
    query: str
    is_shown: bool


@dataclass(frozen=True, slots=True)
class WayOut:
    """A filter whose value leaves nothing: without it there are runs."""

    name: str
    value: str


@require_safe
@screen
def run_list(request: ScreenRequest) -> HttpResponse:
    """The runs of the workspace, narrowed by the address. A list being read holds still: `top` is its newest run."""
    actor, wanted = request.visit.actor, read_run_filter(request.GET, LIVE, wide=True)
    cut, now = read_cut(request.GET), database_now()
    if request.htmx and "seen" in request.GET:
        return _since_seen(request, wanted, cut, now)
    if len(wanted.search) == 1 and (address := search.page_of(actor, wanted.search[0])):
        return go_on(request, address)
    rows = overview.rows(actor, wanted, cut)
    attention = run_facets.attention(actor, now)
    newest = rows.lines[0].run.created_at if rows.lines and cut.position is None else None
    context = _table(request, rows, wanted, newest, attention, 0)
    context |= {
        "filters": RUN_FILTERS,
        "facets": run_facets.facets(actor, wanted),
        "spans": _spans(now),
        "views": _views(request.GET, now),
        "ways_out": [] if rows.lines or cut.position else _ways_out(request, wanted),
        "address": request.build_absolute_uri("/"),
        "link": _link(request),
        "now": now,
    }
    return show(request, "runs/list.html", context, part="runs/_table.html")


def _since_seen(request: ScreenRequest, wanted: RunFilter, cut: Cut, now: datetime) -> HttpResponse:
    """What looks otherwise than the page shows it; 204 when nothing does."""
    actor, seen = request.visit.actor, held_list.read(request.GET["seen"])
    held = request.GET.get("top")
    top = moment(held, "top") if held else None
    attention = run_facets.attention(actor, now)
    if not seen.rows:
        return _filled(request, wanted, cut, seen, attention, now)
    shown = overview.rows_of(actor, seen.ids)
    fresh = overview.newer(actor, wanted, top) if top else 0
    held_at = overview.up_to(wanted, top) if top else wanted
    fresh += held_list.come_between(actor, held_at, cut, seen.ids, shown)
    sent, parts = _fitting(request, held_list.changed(shown, seen, now.second), now)
    mark = _mark(attention, fresh)
    if mark == seen.mark and not sent:
        return HttpResponse(status=204)
    context = {
        "attention": attention,
        "fresh": fresh,
        "token": held_list.token(mark, held_list.after(seen, sent)),
        "top": top,
        "rows_html": parts,
    }
    return show(request, "runs/_live.html", context | {"now": now})


def _filled(
    request: ScreenRequest, wanted: RunFilter, cut: Cut, seen: Seen, attention: Attention, now: datetime
) -> HttpResponse:
    """An empty list: the first runs of it, or how many there are."""
    actor = request.visit.actor
    rows = overview.rows(actor, wanted, cut)
    fresh = len(rows.lines)
    if 0 < fresh <= FILLS and not rows.next:
        context = _table(request, rows, wanted, rows.lines[0].run.created_at, attention, 0)
        answer = show(request, "runs/_table.html", context | {"now": now})
        return retarget(reswap(answer, "outerHTML"), "#runs")
    mark = _mark(attention, fresh)
    if mark == seen.mark:
        return HttpResponse(status=204)
    context = {"attention": attention, "fresh": fresh, "token": held_list.token(mark, ()), "top": None, "now": now}
    return show(request, "runs/_live.html", context)


def _table(
    request: ScreenRequest,
    rows: Rows,
    wanted: RunFilter,
    newest: datetime | None,
    attention: Attention,
    fresh: int,
) -> dict[str, Any]:
    shown = [(row.run.id, row.digest) for row in rows.lines]
    return {
        "rows": rows,
        "wanted": wanted,
        "attention": attention,
        "fresh": fresh,
        "token": held_list.token(_mark(attention, fresh), shown),
        "top": newest,
        "selection": selection.of_runs(request.visit.actor, request.GET, RUN_FILTERS),
    }


def _fitting(request: ScreenRequest, changed: Sequence[Row], now: datetime) -> tuple[list[Row], list[str]]:
    """The changed rows that fit one update, and as HTML."""
    sent: list[Row] = []
    parts: list[str] = []
    size = 0
    for row in changed:
        part = render_to_string("runs/_row.html", {"row": row, "now": now, "is_update": True}, request)
        size += len(part.encode())
        if sent and size > MOST_BYTES:
            break
        sent.append(row)
        parts.append(part)
    return sent, parts


def _mark(attention: Attention, fresh: int) -> bytes:
    told = (attention.failed, attention.blocked, attention.waiting, attention.left, fresh)
    return sha256(repr(told).encode()).digest()[:DIGEST_BYTES]


def _spans(now: datetime) -> list[tuple[str, datetime]]:
    return [
        ("last hour", now - timedelta(hours=1)),
        ("last day", now - timedelta(days=1)),
        ("last week", now - timedelta(days=7)),
    ]


def _views(params: QueryDict, now: datetime) -> list[View]:
    """The standard views. Their times are whole, so that the same view has the same address for a while."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    hour = now.replace(minute=0, second=0, microsecond=0)
    needing = [RunStatus.FAILED.value, RunStatus.BLOCKED.value, RunStatus.WAITING.value]
    asked: dict[str, list[tuple[str, list[str]]]] = {
        "Needs attention": [("status", needing)],
        "Failed today": [("status", [RunStatus.FAILED.value]), ("created_after", [_iso(midnight)])],
        "Waiting for a decision": [("status", [RunStatus.WAITING.value])],
        "Running long": [("status", [RunStatus.RUNNING.value]), ("created_before", [_iso(hour - timedelta(hours=1))])],
    }
    now_shown = selection.filter_of(params, RUN_FILTERS)
    found = []
    for label, filters in asked.items():
        query = QueryDict(mutable=True)
        for name, values in filters:
            query.setlist(name, values)
        told = selection.filter_of(query, RUN_FILTERS)
        found.append(View(label, told, told == now_shown))
    return found


def _ways_out(request: ScreenRequest, wanted: RunFilter) -> list[WayOut]:
    """Which single filter keeps everything away; none where it takes more than one."""
    given = [(name, value) for name in RUN_FILTERS for value in request.GET.getlist(name) if value.strip()]
    if len(given) < 2:
        return []
    found = []
    for name, value in given[:WAYS_OUT]:
        less = request.GET.copy()
        less.setlist(name, [other for other in less.getlist(name) if other != value])
        if queries.run_list(request.visit.actor, read_run_filter(less, LIVE, wide=True), Cut(1)).rows:
            found.append(WayOut(name, value))
    return found


def _link(request: ScreenRequest) -> str:
    """This view as an address that others may open: its filters, in this workspace."""
    kept = QueryDict(selection.filter_of(request.GET, RUN_FILTERS), mutable=True)
    kept["workspace"] = request.visit.workspace.slug
    return request.build_absolute_uri(f"{reverse('console:runs')}?{kept.urlencode()}")


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
