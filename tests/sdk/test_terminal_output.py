"""What the command line shows, without a terminal: tables in any width, plain tables, times, counts, changes."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse.terminal.backfills import counts_of, sentence_of, span
from recourse.terminal.output import GAP, Column, as_cards, cell_width, fitting, plain_table, short_time
from recourse.terminal.parsing import moment, whole, wrapped
from recourse.terminal.watching import lines_of_change, most_telling

UUID = "0197f3a2-5c1e-7d55-8a44-6f1c2b9d7e10"
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60)
RANKS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(RANKS, st.integers(20, 200), st.data())
def test_columns_that_stay_fit_and_what_matters_least_went_first(ranks: list[int], width: int, data: Any) -> None:
    columns = [Column("id", "id", whole=True), *(Column(f"c{at}", f"c{at}", rank) for at, rank in enumerate(ranks))]
    cells = [[UUID, *(data.draw(TEXT) for _ in ranks)]]
    kept = fitting(columns, cells, width)
    if width < len(UUID) + GAP:
        assert kept is None
        return
    assert kept is not None
    assert kept[0] == 0, "identifiers stay"
    gone = {at for at in range(len(columns)) if at not in kept}
    assert all(columns[at].rank >= columns[stays].rank for at in gone for stays in kept)


@given(st.lists(st.lists(TEXT, min_size=3, max_size=3), min_size=1, max_size=4))
def test_in_a_pipe_columns_stand_below_each_other_and_nothing_is_lost(rows: list[list[str]]) -> None:
    lines = plain_table(["a", "b", "c"], rows)
    assert len(lines) == len(rows) + 1
    for row, line in zip(rows, lines[1:], strict=True):
        assert line == line.rstrip()
        assert all(cell.rstrip() in line for cell in row)
    starts = [cell_width(lines[0][: lines[0].index(name)]) for name in "abc"]
    assert starts == sorted(starts)


def test_where_nothing_fits_each_row_is_lines_of_its_own() -> None:
    columns = (Column("id", "id", whole=True), Column("name", "name"), Column("run id", "run", whole=True))
    lines = as_cards(columns, [[UUID, "a name that is far too long for this", UUID], [UUID, "-", "-"]], 30)
    assert lines == [
        UUID,
        "  name    a name that is far",
        "          too long for this",
        "  run id",
        f"    {UUID}",
        UUID,
    ]


def test_signs_of_two_cells_are_counted_as_such() -> None:
    assert (cell_width("abc"), cell_width("参照"), cell_width("é")) == (3, 4, 1)


@pytest.mark.parametrize(
    ("told", "shown"),
    [("2026-06-01T10:00:00+02:00", "2026-06-01 08:00:00Z"), ("never", "never"), (None, "")],
)
def test_times_are_told_in_utc_to_the_second(told: str | None, shown: str) -> None:
    assert short_time(told) == shown


def test_a_time_is_given_with_its_offset_or_as_so_long_ago() -> None:
    assert moment("2026-06-01T10:00:00+02:00") == "2026-06-01T10:00:00+02:00"
    before = datetime.now(UTC)
    found = datetime.fromisoformat(moment("90m"))
    assert before <= found + timedelta(minutes=90) <= datetime.now(UTC)
    for wrong in ("2026-06-01T10:00:00", "yesterday", "2h30m", "-2h", "999999w", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=r"no time with its offset|too long ago"):
            moment(wrong)


@given(st.text(max_size=10))
def test_a_number_is_whole_and_within_its_bounds(text: str) -> None:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 200:
        assert whole(1, 200)(text) == int(text)
        return
    with pytest.raises(argparse.ArgumentTypeError, match="from 1 to 200"):
        whole(1, 200)(text)


@given(st.lists(st.sampled_from(["word " * 7, "  recourse example --that-is-long-and-stays-whole", ""]), max_size=8))
def test_help_wraps_what_is_prose_and_leaves_what_is_copied(lines: list[str]) -> None:
    told = list(wrapped("\n".join(lines), 20))
    assert [line for line in told if line.startswith("  ")] == [line for line in lines if line.startswith("  ")]
    assert all(len(line) <= 20 for line in told if not line.startswith("  "))
    words = " ".join(line for line in told if not line.startswith("  ")).split()
    assert words == " ".join(line for line in lines if not line.startswith("  ")).split()


STAGE = {"stage_id": "s", "name": "fetch", "status": "ready", "attempt": 1, "error_code": None}
SEEN: dict[str, Any] = {
    "execution": {"status": "running", "updated_at": "2026-06-01T08:00:00+00:00"},
    "stages": [STAGE, {"stage_id": "t", "name": "store", "status": "pending", "attempt": 0}],
    "blockers": [],
}


def test_every_change_is_one_line_and_none_is_none() -> None:
    at = "2026-06-01 08:00:00Z"
    assert lines_of_change(None, SEEN) == [f"{at}  fetch: ready", f"{at}  the run: running"]
    assert lines_of_change(SEEN, SEEN) == []
    retried = STAGE | {"status": "retry_scheduled", "attempt": 2, "error_code": "AWAY"}
    waits = {"stage": "store", "cause": "a gate is open"}
    now = SEEN | {"stages": [retried, SEEN["stages"][1]], "blockers": [waits]}
    assert lines_of_change(SEEN, now) == [
        f"{at}  fetch: ready → retry scheduled, attempt 2, AWAY",
        f"{at}  store: a gate is open",
    ]
    ended = now | {"execution": SEEN["execution"] | {"status": "failed", "failure": {"code": "AWAY"}}}
    assert lines_of_change(now, ended) == [f"{at}  the run: running → failed, AWAY"]


@given(st.lists(st.sampled_from(["completed", "pending", "running", "failed"]), max_size=30), st.integers(3, 30))
def test_of_many_stages_those_are_shown_at_which_something_happens(statuses: list[str], room: int) -> None:
    stages = [{"name": f"{at}", "status": status} for at, status in enumerate(statuses)]
    shown, rest = most_telling(stages, room)
    assert len(shown) + bool(rest) <= max(room, len(shown) if len(stages) <= room else 0)
    assert [int(one["name"]) for one in shown] == sorted(int(one["name"]) for one in shown), "in their order"
    telling = [one for one in stages if one["status"] in ("running", "failed")]
    if len(telling) < room:
        assert all(one in shown for one in telling)
    left = sum(int(part.split()[0]) for part in rest.removeprefix("… and ").split(", ")) if rest else 0
    assert len(shown) + left == len(stages)


def test_how_far_a_backfill_is_stands_in_one_sentence() -> None:
    progress = {"ticks": {"pending": 2}, "runs": {"completed": 3, "failed": 1}, "active": 1, "held": 4}
    told = {"backfill_id": "b", "status": "running", "total_ticks": 12, "failed": 1, "skipped": 2}
    told |= {"progress": progress | {"eta_seconds": 4000}}
    counts = "3 completed, 1 active, 4 held, 2 to be made, 2 failed, 2 had a run, about 1 h 7 min left"
    assert counts_of(told) == counts
    assert sentence_of(told) == f"backfill b running: 5 of 12 ended, {counts}"
    assert [span(length) for length in (0, 89, 90, 3599, 3600, 86_400)] == [
        "0 s",
        "89 s",
        "2 min",
        "1 h 0 min",
        "1 h 0 min",
        "24 h 0 min",
    ]
