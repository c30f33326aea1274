"""What runs did outside that a stage started for others to do, and that begin anew with it: judged as its own acts are.

A key of a stage that is done again finds the run that it stood for while that lives or has completed; one that failed
or was cancelled is begun anew, with all that was started for it (`pipelines.children`). So its effects are repeated as
surely as the stage's. Asked where nobody looks before it is done. Serves R4, R5, F129, I11.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

from pipelines import failures
from pipelines.sql import query
from recovery import world
from recovery.dispositions import Reason, Verdict, judge, undeclared


def verdict_on(run_id: uuid.UUID, workspace_id: uuid.UUID, stages: Collection[str]) -> Verdict:
    """The verdict on doing these stages of a run again, or in a fork of it, by what their children did."""
    runs = _begun_anew(run_id, stages)
    if not runs:
        return judge(())
    effects = world.effects_of_runs(runs, workspace_id)
    told = [replace(one, stage=_name(one.stage, run)) for run, some in effects.items() for one in some]
    return judge(told, _unseen(runs))


def _begun_anew(run_id: uuid.UUID, stages: Collection[str]) -> list[uuid.UUID]:
    """The failed and cancelled runs for which these stages' keys stand, in the run or, where it has no such key, in the
    nearest that it was forked from; and every run that was started for one of them."""
    rows = query(
        f"""
        WITH RECURSIVE line AS (
            SELECT id, recovered_from_id, 0 AS far FROM pipelines_run WHERE id = %s
            UNION ALL SELECT r.id, r.recovered_from_id, far + 1 FROM pipelines_run r
                JOIN line ON r.id = line.recovered_from_id
        ), stands AS (
            SELECT DISTINCT ON (s.name, l.key) l.run_id FROM line JOIN pipelines_childrun l ON l.parent_id = line.id
                JOIN pipelines_stage s ON s.id = l.stage_id
            WHERE l.is_current AND s.name = ANY(%s) ORDER BY s.name, l.key, line.far
        ), anew AS (
            SELECT c.id FROM stands JOIN pipelines_run c ON c.id = stands.run_id
            WHERE c.status IN ('failed', 'cancelled') AND NOT {failures.going_on()}
            UNION SELECT l.run_id FROM pipelines_childrun l JOIN anew ON l.parent_id = anew.id
        )
        SELECT id FROM anew ORDER BY id
        """,  # noqa: S608 - ours
        [run_id, list(stages)],
    )
    return [row[0] for row in rows]


def _unseen(runs: list[uuid.UUID]) -> list[Reason]:
    rows = query(
        "SELECT name, run_id FROM pipelines_stage WHERE run_id = ANY(%s) AND effect_mode = 'external'"
        " AND effect_protocol = 'none' AND attempt_number > 0 ORDER BY run_id, position",
        [runs],
    )
    return [undeclared(_name(stage, run)) for stage, run in rows]


def _name(stage: str, run: uuid.UUID) -> str:
    return f"{stage} of run {run}"
