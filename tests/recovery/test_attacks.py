"""What people and workers try in order to repeat something outside without the right or the second person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.creation import Place
from pipelines.ids import new_id
from pipelines.models import AuditEvent, Effect, Environment, Event, Member, Run
from pipelines.sweeps import expire_leases
from recovery import forks
from recovery.models import Operation
from tests.cast import Api, Hand, Person, Worker, stages_of, unknown_id
from tests.clock import Clock
from tests.recovery.stories import EXTERNAL, effect_of

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
FAILED = {"error_code": "BUSINESS_REJECTED"}
CHARGE = {"class": "external_http", "stepId": "charge", "idempotencyKey": "k-1"}


@pytest.fixture
def operator(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def approver(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    """A run that failed at its second stage, which did something outside that nobody has cleared."""
    run = start_run("first", "second")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", **FAILED)
    effect_of(run, "second")
    return run


@pytest.fixture
def in_production(start_run: StartRun, place: Place, environments: dict[str, Environment]) -> Run:
    """A run of the protected environment that failed, and did nothing outside."""
    production = Place(place.workspace_id, place.application_id, environments["production"].id, "production")
    run = start_run("first", in_place=production)
    hand = Hand(production, "hand-2", ["Handler"])
    hand.report(hand.take(), "failed", **FAILED)
    return run


def decide(api: Api, operation_id: str, **more: Any) -> Any:
    return api.post(f"/v1/approvals/{operation_id}/decision", {"approved": True, "reason": "fine", **more})


def tell(worker: Worker, job: dict[str, Any], *effects: dict[str, Any]) -> Any:
    return worker.post(
        f"/stages/{job['stageId']}/effects", {"executionId": job["executionId"], "effects": list(effects)}
    )


def leave(worker: Worker, job: dict[str, Any], *side_effects: dict[str, Any]) -> None:
    body = {"executionId": job["executionId"], "state": {"page": 1}}
    posture = {"sideEffects": list(side_effects)}
    answer = worker.post(f"/stages/{job['stageId']}/checkpoints", body | {"recoveryPosture": posture})
    assert answer.status_code == 201, answer.content


def requests() -> list[tuple[str, str, str]]:
    """The audit's events but for verdicts: (action, outcome, code)."""
    kept = AuditEvent.objects.exclude(action="execution.recovery_disposition").order_by("at", "id")
    return list(kept.values_list("action", "outcome", "code"))


# people


@pytest.mark.parametrize("lost", ["role", "membership", "account"])
@pytest.mark.parametrize("verb", ["retry", "rerun"])
def test_what_somebody_may_no_longer_ask_for_is_not_done_for_them(
    verb: str, lost: str, failed: Run, operator: Api, approver: Api
) -> None:
    """F150: whoever lets it go on may not do it alone, and who asked may not do it any more; one event says so."""
    stage = stages_of(failed)[1]
    path = f"/v1/stages/{stage.id}/retry" if verb == "retry" else f"/v1/executions/{failed.id}/rerun"
    told = operator.post(path, {"reason": "again"}).json()
    assert told["code"] == "operator_review_required"
    _lose(lost, Member.objects.get(user__username="operator-acme"))
    before = len(requests())
    answer = decide(approver, told["operation_id"])
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert requests()[before:] == [("operation.approve", "denied", "permission_denied")]
    stage.refresh_from_db()
    assert (stage.state, stage.epoch) == ("failed", 1)
    assert not Run.objects.filter(recovered_from=failed).exists()
    assert Operation.objects.get(id=told["operation_id"]).resolved_by is None


def _lose(what: str, member: Member) -> None:
    if what == "role":
        Member.objects.filter(pk=member.pk).update(role="viewer")
    elif what == "membership":
        member.delete()
    else:
        type(member.user).objects.filter(pk=member.user_id).update(is_active=False)


@pytest.mark.parametrize("named", ["no-id", "%00", "{}"])
@pytest.mark.parametrize("root", ["/v1/executions", "/pipelines"])
def test_trying_what_is_not_there_leaves_a_trace_whatever_it_is_called(
    root: str, named: str, operator: Api, api: Api
) -> None:
    """F145: one event for each request, also for an id that is none."""
    who = api if root == "/pipelines" else operator
    answer = who.post(f"{root}/{named.format(unknown_id())}/cancel", {"reason": "try"})
    assert answer.status_code == 404
    assert requests() == [("run.cancel", "failed", "not_found")]


def test_a_fault_of_ours_in_a_fork_is_kept_too(failed: Run, operator: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """F145: allowed, denied, failed; nothing is half done."""

    def break_down(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("recovery.forks.plan_fork", break_down)
    with pytest.raises(RuntimeError):
        operator.post(f"/v1/executions/{failed.id}/rerun", {})
    assert requests() == [("run.rerun", "failed", "internal_error")]
    assert not Operation.objects.exists()


@pytest.mark.parametrize("forged", ["disposition", "plan"])
def test_editing_an_operation_makes_no_run(
    forged: str, failed: Run, in_production: Run, operator: Api, people: dict[str, Person]
) -> None:
    """I11, four eyes: what lets it go on is somebody's decision, which is only ever added, not what the row says."""
    run = failed if forged == "disposition" else in_production
    told = operator.post(f"/v1/executions/{run.id}/rerun", {}).json()
    operation = Operation.objects.get(id=told["operation_id"])
    operation.state, operation.target = "reserved", new_id()
    operation.resolved_by_id = people["approver"].user.pk
    operation.save()
    assert forks.carry_on_reserved(quiet_seconds=0) == 0
    assert not Run.objects.filter(recovered_from=run).exists()


# workers


def test_a_fork_cannot_take_back_what_its_source_did(
    start_run: StartRun, worker: Worker, operator: Api, approver: Api
) -> None:
    """O27: the posture that was handed over says committed; the fork's own word that it did nothing changes no bit."""
    source = start_run("only")
    job = worker.take()
    leave(worker, job, {**CHARGE, "committed": True})
    worker.report(job, "failed", errorCode="BUSINESS_REJECTED")
    asked = operator.post(f"/v1/executions/{source.id}/rerun", {}).json()
    fork = decide(approver, asked["operation_id"]).json()["target_execution_id"]
    job = worker.take()
    assert job["pipelineId"] == fork
    assert tell(worker, job, {**CHARGE, "state": "absent"}).status_code == 201
    worker.report(job, "failed", errorCode="BUSINESS_REJECTED")
    again = operator.post(f"/v1/executions/{fork}/rerun", {})
    assert (again.status_code, again.json()["code"]) == (409, "operator_review_required")
    assert not Run.objects.filter(recovered_from=fork).exists()


@pytest.mark.parametrize("start", ["first", "second"])
def test_no_stage_speaks_for_another(start: str, start_run: StartRun, worker: Worker, operator: Api) -> None:
    """O27: what one stage declared, a later one's posture does not hide."""
    run = start_run("first", "second")
    job = worker.take()
    leave(worker, job, {"class": "external_http", "committed": False})
    worker.report(job, output=1)
    job = worker.take()
    leave(worker, job)
    worker.report(job, "failed", errorCode="BUSINESS_REJECTED")
    asked = operator.post(f"/v1/executions/{run.id}/rerun", {"from_step_id": start})
    assert (asked.status_code, asked.json()["code"]) == (409, "operator_review_required")


def test_an_intent_in_a_posture_is_an_intent(start_run: StartRun, worker: Worker, clock: Clock) -> None:
    """R4, model §2 Stage: who says in a checkpoint what it is about to do, and dies, is not run again blindly."""
    run = start_run({"name": "only", **EXTERNAL})
    leave(worker, worker.take(), {**CHARGE, "committed": False})
    clock.advance(120)
    expire_leases()
    assert stages_of(run)[0].state == "needs_reconciliation"
    effect = Effect.objects.get()
    assert (effect.key, effect.state) == ("k-1", "unknown")


def test_an_intent_in_a_posture_takes_no_outcome_back(start_run: StartRun, worker: Worker) -> None:
    start_run({"name": "only", **EXTERNAL})
    job = worker.take()
    assert tell(worker, job, {**CHARGE, "state": "committed"}).status_code == 201
    leave(worker, job, {**CHARGE, "committed": False})
    assert Effect.objects.get().state == "committed"


def test_a_request_that_is_told_of_later_binds_its_key(start_run: StartRun, worker: Worker) -> None:
    """Model §2 Effect: the same key with another request is another effect, and refused; telling more is no event."""
    start_run("only")
    job = worker.take()
    declared = {**CHARGE, "state": "declared"}
    assert tell(worker, job, declared).status_code == 201
    assert tell(worker, job, {**declared, "requestHash": "a", "externalRef": "ch_1"}).status_code == 201
    other = tell(worker, job, {**declared, "requestHash": "b"})
    assert (other.status_code, other.json()["code"]) == (409, "stage_state_invalid")
    effect = Effect.objects.get()
    assert (effect.request_hash, effect.external_ref, effect.settled_at) == ("a", "ch_1", None)
    assert Event.objects.filter(kind__startswith="effect.").count() == 1
