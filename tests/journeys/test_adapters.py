"""Source 004's first example, word for word, in a worker of the library under a console: NetSuite is busy twice, the
rows go into a real PostgreSQL, and the run tells of one attempt and one effect.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from recourse import Registry, SyncClient, Worker
from recourse.authoring import load_handlers

from pipelines.models import Attempt, Effect
from tests.cast import Person
from tests.console.conftest import Visitor, browse, text_of  # noqa: F401 - fixtures
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.adapters import databases
from tests.sdk.adapters.conftest import configure, provider  # noqa: F401 - fixtures
from tests.sdk.adapters.databases import Database
from tests.sdk.adapters.provider import Provider, reply
from tests.sdk.adapters.test_netsuite import RECORDS, Account
from tests.sdk.conftest import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

SYNC = """
async def run(ctx):
    invoices = await ctx.adapters.netsuite.read(
        {"collection": "invoices", "updated_after": ctx.params["since"]}
    )
    rows = [{"invoice_id": i["id"], "amount": i["amount"], "status": i["status"]}
            for i in invoices]

    # Idempotent: upsert on the target's key column instead of inserting duplicates.
    await ctx.adapters.postgres.write(rows, op="upsert")
    await ctx.logger.info("upserted invoices", count=len(rows))
    return {"upserted": len(rows)}
"""
CONNECTORS = """
[netsuite]
kind = "netsuite"
url = "{netsuite}"
token = "env:NETSUITE_TOKEN"
backoff = 0.05
[netsuite.collections.invoices]
record = "invoice"
[postgres]
kind = "postgresql"
url = "env:WAREHOUSE_URL"
[postgres.tables.invoices]
key = ["invoice_id"]
max_rows = 3
"""


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with web_server(url_of_test_database("adapters"), RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def warehouse() -> Iterator[Database]:
    with databases.postgresql() as made:
        made.run("CREATE TABLE invoices (invoice_id text PRIMARY KEY, amount numeric, status text)")
        yield made


@pytest.fixture
def account(provider: Provider) -> Account:  # noqa: F811
    made = Account({str(n): {"id": str(n), "amount": n, "status": "open"} for n in range(1, 4)})
    provider.answer = made.answer
    return made


@pytest.fixture
def invoke(
    web: tuple[str, subprocess.Popen[bytes]],
    api_key: str,
    account: Account,
    provider: Provider,  # noqa: F811
    warehouse: Database,
    configure: Callable[[str], Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Invokes the pipeline as an outside scheduler would, and returns the run at its end."""
    monkeypatch.setenv("NETSUITE_TOKEN", "sesame")
    monkeypatch.setenv("WAREHOUSE_URL", warehouse.url)
    configure(CONNECTORS.format(netsuite=f"{provider.url}{RECORDS}"))
    (tmp_path / "sync.py").write_text(SYNC)
    modules, paths = set(sys.modules), list(sys.path)
    registry = Registry()
    load_handlers(str(tmp_path / "sync.py"), registry)
    worker = Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2, stop_seconds=0.5)
    worker.start()
    with SyncClient(web[0], api_key) as client:

        def run(key: str) -> dict[str, Any]:
            stage = {"stageName": "run", "stageHandlerName": "sync.run", "input": '{"since": "2031-01-01"}'}
            made = client.runs.create(idempotency_key=key, name="sync", stages=[stage])["pipeline"]

            def there() -> dict[str, Any] | None:
                found = client.runs.get(made["id"])
                return found if found["status"] in ("completed", "failed") else None

            ended: dict[str, Any] = eventually(there, 60)
            return ended

        yield run
    worker.stop()
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


def test_a_busy_provider_costs_no_attempt_and_a_second_run_converges(
    invoke: Callable[[str], dict[str, Any]],
    provider: Provider,  # noqa: F811
    warehouse: Database,
    account: Account,
    browse: Callable[[Person], Visitor],  # noqa: F811
    people: dict[str, Person],
) -> None:
    """N7, N8, N14, N15, N19: 429, 429, 200 is one call and one attempt; invoked twice there is one row per invoice; the
    write stands as an effect of the run, where people see it.
    """
    provider.script = [reply(429), reply(429, retry_after="0")]
    first = invoke("first")
    assert first["status"] == "completed"
    assert [one.number for one in Attempt.objects.filter(run_id=first["id"])] == [1]
    assert len(provider.asked) == 2 + 1 + 3, "two that were turned down, a page, three records"
    (effect,) = Effect.objects.filter(run_id=first["id"])
    assert (effect.effect_class, effect.state, effect.external_ref) == (
        "tool_side_effect",
        "committed",
        "invoices: 3 rows",
    )
    account.invoices["3"]["amount"] = 30
    assert invoke("second")["status"] == "completed"
    rows = warehouse.run("SELECT invoice_id, amount, status FROM invoices ORDER BY invoice_id")
    assert rows == [("1", Decimal(1), "open"), ("2", Decimal(2), "open"), ("3", Decimal(30), "open")]
    page = text_of(browse(people["operator"]).get(f"/console/runs/{first['id']}/"))
    assert "tool_side_effect" in page or "Tool side effect" in page
    assert "invoices: 3 rows" in page


def test_a_provider_that_stays_busy_fails_the_attempt_before_anything_is_written(
    invoke: Callable[[str], dict[str, Any]],
    provider: Provider,  # noqa: F811
    warehouse: Database,
) -> None:
    """N6, N7: four times 429; the failure is kept with its traceback, and no effect was begun."""
    provider.script = [reply(429)] * 4
    run = invoke("busy")
    assert run["status"] == "failed"
    (attempt,) = Attempt.objects.filter(run_id=run["id"])
    assert attempt.error_code == "RATE_LIMIT_EXCEEDED"
    assert "after 4 tries" in attempt.error_message
    assert not Effect.objects.filter(run_id=run["id"]).exists()
    assert warehouse.run("SELECT * FROM invoices") == []


def test_more_rows_than_the_constraint_fail_the_run_before_the_write(
    invoke: Callable[[str], dict[str, Any]], account: Account, warehouse: Database
) -> None:
    """N26"""
    account.invoices["4"] = {"id": "4", "amount": 4, "status": "open"}
    run = invoke("runaway")
    assert run["status"] == "failed"
    (attempt,) = Attempt.objects.filter(run_id=run["id"])
    assert attempt.error_code == "ROW_LIMIT_EXCEEDED"
    assert warehouse.run("SELECT * FROM invoices") == []
    assert not Effect.objects.filter(run_id=run["id"]).exists()
