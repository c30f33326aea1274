"""Every way there is to decide or carry out an operation or a gate: found in the code, said what it may, and tried by
those who may not (F130, F131, F133, F135, F140, model §5).

The ways are found, not listed: routes that change something, forms of the admin site and its actions, commands, tasks,
carriers, verbs of the command line. A new one fails here until somebody says what it is. Each that decides is then
tried by whoever must not, and must leave nothing behind but what the audit tells of the try.
"""

from __future__ import annotations

import argparse
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
from celery import current_app
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.core.management import get_commands
from django.db import IntegrityError, InternalError, transaction
from django.test import Client, RequestFactory
from django.urls import URLPattern
from recourse import cli

from approvals import gates
from approvals.models import ApprovalRequest, ApprovalRule
from pipelines import keys
from pipelines.api.endpoints import Endpoint
from pipelines.api.operations_endpoint import OperationsEndpoint
from pipelines.audit_names import names_of
from pipelines.audit_sentences import tell
from pipelines.creation import Intent, Place, create_run
from pipelines.ids import new_id
from pipelines.models import AuditEvent, DeadLetter, Environment, Gate, Member, Run, Workspace
from pipelines.moves import IllegalMove
from pipelines.sql import database_now, execute, query
from recovery import forks
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stage_of, stages_of
from tests.clock import Clock
from tests.factories import MemberFactory
from tests.routes import every_route

StartRun = Callable[..., Run]
People = dict[str, Person]

# what a way may

DECIDES = "decides what waits for others"
ASKS = "does what nobody need agree to, and has the rest wait"
FILLS = "the same, for ticks: tests/recovery/test_backfill_agreement.py"
MANY = "the same, for many at once: tests/recovery/test_bulk_agreement.py"
LOOKS = "tells a finding or a wish to stop, which never waits for anybody and repeats nothing"
OWN = "of an application with its own runs, by its key: no person asks for anything"
WORKS = "a worker's word on what it does: it decides nothing that waits for people"
SETTLES = "what a workspace is made of, by its administrators or release managers; what waits is asked for no less"
READS = "reads"
ENGINE = "carries out what was agreed to, ends what is over, and decides nothing"
ONESELF = "how one gets in oneself, and nobody else"
TELLS = "sends or keeps what is so already"
BRINGS = "brings in what was made elsewhere, by its request's digest: it decides nothing that waits for people"
TYPES = "calls the route of the same name with the token of whoever types it, and has no way of its own"
SHELL = "whoever has a shell on the console's host; no command knows requests or gates"

WAYS: dict[str, str] = {
    "POST v1/approvals/<str:approval_id>/decision": DECIDES,
    "POST v1/approvals/<str:approval_id>/withdraw": "takes back one's own request; nobody else's",
    "POST v1/executions/<str:execution_id>/rerun": ASKS,
    "POST v1/executions/<str:execution_id>/replay": ASKS,
    "POST v1/executions/<str:execution_id>/cancel": ASKS,
    "POST v1/stages/<str:stage_id>/retry": ASKS,
    "POST v1/stages/<str:stage_id>/skip": ASKS,
    "POST v1/dead-letters/<str:letter_id>/redrive": ASKS,
    "POST v1/dead-letters/<str:letter_id>/discard": ASKS,
    "POST v1/dead-letters/<str:letter_id>/acknowledge": LOOKS,
    "POST v1/executions/<str:execution_id>/pause": LOOKS,
    "POST v1/executions/<str:execution_id>/resume": LOOKS,
    "POST v1/stages/<str:stage_id>/reconcile": LOOKS,
    "POST v1/stages/<str:stage_id>/import": BRINGS,
    "POST stages/<str:stage_id>/import": BRINGS,
    "form import-answer": BRINGS,
    "POST v1/executions/<str:execution_id>/effects/<str:effect_id>/reconciliation": LOOKS,
    "POST v1/executions/<str:execution_id>/effects/<str:effect_id>/evidence": LOOKS,
    "POST v1/executions/<str:execution_id>/checkpoints": WORKS,
    "PATCH v1/executions/<str:execution_id>/checkpoints/<str:checkpoint_id>": WORKS,
    "POST v1/applications": SETTLES,
    "PATCH v1/applications/<str:application_id>": SETTLES,
    "POST v1/environments": SETTLES,
    "POST v1/pipelines": SETTLES,
    "POST v1/policies": SETTLES,
    "PATCH v1/policies/<str:policy_id>": SETTLES,
    "POST v1/releases": SETTLES,
    "POST v1/releases/<str:release_id>/activate": SETTLES,
    "POST v1/releases/<str:release_id>/review": SETTLES,
    "POST v1/artifacts": SETTLES,
    "POST v1/store/tables/<str:table_id>/remove": SETTLES,
    "POST v1/executions/<str:execution_id>/reconciliation/<str:item_id>/settle": LOOKS,
    "form reconciliation-settle": LOOKS,
    "POST v1/executions/<str:execution_id>/run-retry/stop": LOOKS,
    "form run-retry-stop": LOOKS,
    "form release-review": SETTLES,
    "POST v1/triggers/backfill": FILLS,
    "POST v1/bulk-operations": MANY,
    "POST v1/bulk-operations/<str:bulk_id>/pause": LOOKS,
    "POST v1/bulk-operations/<str:bulk_id>/resume": LOOKS,
    "POST v1/bulk-operations/<str:bulk_id>/abort": LOOKS,
    "POST v1/backfills/<str:backfill_id>/pause": LOOKS,
    "POST v1/backfills/<str:backfill_id>/resume": LOOKS,
    "POST v1/backfills/<str:backfill_id>/cancel": LOOKS,
    "POST v1/blackouts": SETTLES,
    "PATCH v1/blackouts/<str:blackout_id>": SETTLES,
    "POST v1/freeze": SETTLES,
    "POST v1/freeze/lift": SETTLES,
    "POST v1/triggers": SETTLES,
    "PATCH v1/triggers/<str:trigger_id>": SETTLES,
    "POST v1/approval-rules": SETTLES,
    "PATCH v1/approval-rules/<str:rule_id>": SETTLES,
    "POST v1/signing-keys/rotate": SETTLES,
    "POST v1/signing-keys/<str:key_id>/revoke": SETTLES,
    "POST pipelines": OWN,
    "POST pipelines/idempotent": OWN,
    "POST pipelines/<str:run_id>/cancel": OWN,
    "POST pipelines/by-idempotency-key": READS,
    "POST stages/<str:stage_id>/resume": DECIDES,
    "POST workers/bootstrap": WORKS,
    "POST workers/heartbeat": WORKS,
    "POST workers/shutdown": WORKS,
    "POST jobs/pull": WORKS,
    "POST jobs/ack": WORKS,
    "POST leases/renew": WORKS,
    "POST results": WORKS,
    "POST stages/<str:stage_id>/lease/acquire": WORKS,
    "POST stages/<str:stage_id>/lease/renew": WORKS,
    "POST stages/<str:stage_id>/release": WORKS,
    "POST stages/<str:stage_id>/result": WORKS,
    "POST stages/<str:stage_id>/effects": WORKS,
    "POST stages/<str:stage_id>/checkpoints": WORKS,
    "POST stages/<str:stage_id>/artifacts": WORKS,
    "POST stages/<str:stage_id>/store/table": WORKS,
    "POST stages/<str:stage_id>/store/insert": WORKS,
    "POST stages/<str:stage_id>/store/upsert": WORKS,
    "POST stages/<str:stage_id>/store/read": WORKS,
    "POST stages/<str:stage_id>/store/delete": WORKS,
    "POST stages/<str:stage_id>/runs": WORKS,
    "POST stages/<str:stage_id>/runs/look": WORKS,
    "POST stages/<str:stage_id>/termination": WORKS,
    "POST stages/<str:stage_id>/progress": WORKS,
    "POST stages/<str:stage_id>/logs": WORKS,
    "form approval-approve": DECIDES,
    "form approval-reject": DECIDES,
    "form approval-withdraw": "takes back one's own request; nobody else's",
    "form rerun": ASKS,
    "form replay": ASKS,
    "form cancel": ASKS,
    "form retry": ASKS,
    "form skip": ASKS,
    "form redrive": ASKS,
    "form discard": ASKS,
    "form acknowledge": LOOKS,
    "form pause": LOOKS,
    "form resume": LOOKS,
    "form reconcile": LOOKS,
    "form effect-evidence": LOOKS,
    "form effect-reconcile": LOOKS,
    "form bulk-new": LOOKS,
    "form bulk-start": MANY,
    "form bulk-pause": LOOKS,
    "form bulk-resume": LOOKS,
    "form bulk-abort": LOOKS,
    "form backfill-start": FILLS,
    "form backfill-pause": LOOKS,
    "form backfill-resume": LOOKS,
    "form backfill-cancel": LOOKS,
    "form trigger-new": SETTLES,
    "form trigger-change": SETTLES,
    "form trigger-enable": SETTLES,
    "form trigger-disable": SETTLES,
    "form audit-export": READS,
    "form store-export": READS,
    "form blackout-new": SETTLES,
    "form blackout-change": SETTLES,
    "form freeze": SETTLES,
    "form freeze-lift": SETTLES,
    "form login": "somebody becomes known",
    "form logout": "somebody goes",
    "form preferences": "how the console looks to them",
    "form account-password": ONESELF,
    "form account-connect": ONESELF,
    "form account-disconnect": ONESELF,
    "form session-end": ONESELF,
    "form sessions-end": ONESELF,
    "form token-new": "a token of one's own: with another's one could agree to what one asked for",
    "form token-revoke": "one's own, or as an admin another's: it gives nobody a right",
    "form member-log-out": "ends another's log-ins: it gives nobody a right",
    "form pipeline-new": SETTLES,
    "form pipeline-change": SETTLES,
    "form release-new": SETTLES,
    "form release-activate": SETTLES,
    "form baseline-new": SETTLES,
    "form store-remove": SETTLES,
    "form key-rotate": SETTLES,
    "form key-revoke": SETTLES,
    "admin workspace": SETTLES,
    "admin member": SETTLES,
    "admin environment": SETTLES,
    "admin application": SETTLES,
    "admin pipeline": SETTLES,
    "admin policy": SETTLES,
    "admin trigger": SETTLES,
    "admin blackout": SETTLES,
    "admin apikey": SETTLES,
    "admin personaltoken": "a token of one's own: with another's one could agree to what one asked for",
    "admin approvalrule": SETTLES,
    "admin channel": TELLS,
    "admin notificationrule": TELLS,
    "admin user": "a superuser who sets another's password could be them: each of their workspaces is told",
    "admin group": "Django's groups give no right in any workspace",
    "admin action auditevent export_csv": TELLS,
    "admin action auditevent export_json_lines": TELLS,
    "admin action apikey revoke": SETTLES,
    "admin action personaltoken revoke": SETTLES,
    "admin action channel send_test": TELLS,
    "admin action delivery send_again": TELLS,
    "command backfill": FILLS,
    "command copy_keyrings": SHELL,
    "command export_audit_head": SHELL,
    "command issue_key": SHELL,
    "command issue_token": SHELL,
    "command release_definition": SHELL,
    "command retention": SHELL,
    "command revoke_signing_key": SHELL,
    "command rotate_signing_key": SHELL,
    "command signing_keys": SHELL,
    "command triggers": SHELL,
    "command up": SHELL,
    "command verify_artifacts": SHELL,
    "command verify_audit": SHELL,
    "task pipelines.tasks.sweep": ENGINE,
    "task pipelines.tasks.execute_ready": ENGINE,
    "task pipelines.tasks.run_schedules": ENGINE,
    "task recovery.tasks.carry_on": ENGINE,
    "task recovery.tasks.carry_on_backfills": ENGINE,
    "task recovery.tasks.carry_on_bulks": ENGINE,
    "task recovery.tasks.work_bulks": ENGINE,
    "task pipelines.tasks.seal_audit": TELLS,
    "task approvals.tasks.tell": TELLS,
    "task approvals.tasks.forget_deliveries": TELLS,
    "task pipelines.tasks.retention": "removes what has ended long ago",
    "task pipelines.tasks.sweep_artifacts": "removes bytes that nothing refers to",
    "cli worker run": WORKS,
    "cli status": READS,
    "cli retry": TYPES,
    "cli run": TYPES,
    "cli cancel": TYPES,
    "cli export": READS,
    "cli import": TYPES,
    "cli execution snapshot": READS,
    "cli execution pause": TYPES,
    "cli execution resume": TYPES,
    "cli execution cancel": TYPES,
    "cli execution rerun": TYPES,
    "cli execution replay": TYPES,
    "cli approval list": READS,
    "cli approval decide": TYPES,
    "cli approval withdraw": TYPES,
    "cli audit": READS,
    "cli backfill list": READS,
    "cli backfill show": READS,
    "cli backfill plan": READS,
    "cli backfill watch": READS,
    "cli completion": READS,
    "cli config path": READS,
    "cli config show": READS,
    "cli dead-letter list": READS,
    "cli execution list": READS,
    "cli execution show": READS,
    "cli stage policies": READS,
    "cli watch": READS,
    "cli start": OWN,
    "cli guarantees": READS,
    "cli logs": READS,
    "cli backfill cancel": TYPES,
    "cli backfill pause": TYPES,
    "cli backfill resume": TYPES,
    "cli backfill start": TYPES,
    "cli config set-profile": TYPES,
    "cli dead-letter acknowledge": TYPES,
    "cli dead-letter discard": TYPES,
    "cli dead-letter redrive": TYPES,
    "cli deploy": TYPES,
    "cli execution stop-retry": TYPES,
    "cli mcp": TYPES,
    "cli stage reconcile": TYPES,
    "cli stage retry": TYPES,
    "cli stage skip": TYPES,
}
ASKING = sorted(way for way, may in WAYS.items() if may == ASKS)
CARRIED = {
    "retry",
    "redrive",
    "skip",
    "cancel",
    "discard",
    "rerun",
    "replay",
}  # kinds about runs with a carrier: all that ASKS


def found(boss: Any) -> set[str]:
    """Every way in, as the code has it; of the admin site, for a superuser who administers a workspace."""
    return {
        *_routes(),
        *_forms(),
        *_admin(boss),
        *(f"command {name}" for name, app in get_commands().items() if app in OURS),
        *_tasks(),
        *(f"cli {words}" for words in _commands(cli.make_parser(), "")),
    }


OURS = ("pipelines", "approvals", "recovery", "config")


def _patterns() -> Iterator[tuple[str, URLPattern]]:
    return ((route, one) for route, one in every_route() if not route.startswith("admin/"))


def _routes() -> Iterator[str]:
    for route, pattern in _patterns():
        view: Any = getattr(pattern.callback, "view_class", None)
        if view is not None and issubclass(view, OperationsEndpoint):
            yield from (f"{method} {route}" for method in view.access if method != "GET")
        elif view is not None and issubclass(view, Endpoint):
            acting = ("post", "put", "patch", "delete")
            yield from (f"{method.upper()} {route}" for method in acting if hasattr(view, method))


def _forms() -> Iterator[str]:
    """The screens that take a POST from whoever is logged in: all others answer 405 to it."""
    request = RequestFactory().post("/")
    request.user = AnonymousUser()
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined] # as Django's own test client has it
    for route, pattern in _patterns():
        if not route.startswith("console/"):
            continue
        parts = dict.fromkeys(pattern.pattern.converters)
        if pattern.name in ("login", "logout", "preferences") or pattern.callback(request, **parts).status_code != 405:
            yield f"form {pattern.name}"


def _admin(boss: Any) -> Iterator[str]:
    """What of the admin site makes, changes or removes something, and the actions on our own rows."""
    request = RequestFactory().get("/admin/")
    request.user = boss
    for model, site in admin.site._registry.items():
        name = model._meta.model_name
        may = (site.has_add_permission, site.has_change_permission, site.has_delete_permission)
        if any(can(request) for can in may):
            yield f"admin {name}"
        if model._meta.app_label in OURS:
            yield from (f"admin action {name} {action}" for action in site.actions or ())


def _tasks() -> Iterator[str]:
    current_app.loader.import_default_modules()
    yield from (f"task {name}" for name in current_app.tasks if not name.startswith("celery."))


def _commands(parser: argparse.ArgumentParser, so_far: str) -> Iterator[str]:
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for topics in inner:
        for name, below in topics.choices.items():
            yield from _commands(below, f"{so_far} {name}".strip())
    if not inner:
        yield so_far


def test_every_way_in_is_known_for_what_it_is(people: People) -> None:
    """F140: what is new and named nowhere fails here; what is gone is named no longer."""
    boss = people["admin"].user
    boss.is_superuser = boss.is_staff = True
    boss.save()
    assert found(boss) - set(WAYS) == set(), "say in WAYS what these may"
    assert set(WAYS) - found(boss) == set(), "these are gone"


def test_whatever_may_have_to_wait_has_a_carrier_and_nothing_else_has() -> None:
    assert set(gates.kinds()) == CARRIED | {"backfill", "bulk"}
    assert {way.replace("form ", "/").rpartition("/")[2] for way in ASKING} == CARRIED


def test_every_way_that_decides_is_tried_below() -> None:
    assert {way for way, may in WAYS.items() if may == DECIDES} == {RESUME, *WAYS} & {RESUME, *DECIDERS}


# ways that decide, tried by a person

DECISION = "POST v1/approvals/<str:approval_id>/decision"
RESUME = "POST stages/<str:stage_id>/resume"
How = Callable[[Person, uuid.UUID, str], int]


def by_token(who: Person, item: uuid.UUID, workspace: str) -> int:
    return _said(Api({"Authorization": f"Bearer {who.token}"}), item)


def by_token_rejecting(who: Person, item: uuid.UUID, workspace: str) -> int:
    return _said(Api({"Authorization": f"Bearer {who.token}"}), item, approved=False)


def by_another_token(who: Person, item: uuid.UUID, workspace: str) -> int:
    """A person is one, however many tokens they have."""
    _, secret = keys.issue_token(who.user, Workspace.objects.get(id=who.actor.workspace_id))
    return _said(Api({"Authorization": f"Bearer {secret}"}), item)


def by_session(who: Person, item: uuid.UUID, workspace: str) -> int:
    """The API with the console's own log-in, in the workspace that the header names."""
    client = Client()
    client.force_login(who.user)
    body = {"approved": True, "reason": "trust me"}
    path, headers = f"/v1/approvals/{item}/decision", {"X-Workspace": workspace}
    status: int = client.post(path, body, content_type="application/json", headers=headers).status_code
    return status


def by_form(who: Person, item: uuid.UUID, workspace: str, act: str = "approve") -> int:
    client = Client()
    client.force_login(who.user)
    path = f"/console/approvals/{item}/{act}/?workspace={workspace}"
    status: int = client.post(path, {"reason": "trust me"}).status_code
    return status


def by_form_rejecting(who: Person, item: uuid.UUID, workspace: str) -> int:
    return by_form(who, item, workspace, "reject")


def _said(api: Api, item: uuid.UUID, approved: bool = True) -> int:
    body = {"approved": approved, "reason": "trust me"}
    status: int = api.post(f"/v1/approvals/{item}/decision", body).status_code
    return status


DECIDERS: dict[str, How] = {
    DECISION: by_token,
    "the same, rejecting": by_token_rejecting,
    "another token": by_another_token,
    "the log-in": by_session,
    "form approval-approve": by_form,
    "form approval-reject": by_form_rejecting,
}


@dataclass
class Scene:
    """A workspace in which something waits for others: a request to rerun, or a gate."""

    workspace: Workspace
    people: People
    place: Place
    clock: Clock

    def waits(self, kind: str, asker: Person, count: int = 1) -> uuid.UUID:
        """What `asker` put before others, by its public id."""
        found = self.request(asker, count) if kind == "request" else self.gate(asker, count=count).id
        self.clock.advance(1)
        return found

    def request(self, asker: Person, count: int = 1) -> uuid.UUID:
        self.rule(["rerun"], count)
        answer = Api({"Authorization": f"Bearer {asker.token}"}).post(f"/v1/executions/{self.failed().id}/rerun", {})
        assert (answer.status_code, answer.json()["status"]) == (202, "awaiting_approval"), answer.content
        return uuid.UUID(answer.json()["operation_id"])

    def gate(self, asker: Person | None, **asked: Any) -> Gate:
        stage = stage_of({"name": "post", "approval": {"when": "before", **asked}})
        who = (asker.actor.name, asker.user.id) if asker else ("billing", None)
        intent = Intent(name="nightly", stages=[stage])
        run_id, _ = create_run(self.place, intent, key=None, actor=who[0], user_id=who[1])
        return Gate.objects.get(run=run_id)

    def rule(self, kinds: list[str], count: int = 1) -> None:
        ApprovalRule.objects.create(workspace=self.workspace, name="four eyes", kinds=kinds, count=count)

    def failed(self) -> Run:
        """A run whose second stage failed, and left a dead letter."""
        run_id, _ = create_run(
            self.place,
            Intent(name="nightly", stages=[stage_of("first"), stage_of("second")]),
            key=None,
            actor="billing",
        )
        hand = Hand(self.place, "hand-9", ["Handler"])
        assert hand.report(hand.take(), output=1).accepted
        assert hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED").accepted
        return Run.objects.get(id=run_id)


@pytest.fixture
def scene(workspace: Workspace, people: People, place: Place, clock: Clock) -> Scene:
    return Scene(workspace, people, place, clock)


@dataclass(frozen=True, slots=True)
class Try:
    """Who tries to decide what, in which workspace, and with which code they are refused."""

    who: Person
    item: uuid.UUID
    code: str
    workspace: str = "acme"


def who_asked_for_it(scene: Scene, kind: str) -> Try:
    """F130."""
    asker = scene.people["admin"]
    return Try(asker, scene.waits(kind, asker), "self_approval")


def who_asked_for_it_and_is_a_superuser(scene: Scene, kind: str) -> Try:
    """F131."""
    asker = scene.people["admin"]
    asker.user.is_superuser = asker.user.is_staff = True
    asker.user.save()
    return Try(asker, scene.waits(kind, asker), "self_approval")


def who_became_a_decider_since(scene: Scene, kind: str) -> Try:
    """F135."""
    item = scene.waits(kind, scene.people["admin"])
    Member.objects.filter(user=scene.people["viewer"].user).update(role="approver")
    return Try(scene.people["viewer"], item, "permission_denied")


def who_became_more_than_an_approver_since(scene: Scene, kind: str) -> Try:
    """F135: another role is another one, also where the earlier one would have done."""
    item = scene.waits(kind, scene.people["admin"])
    Member.objects.filter(user=scene.people["approver"].user).update(role="release_manager")
    return Try(scene.people["approver"], item, "permission_denied")


def who_came_back_as_a_member_since(scene: Scene, kind: str) -> Try:
    """Another membership is another person's, as far as four eyes go."""
    member = Member.objects.get(user=scene.people["approver"].user)
    member.delete()
    item = scene.waits(kind, scene.people["admin"])
    Member.objects.create(workspace=scene.workspace, user=scene.people["approver"].user, role="approver")
    return Try(scene.people["approver"], item, "permission_denied")


def who_lacks_the_role(scene: Scene, kind: str) -> Try:
    return Try(scene.people["operator"], scene.waits(kind, scene.people["admin"]), "permission_denied")


TRIES = (
    who_asked_for_it,
    who_asked_for_it_and_is_a_superuser,
    who_became_a_decider_since,
    who_became_more_than_an_approver_since,
    who_came_back_as_a_member_since,
    who_lacks_the_role,
)
KEPT = {"auditevent", "auditpending", "personaltoken"}  # the try itself leaves these


def world() -> dict[str, list[tuple[Any, ...]]]:
    """Every row of ours, but for what the audit keeps of a try; two of these are equal when nothing changed."""
    models = [
        model for app in ("pipelines", "approvals", "recovery") for model in apps.get_app_config(app).get_models()
    ]
    return {
        model._meta.db_table: query(f"SELECT to_jsonb(t)::text FROM {model._meta.db_table} t ORDER BY 1")
        for model in models
        if model._meta.model_name not in KEPT
    }


@pytest.mark.parametrize("kind", ["request", "gate"])
@pytest.mark.parametrize("tried", TRIES, ids=lambda tried: tried.__name__)
@pytest.mark.parametrize("way", DECIDERS)
def test_no_way_lets_decide(way: str, tried: Callable[[Scene, str], Try], kind: str, scene: Scene) -> None:
    """F130, F131, F135, F140, F145: 403, one event `denied` that says why, and nothing else in the world is other."""
    attempt = tried(scene, kind)
    before, events = world(), AuditEvent.objects.count()
    assert DECIDERS[way](attempt.who, attempt.item, attempt.workspace) == 403
    assert world() == before
    assert AuditEvent.objects.count() == events + 1
    event = AuditEvent.objects.order_by("-at", "-id")[0]
    channel = "console" if way.startswith("form") else "api"
    assert (event.outcome, event.code, event.channel) == ("denied", attempt.code, channel)
    assert (event.user_id, bool(event.data["detail"])) == (attempt.who.user.id, True)


@pytest.mark.parametrize("kind", ["request", "gate"])
@pytest.mark.parametrize("way", DECIDERS)
def test_who_left_is_nobody_any_more(way: str, kind: str, scene: Scene) -> None:
    """A token, a session and a role end with the membership: there is nobody whom the audit could name."""
    item = scene.waits(kind, scene.people["admin"])
    leaver = scene.people["approver"]
    if way == "another token":
        _, secret = keys.issue_token(leaver.user, scene.workspace)
        leaver = Person(leaver.user, secret, leaver.actor)
    Member.objects.filter(user=leaver.user).delete()
    before = world()
    how = by_token if way == "another token" else DECIDERS[way]
    assert how(leaver, item, "acme") in (401, 403, 404)
    assert world() == before
    assert not AuditEvent.objects.filter(user=leaver.user).exists()


@pytest.mark.parametrize("kind", ["request", "gate"])
@pytest.mark.parametrize("way", ["the log-in", "form approval-approve", "form approval-reject"])
def test_another_workspace_in_which_one_may_does_not_help(
    way: str, kind: str, scene: Scene, other_workspace: Workspace
) -> None:
    """I16, F151: an administrator there asks here, and tries to decide from there: 404, and kept there."""
    asker = scene.people["admin"]
    MemberFactory(workspace=other_workspace, user=asker.user, role="admin")
    item = scene.waits(kind, asker)
    before = world()
    assert DECIDERS[way](asker, item, "globex") == 404
    assert world() == before
    event = AuditEvent.objects.order_by("-at", "-id")[0]
    assert (event.workspace, event.outcome, event.code) == (other_workspace, "failed", "not_found")


@pytest.mark.parametrize("way", DECIDERS)
def test_where_nobody_knows_who_asked_nobody_is_the_second_person(way: str, scene: Scene) -> None:
    """F133: of a fork whose people are all unknown."""
    gate = scene.gate(None)
    Run.objects.filter(id=gate.run_id).update(recovered_from=scene.failed(), requesters=[])
    scene.clock.advance(1)
    before = world()
    assert DECIDERS[way](scene.people["approver"], gate.id, "acme") == 403
    assert world() == before
    event = AuditEvent.objects.order_by("-at", "-id")[0]
    assert (event.outcome, event.code) == ("denied", "permission_denied")
    assert "who asked" in event.data["detail"]


@pytest.mark.parametrize("kind", ["request", "gate"])
@pytest.mark.parametrize("way", [way for way in DECIDERS if "reject" not in way])
def test_one_person_counts_once_whichever_way_they_come_again(way: str, kind: str, scene: Scene) -> None:
    """A quorum of two is two people: the same again changes nothing, and is told as that."""
    item = scene.waits(kind, scene.people["admin"], count=2)
    approver = scene.people["approver"]
    assert by_token(approver, item, "acme") == 200
    before = world()
    assert DECIDERS[way](approver, item, "acme") in (200, 303)
    assert world() == before
    event = AuditEvent.objects.order_by("-at", "-id")[0]
    assert (event.outcome, event.user_id) == ("no_op", approver.user.id)
    assert _is_open(item, kind)
    assert by_token(scene.people["release_manager"], item, "acme") == 200
    assert not _is_open(item, kind)


def _is_open(item: uuid.UUID, kind: str) -> bool:
    rows: Any = ApprovalRequest.objects.filter(subject=item) if kind == "request" else Gate.objects.filter(id=item)
    return bool(rows.get().state == "open")


# who may decides, and each decision is told once


def told_once(since: int) -> AuditEvent:
    """The one event that came, but for a verdict."""
    events = AuditEvent.objects.exclude(action="execution.recovery_disposition").order_by("at", "id")
    (event,) = events[since:]
    return event


def events_so_far() -> int:
    return AuditEvent.objects.exclude(action="execution.recovery_disposition").count()


@pytest.mark.parametrize("kind", ["request", "gate"])
@pytest.mark.parametrize("way", DECIDERS)
def test_a_decision_leaves_one_event_whichever_way_it_comes(way: str, kind: str, scene: Scene) -> None:
    """F145: who, over which channel, why, and for whom; and a sentence that says so."""
    asker, approver = scene.people["admin"], scene.people["approver"]
    item, since = scene.waits(kind, asker), events_so_far()
    assert DECIDERS[way](approver, item, "acme") in (200, 303)
    assert not _is_open(item, kind)
    event, done = told_once(since), "reject" if "reject" in way else "approve"
    assert event.action == f"{'operation' if kind == 'request' else 'gate'}.{done}"
    assert (event.outcome, event.user, event.reason) == ("allowed", approver.user, "trust me")
    assert event.channel == ("console" if way.startswith("form") else "api")
    assert event.on_behalf_of == (asker.actor.name if kind == "request" else "")
    whose = f"{asker.actor.name}'s rerun of nightly" if kind == "request" else "post of nightly"
    did = "rejected" if done == "reject" else "approved"
    sentence = tell(event, names_of([event]))
    assert sentence.startswith(f"{approver.actor.name} {did} {whose} in development: trust me"), sentence


@pytest.mark.parametrize("channel", ["api", "console"])
def test_a_withdrawal_leaves_one_event_whichever_way_it_comes(channel: str, scene: Scene) -> None:
    """F145."""
    asker = scene.people["operator"]
    item, since = scene.waits("request", asker), events_so_far()
    if channel == "api":
        api = Api({"Authorization": f"Bearer {asker.token}"})
        assert api.post(f"/v1/approvals/{item}/withdraw", {"reason": "not needed"}).status_code == 200
    else:
        client = Client()
        client.force_login(asker.user)
        assert client.post(f"/console/approvals/{item}/withdraw/", {"reason": "not needed"}).status_code == 303
    event = told_once(since)
    assert (event.action, event.outcome, event.channel) == ("operation.withdraw", "allowed", channel)
    assert (event.user, event.reason) == (asker.user, "not needed")


def test_an_applications_decision_leaves_one_event(scene: Scene, api: Api) -> None:
    """F145: of its own stage's gate, by its key."""
    gate, since = scene.gate(None), events_so_far()
    assert api.post(f"/stages/{gate.stage_id}/resume", {"approved": True}).status_code == 200
    event = told_once(since)
    assert (event.action, event.outcome, event.channel) == ("gate.approve", "allowed", "application")
    assert (event.user, event.actor) == (None, "billing")


# ways that decide, tried by an application


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("way", [RESUME, DECISION])
def test_an_application_decides_no_gate_that_requires_a_person(
    way: str, approved: bool, scene: Scene, api: Api
) -> None:
    gate = scene.gate(None, require_person=True)
    before = world()
    if way == RESUME:
        body = {"approved": approved} | ({} if approved else {"rejectionReason": "no"})
        answer = api.post(f"/stages/{gate.stage_id}/resume", body)
    else:
        answer = api.post(f"/v1/approvals/{gate.id}/decision", {"approved": approved, "reason": "no"})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert world() == before
    event = AuditEvent.objects.order_by("-at", "-id")[0]
    assert (event.outcome, event.channel, event.user) == ("denied", "application", None)


@pytest.mark.parametrize("scope", ["application", "runtime"])
def test_an_application_decides_no_request(
    scope: str, scene: Scene, application: Any, environment: Environment
) -> None:
    item = scene.waits("request", scene.people["admin"])
    _, secret = keys.issue_key(application, environment, scope=scope)
    before = world()
    answer = Api({"X-API-Key": secret}).post(f"/v1/approvals/{item}/decision", {"approved": True})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert world() == before
    assert AuditEvent.objects.order_by("-at", "-id")[0].outcome == "denied"


@pytest.mark.parametrize("kind", ["request", "gate"])
def test_a_link_decides_nothing(kind: str, scene: Scene) -> None:
    """P84: whoever follows it, and whatever stands in its address."""
    item = scene.waits(kind, scene.people["admin"])
    client = Client()
    client.force_login(scene.people["approver"].user)
    before, events = world(), AuditEvent.objects.count()
    for act in ("", "approve/", "reject/", "withdraw/"):
        path = f"/console/approvals/{item}/{act}?workspace=acme&approved=true&reason=yes"
        assert client.get(path).status_code == 200
        assert client.head(path).status_code == 200
    assert (world(), AuditEvent.objects.count()) == (before, events)


# ways that ask


ENGINES = ("run", "stage", "attempt", "gate", "deadletter", "queueentry", "event", "effect", "checkpoint")


def runs() -> dict[str, list[tuple[Any, ...]]]:
    return {table: rows for table, rows in world().items() if table in {f"pipelines_{name}" for name in ENGINES}}


def address_of(way: str, failed: Run, running: Run) -> str:
    """Where a way is called: a cancel of the run that goes on, everything else of the one that failed."""
    route = way.partition(" ")[2]
    if way.startswith("form "):
        (route,) = [path for path, pattern in _patterns() if path.startswith("console/") and pattern.name == route]
    run = running if "cancel" in way else failed
    letter = DeadLetter.objects.get(run=failed)
    parts = {"execution_id": run.id, "run_id": run.id, "stage_id": stages_of(run)[-1].id, "letter_id": letter.id}
    for name, part in parts.items():
        route = route.replace(f"<str:{name}>", str(part)).replace(f"<uuid:{name}>", str(part))
    return f"/{route}"


def ask(way: str, who: Person, address: str) -> int:
    if not way.startswith("form "):
        answer = Api({"Authorization": f"Bearer {who.token}"}).post(address, {"reason": "again"}, Idempotency_Key="k")
        return int(answer.status_code)
    client = Client()
    client.force_login(who.user)
    page = client.get(address).content.decode()
    token = re.search(r'name="shown" value="([^"]+)"', page)
    assert token, page
    return client.post(address, {"shown": unescape(token[1]), "reason": "again"}).status_code


@pytest.mark.parametrize("who", ["operator", "admin"])
@pytest.mark.parametrize("way", ASKING)
def test_whatever_others_must_agree_to_waits_whichever_way_it_is_asked_for(
    way: str, who: str, scene: Scene, start_run: StartRun
) -> None:
    """Model §5, F145: a rule binds every role. Kept once, told once, and nothing is done; nor by asking again."""
    failed, running = scene.failed(), start_run("first")
    address, asker = address_of(way, failed, running), scene.people[who]
    scene.rule(sorted(CARRIED))
    before = runs()
    assert ask(way, asker, address) in ((303,) if way.startswith("form ") else (202,))
    operation = Operation.objects.get()
    assert (operation.state, operation.requested_by) == ("awaiting_approval", asker.user)
    assert ApprovalRequest.objects.get(subject=operation.id).state == "open"
    event = AuditEvent.objects.exclude(action="execution.recovery_disposition").get()
    channel = "console" if way.startswith("form ") else "api"
    assert (event.outcome, event.channel, event.user, event.reason) == ("allowed", channel, asker.user, "again")
    ask(way, asker, address)
    assert {one.state for one in Operation.objects.all()} == {"awaiting_approval"}
    run_engine()
    assert runs() == before


def run_engine() -> None:
    """Every task that carries something out."""
    current_app.loader.import_default_modules()
    for way, may in WAYS.items():
        if may == ENGINE:
            current_app.tasks[way.removeprefix("task ")].run()


# what carries out


def test_tasks_decide_no_gate(scene: Scene) -> None:
    gate = scene.gate(None)
    before = runs()
    run_engine()
    assert runs() == before
    assert Gate.objects.get(id=gate.id).state == "open"


@pytest.mark.parametrize("kind", ["rerun", "retry"])
def test_no_carrier_carries_out_what_was_not_agreed_to(kind: str, scene: Scene) -> None:
    """Whoever calls it: it looks for the approvals itself, as they count now."""
    failed = scene.failed()
    scene.rule([kind], 2)
    path = f"executions/{failed.id}/rerun" if kind == "rerun" else f"stages/{stages_of(failed)[-1].id}/retry"
    told = Api({"Authorization": f"Bearer {scene.people['operator'].token}"}).post(f"/v1/{path}", {"reason": "again"})
    item = uuid.UUID(told.json()["operation_id"])
    scene.clock.advance(1)
    assert by_token(scene.people["approver"], item, "acme") == 200
    request = ApprovalRequest.objects.get(subject=item)
    before = world()
    carrier, approver = gates.carrier(kind), scene.people["approver"].actor
    held = carrier.lock(request, approver)
    with pytest.raises(IllegalMove):
        carrier.carry_out(request, held, actor=approver)
    assert world() == before


# who writes the database past the console: what is detected of it


@pytest.fixture
def asked(scene: Scene) -> Operation:
    """A rerun in an unprotected environment for which a rule wants one approver."""
    return Operation.objects.get(id=scene.waits("request", scene.people["operator"]))


def forge(operation: Operation, **columns: Any) -> None:
    """An UPDATE of the operation's row, as anybody can do it who may write that table and no other."""
    assert Operation.objects.filter(id=operation.id).update(**columns) == 1


def assert_no_run(operation: Operation) -> None:
    assert forks.carry_on_reserved(quiet_seconds=0) == 0
    assert not Run.objects.filter(recovered_from=operation.run_id).exists()


def test_an_operation_that_only_says_that_it_was_agreed_to_makes_no_run(asked: Operation, people: People) -> None:
    """I11: approvals are rows of their own, which nobody changes or takes away."""
    forge(asked, state="reserved", target=new_id(), resolved_by_id=people["approver"].user.id)
    assert_no_run(asked)


def test_an_operation_whose_plan_no_longer_names_who_must_agree_makes_no_run(asked: Operation) -> None:
    """The rules are asked again when it is carried out, not what the row says that they asked for."""
    plan = {**(asked.plan or {}), "approvals": []}
    forge(asked, state="reserved", target=new_id(), plan=plan)
    assert_no_run(asked)


def test_a_request_that_only_says_that_it_was_approved_makes_no_run(asked: Operation) -> None:
    """Its own rows say how many agreed; the state of the request says only that nobody may decide any more."""
    ApprovalRequest.objects.filter(subject=asked.id).update(state="approved", closed_at=database_now())
    forge(asked, state="reserved", target=new_id())
    assert_no_run(asked)


@pytest.fixture
def reserved(asked: Operation, people: People, monkeypatch: pytest.MonkeyPatch) -> Operation:
    """One that was agreed to, and whose console was gone before it made the run."""
    with monkeypatch.context() as gone:
        gone.setattr("recovery.forks.dispatch", lambda operation, **_: None)
        assert by_token(people["approver"], asked.id, "acme") == 200
    asked.refresh_from_db()
    assert asked.state == "reserved"
    return asked


def test_what_was_agreed_to_is_made_by_the_sweep(reserved: Operation) -> None:
    """So that the next tests can fail: left alone it goes on."""
    assert forks.carry_on_reserved(quiet_seconds=0) == 1
    assert Run.objects.filter(recovered_from=reserved.run_id).exists()


def test_another_plan_than_the_one_that_was_agreed_to_is_not_carried_out(reserved: Operation) -> None:
    """F51: whatever the operation's row says by then, the approvals are for the request's own plan."""
    reserved.request = {**reserved.request, "from_step_id": "first"}
    _, plan = forks.plan_again(reserved)
    forge(reserved, request=reserved.request, plan=plan.as_json(), plan_digest=plan.digest)
    assert_no_run(reserved)


def test_an_approval_that_is_void_by_now_carries_nothing_out(reserved: Operation, people: People) -> None:
    """F135: counted again when the run is made."""
    Member.objects.filter(user=people["approver"].user).delete()
    assert_no_run(reserved)
    reserved.refresh_from_db()
    assert (reserved.state, reserved.result["code"]) == ("failed", "approval_stale")


@pytest.mark.parametrize("table", ["approvals_requestdecision", "pipelines_gatedecision"])
@pytest.mark.parametrize("change", ["UPDATE {} SET approved = NOT approved", "DELETE FROM {}"])
def test_decisions_are_only_ever_added(table: str, change: str, scene: Scene) -> None:
    kind = "request" if table.startswith("approvals") else "gate"
    item = scene.waits(kind, scene.people["admin"], count=2)
    assert by_token(scene.people["approver"], item, "acme") == 200
    with pytest.raises((IntegrityError, InternalError)), transaction.atomic():
        execute(change.format(table))
