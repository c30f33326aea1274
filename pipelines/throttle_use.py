"""How far policies of kind concurrency and rate are used now, and by whom: what people are told. Counted, never stored.

A run's reader learns of other runs only where they are of the same application and environment; who administers
policies sees all that hold a slot.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pipelines import policies
from pipelines.lanes import Inside
from pipelines.models import Run, Stage
from pipelines.retries import Target
from pipelines.sql import query
from pipelines.states import CLAIMABLE_STAGE

NAMED = 3  # of those who hold a slot, on a run's page
LISTED = 50  # on a policy's


@dataclass(frozen=True, slots=True)
class Slot:
    """An attempt that holds a slot until its lease ends, or until it ends itself."""

    run: Inside
    application_id: uuid.UUID
    environment_id: uuid.UUID
    stage: str
    number: int
    worker: str
    until: datetime

    def sentence(self) -> str:
        where = f"stage {self.stage} of run {self.run.sentence()}"
        return f"{where}: attempt {self.number} at {self.worker}, lease until {self.until:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Use:
    """A policy as it is used: `used` of `most`, of a rate in the last `per_seconds`. With `opens` it has no room, and
    has some by the clock then. `slots` are the first that are held, those that end last first."""

    name: str
    kind: str
    used: int
    most: int
    per_seconds: float | None
    opens: datetime | None
    slots: Sequence[Slot] = field(default=())


def uses(policy_ids: Collection[uuid.UUID], most: int = NAMED) -> dict[uuid.UUID, Use]:
    """How these policies are used now, those that are active; two queries."""
    wanted = list(policy_ids)
    rows = query(
        "SELECT id, name, kind, rule, recourse_room(id), recourse_opens(id) FROM pipelines_policy"
        " WHERE id = ANY(%s) AND status = 'active' AND kind IN ('concurrency', 'rate')",
        [wanted],
    )
    slots = _slots(wanted, most) if rows else {}
    found = {}
    for policy_id, name, kind, text, room, opens in rows:
        rule = json.loads(text)
        bound = rule["max_active"] if kind == "concurrency" else rule["count"]
        per = rule.get("per_seconds")
        found[policy_id] = Use(name, kind, bound - room, bound, per, opens, slots.get(policy_id, ()))
    return found


def holding(run: Run, stages: Sequence[Stage], now: datetime) -> dict[uuid.UUID, Use]:
    """By stage that is ready or due: the policy that has no room for it, a concurrency policy before a rate policy."""
    waiting = [one for one in stages if one.state in CLAIMABLE_STAGE and one.available_at and one.available_at <= now]
    rules = policies.for_claims([run.workspace_id]) if waiting else policies.ForClaims()
    if not rules.by_kind:
        return {}
    slug = run.pipeline.slug if run.pipeline else ""
    ruling = {
        stage.id: rules.throttles(
            run.workspace_id, Target(stage.name, stage.handler, slug, run.environment.slug)
        ).values()
        for stage in waiting
    }
    known = uses({policy.id for mine in ruling.values() for policy in mine})
    full = {policy_id: use for policy_id, use in known.items() if use.opens is not None}
    return {
        stage_id: next(full[policy.id] for policy in mine if policy.id in full)
        for stage_id, mine in ruling.items()
        if any(policy.id in full for policy in mine)
    }


def _slots(policy_ids: Sequence[uuid.UUID], most: int) -> dict[uuid.UUID, list[Slot]]:
    found: dict[uuid.UUID, list[Slot]] = {}
    for policy_id, run_id, name, tick_at, status, application_id, environment_id, *facts in query(
        """
        SELECT policy.id, r.id, r.name, r.tick_at, r.status, r.application_id, r.environment_id, s.name, held.number,
            held.worker, held.expires_at
        FROM unnest(%s::uuid[]) policy(id) CROSS JOIN LATERAL (
            SELECT a.stage_id, a.run_id, a.number, a.worker, a.expires_at FROM pipelines_attempt a
            WHERE a.slot = policy.id AND a.state IN ('dispatched', 'running') AND a.expires_at > recourse_now()
            ORDER BY a.expires_at DESC LIMIT %s
        ) held
        JOIN pipelines_stage s ON s.id = held.stage_id JOIN pipelines_run r ON r.id = held.run_id
        ORDER BY held.expires_at DESC, s.id
        """,
        [list(policy_ids), most],
    ):
        inside = Inside(run_id, name, tick_at, status)
        found.setdefault(policy_id, []).append(Slot(inside, application_id, environment_id, *facts))
    return found
