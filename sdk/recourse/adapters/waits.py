"""How long one call waits before it asks a busy provider again. Pure. Serves N7."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

SPREAD = 0.25  # a wait is longer by up to this share, so that many do not come back at once; never shorter


def retry_after(text: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for, as seconds or as a date; None where it says neither."""
    told = (text or "").strip()
    if told.isascii() and told.isdigit():
        return float(told[:15])
    try:
        until = parsedate_to_datetime(told)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    try:
        return max(0.0, (until - now).total_seconds())
    except OverflowError:
        return None


def wait_before(retry: int, first: float, most: float, asked: float | None = None) -> float:
    """Seconds before the retry of that number, from 1: doubled from `first`, `most` at most, and spread; at least what
    the provider asked for, which the caller has held against its own cap.
    """
    grown = min(most, first * 2.0 ** (min(retry, 60) - 1))
    return max(grown, asked or 0.0) * (1 + SPREAD * random.random())  # noqa: S311
