"""How long to wait before the same thing is tried again."""

from __future__ import annotations

import random


class Unavailable(Exception):
    """No definite answer, or one that says "later": try the same again, at least after `wait` seconds."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


class Backoff:
    """Waits that double from `first` to `most` seconds, each shortened by up to half at random so that many do not come
    back at once. `reset` after a success.
    """

    def __init__(self, first: float = 0.2, most: float = 15.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    def next(self, at_least: float = 0.0) -> float:
        """The next wait; the server's Retry-After goes first when it asks for more."""
        wait = self._next * random.uniform(0.5, 1.0)  # noqa: S311
        self._next = min(self._most, self._next * 2)
        return max(wait, at_least)


def retry_after(text: str | None) -> float:
    """Seconds of a Retry-After header, 0 when there is none or it is a date; at most a minute."""
    try:
        return min(60.0, max(0.0, float(text))) if text else 0.0
    except ValueError:
        return 0.0
