"""How long a busy provider is waited for: whatever it says, and however often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse.adapters.waits import SPREAD, retry_after, wait_before

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@given(st.integers(0, 10**9))
def test_seconds_are_taken_as_they_are(seconds: int) -> None:
    """N7"""
    assert retry_after(f" {seconds} ", NOW) == seconds


@given(st.integers(-(10**8), 10**8))
def test_a_date_asks_for_the_time_until_then_and_one_that_is_past_for_none(seconds: int) -> None:
    """N7"""
    at = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(at, NOW) == max(0, seconds)


@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{1,9} [A-Z][a-z]{2} \d{1,9} \d{1,3}:\d\d:\d\d [+-]?\w{1,6}"))
def test_whatever_else_is_said_is_nothing_or_no_negative_time(text: str) -> None:
    found = retry_after(text, NOW)
    assert found is None or found >= 0


@pytest.mark.parametrize("text", [None, "", "soon", "-1", "1.5", "٣", "1e3", "Fri, 32 Jan 2031 00:00:00 GMT"])
def test_what_is_no_retry_after_is_none(text: str | None) -> None:
    assert retry_after(text, NOW) is None


@given(st.integers(1, 10_000), st.floats(0, 300), st.floats(0, 3600), st.none() | st.floats(0, 3600))
def test_waits_grow_to_a_bound_and_are_never_shorter_than_asked(
    retry: int, first: float, most: float, asked: float | None
) -> None:
    """N7: about 2, 4, 8 seconds with the defaults; the spread only adds, and is bounded."""
    wait = wait_before(retry, first, most, asked)
    assert wait >= min(most, first)
    assert wait >= (asked or 0)
    assert wait <= max(most, asked or 0) * (1 + SPREAD)


def test_the_defaults_are_about_two_four_and_eight_seconds() -> None:
    """N7"""
    for retry, least in ((1, 2.0), (2, 4.0), (3, 8.0)):
        assert least <= wait_before(retry, 2.0, 60.0) <= least * (1 + SPREAD)
