"""How a bulk that others agreed to is planned again and let go on. Registered with `approvals/gates.py` by
`recovery/apps.py`.

The whole bulk is one question: its verb, on just these targets. What was agreed to counts for each target on its turn
(`bulk_acts.covers`). Whoever decides holds the lock on the bulk itself. Nothing here decides who may agree. Serves F51,
F150, model §5.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from approvals import requests
from approvals.gates import Carried, Given, Held, Planned, Where
from approvals.models import ApprovalRequest
from approvals.rules import Requirement
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.moves import IllegalMove
from pipelines.sql import database_now
from recovery import bulk_work, bulks
from recovery.bulk_plans import BulkPlan, called
from recovery.models import BulkOperation
from recovery.states import Disposition


class BulkCarrier:
    """All of its targets are one subject."""

    def lock(self, request: ApprovalRequest, actor: Actor) -> Held:
        if request.workspace_id != actor.workspace_id or bulk_work.lock(request.subject) is None:
            raise Refusal("not_found", "there is no such bulk operation")
        return Held(database_now())

    def preview(self, request: ApprovalRequest) -> Planned:
        plan = bulks.plan_again(_of(request))
        return replace(bulks.as_planned(plan, _asked(request)), denied=_held_back(plan))

    def given(self, request: ApprovalRequest) -> Given | None:
        told = _of(request).override_reason
        return Given("override_reason", told) if told else None

    def plan_again(self, request: ApprovalRequest) -> Planned:
        return bulks.as_planned(bulks.plan_again(_of(request)), _asked(request))

    def carry_out(self, request: ApprovalRequest, held: Held, *, actor: Actor) -> Carried | Refusal:
        bulk = _of(request)
        agreed = requests.agreed(bulk.id)
        if agreed is None:
            raise IllegalMove(f"bulk {bulk.id} was not agreed to")
        if not agreed.holds:
            raise Refusal("approval_stale", "an approval became void just now, so more people must agree; decide again")
        plan = bulks.plan_again(bulk)
        if plan.digest != request.plan_digest:
            raise bulks.plan_changed(plan)  # a rule moved since it was planned just now
        if (held_back := _held_back(plan)) is not None:
            raise held_back
        bulks.begin(bulk)
        return self.told(request)

    def asked_anew(self, request: ApprovalRequest, planned: Planned, *, actor: Actor) -> None:
        bulk = _of(request)
        bulk.plan, bulk.plan_digest = dict(planned.plan), planned.digest
        bulk_work.update(bulk)

    def close(self, request: ApprovalRequest, action: str, *, actor: Actor | None) -> None:
        bulk_work.abort(_of(request), actor, _CLOSED[action])

    def told(self, request: ApprovalRequest) -> Carried:
        return _carried(_of(request))

    def all_told(self, requests: Sequence[ApprovalRequest]) -> Mapping[uuid.UUID, Carried]:
        rows = BulkOperation.objects.filter(id__in=[request.subject for request in requests])
        return {bulk.id: _carried(bulk) for bulk in rows}


_CLOSED = {
    "reject": "others did not agree",
    "withdraw": "it was withdrawn",
    "expire": "nobody decided about it in time",
}


def _of(request: ApprovalRequest) -> BulkOperation:
    return BulkOperation.objects.select_related("requested_by").get(id=request.subject)


def _held_back(plan: BulkPlan) -> Refusal | None:
    """What a blackout says to an approval: whoever agrees cannot override it. Unless who asked did, it waits, open, for
    the end of the blackout."""
    if plan.blackout is None or not plan.is_held:
        return None
    ways = "approve it once that is over, or have it withdrawn and asked for anew with why it is to start all the same"
    told = {"blackout": plan.blackout.as_json()}
    return Refusal("blackout_active", f"{plan.blackout.sentence()}; {ways}", extra=told)


def _asked(request: ApprovalRequest) -> Requirement:
    return Requirement(request.approver_role, request.count, why=tuple(request.why))


def _carried(bulk: BulkOperation) -> Carried:
    """Where it acts is told from its plan, so that a list needs no look at its targets."""
    plan: Mapping[str, Any] = bulk.plan or {}
    places = [one["environment"] for one in plan.get("by_environment", ())]
    pipelines = [one["pipeline"] for one in plan.get("by_pipeline", ()) if one["pipeline"]]
    where = Where(
        name=f"bulk {called(bulk.kind, bulk.total)}",
        environment=", ".join(places),
        is_protected=bool(plan.get("protected")),
        pipeline=pipelines[0] if len(pipelines) == 1 else "",
    )
    return Carried(bulk.state, Disposition.RECOVERY_ALLOWED, where=where)
