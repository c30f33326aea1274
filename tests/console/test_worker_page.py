"""Workers on screen, and lists that follow by themselves: who is alive, what they hold, how near its end a lease is."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import Application, Environment, Run, WorkerSession
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import trigger_of

pytestmark = pytest.mark.django_db

WORKERS = "/console/workers/"


def told(response: Any) -> str:
    return unescape(text_of(response))


def polled(response: Any, part: str) -> str:
    found = re.search(rf'id="{part}"[^>]* data-live hx-get="([^"]+)"', response.content.decode())
    assert found
    return unescape(found[1])


def test_a_worker_is_told_with_what_it_holds_and_when_the_first_of_its_leases_ends(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    for name in ("orders", "ledger"):
        start_run("load", name=name)
    jobs = hand.pull(2)
    page = told(operator.get(WORKERS))
    assert "1 alive" in page
    assert "orders: load" in page
    assert "ledger: load" in page
    assert re.search(r"the tightest lease ends in \d+ s", page)
    hand.report(jobs[0])
    assert "orders: load" not in told(operator.get(WORKERS)), "what has ended is not held"


def test_a_worker_that_says_nothing_is_silent_and_one_that_goes_is_draining_while_it_holds_something(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, new_hand: Callable[..., Hand], clock: Clock
) -> None:
    new_hand("hand-2", "OtherHandler")
    start_run("load")
    hand.take()
    WorkerSession.objects.filter(worker_name="hand-1").update(state="draining")
    page = told(operator.get(WORKERS))
    assert "Draining hand-1" in page
    assert "1 draining" in page, "the head counts it beside those that are alive"
    assert "Alive hand-2" in page
    clock.advance(seconds=3600)
    assert "Silent hand-2" in told(operator.get(WORKERS))
    assert "0 alive" in told(operator.get(WORKERS))


def test_the_list_is_narrowed_by_handler_and_says_so_when_nobody_has_it(
    operator: Visitor, hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    new_hand("hand-2", "OtherHandler")
    page = operator.get(WORKERS, {"handler": "OtherHandler"})
    assert "hand-2" in told(page)
    assert "hand-1" not in told(page)
    assert "None that match" in told(operator.get(WORKERS, {"handler": "Nobodys"}))


def test_the_list_costs_the_same_however_many_there_are_and_whatever_they_hold(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(WORKERS).status_code == 200
        return len(queries)

    start_run("load")
    hand.take()
    count()
    few = count()
    for number in range(6):
        start_run("load")
        new_hand(f"more-{number}", "Handler").take()
    assert count() == few


def test_workers_follow_by_themselves_and_cost_nothing_while_nothing_changes(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    address = WORKERS + polled(operator.get(WORKERS), "workers")
    assert operator.part(address).status_code == 204
    start_run("load", name="orders")
    hand.take()
    part = operator.part(address)
    assert "orders: load" in told(part)
    assert "<html" not in part.content.decode()


def test_triggers_follow_by_themselves_and_cost_nothing_while_nothing_changes(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    trigger_of(people["admin"].actor, environment, application, name="fx-daily")
    page = operator.get("/console/triggers/", {"enabled": "true"})
    address = "/console/triggers/" + polled(page, "triggers")
    assert "enabled=true" in address
    assert operator.part(address).status_code == 204
    trigger_of(people["admin"].actor, environment, application, name="another")
    part = operator.part(address)
    assert "another" in told(part)
    assert "<html" not in part.content.decode()


def test_the_zone_of_a_schedule_stands_beside_its_next_time_and_is_never_cut(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    """Also of the longest sentence and the longest name of a zone."""
    zone = "America/Argentina/ComodRivadavia"
    cron = "0,7,13,29,43 1-23/3 1,15,28 jan,mar,may mon-fri"
    one = trigger_of(people["admin"].actor, environment, application, cron=cron, timezone=zone)
    listed = told(operator.get("/console/triggers/")).replace("/ ", "/")  # where it may break
    assert re.search(rf"\d\d:\d\d {zone}", listed)
    assert f"{zone} time" in listed
    assert f"{zone} time" in told(operator.get(f"/console/triggers/{one.id}/"))
