"""docs/howto/pipelines-as-code.md, carried out: a fresh console, a file from its first release to its second, run by a
worker over HTTP and by the console's own Celery workers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.config.console_process import BASE_DIR, ConsoleProcess, clean_environment, manage, processes_of, wait_until

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("up")]

PAGE = (BASE_DIR / "docs/howto/pipelines-as-code.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
TOLD = [text for kind, text in BLOCKS if kind == ""]
DIGEST = re.compile(r"\b[0-9a-f]{12}\b")
UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def without_ids(text: str) -> list[str]:
    """Lines without what is another one every time, and without the blanks at their ends."""
    return [DIGEST.sub("DIGEST", UUID.sub("ID", line)).rstrip() for line in text.strip().splitlines()]


class Desk:
    """A person at a terminal in a folder with the page's files."""

    def __init__(self, folder: Path, console: ConsoleProcess) -> None:
        place = ["--workspace", "demo"]
        self.folder = folder
        self.url = console.url
        self.key = self._manage(console, "issue_key", *place, "--application", "reports")
        token = self._manage(console, "issue_token", *place, "--user", "rita", "--role", "release_manager")
        told = {"RECOURSE_URL": console.url, "RECOURSE_TOKEN": token, "RECOURSE_API_KEY": self.key}
        paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": "."}
        self.environment = clean_environment(console.data_dir) | told | paths | {"HOME": str(folder)}
        (folder / "nightly.py").write_text(PYTHON[0])
        (folder / "invoices.py").write_text(PYTHON[1])

    @staticmethod
    def _manage(console: ConsoleProcess, *words: str) -> str:
        done = manage(console.data_dir, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    def says(self, script: str, code: int = 0) -> str:
        """What a block of the page says when it is carried out here."""
        script = script.replace("http://localhost:8000", self.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def get(self, path: str) -> Any:
        token = {"Authorization": f"Bearer {self.environment['RECOURSE_TOKEN']}"}
        answer = httpx.get(f"{self.url}/{path}", headers=token, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ended(self, day: str, block: str) -> dict[str, Any]:
        """The run that the page's request makes for a day, at its end."""
        made = self.says(block.replace("2026-05-29", day))
        run = re.search(UUID, made)
        assert run is not None
        run_id = run[0]
        headers = {"X-API-Key": self.key}

        def there() -> dict[str, Any]:
            told: dict[str, Any] = httpx.get(f"{self.url}/pipelines/{run_id}", headers=headers, timeout=30).json()
            return told

        wait_until(lambda: there()["isTerminal"], seconds=90, why=f"the run of {day} did not end")
        found = there()
        assert found["status"] == "completed", found
        return found


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    directory.mkdir()
    yield directory
    for pid in processes_of(directory):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "pipelines"
    found.mkdir()
    return found


@pytest.fixture
def console(data_dir: Path, with_tables: None, folder: Path) -> Iterator[ConsoleProcess]:
    """A console whose Celery workers run `by_celery.py` of the folder, for one application."""
    celery = PYTHON[0].replace('pipeline("nightly"', 'pipeline("by-celery"')
    (folder / "by_celery.py").write_text(celery)
    handlers = {"RECOURSE_HANDLERS": f"{folder / 'by_celery.py'}@demo/reports"}
    console = ConsoleProcess(data_dir, environment=handlers)
    console.wait_until_ready()
    yield console
    console.end(signal.SIGKILL)
    sys.stderr.write(console.log_path.read_text())


@pytest.fixture
def desk(folder: Path, console: ConsoleProcess) -> Desk:
    return Desk(folder, console)


def lines_of(console: ConsoleProcess, run_id: str) -> list[Any]:
    """The lines of a run's log: level, message, fields."""
    statement = (
        "from pipelines.models import LogLine; import json; print(json.dumps([[l.level, l.message, l.fields]"
        f" for l in LogLine.objects.filter(attempt__run_id='{run_id}').order_by('id')]))"
    )
    done = manage(console.data_dir, "shell", "--verbosity", "0", "-c", statement)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_the_page_on_pipelines_as_code_does_what_it_says(desk: Desk, console: ConsoleProcess, folder: Path) -> None:
    """N14, N16, N17, O11: every command and every file of it, and what it says is printed."""
    deploying, working, requesting, changing = SHELL
    first_told, changed_told = (one for one in TOLD if one.startswith("nightly in development"))

    said = desk.says(deploying)
    planned, done = said[: said.index("registered")], said
    assert without_ids(done)[-5:] == without_ids(first_told)
    assert planned.count("the first release of a new pipeline") == 2, "a dry run registers nothing"
    (first,) = desk.get("v1/releases?pipeline=nightly")["results"]

    worker = subprocess.Popen(working.split(), env=desk.environment, cwd=folder)
    try:
        run = desk.ended("2026-05-29", requesting)
        assert [stage["output"] for stage in run["stages"]] == [[0, 1, 2], {"sent": 3}]
        assert run["releaseId"] == first["id"]
        assert lines_of(console, run["id"]) == [["info", "sending", {"numbers": 3, "day": "2026-05-29"}]]

        assert without_ids(desk.says(changing)) == without_ids(changed_told)
        in_force = desk.get("v1/releases?pipeline=nightly&status=active")["results"]
        assert [one["source_digest"] == first["source_digest"] for one in in_force] == [False]
        assert "nothing was changed" in desk.says(changing.splitlines()[1])

        run = desk.ended("2026-05-30", requesting)
        assert run["releaseId"] == in_force[0]["id"]
        warnings = [one for one in lines_of(console, run["id"]) if one[0] == "warning"]
        assert [one[2]["released"] for one in warnings] == [in_force[0]["source_digest"]] * 2
    finally:
        worker.terminate()
        assert worker.wait(60) == 0

    worker = subprocess.Popen(working.split(), env=desk.environment, cwd=folder)
    try:
        run = desk.ended("2026-05-31", requesting)
        told = [["info", "sending them on", {"numbers": 3, "day": "2026-05-31"}]]
        assert lines_of(console, run["id"]) == told
    finally:
        worker.terminate()
        worker.wait(60)

    # the console's own workers run a file as well
    desk.says("recourse deploy by_celery.py --activate")
    run = desk.ended("2026-06-01", requesting.replace('"nightly"', '"by-celery"').replace("nightly:", "celery:"))
    assert [stage["output"] for stage in run["stages"]] == [[0, 1, 2], {"sent": 3}]
    assert lines_of(console, run["id"]) == [["info", "sending", {"numbers": 3, "day": "2026-06-01"}]]

    # the rest of the page
    assert "registered as" in desk.says("recourse deploy invoices.py --activate")
    (folder / "trial.py").write_text(PYTHON[2])
    assert desk.says("python trial.py") == "[0, 1]\n"
