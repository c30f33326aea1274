"""How fast are all lists of console and admin, with 1,000,000 runs, 3,000,000 attempts, 10,000,000 audit events?

Fills the database of DATABASE_URL as `run_list.py` does (migrated, and allowed to switch triggers off), adds attempts,
dead letters, audit events and their seals, and asks for every list as a browser does, templates and all, in one
process. Prints p50 and p95 in milliseconds and the page's size. Fails where a list's p95 is above its limit, or a page
above 150 kB.

    python bench/screens.py [--runs 1000000] [--events 10000000] [--rounds 30] [--only WORDS]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import run_list
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import Client

from pipelines.models import AuditEvent, DeadLetter, Member, Run, Workspace
from pipelines.sql import execute, query

LIST_MS, ADMIN_MS, PAGE_BYTES = 150, 500, 150_000
FILLED = ("pipelines_attempt", "pipelines_deadletter", "pipelines_auditevent", "pipelines_auditseal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="measure only the pages whose name contains this")
    options = parser.parse_args()
    workspace = run_list.fill(options.runs)
    fill_history(workspace, options.events)
    settings.ALLOWED_HOSTS = ["*"]
    browser = Client()
    browser.force_login(auditor(workspace))
    print(f"{options.runs:,} runs, {options.events:,} audit events; PostgreSQL {connection.pg_version // 10000}")
    print(f"{'page':58} {'kB':>5} {'p50':>8} {'p95':>8}")
    failed = 0
    for name, limit, address in pages(workspace):
        if options.only in name:
            failed += not is_fast(browser, name, limit, address, options.rounds)
    return 1 if failed else 0


def is_fast(browser: Client, name: str, limit: int, address: str, rounds: int) -> bool:
    times = []
    answer: Any = browser.get(address)
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        answer = browser.get(address)
        times.append((time.perf_counter() - began) * 1000)
    p95, size = statistics.quantiles(times, n=20)[18], len(answer.content)
    wrong = "" if answer.status_code == 200 else f"  <-- {answer.status_code}"
    wrong += "  <-- too slow" if p95 > limit else ""
    wrong += "  <-- too large" if size > PAGE_BYTES and limit == LIST_MS else ""
    print(f"{name:58} {size / 1000:5.0f} {statistics.median(times):8.1f} {p95:8.1f}{wrong}", flush=True)
    return not wrong


def pages(workspace: Workspace) -> Iterator[tuple[str, int, str]]:
    """(name, milliseconds allowed, address)."""
    run = Run.objects.filter(workspace=workspace, status="failed").latest("created_at")
    event = AuditEvent.objects.filter(workspace=workspace).latest("at")
    middle = query("SELECT at FROM pipelines_auditevent ORDER BY at OFFSET %s LIMIT 1", [20_000])[0][0]
    day = middle.isoformat().replace("+", "%2B")
    runs = {
        "": "",
        "one status": "?status=failed",
        "three statuses": "?status=failed&status=blocked&status=waiting",
        "a status that none has": "?status=queued",
        "pipeline": "?pipeline=pipeline-0",
        "a pipeline with few, old runs": "?pipeline=pipeline-rare",
        "error code": "?error_code=TIMEOUT",
        "a rare error code": "?error_code=RARE_ERROR",
        "status and pipeline": "?status=failed&pipeline=pipeline-0",
        "words: one run": "?search=INV-123456",
        "words: half of all runs": "?search=germany",
        "words: none": "?search=zebra",
        "words: a business key": "?search=order-4711",
        "words: of an error": "?search=upstream",
        "words: of an error that few have": "?search=rare_error",
        "words: an id of nothing": "?search=00000000-0000-7000-8000-000000000000",
        "failed today, narrowed by three": "?status=failed&environment=production&application=app-0",
    }
    for name, parameters in runs.items():
        yield f"runs {name}".strip(), LIST_MS, f"/console/{parameters}"
    yield "a run", LIST_MS, f"/console/runs/{run.id}/"
    letters = {
        "": "",
        "error": "?error_code=TIMEOUT",
        "a rare error": "?error_code=RARE_ERROR",
        "error and handler": "?error_code=TIMEOUT&handler=handler.1",
        "pipeline": "?pipeline=pipeline-0",
        "a pipeline with few, old runs": "?pipeline=pipeline-rare",
        "application": "?application=app-0",
        "closed": "?status=discarded",
    }
    for name, parameters in letters.items():
        yield f"dead letters {name}".strip(), LIST_MS, f"/console/dead-letters/{parameters}"
    for section in ("approvals", "operations", "bulk", "triggers", "backfills", "pipelines", "workers", "blackouts"):
        yield section, LIST_MS, f"/console/{section}/"
    audit = {
        "": "",
        "action": "?action=run.pause",
        "a rare action": "?action=policy.save",
        "an action that nobody took": "?action=zebra",
        "outcome": "?outcome=allowed",
        "a rare outcome": "?outcome=failed",
        "actor": "?actor=person-3",
        "an unknown actor": "?actor=zebra",
        "channel": "?channel=api",
        "a rare channel": "?channel=command",
        "run": f"?run={run.id}",
        "request": f"?request_id={event.request_id}",
        "before a day": f"?until={day}",
        "actor and action": "?actor=person-3&action=run.cancel",
        "actor and a rare action": "?actor=person-3&action=policy.save",
    }
    for name, parameters in audit.items():
        yield f"audit {name}".strip(), LIST_MS, f"/console/audit/{parameters}"
    yield "an audit event", LIST_MS, f"/console/audit/{event.id}/"
    admin = ("auditevent", "run", "stage", "attempt", "deadletter", "event", "checkpoint", "effect", "contextitem")
    for table in admin:
        yield f"admin: {table}", ADMIN_MS, f"/admin/pipelines/{table}/"
    yield "admin: auditevent of an action", ADMIN_MS, "/admin/pipelines/auditevent/?action=run.pause"
    yield "admin: auditevent of a year", ADMIN_MS, "/admin/pipelines/auditevent/?on=2026"


def auditor(workspace: Workspace) -> Any:
    """Somebody who may see everything here."""
    person, _ = get_user_model().objects.get_or_create(
        username="auditor", defaults={"is_staff": True, "is_superuser": True}
    )
    Member.objects.get_or_create(workspace=workspace, user=person, defaults={"role": "admin"})
    return person


def fill_history(workspace: Workspace, events: int) -> None:
    if DeadLetter.objects.filter(workspace=workspace).exists():
        return
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")
        for name, statement in STATEMENTS.items():
            began = time.perf_counter()
            rows = execute(statement, {"workspace": workspace.id, "events": events})
            print(f"{rows:,} {name} in {time.perf_counter() - began:.0f} s", flush=True)
    for table in (*FILLED, "pipelines_runidentity"):
        execute(f"VACUUM ANALYZE {table}")


STATEMENTS = {
    "keys": """
        INSERT INTO pipelines_runidentity (run_id, application_id, environment_id, key, fingerprint)
        SELECT r.id, r.application_id, r.environment_id, 'order-' || row_number() OVER (ORDER BY r.created_at),
            repeat('0', 64) FROM pipelines_run r WHERE r.workspace_id = %(workspace)s
    """,
    "attempts": """
        INSERT INTO pipelines_attempt (id, stage_id, run_id, number, epoch, state, worker, request_digest,
            dispatched_at, started_at, finished_at, expires_at, error_code, error_message, traceback, result_digest,
            cause)
        SELECT gen_random_uuid(), s.id, s.run_id, 1, 1, CASE s.state WHEN 'failed' THEN 'failed' ELSE 'succeeded' END,
            'worker ' || s.position, repeat('0', 64), s.run_created_at, s.run_created_at, s.run_created_at,
            s.run_created_at, s.last_error_code, CASE s.state WHEN 'failed' THEN 'the counterparty did not answer'
            ELSE '' END, '', '', ''
        FROM pipelines_stage s
    """,
    "dead letters": """
        INSERT INTO pipelines_deadletter (id, stage_id, run_id, workspace_id, epoch, reason, error_code, handler, state,
            opened_at)
        SELECT gen_random_uuid(), s.id, s.run_id, %(workspace)s, 1, 'retries_exhausted', s.last_error_code, s.handler,
            'open', s.run_created_at
        FROM pipelines_stage s WHERE s.state = 'failed'
    """,
    "audit events": """
        INSERT INTO pipelines_auditevent (id, workspace_id, at, action, outcome, code, actor, channel, on_behalf_of,
            run, reason, before, after, plan_digest, request_id, data, canonical)
        SELECT lpad(to_hex(n), 32, '0')::uuid, %(workspace)s, timestamptz '2026-08-01' + n * interval '1 second',
            CASE WHEN n %% 50000 = 0 THEN 'policy.save' ELSE (ARRAY['run.pause', 'run.resume', 'run.cancel',
                'stage.retry'])[1 + n %% 4] END,
            CASE WHEN n %% 10000 = 1 THEN 'failed' WHEN n %% 50 = 1 THEN 'denied' ELSE 'allowed' END, '',
            'person-' || n %% 20, CASE WHEN n %% 50000 = 0 THEN 'command' WHEN n %% 3 = 0 THEN 'console' ELSE 'api' END,
            '', gen_random_uuid(), 'the counterparty asked for it', '{"run": "running"}', '{"run": "pausing"}', '',
            'request-' || n, '{}', ''
        FROM generate_series(1::bigint, %(events)s) n
    """,
    "seals": """
        INSERT INTO pipelines_auditseal (workspace_id, position, event, hash)
        SELECT %(workspace)s, n, lpad(to_hex(n), 32, '0')::uuid, decode(repeat('00', 32), 'hex')
        FROM generate_series(1::bigint, %(events)s) n
    """,
}


if __name__ == "__main__":
    sys.exit(main())
