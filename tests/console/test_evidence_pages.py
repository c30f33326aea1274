"""The evidence graph on its page: drawn, as a list, and with the schedule that made the run (O57, O59)."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import lanes
from pipelines.models import Application, Environment, Run, Tick
from recovery import backfills
from recovery.evidence_graph import KINDS, ORIGINS, evidence_graph
from tests.cast import Api, Hand, Person
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import runs_of, trigger_of, wish
from tests.recovery.stories import payroll_in_review
from tests.scheduled import MakeTrigger, run_pass, turn_back

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]


def test_a_rerun_is_drawn_with_links_words_and_states_and_listed_the_same(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    run = start_run("load", "publish")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    made = operator.post(f"/console/runs/{run.id}/rerun/", {"reason": "again"})
    target = Run.objects.get(recovered_from=run)
    assert made.headers["Location"] == f"/console/runs/{target.id}/"
    assert f'href="/console/runs/{target.id}/evidence/"' in operator.get(made.headers["Location"]).content.decode()
    for one in (run, target):
        page = operator.get(f"/console/runs/{one.id}/evidence/").content.decode()
        drawing = page.partition("<svg width=")[2].partition("</svg>")[0]
        shown = re.findall(r'class="badge" data-status="(\w+)"', drawing)
        assert shown[:3] == ["failed", "valid", "dispatched"], "column by column"
        assert set(shown[3:]) == {"recovery_allowed", "queued"}
        assert re.findall(r'text-anchor="end">([^<]+)<', drawing) == [
            "got the request",
            "wrote",
            "is the start of",
            "was judged",
            "made",
        ]
        assert "this run" in drawing
        told = unescape(text_of(operator.get(f"/console/runs/{one.id}/evidence/")))
        assert told.index("As a graph") < told.index("As a list")
        assert "style=" not in drawing


def test_a_run_of_which_nothing_was_asked_says_so_and_has_no_drawing(operator: Visitor, start_run: StartRun) -> None:
    page = operator.get(f"/console/runs/{start_run('load').id}/evidence/")
    assert "Nothing was asked for on this run" in text_of(page)
    assert "<svg width=" not in page.content.decode()


def test_a_tick_and_its_trigger_lead_to_the_run_that_they_made(
    operator: Visitor, make_trigger: MakeTrigger, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """O59: the drawing says where a scheduled run came from; the API too."""
    trigger = make_trigger(catch_up="latest", name="hourly")
    turn_back(trigger, hours=1)
    run_pass()
    run = Run.objects.get(trigger=trigger)
    answer = as_person(people["viewer"]).get(f"/v1/executions/{run.id}/evidence").json()
    assert [(node["kind"], node["status"]) for node in answer["nodes"]] == [
        ("trigger", "active"),
        ("tick", "dispatched"),
        ("source", "queued"),
    ]
    assert [edge["kind"] for edge in answer["edges"]] == ["was_due", "made"]
    page = operator.get(f"/console/runs/{run.id}/evidence/").content.decode()
    tick = Tick.objects.get(run=run.id)
    assert f'href="/console/triggers/{trigger.id}/ticks/{tick.id}/"' in page
    assert "was due at" in page


def test_a_backfill_stands_between_the_tick_and_its_run(
    operator: Visitor, people: dict[str, Person], environment: Environment, application: Application
) -> None:
    trigger = trigger_of(people["admin"].actor, environment, application)
    wanted = wish(trigger, "2026-05-20T00:00Z", "2026-05-20T23:00Z", reason="rates were missing")
    made = backfills.start(wanted, people["operator"].actor).backfill
    lanes.let_in([made.id])
    (run,) = runs_of(made.id)
    graph = evidence_graph(people["viewer"].actor, Run.objects.get(id=run.id))
    assert [node.kind for node in graph.nodes] == ["trigger", "tick", "backfill", "source"]
    assert [edge.kind for edge in graph.edges] == ["was_due", "filled_by", "made"]
    told = unescape(text_of(operator.get(f"/console/runs/{run.id}/evidence/")))
    assert "was filled by" in told
    assert "rates were missing" in told


def test_the_kinds_of_the_contract_stay(operator: Visitor) -> None:
    """Contract §3; what is added is named apart."""
    assert set(KINDS) == {"source", "checkpoint", "operation", "disposition", "approval", "target"}
    assert not set(KINDS) & set(ORIGINS)


def test_whatever_a_run_is_called_is_text(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    attack = '"><script>alert(1)</script>'
    run = start_run("load", name=attack)
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    operator.post(f"/console/runs/{run.id}/replay/", {"reason": attack})
    page = operator.get(f"/console/runs/{run.id}/evidence/").content.decode()
    assert "<svg width=" in page
    assert attack not in page


def test_a_page_costs_the_same_however_much_was_asked_for(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    few, many = payroll_in_review(start_run, hand).run, payroll_in_review(start_run, hand).run
    for _ in range(4):
        operator.post(f"/console/runs/{many.id}/replay/", {"reason": "look"})
    assert _queries(operator, few) == _queries(operator, many) <= 20


def _queries(visitor: Visitor, run: Any) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert visitor.get(f"/console/runs/{run.id}/evidence/").status_code == 200
    return len(captured)
