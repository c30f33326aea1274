"""Keeps the samples moving: creates the runs of fx-daily day by day backwards, first many, then one now and then.

Every run has its day's key, so that a feeder that forgot how far it was, or was killed, makes nothing twice.
"""

from __future__ import annotations

import json
import logging
import threading
from datetime import date, timedelta
from http.client import HTTPException

from recourse import ApiError, IdempotencyConflict, OutcomeUnknown, SyncClient

from samples import places
from samples.local_http import ask

FIRST_DAYS = 60
FURTHER_DAYS = 1000
PAUSE_SECONDS = 30.0
RETRY_SECONDS = 3.0
WAIT_SECONDS = 1.0

log = logging.getLogger("samples.feeder")


def feed(client: SyncClient, stopping: threading.Event) -> None:
    """Create runs until FIRST_DAYS + FURTHER_DAYS have one or `stopping` is set."""
    newest = _newest(stopping)
    if newest is None:
        return
    fed = _fed(newest)
    while fed < FIRST_DAYS + FURTHER_DAYS and not stopping.is_set():
        try:
            _create(client, newest - timedelta(days=fed))
        except IdempotencyConflict:
            # Somebody made this day's run before, in another way: the day has its run.
            log.info("%s has a run already", newest - timedelta(days=fed))
        except (OutcomeUnknown, ApiError) as error:
            log.warning("the console took no run; trying again: %s", error)
            stopping.wait(RETRY_SECONDS)
            continue
        fed += 1
        places.write(places.position_file(), json.dumps({"newest": newest.isoformat(), "fed": fed}))
        if fed >= FIRST_DAYS:
            stopping.wait(PAUSE_SECONDS)


def _create(client: SyncClient, day: date) -> None:
    text = day.isoformat()
    client.runs.create(
        idempotency_key=f"fx-daily:{text}",
        pipeline="fx-daily",
        input={"date": text},
        context={"businessDate": text},
        keywords={"dataset": "ecb-reference-rates", "month": text[:7]},
    )


def _newest(stopping: threading.Event) -> date | None:
    """The newest day that the rates service knows; it may still be starting."""
    while not stopping.is_set():
        try:
            _, body = ask("rates", "GET", "/rates")
        except (OSError, HTTPException):
            stopping.wait(WAIT_SECONDS)
        else:
            return date.fromisoformat(body["newest"])
    return None


def _fed(newest: date) -> int:
    try:
        position = json.loads(places.position_file().read_text())
    except (FileNotFoundError, ValueError):
        return 0
    return position["fed"] if position["newest"] == newest.isoformat() else 0
