"""Screens of backfills: all of them; one with how far it is, live; its ticks; pause, resume, cancel.

All numbers are counted from ticks and runs at the moment of looking (F115, F116).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from approvals.models import ApprovalRequest
from pipelines import blackouts
from pipelines.access import CANCEL, STEER, Actor
from pipelines.console import whys
from pipelines.console.acts import Act, Step, perform
from pipelines.console.offers import Offer, missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.models import Run
from pipelines.paging import page_of, read_cut
from pipelines.schedules import Due, Schedule
from pipelines.states import TERMINAL_RUN, RunStatus
from pipelines.trigger_queries import BY_INSTANT
from recovery import backfill_waiting, backfills
from recovery.answers import read_override
from recovery.backfill_progress import Progress, failures
from recovery.filters import BackfillFilter, BackfillTickFilter
from recovery.models import Backfill, BackfillOrder, BackfillTick
from recovery.screens import backfill_lines
from recovery.states import TERMINAL_BACKFILL, BackfillState, BackfillTickState

acting = require_http_methods(["GET", "HEAD", "POST"])
FIRST = 8  # failures, and active runs, that are named
WIDTH = 1000  # of the bar, in its own units
# of the bar, in its order: state of its colour and word, and what is counted
SEGMENTS = (
    ("completed", "completed"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
    ("running", "active"),
    ("queued", "held"),
    ("pending", "to be made"),
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One colour of the bar: `x` and `width` of `WIDTH`."""

    status: str
    word: str
    count: int
    x: float
    width: float

    @property
    def is_to_come(self) -> bool:
        return self.status in ("queued", "pending")


@dataclass(frozen=True, slots=True)
class Trouble:
    """A tick that came to nothing: its run could not be made, failed or was cancelled."""

    at: datetime
    run: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Look:
    """A backfill as its page shows it; `token` changes whenever anything of it would."""

    backfill: Backfill
    progress: Progress
    segments: list[Segment]
    troubles: list[Trouble]
    active: list[Run]
    blackout: blackouts.Active | None
    whys: list[whys.Why]
    token: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of it changes any more by itself."""
        ended = self.backfill.state in TERMINAL_BACKFILL and self.backfill.finished_at is not None
        return ended and not (self.progress.active or self.progress.held)

    @property
    def share(self) -> int:
        """How many of a hundred ticks are over; all of them only when it is so."""
        total = self.progress.total
        return 100 if not total else int(self.progress.ended * 100 / total)


@require_safe
@screen
def backfill_list(request: ScreenRequest) -> HttpResponse:
    """The backfills of the workspace, newest first, narrowed by the address."""
    rows = BackfillFilter.narrow(backfills.visible(request.visit.actor), request.GET)
    page = page_of(rows.defer("request"), read_cut(request.GET))
    context = {"page": page, "states": _shown_states(), "tab": "backfills"}
    return show(request, "backfills/list.html", context)


@require_safe
@screen
def backfill_page(request: ScreenRequest, backfill_id: uuid.UUID) -> HttpResponse:
    """How far a backfill is; HTMX asks for that alone, and gets 204 while it is as `seen`."""
    actor = request.visit.actor
    look = _look(backfills.find(actor, backfill_id))
    if request.htmx and request.GET.get("seen") == look.token:
        return HttpResponse(status=204)
    backfill = look.backfill
    plan = backfill.plan or {}
    context = {
        "look": look,
        "backfill": backfill,
        "offers": _offers(backfill, actor),
        "schedule": Schedule.of(backfill).sentence(),
        "steps": [*backfill_lines.deeds(plan)] if plan else [],
        "order": backfill_lines.ORDERS[BackfillOrder(backfill.order)],
        "asked": ApprovalRequest.objects.filter(subject=backfill.id).order_by("-round").first(),
        "tab": "backfills",
    }
    return show(request, "backfills/backfill.html", context, part="backfills/_progress.html")


@require_safe
@screen
def backfill_ticks(request: ScreenRequest, backfill_id: uuid.UUID) -> HttpResponse:
    """Every tick of a backfill, oldest first, with its run."""
    backfill = backfills.find(request.visit.actor, backfill_id)
    rows = BackfillTickFilter.narrow(BackfillTick.objects.filter(backfill=backfill), request.GET)
    page = page_of(rows, read_cut(request.GET, BY_INSTANT), ("at",), descending=False)
    schedule = Schedule.of(backfill)
    runs = Run.objects.in_bulk([tick.run for tick in page.rows if tick.run is not None])
    context = {
        "backfill": backfill,
        "page": page,
        "schedule": schedule,
        "ticks": [
            (tick, runs.get(tick.run) if tick.run else None, Due.kept(tick.at, schedule.timezone, tick.rule))
            for tick in page.rows
        ],
        "states": BackfillTickState.values,
        "tab": "backfills",
    }
    return show(request, "backfills/ticks.html", context)


@acting
@screen
def pause(request: ScreenRequest, backfill_id: uuid.UUID) -> HttpResponse:
    """Says what goes on and what stops, then lets nothing more in."""
    backfill = backfills.find(request.visit.actor, backfill_id)
    found = backfills.progress(backfill)
    act = Act(
        title=f"Pause {_title(backfill)}",
        needs=STEER,
        steps=[
            *_counted("running", "Go on", found.active, "to their end: {} that {} let in"),
            *_counted("queued", "Stay held", found.held + found.pending, "{} that {} not let in yet"),
            Step("superseded", "Untouched", f"when {backfill.trigger.name} is due next"),
        ],
        button="Pause the backfill",
        back=_address(backfill),
    )

    def carry_out(reason: str) -> str:
        done = backfills.pause(backfill.id, request.visit.actor, reason)
        messages.success(request, "Nothing more is let in; what is in goes on.", done.status)
        return _address(backfill)

    return perform(request, act, carry_out)


@acting
@screen
def resume(request: ScreenRequest, backfill_id: uuid.UUID) -> HttpResponse:
    """Says how many are let in again; in a blackout it asks why."""
    backfill = backfills.find(request.visit.actor, backfill_id)
    found = backfills.progress(backfill)
    trigger = backfill.trigger
    holds = blackouts.active(backfill.workspace_id, trigger.environment_id, trigger.id)
    at_once = f"at most {backfill.max_concurrent:,} at a time"
    act = Act(
        title=f"Resume {_title(backfill)}",
        needs=STEER,
        steps=[*_counted("ready", "Let in", found.held + found.pending, f"{{}} that {{}} held, {at_once}")],
        button="Resume the backfill",
        back=_address(backfill),
        warning=holds.sentence() if holds else "",
        fields="backfills/_override_field.html" if holds and not backfill.override_reason else "",
        answers={"given": request.POST},
    )

    def carry_out(reason: str) -> str:
        done = backfills.resume(backfill.id, request.visit.actor, reason, read_override(request.POST))
        messages.success(request, "Its runs are let in again.", done.status)
        return _address(backfill)

    return perform(request, act, carry_out)


@acting
@screen
def cancel(request: ScreenRequest, backfill_id: uuid.UUID) -> HttpResponse:
    """Says what goes on, what is cancelled and what is missed again, asks for the reason, then cancels (F82)."""
    backfill = backfills.find(request.visit.actor, backfill_id)
    found = backfills.progress(backfill)
    ended = found.completed + found.runs.get(RunStatus.FAILED, 0)
    act = Act(
        title=f"Cancel {_title(backfill)}",
        needs=CANCEL,
        steps=[
            *_counted("completed", "Stay", ended, "{} that {} ended"),
            *_counted("running", "Go on", found.active, "to their end: {} that {} let in"),
            *_counted("cancelled", "Cancelled", found.never_in, "{} that {} held; their ticks are missed again"),
            *_counted("queued", "Wait on", found.recovered, "for their turn: {} that {} recovered by hand"),
            *_counted("pending", "Never made", found.pending, "{} that {} to be made; their ticks stay missed"),
            Step("superseded", "Afterwards", "another backfill may fill what is missed again"),
        ],
        warning="A cancelled backfill stays so.",
        button="Cancel the backfill",
        back=_address(backfill),
        danger=True,
        reason_required=True,
    )

    def carry_out(reason: str) -> str:
        done = backfills.cancel(backfill.id, request.visit.actor, reason)
        left = done.progress.never_in
        told = f"{backfill_lines.runs(left)} are still being cancelled." if left else "What is in goes on."
        messages.success(request, f"The backfill is cancelled. {told}", done.status)
        return _address(backfill)

    return perform(request, act, carry_out)


def _look(backfill: Backfill) -> Look:
    found = backfills.progress(backfill)
    trigger = backfill.trigger
    holds = None
    if backfill.state in (BackfillState.RUNNING, BackfillState.PAUSED) and not backfill.override_reason:
        holds = blackouts.active(backfill.workspace_id, trigger.environment_id, trigger.id)
    troubles = _troubles(backfill) if found.troubled else []
    active = _active(backfill) if found.active else []
    blockers = backfill_waiting.blockers(backfill, found, holds)
    told = (
        backfill.state,
        backfill.finished_at,
        [one.cause for one in blockers],
        found.as_json() | {"eta_seconds": None},
        [(one.id, one.status) for one in active],
        [(one.at, one.code) for one in troubles],
        holds.id if holds else None,
    )
    token = sha256(repr(told).encode()).hexdigest()[:16]
    lines = whys.tell(blockers, subject="The backfill", trigger_id=trigger.id, backfill_id=backfill.id)
    return Look(backfill, found, _segments(found), troubles, active, holds, lines, token)


def _segments(found: Progress) -> list[Segment]:
    counts = {
        "completed": found.completed + found.runs.get("removed", 0),
        "failed": found.failed + found.runs.get(RunStatus.FAILED, 0),
        "cancelled": found.ticks.get(BackfillTickState.CANCELLED, 0) + found.runs.get(RunStatus.CANCELLED, 0),
        "running": found.active,
        "queued": found.held,
        "pending": found.pending,
    }
    total = max(sum(counts.values()), 1)
    x, segments = 0.0, []
    for status, word in SEGMENTS:
        width = counts[status] * WIDTH / total
        segments.append(Segment(status, word, counts[status], round(x, 2), round(width, 2)))
        x += width
    return segments


def _troubles(backfill: Backfill) -> list[Trouble]:
    return [
        Trouble(datetime.fromisoformat(one["tick_time"]), one["execution_id"], one["code"], one["message"])
        for one in failures(backfill, FIRST)
    ]


def _active(backfill: Backfill) -> list[Run]:
    rows = Run.objects.filter(lane_id=backfill.id, held=False).exclude(status__in=TERMINAL_RUN)
    return list(rows.order_by("lane_rank", "id")[:FIRST])


def _offers(backfill: Backfill, actor: Actor) -> list[Offer]:
    state = backfill.state
    may_steer = "" if actor.may(STEER) else missing_right(actor, STEER)
    may_cancel = "" if actor.may(CANCEL) else missing_right(actor, CANCEL)
    ended = f"It is {state.replace('_', ' ')}." if state in TERMINAL_BACKFILL else ""
    waits = "It waits for approval: withdraw it there." if state == BackfillState.AWAITING_APPROVAL else ""
    paused = "It is paused already." if state == BackfillState.PAUSED else ""
    runs = "It is not paused." if state == BackfillState.RUNNING else ""
    return [
        Offer("backfill-pause", "Pause…", backfill.id, may_steer or ended or waits or paused),
        Offer("backfill-resume", "Resume…", backfill.id, may_steer or ended or waits or runs),
        Offer("backfill-cancel", "Cancel…", backfill.id, may_cancel or ended or waits, danger=True),
    ]


def _counted(status: str, word: str, count: int, text: str) -> Sequence[Step]:
    """A line of so many runs; none of none."""
    if not count:
        return ()
    return (Step(status, word, text.format(backfill_lines.runs(count), "was" if count == 1 else "were")),)


def _shown_states() -> list[str]:
    return [state for state in BackfillState.values if state != BackfillState.PREVIEWED]


def _title(backfill: Backfill) -> str:
    return f"the backfill of {backfill.trigger.name}"


def _address(backfill: Backfill) -> str:
    return reverse("console:backfill", args=[backfill.id])
