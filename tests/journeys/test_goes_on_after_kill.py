"""Run, kill, pause, resume by command: with real processes, on a database that holds nothing but its migrations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import sweeps
from pipelines.models import Attempt, Checkpoint, Run
from pipelines.models.base import RecourseNow
from tests.cast import Api, Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, output, status

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120
WORKER = "import tests.journeys.page_handlers; from recourse import Worker; Worker(concurrency=1, wait_seconds=1).run()"


def test_a_killed_stage_goes_on_where_it_was_once_somebody_resumes_the_run(
    start_run: Callable[..., Run],
    api_key: str,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
    tmp_path: Path,
) -> None:
    """F61, F50, O11, O14: no page is done twice, and the command line tells and steers all of it."""
    book = tmp_path / "book"
    told = json.dumps({"pages": 5, "die_after": 3, "book": str(book)})
    run = start_run(
        {"name": "pages", "handler": "journey.pages", "input": told}, {"name": "close", "handler": "journey.close"}
    )
    with web_server(url_of_test_database("pages")) as (url, _):
        surroundings = os.environ | {
            "RECOURSE_URL": url,
            "RECOURSE_API_KEY": api_key,
            "RECOURSE_TOKEN": people["operator"].token,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
        }

        def recourse(*words: str) -> dict[str, object]:
            command = [sys.executable, "-m", "recourse", "execution", *words, "--json"]
            done = subprocess.run(command, env=surroundings, cwd=ROOT, capture_output=True, text=True, check=True)
            return json.loads(done.stdout)

        first = subprocess.Popen([sys.executable, "-c", WORKER], env=surroundings, cwd=ROOT)
        assert first.wait(PATIENCE_SECONDS) == -9
        assert recourse("pause", str(run.id))["status"] == "pause_signal_sent"
        Attempt.objects.filter(stage__run=run, state="running").update(expires_at=RecourseNow())
        sweeps.expire_leases()
        assert (attempts(run, "pages"), status(run)) == (["lost"], "paused")
        snapshot = recourse("snapshot", str(run.id))
        assert (snapshot["current_step_id"], snapshot["integrity"]) == ("pages", "valid")
        assert recourse("resume", str(run.id))["status"] == "resume_signal_sent"

        second = subprocess.Popen([sys.executable, "-c", WORKER], env=surroundings, cwd=ROOT)
        try:
            _until_it_ended(as_person(people["viewer"]), run, second)
        finally:
            second.terminate()
            second.wait(PATIENCE_SECONDS)
    assert output(run, "pages") == '{"first":4,"last":5}'
    assert book.read_text().split() == ["1", "2", "3", "4", "5"]
    assert attempts(run, "pages") == ["lost", "succeeded"]
    assert Checkpoint.objects.filter(run=run, moment="handler").count() == 5
    assert_invariants()


def _until_it_ended(viewer: Api, run: Run, worker: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while viewer.get(f"/v1/executions/{run.id}").json()["status"] != "completed":
        assert worker.poll() is None, "the worker has ended"
        assert time.monotonic() < give_up_at, "the run does not end"
        time.sleep(0.1)
