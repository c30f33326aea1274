"""The shape of a run: what is refused, and who waits for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.graph import GraphError, descendants, resolve_dependencies


def test_without_any_dependency_stages_run_one_after_another() -> None:
    assert resolve_dependencies(["a", "b", "c"], [None, None, None]) == [[], [0], [1]]
    assert resolve_dependencies(["a", "b"], [None, []]) == [[], [0]]


def test_with_a_dependency_anywhere_the_others_wait_for_nobody() -> None:
    assert resolve_dependencies(["a", "b", "c"], [None, None, ["a"]]) == [[], [], [0]]


def test_a_diamond_joins_on_both_branches() -> None:
    names = ["top", "left", "right", "bottom"]
    assert resolve_dependencies(names, [None, ["top"], ["top"], ["right", "left"]]) == [[], [0], [0], [1, 2]]


def test_a_stage_may_wait_for_one_that_is_listed_later() -> None:
    assert resolve_dependencies(["last", "first"], [["first"], None]) == [[1], []]


@pytest.mark.parametrize(
    ("names", "depends_on", "position", "field"),
    [
        (["a", "a"], [None, None], 1, "name"),
        (["a", "b"], [None, ["nobody"]], 1, "depends_on"),
        (["a", "b"], [None, ["b"]], 1, "depends_on"),
        (["a", "b"], [None, ["a", "a"]], 1, "depends_on"),
        (["a", "b"], [["b"], ["a"]], 1, "depends_on"),
        (["a", "b", "c", "d"], [None, ["d"], ["b"], ["c"]], 3, "depends_on"),
    ],
)
def test_what_cannot_run_is_refused_at_the_stage_and_field_at_fault(
    names: list[str], depends_on: list[list[str] | None], position: int, field: str
) -> None:
    with pytest.raises(GraphError) as refused:
        resolve_dependencies(names, depends_on)
    assert (refused.value.position, refused.value.field) == (position, field)


@st.composite
def shapes(draw: st.DrawFn) -> list[list[int]]:
    """Any graph, with circles or without; no stage waits for itself."""
    size = draw(st.integers(1, 8))
    others = [[other for other in range(size) if other != position] for position in range(size)]
    return [draw(st.lists(st.sampled_from(some), unique=True, max_size=3)) if some else [] for some in others]


@given(shapes())
def test_exactly_the_graphs_with_a_circle_are_refused(shape: list[list[int]]) -> None:
    names = [f"stage {position}" for position in range(len(shape))]
    wanted = [[names[position] for position in needed] for needed in shape]
    if not any(shape):
        assert resolve_dependencies(names, wanted) == [[n - 1] if n else [] for n in range(len(shape))]
    elif has_circle(shape):
        with pytest.raises(GraphError):
            resolve_dependencies(names, wanted)
    else:
        assert resolve_dependencies(names, wanted) == [sorted(needed) for needed in shape]


@given(shapes())
def test_descendants_are_whoever_can_be_reached(shape: list[list[int]]) -> None:
    edges = dict(enumerate(shape))
    for position in edges:
        found = descendants(position, edges)
        assert found == sorted(found)
        assert set(found) == reachable(position, shape) - {position}


def has_circle(shape: list[list[int]]) -> bool:
    return any(position in reachable(position, shape) for position in range(len(shape)))


def reachable(position: int, shape: list[list[int]]) -> set[int]:
    """The stages that wait for this one, directly or over others; itself only on a circle."""
    found: set[int] = set()
    border = {position}
    while border:
        border = {stage for stage, needed in enumerate(shape) if border & set(needed)} - found
        found |= border
    return found
