"""Looking at what the engine did: states, events, and whether anything changed that should not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.models import Attempt, DeadLetter, Event, Gate, Run, Stage, StageOutput
from pipelines.sql import query

TABLES = (
    "run",
    "stage",
    "attempt",
    "gate",
    "gatedecision",
    "deadletter",
    "stageoutput",
    "queueentry",
    "contextitem",
)


def stage(run: Run, name: str) -> Stage:
    return Stage.objects.get(run=run, name=name)


def states(run: Run) -> dict[str, str]:
    """Every stage's state by name."""
    return dict(Stage.objects.filter(run=run).order_by("position").values_list("name", "state"))


def status(run: Run) -> str:
    return Run.objects.get(id=run.id).status


def attempt(job: Job) -> Attempt:
    return Attempt.objects.get(id=job.attempt_id)


def attempts(run: Run, name: str) -> list[str]:
    """The states of a stage's attempts, in order."""
    return list(
        Attempt.objects.filter(stage__run=run, stage__name=name).order_by("number").values_list("state", flat=True)
    )


def kinds(run: Run, name: str | None = None) -> list[str]:
    """What happened, in order: to one stage, or to the run and all its stages."""
    events = Event.objects.filter(run=run).order_by("id")
    if name is not None:
        events = events.filter(stage=stage(run, name).id)
    return list(events.values_list("kind", flat=True))


def last_event(run: Run, kind: str) -> Event:
    event = Event.objects.filter(run=run, kind=kind).order_by("id").last()
    assert event is not None, f"no event {kind}"
    return event


def gate(run: Run, name: str) -> Gate:
    """The stage's newest gate."""
    return Gate.objects.filter(stage__run=run, stage__name=name).order_by("opened_at", "id").last()  # type: ignore[return-value]


def letters(run: Run) -> dict[str, tuple[str, str]]:
    """(reason, state) of every dead letter, by stage name."""
    return {
        letter.stage.name: (letter.reason, letter.state)
        for letter in DeadLetter.objects.filter(run=run).select_related("stage")
    }


def output(run: Run, name: str) -> str | None:
    """The current output's text."""
    found = StageOutput.objects.filter(id=stage(run, name).output_id).first()
    return found.body if found else None


def everything() -> dict[str, list[tuple[Any, ...]]]:
    """All that the engine may change, as it stands; two of these are equal when nothing changed."""
    return {
        table: query(f"SELECT to_jsonb(t)::text FROM pipelines_{table} t ORDER BY 1") for table in (*TABLES, "event")
    }


@contextmanager
def refused(code: str) -> Iterator[None]:
    """The block is refused with this code and changes nothing."""
    before = everything()
    with pytest.raises(Refusal) as refusal:
        yield
    assert refusal.value.code == code
    assert refusal.value.status == 409 or code in (
        "not_found",
        "validation_error",
        "permission_denied",
        "self_approval",
    )
    assert everything() == before
