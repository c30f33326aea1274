"""Handlers for the executor's own process: what they did is written to the folder that the tests name."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from recourse import StageContext, handler

FOLDER = "EXECUTOR_TEST_FOLDER"


def note(context: StageContext) -> None:
    """One file for each time a handler began."""
    name = f"{context.stage_id}.{context.attempt}.{uuid.uuid4().hex}"
    (Path(os.environ[FOLDER]) / name).write_text(str(os.getpid()))


@handler("Quick")
def quick(context: StageContext) -> dict[str, int]:
    note(context)
    return {"attempt": context.attempt}


@handler("QuickAsync")
async def quick_async(context: StageContext) -> dict[str, int]:
    note(context)
    return {"attempt": context.attempt}


@handler("Slow")
def slow(context: StageContext) -> dict[str, int]:
    """Works until the test says that it may end."""
    note(context)
    while not (Path(os.environ[FOLDER]) / "go").exists():
        context.raise_if_stopped()
        time.sleep(0.02)
    return {"attempt": context.attempt}
