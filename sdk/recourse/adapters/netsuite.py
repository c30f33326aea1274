"""NetSuite's REST records over HTTP: collections by pages and filters, records by their external id.

A throttled request is waited for within the call. NetSuite knows no idempotency key for these requests, so none is
sent; an upsert is a PUT on the external id, which may be repeated. Serves N7, N8, N11, N13, N15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import httpx

from recourse.adapters import matrix
from recourse.adapters.base import INVALID, ROW_LIMIT, UPSTREAM, Capabilities, Ground, Op, Row, Written, failure
from recourse.adapters.http import Http, HttpSettings, segment
from recourse.adapters.rows import check

FIELD = re.compile(r"[A-Za-z_][\w.]*")
ENVELOPE = frozenset({"id", "links"})  # what a collection tells of a record whose fields it leaves out
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Collection:
    """Records of one type. `updated_field` is what `updated_after` asks for."""

    record: str
    updated_field: str = "lastModifiedDate"


@dataclass(frozen=True, slots=True)
class NetSuiteSettings:
    """An account. `collections` maps names for pipelines to types of records; any other name is the type itself.
    `date_format` is how the account's user writes days in filters, as for `strftime`.
    """

    http: HttpSettings
    collections: Mapping[str, Collection] = field(default_factory=dict)
    external_id: str = "externalId"
    expand: bool = True
    date_format: str = "%m/%d/%Y"
    page_size: int = PAGE
    max_read_rows: int = 100_000


class NetSuite:
    """`ctx.adapters.NAME` of kind `netsuite`."""

    def __init__(self, ground: Ground, settings: NetSuiteSettings) -> None:
        self._ground = ground
        self._settings = settings
        self._http = Http(ground, settings.http)
        self._written = 0

    @property
    def name(self) -> str:
        return self._ground.name

    @property
    def capabilities(self) -> Capabilities:
        return matrix.BY_KIND["netsuite"]

    async def read(self, where: Row | None = None) -> list[dict[str, Any]]:
        """All records of `where["collection"]`: `updated_after` (a date, or ISO 8601), `limit`, and fields by equality.

        NetSuite lists ids alone; with `expand` each record is read by its id, one after the other.
        """
        filters = dict(where or {})
        collection = self._collection(filters.pop("collection", None))
        limit = filters.pop("limit", None)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise failure(INVALID, f"limit is a whole number from 0, not {limit!r}", False)
        asked = conditions(filters, collection.updated_field, self._settings.date_format)
        async with self._http.open() as client:
            found = await self._pages(client, collection, asked, limit)
            if not self._settings.expand:
                return found
            return [await self._whole(client, collection, one) for one in found]

    async def write(self, rows: Sequence[Row], op: Op = "insert", *, collection: str | None = None) -> Written:
        """A request for each record, each an effect of its own: `upsert` puts it under its external id, `insert` posts
        it. All are checked before the first is sent.
        """
        chosen = self._collection(collection)
        key = self._settings.external_id
        limits = self._settings.http.limits
        checked = check(rows, op, key=[key], limits=limits, before=self._written)
        already = 0
        for row in checked.rows:
            if op == "insert":
                answer = await self._http.post(segment(chosen.record), json=dict(row))
            else:
                body = {name: value for name, value in row.items() if name != key}
                answer = await self._http.put(f"{segment(chosen.record)}/eid:{segment(row[key])}", json=body)
            already += answer.already
            self._written += 1
        return Written(len(checked.rows), already)

    async def _pages(
        self, client: httpx.AsyncClient, collection: Collection, asked: str, limit: int | None
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        most = self._settings.max_read_rows
        while limit is None or len(found) < limit:
            query: dict[str, Any] = {"limit": self._settings.page_size, "offset": len(found)}
            if asked:
                query["q"] = asked
            page = (await self._http.fetch(client, segment(collection.record), query)).json()
            items = page.get("items") if isinstance(page, dict) else None
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise failure(UPSTREAM, f"{self.name} answered with no page of records", False)
            found += items
            if len(found) > most:
                told = f"more than {most} records (max_read_rows of {self.name}): narrow it, or name a limit"
                raise failure(ROW_LIMIT, told, False)
            if not page.get("hasMore") or not items:
                break
        return found if limit is None else found[:limit]

    async def _whole(self, client: httpx.AsyncClient, collection: Collection, one: dict[str, Any]) -> dict[str, Any]:
        if set(one) - ENVELOPE or "id" not in one:
            return one
        answer = await self._http.fetch(client, f"{segment(collection.record)}/{segment(one['id'])}")
        whole: dict[str, Any] = answer.json()
        return whole

    def _collection(self, name: Any) -> Collection:
        known = self._settings.collections
        if not isinstance(name, str) or not FIELD.fullmatch(name):
            there = ", ".join(sorted(known)) or "any type of record"
            raise failure(INVALID, f"name a collection of {self.name}: {there}", False)
        return known.get(name) or Collection(name)


def conditions(filters: Row, updated_field: str, date_format: str) -> str:
    """The `q` of a request: all of these hold. Raises `StageFailure` for what cannot be said in it."""
    said = []
    for name, value in filters.items():
        if name == "updated_after":
            said.append(f"{updated_field} ON_OR_AFTER {_quoted(_day(value, date_format))}")
        elif not FIELD.fullmatch(name):
            raise failure(INVALID, f"{name!r} is no field's name", False)
        elif isinstance(value, bool):
            said.append(f"{name} IS {str(value).lower()}")
        elif isinstance(value, int | float | Decimal):
            said.append(f"{name} EQUAL {value}")
        elif isinstance(value, date):
            said.append(f"{name} ON {_quoted(_day(value, date_format))}")
        elif value is None:
            said.append(f"{name} EMPTY")
        else:
            said.append(f"{name} IS {_quoted(str(value))}")
    return " AND ".join(said)


def _day(value: Any, date_format: str) -> str:
    """NetSuite filters dates by the day: the whole day of an instant is read, so that nothing of it is missed."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        return str(at.strftime(date_format))
    except (ValueError, TypeError, AttributeError) as error:
        raise failure(INVALID, f"updated_after is a date or an instant in ISO 8601, not {value!r}", False) from error


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text or not text.isprintable():
        raise failure(INVALID, f"{text!r} cannot be said in a filter of NetSuite's", False)
    return f'"{text}"'
