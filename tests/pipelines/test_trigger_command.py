"""`manage.py triggers`: looked at by whoever has a shell, switched in the name of a member who may release."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper

from pipelines import ledger, triggers
from pipelines.ids import new_id
from pipelines.management.tables import table, text_of
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
from tests.cast import Person
from tests.clock import Clock
from tests.factories import ApplicationFactory, PipelineFactory

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> tuple[str, str]:
    """What the command prints: for what was asked, and for the person at the terminal."""
    out, err = StringIO(), StringIO()
    call_command("triggers", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def refused(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return caught.value


@pytest.fixture
def pipeline(workspace: Workspace) -> Pipeline:
    return PipelineFactory(workspace=workspace, slug="fx-daily")


@pytest.fixture
def trigger(
    people: dict[str, Person], pipeline: Pipeline, environment: Environment, application: Application
) -> Trigger:
    return made(people["release_manager"], cron="0 * * * *", timezone="UTC")


def made(person: Person, **wanted: Any) -> Trigger:
    place = {"pipeline": "fx-daily", "environment": "development", "application": "billing"}
    return triggers.create(actor=person.actor, wanted={**place, **wanted})


@pytest.fixture
def foreign(outsider: Person, other_workspace: Workspace) -> Trigger:
    """One of the same name elsewhere."""
    PipelineFactory(workspace=other_workspace, slug="fx-daily")
    ApplicationFactory(workspace=other_workspace, name="billing")
    return made(outsider, cron="0 * * * *", timezone="UTC")


def test_all_triggers_are_listed_with_what_comes_next_and_what_was_missed(
    trigger: Trigger, foreign: Trigger, people: dict[str, Person], clock: Clock
) -> None:
    triggers.switch(trigger.id, actor=people["release_manager"].actor, enabled=False)
    clock.advance(hours=3)
    ledger.record()
    out, _ = run("list")
    first, second = [line for line in out.splitlines() if "fx-daily" in line]
    assert "acme" in first
    assert "globex" in second
    assert "skipped (paused)" in first
    assert first.split()[-2:] == ["3", "no"]
    assert second.split()[-1] == "yes"
    assert "minute" in first or "hour" in first
    only, _ = run("list", "--workspace", "globex")
    assert "acme" not in only
    assert "globex" in only
    assert not out.endswith("\n\n")
    assert "\x1b" not in out, "no colours where no terminal is"


def test_machines_get_what_the_api_answers(trigger: Trigger) -> None:
    out, err = run("list", "--json")
    (listed,) = json.loads(out)
    assert (listed["id"], listed["name"], len(listed["next_ticks"])) == (str(trigger.id), "fx-daily", 5)
    assert err == ""
    shown = json.loads(run("show", "fx-daily", "--json")[0])
    assert shown.pop("ticks") == []
    assert shown == listed


def test_where_there_are_none_it_says_how_to_make_one(workspace: Workspace) -> None:
    out, err = run("list")
    assert (out, "POST /v1/triggers" in err) == ("", True)
    assert run("list", "--json")[0] == "[]\n"


def test_one_is_shown_with_its_next_ticks_its_last_ones_and_what_was_missed(
    trigger: Trigger, people: dict[str, Person], clock: Clock
) -> None:
    """F103, F105: also how to fill what was missed."""
    triggers.change(trigger.id, actor=people["release_manager"].actor, changes={"catch_up": "latest"})
    triggers.switch(trigger.id, actor=people["release_manager"].actor, enabled=False)
    clock.advance(hours=12)
    ledger.record()
    out, _ = run("show", "fx-daily")
    lines = out.splitlines()
    assert lines[0] == f"fx-daily  {trigger.id}"
    assert "fx-daily in development for billing" in lines[1]
    assert any("off: what is told as next would be" in line for line in lines)
    assert out.count("skipped (paused)") == 10, "the last ten of twelve"
    assert "12 missed" in out
    first, last = (tick.at.isoformat() for tick in (Tick.objects.earliest("at"), Tick.objects.latest("at")))
    assert f"manage.py backfill {trigger.id} --from {first} --to {last}" in out
    assert not Run.objects.exists()


@pytest.mark.parametrize("by", ["id", "name"])
def test_it_is_switched_off_and_on_in_the_name_of_a_member(
    trigger: Trigger, people: dict[str, Person], by: str
) -> None:
    """F145: over the channel of commands, with the reason; what holds already changes nothing."""
    name, user = (str(trigger.id) if by == "id" else "fx-daily"), people["release_manager"].user.username
    _, err = run("disable", name, "--by", user, "--reason", "the bank moves")
    assert "fx-daily is switched off" in err
    trigger.refresh_from_db()
    assert not trigger.enabled
    _, err = run("disable", name, "--by", user)
    assert "was off already" in err
    out, err = run("enable", name, "--by", user, "--json")
    assert "fx-daily is switched on" in err
    assert json.loads(out)["enabled"] is True
    told = AuditEvent.objects.exclude(action="trigger.create").order_by("at", "id")
    assert list(told.values_list("action", "outcome", "channel", "actor", "reason")) == [
        ("trigger.disable", "allowed", "command", user, "the bank moves"),
        ("trigger.disable", "no_op", "command", user, ""),
        ("trigger.enable", "allowed", "command", user, ""),
    ]
    assert TriggerVersion.objects.count() == 3


@pytest.mark.parametrize("who", ["operator", "outsider", "nobody"])
def test_who_may_not_release_switches_nothing(
    trigger: Trigger, people: dict[str, Person], outsider: Person, who: str
) -> None:
    """Model §5: exit code 2, and the audit has it."""
    user = {"operator": people["operator"].user.username, "outsider": "olga"}.get(who, who)
    error = refused("disable", "fx-daily", "--by", user)
    assert error.returncode == 2
    assert Trigger.objects.get().enabled
    event = AuditEvent.objects.get(action="trigger.disable")
    assert (event.outcome, event.code, event.channel) == ("denied", "permission_denied", "command")


def test_a_name_that_nobody_has_or_several_have_is_refused(trigger: Trigger, foreign: Trigger) -> None:
    for unknown in ("nightly", str(new_id()), "'; --", "x" * 300):
        error = refused("show", unknown)
        assert (error.returncode, "there is no trigger" in str(error)) == (2, True)
    error = refused("show", "fx-daily")
    assert error.returncode == 2
    assert f"{trigger.id} (acme, development)" in str(error)
    assert f"{foreign.id} (globex, development)" in str(error)
    assert "acme" not in run("show", "fx-daily", "--workspace", "globex")[0]
    assert refused("show", "fx-daily", "--workspace", "nowhere").returncode == 2


@pytest.mark.parametrize(
    "arguments", [(), ("remove", "x"), ("show",), ("enable", "fx-daily"), ("list", "--workspace", "A B")]
)
def test_a_wrong_command_line_is_refused(db: None, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        run(*arguments)


def test_what_a_table_shows_is_never_read_as_markup_and_breaks_no_piped_line() -> None:
    out = OutputWrapper(StringIO())
    shown = text_of(out, table(("name", "schedule"), [("[bold]x[/bold]", "a" * 150)]))
    assert "[bold]x[/bold]" in shown
    assert "a" * 150 in shown
