"""How many no-op stages a second: 2,000 runs of three stages, two worker processes, everything on this machine.

    python bench/throughput.py [celery] [http] [dbos] [--runs 2000] [--rounds 3] [--rival-python PATH]

Each round measures every executor once, one after the other, on the same PostgreSQL (synchronous_commit on), each in a
database of its own that is made and dropped. The runs are there before the workers start; the clock runs from the
first stage handed out to the last one ended. Quote the ratio of one run, not a figure: machines differ.
dbos needs a virtual environment with the package `dbos`; without --rival-python it is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable

import lab
import psycopg

STAGES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("executors", nargs="*", default=["celery", "http", "dbos"])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival-python", default=os.environ.get("BENCH_RIVAL_PYTHON"))
    options = parser.parse_args()
    measures: dict[str, Callable[[str], float]] = {
        "celery": lambda url: measure_celery(url, options.runs),
        "http": lambda url: measure_http(url, options.runs),
        "dbos": lambda url: measure_dbos(url, options.runs, options.rival_python),
    }
    names = [name for name in options.executors if name != "dbos" or options.rival_python]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names:
            with lab.database(name) as url:
                rates[name].append(measures[name](url))
            print(f"round {number + 1}  {name:7} {rates[name][-1]:8.0f} stages/s", flush=True)
    for name, found in rates.items():
        ratio = ""
        if "dbos" in rates and name != "dbos":
            each = [ours / theirs for ours, theirs in zip(found, rates["dbos"], strict=True)]
            ratio = f"   {statistics.median(each):5.1f} x dbos (of {', '.join(f'{one:.1f}' for one in each)})"
        print(f"{name:7} median {statistics.median(found):8.0f} stages/s{ratio}")


def measure_celery(url: str, runs: int) -> float:
    with tempfile.TemporaryDirectory() as data, lab.console(url, data, handlers="bench.noop") as environment:
        lab.fill(environment, runs)
        with lab.process(lab.celery_worker(2), environment):
            lab.wait_until_done(url, runs)
        return rate(url)


def measure_http(url: str, runs: int) -> float:
    with tempfile.TemporaryDirectory() as data, lab.console(url, data) as environment:
        own = {**environment, "RECOURSE_API_KEY": lab.fill(environment, runs)}
        port = lab.free_port()
        with lab.process(lab.web_server(port), environment):
            lab.wait_for_port(port)
            worker = lab.sdk_worker(port, 200)
            with lab.process(worker, own), lab.process(worker, own):
                lab.wait_until_done(url, runs)
        return rate(url)


def measure_dbos(url: str, runs: int, python: str) -> float:
    script = str(lab.ROOT / "bench" / "rivals" / "dbos_worker.py")
    address = url.replace("postgres://", "postgresql://")
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([python, script, "idle", address, "1"], check=True, stdout=subprocess.DEVNULL, env=environment)
    subprocess.run([python, script, "enqueue", address, str(runs)], check=True, env=environment)
    done = "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = 'bench' AND status = 'SUCCESS'"
    worker = [python, script, "work", address]
    with lab.process(worker, environment), lab.process(worker, environment):
        lab.wait_for(url, done, runs)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT (max(updated_at) - min(started_at_epoch_ms)) / 1000.0 FROM dbos.workflow_status"
            " WHERE queue_name = 'bench'"
        ).fetchone()
    assert row is not None
    return runs * STAGES / float(row[0])


def rate(url: str) -> float:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) / extract(epoch FROM max(finished_at) - min(dispatched_at))::float FROM pipelines_attempt"
        ).fetchone()
    assert row is not None
    return float(row[0])


if __name__ == "__main__":
    main()
