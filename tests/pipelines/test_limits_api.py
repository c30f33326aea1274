"""Limits over HTTP: each is read, refused with its path where it is wrong, and enforced; none of a run ever changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from pipelines.limits import Limits
from pipelines.models import Release, Run
from tests.cast import Api, Person, Worker
from tests.clock import Clock

CAMEL = {
    "concurrency": "concurrency",
    "attempts_per_stage": "attemptsPerStage",
    "total_attempts": "totalAttempts",
    "output_bytes_per_stage": "outputBytesPerStage",
    "total_output_bytes": "totalOutputBytes",
    "deadline_seconds": "deadlineSeconds",
    "revisions": "revisions",
}
RETRIED = {"maxRetries": 5, "retryInterval": 1}


@pytest.fixture
def manager(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["release_manager"])


def release(manager: Api, limits: Any) -> Any:
    manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"})
    definition = {"name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}], "limits": limits}
    body = {"pipeline": "nightly", "environment": "development", "definition": definition, "activate": True}
    return manager.post("/v1/releases", body)


def start(api: Api, *stages: dict[str, Any], key: str = "k-1", **limits: Any) -> Any:
    told = [
        {"stageName": f"s{number}", "stageHandlerName": "Handler", **one} for number, one in enumerate(stages or ({},))
    ]
    return api.post("/pipelines/idempotent", {"idempotencyKey": key, "name": "n", "stages": told, "limits": limits})


@pytest.mark.parametrize("name", CAMEL)
@pytest.mark.parametrize("value", [-1, 2**52, 1.5, "many", True, []])
def test_each_limit_that_is_wrong_is_refused_with_its_path(manager: Api, api: Api, name: str, value: Any) -> None:
    """R25: of a release and of an inline run; nothing is made."""
    answer = release(manager, {name: value})
    assert answer.status_code == 400, answer.content
    assert list(answer.json()["errors"]) == [f"definition.limits.{name}"]
    answer = start(api, **{CAMEL[name]: value})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [f"limits.{CAMEL[name]}"])
    assert not Run.objects.exists()
    assert not Release.objects.exists()


@pytest.mark.parametrize("name", [one for one in CAMEL if one != "revisions"])
def test_nothing_at_all_is_no_limit_but_of_revisions(manager: Api, api: Api, name: str) -> None:
    assert release(manager, {name: 0}).status_code == 400
    assert start(api, **{CAMEL[name]: 0}).status_code == 400
    assert start(api, revisions=0).status_code == 201


def test_unknown_limits_are_refused_and_missing_ones_are_recorded(manager: Api, api: Api) -> None:
    """R25: what is left out has a default, which stands in the release and with the run."""
    assert list(release(manager, {"colour": 1}).json()["errors"]) == ["definition.limits.colour"]
    told = release(manager, {"total_attempts": 20_000})
    assert told.status_code == 201, told.content
    whole = manager.get(f"/v1/releases/{told.json()['id']}").json()
    assert whole["definition"]["limits"] == Limits(total_attempts=20_000).as_json()
    made = api.post("/pipelines/idempotent", {"idempotencyKey": "k-2", "pipeline": "nightly", "input": {}})
    assert made.status_code == 201
    assert Run.objects.get().limits == Limits(total_attempts=20_000).as_json()


def test_a_run_may_only_narrow_what_its_release_allows(manager: Api, api: Api) -> None:
    assert release(manager, {"total_attempts": 20_000, "deadline_seconds": 60}).status_code == 201
    body = {"idempotencyKey": "k-1", "pipeline": "nightly", "input": {}}
    answer = api.post("/pipelines/idempotent", body | {"limits": {"totalAttempts": 20_001}})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["limits.totalAttempts"])
    answer = api.post("/pipelines/idempotent", body | {"deadlineSeconds": 61})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["deadlineSeconds"])
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"attemptsPerStage": 1}, "attempts_exhausted"),
        ({"totalAttempts": 1}, "attempts_exhausted"),
        ({"totalOutputBytes": 300_000}, "budget_exhausted"),
    ],
)
def test_what_is_used_up_ends_a_stage_that_would_be_tried_again(
    api: Api, worker: Worker, manager: Api, limits: dict[str, int], code: str
) -> None:
    """R25, R28, R45: the whole way over HTTP."""
    assert start(api, {"options": RETRIED}, **limits).status_code == 201
    answer = worker.report(worker.take(), "failed", errorCode="UPSTREAM_ERROR")
    assert answer.json()["stageStatus"] == "failed", answer.content
    run = Run.objects.get()
    (blocker,) = manager.get(f"/v1/executions/{run.id}/blockers").json()["results"]
    assert "larger limits" in blocker["cause"]
    assert not worker.pull()


def test_concurrency_output_and_deadline_hold_the_whole_way(api: Api, worker: Worker, clock: Clock) -> None:
    """R25, R45: an expired deadline lets nothing on."""
    beside = [{}, {"dependsOn": ["s0"]}, {"dependsOn": ["s0"]}]
    made = start(api, *beside, concurrency=1, outputBytesPerStage=10, deadlineSeconds=60)
    assert made.status_code == 201, made.content
    worker.report(worker.take(), output="ok")
    (job,) = worker.pull(maxJobs=5)
    assert worker.pull(maxJobs=5) == []
    assert worker.report(job, output="x" * 20).json()["stageStatus"] == "failed"
    assert len(worker.pull(maxJobs=5)) == 1
    clock.advance(61)
    assert not worker.pull(maxJobs=5)
    from pipelines import sweeps

    sweeps.sweep()
    assert Run.objects.get().failure_code == "deadline_exceeded"


def routes(patterns: Any, before: str = "") -> list[str]:
    found: list[str] = []
    for one in patterns:
        here = before + str(one.pattern)
        if isinstance(one, URLResolver):
            found += routes(one.url_patterns, here)
        elif isinstance(one, URLPattern):
            found.append(here)
    return found


def test_no_route_changes_the_limits_or_the_deadline_of_a_run(api: Api, people: Any, as_person: Any) -> None:
    """R32, I13: every route that names a run is asked to; whatever it answers, both stand as they were."""
    assert start(api, {}, deadlineSeconds=600, totalAttempts=5, attemptsPerStage=5).status_code == 201
    before = Run.objects.values_list("limits", "deadline_at").get()
    run_id = str(Run.objects.get().id)
    admin = as_person(people["admin"])
    found = [
        one for one in routes(get_resolver().url_patterns) if "<str:execution_id>" in one and one.startswith("v1/")
    ]
    assert len(found) > 10
    wish = {"limits": {"total_attempts": 50}, "deadline_seconds": 6000, "deadlineSeconds": 6000, "deadline_at": None}
    for route in found:
        path = "/" + route.replace("<str:execution_id>", run_id)
        for send in (admin.post, admin.patch):
            for body in (wish, {**wish, "reason": "more time"}):
                assert send(path, body).status_code in (400, 403, 404, 405, 409), path
    assert Run.objects.values_list("limits", "deadline_at").get() == before
