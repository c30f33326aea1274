"""Two JSON values beside each other: what differs comes first, nothing is lost, nothing is made up."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipelines.console.differences import compare

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('ab.["0'), max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def told(before: Any, after: Any) -> list[tuple[str, str]]:
    return [(change.path, change.kind) for change in compare(before, after)]


def test_what_differs_comes_first_with_what_it_was_and_is() -> None:
    before = {"status": "running", "same": 1, "gone": True, "state": {"rows": [1, 2]}}
    after = {"status": "paused", "same": 1, "state": {"rows": [1, 3, 4]}}
    assert told(before, after) == [
        ("status", "changed"),
        ("gone", "removed"),
        ("state.rows[1]", "changed"),
        ("state.rows[2]", "added"),
        ("same", "same"),
        ("state.rows[0]", "same"),
    ]
    status = compare(before, after)[0]
    assert (status.before, status.after) == ('"running"', '"paused"')


def test_a_stage_is_found_by_its_name_and_not_by_its_place() -> None:
    before = {"done": [{"stage": "load", "output": "a"}]}
    after = {"done": [{"stage": "extract", "output": "z"}, {"stage": "load", "output": "a"}]}
    assert told(before, after) == [
        ("done[extract].stage", "added"),
        ("done[extract].output", "added"),
        ("done[load].stage", "same"),
        ("done[load].output", "same"),
    ]


def test_an_empty_object_is_something_and_nothing_is_not() -> None:
    assert told({"state": {}}, {"state": None}) == [("state", "changed")]
    assert told({}, {"state": None}) == [("", "removed"), ("state", "added")]


def test_what_is_nested_beyond_reason_is_compared_whole() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert [change.kind for change in compare(deep, deep)] == ["same"]
    assert [change.kind for change in compare(deep, 1)] == ["removed", "added"]


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert {change.kind for change in compare(value, json.loads(json.dumps(value)))} == {"same"}


@given(JSON, JSON)
def test_two_values_look_alike_only_when_they_are(one: Any, other: Any) -> None:
    alike = all(change.kind == "same" for change in compare(one, other))
    assert alike or json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


@given(JSON, JSON)
def test_looking_the_other_way_round_turns_every_change_about(one: Any, other: Any) -> None:
    turned = {"added": "removed", "removed": "added", "changed": "changed", "same": "same"}
    there = {(change.path, change.kind) for change in compare(one, other)}
    back = {(change.path, turned[change.kind]) for change in compare(other, one)}
    assert there == back
