"""How fast is the run list at 1,000,000 runs with 3,000,000 stages, whatever one filters by?

Fills a workspace of its own in the database of DATABASE_URL (which must be migrated, and allow the user to switch
foreign-key triggers off while filling), then measures every single filter of the operations API and some pairs, as the
API asks for them: the page's ids, its rows, and what a screen needs besides. Prints p50 and p95 in milliseconds. Fails
when a single filter's p95 is above the limit or a plan reads a large table from one end to the other.

    python bench/run_list.py [--runs 1000000] [--rounds 30]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
import django

django.setup()

# ruff: noqa: E402 - Django must be set up before its models are imported
from django.db import connection, transaction

from pipelines import queries
from pipelines.access import Actor
from pipelines.filters import RunFilter
from pipelines.models import Application, Environment, Pipeline, Release, Run, Workspace
from pipelines.paging import Cut
from pipelines.sql import execute, query

LIMIT_MS = 100
LARGE = {"pipelines_run", "pipelines_stage", "pipelines_runsearch"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="measure only the cases whose name contains this")
    options = parser.parse_args()
    workspace = fill(options.runs)
    print(f"{options.runs:,} runs, {3 * options.runs:,} stages; PostgreSQL {connection.pg_version // 10000}")
    print(f"{'filter':58} {'rows':>5} {'p50':>8} {'p95':>8}")
    slow = []
    for name, single, actor, wanted, cut in cases(workspace):
        if options.only not in name:
            continue
        rows, times, scanned = measure(actor, wanted, cut, options.rounds)
        p95 = statistics.quantiles(times, n=20)[18]
        verdict = "" if not single or (p95 <= LIMIT_MS and not scanned) else "  <-- too slow"
        print(
            f"{name:58} {rows:5} {statistics.median(times):8.1f} {p95:8.1f}{verdict}{'  SEQ SCAN' if scanned else ''}"
        )
        if verdict:
            slow.append(name)
    return 1 if slow else 0


def cases(workspace: Workspace) -> Iterator[tuple[str, bool, Actor, RunFilter, Cut]]:
    """(name, whether it is a single filter of the contract, who asks, filter, page)."""
    person = Actor("dana", workspace.id, "api", user_id=1, role="viewer")
    application = Application.objects.get(workspace=workspace, name="app-0")
    rung = Environment.objects.get(workspace=workspace, slug="development")
    key = Actor("app-0", workspace.id, "application", application_id=application.id, environment_id=rung.id)
    middle = Run.objects.filter(workspace=workspace).order_by("created_at", "id")[
        500_000 if _count() > 900_000 else 100
    ]
    deep = Cut(50, (middle.created_at, middle.id))
    source = (
        Run.objects.filter(workspace=workspace, recovered_from__isnull=False).latest("created_at").recovered_from_id
    )
    singles = {
        "none": RunFilter(),
        "status=completed": RunFilter(status=("completed",)),
        "status=blocked (few)": RunFilter(status=("blocked",)),
        "status=queued (none)": RunFilter(status=("queued",)),
        "status=failed&status=blocked&status=waiting": RunFilter(status=("failed", "blocked", "waiting")),
        "pipeline (common)": RunFilter(pipeline=("pipeline-0",)),
        "pipeline (few, old)": RunFilter(pipeline=("pipeline-rare",)),
        "environment=production": RunFilter(environment=("production",)),
        "environment=development": RunFilter(environment=("development",)),
        "application (common)": RunFilter(application=("app-0",)),
        "application (none)": RunFilter(application=("app-idle",)),
        "handler (common)": RunFilter(handler=("handler.0",)),
        "handler (few, old)": RunFilter(handler=("handler.rare",)),
        "handler (unknown)": RunFilter(handler=("handler.unknown",)),
        "error_code (common)": RunFilter(error_code=("TIMEOUT",)),
        "error_code (few, old)": RunFilter(error_code=("RARE_ERROR",)),
        "search: one run": RunFilter(search=("INV-123456",)),
        "search: prefix of many": RunFilter(search=("inv",)),
        "search: prefix of some thousands": RunFilter(search=("1234",)),
        "search: in half of the runs": RunFilter(search=("germany",)),
        "search: two common words": RunFilter(search=("germany sync",)),
        "search: two words, few runs": RunFilter(search=("germany 77777",)),
        "search: unknown": RunFilter(search=("zebra",)),
        "search: some hundredths": RunFilter(search=("batch7",)),
        "wide search: key of one run": RunFilter(search=("order-123456",), wide=True),
        "wide search: key, beginning of all": RunFilter(search=("order",), wide=True),
        "wide search: key, beginning of some thousands": RunFilter(search=("order 1234",), wide=True),
        "wide search: error code (common)": RunFilter(search=("timeout",), wide=True),
        "wide search: error code (few, old)": RunFilter(search=("rare",), wide=True),
        "wide search: words of an error": RunFilter(search=("upstream 77777",), wide=True),
        "wide search: name and error": RunFilter(search=("germany upstream",), wide=True),
        "wide search: unknown": RunFilter(search=("zebra",), wide=True),
        "created_after": RunFilter(created_after=middle.created_at),
        "created_before": RunFilter(created_before=middle.created_at),
        "recovered_from": RunFilter(recovered_from=(source,)),
    }
    for name, wanted in singles.items():
        yield name, True, person, wanted, Cut(50)
    for name, wanted in singles.items():
        yield f"{name}, from the middle", True, person, wanted, deep
    for name, wanted in singles.items():
        yield f"{name}, key of development", True, key, wanted, Cut(50)
    window = {"created_after": middle.created_at, "created_before": middle.created_at + timedelta(days=1)}
    pairs = {
        "status=failed, pipeline common": RunFilter(status=("failed",), pipeline=("pipeline-0",)),
        "status=failed, pipeline rare": RunFilter(status=("failed",), pipeline=("pipeline-rare",)),
        "status=blocked, environment=production": RunFilter(status=("blocked",), environment=("production",)),
        "status=running, handler common": RunFilter(status=("running",), handler=("handler.0",)),
        "status=failed, error_code": RunFilter(status=("failed",), error_code=("TIMEOUT",)),
        "handler, error_code": RunFilter(handler=("handler.0",), error_code=("TIMEOUT",)),
        "search common, status=failed": RunFilter(search=("germany",), status=("failed",)),
        "search common, status=blocked": RunFilter(search=("germany",), status=("blocked",)),
        "one day, status=failed": RunFilter(status=("failed",), **window),
        "one day, search common": RunFilter(search=("germany",), **window),
        "application, environment, status=failed": RunFilter(
            application=("app-0",), environment=("staging",), status=("failed",)
        ),
    }
    for name, wanted in pairs.items():
        yield f"pair: {name}", False, person, wanted, Cut(50)


def measure(actor: Actor, wanted: RunFilter, cut: Cut, rounds: int) -> tuple[int, list[float], bool]:
    times = []
    with statements() as seen:
        found = queries.run_list(actor, wanted, cut)
    scanned = any(scans(sql, params) for sql, params in seen)
    for _ in range(rounds):
        began = time.perf_counter()
        found = queries.run_list(actor, wanted, cut)
        ids = [run.id for run in found.rows]
        queries.run_progress(ids)
        queries.business_keys(ids)
        times.append((time.perf_counter() - began) * 1000)
    return len(found.rows), times, scanned


@contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def note(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().startswith(("SELECT", "WITH")):
            seen.append((sql, params))
        return run(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield seen


def scans(sql: str, params: Any) -> bool:
    """Whether the statement's plan reads a large table from end to end, planned as the list plans it."""
    if "SET LOCAL" not in sql and "hit AS MATERIALIZED" in sql:
        return _scans_without(sql, params)
    return any(node in LARGE for node in sequential(query(f"EXPLAIN (FORMAT JSON) {sql}", params)[0][0]))


def _scans_without(sql: str, params: Any) -> bool:
    with transaction.atomic():
        execute("SET LOCAL enable_seqscan = off")
        return any(node in LARGE for node in sequential(query(f"EXPLAIN (FORMAT JSON) {sql}", params)[0][0]))


def sequential(plan: Any) -> list[str]:
    found: list[str] = []

    def look(node: dict[str, Any]) -> None:
        if node.get("Node Type") in ("Seq Scan", "Parallel Seq Scan"):
            found.append(node["Relation Name"])
        for child in node.get("Plans", ()):
            look(child)

    look((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return found


def _count() -> int:
    return query("SELECT reltuples::bigint FROM pg_class WHERE relname = 'pipelines_run'")[0][0]


def fill(runs: int) -> Workspace:
    """The workspace `bench` with so many runs; filled only when it is new."""
    workspace = Workspace.objects.filter(slug="bench").first()
    if workspace is None:
        began = time.perf_counter()
        with transaction.atomic():
            workspace = _write(runs)
        for table in (*LARGE, "pipelines_contextitem"):
            execute(f"VACUUM ANALYZE {table}")
        print(f"filled in {time.perf_counter() - began:.0f} s")
    return workspace


def _write(runs: int) -> Workspace:
    workspace = Workspace.objects.create(slug="bench")
    rungs = [
        Environment.objects.create(workspace=workspace, slug=slug, rank=rank)
        for rank, slug in enumerate(("development", "staging", "production"), 1)
    ]
    applications = [Application.objects.create(workspace=workspace, name=f"app-{number}") for number in range(8)]
    Application.objects.create(workspace=workspace, name="app-idle")
    pipelines = [
        Pipeline.objects.create(workspace=workspace, slug=f"pipeline-{number}", name=f"Pipeline {number}")
        for number in [*range(20), "rare"]
    ]
    release = Release.objects.create(workspace=workspace, definition="{}", digest="0" * 64, status="active")
    execute("SET session_replication_role = replica")
    params = {
        "runs": runs,
        "workspace": workspace.id,
        "release": release.id,
        "rungs": [rung.id for rung in rungs],
        "applications": [application.id for application in applications],
        "pipelines": [pipeline.id for pipeline in pipelines],
    }
    for statement in STATEMENTS:
        step = time.perf_counter()
        print(f"{execute(statement, params):,} rows in {time.perf_counter() - step:.0f} s", flush=True)
    execute("SET session_replication_role = origin")
    return workspace


ID = "(lpad(to_hex((extract(epoch FROM {at}) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex({n}), 19, '0'))::uuid"
AT = "timestamptz '2026-08-01' + n * interval '7 seconds'"
STATEMENTS: Sequence[str] = (
    f"""
    INSERT INTO pipelines_run (id, workspace_id, application_id, environment_id, pipeline_id, release_id, name, status,
        paused, pause_reason, keywords, trace_id, traceparent, tracestate, created_at, started_at, finished_at,
        updated_at, failure_code, failure_message, recovered_from_id)
    SELECT {ID.format(at=AT, n="n")}, %(workspace)s, (%(applications)s::uuid[])[1 + least(7, floor(h / 700))],
        (%(rungs)s::uuid[])[CASE WHEN n %% 20 = 0 THEN 1 WHEN n %% 10 = 1 THEN 2 ELSE 3 END],
        (%(pipelines)s::uuid[])[CASE WHEN n < 200 THEN 21 ELSE 1 + floor(20 * power(h / 1000.0, 2)) END],
        %(release)s, 'sync customer ' || n %% 100,
        CASE WHEN n %% 100000 = 5 THEN 'blocked' WHEN n %% 1000 = 3 THEN 'running' WHEN n %% 1000 = 9 THEN 'waiting'
            WHEN n %% 20 = 7 THEN 'failed' WHEN n %% 50 = 2 THEN 'cancelled' ELSE 'completed' END,
        false, '', '[]', '', '', '', {AT}, {AT}, {AT}, {AT}, '', '',
        CASE WHEN n %% 40 = 11 THEN {ID.format(at=AT.replace("n *", "(n - 1) *"), n="(n - 1)")} END
    FROM (SELECT n, (n * 7919) %% 1000 AS h FROM generate_series(1::bigint, %(runs)s) n) numbers
    """,
    """
    INSERT INTO pipelines_stage (id, run_id, application_id, environment_id, run_created_at, position, name, handler,
        description, depends_on, run_next_if_failed, effect_mode, options, state, epoch, attempt_number,
        retry_count, recovery_count, last_error_code, last_error_message, failure_disposition, stale)
    SELECT gen_random_uuid(), r.id, r.application_id, r.environment_id, r.created_at, p, 'stage ' || p,
        CASE WHEN r.pipeline_id = (%(pipelines)s::uuid[])[21] THEN 'handler.rare'
            ELSE 'handler.' || (p + extract(epoch FROM r.created_at)::bigint / 7 %% 10) END,
        '', CASE p WHEN 0 THEN '{}'::smallint[] ELSE ARRAY[p - 1]::smallint[] END, false, 'idempotent', '{}',
        CASE WHEN p = 2 AND r.status = 'failed' THEN 'failed' WHEN p = 2 AND r.status = 'running' THEN 'running'
            WHEN p = 2 AND r.status = 'waiting' THEN 'waiting' WHEN p = 2 AND r.status = 'cancelled' THEN 'cancelled'
            WHEN p = 2 AND r.status = 'blocked' THEN 'needs_reconciliation' ELSE 'completed' END,
        1, 1, 0, 0,
        CASE WHEN p <> 2 OR r.status <> 'failed' THEN ''
            WHEN r.created_at < timestamptz '2026-08-01 01:00' THEN 'RARE_ERROR'
            WHEN extract(epoch FROM r.created_at)::bigint %% 3 = 0 THEN 'RATE_LIMIT_EXCEEDED' ELSE 'TIMEOUT' END,
        '', '', false
    FROM pipelines_run r CROSS JOIN generate_series(0, 2) p WHERE r.workspace_id = %(workspace)s
    """,
    f"""
    INSERT INTO pipelines_runsearch (run_id, words)
    SELECT {ID.format(at=AT, n="n")}, to_tsvector('simple', 'sync customer ' || n %% 100 || ' invoice INV ' || n
        || CASE WHEN n %% 2 = 0 THEN ' country germany' ELSE ' country france' END
        || ' batch' || n %% 100)
        || array_to_tsvector(ARRAY['=' || r.workspace_id, '=' || r.application_id || '=' || r.environment_id]
            || ARRAY['#order', '#' || n])
        || CASE WHEN r.status = 'failed' THEN array_to_tsvector(ARRAY['#upstream', '#answer',
            CASE WHEN n < 500 THEN '#rare_error' ELSE '#timeout' END]) ELSE '' END
    FROM generate_series(1::bigint, %(runs)s) n JOIN pipelines_run r ON r.id = {ID.format(at=AT, n="n")}
    """,
    f"""
    INSERT INTO pipelines_contextitem (run_id, key, value, is_sensitive, at)
    SELECT {ID.format(at=AT, n="n")}, 'invoice', 'INV-' || n, false, {AT} FROM generate_series(1::bigint, %(runs)s) n
    """,
)


if __name__ == "__main__":
    sys.exit(main())
