"""The embedded database: shared by overlapping users, gone with the last, whole again after any crash."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from config import embedded
from tests.config.console_process import BASE_DIR, manage, processes_of, wait_until

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("embedded")]


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    for pid in processes_of(tmp_path / "data"):
        os.kill(pid, signal.SIGKILL)


def connect(data_dir: Path) -> psycopg.Connection[tuple[object, ...]]:
    where = str(embedded.socket_directory(data_dir))
    return psycopg.connect(host=where, user=embedded.USER, dbname=embedded.DATABASE, autocommit=True)


def server_pid(data_dir: Path) -> int:
    return int((data_dir / "pg" / "postmaster.pid").read_text().split()[0])


def test_a_command_without_up_starts_the_database_for_its_own_time(data_dir: Path) -> None:
    for arguments in (
        ["check", "--data", str(data_dir)],
        ["migrate", f"--data={data_dir}", "-v", "0"],
        ["showmigrations"],
    ):
        result = manage(data_dir, *arguments)
        assert result.returncode == 0, result.stderr
        assert processes_of(data_dir) == {}
    assert "[X] 0001_initial" in result.stdout


def test_a_database_address_starts_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.config.console_process as harness

    clean = harness.clean_environment
    elsewhere = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}
    monkeypatch.setattr(harness, "clean_environment", lambda data_dir: clean(data_dir) | elsewhere)
    result = manage(data_dir, "check", "--database", "default")
    assert result.returncode == 1
    assert "recourse.E007" in result.stderr
    assert not (data_dir / "pg").exists()


def test_the_last_user_to_leave_stops_the_database_and_no_earlier_one(data_dir: Path) -> None:
    first = embedded.attach(data_dir, throwaway=True)
    second = embedded.attach(data_dir, throwaway=True)
    pid = server_pid(data_dir)
    first.release()
    with connect(data_dir) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert server_pid(data_dir) == pid
    second.release()
    second.release()
    wait_until(lambda: processes_of(data_dir) == {}, why=f"still there: {processes_of(data_dir)}")


def test_a_user_that_is_killed_counts_as_having_left(data_dir: Path) -> None:
    script = "import sys, time; from pathlib import Path; from config import embedded; "
    script += "embedded.attach(Path(sys.argv[1]), throwaway=True); print('in', flush=True); time.sleep(600)"
    user = subprocess.Popen([sys.executable, "-c", script, str(data_dir)], cwd=BASE_DIR, stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"in\n"
    user.kill()
    user.wait()
    user.stdout.close()
    wait_until(lambda: processes_of(data_dir) == {}, why=f"still there: {processes_of(data_dir)}")


def test_what_was_committed_is_there_after_the_server_and_its_keeper_were_killed(data_dir: Path) -> None:
    attachment = embedded.attach(data_dir)
    with connect(data_dir) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        assert connection.execute("SELECT setting FROM pg_settings WHERE name = 'fsync'").fetchone() == ("on",)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert attachment.keeper is not None
    server = server_pid(data_dir)
    attachment.keeper.kill()
    os.kill(server, signal.SIGKILL)
    attachment.keeper.wait()
    assert (data_dir / "pg" / "postmaster.pid").exists()
    attachment.release()
    attachment = embedded.attach(data_dir)
    with connect(data_dir) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    attachment.release()


def test_a_server_that_crashes_is_started_again_by_its_keeper(data_dir: Path) -> None:
    attachment = embedded.attach(data_dir, throwaway=True)
    server = server_pid(data_dir)
    os.kill(server, signal.SIGKILL)

    def back() -> bool:
        try:
            with connect(data_dir):
                return server_pid(data_dir) != server
        except (psycopg.OperationalError, FileNotFoundError):
            return False

    wait_until(back, why=(data_dir / "pg.log").read_text())
    attachment.release()
    assert processes_of(data_dir) == {}


def test_a_pid_file_whose_number_belongs_to_another_program_by_now_is_no_obstacle(data_dir: Path) -> None:
    embedded.attach(data_dir, throwaway=True).release()
    pid_file = data_dir / "pg" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{data_dir / 'pg'}\n1700000000\n5432\n{data_dir / 'pg'}\n\n  1  1\nready\n")
    attachment = embedded.attach(data_dir, throwaway=True)
    assert server_pid(data_dir) != os.getpid()
    attachment.release()


def test_a_half_made_cluster_is_made_anew(data_dir: Path) -> None:
    (data_dir / "pg.new" / "base").mkdir(parents=True)
    (data_dir / "notes.txt").write_text("mine")
    attachment = embedded.attach(data_dir, throwaway=True)
    with connect(data_dir) as connection:
        assert connection.execute("SHOW server_version_num").fetchone() >= ("180000",)
    attachment.release()
    assert not (data_dir / "pg.new").exists()
    assert (data_dir / "notes.txt").read_text() == "mine"


def test_a_directory_too_deep_for_a_socket_works_all_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    sockets = embedded.socket_directory(deep)
    assert not sockets.is_relative_to(tmp_path)
    attachment = embedded.attach(deep, throwaway=True)
    try:
        with connect(deep) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert sockets.stat().st_mode & 0o777 == 0o700
    finally:
        attachment.release()
        shutil.rmtree(sockets)


def test_a_socket_directory_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    sockets = embedded.socket_directory(deep)
    sockets.mkdir(mode=0o777)
    sockets.chmod(0o777)
    try:
        with pytest.raises(embedded.EmbeddedDatabaseError, match="belongs to somebody else"):
            embedded.attach(deep, throwaway=True)
    finally:
        sockets.rmdir()


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root on Linux gives rights on")
def test_root_runs_it_from_a_tree_that_is_closed_to_the_account(data_dir: Path, tmp_path: Path, monkeypatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    command = embedded.keeper_command(data_dir)
    package = Path(command[-1]).parent.parent
    for folder in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / folder, closed / folder, symlinks=True)
    command[-1] = str(closed / Path(command[-1]).relative_to(package.parent))
    monkeypatch.setattr(embedded, "keeper_command", lambda data_dir, throwaway: command)
    attachment = embedded.attach(data_dir)
    status = Path(f"/proc/{server_pid(data_dir)}/status").read_text()
    attachment.release()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert "0" not in fields["Uid"].split()
    assert int(fields["CapEff"], 16) in (1 << 2, 1 << 1), "exactly the one right to pass closed folders"
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_normal_user_runs_it_as_themselves_and_root_never_as_root() -> None:
    script = "import sys; from pathlib import Path; from config import embedded; "
    script += "a = embedded.attach(Path(sys.argv[1]), throwaway=True); "
    script += "print((Path(sys.argv[1]) / 'pg').stat().st_uid); a.release()"
    if not all(
        folder.stat().st_mode & 0o001 for folder in (*BASE_DIR.parents, *Path(sys.executable).resolve().parents)
    ):
        pytest.skip("this tree, or its Python, is closed to other users")
    for user, owner_is_root in (("nobody", False), ("root", False)):
        directory = Path(tempfile.mkdtemp())
        shutil.chown(directory, user)
        try:
            result = subprocess.run(
                [sys.executable, "-c", script, str(directory / "data")],
                cwd=BASE_DIR,
                user=user,
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            )
            assert result.returncode == 0, result.stderr
            assert (int(result.stdout) == 0) is owner_is_root
        finally:
            shutil.rmtree(directory)
