"""The operations API's routes for the workspace store: which tables there are, their rows, and taking some away."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from pipelines import store_tables
from pipelines.access import RELEASE, VIEW, Actor
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb, page_answer
from pipelines.api.operations_serializers import listed, time
from pipelines.api.shapes import Flag, Identifier, JsonObject, ListOf, Moment, Shape, Text, Whole
from pipelines.api.worker_store import HUGE, MOST_ROW, RowObject
from pipelines.filters import AnyOf, ListFilter
from pipelines.models import StoreTable
from pipelines.paging import number, page_of, read_cut
from pipelines.store import Kept
from pipelines.store_rows import LONGEST_FILTER, table_problem, wrong
from pipelines.store_tables import ORDER, Removal

WHERE = OpenApiParameter("where", OpenApiTypes.STR, description="a JSON object of columns and what they must hold")


def _name(value: Any) -> str:
    """A table's name in a cursor."""
    if type(value) is not str or table_problem(value):
        raise ValueError("not the name of a table")
    return value


POSITION = (_name, uuid.UUID)


class StoreFilter(ListFilter):
    """Tables by name, and by whose they are."""

    name = AnyOf()
    application = AnyOf("application__name")
    environment = AnyOf("environment__slug")


class StoreTableView(Shape):
    """A table, and what it holds now. The run that wrote last may have been removed since."""

    id = Identifier()
    name = Text()
    key = ListOf(child=Text(), help_text="the key columns; none: the whole row is the key")
    application = Text()
    environment = Text()
    rows = Whole(min_value=0, max_value=HUGE)
    bytes = Whole(min_value=0, max_value=HUGE)
    created_at = Moment()
    written_at = Moment(allow_null=True)
    written_by_execution_id = Identifier(allow_null=True)
    written_by_attempt_id = Identifier(allow_null=True)


class StoreRowView(Shape):
    """A row, and the run that wrote it last."""

    id = Whole(min_value=1, max_value=HUGE, help_text="its place in the order")
    row = RowObject(max_bytes=MOST_ROW)
    execution_id = Identifier(allow_null=True)
    written_at = Moment()


class StoreRemoval(PlannedVerb):
    """Which rows are to go; without `where` the table with all of them."""

    where = JsonObject(max_bytes=LONGEST_FILTER, required=False)


class StoreRemoved(Shape):
    """What went, or with `dry_run` would go; the digest is that of what was seen."""

    table_id = Identifier()
    table = Text()
    whole_table = Flag()
    rows = Whole(min_value=0, max_value=HUGE)
    bytes = Whole(min_value=0, max_value=HUGE)
    plan_digest = Text()
    dry_run = Flag()


def table_view(one: StoreTable) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "name": one.name,
        "key": one.key,
        "application": one.application.name,
        "environment": one.environment.slug,
        "rows": one.rows,
        "bytes": one.bytes,
        "created_at": time(one.created_at),
        "written_at": time(one.written_at) if one.written_at else None,
        "written_by_execution_id": _text(one.written_by_run),
        "written_by_attempt_id": _text(one.written_by_attempt),
    }


def row_view(one: Kept) -> dict[str, Any]:
    return {"id": one.id, "row": one.row, "execution_id": _text(one.run), "written_at": time(one.written_at)}


def removal_view(removal: Removal, *, dry_run: bool) -> dict[str, Any]:
    return {
        "table_id": str(removal.table.id),
        "table": removal.table.name,
        "whole_table": removal.is_whole,
        "rows": removal.rows,
        "bytes": removal.bytes,
        "plan_digest": removal.digest,
        "dry_run": dry_run,
    }


class StoreTables(OperationsEndpoint):
    """The tables of the workspace store, by name (N22)."""

    access = {"GET": VIEW}
    filters = StoreFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=listed(StoreTableView))
    def get(self, call: Call) -> HttpResponse:
        rows = StoreFilter.narrow(store_tables.visible(call.actor), call.params)
        page = page_of(rows, read_cut(call.params, POSITION), ORDER, descending=False)
        return page_answer(call.request, page, [table_view(one) for one in page.rows])


class OfStoreTable(OperationsEndpoint):
    """What the routes of one table share."""

    def find(self, actor: Actor, **ids: uuid.UUID) -> StoreTable:
        return store_tables.find(actor, ids["table_id"])


class OneStoreTable(OfStoreTable):
    """A table of the workspace store."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=StoreTableView)
    def get(self, call: Call) -> HttpResponse:
        return answer(table_view(call.target))


class StoreRows(OfStoreTable):
    """The rows of a table, in the order in which they were first written."""

    access = {"GET": VIEW}
    filters = ("where",)
    for_key = True

    @extend_schema(parameters=[WHERE, *list_parameters()], responses=listed(StoreRowView))
    def get(self, call: Call) -> HttpResponse:
        where = store_tables.read_where(call.params.get("where"))
        page = store_tables.rows_page(call.target, where, read_cut(call.params, (number,)))
        return page_answer(call.request, page, [row_view(one) for one in page.rows])


class RemoveFromStore(OfStoreTable):
    """Removes rows of a table, or the table. With `dry_run` nothing goes: the answer says what would."""

    access = {"POST": RELEASE}
    bodies = {"POST": StoreRemoval}
    actions = {"POST": store_tables.REMOVE}

    @extend_schema(request=StoreRemoval, responses=StoreRemoved)
    def post(self, call: Call) -> HttpResponse:
        where = call.body.get("where")
        if where == {}:  # a filter that came out empty is no wish to lose the table
            raise wrong("where", "names no column; leave it out to remove the table")
        where = where or {}
        _ = call.key  # checked like any other; what is gone is gone, so there is nothing to remember
        if call.is_dry_run:
            return answer(removal_view(store_tables.preview(call.target, where), dry_run=True))
        removal = store_tables.remove(
            call.actor, call.target.id, where, reason=call.reason, plan_digest=call.plan_digest
        )
        return answer(removal_view(removal, dry_run=False))


urlpatterns = [
    path("store/tables", StoreTables.as_view()),
    path("store/tables/<str:table_id>", OneStoreTable.as_view()),
    path("store/tables/<str:table_id>/rows", StoreRows.as_view()),
    path("store/tables/<str:table_id>/remove", RemoveFromStore.as_view()),
]


def _text(found: uuid.UUID | None) -> str | None:
    return str(found) if found is not None else None
