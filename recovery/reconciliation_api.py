"""The operations API's routes for evidence and reconciliation (contract §3)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import queries
from pipelines.access import RESOLVE, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb, Verb, page_answer
from pipelines.api.operations_serializers import HUGE, time
from pipelines.api.shapes import (
    AnyJson,
    Flag,
    Identifier,
    ListOf,
    Moment,
    OneOf,
    Problems,
    Shape,
    Text,
    Whole,
    json_problem,
)
from pipelines.audit import LONGEST_REASON
from pipelines.models import Effect, LateEvidence
from pipelines.paging import number, page_of, read_cut
from pipelines.states import EffectState, StageState
from recovery import evidence, reconciliation, sealing, serializers
from recovery.evidence import Summary
from recovery.models import EffectEvidence
from recovery.operations import Done
from recovery.reconciliation import Finding
from recovery.serializers import or_plan
from recovery.states import Outcome
from recovery.transitions import preview

DIGEST = 64


class EvidenceBody(Shape):
    """A summary from outside, any JSON. `digest` is the SHA-256 of its RFC 8785 form; without one it is unsealed."""

    summary = AnyJson()
    source = Text(max_length=255, control=False)  # type: ignore[assignment]  # DRF takes it off the class
    sealed = Flag(required=False)
    clean = Flag(default=False)  # type: ignore[assignment]  # DRF takes it off the class
    digest = Text(max_length=DIGEST, required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        problem = json_problem(clean["summary"], exact=True)
        return [("summary", problem)] if problem else []


class EvidenceRequest(EvidenceBody, Verb):
    """A summary from outside, as a request of its own."""


class ReconciliationRequest(PlannedVerb):
    """What somebody found out about one effect."""

    outcome = OneOf(Outcome.values)
    evidence = EvidenceBody(required=False)
    note = Text(max_length=LONGEST_REASON)


class ReconcileRequest(ReconciliationRequest):
    """With `effect_id` about that effect; without, about the stage. `output` is what a committed one completes with."""

    effect_id = Identifier(required=False)
    output = AnyJson(required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        problem = json_problem(clean.get("output"))
        return [("output", problem)] if problem else []


class LateResult(Shape):
    """A result that came too late to move anything; it may tell what really happened."""

    id = Whole(min_value=1, max_value=2**63 - 1)
    attempt_id = Identifier()
    attempt = Whole(min_value=1, max_value=HUGE)
    reason = Text()
    at = Moment()
    result = AnyJson(allow_null=True)


class EvidenceView(Shape):
    id = Identifier()
    effect_id = Identifier()
    summary = AnyJson(allow_null=True)
    source = Text()  # type: ignore[assignment]  # DRF takes it off the class
    sealed = Flag()
    clean = Flag()  # type: ignore[assignment]  # DRF takes it off the class
    digest = Text()
    outcome = OneOf(Outcome.values, allow_null=True, help_text="what the summary claims")
    integrity = OneOf(["valid", "invalid"], help_text="whether the console's signature on it holds now")
    key_id = Text(allow_null=True)
    added_by = Text()
    at = Moment()


class EvidenceAnswer(EvidenceView):
    replayed = Flag()
    late_results = ListOf(child=LateResult())


class ReconcileAnswer(serializers.VerbAnswer):
    reconciliation_id = Identifier()
    outcome = OneOf(Outcome.values)
    stage_status = OneOf(StageState.values)
    effect_id = Identifier(required=False)
    effect_state = OneOf(EffectState.values, required=False)
    evidence = AnyJson(required=False)
    late_results = ListOf(child=LateResult())


class EffectEndpoint(OperationsEndpoint):
    """Something about one effect of a run."""

    def find(self, actor: Actor, **ids: uuid.UUID) -> Effect:
        run = queries.run_detail(actor, ids["execution_id"])
        effect = Effect.objects.filter(run=run, id=ids["effect_id"]).first()
        if effect is None:
            raise not_found()
        return effect


class Evidence(EffectEndpoint):
    """What outside systems say about an effect; POST adds a summary, which stays as it is."""

    access = {"GET": VIEW, "POST": RESOLVE}
    bodies = {"POST": EvidenceRequest}
    actions = {"POST": "effect.evidence"}
    for_key = True

    @extend_schema(parameters=list_parameters(), responses=wire.listed(EvidenceView))
    def get(self, call: Call) -> HttpResponse:
        rows = EffectEvidence.objects.filter(effect=call.target).select_related("user")
        page = page_of(rows, read_cut(call.params), ("at", "id"))
        trusted = evidence.are_trusted(call.actor.workspace_id, page.rows)
        items = [evidence_view(one, is_trusted=verdict) for one, verdict in zip(page.rows, trusted, strict=True)]
        return page_answer(call.request, page, items)

    @extend_schema(request=EvidenceRequest, responses={201: EvidenceAnswer, 200: EvidenceAnswer})
    def post(self, call: Call) -> HttpResponse:
        effect, summary = call.target, summary_of(call.body)
        kept, is_new = evidence.add_evidence(
            effect.run_id, effect.id, summary, actor=call.actor, reason=call.reason, key=call.key
        )
        late = evidence.late_results(effect.stage_id, effect.attempt)
        (is_trusted,) = evidence.are_trusted(call.actor.workspace_id, [kept])
        body = {
            **evidence_view(kept, is_trusted=is_trusted),
            "replayed": not is_new,
            "late_results": [late_result(one) for one in late],
        }
        return answer(body, 201 if is_new else 200)


class LateResults(EffectEndpoint):
    """What came too late from the effect's own attempt, newest first: evidence of what it really did."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(parameters=list_parameters(), responses=wire.listed(LateResult))
    def get(self, call: Call) -> HttpResponse:
        rows = LateEvidence.objects.filter(attempt_id=call.target.attempt).select_related("attempt")
        page = page_of(rows, read_cut(call.params, (number,)), ("id",))
        return page_answer(call.request, page, [late_result(one) for one in page.rows])


class EffectReconciliation(EffectEndpoint):
    """What somebody found out about an effect; it moves no stage."""

    access = {"POST": RESOLVE}
    bodies = {"POST": ReconciliationRequest}
    actions = {"POST": "effect.reconcile"}

    @extend_schema(request=ReconciliationRequest, responses={201: ReconcileAnswer, 200: or_plan(ReconcileAnswer)})
    def post(self, call: Call) -> HttpResponse:
        return _settle(call, call.target)


class Reconcile(OperationsEndpoint):
    """Settles what a stage did outside, so that it may go on (R13): one effect, or then the stage as a whole."""

    access = {"POST": RESOLVE}
    bodies = {"POST": ReconcileRequest}
    actions = {"POST": "stage.reconcile"}

    @extend_schema(request=ReconcileRequest, responses=or_plan(ReconcileAnswer))
    def post(self, call: Call) -> HttpResponse:
        stage, effect_id = call.target, call.body.get("effect_id")
        if effect_id is not None:
            effect = Effect.objects.filter(id=effect_id, stage=stage).first()
            if effect is None:
                raise not_found()
            return _settle(call, effect, created=200)
        finding, key = finding_of(call.body), call.key
        if call.is_dry_run:
            asked = reconciliation.ask_about_stage(stage, finding, reason=call.reason)
            return answer(preview(asked, actor=call.actor).as_json())
        done = reconciliation.reconcile_stage(
            stage, finding, actor=call.actor, reason=call.reason, key=key, plan_digest=call.plan_digest
        )
        return answer(reconcile_answer(done))


def _settle(call: Call, effect: Effect, created: int = 201) -> HttpResponse:
    finding, key = finding_of(call.body), call.key
    if call.is_dry_run:
        asked = reconciliation.ask_about_effect(effect.run_id, effect.id, finding, actor=call.actor, reason=call.reason)
        return answer(preview(asked, actor=call.actor).as_json())
    done = reconciliation.reconcile_effect(
        effect.run_id,
        effect.id,
        finding,
        actor=call.actor,
        reason=call.reason,
        key=key,
        plan_digest=call.plan_digest,
    )
    return answer(reconcile_answer(done), 200 if done.replayed else created)


def summary_of(body: Mapping[str, Any]) -> Summary:
    return Summary(body["summary"], body["source"], body["clean"], body.get("sealed"), body.get("digest"))


def finding_of(body: Mapping[str, Any]) -> Finding:
    told = body.get("evidence")
    return Finding(
        outcome=body["outcome"],
        note=body["note"],
        evidence=None if told is None else summary_of(told),
        output=body.get("output"),
        has_output="output" in body,
    )


def evidence_view(kept: EffectEvidence, *, is_trusted: bool) -> dict[str, Any]:
    return {
        "id": str(kept.id),
        "effect_id": str(kept.effect_id),
        "summary": sealing.read(kept.summary),
        "source": kept.source,
        "sealed": kept.is_sealed,
        "clean": kept.is_clean,
        "digest": kept.digest,
        "outcome": sealing.claim(kept.summary) or None,
        "integrity": "valid" if is_trusted else "invalid",
        "key_id": kept.key_id or None,
        "added_by": kept.user.get_username(),
        "at": time(kept.at),
    }


def late_result(late: LateEvidence) -> dict[str, Any]:
    return {
        "id": late.id,
        "attempt_id": str(late.attempt_id),
        "attempt": late.attempt.number,
        "reason": late.reason,
        "at": time(late.at),
        "result": json.loads(late.body),
    }


def reconcile_answer(done: Done) -> dict[str, Any]:
    late = evidence.late_results(done.stage_id) if done.stage_id else []
    return {**serializers.verb_answer(done), "late_results": [late_result(one) for one in late]}


urlpatterns = [
    path("executions/<str:execution_id>/effects/<str:effect_id>/evidence", Evidence.as_view()),
    path("executions/<str:execution_id>/effects/<str:effect_id>/late-results", LateResults.as_view()),
    path("executions/<str:execution_id>/effects/<str:effect_id>/reconciliation", EffectReconciliation.as_view()),
    path("stages/<str:stage_id>/reconcile", Reconcile.as_view()),
]
