"""What the runs and stages that audit events name are called: one query for a page of events."""

from __future__ import annotations

from collections.abc import Collection

from pipelines.audit_sentences import Names
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
