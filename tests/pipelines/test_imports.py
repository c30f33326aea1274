"""Answers made elsewhere are taken only with the digest of the request that is awaited now."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import imports, transitions
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.imports import Answer
from pipelines.models import Attempt, AuditEvent, Gate, LateEvidence, QueueEntry, Run, Stage
from pipelines.moves import Moves
from pipelines.sweeps import return_undelivered
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock

IMPORTED: dict[str, Any] = {"name": "correctness", "mode": "import"}


@pytest.fixture
def give(application_actor: Actor) -> Callable[..., str]:
    """Hands an answer in, for the request that is awaited unless told otherwise."""

    def hand_in(run: Run, output: Any = "fine", **told: Any) -> str:
        told = {"request_digest": awaited(run).request_digest, "output": output, **told}
        return imports.take(stage_of(run).id, Answer(**told), actor=application_actor).state

    return hand_in


def stage_of(run: Run) -> Stage:
    return Stage.objects.get(run_id=run.id, name="correctness")


def awaited(run: Run) -> Attempt:
    found = Attempt.objects.filter(stage=stage_of(run)).order_by("-number").first()
    assert found is not None
    return found


def refused(give: Callable[..., str], run: Run, **told: Any) -> Refusal:
    before = Stage.objects.filter(run_id=run.id).values_list("state", "epoch", "attempt_number", "output_id")
    kept = list(before.all())
    with pytest.raises(Refusal) as caught:
        give(run, **told)
    assert list(before.all()) == kept
    return caught.value


def test_an_import_stage_waits_with_an_attempt_of_its_own(start_run: Callable[..., Run], hand: Hand) -> None:
    """R19: no worker ever gets it, and its attempt is made when it starts waiting."""
    run = start_run("first", IMPORTED)
    assert not Attempt.objects.filter(stage=stage_of(run)).exists()
    assert hand.report(hand.take(), output=1).accepted
    assert not hand.pull(10)
    assert not QueueEntry.objects.exists()
    run.refresh_from_db()
    assert (run.status, stage_of(run).state) == ("waiting", "waiting")
    attempt = awaited(run)
    assert (attempt.number, attempt.state, attempt.worker, len(attempt.request_digest)) == (1, "dispatched", "", 64)


def test_the_answer_with_its_digest_is_taken(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    run = start_run(IMPORTED, {"name": "after", "depends_on": ["correctness"]})
    assert give(run, {"score": 1}, source="the desk") == "completed"
    stage = stage_of(run)
    assert stage.output is not None
    assert json.loads(stage.output.body) == {"score": 1}
    assert awaited(run).state == "succeeded"
    assert [one.state for one in stages_of(run)] == ["completed", "ready"]
    event = AuditEvent.objects.get(action="stage.import")
    assert (event.outcome, event.data["source"]) == ("allowed", "the desk")


def test_the_same_answer_again_changes_nothing(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    run = start_run(IMPORTED)
    assert [give(run), give(run)] == ["completed", "completed"]
    assert not LateEvidence.objects.exists()
    assert list(AuditEvent.objects.order_by("at", "id").values_list("outcome", flat=True)) == ["allowed", "no_op"]


def test_a_second_answer_is_refused_and_kept(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    """R45."""
    run = start_run(IMPORTED)
    give(run, "fine")
    error = refused(give, run, output="better")
    assert error.code == "stale_request"
    kept = LateEvidence.objects.get()
    assert json.loads(kept.body)["output"] == "better"
    assert AuditEvent.objects.filter(code="stale_request", outcome="denied").count() == 1


@pytest.mark.parametrize("digest", ["0" * 64, "", "nonsense"])
def test_a_missing_or_wrong_digest_is_refused(
    start_run: Callable[..., Run], give: Callable[..., str], digest: str
) -> None:
    """R18."""
    run = start_run(IMPORTED)
    assert refused(give, run, request_digest=digest).code == "stale_request"
    assert LateEvidence.objects.get().attempt_id == awaited(run).id
    assert give(run) == "completed"


def test_an_earlier_attempt_s_answer_cannot_be_attached_to_a_later_request(
    start_run: Callable[..., Run], give: Callable[..., str]
) -> None:
    """R19, R20: the attempt is part of the digest."""
    run = start_run({**IMPORTED, "options": {"max_retries": 1, "retry_interval": 60}})
    first = awaited(run).request_digest
    assert give(run, None, status="failed", error_code="NOT_SURE") == "waiting"
    assert stage_of(run).retry_count == 1
    assert awaited(run).number == 2
    assert awaited(run).request_digest != first
    assert refused(give, run, request_digest=first).code == "stale_request"
    assert give(run) == "completed"


def test_a_failed_import_fails_the_stage(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    run = start_run(IMPORTED)
    assert give(run, None, status="failed", error_code="NOT_SURE", error_message="no proof") == "failed"
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "NOT_SURE")


def test_a_cancelled_run_takes_no_import(
    start_run: Callable[..., Run], give: Callable[..., str], application_actor: Actor
) -> None:
    """R36, R45: kept as evidence only."""
    run = start_run(IMPORTED)
    done = transitions.cancel_run(run.id, actor=application_actor)
    assert awaited(run).state == "fenced"
    assert refused(give, run).code == "stale_request"
    assert LateEvidence.objects.count() == 1
    assert [item["stageId"] for item in done.reconciliation] == [str(stage_of(run).id)]


def test_an_expired_run_takes_no_import(start_run: Callable[..., Run], give: Callable[..., str], clock: Clock) -> None:
    """R31: also when no sweep has come by."""
    run = start_run(IMPORTED, deadline_seconds=60)
    clock.advance(61)
    with pytest.raises(Refusal) as caught:
        give(run)
    assert caught.value.code == "stale_request"
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "deadline_exceeded")
    assert LateEvidence.objects.count() == 1


def test_what_is_not_imported_in_time_is_timed_out(
    start_run: Callable[..., Run], give: Callable[..., str], clock: Clock
) -> None:
    run = start_run({**IMPORTED, "options": {"timeout": 60}})
    clock.advance(61)
    assert refused(give, run).code == "stale_request"
    assert return_undelivered() == 1
    assert (stage_of(run).state, stage_of(run).last_error_code) == ("failed", "TIMEOUT")
    assert awaited(run).state == "timed_out"


def test_gates_stand_around_imports_as_around_work(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    run = start_run({**IMPORTED, "approval": {"when": "after"}})
    assert give(run) == "waiting"
    assert Gate.objects.get(stage=stage_of(run)).attempt == awaited(run).id
    assert awaited(run).state == "succeeded"
    assert refused(give, run, output="other").code == "stale_request"


def test_a_paused_run_takes_its_import(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    """What is done is done; nothing new is dispatched."""
    run = start_run(IMPORTED, {"name": "after", "depends_on": ["correctness"]})
    moves = Moves.lock([run.id])
    transitions.pause(moves, moves.runs[run.id], "")
    assert give(run) == "completed"
    run.refresh_from_db()
    assert run.status == "paused"
    assert not QueueEntry.objects.exists()


def test_nothing_is_imported_for_a_stage_that_workers_execute(
    start_run: Callable[..., Run], application_actor: Actor
) -> None:
    run = start_run("correctness")
    with pytest.raises(Refusal) as caught:
        imports.take(stage_of(run).id, Answer("0" * 64), actor=application_actor)
    assert caught.value.code == "stage_state_invalid"


def test_another_s_stage_is_not_found(start_run: Callable[..., Run], outsider: Person) -> None:
    """I16."""
    run = start_run(IMPORTED)
    with pytest.raises(Refusal) as caught:
        imports.take(stage_of(run).id, Answer(awaited(run).request_digest), actor=outsider.actor)
    assert caught.value.code == "not_found"
    assert not LateEvidence.objects.exists()


def test_an_output_above_the_limit_fails_the_import(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    run = start_run({**IMPORTED, "options": {"max_output_bytes": 10}})
    assert give(run, "x" * 20) == "failed"
    assert stage_of(run).last_error_code == "OUTPUT_TOO_LARGE"


def test_an_import_is_charged_as_any_attempt(start_run: Callable[..., Run], give: Callable[..., str]) -> None:
    """R27."""
    limits = {"total_attempts": 1}
    run = start_run({**IMPORTED, "options": {"max_retries": 5, "retry_interval": 1}}, limits=limits)
    assert awaited(run).reserved == 256 * 1024
    assert give(run, None, status="failed", error_code="X") == "failed"
    assert stage_of(run).failure_disposition == "attempts_exhausted"
