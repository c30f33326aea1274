"""Screens of the audit: who did, tried or was refused what, in sentences by day; one event with its place in the chain.

What is listed, filtered and bounded by `pipelines.audit_listing`, as for `/v1/audit-events`. Serves F144, F145, F158.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, cast

from django.http import HttpResponse, QueryDict
from django.views.decorators.http import require_POST, require_safe

from pipelines import audit_chain, audit_export, audit_listing, queries
from pipelines.audit_names import names_of
from pipelines.audit_sentences import WHY, Names, tell
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.console.wall_times import DAY, WALL
from pipelines.errors import Refusal
from pipelines.filters import moment
from pipelines.list_filters import AuditEventFilter
from pipelines.models import AuditEvent, Stage
from pipelines.paging import read_cut
from pipelines.sql import database_now

LIVE = ("seen", "top")  # what a list that is being read says about itself
FILTERS = AuditEventFilter.names()
MOST_NEW = 50
SPANS = (("last day", 1), ("last week", 7), ("last month", 30))
MISSING = object()


@dataclass(frozen=True, slots=True)
class Line:
    """An event as a line: its sentence, and what its run is called as far as that is still there."""

    event: AuditEvent
    sentence: str
    run: str


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that an event found and left; either may be missing."""

    name: str
    before: str
    after: str
    is_changed: bool


@require_safe
@screen
def audit_list(request: ScreenRequest) -> HttpResponse:
    """The audit of the workspace, newest first, narrowed by the address. What is being read holds still: asked again
    with `top`, the time of its newest event, it says how many there are since, and how the chain stands."""
    workspace_id, params = request.visit.workspace.id, _asked(request.GET)
    wanted = audit_listing.read(params)
    held = request.GET.get("top") if request.htmx else None
    if held:
        return _news(request, wanted, held)
    now, cut = database_now(), read_cut(params)
    listed = audit_listing.find(workspace_id, wanted, cut)
    lines = lines_of(listed.page.rows)
    newest = lines[0].event.at if lines else now
    chosen, chain = _chosen(wanted), audit_chain.standing(workspace_id)
    context = {
        "listed": listed,
        "page": listed.page,
        "days": [(day, list(group)) for day, group in groupby(lines, lambda line: line.event.at.date())],
        "today": now.date(),
        "wanted": wanted,
        "chosen": chosen,
        "filters": FILTERS,
        "groups": [
            (name, [(facet, facet.value in chosen.get(name, ())) for facet in found])
            for name, found in audit_listing.facets(workspace_id).items()
        ],
        "spans": [(words, now - timedelta(days=days)) for words, days in SPANS],
        "chain": chain,
        "fresh": 0,
        "top": newest if cut.position is None else None,
        "token": _token(0, chain),
    }
    return show(request, "audit/list.html", context)


@require_safe
@screen
def audit_event(request: ScreenRequest, event_id: uuid.UUID) -> HttpResponse:
    """One event: what it found and left, why, and its place in the chain, checked again from the event before it."""
    event = queries.audit_events(request.visit.actor).filter(id=event_id).first()
    if event is None:
        raise Refusal("not_found", "there is no such audit event")
    names = names_of([event])
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    context = {
        "event": event,
        "sentence": tell(event, names),
        "run": names.runs.get(event.run) if event.run else None,
        "stage": _stage(event, names),
        "changes": changes(event.before, event.after),
        "meaning": WHY.get(event.code, ""),
        "operation": _link(data, "operation", "operation_id") if data.get("kind") != "backfill" else None,
        "bulk": _link(data, "bulk"),
        "data": json.dumps(data, ensure_ascii=False, indent=2) if data else "",
        "link": audit_chain.link_of(event.id, event.workspace_id),
    }
    return show(request, "audit/event.html", context, part="audit/_event_row.html")


@screen
@require_POST
def audit_export_view(request: ScreenRequest) -> HttpResponse:
    """The events that the address asks for as a file, oldest first, streamed; itself an event (`audit.export`)."""
    params = _asked(request.GET)
    form = request.POST.get("format", "")
    answer = audit_export.answer(request.visit.actor, request.visit.workspace.slug, params, form)
    return cast(HttpResponse, answer)  # which a stream is in all that views and middleware ask of it


def lines_of(events: Sequence[AuditEvent]) -> list[Line]:
    """The events with their sentences, in one question for all."""
    names = names_of(events)
    found = names.runs
    return [Line(event, tell(event, names), found.get(event.run, ("", ""))[0] if event.run else "") for event in events]


def changes(before: Any, after: Any) -> list[Change]:
    """What was before and after, thing by thing, what changed first; a state that is no object is one thing."""
    old, new = _things(before), _things(after)
    names = dict.fromkeys([*old, *new])
    found = [
        Change(name, _told(old, name), _told(new, name), old.get(name, MISSING) != new.get(name, MISSING))
        for name in names
    ]
    return sorted(found, key=lambda change: not change.is_changed)


def _things(state: Any) -> Mapping[str, Any]:
    if state is None:
        return {}
    return state if isinstance(state, Mapping) else {"all": state}


def _told(state: Mapping[str, Any], name: str) -> str:
    value = state.get(name, MISSING)
    if value is MISSING:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _news(request: ScreenRequest, wanted: audit_listing.Wanted, held: str) -> HttpResponse:
    top = moment(held, "top")
    fresh = audit_listing.newer(request.visit.workspace.id, wanted, top, MOST_NEW)
    chain = audit_chain.standing(request.visit.workspace.id)
    token = _token(fresh, chain)
    if request.GET.get("seen") == token:
        return HttpResponse(status=204)
    context = {"fresh": fresh, "chain": chain, "top": top, "token": token}
    return show(request, "audit/_news.html", context)


def _token(fresh: int, chain: audit_chain.Standing) -> str:
    """Changes whenever the list's news would."""
    head = (chain.head.position, chain.head.envelope.key_id) if chain.head else (0, "")
    check = chain.check.id if chain.check else 0
    return f"{fresh}.{head[0]}.{head[1]}.{chain.waiting}.{chain.verdict or ''}.{check}.{len(chain.fault)}"


def _asked(given: QueryDict) -> QueryDict:
    """The filters of an address; a day or a time without its offset is meant in UTC, as all times here."""
    params = given.copy()
    for name in LIVE:
        params.pop(name, None)
    for name in audit_listing.TIMES:
        texts = [text.strip() for text in params.getlist(name)]
        if texts:
            params.setlist(name, [_in_utc(text) for text in texts])
    return params


def _in_utc(text: str) -> str:
    if DAY.fullmatch(text):
        return f"{text}T00:00Z"
    return f"{text.replace(' ', 'T')}Z" if WALL.fullmatch(text) else text


def _chosen(wanted: audit_listing.Wanted) -> dict[str, list[str]]:
    """The values of each filter, as texts."""
    found: dict[str, list[str]] = {}
    for name, values in wanted.given:
        found.setdefault(name, []).extend(map(str, values))
    return found


def _stage(event: AuditEvent, names: Names) -> tuple[str, int] | None:
    """A stage's name and its position in its run, while it is there."""
    if event.stage is None or event.stage not in names.stages:
        return None
    found = Stage.objects.filter(id=event.stage, run__workspace=event.workspace_id).values_list("name", "position")
    return found.first()


def _link(data: Mapping[str, Any], *keys: str) -> uuid.UUID | None:
    """The id that an event keeps under one of these keys."""
    for key in keys:
        try:
            return uuid.UUID(str(data[key]))
        except (KeyError, ValueError):
            continue
    return None
