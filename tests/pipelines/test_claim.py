"""Handing out stages: to whom, in which order, how often, and what is in a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import leases, sweeps
from pipelines.models import Run, WorkerSession
from pipelines.transitions import cancel_run
from pipelines.wake import Queue
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, kinds, last_event, states, status
from tests.verbs import pause_run

StartRun = Callable[..., Run]
PAIR = ("first", "second", {"name": "join", "depends_on": ["first", "second"]})


def test_a_ready_stage_is_handed_out_once(start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand]) -> None:
    """P49, I2: the second asks in vain."""
    run = start_run("first", "second")
    (job,) = hand.pull(10, acquire=False)
    assert (job.stage.name, job.number, job.run_id) == ("first", 1, run.id)
    assert new_hand("hand-2").pull(10) == []
    assert states(run) == {"first": "dispatched", "second": "pending"}
    assert status(run) == "running"
    assert_invariants()


def test_a_stage_whose_handler_nobody_has_stays_ready(start_run: StartRun, new_hand: Callable[..., Hand]) -> None:
    """P15, P48: queued, not failed; a handler that was not registered cannot be pulled."""
    run = start_run({"name": "first", "handler": "Nobody"})
    assert new_hand("hand-2", "Somebody").pull(10) == []
    assert states(run) == {"first": "ready"}
    assert status(run) == "queued"
    assert attempts(run, "first") == []


def test_another_application_and_another_environment_get_nothing(
    start_run: StartRun, hand: Hand, place: Any, environments: dict[str, Any]
) -> None:
    """P49, I16: one queue is one application, environment and handler."""
    run = start_run("first")
    elsewhere = Queue(place.application_id, environments["staging"].id, "Handler")
    foreign = Queue(environments["staging"].id, place.environment_id, "Handler")
    assert leases.claim(hand.holder, [elsewhere, foreign], limit=10, acquire=True) == []
    assert states(run) == {"first": "ready"}


def test_the_oldest_ready_stage_goes_first(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    runs = []
    for _ in range(3):
        runs.append(start_run("first"))
        clock.advance(1)
    assert [hand.take().run_id for _ in runs] == [run.id for run in runs]


def test_a_batch_is_no_larger_than_asked_for(start_run: StartRun, hand: Hand) -> None:
    for _ in range(5):
        start_run("first")
    assert len(hand.pull(3)) == 3
    assert len(hand.pull(3)) == 2
    assert hand.pull(3) == []
    assert_invariants()


def test_a_wide_run_is_handed_out_in_one_batch(start_run: StartRun, hand: Hand) -> None:
    fan = [{"name": f"leaf {number}", "depends_on": ["root"]} for number in range(20)]
    run = start_run("root", *fan)
    hand.report(hand.take(), output=None)
    assert len(hand.pull(50)) == 20
    assert set(states(run).values()) == {"completed", "running"}
    assert_invariants()


def test_a_claim_that_acquires_starts_the_work_at_once(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    run = start_run("first")
    job = hand.take()
    assert job.lease is not None
    assert job.lease.acquired
    assert (job.lease.expires_at - clock.now()).total_seconds() == pytest.approx(60, abs=5)  # type: ignore[operator]
    assert states(run) == {"first": "running"}
    event = last_event(run, "stage.acquire")
    assert (event.actor, event.attempt, event.to_state) == ("hand-1", job.attempt_id, "running")
    assert_invariants()


def test_a_job_carries_what_its_dependencies_produced(start_run: StartRun, hand: Hand) -> None:
    start_run("left", "right", {"name": "join", "depends_on": ["left", "right"]})
    for job in hand.pull(2):
        hand.report(job, output={"from": job.stage.name})
    job = hand.take()
    assert job.dependencies == {"left": '{"from":"left"}', "right": '{"from":"right"}'}


def test_the_request_digest_tells_attempts_apart_and_the_key_does_not(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R19: the digest covers the attempt. The idempotency key is the same over all attempts of an epoch (F119)."""
    start_run({"name": "first", "input": "{}", "options": {"max_retries": 1, "retry_interval": 1}})
    first = hand.take()
    hand.report(first, "failed", error_code="FOO")
    clock.advance(1)
    second = hand.take()
    assert (first.number, second.number) == (1, 2)
    assert first.request_digest != second.request_digest
    assert first.idempotency_key == second.idempotency_key


def test_a_scheduled_retry_is_handed_out_when_due_and_not_before(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """P32: both sides of the limit."""
    run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 100}})
    hand.report(hand.take(), "failed", error_code="FOO")
    clock.advance(95)
    assert hand.pull() == []
    assert states(run) == {"first": "retry_scheduled"}
    clock.advance(5)
    assert hand.take().number == 2


def test_nothing_of_a_paused_or_ended_run_is_handed_out(
    start_run: StartRun, hand: Hand, people: dict[str, Person], application_actor: Any
) -> None:
    """P60, P73, I4."""
    paused, cancelled = start_run("first"), start_run("first")
    pause_run(paused.id, actor=people["operator"].actor)
    cancel_run(cancelled.id, actor=application_actor)
    assert hand.pull(10) == []
    assert states(paused) == {"first": "ready"}
    assert states(cancelled) == {"first": "cancelled"}
    assert_invariants()


def test_a_run_past_its_deadline_is_not_handed_out_even_before_a_sweep_ends_it(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R30: both sides of the limit."""
    early = start_run("first", deadline_seconds=100)
    late = start_run("first", deadline_seconds=50)
    clock.advance(51)
    assert [job.run_id for job in hand.pull(10)] == [early.id]
    assert states(late) == {"first": "ready"}


@pytest.mark.parametrize("state", ["draining", "revoked"])
def test_a_session_that_ended_gets_nothing_though_its_worker_comes_back_by_name(
    start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand], state: str
) -> None:
    """F22: the name proves nothing; a new session of the same worker is handed work again."""
    run = start_run("first")
    WorkerSession.objects.filter(id=hand.holder.session_id).update(state=state)
    assert hand.pull() == []
    assert states(run) == {"first": "ready"}
    assert new_hand("hand-1").take().run_id == run.id


def test_a_worker_that_dies_after_its_claim_blocks_nothing_for_long(
    start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand], clock: Clock
) -> None:
    """F08: claimable again at the lease's end, once."""
    run = start_run("first")
    hand.take()
    clock.advance(60)
    assert sweeps.expire_leases() == 1
    other, third = new_hand("hand-2"), new_hand("hand-3")
    assert other.take().number == 2
    assert third.pull() == []
    assert attempts(run, "first") == ["lost", "running"]
    assert_invariants()


def test_next_due_tells_when_to_look_again(start_run: StartRun, hand: Hand, place: Any) -> None:
    queue = Queue(place.application_id, place.environment_id, "Handler")
    assert leases.next_due([queue]) is None
    assert leases.next_due([]) is None
    start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 100}})
    assert leases.next_due([queue]) <= 0  # type: ignore[operator]
    job = hand.take()
    assert leases.next_due([queue]) is None
    hand.report(job, "failed", error_code="FOO")
    assert leases.next_due([queue]) == pytest.approx(100, abs=5)


def test_a_claim_writes_one_event_for_each_stage_and_one_for_the_run(start_run: StartRun, hand: Hand) -> None:
    """I5."""
    run = start_run(*PAIR)
    hand.pull(10, acquire=False)
    assert kinds(run, "first") == ["stage.make_ready", "stage.dispatch"]
    assert kinds(run).count("run.running") == 1
