"""Many workers at once: none shares a stage with another, and together they find every one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pipelines.jobs import Job
from pipelines.models import Attempt, Event, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew
from tests.pipelines.engine import attempts, states, status
from tests.verbs import pause_run, resume_run

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]
PATIENCE_SECONDS = 60


def pull_until(hand: Hand, enough: Callable[[], bool], limit: int) -> list[Job]:
    """Pulls until there is enough, as a worker that looks again would."""
    found: list[Job] = []
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not enough() and time.monotonic() < give_up_at:
        found += hand.pull(limit)
    return found


def test_claimers_share_no_stage_and_find_them_all(crew: Crew, start_run: StartRun, new_hand: NewHand) -> None:
    """F21, I2: 200 runs, 8 claimers, batches of every size."""
    for _ in range(200):
        start_run("first")
    hands = [new_hand(f"hand-{number}") for number in range(8)]

    def enough() -> bool:
        return Attempt.objects.count() >= 200

    answers = crew.at_once(
        *(lambda hand=hand, limit=limit: pull_until(hand, enough, limit) for limit, hand in enumerate(hands, 1))
    )
    jobs = [job for answer in answers for job in answer]
    assert len(jobs) == len({job.stage.id for job in jobs}) == 200
    assert {job.number for job in jobs} == {1}


def test_claimers_of_one_wide_run_find_all_its_stages(crew: Crew, start_run: StartRun, new_hand: NewHand) -> None:
    names = [f"leaf {number}" for number in range(60)]
    run = start_run(*names, {"name": "join", "depends_on": names})
    hands = [new_hand(f"hand-{number}") for number in range(8)]

    def enough() -> bool:
        return Attempt.objects.count() >= 60

    answers = crew.at_once(*(lambda hand=hand: pull_until(hand, enough, 3) for hand in hands))
    jobs = [job for answer in answers for job in answer]
    assert sorted(job.stage.name for job in jobs) == sorted(names)
    assert states(run)["join"] == "pending"


def test_of_two_sessions_that_acquire_one_attempt_one_gets_it(
    crew: Crew, start_run: StartRun, new_hand: NewHand
) -> None:
    """P4: exactly one `acquired: true`, fifty times."""
    hands = [new_hand(f"hand-{number}") for number in range(4)]
    for _ in range(50):
        run = start_run("first")
        (job,) = hands[0].pull(acquire=False)
        answers = crew.at_once(*(lambda hand=hand, job=job: hand.acquire(job) for hand in hands))
        assert sorted(lease.acquired for lease in answers) == [False, False, False, True]
        assert {lease.reason for lease in answers} == {None, "lease_held"}
        winner = hands[[lease.acquired for lease in answers].index(True)]
        assert winner.report(job).accepted
        assert attempts(run, "first") == ["succeeded"]


def test_a_claim_beside_a_cancel_leaves_nothing_that_moves(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """F30, I4: whoever comes first, the run is cancelled whole."""
    for _ in range(50):
        run = start_run("first", "second")
        pulled, _ = crew.at_once(
            lambda: hand.pull(5), lambda run=run: cancel_run(run.id, actor=people["operator"].actor)
        )
        assert status(run) == "cancelled"
        assert set(states(run).values()) == {"cancelled"}
        assert attempts(run, "first") == ["fenced"] * len(pulled)


def test_a_claim_beside_a_pause_is_taken_back_or_finds_nothing(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """F74, P60: once the pause has answered, nothing that was only handed out is left with a worker."""
    operator = people["operator"].actor
    for _ in range(50):
        run = start_run("first")
        pulled, told = crew.at_once(lambda: hand.pull(acquire=False), lambda run=run: pause_run(run.id, actor=operator))
        assert (told.result["run_status"], status(run), states(run)) == ("paused", "paused", {"first": "ready"})
        assert attempts(run, "first") == ["released"] * len(pulled)
        assert hand.pull() == []
        cancel_run(run.id, actor=operator)


def test_pause_and_resume_from_many_sides_end_in_the_last_word(
    crew: Crew, start_run: StartRun, people: dict[str, Person]
) -> None:
    """F68: each call is carried out or refused; the states follow one another without a gap."""
    run = start_run("first")
    operator = people["operator"].actor

    def push(number: int) -> Any:
        for step in range(13):
            verb = pause_run if (number + step) % 2 else resume_run
            try:
                verb(run.id, actor=operator)
            except Exception as error:  # noqa: BLE001
                assert getattr(error, "code", None) == "execution_state_invalid"  # noqa: PT017

    crew.at_once(*(lambda number=number: push(number) for number in range(8)))
    told = list(Event.objects.filter(run=run, kind__in=["run.pause", "run.resume"]).order_by("id"))
    assert [event.kind for event in told] == [
        "run.pause" if number % 2 == 0 else "run.resume" for number in range(len(told))
    ]
    assert status(run) == ("paused" if len(told) % 2 else "queued")
