"""The practice run of source 001 through the command line, with a server process: deny scope, fail an import, retry it
once, cancel another run. `recourse status` then explains each outcome to a viewer who was not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
STAGES = [
    {"stageName": "scope", "approval": {"when": "before", "approverRole": "approver"}},
    {"stageName": "correctness", "mode": "import"},
    {"stageName": "acceptance"},
]
HANDLERS = ["scope", "correctness", "acceptance"]


class Desk:
    """People at terminals, each with a token of their own, and the application with its worker."""

    def __init__(self, url: str, api_key: str, people: dict[str, Person]) -> None:
        self.url = url
        self.tokens = {role: one.token for role, one in people.items()}
        self.application = httpx.Client(base_url=url, headers={"X-API-Key": api_key}, timeout=60)
        told = {"workerName": "practice", "supportedHandlers": HANDLERS}
        session = self._ok(self.application.post("/workers/bootstrap", json=told))
        self.worker = {"X-Worker-Session": session["sessionToken"]}

    def close(self) -> None:
        self.application.close()

    def says(self, role: str, *words: str) -> tuple[int, str]:
        """What the command line ends with and says to this person."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RECOURSE_")}
        done = subprocess.run(
            [sys.executable, "-m", "recourse", *words],
            env=kept | {"RECOURSE_URL": self.url, "RECOURSE_TOKEN": self.tokens[role]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def start(self, name: str) -> str:
        stages = [{**stage, "stageHandlerName": stage["stageName"]} for stage in STAGES]
        body = {"idempotencyKey": name, "name": name, "stages": stages}
        run: str = self._ok(self.application.post("/pipelines/idempotent", json=body))["pipeline"]["id"]
        return run

    def decide(self, run: str, *words: str) -> None:
        """The gate of the run is decided by somebody who may."""
        _, listed = self.says("approver", "approval", "list", "--view", "mine", "--json")
        (gate,) = [one["id"] for one in json.loads(listed)["results"] if one["execution_id"] == run]
        code, told = self.says("approver", "approval", "decide", gate, *words)
        assert code == 0, told

    def work(self, stage: str) -> None:
        """The next job, which must be of this stage, succeeds."""
        pulled = self._ok(self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker))
        (job,) = pulled["jobs"]
        assert job["stageName"] == stage
        body = {"executionId": job["executionId"], "attempt": job["attempt"], "status": "succeeded", "output": stage}
        self._ok(self.application.post(f"/stages/{job['stageId']}/result", json=body, headers=self.worker))

    def nothing_to_do(self) -> bool:
        return self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker).status_code == 204

    @staticmethod
    def _ok(answer: httpx.Response) -> Any:
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture
def desk(api_key: str, people: dict[str, Person]) -> Iterator[Desk]:
    with web_server(url_of_test_database("practice")) as (url, _):
        told = Desk(url, api_key, people)
        yield told
        told.close()


def answer_to(request: Path, file: Path, **told: Any) -> str:
    """An answer file for a request file, as somebody elsewhere writes it."""
    digest = json.loads(request.read_text())["request_digest"]
    file.write_text(json.dumps({"request_digest": digest, "source": "the desk", **told}))
    return str(file)


def test_every_outcome_explains_itself_at_the_command_line(desk: Desk, tmp_path: Path) -> None:
    """R7, R8, R9, R12, R18, R20, R36, R37, R46, R47: denied, repaired, cancelled; nothing accepted by itself."""
    denied, repaired, cancelled = (desk.start(name) for name in ("denied", "repaired", "cancelled"))
    assert desk.nothing_to_do(), "no run begins before its scope is approved"
    request, again = tmp_path / "request.json", tmp_path / "again.json"

    desk.decide(denied, "--reject", "--reason", "two batches, not one")
    code, told = desk.says("operator", "retry", denied, "--stage", "scope", "--reason", "please")
    assert (code, "gate_denied" in told) == (2, True)
    assert desk.says("operator", "run", denied)[0] == 3

    desk.decide(repaired, "--approve")
    desk.work("scope")
    assert desk.says("operator", "export", repaired, "--stage", "correctness", "-o", str(request))[0] == 0
    failed = answer_to(
        request, tmp_path / "failed.json", status="failed", error_code="NO_PROOF", error_message="line 9"
    )
    code, told = desk.says("viewer", "import", repaired, "--stage", "correctness", failed)
    assert (code, "permission_denied" in told) == (2, True)
    code, told = desk.says("operator", "import", repaired, "--stage", "correctness", failed)
    assert (code, "correctness: failed; the run is failed" in told) == (0, True), told
    late = answer_to(request, tmp_path / "late.json", output={"lines": 9})
    retry = ("retry", repaired, "--stage", "correctness", "--reason", "line 9 is mended")
    assert desk.says("operator", *retry, "--by", "somebody-else")[0] == 2
    code, told = desk.says("operator", *retry, "--by", "operator-acme")
    assert (code, "epoch 2, waiting" in told) == (0, True), told
    code, told = desk.says("operator", "import", repaired, "--stage", "correctness", late)
    assert (code, "stale_request" in told) == (2, True), told
    assert desk.says("operator", "export", repaired, "--stage", "correctness", "-o", str(again))[0] == 0
    good = answer_to(again, tmp_path / "good.json", output={"lines": 9})
    code, told = desk.says("operator", "import", repaired, "--stage", "correctness", good, "--reason", "looked at")
    assert (code, "correctness: completed; the run is" in told) == (0, True), told
    desk.work("acceptance")
    assert desk.says("operator", "run", repaired)[0] == 0

    desk.decide(cancelled, "--approve")
    desk.work("scope")
    assert desk.says("operator", "export", cancelled, "--stage", "correctness", "-o", str(request))[0] == 0
    ends = ("cancel", cancelled, "--by", "operator-acme", "--reason", "the batch was withdrawn")
    code, told = desk.says("operator", *ends)
    assert (code, "which nothing here has stopped" in told, "requested elsewhere" in told) == (0, True, True), told
    after = answer_to(request, tmp_path / "after.json", output={"lines": 9})
    code, told = desk.says("operator", "import", cancelled, "--stage", "correctness", after)
    assert (code, "the run is cancelled" in told) == (2, True), told
    assert desk.nothing_to_do()

    explained(
        desk,
        denied,
        "the run failed with gate_denied: two batches, not one",
        "approver-acme rejected scope: two batches, not one",
        "that is final in this run",
        "correctness: pending: waits for scope, whose gate was rejected",
        f"next: nothing in this run; a new one asks anew: recourse execution rerun {denied}",
    )
    explained(
        desk,
        repaired,
        "the run completed at",
        "correctness failed with NO_PROOF, attempt 1: line 9",
        "operator-acme began correctness anew, epoch 2: line 9 is mended",
        "operator-acme imported the answer for correctness: it is completed, attempt 2",
        "correctness: completed in attempt 2",
        "attempts: 4 are used",
    )
    explained(
        desk,
        cancelled,
        "the run was cancelled at",
        "operator-acme cancelled the run: the batch was withdrawn",
        "correctness: cancelled in attempt 1: it was not completed",
        "An answer of operator-acme for correctness was refused, and is kept as evidence: the run is cancelled",
        "open: correctness: requested elsewhere",
        "settle it in the console",
    )
    assert "acceptance: completed" not in desk.says("viewer", "status", denied)[1]
    assert "acceptance: completed" not in desk.says("viewer", "status", cancelled)[1]
    assert_invariants()


def explained(desk: Desk, run: str, *sentences: str) -> None:
    """The status report, as a viewer reads it, has these sentences."""
    code, told = desk.says("viewer", "status", run)
    assert code == 0
    missing = [sentence for sentence in sentences if sentence not in told]
    assert not missing, told
