"""A result is offered until the server says something definite, and its handler is never run again for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from recourse import Registry, StageContext, Success, Worker

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import ProtocolServer, problem

Start = Callable[..., Worker]


@pytest.mark.parametrize("how", [503, 500, 429, "cut", "cut_after"])
def test_a_result_without_an_answer_is_sent_again_unchanged(
    server: ProtocolServer, registry: Registry, work: Start, how: int | str
) -> None:
    """P56, F16: 503, broken connections before and after the server acted; one run of the handler, one application."""
    ran: list[int] = []
    applied: list[str] = []

    @registry.handler("Bill")
    def bill(ctx: StageContext) -> dict[str, int]:
        ran.append(ctx.attempt)
        return {"invoice": 42}

    def note(item: dict[str, Any]) -> None:
        applied.append(item["executionId"])

    server.refuse_results = note
    server.fail("/results", how, times=3)
    stage = server.add_stage("Bill")
    worker = work(server, registry)
    eventually(lambda: stage.state == "completed" and worker._delivery.unsettled == 0)
    assert ran == [1]
    assert applied == [stage.attempts[0].id]
    assert server.late == []
    assert len({str(body) for body in server.bodies("/results")}) == 1
    assert len(server.bodies("/results")) == (4 if how == "cut_after" else 1)


def test_an_item_that_the_server_could_not_store_is_sent_again_alone(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    """P56: `result_not_confirmed` inside an answer that took the others."""
    refusals = iter(["result_not_confirmed"])
    server.refuse_results = lambda item: next(refusals, None)
    registry.add("Bill", lambda ctx: None)
    stage = server.add_stage("Bill")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert len(stage.attempts) == 1


def test_results_that_end_while_one_is_on_its_way_go_together(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    ended = threading.Semaphore(0)

    @registry.handler("Quick")
    def quick(ctx: StageContext) -> None:
        ended.release()

    server.fail("/results", "hang", times=1)
    stages = [server.add_stage("Quick") for _ in range(12)]
    worker = work(server, registry)
    for _ in stages:
        assert ended.acquire(timeout=10)
    eventually(lambda: worker._delivery.unsettled == 12 and all(not held.running for held in worker._leases.all()))
    server.heal()
    eventually(lambda: all(stage.state == "completed" for stage in stages))
    assert len(server.bodies("/results")) <= 2
    assert sum(len(body["results"]) for body in server.bodies("/results")) == 12


def test_a_stale_result_is_final(serve: Any, registry: Registry, work: Start) -> None:
    """P5: offered once as late evidence, never again."""
    server = serve()
    started, go = threading.Event(), threading.Event()

    @registry.handler("Slow")
    def slow(ctx: StageContext) -> int:
        started.set()
        if ctx.attempt == 1:
            go.wait(10)
        return ctx.attempt

    stage = server.add_stage("Slow")
    worker = work(server, registry)
    assert started.wait(10)
    server.skip(61)
    eventually(lambda: stage.state == "completed")
    go.set()
    eventually(lambda: server.late)
    eventually(lambda: worker._delivery.unsettled == 0)
    assert stage.output == 2
    assert [item["output"] for item in server.late] == [1]


def test_a_result_that_the_server_cannot_take_becomes_a_failure_that_says_why(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    """Else the lease would lapse and the handler would run again to the same end."""
    ran: list[int] = []

    @registry.handler("Odd")
    def odd(ctx: StageContext) -> Success:
        ran.append(ctx.attempt)
        return Success(1, context={"key": "value"})

    server.refuse_results = lambda item: "validation_error" if item["status"] == "succeeded" else None
    stage = server.add_stage("Odd")
    work(server, registry)
    eventually(lambda: stage.state == "failed")
    assert stage.result is not None
    assert stage.result["errorCode"] == "RESULT_REFUSED"
    assert "validation_error" in stage.result["errorMessage"]
    assert stage.result["retryable"] is False
    assert "contextItems" not in stage.result
    assert ran == [1]


def test_one_bad_result_spoils_no_other(server: ProtocolServer, registry: Registry, work: Start) -> None:
    """Even of a server that refuses the whole request for it."""
    registry.add("Good", lambda ctx: "fine")
    registry.add("Huge", lambda ctx: "x" * 1000)
    server.fail("/results", "hang", times=1)
    good = [server.add_stage("Good") for _ in range(3)]
    huge = server.add_stage("Huge")
    worker = work(server, registry)
    eventually(lambda: worker._delivery.unsettled == 4 and all(not held.running for held in worker._leases.all()))
    real = server.answer

    def picky(path: str, body: dict[str, Any], headers: Any) -> tuple[int, dict[str, Any] | None]:
        if path == "/results" and any(item.get("output") == "x" * 1000 for item in body["results"]):
            return problem(413, "payload_too_large")
        return real(path, body, headers)

    server.answer = picky  # type: ignore[method-assign]
    server.heal()
    eventually(lambda: all(stage.state == "completed" for stage in good) and huge.state == "failed")
    assert huge.result is not None
    assert huge.result["errorCode"] == "OUTPUT_TOO_LARGE"


def test_an_answer_that_makes_no_sense_is_no_confirmation(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    registry.add("Bill", lambda ctx: None)
    server.fail("/results", 202, times=1, body={"results": "fine"})
    server.fail("/results", 202, times=1, body={})
    stage = server.add_stage("Bill")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert len(stage.attempts) == 1


def test_log_lines_and_progress_arrive_while_the_handler_runs(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    go = threading.Event()

    @registry.handler("Talks")
    def talks(ctx: StageContext) -> None:
        ctx.log("info", "began", count=3)
        ctx.progress(10)
        ctx.progress(50, "half way")
        go.wait(10)
        ctx.log("warning", "ends")

    stage = server.add_stage("Talks")
    work(server, registry)
    eventually(lambda: server.lines and server.progress)
    assert stage.state == "running"
    go.set()
    eventually(lambda: stage.state == "completed")
    assert [(line["level"], line["message"]) for line in server.lines] == [("info", "began"), ("warning", "ends")]
    assert server.lines[0]["fields"] == {"count": 3}
    assert [(said["percent"], said["message"]) for said in server.progress] == [(50, "half way")]


def test_log_lines_that_could_not_be_sent_go_with_the_result(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    go = threading.Event()

    @registry.handler("Talks")
    def talks(ctx: StageContext) -> None:
        ctx.log("info", "kept")
        go.wait(10)

    server.fail("/logs", "cut")
    stage = server.add_stage("Talks")
    worker = work(server, registry)
    eventually(lambda: stage.attempts)
    context = eventually(lambda: [held.context for held in worker._leases.all()])[0]
    eventually(lambda: not context.has_news)
    eventually(lambda: context.has_news)
    go.set()
    eventually(lambda: stage.state == "completed")
    assert [line["message"] for line in server.lines] == ["kept"]
