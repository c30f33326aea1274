"""Tables of many cells, held to in one test: what cells have in common is made once, and each that fails is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from django.db import transaction

Cell = TypeVar("Cell")


def in_each_cell(cells: Iterable[Cell], held: Callable[[Cell], None]) -> None:
    """Calls `held` with each cell, as the test of one would: what a cell wrote is undone before the next.

    Fails once all were looked at, with the name of each cell that did not hold and why; and when there are none.
    """
    wrong: list[str] = []
    looked_at = 0
    for cell in cells:
        looked_at += 1
        try:
            with transaction.atomic():
                held(cell)
                transaction.set_rollback(True)
        except Exception as error:  # noqa: BLE001  whatever it is, the other cells are looked at
            wrong.append(f"{cell}: {type(error).__name__}: {error}")
    if wrong:
        pytest.fail(f"{len(wrong)} of {looked_at} cells do not hold\n" + "\n".join(wrong), pytrace=False)
    assert looked_at, "a table without cells"
