"""What handlers logged, through `/v1`: in the order in which it came in, narrowed, and for nobody else's eyes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import Run
from tests.cast import Api, Person, Worker, stages_of
from tests.pipelines.test_executions import follow
from tests.verbs import retry_stage

StartRun = Callable[..., Run]


@pytest.fixture
def viewer(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["viewer"])


def log(worker: Worker, job: dict[str, Any], *told: tuple[str, str]) -> None:
    lines = [{"level": level, "message": message, "fields": {"n": n}} for n, (level, message) in enumerate(told)]
    answer = worker.post(f"/stages/{job['stageId']}/logs", {"executionId": job["executionId"], "lines": lines})
    assert answer.status_code == 202, answer.content


@pytest.fixture
def logged(start_run: StartRun, worker: Worker, people: dict[str, Person]) -> Run:
    """Two attempts of `first`, then one of `second`, with five lines; and another run with a line of its own."""
    run = start_run("first", "second")
    job = worker.take()
    log(worker, job, ("info", "one"), ("WARNING", "two"))
    assert worker.report(job, "failed", errorCode="BUSY", errorMessage="busy").status_code == 202
    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="not busy any more")
    job = worker.take()
    log(worker, job, ("info", "three"))
    assert worker.report(job, output=1).status_code == 202
    job = worker.take()
    log(worker, job, ("Error", "four"), ("info", "five"))
    start_run("other")
    log(worker, worker.take(), ("info", "of another run"))
    return run


def messages(client: Api, run: Run, query: str = "") -> list[str]:
    return [line["message"] for line in client.get(f"/v1/executions/{run.id}/logs?{query}").json()["results"]]


def test_lines_are_told_in_the_order_in_which_they_came_and_paged_both_ways(logged: Run, viewer: Api) -> None:
    """P86: of every attempt, of this run alone."""
    path = f"/v1/executions/{logged.id}/logs?page_size=2"
    pages = list(follow(viewer, path))
    assert [[line["message"] for line in page] for page in pages] == [["one", "two"], ["three", "four"], ["five"]]
    second = viewer.get(viewer.get(path).json()["next"]).json()
    assert [page[0]["message"] for page in follow(viewer, second["previous"], "previous")] == ["one"]
    told = pages[0][1]
    assert (told["level"], told["fields"], told["stage"], told["attempt"]) == ("WARNING", {"n": 1}, "first", 1)
    assert [line["attempt"] for page in pages for line in page] == [1, 1, 2, 1, 1]


def test_lines_are_narrowed_by_stage_attempt_and_level(logged: Run, viewer: Api) -> None:
    attempt = viewer.get(f"/v1/executions/{logged.id}/logs").json()["results"][2]["attempt_id"]
    assert messages(viewer, logged, "stage=second") == ["four", "five"]
    assert messages(viewer, logged, "stage=nobody") == []
    assert messages(viewer, logged, f"attempt_id={attempt}") == ["three"]
    assert messages(viewer, logged, "level=error&level=Warning") == ["two", "four"]
    assert messages(viewer, logged, "level=info&stage=first") == ["one", "three"]
    assert messages(viewer, logged, "level=&stage=") == ["one", "two", "three", "four", "five"]


def test_what_cannot_be_meant_is_refused_by_name(logged: Run, viewer: Api) -> None:
    for query, field in (
        ("colour=red", "colour"),
        ("attempt_id=1", "attempt_id"),
        ("level=a%00b", "level"),
        (f"stage={'x' * 301}", "stage"),
        ("cursor=abc", "cursor"),
        ("page_size=201", "page_size"),
    ):
        answer = viewer.get(f"/v1/executions/{logged.id}/logs?{query}")
        assert (answer.status_code, list(answer.json()["errors"])) == (400, [field]), query


def test_lines_are_for_those_who_may_see_the_run(
    logged: Run, api: Api, sibling_key: str, outsider: Person, as_person: Callable[[Person], Api], viewer: Api
) -> None:
    """I16. An attempt of another run tells nothing here either."""
    assert len(messages(api, logged)) == 5, "its application's key"
    for stranger in (Api({"X-API-Key": sibling_key}), as_person(outsider)):
        assert stranger.get(f"/v1/executions/{logged.id}/logs").status_code == 404
    other = Run.objects.exclude(id=logged.id).get()
    (line,) = viewer.get(f"/v1/executions/{other.id}/logs").json()["results"]
    assert messages(viewer, logged, f"attempt_id={line['attempt_id']}") == []


def test_many_lines_take_the_queries_of_one(logged: Run, viewer: Api) -> None:
    def queries(run: Run) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert messages(viewer, run)
        return len(captured)

    queries(logged)
    assert queries(logged) == queries(Run.objects.exclude(id=logged.id).get())
