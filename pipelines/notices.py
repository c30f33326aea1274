"""Facts that people may want to be told of, written together with what makes them true (the outbox).

Who is told, and how, is decided later and elsewhere (`approvals/notifications/`): the engine waits for none of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.sql import execute, recordset
from pipelines.states import NoticeKind


def row(
    workspace_id: uuid.UUID,
    kind: NoticeKind,
    run_id: uuid.UUID | None = None,
    stage_id: uuid.UUID | None = None,
    subject: uuid.UUID | None = None,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "workspace": workspace_id,
        "kind": kind,
        "run": run_id,
        "stage": stage_id,
        "subject": subject,
        "data": dict(data or {}),
    }


def insert(rows: Sequence[dict[str, Any]]) -> None:
    """Adds notices, in the caller's transaction: they are true when it commits."""
    if rows:
        execute(
            "INSERT INTO pipelines_notice (workspace, kind, run, stage, subject, data, at)"
            " SELECT workspace, kind, run, stage, subject, data, recourse_now() FROM json_to_recordset(%s::json) AS"
            " r(workspace uuid, kind text, run uuid, stage uuid, subject uuid, data jsonb)",
            [recordset(rows)],
        )
