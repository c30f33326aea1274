"""Recovery needs no network but the way to the console itself, and the console calls nobody (R1, R2).

Every process of the story, the console's, and each that a person starts at a terminal, has a guard that Python cannot
take off again: whatever connects, sends or looks up a name is written down, and denied unless it stays on this machine.
The database is reached by its own library, which the guard does not see, as the console's one way out.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.environment import BASE_DIR
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.journeys import test_practice_by_command_line as practice

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]

GUARD = """
import os, sys
HERE = ("127.0.0.1", "::1", "localhost", None, b"127.0.0.1", b"localhost")
def guard(event, args):
    if event in ("socket.connect", "socket.sendto"):
        told = args[-1]
    elif event == "socket.getaddrinfo":
        told = (args[0], args[1])
    else:
        return
    if isinstance(told, (str, bytes)):
        return  # a socket in a folder
    with open(os.environ["GUARD_LOG"], "a") as log:
        log.write(f"{os.environ.get('RECOURSE_PROCESS', 'terminal')} {event} {told[0]} {told[1]}\\n")
    if told[0] not in HERE:
        raise PermissionError(f"there is no network: {told}")
sys.addaudithook(guard)
"""
# what of the console has the means to speak with others, and with whom: a setting or an administrator asks for each
CALLS_OUT = {
    "approvals/notifications/addresses.py": "where messages may go",
    "approvals/notifications/mail.py": "who sends mail",
    "approvals/notifications/sending.py": "a channel of messages",
    "config/oidc_client.py": "who logs people in",
    "pipelines/artifact_bucket.py": "the bucket of artifacts",
    "pipelines/vault.py": "the vault of keys",
}
NETWORK = {"httpx", "httpcore", "requests", "urllib3", "smtplib", "boto3", "hvac", "authlib", "aiohttp", "ftplib"}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every process that is started from here on has the guard; what it saw."""
    folder, found = tmp_path / "guard", tmp_path / "seen"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(GUARD)
    found.touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(BASE_DIR), str(BASE_DIR / "sdk")]))
    monkeypatch.setenv("GUARD_LOG", str(found))
    return found


def test_the_guard_denies(log: Path) -> None:
    program = "import socket, sys\ntry:\n    {}\nexcept PermissionError as error:\n    sys.exit(str(error))"
    for act in ("socket.create_connection(('192.0.2.7', 80), 1)", "socket.getaddrinfo('example.org', 80)"):
        done = subprocess.run([sys.executable, "-c", program.format(act)], capture_output=True, text=True, check=False)
        assert "there is no network" in done.stderr, done.stderr
    assert "192.0.2.7" in log.read_text()


def test_the_practice_run_is_denied_repaired_and_cancelled_without_a_network(
    log: Path, api_key: str, people: dict[str, Person], tmp_path: Path
) -> None:
    """R1: local work is recovered; R2: the console called nobody while runs went on, failed and were repaired."""
    with web_server(url_of_test_database("alone")) as (url, _):
        desk = practice.Desk(url, api_key, people)
        practice.test_every_outcome_explains_itself_at_the_command_line(desk, tmp_path)
        desk.close()
    seen = [line.split() for line in log.read_text().splitlines()]
    assert {line[0] for line in seen if line[1] == "socket.connect"} == {"terminal"}, "the console connects to nobody"
    port = url.rsplit(":", 1)[1]
    assert {(line[2], line[3]) for line in seen if line[0] == "terminal"} == {("127.0.0.1", port)}
    assert len(seen) >= 20, "each word at a terminal went to the console"


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
            found |= {"urllib3"} if node.module.startswith("urllib.request") else set()
    return found


def test_only_what_a_setting_asks_for_has_the_means_to_call_out() -> None:
    """R2: there is no executor of effects; nothing of the engine, and nothing of recovery, speaks with anybody."""
    paths = [
        path for app in ("pipelines", "approvals", "recovery", "config") for path in (BASE_DIR / app).rglob("*.py")
    ]
    found = {path.relative_to(BASE_DIR).as_posix() for path in paths if imported(path) & NETWORK}
    assert found <= set(CALLS_OUT), found
