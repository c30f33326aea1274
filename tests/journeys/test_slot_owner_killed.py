"""The owner of the only slot is killed: with real processes, and with nobody who sweeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.models import Attempt, Policy, Run, Workspace
from pipelines.sql import database_now
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, status

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120
LEASE_SECONDS = 4
WORKER = (
    "import tests.journeys.slot_handlers; from recourse import Worker; Worker(concurrency=1, wait_seconds=20).run()"
)


def test_the_next_begins_within_the_lease_and_two_seconds(
    start_run: Callable[..., Run], api_key: str, workspace: Workspace, tmp_path: Path
) -> None:
    """F69: as long as its owner lives and renews, the slot is kept; killed with -9, its lease frees it by itself."""
    Policy.objects.create(workspace=workspace, name="only", kind="concurrency", rule={"max_active": 1})
    began = tmp_path / "began"
    first = start_run({"name": "hold", "handler": "journey.hold", "input": json.dumps({"began": str(began)})})
    lease = {"RECOURSE_LEASE_SECONDS": str(LEASE_SECONDS), "RECOURSE_RENEW_SECONDS": "1"}
    with web_server(url_of_test_database("slots"), **lease) as (url, _):
        surroundings = os.environ | {
            "RECOURSE_URL": url,
            "RECOURSE_API_KEY": api_key,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
        }

        def worker() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", WORKER], env=surroundings, cwd=ROOT)

        owner = worker()
        try:
            until(began.exists)
            second = start_run({"name": "turn", "handler": "journey.turn"})
            other = worker()
            try:
                time_of_death = kept_while_it_lives(owner, second)
                until(lambda: status(second) == "completed")
            finally:
                other.terminate()
                other.wait(PATIENCE_SECONDS)
        finally:
            owner.kill()
            owner.wait(PATIENCE_SECONDS)
    (turn,) = Attempt.objects.filter(stage__run=second)
    (held,) = Attempt.objects.filter(stage__run=first)
    assert (turn.dispatched_at - time_of_death).total_seconds() <= LEASE_SECONDS + 2
    assert turn.dispatched_at >= held.expires_at, "not before the lease was over"
    assert attempts(first, "hold") == ["running"], "nobody has swept"
    assert_invariants()


def kept_while_it_lives(owner: subprocess.Popen[bytes], waiting: Run) -> Any:
    """Lets more than a lease pass, then kills the owner: when that was, by the database's clock."""
    ends_at = time.monotonic() + LEASE_SECONDS + 2
    while time.monotonic() < ends_at:
        assert attempts(waiting, "turn") == []
        assert owner.poll() is None
        time.sleep(0.1)
    owner.kill()
    owner.wait(PATIENCE_SECONDS)
    return database_now()


def until(comes: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not comes():
        assert time.monotonic() < give_up_at, "it does not come"
        time.sleep(0.05)
