"""Two things that end an attempt or a run, in the same instant: one wins, whole, and the other finds it done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import results, sweeps
from pipelines.models import Attempt, LateEvidence, Run
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import Crew
from tests.pipelines.engine import attempts, kinds, stage, states, status

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]
ROUNDS = 40


def test_two_last_stages_that_finish_together_end_the_run_once(
    crew: Crew, start_run: StartRun, hand: Hand, new_hand: NewHand
) -> None:
    other = new_hand("hand-2")
    for _ in range(ROUNDS):
        run = start_run("top", {"name": "left", "depends_on": ["top"]}, {"name": "right", "depends_on": ["top"]})
        hand.report(hand.take())
        left, right = hand.take(), other.take()
        crew.at_once(lambda left=left: hand.report(left), lambda right=right: other.report(right))
        assert status(run) == "completed"
        assert kinds(run).count("run.completed") == 1


def test_a_join_whose_branches_finish_together_starts_once(crew: Crew, start_run: StartRun, new_hand: NewHand) -> None:
    """F25, F29: no branch leaves it to the other."""
    names = [f"branch {number}" for number in range(8)]
    hands = [new_hand(f"hand-{number}") for number in range(8)]
    for _ in range(20):
        run = start_run(*names, {"name": "join", "depends_on": names, "handler": "Later"})
        jobs = [(hand, hand.take()) for hand in hands]
        crew.at_once(*(lambda hand=hand, job=job: hand.report(job) for hand, job in jobs))
        assert states(run)["join"] == "ready"
        assert kinds(run, "join") == ["stage.make_ready"]


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 6])
def test_a_result_beside_the_end_of_its_lease_counts_or_does_not(
    crew: Crew, start_run: StartRun, hand: Hand, milliseconds: int
) -> None:
    """F01, F16: exactly one of succeeded and lost; a lost one's result is evidence, and one new attempt follows."""
    for _ in range(ROUNDS // 2):
        run = start_run("first")
        job = hand.take()
        execute(
            "UPDATE pipelines_attempt SET expires_at = recourse_now() + make_interval(secs => %s) WHERE id = %s",
            [milliseconds / 1000, job.attempt_id],
        )
        receipt, _ = crew.at_once(lambda job=job: hand.report(job), sweeps.expire_leases)
        if receipt.accepted:
            assert sweeps.expire_leases() == 0
            assert (attempts(run, "first"), status(run)) == (["succeeded"], "completed")
        else:
            sweeps.expire_leases()
            assert (attempts(run, "first"), states(run)) == (["lost"], {"first": "ready"})
            assert LateEvidence.objects.filter(attempt_id=job.attempt_id).count() == 1
            assert stage(run, "first").recovery_count == 1
            assert hand.report(hand.take()).accepted


def test_a_result_beside_a_cancel_ends_the_run_one_way(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """P74, F30: completed and the cancel refused, or cancelled and the result late; nothing in between."""
    for number in range(5 * ROUNDS):
        run = start_run("first", *(["second"] if number % 2 else []))
        job = hand.take()
        receipt, cancelled = crew.at_once(
            lambda job=job: hand.report(job), lambda run=run: cancel_run(run.id, actor=people["operator"].actor)
        )
        if number % 2 or not receipt.accepted:
            assert status(run) == "cancelled"
            assert states(run).get("second", "cancelled") == "cancelled"
            assert attempts(run, "first") == ["succeeded" if receipt.accepted else "fenced"]
        else:
            assert (status(run), cancelled.code) == ("completed", "execution_state_invalid")
        assert LateEvidence.objects.filter(attempt_id=job.attempt_id).count() == (not receipt.accepted)


def test_the_same_result_from_many_connections_counts_once(crew: Crew, start_run: StartRun, hand: Hand) -> None:
    """P3, P56: a worker that repeats itself while the first is under way."""
    for _ in range(25):
        run = start_run({"name": "first", "options": {"max_retries": 2, "retry_interval": 100}})
        job = hand.take()
        answers = crew.at_once(*(lambda job=job: hand.report(job, "failed", error_code="FOO") for _ in range(6)))
        assert {(answer.accepted, answer.stage_state) for answer in answers} == {(True, "retry_scheduled")}
        assert stage(run, "first").retry_count == 1
        assert not LateEvidence.objects.exists()


def test_eight_sweepers_over_one_set_lose_each_lease_once(
    crew: Crew, start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """F02, F21: between them they move every row once."""
    runs = [start_run("first") for _ in range(120)]
    assert len(hand.pull(200)) == 120
    clock.advance(60)
    moved = crew.at_once(*(lambda: sum(sweeps.expire_leases(limit=7) for _ in range(6)) for _ in range(8)))
    assert sum(moved) == 120
    assert set(Attempt.objects.values_list("state", flat=True)) == {"lost"}
    for run in runs:
        assert stage(run, "first").recovery_count == 1
        assert kinds(run, "first").count("stage.recover") == 1
    assert sweeps.expire_leases() == 0


def test_whole_sweeps_side_by_side_agree(crew: Crew, start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F27, R30: leases, time limits, gates and deadlines all due at once."""
    kinds_of_run: list[dict[str, Any]] = [
        {"options": {"timeout": 60}},
        {"effect_mode": "external"},
        {"approval": {"when": "before", "expires_in": 60}},
        {"options": {"max_recoveries": 0}},
    ]
    for number in range(80):
        deadline = 60 if number % 5 == 0 else None
        start_run({"name": "first", **kinds_of_run[number % 4]}, "second", deadline_seconds=deadline)
    hand.pull(30)
    hand.pull(20, acquire=False)
    clock.advance(60)
    answers = crew.at_once(*(lambda: [sweeps.sweep() for _ in range(3)] for _ in range(8)))
    total: dict[str, int] = {}
    for swept in (one for answer in answers for one in answer):
        total = {name: total.get(name, 0) + count for name, count in swept.items()}
    assert total["deadlines"] == 16
    assert not any(sweeps.sweep().values())
    assert not Attempt.objects.filter(state__in=["running", "dispatched"]).exists()


def test_a_renewal_beside_the_expiry_keeps_the_lease_or_loses_it(crew: Crew, start_run: StartRun, hand: Hand) -> None:
    """P51, F09: never both, and an answer of `acquired` is kept."""
    for _ in range(ROUNDS):
        run = start_run("first")
        job = hand.take()
        execute(
            "UPDATE pipelines_attempt SET expires_at = recourse_now() + interval '2 ms' WHERE id = %s",
            [job.attempt_id],
        )
        (lease,), _ = crew.at_once(lambda job=job: hand.renew(job), sweeps.expire_leases)
        sweeps.expire_leases()
        still_held = Attempt.objects.get(id=job.attempt_id).state == "running"
        if still_held:
            assert lease.acquired
            assert hand.report(job).accepted
        else:
            assert not hand.renew(job)[0].acquired
            assert hand.report(hand.take()).accepted
        assert status(run) == "completed"


def test_batches_over_the_same_runs_in_opposite_orders_do_not_block_each_other_for_good(
    crew: Crew, start_run: StartRun, new_hand: NewHand
) -> None:
    """The lock order: runs in the order of their ids, whatever the order of the batch."""
    for _ in range(10):
        for _ in range(12):
            start_run("left", "right", {"name": "join", "depends_on": ["left", "right"], "handler": "Later"})
        left, right = new_hand("hand-l"), new_hand("hand-r")
        jobs = left.pull(24)
        by_name = {name: [job for job in jobs if job.stage.name == name] for name in ("left", "right")}
        lists = [
            [results.Result(job.stage.id, job.attempt_id, job.number, "succeeded") for job in some]
            for some in (by_name["left"], by_name["right"][::-1])
        ]
        answers = crew.at_once(*(lambda told=told, left=left: results.report(left.holder, told) for told in lists))
        assert all(receipt.accepted for answer in answers for receipt in answer)
        assert right.pull() == []
