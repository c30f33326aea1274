"""The file of connectors: what is in it, what is refused by name, and that no secret is ever told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from recourse import StageFailure
from recourse.adapters import Adapters
from recourse.adapters.files import Files
from recourse.adapters.http import Http

from tests.sdk.adapters.provider import Epoch

Configure = Callable[[str], Path]


def refused(adapters: Adapters, name: str = "crm") -> str:
    with pytest.raises(StageFailure) as failed:
        getattr(adapters, name)
    assert (failed.value.code, failed.value.retryable) == ("CONNECTOR_INVALID", False)
    return failed.value.message


def test_a_name_that_is_not_configured_is_told_those_that_are(configure: Configure, epoch: Epoch) -> None:
    """N8, N15"""
    configure('[crm]\nkind = "http"\nurl = "http://localhost"\n[out]\nkind = "files"\nfolder = "/nowhere"\n')
    adapters = Adapters(epoch.attempt())
    assert refused(adapters, "netsuite") == "no connector is called 'netsuite'; there are: crm, out"
    assert adapters.names == ["crm", "out"]
    assert isinstance(adapters.crm, Http)
    assert adapters.crm is adapters.crm
    assert adapters.of(Files, "out").name == "out"
    with pytest.raises(StageFailure, match="out is a connector of another kind than Http"):
        adapters.of(Http, "out")


def test_without_a_file_there_are_none(epoch: Epoch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECOURSE_CONNECTORS", raising=False)
    assert "there are: none: RECOURSE_CONNECTORS names the file" in refused(Adapters(epoch.attempt()))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[crm]\nkind = "ftp"', "crm.kind is one of files, http"),
        ("[crm]\nurl = 'http://localhost'", "crm lacks kind"),
        ('[crm]\nkind = "http"', "crm lacks url"),
        ('[crm]\nkind = "http"\nurl = "ftp://localhost"', "the url of crm is https://host/path"),
        ('[crm]\nkind = "http"\nurl = "http://a:sesame@localhost"', "without credentials"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\ntoken = "sesame"', "crm.token is a secret: name where it is"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\ntoken = "env:NOBODY_SET_IT"', "NOBODY_SET_IT, which is not"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\ntoken = "file:/nowhere"', "a file that cannot be read"),
        (
            '[crm]\nkind = "http"\nurl = "http://localhost"\n[crm.headers]\nAuthorization = "sesame"',
            "crm.headers.Authorization is a secret",
        ),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\nretries = 11', "crm.retries is a whole number from 0 to 10"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\nretries = true', "not True"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\ntimeout = "soon"', "crm.timeout is a number"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\nretrys = 1\nport = 2', "there are not: port, retrys"),
        ('[crm]\nkind = "http"\nurl = "http://localhost"\nrecipient = "me"', "crm.recipient is a table"),
        ('[crm]\nkind = "netsuite"\nurl = "http://localhost"\nidempotency_header = "X"', "NetSuite knows no key"),
        ('[crm]\nkind = "postgresql"\nurl = "postgres://a:sesame@localhost/b"', "crm.url is a secret"),
        ('[crm]\nkind = "postgresql"\nurl = "env:OTHER_DATABASE"', "is of mysql, and its kind is postgresql"),
        ('[crm]\nkind = "postgresql"\nurl = "env:NO_ADDRESS"', "cannot be read as a database's address"),
        ('[crm]\nkind = "mysql"\nurl = "env:OTHER_DATABASE"\ntable = "a"', "crm.table is none of its tables"),
        ('[crm]\nkind = "mysql"\nurl = "env:OTHER_DATABASE"\n[crm.tables.a]\nkey = ["a", "a"]', "names one twice"),
        ('[crm]\nkind = "mysql"\nurl = "env:OTHER_DATABASE"\n[crm.tables.a]\nkey = "a"', "key is a list of texts"),
        (
            '[crm]\nkind = "mysql"\nurl = "env:OTHER_DATABASE"\n[crm.tables.a]\nmost = 1',
            "crm.tables.a has settings that",
        ),
        ("crm = 1", "crm is a table"),
        ('["crm 2"]\nkind = "http"', "'crm 2' cannot be a connector's name"),
        ("[names]", "'names' cannot be"),
        ("[crm", "is no TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_and_no_secret_told(
    configure: Configure, epoch: Epoch, monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    monkeypatch.setenv("OTHER_DATABASE", "mysql://root:sesame@localhost/a")
    monkeypatch.setenv("NO_ADDRESS", "sesame")
    configure(text)
    told = refused(Adapters(epoch.attempt()))
    assert named in told
    assert "sesame" not in told


def test_a_driver_that_is_not_installed_is_told_how_to_get(
    configure: Configure, epoch: Epoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSSQL", "mssql://a:sesame@localhost/b")
    configure('[crm]\nkind = "sqlserver"\nurl = "env:MSSQL"\n')
    told = refused(Adapters(epoch.attempt()))
    assert "needs the driver mssql+pyodbc" in told
    assert "sesame" not in told


def test_a_changed_file_and_a_changed_token_count_from_the_next_attempt(
    configure: Configure, epoch: Epoch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    text = f'[crm]\nkind = "http"\nurl = "http://localhost"\ntoken = "file:{token}"\n'
    configure(text)
    assert Adapters(epoch.attempt()).crm._settings.token == "first"
    token.write_text("second\n")
    assert Adapters(epoch.attempt()).crm._settings.token == "second"
    configure(text + 'idempotency_header = "Idempotency-Key"\n')
    adapter = Adapters(epoch.attempt()).crm
    assert adapter.capabilities.provider_key == "passed on as Idempotency-Key"
    assert "second" not in repr(adapter._settings)


def test_a_stage_that_is_stopped_makes_adapters_and_reaches_nothing(configure: Configure, epoch: Epoch) -> None:
    configure('[crm]\nkind = "http"\nurl = "http://127.0.0.1:9"\n')
    stage = epoch.attempt()
    stage.control.stop("cancelled")
    with pytest.raises(Exception, match="cancelled"):
        asyncio.run(Adapters(stage).crm.read({"path": "/a"}))
