"""One request to make a trigger, sent several times at once under one key: one trigger, and each is told which."""

from __future__ import annotations

from functools import partial

import pytest

from pipelines import triggers
from pipelines.models import Application, AuditEvent, Lane, Trigger, TriggerVersion, Workspace
from tests.cast import Person
from tests.concurrency.crew import Crew
from tests.factories import PipelineFactory

AT_ONCE = 4


@pytest.mark.parametrize("turn", range(3))
def test_the_same_request_at_once_makes_one_trigger(
    crew: Crew, workspace: Workspace, application: Application, people: dict[str, Person], turn: int
) -> None:
    """F118: a trigger too many would start every run twice; whoever comes second waits and is answered with it."""
    PipelineFactory(workspace=workspace, slug="nightly")
    place = {"pipeline": "nightly", "environment": "development", "application": application.name}
    wanted = {**place, "cron": "0 8 * * *", "timezone": "UTC"}
    make = partial(triggers.create_once, actor=people["admin"].actor, wanted=wanted, key="nightly-1")
    answers = crew.at_once(*[make] * AT_ONCE)
    assert len({trigger.id for trigger, _ in answers}) == 1
    assert sorted(is_new for _, is_new in answers) == [*[False] * (AT_ONCE - 1), True]
    assert [model.objects.count() for model in (Trigger, TriggerVersion, Lane)] == [1, 1, 1]
    told = AuditEvent.objects.filter(action="trigger.create").values_list("outcome", flat=True)
    assert sorted(told) == ["allowed", *["no_op"] * (AT_ONCE - 1)]
