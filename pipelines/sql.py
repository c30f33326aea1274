"""Set-based SQL in one place: rows in as one JSON document, rows out as tuples. Runs on Django's connection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from django.db import connection


def query(sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of one statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def execute(sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> int:
    """Runs one statement and returns how many rows it touched."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.rowcount


def recordset(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as the JSON document that `json_to_recordset` reads; UUIDs and times as text."""
    try:
        return orjson.dumps(rows).decode()
    except TypeError:
        # what orjson refuses: whole numbers beyond 64 bits, keys that are no strings
        return json.dumps(rows, default=str, ensure_ascii=True)


def database_now() -> datetime:
    """The database's clock; the only clock that decides anything."""
    return query("SELECT recourse_now()")[0][0]
