"""Backfills: making up for the ticks that a trigger missed in a window, as many at once as may be, and no tick twice.

A backfill is asked for in one transaction: its row, its ticks as they were planned, and the lane that holds its runs
back. Then its ticks are filled, a batch a transaction: the ledger's rows are claimed, each with a run reserved, and the
runs are made with just these ids, held. Whatever dies when, a tick is either still `pending`, and the sweep fills it,
or it has its run; rows of the ledger have one owner, so two backfills over one window, or a backfill beside the live
schedule, never make two. The trigger's own pointer is never touched.

How far it is, is counted from ticks and runs and stored nowhere. A tick whose run cannot be made fails alone and stays
missed. Cancelling ends what is held and gives its ticks back to the ledger as they were; what is in goes on. Serves
O49–O57, F80–F83, F86, F104, F107, F108, F116, I18, ADR 0073.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from approvals import requests
from approvals.gates import Planned
from approvals.requests import Matter
from approvals.rules import Requirement, strictest
from pipelines import blackouts, lanes, ledger, trigger_queries
from pipelines.access import CANCEL, FORK, FORK_PROTECTED, STEER, VIEW, Actor, person
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.models import Trigger
from pipelines.moves import IllegalMove
from pipelines.schedules import Due
from pipelines.sql import database_now, execute, recordset
from recovery import agreements, backfill_world
from recovery.backfill_plans import LISTED, MOST_TICKS, Asked, Plan
from recovery.backfill_progress import Progress, failures, progress, ticks
from recovery.backfill_work import (
    AT_ONCE,
    CANCEL_BATCH,
    cancel_held,
    carry_on,
    end,
    fill_up,
    give_up_pending,
    lock,
    move,
    trigger_of,
    update,
)
from recovery.backfill_world import Wish
from recovery.models import Backfill
from recovery.states import BACKFILL, BACKFILL_MOVES, BackfillState, BackfillTickState

__all__ = [
    "Answer",
    "Plan",
    "Progress",
    "Wish",
    "cancel",
    "carry_on",
    "failures",
    "find",
    "pause",
    "preview",
    "progress",
    "resume",
    "start",
    "ticks",
    "visible",
]

FROZEN_AT_ONCE = 10_000  # ticks written by one statement


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a backfill stands after it was asked for, or steered. `ticks` are listed as far as was asked."""

    backfill: Backfill
    progress: Progress
    ticks: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    replayed: bool = False

    @property
    def status(self) -> str:
        return self.backfill.state

    def as_json(self) -> dict[str, Any]:
        """Source 002's shape, with what contract §4 adds (O52, O54)."""
        one = self.backfill
        return {
            "trigger_binding_id": str(one.trigger_id),
            "window": {"from": _utc(one.from_time), "to": _utc(one.to_time)},
            "total_ticks": self.progress.total,
            "dispatched": self.progress.dispatched,
            "failed": self.progress.failed,
            "dry_run": False,
            "ticks": list(self.ticks),
            "backfill_id": str(one.id),
            "operation_id": str(one.id),
            "status": one.state,
            "skipped": self.progress.skipped,
            "replayed": self.replayed,
            "plan_digest": one.plan_digest,
        }


# asking


def preview(wish: Wish, actor: Actor) -> Plan:
    """What the backfill would do now. Nothing is locked or written; for a viewer it says what an operator's would need.

    The window may reach into the future. Refused as `start` is, but for the blackout, which the plan tells.
    """
    trigger = trigger_queries.find_trigger(actor, wish.trigger_id)
    actor.require(VIEW)
    asked = backfill_world.read_wish(wish, trigger)
    dues = backfill_world.dues_of(asked, wish.max_ticks)
    backfill_world.check_environment(wish, trigger)
    return backfill_world.plan_now(asked, trigger, dues, actor=actor)


def start(wish: Wish, actor: Actor, key: str = "", plan_digest: str = "") -> Answer:
    """Fills what the trigger missed in the window, or asks others whether it may; nothing to fill is an answer too.

    Up to `AT_ONCE` ticks the runs are there when this returns; beyond, the sweep makes them, and the first `LISTED` are
    listed. The same key for the same request answers with the first one's backfill (`replayed`); for another it is
    `recovery_idempotency_conflict`. Refused besides: as `backfill_world`; a blackout that nobody gave a reason for
    (`blackout_active`); `plan_changed`.
    """
    trigger = trigger_queries.find_trigger(actor, wish.trigger_id)
    if actor.may(FORK):
        _let_live_record(wish, trigger)
    with audited(actor, "backfill.start", reason=wish.reason, **_told(trigger, wish)) as entry:
        actor.require(FORK)
        asked = backfill_world.read_wish(wish, trigger)
        backfill_world.check_past(asked)
        dues = backfill_world.dues_of(asked, wish.max_ticks)
        found = _earlier(wish, asked, actor, key)
        if found is None:
            found, is_new = _begin(wish, asked, dues, trigger, actor, key, plan_digest, entry)
        else:
            is_new = False
        entry.data |= {"backfill": str(found.id), "status": found.state}
        if not is_new:
            entry.outcome = NO_OP
    if found.state == BackfillState.RUNNING:
        if (found.plan or {}).get("total_ticks", 0) <= AT_ONCE:
            fill_up(found.id)
        found.refresh_from_db()
    return answer(found, replayed=not is_new, listed=LISTED)


def _begin(
    wish: Wish,
    asked: Asked,
    dues: Sequence[Due],
    trigger: Trigger,
    actor: Actor,
    key: str,
    plan_digest: str,
    entry: Entry,
) -> tuple[Backfill, bool]:
    """The new backfill; or, where a request with the same key was quicker just now, that one's."""
    place = (trigger.workspace_id, trigger.environment_id)
    is_overridden = blackouts.require_open(*place, wish.override_reason, trigger.id)
    backfill_world.check_environment(wish, trigger)
    plan = backfill_world.plan_now(asked, trigger, dues, actor=actor)
    entry.plan_digest = plan.digest
    entry.data |= {"ticks": plan.total_ticks, "skipped": plan.skipped, "withheld": len(plan.withheld)}
    check_digest(plan, plan_digest)
    backfill = _opened(wish, asked, trigger, actor, key, plan)
    try:
        with transaction.atomic():
            backfill.save(force_insert=True)
    except IntegrityError as error:
        rival = _earlier(wish, asked, actor, key) if "backfill_key_once" in str(error) else None
        if rival is None:
            raise
        return rival, False
    freeze(backfill, plan)
    if plan.agreements:
        move(backfill, "ask_approval")
        update(backfill)
        requests.ask(matter_of(backfill), as_planned(plan))
        entry.data["approvals"] = [{"role": one.role, "count": one.count} for one in plan.agreements]
    else:
        begin(backfill, plan, is_overridden=is_overridden)
    if is_overridden:
        entry.data["override_reason"] = wish.override_reason
    return backfill, True


def begin(backfill: Backfill, plan: Plan, *, is_overridden: bool) -> None:
    """Lets a backfill whose ticks are frozen go on: its lane holds what is made from now on."""
    move(backfill, "start")
    backfill.started_at = database_now()
    if not is_overridden:
        backfill.override_reason = ""  # nothing had to be overridden: a blackout to come holds its runs
    lanes.open_lane(backfill.id, backfill.workspace_id, backfill.max_concurrent, True)
    if not plan.total_ticks:
        end(backfill, "complete")
    update(backfill)


def freeze(backfill: Backfill, plan: Plan) -> None:
    """Keeps the plan, and every tick of it as it was planned; what was kept before goes."""
    backfill.plan, backfill.plan_digest = plan.as_json(), plan.digest
    backfill.request = {**plan.asked.as_json(), "made_with": dict(plan.made_with)}
    execute("DELETE FROM recovery_backfilltick WHERE backfill_id = %s", [backfill.id])
    for first in range(0, len(plan.occasions), FROZEN_AT_ONCE):
        rows = [
            {
                "at": one.due.at,
                "local_time": one.due.local.isoformat(),
                "rule": one.due.rule,
                "previous_at": one.previous,
                "state": BackfillTickState.PENDING if one.why else BackfillTickState.SKIPPED,
                "run": None if one.why else one.run,
                "error_code": one.withheld.code if one.withheld else "",
                "error_message": one.withheld.text if one.withheld else "",
            }
            for one in plan.occasions[first : first + FROZEN_AT_ONCE]
        ]
        execute(
            "INSERT INTO recovery_backfilltick (backfill_id, at, local_time, rule, previous_at, state, run, error_code,"
            " error_message) SELECT %s, at, local_time, rule, previous_at, state, run, error_code, error_message FROM"
            " json_to_recordset(%s::json) AS t(at timestamptz, local_time text, rule text, previous_at timestamptz,"
            " state text, run uuid, error_code text, error_message text)",
            [backfill.id, recordset(rows)],
        )


def check_digest(plan: Plan, plan_digest: str) -> None:
    """Refuses with the new plan when the one that was looked at, if any, is not what would be done now."""
    if plan_digest and plan_digest != plan.digest:
        raise plan_changed(plan)


def plan_changed(plan: Plan) -> Refusal:
    detail = "what this would do has changed since it was planned; look at the new plan and ask again"
    return Refusal("plan_changed", detail, extra={"plan": plan.as_json(), "plan_digest": plan.digest})


def plan_again(backfill: Backfill) -> Plan:
    """The plan of a backfill that waits, in the world as it is now; at least as many must agree as when it was asked
    for. Refused when its requester may do it no longer (F150)."""
    requester = requester_of(backfill)
    requester.require(FORK)
    frozen = agreements.frozen_in(backfill.plan or {"approvals": ()})
    trigger = trigger_of(backfill)
    asked = asked_of(backfill)
    dues = backfill_world.dues_of(asked, MOST_TICKS)
    return backfill_world.plan_now(asked, trigger, dues, actor=requester, frozen=frozen)


def as_planned(plan: Plan, was: Requirement | None = None) -> Planned:
    """What others are asked to agree to, at least as many as before (`was`)."""
    told = plan.as_json()
    requirement = strictest(agreements.frozen_in(told), was)
    if requirement is None:
        raise IllegalMove("nobody need agree to this backfill")
    return Planned(told, plan.digest, requirement)


def matter_of(backfill: Backfill) -> Matter:
    """The backfill, to be put before others."""
    return Matter(backfill.workspace_id, backfill.id, BACKFILL, None, None, backfill.requested_by_id, backfill.reason)


def asked_of(backfill: Backfill) -> Asked:
    """The request that the backfill is for, to plan it again."""
    return Asked(
        trigger_id=backfill.trigger_id,
        from_time=backfill.from_time,
        to_time=backfill.to_time,
        cron=backfill.cron,
        timezone=backfill.timezone,
        gap=backfill.gap,
        overlap=backfill.overlap,
        max_concurrent=backfill.max_concurrent,
        reprocess=backfill.reprocess,
        order=backfill.order,
    )


def requester_of(backfill: Backfill) -> Actor:
    """Who asked for it, with the role that they have by now; `permission_denied` when they have none."""
    requester = person(backfill.requested_by, backfill.workspace_id, backfill.channel)
    if requester is None:
        raise Refusal("permission_denied", "who asked for this is no member any more, or may not log in")
    return requester


def _opened(wish: Wish, asked: Asked, trigger: Trigger, actor: Actor, key: str, plan: Plan) -> Backfill:
    return Backfill(
        workspace_id=trigger.workspace_id,
        trigger=trigger,
        requested_by_id=cast(int, actor.user_id),  # backfills are people's
        channel=actor.channel,
        key=key,
        fingerprint=asked.fingerprint,
        reason=wish.reason,
        override_reason=wish.override_reason.strip(),
        state=BackfillState.PREVIEWED,
        from_time=asked.from_time,
        to_time=asked.to_time,
        cron=asked.cron,
        timezone=asked.timezone,
        gap=asked.gap,
        overlap=asked.overlap,
        max_concurrent=asked.max_concurrent,
        reprocess=asked.reprocess,
        order=asked.order,
        request=asked.as_json(),
        plan=plan.as_json(),
        plan_digest=plan.digest,
    )


def _let_live_record(wish: Wish, trigger: Trigger) -> None:
    """Has the live schedule record what has come of it and no pass has met yet: what it would make is its own to make,
    and a cancel then gives the ledger back a row and not a gap. Nothing comes of it that the next pass would not do."""
    if wish.to_time.tzinfo is not None and wish.to_time > trigger.recorded_until:
        ledger.record([trigger.id])


def _earlier(wish: Wish, asked: Asked, actor: Actor, key: str) -> Backfill | None:
    """What was asked for with this key before; the same key for another request, or another person's, is refused.

    What the request leaves to its trigger is what that was then: a change of it makes no other request.
    """
    if not key:
        return None
    found = Backfill.objects.filter(workspace_id=actor.workspace_id, key=key).first()
    if found is None:
        return None
    left = {name: getattr(found, name) for name in backfill_world.LEFT_TO_TRIGGER if not getattr(wish, name)}
    if found.fingerprint != replace(asked, **left).fingerprint or found.requested_by_id != actor.user_id:
        raise Refusal("recovery_idempotency_conflict", "this key was already used for another request")
    return found


def _told(trigger: Trigger, wish: Wish) -> dict[str, Any]:
    """What the audit keeps of a request for a backfill."""
    return {
        "trigger": trigger.name,
        "trigger_id": str(trigger.id),
        "pipeline": trigger.pipeline.slug,
        "environment": trigger.environment.slug,
        "from_time": wish.from_time.isoformat(),
        "to_time": wish.to_time.isoformat(),
    }


# reading


def find(actor: Actor, backfill_id: uuid.UUID) -> Backfill:
    """A backfill of the actor's workspace; any other id is 404."""
    found = visible(actor).filter(id=backfill_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such backfill")
    return found


def visible(actor: Actor) -> QuerySet[Backfill]:
    """The backfills that the actor may know of; an application those of its own triggers in its environment."""
    rows = Backfill.objects.filter(workspace_id=actor.workspace_id)
    if actor.application_id is not None and actor.environment_id is not None:
        rows = rows.filter(trigger__application_id=actor.application_id, trigger__environment_id=actor.environment_id)
    return rows.select_related("trigger__pipeline", "trigger__environment", "trigger__application", "requested_by")


def answer(backfill: Backfill, *, replayed: bool = False, listed: int | None = None) -> Answer:
    """How the backfill stands, with all its ticks, oldest first, unless only so many are wanted."""
    return Answer(backfill, progress(backfill), ticks(backfill, listed), replayed)


# steering


def pause(backfill_id: uuid.UUID, actor: Actor, reason: str = "") -> Answer:
    """Lets nothing more in; what is in goes on. Again it changes nothing."""
    with _steered(backfill_id, actor, "backfill.pause", STEER, reason) as (backfill, entry):
        if _moves(backfill, "pause", entry, is_done=backfill.state == BackfillState.PAUSED):
            lanes.set_lane(backfill.id, is_open=False)
    return answer(backfill, listed=0)


def resume(backfill_id: uuid.UUID, actor: Actor, reason: str = "", override_reason: str = "") -> Answer:
    """Lets its runs in again. In a blackout only with a reason, which then holds for all of its runs."""
    with _steered(backfill_id, actor, "backfill.resume", STEER, reason) as (backfill, entry):
        trigger = trigger_of(backfill)
        if _moves(backfill, "resume", entry, is_done=backfill.state == BackfillState.RUNNING):
            if blackouts.require_open(
                backfill.workspace_id, trigger.environment_id, override_reason or backfill.override_reason, trigger.id
            ):
                if trigger.environment.protected and not backfill.override_reason:
                    actor.require(FORK_PROTECTED)  # nobody agreed to start it in a blackout
                backfill.override_reason = override_reason.strip() or backfill.override_reason
                entry.data["override_reason"] = backfill.override_reason
                update(backfill)
                _through_blackout(backfill)
            lanes.set_lane(backfill.id, is_open=True)
    return answer(backfill, listed=0)


def cancel(backfill_id: uuid.UUID, actor: Actor, reason: str = "") -> Answer:
    """Makes and lets in nothing more: ticks that have no run get none, held runs are cancelled, and the ledger has
    their ticks back as they were; what is in goes on. Again it changes nothing."""
    with _steered(backfill_id, actor, "backfill.cancel", CANCEL, reason) as (backfill, entry):
        if backfill.state == BackfillState.AWAITING_APPROVAL:
            detail = "it awaits approval: who asked for it withdraws the request, anybody else rejects it"
            raise Refusal("execution_state_invalid", detail)
        if _moves(backfill, "cancel", entry, is_done=backfill.state == BackfillState.CANCELLED):
            backfill.cancel_reason, backfill.cancelled_by_id = reason, actor.user_id
            update(backfill)
            give_up_pending(backfill)
            lanes.set_lane(backfill.id, is_open=False)
    for _ in range(AT_ONCE // CANCEL_BATCH):
        if not cancel_held(backfill.id):
            break
    backfill.refresh_from_db()
    return answer(backfill, listed=0)


def close(backfill: Backfill, actor: Actor | None) -> None:
    """Others did not agree, it was taken back, or its time was over: nothing of it was done."""
    move(backfill, "cancel")
    backfill.cancelled_by_id = actor.user_id if actor else None
    backfill.finished_at = database_now()
    update(backfill)
    give_up_pending(backfill)


@contextmanager
def _steered(
    backfill_id: uuid.UUID, actor: Actor, action: str, capability: str, reason: str
) -> Iterator[tuple[Backfill, Entry]]:
    """One transaction for a verb on a locked backfill, and its audit event."""
    found = find(actor, backfill_id)
    told: dict[str, Any] = {"backfill": str(backfill_id), "trigger": found.trigger.name}
    told["environment"] = found.trigger.environment.slug
    with audited(actor, action, reason=reason, **told) as entry:
        actor.require(capability)
        yield cast(Backfill, lock(found.id)), entry


def _moves(backfill: Backfill, action: str, entry: Entry, *, is_done: bool) -> bool:
    """Whether the verb changed the state; typed refusal where the state does not take it."""
    entry.before = {"backfill": backfill.state}
    if is_done:
        entry.outcome = NO_OP
        entry.after = entry.before
        return False
    if BackfillState(backfill.state) not in BACKFILL_MOVES[action]:
        detail = f"a backfill that is {backfill.state.replace('_', ' ')} cannot be {_PAST[action]}"
        raise Refusal("execution_state_invalid", detail)
    move(backfill, action)
    update(backfill)
    entry.after = {"backfill": backfill.state}
    return True


_PAST = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def _through_blackout(backfill: Backfill) -> None:
    """Marks what is held: none of it waits for the end of a blackout. In one statement, as there may be very many; a
    run that somebody works on is locked like any other."""
    execute(
        "UPDATE pipelines_run SET through_blackout = true WHERE id IN (SELECT id FROM pipelines_run"
        " WHERE lane_id = %s AND held AND status NOT IN ('completed', 'failed', 'cancelled')"
        " ORDER BY id FOR NO KEY UPDATE)",
        [backfill.id],
    )


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
