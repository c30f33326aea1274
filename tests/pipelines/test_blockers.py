"""Why a run does not move: what holds it, in words that say no more than is true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approvals.transitions import decide_gate
from pipelines import queries, sweeps, transitions
from pipelines.models import Run
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]


def told(run: Run) -> list[tuple[str, str, str]]:
    return [(one.stage, one.holder, one.cause) for one in queries.blockers(Run.objects.get(id=run.id))]


def test_a_rejected_gate_asks_nobody_to_act(start_run: StartRun, people: dict[str, Person]) -> None:
    """I9: nothing in this run can change it, so no one is sent to try."""
    run = start_run({"name": "post", "approval": {"when": "before"}})
    decide_gate(stages_of(run)[0].id, actor=people["approver"].actor, approved=False, reason="wrong text")
    assert told(run) == [("post", "nobody", "its gate was rejected; that is final in this run")]


def test_an_open_gate_is_held_by_the_application_that_decides_it(start_run: StartRun) -> None:
    """P78: until people can decide it, nobody but the application is named."""
    ((stage, holder, cause),) = told(start_run({"name": "post", "approval": {"when": "before"}}))
    assert (stage, holder) == ("post", "the application")
    assert "expires" not in cause, "a gate without a limit is not said to have one"


def test_a_run_past_its_deadline_says_so_once_for_all_its_stages(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """I8: also for a stage that had failed before; retrying it is not suggested."""
    run = start_run(
        "load", {"name": "other", "depends_on": []}, {"name": "third", "depends_on": ["load"]}, deadline_seconds=60
    )
    hand.report(hand.take(), "failed", error_code="UNIQUE")
    clock.advance(61)
    sweeps.enforce_deadlines()
    ((stage, holder, cause),) = told(run)
    assert (stage, holder) == ("", "nobody")
    assert cause.startswith("the run passed its deadline, ")
    assert "retry" not in cause


def test_a_pause_without_a_reason_makes_none_up(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    """P60: the code that is kept in place of a reason is not told as one."""
    run = start_run("load")
    hand.take()
    transitions.pause_run(run.id, actor=people["operator"].actor)
    paused, running = told(run)
    assert paused[2].startswith("paused by operator-acme since ")
    assert paused[2].endswith("; nothing is handed out, running attempts may finish")
    assert "operator_pause" not in paused[2]
    assert running[1] == "hand-1"
