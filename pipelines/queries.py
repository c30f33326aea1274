"""Reads that are more than a line, shared by the operations API and the screens.

What somebody may not see is left out in the query itself: another workspace's rows always, and for an application key
everything but its application's runs in its environment (I16, F144). A foreign id is 404, as if it did not exist.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from django.conf import settings
from django.db.models import F, Prefetch, Q, QuerySet

from pipelines import blackouts, failures, holders, lanes, listing, places, policies, recipients, throttle_use
from pipelines.access import Actor
from pipelines.blackouts import Active
from pipelines.blockers import NAMED, Awaited, Blocker, Registered, Surroundings, find_blockers, others, votes
from pipelines.errors import Refusal
from pipelines.filters import RunFilter
from pipelines.limits import Limits
from pipelines.models import (
    Attempt,
    AuditEvent,
    ChildRun,
    ContextItem,
    DeadLetter,
    Effect,
    Event,
    Gate,
    Lane,
    LogLine,
    Policy,
    PolicyKind,
    PolicyStatus,
    Run,
    Stage,
    StageOutput,
    WorkerSession,
)
from pipelines.paging import Cut, Page, page
from pipelines.retries import PolicyFact, Target, targets
from pipelines.sql import planned
from pipelines.states import (
    ACTIVE_ATTEMPT,
    CLAIMABLE_STAGE,
    OPEN_EFFECT,
    AttemptState,
    GateState,
    RunStatus,
    SessionState,
    StageState,
)

REMEMBERED_SECONDS = 3_600  # a worker that fell silent longer ago explains nothing
ANY_RUN = RunFilter()
FIRST_PAGE = Cut()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, for a line in a list. `stage` is the one that speaks for it: at fault, active, or next."""

    total: int = 0
    done: int = 0
    stage: str = ""
    stage_state: str = ""
    error_code: str = ""
    error_message: str = ""


class InPlace(Protocol):
    """What belongs to an application and an environment: a run, a trigger."""

    @property
    def application_id(self) -> uuid.UUID | None: ...
    @property
    def environment_id(self) -> uuid.UUID: ...


@dataclass(frozen=True, slots=True)
class PolicyView:
    """Which policy of one kind rules a stage, which ones it outranks, and why."""

    kind: str
    winner: Policy | None
    shadowed: list[Policy]
    reason: str


# runs


def visible_runs(actor: Actor) -> QuerySet[Run]:
    """The runs that the actor may know of."""
    runs = Run.objects.filter(workspace_id=actor.workspace_id)
    if actor.application_id is not None:
        runs = runs.filter(application_id=actor.application_id)
    if actor.environment_id is not None:
        runs = runs.filter(environment_id=actor.environment_id)
    return runs


def run_list(actor: Actor, wanted: RunFilter = ANY_RUN, cut: Cut = FIRST_PAGE) -> Page[Run]:
    """One page of runs, newest first, with application, environment and pipeline. Two queries and one for each name
    filter, whatever the page size."""
    positions = listing.newest(actor, wanted, cut)
    rows = Run.objects.select_related("application", "environment", "pipeline").in_bulk([one[1] for one in positions])
    found = [rows[run_id] for _, run_id in positions if run_id in rows]
    return page(found, cut, lambda run: (run.created_at, run.id))


def run_progress(run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Progress]:
    """How far runs are, in one query for all of them."""
    rows = planned(
        """
        SELECT s.run_id, count(*), count(*) FILTER (WHERE s.state IN ('completed', 'skipped')),
            (array_agg(ARRAY[s.name, s.state, s.last_error_code, left(s.last_error_message, 500)] ORDER BY
                CASE s.state WHEN 'failed' THEN CASE WHEN s.run_next_if_failed THEN 6 ELSE 1 END
                    WHEN 'needs_reconciliation' THEN 0 WHEN 'running' THEN 2 WHEN 'dispatched' THEN 2
                    WHEN 'waiting' THEN 3 WHEN 'retry_scheduled' THEN 4 WHEN 'ready' THEN 5 WHEN 'pending' THEN 7
                    ELSE 8 END, s.position))[1:1]
        FROM pipelines_stage s WHERE s.run_id = ANY(%s) GROUP BY s.run_id
        """,
        [list(run_ids)],
    )
    return {run_id: Progress(total, done, *speaker[0]) for run_id, total, done, speaker in rows}


def business_keys(run_ids: Iterable[uuid.UUID], most: int = 3) -> dict[uuid.UUID, list[tuple[str, str]]]:
    """The first open context items of runs as (key, value), in one query; sensitive ones never (P89)."""
    found: dict[uuid.UUID, list[tuple[str, str]]] = {}
    items = ContextItem.objects.filter(run_id__in=list(run_ids), is_sensitive=False).order_by("id")
    for run_id, key, value in items.values_list("run_id", "key", "value"):
        if len(found.setdefault(run_id, [])) < most:
            found[run_id].append((key, value))
    return found


def run_detail(actor: Actor, run_id: uuid.UUID) -> Run:
    """A run with its application, environment, pipeline, release, starter and context; 404 when not visible."""
    run = (
        visible_runs(actor)
        .select_related("application", "environment", "pipeline", "release", "started_by")
        .prefetch_related(Prefetch("context_items", ContextItem.objects.order_by("id")))
        .filter(id=run_id)
        .first()
    )
    if run is None:
        raise Refusal("not_found", "there is no such run")
    return run


def stages(run: Run) -> list[Stage]:
    """The stages of a run in graph order, with their current outputs."""
    return list(Stage.objects.filter(run=run).select_related("output").order_by("position"))


def stage_detail(actor: Actor, stage_id: uuid.UUID) -> Stage:
    """A stage with its run, pipeline and environment; 404 when its run is not visible."""
    stage = (
        Stage.objects.filter(id=stage_id, run__in=visible_runs(actor))
        .select_related("run", "run__pipeline", "run__environment", "output")
        .first()
    )
    if stage is None:
        raise Refusal("not_found", "there is no such stage")
    return stage


def attempts(run: Run, stage_id: uuid.UUID | None = None) -> QuerySet[Attempt]:
    """The attempts of a run, or of one stage, newest first, each with its stage, progress, late evidence and how its
    processes ended (P86, R39)."""
    rows = Attempt.objects.filter(stage_id__in=Stage.objects.filter(run=run).values("id"))
    if stage_id is not None:
        rows = rows.filter(stage_id=stage_id)
    rows = rows.select_related("stage", "progress", "termination").prefetch_related("late_evidence")
    return rows.order_by("-dispatched_at", "-id")


def effects(run: Run) -> QuerySet[Effect]:
    """What the attempts of a run did outside, or were about to do, each with its stage."""
    return Effect.objects.filter(run=run).select_related("stage")


def attempt_numbers(attempt_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
    """The numbers of attempts, in one query."""
    return dict(Attempt.objects.filter(id__in=set(attempt_ids)).values_list("id", "number"))


def outputs(stage: Stage) -> QuerySet[StageOutput]:
    """Every output of a stage, of all its epochs: a retry sets another one in force and erases none."""
    return StageOutput.objects.filter(stage=stage)


def timeline(run: Run) -> QuerySet[Event]:
    """Everything that happened to a run, in the order in which it happened."""
    return Event.objects.filter(run=run).order_by("id")


def log_lines(run: Run) -> QuerySet[LogLine]:
    """What the handlers of a run logged, in the order in which it came in by `place`, each with its attempt and stage.

    `place` is the id, but for the planner: in the order of ids it would walk the lines of every run there is.
    """
    of_run = Attempt.objects.filter(stage_id__in=Stage.objects.filter(run=run).values("id"))
    rows = LogLine.objects.filter(attempt_id__in=of_run.values("id")).select_related("attempt__stage")
    told = rows.only("at", "level", "message", "fields", "attempt__number", "attempt__stage__name")
    return told.annotate(place=F("id") + 0).order_by("place")


def blockers(run: Run, known: Sequence[Stage] | None = None) -> list[Blocker]:
    """Why the run does not move: what each unfinished stage waits for, and until when; `known` are its stages."""
    found = stages(run) if known is None else known
    return find_blockers(run, found, _around(run, found)) + others(run)


def children(run: Run) -> QuerySet[ChildRun]:
    """The runs that its stages started, by the links that lead to them, with stage and run that counts."""
    rows = ChildRun.objects.filter(parent=run).select_related("stage", "run")
    return rows.defer("stage__input", "run__input")


def started_by(run: Run) -> QuerySet[ChildRun]:
    """The links that lead to a run, those of runs that took it over too, the first of all first."""
    if run.parent_id is None:
        return ChildRun.objects.none()
    rows = ChildRun.objects.filter(Q(run=run) | Q(started=run)).select_related("stage", "parent")
    return rows.defer("stage__input", "parent__input").order_by("created_at", "id")


def draining(run: Run) -> int:
    """How many attempts of a run that is pausing still run; 0 of any other."""
    if run.status != RunStatus.PAUSING:
        return 0
    return Attempt.objects.filter(stage__run=run, state=AttemptState.RUNNING).count()


def _around(run: Run, found: Sequence[Stage]) -> Surroundings:
    ids = [stage.id for stage in found]
    active = Attempt.objects.filter(stage__in=ids, state__in=sorted(ACTIVE_ATTEMPT))
    open_gates = list(Gate.objects.filter(stage__in=ids, state=GateState.OPEN))
    paused = Event.objects.filter(run=run, kind="run.pause").order_by("-id").first() if run.paused else None
    effects: dict[uuid.UUID, list[Effect]] = {}
    if any(stage.state == StageState.NEEDS_RECONCILIATION for stage in found):
        for effect in Effect.objects.filter(run=run, state__in=sorted(OPEN_EFFECT)).order_by("declared_at", "id"):
            effects.setdefault(effect.stage_id, []).append(effect)
    now, holder = holders.look(run.id)
    return Surroundings(
        now=now,
        holder=holder,
        attempts={attempt.stage_id: attempt for attempt in active},
        gates={gate.stage_id: gate for gate in open_gates},
        votes=votes(open_gates),
        workers=registered(run, {stage.handler for stage in found if stage.state in CLAIMABLE_STAGE}),
        effects=effects,
        paused_by=paused.actor if paused else "",
        paused_at=paused.at if paused else None,
        blackout=_blackout(run, found),
        lane=Lane.objects.filter(id=run.lane_id).first() if run.held and run.lane_id else None,
        turn=lanes.turn_of(run.lane_id, run.id) if run.held and run.lane_id else None,
        throttled=throttle_use.holding(run, found, now),
        recipients=_recipients(found),
        awaited=_awaited(run, found),
        queued=_queued(run, found),
    )


def _awaited(run: Run, found: Sequence[Stage]) -> dict[uuid.UUID, Awaited]:
    """By stage that waits for runs: the first of those that have not ended, or whose end it is to be told next."""
    if not run.has_children or not any(stage.state == StageState.WAITING for stage in found):
        return {}
    rows = planned(
        "SELECT stage_id, open, id, name, tick_at, status FROM (SELECT *, row_number() OVER (PARTITION BY stage_id"  # noqa: S608 - ours
        " ORDER BY is_over, created_at, link) AS place,"
        " count(*) FILTER (WHERE NOT is_over) OVER (PARTITION BY stage_id) AS open"
        " FROM (SELECT l.stage_id, l.created_at, l.id AS link, c.id, c.name, c.tick_at, c.status,"
        f" {failures.ended()} AS is_over FROM pipelines_childrun l JOIN pipelines_run c ON c.id = l.run_id"
        " WHERE l.parent_id = %s AND l.awaited) one) one WHERE place <= %s AND (place <= open OR open = 0)"
        " ORDER BY stage_id, place",
        [run.id, NAMED],
    )
    firsts: dict[uuid.UUID, list[lanes.Inside]] = {}
    for stage_id, _, *child in rows:
        firsts.setdefault(stage_id, []).append(lanes.Inside(*child))
    counts = {stage_id: count for stage_id, count, *_ in rows}
    return {stage_id: Awaited(first, max(counts[stage_id], len(first))) for stage_id, first in firsts.items()}


def _queued(run: Run, found: Sequence[Stage]) -> frozenset[uuid.UUID] | None:
    """Who stands in the queue, of a run that may not do all at once; None of any other."""
    if len(found) <= Limits.of(run.limits).concurrency:
        return None
    return places.taken([stage.id for stage in found if stage.state in CLAIMABLE_STAGE])


def _recipients(found: Sequence[Stage]) -> dict[uuid.UUID, list[dict[str, Any]]]:
    """By stage that is ready or due and names its recipients: those allowed now, in the declared order."""
    naming = {stage.id: stage.recipients for stage in found if stage.state in CLAIMABLE_STAGE and stage.recipients}
    failed = recipients.failed_positions(naming) if naming else {}
    return {
        stage_id: named[: recipients.allowed_of(named, len(failed.get(stage_id, ())))]
        for stage_id, named in naming.items()
    }


def _blackout(run: Run, found: Sequence[Stage]) -> Active | None:
    """What holds where the run is, if that could hold it: claims ask for the place, lanes for the trigger too."""
    if not run.held and not any(stage.state in CLAIMABLE_STAGE for stage in found):
        return None
    return blackouts.active(run.workspace_id, run.environment_id, run.trigger_id if run.held else None)


# policies


def effective_policies(stage: Stage) -> list[PolicyView]:
    """For each kind of policy: the one that rules the stage now, the ones it outranks, and the reason (P47)."""
    run = stage.run
    target = Target(stage.name, stage.handler, run.pipeline.slug if run.pipeline else "", run.environment.slug)
    rows = list(Policy.objects.filter(workspace_id=run.workspace_id).order_by("-created_at", "-id"))
    return [_policy_view(kind, [row for row in rows if row.kind == kind], target) for kind in PolicyKind.values]


# other lists


def dead_letters(actor: Actor) -> QuerySet[DeadLetter]:
    """The dead letters of visible runs, with stage and run."""
    rows = DeadLetter.objects.filter(workspace_id=actor.workspace_id).select_related("stage", "run")
    if actor.application_id is not None and actor.environment_id is not None:
        rows = rows.filter(stage__application_id=actor.application_id, stage__environment_id=actor.environment_id)
    return rows


def audit_events(actor: Actor) -> QuerySet[AuditEvent]:
    """Who did, tried or was refused what in the actor's workspace (F144, F145)."""
    return AuditEvent.objects.filter(workspace_id=actor.workspace_id)


def worker_sessions(actor: Actor) -> QuerySet[WorkerSession]:
    """The worker sessions of the workspace's applications."""
    rows = WorkerSession.objects.filter(application__workspace_id=actor.workspace_id)
    return rows.select_related("application", "environment")


def is_live(session: WorkerSession, now: datetime) -> bool:
    """Whether a worker has been heard of lately: derived, never stored."""
    silent = (now - session.last_seen_at).total_seconds()
    return session.state == SessionState.ACTIVE and silent <= settings.RECOURSE_LEASE_SECONDS


def registered(place: InPlace, handlers: set[str]) -> dict[str, list[Registered]]:
    """By handler: the application's workers that have it and were heard of lately; why some get nothing from there."""
    if not handlers:
        return {}
    rows = planned(
        "SELECT DISTINCT h.name, w.worker_name, w.state, w.last_seen_at > recourse_now() - make_interval(secs => %s),"
        " e.slug, w.recipients::text FROM pipelines_workersession w CROSS JOIN unnest(w.handlers) h(name)"
        " LEFT JOIN pipelines_environment e ON e.id = w.environment_id AND e.id <> %s"
        " WHERE w.last_seen_at > recourse_now() - make_interval(secs => %s) AND w.state IN ('active', 'draining')"
        " AND h.name = ANY(%s) AND (w.application_id IS NULL OR w.application_id = %s) ORDER BY h.name, w.worker_name",
        [
            settings.RECOURSE_LEASE_SECONDS,
            place.environment_id,
            max(settings.RECOURSE_LEASE_SECONDS, REMEMBERED_SECONDS),
            sorted(handlers),
            place.application_id,
        ],
    )
    found: dict[str, list[Registered]] = {}
    for handler, worker, state, is_heard, elsewhere, told in rows:
        sends_to = tuple(one for one in json.loads(told) if one["handler"] == handler)
        found.setdefault(handler, []).append(Registered(worker, _misses(state, is_heard, elsewhere), sends_to))
    return found


def _misses(state: str, is_heard: bool, elsewhere: str | None) -> str:
    if elsewhere:
        return f"has it in {elsewhere} only"
    if state == SessionState.DRAINING:
        return "is shutting down"
    return "" if is_heard else "has been silent for too long"


def _policy_view(kind: str, rows: Sequence[Policy], target: Target) -> PolicyView:
    facts = [(row, PolicyFact(row.name, row.match, row.rule, row.created_at.timestamp())) for row in rows]
    active = [(row, fact) for row, fact in facts if row.status == PolicyStatus.ACTIVE and targets(fact, target)]
    chosen = policies.winner([fact for _, fact in active], target)
    winner = next((row for row, fact in active if fact is chosen), None)
    if winner is None or chosen is None:
        otherwise = _WITHOUT.get(kind, "so its own options rule")
        return PolicyView(kind, None, [], f"no active {kind} policy targets this stage, {otherwise}")
    shadowed = [row for row, _ in active if row is not winner]
    named = _SPECIFICITY[chosen.rank[0]]
    reason = f"{winner.name} targets it by {named}" if named else f"{winner.name} targets every stage"
    if shadowed:
        same = [fact for row, fact in active if row is not winner and fact.rank[0] == chosen.rank[0]]
        reason += "; of those as specific it is the newest" if same else "; the others are less specific"
    if winner.match.get("error_codes"):
        codes = ", ".join(winner.match["error_codes"])
        others = "no other policy steps" if kind == PolicyKind.RUN_RETRY else "the stage's own options do not step"
        reason += f"; it retries only {codes}, and for other codes {others} in"
    return PolicyView(kind, winner, shadowed, reason)


_WITHOUT: dict[str, str] = {
    PolicyKind.RATE: "so it begins as soon as it may",
    PolicyKind.CONCURRENCY: "so it waits for no slot",
    PolicyKind.RUN_RETRY: "so a run that failed stays failed",
}
_SPECIFICITY = {4: "stage", 3: "handler", 2: "pipeline", 1: "environment", 0: ""}
