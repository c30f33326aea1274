"""Effects and checkpoints of a handler: what is written before and after the act, and when the act must not happen."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse import Job, Registry, Release, StageContext, Stopped, Worker, execution
from recourse.effects import default_key, hash_of, never_sent

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import ProtocolServer, Stage

Work = Callable[..., Worker]


def alone(**more: Any) -> StageContext:
    """A context without any console."""
    ids = {"stageId": "s", "executionId": "e", "attempt": 1, "stageHandlerName": "H", "idempotencyKey": "s:1"}
    return StageContext(Job({**ids, **more}))


def written(ctx: StageContext) -> list[dict[str, Any]]:
    """The effects that a context without a console recorded, in order."""
    return [item for what, body in ctx.link.written if what == "effects" for item in body["effects"]]  # type: ignore[attr-defined]


def test_the_intent_is_written_before_the_body_and_the_outcome_after_it() -> None:
    """O42: with the key for the outside system, the digest of the request and what the outside system answered."""
    ctx = alone()
    with ctx.effect("external_http", step="charge", request={"b": 1, "a": 2}) as effect:
        (declared,) = written(ctx)
        effect.external_ref = "ch_1"
    assert declared == {
        "class": "external_http",
        "stepId": "charge",
        "idempotencyKey": "s:1:charge",
        "state": "declared",
        "requestHash": hash_of('{"a":2,"b":1}'),
    }
    assert written(ctx)[1:] == [declared | {"state": "committed", "externalRef": "ch_1"}]


def test_an_async_handler_writes_the_same() -> None:
    ctx = alone()

    async def act() -> None:
        async with ctx.effect("tool_side_effect", step="send") as effect:
            assert [item["state"] for item in written(ctx)] == ["declared"]
            effect.external_ref = "m_1"

    asyncio.run(act())
    assert [item["state"] for item in written(ctx)] == ["declared", "committed"]


REQUEST = httpx.Request("POST", "http://outside.test/")
NOTHING_SENT = [
    httpx.ConnectError("refused", request=REQUEST),
    httpx.ConnectTimeout("no connection", request=REQUEST),
    httpx.PoolTimeout("no connection free", request=REQUEST),
    httpx.UnsupportedProtocol("gopher", request=REQUEST),
    ConnectionRefusedError(),
    urllib.error.URLError(ConnectionRefusedError()),
]
PERHAPS_SENT = [
    httpx.ReadTimeout("no answer", request=REQUEST),
    httpx.WriteTimeout("half sent", request=REQUEST),
    httpx.WriteError("broke", request=REQUEST),
    httpx.ReadError("broke", request=REQUEST),
    httpx.RemoteProtocolError("hung up", request=REQUEST),
    httpx.HTTPStatusError("500", request=REQUEST, response=httpx.Response(500)),
    urllib.error.URLError(TimeoutError()),
    TimeoutError(),
    ConnectionResetError(),
    RuntimeError("anything"),
]


@pytest.mark.parametrize(
    ("error", "state"),
    [(error, "absent") for error in NOTHING_SENT] + [(error, "unknown") for error in PERHAPS_SENT],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_what_fails_before_sending_did_not_happen_and_what_fails_later_is_unknown(
    error: BaseException, state: str
) -> None:
    """R5: a time-out before the connection is not a time-out after sending."""
    ctx = alone()
    with pytest.raises(type(error)), ctx.effect("external_http", step="charge"):
        raise error
    assert [item["state"] for item in written(ctx)] == ["declared", state]
    assert type(error).__name__ in written(ctx)[1]["detail"]["error"]
    assert never_sent(error) is (state == "absent")


@pytest.mark.parametrize(
    ("say", "state"),
    [
        (lambda effect: effect.not_sent(), "absent"),
        (lambda effect: effect.refused({"status": 402}), "absent"),
        (lambda effect: effect.unknown("the answer made no sense"), "unknown"),
        (lambda effect: effect.committed("ch_1"), "committed"),
    ],
)
def test_what_the_handler_says_counts_whatever_it_raises(say: Callable[[Any], None], state: str) -> None:
    for error in (None, RuntimeError(), httpx.ConnectError("x"), Release()):
        ctx = alone()
        try:
            with ctx.effect("external_http", step="charge") as effect:
                say(effect)
                if error:
                    raise error
        except (RuntimeError, httpx.ConnectError, Release):
            assert error
        assert [item["state"] for item in written(ctx)] == ["declared", state]


def test_an_act_may_be_used_once_in_an_attempt() -> None:
    """Same attempt, class, step and key are one effect."""
    ctx = alone()
    with ctx.effect("external_http", step="charge"):
        pass
    with pytest.raises(ValueError, match="step"):
        ctx.effect("external_http", step="charge")
    with ctx.effect("external_http", step="refund"):
        pass
    assert len(written(ctx)) == 4


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=255))
def test_a_key_fits_is_stable_and_tells_steps_apart(step: str) -> None:
    """P59: of the epoch and the step, not of the attempt."""
    first, second, later = (
        Job({"idempotencyKey": key, "attempt": number}) for number, key in enumerate(["s:1", "s:1", "s:2"])
    )
    key = default_key(first, step)
    assert key == default_key(second, step) != default_key(later, step)
    assert 0 < len(key) <= 200
    assert key != default_key(first, step + "x")


@pytest.mark.parametrize("wrong", [{"step": "x" * 256}, {"step": "a\nb"}, {"step": " "}, {"key": "x" * 201}])
def test_a_step_or_key_that_the_console_refuses_is_refused_where_it_is_made(wrong: dict[str, str]) -> None:
    ctx = alone()
    with pytest.raises(ValueError, match="printable"):
        ctx.effect("external_http", **wrong)
    assert written(ctx) == []


def test_what_is_told_of_an_effect_is_cut_to_what_a_server_takes() -> None:
    """An outcome must not be refused for what is said about it."""
    ctx = alone()
    with ctx.effect("external_http") as effect:
        effect.external_ref = "x\0" * 1_000
        effect.detail = {"big": "ü" * 100_000}
    _, told = written(ctx)
    assert "stepId" not in told
    assert told["idempotencyKey"] == "s:1"
    assert len(told["externalRef"]) == 1_000
    assert "\0" not in told["externalRef"]
    assert list(told["detail"]) == ["shortened"]


def test_a_handler_can_be_tried_without_a_console() -> None:
    registry = Registry()

    @registry.handler("H")
    def act(ctx: StageContext) -> Any:
        with ctx.effect("artifact_write", step="file", key="k") as effect:
            assert (effect.key, effect.already, ctx.restored) == ("k", None, None)
        return ctx.checkpoint({"row": 5}).state

    ctx = alone()
    assert execution.run(ctx.job, registry, context=ctx).body["output"] == {"row": 5}


@pytest.mark.parametrize("state", [None, b"no JSON", {"not": float("nan")}, "x" * 256 * 1024])
def test_a_state_that_cannot_be_kept_is_refused_where_it_is_made(state: Any) -> None:
    ctx = alone()
    with pytest.raises(ValueError, match="checkpoint"):
        ctx.checkpoint(state)
    assert ctx.link.written == []  # type: ignore[attr-defined]
    ctx.checkpoint("x" * (256 * 1024 - 2))


# Against a server.


def steps(stage: Stage) -> list[tuple[int, str, str]]:
    return [(effect["attempt"], effect["stepId"], effect["state"]) for effect in stage.effects]


def test_the_body_does_not_run_before_the_intent_is_durable(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    """R5: the console answers 503 three times, then has it; the answer of the fourth is lost on its way."""
    acted = []

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> None:
        with ctx.effect("external_http", step="charge"):
            acted.append(server.count("effects"))

    server.fail("/effects", 503, times=3)
    server.fail("/effects", "cut_after", times=1)
    stage = server.add_stage("Charge", effect_mode="external")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert acted == [2]  # heard: the one whose answer was lost, and the last
    assert steps(stage) == [(1, "charge", "committed")]


def test_an_intent_that_cannot_be_written_keeps_the_act_from_happening(
    serve: Callable[..., ProtocolServer], registry: Registry, work: Work
) -> None:
    """P58: the console is away for longer than the lease; the act is left undone, and another attempt does it."""
    server = serve(lease_seconds=3.0)
    acted = []

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> None:
        with ctx.effect("external_http", step="charge"):
            acted.append(ctx.attempt)

    for path in ("/effects", "/renew"):
        server.fail(path, "cut")
    stage = server.add_stage("Charge")
    work(server, registry)
    eventually(lambda: len(stage.attempts) > 1)
    server.heal()
    eventually(lambda: stage.state == "completed")
    assert acted == [len(stage.attempts)]
    assert steps(stage) == [(len(stage.attempts), "charge", "committed")]


def test_a_worker_that_lost_its_lease_does_not_act(server: ProtocolServer, registry: Registry, work: Work) -> None:
    """P58: the server refuses the intent as stale, before anyone has told the worker."""
    acted, go, entered = [], threading.Event(), threading.Event()

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> None:
        entered.set()
        assert go.wait(30)
        with ctx.effect("external_http", step="charge"):
            acted.append(ctx.attempt)

    stage = server.add_stage("Charge", effect_mode="external")
    work(server, registry)
    assert entered.wait(30)
    server.skip(61)
    go.set()
    eventually(lambda: server.count("effects"))
    assert stage.state == "needs_reconciliation"
    assert (acted, stage.effects, server.late) == ([], [], [])


def test_an_outcome_is_offered_until_the_console_is_back(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    @registry.handler("Charge")
    def charge(ctx: StageContext) -> str:
        with ctx.effect("external_http", step="charge") as effect:
            server.fail("/effects", 503, times=3)
            effect.external_ref = "ch_1"
        return "charged"

    stage = server.add_stage("Charge", effect_mode="external")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert steps(stage) == [(1, "charge", "committed")]
    assert server.count("effects") == 2


def test_an_outcome_that_comes_too_late_is_offered_as_evidence_and_ends_the_handler(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    """R4, P57: what was done is told even when the attempt is lost; nothing more is done."""
    went_on = []

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> None:
        with ctx.effect("external_http", step="charge") as effect:
            effect.external_ref = "ch_1"
            server.skip(61)
        went_on.append(ctx.attempt)

    stage = server.add_stage("Charge", effect_mode="external")
    work(server, registry)
    eventually(lambda: server.late)
    assert (server.late[0]["state"], server.late[0]["externalRef"]) == ("committed", "ch_1")
    assert steps(stage) == [(1, "charge", "declared")]
    assert went_on == []


def test_the_next_attempt_learns_what_an_earlier_one_did(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    """P59: the same key, and no second act."""
    acted: list[str] = []

    @registry.handler("Charge")
    def charge(ctx: StageContext) -> Any:
        with ctx.effect("external_http", step="charge") as effect:
            if not effect.already:
                acted.append(effect.key)
                effect.external_ref = "ch_1"
        if ctx.attempt == 1:
            raise Release
        return effect.already and [effect.already.attempt, effect.already.external_ref]

    stage = server.add_stage("Charge")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert stage.output == [1, "ch_1"]
    assert acted == [f"{stage.id}:1:charge"]
    assert [effect["externalRef"] for effect in stage.effects] == ["ch_1", "ch_1"]


def test_the_next_attempt_goes_on_from_the_state_of_the_last(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    """O8, F61: a pause takes the stage back at a checkpoint, and nothing is done twice."""
    rows = []

    @registry.handler("Rows")
    def count(ctx: StageContext) -> int:
        for row in range((ctx.restored or {"next": 0})["next"], 4):
            rows.append((ctx.attempt, row))
            if row == 1:
                ctx.control.pause_requested = True
            ctx.checkpoint({"next": row + 1})
        assert ctx.last_checkpoint
        return ctx.last_checkpoint.sequence

    stage = server.add_stage("Rows")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert rows == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert (stage.output, stage.recoveries) == (4, 0)


def test_an_async_handler_is_restored_too(server: ProtocolServer, registry: Registry, work: Work) -> None:
    @registry.handler("Async")
    async def once(ctx: StageContext) -> Any:
        if ctx.restored is None:
            await ctx.checkpoint_async("half")
            raise Release
        return ctx.restored

    stage = server.add_stage("Async")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert (stage.output, len(stage.attempts)) == ("half", 2)


def test_a_lost_attempt_stores_no_state(server: ProtocolServer, registry: Registry, work: Work) -> None:
    """P57: fenced like every write."""
    raised: list[str] = []

    @registry.handler("Rows")
    def count(ctx: StageContext) -> None:
        if ctx.attempt > 1:
            return
        server.skip(61)
        try:
            ctx.checkpoint("mine")
        except Stopped as stopped:
            raised.append(str(stopped))
            raise

    stage = server.add_stage("Rows")
    work(server, registry)
    eventually(lambda: stage.state == "completed")
    assert raised == ["lost"]
    assert stage.checkpoint is None
