"""The application API's routes for runs (contract §2): create, look up, read, cancel."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines.api.authentication import actor_of, place_of
from pipelines.api.endpoints import Endpoint, answer, not_found
from pipelines.api.serializers import (
    Cancellation,
    Creation,
    IdempotentRunIntent,
    Lookup,
    PipelineView,
    Reason,
    RunIntent,
)
from pipelines.creation import Intent, Place, create_run, find_by_key
from pipelines.errors import Refusal
from pipelines.keys import KeyHolder
from pipelines.transitions import cancel_run
from pipelines.wire import pipeline_body

DEPRECATED = {"Deprecation": "true", "Link": '</pipelines/idempotent>; rel="successor-version"'}


class CreateIdempotently(Endpoint):
    """Creates a run, safe to repeat: the same key with the same request always finds the one run (P7, P18–P21)."""

    body = IdempotentRunIntent
    action = "run.create"

    def about(self, refusal: Refusal) -> dict[str, Any]:
        """Whether the key is taken: only by another request; any other refusal leaves it free (F127)."""
        return {"keyUsed": refusal.code == "idempotency_conflict"}

    @extend_schema(request=IdempotentRunIntent, responses={201: Creation, 200: Creation})
    def post(self, key: KeyHolder, body: dict[str, Any]) -> HttpResponse:
        place = place_of(key, body.get("environment"))
        run_id, created = _create(key, place, body, body["idempotency_key"])
        told = {"created": created, "wasExisting": not created, "pipeline": _pipeline(key, run_id)}
        return answer(told, 201 if created else 200)


class Create(Endpoint):
    """The older route: every call makes a run (P8). It takes no idempotency key, so that nobody relies on one here."""

    body = RunIntent
    action = "run.create"

    @extend_schema(request=RunIntent, responses={201: PipelineView}, deprecated=True)
    def post(self, key: KeyHolder, body: dict[str, Any]) -> HttpResponse:
        place = place_of(key, body.get("environment"))
        run_id, _ = _create(key, place, body, None)
        return answer(_pipeline(key, run_id), 201, DEPRECATED)


class FindByKey(Endpoint):
    """The answer after an unknown outcome: the run that a key made, or 404 (P28, P29)."""

    body = Lookup

    @extend_schema(request=Lookup, responses=PipelineView)
    def post(self, key: KeyHolder, body: dict[str, Any]) -> HttpResponse:
        run_id = find_by_key(key.application_id, key.environment_id, body["idempotency_key"])
        if run_id is None:
            raise not_found()
        return answer(_pipeline(key, run_id))


class Read(Endpoint):
    """One run of the application's own."""

    @extend_schema(responses=PipelineView)
    def get(self, key: KeyHolder, run_id: uuid.UUID) -> HttpResponse:
        return answer(_pipeline(key, run_id))


class Cancel(Endpoint):
    """Ends a run and everything unfinished in it, and lists what may still go on outside (P72–P75)."""

    body = Reason
    action = "run.cancel"

    @extend_schema(request=Reason, responses=Cancellation)
    def post(self, key: KeyHolder, body: dict[str, Any], run_id: uuid.UUID) -> HttpResponse:
        done = cancel_run(run_id, actor=actor_of(key), reason=body["reason"])
        return answer({"pipeline": _pipeline(key, run_id), "reconciliation": done.reconciliation})


urlpatterns = [
    path("pipelines", Create.as_view()),
    path("pipelines/idempotent", CreateIdempotently.as_view()),
    path("pipelines/by-idempotency-key", FindByKey.as_view()),
    path("pipelines/<str:run_id>", Read.as_view()),
    path("pipelines/<str:run_id>/cancel", Cancel.as_view()),
]


def _create(key: KeyHolder, place: Place, body: dict[str, Any], idempotency_key: str | None) -> tuple[uuid.UUID, bool]:
    intent = _intent(body)
    return create_run(place, intent, key=idempotency_key, actor=key.application_name, by=actor_of(key))


def _intent(body: dict[str, Any]) -> Intent:
    trace: dict[str, str] = {name: body[name] for name in ("trace_id", "traceparent", "tracestate") if name in body}
    return Intent(
        name=body.get("name"),
        stages=body.get("stages", ()),
        pipeline=body.get("pipeline"),
        input=body.get("input"),
        context_items=body["context_items"],
        keywords=body["keywords"],
        deadline_seconds=body.get("deadline_seconds"),
        limits=body.get("limits") or {},
        baseline=body.get("baseline") or (),
        trace=trace,
    )


def _pipeline(key: KeyHolder, run_id: uuid.UUID) -> dict[str, Any]:
    body = pipeline_body(run_id, key.application_id, key.environment_id)
    if body is None:
        raise not_found()
    return body
