"""Everything that the run page shows, gathered in a fixed number of statements however many stages and attempts."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef
from django.db.models.functions import Left, Length

from pipelines import queries
from pipelines.access import Actor
from pipelines.blockers import CLOCK, NO_WORKER, NOBODY, PERSON, Blocker
from pipelines.console import aftermath_pages, checkpoint_pages, drawing, faults, offers
from pipelines.console.events import MINOR, Told, tell
from pipelines.console.folding import fold_attempts, fold_rows, mood_of
from pipelines.console.offers import Offer
from pipelines.console.overview import TELLING
from pipelines.errors import Refusal
from pipelines.limits import Limits
from pipelines.models import (
    Attempt,
    DeadLetter,
    Event,
    Gate,
    LateEvidence,
    LogLine,
    Run,
    RunIdentity,
    Stage,
    StageOutput,
)
from pipelines.queries import PolicyView
from pipelines.retries import recompute
from pipelines.sql import database_now, planned
from pipelines.states import ACTIVE_ATTEMPT, TERMINAL_RUN, GateState, RunStatus, StageState

EVENTS_SHOWN = 12
ROWS_SHOWN = 40  # stages with a row each; of more, neighbours are folded
BARS_DRAWN = 200  # attempts of the whole run, shared by its rows
FEWEST_DRAWN, MOST_DRAWN = 3, 30  # newest attempts of one row
ATTEMPTS_SHOWN, ATTEMPTS_AT_ONCE = 8, 200  # lines at first; attempts that are asked for
EARLIER_SHOWN = 10
FOLLOWERS_SHOWN = 12
PAUSES_DRAWN = 100
ATTEMPTS_IN_TABLE = 1000
LOG_LINES_SHOWN = 500
EVENTS_PER_PAGE = 1000
CUT, CUT_EARLIER = 3_000, 300  # characters of a text on the run page


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody has opened: a stage by position, all rows, all attempts. `since`: when they opened the page.

    What has ended after that stays unfolded, so that no row goes away while it is read.
    """

    stage: int | None = None
    rows: bool = False
    attempts: bool = False
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text: `more` characters are left out; the whole is a `kind` of `item`."""

    text: str
    more: int
    kind: str
    item: uuid.UUID


@dataclass(frozen=True, slots=True)
class StageLine:
    """A row of the timeline: one stage, or neighbours that are folded. Its bars on the run's axis, its place in the
    graph, and what it waits for."""

    key: str  # tells rows apart; a folded row that holds others is another one
    stages: Sequence[Stage]
    bars: Sequence[drawing.Bar]
    ticks: Sequence[drawing.Tick]
    knot: drawing.Knot
    needs: Sequence[str]
    is_chosen: bool

    @property
    def stage(self) -> Stage:
        return self.stages[0]

    @property
    def last(self) -> Stage:
        return self.stages[-1]

    @property
    def is_folded(self) -> bool:
        return len(self.stages) > 1

    @property
    def mood(self) -> str:
        return mood_of(self.stage.state)

    @property
    def tries(self) -> int:
        return sum(stage.attempt_number for stage in self.stages)


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """Attempts that ended alike, newest first: the newest speaks for them. `resumed`: from which checkpoint it went on;
    `decided`: what came of its failure, in words."""

    newest: Attempt
    others: Sequence[Attempt]
    resumed: int | None
    decided: str
    is_late: bool

    @property
    def count(self) -> int:
        return len(self.others) + 1

    @property
    def oldest(self) -> Attempt:
        return self.others[-1] if self.others else self.newest


@dataclass(frozen=True, slots=True)
class Chosen:
    """The stage that is opened: its newest gate of this epoch, its dead letter, what one may do, what went in and out.

    `earlier`: outputs that do not count any more, newest first. `attempts` in lines; `more`: not all are shown.
    """

    stage: Stage
    needs: Sequence[str]
    gate: Gate | None
    letter: DeadLetter | None
    offers: Sequence[Offer]
    letter_offers: Sequence[Offer]
    text_in: Excerpt | None
    text_out: Excerpt | None
    restored: bool
    earlier: Sequence[tuple[StageOutput, Excerpt]]
    attempts: Sequence[AttemptLine]
    more: bool
    policies: Sequence[PolicyView]
    limits: Limits

    @property
    def allowance(self) -> int:
        """The bytes that its next attempt is charged."""
        return self.limits.allowance(self.stage.options)

    @property
    def most_attempts(self) -> int | None:
        """How many attempts its run lets it have; none where that is as usual."""
        most = self.limits.attempts_per_stage
        return most if most != Limits().attempts_per_stage else None

    @property
    def open_gate(self) -> Gate | None:
        return self.gate if self.gate is not None and self.gate.state == GateState.OPEN else None


@dataclass(slots=True)
class Hold:
    """One cause with all stages that it holds, as (name, position); without stages it holds the whole run."""

    blocker: Blocker
    stages: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that another app adds: `place` is main or aside; its template gets `data`."""

    place: str
    template: str
    data: Any


_sections: list[Callable[[Actor, Run], list[Section]]] = []


def with_sections(find: Callable[[Actor, Run], list[Section]]) -> None:
    """From now on the page has these too."""
    if find not in _sections:
        _sections.append(find)


@dataclass(slots=True)
class RunLook:
    """The run page. `beat` changes whenever something on it did. `followers` are some of those that only wait for other
    stages, `unlisted` how many more there are, `following` how many stages do. `undrawn`: rows leave attempts
    out."""

    run: Run
    wish: Wish
    key: str
    text_in: Excerpt | None
    beat: str
    axis: drawing.Axis
    marks: Sequence[drawing.Mark]
    pauses: Sequence[drawing.Bar]
    stages: Sequence[Stage]
    lines: Sequence[StageLine]
    lanes: int
    undrawn: bool
    chosen: Chosen
    fault: faults.Fault | None
    offers: Sequence[Offer]
    holds: Sequence[Hold]
    followers: Sequence[Blocker]
    following: int
    unlisted: int
    events: Sequence[Told]
    outside: aftermath_pages.Outside
    checkpoints: checkpoint_pages.Recent
    sections: Sequence[Section]
    now: datetime

    @property
    def live(self) -> bool:
        return self.run.status not in TERMINAL_RUN

    @property
    def retries_itself(self) -> bool:
        """Whether a retry of the whole failed run is due, so that nobody must act."""
        return self.run.status == RunStatus.FAILED and any(hold.blocker.holder == CLOCK for hold in self.holds)

    @property
    def moving(self) -> bool:
        """Whether something of the run is under way, so that it waits rather than stands."""
        return self.run.status in (RunStatus.RUNNING, RunStatus.PAUSING)

    @property
    def headline(self) -> str:
        """The state in words, with the stage that it stands at."""
        return faults.headline(self.run, _speaking(self.run, self.stages))

    @property
    def main_is_above(self) -> bool:
        """Whether the main act stands at the head already, because what is opened is what the run stands at."""
        main, fault = self.main_offer, self.fault
        if main is None or fault is None:
            return False
        return any((one.verb, one.target) == (main.verb, main.target) for one, *_ in fault.offers)

    @property
    def main_offer(self) -> Offer | None:
        """The act that an operator most likely came for, of those that are possible."""
        wanted = {offer.verb: offer for offer in (*self.offers, *self.chosen.offers) if not offer.refusal}
        return next((wanted[verb] for verb in ("reconcile", "retry", "resume", "rerun") if verb in wanted), None)

    @property
    def stage_main(self) -> Offer | None:
        """The main act where it is marked beside the stage; each is marked once."""
        return None if self.main_is_above else self.main_offer

    @property
    def folded(self) -> bool:
        return any(line.is_folded for line in self.lines)

    @property
    def graph_drawn(self) -> bool:
        """Whether the graph has a shape to show, and one that has room."""
        return 1 < self.lanes <= drawing.MOST_LANES

    @property
    def graph_too_wide(self) -> bool:
        return self.lanes > drawing.MOST_LANES

    @property
    def done(self) -> int:
        return sum(stage.state in (StageState.COMPLETED, StageState.SKIPPED) for stage in self.stages)


@dataclass(frozen=True, slots=True)
class AttemptLook:
    """One attempt to its bottom. `text_in` is what went in; `input_changed`: the stage has another input now.

    `is_recomputed`: its retry decision comes out the same from what the attempt keeps of it; none without a decision.
    """

    run: Run
    attempt: Attempt
    text_in: str | None
    input_changed: bool
    output: str | None
    output_id: uuid.UUID | None
    resumed: int | None
    is_recomputed: bool | None
    logs: Sequence[LogLine]
    more_logs: bool
    late: Sequence[LateEvidence]
    now: datetime


def beat(actor: Actor, run_id: uuid.UUID) -> str:
    """What changes whenever the run page would: its last event, the last word of progress, and the axis, which is
    moved on now and then; 404 when not visible."""
    run = queries.visible_runs(actor).filter(id=run_id).only("status", "created_at", "finished_at").first()
    if run is None:
        raise Refusal("not_found", "there is no such run")
    event, progress, now = planned(
        "SELECT (SELECT max(id) FROM pipelines_event WHERE run_id = %(run)s), (SELECT max(p.at) FROM pipelines_stage s"
        " JOIN pipelines_attempt a ON a.stage_id = s.id AND a.state IN ('dispatched', 'running')"
        " JOIN pipelines_attemptprogress p ON p.attempt_id = a.id WHERE s.run_id = %(run)s), recourse_now()",
        {"run": run_id},
    )[0]
    axis = drawing.axis_of(run.created_at, drawing.end_of(run.status, run.finished_at), None, now)
    return f"{event or 0}.{int(progress.timestamp() * 1000) if progress else 0}.{int(axis.span)}"


def look(actor: Actor, run_id: uuid.UUID, wish: Wish) -> RunLook:
    """The run page with a stage opened: the one that is wished for, or that matters most; 404 when not visible."""
    run = queries.run_detail(actor, run_id)
    pulse, now = beat(actor, run_id), database_now()
    stages = list(Stage.objects.filter(run=run).defer("input", "description").order_by("position"))
    order = drawing.in_order([stage.depends_on for stage in stages])
    stages_in_order = [stages[position] for position in order]
    telling = next((stage for stage in stages if stage.position == wish.stage), None) or _telling(stages)
    speaking = _speaking(run, stages)
    rows = _rows(stages_in_order, telling, wish)
    most = max(FEWEST_DRAWN, min(MOST_DRAWN, BARS_DRAWN // len(rows)))
    tries = _tries([row[0].id for row in rows if len(row) == 1], most)
    gates = _by_stage(list(Gate.objects.filter(run=run).order_by("opened_at")))
    last = max((one.finished_at for some in tries.values() for one in some if one.finished_at), default=None)
    axis = drawing.axis_of(run.created_at, drawing.end_of(run.status, run.finished_at), last, now)
    ticks = checkpoint_pages.ticks(run, axis)
    knots = drawing.knots_of(_needs_of(rows))
    names = [stage.name for stage in stages]
    lines = [
        _line(row, knot, axis=axis, tries=tries, gates=gates, ticks=ticks, names=names, chosen=telling, now=now)
        for row, knot in zip(rows, knots, strict=True)
    ]
    blockers = queries.blockers(run, stages)
    followers = {stage.id for stage in stages if stage.state == StageState.PENDING}
    waiting = [blocker for blocker in blockers if blocker.stage_id in followers]
    by_id = {stage.id: stage.name for stage in stages}
    chosen = _chosen(telling, run, actor, gates[telling.id], names, wish)
    letter = chosen.letter if speaking is telling else faults.letter_of(speaking, run)
    return RunLook(
        run=run,
        wish=wish,
        key=RunIdentity.objects.filter(run=run).values_list("key", flat=True).first() or "",
        text_in=_cut(run.input[:CUT_EARLIER], len(run.input), "run-input", run.id) if run.input else None,
        beat=pulse,
        axis=axis,
        marks=drawing.marks_of(axis),
        pauses=drawing.pause_bars(axis, _pauses(run), now),
        stages=stages_in_order,
        lines=lines,
        lanes=drawing.lanes_of(knots),
        undrawn=any(len(row) == 1 and row[0].attempt_number > most for row in rows),
        chosen=chosen,
        fault=faults.find(run, speaking, gates[speaking.id], letter, actor),
        offers=offers.for_run(run, actor),
        holds=fold([blocker for blocker in blockers if blocker.stage_id not in followers], stages),
        followers=waiting[:FOLLOWERS_SHOWN],
        unlisted=max(len(waiting) - FOLLOWERS_SHOWN, 0),
        following=len({blocker.stage_id for blocker in waiting}),
        events=recent_events(run, by_id),
        outside=aftermath_pages.outside(actor, run.id),
        checkpoints=checkpoint_pages.recent(run, by_id),
        sections=[section for find in _sections for section in find(actor, run)],
        now=now,
    )


def fold(blockers: Sequence[Blocker], stages: Sequence[Stage]) -> list[Hold]:
    """The same cause once, however many stages it holds; what somebody must do comes first."""
    positions = {stage.id: stage.position for stage in stages}
    found: dict[tuple[str, str], Hold] = {}
    for blocker in sorted(blockers, key=_urgency):
        hold = found.setdefault((blocker.holder, blocker.cause), Hold(blocker, []))
        if blocker.stage_id is not None:
            hold.stages.append((blocker.stage, positions[blocker.stage_id]))
    return list(found.values())


def recent_events(run: Run, names: Mapping[uuid.UUID, str]) -> list[Told]:
    """The newest events that matter to a person, newest first."""
    found = queries.timeline(run).exclude(kind__in=sorted(MINOR)).order_by("-id")[:EVENTS_SHOWN]
    return _told(list(found), names)


def all_events(actor: Actor, run_id: uuid.UUID) -> tuple[Run, list[Told]]:
    """Every event of a run in words, newest first, up to EVENTS_PER_PAGE."""
    run = queries.run_detail(actor, run_id)
    names = dict(Stage.objects.filter(run=run).values_list("id", "name"))
    return run, _told(list(queries.timeline(run).order_by("-id")[:EVENTS_PER_PAGE]), names)


def timeline(actor: Actor, run_id: uuid.UUID) -> tuple[Run, list[Attempt], list[Gate]]:
    """What the drawing shows, for a table: attempts by stage and number, up to ATTEMPTS_IN_TABLE and one, and gates."""
    run = queries.run_detail(actor, run_id)
    attempts = Attempt.objects.filter(stage__run=run).select_related("stage").defer("traceback", "stage__input")
    gates = Gate.objects.filter(run=run).select_related("stage").defer("stage__input").order_by("opened_at")
    return run, list(attempts.order_by("stage__position", "number")[: ATTEMPTS_IN_TABLE + 1]), list(gates)


def attempt_look(actor: Actor, attempt_id: uuid.UUID) -> AttemptLook:
    """One attempt with what went in, what came out and what was logged (P86); 404 when its run is not visible."""
    attempt = (
        Attempt.objects.filter(id=attempt_id, stage__run__in=queries.visible_runs(actor))
        .select_related("stage", "stage__run", "progress", "session", "termination")
        .first()
    )
    if attempt is None:
        raise Refusal("not_found", "there is no such attempt")
    logs = list(LogLine.objects.filter(attempt=attempt).order_by("id")[: LOG_LINES_SHOWN + 1])
    text_in, changed = input_then(attempt)
    output = StageOutput.objects.filter(stage_id=attempt.stage_id, attempt=attempt.id).first()
    return AttemptLook(
        run=attempt.stage.run,
        attempt=attempt,
        text_in=text_in,
        input_changed=changed,
        output=output.body if output else None,
        output_id=output.id if output else None,
        resumed=_resumed(attempt.stage, [attempt.id]).get(attempt.id),
        is_recomputed=is_recomputed(attempt.decision),
        logs=logs[:LOG_LINES_SHOWN],
        more_logs=len(logs) > LOG_LINES_SHOWN,
        late=list(attempt.late_evidence.order_by("id")[:10]),
        now=database_now(),
    )


def input_then(attempt: Attempt) -> tuple[str | None, bool]:
    """What went into an attempt, and whether its stage has another input since; `attempt` with its stage."""
    changed = Event.objects.filter(run_id=attempt.run_id, stage=attempt.stage_id, kind="stage.input_changed")
    changes = {event.data["epoch"]: event.data["previous"] for event in changed if event.data}
    # the first replacement after the attempt's epoch holds what went in then
    later = min((epoch for epoch in changes if epoch > attempt.epoch), default=None)
    return (attempt.stage.input, False) if later is None else (changes[later], True)


def is_recomputed(decision: Mapping[str, Any] | None) -> bool | None:
    """Whether a stored retry decision comes out the same from what it was decided on (F166)."""
    if decision is None:
        return None
    again = recompute(decision).as_json()
    return all(decision.get(name) == again[name] for name in ("retry", "verdict", "source", "delay", "retries_left"))


def held_by(session_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[Attempt]]:
    """The attempts that these worker sessions hold now, with stage and run."""
    found: dict[uuid.UUID, list[Attempt]] = defaultdict(list)
    rows = Attempt.objects.filter(session__in=session_ids, state__in=sorted(ACTIVE_ATTEMPT))
    for attempt in rows.select_related("stage", "stage__run").order_by("expires_at"):
        found[attempt.session_id].append(attempt)  # type: ignore[index]
    return found


def _urgency(blocker: Blocker) -> int:
    if blocker.stage_id is None:
        return 0
    return {PERSON: 1, NOBODY: 1, NO_WORKER: 2}.get(blocker.holder, 3)


# the timeline


def _rows(stages: Sequence[Stage], telling: Stage, wish: Wish) -> list[list[Stage]]:
    """The stages of each row. What has ended since the page was opened is told apart from what had ended before."""
    if wish.rows:
        return [[stage] for stage in stages]
    kept = {
        index
        for index, stage in enumerate(stages)
        if stage is telling or (wish.since and stage.finished_at and stage.finished_at > wish.since)
    }
    states = [stage.state for stage in stages]
    return [[stages[index] for index in row] for row in fold_rows(states, kept, ROWS_SHOWN)]


def _needs_of(rows: Sequence[Sequence[Stage]]) -> list[list[int]]:
    """By row, the rows that it comes after."""
    row_of = {stage.position: index for index, row in enumerate(rows) for stage in row}
    return [
        sorted({row_of[position] for stage in row for position in stage.depends_on} - {index})
        for index, row in enumerate(rows)
    ]


def _tries(stage_ids: Sequence[uuid.UUID], most: int) -> dict[uuid.UUID, list[drawing.Try]]:
    """The newest attempts of each stage, and its first one, in order of their number."""
    fields = (
        "a.stage_id, a.number, a.epoch, a.state, a.worker, a.dispatched_at, a.started_at, a.finished_at, a.error_code,"
        " coalesce((a.decision->>'retry')::boolean, false) AND coalesce((a.decision->>'applied')::boolean, true)"
    )
    rows = planned(
        f"SELECT t.* FROM unnest(%(ids)s::uuid[]) s(id) CROSS JOIN LATERAL ((SELECT {fields} FROM pipelines_attempt a"  # noqa: S608
        f" WHERE a.stage_id = s.id ORDER BY a.number DESC LIMIT %(most)s) UNION (SELECT {fields}"
        " FROM pipelines_attempt a WHERE a.stage_id = s.id ORDER BY a.number LIMIT 1)) t ORDER BY t.stage_id, t.number",
        {"ids": list(stage_ids), "most": most},
    )
    found: dict[uuid.UUID, list[drawing.Try]] = defaultdict(list)
    for stage_id, *told in rows:
        found[stage_id].append(drawing.Try(*told))
    return found


def _pauses(run: Run) -> list[drawing.Pause]:
    """When the run was held and paused, and who paused it why."""
    kinds = ("run.pause", "run.resume", "run.stand_in_lane", "run.let_in")
    events = list(Event.objects.filter(run=run, kind__in=kinds).order_by("-id")[:PAUSES_DRAWN])[::-1]
    ended = drawing.end_of(run.status, run.finished_at)
    found, begun, held_since = [], None, run.created_at
    for event in events:
        if event.kind == "run.pause":
            begun = begun or event
        elif event.kind == "run.stand_in_lane":
            held_since = event.at
        elif event.kind == "run.let_in":
            found.append(drawing.Pause("held", held_since, event.at, "", ""))
        elif begun is not None:
            found.append(drawing.Pause("paused", begun.at, event.at, begun.actor, begun.reason))
            begun = None
    if begun is not None:
        found.append(drawing.Pause("paused", begun.at, ended, begun.actor, begun.reason))
    if run.held:
        found.append(drawing.Pause("held", held_since, ended, "", ""))
    return found


def _line(
    row: Sequence[Stage],
    knot: drawing.Knot,
    *,
    axis: drawing.Axis,
    tries: Mapping[uuid.UUID, Sequence[drawing.Try]],
    gates: Mapping[uuid.UUID, Sequence[Gate]],
    ticks: Mapping[uuid.UUID, Sequence[drawing.Tick]],
    names: Sequence[str],
    chosen: Stage,
    now: datetime,
) -> StageLine:
    stage = row[0]
    if len(row) > 1:
        key, needs = f"{stage.position}-{row[-1].position}-{len(row)}", []
        bars, marked = _folded_bars(row, axis, now), []
    else:
        key, needs = str(stage.position), [names[position] for position in stage.depends_on]
        some = tries.get(stage.id, [])
        bars = drawing.bars_of(
            axis,
            some,
            gates.get(stage.id, []),
            now,
            epoch=stage.epoch,
            due=stage.available_at if stage.state == StageState.RETRY_SCHEDULED else None,
            ready=stage.available_at if stage.state == StageState.READY else None,
        )
        marked = [*drawing.epochs_of(axis, some), *ticks.get(stage.id, [])]
    return StageLine(key, row, bars, marked, knot, needs, stage is chosen)


def _folded_bars(row: Sequence[Stage], axis: drawing.Axis, now: datetime) -> list[drawing.Bar]:
    begun = [stage.started_at for stage in row if stage.started_at]
    if not begun:
        return []
    ended = [stage.finished_at for stage in row]
    end = max((moment for moment in ended if moment), default=None) if all(ended) else None
    return [drawing.summary_bar(axis, min(begun), end, mood_of(row[0].state), f"{len(row)} stages", now)]


# the stage that is opened


def _chosen(light: Stage, run: Run, actor: Actor, gates: Sequence[Gate], names: Sequence[str], wish: Wish) -> Chosen:
    stage = (
        Stage.objects.filter(id=light.id)
        .defer("input")
        .annotate(text_in=Left("input", CUT), text_in_size=Length("input"))
        .get()
    )
    stage.run = run
    letter = faults.letter_of(stage, run)
    gate = next((gate for gate in reversed(gates) if gate.epoch == stage.epoch), None)
    denied = gate is not None and gate.state == GateState.REJECTED
    outputs = list(
        queries.outputs(stage)
        .defer("body")
        .annotate(beginning=Left("body", CUT), characters=Length("body"))
        .order_by("-at", "-id")[: EARLIER_SHOWN + 1]
    )
    current = next((output for output in outputs if output.id == stage.output_id), None)
    attempts, more = _attempt_lines(stage, wish)
    return Chosen(
        stage=stage,
        needs=[names[position] for position in stage.depends_on],
        gate=gate,
        letter=letter,
        offers=offers.for_stage(stage, run, actor, denied=denied),
        letter_offers=faults.of_letter(letter, actor),
        text_in=_cut(stage.text_in, stage.text_in_size, "stage-input", stage.id)
        if stage.text_in_size is not None
        else None,
        text_out=_cut(current.beginning, current.characters, "output", current.id) if current else None,
        restored=current is not None and current.restored_from is not None,
        earlier=[
            (output, _cut(output.beginning[:CUT_EARLIER], output.characters, "output", output.id))
            for output in outputs
            if output is not current
        ][:EARLIER_SHOWN],
        attempts=attempts,
        more=more,
        policies=queries.effective_policies(stage),
        limits=Limits.of(run.limits),
    )


def _cut(text: str, size: int, kind: str, item: uuid.UUID) -> Excerpt:
    return Excerpt(text, size - len(text), kind, item)


def _attempt_lines(stage: Stage, wish: Wish) -> tuple[list[AttemptLine], bool]:
    """The newest attempts in lines, equal errors in one; each by itself where all are wished for."""
    found = list(
        Attempt.objects.filter(stage=stage)
        .select_related("progress", "termination")
        .defer("traceback", "usage", "request_digest", "result_digest")
        .annotate(late=Exists(LateEvidence.objects.filter(attempt=OuterRef("id"))))
        .order_by("-number")[: ATTEMPTS_AT_ONCE + 1]
    )
    groups = [[attempt] for attempt in found] if wish.attempts else fold_attempts(found)
    shown = groups[: ATTEMPTS_AT_ONCE if wish.attempts else ATTEMPTS_SHOWN]
    resumed = _resumed(stage, [group[0].id for group in shown])
    lines = [
        AttemptLine(
            newest=group[0],
            others=group[1:],
            resumed=resumed.get(group[0].id),
            decided=decided(group[0].decision),
            is_late=any(attempt.late for attempt in group),
        )
        for group in shown
    ]
    return lines, len(groups) > len(shown) or len(found) > ATTEMPTS_AT_ONCE


def decided(decision: Mapping[str, Any] | None) -> str:
    """What came of a failure, in a few words."""
    if decision is None:
        return ""
    if decision.get("applied") is False:
        return "not decided: its effects are in doubt"
    if decision["retry"]:
        return f"tried again after {decision['delay']:g} s, {decision['retries_left']} left"
    return {
        "terminal_error": "not tried again: its code is terminal",
        "not_retryable": "not tried again: the worker said so",
        "code_not_listed": "not tried again: its code is not listed",
        "no_rule": "not tried again: no retries",
        "retries_exhausted": f"not tried again: {decision['retries_used']} of {decision['max_retries']} retries used",
    }.get(decision["verdict"], "not tried again")


def _resumed(stage: Stage, attempt_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """From which checkpoint each attempt went on: the newest state that its epoch had left when it was handed out."""
    rows = planned(
        "SELECT a.id, (SELECT c.sequence FROM pipelines_checkpoint c WHERE c.run_id = %(run)s AND c.stage = a.stage_id"
        " AND c.epoch = a.epoch AND c.moment IN ('handler', 'restored') AND c.recorded_at <= a.dispatched_at"
        " AND c.attempt IS DISTINCT FROM a.id ORDER BY c.sequence DESC LIMIT 1) FROM pipelines_attempt a"
        " WHERE a.id = ANY(%(ids)s) AND NOT EXISTS (SELECT FROM pipelines_event e WHERE e.run_id = %(run)s"
        " AND e.attempt = a.id AND e.kind = 'stage.checkpoint_refused')",
        {"run": stage.run_id, "ids": list(attempt_ids)},
    )
    return {attempt_id: sequence for attempt_id, sequence in rows if sequence is not None}


def _by_stage(rows: Sequence[Gate]) -> dict[uuid.UUID, list[Gate]]:
    found: dict[uuid.UUID, list[Gate]] = defaultdict(list)
    for row in rows:
        found[row.stage_id].append(row)
    return found


def _telling(stages: Sequence[Stage]) -> Stage:
    """The stage that an operator came to see."""
    ended = (StageState.COMPLETED, StageState.SKIPPED)
    return min(
        stages,
        key=lambda stage: (
            TELLING.index(StageState(stage.state)),
            -stage.position if stage.state in ended else stage.position,
        ),
    )


def _speaking(run: Run, stages: Sequence[Stage]) -> Stage:
    """The stage at which the run failed, or the one that an operator came to see."""
    return next((stage for stage in stages if stage.id == run.failure_stage), None) or _telling(stages)


def _told(events: Sequence[Event], names: Mapping[uuid.UUID, str]) -> list[Told]:
    return [tell(event, event.at, names.get(event.stage, "") if event.stage else "") for event in events]
