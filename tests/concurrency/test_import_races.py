"""Answers from elsewhere at the same instant: one is taken for a request, whatever happens beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipelines import imports
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.imports import Answer, Taken
from pipelines.models import Attempt, LateEvidence, Run, StageOutput
from pipelines.sql import execute
from pipelines.sweeps import sweep
from pipelines.transitions import cancel_run
from tests.concurrency.crew import Crew, refusals

StartRun = Callable[..., Run]
ROUNDS = 8
IMPORTED: dict[str, Any] = {"name": "correctness", "mode": "import"}


def giving(run: Run, actor: Actor, output: Any) -> Callable[[], Taken]:
    attempt = Attempt.objects.get(run=run)
    answer = Answer(attempt.request_digest, output=output)
    return lambda: imports.take(attempt.stage_id, answer, actor=actor)


def test_of_many_answers_one_is_taken(crew: Crew, start_run: StartRun, application_actor: Actor) -> None:
    """R45: the others are stale, and each is kept."""
    for number in range(ROUNDS):
        run = start_run(IMPORTED, key=f"many-{number}")
        told = crew.at_once(*(giving(run, application_actor, output) for output in range(8)))
        assert refusals(told) == ["stale_request"] * 7
        assert StageOutput.objects.filter(stage__run=run).count() == 1
        assert LateEvidence.objects.filter(attempt__run=run).count() == 7


def test_the_same_answer_eight_times_is_taken_once(crew: Crew, start_run: StartRun, application_actor: Actor) -> None:
    for number in range(ROUNDS):
        run = start_run(IMPORTED, key=f"same-{number}")
        told = crew.at_once(*(giving(run, application_actor, "fine") for _ in range(8)))
        assert sorted(one.replayed for one in told) == [False, *[True] * 7]
        assert {one.state for one in told} == {"completed"}
        assert not LateEvidence.objects.filter(attempt__run=run).exists()


def test_an_answer_beside_a_cancel_or_its_time_s_end_is_taken_or_kept(
    crew: Crew, start_run: StartRun, application_actor: Actor
) -> None:
    """R36: never both, never neither."""
    for number in range(ROUNDS):
        run = start_run(IMPORTED, "after", key=f"cancel-{number}")
        if number % 2:
            soon = "expires_at = recourse_now() + make_interval(secs => %s)"
            execute(f"UPDATE pipelines_attempt SET {soon} WHERE run_id = %s", [number / 1000, run.id])
            answer = crew.at_once(giving(run, application_actor, "fine"), sweep)[0]
        else:
            ending = partial(cancel_run, run.id, actor=application_actor)
            answer = crew.at_once(giving(run, application_actor, "fine"), ending)[0]
        outputs = StageOutput.objects.filter(stage__run=run).count()
        kept = LateEvidence.objects.filter(attempt__run=run).count()
        assert (outputs, kept) == ((0, 1) if isinstance(answer, Refusal) else (1, 0))
