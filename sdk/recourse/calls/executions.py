"""Runs, for people's tools."""

from __future__ import annotations

from typing import Any, Literal

from recourse.calls.base import Call, Planned, Some, Told, When, given, page, planned, read, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class Executions(Group[Sender_co]):
    """Runs, as people's tools see them: the operations API calls a run an execution."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        application: Some = None,
        created_after: When | None = None,
        created_before: When | None = None,
        environment: Some = None,
        error_code: Some = None,
        handler: Some = None,
        parent_id: Some = None,
        pipeline: Some = None,
        recovered_from: Some = None,
        search: Some = None,
        status: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.ListedExecution]]:
        """One page of runs, newest first. `search`: words and their beginnings, in names, keywords and context."""
        return page(
            "v1/executions",
            next,
            application=application,
            created_after=created_after,
            created_before=created_before,
            environment=environment,
            error_code=error_code,
            handler=handler,
            parent_id=parent_id,
            pipeline=pipeline,
            recovered_from=recovered_from,
            search=search,
            status=status,
            page_size=page_size,
        )

    iterate = iterates(list)

    @asks
    def get(self, execution_id: str) -> Call[operations.ExecutionView]:
        """One run."""
        return read(f"v1/executions/{segment(execution_id)}")

    @asks
    def account(self, execution_id: str) -> Call[operations.AccountView]:
        """What happened to the run and its stages, who decided what, what remains, what helps: in sentences."""
        return read(f"v1/executions/{segment(execution_id)}/account")

    @lists
    def stages(self, execution_id: str) -> Call[Page[operations.StageView]]:
        """All stages of the run."""
        return page(f"v1/executions/{segment(execution_id)}/stages")

    @lists
    def attempts(
        self, execution_id: str, *, next: str | None = None, stage_id: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.AttemptView]]:
        """One page of its attempts."""
        return page(f"v1/executions/{segment(execution_id)}/attempts", next, stage_id=stage_id, page_size=page_size)

    @lists
    def timeline(
        self, execution_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[Page[operations.EventView]]:
        """One page of what happened, in order."""
        return page(f"v1/executions/{segment(execution_id)}/timeline", next, page_size=page_size)

    @lists
    def logs(
        self,
        execution_id: str,
        *,
        next: str | None = None,
        attempt_id: Some = None,
        level: Some = None,
        stage: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.LogLineView]]:
        """One page of what the run's handlers logged, oldest first. `stage`: its name; `level`: in whatever case."""
        return page(
            f"v1/executions/{segment(execution_id)}/logs",
            next,
            attempt_id=attempt_id,
            level=level,
            stage=stage,
            page_size=page_size,
        )

    @lists
    def children(
        self, execution_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[Page[operations.ChildView]]:
        """One page of the runs that its stages started, newest first."""
        return page(f"v1/executions/{segment(execution_id)}/children", next, page_size=page_size)

    @asks
    def snapshot(self, execution_id: str) -> Call[operations.SnapshotView]:
        """Where the run stands by its newest checkpoint; raises `CheckpointNotFound` when it has none."""
        return read(f"v1/executions/{segment(execution_id)}/snapshot")

    @lists
    def checkpoints(
        self,
        execution_id: str,
        *,
        next: str | None = None,
        moment: Some = None,
        stage_id: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.CheckpointView]]:
        """One page of the run's checkpoints."""
        return page(
            f"v1/executions/{segment(execution_id)}/checkpoints",
            next,
            moment=moment,
            stage_id=stage_id,
            page_size=page_size,
        )

    @lists
    def effects(
        self,
        execution_id: str,
        *,
        next: str | None = None,
        class_: Some = None,
        stage: Some = None,
        stage_id: Some = None,
        state: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.EffectView]]:
        """One page of what the run did, or was about to do, outside."""
        return page(
            f"v1/executions/{segment(execution_id)}/effects",
            next,
            class_=class_,
            stage=stage,
            stage_id=stage_id,
            state=state,
            page_size=page_size,
        )

    @lists
    def artifacts(
        self,
        execution_id: str,
        *,
        next: str | None = None,
        name: Some = None,
        stage_id: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.ArtifactView]]:
        """One page of what the run's attempts stored."""
        return page(
            f"v1/executions/{segment(execution_id)}/artifacts", next, name=name, stage_id=stage_id, page_size=page_size
        )

    @asks
    def evidence(self, execution_id: str) -> Call[operations.EvidenceGraphView]:
        """Where the run came from and what came of it: `{nodes, edges}`."""
        return read(f"v1/executions/{segment(execution_id)}/evidence")

    @lists
    def blockers(self, execution_id: str) -> Call[Page[operations.BlockerView]]:
        """Why the run does not move: holder, cause, and when the engine looks again."""
        return page(f"v1/executions/{segment(execution_id)}/blockers")

    @asks
    def budget(
        self, execution_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[operations.BudgetView]:
        """What the run may spend and has spent, with one page of the charges."""
        return page(f"v1/executions/{segment(execution_id)}/budget", next, page_size=page_size)

    @lists
    def charges(
        self, execution_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[Page[operations.ChargeView]]:
        """One page of what was charged to the run's budget."""
        return page(f"v1/executions/{segment(execution_id)}/budget", next, page_size=page_size, inside="entries")

    @lists
    def reconciliation(
        self,
        execution_id: str,
        *,
        next: str | None = None,
        kind: Some = None,
        settled: Told = None,
        stage_id: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.ItemView]]:
        """One page of what a cancel left outside."""
        return page(
            f"v1/executions/{segment(execution_id)}/reconciliation",
            next,
            kind=kind,
            settled=settled,
            stage_id=stage_id,
            page_size=page_size,
        )

    @asks
    def settle(
        self,
        execution_id: str,
        item_id: str,
        *,
        note: str,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> Call[operations.SettledView]:
        """Notes that somebody looked after what was left outside."""
        body = given(note=note, reason=reason)
        return write(
            f"v1/executions/{segment(execution_id)}/reconciliation/{segment(item_id)}/settle", body, client_request_id
        )

    @plans
    def pause(
        self,
        execution_id: str,
        reason: str | None = None,
        *,
        until: When | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.Signal, operations.PlanView]:
        """Stops further dispatch; what runs may finish. Answers `{execution_id, status: "pause_signal_sent"}`.

        `until`: when the engine resumes the run by itself.
        """
        body = given(reason=reason, until=until)
        return planned(f"v1/executions/{segment(execution_id)}/pause", body, dry_run, plan_digest, client_request_id)

    @plans
    def resume(
        self,
        execution_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.Signal, operations.PlanView]:
        """Lets a pausing or paused run go on. Answers `{execution_id, status: "resume_signal_sent"}`."""
        body = given(reason=reason)
        return planned(f"v1/executions/{segment(execution_id)}/resume", body, dry_run, plan_digest, client_request_id)

    @plans
    def rerun(
        self,
        execution_id: str,
        *,
        from_step_id: str | None = None,
        flow_slug: str | None = None,
        environment: str | None = None,
        actor_ref: str | None = None,
        reason: str | None = None,
        override_reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.ForkAnswer, operations.PlanView]:
        """A new run out of an ended one: `from_step_id` and all that follows from it run again, the rest is kept.
        Without it, the run goes on where its newest checkpoint stands, with the handler's state.

        Answers the new run's `execution_id`, or `status: "awaiting_approval"`. A plan that changed since `plan_digest`
        raises `PlanChanged`; effects that may repeat `OperatorReviewRequired`, `RecoveryDenied`. While a blackout holds
        it needs an `override_reason`.
        """
        body = given(
            from_step_id=from_step_id,
            flow_slug=flow_slug,
            environment=environment,
            actor_ref=actor_ref,
            reason=reason,
            override_reason=override_reason,
        )
        return planned(f"v1/executions/{segment(execution_id)}/rerun", body, dry_run, plan_digest, client_request_id)

    @plans
    def replay(
        self,
        execution_id: str,
        *,
        flow_slug: str | None = None,
        environment: str | None = None,
        freeze_release: bool | None = None,
        actor_ref: str | None = None,
        reason: str | None = None,
        override_reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.ForkAnswer, operations.PlanView]:
        """A new run out of an ended one, from the beginning. `freeze_release` is a recorded hint. Else as `rerun`."""
        body = given(
            flow_slug=flow_slug,
            environment=environment,
            freeze_release=freeze_release,
            actor_ref=actor_ref,
            reason=reason,
            override_reason=override_reason,
        )
        return planned(f"v1/executions/{segment(execution_id)}/replay", body, dry_run, plan_digest, client_request_id)

    @plans
    def cancel(
        self,
        execution_id: str,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.CancelAnswerOrAskedAnswer, operations.PlanView]:
        """Ends the run for good; the answer's `reconciliation` lists what may still go on outside."""
        body = given(reason=reason)
        return planned(f"v1/executions/{segment(execution_id)}/cancel", body, dry_run, plan_digest, client_request_id)

    @lists
    def effect_evidence(
        self, execution_id: str, effect_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[Page[operations.EvidenceView]]:
        """One page of what outside systems said of an effect."""
        return page(
            f"v1/executions/{segment(execution_id)}/effects/{segment(effect_id)}/evidence", next, page_size=page_size
        )

    @lists
    def late_results(
        self, execution_id: str, effect_id: str, *, next: str | None = None, page_size: int | None = None
    ) -> Call[Page[operations.LateResult]]:
        """One page of results that came too late and may tell of the effect."""
        return page(
            f"v1/executions/{segment(execution_id)}/effects/{segment(effect_id)}/late-results",
            next,
            page_size=page_size,
        )

    @asks
    def add_evidence(
        self,
        execution_id: str,
        effect_id: str,
        *,
        summary: Any,
        source: str,
        sealed: bool | None = None,
        clean: bool | None = None,
        digest: str | None = None,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> Call[operations.EvidenceAnswer]:
        """Keeps what an outside system says of an effect. `digest`: SHA-256 of the summary's RFC 8785 form; without one
        it counts as unsealed.
        """
        body = given(summary=summary, source=source, sealed=sealed, clean=clean, digest=digest, reason=reason)
        return write(
            f"v1/executions/{segment(execution_id)}/effects/{segment(effect_id)}/evidence", body, client_request_id
        )

    @plans
    def reconcile_effect(
        self,
        execution_id: str,
        effect_id: str,
        *,
        outcome: Literal["committed", "absent", "contradicted"],
        note: str,
        evidence: operations.EvidenceBody | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.ReconcileAnswer, operations.PlanView]:
        """Says what was found out about one effect: `committed`, `absent` or `contradicted`."""
        body = given(outcome=outcome, note=note, evidence=evidence, reason=reason)
        return planned(
            f"v1/executions/{segment(execution_id)}/effects/{segment(effect_id)}/reconciliation",
            body,
            dry_run,
            plan_digest,
            client_request_id,
        )

    @lists
    def run_retries(self, execution_id: str) -> Call[Page[operations.RunRetryView]]:
        """What was decided each time that the run failed under a policy for whole runs, newest first."""
        return page(f"v1/executions/{segment(execution_id)}/run-retry")

    @asks
    def stop_run_retry(
        self, execution_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.RunRetryView]:
        """Calls off that the run retries itself; it stays failed until somebody does something about it."""
        path = f"v1/executions/{segment(execution_id)}/run-retry/stop"
        return write(path, given(reason=reason), client_request_id)
