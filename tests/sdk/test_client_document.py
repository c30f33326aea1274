"""docs/howto/python-client.md: what it shows runs, from its first line to its last, against a console."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.models import Attempt, Run
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "howto" / "python-client.md"


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with web_server(url_of_test_database("document")) as started:
        yield started


def test_what_the_document_shows_runs(
    web: tuple[str, subprocess.Popen[bytes]],
    api_key: str,
    people: dict[str, Person],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """O12, word for word but for names; the address alone is this console's."""
    monkeypatch.setenv("RECOURSE_URL", web[0])
    monkeypatch.setenv("RECOURSE_API_KEY", api_key)
    monkeypatch.setenv("RECOURSE_TOKEN", people["operator"].token)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    space: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        code = block.replace('Client("http://localhost:8000")', f'Client("{web[0]}")')
        exec(compile(code, f"{DOCUMENT.name}, block {number}", "exec"), space)
    told = capsys.readouterr().out
    assert "pause succeeded" in told
    assert Run.objects.count() == 3, "one was created, and replayed twice: with a key of its own, and with a kept one"
    assert Attempt.objects.filter(state="succeeded").count() == 1
