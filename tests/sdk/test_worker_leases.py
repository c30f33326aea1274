"""What a worker does to keep its leases, and what it does when it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from recourse import Job, Registry, StageContext, Worker, clock
from recourse.control import Control
from recourse.links import Recorder
from recourse.worker.leases import Held

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import ProtocolServer

Start = Callable[..., Worker]
Serve = Callable[..., ProtocolServer]


@pytest.fixture
def held(registry: Registry) -> Holding:
    return Holding(registry)


class Holding:
    """A handler that holds its attempt until it is let go, and notes when it was told to stop."""

    def __init__(self, registry: Registry) -> None:
        self.started = threading.Event()
        self.go = threading.Event()
        self.contexts: list[StageContext] = []
        self.cancelled_at: float | None = None
        registry.add("Hold", self.handle)

    def handle(self, ctx: StageContext) -> str:
        self.contexts.append(ctx)
        self.started.set()
        while not self.go.is_set() and not ctx.cancelled:
            self.go.wait(0.005)
        if ctx.cancelled:
            self.cancelled_at = time.time()
        return f"done by {ctx.attempt}"


def after_next_renewal(server: ProtocolServer) -> None:
    seen = server.count("renew")
    eventually(lambda: server.count("renew") > seen)


def gives_up_at(ctx: StageContext) -> float:
    """By the time of day, when the attempt counts as lost here: exact, however late the handler was to look."""
    return time.time() + ctx.control.owned_until - clock.now()


def test_a_job_that_outlasts_its_lease_is_renewed_and_runs_once(
    serve: Serve, held: Holding, registry: Registry, work: Start
) -> None:
    """F13, P51: five minutes under a lease of 15 s, one attempt."""
    server = serve(lease_seconds=15.0, renew_seconds=0.05)
    stage = server.add_stage("Hold")
    work(server, registry)
    assert held.started.wait(10)
    for _ in range(30):
        after_next_renewal(server)
        server.skip(10)
    held.go.set()
    eventually(lambda: stage.state == "completed")
    assert len(stage.attempts) == 1
    assert stage.recoveries == 0
    assert server.late == []


def test_renewals_that_fail_for_a_while_lose_nothing(
    serve: Serve, held: Holding, registry: Registry, work: Start
) -> None:
    """F11: an interval of a third of the lease leaves room for late ones."""
    server = serve(lease_seconds=10.0, renew_seconds=0.2)
    stage = server.add_stage("Hold")
    server.fail("/renew", 503, times=1)
    server.fail("/renew", "cut", times=1)
    work(server, registry)
    eventually(lambda: server.count("renew") >= 3)
    held.go.set()
    eventually(lambda: stage.state == "completed")
    assert len(stage.attempts) == 1
    assert held.cancelled_at is None


def test_many_leases_are_renewed_in_one_request(serve: Serve, held: Holding, registry: Registry, work: Start) -> None:
    server = serve(renew_seconds=0.2)
    stages = [server.add_stage("Hold") for _ in range(5)]
    work(server, registry)
    eventually(lambda: server.count("renew") >= 2)
    assert {len(body["leases"]) for body in server.bodies("/leases/renew")} == {5}
    held.go.set()
    eventually(lambda: all(stage.state == "completed" for stage in stages))


@pytest.mark.parametrize("how", ["cut", 503, "hang"])
def test_a_worker_cut_off_stops_before_its_lease_ends_and_its_result_is_only_late_evidence(
    serve: Serve, held: Holding, registry: Registry, work: Start, how: int | str
) -> None:
    """F03, P58: whatever the way in which the server cannot be reached."""
    server = serve(lease_seconds=1.2)
    stage = server.add_stage("Hold", effect_mode="external")
    work(server, registry)
    assert held.started.wait(10)
    server.fail("", how)
    eventually(lambda: held.cancelled_at)
    assert gives_up_at(held.contexts[0]) < stage.attempts[0].ends_at
    server.skip(1.2)
    server.heal()
    eventually(lambda: server.late)
    assert [(item["executionId"], item["output"]) for item in server.late] == [(stage.attempts[0].id, "done by 1")]
    assert stage.state == "needs_reconciliation"
    assert stage.output is None


def test_the_handler_sees_the_end_of_its_lease_even_when_nobody_tells_it(
    server: ProtocolServer, held: Holding, registry: Registry, work: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F03: after a suspend the local clock has moved, while no thread of ours has run yet."""
    server.add_stage("Hold")
    work(server, registry)
    assert held.started.wait(10)
    ctx = held.contexts[0]
    assert not ctx.cancelled
    real = time.monotonic()
    monkeypatch.setattr("recourse.clock.now", lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + 59.5)
    assert ctx.cancelled
    assert time.monotonic() - real < 5


def test_a_worker_that_is_told_of_its_loss_stops_its_handler(
    serve: Serve, held: Holding, registry: Registry, work: Start
) -> None:
    """P57, P58: the stage goes on in a new attempt; the old one moves nothing."""
    server = serve(lease_seconds=60.0, renew_seconds=0.2)
    stage = server.add_stage("Hold")
    work(server, registry, concurrency=1)
    assert held.started.wait(10)
    server.skip(61)
    held.started.clear()
    eventually(lambda: held.cancelled_at)
    held.go.set()
    eventually(lambda: stage.state == "completed")
    assert [(attempt.number, attempt.state) for attempt in stage.attempts] == [(1, "lost"), (2, "succeeded")]
    assert stage.output == "done by 2"
    assert [item["attempt"] for item in server.late] == [1]


def test_a_handler_is_told_when_its_time_is_over_before_any_call_could_say_so(
    server: ProtocolServer, held: Holding, registry: Registry, work: Start
) -> None:
    """P40, P58: what it still returns is offered; the server decides whether it came in time."""
    server.add_stage("Hold", timeout=0.2)
    work(server, registry)
    eventually(lambda: held.cancelled_at)
    assert held.contexts[0].control.stopped_because == "timed out"
    assert held.contexts[0].timeout_seconds == 0.2
    assert server.count("renew") == 0
    eventually(lambda: server.bodies("/results"))


def test_an_answer_that_does_not_move_the_end_renews_nothing(
    serve: Serve, held: Holding, registry: Registry, work: Start
) -> None:
    """F03: `acquired` with the old end is what a server says while it has the attempt locked."""
    server = serve(lease_seconds=1.0)
    server.freeze_leases = True
    stage = server.add_stage("Hold")
    work(server, registry)
    eventually(lambda: held.cancelled_at)
    assert gives_up_at(held.contexts[0]) < stage.attempts[0].ends_at
    assert server.count("renew") >= 2


def test_a_lease_is_renewed_until_its_result_is_confirmed(serve: Serve, registry: Registry, work: Start) -> None:
    """F16: no second attempt while the worker still tries to deliver the first one's result."""
    server = serve(lease_seconds=15.0, renew_seconds=0.05)
    runs: list[int] = []
    registry.add("Quick", lambda ctx: runs.append(ctx.attempt))
    server.fail("/results", 503)
    stage = server.add_stage("Quick")
    work(server, registry)
    eventually(lambda: runs)
    for _ in range(4):
        after_next_renewal(server)
        server.skip(10)
    assert stage.state == "running"
    server.heal()
    eventually(lambda: stage.state == "completed")
    assert runs == [1]
    assert len(stage.attempts) == 1
    renewals = server.count("renew")
    pulls = server.count("pull")
    eventually(lambda: server.count("pull") >= pulls + 2)
    assert server.count("renew") <= renewals + 1


def test_a_job_lost_while_it_waited_for_a_thread_is_never_started(
    serve: Serve, registry: Registry, work: Start
) -> None:
    """F03, P50: only under a lease that still is ours."""
    server = serve(lease_seconds=60.0, renew_seconds=0.2)
    started, go = threading.Event(), threading.Event()
    ran: list[Any] = []

    @registry.handler("One")
    def one(ctx: StageContext) -> None:
        ran.append((ctx.stage_id, ctx.attempt))
        started.set()
        go.wait(10)

    first, second = server.add_stage("One"), server.add_stage("One")
    worker = work(server, registry, concurrency=1, prefetch=1)
    assert started.wait(10)
    eventually(lambda: first.attempts and second.attempts)
    server.skip(61)
    eventually(lambda: all(held.lost for held in worker._leases.all()))
    go.set()
    eventually(lambda: first.state == second.state == "completed")
    waiting = second if ran[0][0] == first.id else first
    assert (waiting.id, 1) not in ran
    assert (waiting.id, 2) in ran


def at(seconds: float) -> str:
    return datetime.fromtimestamp(1_800_000_000 + seconds, UTC).isoformat()


def held_until(local: float, server: float) -> Held:
    job = Job({"stageId": "s", "executionId": "e", "attempt": 1, "lease": {"leaseExpiresAt": at(server)}})
    held = Held(job, Control(), renew_at=0.0, link=Recorder())
    held.control.owned_until = local
    return held


def test_an_answered_renewal_extends_from_the_moment_it_was_sent() -> None:
    """F03."""
    held = held_until(local=60.0, server=60.0)
    assert held.extend(at(82.0), sent_at=20.0, seconds=59.0)
    assert held.control.owned_until == 79.0


def test_after_an_unanswered_renewal_a_lease_extends_by_no_more_than_its_end_moved() -> None:
    """F03: the later end may be the unanswered one's work, granted long before this request was sent."""
    held = held_until(local=60.0, server=60.0)
    held.all_answered = False
    assert held.extend(at(65.0), sent_at=40.0, seconds=59.0)
    assert held.control.owned_until == 65.0


@pytest.mark.parametrize("end", [60.0, 59.0])
def test_an_end_that_has_not_moved_forward_extends_nothing(end: float) -> None:
    """F03, both sides of the limit: see the next one."""
    held = held_until(local=60.0, server=60.0)
    assert not held.extend(at(end), sent_at=40.0, seconds=59.0)
    assert held.control.owned_until == 60.0


def test_the_smallest_step_of_the_end_is_an_extension() -> None:
    held = held_until(local=60.0, server=60.0)
    assert held.extend(at(60.001), sent_at=40.0, seconds=59.0)
    assert held.control.owned_until == 99.0
