"""Source 004's two examples, word for word, deployed as files and run by a worker: a stand-in for NetSuite, a real
PostgreSQL on both sides, the workspace's own tables. Only what stands behind the connectors' names differs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recourse import Registry, SyncClient, Worker, cli
from recourse.authoring import load_handlers

from pipelines.models import Attempt, LogLine
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.adapters.conftest import configure, provider  # noqa: F401 - fixtures
from tests.sdk.adapters.databases import Database, postgresql
from tests.sdk.adapters.provider import Asked, Provider, reply
from tests.sdk.adapters.test_netsuite import RECORDS, Account
from tests.sdk.conftest import eventually
from tests.sdk.test_authoring import UPSERT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Web = tuple[str, subprocess.Popen[bytes]]
Run = Callable[..., dict[str, Any]]

# Source 004, technique 2, word for word.
CHECKPOINTS = """
async def run(ctx):
    done = {r["batch"] for r in await ctx.workspace.read("sync_progress")}
    for batch in ctx.params["batches"]:
        if batch in done:
            continue                                   # already completed — skip
        rows = await ctx.adapters.mssql.read({"batch": batch})
        await ctx.adapters.postgres.write(rows, op="upsert")
        await ctx.workspace.insert("sync_progress", [{"batch": batch}])
    return {"processed": len(ctx.params["batches"])}
"""
CONNECTORS = """
[netsuite]
kind = "netsuite"
url = "{netsuite}"
token = "env:NETSUITE_TOKEN"
backoff = 0.05
[netsuite.collections.invoices]
record = "invoice"

[mssql]
kind = "postgresql"
url = "env:WAREHOUSE_URL"
table = "batches"
[mssql.tables.batches]

[postgres]
kind = "postgresql"
url = "env:WAREHOUSE_URL"
table = "invoices"
[postgres.tables.invoices]
key = ["invoice_id"]
"""
# A source whose third batch cannot be read before somebody mends it, and a book of every row that was ever written.
WAREHOUSE = """
CREATE TABLE invoices (invoice_id varchar(20) PRIMARY KEY, amount numeric, status text, batch integer);
CREATE TABLE items (batch integer, invoice_id varchar(20), amount numeric, health integer);
INSERT INTO items SELECT n, 'i' || n, n * 10, CASE WHEN n = 3 THEN 0 ELSE 1 END FROM generate_series(1, 5) n;
CREATE VIEW batches AS SELECT batch, invoice_id, amount FROM items WHERE 1 / health = 1;
CREATE TABLE book (invoice_id varchar(20));
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO book VALUES (NEW.invoice_id); RETURN NULL; END';
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION note();
"""


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    with web_server(url_of_test_database("source-004"), RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    with postgresql() as database:
        database.run(WAREHOUSE)
        monkeypatch.setenv("WAREHOUSE_URL", database.url)
        yield database


@pytest.fixture
def account(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Account:  # noqa: F811
    monkeypatch.setenv("NETSUITE_TOKEN", "sesame")
    made = Account({str(n): {"id": str(n), "amount": n, "status": "open"} for n in range(1, 4)})
    provider.answer = made.answer
    return made


@pytest.fixture
def deployed(
    web: Web,
    api_key: str,
    people: dict[str, Person],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warehouse: Database,
    account: Account,
    provider: Provider,  # noqa: F811
    configure: Callable[[str], Path],  # noqa: F811
) -> Iterator[Callable[[str], Run]]:
    """Deploys a file of this text and starts its worker; what is returned makes a run, and waits for its end."""
    configure(CONNECTORS.format(netsuite=f"{provider.url}{RECORDS}"))
    workers: list[Worker] = []
    client = SyncClient(web[0], api_key)

    def deploy(text: str) -> Run:
        path = tmp_path / "sync.py"
        path.write_text(text)
        monkeypatch.setenv("RECOURSE_URL", web[0])
        monkeypatch.setenv("RECOURSE_TOKEN", people["release_manager"].token)
        assert cli.main(["deploy", str(path), "--activate"]) == 0
        registry = Registry()
        load_handlers(str(path), registry)
        workers.append(Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2))
        workers[-1].start()
        return run

    def run(key: str, **params: Any) -> dict[str, Any]:
        made: Any = client.runs.create(idempotency_key=key, pipeline="sync", input=params)["pipeline"]

        def there() -> Any:
            found = client.runs.get(made["id"])
            return found if found["isTerminal"] else None

        found: dict[str, Any] = eventually(there, 60)
        return found

    yield deploy
    for worker in workers:
        worker.stop()
    client.close()


def output(run: dict[str, Any]) -> Any:
    assert run["status"] == "completed", run.get("failure")
    return run["stages"][0]["output"]


def test_invoices_that_are_upserted_twice_are_one_row_each(
    deployed: Callable[[str], Run], warehouse: Database, account: Account
) -> None:
    """N8, N12, N14–N17, N19: run twice, one row for each invoice, with what the second run read."""
    run = deployed(UPSERT)
    assert output(run("1", since="2026-05-01")) == {"upserted": 3}
    account.invoices["2"]["amount"] = 20
    account.invoices["4"] = {"id": "4", "amount": 4, "status": "paid"}
    assert output(run("2", since="2026-05-01")) == {"upserted": 4}
    rows = [
        (one, int(amount), status)
        for one, amount, status in warehouse.run("SELECT invoice_id, amount, status FROM invoices ORDER BY invoice_id")
    ]
    assert rows == [("1", 1, "open"), ("2", 20, "open"), ("3", 3, "open"), ("4", 4, "paid")]
    told = [(line.message, line.fields) for line in LogLine.objects.filter(message="upserted invoices").order_by("id")]
    assert told == [("upserted invoices", {"count": 3}), ("upserted invoices", {"count": 4})]


def test_a_busy_provider_is_waited_for_within_one_call_of_one_attempt(
    deployed: Callable[[str], Run],
    provider: Provider,  # noqa: F811
    account: Account,
) -> None:
    """N7, N8: 429, 429, 200; the code of the pipeline knows nothing of it."""
    run = deployed(UPSERT)
    provider.script = [reply(429, {}, retry_after="0"), reply(429, {}, retry_after="0")]
    found = run("1", since="2026-05-01")
    assert output(found) == {"upserted": 3}
    assert Attempt.objects.filter(stage__run_id=found["id"]).count() == 1
    listings: list[Asked] = [one for one in provider.asked if one.path.partition("?")[0].endswith("/invoice")]
    assert len(listings) == 3


def test_five_batches_that_fail_at_the_third_are_gone_on_with_there(
    deployed: Callable[[str], Run], warehouse: Database
) -> None:
    """N18, N20: what was marked outlives the failed run, and the next run begins where that one stood."""
    run = deployed(CHECKPOINTS)
    failed = run("1", batches=[1, 2, 3, 4, 5])
    assert failed["status"] == "failed"
    assert written(warehouse) == ["i1", "i2"]
    warehouse.run("UPDATE items SET health = 1; DELETE FROM book")
    assert output(run("2", batches=[1, 2, 3, 4, 5])) == {"processed": 5}
    assert written(warehouse) == ["i3", "i4", "i5"]
    warehouse.run("DELETE FROM book")
    assert output(run("3", batches=[1, 2, 3, 4, 5])) == {"processed": 5}
    assert written(warehouse) == [], "all was done already"


def written(warehouse: Database) -> list[str]:
    """The rows that were written since the book was emptied."""
    return [row[0] for row in warehouse.run("SELECT invoice_id FROM book ORDER BY invoice_id")]
