"""Acting on runs and stages through `/v1`: pause, resume, cancel, retry, skip."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import sweeps
from pipelines.models import AuditEvent, Event, Run, Stage
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock

StartRun = Callable[..., Run]
FAILING = {"error_code": "BUSINESS_REJECTED", "error_message": "no such customer"}


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def status(run: Run) -> str:
    return Run.objects.get(id=run.id).status


def audit(run: Run) -> list[tuple[str, str, str, str]]:
    events = AuditEvent.objects.filter(run=run.id).order_by("at", "id")
    return [(event.action, event.outcome, event.actor, event.channel) for event in events]


# pause and resume


def test_pause_and_resume_answer_exactly_two_fields(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """O2, O9, O10, P60, P63: the very body of source 002, an operation each, and dispatch stops and starts."""
    run = start_run("first")
    paused = operator.post(f"/v1/executions/{run.id}/pause", {"reason": "audit day"})
    assert paused.status_code == 200
    assert paused.json() == {"execution_id": str(run.id), "status": "pause_signal_sent"}
    assert hand.pull() == []
    assert status(run) == "paused"
    resumed = operator.post(f"/v1/executions/{run.id}/resume")
    assert resumed.status_code == 200
    assert resumed.json() == {"execution_id": str(run.id), "status": "resume_signal_sent"}
    assert len(hand.pull()) == 1
    assert list(Operation.objects.order_by("created_at", "id").values_list("kind", flat=True)) == ["pause", "resume"]
    assert audit(run) == [
        ("run.pause", "allowed", "operator-acme", "api"),
        ("run.resume", "allowed", "operator-acme", "api"),
    ]


def test_pause_without_any_body_works_as_in_the_source(start_run: StartRun, operator: Api) -> None:
    """Source 002's curl sends none, nor a content type of JSON."""
    run = start_run("first")
    answer = operator._client.generic("POST", f"/v1/executions/{run.id}/pause", headers=operator.headers)
    assert answer.status_code == 200
    assert status(run) == "paused"


@pytest.mark.parametrize(
    ("ending", "verb", "code"),
    [
        ("complete", "pause", "execution_state_invalid"),
        ("complete", "resume", "execution_state_invalid"),
        ("complete", "cancel", "execution_state_invalid"),
        ("cancel", "pause", "execution_state_invalid"),
        ("cancel", "resume", "execution_state_invalid"),
        ("nothing", "resume", "execution_state_invalid"),
        ("deadline", "pause", "deadline_exceeded"),
        ("deadline", "cancel", "deadline_exceeded"),
    ],
)
def test_a_verb_that_the_state_does_not_take_is_a_typed_refusal(
    start_run: StartRun, hand: Hand, operator: Api, clock: Clock, ending: str, verb: str, code: str
) -> None:
    """P62, P63, P76, F47: 409 with its code, an audit event, and no other trace."""
    run = start_run("first", deadline_seconds=60)
    if ending == "complete":
        hand.finish()
    elif ending == "cancel":
        assert operator.post(f"/v1/executions/{run.id}/cancel").status_code == 200
    elif ending == "deadline":
        clock.advance(61)
        sweeps.enforce_deadlines()
    before = status(run), Event.objects.filter(run=run).count(), Operation.objects.count()
    answer = operator.post(f"/v1/executions/{run.id}/{verb}", {"reason": "why not"})
    assert (answer.status_code, answer.json()["code"]) == (409, code)
    assert before == (status(run), Event.objects.filter(run=run).count(), Operation.objects.count())
    assert audit(run)[-1] == (f"run.{verb}", "failed", "operator-acme", "api")


# cancel


def test_cancel_ends_everything_and_lists_what_may_go_on_outside(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """P72–P75, R10, F65: at once, with its worker still at work; the late result changes nothing."""
    run = start_run({"name": "a", "depends_on": None}, "b")
    job = hand.take()
    answer = operator.post(f"/v1/executions/{run.id}/cancel", {"reason": "wrong customer"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["execution_id"], body["status"], body["replayed"]) == (str(run.id), "cancelled", False)
    (item,) = body["reconciliation"]
    assert (item["stage_id"], item["attempt"], item["kind"]) == (str(job.stage.id), 1, "running_attempt")
    assert "was told to stop" in item["detail"], "it never claims that outside work stopped"
    assert {stage.state for stage in stages_of(run)} == {"cancelled"}
    assert not hand.report(job, output="late").accepted
    assert {stage.state for stage in stages_of(run)} == {"cancelled"}
    assert Operation.objects.get(kind="cancel").reason == "wrong customer"


def test_cancelling_again_answers_the_same_and_changes_nothing(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """Model §2: of a cancelled run, a 200 no-op."""
    run = start_run("first")
    hand.take()
    first = operator.post(f"/v1/executions/{run.id}/cancel").json()
    events = Event.objects.filter(run=run).count()
    again = operator.post(f"/v1/executions/{run.id}/cancel")
    assert again.status_code == 200
    assert again.json()["reconciliation"] == first["reconciliation"]
    assert Event.objects.filter(run=run).count() == events
    assert [entry[1] for entry in audit(run)] == ["allowed", "no_op"]


# retry


def failed_run(start_run: StartRun, hand: Hand, *stages: Any) -> tuple[Run, list[Stage]]:
    run = start_run(*(stages or ("first", "second")))
    hand.report(hand.take(), "failed", **FAILING)
    return run, stages_of(run)


def test_a_retry_begins_a_new_epoch(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """P65, R11: stage and run go on; the answer holds what contract §3 asks of every verb."""
    run, (first, _) = failed_run(start_run, hand)
    answer = operator.post(f"/v1/stages/{first.id}/retry", {"scope": "stage", "reason": "customer added"})
    assert answer.status_code == 200
    body = answer.json()
    operation = Operation.objects.get()
    assert body == {
        "operation_id": str(operation.id),
        "execution_id": str(run.id),
        "stage_id": str(first.id),
        "status": "succeeded",
        "disposition": "recovery_allowed",
        "replayed": False,
        "plan_digest": operation.plan_digest,
        "epoch": 2,
        "stage_status": "ready",
        "execution_status": status(run),
    }
    assert hand.finish() == 2
    assert status(run) == "completed"
    assert audit(run) == [
        ("execution.recovery_disposition", "allowed", "operator-acme", "api"),
        ("stage.retry", "allowed", "operator-acme", "api"),
    ]


def test_a_retry_with_everything_behind_it(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """P67, F34: b and c in epoch 2, a untouched."""
    run = start_run("a", "b", "c")
    hand.finish()
    a, b, _ = stages_of(run)
    body = {"scope": "stage_and_downstream", "reason": "the rates changed", "input": '{"rate": 2}'}
    assert operator.post(f"/v1/stages/{b.id}/retry", body).status_code == 200
    assert [(stage.state, stage.epoch) for stage in stages_of(run)] == [("completed", 1), ("ready", 2), ("pending", 2)]
    assert hand.take().input == '{"rate": 2}'
    assert stages_of(run)[0].finished_at == a.finished_at


def test_one_branch_is_retried_while_the_other_runs(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """F44."""
    start_run({"name": "a", "depends_on": []}, {"name": "b", "depends_on": []}, {"name": "c", "depends_on": ["a", "b"]})
    jobs = hand.pull(2)
    hand.report(jobs[0], "failed", **FAILING)
    assert operator.post(f"/v1/stages/{jobs[0].stage.id}/retry").status_code == 200
    assert hand.renew(jobs[1])[0].acquired


def test_the_same_key_acts_once_and_another_request_with_it_is_refused(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """F56, O29–O32 for verbs in place: by field or by header."""
    _, (first, second) = failed_run(start_run, hand)
    key = str(uuid.uuid4())
    body = {"reason": "again", "client_request_id": key}
    once = operator.post(f"/v1/stages/{first.id}/retry", body).json()
    twice = operator.post(f"/v1/stages/{first.id}/retry", body)
    assert twice.status_code == 200
    assert twice.json() == once | {"replayed": True}
    by_header = operator.post(f"/v1/stages/{first.id}/retry", {"reason": "again"}, idempotency_key=key)
    assert by_header.json()["operation_id"] == once["operation_id"]
    other = operator.post(f"/v1/stages/{first.id}/retry", body | {"scope": "stage_and_downstream"})
    elsewhere = operator.post(f"/v1/stages/{second.id}/retry", body)
    for refused in (other, elsewhere):
        assert (refused.status_code, refused.json()["code"]) == (409, "recovery_idempotency_conflict")
    assert Stage.objects.get(id=first.id).epoch == 2
    assert Operation.objects.count() == 1


def test_without_a_key_every_retry_counts(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """F56: twice on purpose is two epochs."""
    run, (first, _) = failed_run(start_run, hand)
    operator.post(f"/v1/stages/{first.id}/retry")
    hand.report(hand.take(), "failed", **FAILING)
    operator.post(f"/v1/stages/{first.id}/retry")
    assert stages_of(run)[0].epoch == 3


@pytest.mark.parametrize(
    ("key", "header", "code", "field"),
    [
        ("8C0B4A6E-8C1F-4D0B-9C53-0B5D2A4B7E11", None, "client_request_id_invalid", "client_request_id"),
        ("once", None, "client_request_id_invalid", "client_request_id"),
        ("", None, "validation_error", "client_request_id"),
        (None, "x" * 201, "validation_error", "Idempotency-Key"),
        (None, " ", "validation_error", "Idempotency-Key"),
        ("8c0b4a6e-8c1f-4d0b-9c53-0b5d2a4b7e11", "another", "validation_error", "Idempotency-Key"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused(
    start_run: StartRun, hand: Hand, operator: Api, key: str | None, header: str | None, code: str, field: str
) -> None:
    """O29; both and different is an error."""
    _, (first, _) = failed_run(start_run, hand)
    body = {} if key is None else {"client_request_id": key}
    answer = operator.post(f"/v1/stages/{first.id}/retry", body, **({"idempotency_key": header} if header else {}))
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert list(answer.json()["errors"]) == [field]
    assert Stage.objects.get(id=first.id).epoch == 1


def test_a_stage_of_a_cancelled_run_is_not_retried_and_the_answer_offers_the_fork(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """F58, I8."""
    run, (first, _) = failed_run(start_run, hand, {"name": "a", "run_next_if_failed": True}, "b")
    operator.post(f"/v1/executions/{run.id}/cancel")
    answer = operator.post(f"/v1/stages/{first.id}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_state_invalid")
    assert answer.json()["instead"] == "fork"
    assert status(run) == "cancelled"


def test_a_stage_with_outside_effects_is_repeated_only_when_they_were_checked(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """P68, P87, R13."""
    run, (first,) = failed_run(start_run, hand, {"name": "pay", "effect_mode": "external"})
    refused = operator.post(f"/v1/stages/{first.id}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "operator_review_required")
    assert stages_of(run)[0].state == "failed"
    allowed = operator.post(f"/v1/stages/{first.id}/retry", {"acknowledge_effects": True, "reason": "checked"})
    assert allowed.status_code == 200
    assert AuditEvent.objects.get(action="stage.retry", outcome="allowed").data["acknowledge_effects"] is True


# skip


def test_a_skip_lets_the_next_stage_go_on_with_the_output_given(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """P69, P70: actor and reason kept."""
    run, (first, _) = failed_run(start_run, hand)
    answer = operator.post(f"/v1/stages/{first.id}/skip", {"reason": "paid by hand", "output": {"paid": True}})
    assert answer.status_code == 200
    assert (answer.json()["stage_status"], answer.json()["status"]) == ("skipped", "succeeded")
    assert hand.take().dependencies == {"first": '{"paid":true}'}
    event = Event.objects.get(run=run, kind="stage.skip")
    assert (event.actor, event.reason) == ("operator-acme", "paid by hand")


def test_a_skip_needs_a_reason(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """P71: white space is none."""
    run, (first, _) = failed_run(start_run, hand)
    for body in ({}, {"reason": ""}, {"reason": " \n"}):
        answer = operator.post(f"/v1/stages/{first.id}/skip", body)
        assert (answer.status_code, list(answer.json()["errors"])) == (400, ["reason"])
    assert stages_of(run)[0].state == "failed"


# what was done


def test_operations_are_listed_and_filtered(
    start_run: StartRun, hand: Hand, operator: Api, outsider: Person, as_person: Callable[[Person], Api], api: Api
) -> None:
    """O4, I16: who asked for what, why, on what; another workspace sees none."""
    run, (first, _) = failed_run(start_run, hand)
    operator.post(f"/v1/stages/{first.id}/retry", {"reason": "again"})
    operator.post(f"/v1/executions/{run.id}/pause")
    newest, oldest = operator.get("/v1/operations").json()["results"]
    assert (newest["kind"], oldest["kind"]) == ("pause", "retry")
    assert (oldest["requested_by"], oldest["reason"], oldest["stage_id"]) == ("operator-acme", "again", str(first.id))
    (only,) = operator.get(f"/v1/operations?kind=retry&execution_id={run.id}").json()["results"]
    assert only["operation_id"] == oldest["operation_id"]
    assert operator.get("/v1/operations?requested_by=nobody").json()["results"] == []
    assert as_person(outsider).get("/v1/operations").json()["results"] == []
    assert len(api.get("/v1/operations").json()["results"]) == 2
