"""What the runs and stages that audit events name are called, in one query for a page of events; and an event with its
sentence, as every answer and file writes it."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import UTC
from typing import Any

from pipelines.audit_sentences import Names, tell
from pipelines.models import AuditEvent
from pipelines.sql import query


def names_of(events: Collection[AuditEvent]) -> Names:
    """The names, as far as the rows are still there and of the events' own workspaces: who tries an id of another
    workspace has it in their audit, and learns no name from it."""
    runs, stages = ({getattr(event, what) for event in events} - {None} for what in ("run", "stage"))
    if not runs and not stages:
        return Names()
    rows = query(
        "SELECT true, r.id, r.name, e.slug FROM pipelines_run r JOIN pipelines_environment e ON e.id = r.environment_id"
        " WHERE r.id = ANY(%(runs)s) AND r.workspace_id = ANY(%(workspaces)s)"
        " UNION ALL SELECT false, s.id, s.name, '' FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id"
        " WHERE s.id = ANY(%(stages)s) AND r.workspace_id = ANY(%(workspaces)s)",
        {
            "runs": list(runs),
            "stages": list(stages),
            "workspaces": list({event.workspace_id for event in events}),
        },
    )
    return Names(
        runs={found: (name, environment) for is_run, found, name, environment in rows if is_run},
        stages={found: name for is_run, found, name, _ in rows if not is_run},
    )


def as_json(event: AuditEvent, names: Names) -> dict[str, Any]:
    """The event on the wire; what is blank is null."""
    return {
        "id": str(event.id),
        "at": event.at.astimezone(UTC).isoformat(),
        "sentence": tell(event, names),
        "action": event.action,
        "outcome": event.outcome,
        "code": event.code or None,
        "actor": event.actor,
        "channel": event.channel,
        "on_behalf_of": event.on_behalf_of or None,
        "execution_id": _text(event.run),
        "stage_id": _text(event.stage),
        "reason": event.reason or None,
        "before": event.before,
        "after": event.after,
        "plan_digest": event.plan_digest or None,
        "request_id": event.request_id or None,
        "data": event.data,
    }


def _text(found: uuid.UUID | None) -> str | None:
    return str(found) if found else None
