"""Commands in workers: how they end with their worker, told in order or killed. Real processes, the protocol server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import eventually
from tests.sdk.process_table import living
from tests.sdk.protocol_server import API_KEY, ProtocolServer, Stage
from tests.sdk.test_commands import ESCAPED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ROOT = Path(__file__).resolve().parents[2]
Spawn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def spawn(server: ProtocolServer, tmp_path: Path) -> Iterator[Spawn]:
    """Starts `recourse worker run` with the command `Escape`, deaf to SIGTERM; no Python of anybody's."""
    program = tmp_path / "commands.toml"
    program.write_text(f"[commands.Escape]\nrun = ['python3', '-c', '''{ESCAPED}''', '600']\ngrace_seconds = 0.5\n")
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "sdk"), "RECOURSE_API_KEY": API_KEY}
        words = ["worker", "run", "--commands", str(program), "--url", server.url, *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "recourse", *words], env=environment, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def is_away(server: ProtocolServer, stage: Stage) -> str:
    """Waits until the command's grandchild has left everything behind; returns the attempt."""
    eventually(lambda: any(line["message"] == "away" for line in server.lines))
    assert len(living(stage.attempts[0].id)) == 2
    return stage.attempts[0].id


def test_kill_9_of_the_worker_ends_the_whole_tree(server: ProtocolServer, spawn: Spawn) -> None:
    """R39, P57: the supervisor outlives its worker for just that. Nobody is left to tell of it."""
    stage = server.add_stage("Escape")
    process = spawn()
    attempt = is_away(server, stage)
    process.kill()
    process.wait(10)
    eventually(lambda: not living(attempt))
    assert stage.state == "running"
    assert server.bodies("/termination") == []


def test_a_worker_that_ends_in_order_ends_them_and_tells(server: ProtocolServer, spawn: Spawn) -> None:
    """R39: what may be repeated is given back, once nothing of it runs any more."""
    stage = server.add_stage("Escape")
    process = spawn("--drain-seconds", "0.1")
    attempt = is_away(server, stage)
    server.fail("/termination", 503, times=2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    assert living(attempt) == []
    assert (stage.state, stage.attempts[0].state) == ("ready", "released")
    told = server.bodies("/termination")[-1]
    assert told["executionId"] == attempt
    assert (told["termination"]["reason"], told["termination"]["complete"]) == ("drain", True)
    assert [one["signal"] for one in told["termination"]["signals"]] == ["SIGTERM", "SIGKILL"]


def test_what_acts_outside_is_not_given_back_when_it_was_cut_off(server: ProtocolServer, spawn: Spawn) -> None:
    """I12: it is left to its lease, and then to a person."""
    stage = server.add_stage("Escape", effect_mode="external")
    process = spawn("--drain-seconds", "0.1")
    attempt = is_away(server, stage)
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    assert living(attempt) == []
    assert stage.attempts[0].state == "running"
    server.skip(61)
    assert stage.state == "needs_reconciliation"


def test_a_lost_lease_ends_them_and_is_told_all_the_same(server: ProtocolServer, spawn: Spawn) -> None:
    """P58, R39."""
    server.renew_seconds = 0.3
    stage = server.add_stage("Escape")
    spawn("--concurrency", "1")
    attempt = is_away(server, stage)
    server.skip(61)
    eventually(lambda: not living(attempt))
    (told,) = eventually(lambda: [one for one in server.bodies("/termination") if one["executionId"] == attempt])
    assert told["termination"]["reason"] == "lost"


def test_a_wrong_command_ends_the_worker_with_a_sentence(server: ProtocolServer, spawn: Spawn) -> None:
    process = spawn("--command", "Escape")
    assert process.wait(20) == 2
    assert process.stderr is not None
    assert "--command is HANDLER='program arguments', not 'Escape'" in process.stderr.read()
