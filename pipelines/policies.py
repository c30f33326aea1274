"""Which policy rules a stage: the rows, read set-based; choosing among them is pure and lives in `retries`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.retries import PolicyFact, Target, effective_policy
from pipelines.sql import query

THROTTLES = ("concurrency", "rate")  # the kinds that bound how much goes at once, and how fast


@dataclass(frozen=True, slots=True)
class Throttle(PolicyFact):
    """A policy of kind concurrency or rate, with the id by which attempts are counted for it."""

    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ForClaims:
    """The active policies that bear on handing out work, by workspace."""

    timeouts: Mapping[uuid.UUID, Sequence[PolicyFact]] = field(default_factory=dict)
    by_kind: Mapping[tuple[uuid.UUID, str], Sequence[Throttle]] = field(default_factory=dict)

    def timeout(self, workspace_id: uuid.UUID, target: Target) -> PolicyFact | None:
        return winner(self.timeouts.get(workspace_id, ()), target)

    def throttles(self, workspace_id: uuid.UUID, target: Target) -> dict[str, Throttle]:
        """The one of each kind that rules the stage; a kind of which none does is left out."""
        found = {}
        for kind in THROTTLES:
            if ruling := effective_policy(self.by_kind.get((workspace_id, kind), ()), target):
                found[kind] = ruling
        return found


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


def of_runs(workspace_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[tuple[uuid.UUID, PolicyFact]]]:
    """The active policies that say whether runs that failed are done again by themselves, with their ids, by workspace;
    workspaces without one are not in it."""
    found: dict[uuid.UUID, list[tuple[uuid.UUID, PolicyFact]]] = {}
    for workspace_id, policy_id, name, match, rule, created in query(
        "SELECT workspace_id, id, name, match, rule, extract(epoch FROM created_at)::float FROM pipelines_policy"
        " WHERE workspace_id = ANY(%s) AND kind = 'run_retry' AND status = 'active'",
        [list(workspace_ids)],
    ):
        told = PolicyFact(name, json.loads(match), json.loads(rule), created)
        found.setdefault(workspace_id, []).append((policy_id, told))
    return found


def for_claims(workspace_ids: Collection[uuid.UUID]) -> ForClaims:
    """What must be known to hand out stages of these workspaces, in one query."""
    timeouts: dict[uuid.UUID, list[PolicyFact]] = {}
    throttles: dict[tuple[uuid.UUID, str], list[Throttle]] = {}
    for workspace_id, policy_id, kind, name, match, rule, created in query(
        "SELECT workspace_id, id, kind, name, match, rule, extract(epoch FROM created_at)::float FROM pipelines_policy"
        " WHERE workspace_id = ANY(%s) AND kind IN ('timeout', 'concurrency', 'rate') AND status = 'active'"
        " ORDER BY created_at DESC, id DESC",
        [list(workspace_ids)],
    ):
        told = (name, json.loads(match), json.loads(rule), created)
        if kind == "timeout":
            timeouts.setdefault(workspace_id, []).append(PolicyFact(*told))
        else:
            throttles.setdefault((workspace_id, kind), []).append(Throttle(*told, policy_id))
    return ForClaims(timeouts, throttles)


def winner(policies: Sequence[PolicyFact], target: Target) -> PolicyFact | None:
    """The one that rules this stage; none when no policy targets it, and then the stage's own options rule."""
    return effective_policy(policies, target) if policies else None
