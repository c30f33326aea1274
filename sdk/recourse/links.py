"""How an attempt has something stored while it runs, and what it does until the answer comes.

A link makes one try. The rules for repeating are here, once for every kind of worker: what must be stored before the
handler may go on (an intent, a checkpoint, an artifact) is offered for as long as the attempt is ours; an outcome is
offered until the lease has ended, and at least once, since a late one is still evidence.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, Protocol

from recourse import clock
from recourse.control import Control
from recourse.errors import ApiError, StageFailure, Stopped, api_error
from recourse.repeating import Backoff, Unavailable
from recourse.shelf import Shelf

log = logging.getLogger("recourse.worker")

InStore = Literal["store/table", "store/read", "store/insert", "store/upsert", "store/delete"]
Stored = Literal["effects", "checkpoints", "artifacts", "runs", "runs/look"] | InStore

REFUSED: Mapping[Stored, str] = {
    "effects": "EFFECT_REFUSED",
    "checkpoints": "CHECKPOINT_REFUSED",
    "artifacts": "ARTIFACT_REFUSED",
    "store/table": "STORE_REFUSED",
    "store/read": "STORE_REFUSED",
    "store/insert": "STORE_REFUSED",
    "store/upsert": "STORE_REFUSED",
    "store/delete": "STORE_REFUSED",
    "runs": "RUN_REFUSED",
    "runs/look": "RUN_REFUSED",
}
SAID_APART = frozenset({"store_conflict", "store_quota_exceeded", "store_closed"})  # retries can tell them
NOT_OURS = frozenset({"stale_execution", "not_found", "execution_state_invalid", "deadline_exceeded"})


class Link(Protocol):
    """One try to store something of an attempt. May be called from any thread, and waits for the answer."""

    def write(self, what: Stored, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sends the body of the worker route `what`; returns its answer, given once all is durable.

        Raises `Unavailable` when there is no definite answer, `ApiError` for a refusal.
        """
        ...

    def load(self, artifact_id: str) -> Mapping[str, Any]:
        """An artifact's `content` and the `sha256` that the console has of it. Raises as `write`."""
        ...


class Recorder:
    """For trying handlers without a console: keeps what they write, in order, and promises nothing."""

    def __init__(self) -> None:
        self.written: list[tuple[Stored, Mapping[str, Any]]] = []
        self._artifacts: dict[str, Mapping[str, Any]] = {}
        self._shelf = Shelf()
        self._runs: dict[str, dict[str, Any]] = {}

    def write(self, what: Stored, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.written.append((what, body))
        if what == "checkpoints":
            return {"checkpointId": str(uuid.uuid4()), "sequence": len(self.written)}
        if what == "artifacts":
            artifact_id = str(uuid.uuid4())
            self._artifacts[artifact_id] = body
            return {"artifactId": artifact_id}
        if what.startswith("store/"):
            return self._shelf.answer(what, body)
        if what == "runs":
            return self._started(body)
        if what == "runs/look":
            return {"runs": [{**self._runs[run_id], "status": "completed"} for run_id in body["runs"]]}
        return {"effects": [{"effectId": str(uuid.uuid4()), "state": item["state"]} for item in body["effects"]]}

    def _started(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A run that has completed, with no outputs, when it is next looked at; one for each key."""
        known = next((run for run in self._runs.values() if run["key"] == body["key"]), None)
        created = known is None
        if known is None:
            run_id = str(uuid.uuid4())
            name = body.get("name") or body.get("pipeline") or ""
            known = {"runId": run_id, "startedRunId": run_id, "key": body["key"], "name": name, "status": "queued"}
            self._runs[run_id] = known
        return {"created": created, "run": known}

    def load(self, artifact_id: str) -> Mapping[str, Any]:
        """What was stored here before under that id."""
        if artifact_id not in self._artifacts:
            raise api_error(404, {"code": "not_found", "detail": "nothing was stored here under that id"})
        body = self._artifacts[artifact_id]
        return {"content": base64.b64decode(body["contentBase64"]), "sha256": body["sha256"]}


def store_first(
    link: Link, control: Control, what: Stored, body: Mapping[str, Any], *, while_draining: bool = False
) -> Mapping[str, Any]:
    """Stores what must be durable before the handler goes on. Raises `Stopped` once the attempt is not ours, is
    cancelled, or its worker ends (`while_draining`: it is stored all the same); `StageFailure` when it is refused.
    """
    backoff = Backoff(first=0.1, most=5.0)
    while True:
        reason = control.stopped_because
        if reason is not None and not (reason == "drain" and while_draining):
            raise Stopped(reason)
        try:
            return link.write(what, body)
        except ApiError as refusal:
            raise _refused(control, what, refusal) from refusal
        except Unavailable as error:
            log.warning("%s not stored yet: %s", what, error)
            _wait(control, backoff.next(error.wait))


def store_outcome(link: Link, control: Control, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Stores what became of an effect. Raises `Stopped` when the lease ended first or the attempt was not ours any
    more: the effect then stays declared, and counts as unknown.
    """
    backoff = Backoff(first=0.1, most=5.0)
    while True:
        try:
            return link.write("effects", body)
        except ApiError as refusal:
            raise _refused(control, "effects", refusal) from refusal
        except Unavailable as error:
            if control.is_lost:
                control.stop("lost")
                raise Stopped("lost") from error
            log.warning("the outcome of an effect is not stored yet: %s", error)
            _wait(control, backoff.next(error.wait))


def fetch(link: Link, control: Control, artifact_id: str) -> bytes:
    """An artifact's bytes, if they are what the console has the digest of. Raises `Stopped` once the attempt is to
    stop; `StageFailure` with ARTIFACT_CORRUPT where they are damaged, with ARTIFACT_REFUSED where none are to be seen.
    """
    backoff = Backoff(first=0.1, most=5.0)
    while True:
        if control.stopped_because is not None:
            raise Stopped(control.stopped_because)
        try:
            found = link.load(artifact_id)
            content: bytes = found["content"]
            if sha256(content).hexdigest() == found["sha256"]:
                return content
            raise Unavailable("the bytes did not arrive as they were sent")
        except ApiError as refusal:
            code = "ARTIFACT_CORRUPT" if refusal.code == "artifact_corrupt" else "ARTIFACT_REFUSED"
            raise StageFailure(code, str(refusal), retryable=False) from refusal
        except Unavailable as error:
            log.warning("artifact %s not loaded yet: %s", artifact_id, error)
            _wait(control, backoff.next(error.wait))


def _refused(control: Control, what: Stored, refusal: ApiError) -> Exception:
    if refusal.code in NOT_OURS:
        control.stop("lost")
        return Stopped("lost")
    told = f"{refusal} {refusal.errors or ''}".strip()
    code = refusal.code.upper() if refusal.code in SAID_APART else REFUSED[what]
    return StageFailure(code, told, retryable=False)


def _wait(control: Control, seconds: float) -> None:
    time.sleep(max(0.01, min(seconds, control.owned_until - clock.now())))
