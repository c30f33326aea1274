"""Everybody at once on a few runs: a thousand operations of every kind, no deadlock, every invariant afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from approvals.transitions import decide_gate
from pipelines import leases, sweeps
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Attempt, Run, Stage
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import Crew, deadlocks
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

ROUNDS = 10
PER_ROUND = 15


class Mischief:
    """One thread's random operations. What is refused is fine; what is raised is not."""

    def __init__(self, seed: int, hand: Hand, operator: Actor, application: Actor, runs: list[Run]) -> None:
        self._random = random.Random(seed)
        self._hand = hand
        self._operator = operator
        self._application = application
        self._runs = runs
        self.done = 0

    def make(self, count: int) -> None:
        acts = [self._pull] * 5 + [self._report] * 8 + [self._renew] * 2 + [self._release, self._steer, self._steer]
        acts += [self._retry] * 3 + [self._skip, self._decide, self._decide, sweeps.sweep, self._cancel]
        for _ in range(count):
            with suppress(Refusal):
                self._random.choice(acts)()
            self.done += 1

    def _stage(self) -> Stage:
        run = self._random.choice(self._runs)
        return self._random.choice(list(Stage.objects.filter(run=run)))

    def _attempts(self) -> list[Attempt]:
        own = Attempt.objects.filter(session=self._hand.holder.session_id, state__in=["running", "dispatched"])
        return list(own) or list(Attempt.objects.order_by("?")[:1])

    def _pull(self) -> None:
        self._hand.pull(self._random.randint(1, 4), acquire=self._random.random() < 0.7)

    def _report(self) -> None:
        from pipelines import results

        told = []
        for attempt in self._attempts():
            leases.acquire(self._hand.holder, attempt.stage_id, attempt.id)
            how = self._random.choice(["succeeded", "succeeded", "failed", "waiting"])
            told.append(results.Result(attempt.stage_id, attempt.id, attempt.number, how, error_code="FOO"))
        self._random.shuffle(told)
        results.report(self._hand.holder, told)

    def _renew(self) -> None:
        leases.renew(self._hand.holder, [(attempt.stage_id, attempt.id) for attempt in self._attempts()])

    def _release(self) -> None:
        for attempt in self._attempts()[:1]:
            leases.release(self._hand.holder, attempt.stage_id, attempt.id)

    def _steer(self) -> None:
        self._random.choice([pause_run, resume_run, resume_run])(
            self._random.choice(self._runs).id, actor=self._operator
        )

    def _cancel(self) -> None:
        if self._random.random() < 0.05:
            cancel_run(self._random.choice(self._runs).id, actor=self._operator)

    def _retry(self) -> None:
        scope = self._random.choice(["stage", "stage_and_downstream"])
        retry_stage(self._stage().id, actor=self._operator, scope=scope, reason="again", acknowledge_effects=True)

    def _skip(self) -> None:
        if self._random.random() < 0.3:
            skip_stage(self._stage().id, actor=self._operator, reason="not needed")

    def _decide(self) -> None:
        waiting = Stage.objects.filter(state="waiting").order_by("?").first() or self._stage()
        decide_gate(waiting.id, actor=self._application, approved=self._random.random() < 0.8)


def play(
    crew: Crew,
    start_run: Callable[..., Run],
    new_hand: Callable[..., Hand],
    people: dict[str, Person],
    application: Actor,
    clock: Clock,
    *,
    rounds: int,
    per_round: int,
    seed: int,
) -> int:
    retries = {"options": {"max_retries": 2, "retry_interval": 30, "timeout": 90}}
    runs = [
        start_run(
            {"name": "top", **retries},
            {"name": "left", "depends_on": ["top"], "effect_mode": "external"},
            {"name": "right", "depends_on": ["top"], "approval": {"when": "before", "expires_in": 300}, **retries},
            {"name": "odd", "depends_on": ["top"], "run_next_if_failed": True},
            {"name": "join", "depends_on": ["left", "right", "odd"], "approval": {"when": "after"}},
            deadline_seconds=100_000,
        )
        for _ in range(6)
    ]
    players = [
        Mischief(seed + number, new_hand(f"hand-{number}"), people["operator"].actor, application, runs)
        for number in range(8)
    ]
    for _ in range(rounds):
        crew.at_once(*(lambda player=player: player.make(per_round) for player in players))
        clock.advance(35)
        assert_invariants()
    for run in runs:
        assert len(kinds(run)) > 5
    return sum(player.done for player in players)


def test_a_thousand_mixed_operations_neither_deadlock_nor_break_an_invariant(
    crew: Crew, start_run: Any, new_hand: Any, people: dict[str, Person], application_actor: Actor, clock: Clock
) -> None:
    """I1–I6, I8, I9, I15, R21, F76: eight threads over six runs."""
    before = deadlocks()
    done = play(crew, start_run, new_hand, people, application_actor, clock, rounds=ROUNDS, per_round=PER_ROUND, seed=1)
    assert done == ROUNDS * PER_ROUND * 8
    assert deadlocks() == before


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100, 2000, 100))
def test_twenty_thousand_mixed_operations(
    crew: Crew,
    start_run: Any,
    new_hand: Any,
    people: dict[str, Person],
    application_actor: Actor,
    clock: Clock,
    seed: int,
) -> None:
    """The same, longer, with other dice."""
    play(crew, start_run, new_hand, people, application_actor, clock, rounds=10, per_round=15, seed=seed)
