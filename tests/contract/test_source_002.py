"""The examples of source document 002, run with the real curl, command line and Python against a started web server.

Only host and port, the token header, real ids and the names of the command and the client differ from the document.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines import keys
from pipelines.models import (
    Application,
    AuditEvent,
    Checkpoint,
    Environment,
    Pipeline,
    Run,
    Tick,
    Trigger,
    Workspace,
)
from pipelines.releases import register_release
from recovery.models import Backfill, Operation
from tests.cast import Person, stages_of
from tests.factories import PipelineFactory
from tests.recovery.backfilled import trigger_of

PAUSE = "curl -X POST http://localhost:8000/v1/executions/$EXECUTION_ID/pause"
RESUME = "curl -X POST http://localhost:8000/v1/executions/$EXECUTION_ID/resume"
COMMANDS = """
orqestractl execution pause $EXECUTION_ID
orqestractl execution resume $EXECUTION_ID
"""
PYTHON = """
from orqestra_sdk import OrqestraClient

async with OrqestraClient("http://localhost:8000") as client:
    await client.executions.pause(execution_id)
    await client.executions.resume(execution_id)
"""
SNAPSHOT = "curl http://localhost:8000/v1/executions/$EXECUTION_ID/snapshot"
SNAPSHOT_COMMAND = "orqestractl execution snapshot $EXECUTION_ID"
RERUN = r"""
curl -X POST http://localhost:8000/v1/executions/$EXECUTION_ID/rerun \
  -H "Content-Type: application/json" \
  -d '{
    "flow_slug": "support-triage-flow",
    "from_step_id": "classify_ticket",
    "environment": "production"
  }'
"""
REPLAY = r"""
curl -X POST http://localhost:8000/v1/executions/$EXECUTION_ID/replay \
  -H "Content-Type: application/json" \
  -d '{
    "flow_slug": "support-triage-flow",
    "freeze_release": true
  }'
"""
BACKFILL = r"""
curl -X POST http://localhost:8000/v1/triggers/backfill \
  -H "Content-Type: application/json" \
  -d '{
    "trigger_binding_id": "1a8e0000-0000-0000-0000-000000000001",
    "flow_slug": "daily-summary-flow",
    "workload_id": "7b870000-0000-0000-0000-000000000001",
    "cron": "0 8 * * *",
    "timezone": "UTC",
    "from_time": "2026-05-20T08:00:00Z",
    "to_time": "2026-05-22T08:00:00Z",
    "max_concurrent": 3,
    "dry_run": true,
    "environment": "production"
  }'
"""
DRY_RUN = """
{
  "trigger_binding_id": "1a8e0000-0000-0000-0000-000000000001",
  "window": {
    "from": "2026-05-20T08:00:00+00:00",
    "to": "2026-05-22T08:00:00+00:00"
  },
  "total_ticks": 3,
  "dispatched": 0,
  "failed": 0,
  "dry_run": true,
  "ticks": [{ "tick_time": "2026-05-20T08:00:00+00:00", "status": "pending" }]
}
"""
STEPS = ("load_request", "retrieve_context", "classify_ticket", "answer_customer")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

Shell = Callable[..., subprocess.CompletedProcess[str]]


def flow(version: int) -> dict[str, Any]:
    stages = [
        {"name": name, "handler": "Triage", "needs": list(STEPS[max(0, place - 1) : place])}
        for place, name in enumerate(STEPS)
    ]
    return {"slug": "support-triage-flow", "name": f"Support triage {version}", "stages": stages}


@pytest.fixture
def production(environments: dict[str, Environment]) -> Environment:
    return environments["production"]


@pytest.fixture
def pipeline(workspace: Workspace, production: Environment, people: dict[str, Person]) -> Pipeline:
    pipeline = PipelineFactory(workspace=workspace, slug="support-triage-flow")
    release(pipeline, production, people, 1)
    return pipeline


def release(pipeline: Pipeline, environment: Environment, people: dict[str, Person], version: int) -> uuid.UUID:
    actor = people["release_manager"].actor
    made, _ = register_release(
        actor=actor, pipeline=pipeline, environment=environment, definition=flow(version), activate=True
    )
    return made.id


class Triage:
    """The application and its worker in production, over HTTP."""

    def __init__(self, server: str, key: str) -> None:
        self._http = httpx.Client(base_url=server, headers={"X-API-Key": key}, timeout=30)
        session = self._post("/workers/bootstrap", {"workerName": "w", "supportedHandlers": ["Triage"]}).json()
        self._http.headers["X-Worker-Session"] = session["sessionToken"]

    def start(self) -> str:
        body = {"idempotencyKey": str(uuid.uuid4()), "pipeline": "support-triage-flow", "input": {"ticket": 7}}
        answer = self._post("/pipelines/idempotent", body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["pipeline"]["id"])

    def work(self, stages: int, status: str = "succeeded") -> list[str]:
        """Ends so many stages, the last of them with `status`; returns their names."""
        names = []
        for place in range(stages):
            (job,) = self._post("/jobs/pull", {"acquire": True, "waitSeconds": 5}).json()["jobs"]
            result = {"executionId": job["executionId"], "attempt": job["attempt"], "output": {"by": job["stageName"]}}
            last = place == stages - 1
            result |= {"status": status if last else "succeeded", "errorCode": "BUSINESS_REJECTED"}
            assert self._post(f"/stages/{job['stageId']}/result", result).status_code == 202
            names.append(job["stageName"])
        return names

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self._http.post(path, json=body)

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def triage(server: str, application: Application, production: Environment, pipeline: Pipeline) -> Any:
    made = Triage(server, keys.issue_key(application, production)[1])
    yield made
    made.close()


@pytest.fixture
def failed(triage: Triage) -> str:
    """A run in production whose third step has failed."""
    run_id = triage.start()
    triage.work(3, "failed")
    return run_id


@pytest.fixture
def shell(server: str, people: dict[str, Person], tmp_path: Path) -> Shell:
    """Runs an example as somebody: shell(RERUN, run_id, "release_manager")."""
    commands = tmp_path / "bin"
    commands.mkdir()
    # What `make install` leaves beside the interpreter, for whoever runs the tests without it.
    (commands / "recourse").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m recourse "$@"\n')
    (commands / "recourse").chmod(0o755)

    def run(script: str, execution_id: str, role: str = "operator") -> subprocess.CompletedProcess[str]:
        script = script.replace("orqestractl", "recourse").replace("http://localhost:8000", server)
        script = script.replace("curl ", 'curl -s -w "\\n%{http_code}" -H "Authorization: Bearer $RECOURSE_TOKEN" ')
        return subprocess.run(
            ["sh", "-e", "-c", script],
            env={
                "PATH": f"{commands}:/usr/bin:/bin:/usr/local/bin",
                "PYTHONPATH": f"{ROOT / 'sdk'}",
                "RECOURSE_URL": server,
                "RECOURSE_TOKEN": people[role].token,
                "EXECUTION_ID": execution_id,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def told(answer: subprocess.CompletedProcess[str]) -> tuple[int, Any]:
    """Status and JSON of what curl printed."""
    body, _, status = answer.stdout.rpartition("\n")
    return int(status), json.loads(body)


def status_of(run_id: str) -> str:
    return Run.objects.get(id=run_id).status


def test_pause_and_resume_with_curl(shell: Shell, triage: Triage) -> None:
    """O9, O10: exactly the two fields of the document, and the run does what they say."""
    run_id = triage.start()
    assert told(shell(PAUSE, run_id)) == (200, {"execution_id": run_id, "status": "pause_signal_sent"})
    assert status_of(run_id) == "paused"
    assert told(shell(RESUME, run_id)) == (200, {"execution_id": run_id, "status": "resume_signal_sent"})
    assert status_of(run_id) == "queued"
    assert triage.work(4) == list(STEPS)


def test_pause_and_resume_with_the_command_line(shell: Shell, triage: Triage) -> None:
    """O11: the same acts through the same API."""
    run_id = triage.start()
    pause, resume = COMMANDS.strip().splitlines()
    paused = shell(pause, run_id)
    assert (paused.returncode, paused.stdout) == (0, f"{run_id}: pause signal sent\n"), paused.stderr
    assert status_of(run_id) == "paused"
    assert shell(resume, run_id).stdout == f"{run_id}: resume signal sent\n"
    assert status_of(run_id) == "queued"
    refused = shell(pause, str(uuid.uuid4()))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "not_found" in refused.stderr


def test_pause_and_resume_with_python(
    server: str, triage: Triage, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O12: the document's lines, in a function of their own."""
    run_id = triage.start()
    monkeypatch.setenv("RECOURSE_TOKEN", people["operator"].token)
    example = PYTHON.replace("orqestra_sdk import OrqestraClient", "recourse import Client")
    example = example.replace("OrqestraClient", "Client").replace("http://localhost:8000", server)
    names: dict[str, Any] = {}
    exec("async def example(execution_id):\n" + textwrap.indent(example, "    "), names)
    asyncio.run(names["example"](run_id))
    assert status_of(run_id) == "queued"
    kinds = Operation.objects.filter(run_id=run_id).order_by("created_at").values_list("kind", flat=True)
    assert list(kinds) == ["pause", "resume"]


def test_the_snapshot_of_a_paused_run_reads_as_in_the_document(
    shell: Shell, triage: Triage, workspace: Workspace
) -> None:
    """O13, O14, O15."""
    run_id = triage.start()
    triage.work(1)
    shell(PAUSE, run_id)
    document = {
        "execution_id": run_id,
        "current_step_id": "retrieve_context",
        "previous_step_id": "load_request",
        "status": "paused",
        "pause_reason": "operator_pause",
        "workspace_id": str(workspace.id),
    }
    status, snapshot = told(shell(SNAPSHOT, run_id, "viewer"))
    assert status == 200
    assert document.items() <= snapshot.items()
    assert snapshot["integrity"] == "valid"
    printed = dict(line.split(maxsplit=1) for line in shell(SNAPSHOT_COMMAND, run_id).stdout.splitlines())
    assert document.items() <= printed.items()
    assert set(printed) == set(snapshot)


def test_rerun_from_a_step_forks_a_new_run(shell: Shell, triage: Triage, failed: str) -> None:
    """O17, O18, O20, O21: the steps before it are kept, the source is untouched."""
    before = [(stage.state, stage.epoch) for stage in stages_of(Run.objects.get(id=failed))]
    status, fork = told(shell(RERUN, failed, "release_manager"))
    assert status == 201, fork
    assert {name: fork[name] for name in ("original_execution_id", "from_step_id", "environment", "replayed")} == {
        "original_execution_id": failed,
        "from_step_id": "classify_ticket",
        "environment": "production",
        "replayed": False,
    }
    assert fork["execution_id"] != failed
    assert triage.work(2) == ["classify_ticket", "answer_customer"]
    assert (status_of(fork["execution_id"]), status_of(failed)) == ("completed", "failed")
    assert [(stage.state, stage.epoch) for stage in stages_of(Run.objects.get(id=failed))] == before
    recovery = Run.objects.get(id=fork["execution_id"]).recovery
    assert recovery is not None
    assert (recovery["type"], recovery["original_execution_id"]) == ("rerun", failed)
    assert AuditEvent.objects.filter(action="execution.recovery_disposition").count() == 1


def test_a_run_that_still_goes_is_not_rerun(shell: Shell, triage: Triage) -> None:
    """O19: failed, killed or completed."""
    run_id = triage.start()
    status, refusal = told(shell(RERUN, run_id, "release_manager"))
    assert (status, refusal["code"]) == (409, "execution_state_invalid")
    assert Run.objects.count() == 1


def test_in_production_an_operator_s_rerun_waits_for_an_approval(shell: Shell, failed: str) -> None:
    status, kept = told(shell(RERUN, failed, "operator"))
    assert (status, kept["status"], kept["execution_id"]) == (202, "awaiting_approval", None)
    assert Run.objects.count() == 1


def test_without_a_step_the_latest_checkpoint_says_where(shell: Shell, triage: Triage, failed: str) -> None:
    """O20."""
    script = RERUN.replace('    "from_step_id": "classify_ticket",\n', "")
    status, fork = told(shell(script, failed, "release_manager"))
    assert (status, fork["from_step_id"]) == (201, "classify_ticket")
    assert triage.work(2) == ["classify_ticket", "answer_customer"]


@pytest.mark.parametrize("example", [RERUN, REPLAY])
def test_another_environment_is_refused_and_an_unknown_one_too(shell: Shell, failed: str, example: str) -> None:
    """O24, O38, O39: nothing is dispatched elsewhere."""
    for environment, expected in (
        ("staging", (409, "recovery_environment_mismatch")),
        ("moon", (422, "environment_unknown")),
    ):
        script = example.replace('"environment": "production"', f'"environment": "{environment}"')
        script = script.replace('"freeze_release": true', f'"environment": "{environment}"')
        status, refusal = told(shell(script, failed, "release_manager"))
        assert (status, refusal["code"]) == expected
    assert Run.objects.count() == 1


def test_naming_another_actor_is_impersonation(shell: Shell, failed: str, people: dict[str, Person]) -> None:
    """O22."""
    script = RERUN.replace('"environment"', f'"actor_ref": "{people["admin"].user.username}",\n    "environment"')
    status, refusal = told(shell(script, failed, "release_manager"))
    assert (status, refusal["code"]) == (403, "impersonation_rejected")
    assert Run.objects.count() == 1


def test_a_retry_safe_request_answers_with_the_first_target(shell: Shell, failed: str) -> None:
    """O29–O33: same key and inputs → replayed; other inputs → conflict; no key → a fork for each call."""
    keyed = RERUN.replace('"environment"', f'"client_request_id": "{uuid.uuid4()}",\n    "environment"')
    (first_status, first), (again_status, again) = (told(shell(keyed, failed, "release_manager")) for _ in range(2))
    assert (first_status, again_status) == (201, 200)
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["execution_id"] == again["execution_id"]
    other = keyed.replace('"from_step_id": "classify_ticket"', '"from_step_id": "load_request"')
    status, refusal = told(shell(other, failed, "release_manager"))
    assert (status, refusal["code"]) == (409, "recovery_idempotency_conflict")
    assert Run.objects.count() == 2
    for _ in range(2):
        assert told(shell(RERUN, failed, "release_manager"))[0] == 201
    assert Run.objects.count() == 4


def test_replay_starts_from_the_beginning_on_the_release_in_force(
    shell: Shell,
    triage: Triage,
    failed: str,
    pipeline: Pipeline,
    production: Environment,
    people: dict[str, Person],
) -> None:
    """O37–O41: the frozen-input hint is recorded and switches nothing back."""
    newer = release(pipeline, production, people, 2)
    status, fork = told(shell(REPLAY, failed, "release_manager"))
    assert status == 201, fork
    assert (fork["environment"], fork["release_id"], fork["release_changed"]) == ("production", str(newer), True)
    run = Run.objects.get(id=fork["execution_id"])
    assert run.release_id == newer
    assert run.recovery is not None
    assert (run.recovery["type"], run.recovery["frozen_input"]) == ("replay", True)
    assert triage.work(4) == list(STEPS)
    assert status_of(failed) == "failed"


def test_people_may_not_call_the_runtime_s_checkpoint_routes(
    server: str, triage: Triage, people: dict[str, Person]
) -> None:
    """O6."""
    run_id = triage.start()
    path = f"{server}/v1/executions/{run_id}/checkpoints"
    known = Checkpoint.objects.get(run_id=run_id)
    for person in people.values():
        headers = {"Authorization": f"Bearer {person.token}"}
        refused = [
            httpx.post(path, json={}, headers=headers),
            httpx.patch(f"{path}/{known.id}", json={}, headers=headers),
            httpx.get(f"{path}/latest", headers=headers),
        ]
        assert [answer.status_code for answer in refused] == [403] * 3


def test_the_command_line_plans_and_then_carries_out_just_that_plan(shell: Shell, failed: str) -> None:
    """Look before, act after: a dry run changes nothing, its digest is taken, an older one is refused."""
    options = "--from-step-id classify_ticket --environment production"
    planned = shell(f"recourse execution rerun $EXECUTION_ID {options} --dry-run", failed, "release_manager")
    assert planned.returncode == 0, planned.stderr
    assert Run.objects.count() == 1
    digest = planned.stdout.rsplit("digest: ", 1)[1].strip()
    wrong = f"recourse execution rerun $EXECUTION_ID {options} --plan-digest {'0' * 64}"
    refused = shell(wrong, failed, "release_manager")
    assert (refused.returncode, Run.objects.count()) == (2, 1)
    assert digest in refused.stderr
    done = shell(wrong.replace("0" * 64, digest), failed, "release_manager")
    assert done.returncode == 0, done.stderr
    made = Run.objects.exclude(id=failed).get()
    assert done.stdout.startswith(f"{made.id}: new run\n")
    kept = shell(f"recourse execution replay $EXECUTION_ID {options.split(' ', 2)[2]}", failed, "operator")
    assert kept.returncode == 4
    assert "waits for an approval" in kept.stdout


@pytest.fixture
def summary(application: Application, production: Environment, people: dict[str, Person]) -> Trigger:
    return trigger_of(people["release_manager"].actor, production, application, slug="daily-summary-flow")


def of_trigger(text: str, trigger: Trigger) -> str:
    """An example with real ids in place of the document's."""
    text = text.replace("1a8e0000-0000-0000-0000-000000000001", str(trigger.id))
    return text.replace("7b870000-0000-0000-0000-000000000001", str(trigger.application_id))


def test_a_backfill_is_looked_at_with_curl_and_changes_nothing(shell: Shell, summary: Trigger) -> None:
    """O49–O56: the document's example and its answer, word for word; the document shows the first of the three ticks,
    and each also says its local time and the rule that made it."""
    status, answer = told(shell(of_trigger(BACKFILL, summary), ""))
    shown = json.loads(of_trigger(DRY_RUN, summary))
    assert status == 200
    assert shown | {"ticks": answer["ticks"]} == {name: answer[name] for name in shown}
    assert [(tick["tick_time"], tick["status"]) for tick in answer["ticks"]] == [
        (f"2026-05-{day}T08:00:00+00:00", "pending") for day in (20, 21, 22)
    ]
    assert shown["ticks"][0].items() <= answer["ticks"][0].items()
    assert [(tick["local_time"], tick["rule"]) for tick in answer["ticks"]] == [
        (f"2026-05-{day}T08:00:00+00:00", "fixed_time") for day in (20, 21, 22)
    ]
    assert not any("execution_id" in tick for tick in answer["ticks"])
    assert (answer["backfill_id"], answer["status"]) == (None, "previewed")
    assert not Run.objects.exists()
    assert not Tick.objects.exists()
    assert not Backfill.objects.exists()


def test_a_backfill_makes_a_run_for_each_tick(shell: Shell, summary: Trigger) -> None:
    """O49, O54, O55: one real run a tick, and never more than `max_concurrent` let in."""
    summary.refresh_from_db()
    pointers = (summary.recorded_until, summary.next_at)
    script = of_trigger(BACKFILL, summary).replace('"dry_run": true', '"dry_run": false')
    script = script.replace('"max_concurrent": 3', '"max_concurrent": 2')
    status, answer = told(shell(script, "", "release_manager"))
    assert (status, answer["total_ticks"], answer["dispatched"], answer["failed"]) == (201, 3, 3, 0)
    assert [tick["status"] for tick in answer["ticks"]] == ["dispatched"] * 3
    runs = {str(run.id): run for run in Run.objects.all()}
    assert sorted(tick["execution_id"] for tick in answer["ticks"]) == sorted(runs)
    assert sorted(run.held for run in runs.values()) == [False, False, True]
    assert {run.status for run in runs.values()} == {"queued"}
    summary.refresh_from_db()
    assert (summary.recorded_until, summary.next_at) == pointers, "the live schedule was moved (F86)"


def test_a_backfill_by_an_operator_in_production_awaits_approval(shell: Shell, summary: Trigger) -> None:
    """Model §5: on approval; nothing is made before."""
    script = of_trigger(BACKFILL, summary).replace('"dry_run": true', '"dry_run": false')
    status, answer = told(shell(script, "", "operator"))
    assert (status, answer["status"], answer["dispatched"]) == (202, "awaiting_approval", 0)
    assert [tick["status"] for tick in answer["ticks"]] == ["pending"] * 3
    assert not Run.objects.exists()


def test_the_six_actions_of_the_document(shell: Shell, triage: Triage, failed: str, summary: Trigger) -> None:
    """O1: pause, resume, look at a checkpoint, rerun from one, replay from the beginning, backfill missed windows; and
    looking is no act.
    """
    run_id = triage.start()
    triage.work(1)
    acts = ((PAUSE, run_id), (SNAPSHOT, run_id), (RESUME, run_id), (RERUN, failed), (REPLAY, failed))
    answers = [told(shell(example, run, "release_manager"))[0] for example, run in acts]
    assert answers == [200, 200, 200, 201, 201]
    filling = of_trigger(BACKFILL, summary).replace('"dry_run": true', '"dry_run": false')
    status, answer = told(shell(filling, "", "release_manager"))
    assert (status, answer["dispatched"]) == (201, 3)
    kinds = Operation.objects.order_by("created_at").values_list("kind", flat=True)
    assert list(kinds) == ["pause", "resume", "rerun", "replay"]
    assert Backfill.objects.count() == 1
