"""Bulks whose process dies at every statement of asking and of working: each target is dealt with once (F162).

At each statement the process stops: whatever it had not committed is gone, and it does nothing more. Then somebody else
takes the next turn, or the same request comes again.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from pipelines.access import Actor
from pipelines.models import AuditEvent, DeadLetter, Run, Stage
from recovery import bulk_work, bulks
from recovery.models import BulkItem, BulkOperation, Operation
from tests.cast import Hand
from tests.clock import Clock
from tests.recovery.bulked import K, begun, counted, failing, letters_of, of, work_through
from tests.recovery.test_backfill_crashes import dies, statements

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
StartRun = Callable[..., Run]


def assert_each_once(bulk: BulkOperation) -> None:
    """Every letter is still open and its stage failed, or redriven and its stage begun anew, as its target says."""
    for item in BulkItem.objects.filter(bulk=bulk):
        letter, stage = DeadLetter.objects.get(id=item.dead_letter), Stage.objects.get(id=item.stage)
        done = item.state == "done"
        assert (letter.state, stage.state, stage.epoch) == (("redriven", "ready", 2) if done else ("open", "failed", 1))
        assert Operation.objects.filter(stage=stage).count() == int(done)
        assert AuditEvent.objects.filter(action="dead_letter.redrive", stage=stage.id).count() == int(done)


def test_a_redrive_is_done_once_whatever_dies_when(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F162: before its commit the letter is as it was, after it its stage is queued; never both, never neither."""
    first = begun(of(K.REDRIVE, letters_of(failing(start_run, hand, 7)), rate=3), operator)
    bulk_work.step(first.id)
    clock.advance(2)
    total = statements(partial(bulk_work.step, first.id))
    letters = letters_of(failing(start_run, hand, 40))
    bulk = begun(of(K.REDRIVE, letters, rate=3), operator)
    half = whole = 0
    for number in range(1, total + 4):
        clock.advance(2)
        before = counted(bulk).get("done", 0)
        if not dies(partial(bulk_work.step, bulk.id), number):
            break
        after = counted(bulk).get("done", 0)
        assert after - before in (0, 4), "those of one transaction, or none"
        half += after == before
        whole += after > before
    assert (half > 20, whole > 0) == (True, True)
    assert_each_once(bulk)
    work_through(bulk, clock)
    assert counted(bulk) == {"done": len(letters)}
    assert bulk.state == "completed"
    assert_each_once(bulk)


def test_asked_once_whatever_dies_when(start_run: StartRun, operator: Actor) -> None:
    """F123: before its commit nothing was asked; afterwards the same request finds what it made."""
    runs = [start_run() for _ in range(2)]

    def ask(key: str) -> bulks.Answer:
        return bulks.create(of(K.PAUSE, runs), actor=operator, key=key)

    total = statements(lambda: ask(str(uuid.uuid4())))
    for number in range(1, total + 1):
        key = str(uuid.uuid4())
        dies(partial(ask, key), number)
        found = BulkOperation.objects.filter(key=key).first()
        done = ask(key)
        assert done.replayed is (found is not None)
        assert (done.status, counted(done.bulk)) == ("running", {"pending": 2})
        assert BulkOperation.objects.filter(key=key).count() == 1
    outcomes = Counter(AuditEvent.objects.filter(action="bulk.start").values_list("outcome", flat=True))
    assert outcomes["allowed"] == BulkOperation.objects.count()


def test_an_abort_ends_whatever_dies_when(
    start_run: StartRun, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_work, "GIVEN_UP_AT_ONCE", 1)
    runs = [start_run() for _ in range(3)]
    first = begun(of(K.PAUSE, runs, rate=1), operator)
    total = statements(lambda: bulks.abort(first.id, actor=operator))
    for number in range(1, total + 1):
        bulk = begun(of(K.PAUSE, runs, rate=1), operator)
        dies(partial(bulks.abort, bulk.id, actor=operator), number)
        bulk.refresh_from_db()
        assert bulk.state in ("running", "aborted")
        bulks.abort(bulk.id, actor=operator)
        for _ in range(3):
            bulk_work.carry_on()
        bulk.refresh_from_db()
        assert (bulk.state, counted(bulk), bulk.finished_at is not None) == ("aborted", {"skipped": 3}, True)
