"""An intent beside what ends its attempt, in the same instant: stored and never forgotten, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pipelines import intents, leases, sweeps
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.models import Effect, Run
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew
from tests.pipelines.engine import states

StartRun = Callable[..., Run]
ROUNDS = 40
PAY: Mapping[str, Any] = {"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}


def declare(hand: Hand, job: Job, key: str = "invoice-42") -> Callable[[], Any]:
    told = [Told("external_http", "declared", key=key)]
    return lambda: intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, told)


def effects(run: Run) -> list[str]:
    return list(Effect.objects.filter(run=run).values_list("state", flat=True))


def was_stored(answer: Any) -> bool:
    """A refusal is no permission to act; anything else is."""
    if isinstance(answer, Refusal):
        assert answer.code == "stale_execution"
        return False
    return True


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 6])
def test_an_intent_beside_the_end_of_its_lease(crew: Crew, start_run: StartRun, hand: Hand, milliseconds: int) -> None:
    """F62, R4: stored, and the stage is in doubt; or refused, and the stage goes back to the queue."""
    for _ in range(ROUNDS // 2):
        run = start_run(PAY)
        job = hand.take()
        execute(
            "UPDATE pipelines_attempt SET expires_at = recourse_now() + make_interval(secs => %s) WHERE id = %s",
            [milliseconds / 1000, job.attempt_id],
        )
        answer, _ = crew.at_once(declare(hand, job), sweeps.expire_leases)
        while "running" in states(run).values():
            sweeps.expire_leases()
        if was_stored(answer):
            assert (states(run), effects(run)) == ({"pay": "needs_reconciliation"}, ["unknown"])
        else:
            assert (states(run), effects(run)) == ({"pay": "ready"}, [])
            assert hand.report(hand.take()).accepted


def test_an_intent_beside_a_cancel(crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    """P75, F65: what was allowed is listed as open; what came after is not allowed."""
    operator = people["operator"].actor
    seen = set()
    for _ in range(2 * ROUNDS):
        run = start_run(PAY)
        job = hand.take()
        answer, cancelled = crew.at_once(declare(hand, job), lambda run=run: cancel_run(run.id, actor=operator))
        stored = was_stored(answer)
        seen.add(stored)
        assert states(run) == {"pay": "cancelled"}
        assert effects(run) == (["unknown"] if stored else [])
        assert ("open_effect" in [item["kind"] for item in cancelled.reconciliation]) == stored
    assert seen == {True, False}


def test_an_intent_beside_its_own_release_or_failure(crew: Crew, start_run: StartRun, hand: Hand) -> None:
    """A handler that goes on in a thread while its worker lets go of it."""
    for number in range(2 * ROUNDS):
        run = start_run(PAY)
        job = hand.take()
        ends: Sequence[Callable[[], Any]] = (
            lambda job=job: leases.release(hand.holder, job.stage.id, job.attempt_id),
            lambda job=job: hand.report(job, "failed", error_code="FOO"),
        )
        answer, _ = crew.at_once(declare(hand, job), ends[number % 2])
        if was_stored(answer):
            assert (states(run), effects(run)) == ({"pay": "needs_reconciliation"}, ["unknown"])
        else:
            assert (states(run)["pay"], effects(run)) == (("ready", "failed")[number % 2], [])
            if number % 2 == 0:
                hand.report(hand.take())


def test_the_same_intent_told_by_many_at_once_is_one_effect(crew: Crew, start_run: StartRun, hand: Hand) -> None:
    for _ in range(ROUNDS // 2):
        run = start_run(PAY)
        job = hand.take()
        answers = crew.at_once(*[declare(hand, job)] * 4, *[declare(hand, job, "invoice-43")] * 4)
        assert len({answer[0].effect_id for answer in answers}) == 2
        assert effects(run) == ["declared", "declared"]
        assert hand.report(job).accepted
