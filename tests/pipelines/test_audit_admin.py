"""The audit in the admin site: read and exported, narrowed without counting, one workspace at a time."""

from __future__ import annotations

import csv
import io
import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines import audit, audit_admin, audit_chain
from pipelines.models import AuditEvent, Member, Role, Run, Workspace
from pipelines.sql import execute
from tests.cast import Person
from tests.pipelines.test_admin import StartRun, boss  # noqa: F401 - a fixture
from tests.pipelines.test_audit_chain import as_owner

LIST = "/admin/pipelines/auditevent/"


@pytest.fixture
def told(people: dict[str, Person], start_run: StartRun) -> Run:
    run = start_run("first", name="orders 2026-05-30")
    audit.record(people["operator"].actor, "run.cancel", audit.ALLOWED, run=run.id, reason="bad source file")
    audit.record(people["viewer"].actor, "stage.retry", audit.DENIED, run=run.id, code="permission_denied")
    audit.record(people["operator"].actor, "run.pause", audit.NO_OP, data={"bulk": str(uuid.uuid4())})
    return run


def shown(client: Client, **query: str) -> list[str]:
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [event.action for event in answer.context["cl"].result_list]


def test_events_are_told_with_their_run_and_how_the_chain_stands(boss: Client, told: Run) -> None:  # noqa: F811
    page = boss.get(LIST).content.decode()
    assert "operator-acme cancelled orders 2026-05-30 in development: bad source file" in page
    assert f'href="/console/runs/{told.id}/?workspace=acme"' in page
    assert "Nothing is sealed yet" in page
    audit_chain.seal()
    assert "up to event 3" in boss.get(LIST).content.decode()
    event = AuditEvent.objects.get(action="run.cancel")
    assert "position 1: holds" in boss.get(f"{LIST}{event.pk}/change/").content.decode()
    with as_owner():
        execute("DELETE FROM pipelines_audithead")
    assert "end was tampered with" in boss.get(LIST).content.decode()


def test_filters_narrow_the_list_together(boss: Client, told: Run) -> None:  # noqa: F811
    assert shown(boss) == ["run.pause", "stage.retry", "run.cancel"]
    assert shown(boss, outcome="denied") == ["stage.retry"]
    assert shown(boss, actor="operator-acme") == ["run.pause", "run.cancel"]
    assert shown(boss, actor="operator-acme", action="run.cancel") == ["run.cancel"]
    assert shown(boss, actor="operator-acme", outcome="denied") == []
    assert shown(boss, channel="api", outcome="allowed") == ["run.cancel"]
    assert shown(boss, actor="nobody\0") == shown(boss)


def test_dates_lead_to_a_day_without_counting(boss: Client, told: Run) -> None:  # noqa: F811
    """F159: year, month, day, by the calendar between the first event and the newest."""
    at = AuditEvent.objects.latest("at").at
    with as_owner():
        execute("UPDATE pipelines_auditevent SET at = at - interval '800 days' WHERE action = 'run.cancel'")
    year, old = f"{at:%Y}", at - timedelta(days=800)
    with CaptureQueriesContext(connection) as captured:
        page = boss.get(LIST).content.decode()
    assert not [one["sql"] for one in captured if "date_trunc" in one["sql"].lower()]
    assert f'href="?on={old:%Y}"' in page
    assert shown(boss, on=year) == ["run.pause", "stage.retry"]
    assert shown(boss, on=f"{old:%Y-%m}") == ["run.cancel"]
    assert f'href="?on={old:%Y-%m-%d}"' in boss.get(LIST, {"on": f"{old:%Y-%m}"}).content.decode()
    assert shown(boss, on=f"{at:%Y-%m-%d}") == ["run.pause", "stage.retry"]
    for nonsense in ("2026-13", "2026-02-31", "9999-12-31", "0000", "x"):
        assert boss.get(LIST, {"on": nonsense}).status_code == 200


def test_an_exact_id_is_found(boss: Client, told: Run) -> None:  # noqa: F811
    event = AuditEvent.objects.get(action="run.pause")
    assert shown(boss, q=str(event.pk)) == ["run.pause"]
    assert shown(boss, q=str(told.id)) == ["stage.retry", "run.cancel"]
    assert shown(boss, q=event.data["bulk"]) == ["run.pause"]
    assert shown(boss, q="no-such-request") == []
    assert shown(boss, q="\0") == shown(boss)


def test_a_list_ends_at_its_cap_and_says_so(
    boss: Client,  # noqa: F811
    told: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_admin, "CAP", 2)
    page = boss.get(LIST).content.decode()
    assert "These are the newest 2 that match" in page
    assert "run.cancel" not in [event.action for event in boss.get(LIST).context["cl"].result_list]


def test_one_workspace_is_shown_at_a_time(
    boss: Client,  # noqa: F811
    told: Run,
    people: dict[str, Person],
    outsider: Person,
    other_workspace: Workspace,
) -> None:
    """I16: of those that one is a member of, whatever the address says."""
    audit.record(outsider.actor, "environment.save", audit.ALLOWED)
    assert "environment.save" not in shown(boss)
    assert shown(boss, workspace="globex") == []
    Member.objects.create(workspace=other_workspace, user=people["admin"].user, role=Role.VIEWER)
    assert shown(boss, workspace="globex") == ["environment.save"]
    assert "environment.save" not in shown(boss)


def exported(answer: Any) -> str:
    assert answer.status_code == 200
    return b"".join(answer.streaming_content).decode()


def test_selected_events_are_exported_and_that_is_in_the_audit(boss: Client, told: Run) -> None:  # noqa: F811
    """F145: one event, over the channel `admin`, with how many were taken."""
    picked = AuditEvent.objects.exclude(action="run.pause")
    fields = {"action": "export_csv", "_selected_action": [str(event.pk) for event in picked]}
    rows = list(csv.DictReader(io.StringIO(exported(boss.post(LIST, fields)))))
    assert [row["action"] for row in rows] == ["run.cancel", "stage.retry"]
    lines = exported(boss.post(LIST, fields | {"action": "export_json_lines"})).splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["run.cancel", "stage.retry"]
    kept = AuditEvent.objects.filter(action="audit.export").order_by("at")
    assert [(one.channel, one.data["format"], one.data["filters"]) for one in kept] == [
        ("admin", form, {"selected": ["2"]}) for form in ("csv", "jsonl")
    ]


def test_what_is_not_ones_own_is_not_exported(boss: Client, told: Run, outsider: Person) -> None:  # noqa: F811
    audit.record(outsider.actor, "environment.save", audit.ALLOWED)
    foreign = AuditEvent.objects.get(action="environment.save")
    fields = {"action": "export_csv", "_selected_action": [str(foreign.pk)]}
    answer = boss.post(LIST, fields)
    assert "environment.save" not in (exported(answer) if answer.streaming else answer.content.decode())
