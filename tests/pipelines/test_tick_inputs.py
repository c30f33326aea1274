"""What a tick's run is given: the template, filled in alike for live ticks and backfills. Pure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from pipelines import tick_inputs
from pipelines.api.serializers import INPUT_BYTES
from pipelines.errors import Refusal
from pipelines.schedules import Due, Schedule

BERLIN = Schedule.read("15 16 * * mon-fri", "Europe/Berlin")


def due_at(text: str) -> tuple[Due, datetime]:
    """The tick at this instant, and the one before it."""
    at = datetime.fromisoformat(text)
    (due,) = BERLIN.between(at, at)
    return due, next(BERLIN.before(at)).at


def fill(template: dict[str, Any]) -> dict[str, Any]:
    due, previous = due_at("2026-03-30T14:15:00+00:00")  # a Monday, the first day of summer time that counts
    return tick_inputs.fill(template, due=due, previous=previous, trigger_name="fx-daily")


def test_every_name_is_filled_in_with_its_zone_and_offset() -> None:
    """F88, F105: the interval is between two ticks by the clock of the world, over a weekend and a change of clocks."""
    assert fill({name: f"{{{{{name}}}}}" for name in tick_inputs.NAMES}) == {
        "tick_time": "2026-03-30T14:15:00+00:00",
        "local_date": "2026-03-30",
        "local_time": "2026-03-30T16:15:00+02:00",
        "timezone": "Europe/Berlin",
        "interval_start": "2026-03-27T15:15:00+00:00",
        "interval_end": "2026-03-30T14:15:00+00:00",
        "trigger": "fx-daily",
    }


def test_texts_at_any_depth_are_filled_in_and_nothing_else_changes() -> None:
    template = {
        "{{trigger}}": 1,
        "deep": [{"day": "rates of {{local_date}}, by {{ trigger }}"}, 2.5, None, True, "{not} {{", "}}"],
    }
    assert fill(template) == {
        "{{trigger}}": 1,
        "deep": [{"day": "rates of 2026-03-30, by fx-daily"}, 2.5, None, True, "{not} {{", "}}"],
    }
    assert template["deep"][0] == {"day": "rates of {{local_date}}, by {{ trigger }}"}, "the template stays"  # type: ignore[index]


@pytest.mark.parametrize("text", ["{{" * 125_000, "{{ " * 80_000, "}}{" * 80_000, "{" * 250_000])
def test_what_is_left_open_costs_one_walk(text: str) -> None:
    """Whoever writes a template keeps no scheduler busy: it is filled in for every tick, beside those of all others."""
    began = time.process_time()
    tick_inputs.check({"a": text})
    assert fill({"a": text}) == {"a": text}
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{{{trigger}}", None),
        ("{{trigger}}}", "fx-daily}"),
        ("a{{trigger}}b{{trigger}}c{{", "afx-dailybfx-dailyc{{"),
        ("{{\ntrigger\n}}", "fx-daily"),
        ("}}{{trigger}}", "}}fx-daily"),
        ("{{}}", None),
    ],
)
def test_a_place_is_from_two_braces_to_the_next_two(text: str, filled: str | None) -> None:
    if filled is None:
        with pytest.raises(Refusal):
            tick_inputs.check({"a": text})
    else:
        assert fill({"a": text}) == {"a": filled}


def test_a_name_that_fills_in_another_is_not_filled_in_again() -> None:
    due, previous = due_at("2026-03-30T14:15:00+00:00")
    assert tick_inputs.fill({"a": "{{trigger}}"}, due=due, previous=previous, trigger_name="{{local_date}}") == {
        "a": "{{local_date}}"
    }


def test_the_first_tick_there_ever_was_has_an_empty_interval() -> None:
    due, _ = due_at("2026-03-30T14:15:00+00:00")
    told = tick_inputs.fill({"a": "{{interval_start}}"}, due=due, previous=None, trigger_name="x")
    assert told == {"a": "2026-03-30T14:15:00+00:00"}


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ({"a": "{{tick_tme}}"}, "{{tick_tme}} is not known"),
        ({"a": ["{{}}"]}, "{{}} is not known"),
        ({"a": {"b": "{{ds}} {{tick_time}}"}}, "{{ds}} is not known"),
        (["a"], "must be a JSON object"),
        ("{}", "must be a JSON object"),
        (None, "must be a JSON object"),
        ({"a": "\x00"}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a": 2**53}, "whole numbers beyond"),
        ({"a": "x" * INPUT_BYTES}, f"at most {INPUT_BYTES} bytes"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_when_it_is_written(template: Any, says: str) -> None:
    with pytest.raises(Refusal) as refused:
        tick_inputs.check(template)
    assert refused.value.code == "validation_error"
    assert list(refused.value.errors) == ["input"]
    assert says in refused.value.detail


def test_the_input_may_not_grow_beyond_its_limit_by_being_filled_in() -> None:
    """The longest filling counts, so no tick fails for it later."""
    room = INPUT_BYTES - len('{"a":""}') - len(tick_inputs.LONGEST_TIME)
    tick_inputs.check({"a": "{{local_time}}" + "x" * room})
    with pytest.raises(Refusal, match="once it is filled in"):
        tick_inputs.check({"a": "{{local_time}}" + "x" * (room + 1)})
    many = {"a": "{{trigger}}" * 2_000}
    tick_inputs.check(many, trigger_name="t")
    with pytest.raises(Refusal, match="once it is filled in"):
        tick_inputs.check(many, trigger_name="t" * 255)


def test_a_template_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Refusal, match="nested too deeply"):
        tick_inputs.check({"a": deep})


def test_a_run_is_found_by_its_tick_and_its_day() -> None:
    due, _ = due_at("2026-03-30T14:15:00+00:00")
    assert tick_inputs.keywords(due) == [
        {"key": "tick", "value": "2026-03-30T14:15:00+00:00"},
        {"key": "local_date", "value": "2026-03-30"},
    ]
    assert tick_inputs.instant_text(datetime(2026, 3, 30, tzinfo=UTC)) == "2026-03-30T00:00:00+00:00"
