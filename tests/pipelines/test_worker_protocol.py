"""The protocol of a custom HTTP worker, step by step, and what each step refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings

from pipelines.models import Attempt, LateEvidence, LogLine, Run, Stage, WorkerSession
from tests.cast import Api, Person, Worker, stages_of, unknown_id
from tests.clock import Clock
from tests.verbs import pause_run

Start = Callable[..., Run]
NewWorker = Callable[..., Worker]


def named(job: dict[str, Any]) -> dict[str, Any]:
    return {"executionId": job["executionId"]}


def item(job: dict[str, Any], status: str = "succeeded", **told: Any) -> dict[str, Any]:
    return {"stageId": job["stageId"], **named(job), "attempt": job["attempt"], "status": status, **told}


# sessions


def test_bootstrap_opens_a_session_and_registers_handlers(api: Api, application: Any) -> None:
    """P48: the answer says who the worker is, and the times it must keep to."""
    told = {
        "workerName": "w",
        "supportedHandlers": ["A", "B", "A"],
        "instanceId": "i",
        "workerVersion": "1",
        "sdkVersion": "2",
        "hostName": "h",
        "pid": 7,
        "metadata": {"zone": "a"},
    }
    answer = api.post("/workers/bootstrap", told)
    assert answer.status_code == 200
    body = answer.json()
    assert body["application"] == {"id": str(application.id), "name": "billing"}
    times = (body["leaseSeconds"], body["renewSeconds"], body["visibilitySeconds"])
    assert times == (
        settings.RECOURSE_LEASE_SECONDS,
        settings.RECOURSE_RENEW_SECONDS,
        settings.RECOURSE_VISIBILITY_SECONDS,
    )
    session = WorkerSession.objects.get(id=body["workerId"])
    assert (session.handlers, session.pid, session.metadata) == (["A", "B"], 7, {"zone": "a"})
    assert body["sessionToken"].encode() not in bytes(session.digest or b"")


def test_each_bootstrap_is_another_session(new_worker: NewWorker) -> None:
    """A worker's name proves nothing: what the first session holds is not the second one's."""
    first, second = new_worker("w", "Handler"), new_worker("w", "Handler")
    assert first.session["workerId"] != second.session["workerId"]
    assert first.session["sessionToken"] != second.session["sessionToken"]


WORKER_CALLS = [
    ("/workers/heartbeat", {}),
    ("/workers/shutdown", {}),
    ("/jobs/pull", {}),
    ("/jobs/ack", {"deliveryId": "d"}),
    ("/leases/renew", {"leases": []}),
    ("/results", {"results": [{}]}),
    ("/stages/{}/lease/acquire", {}),
    ("/stages/{}/lease/renew", {}),
    ("/stages/{}/release", {}),
    ("/stages/{}/result", {}),
    ("/stages/{}/termination", {}),
    ("/stages/{}/runs", {}),
    ("/stages/{}/runs/look", {}),
    ("/stages/{}/progress", {}),
    ("/stages/{}/logs", {}),
]


@pytest.mark.parametrize(("path", "body"), WORKER_CALLS)
def test_a_worker_call_needs_a_session_of_its_own_application(
    path: str, body: Any, api: Api, worker: Worker, new_worker: NewWorker, sibling_key: str, foreign_key: str
) -> None:
    """Contract §2: no session, an unknown one, one of another application, a revoked one: all 401."""
    path = path.format(unknown_id())
    token = worker.session["sessionToken"]
    assert api.post(path, body).status_code == 401
    assert api.post(path, body, X_Worker_Session="rs_unknown").status_code == 401
    for secret in (sibling_key, foreign_key):
        assert Api({"X-API-Key": secret}).post(path, body, X_Worker_Session=token).status_code == 401
    WorkerSession.objects.update(state="revoked")
    refused = worker.post(path, body)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")


def test_every_worker_call_is_a_heartbeat_written_down_now_and_then(
    worker: Worker, clock: Clock, django_assert_num_queries: Any
) -> None:
    """Contract §2: silence never ends a session; a sign of life costs a write every few seconds at most."""

    def seen() -> Any:
        return WorkerSession.objects.get().last_seen_at

    begun = seen()
    with django_assert_num_queries(1):
        worker.post("/workers/heartbeat")
    assert seen() == begun
    clock.advance(6)
    with django_assert_num_queries(2):
        worker.post("/workers/heartbeat")
    assert seen() > begun
    clock.advance(days=30)
    answer = worker.post("/jobs/pull")
    assert answer.status_code == 204
    assert (clock.now() - seen()).total_seconds() < 5


def test_shutdown_drains_and_what_is_held_may_still_be_finished(worker: Worker, start_run: Start) -> None:
    """Contract §2: nothing more is handed out; the command says drain; again the same."""
    start_run("first", {"name": "second", "depends_on": ()}, {"name": "third", "depends_on": ["first"]})
    job = worker.take()
    for _ in range(2):
        answer = worker.post("/workers/shutdown")
        assert (answer.status_code, answer.json()) == (200, {"commands": [{"command": "drain"}]})
    assert worker.post("/jobs/pull", {"waitSeconds": 30}).status_code == 204
    assert worker.post("/workers/heartbeat").json() == {"commands": [{"command": "drain"}]}
    renewed = worker.post(f"/stages/{job['stageId']}/lease/renew", named(job)).json()
    assert (renewed["acquired"], renewed["commands"]) == (True, [{"command": "drain"}])
    assert worker.report(job).status_code == 202
    assert Attempt.objects.count() == 1


# jobs


def test_an_empty_queue_has_no_job(worker: Worker) -> None:
    """P49."""
    answer = worker.post("/jobs/pull")
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_job_carries_what_the_handler_needs(worker: Worker, start_run: Start) -> None:
    """Contract §2: the job's fields; outputs of its dependencies by stage name; no lease unless asked for."""
    run = start_run(
        {"name": "first", "input": "raw"},
        {"name": "second", "options": {"timeout": 9}, "effect_mode": "external"},
        trace={"traceparent": "00-1-2-01"},
        deadline_seconds=600,
    )
    first = worker.take(acquire=False)
    assert "lease" not in first
    assert (first["input"], first["dependencies"], first["attempt"], first["epoch"]) == ("raw", {}, 1, 1)
    assert worker.acquire(first)["acquired"] is True
    output = {"z": 1, "a": [1.5, "ü", None], "m": {"\u0000": "\ud800"}}
    assert worker.report(first, output=output).status_code == 202
    job = worker.take()
    assert set(job) == {
        "deliveryId", "stageId", "stageName", "stageHandlerName", "pipelineId", "pipelineName", "executionId",
        "attempt", "epoch", "requestDigest", "input", "dependencies", "contextItems", "timeoutSeconds", "effectMode",
        "effectProtocol", "idempotencyKey", "deadlineAt", "traceparent", "lease",
    }  # fmt: skip
    assert job["dependencies"] == {"first": output}
    assert list(job["dependencies"]["first"]) == ["z", "a", "m"]
    assert (job["timeoutSeconds"], job["effectMode"], job["traceparent"]) == (9, "external", "00-1-2-01")
    assert (job["pipelineId"], job["pipelineName"]) == (str(run.id), "nightly")
    assert (job["lease"]["acquired"], job["lease"]["attempt"]) == (True, 1)


def test_handlers_narrow_a_pull_and_an_unregistered_one_cannot_be_pulled(
    new_worker: NewWorker, start_run: Start
) -> None:
    """P48: 400 naming it; the default is all that the session registered."""
    both, one = new_worker("both", "A", "B"), new_worker("one", "A")
    start_run({"name": "b", "handler": "B"})
    assert both.pull(handlers=["A"]) == []
    assert one.pull() == []
    refused = one.post("/jobs/pull", {"handlers": ["A", "B"]})
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["handlers[1]"])
    assert [job["stageHandlerName"] for job in both.pull()] == ["B"]


def test_a_batch_is_handed_out_in_a_fixed_number_of_statements(
    worker: Worker, start_run: Start, django_assert_max_num_queries: Any
) -> None:
    """Style 14: pull, renew and results cost the same for one and for many."""
    start_run(
        *({"name": f"s{number}", "depends_on": ()} for number in range(60)), {"name": "last", "depends_on": ["s0"]}
    )
    with django_assert_max_num_queries(14):
        jobs = worker.pull(maxJobs=200)
    assert len(jobs) == 60
    with django_assert_max_num_queries(8):
        worker.post("/leases/renew", {"leases": [{"stageId": job["stageId"], **named(job)} for job in jobs]})
    with django_assert_max_num_queries(18):
        answer = worker.post("/results", {"results": [item(job, output=1) for job in jobs]})
    assert all(receipt["accepted"] for receipt in answer.json()["results"])


# leases


def test_only_one_session_gets_the_lease(worker: Worker, new_worker: NewWorker, start_run: Start) -> None:
    """P4, P50: the others are told why not; asked again by its holder it is acquired again."""
    start_run()
    job = worker.take(acquire=False)
    assert worker.acquire(job)["acquired"] is True
    assert worker.acquire(job)["acquired"] is True
    refused = new_worker("w", "Handler").acquire(job)
    assert (refused["acquired"], refused["reason"]) == (False, "lease_held")


def test_renewing_extends_a_live_lease_and_never_revives_an_expired_one(
    worker: Worker, start_run: Start, clock: Clock
) -> None:
    """P51."""
    start_run()
    job = worker.take()
    path = f"/stages/{job['stageId']}/lease/renew"
    clock.advance(settings.RECOURSE_LEASE_SECONDS - 1)
    renewed = worker.post(path, named(job)).json()
    assert renewed["acquired"] is True
    assert renewed["leaseExpiresAt"] > job["lease"]["leaseExpiresAt"]
    clock.advance(settings.RECOURSE_LEASE_SECONDS + 1)
    late = worker.post(path, named(job)).json()
    assert (late["acquired"], late["reason"]) == (False, "lease_expired")
    target = {"stageId": job["stageId"], "executionId": job["executionId"]}
    assert late["commands"] == [{"command": "cancel", **target}]


def test_many_leases_are_renewed_at_once_each_with_its_own_answer(
    worker: Worker, new_worker: NewWorker, start_run: Start
) -> None:
    start_run("a")
    start_run("b")
    mine, theirs = worker.take(), new_worker("w2", "Handler").take()
    unknown = {"stageId": unknown_id(), "executionId": unknown_id()}
    wanted = [{"stageId": job["stageId"], **named(job)} for job in (theirs, mine)] + [unknown]
    leases = worker.post("/leases/renew", {"leases": wanted}).json()["leases"]
    assert [(lease["executionId"], lease["acquired"], lease["reason"]) for lease in leases] == [
        (theirs["executionId"], False, "lease_not_owned"),
        (mine["executionId"], True, None),
        (unknown["executionId"], False, "stale_execution"),
    ]


def test_a_pause_reaches_the_worker_with_its_renewal_and_the_stage_may_be_given_back(
    worker: Worker, start_run: Start, people: dict[str, Person]
) -> None:
    """Contract §2: release counts nothing; the same again changes nothing; afterwards the lease is gone."""
    run = start_run()
    job = worker.take()
    pause_run(run.id, actor=people["operator"].actor)
    renewed = worker.post(f"/stages/{job['stageId']}/lease/renew", named(job)).json()
    assert [command["command"] for command in renewed["commands"]] == ["pause"]
    for _ in range(2):
        released = worker.post(f"/stages/{job['stageId']}/release", named(job))
        assert (released.status_code, released.json()) == (200, {"stageId": job["stageId"], "status": "ready"})
    run.refresh_from_db()
    (stage,) = stages_of(run)
    assert (run.status, stage.state, stage.retry_count, stage.recovery_count) == ("paused", "ready", 0, 0)
    assert worker.report(job).status_code == 409


# results


def test_a_result_is_taken_once_and_the_same_again_gets_the_same_answer(worker: Worker, start_run: Start) -> None:
    """P52–P54, P56: repeated delivery of the same result changes nothing."""
    run = start_run("first", "second")
    job = worker.take()
    answers = [worker.report(job, output={"n": 1}) for _ in range(3)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (202, {"accepted": True, "stageStatus": "completed"})
    ] * 3
    first, second = stages_of(run)
    assert (first.state, second.state) == ("completed", "ready")
    assert first.outputs.count() == 1
    assert not LateEvidence.objects.exists()


@pytest.mark.parametrize("missing", ["executionId", "attempt", "status"])
def test_a_result_must_say_whose_it_is(worker: Worker, start_run: Start, missing: str) -> None:
    """P52: any of them missing is 400, naming it, and the stage goes on running."""
    run = start_run()
    job = worker.take()
    body = {name: value for name, value in item(job).items() if name not in ("stageId", missing)}
    refused = worker.post(f"/stages/{job['stageId']}/result", body)
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [missing])
    assert stages_of(run)[0].state == "running"


def test_a_result_of_another_attempt_session_or_time_is_late_evidence(
    worker: Worker, new_worker: NewWorker, start_run: Start, clock: Clock
) -> None:
    """P5, F09: 409, kept, and state, output and logs stay as they were."""
    run = start_run()
    job = worker.take()
    thief = new_worker("w2", "Handler")
    line = {"level": "info", "message": "late"}
    assert thief.report(job, output="stolen", logs=[line]).status_code == 409
    assert worker.report({**job, "attempt": 2}, output="wrong attempt").status_code == 409
    assert worker.report(job, output="wrong request", requestDigest="0" * 64).status_code == 409
    clock.advance(settings.RECOURSE_LEASE_SECONDS + 1)
    late = worker.report(job, output="too late")
    assert (late.status_code, late.json()["code"]) == (409, "stale_execution")
    (stage,) = stages_of(run)
    assert (stage.state, stage.output_id, LogLine.objects.count()) == ("running", None, 0)
    assert LateEvidence.objects.count() == 4


def test_an_earlier_attempts_answer_does_not_attach_to_a_new_request(
    worker: Worker, start_run: Start, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """R20, F119: neither under its own name after a retry, nor under the new attempt's name with the old digest."""
    run = start_run()
    first = worker.take()
    worker.report(first, "failed", errorCode="VALIDATION_ERROR")
    retried = as_person(people["operator"]).post(f"/v1/stages/{first['stageId']}/retry", {"scope": "stage"})
    assert retried.status_code == 200, retried.content
    second = worker.take()
    for named, digest in ((first, first), (second, first)):
        answer = worker.report(named, output="of the first request", requestDigest=digest["requestDigest"])
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_execution")
    (stage,) = stages_of(run)
    assert (stage.state, stage.output_id, LateEvidence.objects.count()) == ("running", None, 2)
    assert worker.report(second, output=2, requestDigest=second["requestDigest"]).status_code == 202


def test_the_attempt_of_another_stage_is_none_of_this_one(worker: Worker, start_run: Start) -> None:
    start_run("a")
    start_run("b")
    first, second = worker.pull(maxJobs=2)
    assert worker.report({**first, "stageId": second["stageId"]}).status_code == 404
    assert Stage.objects.filter(state="running").count() == 2


def test_one_bad_item_spoils_no_other(worker: Worker, start_run: Start) -> None:
    """Contract §2: each item is answered by itself, in the order asked."""
    run = start_run(*({"name": name, "depends_on": ()} for name in "abcd"), {"name": "e", "depends_on": ["a"]})
    a, b, c, d = worker.pull(maxJobs=4)
    unknown = {**item(a), "stageId": unknown_id(), "executionId": unknown_id()}
    sent = [
        item(b) | {"attempt": "1"},
        item(a, output=1),
        "nonsense",
        unknown,
        item(c, "failed", errorCode="BUSINESS_REJECTED"),
        item(d) | {"attempt": 9},
        item(a, output=1),
    ]
    answer = worker.post("/results", {"results": sent})
    assert answer.status_code == 202
    told = [(got["accepted"], got.get("stageStatus"), got.get("code")) for got in answer.json()["results"]]
    assert told == [
        (False, None, "validation_error"),
        (True, "completed", None),
        (False, None, "validation_error"),
        (False, None, "not_found"),
        (True, "failed", None),
        (False, None, "stale_execution"),
        (True, "completed", None),
    ]
    assert answer.json()["results"][0]["stageId"] == b["stageId"]
    assert list(answer.json()["results"][0]["errors"]) == ["attempt"]
    assert [stage.state for stage in stages_of(run)] == ["completed", "running", "failed", "running", "ready"]


def test_a_failure_keeps_its_whole_story(worker: Worker, api: Api, start_run: Start) -> None:
    """N6, P41, P42: code, message and the full traceback; the run says which stage failed it."""
    run = start_run()
    job = worker.take()
    trace = "Traceback…\n" * 5_000
    told = {"errorCode": "UPSTREAM_ERROR", "errorMessage": "no answer", "traceback": trace, "retryable": False}
    assert worker.report(job, "failed", **told).json()["stageStatus"] == "failed"
    assert run.attempts.get().traceback == trace
    shown = api.get(f"/pipelines/{run.id}").json()
    assert shown["failure"] == {"code": "UPSTREAM_ERROR", "message": "no answer", "stageId": job["stageId"]}
    assert shown["stages"][0]["lastErrorCode"] == "UPSTREAM_ERROR"


def test_a_scheduled_retry_says_when(worker: Worker, api: Api, start_run: Start) -> None:
    """P31–P35: the wire shows the due time and the count of automatic retries."""
    run = start_run({"name": "a", "options": {"max_retries": 1, "retry_interval": 10}})
    assert worker.report(worker.take(), "failed", errorCode="X").json()["stageStatus"] == "retry_scheduled"
    (stage,) = api.get(f"/pipelines/{run.id}").json()["stages"]
    assert (stage["status"], stage["retryAttempt"], stage["attempt"]) == ("retry_scheduled", 1, 1)
    assert stage["nextRetryAt"] is not None
    assert worker.pull() == []


def test_an_output_that_is_too_large_is_taken_and_fails_the_stage(worker: Worker, start_run: Start) -> None:
    """Contract §2: 202, terminal code OUTPUT_TOO_LARGE, at the limit exactly still fine."""
    run = start_run(
        *({"name": name, "depends_on": (), "options": {"max_output_bytes": 12}} for name in "ab"),
        {"name": "c", "depends_on": ["a"]},
    )
    fits, too_large = worker.pull(maxJobs=2)
    assert worker.report(fits, output="x" * 10).json()["stageStatus"] == "completed"
    taken = worker.report(too_large, output="x" * 11)
    assert (taken.status_code, taken.json()["stageStatus"]) == (202, "failed")
    assert stages_of(run)[1].last_error_code == "OUTPUT_TOO_LARGE"


def test_context_set_by_a_handler_reaches_the_run_and_later_stages(worker: Worker, api: Api, start_run: Start) -> None:
    """P89: the latest value of a key wins; sensitive ones stay hidden."""
    run = start_run("first", "second", context_items=[{"key": "invoice", "value": "1"}])
    items = [{"key": "invoice", "value": "2"}, {"key": "token", "value": "secret", "isSensitive": True}]
    worker.report(worker.take(), contextItems=items)
    assert [(got["key"], got["value"]) for got in api.get(f"/pipelines/{run.id}").json()["contextItems"]] == [
        ("invoice", "2"),
        ("token", "[REDACTED]"),
    ]
    assert [(got["key"], got["value"]) for got in worker.take()["contextItems"]] == [
        ("invoice", "2"),
        ("token", "secret"),
    ]


# deliveries, progress, logs


def test_acknowledging_confirms_a_known_delivery_and_nothing_else(worker: Worker, start_run: Start) -> None:
    """P53: before or after the result, again and again; unknown is 404."""
    run = start_run()
    job = worker.take()
    for _ in range(2):
        assert worker.post("/jobs/ack", {"deliveryId": job["deliveryId"]}).status_code == 200
    assert stages_of(run)[0].state == "running"
    worker.report(job)
    assert worker.post("/jobs/ack", {"deliveryId": job["deliveryId"]}).status_code == 200
    for unknown in (unknown_id(), "not-an-id"):
        assert worker.post("/jobs/ack", {"deliveryId": unknown}).status_code == 404


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("progress", {"percent": 50.5, "message": "half"}),
        ("logs", {"lines": [{"level": "info", "message": "m", "at": "2026-01-01T00:00:00Z", "fields": {"n": 1}}]}),
    ],
)
def test_progress_and_logs_are_written_under_a_live_lease_only(
    route: str, told: dict[str, Any], worker: Worker, new_worker: NewWorker, start_run: Start, clock: Clock
) -> None:
    """Model §2: every worker write is fenced: attempt, session, live lease."""
    run = start_run()
    job = worker.take(acquire=False)
    path, body = f"/stages/{job['stageId']}/{route}", named(job) | told

    def refused(by: Worker) -> bool:
        answer = by.post(path, body)
        return (answer.status_code, answer.json()["code"]) == (409, "stale_execution")

    assert refused(worker)  # dispatched, not acquired
    worker.acquire(job)
    assert refused(new_worker("w2", "Handler"))
    for _ in range(2):
        assert worker.post(path, body).status_code == 202
    clock.advance(settings.RECOURSE_LEASE_SECONDS)
    assert refused(worker)
    attempt = run.attempts.get()
    if route == "progress":
        assert (attempt.progress.percent, attempt.progress.message) == (50.5, "half")
    else:
        assert [(line.message, line.fields) for line in attempt.log_lines.all()] == [("m", {"n": 1})] * 2
