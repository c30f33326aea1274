"""Whoever names another's run, stage or attempt touches nothing of it: not its state, its locks, or its history."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal
from typing import Any

import pytest
from django.db import connection, transaction

from pipelines.models import Attempt, Event, Run, Stage
from pipelines.sql import execute, query
from tests.cast import Api, Worker, stages_of, unknown_id

Start = Callable[..., Run]
PATIENCE = 10.0  # seconds that the other thread is given


@pytest.fixture(params=["foreign_key", "sibling_key"])
def stranger(request: pytest.FixtureRequest) -> Worker:
    """A worker of another workspace, and one of another application of the same."""
    return Worker(request.getfixturevalue(request.param), ["Handler"], "stranger")


@pytest.mark.django_db(transaction=True)
def test_what_another_holds_locked_is_not_waited_for(stranger: Worker, worker: Worker, start_run: Start) -> None:
    """I16: else the time of the answer told that the id exists, and a flood of such calls kept the run from work."""
    run = start_run()
    job = worker.take()
    named = {"executionId": job["executionId"], "attempt": 1, "status": "succeeded"}
    held, done = Signal(), Signal()

    def hold() -> None:
        try:
            with transaction.atomic():
                query("SELECT 1 FROM pipelines_run WHERE id = %s FOR UPDATE", [run.id])
                query("SELECT 1 FROM pipelines_attempt WHERE id = %s FOR UPDATE", [job["executionId"]])
                held.set()
                assert done.wait(PATIENCE)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold)
        assert held.wait(PATIENCE)
        execute("SET lock_timeout = '300ms'")
        try:
            stage = f"/stages/{job['stageId']}"
            execution = {"executionId": job["executionId"]}
            answers = [
                stranger.post(f"{stage}/lease/acquire", execution),
                stranger.post(f"{stage}/release", execution),
                stranger.post(f"{stage}/result", named),
                stranger.post(f"{stage}/resume", {"approved": True}),
                stranger.post(f"/pipelines/{run.id}/cancel"),
            ]
            batch = stranger.post("/results", {"results": [{"stageId": job["stageId"], **named}]})
        finally:
            execute("RESET lock_timeout")
            done.set()
        holding.result(PATIENCE)
    assert [answer.status_code for answer in answers] == [404] * 5
    assert [item["code"] for item in batch.json()["results"]] == ["not_found"]
    assert Attempt.objects.get(id=job["executionId"]).state == "running"


@pytest.mark.django_db
def test_a_foreign_result_ends_no_run_whose_time_is_up(
    stranger: Worker, worker: Worker, start_run: Start, clock: Any
) -> None:
    """I12's sibling: the end of a run is told by its own people and by the sweeps, never under a stranger's name."""
    run = start_run(deadline_seconds=5)
    job = worker.take()
    clock.advance(6)
    assert stranger.report(job).status_code == 404
    assert Run.objects.get(id=run.id).status == "running"
    assert not Event.objects.filter(run=run, actor="stranger").exists()


@pytest.mark.django_db
def test_a_foreign_stage_is_refused_in_the_words_for_one_that_is_not_there(stranger: Worker, start_run: Start) -> None:
    """I16: no word tells that an id exists."""
    (stage,) = stages_of(start_run({"name": "a", "approval": {"when": "before"}}))
    client = Api({"X-API-Key": stranger.headers["X-API-Key"]})
    foreign = client.post(f"/stages/{stage.id}/resume", {"approved": True})
    unknown = client.post(f"/stages/{unknown_id()}/resume", {"approved": True})
    assert (foreign.status_code, foreign.json()) == (unknown.status_code, unknown.json())
    assert foreign.status_code == 404
    assert Stage.objects.get(id=stage.id).state == "waiting"
