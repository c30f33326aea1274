"""The application API's routes for artifacts: what a running attempt stores, and what a worker loads (contract §2)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from pipelines import artifact_storing, artifacts
from pipelines.api.artifact_shapes import ArtifactName, Base64, Digest, MediaType
from pipelines.api.authentication import WorkerCaller, actor_of
from pipelines.api.bodies import MIB
from pipelines.api.downloads import download
from pipelines.api.endpoints import WorkerEndpoint, answer, not_found
from pipelines.api.serializers import Camel, OfAttempt
from pipelines.api.shapes import Flag, Identifier, Text, Whole
from pipelines.artifact_storing import Stored
from pipelines.artifacts import Given
from pipelines.wire import stored_body

HUGE = 2**31 - 1


class ArtifactGiven(OfAttempt):
    """Bytes under a name. `sha256` is the sender's word on them; where it is not theirs, nothing is stored."""

    spelling = {"content": "contentBase64"}

    name = ArtifactName()
    content = Base64()
    sha256 = Digest()
    media_type = MediaType(required=False)


class StoredArtifact(Camel):
    """`created` is false where this attempt had stored the same bytes under that name before."""

    artifact_id = Identifier()
    name = Text()
    sha256 = Text()
    size = Whole(min_value=0, max_value=HUGE)
    created = Flag()


def given_of(body: dict[str, Any]) -> Given:
    """What a checked body gives."""
    return Given(body["name"], body["content"], body["sha256"], body.get("media_type", ""))


class StoreArtifact(WorkerEndpoint):
    """Keeps a named result of a running attempt, which never changes (R14). The same again: 200, and the same id."""

    body = ArtifactGiven
    most_bytes = 16 * MIB

    @extend_schema(request=ArtifactGiven, responses={201: StoredArtifact, 200: StoredArtifact})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        stored: Stored | None = artifact_storing.store(caller.holder, stage_id, body["execution_id"], given_of(body))
        if stored is None:
            raise not_found()
        return answer(stored_body(stored), 201 if stored.is_new else 200)


class LoadArtifact(WorkerEndpoint):
    """The bytes, checked against their digest; `artifact_corrupt` where they are not what was stored (R15)."""

    http_method_names = ["get", "head"]
    gives_bytes = True

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    def get(self, caller: WorkerCaller, artifact_id: uuid.UUID) -> HttpResponse:
        actor = actor_of(caller.key)
        artifact = artifacts.find(actor, artifact_id)
        return download(artifact, artifacts.load(actor, artifact))


urlpatterns = [
    path("stages/<str:stage_id>/artifacts", StoreArtifact.as_view()),
    path("artifacts/<str:artifact_id>", LoadArtifact.as_view()),
]
