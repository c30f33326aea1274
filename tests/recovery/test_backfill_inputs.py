"""Every tick of a backfill whose input the pipeline does not take is known beforehand, within a bound (R25, O51)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import releases, tick_inputs
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Application, Environment, Run, Trigger
from recovery import backfill_world, backfills
from recovery.models import Backfill, BackfillTick
from recovery.screens import backfill_lines
from tests.cast import Person
from tests.recovery.backfilled import trigger_of, wish

pytestmark = pytest.mark.django_db
Feed = Callable[..., Trigger]
WINDOW = ("2026-05-20T00:00:00Z", "2026-05-24T23:00:00Z")  # five ticks
NOT_ON_22 = {"type": "object", "properties": {"day": {"type": "string", "pattern": "^2026-05-(20|21|23|24)$"}}}


@pytest.fixture
def feed(people: dict[str, Person], environment: Environment, application: Application) -> Feed:
    """A trigger every morning with this input, of a pipeline with this schema."""

    def make(given: Any, schema: Any) -> Trigger:
        actor = people["release_manager"].actor
        trigger = trigger_of(actor, environment, application)
        trigger.input = given
        trigger.save(update_fields=["input"])
        definition = {
            "slug": trigger.pipeline.slug,
            "name": trigger.pipeline.name,
            "stages": [{"name": "only", "handler": "Handler"}],
            "input_schema": schema,
        }
        releases.register_release(
            actor=actor, pipeline=trigger.pipeline, environment=environment, definition=definition, activate=True
        )
        return trigger

    return make


def look(trigger: Trigger, actor: Actor, *window: str) -> dict[str, Any]:
    return backfills.preview(wish(trigger, *(window or WINDOW)), actor).answer()


def test_the_ticks_that_will_fail_are_named_and_the_others_go_on(feed: Feed, people: dict[str, Person]) -> None:
    trigger, operator = feed({"day": "{{local_date}}"}, NOT_ON_22), people["operator"].actor
    told = look(trigger, operator)
    assert (told["total_ticks"], told["unfit"], told["unfit_of"]) == (5, 1, 5)
    (one,) = told["unfit_ticks"]
    assert one["tick_time"] == "2026-05-22T08:00:00+00:00"
    assert one["message"].startswith("input.day: ")
    lines = [step.text for step in backfill_lines.deeds(told)]
    assert "1 tick fails: the schema of the pipeline does not take the input" in lines
    assert not Run.objects.exists()
    backfills.start(wish(trigger, *WINDOW), operator)
    assert list(BackfillTick.objects.filter(state="failed").values_list("at__day", flat=True)) == [22]
    assert Run.objects.count() == 4


@pytest.mark.parametrize("given", [{"day": "{{tick_time}}"}, {"day": "always this"}, {"day": 1}])
def test_a_backfill_of_which_no_tick_would_do_is_refused_with_the_path(
    feed: Feed, people: dict[str, Person], given: Any
) -> None:
    trigger = feed(given, NOT_ON_22)
    with pytest.raises(Refusal) as refused:
        look(trigger, people["operator"].actor)
    assert refused.value.errors.keys() == {"input.day"}
    assert not Backfill.objects.exists()


def test_an_input_that_is_the_same_for_every_tick_is_looked_at_once(
    feed: Feed, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = feed({"day": "2026-05-20"}, NOT_ON_22)
    told = look(trigger, people["operator"].actor)
    assert (told["unfit"], told["unfit_of"]) == (0, 1)


def test_of_very_many_so_many_are_looked_at_from_the_first_to_the_last(
    feed: Feed, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_world, "LOOKED_AT", 3)
    trigger = feed({"day": "{{local_date}}"}, NOT_ON_22)
    told = look(trigger, people["operator"].actor)
    assert (told["unfit"], told["unfit_of"]) == (1, 3), "the first, the one in the middle and the last"
    assert "1 tick of 3 that were looked at fails" in " ".join(step.text for step in backfill_lines.deeds(told))
    assert tick_inputs.varies({"a": [{"b": "{{ tick_time }}"}]})
    assert not tick_inputs.varies({"a": "{{tick_time", "{{tick_time}}": 1})


def test_a_schema_that_costs_much_is_asked_less_often(
    feed: Feed, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_world.input_schemas, "MOST_CHECKS", 45)
    told = look(feed({"day": "{{local_date}}"}, NOT_ON_22), people["operator"].actor)
    assert 1 <= told["unfit_of"] < 5
