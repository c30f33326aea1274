"""One target of a bulk, dealt with: planned, judged and done as the single verb does it, in one transaction with its
row.

Whoever asked for the bulk does it, with the role that they have by now (F150). What others agreed to for the whole bulk
counts for each target; where a rule asks for more, or a verdict holds it back, the target is denied here and nobody is
asked: one by one it may be (I11). Each leaves the single verb's audit event, with the bulk's id in its data (F146).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from approvals.rules import DECIDING_ROLES, Requirement
from pipelines.access import FORK, FORK_PROTECTED, Actor, person
from pipelines.audit import INTERNAL_ERROR, NO_OP, Entry, audited, standing
from pipelines.errors import Refusal
from pipelines.models import DeadLetter, Run
from pipelines.sql import execute, query
from pipelines.states import RUN_NO_OPS
from pipelines.transitions import lock_run
from recovery import agreements, dead_letters, forks, operations, transitions
from recovery.bulk_targets import CHECKPOINT, OF_FORKS, OF_LETTERS
from recovery.models import BulkOperation
from recovery.operations import Done
from recovery.plans import Asked, Plan, check_blackout
from recovery.states import BulkItemState, Disposition, OperationKind

log = structlog.get_logger(__name__)
NO_CHANGE = "no_op"
# it stands otherwise by its turn: the verb has nothing to do there
PASSED_BY = frozenset({"execution_state_invalid", "stage_state_invalid", "deadline_exceeded", "not_found"})
# a right, a verdict, a rule or a limit says no
FORBIDDEN = frozenset(
    {
        "permission_denied",
        "operator_review_required",
        "recovery_denied",
        "gate_denied",
        "needs_reconciliation",
        "approval_stale",
        "attempts_exhausted",
        "budget_exhausted",
    }
)


class Held(Exception):
    """A blackout holds the whole bulk; nothing was done or written."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class _Item:
    """A pending target, whose row is locked."""

    id: int
    position: int
    run: uuid.UUID
    stage: uuid.UUID | None
    dead_letter: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a target."""

    state: BulkItemState
    code: str = ""
    message: str = ""
    operation: uuid.UUID | None = None
    made: str | None = None


def act_on_next(bulk_id: uuid.UUID) -> bool:
    """Deals with the next target that nobody else has; False when there is none. Raises `Held`.

    What a target comes to, a fault of ours too, is its own: the others go on. Only a database that is away, or somebody
    who was quicker, leaves it pending.
    """
    with transaction.atomic():
        item = _take(bulk_id)
        if item is None:
            return False
        bulk = BulkOperation.objects.select_related("requested_by").get(id=bulk_id)
        _write(item, _act(bulk, item))
    return True


def _take(bulk_id: uuid.UUID) -> _Item | None:
    rows = query(
        "SELECT i.id, i.position, i.run, i.stage, i.dead_letter FROM recovery_bulkitem i"
        " WHERE i.bulk_id = %(bulk)s AND i.state = 'pending' AND i.position <= (SELECT"
        " CASE WHEN b.stops_after = 0 THEN b.total ELSE b.stops_after END FROM recovery_bulkoperation b"
        " WHERE b.id = %(bulk)s AND b.state = 'running')"
        " ORDER BY i.position LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED",
        {"bulk": bulk_id},
    )
    return _Item(*rows[0]) if rows else None


def _write(item: _Item, outcome: _Outcome) -> None:
    execute(
        "UPDATE recovery_bulkitem SET state = %s, code = %s, message = %s, operation = %s, made = %s,"
        " decided_at = recourse_now() WHERE id = %s",
        [outcome.state, outcome.code, outcome.message, outcome.operation, outcome.made, item.id],
    )


def _act(bulk: BulkOperation, item: _Item) -> _Outcome:
    try:
        return _perform(bulk, item)
    except Refusal as refusal:
        if refusal.code == "blackout_active":
            raise Held(refusal.detail) from refusal
        return _refused(refusal)
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("bulks.item_failed", bulk=str(bulk.id), position=item.position)
        return _Outcome(BulkItemState.FAILED, INTERNAL_ERROR, "a fault of the console kept it from being done")


def _refused(refusal: Refusal) -> _Outcome:
    if refusal.code in PASSED_BY:
        return _Outcome(BulkItemState.SKIPPED, refusal.code, refusal.detail)
    state = BulkItemState.DENIED if refusal.code in FORBIDDEN else BulkItemState.FAILED
    return _Outcome(state, refusal.code, refusal.detail)


def _perform(bulk: BulkOperation, item: _Item) -> _Outcome:
    kind = OperationKind(bulk.kind)
    is_fork = kind in OF_FORKS
    capability = FORK if is_fork else transitions.VERBS[kind].capability
    action = forks.action_of(kind) if is_fork else transitions.VERBS[kind].action
    requester = person(bulk.requested_by, bulk.workspace_id, bulk.channel)
    actor = requester or Actor(
        bulk.requested_by.get_username(), bulk.workspace_id, bulk.channel, user_id=bulk.requested_by_id
    )
    told: dict[str, Any] = {"bulk": str(bulk.id), "position": item.position}
    with audited(actor, action, run=item.run, stage=item.stage, reason=bulk.reason, **told) as entry:
        if requester is None:
            raise Refusal("permission_denied", "who asked for this is no member any more, or may not log in")
        asked = _asked(bulk, item, requester)
        entry.data |= dict(asked.choices) if is_fork else transitions.told(asked)
        moves, run = lock_run(item.run, requester)
        requester.require(capability)
        if run.status in RUN_NO_OPS.get(kind, ()):
            entry.outcome = NO_OP
            return _Outcome(BulkItemState.SKIPPED, NO_CHANGE, f"it is {run.status} already")
        if is_fork:
            answer = _fork(bulk, item, asked, requester, entry)
        else:
            answer = _in_place(bulk, item, asked, requester, entry, moves, run)
        if isinstance(answer, Refusal):
            entry.keep_refused(answer)
    if isinstance(answer, Refusal):
        return _refused(answer)
    made = answer.result.get("execution_id")
    return _Outcome(BulkItemState.DONE, operation=answer.operation_id, made=made)


def _in_place(
    bulk: BulkOperation, item: _Item, asked: Asked, actor: Actor, entry: Entry, moves: Any, run: Any
) -> Done | Refusal:
    stage = moves.stages.get(asked.stage_id) if asked.stage_id else None
    entry.before = standing(run, stage)
    plan = transitions.plan_in_place(asked, actor=actor)
    check_blackout(plan)
    entry.plan_digest = plan.digest
    operation = operations.opened(asked, actor=actor, key=_key(bulk, item), plan=plan)
    operations.record_verdict(actor, operation)
    if (refusal := _held_back(bulk, plan)) is not None:
        return refusal
    transitions.carry_out(transitions.VERBS[asked.kind], moves, run, asked, plan, operation)
    operations.add(operation)
    entry.after = standing(run, stage)
    return operations.done(operation)


def _fork(bulk: BulkOperation, item: _Item, asked: Asked, actor: Actor, entry: Entry) -> Done | Refusal:
    """The run is reserved and made in the one transaction that also writes the target's row."""
    world, plan = forks.plan_now(asked, actor=actor, starts=True)
    entry.plan_digest = plan.digest
    operation = operations.opened(asked, actor=actor, key=_key(bulk, item), plan=plan)
    operations.record_verdict(actor, operation)
    if (refusal := _held_back(bulk, plan)) is not None:
        return refusal
    if world.source.is_protected and not (plan.agreements and covers(bulk, plan)):
        actor.require(FORK_PROTECTED)
    operation.result = forks.told_of(plan.as_json())
    forks.allow(operation, plan)
    operations.add(operation)
    done = forks.make_reserved(operation, world, plan)
    entry.after = {"target": done.result["execution_id"]}
    return done


def _held_back(bulk: BulkOperation, plan: Plan) -> Refusal | None:
    """Why this target is not done in a bulk: its verdict, or agreement that the bulk has not."""
    verdict = plan.verdict
    if not verdict.lets_go_on:
        is_denied = verdict.disposition == Disposition.RECOVERY_DENIED
        why = f": {verdict.reasons[0].text}" if verdict.reasons else ""
        detail = f"this is denied{why}" if is_denied else f"a person must look at this one by itself{why}"
        told = {"disposition": verdict.disposition, "reasons": verdict.reasons_json()}
        return Refusal("recovery_denied" if is_denied else "operator_review_required", detail, extra=told)
    if plan.agreements and not covers(bulk, plan):
        one = plan.agreements[0]
        return Refusal("approval_stale", f"others must agree to this one by itself: {one.why}")
    return None


def covers(bulk: BulkOperation, plan: Plan) -> bool:
    """Whether what others agreed to for the whole bulk is all that this target needs."""
    given = agreements.frozen_in(bulk.plan or {"approvals": ()})
    needed = agreements.frozen_in(plan.as_json())
    return needed is None or (given is not None and _is_enough(given, needed))


def _is_enough(given: Requirement, needed: Requirement) -> bool:
    rank = DECIDING_ROLES.index
    return rank(given.role) >= rank(needed.role) and given.count >= needed.count


def _key(bulk: BulkOperation, item: _Item) -> str:
    return f"bulk:{bulk.id}:{item.position}"


def _asked(bulk: BulkOperation, item: _Item, actor: Actor) -> Asked:
    """The request as the single verb has it. `not_found` where the target is gone."""
    kind, choices = OperationKind(bulk.kind), bulk.choices
    if kind in OF_LETTERS:
        letter = DeadLetter.objects.filter(id__in=[item.dead_letter]).first()
        if letter is None:
            raise Refusal("not_found", "the dead letter is there no more")
        if kind == OperationKind.DISCARD:
            return dead_letters.ask_mark(kind, letter, reason=bulk.reason)
        return dead_letters.ask_redrive(letter, reason=bulk.reason).overriding(bulk.override_reason)
    if kind in OF_FORKS:
        return _asked_fork(bulk, item, actor)
    match kind:
        case OperationKind.RETRY:
            asked = transitions.ask_retry(item.run, _stage(item), scope=choices["scope"], reason=bulk.reason)
            return asked.overriding(bulk.override_reason)
        case OperationKind.SKIP:
            return transitions.ask_skip(item.run, _stage(item), reason=bulk.reason)
        case OperationKind.PAUSE:
            return Asked(kind, item.run, choices={"until": choices["until"]}, reason=bulk.reason)
        case OperationKind.RESUME:
            return transitions.ask_resume(item.run, reason=bulk.reason)
        case _:
            return transitions.ask_cancel(item.run, reason=bulk.reason)


def _asked_fork(bulk: BulkOperation, item: _Item, actor: Actor) -> Asked:
    run = (
        Run.objects.select_related("pipeline", "environment")
        .filter(id=item.run, workspace_id=bulk.workspace_id)
        .first()
    )
    if run is None:
        raise Refusal("not_found", "the run is there no more")
    kind, choices = OperationKind(bulk.kind), bulk.choices
    wish = forks.Wish(
        environment=choices["environment"],
        from_step_id=_start(item) if kind == OperationKind.RERUN and choices["from"] != CHECKPOINT else None,
        freeze_release=bool(choices.get("freeze_release")),
    )
    asked = forks.ask_fork(kind, run, wish, actor=actor, reason=bulk.reason)
    return asked.overriding(bulk.override_reason)


def _start(item: _Item) -> str:
    """The name of the stage that a rerun starts from."""
    rows = query("SELECT name FROM pipelines_stage WHERE id = %s", [item.stage])
    if not rows:
        raise Refusal("not_found", "the stage is there no more")
    return str(rows[0][0])


def _stage(item: _Item) -> uuid.UUID:
    if item.stage is None:
        raise Refusal("not_found", "the run has no such stage")
    return item.stage
