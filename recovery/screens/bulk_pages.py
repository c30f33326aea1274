"""Screens of bulk operations: all of them; one as a draft with its plan, or with how far it is, live; its targets.

All numbers are counted from targets at the moment of looking (F152). A bulk goes on whether anybody looks or not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from approvals.models import ApprovalRequest
from pipelines.access import Actor
from pipelines.console.offers import Offer, missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.filters import chosen as one_of
from pipelines.filters import refuse_unknown
from pipelines.paging import Cut, number, page_of, read_cut
from recovery import bulks
from recovery.bulk_progress import BulkItemLine, BulkProgress
from recovery.filters import BulkFilter
from recovery.models import BulkOperation
from recovery.screens import bulk_drafts, bulk_lines, bulk_words
from recovery.states import TERMINAL_BULK, BulkItemState, BulkState

WIDTH = 1000  # of the bar, in its own units
FIRST = 8  # of what failed or was denied, beside the progress
SEGMENTS = ("done", "failed", "denied", "skipped", "pending")


@dataclass(frozen=True, slots=True)
class Segment:
    """One colour of the bar: `x` and `width` of `WIDTH`."""

    status: str
    count: int
    x: float
    width: float

    @property
    def is_to_come(self) -> bool:
        return self.status == BulkItemState.PENDING


@dataclass(frozen=True, slots=True)
class Look:
    """A bulk as its page shows it; `token` changes whenever anything of it would."""

    bulk: BulkOperation
    progress: BulkProgress
    segments: list[Segment]
    troubles: Sequence[BulkItemLine]
    token: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more by itself; a look at its targets follows its end."""
        ended = self.bulk.state in TERMINAL_BULK
        return ended and (self.bulk.verified_at is not None or self.bulk.state == BulkState.EXPIRED)

    @property
    def share(self) -> int:
        """How many of a hundred targets are dealt with; all of them only when it is so."""
        total = self.progress.total
        return 100 if not total else int(self.progress.decided * 100 / total)


@require_safe
@screen
def bulk_list(request: ScreenRequest) -> HttpResponse:
    """The bulk operations of the workspace, newest first, narrowed by the address."""
    rows = BulkFilter.narrow(bulks.visible(request.visit.actor), request.GET)
    page = page_of(rows if "status" in request.GET else rows.exclude(state=BulkState.EXPIRED), read_cut(request.GET))
    context = {
        "page": page,
        "rows": [(bulk, bulk_words.title(bulk, bulk.plan)) for bulk in page.rows],
        "states": [state for state in BulkState.values if state != BulkState.EXPIRED],
        "kinds": [kind.value for kind in bulks.KINDS],
        "tab": "bulk",
    }
    return show(request, "bulk/list.html", context)


@require_safe
@screen
def bulk_page(request: ScreenRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """A draft with its plan and what starting it takes; later how far it is, of which HTMX asks for that alone."""
    actor = request.visit.actor
    bulk = bulks.find(actor, bulk_id)
    if bulk.state == BulkState.DRAFT:
        return bulk_drafts.show_draft(request, bulk)
    look = _look(bulk)
    if request.htmx and request.GET.get("seen") == look.token:
        return HttpResponse(status=204)
    context = {
        "look": look,
        "bulk": bulk,
        "offers": _offers(bulk, actor),
        "title": bulk_words.title(bulk, bulk.plan),
        "steps": bulk_lines.lines(bulk.plan) if bulk.plan else [],
        "chosen": bulk_words.chosen(bulk),
        "choices": bulk_words.choices(bulk.kind, bulk.choices),
        "asked": ApprovalRequest.objects.filter(subject=bulk.id).order_by("-round").first(),
        "tab": "bulk",
    }
    return show(request, "bulk/bulk.html", context, part="bulk/_progress.html")


@require_safe
@screen
def bulk_items(request: ScreenRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Every target of a bulk, in its order, with what became of it."""
    bulk = bulks.find(request.visit.actor, bulk_id)
    refuse_unknown(request.GET, {"status"})
    states = one_of(request.GET, "status", BulkItemState.values)
    page = bulks.items(bulk, states=states, cut=read_cut(request.GET, (number,)))
    context = {
        "bulk": bulk,
        "page": page,
        "states": BulkItemState.values,
        "title": bulk_words.title(bulk, bulk.plan),
        "tab": "bulk",
    }
    return show(request, "bulk/items.html", context)


def _look(bulk: BulkOperation) -> Look:
    found = bulks.progress(bulk)
    troubled = found.failed + found.denied
    states = (BulkItemState.FAILED, BulkItemState.DENIED)
    troubles = bulks.items(bulk, states=states, cut=Cut(FIRST)).rows if troubled else []
    told: list[Any] = [
        bulk.state,
        bulk.held_reason,
        bulk.verified_at,
        found.as_json() | {"eta_seconds": None, "per_second": round(found.per_second)},
        [one.position for one in troubles],
    ]
    token = sha256(repr(told).encode()).hexdigest()[:16]
    return Look(bulk, found, _segments(found), troubles, token)


def _segments(found: BulkProgress) -> list[Segment]:
    x, segments = 0.0, []
    for status in SEGMENTS:
        count = getattr(found, status)
        width = count * WIDTH / max(found.total, 1)
        segments.append(Segment(status, count, round(x, 2), round(width, 2)))
        x += width
    return segments


def _offers(bulk: BulkOperation, actor: Actor) -> list[Offer]:
    needs = bulks.capability_of(bulk.kind)
    refusal = "" if actor.may(needs) else missing_right(actor, needs)
    state = bulk.state
    if not refusal and state in TERMINAL_BULK:
        refusal = f"It is {state.replace('_', ' ')}."
    if not refusal and state == BulkState.AWAITING_APPROVAL:
        refusal = "It waits for approval: withdraw it there."
    held = {BulkState.WAITING: "Go on…", BulkState.HALTED: "Go on all the same…"}.get(BulkState(state), "Resume…")
    return [
        Offer("bulk-pause", "Pause…", bulk.id, refusal or _unless(state, BulkState.RUNNING, BulkState.WAITING)),
        Offer("bulk-resume", held, bulk.id, refusal or ("It goes on already." if state == BulkState.RUNNING else "")),
        Offer("bulk-abort", "Abort…", bulk.id, refusal, danger=True),
    ]


def _unless(state: str, *takes: BulkState) -> str:
    return "" if state in takes else f"It is {state.replace('_', ' ')}."
