"""How long the planner takes over 10,000 ticks, and the page of a backfill of 100,000.

    python bench/backfill_pages.py [--planned 10000] [--filled 100000] [--reads 40]

The planner's window holds ticks of every fate: half of them have a run already. The backfill's runs are copies of one,
in all the states that runs end in or wait in. Both pages are asked for as a browser does, templates and all, in one
process. Fails where the planner's p95 is above 150 ms, its page above 150 kB, or the backfill's page above 300 ms.
Where other work shares the machine, look at the processor time beside.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import lab

PLANNER_MS, PLANNER_BYTES, PROGRESS_MS = 150, 150_000, 300
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
STATES = ("completed", "completed", "completed", "failed", "cancelled", "running", "queued", "queued")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planned", type=int, default=10_000)
    parser.add_argument("--filled", type=int, default=100_000)
    parser.add_argument("--reads", type=int, default=40)
    options = parser.parse_args()
    with lab.engine("backfill_pages"):
        return measure(options.planned, options.filled, options.reads)


def measure(planned: int, filled: int, reads: int) -> int:
    """Both pages; how many were too slow or too large."""
    from django.conf import settings
    from django.test import Client

    settings.ALLOWED_HOSTS = ["*"]
    person, trigger = cast()
    browser = Client()
    browser.force_login(person)
    spread_runs(trigger, planned // 2)
    end = FIRST + timedelta(minutes=5 * (planned - 1))
    window = {"from": FIRST.isoformat(), "to": end.isoformat()}
    address = f"/console/triggers/{trigger.id}/backfill/"
    size, times, cpu = read(lambda: browser.get(address, window), reads)
    p95 = statistics.quantiles(times, n=20)[18]
    print(
        f"planner, {planned:,} ticks: p50 {statistics.median(times):.0f} ms, p95 {p95:.0f} ms,"
        f" processor {cpu:.0f} ms, {size / 1000:.0f} kB"
    )
    failed = (p95 > PLANNER_MS) + (size > PLANNER_BYTES)
    backfill = backfill_of(trigger, person, filled)
    size, times, cpu = read(lambda: browser.get(f"/console/backfills/{backfill}/"), reads)
    p95 = statistics.quantiles(times, n=20)[18]
    print(
        f"page of a backfill, {filled:,} ticks: p50 {statistics.median(times):.0f} ms, p95 {p95:.0f} ms,"
        f" processor {cpu:.0f} ms, {size / 1000:.0f} kB"
    )
    return failed + (p95 > PROGRESS_MS)


def read(ask: Callable[[], Any], reads: int) -> tuple[int, list[float], float]:
    """The size of the page, how long each read took, and the processor time of one, both in milliseconds."""
    ask()
    gc.collect()
    gc.freeze()  # as the web server does before it forks: what was loaded once is not looked through again
    times, before = [], time.process_time()
    for _ in range(reads):
        begun = time.perf_counter()
        answer = ask()
        times.append((time.perf_counter() - begun) * 1000)
        assert answer.status_code == 200, answer.content[:300]
    return len(answer.content), times, (time.process_time() - before) * 1000 / reads


def cast() -> tuple[Any, Any]:
    """An administrator, and a trigger every five minutes."""
    from django.contrib.auth import get_user_model

    from pipelines import catalog, triggers
    from pipelines.access import person
    from pipelines.models import Application, Environment, Member, Pipeline
    from pipelines.releases import register_release

    workspace, _ = catalog.ensure_workspace("bench")
    Application.objects.create(workspace=workspace, name="bench")
    environment = Environment.objects.get(workspace=workspace, slug="development")
    user = get_user_model().objects.create_user("bench")
    Member.objects.create(workspace=workspace, user=user, role="admin")
    actor = person(user, workspace.id, "console")
    assert actor is not None
    pipeline = Pipeline.objects.create(workspace=workspace, slug="bench", name="bench")
    definition = {"slug": "bench", "name": "bench", "stages": [{"name": "only", "handler": "bench.noop"}]}
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)
    wanted = {"pipeline": "bench", "environment": "development", "application": "bench"}
    return user, triggers.create(actor=actor, wanted={**wanted, "cron": "*/5 * * * *", "timezone": "UTC"})


def spread_runs(trigger: Any, count: int) -> None:
    """Every other tick of the planner's window has a run."""
    copies(trigger, count, lane="t.trigger_id", every=2)
    execute(
        "INSERT INTO pipelines_tick (id, trigger_id, at, state, cron, timezone, gap, overlap, rule, local_time,"
        " version, start_at, run) SELECT gen_random_uuid(), trigger_id, tick_at, 'dispatched', '*/5 * * * *', 'UTC',"
        " 'first_existing', 'first', 'real_time', '', 1, tick_at, id FROM pipelines_run WHERE trigger_id = %s",
        [trigger.id],
    )
    execute("ANALYZE")


def backfill_of(trigger: Any, user: Any, count: int) -> Any:
    """A backfill as it is in the middle of its runs."""
    from recovery.models import Backfill

    row = Backfill.objects.create(
        workspace_id=trigger.workspace_id,
        trigger=trigger,
        requested_by=user,
        channel="console",
        fingerprint="0" * 64,
        state="running",
        from_time=FIRST,
        to_time=FIRST + timedelta(minutes=5 * count),
        cron="*/5 * * * *",
        timezone="UTC",
        gap="first_existing",
        overlap="first",
        max_concurrent=4,
    )
    copies(trigger, count, lane="%(lane)s::uuid", every=1, lane_id=row.id)
    execute(
        "INSERT INTO recovery_backfilltick (backfill_id, at, local_time, rule, state, run) SELECT lane_id, tick_at, '',"
        " 'real_time', 'dispatched', id FROM pipelines_run WHERE lane_id = %s",
        [row.id],
    )
    execute("ANALYZE")
    return row.id


def copies(trigger: Any, count: int, *, lane: str, every: int, lane_id: Any = None) -> None:
    """So many runs like one that was made, of ticks in a row."""
    from pipelines.creation import Intent, Place, create_run

    place = Place(trigger.workspace_id, trigger.application_id, trigger.environment_id, trigger.environment.slug)
    stages = [{"name": "only", "handler": "bench.noop"}]
    run_id, _ = create_run(place, Intent("bench", stages=stages), key=f"bench-{every}", actor="bench")
    told = {
        "id": "gen_random_uuid()",
        "trigger_id": "t.trigger_id",
        "lane_id": lane,
        "lane_rank": "t.n",
        "tick_at": "t.at",
        "status": "(%(states)s::text[])[1 + t.n %% 8]",
        "held": "t.n %% 8 >= 6",
        "started_at": "t.at",
        "finished_at": "CASE WHEN t.n %% 8 < 5 THEN t.at + interval '40 seconds' END",
    }
    columns = [
        row[0]
        for row in rows(
            "SELECT column_name::text FROM information_schema.columns WHERE table_name = 'pipelines_run'"
            " AND is_generated = 'NEVER' ORDER BY ordinal_position"
        )
    ]
    values = ", ".join(told.get(name, f"r.{name}") for name in columns)
    execute("SET session_replication_role = replica")
    execute(
        f"INSERT INTO pipelines_run ({', '.join(columns)}) SELECT {values} FROM pipelines_run r,"
        " (SELECT n, %(trigger)s::uuid AS trigger_id, %(first)s::timestamptz + n * %(step)s::interval AS at"
        " FROM generate_series(0, %(count)s::int - 1) n) t WHERE r.id = %(run)s",
        {
            "run": run_id,
            "trigger": trigger.id,
            "first": FIRST,
            "step": timedelta(minutes=5 * every),
            "count": count,
            "states": list(STATES),
            "lane": lane_id,
        },
    )
    execute("SET session_replication_role = DEFAULT")


def execute(sql: str, params: Any = None) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def rows(sql: str) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


if __name__ == "__main__":
    sys.exit(main())
