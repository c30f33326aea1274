"""The sweep that ends requests: in batches, past what others hold, and past what cannot be handled."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRequest
from approvals.requests import expire_due
from pipelines.access import Actor
from pipelines.models import Run, Workspace
from pipelines.transitions import lock_run
from recovery.carriers import InPlace
from recovery.models import Operation
from tests.approvals.asked import rule, states
from tests.cast import Person, stages_of
from tests.clock import Clock
from tests.concurrency.crew import crew_of
from tests.verbs import skip_stage

StartRun = Callable[..., Run]


@pytest.fixture
def asked(start_run: StartRun, workspace: Workspace, people: dict[str, Person]) -> Callable[[int], list[uuid.UUID]]:
    """So many skips, each of a run of its own, that others must agree to within a minute."""

    def ask(count: int) -> list[uuid.UUID]:
        rule(workspace, "skip", expires_in=60)
        actor = people["operator"].actor
        runs = [start_run("first") for _ in range(count)]
        return [skip_stage(stages_of(run)[0].id, actor=actor, reason="r").operation_id for run in runs]

    return ask


def test_all_that_is_due_ends_however_small_the_batches(asked: Callable[[int], list[uuid.UUID]], clock: Clock) -> None:
    subjects = asked(5)
    clock.advance(60)
    assert expire_due(limit=2) == 5
    assert {states(subject) for subject in subjects} == {("expired", "expired")}
    with CaptureQueriesContext(connection) as captured:
        assert expire_due() == 0
    assert len(captured) == 1, "nothing due costs one look"


def test_what_cannot_be_ended_holds_up_nothing_else(
    asked: Callable[[int], list[uuid.UUID]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = asked(3)
    clock.advance(60)
    close = InPlace.close

    def broken(self: InPlace, request: ApprovalRequest, action: str, *, actor: Actor | None) -> None:
        if request.subject == second:
            raise ZeroDivisionError
        close(self, request, action, actor=actor)

    with monkeypatch.context() as patch:
        patch.setattr(InPlace, "close", broken)
        assert expire_due() == 2
    assert [states(one) for one in (first, second, third)] == [
        ("expired", "expired"),
        ("open", "awaiting_approval"),
        ("expired", "expired"),
    ]
    assert expire_due() == 1


@pytest.mark.django_db(transaction=True)
def test_runs_that_others_hold_are_passed_over_and_met_again(
    asked: Callable[[int], list[uuid.UUID]], clock: Clock, people: dict[str, Person]
) -> None:
    """It waits for nobody: a decision that is being made goes first."""
    held, other = asked(2)
    clock.advance(60)
    with crew_of(1) as crew, transaction.atomic():
        lock_run(Operation.objects.get(id=held).run_id, people["operator"].actor)
        ended: list[Any] = crew.at_once(expire_due)
    assert ended == [1]
    assert (states(held)[0], states(other)[0]) == ("open", "expired")
    assert expire_due() == 1
