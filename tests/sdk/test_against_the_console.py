"""The package against the console itself: its web server in a process of its own, real leases, the real database."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import psutil
import pytest
import rfc8785
from recourse import (
    ApprovalStale,
    ArtifactImmutable,
    Client,
    Failure,
    GateDecisionConflict,
    IdempotencyConflict,
    NeedsReconciliation,
    OperatorReviewRequired,
    PermissionDenied,
    PlanChanged,
    Registry,
    Release,
    SelfApproval,
    StageContext,
    StaleRequest,
    SyncClient,
    Waiting,
    Worker,
)

from approvals.models import ApprovalRule
from pipelines.models import Attempt, LateEvidence, LogLine, Workspace
from pipelines.models.base import RecourseNow
from pipelines.sweeps import sweep
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.conftest import eventually
from tests.verbs import pause_run, resume_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Web = tuple[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    """A console whose workers renew every second."""
    with web_server(url_of_test_database("sdk"), RECOURSE_LEASE_SECONDS="60", RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def client(web: Web, api_key: str) -> Iterator[SyncClient]:
    with SyncClient(web[0], api_key) as client:
        yield client


@pytest.fixture
def worker(web: Web, api_key: str, registry: Registry) -> Iterator[Callable[[], Worker]]:
    """Starts a worker for the handlers registered so far."""
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2, stop_seconds=0.5))
        started[-1].start()
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


def create(client: SyncClient, *stages: dict[str, Any], key: str = "k") -> dict[str, Any]:
    made = client.runs.create(idempotency_key=key, name="invoices", stages=list(stages))
    run: dict[str, Any] = made["pipeline"]
    return run


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"stageName": name, "stageHandlerName": name} | more


def reaches(client: SyncClient, run: dict[str, Any], status: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        found = client.runs.get(run["id"])
        return found if found["status"] == status else None

    found: dict[str, Any] = eventually(there, 30)
    return found


class Holding:
    """A handler that runs until it is let go or told to stop, and remembers its contexts."""

    def __init__(self, registry: Registry, name: str = "Hold") -> None:
        self.go = threading.Event()
        self.contexts: list[StageContext] = []
        registry.add(name, self.handle)

    def handle(self, ctx: StageContext) -> dict[str, Any]:
        self.contexts.append(ctx)
        while not self.go.wait(0.01) and not ctx.cancelled:
            if ctx.pause_requested:
                raise Release
        return {"attempt": ctx.attempt}


def test_a_run_goes_through_plain_and_async_handlers(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """P48–P52, P89: inputs, dependencies, context and log lines arrive as they were sent."""

    @registry.handler("Read")
    def read(ctx: StageContext) -> Any:
        ctx.log("info", "read", rows=2)
        ctx.context.set("invoice", "42")
        ctx.context.set("card", "4111", sensitive=True)
        return {"rows": ctx.json()}

    @registry.handler("Count")
    async def count(ctx: StageContext) -> Any:
        return [len(ctx.dependencies["Read"]["rows"]), ctx.context["invoice"], ctx.context["card"], ctx.idempotency_key]

    worker()
    run = reaches(client, create(client, stage("Read", input="[1, 2]"), stage("Count")), "completed")
    assert run["stages"][0]["output"] == {"rows": [1, 2]}
    assert run["stages"][1]["output"] == [2, "42", "4111", f"{run['stages'][1]['id']}:1"]
    assert [(item["key"], item["value"]) for item in run["contextItems"]] == [("invoice", "42"), ("card", "[REDACTED]")]
    assert [(line.message, line.fields) for line in LogLine.objects.all()] == [("read", {"rows": 2})]


def test_a_run_is_created_once_and_another_intent_refused(client: SyncClient) -> None:
    """P18–P20, P28."""
    first = create(client, stage("Nobody"))
    assert create(client, stage("Nobody"))["id"] == first["id"] == client.runs.lookup("k")["id"]
    with pytest.raises(IdempotencyConflict):
        create(client, stage("Somebody"))


def test_a_waiting_stage_is_decided_once(client: SyncClient, worker: Callable[[], Worker], registry: Registry) -> None:
    """P77–P82."""
    registry.add("Ask", lambda ctx: Waiting({"draft": 1}))
    worker()
    run = reaches(client, create(client, stage("Ask")), "waiting")
    stage_id = run["stages"][0]["id"]
    assert client.stages.resume(stage_id, True) == client.stages.resume(stage_id, True)
    with pytest.raises(GateDecisionConflict):
        client.stages.resume(stage_id, False, "no")
    assert reaches(client, run, "completed")["stages"][0]["output"] == {"draft": 1}


def test_an_exception_fails_the_stage_with_its_traceback(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """N6, with a NUL that the database cannot hold."""

    @registry.handler("Bad")
    def bad(ctx: StageContext) -> None:
        raise ValueError("a\x00b")

    worker()
    run = reaches(client, create(client, stage("Bad")), "failed")
    assert run["failure"]["code"] == "UNHANDLED_EXCEPTION"
    text = Attempt.objects.get().traceback
    assert text.startswith("Traceback (most recent call last):")
    assert "ValueError: a\\x00b" in text


def test_results_outlive_the_web_process(
    web: Web, client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """F16, P27: the process that answers is killed, again and again, while results and new runs are on their way."""
    holding = Holding(registry)
    worker()
    runs = [create(client, stage("Hold"), key=str(number)) for number in range(4)]
    eventually(lambda: len(holding.contexts) == 4)
    for number in range(3):
        for child in psutil.Process(web[1].pid).children():
            child.kill()
        holding.go.set()
        runs.append(create(client, stage("Hold"), key=f"after-{number}"))
    for run in runs:
        assert reaches(client, run, "completed")["stages"][0]["recoveryCount"] == 0
    assert set(Attempt.objects.values_list("state", flat=True)) == {"succeeded"}
    assert LateEvidence.objects.count() == 0


def test_a_worker_that_lost_its_lease_is_told_and_its_result_is_only_evidence(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """P57, P58, F03: the stage goes on in attempt 2."""
    holding = Holding(registry)
    worker()
    run = create(client, stage("Hold"))
    eventually(lambda: holding.contexts)
    Attempt.objects.update(expires_at=RecourseNow() - timedelta(seconds=1))
    assert sweep()
    eventually(lambda: holding.contexts[0].cancelled)
    eventually(lambda: len(holding.contexts) == 2)
    eventually(LateEvidence.objects.exists)
    holding.go.set()
    assert reaches(client, run, "completed")["stages"][0]["output"] == {"attempt": 2}
    assert list(Attempt.objects.order_by("number").values_list("number", "state")) == [(1, "lost"), (2, "succeeded")]
    assert LateEvidence.objects.get().attempt.number == 1


def test_a_cancelled_run_stops_its_handler(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """F65, P74: the run is cancelled at once, its worker told at its next renewal."""
    holding = Holding(registry)
    worker()
    run = create(client, stage("Hold"))
    eventually(lambda: holding.contexts)
    cancelled = client.runs.cancel(run["id"], "not needed")
    assert cancelled["pipeline"]["status"] == "cancelled"
    assert [item["stageId"] for item in cancelled["reconciliation"]] == [run["stages"][0]["id"]]
    eventually(lambda: holding.contexts[0].cancelled)
    eventually(LateEvidence.objects.exists)
    assert client.runs.get(run["id"])["status"] == "cancelled"


def test_a_pausing_run_gets_its_stage_back_and_goes_on_after_resume(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry, people: dict[str, Person]
) -> None:
    holding = Holding(registry)
    worker()
    run = create(client, stage("Hold"))
    eventually(lambda: holding.contexts)
    pause_run(uuid.UUID(run["id"]), actor=people["operator"].actor)
    reaches(client, run, "paused")
    assert len(holding.contexts) == 1
    resume_run(uuid.UUID(run["id"]), actor=people["operator"].actor)
    eventually(lambda: len(holding.contexts) == 2)
    holding.go.set()
    done = reaches(client, run, "completed")["stages"][0]
    assert (done["output"], done["recoveryCount"], done["retryAttempt"]) == ({"attempt": 2}, 0, 0)


def test_a_draining_worker_gives_back_what_it_cannot_finish(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """F22: nothing is counted, and the next worker goes on at once."""
    started, go = threading.Event(), threading.Event()

    @registry.handler("Steps")
    def steps(ctx: StageContext) -> int:
        started.set()
        while not go.wait(0.01):
            ctx.raise_if_stopped()
        return ctx.attempt

    first = worker()
    run = create(client, stage("Steps"))
    assert started.wait(30)
    first.stop()
    assert client.runs.get(run["id"])["stages"][0]["status"] == "ready"
    go.set()
    worker()
    done = reaches(client, run, "completed")["stages"][0]
    assert (done["output"], done["recoveryCount"]) == (2, 0)


def test_the_longest_logs_and_tracebacks_are_taken(
    client: SyncClient, worker: Callable[[], Worker], registry: Registry
) -> None:
    """N6: what the package lets through, the console takes."""

    @registry.handler("Loud")
    def loud(ctx: StageContext) -> str:
        for _ in range(6_000):
            ctx.log("info", "line")
        ctx.log("info", "ü" * 100_000, field="ü" * 100_000)
        ctx.context.set("k" * 255, "ü" * 10_000)
        return "fine"

    @registry.handler("Deep")
    def deep(ctx: StageContext) -> None:
        raise ValueError("x" * 5_000_000)

    worker()
    assert reaches(client, create(client, stage("Loud"), key="loud"), "completed")["stages"][0]["output"] == "fine"
    failed = reaches(client, create(client, stage("Deep"), key="deep"), "failed")
    assert failed["failure"]["code"] == "UNHANDLED_EXCEPTION"


def test_people_steer_runs_with_a_token(
    web: Web,
    client: SyncClient,
    worker: Callable[[], Worker],
    registry: Registry,
    people: dict[str, Person],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O9, O10, O12: source 002's example, and the other verbs of people."""
    registry.add("Bad", lambda ctx: Failure("UPSTREAM_ERROR", "gone"))
    run = create(client, stage("Nobody"), key="paused")["id"]
    monkeypatch.setenv("RECOURSE_TOKEN", people["operator"].token)

    async def example() -> list[Any]:
        async with Client(web[0]) as people_client:
            return [await people_client.executions.pause(run), await people_client.executions.resume(run)]

    assert asyncio.run(example()) == [
        {"execution_id": run, "status": "pause_signal_sent"},
        {"execution_id": run, "status": "resume_signal_sent"},
    ]
    worker()
    failed = reaches(client, create(client, stage("Bad"), key="failing"), "failed")
    with SyncClient(web[0]) as operator:
        listed = operator.executions.list(status="failed", handler=["Bad"])
        assert [item["execution_id"] for item in listed["results"]] == [failed["id"]]
        first = operator.executions.list(page_size=1)
        second = operator.executions.list(next=first["next"])
        assert {first["results"][0]["execution_id"], second["results"][0]["execution_id"]} == {run, failed["id"]}
        assert operator.executions.get(run)["execution_id"] == run
        operator.stages.retry(failed["stages"][0]["id"], reason="try again")
        again = reaches(client, failed, "failed")["stages"][0]
        assert again["epoch"] == 2
        operator.stages.skip(again["id"], reason="not needed", output={"by": "hand"})
        assert reaches(client, failed, "completed")["stages"][0]["output"] == {"by": "hand"}
        assert operator.executions.cancel(run, "not needed")["status"] == "cancelled"
    monkeypatch.setenv("RECOURSE_TOKEN", people["viewer"].token)
    with SyncClient(web[0]) as viewer, pytest.raises(PermissionDenied):
        viewer.executions.pause(run)


EXTERNAL = {"effectMode": "external", "effectProtocol": "intent"}


@pytest.fixture
def person_client(web: Web, people: dict[str, Person]) -> Iterator[Callable[[str], SyncClient]]:
    """A client for somebody in a role."""
    with contextlib.ExitStack() as stack:
        yield lambda role: stack.enter_context(SyncClient(web[0], token=people[role].token))


def test_an_act_in_doubt_waits_for_a_person_who_finds_out(
    client: SyncClient,
    worker: Callable[[], Worker],
    registry: Registry,
    person_client: Callable[[str], SyncClient],
) -> None:
    """R4, R5, P59: unknown after sending; found absent it is done once more, with the same key."""
    keys: list[str] = []
    earlier: list[Any] = []

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> Any:
        with ctx.effect("external_http", step="charge") as effect:
            keys.append(effect.key)
            earlier.append(effect.earlier and effect.earlier.state)
            if ctx.attempt == 1:
                raise httpx.ReadTimeout("no answer")
            effect.external_ref = "ch_1"
        return effect.external_ref

    worker()
    run = reaches(client, create(client, stage("Charge", **EXTERNAL)), "blocked")
    stage_id = run["stages"][0]["id"]
    assert run["stages"][0]["status"] == "needs_reconciliation"
    approver = person_client("approver")
    (effect,) = approver.executions.effects(run["id"])["results"]
    with pytest.raises(NeedsReconciliation):
        approver.stages.reconcile(stage_id, outcome="absent", note="not looked yet")
    with pytest.raises(PermissionDenied):
        person_client("operator").stages.reconcile(stage_id, outcome="absent", note="not mine to say")
    approver.executions.reconcile_effect(run["id"], effect["id"], outcome="absent", note="no such charge")
    approver.stages.reconcile(stage_id, outcome="absent", note="no such charge")
    assert reaches(client, run, "completed")["stages"][0]["output"] == "ch_1"
    assert keys == [f"{stage_id}:1:charge"] * 2
    assert earlier == [None, "reconciled_absent"]


def test_a_pause_takes_hold_at_a_checkpoint_and_the_next_attempt_goes_on_from_it(
    client: SyncClient,
    worker: Callable[[], Worker],
    registry: Registry,
    person_client: Callable[[str], SyncClient],
) -> None:
    """O8, F50, F61."""
    rows: list[tuple[int, int]] = []
    begun = threading.Event()

    @registry.handler("Rows")
    async def count(ctx: StageContext) -> Any:
        for row in range((ctx.restored or {"next": 0})["next"], 3):
            rows.append((ctx.attempt, row))
            begun.set()
            while ctx.attempt == 1 and not ctx.pause_requested:
                await asyncio.sleep(0.01)
            await ctx.checkpoint_async({"next": row + 1})
        return ctx.restored

    worker()
    run = create(client, stage("Rows"))
    assert begun.wait(30)
    operator = person_client("operator")
    operator.executions.pause(run["id"], "looking")
    reaches(client, run, "paused")
    snapshot = operator.executions.snapshot(run["id"])
    assert (snapshot["current_step_id"], snapshot["pause_reason"], snapshot["integrity"]) == (
        "Rows",
        "looking",
        "valid",
    )
    assert {one["moment"] for one in operator.executions.checkpoints(run["id"])["results"]} >= {"run_start", "handler"}
    operator.executions.resume(run["id"])
    done = reaches(client, run, "completed")["stages"][0]
    assert (done["output"], done["recoveryCount"]) == ({"next": 3}, 0)
    assert rows == [(1, 0), (2, 1), (2, 2)]


def test_a_rerun_is_planned_judged_and_let_go_on_by_evidence(
    client: SyncClient,
    worker: Callable[[], Worker],
    registry: Registry,
    person_client: Callable[[str], SyncClient],
) -> None:
    """O17, O27, O28, O42–O46: the clients' half of it, with typed refusals."""

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> str:
        with ctx.effect("external_http", step="charge") as effect:
            effect.external_ref = "ch_1"
        return "charged"

    registry.add("Check", lambda ctx: Failure("BUSINESS_REJECTED", "no"))
    worker()
    failed = reaches(client, create(client, stage("Charge", **EXTERNAL), stage("Check")), "failed")["id"]
    manager = person_client("release_manager")
    plan = manager.executions.rerun(failed, from_step_id="Check", dry_run=True)
    assert [line["stage"] for line in plan["kept"]] == ["Charge"]
    with pytest.raises(PlanChanged) as changed:
        manager.executions.rerun(failed, from_step_id="Check", plan_digest="0" * 64)
    assert changed.value.plan["plan_digest"] == plan["plan_digest"]
    fork = manager.executions.rerun(failed, from_step_id="Check", plan_digest=plan["plan_digest"])
    assert client.runs.get(fork["execution_id"])["stages"][0]["status"] == "completed"

    with pytest.raises(OperatorReviewRequired) as review:
        manager.executions.replay(failed)
    assert review.value.operation_id
    assert review.value.disposition == "operator_review_required"
    assert review.value.reasons
    (effect,) = manager.executions.effects(failed)["results"]
    summary = {"outcome": "committed", "ref": "ch_1"}
    digest = hashlib.sha256(rfc8785.dumps(summary)).hexdigest()
    approver = person_client("approver")
    approver.executions.add_evidence(
        failed, effect["id"], summary=summary, source="bank", sealed=True, clean=True, digest=digest
    )
    approver.executions.reconcile_effect(failed, effect["id"], outcome="committed", note="in the bank's books")
    replay = manager.executions.replay(failed)
    assert replay["disposition"] == "recovery_allowed_reconciled"
    assert {one["kind"] for one in manager.operations.list()["results"]} >= {"rerun", "replay"}
    assert manager.executions.evidence(failed)["nodes"]


def test_people_decide_gates_and_never_their_own(
    client: SyncClient,
    worker: Callable[[], Worker],
    registry: Registry,
    person_client: Callable[[str], SyncClient],
) -> None:
    """P84, F130, F138: the clients' half of it, with typed refusals."""
    registry.add("Check", lambda ctx: Failure("BUSINESS_REJECTED", "no"))
    worker()
    approver, manager = person_client("approver"), person_client("release_manager")
    run = create(client, stage("Check", approval={"when": "before"}))
    (item,) = approver.approvals.list(view="mine")["results"]
    assert (item["type"], item["execution_id"], item["may_decide"]) == ("gate", run["id"], True)
    assert approver.approvals.decide(item["id"], True, dry_run=True)["stage_status"] == "ready"
    assert approver.approvals.decide(item["id"], True)["state"] == "approved"
    failed = reaches(client, run, "failed")
    manager.executions.replay(failed["id"])
    (again,) = manager.approvals.list()["results"]
    assert (again["may_decide"], again["why_not"]["code"]) == (False, "self_approval")
    with pytest.raises(SelfApproval):
        manager.approvals.decide(again["id"], True)
    assert approver.approvals.decide(again["id"], False, "not again")["stage_status"] == "failed"
    assert approver.approvals.decide(again["id"], False, "not again")["replayed"]
    with pytest.raises(GateDecisionConflict):
        approver.approvals.decide(again["id"], True)
    assert [one["id"] for one in approver.approvals.list(view="decided")["results"]] == [again["id"], item["id"]]


def test_requests_are_decided_as_they_were_shown_or_taken_back(
    client: SyncClient, person_client: Callable[[str], SyncClient], workspace: Workspace
) -> None:
    """Contract §3: an operation that a rule holds back, approved with its digest, and one that was withdrawn."""
    ApprovalRule.objects.create(workspace=workspace, name="cancelling", kinds=["cancel"])
    operator, approver = person_client("operator"), person_client("approver")
    asked = [operator.executions.cancel(create(client, stage("Nobody"), key=key)["id"], "why") for key in ("a", "b")]
    assert {one["status"] for one in asked} == {"awaiting_approval"}
    first, second = (one["operation_id"] for one in asked)
    assert operator.approvals.withdraw(second, "not needed")["state"] == "withdrawn"
    with pytest.raises(ApprovalStale):
        approver.approvals.decide(second, True)
    (item,) = approver.approvals.list(view="mine", type="operation")["results"]
    assert item["id"] == first
    with pytest.raises(PlanChanged) as changed:
        approver.approvals.decide(first, True, plan_digest="0" * 64)
    assert changed.value.plan["plan_digest"] == item["plan_digest"]
    assert approver.approvals.decide(first, True, plan_digest=item["plan_digest"])["status"] == "succeeded"
    assert client.runs.get(asked[0]["execution_id"])["status"] == "cancelled"
    assert client.runs.get(asked[1]["execution_id"])["status"] == "queued"


def test_an_artifact_goes_from_stage_to_stage_and_to_whoever_may_look(
    client: SyncClient,
    web: Web,
    worker: Callable[[], Worker],
    registry: Registry,
    people: dict[str, Person],
) -> None:
    """R14, R15: over real HTTP, with a baseline beside it; other bytes under its name are refused."""
    prices, report = b"a,b\n1,2\n", bytes(range(256)) * 4_000
    manager = SyncClient(web[0], token=people["release_manager"].token)
    baseline = manager.artifacts.add_baseline("prices.csv", prices, media_type="text/csv", reason="of May")
    with pytest.raises(ArtifactImmutable):
        manager.artifacts.add_baseline("prices.csv", b"other")

    @registry.handler("Make")
    def made(ctx: StageContext) -> str:
        assert ctx.load_artifact(baseline["id"]) == prices
        return ctx.artifact("report.bin", report).artifact_id

    @registry.handler("Check")
    async def checked(ctx: StageContext) -> bool:
        return await ctx.load_artifact_async(ctx.dependencies["Make"]) == report

    worker()
    run = reaches(client, create(client, stage("Make"), stage("Check")), "completed")
    assert run["stages"][1]["output"] is True
    (listed,) = client.executions.artifacts(run["id"])["results"]
    assert (listed["name"], listed["size"], listed["stage"]) == ("report.bin", len(report), "Make")
    found = client.artifacts.content(listed["id"])
    assert (found["content"], found["sha256"]) == (report, listed["sha256"])
    assert [one["name"] for one in manager.artifacts.list(is_baseline="true")["results"]] == ["prices.csv"]

    async def by_loop() -> Any:
        async with Client(web[0], token=people["viewer"].token) as viewer:
            return await viewer.artifacts.content(baseline["id"])

    assert asyncio.run(by_loop())["content"] == prices
    manager.close()


def test_an_answer_made_elsewhere_is_handed_in_for_its_request(client: SyncClient) -> None:
    """R18, R20: by the application, with the digest that is awaited; the same again is the first one's."""
    run = create(client, stage("correctness", mode="import", input="line 9"))
    waiting = run["stages"][0]
    request = client.stages.import_request(waiting["id"])
    assert (request["input"], request["request_digest"]) == ("line 9", waiting["requestDigest"])
    with pytest.raises(StaleRequest):
        client.stages.import_answer(waiting["id"], request_digest="0" * 64, output=1)
    for _ in range(2):
        taken = client.stages.import_answer(
            waiting["id"], request_digest=request["request_digest"], output={"score": 1}, source="the desk"
        )
        assert taken == {"accepted": True, "stageStatus": "completed"}
    assert client.runs.get(run["id"])["stages"][0]["output"] == {"score": 1}
