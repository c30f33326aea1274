"""Workers, sweeps and people who meet over one bulk: each target is dealt with once, and nobody waits in a circle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from pipelines.access import Actor
from pipelines.models import AuditEvent, DeadLetter, Run, Stage
from recovery import bulk_work, bulks
from recovery.models import BulkItem, BulkOperation, Operation
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import Crew
from tests.recovery.bulked import K, begun, counted, failing, letters_of, of, work_through

StartRun = Callable[..., Run]
KEY = "0b7e3d1c-1111-4222-8333-444455556666"


def test_workers_at_once_deal_with_each_target_once(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock, crew: Crew
) -> None:
    """F162, F152: six workers and two sweeps."""
    letters = letters_of(failing(start_run, hand, 40))
    bulk = begun(of(K.REDRIVE, letters), operator)
    clock.advance(1)
    crew.at_once(*[partial(bulk_work.work, 1.0)] * 6, *[bulk_work.carry_on] * 2)
    work_through(bulk, clock)
    assert (bulk.state, counted(bulk)) == ("completed", {"done": 40})
    assert set(Stage.objects.values_list("epoch", flat=True)) == {2}
    assert set(DeadLetter.objects.values_list("state", flat=True)) == {"redriven"}
    assert Operation.objects.count() == AuditEvent.objects.filter(action="dead_letter.redrive").count() == 40


def test_workers_together_keep_the_rate_and_the_canary(
    start_run: StartRun, operator: Actor, clock: Clock, crew: Crew
) -> None:
    """F53: the rate is the bulk's, however many work on it; nobody goes past the canary."""
    bulk = begun(of(K.CANCEL, [start_run() for _ in range(30)], rate=10, canary=12), operator)
    for _ in range(4):
        clock.advance(0.5)
        crew.at_once(*[partial(bulk_work.step, bulk.id)] * 6)
    bulk.refresh_from_db()
    assert counted(bulk) == {"pending": 18, "done": 12}
    assert bulk.state == "waiting"
    assert set(bulk.items.filter(state="done").values_list("position", flat=True)) == set(range(1, 13))


def test_an_abort_among_workers_leaves_nothing_half_done(
    start_run: StartRun, operator: Actor, clock: Clock, crew: Crew
) -> None:
    for _ in range(3):
        runs = [start_run() for _ in range(12)]
        bulk = begun(of(K.CANCEL, runs), operator)
        clock.advance(1)
        crew.at_once(
            partial(bulk_work.step, bulk.id),
            partial(bulk_work.step, bulk.id),
            partial(bulks.abort, bulk.id, actor=operator, reason="no"),
            partial(bulks.pause, bulk.id, actor=operator),
            bulk_work.carry_on,
        )
        for _ in range(3):
            bulk_work.carry_on()
        bulk.refresh_from_db()
        told = counted(bulk)
        assert bulk.state in ("aborted", "completed")
        assert set(told) <= {"done", "skipped"}
        cancelled = set(Run.objects.filter(id__in=[run.id for run in runs], status="cancelled").values_list("id"))
        done = set(BulkItem.objects.filter(bulk=bulk, state="done").values_list("run"))
        assert cancelled == done


def test_two_bulks_over_the_same_targets_do_each_once(
    start_run: StartRun, hand: Hand, operator: Actor, people: dict[str, Person], clock: Clock, crew: Crew
) -> None:
    """Whoever comes second finds it standing otherwise, and skips it."""
    letters = letters_of(failing(start_run, hand, 15))
    admin = people["admin"].actor
    pair = [begun(of(K.REDRIVE, letters), operator), begun(of(K.DISCARD, letters), admin)]
    clock.advance(1)
    crew.at_once(*[partial(bulk_work.work, 1.0)] * 4)
    for one in pair:
        work_through(one, clock)
    told = [counted(one) for one in pair]
    assert told[0].get("done", 0) + told[1].get("done", 0) == 15
    assert Counter(DeadLetter.objects.values_list("state", flat=True)) == {
        state: one["done"] for state, one in zip(("redriven", "discarded"), told, strict=True) if one.get("done")
    }


def test_many_with_one_key_share_one_bulk(start_run: StartRun, operator: Actor, crew: Crew) -> None:
    """F123: nobody is answered with a fault; one did it, the others are told so."""
    runs = [start_run() for _ in range(3)]
    answers = crew.at_once(*[partial(bulks.create, of(K.CANCEL, runs, rate=1), actor=operator, key=KEY)] * 6)
    assert len({answer.bulk.id for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 5
    assert BulkOperation.objects.count() == 1
    assert BulkItem.objects.count() == 3
