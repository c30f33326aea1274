"""Runs the tests that speak to the database once more, on a PostgreSQL server that is not the embedded one.

For `make test`. The server is the one at RECOURSE_TEST_SERVER_URL; when none answers, this says so and is content,
unless RECOURSE_REQUIRE_SERVICES=1. Arguments go to pytest. The exit code is pytest's. As a plugin of that pytest it
leaves out what another server cannot change, by the rule of docs/adr/0004: of each test its first case, where the
cases are not the database's own; of screens those that search and list.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from config.environment import BASE_DIR, BY_NAME, is_on

SELECTED = "not embedded and not browser and not once and not prove"
DATABASE_FIXTURES = {"db", "transactional_db", "live_server"}

# All that they ask of the database others ask too: made up from the documents, or said by another server.
LEFT_OUT = ("tests/config/test_schema.py", "tests/config/test_oidc.py")
SCREENS = "tests/console"
# Screens with statements of their own: they search, list, count and follow.
OWN_STATEMENTS = (
    "test_audit_pages.py",
    "test_backfill_pages.py",
    "test_bulk_pages.py",
    "test_dead_letter_pages.py",
    "test_pipeline_pages.py",
    "test_run_list.py",
    "test_run_live.py",
    "test_run_page.py",
    "test_search.py",
    "test_selection.py",
    "test_trigger_pages.py",
    "test_worker_page.py",
)
# Where each case is another statement, another guard of the database, another zone, another text, or a race.
EACH_CASE = (
    "tests/approvals/test_stays_as_put.py::",
    "tests/concurrency/",
    "tests/engine_model/",
    "tests/pipelines/test_audit_chain.py::",
    "tests/pipelines/test_blackouts.py::",
    "tests/pipelines/test_checkpoint_tampering.py::",
    "tests/pipelines/test_hostile_input.py::",
    "tests/pipelines/test_ledger_claims.py::",
    "tests/pipelines/test_list_filters.py::",
    "tests/pipelines/test_moves_guards.py::",
    "tests/pipelines/test_results_text.py::",
    "tests/recovery/test_tampered_reruns.py::",
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    path = collection_path.relative_to(BASE_DIR).as_posix() if collection_path.is_relative_to(BASE_DIR) else ""
    screen = path.startswith(f"{SCREENS}/test_") and collection_path.name not in OWN_STATEMENTS
    return True if screen or path in LEFT_OUT else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Last, so that the first case is the first of those that -k and -m leave."""
    begun: set[str] = set()
    kept, others = [], []
    for item in items:
        test, _, case = item.nodeid.partition("[")
        again = bool(case) and test in begun and not item.nodeid.startswith(EACH_CASE)
        if again or not speaks_to_the_database(item):
            others.append(item)
        else:
            begun.add(test)
            kept.append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def speaks_to_the_database(item: pytest.Item) -> bool:
    fixtures = DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return bool(fixtures) or item.get_closest_marker("django_db") is not None


def main() -> int:
    url = os.environ.get("RECOURSE_TEST_SERVER_URL") or BY_NAME["RECOURSE_TEST_SERVER_URL"].default
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            version = connection.info.server_version // 10000
    except psycopg.OperationalError as error:
        required = is_on(os.environ.get("RECOURSE_REQUIRE_SERVICES", ""))
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
