"""Pulls that wait: woken by what they wait for, by nothing else, and without costing anything meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from pipelines import blackout_rows
from pipelines.access import Actor
from pipelines.keys import issue_key
from pipelines.listen import listener
from pipelines.models import ApiKey, Attempt, Run
from pipelines.sql import database_now, query
from tests.cast import Person, Worker
from tests.verbs import pause_run, resume_run

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., Run]
SOON = 5.0  # seconds in which something that must come at once has to come, on a busy machine
LONG = 30.0  # how long a pull waits here when nothing wakes it: more than a test may take


@pytest.fixture
def pull() -> Iterator[Callable[..., Future[Any]]]:
    """Pulls in a thread of its own: pull(worker, waitSeconds=30) → the future of its response."""
    with ThreadPoolExecutor(20) as threads:

        def pulling(worker: Worker, **body: Any) -> Any:
            try:
                return worker.post("/jobs/pull", {"acquire": True, "waitSeconds": LONG, **body})
            finally:
                connection.close()

        yield lambda worker, **body: threads.submit(pulling, worker, **body)
        listener.closing = True
        listener.wake()
    listener.closing = False


def until(condition: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, why
        threading.Event().wait(0.005)


def wait_for(count: int) -> None:
    until(lambda: listener.waiting == count, f"{listener.waiting} pulls wait, not {count}")


def jobs_of(answer: Future[Any]) -> list[Any]:
    response = answer.result(SOON)
    assert response.status_code == 200
    return response.json()["jobs"]


def backends() -> list[tuple[int, str]]:
    return query(
        "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' AND application_name = ''"  # servers of other tests have names
    )


def ears() -> list[int]:
    return [pid for pid, text in backends() if text.startswith("LISTEN")]


def test_a_waiting_pull_gets_a_new_run_s_stage_at_once(worker: Worker, pull: Any, start_run: Start) -> None:
    """P49: no polling in between."""
    answer = pull(worker)
    wait_for(1)
    run = start_run()
    assert [job["pipelineId"] for job in jobs_of(answer)] == [str(run.id)]


def test_what_is_there_already_is_not_waited_for(worker: Worker, start_run: Start) -> None:
    start_run()
    begun = time.monotonic()
    assert len(worker.pull(waitSeconds=LONG, maxJobs=10)) == 1
    assert time.monotonic() - begun < SOON


def test_a_wait_in_vain_ends_in_time_with_nothing(worker: Worker) -> None:
    begun = time.monotonic()
    answer = worker.post("/jobs/pull", {"waitSeconds": 0.2})
    assert answer.status_code == 204
    assert 0.2 <= time.monotonic() - begun < SOON


def test_a_waiting_pull_holds_no_database_connection(worker: Worker, new_worker: Any, pull: Any) -> None:
    """One ear for the whole process, however many wait."""
    for number in range(3):
        pull(new_worker(f"w{number}", "Handler"))
    wait_for(3)
    until(lambda: len(backends()) <= 1, "a waiting pull keeps its connection")
    until(lambda: [text for _, text in backends()] == ["LISTEN recourse_ready"], "the ear is not open")


def test_only_the_handlers_own_queue_wakes_a_pull(worker: Worker, new_worker: Any, pull: Any, start_run: Start) -> None:
    """The other waiter sleeps on: it neither gets the job nor looks for it."""
    other = new_worker("other", "Other")
    mine, theirs = pull(worker), pull(other)
    wait_for(2)
    start_run()
    assert len(jobs_of(mine)) == 1
    assert not theirs.done()
    start_run({"name": "a", "handler": "Other"})
    assert [job["stageHandlerName"] for job in jobs_of(theirs)] == ["Other"]


def test_the_next_stage_of_a_run_wakes_a_pull(worker: Worker, new_worker: Any, pull: Any, start_run: Start) -> None:
    start_run("first", "second")
    job = worker.take()
    answer = pull(new_worker("w2", "Handler"))
    wait_for(1)
    assert worker.report(job).status_code == 202
    assert [got["stageName"] for got in jobs_of(answer)] == ["second"]


def test_a_due_retry_is_handed_out_when_it_is_due(worker: Worker, new_worker: Any, pull: Any, start_run: Start) -> None:
    """Also to a pull that waited before the retry was scheduled: nothing announces the moment itself."""
    start_run({"name": "a", "options": {"max_retries": 1, "retry_interval": 1}})
    job = worker.take()
    answer = pull(new_worker("w2", "Handler"))
    wait_for(1)
    begun = time.monotonic()
    assert worker.report(job, "failed", errorCode="X").json()["stageStatus"] == "retry_scheduled"
    assert [got["attempt"] for got in jobs_of(answer)] == [2]
    assert 0.9 <= time.monotonic() - begun < SOON


def test_resuming_a_run_wakes_a_pull(worker: Worker, pull: Any, start_run: Start, people: dict[str, Person]) -> None:
    """P60, P63: nothing is handed out while paused, at once afterwards."""
    operator: Actor = people["operator"].actor
    run = start_run()
    pause_run(run.id, actor=operator)
    answer = pull(worker)
    wait_for(1)
    assert not answer.done()
    resume_run(run.id, actor=operator)
    assert len(jobs_of(answer)) == 1


def test_what_others_hold_is_taken_as_soon_as_they_let_go(worker: Worker, pull: Any, start_run: Start) -> None:
    """They may roll back, and then nothing is announced: the pull looks again by itself."""
    run = start_run()
    with transaction.atomic():
        Run.objects.select_for_update().get(id=run.id)
        answer = pull(worker)
        wait_for(1)
        assert not answer.done()
    assert len(jobs_of(answer)) == 1


def test_a_lost_connection_loses_no_wake_up(worker: Worker, pull: Any, start_run: Start) -> None:
    """Everybody looks for themselves when the ear is lost, and again when it is open anew."""
    answer = pull(worker)
    wait_for(1)
    for _ in range(3):
        until(lambda: bool(ears()), "the ear is not open")
        (ear,) = ears()
        query("SELECT pg_terminate_backend(%s)", [ear])
        until(lambda ear=ear: ear not in ears(), "the ear is still open")
    run = start_run()
    assert [job["pipelineId"] for job in jobs_of(answer)] == [str(run.id)]


def test_no_wake_up_is_lost_between_looking_and_waiting(worker: Worker, pull: Any, start_run: Start) -> None:
    """The race, many times: the run commits while the pull goes from looking to waiting."""
    for _ in range(40):
        answer = pull(worker)
        run = start_run()
        assert [job["pipelineId"] for job in jobs_of(answer)] == [str(run.id)]


def test_one_job_goes_to_one_of_many_waiting_pulls(new_worker: Any, pull: Any, start_run: Start) -> None:
    """I2: the others wait on."""
    answers = [pull(new_worker(f"w{number}", "Handler")) for number in range(6)]
    wait_for(6)
    for count in range(1, 4):
        start_run()
        until(lambda count=count: sum(answer.done() for answer in answers) == count, "the job was not handed out")
    assert sum(len(jobs_of(answer)) for answer in answers if answer.done()) == 3
    assert Attempt.objects.count() == 3


def test_above_the_bound_a_pull_is_sent_away_at_once(
    worker: Worker, new_worker: Any, pull: Any, start_run: Start, settings: Any
) -> None:
    """Contract §2: 204 with Retry-After; what is there already is still handed out."""
    settings.RECOURSE_WAITING_PULLS = 1
    waiting = pull(worker)
    wait_for(1)
    second = new_worker("w2", "Handler", "Other")
    refused = second.post("/jobs/pull", {"waitSeconds": LONG})
    assert refused.status_code == 204
    assert int(refused["Retry-After"]) >= 1
    start_run({"name": "a", "handler": "Other"})
    assert len(second.pull(waitSeconds=LONG)) == 1
    assert not waiting.done()


def test_a_process_that_ends_lets_everybody_go_at_once(worker: Worker, pull: Any) -> None:
    """And nobody begins to wait any more."""
    answer = pull(worker)
    wait_for(1)
    listener.close()
    assert answer.result(SOON).status_code == 204
    begun = time.monotonic()
    assert worker.post("/jobs/pull", {"waitSeconds": LONG}).status_code == 204
    assert time.monotonic() - begun < SOON


@pytest.mark.parametrize("end", ["revoked_at", "expires_at"])
def test_a_pull_gets_nothing_more_once_its_key_has_ended(
    worker: Worker, new_worker: Any, pull: Any, start_run: Start, application: Any, environment: Any, end: str
) -> None:
    """P49: the key is looked at when a job is handed out, not only when the pull came; the job waits for another."""
    answer = pull(worker, waitSeconds=1.5)
    wait_for(1)
    ApiKey.objects.update(**{end: database_now()})
    run = start_run()
    assert answer.result(SOON).status_code == 204
    assert not Attempt.objects.exists()
    _, other = issue_key(application, environment)
    assert [job["pipelineId"] for job in new_worker("other", key=other).pull()] == [str(run.id)]


def test_a_freeze_that_is_lifted_wakes_who_waited_for_what_it_held(
    pull: Callable[..., Future[Any]], worker: Worker, start_run: Start, people: dict[str, Person]
) -> None:
    """Contract §4: what was made in the freeze wakes nobody before, and is handed out at once then."""
    actor = people["release_manager"].actor
    blackout_rows.declare(actor=actor, reason="an incident")
    answer = pull(worker)
    wait_for(1)
    run = start_run("first")
    with pytest.raises(TimeoutError):
        answer.result(0.5)
    blackout_rows.lift(actor=actor)
    assert [job["pipelineId"] for job in jobs_of(answer)] == [str(run.id)]
