"""Runs that failed, done again by a policy: only with one, in place or as a linked run, bounded, and told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.models import AuditEvent, Run, Workspace
from recovery.models import Operation, RunRetry
from tests.cast import Hand
from tests.clock import Clock
from tests.pipelines.engine import kinds, letters, states, status
from tests.recovery.retried import fail, fork_of, newest, pass_time, policy_of, retries

StartRun = Callable[..., Run]
pytestmark = pytest.mark.usefixtures("people")


def test_without_a_policy_a_failed_run_stays_failed_for_ever(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """N1, N2, N4, N6: nothing is retried, made or resumed unasked, however long one waits."""
    run = start_run("first", "second")
    fail(hand)
    for _ in range(5):
        assert pass_time(clock, 86_400) == 0
    assert status(run) == "failed"
    assert states(run) == {"first": "failed", "second": "pending"}
    assert Run.objects.count() == 1
    assert not RunRetry.objects.exists()
    assert not Operation.objects.exists()
    assert "run.retry_due" not in kinds(run)
    assert hand.pull() == []


def test_a_run_resumes_at_its_failed_stage(start_run: StartRun, hand: Hand, clock: Clock, workspace: Workspace) -> None:
    """N1, N4: what was completed stays so, its dead letter is redriven, and the engine says who did it."""
    policy_of(workspace, "nights")
    run = start_run("first", "second", "third")
    hand.report(hand.take(), output={"n": 1})
    fail(hand)
    assert letters(run) == {"second": ("terminal_error", "open")}
    assert pass_time(clock, 59) == 0
    assert status(run) == "failed"

    assert pass_time(clock, 1) == 1
    assert states(run) == {"first": "completed", "second": "ready", "third": "pending"}
    assert letters(run) == {"second": ("terminal_error", "redriven")}
    assert retries(run) == [("done", 1)]
    (operation,) = Operation.objects.all()
    assert (operation.kind, operation.asker, operation.requested_by, operation.state) == (
        "redrive",
        "policy nights",
        None,
        "succeeded",
    )
    assert newest(run).operations == [str(operation.id)]
    verdict, redrive = AuditEvent.objects.filter(run=run.id, channel="policy").order_by("at", "id")
    assert (verdict.action, verdict.outcome) == ("execution.recovery_disposition", "allowed")
    assert (redrive.action, redrive.actor, redrive.user) == ("dead_letter.redrive", "policy nights", None)
    assert redrive.before == {"run": "failed", "stage": "failed", "epoch": 1}
    assert redrive.after == {"run": "queued", "stage": "ready", "epoch": 2} or redrive.after["stage"] == "ready"
    hand.finish()
    assert status(run) == "completed"
    assert pass_time(clock, 86_400) == 0


def test_delays_grow_and_end(start_run: StartRun, hand: Hand, clock: Clock, workspace: Workspace) -> None:
    """N2: with backoff the delays between retries of the run grow, are capped, and come to an end."""
    policy_of(workspace, max_retries=4, retry_interval=10, backoff="exponential", max_retry_interval=50)
    run = start_run("first")
    waited = []
    fail(hand)
    while (retry := newest(run)).state == "due":
        assert retry.due_at is not None
        waited.append((retry.due_at - retry.failed_at).total_seconds())
        assert pass_time(clock, waited[-1] - 1) == 0
        assert pass_time(clock, 1) == 1
        fail(hand)
    assert waited == [10, 20, 40, 50]
    assert retries(run) == [("done", 1), ("done", 2), ("done", 3), ("done", 4), ("declined", 5)]
    assert newest(run).explanation == "4 of 4 retries by policy again are used"
    assert pass_time(clock, 86_400) == 0
    assert status(run) == "failed"


def test_as_a_new_run_it_is_linked_and_the_source_stays(
    start_run: StartRun, hand: Hand, clock: Clock, workspace: Workspace
) -> None:
    """N1, I12, O20: a replay, whose number counts on over what it was made out of."""
    policy_of(workspace, "anew", mode="new_run", max_retries=2)
    run = start_run("first", "second")
    hand.report(hand.take())
    fail(hand)
    made = [run]
    for number in (1, 2):
        assert pass_time(clock) == 1
        fork = fork_of(made[-1])
        assert newest(made[-1]).made == fork.id
        assert newest(made[-1]).number == number
        assert states(fork) == {"first": "ready", "second": "pending"}
        assert fork.recovery["type"] == "replay"
        assert fork.started_by is None
        assert states(made[-1]) == {"first": "completed", "second": "failed"}
        assert letters(made[-1]) == {"second": ("terminal_error", "open")}
        hand.report(hand.take())
        fail(hand)
        made.append(fork)
    assert retries(made[-1]) == [("declined", 3)]
    assert pass_time(clock, 86_400) == 0
    assert Run.objects.count() == 3
    assert Operation.objects.filter(kind="replay", requested_as="policy anew").count() == 2
