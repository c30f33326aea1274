"""What each kind of connector can do, as data: documents, the console's screen and the adapters show this and no other.

Serves N10, N11, N13. A kind that passes a provider's key on says so; none makes a provider keep it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from recourse.adapters.base import Capabilities

NO_KEY = "no: none is sent"
ON_KEY = "on the key columns, set-based"
LIMITS = "of each write, and of an attempt"
ONE_TRANSACTION = "in chunks, one transaction"

HTTP = Capabilities(
    kind="http",
    name="HTTP API",
    read="GET",
    insert="POST, one for each row",
    upsert="PUT to path/key, one for each row",
    provider_key="where the connector names the provider's header",
    row_limits=LIMITS,
    proved="a real HTTP server",
)
KINDS: tuple[Capabilities, ...] = (
    Capabilities(
        kind="postgresql",
        name="PostgreSQL",
        read="by equality, or named queries",
        insert=ONE_TRANSACTION,
        upsert=f"{ON_KEY}: INSERT … ON CONFLICT",
        provider_key=NO_KEY,
        row_limits=LIMITS,
        proved="a real server, PostgreSQL 15",
    ),
    Capabilities(
        kind="mysql",
        name="MySQL, MariaDB",
        read="by equality, or named queries",
        insert=ONE_TRANSACTION,
        upsert=f"{ON_KEY}: INSERT … ON DUPLICATE KEY UPDATE",
        provider_key=NO_KEY,
        row_limits=LIMITS,
        proved="a real server, MariaDB 10.11",
    ),
    Capabilities(
        kind="sqlserver",
        name="SQL Server",
        read="by equality, or named queries",
        insert=ONE_TRANSACTION,
        upsert=f"{ON_KEY}: UPDATE, then INSERT of what is missing",
        provider_key=NO_KEY,
        row_limits=LIMITS,
        proved="its statements as compiled, no server",
    ),
    Capabilities(
        kind="netsuite",
        name="NetSuite",
        read="collections, by pages and filters",
        insert="POST, one for each record",
        upsert="PUT by external id, one for each record",
        provider_key=NO_KEY,
        row_limits=LIMITS,
        proved="a stand-in for its REST records, over HTTP",
    ),
    HTTP,
    Capabilities(
        kind="files",
        name="Files",
        read="JSON lines, CSV, bytes",
        insert="a new file; refused where there is one",
        upsert="by name: the file is replaced whole",
        provider_key=NO_KEY,
        row_limits=LIMITS,
        proved="a real folder",
    ),
    Capabilities(
        kind="workspace",
        name="Workspace store",
        read="by equality",
        insert="the same row again changes nothing",
        upsert="on the key columns",
        provider_key=NO_KEY,
        row_limits="quotas of the workspace",
        proved="the console's own database",
    ),
)
BY_KIND = {one.kind: one for one in KINDS}
HEADINGS = {
    "name": "Connector",
    "kind": "Kind",
    "read": "Read",
    "insert": "Insert",
    "upsert": "Upsert (merge)",
    "provider_key": "Provider's key",
    "row_limits": "Row limits",
    "proved": "Proved against",
}


def of_http(header: str | None) -> Capabilities:
    """What one HTTP connector can do: whether it passes keys on is its own."""
    return replace(HTTP, provider_key=f"passed on as {header}" if header else NO_KEY)


def as_markdown() -> str:
    """The table of `docs/reference/connectors.md`."""
    lines = [f"| {' | '.join(HEADINGS.values())} |", f"|{' --- |' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(_cell(one, name) for name in HEADINGS)} |" for one in KINDS]
    return "\n".join(lines)


def _cell(one: Capabilities, name: str) -> str:
    text = str(getattr(one, name))
    return f"`{text}`" if name == "kind" else text


if __name__ == "__main__":
    sys.stdout.write(f"{as_markdown()}\n")
