"""No face puts an older copy in the place of a decision, who goes past them all is found (R44, R12, I7).

The faces are found, not listed: every route of the map, for everybody who has rights; every model that holds one.
"""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, transaction
from django.test import Client

from approvals.models import ApprovalRequest
from pipelines import audit_chain, audit_decisions, retention
from pipelines.models import Release, Workspace
from pipelines.releases import activate_release
from pipelines.sql import database_now, execute, query
from recovery.models import Operation
from tests.cast import Api, Hand, Person
from tests.decided import DECIDED, MODELS, Decided, rows
from tests.routes import every_route
from tests.tampering import past_the_triggers

pytestmark = pytest.mark.django_db


def load(what: list[Any], path: Path) -> None:
    path.write_text(json.dumps(what))
    with transaction.atomic():
        call_command("loaddata", str(path), stdout=StringIO())


# commands


@pytest.mark.parametrize("model", MODELS)
def test_no_older_copy_of_a_decision_is_loaded(model: str, decided: Decided, tmp_path: Path) -> None:
    older = [one for one in decided.before[model] if one not in decided.after[model]]
    assert older, "it was decided"
    held = rows()
    for one in older:
        with pytest.raises(DatabaseError):
            load([one], tmp_path / "older.json")
        assert rows() == held
    with pytest.raises(DatabaseError):
        load(decided.before[model], tmp_path / "older.json")
    assert rows() == held


@pytest.mark.parametrize("model", ["approvals.requestdecision", "pipelines.gatedecision", "recovery.reconciliation"])
def test_no_other_decision_is_loaded_over_one(model: str, decided: Decided, tmp_path: Path) -> None:
    out = StringIO()
    call_command("dumpdata", model, stdout=out)
    there = json.loads(out.getvalue())
    assert there
    held = rows()
    for one in there:
        for name, value in one["fields"].items():
            another = not value if isinstance(value, bool) else "otherwise" if isinstance(value, str) else None
            if another is None or name in ("at", "run", "stage", "effect", "evidence", "gate", "request"):
                continue
            with pytest.raises(DatabaseError):
                load([one | {"fields": one["fields"] | {name: another}}], tmp_path / "other.json")
    assert rows() == held


def test_whoever_goes_on_may_still_put_an_older_release_in_force_openly(
    decided: Decided, people: dict[str, Person]
) -> None:
    """Going back is a decision of its own, asked for and audited; what is refused is undoing one unseen."""
    new = Release.objects.get(status="active", pipeline__slug="asks")
    first = Release.objects.get(id=decided.names["release_id"])
    with pytest.raises(Exception, match="must review"):
        activate_release(first.id, actor=people["release_manager"].actor, reason="back")
    assert Release.objects.get(status="active", pipeline__slug="asks").id == new.id


# every route

BODY = {
    "approved": True,
    "decision": "approve",
    "reason": "otherwise",
    "note": "otherwise",
    "outcome": "committed",
    "state": "open",
    "status": "draft",
    "plan_digest": "0" * 64,
    "summary": {"outcome": "committed"},
    "source": "psp",
    "post": "yes",
    "confirm": "yes",
    "action": "delete_selected",
}


def addresses(names: dict[str, str], *, wide: bool = True) -> list[str]:
    """Every address of the map whose parts the scene has names for; with `wide` each id of the scene is tried wherever
    there is one, whatever it is called."""
    found = set()
    ids = sorted(set(names.values())) if wide else [names["approval_id"]]
    for route, _ in every_route():
        parts = re.findall(r"<(?:\w+:)?(\w+)>", route)
        if not parts or route.startswith("^"):
            continue
        known = [part for part in parts if part in names or part in ("item_id", "object_id")]
        if len(known) < len(parts):
            continue
        first, rest = parts[0], {part: names.get(part, "") for part in parts[1:]}
        tried = {names.get(first, ""), *(ids if len(parts) == 1 else (names["run_id"], names["execution_id"]))} - {""}
        for one in tried:
            told = {first: one, **rest}
            found.add("/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda m, told=told: told[m[1]], route))
    return sorted(found)


def test_no_route_puts_anything_in_the_place_of_a_decision(
    decided: Decided, people: dict[str, Person], as_person: Any, api: Api
) -> None:
    """By any method, with any body, by the admin, their screens and the application's key; then nothing is missing."""
    boss = people["admin"].user
    boss.is_staff = boss.is_superuser = True
    boss.save()
    screens = Client(raise_request_exception=False)
    screens.force_login(boss)
    held = rows()
    reviewed = Release.objects.get(status="active", pipeline__slug="asks")
    tried = addresses(decided.names)
    assert len(tried) > 300
    assert {one.split("/")[1] for one in tried} >= {"console", "v1", "admin", "stages"}
    for address in tried:
        if re.search(r"/(activate|change)/?$", address) and "admin" not in address:
            continue  # another release is put in force openly, see above; a pipeline is renamed
        answers = [_speak(screens, method, address, {**BODY}) for method in ("post", "put", "patch", "delete")]
        if not address.startswith(("/console", "/admin")):
            for someone in (as_person(people["admin"]), as_person(people["approver"]), api):
                answers += [someone.post(address, BODY), someone.patch(address, BODY)]
        assert all(answer.status_code < 500 for answer in answers), address
        now = rows()
        assert {table: held[table] - now[table] for table in DECIDED} == {table: set() for table in DECIDED}, address
    assert Release.objects.get(status="active", pipeline__slug="asks") == reviewed


def _speak(client: Client, method: str, address: str, body: dict[str, Any]) -> Any:
    if method == "post":
        return client.post(address, {name: value for name, value in body.items() if not isinstance(value, dict)})
    return getattr(client, method)(address, json.dumps(body), content_type="application/json")


# past all faces

FORGERIES = [
    ("UPDATE approvals_approvalrequest SET state = 'open', closed_at = NULL", "the request of which it tells is open"),
    ("UPDATE approvals_approvalrequest SET state = 'approved'", "the request of which it tells is approved"),
    ("UPDATE approvals_requestdecision SET approved = true", "the decision of which it tells is gone, or another"),
    ("UPDATE approvals_requestdecision SET reason = 'fine'", "the decision of which it tells is gone, or another"),
    ("DELETE FROM approvals_requestdecision", "the decision of which it tells is gone, or another"),
    (
        "DELETE FROM approvals_requestdecision; DELETE FROM approvals_approvalrequest",
        "the request of which it tells is gone",
    ),
    ("UPDATE recovery_operation SET disposition = 'recovery_allowed'", "the verdict of which it tells is recovery_all"),
    ("UPDATE recovery_operation SET reasons = '[]'", "the verdict of which it tells is operator_review_required"),
    ("DELETE FROM recovery_operation", "the operation of which it tells is gone"),
    ("UPDATE recovery_operation SET state = 'review_required'", "the operation of which it tells is review_required"),
    (
        "UPDATE pipelines_release SET status = 'draft', activated_at = NULL WHERE status = 'active';"
        " UPDATE pipelines_release SET status = 'active' WHERE status = 'superseded'",
        "the release of which it tells is draft",
    ),
    ("UPDATE pipelines_release SET status = 'superseded'", "the release of which it tells is superseded"),
    (
        "UPDATE pipelines_release SET reviewed_at = NULL, reviewed_by_id = NULL, review_note = ''",
        "the review of which it tells is gone, or another",
    ),
    ("UPDATE pipelines_release SET review_note = 'fine'", "the review of which it tells is gone, or another"),
    (
        "UPDATE pipelines_release SET reviewed_at = now(), review_note = 'fine' WHERE status = 'superseded'",
        "no event tells how release",
    ),
    ("UPDATE pipelines_deadletter SET state = 'open', closed_at = NULL", "the dead letter of which it tells is open"),
]


@pytest.mark.parametrize(("forgery", "told"), FORGERIES)
def test_an_older_row_put_back_with_the_databases_password_is_found_and_named(
    forgery: str, told: str, decided: Decided, workspace: Workspace
) -> None:
    audit_chain.seal()
    assert audit_chain.verify(workspace.id).fault is None
    with past_the_triggers():
        for one in forgery.split("; "):
            assert execute(one) >= 1
    out = StringIO()
    with pytest.raises(CommandError, match="does not hold"):
        call_command("verify_audit", stdout=out)
    assert told in out.getvalue()


def test_a_decision_of_which_no_event_tells_is_named(
    decided: Decided, workspace: Workspace, people: dict[str, Person]
) -> None:
    request = ApprovalRequest.objects.get()
    with past_the_triggers():
        execute(
            "INSERT INTO approvals_requestdecision (request_id, user_id, member, role, approved, reason)"
            " VALUES (%s, %s, 1, 'admin', true, '')",
            [request.id, people["admin"].user.pk],
        )
    fault = audit_decisions.first_differing(workspace.id)
    assert fault is not None
    assert fault.what == f"no event tells of a decision about request {request.subject}"


def test_a_verdict_of_which_no_event_tells_is_named(decided: Decided, workspace: Workspace) -> None:
    columns = ", ".join(one.column for one in Operation._meta.concrete_fields if one.column not in ("id", "key"))
    with past_the_triggers():
        execute(
            f"INSERT INTO recovery_operation (id, key, {columns}) SELECT gen_random_uuid(), '', {columns}"
            " FROM recovery_operation WHERE kind = 'rerun'"
        )
    fault = audit_decisions.first_differing(workspace.id)
    assert fault is not None
    assert fault.what.startswith("no event tells of the verdict on operation ")


def test_nobody_else_is_blamed(decided: Decided, other_workspace: Workspace, workspace: Workspace) -> None:
    with past_the_triggers():
        execute("UPDATE approvals_approvalrequest SET state = 'open', closed_at = NULL")
    assert audit_decisions.first_differing(other_workspace.id) is None
    assert audit_decisions.first_differing(workspace.id) is not None


def test_what_retention_removed_is_missed_by_nobody(decided: Decided, workspace: Workspace, hand: Hand) -> None:
    with past_the_triggers():  # the runs are old, and nothing of them is open
        execute("UPDATE pipelines_run SET finished_at = recourse_now() - interval '9 days'")
        execute("UPDATE pipelines_effect SET state = 'absent' WHERE state IN ('declared', 'unknown')")
        execute("UPDATE pipelines_reconciliationitem SET resolved_at = recourse_now() WHERE resolved_at IS NULL")
    assert retention.remove(database_now()) >= 2
    fault = audit_decisions.first_differing(workspace.id)
    assert fault is None or "item" in fault.what, fault


def test_each_check_reads_each_row_a_bounded_number_of_times(decided: Decided, workspace: Workspace) -> None:
    """Over many decisions the database joins: no row of one table is looked for by reading another whole."""
    columns = ", ".join(one.column for one in Operation._meta.concrete_fields if one.column not in ("id", "key"))
    with past_the_triggers():
        execute(
            f"INSERT INTO recovery_operation (id, key, {columns}) SELECT gen_random_uuid(), '', {columns}"
            " FROM recovery_operation, generate_series(1, 3000) WHERE kind = 'rerun'"
        )
        execute(
            "INSERT INTO pipelines_auditevent (id, workspace_id, at, action, outcome, code, user_id, actor, channel,"
            " on_behalf_of, run, stage, reason, plan_digest, request_id, data, canonical) SELECT gen_random_uuid(),"
            " e.workspace_id, e.at, e.action, e.outcome, e.code, e.user_id, e.actor, e.channel, e.on_behalf_of, e.run,"
            " e.stage, e.reason, e.plan_digest, e.request_id, e.data || jsonb_build_object('operation', o.id::text), ''"
            " FROM recovery_operation o, (SELECT * FROM pipelines_auditevent"
            " WHERE action = 'execution.recovery_disposition' AND data ? 'operation' LIMIT 1) e"
        )
        execute("ANALYZE recovery_operation")
        execute("ANALYZE pipelines_auditevent")
    for check in audit_decisions.CHECKS:
        ((plan,),) = query(f"EXPLAIN (ANALYZE, FORMAT JSON) {check}".replace("%(workspace)s", f"'{workspace.id}'"), ())
        steps = list(_steps(plan[0]["Plan"]))
        scanned = [
            (one["Relation Name"], one["Actual Loops"])
            for one in steps
            if one["Node Type"] == "Seq Scan" and one["Actual Rows"] + one.get("Rows Removed by Filter", 0) > 500
        ]
        assert all(loops < 20 for _, loops in scanned), scanned


def _steps(node: dict[str, Any]) -> Any:
    yield node
    for inner in node.get("Plans", ()):
        yield from _steps(inner)
