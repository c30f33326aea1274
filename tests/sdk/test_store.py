"""The workspace store as handlers use it, tried on its own: without a console rows are kept in memory."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from recourse import StageContext, StageFailure
from recourse.jobs import Job
from recourse.links import Recorder
from recourse.store import MOST_BYTES, MOST_ROWS, Store, Written


@pytest.fixture
def context() -> StageContext:
    ids = {"stageId": str(uuid.UUID(int=1)), "executionId": str(uuid.UUID(int=2)), "attempt": 1}
    return StageContext(Job({**ids, "stageHandlerName": "H"}))


@pytest.fixture
def store(context: StageContext) -> Store:
    return Store(context)


def sent(context: StageContext) -> list[tuple[str, Any]]:
    assert isinstance(context.link, Recorder)
    return [(str(what), body) for what, body in context.link.written]


def test_what_was_inserted_is_read_and_the_same_again_is_nothing(store: Store) -> None:
    """N18."""

    async def use() -> None:
        assert await store.read("sync_progress") == []
        assert await store.insert("sync_progress", [{"batch": 1}, {"batch": 2}]) == Written(2, 0, 0)
        assert await store.insert("sync_progress", [{"batch": 2}, {"batch": 3}]) == Written(1, 0, 1)
        assert await store.read("sync_progress") == [{"batch": 1}, {"batch": 2}, {"batch": 3}]
        assert await store.read("sync_progress", {"batch": 2}) == [{"batch": 2}]

    asyncio.run(use())


def test_rows_are_merged_on_the_key(store: Store) -> None:
    """N12: as the console does it, with its refusals."""

    async def use() -> None:
        rows = [{"id": 1, "amount": 1}, {"id": 2, "amount": 2}]
        assert await store.upsert("invoices", rows, key=["id"]) == Written(2, 0, 0)
        assert await store.upsert("invoices", [{"id": 2, "amount": 3}, rows[0]]) == Written(0, 1, 1)
        assert await store.read("invoices") == [rows[0], {"id": 2, "amount": 3}]
        for asked, code in (
            (store.insert("invoices", [{"id": 1, "amount": 9}]), "STORE_CONFLICT"),
            (store.table("invoices", ["amount"]), "STORE_CONFLICT"),
            (store.upsert("other", [{"id": 1}]), "STORE_REFUSED"),
        ):
            with pytest.raises(StageFailure) as told:
                await asked
            assert (told.value.code, told.value.retryable) == (code, False)
        assert await store.delete("invoices", {"id": 1}) == 1
        assert await store.delete("invoices", everything=True) == 1
        assert await store.read("invoices") == []

    asyncio.run(use())


def test_many_rows_go_in_batches_by_number_and_by_size(store: Store, context: StageContext) -> None:
    small = [{"n": number} for number in range(MOST_ROWS + 1)]
    large = [{"n": number, "text": "x" * (MOST_BYTES // 3)} for number in range(4)]
    asyncio.run(store.insert("small", small))
    asyncio.run(store.insert("large", large))
    assert [len(body["rows"]) for _, body in sent(context)] == [MOST_ROWS, 1, 2, 2]
    assert asyncio.run(store.insert("none", [])) == Written(0, 0, 0)


@pytest.mark.parametrize(
    "row",
    [
        [1],
        "row",
        {1: 2},
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"amount": Decimal("1.10")},
        {"ratio": float("nan")},
        {"deep": {"set": {1}}},
    ],
)
def test_what_is_no_json_is_told_before_anything_is_sent(store: Store, context: StageContext, row: Any) -> None:
    """Also where an earlier row is good."""
    with pytest.raises(ValueError, match=r"^rows\[1\] "):
        asyncio.run(store.insert("t", [{"n": 1}, row]))
    with pytest.raises(ValueError, match=r"^where "):
        asyncio.run(store.read("t", row))
    assert sent(context) == []


def test_nothing_is_deleted_by_a_filter_that_turned_out_empty(store: Store, context: StageContext) -> None:
    for where, everything in ((None, False), ({}, False), ({"n": 1}, True)):
        with pytest.raises(ValueError, match="everything"):
            asyncio.run(store.delete("t", where, everything=everything))
    with pytest.raises(ValueError, match="list of columns"):
        asyncio.run(store.table("t", "id"))
    assert sent(context) == []
