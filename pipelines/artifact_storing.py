"""Storing artifacts: of running attempts, and baselines (R14).

What lies in a storage is written before the row that refers to it, so a crash leaves at most bytes that nothing refers
to, for `artifact_upkeep` to take away; a lock for each digest keeps it off meanwhile. An attempt's are fenced like all
that a worker writes, and charged to its run. Serves R14, I7.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from pipelines import artifact_places, audit
from pipelines.access import RELEASE, Actor
from pipelines.artifact_places import Damaged
from pipelines.artifacts import LONGEST_NAME, Given, actor_of_stage, corrupt, read_whole, refuse_damaged
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.leases import Holder, why_not_held
from pipelines.models import ContentPlace
from pipelines.moves import AttemptRow, Moves
from pipelines.sql import query

MOST_OF_ATTEMPT = 100
LOCK = 0x41525446  # what the advisory locks of contents are called
ADD_BASELINE = "artifact.add_baseline"
TOO_LATE = "this session does not hold the lease of that attempt; nothing was stored"


@dataclass(frozen=True, slots=True)
class Stored:
    """An artifact as it is kept; `is_new` is false where the same had been stored before."""

    id: uuid.UUID
    name: str
    sha256: str
    size: int
    is_new: bool


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
                "SELECT s.run_id, r.workspace_id, a.state = 'running' AND a.session_id = %s,"
                " EXISTS (SELECT FROM pipelines_artifact n WHERE n.attempt = a.id AND n.name = %s)"
                " FROM pipelines_attempt a"
                " JOIN pipelines_stage s ON s.id = a.stage_id JOIN pipelines_run r ON r.id = s.run_id"
                " WHERE a.id = %s AND s.id = %s AND r.application_id = coalesce(%s, r.application_id)"
                " AND r.environment_id = coalesce(%s, r.environment_id)",
                [holder.session_id, given.name, execution_id, stage_id, holder.application_id, holder.environment_id],
            )
            if not found:
                return None
            given.check()
            run_id, workspace_id, may_be_held, is_named = found[0]
            if may_be_held and not is_named:
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
        refuse_damaged(actor_of_stage(stage_id), entry, damaged)
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
    wanted = (given.sha256, application_id, environment_id)
    with audit.audited(actor, ADD_BASELINE, reason=reason, **told) as entry:
        given.check()
        earlier = _baseline(actor.workspace_id, given.name)
        is_new = earlier is None
        if is_new:
            try:
                _lay_down(actor.workspace_id, given)
            except Damaged as damaged:
                raise corrupt(damaged, actor.workspace_id, told) from damaged
            row = _row(actor.workspace_id, given, actor.name)
            is_new = _insert(row | {"application_id": application_id, "environment_id": environment_id})
            earlier = _baseline(actor.workspace_id, given.name)
        found, *kept = earlier or (uuid.UUID(int=0),)
        if tuple(kept) != wanted:
            raise _immutable("the workspace", given.name, "another name")
        entry.data["artifact"] = str(found)
        if not is_new:
            entry.outcome = audit.NO_OP
    return Stored(found, given.name, given.sha256, len(given.data), is_new)


def _baseline(workspace_id: uuid.UUID, name: str) -> tuple[uuid.UUID, str, uuid.UUID | None, uuid.UUID | None] | None:
    """The baseline of that name: id, digest, application and environment."""
    found = query(
        "SELECT id, digest, application_id, environment_id FROM pipelines_artifact"
        " WHERE workspace_id = %s AND name = %s AND run_id IS NULL",
        [workspace_id, name],
    )
    return found[0] if found else None


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
    read_whole(workspace_id, given.sha256, size)


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
