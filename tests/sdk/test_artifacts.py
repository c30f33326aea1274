"""Artifacts of a handler: stored before it goes on, loaded only whole, whatever the network does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from recourse import Registry, StageContext, StageFailure, StoredArtifact, Worker
from recourse.context import MOST_ARTIFACT

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import ProtocolServer, Stage
from tests.sdk.test_effects import alone

Work = Callable[..., Worker]
REPORT = b"%PDF the report\x00\xff"


def ends(server: ProtocolServer, registry: Registry, work: Work, handler: Callable[[StageContext], Any]) -> Stage:
    """The stage, once this handler has ended it."""
    registry.add("H", handler)
    stage = server.add_stage("H")
    work(server, registry)
    eventually(lambda: stage.result)
    return stage


def test_a_handler_stores_bytes_and_loads_them_again(server: ProtocolServer, registry: Registry, work: Work) -> None:
    def report(ctx: StageContext) -> dict[str, Any]:
        stored = ctx.artifact("report.pdf", REPORT, "application/pdf")
        assert ctx.load_artifact(stored.artifact_id) == REPORT
        return {"artifact": stored.artifact_id, "sha256": stored.sha256}

    stage = ends(server, registry, work, report)
    (kept,) = server.artifacts.values()
    assert stage.output == {"artifact": kept["artifactId"], "sha256": sha256(REPORT).hexdigest()}
    assert (kept["name"], kept["mediaType"], kept["content"]) == ("report.pdf", "application/pdf", REPORT)


@pytest.mark.parametrize("how", ["cut", "cut_after", 503, 429])
def test_storing_and_loading_are_tried_until_there_is_an_answer(
    server: ProtocolServer, registry: Registry, work: Work, how: int | str
) -> None:
    """One artifact, whether or not the server had acted."""
    server.fail("/artifacts", how, times=2)

    def report(ctx: StageContext) -> bool:
        stored = ctx.artifact("report.pdf", REPORT)
        server.fail(stored.artifact_id, how, times=2)
        return ctx.load_artifact(stored.artifact_id) == REPORT

    assert ends(server, registry, work, report).output is True
    assert len(server.artifacts) == 1


def test_bytes_that_arrive_otherwise_are_asked_for_again(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    """R15: on the way, too."""
    server.in_transit = [lambda content: content[:-1], lambda content: b"x" + content[1:]]

    def report(ctx: StageContext) -> bool:
        return ctx.load_artifact(ctx.artifact("report.pdf", REPORT).artifact_id) == REPORT

    assert ends(server, registry, work, report).output is True
    assert server.in_transit == []


def test_what_is_damaged_or_not_there_fails_the_stage_and_hands_out_nothing(
    server: ProtocolServer, registry: Registry, work: Work
) -> None:
    """R15: for good, since trying again would find the same."""
    seen: list[str] = []

    def report(ctx: StageContext) -> None:
        stored = ctx.artifact("report.pdf", REPORT)
        with pytest.raises(StageFailure) as told:
            ctx.load_artifact("no such id")
        seen.append(told.value.code)
        server.artifacts[stored.artifact_id]["content"] = b"forged"
        ctx.load_artifact(stored.artifact_id)

    stage = ends(server, registry, work, report)
    assert stage.result is not None
    assert (stage.result["errorCode"], stage.result["retryable"]) == ("ARTIFACT_CORRUPT", False)
    assert seen == ["ARTIFACT_REFUSED"]


def test_other_bytes_under_a_name_fail_the_stage(server: ProtocolServer, registry: Registry, work: Work) -> None:
    """R14; the same bytes again are the same artifact."""
    ids: list[str] = []

    def report(ctx: StageContext) -> None:
        ids.append(ctx.artifact("report.pdf", REPORT).artifact_id)
        ids.append(ctx.artifact("report.pdf", REPORT).artifact_id)
        ctx.artifact("report.pdf", b"another report")

    stage = ends(server, registry, work, report)
    assert stage.result is not None
    assert (stage.result["errorCode"], stage.result["retryable"]) == ("ARTIFACT_REFUSED", False)
    assert ids[0] == ids[1]
    assert [one["content"] for one in server.artifacts.values()] == [REPORT]


def test_a_handler_whose_attempt_is_lost_stores_nothing(server: ProtocolServer, registry: Registry, work: Work) -> None:
    """The fence: it is stopped in the middle of storing, and goes no further."""
    went_on: list[str] = []

    def report(ctx: StageContext) -> None:
        stage.attempts[-1].state = "lost"
        ctx.artifact("report.pdf", REPORT)
        went_on.append("on")

    registry.add("H", report)
    stage = server.add_stage("H")
    work(server, registry)
    eventually(lambda: server.bodies("/artifacts"))
    assert (server.artifacts, went_on) == ({}, [])


def test_a_file_is_stored_by_its_path_and_a_coroutine_holds_nothing_up(tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(REPORT)
    ctx = alone()

    async def both() -> tuple[StoredArtifact, bytes]:
        stored = await ctx.artifact_async("report.pdf", file)
        return stored, await ctx.load_artifact_async(stored.artifact_id)

    stored, content = asyncio.run(both())
    assert (stored.name, stored.size, stored.sha256) == ("report.pdf", len(REPORT), sha256(REPORT).hexdigest())
    assert content == REPORT


def test_a_handler_can_be_tried_without_a_console() -> None:
    ctx = alone()
    stored = ctx.artifact("rows", bytearray(b"1,2"))
    assert ctx.load_artifact(stored.artifact_id) == b"1,2"
    assert [what for what, _ in ctx.link.written] == ["artifacts"]  # type: ignore[attr-defined]
    with pytest.raises(StageFailure, match="nothing was stored here"):
        ctx.load_artifact("another")


def test_what_no_console_takes_is_refused_at_once() -> None:
    """A text is no bytes: it could as well be a path."""
    ctx = alone()
    with pytest.raises(ValueError, match="at most"):
        ctx.artifact("large", bytes(MOST_ARTIFACT + 1))
    with pytest.raises(TypeError):
        ctx.artifact("text", "report.pdf")  # type: ignore[arg-type]
    assert ctx.link.written == []  # type: ignore[attr-defined]
