"""Artifacts: named bytes that a running attempt leaves, or that a person lays down as a baseline; never changed (R14).

Bytes are known by their SHA-256 and kept once for each workspace. They are checked when they come, against the digest
that came along, and at every load, against the digest that was kept: bytes that are not what was stored never go out,
and the audit says so (R15). What lies in a storage is written before the row that refers to it, so a crash leaves at
most bytes that nothing refers to, for `artifact_upkeep` to take away; a lock for each digest keeps it off meanwhile.
Storing is fenced like every write of a worker, and charged to its run. Serves R14, R15, I7, I16.
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
from django.db import transaction
from django.db.models import Q, QuerySet

from pipelines import artifact_places, audit
from pipelines.access import RELEASE, Actor
from pipelines.artifact_places import Damaged
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.leases import Holder, why_not_held
from pipelines.models import Artifact, ContentPlace, Run
from pipelines.moves import AttemptRow, Moves
from pipelines.sql import query

MOST_OF_ATTEMPT = 100
LONGEST_NAME, LONGEST_TYPE = 255, 100
LOCK = 0x41525446  # what the advisory locks of contents are called
ADD_BASELINE, LOAD = "artifact.add_baseline", "artifact.load"
TOO_LATE = "this session does not hold the lease of that attempt; nothing was stored"

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


@dataclass(frozen=True, slots=True)
class Stored:
    """An artifact as it is kept; `is_new` is false where the same had been stored before."""

    id: uuid.UUID
    name: str
    sha256: str
    size: int
    is_new: bool


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


# storing


def store(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, given: Given) -> Stored | None:
    """Keeps an artifact of a running attempt; durable on return. None: no such attempt is visible to the holder.

    The same name and bytes again are the same artifact. Refused as `Given.check`; `stale_execution` without the live
    lease, `artifact_immutable` for other bytes under a name of this attempt, `budget_exhausted` for what the run's
    output allowance or the number of its attempt's artifacts leaves no room for, `artifact_corrupt` where these very
    bytes had been stored and are damaged.
    """
    try:
        with transaction.atomic():
            found = query(
                "SELECT s.run_id, r.workspace_id, a.state = 'running' AND a.session_id = %s FROM pipelines_attempt a"
                " JOIN pipelines_stage s ON s.id = a.stage_id JOIN pipelines_run r ON r.id = s.run_id"
                " WHERE a.id = %s AND s.id = %s AND r.application_id = coalesce(%s, r.application_id)"
                " AND r.environment_id = coalesce(%s, r.environment_id)",
                [holder.session_id, execution_id, stage_id, holder.application_id, holder.environment_id],
            )
            if not found:
                return None
            given.check()
            run_id, workspace_id, may_be_held = found[0]
            if may_be_held:
                _lay_down(workspace_id, given)  # before the run is locked: a storage may take its time
            moves = Moves.lock([run_id], actor=holder.worker, owner=holder.owner)
            if not moves.runs:
                return None
            moves.end_overdue()
            attempt = moves.attempts("id = %s", execution_id)[0]
            is_held = may_be_held and not why_not_held(holder, moves, attempt)
            stored = _keep(moves, attempt, given, holder.worker) if is_held else None
            moves.settle()
            moves.save()
    except Damaged as damaged:
        entry = audit.Entry(run=run_id, stage=stage_id, data={"name": given.name, "sha256": given.sha256})
        _refuse_damaged(_acting(workspace_id, run_id), entry, damaged)
    if stored is None:
        raise Refusal("stale_execution", TOO_LATE)
    return stored


def add_baseline(
    actor: Actor,
    given: Given,
    *,
    application_id: uuid.UUID | None = None,
    environment_id: uuid.UUID | None = None,
    reason: str = "",
) -> Stored:
    """Keeps what runs build on: an artifact of no run, with its name once in the workspace; of one application or
    environment where it says so. Refused as `store`, besides for a missing right.
    """
    actor.require(RELEASE)
    told: dict[str, Any] = {"name": given.name[:LONGEST_NAME], "sha256": given.sha256[:64], "size": len(given.data)}
    with audit.audited(actor, ADD_BASELINE, reason=reason, **told) as entry:
        given.check()
        try:
            _lay_down(actor.workspace_id, given)
        except Damaged as damaged:
            raise _corrupt(damaged, actor.workspace_id, told) from damaged
        row = _row(actor.workspace_id, given, actor.name)
        row |= {"application_id": application_id, "environment_id": environment_id}
        if not _insert(row):
            entry.outcome = audit.NO_OP
        earlier = query(
            "SELECT id, digest, application_id, environment_id FROM pipelines_artifact"
            " WHERE workspace_id = %s AND name = %s AND run_id IS NULL",
            [actor.workspace_id, given.name],
        )
        if earlier[0][1:] != (given.sha256, application_id, environment_id):
            raise _immutable("the workspace", given.name, "another name")
        entry.data["artifact"] = str(earlier[0][0])
    return Stored(earlier[0][0], given.name, given.sha256, len(given.data), entry.outcome != audit.NO_OP)


def lock_content(workspace_id: uuid.UUID, digest: str) -> None:
    """Keeps upkeep away from these bytes until the caller's transaction ends."""
    query("SELECT pg_advisory_xact_lock_shared(%s, hashtext(%s))", [LOCK, f"{workspace_id}/{digest}"])


def _lay_down(workspace_id: uuid.UUID, given: Given) -> None:
    """Has the bytes lie where they belong; where they lie already they must be whole. Raises `Damaged`."""
    lock_content(workspace_id, given.sha256)
    kept = query(
        "SELECT place, size, encode(sha256(body), 'hex') FROM pipelines_artifactcontent"
        " WHERE workspace_id = %s AND digest = %s",
        [workspace_id, given.sha256],
    )
    if not kept:
        if not artifact_places.is_database():
            artifact_places.write(workspace_id, given.sha256, given.data)
        return
    place, size, found = kept[0]
    if place == ContentPlace.DATABASE:
        if found != given.sha256:
            raise Damaged("its bytes have another digest")
        return
    _read(workspace_id, given.sha256, size)


def _keep(moves: Moves, attempt: AttemptRow, given: Given, worker: str) -> Stored:
    """The artifact of a held attempt, whose bytes have been laid down."""
    earlier = query(
        "SELECT id, digest FROM pipelines_artifact WHERE attempt = %s AND name = %s", [attempt.id, given.name]
    )
    if earlier:
        if earlier[0][1] != given.sha256:
            raise _immutable("this attempt", given.name, "another name, or another attempt")
        return Stored(earlier[0][0], given.name, given.sha256, len(given.data), is_new=False)
    if query("SELECT count(*) FROM pipelines_artifact WHERE attempt = %s", [attempt.id])[0][0] >= MOST_OF_ATTEMPT:
        raise Refusal("budget_exhausted", f"an attempt has at most {MOST_OF_ATTEMPT} artifacts")
    run, stage = moves.runs[attempt.run_id], moves.stages[attempt.stage_id]
    moves.ledger.charge_artifact(run, len(given.data))
    row = _row(run.workspace_id, given, worker) | {
        "application_id": run.application_id,
        "environment_id": run.environment_id,
        "run_id": run.id,
        "stage_id": stage.id,
        "attempt": attempt.id,
    }
    _insert(row)
    data = {"artifact": str(row["id"]), "name": given.name, "sha256": given.sha256, "size": len(given.data)}
    moves.event("artifact.store", run.id, stage.id, attempt.id, data=data | {"number": attempt.number})
    return Stored(row["id"], given.name, given.sha256, len(given.data), is_new=True)


def _row(workspace_id: uuid.UUID, given: Given, by: str) -> dict[str, Any]:
    """A row of no run, that refers to the bytes; theirs is made where there is none."""
    place = ContentPlace.DATABASE if artifact_places.is_database() else ContentPlace.STORAGE
    body = given.data if place == ContentPlace.DATABASE else None
    query(
        "INSERT INTO pipelines_artifactcontent (id, workspace_id, digest, size, place, body)"
        " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (workspace_id, digest) DO NOTHING RETURNING id",
        [new_id(), workspace_id, given.sha256, len(given.data), str(place), body],
    )
    content = query(
        "SELECT id FROM pipelines_artifactcontent WHERE workspace_id = %s AND digest = %s",
        [workspace_id, given.sha256],
    )
    return {
        "id": new_id(),
        "workspace_id": workspace_id,
        "application_id": None,
        "environment_id": None,
        "run_id": None,
        "stage_id": None,
        "attempt": None,
        "content_id": content[0][0],
        "name": given.name,
        "media_type": given.media_type,
        "digest": given.sha256,
        "size": len(given.data),
        "added_by": by[:255],
    }


def _insert(row: dict[str, Any]) -> bool:
    """Adds the artifact; False when its name is taken."""
    columns, values = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    return bool(
        query(
            f"INSERT INTO pipelines_artifact ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING RETURNING id",  # noqa: S608 - our own names
            row,
        )
    )


def _immutable(where: str, name: str, instead: str) -> Refusal:
    message = f"{where} has an artifact called {name!r} of other bytes, which stay as they are; take {instead}"
    return Refusal("artifact_immutable", message, errors={"name": [message]})


# looking and loading


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
        _refuse_damaged(actor, audit.Entry(run=artifact.run_id, stage=artifact.stage_id, data=told), damaged)


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
    data = _read(workspace_id, digest, size) if place == ContentPlace.STORAGE else bytes(body)
    if len(data) != size or sha256(data).hexdigest() != artifact.digest:
        raise Damaged("its bytes have another digest")
    return data


def _read(workspace_id: uuid.UUID, digest: str, size: int) -> bytes:
    """What the storage holds, once it is known to be right."""
    data = artifact_places.read(workspace_id, digest, size)
    if sha256(data).hexdigest() != digest:
        raise Damaged("its bytes have another digest")
    return data


def _refuse_damaged(actor: Actor, entry: audit.Entry, damaged: Damaged) -> NoReturn:
    """Refuses, and has the audit keep it: nobody who merely reads is in there otherwise."""
    refusal = _corrupt(damaged, actor.workspace_id, entry.data)
    entry.data["detail"] = refusal.detail
    audit.record_refusal(actor, LOAD, refusal, entry)
    refusal.is_recorded = True
    raise refusal from damaged


def _corrupt(damaged: Damaged, workspace_id: uuid.UUID, told: Mapping[str, Any]) -> Refusal:
    log.error("artifacts.corrupt", why=str(damaged), workspace=str(workspace_id), **told)
    return Refusal("artifact_corrupt", f"the artifact is damaged: {damaged}; nothing of it is given out")


def _acting(workspace_id: uuid.UUID, run_id: uuid.UUID) -> Actor:
    """The application on whose behalf a worker acts, as an actor."""
    found = query(
        "SELECT a.id, a.name, r.environment_id FROM pipelines_run r"
        " JOIN pipelines_application a ON a.id = r.application_id WHERE r.id = %s",
        [run_id],
    )
    application_id, name, environment_id = found[0]
    return Actor(name, workspace_id, "application", application_id=application_id, environment_id=environment_id)
