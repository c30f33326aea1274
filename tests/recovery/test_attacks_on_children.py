"""What was tried to have work of children done twice, or go on after its end, by retries that act by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import awaited_runs
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.intents import tell_effects
from pipelines.models import ChildRun, ReconciliationItem, Run, Workspace
from pipelines.moves import IllegalMove, Moves
from pipelines.queries import blockers as find_blockers_of
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from recovery.transitions import ask_cancel, plan_in_place
from tests.cast import Hand, Person, stage_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import status
from tests.pipelines.test_children import park, spawn
from tests.recovery.retried import fail, newest, pass_time, policy_of
from tests.verbs import retry_after_review, retry_stage

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def sound(transactional_db: None) -> Any:
    yield
    assert_invariants()


@pytest.fixture
def helper(new_hand: Callable[..., Hand]) -> Hand:
    return new_hand("helper", "Child")


def test_a_child_that_will_retry_itself_is_found_in_a_later_epoch_and_no_other_is_begun(
    start_run: StartRun,
    hand: Hand,
    helper: Hand,
    workspace: Workspace,
    people: dict[str, Person],
    clock: Clock,
) -> None:
    """F129: it failed, and goes on by itself: one begun anew beside it would do its work a second time."""
    policy_of(workspace)
    parent = start_run()
    job = hand.take()
    child = spawn(hand, job).child
    fail(helper)
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    assert newest(Run.objects.get(id=child.run_id)).state == "due"
    retry_stage(job.stage.id, actor=people["operator"].actor, reason="again")
    found = spawn(hand, hand.take())
    assert (found.created, found.child.run_id, found.child.is_terminal) == (False, child.run_id, False)
    assert pass_time(clock) == 1
    assert len(helper.pull(9)) == 1
    assert Run.objects.filter(parent=parent).count() == 1


def test_a_policy_repeats_nothing_that_a_child_did_outside(
    start_run: StartRun, hand: Hand, helper: Hand, workspace: Workspace, clock: Clock
) -> None:
    """R4, R5: the run itself did nothing outside, and would begin a child anew that has charged somebody. People can
    ask for a review of that; a policy does not."""
    policy_of(workspace, match={"error_codes": ["CHILD_FAILED"]})
    parent = start_run()
    job = hand.take()
    spawn(hand, job)
    work = helper.take()
    tell_effects(helper.holder, work.stage.id, work.attempt_id, [Told("external_http", "declared", "charge", "k")])
    tell_effects(helper.holder, work.stage.id, work.attempt_id, [Told("external_http", "committed", "charge", "k")])
    helper.report(work, "failed", error_code="VALIDATION_ERROR")
    hand.report(job, "failed", error_code="CHILD_FAILED")
    assert newest(parent).state == "due"
    assert pass_time(clock) == 1
    retry = newest(parent)
    assert (retry.state, retry.code, retry.disposition) == (
        "refused",
        "operator_review_required",
        "operator_review_required",
    )
    assert "work of run" in retry.why
    assert (hand.pull(), helper.pull()) == ([], [])


def test_a_policy_that_makes_a_new_run_repeats_no_more_of_it(
    start_run: StartRun, hand: Hand, helper: Hand, workspace: Workspace, clock: Clock
) -> None:
    policy_of(workspace, match={"error_codes": ["CHILD_FAILED"]}, mode="new_run")
    parent = start_run()
    job = hand.take()
    spawn(hand, job, stages=[stage_of({"name": "work", "handler": "Child", "effect_mode": "external"})])
    helper.report(helper.take(), "failed", error_code="VALIDATION_ERROR")
    hand.report(job, "failed", error_code="CHILD_FAILED")
    assert pass_time(clock) == 1
    assert (newest(parent).state, newest(parent).code) == ("refused", "operator_review_required")
    assert Run.objects.count() == 2


@pytest.mark.parametrize("mode", ["resume", "new_run"])
def test_a_policy_goes_on_where_children_did_nothing_or_are_found_again(
    start_run: StartRun, hand: Hand, helper: Hand, workspace: Workspace, clock: Clock, mode: str
) -> None:
    """What has completed is found and not done again, whatever it did; of what failed nothing was done outside."""
    policy_of(workspace, match={"error_codes": ["CHILD_FAILED"]}, mode=mode)
    parent = start_run()
    job = hand.take()
    good = spawn(hand, job, "good").child
    work = helper.take()
    tell_effects(helper.holder, work.stage.id, work.attempt_id, [Told("external_http", "declared", "charge", "k")])
    tell_effects(helper.holder, work.stage.id, work.attempt_id, [Told("external_http", "committed", "charge", "k")])
    helper.report(work)
    spawn(hand, job, "bad")
    helper.report(helper.take(), "failed", error_code="VALIDATION_ERROR")
    hand.report(job, "failed", error_code="CHILD_FAILED")
    assert pass_time(clock) == 1
    assert newest(parent).state == "done", newest(parent).why
    again = hand.take()
    assert (spawn(hand, again, "good").child.run_id, spawn(hand, again, "bad").created) == (good.run_id, True)


def test_what_a_grandchild_left_open_keeps_its_parent_from_being_begun_anew(
    start_run: StartRun, hand: Hand, helper: Hand, new_hand: Callable[..., Hand], people: dict[str, Person]
) -> None:
    """R4: what a child's children did outside is done again with it; whoever lets it go on all the same settles it
    first."""
    start_run()
    job = hand.take()
    spawn(hand, job)
    middle = helper.take()
    work = stage_of({"name": "charge", "handler": "Grandchild", "effect_mode": "idempotent"})
    grandchild = spawn(helper, middle, "deep", stages=[work]).child
    last = new_hand("last", "Grandchild")
    deep = last.take()
    tell_effects(last.holder, deep.stage.id, deep.attempt_id, [Told("external_http", "declared", "charge", "k")])
    helper.report(middle, "failed", error_code="VALIDATION_ERROR")
    assert status(Run.objects.get(id=grandchild.run_id)) == "cancelled"
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    retry_after_review(job.stage.id, actor=people["operator"].actor, by=people["approver"].actor, reason="again")
    again = hand.take()
    with pytest.raises(Refusal) as refused:
        spawn(hand, again)
    assert (refused.value.code, refused.value.extra) == ("needs_reconciliation", {"runId": str(grandchild.run_id)})
    assert ChildRun.objects.filter(key="day").count() == 1


def test_a_stage_whose_child_will_retry_itself_is_told_to_wait_for_it_and_for_no_decision(
    start_run: StartRun, hand: Hand, helper: Hand, workspace: Workspace, people: dict[str, Person]
) -> None:
    """F73: it failed and has not ended; whoever looks at the parent, or would cancel it, is told of that."""
    policy_of(workspace)
    parent = start_run()
    job = hand.take()
    child = spawn(hand, job).child
    left = spawn(hand, job, "left", on_parent_end="leave").child
    park(hand, job, child.run_id, left.run_id)
    fail(helper)
    fail(helper)
    parent.refresh_from_db()
    (blocker,) = find_blockers_of(parent)
    assert f"waits for run {child.run_id}" in blocker.cause
    plan = plan_in_place(ask_cancel(parent.id), actor=people["operator"].actor)
    assert [one for one in plan.ends_too if str(child.run_id) in one]
    assert not [one for one in plan.goes_on_outside if "decision" in one]
    assert [one for one in plan.goes_on_outside if str(left.run_id) in one]
    cancel_run(parent.id, actor=people["operator"].actor)
    assert [item.subject for item in ReconciliationItem.objects.filter(kind="child_run")] == [left.run_id]


def test_one_that_cannot_be_moved_holds_up_no_other(
    start_run: StartRun, hand: Hand, helper: Hand, monkeypatch: pytest.MonkeyPatch, people: dict[str, Person]
) -> None:
    """N9: a fault of ours about one parent, or one child, is met again each second; the others go on."""
    runs = [start_run(key=key) for key in "abcd"]
    jobs = {job.run_id: job for job in hand.pull(4)}
    started = {run.id: spawn(hand, jobs[run.id]).child.run_id for run in runs}
    for run in runs:
        park(hand, jobs[run.id], started[run.id])
    wakes, cancels = runs[:2], runs[2:]
    monkeypatch.setattr(awaited_runs, "_follow_up", lambda *_: None)  # as after a crash
    for job in helper.pull(4):
        if job.run_id in {started[run.id] for run in wakes}:
            helper.report(job)
    for run in cancels:
        cancel_run(run.id, actor=people["operator"].actor)
    broken = {wakes[0].id, started[cancels[0].id]}

    def once(inner: Callable[..., Any]) -> Callable[..., Any]:
        def outer(moves: Moves, one: Any, *args: Any, **named: Any) -> Any:
            if getattr(one, "run_id", one.id) in broken:
                raise IllegalMove("broken")
            return inner(moves, one, *args, **named)

        return outer

    with monkeypatch.context() as broke:
        broke.setattr(Moves, "runs_ended", once(Moves.runs_ended))
        broke.setattr(Moves, "end_run", once(Moves.end_run))
        assert awaited_runs.sweep() == 2
    assert (status(wakes[0]), status(wakes[1])) == ("waiting", "running")
    assert [status(Run.objects.get(id=started[run.id])) for run in cancels] == ["running", "cancelled"]
    assert awaited_runs.sweep() == 2
    assert [status(Run.objects.get(id=started[run.id])) for run in cancels] == ["cancelled", "cancelled"]


def test_a_page_of_a_run_reads_as_much_of_ten_thousand_children_as_of_three(
    start_run: StartRun, hand: Hand, helper: Hand
) -> None:
    run = start_run()
    job = hand.take()
    runs = [spawn(hand, job, str(key)).child.run_id for key in range(3)]
    park(hand, job, *runs)
    execute(
        "INSERT INTO pipelines_childrun (id, parent_id, stage_id, key, started_id, run_id, epoch, on_parent_end,"
        " follow, fingerprint, taken_over, is_current, awaited, ending) SELECT gen_random_uuid(), parent_id, stage_id,"
        " 'more-' || n, started_id, run_id, epoch, on_parent_end, follow, fingerprint, taken_over, true, true, false"
        " FROM (SELECT * FROM pipelines_childrun LIMIT 1) one, generate_series(1, 10000) n"
    )
    run.refresh_from_db()
    with CaptureQueriesContext(connection) as asked:
        (blocker,) = find_blockers_of(run)
    assert "and 10000 more, which it started" in blocker.cause
    about = [one["sql"] for one in asked if "pipelines_childrun" in one["sql"]]
    assert len(about) == 1
    with connection.cursor() as cursor:
        cursor.execute(about[0])
        assert len(cursor.fetchall()) == 3
