"""Runs the tests that speak to the database once more, on a PostgreSQL server that is not the embedded one.

For `make test`. The server is the one at RECOURSE_TEST_SERVER_URL; when none answers, this says so and is content,
unless RECOURSE_REQUIRE_SERVICES=1. Arguments go to pytest. The exit code is pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import urlsplit

import psycopg

from config.environment import BY_NAME

SELECTED = "not embedded and not browser and not prove"


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
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-m", SELECTED, *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | {"DATABASE_URL": database}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
