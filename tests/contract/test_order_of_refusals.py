"""One request with everything wrong in it, put right one thing at a time: the refusals come in the model's order."""

from __future__ import annotations

import uuid
from typing import Any

from pipelines.models import Run, Tick
from tests.cast import Api
from tests.contract.house import CHARGE, OUTSIDE, House, printed

NOW = "0b7e3d1c-1111-4222-8333-444455556666"


def test_a_rerun_is_refused_for_what_the_model_names_first(house: House) -> None:
    """Model §5, last line: 401, 404, 403, the body, a repeat of the key, state, a blackout, environment, integrity,
    disposition, approval. What is refused makes no run."""
    there = House(house.clock, environment="production")
    other = there.failed()
    used = there.rerun(other, client_request_id=NOW)
    assert (used.status_code, used.json()["status"]) == (202, "awaiting_approval")

    run = there.start(OUTSIDE, {})
    there.end("succeeded", effects=[{**CHARGE, "state": "committed"}])
    admin = there.a("admin")
    (key,) = admin.get("/v1/signing-keys").json()["results"]
    assert admin.post(f"/v1/signing-keys/{key['id']}/revoke", {"reason": "lost"}).status_code == 200
    path = f"/v1/executions/{run['id']}/rerun"
    wrong: dict[str, Any] = {
        "environment": "the-moon",
        "client_request_id": NOW,
        "from_step_id": "a",
        "no such field": 1,
    }
    token = printed("issue_token", "--user", "olga", "--workspace", "globex", "--role", "viewer")

    def told(client: Api, **right: Any) -> tuple[int, str]:
        wrong.update(right)
        body = {name: value for name, value in wrong.items() if value is not None}
        answer = client.post(path, body)
        assert not Run.objects.filter(recovered_from=run["id"]).exists()
        return answer.status_code, answer.json()["code"]

    operator = there.a("operator")
    assert told(Api({})) == (401, "unauthorized")
    assert told(Api({"Authorization": f"Bearer {token}"})) == (404, "not_found")
    assert told(there.a("viewer")) == (403, "permission_denied")
    assert told(operator) == (400, "validation_error")
    assert told(operator, **{"no such field": None}) == (422, "environment_unknown")
    assert told(operator, environment="staging") == (409, "recovery_idempotency_conflict")
    assert told(operator, client_request_id=str(uuid.uuid4())) == (409, "execution_state_invalid")
    assert operator.post(f"/v1/executions/{run['id']}/cancel").status_code == 200
    frozen = there.a("release_manager").post("/v1/freeze", {"reason": "an incident"})
    assert frozen.status_code == 201
    assert told(operator) == (409, "blackout_active")
    assert told(operator, override_reason=" ") == (400, "validation_error")
    assert told(operator, override_reason="it cannot wait") == (409, "recovery_environment_mismatch")
    assert there.a("release_manager").post("/v1/freeze/lift").status_code == 200
    assert told(operator, override_reason=None) == (409, "recovery_environment_mismatch")
    assert told(operator, environment=None) == (409, "checkpoint_integrity_invalid")

    # a key that was revoked stays so: the rest of the way with a run that the new key has signed
    charged = there.charged()
    review = there.rerun(charged)
    assert (review.status_code, review.json()["code"]) == (409, "operator_review_required")
    assert not Run.objects.filter(recovered_from=charged).exists()
    waiting = there.rerun(there.failed())
    assert (waiting.status_code, waiting.json()["status"]) == (202, "awaiting_approval")
    assert not Run.objects.filter(recovered_from__isnull=False).exists()


def test_a_repeat_is_answered_whatever_became_of_its_source(house: House) -> None:
    """Model §3.6, §5: the key is looked at before the state; O31."""
    run_id, key = house.failed(), str(uuid.uuid4())
    first = house.rerun(run_id, client_request_id=key).json()
    (stage,) = house.application.get(f"/pipelines/{run_id}").json()["stages"]
    assert house.a("operator").post(f"/v1/stages/{stage['id']}/retry", {"scope": "stage"}).status_code == 200
    assert house.rerun(run_id).json()["code"] == "execution_state_invalid"
    again = house.rerun(run_id, client_request_id=key)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["execution_id"] == first["execution_id"]


def test_a_backfill_is_refused_for_what_the_model_names_first(house: House) -> None:
    """Model §5, last line, and contract §4 (O50): too many ticks are of the body, so before the key and the state.
    What is refused makes no run and no row of the ledger, and keeps no key."""
    there = House(house.clock, environment="production")
    manager, operator = there.a("release_manager"), there.a("operator")
    stages = [{"name": "fetch", "handler": "Handler"}]
    definition = {"slug": "rates", "name": "Rates", "stages": stages}
    assert manager.post("/v1/pipelines", {"slug": "rates", "name": "Rates"}).status_code == 201
    released = {"pipeline": "rates", "environment": "production", "definition": definition, "activate": True}
    assert manager.post("/v1/releases", released).status_code == 201
    place = {"pipeline": "rates", "environment": "production", "application": "billing"}
    trigger = manager.post("/v1/triggers", {**place, "cron": "0 8 * * *", "timezone": "UTC"}).json()["id"]
    window = {"from_time": "2026-05-20T08:00:00Z", "to_time": "2026-05-22T08:00:00Z"}
    path = "/v1/triggers/backfill"
    other = {"trigger_binding_id": trigger, **window, "client_request_id": NOW, "max_concurrent": 2}
    assert operator.post(path, other).json()["status"] == "awaiting_approval"
    seen = operator.post(path, {"trigger_binding_id": trigger, **window, "dry_run": True}).json()["plan_digest"]
    wrong: dict[str, Any] = {
        "trigger_binding_id": trigger,
        **window,
        "cron": "* * * * *",
        "max_ticks": 100,
        "environment": "staging",
        "client_request_id": NOW,
        "plan_digest": "0" * 64,
        "no such field": 1,
    }
    token = printed("issue_token", "--user", "olga", "--workspace", "globex", "--role", "viewer")

    def told(client: Api, **right: Any) -> tuple[int, str]:
        wrong.update(right)
        answer = client.post(path, {name: value for name, value in wrong.items() if value is not None})
        assert not Run.objects.exists()
        assert not Tick.objects.exists()
        return answer.status_code, answer.json()["code"]

    assert told(Api({})) == (401, "unauthorized")
    assert told(Api({"Authorization": f"Bearer {token}"})) == (404, "not_found")
    assert told(there.a("viewer")) == (403, "permission_denied")
    assert told(operator) == (400, "validation_error")
    assert manager.post("/v1/freeze", {"reason": "an incident"}).status_code == 201
    assert told(operator, **{"no such field": None}) == (422, "backfill_too_many_ticks")
    assert told(operator, cron=None) == (409, "recovery_idempotency_conflict")
    again = str(uuid.uuid4())
    assert told(operator, client_request_id=again) == (409, "blackout_active")
    assert told(operator, override_reason="it cannot wait") == (409, "recovery_environment_mismatch")
    assert told(operator, environment=None) == (409, "plan_changed")
    assert told(operator, plan_digest=None, max_ticks=2) == (422, "backfill_too_many_ticks")
    assert manager.post("/v1/freeze/lift").status_code == 200
    waits = operator.post(path, {"trigger_binding_id": trigger, **window, "client_request_id": again})
    assert (waits.status_code, waits.json()["status"]) == (202, "awaiting_approval")
    assert waits.json()["plan_digest"] == seen
