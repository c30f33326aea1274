"""Who asks in most tests of recovery; where the operations API is asked, a module has an `operator` of its own."""

from __future__ import annotations

import pytest

from pipelines.access import Actor
from tests.cast import Person


@pytest.fixture
def operator(people: dict[str, Person]) -> Actor:
    return people["operator"].actor
