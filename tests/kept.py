"""The workspace store in tests: what workers do with it by its routes, and whether what is counted of it is so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from pipelines.models import Run, StoreTable
from pipelines.sql import execute, query
from pipelines.store_rows import compact
from tests.cast import Api

INVOICES = [{"invoice_id": 1, "amount": "10.00"}, {"invoice_id": 2, "amount": "20.50"}]


def ask(worker: Api, job: Mapping[str, Any], verb: str, table: str = "invoices", **body: Any) -> Any:
    """The answer of a route below /stages/{id}/store/."""
    told = {"executionId": job["executionId"], "table": table, **body}
    return worker.post(f"/stages/{job['stageId']}/store/{verb}", told)


def rows_in(worker: Api, job: Mapping[str, Any], table: str = "invoices", **body: Any) -> list[dict[str, Any]]:
    """All rows, page by page."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        answer = ask(worker, job, "read", table, after=after, **body)
        assert answer.status_code == 200, answer.content
        found += answer.json()["rows"]
        after = answer.json()["next"]
    return found


def kept(table: str = "invoices") -> Sequence[Any]:
    """The rows as the database has them: body, bytes, run."""
    return query(
        "SELECT r.body::text, r.size, r.run FROM recourse_store.rows r JOIN pipelines_storetable t ON t.id = r.table_id"
        " WHERE t.name = %s ORDER BY r.id",
        [table],
    )


def assert_counted() -> None:
    """What is counted of each table is what its rows come to; and no row is of no table."""
    told = {table.id: (table.rows, table.bytes) for table in StoreTable.objects.all()}
    found = {
        one[0]: one[1:] for one in query("SELECT table_id, count(*), sum(size) FROM recourse_store.rows GROUP BY 1")
    }
    assert {one: found.get(one, (0, 0)) for one in told} == told
    assert set(found) <= set(told)


def table_of(run: Run, name: str = "sync_progress") -> StoreTable:
    """A table of the run's application and environment: a small row, and one that no column is as wide as."""
    rows = [{"batch": 1}, {"batch": "long-" * 40, **{f"column-{number}": "wide " * 9 for number in range(20)}}]
    bodies = [compact(row) for row in rows]
    table = StoreTable.objects.create(
        workspace_id=run.workspace_id,
        application_id=run.application_id,
        environment_id=run.environment_id,
        name=name,
        rows=len(bodies),
        bytes=sum(map(len, bodies)),
        written_at=run.created_at,
        written_by_run=run.id,
    )
    for body in bodies:
        execute(
            "INSERT INTO recourse_store.rows (table_id, key, body, size, run, written_at)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            [table.id, sha256(body.encode()).digest(), body, len(body), run.id, run.created_at],
        )
    return table


@contextmanager
def out_of_reach() -> Iterator[None]:
    """The console has the rights of a user who may not act as the store's role; within a transaction."""
    execute("CREATE ROLE recourse_nobody NOLOGIN")
    execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO recourse_nobody")
    execute("SET LOCAL SESSION AUTHORIZATION recourse_nobody")
    try:
        yield
    finally:
        execute("RESET SESSION AUTHORIZATION")
