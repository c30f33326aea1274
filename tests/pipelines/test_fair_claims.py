"""What claims hand out when live and background work wait together, and what waits while a blackout holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from pipelines import executor, lanes, leases
from pipelines.api import pulling
from pipelines.jobs import Job
from pipelines.measures import engine
from pipelines.models import Blackout, Run, Trigger
from pipelines.sql import database_now
from pipelines.wake import Queue
from tests.cast import Hand
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.laned import hold, open_lane
from tests.pipelines.engine import states
from tests.scheduled import MakeTrigger

StartRun = Callable[..., Run]


@pytest.fixture
def trigger(make_trigger: MakeTrigger) -> Trigger:
    return make_trigger()


@pytest.fixture
def backfill(trigger: Trigger) -> Callable[[int], None]:
    """So many runs of a backfill, all let in."""

    def make(count: int) -> None:
        hold(trigger, open_lane(trigger, None), count)
        lanes.let_in()

    return make


@pytest.fixture
def young(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, nothing has waited long enough to count."""
    monkeypatch.setattr(leases, "AGING_SECONDS", 1_000_000)


def kinds(jobs: list[Job]) -> Counter[str]:
    """How many of each: live, background."""
    background = set(
        Run.objects.filter(id__in=[job.run_id for job in jobs], lane__is_background=True).values_list("id", flat=True)
    )
    return Counter("background" if job.run_id in background else "live" for job in jobs)


@pytest.mark.usefixtures("young")
def test_ten_ticks_of_a_backfill_begin_within_ten_loops_beside_live_work(
    start_run: StartRun, hand: Hand, backfill: Callable[[int], None], clock: Clock
) -> None:
    """F83: 25 live due each loop, limit 20, 10 backfill ticks → all 10 started within 10 loops."""
    backfill(10)
    begun: list[int] = []
    while sum(begun) < 10:
        for _ in range(25):
            start_run("first")
        clock.advance(0.1)
        begun.append(kinds(hand.pull(20))["background"])
    assert begun == [5, 5], "a quarter of each claim"
    assert_invariants()


@pytest.mark.usefixtures("young")
def test_a_large_backfill_takes_no_more_than_its_share_from_live_work(
    start_run: StartRun, hand: Hand, backfill: Callable[[int], None]
) -> None:
    """F83 the other way: 15 of 20 are live while as many wait, though the backfill's are older."""
    backfill(300)
    for _ in range(40):
        start_run("first")
    assert kinds(hand.pull(20)) == {"live": 15, "background": 5}
    assert kinds(hand.pull(20)) == {"live": 15, "background": 5}


def test_what_one_of_them_leaves_free_the_other_gets(
    start_run: StartRun, hand: Hand, backfill: Callable[[int], None]
) -> None:
    backfill(30)
    for _ in range(2):
        start_run("first")
    assert kinds(hand.pull(20)) == {"live": 2, "background": 18}
    assert kinds(hand.pull(20)) == {"background": 12}
    for _ in range(30):
        start_run("first")
    backfill(1)
    assert kinds(hand.pull(20)) == {"live": 19, "background": 1}


@pytest.mark.parametrize(("waited", "background"), [(0, 5), (30, 7.5), (60, 10), (3600, 10)])
def test_background_work_gets_more_the_longer_its_oldest_has_waited(
    waited: int,
    background: float,
    start_run: StartRun,
    hand: Hand,
    backfill: Callable[[int], None],
    clock: Clock,
) -> None:
    """From one place in four to one in two, and never more while live work waits."""
    backfill(50)
    clock.advance(waited)
    for _ in range(50):
        start_run("first")
    assert abs(kinds(hand.pull(20))["background"] - background) <= 0.5


@pytest.mark.usefixtures("young")
def test_with_a_limit_of_one_neither_starves(
    start_run: StartRun, hand: Hand, backfill: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F83: by lot, one in four."""
    monkeypatch.setattr(leases, "random", Random(1).random)
    backfill(60)
    for _ in range(60):
        start_run("first")
    got = kinds([hand.take() for _ in range(60)])
    assert 8 <= got["background"] <= 22, got
    assert got["live"] + got["background"] == 60


@pytest.mark.usefixtures("young")
def test_each_kind_is_handed_out_oldest_first(
    start_run: StartRun, hand: Hand, trigger: Trigger, backfill: Callable[[int], None], clock: Clock
) -> None:
    backfill(6)
    live = []
    for _ in range(12):
        clock.advance(0.01)
        live.append(start_run("first").id)
    jobs = hand.pull(12)
    got = [job.run_id for job in jobs if job.run_id in set(live)]
    assert got == live[: len(got)]
    ranks = [Run.objects.get(id=job.run_id).lane_rank for job in jobs if job.run_id not in set(live)]
    assert len(ranks) == 3


@pytest.mark.usefixtures("young")
def test_the_share_is_of_a_whole_claim_whatever_its_queues(
    start_run: StartRun, new_hand: Callable[..., Hand], backfill: Callable[[int], None]
) -> None:
    """Live work of any of the handlers has its three quarters."""
    hand = new_hand("both", "Handler", "Other")
    backfill(40)
    for _ in range(40):
        start_run({"name": "first", "handler": "Other"})
    assert kinds(hand.pull(20)) == {"live": 15, "background": 5}


def test_live_runs_of_a_trigger_are_no_background_work(trigger: Trigger, start_run: StartRun, hand: Hand) -> None:
    """Its lane is its own."""
    lane = open_lane(trigger, None, lane_id=trigger.id)
    hold(trigger, lane, 20)
    lanes.let_in()
    for _ in range(5):
        start_run("first")
    assert len(hand.pull(25)) == 25
    assert_invariants()


class TestBlackouts:
    """F117: nothing begins, what has begun goes on, and nobody looks in a loop for what may not begin."""

    @pytest.fixture
    def freeze(self, place: Any) -> Callable[..., Blackout]:
        def make(**more: Any) -> Blackout:
            return Blackout.objects.create(
                workspace_id=place.workspace_id, name="freeze", kind="period", starts_at=database_now(), **more
            )

        return make

    @pytest.fixture
    def queue(self, place: Any) -> Queue:
        return Queue(place.application_id, place.environment_id, "Handler")

    def test_what_has_begun_goes_on_and_nothing_begins(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout]
    ) -> None:
        begun = start_run("first", {"name": "second", "depends_on": ["first"]})
        job = hand.take()
        held = freeze()
        waits = start_run("first")
        assert hand.pull(10) == []
        hand.report(job, output=1)
        assert [one.run_id for one in hand.pull(10)] == [begun.id]
        assert states(waits) == {"first": "ready"}
        held.delete()
        assert [one.run_id for one in hand.pull(10)] == [waits.id]
        assert_invariants()

    def test_a_stage_beside_one_that_began_begins_too(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout]
    ) -> None:
        """Stopping a run in the middle is what blackouts are there to prevent."""
        run = start_run("left", "right", {"name": "join", "depends_on": ["left", "right"]})
        start_run("first")
        hand.take()
        freeze()
        (job,) = hand.pull(10)
        assert (job.run_id, job.stage.name) == (run.id, "right")
        assert_invariants()

    def test_a_due_retry_waits(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout], clock: Clock
    ) -> None:
        run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 1}})
        hand.report(hand.take(), "failed", error_code="FOO")
        held = freeze()
        clock.advance(10)
        assert hand.pull(10) == []
        assert states(run) == {"first": "retry_scheduled"}
        held.delete()
        assert [job.run_id for job in hand.pull(10)] == [run.id]

    def test_another_environments_freeze_closes_nothing_here(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout], environments: dict[str, Any]
    ) -> None:
        start_run("first")
        freeze(environment=environments["staging"])
        assert len(hand.pull(10)) == 1

    def test_who_waits_looks_again_a_little_later_and_not_in_a_loop(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout], queue: Queue, clock: Clock
    ) -> None:
        held = freeze()
        start_run("first")
        clock.advance(10)
        assert leases.next_due([queue]) == leases.CLOSED_SECONDS
        held.delete()
        due = leases.next_due([queue])
        assert due is not None
        assert due <= 0

    def test_what_is_due_later_is_told_as_ever_where_lines_are_closed(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout], queue: Queue
    ) -> None:
        start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 100}})
        hand.report(hand.take(), "failed", error_code="FOO")
        freeze()
        due = leases.next_due([queue])
        assert due is not None
        assert due > 60

    def test_no_hint_is_sent_for_a_closed_line(
        self, start_run: StartRun, freeze: Callable[..., Blackout], monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.RECOURSE_HANDLERS = ["anything"]
        monkeypatch.setattr(executor, "executed_handlers", lambda: ["Handler"])
        sent: list[int] = []
        monkeypatch.setattr(executor, "send_hint", lambda: sent.append(1))
        held = freeze()
        start_run("first")
        assert not executor.hint_overdue()
        held.delete()
        assert executor.hint_overdue()
        assert sent == [1]

    def test_a_waiting_pull_looks_seldom(
        self, start_run: StartRun, hand: Hand, freeze: Callable[..., Blackout], queue: Queue, monkeypatch: Any
    ) -> None:
        freeze()
        start_run("first")
        looks: list[int] = []
        claim = leases.claim

        def count(*args: Any, **told: Any) -> list[Job]:
            looks.append(1)
            return claim(*args, **told)

        monkeypatch.setattr(pulling, "claim", count)
        assert pulling.pull(hand.holder, [queue], limit=1, acquire=True, seconds=1.5, gone=lambda: False) == []
        assert len(looks) <= 4, "at once, once it waits, and when the ear has opened"

    def test_what_may_not_begin_is_not_measured_as_ready(
        self, start_run: StartRun, freeze: Callable[..., Blackout]
    ) -> None:
        def ready() -> float:
            family = next(one for one in engine() if one.name == "recourse_ready_stages")
            return sum(sample.value for sample in family.samples)

        start_run("first")
        assert ready() == 1
        freeze()
        assert ready() == 0
