"""What bulks cost: drafting and looking at 100,000 targets, and how many a second are dealt with.

    python bench/bulk.py [--targets 100000] [--worked 1000] [--reads 7]

Through the engine, by one connection; then once more by the two worker processes and the clock that `up` starts. The
worked runs were made and failed by the engine; the many are copies of them. Fails where a draft takes more than a
second, a page of a bulk of 100,000 more than 150 ms, one worker deals with fewer than 100 targets a second, or those of
`up` with fewer than 200. Where other work shares the machine, look at the processor time beside, which is this
process's alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lab

DRAFT_SECONDS, PLAN_SECONDS, PAGE_SECONDS, TARGETS_A_SECOND, BY_UP = 1.0, 2.0, 0.15, 100, 200
REASON = "a measurement"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=100_000)
    parser.add_argument("--worked", type=int, default=1_000)
    parser.add_argument("--reads", type=int, default=7)
    options = parser.parse_args()
    with lab.engine("bulk"):
        return measure(options.targets, options.worked, options.reads)


def measure(targets: int, worked: int, reads: int) -> int:
    """All of it; how many figures were not met."""
    from pipelines.filters import RunFilter
    from recovery.bulks import Selection
    from recovery.states import OperationKind

    actor, place = cast()
    fail(place, worked)
    failed = 0
    letters = Selection(letters={"error_code": ["BUSINESS_REJECTED"]})
    stood = Selection(runs=RunFilter(status=("failed",)))
    going = Selection(runs=RunFilter(status=("queued", "running")))
    for kind, selection in (
        (OperationKind.REDRIVE, letters),
        (OperationKind.CANCEL, going),
        (OperationKind.RETRY, stood),
        (OperationKind.SKIP, stood),
    ):
        if kind in (OperationKind.RETRY, OperationKind.SKIP):
            fail(place, worked)
        failed += worked_through(kind, selection, actor)
        if kind == OperationKind.RETRY:
            end_all(actor, going)
    end_all(actor, going)
    fail(place, worked)
    with workers():
        failed += worked_through(OperationKind.REDRIVE, letters, actor, by_up=True)
        failed += worked_through(OperationKind.CANCEL, going, actor, by_up=True)
    fail(place, 1)
    copy(targets - 1)  # nothing else is left that failed
    for what, kind, selection in (
        ("dead letters by filter", OperationKind.REDRIVE, letters),
        ("runs by filter", OperationKind.REPLAY, Selection(runs=RunFilter(status=("failed",)))),
        ("failed stages of runs by filter", OperationKind.RETRY, Selection(runs=RunFilter(status=("failed",)))),
    ):
        failed += looked_at(what, kind, selection, actor, reads)
    return failed


def looked_at(what: str, kind: Any, selection: Any, actor: Any, reads: int) -> int:
    """Draft, plan, progress and pages of one bulk."""
    from pipelines.paging import Cut
    from recovery import bulks
    from recovery.bulks import Wish

    wish = Wish(kind, selection, reason=REASON)
    failed = told(f"draft, {what}", lambda: bulks.draft(wish, actor=actor), min(reads, 3), DRAFT_SECONDS)
    bulk = bulks.draft(wish, actor=actor)
    print(f"  {bulk.total:,} targets")
    analyze()
    failed += told("  its plan", lambda: bulks.plan_of(bulk, actor=actor), reads, PLAN_SECONDS)
    failed += told("  its progress", lambda: bulks.progress(bulk), reads, PAGE_SECONDS)
    failed += told("  a page of it", lambda: bulks.items(bulk, cut=Cut(50)), reads, PAGE_SECONDS)
    half = Cut(50, (bulk.total // 2,))
    return failed + told("  a page in its midst", lambda: bulks.items(bulk, cut=half), reads, PAGE_SECONDS)


@contextmanager
def workers() -> Iterator[None]:
    """The worker processes and the clock, as `up` has them."""
    from config import console

    services = [console.workers(2), console.clock(), console.beat()]
    with ExitStack() as stack:
        for service in services:
            stack.enter_context(lab.process(service.argv, {**os.environ, **service.env}))
        time.sleep(8)  # until all of them are there
        yield


def end_all(actor: Any, selection: Any) -> None:
    """Cancels what one measurement left, so that the next finds only its own."""
    from recovery import bulk_work, bulks
    from recovery.bulks import Wish
    from recovery.states import OperationKind

    bulk = bulks.create(Wish(OperationKind.CANCEL, selection, reason=REASON, rate=bulks.FASTEST), actor=actor).bulk
    while bulk.state == "running":
        bulk_work.work()
        bulk.refresh_from_db()


def worked_through(kind: Any, selection: Any, actor: Any, *, by_up: bool = False) -> int:
    """One worker, or those of `up`, as fast as they can; 1 when that is slower than was wanted."""
    from recovery import bulk_work, bulks
    from recovery.bulks import Wish

    wish = Wish(kind, selection, reason=REASON, rate=bulks.FASTEST, stop_ratio=0.5)
    bulk = bulks.create(wish, actor=actor).bulk
    begun, before = time.perf_counter(), time.process_time()
    while bulk.state == "running":
        if by_up:
            time.sleep(0.05)
        else:
            bulk_work.work()
        bulk.refresh_from_db()
    took, cpu = time.perf_counter() - begun, time.process_time() - before
    found = bulks.progress(bulk)
    assert (bulk.state, found.done) == ("completed", bulk.total), (bulk.state, found)
    beside = "two worker processes" if by_up else f"processor {cpu:.1f} s"
    print(f"{kind}: {bulk.total / took:,.0f} a second ({bulk.total:,} in {took:.1f} s, {beside})")
    return bulk.total / took < (BY_UP if by_up else TARGETS_A_SECOND)


def told(what: str, act: Callable[[], Any], reads: int, wanted: float) -> int:
    """Says how long it took; 1 when that is more than was wanted."""
    times, before = [], time.process_time()
    for _ in range(reads):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    took, cpu = statistics.median(times), (time.process_time() - before) / reads
    print(f"{what}: {took * 1000:,.0f} ms, processor {cpu * 1000:,.0f} ms")
    return took > wanted


def fail(place: Any, count: int) -> None:
    """Runs whose first stage has failed for good, made and failed by the engine."""
    from pipelines import leases, results
    from pipelines.creation import Intent, create_run
    from pipelines.ids import new_id
    from pipelines.models import WorkerSession
    from pipelines.wake import Queue

    stages = [{"name": name, "handler": "bench.noop"} for name in ("one", "two", "three")]
    for _ in range(count):
        create_run(place, Intent(name="bench", stages=stages), key=None, actor="bench")
    session = WorkerSession.objects.create(
        id=new_id(),
        application_id=place.application_id,
        environment_id=place.environment_id,
        worker_name="bench",
        handlers=["bench.noop"],
    )
    holder = leases.Holder(session.id, place.application_id, place.environment_id, "bench")
    queues = [Queue(place.application_id, place.environment_id, "bench.noop")]
    while jobs := leases.claim(holder, queues, limit=50, acquire=True):
        told = {"error_code": "BUSINESS_REJECTED", "retryable": False}
        results.report(
            holder, [results.Result(job.stage.id, job.attempt_id, job.number, "failed", **told) for job in jobs]
        )


def copy(count: int) -> None:
    """So many more runs like the newest failed one, each with its stages and its dead letter."""
    from pipelines.models import DeadLetter
    from pipelines.sql import execute

    source = DeadLetter.objects.filter(state="open").latest("opened_at").run_id
    execute("DROP TABLE IF EXISTS copied, copied_stages")
    execute(
        "CREATE TEMPORARY TABLE copied AS SELECT gen_random_uuid() AS id, n,"
        " recourse_now() - make_interval(secs => n) AS at FROM generate_series(1, %s::int) n",
        [count],
    )
    execute(
        "INSERT INTO pipelines_run SELECT (jsonb_populate_record(r, jsonb_build_object('id', c.id,"
        " 'created_at', c.at))).* FROM copied c, pipelines_run r WHERE r.id = %s",
        [source],
    )
    execute(
        "CREATE TEMPORARY TABLE copied_stages AS SELECT gen_random_uuid() AS id, c.id AS run, c.at, s.id AS source"
        " FROM copied c, pipelines_stage s WHERE s.run_id = %s",
        [source],
    )
    execute(
        "INSERT INTO pipelines_stage SELECT (jsonb_populate_record(s, jsonb_build_object('id', c.id, 'run_id', c.run,"
        " 'run_created_at', c.at))).* FROM copied_stages c JOIN pipelines_stage s ON s.id = c.source"
    )
    execute(
        "INSERT INTO pipelines_deadletter SELECT (jsonb_populate_record(d, jsonb_build_object('id', gen_random_uuid(),"
        " 'stage_id', c.id, 'run_id', c.run, 'opened_at', c.at))).* FROM copied_stages c"
        " JOIN pipelines_deadletter d ON d.stage_id = c.source"
    )
    analyze()


def analyze() -> None:
    from pipelines.sql import execute

    execute("ANALYZE")


def cast() -> tuple[Any, Any]:
    """An administrator, and where runs are made."""
    from django.contrib.auth import get_user_model

    from pipelines import catalog
    from pipelines.access import person
    from pipelines.creation import Place
    from pipelines.models import Application, Environment, Member

    workspace, _ = catalog.ensure_workspace("bench")
    application = Application.objects.create(workspace=workspace, name="bench")
    environment = Environment.objects.get(workspace=workspace, slug="development")
    user = get_user_model().objects.create_user("bench")
    Member.objects.create(workspace=workspace, user=user, role="admin")
    actor = person(user, workspace.id, "command")
    assert actor is not None
    return actor, Place(workspace.id, application.id, environment.id, environment.slug)


if __name__ == "__main__":
    sys.exit(main())
