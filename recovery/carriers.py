"""How operations that others agreed to are planned again and carried out: verbs in place at once, forks by way of a
reserved target. Registered with `approvals/gates.py` by `recovery/apps.py`.

The operation follows its request. Nothing here decides who may agree. Serves O45, F51, F150, I10, I11.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence

from approvals import gates, requests
from approvals.gates import Carried, Given, Held, Planned
from approvals.models import ApprovalRequest
from approvals.rules import Requirement
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.moves import IllegalMove, Moves, RunRow
from recovery import agreements, forks, operations, revisions
from recovery.models import Operation
from recovery.plans import Plan, check_blackout
from recovery.states import Disposition, OperationKind, OperationState
from recovery.transitions import VERBS, carry_out, plan_in_place

# what closes a request → the move of its operation
FOLLOWS = {"reject": "deny", "withdraw": "withdraw", "expire": "expire"}


class _Carrier:
    """What both kinds do alike."""

    def lock(self, request: ApprovalRequest, actor: Actor) -> Held:
        held = gates.lock_its_run(request, actor)
        if request.run_id is not None:
            asked = operations.asked_of(Operation.objects.get(id=request.subject))
            if revisions.revises(asked):
                revisions.one_at_a_time([request.run_id])
        return held

    def preview(self, request: ApprovalRequest) -> Planned:
        operation = Operation.objects.select_related("requested_by").get(id=request.subject)
        return _planned(operation, self.plan(operation), request)

    def given(self, request: ApprovalRequest) -> Given | None:
        return None

    def plan_again(self, request: ApprovalRequest) -> Planned:
        operation = _locked(request)
        return _planned(operation, self.plan(operation), request)

    def carry_out(self, request: ApprovalRequest, held: Held, *, actor: Actor) -> Carried | Refusal:
        operation = _locked(request)
        agreed = requests.agreed(operation.id)
        if agreed is None:
            raise IllegalMove(f"operation {operation.id} was not agreed to")
        if not agreed.holds:
            raise Refusal("approval_stale", "an approval became void just now, so more people must agree; decide again")
        plan = self.plan(operation)
        if plan.digest != request.plan_digest:
            raise operations.plan_changed(plan)  # a rule, or the release in force, moved since it was planned just now
        check_blackout(plan)  # whoever agrees cannot override it: it waits, open, for the end of the blackout
        if operation.state == OperationState.REVIEW_REQUIRED:
            operation.resolved_by_id = actor.user_id
        self.begin(operation, plan, *held.its_run)
        operations.update(operation)
        return self.going_on(operation, actor)

    def asked_anew(self, request: ApprovalRequest, planned: Planned, *, actor: Actor) -> None:
        operation = _locked(request)
        operations.judged_anew(operation, planned.plan, actor)
        if operation.kind in forks.FORKS:
            operation.result = forks.told_of(planned.plan)
        if operation.disposition == Disposition.RECOVERY_DENIED:
            operations.deny(operation)
        elif planned.in_review and operation.state == OperationState.AWAITING_APPROVAL:
            operations.move(operation, "ask_review")
        operations.update(operation)

    def close(self, request: ApprovalRequest, action: str, *, actor: Actor | None) -> None:
        operation = _locked(request)
        operations.move(operation, FOLLOWS[action])
        operations.update(operation)

    def told(self, request: ApprovalRequest) -> Carried:
        return _carried(Operation.objects.get(id=request.subject))

    def all_told(self, requests: Sequence[ApprovalRequest]) -> Mapping[uuid.UUID, Carried]:
        rows = Operation.objects.filter(id__in=[request.subject for request in requests])
        return {operation.id: _carried(operation) for operation in rows.defer("plan", "request")}

    def plan(self, operation: Operation) -> Plan:
        """The plan in the world as it is now. Raises when the requester may do it no longer."""
        raise NotImplementedError

    def begin(self, operation: Operation, plan: Plan, moves: Moves, run: RunRow) -> None:
        """Does in this transaction what is done in it."""
        raise NotImplementedError

    def going_on(self, operation: Operation, actor: Actor) -> Carried:
        return _carried(operation)


class InPlace(_Carrier):
    """Retry, redrive, skip, cancel, discard: done in the transaction of the decision."""

    def given(self, request: ApprovalRequest) -> Given | None:
        wanted = Operation.objects.values_list("request", flat=True).get(id=request.subject)
        if wanted.get("input") is not None:
            return Given("input", wanted["input"])
        if wanted.get("has_output"):
            return Given("output", json.dumps(wanted["output"], indent=2, ensure_ascii=False))
        return None

    def plan(self, operation: Operation) -> Plan:
        asked = operations.asked_of(operation)
        requester = operations.requester_of(operation)
        requester.require(VERBS[asked.kind].capability)
        return plan_in_place(asked, actor=requester, frozen=agreements.frozen_in(operation.plan or {}))

    def begin(self, operation: Operation, plan: Plan, moves: Moves, run: RunRow) -> None:
        asked = operations.asked_of(operation)
        carry_out(VERBS[asked.kind], moves, run, asked, plan, operation)


class Fork(_Carrier):
    """Rerun and replay: the target is reserved in the transaction of the decision, and made after it."""

    def plan(self, operation: Operation) -> Plan:
        return forks.plan_again(operation)[1]

    def begin(self, operation: Operation, plan: Plan, moves: Moves, run: RunRow) -> None:
        forks.allow(operation, plan)

    def going_on(self, operation: Operation, actor: Actor) -> Carried:
        def make() -> Carried:
            forks.dispatch(operation, actor=actor)
            return _carried(Operation.objects.get(id=operation.id))

        return Carried(operation.state, operation.disposition, operation.target, then=make)


def _locked(request: ApprovalRequest) -> Operation:
    rows = Operation.objects.select_related("requested_by").select_for_update(no_key=True, of=("self",))
    return rows.get(id=request.subject)


def _planned(operation: Operation, plan: Plan, request: ApprovalRequest) -> Planned:
    was = Requirement(request.approver_role, request.count, why=tuple(request.why))
    planned = operations.as_planned(operation, plan, was)
    if planned is None:
        raise IllegalMove(f"operation {operation.id} waits, and nobody need agree to it")
    return planned


def _carried(operation: Operation) -> Carried:
    made = operation.result.get("execution_id")
    return Carried(operation.state, operation.disposition, uuid.UUID(made) if made else None)


_IN_PLACE, _FORK = InPlace(), Fork()
# the kinds that rules may name, each with what carries it out
CARRIERS: tuple[tuple[OperationKind, InPlace | Fork], ...] = tuple(
    (kind, _FORK if kind in forks.FORKS else _IN_PLACE) for kind in agreements.RULED
)
END_WITH_RUN = frozenset({OperationKind.RETRY, OperationKind.REDRIVE, OperationKind.SKIP, OperationKind.CANCEL})
