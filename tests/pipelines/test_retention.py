"""Removing old runs: what goes, what stays, and that nothing goes unasked."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import IntegrityError, InternalError, transaction
from django.db.models import ForeignKey

from approvals.transitions import decide_gate
from pipelines import retention, sweeps, tasks, transitions
from pipelines.creation import Intent, Place, create_run
from pipelines.management.commands.retention import Command
from pipelines.models import Application, AuditEvent, Event, Release, Run, RunIdentity, Stage, WorkerSession, Workspace
from pipelines.sql import query
from recovery.models import Operation
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.verbs import cancel_as_operation, retry_stage

StartRun = Callable[..., Run]


def rows_about(run_id: uuid.UUID, stage_ids: list[uuid.UUID]) -> dict[str, int]:
    """How many rows of each table still belong to the run."""
    counts = {}
    for dependent in retention.DEPENDENTS:
        condition = retention._belongs(dependent)
        counts[dependent.table] = query(f"SELECT count(*) FROM {dependent.table} WHERE {condition}", [[run_id]])[0][0]
    counts["stages"] = Stage.objects.filter(id__in=stage_ids).count()
    return counts


def busy_run(start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock, key: str = "k") -> Run:
    """An ended run that has left a row in as many tables as there are."""
    gated = {"name": "second", "approval": {"when": "after"}}
    options = {"max_retries": 1, "retry_interval": 1}
    run = start_run({"name": "first", "options": options}, gated, key=key, context_items=[{"key": "k", "value": "v"}])
    late = hand.take()
    hand.report(late, "failed", error_code="UPSTREAM", logs=[])
    clock.advance(1)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    hand.report(late, output="too late")
    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="again")
    hand.finish()
    decide_gate(stages_of(run)[1].id, actor=people["approver"].actor, approved=True)
    assert Run.objects.get(id=run.id).status == "completed"
    return run


def test_every_table_that_hangs_on_a_run_is_known() -> None:
    """A new table with a key to a run, or to what belongs to one, must say that it goes with it."""
    known = {dependent.table for dependent in retention.DEPENDENTS} | {"pipelines_run"}
    hanging = set()
    for model in apps.get_models():
        for field in model._meta.get_fields():
            if isinstance(field, ForeignKey) and field.related_model._meta.db_table in known:
                hanging.add(model._meta.db_table)
    assert hanging - known == set()
    assert known - hanging - {"pipelines_run"} == set()


def test_a_run_goes_with_everything_that_hangs_on_it(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """Model §3.13: attempts, outputs, decisions, evidence, events and identity; audit events stay."""
    run = busy_run(start_run, hand, people, clock)
    stage_ids = [stage.id for stage in stages_of(run)]
    told = AuditEvent.objects.count()
    before = rows_about(run.id, stage_ids)
    for table in ("attempt", "stageoutput", "deadletter", "lateevidence", "gatedecision", "event", "runidentity"):
        assert before[f"pipelines_{table}"] > 0, f"the run left nothing in {table}"
    clock.advance(days=31)
    assert retention.remove_older_than(30) == 1
    assert not Run.objects.exists()
    assert set(rows_about(run.id, stage_ids).values()) == {0}
    assert AuditEvent.objects.count() == told + 1
    event = AuditEvent.objects.get(action="run.remove")
    assert (event.actor, event.data["count"], event.data["runs"]) == ("retention", 1, [str(run.id)])
    assert Release.objects.exists(), "an inline release may be shared"
    assert WorkerSession.objects.exists()


def test_the_key_is_free_again_only_with_its_run(place: Place, clock: Clock, hand: Hand) -> None:
    """P22, P25: no expiry of its own; after removal the same request makes a new run."""
    intent = Intent(name="nightly", stages=[{"name": "a", "handler": "Handler"}])
    first, _ = create_run(place, intent, key="k", actor="billing")
    hand.finish()
    clock.advance(days=400)
    assert create_run(place, intent, key="k", actor="billing") == (first, False)
    retention.remove_older_than(30)
    assert not RunIdentity.objects.exists()
    second, created = create_run(place, intent, key="k", actor="billing")
    assert created
    assert second != first


def test_what_is_young_unfinished_or_in_doubt_stays(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    unfinished = start_run("first")
    doubtful = start_run({"name": "pay", "effect_mode": "external", "handler": "Handler"})
    hand.pull(10)
    clock.advance(61)
    sweeps.expire_leases()
    assert Run.objects.get(id=doubtful.id).status == "blocked"
    clock.advance(days=100)
    young = start_run("first", key="young")
    transitions.cancel_run(young.id, actor=people["operator"].actor)
    assert retention.remove_older_than(30) == 0
    assert set(Run.objects.values_list("id", flat=True)) == {unfinished.id, doubtful.id, young.id}


def test_the_limit_in_days_is_exact(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """Both sides of it."""
    start_run("first")
    hand.finish()
    clock.advance(days=30, seconds=-1)
    assert retention.remove_older_than(30) == 0
    clock.advance(seconds=2)
    assert retention.remove_older_than(30) == 1


def test_the_source_of_a_kept_fork_stays_until_the_fork_goes(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """Model §3.13."""
    source = start_run("first")
    hand.finish()
    fork = start_run("first")
    Run.objects.filter(id=fork.id).update(recovered_from=source)
    clock.advance(days=31)
    assert retention.remove_older_than(30) == 0
    hand.finish()
    clock.advance(days=31)
    assert retention.remove_older_than(30) == 2, "the fork first, then its source"
    assert not Run.objects.exists()


def test_it_works_in_chunks(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F157: no transaction is larger than its limit, and the work can stop between any two."""
    for _ in range(5):
        start_run("first")
    hand.finish()
    clock.advance(days=31)
    before = clock.now()
    assert [retention.remove(before, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert [event.data["count"] for event in AuditEvent.objects.order_by("at", "id")] == [2, 2, 1]


def test_each_workspace_is_told_of_its_own_runs(
    start_run: StartRun, hand: Hand, clock: Clock, other_workspace: Workspace, place: Place
) -> None:
    foreign = Application.objects.create(workspace=other_workspace, name="billing")
    rung = other_workspace.environments.get(slug="development")
    elsewhere = Place(other_workspace.id, foreign.id, rung.id, rung.slug)
    start_run("first")
    other = start_run("first", in_place=elsewhere)
    hand.finish()
    Hand(elsewhere, "hand-2", ["Handler"]).finish()
    clock.advance(days=31)
    assert retention.remove_older_than(30) == 2
    assert AuditEvent.objects.get(workspace=other_workspace).data["runs"] == [str(other.id)]


def test_the_tables_refuse_deletion_outside_of_it(start_run: StartRun) -> None:
    """I7: insert-only rows go with retention alone."""
    run = start_run("first", key="k")
    for rows in (Event.objects.filter(run=run), RunIdentity.objects.filter(run=run)):
        with pytest.raises((IntegrityError, InternalError), match="only ever added"), transaction.atomic():
            rows.delete()
    assert Event.objects.filter(run=run).exists()


@pytest.mark.django_db(transaction=True)
def test_permission_to_delete_ends_with_its_transaction(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """The same connection may not delete anything afterwards."""
    start_run("first")
    kept = start_run("second")
    hand.finish(1)
    clock.advance(days=31)
    assert retention.remove(clock.now(), 1) == 1
    with pytest.raises((IntegrityError, InternalError), match="only ever added"):
        Event.objects.filter(run=kept).delete()


def test_nothing_goes_unasked(start_run: StartRun, hand: Hand, clock: Clock, settings: Any) -> None:
    """Off by default (N1's kind: nothing happens that nobody asked for)."""
    start_run("first")
    hand.finish()
    clock.advance(days=10_000)
    assert settings.RECOURSE_RETENTION_DAYS == 0
    out, err = StringIO(), StringIO()
    call_command("retention", stdout=out, stderr=err)
    assert retention.remove_older_than(0) == 0
    assert tasks.retention() == 0
    assert "off" in err.getvalue()
    assert Run.objects.count() == 1


def test_the_command_removes_and_says_how_many(start_run: StartRun, hand: Hand, clock: Clock, settings: Any) -> None:
    """P26: its help warns that this must not be the only record of what was done."""
    start_run("first")
    hand.finish()
    clock.advance(days=31)
    out = StringIO()
    call_command("retention", "--days", "30", "--dry-run", stdout=out)
    assert out.getvalue() == "1 runs would be removed\n"
    assert Run.objects.count() == 1
    settings.RECOURSE_RETENTION_DAYS = 30
    out = StringIO()
    call_command("retention", stdout=out)
    assert out.getvalue() == "1 runs removed\n"
    start_run("first")
    hand.finish()
    clock.advance(days=31)
    assert tasks.retention() == 1, "beat's task does the same"
    assert "only record" in Command.help


def test_operations_go_with_their_run(start_run: StartRun, people: dict[str, Person], clock: Clock) -> None:
    run = start_run("first")
    cancel_as_operation(run.id, actor=people["operator"].actor)
    clock.advance(days=31)
    retention.remove_older_than(30)
    assert not Operation.objects.exists()
    assert AuditEvent.objects.filter(action="run.cancel").exists()
