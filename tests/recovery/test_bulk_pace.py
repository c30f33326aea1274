"""How fast bulks go and what holds them: rate, canary, stop rule, pause, abort. All by the test clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction

from pipelines import releases
from pipelines.access import Actor
from pipelines.creation import Place, begin, insert_runs, managed_draft
from pipelines.filters import RunFilter
from pipelines.ids import new_id
from pipelines.models import Environment, Run
from pipelines.sql import database_now
from recovery import bulk_acts, bulk_work, bulks
from recovery.models import BulkItem, BulkOperation
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.recovery.backfilled import pipeline_of
from tests.recovery.bulked import REASON, K, begun, counted, fail, failing, letters_of, of, outcomes, work_through
from tests.recovery.stories import EXTERNAL, effect_of

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


def going_for(bulk: BulkOperation) -> float:
    """How many seconds it is since it was let go on."""
    assert bulk.let_go_at is not None
    return (database_now() - bulk.let_go_at) / timedelta(seconds=1)


def positions(bulk: BulkOperation) -> list[int]:
    """Of the targets that were dealt with."""
    return list(bulk.items.exclude(state="pending").order_by("position").values_list("position", flat=True))


def test_ten_thousand_at_a_hundred_a_second_take_a_hundred_seconds(
    start_run: StartRun, operator: Actor, clock: Clock
) -> None:
    """F53: within 5 %, however irregularly workers come by, and no second has more than its share by more than that."""
    bulk = begun(of(K.CANCEL, [start_run()], rate=100), operator)
    began, handed_out = database_now(), 0
    gaps = [0.07, 0.31, 0.5, 0.13, 0.02, 0.9]
    number = 0
    while handed_out < 10_000:
        clock.advance(gaps[number % len(gaps)])
        number += 1
        while due := bulk_work.hand_out(bulk.id):
            handed_out += due
    took = (database_now() - began) / timedelta(seconds=1)
    assert 95 <= took <= 105, took


def test_real_targets_keep_the_pace(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    """F53: dealt with, and not only handed out."""
    bulk = begun(of(K.CANCEL, [start_run() for _ in range(40)], rate=4), operator)
    for _ in range(30):
        clock.advance(0.2)
        least = int(going_for(bulk) * 4)  # the test clock runs on between its steps
        bulk_work.step(bulk.id)
        done = counted(bulk).get("done", 0)
        assert min(least, 40) <= done <= 1 + going_for(bulk) * 4
    work_through(bulk, clock)
    assert counted(bulk) == {"done": 40}


def test_a_bulk_that_stood_still_does_not_burst(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    """After a pause, or with no worker for an hour, it makes up for a second and no more."""
    bulk = begun(of(K.CANCEL, [start_run() for _ in range(30)], rate=5), operator)
    clock.advance(hours=1)
    late = going_for(bulk)
    bulk_work.step(bulk.id)
    bulk_work.step(bulk.id)
    assert 6 <= counted(bulk)["done"] <= 7 + (going_for(bulk) - late) * 5
    bulks.pause(bulk.id, actor=operator, reason="wait")
    clock.advance(hours=1)
    assert bulk_work.step(bulk.id) == 0
    before = counted(bulk)["done"]
    bulk = bulks.resume(bulk.id, actor=operator).bulk
    bulk_work.step(bulk.id)
    assert 1 <= counted(bulk)["done"] - before <= 1 + going_for(bulk) * 5


def test_a_canary_waits_for_a_person_exactly_after_the_first(
    start_run: StartRun, operator: Actor, clock: Clock
) -> None:
    bulk = work_through(begun(of(K.CANCEL, [start_run() for _ in range(9)], canary=4), operator), clock)
    assert (bulk.state, positions(bulk), counted(bulk)) == ("waiting", [1, 2, 3, 4], {"pending": 5, "done": 4})
    assert "first 4 are through" in bulk.held_reason
    clock.advance(hours=3)
    assert bulk_work.step(bulk.id) == 0
    bulks.pause(bulk.id, actor=operator)
    bulks.resume(bulk.id, actor=operator)
    bulk.refresh_from_db()
    work_through(bulk, clock)
    if bulk.state == "waiting":  # paused meanwhile, it still asks
        bulks.resume(bulk.id, actor=operator)
        work_through(bulk, clock)
    assert (bulk.state, counted(bulk)) == ("completed", {"done": 9})


def test_a_canary_of_all_there_is_just_ends(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    bulk = work_through(begun(of(K.CANCEL, [start_run() for _ in range(3)], canary=3), operator), clock)
    assert (bulk.state, counted(bulk)) == ("completed", {"done": 3})


def test_the_stop_rule_halts_within_a_second_and_a_resume_goes_on_where_it_stopped(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F165: twenty-two that go well, then those that are denied; 5 % are too many. Each letter is dealt with once."""
    charged = failing(start_run, hand, 6, {"name": "charge", **EXTERNAL})
    for run in charged:
        effect_of(run, "charge", key=str(run.id))
    fine = failing(start_run, hand, 22)
    letters = letters_of([*charged, *fine])
    bulk = begun(of(K.REDRIVE, letters, rate=1, stop_ratio=0.05), operator)
    over = None
    for _ in range(100):
        clock.advance(1)
        bulk_work.step(bulk.id)
        told = counted(bulk)
        dealt = told.get("done", 0) + told.get("denied", 0)
        if over is None and dealt >= 20 and told.get("denied", 0) / dealt > 0.05:
            over = database_now()
        bulk.refresh_from_db()
        if bulk.state == "halted":
            break
    assert over is not None
    assert (bulk.state, database_now() - over <= timedelta(seconds=1)) == ("halted", True)
    assert "came to nothing" in bulk.held_reason
    dealt_with = positions(bulk)
    assert dealt_with == list(range(1, len(dealt_with) + 1)), "in their order, none left out"
    assert counted(bulk)["denied"] <= 3
    clock.advance(60)
    assert bulk_work.step(bulk.id) == 0
    before = dict(bulk.items.values_list("position", "decided_at"))
    bulks.resume(bulk.id, actor=operator, reason="looked at")
    work_through(bulk, clock)
    assert bulk.state == "completed_with_failures"
    assert counted(bulk) == {"done": 22, "denied": 6}
    after = dict(bulk.items.values_list("position", "decided_at"))
    assert all(after[position] == before[position] for position in dealt_with)


def test_targets_that_fail_again_count_against_the_stop_rule(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_work, "FEWEST", 4)
    runs = failing(start_run, hand, 8)
    bulk = begun(of(K.RETRY, runs, rate=1, stop_ratio=0.5), operator)
    bulk_acts.act_on_next(bulk.id, 5)
    assert counted(bulk) == {"pending": 3, "done": 5}
    for _ in range(4):
        fail(hand)
    assert bulks.progress(bulk).failed_again == 4
    bulk_work.carry_on()
    bulk.refresh_from_db()
    assert (bulk.state, counted(bulk)) == ("halted", {"pending": 3, "done": 5})


def test_an_abort_leaves_alone_what_is_pending_and_what_was_done_stays(
    start_run: StartRun, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F152: the rest is told as skipped, a part at a time, and it adds up all the while."""
    monkeypatch.setattr(bulk_work, "GIVEN_UP_AT_ONCE", 3)
    bulk = begun(of(K.CANCEL, [start_run() for _ in range(9)], rate=2), operator)
    clock.advance(0.5)
    bulk_work.step(bulk.id)
    done = bulks.abort(bulk.id, actor=operator, reason="the wrong ones")
    assert (done.status, done.bulk.held_reason) == ("aborted", "the wrong ones")
    assert counted(done.bulk) == {"pending": 4, "done": 2, "skipped": 3}
    assert done.bulk.finished_at is None
    clock.advance(10)
    assert bulk_work.step(bulk.id) == 0
    assert bulk_work.carry_on()["given_up"] == 4
    bulk.refresh_from_db()
    assert (counted(bulk), bulk.finished_at is not None) == ({"done": 2, "skipped": 7}, True)
    assert Counter(Run.objects.values_list("status", flat=True)) == {"cancelled": 2, "queued": 7}
    assert set(outcomes(bulk)) == {("done", ""), ("skipped", "aborted")}
    bulk_work.carry_on()
    assert set(bulk.items.filter(state="done").values_list("verified", flat=True)) == {True}


def test_with_nothing_left_to_do_it_ends_as_it_is_started(start_run: StartRun, operator: Actor) -> None:
    run = start_run("fine")
    done = bulks.create(of(K.RETRY, [run]), actor=operator)
    assert (done.status, counted(done.bulk)) == ("completed", {"skipped": 1})
    assert done.bulk.finished_at is not None


def test_every_run_of_a_bulk_cancel_ends(start_run: StartRun, hand: Hand, operator: Actor, clock: Clock) -> None:
    """F64: queued, running and half done alike; no run is left that says otherwise than its stages."""
    runs = [start_run("a", {"name": "b", "run_next_if_failed": True}, "c") for _ in range(60)]
    for _ in range(5):
        hand.report(hand.take())
        hand.take()
    bulk = work_through(begun(of(K.CANCEL, runs), operator), clock)
    assert counted(bulk) == {"done": 60}
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}
    assert_invariants()


@pytest.mark.prove
def test_every_run_of_a_bulk_cancel_of_many_ends(
    place: Place, environment: Environment, hand: Hand, people: dict[str, Person], operator: Actor, clock: Clock
) -> None:
    """F64: twenty-five thousand, by their filter, of which some are at work and some are half done."""
    pipeline = pipeline_of(people["admin"].actor, environment, "a", "b")
    managed = releases.managed(place.workspace_id, pipeline.id, environment.id)
    for _ in range(25):
        with transaction.atomic():
            drafts = [managed_draft(place, managed, {}, run_id=new_id()) for _ in range(1_000)]
            insert_runs(drafts, actor="billing")
            begin(drafts, actor="billing")
    for job in hand.pull(100):
        hand.report(job, output={"half": True})
    assert len(hand.pull(200)) == 200
    wish = bulks.Wish(K.CANCEL, bulks.Selection(runs=RunFilter(pipeline=("rates",))), reason=REASON, rate=bulks.FASTEST)
    bulk = work_through(begun(wish, operator), clock)
    assert counted(bulk) == {"done": 25_000}
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}
    assert_invariants()


def test_hints_are_sent_for_what_runs_and_lost_ones_again(
    start_run: StartRun, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F167, F41: nobody waits; the sweep wakes the workers each second, and work may be hinted twice without harm."""
    hinted: list[str] = []
    monkeypatch.setattr(bulk_work, "hint", lambda: hinted.append("hint"))
    bulk = begun(of(K.CANCEL, [start_run() for _ in range(5)], rate=1_000), operator)
    assert hinted == ["hint"]
    assert bulk_work.carry_on()["hinted"] == 1
    assert hinted == ["hint"] * 2
    bulks.pause(bulk.id, actor=operator, reason=REASON)
    assert bulk_work.carry_on()["hinted"] == 0
    bulks.resume(bulk.id, actor=operator)
    clock.advance(1)
    turns = [partial(bulk_work.work, 0.5), partial(bulk_work.work, 0.5)]
    assert sum(turn() for turn in turns) == 5
    bulk.refresh_from_db()
    assert bulk.state == "completed"
    assert BulkItem.objects.filter(state="done").count() == 5
