"""Source 004's two examples, word for word, deployed as files and run by a worker: a stand-in for NetSuite over real
HTTP, a real PostgreSQL to write to, the workspace's own tables. What is called `mssql` is a real MariaDB: no SQL Server
is here, and its statements are only compiled (tests/sdk/adapters). Nothing but that name's server differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recourse import Registry, SyncClient, Worker, cli
from recourse.authoring import load_handlers

from pipelines.models import Attempt, LogLine
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.journeys.test_kill_between_effect_and_result import ROOT, bury
from tests.sdk.adapters.conftest import configure, provider  # noqa: F401 - fixtures
from tests.sdk.adapters.databases import Database, mysql, postgresql
from tests.sdk.adapters.provider import Asked, Provider, reply
from tests.sdk.adapters.test_netsuite import RECORDS, Account
from tests.sdk.conftest import eventually
from tests.sdk.test_authoring import UPSERT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]

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
kind = "mysql"
url = "env:SOURCE_URL"
table = "batches"
[mssql.tables.batches]

[postgres]
kind = "postgresql"
url = "env:WAREHOUSE_URL"
table = "invoices"
[postgres.tables.invoices]
key = ["invoice_id"]
"""
# A book of every row that was ever written; a source of which the third batch does not fit before somebody mends it.
WAREHOUSE = """
CREATE TABLE invoices (invoice_id varchar(20) PRIMARY KEY, amount numeric, status text, batch integer);
CREATE TABLE book (invoice_id varchar(20));
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO book VALUES (NEW.invoice_id); RETURN NULL; END';
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION note();
"""
SOURCE = (
    "CREATE TABLE batches (batch integer, invoice_id varchar(60), amount numeric(10, 2))",
    "INSERT INTO batches VALUES (1, 'i1', 10), (2, 'i2', 20), (3, 'i3, or so it was read from paper', 30),"
    " (4, 'i4', 40), (5, 'i5', 50)",
)
MENDED = "UPDATE batches SET invoice_id = 'i3' WHERE batch = 3"
# A worker whose process is killed once, after the third batch was written and before it is marked.
KILLED = """
import os
import signal
import sys
from pathlib import Path

from recourse.store import Store
from recourse.worker.__main__ import main

insert = Store.insert


async def killed_once(store, table, rows, *, key=None):
    died = Path(os.environ["RECOURSE_TEST_MARKS"])
    if rows == [{"batch": 3}] and not died.exists():
        died.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return await insert(store, table, rows, key=key)


Store.insert = killed_once
sys.exit(main(sys.argv[1:]))
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
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    with mysql() as database:
        for statement in SOURCE:
            database.run(statement)
        monkeypatch.setenv("SOURCE_URL", database.url)
        yield database


@pytest.fixture
def account(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Account:  # noqa: F811
    monkeypatch.setenv("NETSUITE_TOKEN", "sesame")
    made = Account({str(n): {"id": str(n), "amount": n, "status": "open"} for n in range(1, 4)})
    provider.answer = made.answer
    return made


class Desk:
    """Deploys a file of this text; makes a run of it, and waits for its end."""

    def __init__(self, url: str, api_key: str, path: Path) -> None:
        self.client = SyncClient(url, api_key)
        self.path = path

    def deploy(self, text: str) -> None:
        self.path.write_text(text)
        assert cli.main(["deploy", str(self.path), "--activate"]) == 0

    def begin(self, key: str, **params: Any) -> str:
        made: Any = self.client.runs.create(idempotency_key=key, pipeline="sync", input=params)["pipeline"]
        return str(made["id"])

    def end(self, run: str, look: Callable[[], object] = lambda: None) -> dict[str, Any]:
        def there() -> Any:
            look()
            found = self.client.runs.get(run)
            return found if found["isTerminal"] else None

        found: dict[str, Any] = eventually(there, 120)
        return found

    def run(self, key: str, **params: Any) -> dict[str, Any]:
        return self.end(self.begin(key, **params))


@pytest.fixture
def desk(
    web: Web,
    api_key: str,
    people: dict[str, Person],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warehouse: Database,
    source: Database,
    account: Account,
    provider: Provider,  # noqa: F811
    configure: Callable[[str], Path],  # noqa: F811
) -> Iterator[Desk]:
    configure(CONNECTORS.format(netsuite=f"{provider.url}{RECORDS}"))
    monkeypatch.setenv("RECOURSE_URL", web[0])
    monkeypatch.setenv("RECOURSE_TOKEN", people["release_manager"].token)
    made = Desk(web[0], api_key, tmp_path / "sync.py")
    yield made
    made.client.close()


@pytest.fixture
def deployed(web: Web, api_key: str, desk: Desk) -> Iterator[Callable[[str], Run]]:
    """Deploys this text and starts its worker; what is returned makes a run, and waits for its end."""
    workers: list[Worker] = []

    def deploy(text: str) -> Run:
        desk.deploy(text)
        registry = Registry()
        load_handlers(str(desk.path), registry)
        workers.append(Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2))
        workers[-1].start()
        return desk.run

    yield deploy
    for worker in workers:
        worker.stop()


@pytest.fixture
def processes(web: Web, api_key: str, desk: Desk, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Starts a worker in a process of its own; the first of them is killed on its way."""
    told = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
        "RECOURSE_API_KEY": api_key,
        "RECOURSE_TEST_MARKS": str(tmp_path / "died"),
    }
    started: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        command = [sys.executable, "-c", KILLED, "--handlers", str(desk.path)]
        started.append(subprocess.Popen(command, env=os.environ | told, cwd=ROOT))

    yield work
    for process in started:
        process.kill()
        process.wait(30)


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
    deployed: Callable[[str], Run], warehouse: Database, source: Database
) -> None:
    """N18, N20: what was marked outlives the failed run, and the next run begins where that one stood."""
    run = deployed(CHECKPOINTS)
    failed = run("1", batches=[1, 2, 3, 4, 5])
    assert failed["status"] == "failed"
    assert written(warehouse) == ["i1", "i2"]
    source.run(MENDED)
    warehouse.run("DELETE FROM book")
    assert output(run("2", batches=[1, 2, 3, 4, 5])) == {"processed": 5}
    assert written(warehouse) == ["i3", "i4", "i5"]
    warehouse.run("DELETE FROM book")
    assert output(run("3", batches=[1, 2, 3, 4, 5])) == {"processed": 5}
    assert written(warehouse) == [], "all was done already"


def test_a_process_that_is_killed_between_write_and_mark_has_its_batch_written_again_under_its_key(
    desk: Desk, processes: Callable[[], None], warehouse: Database, source: Database, tmp_path: Path
) -> None:
    """N21, N25: kill -9 after the third batch was written and before it was marked; the next worker writes it again,
    the two before it not, and one row for each invoice is there.
    """
    source.run(MENDED)
    desk.deploy(CHECKPOINTS)
    run = desk.begin("1", batches=[1, 2, 3, 4, 5])
    processes()
    eventually((tmp_path / "died").exists, 60)
    assert written(warehouse) == ["i1", "i2", "i3"]
    processes()
    assert output(desk.end(run, bury)) == {"processed": 5}
    assert written(warehouse) == ["i1", "i2", "i3", "i3", "i4", "i5"]
    assert [row[0] for row in warehouse.run("SELECT invoice_id FROM invoices ORDER BY 1")] == [
        f"i{n}" for n in range(1, 6)
    ]
    assert [one.state for one in Attempt.objects.filter(stage__run_id=run).order_by("number")] == ["lost", "succeeded"]


def written(warehouse: Database) -> list[str]:
    """The rows that were written since the book was emptied."""
    return [row[0] for row in warehouse.run("SELECT invoice_id FROM book ORDER BY invoice_id")]
