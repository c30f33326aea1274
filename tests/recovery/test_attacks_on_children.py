"""What was tried to have work of children done twice, or go on after its end, by retries that act by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.intents import tell_effects
from pipelines.models import ChildRun, Run, Workspace
from tests.cast import Hand, Person, stage_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import status
from tests.pipelines.test_children import spawn
from tests.recovery.retried import fail, newest, pass_time, policy_of
from tests.verbs import retry_stage

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
    """R4, R5: the run itself did nothing outside, and would begin a child anew that has charged somebody. A person may
    look at that; a policy does not."""
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
    """R4: what a child's children did outside is done again with it; whoever does not know of that settles it first."""
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
    retry_stage(job.stage.id, actor=people["operator"].actor, reason="again")
    again = hand.take()
    with pytest.raises(Refusal) as refused:
        spawn(hand, again)
    assert (refused.value.code, refused.value.extra) == ("needs_reconciliation", {"runId": str(grandchild.run_id)})
    assert ChildRun.objects.filter(key="day").count() == 1
