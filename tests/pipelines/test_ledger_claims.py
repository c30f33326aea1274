"""Ticks that a backfill takes and gives back: what is free to be taken, and that nothing of it stays behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from pipelines import ledger
from pipelines.models import Run, Tick
from pipelines.sql import database_now
from tests.cast import Hand
from tests.scheduled import Fill, MakeTrigger, run_pass, states, turn_back

pytestmark = pytest.mark.django_db


def test_what_is_given_back_is_as_it_was(make_trigger: MakeTrigger, fill: Fill, hand: Hand) -> None:
    """Rows that there were come back, of rows that there were not nothing stays."""
    trigger = make_trigger("* * * * *", catch_up="none", start_within=1)
    turn_back(trigger, minutes=5)
    run_pass()
    now = database_now().replace(second=0, microsecond=0) - timedelta(minutes=1)
    before = list(Tick.objects.order_by("at").values())
    claims = fill(trigger, now - timedelta(minutes=30), now)
    assert len(claims.claimed) == 31
    assert states(trigger)["dispatched"] >= 31
    with transaction.atomic():
        assert ledger.give_back(trigger.id, claims.claimed) == 31
    assert list(Tick.objects.order_by("at").values()) == before
    with transaction.atomic():
        assert ledger.give_back(trigger.id, claims.claimed) == 0, "once"
    again = fill(trigger, now - timedelta(minutes=30), now)
    assert len(again.claimed) == 31, "another backfill over the rest works (F82)"


def test_what_another_has_claimed_since_is_not_given_back(make_trigger: MakeTrigger, fill: Fill, hand: Hand) -> None:
    trigger = make_trigger("* * * * *", enabled=False)
    at = database_now().replace(second=0, microsecond=0) - timedelta(days=1)
    first = fill(trigger, at, at)
    hand.finish()
    second = fill(trigger, at, at, "all")
    assert [one.run_id for one in second.claimed] != [one.run_id for one in first.claimed]
    with transaction.atomic():
        assert ledger.give_back(trigger.id, first.claimed) == 0
    assert Tick.objects.get().run == second.claimed[0].run_id
    with transaction.atomic():
        assert ledger.give_back(trigger.id, second.claimed) == 1
    assert Tick.objects.get().run == first.claimed[0].run_id, "the run that it had before"


@pytest.mark.parametrize(
    ("reprocess", "status", "again"),
    [
        ("none", "completed", False),
        ("none", "failed", False),
        ("failed", "failed", True),
        ("failed", "cancelled", True),
        ("failed", "completed", False),
        ("all", "completed", True),
        ("all", "failed", True),
        ("all", "running", False),
        ("failed", "running", False),
    ],
)
def test_a_tick_with_a_run_is_done_once_more_only_as_it_is_asked(
    make_trigger: MakeTrigger, fill: Fill, reprocess: str, status: str, again: bool
) -> None:
    trigger = make_trigger("* * * * *", enabled=False)
    at = datetime(2026, 5, 20, 8, tzinfo=UTC)
    fill(trigger, at, at)
    Run.objects.update(status=status)
    claims = fill(trigger, at, at, reprocess)
    assert (len(claims.claimed), len(claims.existing)) == ((1, 0) if again else (0, 1))
