"""People in front of the console, in this process: `browse(people["operator"])` is a client that has logged in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.cast import Person

HTMX = {"HX-Request": "true"}


class Visitor(Client):
    """A browser without JavaScript; `part` asks as HTMX does."""

    def part(self, address: str, **query: str) -> Any:
        return self.get(address, query, headers=HTMX)


@pytest.fixture
def browse() -> Callable[[Person], Visitor]:
    def log_in(person: Person) -> Visitor:
        visitor = Visitor()
        visitor.force_login(person.user)
        return visitor

    return log_in


@pytest.fixture
def operator(browse: Callable[[Person], Visitor], people: dict[str, Person]) -> Visitor:
    return browse(people["operator"])


def text_of(response: Any) -> str:
    """What a reader sees: no tags, single spaces."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", response.content.decode(), flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", body).replace("&#x27;", "'").replace("&quot;", '"').split())
