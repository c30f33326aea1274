"""Both clients against a running console: every group, every list over several pages, and that each write acts once."""

from __future__ import annotations

import asyncio
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from recourse import Client, ConfigurationError, NotFound, PermissionDenied, PlanChanged, SyncClient
from recourse.calls import Groups
from recourse.calls.methods import asks, lists, plans

from pipelines import keys
from pipelines.models import Application, Artifact, Environment, KeyScope, Release, Run, Trigger
from recovery.models import Backfill, Operation
from tests.cast import Hand, Person, stages_of
from tests.contract.conftest import url_of_test_database, web_server
from tests.recovery.stories import effect_of
from tests.sdk.test_against_the_document import Noted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Web = tuple[str, subprocess.Popen[bytes]]
DEFINITION = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}]}
ELSEWHERE = {"stages.reconcile", "executions.stop_run_retry", "releases.review"}  # called where their stories are told
MOVING = {"replayed", "created", "wasExisting", "last_seen_at", "now", "next_ticks"}


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    with web_server(url_of_test_database("whole-api"), RECOURSE_LEASE_SECONDS="60") as started:
        yield started


class Both:
    """Calls something of a client without and of one with a loop, as one person or application."""

    def __init__(self, url: str, **who: str) -> None:
        self.url, self.who = url, who

    def __call__(self, call: Callable[[Any], Any]) -> tuple[Any, Any]:
        with SyncClient(self.url, **self.who) as client:
            return call(client), asyncio.run(self._awaited(call))

    def alike(self, call: Callable[[Any], Any]) -> Any:
        """What both answer, which must be the same but for what says that it was the second time."""
        first, second = self(call)
        assert settled(first) == settled(second)
        return first

    async def _awaited(self, call: Callable[[Any], Any]) -> Any:
        async with Client(self.url, **self.who) as client:
            return await call(client)


def settled(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: settled(value) for name, value in answer.items() if name not in MOVING}
    return [settled(one) for one in answer] if isinstance(answer, list) else answer


def key() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def as_role(web: Web, people: dict[str, Person]) -> Callable[[str], Both]:
    return lambda role: Both(web[0], token=people[role].token)


@pytest.fixture
def app(web: Web, api_key: str) -> Both:
    return Both(web[0], api_key=api_key)


@pytest.fixture
def failed(start_run: Callable[..., Run], hand: Hand) -> Run:
    """A run whose first stage failed for good, with an effect outside."""
    run = start_run("first", "second")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return run


def test_every_group_is_called_here_by_both_clients() -> None:
    """O11: every method but three."""
    text = Path(__file__).read_text()
    called = set(re.findall(r"\bc\.(\w+\.\w+)", text))
    groups = {name: group for name, group in vars(Groups(Noted())).items() if not name.startswith("_")}
    offered = {
        f"{name}.{method}"
        for name, group in groups.items()
        for method, defined in vars(type(group)).items()
        if isinstance(defined, asks | plans | lists)
    }
    assert {one.partition(".")[0] for one in called} == set(groups)
    assert called - {f"{name}.iterate" for name in groups} <= offered
    assert offered - called == ELSEWHERE


# the application's own


def test_an_application_makes_finds_and_cancels_its_run(app: Both) -> None:
    """P18, P28, O11."""
    stages = [{"stageName": "a", "stageHandlerName": "Nobody"}]
    made, again = app(lambda c: c.runs.create(idempotency_key="k", name="n", stages=stages, context={"order": "7"}))
    assert (made["created"], again["created"], again["wasExisting"]) == (True, False, True)
    run = app.alike(lambda c: c.runs.lookup("k"))
    assert app.alike(lambda c: c.runs.get(run["id"]))["contextItems"][0]["value"] == "7"
    assert app.alike(lambda c: c.runs.cancel(run["id"], "not needed"))["pipeline"]["status"] == "cancelled"
    assert Run.objects.count() == 1
    # an application reads its own runs by its key, without a person
    assert app.alike(lambda c: c.executions.list())["results"][0]["execution_id"] == run["id"]
    with SyncClient(app.url, **app.who) as client, pytest.raises(ConfigurationError, match="RECOURSE_TOKEN"):
        client.executions.pause(run["id"])


def test_a_worker_of_its_own_takes_a_job_through_all_that_a_worker_tells(
    app: Both, start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    """P48–P56: each call twice, as after an answer that was lost."""
    start_run({"name": "first", "effect_mode": "external"}, {"name": "second"})
    opened, _ = app(lambda c: c.work.bootstrap(worker_name="mine", supported_handlers=["Handler"], pid=1))
    session = opened["sessionToken"]
    assert app.alike(lambda c: c.work.heartbeat(session=session)) == {"commands": []}
    taken, none = app(lambda c: c.work.pull(session=session, max_jobs=1))
    assert none == {"jobs": []}
    (job,) = taken["jobs"]
    stage, attempt = job["stageId"], job["executionId"]
    of = {"session": session, "execution_id": attempt}
    app.alike(lambda c: c.work.acknowledge(job["deliveryId"], session=session))
    assert app(lambda c: c.work.acquire(stage, attempt, session=session))[1]["acquired"]
    assert app(lambda c: c.work.renew(stage, attempt, session=session))[1]["acquired"]
    leases = [{"stageId": stage, "executionId": attempt}]
    assert app(lambda c: c.work.renew_leases(leases, session=session))[1]["leases"][0]["acquired"]
    effect = {"class": "external_http", "idempotencyKey": "k", "state": "declared"}
    app.alike(lambda c: c.work.tell_effects(stage, effects=[effect], **of))
    app.alike(lambda c: c.work.tell_effects(stage, effects=[effect | {"state": "committed"}], **of))
    left, later = app(lambda c: c.work.checkpoint(stage, state={"row": 7}, **of))
    assert later["sequence"] == left["sequence"] + 1, "a further one, with the same state"
    app.alike(lambda c: c.work.progress(stage, percent=50, message="half", **of))
    app.alike(lambda c: c.work.log(stage, lines=[{"level": "info", "message": "twice"}], **of))
    artifact = app.alike(lambda c: c.work.store_artifact(stage, name="report", data=b"bytes", **of))
    assert app.alike(lambda c: c.work.artifact(artifact["artifactId"], session=session))["content"] == b"bytes"
    told = {"attempt": job["attempt"], "status": "succeeded", "output": {"a": 1}}
    assert app.alike(lambda c: c.work.report(stage, **told, **of)) == {"accepted": True, "stageStatus": "completed"}
    ended = {"reason": "over", "durationSeconds": 1, "complete": True, "platform": "linux"}
    app.alike(lambda c: c.work.terminated(stage, termination=ended, **of))

    (job,) = app(lambda c: c.work.pull(session=session, wait_seconds=1, acquire=True))[0]["jobs"]
    assert app.alike(lambda c: c.work.release(job["stageId"], job["executionId"], session=session))["status"] == "ready"
    (job,) = app(lambda c: c.work.pull(session=session, acquire=True))[0]["jobs"]
    many = [{key: job[key] for key in ("stageId", "executionId", "attempt")} | {"status": "failed", "errorCode": "E"}]
    assert app.alike(lambda c: c.work.report_many(many, session=session))["results"][0]["stageStatus"] == "failed"
    assert app.alike(lambda c: c.work.shutdown(session=session))["commands"] == [{"command": "drain"}]
    viewer = Both(app.url, token=people["viewer"].token)
    assert viewer.alike(lambda c: c.workers.list(handler="Handler"))["results"][0]["worker"] == "mine"


def test_a_stage_keeps_rows_and_starts_runs_over_the_wire(
    app: Both, as_role: Callable[[str], Both], start_run: Callable[..., Run]
) -> None:
    """Rows and runs of a stage, each call twice; people look at the rows and take them away as they were seen."""
    parent = str(start_run("first").id)
    session = app(lambda c: c.work.bootstrap(worker_name="mine", supported_handlers=["Handler"]))[0]["sessionToken"]
    (job,) = app(lambda c: c.work.pull(session=session, acquire=True))[0]["jobs"]
    stage, of = job["stageId"], {"session": session, "execution_id": job["executionId"]}
    app(lambda c: c.work.declare_table(stage, table="invoices", key=["id"], **of))
    rows = [{"id": 1, "sum": 5}, {"id": 2, "sum": 7}]
    app(lambda c: c.work.insert_rows(stage, table="invoices", rows=rows, **of))
    app(lambda c: c.work.upsert_rows(stage, table="invoices", rows=[{"id": 2, "sum": 8}, {"id": 3, "sum": 9}], **of))
    found = app.alike(lambda c: c.work.read_rows(stage, table="invoices", **of))["rows"]
    assert [row["sum"] for row in found] == [5, 8, 9]
    assert app(lambda c: c.work.delete_rows(stage, table="invoices", where={"id": 1}, **of))[0]["deleted"] == 1

    child = {"key": "one", "name": "child", "stages": [{"stageName": "a", "stageHandlerName": "Nobody"}]}
    made, again = app(lambda c: c.work.start_run(stage, **child, **of))
    assert (made["created"], again["created"]) == (True, False)
    started = made["run"]["runId"]
    assert app.alike(lambda c: c.work.look_at_runs(stage, runs=[started], **of))["runs"][0]["status"] == "queued"
    operator = as_role("release_manager")
    (listed,) = operator.alike(lambda c: c.executions.children(parent))["results"]
    assert started in listed.values()
    assert operator.alike(lambda c: c.executions.run_retries(parent))["results"] == []

    (table,) = operator.alike(lambda c: c.store.list(name="invoices"))["results"]
    assert operator.alike(lambda c: c.store.get(table["id"]))["name"] == "invoices"
    assert len(operator.alike(lambda c: c.store.rows(table["id"]))["results"]) == 2
    admin = as_role("admin")
    seen = admin.alike(lambda c: c.store.remove.plan(table["id"], reason="over"))
    assert seen["plan_digest"]
    once = {"reason": "over", "client_request_id": key()}
    first, second = admin(lambda c: c.store.remove(table["id"], where={"id": 2}, **once))
    assert (first["rows"], second["rows"]) == (1, 0), "what is gone is gone"
    with SyncClient(admin.url, **admin.who) as client:
        assert client.store.remove(table["id"], **once)["rows"] == 1
        with pytest.raises(NotFound):
            client.store.remove(table["id"], **once)


def test_an_answer_from_elsewhere_is_handed_in_by_the_application_and_by_a_person(
    app: Both, as_role: Callable[[str], Both], start_run: Callable[..., Run]
) -> None:
    run = start_run({"name": "desk", "mode": "import"}, {"name": "more", "mode": "import"})
    first, second = (str(one.id) for one in stages_of(run))
    asked = app.alike(lambda c: c.stages.import_request(first))
    digest = asked["request_digest"]
    app.alike(lambda c: c.stages.import_answer(first, request_digest=digest, output={"a": 1}))
    operator = as_role("operator")
    digest = operator.alike(lambda c: c.stages.import_request(second, as_person=True))["request_digest"]
    answer = {"request_digest": digest, "output": 2}
    plan = operator.alike(lambda c: c.stages.import_file.plan(second, answer))
    told = {"plan_digest": plan["plan_digest"], "client_request_id": key()}
    done, again = operator(lambda c: c.stages.import_file(second, answer, **told))
    assert (done["replayed"], again["replayed"]) == (False, True)
    assert done["stage_status"] == again["stage_status"] == "completed"


# what people do to runs


def test_a_run_is_read_from_every_side(
    as_role: Callable[[str], Both], failed: Run, web: Web, people: dict[str, Person]
) -> None:
    """O9–O12."""
    viewer, run, stage = as_role("viewer"), str(failed.id), str(stages_of(failed)[0].id)
    effect = str(effect_of(failed, "first").id)
    assert viewer.alike(lambda c: c.executions.list(status=["failed", "blocked"]))["results"][0]["execution_id"] == run
    assert viewer.alike(lambda c: c.executions.get(run))["status"] == "failed"
    assert viewer.alike(lambda c: c.executions.account(run))["stages"][0]["stage_id"] == stage
    assert len(viewer.alike(lambda c: c.executions.stages(run))["results"]) == 2
    assert viewer.alike(lambda c: c.executions.attempts(run, stage_id=stage))["results"]
    assert viewer.alike(lambda c: c.executions.timeline(run))["results"]
    assert viewer.alike(lambda c: c.executions.logs(run, stage="first", level=["info", "error"]))["results"] == []
    assert viewer.alike(lambda c: c.executions.snapshot(run))["execution_id"] == run
    assert viewer.alike(lambda c: c.executions.checkpoints(run))["results"]
    assert viewer.alike(lambda c: c.executions.effects(run, class_="external_http"))["results"][0]["id"] == effect
    assert viewer.alike(lambda c: c.executions.artifacts(run))["results"] == []
    assert viewer.alike(lambda c: c.executions.evidence(run))["nodes"]
    assert "results" in viewer.alike(lambda c: c.executions.blockers(run))
    assert (
        viewer.alike(lambda c: c.executions.budget(run))["entries"]["results"]
        == viewer.alike(lambda c: c.executions.charges(run))["results"]
    )
    assert viewer.alike(lambda c: c.executions.reconciliation(run, settled=False))["results"] == []
    assert viewer.alike(lambda c: c.reconciliation.list())["results"] == []
    assert viewer.alike(lambda c: c.executions.effect_evidence(run, effect))["results"] == []
    assert viewer.alike(lambda c: c.executions.late_results(run, effect))["results"] == []
    assert viewer.alike(lambda c: c.stages.policies(stage))["policies"]
    assert viewer.alike(lambda c: c.stages.outputs(stage))["results"] == []
    checkpoint = viewer.alike(lambda c: c.executions.checkpoints(run))["results"][0]["id"]
    assert viewer.alike(lambda c: c.checkpoints.get(run, checkpoint))["id"] == checkpoint
    assert viewer.alike(lambda c: c.dead_letters.list(status="open"))["results"][0]["execution_id"] == run
    with SyncClient(web[0], token=people["viewer"].token) as client, pytest.raises(PermissionDenied):
        client.stages.retry(stage, reason="because")


def test_people_recover_a_run_and_each_verb_acts_once(
    as_role: Callable[[str], Both], failed: Run, start_run: Callable[..., Run]
) -> None:
    """O9–O12, O29: a plan, then the verb with its digest, by both clients with one key."""
    operator, run, stage = as_role("operator"), str(failed.id), str(stages_of(failed)[0].id)
    plan = operator.alike(lambda c: c.stages.retry.plan(stage, reason="again"))
    once = {"reason": "again", "plan_digest": plan["plan_digest"], "client_request_id": key()}
    done, again = operator(lambda c: c.stages.retry(stage, **once))
    assert (done["epoch"], again["epoch"], done["replayed"], again["replayed"]) == (2, 2, False, True)
    once = {"client_request_id": key()}
    assert operator.alike(lambda c: c.executions.pause.plan(run))["plan_digest"]
    assert operator.alike(lambda c: c.executions.pause(run, "look", **once))["status"] == "pause_signal_sent"
    once = {"client_request_id": key()}
    assert operator.alike(lambda c: c.executions.resume(run, **once))["status"] == "resume_signal_sent"
    once = {"client_request_id": key()}
    assert operator.alike(lambda c: c.executions.cancel(run, "enough", **once))["status"] == "cancelled"
    once = {"client_request_id": key()}
    fork = operator.alike(lambda c: c.executions.replay(run, reason="from the beginning", **once))
    assert fork["original_execution_id"] == run
    once = {"client_request_id": key()}
    rerun = operator.alike(lambda c: c.executions.rerun(run, from_step_id="first", **once))
    assert rerun["execution_id"] not in (run, fork["execution_id"])
    assert operator.alike(lambda c: c.executions.rerun.plan(run, from_step_id="first"))["plan_digest"]
    assert Run.objects.count() == 3
    listed = operator.alike(lambda c: c.operations.list(execution_id=run))["results"]
    assert sorted(one["kind"] for one in listed) == ["cancel", "pause", "replay", "rerun", "resume", "retry"]


def test_what_a_cancel_left_outside_is_looked_after_once(
    as_role: Callable[[str], Both], start_run: Callable[..., Run], hand: Hand
) -> None:
    """What runs while its run is cancelled may go on; somebody says that they looked."""
    run = str(start_run({"name": "first", "effect_mode": "external"}).id)
    hand.take()
    operator = as_role("release_manager")
    once = {"client_request_id": key()}
    cancelled = operator.alike(lambda c: c.executions.cancel(run, "enough", **once))
    (item,) = operator.alike(lambda c: c.executions.reconciliation(run))["results"]
    assert [one["item_id"] for one in cancelled["reconciliation"]] == [item["id"]]
    assert operator.alike(lambda c: c.reconciliation.list())["results"] == [item]
    once = {"client_request_id": key()}
    settled_item = operator.alike(lambda c: c.executions.settle(run, item["id"], note="it is over", **once))
    assert settled_item["note"] == "it is over"


def test_people_settle_what_failed_for_good(
    as_role: Callable[[str], Both], start_run: Callable[..., Run], hand: Hand
) -> None:
    operator = as_role("operator")
    runs = [start_run("first", "second") for _ in range(3)]
    for _ in runs:
        hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    letters = {one["execution_id"]: one["id"] for one in operator.alike(lambda c: c.dead_letters.list())["results"]}
    first, second, third = (letters[str(run.id)] for run in runs)
    once = {"client_request_id": key()}
    operator.alike(lambda c: c.dead_letters.acknowledge(first, "mine", **once))
    assert operator.alike(lambda c: c.dead_letters.redrive.plan(first, "again"))["plan_digest"]
    once = {"client_request_id": key()}
    assert operator.alike(lambda c: c.dead_letters.redrive(first, "again", **once))["epoch"] == 2
    once = {"client_request_id": key()}
    operator.alike(lambda c: c.dead_letters.discard(second, "nothing to do", **once))
    stage = str(stages_of(runs[2])[0].id)
    once = {"client_request_id": key()}
    skipped = operator.alike(lambda c: c.stages.skip(stage, reason="by hand", output=0, **once))
    assert skipped["stage_status"] == "skipped"
    kinds = sorted(Operation.objects.values_list("kind", flat=True))
    assert len(kinds) == len(set(kinds)), f"each acted once: {kinds}"
    assert third


def test_people_say_what_became_of_an_effect(as_role: Callable[[str], Both], failed: Run) -> None:
    operator, run = as_role("release_manager"), str(failed.id)
    effect = str(effect_of(failed, "first", "unknown").id)
    once = {"client_request_id": key()}
    kept = operator.alike(
        lambda c: c.executions.add_evidence(run, effect, summary={"found": 1}, source="bank", clean=True, **once)
    )
    assert kept["source"] == "bank"
    once = {"client_request_id": key()}
    operator.alike(lambda c: c.executions.reconcile_effect(run, effect, outcome="absent", note="asked", **once))
    assert operator.alike(lambda c: c.executions.effects(run))["results"][0]["state"] == "reconciled_absent"


def test_gates_and_requests_are_decided_once(
    as_role: Callable[[str], Both], app: Both, start_run: Callable[..., Run], failed: Run
) -> None:
    """P77–P82, N11."""
    start_run({"name": "scope", "approval": {"when": "before"}})
    approver, manager = as_role("approver"), as_role("release_manager")
    (gate,) = approver.alike(lambda c: c.approvals.list(view="mine", type="gate"))["results"]
    assert approver.alike(lambda c: c.approvals.decide.plan(gate["id"], True))["state"] == "approved"
    once = {"client_request_id": key()}
    assert approver.alike(lambda c: c.approvals.decide(gate["id"], True, **once))["state"] == "approved"
    waiting = start_run({"name": "later", "approval": {"when": "before"}})
    stage = str(stages_of(waiting)[0].id)
    assert app.alike(lambda c: c.stages.resume(stage, False, "no"))["approved"] is False

    rule = {"name": "four eyes", "kinds": ["replay"], "role": "approver"}
    made = as_role("admin").alike(lambda c: c.approval_rules.add(**rule))
    asked = manager(lambda c: c.executions.replay(str(failed.id), reason="please", client_request_id=key()))[0]
    assert asked["status"] == "awaiting_approval"
    (request,) = [
        one
        for one in manager.alike(lambda c: c.approvals.list(view="asked"))["results"]
        if one["operation_id"] == asked["operation_id"]
    ]
    once = {"client_request_id": key()}
    assert manager.alike(lambda c: c.approvals.withdraw(request["id"], "no more", **once))["state"] == "withdrawn"
    as_role("admin").alike(lambda c: c.approval_rules.change(made["id"], enabled=False))
    assert as_role("viewer").alike(lambda c: c.approval_rules.list(kind="replay"))["results"][0]["enabled"] is False


# what administrators keep


def test_what_an_administrator_keeps_is_made_once_and_changed(
    as_role: Callable[[str], Both], environment: Environment
) -> None:
    admin = as_role("admin")
    admin.alike(lambda c: c.environments.save("fifth", rank=5))
    assert "fifth" in {one["slug"] for one in admin.alike(lambda c: c.environments.list())["results"]}
    made = admin.alike(lambda c: c.applications.save("fx"))
    assert admin.alike(lambda c: c.applications.rename(made["id"], "rates"))["name"] == "rates"
    assert "rates" in {one["name"] for one in admin.alike(lambda c: c.applications.list())["results"]}
    admin.alike(lambda c: c.pipelines.save(slug="nightly", name="Nightly"))
    assert admin.alike(lambda c: c.pipelines.list(slug="nightly"))["results"][0]["name"] == "Nightly"
    where = {"pipeline": "nightly", "environment": environment.slug}
    release = admin.alike(lambda c: c.releases.register(definition=DEFINITION, **where))
    once = {"client_request_id": key()}
    assert admin.alike(lambda c: c.releases.activate(release["id"], "first", **once))["status"] == "active"
    assert admin.alike(lambda c: c.releases.get(release["id"]))["definition"]["slug"] == "nightly"
    assert admin.alike(lambda c: c.releases.list(status="active"))["results"][0]["id"] == release["id"]
    (place,) = admin.alike(lambda c: c.pipelines.readiness("nightly"))["environments"]
    assert (place["release_id"], place["runs"]) == (release["id"], 0)
    assert {one["key"] for one in admin.alike(lambda c: c.guarantees.get())["statements"]} > {"exactly_once"}
    assert Release.objects.filter(pipeline__slug="nightly").count() == 1
    policy = admin.alike(lambda c: c.policies.add(name="calm", kind="timeout", rule={"seconds": 5}))
    assert admin.alike(lambda c: c.policies.change(policy["id"], status="paused"))["status"] == "paused"
    assert len(admin.alike(lambda c: c.policies.list(kind="timeout"))["results"]) == 1
    named = {"name": "new year", "kind": "dates", "dates": ["2027-01-01"]}
    blackout = admin.alike(lambda c: c.blackouts.create(**named))
    assert admin.alike(lambda c: c.blackouts.change(blackout["id"], enabled=False))["enabled"] is False
    frozen = admin.alike(lambda c: c.blackouts.freeze(reason="stop"))
    assert admin.alike(lambda c: c.blackouts.freeze_now())["freezes"][0]["id"] == frozen["id"]
    assert admin(lambda c: c.blackouts.lift(reason="go on"))[0]["lifted"][0]["id"] == frozen["id"]
    assert len(admin.alike(lambda c: c.blackouts.list(is_freeze=False))["results"]) == 1
    once = {"client_request_id": key()}
    rotated = admin.alike(lambda c: c.signing_keys.rotate("yearly", **once))
    assert rotated
    old = admin.alike(lambda c: c.signing_keys.list())["results"][-1]["id"]
    once = {"client_request_id": key()}
    admin(lambda c: c.signing_keys.revoke(old, "it was seen", **once))
    once = {"client_request_id": key()}
    stored = admin.alike(lambda c: c.artifacts.add_baseline("rates", b"1,2", media_type="text/csv", **once))
    assert admin.alike(lambda c: c.artifacts.get(stored["id"]))["name"] == "rates"
    assert admin.alike(lambda c: c.artifacts.content(stored["id"]))["content"] == b"1,2"
    assert admin.alike(lambda c: c.artifacts.list(is_baseline=True))["results"][0]["id"] == stored["id"]
    assert Artifact.objects.count() == 1
    assert admin.alike(lambda c: c.audit_events.list(action="policy.add"))["results"]
    admin.alike(lambda c: c.audit_events.heads())


def test_schedules_and_backfills_are_made_once_and_steered(
    as_role: Callable[[str], Both], environment: Environment, application: Application
) -> None:
    """O19, O20."""
    admin = as_role("admin")
    admin.alike(lambda c: c.pipelines.save(slug="nightly", name="Nightly"))
    where = {"pipeline": "nightly", "environment": environment.slug}
    admin.alike(lambda c: c.releases.register(definition=DEFINITION, activate=True, **where))
    wanted = where | {"application": application.name, "cron": "0 8 * * *", "timezone": "UTC", "enabled": False}
    once = {"client_request_id": key()}
    trigger = admin.alike(lambda c: c.triggers.create(**wanted, **once))["id"]
    once = {"client_request_id": key()}
    assert admin.alike(lambda c: c.triggers.change(trigger, name="mornings", **once))["name"] == "mornings"
    assert admin.alike(lambda c: c.triggers.get(trigger))["name"] == "mornings"
    assert len(admin.alike(lambda c: c.triggers.list(enabled=False))["results"]) == Trigger.objects.count() == 1
    window = {
        "trigger_binding_id": trigger,
        "from_time": "2026-05-20T08:00:00Z",
        "to_time": "2026-05-22T08:00:00Z",
    }
    assert admin.alike(lambda c: c.triggers.backfill.plan(**window))["total_ticks"] == 3
    once = {"client_request_id": key(), "reason": "they were missed"}
    made, _ = admin(lambda c: c.triggers.backfill(**window, **once))
    backfill = made["backfill_id"]
    assert Backfill.objects.count() == 1
    assert Run.objects.count() == 3
    assert len(admin.alike(lambda c: c.backfills.ticks(backfill))["results"]) == 3
    assert len(admin.alike(lambda c: c.backfills.list(trigger=trigger))["results"]) == 1
    assert len(admin.alike(lambda c: c.triggers.ticks(trigger))["results"]) == 3
    for steer in (
        lambda c, **once: c.backfills.pause(backfill, "so", **once),
        lambda c, **once: c.backfills.resume(backfill, "so", **once),
        lambda c, **once: c.backfills.cancel(backfill, "so", **once),
    ):
        first, second = admin(partial(steer, client_request_id=key()))
        assert first["status"] == second["status"]
    assert admin.alike(lambda c: c.backfills.get(backfill))["status"] in ("cancelled", "cancelling")


def test_bulk_operations_are_started_once_and_steered(
    as_role: Callable[[str], Both], start_run: Callable[..., Run]
) -> None:
    operator = as_role("operator")
    runs = [str(start_run("first").id) for _ in range(3)]
    plan = operator.alike(lambda c: c.bulk_operations.start.plan(kind="cancel", execution_ids=runs, reason="all"))
    once = {"client_request_id": key(), "plan_digest": plan["plan_digest"]}
    bulk, _ = operator(lambda c: c.bulk_operations.start(kind="cancel", execution_ids=runs, reason="all", **once))
    bulk_id = bulk["bulk_id"]
    for steer in (
        lambda c, **once: c.bulk_operations.pause(bulk_id, "so", **once),
        lambda c, **once: c.bulk_operations.resume(bulk_id, "so", **once),
        lambda c, **once: c.bulk_operations.abort(bulk_id, "so", **once),
    ):
        operator(partial(steer, client_request_id=key()))
    assert operator.alike(lambda c: c.bulk_operations.get(bulk_id))["bulk_id"] == bulk_id
    assert len(operator.alike(lambda c: c.bulk_operations.items(bulk_id))["results"]) == 3
    assert len(operator.alike(lambda c: c.bulk_operations.list(kind="cancel"))["results"]) == 1


def test_a_service_writes_checkpoints_with_a_key_of_its_own_and_nobody_else(
    web: Web, start_run: Callable[..., Run], hand: Hand, application: Application, environment: Environment
) -> None:
    """O2, O3."""
    run = str(start_run("first").id)
    job = hand.take()
    service = Both(web[0], api_key=keys.issue_key(application, environment, scope=KeyScope.RUNTIME)[1])
    posture: dict[str, Any] = {"side_effects": [], "committed_side_effects": []}
    told = {"attempt_id": str(job.attempt_id), "step_id": "first", "state": {"row": 1}, "recovery_posture": posture}
    left, later = service(lambda c: c.checkpoints.write(run, **told))
    assert later["sequence"] == left["sequence"] + 1
    assert service.alike(lambda c: c.checkpoints.latest(run))["id"] == later["id"]
    service(lambda c: c.checkpoints.add_evidence(run, later["id"], evidence={"seen": True}))


# lists


def test_lists_are_iterated_over_by_pages_and_no_further_than_wanted(
    web: Web, people: dict[str, Person], start_run: Callable[..., Run]
) -> None:
    """O11: each item once over several pages, one page held, none asked for before it is wanted."""
    runs = {str(start_run("first").id) for _ in range(7)}
    with SyncClient(web[0], token=people["viewer"].token) as c:
        asked: list[str] = []
        send = c.send
        c.send = lambda call: (asked.append(call.path), send(call))[1]  # type: ignore[method-assign]
        found = [one["execution_id"] for one in c.executions.iterate(page_size=3)]
        assert (len(found), set(found), len(asked)) == (7, runs, 3)
        asked.clear()
        assert [one["execution_id"] for one in c.executions.list.iterate(page_size=3)] == found
        asked.clear()
        one = next(iter(c.executions.iterate(page_size=3)))
        assert (one["execution_id"], len(asked)) == (found[0], 1), "the first page only"
        asked.clear()
        items = c.executions.iterate(page_size=3)
        assert [one["execution_id"] for one in items.up_to(pages=2)] == found[:6]
        assert (len(asked), items.next is not None) == (2, True)
        rest = c.executions.iterate(next=items.next)
        assert [one["execution_id"] for one in rest] == found[6:]
        assert rest.next is None
        asked.clear()
        assert [len(page["results"]) for page in c.executions.iterate(page_size=4).pages()] == [4, 3]
        assert list(c.executions.iterate(page_size=3).up_to(pages=0)) == []
        assert [one["rank"] for one in c.environments.iterate()] == [1, 2, 3], "a list without pages is one page"
        assert list(c.executions.charges.iterate(found[0], page_size=1)) == [], "a part of an answer is a list too"

    async def awaited() -> tuple[list[str], list[str], list[int], str | None]:
        async with Client(web[0], token=people["viewer"].token) as c:
            items = c.executions.iterate(page_size=3)
            whole = [one["execution_id"] async for one in items]
            part = c.executions.iterate(page_size=3)
            some = [one["execution_id"] async for one in part.up_to(pages=1)]
            sizes = [len(page["results"]) async for page in c.executions.list.iterate(page_size=4).pages()]
            return whole, some, sizes, items.next

    assert asyncio.run(awaited()) == (found, found[:3], [4, 3], None)


def test_a_changed_plan_is_a_refusal_that_brings_the_new_one(web: Web, people: dict[str, Person], failed: Run) -> None:
    """O27: typed, with what is needed to ask again."""
    with SyncClient(web[0], token=people["operator"].token) as client:
        with pytest.raises(PlanChanged) as changed:
            client.executions.replay(str(failed.id), plan_digest="0" * 64)
        again = client.executions.replay(str(failed.id), plan_digest=changed.value.plan["plan_digest"])
        assert again["original_execution_id"] == str(failed.id)
