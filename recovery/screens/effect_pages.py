"""Screens of effects: what was done outside, what outside systems say of it, what people found out (O42–O46)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.db.models import Case, Count, QuerySet, When
from django.http import HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import queries, signing
from pipelines.access import RESOLVE
from pipelines.console.acts import Act, Step, ask, missing, perform, short
from pipelines.console.screens import ScreenRequest, screen, show, typed
from pipelines.errors import Refusal
from pipelines.list_filters import EffectFilter
from pipelines.models import Attempt, Effect, Run, Stage
from pipelines.paging import page_of, read_cut
from pipelines.states import OPEN_EFFECT, StageState
from recovery import answers, reconciliation, sealing
from recovery.evidence import Summary, add_evidence, are_trusted, late_results
from recovery.models import EffectEvidence, Reconciliation
from recovery.reconciliation import Finding
from recovery.screens import offers
from recovery.states import Outcome

acting = require_http_methods(["GET", "HEAD", "POST"])
BY_AGE = ("declared_at", "id")
SHOWN = 50
LONGEST_SOURCE = 255
FOUND: Mapping[str, tuple[str, str]] = {
    Outcome.COMMITTED: ("It happened", "The outside system shows it."),
    Outcome.ABSENT: ("It did not happen", "The outside system shows that it is not there, and will not come."),
    Outcome.CONTRADICTED: ("What is known contradicts itself", "Nothing is repeated after that; only a person helps."),
}


@dataclass(frozen=True, slots=True)
class Told:
    """A summary from outside. `holds`: it is still what the console signed when it was stored."""

    evidence: EffectEvidence
    claim: str
    holds: bool


@require_safe
@screen
def effect_list(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """What a run's attempts did outside, or were about to do, newest first, narrowed by the address."""
    run = queries.run_detail(request.visit.actor, run_id)
    page = page_of(EffectFilter.narrow(counted(queries.effects(run)), request.GET), read_cut(request.GET), BY_AGE)
    return show(request, "recovery/effects.html", {"run": run, "page": page})


@require_safe
@screen
def effect_page(request: ScreenRequest, effect_id: uuid.UUID) -> HttpResponse:
    """One effect: its intent and outcome, what outside systems say, what people found out, and what came too late."""
    actor = request.visit.actor
    effect = _find(request, effect_id)
    told = list(EffectEvidence.objects.filter(effect=effect).select_related("user").order_by("-at", "-id")[:SHOWN])
    found = Reconciliation.objects.filter(effect=effect).select_related("user").order_by("-at", "-id")[:SHOWN]
    trusted = are_trusted(actor.workspace_id, told)
    context = {
        "effect": effect,
        "attempt": Attempt.objects.filter(id=effect.attempt).first(),
        "evidence": [Told(one, sealing.claim(one.summary), holds) for one, holds in zip(told, trusted, strict=True)],
        "unchecked": not all(trusted) and not signing.can_check(actor.workspace_id),
        "findings": list(found),
        "late": late_results(effect.stage_id, effect.attempt),
        "offers": offers.for_effect(effect, actor),
    }
    return show(request, "recovery/effect.html", context)


@acting
@screen
def add_summary(request: ScreenRequest, effect_id: uuid.UUID) -> HttpResponse:
    """Takes a summary from outside; sealed when it comes with its digest. It is signed as stored, and never changed."""
    effect = _find(request, effect_id)
    act = Act(
        title=f"Add evidence about {_name(effect)} of {short(effect.stage.name)}",
        needs=RESOLVE,
        steps=[
            Step("valid", "Kept", "the summary, signed by the console as it is stored; it is only ever added to"),
            Step(
                effect.state, "Stays", f"the effect: it is {effect.get_state_display().lower()} until it is reconciled"
            ),
        ],
        button="Add it",
        back=_page_of(effect),
        fields="recovery/_evidence_fields.html",
        answers={"given": request.POST},
    )

    def carry_out(reason: str) -> str:
        summary = _summary(request.POST)
        evidence, is_new = add_evidence(effect.run_id, effect.id, summary, actor=request.visit.actor, reason=reason)
        sealed = "sealed" if evidence.is_sealed else "unsealed"
        told = f"The {sealed} summary of {evidence.source} is kept." if is_new else "A duplicate: it was kept already."
        messages.success(request, told, "valid" if is_new else "no_op")
        return _page_of(effect)

    return perform(request, act, carry_out)


@acting
@screen
def reconcile_effect(request: ScreenRequest, effect_id: uuid.UUID) -> HttpResponse:
    """Takes what somebody found out about one effect. No stage moves by it."""
    effect = _find(request, effect_id)
    settles = (
        "it is settled by what you say" if effect.state in OPEN_EFFECT else "it keeps its state; this is kept beside"
    )
    act = Act(
        title=f"Reconcile {_name(effect)} of {short(effect.stage.name)}",
        needs=RESOLVE,
        steps=[
            Step(effect.state, "The effect", settles),
            Step(effect.stage.state, "Stays", f"{effect.stage.name}: no stage moves by this"),
        ],
        warning="Look at the outside system first. What you say is kept with your name and never changed.",
        button="Say so",
        back=_page_of(effect),
        reason_required=True,
        fields="recovery/_outcome_fields.html",
        answers={"given": request.POST, "found": FOUND},
    )

    def carry_out(reason: str) -> str:
        finding = Finding(_outcome(request.POST), reason)
        done = reconciliation.reconcile_effect(
            effect.run_id, effect.id, finding, actor=request.visit.actor, reason=reason
        )
        state = done.result["effect_state"]
        messages.success(request, f"Kept. The effect is {state.replace('_', ' ')}.{_what_then(effect)}", state)
        return _page_of(effect)

    return perform(request, act, carry_out)


@acting
@screen
def reconcile_stage(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """Says what became of a stage's work outside, and so lets it go on: completed, ready again, or failed (R13)."""
    stage = queries.stage_detail(request.visit.actor, stage_id)
    happened = Step("completed", "Happened", f"{stage.name} is completed, with the output that you give")
    if (stage.approval or {}).get("when") == "after":
        happened = Step("waiting", "Happened", f"the gate after {stage.name} opens for the output that you give")
    act = Act(
        title=f"Reconcile {short(stage.name)} of {short(stage.run.name)}",
        needs=RESOLVE,
        steps=[
            happened,
            Step("ready", "Did not", f"{stage.name} is ready again, and is done anew"),
            Step("failed", "Contradicted", f"{stage.name} fails; a person decides what then"),
        ],
        warning="Look at the outside system first. What you say is kept with your name and never changed.",
        button=f"Reconcile {short(stage.name)}",
        back=f"{reverse('console:run', args=[stage.run_id])}?stage={stage.position}",
        reason_required=True,
        fields="recovery/_outcome_fields.html",
        answers={"given": request.POST, "found": FOUND, "has_output": True},
    )

    if still_open := _still_open(stage):
        act = replace(act, is_possible=False, first=still_open)
        if request.method != "POST":
            request.visit.actor.require(RESOLVE)
            detail = f"what {stage.name} did outside is not known in full: reconcile its open effects first"
            return ask(request, act, "", Refusal("needs_reconciliation", detail))

    def carry_out(reason: str) -> str:
        outcome = _outcome(request.POST)
        output, has_output = answers.read_output(request.POST)
        if outcome == Outcome.COMMITTED and not has_output:
            raise missing("output", 'what happened is completed with an output; an empty one is ""')
        finding = Finding(outcome, reason, output=output, has_output=has_output and outcome == Outcome.COMMITTED)
        done = reconciliation.reconcile_stage(stage, finding, actor=request.visit.actor, reason=reason)
        state = done.result["stage_status"]
        messages.success(request, f"{stage.name} is {state}.", state)
        return act.back

    return perform(request, act, carry_out)


def counted(effects: QuerySet[Effect]) -> QuerySet[Effect]:
    """Effects with how many summaries and findings there are about each."""
    return effects.annotate(
        summaries=Count("evidence", distinct=True), findings=Count("reconciliations", distinct=True)
    )


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of a run for its page: those still open first, then the newest; `more` when there are others."""

    rows: list[Effect]
    more: bool


def of_run(run: Run, most: int) -> Effects:
    open_first = Case(When(state__in=sorted(OPEN_EFFECT), then=0), default=1)
    rows = list(counted(queries.effects(run)).order_by(open_first, "-declared_at", "-id")[: most + 1])
    return Effects(rows[:most], len(rows) > most)


def _what_then(effect: Effect) -> str:
    stage = Stage.objects.get(id=effect.stage_id)
    if stage.state != StageState.NEEDS_RECONCILIATION:
        return ""
    if _still_open(stage):
        return f" {stage.name} has other effects of which nobody knows yet."
    return f" Now {stage.name} itself can be reconciled: say what became of its work."


def _still_open(stage: Stage) -> list[tuple[str, str]]:
    """The effects that keep the stage from being reconciled, with their pages."""
    if stage.state != StageState.NEEDS_RECONCILIATION:
        return []
    rows = Effect.objects.filter(stage=stage, state__in=sorted(OPEN_EFFECT)).exclude(effect_class="internal_state")
    return [
        (
            f"{_name(one)}{f' with key {short(one.key)}' if one.key else ''}, {one.get_state_display().lower()}"
            f" since {one.declared_at:%Y-%m-%d %H:%M:%S} UTC",
            _page_of(one),
        )
        for one in rows.select_related("stage").order_by(*BY_AGE)[:10]
    ]


def _find(request: ScreenRequest, effect_id: uuid.UUID) -> Effect:
    visible = queries.visible_runs(request.visit.actor)
    effect = Effect.objects.filter(id=effect_id, run__in=visible).select_related("stage", "run").first()
    if effect is None:
        raise Refusal("not_found", "there is no such effect")
    return effect


def _name(effect: Effect) -> str:
    word = effect.effect_class.replace("_", " ")
    return f"{word} {effect.step_id}" if effect.step_id and effect.step_id != effect.stage.name else word


def _page_of(effect: Effect) -> str:
    return reverse("console:effect", args=[effect.id])


def _outcome(params: QueryDict) -> str:
    outcome = params.get("outcome", "")
    if outcome not in Outcome.values:
        raise missing("outcome", "say what you found out")
    return outcome


def _summary(params: QueryDict) -> Summary:
    """The summary as typed; refused by field where it is no JSON, too large, or comes from nobody."""
    source = typed(params, "source")
    if not source or len(source) > LONGEST_SOURCE:
        raise missing("source", f"who says so, in at most {LONGEST_SOURCE} characters")
    value = _json(params.get("summary", ""))
    digest = params.get("digest", "").strip() or None
    return Summary(value, source, clean=bool(params.get("clean")), digest=digest)


def _json(text: str) -> Any:
    if not text.strip() or len(text.encode("utf-8", "replace")) > answers.LARGEST:
        raise missing("summary", f"JSON of at most {answers.LARGEST // 1024} KiB")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise missing("summary", "this is not JSON") from error
