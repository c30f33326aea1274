"""Runs that end `failed` because their stages did: told, in the transaction in which they do, to whoever asked for it;
and which of them are not final, because they will be retried by themselves.

Not told of: a deadline, a cancel, and any other end. A run that completes costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.moves import Moves, RunRow

Told = Callable[["Moves", Sequence["RunRow"]], None]

_told: list[Told] = []
_going_on: list[str] = []


def also(told: Told) -> None:
    """From now on `told` is called with the locked runs that have just failed; their rows are written, and events that
    it adds to the moves commit with them."""
    if told not in _told:
        _told.append(told)


def tell(moves: Moves, runs: Sequence[RunRow]) -> None:
    for told in _told:
        told(moves, runs)


def goes_on_while(condition: str) -> None:
    """For an app above this one: a run that failed goes on by itself while this SQL condition on its row `c` holds."""
    if condition not in _going_on:
        _going_on.append(condition)


def going_on() -> str:
    """Whether the run `c`, which has failed, goes on by itself; as an SQL condition."""
    return f"(c.status = 'failed' AND ({' OR '.join(_going_on)}))" if _going_on else "false"


def ended() -> str:
    """Whether the run `c` has ended and stays so unless somebody does something about it; as an SQL condition."""
    return f"(c.status IN ('completed', 'failed', 'cancelled') AND NOT {going_on()})"
