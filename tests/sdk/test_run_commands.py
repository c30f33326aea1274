"""`recourse status`, `retry`, `run`, `cancel`, `export`, `import`: what they ask, what they say, and how they end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recourse import cli

from tests.sdk.protocol_server import TOKEN, ProtocolServer, problem
from tests.sdk.test_cli import Said

ID = "f7f0ad4c-0000-0000-0000-000000000001"
STAGE = "f7f0ad4c-0000-0000-0000-000000000003"
Say = Callable[..., Said]


def account(**told: Any) -> dict[str, Any]:
    stage = {
        "stage_id": STAGE,
        "name": "correctness",
        "status": "failed",
        "standing": "failed with NO_PROOF in attempt 1: line 9",
        "request_digest": None,
        "story": ["2026-06-01 08:00:00 UTC  correctness failed with NO_PROOF: line 9"],
        "uncertain": ["nobody knows whether it did external http import outside"],
        "next": [f"recourse retry {ID} --stage correctness"],
    }
    return {
        "execution_id": ID,
        "name": "my-run",
        "environment": "development",
        "status": "failed",
        "is_paused": False,
        "asked_by": "ada",
        "standing": "the run failed with NO_PROOF",
        "story": [],
        "stages": [stage],
        "remains": ["open: correctness: requested elsewhere"],
        "budget": ["attempts: 1 of 3 are used"],
        "next": [],
        "shortened": False,
        **told,
    }


@pytest.fixture
def say(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command line against the server, as somebody with a token and without a terminal."""
    monkeypatch.setenv("RECOURSE_URL", server.url)
    monkeypatch.setenv("RECOURSE_TOKEN", TOKEN)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    server.answers[f"/v1/executions/{ID}/account"] = (200, account())

    def run(*words: str) -> Said:
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return run


def test_status_explains_every_stage(say: Say) -> None:
    """R46: in one request, and as it came with --json."""
    said = say("status", ID)
    assert said.status == 0
    for words in ("failed with NO_PROOF", "line 9", "uncertain: nobody knows", "requested elsewhere", "1 of 3"):
        assert words in said.out
    assert json.loads(say("status", ID, "--json").out) == account()


def test_retry_shows_its_plan_and_carries_out_that_one(server: ProtocolServer, say: Say) -> None:
    """R12."""
    plan = {"kind": "retry", "execution_id": ID, "plan_digest": "d" * 64, "disposition": "recovery_allowed"}
    done = {"status": "succeeded", "stage_status": "ready", "epoch": 2, "operation_id": ID}
    server.answers[f"/v1/stages/{STAGE}/retry"] = (200, plan | done)
    said = say("retry", ID, "--stage", "correctness", "--by", "ada")
    assert (said.status, said.err) == (0, "")
    assert "plan of retry" in said.out
    assert "correctness: epoch 2, ready" in said.out
    asked, carried_out = server.bodies("/retry")
    assert (asked["dry_run"], carried_out["plan_digest"]) == (True, "d" * 64)


@pytest.mark.parametrize("command", [("retry", "--stage", "correctness"), ("cancel",), ("run",)])
def test_nobody_acts_in_another_s_name(server: ProtocolServer, say: Say, command: tuple[str, ...]) -> None:
    """R4: --by must name who the token belongs to; nothing is asked of the console otherwise."""
    said = say(command[0], ID, *command[1:], "--by", "grace")
    assert said.status == 2
    assert "impersonation_rejected" in said.err
    assert not server.bodies("/retry")
    assert not server.bodies("/cancel")
    assert not server.bodies("/resume")


def test_a_stage_that_is_not_there_is_refused_with_those_that_are(say: Say) -> None:
    said = say("retry", ID, "--stage", "scope")
    assert (said.status, "it has: correctness" in said.err) == (2, True)


def test_a_refusal_says_what_to_do(server: ProtocolServer, say: Say) -> None:
    server.answers[f"/v1/stages/{STAGE}/retry"] = problem(409, "gate_denied")
    said = say("retry", ID, "--stage", "correctness")
    assert said.status == 2
    assert "because of gate_denied" in said.err
    assert "final in its run" in said.err


@pytest.mark.parametrize(
    ("told", "expected"),
    [({"status": "failed"}, 3), ({"status": "blocked"}, 3), ({"status": "running"}, 0), ({"status": "completed"}, 0)],
)
def test_run_says_why_it_stands_still(server: ProtocolServer, say: Say, told: dict[str, Any], expected: int) -> None:
    server.answers[f"/v1/executions/{ID}/account"] = (200, account(**told))
    said = say("run", ID)
    assert said.status == expected
    assert "failed with NO_PROOF in attempt 1" in said.out
    assert f"next: recourse retry {ID} --stage correctness" in said.out
    assert not server.bodies("/resume")


def test_a_run_that_waits_for_a_timer_goes_on_by_itself(server: ProtocolServer, say: Say) -> None:
    for following, expected in (["approval list"], 3), ([], 0):
        stage = account()["stages"][0] | {"status": "waiting", "next": following}
        server.answers[f"/v1/executions/{ID}/account"] = (200, account(status="waiting", stages=[stage]))
        assert say("run", ID).status == expected


def test_run_resumes_what_is_paused(server: ProtocolServer, say: Say) -> None:
    server.answers[f"/v1/executions/{ID}/account"] = (200, account(status="paused", is_paused=True))
    server.answers[f"/v1/executions/{ID}/resume"] = (200, {"execution_id": ID, "status": "resume_signal_sent"})
    assert f"{ID}: resumed" in say("run", ID, "--reason", "the audit is over").out
    (body,) = server.bodies("/resume")
    assert body["reason"] == "the audit is over"


def test_cancel_lists_what_remains_and_claims_nothing(server: ProtocolServer, say: Say) -> None:
    """R37, R38."""
    item = {"stage_id": STAGE, "attempt": 1, "kind": "awaited_import", "detail": "correctness: requested elsewhere"}
    server.answers[f"/v1/executions/{ID}/cancel"] = (200, {"status": "cancelled", "reconciliation": [item]})
    said = say("cancel", ID, "--by", "ada", "--reason", "withdrawn")
    assert said.status == 0
    assert "may still go on outside, which nothing here has stopped" in said.out
    assert "correctness: requested elsewhere" in said.out


def test_a_request_goes_into_a_file(server: ProtocolServer, say: Say, tmp_path: Path) -> None:
    request = {"stage": "correctness", "attempt": 1, "request_digest": "a" * 64, "answer_by": None}
    server.answers[f"/v1/stages/{STAGE}/import-request"] = (200, request)
    assert json.loads(say("export", ID, "--stage", "correctness").out) == request
    said = say("export", ID, "--stage", "correctness", "-o", str(tmp_path / "request.json"))
    assert json.loads((tmp_path / "request.json").read_text()) == request
    assert "a" * 64 in said.out
    assert say("export", ID, "--stage", "correctness", "-o", str(tmp_path)).status == 2


def test_an_answer_comes_from_a_file(server: ProtocolServer, say: Say, tmp_path: Path) -> None:
    led = {"stage_status": "completed", "execution_status": "running", "plan_digest": "d" * 64, "replayed": False}
    server.answers[f"/v1/stages/{STAGE}/import"] = (200, led)
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"request_digest": "a" * 64, "output": {"score": 1}}))
    said = say("import", ID, "--stage", "correctness", str(file), "--yes")
    assert said.status == 0
    assert "correctness: completed; the run is running" in said.out
    looked, taken = server.bodies("/import")
    assert looked["dry_run"] is True
    assert (taken["request_digest"], taken["output"], taken["plan_digest"]) == ("a" * 64, {"score": 1}, "d" * 64)


def test_an_answer_that_is_refused_is_handed_in_all_the_same(server: ProtocolServer, say: Say, tmp_path: Path) -> None:
    """R36: a look leaves nothing behind, and what is refused is to be kept as evidence."""
    server.answers[f"/v1/stages/{STAGE}/import"] = problem(409, "stale_request")
    (tmp_path / "answer.json").write_text(json.dumps({"request_digest": "a" * 64}))
    said = say("import", ID, "--stage", "correctness", str(tmp_path / "answer.json"))
    assert (said.status, "because of stale_request" in said.err) == (2, True)
    assert ["dry_run" in body for body in server.bodies("/import")] == [True, False]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xef\xbb\xbf{}",
        b'{"output": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"output": 1e999}',
        b'{"output": "\\ud800"}',
        b"\xff",
        b"[" * 200_000,
    ],
)
def test_a_file_that_is_no_answer_goes_nowhere(server: ProtocolServer, say: Say, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "answer.json").write_bytes(raw)
    said = say("import", ID, "--stage", "correctness", str(tmp_path / "answer.json"))
    assert said.status == 2
    assert "is no answer" in said.err
    assert not server.bodies("/import")


def test_a_file_that_is_not_there_is_told(say: Say, tmp_path: Path) -> None:
    said = say("import", ID, "--stage", "correctness", str(tmp_path / "none.json"))
    assert (said.status, "cannot be read" in said.err) == (2, True)
