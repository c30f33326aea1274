"""Acquire, renew, release: only the session that holds a lease moves it, and only while it lasts."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings

from pipelines import leases, sweeps
from pipelines.errors import Refusal
from pipelines.models import LateEvidence, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempt, attempts, everything, kinds, last_event, output, stage, states, status
from tests.verbs import pause_run, resume_run

StartRun = Callable[..., Run]
PAIR = ("first", "second", {"name": "join", "depends_on": ["first", "second"]})
NewHand = Callable[..., Hand]


def test_the_lease_goes_to_one_of_two_that_ask(start_run: StartRun, hand: Hand, new_hand: NewHand) -> None:
    """P4, P50: the other is told why not, and nothing changes by asking."""
    run = start_run("first")
    (job,) = hand.pull(acquire=False)
    lease = hand.acquire(job)
    assert (lease.acquired, lease.reason, lease.attempt) == (True, None, 1)
    assert lease.expires_at is not None
    before = everything()
    other = new_hand("hand-2").acquire(job)
    assert (other.acquired, other.reason) == (False, "lease_held")
    assert everything() == before
    assert states(run) == {"first": "running"}


def test_the_holder_may_ask_again_and_its_lease_is_no_longer_for_it(start_run: StartRun, hand: Hand) -> None:
    start_run("first")
    (job,) = hand.pull(acquire=False)
    first = hand.acquire(job)
    before = everything()
    again = hand.acquire(job)
    assert (again.acquired, again.expires_at) == (True, first.expires_at)
    assert everything() == before


def test_acquiring_is_told_with_its_attempt_and_worker(start_run: StartRun, hand: Hand, new_hand: NewHand) -> None:
    """I5: whoever acquires is the worker from then on, not whoever pulled."""
    run = start_run("first")
    (job,) = hand.pull(acquire=False)
    new_hand("hand-2").acquire(job)
    event = last_event(run, "stage.acquire")
    assert (event.attempt, event.from_state, event.to_state) == (job.attempt_id, "dispatched", "running")
    assert attempt(job).worker == "hand-2"
    assert_invariants()


def test_an_unknown_attempt_and_a_foreign_stage_are_not_known(start_run: StartRun, hand: Hand) -> None:
    """I16."""
    start_run(*PAIR)
    one, two = hand.pull(2, acquire=False)
    assert leases.acquire(hand.holder, one.stage.id, uuid.uuid4()) is None
    assert leases.acquire(hand.holder, one.stage.id, two.attempt_id) is None
    stranger = leases.Holder(uuid.uuid4(), uuid.uuid4(), uuid.uuid4(), "stranger")
    assert leases.acquire(stranger, one.stage.id, one.attempt_id) is None
    assert leases.release(stranger, one.stage.id, one.attempt_id) is None
    assert [lease.reason for lease in leases.renew(stranger, [(one.stage.id, one.attempt_id)])] == ["stale_execution"]


def test_a_dispatch_that_was_waited_for_too_long_cannot_be_acquired(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """The visibility time, by the clock, on both sides and before any sweep."""
    start_run(*PAIR)
    one, two = hand.pull(2, acquire=False)
    clock.advance(settings.RECOURSE_VISIBILITY_SECONDS - 5)
    assert hand.acquire(one).acquired
    clock.advance(5)
    late = hand.acquire(two)
    assert (late.acquired, late.reason) == (False, "lease_expired")


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("result", "stage_not_active"),
        ("release", "stage_not_active"),
        ("expire", "stage_not_active"),
        ("redispatch", "stale_execution"),
        ("cancel", "run_terminal"),
        ("pause", "run_paused"),
        ("deadline", "run_terminal"),
    ],
)
def test_acquire_says_why_not(
    start_run: StartRun,
    hand: Hand,
    new_hand: NewHand,
    clock: Clock,
    people: dict[str, Person],
    ending: str,
    reason: str,
) -> None:
    """P50: `acquired: false` with one of the closed set of reasons."""
    run = start_run("first", "second", deadline_seconds=1000)
    (job,) = hand.pull(acquire=False)
    if ending != "pause":
        hand.acquire(job)
    if ending == "result":
        hand.report(job)
    elif ending == "release":
        leases.release(hand.holder, job.stage.id, job.attempt_id)
    elif ending in ("expire", "redispatch"):
        clock.advance(60)
        sweeps.expire_leases()
        if ending == "redispatch":
            new_hand("hand-2").take()
    elif ending == "cancel":
        cancel_run(run.id, actor=people["operator"].actor)
    elif ending == "pause":
        pause_run(run.id, actor=people["operator"].actor)
    else:
        clock.advance(1000)
    before = everything()
    lease = hand.acquire(job)
    assert (lease.acquired, lease.reason, lease.expires_at) == (False, reason, None)
    assert everything() == before


def test_renewing_moves_the_end_before_it_and_never_after(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """P51, F13: both sides of the limit, without any sweep."""
    start_run("first")
    job = hand.take()
    end = attempt(job).expires_at
    clock.advance(55)
    (lease,) = hand.renew(job)
    assert lease.acquired
    assert lease.expires_at == attempt(job).expires_at
    assert (attempt(job).expires_at - end).total_seconds() == pytest.approx(55, abs=4)
    clock.advance(60)
    before = everything()
    (late,) = hand.renew(job)
    assert (late.acquired, late.reason) == (False, "lease_expired")
    assert {"command": "cancel", "stageId": str(job.stage.id), "executionId": str(job.attempt_id)} in late.commands
    assert everything() == before


def test_five_minutes_of_work_on_a_short_lease_are_one_attempt(
    start_run: StartRun, hand: Hand, clock: Clock, settings: Any
) -> None:
    """F11, F13, F14: renewals decide, not the time that has passed; one of them five seconds late does no harm."""
    settings.RECOURSE_LEASE_SECONDS = 15
    run = start_run("first")
    job = hand.take()
    for renewal in range(60):
        clock.advance(10 if renewal == 30 else 5)
        assert hand.renew(job)[0].acquired
        assert sweeps.expire_leases() == 0
    assert hand.report(job).accepted
    assert attempts(run, "first") == ["succeeded"]


def test_the_server_renews_three_times_in_a_lease(hand: Hand) -> None:
    """F11."""
    assert settings.RECOURSE_RENEW_SECONDS * 3 <= settings.RECOURSE_LEASE_SECONDS


def test_many_leases_are_renewed_at_once_each_with_its_own_answer(
    start_run: StartRun, hand: Hand, new_hand: NewHand
) -> None:
    other = new_hand("hand-2")
    for _ in range(4):
        start_run("first")
    mine, done, theirs = hand.take(), hand.take(), other.take()
    hand.report(done)
    answers = leases.renew(
        hand.holder,
        [
            (mine.stage.id, mine.attempt_id),
            (done.stage.id, done.attempt_id),
            (theirs.stage.id, theirs.attempt_id),
            (mine.stage.id, theirs.attempt_id),
            (uuid.uuid4(), uuid.uuid4()),
        ],
    )
    assert [answer.acquired for answer in answers] == [True, False, False, False, False]
    assert [answer.reason for answer in answers[1:]] == [
        "run_terminal",
        "lease_not_owned",
        "stale_execution",
        "stale_execution",
    ]
    assert leases.renew(hand.holder, []) == []


def test_a_pausing_run_asks_its_workers_to_pause_and_lets_them_renew(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """P61, O8."""
    run = start_run("first")
    job = hand.take()
    pause_run(run.id, actor=people["operator"].actor)
    (lease,) = hand.renew(job)
    assert lease.acquired
    assert [command["command"] for command in lease.commands] == ["pause"]
    resume_run(run.id, actor=people["operator"].actor)
    assert hand.renew(job)[0].commands == []


def test_a_draining_session_renews_and_is_told_to_drain(start_run: StartRun, hand: Hand) -> None:
    start_run("first")
    job = hand.take()
    holder = leases.Holder(
        hand.holder.session_id, hand.holder.application_id, hand.holder.environment_id, "hand-1", draining=True
    )
    (lease,) = leases.renew(holder, [(job.stage.id, job.attempt_id)])
    assert lease.acquired
    assert lease.commands == [{"command": "drain"}]


def test_a_released_stage_is_ready_again_and_nothing_is_counted(
    start_run: StartRun, hand: Hand, new_hand: NewHand
) -> None:
    run = start_run("first", "second")
    job = hand.take()
    assert leases.release(hand.holder, job.stage.id, job.attempt_id) == "ready"
    found = stage(run, "first")
    assert (found.state, found.retry_count, found.recovery_count) == ("ready", 0, 0)
    assert attempts(run, "first") == ["released"]
    assert kinds(run, "second") == []
    before = everything()
    assert leases.release(hand.holder, job.stage.id, job.attempt_id) == "ready"
    assert everything() == before
    assert new_hand("hand-2").take().number == 2
    assert_invariants()


@pytest.mark.parametrize("who", ["another session", "after expiry", "after the result", "not acquired"])
def test_only_the_holder_of_a_live_lease_gives_a_stage_back(
    start_run: StartRun, hand: Hand, new_hand: NewHand, clock: Clock, who: str
) -> None:
    start_run("first")
    (job,) = hand.pull(acquire=who != "not acquired")
    releasing = new_hand("hand-1") if who == "another session" else hand
    if who == "after expiry":
        clock.advance(60)
    if who == "after the result":
        hand.report(job)
    before = everything()
    with pytest.raises(Refusal) as refusal:
        leases.release(releasing.holder, job.stage.id, job.attempt_id)
    assert refusal.value.code == "stale_execution"
    assert everything() == before


STEPS = ("renew1", "complete1", "release1", "acquire1", "renew2", "complete2")


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS, 3)), ids="-".join)
def test_only_the_second_attempt_writes_once_the_first_has_expired(
    start_run: StartRun, hand: Hand, new_hand: NewHand, clock: Clock, order: tuple[str, ...]
) -> None:
    """F09, P5, I3: claim, expire, claim; then both attempts act, in every order."""
    run = start_run("first")
    one = hand.take()
    clock.advance(60)
    sweeps.expire_leases()
    second = new_hand("hand-1")
    two = second.take()
    for step in order:
        if step == "renew1":
            assert not hand.renew(one)[0].acquired
        elif step == "acquire1":
            assert not hand.acquire(one).acquired
        elif step == "complete1":
            assert not hand.report(one, output="one").accepted
        elif step == "release1":
            with pytest.raises(Refusal):
                leases.release(hand.holder, one.stage.id, one.attempt_id)
        elif step == "renew2":
            assert second.renew(two)[0].acquired == ("complete2" not in order[: order.index("renew2")])
        else:
            assert second.report(two, output="two").accepted
    completed = "complete2" in order
    assert output(run, "first") == ('"two"' if completed else None)
    assert status(run) == ("completed" if completed else "running")
    assert LateEvidence.objects.filter(attempt_id=one.attempt_id).count() == ("complete1" in order)
    assert_invariants()
