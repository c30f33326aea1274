"""A workspace as commands make it, and what its people and its application do in it through HTTP alone."""

from __future__ import annotations

import uuid
from io import StringIO
from typing import Any

from django.core.management import call_command

from tests.cast import Api, Worker
from tests.clock import Clock

OUTSIDE = {"effectMode": "external", "effectProtocol": "intent"}
CHARGE = {"class": "external_http", "stepId": "charge", "idempotencyKey": "invoice-42"}


class House:
    """A workspace with its people and one application, made by the commands that an administrator has."""

    def __init__(self, clock: Clock, environment: str = "development") -> None:
        self.clock = clock
        self.key = printed("issue_key", "--workspace", "acme", "--application", "billing", "--environment", environment)
        self.application = Api({"X-API-Key": self.key})
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        self._worker = self._worker or Worker(self.key, ["Handler"])
        return self._worker

    def a(self, role: str, name: str = "") -> Api:
        """Somebody of that role, as a client of the operations API."""
        user = name or role
        token = printed("issue_token", "--user", user, "--workspace", "acme", "--role", role)
        return Api({"Authorization": f"Bearer {token}"})

    def start(self, *stages: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A new run; the stages are called a, b, c …"""
        named = [
            {"stageName": name, "stageHandlerName": "Handler", **stage}
            for name, stage in zip("abcd", stages or ({},), strict=False)
        ]
        return self.create({"name": "nightly", "stages": named, **more})

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """A new run, as asked for; under a key of its own unless the body has one."""
        body = {"idempotencyKey": str(uuid.uuid4()), **body}
        answer = self.application.post("/pipelines/idempotent", body)
        assert answer.status_code == 201, answer.content
        self.newest: dict[str, Any] = answer.json()["pipeline"]
        return self.newest

    def end(self, status: str = "failed", **told: Any) -> dict[str, Any]:
        """The next stage of the newest run ends like that, whatever else waits to its success; its job."""
        while (job := self.worker.take())["pipelineId"] != self.newest["id"]:
            self.worker.report(job)
        code = {"errorCode": "BUSINESS_REJECTED"} if status == "failed" else {}
        answer = self.worker.report(job, status, **code, **told)
        assert answer.status_code == 202, answer.content
        return job

    def failed(self, *stages: dict[str, Any], **told: Any) -> str:
        """A run whose first stage has failed."""
        run_id: str = self.start(*stages)["id"]
        self.end(**told)
        return run_id

    def charged(self) -> str:
        """A failed run that has committed an effect, of which nothing is known but that."""
        return self.failed(OUTSIDE, effects=[{**CHARGE, "state": "committed"}])

    def effect(self, run_id: str) -> str:
        (effect,) = self.a("viewer").get(f"/v1/executions/{run_id}/effects").json()["results"]
        found: str = effect["id"]
        return found

    def at_a_gate(self, **more: Any) -> dict[str, Any]:
        """A run whose only stage waits for a decision; its stage."""
        approval = {"when": "after", **more}
        run = self.start({"approval": approval})
        self.end("waiting", output="draft")
        (stage,) = self.application.get(f"/pipelines/{run['id']}").json()["stages"]
        assert stage["status"] == "waiting"
        return {**stage, "runId": run["id"]}

    def decide(self, stage: dict[str, Any], *, approved: bool, reason: str | None = None) -> Any:
        return self.application.post(f"/stages/{stage['id']}/resume", {"approved": approved, "rejectionReason": reason})

    def rerun(self, run_id: str, role: str = "operator", **body: Any) -> Any:
        return self.a(role).post(f"/v1/executions/{run_id}/rerun", body)


def printed(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out, stderr=StringIO())
    return out.getvalue().strip()
