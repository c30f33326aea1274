"""Revisions of runs that share their origin, asked for at once: never more than the limit is carried out (R25, I14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from pipelines.errors import Refusal
from pipelines.models import Run
from recovery import forks
from recovery.models import Operation
from recovery.states import OperationKind
from tests.cast import Hand, Person, stages_of
from tests.concurrency.crew import Crew
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
MOST = 4


def fail(hand: Hand) -> None:
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)


def rerun(run: Run, person: Person) -> Any:
    asked = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(from_step_id="only"), actor=person.actor)
    return forks.fork(asked, actor=person.actor)


def retry(run: Run, person: Person) -> Any:
    (stage,) = stages_of(run)
    return retry_stage(stage.id, actor=person.actor, scope="stage_and_downstream", reason="again")


def lineage(start_run: StartRun, hand: Hand, person: Person) -> tuple[Run, Run, Run]:
    """A failed run, and two failed forks of it: two revisions are used."""
    source = start_run("only", limits={"revisions": MOST})
    fail(hand)
    found = [source]
    for _ in range(2):
        found.append(Run.objects.get(id=rerun(source, person).result["execution_id"]))
        fail(hand)
    return found[0], found[1], found[2]


def test_reruns_and_retries_of_a_run_and_its_forks_at_once_never_pass_the_limit(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    for _ in range(4):
        person = people["admin"]
        source, left, right = lineage(start_run, hand, person)
        answers = crew.at_once(
            *(partial(rerun, source, person) for _ in range(3)),
            *(partial(rerun, left, person) for _ in range(2)),
            partial(retry, left, person),
            *(partial(rerun, right, person) for _ in range(2)),
        )
        refused = [one for one in answers if isinstance(one, Refusal)]
        assert {one.code for one in refused} <= {"budget_exhausted", "stage_state_invalid", "execution_state_invalid"}
        assert "budget_exhausted" in {one.code for one in refused}
        runs = {source.id: source, left.id: left, right.id: right}
        done = Operation.objects.filter(run_id__in=runs).exclude(state__in=["denied", "failed"]).order_by("updated_at")
        counted: Counter[UUID] = Counter()
        for one in done:  # in the order in which they were carried out: each fits beside those before it
            counted[one.run_id] += 1
            line = [one.run_id] if one.run_id == source.id else [one.run_id, source.id]
            assert sum(counted[run_id] for run_id in line) <= MOST, [(str(one.run_id)[-4:], one.kind) for one in done]
        assert counted.total() == 2 + len(answers) - len(refused)
        hand.finish()


def test_whoever_revises_another_lineage_waits_for_nobody(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """Eight runs that share no origin are rerun at once, all of them."""
    runs = [start_run("only") for _ in range(8)]
    for _ in runs:
        fail(hand)
    answers = crew.at_once(*(partial(rerun, run, people["admin"]) for run in runs))
    assert [one.status for one in answers] == ["dispatched"] * 8
