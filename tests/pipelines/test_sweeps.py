"""What time alone does: lost workers, jobs nobody took, gates nobody decided, deadlines, rows that cannot move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings

from approvals.transitions import decide_gate
from pipelines import leases, outcomes, sweeps
from pipelines.errors import Refusal
from pipelines.models import Run, Stage
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import (
    attempts,
    everything,
    gate,
    kinds,
    last_event,
    letters,
    refused,
    stage,
    states,
    status,
)
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]


def test_a_lost_lease_makes_a_new_attempt_once_however_often_it_is_swept(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """P57, F02, F15: one `lost`, one event; both sides of the lease's end."""
    run = start_run("first", "second")
    one = hand.take()
    clock.advance(55)
    assert sweeps.expire_leases() == 0
    clock.advance(5)
    assert sweeps.expire_leases() == 1
    before = everything()
    assert [sweeps.expire_leases() for _ in range(50)] == [0] * 50
    assert everything() == before
    event = last_event(run, "stage.recover")
    assert (event.attempt, event.from_state, event.to_state) == (one.attempt_id, "running", "ready")
    assert event.data["is"] == "lost"
    assert "hand-1" in event.reason
    assert kinds(run, "first").count("stage.recover") == 1
    found = stage(run, "first")
    assert (found.recovery_count, found.retry_count) == (1, 0)
    two = hand.take()
    assert (two.number, two.attempt_id != one.attempt_id) == (2, True)
    assert_invariants()


@pytest.mark.parametrize(("limit", "recoveries"), [(None, 3), (0, 0), (1, 1)])
def test_recoveries_are_counted_apart_and_end_in_a_dead_letter(
    start_run: StartRun, hand: Hand, clock: Clock, limit: int | None, recoveries: int
) -> None:
    """F07, F14: over `maxRecoveries` the stage fails; run, lease and queue are free in the same transaction."""
    options = {"max_retries": 5, "retry_interval": 1} | ({} if limit is None else {"max_recoveries": limit})
    run = start_run({"name": "first", "options": options}, "second")
    for number in range(1, recoveries + 2):
        assert hand.take().number == number
        clock.advance(60)
        assert sweeps.expire_leases() == 1
    assert hand.pull() == []
    assert attempts(run, "first") == ["lost"] * (recoveries + 1)
    assert letters(run) == {"first": ("recoveries_exhausted", "open")}
    assert (status(run), states(run)) == ("failed", {"first": "failed", "second": "pending"})
    assert stage(run, "first").retry_count == 0
    assert_invariants()


def test_a_job_that_nobody_acquires_goes_back_and_after_the_limit_is_given_up(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """The visibility time, both sides; dead letter `undeliverable`."""
    run = start_run({"name": "first", "options": {"max_recoveries": 1}})
    hand.pull(acquire=False)
    clock.advance(settings.RECOURSE_VISIBILITY_SECONDS - 5)
    assert sweeps.return_undelivered() == 0
    clock.advance(5)
    assert sweeps.return_undelivered() == 1
    assert states(run) == {"first": "ready"}
    assert attempts(run, "first") == ["undelivered"]
    hand.pull(acquire=False)
    clock.advance(settings.RECOURSE_VISIBILITY_SECONDS)
    assert sweeps.return_undelivered() == 1
    assert letters(run) == {"first": ("undeliverable", "open")}
    assert status(run) == "failed"
    assert_invariants()


def test_a_failure_after_a_recovery_still_has_all_its_retries(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F05, model §3.2: recovery uses no retry, and a retry no recovery."""
    run = start_run({"name": "first", "options": {"max_retries": 2, "retry_interval": 1}})
    hand.take()
    clock.advance(60)
    sweeps.expire_leases()
    for _ in range(3):
        hand.report(hand.take(), "failed", error_code="FOO")
        clock.advance(1)
    assert attempts(run, "first") == ["lost", "failed", "failed", "failed"]
    assert letters(run) == {"first": ("retries_exhausted", "open")}
    assert_invariants()


def test_a_lost_worker_of_a_stage_that_acts_outside_leaves_a_question(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R3, R4, F16: never repeated blindly; the run is blocked, other branches go on."""
    run = start_run(
        {"name": "pay", "effect_mode": "external"}, "other", {"name": "join", "depends_on": ["pay", "other"]}
    )
    job = hand.take()
    clock.advance(60)
    sweeps.expire_leases()
    assert states(run) == {"pay": "needs_reconciliation", "other": "ready", "join": "pending"}
    assert status(run) == "blocked"
    assert attempts(run, "pay") == ["lost"]
    assert letters(run) == {}
    other = hand.take()
    assert other.stage.name == "other"
    assert status(run) == "blocked"
    hand.report(other)
    assert hand.report(job, output="paid").code == "stale_execution"
    clock.advance(days=3)
    assert not any(sweeps.sweep().values())
    assert hand.pull() == []
    assert status(run) == "blocked"
    assert_invariants()


@pytest.mark.parametrize("mode", ["none", "idempotent"])
def test_other_effect_modes_are_recovered(start_run: StartRun, hand: Hand, clock: Clock, mode: str) -> None:
    run = start_run({"name": "first", "effect_mode": mode})
    hand.take()
    clock.advance(60)
    sweeps.expire_leases()
    assert states(run) == {"first": "ready"}


def test_one_row_that_cannot_be_moved_holds_up_no_other(
    start_run: StartRun, hand: Hand, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F19: it is walked past, logged, and met again."""
    runs = [start_run("first") for _ in range(5)]
    jobs = hand.pull(5)
    clock.advance(60)
    poison, real = jobs[2].attempt_id, outcomes.lose

    def lose(moves: Any, found: Any, attempt: Any) -> None:
        if attempt.id == poison:
            raise ValueError("this row cannot be handled")
        real(moves, found, attempt)

    monkeypatch.setattr(outcomes, "lose", lose)
    assert sweeps.expire_leases(limit=2) == 4
    assert [status(run) for run in runs].count("running") == 5
    assert sum(attempts(run, "first") == ["lost"] for run in runs) == 4
    monkeypatch.undo()
    assert sweeps.expire_leases() == 1
    assert_invariants()


def test_the_longest_worker_name_can_lose_a_lease(start_run: StartRun, new_hand: NewHand, clock: Clock) -> None:
    """A sweep must be able to write its reason whatever the worker is called."""
    run = start_run("first", "second")
    other = start_run("first")
    named = new_hand("w" * 255)
    named.take()
    named.pull(acquire=False)
    clock.advance(60)
    assert sweeps.expire_leases() == 1
    assert sweeps.return_undelivered() == 1
    assert {attempts(found, "first")[0] for found in (run, other)} == {"lost", "undelivered"}


def test_a_sweep_walks_through_more_than_one_batch(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    for _ in range(7):
        start_run("first")
    hand.pull(7)
    clock.advance(60)
    assert sweeps.expire_leases(limit=3) == 7


def test_a_gate_that_nobody_decides_expires_and_never_consents(
    start_run: StartRun, hand: Hand, clock: Clock, application_actor: Any
) -> None:
    """F135, F136: both sides; afterwards a decision is stale, whether the sweep came by or not."""
    run = start_run({"name": "first", "approval": {"when": "after", "expires_in": 100}}, "second")
    hand.report(hand.take(), output=1)
    clock.advance(95)
    assert sweeps.expire_gates() == 0
    clock.advance(5)
    with refused("approval_stale"):
        decide_gate(stage(run, "first").id, actor=application_actor, approved=True)
    assert sweeps.expire_gates() == 1
    assert sweeps.expire_gates() == 0
    with refused("approval_stale"):
        decide_gate(stage(run, "first").id, actor=application_actor, approved=True)
    assert gate(run, "first").state == "expired"
    assert states(run) == {"first": "failed", "second": "pending"}
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "gate_expired")
    assert stage(run, "first").failure_disposition == "gate_expired"
    assert_invariants()


def test_an_expired_gate_opens_anew_when_its_stage_is_retried(
    start_run: StartRun, clock: Clock, people: dict[str, Person]
) -> None:
    """F45."""
    run = start_run({"name": "first", "approval": {"when": "before", "expires_in": 100}})
    first = gate(run, "first")
    clock.advance(100)
    sweeps.expire_gates()
    retry_stage(stage(run, "first").id, actor=people["operator"].actor)
    assert (states(run), status(run)) == ({"first": "waiting"}, "waiting")
    second = gate(run, "first")
    assert (second.state, second.epoch, second.id != first.id) == ("open", 2, True)
    assert_invariants()


def test_a_deadline_ends_a_run_with_all_it_holds_for_good(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """R30, R31: stages, gates and attempts as in a cancel; both sides; retry, skip, decisions and results refused."""
    run = start_run(
        "work",
        {"name": "gated", "approval": {"when": "before"}},
        "doubtful",
        {"name": "join", "depends_on": ["work", "gated", "doubtful"]},
        deadline_seconds=100,
    )
    (job,) = [job for job in hand.pull(5) if job.stage.name == "work"]
    clock.advance(55)
    hand.renew(job)
    clock.advance(44)
    assert sweeps.enforce_deadlines() == 0
    clock.advance(1)
    assert sweeps.enforce_deadlines() == 1
    assert sweeps.enforce_deadlines() == 0
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "deadline_exceeded")
    assert set(states(run).values()) == {"cancelled"}
    assert (attempts(run, "work"), gate(run, "gated").state) == (["fenced"], "cancelled")
    operator = people["operator"].actor
    with refused("deadline_exceeded"):
        retry_stage(stage(run, "work").id, actor=operator, reason="again")
    with refused("deadline_exceeded"):
        skip_stage(stage(run, "work").id, actor=operator, reason="not needed")
    with refused("deadline_exceeded"):
        decide_gate(stage(run, "gated").id, actor=people["approver"].actor, approved=True)
    for verb in (pause_run, resume_run, cancel_run):
        with refused("deadline_exceeded"):
            verb(run.id, actor=operator)
    assert hand.report(job).code == "stale_execution"
    assert_invariants()


@pytest.mark.parametrize("held", ["paused", "gated"])
def test_pauses_and_waits_count_towards_the_deadline(
    start_run: StartRun, clock: Clock, people: dict[str, Person], held: str
) -> None:
    """R30."""
    approval = {"when": "before"} if held == "gated" else None
    run = start_run({"name": "first", "approval": approval}, deadline_seconds=100)
    if held == "paused":
        pause_run(run.id, actor=people["operator"].actor)
    clock.advance(100)
    assert sweeps.sweep()["deadlines"] == 1
    run.refresh_from_db()
    assert (run.failure_code, run.paused) == ("deadline_exceeded", False)
    assert_invariants()


@pytest.mark.parametrize("seconds", [99, 100])
def test_the_deadline_counts_from_its_instant_on_not_from_the_sweep(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person], seconds: int
) -> None:
    """R31: a run that failed before its deadline takes no retry and no skip after it; a result after it is late."""
    failed = start_run("first", "second", deadline_seconds=100 + 5)
    hand.report(hand.take(), "failed", error_code="FOO")
    working = start_run("first", deadline_seconds=100 + 5)
    job = hand.take()
    clock.advance(50)
    hand.renew(job)
    clock.advance(seconds - 50 + (5 if seconds == 100 else 0))
    operator = people["operator"].actor
    if seconds == 99:
        assert hand.report(job).accepted
        assert status(working) == "completed"
        retry_stage(stage(failed, "first").id, actor=operator)
        skip_stage(stage(failed, "second").id, actor=operator, reason="not needed")
        return
    with refused("deadline_exceeded"):
        retry_stage(stage(failed, "first").id, actor=operator)
    with refused("deadline_exceeded"):
        skip_stage(stage(failed, "first").id, actor=operator, reason="not needed")
    assert hand.report(job).code == "stale_execution"
    working.refresh_from_db()
    assert (working.status, working.failure_code) == ("failed", "deadline_exceeded")
    assert sweeps.enforce_deadlines() == 0
    assert_invariants()


@pytest.mark.parametrize("verb", [pause_run, resume_run, cancel_run])
def test_a_run_past_its_deadline_takes_no_verb_before_the_sweep_either(
    start_run: StartRun, clock: Clock, people: dict[str, Person], verb: Callable[..., Any]
) -> None:
    """R31: it has failed by its deadline at that instant; nobody makes a cancelled or a paused run of it."""
    run = start_run("first", deadline_seconds=100)
    operator = people["operator"].actor
    if verb is resume_run:
        pause_run(run.id, actor=operator)
    clock.advance(100)
    with refused("deadline_exceeded"):
        verb(run.id, actor=operator)
    assert sweeps.enforce_deadlines() == 1
    with refused("deadline_exceeded"):
        verb(run.id, actor=operator)
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "deadline_exceeded")


def test_a_run_without_a_deadline_never_ends_by_one(start_run: StartRun, clock: Clock) -> None:
    run = start_run("first")
    clock.advance(days=1000)
    assert not any(sweeps.sweep().values())
    assert status(run) == "queued"


def test_a_run_that_somebody_left_stuck_is_moved_on(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F25: a stage that may go on and did not, here by rows changed by hand."""
    run = start_run("first", "second")
    hand.report(hand.take())
    execute(
        "UPDATE pipelines_stage SET state = 'pending', available_at = NULL WHERE run_id = %s AND name = 'second'",
        [run.id],
    )
    execute("DELETE FROM pipelines_queueentry")
    assert sweeps.move_on_stuck_runs() == 0
    clock.advance(60)
    assert sweeps.move_on_stuck_runs() == 1
    assert hand.take().stage.name == "second"


def test_sweeping_what_does_not_need_it_changes_nothing(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """N1, N4: nothing happens unasked."""
    start_run("ready")
    start_run({"name": "gated", "approval": {"when": "before"}})
    start_run("done")
    hand.report(hand.take(), "failed", error_code="FOO")
    before = everything()
    for _ in range(10):
        clock.advance(days=1)
        assert not any(sweeps.sweep().values())
    assert everything() == before


def test_a_lost_lease_while_pausing_lets_the_run_become_paused(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """`paused` is set exactly when the last running attempt has ended; nothing is handed out before resume."""
    run = start_run("first")
    hand.take()
    pause_run(run.id, actor=people["operator"].actor)
    assert status(run) == "pausing"
    clock.advance(60)
    sweeps.expire_leases()
    assert (status(run), states(run)) == ("paused", {"first": "ready"})
    assert hand.pull() == []
    resume_run(run.id, actor=people["operator"].actor)
    assert hand.take().number == 2
    assert_invariants()


def test_deleting_a_worker_loses_its_attempts_in_time(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F15: the session's row may be gone; the lease ends all the same."""
    from pipelines.models import WorkerSession

    run = start_run("first")
    hand.take()
    WorkerSession.objects.filter(id=hand.holder.session_id).delete()
    clock.advance(60)
    assert sweeps.expire_leases() == 1
    assert states(run) == {"first": "ready"}
    assert Stage.objects.get(run=run).recovery_count == 1
    with pytest.raises(Refusal):
        leases.release(hand.holder, Stage.objects.get(run=run).id, run.attempts.get().id)
