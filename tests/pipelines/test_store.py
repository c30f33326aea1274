"""The workspace store as a running attempt uses it, by the worker's routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from pipelines import retention, store_role
from pipelines.models import Application, Environment, Run, StoreTable
from pipelines.sql import execute, query
from tests.cast import Worker, unknown_id
from tests.clock import Clock
from tests.kept import INVOICES, ask, assert_counted, kept, rows_in

StartRun = Callable[..., Run]
pytestmark = pytest.mark.django_db


@pytest.fixture
def job(start_run: StartRun, worker: Worker) -> dict[str, Any]:
    start_run("first")
    return worker.take()


def test_rows_are_read_as_they_were_inserted_and_survive_a_failed_run(
    start_run: StartRun, worker: Worker, job: dict[str, Any]
) -> None:
    """N18: the next run finds what one that failed had marked."""
    assert rows_in(worker, job, "sync_progress") == []
    answer = ask(worker, job, "insert", "sync_progress", rows=[{"batch": 1}, {"batch": 2}])
    assert answer.status_code == 200
    assert answer.json() == {"inserted": 2, "replaced": 0, "unchanged": 0, "rows": 2, "bytes": 22}
    assert worker.report(job, "failed", errorCode="BOOM").status_code == 202
    start_run("first")
    later = worker.take()
    assert rows_in(worker, later, "sync_progress") == [{"batch": 1}, {"batch": 2}]
    table = StoreTable.objects.get()
    assert (table.written_by_run, str(table.written_by_attempt)) == (Run.objects.earliest("id").id, job["executionId"])
    assert_counted()


def test_an_upsert_twice_gives_one_row_each(worker: Worker, job: dict[str, Any]) -> None:
    """N12, N13: merged on the declared key; what changed is replaced, what did not is not even written."""
    assert ask(worker, job, "table", key=["invoice_id"]).status_code == 201
    assert ask(worker, job, "table", key=["invoice_id"]).json() == {"key": ["invoice_id"], "created": False}
    first = ask(worker, job, "upsert", rows=INVOICES).json()
    before = query("SELECT ctid::text, xmin::text FROM recourse_store.rows ORDER BY id")
    again = ask(worker, job, "upsert", rows=INVOICES).json()
    assert (first["inserted"], again["inserted"], again["unchanged"]) == (2, 0, 2)
    assert query("SELECT ctid::text, xmin::text FROM recourse_store.rows ORDER BY id") == before
    changed = ask(worker, job, "upsert", rows=[{"invoice_id": 2.0, "amount": "21"}, {"invoice_id": 3}]).json()
    assert (changed["inserted"], changed["replaced"], changed["rows"]) == (1, 1, 3)
    assert rows_in(worker, job) == [INVOICES[0], {"invoice_id": 2, "amount": "21"}, {"invoice_id": 3}]
    assert_counted()


def test_of_several_in_one_upsert_the_last_counts(worker: Worker, job: dict[str, Any]) -> None:
    rows = [{"id": "a", "n": 1}, {"id": "b"}, {"id": "a", "n": 2}]
    told = ask(worker, job, "upsert", rows=rows, key=["id"]).json()
    assert (told["inserted"], told["replaced"], told["unchanged"]) == (2, 0, 1)
    assert rows_in(worker, job) == [{"id": "a", "n": 2}, {"id": "b"}]


def test_an_insert_never_replaces(worker: Worker, job: dict[str, Any]) -> None:
    """N12: another row under a known key is refused by its place, and nothing of the request is stored."""
    ask(worker, job, "insert", rows=INVOICES, key=["invoice_id"])
    same = ask(worker, job, "insert", rows=INVOICES[:1]).json()
    assert (same["inserted"], same["unchanged"]) == (0, 1)
    other = ask(worker, job, "insert", rows=[{"invoice_id": 9}, INVOICES[1], {"invoice_id": 1, "amount": "11.00"}])
    assert (other.status_code, other.json()["code"]) == (409, "store_conflict")
    assert list(other.json()["errors"]) == ["rows[2]"]
    within = ask(worker, job, "insert", rows=[{"invoice_id": 7}, {"invoice_id": 7, "amount": "0"}])
    assert (within.status_code, list(within.json()["errors"])) == (409, ["rows[1]"])
    assert rows_in(worker, job) == INVOICES
    assert_counted()


def test_without_key_columns_the_whole_row_is_the_key(worker: Worker, job: dict[str, Any]) -> None:
    """N18: the same row again is the same row, however its numbers were written; nothing can be merged on nothing."""
    ask(worker, job, "insert", rows=[{"batch": 1, "of": {"x": [1.0]}}])
    again = ask(worker, job, "insert", rows=[{"of": {"x": [1]}, "batch": 1.0}, {"batch": 1}, {"batch": True}]).json()
    assert (again["inserted"], again["unchanged"], again["rows"]) == (2, 1, 3)
    refused = ask(worker, job, "upsert", rows=[{"batch": 1}])
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["table"])
    assert_counted()


def test_key_columns_stay_as_they_were_declared(worker: Worker, job: dict[str, Any]) -> None:
    ask(worker, job, "table", key=["a", "b"])
    for verb, body in (("table", {"key": ["a"]}), ("upsert", {"key": ["b", "a"], "rows": [{"a": 1, "b": 2}]})):
        refused = ask(worker, job, verb, **body)
        assert (refused.status_code, refused.json()["code"]) == (409, "store_conflict")
        assert list(refused.json()["errors"]) == ["key"]
    assert StoreTable.objects.get().key == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (1, "rows[0]"),
        ({}, "rows[0]"),
        ({"": 1, "id": 1}, "rows[0]"),
        ({"x" * 101: 1, "id": 1}, "rows[0]"),
        ({"id": 1, "note": "nul \0"}, "rows[0]"),
        ({"id": 1, "nul \0": 1}, "rows[0]"),
        ({"id": 1, "half": "\ud800"}, "rows[0]"),
        ({"id": 1, "long": "x" * 65_536}, "rows[0]"),
        ({"id": 1} | {str(number): 1 for number in range(200)}, "rows[0]"),
        ({"other": 1}, "rows[0].id"),
        ({"id": None}, "rows[0].id"),
        ({"id": [1]}, "rows[0].id"),
    ],
)
def test_rows_that_cannot_be_kept_are_refused_by_name(
    worker: Worker, job: dict[str, Any], row: Any, field: str
) -> None:
    refused = ask(worker, job, "upsert", rows=[row], key=["id"])
    assert (refused.status_code, refused.json()["code"], list(refused.json()["errors"])) == (
        400,
        "validation_error",
        [field],
    )
    assert not StoreTable.objects.exists()  # not even the table was made


def test_rows_are_found_by_their_columns(worker: Worker, job: dict[str, Any]) -> None:
    """By key, by any column, by none; null and missing are the same; equal is equal, however a number is written."""
    rows = [{"id": number, "even": number % 2 == 0, "note": None if number == 4 else "x"} for number in range(6)]
    ask(worker, job, "insert", rows=rows, key=["id"])
    assert rows_in(worker, job, where={"id": 3.0}) == [rows[3]]
    assert rows_in(worker, job, where={"id": "3"}) == []
    assert rows_in(worker, job, where={"even": True, "note": "x"}) == [rows[0], rows[2]]
    assert rows_in(worker, job, where={"note": None}) == [rows[4]]
    assert rows_in(worker, job, where={"missing": None}) == rows
    assert rows_in(worker, job, where={"id": 3, "even": True}) == []
    assert rows_in(worker, job, limit=2) == rows


def test_a_page_has_no_more_bytes_than_an_answer_may(
    worker: Worker, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.store.PAGE_BYTES", 30)
    rows = [{"n": number, "text": "x" * size} for number, size in enumerate((1, 60, 1, 1, 1))]
    ask(worker, job, "insert", rows=rows)
    answer = ask(worker, job, "read").json()
    assert [row["n"] for row in answer["rows"]] == [0, 1]
    assert rows_in(worker, job) == rows


def test_rows_are_deleted_by_filter_and_all_only_when_that_is_said(
    worker: Worker, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.store_writing.MOST_DELETED", 2)
    ask(worker, job, "insert", rows=[{"n": number, "odd": bool(number % 2)} for number in range(7)])
    assert ask(worker, job, "delete", where={"n": 0}).json() == {"deleted": 1, "more": False}
    assert ask(worker, job, "delete", where={"odd": True}).json() == {"deleted": 2, "more": True}
    assert ask(worker, job, "delete", where={"odd": True}).json() == {"deleted": 1, "more": False}
    assert ask(worker, job, "delete", where={"odd": True}).json() == {"deleted": 0, "more": False}
    assert [row["n"] for row in rows_in(worker, job)] == [2, 4, 6]
    for body in ({}, {"where": {}}, {"where": {"n": 2}, "everything": True}):
        refused = ask(worker, job, "delete", **body)
        assert (refused.status_code, list(refused.json()["errors"])) == (400, ["where"])
    assert_counted()
    ask(worker, job, "delete", everything=True)
    ask(worker, job, "delete", everything=True)
    assert kept() == []
    assert ask(worker, job, "delete", "never_made", everything=True).json() == {"deleted": 0, "more": False}
    assert_counted()


def test_a_stale_attempt_changes_nothing(
    start_run: StartRun, worker: Worker, job: dict[str, Any], new_worker: Callable[..., Worker], clock: Clock
) -> None:
    """N25: once the lease has passed on, no verb does anything, and the one who has it now goes on."""
    ask(worker, job, "insert", rows=INVOICES, key=["invoice_id"])
    stranger = new_worker("worker-2")
    verbs: list[tuple[str, dict[str, Any]]] = [
        ("table", {"table": "other", "key": ["id"]}),
        ("insert", {"rows": [{"invoice_id": 3}]}),
        ("insert", {"table": "other", "rows": [{"invoice_id": 3}]}),
        ("upsert", {"rows": [{"invoice_id": 1}]}),
        ("delete", {"everything": True}),
        ("read", {}),
    ]
    before, told = kept(), StoreTable.objects.values().get()
    for who in (stranger, worker):
        if who is worker:
            clock.advance(worker.session["leaseSeconds"] + 1)
        for verb, body in verbs:
            refused = ask(who, job, verb, **body)
            assert (refused.status_code, refused.json()["code"]) == (409, "stale_execution"), verb
    assert (kept(), StoreTable.objects.values().get()) == (before, told)


def test_an_ended_attempt_and_a_foreign_one_write_nothing(
    worker: Worker, job: dict[str, Any], sibling_key: str, foreign_key: str, new_worker: Callable[..., Worker]
) -> None:
    for key in (sibling_key, foreign_key):
        other = new_worker("other", key=key)
        assert ask(other, job, "insert", rows=INVOICES).status_code == 404
        assert ask(other, job, "read").status_code == 404
    assert ask(worker, job | {"executionId": unknown_id()}, "insert", rows=INVOICES).status_code == 404
    worker.report(job, output=1)
    assert ask(worker, job, "insert", rows=INVOICES).json()["code"] == "stale_execution"
    assert not StoreTable.objects.exists()


def test_tables_of_other_applications_and_environments_are_others(
    start_run: StartRun,
    worker: Worker,
    job: dict[str, Any],
    new_worker: Callable[..., Worker],
    application: Application,
    environments: dict[str, Environment],
) -> None:
    """N22: one name, and never the same rows."""
    from pipelines import keys
    from pipelines.creation import Place

    ask(worker, job, "insert", rows=INVOICES)
    staging = environments["staging"]
    start_run("first", in_place=Place(application.workspace_id, application.id, staging.id, staging.slug))
    other = new_worker("other", key=keys.issue_key(application, staging)[1])
    theirs = other.take()
    assert rows_in(other, theirs) == []
    ask(other, theirs, "insert", rows=[{"invoice_id": 7}])
    assert rows_in(worker, job) == INVOICES
    assert rows_in(other, theirs) == [{"invoice_id": 7}]


def test_quotas_hold_to_the_last_row_and_byte(worker: Worker, job: dict[str, Any], settings: Any) -> None:
    """Just as many as there may be are kept; one more, and nothing of its request is."""
    settings.RECOURSE_STORE_TABLES, settings.RECOURSE_STORE_TABLE_ROWS = 2, 3
    settings.RECOURSE_STORE_ROW_BYTES = len('{"n":1}')
    assert ask(worker, job, "insert", rows=[{"n": number} for number in range(3)]).status_code == 200
    for verb, told in (("insert", {}), ("insert", {"table": "other", "rows": [{"n": number} for number in range(4)]})):
        refused = ask(worker, job, verb, **{"rows": [{"n": 2}, {"n": 3}], **told})
        assert (refused.status_code, refused.json()["code"]) == (409, "store_quota_exceeded")
        assert "at most 3 rows" in refused.json()["detail"]
    assert ask(worker, job, "insert", rows=[{"n": 2}]).status_code == 200  # it is there already
    assert ask(worker, job, "insert", "wide", rows=[{"n": 10}]).json()["code"] == "validation_error"
    settings.RECOURSE_STORE_BYTES = len('{"n":1}') * 5
    assert ask(worker, job, "insert", "other", rows=[{"n": 1}, {"n": 2}]).json()["bytes"] == 14
    full = ask(worker, job, "insert", "other", rows=[{"n": 3}])
    assert (full.json()["code"], "at most 35 bytes" in full.json()["detail"]) == ("store_quota_exceeded", True)
    third = ask(worker, job, "table", "third", key=["n"])
    assert (third.json()["code"], "at most 2 tables" in third.json()["detail"]) == ("store_quota_exceeded", True)
    ask(worker, job, "delete", "other", where={"n": 1})
    assert ask(worker, job, "insert", "other", rows=[{"n": 3}]).status_code == 200
    assert StoreTable.objects.count() == 2
    assert_counted()


def test_rows_outlive_the_retention_of_their_run(worker: Worker, job: dict[str, Any], clock: Clock) -> None:
    ask(worker, job, "insert", rows=INVOICES)
    worker.report(job, output=1)
    run_id = Run.objects.get().id
    clock.advance(days=10)
    assert retention.remove_older_than(5) == 1
    assert not Run.objects.exists()
    assert [one[2] for one in kept()] == [run_id, run_id]


NAMES = ["pipelines_run", "recourse_store.rows", 'x"; DROP TABLE recourse_store.rows; --', "../etc", "%s", "a b", ""]
VALUES = ["'; RESET ROLE; DELETE FROM pipelines_run; --", "%(table)s", "$1", "\\'; --", "{}", '"}', "null"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_never_a_piece_of_a_statement(worker: Worker, job: dict[str, Any], name: str) -> None:
    """N22: what could be another table's name is only a name of one's own, or is refused."""
    runs = Run.objects.count()
    answer = ask(worker, job, "insert", name, rows=[{"n": 1}])
    assert answer.status_code == (200 if name in NAMES[:2] else 400)
    if answer.status_code == 200:
        assert rows_in(worker, job, name) == [{"n": 1}]
    else:
        assert list(answer.json()["errors"]) == ["table"]
    assert Run.objects.count() == runs
    assert_counted()


@pytest.mark.parametrize("value", VALUES)
def test_columns_and_values_come_back_as_they_are(worker: Worker, job: dict[str, Any], value: str) -> None:
    """N22: as a column, a key column, a value and in filters."""
    row = {value: value, "n": [value]}
    assert ask(worker, job, "upsert", rows=[row], key=[value]).status_code == 200
    assert rows_in(worker, job, where={value: value}) == [row]
    assert rows_in(worker, job, where={"n": [value]}) == [row]
    assert rows_in(worker, job, where={value: value + "x"}) == []
    assert ask(worker, job, "delete", where={value: value}).json()["deleted"] == 1
    assert Run.objects.exists()


def test_the_role_can_do_nothing_but_work_on_rows(job: dict[str, Any]) -> None:
    """N22: with its own rights it neither reads nor writes any other table, nor makes anything, nor becomes another."""
    others = query(
        "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm')"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'recourse_store')"
    )
    assert len(others) > 50

    def may(statement: str) -> bool:
        try:
            with transaction.atomic():
                execute("SET LOCAL ROLE recourse_store")
                execute(statement)
                transaction.set_rollback(True)
        except DatabaseError:
            return False
        return True

    for (name,) in others:
        for statement in (f"TABLE {name} LIMIT 1", f"DELETE FROM {name}", f"INSERT INTO {name} DEFAULT VALUES"):
            assert not may(statement), statement
    for statement in (
        "CREATE TABLE recourse_store.more (n integer)",
        "CREATE TABLE public.more (n integer)",
        "CREATE ROLE more",
        "TRUNCATE recourse_store.rows",
        "ALTER TABLE recourse_store.rows DISABLE TRIGGER ALL",
        "SELECT recourse_store_open()",
        "GRANT recourse_store TO PUBLIC",
        "SELECT pg_read_file('PG_VERSION')",
        "COPY recourse_store.rows TO PROGRAM 'true'",
    ):
        assert not may(statement), statement
    for statement in ("TABLE recourse_store.rows", "DELETE FROM recourse_store.rows"):
        assert may(statement), statement
    rights = query(
        "SELECT rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls,"
        " EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid)"
        " FROM pg_roles r WHERE rolname = 'recourse_store'"
    )
    assert rights == [(False,) * 7]
    assert store_role.why_closed() == ""


def test_after_a_statement_the_console_is_itself_again(worker: Worker, job: dict[str, Any]) -> None:
    """Also after one that was refused."""
    myself = query("SELECT current_user")
    ask(worker, job, "insert", rows=INVOICES, key=["invoice_id"])
    assert query("SELECT current_user") == myself
    assert ask(worker, job, "insert", rows=[{"invoice_id": 1}]).status_code == 409
    assert query("SELECT current_user") == myself


def test_a_table_takes_its_rows_along(worker: Worker, job: dict[str, Any]) -> None:
    ask(worker, job, "insert", rows=INVOICES)
    ask(worker, job, "insert", "other", rows=INVOICES)
    StoreTable.objects.get(name="invoices").delete()
    assert query("SELECT count(*) FROM recourse_store.rows") == [(2,)]
    assert_counted()
