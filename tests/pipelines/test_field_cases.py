"""Faults that people met elsewhere, each as the small story it is told as, and how it ends here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from pipelines import sweeps
from pipelines.models import Attempt, AuditEvent, Environment, GateDecision, Run, Workspace
from pipelines.releases import register_release
from tests.cast import Api, Hand, Person, Worker, stages_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.factories import PipelineFactory
from tests.pipelines.engine import attempts, gate, kinds, letters, refused, stage, states, status
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]
People = dict[str, Person]


def test_a_stage_taken_from_a_silent_worker_shows_both_attempts_and_tells_it_to_stop(
    start_run: StartRun, hand: Hand, new_hand: NewHand, clock: Clock, people: People, as_person: Callable[..., Api]
) -> None:
    """F04: nothing is put back quietly."""
    run = start_run("first")
    old = hand.take()
    clock.advance(61)
    sweeps.sweep()
    new = new_hand("hand-2").take()
    (answer,) = hand.renew(old)
    assert not answer.acquired
    assert [command["command"] for command in answer.commands] == ["cancel"]
    told = as_person(people["viewer"]).get(f"/v1/executions/{run.id}/attempts").json()["results"]
    assert [(one["number"], one["status"], one["worker"]) for one in told] == [
        (2, "running", "hand-2"),
        (1, "lost", "hand-1"),
    ]
    assert "ran out" in told[1]["cause"]
    assert new.number == old.number + 1


def test_a_stalled_stage_and_a_repeated_creation_do_not_get_in_each_others_way(
    start_run: StartRun, hand: Hand, clock: Clock, people: People
) -> None:
    """F20: asked for again under the same key, and by a person, while it hangs: told clearly, nothing lost."""
    run = start_run("first", key="invoice-42")
    hand.take()
    clock.advance(61)
    assert start_run("first", key="invoice-42").id == run.id
    with refused("stage_state_invalid"):
        retry_stage(stage(run, "first").id, actor=people["operator"].actor)
    sweeps.sweep()
    with refused("stage_state_invalid"):
        retry_stage(stage(run, "first").id, actor=people["operator"].actor)
    assert hand.finish() == 1
    assert status(run) == "completed"
    assert Run.objects.count() == 1


def test_work_beyond_the_visibility_time_is_delivered_once(
    start_run: StartRun, hand: Hand, new_hand: NewHand, clock: Clock, settings: Any
) -> None:
    """F32: a retry due in 6 h and 4 h of work, with a visibility time and a lease of 1 h: the database alone knows."""
    settings.RECOURSE_VISIBILITY_SECONDS = settings.RECOURSE_LEASE_SECONDS = 3600
    run = start_run({"name": "long", "options": {"max_retries": 1, "retry_interval": 6 * 3600}})
    other = new_hand("hand-2")
    hand.report(hand.take(), "failed")
    for _ in range(5):
        clock.advance(hours=1)
        sweeps.sweep()
        assert hand.pull() + other.pull() == []
    clock.advance(hours=1)
    job = hand.take()
    for _ in range(8):
        clock.advance(minutes=30)
        assert hand.renew(job)[0].acquired
        sweeps.sweep()
        assert other.pull() == []
    assert hand.report(job).accepted
    assert attempts(run, "long") == ["failed", "succeeded"]
    assert_invariants()


def test_what_dead_workers_held_is_free_when_their_leases_end(
    start_run: StartRun, new_hand: NewHand, clock: Clock
) -> None:
    """F33: 64 attempts whose workers and whose every message are gone; nothing but time is needed."""
    runs = [start_run() for _ in range(64)]
    assert sum(len(new_hand(f"dead-{number}").pull(16)) for number in range(4)) == 64
    clock.advance(62)
    sweeps.sweep()
    assert not Attempt.objects.filter(state__in=["dispatched", "running"]).exists()
    assert new_hand("alive").finish() == 64
    assert {status(run) for run in runs} == {"completed"}
    assert_invariants()


@pytest.fixture
def release(workspace: Workspace, environment: Environment, people: People) -> Callable[..., Any]:
    """Puts a release of the pipeline `daily` in force: release("the input of its stage")."""
    pipeline = PipelineFactory(workspace=workspace, slug="daily")

    def put_in_force(text: str) -> Any:
        definition = {"slug": "daily", "name": "Daily", "stages": [{"name": "a", "handler": "Handler", "input": text}]}
        actor = people["admin"].actor
        return register_release(
            actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True
        )[0]

    return put_in_force


def test_a_retry_in_place_stays_on_the_release_of_its_run(
    start_run: StartRun, hand: Hand, people: People, release: Callable[..., Any]
) -> None:
    """F36: the definition changed in between; the run keeps what it was started with, a new run gets the new one."""
    old = release("old")
    run = start_run(pipeline="daily")
    hand.report(hand.take(), "failed")
    release("new")
    retry_stage(stage(run, "a").id, actor=people["operator"].actor)
    assert hand.take().input == "old"
    run.refresh_from_db()
    assert run.release_id == old.id
    start_run(pipeline="daily")
    assert hand.take().input == "new"


def test_a_stage_that_failed_before_it_started_has_a_row_for_each_try(
    start_run: StartRun, hand: Hand, clock: Clock, people: People, release: Callable[..., Any]
) -> None:
    """F57: handed out, never begun, given up, a new release in between, retried: each try is there, on its version."""
    release("old")
    run = start_run(pipeline="daily")
    for _ in range(4):
        assert len(hand.pull(acquire=False)) == 1
        clock.advance(31)
        sweeps.sweep()
    assert (states(run), letters(run)) == ({"a": "failed"}, {"a": ("undeliverable", "open")})
    assert attempts(run, "a") == ["undelivered"] * 4
    assert stage(run, "a").started_at is None
    release("new")
    retry_stage(stage(run, "a").id, actor=people["operator"].actor)
    job = hand.take()
    assert (job.number, job.stage.epoch, job.input) == (5, 2, "old")
    assert attempts(run, "a") == ["undelivered"] * 4 + ["running"]
    assert_invariants()


def test_a_decision_always_has_a_name(start_run: StartRun, hand: Hand, api: Api, people: People) -> None:
    """P83: nobody decides anonymously, not even past the API; the audit says who did."""
    run = start_run("first")
    hand.report(hand.take(), "waiting")
    path = f"/stages/{stage(run, 'first').id}/resume"
    assert Client().post(path, {"approved": True}, content_type="application/json").status_code == 401
    with pytest.raises(IntegrityError, match="gate_decision_by_person_or_application"), transaction.atomic():
        GateDecision.objects.create(gate=gate(run, "first"), approved=True)
    assert states(run) == {"first": "waiting"}
    assert not GateDecision.objects.exists()
    assert api.post(path, {"approved": True}).status_code == 200
    event = AuditEvent.objects.get(action="gate.approve")
    assert (event.actor, event.channel, event.outcome) == ("billing", "application", "allowed")


def test_a_late_result_of_a_cancelled_run_changes_nothing_and_is_told(
    worker: Worker, start_run: StartRun, api: Api, people: People, as_person: Callable[..., Api]
) -> None:
    """P74, P75, F65: the worker is told at its next call, its result is kept beside the attempt it belongs to."""
    run = start_run("first")
    job = worker.take()
    told = api.post(f"/pipelines/{run.id}/cancel").json()["reconciliation"]
    assert [(item["kind"], item["attempt"]) for item in told] == [("running_attempt", 1)]
    late = worker.report(job, output={"paid": True})
    assert (late.status_code, late.json()["code"]) == (409, "stale_execution")
    before = kinds(run)
    assert worker.report(job, output={"paid": True}).status_code == 409
    assert kinds(run) == before
    (attempt,) = as_person(people["viewer"]).get(f"/v1/executions/{run.id}/attempts").json()["results"]
    assert (attempt["status"], attempt["late_evidence"]) == ("fenced", 1)
    assert stages_of(run)[0].state == "cancelled"
