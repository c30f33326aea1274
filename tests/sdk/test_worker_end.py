"""How workers end: in order, in a hurry, or by kill -9. Real processes against the protocol server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recourse import Registry, Release, StageContext, Worker

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import API_KEY, ProtocolServer

ROOT = Path(__file__).resolve().parents[2]
Spawn = Callable[..., subprocess.Popen[str]]
Start = Callable[..., Worker]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts `python -m recourse.worker` with the handlers of this folder."""
    started: list[subprocess.Popen[str]] = []

    def start(url: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT / "sdk"), str(ROOT)])
        environment = os.environ | {
            "PYTHONPATH": path,
            "RECOURSE_API_KEY": API_KEY,
            "RECOURSE_TEST_MARKS": str(tmp_path),
        }
        command = [sys.executable, "-m", "recourse.worker", "--handlers", "tests.sdk.process_handlers", "--url", url]
        process = subprocess.Popen(
            [*command, *options], env=environment | variables, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def test_sigterm_lets_running_handlers_finish_and_delivers_their_results(
    server: ProtocolServer, spawn: Spawn, tmp_path: Path
) -> None:
    stage = server.add_stage("UntilTold")
    process = spawn(server.url)
    eventually((tmp_path / "started-1").exists)
    process.send_signal(signal.SIGTERM)
    eventually(lambda: server.count("shutdown"))
    untouched = server.add_stage("UntilTold")
    server.fail("/results", 503, times=2)
    (tmp_path / "go").touch()
    assert process.wait(20) == 0
    assert stage.output == "done by 1"
    assert untouched.attempts == []
    assert server.count("shutdown") == 1


def test_a_handler_that_stops_when_told_gives_its_stage_back(
    server: ProtocolServer, spawn: Spawn, tmp_path: Path
) -> None:
    stage = server.add_stage("UntilTold", effect_mode="external")
    process = spawn(server.url, "--drain-seconds", "0.1")
    eventually((tmp_path / "started-1").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert stage.state == "ready"
    assert stage.attempts[0].state == "released"
    assert stage.recoveries == 0


@pytest.mark.parametrize(("effect_mode", "left"), [("idempotent", "ready"), ("external", "running")])
def test_a_deaf_handler_ends_with_its_process_and_only_a_repeatable_stage_is_given_back(
    server: ProtocolServer, spawn: Spawn, tmp_path: Path, effect_mode: str, left: str
) -> None:
    """An external stage is left to its lease: nobody knows how far it came."""
    stage = server.add_stage("Deaf", effect_mode=effect_mode)
    process = spawn(server.url, "--drain-seconds", "0.1")
    eventually((tmp_path / "started-1").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert stage.state == left
    assert stage.output is None


def test_a_second_signal_ends_the_patience(server: ProtocolServer, spawn: Spawn, tmp_path: Path) -> None:
    stage = server.add_stage("UntilTold")
    process = spawn(server.url, "--drain-seconds", "600")
    eventually((tmp_path / "started-1").exists)
    process.send_signal(signal.SIGTERM)
    eventually(lambda: process.send_signal(signal.SIGTERM) or process.poll() is not None, 20)
    assert stage.attempts[0].state == "released"


def test_after_kill_9_another_worker_takes_over_when_the_lease_ends(
    server: ProtocolServer, spawn: Spawn, tmp_path: Path
) -> None:
    """P57: nothing of the dead worker's attempt counts."""
    stage = server.add_stage("UntilTold")
    dead = spawn(server.url)
    eventually((tmp_path / "started-1").exists)
    dead.kill()
    dead.wait(10)
    server.end_polls()
    spawn(server.url)
    (tmp_path / "go").touch()
    eventually(lambda: len(server.registrations) == 2)
    assert stage.state == "running"
    server.skip(61)
    eventually(lambda: stage.state == "completed")
    assert stage.output == "done by 2"
    assert [attempt.state for attempt in stage.attempts] == ["lost", "succeeded"]


def test_killed_between_confirmation_and_the_next_pull_nothing_runs_twice(
    server: ProtocolServer, spawn: Spawn, tmp_path: Path
) -> None:
    """P53: the confirmed result ends the delivery; there is nothing left that could be delivered again."""
    (tmp_path / "go").touch()
    stage = server.add_stage("UntilTold")
    process = spawn(server.url)
    eventually(lambda: stage.state == "completed")
    process.kill()
    process.wait(10)
    server.end_polls()
    server.skip(600)
    spawn(server.url)
    quick = server.add_stage("Quick")
    eventually(lambda: quick.state == "completed")
    assert len(stage.attempts) == 1
    assert (tmp_path / "started-1").read_text().count("\n") == 1


def test_a_drain_command_ends_the_process_in_order(server: ProtocolServer, spawn: Spawn) -> None:
    """F22: after a drain nothing more is pulled."""
    process = spawn(server.url)
    eventually(lambda: server.count("pull"))
    server.commands = [{"command": "drain"}]
    assert process.wait(20) == 0
    assert server.requests[-1][0] == "/workers/shutdown"
    assert server.add_stage("Quick").attempts == []


def test_a_refused_key_ends_the_command_with_a_sentence(server: ProtocolServer, spawn: Spawn) -> None:
    process = spawn(server.url, RECOURSE_API_KEY="wrong")
    assert process.wait(20) == 3
    assert process.stderr is not None
    assert "refused this worker: 401 unauthorized" in process.stderr.read()


def test_wrong_options_end_the_command_with_a_sentence(spawn: Spawn) -> None:
    process = spawn("http://127.0.0.1:1", "--handlers", "no.such.module")
    assert process.wait(20) == 2
    assert process.stderr is not None
    assert process.stderr.read() == "recourse.worker: there is no module 'no.such.module'\n"


def test_a_variable_that_is_no_number_ends_the_command_with_a_sentence(spawn: Spawn) -> None:
    process = spawn("http://127.0.0.1:1", RECOURSE_CONCURRENCY="many")
    assert process.wait(20) == 2
    assert process.stderr is not None
    assert "--concurrency: invalid int value: 'many'" in process.stderr.read()


def test_the_old_name_of_the_key_variable_is_enough(server: ProtocolServer, spawn: Spawn) -> None:
    """P10."""
    stage = server.add_stage("Quick")
    spawn(server.url, RECOURSE_API_KEY="", PIPELOGIQ_API_KEY=API_KEY)
    eventually(lambda: stage.state == "completed", 20)


def test_jobs_that_an_open_poll_still_brings_are_given_back(server: ProtocolServer, registry: Registry) -> None:
    """F22: they are ours already, and would stand still until their leases end."""
    ran: list[Any] = []
    registry.add("Late", lambda ctx: ran.append(1))
    worker = Worker(server.url, API_KEY, registry=registry, wait_seconds=5)
    worker.start()
    eventually(lambda: server.open_polls)
    # The server hands out nothing more once it was told: that must come after the job.
    server.fail("/shutdown", "hang")
    worker.drain()
    stage = server.add_stage("Late")
    eventually(lambda: stage.attempts)
    server.heal()
    worker.stop()
    assert ran == []
    assert stage.state == "ready"
    assert stage.attempts[0].state == "released"


def test_an_idle_worker_does_not_wait_for_its_poll_to_end(server: ProtocolServer, spawn: Spawn) -> None:
    process = spawn(server.url)
    eventually(lambda: server.open_polls)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert time.monotonic() - began < 4


def test_a_server_that_could_not_be_told_at_first_is_told_at_the_end(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    registry.add("Any", lambda ctx: None)
    worker = work(server, registry)
    eventually(lambda: server.open_polls)
    server.fail("/shutdown", 503, times=4)
    worker.stop()
    assert server.count("shutdown") == 1


def test_stopping_twice_says_goodbye_once(server: ProtocolServer, registry: Registry) -> None:
    registry.add("Any", lambda ctx: None)
    worker = Worker(server.url, API_KEY, registry=registry, wait_seconds=1)
    worker.start()
    worker.stop()
    worker.stop()
    assert server.count("shutdown") == 1


def test_an_async_handler_that_ignores_the_end_is_cancelled(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    import asyncio

    begun, ended = threading.Event(), threading.Event()

    @registry.handler("Forever")
    async def forever(ctx: StageContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stage = server.add_stage("Forever")
    worker = work(server, registry)
    # handed out is not begun: what is told to stop before it begins is never started
    assert begun.wait(30)
    worker.stop()
    assert ended.wait(30)
    assert stage.attempts[0].state == "released"
    assert server.bodies("/results") == []


def test_a_handler_may_give_back_on_drain_what_it_can_begin_again(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    started = threading.Event()

    @registry.handler("Kind")
    def kind(ctx: StageContext) -> None:
        started.set()
        eventually(lambda: ctx.pause_requested)
        raise Release

    stage = server.add_stage("Kind")
    worker = work(server, registry, drain_seconds=0.05, stop_seconds=5.0)
    assert started.wait(10)
    worker.stop()
    assert stage.attempts[0].state == "released"
