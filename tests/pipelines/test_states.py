"""The tables of states and moves: complete, closed, and deriving what model.md says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations_with_replacement

import pytest

from pipelines.states import (
    ATTEMPT_MOVES,
    DEAD_LETTER_MOVES,
    GATE_MOVES,
    RUN_NO_OPS,
    RUN_VERBS,
    STAGE_MOVES,
    TERMINAL_ATTEMPT,
    TERMINAL_RUN,
    TERMINAL_STAGE,
    AttemptState,
    DeadLetterState,
    GateState,
    RunStatus,
    StageFact,
    StageState,
    derive_run_status,
)
from tests.engine_model.oracle import implied_status

S, R = StageState, RunStatus

# model.md §2, word for word
RUNS = "queued running waiting pausing paused blocked completed failed cancelled"
STAGES = (
    "pending ready dispatched running retry_scheduled waiting needs_reconciliation completed failed skipped cancelled"
)
ATTEMPTS = "dispatched running succeeded failed timed_out waiting released undelivered lost fenced"
GATES = "open approved rejected expired cancelled"
LETTERS = "open acknowledged redriven discarded resolved"


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (RunStatus, RUNS),
        (StageState, STAGES),
        (AttemptState, ATTEMPTS),
        (GateState, GATES),
        (DeadLetterState, LETTERS),
    ],
)
def test_states_are_the_words_of_the_model(states: Iterable[str], words: str) -> None:
    assert {str(state) for state in states} == set(words.split())


@pytest.mark.parametrize(
    ("moves", "states", "first"),
    [
        (STAGE_MOVES, StageState, {S.PENDING}),
        (ATTEMPT_MOVES, AttemptState, {AttemptState.DISPATCHED}),
        (GATE_MOVES, GateState, {GateState.OPEN}),
        (DEAD_LETTER_MOVES, DeadLetterState, {DeadLetterState.OPEN}),
    ],
)
def test_every_state_can_be_reached_by_a_move(
    moves: Mapping[str, Mapping[str, str]], states: Iterable[str], first: set[str]
) -> None:
    reached, grown = set(first), True
    while grown:
        following = {to for table in moves.values() for origin, to in table.items() if origin in reached}
        grown = not following <= reached
        reached |= following
    assert reached == set(states)


def test_ended_attempts_and_gates_have_no_move() -> None:
    """I6: nothing changes a terminal attempt. I9: a decided gate is final."""
    assert not {origin for table in ATTEMPT_MOVES.values() for origin in table} & TERMINAL_ATTEMPT
    assert {origin for table in GATE_MOVES.values() for origin in table} == {GateState.OPEN}


def test_cancelled_stages_have_no_move() -> None:
    """I8: only a fork helps."""
    assert S.CANCELLED not in {origin for table in STAGE_MOVES.values() for origin in table}


def test_only_people_move_ended_stages() -> None:
    """N1, N4: the machine by itself never begins an ended stage again."""
    moving = {action for action, table in STAGE_MOVES.items() if TERMINAL_STAGE & set(table)}
    assert moving == {"retry", "rewind", "skip"}


def test_every_unfinished_stage_can_be_cancelled_and_no_other() -> None:
    """P73."""
    assert set(STAGE_MOVES["cancel"]) == set(StageState) - TERMINAL_STAGE
    assert set(STAGE_MOVES["cancel"].values()) == {S.CANCELLED}


def test_every_active_stage_has_a_way_out_that_needs_no_worker() -> None:
    """F15, F25: nothing waits for a worker that may be gone."""
    assert S.DISPATCHED in STAGE_MOVES["undeliver"]
    assert S.DISPATCHED in STAGE_MOVES["give_up_delivery"]
    assert S.RUNNING in STAGE_MOVES["recover"]
    assert S.RUNNING in STAGE_MOVES["give_up_recovery"]


def test_run_verbs_take_the_states_of_the_model() -> None:
    """P62, P63, P76: a terminal run takes neither pause nor resume; cancelling a cancelled run is a no-op."""
    assert RUN_VERBS["pause"] == {R.QUEUED, R.RUNNING, R.WAITING, R.BLOCKED}
    assert RUN_VERBS["resume"] == {R.PAUSING, R.PAUSED}
    assert RUN_VERBS["cancel"] == set(RunStatus) - TERMINAL_RUN
    assert {"cancel": {R.CANCELLED}} == RUN_NO_OPS


FACTS = [StageFact(state, bypassed) for state in StageState if state != S.CANCELLED for bypassed in (False, True)]


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_run_has_the_status_that_its_stages_imply(size: int, paused: bool, started: bool) -> None:
    """Every multiset of up to four stages, against the model's own words."""
    for facts in combinations_with_replacement(FACTS, size):
        told = [(str(fact.state), fact.run_next_if_failed) for fact in facts]
        wanted = implied_status(told, started=started, paused=paused)
        assert derive_run_status(facts, started=started, paused=paused) == wanted, facts


def test_a_run_ends_from_pausing_and_paused_too() -> None:
    done = [StageFact(S.COMPLETED, False), StageFact(S.SKIPPED, False)]
    assert derive_run_status(done, started=True, paused=True) == R.COMPLETED


def test_a_failure_that_may_be_passed_over_completes_the_run_and_any_other_fails_it() -> None:
    """`runNextIfFailed` sits on the stage that may fail."""
    rest = [StageFact(S.COMPLETED, False)]
    assert derive_run_status([StageFact(S.FAILED, True), *rest], started=True, paused=False) == R.COMPLETED
    assert derive_run_status([StageFact(S.FAILED, False), *rest], started=True, paused=False) == R.FAILED


def test_stages_behind_a_failure_do_not_keep_a_run_going() -> None:
    facts = [StageFact(S.FAILED, False), StageFact(S.PENDING, False)]
    assert derive_run_status(facts, started=True, paused=False) == R.FAILED
