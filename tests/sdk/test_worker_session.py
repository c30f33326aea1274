"""Sessions that end under a worker, and what the server asks of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from recourse import ConfigurationError, Registry, Release, StageContext, Unauthorized, Worker

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import API_KEY, ProtocolServer

Start = Callable[..., Worker]


def test_a_worker_whose_session_ended_makes_a_new_one(server: ProtocolServer, registry: Registry, work: Start) -> None:
    """P48."""
    registry.add("Bill", lambda ctx: ctx.attempt)
    work(server, registry)
    eventually(lambda: server.count("pull"))
    server.forget_sessions()
    stage = server.add_stage("Bill")
    eventually(lambda: stage.state == "completed")
    assert len(server.registrations) == 2
    assert server.registrations[0] == server.registrations[1]


def test_what_was_held_in_an_ended_session_is_lost_and_offered_once(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    """P58, P5: the lease belonged to the old session; its result is late evidence, and moves nothing."""
    started = threading.Event()
    seen: list[bool] = []

    @registry.handler("Hold")
    def hold(ctx: StageContext) -> str:
        started.set()
        eventually(lambda: ctx.cancelled)
        seen.append(ctx.cancelled)
        return "too late"

    stage = server.add_stage("Hold", effect_mode="external")
    worker = work(server, registry)
    assert started.wait(10)
    server.forget_sessions()
    eventually(lambda: server.late)
    eventually(lambda: worker._delivery.unsettled == 0)
    assert seen == [True]
    assert [item["output"] for item in server.late] == ["too late"]
    assert stage.state == "running"
    assert stage.output is None


def test_a_wrong_key_is_told_at_the_start(server: ProtocolServer, registry: Registry) -> None:
    registry.add("Bill", lambda ctx: None)
    with pytest.raises(Unauthorized):
        Worker(server.url, "wrong", registry=registry).start()
    assert server.registrations == []


def test_a_worker_without_a_key_or_handlers_says_what_is_missing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECOURSE_API_KEY", raising=False)
    monkeypatch.delenv("PIPELOGIQ_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="handler"):
        Worker("http://127.0.0.1:1", API_KEY, registry=registry)
    registry.add("Bill", lambda ctx: None)
    with pytest.raises(ConfigurationError, match="RECOURSE_API_KEY"):
        Worker("http://127.0.0.1:1", registry=registry)


def test_a_cancel_command_reaches_the_attempt_it_names_and_no_other(
    server: ProtocolServer, registry: Registry, work: Start
) -> None:
    """F65, P58: from any answer; a handler that obeys has nothing to tell."""
    contexts: dict[str, StageContext] = {}
    go = threading.Event()

    @registry.handler("Hold")
    def hold(ctx: StageContext) -> str:
        contexts[ctx.stage_id] = ctx
        while not go.wait(0.005):
            ctx.raise_if_stopped()
        return "went on"

    one, two = server.add_stage("Hold"), server.add_stage("Hold")
    worker = work(server, registry)
    eventually(lambda: len(contexts) == 2)
    server.commands = [{"command": "cancel", "stageId": one.id, "executionId": one.attempts[0].id}]
    eventually(lambda: contexts[one.id].cancelled)
    eventually(lambda: len(worker._leases.all()) == 1)
    assert not contexts[two.id].cancelled
    go.set()
    eventually(lambda: two.state == "completed")
    assert two.output == "went on"
    assert [item["stageId"] for body in server.bodies("/results") for item in body["results"]] == [two.id]


def test_a_pausing_stage_can_be_given_back(serve: Any, registry: Registry, work: Start) -> None:
    server = serve(lease_seconds=60.0, renew_seconds=0.1)

    @registry.handler("Hold")
    def hold(ctx: StageContext) -> str:
        if ctx.attempt == 1:
            eventually(lambda: ctx.pause_requested)
            assert not ctx.cancelled
            raise Release
        return "after the pause"

    stage = server.add_stage("Hold")
    work(server, registry)
    eventually(lambda: stage.attempts)
    stage.pausing = True
    eventually(lambda: stage.state == "paused")
    assert stage.attempts[0].state == "released"
    assert server.bodies("/results") == []
    with server.changed:
        stage.pausing, stage.state = False, "ready"
    eventually(lambda: stage.state == "completed")
    assert stage.output == "after the pause"


@pytest.mark.parametrize("how", [503, "cut_after"])
def test_a_release_without_an_answer_is_sent_again(
    server: ProtocolServer, registry: Registry, work: Start, how: int | str
) -> None:
    @registry.handler("Back")
    def back(ctx: StageContext) -> str:
        if ctx.attempt == 1:
            raise Release
        return "second"

    server.fail("/release", how, times=2)
    stage = server.add_stage("Back")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert [attempt.state for attempt in stage.attempts] == ["released", "succeeded"]


def test_a_job_for_an_unknown_handler_is_given_back(server: ProtocolServer, registry: Registry, work: Start) -> None:
    """P15: a handler that nobody has leaves its stage waiting, not failed."""
    registry.add("Known", lambda ctx: None)
    registry.add("Gone", lambda ctx: None)
    worker = work(server, registry)
    del registry._handlers["Gone"]
    stage = server.add_stage("Gone")
    eventually(lambda: stage.attempts and stage.attempts[0].state == "released")
    worker.drain()
    assert server.bodies("/results") == []
