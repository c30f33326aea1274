"""Which web server suits a Django application whose pulls keep threads waiting: gunicorn's threads, or granian?

Both run the same application with two processes of 16 threads on one PostgreSQL. While 12 pulls wait, 8 clients with
kept-alive connections send small requests that read the database. The servers take turns, so that a busy machine
troubles both. Prints the median round of each.

    python bench/web_server.py [--rounds 3] [--requests 4000]
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

BASE_DIR = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BASE_DIR))

from config import embedded  # noqa: E402

PROCESSES, THREADS, CLIENTS, WAITING, WAIT_SECONDS = 2, 16, 8, 12, 8


@dataclass
class Round:
    per_second: float
    p50: float
    p95: float
    waited_worst: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4000)
    options = parser.parse_args()
    servers = {"gunicorn": gunicorn, "granian": granian}
    if importlib.util.find_spec("granian") is None:
        del servers["granian"]
        print("granian is not installed (pip install granian): measuring gunicorn alone")
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        database = embedded.attach(data_dir)
        try:
            results: dict[str, list[Round]] = {name: [] for name in servers}
            for _ in range(options.rounds):
                for name, command in servers.items():
                    results[name].append(measure(command, data_dir, options.requests))
        finally:
            database.release()
    print(f"{'server':10}{'requests/s':>12}{'p50 ms':>9}{'p95 ms':>9}{'late ms':>9}{'PSS MB':>9}")
    for name, rounds in results.items():
        middle = sorted(rounds, key=lambda one: one.per_second)[len(rounds) // 2]
        print(
            f"{name:10}{middle.per_second:12.0f}{middle.p50 * 1000:9.2f}{middle.p95 * 1000:9.2f}"
            f"{middle.waited_worst * 1000:9.1f}{middle.megabytes:9.0f}"
        )


def gunicorn(port: int) -> list[str]:
    return ["gunicorn", "-c", "python:config.web_server", "-b", f"127.0.0.1:{port}", "bench.web_app:application"]


def granian(port: int) -> list[str]:
    return [
        *("granian", "--interface", "wsgi", "--port", str(port), "--workers", str(PROCESSES), "--no-ws"),
        *("--blocking-threads", str(THREADS), "--log-level", "warning", "bench.web_app:application"),
    ]


def measure(command: object, data_dir: Path, requests: int) -> Round:
    """Start one server, load it, stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"RECOURSE_DATA": str(data_dir), "RECOURSE_PROCESS": "web", "PYTHONPATH": str(BASE_DIR)}
    environment.pop("DATABASE_URL", None)
    argv = [sys.executable, "-m", *command(port)]  # type: ignore[operator]
    server = subprocess.Popen(argv, env=environment, cwd=BASE_DIR, start_new_session=True)
    try:
        wait_until_up(port)
        load(port, 400)
        waits: list[float] = []
        waiting = [threading.Thread(target=pull, args=(port, waits)) for _ in range(WAITING)]
        for thread in waiting:
            thread.start()
        started = time.perf_counter()
        latencies = load(port, requests)
        seconds = time.perf_counter() - started
        megabytes = memory(server.pid)
        for thread in waiting:
            thread.join()
        cuts = statistics.quantiles(latencies, n=20)
        return Round(len(latencies) / seconds, cuts[9], cuts[18], max(waits) - WAIT_SECONDS, megabytes)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def load(port: int, requests: int) -> list[float]:
    """Send small requests from CLIENTS connections at once: the latency of each."""
    latencies: list[float] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        own = []
        for _ in range(requests // CLIENTS):
            started = time.perf_counter()
            connection.request("GET", "/small")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            own.append(time.perf_counter() - started)
        connection.close()
        latencies.extend(own)

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert len(latencies) == requests // CLIENTS * CLIENTS, "a client failed"
    return latencies


def pull(port: int, waits: list[float]) -> None:
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/wait?seconds={WAIT_SECONDS}")
    connection.getresponse().read()
    connection.close()
    waits.append(time.perf_counter() - started)


def wait_until_up(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.1)


def memory(pid: int) -> float:
    """The proportional set size of a process and all below it, in megabytes."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().pss for process in family) / 1e6


if __name__ == "__main__":
    main()
