"""How a backfill that others agreed to is planned again and let go on. Registered with `approvals/gates.py` by
`recovery/apps.py`.

A backfill is about no run: whoever decides holds the lock on the backfill itself. It follows its request; nothing here
decides who may agree. Serves F51, F150, O57, model §5.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from approvals import requests
from approvals.gates import Carried, Given, Held, Planned, Where
from approvals.models import ApprovalRequest
from approvals.rules import Requirement
from pipelines import blackouts
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.moves import IllegalMove
from pipelines.sql import database_now
from recovery import backfills
from recovery.backfill_work import AT_ONCE, fill_up, lock, trigger_of, update
from recovery.models import Backfill
from recovery.states import Disposition


class BackfillCarrier:
    """The whole window is one subject."""

    def lock(self, request: ApprovalRequest, actor: Actor) -> Held:
        if request.workspace_id != actor.workspace_id or lock(request.subject) is None:
            raise Refusal("not_found", "there is no such backfill")
        return Held(database_now())

    def preview(self, request: ApprovalRequest) -> Planned:
        backfill = _of(request)
        return replace(self.plan_again(request), denied=_held_back(backfill, _holds(backfill)))

    def given(self, request: ApprovalRequest) -> Given | None:
        told = _of(request).override_reason
        return Given("override_reason", told) if told else None

    def plan_again(self, request: ApprovalRequest) -> Planned:
        return backfills.as_planned(backfills.plan_again(_of(request)), _asked(request))

    def carry_out(self, request: ApprovalRequest, held: Held, *, actor: Actor) -> Carried | Refusal:
        backfill = _of(request)
        agreed = requests.agreed(backfill.id)
        if agreed is None:
            raise IllegalMove(f"backfill {backfill.id} was not agreed to")
        if not agreed.holds:
            raise Refusal("approval_stale", "an approval became void just now, so more people must agree; decide again")
        plan = backfills.plan_again(backfill)
        if plan.digest != request.plan_digest:
            raise backfills.plan_changed(plan)  # a rule, or the release in force, moved since it was planned just now
        holds = _holds(backfill)
        if (held_back := _held_back(backfill, holds)) is not None:
            raise held_back
        backfills.begin(backfill, plan, is_overridden=holds is not None)
        told = _carried(backfill)

        def fill() -> Carried:
            if plan.total_ticks <= AT_ONCE:
                fill_up(backfill.id)
            return self.told(request)

        return Carried(told.status, told.disposition, then=fill, where=told.where)

    def asked_anew(self, request: ApprovalRequest, planned: Planned, *, actor: Actor) -> None:
        backfill = _of(request)
        backfills.freeze(backfill, backfills.plan_again(backfill))
        update(backfill)

    def close(self, request: ApprovalRequest, action: str, *, actor: Actor | None) -> None:
        backfills.close(_of(request), actor)

    def told(self, request: ApprovalRequest) -> Carried:
        return _carried(_of(request))

    def all_told(self, requests: Sequence[ApprovalRequest]) -> Mapping[uuid.UUID, Carried]:
        rows = Backfill.objects.filter(id__in=[request.subject for request in requests])
        found = rows.select_related("trigger__environment", "trigger__pipeline").defer("plan", "request")
        return {backfill.id: _carried(backfill) for backfill in found}


def _of(request: ApprovalRequest) -> Backfill:
    rows = Backfill.objects.select_related("requested_by", "trigger__environment", "trigger__pipeline")
    return rows.get(id=request.subject)


def _held_back(backfill: Backfill, holds: blackouts.Active | None) -> Refusal | None:
    """What the blackout that `holds` says to an approval.

    Whoever agrees cannot override it: unless who asked did, it waits, open, for the end of the blackout.
    """
    if holds is None or backfill.override_reason.strip():
        return None
    ways = "approve it once that is over, or have it withdrawn and asked for anew with why it is to start all the same"
    return Refusal("blackout_active", f"{holds.sentence()}; {ways}", extra={"blackout": holds.as_json()})


def _holds(backfill: Backfill) -> blackouts.Active | None:
    return blackouts.active(backfill.workspace_id, trigger_of(backfill).environment_id, backfill.trigger_id)


def _asked(request: ApprovalRequest) -> Requirement:
    return Requirement(request.approver_role, request.count, why=tuple(request.why))


def _carried(backfill: Backfill) -> Carried:
    trigger = backfill.trigger
    where = Where(trigger.name, trigger.environment.slug, trigger.environment.protected, trigger.pipeline.slug)
    return Carried(backfill.state, Disposition.RECOVERY_ALLOWED, where=where)
