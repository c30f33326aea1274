"""Taking results: once, from the holder, in time; everything else changes nothing and is kept."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import leases, results, sweeps
from pipelines.jobs import Job
from pipelines.models import Attempt, ContextItem, LateEvidence, LogLine, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import (
    attempt,
    attempts,
    everything,
    gate,
    kinds,
    last_event,
    letters,
    output,
    stage,
    states,
    status,
)
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]


def result_of(job: Job, **changes: Any) -> results.Result:
    told = {"stage_id": job.stage.id, "execution_id": job.attempt_id, "attempt": job.number, "status": "succeeded"}
    return results.Result(**(told | changes))


def test_a_success_completes_the_stage_and_lets_the_next_one_go(start_run: StartRun, hand: Hand) -> None:
    """P52, P55; I5."""
    run = start_run("first", "second", "third")
    job = hand.take()
    receipt = hand.report(job, output={"rows": 3})
    assert (receipt.accepted, receipt.stage_state, receipt.code) == (True, "completed", None)
    assert states(run) == {"first": "completed", "second": "ready", "third": "pending"}
    assert attempts(run, "first") == ["succeeded"]
    assert output(run, "first") == '{"rows":3}'
    event = last_event(run, "stage.succeed")
    assert (event.actor, event.attempt, event.from_state, event.to_state) == (
        "hand-1",
        job.attempt_id,
        "running",
        "completed",
    )
    assert kinds(run, "third") == []
    assert_invariants()


def test_the_last_success_ends_the_run_and_says_when(start_run: StartRun, hand: Hand) -> None:
    run = start_run("first")
    hand.report(hand.take())
    run.refresh_from_db()
    assert (run.status, run.failure_code, run.failure_stage) == ("completed", "", None)
    assert run.finished_at is not None
    assert kinds(run)[-1] == "run.completed"


def test_a_failed_run_is_terminal_history_with_its_full_traceback(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """N6, N1, N2: recorded complete; nothing is requeued, moved or tried again, however long one waits."""
    run = start_run("first", "second")
    job = hand.take()
    trace = "Traceback (most recent call last):\n" + "\n".join(f"  line {number} ü" for number in range(3000))
    receipt = hand.report(job, "failed", error_code="FOO", error_message="went wrong", traceback=trace)
    assert receipt.stage_state == "failed"
    assert attempt(job).traceback == trace
    run.refresh_from_db()
    assert (run.status, run.failure_code, run.failure_message) == ("failed", "FOO", "went wrong")
    assert run.failure_stage == job.stage.id
    clock.advance(days=30)
    before = everything()
    assert not any(sweeps.sweep().values())
    assert hand.pull(10) == []
    assert everything() == before
    assert Run.objects.count() == 1
    assert states(run) == {"first": "failed", "second": "pending"}
    assert_invariants()


def test_the_same_result_again_gets_the_first_answer_and_changes_nothing(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """P53, P56, F16: a lost acknowledgement, at once and after the stage has moved on."""
    run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 10}}, "second")
    failing = hand.take()
    told = {"error_code": "FOO", "error_message": "no"}
    assert hand.report(failing, "failed", **told).stage_state == "retry_scheduled"
    clock.advance(10)
    job = hand.take()
    before = everything()
    again = hand.report(failing, "failed", **told)
    assert (again.accepted, again.stage_state) == (True, "retry_scheduled")
    assert everything() == before
    hand.report(job, output=1)
    before = everything()
    for _ in range(3):
        again = hand.report(job, output=1)
        assert (again.accepted, again.stage_state) == (True, "completed")
    assert everything() == before
    assert attempts(run, "first") == ["failed", "succeeded"]


def test_the_same_result_twice_in_one_batch_counts_once(start_run: StartRun, hand: Hand) -> None:
    """P3."""
    run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 10}})
    job = hand.take()
    failure = result_of(job, status="failed", error_code="FOO")
    receipts = results.report(hand.holder, [failure, failure])
    assert [(item.accepted, item.stage_state) for item in receipts] == [(True, "retry_scheduled")] * 2
    assert stage(run, "first").retry_count == 1
    assert_invariants()


def test_another_result_of_the_same_attempt_is_late(start_run: StartRun, hand: Hand) -> None:
    run = start_run("first")
    job = hand.take()
    receipts = results.report(hand.holder, [result_of(job, output=1), result_of(job, output=2)])
    assert [item.accepted for item in receipts] == [True, False]
    assert receipts[1].code == "stale_execution"
    assert output(run, "first") == "1"
    assert LateEvidence.objects.get().reason == "attempt succeeded"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("another session", "lease_not_owned"),
        ("another number", "another attempt"),
        ("another request", "another request"),
        ("expired", "lease_expired"),
        ("lost", "attempt lost"),
        ("cancelled", "attempt fenced"),
        ("deadline", "run ended"),
        ("released", "attempt released"),
        ("not acquired", "attempt dispatched"),
    ],
)
def test_a_result_that_does_not_count_moves_nothing_and_is_kept_once(
    start_run: StartRun,
    hand: Hand,
    new_hand: NewHand,
    clock: Clock,
    people: dict[str, Person],
    how: str,
    reason: str,
) -> None:
    """P5, P52, P74: state, output, logs and context stay; the result is late evidence, however often it is sent."""
    run = start_run("first", "second", deadline_seconds=50 if how == "deadline" else None)
    (job,) = hand.pull(acquire=how != "not acquired")
    reporter, changes = hand, {}
    if how == "another session":
        reporter = new_hand("hand-1")
    elif how == "another number":
        changes["attempt"] = job.number + 1
    elif how == "another request":
        changes["request_digest"] = "0" * 64
    elif how in ("expired", "lost"):
        clock.advance(60)
        if how == "lost":
            sweeps.expire_leases()
    elif how == "cancelled":
        cancel_run(run.id, actor=people["operator"].actor)
    elif how == "deadline":
        clock.advance(50)
    elif how == "released":
        leases.release(hand.holder, job.stage.id, job.attempt_id)
    late = result_of(
        job,
        output={"done": True},
        context_items=[{"key": "invoice", "value": "42"}],
        logs=[{"level": "info", "message": "hello"}],
        **changes,
    )
    before = states(run), attempts(run, "first")
    for _ in range(3):
        (receipt,) = results.report(reporter.holder, [late])
        assert (receipt.accepted, receipt.code) == (False, "stale_execution")
    evidence = LateEvidence.objects.get()
    assert (evidence.attempt_id, evidence.reason) == (job.attempt_id, reason)
    assert evidence.session == reporter.holder.session_id
    assert json.loads(evidence.body)["output"] == {"done": True}
    if how != "deadline":
        assert (states(run), attempts(run, "first")) == before
    assert output(run, "first") is None
    assert not LogLine.objects.exists()
    assert not ContextItem.objects.exists()
    assert_invariants()


def test_a_success_in_time_beats_the_sweep_that_comes_after_it(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F01: one terminal transition, no retry, the sweep finds nothing."""
    run = start_run("first")
    job = hand.take()
    clock.advance(55)
    assert hand.report(job).accepted
    clock.advance(10)
    assert sweeps.sweep()["leases"] == 0
    assert attempts(run, "first") == ["succeeded"]
    assert kinds(run, "first").count("stage.succeed") == 1


def test_one_bad_item_spoils_no_other(start_run: StartRun, hand: Hand, new_hand: NewHand) -> None:
    runs = [start_run("first") for _ in range(3)]
    one, two, three = hand.pull(3)
    receipts = results.report(
        hand.holder,
        [
            result_of(one),
            result_of(two, attempt=7),
            results.Result(uuid.uuid4(), uuid.uuid4(), 1, "succeeded"),
            results.Result(one.stage.id, three.attempt_id, 1, "succeeded"),
            result_of(three, status="failed", error_code="FOO"),
        ],
    )
    assert [item.code for item in receipts] == [None, "stale_execution", "not_found", "not_found", None]
    assert sorted(status(run) for run in runs) == ["completed", "failed", "running"]
    assert results.report(hand.holder, []) == []
    assert_invariants()


def test_many_results_cost_as_many_statements_as_one(
    start_run: StartRun, hand: Hand, django_assert_num_queries: Any, django_assert_max_num_queries: Any
) -> None:
    for _ in range(21):
        start_run("first", "second")
    job, *many = hand.pull(21)
    with django_assert_max_num_queries(20) as few:
        results.report(hand.holder, [result_of(job)])
    with django_assert_num_queries(len(few)):
        results.report(hand.holder, [result_of(other) for other in many])


def test_two_last_stages_in_one_batch_end_the_run_once(start_run: StartRun, hand: Hand) -> None:
    run = start_run("top", {"name": "left", "depends_on": ["top"]}, {"name": "right", "depends_on": ["top"]})
    hand.report(hand.take())
    receipts = results.report(hand.holder, [result_of(job) for job in hand.pull(2)])
    assert [receipt.stage_state for receipt in receipts] == ["completed", "completed"]
    assert kinds(run).count("run.completed") == 1
    assert_invariants()


def test_a_waiting_result_parks_the_stage_and_offers_its_output(start_run: StartRun, hand: Hand) -> None:
    """P77: the run is not terminal, successors are not dispatched, attempts stay one (F72)."""
    run = start_run("first", "second")
    job = hand.take()
    assert hand.report(job, "waiting", output={"draft": 1}).stage_state == "waiting"
    assert hand.report(job, "waiting", output={"draft": 1}).stage_state == "waiting"
    assert states(run) == {"first": "waiting", "second": "pending"}
    assert (status(run), attempts(run, "first")) == ("waiting", ["waiting"])
    opened = gate(run, "first")
    assert (opened.state, opened.moment, opened.attempt) == ("open", "after", job.attempt_id)
    assert opened.request_digest == job.request_digest
    assert output(run, "first") is None
    assert hand.pull(10) == []
    assert_invariants()


@pytest.mark.parametrize(("size", "state"), [(99, "completed"), (100, "completed"), (101, "failed")])
@pytest.mark.parametrize("letter", ["a", "é", "漢", "\U0001f600"])
def test_an_output_is_measured_in_bytes_of_its_utf8(
    start_run: StartRun, hand: Hand, letter: str, size: int, state: str
) -> None:
    """Both sides of `maxOutputBytes`, in any script; too large is terminal and not retried (P43)."""
    options = {"max_output_bytes": 100, "max_retries": 3, "retry_interval": 1}
    run = start_run({"name": "first", "options": options})
    width = len(letter.encode())
    text = letter * ((size - 2) // width)
    text += "x" * (size - 2 - len(text.encode()))
    receipt = hand.report(hand.take(), output=text)
    assert (receipt.accepted, receipt.stage_state) == (True, state)
    if state == "completed":
        assert output(run, "first") == f'"{text}"'
    else:
        assert stage(run, "first").last_error_code == "OUTPUT_TOO_LARGE"
        assert letters(run) == {"first": ("terminal_error", "open")}


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, "", "\x00", "\ud800", "a\u2028b", [], {}, {"z": 1, "a": [None, {"b": "ü"}]}, 10**30],
)
def test_any_json_value_is_an_output_and_comes_back_equal(start_run: StartRun, hand: Hand, value: Any) -> None:
    run = start_run("first", "second")
    assert hand.report(hand.take(), output=value).stage_state == "completed"
    assert json.loads(output(run, "first") or "") == value
    job = hand.take()
    assert json.loads(job.dependencies["first"] or "") == value


@pytest.mark.parametrize("code", ["deadline_exceeded", "gate_denied", "gate_expired"])
def test_a_worker_cannot_borrow_the_engines_words_for_an_end(
    start_run: StartRun, hand: Hand, people: dict[str, Person], code: str
) -> None:
    """I8: a handler that fails with `deadline_exceeded` fails like any other, and its stage can be retried."""
    run = start_run("first")
    job = hand.take()
    hand.report(job, "failed", error_code=code)
    assert stage(run, "first").last_error_code == code.upper()
    retry_stage(job.stage.id, actor=people["operator"].actor)
    assert status(run) == "running"


def test_context_and_logs_come_with_the_result(start_run: StartRun, hand: Hand) -> None:
    """P89: the latest value of a key wins."""
    run = start_run("first", context_items=[{"key": "invoice", "value": "41"}])
    hand.report(
        hand.take(),
        context_items=[{"key": "invoice", "value": "42"}, {"key": "token", "value": "s3", "is_sensitive": True}],
        logs=[{"level": "info", "message": "hello", "fields": {"n": 1}}],
    )
    assert dict(ContextItem.objects.filter(run=run).values_list("key", "value")) == {"invoice": "42", "token": ""}
    assert LogLine.objects.get().message == "hello"


def test_a_success_after_failures_clears_what_they_left_on_the_stage(
    start_run: StartRun, hand: Hand, clock: Clock, application_actor: Any
) -> None:
    """With a gate after the work as without; the attempts keep what happened to them."""
    from approvals.transitions import decide_gate

    options = {"max_retries": 1, "retry_interval": 1}
    run = start_run(
        {"name": "plain", "options": options},
        {"name": "gated", "options": options, "approval": {"when": "after"}},
        {"name": "last", "depends_on": ["plain", "gated"]},
    )
    for job in hand.pull(2):
        hand.report(job, "failed", error_code="FOO", error_message="no")
    clock.advance(1)
    for job in hand.pull(2):
        hand.report(job)
    decide_gate(stage(run, "gated").id, actor=application_actor, approved=True)
    for name in ("plain", "gated"):
        found = stage(run, name)
        assert (found.state, found.last_error_code, found.last_error_message) == ("completed", "", "")
        assert found.failure_disposition == ""
    assert set(Attempt.objects.filter(number=1).values_list("error_code", flat=True)) == {"FOO"}
