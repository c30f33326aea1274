"""Blackouts and the freeze on screens: which hold, making and changing them, declaring and lifting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import blackout_rows
from pipelines.models import Application, AuditEvent, Blackout, Environment
from tests.cast import Person
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import trigger_of

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]


@pytest.fixture
def manager(browse: Browse, people: dict[str, Person]) -> Visitor:
    return browse(people["release_manager"])


def test_a_freeze_is_declared_with_its_consequences_and_lifted(
    manager: Visitor, operator: Visitor, environment: Environment
) -> None:
    """F117: who, why and since when stands above the list, and everybody may read it."""
    told = unescape(text_of(manager.get("/console/blackouts/freeze/")))
    assert "ticks of triggers; the ledger keeps them" in told
    assert "what has begun, to its end" in told
    silent = manager.post("/console/blackouts/freeze/", {"reason": ""})
    assert silent.status_code == 400
    assert not Blackout.objects.exists()
    manager.post("/console/blackouts/freeze/", {"reason": "year end close", "environment": environment.slug})
    held = Blackout.objects.get()
    assert (held.is_freeze, held.environment, held.reason) == (True, environment, "year end close")
    told = unescape(text_of(operator.get("/console/blackouts/")))
    assert f"A freeze holds in {environment.slug}" in told
    assert "release_manager-acme: year end close" in told
    assert "Holds now" in told
    again = manager.post(
        "/console/blackouts/freeze/", {"reason": "year end close", "environment": environment.slug}, follow=True
    )
    assert "It held already" in text_of(again)
    page = manager.get("/console/blackouts/lift/")
    assert f'value="{environment.slug}" selected' in page.content.decode(), "what is frozen is chosen already"
    manager.post("/console/blackouts/lift/", {"environment": environment.slug, "reason": "closed"})
    assert not blackout_rows.freezes(environment.workspace_id)
    assert "Over" in text_of(operator.get("/console/blackouts/"))
    assert manager.get("/console/blackouts/lift/").status_code == 409
    actions = list(AuditEvent.objects.order_by("id").values_list("action", "outcome"))
    assert ("freeze.declare", "allowed") in actions
    assert actions[-1] == ("freeze.lift", "allowed")


def test_the_list_costs_the_same_however_many_there_are(
    manager: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert manager.get("/console/blackouts/").status_code == 200
        return len(queries)

    actor = people["release_manager"].actor
    trigger = trigger_of(people["admin"].actor, environment, application)
    ways: list[dict[str, Any]] = [{}, {"environment": environment.slug}, {"trigger_id": trigger.id}]
    wanted = {"kind": "dates", "dates": [date(2027, 12, 25)]}
    for way in ways:
        blackout_rows.create(actor=actor, wanted={**wanted, "name": "the first"}, **way)
    count()
    few = count()
    for number in range(12):
        blackout_rows.create(actor=actor, wanted={**wanted, "name": f"more {number}"}, **ways[number % 3])
    assert count() == few


def test_who_may_not_declare_a_freeze_is_told_so_and_changes_nothing(operator: Visitor) -> None:
    page = operator.get("/console/blackouts/")
    assert "may not make blackouts, or declare a freeze" in unescape(text_of(page))
    assert operator.get("/console/blackouts/new/").status_code == 403
    assert operator.post("/console/blackouts/freeze/", {"reason": "no"}).status_code == 403
    assert not Blackout.objects.exists()


def test_a_weekly_blackout_is_made_and_changed_and_its_mistakes_are_named_at_their_fields(
    manager: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    trigger = trigger_of(people["admin"].actor, environment, application)
    form = {
        "name": "Night batch",
        "kind": "weekly",
        "timezone": "Europe/Berlni",
        "from_time": "22:00",
        "to_time": "06:00",
        "enabled": "yes",
    }
    wrong = manager.post("/console/blackouts/new/", form)
    assert wrong.status_code == 422
    assert "Europe/Berlin" in unescape(text_of(wrong)), "what was meant is offered"
    assert 'value="Night batch"' in wrong.content.decode()
    form |= {"timezone": "Europe/Berlin", "where": f"trigger:{trigger.id}"}
    wrong = manager.post("/console/blackouts/new/", form)
    assert "Is needed for the kind weekly" in text_of(wrong)
    assert f'value="trigger:{trigger.id}" selected' in wrong.content.decode(), "what was chosen stays"
    assert manager.post("/console/blackouts/new/", form | {"from_time": "25:00", "days": ["1"]}).status_code == 400
    assert not Blackout.objects.exists()
    manager.post("/console/blackouts/new/", form | {"days": ["1", "2", "3", "4", "5"]})
    made = Blackout.objects.get()
    assert made.trigger == trigger
    assert (made.days, made.from_time, made.to_time) == ([1, 2, 3, 4, 5], time(22), time(6))
    told = unescape(text_of(manager.get("/console/blackouts/")))
    assert "Monday to Friday, 22:00 to 06:00 the next day, Europe/Berlin time" in told
    page = manager.get(f"/console/blackouts/{made.id}/change/")
    assert 'value="Night batch"' in page.content.decode()
    manager.post(f"/console/blackouts/{made.id}/change/", form | {"days": ["6", "7"]} | {"enabled": ""})
    manager.post(
        f"/console/blackouts/{made.id}/change/", {k: v for k, v in form.items() if k != "enabled"} | {"days": "7"}
    )
    made.refresh_from_db()
    assert (made.days, made.enabled) == ([7], False)


def test_dates_and_periods_are_read_in_their_zone(manager: Visitor) -> None:
    days = {"name": "Christmas", "kind": "dates", "timezone": "Europe/Berlin", "enabled": "yes"}
    assert manager.post("/console/blackouts/new/", days | {"dates": "2026-12-24, tomorrow"}).status_code == 400
    manager.post("/console/blackouts/new/", days | {"dates": "2026-12-24, 2026-12-25\n2026-12-26"})
    assert Blackout.objects.get().dates == [date(2026, 12, 24), date(2026, 12, 25), date(2026, 12, 26)]
    period = {"name": "Move", "kind": "period", "timezone": "Europe/Berlin", "enabled": "yes"}
    manager.post("/console/blackouts/new/", period | {"starts_at": "2026-12-30 18:00", "ends_at": "2027-01-02"})
    made = Blackout.objects.get(name="Move")
    assert made.starts_at == datetime(2026, 12, 30, 17, tzinfo=UTC)
    assert made.ends_at == datetime(2027, 1, 1, 23, tzinfo=UTC)
