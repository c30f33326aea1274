"""What nothing refers to any more is taken away, and what is kept is checked.

Bytes whose artifacts have gone with their runs, and objects of a storage that a crash left without a row. Younger than
a day they stay, and those that somebody is just storing anew stay in any case: whoever stores holds a lock on them,
which is only tried for here. A row goes before its object, so that a crash leaves an object and never a row without
its bytes; such objects are found by what lies in the storage.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

from django.db import transaction

from pipelines import artifact_places
from pipelines.artifact_places import Found
from pipelines.artifact_storing import LOCK
from pipelines.models import Artifact, ContentPlace
from pipelines.sql import database_now, execute, query

GRACE = timedelta(days=1)
BATCH = 500


def sweep() -> int:
    """Takes away contents and objects that nothing refers to; returns how many. Raises `Away` at the first object that
    the storage does not give an answer about; what was taken away until then stays away.
    """
    return _sweep_contents() + _sweep_objects()


def each(workspace_id: uuid.UUID | None = None) -> Iterator[Artifact]:
    """All artifacts, oldest id first, some at a time."""
    rows = Artifact.objects.order_by("id")
    if workspace_id is not None:
        rows = rows.filter(workspace_id=workspace_id)
    page = list(rows[:BATCH])
    while page:
        yield from page
        page = list(rows.filter(id__gt=page[-1].id)[:BATCH])


def _sweep_contents() -> int:
    removed, after = 0, uuid.UUID(int=0)
    while True:
        rows = query(
            "SELECT c.id, c.workspace_id, c.digest, c.place FROM pipelines_artifactcontent c"
            " WHERE c.id > %s AND c.at < %s"
            " AND NOT EXISTS (SELECT FROM pipelines_artifact a WHERE a.content_id = c.id) ORDER BY c.id LIMIT %s",
            [after, database_now() - GRACE, BATCH],
        )
        if not rows:
            return removed
        after = rows[-1][0]
        for content_id, workspace_id, digest, place in rows:
            if _remove_content(content_id, workspace_id, digest):
                removed += 1
                if place == ContentPlace.STORAGE and not artifact_places.is_database():
                    _remove_object(artifact_places.found_of(workspace_id, digest))


def _remove_content(content_id: uuid.UUID, workspace_id: uuid.UUID, digest: str) -> bool:
    with transaction.atomic():
        if not _is_alone(workspace_id, digest):
            return False
        execute("SET LOCAL recourse.retention = 'on'")
        return bool(
            execute(
                "DELETE FROM pipelines_artifactcontent c WHERE c.id = %s"
                " AND NOT EXISTS (SELECT FROM pipelines_artifact a WHERE a.content_id = c.id)",
                [content_id],
            )
        )


def _sweep_objects() -> int:
    if artifact_places.is_database():
        return 0
    before, removed = database_now() - GRACE, 0
    for shelf in artifact_places.shelves():
        kept = {
            (workspace_id, digest)
            for workspace_id, digest in query(
                "SELECT workspace_id, digest FROM pipelines_artifactcontent WHERE place = 'storage'"
                " AND workspace_id = ANY(%s) AND digest = ANY(%s)",
                [list({found.workspace_id for found in shelf}), [found.digest for found in shelf]],
            )
        }
        for found in shelf:
            if (found.workspace_id, found.digest) not in kept:
                written_at = artifact_places.written_at(found)
                if written_at is not None and written_at < before:
                    removed += _remove_object(found)
    return removed


def _remove_object(found: Found) -> bool:
    """Takes an object away that no row refers to; one that was never finished has no digest, and no row ever."""
    with transaction.atomic():
        if found.digest and not _is_alone(found.workspace_id, found.digest):
            return False
        if query(
            "SELECT 1 FROM pipelines_artifactcontent WHERE workspace_id = %s AND digest = %s AND place = 'storage'",
            [found.workspace_id, found.digest],
        ):
            return False
        artifact_places.remove(found)
    return True


def _is_alone(workspace_id: uuid.UUID, digest: str) -> bool:
    """Whether nobody is storing these bytes now; nobody begins to until the transaction ends."""
    locked = query("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", [LOCK, f"{workspace_id}/{digest}"])
    return bool(locked[0][0])
