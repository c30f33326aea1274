"""The workspace store in memory, for trying handlers without a console: the same answers, none of its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recourse.errors import ApiError, api_error


@dataclass(slots=True)
class Table:
    key: list[str]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def key_of(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row[column] for column in self.key] if self.key else row, sort_keys=True)


class Shelf:
    """Tables by name; `answer` is what the routes below `store/` would say."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def answer(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        verb, name = what.removeprefix("store/"), body["table"]
        if verb == "table":
            is_new = name not in self.tables
            return {"key": self._table(name, body["key"]).key, "created": is_new}
        if verb in ("insert", "upsert"):
            return self._write(self._table(name, body.get("key")), body["rows"], is_merge=verb == "upsert")
        table = self.tables.get(name, Table([]))
        wanted = body.get("where") or {}
        found = {
            key: row
            for key, row in table.rows.items()
            if all(row.get(column) == value for column, value in wanted.items())
        }
        if verb == "read":
            return {"rows": [dict(row) for row in found.values()], "next": None}
        for key in found:
            del table.rows[key]
        return {"deleted": len(found), "more": False}

    def _table(self, name: str, key: Sequence[str] | None) -> Table:
        table = self.tables.setdefault(name, Table(list(key or ())))
        if key is not None and table.key != list(key):
            raise _conflict(f"the table {name!r} has other key columns")
        return table

    def _write(self, table: Table, rows: Sequence[dict[str, Any]], *, is_merge: bool) -> dict[str, Any]:
        if is_merge and not table.key:
            raise api_error(400, {"code": "validation_error", "detail": "table: it has no key columns to merge on"})
        kept, inserted, replaced = dict(table.rows), set[str](), set[str]()
        for number, row in enumerate(rows):
            key = table.key_of(row)
            if key not in kept:
                inserted.add(key)
            elif kept[key] != row:
                if not is_merge:
                    raise _conflict(f"rows[{number}]: another row is kept under this key; upsert replaces it")
                replaced.add(key)
            kept[key] = json.loads(json.dumps(row))
        table.rows = kept
        replaced -= inserted
        unchanged = len(rows) - len(inserted) - len(replaced)
        return {"inserted": len(inserted), "replaced": len(replaced), "unchanged": unchanged}


def _conflict(detail: str) -> ApiError:
    return api_error(409, {"code": "store_conflict", "detail": detail})
