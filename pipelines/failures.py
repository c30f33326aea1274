"""Runs that end `failed` because their stages did: told, in the transaction in which they do, to whoever asked for it.

Not told of: a deadline, a cancel, and any other end. A run that completes costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.moves import Moves, RunRow

Told = Callable[["Moves", Sequence["RunRow"]], None]

_told: list[Told] = []


def also(told: Told) -> None:
    """From now on `told` is called with the locked runs that have just failed; their rows are written, and events that
    it adds to the moves commit with them."""
    if told not in _told:
        _told.append(told)


def tell(moves: Moves, runs: Sequence[RunRow]) -> None:
    for told in _told:
        told(moves, runs)
