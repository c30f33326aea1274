"""The planner of backfills: a window chosen by text or in calendars, the plan of it live, and the form that starts it.

The address is the state, so that a plan can be sent to somebody; looking changes nothing. The form carries the digest
of what it showed: when the world has moved, nothing is done and the same page comes back with the new plan, what
changed in it marked (O51–O57, F80, F108).
"""

from __future__ import annotations

import calendar
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, cached_property
from typing import Any

from django.contrib import messages
from django.core import signing
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import trigger_queries
from pipelines.access import FORK, Actor
from pipelines.console.acts import Step, check_length
from pipelines.console.offers import missing_right
from pipelines.console.screens import ScreenRequest, go_on, record_refused_act, screen, show, typed
from pipelines.console.trigger_pages import readiness
from pipelines.errors import Refusal
from pipelines.models import Trigger
from pipelines.schedules import Due, Gap, Overlap
from pipelines.sql import database_now
from pipelines.zones import zone
from recovery import backfills
from recovery.answers import read_override
from recovery.backfill_plans import MOST_TICKS, Plan
from recovery.models import Reprocess
from recovery.screens import backfill_lines, calendars, planner_state, tick_days
from recovery.screens.calendars import Month
from recovery.screens.planner_state import Planner
from recovery.states import BackfillState

SALT = "backfill that was shown"
LISTED = 12  # ticks that the plan names one by one
# what a refusal calls a field → what the form calls it
FIELDS = {"from_time": "from", "to_time": "to", "max_ticks": "to"}
WORDS = {"from_time": "from", "to_time": "to", "give override_reason": "say why"}  # what refusals say, as forms say it
REPROCESS = (
    (Reprocess.NONE, "only what is missed"),
    (Reprocess.FAILED, "also what failed or was cancelled"),
    (Reprocess.ALL, "also what has ended well"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a form had shown; without a digest nothing."""

    digest: str = ""
    steps: tuple[Step, ...] = ()
    key: str = ""


@dataclass
class Look:
    """The planner as it is shown. `gone` is what the plan before had and this one has not, where it `moved`."""

    trigger: Trigger
    state: Planner
    months: list[Month]
    earlier: str
    later: str
    sentence: str
    plan: Plan | None = None
    digest: str = ""
    skipped: int = 0
    steps: list[Step] = field(default_factory=list)
    gone: list[Step] = field(default_factory=list)
    ticks: list[Due] = field(default_factory=list)
    moved: bool = False
    shown: str = ""
    button: str = ""
    why_not: str = ""
    refusal: Refusal | None = None
    errors: dict[str, list[str]] = field(default_factory=dict)

    weekdays = tuple(calendar.day_name)
    legend = tuple((fate, calendars.WORDS[fate]) for fate in calendars.WORST_FIRST)

    @cached_property
    def address(self) -> str:
        return reverse("console:backfill-planner", args=[self.trigger.id])

    @property
    def carried(self) -> list[tuple[str, str]]:
        """What the form that confirms says of the window and how: the same as the address."""
        return list(self.state.carried().items())

    @property
    def why(self) -> str:
        """The refusal in the words of the form."""
        return _in_words(self.refusal.detail) if self.refusal else ""

    @property
    def more(self) -> int:
        """How many more ticks the plan fills than are named."""
        return self.plan.total_ticks - len(self.ticks) if self.plan else 0


@require_safe
@screen
def planner(request: ScreenRequest, trigger_id: uuid.UUID) -> HttpResponse:
    """The planner at what its address says; HTMX asks for the plan alone, or for all of it when a day was picked."""
    actor = request.visit.actor
    trigger = trigger_queries.find_trigger(actor, trigger_id)
    now = database_now()
    names_window = request.GET.get("from") or request.GET.get("to") or request.GET.get("pick")
    state = planner_state.read(request.GET, trigger, now, None if names_window else _missed(trigger))
    picked = planner_state.day_of(request.GET.get("pick", ""))
    if picked is not None:
        address = f"?{state.picking(picked).address()}"
        if not request.htmx:
            return HttpResponseRedirect(f"{request.path}{address}")
        state = planner_state.read(QueryDict(address[1:]), trigger, now, None)
    look = _look(actor, trigger, state, now, Shown())
    part = "backfills/_planner.html" if request.htmx.target == "planner" else "backfills/_recount.html"
    response = show(request, "backfills/planner.html", _context(look, "", ""), part=part)
    if request.htmx:
        response["HX-Replace-Url"] = f"{request.path}?{state.address()}"
    return response


@require_http_methods(["GET", "HEAD", "POST"])
@screen
def start(request: ScreenRequest, trigger_id: uuid.UUID) -> HttpResponse:
    """Starts what the form showed, or asks for the approval that it needs."""
    actor = request.visit.actor
    trigger = trigger_queries.find_trigger(actor, trigger_id)
    actor.require(FORK)
    if request.method != "POST":
        return planner(request, trigger_id)
    state = planner_state.read(request.POST, trigger, database_now(), None)
    shown = _read(request.POST.get("shown", ""))
    reason, override = typed(request.POST, "reason"), typed(request.POST, "override_reason")
    try:
        check_length(reason)
        if not state.is_ready or not shown.digest:
            raise Refusal("validation_error", "choose a window, and look at its plan first")
        done = backfills.start(
            _wish(trigger, state, reason, read_override(request.POST)),
            actor=actor,
            key=shown.key,
            plan_digest=shown.digest,
        )
    except Refusal as refusal:
        if refusal.status in (403, 404):
            raise
        record_refused_act(request, refusal)
        look = _look(actor, trigger, state, database_now(), shown, refusal)
        context = _context(look, reason, override)
        return show(request, "backfills/planner.html", context, status=refusal.status)
    _tell(request, done)
    return go_on(request, reverse("console:backfill", args=[done.backfill.id]))


def _tell(request: ScreenRequest, done: backfills.Answer) -> None:
    if done.replayed:
        messages.info(request, "A duplicate request: this was started already, and is not started twice.", "no_op")
    elif done.status == BackfillState.AWAITING_APPROVAL:
        messages.warning(request, "It is kept, and waits until somebody else approves it.", done.status)
    else:
        messages.success(request, "The backfill is started; its runs are let in a few at a time.", done.status)


def _context(look: Look, reason: str, override: str) -> dict[str, Any]:
    return {
        "look": look,
        "trigger": look.trigger,
        "reason": reason,
        "override_reason": override,
        "lacking": cache(lambda: readiness(look.trigger)[1]),  # only the whole page says it
        "gaps": Gap.values,
        "overlaps": Overlap.values,
        "orders": backfill_lines.ORDERS.items(),
        "reprocesses": REPROCESS,
        "tab": "backfills",
    }


def _look(
    actor: Actor, trigger: Trigger, state: Planner, now: datetime, before: Shown, refusal: Refusal | None = None
) -> Look:
    schedule = state.schedule
    today = now.astimezone(zone(schedule.timezone)).date()
    first, last = calendars.span(state.month)
    fates = tick_days.fates(trigger, schedule, first, last, now)
    look = Look(
        trigger=trigger,
        state=state,
        months=calendars.months(state.month, fates, state.chosen, today),
        earlier=_other_month(state, -1),
        later=_other_month(state, 1),
        sentence=schedule.sentence(),
        refusal=refusal,
        errors={name: list(said) for name, said in state.errors.items()},
    )
    if refusal is not None and refusal.errors:
        look.errors |= _errors(refusal)
    if state.is_ready:
        _add_plan(look, actor, before)
    if not actor.may(FORK):
        look.why_not, look.button = missing_right(actor, FORK, "start a backfill"), ""
    return look


def _add_plan(look: Look, actor: Actor, before: Shown) -> None:
    try:
        plan = backfills.preview(_wish(look.trigger, look.state), actor)
    except Refusal as refusal:
        look.refusal = look.refusal or refusal
        look.errors |= _errors(refusal)
        return
    told = plan.as_json()
    look.plan, look.digest, look.skipped = plan, told["plan_digest"], told["skipped"]
    steps = tuple(backfill_lines.lines(told))
    look.moved = bool(before.digest) and before.digest != look.digest
    look.steps = [replace(step, is_new=look.moved and step not in before.steps) for step in steps]
    look.gone = [step for step in before.steps if step not in steps] if look.moved else []
    look.ticks = [one.due for one in plan.missed[:LISTED]]
    look.button = _button(plan)
    key = before.key if before.digest == look.digest else str(uuid.uuid4())
    look.shown = _write(Shown(look.digest, steps, key))


def _errors(refusal: Refusal) -> dict[str, list[str]]:
    """What is wrong, by the form's fields and in its words."""
    return {FIELDS.get(name, name): [_in_words(text) for text in said] for name, said in (refusal.errors or {}).items()}


def _in_words(text: str) -> str:
    for name, ours in WORDS.items():
        text = text.replace(name, ours)
    return text


def _button(plan: Plan) -> str:
    """What confirming comes to; blank where there is nothing to do."""
    if not plan.total_ticks:
        return ""
    runs = backfill_lines.runs(plan.total_ticks)
    if plan.agreements:
        return f"Ask for approval of {runs}"
    return f"Make {runs}, {plan.asked.max_concurrent:,} at a time"


def _wish(trigger: Trigger, state: Planner, reason: str = "", override: str = "") -> backfills.Wish:
    """What the state asks for; it may have as many ticks as any, since the button counts them."""
    if state.start is None or state.end is None:
        raise Refusal("validation_error", "choose a window first")
    schedule = state.schedule
    return backfills.Wish(
        trigger_id=trigger.id,
        from_time=state.start,
        to_time=state.end,
        cron=schedule.cron,
        timezone=schedule.timezone,
        gap=schedule.gap,
        overlap=schedule.overlap,
        max_concurrent=state.max_concurrent,
        reprocess=state.reprocess,
        order=state.order,
        max_ticks=MOST_TICKS,
        reason=reason,
        override_reason=override,
    )


def _missed(trigger: Trigger) -> tuple[datetime, datetime] | None:
    standing = trigger_queries.standing_of(trigger)
    if standing.missed_from is None or standing.missed_to is None:
        return None
    return standing.missed_from, standing.missed_to


def _other_month(state: Planner, months_later: int) -> str:
    month = calendars.shifted(state.month, months_later)
    return f"?{state.address(month=f'{month:%Y-%m}')}"


def _write(shown: Shown) -> str:
    steps: Sequence[Sequence[str]] = [[step.status, step.word, step.text] for step in shown.steps]
    return signing.dumps([shown.digest, steps, shown.key], salt=SALT, compress=True)


def _read(text: str) -> Shown:
    """What the form had shown; nothing, for a form of ours that was altered or is not ours."""
    try:
        digest, steps, key = signing.loads(text, salt=SALT) if text else ("", (), "")
    except signing.BadSignature:
        return Shown()
    return Shown(digest, tuple(Step(*step) for step in steps), key)
