"""Effects over the worker's wire: the intent is durable before the act, the outcome after it; both only go forward."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings

from pipelines import sweeps
from pipelines.models import Effect, Event, LateEvidence, Run
from pipelines.states import EffectClass
from pipelines.transitions import cancel_run
from tests.cast import Api, Person, Worker, unknown_id
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds, states

StartRun = Callable[..., Run]

PAY = {"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}


def told(state: str = "declared", **more: Any) -> dict[str, Any]:
    return {"class": "external_http", "idempotencyKey": "invoice-42", "state": state, **more}


def tell(worker: Api, job: dict[str, Any], *effects: dict[str, Any]) -> Any:
    return worker.post(f"/stages/{job['stageId']}/effects", {"executionId": job["executionId"], "effects": effects})


def of(run: Run) -> list[tuple[str, str, str, str]]:
    """(class, step, key, state) of the run's effects, oldest first."""
    rows = Effect.objects.filter(run=run).order_by("declared_at", "id")
    return list(rows.values_list("effect_class", "step_id", "key", "state"))


def test_an_intent_is_stored_before_its_answer_and_its_outcome_after(start_run: StartRun, worker: Worker) -> None:
    """R5, I5: declared, then committed, each with its event; the step is the stage where none is named."""
    run = start_run(PAY)
    job = worker.take()
    answer = tell(worker, job, told(requestHash="abc", detail={"amount": 12}))
    assert answer.status_code == 201
    (intent,) = answer.json()["effects"]
    effect = Effect.objects.get(id=intent["effectId"])
    assert intent == {"effectId": str(effect.id), "state": "declared"}
    assert (effect.step_id, effect.request_hash, effect.detail, effect.settled_at) == (
        "pay",
        "abc",
        {"amount": 12},
        None,
    )
    (outcome,) = tell(worker, job, told("committed", externalRef="ch_1")).json()["effects"]
    assert outcome == {"effectId": intent["effectId"], "state": "committed"}
    effect.refresh_from_db()
    assert (effect.state, effect.external_ref, effect.request_hash, effect.detail) == (
        "committed",
        "ch_1",
        "abc",
        {"amount": 12},
    )
    assert effect.settled_at is not None
    assert [kind for kind in kinds(run) if kind.startswith("effect.")] == ["effect.declare", "effect.commit"]
    event = Event.objects.get(run=run, kind="effect.commit")
    assert (event.from_state, event.to_state, event.actor, event.data["effect"]) == (
        "declared",
        "committed",
        "worker-1",
        str(effect.id),
    )
    assert worker.report(job).json()["stageStatus"] == "completed"
    assert_invariants()


def test_what_is_unknown_is_not_settled(start_run: StartRun, worker: Worker) -> None:
    """Model §2: unknown is open, whether it is the first word or comes after the intent."""
    run = start_run(PAY)
    job = worker.take()
    tell(worker, job, told("unknown", idempotencyKey="first-word"), told(idempotencyKey="after-the-intent"))
    tell(worker, job, told("unknown", idempotencyKey="after-the-intent"), told("absent", idempotencyKey="never-sent"))
    effects = Effect.objects.filter(run=run)
    assert {(one.key, one.state, one.settled_at is None) for one in effects} == {
        ("first-word", "unknown", True),
        ("after-the-intent", "unknown", True),
        ("never-sent", "absent", False),
    }


def test_the_same_again_is_the_same_effect_and_another_key_another_one(start_run: StartRun, worker: Worker) -> None:
    """Same attempt, class, step and key: one effect, one event, in the order asked."""
    run = start_run(PAY)
    job = worker.take()
    first = tell(worker, job, told(), told(stepId="mail"), told(idempotencyKey="invoice-43")).json()
    before = kinds(run)
    assert tell(worker, job, told(), told(stepId="mail"), told(idempotencyKey="invoice-43")).json() == first
    assert len({effect["effectId"] for effect in first["effects"]}) == 3
    assert kinds(run) == before
    assert of(run) == [
        ("external_http", "pay", "invoice-42", "declared"),
        ("external_http", "mail", "invoice-42", "declared"),
        ("external_http", "pay", "invoice-43", "declared"),
    ]


def test_intent_and_outcome_may_come_in_one_request(start_run: StartRun, worker: Worker) -> None:
    run = start_run(PAY)
    job = worker.take()
    answer = tell(worker, job, told(), told("committed"), told("committed"))
    assert [effect["state"] for effect in answer.json()["effects"]] == ["declared", "committed", "committed"]
    assert of(run) == [("external_http", "pay", "invoice-42", "committed")]
    assert [kind for kind in kinds(run) if kind.startswith("effect.")] == ["effect.declare", "effect.commit"]


@pytest.mark.parametrize("effect_class", EffectClass.values)
def test_every_class_of_the_closed_set_is_taken(start_run: StartRun, worker: Worker, effect_class: str) -> None:
    """O42."""
    run = start_run(PAY)
    answer = tell(worker, worker.take(), told("committed", **{"class": effect_class}))
    assert (answer.status_code, of(run)[0][0]) == (201, effect_class)


@pytest.mark.parametrize("wrong", ["", "External_HTTP", "payment"])
def test_any_other_class_is_refused_and_nothing_of_the_request_is_kept(
    start_run: StartRun, worker: Worker, wrong: str
) -> None:
    """O42: all or none."""
    run = start_run(PAY)
    answer = tell(worker, worker.take(), told(), told(**{"class": wrong}))
    assert (answer.status_code, answer.json()["code"]) == (422, "effect_class_unknown")
    assert list(answer.json()["errors"]) == ["effects[1].class"]
    assert of(run) == []


def test_what_is_committed_outside_needs_the_key_that_the_outside_got(start_run: StartRun, worker: Worker) -> None:
    """O44, O48: `internal_state` needs none; an intent may come without."""
    run = start_run(PAY)
    job = worker.take()
    answer = tell(worker, job, told("committed", idempotencyKey=None))
    assert (answer.status_code, answer.json()["code"]) == (422, "effect_key_required")
    assert list(answer.json()["errors"]) == ["effects[0].idempotencyKey"]
    assert of(run) == []
    inside = {"class": "internal_state", "state": "committed"}
    assert tell(worker, job, inside, told(idempotencyKey=None)).status_code == 201
    assert of(run) == [("internal_state", "pay", "", "committed"), ("external_http", "pay", "", "declared")]


@pytest.mark.parametrize("settled", ["committed", "absent", "unknown"])
@pytest.mark.parametrize("then", ["declared", "committed", "absent", "unknown"])
def test_an_effect_only_moves_forward(start_run: StartRun, worker: Worker, settled: str, then: str) -> None:
    """Going back is refused and names the effect; nothing of that request is kept."""
    run = start_run(PAY)
    job = worker.take()
    (effect,) = tell(worker, job, told(settled)).json()["effects"]
    answer = tell(worker, job, told(stepId="mail"), told(then))
    if then == settled:
        assert (answer.status_code, len(of(run))) == (201, 2)
        return
    assert (answer.status_code, answer.json()["code"]) == (409, "stage_state_invalid")
    assert answer.json()["effectId"] == effect["effectId"]
    assert list(answer.json()["errors"]) == ["effects[1].state"]
    assert of(run) == [("external_http", "pay", "invoice-42", settled)]


def test_a_key_stands_for_one_request(start_run: StartRun, worker: Worker) -> None:
    """Another request hash under the same key is another request."""
    start_run(PAY)
    job = worker.take()
    tell(worker, job, told(requestHash="abc"))
    answer = tell(worker, job, told("committed", requestHash="xyz"))
    assert (answer.status_code, list(answer.json()["errors"])) == (409, ["effects[0].requestHash"])
    assert tell(worker, job, told("committed", requestHash="abc")).status_code == 201


@pytest.mark.parametrize(
    ("effects", "field"),
    [
        ([], "effects"),
        ([told("done")], "effects[0].state"),
        ([told("reconciled_committed")], "effects[0].state"),
        ([{"idempotencyKey": "a", "state": "declared"}], "effects[0].class"),
        ([told(idempotencyKey="")], "effects[0].idempotencyKey"),
        ([told(idempotencyKey="a" * 201)], "effects[0].idempotencyKey"),
        ([told(stepId="s" * 256)], "effects[0].stepId"),
        ([told(externalRef="r" * 1001)], "effects[0].externalRef"),
        ([told(detail={"text": "a" * 16_384})], "effects[0].detail"),
        ([told(detail="half \ud800")], "effects[0].detail"),
        ([told(surprise=1)], "effects[0].surprise"),
        ([told(idempotencyKey=f"key-{number}") for number in range(201)], "effects"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    start_run: StartRun, worker: Worker, effects: list[Any], field: str
) -> None:
    run = start_run(PAY)
    answer = tell(worker, worker.take(), *effects)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert list(answer.json()["errors"]) == [field]
    assert of(run) == []


def test_many_effects_cost_as_many_statements_as_one(
    start_run: StartRun, worker: Worker, django_assert_max_num_queries: Any
) -> None:
    start_run(PAY)
    job = worker.take()
    with django_assert_max_num_queries(16):
        assert tell(worker, job, told(idempotencyKey="one")).status_code == 201
    with django_assert_max_num_queries(16):
        assert tell(worker, job, *[told(idempotencyKey=f"key-{number}") for number in range(200)]).status_code == 201
    with django_assert_max_num_queries(16):
        many = [told("committed", idempotencyKey=f"key-{number}") for number in range(200)]
        assert tell(worker, job, *many).status_code == 201


# fencing


def test_an_intent_after_the_lease_is_refused_and_an_outcome_is_kept_as_evidence(
    start_run: StartRun, worker: Worker, clock: Clock
) -> None:
    """F03, R4: whoever gets no 201 does not act; what was done all the same is not lost, and moves nothing."""
    run = start_run(PAY)
    job = worker.take()
    tell(worker, job, told())
    clock.advance(60)
    late = tell(worker, job, told(idempotencyKey="invoice-43"))
    assert (late.status_code, late.json()["code"]) == (409, "stale_execution")
    assert "must not be done" in late.json()["detail"]
    assert LateEvidence.objects.count() == 0
    for _ in range(2):
        answer = tell(worker, job, told("committed", externalRef="ch_1"), told(idempotencyKey="invoice-44"))
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_execution")
        assert "kept as late evidence" in answer.json()["detail"]
    evidence = LateEvidence.objects.get()
    assert (str(evidence.attempt_id), evidence.reason) == (job["executionId"], "lease_expired")
    assert json.loads(evidence.body) == {"effects": [told("committed", externalRef="ch_1")]}
    assert of(run) == [("external_http", "pay", "invoice-42", "declared")]


def test_another_session_cannot_speak_for_an_attempt(
    start_run: StartRun, worker: Worker, new_worker: Callable[..., Worker]
) -> None:
    run = start_run(PAY)
    job = worker.take()
    answer = tell(new_worker("worker-2"), job, told())
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_execution")
    assert of(run) == []


@pytest.mark.parametrize("effect", [told(), told(**{"class": "payment"}), told("done")])
def test_anothers_attempt_does_not_exist_whatever_is_told_of_it(
    start_run: StartRun, worker: Worker, new_worker: Callable[..., Worker], sibling_key: str, effect: dict[str, Any]
) -> None:
    """I16: 404 before the body and before its words are looked at."""
    run = start_run(PAY)
    job = worker.take()
    other = new_worker("worker-2", key=sibling_key)
    assert tell(other, job, effect).status_code == 404
    assert tell(worker, job | {"stageId": unknown_id()}, told()).status_code == 404
    assert tell(worker, job | {"executionId": unknown_id()}, told()).status_code == 404
    assert of(run) == []


def test_after_a_cancel_no_intent_is_taken_and_what_was_intended_stays_open(
    start_run: StartRun, worker: Worker, people: dict[str, Person]
) -> None:
    """P75, F65: the answer to the cancel names the effect; the attempt's end makes it unknown."""
    run = start_run(PAY)
    job = worker.take()
    (effect,) = tell(worker, job, told(), {"class": "internal_state", "state": "declared"}).json()["effects"][:1]
    cancelled = cancel_run(run.id, actor=people["operator"].actor)
    assert [item["kind"] for item in cancelled.reconciliation] == ["running_attempt", "open_effect"]
    assert "invoice-42" in cancelled.reconciliation[1]["detail"]
    assert states(run) == {"pay": "cancelled"}
    assert Effect.objects.get(id=effect["effectId"]).state == "unknown"
    assert tell(worker, job, told(idempotencyKey="invoice-43")).json()["code"] == "stale_execution"
    assert tell(worker, job, told("committed")).json()["code"] == "stale_execution"
    assert Effect.objects.get(id=effect["effectId"]).state == "unknown"
    assert LateEvidence.objects.count() == 1
    assert cancel_run(run.id, actor=people["operator"].actor).reconciliation == cancelled.reconciliation
    assert_invariants()


def test_an_intent_past_the_deadline_is_refused_before_any_sweep_came_by(
    start_run: StartRun, worker: Worker, clock: Clock
) -> None:
    """R31."""
    run = start_run(PAY, deadline_seconds=50)
    job = worker.take()
    tell(worker, job, told())
    clock.advance(50)
    assert tell(worker, job, told(idempotencyKey="invoice-43")).json()["code"] == "stale_execution"
    run.refresh_from_db()
    assert run.failure_code == "deadline_exceeded"
    assert of(run) == [("external_http", "pay", "invoice-42", "unknown")]
    assert_invariants()


def test_an_attempt_only_dispatched_may_not_tell_of_effects(start_run: StartRun, worker: Worker) -> None:
    run = start_run(PAY)
    (job,) = worker.pull(acquire=False)
    assert tell(worker, job, told()).json()["code"] == "stale_execution"
    assert of(run) == []


# what an earlier attempt did


def test_an_intent_hears_how_an_earlier_attempt_of_the_epoch_settled_the_same_effect(
    start_run: StartRun, worker: Worker, clock: Clock
) -> None:
    """So that a handler done again leaves out what is done: a committed one counts before any other."""
    start_run({**PAY, "options": {"max_retries": 3, "retry_interval": 1}})
    job = worker.take()
    tell(worker, job, told("committed", externalRef="ch_1"), told("absent", stepId="mail"), told(stepId="log"))
    tell(worker, job, told("absent", stepId="log"))
    assert worker.report(job, "failed", errorCode="FOO").json()["stageStatus"] == "retry_scheduled"
    clock.advance(1)
    second = worker.take()
    answer = tell(worker, second, told(), told(stepId="mail"), told(stepId="new")).json()["effects"]
    assert [effect.get("earlier") for effect in answer] == [
        {"attempt": 1, "state": "committed", "externalRef": "ch_1"},
        {"attempt": 1, "state": "absent", "externalRef": ""},
        None,
    ]
    tell(worker, second, told("absent"), told("absent", stepId="mail"), told("absent", stepId="new"))
    worker.report(second, "failed", errorCode="FOO")
    clock.advance(1)
    (third,) = tell(worker, worker.take(), told()).json()["effects"]
    assert third["earlier"] == {"attempt": 1, "state": "committed", "externalRef": "ch_1"}


def test_an_intent_hears_that_nobody_knows_what_an_earlier_attempt_came_to(
    start_run: StartRun, worker: Worker, clock: Clock
) -> None:
    """A worker that was lost leaves its intent unknown: what may be done must not look like what was never begun, also
    not once a later attempt has settled its own.
    """
    start_run({**PAY, "effect_mode": "idempotent", "options": {"max_retries": 3, "retry_interval": 1}})
    tell(worker, worker.take(), told())
    clock.advance(settings.RECOURSE_LEASE_SECONDS)
    assert sweeps.expire_leases() == 1
    second = worker.take()
    (answer,) = tell(worker, second, told()).json()["effects"]
    assert answer["earlier"] == {"attempt": 1, "state": "unknown", "externalRef": ""}
    tell(worker, second, told("absent"))
    worker.report(second, "failed", errorCode="FOO")
    clock.advance(1)
    (third,) = tell(worker, worker.take(), told()).json()["effects"]
    assert third["earlier"]["state"] == "unknown"


# the list


def test_the_effects_of_a_run_can_be_listed_and_filtered(
    start_run: StartRun, worker: Worker, people: dict[str, Person], as_person: Callable[[Person], Api], api: Api
) -> None:
    """Newest first; by class, state and stage; also for the application's own key."""
    run = start_run(PAY, {**PAY, "name": "mail"})
    for _ in range(2):
        job = worker.take()
        tell(worker, job, told(), {"class": "internal_state", "state": "committed"})
        tell(worker, job, told("committed", externalRef="ch_1", detail=["a", 1]))
        worker.report(job)
    viewer, path = as_person(people["viewer"]), f"/v1/executions/{run.id}/effects"
    effects = viewer.get(path).json()["results"]
    assert [(one["stage"], one["class"]) for one in effects] == [
        ("mail", "internal_state"),
        ("mail", "external_http"),
        ("pay", "internal_state"),
        ("pay", "external_http"),
    ]
    oldest = effects[-1]
    effect = Effect.objects.get(id=oldest["effect_id"])
    assert oldest == {
        "id": str(effect.id),
        "effect_id": str(effect.id),
        "stage_id": str(effect.stage_id),
        "stage": "pay",
        "attempt_id": str(effect.attempt),
        "attempt": 1,
        "epoch": 1,
        "class": "external_http",
        "step_id": "pay",
        "idempotency_key": "invoice-42",
        "state": "committed",
        "external_ref": "ch_1",
        "request_hash": None,
        "detail": ["a", 1],
        "declared_at": oldest["declared_at"],
        "settled_at": oldest["settled_at"],
    }
    assert effects[0]["idempotency_key"] is None
    assert len(viewer.get(f"{path}?class=external_http&stage=mail").json()["results"]) == 1
    assert len(viewer.get(f"{path}?state=declared&state=unknown").json()["results"]) == 0
    assert (
        len(viewer.get(f"{path}?class=external_http&class=internal_state&stage_id={job['stageId']}").json()["results"])
        == 2
    )
    first = viewer.get(f"{path}?page_size=3").json()
    assert (len(first["results"]), first["previous"]) == (3, None)
    assert [one["id"] for one in viewer.get(first["next"]).json()["results"]] == [oldest["id"]]
    assert api.get(path).json() == viewer.get(path).json()
    assert viewer.get(f"{path}?class=payment").status_code == 400
    assert viewer.get(f"{path}?effect_class=external_http").status_code == 400


def test_anothers_effects_are_not_there(
    start_run: StartRun, outsider: Person, as_person: Callable[[Person], Api], sibling_key: str
) -> None:
    """I16."""
    run = start_run(PAY)
    assert as_person(outsider).get(f"/v1/executions/{run.id}/effects").status_code == 404
    assert Api({"X-API-Key": sibling_key}).get(f"/v1/executions/{run.id}/effects").status_code == 404
