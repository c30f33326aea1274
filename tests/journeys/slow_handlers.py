"""A handler that takes long enough to be interrupted."""

import time

from recourse import StageContext, handler


@handler("journey.slow")
def slow(ctx: StageContext) -> dict[str, int]:
    time.sleep(0.15)
    return {"attempt": ctx.attempt}
