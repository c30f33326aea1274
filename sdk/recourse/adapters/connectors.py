"""Connectors: which outside systems handlers may reach, by name, as the TOML file that RECOURSE_CONNECTORS names says.

    [postgres]
    kind = "postgresql"
    url = "env:WAREHOUSE_URL"
    [postgres.tables.invoices]
    key = ["invoice_id"]
    max_rows = 10000

What is secret is never in the file: `env:NAME` is a variable's value, `file:PATH` the first line of a file, read each
time an attempt asks. Neither is logged or told. A setting that a kind does not have is refused by name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from recourse.adapters.base import MISCONFIGURED, Adapter, Ground, RowLimits, failure
from recourse.context import StageContext
from recourse.errors import StageFailure

T = TypeVar("T")
VARIABLE = "RECOURSE_CONNECTORS"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")
RESERVED = frozenset({"names", "of"})
RECIPIENT = ("organisation", "service", "billing", "retention")
SECRET_HEADER = re.compile("auth|cookie|key|password|secret|token", re.IGNORECASE)
MOST_BYTES = 1024 * 1024


class Settings:
    """One table of the file. Each setting is taken once; what is left over is refused by `done`."""

    def __init__(self, where: str, table: Any, secrets: list[str] | None = None) -> None:
        if not isinstance(table, dict):
            raise invalid(f"{where} is a table")
        self.where = where
        self.secrets = [] if secrets is None else secrets  # what its references stood for
        self._left = dict(table)

    def text(self, name: str, default: str | None = None, *, secret: bool = False) -> str | None:
        """A text, or what it refers to. A secret one must refer."""
        value = self._left.pop(name, default)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise invalid(f"{self.where}.{name} is a text")
        if secret and not value.startswith(("env:", "file:")):
            raise invalid(f"{self.where}.{name} is a secret: name where it is, as env:NAME or file:PATH")
        found = resolved(f"{self.where}.{name}", value)
        if found != value:
            self.secrets.append(found)
        return found

    def needed(self, name: str, **more: Any) -> str:
        value = self.text(name, **more)
        if value is None:
            raise invalid(f"{self.where} lacks {name}")
        return value

    def number(self, name: str, default: Any, least: float, most: float, *, whole: bool = False) -> Any:
        value = self._left.pop(name, default)
        if value is None:
            return None
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not fits or not least <= value <= most:
            kind = "a whole number" if whole else "a number"
            raise invalid(f"{self.where}.{name} is {kind} from {least:g} to {most:g}, not {value!r}")
        return value

    def count(self, name: str, default: int | None, least: int, most: int) -> Any:
        return self.number(name, default, least, most, whole=True)

    def flag(self, name: str, default: bool) -> bool:
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise invalid(f"{self.where}.{name} is true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._left.pop(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise invalid(f"{self.where}.{name} is a list of texts")
        if len(set(value)) < len(value):
            raise invalid(f"{self.where}.{name} names one twice")
        return tuple(value)

    def table(self, name: str) -> Settings:
        return Settings(f"{self.where}.{name}", self._left.pop(name, {}), self.secrets)

    def tables(self, name: str) -> dict[str, Settings]:
        under = self.table(name)
        return {key: Settings(f"{under.where}.{key}", value, self.secrets) for key, value in under.rest().items()}

    def names(self) -> list[str]:
        return list(self._left)

    def rest(self) -> dict[str, Any]:
        left, self._left = self._left, {}
        return left

    def limits(self, max_rows: int) -> RowLimits:
        most = self.count("max_rows", max_rows, 1, 10_000_000)
        return RowLimits(
            most, self.count("min_rows", 0, 0, most), self.count("max_rows_per_attempt", None, 1, 1_000_000_000)
        )

    def done(self) -> None:
        if self._left:
            raise invalid(f"{self.where} has settings that there are not: {', '.join(sorted(self._left))}")


class Adapters:
    """`ctx.adapters`: the adapter of each connector by its name, made when it is first asked for (N8, N15).

    `of(Http, "crm")` is the same for type checkers. Raises `StageFailure` with CONNECTOR_INVALID, which no retry helps,
    for a name that is not configured, and names those that are.
    """

    def __init__(self, stage: StageContext, path: str | os.PathLike[str] | None = None) -> None:
        self._stage = stage
        self._path = path
        self._made: dict[str, Adapter] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._get(name)

    def of(self, kind: type[T], name: str) -> T:
        found = self._get(name)
        if not isinstance(found, kind):
            raise invalid(f"{name} is a connector of another kind than {kind.__name__}")
        return found

    @property
    def names(self) -> list[str]:
        return sorted(tables(self._path))

    def _get(self, name: str) -> Adapter:
        if name not in self._made:
            self._made[name] = adapter(self._stage, name, tables(self._path))
        return self._made[name]


def adapter(stage: StageContext, name: str, configured: Mapping[str, Any]) -> Adapter:
    """The adapter of a connector, for one attempt."""
    if name not in configured:
        there = ", ".join(sorted(configured)) or f"none: {VARIABLE} names the file that configures them"
        raise invalid(f"no connector is called {name!r}; there are: {there}")
    settings = Settings(name, configured[name])
    kind = settings.needed("kind")
    if kind not in KINDS:
        raise invalid(f"{name}.kind is one of {', '.join(sorted(KINDS))}, not {kind!r}")
    told = settings.table("recipient")
    recipient = {field: (told.text(field) or "").strip() for field in RECIPIENT}
    told.done()
    settings.secrets.clear()  # to whom it sends is none
    ground = Ground(stage, name, recipient if any(recipient.values()) else None, settings.secrets)
    made = KINDS[kind](ground, settings, kind)
    settings.done()
    return made


def tables(path: str | os.PathLike[str] | None = None) -> Mapping[str, Any]:
    """The tables of the file by connector; none where no file is named. Read again once the file has changed."""
    named = path or os.environ.get(VARIABLE)
    if not named:
        return {}
    try:
        about = Path(named).stat()
    except OSError as error:
        raise invalid(f"the file that {VARIABLE} names cannot be read: {error.strerror}") from error
    return _read(str(named), about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4)
def _read(path: str, changed: int, size: int) -> Mapping[str, Any]:
    if size > MOST_BYTES:
        raise invalid(f"the file that {VARIABLE} names has more than {MOST_BYTES} bytes")
    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise invalid(f"the file that {VARIABLE} names is no TOML: {error}") from error
    for name in found:
        if not NAME.fullmatch(name) or name in RESERVED:
            raise invalid(f"{name!r} cannot be a connector's name: letters, digits and _, not {', '.join(RESERVED)}")
    return found


def resolved(where: str, value: str) -> str:
    """What an `env:NAME` or `file:PATH` stands for; any other text is itself."""
    how, _, name = value.partition(":")
    if how == "env":
        found = os.environ.get(name, "")
        if not found:
            raise invalid(f"{where} refers to the variable {name}, which is not set")
        return found
    if how == "file":
        try:
            lines = Path(name).read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise invalid(f"{where} refers to a file that cannot be read") from error
        if not lines or not lines[0].strip():
            raise invalid(f"{where} refers to an empty file")
        return lines[0].strip()
    return value


def invalid(message: str) -> StageFailure:
    return failure(MISCONFIGURED, message, False)


def _http_settings(settings: Settings, url: str) -> Any:
    from recourse.adapters.http import HttpSettings, checked_url, is_header

    headers = settings.table("headers")
    sent = {name: headers.needed(name, secret=bool(SECRET_HEADER.search(name))) for name in headers.names()}
    token = settings.text("token", secret=True)
    told = {**sent, "authorization": token or ""}
    if wrong := [name for name, value in told.items() if not is_header(name, value)]:
        raise invalid(f"{settings.where}: the header {wrong[0]!r} is printable ASCII, without blanks around it")
    return HttpSettings(
        url=checked_url(settings.where, url),
        token=token,
        headers=sent,
        idempotency_header=settings.text("idempotency_header"),
        retries=settings.count("retries", 3, 0, 10),
        backoff=settings.number("backoff", 2.0, 0, 300),
        max_wait=settings.number("max_wait", 60.0, 0, 3_600),
        timeout=settings.number("timeout", 30.0, 0.1, 3_600),
        max_bytes=settings.count("max_bytes", 10 * 1024 * 1024, 1, 1024**3),
        limits=settings.limits(1_000),
    )


def _http(ground: Ground, settings: Settings, kind: str) -> Adapter:
    from recourse.adapters.http import Http

    return Http(ground, _http_settings(settings, settings.needed("url")))


def _netsuite(ground: Ground, settings: Settings, kind: str) -> Adapter:
    from recourse.adapters.netsuite import Collection, NetSuite, NetSuiteSettings

    http = _http_settings(settings, settings.needed("url"))
    if http.idempotency_header:
        raise invalid(f"{ground.name}.idempotency_header: NetSuite knows no key for its records")
    collections = {}
    for name, one in settings.tables("collections").items():
        collections[name] = Collection(one.needed("record"), one.text("updated_field") or "lastModifiedDate")
        one.done()
    made = NetSuiteSettings(
        http=http,
        collections=collections,
        external_id=settings.text("external_id") or "externalId",
        expand=settings.flag("expand", True),
        date_format=settings.text("date_format") or "%m/%d/%Y",
        page_size=settings.count("page_size", 1_000, 1, 1_000),
        max_read_rows=settings.count("max_read_rows", 100_000, 1, 10_000_000),
    )
    return NetSuite(ground, made)


def _sql(ground: Ground, settings: Settings, kind: str) -> Adapter:
    from recourse.adapters.sql import Sql, SqlSettings, TableSettings

    tables = {}
    for name, one in settings.tables("tables").items():
        tables[name] = TableSettings(
            one.text("name") or name, one.texts("key"), one.text("schema"), one.limits(100_000)
        )
        one.done()
    queries = settings.table("queries")
    made = SqlSettings(
        kind=kind,
        url=settings.needed("url", secret=True),
        tables=tables,
        table=settings.text("table"),
        queries={name: queries.needed(name) for name in queries.names()},
        max_read_rows=settings.count("max_read_rows", 100_000, 1, 10_000_000),
        connect_timeout=settings.count("connect_timeout", 10, 1, 300),
    )
    if made.table is not None and made.table not in tables:
        raise invalid(f"{ground.name}.table is none of its tables")
    return Sql(ground, made)


def _files(ground: Ground, settings: Settings, kind: str) -> Adapter:
    from recourse.adapters.files import Files, FilesSettings

    made = FilesSettings(
        folder=Path(settings.needed("folder")),
        max_bytes=settings.count("max_bytes", 100 * 1024 * 1024, 1, 1024**3),
        limits=settings.limits(1_000_000),
    )
    return Files(ground, made)


KINDS: Mapping[str, Callable[[Ground, Settings, str], Adapter]] = {
    "http": _http,
    "netsuite": _netsuite,
    "postgresql": _sql,
    "mysql": _sql,
    "sqlserver": _sql,
    "files": _files,
}
