"""Backfills of very many ticks, and what their counters say after everything went wrong."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from config.celery_settings import configuration
from pipelines import creation, lanes, triggers
from pipelines.access import Actor
from pipelines.models import Application, Environment, Run, Tick, Trigger
from pipelines.transitions import cancel_run
from recovery import backfill_work, backfills
from recovery.models import Backfill
from recovery.tasks import carry_on_backfills
from tests.cast import Hand, Person, stages_of
from tests.recovery.backfilled import assert_accounted_for, runs_of, states, trigger_of, wish
from tests.verbs import retry_stage

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["admin"].actor, environment, application, cron="* * * * *")


def test_five_thousand_ticks_are_all_accounted_for(trigger: Trigger, operator: Actor) -> None:
    """F104: more than any buffer holds. The request answers at once; the sweep makes what is left."""
    window = ("2026-05-01T00:00:00+00:00", "2026-05-04T11:19:00+00:00")
    done = backfills.start(wish(trigger, *window, max_ticks=5_000, max_concurrent=3), operator)
    assert (done.progress.total, done.status) == (5_000, "running")
    assert states(done.backfill.id) == {"pending": 5_000}
    while backfills.carry_on(seconds=1.0)["filled"]:
        pass
    assert states(done.backfill.id) == {"dispatched": 5_000}
    assert Run.objects.filter(lane_id=done.backfill.id).count() == 5_000
    assert Tick.objects.filter(trigger=trigger, state="dispatched", backfill=done.backfill.id).count() == 5_000
    found = backfills.progress(done.backfill)
    assert (found.active, found.held, found.pending) == (3, 4_997, 0)


def test_the_sweep_comes_by_every_second_where_no_handler_holds_it_up(tmp_path: Path) -> None:
    told = configuration("memory://", tmp_path)
    entry = told["beat_schedule"]["backfills"]
    assert (entry["schedule"], told["task_routes"][entry["task"]]) == (1.0, {"queue": "recourse.clock"})
    assert entry["task"] == carry_on_backfills.name
    assert carry_on_backfills() == {"filled": 0, "cancelled": 0, "completed": 0}


def test_large_inputs_are_not_all_carried_by_one_statement(
    trigger: Trigger, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of the largest inputs would be more than the server takes at once, for ever."""
    monkeypatch.setattr(creation, "MOST_CHARACTERS", 5_000)
    admin = people["admin"].actor
    triggers.change(trigger.id, actor=admin, changes={"input": {"a": "x" * 1_000}})
    with CaptureQueriesContext(connection) as asked:
        done = backfills.start(wish(trigger, "2026-05-01T00:00:00+00:00", "2026-05-01T00:09:00+00:00"), admin)
    assert states(done.backfill.id) == {"dispatched": 10}
    assert sum("INSERT INTO pipelines_run " in one["sql"] for one in asked) == 5, "two runs of one stage in each"


def test_how_far_it_is_costs_as_many_statements_however_many_ticks(trigger: Trigger, operator: Actor) -> None:
    """F115: one statement counts, whatever there is to count."""
    few = backfills.start(wish(trigger, "2026-05-01T00:00:00+00:00", "2026-05-01T00:01:00+00:00"), operator)
    many = backfills.start(wish(trigger, "2026-05-02T00:00:00+00:00", "2026-05-02T00:59:00+00:00"), operator)
    costs = []
    for done in (few, many):
        with CaptureQueriesContext(connection) as asked:
            backfills.progress(done.backfill)
        costs.append(len(asked))
    assert costs[0] == costs[1] <= 3


def test_after_chaos_the_counters_are_what_the_runs_are(trigger: Trigger, operator: Actor, hand: Hand) -> None:
    """F116: failures, retries, cancels and a cancelled backfill; what is told is what is there."""
    chance = random.Random(116)
    window = ("2026-05-01T00:00:00+00:00", "2026-05-01T01:19:00+00:00")
    done = backfills.start(wish(trigger, *window, max_concurrent=9), operator)
    for _ in range(12):
        for job in hand.pull(5):
            how = chance.choice(["succeeded", "failed", "left"])
            if how == "failed":
                hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
            elif how == "succeeded":
                hand.report(job)
        unfinished = Run.objects.filter(lane_id=done.backfill.id).exclude(
            status__in=["completed", "failed", "cancelled"]
        )
        cancel_run(chance.choice(list(unfinished)).id, actor=operator, reason="chaos")
        failed = Run.objects.filter(lane_id=done.backfill.id, status="failed").first()
        if failed is not None and chance.random() < 0.5:
            retry_stage(stages_of(failed)[0].id, actor=operator, reason="again")
        lanes.let_in()
        backfills.carry_on()
        assert_counters(done.backfill)
    backfills.cancel(done.backfill.id, operator)
    assert_counters(done.backfill)
    assert_accounted_for(trigger)


def test_whoever_looks_while_it_is_filled_and_cancelled_sees_counters_that_add_up(
    trigger: Trigger, operator: Actor
) -> None:
    """F152, F116: total = done + failed + cancelled + still to be made, in every look of somebody else, also between
    the steps; they are counted by one statement."""
    window = ("2026-05-01T00:00:00+00:00", "2026-05-01T19:59:00+00:00")
    done = backfills.start(wish(trigger, *window, max_ticks=1_200), operator)
    over = threading.Event()
    seen: list[dict[str, int]] = []

    def look() -> None:
        try:
            while not over.is_set():
                found = backfills.progress(done.backfill)
                seen.append(dict(found.ticks))
                assert found.total == found.dispatched + found.failed + found.ticks.get("cancelled", 0) + found.pending
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        while backfills.carry_on(seconds=0.1)["filled"]:
            pass
        backfills.cancel(done.backfill.id, operator)
        while backfills.carry_on(seconds=0.1)["cancelled"]:
            pass
        over.set()
        looking.result()
    assert {sum(counts.values()) for counts in seen} == {1_200}
    assert len({tuple(sorted(counts.items())) for counts in seen}) > 2, "it was looked at on the way"
    assert states(done.backfill.id) == {"dispatched": 1, "cancelled": 1_199}


def assert_counters(backfill: Backfill) -> None:
    """Counted once more, row by row."""
    found = backfills.progress(backfill)
    assert dict(found.ticks) == states(backfill.id)
    named = set(backfill.ticks.filter(state="dispatched").values_list("run", flat=True))
    stand = Counter("held" if run.held else run.status for run in runs_of(backfill.id) if run.id in named)
    assert dict(found.runs) == dict(stand)
    assert found.total == found.pending + found.held + found.active + found.ended
    assert found.total + found.skipped == backfill.ticks.count()


def test_a_workspace_with_many_holds_up_no_other(
    trigger: Trigger, operator: Actor, outsider: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F83: a pass of the sweep may end after the first; whose turn it is does not hang on who came first."""
    monkeypatch.setattr(backfills, "fill_up", lambda _: None)
    window = ("2026-05-01T00:00:00+00:00", "2026-05-01T00:09:00+00:00")
    for _ in range(5):
        backfills.start(wish(trigger, *window), operator)
    there = outsider.actor.workspace_id
    environment = Environment.objects.filter(workspace_id=there).earliest("rank")
    theirs = trigger_of(outsider.actor, environment, Application.objects.create(workspace_id=there, name="shop"))
    late = backfills.start(wish(theirs, "2026-05-01T00:00:00+00:00", "2026-05-05T23:00:00+00:00"), outsider.actor)
    monkeypatch.setattr(backfill_work, "BATCH", 1)
    while states(late.backfill.id) != {"dispatched": 5}:
        assert backfills.carry_on(seconds=0)["filled"]
    assert Run.objects.filter(trigger=trigger).count() < 45, "of fifty that came before"


def test_a_backfill_whose_inputs_cannot_be_made_fails_tick_by_tick_and_holds_up_no_other(
    trigger: Trigger, operator: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F107: whatever goes wrong with what it keeps."""
    monkeypatch.setattr(backfills, "fill_up", lambda _: None)
    window = ("2026-05-01T00:00:00+00:00", "2026-05-01T00:04:00+00:00")
    spoilt, good = (backfills.start(wish(trigger, *window), operator).backfill for _ in range(2))
    spoilt.request["made_with"]["input"] = "no object"
    spoilt.save(update_fields=["request"])
    backfill_work.carry_on()
    assert states(spoilt.id) == {"failed": 5}
    assert states(good.id) == {"dispatched": 5}
    assert Backfill.objects.get(id=spoilt.id).state == "completed_with_failures"
