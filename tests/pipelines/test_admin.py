"""The admin site: history is read and never changed, nothing is counted, secrets are shown once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines import credentials, keys, tenant_admin
from pipelines.errors import Refusal
from pipelines.models import (
    ApiKey,
    Application,
    AuditEvent,
    Environment,
    Member,
    PersonalToken,
    Pipeline,
    Policy,
    Run,
    Stage,
    Workspace,
)
from tests.cast import Hand, Person

StartRun = Callable[..., Run]
DEFINITIONS = {
    *("member", "environment", "application", "pipeline", "policy", "apikey", "personaltoken", "workspace"),
    *("approvalrule", "channel", "notificationrule", "trigger"),
}
OURS = [model for app in ("pipelines", "approvals", "recovery") for model in apps.get_app_config(app).get_models()]
HISTORY = [model for model in OURS if model._meta.model_name not in DEFINITIONS]


@pytest.fixture
def boss(people: dict[str, Person]) -> Client:
    """A superuser who is an admin of the workspace."""
    user = people["admin"].user
    user.is_staff = user.is_superuser = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def traces(start_run: StartRun, hand: Hand) -> Run:
    """A run that has left something to look at."""
    run = start_run("first", "second", context_items=[{"key": "card", "value": "hunter2", "is_sensitive": True}])
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return run


def path(model: Any, page: str = "") -> str:
    return f"/admin/{model._meta.app_label}/{model._meta.model_name}/{page}"


def test_every_table_is_there() -> None:
    assert [model for model in OURS if not admin.site.is_registered(model)] == []


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_each_list_opens_in_few_queries_and_counts_nothing(boss: Client, traces: Run, model: Any) -> None:
    """F159, F160: no count of a table that grows, no query for each row."""
    with CaptureQueriesContext(connection) as captured:
        answer = boss.get(path(model))
    assert answer.status_code == 200
    counts = [query["sql"] for query in captured if "count(" in query["sql"].lower()]
    assert [sql for sql in counts if not re.search(r"LIMIT \d+\) few", sql)] == [], "but for capped counts of filters"
    assert len(captured) < 30


@pytest.mark.parametrize("model", HISTORY, ids=lambda model: model.__name__)
def test_history_is_neither_added_nor_changed_nor_deleted(boss: Client, traces: Run, model: Any) -> None:
    """I7: not by a superuser either."""
    assert boss.get(path(model, "add/")).status_code == 403
    assert boss.post(path(model, "add/"), {}).status_code == 403
    row = model.objects.order_by("pk").first()
    if row is not None:
        assert boss.get(path(model, f"{row.pk}/change/")).status_code == 200
        assert boss.post(path(model, f"{row.pk}/change/"), {}).status_code == 403
        assert boss.post(path(model, f"{row.pk}/delete/"), {"post": "yes"}).status_code == 403
        assert model.objects.filter(pk=row.pk).exists()
    bulk = boss.post(path(model), {"action": "delete_selected", "_selected_action": [str(row.pk)] if row else []})
    assert bulk.status_code in (200, 302, 403)
    assert row is None or model.objects.filter(pk=row.pk).exists()


def test_a_thing_is_found_by_its_id(boss: Client, traces: Run) -> None:
    assert b"nightly" in boss.get(path(Run), {"q": str(traces.id)}).content
    stages = boss.get("/admin/pipelines/stage/", {"q": str(traces.id)}).content
    assert stages.count(b'field-handler">Handler<') == 2
    for text in ("nightly", "' OR 1=1", "00000000-0000-0000-0000-000000000000"):
        assert b"0 runs" in boss.get(path(Run), {"q": text}).content


def test_times_are_written_as_on_the_console(boss: Client, traces: Run) -> None:
    shown = boss.get(path(Run)).content.decode()
    assert f"{traces.created_at:%Y-%m-%d %H:%M:%S}" in shown
    assert re.search(r"\b[ap]\.m\.", shown) is None


def test_secrets_are_not_shown(boss: Client, traces: Run, api_key: str) -> None:
    from pipelines.models import ContextItem, WorkerSession

    item = ContextItem.objects.get()
    page = boss.get(path(ContextItem, f"{item.pk}/change/")).content
    assert b"hunter2" not in page
    assert b"secret" not in page.lower()
    for model, row in ((ApiKey, ApiKey.objects.get()), (WorkerSession, WorkerSession.objects.first())):
        page = boss.get(path(model, f"{row.pk}/change/")).content
        assert b"digest" not in page.lower()
        assert api_key.encode() not in page


@pytest.mark.parametrize("model", [model for model in OURS if model not in HISTORY], ids=lambda model: model.__name__)
def test_a_form_to_add_shows_nothing_that_the_database_will_fill_in(boss: Client, model: Any) -> None:
    page = boss.get(path(model, "add/"))
    assert page.status_code == 200
    assert "django.db.models" not in page.content.decode()


def test_another_workspaces_things_are_not_there(boss: Client, traces: Run, other_workspace: Workspace) -> None:
    """I16; a superuser has no part in a workspace of which they are no member."""
    foreign = Environment.objects.get(workspace=other_workspace, slug="staging")
    assert b"globex" not in boss.get(path(Environment)).content
    assert boss.get(path(Environment, f"{foreign.pk}/change/")).status_code == 302
    boss.post(path(Environment, f"{foreign.pk}/change/"), {"rank": 99})
    foreign.refresh_from_db()
    assert foreign.rank == 2


def test_staff_without_the_role_change_nothing(people: dict[str, Person], environments: dict[str, Environment]) -> None:
    user = people["viewer"].user
    user.is_staff = True
    user.save()
    client = Client()
    client.force_login(user)
    assert client.get(path(Environment)).status_code == 200
    page = path(Environment, f"{environments['production'].pk}/change/")
    assert client.post(page, {"rank": 1, "protected": ""}).status_code == 403
    assert client.get(path(ApiKey, "add/")).status_code == 403
    environments["production"].refresh_from_db()
    assert environments["production"].protected


def test_an_admin_changes_a_definition_and_the_audit_says_what(
    boss: Client, environments: dict[str, Environment]
) -> None:
    """F145: channel admin, before and after."""
    page = path(Environment, f"{environments['staging'].pk}/change/")
    assert boss.post(page, {"rank": "2", "protected": "on"}).status_code == 302
    environments["staging"].refresh_from_db()
    assert environments["staging"].protected
    event = AuditEvent.objects.get()
    assert (event.action, event.channel, event.actor) == ("environment.save", "admin", "admin-acme")
    assert (event.before, event.after) == ({"protected": "False"}, {"protected": "True"})


def test_a_quiet_workspace_costs_no_walk_through_all_others_rows(
    boss: Client, traces: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F159: a list looks at the newest rows of its table alone; what is older is found by its id."""
    monkeypatch.setattr(tenant_admin, "NEWEST", 1)
    assert boss.get(path(Stage)).content.count(b'field-handler">Handler<') == 1
    older = Stage.objects.order_by("pk")[0]
    assert str(older.pk).encode() in boss.get(path(Stage), {"q": str(older.pk)}).content
    monkeypatch.setattr(tenant_admin, "LISTED", 1)
    monkeypatch.setattr(tenant_admin, "NEWEST", 10)
    assert b"1 stage" in boss.get(path(Stage)).content


POLICY = {
    "status": "active",
    "name": "calm",
    "kind": "retry",
    "match": '{"stage": "first"}',
    "rule": '{"max_retries": 1, "retry_interval": 5}',
}
ONCE = {"max_retries": 1, "retry_interval": 5}


def test_a_policy_is_made_and_changed_as_over_the_api(boss: Client, workspace: Workspace) -> None:
    """P45, F145: with one event for each save, which says what was before and what is now."""
    assert boss.post(path(Policy, "add/"), POLICY | {"workspace": workspace.pk}).status_code == 302
    policy = Policy.objects.get()
    assert (policy.match, policy.rule, policy.status) == ({"stage": "first"}, ONCE, "active")
    page = path(Policy, f"{policy.pk}/change/")
    assert (
        boss.post(
            page, POLICY | {"match": "", "rule": '{"max_retries": 4, "retry_interval": 5}', "status": "paused"}
        ).status_code
        == 302
    )
    policy.refresh_from_db()
    assert (policy.match, policy.rule, policy.status) == ({}, ONCE | {"max_retries": 4}, "paused")
    added, changed = AuditEvent.objects.order_by("at", "id")
    assert (added.action, added.channel, added.data["rule"]) == ("policy.add", "admin", ONCE)
    assert changed.action == "policy.change"
    assert changed.before == {"match": {"stage": "first"}, "rule": ONCE, "status": "active"}
    assert changed.after == {"match": {}, "rule": ONCE | {"max_retries": 4}, "status": "paused"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rule": '{"max_retries": -1}'}, "max_retries"),
        ({"rule": '{"no_such_option": 1}'}, "there is no such field"),
        ({"rule": "[1]"}, "must be an object"),
        ({"rule": "{"}, "Enter a valid JSON"),
        ({"match": '{"colour": "red"}'}, "there is no such field"),
        ({"kind": "timeout", "rule": '{"seconds": 5}', "match": '{"error_codes": ["X"]}'}, "only a retry policy"),
        ({"kind": "concurrency", "rule": '{"max_active": 0}'}, "max_active"),
        ({"kind": "rate", "rule": '{"count": 5}'}, "per_seconds"),
        ({"name": " "}, "required"),
    ],
)
def test_a_policy_that_the_api_would_refuse_is_refused_by_the_form(
    boss: Client, workspace: Workspace, wrong: dict[str, str], words: str
) -> None:
    answer = boss.post(path(Policy, "add/"), POLICY | {"workspace": workspace.pk} | wrong)
    assert answer.status_code == 200
    assert words in answer.content.decode()
    assert not Policy.objects.exists()
    assert not AuditEvent.objects.exists()


def test_the_page_of_a_concurrency_policy_shows_who_holds_its_slots_now(
    boss: Client, workspace: Workspace, start_run: Callable[..., Run], hand: Hand
) -> None:
    """F69: run, stage, attempt, worker and lease; of a rate how much is used; of a retry policy nothing of the kind."""
    policy = Policy.objects.create(workspace=workspace, name="two", kind="concurrency", rule={"max_active": 2})
    rate = Policy.objects.create(workspace=workspace, name="slow", kind="rate", rule={"count": 9, "per_seconds": 60})
    retry = Policy.objects.create(workspace=workspace, name="calm", kind="retry", rule=ONCE)
    runs = [start_run(f"stage {number}") for number in range(3)]
    assert len(hand.pull(5)) == 2
    page = boss.get(path(Policy, f"{policy.pk}/change/")).content.decode()
    assert "2 of 2; the next may go at" in page
    assert f"/console/runs/{runs[0].id}" in page
    assert "stage stage 0 of run nightly, running: attempt 1 at hand-1, lease until" in page
    assert "stage 2 of run" not in page
    assert "2 of 9 in the last 60 s." in boss.get(path(Policy, f"{rate.pk}/change/")).content.decode()
    assert "in use now" not in boss.get(path(Policy, f"{retry.pk}/change/")).content.decode().lower()
    Policy.objects.filter(pk=policy.pk).update(status="paused")
    assert "It is paused" in boss.get(path(Policy, f"{policy.pk}/change/")).content.decode()


def test_a_name_that_another_policy_has_is_told_beside_the_field(boss: Client, workspace: Workspace) -> None:
    Policy.objects.create(workspace=workspace, name="Calm", kind="retry", rule={"max_retries": 1})
    answer = boss.post(path(Policy, "add/"), POLICY | {"workspace": workspace.pk})
    assert answer.status_code == 200
    assert "another policy has this name" in answer.content.decode()


def test_each_definition_is_changed_with_one_event_of_what_it_was_and_is(
    boss: Client, application: Application, people: dict[str, Person], workspace: Workspace
) -> None:
    """F145: a pipeline, an application and a member; environments and policies have tests of their own."""
    pipeline = Pipeline.objects.create(workspace=workspace, slug="nightly", name="Nightly")
    member = Member.objects.get(user=people["viewer"].user)
    for row, form, before, after in (
        (application, {"name": "shipping"}, {"name": "billing"}, {"name": "shipping"}),
        (pipeline, {"name": "At night", "description": ""}, {"name": "Nightly"}, {"name": "At night"}),
        (member, {"role": "operator"}, {"role": "viewer"}, {"role": "operator"}),
    ):
        assert boss.post(path(type(row), f"{row.pk}/change/"), form).status_code == 302
        event = AuditEvent.objects.latest("at")
        assert (event.action, event.before, event.after) == (f"{row._meta.model_name}.save", before, after)
    assert AuditEvent.objects.count() == 3


def test_a_key_is_shown_once_and_revoked_for_good(
    boss: Client, application: Application, environment: Environment
) -> None:
    fields = {"application": application.pk, "environment": environment.pk, "scope": "application"}
    page = boss.post(path(ApiKey, "add/"), fields, follow=True).content.decode()
    secret = page.partition("the only time that it is shown: ")[2].split("<")[0].strip()
    assert keys.find_key(secret) is not None
    assert secret not in boss.get(path(ApiKey)).content.decode()
    key = ApiKey.objects.get()
    assert boss.post(path(ApiKey, f"{key.pk}/change/"), fields).status_code == 403
    for _ in range(2):
        boss.post(path(ApiKey), {"action": "revoke", "_selected_action": [str(key.pk)]})
    assert keys.find_key(secret) is None
    assert list(AuditEvent.objects.order_by("at", "id").values_list("action", "outcome")) == [
        ("api_key.issue", "allowed"),
        ("apikey.save", "denied"),
        ("api_key.revoke", "allowed"),
        ("api_key.revoke", "no_op"),
    ]


def test_who_may_not_revoke_is_told_so(
    people: dict[str, Person], application: Application, environment: Environment
) -> None:
    """Model §5, F145: a missing right is said, and is in the audit; the key goes on working."""
    key, secret = keys.issue_key(application, environment)
    user = people["operator"].user
    user.is_staff = True
    user.save()
    client = Client()
    client.force_login(user)
    page = client.post(path(ApiKey), {"action": "revoke", "_selected_action": [str(key.pk)]}, follow=True)
    assert "may not administer" in page.content.decode()
    assert keys.find_key(secret) is not None
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.channel, event.user) == ("api_key.revoke", "denied", "admin", user)


def test_a_change_that_is_denied_is_in_the_audit(
    people: dict[str, Person], environment: Environment, outsider: Person
) -> None:
    """F145: once, for a member without the right; an outsider is told nothing, and nothing is kept of them."""
    for person, status in ((people["operator"], 403), (outsider, 302)):
        person.user.is_staff = True
        person.user.save()
        client = Client()
        client.force_login(person.user)
        for verb in ("change", "delete"):
            answer = client.post(path(Environment, f"{environment.pk}/{verb}/"), {"rank": 7, "protected": ""})
            assert answer.status_code in (status, 403), verb
    told = AuditEvent.objects.order_by("at").values_list("action", "outcome", "code", "user")
    assert list(told) == [
        (f"environment.{verb}", "denied", "permission_denied", people["operator"].user.pk)
        for verb in ("save", "remove")
    ]
    environment.refresh_from_db()
    assert environment.rank == 1


def test_a_key_does_not_join_two_workspaces(boss: Client, application: Application, other_workspace: Workspace) -> None:
    foreign = Environment.objects.get(workspace=other_workspace, slug="staging")
    fields = {"application": application.pk, "environment": foreign.pk, "scope": "application"}
    assert boss.post(path(ApiKey, "add/"), fields).status_code == 200, "the form again, with its error"
    assert not ApiKey.objects.exists()


def test_a_token_is_shown_once_and_is_ones_own(boss: Client, people: dict[str, Person], workspace: Workspace) -> None:
    """F131: nobody becomes the second person by making a token of theirs, whatever the form says."""
    fields = {"user": people["approver"].user.pk, "workspace": workspace.pk}
    page = boss.post(path(PersonalToken, "add/"), fields, follow=True).content.decode()
    secret = page.partition("the only time that it is shown: ")[2].split("<")[0].strip()
    found = keys.find_person(secret)
    assert found is not None
    assert found[1] == "admin-acme"
    assert not PersonalToken.objects.filter(user=people["approver"].user, digest=keys.digest(secret)).exists()


def test_a_token_of_the_admin_site_lives_no_longer_than_any_other(boss: Client, workspace: Workspace) -> None:
    far = {"workspace": workspace.pk, "name": "x", "expires_at_0": "2999-01-01", "expires_at_1": "00:00"}
    answer = boss.post(path(PersonalToken, "add/"), far)
    assert answer.status_code == 200, "the form again, with its error"
    assert "at most 366 days ahead" in answer.content.decode()
    assert not PersonalToken.objects.filter(name="x").exists()
    assert boss.post(path(PersonalToken, "add/"), {"workspace": workspace.pk, "name": "x"}).status_code == 302
    assert PersonalToken.objects.get(name="x").expires_at is not None


def test_who_takes_over_an_account_leaves_a_trace_where_it_belongs(boss: Client, people: dict[str, Person]) -> None:
    """F145, four eyes: with the password of the second person one could agree to one's own request."""
    account = people["approver"].user
    password = {"usable_password": "true", "password1": "correct-horse", "password2": "correct-horse"}
    assert boss.post(f"/admin/auth/user/{account.pk}/password/", password).status_code == 302
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.channel) == ("user.save", "admin-acme", "admin")
    assert event.data["user"] == "approver-acme"
    assert "password" in str(event.data["change"])
    assert boss.post(f"/admin/auth/user/{account.pk}/delete/", {"post": "yes"}).status_code == 403


def test_an_admin_is_given_nobody_elses_token(people: dict[str, Person]) -> None:
    with pytest.raises(Refusal, match="for oneself"):
        credentials.issue_token(actor=people["admin"].actor, user=people["approver"].user)
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.code) == ("token.issue", "denied", "impersonation_rejected")


def test_a_superuser_makes_a_workspace_and_is_its_first_admin(boss: Client, people: dict[str, Person]) -> None:
    assert boss.post(path(Workspace, "add/"), {"slug": "initech", "name": "Initech"}).status_code == 302
    made = Workspace.objects.get(slug="initech")
    assert list(made.environments.values_list("slug", flat=True)) == ["development", "staging", "production"]
    assert Member.objects.get(workspace=made).user == people["admin"].user


def test_a_member_is_removed_with_an_audit_event(boss: Client, people: dict[str, Person]) -> None:
    member = Member.objects.get(user=people["viewer"].user)
    assert boss.post(path(Member, f"{member.pk}/delete/"), {"post": "yes"}).status_code == 302
    assert not Member.objects.filter(pk=member.pk).exists()
    assert AuditEvent.objects.get().data == {"user": "viewer-acme", "role": "viewer"}


@pytest.mark.parametrize(
    "address",
    [
        "apikey/?digest__gt=a",
        "personaltoken/?user__password__startswith=pbkdf2",
        "contextitem/?secret__startswith=g",
        "run/?name=%00",
        "run/?name__regex=(a%2B)%2B$",
        "run/?created_at__gt=x",
        "run/?workspace__slug=globex",
    ],
)
def test_no_address_asks_about_what_a_list_does_not_show(boss: Client, traces: Run, address: str) -> None:
    """F159: neither letter by letter about a secret, nor by a search of a whole table; a 400, never a fault."""
    assert boss.get(f"/admin/pipelines/{address}").status_code == 400
