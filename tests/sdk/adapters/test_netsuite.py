"""NetSuite's REST records, by a stand-in over real HTTP that answers in its shapes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from recourse import StageFailure
from recourse.adapters import Adapters
from recourse.adapters.netsuite import conditions

from tests.sdk.adapters.provider import Asked, Epoch, Provider, Reply, reply
from tests.sdk.adapters.test_http import fails

RECORDS = "/services/rest/record/v1"


class Account:
    """Invoices by internal id; listed by pages of ids alone, as NetSuite does."""

    def __init__(self, invoices: dict[str, dict[str, Any]]) -> None:
        self.invoices = invoices

    def answer(self, asked: Asked) -> Reply:
        parts = urlsplit(asked.path)
        path, query = unquote(parts.path).removeprefix(RECORDS), parse_qs(parts.query)
        if asked.headers.get("authorization") != "Bearer sesame":
            return reply(401, {"title": "Unauthorized"})
        if asked.method == "PUT":
            external = path.rpartition("eid:")[2]
            found = next((key for key, one in self.invoices.items() if one.get("externalId") == external), None)
            key = found or str(len(self.invoices) + 1)
            self.invoices[key] = {"id": key, "externalId": external, **asked.json()}
            return reply(204, b"", location=f"{RECORDS}/invoice/{key}")
        if asked.method == "POST":
            key = str(len(self.invoices) + 1)
            self.invoices[key] = {"id": key, **asked.json()}
            return reply(204, b"", location=f"{RECORDS}/invoice/{key}")
        if path.count("/") == 2:
            return reply(200, self.invoices[path.rpartition("/")[2]])
        start, size = int(query["offset"][0]), int(query["limit"][0])
        ids = list(self.invoices)[start : start + size]
        items = [{"id": one, "links": []} for one in ids]
        return reply(200, {"items": items, "hasMore": start + size < len(self.invoices), "count": len(items)})


@pytest.fixture
def account(provider: Provider) -> Account:
    made = Account({str(n): {"id": str(n), "amount": n, "status": "open"} for n in range(1, 6)})
    provider.answer = made.answer
    return made


@pytest.fixture
def netsuite(
    account: Account,
    provider: Provider,
    epoch: Epoch,
    configure: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    monkeypatch.setenv("NETSUITE_TOKEN", "sesame")

    def connect(**settings: Any) -> Any:
        given = {"backoff": 0.01, "page_size": 2} | settings
        configure(
            f'[netsuite]\nkind = "netsuite"\nurl = "{provider.url}{RECORDS}"\ntoken = "env:NETSUITE_TOKEN"\n'
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
            + '[netsuite.collections.invoices]\nrecord = "invoice"\n'
        )
        return Adapters(epoch.attempt()).netsuite

    return connect


def test_a_collection_is_read_by_pages_and_its_records_whole(netsuite: Callable[..., Any], provider: Provider) -> None:
    """N8, N15: throttled twice on the way, of which the pipeline hears nothing."""
    provider.script = [reply(429, retry_after="0"), reply(429)]
    found = asyncio.run(netsuite().read({"collection": "invoices", "updated_after": "2031-05-06T07:08:09Z"}))
    assert [(one["id"], one["amount"], one["status"]) for one in found] == [(str(n), n, "open") for n in range(1, 6)]
    lists = [urlsplit(one.path) for one in provider.asked if "?" in one.path]
    assert {one.path for one in lists} == {f"{RECORDS}/invoice"}
    assert [parse_qs(one.query)["offset"] for one in lists] == [["0"]] * 3 + [["2"], ["4"]]
    assert {parse_qs(one.query)["q"][0] for one in lists} == {'lastModifiedDate ON_OR_AFTER "05/06/2031"'}


def test_four_times_throttled_is_an_error(netsuite: Callable[..., Any], provider: Provider) -> None:
    """N7"""
    provider.script = [reply(429)] * 4
    assert fails(netsuite().read({"collection": "invoices"})).code == "RATE_LIMIT_EXCEEDED"
    assert len(provider.asked) == 4


def test_a_limit_ends_the_pages_and_ids_alone_can_be_asked_for(
    netsuite: Callable[..., Any], provider: Provider
) -> None:
    assert asyncio.run(netsuite(expand=False).read({"collection": "invoices", "limit": 3})) == [
        {"id": str(n), "links": []} for n in range(1, 4)
    ]
    assert len(provider.asked) == 2
    assert fails(netsuite(max_read_rows=4).read({"collection": "invoices"})).code == "ROW_LIMIT_EXCEEDED"


def test_upserted_twice_there_is_one_record_each(
    netsuite: Callable[..., Any], account: Account, provider: Provider, epoch: Epoch
) -> None:
    """N13, N19: by its external id; NetSuite gets no key of ours (N11)."""
    rows = [{"externalId": "x/1", "amount": 7}, {"externalId": "x2", "amount": 8}]
    for _ in range(2):
        asyncio.run(netsuite().write(rows, op="upsert", collection="invoices"))
    assert len(account.invoices) == 7
    assert {one.path for one in provider.asked} == {f"{RECORDS}/invoice/eid:x%2F1", f"{RECORDS}/invoice/eid:x2"}
    assert epoch.states == ["committed"] * 4
    assert epoch.effects[0]["externalRef"] == f"{RECORDS}/invoice/6"
    assert not any("idempotency" in name.lower() for one in provider.asked for name in one.headers)


def test_records_are_inserted_once_for_each_row(netsuite: Callable[..., Any], account: Account) -> None:
    asyncio.run(netsuite().write([{"amount": 7}], collection="invoices"))
    assert account.invoices["6"] == {"id": "6", "amount": 7}


@pytest.mark.parametrize("where", [{}, {"collection": "in/voices"}, {"collection": 7}])
def test_a_collection_has_to_be_named(netsuite: Callable[..., Any], provider: Provider, where: Any) -> None:
    failed = fails(netsuite().read(where))
    assert (failed.code, failed.message) == ("VALIDATION_ERROR", "name a collection of netsuite: invoices")
    assert provider.asked == []


def test_what_is_no_page_of_records_is_said(netsuite: Callable[..., Any], provider: Provider) -> None:
    provider.script = [reply(200, {"items": "none"})]
    assert "no page of records" in fails(netsuite().read({"collection": "invoices"})).message


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({}, ""),
        ({"updated_after": date(2031, 5, 6)}, 'lastModifiedDate ON_OR_AFTER "2031-05-06"'),
        ({"updated_after": datetime(2031, 5, 6, 23, tzinfo=UTC)}, 'lastModifiedDate ON_OR_AFTER "2031-05-06"'),
        ({"status": "open", "total": 7}, 'status IS "open" AND total EQUAL 7'),
        ({"voided": True, "memo": None}, "voided IS true AND memo EMPTY"),
        ({"tranDate": date(2031, 5, 6)}, 'tranDate ON "2031-05-06"'),
    ],
)
def test_filters_in_netsuites_words(filters: dict[str, Any], said: str) -> None:
    assert conditions(filters, "lastModifiedDate", "%Y-%m-%d") == said


@pytest.mark.parametrize(
    "filters", [{"updated_after": "soon"}, {"a b": 1}, {'status" OR "': 1}, {"status": 'a" OR id IS "1'}, {"s": "a\\"}]
)
def test_what_would_be_another_filter_is_refused(filters: dict[str, Any]) -> None:
    with pytest.raises(StageFailure, match="VALIDATION_ERROR"):
        conditions(filters, "lastModifiedDate", "%Y-%m-%d")
