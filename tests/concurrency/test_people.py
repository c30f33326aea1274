"""People and programs who press the same button in the same instant."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from approvals.transitions import decide_gate
from pipelines.access import Actor
from pipelines.creation import Intent, Place, create_run
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, GateDecision, Run, RunIdentity
from recovery.models import Operation
from tests.cast import Hand, Person, stage_of
from tests.concurrency.crew import Crew, refusals
from tests.pipelines.engine import kinds, stage, states, status
from tests.verbs import cancel_as_operation, retry_stage, skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]


def failed_run(start_run: StartRun, hand: Hand) -> Run:
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="FOO")
    return run


def test_a_retry_pressed_by_many_begins_one_epoch(crew: Crew, start_run: StartRun, hand: Hand, people: People) -> None:
    """F56: without a key the others are told that the stage is not there any more; with one they get the answer."""
    operator = people["operator"].actor
    for number in range(20):
        run = failed_run(start_run, hand)
        target = stage(run, "first").id
        key = f"click-{number}" if number % 2 else ""
        answers = crew.at_once(*(lambda t=target, k=key: retry_stage(t, actor=operator, key=k) for _ in range(4)))
        assert stage(run, "first").epoch == 2
        assert kinds(run, "first").count("stage.retry") == 1
        if key:
            assert len({answer.operation_id for answer in answers}) == 1
            assert sorted(answer.replayed for answer in answers) == [False, True, True, True]
        else:
            assert refusals(answers) == ["stage_state_invalid"] * 3
        assert hand.report(hand.take()).accepted
    assert Operation.objects.count() == 20


def test_one_key_for_two_stages_serves_one_of_them(crew: Crew, start_run: StartRun, hand: Hand, people: People) -> None:
    """F125: a race never answers 5xx; the loser is refused and its stage stays as it was."""
    operator = people["operator"].actor
    for number in range(20):
        runs = [failed_run(start_run, hand) for _ in range(2)]
        targets = [stage(run, "first").id for run in runs]
        answers = crew.at_once(
            *(lambda t=target, n=number: retry_stage(t, actor=operator, key=f"k{n}") for target in targets)
        )
        assert refusals(answers) == ["recovery_idempotency_conflict"]
        assert sorted(states(run)["first"] for run in runs) == ["failed", "ready"]
        assert Operation.objects.filter(key=f"k{number}").count() == 1
        hand.finish()


def test_retry_beside_skip_does_one_of_them(crew: Crew, start_run: StartRun, hand: Hand, people: People) -> None:
    operator = people["operator"].actor
    for _ in range(40):
        run = failed_run(start_run, hand)
        target = stage(run, "first").id
        retried, skipped = crew.at_once(
            lambda t=target: retry_stage(t, actor=operator, reason="again"),
            lambda t=target: skip_stage(t, actor=operator, reason="not needed"),
        )
        # one after the other is fine too: a skipped stage may be retried, a ready one skipped
        told = [kind for kind in kinds(run, "first") if kind in ("stage.retry", "stage.skip")]
        assert not isinstance(retried, Refusal)
        assert not isinstance(skipped, Refusal)
        assert sorted(told) == ["stage.retry", "stage.skip"]
        assert states(run)["first"] == ("ready" if told[-1] == "stage.retry" else "skipped")
        hand.finish()


@pytest.mark.parametrize("opposite", [False, True])
def test_two_decisions_at_once_have_one_effect(
    crew: Crew, start_run: StartRun, hand: Hand, application_actor: Actor, opposite: bool
) -> None:
    """F138, P81, P82: equal ones get the same answer, of opposite ones the second is a conflict."""
    for number in range(40):
        run = start_run({"name": "first", "approval": {"when": "before"}}, "second")
        target = stage(run, "first").id
        answers = crew.at_once(
            lambda t=target: decide_gate(t, actor=application_actor, approved=True),
            lambda t=target: decide_gate(t, actor=application_actor, approved=not opposite),
        )
        assert GateDecision.objects.count() == number + 1
        told = [kind for kind in kinds(run, "first") if kind in ("stage.approve_before", "stage.deny")]
        assert len(told) == 1
        if opposite:
            assert refusals(answers) == ["gate_decision_conflict"]
            assert states(run)["first"] == ("ready" if told == ["stage.approve_before"] else "failed")
        else:
            assert sorted(answer.replayed for answer in answers) == [False, True]
            assert replace(answers[0], replayed=answers[1].replayed) == answers[1]
            assert states(run)["first"] == "ready"


def test_equal_creations_at_once_make_one_run(crew: Crew, place: Place) -> None:
    """P19, F118, F124, F125: one is new, the others find it; no error."""
    intent = Intent(name="nightly", stages=[stage_of("first")])
    for number in range(25):
        answers = crew.at_once(
            *(lambda n=number: create_run(place, intent, key=f"invoice-{n}", actor="billing") for _ in range(8))
        )
        assert len({run_id for run_id, _ in answers}) == 1
        assert sorted(created for _, created in answers) == [False] * 7 + [True]
    assert Run.objects.count() == RunIdentity.objects.count() == 25


def test_of_different_creations_with_one_key_one_is_made_and_the_others_are_told(crew: Crew, place: Place) -> None:
    """P20: the losers leave nothing behind."""
    intents = [Intent(name=f"run {number}", stages=[stage_of("first")]) for number in range(8)]
    for number in range(10):
        answers = crew.at_once(
            *(lambda n=number, i=intent: create_run(place, i, key=f"k{n}", actor="billing") for intent in intents)
        )
        assert refusals(answers) == ["idempotency_conflict"] * 7
    assert Run.objects.count() == 10


def test_a_cancel_pressed_by_many_is_one_cancel(crew: Crew, start_run: StartRun, people: People) -> None:
    operators = itertools.cycle(["operator", "admin"])
    for number in range(20):
        run = start_run("first")
        actor = people[next(operators)].actor
        answers = crew.at_once(
            *(lambda r=run, a=actor, n=number: cancel_as_operation(r.id, actor=a, key=f"c{n}") for _ in range(4))
        )
        assert len({answer.operation_id for answer in answers}) == 1
        assert kinds(run).count("run.cancelled") == 1
        assert status(run) == "cancelled"
    outcomes = list(AuditEvent.objects.filter(action="run.cancel").values_list("outcome", flat=True))
    assert sorted(set(outcomes)) == ["allowed", "no_op"]
    assert outcomes.count("allowed") == 20
