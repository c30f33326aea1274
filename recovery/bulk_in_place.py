"""Several targets of a bulk dealt with together, by a verb in place: read, locked and written in a fixed number of
statements, each planned, judged and recorded as the single verb does it.

Every target is planned from its own run alone, and its moves are its own until all of them are written. Each leaves the
single verb's audit event, with the bulk's id in its data (F146), and its operation.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from approvals.rules import Rule
from pipelines import audit
from pipelines.access import Actor
from pipelines.audit import NO_OP, Entry, standing
from pipelines.errors import Refusal
from pipelines.models import DeadLetter
from pipelines.moves import Moves, Owner
from pipelines.states import RUN_NO_OPS
from recovery import agreements, bulk_outcomes, dead_letters, operations, revisions, transitions, world
from recovery.bulk_outcomes import Held, Item, Outcome
from recovery.bulk_targets import OF_LETTERS
from recovery.models import BulkOperation, Operation
from recovery.plans import AND_DOWNSTREAM, Asked, check_blackout
from recovery.states import BulkItemState, OperationKind
from recovery.world import World


@dataclass(slots=True)
class _Batch:
    """The locked runs of some targets, what planning reads, and what is to be written of them."""

    bulk: BulkOperation
    actor: Actor
    moves: Mapping[uuid.UUID, Moves]  # by run, each with moves of its own
    worlds: Mapping[uuid.UUID, World]
    letters: Mapping[uuid.UUID, DeadLetter]
    rules: Sequence[Rule]
    operations: list[Operation] = field(default_factory=list)
    events: list[tuple[str, Entry]] = field(default_factory=list)


def act(bulk: BulkOperation, items: Sequence[Item], actor: Actor) -> list[Outcome]:
    """Deals with these targets, no two of one run, in the caller's transaction; the outcomes are in their order.

    A blackout ends it before the first target that it holds: fewer outcomes than targets, and `Held` where there would
    be none. Any other exception is a fault, after which the caller undoes all of it. An actor without a role may
    nothing.
    """
    kind = OperationKind(bulk.kind)
    action = transitions.VERBS[kind].action
    whole = Moves.lock(
        [item.run for item in items],
        actor=actor.name,
        owner=Owner(actor.workspace_id, actor.application_id, actor.environment_id),
    )
    if bulk.choices.get("scope") == AND_DOWNSTREAM:
        revisions.one_at_a_time(list(whole.runs))
    batch = _Batch(
        bulk,
        actor,
        moves=whole.apart(),
        worlds=world.read_many(list(whole.runs)),
        letters=_letters(kind, items),
        rules=agreements.rules_for(actor.workspace_id, kind),
    )
    outcomes: list[Outcome] = []
    for item in items:
        entry = entry_of(bulk, item)
        try:
            outcome = _one(batch, kind, item, entry)
        except Refusal as refusal:
            if refusal.code == "blackout_active":
                if not outcomes:
                    raise Held(refusal.detail) from refusal
                break
            audit.tell_refusal(entry, refusal)
            outcome = bulk_outcomes.refused(refusal)
        outcomes.append(outcome)
        batch.events.append((action, entry))
    whole.save()
    operations.add_all(batch.operations)
    audit.write_all(actor, batch.events)
    return outcomes


def entry_of(bulk: BulkOperation, item: Item) -> Entry:
    """The target's audit event, before anything is known of it."""
    told = {"bulk": str(bulk.id), "position": item.position}
    return Entry(run=item.run, stage=item.stage, reason=bulk.reason, data=told)


def _one(batch: _Batch, kind: OperationKind, item: Item, entry: Entry) -> Outcome:
    bulk, actor, verb = batch.bulk, batch.actor, transitions.VERBS[kind]
    if actor.role is None:
        raise Refusal("permission_denied", "who asked for this is no member any more, or may not log in")
    asked = _asked(bulk, kind, item, batch.letters)
    entry.data |= transitions.told(asked)
    if item.run not in batch.moves:
        raise Refusal("not_found", "there is no such run")
    moves = batch.moves[item.run]
    run = moves.runs[item.run]
    actor.require(verb.capability)
    if run.status in RUN_NO_OPS.get(kind, ()):
        entry.outcome = NO_OP
        return bulk_outcomes.nothing_to_do(run.status)
    stage = moves.stages.get(asked.stage_id) if asked.stage_id else None
    entry.before = standing(run, stage)
    plan = transitions.plan_from(batch.worlds[item.run], asked, actor=actor, rules=batch.rules)
    check_blackout(plan)
    operation = operations.opened(asked, actor=actor, key=bulk_outcomes.key_of(bulk, item), plan=plan)
    entry.plan_digest = operation.plan_digest
    if (verdict := operations.verdict_of(actor, operation)) is not None:
        batch.events.append(verdict)
    if (refusal := bulk_outcomes.held_back(bulk, plan)) is not None:
        entry.keep_refused(refusal)
        return bulk_outcomes.refused(refusal)
    transitions.carry_out(verb, moves, run, asked, plan, operation)
    batch.operations.append(operation)
    entry.after = standing(run, stage)
    return Outcome(BulkItemState.DONE, operation=operation.id)


def _letters(kind: OperationKind, items: Sequence[Item]) -> dict[uuid.UUID, DeadLetter]:
    if kind not in OF_LETTERS:
        return {}
    return DeadLetter.objects.in_bulk([item.dead_letter for item in items])


def _asked(bulk: BulkOperation, kind: OperationKind, item: Item, letters: Mapping[uuid.UUID, DeadLetter]) -> Asked:
    """The request as the single verb has it. `not_found` where the target is gone."""
    choices: Mapping[str, Any] = bulk.choices
    if kind in OF_LETTERS:
        letter = letters.get(item.dead_letter) if item.dead_letter else None
        if letter is None:
            raise Refusal("not_found", "the dead letter is there no more")
        if kind == OperationKind.DISCARD:
            return dead_letters.ask_mark(kind, letter, reason=bulk.reason)
        return dead_letters.ask_redrive(letter, reason=bulk.reason).overriding(bulk.override_reason)
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


def _stage(item: Item) -> uuid.UUID:
    if item.stage is None:
        raise Refusal("not_found", "the run has no such stage")
    return item.stage
