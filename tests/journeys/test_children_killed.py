"""Workers that are killed between starting a child and waiting for it: real processes, one child."""

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
from pipelines.models import Attempt, Run
from pipelines.models.base import RecourseNow
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, output

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120
WORKER = (
    "import tests.journeys.child_handlers; from recourse import Worker; Worker(concurrency=1, wait_seconds=1).run()"
)


def test_a_parent_killed_twice_has_one_child_and_its_result(
    start_run: Callable[..., Run], api_key: str, tmp_path: Path
) -> None:
    """F129, N9: killed after the start and again while it waits; the third finds the child and has its result."""
    told = json.dumps({"book": str(tmp_path)})
    run = start_run({"name": "first", "handler": "journey.parent", "input": told})
    with web_server(url_of_test_database("children_killed")) as (url, _):
        surroundings = os.environ | {
            "RECOURSE_URL": url,
            "RECOURSE_API_KEY": api_key,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
        }
        for _ in range(2):
            worker = subprocess.Popen([sys.executable, "-c", WORKER], env=surroundings, cwd=ROOT)
            assert worker.wait(PATIENCE_SECONDS) == -9
            Attempt.objects.filter(stage__run=run, state="running").update(expires_at=RecourseNow())
            sweeps.expire_leases()
        assert Run.objects.filter(parent=run).count() == 1
        worker = subprocess.Popen([sys.executable, "-c", WORKER], env=surroundings, cwd=ROOT)
        try:
            give_up_at = time.monotonic() + PATIENCE_SECONDS
            while Run.objects.get(id=run.id).status != "completed":
                assert worker.poll() is None, "the worker has ended"
                assert time.monotonic() < give_up_at, "the run does not end"
                time.sleep(0.1)
        finally:
            worker.terminate()
            worker.wait(PATIENCE_SECONDS)
    child = Run.objects.get(parent=run)
    assert json.loads(output(run, "first")) == {"child": str(child.id), "output": "worked"}
    assert (tmp_path / "done").read_text().split() == [str(child.id)]
    assert attempts(run, "first")[:2] == ["lost", "lost"]
    assert attempts(run, "first")[-1] == "succeeded"
    assert_invariants()
