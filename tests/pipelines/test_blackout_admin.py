"""Blackouts in the admin site: read by members, switched off and on by who may release; freezes are not changed."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from pipelines.models import AuditEvent, Blackout, Workspace
from tests.cast import Person
from tests.pipelines.blackout_nights import period, weekly

pytestmark = pytest.mark.django_db

LIST = "/admin/pipelines/blackout/"


def staff(person: Person) -> Client:
    person.user.is_staff = person.user.is_superuser = True
    person.user.save()
    client = Client()
    client.force_login(person.user)
    return client


def change(client: Client, row: Blackout, **form: Any) -> int:
    return client.post(f"{LIST}{row.id}/change/", form).status_code


def test_who_may_release_switches_one_off_and_on(workspace: Workspace, people: dict[str, Person]) -> None:
    boss, row = staff(people["release_manager"]), weekly(workspace, "22:00-06:00")
    assert b"nights" in boss.get(LIST).content
    assert change(boss, row) == 302
    assert not Blackout.objects.get().enabled
    assert change(boss, row, enabled="on", name="another", days="1") == 302
    row.refresh_from_db()
    assert (row.enabled, row.name, len(row.days)) == (True, "nights", 7)
    events = AuditEvent.objects.filter(action="blackout.save").order_by("at", "id")
    assert [(one.channel, one.before, one.after) for one in events] == [
        ("admin", {"enabled": True}, {"enabled": False}),
        ("admin", {"enabled": False}, {"enabled": True}),
    ]


def test_others_look_and_a_freeze_is_only_looked_at(
    workspace: Workspace, people: dict[str, Person], outsider: Person
) -> None:
    row = weekly(workspace, "22:00-06:00")
    frozen = period(workspace, "2020-01-01T00:00:00", None, is_freeze=True)
    viewer = staff(people["viewer"])
    assert viewer.get(f"{LIST}{row.id}/change/").status_code == 200
    assert change(viewer, row) == 403
    assert change(staff(people["admin"]), frozen) == 403
    foreign = staff(outsider)
    assert b"nights" not in foreign.get(LIST).content
    assert change(foreign, row) == 302  # to the start, as for what is not there
    assert foreign.get(f"{LIST}add/").status_code == 403
    assert Blackout.objects.filter(enabled=True).count() == 2
