"""The real web server, started on the tests' own database, for what only separate processes and sockets can show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from django.conf import settings
from django.db import connection

from tests.clock import Clock
from tests.contract.house import House

BASE_DIR = Path(__file__).resolve().parent.parent.parent


@contextmanager
def web_server(database_url: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The console's web server: its address and its process. Gone, with its connections, at the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", "python:config.web_server", "config.wsgi:application"],
            cwd=BASE_DIR,
            env=os.environ
            | {
                "DATABASE_URL": database_url,
                "RECOURSE_PROCESS": "web",
                "RECOURSE_LISTEN_FD": str(listener.fileno()),
                "RECOURSE_LOG_LEVEL": "ERROR",
                "RECOURSE_ENCRYPTION_KEY": settings.RECOURSE_ENCRYPTION_KEY,
                **environment,
            },
            pass_fds=[listener.fileno()],
        )
    try:
        _wait_until_it_answers(address, process)
        yield address, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def url_of_test_database(name: str) -> str:
    """For a server that the database knows by `name`."""
    given: dict[str, Any] = connection.settings_dict
    user = quote(given["USER"]) + (f":{quote(given['PASSWORD'])}" if given["PASSWORD"] else "")
    port = f":{given['PORT']}" if given["PORT"] else ""
    return f"postgres://{user}@{port}/{given['NAME']}?host={quote(given['HOST'], safe='')}&application_name={name}"


@pytest.fixture(scope="session")
def server(django_db_setup: None) -> Iterator[str]:
    """The address of a running console, on the database of these tests."""
    with web_server(url_of_test_database("web")) as (address, _):
        yield address


@pytest.fixture
def house(db: None, clock: Clock) -> House:
    """A workspace with its application; nothing in it was made but by commands."""
    return House(clock)


@pytest.fixture
def http(transactional_db: None, server: str) -> Iterator[httpx.Client]:
    """A client of the running console. What the test writes is committed, so that the server sees it."""
    with httpx.Client(base_url=server, timeout=40) as client:
        yield client


def _wait_until_it_answers(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            if httpx.get(f"{address}/healthz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert process.poll() is None, "the web server has ended"
        assert time.monotonic() < deadline, "the web server does not answer"
        time.sleep(0.05)
