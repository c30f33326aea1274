"""Many workers, results and people on one run at once: at no commit is more charged and reserved than it may spend."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from django.db import connection, transaction

from pipelines import artifact_storing, leases, places, results, sweeps
from pipelines.artifacts import Given
from pipelines.errors import Refusal
from pipelines.models import Artifact, Attempt, DeadLetter, QueueEntry, Run, Stage, WorkerSession
from pipelines.sql import query
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.concurrency.crew import Crew
from tests.concurrency.test_throttle_races import Watch
from tests.engine_model.invariants import INVARIANTS
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]
PATIENCE_SECONDS = 120
BYTES = 100
(OVER,) = [f"SELECT count(*) FROM ({sql}) broken" for name, sql in INVARIANTS.items() if name.startswith("I14")]
BALANCE = """SELECT (SELECT count(*) FROM pipelines_attempt WHERE run_id = %(run)s AND started_at IS NOT NULL),
    (SELECT coalesce(sum(reserved), 0)::bigint FROM pipelines_attempt WHERE run_id = %(run)s
        AND started_at IS NOT NULL) + (SELECT coalesce(sum(size), 0)::bigint FROM pipelines_artifact
        WHERE run_id = %(run)s)"""
ACTIVE = "SELECT count(*) FROM pipelines_stage WHERE run_id = %s AND state IN ('dispatched', 'running')"


def fan(width: int, **options: Any) -> list[dict[str, Any]]:
    """One stage, and then so many beside each other."""
    told = {"max_output_bytes": BYTES, "max_retries": 9, "retry_interval": 0.01, **options}
    first = {"name": "first", "options": {"max_output_bytes": BYTES}}
    return [first, *({"name": f"s{number}", "depends_on": ["first"], "options": told} for number in range(width))]


def charged(run: Run) -> tuple[int, int]:
    """Attempts and bytes."""
    return query(BALANCE, {"run": run.id})[0]


def insist_on(stage: Stage, person: Person, hand: Hand) -> Refusal | None:
    """Retries a failed stage once more, which fails again; the refusal where that may not be."""
    try:
        retry_stage(stage.id, actor=person.actor)
    except Refusal as refusal:
        return refusal
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)
    return None


class Balance(threading.Thread):
    """Reads what a run is charged, again and again, and keeps how often it had become less (I13)."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.looks = self.less = 0
        self._run_id, self._done = run.id, threading.Event()

    def __enter__(self) -> Balance:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        seen = (0, 0)
        try:
            while not self._done.is_set():
                now = query(BALANCE, {"run": self._run_id})[0]
                self.less += now[0] < seen[0] or now[1] < seen[1]
                self.looks, seen = self.looks + 1, now
        finally:
            connection.close()


def strive(run: Run, hand: Hand, seed: int) -> None:
    """Pulls, stores, and mostly fails, until nothing of the run is left to do."""
    dice, give_up_at = random.Random(seed), time.monotonic() + PATIENCE_SECONDS
    while QueueEntry.objects.exists() or Stage.objects.filter(run=run, state__in=["running", "dispatched"]).exists():
        assert time.monotonic() < give_up_at, "it comes to no end"
        for job in hand.pull(dice.randint(1, 4)):
            if dice.random() < 0.3:
                data = dice.randbytes(dice.randint(1, 150))
                with suppress(Refusal):
                    given = Given("report", data, sha256(data).hexdigest())
                    artifact_storing.store(hand.holder, job.stage.id, job.attempt_id, given)
            if dice.random() < 0.7:
                hand.report(job, "failed", error_code="UPSTREAM_ERROR")
            elif dice.random() < 0.2:
                leases.release(hand.holder, job.stage.id, job.attempt_id)
            else:
                hand.report(job, output=1)


@pytest.mark.parametrize(
    "limits",
    [{"total_attempts": 40}, {"total_output_bytes": 40 * BYTES}, {"total_output_bytes": 4_777, "concurrency": 5}],
)
def test_workers_results_and_people_side_by_side_never_spend_more_than_the_total(
    crew: Crew,
    start_run: StartRun,
    new_hand: NewHand,
    people: dict[str, Person],
    limits: dict[str, int],
) -> None:
    """R26–R29, I13, I14: twenty stages that keep failing, artifacts beside them, and people who retry what was given
    up; looked at on connections of its own the whole time."""
    run = start_run(*fan(20), limits=limits)
    first = new_hand("first")
    first.report(first.take(), output=1)
    hands = [new_hand(f"hand-{number}") for number in range(6)]
    refusals: list[str] = []

    def insist() -> None:
        for _ in range(40):
            for stage in Stage.objects.filter(run=run, state="failed")[:3]:
                try:
                    retry_stage(stage.id, actor=people["operator"].actor, scope="stage_and_downstream")
                except Refusal as refusal:
                    refusals.append(refusal.code)
            time.sleep(0.02)

    with Watch(OVER, []) as watch, Balance(run) as balance:
        crew.at_once(*(partial(strive, run, hand, seed) for seed, hand in enumerate(hands)), insist)
        strive(run, hands[0], 99)
    assert (watch.peak, balance.less) == (0, 0)
    assert Artifact.objects.filter(run=run).exists()
    assert min(watch.looks, balance.looks) > 20
    attempts, size = charged(run)
    assert attempts <= limits.get("total_attempts", attempts)
    assert size <= limits.get("total_output_bytes", size)
    assert set(refusals) <= {"attempts_exhausted", "budget_exhausted", "stage_state_invalid"}
    failed = [stage for stage in stages_of(run) if stage.state == "failed"]
    assert failed, "it had room for everything: nothing was put to the test"
    while not (refused := insist_on(failed[0], people["operator"], hands[0])):
        assert charged(run)[0] < 100
    assert refused.code in ("attempts_exhausted", "budget_exhausted")
    assert DeadLetter.objects.filter(run=run, stage=failed[0], state="open").count() == 1


def test_results_of_one_instant_share_what_is_left(crew: Crew, start_run: StartRun, new_hand: NewHand) -> None:
    """R29: eight attempts fail at once and three more are left; three are tried again, five are given up."""
    for _ in range(6):
        run = start_run(*fan(8), limits={"total_attempts": 12})
        hands = [new_hand(f"hand-{run.id}-{number}") for number in range(8)]
        hands[0].report(hands[0].take(), output=1)
        jobs = [hand.take() for hand in hands]
        receipts = crew.at_once(
            *(partial(hand.report, job, "failed", error_code="X") for hand, job in zip(hands, jobs, strict=True))
        )
        assert sorted(one.stage_state for one in receipts) == ["failed"] * 5 + ["retry_scheduled"] * 3
        assert charged(run)[0] == 9
        while Stage.objects.filter(run=run, state="retry_scheduled").exists():
            for job in hands[0].pull(8):
                hands[0].report(job, "failed", error_code="X", retryable=False)
        assert charged(run) == (12, 12 * BYTES)


def test_artifacts_of_one_instant_share_what_is_left(crew: Crew, start_run: StartRun, hand: Hand) -> None:
    """R29, I14: eight of 100 bytes at once where 250 are left: two are kept, six are refused."""
    run = start_run(*fan(8), limits={"total_output_bytes": 9 * BYTES + 250})
    hand.report(hand.take(), output=1)
    jobs = hand.pull(8)

    def store(number: int) -> Any:
        data = bytes([number]) * 100
        given = Given("report", data, sha256(data).hexdigest())
        return artifact_storing.store(hand.holder, jobs[number].stage.id, jobs[number].attempt_id, given)

    answers = crew.at_once(*(partial(store, number) for number in range(8)))
    assert [one.code for one in answers if isinstance(one, Refusal)] == ["budget_exhausted"] * 6
    assert Artifact.objects.filter(run=run).count() == 2
    assert charged(run)[1] == 9 * BYTES + 200


class _Killed(Exception):
    """The worker's process ends here."""


def test_a_worker_that_is_killed_at_any_statement_of_its_result_charges_once(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R27, R28, I13, I14: before each statement of a failing result; what was lost is told again, or the lease ends."""
    met = 0
    for number in range(1, 60):
        run = start_run({"name": "only", "options": {"max_output_bytes": BYTES, "max_retries": 1, "retry_interval": 1}},
                        limits={"total_attempts": 2})  # fmt: skip
        job = hand.take()
        before, count = charged(run), 0

        def die(execute: Any, sql: str, params: Any, many: bool, context: Any, at: int = number) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise _Killed
            return execute(sql, params, many, context)

        told = results.Result(job.stage.id, job.attempt_id, job.number, "failed", error_code="X")
        with connection.execute_wrapper(die), suppress(_Killed):
            results.report(hand.holder, [told])
        assert charged(run) == before == (1, BYTES)
        assert query(OVER) == [(0,)]
        was_met = count == number
        met += was_met
        if number % 2:
            hand.report(job, "failed", error_code="X")
            assert stages_of(run)[0].state == "retry_scheduled"
        clock.advance(1000)
        sweeps.sweep()
        for again in hand.pull():
            hand.report(again, "failed", error_code="X")
        assert charged(run) == (2, 2 * BYTES)
        assert stages_of(run)[0].state == "failed"
        if not was_met:
            break
    assert met > 5, "a result has several statements"


def test_a_worker_that_dies_is_charged_and_one_that_never_began_is_not(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R28: a lost lease gives nothing back; what nobody took the lease of was only reserved."""
    run = start_run({"name": "only", "options": {"max_recoveries": 9}}, limits={"total_attempts": 2})
    for expected in (0, 0):
        assert len(hand.pull(acquire=False)) == 1
        clock.advance(1000)
        sweeps.sweep()
        assert charged(run)[0] == expected
    for expected in (1, 2):
        hand.take()
        clock.advance(1000)
        sweeps.sweep()
        assert charged(run)[0] == expected
    (stage,) = stages_of(run)
    assert (stage.state, stage.failure_disposition) == ("failed", "attempts_exhausted")
    assert DeadLetter.objects.get(run=run).state == "open"
    assert not hand.pull()


def test_eight_claimers_never_have_more_of_a_run_than_its_concurrency(
    crew: Crew, start_run: StartRun, new_hand: NewHand
) -> None:
    """R25: sixty stages, three at a time, at every commit; and all of them end."""
    run = start_run(*fan(60), limits={"concurrency": 3})
    hands = [new_hand(f"hand-{number}") for number in range(8)]

    def one(hand: Hand, limit: int) -> int:
        ended, give_up_at = 0, time.monotonic() + PATIENCE_SECONDS
        while Stage.objects.filter(run=run).exclude(state="completed").exists():
            assert time.monotonic() < give_up_at, "it comes to no end"
            for job in hand.pull(limit):
                assert hand.report(job, output=1).accepted
                ended += 1
        return ended

    with Watch(ACTIVE, [run.id]) as watch:
        ended = crew.at_once(*(partial(one, hand, limit) for limit, hand in enumerate(hands, 1)))
    assert sum(ended) == 61
    assert watch.peak <= 3
    assert watch.looks > 20
    assert Run.objects.get(id=run.id).status == "completed"


def test_one_at_a_time_with_retries_that_are_due_loses_no_wake_up(
    crew: Crew, start_run: StartRun, new_hand: NewHand, clock: Clock
) -> None:
    """R25: a stage that waits for its retry leaves its place to what is ready, and gets it back."""
    run = start_run(*fan(12, retry_interval=30, max_retries=2), limits={"concurrency": 1})
    hands = [new_hand(f"hand-{number}") for number in range(4)]
    hands[0].report(hands[0].take(), output=1)
    dice, lock = random.Random(7), threading.Lock()

    def one(hand: Hand) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not Run.objects.filter(id=run.id, status__in=["completed", "failed"]).exists():
            assert time.monotonic() < give_up_at, "it comes to no end"
            for job in hand.pull(2):
                with lock:
                    fails = dice.random() < 0.4
                hand.report(job, "failed", error_code="X") if fails else hand.report(job, output=1)

    def let_time_pass() -> None:
        while not Run.objects.filter(id=run.id, status__in=["completed", "failed"]).exists():
            clock.advance(5)
            time.sleep(0.02)

    with Watch(ACTIVE, [run.id]) as watch:
        crew.at_once(let_time_pass, *(partial(one, hand) for hand in hands))
    assert watch.peak == 1
    assert Attempt.objects.filter(run_id=run.id, number=2).exists()
    assert not QueueEntry.objects.exists()


def test_places_passed_on_beside_claims_and_ends_are_never_more_than_the_run_has(
    crew: Crew, start_run: StartRun, new_hand: NewHand
) -> None:
    """R25, I14: workers of one handler come and go while others work and places are passed on from all sides."""
    beside = [
        {"name": f"s{number}", "handler": "Rare" if number % 3 else "Handler", "depends_on": []} for number in range(40)
    ]
    run = start_run(*beside, {"name": "z", "depends_on": ["s0"]}, limits={"concurrency": 2, "total_attempts": 60})
    hands = [new_hand(f"hand-{number}") for number in range(3)]
    rare = new_hand("rare", "Rare")
    sessions = WorkerSession.objects.filter(worker_name="rare")
    give_up_at = time.monotonic() + PATIENCE_SECONDS

    def is_over() -> bool:
        assert time.monotonic() < give_up_at, "it comes to no end"
        return not Stage.objects.filter(run=run).exclude(state="completed").exists()

    def work(hand: Hand) -> None:
        while not is_over():
            for job in hand.pull(2):
                assert hand.report(job, output=1).accepted

    def come_and_go() -> None:
        while not is_over():
            sessions.update(state="draining")
            places.pass_on()
            sessions.update(state="active")
            for job in rare.pull(1):
                assert rare.report(job, output=1).accepted
            places.pass_on()

    def pass_on() -> None:
        while not is_over():
            places.pass_on()

    beyond = (
        f"SELECT ({ACTIVE}) + (SELECT count(*) FROM pipelines_queueentry q JOIN pipelines_stage s"
        " ON s.id = q.stage_id WHERE s.run_id = %s)"
    )
    with Watch(beyond, [run.id, run.id]) as watch:
        crew.at_once(come_and_go, pass_on, *(partial(work, hand) for hand in hands))
    assert watch.peak <= 2
    assert watch.looks > 20
    assert not QueueEntry.objects.exists()
    assert Run.objects.get(id=run.id).status == "completed"


def test_what_is_due_later_is_in_the_queue_as_soon_as_its_place_is_free(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """A waiting worker learns from the queue when to look again: the retry must stand in it before it is due."""
    from pipelines.wake import Queue

    run = start_run(*fan(2, retry_interval=30), limits={"concurrency": 1})
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="X")
    other = hand.take()
    assert not QueueEntry.objects.exists(), "the other one has the only place"
    hand.report(other, output=1)
    queue = Queue(run.application_id, run.environment_id, "Handler")
    due = leases.next_due([queue])
    assert due is not None
    assert 20 < due <= 30
    clock.advance(31)
    assert hand.take().stage.name == "s0"
    with transaction.atomic():
        assert query(ACTIVE, [run.id]) == [(1,)]
