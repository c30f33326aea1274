"""What a recovery verb would do, before it does it: pure, complete, and the same for the same world.

The plan that a dry run answers, a screen shows and an approval freezes is the object that is carried out. Its digest
covers all of it; when the world has moved, planning again gives another digest and the verb is refused with
`plan_changed` and the new plan. Nothing outside the plan is touched: `recovery/transitions.py` walks its lines, and
refuses to commit when the stages then say anything else (F51). A blackout that holds is told beside the plan, as it
comes and goes by the clock, and so is how full the lane is to which a run comes back (F52).

A verb that the state does not take has no plan: planning it is the typed refusal (model §5, last line).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import rfc8785

from approvals.rules import roles_from
from pipelines import blackouts, budgets, pinned
from pipelines.blackouts import Active
from pipelines.budgets import Shortage
from pipelines.errors import Refusal
from pipelines.lanes import Room
from pipelines.states import (
    CLAIMABLE_STAGE,
    COMMITTED_EFFECT,
    DEAD_LETTER_MOVES,
    EFFECT_MOVES,
    OPEN_DEAD_LETTER,
    OPEN_EFFECT,
    RUN_NO_OPS,
    STAGE_MOVES,
    TERMINAL_STAGE,
    AttemptState,
    EffectClass,
    EffectState,
    RunStatus,
    StageState,
    lets_go_on,
    what_is_due,
)
from pipelines.transitions import check_verb
from recovery import revisions
from recovery.dispositions import EffectFact, Verdict, denied_gate, judge, undeclared
from recovery.states import Disposition, OperationKind, Outcome
from recovery.world import ChildFact, StageFact, World

# what makes something start, which a blackout holds back unless somebody says why it is to start all the same
STARTING = frozenset({OperationKind.RETRY, OperationKind.REDRIVE, OperationKind.RERUN, OperationKind.REPLAY})
STAGE_ONLY, AND_DOWNSTREAM = "stage", "stage_and_downstream"
NOTHING_TO_REPEAT = Verdict(Disposition.RECOVERY_ALLOWED)
UNDECLARED = "undeclared"  # what a stage may have done outside without saying so
FINISHED = frozenset({StageState.COMPLETED, StageState.SKIPPED, StageState.FAILED})
_NOT_REPEATED = frozenset({EffectState.ABSENT, EffectState.RECONCILED_ABSENT})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request after its defaults, as JSON holds it. `choices` and the target are what makes two requests the same."""

    kind: OperationKind
    run_id: uuid.UUID
    stage_id: uuid.UUID | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def fingerprint(self) -> str:
        return digest_of([self.kind.value, str(self.stage_id or self.run_id), self.choices])

    @property
    def override_reason(self) -> str:
        """Why it is to start although a blackout may hold; blank when nobody said so."""
        return str(self.choices.get(blackouts.OVERRIDE) or "")

    def overriding(self, reason: str | None) -> Asked:
        """The request with why it is to start although a blackout may hold; as it is without a reason."""
        if not reason:
            return self
        return replace(self, choices={**self.choices, blackouts.OVERRIDE: reason})


@dataclass(frozen=True, slots=True)
class Line:
    """One stage in a plan. `to` is the state it will be in at once; `epoch` the one it will then be in.

    `action` names the move that is made of it; blank: it stays, or follows from the others by itself.
    """

    stage: str
    was: str
    to: str
    epoch: int
    why: str
    output_digest: str = ""
    action: str = ""
    stale: bool = False  # marked as made from an older result

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "was": self.was,
            "to": self.to,
            "epoch": self.epoch,
            "why": self.why,
            "action": self.action or None,
            "output_digest": self.output_digest or None,
            "stale": self.stale,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """What the release that will run has otherwise than the source's: `what` is added, removed, or a field's name."""

    stage: str
    what: str
    before: Any = None
    after: Any = None

    def as_json(self) -> dict[str, Any]:
        return {"stage": self.stage, "what": self.what, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class MayRepeat:
    """An effect that doing it again may repeat. `key` is what the outside system can recognise it by, or blank."""

    stage: str
    effect_class: str
    state: str
    step_id: str = ""
    key: str = ""
    effect_id: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "class": self.effect_class or None,
            "state": self.state,
            "step_id": self.step_id or None,
            "idempotency_key": self.key or None,
            "effect_id": self.effect_id or None,
        }


@dataclass(frozen=True, slots=True)
class Agreement:
    """Who must agree: `count` people of this role or a higher one, never the one who asks.

    `expires_in` is in seconds from when it is asked; None: it may wait for ever. `why` says what asks for it.
    """

    role: str
    count: int
    expires_in: int | None
    why: str

    def as_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "roles": sorted(roles_from(self.role)),
            "count": self.count,
            "expires_in": self.expires_in,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All of what a verb would do. Lists are in graph order; nothing in it depends on when it is made.

    Of a verb in place, every stage that is finished, changes, or waits behind one that does stands in exactly one of
    `kept`, `run_again` and `then`; what else is under way is not touched.
    """

    kind: OperationKind
    execution_id: str
    stage_id: str | None = None
    stage: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)  # scope, from_step_id, input digest, freeze_release …
    kept: tuple[Line, ...] = ()
    run_again: tuple[Line, ...] = ()
    then: tuple[Line, ...] = ()  # what else changes: falls back, goes stale, is let go on, is cancelled
    differences: tuple[Difference, ...] = ()
    may_repeat: tuple[MayRepeat, ...] = ()
    verdict: Verdict = NOTHING_TO_REPEAT
    agreements: tuple[Agreement, ...] = ()
    environment: str = ""
    source_release_id: str = ""
    release_id: str = ""
    checkpoint_id: str = ""
    goes_on_outside: tuple[str, ...] = ()  # what may still happen elsewhere, whatever is done here
    ends_too: tuple[str, ...] = ()  # other runs that are cancelled with this one
    blackout: Active | None = None  # what holds now; no part of what is kept, agreed to, or digested
    lane: Room | None = None  # where the run will be held until it is its turn; as little a part of it

    @property
    def is_held(self) -> bool:
        """A blackout holds it back, and nobody said why it is to start all the same."""
        return self.blackout is not None and not self.choices.get(blackouts.OVERRIDE)

    @property
    def goes_through(self) -> bool:
        """A blackout holds, and somebody said why it is to start all the same."""
        return self.blackout is not None and not self.is_held

    @property
    def lines(self) -> tuple[Line, ...]:
        return (*self.kept, *self.run_again, *self.then)

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON."""
        return _canonical_digest(self.as_json(with_digest=False))

    def as_json(self, *, with_digest: bool = True) -> dict[str, Any]:
        """The plan as it is kept and agreed to."""
        told = {
            "kind": self.kind.value,
            "execution_id": self.execution_id,
            "stage_id": self.stage_id,
            "stage": self.stage,
            "choices": dict(self.choices),
            "kept": [line.as_json() for line in self.kept],
            "run_again": [line.as_json() for line in self.run_again],
            "then": [line.as_json() for line in self.then],
            "added": [one.stage for one in self.differences if one.what == "added"],
            "removed": [one.stage for one in self.differences if one.what == "removed"],
            "differences": [one.as_json() for one in self.differences],
            "may_repeat": [one.as_json() for one in self.may_repeat],
            "disposition": self.verdict.disposition.value,
            "reasons": self.verdict.reasons_json(),
            "approvals": [one.as_json() for one in self.agreements],
            "environment": self.environment,
            "source_release_id": self.source_release_id or None,
            "release_id": self.release_id or None,
            "release_changed": self.release_id != self.source_release_id,
            "checkpoint_id": self.checkpoint_id or None,
            "goes_on_outside": list(self.goes_on_outside),
        }
        if self.ends_too:  # came later: plans without it keep the digests that they had
            told["ends_too"] = list(self.ends_too)
        return {**told, "plan_digest": _canonical_digest(told)} if with_digest else told

    def shown(self) -> dict[str, Any]:
        """The plan with what holds it back now or will, as a dry run answers it and a dialog shows it."""
        return {
            **self.as_json(),
            "blackout": self.blackout.as_json() if self.blackout else None,
            "lane": self.lane.as_json() if self.lane else None,
        }


def make_plan(world: World, asked: Asked) -> Plan:
    """The plan of a verb in place; a typed refusal where the state does not take the verb."""
    return PLANNERS[asked.kind](world, asked)


def check_blackout(plan: Plan) -> None:
    """Refuses with `blackout_active` what a blackout holds back."""
    if plan.blackout is not None and plan.is_held:
        raise blackouts.refusal(plan.blackout)


def plan_retry(world: World, asked: Asked) -> Plan:
    """A new epoch of one stage, alone or with everything behind it (P65–P68, R11–R13, R25–R29, F34, F51, F58).

    Choices: `scope`, `input` (None: its own), `acknowledge_effects`. Refused: a run that is cancelled or past its
    deadline, a stage to be reconciled, a denied gate, an active stage, a reason missing for one that did not fail, and
    whatever the run's limits have no room for, all of it together (`attempts_exhausted`, `budget_exhausted`).
    """
    stage = world.stage(asked.stage_id)
    _check_retry(world, stage, asked.reason)
    if revisions.revises(asked):
        revisions.check(world)
    behind = world.behind(stage)
    again = [stage]
    if asked.choices["scope"] == AND_DOWNSTREAM:
        for follower in behind:
            _check_rewind(follower)
        again += [follower for follower in behind if follower.state in STAGE_MOVES["rewind"]]
        behind = [follower for follower in behind if follower.state not in STAGE_MOVES["rewind"]]

    def walk(sketch: Sketch) -> None:
        for follower in behind:
            _step_back(sketch, follower)
        for one in again:
            # what waits for a turn, a dependency or a gate goes back to pending, and settling moves it on from there
            at_once = one is stage and not sketch.held and sketch.may_begin(stage) and not stage.has_gate_before
            sketch.begin_epoch(one, "retry" if at_once else "rewind")
        _check_limits(sketch, again, "skip it, or rerun on a release with larger limits")

    sketch = _reopened(world, walk)
    waits = f"once {stage.name} is completed"
    told = {one.name: "made from the older result" if one.state in FINISHED else waits for one in world.behind(stage)}
    return _in_place(world, asked, sketch, again, told, closes=again, acknowledged=asked.choices["acknowledge_effects"])


def plan_redrive(world: World, asked: Asked) -> Plan:
    """A retry of a dead letter's stage; its letter closes with it (F162). Choices: a retry's, and `dead_letter`."""
    _letter_moves(world, asked)
    return plan_retry(world, asked)


def plan_mark(world: World, asked: Asked) -> Plan:
    """Acknowledging or discarding a dead letter: no stage moves. Choices: `dead_letter`."""
    was, to = _letter_moves(world, asked)
    stage = world.stage(asked.stage_id)
    choices = {**asked.choices, "was": was, "to": to}
    return _plan(world, asked, choices=choices, kept=(_line(stage, "it stays as it is"),))


def plan_skip(world: World, asked: Asked) -> Plan:
    """A stage left out on purpose; what waits for it may go on (P69–P71). Choices: `output`, `has_output`.

    Refused: a run that is cancelled or past its deadline, a denied gate, a state that is not skipped.
    """
    stage = world.stage(asked.stage_id)
    _check_open(world, "skipped")
    _check_pinned(world)
    _check_gate(stage)
    if stage.state not in STAGE_MOVES["skip"]:
        raise Refusal("stage_state_invalid", f"a stage that is {stage.state} cannot be skipped")
    sketch = _reopened(world, lambda sketch: sketch.move(stage, "skip"))
    told = {one.name: f"waits for {stage.name} no longer" for one in world.behind(stage)}
    told[stage.name] = f"left out on purpose{', and its gate with it' if stage.is_gated else ''}"
    return _in_place(world, asked, sketch, [], told, closes=[stage], outside=_open_effects(world, [stage]))


def plan_cancel(world: World, asked: Asked) -> Plan:
    """The end of a run with every unfinished stage, the runs that end with it, and what may go on outside (P72–P75,
    F73); of a cancelled one nothing."""
    sketch = Sketch(world)
    if world.status in RUN_NO_OPS["cancel"]:
        return _in_place(world, asked, sketch, [], {})
    check_verb(world, "cancel", world.now)
    unfinished = [stage for stage in world.stages if stage.state not in TERMINAL_STAGE]
    for stage in unfinished:
        sketch.move(stage, "cancel")
    told = {stage.name: "ends with the run" for stage in unfinished}
    plan = _in_place(world, asked, sketch, [], told, closes=world.stages, outside=_still_outside(world))
    return replace(plan, ends_too=tuple(_child(world, one) for one in world.children if one.ends))


def plan_pause(world: World, asked: Asked) -> Plan:
    """Nothing more is handed out; what was only handed out is taken back, what runs may finish.

    Choices: `until`, an ISO time that lies ahead.
    """
    until = asked.choices["until"]
    if until is not None and datetime.fromisoformat(until) <= world.now:
        message = "must lie ahead"
        raise Refusal("validation_error", f"until: {message}", errors={"until": [message]})
    check_verb(world, "pause", world.now)
    sketch = Sketch(world)
    handed_out = [stage for stage in world.stages if stage.state == StageState.DISPATCHED]
    for stage in handed_out:
        sketch.move(stage, "take_back")
    sketch.settle()
    told = {stage.name: "handed out, not begun: taken back" for stage in handed_out}
    running = [attempt for attempt in world.attempts if attempt.state == AttemptState.RUNNING]
    draining = [f"{world.stage(one.stage_id).name}: attempt {one.number} may finish first" for one in running]
    return _in_place(world, asked, sketch, [], told, outside=draining)


def plan_resume(world: World, asked: Asked) -> Plan:
    """A paused run goes on where its stages stand; none is reset (P63, P64)."""
    check_verb(world, "resume", world.now)
    _check_pinned(world)
    sketch = Sketch(world)
    sketch.settle()
    return _in_place(world, asked, sketch, [], {})


def plan_reconcile(world: World, asked: Asked) -> Plan:
    """What was found out about one effect, which moves no stage, or about a stage that waits for it (R13, F62).

    Choices: `effect_id` or None, `outcome`, and what is kept with it. A stage is refused while an effect of it is open,
    and as absent while one of its present epoch is committed (`needs_reconciliation`), or where the run's limits admit
    no other attempt (`attempts_exhausted`, `budget_exhausted`).
    """
    stage, outcome = world.stage(asked.stage_id), asked.choices["outcome"]
    if asked.choices["effect_id"] is not None:
        effect = next(one for one in world.effects if one.effect_id == asked.choices["effect_id"])
        choices = {**_shown(world, asked, ()), "was": effect.state, "to": _settled(effect, outcome)}
        return _plan(world, asked, choices=choices, kept=(_line(stage, "it stays as it is"),))
    _check_open(world, "reconciled")
    if stage.state != StageState.NEEDS_RECONCILIATION:
        raise Refusal("stage_state_invalid", f"a stage that is {stage.state} has nothing to reconcile")
    _check_effects(world, stage, outcome)
    sketch = Sketch(world)
    is_offered = outcome == Outcome.COMMITTED and stage.has_gate_after
    sketch.move(stage, OFFERING if is_offered else RECONCILING[outcome])
    if outcome == Outcome.ABSENT:
        _check_pinned(world)
        _check_limits(sketch, [stage], "skip the stage, or tell it as committed")
    sketch.settle()
    told = {one.name: f"waits for {stage.name}" for one in world.behind(stage)}
    decided = "; its gate decides about the output" if is_offered else ""
    told[stage.name] = f"what it did outside is {outcome}{decided}"
    return _in_place(world, asked, sketch, [], told)


# outcome → the move of an effect in doubt, and of a stage that needs reconciliation
RECONCILING: Mapping[str, str] = {
    Outcome.COMMITTED: "reconcile_committed",
    Outcome.ABSENT: "reconcile_absent",
    Outcome.CONTRADICTED: "contradict",
}
OFFERING = "reconcile_offered"  # of a stage that is committed, and has a gate after its work


def _settled(effect: EffectFact, outcome: str) -> str:
    """The effect's state after a finding; one that is settled keeps its own."""
    if effect.state not in OPEN_EFFECT:
        return effect.state
    if effect.is_live:
        raise Refusal("stage_state_invalid", "its attempt is still running and may yet tell what became of it")
    is_outside = effect.effect_class != EffectClass.INTERNAL_STATE
    if outcome == Outcome.COMMITTED and is_outside and not effect.key:
        message = "it was declared without an idempotency key: it cannot be told as committed; skip the stage instead"
        raise Refusal("effect_key_required", message)
    return EFFECT_MOVES[RECONCILING[outcome]][EffectState.UNKNOWN].value


def _check_effects(world: World, stage: StageFact, outcome: str) -> None:
    effects = [one for one in world.effects_of([stage]) if one.effect_class != EffectClass.INTERNAL_STATE]
    if unsettled := [one.effect_id for one in effects if one.state in OPEN_EFFECT]:
        detail = f"{stage.name} has effects of which nobody knows: reconcile them first"
        raise Refusal("needs_reconciliation", detail, extra={"effects": unsettled})
    committed = [one.effect_id for one in effects if one.state in COMMITTED_EFFECT and one.epoch == stage.epoch]
    if outcome == Outcome.ABSENT and committed:
        detail = f"{stage.name} did something outside: it is not absent; complete it, or say that it contradicts itself"
        raise Refusal("needs_reconciliation", detail, extra={"effects": committed})


PLANNERS: Mapping[OperationKind, Callable[[World, Asked], Plan]] = {
    OperationKind.RETRY: plan_retry,
    OperationKind.REDRIVE: plan_redrive,
    OperationKind.ACKNOWLEDGE: plan_mark,
    OperationKind.DISCARD: plan_mark,
    OperationKind.SKIP: plan_skip,
    OperationKind.CANCEL: plan_cancel,
    OperationKind.PAUSE: plan_pause,
    OperationKind.RESUME: plan_resume,
    OperationKind.RECONCILE: plan_reconcile,
}


def may_repeat(effects: Iterable[EffectFact], unseen: Iterable[str]) -> tuple[MayRepeat, ...]:
    """What doing again what had these effects may do a second time, and what stages may that did not say."""
    told = [
        MayRepeat(one.stage, one.effect_class, one.state, one.step_id, one.key, one.effect_id)
        for one in effects
        if one.effect_class != EffectClass.INTERNAL_STATE and one.state not in _NOT_REPEATED
    ]
    return (*told, *(MayRepeat(stage, "", UNDECLARED) for stage in unseen))


@dataclass(slots=True)
class _Draft:
    """A stage of a sketch; `action` is the first move that was made of it, `short` why it may not be dispatched."""

    fact: StageFact
    state: StageState
    epoch: int
    stale: bool
    action: str = ""
    short: str = ""

    @property
    def run_next_if_failed(self) -> bool:
        return self.fact.run_next_if_failed

    @property
    def depends_on(self) -> tuple[int, ...]:
        return self.fact.depends_on


class Sketch:
    """The stages of a world as moves would leave them: what `Moves` does to rows, done to copies."""

    def __init__(self, world: World, *, held: bool = False) -> None:
        self.drafts = {one.position: _Draft(one, one.state, one.epoch, one.stale) for one in world.stages}
        self.held = held or world.held  # nothing in it begins
        self._limits, self._spent = world.limits, world.spent
        self._admitted = {one.position for one in world.stages if one.state in budgets.RESERVING}

    def move(self, stage: StageFact, action: str) -> None:
        draft = self.drafts[stage.position]
        draft.state, draft.action = STAGE_MOVES[action][draft.state], draft.action or action

    def begin_epoch(self, stage: StageFact, action: str) -> None:
        self.move(stage, action)
        draft = self.drafts[stage.position]
        draft.epoch, draft.stale = draft.epoch + 1, False

    def flag_stale(self, stage: StageFact) -> None:
        draft = self.drafts[stage.position]
        draft.stale, draft.action = True, draft.action or "flag_stale"

    def may_begin(self, stage: StageFact) -> bool:
        return all(lets_go_on(self.drafts[position]) for position in stage.depends_on)

    def shortage(self, again: Iterable[StageFact]) -> Shortage | None:
        """Why these stages may not all be done again beside what is reserved, as the sketch stands."""
        stages = [self.drafts[stage.position] for stage in again]
        short = (budgets.of_stage(self._limits, one.fact.name, one.fact.begun) for one in stages)
        return next((found for found in short if found), None) or self._of_run(stages)

    def settle(self) -> None:
        """As `Moves.settle` does it: what may go on does, and fails where the limits have no room for it."""
        if self.held:
            return
        while True:
            self._advance()
            if not self._exhaust():
                break
        for draft in self.drafts.values():
            if draft.state == StageState.READY and draft.fact.awaits_import:
                draft.state = StageState.WAITING  # for an answer from elsewhere

    def _advance(self) -> None:
        for draft in self.drafts.values():
            due = what_is_due(draft, self.drafts)
            if due == "wait":
                draft.state = StageState.PENDING
            if due != "begin":
                continue
            draft.stale = draft.stale and any(self.drafts[position].stale for position in draft.depends_on)
            if draft.state == StageState.PENDING:
                draft.state = StageState.WAITING if self._asks_first(draft) else StageState.READY

    @property
    def goes_on(self) -> bool:
        """Whether something in it is under way, or may be handed out."""
        return any(draft.state not in {*TERMINAL_STAGE, StageState.PENDING} for draft in self.drafts.values())

    def _exhaust(self) -> bool:
        self._admitted = {one for one in self._admitted if self.drafts[one].state in budgets.RESERVING}
        batch = [
            draft
            for position, draft in self.drafts.items()
            if draft.state in CLAIMABLE_STAGE and position not in self._admitted
        ]
        if not batch:
            return False
        short = [(one, budgets.of_stage(self._limits, one.fact.name, one.fact.begun)) for one in batch]
        refused = [(one, found) for one, found in short if found]
        if not refused and (found := self._of_run(batch)):
            refused = [(one, found) for one in batch]
        if not refused:
            self._admitted |= {one.fact.position for one in batch}
        for draft, found in refused:
            draft.state, draft.short = StageState.FAILED, found.message
        return bool(refused)

    def _of_run(self, batch: Sequence[_Draft]) -> Shortage | None:
        asking = {one.fact.position for one in batch}
        held = [
            draft.fact.allowance
            for position, draft in self.drafts.items()
            if position in self._admitted - asking and draft.state in budgets.RESERVING
        ]
        told = [(one.fact.name, one.fact.allowance) for one in batch]
        return budgets.of_run(self._limits, self._spent, held, told)

    @staticmethod
    def _asks_first(draft: _Draft) -> bool:
        stage = draft.fact
        return stage.has_gate_before and not (stage.gate_approved and draft.epoch == stage.epoch)


def _reopened(world: World, walk: Callable[[Sketch], None]) -> Sketch:
    """What `walk` makes of the run; one that it reopens is held where its lane has a limit, and begins nothing."""
    sketch = Sketch(world)
    walk(sketch)
    sketch.settle()
    if world.lane is None or not world.lane.holds or not sketch.goes_on:
        return sketch
    sketch = Sketch(world, held=True)
    walk(sketch)
    return sketch


def _in_place(
    world: World,
    asked: Asked,
    sketch: Sketch,
    again: list[StageFact],
    told: Mapping[str, str],
    *,
    closes: Iterable[StageFact] = (),
    acknowledged: bool = False,
    outside: Iterable[str] = (),
) -> Plan:
    """The plan that a sketch amounts to. `told` says why, by stage; `closes`: whose dead letters end with it."""
    kept, run_again, then = [], [], []
    for stage in world.stages:
        draft = sketch.drafts[stage.position]
        moved = (draft.state, draft.epoch, draft.stale, draft.action) != (stage.state, stage.epoch, stage.stale, "")
        why = draft.short or told.get(stage.name, "")
        if draft.epoch != stage.epoch:
            run_again.append(_line(stage, f"begins epoch {draft.epoch}; its counters start anew", draft))
        elif moved or (stage.name in told and stage.state not in TERMINAL_STAGE):
            then.append(_line(stage, why or "what it waited for has changed", draft))
        elif stage.state in FINISHED:
            kept.append(_line(stage, "kept as it is"))
    names = {stage.name for stage in again}
    effects = [*world.effects_of(again), *world.effects_anew(names)]
    unseen = [*(stage.name for stage in again if stage.acted_unseen), *world.unseen_anew(names)]
    asked_about = [] if acknowledged else [undeclared(name, may_acknowledge=True) for name in unseen]
    return _plan(
        world,
        asked,
        choices=_shown(world, asked, closes),
        kept=tuple(kept),
        run_again=tuple(run_again),
        then=tuple(then),
        may_repeat=may_repeat(effects, unseen),
        verdict=judge(effects, asked_about),
        goes_on_outside=tuple(outside),
        lane=world.lane if sketch.held and not world.held else None,
    )


def _plan(world: World, asked: Asked, **parts: Any) -> Plan:
    release_id = str(world.release_id or "")
    return Plan(
        kind=asked.kind,
        execution_id=str(world.run_id),
        stage_id=str(asked.stage_id) if asked.stage_id else None,
        stage=world.stage(asked.stage_id).name if asked.stage_id else None,
        environment=world.environment,
        source_release_id=release_id,
        release_id=release_id,
        blackout=world.blackout if asked.kind in STARTING else None,
        **parts,
    )


def _line(stage: StageFact, why: str, draft: _Draft | None = None) -> Line:
    if draft is None:
        return Line(stage.name, stage.state, stage.state, stage.epoch, why, stage.output_digest, stale=stage.stale)
    kept = stage.output_digest if draft.epoch == stage.epoch and draft.action != "skip" else ""
    return Line(stage.name, stage.state, draft.state, draft.epoch, why, kept, draft.action, draft.stale)


def _shown(world: World, asked: Asked, closes: Iterable[StageFact]) -> dict[str, Any]:
    """The choices as a plan tells them: contents as digests, and whose dead letters are closed."""
    told = dict(asked.choices)
    for name in ("input", "output"):
        if told.get(name) is not None:
            told[name] = {"digest": digest_of(told[name])}
    open_letters = {letter.stage_id for letter in world.letters if letter.state in OPEN_DEAD_LETTER}
    told["closes_dead_letters"] = [stage.name for stage in closes if stage.id in open_letters]
    return told


def _child(world: World, child: ChildFact) -> str:
    return f"{world.stage(child.stage_id).name}: run {child.run_id} ({child.name})"


def _still_outside(world: World) -> list[str]:
    told = []
    awaiting = {child.stage_id for child in world.children if child.awaited}
    for attempt in world.attempts:
        if attempt.state == AttemptState.RUNNING:
            name = world.stage(attempt.stage_id).name
            told.append(f"{name}: attempt {attempt.number} may still run at {attempt.worker}; it is told to stop")
    for stage in world.stages:
        if stage.state == StageState.NEEDS_RECONCILIATION:
            told.append(f"{stage.name}: what attempt {stage.attempt_number} did outside is unknown")
        elif stage.state == StageState.WAITING and stage.awaits_import and not stage.gate:
            told.append(f"{stage.name}: its answer is no longer awaited; somebody elsewhere may still be at work on it")
        elif stage.state == StageState.WAITING and stage.id not in awaiting:
            told.append(f"{stage.name}: its decision is no longer asked for; outside work may depend on it")
    told += [f"{_child(world, one)} was started to go on without this one" for one in world.children if not one.ends]
    return told + _open_effects(world, world.stages)


def _open_effects(world: World, stages: Iterable[StageFact]) -> list[str]:
    return [
        f"{effect.stage}: {effect.told} is {effect.state} and stays open"
        for effect in world.effects_of(stages)
        if effect.state in OPEN_EFFECT
    ]


def _check_open(world: World, verb: str) -> None:
    if world.status == RunStatus.CANCELLED:
        detail = f"a cancelled run stays cancelled: its stages are not {verb}; fork it instead"
        raise Refusal("execution_state_invalid", detail, extra={"instead": "fork"})
    if world.is_final or world.is_past_deadline(world.now):
        detail = f"the run passed its deadline: its stages are not {verb}; start a new run or fork it"
        raise Refusal("deadline_exceeded", detail, extra={"instead": "fork"})


def _check_pinned(world: World) -> None:
    """Refuses what would let a run go on that no longer stands on its definition or baseline (R16, R17)."""
    if world.changed:
        raise pinned.refusal(list(world.changed))


def _check_limits(sketch: Sketch, again: list[StageFact], instead: str) -> None:
    """Refuses what the limits of the run have no room for, before anything is changed."""
    if shortage := sketch.shortage(again):
        raise shortage.refusal(instead)


def _check_gate(stage: StageFact) -> None:
    if stage.gate_denied:
        reason = denied_gate(stage.name)
        told = {"disposition": reason.disposition.value, "reasons": [reason.as_json()]}
        raise Refusal("gate_denied", reason.text, extra=told)


def _check_retry(world: World, stage: StageFact, reason: str) -> None:
    _check_open(world, "retried")
    _check_pinned(world)
    if stage.state == StageState.NEEDS_RECONCILIATION:
        raise Refusal("needs_reconciliation", f"what {stage.name} did outside is unknown: reconcile it first")
    _check_gate(stage)
    if stage.state not in STAGE_MOVES["retry"]:
        raise Refusal("stage_state_invalid", f"a stage that is {stage.state} cannot be retried")
    if stage.state != StageState.FAILED and not reason:
        message = f"a stage that is {stage.state} is retried only with a reason"
        raise Refusal("validation_error", message, errors={"reason": [message]})


def _check_rewind(stage: StageFact) -> None:
    if stage.state in (StageState.DISPATCHED, StageState.RUNNING, StageState.WAITING):
        raise Refusal("stage_state_invalid", f"{stage.name} behind it is {stage.state}: wait for it or pause first")
    if stage.state == StageState.NEEDS_RECONCILIATION:
        raise Refusal("needs_reconciliation", f"what {stage.name} behind it did outside is unknown: reconcile it first")
    _check_gate(stage)


def _step_back(sketch: Sketch, stage: StageFact) -> None:
    waits_to_begin = stage.state == StageState.WAITING and stage.gate == "before"
    if stage.state in CLAIMABLE_STAGE or waits_to_begin:
        sketch.move(stage, "fall_back")
    elif stage.state != StageState.PENDING:
        sketch.flag_stale(stage)


def _letter_moves(world: World, asked: Asked) -> tuple[str, str]:
    """Where the letter is and where the verb leads; refused when it leads nowhere."""
    state = world.letter(uuid.UUID(asked.choices["dead_letter"])).state
    if state not in DEAD_LETTER_MOVES[asked.kind]:
        raise Refusal("stage_state_invalid", f"a dead letter that is {state} cannot be {_PAST[asked.kind]}")
    return state.value, DEAD_LETTER_MOVES[asked.kind][state].value


_PAST = {
    OperationKind.ACKNOWLEDGE: "acknowledged",
    OperationKind.REDRIVE: "redriven",
    OperationKind.DISCARD: "discarded",
}


def digest_of(content: Any) -> str:
    """SHA-256 of any JSON that was sent, also of numbers that have no canonical form."""
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical_digest(told: Mapping[str, Any]) -> str:
    return sha256(rfc8785.dumps(dict(told))).hexdigest()
