"""The pipeline fx-daily: fetches one day's reference rates, checks, stores and publishes them.

The handlers run under the console's Celery workers (or any worker that imports this module). What they may be asked to
do twice they do once: fetch and validate change nothing, store is an upsert, publish carries the stage's key. A day
without a fixing fails at its fetch; once somebody has skipped that there is nothing left to do, and the others say so.
The definition, with its retries, is fx_daily.json.
"""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any

from recourse import StageContext, StageFailure, handler

from samples import places
from samples.local_http import ask

EXPECTED = frozenset({"USD", "JPY", "GBP", "CHF"})
PLAUSIBLE_CHANGE = 0.10  # from one day of publication to the next

TABLE = """
CREATE TABLE IF NOT EXISTS rate_day (day TEXT PRIMARY KEY, rates TEXT NOT NULL, run_id TEXT NOT NULL,
    writes INTEGER NOT NULL DEFAULT 1)
"""
UPSERT = """
INSERT INTO rate_day (day, rates, run_id) VALUES (?, ?, ?)
ON CONFLICT (day) DO UPDATE SET rates = excluded.rates, run_id = excluded.run_id, writes = writes + 1 RETURNING writes
"""


def database_file() -> Path:
    return places.directory() / "fx.sqlite"


@handler("fx.fetch")
def fetch(ctx: StageContext) -> Any:
    """One day from the rates service. A day without rates is final (MISSING_REQUIRED_DATA); all else may pass."""
    day = (ctx.json() or {}).get("date")
    if not isinstance(day, str):
        raise StageFailure("VALIDATION_ERROR", 'the input must be like {"date": "2026-05-29"}')
    status, body = _ask("rates", "GET", f"/rates/{day}")
    if status == 404:
        raise StageFailure("MISSING_REQUIRED_DATA", body["detail"], retryable=False)
    _raise_for(status, body)
    ctx.log("info", "fetched", date=day, currencies=len(body["rates"]))
    return body


@handler("fx.validate")
def validate(ctx: StageContext) -> dict[str, Any]:
    """Refuses a day that cannot be right; a jump that can is for a person to judge, who may skip this stage."""
    fetched = ctx.dependencies["fetch"]
    if fetched is None:
        return _nothing(ctx)
    rates, previous = fetched["rates"], (fetched["previous"] or {}).get("rates", {})
    missing = sorted(EXPECTED - rates.keys())
    if missing:
        raise StageFailure("MISSING_REQUIRED_DATA", f"no rate for {', '.join(missing)}")
    faults = [fault for currency, rate in sorted(rates.items()) if (fault := _fault(currency, rate))]
    changes = {name: rates[name] / previous[name] - 1 for name in rates.keys() & previous.keys()} if not faults else {}
    faults += [
        f"{name} moved by {change:+.1%} since {fetched['previous']['date']}"
        for name, change in sorted(changes.items())
        if abs(change) > PLAUSIBLE_CHANGE
    ]
    if faults:
        raise StageFailure("VALIDATION_ERROR", "; ".join(faults))
    return {"currencies": len(rates), "largestChange": round(max(map(abs, changes.values()), default=0.0), 6)}


@handler("fx.store")
def store(ctx: StageContext) -> dict[str, Any]:
    """One row a day, whoever writes it and however often."""
    fetched = ctx.dependencies["fetch"]
    if fetched is None:
        return _nothing(ctx)
    ctx.raise_if_stopped()
    try:
        with closing(sqlite3.connect(database_file(), timeout=20)) as connection, connection:
            connection.execute(TABLE)
            values = [fetched["date"], json.dumps(fetched["rates"], sort_keys=True), ctx.run_id]
            (writes,) = connection.execute(UPSERT, values).fetchone()
    except sqlite3.OperationalError as error:
        raise StageFailure("STORE_UNAVAILABLE", str(error)) from error
    return {"date": fetched["date"], "writes": writes}


@handler("fx.publish")
def publish(ctx: StageContext) -> Any:
    """Sends the day with the stage's key: a repeat after an unknown answer is recognised there."""
    fetched = ctx.dependencies["fetch"]
    if fetched is None:
        return _nothing(ctx)
    day = {name: fetched[name] for name in ("date", "base", "rates")}
    ctx.raise_if_stopped()
    status, body = _ask("publish", "PUT", f"/published/{day['date']}", day, {"Idempotency-Key": ctx.idempotency_key})
    _raise_for(status, body)
    if body["replayed"]:
        ctx.log("info", "an earlier attempt had published this already", date=day["date"])
    return body


def _nothing(ctx: StageContext) -> dict[str, Any]:
    """The end of a stage on a day whose fetch was skipped."""
    ctx.log("info", "no fixing that day: nothing to do")
    return {"fixing": False}


def _ask(service: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    try:
        return ask(service, method, path, body, headers)
    except (OSError, HTTPException) as error:
        raise StageFailure("TRANSPORT_UNAVAILABLE", f"{service}: {type(error).__name__} {error}") from error


def _raise_for(status: int, body: Any) -> None:
    """Turns a refusal into the code that the retry options know."""
    if status < 300:
        return
    detail = f"{status} {body['code']}: {body['detail']}"
    if status == 429:
        raise StageFailure("RATE_LIMIT_EXCEEDED", detail)
    if status >= 500:
        raise StageFailure("UPSTREAM_ERROR", detail)
    raise StageFailure("INVALID_STATE" if status == 409 else "VALIDATION_ERROR", detail)


def _fault(currency: str, rate: Any) -> str | None:
    if len(currency) != 3 or not currency.isascii() or not currency.isupper():
        return f"{currency!r} is no currency code"
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
        return f"{currency} has the rate {rate!r}"
    return None
