"""Screens of what may still go on outside after runs were ended: on the run's page, all that is open, and settling."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import aftermath
from pipelines.access import RESOLVE, Actor
from pipelines.console.acts import Act, Step, ask, perform
from pipelines.console.offers import Offer, missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.models import ReconciliationItem
from pipelines.models import ReconciliationKind as Kind
from pipelines.paging import page_of, read_cut

OF_RUN = 20
# kind → the state whose glyph it gets, and a word
BADGES: dict[str, tuple[str, str]] = {
    Kind.RUNNING_ATTEMPT: ("running", "Running"),
    Kind.UNCERTAIN_EFFECT: ("needs_reconciliation", "Uncertain"),
    Kind.OPEN_EFFECT: ("unknown", "Unknown"),
    Kind.OPEN_GATE: ("waiting", "Open gate"),
    Kind.AWAITED_IMPORT: ("waiting", "Awaited"),
    Kind.PROCESS_LEFT: ("running", "Process"),
    Kind.CHILD_RUN: ("running", "Run"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """An open item with what one may do about it."""

    item: ReconciliationItem
    offer: Offer

    @property
    def state(self) -> str:
        return BADGES[self.item.kind][0]

    @property
    def word(self) -> str:
        return BADGES[self.item.kind][1]


@dataclass(frozen=True, slots=True)
class Outside:
    """What the page of a run shows of its items; `more`: there are others, open or settled."""

    open: Sequence[Line]
    settled: Sequence[ReconciliationItem]
    more: bool

    @property
    def is_empty(self) -> bool:
        return not self.open and not self.settled

    @property
    def refusal(self) -> str:
        return self.open[0].offer.refusal if self.open else ""


def outside(actor: Actor, run_id: uuid.UUID) -> Outside:
    found = aftermath.look(run_id, OF_RUN)
    return Outside(_lines(actor, found.open), found.settled, found.more)


@require_safe
@screen
def item_list(request: ScreenRequest) -> HttpResponse:
    """What nobody has settled yet, newest first, narrowed by the address."""
    actor = request.visit.actor
    page = page_of(
        aftermath.OpenFilter.narrow(aftermath.all_open(actor), request.GET), read_cut(request.GET), aftermath.ORDER
    )
    refusal = "" if actor.may(RESOLVE) else missing_right(actor, RESOLVE, "settle these")
    kinds = [(kind, word) for kind, (_, word) in BADGES.items()]
    context = {"page": page, "lines": _lines(actor, page.rows), "refusal": refusal, "kinds": kinds}
    return show(request, "runs/reconciliation.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@screen
def settle(request: ScreenRequest, left_id: uuid.UUID) -> HttpResponse:
    """Says what became of something outside. The reason that is asked for is the note that is kept."""
    actor = request.visit.actor
    item = aftermath.find(actor, left_id)
    act = Act(
        title=f"Settle what {item.stage.name} of {item.run.name} left outside",
        needs=RESOLVE,
        steps=[
            Step("completed", "Settled", "with your name and what you write; it is never changed after that"),
            Step(item.run.status, "Stays", f"the run {item.run.name}: nothing of it moves"),
        ],
        facts=[("Listed", item.detail), ("Since", f"{item.opened_at:%Y-%m-%d %H:%M:%S} UTC")],
        warning="Look at it first: the console knows no more than what is listed here.",
        help="Write what became of it: that is the note that is kept.",
        button="Settle it",
        back=f"{reverse('console:run', args=[item.run_id])}",
        reason_required=True,
    )

    def carry_out(note: str) -> str:
        aftermath.settle(item.run_id, item.id, actor=actor, note=note)
        messages.success(request, f"Settled: {item.detail}.", "completed")
        return act.back

    if item.resolved_at is not None and request.method != "POST":
        actor.require(RESOLVE)
        said = f"{item.resolved_name} settled it at {item.resolved_at:%Y-%m-%d %H:%M:%S} UTC: {item.note}"
        return ask(request, replace(act, is_possible=False), "", Refusal("idempotency_conflict", said))
    return perform(request, act, carry_out)


def _lines(actor: Actor, items: Sequence[ReconciliationItem]) -> list[Line]:
    refusal = "" if actor.may(RESOLVE) else missing_right(actor, RESOLVE)
    return [Line(item, _offer(item, refusal)) for item in items]


def _offer(item: ReconciliationItem, refusal: str) -> Offer:
    """An open effect is settled by what is found out about it, all others by a note."""
    if item.kind == Kind.OPEN_EFFECT and item.subject is not None:
        return Offer("effect-reconcile", "Reconcile…", item.subject, refusal)
    return Offer("reconciliation-settle", "Settle…", item.id, refusal)
