"""Runs that stages start: one for each key, waited for without a worker, ended with their parents or left."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from pipelines import awaited_runs, children
from pipelines.account import account_of
from pipelines.children import Started, Wish
from pipelines.creation import Intent
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.intents import tell_effects
from pipelines.jobs import Job
from pipelines.models import Attempt, ChildRun, Event, ReconciliationItem, Run, Stage
from pipelines.moves import Moves
from pipelines.sql import execute
from pipelines.states import RunStatus
from pipelines.sweeps import sweep
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person, stage_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.verbs import pause_run, resume_run, retry_after_review, retry_stage, skip_stage

pytestmark = pytest.mark.django_db(transaction=True)

StartRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def sound(transactional_db: None) -> Any:
    yield
    assert_invariants()


def spawn(hand: Hand, job: Job, key: str = "day", **wish: Any) -> Started:
    """The child of a job's stage under a key, with one stage `work` for the handler `Child`."""
    stages = wish.pop("stages", [stage_of({"name": "work", "handler": "Child"})])
    intent = Intent(name=wish.pop("name", "imports"), stages=stages)
    started = children.start(hand.holder, job.stage.id, job.attempt_id, Wish(key, intent, **wish))
    assert started is not None
    return started


def park(hand: Hand, job: Job, *runs: uuid.UUID) -> str | None:
    return hand.report(job, "waiting", awaits_runs=list(runs)).stage_state


def stage_of_run(run: Run | uuid.UUID) -> Stage:
    return Stage.objects.get(run=run, position=0)


@pytest.fixture
def helper(new_hand: Callable[..., Hand]) -> Hand:
    """A worker for what children are made of."""
    return new_hand("helper", "Child")


def test_a_stage_waits_for_its_child_without_a_worker_and_goes_on_once_that_has_ended(
    start_run: StartRun, hand: Hand, helper: Hand
) -> None:
    """N9: in the same epoch, nothing counted; its next attempt is told how the child ended."""
    run = start_run()
    job = hand.take()
    started = spawn(hand, job)
    assert started.created
    assert started.child.status == "queued"
    assert park(hand, job, started.child.run_id) == "waiting"
    run.refresh_from_db()
    assert (run.status, run.has_children) == ("waiting", True)
    assert not hand.pull()
    assert Attempt.objects.get(id=job.attempt_id).state == "waiting"

    assert helper.report(helper.take(), output={"rows": 7}).accepted
    stage = stage_of_run(run)
    assert (stage.state, stage.epoch, stage.retry_count, stage.recovery_count) == ("ready", 1, 0, 0)
    again = hand.take()
    found = spawn(hand, again)
    assert (found.created, found.child.status, found.child.outputs) == (False, "completed", {"work": {"rows": 7}})
    assert hand.report(again, output=1).accepted
    run.refresh_from_db()
    assert run.status == "completed"
    assert Run.objects.count() == 2


def test_a_retry_and_a_recovery_of_a_stage_that_starts_a_run_find_the_same_one(
    start_run: StartRun, hand: Hand, helper: Hand, clock: Clock
) -> None:
    """F129: after a failure, after a lost worker, and after the child failed: within an epoch its end is an answer."""
    start_run({"name": "first", "options": {"max_retries": 3, "retry_interval": 1, "max_recoveries": 3}})
    job = hand.take()
    first = spawn(hand, job)
    hand.report(job, "failed", error_code="X")
    clock.advance(5)
    job = hand.take()
    assert spawn(hand, job).child.run_id == first.child.run_id
    clock.advance(600)
    sweep()
    job = hand.take()
    helper.report(helper.take(), "failed", error_code="BAD", error_message="no")
    again = spawn(hand, job)
    assert (again.created, again.child.run_id, again.child.status) == (False, first.child.run_id, "failed")
    assert (again.child.failure_code, again.child.failure_message) == ("BAD", "no")
    assert Run.objects.exclude(parent=None).count() == 1


def test_a_failed_child_is_begun_anew_only_in_a_later_epoch(
    start_run: StartRun, hand: Hand, helper: Hand, people: dict[str, Person]
) -> None:
    """N9, F129: its end is final to the epoch that saw it; one that completed is found for ever."""
    start_run()
    job = hand.take()
    good, bad = spawn(hand, job, "good"), spawn(hand, job, "bad")
    for child in helper.pull(2):
        helper.report(child, *([] if child.run_id == good.child.run_id else ["failed"]))
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    retry_stage(job.stage.id, actor=people["operator"].actor, reason="again")
    job = hand.take()
    assert job.stage.epoch == 2
    assert spawn(hand, job, "good").child.run_id == good.child.run_id
    anew = spawn(hand, job, "bad")
    assert anew.created
    assert anew.child.run_id != bad.child.run_id
    assert list(ChildRun.objects.filter(key="bad").order_by("created_at").values_list("is_current", flat=True)) == [
        False,
        True,
    ]


def test_what_failed_with_an_open_effect_is_not_begun_anew(
    start_run: StartRun, hand: Hand, helper: Hand, people: dict[str, Person]
) -> None:
    """R4: nobody knows what it did; a person settles that first, whoever lets the retry go on."""
    start_run()
    job = hand.take()
    child = spawn(hand, job, stages=[stage_of({"name": "work", "handler": "Child", "effect_mode": "external"})]).child
    work = helper.take()
    tell_effects(helper.holder, work.stage.id, work.attempt_id, [Told("external_http", "declared", "send", "k")])
    cancel_run(child.run_id, actor=people["operator"].actor)
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    retry_after_review(job.stage.id, actor=people["operator"].actor, by=people["approver"].actor, reason="again")
    with pytest.raises(Refusal) as refused:
        spawn(hand, hand.take(), stages=[stage_of({"name": "work", "handler": "Child", "effect_mode": "external"})])
    assert refused.value.code == "needs_reconciliation"
    assert Run.objects.exclude(parent=None).count() == 1


def test_a_stage_that_parks_with_an_open_effect_waits_for_reconciliation(
    start_run: StartRun, hand: Hand, helper: Hand
) -> None:
    """R4: parking begins the handler anew, and it must repeat no act of which nobody knows; again, the same."""
    start_run({"name": "first", "effect_mode": "external"})
    job = hand.take()
    child = spawn(hand, job).child
    tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", "declared", "send", "k")])
    assert park(hand, job, child.run_id) == "needs_reconciliation"
    assert park(hand, job, child.run_id) == "needs_reconciliation"
    helper.finish()
    assert stage_of_run(job.run_id).state == "needs_reconciliation"
    assert not ChildRun.objects.filter(awaited=True).exists()


def test_the_same_parking_again_gets_the_same_answer(start_run: StartRun, hand: Hand, helper: Hand) -> None:
    """P54: whatever has become of the stage since; parked for others, it is too late."""
    start_run()
    job = hand.take()
    child, other = spawn(hand, job).child, spawn(hand, job, "other").child
    assert park(hand, job, child.run_id) == "waiting"
    helper.finish()
    assert stage_of_run(job.run_id).state == "ready"
    assert park(hand, job, child.run_id) == "waiting"
    late = hand.report(job, "waiting", awaits_runs=[other.run_id])
    assert (late.accepted, late.code) == (False, "stale_execution")


def test_a_key_stands_for_one_request(start_run: StartRun, hand: Hand) -> None:
    start_run()
    job = hand.take()
    spawn(hand, job)
    with pytest.raises(Refusal) as refused:
        spawn(hand, job, name="another")
    assert refused.value.code == "idempotency_conflict"
    assert Run.objects.count() == 2


def test_a_child_belongs_where_its_parent_does_and_to_who_asked_for_that(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """Same application and environment; who asked for the parent decides no gate of the child (four eyes)."""
    run = start_run()
    execute("UPDATE pipelines_run SET requesters = %s WHERE id = %s", [[people["approver"].user.id], run.id])
    job = hand.take()
    with pytest.raises(Refusal) as refused:
        spawn(hand, job, environment="production")
    assert refused.value.code == "recovery_environment_mismatch"
    child = Run.objects.get(id=spawn(hand, job, environment="development").child.run_id)
    assert (child.application_id, child.environment_id) == (run.application_id, run.environment_id)
    assert (child.parent_id, child.depth, child.requesters) == (run.id, 1, [people["approver"].user.id])


def test_only_who_holds_the_attempt_starts_runs_or_looks_at_them(
    start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand], clock: Clock
) -> None:
    """Another session is refused, and so is the one whose lease has ended; nothing is started."""
    start_run()
    job = hand.take()
    other = new_hand("hand-2")
    with pytest.raises(Refusal) as refused:
        spawn(other, job)
    assert refused.value.code == "stale_execution"
    child = spawn(hand, job).child
    with pytest.raises(Refusal):
        children.look(other.holder, job.stage.id, job.attempt_id, [child.run_id])
    clock.advance(600)
    with pytest.raises(Refusal) as refused:
        spawn(hand, job, "late")
    assert refused.value.code == "stale_execution"
    assert Run.objects.count() == 2


def test_what_the_stage_did_not_start_is_neither_looked_at_nor_waited_for(start_run: StartRun, hand: Hand) -> None:
    run, other = start_run(key="one"), start_run(key="two")
    job = hand.take()
    for strange in (uuid.uuid4(), other.id, run.id):
        with pytest.raises(Refusal) as refused:
            children.look(hand.holder, job.stage.id, job.attempt_id, [strange])
        assert (refused.value.code, list(refused.value.errors)) == ("validation_error", ["runs[0]"])
        receipt = hand.report(job, "waiting", awaits_runs=[strange])
        assert (receipt.accepted, receipt.code) == (False, "validation_error")
    assert stage_of_run(job.run_id).state == "running"


def test_a_run_that_starts_itself_again_and_again_stops(start_run: StartRun, hand: Hand, settings: Any) -> None:
    settings.RECOURSE_CHILD_DEPTH = 3
    start_run()
    itself = [stage_of("first")]
    for depth in range(3):
        child = spawn(hand, hand.take(), stages=itself).child
        assert Run.objects.get(id=child.run_id).depth == depth + 1
    with pytest.raises(Refusal) as refused:
        spawn(hand, hand.take(), stages=itself)
    assert refused.value.code == "budget_exhausted"


def test_a_run_starts_so_many_others_and_no_more(start_run: StartRun, hand: Hand, settings: Any) -> None:
    settings.RECOURSE_CHILD_RUNS = 2
    start_run()
    job = hand.take()
    spawn(hand, job, "a")
    spawn(hand, job, "b")
    with pytest.raises(Refusal) as refused:
        spawn(hand, job, "c")
    assert refused.value.code == "budget_exhausted"
    assert not spawn(hand, job, "a").created


def test_a_child_that_ended_before_its_stage_parks_wakes_it_at_once(
    start_run: StartRun, hand: Hand, helper: Hand
) -> None:
    start_run()
    job = hand.take()
    child = spawn(hand, job).child
    helper.finish()
    assert park(hand, job, child.run_id) == "waiting"
    assert stage_of_run(job.run_id).state == "ready"


def test_a_stage_that_waits_for_several_goes_on_after_the_last(
    start_run: StartRun, hand: Hand, helper: Hand, people: dict[str, Person]
) -> None:
    """N9: failed, completed or cancelled: each end is an answer, in the order asked."""
    start_run()
    job = hand.take()
    runs = [spawn(hand, job, key).child.run_id for key in "abc"]
    park(hand, job, *runs)
    for work, status in zip(helper.pull(3), ("failed", "succeeded"), strict=False):
        assert helper.report(work, status, error_code="X" if status == "failed" else "").accepted
        assert stage_of_run(job.run_id).state == "waiting"
    cancel_run(Run.objects.get(id__in=runs, status="running").id, actor=people["operator"].actor)
    assert stage_of_run(job.run_id).state == "ready"
    again = hand.take()
    seen = children.look(hand.holder, again.stage.id, again.attempt_id, runs)
    assert seen is not None
    assert sorted(child.status for child in seen) == ["cancelled", "completed", "failed"]
    assert [child.run_id for child in seen] == runs


def test_pause_resume_skip_and_retry_of_a_stage_that_waits_for_runs(
    start_run: StartRun, hand: Hand, helper: Hand, people: dict[str, Person]
) -> None:
    """As the tables say: the run pauses and resumes; a stage that waits is neither skipped nor retried. Ended while
    paused, the child wakes the stage, which is handed out once the run is resumed."""
    run = start_run()
    actor = people["operator"].actor
    job = hand.take()
    park(hand, job, spawn(hand, job).child.run_id)
    for verb in (skip_stage, retry_stage):
        with pytest.raises(Refusal) as refused:
            verb(job.stage.id, actor=actor, reason="no")
        assert refused.value.code == "stage_state_invalid"
    pause_run(run.id, actor=actor)
    run.refresh_from_db()
    assert run.status == "paused"
    helper.finish()
    assert stage_of_run(run).state == "ready"
    assert not hand.pull()
    resume_run(run.id, actor=actor)
    assert hand.take().stage.id == job.stage.id


@pytest.mark.parametrize("end", ["cancelled", "deadline", "failed", "completed"])
@pytest.mark.parametrize("on_parent_end", ["cancel", "leave"])
def test_children_end_with_their_parent_or_are_left(
    start_run: StartRun,
    hand: Hand,
    helper: Hand,
    people: dict[str, Person],
    clock: Clock,
    end: str,
    on_parent_end: str,
) -> None:
    """F73: the matrix, whichever way the parent ends. Ended from outside, it lists those that go on."""
    run = start_run(deadline_seconds=3600)
    job = hand.take()
    child = spawn(hand, job, on_parent_end=on_parent_end).child
    helper.take()
    if end == "cancelled":
        park(hand, job, child.run_id)
        cancel_run(run.id, actor=people["operator"].actor, reason="stop")
    elif end == "deadline":
        park(hand, job, child.run_id)
        clock.advance(3601)
        assert sweep()["deadlines"] == 1
    elif end == "failed":
        hand.report(job, "failed", error_code="VALIDATION_ERROR")
    else:
        hand.report(job)
    run.refresh_from_db()
    assert run.status == ("failed" if end == "deadline" else end)
    found = Run.objects.get(id=child.run_id)
    if on_parent_end == "cancel":
        assert found.status == "cancelled"
        assert Event.objects.filter(run=found, kind="run.cancelled", reason__contains=str(run.id)).exists()
    else:
        assert found.status not in ("cancelled", "failed")
    left = ReconciliationItem.objects.filter(run=run, kind="child_run")
    assert left.count() == (on_parent_end == "leave" and end in ("cancelled", "deadline"))
    assert not ChildRun.objects.filter(awaited=True).exists()
    assert not ChildRun.objects.filter(ending=True).exists()


def test_grandchildren_end_with_the_first_of_all(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    run = start_run()
    for _ in range(3):
        spawn(hand, hand.take(), stages=[stage_of("first")])
    cancel_run(run.id, actor=people["operator"].actor)
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}


def test_the_sweep_does_what_a_crash_after_the_commit_left(
    start_run: StartRun, hand: Hand, helper: Hand, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a wake-up nor a cancel is lost: both are asked of the tables."""
    waiting, ended = start_run(key="a"), start_run(key="b")
    monkeypatch.setattr(awaited_runs, "_follow_up", lambda *_: None)
    jobs = {job.run_id: job for job in hand.pull(2)}
    child = spawn(hand, jobs[waiting.id]).child
    park(hand, jobs[waiting.id], child.run_id)
    helper.finish()
    lost = spawn(hand, jobs[ended.id]).child
    cancel_run(ended.id, actor=people["operator"].actor)
    assert (stage_of_run(waiting).state, Run.objects.get(id=lost.run_id).status) == ("waiting", "queued")
    assert sweep()["children"] == 2
    assert (stage_of_run(waiting).state, Run.objects.get(id=lost.run_id).status) == ("ready", "cancelled")
    assert sweep()["children"] == 0


def test_a_run_that_starts_no_other_pays_nothing_for_those_that_do(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """The hot path asks the run's own row, and nothing else: neither at an end nor at a cancel."""
    with CaptureQueriesContext(connection) as asked:
        start_run("first", "second", key="a")
        hand.finish()
        cancel_run(start_run(key="b").id, actor=people["operator"].actor)
    assert len(asked) > 10
    assert not [one["sql"] for one in asked if "childrun" in one["sql"]]


def test_the_account_tells_what_is_waited_for_and_what_it_came_to(
    start_run: StartRun, hand: Hand, helper: Hand
) -> None:
    run = start_run()
    job = hand.take()
    child = spawn(hand, job).child
    park(hand, job, child.run_id)
    (stage,) = account_of(Run.objects.get(id=run.id)).stages
    assert f"waits for run {child.run_id}" in stage.standing
    assert stage.next == [f"it goes on by itself; what it waits for: recourse execution list --parent-id {run.id}"]
    assert any(f"started run {child.run_id} as day" in line for line in stage.story)
    assert any("waits for runs that it started" in line for line in stage.story)


def test_parents_that_are_ended_together_take_their_own_children_along(
    start_run: StartRun, hand: Hand, helper: Hand
) -> None:
    """F73: as bulk operations end them: decided apart, written at once."""
    runs = [start_run(key=key) for key in "ab"]
    jobs = {job.run_id: job for job in hand.pull(2)}
    ends = spawn(hand, jobs[runs[0].id]).child
    left = spawn(hand, jobs[runs[1].id], on_parent_end="leave").child
    park(hand, jobs[runs[0].id], ends.run_id)
    with transaction.atomic():
        whole = Moves.lock([run.id for run in runs])
        for part in whole.apart().values():
            (run,) = part.runs.values()
            part.end_run(run, RunStatus.CANCELLED, reason="stop")
            part.save()
        whole.save()
    assert Run.objects.get(id=ends.run_id).status == "cancelled"
    assert Run.objects.get(id=left.run_id).status == "queued"
    assert ReconciliationItem.objects.get(run=runs[1], kind="child_run").subject == left.run_id
