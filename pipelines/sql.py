"""Set-based SQL in one place: rows in as one JSON document, rows out as tuples. Runs on Django's connection.

The engine sends the same few statements all day, so they are prepared: PostgreSQL parses and plans each one once a
connection, which halves its work for a single creation. Statements whose best plan depends on what is asked, such as
the filtered lists, go through `planned`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import orjson
import psycopg
from django.db import connection

Params = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

# All queues that hold something, from one to the next along the queue's index: a backlog costs no more than one entry.
# A statement begins with it as `WITH RECURSIVE {EACH_QUEUE} …`, and may stop at the first so many rows of `queue`.
EACH_QUEUE = """queue AS (
    (SELECT application_id, environment_id, handler FROM pipelines_queueentry
        ORDER BY application_id, environment_id, handler LIMIT 1)
    UNION ALL
    SELECT following.* FROM queue CROSS JOIN LATERAL (
        SELECT q.application_id, q.environment_id, q.handler FROM pipelines_queueentry q
        WHERE (q.application_id, q.environment_id, q.handler)
            > (queue.application_id, queue.environment_id, queue.handler)
        ORDER BY q.application_id, q.environment_id, q.handler LIMIT 1
    ) following
)"""


def query(sql: str, params: Params = ()) -> list[Row]:
    """All rows of one statement that is planned once."""
    with _prepared() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def execute(sql: str, params: Params = ()) -> int:
    """Runs one statement that is planned once, and returns how many rows it touched."""
    with _prepared() as cursor:
        cursor.execute(sql, params)
        return cursor.rowcount


def planned(sql: str, params: Params = ()) -> list[Row]:
    """All rows of one statement that is planned anew for these parameters."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def one_line(sql: str) -> str:
    """The statement without the blanks that are there for readers; it may hold no comments and no spaced literals."""
    return " ".join(sql.split())


def recordset(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as the JSON document that `json_to_recordset` reads; UUIDs and times as text."""
    try:
        return orjson.dumps(rows).decode()
    except TypeError:
        # what orjson refuses: whole numbers beyond 64 bits, keys that are no strings
        return json.dumps(rows, default=str, ensure_ascii=True)


def in_one(ids: Iterable[uuid.UUID]) -> str:
    """Ids as one `uuid[]` in text: a hundred thousand apart cost a second on their way."""
    return f"{{{','.join(map(str, ids))}}}"


def database_now() -> datetime:
    """The database's clock; the only clock that decides anything."""
    return query("SELECT recourse_now()")[0][0]


@contextmanager
def _prepared() -> Iterator[Any]:
    """A cursor that binds on the server, whose statements psycopg prepares once they recur (`prepare_threshold`).

    Where Django's statements are wrapped these are too, bound in the same way; where they are logged it is Django's own
    cursor, which can tell them.
    """
    if connection.queries_logged:
        with connection.cursor() as cursor:
            yield cursor
        return
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        connection.validate_no_broken_transaction()
        wrapped: Any = connection.make_cursor
        yield wrapped(cursor) if connection.execute_wrappers else cursor
