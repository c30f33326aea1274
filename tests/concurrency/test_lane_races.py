"""Many at once on one lane: never more are in than it takes, and no place stays empty."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from pipelines import lanes
from pipelines.models import Event, Run, Trigger
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew
from tests.laned import hold, inside, open_lane, waiting
from tests.scheduled import MakeTrigger

NewHand = Callable[..., Hand]
PATIENCE_SECONDS = 45
ENDED = ("completed", "failed", "cancelled")


@pytest.fixture
def trigger(make_trigger: MakeTrigger) -> Trigger:
    return make_trigger()


def test_eight_that_let_in_at_once_let_in_no_more_than_the_lane_takes(crew: Crew, trigger: Trigger) -> None:
    """F81: 500 held runs, eight callers again and again."""
    lane = open_lane(trigger, 3)
    hold(trigger, lane, 500)

    def again() -> int:
        return sum(lanes.let_in([lane] if number % 2 else None) for number in range(10))

    assert sum(crew.at_once(*(again for _ in range(8)))) == 3
    assert inside(lane) == [0, 1, 2]


@pytest.mark.parametrize("capacity", [1, 5])
def test_eight_workers_and_schedulers_never_have_more_in_than_the_lane_takes(
    capacity: int, crew: Crew, trigger: Trigger, new_hand: NewHand, people: dict[str, Person]
) -> None:
    """F81, O55: workers end runs, a person cancels held ones, sweeps look on; the peak is the capacity."""
    lane = open_lane(trigger, capacity)
    runs = hold(trigger, lane, 100)
    done = threading.Event()
    peaks: list[int] = []

    def work(hand: Hand) -> None:
        while not done.is_set():
            for job in hand.pull(3):
                hand.report(job, output=1)

    def look() -> None:
        while not done.wait(0.02):
            lanes.let_in()

    def watch() -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while Run.objects.filter(lane_id=lane).exclude(status__in=ENDED).exists() and time.monotonic() < give_up_at:
            peaks.append(len(inside(lane)))
        done.set()

    def cancel() -> None:
        for run in runs[::-10]:
            cancel_run(run.id, actor=people["operator"].actor)

    hands = [new_hand(f"hand-{number}") for number in range(4)]
    crew.at_once(*(lambda hand=hand: work(hand) for hand in hands), look, look, watch, cancel)
    assert max(peaks) == capacity
    assert waiting(lane) == []
    ended = Counter(Run.objects.filter(lane_id=lane).values_list("status", flat=True))
    assert ended["completed"] + ended["cancelled"] == 100
    assert ended["completed"] >= 90
    let_in = Event.objects.filter(kind="run.let_in").values_list("run_id", flat=True)
    assert len(let_in) == len(set(let_in)), "each is let in once"


def test_no_place_stays_empty_when_many_end_at_once(crew: Crew, trigger: Trigger, new_hand: NewHand) -> None:
    """Without any sweep: who ends a run waits for those who are letting in, and looks after them."""
    lane = open_lane(trigger, 8)
    hold(trigger, lane, 80)
    lanes.let_in([lane])
    hands = [new_hand(f"hand-{number}") for number in range(8)]
    for left in range(72, -1, -8):
        assert len(inside(lane)) == 8
        assert len(waiting(lane)) == left
        jobs = [hand.take() for hand in hands]
        pairs = zip(hands, jobs, strict=True)
        crew.at_once(*(lambda hand=hand, job=job: hand.report(job, output=1) for hand, job in pairs))
    assert Run.objects.filter(lane_id=lane, status="completed").count() == 80


def test_a_lane_that_is_closed_while_others_let_in_lets_in_nothing_after_that(crew: Crew, trigger: Trigger) -> None:
    """Closing waits for who is letting in; what was not in then stays held."""
    lane = open_lane(trigger, 400)
    hold(trigger, lane, 500)
    after: list[int] = []

    def close() -> None:
        lanes.set_lane(lane, is_open=False)
        after.append(len(inside(lane)))

    crew.at_once(close, *(lambda: lanes.let_in([lane]) for _ in range(7)))
    assert lanes.let_in([lane]) == 0
    assert [len(inside(lane))] == after
