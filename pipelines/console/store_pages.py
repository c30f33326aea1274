"""Screens of the workspace store: its tables, the rows of one, their export, and taking them away."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.db.models import Sum
from django.http import HttpResponse, HttpResponseNotAllowed, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import store_export, store_tables
from pipelines.access import RELEASE, Actor
from pipelines.api.bodies import parse
from pipelines.api.store import POSITION, StoreFilter
from pipelines.console.acts import Act, Step, perform, short
from pipelines.console.offers import missing_right
from pipelines.console.screens import ScreenRequest, screen, show, typed
from pipelines.errors import Refusal
from pipelines.filters import refuse_unknown
from pipelines.models import Run, StoreTable
from pipelines.paging import number, page_of, read_cut
from pipelines.store import Kept
from pipelines.store_rows import LONGEST_COLUMN, wrong
from pipelines.store_tables import ORDER, Removal

MOST_COLUMNS = 12  # that are shown; the others are in the export
LONGEST_CELL = 120
FILTER = ("column", "value")


@dataclass(frozen=True, slots=True)
class Line:
    """A row as a line: its cells under the columns that are shown, and whether its run is still there."""

    kept: Kept
    cells: Sequence[str]
    has_run: bool


@require_safe
@screen
def store_list(request: ScreenRequest) -> HttpResponse:
    """The tables of the workspace by name, with what they hold and who wrote last, narrowed by the address."""
    actor = request.visit.actor
    params = request.GET.copy()
    for name in StoreFilter.names():
        if not params.get(name):
            params.pop(name, None)
    page = page_of(
        StoreFilter.narrow(store_tables.visible(actor), params), read_cut(params, POSITION), ORDER, descending=False
    )
    here = _there({one.written_by_run for one in page.rows})
    used = StoreTable.objects.filter(workspace_id=actor.workspace_id).aggregate(used=Sum("bytes"))["used"] or 0
    context = {
        "page": page,
        "tables": [(one, one.written_by_run in here) for one in page.rows],
        "used": used,
        "most": settings.RECOURSE_STORE_BYTES,
    }
    return show(request, "store/list.html", context)


@require_safe
@screen
def store_table(request: ScreenRequest, table_id: uuid.UUID) -> HttpResponse:
    """A table's rows in the order in which they were first written, narrowed by what a column holds."""
    actor = request.visit.actor
    table = store_tables.find(actor, table_id)
    refuse_unknown(request.GET, FILTER)
    where = _where(request.GET)
    page = store_tables.rows_page(table, where, read_cut(request.GET, (number,)))
    columns, more = _columns(table, page.rows)
    here = _there({one.run for one in page.rows})
    given = {name: typed(request.GET, name) for name in FILTER}
    context = {
        "table": table,
        "has_run": bool(_there({table.written_by_run})),
        "page": page,
        "columns": columns,
        "more": more,
        "lines": [Line(one, [_cell(one.row, name) for name in columns], one.run in here) for one in page.rows],
        "given": given,
        "where": where,
        "asked": f"?{urlencode(given)}" if where else "",
        "refusal": _refusal(actor),
    }
    return show(request, "store/table.html", context)


@screen
def store_export_view(request: ScreenRequest, table_id: uuid.UUID) -> HttpResponse:
    """The rows that the address asks for as a file, streamed; itself an event (`store.export`)."""
    visit = request.visit
    table = store_tables.find(visit.actor, table_id)
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    form = request.POST.get("format", "")
    answer = store_export.answer(visit.actor, visit.workspace.slug, table, _where(request.GET), form)
    return cast(HttpResponse, answer)  # which a stream is in all that views and middleware ask of it


@require_http_methods(["GET", "HEAD", "POST"])
@screen
def store_remove(request: ScreenRequest, table_id: uuid.UUID) -> HttpResponse:
    """Takes away the rows that a filter leaves, or the table: as it was seen, or not at all."""
    actor = request.visit.actor
    table = store_tables.find(actor, table_id)
    actor.require(RELEASE)
    params = request.POST if request.method == "POST" else request.GET
    where = _where(params)
    removal, shown = store_tables.preview(table, where), params.get("shown", "")
    act = _act(removal, {name: typed(params, name) for name in FILTER}, shown)

    def carry_out(reason: str) -> str:
        gone = store_tables.remove(actor, table_id, where, reason=reason, plan_digest=shown or removal.digest)
        if gone.is_whole:
            messages.success(request, f"The table {gone.table.name} is removed, with {_rows(gone.rows)}.", "completed")
            return reverse("console:store")
        state = "completed" if gone.rows else "no_op"
        messages.success(request, f"{_rows(gone.rows).capitalize()} of {gone.table.name} removed.", state)
        return reverse("console:store-table", args=[table_id])

    return perform(request, act, carry_out)


def _act(removal: Removal, given: Mapping[str, str], shown: str) -> Act:
    table, size = removal.table, f"{removal.bytes:,} bytes"
    if removal.is_whole:
        title = f"Remove the table {short(table.name)}"
        step = Step("discarded", "Removed", f"The table, its key columns, and {_rows(removal.rows)} of {size}.")
        button = "Remove the table"
    else:
        title = f"Remove rows of {short(table.name)}"
        which = f"{given['column']} is {given['value'] or 'empty'}"
        step = Step("discarded", "Removed", f"{_rows(removal.rows)} of {size}, where {short(which, LONGEST_CELL)}.")
        button = f"Remove {_rows(removal.rows)}"
    after = "Handlers that read them find none; one that writes to the table makes it anew."
    return Act(
        title=title,
        needs=RELEASE,
        steps=[step, Step("pending", "Afterwards", after)],
        button=button,
        back=reverse("console:store-table", args=[table.id]),
        warning="Nothing brings them back: export them first if they may be wanted.",
        danger=True,
        reason_required=True,
        fields="store/_removal.html",
        answers=dict(given),
        shown=removal.digest,
        digest=removal.digest,
        moved=bool(shown) and shown != removal.digest,
    )


def _where(params: QueryDict) -> dict[str, Any]:
    """The filter that was typed: a column and what it must hold, as JSON where it is such, as text where not."""
    column, text = typed(params, "column"), typed(params, "value")
    if not column:
        if text:
            raise wrong("column", "name the column that is to hold this")
        return {}
    if len(column) > LONGEST_COLUMN:
        raise wrong("column", f"the name of a column has at most {LONGEST_COLUMN} characters")
    return {column: _value(text)}


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        return parse(text.encode())
    except Refusal:
        return text


def _columns(table: StoreTable, rows: Sequence[Kept]) -> tuple[list[str], int]:
    """The key columns and then those that the page's rows have, as many as are shown; and how many more there are."""
    found = dict.fromkeys([*table.key, *(name for one in rows for name in one.row)])
    return list(found)[:MOST_COLUMNS], max(0, len(found) - MOST_COLUMNS)


def _cell(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        return ""
    value = row[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _there(run_ids: set[uuid.UUID | None]) -> set[uuid.UUID | None]:
    """Those of the runs that have not been removed."""
    wanted = [one for one in run_ids if one is not None]
    return set(Run.objects.filter(id__in=wanted).values_list("id", flat=True))


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _refusal(actor: Actor) -> str:
    return "" if actor.may(RELEASE) else missing_right(actor, RELEASE, "remove rows")
