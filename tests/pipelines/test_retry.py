"""Retrying a stage by hand: a new epoch on the pinned release, nothing erased, siblings untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.transitions import decide_gate
from pipelines import leases, sweeps
from pipelines.models import Attempt, AuditEvent, GateDecision, Run, StageOutput
from pipelines.transitions import cancel_run
from recovery.models import Operation
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import (
    attempts,
    gate,
    kinds,
    last_event,
    letters,
    output,
    refused,
    stage,
    states,
    status,
)
from tests.verbs import retry_stage, skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]


def epochs(run: Run) -> dict[str, int]:
    return dict(run.stages.order_by("position").values_list("name", "epoch"))


def completed_chain(start_run: StartRun, hand: Hand) -> Run:
    run = start_run("a", "b", "c")
    assert hand.finish() == 3
    return run


def test_a_retry_begins_a_new_epoch_and_erases_nothing(
    start_run: StartRun, hand: Hand, clock: Clock, people: People
) -> None:
    """P65: output and counters cleared, the old epoch's attempts, outputs and decisions stay readable."""
    options = {"max_retries": 1, "retry_interval": 1}
    run = start_run({"name": "first", "options": options}, "second")
    for _ in range(2):
        hand.report(hand.take(), "failed", error_code="FOO")
        clock.advance(1)
    assert letters(run) == {"first": ("retries_exhausted", "open")}
    done = retry_stage(stage(run, "first").id, actor=people["operator"].actor)
    found = stage(run, "first")
    assert (found.state, found.epoch, found.retry_count, found.recovery_count) == ("ready", 2, 0, 0)
    assert (found.output_id, found.last_error_code, found.failure_disposition) == (None, "", "")
    assert (done.status, done.replayed, done.result["epoch"]) == ("succeeded", False, 2)
    run.refresh_from_db()
    assert (run.status, run.failure_code, run.failure_stage, run.finished_at) == ("running", "", None, None)
    assert letters(run) == {"first": ("retries_exhausted", "resolved")}
    assert attempts(run, "first") == ["failed", "failed"]
    assert Attempt.objects.exclude(decision=None).count() == 2
    event = last_event(run, "stage.retry")
    assert (event.actor, event.data["epoch"]) == (people["operator"].actor.name, 2)
    job = hand.take()
    assert (job.number, job.stage.epoch) == (3, 2)
    hand.report(job, "failed", error_code="FOO")
    assert states(run)["first"] == "retry_scheduled"
    assert_invariants()


def test_a_completed_stage_is_retried_only_with_a_reason(start_run: StartRun, hand: Hand, people: People) -> None:
    run = completed_chain(start_run, hand)
    operator = people["operator"].actor
    with refused("validation_error"):
        retry_stage(stage(run, "b").id, actor=operator)
    retry_stage(stage(run, "b").id, actor=operator, reason="wrong data")
    assert status(run) == "running"
    assert StageOutput.objects.filter(stage=stage(run, "b")).count() == 1
    assert output(run, "b") is None
    assert_invariants()


def test_with_downstream_all_descendants_begin_anew_and_nothing_else(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """F34, P67: a untouched, b and c in epoch 2."""
    run = completed_chain(start_run, hand)
    before = kinds(run, "a")
    retry_stage(stage(run, "b").id, actor=people["operator"].actor, reason="wrong data", scope="stage_and_downstream")
    assert (states(run), epochs(run)) == (
        {"a": "completed", "b": "ready", "c": "pending"},
        {"a": 1, "b": 2, "c": 2},
    )
    assert kinds(run, "a") == before
    assert hand.finish() == 2
    assert status(run) == "completed"
    assert attempts(run, "c") == ["succeeded", "succeeded"]
    assert_invariants()


def test_alone_it_flags_what_came_after_as_stale(start_run: StartRun, hand: Hand, people: People) -> None:
    """F34, P66: c keeps epoch 1, its output and its attempt."""
    run = completed_chain(start_run, hand)
    retry_stage(stage(run, "b").id, actor=people["operator"].actor, reason="wrong data")
    c = stage(run, "c")
    assert (c.state, c.epoch, c.stale, output(run, "c")) == ("completed", 1, True, '{"stage":"c"}')
    assert not stage(run, "a").stale
    assert hand.finish() == 1
    assert status(run) == "completed"
    assert attempts(run, "c") == ["succeeded"]
    assert_invariants()


@pytest.mark.parametrize("scope", ["stage", "stage_and_downstream"])
def test_dependants_that_were_not_handed_out_wait_again(
    start_run: StartRun, hand: Hand, people: People, scope: str
) -> None:
    """They fall back to pending and keep their epoch; none runs before what it depends on."""
    run = start_run("a", "b", "c")
    hand.report(hand.take())
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again", scope=scope)
    assert (states(run), epochs(run)) == (
        {"a": "ready", "b": "pending", "c": "pending"},
        {"a": 2, "b": 1, "c": 1},
    )
    assert [job.stage.name for job in hand.pull(10)] == ["a"]
    assert_invariants()


def test_a_dependant_that_waits_at_a_gate_before_its_work_waits_again(
    start_run: StartRun, hand: Hand, people: People, application_actor: Any
) -> None:
    """It was not handed out yet: approving its gate must not start it beside what it depends on."""
    run = start_run("a", {"name": "b", "approval": {"when": "before"}})
    hand.report(hand.take())
    first = gate(run, "b")
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    first.refresh_from_db()
    assert (states(run), first.state) == ({"a": "ready", "b": "pending"}, "cancelled")
    with refused("stage_state_invalid"):
        decide_gate(stage(run, "b").id, actor=application_actor, approved=True)
    hand.report(hand.take())
    second = gate(run, "b")
    assert (states(run)["b"], second.state, second.id != first.id) == ("waiting", "open", True)
    assert_invariants()


def test_an_approval_before_the_work_covers_its_epoch_also_when_the_stage_waits_again(
    start_run: StartRun, hand: Hand, people: People, application_actor: Any
) -> None:
    """model §2, Gate: one before the work is bound to the epoch; it is not asked for twice."""
    run = start_run("a", {"name": "b", "approval": {"when": "before"}})
    hand.report(hand.take())
    decide_gate(stage(run, "b").id, actor=application_actor, approved=True)
    assert states(run)["b"] == "ready"
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    assert states(run)["b"] == "pending"
    hand.report(hand.take())
    assert states(run)["b"] == "ready"
    assert run.gates.count() == 1
    hand.finish()
    assert status(run) == "completed"
    assert_invariants()


def test_a_dependant_that_waits_after_its_work_is_flagged_stale(
    start_run: StartRun, hand: Hand, people: People, application_actor: Any
) -> None:
    run = start_run("a", {"name": "b", "approval": {"when": "after"}})
    hand.report(hand.take())
    hand.report(hand.take())
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    found = stage(run, "b")
    assert (found.state, found.stale) == ("waiting", True)
    decide_gate(found.id, actor=application_actor, approved=True)
    assert stage(run, "b").stale
    assert_invariants()


@pytest.mark.parametrize("following", ["dispatched", "running", "waiting"])
def test_downstream_is_refused_while_a_descendant_is_active(
    start_run: StartRun, hand: Hand, people: People, following: str
) -> None:
    run = start_run("a", "b", "c")
    hand.report(hand.take())
    (job,) = hand.pull(acquire=following != "dispatched")
    if following == "waiting":
        hand.report(job, "waiting")
    with refused("stage_state_invalid"):
        retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again", scope="stage_and_downstream")
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    assert states(run)["b"] == following
    assert stage(run, "b").stale
    assert_invariants()


def test_one_branch_is_retried_while_the_other_runs_on(start_run: StartRun, hand: Hand, people: People) -> None:
    """F44: no need to wait for the end."""
    run = start_run("a", "b", {"name": "join", "depends_on": ["a", "b"]})
    a, b = sorted(hand.pull(2), key=lambda job: job.stage.position)
    hand.report(a, "failed", error_code="FOO")
    before = kinds(run, "b")
    retry_stage(a.stage.id, actor=people["operator"].actor)
    assert states(run) == {"a": "ready", "b": "running", "join": "pending"}
    assert kinds(run, "b") == before
    assert hand.report(b).accepted
    hand.finish()
    assert status(run) == "completed"
    assert_invariants()


def test_twice_on_purpose_is_two_epochs_and_one_key_is_one(start_run: StartRun, hand: Hand, people: People) -> None:
    """F56: a double click with one key acts once; the same key for another request is refused."""
    run = completed_chain(start_run, hand)
    operator = people["operator"].actor
    c = stage(run, "c").id
    first = retry_stage(c, actor=operator, reason="again", key="click-1")
    again = retry_stage(c, actor=operator, reason="again", key="click-1")
    assert (again.operation_id, again.replayed, again.result) == (first.operation_id, True, first.result)
    assert epochs(run)["c"] == 2
    with refused("recovery_idempotency_conflict"):
        retry_stage(stage(run, "a").id, actor=operator, reason="again", key="click-1")
    hand.finish()
    retry_stage(c, actor=operator, reason="again", key="click-2")
    hand.finish()
    retry_stage(c, actor=operator, reason="again")
    assert epochs(run) == {"a": 1, "b": 1, "c": 4}
    assert Operation.objects.count() == 3
    assert_invariants()


@pytest.mark.parametrize("state", ["pending", "ready", "dispatched", "running", "waiting"])
def test_only_an_ended_stage_is_retried(start_run: StartRun, hand: Hand, people: People, state: str) -> None:
    """R11 as widened by the model."""
    run = start_run("a", "b")
    if state in ("dispatched", "running", "waiting"):
        (job,) = hand.pull(acquire=state != "dispatched")
        if state == "waiting":
            hand.report(job, "waiting")
    name = "b" if state == "pending" else "a"
    assert states(run)[name] == state
    with refused("stage_state_invalid"):
        retry_stage(stage(run, name).id, actor=people["operator"].actor, reason="again")


def test_nothing_in_a_cancelled_run_is_retried(start_run: StartRun, hand: Hand, people: People) -> None:
    """F58, I8: refused, and the answer offers the fork."""
    run = start_run("a", "b")
    hand.report(hand.take())
    operator = people["operator"].actor
    cancel_run(run.id, actor=operator)
    for name in ("a", "b"):
        with refused("execution_state_invalid"):
            retry_stage(stage(run, name).id, actor=operator, reason="again")


def test_a_denied_gate_is_final_in_its_run(
    start_run: StartRun, hand: Hand, people: People, application_actor: Any
) -> None:
    """R12, I9, O27: neither retry nor skip, not from above; the verdict, `recovery_denied`, is in the audit."""
    run = start_run("a", {"name": "b", "approval": {"when": "after"}})
    hand.finish()
    decide_gate(stage(run, "b").id, actor=application_actor, approved=False, reason="no")
    operator = people["operator"].actor
    with refused("gate_denied"):
        retry_stage(stage(run, "b").id, actor=operator)
    with refused("gate_denied"):
        skip_stage(stage(run, "b").id, actor=operator, reason="not needed")
    with refused("gate_denied"):
        retry_stage(stage(run, "a").id, actor=operator, reason="again", scope="stage_and_downstream")
    assert stage(run, "b").failure_disposition == "gate_denied"
    verdicts = AuditEvent.objects.filter(action="execution.recovery_disposition", code="recovery_denied")
    told = [(event.outcome, event.data["disposition"], event.data["reasons"][0]["code"]) for event in verdicts]
    assert told == [("denied", "recovery_denied", "gate_denied")] * 3
    verbs = AuditEvent.objects.filter(code="gate_denied").order_by("at", "id")
    assert [(event.action, event.outcome) for event in verbs] == [
        ("stage.retry", "denied"),
        ("stage.skip", "denied"),
        ("stage.retry", "denied"),
    ]
    assert_invariants()


def test_a_retry_past_a_gate_asks_anew_and_keeps_the_old_answer(
    start_run: StartRun, hand: Hand, people: People, application_actor: Any
) -> None:
    """F139."""
    run = start_run({"name": "a", "approval": {"when": "after"}})
    hand.finish()
    decide_gate(stage(run, "a").id, actor=application_actor, approved=True, reason="fine")
    old = gate(run, "a")
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    with refused("stage_state_invalid"):
        decide_gate(stage(run, "a").id, actor=application_actor, approved=True, reason="fine")
    hand.finish()
    new = gate(run, "a")
    assert (states(run), new.state, new.epoch) == ({"a": "waiting"}, "open", 2)
    old.refresh_from_db()
    assert (old.state, GateDecision.objects.get(gate=old).reason) == ("approved", "fine")
    assert_invariants()


def test_a_stage_to_be_reconciled_is_not_retried(start_run: StartRun, hand: Hand, people: People, clock: Clock) -> None:
    """R13: nor begun anew from above."""
    from pipelines import sweeps

    run = start_run("a", {"name": "b", "effect_mode": "external"})
    hand.report(hand.take())
    hand.take()
    clock.advance(60)
    sweeps.expire_leases()
    operator = people["operator"].actor
    with refused("needs_reconciliation"):
        retry_stage(stage(run, "b").id, actor=operator, acknowledge_effects=True)
    with refused("needs_reconciliation"):
        retry_stage(stage(run, "a").id, actor=operator, reason="again", scope="stage_and_downstream")


def test_a_new_input_is_used_and_the_old_one_kept(start_run: StartRun, hand: Hand, people: People) -> None:
    run = start_run({"name": "a", "input": "old"})
    one = hand.take()
    hand.report(one, "failed", error_code="VALIDATION_ERROR")
    retry_stage(one.stage.id, actor=people["operator"].actor, new_input="new")
    two = hand.take()
    assert (one.input, two.input) == ("old", "new")
    assert one.request_digest != two.request_digest
    assert one.idempotency_key != two.idempotency_key
    assert last_event(run, "stage.input_changed").data["previous"] == "old"


def test_a_stage_behind_a_failure_cannot_start_by_a_retry_of_its_own(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """A skipped stage that is retried while what it depends on is not done waits for it."""
    run = start_run("a", "b")
    operator = people["operator"].actor
    skip_stage(stage(run, "b").id, actor=operator, reason="not needed")
    retry_stage(stage(run, "b").id, actor=operator, reason="needed after all")
    assert (states(run), epochs(run)["b"]) == ({"a": "ready", "b": "pending"}, 2)
    assert hand.finish() == 2
    assert status(run) == "completed"
    assert_invariants()


def test_what_acted_outside_behind_it_is_not_repeated_blindly(start_run: StartRun, hand: Hand, people: People) -> None:
    """Model §3.9, P68: with everything behind it, a completed stage that acted outside needs the acknowledgement."""
    run = start_run("load", {"name": "pay", "effect_mode": "external"}, "tell")
    hand.finish()
    operator = people["operator"].actor
    load = stage(run, "load").id
    with refused("operator_review_required"):
        retry_stage(load, actor=operator, reason="again", scope="stage_and_downstream")
    retry_stage(load, actor=operator, reason="again", scope="stage")
    assert states(run) == {"load": "ready", "pay": "completed", "tell": "completed"}
    hand.finish()
    done = retry_stage(load, actor=operator, reason="again", scope="stage_and_downstream", acknowledge_effects=True)
    assert done.status == "succeeded"
    assert states(run) == {"load": "ready", "pay": "pending", "tell": "pending"}
    assert_invariants()


def test_what_never_began_outside_needs_no_acknowledgement(start_run: StartRun, hand: Hand, people: People) -> None:
    run = start_run({"name": "load", "run_next_if_failed": True}, {"name": "pay", "effect_mode": "external"})
    skip_stage(stage(run, "pay").id, actor=people["operator"].actor, reason="not today")
    hand.report(hand.take(), "failed")
    retry_stage(stage(run, "load").id, actor=people["operator"].actor, scope="stage_and_downstream")
    assert states(run) == {"load": "ready", "pay": "pending"}


@pytest.mark.parametrize("back", ["lost", "failed", "released", "undelivered"])
def test_a_stage_that_comes_back_waits_for_the_earlier_one_that_is_done_again(
    start_run: StartRun, hand: Hand, people: People, clock: Clock, back: str
) -> None:
    """It was under way when `a` was retried: its next attempt begins after `a`, and on what `a` gives then."""
    run = start_run("a", {"name": "b", "options": {"max_retries": 1, "retry_interval": 5}})
    hand.report(hand.take(), output="old")
    (job,) = hand.pull(acquire=back != "undelivered")
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    again = hand.take()
    assert (again.stage.name, stage(run, "b").stale) == ("a", True)
    if back == "failed":
        hand.report(job, "failed")
    elif back == "released":
        leases.release(hand.holder, job.stage.id, job.attempt_id)
    else:
        clock.advance(59)
        hand.renew(again)
        clock.advance(2)
        sweeps.sweep()
    assert states(run) == {"a": "running", "b": "pending"}
    clock.advance(6)
    assert hand.pull() == []
    assert_invariants()
    hand.report(again, output="new")
    assert states(run) == {"a": "completed", "b": "ready"}
    next_job = hand.take()
    assert (next_job.dependencies, next_job.number) == ({"a": '"new"'}, 2)
    hand.report(next_job)
    assert (status(run), stage(run, "b").stale) == ("completed", False)
    assert_invariants()


def test_what_was_under_way_stays_marked_as_made_from_the_older_result(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """F34: flagged while it ran, it is no fresher for having succeeded; only done again it is."""
    run = start_run("a", "b")
    hand.report(hand.take(), output="old")
    job = hand.take()
    retry_stage(stage(run, "a").id, actor=people["operator"].actor, reason="again")
    assert hand.report(job, output="from the old one").accepted
    assert (states(run), stage(run, "b").stale) == ({"a": "ready", "b": "completed"}, True)
    hand.finish()
    assert (status(run), stage(run, "b").stale) == ("completed", True)
    retry_stage(stage(run, "b").id, actor=people["operator"].actor, reason="on the new one")
    hand.finish()
    assert not stage(run, "b").stale
    assert_invariants()
