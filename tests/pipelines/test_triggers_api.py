"""Triggers and their ledgers through `/v1`: made, read back, changed, switched, refused (contract §3, §4; O60)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import ledger
from pipelines.ids import new_id
from pipelines.models import (
    Application,
    AuditEvent,
    Environment,
    Pipeline,
    Run,
    Tick,
    Trigger,
    TriggerVersion,
    Workspace,
)
from tests.cast import Api, Person, unknown_id
from tests.clock import Clock
from tests.factories import ApplicationFactory, PipelineFactory

AsPerson = Callable[[Person], Api]
TRIGGERS = "/v1/triggers"
LEAST = {
    "pipeline": "fx-daily",
    "environment": "development",
    "application": "billing",
    "cron": "15 16 * * mon-fri",
    "timezone": "Europe/Berlin",
}


@pytest.fixture
def manager(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["release_manager"])


@pytest.fixture
def pipeline(workspace: Workspace, application: Application) -> Pipeline:
    return PipelineFactory(workspace=workspace, slug="fx-daily", name="Daily rates")


@pytest.fixture
def add(manager: Api, pipeline: Pipeline) -> Callable[..., dict[str, Any]]:
    def add_one(**more: Any) -> dict[str, Any]:
        answer = manager.post(TRIGGERS, {**LEAST, **more})
        assert answer.status_code == 201, answer.content
        made: dict[str, Any] = answer.json()
        return made

    return add_one


Add = Callable[..., dict[str, Any]]


def moments(view: dict[str, Any]) -> list[datetime]:
    return [datetime.fromisoformat(one["tick_time"]) for one in view["next_ticks"]]


def tick_of(trigger: str, at: datetime, state: str, **more: Any) -> Tick:
    """A row of the ledger, as the engine would write it."""
    reason = {"skipped": "catch-up"}.get(state, "")
    run = new_id() if state in ("due", "dispatched") else None
    told = {
        "cron": "0 * * * *",
        "timezone": "UTC",
        "gap": "first_existing",
        "overlap": "first",
        "rule": "fixed_time",
        "local_time": at.isoformat(),
        "version": 1,
        "start_at": at,
        "reason": reason,
        "run": run,
    }
    row: Tick = Tick.objects.create(trigger_id=trigger, at=at, state=state, **{**told, **more})
    return row


# made and read back


def test_a_trigger_is_made_and_read_back(manager: Api, add: Add, people: dict[str, Person]) -> None:
    """O60, F145: as sent, in plain words too, with what comes next; one audit event, one version."""
    body = {
        **LEAST,
        "name": "rates of the day",
        "gap": "skip",
        "overlap": "both",
        "input": {"day": "{{local_date}}", "nested": [{"of": "{{trigger}}"}], "number": 7},
        "overlap_policy": "queue_all",
        "catch_up": "all",
        "catch_up_limit": 7,
        "start_within": 3600,
        "spread": 120,
        "deadline_seconds": 900,
        "enabled": False,
        "starts_at": "2027-01-01T00:00:00+01:00",
        "ends_at": "2027-12-31T23:59:59+00:00",
    }
    made = add(**body, reason="asked for by treasury")
    assert {name: made[name] for name in body} == {**body, "starts_at": "2026-12-31T23:00:00+00:00"}
    assert made["description"].startswith("At 16:15 on Monday to Friday, Europe/Berlin time")
    assert (made["version"], made["missed"], made["missed_capped"], made["last_tick"]) == (1, 0, False, None)
    assert manager.get(f"{TRIGGERS}/{made['id']}").json() == made
    assert manager.get(TRIGGERS).json()["results"] == [made]
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.channel) == ("trigger.create", "allowed", "api")
    assert (event.actor, event.reason) == (people["release_manager"].user.username, "asked for by treasury")
    version = TriggerVersion.objects.get()
    assert (str(version.trigger_id), version.version, version.reason) == (made["id"], 1, "asked for by treasury")


def test_what_is_left_out_is_as_the_contract_says(add: Add) -> None:
    made = add()
    told = ("name", "gap", "overlap", "input", "overlap_policy", "catch_up", "enabled", "spread", "deadline_seconds")
    assert {name: made[name] for name in told} == {
        "name": "fx-daily",
        "gap": "first_existing",
        "overlap": "first",
        "input": {},
        "overlap_policy": "skip",
        "catch_up": "none",
        "enabled": True,
        "spread": 0,
        "deadline_seconds": None,
    }
    assert (made["starts_at"], made["ends_at"]) == (None, None)


def test_the_application_may_be_named_by_its_id(add: Add, application: Application) -> None:
    assert add(application=str(application.id))["application"] == "billing"


def test_two_triggers_of_one_pipeline_may_stand_side_by_side(add: Add) -> None:
    assert len({add()["id"], add()["id"]}) == 2


# what comes next


def test_the_next_five_ticks_are_told_in_local_time_with_the_rule_that_makes_them(add: Add) -> None:
    """F88, F105: 2027-03-14 has no 02:30 in New York."""
    made = add(cron="30 2 * 3 *", timezone="America/New_York", starts_at="2027-03-12T00:00:00-05:00")
    assert [(one["tick_time"], one["local_time"], one["rule"]) for one in made["next_ticks"]] == [
        ("2027-03-12T07:30:00+00:00", "2027-03-12T02:30:00-05:00", "fixed_time"),
        ("2027-03-13T07:30:00+00:00", "2027-03-13T02:30:00-05:00", "fixed_time"),
        ("2027-03-14T07:00:00+00:00", "2027-03-14T03:00:00-04:00", "gap_first_existing"),
        ("2027-03-15T06:30:00+00:00", "2027-03-15T02:30:00-04:00", "fixed_time"),
        ("2027-03-16T06:30:00+00:00", "2027-03-16T02:30:00-04:00", "fixed_time"),
    ]
    assert "does not exist" in made["next_ticks"][2]["says"]


def test_the_next_ticks_keep_within_start_and_end_and_both_ends_belong_to_it(add: Add) -> None:
    hourly = {"cron": "0 * * * *", "timezone": "UTC"}
    made = add(**hourly, starts_at="2030-01-01T08:00:00+00:00", ends_at="2030-01-01T10:00:00+00:00")
    assert moments(made) == [datetime(2030, 1, 1, hour, tzinfo=UTC) for hour in (8, 9, 10)]
    made = add(**hourly, starts_at="2030-01-01T08:00:01+00:00", ends_at="2030-01-01T09:59:59+00:00")
    assert moments(made) == [datetime(2030, 1, 1, 9, tzinfo=UTC)]
    assert add(**hourly, starts_at="2030-01-01T08:01:00+00:00", ends_at="2030-01-01T08:59:00+00:00")["next_ticks"] == []


def test_the_next_ticks_of_one_that_is_off_are_told_as_they_would_be(add: Add) -> None:
    made = add(cron="0 0 1 1 *", timezone="UTC", enabled=False)
    assert (made["enabled"], len(made["next_ticks"])) == (False, 5)


def test_a_blackout_that_holds_now_is_told(manager: Api, add: Add, workspace: Workspace) -> None:
    workspace.blackouts.create(name="year end", kind="period")
    assert manager.get(f"{TRIGGERS}/{add()['id']}").json()["blackout"] == "year end"


# what cannot be meant


WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    ({"cron": "0 0 30 2 *"}, 422, "cron_invalid", "cron"),
    ({"cron": ""}, 422, "cron_invalid", "cron"),
    ({"cron": "* * * *"}, 422, "cron_invalid", "cron"),
    ({"cron": "61 * * * *"}, 422, "cron_invalid", "cron"),
    ({"cron": "0 8 * * * *"}, 422, "cron_invalid", "cron"),
    ({"cron": "@daily"}, 422, "cron_invalid", "cron"),
    ({"cron": "0 8 * * \u0661"}, 422, "cron_invalid", "cron"),
    ({"cron": "0" * 201 + " 8 * * *"}, 422, "cron_invalid", "cron"),
    ({"cron": 5}, 400, "validation_error", "cron"),
    ({"timezone": "Europe/Berlln"}, 422, "timezone_invalid", "timezone"),
    ({"timezone": ""}, 422, "timezone_invalid", "timezone"),
    ({"timezone": "europe/berlin"}, 422, "timezone_invalid", "timezone"),
    ({"timezone": "../etc/passwd"}, 422, "timezone_invalid", "timezone"),
    ({"timezone": "+02:00"}, 422, "timezone_invalid", "timezone"),
    ({"timezone": 2}, 400, "validation_error", "timezone"),
    ({"name": ""}, 400, "validation_error", "name"),
    ({"name": "x" * 256}, 400, "validation_error", "name"),
    ({"name": "a\nb"}, 400, "validation_error", "name"),
    ({"gap": "never"}, 400, "validation_error", "gap"),
    ({"overlap": "third"}, 400, "validation_error", "overlap"),
    ({"overlap_policy": "queue"}, 400, "validation_error", "overlap_policy"),
    ({"overlap_policy": "SKIP"}, 400, "validation_error", "overlap_policy"),
    ({"catch_up": "some"}, 400, "validation_error", "catch_up"),
    ({"catch_up_limit": -1}, 400, "validation_error", "catch_up_limit"),
    ({"catch_up_limit": 1001}, 400, "validation_error", "catch_up_limit"),
    ({"start_within": 0}, 400, "validation_error", "start_within"),
    ({"start_within": 86_401}, 400, "validation_error", "start_within"),
    ({"start_within": "60"}, 400, "validation_error", "start_within"),
    ({"spread": -1}, 400, "validation_error", "spread"),
    ({"spread": 86_401}, 400, "validation_error", "spread"),
    ({"deadline_seconds": 0}, 400, "validation_error", "deadline_seconds"),
    ({"deadline_seconds": True}, 400, "validation_error", "deadline_seconds"),
    ({"enabled": "true"}, 400, "validation_error", "enabled"),
    ({"enabled": 1}, 400, "validation_error", "enabled"),
    ({"input": []}, 400, "validation_error", "input"),
    ({"input": "{{tick_time}}"}, 400, "validation_error", "input"),
    ({"input": {"a": "{{tomorrow}}"}}, 400, "validation_error", "input"),
    ({"input": {"a": "x" * 262_144}}, 400, "validation_error", "input"),
    ({"input": {"a": "\x00"}}, 400, "validation_error", "input"),
    ({"input": {"a": 2**53}}, 400, "validation_error", "input"),
    ({"starts_at": "2027-01-01T00:00:00"}, 400, "validation_error", "starts_at"),
    ({"ends_at": "tomorrow"}, 400, "validation_error", "ends_at"),
    ({"starts_at": "2027-01-02T00:00:00Z", "ends_at": "2027-01-01T00:00:00Z"}, 400, "validation_error", "ends_at"),
    ({"priority": 1}, 400, "validation_error", "priority"),
    ({"next_at": "2027-01-01T00:00:00Z"}, 400, "validation_error", "next_at"),
    ({"reason": "x" * 10_001}, 400, "validation_error", "reason"),
    ({"client_request_id": "4711"}, 400, "client_request_id_invalid", "client_request_id"),
]


@pytest.mark.parametrize(("change", "status", "code", "path"), WRONG, ids=[f"{n}-{w[3]}" for n, w in enumerate(WRONG)])
def test_what_cannot_be_meant_is_refused_at_its_field(
    manager: Api, add: Add, change: dict[str, Any], status: int, code: str, path: str
) -> None:
    """Made or changed: nothing is kept, and the audit says that it failed."""
    made = add()
    before = list(Trigger.objects.values())
    for answer in (manager.post(TRIGGERS, {**LEAST, **change}), manager.patch(f"{TRIGGERS}/{made['id']}", change)):
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.content
        assert path in answer.json()["errors"]
    assert list(Trigger.objects.values()) == before
    assert TriggerVersion.objects.count() == 1
    failed = AuditEvent.objects.filter(outcome="failed").order_by("at", "id")
    assert list(failed.values_list("action", "code")) == [("trigger.create", code), ("trigger.change", code)]


@pytest.mark.parametrize("field", sorted(LEAST))
def test_what_a_trigger_needs_is_asked_for_by_name(manager: Api, pipeline: Pipeline, field: str) -> None:
    answer = manager.post(TRIGGERS, {name: value for name, value in LEAST.items() if name != field})
    assert (answer.status_code, answer.json()["errors"]) == (400, {field: ["this field is required"]})
    assert not Trigger.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "status", "code"),
    [
        ("pipeline", "elsewhere", 400, "validation_error"),
        ("application", "elsewhere", 400, "validation_error"),
        ("application", "", 400, "validation_error"),
        ("environment", "elsewhere", 422, "environment_unknown"),
        ("environment", "no-such", 422, "environment_unknown"),
    ],
)
def test_what_belongs_to_another_workspace_is_as_unknown_as_none(
    manager: Api,
    pipeline: Pipeline,
    other_workspace: Workspace,
    field: str,
    value: str,
    status: int,
    code: str,
) -> None:
    """I16."""
    PipelineFactory(workspace=other_workspace, slug="elsewhere")
    ApplicationFactory(workspace=other_workspace, name="elsewhere")
    Environment.objects.create(workspace=other_workspace, slug="elsewhere", rank=9)
    answer = manager.post(TRIGGERS, {**LEAST, field: value})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.content
    assert field in answer.json()["errors"]
    assert not Trigger.objects.exists()


def test_another_workspaces_application_is_not_found_by_its_id(
    manager: Api, pipeline: Pipeline, other_workspace: Workspace
) -> None:
    """I16."""
    foreign = ApplicationFactory(workspace=other_workspace, name="elsewhere")
    answer = manager.post(TRIGGERS, {**LEAST, "application": str(foreign.id)})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["application"])


def test_another_workspaces_trigger_is_not_there(add: Add, outsider: Person, as_person: AsPerson) -> None:
    """I16: read, changed or asked for its ticks."""
    made, other = add(), as_person(outsider)
    for path in (f"{TRIGGERS}/{made['id']}", f"{TRIGGERS}/{made['id']}/ticks", f"{TRIGGERS}/{unknown_id()}"):
        assert other.get(path).status_code == 404
    assert other.patch(f"{TRIGGERS}/{made['id']}", {"enabled": False}).status_code == 404
    assert other.get(TRIGGERS).json()["results"] == []
    assert Trigger.objects.get().enabled


@pytest.mark.parametrize("role", ["viewer", "operator", "approver"])
def test_only_who_releases_makes_and_changes_triggers(
    add: Add, people: dict[str, Person], as_person: AsPerson, role: str
) -> None:
    """Model §5."""
    made, client = add(), as_person(people[role])
    assert client.post(TRIGGERS, LEAST).status_code == 403
    assert client.patch(f"{TRIGGERS}/{made['id']}", {"enabled": False}).status_code == 403
    assert client.get(f"{TRIGGERS}/{made['id']}").status_code == 200
    assert Trigger.objects.get().enabled
    denied = AuditEvent.objects.filter(outcome="denied").order_by("at", "id")
    assert list(denied.values_list("action", flat=True)) == ["trigger.create", "trigger.change"]


# changed


def test_a_trigger_is_changed_bit_by_bit(manager: Api, add: Add) -> None:
    """F145: only what is sent, from what to what, with its version; the same again changes nothing, and says so."""
    made = add(deadline_seconds=60)
    path = f"{TRIGGERS}/{made['id']}"
    changed = manager.patch(path, {"cron": "0 9 * * *", "spread": 30, "reason": "earlier"}).json()
    assert (changed["cron"], changed["spread"], changed["version"]) == ("0 9 * * *", 30, 2)
    same = set(made) - {"cron", "spread", "version", "description", "next_ticks", "updated_at"}
    assert {name: changed[name] for name in same} == {name: made[name] for name in same}
    assert moments(changed)[0].astimezone(UTC).hour in (7, 8)
    event = AuditEvent.objects.latest("at", "id")
    assert (event.action, event.outcome, event.reason) == ("trigger.change", "allowed", "earlier")
    assert event.before == {"cron": "15 16 * * mon-fri", "spread": 0}
    assert event.after == {"cron": "0 9 * * *", "spread": 30}
    assert list(TriggerVersion.objects.order_by("version").values_list("version", "reason")) == [
        (1, ""),
        (2, "earlier"),
    ]
    assert manager.patch(path, {"spread": 30}).json()["version"] == 2
    assert AuditEvent.objects.latest("at", "id").outcome == "no_op"
    assert TriggerVersion.objects.count() == 2


def test_null_takes_away_a_deadline_a_start_or_an_end_and_nothing_else(manager: Api, add: Add) -> None:
    told = {"deadline_seconds": 60, "starts_at": "2027-01-01T00:00:00+00:00", "ends_at": "2028-01-01T00:00:00+00:00"}
    made = add(**told)
    path = f"{TRIGGERS}/{made['id']}"
    assert {name: manager.patch(path, {"spread": 1}).json()[name] for name in told} == told
    changed = manager.patch(path, dict.fromkeys(told)).json()
    assert [changed[name] for name in told] == [None, None, None]
    assert manager.patch(path, {"name": None, "cron": None}).json()["cron"] == LEAST["cron"]


@pytest.mark.parametrize("field", ["pipeline", "environment", "application"])
def test_a_trigger_stays_what_it_was_made_for(manager: Api, add: Add, field: str) -> None:
    """It is of one pipeline in one place: another one is another trigger, and the refusal says so."""
    made = add()
    answer = manager.patch(f"{TRIGGERS}/{made['id']}", {field: "other"})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    assert Trigger.objects.get().version == 1


def test_it_is_switched_off_and_on_with_the_reason_in_the_audit(manager: Api, add: Add) -> None:
    made = add()
    path = f"{TRIGGERS}/{made['id']}"
    assert manager.patch(path, {"enabled": False, "reason": "the bank moves"}).json()["enabled"] is False
    assert manager.patch(path, {"enabled": True}).json()["enabled"] is True
    events = AuditEvent.objects.order_by("at", "id").values_list("action", "outcome", "reason")[1:]
    assert list(events) == [("trigger.disable", "allowed", "the bank moves"), ("trigger.enable", "allowed", "")]


def test_what_was_missed_while_it_was_off_is_told_and_nothing_of_it_fires(
    manager: Api, add: Add, clock: Clock, pipeline: Pipeline
) -> None:
    """F103: hourly, off for 30 days and on again."""
    made = add(cron="0 * * * *", timezone="UTC", enabled=False)
    clock.advance(days=30)
    told = manager.patch(f"{TRIGGERS}/{made['id']}", {"enabled": True}).json()
    assert (told["missed"], told["missed_capped"]) == (720, False)
    first, last = (datetime.fromisoformat(told[name]) for name in ("missed_from", "missed_to"))
    assert last - first == timedelta(hours=719)
    assert (told["last_tick"]["status"], told["last_tick"]["reason"]) == ("skipped", "paused")
    assert not Run.objects.exists()
    assert not Tick.objects.exclude(state="skipped").exists()


# lists


def test_triggers_are_listed_newest_first_and_filtered(
    manager: Api, add: Add, workspace: Workspace, environments: dict[str, Environment]
) -> None:
    PipelineFactory(workspace=workspace, slug="other")
    ApplicationFactory(workspace=workspace, name="shipping")
    add(name="a")
    add(name="b", pipeline="other", enabled=False)
    add(name="c", environment="staging", application="shipping")

    def found(query: str) -> list[str]:
        return [one["name"] for one in manager.get(f"{TRIGGERS}?{query}").json()["results"]]

    assert found("") == ["c", "b", "a"]
    assert found("pipeline=other") == ["b"]
    assert found("environment=staging&environment=production") == ["c"]
    assert found("application=billing") == ["b", "a"]
    assert found("enabled=true") == ["c", "a"]
    assert found("enabled=false") == ["b"]
    assert found("enabled=false&enabled=true") == ["c", "b", "a"]
    assert found("name=a&name=b") == ["b", "a"]
    assert found("pipeline=other&enabled=true") == []
    for wrong in ("enabled=yes", "enabled=1", "colour=red"):
        answer = manager.get(f"{TRIGGERS}?{wrong}")
        assert (answer.status_code, list(answer.json()["errors"])) == (400, [wrong.partition("=")[0]])


def test_a_page_of_triggers_costs_the_same_however_long_it_is(manager: Api, add: Add, clock: Clock) -> None:
    """Three triggers or two hundred, each with ticks behind it: the same statements, and none that counts a table."""
    made = add(cron="0 * * * *", timezone="UTC")
    row = Trigger.objects.get()
    costs = []
    for total in (3, 200):
        for _ in range(total - Trigger.objects.count()):
            row.pk = new_id()
            row._state.adding = True
            row.save()
            for hours in (1, 2, 3):
                tick_of(str(row.pk), datetime(2026, 1, 1, hours, tzinfo=UTC), "skipped")
        with CaptureQueriesContext(connection) as captured:
            listed = manager.get(f"{TRIGGERS}?page_size=200").json()["results"]
        assert len(listed) == total
        assert sum(one["missed"] for one in listed) == 3 * (total - 1)
        costs.append(len(captured))
    assert costs[0] == costs[1]
    assert made["id"] in {one["id"] for one in listed}


def test_a_long_outage_is_counted_no_further_than_the_bound(manager: Api, add: Add, clock: Clock) -> None:
    """F106: what no pass has recorded yet is missed too; nothing walks the schedule of years for it."""
    made = add(cron="* * * * *", timezone="UTC", start_within=60)
    clock.advance(hours=2)
    told = manager.get(f"{TRIGGERS}/{made['id']}").json()
    assert told["missed"] in (118, 119, 120), "what is not older than a minute is not too late yet"
    assert (told["missed_capped"], told["last_tick"]) == (False, None)
    clock.advance(days=3650)
    with CaptureQueriesContext(connection):
        told = manager.get(f"{TRIGGERS}/{made['id']}").json()
    assert (told["missed"], told["missed_capped"]) == (10_000, True)
    ledger.record()
    told = manager.get(f"{TRIGGERS}/{made['id']}").json()
    assert told["missed"] >= 9_998
    assert Tick.objects.count() == 10_000


# the ledger


def test_the_ledger_says_what_became_of_every_tick(manager: Api, add: Add) -> None:
    """Contract §3 and §4: in local time with the rule, and a run only where it was made."""
    made = add()
    at = datetime(2026, 3, 29, 1, tzinfo=UTC)
    berlin = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    gap = tick_of(
        made["id"], at, "dispatched", **berlin, rule="gap_first_existing", local_time="2026-03-29T03:00:00+02:00"
    )
    backfill = new_id()
    tick_of(made["id"], at + timedelta(days=1), "dispatched", backfill=backfill)
    due = tick_of(made["id"], at + timedelta(days=2), "due")
    tick_of(made["id"], at + timedelta(days=3), "skipped", reason="blackout", detail="year end")
    tick_of(made["id"], at + timedelta(days=4), "failed", error_code="release_not_active", error_message="none is")
    failed, skipped, waiting, filled, first = manager.get(f"{TRIGGERS}/{made['id']}/ticks").json()["results"]
    assert first == {
        "id": str(gap.id),
        "tick_time": "2026-03-29T01:00:00+00:00",
        "local_time": "2026-03-29T03:00:00+02:00",
        "rule": "gap_first_existing",
        "says": first["says"],
        "status": "dispatched",
        "reason": None,
        "detail": None,
        "execution_id": str(gap.run),
        "backfill_id": None,
        **berlin,
        "error": None,
        "recorded_at": first["recorded_at"],
        "decided_at": None,
    }
    assert "02:30 does not exist" in first["says"]
    assert filled["backfill_id"] == str(backfill)
    assert (waiting["status"], waiting["execution_id"]) == ("due", None), f"{due.run} is reserved and not there"
    assert (skipped["status"], skipped["reason"], skipped["detail"]) == ("skipped", "blackout", "year end")
    assert failed["error"] == {"code": "release_not_active", "message": "none is"}
    assert (failed["reason"], failed["execution_id"]) == (None, None)
    trigger = manager.get(f"{TRIGGERS}/{made['id']}").json()
    assert trigger["last_tick"] == failed
    assert trigger["missed"] == 2
    assert [trigger["missed_from"], trigger["missed_to"]] == [skipped["tick_time"], failed["tick_time"]]


def test_the_ledger_is_filtered_by_what_became_of_ticks_and_by_a_window(manager: Api, add: Add) -> None:
    """O53: both ends of the window belong to it."""
    made, other = add(), add()
    start = datetime(2026, 5, 20, 8, tzinfo=UTC)
    for day, state in enumerate(("dispatched", "skipped", "failed", "skipped")):
        tick_of(made["id"], start + timedelta(days=day), state, **({"reason": "overlap"} if day == 3 else {}))
    tick_of(other["id"], start, "dispatched")

    def days(query: str) -> list[int]:
        answer = manager.get(f"{TRIGGERS}/{made['id']}/ticks?{query}")
        assert answer.status_code == 200, answer.content
        return [int(one["tick_time"][8:10]) - 20 for one in answer.json()["results"]]

    assert days("") == [3, 2, 1, 0]
    assert days("status=skipped") == [3, 1]
    assert days("status=skipped&status=failed") == [3, 2, 1], "missed"
    assert days("reason=overlap") == [3]
    assert days(f"from_time={quote('2026-05-21T08:00:00+00:00')}&to_time=2026-05-22T08:00:00Z") == [2, 1]
    assert days(f"to_time={quote('2026-05-22T09:59:59+02:00')}") == [1, 0]
    for wrong in ("status=missed", "reason=rain", "from_time=2026-05-21", "to_time=2026-05-21T08:00:00", "colour=red"):
        answer = manager.get(f"{TRIGGERS}/{made['id']}/ticks?{wrong}")
        assert (answer.status_code, list(answer.json()["errors"])) == (400, [wrong.partition("=")[0]]), wrong


def test_a_long_ledger_is_read_page_by_page(manager: Api, add: Add) -> None:
    made = add()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for hour in range(7):
        tick_of(made["id"], start + timedelta(hours=hour), "skipped")
    seen, path, costs = [], f"{TRIGGERS}/{made['id']}/ticks?page_size=3", set()
    while path:
        with CaptureQueriesContext(connection) as captured:
            page = manager.get(path).json()
        costs.add(len(captured))
        seen += [datetime.fromisoformat(one["tick_time"]).hour for one in page["results"]]
        path = page["next"]
    assert seen == [6, 5, 4, 3, 2, 1, 0]
    assert len(costs) == 1
    assert manager.get(f"{TRIGGERS}/{made['id']}/ticks?cursor=x").status_code == 400


# again


def test_the_same_request_with_the_same_key_makes_one_trigger(manager: Api, pipeline: Pipeline) -> None:
    """F118: a trigger too many would start every run twice."""
    key = str(new_id())
    for headers, body in (({"Idempotency_Key": "nightly-1"}, LEAST), ({}, {**LEAST, "client_request_id": key})):
        first = manager.post(TRIGGERS, body, **headers)
        again = manager.post(TRIGGERS, body, **headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json()["id"] == first.json()["id"]
        other = manager.post(TRIGGERS, {**body, "cron": "0 8 * * *"}, **headers)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
        changed = manager.patch(f"{TRIGGERS}/{first.json()['id']}", {"spread": 5})
        assert manager.post(TRIGGERS, body, **headers).json() == changed.json(), "as it is by now"
    assert Trigger.objects.count() == 2
    assert TriggerVersion.objects.count() == 4
    told = AuditEvent.objects.filter(action="trigger.create").order_by("at", "id").values_list("outcome", "code")
    assert list(told) == [("allowed", ""), ("no_op", ""), ("failed", "idempotency_conflict"), ("no_op", "")] * 2
