"""Rerun: a new run from a checkpoint of one that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import AuditEvent, Run, StageOutput
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of

StartRun = Callable[..., Run]


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    run = start_run("first", "second", "third")
    hand.report(hand.take(), output={"made": 1})
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    run.refresh_from_db()
    assert run.status == "failed"
    return run


def rerun(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/v1/executions/{run.id}/rerun", body)


def test_it_keeps_what_was_done_and_runs_the_rest(failed: Run, operator: Api, hand: Hand) -> None:
    """O17, O20, O21."""
    answer = rerun(operator, failed)
    assert answer.status_code == 201, answer.content
    told = answer.json()
    target = Run.objects.get(id=told["execution_id"])
    assert [stage.state for stage in stages_of(target)] == ["completed", "ready", "pending"]
    assert hand.finish() == 2
    target.refresh_from_db()
    assert target.status == "completed"
