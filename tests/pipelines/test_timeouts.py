"""The server's time limit on one execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import sweeps
from pipelines.models import Run
from tests.cast import Hand
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.factories import PolicyFactory
from tests.pipelines.engine import attempt, attempts, everything, kinds, letters, stage, states, status

StartRun = Callable[..., Run]
RETRIES = {"max_retries": 1, "retry_interval": 10}


def work(hand: Hand, clock: Clock, job: Any, seconds: int) -> None:
    """Renews in time while `seconds` pass."""
    while seconds > 0:
        step = min(30, seconds)
        clock.advance(step)
        assert hand.renew(job)[0].acquired
        seconds -= step


def test_an_attempt_over_its_limit_fails_with_timeout_though_its_lease_lives(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """P40: both sides of the limit."""
    run = start_run({"name": "first", "options": {"timeout": 90}}, "second")
    job = hand.take()
    work(hand, clock, job, 85)
    assert sweeps.time_out_attempts() == 0
    clock.advance(5)
    assert sweeps.time_out_attempts() == 1
    found = attempt(job)
    assert (found.state, found.error_code) == ("timed_out", "TIMEOUT")
    assert states(run) == {"first": "failed", "second": "pending"}
    assert letters(run) == {"first": ("terminal_error", "open")}
    before = everything()
    assert sweeps.time_out_attempts() == 0
    assert everything() == before
    assert not hand.renew(job)[0].acquired
    assert hand.report(job).code == "stale_execution"
    assert_invariants()


@pytest.mark.parametrize(
    ("codes", "state"), [(["TIMEOUT"], "retry_scheduled"), ([], "retry_scheduled"), (["X"], "failed")]
)
def test_a_timeout_is_retried_as_a_failure_with_that_code(
    start_run: StartRun, hand: Hand, clock: Clock, codes: list[str], state: str
) -> None:
    run = start_run({"name": "first", "options": RETRIES | {"timeout": 10, "retry_on_error_codes": codes}})
    job = hand.take()
    clock.advance(10)
    sweeps.time_out_attempts()
    assert states(run) == {"first": state}
    assert attempt(job).decision["code"] == "TIMEOUT"
    assert stage(run, "first").recovery_count == 0
    assert_invariants()


def test_a_stage_that_acts_outside_waits_for_reconciliation_when_timed_out(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """R5, model §2: no retry is applied, whatever the options say."""
    run = start_run({"name": "pay", "effect_mode": "external", "options": RETRIES | {"timeout": 10}})
    hand.take()
    clock.advance(10)
    sweeps.time_out_attempts()
    assert (states(run), status(run)) == ({"pay": "needs_reconciliation"}, "blocked")
    assert attempts(run, "pay") == ["timed_out"]
    assert letters(run) == {}
    clock.advance(days=1)
    assert not any(sweeps.sweep().values())
    assert_invariants()


def test_the_limit_runs_from_the_acquisition_not_from_the_dispatch(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    start_run({"name": "first", "options": {"timeout": 20}})
    (job,) = hand.pull(acquire=False)
    clock.advance(15)
    hand.acquire(job)
    clock.advance(15)
    assert sweeps.time_out_attempts() == 0
    clock.advance(5)
    assert sweeps.time_out_attempts() == 1


def test_time_limit_and_lease_ending_together_make_one_successor(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F27."""
    run = start_run({"name": "first", "options": RETRIES | {"timeout": 60}})
    hand.take()
    clock.advance(60)
    sweeps.sweep()
    sweeps.sweep()
    clock.advance(10)
    assert len(hand.pull(10)) == 1
    assert len(attempts(run, "first")) == 2
    ends = [kind for kind in kinds(run, "first") if kind in ("stage.recover", "stage.schedule_retry")]
    assert len(ends) == 1
    assert_invariants()


def test_a_timeout_policy_outranks_the_stages_own_limit(start_run: StartRun, hand: Hand, place: Any) -> None:
    """P45 for time limits: the most specific active one that targets the stage."""
    PolicyFactory(workspace_id=place.workspace_id, kind="timeout", match={"handler": "Handler"}, rule={"seconds": 7})
    PolicyFactory(
        workspace_id=place.workspace_id, kind="timeout", match={"stage": "first"}, rule={"seconds": 5}, status="paused"
    )
    PolicyFactory(workspace_id=place.workspace_id, kind="timeout", match={"stage": "other"}, rule={"seconds": 3})
    start_run({"name": "first", "options": {"timeout": 100}})
    assert hand.take().timeout_seconds == 7


def test_without_a_limit_an_attempt_may_run_for_days(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """F14."""
    start_run("first")
    job = hand.take()
    assert job.timeout_seconds is None
    for _ in range(100):
        work(hand, clock, job, 60)
    assert not any(sweeps.sweep().values())
    assert hand.report(job).accepted
