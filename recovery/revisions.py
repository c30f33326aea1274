"""How often a run was revised: reruns, retries with all behind them, and retries with another input (R25).

They count over the run and all runs that it was forked from, as carried out by operations, and never grow back. Of all
runs that were forked from one, however far back, only one is revised at a time (`one_at_a_time`): what is counted stays
so until it is carried out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pipelines.budgets import BYTES
from pipelines.errors import Refusal
from pipelines.sql import query
from recovery.states import OperationKind

if TYPE_CHECKING:
    from recovery.plans import Asked
    from recovery.world import World

LOCK = 0x52455653  # what the advisory locks of lineages are called


def revises(asked: Asked) -> bool:
    """Whether carrying this out is a revision of the run."""
    match asked.kind:
        case OperationKind.RERUN:
            return True
        case OperationKind.RETRY | OperationKind.REDRIVE:
            return asked.choices.get("scope") == "stage_and_downstream" or asked.choices.get("input") is not None
        case _:
            return False


def one_at_a_time(run_ids: Iterable[uuid.UUID]) -> None:
    """Until this transaction ends nobody else revises these runs, or any that shares their origin.

    To be called once the runs are locked, and before they are read: whoever waits here holds the runs that they need,
    and asks for no other's afterwards, so nobody waits in a circle.
    """
    query(
        "WITH RECURSIVE up AS (SELECT id, recovered_from_id FROM pipelines_run WHERE id = ANY(%s) UNION"
        " SELECT r.id, r.recovered_from_id FROM pipelines_run r JOIN up ON r.id = up.recovered_from_id),"
        " origin AS MATERIALIZED (SELECT DISTINCT hashtext(id::text) AS number FROM up"
        " WHERE recovered_from_id IS NULL ORDER BY 1)"
        " SELECT pg_advisory_xact_lock(%s, number) FROM origin",
        [list(run_ids), LOCK],
    )


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
