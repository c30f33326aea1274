"""Pause and resume: nothing new is handed out, nothing is lost, nothing is reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from approvals.transitions import decide_gate
from pipelines import leases, sweeps
from pipelines.models import AuditEvent, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, kinds, last_event, output, refused, stage, states, status
from tests.verbs import pause_run, resume_run, retry_stage

StartRun = Callable[..., Run]
People = dict[str, Person]


def test_a_pause_lets_running_work_finish_and_starts_nothing(start_run: StartRun, hand: Hand, people: People) -> None:
    """P60, P61, P64, F74: pausing until the last attempt has ended, `paused` exactly once, outputs unchanged."""
    run = start_run("first", "second", "third")
    hand.report(hand.take(), output="kept")
    job = hand.take()
    assert pause_run(run.id, actor=people["operator"].actor, reason="maintenance").result["run_status"] == "pausing"
    assert hand.renew(job)[0].acquired
    assert hand.report(job, output=2).accepted
    assert (status(run), states(run)["third"]) == ("paused", "ready")
    assert hand.pull(10) == []
    assert kinds(run).count("run.paused") == 1
    assert resume_run(run.id, actor=people["operator"].actor).result["run_status"] == "running"
    assert output(run, "first") == '"kept"'
    assert hand.take().stage.name == "third"
    assert attempts(run, "first") == ["succeeded"]
    assert_invariants()


def test_what_was_only_handed_out_is_taken_back_and_not_counted(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """model §2: paused at once when nothing is running."""
    run = start_run("first")
    (job,) = hand.pull(acquire=False)
    assert pause_run(run.id, actor=people["operator"].actor).result["run_status"] == "paused"
    assert (states(run), attempts(run, "first")) == ({"first": "ready"}, ["released"])
    found = stage(run, "first")
    assert (found.retry_count, found.recovery_count) == (0, 0)
    assert hand.acquire(job).reason == "run_paused"
    resume_run(run.id, actor=people["operator"].actor)
    assert hand.take().number == 2
    assert_invariants()


def test_a_queued_run_pauses_and_is_queued_again_on_resume(start_run: StartRun, people: People) -> None:
    run = start_run("first")
    assert pause_run(run.id, actor=people["operator"].actor).result["run_status"] == "paused"
    assert resume_run(run.id, actor=people["operator"].actor).result["run_status"] == "queued"
    run.refresh_from_db()
    assert (run.paused, run.pause_reason) == (False, "")
    assert_invariants()


def test_pause_and_resume_are_refused_where_they_make_no_sense(start_run: StartRun, hand: Hand, people: People) -> None:
    """P62, P63, P76: pause of a paused or terminal run, resume of any that is not paused; each is in the audit."""
    operator = people["operator"].actor
    run = start_run("first")
    with refused("execution_state_invalid"):
        resume_run(run.id, actor=operator)
    pause_run(run.id, actor=operator)
    with refused("execution_state_invalid"):
        pause_run(run.id, actor=operator)
    resume_run(run.id, actor=operator)
    hand.finish()
    for verb in (pause_run, resume_run):
        with refused("execution_state_invalid"):
            verb(run.id, actor=operator)
    cancelled = start_run("first")
    cancel_run(cancelled.id, actor=operator)
    for verb in (pause_run, resume_run):
        with refused("execution_state_invalid"):
            verb(cancelled.id, actor=operator)
    refusals = AuditEvent.objects.filter(outcome="failed", code="execution_state_invalid")
    assert refusals.count() == 6
    assert set(refusals.values_list("actor", flat=True)) == {operator.name}


def test_a_run_that_is_paused_while_its_last_stage_runs_ends_when_that_does(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    run = start_run("first")
    job = hand.take()
    pause_run(run.id, actor=people["operator"].actor)
    hand.report(job)
    run.refresh_from_db()
    assert (run.status, run.paused) == ("completed", False)
    assert_invariants()


def test_a_handler_may_give_its_stage_back_at_a_point_of_its_own(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """O8: cooperative, and nothing is counted."""
    run = start_run("first")
    job = hand.take()
    pause_run(run.id, actor=people["operator"].actor)
    assert leases.release(hand.holder, job.stage.id, job.attempt_id) == "ready"
    assert status(run) == "paused"
    assert hand.pull() == []
    assert_invariants()


def test_a_retry_that_falls_due_in_a_pause_waits_for_the_resume(
    start_run: StartRun, hand: Hand, clock: Clock, people: People
) -> None:
    """F63's sibling: the timer is kept and nothing is dispatched by it."""
    run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 10}})
    job = hand.take()
    pause_run(run.id, actor=people["operator"].actor)
    hand.report(job, "failed", error_code="FOO")
    assert (status(run), states(run)) == ("paused", {"first": "retry_scheduled"})
    clock.advance(100)
    sweeps.sweep()
    assert hand.pull() == []
    assert resume_run(run.id, actor=people["operator"].actor).result["run_status"] == "waiting"
    assert hand.take().number == 2
    assert_invariants()


def test_gates_still_move_their_stage_in_a_pause_and_still_expire(
    start_run: StartRun, hand: Hand, clock: Clock, people: People, application_actor: Any
) -> None:
    run = start_run({"name": "first", "approval": {"when": "before"}})
    pause_run(run.id, actor=people["operator"].actor)
    decide_gate(stage(run, "first").id, actor=application_actor, approved=True)
    assert (status(run), states(run)) == ("paused", {"first": "ready"})
    assert hand.pull() == []
    resume_run(run.id, actor=people["operator"].actor)
    assert hand.take().stage.name == "first"
    other = start_run({"name": "first", "approval": {"when": "before", "expires_in": 10}})
    pause_run(other.id, actor=people["operator"].actor)
    clock.advance(10)
    assert sweeps.expire_gates() == 1
    assert status(other) == "failed"
    assert_invariants()


def test_stages_retried_in_a_pause_run_after_the_resume(start_run: StartRun, hand: Hand, people: People) -> None:
    """F77: pause, retry what failed, resume: all of it runs."""
    names = [f"part {number}" for number in range(6)]
    run = start_run(*names, {"name": "join", "depends_on": names})
    jobs = hand.pull(6)
    for job in jobs[:5]:
        hand.report(job, "failed", error_code="FOO")
    operator = people["operator"].actor
    assert pause_run(run.id, actor=operator).result["run_status"] == "pausing"
    for job in jobs[:5]:
        retry_stage(job.stage.id, actor=operator)
    assert hand.pull(10) == []
    hand.report(jobs[5])
    assert status(run) == "paused"
    resume_run(run.id, actor=operator)
    assert hand.finish() == 6
    assert status(run) == "completed"
    assert_invariants()


def test_resuming_goes_on_where_the_run_stood(start_run: StartRun, hand: Hand, people: People) -> None:
    """F50, N4: pause after stage 3 of 5; the first new attempt is of stage 4."""
    run = start_run("one", "two", "three", "four", "five")
    for _ in range(3):
        hand.report(hand.take())
    pause_run(run.id, actor=people["operator"].actor)
    resume_run(run.id, actor=people["operator"].actor)
    assert hand.take().stage.name == "four"
    assert attempts(run, "one") == ["succeeded"]


def test_who_paused_and_why_is_told(start_run: StartRun, people: People) -> None:
    run = start_run("first")
    long_reason = "because " * 100
    pause_run(run.id, actor=people["operator"].actor, reason=long_reason)
    event = last_event(run, "run.pause")
    assert (event.actor, event.reason) == (people["operator"].actor.name, long_reason)
    audit = AuditEvent.objects.get(action="run.pause")
    assert (audit.outcome, audit.user, audit.reason) == ("allowed", people["operator"].user, long_reason)
