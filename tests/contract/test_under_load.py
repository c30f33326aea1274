"""What only real connections to a real server show: races, hanging up, and a stop in the middle."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.db import transaction

from approvals.models import RequestDecision
from pipelines.models import Attempt, AuditEvent, GateDecision, Run, RunIdentity, Stage, Workspace
from pipelines.sql import query
from recovery.operations import Done
from tests.approvals.asked import rule
from tests.cast import Person, stages_of, unknown_id
from tests.contract.conftest import url_of_test_database, web_server
from tests.verbs import retry_stage

pytestmark = pytest.mark.django_db(transaction=True)

CREATE = {
    "idempotencyKey": "invoice-42",
    "name": "n",
    "stages": [{"stageName": "a", "stageHandlerName": "Handler"}, {"stageName": "b", "stageHandlerName": "Handler"}],
}


def all_at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Runs `act` in as many threads, begun at the same moment."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait(30)
        return act(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def session_of(server: str, api_key: str) -> dict[str, str]:
    headers = {"X-API-Key": api_key}
    body = {"workerName": "w", "supportedHandlers": ["Handler"]}
    answer = httpx.post(f"{server}/workers/bootstrap", json=body, headers=headers)
    return headers | {"X-Worker-Session": answer.json()["sessionToken"]}


def test_a_hundred_equal_creations_make_one_run(server: str, api_key: str) -> None:
    """P19, F124, F125: 1 × 201 and 99 × 200, no 5xx, one row, all with the same id."""
    headers = {"X-API-Key": api_key}
    answers = all_at_once(
        100, lambda _: httpx.post(f"{server}/pipelines/idempotent", json=CREATE, headers=headers, timeout=60)
    )
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 99}
    assert len({answer.json()["pipeline"]["id"] for answer in answers}) == 1
    assert (Run.objects.count(), Stage.objects.count(), RunIdentity.objects.count()) == (1, 2, 1)


def test_equal_keys_with_different_intents_race_to_one_run_and_typed_conflicts(server: str, api_key: str) -> None:
    """P20, F125: whoever comes first wins; every other intent is 409, never a 5xx."""
    headers = {"X-API-Key": api_key}

    def create(number: int) -> httpx.Response:
        body = {**CREATE, "name": f"intent-{number % 4}"}
        return httpx.post(f"{server}/pipelines/idempotent", json=body, headers=headers, timeout=60)

    answers = all_at_once(40, create)
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 9, 409: 30}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"idempotency_conflict"}
    assert Run.objects.count() == 1


def test_many_workers_pulling_at_once_never_get_the_same_job(server: str, api_key: str, start_run: Any) -> None:
    """I2, P4: real connections, eight sessions, forty jobs."""
    start_run(*({"name": f"s{number}", "depends_on": ()} for number in range(40)), {"name": "z", "depends_on": ["s0"]})
    sessions = [session_of(server, api_key) for _ in range(8)]

    def drain(number: int) -> list[str]:
        got: list[str] = []
        with httpx.Client(base_url=server, headers=sessions[number], timeout=60) as client:
            while True:
                answer = client.post("/jobs/pull", json={"maxJobs": 3, "acquire": True, "waitSeconds": 0.3})
                if answer.status_code == 204:
                    return got
                got += [job["stageId"] for job in answer.json()["jobs"]]

    handed = [stage for got in all_at_once(8, drain) for stage in got]
    assert len(handed) == len(set(handed)) == 40
    assert Attempt.objects.count() == 40


def test_two_equal_decisions_at_once_have_one_effect(server: str, api_key: str, start_run: Any, hand: Any) -> None:
    """F138: a double click acts once, and both hear the same; a race of opposites has one winner."""
    headers = {"X-API-Key": api_key}
    for opposites in (False, True):
        run = start_run()
        hand.report(hand.take(), "waiting")
        stage_id = stages_of(run)[0].id

        def decide(number: int, stage_id: Any = stage_id, opposites: bool = opposites) -> httpx.Response:
            approved = not (opposites and number % 2)
            return httpx.post(f"{server}/stages/{stage_id}/resume", json={"approved": approved}, headers=headers)

        answers = Counter(answer.status_code for answer in all_at_once(6, decide))
        assert answers == ({200: 3, 409: 3} if opposites else {200: 6})
        assert GateDecision.objects.filter(gate__stage_id=stage_id).count() == 1
        assert AuditEvent.objects.filter(stage=stage_id, outcome="allowed").count() == 1


def test_two_equal_decisions_on_a_request_at_once_carry_it_out_once(
    server: str, workspace: Workspace, people: dict[str, Person], start_run: Any, hand: Any
) -> None:
    """F138: the click, its double and whoever is a moment late hear one thing, and the stage begins anew once."""
    rule(workspace, "retry", count=1)
    for opposites in (False, True):
        asked, stage = waiting_retry(people, start_run, hand)

        def decide(number: int, asked: Done = asked, opposites: bool = opposites) -> httpx.Response:
            told = {"approved": not (opposites and number % 2), "reason": "looked at", "plan_digest": asked.plan_digest}
            return decided(server, people["approver"], asked, **told)

        answers = Counter(answer.status_code for answer in all_at_once(6, decide))
        assert answers == ({200: 3, 409: 3} if opposites else {200: 6})
        made = RequestDecision.objects.get(request__subject=asked.operation_id)
        stage.refresh_from_db()
        assert (stage.state, stage.epoch) == (("ready", 2) if made.approved else ("failed", 1))
        told = AuditEvent.objects.filter(stage=stage.id, action__in=["operation.approve", "operation.reject"])
        assert (told.count(), told.filter(outcome="allowed").count()) == (6, 1)
        hand.finish()


def test_nothing_is_handed_to_a_client_that_has_hung_up(server: str, api_key: str, start_run: Any) -> None:
    """The job goes to the next one who asks, as its first attempt."""
    headers = session_of(server, api_key)
    address = urlsplit(server)
    body = json.dumps({"waitSeconds": 30, "acquire": True}).encode()
    lines = ["POST /jobs/pull HTTP/1.1", f"Host: {address.netloc}", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    for _ in range(3):
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall("\r\n".join(lines).encode() + body)
            _until_listening("web")
    run = start_run()
    answer = httpx.post(f"{server}/jobs/pull", json={"waitSeconds": 5}, headers=headers, timeout=20)
    assert answer.status_code == 200
    (job,) = answer.json()["jobs"]
    assert (job["pipelineId"], job["attempt"]) == (str(run.id), 1)
    assert Attempt.objects.count() == 1


def test_a_server_that_is_told_to_end_lets_waiting_pulls_go(api_key: str, start_run: Any) -> None:
    """204 at once, no broken connection, and the process ends."""
    with web_server(url_of_test_database("ending"), RECOURSE_WEB_PROCESSES="1") as (server, process):
        headers = session_of(server, api_key)
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(
                httpx.post, f"{server}/jobs/pull", json={"waitSeconds": 30}, headers=headers, timeout=40
            )
            _until_listening("ending")
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert answer.result(10).status_code == 204
            process.wait(10)
            assert time.monotonic() - begun < 5
        assert process.returncode == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_sent_in_chunks_is_read_and_bounded_like_any_other(server: str, api_key: str, chunked: bool) -> None:
    """Contract §2: above the limit 413, whether the length was told or is met while reading."""

    def send(raw: bytes) -> httpx.Response:
        headers = {"X-API-Key": api_key, "Content-Type": "application/json"}
        content = iter([raw[:100], raw[100:]]) if chunked else raw
        return httpx.post(f"{server}/pipelines/idempotent", content=content, headers=headers, timeout=30)

    assert send(json.dumps(CREATE).encode()).status_code == 201
    refused = send(json.dumps({**CREATE, "padding": "x" * 1024 * 1024}).encode())
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    assert Run.objects.count() == 1


def test_an_unreachable_database_is_a_typed_503(api_key: str) -> None:
    """P56, F125: never a 500 and never HTML; result routes say that the result was not confirmed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"postgres://nobody@127.0.0.1:{taken.getsockname()[1]}/nothing?connect_timeout=1"
        taken.close()
        routes = [("/pipelines/idempotent", "unavailable"), ("/results", "result_not_confirmed")]
        routes += [(f"/stages/{unknown_id()}/result", "result_not_confirmed"), ("/jobs/pull", "unavailable")]
        routes += [(f"/stages/{unknown_id()}/resume", "unavailable")]
        routes += [(f"/v1/approvals/{unknown_id()}/{verb}", "unavailable") for verb in ("decision", "withdraw")]
        with web_server(dead) as (server, _):
            headers = {"X-API-Key": api_key, "X-Worker-Session": "rs_any", "Authorization": "Bearer any"}
            answers = all_at_once(
                len(routes),
                lambda number: httpx.post(f"{server}{routes[number][0]}", json={}, headers=headers, timeout=20),
            )
        for (_, code), answer in zip(routes, answers, strict=True):
            assert (answer.status_code, answer.json()["code"]) == (503, code)
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert int(answer.headers["Retry-After"]) >= 1


def test_a_result_whose_storing_broke_off_is_503_and_counts_once_when_sent_again(
    server: str, api_key: str, start_run: Any
) -> None:
    """P54, P56, F16: 202 only once durable; the same result again applies it exactly once."""
    run = start_run()
    headers = session_of(server, api_key)
    with httpx.Client(base_url=server, headers=headers, timeout=30) as client:
        (job,) = client.post("/jobs/pull", json={"acquire": True}).json()["jobs"]
        result = {"executionId": job["executionId"], "attempt": 1, "status": "succeeded", "output": 1}
        path = f"/stages/{job['stageId']}/result"
        with ThreadPoolExecutor(1) as threads, transaction.atomic():
            Run.objects.select_for_update().get(id=run.id)
            answer = threads.submit(client.post, path, json=result)
            _until(_kill_whoever_waits_for_a_lock, "nobody waits for the run's lock")
            refused = answer.result(20)
        assert (refused.status_code, refused.json()["code"]) == (503, "result_not_confirmed")
        assert stages_of(run)[0].state == "running"
        assert [client.post(path, json=result).status_code for _ in range(2)] == [202, 202]
    (stage,) = stages_of(run)
    assert (stage.state, stage.outputs.count(), stage.attempt_number) == ("completed", 1, 1)


def test_a_decision_that_broke_off_was_not_made_and_counts_once_when_made_again(
    server: str, workspace: Workspace, people: dict[str, Person], start_run: Any, hand: Any
) -> None:
    """F125, F138: 503 means that nothing of it is there: no vote, no retry, no event that somebody agreed."""
    rule(workspace, "retry", count=1)
    asked, stage = waiting_retry(people, start_run, hand)
    told = {"approved": True, "plan_digest": asked.plan_digest}
    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        Run.objects.select_for_update().get(id=stage.run_id)
        answer = threads.submit(decided, server, people["approver"], asked, **told)
        _until(_kill_whoever_waits_for_a_lock, "nobody waits for the run's lock")
        refused = answer.result(20)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert not RequestDecision.objects.exists()
    assert not AuditEvent.objects.filter(action="operation.approve", outcome="allowed").exists()
    stage.refresh_from_db()
    assert (stage.state, stage.epoch) == ("failed", 1)
    again = [decided(server, people["approver"], asked, **told).json() for _ in range(2)]
    assert [(one["status"], one["replayed"]) for one in again] == [("succeeded", False), ("succeeded", True)]
    stage.refresh_from_db()
    assert (stage.state, stage.epoch, RequestDecision.objects.count()) == ("ready", 2, 1)


def waiting_retry(people: dict[str, Person], start_run: Any, hand: Any) -> tuple[Done, Stage]:
    """A retry of a failed stage, which waits for others to agree."""
    run = start_run()
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    (stage,) = stages_of(run)
    asked = retry_stage(stage.id, actor=people["operator"].actor)
    assert asked.status == "awaiting_approval"
    return asked, stage


def decided(server: str, person: Person, asked: Done, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {person.token}"}
    path = f"{server}/v1/approvals/{asked.operation_id}/decision"
    return httpx.post(path, json=body, headers=headers, timeout=60)


def _kill_whoever_waits_for_a_lock() -> bool:
    return bool(
        query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
        )
    )


def _until(condition: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, why
        threading.Event().wait(0.01)


def _until_listening(name: str) -> None:
    """Until the server of that name has an ear open, because a pull waits in it."""
    _until(
        lambda: bool(
            query(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
                " AND state = 'idle' AND application_name = %s",
                [name],
            )
        ),
        "no ear is open",
    )
