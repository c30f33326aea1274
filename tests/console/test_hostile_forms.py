"""Whatever is typed into the screens of triggers, blackouts and backfills is answered; nothing of it is half done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import Any

import pytest
from django.urls import reverse

from pipelines.models import Application, Blackout, Environment, Run, Trigger
from recovery import backfills
from recovery.models import Backfill
from tests.cast import Person
from tests.console.conftest import Visitor
from tests.recovery.backfilled import trigger_of, wish

pytestmark = pytest.mark.django_db(transaction=True)

WINDOW = ("2026-05-20T08:00:00+00:00", "2026-05-22T08:00:00+00:00")
MIXED = (
    "a\x00b",
    "\ud800",
    "\x1b[31m",
    "\u202eabc",
    "9" * 400,
    "-1",
    "1e400",
    "٣",
    "NaN",
    "../../etc/passwd",
    "America/../UTC",
    "localtime",
    "0001-01-01",
    "9999-12-31",
    "9999-12-31T23:59:59.999999+00:00",
    "0001-01-01T00:00:00+14:00",
    "2026-02-30",
    "2026-05-20 24:00",
    "2026-05-20T08:00:00.123456Z",
    "* * * * *",
    "0 0 30 2 *",
    "{{tick_time}}",
    "[" * 5_000,
    '{"a": 1e999}',
    "'; DROP TABLE pipelines_trigger; --",
    "<script>alert(1)</script>",
)
EVERYWHERE = ("\x00", "x" * 70_000, "mixed")  # the same in each field in turn, or another in each
PLANNER: tuple[str, ...] = (
    "from",
    "to",
    "cron",
    "timezone",
    "gap",
    "overlap",
    "max_concurrent",
    "order",
    "reprocess",
    "month",
)
PLANNER += ("anchor", "pick", "cursor", "shown", "reason", "override_reason")
TRIGGER: tuple[str, ...] = (
    "name",
    "pipeline",
    "environment",
    "application",
    "cron",
    "timezone",
    "gap",
    "overlap",
    "overlap_policy",
)
TRIGGER += ("catch_up", "catch_up_limit", "start_within", "spread", "deadline_seconds", "starts_at", "ends_at")
TRIGGER += ("input", "reason", "look")
BLACKOUT: tuple[str, ...] = (
    "name",
    "kind",
    "where",
    "timezone",
    "days",
    "from_time",
    "to_time",
    "dates",
    "starts_at",
    "ends_at",
)
BLACKOUT += ("reason", "environment", "until", "override_reason")
GOOD_BLACKOUT = {
    "name": "n",
    "kind": "weekly",
    "timezone": "UTC",
    "days": "1",
    "from_time": "22:00",
    "to_time": "23:00",
}
LISTS = ("status", "reason", "cursor", "page_size", "trigger", "pipeline", "environment", "after", "before", "seen")


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["admin"].actor, environment, application)


@pytest.fixture
def backfill(trigger: Trigger, people: dict[str, Person]) -> Backfill:
    return backfills.start(wish(trigger, *WINDOW), people["operator"].actor).backfill


@pytest.fixture
def admin(browse: Callable[[Person], Visitor], people: dict[str, Person]) -> Visitor:
    visitor = browse(people["admin"])
    visitor.raise_request_exception = True
    return visitor


@pytest.mark.parametrize("value", EVERYWHERE, ids=("nul", "long", "mixed"))
def test_no_address_of_these_screens_fails(admin: Visitor, trigger: Trigger, backfill: Backfill, value: str) -> None:
    pages = (
        ("console:triggers", None, LISTS),
        ("console:trigger", trigger.id, LISTS),
        ("console:schedule-preview", None, TRIGGER),
        ("console:trigger-new", None, TRIGGER),
        ("console:blackouts", None, LISTS),
        ("console:freeze", None, BLACKOUT),
        ("console:backfills", None, LISTS),
        ("console:backfill", backfill.id, LISTS),
        ("console:backfill-ticks", backfill.id, LISTS),
        ("console:backfill-planner", trigger.id, PLANNER),
    )
    values = _values(value)
    for name, key, fields in pages:
        address = reverse(name, args=[key] if key else [])
        for field in fields:
            base = {"from": "2026-05-20", "to": "2026-05-21"} if name == "console:backfill-planner" else {}
            answer = _ask(admin.get, address, base | {field: next(values)})
            assert answer.status_code < 500, (name, field)


@pytest.mark.parametrize("value", EVERYWHERE, ids=("nul", "long", "mixed"))
def test_no_form_of_these_screens_fails(
    admin: Visitor, trigger: Trigger, backfill: Backfill, environment: Environment, application: Application, value: str
) -> None:
    """Typed errors, 400 and the like, with nothing half done: each field in turn beside good ones."""
    good_trigger = {
        "name": "n", "pipeline": "rates", "environment": environment.slug, "application": application.name,
        "cron": "0 8 * * *", "timezone": "UTC", "gap": "skip", "overlap": "first", "overlap_policy": "skip",
        "catch_up": "none", "catch_up_limit": "1", "start_within": "60", "spread": "0", "input": "{}",
    }  # fmt: skip
    planner = reverse("console:backfill-planner", args=[trigger.id])
    shown = re.search(
        r'name="shown" value="([^"]+)"', admin.get(planner, {"from": "2026-06-01", "to": "2026-06-02"}).text
    )
    assert shown
    window = {"from": "2026-06-01", "to": "2026-06-02", "shown": shown[1]}
    forms: tuple[tuple[str, Any, tuple[str, ...], dict[str, str]], ...] = (
        ("console:backfill-start", trigger.id, ("reason", "override_reason", *PLANNER), window),
        ("console:trigger-new", None, TRIGGER, good_trigger),
        ("console:trigger-change", trigger.id, TRIGGER, good_trigger),
        ("console:trigger-disable", trigger.id, ("reason",), {}),
        ("console:blackout-new", None, BLACKOUT, GOOD_BLACKOUT),
        (
            "console:blackout-new",
            None,
            BLACKOUT,
            {"name": "n", "kind": "dates", "timezone": "UTC", "dates": "2026-12-24"},
        ),
        (
            "console:blackout-new",
            None,
            BLACKOUT,
            {"name": "n", "kind": "period", "timezone": "UTC", "ends_at": "2027-01-01"},
        ),
        ("console:freeze", None, BLACKOUT, {"reason": "r"}),
        ("console:freeze-lift", None, BLACKOUT, {"reason": "r"}),
        ("console:backfill-pause", backfill.id, ("reason",), {}),
        ("console:backfill-resume", backfill.id, ("override_reason",), {}),
        ("console:backfill-pause", backfill.id, ("reason",), {}),
        ("console:backfill-resume", backfill.id, ("reason",), {}),
        ("console:backfill-cancel", backfill.id, ("reason",), {}),
    )
    values = _values(value)
    for name, key, fields, good in forms:
        address = reverse(name, args=[key] if key else [])
        for field in fields:
            answer = _ask(admin.post, address, good | {field: next(values)})
            assert answer.status_code < 500, (name, field)
    assert not Run.objects.exclude(lane_id__in=Backfill.objects.values("id")).exists()
    assert Backfill.objects.count() == 2, "of the planner's form only what is no window was otherwise at times"
    for row in Blackout.objects.all():
        assert "\x00" not in row.name + row.reason


def _values(value: str) -> Iterator[str]:
    return cycle(MIXED) if value == "mixed" else repeat(value)


def _ask(act: Any, address: str, data: dict[str, str]) -> Any:
    try:
        return act(address, data)
    except UnicodeEncodeError:  # what no browser can send
        return act(address, {name: text.encode("utf-8", "replace") for name, text in data.items()})
