"""The routes for answers that are made elsewhere, of both APIs: the request that is awaited, and its answer.

`application_urls` are the application's (contract §2), by its key and without a worker; `urlpatterns` those of people
(contract §3).
"""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema

from pipelines import imports
from pipelines.access import IMPORT, VIEW
from pipelines.api.authentication import actor_of
from pipelines.api.bodies import MIB
from pipelines.api.endpoints import Endpoint, answer
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb
from pipelines.api.serializers import Accepted, Recipient
from pipelines.api.shapes import AnyJson, Flag, Identifier, JsonObject, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.import_files import AnswerFields, answer_of, request_document
from pipelines.imports import Taken
from pipelines.keys import KeyHolder
from pipelines.states import RunStatus, StageState

HUGE = 2**31 - 1


class ImportAnswer(AnswerFields):
    """What was made elsewhere, for the request whose digest it carries."""

    camel = True


class ImportRequest(AnswerFields, PlannedVerb):
    """What was made elsewhere, as the fields of an answer file, and why it is brought in."""


class ImportRequestView(Shape):
    """The request that is awaited, as it is handed to whoever makes the answer. `answer_by`: null where time is not
    bounded."""

    format = Text()
    version = Whole(min_value=1, max_value=HUGE)
    run = Identifier()
    run_name = Text(blank=True)
    stage = Text()
    stage_id = Identifier()
    attempt = Whole(min_value=1, max_value=HUGE)
    epoch = Whole(min_value=1, max_value=HUGE)
    request_digest = Text()
    handler = Text()
    description = Text(blank=True)
    input = Text(allow_null=True, blank=True)
    dependencies = JsonObject(max_bytes=2**40)
    baseline = ListOf(child=AnyJson())
    recipients = ListOf(child=Recipient(), allow_null=True)
    max_output_bytes = Whole(min_value=0, max_value=2**63 - 1)
    deadline_at = Moment(allow_null=True)
    answer_by = Moment(allow_null=True)


class ImportAnswered(Shape):
    """Where an answer led. No operation is kept of it, so `operation_id` is null: the attempt and the audit tell.
    `replayed`: it was taken before."""

    operation_id = Identifier(allow_null=True)
    execution_id = Identifier()
    stage_id = Identifier()
    status = OneOf(["succeeded"])
    disposition = OneOf(["recovery_allowed"])
    replayed = Flag()
    plan_digest = Text()
    stage_status = OneOf(StageState.values)
    execution_status = OneOf(RunStatus.values)


class ImportPreview(Shape):
    """Where an answer would lead. Nothing was changed."""

    kind = OneOf(["import"])
    execution_id = Identifier()
    stage_id = Identifier()
    replayed = Flag()
    plan_digest = Text()
    stage_status = OneOf(StageState.values)
    execution_status = OneOf(RunStatus.values)


class TakeImport(Endpoint):
    """Takes what was made elsewhere, only with the digest of the request that is awaited now (R18–R20)."""

    body = ImportAnswer
    most_bytes = 16 * MIB
    action = "stage.import"

    @extend_schema(request=ImportAnswer, responses={202: Accepted})
    def post(self, key: KeyHolder, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        taken = imports.take(stage_id, answer_of(body), actor=actor_of(key))
        return answer({"accepted": True, "stageStatus": taken.state}, 202)


class ReadImportRequest(Endpoint):
    """The request that is awaited now, as a document for whoever makes the answer."""

    @extend_schema(responses=ImportRequestView)
    def get(self, key: KeyHolder, stage_id: uuid.UUID) -> HttpResponse:
        return answer(request_document(actor_of(key), stage_id))


class ImportRequestOfStage(OperationsEndpoint):
    """The request that is awaited now, as a document for whoever makes the answer."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=ImportRequestView)
    def get(self, call: Call) -> HttpResponse:
        return answer(request_document(call.actor, call.target.id))


class ImportOfStage(OperationsEndpoint):
    """Takes what was made elsewhere, only with the digest of the request that is awaited now (R18–R20). The same again
    changes nothing."""

    access = {"POST": IMPORT}
    bodies = {"POST": ImportRequest}
    actions = {"POST": "stage.import"}
    most_bytes = 16 * MIB

    @extend_schema(
        request=ImportRequest,
        responses=PolymorphicProxySerializer(
            "ImportAnsweredOrPreview", [ImportAnswered, ImportPreview], resource_type_field_name=None
        ),
    )
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; the same answer again is known by its request's digest
        told = answer_of(call.body)
        if call.is_dry_run:
            return answer({"kind": "import", **_led_to(imports.preview(call.target.id, told, actor=call.actor))})
        taken = imports.take(call.target.id, told, actor=call.actor, reason=call.reason, plan_digest=call.plan_digest)
        done = {"operation_id": None, "status": "succeeded", "disposition": "recovery_allowed"}
        return answer({**done, **_led_to(taken)})


def _led_to(taken: Taken) -> dict[str, Any]:
    return {
        "execution_id": str(taken.run_id),
        "stage_id": str(taken.stage_id),
        "replayed": taken.replayed,
        "plan_digest": taken.digest,
        "stage_status": taken.state,
        "execution_status": taken.run_status,
    }


application_urls = [
    path("stages/<str:stage_id>/import", TakeImport.as_view()),
    path("stages/<str:stage_id>/import-request", ReadImportRequest.as_view()),
]
urlpatterns = [
    path("stages/<str:stage_id>/import", ImportOfStage.as_view()),
    path("stages/<str:stage_id>/import-request", ImportRequestOfStage.as_view()),
]
