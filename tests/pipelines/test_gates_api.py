"""The owning application's own decisions on waiting stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import AuditEvent, GateDecision, Run
from tests.cast import Api, Person, Worker, stages_of
from tests.clock import Clock

Start = Callable[..., Run]


@pytest.fixture
def parked(worker: Worker, start_run: Start) -> Run:
    """A run whose first stage reported `waiting` with an output."""
    run = start_run("first", "second")
    assert worker.report(worker.take(), "waiting", output={"total": 7}).json()["stageStatus"] == "waiting"
    return run


def decide(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/stages/{stages_of(run)[0].id}/resume", body)


def states(run: Run) -> list[str]:
    run.refresh_from_db()
    return [run.status, *(stage.state for stage in stages_of(run))]


def test_a_waiting_result_parks_the_stage_without_completing_the_run(parked: Run, worker: Worker) -> None:
    """P77: the run is not terminal, the successor is not handed out."""
    assert states(parked) == ["waiting", "waiting", "pending"]
    assert worker.pull() == []


def test_approval_completes_the_stage_with_what_it_offered(parked: Run, api: Api, worker: Worker) -> None:
    """P78, P79: no rejection reason; the successor gets the output."""
    answer = decide(api, parked, approved=True)
    stage_id = str(stages_of(parked)[0].id)
    told = {"stageId": stage_id, "status": "completed", "approved": True, "rejectionReason": None}
    assert (answer.status_code, answer.json()) == (200, told)
    assert worker.take()["dependencies"] == {"first": {"total": 7}}


def test_rejection_fails_the_stage_and_keeps_the_reason(parked: Run, api: Api, worker: Worker) -> None:
    """P80, I9."""
    answer = decide(api, parked, approved=False, rejectionReason="declined")
    assert answer.json() | {"stageId": ""} == {
        "stageId": "",
        "status": "failed",
        "approved": False,
        "rejectionReason": "declined",
    }
    assert states(parked) == ["failed", "failed", "pending"]
    (decision,) = GateDecision.objects.all()
    assert (decision.approved, decision.reason) == (False, "declined")
    assert worker.pull() == []


@pytest.mark.parametrize("first", [{"approved": True}, {"approved": False, "rejectionReason": "declined"}])
def test_the_same_decision_again_is_accepted_and_another_is_not(parked: Run, api: Api, first: dict[str, Any]) -> None:
    """P81, P82, F138: one decision, however often it is told; a different answer or reason is 409."""
    answers = [decide(api, parked, **first) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    others = [{"approved": not first["approved"]}, {"approved": False, "rejectionReason": "another reason"}]
    for other in others:
        refused = decide(api, parked, **other)
        assert (refused.status_code, refused.json()["code"]) == (409, "gate_decision_conflict")
    assert GateDecision.objects.count() == 1
    outcomes = AuditEvent.objects.filter(action__startswith="gate.").order_by("id").values_list("outcome", "actor")
    assert list(outcomes) == [("allowed", "billing"), *[("no_op", "billing")] * 2, *[("failed", "billing")] * 2]


@pytest.mark.parametrize(
    "approved", ["true", "maybe", "", "true ", "True", "yes", 1, 0, 1.0, None, [], [True], {}, {"approved": True}]
)
def test_nothing_that_merely_looks_like_yes_or_no_is_one(parked: Run, api: Api, approved: Any) -> None:
    """F135: fail closed."""
    refused = decide(api, parked, approved=approved)
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["approved"])
    assert states(parked) == ["waiting", "waiting", "pending"]


@pytest.mark.parametrize("body", [{}, {"rejectionReason": "r"}, {"approve": True}, {"approved": True, "reason": "r"}])
def test_an_incomplete_or_unknown_answer_decides_nothing(parked: Run, api: Api, body: dict[str, Any]) -> None:
    """F135."""
    assert decide(api, parked, **body).status_code == 400
    assert states(parked)[0] == "waiting"


@pytest.mark.parametrize("approval", [{"approver_role": "approver"}, {"count": 2}, {"require_person": True}])
def test_where_people_are_asked_the_application_is_told_so(
    start_run: Start, api: Api, approval: dict[str, Any]
) -> None:
    """Model §5: gates of its own stages, unless a person is required; nothing moves, and the audit says who tried."""
    run = start_run({"name": "first", "approval": {"when": "before", **approval}})
    for body in ({"approved": True}, {"approved": False, "rejectionReason": "declined"}):
        refused = decide(api, run, **body)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert states(run) == ["waiting", "waiting"]
    assert not GateDecision.objects.exists()
    told = AuditEvent.objects.order_by("id").values_list("action", "outcome", "actor", "code")
    assert list(told) == [(f"gate.{verb}", "denied", "billing", "permission_denied") for verb in ("approve", "reject")]


def test_an_application_decides_beside_people_where_it_may(
    people: dict[str, Person], parked: Run, api: Api, as_person: Callable[[Person], Api]
) -> None:
    """One function: who is second is told that it is decided, whichever way they came."""
    gate = parked.gates.get()
    path = f"/v1/approvals/{gate.id}/decision"
    assert as_person(people["approver"]).post(path, {"approved": True}).status_code == 200
    late = decide(api, parked, approved=True)
    assert (late.status_code, late.json()["code"]) == (409, "gate_decision_conflict")
    assert [(one.role, one.application) for one in gate.decisions.all()] == [("approver", None)]


def test_what_does_not_wait_cannot_be_decided(start_run: Start, api: Api) -> None:
    """Model §6: not waiting is `stage_state_invalid`."""
    refused = decide(api, start_run(), approved=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "stage_state_invalid")


def test_a_cancelled_run_s_gate_is_closed_for_good(parked: Run, api: Api) -> None:
    assert api.post(f"/pipelines/{parked.id}/cancel").status_code == 200
    refused = decide(api, parked, approved=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "execution_state_invalid")
    assert states(parked) == ["cancelled", "cancelled", "cancelled"]


def test_an_expired_gate_takes_no_decision(worker: Worker, start_run: Start, api: Api, clock: Clock) -> None:
    """F136: silence never consents, and a late yes is refused."""
    run = start_run({"name": "first", "approval": {"when": "after", "expires_in": 60}})
    worker.report(worker.take())
    clock.advance(60)
    refused = decide(api, run, approved=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_stale")


def test_a_gate_before_the_work_lets_it_begin(api: Api, worker: Worker) -> None:
    """Model §2: approved before it, the stage is ready."""
    stage = {"stageName": "a", "stageHandlerName": "Handler", "approval": {"when": "before", "expiresInSeconds": 60}}
    created = api.post("/pipelines/idempotent", {"idempotencyKey": "k", "name": "n", "stages": [stage]}).json()
    assert created["pipeline"]["stages"][0]["status"] == "waiting"
    assert worker.pull() == []
    answer = decide(api, Run.objects.get(), approved=True)
    assert answer.json()["status"] == "ready"
    assert worker.report(worker.take()).json()["stageStatus"] == "completed"
