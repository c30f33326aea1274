"""Which policy rules a stage: the rows, read set-based; choosing among them is pure and lives in `retries`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence

from pipelines.retries import PolicyFact, Target, effective_policy
from pipelines.sql import query


def active(kind: str, workspace_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[PolicyFact]]:
    """The active policies of a kind, by workspace."""
    found: dict[uuid.UUID, list[PolicyFact]] = {}
    for workspace_id, name, match, rule, created in query(
        "SELECT workspace_id, name, match, rule, extract(epoch FROM created_at)::float FROM pipelines_policy"
        " WHERE workspace_id = ANY(%s) AND kind = %s AND status = 'active'",
        [list(workspace_ids), kind],
    ):
        found.setdefault(workspace_id, []).append(PolicyFact(name, json.loads(match), json.loads(rule), created))
    return found


def winner(policies: Sequence[PolicyFact], target: Target) -> PolicyFact | None:
    """The one that rules this stage; none when no policy targets it, and then the stage's own options rule."""
    return effective_policy(policies, target) if policies else None
