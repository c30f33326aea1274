"""Removing old runs, with everything that hangs on them and the identity that made creating them safe to repeat.

Off unless an operator sets a number of days. It alone may delete insert-only rows of a run, in a transaction that names
itself to the tables' triggers; audit events stay. Never removed: unfinished runs, runs with a stage, an effect or
anything else to be reconciled, runs that a kept fork came from, children of kept runs, and what apps above keep
(`stays_while`). Afterwards the run's idempotency key is free again (P25): who relies on it as their only record of what
was done loses that record (P26). Inline releases stay, as other runs may share them.

Serves model §3.13, P22, P25, P26, F157.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from pipelines import audit
from pipelines.access import Actor
from pipelines.sql import database_now, execute, query

BATCH = 500


@dataclass(frozen=True, slots=True)
class Dependent:
    """A table whose rows go with a run: those whose `column` is in the rows of `parent` that go."""

    table: str
    column: str
    parent: str = "pipelines_run"


# children before their parents; other apps add theirs with `goes_with_run`
DEPENDENTS = [
    Dependent("pipelines_artifact", "run_id"),  # their bytes go later, unless something else refers to them
    Dependent("pipelines_checkpointevidence", "checkpoint_id", "pipelines_checkpoint"),
    Dependent("pipelines_checkpoint", "run_id"),
    Dependent("pipelines_effect", "run_id"),
    Dependent("pipelines_reconciliationitem", "run_id"),
    Dependent("pipelines_gatedecision", "gate_id", "pipelines_gate"),
    Dependent("pipelines_gate", "stage_id", "pipelines_stage"),
    Dependent("pipelines_logline", "attempt_id", "pipelines_attempt"),
    Dependent("pipelines_attemptprogress", "attempt_id", "pipelines_attempt"),
    Dependent("pipelines_lateevidence", "attempt_id", "pipelines_attempt"),
    Dependent("pipelines_termination", "attempt_id", "pipelines_attempt"),
    Dependent("pipelines_childrun", "parent_id"),
    Dependent("pipelines_attempt", "stage_id", "pipelines_stage"),
    Dependent("pipelines_deadletter", "stage_id", "pipelines_stage"),
    Dependent("pipelines_queueentry", "stage_id", "pipelines_stage"),
    Dependent("pipelines_stageoutput", "stage_id", "pipelines_stage"),
    Dependent("pipelines_stage", "run_id"),
    Dependent("pipelines_contextitem", "run_id"),
    Dependent("pipelines_runsearch", "run_id"),
    Dependent("pipelines_runidentity", "run_id"),
    Dependent("pipelines_event", "run_id"),
]


def goes_with_run(table: str, column: str = "run_id", parent: str = "pipelines_run") -> None:
    """For an app above this one: rows of its table that hang on a run are removed with it, first of all; told last,
    gone first."""
    dependent = Dependent(table, column, parent)
    if dependent not in DEPENDENTS:
        DEPENDENTS.insert(0, dependent)


ENDED_BEFORE = (
    "SELECT r.id, r.workspace_id FROM pipelines_run r"
    " WHERE r.status IN ('completed', 'failed', 'cancelled') AND r.finished_at < %s"
)
# what keeps a run, as conditions on its row `r`; other apps add theirs with `stays_while`
KEPT_BY = [
    "EXISTS (SELECT FROM pipelines_run fork WHERE fork.recovered_from_id = r.id)",
    "EXISTS (SELECT FROM pipelines_stage s WHERE s.run_id = r.id AND s.state = 'needs_reconciliation')",
    "EXISTS (SELECT FROM pipelines_effect e WHERE e.run_id = r.id AND e.state IN ('declared', 'unknown')"
    " AND e.effect_class <> 'internal_state')",
    "EXISTS (SELECT FROM pipelines_reconciliationitem i WHERE i.run_id = r.id AND i.resolved_at IS NULL)",
    # children stay while who started them does: what became of them belongs to its story
    "EXISTS (SELECT FROM pipelines_childrun l WHERE l.run_id = r.id)",
    "EXISTS (SELECT FROM pipelines_childrun l WHERE l.started_id = r.id)",
]


def stays_while(condition: str) -> None:
    """For an app above this one: a run stays while this SQL condition on its row `r` holds."""
    if condition not in KEPT_BY:
        KEPT_BY.append(condition)


_ALSO: list[Callable[[datetime], int]] = []


def also(remove_before: Callable[[datetime], int]) -> None:
    """For an app above this one: removes what it keeps beside runs and ended before that time, after the runs."""
    if remove_before not in _ALSO:
        _ALSO.append(remove_before)


def remove_older_than(days: int, limit: int = BATCH) -> int:
    """Removes what ended more than so many days ago, a batch a transaction; 0 days stands for off. Returns how many
    runs."""
    if days <= 0:
        return 0
    before = database_now() - timedelta(days=days)
    total = 0
    while removed := remove(before, limit):
        total += removed
    for remove_before in _ALSO:
        remove_before(before)
    return total


def remove(before: datetime, limit: int = BATCH) -> int:
    """Removes up to `limit` runs that ended before that time, oldest first; 0 when none is left that may go.

    Runs that others hold are passed over. One transaction, with one audit event in each workspace.
    """
    with transaction.atomic():
        execute("SET LOCAL recourse.retention = 'on'")
        going = removable(before, limit)
        if not going:
            return 0
        ids = [run_id for run_id, _ in going]
        for dependent in DEPENDENTS:
            execute(f"DELETE FROM {dependent.table} WHERE {_belongs(dependent)}", [ids])  # noqa: S608 - our own names
        execute("DELETE FROM pipelines_run WHERE id = ANY(%s)", [ids])
        for workspace_id in sorted({workspace_id for _, workspace_id in going}):
            removed = [str(run_id) for run_id, owner in going if owner == workspace_id]
            data = {"count": len(removed), "ended_before": before.isoformat(), "runs": removed}
            audit.record(Actor("retention", workspace_id, "command"), "run.remove", audit.ALLOWED, data=data)
    return len(going)


def removable(before: datetime, limit: int) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Runs that may go, locked: (id, workspace id), oldest end first."""
    kept = "".join(f" AND NOT {condition}" for condition in KEPT_BY)
    rows: Sequence[tuple[uuid.UUID, uuid.UUID]] = query(
        f"{ENDED_BEFORE}{kept} ORDER BY r.finished_at LIMIT %s FOR UPDATE SKIP LOCKED",
        [before, limit],
    )
    return list(rows)


def _belongs(dependent: Dependent) -> str:
    """Whether a row goes, as a condition with one parameter: the ids of the runs."""
    if dependent.parent == "pipelines_run":
        return f"{dependent.column} = ANY(%s)"
    above = next(one for one in DEPENDENTS if one.table == dependent.parent)
    return f"{dependent.column} IN (SELECT id FROM {above.table} WHERE {_belongs(above)})"  # noqa: S608 - our own names
