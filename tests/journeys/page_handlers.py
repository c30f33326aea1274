"""A handler that works through pages and says after each how far it is; it dies by kill -9 in the middle, once.

Input: `{"pages": how many, "die_after": page, "book": a file with a line for each page that was done}`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from recourse import StageContext, handler


@handler("journey.pages")
def pages(ctx: StageContext) -> dict[str, int]:
    told = ctx.json()
    done = ctx.restored["done"] if ctx.restored else 0
    for page in range(done + 1, told["pages"] + 1):
        with Path(told["book"]).open("a") as book:
            book.write(f"{page}\n")
        ctx.checkpoint({"done": page})
        if page == told["die_after"] and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"first": done + 1, "last": told["pages"]}


@handler("journey.close")
def close(ctx: StageContext) -> int:
    return ctx.attempt
