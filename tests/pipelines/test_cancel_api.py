"""An application cancels its own runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import AuditEvent, Run
from tests.cast import Api, Worker, stages_of

Start = Callable[..., Run]


def test_cancel_ends_everything_and_lists_what_may_still_run_outside(
    api: Api, worker: Worker, start_run: Start
) -> None:
    """P72, P73, P75: one transaction; the list names the attempt that was told to stop."""
    run = start_run("first", "second")
    job = worker.take()
    answer = api.post(f"/pipelines/{run.id}/cancel", {"reason": "wrong invoice"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["pipeline"]["status"], body["pipeline"]["isTerminal"]) == ("cancelled", True)
    assert [stage["status"] for stage in body["pipeline"]["stages"]] == ["cancelled", "cancelled"]
    (still,) = body["reconciliation"]
    assert (still["stageId"], still["attempt"], still["kind"]) == (job["stageId"], 1, "running_attempt")
    event = AuditEvent.objects.get(action="run.cancel")
    assert (event.outcome, event.reason, event.actor, event.channel) == (
        "allowed",
        "wrong invoice",
        "billing",
        "application",
    )


def test_cancelling_again_answers_the_same(api: Api, worker: Worker, start_run: Start) -> None:
    """Model §2: of a cancelled run a 200 no-op, with the list as it was told then."""
    run = start_run()
    worker.take()
    first = api.post(f"/pipelines/{run.id}/cancel")
    again = api.post(f"/pipelines/{run.id}/cancel", {"reason": "once more"})
    assert (again.status_code, again.json()) == (200, first.json())


def test_results_after_a_cancel_change_nothing_and_the_worker_is_told(
    api: Api, worker: Worker, start_run: Start
) -> None:
    """P74: fenced."""
    run = start_run()
    job = worker.take()
    api.post(f"/pipelines/{run.id}/cancel")
    renewed = worker.post(f"/stages/{job['stageId']}/lease/renew", {"executionId": job["executionId"]}).json()
    assert (renewed["acquired"], renewed["reason"]) == (False, "run_terminal")
    assert [command["command"] for command in renewed["commands"]] == ["cancel"]
    assert worker.report(job, output="late").status_code == 409
    (stage,) = stages_of(run)
    assert (stage.state, stage.output_id) == ("cancelled", None)


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_an_ended_run_cannot_be_cancelled(api: Api, worker: Worker, start_run: Start, status: str) -> None:
    """Contract §2: completed or failed → 409."""
    run = start_run()
    worker.report(worker.take(), status)
    before = api.get(f"/pipelines/{run.id}").json()
    refused: Any = api.post(f"/pipelines/{run.id}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "execution_state_invalid")
    assert api.get(f"/pipelines/{run.id}").json() == before


def test_a_cancel_needs_no_body(api: Api, start_run: Start) -> None:
    run = start_run()
    assert api.post(f"/pipelines/{run.id}/cancel", b"").status_code == 200
