"""Runs one job and says how it ended. No HTTP here: whoever has a job, from the wire or from a table, can use it."""

from __future__ import annotations

import asyncio
import json
import traceback
from dataclasses import dataclass
from typing import Any, Literal

from recourse.context import StageContext
from recourse.errors import Parked, Release, StageFailure, Stopped
from recourse.handlers import Registry
from recourse.jobs import Job
from recourse.results import Failure, Success, Waiting
from recourse.texts import clean, shortened

MAX_REPORT_BYTES = 15 * 1024 * 1024
MAX_MESSAGE = 8000
MAX_CODE = 100
MAX_TRACEBACK = 4_000_000

Outcome = Literal["succeeded", "failed", "waiting", "released", "stopped"]


@dataclass(frozen=True, slots=True)
class Report:
    """How an attempt ended. `body` is the item that POST /results takes, `encoded` the same as JSON in UTF-8.

    `released`: the handler gives the stage back; `body` is what the release route takes.
    `stopped`: it obeyed a request to stop and has no outcome to offer; there is nothing to send.
    """

    outcome: Outcome
    body: dict[str, Any]
    encoded: bytes


def run(
    job: Job,
    registry: Registry,
    *,
    context: StageContext | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Report:
    """Runs the job's handler to its end: a plain function in the calling thread, an async one on `loop`, which must run
    in another thread, or on a loop of its own.

    Never raises for what the handler does: every exception becomes a failure with its full traceback (N6).
    Raises `HandlerNotRegistered`, before anything is started.
    """
    handler = registry.find(job.handler_name)
    context = context or StageContext(job)
    if handler.is_async:
        work = run_async(job, registry, context=context)
        return asyncio.run(work) if loop is None else asyncio.run_coroutine_threadsafe(work, loop).result()
    try:
        value = handler.function(context)
    except (Exception, SystemExit, Parked) as error:  # noqa: BLE001
        return _from_exception(context, registry, error)
    return _from_value(context, value)


async def run_async(job: Job, registry: Registry, *, context: StageContext | None = None) -> Report:
    """As `run`, for an async handler on the running loop."""
    handler = registry.find(job.handler_name)
    context = context or StageContext(job)
    try:
        value = await handler.function(context)
    except (Exception, SystemExit, asyncio.CancelledError, Parked, BaseExceptionGroup) as error:  # noqa: BLE001
        return _from_exception(context, registry, error)
    return _from_value(context, value)


def failure_report(
    context: StageContext,
    code: str,
    message: str,
    *,
    retryable: bool | None = None,
    trace: str | None = None,
    with_extras: bool = True,
) -> Report:
    """The report of a failed attempt. Without extras it leaves out what the handler logged and set."""
    body = _head(context.job, "failed")
    body["errorCode"] = clean(code)[:MAX_CODE]
    body["errorMessage"] = shortened(clean(message), MAX_MESSAGE)
    if trace is not None:
        body["traceback"] = shortened(clean(trace), MAX_TRACEBACK)
    if retryable is not None:
        body["retryable"] = retryable
    if with_extras:
        _add_extras(body, context)
    return _sealed(context, "failed", body)


def _from_value(context: StageContext, value: Any) -> Report:
    if isinstance(value, Failure):
        return failure_report(context, value.code, value.message, retryable=value.retryable)
    outcome: Outcome = "succeeded"
    if isinstance(value, Waiting):
        outcome, value = "waiting", value.output
    elif isinstance(value, Success):
        try:
            for key, text in value.context.items():
                context.context.set(key, text)
        except (TypeError, ValueError) as error:
            return failure_report(context, "OUTPUT_INVALID", str(error), retryable=False)
        value = value.output
    body = _head(context.job, outcome)
    body["output"] = value
    _add_extras(body, context)
    return _sealed(context, outcome, body)


def _from_exception(context: StageContext, registry: Registry, error: BaseException) -> Report:
    if awaited := _parked_for(error):
        body = _head(context.job, "waiting")
        body["awaitsRuns"] = awaited
        _add_extras(body, context)
        return _sealed(context, "waiting", body)
    if isinstance(error, Release):
        body = {"executionId": context.job.execution_id}
        return Report("released", body, _encode(body))
    if isinstance(error, Stopped) and context.cancelled:
        return Report("stopped", {}, b"")
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, StageFailure):
        return failure_report(context, error.code, error.message, retryable=error.retryable, trace=trace)
    code, retryable = registry.code_of(error)
    message = "".join(traceback.format_exception_only(error)).strip()
    return failure_report(context, code, message, retryable=retryable, trace=trace)


def _parked_for(error: BaseException) -> list[str]:
    """The runs for whose end the handler parked; none when it ended in any other way, in one of its tasks too."""
    if isinstance(error, Parked):
        return error.run_ids
    if isinstance(error, BaseExceptionGroup):
        parked, others = error.split(Parked)
        if parked is not None and others is None:
            return list(dict.fromkeys(run_id for one in _leaves(parked) for run_id in one.run_ids))
    return []


def _leaves(group: BaseExceptionGroup[Any]) -> list[Parked]:
    return [
        leaf
        for one in group.exceptions
        for leaf in (_leaves(one) if isinstance(one, BaseExceptionGroup) else [one] if isinstance(one, Parked) else [])
    ]


def _head(job: Job, status: Outcome) -> dict[str, Any]:
    wire = job.wire
    head = {
        "stageId": wire["stageId"],
        "executionId": wire["executionId"],
        "attempt": wire["attempt"],
        "status": status,
    }
    digest = wire.get("requestDigest")
    if digest is not None:
        head["requestDigest"] = digest
    return head


def _add_extras(body: dict[str, Any], context: StageContext) -> None:
    items = context.set_items
    if items:
        body["contextItems"] = items
    lines = context.take_lines()
    if lines:
        body["logs"] = lines
    if context.usage is not None:
        body["usage"] = context.usage


def _sealed(context: StageContext, outcome: Outcome, body: dict[str, Any]) -> Report:
    """The report with its bytes. What cannot be sent at all becomes a failure that says so, for good."""
    try:
        encoded = _encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the handler's output is not JSON: {error}"
        return failure_report(context, "OUTPUT_INVALID", message, retryable=False, with_extras=False)
    if len(encoded) > MAX_REPORT_BYTES:
        message = f"the result has {len(encoded)} bytes; at most {MAX_REPORT_BYTES} can be sent"
        return failure_report(context, "OUTPUT_TOO_LARGE", message, retryable=False, with_extras=False)
    return Report(outcome, body, encoded)


_encode_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _encode(body: dict[str, Any]) -> bytes:
    return _encode_text(body).encode("utf-8")
