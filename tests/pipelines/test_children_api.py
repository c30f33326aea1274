"""The application API's routes for runs that stages start, as a worker without Python uses them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Run, Stage
from pipelines.sweeps import sweep
from tests.cast import Api

StartRun = Callable[..., Run]
pytestmark = pytest.mark.django_db

STAGES = [{"stageName": "work", "stageHandlerName": "Child"}]


class Session:
    """A worker by hand: what it sends and what it gets."""

    def __init__(self, api: Api, *handlers: str) -> None:
        self.api = api
        told = api.post("/workers/bootstrap", {"workerName": "w", "supportedHandlers": list(handlers)}).json()
        self.token = told["sessionToken"]

    def post(self, path: str, body: Any) -> Any:
        return self.api.post(path, body, X_Worker_Session=self.token)

    def take(self) -> dict[str, Any]:
        (job,) = self.post("/jobs/pull", {"maxJobs": 1, "acquire": True}).json()["jobs"]
        return dict(job)


def of(job: dict[str, Any], **body: Any) -> dict[str, Any]:
    return {"executionId": job["executionId"], **body}


@pytest.fixture
def session(api: Api) -> Session:
    return Session(api, "Handler")


def test_a_child_is_started_looked_at_waited_for_and_found_again(
    start_run: StartRun, session: Session, api: Api
) -> None:
    """N9, F129: 201, then 200 with the same run; parked by a result without an output; woken by the child's end."""
    run = start_run()
    job = session.take()
    path = f"/stages/{job['stageId']}/runs"
    wanted = of(job, key="day", name="imports", stages=STAGES)
    first = session.post(path, wanted)
    again = session.post(path, wanted)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["created"], again.json()["created"]) == (True, False)
    child = first.json()["run"]
    assert child == again.json()["run"]
    assert child | {"runId": "", "startedRunId": ""} == {
        "runId": "",
        "startedRunId": "",
        "key": "day",
        "name": "imports",
        "status": "queued",
        "isTerminal": False,
        "outputs": {},
        "leftOut": [],
    }
    result = of(job, attempt=job["attempt"], status="waiting", awaitsRuns=[child["runId"]])
    parked = session.post(f"/stages/{job['stageId']}/result", result)
    assert (parked.status_code, parked.json()) == (202, {"accepted": True, "stageStatus": "waiting"})
    helper = Session(api, "Child")
    work = helper.take()
    helper.post(
        f"/stages/{work['stageId']}/result",
        of(work, attempt=1, status="failed", errorCode="X", errorMessage="no", retryable=False),
    )
    sweep()
    job = session.take()
    assert (job["attempt"], job["epoch"]) == (2, 1)
    seen = session.post(path + "/look", of(job, runs=[child["runId"]])).json()["runs"]
    assert [(one["status"], one["failure"]) for one in seen] == [("failed", {"code": "X", "message": "no"})]
    session.post(f"/stages/{job['stageId']}/result", of(job, attempt=2, status="succeeded", output=1))
    run.refresh_from_db()
    assert run.status == "completed"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stages": STAGES}, "name"),
        ({"name": "n"}, "stages"),
        ({"name": "n", "stages": STAGES, "pipeline": "p"}, "stages"),
        ({"name": "n", "stages": STAGES, "input": {}}, "input"),
        ({"name": "n", "stages": STAGES, "onParentEnd": "pause"}, "onParentEnd"),
        ({"name": "n", "stages": STAGES, "follow": "newest"}, "follow"),
        ({"name": "n", "stages": STAGES, "key": " "}, "key"),
        ({"name": "n", "stages": STAGES, "key": "k" * 201}, "key"),
        ({"name": "n", "stages": [{**STAGES[0], "dependsOn": ["nobody"]}]}, "stages[0].dependsOn"),
        ({"pipeline": "nobody-made-this"}, None),
    ],
)
def test_what_cannot_be_started_is_refused_and_starts_nothing(
    start_run: StartRun, session: Session, body: dict[str, Any], field: str | None
) -> None:
    start_run()
    job = session.take()
    answer = session.post(f"/stages/{job['stageId']}/runs", of(job, **{"key": "day", **body}))
    assert 400 <= answer.status_code < 500
    assert field is None or list(answer.json()["errors"]) == [field]
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("result", "field"),
    [
        ({"status": "succeeded", "awaitsRuns": [str(uuid.UUID(int=1))]}, "awaitsRuns"),
        ({"status": "waiting", "output": 1, "awaitsRuns": [str(uuid.UUID(int=1))]}, "output"),
        ({"status": "waiting", "awaitsRuns": []}, "awaitsRuns"),
        ({"status": "waiting", "awaitsRuns": ["x"]}, "awaitsRuns[0]"),
        ({"status": "waiting", "awaitsRuns": [str(uuid.UUID(int=1))]}, "awaitsRuns[0]"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_and_moves_nothing(
    start_run: StartRun, session: Session, result: dict[str, Any], field: str
) -> None:
    start_run()
    job = session.take()
    answer = session.post(f"/stages/{job['stageId']}/result", of(job, attempt=1, **result))
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    assert Stage.objects.get(id=job["stageId"]).state == "running"


def test_another_application_s_stage_is_404(start_run: StartRun, session: Session, sibling_key: str) -> None:
    """I16."""
    start_run()
    job = session.take()
    other = Session(Api({"X-API-Key": sibling_key}), "Handler")
    for path, body in (
        ("runs", {"key": "k", "name": "n", "stages": STAGES}),
        ("runs/look", {"runs": [job["stageId"]]}),
    ):
        assert other.post(f"/stages/{job['stageId']}/{path}", of(job, **body)).status_code == 404
    assert Run.objects.count() == 1
