"""Beat and workers under kill -9 while schedules are due: every tick ends with its one run, every run at its end."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.models import Run, Tick, Trigger
from pipelines.sql import database_now
from recovery import backfills
from tests.cast import Person
from tests.concurrency.test_schedulers import EVERY_MINUTE, accounted, copy_of, held_to
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.test_executor_celery import Console
from tests.scheduled import MakeTrigger, assert_ledger_holds, turn_back

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
PATIENCE_SECONDS = 180


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """Workers of this console with beat in them."""
    made = Console(tmp_path, "filesystem://", lease_seconds=2)
    yield made
    made.kill_all()


def until(console: Console, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, console.log()
        time.sleep(0.05)


@pytest.mark.parametrize("rounds", [2, pytest.param(15, marks=pytest.mark.prove)])
def test_ticks_survive_beat_and_workers_that_are_killed(
    console: Console, make_trigger: MakeTrigger, rounds: int
) -> None:
    """F112, I18: killed at any moment of recording, dispatching and working, with new ticks due in every round."""
    dice = random.Random(os.environ.get("RECOURSE_TEST_SEED", "schedules"))
    stage = {"name": "first", "handler": "Quick", "options": {"max_recoveries": 100}}
    first = make_trigger("* * * * *", stages=[stage], **EVERY_MINUTE)
    Trigger.objects.update(next_at=None)
    since = {}
    for _ in range(rounds):
        for policy in ("allow", "queue_all", "queue_one", "skip"):
            trigger = copy_of(first, overlap_policy=policy)
            since[trigger] = turn_back(trigger, minutes=8)
        before = Run.objects.count()
        console.start()
        more = dice.randint(0, 6)
        until(console, lambda: Run.objects.count() > before + more)  # noqa: B023
        time.sleep(dice.random())
        console.kill_all()
        for trigger, begun in since.items():
            accounted(trigger, begun)
    console.start()
    until(console, lambda: not Tick.objects.filter(state="due").exists())
    Trigger.objects.update(enabled=False)
    until(console, lambda: not Run.objects.exclude(status="completed").exists())
    console.stop()
    for trigger, begun in since.items():
        held_to(trigger, begun)
    assert set(Tick.objects.values_list("state", flat=True)) <= {"dispatched", "skipped"}
    assert_ledger_holds()
    assert_invariants()


def test_what_a_backfill_holds_outlives_restarts(
    console: Console, make_trigger: MakeTrigger, people: dict[str, Person]
) -> None:
    """F78: beat and workers end and come again beside 300 runs that wait: none is cancelled, lost or let in while it is
    paused, and resumed it goes on."""
    trigger = make_trigger("* * * * *", enabled=False, stages=[{"name": "first", "handler": "Quick"}])
    now, operator = database_now(), people["operator"].actor
    window = (now - timedelta(minutes=400), now - timedelta(minutes=100, seconds=1))
    done = backfills.start(backfills.Wish(trigger.id, *window), operator)
    backfills.pause(done.backfill.id, operator)
    assert done.progress.total == 300

    def completed() -> int:
        return backfills.progress(done.backfill).completed

    for end in (console.kill_all, console.stop):
        console.start()
        until(console, lambda: completed() == 1)
        time.sleep(2)  # sweeps come by every second
        end()
        found = backfills.progress(done.backfill)
        assert dict(found.runs) == {"held": 299, "completed": 1}
    assert backfills.resume(done.backfill.id, operator).status == "running"
    console.start()
    until(console, lambda: completed() >= 4)
    console.kill_all()
    found = backfills.progress(done.backfill)
    assert found.held + found.active + found.completed == found.dispatched == 300
    assert found.active <= 1
    assert_ledger_holds()
    assert_invariants()
