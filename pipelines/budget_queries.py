"""What a run has spent and may still spend, for people and applications: figures, and the charges one by one (R27)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pipelines.budgets import RESERVING, Charged
from pipelines.limits import Limits
from pipelines.models import Run
from pipelines.paging import Cut, Page, page
from pipelines.sql import query


@dataclass(frozen=True, slots=True)
class Share:
    """What a stage was charged: attempts that began, and their bytes. `allowance` is what one more would be charged."""

    stage_id: uuid.UUID
    name: str
    attempts: int
    charged: int
    allowance: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A run's limits, with what is charged and what is reserved by stages that may begin without asking."""

    limits: Limits
    charged: Charged
    reserved: Charged
    stages: Sequence[Share]

    @property
    def left(self) -> Charged:
        return Charged(
            max(0, self.limits.total_attempts - self.charged.attempts - self.reserved.attempts),
            max(0, self.limits.total_output_bytes - self.charged.bytes - self.reserved.bytes),
        )


@dataclass(frozen=True, slots=True)
class Charge:
    """An attempt that began, or an artifact that was stored. `total`: the bytes charged up to it."""

    at: datetime
    id: uuid.UUID
    kind: str
    stage_id: uuid.UUID | None
    stage: str | None
    attempt: int | None
    bytes: int
    total: int


def standing(run: Run) -> Standing:
    """In two statements. Stages are in their order."""
    limits = Limits.of(run.limits)
    charged, reserved, shares = Charged(), Charged(), []
    for stage_id, name, state, most, attempts, size in query(
        "SELECT s.id, s.name, s.state, (s.options->>'max_output_bytes')::bigint, count(a.id),"
        " coalesce(sum(a.reserved), 0)::bigint FROM pipelines_stage s LEFT JOIN pipelines_attempt a"
        " ON a.stage_id = s.id AND a.started_at IS NOT NULL WHERE s.run_id = %s GROUP BY s.id ORDER BY s.position",
        [run.id],
    ):
        allowance = limits.allowance({"max_output_bytes": most})
        shares.append(Share(stage_id, name, attempts, size, allowance))
        charged.attempts += attempts
        charged.bytes += size
        if state in RESERVING:
            reserved.attempts += 1
            reserved.bytes += allowance
    ((kept,),) = query("SELECT coalesce(sum(size), 0)::bigint FROM pipelines_artifact WHERE run_id = %s", [run.id])
    charged.bytes += kept
    return Standing(limits, charged, reserved, shares)


def charges(run: Run, cut: Cut) -> Page[Charge]:
    """The charges of a run, oldest first, in one statement that sorts no more than a page.

    What was charged before the page is added up by the database, and not at all for the first page.
    """
    at, last = cut.position or (None, None)
    side, order = ("<", "DESC") if cut.backwards else (">", "ASC")
    before = (
        "SELECT coalesce(sum(size), 0) FROM charge WHERE (at, id) < (SELECT at, id FROM picked ORDER BY 1, 2 LIMIT 1)"
    )
    rows = query(
        f"""
        WITH charge AS NOT MATERIALIZED (
            SELECT a.started_at AS at, a.id, 'attempt' AS kind, a.stage_id, a.id AS attempt, a.reserved AS size
            FROM pipelines_stage s JOIN pipelines_attempt a ON a.stage_id = s.id AND a.started_at IS NOT NULL
            WHERE s.run_id = %(run)s
            UNION ALL
            SELECT f.at, f.id, 'artifact', f.stage_id, f.attempt, f.size FROM pipelines_artifact f
            WHERE f.run_id = %(run)s
        ), picked AS MATERIALIZED (
            SELECT * FROM charge
            WHERE %(at)s::timestamptz IS NULL OR (at, id) {side} (%(at)s::timestamptz, %(last)s::uuid)
            ORDER BY at {order}, id {order} LIMIT %(reach)s
        ), earlier AS MATERIALIZED (
            SELECT CASE WHEN %(at)s::timestamptz IS NULL THEN 0 ELSE ({before}) END AS total
        )
        SELECT p.at, p.id, p.kind, p.stage_id, s.name, a.number, p.size,
            ((SELECT total FROM earlier) + sum(p.size) OVER (ORDER BY p.at, p.id))::bigint
        FROM picked p LEFT JOIN pipelines_stage s ON s.id = p.stage_id LEFT JOIN pipelines_attempt a ON a.id = p.attempt
        ORDER BY p.at {order}, p.id {order}
        """,  # noqa: S608 - pieces of its own
        {"run": run.id, "at": at, "last": last, "reach": cut.reach},
    )
    return page([Charge(*row) for row in rows], cut, lambda row: (row.at, row.id))
