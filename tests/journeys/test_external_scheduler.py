"""The fourth technique of source 004: somebody else's scheduler invokes a pipeline, reads its terminal status, waits as
it likes and invokes again; by REST and by MCP. The pipeline is idempotent, and so the second invocation converges.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from recourse import Registry, Worker, cli
from recourse.authoring import load_handlers

from pipelines.models import Attempt, Run
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.kept import assert_counted, kept
from tests.sdk.assistant import assistant

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Web = tuple[str, subprocess.Popen[bytes]]
Invoke = Callable[[str], dict[str, Any]]
BATCHES = 5
FATAL = 3
NIGHTLY = """
from pathlib import Path


async def run(ctx):
    done = {{row["batch"] for row in await ctx.workspace.read("sync_progress")}}
    for batch in range(1, {batches} + 1):
        if batch in done:
            continue
        rows = [{{"invoice_id": f"{{batch}}-{{n}}", "amount": n}} for n in range(3)]
        await ctx.workspace.upsert("invoices", rows, key=["invoice_id"])
        if batch == {fatal} and not Path({mended!r}).exists():
            raise RuntimeError("the source is away")
        await ctx.workspace.insert("sync_progress", [{{"batch": batch}}])
    return {{"found": len(done)}}
"""


class Scheduler:
    """Somebody else's: all that it knows is how to invoke, and what came of it."""

    def __init__(self, invoke: Invoke, between: Callable[[], None]) -> None:
        self.invoke, self.between = invoke, between
        self.waits: list[float] = []

    def runs_until_it_completes(self, business: str, most: int = 5) -> list[dict[str, Any]]:
        """Each invocation's run as it ended."""
        ended: list[dict[str, Any]] = []
        for number in range(most):
            ended.append(self.invoke(f"{business}:{number}"))
            if ended[-1]["status"] == "completed":
                break
            self.between()
            self.waits.append(0.05 * 2**number)
            time.sleep(self.waits[-1])
        return ended


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    with web_server(url_of_test_database("scheduler"), RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def mended(tmp_path: Path) -> Path:
    """There once the source is back."""
    return tmp_path / "mended"


@pytest.fixture
def nightly(
    web: Web, api_key: str, people: dict[str, Person], tmp_path: Path, mended: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The pipeline, released, and a worker for it."""
    file = tmp_path / "nightly.py"
    file.write_text(NIGHTLY.format(batches=BATCHES, fatal=FATAL, mended=str(mended)))
    monkeypatch.setenv("RECOURSE_URL", web[0])
    monkeypatch.setenv("RECOURSE_TOKEN", people["release_manager"].token)
    assert cli.main(["deploy", str(file), "--activate"]) == 0
    registry = Registry()
    load_handlers(str(file), registry)
    worker = Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2)
    worker.start()
    yield
    worker.stop()


@pytest.fixture
def by_rest(web: Web, api_key: str) -> Iterator[Invoke]:
    """Two routes and a key, as a cron job with `curl` has it."""
    with httpx.Client(base_url=web[0], headers={"X-API-Key": api_key}, timeout=40) as http:

        def invoke(key: str) -> dict[str, Any]:
            body = {"idempotencyKey": key, "pipeline": "nightly"}
            first, again = (http.post("/pipelines/idempotent", json=body).json() for _ in range(2))
            assert (first["created"], again["created"]) == (True, False), "an answer that was lost is asked for again"
            until = time.monotonic() + 60
            while not (run := http.get(f"/pipelines/{again['pipeline']['id']}").json())["isTerminal"]:
                assert time.monotonic() < until
                time.sleep(0.05)
            return {"id": run["id"], "status": run["status"]}

        yield invoke


@pytest.fixture
def by_mcp(web: Web, api_key: str, tmp_path: Path) -> Iterator[Invoke]:
    """Three tools, with an application's key and no person."""
    with assistant(RECOURSE_URL=web[0], RECOURSE_API_KEY=api_key, HOME=str(tmp_path)) as call:

        def invoke(key: str) -> dict[str, Any]:
            before = Run.objects.count()
            told = call.plan("start_run", idempotency_key=key, pipeline="nightly")
            assert Run.objects.count() == before, "a plan starts nothing"
            first, again = (call("start_run", **told)["answer"] for _ in range(2))
            assert (first["created"], again["created"]) == (True, False), "an answer that was lost is asked for again"
            other = call("start_run", **told | {"input": {"other": 1}})
            assert other["code"] == "plan_changed", "another input is not what was shown"
            until = time.monotonic() + 60
            while True:
                run = call.read("wait_for_run", execution_id=again["pipeline"]["id"], timeout_seconds=20)
                if run["is_terminal"]:
                    return {"id": run["execution_id"], "status": run["status"]}
                assert time.monotonic() < until

        yield invoke


@pytest.mark.parametrize("way", ["by_rest", "by_mcp"])
@pytest.mark.usefixtures("nightly")
def test_a_second_invocation_converges(way: str, mended: Path, request: pytest.FixtureRequest) -> None:
    """N1, N12, N20, N24, N25: a terminal status is read, nothing is retried unasked, and each row is there once."""

    def between() -> None:
        """What stands when the scheduler has read `failed`."""
        assert Run.objects.count() == Attempt.objects.count() == 1, "the platform retries nothing by itself"
        assert len(kept("sync_progress")) == FATAL - 1
        assert len(kept()) == 3 * FATAL, "the batch in doubt was written, and not marked"
        mended.touch()

    scheduler = Scheduler(request.getfixturevalue(way), between)
    failed, completed = scheduler.runs_until_it_completes("nightly-2026-05-20")
    assert (failed["status"], completed["status"]) == ("failed", "completed")
    assert failed["id"] != completed["id"]
    assert scheduler.waits == [0.05], "by its own backoff"
    assert Run.objects.get(id=failed["id"]).status == "failed", "what failed stays as it ended"
    ids = [row[0] for row in kept()]
    assert len(ids) == len(set(ids)) == 3 * BATCHES
    assert len(kept("sync_progress")) == BATCHES
    assert_counted()
    assert_invariants()
