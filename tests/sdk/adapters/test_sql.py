"""The SQL adapter against real servers, PostgreSQL and MariaDB: what is written once, what not at all, what is told."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from recourse import Stopped
from recourse.adapters import Adapters, Written

from tests.sdk.adapters import databases
from tests.sdk.adapters.databases import Database
from tests.sdk.adapters.provider import Died, Epoch
from tests.sdk.adapters.test_http import fails

Warehouse = Callable[..., Any]
INVOICE = {"invoice_id": "a", "amount": Decimal("1.50"), "select": "x"}


@pytest.fixture(params=["postgresql", "mysql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    with getattr(databases, request.param)() as made:
        yield made


@pytest.fixture
def warehouse(
    database: Database, epoch: Epoch, configure: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Warehouse:
    """The connector `warehouse` in a new attempt; what is given is set on its table of invoices."""
    monkeypatch.setenv("WAREHOUSE_URL", database.url)

    def connect(stage: Any = None, **limits: Any) -> Any:
        settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in limits.items())
        configure(
            f'[warehouse]\nkind = "{database.kind}"\nurl = "env:WAREHOUSE_URL"\ntable = "invoices"\n'
            "max_read_rows = 2500\n"
            f'[warehouse.tables.invoices]\nname = "in voices"\nkey = ["invoice_id"]\n{settings}'
            '[warehouse.tables.seen]\nkey = ["source", "item"]\n[warehouse.tables.loose]\n'
            "[warehouse.queries]\n"
            'dear = "SELECT invoice_id FROM seen_invoices WHERE amount > :least"\n'
            'sum = "SELECT :one + :two AS total"\n'
        )
        return Adapters(stage or epoch.attempt()).warehouse

    return connect


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_upserted_twice_there_is_one_row_each(warehouse: Warehouse, database: Database, epoch: Epoch) -> None:
    """N12, N19: in one attempt and in the next, with the newest word of each."""
    rows = [INVOICE, {**INVOICE, "invoice_id": "b", "select": None}]
    adapter = warehouse()
    assert run(adapter.write(rows, op="upsert")) == Written(2)
    assert run(adapter.write(rows, op="upsert")) == Written(2)
    assert run(warehouse().write([{**INVOICE, "amount": Decimal(3)}, rows[1]], op="upsert")) == Written(2)
    assert database.invoices() == [("a", Decimal("3.00"), "x"), ("b", Decimal("1.50"), None)]
    assert epoch.states == ["committed"] * 3
    assert {one["class"] for one in epoch.effects} == {"tool_side_effect"}
    assert epoch.effects[0]["detail"] == {"connector": "warehouse", "act": "upsert", "table": "in voices", "rows": 2}


def test_an_upsert_leaves_other_columns_and_other_rows_alone(warehouse: Warehouse, database: Database) -> None:
    run(warehouse().write([INVOICE, {**INVOICE, "invoice_id": "b"}], op="upsert"))
    run(warehouse().write([{"invoice_id": "a", "amount": 9}], op="upsert"))
    assert database.invoices() == [("a", Decimal("9.00"), "x"), ("b", Decimal("1.50"), "x")]


def test_rows_of_nothing_but_their_key_are_upserted(warehouse: Warehouse, database: Database) -> None:
    """N18's kind of table: what is done is marked, and marked again."""
    marks = [{"source": "s", "item": 1}, {"source": "s", "item": 2}]
    for _ in range(2):
        run(warehouse().write(marks, op="upsert", table="seen"))
    assert sorted(database.run("SELECT source, item FROM seen")) == [("s", 1), ("s", 2)]


def test_many_rows_are_written_in_few_statements_and_one_transaction(
    warehouse: Warehouse, database: Database, epoch: Epoch
) -> None:
    """N12: set-based. One bad row at the end, and none of them is there."""
    rows = [{"invoice_id": f"i{number:05}", "amount": number, "select": "x"} for number in range(2_500)]
    adapter = warehouse()
    statements: list[str] = []
    sa.event.listen(adapter._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    assert run(adapter.write(rows, op="upsert")).rows == 2_500
    assert len([one for one in statements if one.startswith("INSERT")]) == 3
    assert len(database.invoices()) == 2_500
    assert len(run(adapter.read())) == 2_500
    bad = [{**row, "invoice_id": f"j{at}"} for at, row in enumerate(rows)] + [{**INVOICE, "invoice_id": "j" * 21}]
    failed = fails(warehouse().write(bad, op="upsert"))
    assert (failed.code, failed.retryable) == ("UPSTREAM_REFUSED", False)
    assert len(failed.message) < 500
    assert "j" * 21 not in "".join(traceback.format_exception(failed)), "no row of a thousand is told"
    assert len(database.invoices()) == 2_500
    assert epoch.states == ["committed", "absent"]


def test_a_row_limit_fails_the_stage_before_anything_is_written(
    warehouse: Warehouse, database: Database, epoch: Epoch
) -> None:
    """N26: and before anything is declared; on both sides of it."""
    rows = [{**INVOICE, "invoice_id": str(number)} for number in range(3)]
    failed = fails(warehouse(max_rows=2).write(rows, op="upsert"))
    assert (failed.code, failed.retryable) == ("ROW_LIMIT_EXCEEDED", False)
    assert fails(warehouse(min_rows=1).write([], op="upsert")).code == "ROW_LIMIT_EXCEEDED"
    assert (database.invoices(), epoch.effects) == ([], [])
    adapter = warehouse(max_rows=3, max_rows_per_attempt=4)
    run(adapter.write(rows, op="upsert"))
    assert fails(adapter.write(rows[:2], op="upsert")).code == "ROW_LIMIT_EXCEEDED"
    assert run(adapter.write(rows[:1], op="upsert")).rows == 1
    assert len(database.invoices()) == 3


@pytest.mark.parametrize(
    ("row", "table", "code", "named"),
    [
        ({**INVOICE, "colour": 1}, None, "VALIDATION_ERROR", "no column 'colour'"),
        ({**INVOICE, '"; DROP TABLE seen; --': 1}, None, "VALIDATION_ERROR", "no column"),
        ({"amount": 1}, None, "VALIDATION_ERROR", "key column 'invoice_id'"),
        ({"item": 1}, "loose", "VALIDATION_ERROR", "needs key columns"),
        (INVOICE, "elsewhere", "VALIDATION_ERROR", "has no table 'elsewhere'; there are: invoices, loose, seen"),
    ],
)
def test_what_cannot_be_upserted_is_refused_by_name(
    warehouse: Warehouse, epoch: Epoch, row: Any, table: str | None, code: str, named: str
) -> None:
    failed = fails(warehouse().write([row], op="upsert", table=table))
    assert (failed.code, failed.retryable) == (code, False)
    assert named in failed.message
    assert epoch.effects == []


def test_a_key_that_the_database_does_not_hold_once_is_refused(
    database: Database, warehouse: Warehouse, configure: Callable[[str], Path], epoch: Epoch
) -> None:
    """It would make duplicates; and MySQL merges on every unique key, so that another one in the rows is refused."""
    warehouse()
    configure(
        f'[warehouse]\nkind = "{database.kind}"\nurl = "env:WAREHOUSE_URL"\n'
        '[warehouse.tables.loose]\nkey = ["item"]\n'
        '[warehouse.tables.invoices]\nname = "in voices"\nkey = ["invoice_id"]\n'
    )
    adapter = Adapters(epoch.attempt()).warehouse
    failed = fails(adapter.write([{"item": 1}], op="upsert", table="loose"))
    assert (failed.code, "no primary key or unique index on item" in failed.message) == ("CONNECTOR_INVALID", True)
    work = adapter.write([{**INVOICE, "number": 1}], op="upsert", table="invoices")
    if database.kind == "mysql":
        assert "also unique by number" in fails(work).message
    else:
        run(work)
        failed = fails(adapter.write([{**INVOICE, "invoice_id": "b", "number": 1}], op="upsert", table="invoices"))
        assert (failed.code, len(database.invoices())) == ("UPSTREAM_REFUSED", 1)


def test_rows_are_read_by_equality_of_bound_values(warehouse: Warehouse, database: Database) -> None:
    """N15"""
    adapter = warehouse()
    names = ["a", "b", "c", "' OR ''='"]
    run(adapter.write([{**INVOICE, "invoice_id": name} for name in names]))
    run(warehouse().write([{**INVOICE, "invoice_id": "n", "select": None}], op="upsert"))
    assert run(adapter.read({"invoice_id": "b"})) == [
        {"invoice_id": "b", "amount": Decimal("1.50"), "select": "x", "number": None}
    ]
    assert [one["invoice_id"] for one in run(adapter.read({"invoice_id": names[3]}))] == names[3:]
    assert len(run(adapter.read({"invoice_id": ["a", "c", "z"]}))) == 2
    assert [one["invoice_id"] for one in run(adapter.read({"select": None}))] == ["n"]
    assert len(run(adapter.read({"limit": 2}))) == len(run(adapter.read(limit=2))) == 2
    assert run(adapter.read({"limit": 0})) == []
    assert "no column 'colour'" in fails(adapter.read({"colour": 1})).message
    assert fails(adapter.read({"limit": -1})).code == "VALIDATION_ERROR"


def test_more_rows_than_are_taken_fail_instead_of_being_cut(warehouse: Warehouse, database: Database) -> None:
    rows = [{"source": "s", "item": number} for number in range(2_501)]
    adapter = warehouse()
    run(adapter.write(rows, table="seen"))
    assert fails(adapter.read(table="seen")).code == "ROW_LIMIT_EXCEEDED"
    assert len(run(adapter.read({"limit": 2_500}, table="seen"))) == 2_500


def test_a_named_query_takes_its_parameters_and_commits_nothing(warehouse: Warehouse, database: Database) -> None:
    adapter = warehouse()
    assert run(adapter.read({"one": 1, "two": 2}, query="sum")) == [{"total": 3}]
    assert "takes one, two, not one" in fails(adapter.read({"one": 1}, query="sum")).message
    assert "has no query 'other'; there are: dear, sum" in fails(adapter.read(query="other")).message
    failed = fails(adapter.read({"least": 1}, query="dear"))
    assert (failed.code, "seen_invoices" in failed.message) == ("UPSTREAM_REFUSED", True)


def test_a_named_query_that_writes_leaves_nothing(
    database: Database, warehouse: Warehouse, configure: Callable[[str], Path], epoch: Epoch
) -> None:
    warehouse()
    configure(
        f'[warehouse]\nkind = "{database.kind}"\nurl = "env:WAREHOUSE_URL"\n'
        "[warehouse.queries]\nsly = \"INSERT INTO seen VALUES ('s', 1) RETURNING item\"\n"
    )
    work = Adapters(epoch.attempt()).warehouse.read(query="sly")
    if database.kind == "postgresql":
        assert fails(work).code == "UPSTREAM_REFUSED", "a cursor is for reading"
    else:
        assert run(work) == [{"item": 1}]
    assert database.run("SELECT * FROM seen") == []


def test_a_crash_between_write_and_mark_converges(warehouse: Warehouse, database: Database, epoch: Epoch) -> None:
    """N21: the rows are there, the process is gone before it could say so; the next attempt writes them again."""
    dying = epoch.attempt()
    dying.link.dies_at = "committed"  # type: ignore[attr-defined]
    with pytest.raises(Died):
        run(warehouse(dying).write([INVOICE], op="upsert"))
    epoch.lose()
    assert len(database.invoices()) == 1
    run(warehouse().write([INVOICE], op="upsert"))
    assert database.invoices() == [("a", Decimal("1.50"), "x")]
    assert epoch.states == ["unknown", "committed"]


@pytest.mark.parametrize("arrived", [True, False])
def test_an_insert_that_may_be_there_is_looked_for_first(
    warehouse: Warehouse, database: Database, epoch: Epoch, arrived: bool
) -> None:
    """N23: by its keys; there it is left alone, else it is done."""
    rows = [INVOICE, {**INVOICE, "invoice_id": "b"}]
    dying = epoch.attempt()
    dying.link.dies_at = "committed"  # type: ignore[attr-defined]
    with pytest.raises(Died):
        run(warehouse(dying).write(rows))
    epoch.lose()
    if not arrived:
        database.run("DELETE FROM " + database.engine.dialect.identifier_preparer.quote("in voices"))
    assert run(warehouse().write(rows)) == Written(2, already=2 if arrived else 0)
    assert len(database.invoices()) == 2
    assert run(warehouse().write(rows)) == Written(2, already=2)
    assert len(database.invoices()) == 2


def test_half_of_a_doubtful_insert_is_somebody_elses_and_is_refused(
    warehouse: Warehouse, database: Database, epoch: Epoch
) -> None:
    rows = [INVOICE, {**INVOICE, "invoice_id": "b"}]
    dying = epoch.attempt()
    dying.link.dies_at = "committed"  # type: ignore[attr-defined]
    with pytest.raises(Died):
        run(warehouse(dying).write(rows))
    epoch.lose()
    database.run(f"DELETE FROM {database.engine.dialect.identifier_preparer.quote('in voices')} WHERE invoice_id = 'b'")
    assert "1 of 2 rows" in fails(warehouse().write(rows)).message
    assert len(database.invoices()) == 1


def test_a_doubtful_insert_without_a_key_is_a_persons_question(
    warehouse: Warehouse, database: Database, epoch: Epoch
) -> None:
    dying = epoch.attempt()
    dying.link.dies_at = "committed"  # type: ignore[attr-defined]
    with pytest.raises(Died):
        run(warehouse(dying).write([{"item": 1}], table="loose"))
    epoch.lose()
    assert fails(warehouse().write([{"item": 1}], table="loose")).code == "OUTCOME_UNKNOWN"
    assert database.run("SELECT * FROM loose") == [(1, None)]
    assert epoch.states == ["unknown", "unknown"]


def test_a_blind_insert_of_what_is_there_is_refused_and_absent(
    warehouse: Warehouse, database: Database, epoch: Epoch
) -> None:
    run(warehouse().write([INVOICE]))
    failed = fails(warehouse().write([{**INVOICE, "amount": 9}]))
    assert (failed.code, failed.retryable, epoch.states) == ("UPSTREAM_REFUSED", False, ["committed", "absent"])
    assert database.invoices() == [("a", Decimal("1.50"), "x")]


def test_a_cancel_between_two_chunks_takes_all_back(warehouse: Warehouse, database: Database, epoch: Epoch) -> None:
    stage = epoch.attempt()
    adapter = warehouse(stage)
    rows = [{**INVOICE, "invoice_id": f"i{number:05}"} for number in range(2_500)]
    sa.event.listen(
        adapter._engine,
        "after_cursor_execute",
        lambda *args: stage.control.stop("cancelled") if args[2].startswith("INSERT") else None,
    )
    with pytest.raises(Stopped):
        run(adapter.write(rows, op="upsert"))
    assert (database.invoices(), epoch.states) == ([], ["absent"])


def test_who_is_cut_off_in_a_write_waits_until_it_is_known_what_became_of_it(
    warehouse: Warehouse, database: Database, epoch: Epoch
) -> None:
    """A thread cannot be stopped: its effect must not be told absent while it goes on."""
    adapter = warehouse()
    at_work, go_on = threading.Event(), threading.Event()

    def hold(*args: Any) -> None:
        if args[2].startswith("INSERT"):
            at_work.set()
            go_on.wait(30)

    sa.event.listen(adapter._engine, "before_cursor_execute", hold)

    async def cut_off() -> None:
        work = asyncio.ensure_future(adapter.write([INVOICE], op="upsert"))
        await asyncio.to_thread(at_work.wait, 30)
        work.cancel()
        await asyncio.sleep(0)
        assert epoch.states == ["declared"]
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work

    run(cut_off())
    assert len(database.invoices()) == 1
    assert epoch.states == ["committed"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recourse.adapters.sql.FIRST_WAIT", 0.01)


def break_commits(adapter: Any, times: int, cause: Exception | None = None) -> list[int]:
    """The first commits of the adapter are not answered."""
    broken: list[int] = []

    def commit(connection: Any) -> None:
        if len(broken) < times:
            broken.append(1)
            raise sa.exc.OperationalError("COMMIT", {}, cause or RuntimeError("the network is down"))

    sa.event.listen(adapter._engine, "commit", commit)
    return broken


def test_an_upsert_whose_commit_was_not_answered_is_repeated(
    warehouse: Warehouse, database: Database, epoch: Epoch, quick: None
) -> None:
    """It comes to the same, and then it is known; where it is not, the effect stays unknown, for a person."""
    adapter = warehouse()
    broken = break_commits(adapter, 2)
    assert run(adapter.write([INVOICE], op="upsert")) == Written(1)
    assert (len(broken), len(database.invoices()), epoch.states) == (2, 1, ["committed"])
    adapter = warehouse()
    broken = break_commits(adapter, 5)
    failed = fails(adapter.write([{**INVOICE, "invoice_id": "b"}], op="upsert"))
    assert (failed.code, failed.retryable) == ("TRANSPORT_UNAVAILABLE", True)
    assert (len(broken), epoch.states) == (3, ["committed", "unknown"])


def test_an_insert_whose_commit_was_not_answered_is_not_repeated(
    warehouse: Warehouse, database: Database, epoch: Epoch, quick: None
) -> None:
    """It may have arrived; only before the commit is it known that nothing did."""
    adapter = warehouse()
    broken = break_commits(adapter, 1)
    assert fails(adapter.write([INVOICE])).code == "TRANSPORT_UNAVAILABLE"
    assert (len(broken), epoch.states) == (1, ["unknown"])


def test_doubt_is_not_taken_back_by_a_later_refusal(
    warehouse: Warehouse, database: Database, epoch: Epoch, quick: None
) -> None:
    adapter = warehouse()
    break_commits(adapter, 1)
    statements: list[str] = []

    def refuse(*args: Any) -> None:
        if args[2].startswith("INSERT"):
            statements.append(args[2])
            if len(statements) > 1:
                raise sa.exc.IntegrityError("", {}, RuntimeError("no"))

    sa.event.listen(adapter._engine, "before_cursor_execute", refuse)
    assert fails(adapter.write([INVOICE], op="upsert")).code == "UPSTREAM_REFUSED"
    assert epoch.states == ["unknown"]


@pytest.mark.parametrize("op", ["insert", "upsert"])
def test_what_a_deadlock_took_back_is_written_again(
    warehouse: Warehouse, database: Database, epoch: Epoch, quick: None, op: Any
) -> None:
    """It was rolled back for sure."""
    adapter = warehouse()
    locked: list[int] = []

    def lock(*args: Any) -> None:
        if args[2].startswith("INSERT") and len(locked) < 2:
            locked.append(1)
            raise sa.exc.OperationalError("", {}, Cause(1213, "Deadlock found"))

    sa.event.listen(adapter._engine, "before_cursor_execute", lock)
    assert run(adapter.write([INVOICE], op=op)) == Written(1)
    assert (len(locked), len(database.invoices()), epoch.states) == (2, 1, ["committed"])


def test_the_loop_is_free_while_the_database_works(warehouse: Warehouse, database: Database) -> None:
    adapter = warehouse()
    threads: set[int] = set()
    sa.event.listen(adapter._engine, "before_cursor_execute", lambda *_: threads.add(threading.get_ident()))
    run(adapter.write([INVOICE], op="upsert"))
    assert threads
    assert threading.get_ident() not in threads


def test_a_database_that_is_not_there_is_told_without_its_address(
    warehouse: Warehouse, database: Database, epoch: Epoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse()
    scheme = database.url.split("://")[0]
    monkeypatch.setenv("WAREHOUSE_URL", f"{scheme}://someone:sesame@127.0.0.1:9/none")
    failed = fails(Adapters(epoch.attempt()).warehouse.write([INVOICE], op="upsert"))
    assert (failed.code, failed.retryable) == ("TRANSPORT_UNAVAILABLE", True)
    assert "sesame" not in repr(failed) + repr(failed.__cause__)
    assert epoch.effects == []


def test_a_table_that_is_not_there_is_told(
    database: Database, warehouse: Warehouse, configure: Callable[[str], Path], epoch: Epoch
) -> None:
    warehouse()
    configure(f'[warehouse]\nkind = "{database.kind}"\nurl = "env:WAREHOUSE_URL"\n[warehouse.tables.gone]\n')
    failed = fails(Adapters(epoch.attempt()).warehouse.read())
    assert (failed.code, failed.message) == ("CONNECTOR_INVALID", "the database of warehouse has no table 'gone'")


class Cause(Exception):
    def __init__(self, *args: Any, sqlstate: str | None = None) -> None:
        super().__init__(*args)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("kind", "cause", "code", "retryable"),
    [
        (sa.exc.OperationalError, Cause("deadlock detected", sqlstate="40P01"), "UPSTREAM_ERROR", True),
        (sa.exc.OperationalError, Cause(1213, "Deadlock found"), "UPSTREAM_ERROR", True),
        (sa.exc.OperationalError, Cause("server closed the connection"), "TRANSPORT_UNAVAILABLE", True),
        (sa.exc.OperationalError, Cause(2013, "Lost connection"), "TRANSPORT_UNAVAILABLE", True),
        (sa.exc.OperationalError, Cause(1040, "Too many connections"), "TRANSPORT_UNAVAILABLE", True),
        (sa.exc.OperationalError, Cause(1364, "Field has no default"), "UPSTREAM_REFUSED", False),
        (sa.exc.IntegrityError, Cause("duplicate key"), "UPSTREAM_REFUSED", False),
        (sa.exc.InternalError, Cause("out of memory"), "UPSTREAM_ERROR", True),
    ],
)
def test_failures_are_what_policies_name(
    epoch: Epoch,
    configure: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    cause: Cause,
    code: str,
    retryable: bool,
) -> None:
    """A deadlock may go better another time; nobody else's word on the values will change."""
    monkeypatch.setenv("WAREHOUSE_URL", "postgres://localhost/none")
    configure('[warehouse]\nkind = "postgresql"\nurl = "env:WAREHOUSE_URL"\n')
    failed = Adapters(epoch.attempt()).warehouse._failed(kind("", {}, cause))
    assert (failed.code, failed.retryable) == (code, retryable)
