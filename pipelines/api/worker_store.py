"""The application API's routes for the workspace store: what a running attempt does with tables and rows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import store_writing
from pipelines.api.authentication import WorkerCaller
from pipelines.api.bodies import MIB
from pipelines.api.endpoints import WorkerEndpoint, answer, not_found
from pipelines.api.serializers import Camel, OfAttempt
from pipelines.api.shapes import Check, Flag, JsonObject, ListOf, Problems, Shape, Text, Whole, Wrong
from pipelines.leases import Holder
from pipelines.store_rows import (
    LONGEST_COLUMN,
    LONGEST_FILTER,
    LONGEST_TABLE,
    MOST_KEY_COLUMNS,
    MOST_ROWS,
    key_problem,
    table_problem,
)

HUGE = 2**63 - 1
MOST_ROW = MIB  # bytes; the setting is at most as much


class TableName(Text):
    """What a table is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=LONGEST_TABLE, **kwargs)

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            problem = table_problem(value) if type(value) is str else "must be a string"
            return Wrong.at_value(problem) if problem else value

        return check


class KeyColumns(ListOf):
    """The columns that a row is known by."""

    def __init__(self, **kwargs: Any) -> None:
        text = Text(max_length=LONGEST_COLUMN)
        super().__init__(child=text, min_length=1, max_length=MOST_KEY_COLUMNS, **kwargs)

    def checker(self) -> Check:
        check_list = super().checker()

        def check(value: Any) -> Any:
            clean = check_list(value)
            if type(clean) is Wrong:
                return clean
            problem = key_problem(clean)
            return Wrong.at_value(problem) if problem else clean

        return check


class RowObject(JsonObject):
    """A row, by the names of its columns; what it may hold is looked at with its key."""

    def checker(self) -> Check:
        return lambda value: value if type(value) is dict else Wrong.at_value("must be an object")


class OfTable(OfAttempt):
    table = TableName()


class TableDeclared(OfTable):
    key = KeyColumns()


class RowsGiven(OfTable):
    """Rows for a table; `key` declares the key columns of one that is not there, and must fit one that is."""

    rows = ListOf(child=RowObject(max_bytes=MOST_ROW), min_length=1, max_length=MOST_ROWS)
    key = KeyColumns(required=False)


class RowsWanted(OfTable):
    """Rows whose columns hold what `where` says, from behind `after` on."""

    where = JsonObject(max_bytes=LONGEST_FILTER, required=False)
    after = Whole(min_value=0, max_value=HUGE, default=0)
    limit = Whole(min_value=1, max_value=MOST_ROWS, default=MOST_ROWS)


class RowsUnwanted(OfTable):
    """Rows whose columns hold what `where` says; without one all of them, which `everything` has to say."""

    where = JsonObject(max_bytes=LONGEST_FILTER, required=False)
    everything = Flag(default=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        if bool(clean.get("where")) == clean["everything"]:
            return [("where", "must name a column, unless everything is true and it names none")]
        return []


class TableKept(Camel):
    """`created` is false where the table was there before."""

    key = ListOf(child=Text())
    created = Flag()


class RowsWritten(Camel):
    """What became of the rows, and what the table holds since."""

    inserted = Whole(min_value=0, max_value=MOST_ROWS)
    replaced = Whole(min_value=0, max_value=MOST_ROWS)
    unchanged = Whole(min_value=0, max_value=MOST_ROWS)
    rows = Whole(min_value=0, max_value=HUGE)
    bytes = Whole(min_value=0, max_value=HUGE)


class RowsRead(Camel):
    """`next` is the `after` of the following page; null where this is the last."""

    rows = ListOf(child=RowObject(max_bytes=MOST_ROW))
    next = Whole(min_value=0, max_value=HUGE, allow_null=True)


class RowsDeleted(Camel):
    """`more`: as many were deleted as a request deletes; ask again."""

    deleted = Whole(min_value=0, max_value=HUGE)
    more = Flag()


def table(holder: Holder, stage_id: uuid.UUID, said: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = store_writing.declare(holder, stage_id, said["execution_id"], said["table"], said["key"])
    return None if kept is None else {"key": list(kept.key), "created": kept.is_new}


def insert(holder: Holder, stage_id: uuid.UUID, said: Mapping[str, Any]) -> dict[str, Any] | None:
    return _write(holder, stage_id, said, upsert=False)


def upsert(holder: Holder, stage_id: uuid.UUID, said: Mapping[str, Any]) -> dict[str, Any] | None:
    return _write(holder, stage_id, said, upsert=True)


def read(holder: Holder, stage_id: uuid.UUID, said: Mapping[str, Any]) -> dict[str, Any] | None:
    where, after, most = said.get("where") or {}, said["after"], said["limit"]
    found = store_writing.read(holder, stage_id, said["execution_id"], said["table"], where, after=after, most=most)
    return None if found is None else {"rows": list(found.rows), "next": found.next}


def delete(holder: Holder, stage_id: uuid.UUID, said: Mapping[str, Any]) -> dict[str, Any] | None:
    gone = store_writing.delete(holder, stage_id, said["execution_id"], said["table"], said.get("where") or {})
    return None if gone is None else {"deleted": gone.rows, "more": gone.more}


def _write(holder: Holder, stage_id: uuid.UUID, said: Mapping[str, Any], *, upsert: bool) -> dict[str, Any] | None:
    written = store_writing.write(
        holder,
        stage_id,
        said["execution_id"],
        said["table"],
        said["rows"],
        upsert=upsert,
        key=said.get("key"),
    )
    if written is None:
        return None
    return {
        "inserted": written.inserted,
        "replaced": written.replaced,
        "unchanged": written.unchanged,
        "rows": written.rows,
        "bytes": written.bytes,
    }


# verb → the shape of its body, and what carries it out: for workers by HTTP as for handlers of the console itself
VERBS: dict[str, tuple[type[Shape], Any]] = {
    "table": (TableDeclared, table),
    "insert": (RowsGiven, insert),
    "upsert": (RowsGiven, upsert),
    "read": (RowsWanted, read),
    "delete": (RowsUnwanted, delete),
}


class StoreEndpoint(WorkerEndpoint):
    """A verb on a table of the store, in the name of a running attempt."""

    most_bytes = 4 * MIB
    verb: ClassVar[str]

    def _carried_out(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> dict[str, Any]:
        told: dict[str, Any] | None = VERBS[self.verb][1](caller.holder, stage_id, body)
        if told is None:
            raise not_found()
        return told


class DeclareTable(StoreEndpoint):
    """Declares the key columns of a table, once and for all (N12). The same again: 200."""

    verb, body = "table", TableDeclared

    @extend_schema(request=TableDeclared, responses={201: TableKept, 200: TableKept})
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        told = self._carried_out(caller, body, stage_id)
        return answer(told, 201 if told["created"] else 200)


class InsertRows(StoreEndpoint):
    """Adds rows; the same again changes nothing, another one under a key is `store_conflict` (N18)."""

    verb, body = "insert", RowsGiven

    @extend_schema(request=RowsGiven, responses=RowsWritten)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        return answer(self._carried_out(caller, body, stage_id))


class UpsertRows(StoreEndpoint):
    """Adds rows, and replaces those under their keys (N12)."""

    verb, body = "upsert", RowsGiven

    @extend_schema(request=RowsGiven, responses=RowsWritten)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        return answer(self._carried_out(caller, body, stage_id))


class ReadRows(StoreEndpoint):
    """A page of rows, in the order in which they were first written (N18). Changes nothing."""

    verb, body = "read", RowsWanted

    @extend_schema(request=RowsWanted, responses=RowsRead)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        return answer(self._carried_out(caller, body, stage_id))


class DeleteRows(StoreEndpoint):
    """Deletes rows, a bounded number at a time."""

    verb, body = "delete", RowsUnwanted

    @extend_schema(request=RowsUnwanted, responses=RowsDeleted)
    def post(self, caller: WorkerCaller, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        return answer(self._carried_out(caller, body, stage_id))


urlpatterns = [
    path("stages/<str:stage_id>/store/table", DeclareTable.as_view()),
    path("stages/<str:stage_id>/store/insert", InsertRows.as_view()),
    path("stages/<str:stage_id>/store/upsert", UpsertRows.as_view()),
    path("stages/<str:stage_id>/store/read", ReadRows.as_view()),
    path("stages/<str:stage_id>/store/delete", DeleteRows.as_view()),
]
