"""From a due tick to its run: once, with the release and the settings in force, as the overlap policy lets it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from config.celery_settings import configuration
from pipelines import checkpoints, creation, dispatch, lanes, ledger, triggers
from pipelines.models import Blackout, Environment, Pipeline, QueueEntry, Release, Run, Stage, Tick, Trigger, Workspace
from pipelines.sql import execute
from pipelines.tasks import run_schedules
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds
from tests.scheduled import MakeTrigger, assert_ledger_holds, instants, release, run_pass, runs, set_to, states

pytestmark = pytest.mark.django_db
MORNING = "2026-05-20T08:00:10+00:00"


def hour_by_hour(clock: Clock, hours: int) -> None:
    for _ in range(hours):
        clock.advance(hours=1)
        run_pass()


# the run


def test_the_run_of_a_tick_has_its_input_its_keywords_and_its_origin(
    make_trigger: MakeTrigger, clock: Clock, hand: Hand
) -> None:
    """O49: it runs as any other, and is found by its tick and by its day."""
    set_to(clock, MORNING)
    trigger = make_trigger(
        "0 9 * * *",
        "Europe/London",
        input={"day": "{{local_date}}", "from": "{{interval_start}}"},
        deadline_seconds=600,
    )
    clock.advance(days=1)
    assert run_pass() == (1, 1)
    (run,) = runs(trigger)
    assert json.loads(run.input or "") == {"day": "2026-05-21", "from": "2026-05-20T08:00:00+00:00"}
    assert run.keywords == [
        {"key": "tick", "value": "2026-05-21T08:00:00+00:00"},
        {"key": "local_date", "value": "2026-05-21"},
    ]
    assert (run.trigger_id, run.lane_id, run.tick_at) == (trigger.id, trigger.id, datetime(2026, 5, 21, 8, tzinfo=UTC))
    assert run.deadline_at == run.created_at + timedelta(seconds=600)
    assert kinds(run) == ["run.create", "stage.make_ready"]
    assert hand.take().stage.run_id == run.id
    assert_ledger_holds()
    assert_invariants()


def test_the_release_that_is_in_force_when_it_is_dispatched_is_pinned(
    make_trigger: MakeTrigger, clock: Clock, people: dict[str, Person], environment: Environment
) -> None:
    set_to(clock, MORNING)
    trigger = make_trigger(overlap_policy="allow")
    hour_by_hour(clock, 1)
    stages = [{"name": "first", "handler": "Handler"}, {"name": "second", "handler": "Handler"}]
    clock.advance(hours=1)
    ledger.record()
    release(Pipeline.objects.get(), environment, people["admin"].actor, stages)
    run_pass()
    first, second = runs(trigger)
    assert first.release_id != second.release_id
    assert Release.objects.get(id=second.release_id).status == "active"
    assert [Stage.objects.filter(run=run).count() for run in (first, second)] == [1, 2]


def test_a_gate_before_the_first_stage_is_open_as_soon_as_the_run_is_made(
    make_trigger: MakeTrigger, clock: Clock
) -> None:
    set_to(clock, MORNING)
    gated = {"name": "first", "handler": "Handler", "approval": {"when": "before", "approver_role": "approver"}}
    trigger = make_trigger(stages=[gated])
    hour_by_hour(clock, 1)
    (run,) = runs(trigger)
    assert run.status == "waiting"
    assert not QueueEntry.objects.exists()
    assert_invariants()


# overlap


def test_with_allow_every_tick_has_its_run_beside_the_others(make_trigger: MakeTrigger, clock: Clock) -> None:
    set_to(clock, MORNING)
    trigger = make_trigger(overlap_policy="allow")
    hour_by_hour(clock, 3)
    assert states(trigger) == {"dispatched": 3}
    assert [run.held for run in runs(trigger)] == [False] * 3


def test_with_skip_a_tick_during_a_run_is_left_out_and_told(
    make_trigger: MakeTrigger, clock: Clock, hand: Hand
) -> None:
    """F101: never without a trace; and after the run has ended it is as before."""
    set_to(clock, MORNING)
    trigger = make_trigger()
    hour_by_hour(clock, 3)
    assert states(trigger) == {"dispatched": 1, "skipped(overlap)": 2}
    hand.finish()
    hour_by_hour(clock, 1)
    assert states(trigger) == {"dispatched": 2, "skipped(overlap)": 2}
    assert_ledger_holds()


def test_with_queue_one_a_long_run_leaves_one_waiting_and_two_in_the_ledger(
    make_trigger: MakeTrigger, clock: Clock, hand: Hand
) -> None:
    """F101: three ticks during one long run: one is queued, two are skipped with their reason."""
    set_to(clock, MORNING)
    trigger = make_trigger(overlap_policy="queue_one", deadline_seconds=3600)
    hour_by_hour(clock, 1)
    job = hand.take()
    hour_by_hour(clock, 3)
    assert states(trigger) == {"dispatched": 2, "skipped(overlap)": 2}
    long, waiting = runs(trigger)
    assert (long.held, waiting.held, waiting.status, waiting.deadline_at) == (False, True, "queued", None)
    assert hand.pull() == [], "nothing of the one that waits is handed out"
    hand.report(job)
    lanes.let_in([trigger.id])
    waiting.refresh_from_db()
    assert (waiting.held, waiting.deadline_at is not None) == (False, True)
    assert hand.take().run_id == waiting.id
    assert_ledger_holds()
    assert_invariants()


def test_with_queue_all_runs_come_one_by_one_in_the_order_of_their_ticks(
    make_trigger: MakeTrigger, clock: Clock, hand: Hand
) -> None:
    set_to(clock, MORNING)
    trigger = make_trigger(overlap_policy="queue_all", start_within=86_400)
    clock.advance(hours=4)
    run_pass()
    assert states(trigger) == {"dispatched": 4}
    assert [run.held for run in runs(trigger)] == [False, True, True, True]
    done = []
    while jobs := hand.pull(10):
        (job,) = jobs
        done.append(job.run_id)
        hand.report(job)
        lanes.let_in([trigger.id])
    assert done == [run.id for run in runs(trigger)]
    assert_ledger_holds()


def test_a_run_that_failed_or_was_cancelled_is_in_nobodys_way(
    make_trigger: MakeTrigger, clock: Clock, hand: Hand
) -> None:
    set_to(clock, MORNING)
    trigger = make_trigger()
    hour_by_hour(clock, 1)
    hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
    hour_by_hour(clock, 1)
    assert states(trigger) == {"dispatched": 2}


def test_the_overlap_policy_of_a_trigger_counts_its_own_live_runs_only(
    make_trigger: MakeTrigger, clock: Clock, start_run: Any
) -> None:
    """F87: neither another trigger of the pipeline nor an application's run of it."""
    set_to(clock, MORNING)
    one, two = make_trigger(name="one"), make_trigger(name="two")
    start_run(pipeline="nightly", input={})
    hour_by_hour(clock, 1)
    assert (states(one), states(two)) == ({"dispatched": 1}, {"dispatched": 1})


# what is not made


def test_a_tick_that_waits_for_its_start_is_skipped_when_its_trigger_is_switched_off(
    make_trigger: MakeTrigger, clock: Clock, people: dict[str, Person]
) -> None:
    set_to(clock, MORNING)
    trigger = make_trigger(spread=3_000)
    clock.advance(minutes=59, seconds=51)
    assert run_pass()[0] == 1
    if states(trigger) == {"due": 1}:
        triggers.switch(trigger.id, actor=people["admin"].actor, enabled=False)
    clock.advance(hours=1)
    run_pass()
    assert states(trigger) == {"skipped(paused)": 2}
    assert runs(trigger) == []


def test_a_freeze_that_was_declared_meanwhile_keeps_a_recorded_tick_from_starting(
    make_trigger: MakeTrigger, clock: Clock, workspace: Workspace
) -> None:
    """F117: the instant was free, the start is not."""
    set_to(clock, MORNING)
    trigger = make_trigger()
    clock.advance(hours=1)
    ledger.record()
    Blackout.objects.create(workspace=workspace, name="audit", kind="period", is_freeze=True, starts_at=clock.now())
    clock.advance(seconds=1)
    assert dispatch.dispatch_due() == 1
    assert states(trigger) == {"skipped(blackout)": 1}
    assert Tick.objects.get().detail == "audit"
    assert not Run.objects.exists()


def test_without_a_release_in_force_the_tick_fails_and_says_so(make_trigger: MakeTrigger, clock: Clock) -> None:
    set_to(clock, MORNING)
    trigger, other = make_trigger(), make_trigger(pipeline="other", name="other")
    Release.objects.filter(pipeline__slug="nightly").update(status="revoked")
    hour_by_hour(clock, 1)
    assert states(trigger) == {"failed": 1}
    tick = Tick.objects.get(trigger=trigger)
    assert (tick.error_code, tick.run) == ("release_not_active", None)
    assert "development" in tick.error_message
    assert states(other) == {"dispatched": 1}
    assert_ledger_holds()


def test_one_tick_that_cannot_be_made_spoils_no_other(
    make_trigger: MakeTrigger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours in one run of many: the others are made, the one says that it failed."""
    set_to(clock, MORNING)
    several = [make_trigger(name=f"t{number}") for number in range(4)]
    real = creation.insert_runs

    def insert(drafts: Any, **more: Any) -> None:
        real(drafts, **more)
        if any(draft.origin.trigger_id == several[2].id for draft in drafts):
            raise ValueError("one of these is not to be")

    monkeypatch.setattr(creation, "insert_runs", insert)
    hour_by_hour(clock, 1)
    assert [states(trigger) for trigger in several] == [
        {"dispatched": 1},
        {"dispatched": 1},
        {"failed": 1},
        {"dispatched": 1},
    ]
    assert Tick.objects.get(trigger=several[2]).error_code == "internal_error"
    assert_ledger_holds()
    assert_invariants()


def test_a_tick_whose_template_is_spoilt_fails_alone(make_trigger: MakeTrigger, clock: Clock) -> None:
    set_to(clock, MORNING)
    spoilt, good = make_trigger(name="spoilt"), make_trigger(name="good")
    Trigger.objects.filter(id=spoilt.id).update(input={"a": "{{nobody}}"})
    hour_by_hour(clock, 1)
    assert (states(spoilt), states(good)) == ({"failed": 1}, {"dispatched": 1})


def test_ticks_beyond_a_batch_are_decided_in_the_next(
    make_trigger: MakeTrigger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BATCH", 3)
    set_to(clock, MORNING)
    trigger = make_trigger(overlap_policy="queue_one", start_within=86_400)
    clock.advance(hours=7)
    assert run_pass() == (7, 7)
    assert states(trigger) == {"dispatched": 2, "skipped(overlap)": 5}
    assert instants(trigger, state="dispatched") == ["2026-05-20 09:00", "2026-05-20 10:00"]


def test_large_inputs_are_not_all_carried_by_one_statement(
    make_trigger: MakeTrigger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of the largest inputs would be more than the server takes at once."""
    monkeypatch.setattr(creation, "MOST_CHARACTERS", 5_000)
    carried: list[int] = []
    real = checkpoints.write_first

    def write_first(runs: Any) -> None:
        carried.append(len(runs))
        real(runs)

    monkeypatch.setattr(checkpoints, "write_first", write_first)
    set_to(clock, MORNING)
    for size in (10, 10, 2_000, 2_000, 9_000):
        make_trigger(name=str(size), input={"a": "x" * size})
    hour_by_hour(clock, 1)
    assert Tick.objects.filter(state="dispatched").count() == sum(carried) == 5
    assert 3 <= len(carried) <= 5
    assert min(carried) == 1, "the largest has a statement of its own"
    assert_ledger_holds()


def test_a_manual_run_at_the_instant_of_a_tick_is_no_run_of_the_tick(
    make_trigger: MakeTrigger, clock: Clock, start_run: Any
) -> None:
    """F87: two runs, and the tick knows its own."""
    set_to(clock, MORNING)
    trigger = make_trigger()
    clock.advance(hours=1)
    manual = start_run(pipeline="nightly", input={})
    run_pass()
    tick = Tick.objects.get()
    assert Run.objects.count() == 2
    assert tick.run not in (None, manual.id)
    assert [run.id for run in runs(trigger)] == [tick.run]


def test_schedules_are_looked_at_every_second_where_no_handler_holds_them_up(
    make_trigger: MakeTrigger, clock: Clock, tmp_path: Path
) -> None:
    """A lost message delays by a second; what is doubled finds nothing."""
    told = configuration("memory://", tmp_path)
    entry = told["beat_schedule"]["schedules"]
    assert (entry["schedule"], told["task_routes"][entry["task"]]) == (1.0, {"queue": "recourse.clock"})
    assert entry["task"] == run_schedules.name
    set_to(clock, MORNING)
    make_trigger()
    clock.advance(hours=1)
    assert [run_schedules(), run_schedules()] == [{"recorded": 1, "decided": 1}, {"recorded": 0, "decided": 0}]


def test_what_cannot_even_be_looked_at_holds_up_nobody_else(make_trigger: MakeTrigger, clock: Clock) -> None:
    """I18: the database fails whenever it is asked about one trigger's blackout. That trigger waits, and loses nothing;
    all others go on, recorded and dispatched."""
    set_to(clock, "2026-05-20T00:30Z")
    stuck, good = make_trigger(name="stuck", pipeline="one"), make_trigger(name="good", pipeline="two")
    blackout = Blackout.objects.create(
        workspace_id=stuck.workspace_id, trigger=stuck, name="b", kind="dates", dates=["2030-01-01"], timezone="UTC"
    )
    set_to(clock, "2026-05-20T01:00:01Z")
    ledger.record([stuck.id])
    Blackout.objects.filter(id=blackout.id).update(timezone="Mars/Base")
    execute(
        "CREATE OR REPLACE FUNCTION recourse_knows_zone(zone text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$"
        " BEGIN IF zone = 'Mars/Base' THEN RAISE 'a fault'; END IF; RETURN true; END $$"
    )
    ledger.record()
    dispatch.dispatch_due()
    assert states(good) == {"dispatched": 1}
    assert states(stuck) == {"due": 1}
    set_to(clock, "2026-05-20T02:00:01Z")
    run_pass()
    assert states(good) == {"dispatched": 1, "skipped(overlap)": 1}
    assert states(stuck) == {"due": 1}
    Blackout.objects.filter(id=blackout.id).update(timezone="UTC")
    clock.advance(61)
    run_pass()
    run_pass()
    assert sum(states(stuck).values()) == 2
    assert "due" not in states(stuck)
    assert Run.objects.filter(trigger=stuck).exists()
