"""Two sweeps at once, people in between, and a sweep that dies anywhere: a run is retried once for each number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pipelines import audit
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Event, Run, Workspace
from recovery import forks, operations, run_retry_work, transitions
from recovery.models import Operation, RunRetry
from recovery.states import OperationKind
from tests.cast import Hand, stages_of
from tests.clock import Clock
from tests.concurrency.crew import Crew
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import states, status
from tests.recovery.bulked import begun, letters_of, of
from tests.recovery.retried import fail, fork_of, newest, policy_of, retries
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
SWEEPS = 4


@pytest.fixture
def due(start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock) -> Callable[..., list[Run]]:
    """Runs that failed and whose retries are due now."""

    def make(count: int, **ruled: Any) -> list[Run]:
        policy_of(workspace, **ruled)
        runs = [start_run("first", "second") for _ in range(count)]
        for _ in runs:
            fail(hand)
        clock.advance(60)
        return runs

    return make


@pytest.mark.parametrize("mode", ["resume", "new_run"])
def test_many_sweeps_at_once_retry_each_run_once(due: Callable[..., list[Run]], crew: Crew, mode: str) -> None:
    """I2, I10: whoever holds the run does it; the others pass it over."""
    runs = due(12, mode=mode)
    done = crew.at_once(*[run_retry_work.carry_on] * SWEEPS)
    for _ in range(3):
        done.append(run_retry_work.carry_on())
    assert sum(done) == len(runs)
    for run in runs:
        assert retries(run) == [("done", 1)]
        assert Operation.objects.filter(run=run).count() == 1
        assert Run.objects.filter(recovered_from=run).count() == (1 if mode == "new_run" else 0)
        assert [stage.epoch for stage in stages_of(run)] == ([2, 1] if mode == "resume" else [1, 1])
        assert Event.objects.filter(run=run, kind="run.retry_done").count() == 1


@pytest.mark.parametrize("mode", ["resume", "new_run"])
def test_a_person_and_a_sweep_at_once_are_one_after_the_other(
    due: Callable[..., list[Run]], crew: Crew, operator: Actor, mode: str
) -> None:
    """Either the person took the run over and the retry is called off, or it was done and the person is told so."""
    runs = due(8, mode=mode)
    stages = [stages_of(run)[0].id for run in runs]
    people = [partial(retry_stage, one, actor=operator) for one in stages[:5]]
    answers = crew.at_once(run_retry_work.carry_on, run_retry_work.carry_on, *people)
    run_retry_work.carry_on()
    for run, answer in zip(runs, answers[2:], strict=False):
        by_person = not isinstance(answer, Refusal)
        if mode == "resume":
            assert by_person == (newest(run).state == "called_off")
            assert stages_of(run)[0].epoch == 2
            assert Operation.objects.filter(run=run).count() == 1
        else:
            assert by_person
            assert Run.objects.filter(recovered_from=run).count() == (0 if newest(run).state == "called_off" else 1)
    for run in runs[5:]:
        assert retries(run) == [("done", 1)]


def test_stops_and_sweeps_at_once_leave_one_outcome(due: Callable[..., list[Run]], crew: Crew, operator: Actor) -> None:
    runs = due(6, mode="new_run")
    stops = [partial(run_retry_work.stop, run.id, actor=operator) for run in runs]
    answers = crew.at_once(run_retry_work.carry_on, run_retry_work.carry_on, *stops)
    run_retry_work.carry_on()
    for run, answer in zip(runs, answers[2:], strict=True):
        made = Run.objects.filter(recovered_from=run).count()
        if isinstance(answer, Refusal):
            assert (answer.code, newest(run).state, made) == ("execution_state_invalid", "done", 1)
        else:
            assert (newest(run).state, made) == ("called_off", 0)


def test_a_bulk_and_a_sweep_at_once_never_do_both(due: Callable[..., list[Run]], crew: Crew, operator: Actor) -> None:
    from recovery import bulk_work

    runs = due(10)
    bulk = begun(of(OperationKind.REDRIVE, letters_of(runs)), operator)
    crew.at_once(run_retry_work.carry_on, partial(bulk_work.step, bulk.id), run_retry_work.carry_on)
    run_retry_work.carry_on()
    for run in runs:
        assert next(stage.epoch for stage in stages_of(run)) <= 2
        assert newest(run).state in ("done", "called_off")
        assert Operation.objects.filter(run=run, state="succeeded").count() == 1


class Killed(BaseException):
    """Nothing after this is done by the sweep."""


PLACES: list[tuple[Any, str]] = [
    (operations, "opened"),
    (operations, "verdict_of"),
    (operations, "add"),
    (forks, "allow"),
    (forks, "insert_runs"),
    (forks, "_copy_context"),
    (forks, "make_reserved"),
    (run_retry_work, "_keep"),
    (run_retry_work, "insert_events"),
    (audit, "write_all"),
]
IN_PLACE: list[tuple[Any, str]] = [(transitions, "carry_out"), *PLACES[:3], *PLACES[7:]]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("mode", "where", "name"),
    [*(("new_run", *one) for one in PLACES), *(("resume", *one) for one in IN_PLACE)],
)
def test_a_sweep_that_dies_anywhere_leaves_all_or_nothing(
    due: Callable[..., list[Run]],
    crew: Crew,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    where: Any,
    name: str,
    after: bool,
) -> None:
    """I10, I11: idempotent by run and number; the next sweep finds it due, and one run is made at the most."""
    (run,) = due(1, mode=mode)
    own = getattr(where, name)

    def dies(*args: Any, **more: Any) -> Any:
        if after:
            own(*args, **more)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(where, name, dies)
        with pytest.raises(Killed):
            run_retry_work.carry_on()
    assert status(run) == "failed"
    assert retries(run) == [("due", 1)]
    assert not Operation.objects.exists()
    assert not AuditEvent.objects.filter(channel="policy").exists()
    assert Run.objects.count() == 1
    assert_invariants()

    assert run_retry_work.carry_on() == 1
    assert run_retry_work.carry_on() == 0
    assert retries(run) == [("done", 1)]
    assert Run.objects.count() == (2 if mode == "new_run" else 1)
    if mode == "new_run":
        assert states(fork_of(run)) == {"first": "ready", "second": "pending"}
    assert RunRetry.objects.count() == 1
