"""How often a run was revised: reruns, retries with all behind them, and retries with another input (R25).

They count over the run and all runs that it was forked from, as carried out by operations, and never grow back. Limit:
counted under the lock of the run itself: what is done at once to a run that it was forked from may be missed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.budgets import BYTES
from pipelines.errors import Refusal
from pipelines.sql import query

if TYPE_CHECKING:
    from recovery.world import World


def used(run_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """How many revisions each run and what it was forked from have had; those that had none are not in it."""
    rows = query(
        "WITH RECURSIVE line AS (SELECT id AS run_id, id, recovered_from_id FROM pipelines_run WHERE id = ANY(%s) UNION"
        " SELECT line.run_id, r.id, r.recovered_from_id FROM pipelines_run r"
        " JOIN line ON r.id = line.recovered_from_id)"
        " SELECT line.run_id, count(*) FROM recovery_operation o JOIN line ON line.id = o.run_id"
        " WHERE (o.kind = 'rerun' AND o.target IS NOT NULL AND o.state IN ('dispatched', 'succeeded', 'failed'))"
        " OR (o.kind IN ('retry', 'redrive') AND o.state = 'succeeded'"
        " AND (o.request->>'scope' = 'stage_and_downstream' OR o.request->>'input' IS NOT NULL))"
        " GROUP BY line.run_id",
        [list(run_ids)],
    )
    return {run_id: int(count) for run_id, count in rows}


def check(world: World) -> None:
    """Refuses another revision once all of the run's `limits.revisions` are used: `budget_exhausted`."""
    most = world.limits.revisions
    if world.revisions >= most:
        detail = f"all {most} revisions of the run are used, those of what it was forked from among them; replay it"
        extra = {"limit": "revisions", "used": world.revisions, "most": most}
        raise Refusal(BYTES, f"{detail}, or start a new run", extra=extra)
