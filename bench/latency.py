"""How long a run of three no-op stages takes when nothing else is going on, from the request to its end (p50, p95).

    python bench/latency.py [--runs 100]

Over HTTP: an SDK worker in its long poll, the run created by a client over HTTP. Under Celery: filesystem broker, two
processes. Between two runs it is quiet for a random while, longer than an executor lingers. The end is the database's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import urllib.request
from typing import Any

import lab
import psycopg

LONGER_THAN_LINGERING = 0.7  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    for name in ("http", "celery"):
        with lab.database(f"idle_{name}") as url, tempfile.TemporaryDirectory() as data:
            handlers = "bench.noop" if name == "celery" else ""
            with lab.console(url, data, handlers=handlers) as environment:
                key = lab.fill(environment, 0)
                port = lab.free_port()
                own = {**environment, "RECOURSE_API_KEY": key}
                worker = lab.celery_worker(2) if name == "celery" else lab.sdk_worker(port, 4)
                with lab.process(lab.web_server(port), environment):
                    lab.wait_for_port(port)
                    with lab.process(worker, own):
                        for number in range(5):
                            one_run(port, key, f"warm-{number}")
                        lab.wait_until_done(url, 5)
                        for number in range(options.runs):
                            time.sleep(LONGER_THAN_LINGERING + random.random() / 2)
                            one_run(port, key, f"idle-{number}")
                        lab.wait_until_done(url, options.runs + 5)
            report(name, url)


def one_run(port: int, key: str, name: str) -> Any:
    stages = [{"stageName": stage, "stageHandlerName": "bench.noop"} for stage in ("one", "two", "three")]
    body = json.dumps({"idempotencyKey": name, "name": "idle", "stages": stages}).encode()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/pipelines/idempotent", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def report(name: str, url: str) -> None:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT extract(epoch FROM r.finished_at - r.created_at)::float * 1000 FROM pipelines_run r"
            " JOIN pipelines_runidentity i ON i.run_id = r.id WHERE i.key LIKE 'idle-%'"
        ).fetchall()
    times = sorted(row[0] for row in rows)
    p95 = times[int(len(times) * 0.95)]
    print(f"{name:7} p50 {statistics.median(times):6.1f} ms   p95 {p95:6.1f} ms   of {len(times)} runs", flush=True)


if __name__ == "__main__":
    main()
