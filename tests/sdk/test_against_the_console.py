"""The package against the console itself: its web server in a process of its own, real leases, the real database."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
from recourse import (
    Client,
    Failure,
    GateDecisionConflict,
    IdempotencyConflict,
    PermissionDenied,
    Registry,
    Release,
    StageContext,
    SyncClient,
    Waiting,
    Worker,
)

from pipelines.models import Attempt, LateEvidence, LogLine
from pipelines.models.base import RecourseNow
from pipelines.sweeps import sweep
from recovery.transitions import pause_run, resume_run
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)

Web = tuple[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    """A console whose workers renew every second."""
    with web_server(url_of_test_database("sdk"), RECOURSE_LEASE_SECONDS="60", RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def client(web: Web, api_key: str) -> Iterator[SyncClient]:
    with SyncClient(web[0], api_key) as client:
        yield client


@pytest.fixture
def worker(web: Web, api_key: str, registry: Registry) -> Iterator[Callable[[], Worker]]:
    """Starts a worker for the handlers registered so far."""
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2, stop_seconds=0.5))
        started[-1].start()
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


def create(client: SyncClient, *stages: dict[str, Any], key: str = "k") -> dict[str, Any]:
    made = client.runs.create(idempotency_key=key, name="invoices", stages=list(stages))
    run: dict[str, Any] = made["pipeline"]
    return run


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"stageName": name, "stageHandlerName": name} | more


def reaches(client: SyncClient, run: dict[str, Any], status: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        found = client.runs.get(run["id"])
        return found if found["status"] == status else None

    found: dict[str, Any] = eventually(there, 30)
    return found


class Holding:
    """A handler that runs until it is let go or told to stop, and remembers its contexts."""

    def __init__(self, registry: Registry, name: str = "Hold") -> None:
        self.go = threading.Event()
        self.contexts: list[StageContext] = []
        registry.add(name, self.handle)

    def handle(self, ctx: StageContext) -> dict[str, Any]:
        self.contexts.append(ctx)
        while not self.go.wait(0.01) and not ctx.cancelled:
            if ctx.pause_requested:
                raise Release
        return {"attempt": ctx.attempt}


def test_a_run_goes_through_plain_and_async_handlers(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """P48–P52, P89: inputs, dependencies, context and log lines arrive as they were sent."""

    @registry.handler("Read")
    def read(ctx: StageContext) -> Any:
        ctx.log("info", "read", rows=2)
        ctx.context.set("invoice", "42")
        ctx.context.set("card", "4111", sensitive=True)
        return {"rows": ctx.json()}

    @registry.handler("Count")
    async def count(ctx: StageContext) -> Any:
        return [len(ctx.dependencies["Read"]["rows"]), ctx.context["invoice"], ctx.context["card"], ctx.idempotency_key]

    worker()
    run = reaches(client, create(client, stage("Read", input="[1, 2]"), stage("Count")), "completed")
    assert run["stages"][0]["output"] == {"rows": [1, 2]}
    assert run["stages"][1]["output"] == [2, "42", "4111", f"{run['stages'][1]['id']}:1"]
    assert [(item["key"], item["value"]) for item in run["contextItems"]] == [("invoice", "42"), ("card", "[REDACTED]")]
    assert [(line.message, line.fields) for line in LogLine.objects.all()] == [("read", {"rows": 2})]


def test_a_run_is_created_once_and_another_intent_refused(client: SyncClient) -> None:
    """P18–P20, P28."""
    first = create(client, stage("Nobody"))
    assert create(client, stage("Nobody"))["id"] == first["id"] == client.runs.lookup("k")["id"]
    with pytest.raises(IdempotencyConflict):
        create(client, stage("Somebody"))


def test_a_waiting_stage_is_decided_once(client: SyncClient, worker: Callable[[], Worker], registry: Registry) -> None:
    """P77–P82."""
    registry.add("Ask", lambda ctx: Waiting({"draft": 1}))
    worker()
    run = reaches(client, create(client, stage("Ask")), "waiting")
    stage_id = run["stages"][0]["id"]
    assert client.stages.resume(stage_id, True) == client.stages.resume(stage_id, True)
    with pytest.raises(GateDecisionConflict):
        client.stages.resume(stage_id, False, "no")
    assert reaches(client, run, "completed")["stages"][0]["output"] == {"draft": 1}


def test_an_exception_fails_the_stage_with_its_traceback(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """N6, with a NUL that the database cannot hold."""

    @registry.handler("Bad")
    def bad(ctx: StageContext) -> None:
        raise ValueError("a\x00b")

    worker()
    run = reaches(client, create(client, stage("Bad")), "failed")
    assert run["failure"]["code"] == "UNHANDLED_EXCEPTION"
    text = Attempt.objects.get().traceback
    assert text.startswith("Traceback (most recent call last):")
    assert "ValueError: a\\x00b" in text


def test_results_outlive_the_web_process(
    web: Web, client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """F16, P27: the process that answers is killed, again and again, while results and new runs are on their way."""
    holding = Holding(registry)
    worker()
    runs = [create(client, stage("Hold"), key=str(number)) for number in range(4)]
    eventually(lambda: len(holding.contexts) == 4)
    for number in range(3):
        for child in psutil.Process(web[1].pid).children():
            child.kill()
        holding.go.set()
        runs.append(create(client, stage("Hold"), key=f"after-{number}"))
    for run in runs:
        assert reaches(client, run, "completed")["stages"][0]["recoveryCount"] == 0
    assert set(Attempt.objects.values_list("state", flat=True)) == {"succeeded"}
    assert LateEvidence.objects.count() == 0


def test_a_worker_that_lost_its_lease_is_told_and_its_result_is_only_evidence(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """P57, P58, F03: the stage goes on in attempt 2."""
    holding = Holding(registry)
    worker()
    run = create(client, stage("Hold"))
    eventually(lambda: holding.contexts)
    Attempt.objects.update(expires_at=RecourseNow() - timedelta(seconds=1))
    assert sweep()
    eventually(lambda: holding.contexts[0].cancelled)
    eventually(lambda: len(holding.contexts) == 2)
    eventually(LateEvidence.objects.exists)
    holding.go.set()
    assert reaches(client, run, "completed")["stages"][0]["output"] == {"attempt": 2}
    assert list(Attempt.objects.order_by("number").values_list("number", "state")) == [(1, "lost"), (2, "succeeded")]
    assert LateEvidence.objects.get().attempt.number == 1


def test_a_cancelled_run_stops_its_handler(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """F65, P74: the run is cancelled at once, its worker told at its next renewal."""
    holding = Holding(registry)
    worker()
    run = create(client, stage("Hold"))
    eventually(lambda: holding.contexts)
    cancelled = client.runs.cancel(run["id"], "not needed")
    assert cancelled["pipeline"]["status"] == "cancelled"
    assert [item["stageId"] for item in cancelled["reconciliation"]] == [run["stages"][0]["id"]]
    eventually(lambda: holding.contexts[0].cancelled)
    eventually(LateEvidence.objects.exists)
    assert client.runs.get(run["id"])["status"] == "cancelled"


def test_a_pausing_run_gets_its_stage_back_and_goes_on_after_resume(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry, people: dict[str, Person]
) -> None:
    holding = Holding(registry)
    worker()
    run = create(client, stage("Hold"))
    eventually(lambda: holding.contexts)
    pause_run(uuid.UUID(run["id"]), actor=people["operator"].actor)
    reaches(client, run, "paused")
    assert len(holding.contexts) == 1
    resume_run(uuid.UUID(run["id"]), actor=people["operator"].actor)
    eventually(lambda: len(holding.contexts) == 2)
    holding.go.set()
    done = reaches(client, run, "completed")["stages"][0]
    assert (done["output"], done["recoveryCount"], done["retryAttempt"]) == ({"attempt": 2}, 0, 0)


def test_a_draining_worker_gives_back_what_it_cannot_finish(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """F22: nothing is counted, and the next worker goes on at once."""
    started, go = threading.Event(), threading.Event()

    @registry.handler("Steps")
    def steps(ctx: StageContext) -> int:
        started.set()
        while not go.wait(0.01):
            ctx.raise_if_stopped()
        return ctx.attempt

    first = worker()
    run = create(client, stage("Steps"))
    assert started.wait(30)
    first.stop()
    assert client.runs.get(run["id"])["stages"][0]["status"] == "ready"
    go.set()
    worker()
    done = reaches(client, run, "completed")["stages"][0]
    assert (done["output"], done["recoveryCount"]) == (2, 0)


def test_the_longest_logs_and_tracebacks_are_taken(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """N6: what the package lets through, the console takes."""

    @registry.handler("Loud")
    def loud(ctx: StageContext) -> str:
        for _ in range(6_000):
            ctx.log("info", "line")
        ctx.log("info", "ü" * 100_000, field="ü" * 100_000)
        ctx.context.set("k" * 255, "ü" * 10_000)
        return "fine"

    @registry.handler("Deep")
    def deep(ctx: StageContext) -> None:
        raise ValueError("x" * 5_000_000)

    worker()
    assert reaches(client, create(client, stage("Loud"), key="loud"), "completed")["stages"][0]["output"] == "fine"
    failed = reaches(client, create(client, stage("Deep"), key="deep"), "failed")
    assert failed["failure"]["code"] == "UNHANDLED_EXCEPTION"


def test_people_steer_runs_with_a_token(
    web: Web,
    client: SyncClient,
    worker: Callable[[], Worker],
    registry: Registry,
    people: dict[str, Person],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O9, O10, O12: source 002's example, and the other verbs of people."""
    registry.add("Bad", lambda ctx: Failure("UPSTREAM_ERROR", "gone"))
    run = create(client, stage("Nobody"), key="paused")["id"]
    monkeypatch.setenv("RECOURSE_TOKEN", people["operator"].token)

    async def example() -> list[Any]:
        async with Client(web[0]) as people_client:
            return [await people_client.executions.pause(run), await people_client.executions.resume(run)]

    assert asyncio.run(example()) == [
        {"execution_id": run, "status": "pause_signal_sent"},
        {"execution_id": run, "status": "resume_signal_sent"},
    ]
    worker()
    failed = reaches(client, create(client, stage("Bad"), key="failing"), "failed")
    with SyncClient(web[0]) as operator:
        listed = operator.executions.list(status="failed", handler=["Bad"])
        assert [item["execution_id"] for item in listed["results"]] == [failed["id"]]
        first = operator.executions.list(page_size=1)
        second = operator.executions.list(next=first["next"])
        assert {first["results"][0]["execution_id"], second["results"][0]["execution_id"]} == {run, failed["id"]}
        assert operator.executions.get(run)["execution_id"] == run
        operator.stages.retry(failed["stages"][0]["id"], reason="try again")
        again = reaches(client, failed, "failed")["stages"][0]
        assert again["epoch"] == 2
        operator.stages.skip(again["id"], reason="not needed", output={"by": "hand"})
        assert reaches(client, failed, "completed")["stages"][0]["output"] == {"by": "hand"}
        assert operator.executions.cancel(run, "not needed")["status"] == "cancelled"
    monkeypatch.setenv("RECOURSE_TOKEN", people["viewer"].token)
    with SyncClient(web[0]) as viewer, pytest.raises(PermissionDenied):
        viewer.executions.pause(run)
