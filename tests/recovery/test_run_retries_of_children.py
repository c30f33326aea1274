"""A child that failed and retries itself is not final for who waits for it, in place or as a linked run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import awaited_runs
from pipelines.jobs import Job
from pipelines.models import ChildRun, Run, Workspace
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import states, status
from tests.pipelines.test_children import park, spawn
from tests.recovery.retried import fail, fork_of, newest, pass_time, policy_of

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def sound(transactional_db: None) -> Any:
    yield
    assert_invariants()


@pytest.fixture
def helper(new_hand: Callable[..., Hand]) -> Hand:
    return new_hand("helper", "Child")


@pytest.fixture
def parked(start_run: StartRun, hand: Hand, helper: Hand, workspace: Workspace) -> Callable[..., tuple[Run, Run]]:
    """A parent that waits for its child, which then fails under a policy for whole runs."""

    def make(**ruled: Any) -> tuple[Run, Run]:
        wish = {"follow": ruled.pop("follow")} if "follow" in ruled else {}
        policy_of(workspace, **ruled)
        parent = start_run()
        job: Job = hand.take()
        child = spawn(hand, job, **wish).child
        assert park(hand, job, child.run_id) == "waiting"
        fail(helper)
        return parent, Run.objects.get(id=child.run_id)

    return make


def told(hand: Hand) -> Any:
    """How its child ended, as the parent's next attempt is told."""
    return spawn(hand, hand.take()).child


def test_a_parent_waits_on_while_its_child_is_to_be_resumed(
    parked: Callable[..., tuple[Run, Run]], hand: Hand, helper: Hand, clock: Clock
) -> None:
    """N9: a failed child is a final answer only once nothing is due about it; nothing of the parent is counted."""
    parent, child = parked()
    assert newest(child).state == "due"
    assert (status(child), status(parent)) == ("failed", "waiting")
    assert awaited_runs.sweep() == 0
    assert hand.pull() == []
    assert pass_time(clock) == 1
    assert (status(parent), hand.pull()) == ("waiting", [])
    helper.report(helper.take(), output={"rows": 7})
    seen = told(hand)
    assert (seen.run_id, seen.status, seen.is_terminal, seen.outputs) == (
        child.id,
        "completed",
        True,
        {"work": {"rows": 7}},
    )


def test_a_parent_follows_the_run_that_is_made_of_its_child(
    parked: Callable[..., tuple[Run, Run]], hand: Hand, helper: Hand, clock: Clock
) -> None:
    """F38: with `follow: fork` the linked run counts, and its end is the answer."""
    parent, child = parked(mode="new_run")
    assert awaited_runs.sweep() == 0
    assert pass_time(clock) == 1
    fork = fork_of(child)
    assert ChildRun.objects.get(parent=parent).run_id == fork.id
    assert (awaited_runs.sweep(), status(parent)) == (0, "waiting")
    helper.report(helper.take(), output={"rows": 8})
    seen = told(hand)
    assert (seen.run_id, seen.started, seen.status) == (fork.id, child.id, "completed")


def test_a_parent_that_follows_no_fork_has_its_answer_once_nothing_is_due(
    parked: Callable[..., tuple[Run, Run]], hand: Hand, clock: Clock
) -> None:
    _, child = parked(mode="new_run", follow="original")
    assert pass_time(clock) == 1
    assert awaited_runs.sweep() == 1
    seen = told(hand)
    assert (seen.run_id, seen.status, seen.is_terminal) == (child.id, "failed", True)


@pytest.mark.parametrize("ends", ["exhausted", "called off"])
def test_a_parent_has_its_answer_once_its_child_is_given_up(
    parked: Callable[..., tuple[Run, Run]], hand: Hand, helper: Hand, people: dict[str, Person], clock: Clock, ends: str
) -> None:
    """The last failure is final at once; a retry that is called off wakes the parent by the sweep."""
    from recovery import run_retry_work

    _, child = parked(max_retries=1)
    if ends == "exhausted":
        assert pass_time(clock) == 1
        fail(helper)
        assert newest(child).state == "declined"
    else:
        run_retry_work.stop(child.id, actor=people["operator"].actor)
        assert awaited_runs.sweep() == 1
    seen = told(hand)
    assert (seen.status, seen.is_terminal, seen.failure_code) == ("failed", True, "UPSTREAM_DOWN")


def test_what_a_child_is_told_meanwhile_is_no_end(
    parked: Callable[..., tuple[Run, Run]], start_run: StartRun, hand: Hand, helper: Hand, workspace: Workspace
) -> None:
    """Who looks before it parks sees that it failed, and that this is not its end."""
    policy_of(workspace)
    start_run()
    job = hand.take()
    child = spawn(hand, job).child
    fail(helper)
    again = spawn(hand, job).child
    assert (again.run_id, again.status, again.is_terminal) == (child.run_id, "failed", False)
    assert park(hand, job, child.run_id) == "waiting"


def test_a_child_that_was_to_end_with_its_parent_is_not_retried_after_it(
    parked: Callable[..., tuple[Run, Run]], people: dict[str, Person], clock: Clock
) -> None:
    parent, child = parked()
    cancel_run(parent.id, actor=people["operator"].actor)
    assert pass_time(clock) == 1
    assert newest(child).state == "called_off"
    assert "it was to end with that" in newest(child).why
    assert states(child) == {"work": "failed"}
