"""Real databases for the SQL adapter: one of its own on each server, gone with the test. None is ever mocked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from tests.services import service_url

INVOICES = {
    "postgresql": (
        'CREATE TABLE "in voices" (invoice_id varchar(20) PRIMARY KEY, amount numeric(10, 2), "select" text,'
        " number integer UNIQUE)"
    ),
    "mysql": (
        "CREATE TABLE `in voices` (invoice_id varchar(20) PRIMARY KEY, amount numeric(10, 2), `select` text,"
        " number integer UNIQUE)"
    ),
}
SEEN = {
    "postgresql": "CREATE TABLE seen (source varchar(9), item integer, PRIMARY KEY (source, item))",
    "mysql": "CREATE TABLE seen (source varchar(9), item integer, PRIMARY KEY (source, item))",
}
LOOSE = "CREATE TABLE loose (item integer, note varchar(20))"


class Database:
    """`kind` is the connector's; `url` its address, with the driver left to the adapter."""

    def __init__(self, kind: str, url: str, engine: sa.Engine) -> None:
        self.kind, self.url, self.engine = kind, url, engine
        for statement in (INVOICES[kind], SEEN[kind], LOOSE):
            self.run(statement)

    def run(self, text: str) -> list[tuple[Any, ...]]:
        with self.engine.begin() as connection:
            result = connection.exec_driver_sql(text)
            return [tuple(row) for row in result] if result.returns_rows else []

    def invoices(self) -> list[tuple[Any, ...]]:
        name = self.engine.dialect.identifier_preparer.quote("in voices")
        column = self.engine.dialect.identifier_preparer.quote("select")
        return self.run(f"SELECT invoice_id, amount, {column} FROM {name} ORDER BY invoice_id")


@contextmanager
def postgresql() -> Iterator[Database]:
    server = service_url("RECOURSE_TEST_SERVER_URL").replace("postgres://", "postgresql+psycopg://", 1)
    yield from _database("postgresql", server, "postgresql")


@contextmanager
def mysql() -> Iterator[Database]:
    server = service_url("RECOURSE_TEST_MYSQL_URL").replace("mysql://", "mysql+pymysql://", 1)
    yield from _database("mysql", server, "mysql")


def _database(kind: str, server: str, scheme: str) -> Iterator[Database]:
    name = f"recourse_adapters_{uuid.uuid4().hex[:12]}"
    admin = sa.create_engine(server, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    url = sa.make_url(server).set(database=name)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        yield Database(kind, url.set(drivername=scheme).render_as_string(hide_password=False), engine)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name}")
