"""Handlers for workers that run as processes of their own. What they did stands in files below RECOURSE_TEST_MARKS."""

from __future__ import annotations

import os
import time
from pathlib import Path

from recourse import StageContext, handler


def mark(name: str) -> None:
    with (Path(os.environ["RECOURSE_TEST_MARKS"]) / name).open("a") as file:
        file.write(f"{os.getpid()}\n")


@handler("Quick")
def quick(ctx: StageContext) -> str:
    return "quick"


@handler("UntilTold")
def until_told(ctx: StageContext) -> str:
    """Ends when the file `go` appears; gives up when told to stop."""
    mark(f"started-{ctx.attempt}")
    while not (Path(os.environ["RECOURSE_TEST_MARKS"]) / "go").exists():
        ctx.raise_if_stopped()
        time.sleep(0.01)
    return f"done by {ctx.attempt}"


@handler("Deaf")
def deaf(ctx: StageContext) -> str:
    """Looks at nothing until the file `go` appears."""
    mark(f"started-{ctx.attempt}")
    while not (Path(os.environ["RECOURSE_TEST_MARKS"]) / "go").exists():
        time.sleep(0.01)
    return f"done by {ctx.attempt}"
