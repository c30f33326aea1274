"""Backfills that meet each other, the live schedule, sweeps and people: every tick one run, no deadlock (I18)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pipelines import dispatch, lanes, ledger, triggers
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Application, AuditEvent, Environment, Run, Tick, Trigger
from recovery import backfill_work, backfills, forks
from recovery.models import Backfill
from recovery.states import OperationKind
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import crew_of, deadlocks
from tests.recovery.backfilled import assert_accounted_for, at, runs_of, states, trigger_of, wish

pytestmark = pytest.mark.django_db(transaction=True)
WINDOW = ("2026-05-01T00:00:00+00:00", "2026-05-30T23:00:00+00:00")  # thirty ticks
ROUNDS = 4


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["admin"].actor, environment, application)


@pytest.fixture(autouse=True)
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_work, "BATCH", 4)
    monkeypatch.setattr(backfill_work, "CANCEL_BATCH", 3)


def heal() -> None:
    for _ in range(50):
        if not lanes.let_in() and not any(backfills.carry_on().values()):
            return
    raise AssertionError("the sweep finds no end")


def test_two_backfills_over_one_window_make_one_run_for_each_tick(trigger: Trigger, operator: Actor) -> None:
    """One from either end; whoever comes second to a tick skips it, naming the other's run."""
    before = deadlocks()
    asks = [
        partial(backfills.start, wish(trigger, *WINDOW, order=order), operator)
        for order in ("oldest", "newest", "oldest")
    ]
    with crew_of(3) as crew:
        answers = crew.at_once(*asks)
    assert deadlocks() == before
    assert Run.objects.filter(trigger=trigger).count() == 30
    made = Counter(run.tick_at for run in Run.objects.filter(trigger=trigger))
    assert set(made.values()) == {1}
    assert sum(answer.progress.dispatched for answer in answers) == 30
    named = dict(Tick.objects.filter(trigger=trigger).values_list("at", "run"))
    for answer in answers:
        for tick in answer.backfill.ticks.all():
            assert tick.run == named[tick.at]
    assert_accounted_for(trigger)


def test_many_with_one_key_share_one_backfill(trigger: Trigger, operator: Actor) -> None:
    """F118: nobody is answered with a fault; one did it, the others are told so."""
    ask = partial(backfills.start, wish(trigger, *WINDOW), operator, "0b7e3d1c-1111-4222-8333-444455556666")
    with crew_of(6) as crew:
        answers = crew.at_once(*[ask] * 6)
    assert len({answer.backfill.id for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 5
    heal()
    assert states(answers[0].backfill.id) == {"dispatched": 30}
    outcomes = Counter(event.outcome for event in AuditEvent.objects.filter(action="backfill.start"))
    assert outcomes == {"allowed": 1, "no_op": 5}
    assert_accounted_for(trigger)


def test_sweeps_that_race_fill_each_tick_once(
    trigger: Trigger, operator: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(backfills, "AT_ONCE", 0)
        done = backfills.start(wish(trigger, *WINDOW), operator)
    assert states(done.backfill.id) == {"pending": 30}
    with crew_of(6) as crew:
        crew.at_once(*[backfills.carry_on] * 4, *[lanes.let_in] * 2)
    heal()
    assert states(done.backfill.id) == {"dispatched": 30}
    assert sum(not run.held for run in runs_of(done.backfill.id)) == 1
    assert_accounted_for(trigger)


def test_a_cancel_among_fills_and_lets_in_strands_nothing(
    trigger: Trigger, operator: Actor, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F82: whichever comes first, every tick ends with a run that was let in, or cancelled and missed again."""
    before = deadlocks()
    for number in range(ROUNDS):
        window = (f"202{number}-05-01T00:00:00+00:00", f"202{number}-05-30T23:00:00+00:00")
        with monkeypatch.context() as patch:
            patch.setattr(backfills, "AT_ONCE", 0)
            done = backfills.start(wish(trigger, *window, max_concurrent=5), operator)
        acts: list[Callable[[], Any]] = [
            backfills.carry_on,
            partial(backfills.cancel, done.backfill.id, operator, "no"),
            lanes.let_in,
            partial(hand.finish, 2),
            backfills.carry_on,
            partial(backfills.start, wish(trigger, *window), operator),
        ]
        with crew_of(6) as crew:
            *_, second = crew.at_once(*acts)
        heal()
        backfill = Backfill.objects.get(id=done.backfill.id)
        assert backfill.state == "cancelled"
        assert backfill.finished_at is not None
        assert "pending" not in states(backfill.id)
        for run in runs_of(backfill.id):
            assert not run.held
        assert not isinstance(second, Refusal)
        while hand.finish():
            pass
        heal()
        again = backfills.start(wish(trigger, *window), operator)
        heal()
        assert again.progress.total + again.progress.skipped == 30
        while hand.finish():
            pass
        heal()
        ticks = Tick.objects.filter(trigger=trigger, at__range=(at(window[0]), at(window[1])))
        assert set(ticks.values_list("state", flat=True)) == {"dispatched"}
        assert ticks.count() == 30
    assert deadlocks() == before
    assert_accounted_for(trigger)


def test_a_backfill_beside_the_live_pass_makes_no_tick_twice(
    people: dict[str, Person], environment: Environment, application: Application, operator: Actor, clock: Clock
) -> None:
    """Both find the same ticks: the ledger's row decides whose run it is."""
    trigger = trigger_of(
        people["admin"].actor,
        environment,
        application,
        cron="* * * * *",
        overlap_policy="allow",
        catch_up="all",
        catch_up_limit=1000,
    )
    begin = clock.now()
    for _ in range(ROUNDS):
        clock.advance(minutes=20)
        asked = replace(wish(trigger, *WINDOW), from_time=begin, to_time=clock.now())
        with crew_of(5) as crew:
            crew.at_once(
                partial(backfills.start, asked, operator),
                ledger.record,
                dispatch.dispatch_due,
                partial(backfills.start, replace(asked, order="newest"), operator),
                dispatch.dispatch_due,
            )
    ledger.record()
    dispatch.dispatch_due()
    heal()
    ticks = Tick.objects.filter(trigger=trigger, at__gt=begin, at__lte=clock.now())
    assert ticks.count() == ROUNDS * 20
    assert set(ticks.values_list("state", flat=True)) == {"dispatched"}
    made = Counter(run.tick_at for run in Run.objects.filter(trigger=trigger))
    assert set(made.values()) == {1}
    assert_accounted_for(trigger)


def test_what_is_done_once_more_by_two_is_done_once(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    """`reprocess` of failed runs, while the backfill that they are of is cancelled and another fills."""
    before = deadlocks()
    first = backfills.start(wish(trigger, *WINDOW, max_concurrent=10), operator)
    for job in hand.pull(10):
        hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    again = wish(trigger, *WINDOW, reprocess="failed", max_concurrent=30)
    with crew_of(3) as crew:
        crew.at_once(
            partial(backfills.start, again, operator),
            partial(backfills.start, again, operator),
            partial(backfills.cancel, first.backfill.id, operator),
        )
    heal()
    assert deadlocks() == before
    assert_accounted_for(trigger)
    last = backfills.start(again, operator)
    heal()
    while hand.finish():
        lanes.let_in()
    heal()
    assert set(Tick.objects.filter(trigger=trigger).values_list("state", flat=True)) == {"dispatched"}
    assert Tick.objects.filter(trigger=trigger).count() == 30
    named = Run.objects.filter(id__in=Tick.objects.filter(trigger=trigger).values("run"))
    assert set(named.values_list("status", flat=True)) == {"completed"}
    assert Backfill.objects.get(id=last.backfill.id).state == "completed"
    assert_accounted_for(trigger)


def test_replays_and_a_backfill_of_the_same_runs_meet_without_two_runs_of_its_making(
    trigger: Trigger, operator: Actor, hand: Hand
) -> None:
    """F80: both want the locks of failed runs. Where the replay was first the tick is withheld: no fill comes after."""
    before = deadlocks()
    first = backfills.start(wish(trigger, *WINDOW, max_concurrent=30), operator)
    for job in hand.pull(30):
        hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    heal()
    failed = runs_of(first.backfill.id)
    again = wish(trigger, *WINDOW, reprocess="failed", max_concurrent=30)

    def replay(some: list[Run]) -> None:
        for run in some:
            asked = forks.ask_fork(OperationKind.REPLAY, run, forks.Wish(), actor=operator)
            forks.fork(asked, actor=operator)

    with crew_of(4) as crew:
        crew.at_once(
            partial(replay, failed[::3]),
            partial(backfills.start, again, operator),
            partial(replay, failed[::-3]),
            partial(backfills.start, replace(again, order="newest"), operator),
        )
    heal()
    assert deadlocks() == before
    for run in failed:
        forked = Run.objects.filter(recovered_from=run).order_by("created_at").first()
        of_tick = Run.objects.filter(trigger=trigger, tick_at=run.tick_at, recovered_from=None)  # forks stand there too
        filled = of_tick.exclude(id=run.id)
        assert filled.count() <= 1
        assert forked is None or not filled.filter(created_at__gt=forked.created_at).exists(), "beside a live replay"
    assert_accounted_for(trigger)


def test_triggers_that_are_changed_while_they_are_filled_dispatched_and_let_in_deadlock_nobody(
    trigger: Trigger, operator: Actor, people: dict[str, Person], hand: Hand, clock: Clock
) -> None:
    """Lock order: backfill, trigger, ticks by instant, lane, runs by id; whoever goes against it passes over locks."""
    before = deadlocks()
    manager = people["release_manager"].actor
    triggers.change(trigger.id, actor=manager, changes={"cron": "* * * * *", "overlap_policy": "queue_all"})
    for number in range(ROUNDS):
        clock.advance(120)
        policy = ("queue_one", "skip", "allow", "queue_all")[number % 4]
        window = (f"{clock.now() - timedelta(minutes=6):%Y-%m-%dT%H:%M}+00:00", clock.now().isoformat())
        with crew_of(6) as crew:
            crew.at_once(
                partial(triggers.change, trigger.id, actor=manager, changes={"overlap_policy": policy}),
                ledger.record,
                dispatch.dispatch_due,
                partial(backfills.start, wish(trigger, *window, reprocess="all"), operator),
                lanes.let_in,
                hand.finish,
            )
    assert deadlocks() == before
    heal()
    assert_accounted_for(trigger)
