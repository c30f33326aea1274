"""Runs the tests that speak to the database once more, on a PostgreSQL server that is not the embedded one.

For `make test`. The server is the one at RECOURSE_TEST_SERVER_URL; when none answers, this says so and is content,
unless RECOURSE_REQUIRE_SERVICES=1. Arguments go to pytest. The exit code is pytest's. As a plugin of that pytest it
leaves out what another server cannot change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from config.environment import BASE_DIR, BY_NAME

SELECTED = "not embedded and not browser and not once and not prove"
# All that it asks of the database it makes up from the documents, and only to read it takes seconds.
MADE_UP = "tests/config/test_schema.py"
DATABASE_FIXTURES = {"db", "transactional_db", "live_server"}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path == BASE_DIR / MADE_UP else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not speaks_to_the_database(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if speaks_to_the_database(item)]


def speaks_to_the_database(item: pytest.Item) -> bool:
    fixtures = DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return bool(fixtures) or item.get_closest_marker("django_db") is not None


def main() -> int:
    url = os.environ.get("RECOURSE_TEST_SERVER_URL") or BY_NAME["RECOURSE_TEST_SERVER_URL"].default
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            version = connection.info.server_version // 10000
    except psycopg.OperationalError as error:
        required = os.environ.get("RECOURSE_REQUIRE_SERVICES") == "1"
        reason = str(error).strip().splitlines()[0]
        outcome = "failed" if required else "skipped"
        sys.stderr.write(f"second pass {outcome}: no PostgreSQL at RECOURSE_TEST_SERVER_URL ({reason})\n")
        return 1 if required else 0
    sys.stderr.write(f"second pass: PostgreSQL {version}\n")
    # The test database is made beside this name; the number keeps two runs on one server apart.
    database = urlsplit(url)._replace(path=f"/recourse_{os.getpid()}").geturl()
    pytest_command = [sys.executable, "-m", "pytest", "-p", "tests.second_pass", "-n", "2", "--dist", "loadgroup"]
    command = [*pytest_command, "-m", SELECTED, *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | {"DATABASE_URL": database}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
