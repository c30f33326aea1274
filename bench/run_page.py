"""How long does the page of a run of 100 stages with 20 attempts each take, how heavy is it, and each update of it?

    python bench/run_page.py [--stages 100] [--attempts 20] [--reads 40]

The stages stand side by side between a first and a last one. All but the last attempts are copied in; the last ones go
through the engine. Read as browsers do, templates and all, in one
process: the page as it opens, the page with every stage in a row of its own, and then, while stages are handed out and
fail, what a page that polls gets. Fails where a p95 is above 200 ms, the page above 150 kB with what it loads, or an
update above 15 kB; sizes as they are sent to browsers, which compress. Where other work shares the machine, look at the
processor time beside.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import re
import statistics
import sys
import time
from html import unescape
from typing import Any
from urllib.parse import urlencode

import lab

PAGE_MS, PAGE_BYTES, UPDATE_BYTES = 200, 150_000, 15_000
LOADED = ("vendor/htmx-2.0.10.min.js", "recourse/console.js", "recourse/console.css", "recourse/tokens.css")
LEFT = 10  # stages that are still to be handed out while the page is watched


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=100)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--reads", type=int, default=40)
    options = parser.parse_args()
    with lab.engine("run_page"):
        return measure(options.stages, options.attempts, options.reads)


def measure(stages: int, attempts: int, reads: int) -> int:
    """Page and updates; how many were too slow or too heavy."""
    from django.conf import settings
    from django.test import Client

    settings.ALLOWED_HOSTS = ["*"]
    person, run_id, hand = fill(stages, attempts)
    browser = Client()
    browser.force_login(person)
    address = f"/console/runs/{run_id}/"
    assets = sum(sent((lab.ROOT / "static" / name).read_bytes()) for name in LOADED)
    print(f"{stages} stages with {attempts} attempts each; style, scripts and htmx: {assets / 1000:.1f} kB")
    failed = 0
    for name, query, limit in (("page", "", PAGE_BYTES), ("page, every stage", "?rows=all", PAGE_BYTES)):
        times, cpu, size, raw = read(lambda query=query: browser.get(address + query), reads)
        told = f"{name}: {told_times(times, cpu)}, {(size + assets) / 1000:.1f} kB with what it loads"
        print(f"{told} ({raw / 1000:.0f} kB of HTML before it is compressed)")
        failed += (p95(times) > PAGE_MS) + (size + assets > limit)
    return failed + watch(browser, address, hand)


def watch(browser: Any, address: str, hand: Any) -> int:
    """Polls while stages are handed out and fail."""
    page, times, sizes, raw = browser.get(address).content.decode(), [], [], []
    before = time.process_time()
    for _ in range(LEFT):
        (job,) = hand.pull()
        for report in (lambda: None, lambda job=job: hand.fail(job)):
            report()
            link, kept = polling(page)
            begun = time.perf_counter()
            answer = browser.get(f"{link}&{urlencode(kept)}", headers={"HX-Request": "true", "HX-Trigger": "pulse"})
            times.append((time.perf_counter() - begun) * 1000)
            assert answer.status_code == 200, answer.status_code
            page = answer.content.decode()
            sizes.append(sent(answer.content))
            raw.append(len(answer.content))
    cpu = (time.process_time() - before) * 1000 / len(times)
    print(f"update: {told_times(times, cpu)}, at most {max(sizes) / 1000:.1f} kB ({max(raw) / 1000:.1f} kB before)")
    begun = time.perf_counter()
    link, kept = polling(page)
    unchanged = browser.get(f"{link}&{urlencode(kept)}", headers={"HX-Request": "true", "HX-Trigger": "pulse"})
    print(f"nothing new: {unchanged.status_code} in {(time.perf_counter() - begun) * 1000:.0f} ms")
    return (p95(times) > PAGE_MS) + (max(sizes) > UPDATE_BYTES) + (unchanged.status_code != 204)


def polling(page: str) -> tuple[str, dict[str, str]]:
    """Where a page asks whether it changed, and what it says that it has."""
    pulse = page[page.index('<div id="pulse"') :]
    link = re.search(r'hx-get="([^"]+)"', pulse)
    assert link, "the page polls no more"
    return unescape(link[1]), dict(re.findall(r'<input type="hidden" name="(seen|since|rows)" value="([^"]*)"', pulse))


def read(ask: Any, reads: int) -> tuple[list[float], float, int, int]:
    """How long each read took in milliseconds, the processor time of one, and the size of the page as sent and raw."""
    answer = ask()
    gc.collect()
    gc.freeze()  # as the web server does before it forks: what was loaded once is not looked through again
    times, before = [], time.process_time()
    for _ in range(reads):
        begun = time.perf_counter()
        answer = ask()
        times.append((time.perf_counter() - begun) * 1000)
        assert answer.status_code == 200, answer.content[:300]
    return times, (time.process_time() - before) * 1000 / reads, sent(answer.content), len(answer.content)


def sent(content: bytes) -> int:
    """How many bytes a browser is sent, whether the answer is compressed already or will be."""
    return len(content) if content[:2] == b"\x1f\x8b" else len(gzip.compress(content, 6))


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[18]


def told_times(times: list[float], cpu: float) -> str:
    return f"p50 {statistics.median(times):.0f} ms, p95 {p95(times):.0f} ms, processor {cpu:.0f} ms"


class Hand:
    """A worker session that works through the engine."""

    def __init__(self, place: Any) -> None:
        from pipelines import leases
        from pipelines.ids import new_id
        from pipelines.models import WorkerSession
        from pipelines.wake import Queue

        told = {"application_id": place.application_id, "environment_id": place.environment_id}
        session = WorkerSession.objects.create(id=new_id(), worker_name="bench-1", handlers=["bench.noop"], **told)
        self.holder = leases.Holder(session.id, place.application_id, place.environment_id, "bench-1")
        self.queues = [Queue(place.application_id, place.environment_id, "bench.noop")]

    def pull(self) -> list[Any]:
        from pipelines import leases

        return leases.claim(self.holder, self.queues, limit=1, acquire=True)

    def fail(self, job: Any) -> None:
        self._report(
            job, "failed", error_code="UPSTREAM", error_message="no answer from the bank, again", retryable=False
        )

    def succeed(self, job: Any) -> None:
        self._report(job, "succeeded", output={"rows": 1})

    def _report(self, job: Any, status: str, **told: Any) -> None:
        from pipelines import results

        results.report(self.holder, [results.Result(job.stage.id, job.attempt_id, job.number, status, **told)])


def fill(stages: int, attempts: int) -> tuple[Any, Any, Hand]:
    """A person, and the run whose stages have all but `LEFT` of their last attempts behind them."""
    from django.contrib.auth import get_user_model
    from django.db import connection

    from pipelines import catalog
    from pipelines.creation import Intent, Place, create_run
    from pipelines.models import Application, Environment, Member

    workspace, _ = catalog.ensure_workspace("bench")
    application = Application.objects.create(workspace=workspace, name="bench")
    environment = Environment.objects.get(workspace=workspace, slug="development")
    user = get_user_model().objects.create_user("bench")
    Member.objects.create(workspace=workspace, user=user, role="operator")
    place = Place(workspace.id, application.id, environment.id, environment.slug)
    names = [f"reconcile-account-{number:03}" for number in range(stages - 2)]
    wanted = [
        {"name": "extract", "handler": "bench.noop"},
        *({"name": name, "handler": "bench.noop", "depends_on": ["extract"]} for name in names),
        {"name": "publish", "handler": "bench.noop", "depends_on": names},
    ]
    run_id, _ = create_run(place, Intent("reconcile_accounts", stages=wanted), key="accounts:2026-05-30", actor="bench")
    hand = Hand(place)
    with connection.cursor() as cursor:
        cursor.execute(COPIES, {"run": run_id, "count": attempts - 1})
    hand.succeed(hand.pull()[0])
    for _ in range(stages - 3 - LEFT):  # one more is left, so that the run does not end
        hand.fail(hand.pull()[0])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return user, run_id, hand


# earlier attempts of every stage, as if each had failed once a minute
COPIES = """
SET session_replication_role = replica;
UPDATE pipelines_run SET created_at = recourse_now() - interval '1 hour' WHERE id = %(run)s;
UPDATE pipelines_stage SET attempt_number = %(count)s WHERE run_id = %(run)s AND name <> 'publish';
INSERT INTO pipelines_attempt (id, stage_id, run_id, number, epoch, state, worker, request_digest, dispatched_at,
    started_at, finished_at, expires_at, error_code, error_message, traceback, result_digest, cause, decision)
SELECT gen_random_uuid(), s.id, s.run_id, n, 1, 'failed', 'bench-1', '', begun, begun, begun + interval '20 seconds',
    begun + interval '60 seconds', 'UPSTREAM', 'no answer from the bank, try ' || n,
    repeat('File "load.py"' || chr(10), 40), '', '',
    '{"retry": true, "verdict": "retry", "delay": 40, "retries_left": 3}'
FROM pipelines_stage s, generate_series(1, %(count)s) n,
    LATERAL (SELECT recourse_now() - interval '1 hour' + n * interval '1 minute' AS begun) at
WHERE s.run_id = %(run)s AND s.name <> 'publish';
SET session_replication_role = DEFAULT;
"""


if __name__ == "__main__":
    sys.exit(main())
