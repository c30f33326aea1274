"""`up` as a person runs it: real processes, a real port, an embedded database in a directory of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
import pytest

from config import embedded
from tests.config.console_process import ConsoleProcess, manage, processes_of, wait_until

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("up")]


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    directory.mkdir()
    yield directory
    # Whatever a failed test left running is this test's own.
    for pid in processes_of(directory):
        os.kill(pid, signal.SIGKILL)


def session_count(data_dir: Path) -> int:
    with psycopg.connect(
        host=str(embedded.socket_directory(data_dir)), user="postgres", dbname="recourse"
    ) as connection:
        return connection.execute("SELECT count(*) FROM auth_user").fetchone()[0]


def test_up_serves_until_it_is_told_to_stop_and_leaves_nothing_running(data_dir: Path) -> None:
    (data_dir / "notes.txt").write_text("mine")
    console = ConsoleProcess(data_dir)
    ready, login = console.wait_until_ready()
    assert ready == f"ready {console.url}"
    password = (data_dir / "ADMIN_PASSWORD").read_text().strip()
    assert login == f"log in as admin with the password {password}"
    assert httpx.get(f"{console.url}/readyz").json()["status"] == "ready"
    sends = psutil.Process(console.pid_of("recourse.notices"))
    assert sends.environ()["RECOURSE_PUBLIC_URL"] == console.url  # links in messages lead here
    assert "recourse_http_requests_total" in httpx.get(f"{console.url}/metrics").text
    with httpx.Client(base_url=console.url, follow_redirects=True) as client:
        form = client.get("/admin/login/")
        token = client.cookies["csrftoken"]
        assert form.status_code == 200
        data = {"username": "admin", "password": password, "csrfmiddlewaretoken": token, "next": "/admin/"}
        assert "Log out" in client.post("/admin/login/", data=data).text

    second = manage(data_dir, "up", "--no-samples", "--port", "0")
    assert second.returncode == 2
    assert second.stdout == ""
    assert second.stderr == (
        f"{data_dir} is served by another `up` (process {console.process.pid}): "
        "stop it first, or choose another --data.\n"
    )
    assert console.ready()

    assert console.end(signal.SIGTERM) == 0
    assert processes_of(data_dir) == {}
    assert (data_dir / "notes.txt").read_text() == "mine"

    # Again on the same data: the rows are there, the secrets and the log-in are the same.
    secret = (data_dir / "SECRET_KEY").read_text()
    console = ConsoleProcess(data_dir)
    assert console.wait_until_ready()[1] == login
    assert (data_dir / "SECRET_KEY").read_text() == secret
    assert session_count(data_dir) == 1
    assert console.end(signal.SIGINT) == 0
    assert processes_of(data_dir) == {}


@pytest.mark.usefixtures("with_tables")
def test_up_seals_what_is_audited_by_itself(data_dir: Path) -> None:
    """I17, F147: nobody has to ask for it, and no event waits for the next one."""
    console = ConsoleProcess(data_dir)
    console.wait_until_ready()
    assert manage(data_dir, "issue_key", "--workspace", "acme", "--application", "feed").returncode == 0
    wait_until(lambda: audit_of(data_dir, "acme") == (0, True), why="the audit events of the key are not sealed")
    checked = manage(data_dir, "verify_audit", "--workspace", "acme")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.endswith("sealed events hold\n")
    assert console.end(signal.SIGTERM) == 0


def audit_of(data_dir: Path, workspace: str) -> tuple[int, bool]:
    """How many events of a workspace wait to be sealed, and whether a signed head is there."""
    with psycopg.connect(
        host=str(embedded.socket_directory(data_dir)), user="postgres", dbname="recourse"
    ) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM pipelines_auditpending p WHERE p.workspace = w.id),"
            " EXISTS (SELECT FROM pipelines_audithead h WHERE h.workspace_id = w.id)"
            " FROM pipelines_workspace w WHERE w.slug = %s",
            [workspace],
        ).fetchone()
        return row[0], row[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_up_that_is_told_to_stop_while_it_starts_does_not_start(data_dir: Path, number: int) -> None:
    console = ConsoleProcess(data_dir)
    wait_until(lambda: console.pid_of("guardian.py"), why=f"no guardian: {console.log_path.read_text()}")
    console.process.send_signal(number)
    assert console.process.communicate(timeout=90)[0] == ""
    assert console.end() == 0
    assert "Traceback" not in console.log_path.read_text()
    assert processes_of(data_dir) == {}


def test_a_command_that_is_interrupted_shows_no_traceback(data_dir: Path) -> None:
    result = manage(data_dir, "shell", "-v", "0", "-c", "raise KeyboardInterrupt")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.usefixtures("with_tables")
def test_nothing_outlives_an_up_that_was_killed_and_the_data_survives(data_dir: Path) -> None:
    """P1: all rows are there after every process was lost."""
    console = ConsoleProcess(data_dir)
    console.wait_until_ready()
    assert len(processes_of(data_dir)) >= 8
    assert console.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: processes_of(data_dir) == {}, seconds=60, why=f"still there: {processes_of(data_dir)}")
    console = ConsoleProcess(data_dir)
    console.wait_until_ready()
    assert session_count(data_dir) == 1
    assert console.end() == 0


@pytest.mark.usefixtures("with_tables")
def test_what_crashes_is_started_again(data_dir: Path) -> None:
    console = ConsoleProcess(data_dir)
    console.wait_until_ready()
    for part in ("gunicorn", "-P solo", "-c 2", "config.beat", "embedded.py"):
        victim = console.pid_of(part)
        assert victim is not None, part
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda part=part, victim=victim: console.pid_of(part) not in (None, victim),
            why=f"{part} did not come back: {console.log_path.read_text()}",
        )
        wait_until(console.ready, why=f"not ready again after {part}: {console.log_path.read_text()}")
    assert console.process.poll() is None
    assert console.end() == 0
    assert processes_of(data_dir) == {}


@pytest.mark.usefixtures("with_tables")
def test_an_up_whose_guardian_was_killed_still_leaves_nothing_behind(data_dir: Path) -> None:
    console = ConsoleProcess(data_dir)
    console.wait_until_ready()
    guardian = console.pid_of("guardian.py")
    os.kill(guardian, signal.SIGKILL)
    wait_until(lambda: console.pid_of("guardian.py") not in (None, guardian), why="no new guardian")
    console.end(signal.SIGKILL)
    wait_until(lambda: processes_of(data_dir) == {}, seconds=60, why=f"still there: {processes_of(data_dir)}")


def test_a_port_that_is_taken_is_refused_in_one_sentence(data_dir: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = manage(data_dir, "up", "--no-samples", "--port", str(port))
    assert result.returncode == 2
    assert result.stderr.startswith(f"Cannot listen on 127.0.0.1:{port} (")
    assert result.stderr.count("\n") == 1
    assert processes_of(data_dir) == {}


def test_unsafe_settings_are_refused_with_their_ids_and_without_a_traceback(data_dir: Path, monkeypatch) -> None:
    import tests.config.console_process as harness

    clean = harness.clean_environment
    wrong = {"RECOURSE_LEASE_SECONDS": "soon", "RECOURSE_LEASE": "3"}
    monkeypatch.setattr(harness, "clean_environment", lambda data_dir: clean(data_dir) | wrong)
    result = manage(data_dir, "up", "--no-samples", "--port", "0")
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "recourse.E001: RECOURSE_LEASE_SECONDS is 'soon'; it must be a whole number from 3 to 3600.",
        "recourse.E002: RECOURSE_LEASE is set, but there is no such setting. Did you mean RECOURSE_LEASE_SECONDS?",
    ]
    assert processes_of(data_dir) == {}


@pytest.mark.usefixtures("with_tables")
def test_a_command_uses_the_database_of_a_running_up_and_leaves_it_running(data_dir: Path) -> None:
    console = ConsoleProcess(data_dir)
    console.wait_until_ready()
    before = {pid for pid, command in processes_of(data_dir).items() if "embedded.py" in command}
    result = manage(Path("/nonexistent"), "shell", "--data", str(data_dir), "-c", "print(User.objects.count())")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("1")
    after = {pid for pid, command in processes_of(data_dir).items() if "embedded.py" in command}
    assert after == before
    assert console.ready()
    assert console.end() == 0


@pytest.mark.server
@pytest.mark.redis
def test_up_on_services_of_ones_own_starts_no_database(data_dir: Path, server_url: str, redis_url: str) -> None:
    name = f"recourse_up_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            own = {
                "DATABASE_URL": urlsplit(server_url)._replace(path=f"/{name}").geturl(),
                "CELERY_BROKER_URL": redis_url,
            }
            console = ConsoleProcess(data_dir, environment=own)
            console.wait_until_ready()
            checks = httpx.get(f"{console.url}/readyz").json()["checks"]
            assert checks == {"database": "ok", "migrations": "ok", "broker": "ok", "artifacts": "ok"}
            assert console.pid_of("embedded.py") is None
            assert not (data_dir / "pg").exists()
            assert console.end() == 0
            assert processes_of(data_dir) == {}
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")
