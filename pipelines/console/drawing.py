"""The timeline as bars on one axis: pure geometry, drawn by a template as SVG without any style of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipelines.models import Attempt, Gate, Run
from pipelines.states import TERMINAL_RUN, AttemptState

WIDTH = 1000.0  # units of the drawing; it stretches to whatever room there is
NARROWEST = 4.0  # an attempt of a moment stays visible


@dataclass(frozen=True, slots=True)
class Bar:
    """An attempt, or with `gap` a time in which a stage backed off or waited; `title` says it in words."""

    x: float
    width: float
    status: str
    title: str
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A checkpoint on a stage's row."""

    x: float
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The stretch of time that the drawing shows."""

    start: datetime
    end: datetime

    def place(self, moment: datetime) -> float:
        span = (self.end - self.start).total_seconds()
        share = (moment - self.start).total_seconds() / span if span > 0 else 0.0
        return round(min(max(share, 0.0), 1.0) * WIDTH, 1)


def axis_of(run: Run, attempts: Sequence[Attempt], now: datetime) -> Axis:
    """From the run's creation to its end, or to now; a later attempt stretches it."""
    ended = run.finished_at if run.status in TERMINAL_RUN and run.finished_at else now
    last = max((attempt.finished_at for attempt in attempts if attempt.finished_at), default=ended)
    return Axis(run.created_at, max(ended, last, run.created_at))


def bars_of(
    axis: Axis, attempts: Sequence[Attempt], gates: Sequence[Gate], due: datetime | None, now: datetime
) -> list[Bar]:
    """The bars of one stage, earliest first: its attempts, the waits between them, and its gates.

    `attempts` in order of their number; `due`: when a scheduled retry is due.
    """
    bars = [_wait(axis, gate, now) for gate in gates]
    for index, attempt in enumerate(attempts):
        begun, ended = attempt.started_at or attempt.dispatched_at, attempt.finished_at or now
        bars.append(_bar(axis, begun, ended, attempt.state, _attempt_title(attempt, begun)))
        follower = attempts[index + 1] if index + 1 < len(attempts) else None
        until = follower.dispatched_at if follower else due and min(due, axis.end)
        if attempt.finished_at and until and until > attempt.finished_at and _retries(attempt):
            title = f"waited for retry until {_clock(until)}" if follower else f"retry due at {_clock(due or until)}"
            bars.append(_bar(axis, attempt.finished_at, until, "retry_scheduled", title, gap=True))
    return sorted(bars, key=lambda bar: bar.x)


def _retries(attempt: Attempt) -> bool:
    decision = attempt.decision or {}
    return bool(decision.get("retry") and decision.get("applied", True))


def _wait(axis: Axis, gate: Gate, now: datetime) -> Bar:
    title = f"decision {gate.state}, asked for at {_clock(gate.opened_at)}"
    return _bar(axis, gate.opened_at, gate.closed_at or now, "waiting", title, gap=True)


def _bar(axis: Axis, begun: datetime, ended: datetime, status: str, title: str, *, gap: bool = False) -> Bar:
    x = min(axis.place(begun), WIDTH - NARROWEST)
    width = max(axis.place(ended) - x, NARROWEST)
    return Bar(round(x, 1), round(width, 1), status, title, gap)


def _attempt_title(attempt: Attempt, begun: datetime) -> str:
    state = AttemptState(attempt.state).value.replace("_", " ")
    code = f" with {attempt.error_code}" if attempt.error_code else ""
    return f"attempt {attempt.number} {state}{code}, from {_clock(begun)}, worker {attempt.worker or 'unknown'}"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M:%S}"
