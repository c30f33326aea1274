"""The examples of source document 000, run with the real curl against a started web server.

Only host and port, the key and ids differ from the document.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import httpx
import pytest

from pipelines.models import Run
from tests.cast import stages_of

CREATE = r"""
curl --fail-with-body -i http://localhost:8081/pipelines/idempotent \
  -H "X-API-Key: $PIPELOGIQ_API_KEY" \
  -H 'Content-Type: application/json' \
  --data-binary @- <<'JSON'
{
  "idempotencyKey": "invoice-42:validate:v1",
  "name": "validate-invoice",
  "stages": [
    { "stageName": "validate", "stageHandlerName": "ValidateInvoiceHandler", "input": "{\"invoiceId\":\"invoice-42\"}" }
  ]
}
JSON
"""
LOOK_UP = r"""
curl --fail-with-body http://localhost:8081/pipelines/by-idempotency-key \
  -H "X-API-Key: $PIPELOGIQ_API_KEY" \
  -H 'Content-Type: application/json' \
  -d '{"idempotencyKey":"invoice-42:validate:v1"}'
"""
RETRYING_STAGE = r"""
{
  "stageName": "send",
  "stageHandlerName": "SendInvoiceHandler",
  "options": {
    "maxRetries": 3,
    "retryInterval": 10,
    "retryOnErrorCodes": ["TIMEOUT", "UPSTREAM_ERROR", "RATE_LIMIT_EXCEEDED", "TRANSPORT_UNAVAILABLE"],
    "backoff": "exponential",
    "maxRetryInterval": 120,
    "jitter": true,
    "timeOut": 60
  }
}
"""
APPROVE = '{ "approved": true }'
REJECT = '{ "approved": false, "rejectionReason": "The requested operation was declined." }'

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


def shell(script: str, server: str, key: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script.replace("http://localhost:8081", server)],
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "PIPELOGIQ_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def status_and_body(answer: subprocess.CompletedProcess[str]) -> tuple[int, Any]:
    head, _, body = answer.stdout.partition("\n\n")
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def http_worker(http: httpx.Client, api_key: str) -> Any:
    """A custom HTTP worker that keeps to the document's six steps."""

    def call(path: str, body: dict[str, Any]) -> httpx.Response:
        return http.post(path, json=body, headers={"X-API-Key": api_key} | session)

    session: dict[str, str] = {}
    handlers = ["ValidateInvoiceHandler", "SendInvoiceHandler"]
    token = call("/workers/bootstrap", {"workerName": "w", "supportedHandlers": handlers}).json()["sessionToken"]
    session["X-Worker-Session"] = token
    return call


def test_the_first_call_creates_the_next_ones_find_and_another_intent_conflicts(server: str, api_key: str) -> None:
    """P7, P9–P12, P14–P16, P18–P20."""
    first, body = status_and_body(shell(CREATE, server, api_key))
    assert first == 201
    assert (body["created"], body["wasExisting"]) == (True, False)
    assert body["pipeline"]["stages"][0]["input"] == '{"invoiceId":"invoice-42"}'

    again, same = status_and_body(shell(CREATE, server, api_key))
    assert again == 200
    assert (same["created"], same["wasExisting"], same["pipeline"]["id"]) == (False, True, body["pipeline"]["id"])

    changed = shell(
        CREATE.replace(r"{\"invoiceId\":\"invoice-42\"}", r"{\"invoiceId\":\"invoice-43\"}"), server, api_key
    )
    assert changed.returncode == 22  # what --fail-with-body tells a script
    status, problem = status_and_body(changed)
    assert (status, problem["code"]) == (409, "idempotency_conflict")
    assert Run.objects.count() == 1


def test_a_missing_or_wrong_key_is_401(server: str, api_key: str) -> None:
    """P9."""
    for key in ("", "nonsense", api_key + "x"):
        status, problem = status_and_body(shell(CREATE, server, key))
        assert (status, problem["code"]) == (401, "unauthorized")
    assert not Run.objects.exists()


def test_the_same_key_is_looked_up_after_an_unknown_outcome(server: str, api_key: str, sibling_key: str) -> None:
    """P28, P29: unknown before, the run after, and nothing for another application."""
    before = shell(LOOK_UP, server, api_key)
    assert before.returncode == 22
    assert json.loads(before.stdout)["status"] == 404
    _, created = status_and_body(shell(CREATE, server, api_key))
    found = shell(LOOK_UP, server, api_key)
    assert found.returncode == 0
    assert json.loads(found.stdout)["id"] == created["pipeline"]["id"]
    assert json.loads(shell(LOOK_UP, server, sibling_key).stdout)["code"] == "not_found"


def test_the_document_s_retry_options_are_kept_and_echoed(http: httpx.Client, api_key: str) -> None:
    """P17, P34, P37."""
    stage = json.loads(RETRYING_STAGE)
    body = {"idempotencyKey": "send", "name": "send-invoice", "stages": [stage]}
    answer = http.post("/pipelines/idempotent", json=body, headers={"X-API-Key": api_key})
    assert answer.status_code == 201
    echoed = answer.json()["pipeline"]["stages"][0]["options"]
    assert {name: echoed[name] for name in stage["options"]} == stage["options"]


def test_a_custom_worker_follows_the_six_steps(http_worker: Any, server: str, api_key: str) -> None:
    """P48–P54."""
    _, created = status_and_body(shell(CREATE, server, api_key))
    (job,) = http_worker("/jobs/pull", {}).json()["jobs"]
    assert job["pipelineId"] == created["pipeline"]["id"]
    assert job["input"] == '{"invoiceId":"invoice-42"}'
    named = {"executionId": job["executionId"]}
    stage = f"/stages/{job['stageId']}"
    assert http_worker(f"{stage}/lease/acquire", named).json()["acquired"] is True
    assert http_worker(f"{stage}/lease/renew", named).json()["acquired"] is True
    result = named | {"attempt": job["attempt"], "status": "succeeded", "output": {"valid": True}}
    taken = http_worker(f"{stage}/result", result)
    assert (taken.status_code, taken.json()) == (202, {"accepted": True, "stageStatus": "completed"})
    acknowledged = http_worker("/jobs/ack", {"deliveryId": job["deliveryId"]})
    assert acknowledged.status_code == 200
    assert http_worker("/jobs/pull", {}).status_code == 204
    assert Run.objects.get().status == "completed"


@pytest.mark.parametrize(("decision", "state"), [(APPROVE, "completed"), (REJECT, "failed")])
def test_a_waiting_stage_is_decided_with_the_document_s_bodies(
    decision: str, state: str, http_worker: Any, server: str, api_key: str
) -> None:
    """P77–P82: parked without completing the run; decided once; the same again is accepted, another refused."""
    shell(CREATE, server, api_key)
    (job,) = http_worker("/jobs/pull", {"acquire": True}).json()["jobs"]
    result = {"executionId": job["executionId"], "attempt": job["attempt"], "status": "waiting", "output": {"ask": 1}}
    assert http_worker(f"/stages/{job['stageId']}/result", result).json()["stageStatus"] == "waiting"
    assert Run.objects.get().status == "waiting"

    decide = (
        f'curl --fail-with-body -s {server}/stages/{job["stageId"]}/resume -H "X-API-Key: $PIPELOGIQ_API_KEY"'
        " -H 'Content-Type: application/json' -d '{}'"
    )
    for _ in range(2):
        decided = shell(decide.replace("{}", decision), server, api_key)
        assert decided.returncode == 0, decided.stdout
        assert json.loads(decided.stdout)["status"] == state
    other = REJECT.replace("declined", "unclear") if decision == REJECT else REJECT
    refused = shell(decide.replace("{}", other), server, api_key)
    assert json.loads(refused.stdout)["code"] == "gate_decision_conflict"
    (stage,) = stages_of(Run.objects.get())
    assert stage.state == state
    assert stage.gates.get().decisions.count() == 1


def test_another_application_cannot_decide(http_worker: Any, server: str, api_key: str, sibling_key: str) -> None:
    """P78, I16."""
    shell(CREATE, server, api_key)
    (job,) = http_worker("/jobs/pull", {"acquire": True}).json()["jobs"]
    result = {"executionId": job["executionId"], "attempt": job["attempt"], "status": "waiting"}
    http_worker(f"/stages/{job['stageId']}/result", result)
    answer = httpx.post(
        f"{server}/stages/{job['stageId']}/resume", json={"approved": True}, headers={"X-API-Key": sibling_key}
    )
    assert answer.status_code == 404
    assert stages_of(Run.objects.get())[0].state == "waiting"
