"""Limits are reserved before anything is dispatched, charged by attempt, and never grow back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import leases, sweeps
from pipelines.errors import Refusal
from pipelines.limits import Limits, narrowed, problems
from pipelines.models import Attempt, DeadLetter, Event, QueueEntry, Run, Stage
from tests import verbs
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants

RETRIED = {"max_retries": 3, "retry_interval": 10, "max_output_bytes": 100}


def side_by_side(*names: str, **stage: Any) -> list[dict[str, Any]]:
    """Independent stages behind one that comes first, each of which may return 100 bytes."""
    told = {"options": {"max_output_bytes": 100}, **stage}
    return [
        {"name": "first", "options": {"max_output_bytes": 100}},
        *({"name": name, "depends_on": ["first"], **told} for name in names),
    ]


def states(run: Run) -> dict[str, str]:
    return {stage.name: stage.state for stage in stages_of(run)}


def spent(run: Run) -> tuple[int, int]:
    """Attempts that began, and the bytes that they are charged."""
    begun = list(Attempt.objects.filter(run_id=run.id, started_at__isnull=False))
    return len(begun), sum(attempt.reserved for attempt in begun)


def test_a_batch_whose_sum_exceeds_the_total_is_not_dispatched(start_run: Callable[..., Run], hand: Hand) -> None:
    """R26: 100 are charged, 250 in all, and the two that come next would need 200."""
    run = start_run(*side_by_side("left", "right"), limits={"total_output_bytes": 250})
    assert hand.report(hand.take(), output="ok").accepted
    assert states(run) == {"first": "completed", "left": "failed", "right": "failed"}
    assert not QueueEntry.objects.exists()
    assert not hand.pull(10)
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "budget_exhausted")
    assert "200 bytes of output would be reserved; 150 of the run's 250 are left" in run.failure_message
    assert {letter.reason for letter in DeadLetter.objects.filter(run_id=run.id)} == {"terminal_error"}


def test_a_batch_that_fits_goes_on_together(start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run(*side_by_side("left", "right"), limits={"total_output_bytes": 300})
    assert hand.finish() == 3
    run.refresh_from_db()
    assert run.status == "completed"
    assert spent(run) == (3, 300)


def test_first_stages_that_do_not_fit_are_not_dispatched(start_run: Callable[..., Run], hand: Hand) -> None:
    """R26, before anything was charged."""
    alone = [{"name": name, "depends_on": [], "options": {"max_output_bytes": 100}} for name in "ab"]
    run = start_run(*alone, {"name": "c", "depends_on": ["a", "b"]}, limits={"total_output_bytes": 2**18 + 1})
    assert hand.pull(10)
    small = start_run(*alone, {**alone[0], "name": "c", "depends_on": ["a"]}, limits={"total_output_bytes": 150})
    assert states(small) == {"a": "failed", "b": "failed", "c": "pending"}
    assert not Attempt.objects.filter(run_id=small.id).exists()
    assert run.id != small.id


def test_a_failed_attempt_gives_nothing_back(start_run: Callable[..., Run], hand: Hand, clock: Clock) -> None:
    """R27, R28, I13: two attempts of 100 are all that 250 have room for, though neither returned anything."""
    run = start_run({"name": "only", "options": RETRIED}, limits={"total_output_bytes": 250})
    hand.report(hand.take(), "failed", error_code="UPSTREAM_ERROR")
    assert spent(run) == (1, 100)
    assert states(run) == {"only": "retry_scheduled"}
    clock.advance(10)
    job = hand.take()
    receipt = hand.report(job, "failed", error_code="UPSTREAM_ERROR")
    assert receipt.stage_state == "failed"
    assert spent(run) == (2, 200)
    (stage,) = stages_of(run)
    assert (stage.last_error_code, stage.failure_disposition) == ("UPSTREAM_ERROR", "budget_exhausted")
    assert DeadLetter.objects.get(run_id=run.id).reason == "retries_exhausted"
    again = hand.report(job, "failed", error_code="UPSTREAM_ERROR")
    assert (again.accepted, again.stage_state) == (True, "failed")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"attempts_per_stage": 2}, "only: all 2 attempts of the stage are used"),
        ({"total_attempts": 2}, "only: 2 of the run's 2 attempts are used or reserved"),
    ],
)
def test_attempts_run_out(
    start_run: Callable[..., Run], hand: Hand, clock: Clock, limits: dict[str, int], message: str
) -> None:
    """R25: attempts per stage and in total."""
    run = start_run({"name": "only", "options": RETRIED}, limits=limits)
    for _ in range(2):
        hand.report(hand.take(), "failed", error_code="UPSTREAM_ERROR")
        clock.advance(10)
    assert not hand.pull()
    (stage,) = stages_of(run)
    assert (stage.state, stage.failure_disposition) == ("failed", "attempts_exhausted")
    decision = Attempt.objects.get(stage=stage, number=2).decision
    assert decision is not None
    assert decision["exhausted"] == "attempts_exhausted"
    assert Event.objects.get(run_id=run.id, kind="stage.fail").reason.endswith(message)
    assert spent(run)[0] == 2


def test_what_never_began_is_not_charged(start_run: Callable[..., Run], hand: Hand) -> None:
    """An attempt that was taken back before its lease was acquired used nothing: it is dispatched again."""
    from pipelines import transitions
    from pipelines.moves import Moves

    run = start_run("only", limits={"total_attempts": 1, "attempts_per_stage": 1})
    for verb in (
        lambda moves, row: transitions.pause(moves, row, ""),
        lambda moves, row: transitions.resume(moves, row, ""),
    ):
        if states(run) == {"only": "ready"} and not Run.objects.get(id=run.id).paused:
            assert len(hand.pull(acquire=False)) == 1
        moves = Moves.lock([run.id])
        verb(moves, moves.runs[run.id])
    assert spent(run) == (0, 0)
    assert hand.report(hand.take(), output=1).accepted
    assert Run.objects.get(id=run.id).status == "completed"


def test_an_output_above_the_limit_of_the_run_is_too_large(start_run: Callable[..., Run], hand: Hand) -> None:
    """R25: output bounds; the run's is below the stage's default."""
    run = start_run("only", limits={"output_bytes_per_stage": 10})
    hand.report(hand.take(), output="x" * 20)
    (stage,) = stages_of(run)
    assert stage.last_error_code == "OUTPUT_TOO_LARGE"
    assert spent(run) == (1, 10)


def test_as_many_stages_are_active_as_the_run_allows(start_run: Callable[..., Run], hand: Hand) -> None:
    """R25: concurrency. Each that ends lets the next one into the queue."""
    run = start_run(
        *[{"name": name, "depends_on": []} for name in "abcde"],
        {"name": "z", "depends_on": ["a"]},
        limits={"concurrency": 2},
    )
    first = hand.pull(10)
    assert [job.stage.name for job in first] == ["a", "b"]
    assert not hand.pull(10)
    hand.report(first[0], output=1)
    assert len(hand.pull(10)) == 1
    hand.report(first[1], output=1)
    assert len(hand.pull(10)) == 1
    active = Stage.objects.filter(run_id=run.id, state="running")
    assert active.count() == 2


def test_a_run_pins_its_limits_with_their_defaults(start_run: Callable[..., Run]) -> None:
    run = start_run("only", limits={"total_attempts": 7, "attempts_per_stage": 3, "deadline_seconds": 60})
    assert run.limits == Limits(total_attempts=7, attempts_per_stage=3, deadline_seconds=60).as_json()
    assert run.deadline_at is not None
    assert run.release_digest


@pytest.mark.parametrize(
    ("told", "options", "paths"),
    [
        ({"output_bytes_per_stage": 10}, {"max_output_bytes": 11}, ["stages[0].options.max_output_bytes"]),
        ({"total_output_bytes": 99}, {"max_output_bytes": 100}, ["limits.total_output_bytes"]),
        ({"total_attempts": 2, "attempts_per_stage": 3}, {}, ["limits.attempts_per_stage"]),
        ({"total_output_bytes": 100, "output_bytes_per_stage": 100}, {"max_output_bytes": 100}, []),
    ],
)
def test_limits_that_contradict_each_other_are_found(
    told: dict[str, int], options: dict[str, int], paths: list[str]
) -> None:
    assert [path for path, _ in problems(told, [{"options": options}])] == paths


BOUNDS = st.fixed_dictionaries(
    {}, optional={"concurrency": st.integers(1, 100), "total_attempts": st.integers(1, 1000)}
)


@given(BOUNDS, BOUNDS)
def test_a_run_s_own_limits_only_narrow(release: dict[str, int], told: dict[str, int]) -> None:
    wide = Limits.of(release)
    result, wrong = narrowed(wide, told)
    asked_for_more = {f"limits.{name}" for name, value in told.items() if value > wide.as_json()[name]}
    assert {path for path, _ in wrong} == asked_for_more
    if not wrong:
        assert all(result.as_json()[name] <= wide.as_json()[name] for name in told)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["pull", "dispatch", "succeed", "fail", "fail", "release", "wait", "pause", "retry", "skip"]),
        st.integers(0, 5),
    ),
    max_size=30,
)
TIGHT = st.fixed_dictionaries(
    {"total_attempts": st.integers(3, 9), "total_output_bytes": st.integers(200, 900)},
    optional={"concurrency": st.integers(1, 3), "attempts_per_stage": st.integers(1, 3)},
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(TIGHT, ACTS)
def test_whatever_is_done_in_whatever_order_the_balance_only_falls_and_is_never_overdrawn(
    start_run: Callable[..., Run],
    new_hand: Callable[..., Hand],
    people: dict[str, Person],
    clock: Clock,
    limits: dict[str, int],
    acts: list[tuple[str, int]],
) -> None:
    """R25–R29, I13, I14: after each of any sequence of acts; a refusal charges nothing."""
    limits["attempts_per_stage"] = min(limits.get("attempts_per_stage", 3), limits["total_attempts"])
    stage = {"options": RETRIED | {"retry_interval": 1}}
    shape = [("b", ["a"]), ("c", ["a"]), ("d", ["b"]), ("e", ["b", "c"])]
    run = start_run({"name": "a", **stage}, *({"name": n, "depends_on": d, **stage} for n, d in shape), limits=limits)
    hand, held, seen = new_hand(f"hand-{run.id}"), [], spent(run)
    operator = people["operator"].actor
    for act, number in acts:
        job = held.pop(number % len(held)) if held and act in ("succeed", "fail", "release") else None
        chosen = stages_of(run)[number % 5]
        with suppress(Refusal):
            match act:
                case "pull":
                    held += hand.pull(1 + number)
                case "dispatch":
                    hand.pull(1, acquire=False)
                case "succeed" if job:
                    hand.report(job, output=1)
                case "fail" if job:
                    hand.report(job, "failed", error_code="X")
                case "release" if job:
                    leases.release(hand.holder, job.stage.id, job.attempt_id)
                case "wait":
                    clock.advance(400 if number == 0 else 5)
                    sweeps.sweep()
                case "pause":
                    verbs.pause_run(run.id, actor=operator)
                    verbs.resume_run(run.id, actor=operator)
                case "retry":
                    scope = "stage_and_downstream" if number % 2 else "stage"
                    verbs.retry_stage(chosen.id, actor=operator, scope=scope, reason="again")
                case "skip":
                    verbs.skip_stage(chosen.id, actor=operator, reason="not needed")
        now = spent(run)
        assert now[0] >= seen[0], "what was charged stays charged"
        assert now[1] >= seen[1], "what was charged stays charged"
        seen = now
        assert_invariants()
    assert seen[0] <= limits["total_attempts"]
    assert seen[1] <= limits["total_output_bytes"]
