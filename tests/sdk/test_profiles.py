"""Which console is asked and as whom: what was said, the environment, a profile; and that no secret goes astray."""

from __future__ import annotations

import argparse
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from recourse import cli
from recourse.errors import ConfigurationError
from recourse.terminal import profiles

from tests.sdk.protocol_server import TOKEN, ProtocolServer
from tests.sdk.test_every_command import ANSWERS, ID

SECRET = "s3cret-of-the-file"
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("URL", "TOKEN", "API_KEY", "PROFILE"):
        monkeypatch.delenv(f"RECOURSE_{name}", raising=False)
    monkeypatch.delenv("PIPELOGIQ_API_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def write(home: Path) -> Write:
    def write(text: str, mode: int = 0o600) -> Path:
        path = home / "recourse" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


def found(*, url: str | None = None, profile: str | None = None) -> profiles.Connection:
    notes: list[str] = []
    connection = profiles.connection(argparse.Namespace(url=url, profile=profile), notes.append)
    assert notes == []
    return connection


BOTH = """
default = "production"
[profiles.production]
url = "https://production.example.org"
token_env = "OF_PRODUCTION"
[profiles.staging]
url = "https://staging.example.org/"
token = "of-staging"
"""


def test_without_anything_it_is_the_console_here() -> None:
    assert found() == profiles.Connection("http://localhost:8000", "nothing else was said")


def test_what_is_said_goes_before_the_environment_and_that_before_a_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(BOTH)
    monkeypatch.setenv("OF_PRODUCTION", "of-production")
    one = found()
    assert (one.url, one.token, one.profile) == ("https://production.example.org", "of-production", "production")
    one = found(profile="staging")
    assert (one.url, one.token) == ("https://staging.example.org/", "of-staging")
    monkeypatch.setenv("RECOURSE_PROFILE", "staging")
    assert found().token == "of-staging"
    assert found(profile="production").token == "of-production"
    monkeypatch.setenv("RECOURSE_TOKEN", "of-the-environment")
    assert found().token == "of-the-environment"
    one = found(profile="staging")
    assert (one.token, one.token_from) == ("of-staging", "token of the profile staging")
    monkeypatch.setenv("RECOURSE_URL", "https://elsewhere.example.org")
    assert found().url == "https://elsewhere.example.org"
    assert found(profile="staging").url == "https://staging.example.org/"
    assert found(url="https://said.example.org").url == "https://said.example.org"


def test_a_profiles_token_goes_to_its_own_console_only(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an option nor the environment leads it to another address."""
    write(BOTH)
    one = found(profile="staging", url="https://production.example.org")
    assert (one.token, "keeps it for https://staging.example.org" in str(one.token_from)) == (None, True)
    assert found(profile="staging", url="https://staging.example.org").token == "of-staging"
    monkeypatch.setenv("OF_PRODUCTION", "of-production")
    monkeypatch.setenv("RECOURSE_URL", "https://elsewhere.example.org")
    assert found().token is None


def test_a_secret_may_be_in_a_file_a_variable_or_what_a_command_prints(
    write: Write, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = home / "kept"
    kept.write_text(f"{SECRET}\n")
    kept.chmod(0o600)
    monkeypatch.setenv("KEPT", SECRET)
    for how in (f'token_file = "{kept}"', 'token_env = "KEPT"', f"token_command = \"printf '%s\\\\n' {SECRET}\""):
        write(f"default = 'a'\n[profiles.a]\n{how}\n{how.replace('token', 'api_key')}\n")
        one = found()
        assert (one.token, one.api_key) == (SECRET, SECRET), how


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("default = 'a'", "default names no profile there"),
        ("[profiles.a]\nurl = 1", "url is no text"),
        ("[profiles.a]\ntokn = 'x'", "has no tokn; there are:"),
        ("[profiles.a]\ntoken = 'x'\ntoken_env = 'X'", "token and token_env; one of them is enough"),
        ("profiles = 3", "a profile is a table"),
        ("tokens = 'x'", "unknown: tokens"),
        ("[profiles.a", "is no TOML"),
        ("default = 'a'\n[profiles.a]\ntoken_file = '/nonexistent/token'", "cannot be read: No such file"),
        ("default = 'a'\n[profiles.a]\ntoken_env = 'NOT_SET'", "token_env NOT_SET gives no secret"),
        ("default = 'a'\n[profiles.a]\ntoken_command = 'false'", "token_command ended with 1"),
        ("default = 'a'\n[profiles.a]\ntoken_command = 'no-such-program'", "token_command cannot be run"),
        ("default = 'a'\n[profiles.a]\ntoken_command = \"'\"", "token_command cannot be run"),
        ("default = 'a'\n[profiles.a]\ntoken_command = 'printf \"a\\nb\"'", "gives no secret of one line"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(write: Write, text: str, told: str) -> None:
    write(text)
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        found()


def test_a_file_that_others_can_read_is_warned_of_where_it_holds_a_secret(
    write: Write, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notes() -> list[str]:
        said: list[str] = []
        profiles.connection(argparse.Namespace(url=None, profile=None), said.append)
        return said

    path = write("default = 'a'\n[profiles.a]\ntoken = 'x'", mode=0o644)
    (said,) = notes()
    assert f"chmod 600 {path}" in said
    path.chmod(0o600)
    assert notes() == []
    kept = home / "kept"
    kept.write_text("x")
    kept.chmod(0o640)
    write(f"default = 'a'\n[profiles.a]\ntoken_file = '{kept}'", mode=0o644)
    (said,) = notes()
    assert str(kept) in said, "the file itself holds no secret, but the one that it names does"


@pytest.mark.parametrize("as_json", [True, False])
def test_no_secret_is_ever_shown(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    write(f"default = 'a'\n[profiles.a]\ntoken = '{SECRET}'\napi_key_env = 'KEY'")
    monkeypatch.setenv("KEY", f"{SECRET}-too")
    assert cli.main(["config", "show", *(["--json"] if as_json else [])]) == 0
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err
    assert "token of the profile a" in told.out


def test_a_profile_is_written_for_its_owner_alone_and_asks_with_its_token(
    server: ProtocolServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command of a password store with spaces and quotes goes into the file and back."""
    server.answers |= {path: (200, body) for path, body in ANSWERS.items()}
    made = ["config", "set-profile", "here", "--url", server.url, "--default"]
    assert cli.main([*made, "--token-command", f"printf '%s' \"{TOKEN}\""]) == 0
    path = home / "recourse" / "config.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    before = path.read_text()
    assert cli.main(["config", "set-profile", "there", "--url", "https://there.example.org"]) == 0
    assert path.read_text().startswith(before.rstrip("\n")), "what stands there stays"
    capsys.readouterr()
    assert cli.main(["execution", "snapshot", ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["execution_id"] == ID
    assert server.requests[-1][0] == f"/v1/executions/{ID}/snapshot"
    for words, told in (
        (["here"], "there is a profile here"),
        (["other", "--default"], "the default is here"),
        (["o ther"], "no name for a profile"),
        (["other", "--url", "localhost"], "not a whole address"),
        (["other", "--token-env", "A\nB"], "one line of text"),
    ):
        assert cli.main(["config", "set-profile", *words]) == 2
        assert told in capsys.readouterr().err
    assert set(profiles.read_file(lambda _: None).profiles) == {"here", "there"}


def test_no_token_is_taken_from_the_command_line() -> None:
    """O11: others can read it there."""
    for one in cli.make_parser().tree():
        options = {name for action in one.arguments() for name in action.option_strings}
        assert not options & {"--token", "--api-key", "--password"}


def test_the_file_is_below_home_where_nothing_else_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiles.config_path() == home / "recourse" / "config.toml"
    for told in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CONFIG_HOME", told)
        assert profiles.config_path() == home / "home" / ".config" / "recourse" / "config.toml"
