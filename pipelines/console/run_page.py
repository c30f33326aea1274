"""Everything that the run page shows, gathered in a fixed number of statements however many stages and attempts."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipelines import queries
from pipelines.access import Actor
from pipelines.blockers import NO_WORKER, NOBODY, PERSON, Blocker
from pipelines.console import checkpoint_pages, drawing, offers
from pipelines.console.events import MINOR, Told, tell
from pipelines.console.overview import TELLING
from pipelines.errors import Refusal
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
from pipelines.sql import database_now, planned
from pipelines.states import ACTIVE_ATTEMPT, OPEN_DEAD_LETTER, TERMINAL_RUN, GateState, RunStatus, StageState
from pipelines.transitions import reconciliation_list

EVENTS_SHOWN = 30
ATTEMPTS_SHOWN = 50
ATTEMPTS_DRAWN = 2000  # of the whole run
EARLIER_SHOWN = 10
LOG_LINES_SHOWN = 500
EVENTS_PER_PAGE = 1000


@dataclass(slots=True)
class StageLine:
    """A stage as a row: its bars on the run's axis, its newest gate of this epoch, what it needs, what one may do."""

    stage: Stage
    bars: list[drawing.Bar]
    ticks: list[drawing.Tick]
    tries: int
    gate: Gate | None
    letter: DeadLetter | None
    needs: list[str]
    letter_offers: list[offers.Offer]
    offers: list[offers.Offer]

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
    """The run page. `pulse` changes whenever something on the page did; `followers` only wait for other stages."""

    run: Run
    key: str
    pulse: str
    axis: drawing.Axis
    lines: list[StageLine]
    chosen: StageLine
    earlier: list[StageOutput]  # of the chosen stage, those that do not count any more, newest first
    attempts: list[Attempt]
    more_attempts: bool
    offers: list[offers.Offer]
    holds: list[Hold]
    followers: list[Blocker]
    events: list[Told]
    outside: list[dict[str, Any]]
    checkpoints: checkpoint_pages.Recent
    sections: list[Section]
    now: datetime

    @property
    def live(self) -> bool:
        return self.run.status not in TERMINAL_RUN

    @property
    def following(self) -> int:
        """How many stages only wait for others; each may wait for several."""
        return len({blocker.stage_id for blocker in self.followers})

    @property
    def moving(self) -> bool:
        """Whether something of the run is under way, so that it waits rather than stands."""
        return self.run.status in (RunStatus.RUNNING, RunStatus.PAUSING)

    @property
    def headline(self) -> str:
        """The state in words, with the stage that it stands at."""
        word = RunStatus(self.run.status).value.capitalize()
        if self.run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.QUEUED):
            return word
        if self.run.failure_code == "deadline_exceeded":
            return f"{word} at its deadline"
        at_fault = next((line for line in self.lines if line.stage.id == self.run.failure_stage), None)
        return f"{word} at {(at_fault or _telling(self.lines)).stage.name}"

    @property
    def undrawn(self) -> bool:
        """Whether there are more attempts than are drawn."""
        return sum(line.tries for line in self.lines) > ATTEMPTS_DRAWN

    @property
    def done(self) -> int:
        return sum(line.stage.state in (StageState.COMPLETED, StageState.SKIPPED) for line in self.lines)

    @property
    def span_end(self) -> datetime:
        """Where the time that the run has taken ends: with it, or now."""
        return self.run.finished_at or self.now


@dataclass(slots=True)
class AttemptLook:
    """One attempt to its bottom. `text_in` is what went in; `input_changed`: the stage has another input now."""

    run: Run
    attempt: Attempt
    text_in: str | None
    input_changed: bool
    output: str | None
    logs: list[LogLine]
    more_logs: bool
    late: list[LateEvidence]
    now: datetime


def pulse(actor: Actor, run_id: uuid.UUID) -> str:
    """What changes whenever the run page would: its last event and the last word of progress; 404 when not visible."""
    if not queries.visible_runs(actor).filter(id=run_id).exists():
        raise Refusal("not_found", "there is no such run")
    event, progress = planned(
        "SELECT (SELECT max(id) FROM pipelines_event WHERE run_id = %(run)s), (SELECT max(p.at) FROM pipelines_stage s"
        " JOIN pipelines_attempt a ON a.stage_id = s.id AND a.state IN ('dispatched', 'running')"
        " JOIN pipelines_attemptprogress p ON p.attempt_id = a.id WHERE s.run_id = %(run)s)",
        {"run": run_id},
    )[0]
    return f"{event or 0}.{int(progress.timestamp() * 1000) if progress else 0}"


def look(actor: Actor, run_id: uuid.UUID, position: int | None) -> RunLook:
    """The run page with the stage at `position` opened, or the one that matters most; 404 when not visible."""
    run = queries.run_detail(actor, run_id)
    beat, now = pulse(actor, run_id), database_now()
    stages = queries.stages(run)
    attempts, gates = (
        _by_stage(_light_attempts(stages)),
        _by_stage(list(Gate.objects.filter(stage__in=stages).order_by("opened_at"))),
    )
    letters = {
        letter.stage_id: letter
        for letter in DeadLetter.objects.filter(stage__in=stages, state__in=sorted(OPEN_DEAD_LETTER)).select_related(
            "stage", "run"
        )
    }
    axis = drawing.axis_of(run, [attempt for found in attempts.values() for attempt in found], now)
    names = {stage.position: stage.name for stage in stages}
    ticks = checkpoint_pages.ticks(run, axis)
    lines = [
        _line(
            stage,
            run,
            actor,
            axis=axis,
            attempts=attempts[stage.id],
            ticks=ticks.get(stage.id, []),
            gates=gates[stage.id],
            letter=letters.get(stage.id),
            names=names,
            now=now,
        )
        for stage in stages
    ]
    chosen = next((line for line in lines if line.stage.position == position), None) or _telling(lines)
    shown = list(queries.attempts(run, chosen.stage.id)[: ATTEMPTS_SHOWN + 1])
    blockers = queries.blockers(run)
    followers = {stage.id for stage in stages if stage.state == StageState.PENDING}
    identity = RunIdentity.objects.filter(run=run).values_list("key", flat=True).first()
    return RunLook(
        run=run,
        key=identity or "",
        pulse=beat,
        axis=axis,
        lines=lines,
        chosen=chosen,
        earlier=_earlier_outputs(chosen.stage),
        attempts=shown[:ATTEMPTS_SHOWN],
        more_attempts=len(shown) > ATTEMPTS_SHOWN,
        offers=offers.for_run(run, actor),
        holds=fold([blocker for blocker in blockers if blocker.stage_id not in followers], stages),
        followers=[blocker for blocker in blockers if blocker.stage_id in followers],
        events=recent_events(run, {stage.id: stage.name for stage in stages}),
        outside=reconciliation_list(run.id) if run.status == RunStatus.CANCELLED else [],
        checkpoints=checkpoint_pages.recent(run, {stage.id: stage.name for stage in stages}),
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


def recent_events(run: Run, names: dict[uuid.UUID, str]) -> list[Told]:
    """The newest events that matter to a person, newest first."""
    found = queries.timeline(run).exclude(kind__in=sorted(MINOR)).order_by("-id")[:EVENTS_SHOWN]
    return _told(list(found), names)


def all_events(actor: Actor, run_id: uuid.UUID) -> tuple[Run, list[Told]]:
    """Every event of a run in words, newest first, up to EVENTS_PER_PAGE."""
    run = queries.run_detail(actor, run_id)
    names = dict(Stage.objects.filter(run=run).values_list("id", "name"))
    return run, _told(list(queries.timeline(run).order_by("-id")[:EVENTS_PER_PAGE]), names)


def attempt_look(actor: Actor, attempt_id: uuid.UUID) -> AttemptLook:
    """One attempt with what went in, what came out and what was logged (P86); 404 when its run is not visible."""
    attempt = (
        Attempt.objects.filter(id=attempt_id, stage__run__in=queries.visible_runs(actor))
        .select_related("stage", "stage__run", "progress", "session")
        .first()
    )
    if attempt is None:
        raise Refusal("not_found", "there is no such attempt")
    logs = list(LogLine.objects.filter(attempt=attempt).order_by("id")[: LOG_LINES_SHOWN + 1])
    changed = Event.objects.filter(run_id=attempt.run_id, stage=attempt.stage_id, kind="stage.input_changed")
    changes = {event.data["epoch"]: event.data["previous"] for event in changed if event.data}
    # the first replacement after the attempt's epoch holds what went in then
    later = min((epoch for epoch in changes if epoch > attempt.epoch), default=None)
    return AttemptLook(
        run=attempt.stage.run,
        attempt=attempt,
        text_in=attempt.stage.input if later is None else changes[later],
        input_changed=later is not None,
        output=StageOutput.objects.filter(stage_id=attempt.stage_id, attempt=attempt.id)
        .values_list("body", flat=True)
        .first(),
        logs=logs[:LOG_LINES_SHOWN],
        more_logs=len(logs) > LOG_LINES_SHOWN,
        late=list(attempt.late_evidence.order_by("id")[:10]),
        now=database_now(),
    )


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


def _light_attempts(stages: Sequence[Stage]) -> list[Attempt]:
    """The newest attempts with only what the drawing needs, in order of their number."""
    fields = (
        "stage_id",
        "number",
        "state",
        "worker",
        "dispatched_at",
        "started_at",
        "finished_at",
        "error_code",
        "decision",
    )
    newest = Attempt.objects.filter(stage__in=stages).only(*fields).order_by("-dispatched_at", "-number")
    return sorted(newest[:ATTEMPTS_DRAWN], key=lambda attempt: attempt.number)


def _earlier_outputs(stage: Stage) -> list[StageOutput]:
    newest = queries.outputs(stage).order_by("-at", "-id")[: EARLIER_SHOWN + 1]
    return [output for output in newest if output.id != stage.output_id][:EARLIER_SHOWN]


def _by_stage(rows: Sequence[Any]) -> dict[uuid.UUID, list[Any]]:
    found: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.stage_id].append(row)
    return found


def _line(
    stage: Stage,
    run: Run,
    actor: Actor,
    *,
    axis: drawing.Axis,
    attempts: list[Attempt],
    ticks: list[drawing.Tick],
    gates: list[Gate],
    letter: DeadLetter | None,
    names: dict[int, str],
    now: datetime,
) -> StageLine:
    gate = next((gate for gate in reversed(gates) if gate.epoch == stage.epoch), None)
    denied = gate is not None and gate.state == GateState.REJECTED
    due = stage.available_at if stage.state == StageState.RETRY_SCHEDULED else None
    return StageLine(
        stage=stage,
        bars=drawing.bars_of(axis, attempts, gates, due, now),
        ticks=ticks,
        tries=max(stage.attempt_number, len(attempts)),
        gate=gate,
        letter=letter,
        needs=[names[position] for position in stage.depends_on],
        offers=offers.for_stage(stage, run, actor, denied=denied),
        # redriving is what retrying the stage does
        letter_offers=[one for one in offers.for_letter(letter, actor) if one.verb != "redrive"] if letter else [],
    )


def _telling(lines: Sequence[StageLine]) -> StageLine:
    """The stage that an operator came to see."""
    ended = (StageState.COMPLETED, StageState.SKIPPED)
    return min(
        lines,
        key=lambda line: (
            TELLING.index(StageState(line.stage.state)),
            -line.stage.position if line.stage.state in ended else line.stage.position,
        ),
    )


def _told(events: Sequence[Event], names: dict[uuid.UUID, str]) -> list[Told]:
    return [tell(event, event.at, names.get(event.stage, "") if event.stage else "") for event in events]
