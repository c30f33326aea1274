"""`recourse start`: a run for a key, made or found again, and watched where that is wished."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdk.protocol_server import ProtocolServer, problem
from tests.sdk.test_every_command import ID, RUN, Say, say

__all__ = ["say"]
PATH = "/pipelines/idempotent"


def creation(*, found: bool = False, status: str = "queued") -> dict[str, Any]:
    return {"created": not found, "wasExisting": found, "pipeline": {"id": ID, "status": status}}


def test_the_run_is_made_once_for_its_key_and_told_by_its_id(server: ProtocolServer, say: Say, tmp_path: Any) -> None:
    """P27."""
    (tmp_path / "day.json").write_text('{"day": "2026-06-01"}')
    server.answers[PATH] = (201, creation())
    said = say("start", "fx-daily", "--key", "fx-1", "--input", "@day.json", "--environment", "production")
    assert (said.status, said.out, said.err) == (0, f"{ID}: created, queued\n", "")
    (body,) = server.bodies(PATH)
    assert body == {
        "idempotencyKey": "fx-1",
        "pipeline": "fx-daily",
        "input": {"day": "2026-06-01"},
        "environment": "production",
    }
    server.answers[PATH] = (200, creation(found=True, status="failed"))
    assert say("start", "fx-daily", "--key", "fx-1").out == f"{ID}: found again, failed\n"
    assert server.bodies(PATH)[1] == {"idempotencyKey": "fx-1", "pipeline": "fx-daily"}


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 3)])
def test_watching_tells_the_id_first_and_ends_as_the_run_does(
    server: ProtocolServer, say: Say, status: str, code: int
) -> None:
    server.answers |= {PATH: (201, creation()), f"/v1/executions/{ID}": (200, RUN | {"status": status})}
    words = ("start", "fx-daily", "--key", "fx-1", "--watch")
    said = say(*words)
    assert (said.status, said.out.splitlines()[0]) == (code, f"{ID}: created, queued")
    assert f"the run: {status}" in said.out
    told = say(*words, "--json")
    first, *rest = map(json.loads, told.out.splitlines())
    assert (told.status, first["pipeline"]["id"]) == (code, ID)
    assert [one["execution"]["status"] for one in rest] == [status]


@pytest.mark.parametrize("wrong", ["[1]", "nothing", "@nowhere.json", "4", "null"])
def test_an_input_that_is_no_object_is_refused_before_anything_is_sent(
    server: ProtocolServer, say: Say, wrong: str
) -> None:
    said = say("start", "fx-daily", "--key", "fx-1", "--input", wrong)
    assert (said.status, said.out, server.requests) == (2, "", [])
    assert "--input" in said.err


def test_without_the_application_s_key_nothing_is_sent(
    server: ProtocolServer, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECOURSE_API_KEY")
    said = say("start", "fx-daily", "--key", "fx-1")
    assert (said.status, said.out, server.requests) == (2, "", [])
    assert "RECOURSE_API_KEY" in said.err


def test_a_refusal_and_an_answer_that_never_came_end_by_the_table(server: ProtocolServer, say: Say) -> None:
    """P27: what helps after an unknown outcome is the same key."""
    server.answers[PATH] = problem(409, "idempotency_conflict", detail="the key stands for another intent")
    said = say("start", "fx-daily", "--key", "fx-1")
    assert (said.status, said.out) == (2, "")
    assert "idempotency_conflict: the key stands for another intent" in said.err
    server.answers.pop(PATH)
    server.fail("/idempotent", 503)
    said = say("start", "fx-daily", "--key", "fx-1")
    assert (said.status, said.out) == (5, "")
    assert "repeat with --key fx-1\n" in said.err
    assert "client-request-id" not in said.err
