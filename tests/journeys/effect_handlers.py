"""Handlers that act on an outside ledger, and die by kill -9 where their input says, the first time they come there.

Input: `{"die": position}`, or `{"linger": seconds}` to stay at each position for up to that long.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recourse import StageContext, handler

from tests.journeys.ledger import LEDGER, MARKS

BEFORE_INTENT, BEFORE_ACT, BEFORE_OUTCOME = "before the intent", "before the act", "before the outcome"
BEFORE_RESULT, BEFORE_ANSWER = "before the result", "before the answer"
POSITIONS = (BEFORE_INTENT, BEFORE_ACT, BEFORE_OUTCOME, BEFORE_RESULT, BEFORE_ANSWER)

_dies_after_sending = threading.Event()


@handler("journey.act")
def act(ctx: StageContext) -> dict[str, Any]:
    told = ctx.json()
    here(ctx, told, BEFORE_INTENT)
    with ctx.effect("external_http", step="charge") as effect:
        here(ctx, told, BEFORE_ACT)
        if not effect.already:
            effect.external_ref = charge(effect.key)
        here(ctx, told, BEFORE_OUTCOME)
    here(ctx, told, BEFORE_RESULT)
    if told.get("die") == BEFORE_ANSWER and is_first_time(ctx):
        die_after_sending()
    return {"ref": effect.external_ref}


@handler("journey.after")
def after(ctx: StageContext) -> dict[str, int]:
    return {"attempt": ctx.attempt}


def here(ctx: StageContext, told: dict[str, Any], position: str) -> None:
    if "linger" in told:
        time.sleep(random.uniform(0, told["linger"]))
    if told.get("die") == position and is_first_time(ctx):
        die()


def is_first_time(ctx: StageContext) -> bool:
    """Once for each stage, whatever process asks."""
    try:
        (Path(os.environ[MARKS]) / ctx.stage_id).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def charge(key: str) -> str:
    host, _, port = os.environ[LEDGER].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", "/charge", headers={"Idempotency-Key": key})
        return str(json.loads(connection.getresponse().read())["ref"])


def die_after_sending() -> None:
    """From here on the process dies once it has sent results and before it has looked at the answer."""
    _dies_after_sending.set()


def _then_die(send: Callable[..., Any], *, is_report: Callable[..., bool], **instead: Any) -> Callable[..., Any]:
    def sent(*args: Any, **options: Any) -> Any:
        if not (_dies_after_sending.is_set() and is_report(*args)):
            return send(*args, **options)
        send(*args, **options | instead)
        die()
        raise AssertionError

    return sent


def _lie_in_wait() -> None:
    from django.conf import settings
    from recourse.worker.session import Session

    Session._send = _then_die(Session._send, is_report=lambda session, path, *rest: path == "results")  # type: ignore[method-assign]
    if settings.configured:
        from pipelines import executor, results

        # one stage at a time in each process, and nothing is taken along by one that is about to die
        executor.THREADS = executor.LARGEST_BATCH = int(os.environ.get("RECOURSE_TEST_THREADS", "1"))
        is_report = lambda holder, reports: bool(reports)  # noqa: E731
        results.report_and_claim = _then_die(results.report_and_claim, is_report=is_report, limit=0)


if LEDGER in os.environ:  # in the processes that are to die, and not in the test that imports this
    _lie_in_wait()
