"""Reads and writes as statements of SQLAlchemy Core: it alone quotes names, and values are bound. No database here.

An upsert is one statement for many rows where the database has one (PostgreSQL, MySQL, MariaDB), else two under locks
that keep others from between them (SQL Server). Serves N12, N13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from recourse.adapters.base import INVALID, MISCONFIGURED, Op, Row, failure

MOST_ROWS = 1_000  # SQL Server takes no more in one VALUES
# Values that one statement may bind, with room for a few of its own
MOST_VALUES: Mapping[str, int] = {"postgresql": 60_000, "mysql": 60_000, "mariadb": 60_000, "mssql": 2_000}
# what makes an index one of some rows, or of the beginnings of values
PARTLY = (("postgresql", "where"), ("mssql", "where"), ("mysql", "length"))
LOCKS = "WITH (UPDLOCK, HOLDLOCK)"  # SQL Server: the keys that are missing too stay locked to the end


def select(table: sa.Table, where: Row, limit: int | None) -> sa.Select[Any]:
    """All columns of the rows whose columns equal `where`; a list or tuple is any of its values, None is NULL."""
    unknown = sorted(set(where) - set(table.c.keys()))
    if unknown:
        raise failure(INVALID, f"{table.name} has no column {', '.join(map(repr, unknown))}", False)
    found = sa.select(table)
    for name, value in where.items():
        column = table.c[name]
        found = found.where(column.in_(list(value)) if isinstance(value, list | tuple | set) else column == value)
    return found if limit is None else found.limit(limit)


def present(table: sa.Table, key: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> sa.Select[Any]:
    """How many of these keys the table has."""
    alternatives = [sa.and_(*(table.c[name] == value for name, value in zip(key, one, strict=True))) for one in keys]
    return sa.select(sa.func.count()).select_from(table).where(sa.or_(*alternatives))


def writes(
    dialect: str, table: sa.Table, op: Op, rows: Sequence[Row], columns: Sequence[str], key: Sequence[str]
) -> list[sa.Executable]:
    """The statements, in order, that write one chunk of checked rows."""
    values = [{name: row[name] for name in columns} for row in rows]
    if op == "insert":
        return [sa.insert(table).values(values)]
    rest = [name for name in columns if name not in key]
    if dialect == "postgresql":
        return [_on_conflict(table, values, key, rest)]
    if dialect in ("mysql", "mariadb"):
        merged = mysql.insert(table).values(values)
        # where there is nothing but the key, the row is set to what it is
        return [merged.on_duplicate_key_update({name: merged.inserted[name] for name in rest or list(key)})]
    return _update_and_insert(table, values, columns, key, rest)


def unique_keys(table: sa.Table) -> list[frozenset[str]]:
    """The sets of columns of which the table holds each value once."""
    found = [frozenset(column.name for column in table.primary_key)]
    found += [
        frozenset(column.name for column in one.columns)
        for one in table.constraints
        if isinstance(one, sa.UniqueConstraint)
    ]
    for index in table.indexes:
        some = [index.dialect_options[name].get(what) for name, what in PARTLY]
        if index.unique and not any(map(_given, some)) and all(isinstance(one, sa.Column) for one in index.expressions):
            found.append(frozenset(column.name for column in index.columns))
    return [one for one in found if one]


def check_key(dialect: str, table: sa.Table, columns: Sequence[str], key: Sequence[str]) -> None:
    """Refuses an upsert that the database would not carry out on these key columns, or on others as well."""
    unique = unique_keys(table)
    if frozenset(key) not in unique:
        told = f"{table.name} has no primary key or unique index on {', '.join(key)}: an upsert would make duplicates"
        raise failure(MISCONFIGURED, told, False)
    others = [one for one in unique if one != frozenset(key) and one <= set(columns)]
    if dialect in ("mysql", "mariadb") and others:
        told = f"{table.name} is also unique by {', '.join(sorted(others[0]))}, which MySQL would merge on too"
        raise failure(MISCONFIGURED, f"{told}: leave those columns out", False)


def _given(option: Any) -> bool:
    return option is not None and option != {}


def _on_conflict(
    table: sa.Table, values: list[dict[str, Any]], key: Sequence[str], rest: Sequence[str]
) -> sa.Executable:
    merged = postgresql.insert(table).values(values)
    if not rest:
        return merged.on_conflict_do_nothing(index_elements=list(key))
    return merged.on_conflict_do_update(index_elements=list(key), set_={name: merged.excluded[name] for name in rest})


def _update_and_insert(
    table: sa.Table, values: list[dict[str, Any]], columns: Sequence[str], key: Sequence[str], rest: Sequence[str]
) -> list[sa.Executable]:
    """Not MERGE, which under load raises what these two do not; the locks make them one."""
    incoming = sa.values(*(sa.column(name, table.c[name].type) for name in columns), name="incoming").data(
        [tuple(_typed(row[name], table.c[name].type) for name in columns) for row in values]
    )
    same = sa.and_(*(table.c[name] == incoming.c[name] for name in key))
    there = sa.select(sa.literal_column("1")).select_from(table).with_hint(table, LOCKS, "mssql").where(same).exists()
    missing = sa.select(*(incoming.c[name] for name in columns)).where(~there)
    insert = sa.insert(table).from_select(list(columns), missing)
    if not rest:
        return [insert]
    update = sa.update(table).with_hint(LOCKS, dialect_name="mssql").where(same)
    return [update.values({name: incoming.c[name] for name in rest}), insert]


def _typed(value: Any, kind: sa.types.TypeEngine[Any]) -> Any:
    """A NULL says its type: SQL Server would take a column of nothing but NULLs for integers."""
    return sa.cast(sa.null(), kind) if value is None else value
