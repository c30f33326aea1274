"""Rerun and replay: a new run made out of one that has ended, which stays as it is.

Two transactions. The first locks the source, plans, judges, records the verdict, and reserves the target's id and its
release. The second locks the source and the operation, plans and judges again, and makes the run with exactly that id.
Whatever happens between them, the same request again, or the sweep (`recovery/tasks.py`), carries the reserved
operation on; the lock on it and the run's id let only one of them make the run.

A request leaves one audit event: with the run, or with why there is none. Serves O17–O41, F35, F36, F43, F48, I10–I12.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from approvals import requests
from approvals.rules import Requirement
from pipelines import audit, baselines, children, context, lanes
from pipelines.access import FORK, FORK_PROTECTED, Actor
from pipelines.audit import DENIED, NO_OP, Entry, audited
from pipelines.creation import Draft, Origin, Parent, Place, insert_runs, stage_row
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.models import Environment, Event, Release, Run
from pipelines.moves import IllegalMove, Moves
from pipelines.sql import execute, recordset
from pipelines.states import CheckpointMoment
from pipelines.transitions import lock_run
from recovery import agreements, fork_world, operations, revisions
from recovery.fork_plans import plan_fork
from recovery.fork_world import ForkWorld
from recovery.models import Operation
from recovery.operations import Done
from recovery.plans import Asked, Plan
from recovery.states import Disposition, OperationKind, OperationState

log = structlog.get_logger(__name__)
FORKS = frozenset({OperationKind.RERUN, OperationKind.REPLAY})


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for, before its defaults. Of a rerun `from_step_id`; of a replay `freeze_release`."""

    flow_slug: str | None = None
    environment: str | None = None
    actor_ref: str | None = None
    from_step_id: str | None = None
    freeze_release: bool = False


def ask_fork(kind: OperationKind, run: Run, wish: Wish, *, actor: Actor, reason: str = "") -> Asked:
    """The request with its defaults filled in: the source's own pipeline and environment (O23, O38).

    Refused: `impersonation_rejected` for anyone else's `actor_ref` (O22), another pipeline (400), an environment that
    the workspace has not (`environment_unknown`). `run` is one that the actor may see.
    """
    if wish.actor_ref is not None and wish.actor_ref not in (actor.name, str(actor.user_id)):
        message = "who acts comes from the log-in: leave it out, or name yourself"
        raise Refusal("impersonation_rejected", message, errors={"actor_ref": [message]})
    slug = run.pipeline.slug if run.pipeline else run.name
    if wish.flow_slug is not None and wish.flow_slug != slug:
        message = f"the run is one of {slug!r}"
        raise Refusal("validation_error", f"flow_slug: {message}", errors={"flow_slug": [message]})
    environment = wish.environment or run.environment.slug
    if not Environment.objects.filter(workspace_id=actor.workspace_id, slug=environment).exists():
        message = f"no environment is called {environment!r}"
        raise Refusal("environment_unknown", message, errors={"environment": [message]})
    choices: dict[str, Any] = {"environment": environment, "flow_slug": slug}
    if kind == OperationKind.RERUN:
        choices["from_step_id"] = wish.from_step_id
    else:
        choices["freeze_release"] = wish.freeze_release
    return Asked(kind, run.id, choices=choices, reason=reason)


def preview(asked: Asked, *, actor: Actor) -> Plan:
    """What the fork would be now. Nothing is locked or written; for a viewer it says what an operator's would need."""
    return plan_now(asked, actor=actor)[1]


def fork(asked: Asked, *, actor: Actor, key: str = "", plan_digest: str = "") -> Done:
    """Makes the fork, or says where it stands: `dispatched` with its target, or `awaiting_approval`.

    Refused as `fork_world.read`; `plan_changed`; `recovery_denied` and `operator_review_required`, which are kept. The
    same key for the same request goes on with, or answers with, the first target (`replayed`); without a key every
    call forks.
    """
    operation, is_new = _reserved(asked, actor, key, plan_digest)
    if operation.state == OperationState.RESERVED:
        return dispatch(operation, actor=actor, replayed=not is_new)
    return operations.done(operation, replayed=not is_new)


def dispatch(operation: Operation, *, actor: Actor, replayed: bool = False) -> Done:
    """Makes the run of a reserved operation, planned and judged again; once, whoever tries.

    What no longer holds ends the operation, and its key is free again: `recovery_denied`, `plan_changed`, a right that
    the requester has lost, a release that was revoked, approvals that are void by now (`approval_stale`). A verdict
    that is worse by now puts it into review. Whoever reserved the target is told of a new run, also when another
    request with the same key was quicker to make it.
    """
    action, told = action_of(operation.kind), {"operation": str(operation.id), **operation.request}
    if requests.agreed(operation.id) is not None:
        # asked for and decided in requests of their own, which have their events; what came to nothing has none yet
        behalf = operations.on_behalf_of(operation, actor)
        entry = Entry(run=operation.run_id, reason=operation.reason, on_behalf_of=behalf, data=told)
        with transaction.atomic():
            answer = _locked(operation, actor, entry)
            if isinstance(answer, Refusal):
                audit.write(actor, action, entry)
                answer.is_recorded = True
    else:
        with audited(actor, action, run=operation.run_id, reason=operation.reason, **told) as entry:
            answer = _locked(operation, actor, entry)
            if isinstance(answer, Refusal):
                answer.is_recorded = True
    if isinstance(answer, Refusal):
        raise answer
    return replace(answer, replayed=replayed)


def allow(operation: Operation, plan: Plan) -> None:
    """Lets a judged operation go on: fixes the target's id, the release and the checkpoint (I10, O30, O40)."""
    operations.move(operation, "allow")
    operations.move(operation, "reserve")
    operation.target = new_id()
    operation.checkpoint = uuid.UUID(plan.checkpoint_id) if plan.checkpoint_id else None


def plan_again(operation: Operation, *, pinned: bool = False) -> tuple[ForkWorld, Plan]:
    """The plan of a kept operation in the world as it is now; at least as many must agree as when it was asked for.

    Refused when its requester may do it no longer (F150).
    """
    requester = operations.requester_of(operation)
    requester.require(FORK)
    told: Mapping[str, Any] = operation.plan or {}
    release_id = uuid.UUID(told["release_id"]) if pinned else None
    asked, frozen = operations.asked_of(operation), agreements.frozen_in(told)
    return plan_now(asked, actor=requester, frozen=frozen, pinned=release_id)


def plan_now(
    asked: Asked,
    *,
    actor: Actor,
    frozen: Requirement | None = None,
    pinned: uuid.UUID | None = None,
    starts: bool = False,
) -> tuple[ForkWorld, Plan]:
    """What the fork would be now, and who must agree to that when `actor` asks for it: at least as many as `frozen`.

    With `starts` it is refused while a blackout holds it back.
    """
    found = fork_world.read(asked, pinned=pinned, starts=starts)
    plan = plan_fork(found, asked)
    needed = agreements.needed(
        plan,
        workspace_id=actor.workspace_id,
        kind=asked.kind,
        environment=found.source.environment,
        is_protected=found.source.is_protected,
        pipeline=found.source.pipeline,
        actor=actor,
        frozen=frozen,
    )
    return found, agreements.with_agreement(plan, needed)


def told_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer tells of a fork, besides its target."""
    return {
        "from_step_id": plan["choices"].get("from_step_id"),
        "environment": plan["environment"],
        "release_id": plan["release_id"],
        "release_changed": plan["release_changed"],
    }


def action_of(kind: str) -> str:
    return f"run.{kind}"


# The first transaction.


def _reserved(asked: Asked, actor: Actor, key: str, plan_digest: str) -> tuple[Operation, bool]:
    """The operation of this request, and whether it is new; its event is written here unless a target is reserved."""
    entry = Entry(run=asked.run_id, reason=asked.reason, data=dict(asked.choices))
    try:
        with transaction.atomic():
            lock_run(asked.run_id, actor)
            if revisions.revises(asked):
                revisions.one_at_a_time([asked.run_id])
            actor.require(FORK)
            operation = operations.earlier(actor, asked, key)
            is_new = operation is None
            if operation is None:
                operation = _begin(asked, actor, key, plan_digest, entry)
            held_back = _held_back(operation, entry, is_new=is_new)
            if operation.state != OperationState.RESERVED:
                entry.data |= operations.waiting(operation)
                audit.write(actor, action_of(asked.kind), entry)
    except Refusal as refused:
        audit.record_refusal(actor, action_of(asked.kind), refused, entry)
        raise
    except Exception:
        audit.record_fault(actor, action_of(asked.kind), entry)
        raise
    if held_back is not None:
        raise held_back
    return operation, is_new


def _begin(asked: Asked, actor: Actor, key: str, plan_digest: str, entry: Entry) -> Operation:
    _, plan = plan_now(asked, actor=actor, starts=True)
    entry.plan_digest = plan.digest
    operations.check_digest(plan, plan_digest)
    operation = operations.opened(asked, actor=actor, key=key, plan=plan)
    operations.record_verdict(actor, operation)
    operation.result = told_of(plan.as_json())
    operations.hold_back(operation, plan)
    if operation.state == OperationState.EVALUATING:
        allow(operation, plan)
    operations.add(operation)
    return operation


def _held_back(operation: Operation, entry: Entry, *, is_new: bool) -> Refusal | None:
    """The refusal that the operation stands for; what was written about it commits all the same."""
    answer = None if operation.state == OperationState.RESERVED else operations.answer_again(operation)
    if not isinstance(answer, Refusal):
        entry.outcome = entry.outcome if is_new else NO_OP
        return None
    entry.keep_refused(answer)
    return answer


# The second transaction.


def _locked(operation: Operation, actor: Actor, entry: Entry) -> Done | Refusal:
    lock_run(operation.run_id, actor)
    if revisions.revises(operations.asked_of(operation)):
        revisions.one_at_a_time([operation.run_id])
    operation = Operation.objects.select_for_update(no_key=True).get(id=operation.id)
    entry.plan_digest = operation.plan_digest
    if operation.state == OperationState.RESERVED:
        answer = _dispatch(operation, actor)
    else:
        entry.outcome = NO_OP
        answer = operations.answer_again(operation)
    if isinstance(answer, Refusal):
        entry.outcome, entry.code = DENIED, answer.code
    else:
        entry.after = {"target": answer.result.get("execution_id")}
    return answer


def _dispatch(operation: Operation, actor: Actor) -> Done | Refusal:
    agreed = requests.agreed(operation.id)
    if agreed is not None and not agreed.holds:
        detail = f"only {agreed.have} of {agreed.need} approvals still count: who gave them left or changed roles;"
        detail += " ask anew"
        return failed(operation, Refusal("approval_stale", detail))
    try:
        check_protected(operation, agreed=agreed is not None)
        world, plan = plan_again(operation, pinned=True)
    except Refusal as refused:
        return failed(operation, refused)
    if plan.verdict.disposition == Disposition.RECOVERY_DENIED or not (plan.verdict.lets_go_on or agreed):
        operations.judged_anew(operation, plan.as_json(), actor)
        operation.target = None
        refusal = operations.hold_back(operation, plan)
        operations.update(operation)
        return refusal or operations.done(operation)
    if plan.digest != operation.plan_digest or (agreed is not None and plan.digest != agreed.plan_digest):
        return failed(operation, operations.plan_changed(plan))
    if plan.agreements and agreed is None:
        # whatever its row says, nobody's approval is there
        return failed(operation, Refusal("approval_stale", "others must agree to this and nobody did; ask anew"))
    return make_reserved(operation, world, plan)


def make_reserved(operation: Operation, world: ForkWorld, plan: Plan) -> Done:
    """Makes the run of a reserved operation, in the caller's transaction, which holds the lock of its source."""
    _make(operation, world, plan)
    operations.move(operation, "dispatch")
    operation.result |= {"execution_id": str(operation.target)}
    operations.update(operation)
    return operations.done(operation)


def failed(operation: Operation, refusal: Refusal) -> Refusal:
    """Ends a reserved operation that comes to nothing, saying why."""
    operations.move(operation, "fail")
    operation.key = ""  # refused: it keeps no key
    operation.target = None
    operation.result |= {"code": refusal.code, "detail": refusal.detail}
    operations.update(operation)
    return refusal


def check_protected(operation: Operation, *, agreed: bool) -> None:
    """Refuses what the requester may not do alone where the environment is protected, unless others agreed to it."""
    plan: Mapping[str, Any] = operation.plan or {}
    environment = Environment.objects.get(workspace_id=operation.workspace_id, slug=plan["environment"])
    if environment.protected and not (plan["approvals"] and agreed):
        operations.requester_of(operation).require(FORK_PROTECTED)


def _make(operation: Operation, world: ForkWorld, plan: Plan) -> None:
    """Inserts the target and lets it begin, or stand in its source's lane until it is its turn; what then stands there
    is what the plan says (F51, F52)."""
    source = Run.objects.get(id=operation.run_id)
    target = operation.target
    assert target is not None  # noqa: S101 - a reserved operation has one
    who = operation.asker
    rows = _stage_rows(source, world, plan)
    _copy_outputs(rows, world)
    draft = replace(_draft(operation, source, world, rows), through_blackout=plan.goes_through)
    insert_runs([draft], actor=who, reason=operation.reason)
    _copy_context(source.id, target)
    moves = Moves.lock([target], actor=who)
    if world.left is not None:
        start = next(stage for stage in moves.stages.values() if stage.name == world.start)
        moves.checkpoint(start, None, world.left.state, world.left.posture, CheckpointMoment.RESTORED)
    moves.settle()
    moves.save()
    planned = {line.stage: (line.to, line.stale) for line in (*plan.kept, *plan.run_again)}
    found = {stage.name: (stage.state.value, stage.stale) for stage in moves.stages.values()}
    if found != planned:
        raise IllegalMove(f"the {operation.kind} of run {source.id} became {found}, planned was {planned}")
    children.follow_fork(source, target, who)
    if world.is_held and source.lane_id is not None:
        lanes.let_in_later([source.lane_id])


def _draft(operation: Operation, source: Run, world: ForkWorld, rows: list[dict[str, Any]]) -> Draft:
    limits = world.will_be.limits
    assert operation.target is not None  # noqa: S101 - a reserved operation has one
    return Draft(
        id=operation.target,
        place=Place(source.workspace_id, source.application_id, source.environment_id, world.source.environment),
        name=source.name,
        release_id=world.will_be.release_id,
        pipeline_id=source.pipeline_id,
        input=source.input,
        stages=rows,
        keywords=source.keywords,
        words=source.name,
        trace={name: getattr(source, name) for name in ("trace_id", "traceparent", "tracestate")},
        deadline_seconds=limits.deadline_seconds or _seconds_given(source),
        user_id=operation.requested_by_id,
        recovered_from=source.id,
        origin=_origin(source, world),
        parent=Parent(source.parent_id, source.depth) if source.parent_id else None,
        recovery={
            "type": operation.kind,
            "original_execution_id": str(source.id),
            "operation_id": str(operation.id),
            "checkpoint_id": str(world.checkpoint_id) if world.checkpoint_id else None,
            "frozen_input": bool(operation.request.get("freeze_release")),
        },
        limits=limits,
        baseline=baselines.anew(
            source.baseline,
            json.loads(Release.objects.values_list("definition", flat=True).get(id=world.will_be.release_id)),
            workspace_id=source.workspace_id,
            application_id=source.application_id,
            environment_id=source.environment_id,
        ),
    )


def _origin(source: Run, world: ForkWorld) -> Origin | None:
    """The source's place in its lane, where it stands in one."""
    if source.lane_id is None or source.trigger_id is None or source.tick_at is None:
        return None
    return Origin(source.trigger_id, source.tick_at, source.lane_id, source.lane_rank, held=world.is_held)


def _seconds_given(source: Run) -> float | None:
    """How long the source was given, from its creation or, where its lane held it, from when it was let in."""
    if source.deadline_at is None:
        return source.deadline_seconds  # None too, unless it ended before it was let in
    let_in = Event.objects.filter(run=source, kind="run.let_in").order_by("id").first()
    return (source.deadline_at - (let_in.at if let_in else source.created_at)).total_seconds() or None


def _stage_rows(source: Run, world: ForkWorld, plan: Plan) -> list[dict[str, Any]]:
    """The target's stages: by the release that will run; those of an inline run get what the source's got."""
    kept = {line.stage: line for line in plan.kept}
    own = {stage.name: stage for stage in source.stages.all()}
    rows = []
    for position, (stage, needed) in enumerate(zip(world.will_be.stages, world.will_be.depends_on, strict=True)):
        name = stage["name"]
        text = source.input if source.pipeline_id else own[name].input
        row = {**stage_row(stage, position, needed, text), "state": "pending"}
        if name in kept:
            row |= {"state": kept[name].to, "stale": kept[name].stale, "output_digest": kept[name].output_digest}
            row["output_id"] = new_id() if world.done[name].output_id else None
            if kept[name].to == "failed":
                for column in ("last_error_code", "last_error_message", "failure_disposition"):
                    row[column] = getattr(own[name], column)
        rows.append(row)
    return rows


def _copy_outputs(rows: list[dict[str, Any]], world: ForkWorld) -> None:
    """The outputs of kept stages, marked as taken over; their digests are those that were signed."""
    copies = [
        {
            "id": row["output_id"],
            "stage_id": row["id"],
            "source": world.done[row["name"]].output_id,
            "digest": row["output_digest"],
        }
        for row in rows
        if row.get("output_id")
    ]
    if copies:
        execute(
            "INSERT INTO pipelines_stageoutput (id, stage_id, epoch, attempt, restored_from, body, size, digest, at)"
            " SELECT r.id, r.stage_id, 1, NULL, o.id, o.body, o.size, r.digest, recourse_now()"
            " FROM json_to_recordset(%s::json) AS r(id uuid, stage_id uuid, source uuid, digest text)"
            " JOIN pipelines_stageoutput o ON o.id = r.source",
            [recordset(copies)],
        )


def _copy_context(source: uuid.UUID, target: uuid.UUID) -> None:
    """All of it, also what handlers added: the next operator can follow the evidence (P89)."""
    execute(
        "INSERT INTO pipelines_contextitem (run_id, key, value, is_sensitive, secret, attempt, at)"
        " SELECT %s, key, value, is_sensitive, secret, NULL, recourse_now() FROM pipelines_contextitem"
        " WHERE run_id = %s ORDER BY id",
        [target, source],
    )
    context.index([target])


# What time alone does.


def carry_on_reserved(*, quiet_seconds: float = 5, limit: int = 50) -> int:
    """Dispatches what was reserved and then left by its caller; says how many. Each stands for itself."""
    left = (
        Operation.objects.filter(
            state=OperationState.RESERVED, kind__in=sorted(FORKS), requested_by__isnull=False
        )  # a policy's are made in the transaction in which they are reserved
        .extra(
            where=["recovery_operation.updated_at <= recourse_now() - make_interval(secs => %s)"],
            params=[quiet_seconds],
        )
        .select_related("requested_by")
        .order_by("updated_at")[:limit]
    )
    done = 0
    for operation in left:
        actor = Actor(operation.asker, operation.workspace_id, operation.channel, user_id=operation.requested_by_id)
        try:
            dispatch(operation, actor=actor)
        except Refusal:
            continue  # it is kept with the operation, and in the audit
        except (OperationalError, InterfaceError):
            raise  # the database is away: all of it waits
        except Exception:
            log.exception("forks.dispatch_failed", operation=str(operation.id))
            _give_up(operation)
            continue
        done += 1
    return done


def _give_up(operation: Operation) -> None:
    """A fault of ours that would come again with every sweep ends the operation; its caller may ask anew."""
    with transaction.atomic():
        lock_run(operation.run_id, Actor("", operation.workspace_id, operation.channel))
        operation = Operation.objects.select_for_update(no_key=True).get(id=operation.id)
        if operation.state == OperationState.RESERVED:
            failed(operation, Refusal("result_not_confirmed", "a fault of the console kept it from being made"))


def follow_targets(limit: int = 500) -> int:
    """dispatched → succeeded or failed, as the target ended, for good; says how many."""
    return execute(
        "UPDATE recovery_operation o SET state = CASE t.status WHEN 'completed' THEN 'succeeded' ELSE 'failed' END,"
        " updated_at = recourse_now() FROM (SELECT o.id, r.status FROM recovery_operation o"
        " JOIN pipelines_run r ON r.id = o.target WHERE o.state = 'dispatched'"
        " AND r.status IN ('completed', 'failed', 'cancelled') ORDER BY o.updated_at LIMIT %s"
        " FOR NO KEY UPDATE OF o SKIP LOCKED) t WHERE t.id = o.id",
        [limit],
    )
