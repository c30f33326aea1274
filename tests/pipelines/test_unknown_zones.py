"""F117: a blackout in a zone that the database does not know closes, says so, and fails nobody; zones that differ are
told at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from config.checks import zones_agree
from pipelines import blackouts, dispatch, ledger, sweeps, zone_agreement, zones
from pipelines.blackouts import Active
from pipelines.errors import Refusal
from pipelines.models import Blackout, Run, Workspace
from pipelines.sql import execute
from tests.cast import Hand
from tests.clock import Clock
from tests.pipelines.blackout_nights import on_dates, weekly
from tests.scheduled import MakeTrigger

pytestmark = pytest.mark.django_db
NOWHERE = "Mars/Olympus"


@pytest.fixture(params=["weekly", "dates"])
def lost(request: Any, workspace: Workspace) -> Blackout:
    """A blackout whose zone the server has lost since it was made."""
    if request.param == "weekly":
        return weekly(workspace, "22:00-22:01", NOWHERE)
    return on_dates(workspace, "2020-01-01", zone=NOWHERE)


def test_claims_are_closed_and_none_fails(lost: Blackout, start_run: Callable[..., Run], hand: Hand) -> None:
    """Nothing starts, as nobody knows whether it may; what was changed to a zone that is known goes by its times."""
    run = start_run("first")
    assert hand.pull(5) == []
    sweeps.sweep()
    Blackout.objects.filter(id=lost.id).update(timezone="UTC", enabled=False)
    assert hand.take().run_id == run.id


def test_it_says_why_it_holds_and_that_it_does_not_end(lost: Blackout, workspace: Workspace) -> None:
    found = blackouts.active(workspace.id, None)
    assert found is not None
    assert (found.until, found.unknown_zone) == (None, NOWHERE)
    said = f"until its time zone {NOWHERE}, which the database does not know, is changed"
    assert found.sentence().endswith(said)
    assert Active.from_json(found.as_json()) == found
    assert blackouts.holding([lost.id]) == {lost.id}
    with pytest.raises(Refusal, match=NOWHERE):
        blackouts.require_open(workspace.id, None)


def test_a_tick_is_left_out_as_in_any_blackout(lost: Blackout, make_trigger: MakeTrigger, clock: Clock) -> None:
    """It is missed for a reason that is kept, and a backfill may fill it."""
    trigger = make_trigger(catch_up="latest")
    clock.advance(3600)
    ledger.record()
    dispatch.dispatch_due()
    assert set(trigger.ticks.values_list("state", "reason")) == {("skipped", "blackout")}
    assert not Run.objects.exists()


def test_a_period_asks_for_no_zone(workspace: Workspace) -> None:
    Blackout.objects.create(
        workspace=workspace, name="past", kind="period", timezone=NOWHERE, ends_at="2020-01-01T00:00Z"
    )
    assert blackouts.active(workspace.id, None) is None


def test_one_that_is_off_or_elsewhere_holds_nothing(lost: Blackout, other_workspace: Workspace, workspace: Any) -> None:
    assert blackouts.active(other_workspace.id, None) is None
    Blackout.objects.filter(id=lost.id).update(enabled=False)
    assert blackouts.active(workspace.id, None) is None


def test_zones_in_use_that_both_tell_alike_are_no_problem(workspace: Workspace, make_trigger: MakeTrigger) -> None:
    make_trigger("0 8 * * *", "Europe/Berlin")
    weekly(workspace, "22:00-06:00", "America/New_York")
    assert zones_agree(databases=["default"]) == []


def test_the_start_warns_of_a_zone_that_the_database_lacks(lost: Blackout) -> None:
    (message,) = zones_agree(databases=["default"])
    assert (message.id, message.is_serious()) == ("recourse.W020", False)
    assert (
        message.msg == f"the database does not know the time zone {NOWHERE}: a blackout of it holds until it is changed"
    )
    assert zones_agree(databases=[]) == []


def test_the_start_warns_of_a_zone_that_only_the_database_knows(workspace: Workspace) -> None:
    """Servers know names that the package leaves out, such as those of POSIX rules."""
    weekly(workspace, "22:00-06:00", "EST5EDT4,M3.2.0,M11.1.0")
    (message,) = zones_agree(databases=["default"])
    assert message.msg.startswith("tzdata does not know the time zone EST5EDT4")


def test_the_start_warns_of_clocks_that_differ_and_says_from_when(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a country changed its rules and only one of the two has heard of it."""
    weekly(workspace, "22:00-06:00", "Europe/Berlin")
    monkeypatch.setattr(zone_agreement.zones, "zone", lambda name, zone=zones.zone: zone("UTC"))
    (message,) = zones_agree(databases=["default"])
    assert message.msg.startswith("the database and tzdata tell Europe/Berlin apart from ")


def test_an_unmigrated_database_is_none_of_its_business() -> None:
    execute("ALTER TABLE pipelines_trigger RENAME TO pipelines_gone")
    assert zones_agree(databases=["default"]) == []
