"""The drawing is true: bars lie on the axis in their order, marks are round, and the graph's lines are its edges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipelines.console import drawing
from pipelines.console.drawing import Axis, Knot, Try
from pipelines.states import AttemptState
from pipelines.templatetags import timeline

BEGUN = datetime(2026, 5, 30, 14, 29, 58, tzinfo=UTC)
SPANS = st.floats(min_value=0, max_value=40_000_000, allow_nan=False)


def after(seconds: float) -> datetime:
    return BEGUN + timedelta(seconds=seconds)


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """What each stage waits for; by position, so that each comes after it."""
    count = draw(st.integers(1, 14))
    return [draw(st.lists(st.integers(0, row - 1), unique=True, max_size=4)) if row else [] for row in range(count)]


@st.composite
def histories(draw: st.DrawFn) -> list[Try]:
    """Attempts of a stage, one after the other, the last perhaps running; numbers may be left out."""
    found: list[Try] = []
    number, at, epoch = 0, 0.0, 1
    for _ in range(draw(st.integers(0, 8))):
        number += draw(st.sampled_from([1, 1, 1, 5]))
        epoch += draw(st.sampled_from([0, 0, 1]))
        dispatched = at + draw(st.floats(0, 500))
        started = dispatched + draw(st.floats(0, 5))
        at = started + draw(st.floats(0, 900))
        told = (number, epoch, "failed", "w", after(dispatched), after(started), after(at), "X", draw(st.booleans()))
        found.append(Try(*told))
    if found and draw(st.booleans()):
        found[-1] = found[-1]._replace(state=AttemptState.RUNNING, finished_at=None, error_code="", retries=False)
    return found


def edges_drawn(knots: Sequence[Knot]) -> set[tuple[int, int]]:
    """Follows the lines from row to row: which earlier row's way comes in at which later one."""
    carried: dict[int, set[int]] = {}  # by lane: whose ways it carries at the top of the row
    found = set()
    for row, knot in enumerate(knots):
        for lane in knot.enters:
            found |= {(source, row) for source in carried[lane]}
        below = {lane: carried[lane] for lane in knot.passes}
        assert knot.lane not in below, "a dot never stands on a line that goes by"
        assert set(carried) == set(knot.passes) | set(knot.enters), "no line ends in nothing"
        if knot.leaves is not None:
            below[knot.leaves] = below.get(knot.leaves, set()) | {row}
        carried = below
    assert carried == {}, "no line goes on below the last row"
    return found


@given(graphs())
def test_the_lines_of_the_graph_are_its_edges_and_no_others(needs: list[list[int]]) -> None:
    knots = drawing.knots_of(needs)
    assert edges_drawn(knots) == {(other, row) for row, needed in enumerate(needs) for other in needed}


@given(graphs(), st.randoms(use_true_random=False))
def test_every_stage_comes_after_what_it_waits_for(needs: list[list[int]], random: object) -> None:
    order = list(range(len(needs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    place = {old: new for new, old in enumerate(order)}
    shuffled = [sorted(place[other] for other in needs[old]) for old in order]
    found = drawing.in_order(shuffled)
    assert sorted(found) == list(range(len(needs)))
    at = {position: index for index, position in enumerate(found)}
    assert all(at[other] < at[position] for position in found for other in shuffled[position])


def test_stages_one_after_another_take_one_lane_and_many_branches_take_few() -> None:
    chain = [[], *([row] for row in range(20))]
    assert drawing.lanes_of(drawing.knots_of(chain)) == 1
    fan = [[], *([0] for _ in range(98)), list(range(1, 99))]
    assert drawing.lanes_of(drawing.knots_of(fan)) == 3, "branches that meet in one stage share a lane"


@given(histories(), st.floats(0, 5_000))
def test_bars_lie_on_the_axis_in_their_order(tries: list[Try], more: float) -> None:
    last = max((one.finished_at or one.started_at or BEGUN for one in tries), default=BEGUN)
    now = last + timedelta(seconds=more)
    axis = drawing.axis_of(BEGUN, None, None, now)
    bars = drawing.bars_of(axis, tries, [], now, epoch=tries[-1].epoch if tries else 1)
    assert all(0 <= bar.x <= axis.span and bar.width >= 0 and bar.x + bar.width <= axis.span + 0.01 for bar in bars)
    assert [bar.x for bar in bars] == sorted(bar.x for bar in bars)
    whole = [bar for bar in bars if not bar.gap]
    assert len(whole) == len(tries), "each attempt is one bar"
    assert all(one.x + one.width <= other.x + 0.01 for one, other in pairwise(whole)), "attempts never overlap"
    assert sum(bar.grows for bar in bars) == sum(one.finished_at is None for one in tries)
    assert all(bar.faded == (one.epoch != tries[-1].epoch) for bar, one in zip(whole, tries, strict=True))


@given(SPANS)
def test_the_axis_of_a_live_run_reaches_beyond_now_and_not_far(elapsed: float) -> None:
    axis = drawing.axis_of(BEGUN, None, None, after(elapsed))
    assert axis.span >= max(elapsed, drawing.SHORTEST)
    assert axis.span <= max(elapsed * drawing.ROOM * drawing.GROWTH + 0.01, drawing.SHORTEST)


@given(SPANS)
def test_the_axis_of_an_ended_run_ends_with_it(elapsed: float) -> None:
    axis = drawing.axis_of(BEGUN, after(elapsed), None, after(elapsed + 99))
    assert axis.end == max(after(elapsed), BEGUN + timedelta(milliseconds=1))
    assert drawing.axis_of(BEGUN, BEGUN, after(elapsed), after(elapsed)).end >= after(elapsed)


@given(st.floats(min_value=0.05, max_value=40_000_000))
def test_marks_are_few_and_lie_on_the_axis(span: float) -> None:
    axis = Axis(BEGUN, after(span))
    marks = drawing.marks_of(axis)
    assert len(marks) <= 7
    assert all(0 <= mark.share <= 100 and 0 <= mark.x <= axis.span + 0.001 for mark in marks)
    days = [0]  # a date stands between times of day that are told alike
    for mark in marks:
        days.append(days[-1] + ("-" in mark.label))
    assert len({(day, mark.label) for day, mark in zip(days[1:], marks, strict=True)}) == len(marks)


def test_marks_are_round_times_of_day() -> None:
    assert [mark.label for mark in drawing.marks_of(Axis(BEGUN, after(1_200)))] == ["14:30", "14:35", "14:40", "14:45"]
    assert [mark.label for mark in drawing.marks_of(Axis(BEGUN, after(10)))][:2] == ["14:29:58", "14:30:00"]
    day = drawing.marks_of(Axis(BEGUN, after(86_400)))
    assert "05-31" in [mark.label for mark in day], "midnight is told by its date"


@given(st.floats(min_value=0.05, max_value=40_000_000))
def test_the_times_on_the_axis_never_run_into_one_another(span: float) -> None:
    """On the narrowest screen too, and none beyond the drawing; the marks themselves stay."""
    marks = drawing.marks_of(Axis(BEGUN, after(span)))
    ends = -1.0
    for text in timeline.labels(marks):
        (found,) = re.findall(r'class="(\w+)" x="([\d.]+)%" y="11">([^<]+)<', text)
        side, x, width = found[0], float(found[1]), len(found[2]) * 1.8
        begins = {"start": x, "middle": x - width / 2, "end": x - width}[side]
        assert begins > ends
        ends = begins + width
        assert begins >= -0.01
        assert ends <= 100.01
