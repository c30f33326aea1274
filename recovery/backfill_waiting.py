"""Why a backfill does not go on: who or what holds it, in words, and when the engine looks again (O54, F115).

Its runs are looked at together, in a fixed number of statements: each says on its own page why it does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from approvals.models import ApprovalRequest
from approvals.requests import so_far
from approvals.rules import people
from approvals.states import RequestState
from pipelines import lanes, queries
from pipelines.blackouts import Active
from pipelines.blockers import CLOCK, ENGINE, NO_WORKER, PERSON, Blocker
from pipelines.lanes import Inside
from pipelines.models import AuditEvent, Trigger
from pipelines.sql import database_now, planned
from pipelines.states import CLAIMABLE_STAGE, RunStatus
from recovery.backfill_progress import Progress
from recovery.models import Backfill
from recovery.states import TERMINAL_BACKFILL, BackfillState

NAMED = 8  # runs that are in
MANY_HANDLERS = 5
LOOKED_AT = 50  # audit events about the time of a pause
ABOUT = timedelta(minutes=1)


def blockers(backfill: Backfill, found: Progress, holds: Active | None) -> list[Blocker]:
    """What it waits for; none of one that is over. `found` is how far it is, `holds` the blackout that holds it."""
    match backfill.state:
        case BackfillState.AWAITING_APPROVAL:
            return _approval(backfill)
        case BackfillState.CANCELLED if backfill.finished_at is None:
            cause = f"{_runs(found.never_in)} still to be cancelled; the next sweep goes on with it"
            return [Blocker(ENGINE, cause, database_now())]
        case state if state in TERMINAL_BACKFILL:
            return []
    inside = lanes.first_inside(backfill.id, NAMED) if found.active else ()
    told = [_paused(backfill, found)] if backfill.state == BackfillState.PAUSED else []
    if found.pending:
        told.append(
            Blocker(ENGINE, f"{_runs(found.pending)} still to be made; the next sweep makes more", database_now())
        )
    if found.held and backfill.state == BackfillState.RUNNING:
        told.append(_held(backfill, found, holds, inside))
    return [*told, *_without_worker(backfill), *_stuck(inside)]


def _approval(backfill: Backfill) -> list[Blocker]:
    request = ApprovalRequest.objects.filter(subject=backfill.id, state=RequestState.OPEN).order_by("-round").first()
    if request is None:
        return []
    wanted, have = people(request.approver_role, request.count), so_far([request])[request.id]
    ends = f"; it expires at {request.expires_at:%Y-%m-%d %H:%M:%S} UTC" if request.expires_at else ""
    asker = backfill.requested_by.get_username()
    cause = f"waits for approval of {wanted} other than {asker}, who asked for it, {have} so far{ends}"
    return [Blocker(PERSON, cause, request.expires_at, asks=backfill.id)]


def _paused(backfill: Backfill, found: Progress) -> Blocker:
    """By whom and why, as the audit keeps it: written with the pause itself, so about when the row last changed."""
    near = (backfill.updated_at - ABOUT, backfill.updated_at + ABOUT)
    events = AuditEvent.objects.filter(workspace=backfill.workspace_id, at__range=near, action="backfill.pause")
    told = [one for one in events.order_by("-at")[:LOOKED_AT] if (one.data or {}).get("backfill") == str(backfill.id)]
    who = told[0].actor if told else ""
    why = f": {told[0].reason}" if told and told[0].reason else ""
    since = f" since {told[0].at:%Y-%m-%d %H:%M:%S} UTC" if told else ""
    on = "goes on to its end" if found.active == 1 else "go on to their end"
    left = f"; {found.active:,} let in before {on}" if found.active else ""
    return Blocker(who or PERSON, f"paused by {who or 'somebody'}{since}{why}; nothing more is let in{left}")


def _held(backfill: Backfill, found: Progress, holds: Active | None, inside: Sequence[Inside]) -> Blocker:
    held = _runs(found.held)
    if holds is not None:
        who = (holds.by or PERSON) if holds.is_freeze else CLOCK
        return Blocker(who, f"{held} held; {holds.sentence()}", holds.until, closed_by="blackout")
    if found.active >= backfill.max_concurrent:
        cause = f"{held} held: it lets in {backfill.max_concurrent} at a time, and as many are in"
        return Blocker(ENGINE, f"{cause}; the next follows as soon as one of them ends", behind=tuple(inside))
    return Blocker(ENGINE, f"{held} held, and there is room; the next sweep lets in more", database_now())


def _without_worker(backfill: Backfill) -> list[Blocker]:
    """One for each handler that runs wait for and no live worker has."""
    waiting = planned(
        "SELECT s.handler, count(DISTINCT s.run_id) FROM pipelines_run r JOIN pipelines_stage s ON s.run_id = r.id"
        " WHERE r.lane_id = %s AND NOT r.held AND NOT r.paused AND r.status NOT IN ('cancelled', 'completed', 'failed')"
        " AND s.state = ANY(%s) AND s.available_at <= recourse_now() GROUP BY s.handler ORDER BY s.handler LIMIT %s",
        [backfill.id, sorted(CLAIMABLE_STAGE), MANY_HANDLERS],
    )
    if not waiting:
        return []
    trigger: Trigger = backfill.trigger
    workers = queries.registered(trigger, {handler for handler, _ in waiting})
    found = []
    for handler, count in waiting:
        known = workers.get(handler, ())
        if any(not one.misses for one in known):
            continue
        why = f"no live worker has registered the handler {handler}"
        if known:
            why = f"of those with the handler {handler} none may pull it: {known[0].worker} {known[0].misses}"
        found.append(Blocker(NO_WORKER, f"{_runs(count)} let in and ready; {why}"))
    return found


def _stuck(inside: Sequence[Inside]) -> list[Blocker]:
    """The runs that are in and wait for somebody."""
    told = []
    for status, why in ((RunStatus.BLOCKED, "cannot move without a person"), (RunStatus.PAUSED, "paused by a person")):
        these = tuple(one for one in inside if one.status == status)
        if these:
            told.append(Blocker(PERSON, f"{_runs(len(these))} let in and {why}", behind=these))
    return told


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count:,} runs are"
