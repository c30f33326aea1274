"""What two plans differ in: everything, and nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from approvals.plan_changes import changes

LINE = st.fixed_dictionaries({"stage": st.sampled_from("abc"), "to": st.sampled_from(["ready", "pending"])})
PLANS = st.fixed_dictionaries(
    {
        "kept": st.lists(LINE, max_size=3),
        "reasons": st.lists(st.text(max_size=2), max_size=2),
        "environment": st.text(),
    },
    optional={"disposition": st.sampled_from(["allowed", "denied"])},
)


def told(field: str, stage: str | None, before: Any, after: Any) -> dict[str, Any]:
    return {"field": field, "stage": stage, "before": before, "after": after}


def test_each_difference_is_a_line_and_a_stage_that_moved_is_one() -> None:
    before = {
        "kept": [{"stage": "a", "to": "completed"}, {"stage": "b", "to": "completed"}],
        "run_again": [{"stage": "c", "to": "ready"}],
        "environment": "staging",
        "plan_digest": "1",
    }
    after = {
        "kept": [{"stage": "a", "to": "completed"}, {"stage": "b", "to": "skipped"}],
        "run_again": [{"stage": "d", "to": "ready"}],
        "environment": "production",
        "plan_digest": "2",
    }
    assert changes(before, after) == [
        told("kept", "b", {"stage": "b", "to": "completed"}, {"stage": "b", "to": "skipped"}),
        told("run_again", "c", {"stage": "c", "to": "ready"}, None),
        told("run_again", "d", None, {"stage": "d", "to": "ready"}),
        told("environment", None, "staging", "production"),
    ]


def test_of_several_items_of_one_stage_none_is_taken_for_another() -> None:
    one, two, three = ({"stage": "a", "key": key} for key in "123")
    assert changes({"may_repeat": [one]}, {"may_repeat": [two, three]}) == [
        told("may_repeat", "a", one, None),
        told("may_repeat", "a", None, two),
        told("may_repeat", "a", None, three),
    ]


def test_a_field_that_only_one_of_them_has_is_a_difference() -> None:
    assert changes({}, {"ticks": 3}) == [told("ticks", None, None, 3)]
    assert changes({"ticks": 3}, {}) == [told("ticks", None, 3, None)]


@given(PLANS, PLANS)
def test_turned_round_it_tells_the_same_differences(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert changes(one, one) == []
    there, back = changes(one, other), changes(other, one)
    assert sorted((line["field"], repr(line["before"]), repr(line["after"])) for line in there) == sorted(
        (line["field"], repr(line["after"]), repr(line["before"])) for line in back
    )
    assert all(line["before"] != line["after"] for line in there)


@given(PLANS, PLANS)
def test_what_one_list_holds_and_the_other_does_not_is_told(one: dict[str, Any], other: dict[str, Any]) -> None:
    lines = [line for line in changes(one, other) if line["field"] == "kept"]
    assert [line["before"] for line in lines if line["before"]] == [x for x in one["kept"] if x not in other["kept"]]
    new = [line["after"] for line in lines if line["after"]]
    assert sorted(map(repr, new)) == sorted(repr(x) for x in other["kept"] if x not in one["kept"])
