"""A small server that speaks the worker's and the client's part of the contract, fenced like the real one, in memory.

It exists for what the real server cannot be made to do on demand: break off, hang, answer 503, forget a session.
Its clock runs with real time and can be moved forward.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API_KEY = "key-of-billing"
TOKEN = "token-of-dana"


@dataclass
class Attempt:
    id: str
    number: int
    session: str
    ends_at: float
    state: str = "running"
    digest: str = ""


@dataclass
class Stage:
    id: str
    handler: str
    input: str | None
    effect_mode: str
    state: str = "ready"
    attempts: list[Attempt] = field(default_factory=list)
    output: Any = None
    result: dict[str, Any] | None = None
    pausing: bool = False
    recoveries: int = 0
    timeout: float | None = None
    effects: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: dict[str, Any] | None = None


@dataclass
class Fault:
    """`how`: a status to answer, `cut` the connection unheard, `cut_after` having acted, `hang` until healed."""

    path: str
    how: int | str
    left: float
    body: dict[str, Any] | None = None


class ProtocolServer:
    def __init__(self, lease_seconds: float = 60.0, renew_seconds: float | None = None) -> None:
        self.lease_seconds = lease_seconds
        self.renew_seconds = renew_seconds or lease_seconds / 3
        self.changed = threading.Condition()
        self.stages: dict[str, Stage] = {}
        self.sessions: dict[str, str] = {}
        self.registrations: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.late: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.progress: list[dict[str, Any]] = []
        self.commands: list[dict[str, Any]] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.in_transit: list[Callable[[bytes], bytes]] = []  # what becomes of the next bytes that are sent
        self.refuse_results: Callable[[dict[str, Any]], str | None] = lambda item: None
        self.freeze_leases = False
        self.deny_acquisition = False
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        self.ends_polls = False
        self.open_polls = 0
        self._faults: list[Fault] = []
        self._healed = threading.Event()
        self._shift = 0.0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_class(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    # What tests do to it.

    def add_stage(
        self,
        handler: str,
        input: str | None = None,  # noqa: A002
        effect_mode: str = "idempotent",
        timeout: float | None = None,
    ) -> Stage:
        with self.changed:
            stage = Stage(str(uuid.uuid4()), handler, input, effect_mode, timeout=timeout)
            self.stages[stage.id] = stage
            self.changed.notify_all()
        return stage

    def fail(self, path: str, how: int | str, times: float = float("inf"), body: dict[str, Any] | None = None) -> None:
        """The next `times` requests whose path ends with `path` ("" is every path) go wrong in this way."""
        with self.changed:
            self._healed.clear()
            self._faults.append(Fault(path, how, times, body))

    def heal(self) -> None:
        with self.changed:
            self._faults.clear()
            self._healed.set()

    def skip(self, seconds: float) -> None:
        """Moves the server's clock forward."""
        with self.changed:
            self._shift += seconds
            self._sweep()
            self.changed.notify_all()

    def forget_sessions(self) -> None:
        with self.changed:
            self.sessions.clear()

    def end_polls(self) -> None:
        """Ends the polls of a process that was killed, which would be handed jobs otherwise."""
        with self.changed:
            self.ends_polls = True
            self.changed.wait_for(lambda: self.open_polls == 0, 10)
            self.ends_polls = False

    def count(self, path: str) -> int:
        return Counter(path.rsplit("/", 1)[-1] for path, _ in list(self.requests))[path]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for at, body in list(self.requests) if at.endswith(path)]

    def now(self) -> float:
        return time.time() + self._shift

    def close(self) -> None:
        self.heal()
        self._http.shutdown()
        self._http.server_close()

    # The protocol.

    def answer(self, path: str, body: dict[str, Any], headers: Any) -> tuple[int, dict[str, Any] | None]:
        with self.changed:
            self.requests.append((path, body))
            if path.partition("?")[0] in self.answers:
                return self.answers[path.partition("?")[0]]
            if headers.get("X-API-Key") != API_KEY:
                return problem(401, "unauthorized")
            if path == "/workers/bootstrap":
                return self._bootstrap(body)
            if path.startswith("/pipelines"):
                return self._pipelines(path, body)
            session = headers.get("X-Worker-Session")
            if session not in self.sessions:
                return problem(401, "unauthorized")
            self._sweep()
            return self._worker(path.strip("/").split("/"), body, session)

    def _worker(self, parts: list[str], body: dict[str, Any], session: str) -> tuple[int, dict[str, Any] | None]:
        match parts:
            case ["jobs", "pull"]:
                self.open_polls += 1
                try:
                    return self._pull(body, session)
                finally:
                    self.open_polls -= 1
                    self.changed.notify_all()
            case ["leases", "renew"]:
                return 200, {"leases": [self._renew(item, session) for item in body["leases"]]}
            case ["results"]:
                return 202, {"results": [self._result(item, session) for item in body["results"]]}
            case ["stages", stage_id, "release"]:
                return self._release(self.stages[stage_id], body["executionId"], session)
            case ["stages", stage_id, "effects"]:
                return self._effects(self.stages[stage_id], body, session)
            case ["stages", stage_id, "checkpoints"]:
                return self._checkpoint(self.stages[stage_id], body, session)
            case ["stages", stage_id, "artifacts"]:
                return self._store(self.stages[stage_id], body, session)
            case ["artifacts", artifact_id]:
                return self._load(artifact_id)
            case ["stages", stage_id, ("progress" | "logs") as kind]:
                attempt = self._attempt(self.stages[stage_id], body["executionId"])
                if attempt.state != "running" or attempt.session != session:
                    return problem(409, "stale_execution")
                if kind == "logs":
                    self.lines += body["lines"]
                else:
                    self.progress.append(body)
                return 202, {}
            case ["stages", _, "termination"]:
                return 202, {"accepted": True}
            case ["workers", "shutdown"]:
                self.sessions[session] = "draining"
                return 200, {"commands": []}
        return problem(404, "not_found")

    def _effects(self, stage: Stage, body: dict[str, Any], session: str) -> tuple[int, dict[str, Any]]:
        """Same attempt, class, step and key are one; a late intent is refused, a late outcome kept as evidence."""
        attempt = self._attempt(stage, body["executionId"])
        if attempt.state != "running" or attempt.session != session:
            self.late += [item for item in body["effects"] if item["state"] != "declared"]
            return problem(409, "stale_execution")
        return 201, {"effects": [self._effect(stage, attempt, item) for item in body["effects"]]}

    def _effect(self, stage: Stage, attempt: Attempt, item: dict[str, Any]) -> dict[str, Any]:
        same = {name: item.get(name) for name in ("class", "stepId", "idempotencyKey")}
        alike = [known for known in stage.effects if same.items() <= known.items()]
        known = next((known for known in alike if known["attempt"] == attempt.number), None)
        if known is None:
            known = same | {"effectId": str(uuid.uuid4()), "attempt": attempt.number}
            stage.effects.append(known)
        known |= item
        told = {"effectId": known["effectId"], "state": known["state"]}
        earlier = [one for one in alike if one["attempt"] < attempt.number and one["state"] != "declared"]
        if earlier:
            told["earlier"] = {name: earlier[-1].get(name) for name in ("attempt", "state", "externalRef")}
        return told

    def _checkpoint(self, stage: Stage, body: dict[str, Any], session: str) -> tuple[int, dict[str, Any]]:
        attempt = self._attempt(stage, body["executionId"])
        if attempt.state != "running" or attempt.session != session:
            return problem(409, "stale_execution")
        sequence = (stage.checkpoint or {"sequence": 0})["sequence"] + 1
        stage.checkpoint = {"checkpointId": str(uuid.uuid4()), "sequence": sequence, "state": body["state"]}
        return 201, {name: stage.checkpoint[name] for name in ("checkpointId", "sequence")}

    def _store(self, stage: Stage, body: dict[str, Any], session: str) -> tuple[int, dict[str, Any]]:
        """Same attempt and name are one artifact, and only of the same bytes."""
        attempt = self._attempt(stage, body["executionId"])
        if attempt.state != "running" or attempt.session != session:
            return problem(409, "stale_execution")
        content = base64.b64decode(body["contentBase64"], validate=True)
        if hashlib.sha256(content).hexdigest() != body["sha256"]:
            return problem(400, "validation_error", errors={"sha256": ["is not that of the bytes that came"]})
        for known in self.artifacts.values():
            if (known["attempt"], known["name"]) == (attempt.id, body["name"]):
                if known["sha256"] != body["sha256"]:
                    return problem(409, "artifact_immutable")
                return 200, {"artifactId": known["artifactId"]}
        artifact_id = str(uuid.uuid4())
        self.artifacts[artifact_id] = body | {"artifactId": artifact_id, "attempt": attempt.id, "content": content}
        return 201, {"artifactId": artifact_id}

    def _load(self, artifact_id: str) -> tuple[int, dict[str, Any]]:
        found = self.artifacts.get(artifact_id)
        if found is None:
            return problem(404, "not_found")
        content = found["content"]
        if hashlib.sha256(content).hexdigest() != found["sha256"]:
            return problem(409, "artifact_corrupt")
        return 200, {"bytes": self.in_transit.pop()(content) if self.in_transit else content, "etag": found["sha256"]}

    def _bootstrap(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        token = f"session-{uuid.uuid4()}"
        self.sessions[token] = "active"
        self.registrations.append(body)
        return 200, {
            "workerId": str(uuid.uuid4()),
            "sessionToken": token,
            "application": {"id": str(uuid.uuid4()), "name": "billing"},
            "leaseSeconds": self.lease_seconds,
            "renewSeconds": self.renew_seconds,
            "visibilitySeconds": 30,
        }

    def _pull(self, body: dict[str, Any], session: str) -> tuple[int, dict[str, Any] | None]:
        until = time.monotonic() + body.get("waitSeconds", 0)
        while True:
            if session not in self.sessions:
                return 204, None
            self._sweep()
            ready = [s for s in self.stages.values() if s.state == "ready" and s.handler in body["handlers"]]
            if self.sessions[session] == "draining":
                ready = []
            commands, self.commands = self.commands, []
            if ready or commands or time.monotonic() >= until or self.ends_polls:
                break
            self.changed.wait(min(0.05, max(0.0, until - time.monotonic())))
        jobs = [self._job(stage, session) for stage in ready[: body["maxJobs"]]]
        if not jobs and not commands:
            return 204, None
        return 200, {"jobs": jobs, "commands": commands}

    def _job(self, stage: Stage, session: str) -> dict[str, Any]:
        holder = "somebody else" if self.deny_acquisition else session
        attempt = Attempt(str(uuid.uuid4()), len(stage.attempts) + 1, holder, self.now() + self.lease_seconds)
        stage.attempts.append(attempt)
        stage.state = "running"
        return {
            "deliveryId": str(uuid.uuid4()),
            "stageId": stage.id,
            "stageName": stage.handler.lower(),
            "stageHandlerName": stage.handler,
            "pipelineId": "run-1",
            "pipelineName": "invoices",
            "executionId": attempt.id,
            "attempt": attempt.number,
            "epoch": 1,
            "requestDigest": f"digest-{attempt.number}",
            "input": stage.input,
            "dependencies": {},
            "contextItems": [],
            "timeoutSeconds": stage.timeout,
            "effectMode": stage.effect_mode,
            "effectProtocol": "none",
            "idempotencyKey": f"{stage.id}:1",
            **({"checkpoint": stage.checkpoint} if stage.checkpoint else {}),
            "lease": self._lease(stage, attempt, session),
        }

    def _lease(self, stage: Stage, attempt: Attempt, session: str, reason: str | None = None) -> dict[str, Any]:
        acquired = reason is None and attempt.session == session
        target = {"stageId": stage.id, "executionId": attempt.id}
        return target | {
            "acquired": acquired,
            "attempt": attempt.number,
            "leaseExpiresAt": datetime.fromtimestamp(attempt.ends_at, UTC).isoformat(),
            "reason": reason or (None if acquired else "lease_held"),
            "commands": [{"command": "pause"} | target] if acquired and stage.pausing else [],
        }

    def _renew(self, item: dict[str, Any], session: str) -> dict[str, Any]:
        stage = self.stages[item["stageId"]]
        attempt = self._attempt(stage, item["executionId"])
        if attempt.state != "running":
            return self._lease(
                stage, attempt, session, "lease_expired" if attempt.state == "lost" else "stage_not_active"
            )
        if attempt.session == session and not self.freeze_leases:
            attempt.ends_at = self.now() + self.lease_seconds
        return self._lease(stage, attempt, session)

    def _result(self, item: dict[str, Any], session: str) -> dict[str, Any]:
        stage = self.stages[item["stageId"]]
        attempt = self._attempt(stage, item["executionId"])
        told = {"stageId": stage.id, "executionId": attempt.id}
        digest = hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()
        if attempt.session == session and attempt.digest == digest:
            return told | {"accepted": True, "stageStatus": stage.state}
        if attempt.state != "running" or attempt.session != session or attempt.number != item["attempt"]:
            self.late.append(item)
            return told | {"accepted": False, "code": "stale_execution"}
        refusal = self.refuse_results(item)
        if refusal:
            return told | {"accepted": False, "code": refusal}
        states = {"succeeded": "completed", "failed": "failed", "waiting": "waiting"}
        stage.state, stage.output, stage.result = states[item["status"]], item.get("output"), item
        attempt.state, attempt.digest = item["status"], digest
        self.lines += item.get("logs", [])
        self.changed.notify_all()
        return told | {"accepted": True, "stageStatus": stage.state}

    def _release(self, stage: Stage, execution_id: str, session: str) -> tuple[int, dict[str, Any]]:
        attempt = self._attempt(stage, execution_id)
        if attempt.state == "released" and attempt.session == session:
            return 200, {"stageStatus": stage.state}
        if attempt.state != "running" or attempt.session != session:
            return problem(409, "stale_execution")
        attempt.state = "released"
        stage.state = "paused" if stage.pausing else "ready"
        self.changed.notify_all()
        return 200, {"stageStatus": stage.state}

    def _attempt(self, stage: Stage, execution_id: str) -> Attempt:
        return next(attempt for attempt in stage.attempts if attempt.id == execution_id)

    def _sweep(self) -> None:
        for stage in self.stages.values():
            attempt = stage.attempts[-1] if stage.attempts else None
            if stage.state == "running" and attempt is not None and attempt.ends_at <= self.now():
                attempt.state = "lost"
                stage.state = "needs_reconciliation" if stage.effect_mode == "external" else "ready"
                stage.recoveries += 1

    def _pipelines(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/pipelines/by-idempotency-key":
            run = self.runs.get(body["idempotencyKey"])
            return (200, run["pipeline"]) if run else problem(404, "not_found")
        key = body.get("idempotencyKey", "")
        if not key.strip():
            return problem(400, "validation_error", errors={"idempotencyKey": ["may not be blank"]})
        run = self.runs.get(key)
        if run is None:
            self.runs[key] = {"intent": body, "pipeline": {"id": str(uuid.uuid4()), "idempotencyKey": key}}
            return 201, {"created": True, "wasExisting": False, "pipeline": self.runs[key]["pipeline"]}
        if run["intent"] != body:
            return problem(409, "idempotency_conflict")
        return 200, {"created": False, "wasExisting": True, "pipeline": run["pipeline"]}

    def take_fault(self, path: str) -> Fault | None:
        with self.changed:
            for fault in self._faults:
                if fault.left > 0 and path.partition("?")[0].endswith(fault.path):
                    fault.left -= 1
                    return fault
        return None

    def hang(self) -> None:
        self._healed.wait(30)


def problem(status: int, code: str, **more: Any) -> tuple[int, dict[str, Any]]:
    return status, {
        "type": "about:blank",
        "title": code,
        "status": status,
        "detail": f"because of {code}",
        "code": code,
    } | more


def _handler_class(server: ProtocolServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            self._serve({})

        def do_POST(self) -> None:
            self._serve(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"))

        def _serve(self, body: dict[str, Any]) -> None:
            fault = server.take_fault(self.path)
            if fault is not None and fault.how == "hang":
                server.hang()
            if fault is not None and fault.how in ("cut", "hang"):
                self.close_connection = True
                return
            if fault is not None and isinstance(fault.how, int):
                self._write(*(fault.how, fault.body or problem(fault.how, f"fault_{fault.how}")[1]))
                return
            status, answer = server.answer(self.path, body, self.headers)
            if fault is not None:
                self.close_connection = True
                return
            self._write(status, answer)

        def _write(self, status: int, answer: dict[str, Any] | None) -> None:
            etag = answer.get("etag") if isinstance(answer, dict) else None  # a test may answer with anything
            content = b"" if answer is None else answer["bytes"] if etag else json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if etag:
                    self.send_header("ETag", f'"{etag}"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
            except OSError:
                # The client went away first; some tests want just that.
                self.close_connection = True

    return Handler
