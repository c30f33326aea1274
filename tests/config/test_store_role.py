"""Who may open the workspace store: a superuser, a user who may make roles, one who may not; and databases at once.

On a server of their own, because a role belongs to all of a server's databases.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from psycopg import sql

from config import embedded
from config.environment import BASE_DIR

pytestmark = pytest.mark.embedded
OPEN = "SELECT recourse_store_open()"
SCHEMA = import_module("pipelines.migrations.0026_workspace_store").SCHEMA
USER = "console"


@dataclass(frozen=True)
class Server:
    """A PostgreSQL that nobody else uses; `console` is the user of whose databases it is asked."""

    socket: Path

    def connect(self, database: str = "postgres", user: str = embedded.USER) -> psycopg.Connection[Any]:
        params: dict[str, Any] = {"host": str(self.socket), "port": embedded.PORT, "dbname": database, "user": user}
        return psycopg.connect(**params, autocommit=True)

    def run(self, text: str) -> None:
        with self.connect() as conn:
            conn.execute(text)

    def manage(self, database: str, *arguments: str) -> str:
        """A command of the console's, as its user; what it said."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        address = f"postgres://{USER}@/{database}?host={self.socket}&port={embedded.PORT}"
        ended = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=BASE_DIR,
            env=kept | {"DATABASE_URL": address},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("own-server")
    attachment = embedded.attach(data_dir, throwaway=True)
    try:
        yield Server(embedded.socket_directory(data_dir))
    finally:
        attachment.release()


@pytest.fixture
def server(cluster: Server) -> Iterator[Server]:
    yield cluster
    with cluster.connect() as conn:
        for (name,) in conn.execute("SELECT datname FROM pg_database WHERE datname LIKE 'of_%'").fetchall():
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        conn.execute("DROP ROLE IF EXISTS recourse_store")
        conn.execute(f"DROP ROLE {USER}")


def made(server: Server, rights: str, count: int = 1) -> list[str]:
    """Databases of the console's user, who has these rights."""
    server.run(f"CREATE ROLE {USER} LOGIN {rights}")
    names = [f"of_console_{number}" for number in range(count)]
    for name in names:
        server.run(f"CREATE DATABASE {name} OWNER {USER}")
    return names


def works(conn: psycopg.Connection[Any]) -> bool:
    """Whether the console may work on rows as the role, and the role on nothing else."""
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE TABLE ours (n integer)")
        conn.execute("SET LOCAL ROLE recourse_store")
        conn.execute("DELETE FROM recourse_store.rows")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute("SELECT FROM ours")
    return True


@pytest.mark.parametrize("rights", ["SUPERUSER", "CREATEROLE NOSUPERUSER"])
def test_a_user_who_may_make_roles_gets_an_open_store(server: Server, rights: str) -> None:
    """N22: opening it again changes nothing."""
    (database,) = made(server, rights)
    with server.connect(database, USER) as conn:
        conn.execute(SCHEMA)
        assert works(conn)
        assert conn.execute(OPEN).fetchone() == ("",)
        assert works(conn)


@pytest.mark.parametrize("rights", ["SUPERUSER", "CREATEROLE NOSUPERUSER"])
def test_databases_make_the_role_in_the_same_moment(server: Server, rights: str) -> None:
    """Whichever comes second meets what another has just made, waits until that is sure, and goes on."""
    databases = made(server, rights, 4)
    start = Barrier(len(databases))

    def migrate(database: str) -> bool:
        with server.connect(database, USER) as conn:
            start.wait(30)
            with conn.transaction():
                conn.execute(SCHEMA)
            return works(conn)

    with ThreadPoolExecutor(len(databases)) as pool:
        assert all(pool.map(migrate, databases))


def test_another_consoles_user_who_may_make_roles_meets_a_role_that_is_not_its_own(server: Server) -> None:
    """A superuser's database has the role already; the other user makes do with it where the server lets it, and says
    what is missing where not: never a migration that fails."""
    (database,) = made(server, "CREATEROLE NOSUPERUSER")
    server.run("CREATE ROLE recourse_store NOLOGIN")
    with server.connect(database, USER) as conn:
        conn.execute(SCHEMA)
        ((why,),) = conn.execute(OPEN).fetchall()
        if why:
            server.run(f"GRANT recourse_store TO {USER}")
            assert conn.execute(OPEN).fetchone() == ("",)
        assert works(conn)


def test_a_console_whose_user_may_make_no_roles_is_told_what_to_run(server: Server) -> None:
    """By the real commands: the migrations go through, the check warns, and once that was run it warns no more."""
    (database,) = made(server, "NOCREATEROLE NOSUPERUSER")
    server.manage(database, "migrate", "-v0")
    warned = server.manage(database, "check", "--database", "default")
    assert "recourse.W021" in warned
    statements = f'CREATE ROLE recourse_store NOLOGIN; GRANT recourse_store TO "{USER}";'
    assert statements in warned
    server.run(statements)
    server.manage(database, "migrate", "-v0")
    assert "recourse.W021" not in server.manage(database, "check", "--database", "default")
    with server.connect(database, USER) as conn:
        assert works(conn)
