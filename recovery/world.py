"""What plans are made from: a run as it is, with its stages, gates, letters, attempts and effects, at one moment.

`read` gives the same facts to a dry run and, under the run's lock, to the verb itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any

from pipelines import blackouts, failures, lanes, pinned
from pipelines.blackouts import Active
from pipelines.budgets import Charged
from pipelines.errors import Refusal
from pipelines.graph import descendants
from pipelines.lanes import Room
from pipelines.limits import Limits
from pipelines.moves import HasEnd, limits_of
from pipelines.signing import Envelope
from pipelines.sql import query
from pipelines.states import TERMINAL_RUN, DeadLetterState, RunStatus, StageState
from recovery import begun_anew, revisions, sealing
from recovery.dispositions import EffectFact


@dataclass(frozen=True, slots=True)
class StageFact:
    """A stage as it is. `gate` is the moment of its open gate; denied and approved are about gates of this epoch."""

    id: uuid.UUID
    position: int
    name: str
    state: StageState
    depends_on: tuple[int, ...] = ()
    run_next_if_failed: bool = False
    effect_mode: str = "idempotent"
    effect_protocol: str = "none"
    has_gate_before: bool = False
    epoch: int = 1
    attempt_number: int = 0
    output_digest: str = ""
    stale: bool = False
    gate: str = ""
    gate_denied: bool = False
    gate_approved: bool = False  # before its work
    has_gate_after: bool = False
    awaits_import: bool = False  # its answer is made elsewhere
    allowance: int = 0  # the bytes of output that each of its attempts is charged
    begun: int = 0  # how many attempts of it have begun, in all epochs

    @property
    def is_gated(self) -> bool:
        """Somebody is still to be asked about it, before its work or after."""
        return self.has_gate_after or (self.has_gate_before and not self.gate_approved)

    @property
    def acted_unseen(self) -> bool:
        """It was tried, acts outside, and does not say what it does there."""
        return self.effect_mode == "external" and self.effect_protocol == "none" and self.attempt_number > 0


@dataclass(frozen=True, slots=True)
class AttemptFact:
    """An attempt that is dispatched or running."""

    stage_id: uuid.UUID
    number: int
    state: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class LetterFact:
    """A dead letter, open or closed."""

    id: uuid.UUID
    stage_id: uuid.UUID
    state: DeadLetterState


@dataclass(frozen=True, slots=True)
class ChildFact:
    """An unfinished run that a stage started; `ends` with this one, or goes on. `awaited`: the stage waits for it."""

    stage_id: uuid.UUID
    run_id: uuid.UUID
    name: str
    ends: bool
    awaited: bool


@dataclass(frozen=True, slots=True)
class AnewFact:
    """What a run did outside that begins anew with a stage of this one: the effects, and the stages, by the names that
    plans give them, that do not say."""

    stage: str
    effects: tuple[EffectFact, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class World(HasEnd):
    """One run and all that recovering it depends on; stages in graph order. `now` is the database's."""

    run_id: uuid.UUID
    status: RunStatus
    now: datetime
    stages: tuple[StageFact, ...]
    workspace_id: uuid.UUID | None = None
    environment: str = ""
    is_protected: bool = False
    pipeline: str = ""  # blank of an inline run
    release_id: uuid.UUID | None = None
    paused: bool = False
    held: bool = False  # its lane has not let it in: nothing begins
    lane: Room | None = None  # of a run that has ended: the lane to which it, or a fork of it, comes back
    deadline_at: datetime | None = None
    failure_code: str = ""
    attempts: tuple[AttemptFact, ...] = ()
    letters: tuple[LetterFact, ...] = ()
    effects: tuple[EffectFact, ...] = ()
    blackout: Active | None = None  # what holds where the run is
    limits: Limits = field(default_factory=Limits)
    spent: Charged = field(default_factory=Charged)  # by all attempts and artifacts so far
    revisions: int = 0  # of it and of what it was forked from
    changed: Sequence[dict[str, Any]] = ()  # what is no longer as the run pinned it
    children: tuple[ChildFact, ...] = ()
    anew: tuple[AnewFact, ...] = ()

    def stage(self, stage_id: uuid.UUID | None) -> StageFact:
        return next(stage for stage in self.stages if stage.id == stage_id)

    def behind(self, stage: StageFact) -> list[StageFact]:
        """The stages that depend on it, directly or not, in graph order."""
        positions = set(descendants(stage.position, {one.position: one.depends_on for one in self.stages}))
        return [one for one in self.stages if one.position in positions]

    def effects_of(self, stages: Iterable[StageFact]) -> list[EffectFact]:
        """What these stages did outside, in any of their attempts."""
        names = {stage.name for stage in stages}
        return [effect for effect in self.effects if effect.stage in names]

    def effects_anew(self, stages: Collection[str]) -> list[EffectFact]:
        """What was done outside by the runs that begin anew with these stages."""
        return [effect for one in self.anew if one.stage in stages for effect in one.effects]

    def unseen_anew(self, stages: Collection[str]) -> list[str]:
        """Stages of such runs that acted outside and did not say what they did."""
        return [name for one in self.anew if one.stage in stages for name in one.unseen]

    def letter(self, letter_id: uuid.UUID) -> LetterFact:
        return next(letter for letter in self.letters if letter.id == letter_id)


def read(run_id: uuid.UUID) -> World:
    """The world of a run. Exact under its lock; without it a moving run may be met between two moves, and what is
    planned from that has another digest."""
    found = read_many([run_id])
    if not found:
        raise Refusal("not_found", "there is no such run")
    return found[run_id]


def read_many(run_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, World]:
    """The same of several runs, by run, in as many statements as of one; those that are not there are not in it."""
    wanted = list(run_ids)
    rows = query(
        "SELECT r.id, r.status, recourse_now(), r.workspace_id, e.slug, e.protected, r.release_id, r.paused, r.held,"
        " r.deadline_at, r.failure_code, coalesce(p.slug, ''), r.limits::text,"
        " (SELECT coalesce(sum(a.size), 0)::bigint FROM pipelines_artifact a WHERE a.run_id = r.id),"
        " r.has_children, r.recovered_from_id IS NOT NULL AND EXISTS (WITH RECURSIVE line AS ("
        " SELECT id, recovered_from_id, has_children FROM pipelines_run WHERE id = r.recovered_from_id"
        " UNION ALL SELECT p.id, p.recovered_from_id, p.has_children FROM pipelines_run p"
        " JOIN line ON p.id = line.recovered_from_id) SELECT FROM line WHERE has_children),"
        " r.lane_id, r.environment_id, r.trigger_id"
        " FROM pipelines_run r JOIN pipelines_environment e ON e.id = r.environment_id"
        " LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE r.id = ANY(%s)",
        [wanted],
    )
    limits = {row[0]: limits_of(row[12]) for row in rows}
    stages, spent = _stages([row[0] for row in rows], limits)
    attempts, letters = _attempts(wanted), _letters(wanted)
    children = _children([row[0] for row in rows if row[14]])
    started_anew = begun_anew.find([row[0] for row in rows if row[14] or row[15]])
    unseen = begun_anew.acted_unseen(started_anew)
    revised, changed = revisions.used(wanted), pinned.found(wanted)
    happened: dict[uuid.UUID, tuple[EffectFact, ...]] = {}
    for workspace in {row[3] for row in rows}:
        own = {row[0] for row in rows if row[3] == workspace}
        theirs = {one.run for one in started_anew if one.parent in own}
        happened |= effects_of_runs([*own, *theirs], workspace)
    anew: dict[uuid.UUID, list[AnewFact]] = {}
    for one in started_anew:
        told = tuple(replace(effect, stage=one.name(effect.stage)) for effect in happened.get(one.run, ()))
        fact = AnewFact(one.stage, told, tuple(one.name(stage) for stage in unseen.get(one.run, ())))
        anew.setdefault(one.parent, []).append(fact)
    # what is asked of a place or a lane is asked once for all that are there
    active, room_of = cache(blackouts.active), cache(lanes.room_of)
    found = {}
    for run_id, status, now, workspace_id, environment, protected, release_id, paused, held, *rest in rows:
        deadline_at, failure_code, slug, _, of_artifacts, _, _, lane_id, *place = rest
        spent[run_id].bytes += of_artifacts
        found[run_id] = World(
            run_id=run_id,
            status=RunStatus(status),
            now=now,
            stages=tuple(stages.get(run_id, ())),
            workspace_id=workspace_id,
            environment=environment,
            is_protected=protected,
            pipeline=slug,
            release_id=release_id,
            paused=paused,
            held=held,
            lane=room_of(lane_id) if lane_id is not None and status in TERMINAL_RUN else None,
            deadline_at=deadline_at,
            failure_code=failure_code,
            attempts=tuple(attempts.get(run_id, ())),
            letters=tuple(letters.get(run_id, ())),
            effects=happened.get(run_id, ()),
            blackout=active(workspace_id, *place),
            limits=limits[run_id],
            spent=spent[run_id],
            revisions=revised.get(run_id, 0),
            changed=changed.get(run_id, ()),
            children=tuple(children.get(run_id, ())),
            anew=tuple(anew.get(run_id, ())),
        )
    return found


def effects(run_id: uuid.UUID, workspace_id: uuid.UUID) -> tuple[EffectFact, ...]:
    """Every effect of the run, of all epochs, with what outside summaries and reconciliations say of each."""
    return effects_of_runs([run_id], workspace_id).get(run_id, ())


def effects_of_runs(run_ids: Sequence[uuid.UUID], workspace_id: uuid.UUID) -> dict[uuid.UUID, tuple[EffectFact, ...]]:
    """The same of many runs of a workspace, by run; those that had none are not in it."""
    rows = query(
        "SELECT f.run_id, f.id, s.name, f.effect_class, f.state, f.step_id, f.key, f.epoch,"
        " coalesce(a.state IN ('dispatched', 'running'), false) FROM pipelines_effect f"
        " JOIN pipelines_stage s ON s.id = f.stage_id LEFT JOIN pipelines_attempt a ON a.id = f.attempt"
        " WHERE f.run_id = ANY(%s) ORDER BY f.run_id, s.position, f.declared_at, f.id",
        [list(run_ids)],
    )
    if not rows:
        return {}
    evidence = _by_effect(
        "SELECT effect_id, source, summary, is_sealed, is_clean, digest, algorithm, key_id, signature"
        " FROM recovery_effectevidence WHERE effect_id = ANY(%s) ORDER BY at, id",
        [row[1] for row in rows],
    )
    reconciled = _by_effect(
        "SELECT effect_id, outcome FROM recovery_reconciliation WHERE effect_id = ANY(%s) ORDER BY at, id",
        [row[1] for row in rows],
    )
    sealed = _with_clean_seal(workspace_id, evidence)
    found: dict[uuid.UUID, list[EffectFact]] = {}
    for run_id, effect_id, stage, effect_class, state, step_id, key, epoch, is_live in rows:
        fact = EffectFact(
            stage=stage,
            effect_class=effect_class,
            state=state,
            step_id=step_id,
            key=key,
            effect_id=str(effect_id),
            has_clean_seal=effect_id in sealed,
            evidence=tuple(claim for row in evidence.get(effect_id, ()) if (claim := sealing.claim(row[1]))),
            reconciled=tuple(outcome for (outcome,) in reconciled.get(effect_id, ())),
            epoch=epoch,
            is_live=is_live,
        )
        found.setdefault(run_id, []).append(fact)
    return {run_id: tuple(facts) for run_id, facts in found.items()}


def _with_clean_seal(workspace_id: uuid.UUID, evidence: Mapping[uuid.UUID, Sequence[Sequence[Any]]]) -> set[uuid.UUID]:
    """The effects of which a sealed, clean summary still is what the console signed; the keyring is read once."""
    asked = [
        (effect_id, sealing.Stored(source, summary, is_sealed, is_clean, digest, Envelope(*envelope)))
        for effect_id, rows in evidence.items()
        for source, summary, is_sealed, is_clean, digest, *envelope in rows
    ]
    holding = sealing.hold(workspace_id, asked)
    return {effect_id for (effect_id, _), holds in zip(asked, holding, strict=True) if holds}


def _by_effect(sql: str, effect_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[Sequence[Any]]]:
    found: dict[uuid.UUID, list[Sequence[Any]]] = {}
    for effect_id, *rest in query(sql, [effect_ids]):
        found.setdefault(effect_id, []).append(rest)
    return found


def _stages(
    run_ids: list[uuid.UUID], limits: Mapping[uuid.UUID, Limits]
) -> tuple[dict[uuid.UUID, list[StageFact]], dict[uuid.UUID, Charged]]:
    """The stages by run, and what their attempts are charged together."""
    rows = query(
        "SELECT s.run_id, s.id, s.position, s.name, s.state, s.depends_on, s.run_next_if_failed, s.effect_mode,"
        " s.effect_protocol, coalesce(s.approval->>'when' = 'before', false), s.epoch, s.attempt_number,"
        " s.output_digest, s.stale,"
        " coalesce((SELECT g.moment FROM pipelines_gate g WHERE g.stage_id = s.id AND g.state = 'open'), ''),"
        " EXISTS (SELECT FROM pipelines_gate g WHERE g.stage_id = s.id AND g.epoch = s.epoch"
        " AND g.state = 'rejected'),"
        " EXISTS (SELECT FROM pipelines_gate g WHERE g.stage_id = s.id AND g.epoch = s.epoch"
        " AND g.state = 'approved' AND g.moment = 'before'),"
        " coalesce(s.approval->>'when' = 'after', false), s.mode = 'import', (s.options->>'max_output_bytes')::bigint,"
        " charged.begun, charged.bytes FROM pipelines_stage s CROSS JOIN LATERAL (SELECT count(*) AS begun,"
        " coalesce(sum(a.reserved), 0)::bigint AS bytes FROM pipelines_attempt a"
        " WHERE a.stage_id = s.id AND a.started_at IS NOT NULL) charged"
        " WHERE s.run_id = ANY(%s) ORDER BY s.run_id, s.position",
        [run_ids],
    )
    found: dict[uuid.UUID, list[StageFact]] = {}
    spent = {run_id: Charged() for run_id in run_ids}
    for run_id, stage_id, position, name, state, depends_on, *rest, most, begun, charged in rows:
        told = (*rest, limits[run_id].allowance({"max_output_bytes": most}), begun)
        fact = StageFact(stage_id, position, name, StageState(state), tuple(depends_on), *told)
        found.setdefault(run_id, []).append(fact)
        spent[run_id].attempts += begun
        spent[run_id].bytes += charged
    return found, spent


def _attempts(run_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[AttemptFact]]:
    rows = query(
        "SELECT s.run_id, a.stage_id, a.number, a.state, a.worker FROM pipelines_attempt a"
        " JOIN pipelines_stage s ON s.id = a.stage_id"
        " WHERE s.run_id = ANY(%s) AND a.state IN ('dispatched', 'running') ORDER BY s.run_id, s.position",
        [run_ids],
    )
    found: dict[uuid.UUID, list[AttemptFact]] = {}
    for run_id, *rest in rows:
        found.setdefault(run_id, []).append(AttemptFact(*rest))
    return found


def _children(run_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[ChildFact]]:
    """Unfinished children by run, oldest first, and those that will retry themselves; asked of runs that have any."""
    if not run_ids:
        return {}
    rows = query(
        "SELECT l.parent_id, l.stage_id, l.run_id, c.name, l.on_parent_end = 'cancel', l.awaited"  # noqa: S608 - ours
        " FROM pipelines_childrun l JOIN pipelines_run c ON c.id = l.run_id WHERE l.parent_id = ANY(%s)"
        f" AND NOT {failures.ended()} ORDER BY l.parent_id, l.created_at, l.id",
        [run_ids],
    )
    found: dict[uuid.UUID, list[ChildFact]] = {}
    for run_id, *rest in rows:
        found.setdefault(run_id, []).append(ChildFact(*rest))
    return found


def _letters(run_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[LetterFact]]:
    rows = query(
        "SELECT s.run_id, d.id, d.stage_id, d.state FROM pipelines_deadletter d"
        " JOIN pipelines_stage s ON s.id = d.stage_id WHERE s.run_id = ANY(%s) ORDER BY s.run_id, d.opened_at, d.id",
        [run_ids],
    )
    found: dict[uuid.UUID, list[LetterFact]] = {}
    for run_id, letter_id, stage_id, state in rows:
        found.setdefault(run_id, []).append(LetterFact(letter_id, stage_id, DeadLetterState(state)))
    return found
