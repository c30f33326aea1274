"""A handler that copies five batches, marks each in the workspace store, and once dies by kill -9 before its mark."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from recourse import StageContext, handler
from recourse.store import Store

MARKS = "RECOURSE_TEST_STORE_MARKS"  # the folder that remembers each write, whatever process made it
BATCHES = 5
FATAL = 3


@handler("journey.copy")
async def copy(ctx: StageContext) -> dict[str, int]:
    store = Store(ctx)
    done = {row["batch"] for row in await store.read("sync_progress")}
    for batch in range(1, BATCHES + 1):
        if batch in done:
            continue
        rows = [{"invoice_id": f"{batch}-{number}", "amount": number} for number in range(3)]
        await store.upsert("invoices", rows, key=["invoice_id"])
        (Path(os.environ[MARKS]) / f"{batch}.{ctx.attempt}").touch()
        if batch == FATAL and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        await store.insert("sync_progress", [{"batch": batch}])
    return {"found": len(done)}
