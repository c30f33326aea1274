"""Artifacts: named bytes that a running attempt leaves, or that a person lays down as a baseline; never changed (R14).

Bytes are known by their SHA-256 and kept once for each workspace. They are checked when they come, against the digest
that came along, and at every load, against the digest that was kept: bytes that are not what was stored never go out,
and the audit says so (R15). Here is what can be kept, who may see it, and loading; storing: `artifact_storing`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NoReturn

import structlog
from django.conf import settings
from django.db.models import Q, QuerySet

from pipelines import artifact_places, audit
from pipelines.access import Actor
from pipelines.artifact_places import Damaged
from pipelines.errors import Refusal
from pipelines.models import Artifact, ContentPlace, Run
from pipelines.sql import query

LONGEST_NAME, LONGEST_TYPE = 255, 100
LOAD = "artifact.load"

_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"  # noqa: S105 - a part of a media type
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(; ?[a-zA-Z0-9-]+={_TOKEN})*")
_HEX = re.compile(r"[0-9a-f]{64}")
# controls, and what makes a name look like another one: line ends and marks of direction
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """Bytes under a name, with the digest that their sender has of them; checked by `check`."""

    name: str
    data: bytes
    sha256: str
    media_type: str = ""

    def check(self) -> None:
        """Refuses, naming the field: `payload_too_large` above the limit, `validation_error` for all else."""
        most = settings.RECOURSE_ARTIFACT_MAX_BYTES
        if len(self.data) > most:
            message = f"an artifact has at most {most} bytes; this one has {len(self.data)}"
            raise Refusal("payload_too_large", message, errors={"content": [message]})
        problems = {"name": name_problem(self.name), "media_type": type_problem(self.media_type)}
        if not _HEX.fullmatch(self.sha256):
            problems["sha256"] = "must be a SHA-256 in 64 lowercase hex digits"
        elif sha256(self.data).hexdigest() != self.sha256:
            problems["sha256"] = "is not that of the bytes that came"
        errors = {field: [problem] for field, problem in problems.items() if problem}
        for field, messages in errors.items():
            raise Refusal("validation_error", f"{field}: {messages[0]}", errors=errors)


def name_problem(name: str) -> str:
    """Why an artifact cannot be called so; blank when it can. A name is no path, also where it is saved as a file."""
    if not name.strip() or name != name.strip():
        return "must not be blank, nor begin or end with blanks"
    if len(name) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters"
    if _UNSEEN.search(name):
        return "must not contain control characters, nor marks of direction"
    if "/" in name or "\\" in name or name in (".", ".."):
        return "must not contain / or \\, nor be . or .."
    return ""


def type_problem(media_type: str) -> str:
    if media_type and (len(media_type) > LONGEST_TYPE or not _MEDIA_TYPE.fullmatch(media_type)):
        return f"must be a media type such as application/pdf, of at most {LONGEST_TYPE} characters"
    return ""


def visible(actor: Actor) -> QuerySet[Artifact]:
    """The artifacts that the actor may know of. A key sees those of its application and environment, and the baselines
    of its workspace that are for neither another application nor another environment.
    """
    rows = Artifact.objects.filter(workspace_id=actor.workspace_id)
    for name in ("application_id", "environment_id"):
        owner = getattr(actor, name)
        if owner is not None:
            rows = rows.filter(Q(**{name: owner}) | Q(run__isnull=True, **{f"{name}__isnull": True}))
    return rows


def listed(actor: Actor, run: Run | None = None) -> QuerySet[Artifact]:
    """Artifacts with what a list tells of them, of all or of one run that the actor was shown."""
    rows = visible(actor).select_related("stage", "application", "environment").defer("stage__input")
    return rows if run is None else rows.filter(run=run)


def find(actor: Actor, artifact_id: uuid.UUID) -> Artifact:
    """One artifact, as in a list; 404 when not visible."""
    found = listed(actor).filter(id=artifact_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such artifact")
    return found


def load(actor: Actor, artifact: Artifact) -> bytes:
    """The bytes, if they are what was stored; else 409 `artifact_corrupt`, and the audit says that somebody asked for
    them. Raises `Away` while their storage does not answer.
    """
    try:
        return whole(artifact)
    except Damaged as damaged:
        told = {"artifact": str(artifact.id), "name": artifact.name, "sha256": artifact.digest}
        refuse_damaged(actor, audit.Entry(run=artifact.run_id, stage=artifact.stage_id, data=told), damaged)


def whole(artifact: Artifact) -> bytes:
    """The bytes, if they are what was stored. Raises `Damaged`, and `Away` while their storage does not answer."""
    kept = query(
        "SELECT workspace_id, digest, size, place, body FROM pipelines_artifactcontent WHERE id = %s",
        [artifact.content_id],
    )
    if not kept:
        raise Damaged("its bytes are gone")
    workspace_id, digest, size, place, body = kept[0]
    if (workspace_id, digest, size) != (artifact.workspace_id, artifact.digest, artifact.size):
        raise Damaged("it refers to other bytes than it names")
    data = read_whole(workspace_id, digest, size) if place == ContentPlace.STORAGE else bytes(body)
    if len(data) != size or sha256(data).hexdigest() != artifact.digest:
        raise Damaged("its bytes have another digest")
    return data


def read_whole(workspace_id: uuid.UUID, digest: str, size: int) -> bytes:
    """What the storage holds, once it is known to be right."""
    data = artifact_places.read(workspace_id, digest, size)
    if sha256(data).hexdigest() != digest:
        raise Damaged("its bytes have another digest")
    return data


def refuse_damaged(actor: Actor, entry: audit.Entry, damaged: Damaged) -> NoReturn:
    """Refuses, and has the audit keep it: nobody who merely reads is in there otherwise."""
    refusal = corrupt(damaged, actor.workspace_id, entry.data)
    entry.data["detail"] = refusal.detail
    audit.record_refusal(actor, LOAD, refusal, entry)
    refusal.is_recorded = True
    raise refusal from damaged


def corrupt(damaged: Damaged, workspace_id: uuid.UUID, told: Mapping[str, Any]) -> Refusal:
    log.error("artifacts.corrupt", why=str(damaged), workspace=str(workspace_id), **told)
    return Refusal("artifact_corrupt", f"the artifact is damaged: {damaged}; nothing of it is given out")


def actor_of_stage(stage_id: uuid.UUID) -> Actor:
    """The application whose stage it is, as the one who acts."""
    found = query(
        "SELECT a.name, r.workspace_id, r.application_id, r.environment_id FROM pipelines_stage s"
        " JOIN pipelines_run r ON r.id = s.run_id JOIN pipelines_application a ON a.id = r.application_id"
        " WHERE s.id = %s",
        [stage_id],
    )
    name, workspace_id, application_id, environment_id = found[0]
    return Actor(name, workspace_id, "application", application_id=application_id, environment_id=environment_id)
