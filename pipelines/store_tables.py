"""Tables of the workspace store for people and programs: listed, looked into, and taken away by who may.

A key sees the tables of its application and environment, a person those of the workspace. Removing is looked at first:
what would go is counted and carries a digest, and what is done under the table's lock must be that. Serves N12, N22.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from pipelines import store
from pipelines.access import RELEASE, Actor
from pipelines.api.bodies import parse
from pipelines.audit import NO_OP, audited
from pipelines.errors import Refusal
from pipelines.models import StoreTable
from pipelines.paging import Cut, Page, cursor_at
from pipelines.sql import execute, query
from pipelines.store import Kept, Wanted
from pipelines.store_rows import filter_of, wrong

REMOVE = "store.remove"
ORDER = ("name", "id")


@dataclass(frozen=True, slots=True)
class Removal:
    """What would go, or went: of a table all, with itself, where nothing was said of its rows."""

    table: StoreTable
    where: Mapping[str, Any]
    rows: int
    bytes: int
    digest: str  # of what was seen: removing may insist on the same

    @property
    def is_whole(self) -> bool:
        return not self.where


def visible(actor: Actor) -> QuerySet[StoreTable]:
    """The tables that the actor may know of."""
    rows = StoreTable.objects.filter(workspace_id=actor.workspace_id)
    for name in ("application_id", "environment_id"):
        owner = getattr(actor, name)
        if owner is not None:
            rows = rows.filter(**{name: owner})
    return rows.select_related("application", "environment")


def find(actor: Actor, table_id: uuid.UUID) -> StoreTable:
    """One table; 404 when not visible."""
    found = visible(actor).filter(id=table_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such table")
    return found


def rows_page(table: StoreTable, where: Mapping[str, Any], cut: Cut) -> Page[Kept]:
    """A page of the rows that a filter leaves, in the order in which they were first written."""
    with transaction.atomic():
        rows, more = store.page(Wanted(table.id, where, table.key), cut)
    if not rows:
        return Page()
    if cut.backwards:
        rows.reverse()
    return Page(
        rows,
        next=cursor_at((rows[-1].id,)) if more or cut.backwards else None,
        previous=cursor_at((rows[0].id,), backwards=True) if _has_previous(cut, more) else None,
    )


def read_where(text: str | None) -> dict[str, Any]:
    """A filter as an address carries it: a JSON object of columns and what they must hold; none: everything."""
    if not text:
        return {}
    try:
        where = parse(text.encode("utf-8", "surrogatepass"))
    except Refusal as refused:
        raise wrong("where", "must be a JSON object of columns and what they must hold") from refused
    if not isinstance(where, dict):
        raise wrong("where", "must be a JSON object of columns and what they must hold")
    filter_of(where)
    return where


def preview(table: StoreTable, where: Mapping[str, Any]) -> Removal:
    """What removing would take away now. Changes nothing."""
    with transaction.atomic():
        return _planned(table, where)


def remove(
    actor: Actor, table_id: uuid.UUID, where: Mapping[str, Any], *, reason: str = "", plan_digest: str = ""
) -> Removal:
    """Removes the rows that a filter leaves; without one the table, with its key and all rows. Audited.

    Handlers that write to it again make it anew. Refused: a missing right, 404, and `plan_changed` where what would go
    is not what was seen. Nothing to remove: nothing changes.
    """
    told = {"table_id": str(table_id), "where": dict(where)} if where else {"table_id": str(table_id)}
    with audited(actor, REMOVE, reason=reason, plan_digest=plan_digest, **told) as entry:
        table = find(actor, table_id)
        entry.data["table"] = table.name
        actor.require(RELEASE)
        query("SELECT id FROM pipelines_storetable WHERE id = %s FOR UPDATE", [table_id])
        table = find(actor, table_id)  # as it stands under the lock, if it still does
        removal = _planned(table, where)
        if plan_digest and plan_digest != removal.digest:
            raise Refusal("plan_changed", "what would go is not what was seen; look again")
        entry.plan_digest = removal.digest
        entry.data |= {"rows": removal.rows, "bytes": removal.bytes}
        if removal.is_whole:
            execute("DELETE FROM pipelines_storetable WHERE id = %s", [table_id])  # with its rows
        elif removal.rows:
            rows, size = store.remove(Wanted(table_id, where, table.key))
            execute(
                "UPDATE pipelines_storetable SET rows = rows - %s, bytes = bytes - %s WHERE id = %s",
                [rows, size, table_id],
            )
        else:
            entry.outcome = NO_OP
    return removal


def _planned(table: StoreTable, where: Mapping[str, Any]) -> Removal:
    filter_of(where)
    rows, size, newest = store.measure(Wanted(table.id, where, table.key))
    seen = [str(table.id), dict(where), rows, size, newest, str(table.written_at)]
    digest = sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()
    return Removal(table, where, rows, size, digest)


def _has_previous(cut: Cut, more: bool) -> bool:
    return more if cut.backwards else cut.position is not None
