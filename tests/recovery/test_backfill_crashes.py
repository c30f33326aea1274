"""Backfills whose process dies at every statement of asking, filling, cancelling, agreeing and ending: every tick ends
accounted for, and none has two live runs (I18).

At each statement the process stops: whatever it had not committed is gone, and it does nothing more. Then the sweep
comes by, or the same request again, or both. Some are really killed (kill -9), so that nothing of the language or the
driver can tidy up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from pipelines import lanes
from pipelines.access import Actor
from pipelines.models import Application, Environment, Run, Tick, Trigger
from recovery import backfill_work, backfills
from recovery.backfills import Wish
from recovery.models import Backfill
from tests.approvals.asked import agree
from tests.cast import Hand, Person
from tests.recovery.backfilled import assert_accounted_for, at, finish, runs_of, states, trigger_of
from tests.services import database_url

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
ROOT = Path(__file__).resolve().parents[2]
TICKS = 5
FIRST = at("2024-01-01T00:00:00+00:00")


class Killed(BaseException):
    """Nothing after this is done by the one who was asked."""


class Counting:
    """Counts statements, and dies before the one of that number."""

    def __init__(self, dies_at: int = 0) -> None:
        self.dies_at, self.count = dies_at, 0

    def __call__(self, run: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        self.count += 1
        if self.count == self.dies_at:
            raise Killed(str(sql)[:80])
        return run(sql, params, many, context)


def statements(act: Callable[[], Any]) -> int:
    counting = Counting()
    with connection.execute_wrapper(counting):
        act()
    return counting.count


def dies(act: Callable[[], Any], number: int) -> bool:
    """Whether it came to that statement, and died there."""
    with connection.execute_wrapper(Counting(number)):
        try:
            act()
        except Killed:
            return True
    return False


@pytest.fixture(autouse=True)
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every loop is gone through more than once."""
    monkeypatch.setattr(backfill_work, "BATCH", 2)
    monkeypatch.setattr(backfill_work, "CANCEL_BATCH", 2)


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["admin"].actor, environment, application)


@pytest.fixture
def windows() -> Iterator[tuple[datetime, datetime]]:
    """One window of `TICKS` days after the other."""

    def each() -> Iterator[tuple[datetime, datetime]]:
        start = FIRST
        while True:
            yield start, start + timedelta(days=TICKS - 1, hours=23)
            start += timedelta(days=TICKS)

    return each()


def heal() -> None:
    """The sweeps come by until they find nothing more to do."""
    for _ in range(20):
        if not lanes.let_in() and not any(backfills.carry_on().values()):
            return
    raise AssertionError("the sweep finds no end")


def ledger_of(trigger: Trigger, window: tuple[datetime, datetime]) -> Any:
    return Tick.objects.filter(trigger=trigger, at__range=window)


def test_asked_and_filled_whatever_dies_when(
    trigger: Trigger, operator: Actor, windows: Iterator[tuple[datetime, datetime]]
) -> None:
    """Before its commit nothing was asked; after it every tick gets its run, by the sweep or by the same request."""

    def ask(window: tuple[datetime, datetime], key: str) -> backfills.Answer:
        return backfills.start(Wish(trigger.id, *window), operator, key)

    total = statements(lambda: ask(next(windows), str(uuid.uuid4())))
    nothing, half = 0, 0
    for number in range(1, total + 1):
        window, key = next(windows), str(uuid.uuid4())
        if not dies(partial(ask, window, key), number):
            break  # what the first one had to look up is known by now
        found = Backfill.objects.filter(key=key).first()
        if found is None:
            nothing += 1
            assert not ledger_of(trigger, window).exists()
        else:
            half += "pending" in states(found.id)
        if number % 2:
            heal()
        done = ask(window, key)
        assert done.replayed is (found is not None)
        assert states(done.backfill.id) == {"dispatched": TICKS}
        assert len(runs_of(done.backfill.id)) == TICKS
        assert set(ledger_of(trigger, window).values_list("run", flat=True)) == {
            run.id for run in runs_of(done.backfill.id)
        }
        heal()
        assert [run.held for run in runs_of(done.backfill.id)] == [False] + [True] * (TICKS - 1)
        backfills.cancel(done.backfill.id, operator)  # so that fewer are live in the end
    assert nothing > 5
    assert half > 5
    assert_accounted_for(trigger)


def test_cancelled_whatever_dies_when(
    trigger: Trigger, operator: Actor, windows: Iterator[tuple[datetime, datetime]]
) -> None:
    """F82: nothing is stranded, and what was given back can be filled again."""

    def begin() -> tuple[tuple[datetime, datetime], Backfill]:
        window = next(windows)
        return window, backfills.start(Wish(trigger.id, *window), operator).backfill

    _, first = begin()
    total = statements(lambda: backfills.cancel(first.id, operator))
    for number in range(1, total + 1):
        window, backfill = begin()
        dies(partial(backfills.cancel, backfill.id, operator, "no"), number)
        heal()
        backfill.refresh_from_db()
        if backfill.state == "running":
            assert states(backfill.id) == {"dispatched": TICKS}
            backfills.cancel(backfill.id, operator, "no")
            heal()
            backfill.refresh_from_db()
        assert (backfill.state, backfill.finished_at is not None) == ("cancelled", True)
        assert states(backfill.id) == {"dispatched": 1, "cancelled": TICKS - 1}
        assert ledger_of(trigger, window).count() == 1
        assert [run.status for run in runs_of(backfill.id)] == ["queued"] + ["cancelled"] * (TICKS - 1)
        if number % 5 == 0:
            again = backfills.start(Wish(trigger.id, *window), operator)
            assert (again.progress.total, again.progress.skipped) == (TICKS - 1, 1)
            backfills.cancel(again.backfill.id, operator)
    assert_accounted_for(trigger)


def test_completed_whatever_dies_when(
    trigger: Trigger, operator: Actor, hand: Hand, windows: Iterator[tuple[datetime, datetime]]
) -> None:
    def begin() -> Backfill:
        done = backfills.start(Wish(trigger.id, *next(windows), max_concurrent=TICKS), operator)
        hand.finish()
        return done.backfill

    begin()
    total = statements(backfills.carry_on)
    for number in range(1, total + 1):
        backfill = begin()
        dies(backfills.carry_on, number)
        heal()
        backfill.refresh_from_db()
        assert (backfill.state, states(backfill.id)) == ("completed", {"dispatched": TICKS})
    assert_accounted_for(trigger)


def test_agreed_to_whatever_dies_when(
    people: dict[str, Person], environments: dict[str, Environment], application: Application, operator: Actor
) -> None:
    """The decision and the start of the backfill commit together; what was started is carried on."""
    trigger = trigger_of(people["admin"].actor, environments["production"], application)
    day = iter(range(1000))

    def ask() -> Backfill:
        start = FIRST + timedelta(days=3 * next(day))
        done = backfills.start(Wish(trigger.id, start, start + timedelta(days=2, hours=23)), operator)
        assert done.status == "awaiting_approval"
        return done.backfill

    approver, first = people["approver"].actor, ask()
    total = statements(lambda: agree(first.id, approver))
    for number in range(1, total + 1, 2):
        backfill = ask()
        dies(partial(agree, backfill.id, approver), number)
        heal()
        backfill.refresh_from_db()
        if backfill.state == "awaiting_approval":
            assert not runs_of(backfill.id)
            agree(backfill.id, approver)
        assert states(backfill.id) == {"dispatched": 3}
        assert len(runs_of(backfill.id)) == 3
    assert_accounted_for(trigger)


REAL_KILL = """
import os, signal, sys
from datetime import datetime
import django
django.setup()
from django.contrib.auth import get_user_model
from django.db import connection
from pipelines.access import person
from pipelines.models import Trigger
from recovery import backfill_work, backfills

number, trigger_id, user_id, key, start, end = sys.argv[1:]
backfill_work.BATCH = 2
trigger = Trigger.objects.get(id=trigger_id)
actor = person(get_user_model().objects.get(pk=user_id), trigger.workspace_id, "api")
count = 0

def counting(run, *told):
    global count
    count += 1
    if count == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return run(*told)

wish = backfills.Wish(trigger.id, datetime.fromisoformat(start), datetime.fromisoformat(end))
with connection.execute_wrapper(counting):
    backfills.start(wish, actor, key)
"""


@pytest.mark.parametrize("part", [0.3, 0.6, 0.7, 0.8, 0.95])
def test_a_process_that_is_really_killed_leaves_all_or_nothing_of_a_tick(
    trigger: Trigger, operator: Actor, hand: Hand, windows: Iterator[tuple[datetime, datetime]], part: float
) -> None:
    """kill -9."""
    total = statements(lambda: backfills.start(Wish(trigger.id, *next(windows)), operator, str(uuid.uuid4())))
    window, key = next(windows), str(uuid.uuid4())
    told = [str(int(total * part)), str(trigger.id), str(operator.user_id), key, *(one.isoformat() for one in window)]
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL_KILL, *told],
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert_accounted_for(trigger)
    heal()
    done = backfills.start(Wish(trigger.id, *window), operator, key)
    assert states(done.backfill.id) == {"dispatched": TICKS}
    heal()
    finish(hand, done.backfill.id)
    assert Backfill.objects.get(id=done.backfill.id).state == "completed"
    assert not Run.objects.exclude(status="completed").exists()
    assert_accounted_for(trigger)
