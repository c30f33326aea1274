"""Where an id of recovery leads in the search: operations, backfills, bulk operations."""

from __future__ import annotations

import uuid

from django.urls import reverse

from pipelines.access import Actor
from recovery import backfills, bulks
from recovery.queries import operations


def page_of(actor: Actor, found: uuid.UUID) -> str | None:
    """The address of what the actor may see under this id."""
    for name, rows in (
        ("operation", operations(actor)),
        ("backfill", backfills.visible(actor)),
        ("bulk", bulks.visible(actor)),
    ):
        if rows.filter(id=found).exists():
            return reverse(f"console:{name}", args=[found])
    return None
