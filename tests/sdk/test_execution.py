"""How one job runs and what is said of it: no HTTP, the same for the worker and the console's own executor."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from recourse import (
    Failure,
    HandlerNotRegistered,
    Job,
    Registry,
    Release,
    StageContext,
    StageFailure,
    Stopped,
    Success,
    Waiting,
    execution,
)
from recourse.execution import Report


def job(name: str = "Do", **wire: Any) -> Job:
    return Job({"stageId": "s", "executionId": "e", "attempt": 3, "stageHandlerName": name} | wire)


def run(function: Any, **wire: Any) -> Report:
    registry = Registry()
    registry.add("Do", function)
    report = execution.run(job(**wire), registry)
    if report.encoded:
        assert json.loads(report.encoded) == report.body
    return report


def raising(error: BaseException) -> Any:
    def function(ctx: StageContext) -> None:
        raise error

    return function


@pytest.mark.parametrize("value", [None, 0, False, "", "ü", [1, {"a": None}], {"b": 1.5}])
def test_any_json_value_is_a_success(value: Any) -> None:
    """N14."""
    report = run(lambda ctx: value)
    assert report.body == {"stageId": "s", "executionId": "e", "attempt": 3, "status": "succeeded", "output": value}


def test_success_adds_context_and_waiting_parks() -> None:
    """P77, P89."""
    done = run(lambda ctx: Success({"n": 1}, context={"invoice": "42"}))
    assert done.body["output"] == {"n": 1}
    assert done.body["contextItems"] == [{"key": "invoice", "value": "42"}]
    parked = run(lambda ctx: Waiting("draft"))
    assert (parked.outcome, parked.body["status"], parked.body["output"]) == ("waiting", "waiting", "draft")


def test_a_returned_failure_carries_its_code_and_whether_to_retry() -> None:
    """P41, P42."""
    assert run(lambda ctx: Failure("UPSTREAM_ERROR", "gone")).body == {
        "stageId": "s",
        "executionId": "e",
        "attempt": 3,
        "status": "failed",
        "errorCode": "UPSTREAM_ERROR",
        "errorMessage": "gone",
    }
    assert run(lambda ctx: Failure("X", retryable=False)).body["retryable"] is False


def test_a_raised_stage_failure_is_the_same_with_its_traceback() -> None:
    body = run(raising(StageFailure("BUSINESS_REJECTED", "no credit", retryable=False))).body
    assert (body["errorCode"], body["errorMessage"], body["retryable"]) == ("BUSINESS_REJECTED", "no credit", False)
    assert "in function" in body["traceback"]


def test_any_other_exception_fails_with_its_full_traceback() -> None:
    """N6: down to the cause, however deep."""

    def deep(level: int) -> None:
        if level == 0:
            raise KeyError("the very bottom")
        deep(level - 1)

    def function(ctx: StageContext) -> None:
        try:
            deep(3)
        except KeyError as error:
            raise RuntimeError("on top") from error

    body = run(function).body
    assert body["errorCode"] == "UNHANDLED_EXCEPTION"
    assert body["errorMessage"] == "RuntimeError: on top"
    assert "retryable" not in body
    text = body["traceback"]
    assert text.index("KeyError: 'the very bottom'") < text.index("direct cause") < text.index("RuntimeError: on top")
    assert text.count("deep(level - 1)") == 3


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_texts_that_a_database_cannot_hold_are_escaped(text: str) -> None:
    """N6."""

    def function(ctx: StageContext) -> None:
        ctx.log("info", text, field=text)
        raise ValueError(text)

    report = run(function)
    assert b"\x00" not in report.encoded
    assert report.body["errorCode"] == "UNHANDLED_EXCEPTION"
    assert repr(text)[1:-1] in report.body["traceback"]
    assert repr(text)[1:-1] in report.body["logs"][0]["message"]


def test_a_very_long_message_is_cut_while_the_traceback_has_it_all() -> None:
    body = run(raising(ValueError("x" * 100_000))).body
    assert len(body["errorMessage"]) <= execution.MAX_MESSAGE
    assert "characters left out" in body["errorMessage"]
    assert "x" * 100_000 in body["traceback"]


def test_a_traceback_that_no_server_takes_keeps_its_beginning_and_end() -> None:
    body = run(raising(ValueError("x" * execution.MAX_TRACEBACK + "the end"))).body
    assert len(body["traceback"]) <= execution.MAX_TRACEBACK
    assert body["traceback"].startswith("Traceback")
    assert body["traceback"].rstrip().endswith("the end")


def test_too_long_a_code_is_cut_and_too_large_a_context_value_is_a_failure() -> None:
    assert len(run(lambda ctx: Failure("X" * 101)).body["errorCode"]) == execution.MAX_CODE
    body = run(lambda ctx: Success(1, context={"key": "x" * 10_001})).body
    assert (body["errorCode"], body["retryable"]) == ("OUTPUT_INVALID", False)
    assert run(lambda ctx: Success(1, context={"key": "x" * 10_000})).outcome == "succeeded"


def test_an_exception_that_cannot_be_printed_is_reported_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise OSError("no words")

    assert run(raising(Mute())).body["errorCode"] == "UNHANDLED_EXCEPTION"


@pytest.mark.parametrize("error", [SystemExit(3), RecursionError(), MemoryError()])
def test_exceptions_that_end_programs_end_only_the_attempt(error: BaseException) -> None:
    assert run(raising(error)).body["status"] == "failed"


def test_ctrl_c_is_not_a_failure_of_the_stage() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(raising(KeyboardInterrupt()))


def test_the_nearest_mapped_class_gives_the_code() -> None:
    registry = Registry()
    registry.map_exception(OSError, "TRANSPORT_UNAVAILABLE")
    registry.map_exception(TimeoutError, "TIMEOUT", retryable=True)
    registry.add("Timeout", raising(TimeoutError()))
    registry.add("Refused", raising(ConnectionRefusedError()))
    timeout = execution.run(job("Timeout"), registry).body
    assert (timeout["errorCode"], timeout["retryable"]) == ("TIMEOUT", True)
    refused = execution.run(job("Refused"), registry).body
    assert refused["errorCode"] == "TRANSPORT_UNAVAILABLE"
    assert "retryable" not in refused


def circular() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("output", [object(), {1, 2}, float("nan"), "\ud800", b"bytes", circular()])
def test_an_output_that_is_not_json_is_a_failure_for_good(output: Any) -> None:
    body = run(lambda ctx: output).body
    assert (body["status"], body["errorCode"], body["retryable"]) == ("failed", "OUTPUT_INVALID", False)
    assert "output" not in body


def test_a_result_too_large_to_send_is_a_failure_for_good() -> None:
    report = run(lambda ctx: "x" * execution.MAX_REPORT_BYTES)
    assert report.body["errorCode"] == "OUTPUT_TOO_LARGE"
    assert len(report.encoded) < 1000
    assert run(lambda ctx: "x" * (execution.MAX_REPORT_BYTES - 200)).outcome == "succeeded"


def test_release_gives_the_stage_back() -> None:
    report = run(raising(Release()))
    assert (report.outcome, report.body) == ("released", {"executionId": "e"})


def test_a_handler_that_obeys_has_nothing_to_tell() -> None:
    registry = Registry()
    registry.add("Do", lambda ctx: ctx.raise_if_stopped())
    context = StageContext(job())
    context.control.stop("lost")
    assert execution.run(context.job, registry, context=context).outcome == "stopped"


def test_stopped_without_being_told_is_a_failure() -> None:
    assert run(raising(Stopped("just so"))).body["status"] == "failed"


def test_an_async_handler_runs_in_the_calling_thread_or_on_a_given_loop() -> None:
    threads = []

    async def function(ctx: StageContext) -> int:
        threads.append(threading.current_thread())
        await asyncio.sleep(0)
        return ctx.attempt

    registry = Registry()
    registry.add("Do", function)
    assert execution.run(job(), registry).body["output"] == 3
    for loop, thread in running_loop():
        assert execution.run(job(), registry, loop=loop).body["output"] == 3
        assert threads == [threading.current_thread(), thread]


def running_loop() -> Iterator[tuple[asyncio.AbstractEventLoop, threading.Thread]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop, thread
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_an_async_handler_that_fails_is_reported_as_a_plain_one() -> None:
    async def function(ctx: StageContext) -> None:
        raise ValueError("later")

    body = run(function).body
    assert body["errorMessage"] == "ValueError: later"
    assert "in function" in body["traceback"]


def test_an_object_with_an_async_call_is_an_async_handler() -> None:
    class Handler:
        async def __call__(self, ctx: StageContext) -> str:
            return "async"

    assert run(Handler()).body["output"] == "async"


def test_a_missing_handler_is_told_before_anything_happens() -> None:
    registry = Registry()
    registry.add("Other", lambda ctx: None)
    with pytest.raises(HandlerNotRegistered, match="no handler named 'Do'; there are: Other"):
        execution.run(job(), registry)


def test_a_name_is_given_once() -> None:
    registry = Registry()

    @registry.handler("Do")
    def one(ctx: StageContext) -> None: ...

    registry.add("Do", one)
    with pytest.raises(ValueError, match="already"):
        registry.add("Do", lambda ctx: None)
    Registry().add("Do", lambda ctx: None)


def test_the_package_and_its_worker_import_no_django() -> None:
    import subprocess
    from pathlib import Path

    code = "import recourse.worker.__main__, sys; print([name for name in sys.modules if name.startswith('django')])"
    sdk = Path(__file__).resolve().parents[2] / "sdk"
    done = subprocess.run([sys.executable, "-c", code], cwd=sdk, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
