"""What the workspace store costs: an upsert of 1,000 rows, against a plain INSERT … ON CONFLICT by psycopg.

    python bench/store.py [--rounds 30] [--rows 1000]

Both in turns on one server: rows that are new, the same rows changed, and the same rows as they are. The plain one is a
single statement over arrays into a table with a primary key and a jsonb column, committed: what a script of one's own
would do at its best; and, besides, `executemany`, as most are written. The store's is the call that serves a worker's
request: fence, table, rows, quotas, counts, commit. Then a point read, a page of 1,000 rows and a filter over all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import lab
import psycopg

NEW, CHANGED, SAME = "new", "changed", "as they are"
MANY = 100_000
PLAIN = (
    "INSERT INTO plain (id, body) SELECT * FROM unnest(%s::text[], %s::jsonb[])"
    " ON CONFLICT (id) DO UPDATE SET body = excluded.body"
)
ONE = "INSERT INTO plain (id, body) VALUES (%s, %s::jsonb) ON CONFLICT (id) DO UPDATE SET body = excluded.body"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    with lab.engine("store"):
        writes(options.rounds, options.rows)
        reads()


def writes(rounds: int, count: int) -> None:
    """Medians of each way to write, in turns, and their ratios."""
    from django.conf import settings

    settings.RECOURSE_STORE_TABLE_ROWS = settings.RECOURSE_STORE_BYTES = 10**9
    store = _store()
    times: dict[tuple[str, str], list[float]] = {}
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as plain:
        plain.execute("CREATE TABLE plain (id text PRIMARY KEY, body jsonb NOT NULL)")
        ways: dict[str, Callable[[list[dict[str, Any]]], None]] = {
            "store": store,
            "plain": lambda rows: _in_one(plain, rows),
            "executemany": lambda rows: _one_by_one(plain, rows),
        }
        for number in range(rounds):
            for kind, version in ((NEW, 0), (CHANGED, 1), (SAME, 1)):
                for way, write in ways.items():
                    prefix = way if way == "executemany" else ""
                    rows = [_row(f"{prefix}{number}-{place}", version) for place in range(count)]
                    begun = time.perf_counter()
                    write(rows)
                    times.setdefault((way, kind), []).append(time.perf_counter() - begun)
    for kind in (NEW, CHANGED, SAME):
        told = {way: statistics.median(times[way, kind]) * 1000 for way in ways}
        print(
            f"{count:,} rows, {kind}: store {told['store']:.1f} ms, plain {told['plain']:.1f} ms,"
            f" executemany {told['executemany']:.1f} ms: {told['store'] / told['plain']:.2f} of the plain one",
            flush=True,
        )


def reads() -> None:
    """Medians over a table of `MANY` rows."""
    from pipelines import store_writing

    store, (holder, stage_id, attempt_id) = _store("many"), _attempt()
    for start in range(0, MANY, 1000):
        store([_row(str(number), 0) for number in range(start, start + 1000)])
    asked: dict[str, dict[str, Any]] = {
        "a row by its key": {"where": {"id": "77777"}, "after": 0},
        "a page of 1,000 rows": {"where": {}, "after": MANY // 2},
        "a filter that matches one row": {"where": {"amount": 77_777}, "after": 0},
    }
    for name, told in asked.items():
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            found = store_writing.read(holder, stage_id, attempt_id, "many", most=1000, **told)
            times.append(time.perf_counter() - begun)
        assert found is not None
        print(f"of {MANY:,} rows {name}: {statistics.median(times) * 1000:.1f} ms", flush=True)


_ATTEMPT: list[Any] = []


def _attempt() -> tuple[Any, Any, Any]:
    """A running attempt, made once: (holder, stage, attempt)."""
    if not _ATTEMPT:
        from pipelines import leases
        from pipelines.creation import Intent, Place, create_run
        from pipelines.ids import new_id
        from pipelines.models import Application, WorkerSession, Workspace
        from pipelines.wake import Queue

        workspace = Workspace.objects.create(slug="bench", name="Bench")
        environment = workspace.environments.order_by("rank").first()
        if environment is None:
            from pipelines.models import Environment

            environment = Environment.objects.create(workspace=workspace, slug="development", rank=0)
        application = Application.objects.create(workspace=workspace, name="bench")
        place = Place(workspace.id, application.id, environment.id, environment.slug)
        create_run(place, Intent(name="store", stages=[{"name": "one", "handler": "H"}]), key=None, actor="bench")
        session = WorkerSession.objects.create(
            id=new_id(), application=application, environment=environment, worker_name="bench", handlers=["H"]
        )
        holder = leases.Holder(session.id, application.id, environment.id, "bench")
        (job,) = leases.claim(holder, [Queue(application.id, environment.id, "H")], limit=1, acquire=True)
        from pipelines.sql import execute

        execute("UPDATE pipelines_attempt SET expires_at = expires_at + interval '1 day'")
        _ATTEMPT.append((holder, job.stage.id, job.attempt_id))
    return _ATTEMPT[0]  # type: ignore[no-any-return]


def _store(table: str = "invoices") -> Callable[[list[dict[str, Any]]], None]:
    from pipelines import store_writing

    holder, stage_id, attempt_id = _attempt()

    def write(rows: list[dict[str, Any]]) -> None:
        told = store_writing.write(holder, stage_id, attempt_id, table, rows, upsert=True, key=["id"])
        assert told is not None

    return write


def _in_one(connection: psycopg.Connection[Any], rows: list[dict[str, Any]]) -> None:
    connection.execute(PLAIN, [[row["id"] for row in rows], [json.dumps(row) for row in rows]])


def _one_by_one(connection: psycopg.Connection[Any], rows: list[dict[str, Any]]) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(ONE, [(row["id"], json.dumps(row)) for row in rows])


def _row(name: str, version: int) -> dict[str, Any]:
    return {
        "id": name,
        "amount": int(name) if name.isdecimal() else version,
        "status": f"open {version}",
        "customer": {"name": "Meyer & Söhne", "city": "Zürich"},
    }


if __name__ == "__main__":
    main()
