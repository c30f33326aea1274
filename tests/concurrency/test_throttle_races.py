"""Many claims at once on one policy: never more than it allows at any commit, and nothing else held up by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from pipelines import catalog, leases
from pipelines.creation import Place
from pipelines.jobs import Job
from pipelines.models import Attempt, Policy, QueueEntry, Run, Stage
from pipelines.sql import execute, query
from pipelines.transitions import cancel_run
from pipelines.wake import Queue
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import Crew
from tests.verbs import pause_run, resume_run

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]
PATIENCE_SECONDS = 240
LIVE = """SELECT count(*) FROM pipelines_attempt WHERE slot = %s AND state IN ('dispatched', 'running')
    AND expires_at > recourse_now()"""
# how many attempts lived beside each one when it was handed out, itself among them
BESIDE = """SELECT max(beside) FROM (SELECT (SELECT count(*) FROM pipelines_attempt b WHERE b.slot = a.slot
    AND b.dispatched_at <= a.dispatched_at AND coalesce(b.finished_at, 'infinity') > a.dispatched_at) AS beside
    FROM pipelines_attempt a WHERE a.slot = %s) counted"""
# how many dispatches lie in the window that ends with each one
WITHIN = """SELECT max(within) FROM (SELECT (SELECT count(*) FROM pipelines_attempt b WHERE b.rate = a.rate
    AND b.dispatched_at <= a.dispatched_at AND b.dispatched_at > a.dispatched_at - make_interval(secs => %s)) AS within
    FROM pipelines_attempt a WHERE a.rate = %s) counted"""


@pytest.fixture
def add(people: dict[str, Person]) -> Callable[..., Policy]:
    def make(name: str, kind: str, rule: dict[str, Any], **match: str) -> Policy:
        return catalog.add_policy(
            actor=people["admin"].actor, name=name, kind=kind, match=match, rule=rule, status="active"
        )

    return make


def many(start_run: StartRun, count: int, **stage: Any) -> list[Run]:
    return [start_run({"name": "first", **stage}) for _ in range(count)]


class Watch:
    """Looks at what is committed, again and again on a connection of its own, for the length of a `with` block."""

    def __init__(self, sql: str, params: list[Any]) -> None:
        self.peak = self.looks = 0
        self._ask = partial(query, sql, params)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        try:
            while not self._done.is_set():
                self.peak = max(self.peak, self._ask()[0][0])
                self.looks += 1
        finally:
            connection.close()


def work(hand: Hand, is_done: Callable[[], bool], limit: int) -> int:
    """Pulls, and ends what it got, until all is done."""
    ended, give_up_at = 0, time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        assert time.monotonic() < give_up_at, "it comes to no end"
        for job in hand.pull(limit):
            assert hand.report(job, output=1).accepted
            ended += 1
    return ended


def test_eight_claimers_never_hold_more_than_three_slots(
    crew: Crew, start_run: StartRun, new_hand: NewHand, add: Callable[..., Policy]
) -> None:
    """F52, F76: 500 stages, batches of every size; at no commit are there more than three, and all of them end."""
    policy = add("three", "concurrency", {"max_active": 3})
    many(start_run, 500)
    hands = [new_hand(f"hand-{number}") for number in range(8)]

    def one(hand: Hand, limit: int) -> int:
        return work(hand, lambda: not QueueEntry.objects.exists(), limit)

    with Watch(LIVE, [policy.pk]) as watch:
        ended = crew.at_once(*(partial(one, hand, limit) for limit, hand in enumerate(hands, 1)))
    assert sum(ended) == Attempt.objects.filter(slot=policy.pk, state="succeeded").count() == 500
    assert watch.looks > 100
    assert 1 <= watch.peak <= 3
    assert query(BESIDE, [policy.pk]) == [(3,)], "all three were in use, and never a fourth"
    assert query(LIVE, [policy.pk]) == [(0,)]


def test_eight_claimers_never_go_faster_than_the_rate(
    crew: Crew, start_run: StartRun, new_hand: NewHand, add: Callable[..., Policy], clock: Clock
) -> None:
    """50 a second, in any window of one second, however the batches fall; and no window that is full stays so."""
    policy = add("fifty a second", "rate", {"count": 50, "per_seconds": 1})
    many(start_run, 300)
    hands = [new_hand(f"hand-{number}") for number in range(7)]

    def one(hand: Hand, limit: int) -> int:
        return work(hand, lambda: not QueueEntry.objects.exists(), limit)

    def let_time_pass() -> None:
        while QueueEntry.objects.exists():
            clock.advance(0.13)
            time.sleep(0.02)

    crew.at_once(let_time_pass, *(partial(one, hand, limit * 3) for limit, hand in enumerate(hands, 1)))
    assert Attempt.objects.filter(rate=policy.pk).count() == 300
    assert query(WITHIN, [1, policy.pk]) == [(50,)]


def test_a_stage_ruled_by_both_keeps_to_both_under_claims_from_all_sides(
    crew: Crew, start_run: StartRun, new_hand: NewHand, add: Callable[..., Policy], clock: Clock
) -> None:
    """And claims that hold one policy and want another never wait for each other in a circle."""
    slots = {name: add(f"slots {name}", "concurrency", {"max_active": 2}, handler=name) for name in ("A", "B")}
    rates = {name: add(f"rate {name}", "rate", {"count": 5, "per_seconds": 1}, stage=name) for name in ("a", "b")}
    for handler in "AB":
        for stage in "ab":
            for _ in range(25):
                start_run({"name": stage, "handler": handler})
    hands = [new_hand(f"hand-{number}", *names) for number, names in enumerate(("AB", "BA", "A", "B", "AB", "BA"))]

    def one(hand: Hand) -> int:
        return work(hand, lambda: not QueueEntry.objects.exists(), 7)

    def let_time_pass() -> None:
        while QueueEntry.objects.exists():
            clock.advance(0.2)
            time.sleep(0.02)

    crew.at_once(let_time_pass, *(partial(one, hand) for hand in hands))
    for policy in slots.values():
        assert query(BESIDE, [policy.pk])[0][0] <= 2
        assert Attempt.objects.filter(slot=policy.pk).count() == 50
    for policy in rates.values():
        assert query(WITHIN, [1, policy.pk])[0][0] <= 5
        assert Attempt.objects.filter(rate=policy.pk).count() == 50


def test_ends_of_every_kind_leave_as_many_slots_as_attempts_that_live(
    crew: Crew, start_run: StartRun, new_hand: NewHand, add: Callable[..., Policy], people: dict[str, Person]
) -> None:
    """F76: cancels, pauses, failures and results at random; in the end every slot is free, and work goes on."""
    policy = add("four", "concurrency", {"max_active": 4})
    runs = many(start_run, 120, options={"max_retries": 1, "retry_interval": 0.01})
    operator = people["operator"].actor
    done = threading.Event()

    def one(hand: Hand) -> None:
        while not done.is_set():
            for number, job in enumerate(hand.pull(3)):
                if number % 3 == 2:
                    hand.report(job, "failed", error_code="X")
                else:
                    hand.report(job, output=1)

    def steer() -> None:
        try:
            for number, run in enumerate(runs):
                try:
                    if number % 3 == 0:
                        cancel_run(run.id, actor=operator)
                    elif number % 3 == 1:
                        pause_run(run.id, actor=operator)
                        resume_run(run.id, actor=operator)
                except Exception as error:  # noqa: BLE001
                    assert getattr(error, "code", None) == "execution_state_invalid"  # noqa: PT017
            give_up_at = time.monotonic() + PATIENCE_SECONDS
            while QueueEntry.objects.exists() or Attempt.objects.filter(state="running").exists():
                assert time.monotonic() < give_up_at, "it comes to no end"
                time.sleep(0.05)
        finally:
            done.set()

    hands = [new_hand(f"hand-{number}") for number in range(5)]
    with Watch(LIVE, [policy.pk]) as watch:
        crew.at_once(steer, *(partial(one, hand) for hand in hands))
    assert 1 <= watch.peak <= 4
    assert query(LIVE, [policy.pk]) == [(0,)]
    many(start_run, 6)
    assert len(hands[0].pull(10)) == 4


def test_pausing_the_policy_lets_all_go_whatever_claims_do_meanwhile(
    crew: Crew, start_run: StartRun, new_hand: NewHand, add: Callable[..., Policy], people: dict[str, Person]
) -> None:
    policy = add("one", "concurrency", {"max_active": 1})
    many(start_run, 200)
    hands = [new_hand(f"hand-{number}") for number in range(6)]

    def one(hand: Hand) -> list[Job]:
        found: list[Job] = []
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while QueueEntry.objects.exists() and time.monotonic() < give_up_at:
            found += hand.pull(5)
        return found

    def pause() -> list[Job]:
        time.sleep(0.2)
        catalog.change_policy(policy.pk, actor=people["admin"].actor, changes={"status": "paused"})
        return []

    jobs = [job for answer in crew.at_once(pause, *(partial(one, hand) for hand in hands)) for job in answer]
    assert len({job.stage.id for job in jobs}) == len(jobs) == 200
    assert Attempt.objects.filter(slot=policy.pk).count() <= 1


def test_changing_policies_under_load_loses_nobody(
    crew: Crew, start_run: StartRun, new_hand: NewHand, add: Callable[..., Policy], people: dict[str, Person]
) -> None:
    """Lines are put right beside claims and creations; in the end all of it is done, and no deadlock was met."""
    policy = add("some", "concurrency", {"max_active": 2})
    admin = people["admin"].actor
    made = threading.Event()

    def create() -> None:
        try:
            many(start_run, 150)
        finally:
            made.set()

    def change() -> None:
        for number in range(12):
            changes = [
                {"status": "paused"},
                {"status": "active"},
                {"match": {"stage": "other"}},
                {"match": {}, "rule": {"max_active": 3}},
            ][number % 4]
            catalog.change_policy(policy.pk, actor=admin, changes=changes)

    hands = [new_hand(f"hand-{number}") for number in range(5)]

    def one(hand: Hand) -> int:
        return work(hand, lambda: made.is_set() and not QueueEntry.objects.exists(), 4)

    answers = crew.at_once(create, change, *(partial(one, hand) for hand in hands))
    assert sum(answers[2:]) == 150
    assert set(Stage.objects.values_list("state", flat=True)) == {"completed"}


def test_a_backlog_of_a_hundred_thousand_without_a_slot_costs_others_nothing(
    start_run: StartRun, hand: Hand, add: Callable[..., Policy], place: Place
) -> None:
    """Measured in rows read of the queue, by the very statement of a claim; and of the look for the next one."""
    policy = add("one", "concurrency", {"max_active": 1}, stage="slow")
    start_run("slow")
    assert len(hand.pull(1)) == 1
    execute(
        "INSERT INTO pipelines_queueentry (stage_id, application_id, environment_id, handler, available_at,"
        " is_background, is_start, throttle) SELECT gen_random_uuid(), %s, %s, 'Handler', recourse_now()"
        " - interval '1 hour', false, true, %s FROM generate_series(1, 100000)",
        [place.application_id, place.environment_id, policy.pk],
    )
    try:
        run = start_run("quick")
        queue = Queue(place.application_id, place.environment_id, "Handler")
        rows_read, jobs = rows_of_the_queue(lambda: hand.pull(10))
        assert [job.run_id for job in jobs] == [run.id]
        assert 1 <= rows_read <= 20
        rows_read, due = rows_of_the_queue(lambda: leases.next_due([queue]))
        assert due > 0
        assert 1 <= rows_read <= 20
    finally:
        execute("DELETE FROM pipelines_queueentry WHERE throttle = %s", [policy.pk])


READ = """SELECT pg_stat_get_xact_tuples_returned('pipelines_queueentry'::regclass)
    + (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index
       WHERE indrelid = 'pipelines_queueentry'::regclass)"""


def rows_of_the_queue(act: Callable[[], Any]) -> tuple[int, Any]:
    """How many rows of the queue and entries of its indexes an act read, as the server counts them."""
    with transaction.atomic():
        before = query(READ)[0][0]
        answer = act()
        return int(query(READ)[0][0] - before), answer
