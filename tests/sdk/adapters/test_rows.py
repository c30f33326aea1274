"""Rows are judged before anything is written, and cut into statements that a database takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse import StageFailure
from recourse.adapters.base import RowLimits
from recourse.adapters.rows import check, chunks

LIMITS = RowLimits(max_rows=3, min_rows=1, max_rows_per_attempt=5)
ROW = {"id": 1, "amount": 2}


@given(st.lists(st.integers(), max_size=300), st.integers(0, 50), st.integers(1, 100), st.integers(1, 400))
def test_chunks_are_all_rows_in_order_and_each_fits(
    rows: list[int], columns: int, most_rows: int, most_values: int
) -> None:
    parts = list(chunks(rows, columns, most_rows, most_values))
    assert [one for part in parts for one in part] == rows
    for part in parts:
        assert 1 <= len(part) <= most_rows
        assert len(part) * columns <= most_values or len(part) == 1


@pytest.mark.parametrize(
    ("rows", "op", "code", "named"),
    [
        ([ROW, {"id": 2}], "insert", "VALIDATION_ERROR", "rows[1] has other columns than rows[0]: 'amount'"),
        ([{"id": 1, "colour": 2}], "insert", "VALIDATION_ERROR", "no column 'colour'"),
        ([{"amount": 2}], "upsert", "VALIDATION_ERROR", "lack the key column 'id'"),
        ([ROW, {"id": 1, "amount": 3}], "upsert", "VALIDATION_ERROR", "rows[0] and rows[1] have the same id: (1,)"),
        ([ROW, {"id": 1, "amount": 3}], "insert", "VALIDATION_ERROR", "have the same id"),
        ([{"id": None, "amount": 1}], "upsert", "VALIDATION_ERROR", "rows[0] has no value for its key id"),
        ([{"id": [1], "amount": 1}] * 2, "upsert", "VALIDATION_ERROR", "have the same id"),
        ([ROW], "merge", "VALIDATION_ERROR", "op is insert or upsert"),
        (ROW, "insert", "VALIDATION_ERROR", "not dict"),
        ("rows", "insert", "VALIDATION_ERROR", "not str"),
        ([ROW, 7], "insert", "VALIDATION_ERROR", "rows[1] is no mapping"),
        ([{}], "insert", "VALIDATION_ERROR", "rows[0] is no mapping"),
        ([], "insert", "ROW_LIMIT_EXCEEDED", "fewer than 1 (min_rows)"),
        ([{"id": n, "amount": n} for n in range(4)], "upsert", "ROW_LIMIT_EXCEEDED", "more than 3 rows (max_rows)"),
    ],
)
def test_what_may_not_be_written_is_refused_by_name(rows: Any, op: Any, code: str, named: str) -> None:
    """N12, N26: for good, since the same rows will not do better."""
    with pytest.raises(StageFailure) as refused:
        check(rows, op, key=["id"], limits=LIMITS, columns=["id", "amount"])
    assert (refused.value.code, refused.value.retryable) == (code, False)
    assert named in refused.value.message


def test_both_sides_of_each_limit() -> None:
    """N26"""
    three = [{"id": n, "amount": n} for n in range(3)]
    assert check(three, "upsert", key=["id"], limits=LIMITS).columns == ("id", "amount")
    assert len(check(three, "upsert", key=["id"], limits=LIMITS, before=2).rows) == 3
    with pytest.raises(StageFailure, match=r"3 rows were written .* beyond 5 \(max_rows_per_attempt\)"):
        check(three, "upsert", key=["id"], limits=LIMITS, before=3)


def test_no_more_rows_are_taken_than_tell_that_there_are_too_many() -> None:
    """A generator without an end is refused, not awaited."""
    taken = []

    def endless() -> Any:
        while True:
            taken.append(1)
            yield {"id": len(taken)}

    with pytest.raises(StageFailure, match="ROW_LIMIT_EXCEEDED"):
        check(endless(), "insert", key=[], limits=LIMITS)
    assert len(taken) == 4


def test_an_upsert_without_key_columns_is_refused() -> None:
    with pytest.raises(StageFailure, match="needs key columns"):
        check([ROW], "upsert", key=[], limits=LIMITS)
