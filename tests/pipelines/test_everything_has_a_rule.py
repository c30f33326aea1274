"""Whatever can be called has a rule that says who may: routes, screens, admin actions, commands, tasks (F142).

The rules of `/v1` stand in test_permissions; this holds all the rest. What is new and named nowhere fails here: decide
who may, write it down, and the tests below go through it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from celery import current_app
from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import get_commands
from django.test import Client, RequestFactory

from pipelines import access, artifact_storing, blackout_rows, keys, signing_keys
from pipelines.access import (
    ADMINISTER,
    CANCEL,
    CAPABILITIES,
    CHECKPOINT,
    DECIDE,
    FORK,
    FORK_PROTECTED,
    IMPORT,
    KEY_CAPABILITIES,
    RECOVER,
    RELEASE,
    RESOLVE,
    STEER,
    VIEW,
    Actor,
)
from pipelines.api.endpoints import Endpoint, WorkerEndpoint
from pipelines.artifacts import Given
from pipelines.ids import new_id
from pipelines.models import (
    Application,
    AuditEvent,
    Blackout,
    Checkpoint,
    DeadLetter,
    Environment,
    Gate,
    Member,
    PersonalToken,
    Role,
    Run,
    Stage,
    Tick,
    Workspace,
)
from pipelines.tenant_admin import TenantAdmin
from recovery import backfills
from recovery.states import OperationKind
from tests.cast import Api, Hand, Person, stages_of
from tests.cells import in_each_cell
from tests.factories import left_by
from tests.kept import table_of
from tests.recovery.backfilled import trigger_of, wish
from tests.recovery.bulked import begun, of
from tests.recovery.stories import effect_of, in_review
from tests.routes import every_route

# the table

MODEL = {
    VIEW: {"viewer", "operator", "approver", "release_manager", "admin"},
    STEER: {"operator", "release_manager", "admin"},
    CANCEL: {"operator", "release_manager", "admin"},
    RECOVER: {"operator", "release_manager", "admin"},
    IMPORT: {"operator", "release_manager", "admin"},
    FORK: {"operator", "release_manager", "admin"},
    FORK_PROTECTED: {"release_manager", "admin"},
    RESOLVE: {"approver", "release_manager", "admin"},
    DECIDE: {"approver", "release_manager", "admin"},
    RELEASE: {"release_manager", "admin"},
    ADMINISTER: {"admin"},
    CHECKPOINT: set(),
}
OPEN = "everybody"  # tells nothing of anybody
PERSON = "whoever is logged in"

SCREENS = {
    "runs": VIEW,
    "login": OPEN,
    "logout": OPEN,
    "oidc-login": OPEN,
    "oidc-done": OPEN,
    "oidc-log-out": OPEN,
    "account": PERSON,
    "account-password": PERSON,
    "account-connect": PERSON,
    "account-disconnect": PERSON,
    "sessions-end": VIEW,  # their own
    "session-end": PERSON,  # whose it is
    "token-new": VIEW,  # their own
    "token-revoke": PERSON,  # whose it is, and admins
    "members": VIEW,
    "member-log-out": ADMINISTER,
    "workspaces": PERSON,
    "preferences": OPEN,
    "run": VIEW,
    "run-live": VIEW,
    "run-events": VIEW,
    "run-timeline": VIEW,
    "whole": VIEW,
    "children": VIEW,
    "checkpoints": VIEW,
    "checkpoint-changes": VIEW,
    "checkpoint": VIEW,
    "pause": STEER,
    "resume": STEER,
    "cancel": CANCEL,
    "rerun": FORK,
    "replay": FORK,
    "effects": VIEW,
    "evidence-graph": VIEW,
    "effect": VIEW,
    "effect-evidence": RESOLVE,
    "effect-reconcile": RESOLVE,
    "attempt": VIEW,
    "stage-changes": VIEW,
    "retry": RECOVER,
    "skip": RECOVER,
    "import-request": VIEW,
    "import-answer": IMPORT,
    "reconcile": RESOLVE,
    "operations": VIEW,
    "operation": VIEW,
    "bulk-list": VIEW,
    "bulk-new": RECOVER,  # or what its verb needs
    "bulk": VIEW,
    "bulk-items": VIEW,
    "bulk-start": STEER,  # what its verb needs, here a pause; of its maker alone
    "bulk-pause": STEER,
    "bulk-resume": STEER,
    "bulk-abort": STEER,
    "approvals": VIEW,
    "waiting": VIEW,
    "approval": VIEW,
    "approval-approve": DECIDE,
    "approval-reject": DECIDE,
    "approval-withdraw": VIEW,  # of whoever asked
    "dead-letters": VIEW,
    "acknowledge": RECOVER,
    "redrive": RECOVER,
    "discard": RECOVER,
    "audit": VIEW,
    "audit-export": VIEW,
    "audit-event": VIEW,
    "signing-keys": VIEW,
    "key-rotate": ADMINISTER,
    "key-revoke": ADMINISTER,
    "connectors": VIEW,
    "guarantees": VIEW,
    "help": VIEW,
    "workers": VIEW,
    "pipelines": VIEW,
    "pipeline": VIEW,
    "pipeline-new": RELEASE,
    "pipeline-change": RELEASE,
    "release": VIEW,
    "release-new": RELEASE,
    "release-activate": RELEASE,
    "release-review": RELEASE,
    "reconciliation": VIEW,
    "reconciliation-settle": RESOLVE,
    "run-retry-stop": RECOVER,
    "artifacts": VIEW,
    "artifact-content": VIEW,
    "baseline-new": RELEASE,
    "store": VIEW,
    "store-table": VIEW,
    "store-export": VIEW,
    "store-remove": RELEASE,
    "triggers": VIEW,
    "trigger-new": RELEASE,
    "schedule-preview": VIEW,
    "trigger": VIEW,
    "tick": VIEW,
    "trigger-change": RELEASE,
    "trigger-enable": RELEASE,
    "trigger-disable": RELEASE,
    "backfill-planner": VIEW,
    "backfill-start": FORK,
    "backfills": VIEW,
    "backfill": VIEW,
    "backfill-ticks": VIEW,
    "backfill-pause": STEER,
    "backfill-resume": STEER,
    "backfill-cancel": CANCEL,
    "blackouts": VIEW,
    "blackout-new": RELEASE,
    "blackout-change": RELEASE,
    "freeze": RELEASE,
    "freeze-lift": RELEASE,
}
SESSION = "a worker's session of the application"
APPLICATION_ROUTES = {
    "pipelines": "creates runs of its own",
    "pipelines/idempotent": "creates runs of its own",
    "pipelines/by-idempotency-key": VIEW,
    "pipelines/<str:run_id>": VIEW,
    "pipelines/<str:run_id>/cancel": CANCEL,
    "stages/<str:stage_id>/resume": DECIDE,
    "stages/<str:stage_id>/import": IMPORT,
    "stages/<str:stage_id>/import-request": VIEW,
    "workers/bootstrap": "opens a session",
    "workers/heartbeat": SESSION,
    "workers/shutdown": SESSION,
    "jobs/pull": SESSION,
    "jobs/ack": SESSION,
    "stages/<str:stage_id>/lease/acquire": SESSION,
    "stages/<str:stage_id>/lease/renew": SESSION,
    "leases/renew": SESSION,
    "stages/<str:stage_id>/release": SESSION,
    "stages/<str:stage_id>/result": SESSION,
    "results": SESSION,
    "stages/<str:stage_id>/effects": SESSION,
    "stages/<str:stage_id>/checkpoints": SESSION,
    "stages/<str:stage_id>/termination": SESSION,
    "stages/<str:stage_id>/artifacts": SESSION,
    "artifacts/<str:artifact_id>": SESSION,
    "stages/<str:stage_id>/store/table": SESSION,
    "stages/<str:stage_id>/store/insert": SESSION,
    "stages/<str:stage_id>/store/upsert": SESSION,
    "stages/<str:stage_id>/store/read": SESSION,
    "stages/<str:stage_id>/store/delete": SESSION,
    "stages/<str:stage_id>/runs": SESSION,
    "stages/<str:stage_id>/runs/look": SESSION,
    "stages/<str:stage_id>/progress": SESSION,
    "stages/<str:stage_id>/logs": SESSION,
}
OTHER_ROUTES = {
    "": OPEN,
    "healthz": OPEN,
    "readyz": OPEN,
    "metrics": OPEN,
}
ADMIN_ACTIONS = {
    ("AuditEvent", "export_csv"): VIEW,
    ("AuditEvent", "export_json_lines"): VIEW,
    ("ApiKey", "revoke"): ADMINISTER,
    ("PersonalToken", "revoke"): ADMINISTER,
    ("Channel", "send_test"): ADMINISTER,
    ("Delivery", "send_again"): ADMINISTER,
}
SHELL = "whoever has a shell on the console's host, as an administrator"
COMMANDS = {
    "backfill": FORK,  # of the member whom --by names; to look, VIEW
    "copy_keyrings": SHELL,
    "export_audit_head": SHELL,
    "issue_key": SHELL,
    "issue_token": SHELL,
    "release_definition": RELEASE,  # of the member whom --by names
    "retention": SHELL,
    "revoke_signing_key": SHELL,
    "rotate_signing_key": SHELL,
    "signing_keys": SHELL,
    "triggers": RELEASE,  # to switch one, of the member whom --by names; whoever has a shell may look
    "up": SHELL,
    "verify_artifacts": SHELL,
    "verify_audit": SHELL,
}
ENGINE = "the engine alone: nobody asks for it, and it takes nothing from who sends it"
TASKS = {
    "pipelines.tasks.sweep": ENGINE,
    "pipelines.tasks.seal_audit": ENGINE,
    "pipelines.tasks.retention": ENGINE,
    "pipelines.tasks.sweep_artifacts": ENGINE,
    "pipelines.tasks.execute_ready": ENGINE,
    "pipelines.tasks.run_schedules": ENGINE,
    "approvals.tasks.tell": ENGINE,
    "approvals.tasks.forget_deliveries": ENGINE,
    "recovery.tasks.carry_on": ENGINE,
    "recovery.tasks.carry_on_backfills": ENGINE,
    "recovery.tasks.carry_on_bulks": ENGINE,
    "recovery.tasks.work_bulks": ENGINE,
}


def test_the_table_is_the_models() -> None:
    """Model §5, the rows of people and the column of keys."""
    assert {capability: set(roles) for capability, roles in CAPABILITIES.items()} == MODEL
    assert {"application": {VIEW, CANCEL, DECIDE, IMPORT}, "runtime": {CHECKPOINT}} == KEY_CAPABILITIES


def test_every_route_has_a_rule() -> None:
    screens, others = set(), set()
    for route, pattern in every_route():
        if route.startswith("console/"):
            screens.add(pattern.name)
        elif not route.startswith(("v1/", "admin/")):
            others.add(route)
            if route in APPLICATION_ROUTES:
                view: Any = getattr(pattern.callback, "view_class", None)
                assert issubclass(view, Endpoint), f"{route} does not ask for a key"
                assert issubclass(view, WorkerEndpoint) == (APPLICATION_ROUTES[route] == SESSION), route
    assert screens == set(SCREENS)
    assert others == {*APPLICATION_ROUTES, *OTHER_ROUTES}


def test_every_action_of_the_admin_site_has_a_rule() -> None:
    """Rows of tenants are shown and changed by `TenantAdmin` alone, which knows whose they are."""
    request = RequestFactory().get("/admin/")
    request.user = get_user_model()(is_superuser=True, is_staff=True, is_active=True)
    found = set()
    ours = {
        model for name in ("pipelines", "recovery", "approvals") for model in apps.get_app_config(name).get_models()
    }
    for model, site in admin.site._registry.items():
        if model in ours:
            assert isinstance(site, TenantAdmin), f"{model.__name__} is shown to whoever is staff"
            found |= {(model.__name__, name) for name in site.actions or ()}
    assert found == set(ADMIN_ACTIONS)


def test_every_command_has_a_rule() -> None:
    ours = {name for name, app in get_commands().items() if app in ("pipelines", "approvals", "recovery", "config")}
    assert ours == set(COMMANDS)


def test_every_task_has_a_rule_and_takes_nothing() -> None:
    current_app.loader.import_default_modules()
    found = {name: task for name, task in current_app.tasks.items() if not name.startswith("celery.")}
    assert set(found) == set(TASKS)
    for name, task in found.items():
        assert task.run.__code__.co_argcount - hasattr(task.run, "__self__") == 0, f"{name} takes something"


# Django's own question


@pytest.mark.parametrize("capability", MODEL)
def test_django_is_answered_from_the_table(
    capability: str, workspace: Workspace, other_workspace: Workspace, people: dict[str, Person]
) -> None:
    """`user.has_perm(capability, workspace)`: by the role there, nowhere else, and not once the user is inactive."""
    for role, person in people.items():
        assert person.user.has_perm(capability, workspace) == (role in MODEL[capability])
        assert not person.user.has_perm(capability, other_workspace)
        assert not person.user.has_perm(capability)
        person.user.is_active = False
        assert not person.user.has_perm(capability, workspace)


def test_a_superuser_has_the_rights_of_their_role_and_no_others(
    workspace: Workspace, other_workspace: Workspace
) -> None:
    """Model §5; what belongs to no workspace stays Django's to decide."""
    root = get_user_model().objects.create_superuser("root")
    assert not any(root.has_perm(capability, workspace) for capability in MODEL)
    workspace.members.create(user=root, role=Role.OPERATOR)
    assert {one for one in MODEL if root.has_perm(one, workspace)} == {VIEW, STEER, CANCEL, RECOVER, IMPORT, FORK}
    assert not any(root.has_perm(capability, other_workspace) for capability in MODEL)
    assert not root.has_perm("a word that is no capability", workspace)
    assert root.has_perm("auth.change_user")


def test_a_key_may_what_its_scope_says(workspace: Workspace, application: Application) -> None:
    for scope, may in KEY_CAPABILITIES.items():
        actor = Actor("billing", workspace.id, "application", application_id=application.id, scope=scope)
        assert {capability for capability in MODEL if actor.may(capability)} == may
    assert access.person(get_user_model().objects.create_user("nobody"), workspace.id, "api") is None


# screens


@pytest.fixture
def parts(
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    environment: Environment,
    application: Application,
) -> dict[str, Any]:
    """One of each thing that a screen's address may name, by the name of its parameter."""
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    effect = effect_of(run, "first")
    gated = start_run({"name": "scope", "approval": {"when": "before"}})
    trigger = trigger_of(people["admin"].actor, environment, application)
    done = backfills.start(wish(trigger, "2026-05-20T00:00Z", "2026-05-20T23:00Z"), people["admin"].actor)
    return {
        "run_id": run.id,
        "stage_id": stages_of(run)[0].id,
        "attempt_id": stages_of(run)[0].attempts.get().id,
        "effect_id": effect.id,
        "left_id": left_by(run).id,
        "operation_id": in_review(run).id,
        "item_id": Gate.objects.get(run=gated).id,
        "kind": "traceback",
        "key_id": signing_keys.listed(run.workspace_id)[0].key_id,
        "text_id": stages_of(run)[0].attempts.get().id,
        "letter_id": DeadLetter.objects.get().id,
        "event_id": AuditEvent.objects.order_by("at", "id")[0].id,
        "trigger_id": trigger.id,
        "tick_id": Tick.objects.filter(trigger=trigger).values_list("id", flat=True)[0],
        "backfill_id": done.backfill.id,
        "artifact_id": artifact_storing.add_baseline(
            people["admin"].actor, Given("prices", b"1", sha256(b"1").hexdigest())
        ).id,
        "bulk_id": begun(of(OperationKind.PAUSE, [gated]), people["admin"].actor).id,
        "table_id": table_of(run).id,
        "blackout_id": _past_blackout(people["admin"]).id,
        "token_id": PersonalToken.objects.get(user=people["viewer"].user).id,
        "session_id": new_id(),
        "member_id": Member.objects.get(user=people["viewer"].user).id,
        "pipeline_id": trigger.pipeline_id,
        "release_id": trigger.pipeline.releases.get().id,
        "sequence": Checkpoint.objects.filter(run=run).order_by("-sequence").values_list("sequence", flat=True)[0],
    }


def _past_blackout(person: Person) -> Blackout:
    wanted = {"name": "long over", "kind": "period", "ends_at": datetime(2001, 1, 1, tzinfo=UTC)}
    return blackout_rows.create(actor=person.actor, wanted=wanted)


def address_of(name: str, parts: dict[str, Any]) -> str:
    (route,) = [route for route, pattern in every_route() if route.startswith("console/") and pattern.name == name]
    for part, found in parts.items():
        route = re.sub(rf"<(uuid|int|slug|str):{part}>", str(found), route)
    assert "<" not in route
    return f"/{route}"


def logged_in(person: Person) -> Client:
    client = Client()
    client.force_login(person.user)
    return client


GUARDED = sorted(name for name, rule in SCREENS.items() if rule in CAPABILITIES)
ACTS = sorted(name for name in GUARDED if SCREENS[name] != VIEW)


def test_each_role_is_let_in_or_refused_on_screens_as_the_table_says(
    parts: dict[str, Any], people: dict[str, Person]
) -> None:
    def held(name: str) -> None:
        address = address_of(name, parts)
        for role, person in people.items():
            status = logged_in(person).get(address).status_code
            if role in MODEL[SCREENS[name]]:
                assert status not in (302, 403, 404, 500), f"{role} {name}"
            else:
                assert status == 403, f"{role} {name}"

    in_each_cell(GUARDED, held)


def test_who_may_not_act_changes_nothing_and_is_in_the_audit(parts: dict[str, Any], people: dict[str, Person]) -> None:
    """F145: one denied event each, over the channel `console`."""

    def held(name: str) -> None:
        before = list(Stage.objects.values_list("id", "state", "epoch"))
        for role in set(people) - MODEL[SCREENS[name]]:
            answer = logged_in(people[role]).post(address_of(name, parts), {"reason": "because"})
            assert answer.status_code == 403, f"{role} {name}"
            event = AuditEvent.objects.get(user=people[role].user)
            told = (event.outcome, event.code, event.channel)
            assert told == ("denied", "permission_denied", "console"), event.action
        assert list(Stage.objects.values_list("id", "state", "epoch")) == before

    in_each_cell(ACTS, held)


def test_an_outsider_finds_no_screen_of_ours(parts: dict[str, Any], outsider: Person) -> None:
    """I16, F151."""

    def is_ours(name: str) -> bool:
        """Whether its address names something of our workspace; others are of their own."""
        named = "/console/" + address_of(name, parts).partition("/console/")[2]
        return any(str(found) in named for part, found in parts.items() if part not in ("sequence", "kind"))

    def held(name: str) -> None:
        address, client = address_of(name, parts), logged_in(outsider)
        assert client.get(address).status_code == 404
        if name in ACTS:
            assert client.post(address, {"reason": "because"}).status_code == 404
            assert AuditEvent.objects.filter(workspace=outsider.actor.workspace_id).get().outcome == "failed"

    in_each_cell(filter(is_ours, GUARDED), held)


def test_who_is_not_logged_in_is_asked_to_be(parts: dict[str, Any]) -> None:
    def held(name: str) -> None:
        answer = Client().get(address_of(name, parts))
        assert answer.status_code == 302
        assert "/login/" in answer.headers["Location"]

    in_each_cell(sorted(name for name, rule in SCREENS.items() if rule != OPEN), held)


# keys


def test_a_runtime_key_serves_no_route_of_applications(
    parts: dict[str, Any], application: Application, environment: Environment
) -> None:
    """P9: 403 everywhere; without a key 401."""
    _, secret = keys.issue_key(application, environment, scope="runtime")
    reads = ("pipelines/<str:run_id>", "artifacts/<str:artifact_id>", "stages/<str:stage_id>/import-request")

    def held(route: str) -> None:
        path = "/" + route
        for name in ("run_id", "stage_id", "artifact_id"):
            path = path.replace(f"<str:{name}>", str(parts[name]))
        for headers, status in (({"X-API-Key": secret}, 403), ({}, 401), ({"X-API-Key": "rk_none"}, 401)):
            client = Api({**headers, "X-Worker-Session": "rs_none"})
            is_read = route in reads
            answer = client.get(path) if is_read else client.post(path)
            assert answer.status_code == status, f"{route} {headers}"

    in_each_cell(sorted(APPLICATION_ROUTES), held)


def test_a_key_that_tries_a_persons_verb_is_in_the_audit(
    parts: dict[str, Any], application: Application, environment: Environment
) -> None:
    for scope in KEY_CAPABILITIES:
        _, secret = keys.issue_key(application, environment, scope=scope)
        assert Api({"X-API-Key": secret}).post(f"/v1/executions/{parts['run_id']}/pause").status_code == 403
    told = AuditEvent.objects.filter(action="run.pause").values_list("outcome", "actor", "channel", "run")
    assert list(told) == [("denied", "billing", "application", parts["run_id"])] * 2
