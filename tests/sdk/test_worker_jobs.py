"""Which jobs a worker runs, and what it says of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from recourse import Failure, Registry, StageContext, Waiting, Worker

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import API_KEY, ProtocolServer

Start = Callable[..., Worker]


def test_a_plain_and_an_async_handler_run_and_their_outputs_arrive(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    @registry.handler("Plain")
    def plain(ctx: StageContext) -> Any:
        return {"sum": sum(ctx.json())}

    @registry.handler("Async")
    async def later(ctx: StageContext) -> Any:
        await asyncio.sleep(0)
        return [ctx.input]

    one = server.add_stage("Plain", "[1, 2]")
    two = server.add_stage("Async", "x")
    work(server, registry)
    eventually(lambda: one.state == two.state == "completed")
    assert one.output == {"sum": 3}
    assert two.output == ["x"]


def test_a_worker_registers_its_handlers_and_pulls_for_no_others(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    """P48, P49."""
    registry.add("Mine", lambda ctx: None)
    foreign = server.add_stage("Foreign")
    mine = server.add_stage("Mine")
    work(server, registry, name="w1")
    eventually(lambda: mine.state == "completed")
    assert server.registrations[0]["supportedHandlers"] == ["Mine"]
    assert server.registrations[0]["workerName"] == "w1"
    assert {"handlers": ["Mine"], "acquire": True}.items() <= server.bodies("/jobs/pull")[0].items()
    assert foreign.state == "ready"
    assert foreign.attempts == []


def test_a_job_whose_lease_was_not_acquired_is_dropped(server: ProtocolServer, registry: Registry, work: Start) -> None:
    """P50, P4."""
    ran = []
    registry.add("Once", lambda ctx: ran.append(ctx.attempt))
    server.deny_acquisition = True
    denied = server.add_stage("Once")
    work(server, registry)
    eventually(lambda: denied.attempts)
    server.deny_acquisition = False
    given = server.add_stage("Once")
    eventually(lambda: given.state == "completed")
    assert ran == [1]
    assert [item["stageId"] for body in server.bodies("/results") for item in body["results"]] == [given.id]
    assert server.bodies("/release") == []


def test_a_result_names_stage_attempt_and_number(server: ProtocolServer, registry: Registry, work: Start) -> None:
    """P52."""
    registry.add("Names", lambda ctx: None)
    stage = server.add_stage("Names")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    item = server.bodies("/results")[0]["results"][0]
    attempt = stage.attempts[0]
    assert (item["stageId"], item["executionId"], item["attempt"]) == (stage.id, attempt.id, 1)
    assert item["requestDigest"] == "digest-1"


def test_a_failure_and_a_wait_are_told_as_such(server: ProtocolServer, registry: Registry, work: Start) -> None:
    """P41, P42, P77."""
    registry.add("Fails", lambda ctx: Failure("UPSTREAM_ERROR", "gone", retryable=False))
    registry.add("Waits", lambda ctx: Waiting({"draft": 1}))
    failing, waiting = server.add_stage("Fails"), server.add_stage("Waits")
    work(server, registry)
    eventually(lambda: (failing.state, waiting.state) == ("failed", "waiting"))
    assert failing.result is not None
    assert failing.result["errorCode"] == "UPSTREAM_ERROR"
    assert failing.result["retryable"] is False
    assert waiting.output == {"draft": 1}


def test_no_more_than_the_concurrency_runs_at_once(server: ProtocolServer, registry: Registry, work: Start) -> None:
    peak, running, lock, go = 0, 0, threading.Lock(), threading.Event()

    @registry.handler("Slow")
    def slow(ctx: StageContext) -> None:
        nonlocal peak, running
        with lock:
            running += 1
            peak = max(peak, running)
        go.wait(10)
        with lock:
            running -= 1

    stages = [server.add_stage("Slow") for _ in range(8)]
    work(server, registry, concurrency=3)
    eventually(lambda: running == 3)
    assert sum(bool(stage.attempts) for stage in stages) == 3
    go.set()
    eventually(lambda: all(stage.state == "completed" for stage in stages))
    assert peak == 3


def test_a_second_attempt_of_a_stage_bears_the_same_idempotency_key(
    serve: Any, registry: Registry, work: Start
) -> None:
    """F119, P59: the key that a handler passes on is the stage's, so that the outside system acts once."""
    server = serve()
    effects: dict[str, int] = {}
    started, go = threading.Event(), threading.Event()

    @registry.handler("Pay")
    def pay(ctx: StageContext) -> str:
        effects.setdefault(ctx.idempotency_key, len(effects) + 1)
        started.set()
        if ctx.attempt == 1:
            go.wait(10)
        return ctx.idempotency_key

    stage = server.add_stage("Pay")
    work(server, registry)
    assert started.wait(10)
    server.skip(61)
    eventually(lambda: stage.state == "completed")
    go.set()
    eventually(lambda: server.late)
    assert [attempt.number for attempt in stage.attempts] == [1, 2]
    assert effects == {f"{stage.id}:1": 1}


def test_an_idle_worker_asks_for_nothing_but_work(server: ProtocolServer, registry: Registry, work: Start) -> None:
    registry.add("Never", lambda ctx: None)
    work(server, registry)
    eventually(lambda: server.count("pull") >= 2)
    assert {path for path, _ in server.requests} == {"/workers/bootstrap", "/jobs/pull"}


def test_a_worker_waits_for_a_server_that_is_away(serve: Any, registry: Registry) -> None:
    registry.add("Late", lambda ctx: "here")
    server = serve()
    server.fail("/bootstrap", 503, times=2)
    server.fail("/pull", "cut", times=2)
    stage = server.add_stage("Late")
    with Worker(server.url, API_KEY, registry=registry, wait_seconds=1):
        eventually(lambda: stage.state == "completed")
    assert len(server.registrations) == 1
