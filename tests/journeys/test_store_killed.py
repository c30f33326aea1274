"""kill -9 between a write and its mark in the workspace store: the repeat converges, over HTTP and under Celery."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.models import Run
from tests.contract.conftest import url_of_test_database, web_server
from tests.journeys import store_handlers
from tests.journeys.store_handlers import BATCHES, FATAL, MARKS
from tests.journeys.test_kill_between_effect_and_result import LEASE_SECONDS, PATIENCE_SECONDS, ROOT, bury
from tests.kept import assert_counted, kept
from tests.pipelines.engine import attempts, output, status
from tests.pipelines.test_executor_celery import Console

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
StartRun = Callable[..., Run]
Tend = Callable[[], None]  # starts a worker again that has died


@pytest.fixture
def told(tmp_path: Path) -> dict[str, str]:
    marks = tmp_path / "marks"
    marks.mkdir()
    return {MARKS: str(marks), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}"}


@pytest.fixture
def over_http(django_db_setup: None, api_key: str, told: dict[str, str], tmp_path: Path) -> Iterator[Tend]:
    with contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(
            web_server(url_of_test_database("kills"), RECOURSE_LEASE_SECONDS=str(LEASE_SECONDS))
        )
        command = [sys.executable, "-m", "recourse.worker", "--handlers", store_handlers.__name__, "--url", url]
        processes: list[subprocess.Popen[bytes]] = []

        def tend() -> None:
            if processes and processes[-1].poll() is None:
                return
            with (tmp_path / "worker").open("ab") as log:
                environment = os.environ | told | {"RECOURSE_API_KEY": api_key}
                process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            processes.append(process)

        yield tend


@pytest.fixture
def under_celery(told: dict[str, str], tmp_path: Path) -> Iterator[Tend]:
    made = Console(tmp_path, "filesystem://", store_handlers.__name__, LEASE_SECONDS, processes=1, environment=told)
    made.start()
    yield lambda: None  # Celery replaces a process that died
    made.kill_all()


@pytest.mark.parametrize("crew", ["over_http", "under_celery"])
def test_a_crash_between_write_and_mark_converges(
    crew: str, start_run: StartRun, told: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """N12, N20, N21, N25: what was marked is skipped, the one in doubt is written twice, and each row is there once."""
    tend: Tend = request.getfixturevalue(crew)
    run = start_run({"name": "copy", "handler": "journey.copy", "effect_mode": "idempotent"})
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while status(run) not in ("completed", "failed", "blocked"):
        assert time.monotonic() < give_up_at
        tend()
        bury()
        time.sleep(0.1)
    assert (status(run), attempts(run, "copy")) == ("completed", ["lost", "succeeded"])
    assert json.loads(output(run, "copy") or "") == {"found": FATAL - 1}
    written = sorted(path.name for path in Path(told[MARKS]).iterdir())
    assert written == ["1.1", "2.1", "3.1", "3.2", "4.2", "5.2"]
    assert [json.loads(body) for body, _, _ in kept("sync_progress")] == [
        {"batch": batch} for batch in range(1, BATCHES + 1)
    ]
    ids = [json.loads(body)["invoice_id"] for body, _, _ in kept()]
    assert sorted(ids) == sorted(f"{batch}-{number}" for batch in range(1, BATCHES + 1) for number in range(3))
    assert_counted()
