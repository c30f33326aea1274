"""The console's own executor, in this process: real threads, real commits, a database that goes away in the middle."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connection
from recourse import Registry, Release, StageContext, StageFailure, command

from pipelines import executor as module
from pipelines import leases, sweeps
from pipelines.executor import Executor, Scope
from pipelines.ids import new_id
from pipelines.models import Attempt, ContextItem, Effect, LateEvidence, Run, Stage, Termination, WorkerSession
from pipelines.transitions import cancel_run
from pipelines.wake import Queue
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.factories import ApplicationFactory
from tests.pipelines.engine import attempts, output, stage, states, status
from tests.verbs import pause_run, resume_run

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]
PATIENCE_SECONDS = 90


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lingers and renews in moments, so that no test waits for what it does not test."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.02)
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.05)


@pytest.fixture
def make(registry: Registry) -> Callable[..., Executor]:
    """An executor for all handlers of the registry; with an owner, (workspace, application), for that one alone."""
    return lambda owner=None: Executor(Scope(dict.fromkeys(registry.names, owner)), registry)


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """A thread to drain in, while the test does something else."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def drain(made: Executor, stopping: threading.Event | None = None) -> int:
    """As a Celery task would, on a connection of its own thread."""
    try:
        return made.drain(stopping or threading.Event())
    finally:
        connection.close()


def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.005)


def test_sync_and_async_handlers_run_a_chain_to_its_end(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun
) -> None:
    """P2: outputs are handed on, attempts are those of any worker."""

    @registry.handler("First")
    def first(context: StageContext) -> Any:
        return context.json()

    @registry.handler("Second")
    async def second(context: StageContext) -> Any:
        await asyncio.sleep(0)
        return [context.dependencies["a"], context.attempt]

    run = start_run({"name": "a", "handler": "First", "input": '{"n":1}'}, {"name": "b", "handler": "Second"})
    made = make()
    assert made.drain(threading.Event()) == 2
    assert (status(run), output(run, "b")) == ("completed", '[{"n":1},1]')
    session = WorkerSession.objects.get(id=made.holder.session_id)
    assert (session.state, sorted(session.handlers), session.application_id) == ("active", ["First", "Second"], None)
    assert set(Attempt.objects.values_list("session_id", flat=True)) == {session.id}
    made.close()
    session.refresh_from_db()
    assert session.state == "draining"
    assert_invariants()


def test_many_stages_run_beside_each_other_and_each_once(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun
) -> None:
    """P3: hints may be doubled, and two executors may serve one queue."""
    begun: list[str] = []

    @registry.handler("Handler")
    def work(context: StageContext) -> None:
        begun.append(context.execution_id)

    runs = [start_run("first", "second") for _ in range(60)]
    with ThreadPoolExecutor(3) as pool:
        total = sum(pool.map(drain, [make() for _ in range(3)]))
    assert total == len(begun) == len(set(begun)) == 120
    assert {status(run) for run in runs} == {"completed"}
    assert_invariants()


def test_what_a_handler_raises_is_the_failure_with_its_traceback(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun
) -> None:
    """N6, P42."""

    @registry.handler("Handler")
    def work(context: StageContext) -> None:
        if context.stage_name == "plain":
            raise ValueError("no such file")
        raise StageFailure("UPSTREAM_ERROR", "down", retryable=False)

    options = {"max_retries": 1, "retry_interval": 100}
    run = start_run({"name": "plain", "options": options}, {"name": "typed", "depends_on": ["plain"]})
    other = start_run({"name": "typed", "options": options})
    assert make().drain(threading.Event()) == 2
    found = Attempt.objects.get(stage=stage(run, "plain"))
    assert "ValueError: no such file" in found.traceback
    assert "test_executor.py" in found.traceback
    assert (states(run)["plain"], states(other)["typed"]) == ("retry_scheduled", "failed")
    assert Attempt.objects.get(stage=stage(other, "typed")).decision["verdict"] == "not_retryable"
    assert_invariants()


def test_a_cancel_reaches_the_handler_and_its_late_words_change_nothing(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    people: dict[str, Person],
    elsewhere: ThreadPoolExecutor,
) -> None:
    """P58, F65."""
    begun = threading.Event()

    @registry.handler("Handler")
    def work(context: StageContext) -> None:
        begun.set()
        until(lambda: context.cancelled)
        context.raise_if_stopped()

    run = start_run("first", "second")
    draining = elsewhere.submit(drain, make())
    assert begun.wait(PATIENCE_SECONDS)
    cancel_run(run.id, actor=people["operator"].actor)
    draining.result(PATIENCE_SECONDS)
    assert (states(run), attempts(run, "first")) == ({"first": "cancelled", "second": "cancelled"}, ["fenced"])
    assert not LateEvidence.objects.exists()
    assert_invariants()


@pytest.mark.skipif(sys.platform != "linux", reason="what becomes of commands elsewhere is told in tests/sdk")
def test_a_command_of_a_cancelled_run_is_ended_and_how_is_kept(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    people: dict[str, Person],
    elsewhere: ThreadPoolExecutor,
) -> None:
    """R39, P58: as by a worker over HTTP."""
    begun = threading.Event()
    sleep = command(["sleep", "600"])

    @registry.handler("Handler")
    def work(context: StageContext) -> object:
        begun.set()
        return sleep(context)

    run = start_run("first")
    draining = elsewhere.submit(drain, make())
    assert begun.wait(PATIENCE_SECONDS)
    cancel_run(run.id, actor=people["operator"].actor)
    draining.result(PATIENCE_SECONDS)
    kept = Termination.objects.get(attempt__run_id=run.id)
    assert (kept.complete, kept.body["reason"], kept.body["left"]) == (True, "cancelled", [])
    assert_invariants()


def test_a_pause_reaches_the_handler_which_gives_its_stage_back(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    people: dict[str, Person],
    elsewhere: ThreadPoolExecutor,
) -> None:
    """O8: released, nothing counted, paused."""
    begun = threading.Event()

    @registry.handler("Handler")
    def work(context: StageContext) -> None:
        begun.set()
        until(lambda: context.pause_requested)
        raise Release

    run = start_run("first")
    draining = elsewhere.submit(drain, make())
    assert begun.wait(PATIENCE_SECONDS)
    pause_run(run.id, actor=people["operator"].actor)
    draining.result(PATIENCE_SECONDS)
    assert (status(run), attempts(run, "first")) == ("paused", ["released"])
    found = stage(run, "first")
    assert (found.state, found.recovery_count, found.retry_count) == ("ready", 0, 0)
    assert_invariants()


def test_a_lost_lease_reaches_the_handler_and_the_new_attempt_wins(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    new_hand: Callable[..., Hand],
    clock: Clock,
    elsewhere: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P57, P58, F03, F26."""
    begun, may_end = threading.Event(), threading.Event()
    seen: list[str | None] = []
    real = leases.renew
    held_up = threading.Event()

    def late(holder: Any, wanted: Any) -> Any:
        held_up.wait(PATIENCE_SECONDS)  # the renewal is under way for longer than the lease lasts
        return real(holder, wanted)

    monkeypatch.setattr(leases, "renew", late)

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        begun.set()
        until(lambda: context.cancelled)
        seen.append(context.control.stopped_because)
        may_end.wait(PATIENCE_SECONDS)
        return "late"

    run = start_run("first")
    draining = elsewhere.submit(drain, make())
    assert begun.wait(PATIENCE_SECONDS)
    clock.advance(60)
    assert sweeps.expire_leases() == 1
    other = new_hand("hand-2")
    job = other.take()
    held_up.set()
    until(lambda: bool(seen))
    may_end.set()
    draining.result(PATIENCE_SECONDS)
    assert seen == ["lost"]
    assert other.report(job, output="mine").accepted
    assert (attempts(run, "first"), output(run, "first")) == (["lost", "succeeded"], '"mine"')
    assert LateEvidence.objects.count() == 1
    assert_invariants()


def end_all_connections() -> int:
    """Ends every connection to this database, as a restart of the server would."""
    parameters = connection.get_connection_params()
    names = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters}
    with psycopg.connect(**names, autocommit=True) as other:  # type: ignore[arg-type]
        ended = other.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()
    return int(ended[0]) if ended else 0


def test_an_outage_in_the_middle_costs_no_result_and_runs_nothing_twice(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun, elsewhere: ThreadPoolExecutor
) -> None:
    """P56, F16, F23: results are sent again, the business action is not repeated; claims go on afterwards."""
    begun: list[str] = []
    one_by_one = threading.Lock()  # or they would end each other's connection too

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        begun.append(context.execution_id)
        with one_by_one:
            end_all_connections()
        return context.stage_name

    runs = [start_run("first", "second") for _ in range(6)]
    made = make()
    connection.close()
    assert elsewhere.submit(drain, made).result(PATIENCE_SECONDS) == 12
    assert {status(run) for run in runs} == {"completed"}
    assert len(begun) == len(set(begun)) == 12
    # what was claimed in an answer that got lost went back, uncounted, before anybody began it
    assert set(Attempt.objects.values_list("state", flat=True)) <= {"succeeded", "released"}
    assert Attempt.objects.filter(state="succeeded").count() == 12
    assert set(Stage.objects.values_list("recovery_count", flat=True)) == {0}
    assert_invariants()


def test_an_outage_while_looking_for_work_leaves_what_is_held_in_hand(
    make: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F23: with nothing in hand it is told to the caller; else the look is put off, and nothing held is dropped."""
    from django.db import OperationalError

    made = make()
    known = [Queue(new_id(), new_id(), "Handler")]

    def away(*_: Any) -> Any:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(module, "waiting_queues", away)
    with pytest.raises(OperationalError):
        made._look_again(known)
    made._held["an execution"] = None  # type: ignore[assignment]
    assert made._look_again(known) == known
    assert made._may_have_strays
    made._held.clear()


@pytest.mark.parametrize("call", ["claim", "report_and_claim"])
def test_what_is_handed_out_in_an_answer_that_gets_lost_goes_back_uncounted(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """F23: committed, and the connection broke before the answer; what acts outside must not be left in doubt."""
    from django.db import OperationalError

    from pipelines import results

    owner = leases if call == "claim" else results
    real, lost = getattr(owner, call), []

    def broken(*args: Any, **told: Any) -> Any:
        answer = real(*args, **told)
        if not lost:
            lost.append(answer)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(owner, call, broken)
    begun: list[str] = []

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        begun.append(context.stage_name)
        return "done"

    run = start_run({"name": "first", "effect_mode": "external"}, {"name": "second", "effect_mode": "external"})
    made = make()
    if call == "claim":
        with pytest.raises(OperationalError):
            made.drain(threading.Event())
    made.drain(threading.Event())
    assert (status(run), begun) == ("completed", ["first", "second"])
    name = "first" if call == "claim" else "second"
    assert attempts(run, name) == ["released", "succeeded"]
    assert stage(run, name).recovery_count == 0
    assert_invariants()


def test_an_outage_while_others_still_work_is_waited_out(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    elsewhere: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim that fails must not drop what is held."""
    from django.db import OperationalError

    begun, refused = threading.Event(), threading.Event()
    real = leases.claim

    def claim(*args: Any, **told: Any) -> Any:
        if begun.is_set() and not refused.is_set():
            refused.set()
            raise OperationalError("the server closed the connection unexpectedly")
        return real(*args, **told)

    monkeypatch.setattr(leases, "claim", claim)

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        begun.set()
        assert refused.wait(PATIENCE_SECONDS)
        return "done"

    run = start_run("first", "second")
    assert elsewhere.submit(drain, make()).result(PATIENCE_SECONDS) == 2
    assert (status(run), attempts(run, "first")) == ("completed", ["succeeded"])


def test_a_result_that_cannot_be_stored_fails_its_stage_and_spoils_no_other(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun
) -> None:
    """One bad item spoils no other; and it is not tried again for ever."""
    together = threading.Barrier(3)

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        together.wait(PATIENCE_SECONDS)
        context.context.set(context.stage_name, "4\x002" if context.stage_name == "bad" else "42")
        return "done"

    run = start_run("good", "bad", "fine", {"name": "join", "depends_on": ["good", "bad", "fine"], "handler": "Later"})
    assert make().drain(threading.Event()) == 3
    assert states(run) == {"good": "completed", "bad": "failed", "fine": "completed", "join": "pending"}
    assert stage(run, "bad").last_error_code == "RESULT_INVALID"
    assert attempts(run, "bad") == ["failed"]
    assert sorted(ContextItem.objects.values_list("key", "value")) == [("fine", "42"), ("good", "42")]
    assert_invariants()


def test_it_lingers_for_work_that_comes_a_moment_later(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    elsewhere: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage that is announced while it listens needs no hint of its own."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 1.0)
    idle = threading.Event()
    real = leases.next_due

    def next_due(queues: Any, sends_to: Any) -> Any:
        found = real(queues, sends_to)
        idle.set()
        return found

    monkeypatch.setattr(leases, "next_due", next_due)

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        return "done"

    draining: Future[int] = elsewhere.submit(drain, make())
    assert idle.wait(PATIENCE_SECONDS)
    run = start_run("first", "second")
    assert draining.result(PATIENCE_SECONDS) == 2
    assert status(run) == "completed"


def test_told_to_stop_it_finishes_what_it_holds_and_takes_nothing_more(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F22."""
    stopping = threading.Event()
    hints: list[str] = []
    monkeypatch.setattr(module, "send_hint", lambda: hints.append("hint"))

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        stopping.set()
        return "done"

    run = start_run("first", "second")
    assert make().drain(stopping) == 1
    assert (states(run), hints) == ({"first": "completed", "second": "ready"}, [])
    assert_invariants()


def test_after_its_turn_it_gives_its_slot_back_and_asks_for_another(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints: list[str] = []
    monkeypatch.setattr(module, "send_hint", lambda: hints.append("hint"))
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        return "done"

    run = start_run("first")
    assert make().drain(threading.Event()) == 0
    assert (states(run), hints) == ({"first": "ready"}, ["hint"])


def test_an_executor_that_was_idle_for_days_is_still_told_of_work(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    clock: Clock,
) -> None:
    """P2: the hint that was lost is sent again by the sweep, however long ago the executor was last seen."""
    hints: list[str] = []
    monkeypatch.setattr(module, "send_hint", lambda: hints.append("hint"))
    settings.RECOURSE_HANDLERS = ["some.module"]
    registry.add("Handler", lambda context: "done")
    made = make()
    assert made.drain(threading.Event()) == 0
    clock.advance(days=3)
    run = start_run("first")
    hints.clear()
    assert module.hint_overdue() is True
    assert (states(run), hints) == ({"first": "ready"}, ["hint"])
    made.close()
    assert module.hint_overdue() is False


def test_a_scope_serves_one_application_and_no_other(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    place: Any,
    workspace: Any,
) -> None:
    """`module@workspace/application`."""
    from dataclasses import replace

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        return "done"

    other = ApplicationFactory(workspace=workspace, name="shipping")
    ours = start_run("first")
    theirs = start_run("first", in_place=replace(place, application_id=other.id))
    assert make(("acme", "shipping")).drain(threading.Event()) == 1
    assert (status(ours), status(theirs)) == ("queued", "completed")
    assert make(("acme", "nobody")).drain(threading.Event()) == 0
    assert make(("globex", "billing")).drain(threading.Event()) == 0
    assert make(("acme", "billing")).drain(threading.Event()) == 1
    assert status(ours) == "completed"


def test_the_scope_is_read_from_modules_and_their_owners(registry: Registry) -> None:
    from recourse import default_registry

    scope = Scope.load(["tests.pipelines.executor_handlers@acme/billing"], default_registry)
    assert scope.handlers == dict.fromkeys(("Quick", "QuickAsync", "Slow"), ("acme", "billing"))
    assert set(Scope.load(["tests.pipelines.executor_handlers"], default_registry).handlers.values()) == {None}


def test_handlers_of_others_are_left_alone(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun
) -> None:
    """P15."""

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        return "done"

    run = start_run("first", {"name": "second", "handler": "SomebodyElses"})
    assert make().drain(threading.Event()) == 1
    assert states(run) == {"first": "completed", "second": "ready"}
    assert attempts(run, "second") == []


def test_a_failed_attempt_is_taken_up_again_when_due(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun, clock: Clock
) -> None:
    """P31, and the key for the outside system stays the same (F119)."""
    keys: list[str] = []

    @registry.handler("Handler")
    def work(context: StageContext) -> str:
        keys.append(context.idempotency_key)
        if context.attempt < 3:
            raise StageFailure("FOO", "not yet")
        return "done"

    run = start_run({"name": "first", "options": {"max_retries": 2, "retry_interval": 100}})
    made = make()
    assert made.drain(threading.Event()) == 1
    for _ in range(2):
        assert made.drain(threading.Event()) == 0
        clock.advance(100)
        assert made.drain(threading.Event()) == 1
    assert status(run) == "completed"
    assert len(set(keys)) == 1


def effects_of(run: Run, name: str) -> list[tuple[int, str, str]]:
    """(attempt, step, state) of the effects of a stage, in order."""
    numbers = dict(Attempt.objects.filter(stage__run=run).values_list("id", "number"))
    rows = Effect.objects.filter(stage=stage(run, name)).order_by("declared_at", "id")
    return [(numbers[one.attempt], one.step_id, one.state) for one in rows]


def test_effects_of_plain_and_async_handlers_are_durable_before_they_act(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun, elsewhere: ThreadPoolExecutor
) -> None:
    """O42, R5: many handlers at once, all through the one connection of the draining thread."""
    seen: list[str] = []

    def state_of(key: str) -> str:
        try:
            return Effect.objects.get(key=key).state
        finally:
            connection.close()

    @registry.handler("First")
    def first(context: StageContext) -> None:
        with context.effect("external_http", step="charge", request={"n": 1}) as effect:
            seen.append(state_of(effect.key))
            effect.external_ref = "ch_1"

    @registry.handler("Second")
    async def second(context: StageContext) -> None:
        async with context.effect("tool_side_effect", step="send") as effect:
            seen.append(await asyncio.to_thread(state_of, effect.key))

    external = {"effect_mode": "external", "effect_protocol": "intent"}
    runs = [
        start_run({"name": "a", "handler": "First", **external}, {"name": "b", "handler": "Second", **external})
        for _ in range(5)
    ]
    assert elsewhere.submit(drain, make()).result(PATIENCE_SECONDS) == 10
    assert seen == ["declared"] * 10
    assert {status(run) for run in runs} == {"completed"}
    for run in runs:
        assert effects_of(run, "a") == [(1, "charge", "committed")]
        assert effects_of(run, "b") == [(1, "send", "committed")]
    assert set(Effect.objects.filter(step_id="charge").values_list("external_ref", flat=True)) == {"ch_1"}
    assert_invariants()


def test_an_outage_around_the_act_loses_neither_intent_nor_outcome(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun, elsewhere: ThreadPoolExecutor
) -> None:
    """R5, F16: the database goes away before the intent and before the outcome; the act happens once."""
    acted: list[int] = []

    @registry.handler("Handler")
    def work(context: StageContext) -> None:
        end_all_connections()
        with context.effect("external_http", step="charge"):
            acted.append(context.attempt)
            end_all_connections()

    run = start_run({"name": "first", "effect_mode": "external", "effect_protocol": "intent"})
    made = make()
    connection.close()
    assert elsewhere.submit(drain, made).result(PATIENCE_SECONDS) == 1
    assert (status(run), acted) == ("completed", [1])
    assert effects_of(run, "first") == [(1, "charge", "committed")]
    assert_invariants()


def test_an_act_with_an_unknown_outcome_stops_for_a_person(
    registry: Registry, make: Callable[..., Executor], start_run: StartRun
) -> None:
    """R4, R5: a time-out after sending is in doubt, one before sending is an ordinary failure."""

    @registry.handler("Sent")
    def sent(context: StageContext) -> None:
        with context.effect("external_http", step="charge"):
            raise TimeoutError

    @registry.handler("Unsent")
    def unsent(context: StageContext) -> None:
        with context.effect("external_http", step="charge"):
            raise ConnectionRefusedError

    external = {"effect_mode": "external", "effect_protocol": "intent"}
    after = start_run({"name": "first", "handler": "Sent", **external})
    before = start_run({"name": "first", "handler": "Unsent", **external})
    assert make().drain(threading.Event()) == 2
    assert (states(after), effects_of(after, "first")) == (
        {"first": "needs_reconciliation"},
        [(1, "charge", "unknown")],
    )
    assert (states(before), effects_of(before, "first")) == ({"first": "failed"}, [(1, "charge", "absent")])
    assert_invariants()


def test_a_lost_attempt_may_not_act(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    clock: Clock,
    elsewhere: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P58: the intent is refused before anybody has told the handler."""
    monkeypatch.setattr(module, "RENEW_SECONDS", 60)
    begun, go = threading.Event(), threading.Event()
    acted: list[int] = []

    @registry.handler("Handler")
    def work(context: StageContext) -> None:
        begun.set()
        assert go.wait(PATIENCE_SECONDS)
        with context.effect("external_http", step="charge"):
            acted.append(context.attempt)

    run = start_run({"name": "first", "effect_mode": "external"})
    draining = elsewhere.submit(drain, make())
    assert begun.wait(PATIENCE_SECONDS)
    clock.advance(60)
    assert sweeps.expire_leases() == 1
    go.set()
    draining.result(PATIENCE_SECONDS)
    assert (acted, effects_of(run, "first")) == ([], [])
    assert states(run) == {"first": "needs_reconciliation"}
    assert_invariants()


def test_a_pause_takes_the_stage_back_at_a_checkpoint_and_it_goes_on_from_there(
    registry: Registry,
    make: Callable[..., Executor],
    start_run: StartRun,
    people: dict[str, Person],
    elsewhere: ThreadPoolExecutor,
) -> None:
    """O8, F61: released with its state, nothing counted; the next attempt begins with it."""
    begun = threading.Event()
    rows: list[tuple[int, int]] = []

    @registry.handler("Handler")
    def work(context: StageContext) -> Any:
        for row in range((context.restored or {"next": 0})["next"], 3):
            rows.append((context.attempt, row))
            if context.attempt == 1:
                begun.set()
                until(lambda: context.pause_requested)
            context.checkpoint({"next": row + 1})
        return context.restored

    run = start_run("first")
    made = make()
    draining = elsewhere.submit(drain, made)
    assert begun.wait(PATIENCE_SECONDS)
    pause_run(run.id, actor=people["operator"].actor)
    draining.result(PATIENCE_SECONDS)
    assert (status(run), attempts(run, "first")) == ("paused", ["released"])
    resume_run(run.id, actor=people["operator"].actor)
    assert elsewhere.submit(drain, made).result(PATIENCE_SECONDS) == 1
    assert rows == [(1, 0), (2, 1), (2, 2)]
    assert (status(run), output(run, "first")) == ("completed", '{"next":3}')
    assert stage(run, "first").recovery_count == 0
    assert_invariants()
