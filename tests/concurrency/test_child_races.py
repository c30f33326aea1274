"""Parents and children at the same instant: no wake-up is lost, nobody waits in a circle, one key makes one run.

Every round ends without a sweep's help, but where it says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pipelines import awaited_runs, children
from pipelines.access import Actor
from pipelines.children import Started, Wish
from pipelines.creation import Intent
from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.models import ChildRun, Run, Stage, Workspace
from pipelines.sql import execute, query
from pipelines.sweeps import sweep
from pipelines.transitions import cancel_run
from recovery import forks, run_retry_work
from recovery.states import OperationKind
from tests.cast import Hand, stage_of
from tests.clock import Clock
from tests.concurrency.crew import Crew, refusals
from tests.recovery.retried import policy_of

StartRun = Callable[..., Run]
ROUNDS = 10


def spawning(hand: Hand, job: Job, key: str = "day", **wish: Any) -> Callable[[], Started | None]:
    intent = Intent(name="imports", stages=[stage_of({"name": "work", "handler": "Child"})])
    return partial(children.start, hand.holder, job.stage.id, job.attempt_id, Wish(key, intent, **wish))


def spawn(hand: Hand, job: Job, key: str = "day", **wish: Any) -> Started:
    started = spawning(hand, job, key, **wish)()
    assert started is not None
    return started


def parking(hand: Hand, job: Job, *runs: Any) -> Callable[[], Any]:
    return lambda: hand.report(job, "waiting", awaits_runs=list(runs))


@pytest.fixture
def helpers(new_hand: Callable[..., Hand]) -> list[Hand]:
    return [new_hand(f"helper-{number}", "Child") for number in range(6)]


def test_a_child_that_ends_while_its_parent_parks_wakes_it(
    crew: Crew, start_run: StartRun, hand: Hand, helpers: list[Hand]
) -> None:
    """N9: whichever commits last sees the other; the stage is ready without a sweep."""
    for number in range(ROUNDS * 2):
        run = start_run(key=f"park-{number}")
        job = hand.take()
        child = spawn(hand, job).child
        work = helpers[0].take()
        parked, ended = crew.at_once(parking(hand, job, child.run_id), partial(helpers[0].report, work))
        assert (parked.accepted, ended.accepted) == (True, True)
        assert Stage.objects.get(run=run).state == "ready"
        assert hand.finish() == 1


def test_children_that_end_together_wake_their_parent_once(
    crew: Crew, start_run: StartRun, hand: Hand, helpers: list[Hand]
) -> None:
    """Six ends and the parking at the same instant."""
    for number in range(ROUNDS):
        run = start_run(key=f"fan-{number}")
        job = hand.take()
        runs = [spawn(hand, job, str(key)).child.run_id for key in range(6)]
        works = [helper.take() for helper in helpers]
        ends = [partial(helper.report, work) for helper, work in zip(helpers, works, strict=True)]
        assert all(told.accepted for told in crew.at_once(parking(hand, job, *runs), *ends))
        stage = Stage.objects.get(run=run)
        assert (stage.state, stage.attempt_number) == ("ready", 1)
        assert hand.finish() == 1


def test_a_parent_that_is_cancelled_while_its_child_ends_or_it_parks(
    crew: Crew, start_run: StartRun, hand: Hand, helpers: list[Hand], operator: Actor
) -> None:
    """F73: child then parent against parent then child: neither waits for the other, and both come to an end."""
    for number in range(ROUNDS * 2):
        run = start_run(key=f"cancel-{number}")
        job = hand.take()
        child = spawn(hand, job).child
        work = helpers[0].take()
        if number % 2:
            parking(hand, job, child.run_id)()
            acts = [partial(helpers[0].report, work), partial(cancel_run, run.id, actor=operator), sweep]
        else:
            acts = [
                partial(helpers[0].report, work),
                partial(cancel_run, run.id, actor=operator),
                parking(hand, job, child.run_id),
            ]
        answers = crew.at_once(*acts)
        run.refresh_from_db()
        # a parent that its child woke first was still cancelled: it could not have finished meanwhile
        assert (run.status, refusals(answers)) == ("cancelled", [])
        assert Run.objects.get(id=child.run_id).status in ("completed", "cancelled")
        assert not ChildRun.objects.filter(awaited=True).exists()


def test_parents_and_children_cancelled_from_both_sides(
    crew: Crew, start_run: StartRun, hand: Hand, helpers: list[Hand], operator: Actor
) -> None:
    for number in range(ROUNDS):
        run = start_run(key=f"both-{number}")
        job = hand.take()
        runs = [spawn(hand, job, str(key)).child.run_id for key in range(4)]
        parking(hand, job, *runs)()
        crew.at_once(*(partial(cancel_run, one, actor=operator) for one in (run.id, *runs)), sweep, sweep)
        assert set(Run.objects.filter(id__in=[run.id, *runs]).values_list("status", flat=True)) == {"cancelled"}


def test_one_key_makes_one_run_whoever_asks(
    crew: Crew, start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    """F129: one attempt eight times; and the attempt that was lost beside the one that took its place."""
    other = new_hand("hand-2")
    for number in range(ROUNDS):
        run = start_run(key=f"key-{number}")
        job = hand.take()
        told = crew.at_once(*(spawning(hand, job) for _ in range(8)))
        assert sum(one.created for one in told) == 1
        assert len({one.child.run_id for one in told}) == 1
        execute("UPDATE pipelines_attempt SET expires_at = recourse_now() WHERE id = %s", [job.attempt_id])
        sweep()
        again = other.take()
        late, found = crew.at_once(spawning(hand, job, "new"), spawning(other, again, "new"))
        assert isinstance(late, Refusal)
        assert (late.code, found.created) == ("stale_execution", True)
        assert Run.objects.filter(parent=run).count() == 2
        assert other.report(again).accepted


def test_a_parent_that_is_forked_while_its_child_ends(
    crew: Crew, start_run: StartRun, hand: Hand, helpers: list[Hand], operator: Actor
) -> None:
    """F37: two forks and the child's end at the same instant: both forks find the one child, and see its result."""
    for number in range(ROUNDS):
        source = start_run(key=f"fork-{number}")
        job = hand.take()
        child = spawn(hand, job, on_parent_end="leave").child
        hand.report(job, "failed", error_code="VALIDATION_ERROR")
        work = helpers[0].take()

        def fork(source: Run = source, key: str = "") -> Any:
            asked = forks.ask_fork(OperationKind.REPLAY, source, forks.Wish(), actor=operator)
            return forks.fork(asked, actor=operator, key=key)

        crew.at_once(
            partial(helpers[0].report, work),
            partial(fork, key=f"a-{number}"),
            partial(fork, key=f"b-{number}"),
        )
        jobs = hand.pull(2)
        told = crew.at_once(*(spawning(hand, one, on_parent_end="leave") for one in jobs))
        assert {(one.created, one.child.run_id) for one in told} == {(False, child.run_id)}
        for one in jobs:
            parking(hand, one, child.run_id)()
            assert Stage.objects.get(id=one.stage.id).state == "ready"
        assert hand.finish() == 2


def test_a_child_that_is_forked_while_its_parent_parks_or_ends(
    crew: Crew, start_run: StartRun, hand: Hand, helpers: list[Hand], operator: Actor
) -> None:
    """F38: the fork counts or came too late; a parent that waits for it is woken by it."""
    for number in range(ROUNDS):
        run = start_run(key=f"follow-{number}")
        job = hand.take()
        child = spawn(hand, job).child
        helpers[0].report(helpers[0].take(), "failed", error_code="X")

        def fork(child_id: Any = child.run_id, key: str = f"f-{number}") -> Any:
            asked = forks.ask_fork(OperationKind.REPLAY, Run.objects.get(id=child_id), forks.Wish(), actor=operator)
            return forks.fork(asked, actor=operator, key=key)

        if number % 2:
            crew.at_once(fork, parking(hand, job, child.run_id))
            if Stage.objects.get(run=run).state == "waiting":
                assert helpers[0].finish() == 1
            assert Stage.objects.get(run=run).state == "ready"
            helpers[0].finish()
            assert hand.finish() == 1
        else:
            crew.at_once(fork, partial(cancel_run, run.id, actor=operator))
            sweep()
            link = ChildRun.objects.get(parent=run)
            assert Run.objects.get(id=link.run_id).status in ("failed", "cancelled", "queued")
            helpers[0].finish()


def blocked_or(done: Callable[[], bool]) -> None:
    """Waits until another connection waits for a lock, or `done`."""
    until = time.monotonic() + 20
    while not done() and time.monotonic() < until:
        if query("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"):
            return
        time.sleep(0.02)


@pytest.mark.parametrize("first", ["retry", "retry with links", "parent"])
@pytest.mark.parametrize("mode", ["resume", "new_run"])
def test_a_child_is_not_retried_past_the_end_of_its_parent(
    crew: Crew,
    start_run: StartRun,
    hand: Hand,
    helpers: list[Hand],
    operator: Actor,
    workspace: Workspace,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    first: str,
) -> None:
    """F73: the retry looks whether the parent has ended, the end whether a child lives; at the same instant neither
    sees the other's writes. Whichever commits last does: the child is cancelled, or not retried."""
    policy_of(workspace, mode=mode)
    run = start_run()
    job = hand.take()
    child = spawn(hand, job).child
    helpers[0].report(helpers[0].take(), "failed", error_code="UPSTREAM_DOWN")
    clock.advance(60)
    held, go = threading.Event(), threading.Event()

    def pausing(inner: Callable[..., Any]) -> Callable[..., Any]:
        def outer(*args: Any, **named: Any) -> Any:
            found = inner(*args, **named)
            if not held.is_set():
                held.set()
                go.wait(20)
            return found

        return outer

    if first != "parent":
        name = "_in_place" if mode == "resume" else "_as_new_run"
        if first == "retry with links":
            name = "_ended_meanwhile"
        monkeypatch.setattr(run_retry_work, name, pausing(getattr(run_retry_work, name)))
        acts: list[Callable[[], Any]] = [run_retry_work.carry_on, partial(cancel_run, run.id, actor=operator)]
    else:
        monkeypatch.setattr(awaited_runs, "save", pausing(awaited_runs.save))
        acts = [partial(cancel_run, run.id, actor=operator), run_retry_work.carry_on]
    ended = threading.Event()

    def second() -> Any:
        held.wait(20)
        found = acts[1]()
        ended.set()
        return found

    def letting_go() -> None:
        held.wait(20)
        blocked_or(ended.is_set)
        go.set()

    crew.at_once(acts[0], second, letting_go)
    sweep()
    run_retry_work.carry_on()
    run.refresh_from_db()
    assert run.status == "cancelled"
    family = Run.objects.filter(id=child.run_id) | Run.objects.filter(recovered_from=child.run_id)
    assert {one.status for one in family} <= {"failed", "cancelled"}
    assert not helpers[0].pull(9)
