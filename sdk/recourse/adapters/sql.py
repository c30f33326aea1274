"""PostgreSQL, MySQL, MariaDB and SQL Server through SQLAlchemy Core: configured tables and named queries alone.

A write is checked whole, then carried out in chunks in one transaction: all of it or nothing. What its commit came to
is known unless the connection broke in it; then its effect is `unknown`, until an upsert, which may be repeated, has
settled it. Serves N12, N13, N19, N21, N26.

Not promised: anything on tables that know no transactions; and keys are compared here as Python does, not by collation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recourse.adapters import matrix
from recourse.adapters.base import (
    INVALID,
    MISCONFIGURED,
    REFUSED,
    ROW_LIMIT,
    UNKNOWN,
    UNREACHABLE,
    UPSTREAM,
    Capabilities,
    Ground,
    Op,
    Row,
    RowLimits,
    Written,
    failure,
)
from recourse.adapters.rows import Checked, check, chunks
from recourse.adapters.waits import wait_before
from recourse.effects import Effect
from recourse.errors import StageFailure
from recourse.texts import clean, shortened

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
except ImportError as missing:
    raise failure(
        MISCONFIGURED, 'the SQL adapters need SQLAlchemy and a driver: pip install "recourse[sql]"', False
    ) from missing
from recourse.adapters import statements

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlserver": "mssql+pyodbc"}
# schemes that name no driver
SCHEMES = {"postgresql": {"postgres", "postgresql"}, "mysql": {"mysql", "mariadb"}, "sqlserver": {"mssql", "sqlserver"}}
BACKENDS = {"postgresql": {"postgresql"}, "mysql": {"mysql", "mariadb"}, "sqlserver": {"mssql"}}
# what another try may get through: the database ended this transaction for the sake of others
DEADLOCKS = frozenset({"40001", "40P01", "1213", "1205"})
# of MySQL's own errors those that say that it takes nobody just now; those from 2000 on are of the connection
TAKES_NOBODY = frozenset({1040, 1053, 1129, 1203, 1226, 1927})
MOST_TOLD = 1_000
RETRIES = 2  # of one write
FIRST_WAIT, MOST_WAIT = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A table that may be read and written; an upsert merges on `key`."""

    name: str
    key: tuple[str, ...] = ()
    schema: str | None = None
    limits: RowLimits = field(default_factory=lambda: RowLimits(max_rows=100_000))


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """One database. `table` is the one meant where none is named; `queries` are texts with bound parameters."""

    kind: str
    url: str = field(repr=False)
    tables: Mapping[str, TableSettings]
    table: str | None = None
    queries: Mapping[str, str] = field(default_factory=dict)
    max_read_rows: int = 100_000
    connect_timeout: int = 10


class _Outcome:
    """What is known of one write over its tries, for its effect. `doubt`: a commit was not answered."""

    def __init__(self, effect: Effect) -> None:
        self._effect = effect
        self.doubt = False

    def begins(self) -> None:
        self._effect.unknown()

    def is_taken_back(self) -> None:
        if not self.doubt:
            self._effect.not_sent()

    def is_done(self, reference: str) -> None:
        self._effect.committed(reference)


class Sql:
    """`ctx.adapters.NAME` of kind `postgresql`, `mysql` or `sqlserver`."""

    def __init__(self, ground: Ground, settings: SqlSettings) -> None:
        self._ground = ground
        self._settings = settings
        self._engine = engine_of(ground.name, settings)
        ground.secrets += [str(self._engine.url.password or "")]
        self._known: dict[str, sa.Table] = {}
        self._written: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return self._ground.name

    @property
    def capabilities(self) -> Capabilities:
        return matrix.BY_KIND[self._settings.kind]

    async def read(
        self,
        where: Row | None = None,
        *,
        table: str | None = None,
        query: str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Rows of a configured table whose columns equal `where` (`"limit"` in it is the limit), or of a named query
        with `where` as its parameters. More than `max_read_rows` without a limit fail, as ROW_LIMIT_EXCEEDED.
        """
        filters = dict(where or {})
        limit = filters.pop("limit", limit)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise failure(INVALID, f"limit is a whole number from 0, not {limit!r}", False)
        self._ground.look()
        if query is None:
            chosen = self._table_settings(table)
            return await self._ground.in_thread(lambda: self._select(chosen, filters, limit))
        text = self._query(query, filters)
        return await self._ground.in_thread(lambda: self._fetch(text, filters, limit))

    async def write(self, rows: Sequence[Row], op: Op = "insert", *, table: str | None = None) -> Written:
        """Writes the rows, all or none of them, as one effect. `upsert` merges on the table's key columns.

        An insert that an earlier attempt of the epoch has done is left out; one that it left unknown is looked for by
        its keys first, and refused where the table has none configured.
        """
        chosen = self._table_settings(table)
        before = self._written[chosen.name]
        check(rows := list(rows), op, key=chosen.key, limits=chosen.limits, before=before)
        if not rows:
            return Written(0)
        self._ground.look()
        target = await self._ground.in_thread(lambda: self._reflected(chosen))
        checked = check(rows, op, key=chosen.key, limits=chosen.limits, columns=target.c.keys(), before=before)
        if op == "upsert":
            statements.check_key(self._engine.dialect.name, target, checked.columns, chosen.key)
        told = [op, chosen.schema, chosen.name, [dict(row) for row in checked.rows]]
        detail = {"table": chosen.name, "rows": len(checked.rows)}
        async with self._ground.effect("tool_side_effect", op, told, detail=detail) as effect:
            effect.not_sent()
            if op == "insert" and effect.already:
                effect.committed(effect.already.external_ref)
                return Written(len(checked.rows), len(checked.rows))
            doubtful = op == "insert" and effect.earlier is not None and effect.earlier.state == "unknown"
            if doubtful and not chosen.key:
                effect.unknown()
                told_so = f"an earlier attempt may have inserted these rows into {chosen.name}, which has no key here"
                raise failure(UNKNOWN, f"{told_so}: look first, or settle the effect", False)
            outcome = _Outcome(effect)
            write = partial(self._write, target, chosen, op, checked, doubtful, outcome)
            already = await self._until_known(write, op, outcome)
        self._written[chosen.name] += len(checked.rows)
        return Written(len(checked.rows), already)

    async def _until_known(self, write: Callable[[], int], op: Op, outcome: _Outcome) -> int:
        """Writes, a few times where that may help: what was rolled back for sure, and an upsert whose commit was not
        answered, since it comes to the same.
        """
        for retry in range(1, RETRIES + 2):
            outcome.begins()
            try:
                return await self._ground.in_thread(write)
            except StageFailure as failed:
                if retry > RETRIES or not failed.retryable or (outcome.doubt and op == "insert"):
                    raise
                self._ground.stage.log("info", f"{self.name} is tried again", why=failed.message)
            await self._ground.pause(wait_before(retry, FIRST_WAIT, MOST_WAIT))
        raise AssertionError("the last try returns or raises")

    def _write(
        self, table: sa.Table, chosen: TableSettings, op: Op, checked: Checked, doubtful: bool, outcome: _Outcome
    ) -> int:
        """All chunks in one transaction; how many rows were there already. Whatever is raised before the commit takes
        all back.
        """
        dialect = self._engine.dialect.name
        rows = checked.rows
        reference = f"{chosen.name}: {len(rows)} rows"
        if op == "upsert":  # in one order, so that two of them do not wait for each other in a circle
            rows = tuple(sorted(rows, key=lambda row: [(str(type(row[name])), str(row[name])) for name in chosen.key]))
        in_commit = False
        try:
            with self._translated(), self._engine.connect() as connection:
                if doubtful and self._present(connection, table, chosen.key, checked):
                    outcome.is_done(reference)
                    return len(rows)
                for part in chunks(rows, len(checked.columns), statements.MOST_ROWS, statements.MOST_VALUES[dialect]):
                    self._ground.stage.raise_if_stopped()
                    for statement in statements.writes(dialect, table, op, part, checked.columns, chosen.key):
                        connection.execute(statement)
                self._ground.stage.raise_if_stopped()
                in_commit = True
                connection.commit()
                outcome.is_done(reference)
        except BaseException:
            outcome.doubt = outcome.doubt or in_commit
            outcome.is_taken_back()
            raise
        return 0

    def _present(self, connection: sa.Connection, table: sa.Table, key: Sequence[str], checked: Checked) -> bool:
        """Whether the rows are there; some of them alone were not written by one transaction, and are refused."""
        keys = checked.keys(key)
        parts = chunks(keys, len(key), 200, 2_000)
        found = sum(connection.execute(statements.present(table, key, part)).scalar_one() for part in parts)
        if found not in (0, len(keys)):
            told = (
                f"{found} of {len(keys)} rows are in {table.name} already, by whoever wrote them: nothing was written"
            )
            raise failure(REFUSED, told, False)
        return bool(found)

    def _select(self, chosen: TableSettings, where: Row, limit: int | None) -> list[dict[str, Any]]:
        table = self._reflected(chosen)
        most = self._settings.max_read_rows
        statement = statements.select(table, where, most + 1 if limit is None else min(limit, most + 1))
        with self._translated(), self._engine.connect() as connection:
            return self._bounded(connection.execute(statement).mappings().all(), limit)

    def _fetch(self, text: sa.TextClause, parameters: Row, limit: int | None) -> list[dict[str, Any]]:
        most = self._settings.max_read_rows + 1 if limit is None else min(limit, self._settings.max_read_rows + 1)
        with self._translated(), self._engine.connect() as connection:
            # nothing of it is committed, whatever the text does
            result = connection.execution_options(stream_results=True).execute(text, dict(parameters))
            return self._bounded(result.mappings().fetchmany(most) if most else [], limit)

    def _bounded(self, rows: Sequence[Any], limit: int | None) -> list[dict[str, Any]]:
        most = self._settings.max_read_rows
        if len(rows) > most:
            told = f"more than {most} rows (max_read_rows of {self.name}): narrow it, or name a limit"
            raise failure(ROW_LIMIT, told, False)
        return [dict(row) for row in rows]

    def _query(self, name: str, parameters: Row) -> sa.TextClause:
        if name not in self._settings.queries:
            there = ", ".join(sorted(self._settings.queries)) or "none"
            raise failure(INVALID, f"{self.name} has no query {name!r}; there are: {there}", False)
        text = sa.text(self._settings.queries[name])
        asked = set(text.compile().params)
        if asked != set(parameters):
            told = f"the query {name!r} takes {', '.join(sorted(asked)) or 'no parameters'}"
            raise failure(INVALID, f"{told}, not {', '.join(sorted(parameters)) or 'none'}", False)
        return text

    def _table_settings(self, name: str | None) -> TableSettings:
        tables = self._settings.tables
        chosen = name or self._settings.table or (next(iter(tables)) if len(tables) == 1 else None)
        if chosen is None:
            raise failure(INVALID, f"name a table of {self.name}: {', '.join(sorted(tables)) or 'it has none'}", False)
        if chosen not in tables:
            there = ", ".join(sorted(tables)) or "none"
            raise failure(INVALID, f"{self.name} has no table {chosen!r}; there are: {there}", False)
        return tables[chosen]

    def _reflected(self, chosen: TableSettings) -> sa.Table:
        """The table as the database has it, read once for this attempt."""
        if chosen.name not in self._known:
            with self._translated(), self._engine.connect() as connection:
                try:
                    made = sa.Table(
                        chosen.name, sa.MetaData(), schema=chosen.schema, autoload_with=connection, resolve_fks=False
                    )
                except exc.NoSuchTableError as error:
                    told = f"the database of {self.name} has no table {chosen.name!r}"
                    raise failure(MISCONFIGURED, told, False) from error
            unknown = [name for name in chosen.key if name not in made.c]
            if unknown:
                raise failure(MISCONFIGURED, f"{chosen.name} has no key column {', '.join(unknown)}", False)
            self._known[chosen.name] = made
        return self._known[chosen.name]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What the driver raises, as a failure with a code. Nothing of the address or of the values is told."""
        try:
            yield
        except exc.SQLAlchemyError as error:
            # the driver's word alone: the statement of a thousand rows would fill a traceback
            raise self._failed(error) from getattr(error, "orig", None)

    def _failed(self, error: exc.SQLAlchemyError) -> StageFailure:
        cause = getattr(error, "orig", None) or error
        told = f"{self.name}: {shortened(clean(self._ground.hide(str(cause))).strip(), MOST_TOLD)}"
        state = str(getattr(cause, "sqlstate", None) or (cause.args[0] if cause.args else ""))
        if state in DEADLOCKS:
            return failure(UPSTREAM, told, True)
        if getattr(error, "connection_invalidated", False) or _is_away(error, cause):
            return failure(UNREACHABLE, told, True)
        if isinstance(error, exc.InterfaceError | exc.InternalError | exc.TimeoutError):
            return failure(UPSTREAM, told, True)
        return failure(REFUSED, told, False)


def _is_away(error: exc.SQLAlchemyError, cause: BaseException) -> bool:
    """Whether the database could not be reached, or broke off. MySQL calls much else operational too."""
    if not isinstance(error, exc.OperationalError):
        return False
    number = cause.args[0] if cause.args else None
    return not isinstance(number, int) or 2_000 <= number < 3_000 or number in TAKES_NOBODY


def engine_of(name: str, settings: SqlSettings) -> sa.Engine:
    """Connections are made for each call and closed after it: calls are few and large, and none of them is stale."""
    try:
        url = sa.make_url(settings.url)
        is_read = "@" not in (url.host or "")
    except (exc.ArgumentError, ValueError):
        is_read = False
    if not is_read:  # without its cause, which may quote the password: one with an @ ends up in host and port
        told = f"the url of {name} cannot be read as a database's address: signs of a password are written as %40"
        raise failure(MISCONFIGURED, told, False)
    if url.drivername in SCHEMES[settings.kind]:
        url = url.set(drivername=DRIVERS[settings.kind])
    if url.get_backend_name() not in BACKENDS[settings.kind]:
        told = f"the url of {name} is of {url.get_backend_name()}, and its kind is {settings.kind}"
        raise failure(MISCONFIGURED, told, False)
    seconds = "timeout" if settings.kind == "sqlserver" else "connect_timeout"
    try:
        return sa.create_engine(
            url,
            poolclass=sa.NullPool,
            hide_parameters=True,
            connect_args={seconds: settings.connect_timeout},
        )
    except ImportError as error:
        told = f"{name} needs the driver {url.drivername}: {error}"
        raise failure(MISCONFIGURED, f'{told}; pip install "recourse[sql]", or name another driver', False) from error
