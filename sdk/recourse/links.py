"""How an attempt has something stored while it runs, and what it does until the answer comes.

A link makes one try. The rules for repeating are here, once for every kind of worker: what must be stored before the
handler may go on (an intent, a checkpoint) is offered for as long as the attempt is ours; an outcome is offered until
the lease has ended, and at least once, since a late one is still evidence.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from recourse import clock
from recourse.control import Control
from recourse.errors import ApiError, StageFailure, Stopped
from recourse.repeating import Backoff, Unavailable

log = logging.getLogger("recourse.worker")

Stored = Literal["effects", "checkpoints"]

NOT_OURS = frozenset({"stale_execution", "not_found", "execution_state_invalid", "deadline_exceeded"})


class Link(Protocol):
    """One try to store something of an attempt. May be called from any thread, and waits for the answer."""

    def write(self, what: Stored, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sends the body of the worker route `what`; returns its answer, given once all is durable.

        Raises `Unavailable` when there is no definite answer, `ApiError` for a refusal.
        """
        ...


class Recorder:
    """For trying handlers without a console: keeps what they write, in order, and promises nothing."""

    def __init__(self) -> None:
        self.written: list[tuple[Stored, Mapping[str, Any]]] = []

    def write(self, what: Stored, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.written.append((what, body))
        if what == "checkpoints":
            return {"checkpointId": str(uuid.uuid4()), "sequence": len(self.written)}
        return {"effects": [{"effectId": str(uuid.uuid4()), "state": item["state"]} for item in body["effects"]]}


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


def _refused(control: Control, what: Stored, refusal: ApiError) -> Exception:
    if refusal.code in NOT_OURS:
        control.stop("lost")
        return Stopped("lost")
    told = f"{refusal} {refusal.errors or ''}".strip()
    return StageFailure("EFFECT_REFUSED" if what == "effects" else "CHECKPOINT_REFUSED", told, retryable=False)


def _wait(control: Control, seconds: float) -> None:
    time.sleep(max(0.01, min(seconds, control.owned_until - clock.now())))
