"""Intent before act, outcome after: what a handler does outside its run is written down around the act.

    with ctx.effect("external_http", step="charge") as effect:
        if not effect.already:
            answer = httpx.post(url, json=order, headers={"Idempotency-Key": effect.key})
            answer.raise_for_status()
            effect.external_ref = answer.json()["id"]

The intent is durable before the body runs; without that the body does not run. One act for each effect: what an
exception says of it (`never_sent`) is said of all that the body does. Serves O42, P59, R3–R6.

Not promised: that an act happens once. When the process dies between intent and outcome, the console knows that the act
may have happened, and a person finds out; only the outside system can tell, by the key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from recourse import links
from recourse.control import Control
from recourse.errors import RecourseError, Stopped
from recourse.jobs import Job
from recourse.links import Link
from recourse.texts import bounded, clean, loggable, shortened

log = logging.getLogger("recourse.worker")

EffectClass = Literal[
    "internal_state",
    "model_provider",
    "retrieval",
    "external_http",
    "tool_side_effect",
    "memory_write",
    "evidence_write",
    "artifact_write",
    "human_approval",
    "runtime_limit",
    "policy_obligation",
]
State = Literal["committed", "absent", "unknown"]

MOST_STEP = 255
MOST_KEY = 200
MOST_REF = 1_000
DONE = frozenset({"committed", "reconciled_committed"})
NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    ConnectionRefusedError,
    socket.gaierror,
)


@dataclass(frozen=True, slots=True)
class Earlier:
    """How an earlier attempt of this epoch left the same effect: same class, step and key."""

    attempt: int
    state: str
    external_ref: str


class Effect:
    """One act outside; made by `ctx.effect`, used once, with `with` or `async with`.

    At the end of the body it is `committed`; after an exception `absent` when nothing can have been sent (`never_sent`,
    or the handler said so), else `unknown`. `key` goes to the outside system: the same in every attempt of the epoch.
    """

    def __init__(
        self,
        execution_id: str,
        control: Control,
        link: Link,
        *,
        effect_class: EffectClass,
        step: str,
        key: str,
        request: Any,
    ) -> None:
        self.key = key
        self.external_ref: str | None = None
        self.detail: Any = None
        self.earlier: Earlier | None = None
        self._id = execution_id
        self._control = control
        self._link = link
        self._same = {"class": effect_class} | _given(stepId=step, idempotencyKey=key)
        self._request_hash = "" if request is None else hash_of(request)
        self._said: State | None = None

    @property
    def already(self) -> Earlier | None:
        """The earlier attempt that did this; None when none is known to have. Then skip the act: leaving the body keeps
        the effect as committed, with the earlier reference.
        """
        return self.earlier if self.earlier is not None and self.earlier.state in DONE else None

    def committed(self, external_ref: str | None = None) -> None:
        """It is done, whatever is raised from here on."""
        self._said = "committed"
        if external_ref is not None:
            self.external_ref = external_ref

    def not_sent(self) -> None:
        """Nothing has left this process, whatever is raised from here on."""
        self._said = "absent"

    def refused(self, detail: Any = None) -> None:
        """The outside system answered that it did nothing."""
        self._said = "absent"
        if detail is not None:
            self.detail = detail

    def unknown(self, detail: Any = None) -> None:
        """Whether it is done cannot be told; a person will have to look when the attempt fails."""
        self._said = "unknown"
        if detail is not None:
            self.detail = detail

    def __enter__(self) -> Self:
        self._declare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle(error)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._declare)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._settle, error)

    def _declare(self) -> None:
        answer = links.store_first(self._link, self._control, "effects", self._body("declared"))
        told: Mapping[str, Any] = answer["effects"][0]
        earlier = told.get("earlier")
        if earlier:
            self.earlier = Earlier(earlier["attempt"], earlier["state"], earlier.get("externalRef") or "")
        reason = self._control.stopped_because
        if reason is not None:
            self.not_sent()
            self._settle(stopped := Stopped(reason))
            raise stopped

    def _settle(self, error: BaseException | None) -> None:
        """Writes the outcome. An exception of the body goes on; a failure to write never hides it."""
        state = self._said or ("committed" if error is None else "absent" if never_sent(error) else "unknown")
        if state == "committed" and self.external_ref is None and self.already:
            self.external_ref = self.already.external_ref
        if error is not None and self.detail is None:
            self.detail = {"error": shortened(clean(f"{type(error).__name__}: {error}"), 1_000)}
        try:
            links.store_outcome(self._link, self._control, self._body(state))
        except RecourseError as unwritten:
            log.error("the outcome %s of an effect of attempt %s is not stored: %s", state, self._id, unwritten)
            if error is None:
                raise

    def _body(self, state: str) -> dict[str, Any]:
        item: dict[str, Any] = self._same | {"state": state} | _given(requestHash=self._request_hash)
        if self.external_ref:
            item["externalRef"] = clean(self.external_ref)[:MOST_REF]
        if self.detail is not None:
            item["detail"] = bounded(loggable(self.detail))
        return {"executionId": self._id, "effects": [item]}


def never_sent(error: BaseException) -> bool:
    """Whether the exception proves that the request never left: no connection was made. A timeout while writing or
    reading, and a connection that broke, prove nothing: the other side may have acted (R5).

    A client that follows redirects may have reached another server before: say what you know by `committed`, `unknown`.
    """
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return never_sent(error.reason)
    return isinstance(error, NEVER_SENT)


def default_key(job: Job, step: str) -> str:
    """The stage's key and the step: stable over the attempts of an epoch. A long step goes in as its digest."""
    key = f"{job.idempotency_key}:{step}" if step else job.idempotency_key
    return key if len(key) <= MOST_KEY else f"{job.idempotency_key}:{sha256(step.encode()).hexdigest()}"


def hash_of(request: Any) -> str:
    """SHA-256 of a request: of bytes and text as they are, else of the JSON with sorted keys."""
    if isinstance(request, str):
        request = request.encode()
    if not isinstance(request, bytes):
        request = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return sha256(request).hexdigest()


def _given(**texts: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}
