"""Rows of the workspace store in the database: written in sets, found by key, by filter and page by page.

Every statement here runs as the role `recourse_store`, in the caller's transaction, and says of which table its rows
are; what was given is bound to it, names of columns too. Serves N12, N18, N22.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipelines.paging import Cut
from pipelines.sql import one_line, query
from pipelines.store_role import as_store
from pipelines.store_rows import Row, filter_of, key_in

PAGE_BYTES = 4 * 1024 * 1024  # of an answer, unless its first row alone has more


@dataclass(frozen=True, slots=True)
class Kept:
    """A row as it is kept; `run` wrote it last."""

    id: int
    row: dict[str, Any]
    run: uuid.UUID | None
    written_at: datetime


@dataclass(frozen=True, slots=True)
class Merged:
    """What a write came to. `replaced` are the places, in what was given, of rows that were another one before."""

    inserted: int
    replaced: Sequence[int]
    unchanged: int
    bytes: int  # more than before


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of a table: those whose columns hold what the filter says, null and missing being the same."""

    table_id: uuid.UUID
    where: Mapping[str, Any]
    key: Sequence[str] = ()

    @property
    def params(self) -> dict[str, Any]:
        where = filter_of(self.where)
        return {"table": self.table_id, "where": where, "key": key_in(self.where, self.key) if self.where else None}

    @property
    def condition(self) -> str:
        """Text of ours alone: whether something is filtered, and whether that is by the key."""
        if not self.where:
            return "kept.table_id = %(table)s"
        by_key = "kept.key = %(key)s AND " if key_in(self.where, self.key) else ""
        return f"kept.table_id = %(table)s AND {by_key}{_MATCHES}"


_MATCHES = (
    "NOT EXISTS (SELECT FROM jsonb_each(%(where)s::jsonb) wanted"
    " WHERE coalesce(kept.body -> wanted.key, 'null'::jsonb) <> wanted.value)"
)
# What was kept is looked up before anything is written: the caller holds the table's lock, so it stays so until then.
# It is looked up row by row (LIMIT 1): joined as a set, the planner may read all of a table to write little to it.
_MERGE = one_line("""
    WITH given AS MATERIALIZED (
        SELECT one.key, one.body, one.size, one.place::integer AS place
        FROM ROWS FROM (unnest(%(keys)s::bytea[]), jsonb_array_elements(%(bodies)s::jsonb),
            unnest(%(sizes)s::integer[]))
            WITH ORDINALITY one(key, body, size, place)
    ), found AS MATERIALIZED (
        SELECT given.place, given.size, kept.size AS earlier, kept.id IS NULL AS is_new,
            kept.body <> given.body AS differs
        FROM given LEFT JOIN LATERAL (
            SELECT one.id, one.size, one.body FROM recourse_store.rows one
            WHERE one.table_id = %(table)s AND one.key = given.key LIMIT 1
        ) kept ON true
    ), written AS (
        INSERT INTO recourse_store.rows AS kept (table_id, key, body, size, run, written_at)
        SELECT %(table)s, key, body, size, %(run)s, %(now)s FROM given ORDER BY place
        ON CONFLICT (table_id, key) DO UPDATE SET body = excluded.body, size = excluded.size, run = excluded.run,
            written_at = excluded.written_at WHERE kept.body <> excluded.body
    )
    SELECT count(*) FILTER (WHERE is_new), array_agg(place - 1 ORDER BY place) FILTER (WHERE differs),
        count(*) FILTER (WHERE NOT is_new AND NOT differs),
        coalesce(sum(size - coalesce(earlier, 0)) FILTER (WHERE is_new OR differs), 0)::bigint
    FROM found
""")


def merge(table_id: uuid.UUID, rows: Sequence[Row], *, run_id: uuid.UUID, now: datetime) -> Merged:
    """Writes all rows in one statement: new ones are added, those under a known key replace it where they differ. Each
    key is there once; the caller holds the table's lock."""
    # as texts: the driver takes many times as long over lists of them as the database does over all the rest
    params = {
        "table": table_id,
        "keys": "{" + ",".join(f'"\\\\x{row.key.hex()}"' for row in rows) + "}",
        "bodies": "[" + ",".join(row.body for row in rows) + "]",
        "sizes": "{" + ",".join(str(row.size) for row in rows) + "}",
        "run": run_id,
        "now": now,
    }
    with as_store():
        inserted, replaced, unchanged, size = query(_MERGE, params)[0]
    return Merged(inserted, replaced or (), unchanged, size)


def page(wanted: Wanted, cut: Cut) -> tuple[list[Kept], bool]:
    """Rows in the order in which they were first written, behind the cut's position; and whether there are more in its
    direction. `PAGE_BYTES` at the most."""
    side, order = ("<", "DESC") if cut.backwards else (">", "ASC")
    after = f" AND kept.id {side} %(after)s" if cut.position is not None else ""
    sql = (
        "SELECT id, body::text, run, written_at, found FROM (SELECT *, count(*) OVER () AS found,"  # noqa: S608 - ours
        f" sum(size) OVER (ORDER BY id {order}) - size AS ahead FROM (SELECT kept.id, kept.body, kept.size, kept.run,"
        f" kept.written_at FROM recourse_store.rows kept WHERE {wanted.condition}{after}"
        f" ORDER BY kept.id {order} LIMIT %(reach)s) near) near"
        f" WHERE ahead < %(bytes)s ORDER BY id {order} LIMIT %(most)s"
    )
    more = {"after": cut.position[0] if cut.position else None, "reach": cut.reach}
    with as_store():
        found = query(sql, wanted.params | more | {"bytes": PAGE_BYTES, "most": cut.size})
    rows = [Kept(row[0], json.loads(row[1]), row[2], row[3]) for row in found]
    return rows, bool(found) and found[0][4] > len(rows)


def measure(wanted: Wanted) -> tuple[int, int, int]:
    """How many rows there are of it, with how many bytes, and the number of the newest."""
    sql = (
        "SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(max(id), 0)"  # noqa: S608 - text of ours
        f" FROM recourse_store.rows kept WHERE {wanted.condition}"
    )
    with as_store():
        rows, size, newest = query(sql, wanted.params)[0]
    return rows, size, newest


def remove(wanted: Wanted, most: int | None = None) -> tuple[int, int]:
    """Removes rows, the first `most` of them; says how many, and of how many bytes. The caller holds the lock."""
    sql = (
        "WITH gone AS (DELETE FROM recourse_store.rows WHERE table_id = %(table)s AND id IN"  # noqa: S608 - ours
        f" (SELECT kept.id FROM recourse_store.rows kept WHERE {wanted.condition} ORDER BY kept.id LIMIT %(most)s)"
        " RETURNING size) SELECT count(*), coalesce(sum(size), 0)::bigint FROM gone"
    )
    with as_store():
        rows, size = query(sql, wanted.params | {"most": most})[0]
    return rows, size
