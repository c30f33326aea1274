"""What a running attempt tells of itself: how far it is, and log lines. Fenced in the statement that writes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.errors import Refusal
from pipelines.leases import Holder
from pipelines.sql import query, recordset

_LIVE = (
    " FROM pipelines_attempt a WHERE a.id = %(attempt)s AND a.stage_id = %(stage)s AND a.state = 'running'"
    " AND a.session_id = %(session)s AND a.expires_at > recourse_now()"
)


def note_progress(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, *, percent: float | None, message: str
) -> None:
    """Keeps the latest word only. Refused: `stale_execution` unless the session holds the attempt's live lease."""
    written = query(
        "INSERT INTO pipelines_attemptprogress (attempt_id, percent, message, at)"
        f" SELECT a.id, %(percent)s, %(message)s, recourse_now(){_LIVE}"
        " ON CONFLICT (attempt_id) DO UPDATE SET percent = excluded.percent, message = excluded.message,"
        " at = excluded.at RETURNING attempt_id",
        {**_fence(holder, stage_id, execution_id), "percent": percent, "message": message},
    )
    if not written:
        _refuse(holder, stage_id, execution_id)


def add_log_lines(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, lines: Sequence[Mapping[str, Any]]
) -> None:
    """Adds lines `{at?, level, message, fields?}` to the attempt, all or none; refused as `note_progress`."""
    written = query(
        f"WITH live AS MATERIALIZED (SELECT a.id{_LIVE})"  # noqa: S608
        " INSERT INTO pipelines_logline (attempt_id, at, level, message, fields)"
        " SELECT live.id, coalesce(r.at, recourse_now()), r.level, r.message, coalesce(r.fields, '{}')"
        " FROM live, json_to_recordset(%(lines)s::json) AS r(at timestamptz, level text, message text, fields jsonb)"
        " RETURNING id",
        {**_fence(holder, stage_id, execution_id), "lines": recordset(lines)},
    )
    if not written:
        _refuse(holder, stage_id, execution_id)


def owns_attempt(holder: Holder, execution_id: uuid.UUID, stage_id: uuid.UUID | None = None) -> bool:
    """Whether there is such an attempt in the holder's application and environment, whatever became of it."""
    return bool(
        query(
            "SELECT 1 FROM pipelines_attempt a JOIN pipelines_stage s ON s.id = a.stage_id"
            " WHERE a.id = %s AND (%s::uuid IS NULL OR s.id = %s) AND s.application_id = %s AND s.environment_id = %s",
            [execution_id, stage_id, stage_id, holder.application_id, holder.environment_id],
        )
    )


def _fence(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID) -> dict[str, Any]:
    return {"attempt": execution_id, "stage": stage_id, "session": holder.session_id}


def _refuse(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID) -> None:
    if not owns_attempt(holder, execution_id, stage_id):
        raise Refusal("not_found", "there is no such attempt of that stage")
    raise Refusal("stale_execution", "this session does not hold the lease of that attempt")
