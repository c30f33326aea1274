"""The six themes of source 001's own tests (R45): none of these cases advances into acceptance by itself.

Each run goes from `scope` by way of `correctness` to `acceptance`, as its fixture does (R47).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.transitions import decide_gate
from pipelines import imports, sweeps
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.imports import Answer
from pipelines.models import Attempt, Gate, LateEvidence, Run, Stage
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
GATED: dict[str, Any] = {"name": "scope", "approval": {"when": "before", "expires_in": 600}}
IMPORTED: dict[str, Any] = {"name": "correctness", "mode": "import"}


def not_accepted(run: Run, hand: Hand, clock: Clock) -> None:
    """Time passes, sweeps come by, a worker asks: nothing is handed out, and acceptance has not begun."""
    for _ in range(3):
        clock.advance(86_400)
        sweeps.sweep()
        assert not hand.pull(10)
    acceptance = Stage.objects.get(run=run, name="acceptance")
    assert (acceptance.attempt_number, acceptance.output_id) == (0, None)
    assert acceptance.state in ("pending", "cancelled")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code


def decide(run: Run, actor: Actor, *, approved: bool, reason: str = "") -> Any:
    gate = Gate.objects.filter(run=run).order_by("-opened_at")[0]
    return decide_gate(gate.stage_id, actor=actor, approved=approved, reason=reason)


def test_a_denial_persists(start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]) -> None:
    """R45, R12: neither a later approval nor a retry undoes it."""
    run = start_run(GATED, "correctness", "acceptance")
    decide(run, people["approver"].actor, approved=False, reason="two batches, not one")
    assert refused(lambda: decide(run, people["admin"].actor, approved=True)) == "gate_decision_conflict"
    scope = stages_of(run)[0]
    assert refused(lambda: retry_stage(scope.id, actor=people["operator"].actor, reason="please")) == "gate_denied"
    not_accepted(run, hand, clock)


def test_a_stale_approval_is_worth_nothing(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """R45: an approval that comes after its gate expired opens nothing."""
    run = start_run(GATED, "correctness", "acceptance")
    clock.advance(601)
    assert refused(lambda: decide(run, people["approver"].actor, approved=True)) == "approval_stale"
    not_accepted(run, hand, clock)


def test_an_exhausted_output_allowance_admits_nothing(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """R45, R26, R28: what failed gave nothing back, so there is no room for the next."""
    options = {"max_output_bytes": 100}
    run = start_run(
        *({"name": name, "options": options} for name in ("scope", "correctness", "acceptance")),
        limits={"total_output_bytes": 199},
    )
    hand.report(hand.take(), output="ok")
    assert Stage.objects.get(run=run, name="correctness").failure_disposition == "budget_exhausted"
    not_accepted(run, hand, clock)


def test_an_expired_deadline_is_final(start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]) -> None:
    """R45, R30, R31: also for who waited for a person, and for an answer that is right."""
    run = start_run(GATED, IMPORTED, "acceptance", deadline_seconds=60)
    clock.advance(61)
    code = refused(lambda: decide(run, people["approver"].actor, approved=True))
    assert code in ("deadline_exceeded", "approval_stale", "execution_state_invalid")
    not_accepted(run, hand, clock)


def test_a_cancelled_import_is_not_taken(
    start_run: StartRun, hand: Hand, clock: Clock, application_actor: Actor
) -> None:
    """R45, R36: kept as evidence only."""
    run = start_run(IMPORTED, "acceptance")
    attempt = Attempt.objects.get(run=run)
    cancel_run(run.id, actor=application_actor, reason="withdrawn")
    answer = Answer(attempt.request_digest, output="fine")
    assert refused(lambda: imports.take(attempt.stage_id, answer, actor=application_actor)) == "stale_request"
    assert LateEvidence.objects.filter(attempt=attempt).count() == 1
    not_accepted(run, hand, clock)


def test_an_interrupted_running_state_is_not_success(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """R45, R13: what acts outside and was cut off waits for a person, however long that takes."""
    outside = {"name": "correctness", "effect_mode": "external", "effect_protocol": "none"}
    run = start_run(outside, "acceptance")
    assert hand.take().stage.name == "correctness"
    clock.advance(600)
    assert sweeps.expire_leases() == 1
    assert Stage.objects.get(run=run, name="correctness").state == "needs_reconciliation"
    not_accepted(run, hand, clock)
