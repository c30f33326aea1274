"""The tables of source 002 that got lost, as the model gives them back: when to use what, who may, and the verdicts.

Each row is one test, through commands and HTTP alone. The fourth table, the failure modes, is `test_failure_modes`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from django.db import IntegrityError, transaction

from pipelines.models import AuditEvent, Run
from pipelines.sql import execute
from tests.contract.house import CHARGE, OUTSIDE, House, printed

ROLES = ("viewer", "operator", "approver", "release_manager", "admin")
Row = Callable[[House], None]


# When to use each operation


def pause(house: House) -> None:
    """Nothing more is to begin, and what runs may finish."""
    run = house.start({}, {})
    job = house.worker.take()
    told = house.a("operator").post(f"/v1/executions/{run['id']}/pause")
    assert told.json() == {"execution_id": run["id"], "status": "pause_signal_sent"}
    assert _status(house, run["id"]) == "pausing"
    assert house.worker.report(job).status_code == 202
    assert _status(house, run["id"]) == "paused"
    assert house.worker.pull() == []


def resume(house: House) -> None:
    """The cause of the pause is gone: the run goes on where it stood."""
    run = house.start({}, {})
    house.end("succeeded")
    operator = house.a("operator")
    operator.post(f"/v1/executions/{run['id']}/pause")
    told = operator.post(f"/v1/executions/{run['id']}/resume")
    assert told.json() == {"execution_id": run["id"], "status": "resume_signal_sent"}
    assert house.worker.take()["stageName"] == "b"


def snapshot(house: House) -> None:
    """To see where a run stands, and whether a rerun would start where one expects it."""
    run = house.start({}, {})
    house.end("succeeded")
    told = house.a("viewer").get(f"/v1/executions/{run['id']}/snapshot").json()
    assert (told["previous_step_id"], told["current_step_id"], told["integrity"]) == ("a", "b", "valid")


def rerun(house: House) -> None:
    """A checkpoint is known to be good: what was done is kept, the rest runs in a run of its own."""
    run_id = _failed_at_b(house)
    fork = house.rerun(run_id)
    assert fork.status_code == 201
    assert house.worker.take()["stageName"] == "b"
    assert _status(house, run_id) == "failed"


def replay(house: House) -> None:
    """To reproduce the whole of it under control, or because no checkpoint is good enough."""
    run_id = _failed_at_b(house)
    assert house.a("operator").post(f"/v1/executions/{run_id}/replay").status_code == 201
    assert house.worker.take()["stageName"] == "a"
    assert _status(house, run_id) == "failed"


@pytest.mark.parametrize("row", [pause, resume, snapshot, rerun, replay], ids=lambda row: row.__name__)
def test_each_operation_does_what_it_is_for(row: Row, house: House) -> None:
    """O5 (when to use each operation), O9, O10, O13, O17, O37; to fill missed windows comes with the triggers."""
    row(house)


def _failed_at_b(house: House) -> str:
    run_id: str = house.start({}, {})["id"]
    house.end("succeeded")
    house.end()
    return run_id


def _status(house: House, run_id: str) -> str:
    found: str = house.application.get(f"/pipelines/{run_id}").json()["status"]
    return found


# Permissions: what each role is answered, beside the model's table of who may.

NOBODY: set[str] = set()
EVERYBODY = set(ROLES)
OPERATORS = {"operator", "release_manager", "admin"}
DECIDERS = {"approver", "release_manager", "admin"}
RELEASERS = {"release_manager", "admin"}

Ask = Callable[[House, str], Any]


def view(house: House, role: str) -> Any:
    return house.a(role).get(f"/v1/executions/{house.start()['id']}/snapshot")


def look_at_a_plan(house: House, role: str) -> Any:
    return house.rerun(house.failed(), role, dry_run=True)


def pause_a_run(house: House, role: str) -> Any:
    return house.a(role).post(f"/v1/executions/{house.start()['id']}/pause")


def resume_a_run(house: House, role: str) -> Any:
    run_id = house.start()["id"]
    house.a("admin").post(f"/v1/executions/{run_id}/pause")
    return house.a(role).post(f"/v1/executions/{run_id}/resume")


def cancel_a_run(house: House, role: str) -> Any:
    return house.a(role).post(f"/v1/executions/{house.start()['id']}/cancel")


def retry_a_stage(house: House, role: str) -> Any:
    stage_id = (house.start(), house.end())[1]["stageId"]
    return house.a(role).post(f"/v1/stages/{stage_id}/retry", {"scope": "stage"})


def skip_a_stage(house: House, role: str) -> Any:
    stage_id = house.start()["stages"][0]["id"]
    return house.a(role).post(f"/v1/stages/{stage_id}/skip", {"reason": "not today"})


def rerun_a_run(house: House, role: str) -> Any:
    return house.rerun(house.failed(), role)


def replay_a_run(house: House, role: str) -> Any:
    return house.a(role).post(f"/v1/executions/{house.failed()}/replay")


def replay_in_production(house: House, role: str) -> Any:
    run_id = _failed_in_production(house)
    answer = house.a(role).post(f"/v1/executions/{run_id}/replay")
    if answer.status_code == 202:
        assert answer.json()["status"] == "awaiting_approval"
        assert Run.objects.filter(recovered_from=run_id).count() == 0
    return answer


def resolve_a_review(house: House, role: str) -> Any:
    decider = house.a(role)  # who gets the role after it was asked for decides nothing of it
    asked = house.a("operator", "oscar").post(f"/v1/executions/{house.charged()}/rerun").json()
    return decider.post(f"/v1/approvals/{asked['operation_id']}/decision", {"approved": True})


def decide_an_approval(house: House, role: str) -> Any:
    decider = house.a(role)  # who gets the role after it was asked for decides nothing of it
    asked = house.a("operator", "oscar").post(f"/v1/executions/{_failed_in_production(house)}/replay").json()
    return decider.post(f"/v1/approvals/{asked['operation_id']}/decision", {"approved": True})


def decide_a_gate(house: House, role: str) -> Any:
    decider = house.a(role)  # before it opens
    stage = house.at_a_gate()
    waiting = house.a("viewer").get("/v1/approvals").json()["results"]
    (gate,) = [one for one in waiting if one["stage_id"] == stage["id"]]
    answer = decider.post(f"/v1/approvals/{gate['id']}/decision", {"approved": True})
    if answer.status_code != 200:
        assert house.decide(stage, approved=True).status_code == 200, "its own application may"
    return answer


def keep_an_approval_rule(house: House, role: str) -> Any:
    return house.a(role).post("/v1/approval-rules", {"name": role, "kinds": ["discard"], "role": "admin"})


def reconcile_an_effect(house: House, role: str) -> Any:
    run_id = house.charged()
    body = {"outcome": "committed", "note": "seen at the provider"}
    return house.a(role).post(f"/v1/executions/{run_id}/effects/{house.effect(run_id)}/reconciliation", body)


def use_the_runtime_s_routes(house: House, role: str) -> Any:
    return house.a(role).get(f"/v1/executions/{house.start()['id']}/checkpoints/latest")


def rotate_the_signing_keys(house: House, role: str) -> Any:
    return house.a(role).post("/v1/signing-keys/rotate")


PERMISSIONS: list[tuple[Ask, set[str], int]] = [
    (view, EVERYBODY, 200),
    (look_at_a_plan, EVERYBODY, 200),
    (pause_a_run, OPERATORS, 200),
    (resume_a_run, OPERATORS, 200),
    (cancel_a_run, OPERATORS, 200),
    (retry_a_stage, OPERATORS, 200),
    (skip_a_stage, OPERATORS, 200),
    (rerun_a_run, OPERATORS, 201),
    (replay_a_run, OPERATORS, 201),
    (replay_in_production, RELEASERS, 201),
    (resolve_a_review, DECIDERS, 200),
    (decide_an_approval, DECIDERS, 200),
    (decide_a_gate, DECIDERS, 200),
    (keep_an_approval_rule, {"admin"}, 201),
    (reconcile_an_effect, DECIDERS, 201),
    (use_the_runtime_s_routes, NOBODY, 200),
    (rotate_the_signing_keys, {"admin"}, 201),
]
ON_APPROVAL = {(replay_in_production, "operator")}


@pytest.mark.parametrize(("ask", "allowed", "status"), PERMISSIONS, ids=[row[0].__name__ for row in PERMISSIONS])
def test_each_role_is_answered_as_the_table_says(ask: Ask, allowed: set[str], status: int, house: House) -> None:
    """O3, O5 (permissions), O6, model §5: done for those who may, 403 with the missing right for all others."""
    for role in ROLES:
        answer = ask(house, role)
        if role in allowed:
            assert answer.status_code == status, (role, answer.content)
        elif (ask, role) in ON_APPROVAL:
            assert answer.status_code == 202, answer.content
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), role
            assert "may not" in answer.json()["detail"]


def _failed_in_production(house: House) -> str:
    there = House(house.clock, environment="production")
    return there.failed()


# The closed set of dispositions


def nothing_was_done_outside(house: House) -> str:
    return house.failed()


def only_internal_state_was_written(house: House) -> str:
    return house.failed(OUTSIDE, effects=[{"class": "internal_state", "state": "committed"}])


def what_was_done_is_keyed_sealed_and_reconciled(house: House) -> str:
    run_id = house.charged()
    _evidence(house, run_id, sealed=True)
    _reconciliation(house, run_id, "committed")
    return run_id


def nothing_is_known_of_what_was_done(house: House) -> str:
    return house.charged()


def the_evidence_is_not_sealed(house: House) -> str:
    run_id = house.charged()
    _evidence(house, run_id, sealed=False)
    _reconciliation(house, run_id, "committed")
    return run_id


def nobody_has_reconciled_it(house: House) -> str:
    run_id = house.charged()
    _evidence(house, run_id, sealed=True)
    return run_id


def nobody_knows_whether_it_was_done(house: House) -> str:
    run_id = house.start(OUTSIDE)["id"]
    house.end(effects=[{**CHARGE, "state": "unknown"}])
    house.a("operator").post(f"/v1/executions/{run_id}/cancel")
    return str(run_id)


def the_evidence_contradicts_it(house: House) -> str:
    run_id = house.charged()
    _evidence(house, run_id, sealed=True, outcome="absent")
    return run_id


def somebody_found_a_contradiction(house: House) -> str:
    run_id = house.charged()
    _reconciliation(house, run_id, "contradicted")
    return run_id


DISPOSITIONS: list[tuple[Callable[[House], str], str]] = [
    (nothing_was_done_outside, "recovery_allowed"),
    (only_internal_state_was_written, "recovery_allowed"),
    (what_was_done_is_keyed_sealed_and_reconciled, "recovery_allowed_reconciled"),
    (nothing_is_known_of_what_was_done, "operator_review_required"),
    (the_evidence_is_not_sealed, "operator_review_required"),
    (nobody_has_reconciled_it, "operator_review_required"),
    (nobody_knows_whether_it_was_done, "operator_review_required"),
    (the_evidence_contradicts_it, "recovery_denied"),
    (somebody_found_a_contradiction, "recovery_denied"),
]


@pytest.mark.parametrize(("made", "disposition"), DISPOSITIONS, ids=[row[0].__name__ for row in DISPOSITIONS])
@pytest.mark.parametrize("verb", ["rerun", "replay"])
def test_each_verdict_lets_go_on_waits_or_denies(
    verb: str, made: Callable[[House], str], disposition: str, house: House
) -> None:
    """O5 (disposition set), O27, O43–O46, I11: told by the plan, recorded also when it denies, and kept to."""
    run_id = made(house)
    path = f"/v1/executions/{run_id}/{verb}"
    assert house.a("viewer").post(path, {"dry_run": True}).json()["disposition"] == disposition
    answer = house.a("operator").post(path)
    waiting = house.a("approver").get("/v1/approvals").json()["results"]
    event = AuditEvent.objects.get(action="execution.recovery_disposition")
    assert (str(event.run), event.data["disposition"], answer.json()["disposition"]) == (
        run_id,
        disposition,
        disposition,
    )
    forks = Run.objects.filter(recovered_from=run_id).count()
    if disposition.startswith("recovery_allowed"):
        assert (answer.status_code, event.outcome, forks, waiting) == (201, "allowed", 1, [])
        return
    assert (answer.status_code, answer.json()["code"], event.outcome, forks) == (409, disposition, "denied", 0)
    assert answer.json()["reasons"][0]["disposition"] == disposition
    named = [item["operation_id"] for item in waiting]
    assert named == ([answer.json()["operation_id"]] if disposition == "operator_review_required" else [])


@pytest.mark.parametrize(
    ("table", "column", "says"),
    [
        ("recovery_operation", "disposition", "operation_disposition_known"),
        ("recovery_operation", "state", "operation_state_known"),
        ("recovery_operation", "kind", "operation_kind_known"),
        ("pipelines_effect", "effect_class", "effect_class_known"),
        ("pipelines_effect", "state", "an effect only moves forward"),  # its trigger is asked first
    ],
)
def test_the_database_knows_no_other_word(table: str, column: str, says: str, house: House) -> None:
    """O5 (disposition set), O42, model §2: the sets are closed, whoever writes."""
    house.rerun(house.charged())
    with pytest.raises(IntegrityError, match=says), transaction.atomic():
        execute(f"UPDATE {table} SET {column} = 'perhaps'")


def _evidence(house: House, run_id: str, *, sealed: bool, outcome: str = "committed") -> None:
    summary = {"outcome": outcome, "charge": "ch_1"}
    body: dict[str, Any] = {"summary": summary, "source": "psp", "clean": True, "sealed": sealed}
    if sealed:
        body["digest"] = sha256(rfc8785.dumps(summary)).hexdigest()
    answer = house.a("approver").post(f"/v1/executions/{run_id}/effects/{house.effect(run_id)}/evidence", body)
    assert answer.status_code == 201, answer.content


def _reconciliation(house: House, run_id: str, outcome: str) -> None:
    body = {"outcome": outcome, "note": "asked the provider"}
    path = f"/v1/executions/{run_id}/effects/{house.effect(run_id)}/reconciliation"
    answer = house.a("approver").post(path, body)
    assert answer.status_code == 201, answer.content


def test_nobody_from_another_workspace_is_in_any_row(house: House) -> None:
    """O3, I16: an admin elsewhere is told 404 for every operation, whatever the state of the run."""
    run_id = house.failed()
    token = printed("issue_token", "--user", "olga", "--workspace", "globex", "--role", "admin")
    olga = type(house.application)({"Authorization": f"Bearer {token}"})
    for verb in ("pause", "resume", "cancel", "rerun", "replay"):
        assert olga.post(f"/v1/executions/{run_id}/{verb}").status_code == 404
    assert olga.get(f"/v1/executions/{run_id}/snapshot").status_code == 404
