"""Every error code of model §6, reached from outside: through commands that give keys, and HTTP (O5, "Failure Modes").

One way for each code, or several where its routes differ in kind. What only pages tell stands in `ON_PAGES`,
so that the table is complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from django.db import transaction
from django.test import Client, override_settings

from pipelines.errors import STATUS
from pipelines.models import Artifact, AuditEvent, Run
from pipelines.sql import query
from recovery import bulk_targets
from tests.cast import Api, unknown_id
from tests.clock import Clock
from tests.contract.house import CHARGE, OUTSIDE, House, printed
from tests.kept import INVOICES, ask, out_of_reach
from tests.stored import flipped, in_database, store

MODEL: dict[int, str] = {
    400: "validation_error client_request_id_invalid",
    401: "unauthorized",
    403: "permission_denied impersonation_rejected self_approval",
    404: "not_found checkpoint_not_found",
    405: "unsupported",
    406: "unsupported",
    415: "unsupported",
    409: "idempotency_conflict recovery_idempotency_conflict execution_state_invalid stage_state_invalid"
    " stale_execution stale_request gate_decision_conflict approval_stale gate_denied needs_reconciliation"
    " budget_exhausted deadline_exceeded attempts_exhausted definition_changed recipient_not_allowed"
    " artifact_immutable artifact_corrupt store_conflict store_quota_exceeded store_closed"
    " recovery_environment_mismatch checkpoint_integrity_invalid"
    " operator_review_required recovery_denied plan_changed release_not_active blackout_active",
    413: "payload_too_large",
    422: "environment_unknown cron_invalid timezone_invalid backfill_window_invalid backfill_too_many_ticks"
    " bulk_too_many_targets"
    " effect_class_unknown effect_key_required",
    429: "rate_limited",
    503: "result_not_confirmed",
}
CODES = {code for codes in MODEL.values() for code in codes.split()}

How = Callable[[House], Any]
WAYS: list[tuple[str, How]] = []


def reaches(code: str) -> Callable[[How], How]:
    def keep(way: How) -> How:
        WAYS.append((code, way))
        return way

    return keep


# 400


@reaches("validation_error")
def a_run_without_stages(house: House) -> Any:
    return house.application.post("/pipelines/idempotent", {"idempotencyKey": "k", "name": "n", "stages": []})


@reaches("validation_error")
def an_unknown_field(house: House) -> Any:
    return house.a("operator").post(f"/v1/executions/{house.start()['id']}/pause", {"force": True})


@reaches("validation_error")
def a_completed_stage_retried_without_a_reason(house: House) -> Any:
    stage_id = (house.start(), house.end("succeeded"))[1]["stageId"]
    return house.a("operator").post(f"/v1/stages/{stage_id}/retry", {"scope": "stage"})


@reaches("client_request_id_invalid")
def a_request_id_in_capitals(house: House) -> Any:
    return house.rerun(house.failed(), client_request_id=str(uuid.uuid4()).upper())


# 401, 403, 404


@reaches("unauthorized")
def nobody(house: House) -> Any:
    return Api({}).post(f"/v1/executions/{house.start()['id']}/cancel")


@reaches("unauthorized")
def a_worker_without_a_session(house: House) -> Any:
    return house.application.post("/jobs/pull", {})


@reaches("permission_denied")
def a_viewer_who_cancels(house: House) -> Any:
    return house.a("viewer").post(f"/v1/executions/{house.start()['id']}/cancel")


@reaches("permission_denied")
def a_person_at_the_runtime_s_door(house: House) -> Any:
    return house.a("admin").get(f"/v1/executions/{house.start()['id']}/checkpoints/latest")


@reaches("impersonation_rejected")
def a_rerun_in_another_s_name(house: House) -> Any:
    return house.rerun(house.failed(), actor_ref="somebody else")


@reaches("self_approval")
def the_one_who_asked_lets_it_go_on(house: House) -> Any:
    kept = house.rerun(house.charged(), "admin").json()
    return house.a("admin").post(f"/v1/approvals/{kept['operation_id']}/decision", {"approved": True})


@reaches("not_found")
def an_unknown_run(house: House) -> Any:
    return house.rerun(unknown_id())


@reaches("not_found")
def another_workspace_s_run(house: House) -> Any:
    run_id = house.start()["id"]
    token = printed("issue_token", "--user", "olga", "--workspace", "globex", "--role", "admin")
    return Api({"Authorization": f"Bearer {token}"}).post(f"/v1/executions/{run_id}/cancel")


@reaches("checkpoint_not_found")
def a_step_that_no_checkpoint_knows(house: House) -> Any:
    return house.rerun(house.failed(), from_step_id="no such step")


# 405, 406, 415


@reaches("unsupported")
def a_method_that_is_not_offered(house: House) -> Any:
    return Client().put(f"/v1/executions/{house.start()['id']}/rerun", b"{}", content_type="application/json")


@reaches("unsupported")
def an_answer_in_another_form(house: House) -> Any:
    return house.a("viewer").get("/v1/executions", Accept="text/html")


@reaches("unsupported")
def a_body_in_another_form(house: House) -> Any:
    headers = {"X-API-Key": house.key}
    return Client().post("/pipelines/idempotent", b"a=b", content_type="text/plain", headers=headers)


# 409


@reaches("idempotency_conflict")
def one_key_for_two_creations(house: House) -> Any:
    house.start(idempotencyKey="invoice-42")
    body = {"idempotencyKey": "invoice-42", "name": "n", "stages": [{"stageName": "z", "stageHandlerName": "Handler"}]}
    return house.application.post("/pipelines/idempotent", body)


@reaches("recovery_idempotency_conflict")
def one_key_for_two_reruns(house: House) -> Any:
    run_id, key = house.failed({}, {}), str(uuid.uuid4())
    assert house.rerun(run_id, client_request_id=key).status_code == 201
    return house.rerun(run_id, client_request_id=key, from_step_id="b")


@reaches("recovery_idempotency_conflict")
def one_key_for_two_retries(house: House) -> Any:
    stage_id = (house.start(), house.end())[1]["stageId"]
    operator = house.a("operator")
    first = operator.post(f"/v1/stages/{stage_id}/retry", {"scope": "stage"}, Idempotency_Key="again")
    assert first.status_code == 200, first.content
    body = {"scope": "stage_and_downstream"}
    return operator.post(f"/v1/stages/{stage_id}/retry", body, Idempotency_Key="again")


@reaches("recovery_idempotency_conflict")
def one_key_for_two_skips(house: House) -> Any:
    run, operator = house.start({}, {}), house.a("operator")
    first, second = (stage["id"] for stage in run["stages"])
    body = {"reason": "not today"}
    assert operator.post(f"/v1/stages/{first}/skip", body, Idempotency_Key="again").status_code == 200
    return operator.post(f"/v1/stages/{second}/skip", body, Idempotency_Key="again")


@reaches("execution_state_invalid")
def a_rerun_of_what_still_runs(house: House) -> Any:
    return house.rerun(house.start()["id"])


@reaches("execution_state_invalid")
def a_resume_of_what_is_not_paused(house: House) -> Any:
    return house.a("operator").post(f"/v1/executions/{house.start()['id']}/resume")


@reaches("execution_state_invalid")
def a_retry_in_a_cancelled_run(house: House) -> Any:
    run = house.start()
    house.application.post(f"/pipelines/{run['id']}/cancel")
    return house.a("operator").post(f"/v1/stages/{run['stages'][0]['id']}/retry", {"scope": "stage"})


@reaches("stage_state_invalid")
def a_retry_of_what_has_not_run(house: House) -> Any:
    stage_id = house.start()["stages"][0]["id"]
    return house.a("operator").post(f"/v1/stages/{stage_id}/retry", {"scope": "stage"})


@reaches("stage_state_invalid")
def an_effect_that_goes_back(house: House) -> Any:
    house.start(OUTSIDE)
    job = house.worker.take()
    for state in ("committed", "declared"):
        body = {"executionId": job["executionId"], "effects": [{**CHARGE, "state": state}]}
        answer = house.worker.post(f"/stages/{job['stageId']}/effects", body)
    return answer


@reaches("stale_execution")
def a_result_after_the_cancel(house: House) -> Any:
    run = house.start()
    job = house.worker.take()
    house.application.post(f"/pipelines/{run['id']}/cancel")
    return house.worker.report(job)


@reaches("stale_execution")
def an_intent_after_the_lease(house: House) -> Any:
    house.start(OUTSIDE)
    job = house.worker.take()
    house.clock.advance(61)
    body = {"executionId": job["executionId"], "effects": [{**CHARGE, "state": "declared"}]}
    return house.worker.post(f"/stages/{job['stageId']}/effects", body)


@reaches("stale_request")
def a_rotation_that_somebody_else_was_faster_with(house: House) -> Any:
    house.start()  # its first checkpoint makes the first key
    admin = house.a("admin")
    (active,) = admin.get("/v1/signing-keys").json()["results"]
    answers = [admin.post("/v1/signing-keys/rotate", {"replaces": active["id"]}) for _ in range(2)]
    assert answers[0].status_code == 201, answers[0].content
    return answers[1]


@reaches("gate_decision_conflict")
def a_gate_decided_twice_otherwise(house: House) -> Any:
    stage = house.at_a_gate()
    assert house.decide(stage, approved=True).status_code == 200
    return house.decide(stage, approved=False, reason="on second thought")


@reaches("gate_decision_conflict")
def an_operation_decided_twice_otherwise(house: House) -> Any:
    approver = house.a("approver")  # before it is asked for
    kept = house.rerun(house.charged()).json()
    path = f"/v1/approvals/{kept['operation_id']}/decision"
    assert approver.post(path, {"approved": False, "reason": "no"}).status_code == 200
    return approver.post(path, {"approved": True})


@reaches("approval_stale")
def a_gate_that_nobody_decided_in_time(house: House) -> Any:
    stage = house.at_a_gate(expiresInSeconds=60)
    house.clock.advance(61)
    return house.decide(stage, approved=True)


@reaches("gate_denied")
def a_retry_past_a_denial(house: House) -> Any:
    stage = house.at_a_gate()
    house.decide(stage, approved=False, reason="no")
    return house.a("operator").post(f"/v1/stages/{stage['id']}/retry", {"scope": "stage"})


@reaches("gate_denied")
def a_skip_past_a_denial(house: House) -> Any:
    stage = house.at_a_gate()
    house.decide(stage, approved=False, reason="no")
    return house.a("operator").post(f"/v1/stages/{stage['id']}/skip", {"reason": "never mind"})


@reaches("needs_reconciliation")
def a_retry_of_what_nobody_knows(house: House) -> Any:
    house.start(OUTSIDE)
    stage_id = house.end(effects=[{**CHARGE, "state": "declared"}])["stageId"]
    return house.a("operator").post(f"/v1/stages/{stage_id}/retry", {"scope": "stage", "reason": "try"})


@reaches("needs_reconciliation")
def a_stage_reconciled_before_its_effects(house: House) -> Any:
    house.start(OUTSIDE)
    stage_id = house.end(effects=[{**CHARGE, "state": "unknown"}])["stageId"]
    return house.a("approver").post(f"/v1/stages/{stage_id}/reconcile", {"outcome": "absent", "note": "looked"})


@reaches("deadline_exceeded")
def an_approval_after_the_deadline(house: House) -> Any:
    run = house.start({"approval": {"when": "before"}}, deadlineSeconds=60)
    house.clock.advance(61)
    return house.decide(run["stages"][0], approved=True)


@reaches("deadline_exceeded")
def a_retry_after_the_deadline(house: House) -> Any:
    run = house.start(deadlineSeconds=60)
    house.end()
    house.clock.advance(61)
    return house.a("operator").post(f"/v1/stages/{run['stages'][0]['id']}/retry", {"scope": "stage"})


@reaches("attempts_exhausted")
def a_retry_of_a_stage_that_has_no_attempt_left(house: House) -> Any:
    house.start(limits={"attemptsPerStage": 1})
    job = house.end()
    return house.a("operator").post(f"/v1/stages/{job['stageId']}/retry", {"scope": "stage", "reason": "once more"})


@reaches("budget_exhausted")
def a_retry_for_which_a_run_has_no_output_left(house: House) -> Any:
    house.start({"options": {"maxOutputBytes": 100}}, limits={"totalOutputBytes": 150})
    job = house.end()
    return house.a("operator").post(f"/v1/stages/{job['stageId']}/retry", {"scope": "stage", "reason": "once more"})


@reaches("artifact_immutable")
def other_bytes_under_the_name_of_an_artifact(house: House) -> Any:
    house.start()
    job = house.worker.take()
    assert store(house.worker, job).status_code == 201
    return store(house.worker, job, data=b"others")


@reaches("artifact_corrupt")
def an_artifact_of_which_a_bit_has_flipped(house: House) -> Any:
    house.start()
    kept = store(house.worker, house.worker.take()).json()["artifactId"]
    in_database().change(Artifact.objects.get(), flipped)
    return house.worker.get(f"/artifacts/{kept}")


@reaches("store_conflict")
def another_row_under_the_key_of_one_that_is_kept(house: House) -> Any:
    house.start()
    job = house.worker.take()
    assert ask(house.worker, job, "insert", rows=INVOICES, key=["invoice_id"]).status_code == 200
    return ask(house.worker, job, "insert", rows=[{"invoice_id": 1}])


@reaches("store_quota_exceeded")
def one_row_more_than_a_table_may_have(house: House) -> Any:
    house.start()
    with override_settings(RECOURSE_STORE_TABLE_ROWS=1):
        return ask(house.worker, house.worker.take(), "insert", rows=INVOICES)


@reaches("store_closed")
def a_row_for_a_store_whose_role_is_out_of_reach(house: House) -> Any:
    house.start()
    job = house.worker.take()
    with out_of_reach():
        return ask(house.worker, job, "insert", rows=INVOICES)


@reaches("recipient_not_allowed")
def an_attempt_taken_by_an_adapter_that_sends_elsewhere(house: House) -> Any:
    recipient = {"organisation": "Model House", "service": "large"}
    stage = {"stageName": "a", "stageHandlerName": "Handler", "recipients": [recipient]}
    house.application.post("/pipelines/idempotent", {"idempotencyKey": "k", "name": "n", "stages": [stage]})
    told = {"workerName": "w", "supportedHandlers": ["Handler"], "recipients": [{"handler": "Handler", **recipient}]}
    session = house.application.post("/workers/bootstrap", told).json()["sessionToken"]
    pulled = house.application.post("/jobs/pull", {}, X_Worker_Session=session)
    (job,) = pulled.json()["jobs"]
    body = {"executionId": job["executionId"]}
    return house.worker.post(f"/stages/{job['stageId']}/lease/acquire", body)


@reaches("definition_changed")
def a_rerun_of_a_step_that_the_release_has_no_more(house: House) -> Any:
    manager = house.a("release_manager")
    assert manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"}).status_code == 201
    for names in (("load", "charge"), ("load", "thank")):
        stages = [{"name": name, "handler": "Handler"} for name in names]
        definition = {"slug": "nightly", "name": "Nightly", "stages": stages}
        body = {"pipeline": "nightly", "environment": "development", "definition": definition, "activate": True}
        assert manager.post("/v1/releases", body).status_code == 201
        if "charge" in names:
            run = house.create({"pipeline": "nightly", "input": {}})
            house.end("succeeded")
            house.end()
    return house.rerun(run["id"], from_step_id="charge")


@reaches("recovery_environment_mismatch")
def a_rerun_elsewhere(house: House) -> Any:
    return house.rerun(house.failed(), environment="production")


@reaches("recovery_environment_mismatch")
def a_run_in_an_environment_that_is_not_the_key_s(house: House) -> Any:
    stage = {"stageName": "a", "stageHandlerName": "Handler"}
    body = {"idempotencyKey": "k", "name": "n", "stages": [stage], "environment": "production"}
    return house.application.post("/pipelines/idempotent", body)


@reaches("checkpoint_integrity_invalid")
def a_rerun_from_what_a_revoked_key_has_signed(house: House) -> Any:
    run_id, admin = house.failed(), house.a("admin")
    (key,) = admin.get("/v1/signing-keys").json()["results"]
    assert admin.post(f"/v1/signing-keys/{key['id']}/revoke", {"reason": "lost"}).status_code == 200
    return house.rerun(run_id)


@reaches("operator_review_required")
def a_rerun_of_what_has_acted_outside(house: House) -> Any:
    return house.rerun(house.charged())


@reaches("operator_review_required")
def a_retry_of_what_may_have_acted_unseen(house: House) -> Any:
    stage_id = (house.start({"effectMode": "external"}), house.end())[1]["stageId"]
    return house.a("operator").post(f"/v1/stages/{stage_id}/retry", {"scope": "stage"})


@reaches("recovery_denied")
def a_rerun_against_what_was_found_out(house: House) -> Any:
    run_id = house.charged()
    body = {"outcome": "absent", "note": "the provider knows of none"}
    path = f"/v1/executions/{run_id}/effects/{house.effect(run_id)}/reconciliation"
    assert house.a("approver").post(path, body).status_code == 201
    return house.rerun(run_id)


@reaches("plan_changed")
def a_retry_by_a_plan_of_yesterday(house: House) -> Any:
    run = house.start({}, {})
    house.end()
    operator, path = house.a("operator"), f"/v1/stages/{run['stages'][0]['id']}/retry"
    planned = operator.post(path, {"scope": "stage_and_downstream", "dry_run": True}).json()
    operator.post(f"/v1/stages/{run['stages'][1]['id']}/skip", {"reason": "not today"})
    return operator.post(path, {"scope": "stage_and_downstream", "plan_digest": planned["plan_digest"]})


@reaches("release_not_active")
def a_run_of_a_pipeline_with_nothing_in_force(house: House) -> Any:
    house.a("release_manager").post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"})
    body = {"idempotencyKey": "k", "pipeline": "nightly", "input": {}}
    return house.application.post("/pipelines/idempotent", body)


@reaches("blackout_active")
def a_rerun_in_a_freeze(house: House) -> Any:
    run_id = house.failed()
    _freeze(house)
    return house.rerun(run_id)


@reaches("blackout_active")
def a_retry_in_a_blackout_of_its_environment(house: House) -> Any:
    house.start()
    stage_id = house.end()["stageId"]
    told = {"name": "a move", "kind": "period", "starts_at": "2020-01-01T00:00:00Z", "environment": "development"}
    assert house.a("release_manager").post("/v1/blackouts", told).status_code == 201
    return house.a("operator").post(f"/v1/stages/{stage_id}/retry", {"scope": "stage"})


@reaches("blackout_active")
def an_approval_in_a_freeze_of_what_was_asked_before(house: House) -> Any:
    asked = _asked(house)
    _freeze(house)
    return _decide(house, asked)


@reaches("stale_request")
def a_freeze_changed_instead_of_lifted(house: House) -> Any:
    return house.a("release_manager").patch(f"/v1/blackouts/{_freeze(house)}", {"enabled": False})


def _freeze(house: House) -> str:
    answer = house.a("release_manager").post("/v1/freeze", {"reason": "an incident"})
    assert answer.status_code == 201, answer.content
    frozen: str = answer.json()["id"]
    return frozen


# 413, 422


@reaches("environment_unknown")
def a_freeze_of_no_rung_of_the_ladder(house: House) -> Any:
    return house.a("release_manager").post("/v1/freeze", {"reason": "r", "environment": "the-moon"})


@reaches("timezone_invalid")
def a_blackout_in_no_zone(house: House) -> Any:
    told = {"name": "n", "kind": "dates", "dates": ["2026-12-24"], "timezone": "Mars/Olympus_Mons"}
    return house.a("release_manager").post("/v1/blackouts", told)


@reaches("payload_too_large")
def a_body_above_the_limit(house: House) -> Any:
    return house.application.post("/pipelines/idempotent", {"name": "x" * 1024 * 1024})


@reaches("environment_unknown")
def a_replay_in_no_rung_of_the_ladder(house: House) -> Any:
    return house.a("operator").post(f"/v1/executions/{house.failed()}/replay", {"environment": "the-moon"})


@reaches("environment_unknown")
def a_trigger_in_no_rung_of_the_ladder(house: House) -> Any:
    return _trigger(house, environment="the-moon")


@reaches("cron_invalid")
def a_trigger_on_the_thirtieth_of_february(house: House) -> Any:
    return _trigger(house, cron="0 8 30 2 *")


@reaches("timezone_invalid")
def a_trigger_in_no_zone(house: House) -> Any:
    return _trigger(house, timezone="Mars/Olympus_Mons")


def _trigger(house: House, **changes: str) -> Any:
    manager = house.a("release_manager")
    manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"})
    place = {"pipeline": "nightly", "environment": "development", "application": "billing"}
    return manager.post("/v1/triggers", {**place, "cron": "0 8 * * *", "timezone": "Europe/Berlin", **changes})


@reaches("backfill_window_invalid")
def a_backfill_whose_window_ends_before_it_begins(house: House) -> Any:
    return _backfill(house, from_time="2026-05-23T08:00:00Z")


@reaches("backfill_window_invalid")
def a_backfill_of_what_has_not_come_yet(house: House) -> Any:
    return _backfill(house, to_time="2199-01-01T00:00:00Z")


@reaches("backfill_too_many_ticks")
def a_backfill_of_more_minutes_than_were_allowed(house: House) -> Any:
    return _backfill(house, cron="* * * * *")


def _backfill(house: House, **changes: str) -> Any:
    trigger = _trigger(house)
    assert trigger.status_code == 201, trigger.content
    window = {"from_time": "2026-05-20T08:00:00Z", "to_time": "2026-05-22T08:00:00Z"}
    body = {"trigger_binding_id": trigger.json()["id"], **window, **changes}
    return house.a("operator").post("/v1/triggers/backfill", body)


@reaches("bulk_too_many_targets")
def a_bulk_of_more_than_one_takes(house: House) -> Any:
    for _ in range(2):
        house.start()
    with patch.object(bulk_targets, "MOST_TARGETS", 1):
        body = {"kind": "cancel", "filter": {"status": "queued"}, "reason": "too many"}
        return house.a("operator").post("/v1/bulk-operations", body)


@reaches("effect_class_unknown")
def an_effect_of_no_class(house: House) -> Any:
    return _tell(house, {**CHARGE, "class": "telepathy", "state": "declared"})


@reaches("effect_key_required")
def an_effect_that_the_outside_cannot_recognise(house: House) -> Any:
    return _tell(house, {"class": "external_http", "stepId": "charge", "state": "committed"})


def _tell(house: House, effect: dict[str, Any]) -> Any:
    house.start(OUTSIDE)
    job = house.worker.take()
    return house.worker.post(
        f"/stages/{job['stageId']}/effects", {"executionId": job["executionId"], "effects": [effect]}
    )


# what waits for others: gates and requests


def _asked(house: House, **rule: Any) -> str:
    """A retry that waits for others by a rule, by its id; who may decide it has been there before."""
    for role in ("approver", "release_manager"):
        house.a(role)
    told = {"name": "others agree", "kinds": ["retry"], "role": "approver", **rule}
    assert house.a("admin").post("/v1/approval-rules", told).status_code == 201
    house.start(deadlineSeconds=3600)
    kept = house.a("admin").post(f"/v1/stages/{house.end()['stageId']}/retry", {"reason": "again"})
    assert kept.status_code == 202, kept.content
    house.clock.advance(1)
    asked: str = kept.json()["operation_id"]
    return asked


def _decide(house: House, item: str, role: str = "approver", **body: Any) -> Any:
    return house.a(role).post(f"/v1/approvals/{item}/decision", {"approved": True, **body})


@reaches("validation_error")
def a_request_rejected_without_a_reason(house: House) -> Any:
    return _decide(house, _asked(house), approved=False)


@reaches("permission_denied")
def an_approver_of_a_lower_role_than_the_rule_wants(house: House) -> Any:
    return _decide(house, _asked(house, role="release_manager"))


@reaches("permission_denied")
def an_approver_who_became_one_since(house: House) -> Any:
    asked = _asked(house)
    return house.a("approver", "newcomer").post(f"/v1/approvals/{asked}/decision", {"approved": True})


@reaches("permission_denied")
def a_withdrawal_by_another(house: House) -> Any:
    return house.a("approver").post(f"/v1/approvals/{_asked(house)}/withdraw", {})


@reaches("self_approval")
def the_one_who_asked_by_a_rule_that_binds_them_too(house: House) -> Any:
    return _decide(house, _asked(house), "admin")


@reaches("not_found")
def a_decision_on_nothing(house: House) -> Any:
    return _decide(house, unknown_id())


@reaches("gate_decision_conflict")
def a_request_approved_and_then_rejected_by_one_person(house: House) -> Any:
    asked = _asked(house, count=2)
    assert _decide(house, asked).json()["have"] == 1
    return _decide(house, asked, approved=False, reason="on second thought")


@reaches("approval_stale")
def a_request_that_nobody_decided_in_time(house: House) -> Any:
    asked = _asked(house, expires_in=60)
    house.clock.advance(61)
    return _decide(house, asked)


@reaches("approval_stale")
def a_request_that_was_taken_back(house: House) -> Any:
    asked = _asked(house)
    assert house.a("admin").post(f"/v1/approvals/{asked}/withdraw", {}).status_code == 200
    return _decide(house, asked)


@reaches("deadline_exceeded")
def a_request_about_a_run_past_its_deadline(house: House) -> Any:
    asked = _asked(house)
    house.clock.advance(3600)
    return _decide(house, asked)


@reaches("execution_state_invalid")
def a_gate_of_a_cancelled_run(house: House) -> Any:
    stage = house.at_a_gate()
    assert house.application.post(f"/pipelines/{stage['runId']}/cancel").status_code == 200
    return house.decide(stage, approved=True)


@reaches("plan_changed")
def a_request_agreed_to_by_another_plan(house: House) -> Any:
    return _decide(house, _asked(house), plan_digest="0" * 64)


@reaches("stage_state_invalid")
def a_gate_taken_back(house: House) -> Any:
    stage = house.at_a_gate()
    (gate,) = house.a("approver").get("/v1/approvals").json()["results"]
    assert gate["stage_id"] == stage["id"]
    return house.a("admin").post(f"/v1/approvals/{gate['id']}/withdraw", {})


@pytest.mark.parametrize(("code", "way"), [pytest.param(*one, id=one[1].__name__) for one in WAYS])
def test_every_code_is_reached_with_its_status_and_says_what_it_must(code: str, way: How, house: House) -> None:
    """O5 (failure modes), model §6, F145: RFC 9457's fields and the code, for input the fields that are wrong; and of
    every refused change by somebody known one event in the audit, besides that of the verdict."""
    answer = way(house)

    assert answer.status_code in [status for status, codes in MODEL.items() if code in codes.split()], answer.content
    _is_problem(answer, code)
    assert "errors" in answer.json() or code not in ("validation_error", "client_request_id_invalid")
    asked = answer.wsgi_request
    if asked.path.startswith("/v1/") and asked.method != "GET" and answer.status_code not in (401, 405):
        refusals = AuditEvent.objects.filter(code=code, outcome__in=("denied", "failed"))
        assert refusals.exclude(action="execution.recovery_disposition").count() == 1


@pytest.mark.parametrize("status", [405, 406, 415])
def test_what_is_not_supported_has_the_status_that_http_has_for_it(status: int, house: House) -> None:
    ways = {405: a_method_that_is_not_offered, 406: an_answer_in_another_form, 415: a_body_in_another_form}
    assert ways[status](house).status_code == status


@pytest.mark.django_db(transaction=True)
def test_a_result_that_could_not_be_stored_is_not_confirmed(server: str, clock: Clock) -> None:
    """`result_not_confirmed`, at a started console whose database breaks off the write (P54, P56)."""
    house = House(clock)
    run = house.start()
    job = house.worker.take()
    body = {"executionId": job["executionId"], "attempt": job["attempt"], "status": "succeeded", "output": 1}
    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        Run.objects.select_for_update().get(id=run["id"])
        sent = threads.submit(
            httpx.post, f"{server}/stages/{job['stageId']}/result", json=body, headers=house.worker.headers, timeout=30
        )
        while not sent.done() and not _broken_off():
            Event().wait(0.01)
        answer = sent.result(30)
    assert answer.status_code == 503
    _is_problem(answer, "result_not_confirmed")
    assert house.worker.report(job, output=1).status_code == 202, "the same result again is taken"


def _broken_off() -> bool:
    query("SELECT pg_stat_clear_snapshot()::text")  # a transaction sees the others as it saw them first
    return bool(
        query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
        )
    )


def _is_problem(answer: Any, code: str) -> None:
    assert answer.headers["Content-Type"] == "application/problem+json"
    told = answer.json()
    assert told["code"] == code, told
    assert told["status"] == answer.status_code
    assert {"type", "title", "status", "detail", "code"} <= set(told)
    assert all(isinstance(told[name], str) and told[name] for name in ("type", "title", "detail"))
    for messages in told.get("errors", {}).values():
        assert messages
        assert all(isinstance(message, str) for message in messages)


# Told on pages alone: of log-ins and of drafts of bulks there may be too many; the APIs have no rates.
ON_PAGES = {"rate_limited"}


def test_the_table_is_complete_and_the_model_s() -> None:
    """O5: every code of model §6 with its status; each is reached above, or named as one that pages tell."""
    reached = {code for code, _ in WAYS} | {"result_not_confirmed"}
    assert reached | ON_PAGES == CODES
    assert not reached & ON_PAGES
    told = {code: status for status, codes in MODEL.items() for code in codes.split() if code != "unsupported"}
    assert {code: status for code, status in STATUS.items() if code != "unsupported"} == told
