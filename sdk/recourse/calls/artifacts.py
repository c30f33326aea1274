"""Artifacts and baselines."""

from __future__ import annotations

import base64
from hashlib import sha256

from recourse.calls.base import Call, Some, Told, given, page, read, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists
from recourse.models import operations
from recourse.models.content import Content
from recourse.models.pages import Page


class Artifacts(Group[Sender_co]):
    """Named bytes that never change: what attempts stored, and the baselines that runs build on."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        execution_id: Some = None,
        is_baseline: Told = None,
        name: Some = None,
        stage_id: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.ArtifactView]]:
        """One page, newest first."""
        return page(
            "v1/artifacts",
            next,
            execution_id=execution_id,
            is_baseline=is_baseline,
            name=name,
            stage_id=stage_id,
            page_size=page_size,
        )

    iterate = iterates(list)

    @asks
    def get(self, artifact_id: str) -> Call[operations.ArtifactView]:
        """What is known of it, without its bytes."""
        return read(f"v1/artifacts/{segment(artifact_id)}")

    @asks
    def content(self, artifact_id: str) -> Call[Content]:
        """`{content, sha256, mediaType}`: the bytes, checked against their digest by the server and again here. Raises
        `ArtifactCorrupt` where they are not what was stored.
        """
        return Call("GET", f"v1/artifacts/{segment(artifact_id)}/content", person=True, bytes_with_digest=True)

    @asks
    def add_baseline(
        self,
        name: str,
        data: bytes,
        *,
        media_type: str | None = None,
        application: str | None = None,
        environment: str | None = None,
        reason: str | None = None,
        client_request_id: str | None = None,
    ) -> Call[operations.ArtifactView]:
        """Lays down what runs build on; its name is its own in the workspace. The same again is the same artifact,
        other bytes raise `ArtifactImmutable`.
        """
        body = given(
            name=name,
            content_base64=base64.b64encode(data).decode("ascii"),
            sha256=sha256(data).hexdigest(),
            media_type=media_type,
            application=application,
            environment=environment,
            reason=reason,
        )
        return write("v1/artifacts", body, client_request_id)
