"""What the application API costs: creations a second with 8 clients, and batches of 200 pulled, renewed and reported.

    python bench/application_api.py [--runs 4000]

Runs have three no-op stages; web server, PostgreSQL and clients share the machine. The processor time of each is shown
per creation, because on a machine with other work it says more than the rate.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from typing import Any

import lab
import psutil
import psycopg

CLIENTS = 8
BATCH = 200
STAGES = [{"stageName": name, "stageHandlerName": "bench.noop", "input": "{}"} for name in ("one", "two", "three")]


class Caller:
    """One kept-alive connection."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.headers = {"X-API-Key": key, "Content-Type": "application/json"}

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        self._connection.request("POST", path, json.dumps(body), self.headers)
        answer = self._connection.getresponse()
        raw = answer.read()
        return answer.status, json.loads(raw) if raw else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    options = parser.parse_args()
    with (
        lab.database("application_api") as url,
        tempfile.TemporaryDirectory() as data,
        lab.console(url, data) as environment,
    ):
        key = lab.fill(environment, 0)
        port = lab.free_port()
        with lab.process(lab.web_server(port), {**environment, "RECOURSE_PROCESS": "web"}):
            lab.wait_for_port(port)
            create(port, key, 200, "warm")
            before = processor_seconds(url)
            seconds, times = create(port, key, options.runs, "key")
            spent = {name: value - before[name] for name, value in processor_seconds(url).items()}
            print(f"creations: {options.runs / seconds:.0f} a second, p50 {statistics.median(times) * 1000:.1f} ms")
            each = ", ".join(f"{name} {1000 * value / options.runs:.2f} ms" for name, value in spent.items())
            print(f"processor time of one creation: {each}")
            for name, batch_times in work(port, key).items():
                print(f"{name} of {BATCH}: p50 {statistics.median(batch_times) * 1000:.0f} ms")


def create(port: int, key: str, runs: int, name: str) -> tuple[float, list[float]]:
    """All runs from `CLIENTS` connections: the seconds it took, and the time of each call."""
    times: list[float] = []

    def one_client(client: int) -> None:
        caller = Caller(port, key)
        for number in range(runs // CLIENTS):
            begun = time.perf_counter()
            body = {"idempotencyKey": f"{name}-{client}-{number}", "name": "bench", "stages": STAGES}
            status, _ = caller.post("/pipelines/idempotent", body)
            assert status == 201
            times.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=one_client, args=(client,)) for client in range(CLIENTS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun, times


def work(port: int, key: str) -> dict[str, list[float]]:
    """Pulls, renews and reports batches until nothing is left, at most ten of them."""
    caller = Caller(port, key)
    _, session = caller.post("/workers/bootstrap", {"workerName": "bench", "supportedHandlers": ["bench.noop"]})
    caller.headers["X-Worker-Session"] = session["sessionToken"]
    times: dict[str, list[float]] = {"pull": [], "renewal": [], "results": []}

    def timed(name: str, path: str, body: Any) -> Any:
        begun = time.perf_counter()
        status, answer = caller.post(path, body)
        times[name].append(time.perf_counter() - begun)
        assert status < 300, answer
        return answer

    for _ in range(10):
        jobs = (timed("pull", "/jobs/pull", {"maxJobs": BATCH, "acquire": True}) or {"jobs": []})["jobs"]
        if len(jobs) < BATCH:
            break
        named = [{"stageId": job["stageId"], "executionId": job["executionId"]} for job in jobs]
        timed("renewal", "/leases/renew", {"leases": named})
        results = [
            {**item, "attempt": job["attempt"], "status": "succeeded", "output": {"ok": True}}
            for item, job in zip(named, jobs, strict=True)
        ]
        taken = timed("results", "/results", {"results": results})["results"]
        assert all(receipt["accepted"] for receipt in taken)
    return times


def processor_seconds(url: str) -> dict[str, float]:
    """What the web server, the database's processes for it, and this process have used so far."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    web = psutil.Process().children(recursive=True)
    return {
        "web": sum(_used(child.pid) for child in web),
        "database": sum(_used(row[0]) for row in rows),
        "clients": _used(psutil.Process().pid),
    }


def _used(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


if __name__ == "__main__":
    main()
