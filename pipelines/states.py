"""Every state there is and every legal move: pure tables that the engine, the API, the screens and the tests read.

A table maps an action to {from: to}. What is missing from a table is refused with a typed 409. Run states other than
the terminal three are derived from the stages by `derive_run_status`, so no run can say what its stages do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from django.db.models import TextChoices


class RunStatus(TextChoices):
    QUEUED = "queued"  # left when the first stage is dispatched, waits, or a person pauses or cancels
    RUNNING = "running"  # something is active, or ready in a run that has started
    WAITING = "waiting"  # only gates, imports, other runs or timers are left
    PAUSING = "pausing"  # a person paused; running attempts finish, nothing new is handed out
    PAUSED = "paused"  # paused and nothing is active; left by resume, cancel, deadline or the run's end
    BLOCKED = "blocked"  # a stage waits for reconciliation: a person must act
    COMPLETED = "completed"  # terminal; reopened only by a retry
    FAILED = "failed"  # terminal; reopened by a retry or a skip, never after deadline_exceeded
    CANCELLED = "cancelled"  # terminal for good; only a fork helps


class StageState(TextChoices):
    PENDING = "pending"  # waits for its dependencies
    READY = "ready"  # a worker may pull it
    DISPATCHED = "dispatched"  # handed out, lease not yet acquired
    RUNNING = "running"  # a worker session holds the lease
    RETRY_SCHEDULED = "retry_scheduled"  # becomes due by the clock
    WAITING = "waiting"  # a gate is open, an import is awaited, or runs that it started are
    NEEDS_RECONCILIATION = "needs_reconciliation"  # an outside effect may have happened
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class AttemptState(TextChoices):
    DISPATCHED = "dispatched"  # left by lease acquisition, expiry of the visibility time, pause or cancel
    RUNNING = "running"  # left by a result, release, timeout, lost lease, cancel or skip
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WAITING = "waiting"  # ended by asking for a decision, or by waiting for other runs
    RELEASED = "released"
    UNDELIVERED = "undelivered"
    LOST = "lost"
    FENCED = "fenced"  # its run or stage was ended from outside


class NoticeKind(TextChoices):
    """What somebody may be told of: what needs a person, and what one decided."""

    GATE_OPENED = "gate_opened"
    APPROVAL_ASKED = "approval_asked"
    REVIEW_ASKED = "review_asked"
    DECIDED = "decided"  # a gate or a request, by somebody
    EXPIRING = "expiring"  # a gate or a request, soon
    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"
    RUN_BLOCKED = "run_blocked"


class TickState(TextChoices):
    DUE = "due"  # in the ledger, its run reserved; left when the run is made, skipped or refused
    DISPATCHED = "dispatched"  # its run was made
    SKIPPED = "skipped"  # missed, for the reason that is kept; a backfill may fill it
    FAILED = "failed"  # missed: its run could not be made; a backfill may fill it


class SkipReason(TextChoices):
    PAUSED = "paused"  # the trigger was switched off
    OVERLAP = "overlap"  # an earlier run of the trigger was unfinished
    BLACKOUT = "blackout"
    CATCH_UP = "catch-up"  # recorded too late, and the trigger does not catch up on it
    EXISTING = "existing"  # of a backfill's ticks: it has a run already


class GateState(TextChoices):
    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class DeadLetterState(TextChoices):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    RESOLVED = "resolved"


class DeadLetterReason(TextChoices):
    RETRIES_EXHAUSTED = "retries_exhausted"
    RECOVERIES_EXHAUSTED = "recoveries_exhausted"
    TERMINAL_ERROR = "terminal_error"
    UNDELIVERABLE = "undeliverable"


class EffectClass(TextChoices):
    INTERNAL_STATE = "internal_state"  # within the run's own state: needs neither key nor evidence
    MODEL_PROVIDER = "model_provider"
    RETRIEVAL = "retrieval"
    EXTERNAL_HTTP = "external_http"
    TOOL_SIDE_EFFECT = "tool_side_effect"
    MEMORY_WRITE = "memory_write"
    EVIDENCE_WRITE = "evidence_write"
    ARTIFACT_WRITE = "artifact_write"
    HUMAN_APPROVAL = "human_approval"
    RUNTIME_LIMIT = "runtime_limit"
    POLICY_OBLIGATION = "policy_obligation"


class EffectState(TextChoices):
    DECLARED = "declared"  # the intent; left by the worker's outcome, or by its end, which makes it unknown
    COMMITTED = "committed"
    ABSENT = "absent"
    UNKNOWN = "unknown"  # left by a person's reconciliation
    RECONCILED_COMMITTED = "reconciled_committed"
    RECONCILED_ABSENT = "reconciled_absent"
    CONTRADICTED = "contradicted"


class CheckpointMoment(TextChoices):
    RUN_START = "run_start"
    STAGE_END = "stage_end"
    SKIP = "skip"
    GATE = "gate"
    PAUSE = "pause"
    RETRY = "retry"  # what is done has changed: the newest checkpoint must not say otherwise
    HANDLER = "handler"  # a handler asked for it, or the runtime did
    RESTORED = "restored"  # handed to a fork with the state of its source


class SessionState(TextChoices):
    ACTIVE = "active"
    DRAINING = "draining"  # shut down by its worker; what it holds may still be finished, nothing more is handed out
    REVOKED = "revoked"  # every call with it is 401


class ReleaseStatus(TextChoices):
    DRAFT = "draft"
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    RETIRED = "retired"
    REVOKED = "revoked"


S = StageState

TERMINAL_RUN = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
REMOVED = ""  # stands for the status of a run that is there no more
# what a backfill reprocesses → the statuses of the runs whose ticks it does once more
REDONE: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "failed": frozenset({RunStatus.FAILED, RunStatus.CANCELLED}),
    "all": TERMINAL_RUN | {REMOVED},
}
OPERATOR_PAUSE = "operator_pause"  # the reason of a pause for which nobody gave one
TERMINAL_STAGE = frozenset({S.COMPLETED, S.FAILED, S.SKIPPED, S.CANCELLED})
HELD_STAGE = TERMINAL_STAGE | {S.PENDING}  # in a run that its lane holds
ACTIVE_STAGE = frozenset({S.DISPATCHED, S.RUNNING})
CLAIMABLE_STAGE = frozenset({S.READY, S.RETRY_SCHEDULED})
SATISFIED_STAGE = frozenset({S.COMPLETED, S.SKIPPED})
ACTIVE_ATTEMPT = frozenset({AttemptState.DISPATCHED, AttemptState.RUNNING})
TERMINAL_ATTEMPT = frozenset(AttemptState) - ACTIVE_ATTEMPT
OPEN_DEAD_LETTER = frozenset({DeadLetterState.OPEN, DeadLetterState.ACKNOWLEDGED})

STAGE_MOVES: dict[str, dict[StageState, StageState]] = {
    # the engine
    "make_ready": {S.PENDING: S.READY},
    "open_gate_before": {S.PENDING: S.WAITING},
    "dispatch": {S.READY: S.DISPATCHED, S.RETRY_SCHEDULED: S.DISPATCHED},
    "acquire": {S.DISPATCHED: S.RUNNING},
    "hand_on": {S.READY: S.RUNNING},  # dispatch and acquire in one transaction
    "take_back": {S.DISPATCHED: S.READY, S.RUNNING: S.READY},
    "undeliver": {S.DISPATCHED: S.READY},
    "give_up_delivery": {S.DISPATCHED: S.FAILED},
    "succeed": {S.RUNNING: S.COMPLETED},
    "wait": {S.RUNNING: S.WAITING},
    "schedule_retry": {S.RUNNING: S.RETRY_SCHEDULED},
    "fail": {S.RUNNING: S.FAILED},
    "recover": {S.RUNNING: S.READY},
    "give_up_recovery": {S.RUNNING: S.FAILED},
    "doubt": {S.RUNNING: S.NEEDS_RECONCILIATION},
    "fall_back": {S.READY: S.PENDING, S.RETRY_SCHEDULED: S.PENDING, S.WAITING: S.PENDING},  # before its work only
    "exhaust": {S.READY: S.FAILED, S.RETRY_SCHEDULED: S.FAILED},  # the run's limits admit no further attempt
    # imports
    "begin_import": {S.READY: S.WAITING},
    "take_import": {S.WAITING: S.COMPLETED},
    "offer_import": {S.WAITING: S.WAITING},  # taken, and a gate stands after the work
    "retry_import": {S.WAITING: S.READY},  # there is nobody to spare: the next answer is awaited at once
    "fail_import": {S.WAITING: S.FAILED},
    # runs that it started
    "await_runs": {S.RUNNING: S.WAITING},
    "runs_ended": {S.WAITING: S.READY},  # in the same epoch, nothing counted
    # gates
    "approve_after": {S.WAITING: S.COMPLETED},
    "approve_before": {S.WAITING: S.READY},
    "deny": {S.WAITING: S.FAILED},
    # people
    "retry": {S.FAILED: S.READY, S.COMPLETED: S.READY, S.SKIPPED: S.READY},
    "rewind": {S.FAILED: S.PENDING, S.COMPLETED: S.PENDING, S.SKIPPED: S.PENDING},
    "skip": {
        S.PENDING: S.SKIPPED,
        S.READY: S.SKIPPED,
        S.RETRY_SCHEDULED: S.SKIPPED,
        S.FAILED: S.SKIPPED,
        S.NEEDS_RECONCILIATION: S.SKIPPED,
    },
    "reconcile_committed": {S.NEEDS_RECONCILIATION: S.COMPLETED},
    "reconcile_offered": {S.NEEDS_RECONCILIATION: S.WAITING},  # committed, where a gate stands after the work
    "reconcile_absent": {S.NEEDS_RECONCILIATION: S.READY},
    "contradict": {S.NEEDS_RECONCILIATION: S.FAILED},
    "cancel": {state: S.CANCELLED for state in StageState if state not in TERMINAL_STAGE},
}

ATTEMPT_MOVES: dict[str, dict[AttemptState, AttemptState]] = {
    "acquire": {AttemptState.DISPATCHED: AttemptState.RUNNING},
    "release": {
        AttemptState.DISPATCHED: AttemptState.RELEASED,
        AttemptState.RUNNING: AttemptState.RELEASED,
    },
    "undeliver": {AttemptState.DISPATCHED: AttemptState.UNDELIVERED},
    "succeed": {AttemptState.RUNNING: AttemptState.SUCCEEDED},
    "fail": {AttemptState.RUNNING: AttemptState.FAILED},
    "wait": {AttemptState.RUNNING: AttemptState.WAITING},
    "time_out": {AttemptState.RUNNING: AttemptState.TIMED_OUT},
    # of an import, which nobody leases
    "take_import": {AttemptState.DISPATCHED: AttemptState.SUCCEEDED},
    "fail_import": {AttemptState.DISPATCHED: AttemptState.FAILED},
    "time_out_import": {AttemptState.DISPATCHED: AttemptState.TIMED_OUT},
    "lose": {AttemptState.RUNNING: AttemptState.LOST},
    "fence": {
        AttemptState.DISPATCHED: AttemptState.FENCED,
        AttemptState.RUNNING: AttemptState.FENCED,
    },
}

GATE_MOVES: dict[str, dict[GateState, GateState]] = {
    "approve": {GateState.OPEN: GateState.APPROVED},
    "reject": {GateState.OPEN: GateState.REJECTED},
    "expire": {GateState.OPEN: GateState.EXPIRED},
    "cancel": {GateState.OPEN: GateState.CANCELLED},
}

TICK_MOVES: dict[str, dict[TickState, TickState]] = {
    "dispatch": {TickState.DUE: TickState.DISPATCHED},
    "skip": {TickState.DUE: TickState.SKIPPED},
    "fail": {TickState.DUE: TickState.FAILED},
    # a backfill: what it makes, and what it gives back when it is cancelled
    "fill": dict.fromkeys((TickState.SKIPPED, TickState.FAILED, TickState.DISPATCHED), TickState.DISPATCHED),
    "give_back": {TickState.DISPATCHED: TickState.SKIPPED},
}

DEAD_LETTER_MOVES: dict[str, dict[DeadLetterState, DeadLetterState]] = {
    "acknowledge": {DeadLetterState.OPEN: DeadLetterState.ACKNOWLEDGED},
    "redrive": dict.fromkeys(OPEN_DEAD_LETTER, DeadLetterState.REDRIVEN),
    "discard": dict.fromkeys(OPEN_DEAD_LETTER, DeadLetterState.DISCARDED),
    "resolve": dict.fromkeys(OPEN_DEAD_LETTER, DeadLetterState.RESOLVED),
}

# Verbs of people on runs: the states they accept, and the states in which they change nothing and say so.
RUN_VERBS: dict[str, frozenset[RunStatus]] = {
    "pause": frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.BLOCKED}),
    "resume": frozenset({RunStatus.PAUSING, RunStatus.PAUSED}),
    "cancel": frozenset(RunStatus) - TERMINAL_RUN,
}
EFFECT_MOVES: dict[str, dict[EffectState, EffectState]] = {
    # the worker, or its end
    "commit": {EffectState.DECLARED: EffectState.COMMITTED},
    "deny": {EffectState.DECLARED: EffectState.ABSENT},
    "doubt": {EffectState.DECLARED: EffectState.UNKNOWN},
    # people
    "reconcile_committed": {EffectState.UNKNOWN: EffectState.RECONCILED_COMMITTED},
    "reconcile_absent": {EffectState.UNKNOWN: EffectState.RECONCILED_ABSENT},
    "contradict": {EffectState.UNKNOWN: EffectState.CONTRADICTED},
}
OPEN_EFFECT = frozenset({EffectState.DECLARED, EffectState.UNKNOWN})
COMMITTED_EFFECT = frozenset({EffectState.COMMITTED, EffectState.RECONCILED_COMMITTED})

RUN_NO_OPS: dict[str, frozenset[RunStatus]] = {"cancel": frozenset({RunStatus.CANCELLED})}


class MayGoOn(Protocol):
    """A stage as far as those behind it care."""

    @property
    def state(self) -> str: ...
    @property
    def run_next_if_failed(self) -> bool: ...


def lets_go_on(stage: MayGoOn) -> bool:
    """Whether what waits for the stage may go on: it is completed, skipped, or a bypassed failure."""
    return stage.state in SATISFIED_STAGE or (stage.state == S.FAILED and stage.run_next_if_failed)


class MayBegin(MayGoOn, Protocol):
    """A stage as far as beginning it, or letting it wait again, goes."""

    @property
    def depends_on(self) -> Sequence[int]: ...
    @property
    def stale(self) -> bool: ...


def what_is_due(stage: MayBegin, by_position: Mapping[int, MayGoOn]) -> str | None:
    """What settling does with a stage: it must `wait` again, may `begin`, or stays as it is.

    A stale stage that came back to the queue waits for the earlier stage that is done again.
    """
    if stage.state != S.PENDING and not (stage.stale and stage.state in CLAIMABLE_STAGE):
        return None
    if all(lets_go_on(by_position[position]) for position in stage.depends_on):
        return "begin"
    return "wait" if stage.state != S.PENDING else None


@dataclass(frozen=True, slots=True)
class StageFact:
    """What deriving a run's status needs to know of one stage."""

    state: StageState
    run_next_if_failed: bool


def derive_run_status(
    stages: Iterable[StageFact], *, started: bool, paused: bool, held: bool = False, changed: bool = False
) -> RunStatus:
    """The status that the stages imply, for a run that is neither cancelled nor past its deadline.

    One whose definition or baseline has `changed` begins nothing more: it is blocked.

    A run that its lane holds back begins none of its stages, so while any is pending it is queued, or paused.
    Order while not terminal: pausing/paused > blocked > running > waiting > queued. A run ends, also from pausing and
    paused, when nothing is active, ready, scheduled, waiting or to be reconciled; stages behind a failure stay pending.
    """
    states = {fact.state for fact in stages}
    unfinished = states - TERMINAL_STAGE - {S.PENDING}
    if held and not unfinished and S.PENDING in states:
        return RunStatus.PAUSED if paused else RunStatus.QUEUED
    if not unfinished:
        good = all(lets_go_on(fact) for fact in stages)
        return RunStatus.COMPLETED if good else RunStatus.FAILED
    active = bool(states & ACTIVE_STAGE)
    if paused:
        return RunStatus.PAUSING if active else RunStatus.PAUSED
    if changed or S.NEEDS_RECONCILIATION in states:
        return RunStatus.BLOCKED
    if active or (started and S.READY in states):
        return RunStatus.RUNNING
    if S.READY in states:
        return RunStatus.QUEUED
    return RunStatus.WAITING
