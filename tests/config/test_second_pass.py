"""The second pass of `make test`: on a server of one's own, what uses the database, or a reason why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from config.environment import BASE_DIR
from tests.second_pass import MADE_UP

NOBODY = "postgres://postgres@127.0.0.1:1/postgres"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=BASE_DIR, env=kept | environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(("required", "code", "outcome"), [("0", 0, "skipped"), ("1", 1, "failed")])
def test_without_a_server_it_says_so_and_fails_only_where_one_is_required(
    required: str, code: int, outcome: str
) -> None:
    ended = run("tests.second_pass", RECOURSE_TEST_SERVER_URL=NOBODY, RECOURSE_REQUIRE_SERVICES=required)
    assert ended.returncode == code
    assert ended.stderr.startswith(f"second pass {outcome}: no PostgreSQL at RECOURSE_TEST_SERVER_URL (")


def test_it_leaves_out_what_no_database_can_change_and_nothing_else() -> None:
    files = ["tests/config", "tests/pipelines/test_graph.py"]
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    leave_out = f"--ignore={MADE_UP}"
    all_of_them = run("pytest", *options, leave_out, *files, DATABASE_URL=NOBODY).stdout
    selected = run("pytest", *options, "-p", "tests.second_pass", *files, DATABASE_URL=NOBODY).stdout
    assert "tests/pipelines/test_graph.py::" in all_of_them
    assert "tests/pipelines/test_graph.py::" not in selected
    assert (BASE_DIR / MADE_UP).exists()
    assert f"{MADE_UP}::" not in selected
    assert selected.count("tests/config/test_clock.py::") == all_of_them.count("tests/config/test_clock.py::") > 0
