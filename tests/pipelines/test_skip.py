"""Skipping a stage: an omission on purpose, with a reason, that lets the rest go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines import sweeps
from pipelines.models import AuditEvent, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, kinds, last_event, letters, output, refused, stage, states, status
from tests.verbs import skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]
RETRIES = {"max_retries": 1, "retry_interval": 100}


@pytest.mark.parametrize("state", ["pending", "ready", "retry_scheduled", "failed", "needs_reconciliation"])
def test_a_stage_that_does_not_run_is_skipped_and_the_next_goes_on(
    start_run: StartRun, hand: Hand, clock: Clock, people: People, state: str
) -> None:
    """P69, P70, R13: skipped with actor and reason; the successor becomes ready."""
    mode = "external" if state == "needs_reconciliation" else "idempotent"
    options = RETRIES if state == "retry_scheduled" else {}
    run = start_run("before", {"name": "target", "effect_mode": mode, "options": options}, "after", "last")
    if state != "pending":
        hand.report(hand.take())
    if state not in ("pending", "ready"):
        job = hand.take()
        if state == "needs_reconciliation":
            clock.advance(60)
            sweeps.expire_leases()
        else:
            hand.report(job, "failed", error_code="FOO")
    assert states(run)["target"] == state
    done = skip_stage(stage(run, "target").id, actor=people["operator"].actor, reason="not needed")
    assert states(run)["target"] == "skipped"
    assert states(run)["after"] == "ready"
    assert states(run)["last"] == "pending"
    assert done.result == {"stage_status": "skipped", "run_status": status(run)}
    event = last_event(run, "stage.skip")
    assert (event.actor, event.reason, event.from_state) == (people["operator"].actor.name, "not needed", state)
    assert {reason for _, reason in letters(run).values()} <= {"resolved"}
    assert kinds(run, "last") == []
    hand.finish()
    clock.advance(days=1)
    sweeps.sweep()
    assert hand.pull() == []
    assert status(run) == "completed"
    assert_invariants()


@pytest.mark.parametrize("state", ["dispatched", "running", "waiting", "completed", "skipped"])
def test_a_stage_that_is_at_work_or_done_is_not_skipped(
    start_run: StartRun, hand: Hand, people: People, state: str
) -> None:
    run = start_run("target", "after")
    operator = people["operator"].actor
    if state == "skipped":
        skip_stage(stage(run, "target").id, actor=operator, reason="not needed")
    else:
        (job,) = hand.pull(acquire=state != "dispatched")
        if state in ("waiting", "completed"):
            hand.report(job, "waiting" if state == "waiting" else "succeeded")
    assert states(run)["target"] == state
    with refused("stage_state_invalid"):
        skip_stage(stage(run, "target").id, actor=operator, reason="again")


def test_a_skip_needs_a_reason(start_run: StartRun, people: People) -> None:
    """P71; the refusal is in the audit."""
    run = start_run("target")
    with refused("validation_error"):
        skip_stage(stage(run, "target").id, actor=people["operator"].actor, reason="")
    assert AuditEvent.objects.get(action="stage.skip").outcome == "failed"


def test_an_output_may_be_given_in_its_place(start_run: StartRun, hand: Hand, people: People) -> None:
    run = start_run("target", "after")
    skip_stage(
        stage(run, "target").id, actor=people["operator"].actor, reason="done by hand", output=None, has_output=True
    )
    assert output(run, "target") == "null"
    job = hand.take()
    assert job.dependencies == {"target": "null"}


def test_without_an_output_the_next_stage_gets_none(start_run: StartRun, hand: Hand, people: People) -> None:
    run = start_run("target", "after")
    skip_stage(stage(run, "target").id, actor=people["operator"].actor, reason="not needed")
    assert output(run, "target") is None
    assert hand.take().dependencies == {"target": None}


def test_skipping_what_failed_reopens_the_run_and_may_complete_it(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    run = start_run("first", "second")
    hand.report(hand.take(), "failed", error_code="FOO")
    assert status(run) == "failed"
    skip_stage(stage(run, "first").id, actor=people["operator"].actor, reason="not needed")
    assert status(run) == "running"
    skip_stage(stage(run, "second").id, actor=people["operator"].actor, reason="not needed")
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("completed", "")
    assert attempts(run, "first") == ["failed"]
    assert kinds(run).count("run.completed") == 1
    assert_invariants()


def test_one_failed_branch_skipped_leaves_the_other_failure_to_speak_for_the_run(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    run = start_run("a", "b", {"name": "join", "depends_on": ["a", "b"]})
    for job in sorted(hand.pull(2), key=lambda job: job.stage.position):
        hand.report(job, "failed", error_code=job.stage.name.upper())
    run.refresh_from_db()
    assert run.failure_code == "A"
    skip_stage(stage(run, "a").id, actor=people["operator"].actor, reason="not needed")
    run.refresh_from_db()
    assert (run.status, run.failure_code, run.failure_stage) == ("failed", "B", stage(run, "b").id)
    assert_invariants()


def test_nothing_in_a_cancelled_run_is_skipped(start_run: StartRun, people: People) -> None:
    """I8."""
    run = start_run("first")
    cancel_run(run.id, actor=people["operator"].actor)
    with refused("execution_state_invalid"):
        skip_stage(stage(run, "first").id, actor=people["operator"].actor, reason="not needed")


def test_a_missing_reason_is_told_before_the_state(start_run: StartRun, people: People) -> None:
    """Model §5: the body is looked at before the state, and a body that is refused keeps no key."""
    run = start_run("a")
    target = stage(run, "a").id
    cancel_run(run.id, actor=people["operator"].actor)
    with refused("validation_error"):
        skip_stage(target, actor=people["operator"].actor, reason="", key="k")
    with refused("permission_denied"):
        skip_stage(target, actor=people["viewer"].actor, reason="")
    with refused("execution_state_invalid"):
        skip_stage(target, actor=people["operator"].actor, reason="not needed", key="k")
