"""Rows to be written, checked before anything is: how many, of one shape, each key once. Pure. Serves N12, N19, N26."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from recourse.adapters.base import INVALID, ROW_LIMIT, Op, Row, RowLimits, failure

NAMED = 5  # of what is wrong


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows of the same columns, in the order of the first."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def keys(self, key: Sequence[str]) -> list[tuple[Any, ...]]:
        return [tuple(row[column] for column in key) for row in self.rows]


def check(
    rows: Iterable[Row],
    op: Op,
    *,
    key: Sequence[str],
    limits: RowLimits,
    columns: Iterable[str] | None = None,
    before: int = 0,
) -> Checked:
    """The rows, if they may be written. `columns`: those of the target, where they are known; `before`: rows that this
    attempt has written there. Raises `StageFailure`, not retryable, that names what is wrong.
    """
    if op not in ("insert", "upsert"):
        raise failure(INVALID, f"op is insert or upsert, not {op!r}", False)
    if op == "upsert" and not key:
        raise failure(INVALID, "an upsert needs key columns: name them in the connector, as key = [...]", False)
    found = tuple(islice(_mappings(rows), limits.max_rows + 1))
    _count(found, limits, before)
    if not found:
        return Checked((), ())
    names = tuple(found[0])
    for at, row in enumerate(found):
        if row.keys() != found[0].keys():
            differ = _named(set(row) ^ set(names))
            raise failure(INVALID, f"rows[{at}] has other columns than rows[0]: {differ}", False)
    unknown = set(names) - set(columns) if columns is not None else ()
    if unknown:
        raise failure(INVALID, f"the target has no column {_named(unknown)}", False)
    if op == "upsert" and (missing := [column for column in key if column not in names]):
        raise failure(INVALID, f"the rows lack the key column {_named(missing)}", False)
    checked = Checked(names, found)
    if key and all(column in names for column in key):
        _each_once(checked, key)
    return checked


def chunks(rows: Sequence[Any], columns: int, most_rows: int, most_values: int) -> Iterator[Sequence[Any]]:
    """The rows in order, in parts that a statement can hold: by rows and by bound values, at least one each."""
    size = max(1, min(most_rows, most_values // max(1, columns)))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _mappings(rows: Iterable[Row]) -> Iterator[Row]:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise failure(INVALID, f"rows are a list of mappings, not {type(rows).__name__}", False)
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping) or not row or not all(isinstance(name, str) for name in row):
            raise failure(INVALID, f"rows[{at}] is no mapping of column names to values", False)
        yield row


def _count(found: Sequence[Row], limits: RowLimits, before: int) -> None:
    if len(found) > limits.max_rows:
        raise failure(ROW_LIMIT, f"more than {limits.max_rows} rows (max_rows); nothing was written", False)
    if len(found) < limits.min_rows:
        raise failure(ROW_LIMIT, f"{len(found)} rows, fewer than {limits.min_rows} (min_rows)", False)
    most = limits.max_rows_per_attempt
    if most is not None and before + len(found) > most:
        told = f"{before} rows were written by this attempt; {len(found)} more are beyond {most} (max_rows_per_attempt)"
        raise failure(ROW_LIMIT, told, False)


def _each_once(checked: Checked, key: Sequence[str]) -> None:
    seen: dict[Any, int] = {}
    for at, values in enumerate(checked.keys(key)):
        if any(value is None for value in values):
            raise failure(INVALID, f"rows[{at}] has no value for its key {', '.join(key)}", False)
        try:
            first = seen.setdefault(values, at)
        except TypeError:
            first = seen.setdefault(repr(values), at)
        if first != at:
            raise failure(INVALID, f"rows[{first}] and rows[{at}] have the same {', '.join(key)}: {values!r}", False)


def _named(names: Iterable[str]) -> str:
    told = sorted(map(repr, names))
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return ", ".join(told[:NAMED]) + more
