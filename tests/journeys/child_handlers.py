"""Handlers of a parent that is killed right after it started its child, and again while it waits, and of that child."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from recourse import StageContext, children, handler
from recourse.children import Runs

children.PARK_AFTER_SECONDS = 0.5


def once(book: Path, name: str) -> bool:
    """Whether this is the first time, over all processes."""
    try:
        (book / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@handler("journey.parent")
async def parent(ctx: StageContext) -> Any:
    book = Path(ctx.json()["book"])
    runs = Runs(ctx)
    stages = [{"stageName": "work", "stageHandlerName": "journey.child", "input": ctx.input}]
    child = await runs.start(name="work", stages=stages, key="once")
    if once(book, "killed-after-start"):
        os.kill(os.getpid(), signal.SIGKILL)
    if once(book, "killed-while-waiting"):
        await runs.get(child)
        os.kill(os.getpid(), signal.SIGKILL)
    done = await runs.wait(child)
    return {"child": done.run_id, "output": done.output}


@handler("journey.child")
def child(ctx: StageContext) -> Any:
    with (Path(ctx.json()["book"]) / "done").open("a") as done:
        done.write(f"{ctx.run_id}\n")
    return "worked"
