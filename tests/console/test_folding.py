"""What is folded on the run page: every stage is in one row, in order, and what matters has a row of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipelines.console.folding import OPEN_OF_A_STRETCH, fold_rows, mood_of
from pipelines.states import StageState

STATES = st.lists(st.sampled_from(list(StageState)), min_size=1, max_size=80)


@given(STATES, st.data())
def test_every_stage_is_in_one_row_and_rows_keep_their_order(states: list[StageState], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.integers(0, len(states) - 1), max_size=3))
    rows = fold_rows(states, kept, 20)
    assert [index for row in rows for index in row] == list(range(len(states)))
    assert all(len({mood_of(states[index]) for index in row}) == 1 for row in rows)
    assert all((index,) in rows for index in kept)
    if len(states) <= 20:
        assert len(rows) == len(states)


def test_a_long_run_shows_what_needs_somebody_and_folds_the_rest() -> None:
    done, pending = StageState.COMPLETED, StageState.PENDING
    states = [*[done] * 60, StageState.FAILED, StageState.RUNNING, *[pending] * 38]
    rows = fold_rows(states, {60}, 40)
    assert [len(row) for row in rows] == [60, 1, 1, 38]
    states[5] = StageState.SKIPPED
    assert [len(row) for row in fold_rows(states, {60}, 40)] == [60, 1, 1, 38], "skipped is done too"


def test_of_many_failures_in_a_row_the_first_stay_open() -> None:
    rows = fold_rows([StageState.FAILED] * 100, {0}, 40)
    assert [len(row) for row in rows] == [1] * (1 + OPEN_OF_A_STRETCH) + [99 - OPEN_OF_A_STRETCH]
