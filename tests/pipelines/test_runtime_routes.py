"""The routes of a service with a runtime key: checkpoints of a live attempt, and nothing that rewrites one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import keys, leases, sweeps
from pipelines.models import Application, AuditEvent, Checkpoint, CheckpointEvidence, Effect, Environment, KeyScope, Run
from pipelines.postures import LARGEST_STATE
from tests.cast import Api, Hand, Person, unknown_id, wire
from tests.clock import Clock
from tests.tampering import Scene, Tampering, every_tampering, make_scene, past_the_triggers
from tests.verbs import cancel_as_operation

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
CHARGED = {"class": "external_http", "step_id": "charge", "idempotency_key": "invoice-42"}


@pytest.fixture
def service(application: Application, environment: Environment) -> Api:
    return runtime(application, environment)


def runtime(application: Application, environment: Environment) -> Api:
    return Api({"X-API-Key": keys.issue_key(application, environment, scope=KeyScope.RUNTIME)[1]})


def body_of(job: Any, **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "attempt_id": str(job.attempt_id),
        "step_id": job.stage.name,
        "state": {"page": 1},
        "recovery_posture": {"side_effects": [], "committed_side_effects": []},
    }
    return told | changes


def path_of(run: Run, *more: Any) -> str:
    return "/".join(["/v1/executions", str(run.id), "checkpoints", *map(str, more)])


def test_a_service_writes_a_checkpoint_and_reads_the_latest(start_run: StartRun, hand: Hand, service: Api) -> None:
    """O6: POST 201, GET latest with payload and envelope; the next attempt of the stage gets the state."""
    run = start_run("first", "second")
    hand.report(hand.take())
    job = hand.take()
    posture = {"side_effects": [{**CHARGED, "committed": True}], "committed_side_effects": []}

    answer = service.post(path_of(run), body_of(job, previous_step_id="first", recovery_posture=posture))

    assert answer.status_code == 201, answer.content
    told = answer.json()
    assert (told["sequence"], told["moment"], told["step_id"], told["integrity"]) == (3, "handler", "second", "valid")
    assert (told["current_step_id"], told["previous_step_id"]) == ("second", "first")
    assert told["attempt_id"] == str(job.attempt_id)
    latest = service.get(path_of(run, "latest")).json()
    assert latest["checkpoint_id"] == told["checkpoint_id"]
    assert latest["payload"]["state"] == {"page": 1}
    assert latest["payload"]["recovery_posture"] == {"side_effects": [{**CHARGED, "committed": True}]}
    assert latest["envelope"]["algorithm"] == "ed25519"
    assert Effect.objects.get(run=run).key == "invoice-42"
    assert AuditEvent.objects.get(action="checkpoint.write").outcome == "allowed"
    leases.release(hand.holder, job.stage.id, job.attempt_id)
    assert wire(hand.take())["checkpoint"]["state"] == {"page": 1}


def test_nobody_but_a_runtime_key_may_use_them(
    start_run: StartRun, hand: Hand, people: dict[str, Person], as_person: AsPerson, api: Api, outsider: Person
) -> None:
    """O6, model §5: a person of any role and an application's own key get 403, a stranger 404; each denial is kept."""
    run = start_run("first")
    body, checkpoint = body_of(hand.take()), Checkpoint.objects.get(run=run)
    callers = [as_person(person) for person in people.values()] + [api]
    for caller in callers:
        assert caller.post(path_of(run), body).json()["code"] == "permission_denied"
        assert caller.patch(path_of(run, checkpoint.id), {"evidence": {}}).status_code == 403
        assert caller.get(path_of(run, "latest")).status_code == 403
    stranger = as_person(outsider)
    assert stranger.post(path_of(run), body).status_code == 404
    assert stranger.get(path_of(run, "latest")).status_code == 404
    assert Api({}).post(path_of(run), body).status_code == 401

    assert Checkpoint.objects.filter(run=run).count() == 1
    assert CheckpointEvidence.objects.count() == 0
    denied = AuditEvent.objects.filter(outcome="denied")
    assert denied.filter(action="checkpoint.write").count() == len(callers)
    assert denied.filter(action="checkpoint.add_evidence").count() == len(callers)


def test_a_runtime_key_serves_its_own_application_and_environment_and_nothing_else(
    start_run: StartRun,
    hand: Hand,
    service: Api,
    application: Application,
    environments: dict[str, Environment],
    sibling_key: str,
) -> None:
    """I16: another environment's or application's runs are 404; other routes are 403."""
    run = start_run("first")
    job = hand.take()
    staging = runtime(application, environments["staging"])
    sibling = runtime(Application.objects.get(name="shipping"), environments["development"])
    for foreign in (staging, sibling):
        assert foreign.post(path_of(run), body_of(job)).status_code == 404
        assert foreign.get(path_of(run, "latest")).status_code == 404
        assert foreign.patch(path_of(run, Checkpoint.objects.get(run=run).id), {"evidence": {}}).status_code == 404
    assert service.get(f"/v1/executions/{run.id}").status_code == 403
    assert service.get(path_of(run)).status_code == 403
    assert service.get(f"/v1/executions/{run.id}/snapshot").status_code == 403
    assert service.post("/jobs/pull", {}).status_code in (401, 403)
    assert Checkpoint.objects.filter(run=run).count() == 1


def test_the_attempt_must_be_the_runs_and_live(
    start_run: StartRun, hand: Hand, service: Api, people: dict[str, Person], clock: Clock
) -> None:
    """Model §2 Lease: a service has no session; the attempt itself is the fence, so a replaced one leaves nothing."""
    run, other = start_run("first"), start_run("first")
    job = hand.take()
    elsewhere = hand.take()
    assert {job.run_id, elsewhere.run_id} == {run.id, other.id}
    run = Run.objects.get(id=job.run_id)

    def refused(**changes: Any) -> None:
        answer = service.post(path_of(run), body_of(job, **changes))
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_execution")

    refused(attempt_id=unknown_id())
    refused(attempt_id=str(elsewhere.attempt_id))
    assert service.post(path_of(run), body_of(job)).status_code == 201
    clock.advance(61)
    refused()
    sweeps.expire_leases(100)
    successor = next(one for one in hand.pull(10) if one.run_id == run.id)
    refused()
    assert service.post(path_of(run), body_of(successor)).status_code == 201
    cancel_as_operation(run.id, actor=people["operator"].actor, reason="enough")
    refused(attempt_id=str(successor.attempt_id))
    assert Checkpoint.objects.filter(run=run, moment="handler").count() == 2


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"step_id": "second"}, 400, "step_id"),
        ({"previous_step_id": "second"}, 400, "previous_step_id"),
        ({"previous_step_id": "nowhere"}, 400, "previous_step_id"),
        ({"state": None}, 400, "state"),
        ({"state": "x" * LARGEST_STATE}, 413, "state"),
        ({"state": 2**53 + 1}, 400, "state"),
        ({"recovery_posture": None}, 400, "recovery_posture"),
        ({"recovery_posture": {"effects": []}}, 400, "recovery_posture.effects"),
        ({"current_step_id": "first"}, 400, "current_step_id"),
        ({"sequence": 7}, 400, "sequence"),
        (
            {"recovery_posture": {"committed_side_effects": [{**CHARGED, "class": "telepathy"}]}},
            422,
            "recovery_posture.committed_side_effects[0].class",
        ),
        (
            {"recovery_posture": {"side_effects": [{"class": "retrieval", "committed": True, "step_id": "a"}]}},
            422,
            "recovery_posture.side_effects[0].idempotency_key",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name_and_nothing_is_kept(
    start_run: StartRun, hand: Hand, service: Api, changes: dict[str, Any], status: int, field: str
) -> None:
    """O42, O48, contract §3: every refusal names its field; each request leaves one audit event."""
    run = start_run("first", "second")

    answer = service.post(path_of(run), body_of(hand.take(), **changes))

    assert (answer.status_code, list(answer.json()["errors"])) == (status, [field]), answer.content
    assert Checkpoint.objects.filter(run=run).count() == 1
    assert Effect.objects.count() == 0
    assert AuditEvent.objects.get(action="checkpoint.write").outcome == "failed"


def test_evidence_is_added_and_nothing_else_changes(start_run: StartRun, hand: Hand, service: Api) -> None:
    """Model §2 Checkpoint: the payload is immutable, PATCH adds evidence only; the same again adds nothing."""
    run = start_run("first")
    service.post(path_of(run), body_of(hand.take()))
    checkpoint = Checkpoint.objects.get(run=run, moment="handler")
    before = Checkpoint.objects.filter(id=checkpoint.id).values().get()

    for evidence in ({"ledger": "entry 7", "amount": 12.5}, {"amount": 12.5, "ledger": "entry 7"}, {"ledger": "none"}):
        answer = service.patch(path_of(run, checkpoint.id), {"evidence": evidence})
        assert answer.status_code == 200, answer.content

    told = answer.json()
    assert [item["evidence"] for item in told["evidence"]] == [
        {"ledger": "entry 7", "amount": 12.5},
        {"ledger": "none"},
    ]
    assert {item["added_by"] for item in told["evidence"]} == {"billing"}
    assert told["integrity"] == "valid"
    assert Checkpoint.objects.filter(id=checkpoint.id).values().get() == before
    outcomes = AuditEvent.objects.filter(action="checkpoint.add_evidence").order_by("at", "id")
    assert [event.outcome for event in outcomes] == ["allowed", "no_op", "allowed"]


@pytest.mark.parametrize(
    "field", ["attempt_id", "step_id", "previous_step_id", "state", "recovery_posture", "payload", "sequence", "key_id"]
)
def test_a_patch_of_anything_else_is_refused_by_name(start_run: StartRun, hand: Hand, service: Api, field: str) -> None:
    """O6: what a checkpoint says stays as written."""
    run = start_run("first")
    job = hand.take()
    checkpoint = Checkpoint.objects.get(run=run)

    answer = service.patch(path_of(run, checkpoint.id), {"evidence": {"a": 1}, field: body_of(job).get(field, 1)})

    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    assert CheckpointEvidence.objects.count() == 0


def test_the_latest_of_a_run_without_any_is_not_found(start_run: StartRun, service: Api) -> None:
    """O16."""
    run = start_run("first")
    with past_the_triggers():
        Checkpoint.objects.filter(run=run).delete()

    answer = service.get(path_of(run, "latest"))

    assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint_not_found")


@every_tampering
def test_a_tampered_latest_is_not_handed_out(
    start_run: StartRun, hand: Hand, service: Api, tampering: Tampering
) -> None:
    """O25: refused before anything of it is loaded."""
    scene: Scene = make_scene(start_run, hand)
    tampering.act(scene)
    if tampering.name == "another environment":  # the key is of the environment that the run no longer claims
        service = runtime(scene.run.application, Run.objects.get(id=scene.run.id).environment)

    answer = service.get(path_of(scene.run, "latest"))

    if tampering.verdict == "valid":
        assert answer.status_code == 200
    else:
        assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint_integrity_invalid")
        assert "payload" not in json.dumps(answer.json())
