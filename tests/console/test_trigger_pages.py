"""Triggers on screens: the list, one with its ledger and history, the form, switching on and off."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import dispatch, ledger, triggers
from pipelines.models import Application, AuditEvent, Environment, Run, Tick, Trigger
from tests.cast import Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import pipeline_of, trigger_of

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]
ATTACK = '"><script>alert(1)</script>'


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    """Daily at 16:15 in Berlin."""
    settings = {"cron": "15 16 * * mon-fri", "timezone": "Europe/Berlin", "name": "fx-daily"}
    return trigger_of(people["admin"].actor, environment, application, **settings)


@pytest.fixture
def manager(browse: Browse, people: dict[str, Person]) -> Visitor:
    return browse(people["release_manager"])


def test_the_list_says_how_a_trigger_is_made_while_there_is_none(operator: Visitor, manager: Visitor) -> None:
    told = unescape(text_of(manager.get("/console/triggers/")))
    assert "No trigger yet" in told
    assert "/v1/triggers" in told
    assert '{"date": "{{local_date}}"}' in told
    page = operator.get("/console/triggers/")
    assert "may not make or change a trigger" in unescape(text_of(page)), "who may not make one is told so"
    assert 'href="/console/triggers/new/"' not in page.content.decode()


def test_each_row_says_what_comes_what_came_and_what_was_missed(
    operator: Visitor, trigger: Trigger, clock: Clock
) -> None:
    """O49, F103: beside what was missed stands the way to make up for just that."""
    clock.advance(days=10)
    ledger.record()
    told = unescape(text_of(operator.get("/console/triggers/")))
    assert "fx-daily" in told
    assert "Europe/ Berlin time" in told
    assert re.search(r"in \d+ (h|d|min)", told)
    assert "found too late" in told
    page = operator.get("/console/triggers/").content.decode()
    missed = list(Tick.objects.filter(trigger=trigger, run__isnull=True).order_by("at"))
    assert missed
    link = re.search(rf'href="(/console/triggers/{trigger.id}/backfill/\?from=[^"]+)"', page)
    assert link, "the planner opens at what was missed"
    planner = operator.get(unescape(link[1]))
    assert re.search(rf"{len(missed)} to run", text_of(planner))


def test_a_long_schedule_loses_its_zone_in_no_cut_and_the_next_time_names_the_zone_it_is_of(
    manager: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    """The zone stands in a part of its own, beside words that are cut by the window and not by their count."""
    cron = "0,5,10,15,20,25,30,40,50,55 6-22 1-7,15-21 jan,mar,may,jul,sep,nov mon-fri"
    settings = {"cron": cron, "timezone": "America/Argentina/ComodRivadavia", "name": "n" * 255}
    trigger_of(people["admin"].actor, environment, application, **settings)
    page = manager.get("/console/triggers/").content.decode()
    zone = "America/<wbr>Argentina/<wbr>ComodRivadavia"
    assert f'</span> <span class="sub below">{zone} time</span>' in page
    assert re.search(rf"</time> {zone}</span>", page), "the next time is of that zone, and says so"
    cell = re.search(r'title="([^"]+)"><span class="two-lines">([^<]+)<', page)
    assert cell
    title, when = cell.groups()
    assert f"{when}, America/Argentina/ComodRivadavia time" in title
    assert "…" not in when


def test_each_choice_of_a_setting_has_the_words_of_that_setting(
    manager: Visitor, people: dict[str, Person], trigger: Trigger
) -> None:
    """F105: what two settings call alike is told apart: a time left out is not a tick that meets an unfinished run."""
    actor = people["release_manager"].actor
    triggers.change(trigger.id, actor=actor, changes={"gap": "skip", "overlap_policy": "skip"})
    told = text_of(manager.get(f"/console/triggers/{trigger.id}/"))
    assert "A time left out not that day" in told
    assert "a tick is skipped, and counts as missed" in told
    form = manager.get(f"/console/triggers/{trigger.id}/change/").content.decode()
    for name, words in (("gap", "not that day"), ("overlap_policy", "is skipped, and counts as missed")):
        select = re.search(rf'<select id="{name}".*?</select>', form, re.S)
        assert select
        assert f'value="skip" selected>{words}<' in select[0]


def test_the_history_says_where_long_values_differ_as_json_and_in_the_words_of_the_page(
    manager: Visitor, people: dict[str, Person], trigger: Trigger
) -> None:
    for end in ("left", "right"):
        changes = {"input": {"k": "v" * 400 + end}, "start_within": 60 + len(end)}
        triggers.change(trigger.id, actor=people["release_manager"].actor, changes=changes, reason=end)
    told = unescape(text_of(manager.get(f"/console/triggers/{trigger.id}/")))
    assert 'Input : …vvvvvvvvvvvvvvvvvvvvleft"} → …vvvvvvvvvvvvvvvvvvvvright"}' in told
    assert "Late after : 64 s → 65 s" in told
    assert "{'k'" not in told, "no value is shown as Python writes it"


def test_the_list_costs_the_same_however_many_there_are(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application, trigger: Trigger
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get("/console/triggers/").status_code == 200
        return len(queries)

    count()
    few = count()
    for number in range(12):
        trigger_of(people["admin"].actor, environment, application, name=f"more-{number}")
    assert count() == few


def test_a_trigger_shows_its_next_ticks_with_the_rule_in_words(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application, clock: Clock
) -> None:
    """F90, F105: what becomes of a time that clocks leave out is said before it happens."""
    clock.advance((datetime(2027, 3, 27, 12, tzinfo=UTC) - clock.now()).total_seconds())
    one = trigger_of(
        people["admin"].actor, environment, application, cron="30 2 * * *", timezone="Europe/Berlin", name="nightly"
    )
    told = unescape(text_of(operator.get(f"/console/triggers/{one.id}/")))
    assert "02:30 does not exist on 2027-03-28" in told
    assert "At 02:30" in told


def test_the_ledger_is_filtered_paged_and_says_why(operator: Visitor, trigger: Trigger, clock: Clock) -> None:
    clock.advance(days=100)
    ledger.record()
    page = operator.get(f"/console/triggers/{trigger.id}/")
    assert "Missed: found too late" in text_of(page)
    assert 'rel="next"' in page.content.decode()
    none = operator.get(f"/console/triggers/{trigger.id}/", {"status": "failed"})
    assert "No tick matches" in text_of(none)
    assert operator.get(f"/console/triggers/{trigger.id}/", {"status": "sunny"}).status_code == 400


def test_a_run_of_a_tick_is_linked_from_the_ledger(operator: Visitor, trigger: Trigger, clock: Clock) -> None:
    assert trigger.next_at is not None
    clock.advance((trigger.next_at - clock.now()).total_seconds() + 5)
    ledger.record()
    dispatch.dispatch_due()
    run = Run.objects.get(trigger=trigger)
    page = operator.get(f"/console/triggers/{trigger.id}/").content.decode()
    assert f'href="/console/runs/{run.id}/"' in page


def test_a_trigger_is_switched_off_and_on_with_consequences_and_a_reason(
    manager: Visitor, operator: Visitor, trigger: Trigger, clock: Clock
) -> None:
    """F103: on again it fires nothing that it missed, and says so before."""
    address = f"/console/triggers/{trigger.id}"
    assert "its ticks go to the ledger as missed" in unescape(text_of(manager.get(f"{address}/disable/")))
    answer = manager.post(f"{address}/disable/", {"reason": "bank holiday"}, follow=True)
    assert "fx-daily is off." in text_of(answer)
    assert "None: " not in text_of(answer)
    assert "Next ticks, were it on" in text_of(answer)
    clock.advance(days=30)
    ledger.record()
    told = unescape(text_of(manager.get(f"{address}/enable/")))
    assert "that it missed; a backfill may fill them" in told
    manager.post(f"{address}/enable/", {"reason": "back"})
    dispatch.dispatch_due()
    assert not Run.objects.filter(trigger=trigger).exists(), "nothing false fires"
    told = unescape(text_of(manager.get(f"{address}/")))
    assert "Version 3 by release_manager-acme : back" in told
    assert "Enabled : off → on" in told
    actions = list(
        AuditEvent.objects.filter(action__startswith="trigger.").order_by("id").values_list("action", flat=True)
    )
    assert actions[-2:] == ["trigger.disable", "trigger.enable"]
    assert operator.get(f"{address}/disable/").status_code == 403
    assert operator.post(f"{address}/disable/", {"reason": "no"}).status_code == 403
    trigger.refresh_from_db()
    assert trigger.enabled


def test_a_trigger_is_made_with_the_form_and_its_mistakes_are_named_at_their_fields(
    manager: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    pipeline_of(people["admin"].actor, environment)
    page = manager.get("/console/triggers/new/")
    form = {
        "pipeline": "rates",
        "environment": environment.slug,
        "application": application.name,
        "cron": "0 0 30 2 *",
        "timezone": "Europe/Berlni",
        "gap": "first_existing",
        "overlap": "first",
        "overlap_policy": "skip",
        "catch_up": "none",
        "catch_up_limit": "many",
        "start_within": "60",
        "spread": "0",
        "input": "{",
    }
    assert page.status_code == 200
    wrong = manager.post("/console/triggers/new/", form)
    told = unescape(text_of(wrong))
    assert wrong.status_code == 400
    assert "A whole number." in told
    assert "Must be a JSON object." in told
    assert 'value="0 0 30 2 *"' in wrong.content.decode(), "what was typed stays"
    form |= {"catch_up_limit": "100", "input": '{"date": "{{local_date}}"}'}
    refused = manager.post("/console/triggers/new/", form)
    assert refused.status_code == 422
    assert re.search(r"never happens|There is no time zone", unescape(text_of(refused)))
    assert not Trigger.objects.exists()
    form |= {"cron": "15 16 * * mon-fri", "timezone": "Europe/Berlin"}
    looked = manager.post("/console/triggers/new/", form | {"look": "yes"})
    assert "At 16:15" in text_of(looked)
    assert not Trigger.objects.exists(), "looking saves nothing"
    manager.post("/console/triggers/new/", form | {"reason": "fixing of the day"})
    made = Trigger.objects.get()
    assert (made.name, made.cron, made.timezone) == ("rates", "15 16 * * mon-fri", "Europe/Berlin")
    assert made.input == {"date": "{{local_date}}"}


def test_a_change_sends_only_what_is_otherwise_and_is_kept_in_the_history(manager: Visitor, trigger: Trigger) -> None:
    address = f"/console/triggers/{trigger.id}/change/"
    page = manager.get(address)
    form = dict(re.findall(r'<input type="text" id="(\w+)" name="\w+" value="([^"]*)"', page.content.decode()))
    form |= {
        "gap": trigger.gap,
        "overlap": trigger.overlap,
        "overlap_policy": "skip",
        "catch_up": "none",
        "input": "{}",
    }
    same = manager.post(address, form, follow=True)
    assert "Nothing was otherwise." in text_of(same)
    manager.post(address, form | {"cron": "30 17 * * mon-fri", "reason": "later"})
    told = unescape(text_of(manager.get(f"/console/triggers/{trigger.id}/")))
    assert "Cron : 15 16 * * mon-fri → 30 17 * * mon-fri" in told
    trigger.refresh_from_db()
    assert (trigger.cron, trigger.version) == ("30 17 * * mon-fri", 2)


def test_the_preview_of_a_schedule_is_a_part_and_a_page(operator: Visitor) -> None:
    query = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    part = operator.part("/console/triggers/preview/", **query)
    assert b"<html" not in part.content
    assert "At 02:30" in text_of(part)
    wrong = operator.part("/console/triggers/preview/", cron="* * *", timezone="UTC")
    assert "five fields" in text_of(wrong)
    assert operator.get("/console/triggers/preview/", query).status_code == 200


def test_what_people_typed_is_shown_as_text(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    one = trigger_of(people["admin"].actor, environment, application, name=ATTACK, input={"note": ATTACK})
    triggers.change(one.id, actor=people["admin"].actor, changes={"spread": 5}, reason=ATTACK)
    for address in ("/console/triggers/", f"/console/triggers/{one.id}/", f"/console/triggers/{one.id}/backfill/"):
        page = operator.get(address)
        assert page.status_code == 200
        assert b"<script>alert" not in page.content


def test_another_workspaces_trigger_is_not_there(browse: Browse, outsider: Person, trigger: Trigger) -> None:
    """I16."""
    visitor = browse(outsider)
    for part in ("", "change/", "enable/", "disable/", "backfill/"):
        assert visitor.get(f"/console/triggers/{trigger.id}/{part}").status_code in (403, 404), part
    assert "No trigger yet" in text_of(visitor.get("/console/triggers/"))
