"""Rerun: a new run from a checkpoint of one that has ended, which itself stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pipelines import catalog, releases
from pipelines.creation import Place
from pipelines.models import AuditEvent, Checkpoint, Environment, Run, StageOutput
from pipelines.sql import execute, planned
from pipelines.sweeps import enforce_deadlines
from pipelines.transitions import cancel_run
from pipelines.wire import job_body
from recovery.models import Operation
from tests import tampering
from tests.cast import Api, Hand, Person, Worker, stages_of
from tests.clock import Clock
from tests.recovery.stories import EXTERNAL, clear, effect_of, leave_uncertain
from tests.verbs import skip_stage

StartRun = Callable[..., Run]
FAILED = {"error_code": "BUSINESS_REJECTED", "error_message": "no such customer"}
KEY = "0b7e3d1c-1111-4222-8333-444455556666"
OF_A_RUN = {
    "pipelines_run": "id",
    "pipelines_stage": "run_id",
    "pipelines_attempt": "run_id",
    "pipelines_checkpoint": "run_id",
    "pipelines_effect": "run_id",
    "pipelines_event": "run_id",
    "pipelines_gate": "run_id",
    "pipelines_deadletter": "run_id",
    "pipelines_contextitem": "run_id",
}


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def approver(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    """first completed, second failed, third never began."""
    run = start_run(
        "first",
        "second",
        "third",
        context_items=[{"key": "order", "value": "4711"}, {"key": "card", "value": "5500", "is_sensitive": True}],
        keywords=[{"key": "customer", "value": "acme"}],
    )
    hand.report(hand.take(), output={"made": 1})
    hand.report(hand.take(), "failed", **FAILED)
    run.refresh_from_db()
    assert run.status == "failed"
    return run


def rerun(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/v1/executions/{run.id}/rerun", body)


def target_of(answer: Any) -> Run:
    assert answer.status_code in (200, 201), answer.content
    found: Run = Run.objects.get(id=answer.json()["execution_id"])
    return found


def states(run: Run) -> list[str]:
    return [stage.state for stage in stages_of(run)]


def rows_of(run: Run) -> dict[str, list[Any]]:
    """Every row of the run, in every table that holds any."""
    found = {
        table: planned(f"SELECT t::text FROM {table} t WHERE {column} = %s ORDER BY 1", [run.id])
        for table, column in OF_A_RUN.items()
    }
    outputs = (
        "SELECT o::text FROM pipelines_stageoutput o JOIN pipelines_stage s ON s.id = o.stage_id WHERE s.run_id = %s"
    )
    return {**found, "outputs": planned(f"{outputs} ORDER BY 1", [run.id])}


@contextmanager
def untouched(run: Run) -> Iterator[None]:
    """I12: not one row of it changes."""
    before = rows_of(run)
    yield
    assert rows_of(run) == before


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    """A refusal that made no run."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.content
    assert not Run.objects.filter(recovered_from__isnull=False).exists()
    return answer.json()


# what is made


def test_it_keeps_what_was_done_and_runs_the_rest_in_a_new_run(failed: Run, operator: Api, hand: Hand) -> None:
    """O17, O20, O21, I12, contract §3: first is kept with its result, second and third run, and the source stays."""
    with untouched(failed):
        answer = rerun(operator, failed, reason="the customer is there now")
        target = target_of(answer)
        told = answer.json()
        assert answer.status_code == 201
        assert told["original_execution_id"] == str(failed.id) != told["execution_id"]
        expected = {
            "status": "dispatched",
            "disposition": "recovery_allowed",
            "replayed": False,
            "from_step_id": "second",
            "environment": "development",
            "release_id": str(failed.release_id),
            "release_changed": False,
        }
        assert {name: told[name] for name in expected} == expected
        assert states(target) == ["completed", "ready", "pending"]
        job = hand.take()
        assert (job.stage.name, job.dependencies) == ("second", {"first": '{"made":1}'})
        hand.report(job, output=2)
        assert hand.finish() == 1
    target.refresh_from_db()
    assert (target.status, states(target)) == ("completed", ["completed"] * 3)


def test_the_new_run_says_what_it_came_out_of(failed: Run, operator: Api, hand: Hand) -> None:
    """O21, contract §3: `_recovery` in its inputs, and the same in every job."""
    told = rerun(operator, failed).json()
    view = operator.get(f"/v1/executions/{told['execution_id']}").json()
    newest = Checkpoint.objects.filter(run=failed).order_by("-sequence")[0]
    recovery = {
        "type": "rerun",
        "original_execution_id": str(failed.id),
        "operation_id": told["operation_id"],
        "checkpoint_id": str(newest.id),
        "frozen_input": False,
    }
    assert view["inputs"]["_recovery"] == recovery
    assert view["recovered_from"] == str(failed.id)
    assert view["started_by"] == "operator-acme"
    assert job_body(hand.take())["recovery"] == recovery
    listed = operator.get(f"/v1/executions?recovered_from={failed.id}").json()["results"]
    assert [one["execution_id"] for one in listed] == [told["execution_id"]]


def test_what_it_was_given_goes_with_it_and_its_key_does_not(failed: Run, operator: Api, hand: Hand) -> None:
    """Model §2: context, keywords and search words; sensitive values stay unseen."""
    told = rerun(operator, failed).json()
    view = operator.get(f"/v1/executions/{told['execution_id']}").json()
    assert [(item["key"], item["value"]) for item in view["context_items"]] == [
        ("order", "4711"),
        ("card", "[REDACTED]"),
    ]
    assert view["keywords"] == [{"key": "customer", "value": "acme"}]
    assert hand.take().context_items == [
        {"key": "order", "value": "4711", "isSensitive": False},
        {"key": "card", "value": "5500", "isSensitive": True},
    ]
    found = operator.get("/v1/executions?search=4711").json()["results"]
    assert {one["execution_id"] for one in found} == {told["execution_id"], str(failed.id)}
    assert not planned("SELECT 1 FROM pipelines_runidentity WHERE run_id = %s", [told["execution_id"]])


def test_kept_results_are_marked_as_taken_over(failed: Run, operator: Api) -> None:
    """O17: restored outputs of kept stages are marked as such; no attempt pretends to have made them."""
    target = target_of(rerun(operator, failed))
    source = StageOutput.objects.get(stage__run=failed)
    copy = StageOutput.objects.get(stage__run=target)
    assert (copy.restored_from, copy.body, copy.digest, copy.attempt) == (source.id, source.body, source.digest, None)
    kept = stages_of(target)[0]
    assert (kept.output_id, kept.output_digest, kept.attempt_number) == (copy.id, source.digest, 0)
    (shown,) = operator.get(f"/v1/stages/{kept.id}/outputs").json()["results"]
    assert (shown["restored_from"], shown["current"]) == (str(source.id), True)
    first = Checkpoint.objects.get(run=target, sequence=1)
    assert [one["stage"] for one in json.loads(first.payload)["done"]] == ["first"]


def test_a_named_step_starts_clean_and_all_behind_it_run(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """O19, model §2: of a → b → d and a → c, from b: b and d run, a and c are kept."""
    run = start_run(
        "a",
        {"name": "b", "depends_on": ["a"]},
        {"name": "c", "depends_on": ["a"]},
        {"name": "d", "depends_on": ["b"]},
    )
    hand.finish()
    with untouched(run):
        answer = rerun(operator, run, from_step_id="b")
        assert states(target_of(answer)) == ["completed", "ready", "completed", "pending"]
        assert hand.finish() == 2
    assert target_of(answer).status == "completed"


def test_a_branch_that_was_not_done_runs_too(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """Nothing is silently left behind: what is neither kept nor behind X runs as well."""
    run = start_run("a", {"name": "b", "depends_on": ["a"]}, {"name": "c", "depends_on": ["a"]})
    hand.report(hand.take())
    hand.report(hand.take(), "failed", **FAILED)
    hand.report(hand.take(), "failed", **FAILED)
    assert states(target_of(rerun(operator, run, from_step_id="b"))) == ["completed", "ready", "ready"]


def test_without_a_step_the_handlers_state_is_handed_over(start_run: StartRun, worker: Worker, operator: Api) -> None:
    """Model §2: X is the snapshot's step, and its handler goes on where it left off; named, it starts clean."""
    run = start_run("first", "second")
    worker.report(worker.take())
    job = worker.take()
    left = worker.post(f"/stages/{job['stageId']}/checkpoints", {"executionId": job["executionId"], "state": {"at": 3}})
    assert left.status_code == 201, left.content
    worker.report(job, "failed", errorCode="BUSINESS_REJECTED")
    named = target_of(rerun(operator, run, from_step_id="second"))
    assert "checkpoint" not in worker.take()
    assert not Checkpoint.objects.filter(run=named, moment="restored").exists()
    latest = target_of(rerun(operator, run))
    assert worker.take()["checkpoint"]["state"] == {"at": 3}
    assert Checkpoint.objects.get(run=latest, moment="restored").sequence == 2


def test_nineteen_kept_results_and_one_new_stage_end_the_run(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """F43."""
    run = start_run(*[f"s{number}" for number in range(20)])
    for _ in range(19):
        hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", **FAILED)
    target = target_of(rerun(operator, run))
    assert states(target) == ["completed"] * 19 + ["ready"]
    assert hand.finish() == 1
    target.refresh_from_db()
    assert target.status == "completed"


def test_a_run_cancelled_with_queued_stages_starts_again_at_the_first_try(
    start_run: StartRun, hand: Hand, operator: Api, people: dict[str, Person]
) -> None:
    """F35, F48, O18: "killed" is cancelled here; its history is kept."""
    run = start_run("a", {"name": "b", "depends_on": ["a"]}, {"name": "c", "depends_on": ["a"]})
    hand.report(hand.take())
    cancel_run(run.id, actor=people["operator"].actor)
    with untouched(run):
        target = target_of(rerun(operator, run))
        assert states(target) == ["completed", "ready", "ready"]
        assert hand.finish() == 2
    run.refresh_from_db()
    assert run.status == "cancelled"


def test_a_run_past_its_deadline_is_forked_with_the_same_time_anew(
    start_run: StartRun, hand: Hand, operator: Api, clock: Clock
) -> None:
    """R31, I8: the source stays failed, the new run has its own deadline."""
    run = start_run("first", deadline_seconds=60)
    clock.advance(61)
    assert enforce_deadlines() == 1
    target = target_of(rerun(operator, run))
    assert target.deadline_at is not None
    assert (target.deadline_at - target.created_at).total_seconds() == 60
    assert hand.finish() == 1
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "deadline_exceeded")


def test_a_fork_is_forked(failed: Run, operator: Api, hand: Hand) -> None:
    first = target_of(rerun(operator, failed))
    hand.report(hand.take(), "failed", **FAILED)
    second = target_of(rerun(operator, first))
    assert (second.recovered_from_id, states(second)) == (first.id, ["completed", "ready", "pending"])
    assert StageOutput.objects.get(stage__run=second).restored_from == StageOutput.objects.get(stage__run=first).id


def test_skipped_stages_and_bypassed_failures_are_kept_as_they_were(
    start_run: StartRun, hand: Hand, operator: Api, people: dict[str, Person]
) -> None:
    run = start_run("a", {"name": "b", "run_next_if_failed": True}, "c")
    skip_stage(
        stages_of(run)[0].id, actor=people["operator"].actor, reason="not today", output={"by": "hand"}, has_output=True
    )
    hand.report(hand.take(), "failed", **FAILED)
    hand.report(hand.take(), "failed", **FAILED)
    target = target_of(rerun(operator, run))
    assert states(target) == ["skipped", "failed", "ready"]
    assert stages_of(target)[1].last_error_code == "BUSINESS_REJECTED"
    assert hand.finish() == 1
    target.refresh_from_db()
    assert target.status == "completed"


def test_gates_open_anew_and_the_old_decision_stays_readable(
    start_run: StartRun, hand: Hand, operator: Api, api: Api
) -> None:
    """F40, F45, model §3.4: a rejected gate is final in its run and open again in the fork."""
    run = start_run("first", {"name": "pay", "approval": {"when": "before"}})
    hand.finish()
    api.post(f"/stages/{stages_of(run)[1].id}/resume", {"approved": False, "rejectionReason": "too much"})
    with untouched(run):
        target = target_of(rerun(operator, run, from_step_id="pay"))
        assert states(target) == ["completed", "waiting"]
        decided = api.post(f"/stages/{stages_of(target)[1].id}/resume", {"approved": True})
        assert decided.status_code == 200, decided.content
        assert hand.finish() == 1


# what is refused


@pytest.mark.parametrize("state", ["queued", "running", "paused", "blocked"])
def test_a_run_that_has_not_ended_is_not_forked(
    start_run: StartRun, hand: Hand, operator: Api, clock: Clock, state: str
) -> None:
    """O18, F47."""
    run = start_run({"name": "first", **EXTERNAL})
    if state == "running":
        hand.take()
    elif state == "paused":
        operator.post(f"/v1/executions/{run.id}/pause")
    elif state == "blocked":
        leave_uncertain(run, hand, clock)
    refused(rerun(operator, run), 409, "execution_state_invalid")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"environment": "staging"}, 409, "recovery_environment_mismatch"),
        ({"environment": "mars"}, 422, "environment_unknown"),
        ({"flow_slug": "another"}, 400, "validation_error"),
        ({"actor_ref": "admin-acme"}, 403, "impersonation_rejected"),
        ({"client_request_id": KEY.upper()}, 400, "client_request_id_invalid"),
        ({"client_request_id": "again"}, 400, "client_request_id_invalid"),
        ({"from_step_id": "fourth"}, 404, "checkpoint_not_found"),
        ({"from_step_id": "third"}, 404, "checkpoint_not_found"),
        ({"from_step_id": 3}, 400, "validation_error"),
        ({"freeze_release": True}, 400, "validation_error"),
        ({"plan_digest": "0" * 64}, 409, "plan_changed"),
    ],
)
def test_what_does_not_fit_is_a_typed_refusal_with_one_audit_event(
    failed: Run, operator: Api, body: dict[str, Any], status: int, code: str
) -> None:
    """O22, O24, O29, O39, model §6."""
    with untouched(failed):
        refused(rerun(operator, failed, **body), status, code)
    (event,) = AuditEvent.objects.filter(action="run.rerun")
    assert (event.outcome, event.code) == ("denied" if status == 403 else "failed", code)
    assert not Operation.objects.exists()


def test_naming_oneself_and_ones_own_environment_is_fine(failed: Run, operator: Api) -> None:
    """O22, O23."""
    answer = rerun(operator, failed, actor_ref="operator-acme", environment="development", flow_slug="nightly")
    assert answer.status_code == 201, answer.content


def test_a_foreign_run_is_not_there(failed: Run, outsider: Person, as_person: Callable[[Person], Api]) -> None:
    """O3, I16, F151."""
    refused(rerun(as_person(outsider), failed), 404, "not_found")


def test_a_run_without_any_checkpoint_cannot_be_rerun(failed: Run, operator: Api) -> None:
    """O16."""
    tampering.remove(run=failed)
    refused(rerun(operator, failed), 404, "checkpoint_not_found")


# the same request again


def test_the_same_key_and_request_gives_the_first_target(failed: Run, operator: Api) -> None:
    """O30, O31, F56, F118, I10: also with what is left out said."""
    first = rerun(operator, failed, client_request_id=KEY)
    again = rerun(operator, failed, client_request_id=KEY, environment="development")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["execution_id"] == first.json()["execution_id"]
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)
    assert Run.objects.filter(recovered_from=failed).count() == 1
    assert [event.outcome for event in AuditEvent.objects.filter(action="run.rerun").order_by("at")] == [
        "allowed",
        "no_op",
    ]


@pytest.mark.parametrize("change", [{"from_step_id": "first"}, {"from_step_id": "second"}])
def test_the_same_key_for_another_request_is_a_conflict(failed: Run, operator: Api, change: dict[str, Any]) -> None:
    """O32: also for the step that leaving it out would have meant, for that one starts clean."""
    rerun(operator, failed, client_request_id=KEY)
    answer = rerun(operator, failed, client_request_id=KEY, **change)
    assert (answer.status_code, answer.json()["code"]) == (409, "recovery_idempotency_conflict")
    assert Run.objects.filter(recovered_from=failed).count() == 1


def test_the_same_key_for_another_run_is_a_conflict(
    failed: Run, start_run: StartRun, hand: Hand, operator: Api
) -> None:
    other = start_run("first")
    hand.finish()
    rerun(operator, failed, client_request_id=KEY)
    answer = rerun(operator, other, client_request_id=KEY)
    assert (answer.status_code, answer.json()["code"]) == (409, "recovery_idempotency_conflict")


def test_without_a_key_every_call_forks(failed: Run, operator: Api) -> None:
    """O33."""
    assert target_of(rerun(operator, failed)) != target_of(rerun(operator, failed))


def test_a_refused_request_keeps_no_key(failed: Run, operator: Api) -> None:
    """Model §3.6, F127."""
    assert rerun(operator, failed, client_request_id=KEY, from_step_id="third").status_code == 404
    assert rerun(operator, failed, client_request_id=KEY).status_code == 201


# plan first


def test_a_dry_run_tells_the_plan_and_changes_nothing(failed: Run, operator: Api) -> None:
    """Contract §3, F51: kept with its digest, run again, and a digest that the real request may name."""
    with untouched(failed):
        answer = rerun(operator, failed, dry_run=True)
    plan = answer.json()
    assert answer.status_code == 200
    assert [(line["stage"], line["to"]) for line in plan["kept"]] == [("first", "completed")]
    assert plan["kept"][0]["output_digest"] == stages_of(failed)[0].output_digest
    assert [(line["stage"], line["was"], line["to"]) for line in plan["run_again"]] == [
        ("second", "failed", "ready"),
        ("third", "pending", "pending"),
    ]
    assert (plan["disposition"], plan["approvals"], plan["release_changed"]) == ("recovery_allowed", [], False)
    assert plan["choices"]["from_step_id"] == "second"
    assert not Operation.objects.exists()
    assert not AuditEvent.objects.filter(action__startswith="run.rerun").exists()
    done = rerun(operator, failed, plan_digest=plan["plan_digest"])
    assert (done.status_code, done.json()["plan_digest"]) == (201, plan["plan_digest"])


def test_a_viewer_may_look_at_the_plan_and_do_no_more(
    failed: Run, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Model §5."""
    viewer = as_person(people["viewer"])
    assert rerun(viewer, failed, dry_run=True).status_code == 200
    refused(rerun(viewer, failed), 403, "permission_denied")


def test_a_world_that_moved_answers_the_new_plan(failed: Run, operator: Api, hand: Hand) -> None:
    """Contract §3: execution names the digest and is refused when the world moved; nothing is changed."""
    plan = rerun(operator, failed, dry_run=True).json()
    operator.post(f"/v1/stages/{stages_of(failed)[1].id}/retry", {"reason": "meanwhile"})
    hand.report(hand.take())
    hand.report(hand.take(), "failed", **FAILED)
    told = refused(rerun(operator, failed, plan_digest=plan["plan_digest"]), 409, "plan_changed")
    assert [line["stage"] for line in told["plan"]["run_again"]] == ["third"]
    assert told["plan_digest"] != plan["plan_digest"]


# dispositions


def test_internal_state_alone_is_admitted(failed: Run, operator: Api) -> None:
    """O43."""
    effect_of(failed, "second", effect_class="internal_state", key="")
    assert rerun(operator, failed).json()["disposition"] == "recovery_allowed"


def test_a_committed_effect_is_reviewed_until_all_three_are_there(failed: Run, operator: Api, approver: Api) -> None:
    """O27, O28, O44, O45: recorded before anything is done, and reconciled once evidence and finding match."""
    effect = effect_of(failed, "second")
    told = refused(rerun(operator, failed), 409, "operator_review_required")
    assert told["disposition"] == "operator_review_required"
    assert {reason["code"] for reason in told["reasons"]} == {"evidence_missing", "reconciliation_missing"}
    assert Operation.objects.get(id=told["operation_id"]).state == "review_required"
    assert AuditEvent.objects.get(action="execution.recovery_disposition").data["disposition"] == told["disposition"]
    clear(effect, approver)
    answer = rerun(operator, failed)
    assert (answer.status_code, answer.json()["disposition"]) == (201, "recovery_allowed_reconciled")


def test_an_effect_of_a_kept_stage_is_not_in_question(failed: Run, operator: Api) -> None:
    """Model §2: it is not repeated. From its own stage it would be."""
    effect_of(failed, "first")
    assert rerun(operator, failed).status_code == 201
    answer = rerun(operator, failed, from_step_id="first")
    assert (answer.status_code, answer.json()["code"]) == (409, "operator_review_required")


def test_what_a_posture_declares_is_in_question_wherever_it_was_done(
    start_run: StartRun, worker: Worker, operator: Api
) -> None:
    """O27, O47: the newest posture by then is judged, also for what its kept stage did."""
    run = start_run("first", "second")
    job = worker.take()
    posture = {"committedSideEffects": [{"class": "external_http", "stepId": "first", "idempotencyKey": "k"}]}
    body = {"executionId": job["executionId"], "state": {}, "recoveryPosture": posture}
    left = worker.post(f"/stages/{job['stageId']}/checkpoints", body)
    assert left.status_code == 201, left.content
    worker.report(job)
    worker.report(worker.take(), "failed", errorCode="BUSINESS_REJECTED")
    refused(rerun(operator, run), 409, "operator_review_required")


def test_contradicting_evidence_denies_for_good(failed: Run, operator: Api, approver: Api) -> None:
    """O46: denied, recorded, and nobody overrides it."""
    effect = effect_of(failed, "second")
    path = f"/v1/executions/{failed.id}/effects/{effect.id}"
    approver.post(f"{path}/reconciliation", {"outcome": "absent", "note": "the provider knows nothing of it"})
    told = refused(rerun(operator, failed, client_request_id=KEY), 409, "recovery_denied")
    operation = Operation.objects.get(id=told["operation_id"])
    assert (operation.state, operation.disposition, operation.target) == ("denied", "recovery_denied", None)
    verdict = AuditEvent.objects.get(action="execution.recovery_disposition")
    assert (verdict.outcome, verdict.data["operation"]) == ("denied", str(operation.id))
    decided = approver.post(f"/v1/approvals/{operation.id}/decision", {"approved": True})
    assert decided.status_code == 404
    refused(rerun(operator, failed, client_request_id=KEY), 409, "recovery_denied")


def test_an_outside_stage_that_never_says_what_it_does_is_reviewed(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """Model §3.9: never repeated blindly."""
    run = start_run({"name": "charge", "effect_mode": "external"})
    hand.report(hand.take(), "failed", **FAILED)
    told = refused(rerun(operator, run), 409, "operator_review_required")
    assert [reason["code"] for reason in told["reasons"]] == ["undeclared_effects"]


# releases


def managed(admin: Person, environment: Environment, *stages: Any, activate: bool = True) -> Any:
    pipeline, _ = catalog.save_pipeline(actor=admin.actor, slug="triage", name="Triage")
    named = [{"handler": "Handler", **({"name": one} if isinstance(one, str) else one)} for one in stages]
    definition = {"slug": "triage", "name": "Triage", "stages": named}
    return releases.register_release(
        actor=admin.actor, pipeline=pipeline, environment=environment, definition=definition, activate=activate
    )[0]


@pytest.fixture
def triage(people: dict[str, Person], environment: Environment, start_run: StartRun, hand: Hand) -> Run:
    """A managed run that failed at its second stage, of three."""
    managed(people["admin"], environment, "load", {"name": "classify", "input": "v1"}, "publish")
    run = start_run(pipeline="triage", input={"ticket": 7})
    hand.report(hand.take(), output="loaded")
    hand.report(hand.take(), "failed", **FAILED)
    return run


def test_it_runs_on_the_release_that_is_active_now(
    triage: Run, operator: Api, hand: Hand, people: dict[str, Person], environment: Environment
) -> None:
    """F36, O26, model §3.1: new input mapping and posture, and the plan shows every difference."""
    changed = {"name": "classify", "input": "v2", "effect_mode": "external", "effect_protocol": "intent"}
    release = managed(people["admin"], environment, "load", changed, "publish", {"name": "tell", "needs": ["publish"]})
    plan = rerun(operator, triage, dry_run=True, flow_slug="triage").json()
    told = {(one["stage"], one["what"]): (one["before"], one["after"]) for one in plan["differences"]}
    assert told[("classify", "input")] == ("v1", "v2")
    assert told[("classify", "effect_mode")] == ("idempotent", "external")
    assert plan["added"] == ["tell"]
    assert (plan["release_changed"], plan["release_id"]) == (True, str(release.id))
    answer = rerun(operator, triage, flow_slug="triage", plan_digest=plan["plan_digest"])
    target = target_of(answer)
    assert (target.release_id, answer.json()["release_changed"]) == (release.id, True)
    job = hand.take()
    assert (job.input, job.stage.effect_mode, job.stage.effect_protocol) == ("v2", "external", "intent")
    view = operator.get(f"/v1/executions/{target.id}").json()
    assert view["inputs"]["ticket"] == 7
    triage.refresh_from_db()
    assert triage.release_id != release.id


def test_a_stage_of_a_fork_is_retried_on_the_forks_own_release(
    triage: Run, operator: Api, hand: Hand, people: dict[str, Person], environment: Environment
) -> None:
    """F60, I12, model §3.1: in place means the fork's pinned release and graph; its source has no part in it."""
    forked_on = managed(people["admin"], environment, "load", {"name": "classify", "input": "v2"}, "publish")
    target = target_of(rerun(operator, triage, flow_slug="triage"))
    hand.report(hand.take(), "failed", **FAILED)
    managed(people["admin"], environment, "load", {"name": "classify", "input": "v3"}, "publish")
    stage = next(one for one in stages_of(target) if one.name == "classify")
    with untouched(triage):
        answer = operator.post(f"/v1/stages/{stage.id}/retry", {"scope": "stage"})
        assert answer.status_code == 200, answer.content
        job = hand.take()
    assert (job.stage.id, job.stage.epoch, job.input) == (stage.id, 2, "v2")
    target.refresh_from_db()
    assert target.release_id == forked_on.id


@pytest.mark.parametrize(
    ("stages", "from_step_id", "lacking"),
    [
        (["classify", "publish"], None, ["load"]),  # kept and gone
        (["load", "publish"], None, ["classify"]),  # X itself
        (["load", "publish"], "classify", ["classify"]),
    ],
)
def test_a_stage_that_the_release_lacks_is_refused_and_never_dropped(
    triage: Run,
    operator: Api,
    people: dict[str, Person],
    environment: Environment,
    stages: list[str],
    from_step_id: str | None,
    lacking: list[str],
) -> None:
    """Model §2 Operation."""
    managed(people["admin"], environment, *stages)
    body = {"from_step_id": from_step_id} if from_step_id else {}
    assert refused(rerun(operator, triage, **body), 409, "definition_changed")["stages"] == lacking


def test_a_kept_stage_that_would_now_wait_for_something_new_is_marked_stale(
    triage: Run, operator: Api, hand: Hand, people: dict[str, Person], environment: Environment
) -> None:
    changed = [
        {"name": "check"},
        {"name": "load", "needs": ["check"]},
        {"name": "classify"},
        {"name": "publish", "needs": ["classify"]},
    ]
    managed(people["admin"], environment, *changed)
    target = target_of(rerun(operator, triage))
    assert [(stage.name, stage.state, stage.stale) for stage in stages_of(target)] == [
        ("check", "ready", False),
        ("load", "completed", True),
        ("classify", "ready", False),
        ("publish", "pending", False),
    ]
    assert hand.finish() == 3


def test_a_failure_that_is_passed_by_no_longer_is_not_kept(
    start_run: StartRun, hand: Hand, operator: Api, people: dict[str, Person], environment: Environment
) -> None:
    managed(people["admin"], environment, {"name": "load", "run_next_if_failed": True}, "classify")
    run = start_run(pipeline="triage", input={})
    hand.report(hand.take(), "failed", **FAILED)
    hand.report(hand.take(), "failed", **FAILED)
    managed(people["admin"], environment, "load", "classify")
    assert refused(rerun(operator, run), 409, "definition_changed")["stages"] == ["load"]


def test_a_later_stage_that_is_gone_is_told_as_removed(
    triage: Run, operator: Api, people: dict[str, Person], environment: Environment
) -> None:
    managed(people["admin"], environment, "load", "classify")
    assert rerun(operator, triage, dry_run=True).json()["removed"] == ["publish"]
    assert states(target_of(rerun(operator, triage))) == ["completed", "ready"]


def test_without_a_release_in_force_nothing_is_forked(triage: Run, operator: Api) -> None:
    execute("UPDATE pipelines_release SET status = 'revoked'")
    refused(rerun(operator, triage), 409, "release_not_active")


def test_an_inline_run_is_forked_on_its_own_release_unless_that_was_revoked(failed: Run, operator: Api) -> None:
    assert target_of(rerun(operator, failed)).release_id == failed.release_id
    execute("UPDATE pipelines_release SET status = 'revoked'")
    answer = rerun(operator, failed)
    assert (answer.status_code, answer.json()["code"]) == (409, "release_not_active")


def test_a_run_of_staging_is_recovered_in_staging(
    start_run: StartRun,
    new_hand: Callable[..., Hand],
    place: Place,
    environments: dict[str, Environment],
    operator: Api,
) -> None:
    """O23, O24: it never lands in another environment."""
    there = replace(place, environment_id=environments["staging"].id, environment_slug="staging")
    run = start_run("first", in_place=there)
    Hand(there, "hand-2", ["Handler"]).finish()
    refused(rerun(operator, run, environment="production"), 409, "recovery_environment_mismatch")
    target = target_of(rerun(operator, run))
    assert target.environment.slug == "staging"


def test_an_application_key_does_not_fork(failed: Run, api: Api, place: Place) -> None:
    """Model §5."""
    refused(rerun(api, failed), 403, "permission_denied")
