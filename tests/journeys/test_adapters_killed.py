"""A worker's process dies between a write through an adapter and the mark that it is done; another goes on, and each
row is there once. A real process, a real lease, a real PostgreSQL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from recourse import SyncClient

from pipelines.models import Attempt, Effect, Run
from tests.contract.conftest import url_of_test_database, web_server
from tests.journeys.test_kill_between_effect_and_result import bury
from tests.pipelines.engine import output
from tests.sdk.adapters import databases
from tests.sdk.adapters.databases import Database
from tests.sdk.conftest import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
ROOT = Path(__file__).resolve().parents[2]

# dies once: right after the commit, before its outcome is told; or after the whole write, before the mark
SYNC = """
import os
from pathlib import Path

from recourse import links

tell = links.store_outcome


def die_once():
    died = Path(os.environ["RECOURSE_TEST_MARKS"])
    if not died.exists():
        died.write_text("")
        os._exit(9)


def tell_or_die(link, control, body):
    if os.environ["RECOURSE_TEST_POSITION"] == "before the outcome":
        die_once()
    return tell(link, control, body)


links.store_outcome = tell_or_die


async def run(ctx):
    rows = [{"invoice_id": "a", "amount": 1}, {"invoice_id": "b", "amount": 2}]
    written = await ctx.adapters.postgres.write(rows, op=ctx.params["op"])
    if os.environ["RECOURSE_TEST_POSITION"] == "before the mark":
        die_once()
    return {"there already": written.already}
"""
CONNECTORS = """
[postgres]
kind = "postgresql"
url = "env:WAREHOUSE_URL"
[postgres.tables.invoices]
key = ["invoice_id"]
"""


@pytest.fixture
def warehouse() -> Iterator[Database]:
    with databases.postgresql() as made:
        made.run("CREATE TABLE invoices (invoice_id text PRIMARY KEY, amount numeric)")
        yield made


@pytest.fixture
def start(
    django_db_setup: None, api_key: str, warehouse: Database, tmp_path: Path
) -> Iterator[Callable[[str], tuple[SyncClient, Callable[[], None]]]]:
    """Starts a console and says how to start a worker that dies at that position, once."""
    (tmp_path / "sync.py").write_text(SYNC)
    (tmp_path / "connectors.toml").write_text(CONNECTORS)
    workers: list[subprocess.Popen[bytes]] = []
    with (
        web_server(url_of_test_database("adapters killed"), RECOURSE_RENEW_SECONDS="1") as (url, _),
        SyncClient(url, api_key) as client,
    ):

        def begin(position: str) -> tuple[SyncClient, Callable[[], None]]:
            told = {
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}",
                "RECOURSE_URL": url,
                "RECOURSE_API_KEY": api_key,
                "RECOURSE_CONNECTORS": str(tmp_path / "connectors.toml"),
                "WAREHOUSE_URL": warehouse.url,
                "RECOURSE_TEST_MARKS": str(tmp_path / "died"),
                "RECOURSE_TEST_POSITION": position,
            }

            def work() -> None:
                command = [sys.executable, "-m", "recourse.worker", "--handlers", str(tmp_path / "sync.py")]
                workers.append(subprocess.Popen(command, env=os.environ | told, cwd=ROOT))

            return client, work

        yield begin
        for worker in workers:
            worker.kill()
            worker.wait(30)


@pytest.mark.parametrize(
    ("position", "op", "left"),
    [
        ("before the outcome", "upsert", ["unknown", "committed"]),
        ("before the outcome", "insert", ["unknown", "committed"]),
        ("before the mark", "upsert", ["committed", "committed"]),
        ("before the mark", "insert", ["committed", "committed"]),
    ],
)
def test_a_crash_between_write_and_mark_converges(
    start: Callable[[str], tuple[SyncClient, Callable[[], None]]],
    warehouse: Database,
    tmp_path: Path,
    position: str,
    op: str,
    left: list[str],
) -> None:
    """N21, N23, N25: an upsert is done again, an insert is looked for; the second attempt leaves one row each."""
    client, work = start(position)
    stage = {"stageName": "run", "stageHandlerName": "sync.run", "input": f'{{"op": "{op}"}}'}
    made = client.runs.create(idempotency_key="crash", name="sync", stages=[stage])["pipeline"]
    work()
    eventually((tmp_path / "died").exists, 60)
    assert client.runs.get(made["id"])["status"] == "running"
    assert len(warehouse.run("SELECT * FROM invoices")) == 2
    work()

    def is_done() -> bool:
        bury()
        return bool(client.runs.get(made["id"])["status"] == "completed")

    eventually(is_done, 120)
    assert warehouse.run("SELECT * FROM invoices ORDER BY invoice_id") == [("a", Decimal(1)), ("b", Decimal(2))]
    attempts = Attempt.objects.filter(run_id=made["id"]).order_by("number")
    assert [one.state for one in attempts] == ["lost", "succeeded"]
    effects = Effect.objects.filter(run_id=made["id"]).order_by("declared_at", "id")
    assert [one.state for one in effects] == left
    told = output(Run.objects.get(id=made["id"]), "run")
    assert json.loads(told or "") == {"there already": 2 if op == "insert" else 0}
