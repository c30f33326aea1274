"""The page on which a gate or a request is decided: all of what follows first, then one form (P84, F136, F138).

Looking decides nothing, whatever the address: only the form does, and it names what it showed, the gate itself or the
digest of the plan. When the world has moved the same page comes back with the new plan, what changed in it marked and
what was typed still there. Who may not decide is told why in place of the form.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import cast

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from approvals import gates, inbox, requests
from approvals.gates import Carried, Given
from approvals.inbox import GATE, Item
from approvals.models import ApprovalRequest
from approvals.screens import consequences, plans, words
from approvals.states import RequestState
from approvals.transitions import decide_gate
from pipelines import queries
from pipelines.access import DECIDE, Actor
from pipelines.console.acts import Step, check_length
from pipelines.console.screens import ScreenRequest, go_on, record_refused_act, screen, show, typed
from pipelines.errors import Refusal
from pipelines.models import Attempt, Gate, Run, Stage, StageOutput
from pipelines.sql import database_now
from pipelines.states import GateState

acting = require_http_methods(["GET", "HEAD", "POST"])
REFUSED = Step("denied", "Ends", "it will not be done; whoever wants it must ask anew")
EARLIER = 20  # rounds, or gates of the stage


@dataclass(frozen=True, slots=True)
class Round:
    """An earlier round of a request: who decided about it, and what the next one did otherwise."""

    item: Item
    came: list[Step]
    went: list[Step]


@dataclass(frozen=True, slots=True)
class AtGate:
    """What only a gate has: its stage, the attempt and the result that it is about, and the stage's other gates."""

    gate: Gate
    stage: Stage
    attempt: Attempt | None
    output: StageOutput | None
    others: list[Gate]


@dataclass(slots=True)
class Look:
    """The decision page: `steps` follow on approval, `otherwise` on rejection, `in_time` on neither.

    Where the form had shown another plan, `moved`: what is new in `steps` is marked, and what is `gone` told. `drift`
    is how the plan of the world as it is now differs from the one that waits, (new, gone); `obstacle` why it could not
    be done now. `given` is what who asks wrote for the stage. `carried` is what came of a request that is closed,
    `target` the new run where that made one.
    """

    item: Item
    run: Run | None
    steps: list[Step]
    otherwise: list[Step]
    in_time: str
    now: datetime
    at_gate: AtGate | None = None
    rounds: list[Round] = field(default_factory=list)
    gone: list[Step] = field(default_factory=list)
    moved: bool = False
    drift: tuple[list[Step], list[Step]] | None = None
    obstacle: str = ""
    given: Given | None = None
    carried: Carried | None = None
    target: Run | None = None

    @property
    def title(self) -> str:
        return words.title(self.item)

    @property
    def told(self) -> list[Step]:
        """`steps` as they are read: of a request whether one approval is enough, and who must agree only where that is
        new, since the facts say it.
        """
        if self.at_gate is not None:
            return self.steps
        plan = [step for step in self.steps if step.is_new or step.status != plans.AGREEMENT]
        return [*consequences.not_the_last(self.short), *plan]

    @property
    def short(self) -> int:
        """How many approvals it needs beyond the next one."""
        return max(self.item.count - self.item.have - 1, 0) if self.item.is_open else 0

    @property
    def kind(self) -> tuple[str, str]:
        return words.kind(self.item)

    @property
    def roles(self) -> str:
        return words.roles(self.item)

    @property
    def outcome(self) -> str:
        return words.outcome(self.item)

    @property
    def is_short(self) -> bool:
        return words.is_short(self.item, self.now)

    @property
    def token(self) -> str:
        """What the form was made for: another state or round needs another form."""
        return f"{self.item.state}.{self.item.round}"

    @property
    def beat(self) -> str:
        return _beat(self.item)


@require_safe
@screen
def approval(request: ScreenRequest, item_id: uuid.UUID) -> HttpResponse:
    """The page; HTMX asks for how it stands alone, and gets 204 while that is as `seen`."""
    actor = request.visit.actor
    item = inbox.find(actor, item_id)
    if request.htmx and request.GET.get("seen") == _beat(item):
        return HttpResponse(status=204)
    look = _look(actor, item)
    context = {"look": look, "reason": "", "refusal": None, "form": request.GET.get("form", look.token)}
    return show(request, "approvals/decision.html", context, part="approvals/_standing.html")


@acting
@screen
def approve(request: ScreenRequest, item_id: uuid.UUID) -> HttpResponse:
    """Approves what the form showed; the last approval that is needed lets it go on at once."""
    return _decide(request, item_id, approved=True)


@acting
@screen
def reject(request: ScreenRequest, item_id: uuid.UUID) -> HttpResponse:
    """Rejects it for good, with a reason."""
    return _decide(request, item_id, approved=False)


@acting
@screen
def withdraw(request: ScreenRequest, item_id: uuid.UUID) -> HttpResponse:
    """Takes back one's own request."""
    actor = request.visit.actor
    item = inbox.find(actor, item_id)
    if request.method != "POST":
        return _page(request, item)
    reason = _reason(request)
    try:
        check_length(reason)
        requests.withdraw(item_id, actor=actor, reason=reason)
    except Refusal as refusal:
        return _refused(request, item, reason, refusal)
    messages.success(request, f"Withdrawn: {words.title(item)}. Nothing of it was done.", "withdrawn")
    return go_on(request, _address(item))


def _decide(request: ScreenRequest, item_id: uuid.UUID, *, approved: bool) -> HttpResponse:
    actor = request.visit.actor
    item = inbox.find(actor, item_id)
    if request.method != "POST":
        actor.require(DECIDE)
        return _page(request, item)
    reason = _reason(request)
    try:
        check_length(reason)
        if item.type == GATE:
            _decide_gate(request, item, approved, reason)
        else:
            _decide_request(request, item, approved, reason)
    except Refusal as refusal:
        return _refused(request, item, reason, refusal)
    return go_on(request, _address(item))


def _decide_gate(request: ScreenRequest, item: Item, approved: bool, reason: str) -> None:
    stage_id, actor = cast(uuid.UUID, item.stage_id), request.visit.actor
    done = decide_gate(stage_id, actor=actor, approved=approved, reason=reason, gate_id=item.id)
    if done.gate_state == GateState.OPEN:
        _counted(request, done.have, done.need)
    else:
        messages.success(request, f"{item.stage} is {done.gate_state}: it is {done.stage_state} now.", done.gate_state)


def _decide_request(request: ScreenRequest, item: Item, approved: bool, reason: str) -> None:
    shown, actor = request.POST.get("plan_digest", ""), request.visit.actor
    done = requests.decide_request(item.id, actor=actor, approved=approved, reason=reason, plan_digest=shown)
    if done.state == RequestState.OPEN:
        _counted(request, done.have, done.need)
    elif approved:
        done_at_once = "it is done" if done.status == "succeeded" else f"it is {done.status.replace('_', ' ')}"
        goes_on = "it goes on as a new run" if done.target else done_at_once
        messages.success(request, f"Approved: {words.title(item)}; {goes_on}.", "approved")
    else:
        messages.success(request, f"Rejected: {words.title(item)}. It will not be done.", "rejected")


def _counted(request: ScreenRequest, have: int, need: int) -> None:
    messages.success(request, f"Your approval counts: {have} of {need}. It waits for the rest.", "approved")


def _refused(request: ScreenRequest, before: Item, reason: str, refusal: Refusal) -> HttpResponse:
    """The page as it is now, with why nothing was done; a missing right, one's own request and 404 are pages."""
    if refusal.status in (403, 404):
        raise refusal
    record_refused_act(request, refusal)
    return _page(request, inbox.find(request.visit.actor, before.id), reason, refusal)


def _page(request: ScreenRequest, item: Item, reason: str = "", refusal: Refusal | None = None) -> HttpResponse:
    look = _look(request.visit.actor, item)
    _mark(look, request.POST.get("plan_digest", ""))
    context = {"look": look, "reason": reason, "refusal": refusal, "form": look.token}
    return show(request, "approvals/decision.html", context, status=refusal.status if refusal else 200)


def _mark(look: Look, shown: str) -> None:
    """Marks what is new since the plan that the form had shown, and what is gone."""
    before = next((one.item for one in look.rounds if one.item.plan_digest == shown), None) if shown else None
    if before is None or shown == look.item.plan_digest:
        return
    came, look.gone = _changes(plans.lines(words.wanted(before)), look.steps)
    look.steps = [replace(step, is_new=True) if step in came else step for step in look.steps]
    look.moved = True


# what the page shows


def _look(actor: Actor, item: Item) -> Look:
    """In a fixed number of statements, whatever it is about."""
    if item.run_id is None:
        return _look_at_request(actor, item, None)
    run = queries.visible_runs(actor).select_related("application", "environment").get(id=item.run_id)
    return _look_at_gate(item, run) if item.type == GATE else _look_at_request(actor, item, run)


def _look_at_gate(item: Item, run: Run) -> Look:
    gate = Gate.objects.select_related("stage").get(id=item.id)
    others = Gate.objects.filter(stage=gate.stage).exclude(id=gate.id).order_by("-opened_at", "-id")
    stages = list(Stage.objects.filter(run=run).defer("input").order_by("position"))
    world = consequences.World(gate, gate.stage, run, stages, short=max(item.count - item.have - 1, 0))
    return Look(
        item=item,
        run=run,
        steps=consequences.on_approval(world) if item.is_open else [],
        otherwise=consequences.on_rejection(world) if item.is_open else [],
        in_time=consequences.on_expiry(world),
        now=database_now(),
        at_gate=AtGate(
            gate=gate,
            stage=gate.stage,
            attempt=Attempt.objects.filter(id=gate.attempt).first() if gate.attempt else None,
            output=StageOutput.objects.filter(id=gate.output).first() if gate.output else None,
            others=list(others[:EARLIER]),
        ),
    )


def _look_at_request(actor: Actor, item: Item, run: Run | None) -> Look:
    rounds = inbox.rounds(actor, item.id, EARLIER)
    request = ApprovalRequest.objects.get(subject=item.id, round=item.round)
    carrier = gates.carrier(item.kind)
    look = Look(
        item=item,
        run=run,
        steps=plans.lines(words.wanted(item)),
        otherwise=[Step("denied", "Ends", "it will not be done; whoever wants it must ask anew")]
        if item.is_open
        else [],
        in_time="it is closed and will not be done",
        now=database_now(),
        rounds=[_round(earlier, later) for later, earlier in pairwise(rounds)],
        given=carrier.given(request),
    )
    if item.may_decide:
        _look_ahead(look, actor)
    if not item.is_open:
        look.carried = carrier.told(request)
        if look.carried.target is not None:
            look.target = queries.visible_runs(actor).filter(id=look.carried.target).first()
    return look


def _look_ahead(look: Look, actor: Actor) -> None:
    """What approving would come to now; the decision itself plans once more under the lock."""
    item = look.item
    try:
        planned = requests.preview(item.id, actor=actor)
    except Refusal as refusal:
        look.obstacle = refusal.detail
        return
    if planned.denied is not None:
        look.obstacle = planned.denied.detail
    elif planned.digest != item.plan_digest:
        look.drift = _changes(look.steps, plans.lines(plans.Wanted(item.kind, planned.plan)))


def _round(earlier: Item, later: Item) -> Round:
    came, went = _changes(plans.lines(words.wanted(earlier)), plans.lines(words.wanted(later)))
    return Round(earlier, came, went)


def _changes(before: list[Step], after: list[Step]) -> tuple[list[Step], list[Step]]:
    """What is new in a plan, and what is gone from it."""
    return [step for step in after if step not in before], [step for step in before if step not in after]


def _beat(item: Item) -> str:
    """What changes whenever somebody decided, or what they decided counts no more."""
    return f"{item.state}.{item.round}.{len(item.decisions)}.{item.have}"


def _address(item: Item) -> str:
    return reverse("console:approval", args=[item.id])


def _reason(request: ScreenRequest) -> str:
    return typed(request.POST, "reason")
