"""What a running attempt does with the workspace store: declares tables, reads, inserts, upserts and deletes rows.

Rows belong to the workspace, environment and application of the run, under a table's name, and outlive the run: a write
has its own transaction, and what becomes of the attempt does not touch it (N18). Fenced like all that a worker writes:
without the live lease nothing changes. Every verb may be repeated: it converges (N12, N20, N21, N25).

Locks, in this order: the attempt (so that its lease cannot end meanwhile), the making of tables in the workspace, the
table, the workspace's sum of bytes; of runs none, so that stages of one run write side by side. What is counted is
counted under them, so no two writers can go past a quota together.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from pipelines import store
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.leases import Holder
from pipelines.paging import Cut
from pipelines.sql import execute, query
from pipelines.states import TERMINAL_RUN
from pipelines.store import Wanted
from pipelines.store_rows import Row, compact, conflict, filter_of, rows_of, wrong

MOST_DELETED = 5_000  # rows of a request
MAKING, BYTES = 0x53544F54, 0x53544F42  # what the advisory locks are called: making a table, the sum of bytes
TOO_LATE = "this session does not hold the lease of that attempt; nothing was stored"
NO_KEY = "has no key columns to merge on: declare them first, or insert"


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose rows an attempt works on, and by which run's right."""

    workspace_id: uuid.UUID
    application_id: uuid.UUID
    environment_id: uuid.UUID
    run_id: uuid.UUID
    attempt_id: uuid.UUID
    now: datetime


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it stands under its lock."""

    id: uuid.UUID
    key: Sequence[str]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Declared:
    key: Sequence[str]
    is_new: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What a write came to, and what the table holds since."""

    inserted: int
    replaced: int
    unchanged: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Deleted:
    rows: int
    more: bool  # whether as many as a request deletes were deleted: ask again


@dataclass(frozen=True, slots=True)
class Read:
    """Rows in the order in which they were first written; `next` is where the following page begins."""

    rows: Sequence[Mapping[str, Any]]
    next: int | None


def declare(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, name: str, key: Sequence[str]
) -> Declared | None:
    """Makes a table with these key columns; again: nothing. None: no such attempt is visible to the holder.

    Refused: `store_conflict` where it has other key columns, `store_quota_exceeded` for one table too many, and, as
    every verb here, `stale_execution` without the live lease, `store_closed` where its role cannot be used.
    """
    with transaction.atomic():
        scope = _held(holder, stage_id, execution_id)
        if scope is None:
            return None
        is_new = not _exists(scope, name)
        table = _locked(scope, name, key)
        if list(table.key) != list(key):
            raise _other_key(name, table.key)
    return Declared(table.key, is_new)


def write(
    holder: Holder,
    stage_id: uuid.UUID,
    execution_id: uuid.UUID,
    name: str,
    rows: Sequence[Any],
    *,
    upsert: bool,
    key: Sequence[str] | None = None,
) -> Written | None:
    """Adds rows; durable on return, all of them or none. A row that is there already, as it is, stays as it is.

    Under the key of another row `upsert` replaces that one, and an insert is `store_conflict`. Of several in one
    request an upsert takes the last. A table that is not there is made, with `key` where it is given. Refused besides,
    as `declare`: `validation_error` for rows that cannot be kept and for an upsert without key columns,
    `store_quota_exceeded` for more rows or bytes than there may be.
    """
    with transaction.atomic():
        scope = _held(holder, stage_id, execution_id)
        if scope is None:
            return None
        table = _locked(scope, name, key or ())
        if key is not None and list(table.key) != list(key):
            raise _other_key(name, table.key)
        if upsert and not table.key:
            raise wrong("table", f"{name!r} {NO_KEY}")
        given = rows_of(rows, table.key, most_bytes=settings.RECOURSE_STORE_ROW_BYTES, last_wins=upsert)
        merged = store.merge(table.id, given, run_id=scope.run_id, now=scope.now)
        if merged.replaced and not upsert:
            raise conflict([_place_of(rows, given, place) for place in merged.replaced])
        if merged.inserted or merged.replaced:
            _count(scope, table, name, merged.inserted, merged.bytes)
    return Written(
        merged.inserted,
        len(merged.replaced),
        len(rows) - merged.inserted - len(merged.replaced),
        table.rows + merged.inserted,
        table.bytes + merged.bytes,
    )


def delete(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, name: str, where: Mapping[str, Any]
) -> Deleted | None:
    """Deletes the rows whose columns hold what `where` says, all of them without one, `MOST_DELETED` at a time."""
    filter_of(where)
    with transaction.atomic():
        scope = _held(holder, stage_id, execution_id)
        if scope is None:
            return None
        table = _find(scope, name)
        if table is None:
            return Deleted(0, more=False)
        rows, size = store.remove(Wanted(table.id, where, table.key), MOST_DELETED)
        if rows:
            _count(scope, table, name, -rows, -size)
    return Deleted(rows, more=rows == MOST_DELETED)


def read(
    holder: Holder,
    stage_id: uuid.UUID,
    execution_id: uuid.UUID,
    name: str,
    where: Mapping[str, Any],
    *,
    after: int,
    most: int,
) -> Read | None:
    """A page of the rows whose columns hold what `where` says; a table that is not there has none."""
    filter_of(where)
    with transaction.atomic():
        scope = _held(holder, stage_id, execution_id, lock=False)
        if scope is None:
            return None
        found = query(_TABLE, _named(scope, name))
        if not found:
            return Read((), None)
        table = Table(*found[0])
        rows, more = store.page(Wanted(table.id, where, table.key), Cut(most, (after,)))
    return Read([one.row for one in rows], rows[-1].id if more else None)


_VISIBLE = (
    "FROM pipelines_attempt a JOIN pipelines_stage s ON s.id = a.stage_id JOIN pipelines_run r ON r.id = s.run_id"
    " WHERE a.id = %s AND s.id = %s AND r.application_id = coalesce(%s, r.application_id)"
    " AND r.environment_id = coalesce(%s, r.environment_id)"
)
_TABLE = (
    "SELECT id, key, rows, bytes FROM pipelines_storetable"
    " WHERE application_id = %s AND environment_id = %s AND name = %s"
)


def _held(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, *, lock: bool = True) -> Scope | None:
    """What the attempt may work on while its lease lives, which with `lock` it does until the transaction ends."""
    mine = [execution_id, stage_id, holder.application_id, holder.environment_id]
    if lock:
        query(f"SELECT a.id {_VISIBLE} FOR SHARE OF a", mine)
    found = query(
        "SELECT r.workspace_id, r.application_id, r.environment_id, r.id, a.id, recourse_now(),"
        " a.state = 'running' AND a.session_id = %s AND a.expires_at > recourse_now()"
        f" AND (r.deadline_at IS NULL OR r.deadline_at > recourse_now()) AND r.status <> ALL(%s) {_VISIBLE}",
        [holder.session_id, sorted(TERMINAL_RUN), *mine],
    )
    if not found:
        return None
    *scope, is_held = found[0]
    if not is_held:
        raise Refusal("stale_execution", TOO_LATE)
    return Scope(*scope)


def _named(scope: Scope, name: str) -> list[Any]:
    return [scope.application_id, scope.environment_id, name]


def _exists(scope: Scope, name: str) -> bool:
    return bool(query(_TABLE, _named(scope, name)))


def _find(scope: Scope, name: str) -> Table | None:
    """The table, locked, so that one at a time writes to it; none where there is none."""
    found = query(f"{_TABLE} FOR NO KEY UPDATE", _named(scope, name))
    return Table(*found[0]) if found else None


def _locked(scope: Scope, name: str, key: Sequence[str]) -> Table:
    """The table, locked; made where it is not there."""
    table = _find(scope, name)
    while table is None:
        query("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [MAKING, str(scope.workspace_id)])
        table = _find(scope, name) or _make(scope, name, key)
    return table


def _make(scope: Scope, name: str, key: Sequence[str]) -> Table | None:
    most = settings.RECOURSE_STORE_TABLES
    count = query("SELECT count(*) FROM pipelines_storetable WHERE workspace_id = %s", [scope.workspace_id])[0][0]
    if count >= most:
        raise _exceeded("table", f"a workspace has at most {most} tables")
    execute(
        "INSERT INTO pipelines_storetable (id, workspace_id, application_id, environment_id, name, key, rows, bytes,"
        " created_at) VALUES (%s, %s, %s, %s, %s, %s::text[], 0, 0, %s) ON CONFLICT DO NOTHING",
        [new_id(), scope.workspace_id, *_named(scope, name), list(key), scope.now],
    )
    return _find(scope, name)


def _count(scope: Scope, table: Table, name: str, rows: int, size: int) -> None:
    """Keeps what the table holds now. Refuses what would be more than there may be, which undoes the write."""
    most_rows, most_bytes = settings.RECOURSE_STORE_TABLE_ROWS, settings.RECOURSE_STORE_BYTES
    if rows > 0 and table.rows + rows > most_rows:
        raise _exceeded("rows", f"a table has at most {most_rows} rows; {name} would have {table.rows + rows}")
    if size > 0:
        query("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [BYTES, str(scope.workspace_id)])
        kept = query(
            "SELECT coalesce(sum(bytes), 0)::bigint FROM pipelines_storetable WHERE workspace_id = %s",
            [scope.workspace_id],
        )[0][0]
        if kept + size > most_bytes:
            message = f"a workspace's tables have at most {most_bytes} bytes together; they would have {kept + size}"
            raise _exceeded("rows", message)
    execute(
        "UPDATE pipelines_storetable SET rows = rows + %s, bytes = bytes + %s, written_at = %s, written_by_run = %s,"
        " written_by_attempt = %s WHERE id = %s",
        [rows, size, scope.now, scope.run_id, scope.attempt_id, table.id],
    )


def _place_of(rows: Sequence[Any], given: Sequence[Row], place: int) -> int:
    """Where a row stood in the request, which may have named some more than once."""
    if len(rows) == len(given):
        return place
    body = given[place].body
    return next((number for number, row in enumerate(rows) if compact(row) == body), place)


def _other_key(name: str, key: Sequence[str]) -> Refusal:
    told = f"the key columns {', '.join(key)}" if key else "no key columns"
    message = f"the table {name!r} has {told}; they stay as they are"
    return Refusal("store_conflict", message, errors={"key": [message]})


def _exceeded(field: str, message: str) -> Refusal:
    return Refusal("store_quota_exceeded", f"{message}; nothing was stored", errors={field: [message]})
