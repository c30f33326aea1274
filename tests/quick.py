"""What makes tests quick and changes nothing that they could show: each replaces something slow by its like."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

# Kept as they are through the session: no test changes them, and making them anew takes longer than most tests.
KEPT = {"django_migrations", "django_content_type", "auth_permission"}
SMALL_BYTES = 1_000_000
# As TRUNCATE does: whoever still writes is waited for. Triggers and foreign keys have no say.
EMPTY = """DO $$
DECLARE one text;
BEGIN
    PERFORM set_config('session_replication_role', 'replica', true);
    LOCK TABLE {all_of_them} IN EXCLUSIVE MODE;
    FOREACH one IN ARRAY ARRAY[{names}] LOOP
        EXECUTE 'DELETE FROM ' || one;
    END LOOP;
    DELETE FROM recourse_store.rows;
END $$"""


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an embedded database that has its tables: for copies, by `with_tables`."""
    from tests.config.console_process import manage

    directory = tmp_path_factory.mktemp("migrated")
    done = manage(directory, "migrate", "-v", "0", timeout=300)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def with_tables(migrated: Path, data_dir: Path) -> None:
    """For an `up` whose very first start is not what the test is about: making all tables is half of the work."""
    copy_of(migrated, data_dir)


def copy_of(migrated: Path, data_dir: Path) -> None:
    """`data_dir`, made where it is missing, with the tables of `migrated`."""
    data_dir.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", f"{migrated}/.", str(data_dir)], check=True)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, django_db_keepdb: bool, django_db_blocker: Any
) -> None:
    """Of the workers of a parallel run the first makes all tables; every worker's database is a copy of them."""
    from django.db import connection

    if "PYTEST_XDIST_WORKER" not in os.environ or django_db_keepdb:
        return
    template = _template()
    lock_path = Path(os.environ["RECOURSE_DATA"]) / "tables.lock"
    with lock_path.open("w") as lock, django_db_blocker.unblock():
        fcntl.flock(lock, fcntl.LOCK_EX)
        with connection._nodb_cursor() as cursor:
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", [template])
            missing = cursor.fetchone() is None
            if missing:
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(template)))
        if missing:
            _migrate(template)
    connection.settings_dict["TEST"]["TEMPLATE"] = template


def _template() -> str:
    """Of this run alone, which has a data directory of its own."""
    return f"{Path(os.environ['RECOURSE_DATA']).name}-tables"


def _migrate(database: str) -> None:
    from django.core.management import call_command
    from django.db import connection

    own = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = database
    try:
        call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
    finally:
        # whoever is connected to it keeps it from being copied
        connection.close()
        connection.settings_dict["NAME"] = own


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leaves no template on a server of one's own; the embedded one goes with the session."""
    url = os.environ.get("DATABASE_URL")
    if url and "PYTEST_XDIST_WORKER" not in os.environ and getattr(session.config.option, "numprocesses", None):
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(_template()))
        server_url = urlsplit(url)._replace(path="/postgres").geturl()
        with suppress(psycopg.OperationalError), psycopg.connect(server_url, autocommit=True) as server:
            server.execute(drop)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """The test database answers a commit before it is on disk, as the embedded one of the tests does."""
    from django.db import connection

    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            name = connection.ops.quote_name(connection.settings_dict["NAME"])
            cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        connection.close()


@pytest.fixture(autouse=True, scope="session")
def quick_passwords() -> None:
    """Hashing passwords slowly is a virtue that tests can do without."""
    from django.conf import settings

    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True, scope="session")
def one_chain_of_middleware() -> Iterator[None]:
    """A test's client is made anew; what stands before the views is not, unless a setting changes.

    Each chain looks at every static file there is, which takes longer than most requests.
    """
    from django.core.signals import setting_changed
    from django.test.client import ClientHandler

    load, kept = ClientHandler.load_middleware, []

    def load_once(handler: ClientHandler, *arguments: bool) -> None:
        if not kept:
            load(handler, *arguments)
            kept.append(handler._middleware_chain)
        handler._middleware_chain = kept[0]

    def forget(**_: object) -> None:
        kept.clear()

    ClientHandler.load_middleware = load_once
    setting_changed.connect(forget)
    yield
    setting_changed.disconnect(forget)
    ClientHandler.load_middleware = load


@pytest.fixture(autouse=True, scope="session")
def quick_emptying() -> Iterator[None]:
    """After a test that commits, rows are deleted where they are few.

    Django's flush gives every table and index a new file, and makes the permissions anew.
    """
    from django.test import TransactionTestCase

    flush = TransactionTestCase._fixture_teardown

    def empty(case: Any) -> None:
        if not _emptied():
            with _unguarded():
                flush(case)
            _empty_store()

    TransactionTestCase._fixture_teardown = empty
    yield
    TransactionTestCase._fixture_teardown = flush


def _empty_store() -> None:
    """Takes away what is in no table that Django knows of."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE recourse_store.rows")


@contextmanager
def _unguarded() -> Iterator[None]:
    """As the tables' owner may: what refuses to be emptied is switched off meanwhile."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT format('ALTER TABLE %s %%s TRIGGER %I', tgrelid::regclass, tgname) FROM pg_trigger"
            " WHERE NOT tgisinternal AND tgtype & 32 <> 0"  # TRUNCATE's
        )
        switches = [row[0] for row in cursor.fetchall()]
        for switch in switches:
            cursor.execute(switch % "DISABLE")
        try:
            yield
        finally:
            for switch in switches:
                cursor.execute(switch % "ENABLE")


def _emptied() -> bool:
    """Whether the tables could be emptied this way: as a superuser, and with none that has grown."""
    from django.db import connection

    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = [connection.ops.quote_name(name) for name in sorted(set(names) - KEPT)]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('is_superuser') = 'on'"
            " AND (SELECT max(pg_relation_size(name::regclass)) FROM unnest(%s::text[]) name) < %s",
            [tables, SMALL_BYTES],
        )
        if not cursor.fetchone()[0]:
            return False
        names_sql = ", ".join("'" + table.replace("'", "''") + "'" for table in tables)
        cursor.execute(EMPTY.format(all_of_them=", ".join(tables), names=names_sql))
    return True
