"""A run whose definition is no longer what it pinned dispatches nothing, and says what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from pipelines import imports
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.imports import Answer
from pipelines.models import Attempt, Event, QueueEntry, Release, Run
from tests.cast import Hand, stages_of


def edit(run: Run, old: str = "Handler", new: str = "Other") -> None:
    """As somebody does who may switch off the database's own guard."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE pipelines_release DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE pipelines_release SET definition = replace(definition, %s, %s) WHERE id = %s",
            [old, new, run.release_id],
        )
        cursor.execute("ALTER TABLE pipelines_release ENABLE TRIGGER USER")


def test_a_release_is_never_changed(start_run: Callable[..., Run]) -> None:
    """I7: the database refuses it."""
    run = start_run("first")
    with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
        Release.objects.filter(id=run.release_id).update(definition="{}")


def test_nothing_of_a_run_is_dispatched_once_its_definition_has_changed(
    start_run: Callable[..., Run], hand: Hand
) -> None:
    """R16: whatever was ready stays so, and the run says what differs."""
    run, other = start_run("first"), start_run("second", name="another")
    edit(run)
    (job,) = hand.pull(10)
    assert job.run_id == other.id
    run.refresh_from_db()
    assert run.status == "blocked"
    assert run.changed is not None
    (difference,) = run.changed
    assert difference["what"] == "definition"
    assert difference["pinned"] == run.release_digest != difference["found"]
    assert [stage.state for stage in stages_of(run)] == ["ready"]
    assert not QueueEntry.objects.filter(stage__run_id=run.id).exists()
    assert Event.objects.filter(run_id=run.id, kind="run.definition_changed").count() == 1
    assert not hand.pull(10)
    assert not Attempt.objects.filter(run_id=run.id).exists()


def test_what_is_under_way_ends_and_nothing_follows(start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run("first", "second")
    job = hand.take()
    edit(run)
    assert hand.report(job, output=1).stage_state == "completed"
    assert not hand.pull(10)
    run.refresh_from_db()
    assert run.status == "blocked"


def test_an_import_is_not_taken_for_a_changed_definition(
    start_run: Callable[..., Run], application_actor: Actor
) -> None:
    run = start_run({"name": "correctness", "mode": "import"})
    (attempt,) = Attempt.objects.filter(run_id=run.id)
    edit(run)
    with pytest.raises(Refusal) as caught:
        imports.take(attempt.stage_id, Answer(attempt.request_digest, output=1), actor=application_actor)
    assert caught.value.code == "definition_changed"
    run.refresh_from_db()
    assert run.status == "blocked"
    assert [stage.state for stage in stages_of(run)] == ["waiting"]


def test_an_import_is_not_even_awaited_then(start_run: Callable[..., Run], hand: Hand) -> None:
    imported: dict[str, Any] = {"name": "correctness", "mode": "import"}
    run = start_run("first", imported)
    job = hand.take()
    edit(run)
    hand.report(job, output=1)
    assert not Attempt.objects.filter(run_id=run.id, number=1, stage__name="correctness").exists()
    run.refresh_from_db()
    assert run.status == "blocked"
