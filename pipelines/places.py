"""The places of a run in the queue: as many as its concurrency leaves, and none is held by what nobody can take.

A run with more to do than it may do at a time has only as many stages in the queue as there is room for
(`Moves._in_room`). Stages whose handler no live worker has come last there, so they take no place from others. Workers
come and go while a run stands still: `pass_on` gives places that are held so to stages that a live worker may take,
under the run's lock as every move, so that what is active and what stands in the queue never exceed the run's
concurrency (R25, ADR 0086). Where no worker has any of the handlers, places stay where they are.

Limit: of each queue that nobody serves the oldest `LOOKED_AT` entries are looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from django.db import transaction

from pipelines import unserved
from pipelines.sql import query

if TYPE_CHECKING:
    from pipelines.moves import RunRow

BATCH = 200
LOOKED_AT = 5_000


def taken(stage_ids: Sequence[uuid.UUID]) -> frozenset[uuid.UUID]:
    """Those of the stages that stand in the queue."""
    rows = query("SELECT stage_id FROM pipelines_queueentry WHERE stage_id = ANY(%s)", [list(stage_ids)])
    return frozenset(stage_id for (stage_id,) in rows)


def lacking(run: RunRow, handlers: Collection[str]) -> frozenset[str]:
    """Which of the handlers no live worker of the run's application has in its environment."""
    found = unserved.lacking(
        handlers,
        workspace_id=run.workspace_id,
        environment_id=run.environment_id,
        application_id=run.application_id,
    )
    return frozenset(found)


def pass_on(limit: int = BATCH) -> int:
    """Gives places that are held by what no live worker can take to stages that one may take; says of how many runs.

    Runs that others hold are passed over and met again.
    """
    run_ids = unserved.holding_places(limit, LOOKED_AT)
    if not run_ids:
        return 0
    # imported here: moves stand above this
    from pipelines.moves import Moves

    with transaction.atomic():
        moves = Moves.lock(run_ids, skip_locked=True)
        moves.save()
        return len(moves.runs)
