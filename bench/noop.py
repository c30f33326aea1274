"""The handler whose stages are counted: it does nothing, so that what is measured is the console."""

from recourse import StageContext, handler


@handler("bench.noop")
def noop(ctx: StageContext) -> dict[str, bool]:
    return {"ok": True}
