"""The account of a run tells every outcome in sentences, to somebody who was not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import imports
from pipelines.access import Actor
from pipelines.account import account_of
from pipelines.errors import Refusal
from pipelines.imports import Answer
from pipelines.models import Attempt, Run
from pipelines.transitions import cancel_run
from tests.cast import Api, Hand, Person
from tests.verbs import pause_run

StartRun = Callable[..., Run]
IMPORTED: dict[str, Any] = {"name": "correctness", "mode": "import"}


@pytest.fixture
def viewer(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["viewer"])


def read(viewer: Api, run: Run) -> dict[str, Any]:
    answer = viewer.get(f"/v1/executions/{run.id}/account")
    assert answer.status_code == 200, answer.content
    told: dict[str, Any] = answer.json()
    return told


def awaited(run: Run) -> Attempt:
    return Attempt.objects.filter(run=run).order_by("-number")[0]


def test_an_awaited_import_says_which_answer_it_takes(start_run: StartRun, viewer: Api) -> None:
    """R18, R46: since when, with which digest, and what to do."""
    run = start_run(IMPORTED)
    (stage,) = read(viewer, run)["stages"]
    assert stage["request_digest"] == awaited(run).request_digest
    assert "awaits an answer made elsewhere since" in stage["standing"]
    assert f"request digest {awaited(run).request_digest}" in stage["standing"]
    assert [line.split()[1] for line in stage["next"]] == ["export", "import"]


def test_what_was_refused_is_told_with_its_reason(start_run: StartRun, viewer: Api, application_actor: Actor) -> None:
    """R20, R36: after a cancel too, and what remains is listed."""
    run = start_run(IMPORTED)
    cancel_run(run.id, actor=application_actor, reason="withdrawn")
    with pytest.raises(Refusal):
        imports.take(awaited(run).stage_id, Answer(awaited(run).request_digest), actor=application_actor)
    told = read(viewer, run)
    (stage,) = told["stages"]
    assert "cancelled in attempt 1" in stage["standing"]
    assert any("was refused, and is kept as evidence: the run is cancelled" in line for line in stage["story"])
    assert any("billing cancelled the run: withdrawn" in line for line in told["story"])
    assert "what went on elsewhere may still go on" in told["standing"]
    assert any("requested elsewhere" in line for line in told["remains"])
    assert stage["next"] == []


def test_a_failure_names_the_retry_that_helps(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run("the second try")
    hand.report(hand.take(), "failed", error_code="NO_PROOF", error_message="line 9")
    (stage,) = read(viewer, run)["stages"]
    assert stage["standing"].startswith("failed with NO_PROOF in attempt 1: line 9")
    assert any("failed with NO_PROOF" in line and "line 9" in line for line in stage["story"])
    assert stage["next"] == [f"recourse retry {run.id} --stage 'the second try'"]


def test_what_is_left_of_the_budget_is_told(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    """R28: a failed attempt gives nothing back."""
    run = start_run(
        {"name": "first", "options": {"max_output_bytes": 100}}, limits={"total_attempts": 3, "total_output_bytes": 250}
    )
    hand.report(hand.take(), "failed", error_code="NO_PROOF")
    budget = read(viewer, run)["budget"]
    assert budget[0] == "attempts: 1 of 3 are used, 2 are left"
    assert budget[1].startswith("output: 100 of 250 bytes are charged, 150 are left")


def test_what_stages_may_begin_without_asking_is_not_left(start_run: StartRun, viewer: Api) -> None:
    """R27: the account says of a budget what the route of budgets says."""
    run = start_run(
        {"name": "first", "options": {"max_output_bytes": 100}}, limits={"total_attempts": 3, "total_output_bytes": 250}
    )
    budget = read(viewer, run)["budget"]
    left = viewer.get(f"/v1/executions/{run.id}/budget").json()["left"]
    assert left == {"attempts": 2, "output_bytes": 150}
    assert budget[0] == "attempts: 0 of 3 are used, 1 more reserved, 2 are left"
    assert budget[1].startswith("output: 0 of 250 bytes are charged, 100 more reserved, 150 are left")


def test_a_paused_run_says_how_it_goes_on(start_run: StartRun, people: dict[str, Person], viewer: Api) -> None:
    run = start_run("first")
    pause_run(run.id, actor=people["operator"].actor, reason="audit day")
    told = read(viewer, run)
    assert told["is_paused"]
    assert any("operator-acme paused the run: audit day" in line for line in told["story"])
    assert told["next"] == [f"recourse run {run.id}"]
    assert told["asked_by"] == "viewer-acme"


def test_another_s_run_is_not_found(start_run: StartRun, outsider: Person, as_person: Any, sibling_key: str) -> None:
    """I16."""
    run = start_run("first")
    assert as_person(outsider).get(f"/v1/executions/{run.id}/account").status_code == 404
    assert Api({"X-API-Key": sibling_key}).get(f"/v1/executions/{run.id}/account").status_code == 404


def test_the_account_takes_as_many_queries_for_many_stages(start_run: StartRun) -> None:
    counts = []
    for many in (2, 12):
        run = start_run(*({"name": f"s{at}", "mode": "import", "depends_on": []} for at in range(many)))
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert len(account_of(run).stages) == many
        counts.append(len(seen))
    assert counts[0] == counts[1]
