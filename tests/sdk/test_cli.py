"""The command line for people: what it asks, what it says, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from recourse import cli, telling

from tests.sdk.protocol_server import TOKEN, ProtocolServer, problem

ID = "f7f0ad4c-0000-0000-0000-000000000001"
NEW = "f7f0ad4c-0000-0000-0000-000000000002"
KEY = "0b0b54d2-7c1c-4c5b-9f5b-111111111111"
FORK = {
    "execution_id": NEW,
    "original_execution_id": ID,
    "operation_id": KEY,
    "status": "dispatched",
    "disposition": "recovery_allowed",
    "replayed": False,
    "from_step_id": "classify_ticket",
    "environment": "production",
    "release_id": "r2",
    "release_changed": True,
}
PLAN = {
    "kind": "rerun",
    "execution_id": ID,
    "kept": [{"stage": "load_request", "was": "completed", "to": "completed", "why": "done in checkpoint 3"}],
    "run_again": [{"stage": "classify_ticket", "was": "failed", "to": "ready", "why": "named"}],
    "then": [],
    "added": ["notify"],
    "removed": [],
    "may_repeat": [
        {
            "stage": "classify_ticket",
            "class": "external_http",
            "state": "committed",
            "idempotency_key": "k",
            "step_id": "s",
        }
    ],
    "disposition": "operator_review_required",
    "reasons": [{"disposition": "operator_review_required", "code": "evidence_missing", "text": "no sealed evidence"}],
    "approvals": [{"roles": ["approver", "release_manager"], "count": 1, "why": "production is protected"}],
    "plan_digest": "d" * 64,
}


@dataclass
class Said:
    status: int
    out: str
    err: str


Say = Callable[..., Said]


@pytest.fixture
def say(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command line against the server, as somebody with a token."""
    monkeypatch.setenv("RECOURSE_URL", server.url)
    monkeypatch.setenv("RECOURSE_TOKEN", TOKEN)

    def run(*words: str) -> Said:
        try:
            status = cli.main([*words] if words[:1] == ("approval",) else ["execution", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return run


def answers(server: ProtocolServer, verb: str, status: int, body: dict[str, Any]) -> None:
    server.answers[f"/v1/executions/{ID}/{verb}"] = (status, body)


def sent(server: ProtocolServer, verb: str) -> dict[str, Any]:
    (body,) = server.bodies(f"/{verb}")
    return body


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_signal_is_one_line(server: ProtocolServer, say: Say, verb: str) -> None:
    """O11."""
    answers(server, verb, 200, {"execution_id": ID, "status": f"{verb}_signal_sent"})
    assert say(verb, ID, "--reason", "looking").out == f"{ID}: {verb} signal sent\n"
    body = sent(server, verb)
    assert (body["reason"], set(body)) == ("looking", {"reason", "client_request_id"})


def test_a_snapshot_prints_the_fields_of_the_route(server: ProtocolServer, say: Say) -> None:
    """O14."""
    snapshot = {name: f"value of {name}" for name in telling.SNAPSHOT}
    answers(server, "snapshot", 200, snapshot | {"pause_reason": None})
    told = dict(line.split(maxsplit=1) for line in say("snapshot", ID).out.splitlines())
    assert told == snapshot | {"pause_reason": "-"}
    assert json.loads(say("snapshot", ID, "--json").out) == snapshot | {"pause_reason": None}


def test_a_rerun_says_which_run_it_made(server: ProtocolServer, say: Say) -> None:
    """O17: the options are the fields of the body."""
    answers(server, "rerun", 201, FORK)
    said = say(
        "rerun",
        ID,
        "--from-step-id",
        "classify_ticket",
        "--environment",
        "production",
        "--plan-digest",
        "d" * 64,
        "--client-request-id",
        KEY,
    )
    assert said.status == 0
    assert said.out.startswith(f"{NEW}: new run\n")
    assert "the release differs" in said.out
    assert sent(server, "rerun") == {
        "from_step_id": "classify_ticket",
        "environment": "production",
        "plan_digest": "d" * 64,
        "client_request_id": KEY,
    }


def test_a_dry_run_shows_the_plan(server: ProtocolServer, say: Say) -> None:
    answers(server, "replay", 200, PLAN)
    said = say("replay", ID, "--freeze-release", "--dry-run")
    assert said.status == 0
    assert sent(server, "replay") == {"freeze_release": True, "dry_run": True}
    for word in ("classify_ticket", "done in checkpoint 3", "notify", "key k", "no sealed evidence", "d" * 64):
        assert word in said.out
    assert "removed" not in said.out


def test_what_a_blackout_holds_back_says_so_and_starts_with_a_reason(server: ProtocolServer, say: Say) -> None:
    holds = {"name": "the move", "is_freeze": True, "until": None}
    answers(server, "replay", 200, PLAN | {"blackout": holds})
    said = say("replay", ID, "--dry-run")
    assert "held back by the freeze the move, with no end in sight" in said.out
    answers(server, "replay", *problem(409, "blackout_active", blackout=holds))
    said = say("replay", ID)
    assert said.status == 2
    assert "--override-reason" in said.err
    answers(server, "replay", 201, FORK)
    assert say("replay", ID, "--override-reason", "it cannot wait").status == 0
    assert server.bodies("/replay")[-1]["override_reason"] == "it cannot wait"


def test_waiting_for_somebody_is_an_end_of_its_own(server: ProtocolServer, say: Say) -> None:
    answers(server, "rerun", 202, FORK | {"status": "awaiting_approval", "execution_id": None})
    said = say("rerun", ID)
    assert said.status == 4
    assert f"operation {KEY} waits" in said.out
    refusal = problem(409, "operator_review_required", operation_id=KEY, reasons=PLAN["reasons"])
    answers(server, "rerun", *refusal)
    said = say("rerun", ID)
    assert (said.status, said.out) == (4, "")
    assert "no sealed evidence" in said.err
    assert KEY in said.err


def test_a_refusal_says_what_to_do_and_changes_nothing(server: ProtocolServer, say: Say) -> None:
    answers(server, "rerun", *problem(409, "plan_changed", plan=PLAN))
    said = say("rerun", ID, "--plan-digest", "e" * 64)
    assert (said.status, said.out) == (2, "")
    assert "d" * 64 in said.err
    assert "--dry-run" in said.err
    answers(server, "pause", *problem(400, "validation_error", errors={"reason": ["must be a string"]}))
    assert "  reason: must be a string" in say("pause", ID).err


def test_without_a_definite_answer_it_says_how_to_repeat(server: ProtocolServer, say: Say) -> None:
    server.fail("/cancel", 503)
    said = say("cancel", ID, "--client-request-id", KEY)
    assert said.status == 5
    assert KEY in said.err


def test_cancel_lists_what_may_still_go_on_outside(server: ProtocolServer, say: Say) -> None:
    outside = [{"stage_id": "s1", "kind": "effect_open", "detail": "the call may have arrived"}]
    answers(server, "cancel", 200, {"execution_id": ID, "status": "cancelled", "reconciliation": outside})
    assert "the call may have arrived" in say("cancel", ID).out


def test_wrong_options_and_a_missing_token_are_refused_before_anything_is_sent(
    server: ProtocolServer, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert say("snapshot").status == 2
    assert say("explode", ID).status == 2
    monkeypatch.delenv("RECOURSE_TOKEN")
    monkeypatch.delenv("RECOURSE_API_KEY", raising=False)
    for verb in ("pause", "snapshot"):
        said = say(verb, ID)
        assert (said.status, server.requests) == (2, [])
        assert "RECOURSE_TOKEN" in said.err


def test_an_address_without_its_scheme_is_a_wrong_option_and_no_lost_answer(say: Say) -> None:
    said = say("snapshot", ID, "--url", "localhost:8000")
    assert said.status == 2
    assert "such as http://localhost:8000" in said.err


def test_a_console_that_is_not_there_is_named_and_the_same_is_said_once(server: ProtocolServer, say: Say) -> None:
    said = say("snapshot", ID, "--url", "http://127.0.0.1:1")
    assert said.status == 5
    assert "http://127.0.0.1:1/v1/executions" in said.err
    assert "Is the console there?" in said.err
    unknown = problem(422, "environment_unknown", detail="no such", errors={"environment": ["no such"]})
    answers(server, "rerun", *unknown)
    assert say("rerun", ID, "--environment", "prod").err.count("no such") == 1


# approvals

GATE = {
    "id": ID,
    "type": "gate",
    "kind": "gate",
    "state": "open",
    "stage": "scope",
    "execution_name": "nightly",
    "environment": "production",
    "requested_by": "ada",
    "reason": "",
    "have": 1,
    "need": 2,
    "expires_at": "2026-06-01T08:00:00+00:00",
    "may_decide": True,
    "why_not": None,
}
OWN = GATE | {
    "id": NEW,
    "type": "operation",
    "kind": "rerun",
    "stage": None,
    "reason": "the table is back\n\x1b[1Ayours",
    "expires_at": None,
    "may_decide": False,
    "why_not": {"code": "self_approval", "detail": "who asked for it does not decide it"},
}
DECIDED = {"id": ID, "type": "gate", "status": "open", "state": "open", "have": 1, "need": 2, "stage_id": "s1"}


def test_the_inbox_is_two_lines_a_thing_and_why_it_was_asked_for(server: ProtocolServer, say: Say) -> None:
    """P84: what it is, who asked, how many agreed, until when, and whether it is yours to decide.

    What others wrote makes no line of its own and moves no cursor.
    """
    page = {"next": f"{server.url}/v1/approvals?cursor=abc", "previous": None, "results": [GATE, OWN]}
    server.answers["/v1/approvals"] = (200, page)
    said = say("approval", "list", "--view", "mine", "--type", "gate")
    assert said.status == 0
    assert said.out.splitlines() == [
        f"{ID}  open: gate at scope of nightly in production",
        "  asked for by ada; 1 of 2 agreed; expires 2026-06-01 08:00:00 UTC; you may decide it",
        f"{NEW}  open: rerun of nightly in production",
        "  asked for by ada; 1 of 2 agreed; not yours: who asked for it does not decide it",
        "  because: the table is back  [1Ayours",
        f"more: --next '{page['next']}'",
    ]
    assert sorted(server.requests[-1][0].partition("?")[2].split("&")) == ["type=gate", "view=mine"]
    assert json.loads(say("approval", "list", "--json").out) == page
    server.answers["/v1/approvals"] = (200, {"next": None, "previous": None, "results": []})
    assert say("approval", "list", "--next", page["next"]).out == "nothing\n"
    assert server.requests[-1][0] == "/v1/approvals?cursor=abc"


def test_a_decision_says_where_it_leads(server: ProtocolServer, say: Say) -> None:
    """What needs more people ends as what waits does; what went on says as which run."""
    path = f"/v1/approvals/{ID}/decision"
    server.answers[path] = (200, DECIDED | {"stage_status": "waiting"})
    said = say("approval", "decide", ID, "--approve")
    assert (said.status, said.out) == (4, f"{ID}: open\n1 of 2 agreed\nstage s1: waiting\n")
    server.answers[path] = (200, DECIDED | {"status": "dispatched", "state": "approved", "target_execution_id": NEW})
    said = say("approval", "decide", ID, "--approve", "--plan-digest", "d" * 64, "--client-request-id", KEY)
    assert (said.status, said.out) == (0, f"{ID}: dispatched\n{NEW}: new run\n")
    assert server.bodies("/decision")[-1] == {"approved": True, "plan_digest": "d" * 64, "client_request_id": KEY}
    server.answers[path] = (200, DECIDED | {"status": "denied", "state": "rejected"})
    assert say("approval", "decide", ID, "--reject", "--reason", "not today").status == 0
    body = server.bodies("/decision")[-1]
    assert (body["approved"], body["reason"]) == (False, "not today")


def test_a_decision_can_be_looked_at_first(server: ProtocolServer, say: Say) -> None:
    path = f"/v1/approvals/{ID}/decision"
    server.answers[path] = (200, PLAN)
    assert "d" * 64 in say("approval", "decide", ID, "--approve", "--dry-run").out
    assert server.bodies("/decision") == [{"approved": True, "dry_run": True}]
    server.answers[path] = (200, GATE | {"approved": True, "stage_status": "ready", "have": 2})
    said = say("approval", "decide", ID, "--approve", "--dry-run")
    assert (said.status, said.out) == (0, "approving makes scope ready; nothing was changed\n2 of 2 agreed\n")


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "self_approval", "somebody else must look at it"),
        (409, "approval_stale", "ask for it anew"),
        (409, "plan_changed", "look at the new plan"),
        (409, "gate_decision_conflict", "a decision is final"),
    ],
)
def test_a_decision_that_is_refused_says_what_to_do(
    server: ProtocolServer, say: Say, status: int, code: str, hint: str
) -> None:
    server.answers[f"/v1/approvals/{ID}/decision"] = problem(status, code, plan=PLAN)
    said = say("approval", "decide", ID, "--approve")
    assert (said.status, said.out) == (2, "")
    assert code in said.err
    assert hint in said.err


def test_what_one_asked_for_is_taken_back(server: ProtocolServer, say: Say) -> None:
    server.answers[f"/v1/approvals/{ID}/withdraw"] = (200, DECIDED | {"status": "withdrawn", "state": "withdrawn"})
    said = say("approval", "withdraw", ID, "--reason", "not needed")
    assert (said.status, said.out) == (0, f"{ID}: withdrawn\n")
    (body,) = server.bodies("/withdraw")
    assert body["reason"] == "not needed"


def test_a_decision_is_never_guessed(server: ProtocolServer, say: Say) -> None:
    """F135: neither answer, or both, is a wrong option, and nothing is sent."""
    for words in ((), ("--approve", "--reject"), ("--approve", "maybe")):
        assert say("approval", "decide", ID, *words).status == 2
    assert say("approval", "list", "--view", "everything").status == 2
    assert server.requests == []


def test_it_runs_as_a_module_and_documents_its_ends() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "recourse", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for word in ("exit status", "RECOURSE_TOKEN", "RECOURSE_URL", "execution"):
        assert word in told
