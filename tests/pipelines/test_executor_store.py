"""The workspace store of handlers that the console itself runs, under Celery."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from recourse import Registry, StageContext, StageFailure
from recourse.store import Store

from pipelines.executor import Executor
from pipelines.models import Run, StoreTable
from tests.kept import assert_counted, kept
from tests.pipelines.engine import output, stage, status
from tests.pipelines.test_executor import drain, impatient, make, registry  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]
Make = Callable[..., Executor]


def test_a_run_that_failed_at_the_third_batch_is_gone_on_with_by_the_next(
    make: Make,  # noqa: F811
    registry: Registry,  # noqa: F811
    start_run: StartRun,
) -> None:
    """N18, N20: five batches; what the failed run marked is skipped, the third to the fifth are processed."""
    processed: list[int] = []
    faults = [3]

    @registry.handler("Handler")
    async def sync(context: StageContext) -> dict[str, int]:
        store = Store(context)
        done = {row["batch"] for row in await store.read("sync_progress")}
        for batch in range(1, 6):
            if batch in done:
                continue
            if batch in faults:
                faults.remove(batch)
                raise StageFailure("SOURCE_AWAY", "the source does not answer")
            processed.append(batch)
            await store.insert("sync_progress", [{"batch": batch}])
        return {"processed": 5 - len(done)}

    first = start_run()
    drain(make())
    assert (status(first), processed) == ("failed", [1, 2])
    second = start_run()
    drain(make())
    assert (status(second), processed) == ("completed", [1, 2, 3, 4, 5])
    assert json.loads(output(second, "first") or "") == {"processed": 3}
    assert [json.loads(body) for body, _, _ in kept("sync_progress")] == [{"batch": batch} for batch in range(1, 6)]
    assert_counted()


def test_every_verb_works_and_refusals_have_codes_of_their_own(
    make: Make,  # noqa: F811
    registry: Registry,  # noqa: F811
    start_run: StartRun,
    settings: Any,
) -> None:
    """N12: the same bodies and the same refusals as by the worker's routes; many rows go in batches."""
    settings.RECOURSE_STORE_TABLE_ROWS = 2_500
    codes: list[str] = []

    async def refused(asked: Any) -> None:
        with pytest.raises(StageFailure) as told:
            await asked
        codes.append(told.value.code)

    @registry.handler("Handler")
    async def all_of_it(context: StageContext) -> list[Any]:
        store = Store(context)
        await store.table("invoices", ["id"])
        many = [{"id": number, "paid": number % 2 == 0} for number in range(2_500)]
        first, again = await store.upsert("invoices", many), await store.upsert("invoices", many)
        await refused(store.insert("invoices", [{"id": 1, "paid": True}]))
        await refused(store.table("invoices", ["paid"]))
        await refused(store.insert("invoices", [{"id": 2_500}]))
        await refused(store.upsert("no key", [{"id": 1}]))
        found = await store.read("invoices")
        one = await store.read("invoices", {"id": 7})
        gone = await store.delete("invoices", {"paid": True})
        left = await store.read("invoices", where={"paid": True})
        return [
            first.inserted,
            again.unchanged,
            found == many,
            one,
            gone,
            left,
            await store.delete("invoices", {"id": 7}),
        ]

    run = start_run()
    drain(make())
    assert (status(run), stage(run, "first").last_error_code) == ("completed", "")
    assert json.loads(output(run, "first") or "") == [
        2_500,
        2_500,
        True,
        [{"id": 7, "paid": False}],
        1_250,
        [],
        1,
    ]
    assert codes == ["STORE_CONFLICT", "STORE_CONFLICT", "STORE_QUOTA_EXCEEDED", "STORE_REFUSED"]
    assert StoreTable.objects.get().rows == 1_249
    assert_counted()
