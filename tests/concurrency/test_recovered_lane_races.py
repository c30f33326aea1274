"""F52: many people and a bulk recover at once what stood in one lane, and never more is active than the lane takes."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db import connection

from pipelines import lanes
from pipelines.access import Actor
from pipelines.models import Event, Run, Trigger
from pipelines.sql import query
from recovery import bulk_work, forks
from recovery.states import OperationKind
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import Crew
from tests.laned import hold, open_lane, waiting
from tests.recovery.bulked import begun, counted, letters_of, of, work_through
from tests.scheduled import MakeTrigger
from tests.verbs import retry_stage, skip_stage

NewHand = Callable[..., Hand]
Peak = Callable[[uuid.UUID], int]
WIDTH, RUNS, FORKED = 5, 200, 10

# counts, as each transaction that lets a run of a lane in commits, how many are in; the lane's row is still locked then
WITNESS = """
    CREATE TABLE witness (lane uuid, active bigint);
    CREATE FUNCTION witness_lane() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO witness SELECT NEW.lane_id, count(*) FROM pipelines_run WHERE lane_id = NEW.lane_id AND NOT held
            AND status NOT IN ('completed', 'failed', 'cancelled');
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER witness_lane AFTER INSERT OR UPDATE ON pipelines_run DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.lane_id IS NOT NULL AND NOT NEW.held) EXECUTE FUNCTION witness_lane();
"""
GONE = "DROP TRIGGER witness_lane ON pipelines_run; DROP FUNCTION witness_lane(); DROP TABLE witness"


@pytest.fixture
def operator(people: dict[str, Person]) -> Actor:
    return people["operator"].actor


@pytest.fixture
def peak(transactional_db: None) -> Iterator[Peak]:
    """How many runs of a lane were in at most, at any commit from now on."""
    with connection.cursor() as cursor:
        cursor.execute(WITNESS)
    try:
        yield lambda lane: query("SELECT coalesce(max(active), 0) FROM witness WHERE lane = %s", [lane])[0][0]
    finally:
        with connection.cursor() as cursor:
            cursor.execute(GONE)


def failed_in(lane: uuid.UUID, trigger: Trigger, hand: Hand, count: int) -> list[Run]:
    """So many runs of the lane, all of which have failed."""
    runs = hold(trigger, lane, count)
    lanes.let_in([lane])
    while jobs := hand.pull(WIDTH):
        for job in jobs:
            hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    assert set(Run.objects.filter(lane_id=lane).values_list("status", flat=True)) == {"failed"}
    return runs


def test_two_hundred_recovered_by_people_and_a_bulk_are_never_more_than_five_at_once(
    make_trigger: MakeTrigger,
    hand: Hand,
    new_hand: NewHand,
    operator: Actor,
    clock: Clock,
    crew: Crew,
    peak: Peak,
) -> None:
    """F52: retries by hand, forks, and a bulk redrive, while workers end what is in; all come to their end."""
    trigger = make_trigger()
    lane = open_lane(trigger, WIDTH)
    runs = failed_in(lane, trigger, hand, RUNS)
    stages = {run.id: run.stages.get().id for run in runs}
    forked, by_one, by_another, in_bulk = runs[:FORKED], runs[FORKED:60], runs[60:120], runs[120:]
    bulk = begun(of(OperationKind.REDRIVE, letters_of(in_bulk)), operator)
    clock.advance(1)  # as much of the bulk is due as its rate ever makes up for
    crowded, done = threading.Event(), threading.Event()

    def retry(mine: list[Run]) -> None:
        for number, run in enumerate(mine[::-1]):
            retry_stage(stages[run.id], actor=operator)
            if number > 4 * WIDTH:
                crowded.set()

    def fork() -> None:
        for run in forked:
            asked = forks.ask_fork(OperationKind.REPLAY, Run.objects.get(id=run.id), forks.Wish(), actor=operator)
            forks.fork(asked, actor=operator)

    def deal_with_bulk() -> None:
        while bulk_work.step(bulk.id):
            pass

    def look() -> None:
        while not done.wait(0.02):
            lanes.let_in()

    def work(hand: Hand) -> None:
        crowded.wait()  # what is recovered until then must fit into the lane, or show
        while not done.is_set():
            for job in hand.pull(3):
                hand.report(job, output=1)

    def recover(act: Callable[[], None]) -> None:
        act()
        recovered.append(act)
        if len(recovered) == len(acts):
            done.set()

    acts = [partial(retry, by_one), partial(retry, by_another), fork, deal_with_bulk]
    recovered: list[Callable[[], None]] = []
    workers = [partial(work, new_hand(f"hand-{number}")) for number in range(3)]
    crew.at_once(*(partial(recover, act) for act in acts), look, *workers)
    work_through(bulk, clock)
    while hand.finish(WIDTH):
        pass
    assert (bulk.state, counted(bulk)) == ("completed", {"done": len(in_bulk)})
    assert peak(lane) == WIDTH
    assert waiting(lane) == []
    ended = Counter(Run.objects.filter(lane_id=lane).values_list("status", flat=True))
    assert ended == {"completed": RUNS, "failed": FORKED}, "the sources of forks stay as they were"
    stood = Event.objects.filter(kind="run.stand_in_lane").values_list("run_id", flat=True)
    assert Counter(stood) == {run.id: 1 for run in runs[FORKED:]}


def test_retries_and_skips_in_a_full_lane_need_no_sweep(
    make_trigger: MakeTrigger, hand: Hand, new_hand: NewHand, operator: Actor, crew: Crew, peak: Peak
) -> None:
    """No wake-up is lost: while eight recover and work at once, each place that is left is taken by who is next."""
    trigger = make_trigger(stages=[{"name": name, "handler": "Handler"} for name in ("first", "second")])
    lane = open_lane(trigger, WIDTH)
    runs = failed_in(lane, trigger, hand, 40)
    first = {run.id: run.stages.get(name="first").id for run in runs}

    def recover(mine: list[Run]) -> None:
        for number, run in enumerate(mine):
            if number % 2:
                retry_stage(first[run.id], actor=operator)
            else:
                skip_stage(first[run.id], actor=operator, reason="not needed")

    crew.at_once(*(partial(recover, runs[number::6]) for number in range(6)), *[hand.finish, new_hand("other").finish])
    while hand.finish(WIDTH):
        pass
    assert set(Run.objects.filter(lane_id=lane).values_list("status", flat=True)) == {"completed"}
    assert peak(lane) == WIDTH
