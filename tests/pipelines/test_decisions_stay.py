"""What was decided cannot be set back, replaced or removed through any face; who goes past them all is found out.

R44, R12: an older copy of a row, a table or a run never takes the place of a decision.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.db import DatabaseError, transaction
from django.test import Client, RequestFactory

from approvals.transitions import decide_gate
from pipelines import aftermath, audit_chain, intents, retention
from pipelines.api.endpoints import Endpoint
from pipelines.api.operations_endpoint import OperationsEndpoint
from pipelines.effects import Told
from pipelines.models import Effect, Gate, GateDecision, ReconciliationItem, Release, Run, Workspace
from pipelines.sql import database_now, execute, query
from pipelines.transitions import cancel_run
from recovery.models import Reconciliation
from recovery.reconciliation import Finding, reconcile_effect
from tests.cast import Api, Hand, Person
from tests.pipelines.engine import stage
from tests.routes import every_route
from tests.tampering import past_the_triggers

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
DECIDED = [
    "pipelines_gate",
    "pipelines_gatedecision",
    "pipelines_reconciliationitem",
    "pipelines_effect",
    "pipelines_release",
    "approvals_approvalrequest",
    "approvals_requestdecision",
    "recovery_reconciliation",
    "recovery_effectevidence",
]


@pytest.fixture
def denied(start_run: StartRun, people: dict[str, Person]) -> Run:
    """A run whose gate a person rejected."""
    run = start_run({"name": "post", "approval": {"when": "before"}}, "then")
    decide_gate(stage(run, "post").id, approved=False, actor=people["approver"].actor, reason="the wrong month")
    return run


@pytest.fixture
def settled(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> Run:
    """A cancelled run of which everything that was left outside is settled."""
    run = start_run({"name": "pay", "effect_mode": "external", "effect_protocol": "intent"})
    job = hand.take()
    intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", "declared", key="i-1")])
    cancel_run(run.id, actor=people["operator"].actor)
    actor = people["approver"].actor
    finding = Finding("absent", "the bank has no such order")
    reconcile_effect(run.id, Effect.objects.get(run=run).id, finding, actor=actor)
    item = ReconciliationItem.objects.get(run=run, kind="running_attempt")
    aftermath.settle(run.id, item.id, actor=actor, note="killed by hand")
    return run


def rows() -> dict[str, list[Any]]:
    """Every row of what was decided, as it stands."""
    return {table: sorted(query(f"SELECT t::text FROM {table} t")) for table in DECIDED}


# the database


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pipelines_gate SET state = 'open', closed_at = NULL",
        "UPDATE pipelines_gate SET state = 'approved'",
        "DELETE FROM pipelines_gate",
        "UPDATE pipelines_gatedecision SET approved = true",
        "UPDATE pipelines_gatedecision SET reason = 'fine'",
        "DELETE FROM pipelines_gatedecision",
        "UPDATE pipelines_release SET definition = '{}'",
        "DELETE FROM pipelines_release",
        "DELETE FROM pipelines_auditevent",
        "UPDATE pipelines_auditevent SET outcome = 'denied'",
    ],
)
def test_the_database_keeps_a_rejection(denied: Run, change: str) -> None:
    before = rows()
    with pytest.raises(DatabaseError), transaction.atomic():
        execute(change)
    assert rows() == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pipelines_reconciliationitem SET resolved_at = NULL, resolved_by = NULL, resolved_name = '', note = ''",
        "UPDATE pipelines_reconciliationitem SET note = 'nothing to see'",
        "DELETE FROM pipelines_reconciliationitem",
        "UPDATE recovery_reconciliation SET outcome = 'committed'",
        "DELETE FROM recovery_reconciliation",
        "UPDATE pipelines_effect SET state = 'declared'",
        "DELETE FROM pipelines_effect",
        "UPDATE pipelines_run SET status = 'running'",
    ],
)
def test_the_database_keeps_what_was_found_out_and_settled(settled: Run, change: str) -> None:
    before = rows()
    with pytest.raises(DatabaseError), transaction.atomic():
        execute(change)
    assert rows() == before


def test_no_table_of_what_stays_can_be_emptied(denied: Run, settled: Run) -> None:
    """I7: TRUNCATE passes row triggers by; it is refused by itself, by way of a parent, and to retention too."""
    kept = query(
        "SELECT DISTINCT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid ="
        " t.tgfoid WHERE NOT t.tgisinternal AND p.prosrc ~ 'rows of .* are (only ever added|never removed)'"
    )
    tables = sorted(row[0] for row in kept)
    assert len(tables) >= 24
    assert {*DECIDED, "pipelines_auditevent", "pipelines_event"} <= set(tables)
    before = rows()
    execute("SET CONSTRAINTS ALL IMMEDIATE")  # nothing of the test's own stands in the way
    for table in (*tables, "pipelines_run", "pipelines_stage", "pipelines_workspace"):
        for first in ("", "SET LOCAL recourse.retention = 'on'"):
            with pytest.raises(DatabaseError, match="never removed all at once"):
                _empty(table, first)
    assert rows() == before


def _empty(table: str, first: str) -> None:
    with transaction.atomic():
        if first:
            execute(first)
        execute(f"TRUNCATE {table} CASCADE")


# commands


def test_an_older_copy_of_a_gate_is_not_loaded(start_run: StartRun, people: dict[str, Person], tmp_path: Path) -> None:
    """R44: `loaddata` of what `dumpdata` wrote before the decision."""
    run = start_run({"name": "post", "approval": {"when": "before"}}, "then")
    older = tmp_path / "older.json"
    call_command("dumpdata", "pipelines.gate", "pipelines.stage", "pipelines.run", output=str(older), stdout=StringIO())
    assert [one["fields"]["state"] for one in json.loads(older.read_text()) if one["model"] == "pipelines.gate"] == [
        "open"
    ]
    decide_gate(stage(run, "post").id, approved=False, actor=people["approver"].actor, reason="the wrong month")
    before = rows()
    with pytest.raises(DatabaseError, match=r"decided gate stays decided|fixed as it opens"), transaction.atomic():
        call_command("loaddata", str(older), stdout=StringIO())
    assert rows() == before
    assert stage(run, "post").state == "failed"


def test_the_database_is_not_flushed(denied: Run) -> None:
    before = rows()
    with pytest.raises(CommandError), transaction.atomic():
        call_command("flush", interactive=False, stdout=StringIO(), stderr=StringIO())
    assert rows() == before


# the admin site


def test_nobody_changes_a_decision_in_the_admin_site(denied: Run, settled: Run, people: dict[str, Person]) -> None:
    user = people["admin"].user
    user.is_staff = user.is_superuser = True
    user.save()
    client = Client()
    client.force_login(user)
    request = RequestFactory().get("/admin/")
    request.user = user
    before, seen = rows(), 0
    for model, site in admin.site._registry.items():
        if model._meta.db_table not in DECIDED:
            continue
        if model is not Release:  # another one may be registered
            assert not site.has_add_permission(request), model
        assert not site.has_change_permission(request), model
        assert not site.has_delete_permission(request), model
        name = f"/admin/{model._meta.app_label}/{model._meta.model_name}"
        for row in model._default_manager.all():
            seen += 1
            for act in ("change", "delete"):
                answer = client.post(f"{name}/{row.pk}/{act}/", {"post": "yes", "state": "open", "approved": "on"})
                assert answer.status_code in (403, 404), (model, act)
        chosen = {"action": "delete_selected", "_selected_action": "1", "post": "yes"}
        assert client.post(f"{name}/", chosen).status_code in (200, 302, 403, 404)
    assert seen >= 4
    assert rows() == before


# the APIs


def test_no_route_replaces_or_removes_anything_and_few_change_something() -> None:
    """What is changed in place is configuration, and evidence that is added to checkpoints; never a decision."""
    changed = set()
    for route, pattern in every_route():
        view = getattr(pattern.callback, "view_class", object)
        if issubclass(view, OperationsEndpoint):
            assert set(view.access) <= {"GET", "POST", "PATCH"}, route
            changed |= {route.removeprefix("v1/")} if "PATCH" in view.access else set()
        elif issubclass(view, Endpoint):
            assert not hasattr(view, "delete"), route
            assert not hasattr(view, "put"), route
    assert changed == {
        "applications/<str:application_id>",
        "approval-rules/<str:rule_id>",
        "blackouts/<str:blackout_id>",
        "executions/<str:execution_id>/checkpoints/<str:checkpoint_id>",
        "policies/<str:policy_id>",
        "triggers/<str:trigger_id>",
    }


def test_a_rejection_outlasts_every_verb(denied: Run, people: dict[str, Person], as_person: AsPerson, api: Api) -> None:
    """R12: decided anew, retried, skipped, resumed, imported, forked, cancelled: the rejection stays as it was."""
    boss, before = as_person(people["admin"]), rows()
    target, gate = stage(denied, "post"), Gate.objects.get(run=denied)
    tries = [
        (f"/v1/approvals/{gate.id}/decision", {"approved": True, "reason": "fine"}),
        (f"/v1/stages/{target.id}/retry", {"reason": "again"}),
        (f"/v1/stages/{target.id}/retry", {"reason": "again", "scope": "stage_and_downstream"}),
        (f"/v1/stages/{target.id}/skip", {"reason": "past it"}),
        (f"/v1/stages/{target.id}/reconcile", {"outcome": "absent", "note": "nothing"}),
        (f"/v1/stages/{target.id}/import", {"request_digest": "0" * 64, "output": 1}),
        (f"/v1/executions/{denied.id}/resume", {"reason": "go on"}),
        (f"/v1/executions/{denied.id}/pause", {"reason": "wait"}),
        (f"/v1/executions/{denied.id}/cancel", {"reason": "enough"}),
        (f"/v1/executions/{denied.id}/rerun", {"reason": "again", "from_step_id": "post"}),
        (f"/v1/executions/{denied.id}/replay", {"reason": "again"}),
    ]
    for address, body in tries:
        answer = boss.post(address, body)
        assert answer.status_code != 500, address
        assert {name: set(before[name]) - set(found) for name, found in rows().items()} == {
            name: set() for name in DECIDED
        }, address
    assert api.post(f"/stages/{target.id}/approval", {"approved": True}).status_code >= 400
    assert (Gate.objects.get(id=gate.id).state, GateDecision.objects.get(gate=gate).approved) == ("rejected", False)
    assert stage(denied, "post").state == "failed"


# past all faces


@pytest.mark.parametrize(
    ("forgery", "told"),
    [
        ("UPDATE pipelines_gate SET state = 'open', closed_at = NULL", "the gate of which it tells is open"),
        ("UPDATE pipelines_gate SET state = 'approved'", "the gate of which it tells is approved"),
        ("UPDATE pipelines_gatedecision SET approved = true", "the decision of which it tells is gone, or another"),
        ("UPDATE pipelines_gatedecision SET reason = 'fine'", "the decision of which it tells is gone, or another"),
        ("DELETE FROM pipelines_gatedecision", "the decision of which it tells is gone, or another"),
        ("DELETE FROM pipelines_gatedecision; DELETE FROM pipelines_gate", "the gate of which it tells is gone"),
        (
            "UPDATE pipelines_reconciliationitem SET resolved_at = NULL, resolved_by = NULL, resolved_name = '',"
            " note = ''",
            "the item of which it tells is not settled so",
        ),
        ("UPDATE pipelines_reconciliationitem SET note = 'fine'", "the item of which it tells is not settled so"),
        ("DELETE FROM pipelines_reconciliationitem", "the item of which it tells is gone"),
        ("DELETE FROM recovery_reconciliation", "the finding of which it tells is gone"),
    ],
)
def test_an_older_row_put_back_with_the_databases_password_is_found(
    denied: Run, settled: Run, workspace: Workspace, forgery: str, told: str
) -> None:
    """R44: the audit's chain holds the decision, and `verify_audit` compares."""
    audit_chain.seal()
    assert audit_chain.verify(workspace.id).fault is None
    with past_the_triggers():
        for one in forgery.split("; "):
            execute(one)
    out = StringIO()
    with pytest.raises(CommandError, match="does not hold") as caught:
        call_command("verify_audit", stdout=out)
    assert caught.value.returncode == 1
    assert f"{workspace.slug}: broken at event " in out.getvalue()
    assert told in out.getvalue()


def test_a_decision_of_which_no_event_tells_is_found(
    start_run: StartRun, workspace: Workspace, people: dict[str, Person], settled: Run
) -> None:
    run = start_run({"name": "post", "approval": {"when": "before"}}, "then")
    gate = Gate.objects.get(run=run)
    with past_the_triggers():
        execute(
            "INSERT INTO pipelines_gatedecision (gate_id, user_id, approved, reason) VALUES (%s, %s, true, '')",
            [gate.id, people["admin"].user.pk],
        )
    fault = audit_chain.verify(workspace.id).fault
    assert fault is not None
    assert fault.what == f"no event tells of a decision about gate {gate.id}"


def test_what_retention_removed_is_missed_by_nobody(denied: Run, settled: Run, workspace: Workspace) -> None:
    """Model §3.13: events outlive what they tell of."""
    assert retention.remove(database_now() + timedelta(days=1)) == 2
    assert not any(model.objects.exists() for model in (Gate, ReconciliationItem, Reconciliation))
    audit_chain.seal()
    assert audit_chain.verify(workspace.id).fault is None
