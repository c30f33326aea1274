"""Backfills from asking to their end: what is made, in which order, how many at once, and what nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.errors import Refusal
from pipelines.models import Application, AuditEvent, Environment, Lane, Run, Tick, Trigger
from recovery import backfills
from recovery.models import Backfill, BackfillTick
from tests.cast import Hand, Person
from tests.recovery.backfilled import assert_accounted_for, at, finish, runs_of, states, trigger_of, wish

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "0b7e3d1c-1111-4222-8333-444455556666"
WINDOW = ("2026-05-20T08:00:00+00:00", "2026-05-22T08:00:00+00:00")


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["admin"].actor, environment, application)


@pytest.fixture
def operator(people: dict[str, Person]) -> Any:
    return people["operator"].actor


def refused(code: str, act: Callable[[], Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == code, caught.value.detail
    return caught.value


def test_a_dry_run_counts_and_creates_nothing(trigger: Trigger, operator: Any, people: dict[str, Person]) -> None:
    """O51, O52, O53: three ticks, both ends of the window are in it; viewers may look too."""
    plan = backfills.preview(wish(trigger, *WINDOW, max_concurrent=3), people["viewer"].actor)
    told = plan.answer()
    assert (told["total_ticks"], told["dispatched"], told["failed"], told["dry_run"]) == (3, 0, 0, True)
    assert [(one["tick_time"], one["status"]) for one in told["ticks"]] == [
        (f"2026-05-{day}T08:00:00+00:00", "pending") for day in (20, 21, 22)
    ]
    assert told["ticks"][0]["rule"] == "fixed_time"
    assert told["missed_because"] == {"not recorded": 3}
    assert not Backfill.objects.exists()
    assert not Run.objects.exists()
    assert not Tick.objects.exists()


def test_every_missed_tick_gets_one_run_and_so_many_are_in(trigger: Trigger, operator: Any, hand: Hand) -> None:
    """O49, O54, O55: a run for every tick at once, `max_concurrent` of them active, the others held as queued."""
    done = backfills.start(wish(trigger, *WINDOW, max_concurrent=2, reason="the feed was down"), operator)
    told = done.as_json()
    assert (told["total_ticks"], told["dispatched"], told["failed"], told["status"]) == (3, 3, 0, "running")
    assert [one["status"] for one in told["ticks"]] == ["dispatched"] * 3
    runs = runs_of(done.backfill.id)
    assert [str(run.id) for run in runs] == [one["execution_id"] for one in told["ticks"]]
    assert [run.held for run in runs] == [False, False, True]
    assert {run.status for run in runs} == {"queued"}
    assert runs[0].requesters == [operator.user_id]
    assert_accounted_for(trigger)
    finish(hand, done.backfill.id)
    backfill = Backfill.objects.get()
    assert backfill.state == "completed"
    assert backfill.finished_at is not None
    assert {run.status for run in runs_of(backfill.id)} == {"completed"}
    assert [event.outcome for event in AuditEvent.objects.filter(action="backfill.start")] == ["allowed"]
