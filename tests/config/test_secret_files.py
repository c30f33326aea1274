from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from cryptography.fernet import Fernet

from config import secret_files
from config.environment import Environment


def test_secrets_are_made_once_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    first = Environment.from_os({"RECOURSE_DATA": str(tmp_path)})
    again = Environment.from_os({"RECOURSE_DATA": str(tmp_path)})
    assert first.problems == ()
    assert (again.secret_key, again.encryption_key) == (first.secret_key, first.encryption_key)
    Fernet(first.encryption_key)
    for name in ("SECRET_KEY", "RECOURSE_ENCRYPTION_KEY"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["RECOURSE_ENCRYPTION_KEY", "SECRET_KEY"]


def test_a_secret_from_the_environment_is_used_and_none_is_made(tmp_path: Path) -> None:
    key = Fernet.generate_key().decode()
    given = {"RECOURSE_DATA": str(tmp_path), "SECRET_KEY": "given", "RECOURSE_ENCRYPTION_KEY": key}
    environment = Environment.from_os(given)
    assert (environment.secret_key, environment.encryption_key) == ("given", key)
    assert list(tmp_path.iterdir()) == []


def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    seen: list[str] = []

    def make(number: int) -> None:
        barrier.wait()
        seen.append(secret_files.load_or_make(tmp_path / "KEY", lambda: f"secret-{number}", []))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert os.listdir(tmp_path) == ["KEY"]


def test_a_directory_that_cannot_be_written_is_a_problem_and_not_a_traceback(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    environment = Environment.from_os({"RECOURSE_DATA": str(blocked / "data")})
    assert len(environment.problems) == 2
    assert "SECRET_KEY" in environment.problems[0]
