"""What the tests of run retries begin with: policies, runs that fail, and time that passes."""

from __future__ import annotations

from typing import Any

from pipelines.models import Policy, Run, Workspace
from recovery import run_retry_work
from recovery.models import RunRetry
from tests.cast import Hand
from tests.clock import Clock
from tests.factories import PolicyFactory

RULE = {"mode": "resume", "max_retries": 3, "retry_interval": 60}


def policy_of(workspace: Workspace, name: str = "again", match: dict[str, Any] | None = None, **rule: Any) -> Policy:
    """A policy for whole runs; by default three times, a minute apart, at the failed stages."""
    return PolicyFactory(workspace=workspace, kind="run_retry", name=name, match=match or {}, rule={**RULE, **rule})


def fail(hand: Hand, code: str = "UPSTREAM_DOWN", **told: Any) -> str:
    """The next job fails, for good as far as its stage goes; the name of its stage."""
    job = hand.take()
    assert hand.report(job, "failed", error_code=code, **told).accepted
    return job.stage.name


def pass_time(clock: Clock, seconds: float = 60) -> int:
    """Lets time pass, then a sweep come by."""
    clock.advance(seconds)
    return run_retry_work.carry_on()


def retries(run: Run) -> list[tuple[str, int]]:
    """State and number of every decision about the run, in order."""
    return list(RunRetry.objects.filter(run=run).order_by("decided_at", "id").values_list("state", "number"))


def newest(run: Run) -> RunRetry:
    return RunRetry.objects.filter(run=run).order_by("-decided_at", "-id")[0]


def fork_of(run: Run) -> Run:
    return Run.objects.get(recovered_from=run)
