"""What source 004 lists as not built, line by line: each is there, each is off unless it was asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.models import Attempt, DeadLetter, Run, Workspace
from pipelines.sweeps import expire_leases
from recovery.models import RunRetry
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.pipelines.engine import attempts, states, status
from tests.recovery.retried import fail, newest, pass_time, policy_of

StartRun = Callable[..., Run]
TRACE = "Traceback (most recent call last):\n  File 'sync.py', line 4\nConnectionError: 503"


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def failed_at_the_second(start_run: StartRun, hand: Hand) -> Run:
    run = start_run("read", "write", "tell")
    hand.report(hand.take(), output={"rows": 3})
    hand.report(hand.take(), "failed", error_code="UPSTREAM_DOWN", error_message="503", traceback=TRACE, retryable=None)
    return run


def test_automatic_run_level_retry_on_a_policy(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """N1: not without one; with one the platform re-runs a failed run."""
    before = failed_at_the_second(start_run, hand)
    policy_of(workspace)
    after = failed_at_the_second(start_run, hand)
    assert pass_time(clock) == 1
    assert (status(before), status(after)) == ("failed", "running")
    assert not RunRetry.objects.filter(run=before).exists()


def test_exponential_backoff_at_the_run_level(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """N2: increasing delays between automatic run retries."""
    policy_of(workspace, retry_interval=10, backoff="exponential")
    run = start_run("only")
    fail(hand)
    delays = []
    for _ in range(3):
        delays.append(newest(run).decision["delay"])
        assert pass_time(clock, delays[-1]) == 1
        fail(hand)
    assert delays == [10, 20, 40]


def test_a_dead_letter_queue_for_inspection_and_reprocessing(
    start_run: StartRun, hand: Hand, operator: Api, clock: Clock
) -> None:
    """N3, N6: what failed parks with its whole traceback, stays there untouched, and is reprocessed when asked."""
    run = failed_at_the_second(start_run, hand)
    clock.advance(days=3)
    (letter,) = operator.get("/v1/dead-letters").json()["results"]
    assert (letter["status"], letter["stage"], letter["error_code"]) == ("open", "write", "UPSTREAM_DOWN")
    (attempt, _) = operator.get(f"/v1/executions/{run.id}/attempts").json()["results"]
    assert attempt["traceback"] == TRACE
    answer = operator.post(f"/v1/dead-letters/{letter['id']}/redrive", {"reason": "it is back"})
    assert answer.status_code == 200
    assert DeadLetter.objects.get().state == "redriven"
    hand.finish()
    assert status(run) == "completed"


def test_a_run_resumes_from_the_step_it_failed_on(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """N4: not from the top; what was completed is not done again, and its output is what the next step gets."""
    policy_of(workspace)
    run = failed_at_the_second(start_run, hand)
    assert pass_time(clock) == 1
    assert states(run) == {"read": "completed", "write": "ready", "tell": "pending"}
    hand.finish()
    assert status(run) == "completed"
    assert attempts(run, "read") == ["succeeded"]
    assert [stage.epoch for stage in stages_of(run)] == [1, 2, 1]


def test_no_end_to_end_exactly_once(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """N5, N25: a stage whose worker is lost is executed again; one attempt advances it, and the other is kept."""
    run = start_run("only")
    lost = hand.take()
    clock.advance(120)
    assert expire_leases() == 1
    again = hand.take()
    assert hand.report(again, output=1).accepted
    assert not hand.report(lost, output=1).accepted
    assert attempts(run, "only") == ["lost", "succeeded"]
    assert Attempt.objects.count() == 2
    assert status(run) == "completed"
