"""What providers, files and settings may hold to do harm: secrets come back in nobody's words, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recourse import StageFailure
from recourse.adapters import Adapters

from tests.sdk.adapters.conftest import Connect
from tests.sdk.adapters.provider import Epoch, Provider, reply
from tests.sdk.adapters.test_http import fails

DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
QUICK = 10  # seconds; nothing here waits for anything


def all_of(error: BaseException) -> str:
    """What a worker tells the console of a failure."""
    return "".join(traceback.format_exception(error))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


@pytest.fixture
def files(folder: Path, epoch: Epoch, configure: Callable[[str], Path]) -> Any:
    configure(f'[out]\nkind = "files"\nfolder = "{folder}"\n')
    return Adapters(epoch.attempt()).out


@pytest.mark.parametrize("status", [401, 400, 429, 503, 500, 302])
def test_a_provider_that_says_a_secret_back_is_not_quoted(
    crm: Connect, provider: Provider, epoch: Epoch, status: int
) -> None:
    """N15: a refusal often names the token that it refuses."""
    told = reply(status, {"error": "Bearer sesame is not valid", "key": "x-open-sesame"}, location="/x?token=sesame")
    provider.answer = lambda _: told
    for work in (crm().post("/invoices", json={}), crm().get("/invoices")):
        assert "sesame" not in all_of(fails(work))
    assert "sesame" not in json.dumps(epoch.effects)


def test_a_reference_that_holds_a_secret_is_not_kept(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    provider.script = [reply(201, {}, location="/invoices/7?token=sesame"), reply(201, {"id": "sesame"})]
    for _ in range(2):
        asyncio.run(crm().post("/invoices", json={"n": _}))
    assert epoch.states == ["committed", "committed"]
    assert "sesame" not in json.dumps(epoch.effects)


@pytest.mark.parametrize("value", ["a\r\nevil: 1", "a\nb", " a", "a ", "a\x00b", "ä"])
def test_a_header_that_cannot_be_sent_is_refused_before_anything_is(
    crm: Connect, provider: Provider, epoch: Epoch, value: str
) -> None:
    for name, said in (("x-note", value), (f"x{value}", "y")):
        failed = fails(crm().request("POST", "/invoices", json={}, headers={name: said}))
        assert (failed.code, failed.retryable) == ("VALIDATION_ERROR", False)
    assert (provider.asked, epoch.effects) == ([], [])


@pytest.mark.parametrize("value", [" sesame", "sesame ", "ses\tame", "sesä"])
def test_a_secret_that_cannot_be_sent_is_refused_without_being_told(
    configure: Callable[[str], Path], epoch: Epoch, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("KEY", value)
    configure('[crm]\nkind = "http"\nurl = "http://localhost:9"\n[crm.headers]\nx-api-key = "env:KEY"\n')
    with pytest.raises(StageFailure) as failed:
        asyncio.run(Adapters(epoch.attempt()).crm.get("/a"))
    assert failed.value.code == "CONNECTOR_INVALID"
    assert "ses" not in all_of(failed.value)


@pytest.mark.parametrize("name", ["X-Api-Key", "Cookie", "X-Auth", "Proxy-Authorization", "client-secret"])
def test_a_secret_header_stands_in_no_file(configure: Callable[[str], Path], epoch: Epoch, name: str) -> None:
    configure(f'[crm]\nkind = "http"\nurl = "http://localhost:9"\n[crm.headers]\n{name} = "sesame"\n')
    with pytest.raises(StageFailure) as failed:
        _ = Adapters(epoch.attempt()).crm
    assert f"crm.headers.{name} is a secret" in failed.value.message
    assert "sesame" not in all_of(failed.value)


def test_an_answer_that_is_nested_too_deep_is_an_answer(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """What was done is committed; what cannot be read is the provider's fault."""
    provider.answer = lambda _: reply(200, DEEP)
    short = b'{"id":"i-1","a":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    provider.script = [reply(201, short)]
    assert asyncio.run(crm().post("/invoices", json={})).status == 201
    assert epoch.states == ["committed"]
    assert fails(crm().read({"path": "/invoices"})).code == "UPSTREAM_ERROR"


@pytest.mark.parametrize(
    "url",
    ["http://:sesame@localhost", "http://sesame@localhost", "http://[sesame", "http://localhost:sesame", "http://@/a"],
)
def test_an_address_of_a_provider_holds_no_secret_and_no_riddle(
    configure: Callable[[str], Path], epoch: Epoch, url: str
) -> None:
    configure(f'[crm]\nkind = "http"\nurl = "{url}"\n')
    with pytest.raises(StageFailure) as failed:
        _ = Adapters(epoch.attempt()).crm
    assert failed.value.code == "CONNECTOR_INVALID"
    assert "sesame" not in all_of(failed.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:se@same@localhost/b",
        "postgresql://me:se@same:wourd@localhost/b",
        "postgresql://me:sesame@localhost:port/b",
        "postgresql://me:sesame@localhost:1/b?nothing_like_it=sesame",
    ],
)
def test_an_address_that_is_wrong_tells_nothing_of_itself(
    configure: Callable[[str], Path], epoch: Epoch, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """A password with a sign that should have been escaped ends up in the host or the port."""
    monkeypatch.setenv("DB", url)
    configure('[db]\nkind = "postgresql"\nurl = "env:DB"\n[db.tables.a]\n')
    with pytest.raises(StageFailure) as failed:
        asyncio.run(Adapters(epoch.attempt()).db.read())
    told = all_of(failed.value)
    assert not [part for part in ("sesame", "same", "wourd") if part in told.replace(__file__, "")]


def test_links_in_a_circle_and_what_is_no_file_are_told_and_wait_for_nobody(files: Any, folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "dir.jsonl").mkdir()
    for name in ("a", "a/c.jsonl", "pipe.jsonl", "dir.jsonl", "dir.jsonl/x" + "y" * 190):

        async def read(name: str = name) -> Any:
            return await asyncio.wait_for(files.read_bytes(name), QUICK)

        failed = fails(read())
        assert failed.code in ("VALIDATION_ERROR", "UPSTREAM_REFUSED", "MISSING_REQUIRED_DATA"), name
        if name not in ("pipe.jsonl", "dir.jsonl/x" + "y" * 190):
            assert fails(files.write_bytes(name, b"x")).code in ("VALIDATION_ERROR", "UPSTREAM_REFUSED"), name


def test_rows_that_a_file_cannot_hold_or_that_cannot_be_read_are_told(files: Any, folder: Path, epoch: Epoch) -> None:
    (folder / "deep.jsonl").write_bytes(DEEP)
    (folder / "wide.csv").write_text("a,b\n1,2,3\n")
    (folder / "short.csv").write_text("a,b\n1\n")
    for name in ("deep.jsonl", "wide.csv", "short.csv"):
        assert fails(files.read({"name": name})).code == "VALIDATION_ERROR", name
    for name in ("a.csv", "a.jsonl"):
        assert fails(files.write([{"a": "\ud800"}], op="upsert", name=name)).code == "VALIDATION_ERROR", name
    for limit in (-1, "2", True):
        (folder / "a.jsonl").write_text('{"a":1}\n')
        assert fails(files.read({"name": "a.jsonl", "limit": limit})).code == "VALIDATION_ERROR", limit
    assert epoch.effects == []
