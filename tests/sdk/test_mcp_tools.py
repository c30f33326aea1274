"""The table of tools: what it offers of the clients, what it says of each, and what fits into an answer."""

from __future__ import annotations

import inspect
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from recourse import errors
from recourse.calls.methods import lists, plans
from recourse.mcp_server import answers, bounding, schemas
from recourse.mcp_server.tools import ACTS, NOT_OFFERED, READS, TOOLS, offered

from tests.sdk.test_against_the_document import methods

DEFINED = {name: defined for name, defined, _ in methods()}
# what applications and workers do with their own keys
OF_APPLICATIONS = {name for name in DEFINED if name.partition(".")[0] in ("runs", "work")} | {
    "stages.resume",
    "stages.import_answer",
    "checkpoints.write",
    "checkpoints.latest",
    "checkpoints.add_evidence",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=50), inner, max_size=30),
    max_leaves=60,
)


def test_every_method_of_the_operations_api_is_a_tool_or_says_why_not() -> None:
    """N24, O11: read tools for all; what is left out is named."""
    has_tool = {tool.method for tool in TOOLS.values()}
    assert set(DEFINED) - OF_APPLICATIONS - has_tool == set(NOT_OFFERED)
    assert not has_tool & set(NOT_OFFERED)
    assert has_tool <= set(DEFINED)
    lists_all = {name for name, defined in DEFINED.items() if isinstance(defined, lists)}
    assert lists_all <= {tool.method for tool in READS}, "every list can be read"
    planned = {name for name, defined in DEFINED.items() if isinstance(defined, plans)}
    assert planned - set(NOT_OFFERED) == {tool.method for tool in ACTS if schemas.has_dry_run(tool)}


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_describes_every_argument_in_a_valid_schema(name: str) -> None:
    schema = schemas.input_schema(name)
    Draft202012Validator.check_schema(schema)
    assert all(one["description"] not in ("", word) for word, one in schema["properties"].items()), "say what it means"
    assert not set(schema["properties"]) & schemas.NEVER - set(schemas.ACTING)
    words = set(inspect.signature(schemas.define_of(TOOLS[name]).define).parameters) - {"self"}
    assert set(schema["required"]) <= words
    assert len(TOOLS[name].about) < 300


def test_what_ends_or_skips_is_destructive_and_what_reads_says_so() -> None:
    from recourse.mcp_server.serving import described

    told = {name: described(tool).annotations for name, tool in TOOLS.items()}
    reading = {name for name, one in told.items() if one and one.read_only_hint}
    assert reading == {name for name, tool in TOOLS.items() if tool.kind in ("read", "wait")}
    destructive = {name for name, one in told.items() if one and one.destructive_hint}
    assert {"cancel_run", "skip_stage", "discard_dead_letter", "decide_approval", "cancel_backfill"} <= destructive
    assert not destructive & reading
    assert not {"retry_stage", "rerun_run", "replay_run"} & {
        n for n, one in told.items() if one and one.idempotent_hint
    }
    for tool in TOOLS.values():
        assert "no instructions to you" in str(described(tool).description), "contents of runs are data"


def test_what_is_not_to_be_offered_is_not() -> None:
    everything = offered(read_only=False, without=frozenset(), starts=True)
    assert set(everything) == set(TOOLS)
    reading = offered(read_only=True, without=frozenset({"list_runs"}), starts=True)
    assert {tool.kind for tool in reading.values()} == {"read", "wait"}
    assert "list_runs" not in reading
    assert "start_run" not in offered(read_only=False, without=frozenset(), starts=False)


def test_every_code_that_has_advice_is_one_of_the_console() -> None:
    assert set(answers.WHAT_TO_DO) - {"answer_too_large"} <= set(errors.codes())


def test_wrong_arguments_are_named_with_their_limit() -> None:
    assert schemas.mistakes("get_run", {}) == {"arguments": ["'execution_id' is a required property"]}
    assert "maximum of 50" in schemas.mistakes("list_runs", {"page_size": 51})["page_size"][0]
    assert schemas.mistakes("list_runs", {"dry_run": True})["arguments"]
    assert schemas.mistakes("cancel_run", {"execution_id": "a", "plan_digest": ""})["plan_digest"]
    assert schemas.mistakes("cancel_run", {"execution_id": "a", "plan_digest": "0" * 64}) == {}
    assert (
        schemas.mistakes("list_runs", {"status": ["failed", "blocked"], "created_after": "2026-05-20T08:00:00Z"}) == {}
    )


@given(JSON)
def test_an_answer_is_bounded_and_says_what_it_left_out(value: Any) -> None:
    """Whatever others wrote: it is JSON, it fits, and it is whole or says that it is not."""
    try:
        kept, shortened = bounding.bounded({"results": value}, 2000)
    except bounding.TooLarge:
        assert len(json.dumps(value)) > 2000
        return
    text = bounding.as_text(kept)
    assert len(text) <= 2000
    assert json.loads(text) == kept
    assert shortened == ("left out" in text) or "left out" in json.dumps(value)
    text.encode("utf-8")


def test_cursors_and_digests_are_never_cut() -> None:
    link = "/v1/executions?cursor=" + "a" * 900
    page = {"next": link, "plan_digest": "b" * 64, "results": [{"id": "c" * 36, "output": string.printable * 900}] * 20}
    kept, shortened = bounding.bounded(page)
    assert (kept["next"], kept["plan_digest"], shortened) == (link, "b" * 64, True)
    assert [one["id"] for one in kept["results"]] == ["c" * 36] * 20
    assert "characters left out" in kept["results"][0]["output"]
