"""Child runs by workers over HTTP and by the console's own executor: the slot is free while a stage waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recourse import Registry, StageContext, StageFailure, SyncClient, Worker
from recourse import children as sdk
from recourse.children import Runs

from pipelines import executor as module
from pipelines.executor import Executor, Scope
from pipelines.models import Attempt, ChildRun, Run
from tests.cast import stage_of
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.sdk.conftest import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
LATENCY_SECONDS = 2.0  # of a wake-up, on a machine that others use; measured alone it is some hundredths


@pytest.fixture(scope="module")
def url(django_db_setup: None) -> Iterator[str]:
    with web_server(url_of_test_database("children")) as (url, _):
        yield url


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "PARK_AFTER_SECONDS", 0.3)


@pytest.fixture
def client(url: str, api_key: str) -> Iterator[SyncClient]:
    with SyncClient(url, api_key) as client:
        yield client


@pytest.fixture
def worker(url: str, api_key: str, registry: Registry) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(concurrency: int = 1) -> Worker:
        quick = {"wait_seconds": 1, "drain_seconds": 0.2, "stop_seconds": 0.5}
        started.append(Worker(url, api_key, registry=registry, concurrency=concurrency, **quick))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def add_handlers(registry: Registry, begun: list[int]) -> None:
    """`Week` starts a run for each day and sums up what they came to; `Day` does a day, and cannot do `bad` ones."""

    async def week(ctx: StageContext) -> Any:
        begun.append(ctx.attempt)
        runs = Runs(ctx)
        stages = [{"stageName": "load", "stageHandlerName": "Day"}]
        children = [
            await runs.start(name="day", stages=[{**stages[0], "input": f'"{day}"'}], key=day) for day in ctx.json()
        ]
        done = await runs.wait_all(children)
        return {child.key: child.output if child.succeeded else str(child.failure) for child in done}

    def day(ctx: StageContext) -> Any:
        if ctx.json() == "bad":
            raise StageFailure("NO_SUCH_DAY", "there is none", retryable=False)
        return {"day": ctx.json()}

    registry.add("Week", week)
    registry.add("Day", day)


def test_a_worker_with_one_slot_does_the_children_that_its_stage_waits_for(
    client: SyncClient, worker: Callable[..., Worker], registry: Registry
) -> None:
    """N9: without parking nobody would be left to do them; a failed child is an answer, and is started once."""
    begun: list[int] = []
    add_handlers(registry, begun)
    worker(concurrency=1)
    stages = [{"stageName": "sum", "stageHandlerName": "Week", "input": '["mon", "bad", "wed"]'}]
    made = client.runs.create(idempotency_key="week", name="week", stages=stages)["pipeline"]
    run = eventually(lambda: _ended(client, made["id"]), 60)
    assert run["status"] == "completed"
    assert run["stages"][0]["output"] == {
        "mon": {"day": "mon"},
        "bad": "NO_SUCH_DAY: there is none",
        "wed": {"day": "wed"},
    }
    assert begun == [1, 2]
    assert list(Attempt.objects.filter(run_id=made["id"]).order_by("number").values_list("state", flat=True)) == [
        "waiting",
        "succeeded",
    ]
    assert (run["stages"][0]["retryAttempt"], run["stages"][0]["recoveryCount"], run["stages"][0]["epoch"]) == (0, 0, 1)
    assert Run.objects.filter(parent_id=made["id"]).count() == 3
    last = max(child.finished_at for child in Run.objects.filter(parent_id=made["id"]) if child.finished_at)
    again = Attempt.objects.get(run_id=made["id"], number=2)
    assert _since(again, last) < LATENCY_SECONDS
    assert_invariants()


def test_the_console_s_own_executor_does_the_same(
    registry: Registry, start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N9: handlers under Celery reach the same rules without HTTP."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.02)
    begun: list[int] = []
    add_handlers(registry, begun)
    run = start_run(stage_of({"name": "sum", "handler": "Week", "input": '["mon", "tue"]'}))
    Executor(Scope(dict.fromkeys(registry.names, None)), registry).drain(threading.Event())
    run.refresh_from_db()
    assert run.status == "completed"
    assert begun in ([1], [1, 2])
    assert set(ChildRun.objects.filter(parent=run).values_list("key", flat=True)) == {"mon", "tue"}
    assert_invariants()


def test_what_the_console_refuses_of_a_child_fails_the_stage(
    client: SyncClient, worker: Callable[..., Worker], registry: Registry
) -> None:
    async def handler(ctx: StageContext) -> None:
        await Runs(ctx).start("nobody-made-this")

    registry.add("Week", handler)
    worker()
    stages = [{"stageName": "sum", "stageHandlerName": "Week"}]
    made = client.runs.create(idempotency_key="refused", name="week", stages=stages)["pipeline"]
    run = eventually(lambda: _ended(client, made["id"]), 60)
    assert (run["status"], run["stages"][0]["lastErrorCode"]) == ("failed", "RUN_REFUSED")
    assert "nobody-made-this" in run["stages"][0]["lastErrorMessage"]


def _since(attempt: Attempt, moment: Any) -> float:
    return float((attempt.dispatched_at - moment).total_seconds())


def _ended(client: SyncClient, run_id: str) -> Any:
    found = client.runs.get(run_id)
    return found if found["isTerminal"] else None
