"""What of a long page is folded into one row: stretches of stages, and attempts that ended alike. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import TypeVar

from pipelines.models import Attempt
from pipelines.states import StageState

WHOLLY = frozenset({StageState.COMPLETED, StageState.SKIPPED, StageState.PENDING, StageState.CANCELLED})
DONE = frozenset({StageState.COMPLETED, StageState.SKIPPED})
OPEN_OF_A_STRETCH = 10  # of many neighbours that are all at fault or under way, so many stay open
Tried = TypeVar("Tried", bound=Attempt)
LONGEST_ALIKE = 160  # characters of an error that are compared


def fold_rows(states: Sequence[str], kept: Collection[int], most: int) -> list[tuple[int, ...]]:
    """Rows of a run in order, each with the indexes that it stands for.

    Up to `most` each has its own row. Of more, neighbours that are done, or that only wait for others, are one row, and
    of others in one state the first ones stay; those at `kept` always have their own.
    """
    if len(states) <= most:
        return [(index,) for index in range(len(states))]
    found: list[tuple[int, ...]] = []
    for _, some in groupby(range(len(states)), lambda index: (index if index in kept else -1, mood_of(states[index]))):
        stretch = list(some)
        shown = 0 if states[stretch[0]] in WHOLLY else OPEN_OF_A_STRETCH
        if len(stretch) <= shown + 1:
            shown = len(stretch)
        found.extend((index,) for index in stretch[:shown])
        if stretch[shown:]:
            found.append(tuple(stretch[shown:]))
    return found


def mood_of(state: str) -> str:
    """What stages are told together by: their state, those that are done as one."""
    return str(StageState.COMPLETED) if state in DONE else state


def fold_attempts(attempts: Sequence[Tried]) -> list[list[Tried]]:
    """Attempts newest first, in groups of neighbours that failed with one error in one epoch."""

    def likeness(attempt: Tried) -> tuple[object, ...]:
        if not attempt.error_code and not attempt.cause:
            return (attempt.id,)
        told = attempt.error_message.strip()[:LONGEST_ALIKE]
        return attempt.epoch, attempt.state, attempt.error_code, told, attempt.cause

    return [list(some) for _, some in groupby(attempts, likeness)]
