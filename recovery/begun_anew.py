"""The runs that begin anew where a stage that started them is done again: which plans judge as the stage's own acts.

A key of a stage that is done again finds the run that it stood for while that lives or has completed; one that failed
or was cancelled is begun anew, with all that was started for it (`pipelines.children`). So what those did outside is
repeated as surely as what the stage did itself. Serves R4, R5, F129, I11.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from pipelines import failures
from pipelines.sql import query


class Anew(NamedTuple):
    """A run that is begun anew, or is part of one, and the stage of a parent with which it is."""

    parent: uuid.UUID
    stage: str
    run: uuid.UUID

    def name(self, stage: str) -> str:
        """How a plan of the parent calls a stage of it."""
        return f"{stage} of run {self.run} (begun anew with {self.stage})"


def begun_anew(runs: str) -> str:
    """WITH RECURSIVE `anew` (parent, stage, run): all that is begun anew with stages of the runs for which this
    condition on the run `p` holds.

    A key stands for what it says in the run or, where that has no such key, in the nearest that it was forked from.
    Where that failed or was cancelled, it is every run for which the key ever stood there, and of each whatever was
    forked from it or started for it.
    """
    return f"""
        WITH RECURSIVE line AS (
            SELECT p.id AS parent, p.id, p.recovered_from_id, 0 AS far FROM pipelines_run p WHERE {runs}
            UNION ALL SELECT line.parent, r.id, r.recovered_from_id, far + 1 FROM pipelines_run r
                JOIN line ON r.id = line.recovered_from_id
        ), keys AS (
            SELECT line.parent, line.far, x.name AS stage, l.key, l.started_id, l.run_id, l.is_current
            FROM line JOIN pipelines_childrun l ON l.parent_id = line.id JOIN pipelines_stage x ON x.id = l.stage_id
        ), stands AS (
            SELECT DISTINCT ON (parent, stage, key) parent, stage, key, run_id FROM keys
            WHERE is_current ORDER BY parent, stage, key, far
        ), anew AS (
            SELECT k.parent, k.stage, one.run FROM stands s JOIN pipelines_run c ON c.id = s.run_id
                JOIN keys k USING (parent, stage, key) CROSS JOIN LATERAL (VALUES (k.started_id), (k.run_id)) one(run)
            WHERE c.status IN ('failed', 'cancelled') AND NOT {failures.going_on()}
            UNION SELECT a.parent, a.stage, one.run FROM anew a CROSS JOIN LATERAL (
                SELECT id FROM pipelines_run WHERE recovered_from_id = a.run
                UNION ALL SELECT started_id FROM pipelines_childrun WHERE parent_id = a.run
                UNION ALL SELECT run_id FROM pipelines_childrun WHERE parent_id = a.run) one(run)
        )
    """


def find(run_ids: Sequence[uuid.UUID]) -> list[Anew]:
    """What is begun anew with stages of these runs."""
    if not run_ids:
        return []
    text = f"{begun_anew('p.id = ANY(%s)')} SELECT parent, stage, run FROM anew ORDER BY parent, stage, run"
    return [Anew(*row) for row in query(text, [list(run_ids)])]


def acted_unseen(found: Sequence[Anew]) -> dict[uuid.UUID, list[str]]:
    """By run: its stages that were tried, act outside, and do not say what they do there."""
    if not found:
        return {}
    rows = query(
        "SELECT run_id, name FROM pipelines_stage WHERE run_id = ANY(%s) AND effect_mode = 'external'"
        " AND effect_protocol = 'none' AND attempt_number > 0 ORDER BY run_id, position",
        [list({one.run for one in found})],
    )
    unseen: dict[uuid.UUID, list[str]] = {}
    for run, name in rows:
        unseen.setdefault(run, []).append(name)
    return unseen
