"""Random stories, told to the engine and to the oracle: after every step both must say the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pipelines import sweeps
from pipelines.access import Actor
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model import oracle
from tests.engine_model.machine import TICK_SECONDS, EngineMachine


@pytest.fixture
def machine(
    start_run: Any,
    new_hand: Callable[..., Hand],
    people: dict[str, Person],
    application_actor: Actor,
    clock: Clock,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> type[EngineMachine]:
    settings.RECOURSE_LEASE_SECONDS = oracle.LEASE * TICK_SECONDS
    settings.RECOURSE_VISIBILITY_SECONDS = oracle.VISIBILITY * TICK_SECONDS
    monkeypatch.setattr(sweeps.log, "exception", loudly, raising=False)

    class Machine(EngineMachine):
        pass

    Machine.start_run = staticmethod(start_run)
    Machine.hands = [new_hand("hand-1"), new_hand("hand-2")]
    Machine.operator, Machine.application, Machine.clock = people["operator"].actor, application_actor, clock
    Machine.approver = people["approver"].actor
    Machine.deciders = {who: people[who].actor for who in oracle.DECIDERS if who in people}
    Machine.deciders[oracle.APPLICATION] = application_actor
    return Machine


def loudly(event: str, **facts: Any) -> None:
    """A sweep walks past what it cannot move; here that is a failure."""
    raise AssertionError(f"{event} {facts}")


def run(machine: type[EngineMachine], examples: int, steps: int, check_every: int) -> None:
    machine.check_every = check_every
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=chosen)


def test_the_engine_does_what_the_model_says(machine: type[EngineMachine]) -> None:
    """I1–I6, I8, I9, I15; R4, R5, F62; P31, P40, P57, P60–P64, P65–P70, P73, P77–P82, R30, R31: a sample of it."""
    run(machine, examples=40, steps=30, check_every=10)


@pytest.mark.prove
def test_the_engine_does_what_the_model_says_for_long(machine: type[EngineMachine]) -> None:
    """The same at length, with every invariant after every step."""
    run(machine, examples=400, steps=50, check_every=1)
