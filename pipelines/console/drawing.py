"""The timeline and the graph as geometry: pure; a template tag draws it as SVG without any style of its own.

Across, everything is placed in seconds since the axis begins, so that what is drawn stays right while the axis grows:
only the frame around it changes. The axis of a live run ends later than now, and is moved on seldom. The graph stands
beside the names of the stages in lanes, as branches stand beside commits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from pipelines.models import Gate
from pipelines.states import TERMINAL_RUN, AttemptState

SHORTEST = 10.0  # seconds that the axis of a live run has at least
GROWTH = 1.3  # times as long, each time that it is moved on
ROOM = 1.04  # of the time so far, so that now is never at its very end
MOMENT = 1.0  # seconds; what waits for less is not drawn
MOST_LANES = 12
_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3_600.0, 86_400.0
STEPS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """An attempt, or with `gap` a time in which a stage backed off or waited; `title` says it in words.

    `grows`: it ends now. `faded`: it belongs to an earlier epoch.
    """

    x: float
    width: float
    status: str
    title: str
    gap: bool = False
    grows: bool = False
    faded: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A checkpoint on a stage's row; with `epoch`, where a person began the stage anew."""

    x: float
    title: str
    epoch: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A time on the axis; `share` of its length, in per cent."""

    x: float
    share: float
    label: str


class Try(NamedTuple):
    """What the drawing needs of an attempt. `retries`: the engine decided to try again after it."""

    number: int
    epoch: int
    state: str
    worker: str
    dispatched_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str
    retries: bool


class Pause(NamedTuple):
    """A time in which nothing of the run could begin: `word` is `paused` or `held`; without `until` it goes on."""

    word: str
    since: datetime
    until: datetime | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The stretch of time that the drawing shows."""

    start: datetime
    end: datetime

    @property
    def span(self) -> float:
        return (self.end - self.start).total_seconds()

    def place(self, moment: datetime) -> float:
        """Seconds from the start, held within the axis."""
        return round(min(self.after(moment), self.span), 3)

    def after(self, moment: datetime) -> float:
        """Seconds from the start, which may lie beyond the end."""
        return round(max((moment - self.start).total_seconds(), 0.0), 3)


def axis_of(created: datetime, ended: datetime | None, last: datetime | None, now: datetime) -> Axis:
    """From the run's creation to its end, which a later attempt's end, `last`, stretches; of a live run beyond now."""
    if ended is not None:
        end = max(ended, last or ended, created + timedelta(milliseconds=1))
        return Axis(created, end)
    elapsed = max((now - created).total_seconds(), 0.0) * ROOM
    times = math.ceil(math.log(elapsed / SHORTEST, GROWTH)) if elapsed > SHORTEST else 0
    return Axis(created, created + timedelta(seconds=round(SHORTEST * GROWTH**times, 3)))


def end_of(status: str, finished_at: datetime | None) -> datetime | None:
    """When a run ended; none while it has not."""
    return finished_at if status in TERMINAL_RUN else None


def marks_of(axis: Axis, most: int = 6) -> list[Mark]:
    """Round times of day on the axis, at most so many and one more."""
    step = next((step for step in STEPS if axis.span / step <= most), axis.span)
    begun = axis.start.timestamp()
    moment, found = math.ceil(begun / step) * step, []
    while moment - begun <= axis.span:
        x = moment - begun
        found.append(
            Mark(round(x, 3), round(x / axis.span * 100, 2), _label(datetime.fromtimestamp(moment, UTC), step))
        )
        moment += step
    return found


def bars_of(
    axis: Axis,
    tries: Sequence[Try],
    gates: Sequence[Gate],
    now: datetime,
    *,
    epoch: int = 1,
    due: datetime | None = None,
    ready: datetime | None = None,
) -> list[Bar]:
    """The bars of one stage, earliest first: its attempts, the waits between them, and its gates.

    `tries` in order of their number; numbers that are left out are drawn as one. `due`: when a scheduled retry is due;
    `ready`: since when the stage waits for a worker; `epoch`: the stage's, others' bars are faded.
    """
    bars = [_wait(axis, gate, now) for gate in gates]
    for index, one in enumerate(tries):
        begun, faded = one.started_at or one.dispatched_at, one.epoch != epoch
        if one.started_at and (one.started_at - one.dispatched_at).total_seconds() >= MOMENT:
            title = f"attempt {one.number} handed out, {_span(one.dispatched_at, one.started_at)}"
            bars.append(_bar(axis, one.dispatched_at, one.started_at, "dispatched", title, gap=True, faded=faded))
        bars.append(_bar(axis, begun, one.finished_at, one.state, _title(one, begun), now=now, faded=faded))
        follower = tries[index + 1] if index + 1 < len(tries) else None
        left_out = follower.number - one.number - 1 if follower else 0
        until = follower.dispatched_at if follower else due
        if follower and left_out > 0:
            title = f"{left_out} more {'attempt' if left_out == 1 else 'attempts'}, not drawn one by one"
            begin = one.finished_at or begun
            bars.append(_bar(axis, begin, follower.dispatched_at, "pending", title, gap=True, faded=faded))
        elif one.finished_at and until and until > one.finished_at and one.retries:
            title = f"waited for retry until {_clock(until)}" if follower else f"retry due at {_clock(until)}"
            bars.append(_bar(axis, one.finished_at, until, "retry_scheduled", title, gap=True, faded=faded))
    if ready is not None and ready < now:
        bars.append(_bar(axis, ready, None, "ready", f"ready since {_clock(ready)}", gap=True, now=now))
    return sorted(bars, key=lambda bar: bar.x)


def epochs_of(axis: Axis, tries: Sequence[Try]) -> list[Tick]:
    """Where epochs begin, of those with an attempt; the first one begins with the run."""
    found = []
    for earlier, later in pairwise(tries):
        if earlier.epoch != later.epoch:
            title = f"epoch {later.epoch} begins, {_clock(later.dispatched_at)}"
            found.append(Tick(axis.place(later.dispatched_at), title, epoch=True))
    return found


def summary_bar(axis: Axis, begun: datetime, ended: datetime | None, status: str, title: str, now: datetime) -> Bar:
    """One bar for many stages."""
    return _bar(axis, begun, ended, status, title, now=now)


def pause_bars(axis: Axis, pauses: Iterable[Pause], now: datetime) -> list[Bar]:
    """The times in which the run as a whole was paused or held."""
    found = []
    for one in pauses:
        by = f" by {one.by}" if one.by else ""
        why = f": {one.reason}" if one.reason else ""
        until = f" until {_clock(one.until)}" if one.until else ""
        title = f"{one.word}{by}, {_clock(one.since)}{until}{why}"
        status = "paused" if one.word == "paused" else "queued"
        found.append(_bar(axis, one.since, one.until, status, title, gap=True, now=now))
    return found


# the graph


@dataclass(frozen=True, slots=True)
class Knot:
    """A row of the graph: `lane` holds its dot, `passes` go by, `enters` come in from above, `leaves` goes on below.

    A lane carries one or more stages that the very same others still wait for, so that each way down it is a true edge.
    """

    lane: int
    passes: tuple[int, ...]
    enters: tuple[int, ...]
    leaves: int | None

    @property
    def width(self) -> int:
        """How many lanes this row needs."""
        return max(self.lane, *self.passes, *self.enters, self.leaves or 0, 0) + 1


def in_order(needs: Sequence[Sequence[int]]) -> list[int]:
    """The stages so that each comes after what it waits for, otherwise by position."""
    waits = [len(needed) for needed in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for position, needed in enumerate(needs):
        for other in needed:
            followers[other].append(position)
    free = [position for position, count in enumerate(waits) if not count]
    heapq.heapify(free)
    found = []
    while free:
        position = heapq.heappop(free)
        found.append(position)
        for follower in followers[position]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(free, follower)
    return found


def knots_of(needs: Sequence[Sequence[int]]) -> list[Knot]:
    """The graph's rows, of rows in an order in which each comes after what it needs."""
    waiting: list[set[int]] = [set() for _ in needs]
    for row, needed in enumerate(needs):
        for other in needed:
            waiting[other].add(row)
    lanes: list[set[int]] = []  # by lane: who still waits for what it carries; none, and it is free
    found = []
    for row, followers in enumerate(waiting):
        enters = tuple(lane for lane, targets in enumerate(lanes) if row in targets)
        for lane in enters:
            lanes[lane].discard(row)
        passes = tuple(lane for lane, targets in enumerate(lanes) if targets)
        ended = [lane for lane in enters if not lanes[lane]]
        free = ended or [lane for lane, targets in enumerate(lanes) if not targets] or [len(lanes)]
        own = free[0]
        leaves = next((lane for lane in passes if lanes[lane] == followers), own) if followers else None
        if leaves == own:
            lanes.extend(set[int]() for _ in range(own + 1 - len(lanes)))
            lanes[own] = set(followers)
        found.append(Knot(own, passes, enters, leaves))
    return found


def lanes_of(knots: Sequence[Knot]) -> int:
    """How many lanes the graph is wide; 1 of stages that run one after another."""
    return max((knot.width for knot in knots), default=0)


def _wait(axis: Axis, gate: Gate, now: datetime) -> Bar:
    title = f"decision {gate.state}, asked for at {_clock(gate.opened_at)}"
    return _bar(axis, gate.opened_at, gate.closed_at, "waiting", title, gap=True, now=now)


def _bar(
    axis: Axis,
    begun: datetime,
    ended: datetime | None,
    status: str,
    title: str,
    *,
    gap: bool = False,
    faded: bool = False,
    now: datetime | None = None,
) -> Bar:
    x = axis.place(begun)
    # a retry may be due beyond the end: the frame hides that until the axis grows
    width = axis.after(ended or now or axis.end) - x
    return Bar(x, round(max(width, 0.0), 3), status, title, gap, grows=ended is None, faded=faded)


def _title(one: Try, begun: datetime) -> str:
    state = AttemptState(one.state).value.replace("_", " ")
    code = f" with {one.error_code}" if one.error_code else ""
    return f"attempt {one.number} {state}{code}, {_span(begun, one.finished_at)}, worker {one.worker or 'unknown'}"


def _span(begun: datetime, ended: datetime | None) -> str:
    return f"{_clock(begun)} to {_clock(ended)}" if ended else f"since {_clock(begun)}"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M:%S}"


def _label(moment: datetime, step: float) -> str:
    if step >= _DAY or (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0):
        return f"{moment:%m-%d}"
    if step >= _MINUTE:
        return f"{moment:%H:%M}"
    return f"{moment:%H:%M:%S}" if step >= _SECOND else f"{moment:%H:%M:%S.%f}"[:-4]
