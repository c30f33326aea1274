"""The operations API's routes for checkpoints: for people to read, and for a service with a runtime key to write (O6).

Nothing here changes what a checkpoint says; what is learned later is added to it as evidence.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import rfc8785
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import audit, checkpoint_reading
from pipelines.access import CHECKPOINT, VIEW, Actor
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, page_answer
from pipelines.api.operations_serializers import HUGE, listed, time
from pipelines.api.serializers import NAME, Posture
from pipelines.api.shapes import AnyJson, Flag, Identifier, JsonObject, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.errors import Refusal
from pipelines.filters import AnyId, AnyOf, ListFilter
from pipelines.handler_checkpoints import add_evidence, leave_for_service
from pipelines.models import Checkpoint, CheckpointEvidence, Run, Stage
from pipelines.moves import Owner
from pipelines.paging import page_of, read_cut
from pipelines.postures import Left
from pipelines.signing import Verdict
from pipelines.states import CheckpointMoment, RunStatus

EVIDENCE_BYTES = 64 * 1024


class CheckpointFilter(ListFilter):
    """The checkpoints of a run, by why they were written and by stage."""

    moment = AnyOf(choices=CheckpointMoment.values)
    stage_id = AnyId("stage")


# the wire


class CheckpointRequest(Shape):
    """What a service leaves for a running attempt. `step_id` is the attempt's own stage."""

    attempt_id = Identifier()
    step_id = Text(max_length=NAME)
    previous_step_id = Text(max_length=NAME, required=False)
    state = AnyJson(help_text="any JSON but null, at most 256 KiB")
    recovery_posture = Posture()


class AddedEvidenceRequest(Shape):
    """What is added to a checkpoint. Nothing that it says can be changed."""

    evidence = JsonObject(max_bytes=EVIDENCE_BYTES, exact=True)


class SnapshotView(Shape):
    """Where a run stands by its newest checkpoint; `status` and `pause_reason` are those of this moment."""

    execution_id = Identifier()
    current_step_id = Text()
    previous_step_id = Text(allow_null=True)
    status = OneOf(RunStatus.values)
    pause_reason = Text(allow_null=True)
    workspace_id = Identifier()
    checkpoint_id = Identifier()
    sequence = Whole(min_value=1, max_value=HUGE)
    epoch = Whole(min_value=1, max_value=HUGE)
    recorded_at = Moment()
    integrity = OneOf([verdict.value for verdict in Verdict])
    key_id = Text(allow_null=True)


class CheckpointView(Shape):
    """A checkpoint without what it says. `integrity` is judged now; `superseded`: a newer one was written."""

    id = Identifier()
    checkpoint_id = Identifier()
    execution_id = Identifier()
    sequence = Whole(min_value=1, max_value=HUGE)
    moment = OneOf(CheckpointMoment.values)
    stage_id = Identifier(allow_null=True)
    step_id = Text(allow_null=True)
    epoch = Whole(min_value=1, max_value=HUGE)
    attempt_id = Identifier(allow_null=True)
    current_step_id = Text()
    previous_step_id = Text(allow_null=True)
    recorded_at = Moment()
    payload_digest = Text()
    algorithm = Text(allow_null=True)
    key_id = Text(allow_null=True)
    integrity = OneOf([verdict.value for verdict in Verdict])
    superseded = Flag()


class SignatureEnvelope(Shape):
    algorithm = Text(allow_null=True)
    key_id = Text(allow_null=True)
    signature = Text(allow_null=True)


class SignedIdentity(Shape):
    """What is signed, as canonical JSON, with the key that the envelope names."""

    workspace = Identifier()
    run = Identifier()
    release = Identifier()
    environment = Identifier()
    stage = Identifier(allow_null=True)
    epoch = Whole(min_value=1, max_value=HUGE)
    sequence = Whole(min_value=1, max_value=HUGE)
    payload_digest = Text()


class AddedEvidence(Shape):
    evidence = AnyJson()
    digest = Text()
    added_by = Text()
    at = Moment()


class WholeCheckpoint(CheckpointView):
    payload = AnyJson(allow_null=True, help_text="null where what is stored is no JSON any more")
    envelope = SignatureEnvelope()
    signed = SignedIdentity()
    evidence = ListOf(child=AddedEvidence())


def checkpoint_view(one: Checkpoint, integrity: Verdict, names: dict[uuid.UUID, str], latest: int) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "checkpoint_id": str(one.id),
        "execution_id": str(one.run_id),
        "sequence": one.sequence,
        "moment": one.moment,
        "stage_id": str(one.stage) if one.stage else None,
        "step_id": names.get(one.stage) if one.stage else None,
        "epoch": one.epoch,
        "attempt_id": str(one.attempt) if one.attempt else None,
        "current_step_id": one.current_step_id,
        "previous_step_id": one.previous_step_id or None,
        "recorded_at": time(one.recorded_at),
        "payload_digest": one.payload_digest,
        "algorithm": one.algorithm or None,
        "key_id": one.key_id or None,
        "integrity": integrity.value,
        "superseded": one.sequence < latest,
    }


# routes


class Snapshot(OperationsEndpoint):
    """Where a run stands by its newest checkpoint (O13–O16). 404 `checkpoint_not_found` before there is one."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=SnapshotView)
    def get(self, call: Call) -> HttpResponse:
        run: Run = call.target
        found = checkpoint_reading.snapshot(run.id)
        if found is None:
            raise Refusal("checkpoint_not_found", "the run has no checkpoint yet")
        newest, integrity = found
        return answer(
            {
                "execution_id": str(run.id),
                "current_step_id": newest.current_step_id,
                "previous_step_id": newest.previous_step_id or None,
                "status": run.status,
                "pause_reason": run.pause_reason or None,
                "workspace_id": str(run.workspace_id),
                "checkpoint_id": str(newest.id),
                "sequence": newest.sequence,
                "epoch": newest.epoch,
                "recorded_at": time(newest.recorded_at),
                "integrity": integrity.value,
                "key_id": newest.key_id or None,
            }
        )


class Checkpoints(OperationsEndpoint):
    """The checkpoints of a run, newest first. POST, for a service with a runtime key, adds one."""

    access = {"GET": VIEW, "POST": CHECKPOINT}
    bodies = {"POST": CheckpointRequest}
    actions = {"POST": "checkpoint.write"}
    for_key = True
    filters = CheckpointFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=listed(CheckpointView))
    def get(self, call: Call) -> HttpResponse:
        rows = Checkpoint.objects.filter(run=call.target).select_related("run")
        cut = read_cut(call.params, (_sequence,))
        page = page_of(CheckpointFilter.narrow(rows, call.params), cut, ("sequence",))
        return page_answer(call.request, page, _views(page.rows))

    @extend_schema(request=CheckpointRequest, responses={201: CheckpointView})
    def post(self, call: Call) -> HttpResponse:
        actor, run, body = call.actor, call.target, call.body
        with audit.audited(actor, "checkpoint.write", run=run.id, attempt=str(body["attempt_id"])) as entry:
            written = leave_for_service(
                Owner(actor.workspace_id, actor.application_id, actor.environment_id),
                run.id,
                actor=actor.name,
                attempt_id=body["attempt_id"],
                step_id=body["step_id"],
                previous_step_id=body.get("previous_step_id"),
                left=Left(body["state"], body["recovery_posture"]),
            )
            entry.data |= {"checkpoint_id": str(written.checkpoint_id), "sequence": written.sequence}
        (view,) = _views([_find(run, written.checkpoint_id)])
        return answer(view, 201)


class OneCheckpoint(OperationsEndpoint):
    """One checkpoint with what it says. PATCH, for a service with a runtime key, adds evidence and nothing else."""

    access = {"GET": VIEW, "PATCH": CHECKPOINT}
    bodies = {"PATCH": AddedEvidenceRequest}
    actions = {"PATCH": "checkpoint.add_evidence"}
    for_key = True

    def find(self, actor: Actor, **ids: uuid.UUID) -> Checkpoint:
        return _find(super().find(actor, execution_id=ids["execution_id"]), ids["checkpoint_id"])

    @extend_schema(responses=WholeCheckpoint)
    def get(self, call: Call) -> HttpResponse:
        return answer(_whole(call.target))

    @extend_schema(request=AddedEvidenceRequest, responses=WholeCheckpoint)
    def patch(self, call: Call) -> HttpResponse:
        checkpoint: Checkpoint = call.target
        body = call.body["evidence"]
        digest = sha256(rfc8785.dumps(body)).hexdigest()
        with audit.audited(call.actor, "checkpoint.add_evidence", run=checkpoint.run_id) as entry:
            entry.data |= {"checkpoint_id": str(checkpoint.id), "digest": digest}
            if not add_evidence(checkpoint.id, body, digest, call.actor.name):
                entry.outcome = audit.NO_OP
        return answer(_whole(checkpoint))


class LatestCheckpoint(OperationsEndpoint):
    """The newest checkpoint with payload and envelope, for a service with a runtime key.

    409 `checkpoint_integrity_invalid` when it is not to be believed: nothing of it is handed out.
    """

    access = {"GET": CHECKPOINT}

    @extend_schema(responses=WholeCheckpoint)
    def get(self, call: Call) -> HttpResponse:
        return answer(_whole(checkpoint_reading.newest_valid(call.target.id)))


urlpatterns = [
    path("executions/<str:execution_id>/snapshot", Snapshot.as_view()),
    path("executions/<str:execution_id>/checkpoints", Checkpoints.as_view()),
    path("executions/<str:execution_id>/checkpoints/latest", LatestCheckpoint.as_view()),
    path("executions/<str:execution_id>/checkpoints/<str:checkpoint_id>", OneCheckpoint.as_view()),
]


def _find(run: Run, checkpoint_id: uuid.UUID) -> Checkpoint:
    found = Checkpoint.objects.filter(run=run, id=checkpoint_id).select_related("run").first()
    if found is None:
        raise not_found()
    return found


def _views(rows: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """The views of checkpoints of one run, in a fixed number of queries."""
    if not rows:
        return []
    names = dict(Stage.objects.filter(run_id=rows[0].run_id).values_list("id", "name"))
    latest = checkpoint_reading.latest_sequence(rows[0].run_id)
    verdicts = checkpoint_reading.verify_all(rows)
    return [checkpoint_view(one, verdict, names, latest) for one, verdict in zip(rows, verdicts, strict=True)]


def _whole(one: Checkpoint) -> dict[str, Any]:
    (view,) = _views([one])
    added = CheckpointEvidence.objects.filter(checkpoint=one).order_by("id")
    return {
        **view,
        "payload": checkpoint_reading.shown(one),
        "envelope": {
            "algorithm": one.algorithm or None,
            "key_id": one.key_id or None,
            "signature": one.signature or None,
        },
        "signed": checkpoint_reading.identity_of(one).as_json(one.payload_digest),
        "evidence": [
            {"evidence": item.body, "digest": item.digest, "added_by": item.added_by, "at": time(item.at)}
            for item in added
        ],
    }


def _sequence(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**31:
        raise ValueError("out of range")
    return number
