"""A bulk operation from what is selected to its start: the draft, its plan, the form, and the changed world in place.

Selecting makes a draft: its targets are frozen and nothing else is done. Its page shows what a start would do by how
they stand now and takes what the verb asks, a reason, a pace, a canary and a stop rule. Another choice is shown before
it is done; what was shown is carried as a digest, and when the world has moved the new plan is shown instead (O57).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines.access import RECOVER
from pipelines.console.acts import check_length, missing
from pipelines.console.overview import keys_of
from pipelines.console.screens import ScreenRequest, go_on, record_refused_act, screen, show, typed
from pipelines.errors import Refusal
from pipelines.filters import read_run_filter
from pipelines.models import Environment
from pipelines.sql import database_now
from recovery import bulk_targets, bulks
from recovery.answers import read_override, read_until
from recovery.bulk_plans import BulkPlan, Sample, counted
from recovery.bulk_targets import CHECKPOINT, FAILED_STAGE, MOST_TARGETS, OF_FORKS, Selection, Wish
from recovery.models import BulkOperation
from recovery.screens import bulk_lines, bulk_words
from recovery.states import BulkState, OperationKind

STAGE_NAMED = "stage"  # a rerun from a stage whose name is typed beside it
RATE, CANARY = 20, 0
LARGEST_NUMBER = 10**6


@dataclass(frozen=True, slots=True)
class Terms:
    """What was typed about the start, as it is shown again."""

    reason: str = ""
    rate: str = str(RATE)
    canary: str = ""
    stop: str = ""
    override_reason: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)


acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def bulk_new(request: ScreenRequest) -> HttpResponse:
    """Makes a draft of what is selected, or of all that match the list's filter, and leads to it."""
    kind = _kind(request)
    wish = Wish(kind=kind, selection=_selection(request.POST, kind))
    bulk = bulks.draft(wish, actor=request.visit.actor)
    return go_on(request, address(bulk.id))


@acting
@screen
def bulk_start(request: ScreenRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Starts the draft that was looked at; or shows its plan for other choices, or what has changed in it."""
    actor = request.visit.actor
    bulk = bulks.find(actor, bulk_id)
    actor.require(bulks.capability_of(bulk.kind))
    if request.method != "POST":
        return _show_what_is_left(request, bulk)
    terms = _terms(request, bulk)
    if "look" in request.POST and bulk.state == BulkState.DRAFT:
        return show_draft(request, bulk, terms)
    try:
        if not terms.reason:
            raise missing("reason", "a reason is needed; it goes to the audit log with your name")
        check_length(terms.reason)
        done = bulks.start(
            bulk.id,
            actor=actor,
            reason=terms.reason,
            rate=_whole(terms.rate, "rate", RATE),
            canary=_whole(terms.canary, "canary", CANARY),
            stop_ratio=_ratio(terms.stop),
            override_reason=read_override(request.POST),
            plan_digest=request.POST.get("plan_digest", ""),
            choices=terms.choices,
        )
    except Refusal as refusal:
        if refusal.status in (403, 404) or bulk.state != BulkState.DRAFT:
            raise
        return show_draft(request, bulks.find(actor, bulk_id), terms, refusal)
    if done.status == BulkState.AWAITING_APPROVAL:
        messages.warning(request, "It is kept, and waits until somebody else approves it.", done.status)
    return go_on(request, address(bulk.id))


def show_draft(
    request: ScreenRequest, bulk: BulkOperation, terms: Terms | None = None, refusal: Refusal | None = None
) -> HttpResponse:
    """A draft: what a start would do now, and what it takes; with why it was refused."""
    if refusal is not None:
        record_refused_act(request, refusal)
    terms = terms or Terms(choices=bulk.choices)
    plan = why_not = None
    try:
        plan = _plan_with(bulk, terms.choices, request)
    except Refusal as found:
        why_not = found
    told = plan.shown() if plan else None
    moved = refusal is not None and refusal.code == "plan_changed"
    context = {
        "bulk": bulk,
        "terms": terms,
        "choices": terms.choices or bulk.choices,
        "plan": plan,
        "samples": _samples(plan) if plan else [],
        "refusal": None if moved else refusal or why_not,
        "moved": moved,
        "title": bulk_words.title(bulk, told),
        "steps": bulk_lines.lines(told) if told else [],
        "chosen": bulk_words.chosen(bulk),
        "button": _button(bulk, plan) if plan else "",
        "danger": bulk.kind in bulk_words.DANGEROUS,
        "starts": (CHECKPOINT, FAILED_STAGE),
        "environments": _environments(request) if bulk.kind in OF_FORKS else [],
        "back": reverse("console:dead-letters" if bulk.kind in bulk_targets.OF_LETTERS else "console:runs"),
        "taken": "letters" if bulk.kind in bulk_targets.OF_LETTERS else "runs",
        "tab": "bulk",
    }
    status = refusal.status if refusal else 200
    return show(request, "bulk/draft.html", context, status=status)


def _show_what_is_left(request: ScreenRequest, bulk: BulkOperation) -> HttpResponse:
    """The draft, when somebody asks for the address that starts it."""
    if bulk.state != BulkState.DRAFT:
        raise Refusal("execution_state_invalid", f"it is no draft any more: it is {bulk.state.replace('_', ' ')}")
    return show_draft(request, bulk)


def address(bulk_id: uuid.UUID) -> str:
    return reverse("console:bulk", args=[bulk_id])


def _plan_with(bulk: BulkOperation, choices: Mapping[str, Any], request: ScreenRequest) -> BulkPlan:
    """The plan for these choices; nothing of them is kept before the start."""
    actor = request.visit.actor
    with transaction.atomic():
        was = bulk.choices
        if choices and dict(choices) != was:
            bulk.choices = bulk_targets.read_choices(OperationKind(bulk.kind), choices, actor=actor)
            if bulk.choices.get("from") != was.get("from"):
                bulk_targets.refreeze(bulk)
        plan = bulks.plan_of(bulk, actor=actor)
        transaction.set_rollback(True)
    return plan


def _samples(plan: BulkPlan) -> list[tuple[Sample, str]]:
    """The first targets, each with its run's idempotency key, which tells runs of one name apart."""
    keys = keys_of([one.run_id for one in plan.samples])
    return [(one, keys.get(one.run_id, "")) for one in plan.samples]


def _button(bulk: BulkOperation, plan: BulkPlan) -> str:
    if plan.agreements:
        return "Ask for approval"
    return f"{bulk_words.verb(bulk.kind)} {counted(bulk.kind, plan.acts)}"


def _kind(request: ScreenRequest) -> OperationKind:
    """The verb that was chosen; who may act on nothing is told so before."""
    given = request.POST.get("kind", "")
    known = given in bulks.KINDS
    request.visit.actor.require(bulks.capability_of(given) if known else RECOVER)
    if not known:
        raise missing("kind", f"select rows in a list, and choose one of {', '.join(bulks.KINDS)}")
    return OperationKind(given)


def _selection(params: QueryDict, kind: OperationKind) -> Selection:
    """What the form of a list says: ids in one field and ticked boxes, or the list's own filter."""
    letters = kind in bulk_targets.OF_LETTERS
    if params.get("all"):
        asked = QueryDict(params.get("filter", ""))
        if letters:
            return Selection(letters={name: asked.getlist(name) for name in asked})
        return Selection(runs=read_run_filter(asked, wide=True))
    told = [*params.getlist("ids"), *params.get("selected", "").split()]
    if not told:
        raise missing("ids", "nothing is selected: tick what to act on, or filter the list and take all that match")
    return Selection(ids=tuple(_ids(told)))


def _ids(told: list[str]) -> list[uuid.UUID]:
    try:
        found = list(dict.fromkeys(uuid.UUID(text) for text in told))
    except ValueError as error:
        raise missing("ids", "something selected has no id of ours") from error
    if len(found) > MOST_TARGETS:
        raise missing("ids", f"at most {MOST_TARGETS:,}")
    return found


def _terms(request: ScreenRequest, bulk: BulkOperation) -> Terms:
    given = request.POST
    return Terms(
        reason=typed(given, "reason"),
        rate=typed(given, "rate"),
        canary=typed(given, "canary"),
        stop=typed(given, "stop"),
        override_reason=typed(given, "override_reason"),
        choices=_choices(given, OperationKind(bulk.kind)),
    )


def _choices(given: QueryDict, kind: OperationKind) -> dict[str, Any]:
    """What the form says about the verb, in the words of the engine."""
    if kind == OperationKind.RETRY:
        return {"scope": typed(given, "scope")}
    if kind == OperationKind.PAUSE:
        until = read_until(given, database_now())
        return {"until": until.astimezone(UTC).isoformat() if until else None}
    if kind not in OF_FORKS:
        return {}
    environment = {"environment": typed(given, "environment")}
    if kind == OperationKind.REPLAY:
        return {"freeze_release": bool(given.get("freeze_release")), **environment}
    start = typed(given, "from")
    if start == STAGE_NAMED:
        start = typed(given, "stage")
        if not start:
            raise missing("stage", "the name of the stage at which each is to start")
    return {"from": start or CHECKPOINT, **environment}


def _whole(text: str, name: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and int(text) <= LARGEST_NUMBER):
        raise missing(name, "a whole number")
    return int(text)


def _ratio(text: str) -> float | None:
    """A share in percent, as people write it; blank: no stop rule."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= 100):
        raise missing("stop_ratio", "a whole number of percent, from 0 to 100")
    return int(text) / 100


def _environments(request: ScreenRequest) -> list[str]:
    rows = Environment.objects.filter(workspace_id=request.visit.actor.workspace_id).order_by("rank", "slug")
    return list(rows.values_list("slug", flat=True))
