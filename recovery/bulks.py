"""Bulk operations: one verb on many targets, asked for once, done by the console itself.

A bulk begins as a draft: its targets are frozen and nothing else is done. Somebody looks at its plan and starts it with
a reason, a rate, a canary and a stop rule; then the workers deal with its targets, each as the single verb is done, in
one transaction with its row (`bulk_work.py`). No browser has to stay open, and whatever dies when, each target is
either pending or was dealt with once. Where a rule asks for it others agree to all of it at once. The API does both
steps in one request.

How far it is, is counted from its targets and stored nowhere. Serves F39, F41, F53, F55, F64, F123, F146, F150,
F152–F154, F161, F162, F164, F165, F167, I11, ADR 0075.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from approvals import requests
from approvals.gates import Planned
from approvals.requests import Matter
from approvals.rules import Requirement, strictest
from pipelines import blackouts
from pipelines.access import FORK, VIEW, Actor, person
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.filters import RunFilter
from pipelines.moves import IllegalMove
from pipelines.sql import database_now, query
from recovery import agreements, bulk_targets, bulk_work, bulk_world
from recovery.bulk_plans import BulkPlan
from recovery.bulk_progress import BulkItemLine, BulkProgress, items, progress
from recovery.bulk_targets import KINDS, OF_FORKS, Selection, Wish, read_choices
from recovery.bulk_verify import verify
from recovery.models import BulkOperation
from recovery.states import BULK, BULK_MOVES, BulkState, OperationKind
from recovery.transitions import VERBS

__all__ = [
    "FASTEST",
    "KINDS",
    "MOST_DRAFTS",
    "Answer",
    "BulkItemLine",
    "BulkPlan",
    "BulkProgress",
    "RunFilter",
    "Selection",
    "Wish",
    "abort",
    "capability_of",
    "create",
    "draft",
    "find",
    "items",
    "pause",
    "plan_of",
    "preview",
    "progress",
    "resume",
    "start",
    "verify",
    "visible",
]

FASTEST = 1_000  # targets a second
MOST_DRAFTS = 20  # of one person in a workspace that wait to be started
DRAFTS_LOCK = 0x44524654  # what the advisory locks of people who make drafts are called


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a bulk stands after it was asked for, started or steered."""

    bulk: BulkOperation
    progress: BulkProgress
    replayed: bool = False

    @property
    def status(self) -> str:
        return self.bulk.state


# asking


def capability_of(kind: str) -> str:
    """The right that the single verb needs, and so the bulk."""
    found = OperationKind(kind)
    return FORK if found in OF_FORKS else VERBS[found].capability


def draft(wish: Wish, *, actor: Actor, key: str = "") -> BulkOperation:
    """A bulk whose targets are frozen, and of which nothing is done before it is started; an hour later it is gone.

    The same key for the same request answers with the first one's. Refused: what `bulk_targets` refuses, a verb that
    the actor may not do (`permission_denied`), a key that was used otherwise (`recovery_idempotency_conflict`), more
    than `MOST_DRAFTS` of one person that wait (`rate_limited`).
    """
    with _asking(wish, actor, "bulk.draft") as entry:
        bulk, is_new = _drafted(wish, actor, key)
        if is_new:
            _check_drafts(actor)
        _tell(entry, bulk, is_new=is_new)
    return bulk


def create(wish: Wish, *, actor: Actor, key: str = "", plan_digest: str = "") -> Answer:
    """Draft and start in one: its targets are frozen and it goes on, or others are asked whether it may.

    The same key for the same request answers with the first one's bulk (`replayed`, F123). Refused besides what `draft`
    and `start` refuse: nothing, and nothing is kept then.
    """
    with _asking(wish, actor, "bulk.start") as entry:
        bulk, is_new = _drafted(wish, actor, key)
        if is_new:
            _start(bulk, actor, plan_digest, entry)
        _tell(entry, bulk, is_new=is_new)
    return answer(bulk, replayed=not is_new)


def preview(wish: Wish, *, actor: Actor) -> BulkPlan:
    """What the bulk would do now; nothing is kept, and a viewer may look. Refused as `draft` is."""
    _check_person(actor)
    actor.require(VIEW)
    with transaction.atomic():
        bulk, _ = _drafted(wish, actor, "")
        plan = bulk_world.plan_now(bulk, actor=actor)
        transaction.set_rollback(True)
    return plan


def plan_of(bulk: BulkOperation, *, actor: Actor) -> BulkPlan:
    """What the bulk would do by how its targets stand now; at least as many must agree as were asked."""
    return bulk_world.plan_now(bulk, actor=actor, frozen=_frozen(bulk))


def start(
    bulk_id: uuid.UUID,
    *,
    actor: Actor,
    reason: str = "",
    rate: int = 20,
    canary: int = 0,
    stop_ratio: float | None = None,
    override_reason: str = "",
    plan_digest: str = "",
    choices: Mapping[str, Any] | None = None,
) -> Answer:
    """Lets a draft go on, or asks others whether it may; its maker does. Started already: nothing changes.

    `choices` replaces those of the draft. Refused: `plan_changed` with the new plan when `plan_digest` is of another;
    what a blackout holds back (`blackout_active`); what is missing or out of range, by field; a draft that was not
    started in time (`stale_request`).
    """
    found = find(actor, bulk_id)
    with audited(actor, "bulk.start", reason=reason, **_named(found)) as entry:
        actor.require(capability_of(found.kind))
        bulk = cast(BulkOperation, bulk_work.lock(found.id))
        if bulk.requested_by_id != actor.user_id:
            raise Refusal("permission_denied", "only who made the draft starts it")
        if bulk.state == BulkState.EXPIRED:
            raise Refusal("stale_request", "this draft was not started within an hour and is gone; choose anew")
        is_new = bulk.state == BulkState.DRAFT
        if is_new:
            bulk.reason, bulk.override_reason = reason, override_reason.strip()
            bulk.rate, bulk.canary, bulk.stop_ratio = rate, canary, stop_ratio
            if choices is not None:
                _choose(bulk, choices, actor)
            _check_terms(bulk)
            _start(bulk, actor, plan_digest, entry)
        _tell(entry, bulk, is_new=is_new)
    return answer(bulk, replayed=not is_new)


def _drafted(wish: Wish, actor: Actor, key: str) -> tuple[BulkOperation, bool]:
    """The new draft; or the one that was made with this key before."""
    kind = OperationKind(wish.kind)
    if kind not in KINDS:
        message = f"must be one of {', '.join(KINDS)}"
        raise Refusal("validation_error", f"kind: {message}", errors={"kind": [message]})
    bulk_targets.check_selection(wish)
    wish = replace(wish, choices=read_choices(kind, wish.choices, actor=actor))
    fingerprint = bulk_targets.fingerprint(wish)
    if (earlier := _earlier(actor, key, fingerprint)) is not None:
        return earlier, False
    bulk = BulkOperation(
        workspace_id=actor.workspace_id,
        kind=kind,
        requested_by_id=cast(int, actor.user_id),  # bulks are people's
        channel=actor.channel,
        key=key,
        fingerprint=fingerprint,
        reason=wish.reason,
        override_reason=wish.override_reason.strip(),
        chosen=bulk_targets.chosen_in(wish.selection),
        choices=dict(wish.choices),
        rate=wish.rate,
        canary=wish.canary,
        stop_ratio=wish.stop_ratio,
    )
    _check_terms(bulk)
    try:
        with transaction.atomic():
            bulk.save(force_insert=True)
    except IntegrityError as error:
        rival = _earlier(actor, key, fingerprint) if "bulk_key_once" in str(error) else None
        if rival is None:
            raise
        return rival, False
    bulk_targets.freeze(bulk, wish.selection, actor=actor)
    bulk_work.update(bulk)
    return bulk, True


def _earlier(actor: Actor, key: str, fingerprint: str) -> BulkOperation | None:
    if not key:
        return None
    rows = BulkOperation.objects.select_related("requested_by").filter(workspace_id=actor.workspace_id, key=key)
    found = rows.first()
    if found is not None and (found.fingerprint != fingerprint or found.requested_by_id != actor.user_id):
        raise Refusal("recovery_idempotency_conflict", "this key was already used for another request")
    return found


def _check_drafts(actor: Actor) -> None:
    """Drafts keep their targets for an hour: only so many of one person wait at once, however many ask at a time."""
    query("SELECT pg_advisory_xact_lock(%s, %s)", [DRAFTS_LOCK, actor.user_id])
    ((count,),) = query(
        "SELECT count(*) FROM recovery_bulkoperation WHERE workspace_id = %s AND requested_by_id = %s"
        " AND state = 'draft' AND created_at > recourse_now() - make_interval(secs => %s)",
        [actor.workspace_id, actor.user_id, bulk_work.DRAFTS_SECONDS],
    )
    if count > MOST_DRAFTS:
        detail = f"{MOST_DRAFTS} drafts of yours wait already: start one of them, or wait until they are gone"
        raise Refusal("rate_limited", detail, extra={"most": MOST_DRAFTS})


def _start(bulk: BulkOperation, actor: Actor, plan_digest: str, entry: Entry) -> None:
    kind = OperationKind(bulk.kind)
    message = VERBS[kind].needs_reason if kind in VERBS else ""
    if message and not bulk.reason:
        raise Refusal("validation_error", message, errors={"reason": [message]})
    plan = plan_of(bulk, actor=actor)
    if plan_digest and plan_digest != plan.digest:
        raise plan_changed(plan)
    if plan.blackout is not None and plan.is_held:
        raise blackouts.refusal(plan.blackout)
    entry.plan_digest = plan.digest
    entry.data |= {"acts": plan.acts, "skips": plan.skips}
    if plan.blackout is not None:
        entry.data["override_reason"] = bulk.override_reason
    bulk.plan, bulk.plan_digest = plan.as_json(), plan.digest
    if plan.agreements:
        bulk_work.move(bulk, "ask_approval")
        bulk_work.update(bulk)
        requests.ask(matter_of(bulk), as_planned(plan))
        entry.data["approvals"] = [{"role": one.role, "count": one.count} for one in plan.agreements]
    else:
        begin(bulk)


def begin(bulk: BulkOperation) -> None:
    """Has a draft, or what others agreed to, go on from now; with nothing to do it ends at once."""
    bulk_work.let_go(bulk, "start")
    bulk.started_at = bulk.let_go_at
    bulk.stops_after = _canary_end(bulk)
    bulk_work.update(bulk)
    bulk_work.settle(bulk.id)
    bulk.refresh_from_db()
    if bulk.state == BulkState.RUNNING:
        bulk_work.announce()


def _canary_end(bulk: BulkOperation) -> int:
    """The position of the last of its first so many pending targets; 0 where it has none to wait after."""
    if not bulk.canary:
        return 0
    rows = query(
        "SELECT position FROM recovery_bulkitem WHERE bulk_id = %s AND state = 'pending'"
        " ORDER BY position OFFSET %s::int LIMIT 1",
        [bulk.id, bulk.canary - 1],
    )
    return int(rows[0][0]) if rows else 0


def _choose(bulk: BulkOperation, choices: Mapping[str, Any], actor: Actor) -> None:
    """Other choices for a draft; where a rerun starts elsewhere its targets are frozen anew."""
    was = bulk.choices
    bulk.choices = read_choices(OperationKind(bulk.kind), choices, actor=actor)
    if bulk.choices.get("from") != was.get("from"):
        bulk_targets.refreeze(bulk)


def _check_terms(bulk: BulkOperation) -> None:
    errors: dict[str, list[str]] = {}
    if not 1 <= bulk.rate <= FASTEST:
        errors["rate"] = [f"must be from 1 to {FASTEST:,} targets a second"]
    if not 0 <= bulk.canary <= bulk_targets.MOST_TARGETS:
        errors["canary"] = [f"must be from 0 to {bulk_targets.MOST_TARGETS:,} targets"]
    if bulk.stop_ratio is not None and not 0 <= bulk.stop_ratio <= 1:
        errors["stop_ratio"] = ["must be a share from 0 to 1"]
    if errors:
        told = "; ".join(f"{name}: {messages[0]}" for name, messages in errors.items())
        raise Refusal("validation_error", told, errors=errors)


def plan_changed(plan: BulkPlan) -> Refusal:
    detail = "what this would do has changed since it was planned; look at the new plan and ask again"
    return Refusal("plan_changed", detail, extra={"plan": plan.shown(), "plan_digest": plan.digest})


# agreement of others


def matter_of(bulk: BulkOperation) -> Matter:
    """The bulk, to be put before others."""
    return Matter(bulk.workspace_id, bulk.id, BULK, None, None, bulk.requested_by_id, bulk.reason)


def plan_again(bulk: BulkOperation) -> BulkPlan:
    """The plan of a bulk that waits, as it is now. Refused when its requester may do it no longer (F150)."""
    requester = person(bulk.requested_by, bulk.workspace_id, bulk.channel)
    if requester is None:
        raise Refusal("permission_denied", "who asked for this is no member any more, or may not log in")
    requester.require(capability_of(bulk.kind))
    return plan_of(bulk, actor=requester)


def as_planned(plan: BulkPlan, was: Requirement | None = None) -> Planned:
    """What others are asked to agree to, at least as many as before (`was`)."""
    told = plan.as_json()
    requirement = strictest(agreements.frozen_in(told), was)
    if requirement is None:
        raise IllegalMove("nobody need agree to this bulk")
    return Planned(told, plan.digest, requirement)


def _frozen(bulk: BulkOperation) -> Requirement | None:
    return agreements.frozen_in(bulk.plan or {"approvals": ()})


# reading


def find(actor: Actor, bulk_id: uuid.UUID) -> BulkOperation:
    """A bulk of the actor's workspace; any other id, and another person's draft, is 404. Not for applications."""
    _check_person(actor)
    found = visible(actor).filter(id=bulk_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such bulk operation")
    return found


def visible(actor: Actor) -> QuerySet[BulkOperation]:
    """The bulks of the actor's workspace, and of drafts the actor's own. An application's key sees none."""
    rows = BulkOperation.objects.filter(workspace_id=actor.workspace_id).select_related("requested_by", "ended_by")
    if not actor.is_person:
        return rows.none()
    never_started = Q(state__in=[BulkState.DRAFT, BulkState.EXPIRED])
    return rows.filter(~never_started | Q(requested_by_id=actor.user_id))


def answer(bulk: BulkOperation, *, replayed: bool = False) -> Answer:
    return Answer(bulk, progress(bulk), replayed)


# steering


def pause(bulk_id: uuid.UUID, *, actor: Actor, reason: str = "") -> Answer:
    """Begins no more targets; what is under way ends. Again it changes nothing."""
    with _steered(bulk_id, actor, "bulk.pause", reason) as (bulk, entry):
        if _moves(bulk, "pause", entry, is_done=bulk.state == BulkState.PAUSED):
            bulk.held_reason = reason
            bulk_work.update(bulk)
    return answer(bulk)


def resume(bulk_id: uuid.UUID, *, actor: Actor, reason: str = "") -> Answer:
    """Lets a bulk go on that was paused, halted, or waits after its canary: with the next target, exactly where it
    stopped. Its rate and its stop rule begin anew."""
    with _steered(bulk_id, actor, "bulk.resume", reason) as (bulk, entry):
        was = bulk.state
        if _moves(bulk, "resume", entry, is_done=bulk.state == BulkState.RUNNING):
            if was == BulkState.WAITING:
                bulk.stops_after = 0
            bulk.let_go_at = bulk.next_at = database_now()
            bulk.held_reason = ""
            bulk_work.update(bulk)
            bulk_work.announce()
    return answer(bulk)


def abort(bulk_id: uuid.UUID, *, actor: Actor, reason: str = "") -> Answer:
    """Ends a bulk for good: what is pending is left alone, what was done stays done. Again it changes nothing."""
    with _steered(bulk_id, actor, "bulk.abort", reason) as (bulk, entry):
        if bulk.state == BulkState.AWAITING_APPROVAL:
            detail = "it awaits approval: who asked for it withdraws the request, anybody else rejects it"
            raise Refusal("execution_state_invalid", detail)
        if _moves(bulk, "abort", entry, is_done=bulk.state == BulkState.ABORTED):
            bulk_work.abort(bulk, actor, reason)
    return answer(bulk)


@contextmanager
def _steered(bulk_id: uuid.UUID, actor: Actor, action: str, reason: str) -> Iterator[tuple[BulkOperation, Entry]]:
    """One transaction for a verb on a locked bulk, and its audit event."""
    found = find(actor, bulk_id)
    with audited(actor, action, reason=reason, **_named(found)) as entry:
        actor.require(capability_of(found.kind))
        yield cast(BulkOperation, bulk_work.lock(found.id)), entry


def _moves(bulk: BulkOperation, action: str, entry: Entry, *, is_done: bool) -> bool:
    """Whether the verb changed the state; typed refusal where the state does not take it."""
    entry.before = {"bulk": bulk.state}
    if is_done:
        entry.outcome, entry.after = NO_OP, entry.before
        return False
    if BulkState(bulk.state) not in BULK_MOVES[action]:
        told = bulk.state.replace("_", " ")
        raise Refusal("execution_state_invalid", f"a bulk that is {told} cannot be {_PAST[action]}")
    if action != "abort":  # whose move is made with what follows from it
        bulk_work.move(bulk, action)
    entry.after = {"bulk": BULK_MOVES[action][BulkState(entry.before["bulk"])].value}
    return True


_PAST = {"pause": "paused", "resume": "resumed", "abort": "aborted"}


# the audit


@contextmanager
def _asking(wish: Wish, actor: Actor, action: str) -> Iterator[Entry]:
    with audited(actor, action, reason=wish.reason, kind=str(wish.kind)) as entry:
        _check_person(actor)
        if wish.kind in KINDS:
            actor.require(capability_of(wish.kind))
        yield entry


def _check_person(actor: Actor) -> None:
    if not actor.is_person:
        raise Refusal("permission_denied", "bulk operations are people's, each with their own log-in")


def _named(bulk: BulkOperation) -> dict[str, Any]:
    return {"bulk": str(bulk.id), "kind": bulk.kind, "total": bulk.total}


def _tell(entry: Entry, bulk: BulkOperation, *, is_new: bool) -> None:
    entry.data |= {**_named(bulk), "chosen": bulk.chosen, "choices": bulk.choices}
    entry.data |= {"rate": bulk.rate, "canary": bulk.canary, "stop_ratio": bulk.stop_ratio}
    entry.data["status"] = bulk.state
    entry.after = {"bulk": bulk.state}
    if not is_new:
        entry.outcome = NO_OP
