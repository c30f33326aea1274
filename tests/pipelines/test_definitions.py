"""What a pipeline definition may say, from JSON and from TOML."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.definitions import Definition, read_document, with_defaults
from pipelines.errors import Refusal

PLAIN: dict[str, Any] = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "h"}]}


def refused(document: Any) -> dict[str, list[str]]:
    with pytest.raises(Refusal) as caught:
        Definition.clean(document)
    assert caught.value.code == "validation_error"
    return caught.value.errors


def with_stage(**fields: Any) -> dict[str, Any]:
    return PLAIN | {"stages": [{"name": "a", "handler": "h", **fields}]}


def test_everything_left_out_is_filled_in() -> None:
    stage = with_defaults(Definition.clean(PLAIN))["stages"][0]
    assert stage == {
        "name": "a",
        "handler": "h",
        "needs": None,
        "input": None,
        "description": "",
        "run_next_if_failed": False,
        "effect_mode": "idempotent",
        "approval": None,
        "options": {"backoff": "fixed", "jitter": False, "max_recoveries": 3, "max_output_bytes": 262144},
    }


def test_json_and_toml_say_the_same() -> None:
    toml = b"""
        slug = "nightly"
        name = "Nightly"
        [[stages]]
        name = "a"
        handler = "h"
        input = { day = 3 }
        approval = { when = "after", expires_in = 60 }
        [stages.options]
        max_retries = 3
        retry_interval = 1.5
        retry_on_error_codes = ["TIMEOUT"]
    """
    json = b"""{"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "h", "input": {"day": 3},
        "approval": {"when": "after", "expires_in": 60},
        "options": {"max_retries": 3, "retry_interval": 1.5, "retry_on_error_codes": ["TIMEOUT"]}}]}"""
    read = [with_defaults(Definition.clean(read_document(raw, toml=raw is toml))) for raw in (toml, json)]
    assert read[0] == read[1]
    assert read[0]["stages"][0]["input"] == '{"day":3}'


def test_a_text_input_is_kept_byte_for_byte() -> None:
    """P16."""
    text = '{ "b": 1,\n "a": 2 }'
    assert Definition.clean(with_stage(input=text))["stages"][0]["input"] == text


def test_an_input_schema_is_kept_as_told_and_a_wrong_one_is_refused_with_its_path() -> None:
    schema = {"type": "object", "required": ["day"]}
    assert with_defaults(Definition.clean(PLAIN | {"input_schema": schema}))["input_schema"] == schema
    assert "input_schema" not in with_defaults(Definition.clean(PLAIN))
    wrong = {"properties": {"day": {"type": "date"}}}
    assert list(refused(PLAIN | {"input_schema": wrong})) == ["input_schema.properties.day.type"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"colour": "red"}, "stages[0].colour"),
        ({"name": " "}, "stages[0].name"),
        ({"name": "x" * 256}, "stages[0].name"),
        ({"handler": "x" * 301}, "stages[0].handler"),
        ({"handler": 7}, "stages[0].handler"),
        ({"input": "x" * (256 * 1024 + 1)}, "stages[0].input"),
        ({"input": "é" * (128 * 1024 + 1)}, "stages[0].input"),
        ({"input": 7}, "stages[0].input"),
        ({"input": {"n": 2**53}}, "stages[0].input"),
        ({"input": "a\x00b"}, "stages[0].input"),
        ({"needs": "a"}, "stages[0].needs"),
        ({"effect_mode": "outside"}, "stages[0].effect_mode"),
        ({"run_next_if_failed": 1}, "stages[0].run_next_if_failed"),
        ({"approval": {}}, "stages[0].approval.when"),
        ({"approval": {"when": "during"}}, "stages[0].approval.when"),
        ({"approval": {"when": "after", "expires_in": 0}}, "stages[0].approval.expires_in"),
        ({"approval": {"when": "after", "approver_role": "cfo"}}, "stages[0].approval.approver_role"),
        ({"approval": {"when": "after", "approverRole": "admin"}}, "stages[0].approval.approverRole"),
        ({"approval": {"when": "after", "count": 0}}, "stages[0].approval.count"),
        ({"approval": {"when": "after", "count": 21}}, "stages[0].approval.count"),
        ({"approval": {"when": "after", "require_person": "yes"}}, "stages[0].approval.require_person"),
        ({"options": {"max_retries": -1}}, "stages[0].options.max_retries"),
        ({"options": {"max_retries": True}}, "stages[0].options.max_retries"),
        ({"options": {"retry_interval": "10"}}, "stages[0].options.retry_interval"),
        ({"options": {"backoff": "random"}}, "stages[0].options.backoff"),
        ({"options": {"timeOut": 5}}, "stages[0].options.timeOut"),
        ({"options": {"max_output_bytes": 16 * 1024 * 1024 + 1}}, "stages[0].options.max_output_bytes"),
        ({"options": {"retry_on_error_codes": [""]}}, "stages[0].options.retry_on_error_codes[0]"),
    ],
)
def test_each_wrong_field_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    assert list(refused(with_stage(**fields))) == [path]


def test_what_a_gate_asks_for_is_kept_as_told_and_its_defaults_are_left_out() -> None:
    """The digest of a definition that does not name them stays what it was before there were any."""

    def kept(**asked: Any) -> Any:
        return with_defaults(Definition.clean(with_stage(approval={"when": "after", **asked})))["stages"][0]["approval"]

    assert kept() == kept(count=1, require_person=False) == {"when": "after"}
    asked = {"approver_role": "admin", "count": 2, "require_person": True, "expires_in": 60}
    assert kept(**asked) == {"when": "after", **asked}
    assert kept(approver_role="approver") == {"when": "after", "approver_role": "approver"}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], ""),
        ({}, "slug"),
        (PLAIN | {"slug": "not a slug"}, "slug"),
        (PLAIN | {"slug": "Ünï"}, "slug"),
        (PLAIN | {"name": None}, "name"),
        (PLAIN | {"stages": []}, "stages"),
        (PLAIN | {"stages": [{"name": str(n), "handler": "h"} for n in range(101)]}, "stages"),
        (PLAIN | {"stages": ["a"]}, "stages[0]"),
        (PLAIN | {"owner": "me"}, "owner"),
    ],
)
def test_the_document_as_a_whole_is_checked(document: Any, path: str) -> None:
    assert path in refused(document)


def test_both_sides_of_the_limit_on_stages() -> None:
    assert (
        len(Definition.clean(PLAIN | {"stages": [{"name": str(n), "handler": "h"} for n in range(100)]})["stages"])
        == 100
    )


@pytest.mark.parametrize(
    ("stages", "path"),
    [
        ([("a", None), ("a", None)], "stages[1].name"),
        ([("a", ["b"])], "stages[0].needs"),
        ([("a", ["a"])], "stages[0].needs"),
        ([("a", None), ("b", ["a", "a"])], "stages[1].needs"),
        ([("a", ["b"]), ("b", ["a"])], "stages[1].needs"),
    ],
)
def test_a_graph_that_cannot_run_names_the_stage_at_fault(stages: list[tuple[str, Any]], path: str) -> None:
    document = PLAIN | {"stages": [{"name": name, "handler": "h", "needs": needs} for name, needs in stages]}
    assert list(refused(document)) == [path]


@pytest.mark.parametrize(
    ("raw", "toml"),
    [
        (b"{", False),
        (b"\xff", False),
        (b'{"a": NaN}', False),
        (b"[" * 1000 + b"]" * 1000, False),
        (b"a = ", True),
        (b"\xff", True),
        (b"a = " + b"[" * 5000 + b"]" * 5000, True),
    ],
)
def test_a_file_that_cannot_be_read_is_a_refusal_not_a_fault(raw: bytes, toml: bool) -> None:
    with pytest.raises(Refusal) as caught:
        read_document(raw, toml=toml)
    assert caught.value.code == "validation_error"


def test_a_date_of_toml_is_no_json() -> None:
    document = read_document(b"slug='n'\nname='N'\n[[stages]]\nname='a'\nhandler='h'\ninput={at=2026-01-01}", toml=True)
    assert list(refused(document)) == ["stages[0].input"]
