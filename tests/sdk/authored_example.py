"""A pipeline as its author types it: `test_authoring_types.py` has mypy read this file, strictly."""

from __future__ import annotations

from typing import TypedDict, assert_type

from recourse.adapters.files import Files
from recourse.authoring import Context, Params, Pipeline, Retries, Stage, pipeline, stage
from recourse.children import ChildRun
from recourse.context import StoredArtifact
from recourse.effects import Effect


class Read(TypedDict):
    rows: list[int]


@stage
async def read(ctx: Context) -> Read:
    since: str = ctx.params["since"]
    await ctx.logger.info("reading", since=since)
    return {"rows": [len(since)]}


@stage(needs=[read], retries=Retries(times=3, every=2, on=["BUSY"]), effects="external", declares_effects=True)
async def send(ctx: Context) -> dict[str, int]:
    assert_type(ctx.params, Params)
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.adapters.of(Files, "outbox"), Files)
    async with ctx.effect("external_http", step="send") as effect:
        assert_type(effect, Effect)
        effect.committed("ref-1")
    await ctx.checkpoint({"sent": 1})
    await ctx.progress(50, "half")
    assert_type(await ctx.artifact("report", b"bytes"), StoredArtifact)
    assert_type(await ctx.runs.wait(await ctx.runs.start("report")), ChildRun)
    for row in await ctx.workspace.read("sent"):
        await ctx.logger.debug("row", row=row)
    return {"sent": 1}


nightly = pipeline("nightly", name="Nightly", stages=[read, send], params=["since"])


@pipeline("invoices", params={"type": "object"})
async def run(ctx: Context) -> dict[str, int]:
    return {"upserted": 0}


@pipeline("alone")
@stage(effects="none")
async def alone(ctx: Context) -> None:
    return None


assert_type(read, Stage)
assert_type(send, Stage)
assert_type(nightly, Pipeline)
assert_type(run, Pipeline)
assert_type(alone, Pipeline)
