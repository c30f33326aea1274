"""Files below one folder: whole or not there, by name, and nowhere else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recourse import StageFailure
from recourse.adapters import Adapters, Written
from recourse.adapters.files import composed, parsed

from tests.sdk.adapters.provider import Died, Epoch
from tests.sdk.adapters.test_http import fails

ROWS = [{"id": 1, "name": 'Ä, "b"\nc'}, {"id": 2, "name": ""}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


@pytest.fixture
def files(folder: Path, epoch: Epoch, configure: Callable[[str], Path]) -> Callable[..., Any]:
    def connect(stage: Any = None, **settings: Any) -> Any:
        more = "".join(f"{name} = {value}\n" for name, value in settings.items())
        configure(f'[out]\nkind = "files"\nfolder = "{folder}"\n{more}')
        return Adapters(stage or epoch.attempt()).out

    return connect


def test_rows_come_back_as_they_were_written(files: Callable[..., Any], folder: Path, epoch: Epoch) -> None:
    """In a CSV every value is text."""
    adapter = files()
    assert asyncio.run(adapter.write(ROWS, op="upsert", name="day/a.jsonl")) == Written(2)
    asyncio.run(adapter.write(ROWS, op="upsert", name="a.csv"))
    assert asyncio.run(adapter.read({"name": "day/a.jsonl"})) == ROWS
    assert asyncio.run(adapter.read({"name": "a.csv"})) == [{**row, "id": str(row["id"])} for row in ROWS]
    assert asyncio.run(adapter.read({"name": "day/a.jsonl", "id": 2})) == ROWS[1:]
    assert asyncio.run(adapter.read({"name": "day/a.jsonl", "limit": 1})) == ROWS[:1]
    assert sorted(path.name for path in folder.rglob("*")) == ["a.csv", "a.jsonl", "day"], "nothing else is left"
    assert epoch.states == ["committed", "committed"]


def test_an_upsert_replaces_the_file_at_once_and_an_insert_does_not(
    files: Callable[..., Any], folder: Path, epoch: Epoch
) -> None:
    """N19, N23: the same again is done already, another is refused and the file stays."""
    adapter = files()
    for data in (b"one", b"two"):
        asyncio.run(adapter.write_bytes("a.bin", data))
    with (folder / "a.bin").open("rb") as reader:
        asyncio.run(adapter.write_bytes("a.bin", b"three"))
        assert reader.read() == b"two", "who reads meanwhile has the whole old file"
    assert asyncio.run(adapter.write_bytes("a.bin", b"three", "insert")) == Written(1, already=1)
    assert "has another a.bin already" in fails(adapter.write_bytes("a.bin", b"four", "insert")).message
    assert (folder / "a.bin").read_bytes() == b"three"
    assert epoch.states == ["committed"] * 4 + ["absent"]


def test_a_crash_before_the_outcome_converges(files: Callable[..., Any], folder: Path, epoch: Epoch) -> None:
    """N21: also of an insert, which finds its own file."""
    dying = epoch.attempt()
    dying.link.dies_at = "committed"  # type: ignore[attr-defined]
    with pytest.raises(Died):
        asyncio.run(files(dying).write(ROWS, name="a.jsonl"))
    epoch.lose()
    assert asyncio.run(files().write(ROWS, name="a.jsonl")) == Written(2, already=2)
    assert epoch.states == ["unknown", "committed"]


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/passwd", "a/../../b", "a/./../b", "", ".", ".hidden", "a/.b", "a\\b", "a\nb", "x" * 201, "link/a"],
)
def test_no_name_leads_out_of_the_folder(
    files: Callable[..., Any], folder: Path, tmp_path: Path, epoch: Epoch, name: str
) -> None:
    (folder / "link").symlink_to(tmp_path)
    for work in (files().read_bytes(name), files().write_bytes(name, b"x")):
        assert fails(work).code == "VALIDATION_ERROR"
    assert epoch.effects == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["connectors.toml", "out"]


def test_a_link_to_a_file_outside_is_not_followed(files: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (folder / "a").symlink_to(tmp_path / "secret")
    assert "leads out" in fails(files().read_bytes("a")).message


def test_both_sides_of_the_bounds(files: Callable[..., Any], folder: Path) -> None:
    """N26"""
    adapter = files(max_bytes=3, max_rows=1)
    asyncio.run(adapter.write_bytes("a", b"123"))
    assert fails(adapter.write_bytes("a", b"1234")).code == "RESPONSE_TOO_LARGE"
    (folder / "a").write_bytes(b"1234")
    assert fails(adapter.read_bytes("a")).code == "RESPONSE_TOO_LARGE"
    assert fails(adapter.write(ROWS, name="a.jsonl")).code == "ROW_LIMIT_EXCEEDED"


def test_what_is_not_there_is_missing(files: Callable[..., Any], folder: Path) -> None:
    assert fails(files().read({"name": "a.csv"})).code == "MISSING_REQUIRED_DATA"
    adapter = files()
    folder.rmdir()
    assert fails(adapter.read({"name": "a.csv"})).code == "CONNECTOR_INVALID"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(files: Callable[..., Any], folder: Path, epoch: Epoch) -> None:
    folder.chmod(0o500)
    assert fails(files().write_bytes("a", b"x")).code == "UPSTREAM_REFUSED"
    assert epoch.states == ["absent"]


def test_rows_need_a_suffix_that_says_how_and_bytes_that_are_rows() -> None:
    for work in (
        lambda: composed("a.txt", [], []),
        lambda: parsed("a.jsonl", b"[1]\n"),
        lambda: parsed("a.jsonl", b"{"),
        lambda: parsed("a.csv", b"\xff"),
    ):
        with pytest.raises(StageFailure, match="VALIDATION_ERROR"):
            work()
