"""The supervisor with small services of the test's own: what it restarts, in which order it stops, what it kills."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import psutil

from tests.config.console_process import BASE_DIR

BEFORE = """
import os, signal, sys, time
from pathlib import Path
from config.supervisor import Service, StopRequestedError, Supervisor
folder = Path(sys.argv[1])

def service(name, code, **options):
    return Service(name, [sys.executable, "-c", code, str(folder), name], **options)

NOTE = "import sys, os, signal, time; from pathlib import Path; folder = Path(sys.argv[1]); name = sys.argv[2]\\n"
NOTE += "def note(what): (folder / 'notes').open('a').write(f'{name} {what}\\\\n')\\n"
POLITE = NOTE + "signal.signal(signal.SIGTERM, lambda *_: (note('stopped'), sys.exit(0)))\\n"
POLITE += "note('started')\\ntime.sleep(600)"

def notes():
    return (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
"""


def supervise(folder: Path, script: str) -> list[str]:
    """Run a script around a supervisor in a process of its own: what its services noted."""
    program = BEFORE + textwrap.dedent(script)
    subprocess.run([sys.executable, "-c", program, str(folder)], cwd=BASE_DIR, check=True, timeout=60)
    left = [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or [])
    ]
    assert left == []
    return (folder / "notes").read_text().splitlines()


def test_the_service_that_others_need_is_stopped_when_they_have_gone(tmp_path: Path) -> None:
    script = """
        with Supervisor() as supervisor:
            supervisor.start(service("database", POLITE, stop_last=True))
            supervisor.start(service("web", POLITE))
            supervisor.start(service("worker", POLITE))
            assert supervisor.wait_for(lambda: len(notes()) == 3, seconds=30)
    """
    noted = supervise(tmp_path, script)
    assert sorted(noted[:3]) == ["database started", "web started", "worker started"]
    assert sorted(noted[3:5]) == ["web stopped", "worker stopped"]
    assert noted[5:] == ["database stopped"]


def test_a_service_that_ends_is_started_again_with_growing_pauses(tmp_path: Path) -> None:
    script = """
        once = NOTE + "note(f'at {time.monotonic()}')"
        with Supervisor() as supervisor:
            supervisor.start(service("flaky", once))
            assert supervisor.wait_for(lambda: len(notes()) >= 4, seconds=50)
    """
    moments = [float(line.split()[-1]) for line in supervise(tmp_path, script)][:4]
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert pauses[0] >= 0.2
    assert pauses[1] >= 0.4
    assert pauses[2] >= 0.8


def test_a_service_that_does_not_listen_is_killed_with_all_its_children(tmp_path: Path) -> None:
    script = """
        deaf = NOTE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        deaf += "note('parent' if os.fork() else 'child')\\ntime.sleep(600)"
        with Supervisor() as supervisor:
            supervisor.start(service("deaf", deaf, stop_seconds=0.5))
            assert supervisor.wait_for(lambda: len(notes()) == 2, seconds=30)
    """
    assert sorted(supervise(tmp_path, script)) == ["deaf child", "deaf parent"]


def test_a_service_that_runs_once_gives_its_exit_code_and_is_not_restarted(tmp_path: Path) -> None:
    script = """
        with Supervisor() as supervisor:
            code = supervisor.run_once(service("seed", NOTE + "note('ran'); sys.exit(7)"))
            assert code == 7, code
            assert supervisor.children == []
    """
    assert supervise(tmp_path, script) == ["seed ran"]


def test_a_stop_that_is_asked_for_ends_whatever_is_being_waited_for(tmp_path: Path) -> None:
    script = """
        try:
            with Supervisor() as supervisor:
                supervisor.start(service("web", POLITE))
                assert supervisor.wait_for(lambda: notes() == ["web started"], seconds=30)
                os.kill(os.getpid(), signal.SIGTERM)
                supervisor.wait_for(lambda: False, seconds=60)
        except StopRequestedError:
            (folder / "notes").open("a").write("asked\\n")
    """
    assert supervise(tmp_path, script) == ["web started", "web stopped", "asked"]
