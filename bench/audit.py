"""What the audit costs: writing an event, sealing, checking the chain; and creations and cancels with and without it.

    python bench/audit.py [--events 500000] [--runs 1000]

Events are made in the database, as many as asked for, and take the way that every event takes: the trigger's text, the
list of those that wait, sealing in batches. Creations and cancels are made through the engine by one connection, in
turns with and without the audit event, so that other work on the machine slows both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from typing import Any

import lab
import psutil

STAGES = [{"name": name, "handler": "bench.noop"} for name in ("one", "two", "three")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=1_000)
    options = parser.parse_args()
    with lab.engine("audit"):
        measure(options.events, options.runs)


def measure(events: int, runs: int) -> None:
    from pipelines import audit_chain, catalog
    from pipelines.sql import execute

    workspace, _ = catalog.ensure_workspace("bench")
    cost_of_writing(workspace, runs)
    audit_chain.seal()
    spent = Spent()
    begun = time.perf_counter(), spent()
    execute(
        "INSERT INTO pipelines_auditevent (id, workspace_id, at, action, outcome, code, actor, channel, run, reason,"
        " before, after, request_id, data)"
        " SELECT lpad(to_hex(n), 32, '0')::uuid, %s, recourse_now(), 'run.pause', 'allowed', '', 'operator', 'api',"
        ' gen_random_uuid(), \'the counterparty asked for it\', \'{"run": "running"}\', \'{"run": "pausing"}\','
        " gen_random_uuid()::text, '{}' FROM generate_series(1, %s) n",
        [workspace.id, events],
    )
    told("inserted", events, begun, spent)
    begun = time.perf_counter(), spent()
    audit_chain.seal()
    told("sealed", events, begun, spent)
    execute("ANALYZE pipelines_auditevent, pipelines_auditseal")
    for _ in range(3):
        begun = time.perf_counter(), spent()
        report = audit_chain.verify(workspace.id)
        assert report.fault is None
        told("checked", report.checked, begun, spent)


def cost_of_writing(workspace: Any, runs: int) -> None:
    """The same creations and cancels, in turns with and without an audit event."""
    from pipelines import audit, keys, transitions
    from pipelines.access import Actor
    from pipelines.creation import Intent, Place, create_run
    from pipelines.models import Application, Environment

    application = Application.objects.create(workspace=workspace, name="bench")
    environment = Environment.objects.get(workspace=workspace, slug="development")
    keys.issue_key(application, environment)
    place = Place(workspace.id, application.id, environment.id, environment.slug)
    actor = Actor("bench", workspace.id, "application", application_id=application.id, environment_id=environment.id)
    intent = Intent("bench", stages=STAGES)
    written = audit.write
    times: dict[str, list[float]] = {"creation": [], "creation without": [], "cancel": [], "cancel without": []}
    for number in range(runs):
        for with_event in (True, False) if number % 2 else (False, True):
            word = "" if with_event else " without"
            audit.write = written if with_event else lambda *_: None
            begun = time.perf_counter()
            run_id, _ = create_run(place, intent, key=str(uuid.uuid4()), actor="bench", by=actor)
            created = time.perf_counter()
            transitions.cancel_run(run_id, actor=actor)
            times[f"creation{word}"].append(created - begun)
            times[f"cancel{word}"].append(time.perf_counter() - created)
    audit.write = written
    for verb in ("creation", "cancel"):
        audited, bare = (statistics.median(times[name]) * 1000 for name in (verb, f"{verb} without"))
        print(f"{verb}: {audited:.2f} ms, without its audit event {bare:.2f} ms: {100 * (audited / bare - 1):+.1f} %")


class Spent:
    """Processor time that this process and its database connection have used so far, in seconds."""

    def __init__(self) -> None:
        from pipelines.sql import query

        self._processes = [psutil.Process(), psutil.Process(query("SELECT pg_backend_pid()")[0][0])]

    def __call__(self) -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._processes))


def told(verb: str, events: int, begun: tuple[float, float], spent: Spent) -> None:
    seconds, used = time.perf_counter() - begun[0], spent() - begun[1]
    print(
        f"{verb} {events} events in {seconds:.1f} s, {used:.1f} s of a processor: {events / used:,.0f} a second of it"
    )


if __name__ == "__main__":
    main()
