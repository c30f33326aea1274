"""`recourse mcp` as a command, and by HTTP: what it needs, what it says without that, and to whom it answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from mcp import MCPError
from recourse import cli
from recourse.mcp_server.tools import TOOLS

from pipelines.models import AuditEvent, Run
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.assistant import ROOT, assistant, over_http
from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import TOKEN, ProtocolServer

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("RECOURSE_", "PIPELOGIQ_"))}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RECOURSE_URL", "RECOURSE_TOKEN", "RECOURSE_API_KEY", "RECOURSE_PROFILE", "PIPELOGIQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("home")
def test_without_a_token_it_says_what_to_set_and_serves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mcp"]) == 2
    said = capsys.readouterr()
    assert (said.out, "RECOURSE_TOKEN" in said.err) == ("", True)


@pytest.mark.usefixtures("home")
def test_a_tool_that_is_not_there_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mcp", "--without", "drop_database"]) == 2
    said = capsys.readouterr().err
    assert "there is no tool drop_database" in said
    assert "list_runs" in said
    with pytest.raises(SystemExit):
        cli.main(["mcp", "--http", "0"])


def test_without_the_sdk_it_says_what_to_install(home: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from recourse import cli; sys.exit(cli.main(['mcp']))"
    environment = CLEAN | {"RECOURSE_TOKEN": TOKEN, "HOME": str(home)}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "sdk", env=environment, capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert "pip install 'recourse[mcp]'" in told.stderr


def test_help_needs_none_of_it() -> None:
    """The command line's help stays quick."""
    code = (
        "import sys; from recourse import cli; cli.make_parser(); print('mcp' in sys.modules, 'httpx' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "sdk", capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]


def test_a_profile_says_which_console_and_as_whom(home: Path, server: ProtocolServer) -> None:
    folder = home / "recourse"
    folder.mkdir()
    (folder / "config.toml").write_text(f'[profiles.here]\nurl = "{server.url}"\ntoken = "{TOKEN}"\n')
    (folder / "config.toml").chmod(0o600)
    with assistant("--profile", "here", HOME=str(home), XDG_CONFIG_HOME=str(home)) as call:
        call("get_run", execution_id="r")
    assert [path for path, _ in server.requests] == ["/v1/executions/r"]


@pytest.mark.parametrize("speaks", ["legacy", "2026-07-28"])
def test_older_programs_are_served_as_newer_ones(home: Path, server: ProtocolServer, speaks: str) -> None:
    with assistant(speaks=speaks, RECOURSE_URL=server.url, RECOURSE_TOKEN=TOKEN, HOME=str(home)) as call:
        assert set(call.tools()) == set(TOOLS) - {"start_run"}
        assert call.client.server_info is None or call.client.server_info.name == "recourse"
        assert call("get_run", execution_id="r")["outcome"] == "refused"
        with pytest.raises(MCPError, match="no tool 'drop_database'"):
            call("drop_database")


def test_a_console_that_is_away_is_an_unknown_outcome_with_its_key(home: Path) -> None:
    """F127: the same call again, with the same key, is what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    key = "0d4b1a4e-6d7f-4a5c-8f43-0c8a5d1f2e3b"
    with assistant(RECOURSE_URL=f"http://127.0.0.1:{port}", RECOURSE_TOKEN=TOKEN, HOME=str(home)) as call:
        told = {"execution_id": "r", "plan_digest": "0" * 64, "client_request_id": key, "reason": "so"}
        answer = call("cancel_run", **told)
        assert (answer["outcome"], answer["client_request_id"]) == ("unknown", key)
        assert "same call" in answer["what_to_do"]
        assert call("list_runs")["outcome"] == "unknown"


@contextmanager
def serving(url: str, **environment: str) -> Iterator[str]:
    """The address of one that serves by HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "recourse", "mcp", "--http", str(port)],
        env=CLEAN | {"RECOURSE_URL": url} | environment,
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: process.poll() is None and _listens(port), 60)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_by_http_everybody_acts_as_themselves(
    django_db_setup: None, people: dict[str, Person], start_run: Callable[..., Run], home: Path
) -> None:
    """I2: the process holds no token of anybody's, also where its environment does; other sites' pages are refused."""
    run = start_run("first")
    with (
        web_server(url_of_test_database("mcp-http")) as (url, _),
        serving(url, RECOURSE_TOKEN=people["admin"].token, HOME=str(home)) as address,
    ):
        with over_http(address, authorization=f"Bearer {people['viewer'].token}") as viewer:
            assert viewer.read("get_run", execution_id=str(run.id))["status"] == "queued"
            told = viewer.plan("cancel_run", execution_id=str(run.id))
            assert viewer("cancel_run", **told | {"reason": "so"})["code"] == "permission_denied"
        with over_http(address) as nobody:
            assert nobody("list_runs")["code"] == "unauthorized", "not as whose token the process was started with"
            assert nobody("start_run", **nobody_starts())["code"] == "unauthorized"
        with over_http(address, authorization=f"Bearer {people['operator'].token}") as operator:
            assert operator.does("cancel_run", execution_id=str(run.id))["status"] == "cancelled"
        asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        heads = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        assert httpx.post(address, content=asked, headers=heads | {"origin": "https://evil.example"}).status_code == 403
        assert httpx.post(address, content=asked, headers=heads | {"host": "evil.example"}).status_code == 421
    told_as = AuditEvent.objects.filter(action="run.cancel", outcome="allowed").values_list("actor", "channel")
    assert list(told_as) == [(people["operator"].actor.name, "mcp")]


def nobody_starts() -> dict[str, object]:
    return {"idempotency_key": "k", "pipeline": "nightly"}
