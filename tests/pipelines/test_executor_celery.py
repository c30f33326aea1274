"""Celery end to end, in processes of its own: each broker, kill -9 of a child and of the whole worker in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from django.conf import settings
from kombu import Connection

from pipelines.models import Attempt, Run, WorkerSession
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempts, status
from tests.pipelines.executor_handlers import FOLDER
from tests.services import database_url

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
StartRun = Callable[..., Run]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60
LEASE_SECONDS = 3


@dataclass
class Console:
    """The worker processes of a console with beat in them, on a broker of their own."""

    folder: Path
    broker: str
    handlers: str = "tests.pipelines.executor_handlers"
    lease_seconds: int = LEASE_SECONDS
    processes: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {
            "DATABASE_URL": database_url(),
            "CELERY_BROKER_URL": self.broker,
            "RECOURSE_DATA": str(self.folder),
            "RECOURSE_ENCRYPTION_KEY": settings.RECOURSE_ENCRYPTION_KEY,
            "RECOURSE_HANDLERS": self.handlers,
            "RECOURSE_LEASE_SECONDS": str(self.lease_seconds),
            "RECOURSE_RENEW_SECONDS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
            FOLDER: str(self.folder),
            **self.environment,
        }
        command = [sys.executable, "-m", "celery", "-A", "config", "worker", "-B", "-c", str(self.processes)]
        command += ["-l", "WARNING", "-s", str(self.folder / "beat")]
        command += ["-Q", "recourse,recourse.clock,recourse.handlers"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill_all(self) -> None:
        """kill -9 of the worker with all its children, as a machine that loses its power."""
        if self.process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [psutil.Process(self.process.pid), *self.children()]
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGKILL)
            psutil.wait_procs(family, timeout=10)
        self.process.wait(10)
        self.process = None

    def stop(self) -> None:
        """A warm shutdown, as a deployment would ask for."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)
        self.process = None

    def begun(self) -> list[tuple[str, str]]:
        """(stage id, attempt) of each time that a handler began."""
        return sorted(
            (name.split(".")[0], name.split(".")[1]) for name in os.listdir(self.folder) if name.count(".") == 2
        )

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]


EVERY_BROKER = [
    "filesystem",
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("rabbitmq", marks=pytest.mark.rabbitmq),
]
# the long way round on one broker; on the others with `make prove`
ONE_BROKER = [
    "filesystem",
    pytest.param("redis", marks=[pytest.mark.redis, pytest.mark.prove]),
    pytest.param("rabbitmq", marks=[pytest.mark.rabbitmq, pytest.mark.prove]),
]


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """A place on a broker that no other process of this session uses, and that is empty before and after."""
    if request.param == "redis":
        yield from _redis_place(request.getfixturevalue("redis_url"))
    elif request.param == "rabbitmq":
        yield from _rabbitmq_place(request.getfixturevalue("rabbitmq_url"))
    else:
        yield "filesystem://"


@pytest.fixture
def console(broker: str, tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path, broker)
    yield made
    made.kill_all()


def until(console: Console, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, console.log()
        assert console.process is None or console.process.poll() is None, console.log()
        time.sleep(0.05)


def chain(handler: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "handler": handler, **more} for name in ("one", "two", "three")]


@pytest.mark.parametrize("broker", EVERY_BROKER, indirect=True)
def test_runs_go_through_a_worker_and_a_broker_to_their_end(console: Console, start_run: StartRun) -> None:
    """P2, P3: hints through the broker, work from the database; each stage once. A warm stop ends the sessions."""
    early = [start_run(*chain("Quick")) for _ in range(5)]
    console.start()
    until(console, lambda: all(status(run) == "completed" for run in early))
    late = [start_run(*chain("QuickAsync")) for _ in range(5)]
    until(console, lambda: all(status(run) == "completed" for run in late))
    assert len(console.begun()) == len(set(console.begun())) == 30
    assert set(Attempt.objects.values_list("state", "number")) == {("succeeded", 1)}
    console.stop()
    assert "signing.no_key" not in console.log()
    assert not WorkerSession.objects.filter(state="active").exists()
    assert_invariants()


@pytest.mark.parametrize("victim", ["child", "all"])
@pytest.mark.parametrize("broker", ONE_BROKER, indirect=True)
def test_after_kill_nine_in_the_middle_the_work_is_taken_up_again(
    console: Console, start_run: StartRun, victim: str
) -> None:
    """P1, F08, F15, F16, F23, R3: the attempt is lost at its lease's end, a new one completes; no other is touched."""
    console.start()
    run = start_run({"name": "one", "handler": "Slow"}, {"name": "two", "handler": "Quick"})
    until(console, lambda: len(console.begun()) == 1)
    (mark,) = [path for path in console.folder.iterdir() if path.name.count(".") == 2]
    if victim == "child":
        os.kill(int(mark.read_text()), signal.SIGKILL)
    else:
        console.kill_all()
        assert attempts(run, "one") == ["running"]
        console.start()
    console.let_go()
    until(console, lambda: status(run) == "completed")
    assert attempts(run, "one") == ["lost", "succeeded"]
    assert attempts(run, "two") == ["succeeded"]
    assert [number for _, number in console.begun()].count("2") == 1
    assert_invariants()


@pytest.mark.parametrize("broker", ONE_BROKER, indirect=True)
def test_a_worker_that_dies_with_a_stage_that_acts_outside_leaves_a_question(
    console: Console, start_run: StartRun
) -> None:
    """R4, F16: never repeated blindly."""
    console.start()
    run = start_run({"name": "pay", "handler": "Slow", "effect_mode": "external"})
    until(console, lambda: len(console.begun()) == 1)
    console.kill_all()
    console.start()
    console.let_go()
    until(console, lambda: status(run) == "blocked")
    assert attempts(run, "pay") == ["lost"]
    assert len(console.begun()) == 1
    assert_invariants()


@pytest.mark.prove
@pytest.mark.parametrize("broker", EVERY_BROKER, indirect=True)
def test_progress_is_kept_through_many_kills(console: Console, start_run: StartRun) -> None:
    """F23, F25: a worker killed again and again in the middle of two hundred runs; all end, none lost, none doubled."""
    options = {"max_recoveries": 100}
    runs = [start_run(*chain("Quick", options=options)) for _ in range(200)]
    for _ in range(8):
        console.start()
        done = Attempt.objects.filter(state="succeeded").count()
        until(console, lambda done=done: Attempt.objects.filter(state="succeeded").count() >= min(600, done + 40))
        console.kill_all()
    console.start()
    until(console, lambda: all(status(run) == "completed" for run in runs))
    for name in ("one", "two", "three"):
        for run in runs:
            ended = attempts(run, name)
            assert ended.count("succeeded") == 1
            assert set(ended) <= {"succeeded", "lost", "released"}
    assert_invariants()


def _mine() -> int:
    """A number that tells this process of a parallel session from the others."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def _redis_place(url: str) -> Iterator[str]:
    from redis import Redis

    place = urlsplit(url)._replace(path=f"/{10 + _mine() % 6}").geturl()
    with Redis.from_url(place) as client:
        client.flushdb()
        yield place
        client.flushdb()


def _rabbitmq_place(url: str) -> Iterator[str]:
    """A virtual host of our own, where this machine may make one; else the one of the address, its queues emptied."""
    parts = urlsplit(url)
    name = f"recourse-test-{os.getpid()}"
    made = _rabbitmqctl("add_vhost", name)
    if made and _rabbitmqctl("set_permissions", "-p", name, parts.username or "guest", ".*", ".*", ".*"):
        yield parts._replace(path=f"/{name}").geturl()
        _rabbitmqctl("delete_vhost", name)
        return
    with Connection(url) as link:
        for queue in ("recourse", "recourse.clock", "recourse.handlers", "recourse.notices"):
            with contextlib.suppress(link.channel_errors):
                link.default_channel.queue_purge(queue)
    yield url


def _rabbitmqctl(*words: str) -> bool:
    try:
        return subprocess.run(["rabbitmqctl", *words], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False
