"""The second pass of `make test`: on a server of one's own, what uses the database, or a reason why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from config.environment import BASE_DIR
from tests.second_pass import EACH_CASE, LEFT_OUT, OWN_STATEMENTS, SCREENS

NOBODY = "postgres://postgres@127.0.0.1:1/postgres"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=BASE_DIR, env=kept | environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(("required", "code", "outcome"), [("0", 0, "skipped"), ("1", 1, "failed")])
def test_without_a_server_it_says_so_and_fails_only_where_one_is_required(
    required: str, code: int, outcome: str
) -> None:
    ended = run("tests.second_pass", RECOURSE_TEST_SERVER_URL=NOBODY, RECOURSE_REQUIRE_SERVICES=required)
    assert ended.returncode == code
    assert ended.stderr.startswith(f"second pass {outcome}: no PostgreSQL at RECOURSE_TEST_SERVER_URL (")


def collected(*arguments: str, second: bool) -> set[str]:
    """The ids of the tests that the first pass would run of these, or the second."""
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", *(["-p", "tests.second_pass"] if second else [])]
    listed = run("pytest", *options, *arguments, DATABASE_URL=NOBODY).stdout
    return {line for line in listed.splitlines() if "::" in line}


# a file that is named is collected whatever it is; of directories, what the second pass takes
PLACES = [
    "tests/config",
    "tests/console",
    *(f"tests/pipelines/test_{name}.py" for name in ("graph", "sweeps", "moves_guards")),
]


def test_it_runs_each_test_of_the_database_and_of_its_guards_each_case() -> None:
    both, again = collected(*PLACES, second=False), collected(*PLACES, second=True)

    def of(file: str, ids: set[str]) -> set[str]:
        return {one for one in ids if one.startswith(f"tests/{file}::")}

    def tests_of(file: str, ids: set[str]) -> set[str]:
        return {one.partition("[")[0] for one in of(file, ids)}

    assert again < both
    for each_case in ("pipelines/test_moves_guards.py", "config/test_clock.py"):
        assert of(each_case, again) == of(each_case, both) != set()
    for each_test in ("pipelines/test_sweeps.py", "console/test_search.py"):
        assert tests_of(each_test, again) == tests_of(each_test, both)
        assert len(of(each_test, again)) == len(tests_of(each_test, both)) < len(of(each_test, both))
    for none in ("pipelines/test_graph.py", "console/test_frame.py"):
        assert of(none, again) == set() != of(none, both)


def test_a_case_that_is_asked_for_by_name_is_the_first() -> None:
    everything = collected("tests/pipelines/test_sweeps.py", second=False)
    test = next(one.partition("[")[0] for one in sorted(everything) if "[" in one)
    last = sorted(one for one in everything if one.startswith(f"{test}["))[-1]
    assert collected(last, second=True) == {last}


def test_whatever_it_names_is_there() -> None:
    """A file that was renamed must not slip out of the second pass, or into it."""
    for path in (*LEFT_OUT, *(f"{SCREENS}/{name}" for name in OWN_STATEMENTS)):
        assert (BASE_DIR / path).is_file(), path
    for prefix in EACH_CASE:
        assert (BASE_DIR / prefix.removesuffix("::")).exists(), prefix
