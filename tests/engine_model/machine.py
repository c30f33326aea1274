"""Drives the engine in PostgreSQL and the oracle side by side, and compares them after every step."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from approvals.transitions import decide_gate
from pipelines import awaited_runs, children, intents, leases, results, sweeps
from pipelines.access import Actor
from pipelines.children import Wish
from pipelines.creation import Intent
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.models import Effect, Run, Stage
from pipelines.sql import query
from pipelines.transitions import cancel_run
from recovery.reconciliation import Finding, reconcile_effect, reconcile_stage
from tests.cast import Hand, stage_of
from tests.clock import Clock
from tests.engine_model import oracle
from tests.engine_model.invariants import assert_invariants
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

# One tick of the oracle. Far longer than an example takes, so that real time passing moves nothing over a limit.
TICK_SECONDS = 1000
MOST_RUNS = 3
MOST_WITH_CHILDREN = 6
MODES = [("none", "none"), ("idempotent", "intent"), ("external", "none"), *[("external", "intent")] * 3]
NAMES = [*oracle.OUTSIDE, "inside"]  # of effects, and their keys

Pick = tuple[int, int]  # which run and which stage, modulo how many there are


@st.composite
def runs(draw: st.DrawFn) -> oracle.Run:
    """A small graph with random options."""
    size = draw(st.integers(1, 4))
    ticks = st.none() | st.integers(1, 4)
    stages = []
    for position in range(size):
        mode, protocol = draw(st.sampled_from(MODES))
        earlier = st.lists(st.integers(0, position - 1), unique=True, max_size=2) if position else st.just([])
        stages.append(
            oracle.Stage(
                name=f"stage {position}",
                needs=sorted(draw(earlier)),
                bypass=draw(st.booleans()),
                mode=mode,
                protocol=protocol,
                gated=draw(st.sampled_from([None, "before", "after"])),
                gate_ticks=draw(ticks),
                approvers=draw(st.sampled_from([1, 1, 2])),
                max_retries=draw(st.integers(0, 2)),
                interval=draw(st.integers(1, 2)),
                max_recoveries=draw(st.integers(0, 2)),
                timeout=draw(ticks),
            )
        )
    if not any(stage.needs for stage in stages):
        for position, stage in enumerate(stages):
            stage.needs = [position - 1] if position else []
    return oracle.Run(stages, deadline=draw(st.sampled_from([None, None, None, 3, 9])))


class EngineMachine(RuleBasedStateMachine):
    """Subclassed by the test, which gives it a place, hands, people and a clock."""

    start_run: Any
    hands: list[Hand]
    operator: Actor
    approver: Actor
    application: Actor
    deciders: dict[str, Actor]  # the application, and people who may
    clock: Clock
    check_every = 1

    def __init__(self) -> None:
        super().__init__()
        self._atomic = transaction.atomic()
        self._atomic.__enter__()
        self._clock_began = self.clock.shift
        self.oracle = oracle.Oracle()
        self.run_ids: list[uuid.UUID] = []
        self.stage_ids: list[list[uuid.UUID]] = []
        self.attempt_ids: dict[int, uuid.UUID] = {}  # by the oracle's attempt
        self.asked: dict[int, Intent] = {}  # by the oracle's run: how a stage asked for it
        self.steps = 0

    def teardown(self) -> None:
        try:
            assert_invariants()
        finally:
            transaction.set_rollback(True)
            self._atomic.__exit__(None, None, None)
            self.clock.shift = self._clock_began

    # runs and workers

    @initialize(run=runs())
    def begin(self, run: oracle.Run) -> None:
        self._create(run)

    @precondition(lambda self: len(self.run_ids) < MOST_RUNS)
    @rule(run=runs())
    def create(self, run: oracle.Run) -> None:
        self._create(run)

    @rule(session=st.integers(0, 1), limit=st.integers(1, 4), acquire=st.booleans())
    def pull(self, session: int, limit: int, acquire: bool) -> None:
        self._claim(session, limit, acquire)

    def _claim(self, session: int, limit: int, acquire: bool) -> None:
        expected = {id(stage): (run, stage) for run, stage in self.oracle.claimable()}
        overdue = any(run.is_past_deadline(self.oracle.now) and not run.ended for run in self.oracle.runs)
        jobs = self.hands[session].pull(limit, acquire=acquire)
        assert len(jobs) <= limit
        assert overdue or len(jobs) == min(limit, len(expected))
        for job in jobs:
            run, stage = expected.pop(id(self._stage_of(job)))
            self.oracle.claim(run, stage, session, acquire=acquire)
            assert (job.number, job.stage.epoch) == (stage.current().number, stage.epoch)
            self.attempt_ids[id(stage.current())] = job.attempt_id

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), session=st.integers(0, 1))
    def acquire(self, pick: tuple[int, int, int], session: int) -> None:
        for run, stage, attempt in self._attempt(pick):
            lease = leases.acquire(self.hands[session].holder, self._stage_id(stage), self.attempt_ids[id(attempt)])
            assert lease is not None
            assert lease.acquired == self.oracle.acquire(run, stage, attempt, session)
            assert lease.acquired == (lease.reason is None)

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), session=st.integers(0, 1))
    def renew(self, pick: tuple[int, int, int], session: int) -> None:
        for _, stage, attempt in self._attempt(pick):
            (lease,) = leases.renew(
                self.hands[session].holder, [(self._stage_id(stage), self.attempt_ids[id(attempt)])]
            )
            assert lease.acquired == self.oracle.renew(attempt, session)

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), session=st.integers(0, 1))
    def release(self, pick: tuple[int, int, int], session: int) -> None:
        for run, stage, attempt in self._attempt(pick):
            with self._refused(self.oracle.release(run, stage, attempt, session)):
                leases.release(self.hands[session].holder, self._stage_id(stage), self.attempt_ids[id(attempt)])

    @rule(
        pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)),
        session=st.integers(0, 1),
        how=st.sampled_from(["succeeded", "succeeded", "failed", "failed", "waiting"]),
        code=st.sampled_from(["FOO", "FOO", "VALIDATION_ERROR"]),
    )
    def report(self, pick: tuple[int, int, int], session: int, how: str, code: str) -> None:
        """Right, stale, repeated: whatever attempt the pick meets."""
        for run, stage, attempt in self._attempt(pick):
            self._report(run, stage, attempt, session, how, code)

    @rule(how=st.sampled_from(["succeeded", "failed", "waiting"]))
    def report_by_its_holder(self, how: str) -> None:
        running = [(run, stage) for run in self.oracle.runs for stage in run.stages if stage.state == "running"]
        for run, stage in running[:1]:
            self._report(run, stage, stage.current(), stage.current().session, how, "FOO")

    @rule(
        pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)),
        session=st.integers(0, 1),
        name=st.sampled_from(NAMES),
        state=st.sampled_from(["declared", "committed", "absent", "unknown"]),
    )
    def tell(self, pick: tuple[int, int, int], session: int, name: str, state: str) -> None:
        """Mostly of an attempt that may not tell any more."""
        for run, stage, attempt in self._attempt(pick):
            self._tell(run, stage, attempt, session, name, state)

    @rule(
        pick=st.integers(0, 9),
        name=st.sampled_from(NAMES),
        state=st.sampled_from(["declared", "declared", "committed", "absent", "unknown"]),
    )
    def tell_by_its_holder(self, pick: int, name: str, state: str) -> None:
        running = [(run, stage) for run in self.oracle.runs for stage in run.stages if stage.state == "running"]
        if running:
            run, stage = running[pick % len(running)]
            self._tell(run, stage, stage.current(), stage.current().session, name, state)

    def _tell(
        self, run: oracle.Run, stage: oracle.Stage, attempt: oracle.Attempt, session: int, name: str, state: str
    ) -> None:
        told = Told("external_http" if name in oracle.OUTSIDE else "internal_state", state, key=name)
        with self._refused(self.oracle.tell(run, stage, attempt, session, name, state)):
            intents.tell_effects(
                self.hands[session].holder, self._stage_id(stage), self.attempt_ids[id(attempt)], [told]
            )

    @rule(session=st.integers(0, 1), how=st.sampled_from(["succeeded", "succeeded", "failed"]))
    def work(self, session: int, how: str) -> None:
        """All there is to do, taken and ended in one go: brings stories forward."""
        self._work(session, how)

    @rule(session=st.integers(0, 1))
    def succeed_with_everything(self, session: int) -> None:
        self._work(session, "succeeded")

    @rule(session=st.integers(0, 1))
    def take_everything(self, session: int) -> None:
        self._claim(session, 9, True)

    def _work(self, session: int, how: str) -> None:
        self._claim(session, 9, True)
        for run in self.oracle.runs:
            for stage in run.stages:
                if stage.state == "running" and stage.current().session == session:
                    self._report(run, stage, stage.current(), session, how, "FOO")

    @rule(how=st.sampled_from(["succeeded", "succeeded", "failed"]), limit=st.integers(1, 3))
    def report_and_go_on(self, how: str, limit: int) -> None:
        """As the executor does: what the result made ready is handed on in the same transaction."""
        running = [(run, stage) for run in self.oracle.runs for stage in run.stages if stage.state == "running"]
        for run, stage in running[:1]:
            attempt, session = stage.current(), stage.current().session
            waiting = {id(found) for _, found in self.oracle.claimable()}
            told = results.Result(
                self._stage_id(stage), self.attempt_ids[id(attempt)], attempt.number, how, error_code="FOO"
            )
            expected = self.oracle.report(run, stage, attempt, session, how, "FOO")
            made_ready = [found for _, found in self.oracle.claimable() if id(found) not in waiting]
            (receipt,), jobs = results.report_and_claim(
                self.hands[session].holder, [told], served=lambda queue: queue.handler == "Handler", limit=limit
            )
            assert (receipt.accepted, receipt.code) == (expected is None, expected)
            assert len(jobs) == min(limit, len(made_ready))
            for job in jobs:
                following = self._stage_of(job)
                assert following in made_ready
                self.oracle.claim(run, following, session, acquire=True)
                assert (job.number, job.stage.epoch) == (following.current().number, following.epoch)
                self.attempt_ids[id(following.current())] = job.attempt_id

    # runs that stages start

    @precondition(lambda self: len(self.run_ids) < MOST_WITH_CHILDREN)
    @rule(pick=st.integers(0, 9), child=runs(), cancel=st.booleans(), park=st.booleans())
    def start_child(self, pick: int, child: oracle.Run, cancel: bool, park: bool) -> None:
        running = [(run, stage) for run in self.oracle.runs for stage in run.stages if stage.state == "running"]
        if running:
            run, stage = running[pick % len(running)]
            self._start_child(run, stage, stage.current(), stage.current().session, child, cancel)
            if park and stage.child is not None:
                self._park(run, stage, stage.current(), stage.current().session)

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), session=st.integers(0, 1))
    def start_child_late(self, pick: tuple[int, int, int], session: int) -> None:
        """Mostly by an attempt that may not start anything any more; or by a later one, which finds what there is."""
        for run, stage, attempt in self._attempt(pick):
            if stage.child is not None and (stage.child.may_be_found or stage.child.epoch == stage.epoch):
                self._start_child(run, stage, attempt, session, stage.child.run, stage.child.cancel)

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), session=st.integers(0, 1))
    def park(self, pick: tuple[int, int, int], session: int) -> None:
        for run, stage, attempt in self._attempt(pick):
            if stage.child is not None:
                self._park(run, stage, attempt, session)

    def _start_child(
        self,
        run: oracle.Run,
        stage: oracle.Stage,
        attempt: oracle.Attempt,
        session: int,
        child: oracle.Run,
        cancel: bool,
    ) -> None:
        known = stage.child.run if stage.child is not None else None
        if known is not None and (stage.child.epoch == stage.epoch or stage.child.may_be_found):
            asked = self.asked[id(known)]
        else:
            asked = Intent(
                name="child",
                stages=[stage_of(declared(child, one)) for one in child.stages],
                deadline_seconds=None if child.deadline is None else child.deadline * TICK_SECONDS,
            )
        refusal, created = self.oracle.start(run, stage, attempt, session, child, cancel=cancel)
        wish = Wish("only", asked, on_parent_end="cancel" if cancel else "leave")
        started = None
        with self._refused(refusal):
            started = children.start(
                self.hands[session].holder, self._stage_id(stage), self.attempt_ids[id(attempt)], wish
            )
        if started is None:
            return
        assert started.created == created
        if created:
            self.asked[id(child)] = asked
            self._know(started.child.run_id)
        else:
            assert known is not None
            assert started.child.run_id == self._run_id(known)

    def _park(self, run: oracle.Run, stage: oracle.Stage, attempt: oracle.Attempt, session: int) -> None:
        assert stage.child is not None
        child_id = self._run_id(stage.child.run)
        told = results.Result(
            self._stage_id(stage), self.attempt_ids[id(attempt)], attempt.number, "waiting", awaits_runs=[child_id]
        )
        expected = self.oracle.park(run, stage, attempt, session)
        (receipt,) = results.report(self.hands[session].holder, [told])
        assert (receipt.accepted, receipt.code) == (expected is None, expected)

    # time

    @rule(ticks=st.sampled_from([1, 1, 1, 2, 3]))
    def let_time_pass(self, ticks: int) -> None:
        self.clock.advance(ticks * TICK_SECONDS)
        self.oracle.now += ticks

    @rule()
    def sweep(self) -> None:
        sweeps.sweep()
        self.oracle.sweep()

    @rule(name=st.sampled_from([None, *NAMES]), state=st.sampled_from(["declared", "declared", "committed", "absent"]))
    def lose_every_worker(self, name: str | None, state: str) -> None:
        """All die at once, before or after they told of an effect: rare by chance, and where most can go wrong."""
        self._claim(0, 9, True)
        for run in self.oracle.runs:
            for stage in run.stages:
                if name and stage.state == "running":
                    self._tell(run, stage, stage.current(), stage.current().session, name, state)
        self.let_time_pass(oracle.LEASE)
        self.sweep()

    # people

    @rule(pick=st.integers(0, 9), verb=st.sampled_from(["pause", "resume", "resume"]))
    def steer(self, pick: int, verb: str) -> None:
        run, run_id = self._run(pick)
        if verb == "resume":
            paused = [(one, self.run_ids[index]) for index, one in enumerate(self.oracle.runs) if one.paused]
            run, run_id = paused[0] if paused else (run, run_id)
        act = {"pause": (self.oracle.pause, pause_run), "resume": (self.oracle.resume, resume_run)}[verb]
        with self._refused(act[0](run)):
            act[1](run_id, actor=self.operator)

    @precondition(lambda self: self.steps > 15)
    @rule(pick=st.integers(0, 9), luck=st.integers(0, 4))
    def cancel(self, pick: int, luck: int) -> None:
        run, run_id = self._run(pick)
        if luck and not run.ended:
            return
        with self._refused(self.oracle.cancel(run)):
            cancel_run(run_id, actor=self.operator)

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9)), downstream=st.booleans())
    def retry(self, pick: Pick, downstream: bool) -> None:
        run, stage = self._stage(pick)
        scope = "stage_and_downstream" if downstream else "stage"
        with self._refused(self.oracle.retry(run, stage, downstream=downstream)):
            retry_stage(
                self._stage_id(stage), actor=self.operator, scope=scope, reason="again", acknowledge_effects=True
            )

    @rule(pick=st.integers(0, 9), downstream=st.booleans())
    def retry_before(self, pick: int, downstream: bool) -> None:
        """What something that has not ended yet depends on: rare by chance, and where most can go wrong."""
        behind = [
            (run, run.stages[position])
            for run in self.oracle.runs
            for stage in run.stages
            if stage.state in ("ready", "retry_scheduled", "waiting", "running")
            for position in stage.needs
        ]
        if behind:
            run, stage = behind[pick % len(behind)]
            scope = "stage_and_downstream" if downstream else "stage"
            with self._refused(self.oracle.retry(run, stage, downstream=downstream)):
                retry_stage(
                    self._stage_id(stage), actor=self.operator, scope=scope, reason="again", acknowledge_effects=True
                )

    @rule(pick=st.tuples(st.integers(0, 9), st.integers(0, 9)), luck=st.integers(0, 4))
    def skip(self, pick: Pick, luck: int) -> None:
        run, stage = self._stage(pick)
        if luck and stage.state in ("pending", "ready"):
            return
        with self._refused(self.oracle.skip(run, stage)):
            skip_stage(self._stage_id(stage), actor=self.operator, reason="not needed")

    @rule(
        pick=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        who=st.sampled_from(oracle.DECIDERS),
        approved=st.sampled_from([True, True, False]),
        reason=st.sampled_from(["", "because"]),
    )
    def decide(self, pick: Pick, who: str, approved: bool, reason: str) -> None:
        waiting = [(run, stage) for run in self.oracle.runs for stage in run.stages if stage.state == "waiting"]
        run, stage = waiting[0] if waiting and pick[0] % 2 else self._stage(pick)
        with self._refused(self.oracle.decide(run, stage, who, approved=approved, reason=reason)):
            decide_gate(self._stage_id(stage), actor=self.deciders[who], approved=approved, reason=reason)

    @rule()
    def approve_what_waits(self) -> None:
        for run in self.oracle.runs:
            for stage in run.stages:
                for who in oracle.DECIDERS:
                    if stage.state == "waiting":
                        with self._refused(self.oracle.decide(run, stage, who, approved=True, reason="")):
                            decide_gate(self._stage_id(stage), actor=self.deciders[who], approved=True)

    @rule(
        pick=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        outcome=st.sampled_from(["committed", "absent", "absent", "contradicted"]),
    )
    def reconcile(self, pick: Pick, outcome: str) -> None:
        doubtful = [(run, one) for run in self.oracle.runs for one in run.stages if one.state == "needs_reconciliation"]
        run, stage = doubtful[0] if doubtful and pick[0] % 2 else self._stage(pick)
        finding = Finding(outcome, "looked", output="", has_output=True)
        with self._refused(self.oracle.reconcile(run, stage, outcome)):
            reconcile_stage(Stage.objects.get(id=self._stage_id(stage)), finding, actor=self.approver)

    @rule(pick=st.integers(0, 9), outcome=st.sampled_from(["committed", "absent", "contradicted"]))
    def reconcile_effect(self, pick: int, outcome: str) -> None:
        told = [
            (index, attempt, name)
            for index, run in enumerate(self.oracle.runs)
            for stage in run.stages
            for attempt in stage.attempts
            for name in attempt.effects
        ]
        if told:
            index, attempt, name = told[pick % len(told)]
            effect = Effect.objects.get(attempt=self.attempt_ids[id(attempt)], key=name)
            with self._refused(self.oracle.reconcile_effect(attempt, name, outcome)):
                reconcile_effect(self.run_ids[index], effect.id, Finding(outcome, "looked"), actor=self.approver)

    # after every step

    @invariant()
    def agree(self) -> None:
        self.steps += 1
        # what follows a commit: here nothing is committed, so it is done after every step, on both sides
        awaited_runs.sweep()
        self.oracle.follow_up()
        assert self._engine_says() == self._oracle_says()
        if self.steps % self.check_every == 0:
            assert_invariants()

    # below: how

    def _create(self, run: oracle.Run) -> None:
        made: Run = self.start_run(
            *[declared(run, stage) for stage in run.stages],
            deadline_seconds=None if run.deadline is None else run.deadline * TICK_SECONDS,
        )
        self._know(made.id)
        self.oracle.create(run)

    def _know(self, run_id: uuid.UUID) -> None:
        self.run_ids.append(run_id)
        stages = Stage.objects.filter(run=run_id).order_by("position")
        self.stage_ids.append(list(stages.values_list("id", flat=True)))

    def _report(
        self, run: oracle.Run, stage: oracle.Stage, attempt: oracle.Attempt, session: int, how: str, code: str
    ) -> None:
        told = results.Result(
            self._stage_id(stage), self.attempt_ids[id(attempt)], attempt.number, how, error_code=code
        )
        expected = self.oracle.report(run, stage, attempt, session, how, code)
        (receipt,) = results.report(self.hands[session].holder, [told])
        assert (receipt.accepted, receipt.code) == (expected is None, expected)

    @contextmanager
    def _refused(self, expected: str | None) -> Iterator[None]:
        code = None
        try:
            yield
        except Refusal as refusal:
            code = refusal.code
        assert code == expected

    def _run(self, pick: int) -> tuple[oracle.Run, uuid.UUID]:
        index = pick % len(self.run_ids)
        return self.oracle.runs[index], self.run_ids[index]

    def _stage(self, pick: Pick) -> tuple[oracle.Run, oracle.Stage]:
        run = self.oracle.runs[pick[0] % len(self.run_ids)]
        return run, run.stages[pick[1] % len(run.stages)]

    def _attempt(self, pick: tuple[int, int, int]) -> Iterator[tuple[oracle.Run, oracle.Stage, oracle.Attempt]]:
        """One attempt, mostly a late one, of a stage that has any; none when there is none yet."""
        tried = [(run, stage) for run in self.oracle.runs for stage in run.stages if stage.attempts]
        if tried:
            run, stage = tried[(pick[0] * 10 + pick[1]) % len(tried)]
            yield run, stage, stage.attempts[-1 - pick[2] % len(stage.attempts)]

    def _stage_of(self, job: Job) -> oracle.Stage:
        index = self.run_ids.index(job.run_id)
        return self.oracle.runs[index].stages[job.stage.position]

    def _run_id(self, wanted: oracle.Run) -> uuid.UUID:
        return next(run_id for run, run_id in zip(self.oracle.runs, self.run_ids, strict=True) if run is wanted)

    def _stage_id(self, wanted: oracle.Stage) -> uuid.UUID:
        for run, ids in zip(self.oracle.runs, self.stage_ids, strict=True):
            for stage, stage_id in zip(run.stages, ids, strict=True):
                if stage is wanted:
                    return stage_id
        raise LookupError(wanted.name)

    def _engine_says(self) -> list[Any]:
        rows = query(
            """
            SELECT r.id, r.status, r.paused, s.position, s.state, s.epoch, s.retry_count, s.recovery_count, s.stale,
                (SELECT array_agg(a.state::text ORDER BY a.number) FROM pipelines_attempt a WHERE a.stage_id = s.id),
                (SELECT array_agg(g.moment || ' ' || g.state || ' ' || (SELECT count(*) FROM pipelines_gatedecision d
                 WHERE d.gate_id = g.id) ORDER BY g.opened_at, g.id) FROM pipelines_gate g WHERE g.stage_id = s.id),
                EXISTS (SELECT FROM pipelines_deadletter d WHERE d.stage_id = s.id AND d.state = 'open'),
                (SELECT array_agg(a.number || ' ' || e.key || ' ' || e.state) FROM pipelines_effect e
                 JOIN pipelines_attempt a ON a.id = e.attempt WHERE e.stage_id = s.id)
            FROM pipelines_run r JOIN pipelines_stage s ON s.run_id = r.id WHERE r.id = ANY(%s)
            """,
            [self.run_ids],
        )
        order = {run_id: index for index, run_id in enumerate(self.run_ids)}
        return sorted(
            (
                order[row[0]],
                row[3],
                row[1],
                row[2],
                *row[4:9],
                row[9] or [],
                row[10] or [],
                row[11],
                sorted(row[12] or []),
            )
            for row in rows
        )

    def _oracle_says(self) -> list[Any]:
        return [
            (
                index,
                position,
                run.status,
                run.paused,
                stage.state,
                stage.epoch,
                stage.retries,
                stage.recoveries,
                stage.stale,
                [attempt.state for attempt in stage.attempts],
                [f"{gate.moment} {gate.state} {len(gate.decisions)}" for gate in stage.gates],
                stage.dead,
                sorted(
                    f"{attempt.number} {name} {state}"
                    for attempt in stage.attempts
                    for name, state in attempt.effects.items()
                ),
            )
            for index, run in enumerate(self.oracle.runs)
            for position, stage in enumerate(run.stages)
        ]


def declared(run: oracle.Run, stage: oracle.Stage) -> dict[str, Any]:
    """The oracle's stage in the words of the engine."""
    approval = None
    if stage.gated:
        approval = {"when": stage.gated}
        if stage.approvers > 1:
            approval["count"] = stage.approvers
        if stage.gate_ticks:
            approval["expires_in"] = stage.gate_ticks * TICK_SECONDS
    options: dict[str, Any] = {"max_recoveries": stage.max_recoveries}
    if stage.max_retries:
        options |= {"max_retries": stage.max_retries, "retry_interval": stage.interval * TICK_SECONDS}
    if stage.timeout:
        options["timeout"] = stage.timeout * TICK_SECONDS
    return {
        "name": stage.name,
        "depends_on": [run.stages[position].name for position in stage.needs] or None,
        "run_next_if_failed": stage.bypass,
        "effect_mode": stage.mode,
        "effect_protocol": stage.protocol,
        "approval": approval,
        "options": options,
    }
