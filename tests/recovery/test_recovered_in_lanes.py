"""F52: recovered work obeys its lane. What a person reopens or forks waits for its turn, and is told so before."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from pipelines import dispatch, lanes, ledger, queries, sweeps
from pipelines.access import Actor
from pipelines.models import Blackout, Event, Lane, QueueEntry, Run, Trigger
from pipelines.transitions import cancel_run
from recovery import backfills, forks
from recovery.models import Backfill
from recovery.plans import Asked, Plan
from recovery.screens import plan_lines
from recovery.states import OperationKind
from recovery.transitions import ask_retry, ask_skip, perform, preview
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.laned import hold, inside, open_lane, waiting
from tests.pipelines.engine import states, status
from tests.recovery.backfilled import runs_of, trigger_of, wish
from tests.scheduled import MakeTrigger
from tests.verbs import pause_run, redrive, resume_run, retry_stage, skip_stage

AtCommit = Callable[..., AbstractContextManager[Any]]
TWO = ({"name": "first", "handler": "Handler"}, {"name": "second", "handler": "Handler"})


@pytest.fixture
def operator(people: dict[str, Person]) -> Actor:
    return people["operator"].actor


@pytest.fixture
def at_commit(django_capture_on_commit_callbacks: AtCommit) -> AtCommit:
    """What follows a commit follows the block, though the test's transaction is rolled back."""
    return django_capture_on_commit_callbacks


@pytest.fixture
def trigger(make_trigger: MakeTrigger) -> Trigger:
    return make_trigger(stages=TWO)


@pytest.fixture
def fail_first(trigger: Trigger, hand: Hand, at_commit: AtCommit) -> Callable[..., tuple[uuid.UUID, list[Run]]]:
    """A lane for one, whose first run has failed: the second is in, the others are held."""

    def fail(count: int, **more: Any) -> tuple[uuid.UUID, list[Run]]:
        lane = open_lane(trigger, 1)
        runs = hold(trigger, lane, count, **more)
        with at_commit(execute=True):
            lanes.let_in([lane])
            hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)
        assert (status(runs[0]), inside(lane)) == ("failed", [1] if count > 1 else [])
        return lane, runs

    return fail


def first_of(run: Run) -> uuid.UUID:
    return run.stages.get(name="first").id


def retry(run: Run, **more: Any) -> Asked:
    return ask_retry(run.id, first_of(run), **more)


def told(plan: Plan) -> str:
    """The line about the lane in what a person is shown; blank where there is none."""
    lines = [line.text for line in plan_lines.lines(plan.shown()) if line.word == "Its turn"]
    return lines[0] if lines else ""


def test_a_retry_waits_in_a_full_lane_and_its_plan_says_so_before(
    fail_first: Any, operator: Actor, hand: Hand, at_commit: AtCommit
) -> None:
    """Queued, begun by nobody, with its turn as the reason; let in before younger ones as soon as there is room."""
    lane, (first, second, third) = fail_first(3)
    plan = preview(retry(first), actor=operator)
    assert told(plan) == "it will wait in its lane: 1 of 1 running, 1 waiting; older ones go first"
    assert [(line.stage, line.to, line.epoch) for line in plan.run_again] == [("first", "pending", 2)]
    with at_commit(execute=True):
        done = perform(retry(first), actor=operator, plan_digest=plan.digest)
    assert (done.result["run_status"], done.result["stage_status"]) == ("queued", "pending")
    assert states(first) == {"first": "pending", "second": "pending"}
    assert not QueueEntry.objects.filter(stage__run=first).exists()
    first.refresh_from_db()
    blocker = queries.blockers(first)[0]
    assert blocker.cause.startswith("waits for its turn: its backfill lets in 1 at once; 1 is in, none before it")
    assert_invariants()
    with at_commit(execute=True):
        hand.finish(2)
    assert (inside(lane), waiting(lane), status(second), status(third)) == ([0], [2], "completed", "queued")
    with at_commit(execute=True):
        hand.finish(2)
    assert (status(first), inside(lane)) == ("completed", [2])
    assert_invariants()


def test_what_is_planned_does_not_depend_on_how_full_the_lane_is(
    fail_first: Any, operator: Actor, hand: Hand, at_commit: AtCommit
) -> None:
    """I11: the digest that somebody agreed to holds, though others came and went meanwhile."""
    lane, (first, _) = fail_first(2)
    plan = preview(retry(first), actor=operator)
    assert told(plan) == "it will wait in its lane: 1 of 1 running"
    with at_commit(execute=True):
        hand.finish()
    again = preview(retry(first), actor=operator)
    assert (told(again), again.digest) == ("its lane lets it in at once: 0 of 1 running", plan.digest)
    with at_commit(execute=True):
        perform(retry(first), actor=operator, plan_digest=plan.digest)
    assert (inside(lane), states(first)) == ([0], {"first": "ready", "second": "pending"})
    assert_invariants()


def test_a_redrive_waits_as_a_retry_does(fail_first: Any, operator: Actor) -> None:
    lane, (first, _) = fail_first(2)
    redrive(first.dead_letters.get(), actor=operator)
    assert (inside(lane), waiting(lane), status(first)) == ([1], [0], "queued")
    assert_invariants()


def test_a_skip_that_reopens_its_run_waits_and_one_that_ends_it_does_not(
    fail_first: Any, operator: Actor, hand: Hand, at_commit: AtCommit
) -> None:
    lane, (first, _) = fail_first(2)
    asked = ask_skip(first.id, first_of(first), reason="not needed")
    assert told(preview(asked, actor=operator)) == "it will wait in its lane: 1 of 1 running"
    perform(asked, actor=operator)
    assert (waiting(lane), states(first)) == ([0], {"first": "skipped", "second": "pending"})
    assert_invariants()
    skip_stage(first.stages.get(name="second").id, actor=operator, reason="nor this")
    assert (waiting(lane), status(first)) == ([], "completed")
    assert_invariants()


def test_a_skip_of_the_last_stage_completes_the_run_whatever_is_in(
    trigger: Trigger, operator: Actor, hand: Hand, at_commit: AtCommit
) -> None:
    lane = open_lane(trigger, 1)
    first, _ = hold(trigger, lane, 2)
    lanes.let_in([lane])
    hand.report(hand.take(), output=1)
    with at_commit(execute=True):
        hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)
    asked = ask_skip(first.id, first.stages.get(name="second").id, reason="not needed")
    assert told(preview(asked, actor=operator)) == ""
    perform(asked, actor=operator)
    assert (status(first), waiting(lane)) == ("completed", [])
    assert not Event.objects.filter(run=first, kind="run.stand_in_lane").exists()


def test_a_retry_behind_a_failed_stage_reopens_nothing_and_waits_for_nothing(
    fail_first: Any, operator: Actor, hand: Hand
) -> None:
    lane, (first, _) = fail_first(2)
    skipped = first.stages.get(name="second")
    perform(ask_skip(first.id, skipped.id, reason="not needed"), actor=operator)
    perform(ask_retry(first.id, skipped.id, reason="needed after all"), actor=operator)
    assert (status(first), waiting(lane), states(first)) == ("failed", [], {"first": "failed", "second": "pending"})


@pytest.mark.parametrize("policy", ["allow", "skip"])
def test_where_nothing_ever_waits_a_retry_begins_at_once(
    policy: str, make_trigger: MakeTrigger, operator: Actor, hand: Hand, clock: Clock
) -> None:
    """A trigger's lane without a limit holds nobody."""
    trigger = make_trigger(overlap_policy=policy, catch_up="latest")
    clock.advance(3600)
    ledger.record()
    dispatch.dispatch_due()
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)
    run = Run.objects.get(lane_id=trigger.id)
    assert told(preview(retry(run), actor=operator)) == ""
    retry_stage(first_of(run), actor=operator)
    assert (states(run), Run.objects.get(id=run.id).held) == ({"first": "ready"}, False)


def test_a_trigger_that_queues_has_one_in_with_what_was_recovered(
    make_trigger: MakeTrigger, operator: Actor, hand: Hand, clock: Clock, at_commit: AtCommit
) -> None:
    """F81: its lane is for one; what is retried waits for the tick that is in, and no younger tick goes before it."""
    trigger = make_trigger(overlap_policy="queue_all", catch_up="all")
    clock.advance(3 * 3600)
    ledger.record()
    dispatch.dispatch_due()
    first, second, third = Run.objects.filter(lane_id=trigger.id).order_by("lane_rank")
    with at_commit(execute=True):
        hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)
    with at_commit(execute=True):
        retry_stage(first_of(first), actor=operator)
    held = {run.id: run.held for run in Run.objects.filter(lane_id=trigger.id)}
    assert held == {first.id: True, second.id: False, third.id: True}
    for _ in range(3):
        with at_commit(execute=True):
            hand.finish(1)
        assert len(inside(trigger.id)) <= 1
    assert [status(run) for run in (first, second, third)] == ["completed"] * 3
    assert_invariants()


def test_a_reopened_run_keeps_its_deadline_while_it_waits(
    fail_first: Any, operator: Actor, clock: Clock, hand: Hand
) -> None:
    """Model §2: the deadline counts from when the run was first let in, and ends it also while it is held."""
    lane, (first, _) = fail_first(2, deadline_seconds=600)
    first.refresh_from_db()
    retry_stage(first_of(first), actor=operator)
    assert Run.objects.get(id=first.id).deadline_at == first.deadline_at
    clock.advance(601)
    sweeps.enforce_deadlines()
    assert (status(first), waiting(lane)) == ("failed", [])
    assert Run.objects.get(id=first.id).failure_code == "deadline_exceeded"
    assert_invariants()


def test_a_waiting_recovered_run_is_paused_resumed_and_cancelled_like_any(
    fail_first: Any, operator: Actor, hand: Hand, at_commit: AtCommit
) -> None:
    lane, (first, second, _) = fail_first(3)
    retry_stage(first_of(first), actor=operator)
    pause_run(first.id, actor=operator, reason="not yet")
    assert status(first) == "paused"
    with at_commit(execute=True):
        cancel_run(second.id, actor=operator)
    assert inside(lane) == [2], "the paused one is passed over"
    with at_commit(execute=True):
        resume_run(first.id, actor=operator)
    assert (status(first), inside(lane), waiting(lane)) == ("queued", [2], [0])
    cancel_run(first.id, actor=operator)
    assert (status(first), waiting(lane)) == ("cancelled", [])
    assert_invariants()


@pytest.mark.parametrize("kind", [OperationKind.RERUN, OperationKind.REPLAY])
def test_a_fork_stands_where_its_source_did(
    kind: OperationKind, fail_first: Any, operator: Actor, hand: Hand, clock: Clock, at_commit: AtCommit
) -> None:
    """F52, F51: held, as planned, before younger ones; its deadline begins when it is let in."""
    lane, (first, _, _) = fail_first(3, deadline_seconds=600)
    first.refresh_from_db()
    asked = forks.ask_fork(kind, first, forks.Wish(), actor=operator)
    plan = forks.preview(asked, actor=operator)
    assert told(plan) == "it will wait in its lane: 1 of 1 running, 1 waiting; older ones go first"
    assert {line.to for line in plan.run_again} == {"pending"}
    with at_commit(execute=True):
        done = forks.fork(asked, actor=operator, plan_digest=plan.digest)
    fork = Run.objects.get(id=done.result["execution_id"])
    assert (fork.status, fork.held, fork.deadline_at) == ("queued", True, None)
    assert fork.deadline_seconds == pytest.approx(600, abs=1)
    assert (fork.lane_id, fork.lane_rank, fork.trigger_id) == (first.lane_id, first.lane_rank, first.trigger_id)
    assert hand.take().run_id != fork.id
    assert hand.pull(5) == []
    assert_invariants()
    clock.advance(100)
    with at_commit(execute=True):
        cancel_run(Run.objects.get(lane_id=lane, held=False, status="running").id, actor=operator)
    fork.refresh_from_db()
    assert (fork.held, waiting(lane)) == (False, [2])
    assert (fork.deadline_at - clock.now()).total_seconds() == pytest.approx(600, abs=5)
    with at_commit(execute=True):
        hand.finish(2)
    assert status(fork) == "completed"
    assert_invariants()


def test_a_fork_of_a_run_outside_of_lanes_stands_in_none(start_run: Any, operator: Actor, hand: Hand) -> None:
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)
    done = forks.fork(forks.ask_fork(OperationKind.REPLAY, run, forks.Wish(), actor=operator), actor=operator)
    fork = Run.objects.get(id=done.result["execution_id"])
    assert (fork.lane_id, fork.held, states(fork)) == (None, False, {"first": "ready"})


def test_whoever_gave_a_reason_passes_those_that_wait_for_a_blackouts_end(
    fail_first: Any, operator: Actor, hand: Hand, trigger: Trigger, at_commit: AtCommit
) -> None:
    """F117: there is room, an older run is closed out, and the one with the reason is let in past it."""
    lane, (first, second, _) = fail_first(3)
    with at_commit(execute=True):
        retry_stage(first_of(first), actor=operator)
    job = hand.take()
    freeze = Blackout.objects.create(workspace_id=trigger.workspace_id, name="freeze", kind="period")
    with at_commit(execute=True):
        hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    assert (status(second), inside(lane), waiting(lane)) == ("failed", [], [0, 2])
    asked = retry(second).overriding("the bank asks for it")
    with at_commit(execute=True):
        perform(asked, actor=operator)
    assert (inside(lane), waiting(lane)) == ([1], [0, 2])
    assert hand.take().run_id == second.id
    freeze.delete()
    assert_invariants()


@pytest.mark.django_db(transaction=True)
class TestBackfills:
    """A lane outlives its backfill: it goes on to hold what is recovered to its width."""

    WINDOW = ("2026-05-18T08:00:00+00:00", "2026-05-22T08:00:00+00:00")

    @pytest.fixture
    def trigger(self, people: dict[str, Person], environment: Any, application: Any) -> Trigger:
        return trigger_of(people["admin"].actor, environment, application)

    def start(self, trigger: Trigger, operator: Actor, **more: Any) -> tuple[uuid.UUID, list[Run]]:
        done = backfills.start(wish(trigger, *self.WINDOW, **more), operator)
        return done.backfill.id, runs_of(done.backfill.id)

    def fail(self, hand: Hand, count: int) -> None:
        for _ in range(count):
            hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)

    def stand(self, lane: uuid.UUID) -> list[str]:
        return ["held" if run.held else run.status for run in runs_of(lane)]

    def test_a_completed_one_holds_retries_to_its_width(self, trigger: Trigger, operator: Actor, hand: Hand) -> None:
        lane, runs = self.start(trigger, operator, max_concurrent=2)
        self.fail(hand, 5)
        backfills.carry_on()
        assert Backfill.objects.get().state == "completed_with_failures"
        for run in runs[::-1]:
            retry_stage(run.stages.get().id, actor=operator)
        assert self.stand(lane) == ["held", "held", "held", "running", "running"]
        hand.finish(1)
        assert self.stand(lane) == ["completed"] * 5
        assert Backfill.objects.get().state == "completed_with_failures"

    def test_a_paused_one_lets_nothing_in_and_the_plan_says_so(
        self, trigger: Trigger, operator: Actor, hand: Hand
    ) -> None:
        lane, runs = self.start(trigger, operator)
        self.fail(hand, 1)
        backfills.pause(lane, operator)
        asked = ask_retry(runs[0].id, runs[0].stages.get().id)
        assert told(preview(asked, actor=operator)) == "it will wait in its lane: its backfill lets nothing in now"
        perform(asked, actor=operator)
        self.fail(hand, 1)
        assert self.stand(lane) == ["held", "failed", "held", "held", "held"]
        backfills.resume(lane, operator)
        assert self.stand(lane) == ["running", "failed", "held", "held", "held"]

    def test_a_cancel_leaves_what_was_recovered_and_opens_the_lane_for_it(
        self, trigger: Trigger, operator: Actor, hand: Hand
    ) -> None:
        """F82: what was never in is cancelled and missed again; a tick whose run has begun is not given back."""
        lane, runs = self.start(trigger, operator)
        self.fail(hand, 1)
        retry_stage(runs[0].stages.get().id, actor=operator)
        assert self.stand(lane) == ["held", "queued", "held", "held", "held"]
        assert backfills.progress(Backfill.objects.get()).never_in == 3
        backfills.cancel(lane, operator, "enough")
        assert self.stand(lane) == ["held", "queued", "cancelled", "cancelled", "cancelled"]
        assert Lane.objects.get(id=lane).is_open
        hand.finish(1)
        assert self.stand(lane) == ["completed", "completed", "cancelled", "cancelled", "cancelled"]
        assert trigger.ticks.filter(state="dispatched").count() == 2
        assert_invariants()

    def test_a_cancel_leaves_a_waiting_fork(self, trigger: Trigger, operator: Actor, hand: Hand) -> None:
        lane, runs = self.start(trigger, operator)
        self.fail(hand, 1)
        source = Run.objects.get(id=runs[0].id)
        done = forks.fork(forks.ask_fork(OperationKind.REPLAY, source, forks.Wish(), actor=operator), actor=operator)
        fork = Run.objects.get(id=done.result["execution_id"])
        assert (fork.held, fork.started_at) == (True, None)
        backfills.cancel(lane, operator, "enough")
        assert (status(fork), status(source)) == ("queued", "failed")
        hand.finish(1)
        assert status(fork) == "completed"
        assert_invariants()
