"""Many sealers and many writers at once: one chain for each workspace, without holes, and nothing passed over (I17)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction

from pipelines import audit, audit_chain
from pipelines.access import Actor
from pipelines.models import AuditEvent, AuditHead, AuditPending, AuditSeal, Workspace
from tests.cast import Person
from tests.concurrency.crew import PATIENCE_SECONDS, Crew

ROUNDS, EVENTS = 4, 25


def write_some(actor: Actor) -> int:
    for _ in range(EVENTS):
        audit.record(actor, "run.pause", audit.ALLOWED)
    return 0


def seal_often() -> int:
    return sum(audit_chain.seal() for _ in range(10))


def holds(workspace: Workspace) -> int:
    """How many events the chain has, all of which hold."""
    report = audit_chain.verify(workspace.id)
    assert report.fault is None, report.fault
    assert report.waiting == 0
    positions = AuditSeal.objects.filter(workspace=workspace).order_by("position").values_list("position", flat=True)
    assert list(positions) == list(range(1, report.checked + 1))
    return report.checked


def test_sealers_and_writers_at_once_make_one_chain(
    crew: Crew, workspace: Workspace, people: dict[str, Person], outsider: Person
) -> None:
    ours, theirs = people["operator"].actor, outsider.actor
    sealed = 0
    for _ in range(ROUNDS):
        writers = [lambda: write_some(ours), lambda: write_some(ours), lambda: write_some(theirs)]
        sealed += sum(crew.at_once(*writers, *[seal_often] * 5))
    sealed += audit_chain.seal()
    assert sealed == ROUNDS * EVENTS * 3 == AuditEvent.objects.count()
    assert holds(workspace) == ROUNDS * EVENTS * 2
    assert holds(Workspace.objects.get(id=theirs.workspace_id)) == ROUNDS * EVENTS
    assert AuditHead.objects.filter(workspace=workspace).count() <= holds(workspace)


def test_what_commits_late_is_sealed_late_and_not_passed_over(
    crew: Crew, workspace: Workspace, people: dict[str, Person]
) -> None:
    """Its id and its time are earlier than those of what is sealed already; its position is not."""
    actor = people["operator"].actor
    written, go_on = threading.Event(), threading.Event()

    def late() -> None:
        with transaction.atomic():
            audit.record(actor, "run.cancel", audit.ALLOWED)
            written.set()
            assert go_on.wait(PATIENCE_SECONDS)

    def meanwhile() -> Any:
        assert written.wait(PATIENCE_SECONDS)
        write_some(actor)
        sealed = audit_chain.seal()
        go_on.set()
        return sealed

    assert crew.at_once(late, meanwhile) == [None, EVENTS]
    assert AuditPending.objects.count() == 1
    assert audit_chain.seal() == 1
    event = AuditEvent.objects.get(action="run.cancel")
    assert AuditSeal.objects.get(event=event.id).position == EVENTS + 1
    assert event.id == AuditEvent.objects.order_by("at", "id").values_list("id", flat=True)[0]
    assert holds(workspace) == EVENTS + 1


def test_parts_are_checked_side_by_side(
    workspace: Workspace, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_chain, "CHECKED_AT_ONCE", 10)
    write_some(people["operator"].actor)
    audit_chain.seal()
    assert audit_chain.verify(workspace.id, connections=3) == audit_chain.Report(checked=EVENTS)
