"""Who may do what through `/v1`: every route of the URL map, every method, every role (model §5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from approvals.models import ApprovalRule
from pipelines import artifact_storing, catalog, keyring, releases, triggers
from pipelines.access import CAPABILITIES
from pipelines.api.operations_endpoint import OperationsEndpoint
from pipelines.artifacts import Given
from pipelines.models import Application, AuditEvent, Checkpoint, DeadLetter, Environment, Role, Run, Stage
from recovery import backfills
from recovery.states import OperationKind
from tests.cast import Api, Hand, Person, stages_of
from tests.cells import in_each_cell
from tests.factories import left_by
from tests.kept import table_of
from tests.pipelines.blackout_nights import on_dates
from tests.recovery.bulked import begun, of
from tests.recovery.stories import effect_of, in_review
from tests.routes import every_route

# The table of model §5, route by route. A route that is not here fails the tests: decide who may, then write it down.
VIEWERS = {"viewer", "operator", "approver", "release_manager", "admin"}
OPERATORS = {"operator", "release_manager", "admin"}
DECIDERS = {"approver", "release_manager", "admin"}
RELEASERS = {"release_manager", "admin"}
ADMINS = {"admin"}
NOBODY: set[str] = set()  # keys of scope runtime alone
ROUTES: dict[tuple[str, str], set[str]] = {
    ("GET", "executions"): VIEWERS,
    ("GET", "executions/<str:execution_id>"): VIEWERS,
    ("GET", "executions/<str:execution_id>/stages"): VIEWERS,
    ("GET", "executions/<str:execution_id>/attempts"): VIEWERS,
    ("GET", "executions/<str:execution_id>/timeline"): VIEWERS,
    ("GET", "executions/<str:execution_id>/logs"): VIEWERS,
    ("GET", "executions/<str:execution_id>/blockers"): VIEWERS,
    ("GET", "executions/<str:execution_id>/children"): VIEWERS,
    ("GET", "executions/<str:execution_id>/account"): VIEWERS,
    ("GET", "stages/<str:stage_id>/import-request"): VIEWERS,
    ("POST", "stages/<str:stage_id>/import"): OPERATORS,
    ("GET", "executions/<str:execution_id>/evidence"): VIEWERS,
    ("GET", "executions/<str:execution_id>/snapshot"): VIEWERS,
    ("GET", "executions/<str:execution_id>/checkpoints"): VIEWERS,
    ("POST", "executions/<str:execution_id>/checkpoints"): NOBODY,
    ("GET", "executions/<str:execution_id>/checkpoints/latest"): NOBODY,
    ("GET", "executions/<str:execution_id>/checkpoints/<str:checkpoint_id>"): VIEWERS,
    ("PATCH", "executions/<str:execution_id>/checkpoints/<str:checkpoint_id>"): NOBODY,
    ("GET", "executions/<str:execution_id>/effects"): VIEWERS,
    ("GET", "executions/<str:execution_id>/artifacts"): VIEWERS,
    ("GET", "executions/<str:execution_id>/reconciliation"): VIEWERS,
    ("POST", "executions/<str:execution_id>/reconciliation/<str:item_id>/settle"): DECIDERS,
    ("GET", "reconciliation"): VIEWERS,
    ("GET", "artifacts"): VIEWERS,
    ("POST", "artifacts"): RELEASERS,
    ("GET", "artifacts/<str:artifact_id>"): VIEWERS,
    ("GET", "artifacts/<str:artifact_id>/content"): VIEWERS,
    ("GET", "guarantees"): VIEWERS,
    ("GET", "pipelines/<str:slug>/readiness"): VIEWERS,
    ("GET", "store/tables"): VIEWERS,
    ("GET", "store/tables/<str:table_id>"): VIEWERS,
    ("GET", "store/tables/<str:table_id>/rows"): VIEWERS,
    ("POST", "store/tables/<str:table_id>/remove"): RELEASERS,
    ("POST", "executions/<str:execution_id>/pause"): OPERATORS,
    ("POST", "executions/<str:execution_id>/resume"): OPERATORS,
    ("POST", "executions/<str:execution_id>/cancel"): OPERATORS,
    ("GET", "executions/<str:execution_id>/run-retry"): VIEWERS,
    ("POST", "executions/<str:execution_id>/run-retry/stop"): OPERATORS,
    ("GET", "stages/<str:stage_id>/outputs"): VIEWERS,
    ("GET", "stages/<str:stage_id>/policies"): VIEWERS,
    ("POST", "stages/<str:stage_id>/retry"): OPERATORS,
    ("POST", "stages/<str:stage_id>/skip"): OPERATORS,
    ("POST", "stages/<str:stage_id>/reconcile"): DECIDERS,
    ("POST", "executions/<str:execution_id>/rerun"): OPERATORS,
    ("POST", "executions/<str:execution_id>/replay"): OPERATORS,
    ("GET", "approvals"): VIEWERS,
    ("POST", "approvals/<str:approval_id>/decision"): DECIDERS,
    ("POST", "approvals/<str:approval_id>/withdraw"): VIEWERS,  # and of them only who asked for it
    ("GET", "executions/<str:execution_id>/effects/<str:effect_id>/evidence"): VIEWERS,
    ("GET", "executions/<str:execution_id>/effects/<str:effect_id>/late-results"): VIEWERS,
    ("POST", "executions/<str:execution_id>/effects/<str:effect_id>/evidence"): DECIDERS,
    ("POST", "executions/<str:execution_id>/effects/<str:effect_id>/reconciliation"): DECIDERS,
    ("GET", "environments"): VIEWERS,
    ("POST", "environments"): ADMINS,
    ("GET", "applications"): VIEWERS,
    ("POST", "applications"): ADMINS,
    ("PATCH", "applications/<str:application_id>"): ADMINS,
    ("GET", "pipelines"): VIEWERS,
    ("POST", "pipelines"): RELEASERS,
    ("GET", "releases"): VIEWERS,
    ("POST", "releases"): RELEASERS,
    ("GET", "releases/<str:release_id>"): VIEWERS,
    ("POST", "releases/<str:release_id>/activate"): RELEASERS,
    ("POST", "releases/<str:release_id>/review"): RELEASERS,
    ("GET", "executions/<str:execution_id>/budget"): VIEWERS,
    ("GET", "policies"): VIEWERS,
    ("POST", "policies"): ADMINS,
    ("PATCH", "policies/<str:policy_id>"): ADMINS,
    ("GET", "approval-rules"): VIEWERS,
    ("POST", "approval-rules"): ADMINS,
    ("PATCH", "approval-rules/<str:rule_id>"): ADMINS,
    ("GET", "blackouts"): VIEWERS,
    ("POST", "blackouts"): RELEASERS,
    ("PATCH", "blackouts/<str:blackout_id>"): RELEASERS,
    ("GET", "freeze"): VIEWERS,
    ("POST", "freeze"): RELEASERS,
    ("POST", "freeze/lift"): RELEASERS,
    ("GET", "triggers"): VIEWERS,
    ("POST", "triggers"): RELEASERS,
    ("GET", "triggers/<str:trigger_id>"): VIEWERS,
    ("PATCH", "triggers/<str:trigger_id>"): RELEASERS,
    ("GET", "triggers/<str:trigger_id>/ticks"): VIEWERS,
    ("POST", "triggers/backfill"): OPERATORS,
    ("GET", "backfills"): VIEWERS,
    ("GET", "backfills/<str:backfill_id>"): VIEWERS,
    ("GET", "backfills/<str:backfill_id>/ticks"): VIEWERS,
    ("POST", "backfills/<str:backfill_id>/pause"): OPERATORS,
    ("POST", "backfills/<str:backfill_id>/resume"): OPERATORS,
    ("POST", "backfills/<str:backfill_id>/cancel"): OPERATORS,
    ("GET", "bulk-operations"): VIEWERS,
    ("POST", "bulk-operations"): OPERATORS,
    ("GET", "bulk-operations/<str:bulk_id>"): VIEWERS,
    ("GET", "bulk-operations/<str:bulk_id>/items"): VIEWERS,
    ("POST", "bulk-operations/<str:bulk_id>/pause"): OPERATORS,
    ("POST", "bulk-operations/<str:bulk_id>/resume"): OPERATORS,
    ("POST", "bulk-operations/<str:bulk_id>/abort"): OPERATORS,
    ("GET", "signing-keys"): VIEWERS,
    ("POST", "signing-keys/rotate"): ADMINS,
    ("POST", "signing-keys/<str:key_id>/revoke"): ADMINS,
    ("GET", "audit-events"): VIEWERS,
    ("GET", "audit-heads"): VIEWERS,
    ("GET", "workers"): VIEWERS,
    ("GET", "operations"): VIEWERS,
    ("GET", "dead-letters"): VIEWERS,
    ("POST", "dead-letters/<str:letter_id>/acknowledge"): OPERATORS,
    ("POST", "dead-letters/<str:letter_id>/redrive"): OPERATORS,
    ("POST", "dead-letters/<str:letter_id>/discard"): OPERATORS,
}
FOR_EVERYBODY = {"schema", "application-schema", "docs"}  # they tell what the API looks like and nothing of anybody
KINDS_FOR_KEYS = ("executions", "stages", "backfills", "artifacts", "store")
FOR_KEYS = {
    route
    for (method, route), roles in ROUTES.items()
    if method == "GET" and roles and route.partition("/")[0] in KINDS_FOR_KEYS
} | {"operations", "dead-letters", "approvals", "reconciliation"}

AsPerson = Callable[[Person], Api]


def routes_of_v1() -> Iterator[tuple[str, Any]]:
    """Every route under `/v1` with its view class, or None for a plain function."""
    for route, one in every_route():
        if route.startswith("v1/"):
            yield route.removeprefix("v1/"), getattr(one.callback, "view_class", None)


def test_every_route_of_the_map_has_a_rule() -> None:
    """F142: a route without one fails here, and one that is gone too."""
    found = set()
    for route, view in routes_of_v1():
        if route in FOR_EVERYBODY:
            continue
        assert view is not None, f"{route} is no OperationsEndpoint"
        assert issubclass(view, OperationsEndpoint), f"{route} is no OperationsEndpoint"
        answered = {method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if hasattr(view, method.lower())}
        assert answered == set(view.access), f"{route} answers {answered} and has rules for {set(view.access)}"
        found |= {(method, route) for method in view.access}
        for method in answered - {"GET"}:
            assert view.actions[method], f"{method} {route} has no name for the audit"
            assert view.bodies[method] is not None, f"{method} {route} has no shape"
    assert found == set(ROUTES)


def test_the_rules_are_those_of_the_model() -> None:
    for route, view in routes_of_v1():
        if route not in FOR_EVERYBODY:
            for method, capability in view.access.items():
                assert set(CAPABILITIES[capability]) == ROUTES[method, route], f"{method} {route}"
            assert view.for_key == (route in FOR_KEYS), route


@pytest.fixture
def things(
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    application: Application,
    environment: Environment,
) -> dict[str, str]:
    """One of each thing that a path may name, by the name of its parameter."""
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    effect = effect_of(run, "first")
    admin = people["admin"].actor
    pipeline, _ = catalog.save_pipeline(actor=admin, slug="nightly", name="Nightly")
    definition = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}]}
    release, _ = releases.register_release(
        actor=admin, pipeline=pipeline, environment=environment, definition=definition, activate=True
    )
    policy = catalog.add_policy(
        actor=admin, name="calm", kind="timeout", match={}, rule={"seconds": 5}, status="paused"
    )
    trigger = triggers.create(
        actor=admin,
        wanted={
            "pipeline": "nightly",
            "environment": environment.slug,
            "application": application.name,
            "cron": "0 8 * * *",
            "timezone": "UTC",
        },
    )
    day = datetime(2026, 5, 20, 8, tzinfo=UTC)
    backfill = backfills.start(backfills.Wish(trigger.id, day, day), admin).backfill
    digest = sha256(b"a,b").hexdigest()
    baseline = artifact_storing.add_baseline(admin, Given("prices", b"a,b", digest), application_id=application.id)
    return {
        "artifact_id": str(baseline.id),
        "table_id": str(table_of(run).id),
        "backfill_id": str(backfill.id),
        "bulk_id": str(begun(of(OperationKind.CANCEL, [run]), admin).id),
        "execution_id": str(run.id),
        "stage_id": str(stages_of(run)[0].id),
        "awaiting": str(stages_of(start_run({"name": "correctness", "mode": "import"}))[0].id),
        "effect_id": str(effect.id),
        "item_id": str(left_by(run).id),
        "approval_id": str(in_review(run).id),
        "checkpoint_id": str(Checkpoint.objects.filter(run=run)[0].id),
        "letter_id": str(DeadLetter.objects.get().id),
        "application_id": str(application.id),
        "release_id": str(release.id),
        "slug": pipeline.slug,
        "policy_id": str(policy.id),
        "trigger_id": str(trigger.id),
        "blackout_id": str(on_dates(run.workspace, "2020-01-01").id),
        "rule_id": str(ApprovalRule.objects.create(workspace_id=run.workspace_id, name="x", kinds=["retry"]).id),
        "key_id": str(keyring.read(application.workspace_id).active),
    }


def path_of(route: str, things: dict[str, str]) -> str:
    if route.endswith("import-request"):  # there is none of a stage that awaits no answer
        route = route.replace("<str:stage_id>", things["awaiting"])
    for name, found in things.items():
        route = route.replace(f"<str:{name}>", found)
    assert "<" not in route
    return f"/v1/{route}"


def call(client: Api, method: str, path: str, body: Any = None) -> Any:
    return client.get(path) if method == "GET" else getattr(client, method.lower())(path, body or {})


def test_each_role_is_let_in_or_refused_as_the_table_says(
    things: dict[str, str], people: dict[str, Person], as_person: AsPerson
) -> None:
    """Model §5, F145: a refusal says which right is missing and is in the audit; it changes nothing."""

    def held(cell: tuple[str, str]) -> None:
        method, route = cell
        before = list(Stage.objects.values_list("id", "state", "epoch"))
        for role in Role.values:
            # a body that no shape takes: who may is told 400, who may not 403, and nobody's call goes through here
            answer = call(as_person(people[role]), method, path_of(route, things), {"no such field": 1})
            denied = AuditEvent.objects.filter(outcome="denied", user=people[role].user)
            if role in ROUTES[method, route]:
                assert answer.status_code == (200 if method == "GET" else 400), answer.content
                assert not denied.exists()
            else:
                assert answer.status_code == 403
                assert answer.json()["code"] == "permission_denied"
                assert "needs one of" in answer.json()["detail"]
                if method == "GET":
                    assert not denied.exists()  # who only looked asked for no change
                    continue
                event = denied.get()
                assert (event.code, event.channel, event.actor) == (
                    "permission_denied",
                    "api",
                    people[role].user.username,
                )
                assert event.action, "the audit names what was tried"
                if "execution_id" in route or "letter_id" in route or "stage_id" in route:
                    assert str(event.run) == things["execution_id"]
        assert list(Stage.objects.values_list("id", "state", "epoch")) == before

    in_each_cell(sorted(ROUTES), held)


def test_another_workspaces_ids_are_not_found(things: dict[str, str], outsider: Person, as_person: AsPerson) -> None:
    """I16, F151: an admin elsewhere is told 404, whatever the body says, and nothing changes."""

    def held(cell: tuple[str, str]) -> None:
        method, route = cell
        before = list(Stage.objects.values_list("id", "state", "epoch"))
        answer = call(as_person(outsider), method, path_of(route, things), {"no such field": 1})
        assert answer.status_code == 404
        assert answer.json()["code"] == "not_found"
        assert list(Stage.objects.values_list("id", "state", "epoch")) == before
        tried = AuditEvent.objects.filter(workspace=outsider.actor.workspace_id)
        assert [(event.outcome, event.code) for event in tried] == (
            [] if method == "GET" else [("failed", "not_found")]
        )

    in_each_cell(sorted(route for route in ROUTES if "<" in route[1]), held)


def test_without_a_name_nothing_is_answered(things: dict[str, str]) -> None:
    def held(cell: tuple[str, str]) -> None:
        method, route = cell
        for headers in (
            {},
            {"Authorization": "Bearer rt_nobody"},
            {"Authorization": "Basic x"},
            {"X-API-Key": "rk_none"},
        ):
            answer = call(Api(headers), method, path_of(route, things))
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.json()["code"] == "unauthorized"

    in_each_cell(sorted(ROUTES), held)


def test_an_applications_key_only_reads_its_own_runs(things: dict[str, str], api: Api, sibling_key: str) -> None:
    """Contract §3: X-API-Key on GET routes for its own runs; another application's run is 404 (I16)."""

    def held(cell: tuple[str, str]) -> None:
        method, route = cell
        answer = call(api, method, path_of(route, things))
        if method == "GET" and route in FOR_KEYS:
            assert answer.status_code == 200
            if "<" in route:
                assert Api({"X-API-Key": sibling_key}).get(path_of(route, things)).status_code == 404
        else:
            assert answer.status_code == 403
            assert answer.json()["code"] == "permission_denied"

    in_each_cell(sorted(ROUTES), held)


def test_a_token_stops_with_its_owners_membership(
    people: dict[str, Person], as_person: AsPerson, workspace: Any
) -> None:
    """F150's sibling: the right is looked at now, not when the token was made."""
    client = as_person(people["operator"])
    assert client.get("/v1/executions").status_code == 200
    workspace.members.filter(user=people["operator"].user).delete()
    assert client.get("/v1/executions").status_code == 401


def test_a_log_in_acts_in_the_workspace_it_names(
    people: dict[str, Person], other_workspace: Any, start_run: Callable[..., Run]
) -> None:
    """Contract §3: X-Workspace or ?workspace= when there are several; one that is not theirs is 404; CSRF holds."""
    user, run = people["operator"].user, start_run("first")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get("/v1/executions").status_code == 200
    assert client.get("/v1/executions?workspace=globex").status_code == 404
    other_workspace.members.create(user=user, role="viewer")
    several = client.get("/v1/executions")
    assert several.status_code == 400
    assert "acme" in several.json()["errors"]["workspace"][0]
    named = client.get("/v1/executions", headers={"X-Workspace": "acme"}).json()["results"]
    assert [item["execution_id"] for item in named] == [str(run.id)]
    assert client.get("/v1/executions?workspace=globex").json()["results"] == []
    forged = client.post(
        f"/v1/executions/{run.id}/pause", b"{}", content_type="application/json", headers={"X-Workspace": "acme"}
    )
    assert forged.status_code == 403
    assert "CSRF" in forged.json()["detail"]
    assert Run.objects.get(id=run.id).status == "queued"


def test_a_superuser_has_no_rights_where_they_are_no_member(
    people: dict[str, Person], start_run: Callable[..., Run]
) -> None:
    """Model §5."""
    start_run("first")
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    assert client.get("/v1/executions").status_code == 403
    assert client.get("/v1/executions?workspace=acme").status_code == 404


def test_every_list_names_its_items(things: dict[str, str], people: dict[str, Person], as_person: AsPerson) -> None:
    """Contract §3: lists are {next, previous, results}; items carry `execution_id`, or `id` for other things."""

    def held(route: str) -> None:
        got = as_person(people["admin"]).get(path_of(route, things))
        if not got["Content-Type"].startswith("application/json"):
            return  # the bytes of an artifact
        answer = got.json()
        if "results" not in answer:
            return
        assert set(answer) == {"next", "previous", "results"}
        named = "execution_id" if route == "executions" else "id"
        if not route.endswith("/blockers"):  # a blocker is no thing, it has no name
            assert all(item[named] for item in answer["results"])

    in_each_cell(sorted(route for method, route in ROUTES if method == "GET"), held)
