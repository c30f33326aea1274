"""Commands with the console itself: cancelled there they end here, and what became of them is seen there again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recourse import Registry, SyncClient, Worker, command, commands

from pipelines.models import Event, LogLine, ReconciliationItem
from tests.cast import Api, Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.conftest import eventually
from tests.sdk.process_table import living
from tests.sdk.test_commands import ESCAPED

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

Web = tuple[str, subprocess.Popen[bytes]]
ROOT = Path(__file__).resolve().parents[2]
# executes what follows without a right that root has: to signal other users' processes
WITHOUT_CAP_KILL = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_KILL = 24, 5
if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0) == 0:
    os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    """A console whose workers renew every second."""
    with web_server(url_of_test_database("commands"), RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def client(web: Web, api_key: str) -> Iterator[SyncClient]:
    with SyncClient(web[0], api_key) as client:
        yield client


@pytest.fixture
def viewer(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["viewer"])


@pytest.fixture
def work(web: Web, api_key: str) -> Iterator[Callable[..., None]]:
    """Starts a worker with the command `Do`."""
    started: list[Worker] = []

    def start(args: list[str], **options: Any) -> None:
        registry = Registry()
        registry.add("Do", command(args, **options))
        started.append(Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2))
        started[-1].start()

    yield start
    for worker in started:
        worker.stop()


def create(client: SyncClient) -> dict[str, Any]:
    stages = [{"stageName": "do", "stageHandlerName": "Do", "input": '{"n": 1}'}]
    run: dict[str, Any] = client.runs.create(idempotency_key="k", name="shrink", stages=stages)["pipeline"]
    return run


def attempt_of(viewer: Api, run: dict[str, Any]) -> dict[str, Any]:
    (attempt,) = viewer.get(f"/v1/executions/{run['id']}/attempts").json()["results"]
    told: dict[str, Any] = attempt
    return told


def away(viewer: Api, run: dict[str, Any]) -> str:
    """Waits until what the command started has left its group; returns the attempt."""
    eventually(lambda: LogLine.objects.filter(message="away").exists(), 60)
    execution_id = str(attempt_of(viewer, run)["attempt_id"])
    assert len(living(execution_id)) == 2
    return execution_id


def test_cancelling_in_the_console_ends_the_tree_and_the_end_is_seen_there(
    client: SyncClient, viewer: Api, work: Callable[..., None]
) -> None:
    """R35, R38, R39, P58: by the command in the lease's renewal."""
    work(["python3", "-c", ESCAPED, "600"], grace_seconds=0.5)
    run = create(client)
    execution_id = away(viewer, run)
    client.runs.cancel(run["id"])
    eventually(lambda: not living(execution_id), 60)
    end = eventually(lambda: attempt_of(viewer, run)["termination"], 60)
    assert end["summary"] == "ended by SIGKILL after 0.5 s grace, since the run was cancelled"
    assert (end["complete"], end["left"], end["platform"]) == (True, [], "linux")
    assert attempt_of(viewer, run)["status"] == "fenced"
    assert Event.objects.filter(run=run["id"], kind="stage.terminated").count() == 1
    assert not ReconciliationItem.objects.filter(kind="process_left").exists()


def test_what_could_not_be_stopped_is_listed_for_somebody_to_settle(
    client: SyncClient, viewer: Api, work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R38, R39: on a system where nobody can look for it; it is not said to be ended."""
    monkeypatch.setattr(commands, "PLATFORM", "plan9")
    work(["python3", "-c", ESCAPED, "600"], grace_seconds=0.5)
    run = create(client)
    execution_id = away(viewer, run)
    client.runs.cancel(run["id"])
    end = eventually(lambda: attempt_of(viewer, run)["termination"], 60)
    escaped = living(execution_id)
    try:
        assert len(escaped) == 1
        assert end["summary"].endswith("; 1 process could not be stopped")
        assert end["complete"] is False
        item = ReconciliationItem.objects.get(run=run["id"], kind="process_left")
        assert "on plan9 what left the command's group cannot be found" in item.detail
        assert item.resolved_at is None
    finally:
        for pid in escaped:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, and lack a right of root")
def test_what_the_worker_has_no_right_to_end_is_listed_and_the_worker_goes_on(
    web: Web, api_key: str, client: SyncClient, viewer: Api, tmp_path: Path
) -> None:
    """R38, R39: a worker that is root without CAP_KILL, as containers have it, over commands of another user."""
    file = tmp_path / "commands.toml"
    deaf = f"[commands.Do]\nrun = ['python3', '-c', '''{ESCAPED}''', '600']\ngrace_seconds = 0.5\nkill_seconds = 0.5\n"
    file.write_text(f"{deaf}[commands.Next]\nrun = ['cat']\n")
    worker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            WITHOUT_CAP_KILL,
            sys.executable,
            "-m",
            "recourse",
            "worker",
            "run",
            "--commands",
            str(file),
            "--url",
            web[0],
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT / "sdk"), "RECOURSE_API_KEY": api_key},
        stderr=subprocess.DEVNULL,
    )
    execution_id = ""
    try:
        run = create(client)
        execution_id = away(viewer, run)
        client.runs.cancel(run["id"])
        end = eventually(lambda: attempt_of(viewer, run)["termination"], 60)
        assert len(living(execution_id)) >= 1, "nobody ended it"
        assert end["summary"].endswith("; 2 processes could not be stopped")
        assert end["complete"] is False
        assert {one["why"] for one in end["left"]} == {"it belongs to another user, and this worker may not end it"}
        items = ReconciliationItem.objects.filter(run=run["id"], kind="process_left", resolved_at=None)
        assert len({item.detail for item in items}) == 2
        stages = [{"stageName": "next", "stageHandlerName": "Next", "input": '{"n": 2}'}]
        after = client.runs.create(idempotency_key="after", name="next", stages=stages)["pipeline"]
        eventually(lambda: client.runs.get(after["id"])["status"] == "completed", 60)
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait(10)
        for pid in living(execution_id) if execution_id else ():
            os.kill(pid, signal.SIGKILL)


def test_a_result_carries_usage_and_a_limit_is_told_with_its_end(
    client: SyncClient, viewer: Api, work: Callable[..., None]
) -> None:
    """R34, R39: for an attempt that is still ours, both."""
    work(["sh", "-c", "cat >&2; while :; do yes; done"], output_bytes=50_000, grace_seconds=0.5)
    run = create(client)
    eventually(lambda: client.runs.get(run["id"])["status"] == "failed", 60)
    attempt = eventually(lambda: (one := attempt_of(viewer, run)) and one["termination"] and one, 60)
    assert (attempt["status"], attempt["error_code"]) == ("failed", "OUTPUT_TOO_LARGE")
    assert attempt["usage_complete"] is True
    assert attempt["usage"]["processes_seen"] >= 2
    assert attempt["termination"]["reason"] == "output"
    assert LogLine.objects.filter(message='{"n": 1}').exists()


def test_a_command_that_ends_well_completes_the_stage_and_has_no_end_to_tell(
    client: SyncClient, viewer: Api, work: Callable[..., None]
) -> None:
    work(["cat"])
    run = create(client)
    done = eventually(lambda: (one := client.runs.get(run["id"]))["status"] == "completed" and one, 60)
    assert done["stages"][0]["output"] == {"n": 1}
    attempt = attempt_of(viewer, run)
    assert (attempt["usage_complete"], attempt["termination"]) == (True, None)
