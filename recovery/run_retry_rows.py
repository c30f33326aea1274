"""The rows of run retries: read for whoever tells of them, and called off when a person does something about the run.

Who writes one holds the lock of its run.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pipelines import blackouts
from pipelines.blackouts import Active
from pipelines.models import Run
from pipelines.moves import event_row, insert_events
from pipelines.sql import query
from recovery.models import RunRetry
from recovery.states import RunRetryState

MOST = 20


def used(run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """How often each run, and what it was made out of, was retried by itself; those that never were are not in it."""
    rows = query(
        "WITH RECURSIVE line AS (SELECT id AS run_id, id, recovered_from_id FROM pipelines_run WHERE id = ANY(%s) UNION"
        " SELECT line.run_id, r.id, r.recovered_from_id FROM pipelines_run r"
        " JOIN line ON r.id = line.recovered_from_id)"
        " SELECT line.run_id, count(*) FROM recovery_runretry t JOIN line ON line.id = t.run_id"
        " WHERE t.state = 'done' GROUP BY line.run_id",
        [list(run_ids)],
    )
    return {run_id: int(count) for run_id, count in rows}


def call_off(whys: Mapping[uuid.UUID, str], by: str) -> int:
    """due → called_off, for these runs, with the reason of each; says how many. The runs are locked by the caller."""
    if not whys:
        return 0
    rows = query(
        "UPDATE recovery_runretry t SET state = 'called_off', ended_at = recourse_now(), ended_by = %s, why = r.why"
        " FROM unnest(%s::uuid[], %s::text[]) AS r(run_id, why)"
        " WHERE t.run_id = r.run_id AND t.state = 'due' RETURNING t.run_id, r.why",
        [by, list(whys), list(whys.values())],
    )
    insert_events([event_row(run_id, "run.retry_called_off", actor=by, reason=why) for run_id, why in rows])
    return len(rows)


def take_over(kinds: Mapping[uuid.UUID, str], user_id: int) -> int:
    """due → called_off, for these runs, of which a person has asked for something: its kind, by run. One statement
    where nothing is due; the runs are locked by the caller."""
    rows = query(
        "UPDATE recovery_runretry t SET state = 'called_off', ended_at = recourse_now(), ended_by = u.username,"
        " why = u.username || ' asked for a ' || r.kind"
        " FROM unnest(%s::uuid[], %s::text[]) AS r(run_id, kind), auth_user u"
        " WHERE t.run_id = r.run_id AND t.state = 'due' AND u.id = %s RETURNING t.run_id, t.ended_by, t.why",
        [list(kinds), list(kinds.values()), user_id],
    )
    insert_events([event_row(run_id, "run.retry_called_off", actor=by, reason=why) for run_id, by, why in rows])
    return len(rows)


def newest(run: Run) -> RunRetry | None:
    """What was decided when the run last failed under a policy; None of a run that none ever ruled."""
    return RunRetry.objects.filter(run=run).order_by("-decided_at", "-id").first()


def history(run: Run) -> list[RunRetry]:
    """All that was decided about the run, newest first; at most `MOST`."""
    return list(RunRetry.objects.filter(run=run).order_by("-decided_at", "-id")[:MOST])


def is_ahead(retry: RunRetry | None, run: Run) -> bool:
    """Whether the run will be retried by itself, as it stands."""
    return retry is not None and retry.state == RunRetryState.DUE and retry.failed_at == run.finished_at


def holding(retry: RunRetry, run: Run) -> Active | None:
    """The blackout that holds now where the retry would begin."""
    return blackouts.active(run.workspace_id, run.environment_id, run.trigger_id) if is_ahead(retry, run) else None


def sentence(retry: RunRetry) -> str:
    """When, by what, and the how-manieth: of one that is due."""
    of = f"{retry.number} of {retry.decision['max_retries']}"
    how = "runs again as a new run" if retry.mode == "new_run" else "retries itself"
    return f"{how} at {_time(retry.due_at)} by policy {retry.policy_name}, {of}"


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if isinstance(moment, datetime) else "an unknown time"
