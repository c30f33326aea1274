"""Why a run does not move: each cause built for real, and read with its holder, its words, and when the engine looks.

P86, I15 and model §3.9: what is told says no more than is true, and names who can change it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.transitions import decide_gate
from pipelines import lanes, queries, sweeps
from pipelines.blockers import Blocker
from pipelines.creation import Place
from pipelines.models import Attempt, Effect, Environment, Gate, Member, Policy, Run, WorkerSession, Workspace
from pipelines.states import EffectClass, EffectState
from pipelines.transitions import cancel_run
from tests.cast import Api, Hand, Person, Worker, stages_of
from tests.clock import Clock
from tests.factories import ApplicationFactory
from tests.laned import hold, open_lane
from tests.pipelines.blackout_nights import period
from tests.scheduled import MakeTrigger
from tests.verbs import pause_run

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
LEASE, VISIBILITY = 60, 30
RETRIED = {"name": "load", "options": {"max_retries": 2, "retry_interval": 60}}
OUTSIDE = {"name": "pay", "effect_mode": "external"}


def found(run: Run) -> list[Blocker]:
    return queries.blockers(Run.objects.get(id=run.id))


def told(run: Run) -> list[tuple[str, str, str]]:
    return [(one.stage, one.holder, one.cause) for one in found(run)]


def only(run: Run) -> Blocker:
    (one,) = found(run)
    return one


def at(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# stages that wait for stages


def test_a_pending_stage_waits_for_the_one_that_runs(start_run: StartRun, hand: Hand) -> None:
    run = start_run("load", "publish")
    hand.take()
    _, publish = found(run)
    assert (publish.stage, publish.holder, publish.next_look) == ("publish", "load", None)
    assert publish.cause == "waits for load, which is running"


def test_a_pending_stage_behind_a_failure_says_what_helps_also_once_the_run_has_failed(
    start_run: StartRun, hand: Hand
) -> None:
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="UNIQUE")
    assert Run.objects.get(id=run.id).status == "failed"
    load, publish = found(run)
    assert (load.holder, load.cause, load.next_look) == ("a person", "failed with UNIQUE: retry it or skip it", None)
    assert (publish.holder, publish.cause) == ("load", "waits for load, which failed: retry it or skip it")


def test_a_pending_stage_behind_an_uncertain_one_is_not_told_to_retry_it(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    run = start_run(OUTSIDE, "book")
    _lose(hand, clock)
    pay, book = found(run)
    assert pay.holder == "a person"
    assert (book.holder, book.cause) == ("pay", "waits for pay, whose effects outside are unknown: reconcile it")


def test_a_pending_stage_behind_a_bypassed_failure_waits_for_nothing(start_run: StartRun, hand: Hand) -> None:
    run = start_run({"name": "load", "run_next_if_failed": True}, "publish")
    hand.report(hand.take(), "failed", error_code="X")
    assert [stage for stage, _, _ in told(run)] == ["publish"]


# stages that wait for policies


def _policy(workspace: Workspace, name: str, **rule: Any) -> Policy:
    kind = "concurrency" if "max_active" in rule else "rate"
    return Policy.objects.create(workspace=workspace, name=name, kind=kind, rule=rule)


def test_a_stage_that_waits_for_a_slot_names_who_holds_it_and_until_when(
    start_run: StartRun, hand: Hand, workspace: Workspace
) -> None:
    """F69: the policy, how many of how many, run, stage, attempt, worker, lease; the engine looks when that is over."""
    _policy(workspace, "only one", max_active=1)
    first, run = start_run("load"), start_run("load")
    assert only(run).holder == "hand-1"
    assert only(run).behind == (), "nothing is held yet, it only waits to be pulled"
    held = Attempt.objects.get(id=hand.take().attempt_id)
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("hand-1", held.expires_at)
    assert blocker.cause.endswith(
        "; waits for a slot of the policy only one: 1 of 1 are held; stage load of run nightly, running: attempt 1 at"
        f" hand-1, lease until {at(held.expires_at)}"
    )
    assert [one.id for one in blocker.behind] == [first.id]


def test_many_who_hold_slots_are_named_in_part_and_counted(
    start_run: StartRun, hand: Hand, workspace: Workspace
) -> None:
    _policy(workspace, "five", max_active=5)
    for _ in range(5):
        start_run("load")
    assert len(hand.pull(10)) == 5
    blocker = only(start_run("load"))
    assert "5 of 5 are held" in blocker.cause
    assert blocker.cause.endswith("; and 2 more")
    assert len(blocker.behind) == 3


def test_runs_of_another_application_are_not_named_to_those_of_this_one(
    start_run: StartRun, new_hand: Any, hand: Hand, workspace: Workspace, place: Place
) -> None:
    """I16: an application key reads blockers too."""
    _policy(workspace, "only one", max_active=1)
    shipping = ApplicationFactory(workspace=workspace, name="shipping")
    there = replace(place, application_id=shipping.id)
    theirs = start_run("secret", in_place=there)
    assert len(Hand(there, "their-hand", ["Handler"]).pull(1)) == 1
    blocker = only(start_run("load"))
    assert blocker.cause.endswith("1 of 1 are held; others by work of another application or environment")
    assert blocker.behind == ()
    told_all = f"{blocker.holder} {blocker.cause}"
    assert not any(word in told_all for word in ("secret", "their-hand", str(theirs.id)))
    assert blocker.next_look is not None


def test_a_stage_that_waits_for_a_rate_says_how_much_is_used_and_when_the_next_may_go(
    start_run: StartRun, hand: Hand, workspace: Workspace, api: Api, clock: Clock
) -> None:
    _policy(workspace, "slowly", count=2, per_seconds=90)
    start_run("load")
    start_run("load")
    run = start_run("load")
    clock.advance(1)
    assert len(hand.pull(10)) == 2
    opens = min(Attempt.objects.values_list("dispatched_at", flat=True)) + timedelta(seconds=90)
    (view,) = api.get(f"/v1/executions/{run.id}/blockers").json()["results"]
    assert view["holder"] == "the clock"
    assert view["cause"].endswith(
        f"; waits for the rate of the policy slowly: 2 of 2 in 90 s are used; the next may go at {at(opens)}"
    )
    assert view["next_look"] is not None
    clock.advance(91)
    hand.renew()
    assert "may pull it" in only(run).cause or only(run).holder == "no worker"


def test_a_paused_policy_and_one_with_room_hold_nothing(start_run: StartRun, hand: Hand, workspace: Workspace) -> None:
    policy = _policy(workspace, "only one", max_active=1)
    start_run("load")
    run = start_run("load")
    hand.take()
    assert "waits for a slot" in only(run).cause
    Policy.objects.filter(pk=policy.pk).update(status="paused")
    assert only(run).cause.endswith("; 1 live worker may pull it")
    Policy.objects.filter(pk=policy.pk).update(status="active", rule={"max_active": 2})
    assert only(run).cause.endswith("; 1 live worker may pull it")


# stages that wait for workers


def test_a_ready_stage_without_a_worker_names_the_handler_that_is_missing(start_run: StartRun) -> None:
    run = start_run({"name": "load", "handler": "Loader"})
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("no worker", None)
    assert blocker.cause.endswith("; no live worker has registered the handler Loader")


def test_a_ready_stage_with_live_workers_names_them(start_run: StartRun, hand: Hand, new_hand: Any) -> None:
    for number in range(2, 6):
        new_hand(f"hand-{number}")
    new_hand("other", "OtherHandler")
    blocker = only(start_run("load"))
    assert blocker.holder == "hand-1, hand-2, hand-3 and 2 more"
    assert blocker.cause.endswith("; 5 live workers may pull it")


def test_a_ready_stage_whose_workers_all_shut_down_says_so(start_run: StartRun, worker: Worker) -> None:
    assert worker.post("/workers/shutdown").status_code == 200
    blocker = only(start_run("load"))
    assert blocker.holder == "no worker"
    assert blocker.cause.endswith("of those with the handler Handler none may pull it: worker-1 is shutting down")


def test_a_worker_that_fell_silent_is_told_apart_from_none(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    run = start_run("load")
    clock.advance(LEASE + 1)
    assert only(run).cause.endswith("none may pull it: hand-1 has been silent for too long")
    clock.advance(hours=2)
    assert only(run).cause.endswith("no live worker has registered the handler Handler")


def test_a_handler_that_only_another_environments_worker_has_is_said_to_be_there(
    start_run: StartRun, place: Place, environments: dict[str, Environment]
) -> None:
    """F48, I16: a worker serves the environment of its key, and no other."""
    Hand(replace(place, environment_id=environments["staging"].id, environment_slug="staging"), "stager", ["Handler"])
    blocker = only(start_run("load"))
    assert blocker.holder == "no worker"
    assert blocker.cause.endswith("none may pull it: stager has it in staging only")


def test_another_applications_workers_are_not_told(start_run: StartRun, sibling_key: str) -> None:
    """I16: whose key reads this run does not learn of them."""
    Worker(sibling_key, ["Handler"], "theirs")
    assert "theirs" not in only(start_run("load")).cause


# pauses


def test_a_paused_run_says_by_whom_and_its_ready_stage_waits_for_the_resume(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    run = start_run("load")
    pause_run(run.id, actor=people["operator"].actor, reason="file is late")
    pause, load = found(run)
    assert (pause.stage, pause.stage_id, pause.holder, pause.next_look) == ("", None, "operator-acme", None)
    assert "paused by operator-acme since " in pause.cause
    assert pause.cause.endswith(": file is late; nothing is handed out")
    assert (load.stage, load.holder) == ("load", "operator-acme")
    assert load.cause.endswith("; handed out once the run is resumed")
    assert "may pull it" not in load.cause


def test_a_pause_with_an_end_says_when_the_engine_resumes(
    start_run: StartRun, people: dict[str, Person], clock: Clock
) -> None:
    run = start_run("load")
    pause_run(run.id, actor=people["operator"].actor, reason="until noon")
    end = clock.now().replace(year=clock.now().year + 1)
    Run.objects.filter(id=run.id).update(paused_until=end)
    pause, load = found(run)
    assert pause.cause.endswith(f"; the engine resumes it at {at(end)}")
    assert (pause.next_look, load.next_look) == (end, end)


def test_a_pausing_run_counts_what_still_runs(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    """P60, P61; the code that is kept in place of a reason is not told as one."""
    run = start_run("load", *[{"name": name, "depends_on": ["load"]} for name in ("one", "two", "three")])
    hand.report(hand.take(), output=0)
    jobs = [hand.take(), hand.take()]
    pause_run(run.id, actor=people["operator"].actor)
    pause, *stages = found(run)
    assert pause.cause.startswith("paused by operator-acme since ")
    assert pause.cause.endswith("; nothing is handed out, 2 running attempts may finish")
    assert "operator_pause" not in pause.cause
    assert [one.holder for one in stages] == ["hand-1", "hand-1", "operator-acme"]
    hand.report(jobs[0], output=1)
    assert found(run)[0].cause.endswith("; nothing is handed out, 1 running attempt may finish")
    hand.report(jobs[1], output=1)
    assert found(run)[0].cause.endswith("; nothing is handed out")


# the clock


def test_a_retry_that_is_not_due_waits_for_the_clock(start_run: StartRun, hand: Hand) -> None:
    run = start_run(RETRIED)
    hand.report(hand.take(), "failed", error_code="UPSTREAM")
    due = stages_of(run)[0].available_at
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("the clock", due)
    assert blocker.cause == f"retry 1 after UPSTREAM is due at {at(due)}"


def test_a_retry_that_is_due_waits_for_a_worker_and_not_for_the_clock(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    run = start_run(RETRIED)
    hand.report(hand.take(), "failed", error_code="UPSTREAM")
    clock.advance(61)
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("no worker", None)
    assert blocker.cause.startswith("retry 1 after UPSTREAM has been due since ")
    hand.pull(0)
    WorkerSession.objects.update(last_seen_at=clock.now())
    assert only(run).holder == "hand-1"


def test_a_run_past_its_deadline_says_so_once_for_all_its_stages(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """I8: also for a stage that had failed before; retrying it is not suggested."""
    run = start_run(
        "load", {"name": "other", "depends_on": []}, {"name": "third", "depends_on": ["load"]}, deadline_seconds=60
    )
    hand.report(hand.take(), "failed", error_code="UNIQUE")
    clock.advance(61)
    sweeps.enforce_deadlines()
    blocker = only(run)
    assert (blocker.stage, blocker.holder, blocker.next_look) == ("", "nobody", None)
    assert blocker.cause.startswith("the run passed its deadline, ")
    assert "retry" not in blocker.cause


# what a worker holds


def test_what_was_handed_out_has_until_its_visibility_ends(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    run = start_run("load")
    hand.pull(acquire=False)
    end = Attempt.objects.get().expires_at
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("hand-1", end)
    assert blocker.cause == f"handed to hand-1, who has until {at(end)} to acquire the lease"
    clock.advance(VISIBILITY + 1)
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("the engine", end)
    assert blocker.cause == f"hand-1 did not acquire the lease until {at(end)}; the next sweep takes it back"


def test_what_runs_is_held_by_its_lease(start_run: StartRun, hand: Hand) -> None:
    run = start_run("load")
    hand.take()
    end = Attempt.objects.get().expires_at
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("hand-1", end)
    assert blocker.cause == f"attempt 1 is leased by hand-1 until {at(end)}"


def test_what_runs_past_its_lease_waits_for_the_sweep(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    run = start_run("load")
    hand.take()
    clock.advance(LEASE + 1)
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("the engine", Attempt.objects.get().expires_at)
    assert "the lease of attempt 1 at hand-1 ran out at " in blocker.cause
    assert blocker.cause.endswith("; the next sweep decides what becomes of it")
    sweeps.sweep()
    assert "ran out" not in only(run).cause


def test_a_time_limit_that_ends_before_the_lease_is_what_the_engine_looks_at(start_run: StartRun, hand: Hand) -> None:
    run = start_run({"name": "load", "options": {"timeout": 20}})
    hand.take()
    attempt = Attempt.objects.get()
    assert attempt.timeout_at is not None
    assert only(run).next_look == attempt.timeout_at
    assert only(run).cause.endswith(f"; its time runs out at {at(attempt.timeout_at)}")


# decisions


def test_an_open_gate_is_held_by_the_application_that_decides_it(start_run: StartRun) -> None:
    """P78: unless a person is required, nobody but the application is named."""
    blocker = only(start_run({"name": "post", "approval": {"when": "before"}}))
    assert (blocker.stage, blocker.holder, blocker.next_look) == ("post", "the application", None)
    assert blocker.cause.startswith("a decision before the work has been asked for since ")
    assert "expires" not in blocker.cause, "a gate without a limit is not said to have one"


def test_a_gate_about_a_result_that_expires_says_when_and_what_then(start_run: StartRun, hand: Hand) -> None:
    run = start_run({"name": "post", "approval": {"when": "after", "expires_in": 3600}})
    hand.report(hand.take(), output="draft")
    end = Gate.objects.get().expires_at
    blocker = only(run)
    assert (blocker.holder, blocker.next_look) == ("the application", end)
    assert "a decision about its result" in blocker.cause
    assert blocker.cause.endswith(f"; it expires at {at(end)}, and then the stage fails")


@pytest.mark.parametrize(
    ("asked", "of_whom"),
    [
        ({"approver_role": "release_manager", "count": 2}, "2 release managers, 0 of 2 so far"),
        ({"approver_role": "admin"}, "1 admin"),
        ({"count": 3}, "3 people who may decide, 0 of 3 so far"),
        ({"require_person": True}, "1 person who may decide"),
    ],
)
def test_a_gate_that_requires_people_is_held_by_them(start_run: StartRun, asked: dict[str, Any], of_whom: str) -> None:
    run = start_run({"name": "post", "approval": {"when": "before", **asked}})
    assert (only(run).holder, only(run).cause.split(", of ")[1]) == ("a person", of_whom)


def test_a_gate_says_how_many_of_those_it_needs_have_agreed(
    start_run: StartRun, workspace: Workspace, people: dict[str, Person]
) -> None:
    """An approval whose giver has left does not count any more, here as when it is decided."""
    run = start_run({"name": "post", "approval": {"when": "before", "count": 3}})
    for role in ("approver", "admin"):
        decide_gate(stages_of(run)[0].id, actor=people[role].actor, approved=True)
    assert only(run).cause.endswith(", of 3 people who may decide, 2 of 3 so far")
    Member.objects.get(user=people["admin"].user, workspace=workspace).delete()
    assert only(run).cause.endswith(", 1 of 3 so far")


def test_a_rejected_gate_asks_nobody_to_act(start_run: StartRun, people: dict[str, Person]) -> None:
    """I9: nothing in this run can change it, so no one is sent to try."""
    run = start_run({"name": "post", "approval": {"when": "before"}}, "tell")
    decide_gate(stages_of(run)[0].id, actor=people["approver"].actor, approved=False, reason="wrong text")
    assert told(run) == [
        ("post", "nobody", "its gate was rejected; that is final in this run"),
        ("tell", "post", "waits for post, whose gate was rejected; that is final in this run"),
    ]


# what nobody knows


def test_a_stage_to_be_reconciled_names_its_open_effects_and_no_others(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R13, F34: a person settles what is named; the engine never looks again by itself."""
    run = start_run(OUTSIDE, "book")
    job = hand.take()
    for number, state in enumerate([EffectState.UNKNOWN] * 4 + [EffectState.COMMITTED, EffectState.ABSENT]):
        _effect(run, job, f"step-{number}", state)
    clock.advance(LEASE + 30)
    sweeps.sweep()
    pay = found(run)[0]
    assert (pay.stage, pay.holder, pay.next_look) == ("pay", "a person", None)
    assert "what attempt 1 did outside is unknown; it needs reconciliation: " in pay.cause
    assert "external http step-0 with key key-0 is unknown, " in pay.cause
    assert pay.cause.endswith(" and 1 more")
    assert "committed" not in pay.cause
    assert "absent" not in pay.cause


def test_a_stage_that_declared_nothing_says_that_too(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    run = start_run(OUTSIDE)
    _lose(hand, clock)
    assert only(run).cause == (
        "what attempt 1 did outside is unknown; it needs reconciliation, and nothing of it was declared"
    )


# runs that wait for nothing


def test_a_run_that_ended_well_or_was_cancelled_has_none(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    done = start_run("load")
    hand.finish()
    gone = start_run("load", key="gone")
    cancel_run(gone.id, actor=people["operator"].actor, reason="wrong file")
    assert (found(done), found(gone)) == ([], [])


def test_the_route_tells_holder_cause_and_next_look(
    start_run: StartRun, hand: Hand, people: dict[str, Person], as_person: Callable[[Person], Api], outsider: Person
) -> None:
    run = start_run("load", "publish")
    hand.take()
    path = f"/v1/executions/{run.id}/blockers"
    first, second = as_person(people["viewer"]).get(path).json()["results"]
    assert set(first) == {"stage_id", "stage", "holder", "cause", "next_look"}
    assert (first["stage"], first["holder"]) == ("load", "hand-1")
    assert first["next_look"] is not None
    assert second["next_look"] is None
    assert as_person(outsider).get(path).status_code == 404


def test_the_number_of_queries_does_not_grow_with_the_stages(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    one, many = start_run("load", key="one"), start_run(*[f"stage-{number}" for number in range(40)], key="many")
    assert _queries(one) == _queries(many) <= 9


def test_nor_with_the_policies_that_they_wait_for(start_run: StartRun, hand: Hand, workspace: Workspace) -> None:
    _policy(workspace, "only one", max_active=1)
    for number in range(20):
        _policy(workspace, f"slow {number}", count=1, per_seconds=60)
    start_run("load")
    assert len(hand.pull(5)) == 1
    stages = [{"name": f"stage-{number}", "depends_on": []} for number in range(40)]
    one, many = start_run("load", key="one"), start_run(*stages, key="many")
    assert _queries(one) == _queries(many) <= 13


def test_nor_with_the_gates_that_need_several_approvals(start_run: StartRun, people: dict[str, Person]) -> None:
    gated = {"approval": {"when": "before", "count": 2}}
    one = start_run({"name": "load", **gated}, key="one")
    names = [f"stage-{number}" for number in range(40)]
    stages = [{"name": name, **gated} for name in names]
    many = start_run(*stages, {"name": "join", "depends_on": names}, key="many")
    for gate in Gate.objects.all():
        decide_gate(gate.stage_id, actor=people["approver"].actor, approved=True)
    assert sum(blocker.cause.endswith(", 1 of 2 so far") for blocker in found(many)) == 40
    assert _queries(one) == _queries(many) <= 11


def _lose(hand: Hand, clock: Clock) -> None:
    hand.take()
    clock.advance(LEASE + 30)
    sweeps.sweep()


def _effect(run: Run, job: Any, step: str, state: EffectState) -> Effect:
    return Effect.objects.create(
        run=run,
        stage_id=job.stage.id,
        attempt=job.attempt_id,
        epoch=1,
        effect_class=EffectClass.EXTERNAL_HTTP,
        step_id=step,
        key=step.replace("step", "key"),
        state=state,
    )


def _queries(run: Run) -> int:
    with CaptureQueriesContext(connection) as captured:
        found(run)
    return len(captured)


# what a lane or a blackout holds


def test_a_held_run_waits_for_its_turn_its_lane_or_the_end_of_a_blackout(
    make_trigger: MakeTrigger, workspace: Workspace, clock: Clock
) -> None:
    """O55, contract §4."""
    trigger = make_trigger()
    lane = open_lane(trigger, 2)
    held = hold(trigger, lane, 3)[-1]
    turn = found(held)[0]
    assert (turn.holder, turn.cause, turn.stage) == (
        "the engine",
        "waits for its turn: its backfill lets in 2 at once; none is in, 2 before it",
        "",
    )
    assert turn.next_look is not None
    period(workspace, "2020-01-01T00:00:00", None, name="the freeze", trigger=trigger)
    closed = found(held)[0]
    assert closed.holder == "the clock"
    assert closed.cause.startswith("it waits to be let in; nothing starts: blackout 'the freeze'")
    Run.objects.filter(id=held.id).update(through_blackout=True)
    assert found(held)[0].cause == turn.cause
    lanes.set_lane(lane, is_open=False)
    paused = found(held)[0]
    assert (paused.holder, paused.next_look) == ("a person", None)
    assert paused.cause == "its backfill is paused; nothing of it begins until that is resumed"
