"""What the engine should do, written a second time from model.md alone: plain objects, no database, no batches.

Time is counted in whole ticks. Every verb returns the code of its refusal, or None when it was carried out; a refused
verb leaves everything as it was. The state machine test drives this and the engine side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LEASE, VISIBILITY = 2, 1  # ticks
APPLICATION = "application"
DECIDERS = (APPLICATION, "approver", "admin")
TERMINAL_CODES = ("VALIDATION_ERROR",)
ENDED = ("completed", "failed", "skipped", "cancelled")
OUTSIDE = ("first", "second")  # names of effects; any other is within the run's own state
OPEN, COMMITTED = ("declared", "unknown"), ("committed", "reconciled_committed")
SETTLED = {"committed": "reconciled_committed", "absent": "reconciled_absent", "contradicted": "contradicted"}


@dataclass
class Attempt:
    number: int
    epoch: int
    session: int
    state: str
    expires: int
    times_out: int | None = None
    told: object = None  # the result that ended it
    effects: dict[str, str] = field(default_factory=dict)  # state by name
    findings: dict[str, set[str]] = field(default_factory=dict)  # what people said of them

    @property
    def outside(self) -> list[str]:
        return [state for name, state in self.effects.items() if name in OUTSIDE]

    @property
    def is_open(self) -> bool:
        return any(state in OPEN for state in self.outside)

    def end(self, state: str) -> None:
        """What was only declared is unknown from now on."""
        self.state = state
        self.effects = {name: "unknown" if told == "declared" else told for name, told in self.effects.items()}


@dataclass
class Gate:
    moment: str
    epoch: int
    expires: int | None
    needed: int = 1
    state: str = "open"
    decisions: dict[str, tuple[bool, str]] = field(default_factory=dict)  # by who: approved, and why


@dataclass
class Stage:
    name: str
    needs: list[int]
    bypass: bool = False
    mode: str = "idempotent"
    protocol: str = "none"
    gated: str | None = None
    gate_ticks: int | None = None
    approvers: int = 1
    max_retries: int = 0
    interval: int = 1
    max_recoveries: int = 3
    timeout: int | None = None
    state: str = "pending"
    epoch: int = 1
    retries: int = 0
    recoveries: int = 0
    due: int | None = None
    stale: bool = False
    dead: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    child: Child | None = None  # what its one key stands for

    @property
    def satisfied(self) -> bool:
        return self.state in ("completed", "skipped") or (self.state == "failed" and self.bypass)

    def current(self) -> Attempt:
        return self.attempts[-1]

    def gate(self) -> Gate | None:
        """The newest gate of this epoch."""
        return next((gate for gate in reversed(self.gates) if gate.epoch == self.epoch), None)

    def was(self, state: str, moment: str | None = None) -> bool:
        return any(
            gate.state == state and gate.epoch == self.epoch and moment in (None, gate.moment) for gate in self.gates
        )


@dataclass
class Child:
    """The run that a stage started, and whether it ends with the run of that stage."""

    run: Run
    epoch: int
    cancel: bool
    awaited: bool = False
    ending: bool = False  # the parent has ended, and took it along

    @property
    def may_be_found(self) -> bool:
        return self.run.status == "completed" or (not self.run.ended and not self.ending)


def verdict(state: str, findings: set[str]) -> str | None:
    """On repeating one effect outside the run's own state, of which there is no evidence."""
    against = {"committed": "absent", "reconciled_committed": "absent"}
    against |= {"absent": "committed", "reconciled_absent": "committed"}
    if state == "contradicted" or "contradicted" in findings or against.get(state) in findings:
        return "recovery_denied"
    return "operator_review_required" if state in (*OPEN, *COMMITTED) else None


def implied_status(stages: list[tuple[str, bool]], *, started: bool, paused: bool) -> str:
    """A run's status from its stages' (state, run_next_if_failed), in the order of the model: ended, then pausing or
    paused > blocked > running > waiting > queued."""
    states = [state for state, _ in stages]
    active = "dispatched" in states or "running" in states
    left = {"ready", "retry_scheduled", "waiting", "needs_reconciliation"} & set(states)
    if not active and not left:
        good = all(state in ("completed", "skipped") or (state == "failed" and bypass) for state, bypass in stages)
        return "completed" if good else "failed"
    if paused:
        return "pausing" if active else "paused"
    if "needs_reconciliation" in states:
        return "blocked"
    if active:
        return "running"
    if "ready" in states:
        return "running" if started else "queued"
    return "waiting"


@dataclass
class Run:
    stages: list[Stage]
    deadline: int | None = None
    status: str = "queued"
    started: bool = False
    paused: bool = False
    overrun: bool = False  # ended by its deadline

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")

    def is_past_deadline(self, now: int) -> bool:
        return self.deadline is not None and now >= self.deadline


class Oracle:
    def __init__(self) -> None:
        self.now = 0
        self.runs: list[Run] = []
        self.ended: list[Child] = []  # what keys stood for before they were begun anew

    def create(self, run: Run) -> None:
        if run.deadline is not None:
            run.deadline += self.now
        self.runs.append(run)
        self._settle(run)

    # workers

    def claimable(self) -> list[tuple[Run, Stage]]:
        return [
            (run, stage)
            for run in self.runs
            for stage in run.stages
            if not run.paused and not run.ended and not run.is_past_deadline(self.now)
            if stage.state == "ready" or (stage.state == "retry_scheduled" and (stage.due or 0) <= self.now)
        ]

    def claim(self, run: Run, stage: Stage, session: int, *, acquire: bool) -> None:
        attempt = Attempt(len(stage.attempts) + 1, stage.epoch, session, "dispatched", self.now + VISIBILITY)
        stage.attempts.append(attempt)
        stage.state, run.started = "dispatched", True
        if acquire:
            self._start(stage, attempt, session)
        self._settle(run)

    def acquire(self, run: Run, stage: Stage, attempt: Attempt, session: int) -> bool:
        if run.ended or run.is_past_deadline(self.now) or attempt.expires <= self.now:
            return False
        if attempt.state == "dispatched":
            self._start(stage, attempt, session)
            self._settle(run)
            return True
        return attempt.state == "running" and attempt.session == session

    def renew(self, attempt: Attempt, session: int) -> bool:
        if not self._holds(attempt, session):
            return False
        attempt.expires = self.now + LEASE
        return True

    def release(self, run: Run, stage: Stage, attempt: Attempt, session: int) -> str | None:
        if attempt.state == "released" and attempt.session == session:
            return None
        if not self._holds(attempt, session):
            return "stale_execution"
        doubtful = stage.mode == "external" and attempt.is_open
        attempt.end("released")
        stage.state, stage.due = "needs_reconciliation" if doubtful else "ready", self.now
        self._settle(run)
        return None

    def tell(self, run: Run, stage: Stage, attempt: Attempt, session: int, name: str, state: str) -> str | None:
        """An effect of the attempt, by its name."""
        self._end_if_overdue(run)
        if not self._holds(attempt, session):
            return "stale_execution"
        before = attempt.effects.get(name, "declared")
        if before not in ("declared", state):
            return "stage_state_invalid"
        attempt.effects[name] = state
        return None

    def report(self, run: Run, stage: Stage, attempt: Attempt, session: int, how: str, code: str) -> str | None:
        told = (how, code)
        if attempt.told == told and attempt.session == session:
            self._end_if_overdue(run)
            return None
        self._end_if_overdue(run)
        if not self._holds(attempt, session):
            return "stale_execution"
        attempt.told = told
        if how == "failed":
            self._fail(stage, attempt, code, "failed")
        elif how == "waiting" or stage.gated == "after":
            attempt.end("waiting" if how == "waiting" else "succeeded")
            stage.state = "waiting"
            self._open_gate(stage, "after")
        else:
            attempt.end("succeeded")
            stage.state = "completed"
        self._settle(run)
        return None

    def start(
        self, run: Run, stage: Stage, attempt: Attempt, session: int, child: Run, *, cancel: bool
    ) -> tuple[str | None, bool]:
        """A run for the stage's one key: the refusal, and whether it is a new one."""
        self._end_if_overdue(run)
        if not self._holds(attempt, session):
            return "stale_execution", False
        known = stage.child
        if known is not None and (known.epoch == stage.epoch or known.may_be_found):
            known.epoch = stage.epoch
            return None, False
        if known is not None and any(one.is_open for inner in known.run.stages for one in inner.attempts):
            return "needs_reconciliation", False
        self.ended += [known] if known is not None else []
        stage.child = Child(child, stage.epoch, cancel)
        self.create(child)
        return None, True

    def park(self, run: Run, stage: Stage, attempt: Attempt, session: int) -> str | None:
        told = ("parked", id(stage.child))
        if attempt.told == told and attempt.session == session:
            self._end_if_overdue(run)
            return None
        self._end_if_overdue(run)
        if not self._holds(attempt, session):
            return "stale_execution"
        attempt.told = told
        doubtful = stage.mode == "external" and attempt.is_open
        attempt.end("waiting")
        stage.state = "needs_reconciliation" if doubtful else "waiting"
        assert stage.child is not None
        stage.child.awaited = not doubtful
        self._settle(run)
        return None

    def follow_up(self) -> None:
        """What an end does to the other side: children are cancelled, and then their parents' ends theirs, until none
        is left; stages go on whose child has ended."""
        while ending := [child for child in self._children() if child.ending]:
            for child in ending:
                child.ending = False
                if not child.run.ended:
                    self._end(child.run, "cancelled")
        for run in self.runs:
            for stage in run.stages:
                if stage.child is not None and stage.child.awaited and stage.child.run.ended:
                    stage.child.awaited = False
                    stage.state, stage.due = "ready", self.now
                    self._settle(run)

    # time

    def sweep(self) -> None:
        for run in self.runs:
            self._end_if_overdue(run)
        for end in (self._expire_lease, self._return_undelivered, self._time_out, self._expire_gate):
            for run in self.runs:
                for stage in run.stages:
                    end(stage)
                self._settle(run)

    # people

    def pause(self, run: Run) -> str | None:
        if run.status not in ("queued", "running", "waiting", "blocked") or self._is_overdue(run):
            return self._refusal(run)
        run.paused = True
        for stage in run.stages:
            if stage.state == "dispatched":
                stage.current().state, stage.state, stage.due = "released", "ready", self.now
        self._settle(run)
        return None

    def resume(self, run: Run) -> str | None:
        if run.status not in ("pausing", "paused") or self._is_overdue(run):
            return self._refusal(run)
        run.paused = False
        self._settle(run)
        return None

    def cancel(self, run: Run) -> str | None:
        if run.status == "cancelled":
            return None
        if run.ended or self._is_overdue(run):
            return self._refusal(run)
        self._end(run, "cancelled")
        return None

    def retry(self, run: Run, stage: Stage, *, downstream: bool) -> str | None:
        refusal = self._closed(run)
        if refusal:
            return refusal
        if stage.state == "needs_reconciliation":
            return "needs_reconciliation"
        if stage.was("rejected"):
            return "gate_denied"
        if stage.state not in ("failed", "completed", "skipped"):
            return "stage_state_invalid"
        later = self._behind(run, stage)
        for other in later if downstream else ():
            if other.state in ("dispatched", "running", "waiting"):
                return "stage_state_invalid"
            if other.state == "needs_reconciliation":
                return "needs_reconciliation"
            if other.was("rejected"):
                return "gate_denied"
        again = [stage, *(other for other in later if downstream and other.state in ENDED)]
        refusal = self._held_back(again)
        if refusal:
            return refusal
        for other in later:
            if other.state in ("ready", "retry_scheduled"):
                other.state = "pending"
            elif downstream and other.state in ENDED:
                self._new_epoch(other)
            elif (
                not downstream and other.state == "waiting" and (gate := self._open(other)) and gate.moment == "before"
            ):
                gate.state, other.state = "cancelled", "pending"
            elif other.state != "pending":
                other.stale = True
        self._new_epoch(stage)
        self._settle(run)
        return None

    def skip(self, run: Run, stage: Stage) -> str | None:
        refusal = self._closed(run)
        if refusal:
            return refusal
        if stage.was("rejected"):
            return "gate_denied"
        if stage.state not in ("pending", "ready", "retry_scheduled", "failed", "needs_reconciliation"):
            return "stage_state_invalid"
        stage.state, stage.dead = "skipped", False
        self._settle(run)
        return None

    def reconcile(self, run: Run, stage: Stage, outcome: str) -> str | None:
        refusal = self._closed(run)
        if refusal:
            return refusal
        if stage.state != "needs_reconciliation":
            return "stage_state_invalid"
        done = [state for attempt in stage.attempts if attempt.epoch == stage.epoch for state in attempt.outside]
        if any(attempt.is_open for attempt in stage.attempts) or (
            outcome == "absent" and any(state in COMMITTED for state in done)
        ):
            return "needs_reconciliation"
        if outcome == "committed" and stage.gated == "after":
            stage.state = "waiting"
            self._open_gate(stage, "after")
        else:
            stage.state = {"committed": "completed", "absent": "ready", "contradicted": "failed"}[outcome]
        stage.due = self.now
        self._settle(run)
        return None

    def reconcile_effect(self, attempt: Attempt, name: str, outcome: str) -> str | None:
        """Of a run in any state; one that is settled stays."""
        if attempt.effects[name] in OPEN:
            if attempt.state == "running":
                return "stage_state_invalid"
            attempt.effects[name] = SETTLED[outcome]
        attempt.findings.setdefault(name, set()).add(outcome)
        return None

    def decide(self, run: Run, stage: Stage, who: str, *, approved: bool, reason: str) -> str | None:
        """`who` is the application or a person who may; more than one approval asks for people."""
        gate = stage.gate()
        repeats = gate is not None and gate.decisions.get(who) == (approved, reason)
        if gate is not None:
            decided = gate.state in ("approved", "rejected")
            if repeats and decided:
                return None
            if who == APPLICATION and gate.needed > 1:
                return "permission_denied"
            if who != APPLICATION and not approved and not reason:
                return "validation_error"
            if decided:
                return "gate_decision_conflict"
        closed = "deadline_exceeded" if run.overrun or run.is_past_deadline(self.now) else None
        closed = closed or ("execution_state_invalid" if run.status == "cancelled" else None)
        if closed:
            return closed
        if gate is None or gate.state == "cancelled":
            return "stage_state_invalid"
        if gate.state == "expired" or (gate.expires is not None and gate.expires <= self.now):
            return "approval_stale"
        if who in gate.decisions:
            return None if repeats else "gate_decision_conflict"
        gate.decisions[who] = (approved, reason)
        if approved and len(gate.decisions) < gate.needed:
            return None
        gate.state = "approved" if approved else "rejected"
        if not approved:
            stage.state = "failed"
        elif gate.moment == "after":
            stage.state = "completed"
        else:
            stage.state, stage.due = "ready", self.now
        self._settle(run)
        return None

    # below: how

    def _held_back(self, again: list[Stage]) -> str | None:
        """The worst verdict on repeating the effects of these stages, when nobody ever has sealed evidence."""
        verdicts = {
            verdict(state, attempt.findings.get(name, set()))
            for stage in again
            for attempt in stage.attempts
            for name, state in attempt.effects.items()
            if name in OUTSIDE
        }
        return next((found for found in ("recovery_denied", "operator_review_required") if found in verdicts), None)

    def _holds(self, attempt: Attempt, session: int) -> bool:
        return attempt.state == "running" and attempt.session == session and attempt.expires > self.now

    def _start(self, stage: Stage, attempt: Attempt, session: int) -> None:
        attempt.state, attempt.session, attempt.expires = "running", session, self.now + LEASE
        attempt.times_out = None if stage.timeout is None else self.now + stage.timeout
        stage.state = "running"

    def _fail(self, stage: Stage, attempt: Attempt, code: str, state: str) -> None:
        doubtful = attempt.is_open
        attempt.end(state)
        if doubtful:
            stage.state = "needs_reconciliation"
        elif code not in TERMINAL_CODES and stage.retries < stage.max_retries:
            stage.state, stage.retries, stage.due = "retry_scheduled", stage.retries + 1, self.now + stage.interval
        else:
            stage.state, stage.dead = "failed", True

    def _recover(self, stage: Stage) -> None:
        if stage.recoveries >= stage.max_recoveries:
            stage.state, stage.dead = "failed", True
        else:
            stage.state, stage.recoveries, stage.due = "ready", stage.recoveries + 1, self.now

    def _expire_lease(self, stage: Stage) -> None:
        if stage.state == "running" and stage.current().expires <= self.now:
            stage.current().end("lost")
            self._recover_or_doubt(stage)

    def _recover_or_doubt(self, stage: Stage) -> None:
        told_nothing = stage.protocol == "intent" and not stage.current().outside
        if stage.mode == "external" and not told_nothing:
            stage.state = "needs_reconciliation"
        else:
            self._recover(stage)

    def _return_undelivered(self, stage: Stage) -> None:
        if stage.state == "dispatched" and stage.current().expires <= self.now:
            stage.current().state = "undelivered"
            self._recover(stage)

    def _time_out(self, stage: Stage) -> None:
        if stage.state != "running":
            return
        attempt = stage.current()
        if attempt.times_out is not None and attempt.times_out <= self.now:
            if stage.mode == "external":
                attempt.end("timed_out")
                self._recover_or_doubt(stage)
            else:
                self._fail(stage, attempt, "TIMEOUT", "timed_out")

    def _expire_gate(self, stage: Stage) -> None:
        gate = stage.gates[-1] if stage.gates else None
        if gate is not None and gate.state == "open" and gate.expires is not None and gate.expires <= self.now:
            gate.state, stage.state = "expired", "failed"

    def _open_gate(self, stage: Stage, moment: str) -> None:
        expires = None if stage.gated is None or stage.gate_ticks is None else self.now + stage.gate_ticks
        stage.gates.append(Gate(moment, stage.epoch, expires, 1 if stage.gated is None else stage.approvers))

    def _open(self, stage: Stage) -> Gate | None:
        return next((gate for gate in stage.gates if gate.state == "open"), None)

    def _new_epoch(self, stage: Stage) -> None:
        stage.state, stage.epoch, stage.retries, stage.recoveries = "pending", stage.epoch + 1, 0, 0
        stage.stale = stage.dead = False

    def _behind(self, run: Run, stage: Stage) -> list[Stage]:
        found = [stage]
        for _ in run.stages:
            found += [
                other
                for other in run.stages
                if other not in found and any(run.stages[position] in found for position in other.needs)
            ]
        return [other for other in run.stages if other in found and other is not stage]

    def _refusal(self, run: Run) -> str:
        return "deadline_exceeded" if run.overrun or self._is_overdue(run) else "execution_state_invalid"

    def _is_overdue(self, run: Run) -> bool:
        """Past its deadline, and no sweep has come by yet."""
        return not run.ended and run.is_past_deadline(self.now)

    def _closed(self, run: Run) -> str | None:
        if run.status == "cancelled":
            return "execution_state_invalid"
        return "deadline_exceeded" if run.overrun or run.is_past_deadline(self.now) else None

    def _end_if_overdue(self, run: Run) -> None:
        if self._is_overdue(run):
            run.overrun = True
            self._end(run, "failed")

    def _end(self, run: Run, status: str) -> None:
        for stage in run.stages:
            if stage.state in ("dispatched", "running"):
                stage.current().end("fenced")
            if stage.state == "waiting" and (gate := self._open(stage)):
                gate.state = "cancelled"
            if stage.state not in ENDED:
                stage.state = "cancelled"
            stage.dead = False
        run.status, run.paused = status, False
        self._let_go(run)

    def _let_go(self, run: Run) -> None:
        """The run has ended: nobody waits in it any more, and what was to end with it does."""
        for child in self._children(run):
            child.awaited = False
            child.ending = child.ending or (child.cancel and not child.run.ended)

    def _children(self, parent: Run | None = None) -> list[Child]:
        runs = self.runs if parent is None else [parent]
        now = [stage.child for run in runs for stage in run.stages if stage.child is not None]
        return now + [child for child in self.ended if parent is None]

    def _settle(self, run: Run) -> None:
        if run.status == "cancelled" or run.overrun:
            return
        for stage in run.stages:
            needed = [run.stages[position] for position in stage.needs]
            may_go_on = all(other.satisfied for other in needed)
            if stage.stale and stage.state in ("ready", "retry_scheduled") and not may_go_on:
                stage.state = "pending"
            if stage.state in ("pending", "ready", "retry_scheduled") and may_go_on:
                stage.stale = stage.stale and any(other.stale for other in needed)
            if stage.state == "pending" and may_go_on:
                if stage.gated == "before" and not stage.was("approved", "before"):
                    stage.state = "waiting"
                    self._open_gate(stage, "before")
                else:
                    stage.state, stage.due = "ready", self.now
        facts = [(stage.state, stage.bypass) for stage in run.stages]
        was, run.status = run.status, implied_status(facts, started=run.started, paused=run.paused)
        if run.ended:
            run.paused = False
        if run.ended and run.status != was:
            self._let_go(run)
