"""What a backfill costs: planning 100,000 ticks, and making the runs of 10,000.

    python bench/backfills.py [--planned 100000] [--filled 10000] [--reads 7]

Through the engine, by one connection. The dry run is made over an empty ledger and over one that has every other tick;
the filled backfill has runs of three stages, all held but ten. Fails where a dry run takes more than a second, or
filling more than a second for 1,000 ticks. Where other work shares the machine, look at the processor time beside,
which is this process's alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import lab

PLANNED_SECONDS, FILLED_SECONDS = 1.0, 10.0
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planned", type=int, default=100_000)
    parser.add_argument("--filled", type=int, default=10_000)
    parser.add_argument("--reads", type=int, default=7)
    options = parser.parse_args()
    with lab.engine("backfills"):
        return measure(options.planned, options.filled, options.reads)


def measure(planned: int, filled: int, reads: int) -> int:
    """All of it; how many figures were not met."""
    from recovery import backfills

    trigger, actor = cast()
    wide = backfills.Wish(
        trigger.id, FIRST, FIRST + timedelta(minutes=planned - 1), cron="* * * * *", max_ticks=planned
    )
    failed = told(f"dry run, {planned:,} ticks", lambda: backfills.preview(wide, actor), reads, PLANNED_SECONDS)
    fill_ledger(trigger, planned)
    what = f"dry run, {planned:,} ticks, half of them in the ledger"
    failed += told(what, lambda: backfills.preview(wide, actor), reads, PLANNED_SECONDS)
    later = datetime(2025, 1, 1, tzinfo=UTC)
    wish = backfills.Wish(
        trigger.id,
        later,
        later + timedelta(minutes=filled - 1),
        cron="* * * * *",
        max_ticks=filled,
        max_concurrent=10,
    )
    failed += told(f"filled, {filled:,} ticks of three stages", lambda: fill(wish, actor), 1, FILLED_SECONDS)
    (backfill,) = backfills.visible(actor)
    told(f"progress of {filled:,} ticks", lambda: backfills.progress(backfill), reads, FILLED_SECONDS)
    told(f"cancelled, {filled:,} ticks", lambda: cancel(backfill.id, actor), 1, FILLED_SECONDS * 10)
    return failed


def told(what: str, act: Callable[[], Any], reads: int, wanted: float) -> int:
    """Says how long it took; 1 when that is more than was wanted."""
    times, before = [], time.process_time()
    for _ in range(reads):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    took, cpu = statistics.median(times), (time.process_time() - before) / reads
    print(f"{what}: {took:.2f} s, processor {cpu:.2f} s")
    return took > wanted


def fill(wish: Any, actor: Any) -> None:
    from recovery import backfills
    from recovery.backfill_work import fill_up

    done = backfills.start(wish, actor)
    fill_up(done.backfill.id)
    assert backfills.progress(done.backfill).dispatched == done.progress.total


def cancel(backfill_id: Any, actor: Any) -> None:
    from recovery import backfills
    from recovery.backfill_work import cancel_held

    backfills.cancel(backfill_id, actor)
    while cancel_held(backfill_id):
        pass


def fill_ledger(trigger: Any, ticks: int) -> None:
    """A row for every other minute, each with a run that is gone."""
    from pipelines.sql import execute

    execute(
        "INSERT INTO pipelines_tick (id, trigger_id, at, state, cron, timezone, gap, overlap, rule, local_time,"
        " version, start_at, run) SELECT gen_random_uuid(), %s, at, 'dispatched', '* * * * *', 'UTC',"
        " 'first_existing', 'first', 'real_time', at::text, 1, at, gen_random_uuid()"
        " FROM generate_series(%s::timestamptz, %s::timestamptz, interval '2 minutes') at",
        [trigger.id, FIRST, FIRST + timedelta(minutes=ticks - 1)],
    )
    execute("ANALYZE pipelines_tick")


def cast() -> tuple[Any, Any]:
    """A trigger of a pipeline with three stages, and an administrator."""
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
    actor = person(user, workspace.id, "command")
    assert actor is not None
    pipeline = Pipeline.objects.create(workspace=workspace, slug="bench", name="bench")
    stages = [{"name": name, "handler": "bench.noop"} for name in ("fetch", "check", "publish")]
    definition = {"slug": "bench", "name": "bench", "stages": stages}
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)
    wanted = {"pipeline": "bench", "environment": "development", "application": "bench"}
    trigger = triggers.create(actor=actor, wanted={**wanted, "cron": "0 8 * * *", "timezone": "Europe/Berlin"})
    return trigger, actor


if __name__ == "__main__":
    sys.exit(main())
