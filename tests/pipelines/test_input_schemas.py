"""Inputs are held to the schema of their pipeline, and neither schema nor input can make that cost without bound."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import Refusal
from pipelines.input_schemas import LARGEST, check, problem_of
from pipelines.models import Application, Release, Run, RunIdentity, Trigger
from tests.cast import Api, Person

DAY = {
    "type": "object",
    "required": ["day"],
    "additionalProperties": False,
    "properties": {
        "day": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        "rows": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/row"}},
    },
    "$defs": {"row": {"type": "integer", "minimum": 1}},
}


def refused(schema: Any, value: Any) -> dict[str, list[str]]:
    with pytest.raises(Refusal) as caught:
        check(schema, value)
    assert caught.value.code == "validation_error"
    return caught.value.errors


@pytest.mark.parametrize(
    ("schema", "path", "told"),
    [
        ([], "", "JSON object"),
        ({"type": "date"}, "type", "not valid"),
        ({"properties": {"a": {"minimum": "1"}}}, "properties.a.minimum", "number"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema", "2020-12"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "properties.a.$ref", "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "$ref", "nothing is fetched"),
        ({"$id": "https://example.com/", "type": "object"}, "$id", "refer by $ref"),
        ({"$ref": "#/$defs/none"}, "$ref", "is not in the schema"),
        ({"$ref": "#"}, "$ref", "refers to itself"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "$defs.a.anyOf[0].$ref", "refers to itself"),
        ({"properties": {"a": {"pattern": "(a+)+$"}}}, "properties.a.pattern", "repeats what itself repeats"),
        ({"pattern": "^(a|aa)*$"}, "pattern", "repeats a choice"),
        ({"pattern": r"(.)\1"}, "pattern", "refers back"),
        ({"pattern": "("}, "pattern", "is not taken"),
        ({"patternProperties": {"(x*)*": {}}}, "patternProperties", "repeats what itself repeats"),
        ({"description": "x" * LARGEST}, "", "at most 65536 bytes"),
    ],
)
def test_a_schema_that_cannot_be_taken_says_where_and_why(schema: Any, path: str, told: str) -> None:
    found = problem_of(schema)
    assert found is not None
    assert found[0] == path
    assert told in found[1]


def test_a_schema_that_doubles_with_every_reference_is_refused_and_not_walked() -> None:
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for number in range(1, 60):
        defs[f"d{number}"] = {"allOf": [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    begun = time.monotonic()
    found = problem_of({"$ref": "#/$defs/d59", "$defs": defs})
    assert found is not None
    assert "parts" in found[1] or "levels" in found[1]
    assert time.monotonic() - begun < 5


def test_a_schema_nested_beyond_measure_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(300):
        schema = {"not": schema}
    found = problem_of(schema)
    assert found is not None
    assert "nested" in found[1]


def test_every_problem_is_named_by_its_path_below_input() -> None:
    assert check(DAY, {"day": "2026-11-30", "rows": [1, 2]}) is None
    assert check(None, {"anything": 1}) is None
    assert list(refused(DAY, {})) == ["input"]
    assert list(refused(DAY, {"day": "soon"})) == ["input.day"]
    assert list(refused(DAY, {"day": "2026-11-30", "rows": [1, 0, "x"]})) == ["input.rows[1]", "input.rows[2]"]
    assert list(refused(DAY, {"day": "2026-11-30", "rows": [2, 2.0]})) == ["input.rows"]
    assert list(refused(DAY, {"day": "2026-11-30", "other": 1})) == ["input"]


def test_a_text_too_long_for_its_pattern_is_refused_at_once() -> None:
    slow = {"properties": {"a": {"pattern": "a*b*c*$"}}}
    assert problem_of(slow) is None
    begun = time.monotonic()
    assert "too long for its pattern" in refused(slow, {"a": "a" * 100_000})["input.a"][0]
    check(slow, {"a": "a" * 50})
    assert time.monotonic() - begun < 5


def test_a_large_input_is_not_judged_by_a_large_schema() -> None:
    schema = {"additionalProperties": {"items": {"anyOf": [{"const": number} for number in range(3_000)]}}}
    assert problem_of(schema) is None
    assert "too large to be checked" in refused(schema, {"a": list(range(20_000))})["input"][0]


@given(st.recursive(st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "$ref", "items", "pattern", "not", "enum", "x"]),
                                         inner, max_size=4), max_leaves=20))  # fmt: skip
def test_whatever_is_told_as_a_schema_is_refused_or_can_be_applied(schema: Any) -> None:
    if problem_of(schema) is None:
        for value in ({}, {"x": [1, "a", None]}):
            with suppress(Refusal):
                check(schema, value)


# over HTTP


@pytest.fixture
def manager(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["release_manager"])


def release(manager: Api, schema: Any) -> Any:
    manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"})
    definition = {"name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}], "input_schema": schema}
    body = {"pipeline": "nightly", "environment": "development", "definition": definition, "activate": True}
    return manager.post("/v1/releases", body)


def test_a_wrong_schema_is_no_release(manager: Api) -> None:
    """Refused when it is registered, with its path, as limits are (R25)."""
    answer = release(manager, {"properties": {"day": {"type": "date"}}})
    assert answer.status_code == 400, answer.content
    assert list(answer.json()["errors"]) == ["definition.input_schema.properties.day.type"]
    assert not Release.objects.filter(pipeline__isnull=False).exists()


def test_a_run_with_another_input_is_not_made_and_keeps_no_key(manager: Api, api: Api) -> None:
    assert release(manager, DAY).status_code == 201
    body = {"idempotencyKey": "k-1", "pipeline": "nightly", "input": {"day": "tomorrow"}}
    answer = api.post("/pipelines/idempotent", body)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["input.day"])
    assert not Run.objects.exists()
    assert not RunIdentity.objects.exists()
    assert api.post("/pipelines/idempotent", body | {"input": {"day": "2026-11-30"}}).status_code == 201


def test_a_trigger_whose_filled_input_does_not_fit_is_not_made(manager: Api, application: Application) -> None:
    assert release(manager, DAY).status_code == 201
    wanted = {
        "pipeline": "nightly",
        "environment": "development",
        "application": application.name,
        "cron": "0 8 * * *",
        "timezone": "Europe/Berlin",
    }
    answer = manager.post("/v1/triggers", wanted | {"input": {"day": "{{local_time}}"}})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["input.day"])
    assert not Trigger.objects.exists()
    answer = manager.post("/v1/triggers", wanted | {"input": {"day": "{{local_date}}"}})
    assert answer.status_code == 201, answer.content
    assert json.loads(answer.content)["input"] == {"day": "{{local_date}}"}
