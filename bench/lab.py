"""What every measurement needs: a database and processes for its own time, and a console's environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

ROOT = Path(__file__).resolve().parent.parent
SERVER = os.environ.get("BENCH_SERVER", "postgres://postgres@127.0.0.1:5432/postgres")
ALL_QUEUES = "recourse,recourse.handlers,recourse.clock"

# Ended from outside, a measurement still stops the processes and drops the database that it made.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextmanager
def database(name: str, server: str = SERVER) -> Iterator[str]:
    """A database that is there for one measurement; yields its address."""
    name = f"bench_{name}_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield server.rsplit("/", 1)[0] + f"/{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def console(url: str, data: str, handlers: str = "") -> Iterator[dict[str, str]]:
    """The environment of a console with an empty, migrated database."""
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "RECOURSE_DATA": data,
        "RECOURSE_HANDLERS": handlers,
        "RECOURSE_LOG_LEVEL": "ERROR",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
    }
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v", "0"], cwd=ROOT, env=environment, check=True, capture_output=True
    )
    yield environment


@contextmanager
def engine(name: str) -> Iterator[None]:
    """This process as a console on a database of its own: what follows may import models."""
    with database(name) as url, tempfile.TemporaryDirectory() as data, console(url, data) as environment:
        os.environ.update(environment, DJANGO_SETTINGS_MODULE="config.settings")
        sys.path[:0] = [str(ROOT), str(ROOT / "sdk")]
        import django

        django.setup()
        yield


def fill(environment: dict[str, str], runs: int) -> str:
    """Makes the runs, and a key for workers, which is returned."""
    done = subprocess.run(
        [sys.executable, "-P", "bench/fill.py", str(runs)],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@contextmanager
def process(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_until_done(url: str, runs: int) -> None:
    wait_for(url, "SELECT count(*) FROM pipelines_run WHERE status = 'completed'", runs)


def wait_for(url: str, query: str, count: int, seconds: float = 180) -> None:
    give_up_at = time.monotonic() + seconds
    with psycopg.connect(url, autocommit=True) as connection:
        while (row := connection.execute(query).fetchone()) is None or row[0] < count:
            if time.monotonic() > give_up_at:
                raise SystemExit(f"only {row and row[0]} of {count} done after {seconds:g} s")
            time.sleep(0.25)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, seconds: float = 20) -> None:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("the web server did not start")


def celery_worker(processes: int) -> list[str]:
    """The command of a worker that runs handlers, sweeps and beat."""
    worker = [sys.executable, "-m", "celery", "-q", "-A", "config.celery", "worker", "-B"]
    return [*worker, "-c", str(processes), "-Q", ALL_QUEUES]


def web_server(port: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "gunicorn",
        "-c",
        "python:config.web_server",
        "-b",
        f"127.0.0.1:{port}",
        "config.wsgi",
    ]


def sdk_worker(port: int, concurrency: int) -> list[str]:
    address = f"http://127.0.0.1:{port}"
    worker = [sys.executable, "-m", "recourse.worker", "--handlers", "bench.noop", "--url", address]
    return [*worker, "--concurrency", str(concurrency)]
