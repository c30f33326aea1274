"""What a handler receives: its attempt, what it may read, and how it can say something or be told to stop."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from recourse import clock
from recourse.errors import StageFailure, Stopped
from recourse.jobs import Job

# What the server takes at most. Saying something must never fail the work that it tells of, so it is cut instead.
MOST_TEXT = 16_000
MOST_FIELDS = 16_000
MOST_LINES = 5_000
MOST_PROGRESS_TEXT = 1_000
MOST_CONTEXT_KEY = 255
MOST_CONTEXT_VALUE = 10_000

LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})


class Control:
    """What the holder of an attempt tells its handler. Set from any thread, read by the handler; never taken back.

    `owned_until` is on the local clock: from then on the attempt counts as lost, even when nobody came to say so (F03).
    `times_out_at` too: by then the server has timed the attempt out, and says so only when it is asked next.
    `announce` is called after the handler said something that its holder may want to pass on at once.
    """

    __slots__ = ("announce", "owned_until", "pause_requested", "stop_reason", "times_out_at")

    def __init__(self, announce: Callable[[], None] = lambda: None) -> None:
        self.announce = announce
        self.stop_reason: str | None = None
        self.pause_requested = False
        self.owned_until = math.inf
        self.times_out_at = math.inf

    def stop(self, reason: str) -> None:
        """Asks the handler to stop; the first reason stays."""
        if self.stop_reason is None:
            self.stop_reason = reason

    @property
    def stopped_because(self) -> str | None:
        if self.stop_reason is None:
            now = clock.now()
            if now >= self.owned_until:
                return "lost"
            if now >= self.times_out_at:
                return "timed out"
        return self.stop_reason


class StageContext:
    """The handler's view of one attempt of a stage.

    `idempotency_key` is stable over all attempts of the stage in one epoch: hand it to the outside system (P59, F119).
    Everything here may be called from any thread of the handler.
    """

    __slots__ = ("_context", "_json", "_left_out", "_lines", "_lock", "_progress", "control", "job")

    def __init__(self, job: Job, control: Control | None = None) -> None:
        self.job = job
        self.control = control or Control()
        self._context: ContextItems | None = None
        self._json: Any = _UNREAD
        self._lines: list[dict[str, Any]] = []
        self._left_out = 0
        self._progress: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def stage_id(self) -> str:
        return self.job.stage_id

    @property
    def stage_name(self) -> str:
        return self.job.stage_name

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

    def log(self, level: str, message: str, **fields: Any) -> None:
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


def clean(text: str) -> str:
    """Text that UTF-8 and PostgreSQL can hold: NUL and lone surrogates are written as escapes, nothing is lost."""
    return str(text).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(text: str, most: int) -> str:
    """At most `most` characters: beginning and end stay, and what is missing between them is counted."""
    if len(text) <= most:
        return text
    side = (most - 60) // 2
    return f"{text[:side]}\n… {len(text) - 2 * side} characters left out …\n{text[-side:]}"


def _loggable_fields(fields: dict[str, Any]) -> dict[str, Any]:
    told = {key: _loggable(value) for key, value in fields.items()}
    text = json.dumps(told)
    return told if len(text) <= MOST_FIELDS else {"shortened": shortened(text, MOST_FIELDS // 2)}


def _loggable(value: Any) -> Any:
    try:
        text = json.dumps(value, allow_nan=False, default=str, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        return clean(repr(value))
    return json.loads(text)


_UNREAD = object()
