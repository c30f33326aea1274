"""To whom a stage may be sent: matched before it is handed out, fallbacks in the declared order only (R40, R41)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as some

from pipelines import leases, queries
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.intents import tell_effects
from pipelines.models import Attempt, LateEvidence, Policy, QueueEntry, Run, Stage, WorkerSession
from pipelines.recipients import allowed_of, key, position
from pipelines.sql import query
from pipelines.wake import Queue
from tests.cast import Api, Hand, Person, Worker
from tests.clock import Clock

FIELDS = {"organisation": "Model House", "service": "large", "billing": "prepaid", "retention": "none"}
OTHER = FIELDS | {"organisation": "Other House"}
THIRD = FIELDS | {"organisation": "Third House"}
StartRun = Callable[..., Run]


def sending(*recipients: Mapping[str, str], handler: str = "Handler") -> list[dict[str, Any]]:
    return [{"handler": handler, **one} for one in recipients]


def asking(*recipients: Mapping[str, str], retries: int = 0) -> dict[str, Any]:
    return {"name": "ask", "recipients": list(recipients), "options": {"max_retries": retries, "retry_interval": 1}}


def told_of(run: Run) -> list[Any]:
    attempts = Attempt.objects.filter(run_id=run.id).order_by("number")
    return [one.recipient and one.recipient["organisation"] for one in attempts]


# the rule alone


@given(some.integers(1, 10), some.sets(some.integers(0, 9)), some.lists(some.integers(0, 9), max_size=12))
def test_no_attempt_goes_beyond_what_its_failures_allow(count: int, sends: set[int], failed: list[int]) -> None:
    """R40, R41: never to whom the session does not send, never past one fallback for each failed attempt; of what is
    allowed the first that has not failed; with something allowed there always is an answer."""
    allowed = allowed_of(list(range(count)), len(failed))  # type: ignore[arg-type]
    place = position(allowed, sends, set(failed))
    able = {one for one in sends if one <= len(failed) and one < count}
    assert (place is None) == (not able)
    if place is not None:
        assert place in able
        untried = able - set(failed)
        assert place == min(untried or able)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("other", ["", "Model  House", "model house", "Modеl House", "Model House\u200b", "\u00e9"])
def test_an_adapter_is_another_by_any_of_its_four_fields(field: str, other: str) -> None:
    """R41: also by look-alikes, by nothing, and never by chance where one field ends and the next begins."""
    assert key("Handler", FIELDS | {field: other}) != key("Handler", FIELDS)
    assert key("Handler2", FIELDS) != key("Handler", FIELDS)
    shifted = {**FIELDS, "organisation": "Model House\x1flarge", "service": "prepaid"}
    assert key("Handler", {**FIELDS, "organisation": "Model", "service": "Houselarge"}) != key("Handler", shifted)


@pytest.mark.django_db
def test_the_database_and_the_engine_know_an_adapter_by_the_same_key() -> None:
    for one in (FIELDS, FIELDS | {"billing": "", "retention": ""}, FIELDS | {"service": "größe-Ж-😀"}):
        ((found,),) = query(
            "SELECT recourse_recipient_key('Handler', jsonb_build_object('organisation', %s::text, 'service', %s::text,"
            " 'billing', %s::text, 'retention', %s::text))",
            list(one.values()),
        )
        assert found == key("Handler", one)


# dispatch


def test_a_stage_goes_only_to_an_adapter_that_it_names(
    start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    """R40: not to one that says nothing, not to another's; what names nobody goes to each of them."""
    run = start_run(asking(FIELDS))
    other, right = new_hand("other", recipients=sending(OTHER)), new_hand("right", recipients=sending(OTHER, FIELDS))
    assert not hand.pull(10)
    assert not other.pull(10)
    assert not Attempt.objects.filter(run_id=run.id).exists()
    job = right.take()
    assert job.recipient == {"position": 0, **FIELDS}
    assert Attempt.objects.get(run_id=run.id).recipient == job.recipient
    start_run("plain")
    assert hand.take().recipient is None


def test_what_one_adapter_may_not_have_holds_up_nothing_behind_it(start_run: StartRun, hand: Hand) -> None:
    for _ in range(12):
        start_run(asking(FIELDS))
    plain = start_run("plain")
    queue = Queue(plain.application_id, plain.environment_id, "Handler")
    assert hand.take().run_id == plain.id
    assert leases.next_due([queue]) is None, "nothing is in sight for who sends to nobody"
    due = leases.next_due([queue], [key("Handler", FIELDS)])
    assert due is not None
    assert due <= 0


def test_it_is_the_same_where_a_policy_has_its_own_line(
    start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    rule, match = {"max_active": 5}, {"handlers": ["Handler"]}
    probe = start_run("probe", name="probe")
    Policy.objects.create(
        workspace_id=probe.workspace_id, name="five", kind="concurrency", match=match, rule=rule, status="active"
    )
    hand.finish()
    run = start_run(asking(FIELDS))
    queue = Queue(run.application_id, run.environment_id, "Handler")
    assert not hand.pull(10)
    assert leases.next_due([queue]) is None
    right = new_hand("right", recipients=sending(FIELDS))
    assert right.take().run_id == run.id


def test_fallbacks_are_used_in_the_declared_order_only(
    start_run: StartRun, new_hand: Callable[..., Hand], clock: Clock
) -> None:
    """R41: whoever could send to all three goes from one to the next; who has only the last waits for its turn."""
    run = start_run(asking(FIELDS, OTHER, THIRD, retries=3))
    third = new_hand("third", recipients=sending(THIRD))
    every = new_hand("every", recipients=sending(THIRD, OTHER, FIELDS))
    for _ in range(2):
        assert not third.pull(10)
        every.report(every.take(), "failed", error_code="E", retryable=True)
        clock.advance(2)
    third.take()
    assert told_of(run) == ["Model House", "Other House", "Third House"]


def test_who_has_only_the_first_gets_it_again(start_run: StartRun, new_hand: Callable[..., Hand], clock: Clock) -> None:
    run = start_run(asking(FIELDS, OTHER, retries=2))
    first = new_hand("first", recipients=sending(FIELDS))
    for _ in range(2):
        first.report(first.take(), "failed", error_code="E", retryable=True)
        clock.advance(2)
    second = new_hand("second", recipients=sending(OTHER))
    second.take()
    assert told_of(run) == ["Model House", "Model House", "Other House"]


def test_giving_back_allows_no_fallback(start_run: StartRun, new_hand: Callable[..., Hand]) -> None:
    """Only an attempt that failed does: not one that was released."""
    start_run(asking(FIELDS, OTHER, retries=2))
    first, second = new_hand("a", recipients=sending(FIELDS)), new_hand("b", recipients=sending(OTHER))
    job = first.take()
    leases.release(first.holder, job.stage.id, job.attempt_id)
    assert not second.pull(10)
    assert first.take().recipient == {"position": 0, **FIELDS}


def test_nothing_that_names_recipients_is_handed_on(start_run: StartRun, hand: Hand) -> None:
    run = start_run("first", asking(FIELDS))
    hand.finish()
    assert [one.state for one in Stage.objects.filter(run_id=run.id).order_by("position")] == ["completed", "ready"]
    assert QueueEntry.objects.get(stage__run_id=run.id).recipients == [key("Handler", FIELDS)]


def test_another_session_may_not_acquire_what_it_does_not_declare(
    start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    """R40: a worker that came back with another adapter does not get what its old session was handed."""
    start_run(asking(FIELDS))
    right = new_hand("right", recipients=sending(FIELDS))
    (job,) = right.pull(acquire=False)
    for stale in (hand, new_hand("stale", recipients=sending(OTHER))):
        with pytest.raises(Refusal) as caught:
            stale.acquire(job)
        assert caught.value.code == "recipient_not_allowed"
    assert right.acquire(job).acquired


# told


def test_blockers_say_to_whom_it_waits_to_be_sent(start_run: StartRun, new_hand: Callable[..., Hand]) -> None:
    run = start_run(asking(FIELDS, THIRD))
    for name, declared in (("w1", sending(OTHER)), ("w2", sending(THIRD)), ("w3", [])):
        new_hand(name, recipients=declared)
    (blocker,) = queries.blockers(run)
    assert blocker.holder == "no worker"
    assert "no live worker sends to Model House/large (billing prepaid, retention none)" in blocker.cause
    assert "w1 would send to Other House/large (billing prepaid, retention none), which is not named" in blocker.cause
    assert "w2 would send to Third House/large (billing prepaid, retention none), which is a fallback" in blocker.cause
    assert "w3 does not say to whom it sends" in blocker.cause
    new_hand("w4", recipients=sending(FIELDS))
    (blocker,) = queries.blockers(run)
    assert blocker.holder == "w4"


def test_an_effect_to_somebody_else_is_refused(start_run: StartRun, new_hand: Callable[..., Hand]) -> None:
    """R40: and what was done all the same is kept as evidence; no name at all says nothing."""
    start_run(asking(FIELDS, OTHER))
    right = new_hand("right", recipients=sending(FIELDS))
    job = right.take()

    def tell(state: str, detail: Any) -> Any:
        return tell_effects(
            right.holder, job.stage.id, job.attempt_id, [Told("model_provider", state, key="k", detail=detail)]
        )

    assert tell("declared", {"recipient": FIELDS, "tokens": 7})
    for named in (OTHER, "Model House", [FIELDS], FIELDS | {"billing": ""}, {"organisation": "Model House"}):
        with pytest.raises(Refusal) as caught:
            tell("declared", {"recipient": named})
        assert caught.value.code == "recipient_not_allowed"
    assert not LateEvidence.objects.exists()
    with pytest.raises(Refusal):
        tell("committed", {"recipient": OTHER})
    assert LateEvidence.objects.get().reason == "another recipient"


def test_pages_and_the_operations_api_show_recipients(
    start_run: StartRun, new_hand: Callable[..., Hand], people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    run = start_run(asking(FIELDS, OTHER))
    job = new_hand("w", recipients=sending(FIELDS)).take()
    viewer = as_person(people["viewer"])
    (stage,) = viewer.get(f"/v1/executions/{run.id}/stages").json()["results"]
    assert stage["recipients"] == [FIELDS, OTHER]
    (attempt,) = viewer.get(f"/v1/executions/{run.id}/attempts").json()["results"]
    assert attempt["recipient"] == {"position": 0, **FIELDS}
    client = Client()
    client.force_login(people["viewer"].user)
    assert "Model House" in client.get(f"/console/runs/{run.id}/?stage=0").content.decode()
    page = client.get(reverse("console:attempt", args=[job.attempt_id])).content.decode()
    assert "Sent to" in page
    assert "recipient 1 of its stage" in page


# over HTTP


def test_a_worker_declares_its_adapters_at_bootstrap(api: Api, api_key: str) -> None:
    """R40, P48: over the wire, trimmed; the job says to whom it goes."""
    stage = {
        "stageName": "a",
        "stageHandlerName": "Handler",
        "recipients": [FIELDS | {"organisation": " Model House "}],
    }
    assert api.post("/pipelines/idempotent", {"name": "n", "idempotencyKey": "k", "stages": [stage]}).status_code < 300
    silent = Worker(api_key, ["Handler"])
    assert silent.pull() == []
    told = {
        "workerName": "w",
        "supportedHandlers": ["Handler"],
        "recipients": [],
    }
    told["recipients"] = sending(FIELDS | {"service": "lar\tge"})
    assert api.post("/workers/bootstrap", told).status_code == 400, "no control characters"
    told["recipients"] = sending(FIELDS | {"service": " large "})
    answer = api.post("/workers/bootstrap", told)
    assert answer.status_code == 200
    silent.headers["X-Worker-Session"] = answer.json()["sessionToken"]
    (job,) = silent.pull()
    assert job["recipient"] == {"position": 0, **FIELDS}


@pytest.mark.parametrize(
    ("recipients", "path"),
    [
        (sending(FIELDS, handler="Other"), "recipients[0].handler"),
        (sending(FIELDS | {"organisation": " "}), "recipients[0].organisation"),
        (sending({"organisation": "a"}), "recipients[0].service"),
        (sending(FIELDS | {"surprise": "b"}), "recipients[0].surprise"),
        (sending(FIELDS) * 201, "recipients"),
        (["a"], "recipients[0]"),
        ({"a": 1}, "recipients"),
    ],
)
def test_a_declaration_that_says_nothing_certain_is_refused(api: Api, recipients: Any, path: str) -> None:
    told = {"workerName": "w", "supportedHandlers": ["Handler"], "recipients": recipients}
    answer = api.post("/workers/bootstrap", told)
    assert answer.status_code == 400
    assert path in answer.content.decode()
    assert not WorkerSession.objects.exists()
