"""Stages, for applications and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from recourse.calls.base import Call, Planned, given, page, planned, read, segment, told
from recourse.calls.methods import Group, Sender_co, asks, lists, plans
from recourse.models import application, operations
from recourse.models.pages import Page


class Stages(Group[Sender_co]):
    """One stage: what the owning application decides and hands in, and what people do to it."""

    @asks
    def resume(
        self, stage_id: str, approved: bool, rejection_reason: str | None = None
    ) -> Call[application.GateOutcome]:
        """Decides a waiting stage. The same decision and reason again changes nothing; another raises
        `GateDecisionConflict`.
        """
        body = given(approved=approved, rejectionReason=rejection_reason)
        return told(f"stages/{segment(stage_id)}/resume", body, again="the same decision and reason change nothing")

    @plans
    def retry(
        self,
        stage_id: str,
        *,
        reason: str,
        scope: Literal["stage", "stage_and_downstream"] = "stage",
        override_reason: str | None = None,
        input: str | None = None,
        acknowledge_effects: bool | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.StageVerbAnswerOrAskedAnswer, operations.PlanView]:
        """Runs the stage again in a new epoch; `scope` is `stage` or `stage_and_downstream`. While a blackout holds it
        needs an `override_reason`.
        """
        body = given(
            reason=reason,
            scope=scope,
            override_reason=override_reason,
            input=input,
            acknowledge_effects=acknowledge_effects,
        )
        return planned(f"v1/stages/{segment(stage_id)}/retry", body, dry_run, plan_digest, client_request_id)

    @plans
    def skip(
        self,
        stage_id: str,
        *,
        reason: str,
        output: Any | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.StageVerbAnswerOrAskedAnswer, operations.PlanView]:
        """Leaves the stage out on purpose; what depends on it may go on, with `output`."""
        body = given(reason=reason, output=output)
        return planned(f"v1/stages/{segment(stage_id)}/skip", body, dry_run, plan_digest, client_request_id)

    @plans
    def reconcile(
        self,
        stage_id: str,
        *,
        outcome: Literal["committed", "absent", "contradicted"],
        note: str,
        evidence: operations.EvidenceBody | None = None,
        effect_id: str | None = None,
        output: Any | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.ReconcileAnswer, operations.PlanView]:
        """Says what was found out: `committed`, `absent` or `contradicted`. With `effect_id` it settles that effect;
        without, the stage, which then completes with `output`, runs again or fails.
        """
        body = given(outcome=outcome, note=note, evidence=evidence, effect_id=effect_id, output=output, reason=reason)
        return planned(f"v1/stages/{segment(stage_id)}/reconcile", body, dry_run, plan_digest, client_request_id)

    @asks
    def import_request(self, stage_id: str, *, as_person: bool = False) -> Call[operations.ImportRequestView]:
        """The request that an import stage awaits the answer of, with its `request_digest`: what is handed to whoever
        makes the answer. `as_person`: with the token instead of the application's key.
        """
        path = f"stages/{segment(stage_id)}/import-request"
        return Call("GET", f"v1/{path}" if as_person else path, person=as_person)

    @asks
    def import_answer(
        self,
        stage_id: str,
        *,
        request_digest: str,
        output: Any = None,
        status: Literal["succeeded", "failed"] = "succeeded",
        error_code: str | None = None,
        error_message: str | None = None,
        source: str | None = None,
    ) -> Call[application.Accepted]:
        """Hands in what was made elsewhere, as the owning application: `{accepted, stageStatus}`. The same again
        changes nothing; an answer without the digest that is awaited now raises `StaleRequest`, and is kept as
        evidence.
        """
        body = {"output": output} | given(
            requestDigest=request_digest,
            status=status,
            errorCode=error_code,
            errorMessage=error_message,
            source=source,
        )
        return told(f"stages/{segment(stage_id)}/import", body, again="the same answer is known by its digest")

    @plans
    def import_file(
        self,
        stage_id: str,
        answer: Mapping[str, Any],
        *,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.ImportAnswered, operations.ImportPreview]:
        """The same as a person, with the fields of an answer file: `{request_digest, status, output, error_code,
        error_message, source}`.
        """
        path = f"v1/stages/{segment(stage_id)}/import"
        return planned(path, dict(answer) | given(reason=reason), dry_run, plan_digest, client_request_id)

    @asks
    def policies(self, stage_id: str) -> Call[operations.EffectivePolicies]:
        """Which policies are in force for the stage, which ones they shadow, and why."""
        return read(f"v1/stages/{segment(stage_id)}/policies")

    @lists
    def outputs(
        self, stage_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[Page[operations.OutputView]]:
        """One page of the outputs of the stage, of all its epochs."""
        return page(f"v1/stages/{segment(stage_id)}/outputs", next, page_size=page_size)
