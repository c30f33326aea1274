"""PostgreSQL dies in the middle of everything, and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.config.console_process import ConsoleProcess, manage, processes_of, wait_until

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("up")]

RUNS = 40
STAGES = ("one", "two", "three")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


@pytest.fixture
def console(data_dir: Path, with_tables: None) -> Iterator[ConsoleProcess]:
    started = ConsoleProcess(
        data_dir,
        environment={"RECOURSE_HANDLERS": "tests.journeys.slow_handlers", "RECOURSE_LEASE_SECONDS": "6"},
    )
    started.wait_until_ready()
    yield started
    started.end()
    assert processes_of(started.data_dir) == {}


def test_a_killed_database_costs_time_and_no_work(console: ConsoleProcess) -> None:
    """P1, P3, F16, F23: every run ends well, no stage counts twice, and all that must always hold does."""
    key = manage(console.data_dir, "issue_key", "--workspace", "w", "--application", "a").stdout.strip()
    with httpx.Client(base_url=console.url, headers={"X-API-Key": key}, timeout=20) as api:
        ids = [create(api, number) for number in range(RUNS)]
        # Only the first are asked for: asking for all takes a busy machine long enough to finish them meanwhile.
        wait_until(lambda: ended(api, ids[:3]) >= 1, seconds=120, why="nothing was done before the kill")
        os.kill(postmaster(console.data_dir), signal.SIGKILL)
        assert ended_or_none(api, ids) in (None, *range(RUNS)), "all was over before the database died"
        wait_until(lambda: ended_or_none(api, ids) == RUNS, seconds=240, why=console.log_path.read_text()[-3000:])
        found = [api.get(f"/pipelines/{run_id}").json() for run_id in ids]
    assert {run["status"] for run in found} == {"completed"}
    check = "from tests.engine_model.invariants import assert_invariants; assert_invariants(); "
    once = (
        "from pipelines.models import Attempt, Stage; "
        "print(Stage.objects.count(), Attempt.objects.filter(state='succeeded').count())"
    )
    told = manage(console.data_dir, "shell", "-v", "0", "-c", check + once)
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == [str(RUNS * len(STAGES))] * 2


def create(api: httpx.Client, number: int) -> str:
    stages = [{"stageName": name, "stageHandlerName": "journey.slow"} for name in STAGES]
    answer = api.post(
        "/pipelines/idempotent", json={"idempotencyKey": f"kill-{number}", "name": "kill", "stages": stages}
    )
    assert answer.status_code == 201, answer.text
    return answer.json()["pipeline"]["id"]


def ended(api: httpx.Client, ids: list[str]) -> int:
    return sum(api.get(f"/pipelines/{run_id}").json()["isTerminal"] for run_id in ids)


def ended_or_none(api: httpx.Client, ids: list[str]) -> int | None:
    """None while the database is away: the API says 503, and nothing worse."""
    count = 0
    for run_id in ids:
        answer = api.get(f"/pipelines/{run_id}")
        if answer.status_code == 503:
            return None
        assert answer.status_code == 200, answer.text
        count += answer.json()["isTerminal"]
    return count


def postmaster(data_dir: Path) -> int:
    pid = int((data_dir / "pg" / "postmaster.pid").read_text().split()[0])
    assert "postgres" in psutil.Process(pid).name()
    return pid
