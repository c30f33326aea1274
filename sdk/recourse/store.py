"""The workspace store: tables of rows that a handler keeps beside its run, and that outlive it, whatever becomes of it.

    store = Store(context)
    done = {row["batch"] for row in await store.read("sync_progress")}
    await store.insert("sync_progress", [{"batch": 7}])
    await store.upsert("invoices", rows, key=["invoice_id"])

A table belongs to the application and the environment of the run. Its rows are JSON objects, known by its key columns;
where it has none the whole row is the key. All of it may be repeated: the same again changes nothing, so a handler that
was stopped between a write and its mark does both again and ends in the same place (N12, N18, N20, N21).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recourse import links
from recourse.context import StageContext
from recourse.links import Stored

MOST_ROWS = 1_000  # of a request
MOST_BYTES = 2 * 1024 * 1024

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """What a write came to, in rows."""

    inserted: int
    replaced: int
    unchanged: int


class Store:
    """The store as one attempt uses it. Everything waits for the console's answer without holding up the event loop.

    Raises `Stopped` when the attempt is not ours any more or is to stop, ValueError for rows that are no JSON objects,
    `StageFailure` when the console refuses: STORE_CONFLICT, STORE_QUOTA_EXCEEDED, else STORE_REFUSED. Many rows go in
    batches of `MOST_ROWS`, each of which is kept or refused as a whole: a refusal may leave earlier batches written.
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: StageContext) -> None:
        self._stage = stage

    async def table(self, table: str, key: Sequence[str]) -> None:
        """Declares a table's key columns, once and for all. The same again is nothing; others are STORE_CONFLICT."""
        await self._ask("store/table", {"table": table, "key": _columns(key)})

    async def read(self, table: str, where: Row | None = None) -> list[dict[str, Any]]:
        """The rows whose columns hold what `where` says, null and missing being the same; all without it. In the order
        in which they were first written; none of a table that is not there."""
        found: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            body: dict[str, Any] = {"table": table, "after": after, "limit": MOST_ROWS}
            told = await self._ask("store/read", body | _filter(where))
            found += told["rows"]
            after = told["next"]
        return found

    async def insert(self, table: str, rows: Sequence[Row], *, key: Sequence[str] | None = None) -> Written:
        """Adds rows. One that is there already, just so, stays; another one under its key is STORE_CONFLICT. A table
        that is not there is made, with `key` as its key columns."""
        return await self._write("store/insert", table, rows, key)

    async def upsert(self, table: str, rows: Sequence[Row], *, key: Sequence[str] | None = None) -> Written:
        """Adds rows and replaces those that are there under their keys; of several with one key the last counts. The
        table needs key columns: declared before, or here with `key`."""
        return await self._write("store/upsert", table, rows, key)

    async def delete(self, table: str, where: Row | None = None, *, everything: bool = False) -> int:
        """Deletes the rows whose columns hold what `where` says, and says how many; all of them only with `everything`,
        so that a filter that turned out empty empties no table."""
        if bool(where) == everything:
            raise ValueError("name columns in where, or say everything=True to delete all rows, and not both")
        deleted, more = 0, True
        while more:
            told = await self._ask("store/delete", {"table": table} | (_filter(where) or {"everything": True}))
            deleted += told["deleted"]
            more = told["more"]
        return deleted

    async def _write(self, what: Stored, table: str, rows: Sequence[Row], key: Sequence[str] | None) -> Written:
        declared = {} if key is None else {"key": _columns(key)}
        inserted = replaced = unchanged = 0
        for batch in _batches(rows):
            told = await self._ask(what, {"table": table, "rows": batch} | declared)
            inserted += told["inserted"]
            replaced += told["replaced"]
            unchanged += told["unchanged"]
        return Written(inserted, replaced, unchanged)

    async def _ask(self, what: Stored, body: Mapping[str, Any]) -> Mapping[str, Any]:
        stage = self._stage
        told = {"executionId": stage.execution_id, **body}
        return await asyncio.to_thread(links.store_first, stage.link, stage.control, what, told, while_draining=True)


def _columns(key: Sequence[str]) -> list[str]:
    if isinstance(key, str):
        raise ValueError(f"a key is a list of columns: [{key!r}]")
    return list(key)


def _filter(where: Row | None) -> dict[str, Any]:
    return {"where": _json_object(where, "where")[0]} if where else {}


def _batches(rows: Sequence[Row]) -> Iterator[list[dict[str, Any]]]:
    """The rows in parts that one request may carry. All are looked at before the first goes out."""
    parts: list[list[dict[str, Any]]] = []
    room = 0
    for number, row in enumerate(rows):
        one, size = _json_object(row, f"rows[{number}]")
        if not parts or len(parts[-1]) == MOST_ROWS or size > room:
            parts.append([])
            room = MOST_BYTES
        parts[-1].append(one)
        room -= size + 1
    yield from parts


def _json_object(given: Row, name: str) -> tuple[dict[str, Any], int]:
    """The object, once it is known to be JSON, and how many bytes it is."""
    if not isinstance(given, Mapping) or not all(isinstance(column, str) for column in given):
        raise ValueError(f"{name} maps names of columns to values, it is no {type(given).__name__}")
    found = dict(given)
    try:
        size = len(json.dumps(found, allow_nan=False, ensure_ascii=True, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is JSON: {error}; make times and decimals texts first") from error
    return found, size
