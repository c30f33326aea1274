"""Handlers that do as little as can be, so that what is measured is the console."""

import time

from recourse import StageContext, handler


@handler("bench.noop")
def noop(ctx: StageContext) -> dict[str, bool]:
    return {"ok": True}


@handler("bench.hang")
def hang(ctx: StageContext) -> dict[str, bool]:
    """The first attempt goes on until its worker dies; a later one is done at once."""
    while ctx.attempt == 1 and not ctx.cancelled:
        time.sleep(0.2)
    return {"ok": True}
