"""Bulks from choosing to their end: what is frozen, what is done, what is left alone, and that it always adds up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.access import Actor
from pipelines.models import Run
from recovery import bulks
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.recovery.bulked import K, begun, counted, failing, letters_of, of, outcomes, work_through

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(people: dict[str, Person]) -> Actor:
    return people["operator"].actor


@pytest.mark.parametrize("kind", bulks.KINDS)
def test_every_verb_is_done_on_what_takes_it_and_skips_the_rest(
    kind: K, start_run: Callable[..., Run], hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F164, F152: failed runs, a run under way and a cancelled one, by each verb."""
    failed = failing(start_run, hand, 3)
    targets = letters_of(failed) if kind in (K.REDRIVE, K.DISCARD) else failed
    bulk = begun(of(kind, targets), operator)
    work_through(bulk, clock)
    done = {"skipped": 3} if kind in (K.CANCEL, K.PAUSE, K.RESUME) else {"done": 3}
    assert counted(bulk) == done, outcomes(bulk)
    assert bulk.state == "completed"
