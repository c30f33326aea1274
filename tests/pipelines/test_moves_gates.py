"""Gates: asked for before or after the work, decided once, for good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from approvals.transitions import decide_gate
from pipelines.access import Actor
from pipelines.models import AuditEvent, GateDecision, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import everything, gate, kinds, last_event, letters, output, refused, stage, states, status

StartRun = Callable[..., Run]


def waiting_after(start_run: StartRun, hand: Hand) -> Run:
    run = start_run({"name": "a", "approval": {"when": "after"}}, "b")
    hand.report(hand.take(), output={"draft": 1})
    assert states(run) == {"a": "waiting", "b": "pending"}
    return run


def test_approved_after_the_work_it_completes_with_what_it_offered(
    start_run: StartRun, hand: Hand, application_actor: Actor
) -> None:
    """P79."""
    run = waiting_after(start_run, hand)
    decision = decide_gate(stage(run, "a").id, actor=application_actor, approved=True)
    assert (decision.stage_state, decision.approved) == ("completed", True)
    assert (states(run), output(run, "a")) == ({"a": "completed", "b": "ready"}, '{"draft":1}')
    assert last_event(run, "gate.approve").actor == "billing"
    assert_invariants()


def test_rejected_it_fails_with_the_reason_and_without_a_dead_letter(
    start_run: StartRun, hand: Hand, application_actor: Actor
) -> None:
    """P80: a person has already spoken, so nothing waits for one."""
    run = waiting_after(start_run, hand)
    decision = decide_gate(stage(run, "a").id, actor=application_actor, approved=False, reason="too dear")
    assert (decision.stage_state, decision.reason) == ("failed", "too dear")
    found = stage(run, "a")
    assert (found.failure_disposition, found.last_error_message, found.output_id) == ("gate_denied", "too dear", None)
    assert (states(run)["b"], status(run), letters(run)) == ("pending", "failed", {})
    assert hand.pull() == []
    assert_invariants()


def test_before_the_work_nothing_is_handed_out_until_it_is_approved(
    start_run: StartRun, hand: Hand, clock: Clock, application_actor: Actor
) -> None:
    """It covers every attempt of its epoch: a retry by the machine asks nobody again."""
    options = {"max_retries": 1, "retry_interval": 1}
    run = start_run({"name": "a", "approval": {"when": "before"}, "options": options})
    assert (status(run), states(run), hand.pull()) == ("waiting", {"a": "waiting"}, [])
    decide_gate(stage(run, "a").id, actor=application_actor, approved=True)
    assert (states(run), status(run)) == ({"a": "ready"}, "queued")
    hand.report(hand.take(), "failed", error_code="FOO")
    clock.advance(1)
    assert hand.report(hand.take()).stage_state == "completed"
    assert run.gates.count() == 1
    assert_invariants()


@pytest.mark.parametrize("approved", [True, False])
def test_the_same_decision_and_reason_again_changes_nothing(
    start_run: StartRun, hand: Hand, application_actor: Actor, approved: bool
) -> None:
    """P81: accepted, one decision row, one event."""
    run = waiting_after(start_run, hand)
    a = stage(run, "a").id
    first = decide_gate(a, actor=application_actor, approved=approved, reason="r")
    before = everything()
    again = decide_gate(a, actor=application_actor, approved=approved, reason="r")
    assert (again, first.replayed) == (replace(first, replayed=True), False)
    assert everything() == before
    assert GateDecision.objects.count() == 1
    assert list(AuditEvent.objects.order_by("at", "id").values_list("outcome", flat=True)) == ["allowed", "no_op"]


@pytest.mark.parametrize(
    ("approved", "reason", "then", "then_reason"),
    [(True, "", False, ""), (False, "x", True, "x"), (False, "x", False, "y"), (True, "x", True, "y")],
)
def test_another_decision_or_reason_conflicts(
    start_run: StartRun,
    hand: Hand,
    application_actor: Actor,
    approved: bool,
    reason: str,
    then: bool,
    then_reason: str,
) -> None:
    """P82."""
    run = waiting_after(start_run, hand)
    a = stage(run, "a").id
    decide_gate(a, actor=application_actor, approved=approved, reason=reason)
    with refused("gate_decision_conflict"):
        decide_gate(a, actor=application_actor, approved=then, reason=then_reason)


def test_the_same_words_from_somebody_else_conflict(
    start_run: StartRun, hand: Hand, application_actor: Actor, people: dict[str, Person]
) -> None:
    run = waiting_after(start_run, hand)
    decide_gate(stage(run, "a").id, actor=people["approver"].actor, approved=True)
    with refused("gate_decision_conflict"):
        decide_gate(stage(run, "a").id, actor=application_actor, approved=True)
    with refused("gate_decision_conflict"):
        decide_gate(stage(run, "a").id, actor=people["admin"].actor, approved=True)


def test_who_may_not_decide_is_refused_and_recorded(
    start_run: StartRun, hand: Hand, people: dict[str, Person], outsider: Person
) -> None:
    run = waiting_after(start_run, hand)
    for role in ("viewer", "operator"):
        with refused("permission_denied"):
            decide_gate(stage(run, "a").id, actor=people[role].actor, approved=True)
    assert AuditEvent.objects.filter(outcome="denied").count() == 2
    with refused("not_found"):
        decide_gate(stage(run, "a").id, actor=outsider.actor, approved=True)


def test_another_application_and_environment_do_not_know_the_stage(
    start_run: StartRun, hand: Hand, application_actor: Actor, environments: dict[str, Any]
) -> None:
    """P78, I16."""
    from dataclasses import replace

    run = waiting_after(start_run, hand)
    for stranger in (
        replace(application_actor, application_id=environments["staging"].id),
        replace(application_actor, environment_id=environments["staging"].id),
    ):
        with refused("not_found"):
            decide_gate(stage(run, "a").id, actor=stranger, approved=True)


@pytest.mark.parametrize("state", ["pending", "ready", "running", "completed"])
def test_a_stage_that_does_not_wait_takes_no_decision(
    start_run: StartRun, hand: Hand, application_actor: Actor, state: str
) -> None:
    run = start_run("a", "b")
    if state in ("running", "completed"):
        job = hand.take()
        if state == "completed":
            hand.report(job)
    name = "b" if state == "pending" else "a"
    assert states(run)[name] == state
    with refused("stage_state_invalid"):
        decide_gate(stage(run, name).id, actor=application_actor, approved=True)


def test_a_cancelled_run_takes_no_decision(start_run: StartRun, hand: Hand, application_actor: Actor) -> None:
    """The gate ends with its run."""
    run = waiting_after(start_run, hand)
    cancel_run(run.id, actor=application_actor)
    assert gate(run, "a").state == "cancelled"
    with refused("execution_state_invalid"):
        decide_gate(stage(run, "a").id, actor=application_actor, approved=True)
    assert_invariants()


def test_a_run_cannot_end_past_a_gate_in_one_of_its_branches(
    start_run: StartRun, hand: Hand, application_actor: Actor
) -> None:
    """F132."""
    run = start_run(
        "plain", {"name": "gated", "approval": {"when": "before"}}, {"name": "join", "depends_on": ["plain"]}
    )
    hand.finish()
    assert states(run) == {"plain": "completed", "gated": "waiting", "join": "completed"}
    assert status(run) == "waiting"
    assert "run.completed" not in kinds(run)
    decide_gate(stage(run, "gated").id, actor=application_actor, approved=False)
    assert status(run) == "failed"
    assert_invariants()
