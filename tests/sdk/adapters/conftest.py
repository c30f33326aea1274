"""A provider that ends with its test, an epoch, and connectors written as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recourse.adapters import Adapters

from tests.sdk.adapters.provider import Epoch, Provider

Connect = Callable[..., Any]


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture
def epoch() -> Epoch:
    return Epoch()


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the file that RECOURSE_CONNECTORS names."""

    def write(text: str) -> Path:
        path = tmp_path / "connectors.toml"
        path.write_text(text)
        monkeypatch.setenv("RECOURSE_CONNECTORS", str(path))
        return path

    return write


@pytest.fixture
def crm(provider: Provider, epoch: Epoch, configure: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Connect:
    """The HTTP connector `crm` in a new attempt of the epoch, with quick waits; what is given is set besides."""
    monkeypatch.setenv("CRM_TOKEN", "sesame")

    def connect(stage: Any = None, **settings: Any) -> Any:
        given = {"kind": "http", "url": f"{provider.url}/api", "token": "env:CRM_TOKEN", "backoff": 0.01} | settings
        configure("[crm]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
        return Adapters(stage or epoch.attempt()).crm

    return connect
