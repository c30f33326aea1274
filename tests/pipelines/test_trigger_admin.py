"""Triggers in the admin site: kept by what keeps them for the API, with its audit; ledgers are read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines import triggers
from pipelines.ids import new_id
from pipelines.models import (
    Application,
    AuditEvent,
    Environment,
    Member,
    Pipeline,
    Role,
    Tick,
    Trigger,
    TriggerVersion,
    Workspace,
)
from tests.cast import Person
from tests.factories import ApplicationFactory, PipelineFactory

pytestmark = pytest.mark.django_db
LIST = "/admin/pipelines/trigger/"
Form = Callable[..., dict[str, Any]]


def staff(user: Any) -> Client:
    user.is_staff = user.is_superuser = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def boss(people: dict[str, Person]) -> Client:
    return staff(people["release_manager"].user)


@pytest.fixture
def pipeline(workspace: Workspace) -> Pipeline:
    return PipelineFactory(workspace=workspace, slug="nightly")


@pytest.fixture
def form(workspace: Workspace, pipeline: Pipeline, environment: Environment, application: Application) -> Form:
    def filled(**more: Any) -> dict[str, Any]:
        least = {
            "workspace": str(workspace.id),
            "pipeline": str(pipeline.id),
            "environment": str(environment.id),
            "application": str(application.id),
            "cron": "15 16 * * mon-fri",
            "timezone": "Europe/Berlin",
            "gap": "first_existing",
            "overlap": "first",
            "input": "{}",
            "overlap_policy": "skip",
            "catch_up": "none",
            "catch_up_limit": "100",
            "start_within": "60",
            "spread": "0",
            "enabled": "on",
        }
        return {name: value for name, value in {**least, **more}.items() if value is not None}

    return filled


@pytest.fixture
def trigger(
    people: dict[str, Person], pipeline: Pipeline, environment: Environment, application: Application
) -> Trigger:
    place = {"pipeline": "nightly", "environment": environment.slug, "application": application.name}
    wanted = {**place, "cron": "15 16 * * mon-fri", "timezone": "Europe/Berlin"}
    return triggers.create(actor=people["release_manager"].actor, wanted=wanted)


def page(trigger: Trigger, name: str = "change") -> str:
    return f"{LIST}{trigger.id}/{name}/"


def errors(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 200, "a form that is refused comes back"
    return {name: list(found) for name, found in answer.context["adminform"].form.errors.items()}


def test_a_trigger_is_made_and_its_schedule_is_read_back(boss: Client, form: Form, people: dict[str, Person]) -> None:
    """O60, F145."""
    filled = form(
        input='{"day": "{{local_date}}"}',
        deadline_seconds="900",
        starts_at_0="2027-01-01",
        starts_at_1="00:00:00",
        reason="asked for by treasury",
    )
    answer = boss.post(f"{LIST}add/", filled)
    assert answer.status_code == 302, errors(answer)
    row = Trigger.objects.get()
    assert (row.name, row.input, row.deadline_seconds) == ("nightly", {"day": "{{local_date}}"}, 900)
    assert (row.starts_at, row.ends_at, row.enabled) == (datetime(2027, 1, 1, tzinfo=UTC), None, True)
    assert row.next_at == datetime(2027, 1, 1, 15, 15, tzinfo=UTC)
    said = [str(message) for message in get_messages(answer.wsgi_request)]
    assert said[0].startswith("At 16:15 on Monday to Friday, Europe/Berlin time")
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.channel) == ("trigger.create", "allowed", "admin")
    assert (event.actor, event.reason) == (people["release_manager"].user.username, "asked for by treasury")
    assert said[0].encode() in boss.get(LIST).content
    assert said[0].encode() in boss.get(page(row)).content


def test_only_what_was_changed_is_changed_and_in_the_audit(boss: Client, form: Form, trigger: Trigger) -> None:
    assert boss.post(page(trigger), form(name="nightly", spread="30", reason="calmer")).status_code == 302
    event = AuditEvent.objects.latest("at", "id")
    assert (event.action, event.channel, event.reason) == ("trigger.change", "admin", "calmer")
    assert (event.before, event.after) == ({"spread": 0}, {"spread": 30})
    assert boss.post(page(trigger), form(name="nightly", spread="30", enabled=None)).status_code == 302
    assert AuditEvent.objects.latest("at", "id").action == "trigger.disable"
    assert boss.post(page(trigger), form(name="nightly", spread="30", enabled=None)).status_code == 302
    assert AuditEvent.objects.latest("at", "id").outcome == "no_op"
    trigger.refresh_from_db()
    assert (trigger.spread, trigger.enabled, trigger.version) == (30, False, 3)
    assert TriggerVersion.objects.count() == 3


def test_a_trigger_stays_what_it_was_made_for(
    boss: Client, form: Form, trigger: Trigger, workspace: Workspace, environments: dict[str, Environment]
) -> None:
    other = PipelineFactory(workspace=workspace, slug="other")
    staging = str(environments["staging"].id)
    assert boss.post(page(trigger), form(name="x", pipeline=str(other.id), environment=staging)).status_code == 302
    trigger.refresh_from_db()
    assert (trigger.name, trigger.pipeline.slug, trigger.environment.slug) == ("x", "nightly", "development")


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"cron": "0 0 30 2 *"}, "cron", "never happens"),
        ({"cron": ""}, "cron", "required"),
        ({"cron": "61 * * * *"}, "cron", "minute"),
        ({"timezone": "Europe/Berlln"}, "timezone", "Did you mean Europe/Berlin"),
        ({"gap": "never"}, "gap", "not one of the available choices"),
        ({"input": "[]"}, "input", "must be a JSON object"),
        ({"input": "{"}, "input", "valid JSON"),
        ({"input": '{"a": "{{tomorrow}}"}'}, "input", "{{tomorrow}} is not known"),
        ({"catch_up_limit": "1001"}, "catch_up_limit", "from 0 to 1000"),
        ({"start_within": "0"}, "start_within", "from 1 to 86400"),
        ({"spread": "86401"}, "spread", "from 0 to 86400"),
        ({"deadline_seconds": "0"}, "deadline_seconds", "from 1 to"),
        ({"spread": ""}, "spread", "required"),
        (
            {
                "starts_at_0": "2027-01-02",
                "starts_at_1": "00:00:00",
                "ends_at_0": "2027-01-02",
                "ends_at_1": "00:00:00",
            },
            "ends_at",
            "must be after starts_at",
        ),
        ({"name": "x" * 256}, "name", "at most 255 characters"),
        ({"name": "a\tb"}, "name", "control characters"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_field(
    boss: Client, form: Form, trigger: Trigger, more: dict[str, Any], field: str, said: str
) -> None:
    """Made or changed: nothing is kept."""
    before, told = list(Trigger.objects.values()), AuditEvent.objects.count()
    for answer in (boss.post(f"{LIST}add/", form(**more)), boss.post(page(trigger), form(**{"name": "n", **more}))):
        assert any(said in message for message in errors(answer)[field]), errors(answer)
    assert list(Trigger.objects.values()) == before
    assert AuditEvent.objects.count() == told


def test_a_trigger_does_not_join_two_workspaces(
    boss: Client, form: Form, people: dict[str, Person], other_workspace: Workspace
) -> None:
    """I16: not what the user may not see, and not of two workspaces in which they may."""
    foreign = ApplicationFactory(workspace=other_workspace)
    assert "application" in errors(boss.post(f"{LIST}add/", form(application=str(foreign.id))))
    Member.objects.create(workspace=other_workspace, user=people["release_manager"].user, role=Role.ADMIN)
    found = errors(boss.post(f"{LIST}add/", form(application=str(foreign.id))))
    assert found == {"application": ["is none of the workspace acme"]}
    assert not Trigger.objects.exists()


@pytest.mark.parametrize("role", ["viewer", "operator", "approver"])
def test_who_may_not_release_reads_only(people: dict[str, Person], form: Form, trigger: Trigger, role: str) -> None:
    """Model §5: a superuser too acts in the role they have there; each try is in the audit."""
    client = staff(people[role].user)
    assert client.get(page(trigger)).status_code == 200
    assert client.post(page(trigger), form(name="x")).status_code == 403
    assert client.post(f"{LIST}add/", form()).status_code == 403
    trigger.refresh_from_db()
    assert (trigger.name, Trigger.objects.count()) == ("nightly", 1)
    denied = AuditEvent.objects.filter(outcome="denied").values_list("action", "code")
    assert list(denied) == [("trigger.save", "permission_denied")] * 2


def test_nobody_removes_a_trigger(boss: Client, trigger: Trigger) -> None:
    assert boss.post(page(trigger, "delete"), {"post": "yes"}).status_code == 403
    assert Trigger.objects.exists()


def test_another_workspaces_trigger_is_not_there(outsider: Person, form: Form, trigger: Trigger) -> None:
    """I16."""
    client = staff(outsider.user)
    assert b"nightly" not in client.get(LIST).content
    unknown = client.get(f"{LIST}{new_id()}/change/").status_code
    assert client.get(page(trigger)).status_code == unknown in (302, 403)
    assert client.post(page(trigger), form(name="x")).status_code == unknown
    trigger.refresh_from_db()
    assert trigger.name == "nightly"


def test_a_ledger_is_found_by_its_trigger_or_its_run_and_never_changed(boss: Client, trigger: Trigger) -> None:
    tick = Tick.objects.create(
        trigger=trigger,
        at=datetime(2026, 5, 20, 8, tzinfo=UTC),
        state="dispatched",
        cron="0 8 * * *",
        timezone="UTC",
        rule="fixed_time",
        local_time="2026-05-20T08:00:00+00:00",
        version=1,
        start_at=datetime(2026, 5, 20, 8, tzinfo=UTC),
        run=new_id(),
    )
    ledger = "/admin/pipelines/tick/"
    for wanted in (tick.id, trigger.id, tick.run):
        assert b"fixed_time" in boss.get(f"{ledger}?q={wanted}").content
    assert b"fixed_time" not in boss.get(f"{ledger}?q={new_id()}").content
    assert boss.get(f"{ledger}{tick.id}/change/").status_code == 200
    assert boss.post(f"{ledger}{tick.id}/change/", {"state": "failed"}).status_code == 403
    assert boss.post(f"{ledger}{tick.id}/delete/", {"post": "yes"}).status_code == 403
    assert Tick.objects.get().state == "dispatched"


def test_the_list_reads_no_more_for_many_triggers_than_for_one(boss: Client, trigger: Trigger) -> None:
    """F159: and counts nothing."""
    counts = []
    for more in (0, 20):
        for _ in range(more):
            trigger.pk = new_id()
            trigger._state.adding = True
            trigger.save()
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(LIST).status_code == 200
        assert not [one["sql"] for one in captured if "COUNT(" in one["sql"]]
        counts.append(len(captured))
    assert counts[0] == counts[1]
