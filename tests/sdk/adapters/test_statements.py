"""What SQLAlchemy's dialects make of an upsert. SQL Server's is proved by this alone: no server takes it here."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from recourse import StageFailure
from recourse.adapters import statements
from sqlalchemy.dialects import mssql, mysql, postgresql

INVOICES = sa.Table(
    "in]voices",
    sa.MetaData(),
    sa.Column("invoice_id", sa.String(20), primary_key=True),
    sa.Column("amount", sa.Numeric(10, 2)),
    sa.Column("select", sa.Text),
    schema="dbo",
)
SEEN = sa.Table("seen", sa.MetaData(), sa.Column("source", sa.Text), sa.Column("item", sa.Integer))
ROWS = [{"invoice_id": "a'", "amount": 1, "select": "x"}, {"invoice_id": "b", "amount": 2, "select": None}]
COLUMNS = ["invoice_id", "amount", "select"]


def compiled(statement: Any, dialect: Any = mssql) -> tuple[str, list[Any]]:
    made = statement.compile(dialect=dialect.dialect())
    return " ".join(str(made).split()), list(made.params.values())


def test_an_upsert_of_sql_server_updates_and_inserts_what_is_missing_under_one_lock() -> None:
    """N13: set-based, values bound, names quoted by SQLAlchemy, and the keys locked until the transaction ends."""
    update, insert = statements.writes("mssql", INVOICES, "upsert", ROWS, COLUMNS, ["invoice_id"])
    text, bound = compiled(update)
    target = "dbo.[in]]voices]"
    incoming = (
        "(VALUES (:param_1, :param_2, :param_3), (:param_4, :param_5, CAST(NULL AS TEXT)))"
        " AS incoming (invoice_id, amount, [select])"
    )
    assert text == (
        f"UPDATE {target} WITH (UPDLOCK, HOLDLOCK) SET amount=incoming.amount, [select]=incoming.[select]"
        f" FROM {target} WITH (UPDLOCK, HOLDLOCK), {incoming} WHERE {target}.invoice_id = incoming.invoice_id"
    )
    assert bound == ["a'", 1, "x", "b", 2]
    text, bound = compiled(insert)
    assert text == (
        f"INSERT INTO {target} (invoice_id, amount, [select])"
        f" SELECT incoming.invoice_id, incoming.amount, incoming.[select] FROM {incoming}"
        f" WHERE NOT (EXISTS (SELECT 1 FROM {target} WITH (UPDLOCK, HOLDLOCK)"
        f" WHERE {target}.invoice_id = incoming.invoice_id))"
    )
    assert bound == ["a'", 1, "x", "b", 2]


def test_rows_of_sql_server_that_are_nothing_but_their_key_are_only_inserted() -> None:
    rows = [{"source": "s", "item": 1}]
    (insert,) = statements.writes("mssql", SEEN, "upsert", rows, ["source", "item"], ["source", "item"])
    text, _ = compiled(insert)
    assert text.endswith("WHERE seen.source = incoming.source AND seen.item = incoming.item))")


def test_sql_server_binds_fewer_values_than_it_takes_at_most() -> None:
    """2,100, and 1,000 rows in one VALUES."""
    assert statements.MOST_VALUES["mssql"] < 2_100
    assert statements.MOST_ROWS <= 1_000


def test_plain_inserts_and_reads_of_sql_server() -> None:
    (insert,) = statements.writes("mssql", INVOICES, "insert", ROWS, COLUMNS, ["invoice_id"])
    assert compiled(insert)[0].startswith("INSERT INTO dbo.[in]]voices] (invoice_id, amount, [select]) VALUES (")
    text, bound = compiled(statements.select(INVOICES, {"select": "x", "amount": None}, 5))
    assert text.startswith("SELECT TOP ")
    assert text.endswith("[select] = :select_1 AND dbo.[in]]voices].amount IS NULL")
    assert "x" in bound


@pytest.mark.parametrize(
    ("name", "dialect", "merges"),
    [
        ("postgresql", postgresql, "ON CONFLICT (invoice_id) DO UPDATE SET amount = excluded.amount"),
        ("mysql", mysql, "ON DUPLICATE KEY UPDATE amount = VALUES(amount)"),
    ],
)
def test_others_have_one_statement(name: str, dialect: Any, merges: str) -> None:
    """N12"""
    (upsert,) = statements.writes(name, INVOICES, "upsert", ROWS, COLUMNS, ["invoice_id"])
    assert merges in compiled(upsert, dialect)[0]


def test_a_key_has_to_be_unique() -> None:
    with pytest.raises(StageFailure, match="no primary key or unique index on item"):
        statements.check_key("mssql", SEEN, ["source", "item"], ["item"])
    statements.check_key("mssql", INVOICES, COLUMNS, ["invoice_id"])


def test_an_index_over_part_of_the_rows_or_over_expressions_is_no_key() -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("a", sa.Integer), sa.Column("b", sa.Text), sa.Column("c", sa.Text))
    sa.Index("partly", table.c.a, unique=True, postgresql_where=table.c.b.is_(None))
    sa.Index("lowered", sa.func.lower(table.c.b), unique=True)
    sa.Index("beginning", table.c.b, unique=True, mysql_length=10)
    sa.Index("whole", table.c.c, table.c.a, unique=True)
    assert statements.unique_keys(table) == [frozenset({"a", "c"})]
