"""Child runs and recovery: forks of parents and of children, what a cancel's plan tells, what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import children, queries, retention
from pipelines.children import Started, Wish
from pipelines.creation import Intent
from pipelines.jobs import Job
from pipelines.models import ChildRun, Event, ReconciliationItem, Run, Stage
from pipelines.transitions import cancel_run
from tests.cast import Api, Hand, Person, stage_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants

pytestmark = pytest.mark.django_db(transaction=True)

StartRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def sound(transactional_db: None) -> Any:
    yield
    assert_invariants()


@pytest.fixture
def api(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def helper(new_hand: Callable[..., Hand]) -> Hand:
    return new_hand("helper", "Child")


def spawn(hand: Hand, job: Job, key: str = "day", **wish: Any) -> Started:
    intent = Intent(name="imports", stages=[stage_of({"name": "work", "handler": "Child"})])
    started = children.start(hand.holder, job.stage.id, job.attempt_id, Wish(key, intent, **wish))
    assert started is not None
    return started


def forked(answer: Any) -> Run:
    assert answer.status_code == 201, answer.content
    return Run.objects.get(id=answer.json()["execution_id"])


def rerun(api: Api, run: Run) -> Run:
    return forked(api.post(f"/v1/executions/{run.id}/rerun", {"from_step_id": "first"}))


def test_a_fork_sees_what_its_source_s_child_came_to_meanwhile(
    start_run: StartRun, hand: Hand, helper: Hand, api: Api
) -> None:
    """F37: the child ended while the parent was closed: the fork has the result at once, and starts nothing."""
    source = start_run()
    job = hand.take()
    child = spawn(hand, job, on_parent_end="leave").child
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    helper.report(helper.take(), output={"rows": 7})
    fork = rerun(api, source)
    job = hand.take()
    assert job.run_id == fork.id
    found = spawn(hand, job, on_parent_end="leave")
    assert (found.created, found.child.run_id) == (False, child.run_id)
    assert (found.child.status, found.child.outputs) == ("completed", {"work": {"rows": 7}})
    assert Event.objects.get(run=fork, kind="child.take_over").data == {"key": "day", "run": str(child.run_id)}
    assert ChildRun.objects.get(parent=fork).taken_over
    assert ChildRun.objects.get(parent=source).run_id == child.run_id


def test_a_fork_waits_for_its_source_s_child_that_still_runs(
    start_run: StartRun, hand: Hand, helper: Hand, api: Api
) -> None:
    """F37: and is woken by it, although another run had started it."""
    source = start_run()
    job = hand.take()
    child = spawn(hand, job, on_parent_end="leave").child
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    fork = forked(api.post(f"/v1/executions/{source.id}/replay", {}))
    job = hand.take()
    assert spawn(hand, job, on_parent_end="leave").child.run_id == child.run_id
    hand.report(job, "waiting", awaits_runs=[child.run_id])
    helper.finish()
    assert Stage.objects.get(run=fork).state == "ready"
    assert Run.objects.filter(parent__isnull=False).count() == 1


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_fork_begins_anew_what_failed_or_was_cancelled(
    start_run: StartRun, hand: Hand, helper: Hand, api: Api, people: dict[str, Person], end: str
) -> None:
    source = start_run()
    job = hand.take()
    child = spawn(hand, job).child
    if end == "failed":
        helper.report(helper.take(), "failed", error_code="X")
        hand.report(job, "failed", error_code="VALIDATION_ERROR")
    else:
        cancel_run(source.id, actor=people["operator"].actor)
    fork = rerun(api, source)
    anew = spawn(hand, hand.take())
    assert (anew.created, anew.child.run_id != child.run_id) == (True, True)
    assert Run.objects.get(id=anew.child.run_id).parent_id == fork.id


@pytest.mark.parametrize("follow", ["fork", "original"])
def test_a_fork_of_a_child_counts_where_the_link_says_so(
    start_run: StartRun, hand: Hand, helper: Hand, api: Api, follow: str
) -> None:
    """F38: the newest fork takes the child's place, with an event on the parent; or the one that was started stays."""
    parent = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 0.001}})
    job = hand.take()
    child = spawn(hand, job, follow=follow).child
    helper.report(helper.take(), "failed", error_code="X")
    first = forked(api.post(f"/v1/executions/{child.run_id}/replay", {}))
    second = forked(api.post(f"/v1/executions/{child.run_id}/replay", {}))
    counts = second.id if follow == "fork" else child.run_id
    (seen,) = children.look(hand.holder, job.stage.id, job.attempt_id, [child.run_id]) or ()
    assert (seen.run_id, seen.started) == (counts, child.run_id)
    told = [event.data["run"] for event in Event.objects.filter(run=parent, kind="child.follow").order_by("id")]
    assert told == ([str(first.id), str(second.id)] if follow == "fork" else [])
    if follow == "original":
        assert seen.status == "failed"
        return
    hand.report(job, "waiting", awaits_runs=[child.run_id])
    assert Stage.objects.get(run=parent).state == "waiting"
    (done,) = [work for work in helper.pull(2) if work.run_id == second.id]
    helper.report(done, output="better")
    assert Stage.objects.get(run=parent).state == "ready"
    (seen,) = children.look(*_held(hand), [child.run_id]) or ()
    assert (seen.status, seen.outputs) == ("completed", {"work": "better"})


def _held(hand: Hand) -> Any:
    job = hand.take()
    return hand.holder, job.stage.id, job.attempt_id


def test_the_plan_of_a_cancel_tells_who_ends_too_and_who_goes_on(
    start_run: StartRun, hand: Hand, helper: Hand, api: Api
) -> None:
    """F73: five children: the plan names each before anybody confirms, and what remains lists the survivors after."""
    run = start_run()
    job = hand.take()
    ending = [spawn(hand, job, f"end-{number}").child.run_id for number in range(3)]
    left = [spawn(hand, job, f"leave-{number}", on_parent_end="leave").child.run_id for number in range(2)]
    hand.report(job, "waiting", awaits_runs=[*ending, *left])
    plan = api.post(f"/v1/executions/{run.id}/cancel", {"dry_run": True}).json()
    plan = plan.get("plan", plan)
    assert plan["ends_too"] == [f"first: run {run_id} (imports)" for run_id in ending]
    assert plan["goes_on_outside"] == [
        f"first: run {run_id} (imports) was started to go on without this one" for run_id in left
    ]
    assert not Run.objects.filter(status="cancelled").exists()
    answer = api.post(f"/v1/executions/{run.id}/cancel", {"plan_digest": plan["plan_digest"], "reason": "stop"})
    assert answer.status_code == 200, answer.content
    assert set(Run.objects.filter(id__in=ending).values_list("status", flat=True)) == {"cancelled"}
    assert set(Run.objects.filter(id__in=left).values_list("status", flat=True)) == {"queued"}
    items = ReconciliationItem.objects.filter(run=run, kind="child_run")
    assert sorted(item.subject for item in items) == sorted(left)
    assert all("goes on" in item.detail for item in items)


def test_a_child_that_starts_meanwhile_changes_the_plan(start_run: StartRun, hand: Hand, api: Api) -> None:
    """F73: nobody confirms what they were not shown."""
    run = start_run()
    job = hand.take()
    plan = api.post(f"/v1/executions/{run.id}/cancel", {"dry_run": True}).json()
    plan = plan.get("plan", plan)
    spawn(hand, job)
    answer = api.post(f"/v1/executions/{run.id}/cancel", {"plan_digest": plan["plan_digest"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_changed")
    assert not Run.objects.filter(status="cancelled").exists()


def test_blockers_and_the_wait_of_a_stage_name_the_run(start_run: StartRun, hand: Hand, helper: Hand) -> None:
    run = start_run("first", "second")
    job = hand.take()
    child = spawn(hand, job).child
    hand.report(job, "waiting", awaits_runs=[child.run_id])
    (first, _) = queries.blockers(Run.objects.get(id=run.id))
    assert first.holder == "another run"
    assert first.cause == f"waits for run {child.run_id} (imports, queued), which it started"
    assert [one.id for one in first.behind] == [child.run_id]


def test_retention_keeps_a_child_while_its_parent_is_kept(
    start_run: StartRun, hand: Hand, helper: Hand, clock: Clock
) -> None:
    """Once the parent has gone, the child goes as any other run."""
    run = start_run("first", "second")
    job = hand.take()
    child = spawn(hand, job).child
    helper.finish()
    hand.report(job)
    clock.advance(days=31)
    assert retention.remove_older_than(30) == 0
    assert hand.finish() == 1
    run.refresh_from_db()
    assert run.status == "completed"
    assert retention.remove_older_than(30) == 0
    clock.advance(days=31)
    assert retention.remove_older_than(30) == 2
    assert not Run.objects.filter(id__in=[run.id, child.run_id]).exists()
