"""The life of an operation: its key, its moves, its verdict, its answer. One row for each request that was accepted.

A verb in place goes its whole way in one transaction. One in review keeps its row and its key while it answers 409; one
that is denied keeps its row and no key. The verdict and its audit event are always written before, or together with,
what is done (O27, I11).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.db import IntegrityError

from approvals import requests
from approvals.gates import Planned
from approvals.requests import Matter
from approvals.rules import Requirement, strictest
from pipelines import audit
from pipelines.access import Actor, person
from pipelines.audit import ALLOWED, DENIED, Entry
from pipelines.errors import Refusal
from pipelines.moves import IllegalMove
from pipelines.sql import database_now
from recovery import agreements, run_retry_rows
from recovery.decision_checks import JUDGED
from recovery.dispositions import GOES_ON
from recovery.models import Operation
from recovery.plans import NOTHING_TO_REPEAT, Asked, Plan, digest_of
from recovery.states import OPERATION_MOVES, Disposition, OperationKind, OperationState

# with what somebody who asks for it has taken the run over: it does not retry itself then
TAKING_OVER = frozenset({*JUDGED, OperationKind.CANCEL, OperationKind.DISCARD})


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a verb."""

    operation_id: uuid.UUID
    run_id: uuid.UUID
    stage_id: uuid.UUID | None
    status: str
    disposition: str
    replayed: bool
    result: dict[str, Any]
    plan_digest: str = ""


def opened(asked: Asked, *, actor: Actor, key: str, plan: Plan | None = None) -> Operation:
    """A new operation that is being evaluated; not saved yet. Its verdict is that of its plan."""
    operation = Operation(
        workspace_id=actor.workspace_id,
        kind=asked.kind,
        run_id=asked.run_id,
        stage_id=asked.stage_id,
        requested_by_id=actor.user_id,
        requested_as="" if actor.is_person else actor.name,
        channel=actor.channel,
        key=key,
        fingerprint=asked.fingerprint,
        reason=asked.reason,
        request=dict(asked.choices),
        state=OperationState.REQUESTED,
    )
    planned(operation, plan)
    move(operation, "evaluate")
    return operation


def planned(operation: Operation, plan: Plan | None) -> None:
    """Gives the operation its plan, and the verdict of that."""
    verdict = plan.verdict if plan else NOTHING_TO_REPEAT
    operation.plan = plan.as_json() if plan else None
    operation.plan_digest = operation.plan["plan_digest"] if operation.plan else ""
    operation.disposition = verdict.disposition
    operation.reasons = verdict.reasons_json()


def judged_anew(operation: Operation, plan: Mapping[str, Any], actor: Actor) -> None:
    """Gives a kept operation the plan of the world as it is now, as JSON, and records the verdict of that (O27)."""
    operation.plan, operation.plan_digest = dict(plan), plan["plan_digest"]
    operation.disposition, operation.reasons = plan["disposition"], plan["reasons"]
    record_verdict(actor, operation)


def move(operation: Operation, action: str) -> None:
    """Moves an operation as the table says; saving it is the caller's."""
    state = OperationState(operation.state)
    if state not in OPERATION_MOVES[action]:
        raise IllegalMove(f"operation {operation.id} cannot {action} from {state}")
    operation.state = OPERATION_MOVES[action][state]


def add(operation: Operation) -> None:
    """Inserts a new operation; a key that another target took meanwhile, under its own run's lock, is a conflict."""
    try:
        operation.save(force_insert=True)
    except IntegrityError as error:
        if "operation_key_once" not in str(error):
            raise
        raise _key_taken() from error
    _take_over([operation])


def add_all(operations: Sequence[Operation]) -> None:
    """Inserts new operations whose keys nobody else can have, in one statement."""
    Operation.objects.bulk_create(operations)
    _take_over(operations)


def _take_over(operations: Sequence[Operation]) -> None:
    """Who asks for something of a run that was to be retried by itself has taken it over: it is not, any more."""
    asked = [one for one in operations if one.kind in TAKING_OVER and one.state != OperationState.DENIED]
    for user_id in {one.requested_by_id for one in asked if one.requested_by_id is not None}:
        kinds = {one.run_id: str(one.kind) for one in asked if one.requested_by_id == user_id}
        run_retry_rows.take_over(kinds, user_id)


def update(operation: Operation) -> None:
    operation.updated_at = database_now()
    operation.save(force_update=True)


def earlier(actor: Actor, asked: Asked, key: str) -> Operation | None:
    """What was asked for with this key before; the same key for another request, or another person's, is refused."""
    if not key:
        return None
    found = Operation.objects.filter(workspace_id=actor.workspace_id, kind=asked.kind, key=key).first()
    if found is None:
        return None
    is_same = found.fingerprint in (asked.fingerprint, _older_fingerprint(asked))
    if not is_same or found.requested_by_id != actor.user_id:
        raise _key_taken()
    return found


def asked_of(operation: Operation) -> Asked:
    """The request that the operation is for, to plan it again."""
    return Asked(
        OperationKind(operation.kind), operation.run_id, operation.stage_id, operation.request, operation.reason
    )


def requester_of(operation: Operation) -> Actor:
    """Who asked for it, with the role that they have by now (F150); `permission_denied` when they have none."""
    asked = operation.requested_by
    requester = person(asked, operation.workspace_id, operation.channel) if asked else None
    if requester is None:
        raise Refusal("permission_denied", "who asked for this is no member any more, or may not log in")
    return requester


def done(operation: Operation, *, replayed: bool = False) -> Done:
    return Done(
        operation_id=operation.id,
        run_id=operation.run_id,
        stage_id=operation.stage_id,
        status=operation.state,
        disposition=operation.disposition,
        replayed=replayed,
        result=operation.result,
        plan_digest=operation.plan_digest,
    )


def answer_again(operation: Operation) -> Done | Refusal:
    """The first answer once more: what was done, or why it is not done."""
    match operation.state:
        case OperationState.REVIEW_REQUIRED | OperationState.DENIED:
            return held_back(operation)
        case OperationState.WITHDRAWN | OperationState.EXPIRED:
            return Refusal("approval_stale", f"this request was {operation.state}; ask anew with another key")
        case _:
            return done(operation, replayed=True)


def check_digest(plan: Plan, plan_digest: str) -> None:
    """Refuses with the new plan when the one that was looked at, if any, is not what would be done now."""
    if plan_digest and plan_digest != plan.digest:
        raise plan_changed(plan)


def plan_changed(plan: Plan) -> Refusal:
    detail = "what this would do has changed since it was planned; look at the new plan and ask again"
    return Refusal("plan_changed", detail, extra={"plan": plan.shown(), "plan_digest": plan.digest})


def hold_back(operation: Operation, plan: Plan) -> Refusal | None:
    """Denies the operation, or puts it before others, as its verdict and the rules say; saving it is the caller's.

    The refusal that it then stands for; none where it only awaits approval, or may go on at once.
    """
    if plan.verdict.disposition == Disposition.RECOVERY_DENIED:
        deny(operation)
        return held_back(operation)
    wanted = as_planned(operation, plan)
    if wanted is None:
        return None
    move(operation, "ask_review" if wanted.in_review else "ask_approval")
    requests.ask(matter_of(operation), wanted)
    return held_back(operation) if wanted.in_review else None


def deny(operation: Operation) -> None:
    """What was denied by its verdict is looked at anew when it is asked for again: it keeps no key."""
    move(operation, "deny")
    operation.key = ""
    operation.target = None


def matter_of(operation: Operation) -> Matter:
    """The operation, to be put before others."""
    return Matter(
        operation.workspace_id,
        operation.id,
        operation.kind,
        operation.run_id,
        operation.stage_id,
        cast(int, operation.requested_by_id),  # what a policy asks for is put before nobody
        operation.reason,
    )


def as_planned(operation: Operation, plan: Plan, was: Requirement | None = None) -> Planned | None:
    """What others are asked to agree to, at least as many as before (`was`); None when nobody must."""
    in_review = plan.verdict.disposition == Disposition.OPERATOR_REVIEW_REQUIRED
    by_verdict = Requirement(why=("its verdict: somebody else must look at it first",)) if in_review else None
    asked = agreements.frozen_in(plan.as_json())
    requirement = strictest(strictest(asked, by_verdict), was)
    if requirement is None:
        return None
    denied = denial(operation, plan) if plan.verdict.disposition == Disposition.RECOVERY_DENIED else None
    return Planned(plan.as_json(), plan.digest, requirement, in_review, denied)


def held_back(operation: Operation) -> Refusal:
    """The answer to an operation that its verdict, or a decision about it, holds back."""
    is_denied = operation.state == OperationState.DENIED
    return _held_back(operation.id, operation.disposition, operation.reasons, operation.plan_digest, denied=is_denied)


def denial(operation: Operation, plan: Plan) -> Refusal:
    """The answer to an operation that this plan's verdict forbids."""
    verdict = plan.verdict
    return _held_back(operation.id, verdict.disposition, verdict.reasons_json(), plan.digest, denied=True)


def _held_back(
    operation_id: uuid.UUID, disposition: str, reasons: list[dict[str, Any]], digest: str, *, denied: bool
) -> Refusal:
    why = f": {reasons[0]['text']}" if reasons else ""
    return Refusal(
        "recovery_denied" if denied else "operator_review_required",
        f"this is denied{why}" if denied else f"somebody else with the right must let this go on{why}",
        extra={
            "operation_id": str(operation_id),
            "disposition": disposition,
            "reasons": reasons,
            "plan_digest": digest,
        },
    )


def record_verdict(actor: Actor, operation: Operation) -> None:
    """The audit event `execution.recovery_disposition`, also when it denies (O27)."""
    if (told := verdict_of(actor, operation)) is not None:
        audit.write(actor, *told)


def verdict_of(actor: Actor, operation: Operation) -> tuple[str, Entry] | None:
    """That event, as (action, entry), to be written by the caller; None where verdicts have none of their own."""
    if operation.kind not in JUDGED:
        return None
    told = {
        "operation": str(operation.id),
        "kind": operation.kind,
        "disposition": operation.disposition,
        "reasons": operation.reasons,
    }
    asked = Entry(
        run=operation.run_id,
        stage=operation.stage_id,
        reason=operation.reason,
        on_behalf_of=on_behalf_of(operation, actor),
        plan_digest=operation.plan_digest,
        data=told,
    )
    return _verdict(asked, operation.disposition)


def waiting(operation: Operation) -> dict[str, Any]:
    """What the audit keeps of an operation that is not carried out at once: where it stands, and whom it waits for."""
    plan: Mapping[str, Any] = operation.plan or {}
    asked = [{"role": one["role"], "count": one["count"]} for one in plan.get("approvals", ())]
    return {"operation": str(operation.id), "status": operation.state, "approvals": asked}


def on_behalf_of(operation: Operation, actor: Actor) -> str:
    """Whose request it is, for the audit, when somebody else carries it on; blank when it is the actor's own."""
    return "" if operation.requested_by_id == actor.user_id else operation.asker


def record_denied_gate(actor: Actor, asked: Asked, refusal: Refusal) -> None:
    """The verdict's event for what a rejected gate forbids: there is no plan of it, and so no operation is kept."""
    told = {"kind": asked.kind.value, **refusal.extra}
    entry = Entry(run=asked.run_id, stage=asked.stage_id, reason=asked.reason, data=told)
    audit.write(actor, *_verdict(entry, Disposition.RECOVERY_DENIED))


def _verdict(entry: Entry, disposition: str) -> tuple[str, Entry]:
    goes_on = disposition in GOES_ON
    entry.outcome, entry.code = (ALLOWED, "") if goes_on else (DENIED, disposition)
    return "execution.recovery_disposition", entry


def _older_fingerprint(asked: Asked) -> str:
    """The request's fingerprint in the words of before there were plans, whose keys are kept: a pause had no end, and
    the verbs on a dead letter were told by its run, or as a retry of its stage."""
    target, choices = asked.stage_id or asked.run_id, dict(asked.choices)
    match asked.kind:
        case OperationKind.PAUSE if choices["until"] is None:
            choices = {}
        case OperationKind.ACKNOWLEDGE | OperationKind.DISCARD:
            target = asked.run_id
        case OperationKind.REDRIVE:
            del choices["dead_letter"]
    return digest_of([asked.kind.value, str(target), choices])


def _key_taken() -> Refusal:
    return Refusal("recovery_idempotency_conflict", "this key was already used for another request")
