"""Rows of the workspace store as they are given: what a table, a key, a row and a filter may be. Pure.

Names of tables and columns are data like any other: none ever becomes part of a statement. A row is known by the digest
of its key columns, or of the whole of it; numbers that are equal make equal keys, however they were written.
Serves N12, N18, N22.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pipelines.api.shapes import json_problem
from pipelines.errors import Refusal

MOST_ROWS = 1_000  # of a request
MOST_COLUMNS = 200
MOST_KEY_COLUMNS = 8
LONGEST_COLUMN = 100
LONGEST_TABLE = 100
LONGEST_FILTER = 16 * 1024  # bytes
_TABLE = re.compile(rf"[A-Za-z_][A-Za-z0-9_.-]{{0,{LONGEST_TABLE - 1}}}")
_SCALARS = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Row:
    """A row that can be kept: the digest that it is known by, itself as compact JSON, and how many bytes that has."""

    key: bytes
    body: str
    size: int


def table_problem(name: str) -> str:
    """Why a table cannot be called so; blank when it can."""
    if _TABLE.fullmatch(name):
        return ""
    return f"must be 1 to {LONGEST_TABLE} letters, digits, and . _ -, beginning with a letter or _"


def key_problem(columns: Sequence[str]) -> str:
    """Why these cannot be the key columns of a table; blank when they can."""
    if not 1 <= len(columns) <= MOST_KEY_COLUMNS or len(set(columns)) < len(columns):
        return f"must name 1 to {MOST_KEY_COLUMNS} columns, each once"
    return next((problem for problem in map(column_problem, columns) if problem), "")


def column_problem(name: str) -> str:
    if not 0 < len(name) <= LONGEST_COLUMN:
        return f"the name of a column has 1 to {LONGEST_COLUMN} characters"
    return json_problem(name) or ""


def rows_of(given: Sequence[Any], key: Sequence[str], *, most_bytes: int, last_wins: bool) -> list[Row]:
    """The rows, each of them once and in their order. Of several under one key the last counts, or with `last_wins`
    not set none may differ.

    Refuses with `validation_error`, naming row and column; `store_conflict` for two that differ under one key.
    """
    found: dict[bytes, Row] = {}
    for number, one in enumerate(given):
        row = _row(one, f"rows[{number}]", key, most_bytes)
        earlier = found.get(row.key)
        if earlier is not None and not last_wins and not _is_same(earlier.body, row.body):
            raise conflict([number])
        found[row.key] = row if earlier is None or last_wins else earlier
    return list(found.values())


def conflict(numbers: Sequence[int]) -> Refusal:
    """That rows of a request differ from what is kept under their keys, or from each other."""
    message = "another row is kept under this key; upsert replaces it"
    return Refusal(
        "store_conflict",
        f"rows[{numbers[0]}]: {message}; nothing was stored",
        errors={f"rows[{number}]": [message] for number in numbers},
    )


def filter_of(where: Mapping[str, Any]) -> str:
    """The filter as JSON: columns and what they must hold. Refuses one that could not be meant."""
    try:
        text = compact(where)
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong("where", f"must be JSON: {error}") from error
    problem = json_problem(where)
    if problem is None and len(text.encode()) > LONGEST_FILTER:
        problem = f"must have at most {LONGEST_FILTER} bytes"
    if problem:
        raise wrong("where", problem)
    return text


def key_in(where: Mapping[str, Any], key: Sequence[str]) -> bytes | None:
    """The key of the one row that a filter can match, where it names all key columns; else none."""
    if not key or any(type(where.get(column)) not in _SCALARS for column in key):
        return None
    return _digest([where[column] for column in key])


def wrong(field: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{field}: {message}", errors={field: [message]})


def _row(given: Any, path: str, key: Sequence[str], most_bytes: int) -> Row:
    if not isinstance(given, dict) or not given:
        raise wrong(path, "must be an object with at least one column")
    if len(given) > MOST_COLUMNS:
        raise wrong(path, f"must have at most {MOST_COLUMNS} columns")
    for column in given:
        problem = column_problem(column) if type(column) is str else "the name of a column is a string"
        if problem:
            raise wrong(path, problem)
    try:
        body = compact(given)
        size = len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong(path, f"must be JSON: {error}") from error
    if size > most_bytes:
        raise wrong(path, f"must have at most {most_bytes} bytes as JSON; it has {size}")
    # of what is plain ASCII only NUL could not be kept
    unstorable = json_problem(given) if not body.isascii() or "\\u0000" in body else None
    if unstorable:
        raise wrong(path, unstorable)
    if not key:
        return Row(_digest(given), body, size)
    for column in key:
        if type(given.get(column)) not in _SCALARS:
            raise wrong(f"{path}.{column}", "is a key column: it holds a string, a number or true or false")
    return Row(_digest([given[column] for column in key]), body, size)


def _digest(value: Any) -> bytes:
    try:
        return sha256(json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()).digest()
    except RecursionError as error:
        raise wrong("rows", "are nested too deep") from error


def _plain(value: Any) -> Any:
    """The value with each number in one way of writing it: the database takes 1, 1.0 and 1e0 for equal."""
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if type(value) is dict:
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if type(value) is list else value


def _is_same(body: str, other: str) -> bool:
    return body == other or _digest(json.loads(body)) == _digest(json.loads(other))


def compact(value: Any) -> str:
    """As it is kept and measured. Raises TypeError and ValueError for what is no JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
