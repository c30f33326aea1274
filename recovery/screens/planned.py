"""Acts that are planned: the dialog shows the plan that is carried out, and carries its digest (O57, P86–P88, F51).

The form also carries what it showed, signed, so that when the world has moved the same dialog comes back with the new
plan and what changed in it marked. A choice that leads to another plan is shown before it is done. Contents (a new
input, an output, the ticked checklist, why it is to start in a blackout) are looked at when the form comes back: they
change no line of the plan.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.core import signing
from django.http import HttpResponse
from django.urls import reverse

from pipelines.blackouts import OVERRIDE
from pipelines.console.acts import Act, Step, answer_of, ask, short
from pipelines.console.screens import ScreenRequest, go_on, typed
from pipelines.errors import Refusal
from recovery import answers, transitions, waiting
from recovery.operations import Done
from recovery.plans import Asked, Plan
from recovery.screens import histories, plan_lines
from recovery.states import Disposition, OperationKind, OperationState

SALT = "plan that was shown"
EFFECTS_NAMED = 6  # beside the checklist, each with its page
UNSAID = "-"  # a reason is asked for on the form, not before it
# what a request may hold that changes no line of its plan, with what stands for it while it is only looked at
CONTENTS: dict[str, Any] = {
    "input": None,
    "output": None,
    "has_output": False,
    "acknowledge_effects": False,
    "until": None,
}


Ask = Callable[[str, bool], Asked]  # (reason, whether it is only looked at): the form read; it may refuse answers
Told = Callable[[Done], str]  # adds the message, says where to go


@dataclass(frozen=True, slots=True)
class Planned:
    """How one verb is asked for, looked at, done, and told."""

    ask: Ask
    preview: Callable[[Asked], Plan]
    carry_out: Callable[[Asked, str, str], Done]  # (request, key, digest of the plan)
    told: Told


@dataclass(frozen=True, slots=True)
class Shown:
    """What a form had shown. Without a digest it had shown no plan."""

    digest: str = ""
    choices: Any = None
    steps: tuple[Step, ...] = ()
    key: str = ""


def in_place(request: ScreenRequest, ask: Ask, told: Told) -> Planned:
    """A verb on a run or stage itself."""
    actor = request.visit.actor
    return Planned(
        ask=ask,
        preview=lambda asked: transitions.preview(asked, actor=actor),
        carry_out=lambda asked, key, digest: transitions.perform(asked, actor=actor, key=key, plan_digest=digest),
        told=told,
    )


def with_checks(request: ScreenRequest, asked: Asked) -> Asked:
    """A retry with the operator's checklist; for stages that never declare what they do outside, it says that somebody
    looked."""
    told = checked(request, asked, transitions.preview)
    acknowledged = told.reason != asked.reason
    return replace(told, choices={**told.choices, "acknowledge_effects": acknowledged})


def checked(request: ScreenRequest, asked: Asked, preview: Callable[..., Plan]) -> Asked:
    """The request with the notes of the operator's checklist (P59, P87), which go with the reason, and with why it is
    to start although a blackout may hold.

    Refused while one of the notes is missing and the plan may repeat something outside.
    """
    asked = asked.overriding(answers.read_override(request.POST))
    try:
        plan = preview(_bare(asked), actor=request.visit.actor)
    except Refusal:
        return asked  # the verb refuses it too
    return replace(asked, reason=answers.with_notes(asked.reason, answers.read_checks(request.POST, at_stake(plan))))


def at_stake(plan: Plan) -> list[str]:
    """The stages of which something outside may be done a second time, in graph order."""
    return list(dict.fromkeys(one.stage for one in plan.may_repeat))


def perform(request: ScreenRequest, act: Act, planned: Planned) -> HttpResponse:
    """Shows the plan, or with POST carries it out: only what was shown, or what nobody looked at."""
    request.visit.actor.require(act.needs)
    if request.method != "POST":
        return _show(request, act, planned, Shown(), "")
    reason = typed(request.POST, "reason")
    shown = _read(request.POST.get("shown", ""))
    try:
        if _chooses_otherwise(planned, shown) or "look" in request.POST:
            return _show(request, act, planned, shown, reason)
        answer_of(act, reason)
        asked = planned.ask(reason, False)
        done = planned.carry_out(asked, shown.key, _digest(planned, asked, shown))
    except Refusal as refusal:
        if refusal.status in (403, 404):
            raise
        if refusal.code == "operator_review_required" and "operation_id" in refusal.extra:
            return _to_operation(request, refusal)
        return _show(request, act, planned, shown, reason, refusal)
    if done.status == OperationState.AWAITING_APPROVAL:
        return _to_asked(request, done)
    if done.replayed:
        messages.info(request, "A duplicate request: this was done already, and is not done twice.", "no_op")
    return go_on(request, planned.told(done))


def _chooses_otherwise(planned: Planned, shown: Shown) -> bool:
    if not shown.digest:
        return False
    return _bare(planned.ask(UNSAID, True)).choices != shown.choices


def _digest(planned: Planned, asked: Asked, shown: Shown) -> str:
    """The digest of what is to be done, where it is what was shown; else that of what was shown, to be refused."""
    if not shown.digest:
        return ""
    try:
        if planned.preview(_bare(asked)).digest != shown.digest:
            return shown.digest
        return planned.preview(asked).digest
    except Refusal:
        return shown.digest  # the verb refuses it too, and keeps that in the audit


def _bare(asked: Asked) -> Asked:
    choices = {name: CONTENTS.get(name, value) for name, value in asked.choices.items() if name != OVERRIDE}
    return replace(asked, choices=choices, reason=asked.reason or UNSAID)


def _show(
    request: ScreenRequest, act: Act, planned: Planned, before: Shown, reason: str, refusal: Refusal | None = None
) -> HttpResponse:
    try:
        asked = _bare(planned.ask(UNSAID, True))
        plan = planned.preview(asked)
    except Refusal as why_not:
        return ask(request, replace(act, is_possible=False), reason, refusal or why_not)
    steps = (*act.steps, *plan_lines.lines(plan.shown()))
    button = _button(act, asked, plan)
    risked = at_stake(plan) if button else []
    key = before.key if before.digest == plan.digest else str(uuid.uuid4())
    shown = Shown(plan.digest, asked.choices, steps, key)
    return ask(
        request,
        replace(
            act,
            title=_title(act, plan, button),
            steps=_marked(steps, before),
            gone=[step for step in before.steps if step not in steps],
            moved=bool(before.digest) and before.digest != plan.digest,
            shown=_write(shown),
            digest=plan.digest,
            answers={
                **act.answers,
                "plan": plan,
                "at_stake": risked,
                "history": histories.of_stages(asked.run_id, risked),
                "effects": [one for one in plan.may_repeat if one.effect_id][:EFFECTS_NAMED],
            },
            button=button,
            warning=" ".join(part for part in (waiting.waits_already(asked), act.warning) if part),
        ),
        reason,
        refusal,
    )


def _title(act: Act, plan: Plan, button: str) -> str:
    """The sentence of what will happen."""
    outcome = plan_lines.outcome(plan.as_json()) if button else "it would be denied"
    return f"{act.title}: {outcome}" if outcome else act.title


def _button(act: Act, asked: Asked, plan: Plan) -> str:
    """What confirming comes to; blank where it would only be denied. A checklist may still clear what it is about."""
    disposition = plan.verdict.disposition
    if disposition == Disposition.RECOVERY_DENIED:
        return ""
    if disposition == Disposition.OPERATOR_REVIEW_REQUIRED and any(one.effect_class for one in plan.may_repeat):
        return "Ask for a review"
    if plan.agreements:
        return "Ask for approval"
    others = len(plan.run_again) - 1
    if asked.kind == OperationKind.RETRY and others > 0:
        return f"{act.button} and {others} behind it"
    if asked.kind == OperationKind.RERUN:
        return f"{act.button} from {short(str(plan.stage))}"
    return act.button


def _marked(steps: Sequence[Step], before: Shown) -> list[Step]:
    if not before.digest:
        return list(steps)
    return [step if step in before.steps else replace(step, is_new=True) for step in steps]


def _write(shown: Shown) -> str:
    steps = [[step.status, step.word, step.text] for step in shown.steps]
    return signing.dumps([shown.digest, shown.choices, steps, shown.key], salt=SALT, compress=True)


def _read(text: str) -> Shown:
    """What the form had shown; nothing, for a form of ours that was altered or is not ours."""
    if not text:
        return Shown()
    try:
        digest, choices, steps, key = signing.loads(text, salt=SALT)
    except signing.BadSignature:
        return Shown()
    return Shown(digest, choices, tuple(Step(*step) for step in steps), key)


def _to_asked(request: ScreenRequest, done: Done) -> HttpResponse:
    messages.warning(request, "It is kept, and waits until somebody else approves it.", done.status)
    return go_on(request, reverse("console:operation", args=[done.operation_id]))


def _to_operation(request: ScreenRequest, refusal: Refusal) -> HttpResponse:
    told = "Nothing was done yet: somebody else with the right must let it go on. It stands in Approvals."
    messages.warning(request, told, "review_required")
    return go_on(request, reverse("console:operation", args=[refusal.extra["operation_id"]]))
