"""What every adapter is: one small interface, what it can and cannot do as data, and its footing in an attempt.

An adapter reads, and writes under an effect: the intent is stored before anything is sent, the outcome after it. What
it does is bounded: rows, bytes, tries, seconds. It promises no more than its `Capabilities` say (N11).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import quote

from recourse import clock
from recourse.context import StageContext
from recourse.effects import Effect, EffectClass
from recourse.errors import StageFailure

T = TypeVar("T")
Op = Literal["insert", "upsert"]
Row = Mapping[str, Any]
LEAST_SECRET, HIDDEN = 4, "[hidden]"  # shorter ones are none, and stand in half of all words
LOOK_EVERY_SECONDS = 0.1  # how soon a wait hears that the attempt is to stop
# How an attempt ends that an adapter could not serve. Policies and retry options name these codes.
BUSY = "RATE_LIMIT_EXCEEDED"
UPSTREAM = "UPSTREAM_ERROR"
TIMED_OUT = "TIMEOUT"
UNREACHABLE = "TRANSPORT_UNAVAILABLE"
REFUSED = "UPSTREAM_REFUSED"
NOT_ALLOWED = "PERMISSION_DENIED"
INVALID = "VALIDATION_ERROR"
ROW_LIMIT = "ROW_LIMIT_EXCEEDED"
TOO_LARGE = "RESPONSE_TOO_LARGE"
UNKNOWN = "OUTCOME_UNKNOWN"
MISCONFIGURED = "CONNECTOR_INVALID"
OTHER_RECIPIENT = "RECIPIENT_NOT_ALLOWED"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of connector can do, in words for people; empty where it cannot. `proved`: how that is tested."""

    kind: str
    name: str
    read: str
    insert: str
    upsert: str
    provider_key: str
    row_limits: str
    proved: str


@dataclass(frozen=True, slots=True)
class Written:
    """What a write came to. `already`: rows of these that were there before it, and were left alone."""

    rows: int
    already: int = 0


@dataclass(frozen=True, slots=True)
class RowLimits:
    """How many rows are taken. Asked before anything is written; whoever breaks one fails, and nothing was (N26)."""

    max_rows: int
    min_rows: int = 0
    max_rows_per_attempt: int | None = None


class Adapter(Protocol):
    """What `ctx.adapters.NAME` is. Each kind says what more it takes."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def read(self, where: Row | None = None) -> list[dict[str, Any]]: ...

    async def write(self, rows: Sequence[Row], op: Op = "insert") -> Written: ...


class Ground:
    """The attempt that an adapter works in, under its connector's name: effects, waits, whether to stop."""

    def __init__(
        self,
        stage: StageContext,
        name: str,
        recipient: Mapping[str, str] | None = None,
        secrets: list[str] | None = None,
    ) -> None:
        self.stage = stage
        self.name = name
        self.secrets = [] if secrets is None else secrets  # what is told to nobody, more of it as it becomes known
        self._recipient = recipient
        self._acts: Counter[str] = Counter()

    def hide(self, text: str, *, cut: bool = False) -> str:
        """What others said, without the secrets of this connector: providers say back what they refuse. `cut`: the text
        breaks off, perhaps within one.
        """
        hidden = sorted({form for one in self.secrets for form in (one, quote(one, safe=""))}, key=len, reverse=True)
        for one in hidden:
            if len(one) >= LEAST_SECRET:
                text = text.replace(one, HIDDEN)
        return text[: -len(hidden[0])] if cut and hidden else text

    def look(self) -> None:
        """Before anything is sent. Raises `Stopped` once the attempt is to stop, `StageFailure` where it goes to
        another recipient than this connector sends to.
        """
        self.stage.raise_if_stopped()
        told = self.stage.job.recipient
        if told is None or self._recipient is None:
            return
        fields = ("organisation", "service", "billing", "retention")
        if any((told.get(field) or "") != self._recipient.get(field, "") for field in fields):
            mine, its = (f"{one.get('organisation')}/{one.get('service')}" for one in (self._recipient, told))
            raise failure(
                OTHER_RECIPIENT, f"{self.name} sends to {mine}; this attempt goes to {its}, and to nobody else", False
            )

    def effect(
        self, effect_class: EffectClass, what: str, request: Any, *, step: str = "", detail: Row | None = None
    ) -> Effect:
        """The effect of one write. Its step is made of the request unless given, so that the same act of a later
        attempt is the same effect, whatever that attempt did before it; done again in one attempt, it is another.
        """
        digest = digest_of(request)
        named = step or f"{self.name} {what} {digest[:24]}"
        self._acts[named] += 1
        if self._acts[named] > 1:
            named = f"{named} ({self._acts[named]})"
        # goes out as a header too: short, and of letters and digits whatever the step is called
        key = f"{self.stage.idempotency_key}:{digest_of(named)[:32]}"
        made = self.stage.effect(effect_class, step=named, key=key, request=digest)
        made.detail = {"connector": self.name, "act": what, **(detail or {})}
        if self._recipient is not None:
            made.detail["recipient"] = dict(self._recipient)
        return made

    async def pause(self, seconds: float) -> None:
        """Waits, unless the attempt is to stop: then `Stopped` is raised within a moment."""
        until = clock.now() + seconds
        while True:
            self.stage.raise_if_stopped()
            left = until - clock.now()
            if left <= 0:
                return
            await asyncio.sleep(min(left, LOOK_EVERY_SECONDS))

    async def unless_stopped(self, work: asyncio.Task[Any]) -> Any:
        """What the task comes to. It is cut off once the attempt is to stop: for reading alone."""
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_EVERY_SECONDS))[0]:
                self.stage.raise_if_stopped()
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What a blocking function returns. Whoever is cancelled meanwhile waits for its end: a thread goes on."""
        thread = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait({thread})
            raise

    @property
    def seconds_left(self) -> float:
        """Until the stage's time-out."""
        return self.stage.control.times_out_at - clock.now()


def failure(code: str, message: str, retryable: bool | None) -> StageFailure:
    return StageFailure(code, message, retryable=retryable)


def digest_of(request: Any) -> str:
    """SHA-256 of what is asked for; values that are not JSON count as their text with their type."""
    if isinstance(request, bytes):
        return sha256(request).hexdigest()
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=lambda one: f"{type(one).__name__} {one}")
    return sha256(text.encode()).hexdigest()
