"""Lanes: how many of their runs are in at once, who is next, and what people and time do to those that are held."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import dispatch, lanes, ledger, sweeps
from pipelines.models import Blackout, Checkpoint, Event, Gate, Lane, QueueEntry, Run, Trigger
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.laned import hold, inside, open_lane, waiting
from tests.pipelines.engine import kinds, states, status
from tests.scheduled import MakeTrigger
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

AtCommit = Callable[..., AbstractContextManager[Any]]
TWO = ({"name": "first", "handler": "Handler"}, {"name": "second", "handler": "Handler"})


@pytest.fixture
def at_commit(django_capture_on_commit_callbacks: AtCommit) -> AtCommit:
    """What follows a commit follows the block, though the test's transaction is rolled back."""
    return django_capture_on_commit_callbacks


@pytest.fixture
def trigger(make_trigger: MakeTrigger) -> Trigger:
    return make_trigger(stages=TWO)


def test_a_held_run_is_whole_and_begins_nothing(trigger: Trigger, hand: Hand, clock: Clock) -> None:
    """O55: it is queued, all its stages are pending, and no claim and no sweep finds it."""
    lane = open_lane(trigger, 0)
    (run,) = hold(trigger, lane, 1, deadline_seconds=60)
    assert (run.status, run.held, run.deadline_at, run.deadline_seconds) == ("queued", True, None, 60)
    assert (run.trigger_id, run.lane_id, run.lane_rank) == (trigger.id, lane, 0)
    assert states(run) == {"first": "pending", "second": "pending"}
    assert kinds(run) == ["run.create"]
    assert Checkpoint.objects.filter(run=run).count() == 1
    clock.advance(3600)
    sweeps.sweep()
    assert hand.pull(10) == []
    assert not QueueEntry.objects.exists()
    assert (status(run), Run.objects.get(id=run.id).held) == ("queued", True)
    assert_invariants()


def test_so_many_are_let_in_as_the_lane_takes_and_in_order_of_rank(trigger: Trigger) -> None:
    """O55, F81: never more, however often it is asked for."""
    lane = open_lane(trigger, 3)
    hold(trigger, lane, 4, first=10)
    hold(trigger, lane, 2)
    assert lanes.let_in([lane]) == 3
    assert inside(lane) == [0, 1, 10]
    assert (lanes.let_in([lane]), lanes.let_in()) == (0, 0)
    assert waiting(lane) == [11, 12, 13]
    assert_invariants()


def test_a_lane_without_a_limit_lets_in_all(trigger: Trigger, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several transactions, when there are many."""
    monkeypatch.setattr(lanes, "BATCH", 2)
    lane = open_lane(trigger, None)
    hold(trigger, lane, 5)
    assert lanes.let_in() == 5
    assert waiting(lane) == []


def test_letting_in_is_told_and_the_deadline_runs_from_then(trigger: Trigger, clock: Clock) -> None:
    """Model §2: of a run held by a backfill the deadline counts from when it is let in."""
    lane = open_lane(trigger, 1)
    first, second = hold(trigger, lane, 2, deadline_seconds=60)
    clock.advance(1000)
    lanes.let_in([lane])
    first.refresh_from_db()
    assert first.deadline_seconds is None
    assert (first.deadline_at - clock.now()).total_seconds() == pytest.approx(60, abs=5)  # type: ignore[operator]
    assert kinds(first) == ["run.create", "run.let_in", "stage.make_ready"]
    clock.advance(61)
    sweeps.sweep()
    assert (status(first), status(second)) == ("failed", "queued")
    second.refresh_from_db()
    assert not second.held, "its place was free as soon as the first had ended"
    assert_invariants()


@pytest.mark.parametrize("ending", ["success", "failure", "cancel", "skip", "deadline"])
def test_the_next_is_let_in_at_once_when_a_run_ends(
    ending: str, trigger: Trigger, hand: Hand, people: dict[str, Person], clock: Clock, at_commit: AtCommit
) -> None:
    """O55: by whatever it ends, without waiting for the sweep to look at the lane."""
    lane = open_lane(trigger, 1)
    first, _, _ = hold(trigger, lane, 3, deadline_seconds=60)
    lanes.let_in([lane])
    operator = people["operator"].actor
    end: dict[str, Callable[[], Any]] = {
        "success": hand.finish,
        "failure": lambda: hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED"),
        "cancel": lambda: cancel_run(first.id, actor=operator),
        "skip": lambda: [
            skip_stage(stage.id, actor=operator, reason="no") for stage in first.stages.order_by("position")
        ],
        "deadline": sweeps.enforce_deadlines,
    }
    assert waiting(lane) == [1, 2]
    if ending == "deadline":
        clock.advance(61)
    with at_commit(execute=True):
        end[ending]()
    assert status(first) in ("completed", "failed", "cancelled")
    assert (inside(lane), waiting(lane)) == ([1], [2])
    assert_invariants()


def test_a_closed_lane_lets_nothing_in_and_what_is_in_goes_on(
    trigger: Trigger, hand: Hand, at_commit: AtCommit
) -> None:
    """As a paused backfill has it; opened again, it goes on at once."""
    lane = open_lane(trigger, 1)
    first, second = hold(trigger, lane, 2)
    lanes.let_in([lane])
    with at_commit(execute=True):
        lanes.set_lane(lane, is_open=False)
        assert hand.finish() == 2
    assert lanes.let_in() == 0
    assert (status(first), status(second), waiting(lane)) == ("completed", "queued", [1])
    with at_commit(execute=True):
        lanes.set_lane(lane, is_open=True)
    assert inside(lane) == [1]
    assert_invariants()


def test_a_changed_capacity_holds_from_then_on(trigger: Trigger, at_commit: AtCommit) -> None:
    """More are let in at once; with fewer, those that are in stay in."""
    lane = open_lane(trigger, 1)
    hold(trigger, lane, 5)
    lanes.let_in()
    with at_commit(execute=True):
        lanes.set_lane(lane, capacity=3)
    assert inside(lane) == [0, 1, 2]
    with at_commit(execute=True):
        lanes.set_lane(lane, capacity=2)
    assert inside(lane) == [0, 1, 2]
    with at_commit(execute=True):
        lanes.set_lane(lane, capacity=None)
    assert waiting(lane) == []
    assert Lane.objects.get(id=lane).is_open, "only what was named has changed"


def test_opening_a_lane_again_changes_nothing(trigger: Trigger) -> None:
    lane = open_lane(trigger, 1)
    open_lane(trigger, 5, lane_id=lane)
    assert Lane.objects.get(id=lane).capacity == 1


def test_a_lane_has_nothing_else_to_change(trigger: Trigger) -> None:
    with pytest.raises(TypeError, match="is_background"):
        lanes.set_lane(open_lane(trigger, 1), is_background=False)


def test_a_held_run_that_is_cancelled_leaves_its_place_to_the_next(
    trigger: Trigger, people: dict[str, Person], at_commit: AtCommit
) -> None:
    """F82: it can never be let in."""
    lane = open_lane(trigger, 1)
    _, second, third = hold(trigger, lane, 3)
    lanes.let_in()
    cancel_run(second.id, actor=people["operator"].actor)
    second.refresh_from_db()
    assert (second.status, second.held) == ("cancelled", False)
    assert states(second) == {"first": "cancelled", "second": "cancelled"}
    lanes.set_lane(lane, capacity=2)
    assert lanes.let_in() == 1
    assert (inside(lane), Run.objects.get(id=third.id).held) == ([0, 2], False)
    assert_invariants()


def test_a_paused_held_run_is_passed_over_until_it_is_resumed(
    trigger: Trigger, people: dict[str, Person], hand: Hand, at_commit: AtCommit
) -> None:
    """It holds no place while it is paused; resumed, it is the next again by its rank."""
    operator = people["operator"].actor
    lane = open_lane(trigger, 1)
    first, second, third = hold(trigger, lane, 3)
    pause_run(first.id, actor=operator, reason="not yet")
    assert status(first) == "paused"
    lanes.let_in()
    assert (inside(lane), status(first)) == ([1], "paused")
    resume_run(first.id, actor=operator)
    assert (status(first), waiting(lane)) == ("queued", [0, 2])
    with at_commit(execute=True):
        assert hand.finish(1) == 2
    assert inside(lane) == [0]
    assert (status(second), status(third)) == ("completed", "queued")
    assert_invariants()


def test_a_resumed_held_run_is_let_in_at_once_when_there_is_room(
    trigger: Trigger, people: dict[str, Person], at_commit: AtCommit
) -> None:
    lane = open_lane(trigger, 1)
    (run,) = hold(trigger, lane, 1)
    pause_run(run.id, actor=people["operator"].actor)
    assert lanes.let_in() == 0
    with at_commit(execute=True):
        resume_run(run.id, actor=people["operator"].actor)
    assert inside(lane) == [0]


def test_a_run_paused_while_it_is_in_keeps_its_place(trigger: Trigger, people: dict[str, Person]) -> None:
    lane = open_lane(trigger, 1)
    first, _ = hold(trigger, lane, 2)
    lanes.let_in()
    pause_run(first.id, actor=people["operator"].actor)
    assert lanes.let_in() == 0
    assert waiting(lane) == [1]


def test_a_stage_of_a_held_run_may_be_skipped_and_nothing_behind_it_begins(
    trigger: Trigger, people: dict[str, Person], hand: Hand
) -> None:
    """A skip moves its stage alone; what was behind it begins once the run is let in."""
    lane = open_lane(trigger, 0)
    (run,) = hold(trigger, lane, 1)
    skip_stage(run.stages.get(name="first").id, actor=people["operator"].actor, reason="no fixing")
    assert states(run) == {"first": "skipped", "second": "pending"}
    assert (status(run), hand.pull(10)) == ("queued", [])
    assert_invariants()
    lanes.set_lane(lane, capacity=1)
    lanes.let_in()
    assert states(run) == {"first": "skipped", "second": "ready"}
    assert hand.finish() == 1
    assert status(run) == "completed"
    assert_invariants()


def test_a_held_run_of_which_all_is_skipped_is_done(trigger: Trigger, people: dict[str, Person]) -> None:
    lane = open_lane(trigger, 0)
    (run,) = hold(trigger, lane, 1)
    for name in ("first", "second"):
        skip_stage(run.stages.get(name=name).id, actor=people["operator"].actor, reason="no fixing")
    run.refresh_from_db()
    assert (run.status, run.held) == ("completed", False)
    assert_invariants()


def test_a_gate_before_the_first_stage_opens_when_the_run_is_let_in(make_trigger: MakeTrigger) -> None:
    """Nobody is asked about what may not begin yet."""
    trigger = make_trigger(stages=[{"name": "first", "handler": "Handler", "approval": {"when": "before"}}])
    lane = open_lane(trigger, 0)
    (run,) = hold(trigger, lane, 1)
    assert not Gate.objects.exists()
    lanes.set_lane(lane, capacity=1)
    lanes.let_in()
    assert Gate.objects.filter(stage__run=run, state="open").count() == 1
    assert status(run) == "waiting"
    assert_invariants()


def test_a_run_that_a_person_retries_waits_for_room_and_goes_before_younger_ones(
    trigger: Trigger, people: dict[str, Person], hand: Hand, at_commit: AtCommit
) -> None:
    """F52: nobody is in on top of what the lane takes; who retries is not put at the end of its queue."""
    lane = open_lane(trigger, 1)
    first, _, _ = hold(trigger, lane, 3)
    with at_commit(execute=True):
        lanes.let_in()
        hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    with at_commit(execute=True):
        done = retry_stage(first.stages.get(name="first").id, actor=people["operator"].actor)
    assert (done.result["run_status"], done.result["stage_status"]) == ("queued", "pending")
    assert (inside(lane), waiting(lane)) == ([1], [0, 2])
    assert_invariants()
    with at_commit(execute=True):
        hand.finish(2)
    assert (inside(lane), waiting(lane)) == ([0], [2])
    assert_invariants()


@pytest.mark.parametrize("scope", ["workspace", "environment", "trigger"])
def test_while_a_blackout_holds_nothing_is_let_in(scope: str, trigger: Trigger, hand: Hand) -> None:
    """F117: of its workspace, its environment or its trigger; what is in goes on, and after it all goes on."""
    narrowed = {
        "workspace": {},
        "environment": {"environment_id": trigger.environment_id},
        "trigger": {"trigger_id": trigger.id},
    }[scope]
    lane = open_lane(trigger, 2)
    first, _ = hold(trigger, lane, 1), hold(trigger, lane, 1, first=1)
    lanes.set_lane(lane, capacity=1)
    lanes.let_in()
    job = hand.take()
    freeze = Blackout.objects.create(workspace_id=trigger.workspace_id, name="freeze", kind="period", **narrowed)
    hand.report(job, output=1)
    assert hand.finish() == 1, "its second stage"
    assert status(first[0]) == "completed"
    assert lanes.let_in() == 0
    assert waiting(lane) == [1]
    freeze.delete()
    assert lanes.let_in() == 1


def test_anothers_blackout_holds_nothing_back(trigger: Trigger, environments: dict[str, Any]) -> None:
    lane = open_lane(trigger, 1)
    hold(trigger, lane, 1)
    Blackout.objects.create(
        workspace_id=trigger.workspace_id, name="freeze", kind="period", environment=environments["staging"]
    )
    assert lanes.let_in() == 1


def test_what_somebody_gave_a_reason_for_is_let_in_through_a_blackout(trigger: Trigger, hand: Hand) -> None:
    """And handed out: nothing of it waits for the blackout's end."""
    lane = open_lane(trigger, 5)
    (through,) = hold(trigger, lane, 1, through_blackout=True)
    hold(trigger, lane, 1, first=1)
    Blackout.objects.create(workspace_id=trigger.workspace_id, name="freeze", kind="period")
    assert lanes.let_in() == 1
    assert (inside(lane), waiting(lane)) == ([0], [1])
    assert hand.take().run_id == through.id
    assert_invariants()


def test_one_lane_that_cannot_be_handled_holds_up_no_other(trigger: Trigger, monkeypatch: pytest.MonkeyPatch) -> None:
    """F85: limits of one are not another's."""
    broken, whole = sorted([open_lane(trigger, 1), open_lane(trigger, 1)])
    hold(trigger, broken, 2)
    hold(trigger, whole, 2)
    let_in = lanes._let_in

    def fail(lane_id: Any, *, wait: bool) -> int:
        if lane_id == broken:
            raise ValueError("broken")
        return let_in(lane_id, wait=wait)

    monkeypatch.setattr(lanes, "_let_in", fail)
    assert lanes.let_in() == 1
    assert (inside(broken), inside(whole)) == ([], [0])


def test_a_full_lane_leaves_other_lanes_and_live_runs_alone(
    trigger: Trigger, start_run: Callable[..., Run], hand: Hand
) -> None:
    """F85."""
    full, free = open_lane(trigger, 0), open_lane(trigger, 1)
    hold(trigger, full, 3)
    (other,) = hold(trigger, free, 1)
    live = start_run("first")
    lanes.let_in()
    assert {job.run_id for job in hand.pull(10)} == {other.id, live.id}
    assert waiting(full) == [0, 1, 2]


def test_looking_at_lanes_costs_no_more_for_the_many_that_wait(
    trigger: Trigger, django_assert_max_num_queries: Any
) -> None:
    """A full lane is two statements, whatever is behind it, and a lane in which nobody waits is none."""
    full = open_lane(trigger, 1)
    hold(trigger, full, 300)
    for _ in range(10):
        open_lane(trigger, 1)
    lanes.let_in()
    with django_assert_max_num_queries(10):
        assert lanes.let_in() == 0


def test_the_sweep_of_stuck_runs_passes_over_held_ones(trigger: Trigger, clock: Clock) -> None:
    """F25: only their lane moves them."""
    lane = open_lane(trigger, 0)
    (run,) = hold(trigger, lane, 1)
    clock.advance(3600)
    assert sweeps.move_on_stuck_runs() == 0
    assert states(run) == {"first": "pending", "second": "pending"}


def test_many_runs_are_inserted_as_one_is(trigger: Trigger) -> None:
    """I5, O13: each with its stages, event, search words, digest of policies, and signed checkpoint."""
    lane = open_lane(trigger, 0)
    (alone,) = hold(trigger, lane, 1)
    many = hold(trigger, lane, 50, first=1)
    assert len({run.policy_digest for run in (alone, *many)}) == 1
    assert Event.objects.filter(run__in=many, kind="run.create", actor="dana").count() == 50
    assert Checkpoint.objects.filter(run__in=many, moment="run_start").exclude(signature="").count() == 50
    assert {tuple(states(run).items()) for run in many} == {tuple(states(alone).items())}
    assert [run.input for run in many[:2]] == ['{"rank":1}', '{"rank":2}']
    assert [run.search.words != "" for run in many] == [True] * 50
    assert_invariants()


def test_a_held_runs_turn_is_told_in_numbers_that_stay_small(
    trigger: Trigger, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many are in and how many before it; paused ones are passed over, and nothing is counted without end."""
    lane = open_lane(trigger, 2)
    runs = hold(trigger, lane, 6)
    pause_run(runs[3].id, actor=people["operator"].actor)
    lanes.let_in()
    assert lanes.turn_of(lane, runs[2].id).sentence() == "2 are in, none before it"
    assert lanes.turn_of(lane, runs[5].id) == lanes.Turn(2, 2)
    monkeypatch.setattr(lanes, "MOST_COUNTED", 2)
    assert lanes.turn_of(lane, runs[5].id).sentence() == "2 are in, at least 2 before it"


def test_what_is_asked_of_a_lane_is_answered_by_its_own_index(
    make_trigger: MakeTrigger, trigger: Trigger, clock: Clock
) -> None:
    """However much else is unfinished: a dispatch beside a large backfill looks at no run of that."""
    other = open_lane(trigger, 0)
    hold(trigger, other, 200)
    Run.objects.filter(lane_id=other).update(held=False)
    lane = open_lane(trigger, 1)
    (run,) = hold(trigger, lane, 1)
    make_trigger(name="other", overlap_policy="queue_all", catch_up="latest", pipeline=trigger.pipeline.slug)
    clock.advance(hours=1)
    ledger.record()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pipelines_run")
    with CaptureQueriesContext(connection) as asked:
        lanes.turn_of(lane, run.id)
        lanes.let_in([lane])
        dispatch.dispatch_due()
    statements = [one["sql"] for one in asked if "SELECT" in one["sql"] and "lane_id =" in one["sql"]]
    assert len(statements) >= 4
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in statements:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "run_in_lane" in plan, plan
            assert "run_unfinished" not in plan, plan
