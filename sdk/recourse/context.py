"""What a handler receives: its attempt, what it may read, and how it can say something or be told to stop."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from recourse import links
from recourse.control import Control
from recourse.effects import MOST_KEY, MOST_STEP, Effect, EffectClass, default_key
from recourse.errors import Release, StageFailure, Stopped
from recourse.handlers import Recipient
from recourse.jobs import Job
from recourse.links import Link, Recorder
from recourse.texts import bounded, clean, loggable, shortened

# What the server takes at most. Saying something must never fail the work that it tells of, so it is cut instead.
MOST_TEXT = 16_000
MOST_LINES = 5_000
MOST_PROGRESS_TEXT = 1_000
MOST_CONTEXT_KEY = 255
MOST_CONTEXT_VALUE = 10_000
MOST_STATE = 256 * 1024
MOST_ARTIFACT = 11 * 1024 * 1024

LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that a handler had stored, under the id and number that the console gave it."""

    checkpoint_id: str
    sequence: int
    state: Any


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact as the console keeps it: hand its id on, and keep its SHA-256 beside it."""

    artifact_id: str
    name: str
    sha256: str
    size: int


class StageContext:
    """The handler's view of one attempt of a stage.

    `idempotency_key` is stable over all attempts of the stage in one epoch: hand it to the outside system (P59, F119).
    `usage` is what the attempt used, sent with its result: any object, `"complete": true` only where nothing is missing
    from it (R34). Commands set it, with `termination` (how their processes ended) and `stop_seconds` (what ending them
    may take).

    Everything here may be called from any thread of the handler. Without a `link` to a console, effects, checkpoints
    and artifacts are only recorded, so that a handler can be tried on its own: `ctx.link.written` has them.
    """

    __slots__ = (
        "_checkpoint",
        "_context",
        "_effects",
        "_json",
        "_left_out",
        "_lines",
        "_lock",
        "_progress",
        "control",
        "job",
        "link",
        "stop_seconds",
        "termination",
        "usage",
    )

    def __init__(self, job: Job, control: Control | None = None, link: Link | None = None) -> None:
        self.job = job
        self.control = control or Control()
        self.link: Link = link or Recorder()
        self._checkpoint: Checkpoint | None = _carried(job)
        self._effects: set[tuple[str, str, str]] = set()
        self._context: ContextItems | None = None
        self._json: Any = _UNREAD
        self._lines: list[dict[str, Any]] = []
        self._left_out = 0
        self._progress: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self.usage: dict[str, Any] | None = None
        self.termination: dict[str, Any] | None = None
        self.stop_seconds = 0.0

    @property
    def stage_id(self) -> str:
        return self.job.stage_id

    @property
    def stage_name(self) -> str:
        return self.job.stage_name

    @property
    def baseline(self) -> dict[str, str]:
        """The artifacts that the run builds on, by name, for `load_artifact`."""
        return {one["name"]: one["artifactId"] for one in self.job.baseline}

    @property
    def recipient(self) -> Recipient | None:
        """To whom this attempt is to be sent, and to nobody else; None for a stage that names no recipients."""
        told = self.job.recipient
        if told is None:
            return None
        return Recipient(told["organisation"], told["service"], told.get("billing", ""), told.get("retention", ""))

    @property
    def run_id(self) -> str:
        return self.job.run_id

    @property
    def execution_id(self) -> str:
        """The id of this attempt."""
        return self.job.execution_id

    @property
    def attempt(self) -> int:
        """The number of this attempt; it only rises."""
        return self.job.attempt

    @property
    def epoch(self) -> int:
        return self.job.epoch

    @property
    def idempotency_key(self) -> str:
        return self.job.idempotency_key

    @property
    def effect_mode(self) -> str:
        return self.job.effect_mode

    @property
    def timeout_seconds(self) -> float | None:
        return self.job.timeout_seconds

    @property
    def deadline(self) -> datetime | None:
        """When the whole run ends at the latest."""
        return self.job.deadline

    @property
    def dependencies(self) -> Mapping[str, Any]:
        """Outputs of the stages that this one depends on, by stage name."""
        return self.job.dependencies

    @property
    def input(self) -> str | None:
        """The stage's input, byte for byte."""
        return self.job.input

    def json(self) -> Any:
        """The input read as JSON, None when there is none. Other text fails the stage with VALIDATION_ERROR."""
        if self._json is _UNREAD:
            try:
                self._json = json.loads(self.input) if self.input else None
            except ValueError as error:
                raise StageFailure("VALIDATION_ERROR", f"the input is not JSON: {error}", retryable=False) from error
        return self._json

    @property
    def context(self) -> ContextItems:
        """The run's context: what was there when the attempt began, and what this handler sets."""
        if self._context is None:
            self._context = ContextItems(self.job.context_items)
        return self._context

    @property
    def cancelled(self) -> bool:
        """True once this attempt should stop: the run was cancelled, the lease was lost or will not be renewed, the
        stage's time-out is over, or the worker must end. Look here before every effect: what is done afterwards may be
        done again elsewhere (P58).
        """
        return self.control.stopped_because is not None

    @property
    def pause_requested(self) -> bool:
        """True once the run is pausing. A handler that can start again from its beginning may raise `Release`."""
        return self.control.pause_requested

    def raise_if_stopped(self) -> None:
        """Raises `Stopped` when `cancelled`; let it pass through."""
        reason = self.control.stopped_because
        if reason is not None:
            raise Stopped(reason)

    def effect(self, effect_class: EffectClass, step: str = "", key: str | None = None, request: Any = None) -> Effect:
        """An act outside the run, for `with` or `async with`: the intent is durable before the body runs, the outcome
        after it (see `recourse.effects`). `step` tells the acts of one stage apart; `key`, which the outside system
        gets, is made of the stage's idempotency key and the step unless given; of `request` only the digest is kept.

        Entering raises `Stopped` when the attempt is not ours any more or is to stop, and `StageFailure` when the
        console refuses the intent. Raises ValueError when this attempt has used class, step and key before.
        """
        key = default_key(self.job, step) if key is None else key
        for name, text, most in (("step", step, MOST_STEP), ("key", key, MOST_KEY)):
            if len(text) > most or not text.isprintable() or text.isspace():
                raise ValueError(f"a {name} is printable text of at most {most} characters, not {text!r}")
        same = (effect_class, step, key)
        with self._lock:
            if same in self._effects:
                raise ValueError(f"this attempt has already used {effect_class} {step!r}: give each act its own step")
            self._effects.add(same)
        return Effect(
            self.execution_id, self.control, self.link, effect_class=effect_class, step=step, key=key, request=request
        )

    @property
    def restored(self) -> Any:
        """The state that was stored last in this epoch, by an earlier attempt or this one, or that the recovery of
        another run handed over; None when there is none. Go on from there.
        """
        return None if self._checkpoint is None else self._checkpoint.state

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """`restored`, with its id and number."""
        return self._checkpoint

    def checkpoint(self, state: Any, posture: Mapping[str, Any] | None = None) -> Checkpoint:
        """Stores the handler's state (JSON but null, at most 256 KiB) durably; the next attempt has it as `restored`.
        `posture` tells of effects with it: `{"sideEffects": [...], "committedSideEffects": [...]}`.

        Where the run is pausing or the worker ends, it then raises `Release`: the stage is given back, nothing is
        counted. Raises `Stopped` when the attempt is not ours any more, ValueError for a state that is too large or no
        JSON, `StageFailure` when the console refuses it. Waits for the answer: async handlers use `checkpoint_async`.
        """
        body: dict[str, Any] = {"executionId": self.execution_id, "state": _storable(state)}
        if posture is not None:
            body["recoveryPosture"] = posture
        told = links.store_first(self.link, self.control, "checkpoints", body, while_draining=True)
        self._checkpoint = Checkpoint(told["checkpointId"], told["sequence"], state)
        if self.pause_requested:
            raise Release
        return self._checkpoint

    async def checkpoint_async(self, state: Any, posture: Mapping[str, Any] | None = None) -> Checkpoint:
        """As `checkpoint`, without holding up the event loop."""
        return await asyncio.to_thread(self.checkpoint, state, posture)

    def artifact(self, name: str, data: bytes | os.PathLike[str], media_type: str | None = None) -> StoredArtifact:
        """Stores bytes, or a file's, durably under a name of this attempt; they never change. The same again is the
        same artifact; other bytes under the name are refused.

        Raises `Stopped` when the attempt is not ours any more, ValueError for more bytes than any console takes,
        `StageFailure` (ARTIFACT_REFUSED) when the console refuses it. Waits for the answer: async handlers use
        `artifact_async`.
        """
        content = Path(data).read_bytes() if isinstance(data, os.PathLike) else bytes(memoryview(data))
        if len(content) > MOST_ARTIFACT:
            raise ValueError(f"an artifact has at most {MOST_ARTIFACT} bytes; {name!r} has {len(content)}")
        digest = sha256(content).hexdigest()
        body = {
            "executionId": self.execution_id,
            "name": name,
            "contentBase64": base64.b64encode(content).decode("ascii"),
            "sha256": digest,
        }
        if media_type is not None:
            body["mediaType"] = media_type
        told = links.store_first(self.link, self.control, "artifacts", body, while_draining=True)
        return StoredArtifact(told["artifactId"], name, digest, len(content))

    async def artifact_async(
        self, name: str, data: bytes | os.PathLike[str], media_type: str | None = None
    ) -> StoredArtifact:
        """As `artifact`, without holding up the event loop."""
        return await asyncio.to_thread(self.artifact, name, data, media_type)

    def load_artifact(self, artifact_id: str) -> bytes:
        """The bytes of an artifact of the same application and environment, or of a baseline, checked against their
        digest. Raises `Stopped` when this attempt is to stop, `StageFailure` with ARTIFACT_CORRUPT where they are not
        what was stored, with ARTIFACT_REFUSED where there is no such artifact to see.
        """
        return links.fetch(self.link, self.control, artifact_id)

    async def load_artifact_async(self, artifact_id: str) -> bytes:
        """As `load_artifact`, without holding up the event loop."""
        return await asyncio.to_thread(self.load_artifact, artifact_id)

    def log(self, level: str, message: str, /, **fields: Any) -> None:
        """Adds a line to the attempt's log; sent in seconds or with the result. Fields that are not JSON go as text."""
        if level not in LEVELS:
            raise ValueError(f"level {level!r} is none of {', '.join(sorted(LEVELS))}")
        line: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(),
            "level": level,
            "message": shortened(clean(message), MOST_TEXT),
        }
        if fields:
            line["fields"] = _loggable_fields(fields)
        with self._lock:
            self._lines.append(line)
            self._bound_lines()
        self.control.announce()

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Says how far the handler is; only the newest word is sent, within seconds."""
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError(f"percent must be from 0 to 100, not {percent}")
        said = {"percent": percent, "message": None if message is None else clean(message)[:MOST_PROGRESS_TEXT]}
        with self._lock:
            self._progress = {key: value for key, value in said.items() if value is not None}
        self.control.announce()

    def take_lines(self) -> list[dict[str, Any]]:
        """For the holder of the attempt: the lines not sent yet, each handed out once."""
        if not self._lines:
            return []
        with self._lock:
            lines, self._lines = self._lines, []
            if self._left_out:
                text = f"{self._left_out} older lines could not be sent in time and were left out"
                lines.insert(0, {"at": lines[0]["at"], "level": "warning", "message": text})
                self._left_out = 0
        return lines

    def put_lines_back(self, lines: list[dict[str, Any]]) -> None:
        """For the holder of the attempt: these could not be sent; they come first at the next taking."""
        with self._lock:
            self._lines[:0] = lines
            self._bound_lines()

    def _bound_lines(self) -> None:
        """Leaves the oldest unsent lines out when there are too many, and says how many."""
        if len(self._lines) <= MOST_LINES:
            return
        cut = len(self._lines) - MOST_LINES // 2
        self._left_out += cut
        self._lines[:cut] = []

    def take_progress(self) -> dict[str, Any] | None:
        """For the holder of the attempt: the newest word not sent yet."""
        with self._lock:
            progress, self._progress = self._progress, None
        return progress

    @property
    def has_news(self) -> bool:
        return bool(self._lines) or self._progress is not None

    @property
    def set_items(self) -> list[dict[str, Any]]:
        """For the holder of the attempt: the context items that the handler set."""
        return self._context.set_items if self._context is not None else []


class ContextItems(Mapping[str, str]):
    """The run's context items by key. Set ones travel with the result, and are lost when the attempt does not end."""

    def __init__(self, items: list[Mapping[str, Any]]) -> None:
        self._values: dict[str, str] = {item["key"]: item["value"] for item in items}
        self._set: dict[str, dict[str, Any]] = {}

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: str, value: str, sensitive: bool = False) -> None:
        """Sets a text value. A sensitive one is stored encrypted and never shown."""
        if not isinstance(value, str):
            raise TypeError(
                f"a context value is text, not {type(value).__name__}; make it one, for example by json.dumps"
            )
        if not 0 < len(key) <= MOST_CONTEXT_KEY or len(value) > MOST_CONTEXT_VALUE:
            raise ValueError(
                f"a context key has 1 to {MOST_CONTEXT_KEY} characters, a value {MOST_CONTEXT_VALUE} at most"
            )
        self._values[key] = value
        self._set[key] = {"key": key, "value": value} | ({"isSensitive": True} if sensitive else {})

    @property
    def set_items(self) -> list[dict[str, Any]]:
        return list(self._set.values())


def _carried(job: Job) -> Checkpoint | None:
    kept = job.checkpoint
    return None if kept is None else Checkpoint(kept["checkpointId"], kept["sequence"], kept["state"])


def _storable(state: Any) -> Any:
    """The state, once it is known to be JSON that the console takes."""
    if state is None:
        raise ValueError("a checkpoint's state is something: None would be no state at all")
    try:
        size = len(json.dumps(state, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a checkpoint's state is JSON: {error}") from error
    if size > MOST_STATE:
        raise ValueError(
            f"the state has {size} bytes, a checkpoint holds {MOST_STATE}: keep large things in a store, "
            "and in the state where they are"
        )
    return state


def _loggable_fields(fields: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = bounded({key: loggable(value) for key, value in fields.items()})
    return told


_UNREAD = object()
