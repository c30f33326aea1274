"""Runs, for the application that they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recourse.calls.base import Call, Items, given, items, segment, told
from recourse.calls.methods import Group, Sender_co, asks
from recourse.models import application


class Runs(Group[Sender_co]):
    """An application's own runs."""

    @asks
    def create(
        self,
        *,
        idempotency_key: str,
        name: str | None = None,
        stages: Sequence[Mapping[str, Any]] | None = None,
        pipeline: str | None = None,
        input: Mapping[str, Any] | None = None,
        environment: str | None = None,
        context: Items | None = None,
        keywords: Items | None = None,
        trace_id: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        deadline_seconds: int | None = None,
        limits: Mapping[str, Any] | None = None,
        baseline: Sequence[Any] | None = None,
    ) -> Call[application.Creation]:
        """Creates a run of inline `stages`, or of the managed `pipeline` with `input`, once for the key.

        Answers `{created, wasExisting, pipeline}`. Choose one stable key for the business operation and keep it: after
        an unknown outcome the same call, now or tomorrow, finds the run or makes it (P27). The key with another intent
        raises `IdempotencyConflict`.
        """
        body = given(
            idempotencyKey=idempotency_key,
            name=name,
            stages=None if stages is None else list(stages),
            pipeline=pipeline,
            input=input,
            environment=environment,
            contextItems=items(context),
            keywords=items(keywords),
            traceId=trace_id,
            traceparent=traceparent,
            tracestate=tracestate,
            deadlineSeconds=deadline_seconds,
            limits=limits,
            baseline=baseline,
        )
        return told("pipelines/idempotent", body, key=idempotency_key)

    @asks
    def lookup(self, idempotency_key: str) -> Call[application.PipelineView]:
        """The run that the key created; raises `NotFound` when there is none (P28, P29)."""
        body = given(idempotencyKey=idempotency_key)
        return told("pipelines/by-idempotency-key", body, again="it reads")

    @asks
    def get(self, run_id: str) -> Call[application.PipelineView]:
        """The run with its stages."""
        return Call("GET", f"pipelines/{segment(run_id)}")

    @asks
    def cancel(self, run_id: str, reason: str | None = None) -> Call[application.Cancellation]:
        """Ends the run and its unfinished stages; answers `{pipeline, reconciliation}`: what may still go on outside.

        Of a cancelled run it changes nothing; of a completed or failed one it raises `StateInvalid`.
        """
        body = given(reason=reason)
        return told(f"pipelines/{segment(run_id)}/cancel", body, again="of a cancelled run it changes nothing")
