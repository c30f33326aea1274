"""Revisions are bounded over a run and what it was forked from; forks have the limits of the release that they pin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.limits import Limits
from pipelines.models import Run, Stage
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of

StartRun = Callable[..., Run]


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def fail(hand: Hand) -> None:
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)


def retry(operator: Api, run: Run, **body: Any) -> Any:
    return operator.post(f"/v1/stages/{stages_of(run)[0].id}/retry", {"reason": "again", **body})


def rerun(operator: Api, run: Run, start: str) -> Any:
    return operator.post(f"/v1/executions/{run.id}/rerun", {"from_step_id": start, "reason": "again"})


@pytest.mark.parametrize("body", [{"scope": "stage_and_downstream"}, {"input": "other"}])
def test_retries_that_revise_are_bounded_and_plain_ones_are_not(
    start_run: StartRun, hand: Hand, operator: Api, body: dict[str, str]
) -> None:
    """R25: the revision limit; the refusal names it, and comes before anything is changed."""
    run = start_run("only", limits={"revisions": 2})
    fail(hand)
    for _ in range(2):
        assert retry(operator, run, **body).status_code == 200
        fail(hand)
    before = Stage.objects.filter(run=run).values_list("epoch", "state", "input").get()
    for dry in (True, False):
        answer = retry(operator, run, **body, dry_run=dry)
        assert (answer.status_code, answer.json()["code"]) == (409, "budget_exhausted")
        assert {name: answer.json()[name] for name in ("limit", "used", "most")} == {
            "limit": "revisions",
            "used": 2,
            "most": 2,
        }
    assert Stage.objects.filter(run=run).values_list("epoch", "state", "input").get() == before
    assert retry(operator, run).status_code == 200
    fail(hand)
    assert retry(operator, run).status_code == 200


def test_none_at_all_may_be_the_limit(start_run: StartRun, hand: Hand, operator: Api) -> None:
    run = start_run("only", limits={"revisions": 0})
    fail(hand)
    assert retry(operator, run, scope="stage_and_downstream").json()["code"] == "budget_exhausted"
    assert retry(operator, run).status_code == 200


def test_forks_count_with_what_they_came_out_of_and_have_its_limits_and_a_budget_of_their_own(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """R25, R28: a fork begins with nothing charged, and cannot be used to revise without end."""
    limits = {"revisions": 2, "total_attempts": 1, "deadline_seconds": 5000}
    run = start_run("only", limits=limits)
    fail(hand)
    assert retry(operator, run).json()["code"] == "attempts_exhausted"
    made = []
    for _ in range(2):
        answer = rerun(operator, run, "only")
        assert answer.status_code == 201, answer.content
        run = Run.objects.get(id=answer.json()["execution_id"])
        made.append(run)
        assert run.limits == Limits(**limits).as_json()
        assert run.deadline_at is not None
        assert 4900 < (run.deadline_at - run.created_at).total_seconds() <= 5000
        fail(hand)
    answer = rerun(operator, run, "only")
    assert (answer.status_code, answer.json()["code"], answer.json()["limit"]) == (409, "budget_exhausted", "revisions")
    assert not Run.objects.filter(recovered_from=run).exists()
    assert Operation.objects.filter(kind="rerun").count() == 2
    replay = operator.post(f"/v1/executions/{run.id}/replay", {"reason": "anew"})
    assert replay.status_code == 201, replay.content
