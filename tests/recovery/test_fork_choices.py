"""Looking ahead at every start of a rerun: what waits for what is found in one pass, as it is found one by one."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from recovery.fork_choices import _behind, look_ahead
from recovery.fork_world import Shape


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Stages in any order, each waiting for some of those that a shuffle put before it."""
    count = draw(st.integers(1, 9))
    order = draw(st.permutations(range(count)))
    needs: dict[int, tuple[int, ...]] = {}
    for place, position in enumerate(order):
        chosen = draw(st.lists(st.sampled_from(order[:place]), unique=True, max_size=3)) if place else []
        needs[position] = tuple(sorted(chosen))
    stages = tuple({"name": f"s{number}"} for number in range(count))
    return Shape(uuid.uuid4(), stages, tuple(needs[number] for number in range(count)))


@given(shapes())
def test_what_waits_for_each_is_what_waits_for_it_asked_alone(shape: Shape) -> None:
    assert _behind(shape) == {name: shape.behind(name) for name in shape.names}


@given(shapes())
def test_what_is_before_a_stage_is_whatever_has_it_behind(shape: Shape) -> None:
    for name in shape.names:
        assert shape.before(name) == {other for other in shape.names if name in shape.behind(other)}
    assert shape.before("unknown") == set()


@given(shapes())
def test_of_every_start_as_much_is_kept_and_run_as_there_is(shape: Shape) -> None:
    """When all is done before, every stage is a start, and keeps all but itself and what is behind it (F36)."""
    for one in look_ahead(shape, shape, shape.names):
        assert not one.problem
        assert one.runs == len(shape.behind(one.stage)) + 1
        assert one.keeps + one.runs == len(shape.names)


def test_a_stage_that_the_release_lacks_is_no_start() -> None:
    was = Shape(uuid.uuid4(), ({"name": "load"}, {"name": "old"}), ((), (0,)))
    will_be = Shape(uuid.uuid4(), ({"name": "load"},), ((),))
    kept, gone = look_ahead(was, will_be, ["load"])
    assert (kept.keeps, kept.runs) == (0, 1)
    assert gone.problem == "not in the release that will run"
