"""A handler that holds its slot until it is killed, and one that says at once that it had its turn."""

import time
from pathlib import Path

from recourse import StageContext, handler


@handler("journey.hold")
def hold(ctx: StageContext) -> None:
    Path(ctx.json()["began"]).touch()
    time.sleep(600)


@handler("journey.turn")
def turn(ctx: StageContext) -> int:
    return ctx.attempt
