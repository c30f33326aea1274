"""How long after the kill -9 of a worker its stages are in other hands (p50, p95), against lease + 2 s.

    python bench/recovery_time.py [--kills 15] [--lease 6]

Each time a worker takes 20 stages over HTTP and is killed at a random moment; a second worker waits in its long poll.
Measured by the database: from the kill to the next attempt handed out. Sweeps run once a second, as under `up`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request

import lab
import psycopg

STAGES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--lease", type=int, default=6)
    options = parser.parse_args()
    with lab.database("recovery") as url, tempfile.TemporaryDirectory() as data, lab.console(url, data) as environment:
        environment["RECOURSE_LEASE_SECONDS"] = str(options.lease)
        key = lab.fill(environment, 0)
        port = lab.free_port()
        own = {**environment, "RECOURSE_API_KEY": key}
        with lab.process(lab.web_server(port), environment), lab.process(lab.celery_worker(1), environment):
            lab.wait_for_port(port)
            times: list[float] = []
            for number in range(options.kills):
                times += one_kill(url, port, key, own, number)
    times.sort()
    p95 = times[int(len(times) * 0.95)]
    limit = options.lease + 2
    print(f"p50 {statistics.median(times):.2f} s   p95 {p95:.2f} s   limit {limit} s   of {len(times)} stages")


def one_kill(url: str, port: int, key: str, environment: dict[str, str], number: int) -> list[float]:
    for stage in range(STAGES):
        create(port, key, f"kill-{number}-{stage}", [{"stageName": "one", "stageHandlerName": "bench.hang"}])
    doomed = subprocess.Popen(
        lab.sdk_worker(port, STAGES), cwd=lab.ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    lab.wait_for(url, "SELECT count(*) FROM pipelines_attempt WHERE state = 'running' AND number = 1", STAGES)
    time.sleep(random.uniform(0, 3))
    with lab.process(lab.sdk_worker(port, STAGES), environment), psycopg.connect(url, autocommit=True) as connection:
        time.sleep(1.5)  # until it waits in its long poll
        os.killpg(doomed.pid, signal.SIGKILL)
        doomed.wait()
        killed = connection.execute("SELECT clock_timestamp()").fetchone()
        assert killed is not None
        lab.wait_until_done(url, STAGES * (number + 1))
        rows = connection.execute(
            "SELECT extract(epoch FROM dispatched_at - %s)::float FROM pipelines_attempt"
            " WHERE number = 2 AND dispatched_at > %s",
            [killed[0], killed[0]],
        ).fetchall()
    return [row[0] for row in rows]


def create(port: int, key: str, name: str, stages: list[dict[str, object]]) -> None:
    body = json.dumps({"idempotencyKey": name, "name": "kill", "stages": stages}).encode()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/pipelines/idempotent", body, headers)
    urllib.request.urlopen(request).close()


if __name__ == "__main__":
    main()
