"""The practice run of source 001, over HTTP with a server process: deny scope, fail and retry once, cancel another.

Each run has a gate at `scope`, the work at `correctness`, and ends in `acceptance`. What became of each must be told by
reading alone: whoever comes by later was not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
STAGES = [
    {"stageName": "scope", "approval": {"when": "after", "approverRole": "approver"}},
    {"stageName": "correctness", "effectMode": "external", "effectProtocol": "intent"},
    {"stageName": "acceptance"},
]
HANDLERS = [name.title() for name in ("scope", "correctness", "acceptance")]
IMPORT = {"class": "external_http", "stepId": "import", "idempotencyKey": "batch-7"}


class Practice:
    """People, the application and a worker, each with nothing but a credential and the server's address."""

    def __init__(self, url: str, api_key: str, tokens: dict[str, str]) -> None:
        self.application = httpx.Client(base_url=url, headers={"X-API-Key": api_key}, timeout=30)
        self.people = {
            role: httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
            for role, token in tokens.items()
        }
        told = {"workerName": "practice", "supportedHandlers": HANDLERS}
        session = self._ok(self.application.post("/workers/bootstrap", json=told))
        self.worker = {"X-Worker-Session": session["sessionToken"]}

    def close(self) -> None:
        for client in (self.application, *self.people.values()):
            client.close()

    def start(self, name: str) -> str:
        stages = [{**stage, "stageHandlerName": stage["stageName"].title()} for stage in STAGES]
        body = {"idempotencyKey": name, "name": name, "stages": stages}
        run: str = self._ok(self.application.post("/pipelines/idempotent", json=body))["pipeline"]["id"]
        self.work("scope", output={"scope": "one batch"})
        return run

    def work(self, stage: str, status: str = "succeeded", **told: Any) -> str:
        """The next job, which must be of this stage, ends like that; what the stage is then."""
        pulled = self._ok(self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker))
        (job,) = pulled["jobs"]
        assert job["stageName"] == stage
        body = {"executionId": job["executionId"], "attempt": job["attempt"], "status": status, **told}
        target = f"/stages/{job['stageId']}/result"
        became: str = self._ok(self.application.post(target, json=body, headers=self.worker))["stageStatus"]
        return became

    def nothing_to_do(self) -> bool:
        return self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker).status_code == 204

    def gate(self, run: str) -> str:
        """The id of the gate at which the run waits, as the inbox of who may decide it shows it."""
        mine = self.get("approver", "/v1/approvals?view=mine")["results"]
        (found,) = [one["id"] for one in mine if one["execution_id"] == run]
        gate: str = found
        return gate

    def decide(self, gate: str, role: str = "approver", **body: Any) -> httpx.Response:
        return self.people[role].post(f"/v1/approvals/{gate}/decision", json=body)

    def get(self, role: str, path: str) -> Any:
        return self._ok(self.people[role].get(path))

    def post(self, role: str, path: str, **body: Any) -> Any:
        return self._ok(self.people[role].post(path, json=body))

    def report(self, run: str) -> dict[str, Any]:
        """What a viewer who was not there reads about a run."""
        path = f"/v1/executions/{run}"
        stages = self.get("viewer", f"{path}/stages")["results"]
        timeline = self.get("viewer", f"{path}/timeline")["results"]
        seen = self.get("viewer", path)
        return {
            "status": seen["status"],
            "failure": seen["failure"] and (seen["failure"]["code"], seen["failure"]["message"]),
            "stages": {stage["name"]: stage["status"] for stage in stages},
            "blockers": [one["cause"] for one in self.get("viewer", f"{path}/blockers")["results"]],
            "told": [(one["kind"], one["actor"], one["reason"]) for one in timeline if one["actor"] and one["reason"]],
        }

    @staticmethod
    def _ok(answer: httpx.Response) -> Any:
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture
def practice(api_key: str, people: dict[str, Person]) -> Iterator[Practice]:
    with web_server(url_of_test_database("practice")) as (url, _):
        told = Practice(url, api_key, {role: one.token for role, one in people.items()})
        yield told
        told.close()


def test_every_outcome_of_the_practice_run_explains_itself(practice: Practice) -> None:
    """R12, R13, R46, R47, P74, P77–P82: denied, repaired once, cancelled; nothing was accepted by itself."""
    denied, repaired, cancelled = (practice.start(name) for name in ("denied", "repaired", "cancelled"))
    assert practice.nothing_to_do(), "no run goes past its scope by itself"

    gate = practice.gate(denied)
    assert practice.decide(gate, approved=False).json()["code"] == "validation_error"
    assert practice.decide(gate, approved=False, reason="two batches, not one").json()["stage_status"] == "failed"
    scope = practice.get("viewer", f"/v1/executions/{denied}/stages")["results"][0]["stage_id"]
    retried = practice.people["operator"].post(f"/v1/stages/{scope}/retry", json={"reason": "please"})
    assert (retried.status_code, retried.json()["code"]) == (409, "gate_denied")
    assert practice.decide(gate, "admin", approved=True).json()["code"] == "gate_decision_conflict"

    assert practice.decide(practice.gate(repaired), approved=True).json()["stage_status"] == "completed"
    assert practice.work("correctness", "failed", errorCode="VALIDATION_ERROR", errorMessage="line 9") == "failed"
    correctness = practice.get("viewer", f"/v1/executions/{repaired}/stages")["results"][1]["stage_id"]
    practice.post("operator", f"/v1/stages/{correctness}/retry", reason="line 9 is mended")
    assert practice.work("correctness", output={"lines": 9}) == "completed"
    assert practice.work("acceptance") == "completed"

    assert practice.decide(practice.gate(cancelled), approved=True).is_success
    doubtful = {"effects": [{**IMPORT, "state": "declared"}], "errorCode": "CONNECTION_LOST"}
    assert practice.work("correctness", "failed", **doubtful) == "needs_reconciliation"
    held = practice.report(cancelled)
    assert (held["status"], held["stages"]["correctness"]) == ("blocked", "needs_reconciliation")
    assert "external http import with key batch-7 is unknown" in held["blockers"][0]
    practice.post("operator", f"/v1/executions/{cancelled}/cancel", reason="the batch was withdrawn")
    assert practice.nothing_to_do()

    assert practice.report(denied) == {
        "status": "failed",
        "failure": ("gate_denied", "two batches, not one"),
        "stages": {"scope": "failed", "correctness": "pending", "acceptance": "pending"},
        "blockers": [
            "its gate was rejected; that is final in this run",
            "waits for scope, whose gate was rejected; that is final in this run",
            "waits for correctness, which is pending",
        ],
        "told": [
            ("gate.reject", "approver-acme", "two batches, not one"),
            ("stage.deny", "approver-acme", "two batches, not one"),
        ],
    }
    assert practice.report(repaired) == {
        "status": "completed",
        "failure": None,
        "stages": {"scope": "completed", "correctness": "completed", "acceptance": "completed"},
        "blockers": [],
        "told": [
            ("stage.fail", "practice", "VALIDATION_ERROR is always terminal: correct the input first"),
            ("dead_letter.open", "practice", "terminal_error"),
            ("stage.retry", "operator-acme", "line 9 is mended"),
            ("dead_letter.resolved", "operator-acme", "line 9 is mended"),
        ],
    }
    ended = practice.report(cancelled)
    assert (ended["status"], set(ended["stages"].values())) == ("cancelled", {"completed", "cancelled"})
    assert ("run.cancelled", "operator-acme", "the batch was withdrawn") in ended["told"]
    assert attempts_of(practice, repaired) == {"scope": 1, "correctness": 2, "acceptance": 1}
    assert attempts_of(practice, denied) == {"scope": 1, "correctness": 0, "acceptance": 0}
    assert_invariants()


def attempts_of(practice: Practice, run: str) -> dict[str, int]:
    return {one["name"]: one["attempt"] for one in practice.get("viewer", f"/v1/executions/{run}/stages")["results"]}
