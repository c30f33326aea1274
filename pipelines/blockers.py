"""Why a run does not move: who or what holds each stage, in words, and when the engine looks again. Pure.

What other apps know of runs joins by `also`: an operation that waits for somebody, a fork that is not dispatched yet;
and by `count_votes`: how many have agreed to what a gate asks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from pipelines import recipients
from pipelines.blackouts import Active
from pipelines.budgets import ATTEMPTS, BYTES
from pipelines.holders import Holder
from pipelines.lanes import Inside, Turn
from pipelines.limits import Limits
from pipelines.models import Attempt, Effect, Gate, Lane, Run, Stage, StageMode
from pipelines.moves import NO_END
from pipelines.pinned import in_words
from pipelines.states import (
    ACTIVE_STAGE,
    CLAIMABLE_STAGE,
    OPERATOR_PAUSE,
    TERMINAL_RUN,
    TERMINAL_STAGE,
    AttemptState,
    RunStatus,
    StageState,
    lets_go_on,
)
from pipelines.throttle_use import Use

# holders that are no stage and no worker
PERSON = "a person"
NOBODY = "nobody"  # nothing in this run can change it
NO_WORKER = "no worker"
CLOCK = "the clock"
APPLICATION = "the application"
ENGINE = "the engine"
ANOTHER_RUN = "another run"
NAMED = 3  # of many workers or effects
# what is still waited for in a run whose definition has changed
UNDER_WAY = frozenset({StageState.DISPATCHED, StageState.RUNNING, StageState.NEEDS_RECONCILIATION})
ClosedBy = Literal["backfill", "trigger", "blackout"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that is waited for. Without a stage it holds the whole run, or is about it.

    `next_look`: when the engine itself looks again, at its next sweep where that time is past; without it somebody else
    must act, or, for NOBODY, nobody can. `asks`: the gate or the operation that waits for somebody's decision.
    `closed_by`: which of those that let runs in, or close them out, is to be looked at. `behind`: the first of the runs
    that must end before.
    """

    holder: str
    cause: str
    next_look: datetime | None = None
    stage_id: uuid.UUID | None = None
    stage: str = ""
    asks: uuid.UUID | None = None
    closed_by: ClosedBy | None = None
    behind: tuple[Inside, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker session that has registered a handler. `misses` says why it gets nothing of this run; blank: it may.
    `sends_to`: those to whom its adapter sends."""

    worker: str
    misses: str = ""
    sends_to: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Awaited:
    """Runs for which a stage waits: the first `NAMED` of them, and how many there are."""

    first: Sequence[Inside]
    count: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What must be known besides the stages."""

    now: datetime
    attempts: Mapping[uuid.UUID, Attempt]  # by stage: the active one
    gates: Mapping[uuid.UUID, Gate]  # by stage: the open one
    workers: Mapping[str, Sequence[Registered]]  # by handler: those heard of lately
    votes: Mapping[uuid.UUID, int] = field(
        default_factory=dict
    )  # by gate that needs several approvals: those that count
    effects: Mapping[uuid.UUID, Sequence[Effect]] = field(default_factory=dict)  # by stage: open ones, oldest first
    paused_by: str = ""
    paused_at: datetime | None = None
    blackout: Active | None = None  # what holds where the run is
    lane: Lane | None = None  # the run's, while it holds the run
    turn: Turn | None = None  # where the run stands in it
    throttled: Mapping[uuid.UUID, Use] = field(default_factory=dict)  # by stage: the policy that has no room for it
    crowded: Mapping[uuid.UUID, Sequence[str]] = field(
        default_factory=dict
    )  # by stage that the run's concurrency has no room for: those that go first
    recipients: Mapping[uuid.UUID, Sequence[Mapping[str, Any]]] = field(
        default_factory=dict
    )  # by stage that names any: those allowed now
    awaited: Mapping[uuid.UUID, Awaited] = field(default_factory=dict)  # by stage: runs it waits for
    holder: Holder | None = None  # who has held the run's lock for long
    queued: Collection[uuid.UUID] | None = None  # who stands in the queue, of a run that may not do all at once

    @property
    def draining(self) -> int:
        """How many attempts still run."""
        return sum(attempt.state == AttemptState.RUNNING for attempt in self.attempts.values())


Votes = Callable[[Sequence[Gate]], Mapping[uuid.UUID, int]]

_others: list[Callable[[Run], list[Blocker]]] = []
_counts: list[Votes] = []


def also(find: Callable[[Run], list[Blocker]]) -> None:
    """From now on `find` is asked too, whatever the run's state; its blockers come last."""
    if find not in _others:
        _others.append(find)


def others(run: Run) -> list[Blocker]:
    """What other apps know to hold the run."""
    return [blocker for find in _others for blocker in find(run)]


def first_causes(blockers: Sequence[Blocker]) -> list[Blocker]:
    """Without the stages that only wait for other stages of their run."""
    return [one for one in blockers if one.stage_id is None or not one.cause.startswith(f"waits for {one.holder}")]


def count_votes(count: Votes) -> None:
    """From now on `count` is asked how many approvals of each of these gates count; all are of one run."""
    if count not in _counts:
        _counts.append(count)


def votes(gates: Sequence[Gate]) -> Mapping[uuid.UUID, int]:
    """How many approvals count so far, of the gates that need several."""
    several = [gate for gate in gates if gate.count > 1]
    return {gate_id: have for count in _counts for gate_id, have in count(several).items()} if several else {}


def find_blockers(run: Run, stages: Sequence[Stage], around: Surroundings) -> list[Blocker]:
    """The blockers of a run in stage order, a pause first. A completed or cancelled run has none."""
    if run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        return []
    if run.failure_code == "deadline_exceeded":
        return [Blocker(NOBODY, f"the run passed its deadline, {_time(run.deadline_at)}; only a new run helps")]
    found = []
    if around.holder is not None:
        found.append(Blocker(f"process {around.holder.pid} of the database", around.holder.sentence()))
    if run.paused:
        found.append(Blocker(around.paused_by or PERSON, _pause(run, around), run.paused_until))
    if run.changed:
        found.append(Blocker(NOBODY, f"the definition has changed: {in_words(run.changed)}; only a fork goes on"))
    if run.held:
        found.append(_held(run, around))
    around = replace(around, crowded=_crowded(run, stages, around.queued))
    by_position = {stage.position: stage for stage in stages}
    for stage in stages:
        if run.changed and stage.state not in UNDER_WAY:
            continue  # nothing of it begins any more
        if stage.state == StageState.FAILED and not stage.run_next_if_failed:
            found.append(_failed(run, stage))
        elif stage.state == StageState.PENDING or (
            stage.state not in TERMINAL_STAGE and run.status not in TERMINAL_RUN
        ):
            found.extend(_blocks(run, stage, by_position, around))
    return found


def _blocks(run: Run, stage: Stage, by_position: Mapping[int, Stage], around: Surroundings) -> list[Blocker]:
    attempt = around.attempts.get(stage.id)
    match stage.state:
        case StageState.PENDING:
            return [
                _of(stage, by_position[position].name, _dependency(run, by_position[position]))
                for position in stage.depends_on
                if not lets_go_on(by_position[position])
            ]
        case StageState.RETRY_SCHEDULED if stage.available_at and stage.available_at > around.now:
            held = "; the run is paused, so it waits longer" if run.paused else ""
            return [
                _of(stage, CLOCK, f"{_retry(stage)} is due at {_time(stage.available_at)}{held}", stage.available_at)
            ]
        case state if state in CLAIMABLE_STAGE:
            return [_claimable(run, stage, around)]
        case StageState.DISPATCHED if attempt:
            return [_dispatched(stage, attempt, around.now)]
        case StageState.RUNNING if attempt:
            return [_running(stage, attempt, around.now)]
        case StageState.WAITING:
            if attempt is not None and stage.id not in around.gates:
                return [_awaited(stage, attempt)]
            if runs := around.awaited.get(stage.id):
                return [_of_runs(stage, runs)]
            return [_waiting(stage, around.gates.get(stage.id), around.votes)]
        case StageState.NEEDS_RECONCILIATION:
            return [_of(stage, PERSON, _uncertain(stage, around.effects.get(stage.id, ())))]
    return []


def _pause(run: Run, around: Surroundings) -> str:
    since = f" since {_time(around.paused_at)}" if around.paused_at else ""
    # the code that stands where nobody gave a reason says nothing to a reader
    why = f": {run.pause_reason}" if run.pause_reason not in ("", OPERATOR_PAUSE) else ""
    finishing = ""
    if run.status == RunStatus.PAUSING:
        count = around.draining
        finishing = f", {count} running {'attempt' if count == 1 else 'attempts'} may finish"
    until = f"; the engine resumes it at {_time(run.paused_until)}" if run.paused_until else ""
    return f"paused by {around.paused_by or 'somebody'}{since}{why}; nothing is handed out{finishing}{until}"


def _held(run: Run, around: Surroundings) -> Blocker:
    """Its lane, or what closes that."""
    owner: ClosedBy = "backfill" if around.lane is not None and around.lane.is_background else "trigger"
    closed_by = owner if around.lane is not None else None
    if around.lane is not None and not around.lane.is_open:
        what = "its backfill is paused" if around.lane.is_background else "its lane is closed"
        return Blocker(PERSON, f"{what}; nothing of it begins until that is resumed", closed_by=closed_by)
    if around.blackout is not None and not run.through_blackout:
        return Blocker(*_blackout(around.blackout, "it waits to be let in"), closed_by="blackout")
    capacity = around.lane.capacity if around.lane is not None else None
    most = f" lets in {capacity} at once" if capacity is not None else " lets it in"
    turn = f"; {around.turn.sentence()}" if around.turn is not None else ""
    behind = around.turn.first if around.turn is not None else ()
    cause = f"waits for its turn: its {owner}{most}{turn}{_behind(behind)}"
    return Blocker(ENGINE, cause, around.now, closed_by=closed_by, behind=behind)


def _behind(first: Sequence[Inside]) -> str:
    return f"; in: {'; '.join(one.sentence() for one in first)}" if first else ""


def _blackout(holds: Active, since: str) -> tuple[str, str, datetime | None]:
    """Holder, cause and next look of what a blackout holds back."""
    return (holds.by or PERSON) if holds.is_freeze else CLOCK, f"{since}; {holds.sentence()}", holds.until


def _claimable(run: Run, stage: Stage, around: Surroundings) -> Blocker:
    since = f"ready since {_time(stage.available_at)}"
    if stage.state == StageState.RETRY_SCHEDULED:
        since = f"{_retry(stage)} has been due since {_time(stage.available_at)}"
    if stage.mode == StageMode.IMPORT:
        return _of(stage, ENGINE, f"{since}; awaited once the run's baseline can be looked at", around.now)
    if run.paused:
        cause = f"{since}; handed out once the run is resumed"
        return _of(stage, around.paused_by or PERSON, cause, run.paused_until)
    if around.blackout is not None and _waits_in_blackout(run, stage):
        return replace(_of(stage, *_blackout(around.blackout, since)), closed_by="blackout")
    registered = around.workers.get(stage.handler, ())
    if stage.id in around.crowded:
        most, first = Limits.of(run.limits).concurrency, _listed(around.crowded[stage.id])
        lets = f"the run lets {most} {'stage' if most == 1 else 'stages'} be active at a time"
        is_served = any(not one.misses for one in registered)
        alone = "" if is_served else "; no live worker may take it, so it takes no place from others"
        return _of(stage, first, f"{since}; {lets}; first: {first}{alone}")
    allowed = around.recipients.get(stage.id)
    able = sorted({one.worker for one in registered if not one.misses and _sends(one, stage, allowed)})
    if not able and allowed and any(not one.misses for one in registered):
        return _of(stage, NO_WORKER, f"{since}; {_unsent(registered, stage, allowed)}")
    if able:
        if stage.id in around.throttled:
            return _throttled(run, stage, since, around.throttled[stage.id])
        count = f"{len(able)} live {'worker' if len(able) == 1 else 'workers'} may pull it"
        return _of(stage, _listed(able), f"{since}; {count}")
    if not registered:
        return _of(stage, NO_WORKER, f"{since}; no live worker has registered the handler {stage.handler}")
    unable = _listed(sorted({f"{one.worker} {one.misses}" for one in registered}))
    return _of(stage, NO_WORKER, f"{since}; of those with the handler {stage.handler} none may pull it: {unable}")


def _sends(one: Registered, stage: Stage, allowed: Sequence[Mapping[str, Any]] | None) -> bool:
    if not allowed:
        return True
    keys = {recipients.key(stage.handler, recipient) for recipient in allowed}
    return any(recipients.key(stage.handler, recipient) in keys for recipient in one.sends_to)


def _unsent(registered: Sequence[Registered], stage: Stage, allowed: Sequence[Mapping[str, Any]]) -> str:
    """No adapter goes to whom the stage may go now; those that there are, and what is wrong with each."""
    wanted = " or ".join(recipients.in_words(one) for one in allowed)
    later = {recipients.key(stage.handler, one) for one in stage.recipients or ()}
    told = []
    for one in registered:
        if one.misses:
            continue
        for sent in one.sends_to:
            why = "is a fallback, not allowed yet" if recipients.key(stage.handler, sent) in later else "is not named"
            told.append(f"{one.worker} would send to {recipients.in_words(sent)}, which {why}")
        if not one.sends_to:
            told.append(f"{one.worker} does not say to whom it sends")
    return f"no live worker sends to {wanted}; {_listed(sorted(set(told)))}"


def _crowded(run: Run, stages: Sequence[Stage], queued: Collection[uuid.UUID] | None) -> dict[uuid.UUID, Sequence[str]]:
    """What the run's concurrency leaves no place in the queue, with the stages that go first: those that have one."""
    if queued is None or run.paused:
        return {}
    waiting = [stage for stage in stages if stage.state in CLAIMABLE_STAGE and stage.mode != StageMode.IMPORT]
    first = [stage.name for stage in stages if stage.state in ACTIVE_STAGE or (stage in waiting and stage.id in queued)]
    return {stage.id: first for stage in waiting if stage.id not in queued}


def _throttled(run: Run, stage: Stage, since: str, use: Use) -> Blocker:
    """Waits for a slot or for a rate. Of other runs only those of its own application and environment are named."""
    if use.kind == "rate":
        used = f"{use.used} of {use.most} in {use.per_seconds:g} s are used; the next may go at {_time(use.opens)}"
        return _of(stage, CLOCK, f"{since}; waits for the rate of the policy {use.name}: {used}", use.opens)
    own = [one for one in use.slots if (one.application_id, one.environment_id) == _place(run)]
    told = [one.sentence() for one in own]
    if len(own) < len(use.slots):
        told.append("others by work of another application or environment")
    elif use.used > len(use.slots):
        told.append(f"and {use.used - len(use.slots)} more")
    cause = f"waits for a slot of the policy {use.name}: {use.used} of {use.most} are held; {'; '.join(told)}"
    found = _of(stage, own[0].worker if own else ENGINE, f"{since}; {cause}", use.opens)
    return replace(found, behind=tuple(dict.fromkeys(one.run for one in own if one.run.id != run.id)))


def _place(run: Run) -> tuple[uuid.UUID, uuid.UUID]:
    return run.application_id, run.environment_id


def _waits_in_blackout(run: Run, stage: Stage) -> bool:
    """As `Moves` queues it: what begins a run, or is due to be tried again."""
    begins = run.started_at is None or stage.state == StageState.RETRY_SCHEDULED
    return begins and not run.through_blackout


def _dispatched(stage: Stage, attempt: Attempt, now: datetime) -> Blocker:
    worker = _worker(attempt)
    if attempt.expires_at <= now:
        cause = f"{worker} did not acquire the lease until {_time(attempt.expires_at)}; the next sweep takes it back"
        return _of(stage, ENGINE, cause, attempt.expires_at)
    cause = f"handed to {worker}, who has until {_time(attempt.expires_at)} to acquire the lease"
    return _of(stage, worker, cause, attempt.expires_at)


def _running(stage: Stage, attempt: Attempt, now: datetime) -> Blocker:
    """A worker's, or the engine's once the lease or the time-out is past and a sweep is due."""
    worker = _worker(attempt)
    if attempt.expires_at <= now:
        cause = f"the lease of attempt {attempt.number} at {worker} ran out at {_time(attempt.expires_at)}"
        return _of(stage, ENGINE, f"{cause}; the next sweep decides what becomes of it", attempt.expires_at)
    if attempt.timeout_at and attempt.timeout_at <= now:
        cause = f"attempt {attempt.number} at {worker} ran out of its time at {_time(attempt.timeout_at)}"
        return _of(stage, ENGINE, f"{cause}; the next sweep ends it", attempt.timeout_at)
    cause = f"attempt {attempt.number} is leased by {worker} until {_time(attempt.expires_at)}"
    if attempt.timeout_at:
        cause += f"; its time runs out at {_time(attempt.timeout_at)}"
    return _of(stage, worker, cause, min(attempt.expires_at, attempt.timeout_at or attempt.expires_at))


def _waiting(stage: Stage, gate: Gate | None, votes: Mapping[uuid.UUID, int]) -> Blocker:
    if gate is None:
        return _of(stage, PERSON, "waits for a decision")
    kind = "before the work" if gate.moment == "before" else "about its result"
    until = f"; it expires at {_time(gate.expires_at)}, and then the stage fails" if gate.expires_at else ""
    cause = f"a decision {kind} has been asked for since {_time(gate.opened_at)}{_of_whom(gate, votes)}{until}"
    # without a person it is the application that is waited for; people may decide too
    return _of(stage, PERSON if gate.require_person else APPLICATION, cause, gate.expires_at, asks=gate.id)


def _of_runs(stage: Stage, runs: Awaited) -> Blocker:
    """Runs that it started and that have not ended, or will retry themselves; once the last has, it goes on."""
    named = [f"run {one.id} ({one.name}, {one.status})" for one in runs.first]
    told = f"waits for {_listed(named, runs.count)}, which it started"
    return replace(_of(stage, ANOTHER_RUN, told), behind=tuple(runs.first))


def _awaited(stage: Stage, attempt: Attempt) -> Blocker:
    """An import: only an answer with this digest is taken."""
    has_end = attempt.expires_at < NO_END
    until = f", until {_time(attempt.expires_at)}" if has_end else ", without an end of its own"
    cause = f"awaits an answer made elsewhere since {_time(attempt.dispatched_at)}"
    cause = f"{cause}, request digest {attempt.request_digest}{until}"
    return _of(stage, PERSON, cause, attempt.expires_at if has_end else None)


def _of_whom(gate: Gate, votes: Mapping[uuid.UUID, int]) -> str:
    if not gate.require_person:
        return ""
    if gate.count == 1:
        return f", of 1 {gate.approver_role.replace('_', ' ') or 'person who may decide'}"
    named = f"{gate.approver_role.replace('_', ' ')}s" if gate.approver_role else "people who may decide"
    return f", of {gate.count} {named}, {votes.get(gate.id, 0)} of {gate.count} so far"


def _uncertain(stage: Stage, effects: Sequence[Effect]) -> str:
    cause = f"what attempt {stage.attempt_number} did outside is unknown; it needs reconciliation"
    if not effects:
        return f"{cause}, and nothing of it was declared"
    return f"{cause}: {_listed([_named(effect) for effect in effects])}"


def _named(effect: Effect) -> str:
    step = f" {effect.step_id}" if effect.step_id else ""
    key = f" with key {effect.key}" if effect.key else ""
    return f"{effect.effect_class.replace('_', ' ')}{step}{key} is {effect.state}"


def _dependency(run: Run, stage: Stage) -> str:
    if stage.state == StageState.FAILED and stage.failure_disposition == "gate_denied":
        return f"waits for {stage.name}, whose gate was rejected; that is final in this run"
    if stage.state == StageState.FAILED:
        return f"waits for {stage.name}, which failed: {_helps(run, stage)}"
    if stage.state == StageState.NEEDS_RECONCILIATION:
        return f"waits for {stage.name}, whose effects outside are unknown: reconcile it"
    return f"waits for {stage.name}, which is {stage.get_state_display().lower()}"


def _failed(run: Run, stage: Stage) -> Blocker:
    if stage.failure_disposition == "gate_denied":
        return _of(stage, NOBODY, "its gate was rejected; that is final in this run")
    code = f" with {stage.last_error_code}" if stage.last_error_code else ""
    return _of(stage, PERSON, f"failed{code}: {_helps(run, stage)}")


def _helps(run: Run, stage: Stage) -> str:
    if stage.failure_disposition in (ATTEMPTS, BYTES):
        return f"{_used_up(run, stage)}; skip it, or rerun on a release with larger limits"
    if stage.failure_disposition == "contradicted":
        return "what is known of its work outside contradicts itself; skip it, as a retry may be denied for good"
    return "retry it or skip it"


def _used_up(run: Run, stage: Stage) -> str:
    """Which limit of its run admits no other attempt."""
    limits = Limits.of(run.limits)
    if stage.failure_disposition == BYTES:
        allowance = limits.allowance(stage.options)
        return f"another attempt needs {allowance} bytes, more than is left of the run's {limits.total_output_bytes}"
    if stage.attempt_number >= limits.attempts_per_stage:
        return f"all {limits.attempts_per_stage} attempts of the stage are used"
    return f"all {limits.total_attempts} attempts of the run are used or reserved"


def _retry(stage: Stage) -> str:
    return f"retry {stage.retry_count}" + (f" after {stage.last_error_code}" if stage.last_error_code else "")


def _of(
    stage: Stage, holder: str, cause: str, next_look: datetime | None = None, asks: uuid.UUID | None = None
) -> Blocker:
    return Blocker(holder, cause, next_look, stage.id, stage.name, asks)


def _listed(names: Sequence[str], count: int | None = None) -> str:
    more = (len(names) if count is None else count) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _worker(attempt: Attempt) -> str:
    return attempt.worker or "a worker"


def _time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "an unknown time"
