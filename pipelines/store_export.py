"""Rows of a table of the workspace store as a file: CSV, with a column for each that some row has, or JSON lines.

As they were at one moment, in the order in which they were first written, streamed in the places and with the patience
of `audit_export`. The columns of a CSV are asked for in the statement that reads the rows, so that none is missing.
Who exports leaves an event, `store.export`, before the first byte.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from django.db import connection, transaction
from django.http import StreamingHttpResponse

from pipelines import audit, audit_export
from pipelines.access import VIEW, Actor
from pipelines.audit_export import AT_ONCE, LONGEST_NAME, PATIENCE, cell
from pipelines.models import StoreTable
from pipelines.sql import database_now, execute, planned
from pipelines.store import Wanted
from pipelines.store_role import as_store
from pipelines.store_rows import wrong

EXPORTED = "store.export"
MOST_COLUMNS = 2_000  # of a CSV
Line = tuple[str, Sequence[str] | None]  # a row as JSON; with the first come the names of all columns


def answer(
    actor: Actor, workspace: str, table: StoreTable, where: Mapping[str, Any], form: str
) -> StreamingHttpResponse:
    """The rows that a filter leaves, as a file. Refused: another form, more columns than a CSV has, and `rate_limited`
    while as many exports as may be are being read."""
    actor.require(VIEW)
    audit_export.check_form(form)
    wanted = Wanted(table.id, where, table.key)
    with transaction.atomic():
        if form == audit_export.CSV and len(_columns(wanted)) > MOST_COLUMNS:
            raise wrong("format", f"a CSV has at most {MOST_COLUMNS} columns; take JSON lines")
    content, write = WRITERS[form]
    told = {"table_id": str(table.id), "table": table.name, "format": form}
    told_all = told | ({"where": dict(where)} if where else {})
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{table.name}-{workspace}-{database_now():%Y%m%dT%H%M%SZ}")[:LONGEST_NAME]

    def read() -> Generator[str]:
        with transaction.atomic():
            execute(f"SET LOCAL idle_in_transaction_session_timeout = '{PATIENCE}s'")
            yield from write(_lines(wanted, with_columns=form == audit_export.CSV), table.key)

    def keep() -> None:
        audit.record(actor, EXPORTED, audit.ALLOWED, data=told_all)

    return audit_export.download(read, content, f"{name}.{form}", str(actor.workspace_id), keep)


def _names(wanted: Wanted) -> str:
    """The columns that rows have, in text of ours alone: a few more than a CSV may have at the most."""
    return (
        "SELECT array_agg(one.name) FROM (SELECT DISTINCT name FROM recourse_store.rows kept,"  # noqa: S608 - ours
        f" jsonb_object_keys(kept.body) name WHERE {wanted.condition} LIMIT {MOST_COLUMNS + 1}) one"
    )


def _columns(wanted: Wanted) -> Sequence[str]:
    with as_store():
        return planned(_names(wanted), wanted.params)[0][0] or ()


def _lines(wanted: Wanted, *, with_columns: bool) -> Iterator[Line]:
    columns = f"CASE WHEN row_number() OVER (ORDER BY kept.id) = 1 THEN ({_names(wanted)}) END"
    sql = (
        f"SELECT kept.body::text, {columns if with_columns else 'NULL::text[]'} FROM recourse_store.rows kept"  # noqa: S608
        f" WHERE {wanted.condition} ORDER BY kept.id"
    )
    with connection.chunked_cursor() as cursor:
        with as_store():
            cursor.execute(sql, wanted.params)
        while some := cursor.fetchmany(AT_ONCE):
            yield from some


def _csv(lines: Iterator[Line], key: Sequence[str]) -> Iterator[str]:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    columns: list[str] = list(key)
    for number, (body, names) in enumerate(lines):
        if number == 0:
            columns += sorted(set(names or ()) - set(key))
            table.writerow(cell(name) for name in columns)
        row = json.loads(body)
        table.writerow(cell(row.get(name)) for name in columns)
        if number % AT_ONCE == AT_ONCE - 1:
            yield _taken(text)
    yield _taken(text)


def _json_lines(lines: Iterator[Line], key: Sequence[str]) -> Iterator[str]:
    for body, _ in lines:
        yield f"{body}\n"


def _taken(text: io.StringIO) -> str:
    told = text.getvalue()
    text.seek(0)
    text.truncate()
    return told


# form → its media type and how it is written
WRITERS: dict[str, tuple[str, Callable[[Iterator[Line], Sequence[str]], Iterator[str]]]] = {
    audit_export.CSV: ("text/csv; charset=utf-8; header=present", _csv),
    audit_export.JSON_LINES: ("application/jsonl; charset=utf-8", _json_lines),
}
