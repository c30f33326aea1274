"""Making, changing and switching triggers: who may, what is refused, what is kept, and that nothing false fires."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from pipelines import ledger, triggers
from pipelines.errors import Refusal
from pipelines.models import (
    Application,
    AuditEvent,
    Environment,
    Lane,
    Pipeline,
    Tick,
    Trigger,
    TriggerVersion,
    Workspace,
)
from tests.cast import Person
from tests.clock import Clock
from tests.scheduled import MakeTrigger, expected, instants, run_pass, runs, set_to, states

pytestmark = pytest.mark.django_db
Change = Callable[..., Trigger]
Act = Callable[[], Any]


@pytest.fixture
def change(people: dict[str, Person]) -> Change:
    actor = people["release_manager"].actor
    return lambda trigger, **changes: triggers.change(trigger.id, actor=actor, changes=changes, reason="because")


def kept() -> tuple[Any, ...]:
    """All that a refusal must leave as it was."""
    return (
        list(Trigger.objects.order_by("id").values()),
        list(TriggerVersion.objects.order_by("id").values()),
        list(Tick.objects.order_by("id").values()),
        list(Lane.objects.order_by("id").values()),
    )


# making


def test_a_trigger_begins_with_the_first_tick_after_it_was_made(
    make_trigger: MakeTrigger, clock: Clock, people: dict[str, Person]
) -> None:
    """O49: nothing of before is due, also not what is due in this very second."""
    now = set_to(clock, "2026-05-20T08:00:00+00:00")
    trigger = make_trigger("0  8 * * *")
    assert trigger.name == "nightly"
    assert trigger.cron == "0 8 * * *"
    assert trigger.next_at == now + timedelta(days=1)
    assert (trigger.version, trigger.enabled, trigger.overlap_policy, trigger.catch_up) == (1, True, "skip", "none")
    assert run_pass() == (0, 0)
    assert Lane.objects.get(id=trigger.id).capacity is None
    version = TriggerVersion.objects.get()
    assert (version.version, version.actor) == (1, people["release_manager"].actor.name)
    assert version.settings == triggers.settings_of(trigger)
    event = AuditEvent.objects.get(action="trigger.create")
    assert (event.outcome, event.data["pipeline"], event.data["name"]) == ("allowed", "nightly", "nightly")


@pytest.mark.parametrize("policy", ["queue_one", "queue_all"])
def test_a_trigger_whose_runs_queue_has_a_lane_for_one(make_trigger: MakeTrigger, policy: str) -> None:
    lane = Lane.objects.get(id=make_trigger(overlap_policy=policy).id)
    assert (lane.capacity, lane.is_open, lane.is_background) == (1, True, False)


@pytest.mark.parametrize("role", ["viewer", "operator", "approver"])
def test_only_who_releases_may_make_and_change_triggers(
    make_trigger: MakeTrigger, people: dict[str, Person], role: str
) -> None:
    trigger, actor = make_trigger(), people[role].actor
    before = kept()
    place = {"pipeline": "nightly", "environment": "development", "application": "billing"}
    acts: list[Act] = [
        lambda: triggers.create(actor=actor, wanted={**place, "cron": "* * * * *", "timezone": "UTC"}),
        lambda: triggers.change(trigger.id, actor=actor, changes={"cron": "1 * * * *"}),
        lambda: triggers.switch(trigger.id, actor=actor, enabled=False),
    ]
    for act in acts:
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.code == "permission_denied"
    assert kept() == before
    assert AuditEvent.objects.filter(action__startswith="trigger.", outcome="denied").count() == 3


def test_another_workspaces_trigger_is_not_there(make_trigger: MakeTrigger, outsider: Person) -> None:
    """I16."""
    trigger = make_trigger()
    before = kept()
    acts: list[Act] = [
        lambda: triggers.change(trigger.id, actor=outsider.actor, changes={"cron": "1 * * * *"}),
        lambda: triggers.switch(trigger.id, actor=outsider.actor, enabled=False),
    ]
    for act in acts:
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.code == "not_found"
    assert kept() == before


def test_what_another_workspace_has_is_unknown_here(
    make_trigger: MakeTrigger, other_workspace: Workspace, people: dict[str, Person]
) -> None:
    """I16: its pipeline, environment and application, by name or by id."""
    make_trigger()
    Pipeline.objects.create(workspace=other_workspace, slug="theirs", name="theirs")
    Environment.objects.create(workspace=other_workspace, slug="theirs", rank=9)
    theirs = Application.objects.create(workspace=other_workspace, name="theirs")
    place = {"pipeline": "nightly", "environment": "development", "application": "billing"}
    for field, value, code in (
        ("pipeline", "theirs", "validation_error"),
        ("environment", "theirs", "environment_unknown"),
        ("application", "theirs", "validation_error"),
        ("application", str(theirs.id), "validation_error"),
    ):
        wanted = {**place, field: value, "cron": "* * * * *", "timezone": "UTC"}
        with pytest.raises(Refusal) as refused:
            triggers.create(actor=people["admin"].actor, wanted=wanted)
        assert (refused.value.code, list(refused.value.errors)) == (code, [field])
    assert Trigger.objects.count() == 1


NAIVE = datetime(2027, 1, 1)
WRONG: list[tuple[str, Any, str]] = [
    ("cron", "0 8 30 2 *", "cron_invalid"),
    ("cron", "0 8 * *", "cron_invalid"),
    ("cron", 5, "cron_invalid"),
    ("timezone", "Europe/Nowhere", "timezone_invalid"),
    ("timezone", "", "timezone_invalid"),
    ("timezone", 7, "timezone_invalid"),
    ("gap", "later", "validation_error"),
    ("gap", ["skip"], "validation_error"),
    ("overlap", None, "validation_error"),
    ("overlap_policy", "never", "validation_error"),
    ("overlap_policy", ["skip"], "validation_error"),
    ("catch_up", 1, "validation_error"),
    ("catch_up_limit", 1001, "validation_error"),
    ("catch_up_limit", -1, "validation_error"),
    ("catch_up_limit", True, "validation_error"),
    ("catch_up_limit", 1.5, "validation_error"),
    ("start_within", 0, "validation_error"),
    ("start_within", 86_401, "validation_error"),
    ("spread", 86_401, "validation_error"),
    ("spread", None, "validation_error"),
    ("deadline_seconds", 0, "validation_error"),
    ("deadline_seconds", "60", "validation_error"),
    ("input", [], "validation_error"),
    ("input", {"a": "{{nobody}}"}, "validation_error"),
    ("input", {"a": "x" * 300_000}, "validation_error"),
    ("name", " ", "validation_error"),
    ("name", "x" * 256, "validation_error"),
    ("name", "a\nb", "validation_error"),
    ("name", None, "validation_error"),
    ("enabled", "yes", "validation_error"),
    ("starts_at", NAIVE, "validation_error"),
    ("starts_at", "2027-01-01", "validation_error"),
    ("colour", "red", "validation_error"),
]


@pytest.mark.parametrize(("field", "value", "code"), WRONG)
def test_what_is_wrong_is_refused_by_its_field_and_changes_nothing(
    make_trigger: MakeTrigger, change: Change, clock: Clock, field: str, value: Any, code: str
) -> None:
    set_to(clock, "2026-05-20T08:00:00+00:00")
    trigger = make_trigger()
    clock.advance(hours=1)
    before = kept()
    acts: list[Act] = [
        lambda: make_trigger(**{"name": "another", field: value}),
        lambda: change(trigger, **{field: value}),
    ]
    for act in acts:
        with pytest.raises(Refusal) as refused:
            act()
        assert (refused.value.code, list(refused.value.errors)) == (code, [field])
        assert kept() == before
    assert AuditEvent.objects.filter(action__startswith="trigger.", outcome="failed").count() == 2


def test_an_end_must_be_after_the_beginning(make_trigger: MakeTrigger, change: Change) -> None:
    begin = datetime(2027, 1, 1, tzinfo=UTC)
    trigger = make_trigger(starts_at=begin)
    acts: list[Act] = [
        lambda: change(trigger, ends_at=begin),
        lambda: change(trigger, ends_at=begin.astimezone(timezone(timedelta(hours=3)))),
        lambda: make_trigger(starts_at=begin, ends_at=begin - timedelta(seconds=1)),
    ]
    for act in acts:
        with pytest.raises(Refusal) as refused:
            act()
        assert list(refused.value.errors) == ["ends_at"]


def test_a_trigger_stays_with_its_pipeline_environment_and_application(
    make_trigger: MakeTrigger, change: Change, workspace: Workspace
) -> None:
    trigger = make_trigger()
    make_trigger(pipeline="other", name="other")
    Application.objects.create(workspace=workspace, name="shipping")
    for field, value in (("pipeline", "other"), ("environment", "production"), ("application", "shipping")):
        with pytest.raises(Refusal, match="for good") as refused:
            change(trigger, **{field: value, "cron": "1 * * * *"})
        assert list(refused.value.errors) == [field]
    same = {"pipeline": "nightly", "environment": "development", "application": "billing"}
    assert change(trigger, **same).version == 1, "what it is already may be said"


# changing


def test_a_change_keeps_how_it_was_and_who_changed_it(
    make_trigger: MakeTrigger, change: Change, people: dict[str, Person]
) -> None:
    trigger = make_trigger(input={"a": 1})
    changed = change(trigger, cron="30 4 * * *", input={"a": 2}, name="  early ")
    assert (changed.version, changed.name, changed.cron) == (2, "early", "30 4 * * *")
    first, second = TriggerVersion.objects.order_by("version")
    assert (first.settings["cron"], second.settings["cron"]) == ("0 * * * *", "30 4 * * *")
    assert (second.actor, second.reason) == (people["release_manager"].actor.name, "because")
    event = AuditEvent.objects.get(action="trigger.change")
    assert event.before == {"name": "nightly", "cron": "0 * * * *", "input": {"a": 1}}
    assert event.after == {"name": "early", "cron": "30 4 * * *", "input": {"a": 2}}
    assert event.reason == "because"


def test_saying_what_holds_already_changes_nothing(
    make_trigger: MakeTrigger, change: Change, people: dict[str, Person]
) -> None:
    trigger = make_trigger(deadline_seconds=60)
    assert change(trigger, cron="0  *  * * *", deadline_seconds=60, enabled=True).version == 1
    assert triggers.switch(trigger.id, actor=people["admin"].actor, enabled=True).version == 1
    assert TriggerVersion.objects.count() == 1
    outcomes = AuditEvent.objects.filter(action__in=["trigger.change", "trigger.enable"])
    assert list(outcomes.values_list("outcome", flat=True)) == ["no_op", "no_op"]


def test_switching_is_told_as_what_it_is(make_trigger: MakeTrigger, people: dict[str, Person]) -> None:
    trigger, actor = make_trigger(), people["admin"].actor
    assert triggers.switch(trigger.id, actor=actor, enabled=False, reason="the bank moves").enabled is False
    assert triggers.switch(trigger.id, actor=actor, enabled=True).version == 3
    assert list(
        AuditEvent.objects.filter(data__id=str(trigger.id)).order_by("at").values_list("action", flat=True)
    ) == [
        "trigger.create",
        "trigger.disable",
        "trigger.enable",
    ]
    assert TriggerVersion.objects.get(version=2).reason == "the bank moves"


def test_another_overlap_policy_is_another_lane(make_trigger: MakeTrigger, change: Change) -> None:
    trigger = make_trigger(overlap_policy="queue_all")
    change(trigger, overlap_policy="allow")
    assert Lane.objects.get(id=trigger.id).capacity is None
    change(trigger, overlap_policy="queue_one")
    assert Lane.objects.get(id=trigger.id).capacity == 1


# nothing false fires


def test_another_cron_invents_no_past_tick_and_loses_none(
    make_trigger: MakeTrigger, change: Change, clock: Clock
) -> None:
    """What was due by the old expression until the change, and by the new one from then on."""
    set_to(clock, "2026-05-20T08:00:05+00:00")
    trigger = make_trigger("*/10 * * * *", start_within=86_400, overlap_policy="allow")
    clock.advance(minutes=25)  # 08:10 and 08:20 are due, and nobody has looked
    trigger = change(trigger, cron="5/10 * * * *")
    assert instants(trigger) == ["2026-05-20 08:10", "2026-05-20 08:20"]
    clock.advance(minutes=20)
    run_pass()
    assert instants(trigger) == [f"2026-05-20 08:{minute}" for minute in (10, 20, 35, 45)], "08:15 and 08:25 never were"
    assert states(trigger) == {"dispatched": 4}
    assert set(Tick.objects.values_list("cron", "version")) == {("*/10 * * * *", 1), ("5/10 * * * *", 2)}


def test_another_zone_moves_no_tick_that_was(make_trigger: MakeTrigger, change: Change, clock: Clock) -> None:
    """F99: 08:00 in Berlin has been; 08:00 in New York is still to come. Back again, Berlin's is tomorrow's."""
    set_to(clock, "2026-05-20T05:00:00+00:00")
    trigger = make_trigger("0 8 * * *", "Europe/Berlin", start_within=86_400, overlap_policy="allow")
    clock.advance(hours=2)
    trigger = change(trigger, timezone="America/New_York")
    assert trigger.next_at == datetime(2026, 5, 20, 12, tzinfo=UTC)
    clock.advance(hours=6)
    run_pass()
    trigger = change(trigger, timezone="Europe/Berlin")
    assert trigger.next_at == datetime(2026, 5, 21, 6, tzinfo=UTC)
    run_pass()
    assert instants(trigger) == ["2026-05-20 06:00", "2026-05-20 12:00"]
    assert [tick.local_time for tick in Tick.objects.order_by("at")] == [
        "2026-05-20T08:00:00+02:00",
        "2026-05-20T08:00:00-04:00",
    ]
    assert len(runs(trigger)) == 2


def test_a_month_of_edits_switches_and_outages_fires_just_what_the_oracle_says(
    make_trigger: MakeTrigger, change: Change, clock: Clock
) -> None:
    """Edit the cron, change the zone, switch it off for a month and on again: due while it was on, paused while off."""
    set_to(clock, "2026-02-20T08:00:30+00:00")
    trigger = make_trigger("15 */4 * * *", "Europe/Berlin", start_within=86_400, overlap_policy="allow")
    began = clock.now()
    due: list[datetime] = []
    paused: list[datetime] = []
    steps: list[tuple[dict[str, Any], float]] = [
        ({"cron": "30 2 * * *"}, 20),
        ({"timezone": "America/New_York"}, 20),
        ({"enabled": False}, 10),
        ({"cron": "0 * * * *"}, 700),
        ({"enabled": True}, 5),
        ({"timezone": "Australia/Lord_Howe"}, 18),
        ({"cron": "*/45 * * * *"}, 20),
        ({}, 3),
    ]
    for number, (changes, hours) in enumerate(steps):
        if changes:
            before, trigger = trigger, change(trigger, **changes)
        else:
            before = trigger
        now = trigger.updated_at if changes else clock.now()
        (due if before.enabled else paused).extend(expected(before, began, now))
        began = now
        clock.advance(hours=hours)
        if number % 2:
            run_pass()
    run_pass()
    due += expected(trigger, began, clock.now())
    assert len(paused) > 690
    found: dict[datetime, str] = dict(Tick.objects.values_list("at", "state"))
    assert sorted(found) == sorted(due + paused)
    assert {at for at, state in found.items() if state == "dispatched"} == set(due)
    assert states(trigger) == {"dispatched": len(due), "skipped(paused)": len(paused)}
    assert [run.tick_at for run in runs(trigger)] == due


def test_who_records_and_who_changes_at_once_lose_nothing(
    make_trigger: MakeTrigger, change: Change, clock: Clock
) -> None:
    """A pass that looked before a change, and comes after it, finds what the change left."""
    set_to(clock, "2026-05-20T08:00:30+00:00")
    trigger = make_trigger("* * * * *", start_within=86_400, overlap_policy="allow")
    clock.advance(minutes=5)
    change(trigger, spread=1)
    assert ledger.record([trigger.id]) == 0
    assert Tick.objects.count() == 5
    clock.advance(minutes=1)
    assert ledger.record([trigger.id]) == 1
    assert set(Tick.objects.values_list("version", flat=True)) == {1, 2}
