"""A real `up` in a process of its own: start it, talk to it, end it in several ways, look for what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import httpx
import psutil

BASE_DIR = Path(__file__).resolve().parent.parent.parent
MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]


def clean_environment(data_dir: Path) -> dict[str, str]:
    """The environment of a person who has set nothing but where the data is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RECOURSE_", "DJANGO_", "COV_"))}
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "SECRET_KEY", "PYTEST_CURRENT_TEST"):
        kept.pop(name, None)
    return kept | {"RECOURSE_DATA": str(data_dir)}


def manage(data_dir: Path, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a management command to its end."""
    return subprocess.run(
        [*MANAGE, *arguments],
        env=clean_environment(data_dir),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd="/",
    )


def processes_of(data_dir: Path) -> dict[int, str]:
    """Every live process that belongs to a data directory: pid → command line."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            belongs = any(str(data_dir) in part for part in command)
            belongs = belongs or process.environ().get("RECOURSE_DATA") == str(data_dir)
            # PostgreSQL's own children name neither; they live in its directory.
            belongs = belongs or process.cwd() == str(data_dir / "pg")
            if belongs and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(command)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_until(condition: Callable[[], object], *, seconds: float = 90, why: str) -> None:
    """Poll until `condition` holds; fail with `why` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


class ConsoleProcess:
    """One running `up` on a free port; `environment` is laid over that of a person who has set nothing."""

    def __init__(
        self, data_dir: Path, *arguments: str, samples: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.output: list[str] = []
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        self.log: IO[bytes] = self.log_path.open("ab")
        self.process = subprocess.Popen(
            [*MANAGE, "up", *([] if samples else ["--no-samples"]), "--port", str(self.port), *arguments],
            env=clean_environment(data_dir) | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd="/",
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> list[str]:
        """Read its output up to the log-in line: the lines."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))
            if line.startswith("log in"):
                return self.output
        raise AssertionError(f"`up` ended before it was ready: {self.output} {self.log_path.read_text()}")

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def pid_of(self, part: str) -> int | None:
        """The oldest process of this console whose command line contains `part`."""
        found = [pid for pid, command in processes_of(self.data_dir).items() if part in command]
        return min(found, default=None)

    def end(self, number: int = signal.SIGTERM, seconds: float = 90) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        self.log.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
