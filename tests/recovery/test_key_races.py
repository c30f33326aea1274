"""Verbs that race: real connections, started together. A race never answers 5xx, and one key acts once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection

from pipelines.models import AuditEvent, DeadLetter, Event, Run
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Callable[[], Api]:
    """A client for each thread."""
    return lambda: as_person(people["operator"])


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers to calls that begin at the same moment, each on a connection of its own, in their order."""
    barrier, answers = threading.Barrier(len(calls)), [None] * len(calls)

    def run(index: int, call: Callable[[], Any]) -> None:
        try:
            barrier.wait(timeout=20)
            answers[index] = call()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert None not in answers, "a call did not come back"
    return answers


def failed(start_run: StartRun, hand: Hand) -> Any:
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return stages_of(run)[0]


def test_a_key_told_many_times_at_once_retries_once(
    start_run: StartRun, hand: Hand, operator: Callable[[], Api]
) -> None:
    """F56, F123's kind: one epoch, one operation; the others are told the same."""
    stage = failed(start_run, hand)
    clients = [operator() for _ in range(8)]
    answers = together(
        [
            lambda client=client: client.post(f"/v1/stages/{stage.id}/retry", {"reason": "r"}, idempotency_key="once")
            for client in clients
        ]
    )
    assert [answer.status_code for answer in answers] == [200] * 8
    assert sorted(answer.json()["replayed"] for answer in answers) == [False] + [True] * 7
    assert len({answer.json()["operation_id"] for answer in answers}) == 1
    stage.refresh_from_db()
    assert (stage.epoch, Operation.objects.count()) == (2, 1)
    assert AuditEvent.objects.filter(action="stage.retry", outcome="allowed").count() == 1


def test_one_key_for_different_stages_at_once_is_one_act_and_typed_refusals(
    start_run: StartRun, hand: Hand, operator: Callable[[], Api]
) -> None:
    """The locks are those of different runs, so only the database can tell; nothing of a refused one remains."""
    stages = [failed(start_run, hand) for _ in range(6)]
    clients = [operator() for _ in stages]
    answers = together(
        [
            lambda client=client, stage=stage: client.post(f"/v1/stages/{stage.id}/retry", {}, idempotency_key="once")
            for client, stage in zip(clients, stages, strict=True)
        ]
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
    codes = {answer.json()["code"] for answer in answers if answer.status_code == 409}
    assert codes == {"recovery_idempotency_conflict"}
    for stage in stages:
        stage.refresh_from_db()
    assert sorted(stage.epoch for stage in stages) == [1] * 5 + [2]
    assert DeadLetter.objects.filter(state="open").count() == 5
    assert Event.objects.filter(kind="stage.retry").count() == 1


def test_pauses_and_resumes_at_once_leave_what_was_accepted_last(
    start_run: StartRun, operator: Callable[[], Api]
) -> None:
    """F68: every call is accepted or a typed 409; the state is the last accepted one's, and the events alternate."""
    run = start_run("first")
    clients = [operator() for _ in range(10)]

    def alternate(client: Api, offset: int) -> list[int]:
        verbs = ("pause", "resume") if offset % 2 else ("resume", "pause")
        return [client.post(f"/v1/executions/{run.id}/{verbs[turn % 2]}").status_code for turn in range(6)]

    answers = together([lambda c=client, n=number: alternate(c, n) for number, client in enumerate(clients)])
    statuses = [status for answer in answers for status in answer]
    assert set(statuses) <= {200, 409}
    kinds = list(
        Event.objects.filter(run=run, kind__in=["run.pause", "run.resume"])
        .order_by("id")
        .values_list("kind", flat=True)
    )
    assert len(kinds) == statuses.count(200)
    assert kinds == [("run.pause", "run.resume")[turn % 2] for turn in range(len(kinds))]
    run.refresh_from_db()
    assert run.paused == (kinds[-1] == "run.pause")
    assert run.status == ("paused" if run.paused else "queued")


def test_a_cancel_and_a_retry_at_once_never_both_stand(
    start_run: StartRun, hand: Hand, operator: Callable[[], Api]
) -> None:
    """I8: whichever is first, a cancelled run has no stage that may run."""
    for _ in range(5):
        run = start_run({"name": "a", "depends_on": []}, {"name": "b", "depends_on": ["a"]})
        hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
        first = stages_of(run)[0]
        one, other = operator(), operator()
        assert one.post(f"/v1/stages/{first.id}/retry").status_code == 200
        cancelled, skipped = together(
            [
                lambda: one.post(f"/v1/executions/{run.id}/cancel"),  # noqa: B023 - called before the next turn
                lambda: other.post(f"/v1/stages/{first.id}/skip", {"reason": "r"}),  # noqa: B023
            ]
        )
        assert cancelled.status_code == 200
        assert skipped.status_code in (200, 409)
        states = {stage.state for stage in stages_of(run)}
        assert states <= {"cancelled", "skipped"}
        assert Run.objects.get(id=run.id).status == "cancelled"
