"""Real connections and real commits: no test here runs inside a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.access import Actor
from tests.cast import Person
from tests.concurrency.crew import Crew, crew_of, deadlocks
from tests.engine_model.invariants import assert_invariants

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.django_db(transaction=True))


@pytest.fixture
def operator(people: dict[str, Person]) -> Actor:
    return people["operator"].actor


@pytest.fixture
def crew(transactional_db: None) -> Iterator[Crew]:
    """Eight threads; afterwards no deadlock has happened and every invariant holds."""
    before = deadlocks()
    with crew_of(8) as eight:
        yield eight
    assert deadlocks() == before
    assert_invariants()
