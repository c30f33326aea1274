"""Reads about recovery, shared by the operations API and the screens."""

from __future__ import annotations

from django.db.models import QuerySet

from pipelines.access import Actor
from recovery.models import Operation


def operations(actor: Actor) -> QuerySet[Operation]:
    """The operations of the workspace; for an application key those on its own runs in its environment."""
    rows = Operation.objects.filter(workspace_id=actor.workspace_id).select_related("requested_by", "resolved_by")
    if actor.application_id is not None and actor.environment_id is not None:
        rows = rows.filter(run__application_id=actor.application_id, run__environment_id=actor.environment_id)
    return rows
