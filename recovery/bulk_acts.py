"""Targets of a bulk, dealt with: taken, done as the single verb does it, and their rows written, in one transaction.

Verbs in place take several targets at once (`bulk_in_place.py`): their changes and their rows commit together, so that
each is either pending or was dealt with once, whatever dies when (F162). A fault of one undoes all of them, and then
each is dealt with alone, in a transaction of its own: it stays its own. Forks are always made one by one.

Whoever asked for the bulk does it, with the role that they have by now (F150).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines import audit
from pipelines.access import FORK, FORK_PROTECTED, Actor, person
from pipelines.audit import INTERNAL_ERROR, NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.models import Run
from pipelines.sql import execute, query, recordset
from pipelines.states import RUN_NO_OPS
from pipelines.transitions import lock_run
from recovery import bulk_in_place, bulk_outcomes, forks, operations, revisions, transitions
from recovery.bulk_outcomes import Held, Item, Outcome
from recovery.bulk_targets import CHECKPOINT, OF_FORKS
from recovery.models import BulkOperation
from recovery.operations import Done
from recovery.plans import AND_DOWNSTREAM, Asked
from recovery.states import BulkItemState, OperationKind

log = structlog.get_logger(__name__)
TOGETHER = 25  # targets that one transaction deals with: what it locks it holds for a tenth of a second


def act_on_next(bulk_id: uuid.UUID, most: int = TOGETHER) -> int:
    """Deals with the next targets that nobody else has, at most so many and `TOGETHER`; says how many. 0: none is left.

    Raises `Held`. What a target comes to, a fault of ours too, is its own: the others go on. Only a database that is
    away, or somebody who was quicker, leaves them pending.
    """
    bulk = BulkOperation.objects.select_related("requested_by").get(id=bulk_id)
    # a revision counts for the next one, whose run may share its origin
    revising = bulk.choices.get("scope") == AND_DOWNSTREAM
    most = 1 if bulk.kind in OF_FORKS or revising else min(most, TOGETHER)
    if most > 1:
        try:
            return _together(bulk, most)
        except (Held, InterfaceError, OperationalError):
            raise
        except Exception as error:  # noqa: BLE001 - whosever fault it is, the others must not share it
            log.warning("bulks.one_by_one", bulk=str(bulk.id), error=str(error))
    done = 0
    while done < most and _alone(bulk):
        done += 1
    return done


def _together(bulk: BulkOperation, most: int) -> int:
    with transaction.atomic():
        items = _take(bulk.id, most)
        if not items:
            return 0
        outcomes = bulk_in_place.act(bulk, items, _requester(bulk))
        _write(items, outcomes)
    return len(outcomes)


def _alone(bulk: BulkOperation) -> bool:
    with transaction.atomic():
        items = _take(bulk.id, 1)
        if not items:
            return False
        _write(items, [_act_alone(bulk, items[0])])
    return True


def _act_alone(bulk: BulkOperation, item: Item) -> Outcome:
    actor = _requester(bulk)
    kind = OperationKind(bulk.kind)
    try:
        if kind in OF_FORKS:
            return _fork(bulk, kind, item, actor)
        with transaction.atomic():
            return bulk_in_place.act(bulk, [item], actor)[0]
    except Refusal as refusal:
        if refusal.code == "blackout_active":
            raise Held(refusal.detail) from refusal
        return bulk_outcomes.refused(refusal)
    except (Held, InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("bulks.item_failed", bulk=str(bulk.id), position=item.position)
        if kind not in OF_FORKS:  # whose own block records it
            audit.record_fault(actor, transitions.VERBS[kind].action, bulk_in_place.entry_of(bulk, item))
        return Outcome(BulkItemState.FAILED, INTERNAL_ERROR, "a fault of the console kept it from being done")


def _requester(bulk: BulkOperation) -> Actor:
    """Who asked for it, with the role that they have by now; without one when they are no member any more."""
    found = person(bulk.requested_by, bulk.workspace_id, bulk.channel)
    name, user_id = bulk.requested_by.get_username(), bulk.requested_by_id
    return found or Actor(name, bulk.workspace_id, bulk.channel, user_id=user_id)


def _take(bulk_id: uuid.UUID, most: int) -> list[Item]:
    """The next pending targets that nobody else has, locked, as long as no two are of one run."""
    rows = query(
        "SELECT i.id, i.position, i.run, i.stage, i.dead_letter FROM recovery_bulkitem i"
        " WHERE i.bulk_id = %(bulk)s AND i.state = 'pending' AND i.position <= (SELECT"
        " CASE WHEN b.stops_after = 0 THEN b.total ELSE b.stops_after END FROM recovery_bulkoperation b"
        " WHERE b.id = %(bulk)s AND b.state = 'running')"
        " ORDER BY i.position LIMIT %(most)s::int FOR NO KEY UPDATE SKIP LOCKED",
        {"bulk": bulk_id, "most": most},
    )
    items: list[Item] = []
    for item in (Item(*row) for row in rows):
        if any(one.run == item.run for one in items):
            break  # it is planned once the other is done
        items.append(item)
    return items


def _write(items: Sequence[Item], outcomes: Sequence[Outcome]) -> None:
    """What became of the first of these targets; what has no outcome stays pending."""
    rows = [
        {
            "id": item.id,
            "state": outcome.state,
            "code": outcome.code,
            "message": outcome.message,
            "operation": outcome.operation,
            "made": outcome.made,
        }
        for item, outcome in zip(items, outcomes, strict=False)
    ]
    execute(
        "UPDATE recovery_bulkitem i SET state = r.state, code = r.code, message = r.message, operation = r.operation,"
        " made = r.made, decided_at = recourse_now() FROM json_to_recordset(%s::json) AS"
        " r(id bigint, state text, code text, message text, operation uuid, made uuid)"
        " WHERE i.id = r.id AND i.id = ANY(%s)",
        [recordset(rows), [row["id"] for row in rows]],
    )


# forks, one by one


def _fork(bulk: BulkOperation, kind: OperationKind, item: Item, actor: Actor) -> Outcome:
    """The run is reserved and made in the one transaction that also writes the target's row."""
    told: dict[str, Any] = {"bulk": str(bulk.id), "position": item.position}
    with audited(actor, forks.action_of(kind), run=item.run, stage=item.stage, reason=bulk.reason, **told) as entry:
        if actor.role is None:
            raise Refusal("permission_denied", "who asked for this is no member any more, or may not log in")
        asked = _asked(bulk, kind, item, actor)
        entry.data |= dict(asked.choices)
        _, run = lock_run(item.run, actor)
        if revisions.revises(asked):
            revisions.one_at_a_time([item.run])
        actor.require(FORK)
        if run.status in RUN_NO_OPS.get(kind, ()):
            entry.outcome = NO_OP
            return bulk_outcomes.nothing_to_do(run.status)
        answer = _made(bulk, item, asked, actor, entry)
        if isinstance(answer, Refusal):
            entry.keep_refused(answer)
            return bulk_outcomes.refused(answer)
    return Outcome(BulkItemState.DONE, operation=answer.operation_id, made=answer.result.get("execution_id"))


def _made(bulk: BulkOperation, item: Item, asked: Asked, actor: Actor, entry: Entry) -> Done | Refusal:
    world, plan = forks.plan_now(asked, actor=actor, starts=True)
    operation = operations.opened(asked, actor=actor, key=bulk_outcomes.key_of(bulk, item), plan=plan)
    entry.plan_digest = operation.plan_digest
    operations.record_verdict(actor, operation)
    if (refusal := bulk_outcomes.held_back(bulk, plan)) is not None:
        return refusal
    if world.source.is_protected and not (plan.agreements and bulk_outcomes.covers(bulk, plan)):
        actor.require(FORK_PROTECTED)
    operation.result = forks.told_of(plan.as_json())
    forks.allow(operation, plan)
    operations.add(operation)
    done = forks.make_reserved(operation, world, plan)
    entry.after = {"target": done.result["execution_id"]}
    return done


def _asked(bulk: BulkOperation, kind: OperationKind, item: Item, actor: Actor) -> Asked:
    """The request as the single verb has it. `not_found` where the run, or the stage that it starts from, is gone."""
    choices = bulk.choices
    run = (
        Run.objects.select_related("pipeline", "environment")
        .filter(id=item.run, workspace_id=bulk.workspace_id)
        .first()
    )
    if run is None:
        raise Refusal("not_found", "the run is there no more")
    wish = forks.Wish(
        environment=choices["environment"],
        from_step_id=_start(item) if kind == OperationKind.RERUN and choices["from"] != CHECKPOINT else None,
        freeze_release=bool(choices.get("freeze_release")),
    )
    asked = forks.ask_fork(kind, run, wish, actor=actor, reason=bulk.reason)
    return asked.overriding(bulk.override_reason)


def _start(item: Item) -> str:
    """The name of the stage that a rerun starts from."""
    rows = query("SELECT name FROM pipelines_stage WHERE id = %s", [item.stage])
    if not rows:
        raise Refusal("not_found", "the stage is there no more")
    return str(rows[0][0])
