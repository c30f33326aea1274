"""The work on backfills that were let go on: their ticks are filled, their held runs ended, they come to their end.

Every step is a transaction that holds the backfill's row, so any number of requests and sweeps may work at once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines import creation, input_schemas, lanes, ledger, tick_inputs
from pipelines.audit import INTERNAL_ERROR
from pipelines.creation import Draft, Origin, Place
from pipelines.errors import Refusal
from pipelines.models import Trigger
from pipelines.moves import IllegalMove, Moves
from pipelines.releases import Managed
from pipelines.schedules import Due, Schedule
from pipelines.sql import database_now, execute, query, recordset
from pipelines.states import ReleaseStatus, RunStatus
from recovery import redoing
from recovery.backfill_progress import progress
from recovery.models import Backfill, BackfillOrder
from recovery.redoing import Withheld
from recovery.states import BACKFILL_MOVES, BackfillState, BackfillTickState

log = structlog.get_logger(__name__)
BATCH = 500  # ticks filled by one transaction
CANCEL_BATCH = 200  # held runs ended by one
AT_ONCE = 1_000  # ticks that a request itself fills or cancels; the sweep does the rest
SWEEP_SECONDS = 2.0  # that one pass of the sweep takes at most, about: what else time does waits for it
FILLING = (BackfillState.RUNNING, BackfillState.PAUSED)


def lock(backfill_id: uuid.UUID, *, skip_locked: bool = False) -> Backfill | None:
    """The backfill's row, locked: whoever fills, steers, ends or agrees to it holds it."""
    rows = Backfill.objects.select_for_update(no_key=True, skip_locked=skip_locked, of=("self",))
    return rows.select_related("requested_by").filter(id=backfill_id).first()


def move(backfill: Backfill, action: str) -> None:
    """Moves a backfill as the table says; saving it is the caller's."""
    state = BackfillState(backfill.state)
    if state not in BACKFILL_MOVES[action]:
        raise IllegalMove(f"backfill {backfill.id} cannot {action} from {state}")
    backfill.state = BACKFILL_MOVES[action][state]


def update(backfill: Backfill) -> None:
    backfill.updated_at = database_now()
    backfill.save(force_update=True)


def trigger_of(backfill: Backfill) -> Trigger:
    return Trigger.objects.select_related("pipeline", "environment", "application").get(id=backfill.trigger_id)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A tick that is to be filled, with the input that its run gets."""

    id: int
    due: Due
    local_time: str
    previous: datetime | None
    input: Mapping[str, Any] = field(default_factory=dict)


FAULT = (INTERNAL_ERROR, "a fault of the console kept its run from being made")
Errors = dict[int, tuple[str, str]]  # by the id of a tick: code and message


def fill_up(backfill_id: uuid.UUID) -> None:
    while fill(backfill_id):
        pass


def fill(backfill_id: uuid.UUID, limit: int | None = None, *, skip_locked: bool = False) -> int:
    """Makes the runs of the next ticks, held; says how many ticks were dealt with. One transaction."""
    with transaction.atomic():
        backfill = lock(backfill_id, skip_locked=skip_locked)
        if backfill is None or backfill.state not in FILLING:
            return 0
        rows = _next(backfill, limit or BATCH)
        if not rows:
            return 0
        trigger = trigger_of(backfill)
        try:
            release = _release(backfill)
        except Refusal as refusal:
            return _fail_pending(backfill, refusal)
        errors: Errors = {}
        ready = list(_with_inputs(rows, backfill.request["made_with"], release, errors))
        decided = _make_all(backfill, trigger, release, ready, errors)
        _fail(errors)
        lanes.let_in_later([backfill.id])
    return decided + len(errors)


def _next(backfill: Backfill, limit: int) -> list[_Pending]:
    newest_first = backfill.order == BackfillOrder.NEWEST
    return [
        _Pending(tick_id, Due.kept(at, backfill.timezone, rule), local_time, previous)
        for tick_id, at, rule, local_time, previous in query(
            "SELECT id, at, rule, local_time, previous_at FROM recovery_backfilltick WHERE backfill_id = %s"
            " AND state = 'pending' ORDER BY at" + (" DESC" if newest_first else "") + " LIMIT %s::int",
            [backfill.id, limit],
        )
    ]


def _with_inputs(
    rows: Sequence[_Pending], made_with: Mapping[str, Any], release: Managed, errors: Errors
) -> Iterable[_Pending]:
    template, trigger_name = made_with["input"], made_with["trigger"]
    for one in rows:
        try:
            filled = tick_inputs.fill(template, due=one.due, previous=one.previous, trigger_name=trigger_name)
            input_schemas.check(release.definition.get("input_schema"), filled)
        except Refusal as refusal:
            errors[one.id] = (refusal.code, refusal.detail)
            continue
        except Exception:
            log.exception("backfills.tick_unfilled", tick=one.due.at.isoformat())
            errors[one.id] = FAULT
            continue
        yield _Pending(one.id, one.due, one.local_time, one.previous, filled)


def _make_all(backfill: Backfill, trigger: Trigger, release: Managed, ready: Sequence[_Pending], errors: Errors) -> int:
    """Makes the runs of these ticks together; where that fails each by itself, so that one's fault stays its own."""
    try:
        with transaction.atomic():
            return _make(backfill, trigger, release, ready)
    except (InterfaceError, OperationalError):
        raise  # the database is away, or somebody was quicker: all of it waits
    except Exception:
        log.exception("backfills.batch_failed", backfill=str(backfill.id))
    decided = 0
    for one in ready:
        try:
            with transaction.atomic():
                decided += _make(backfill, trigger, release, [one])
        except (InterfaceError, OperationalError):
            raise
        except Refusal as refusal:
            errors[one.id] = (refusal.code, refusal.detail)
        except Exception:
            log.exception("backfills.tick_failed", backfill=str(backfill.id), tick=one.due.at.isoformat())
            errors[one.id] = FAULT
    return decided


def _make(backfill: Backfill, trigger: Trigger, release: Managed, ready: Sequence[_Pending]) -> int:
    """Claims the ticks in the ledger and makes their runs; what has a run by now is skipped. How many were decided.

    A tick whose row in the ledger was given back just now is neither: it stays pending, and comes again.
    """
    withheld: dict[datetime, Withheld] = {}

    def left_alone(instants: Sequence[datetime]) -> Collection[datetime]:
        """Judged again, for what was told of their runs since they were planned."""
        withheld.update(redoing.withheld(backfill.workspace_id, trigger.id, instants, release.definition, lock=True))
        return withheld

    claims = ledger.claim(
        trigger.id,
        [ledger.Wanted(one.due.at, one.local_time, one.due.rule, one.previous) for one in ready],
        backfill_id=backfill.id,
        schedule=Schedule.of(backfill),
        version=trigger.version,
        reprocess=backfill.reprocess,
        withheld=left_alone,
    )
    by_instant = {one.due.at: one for one in ready}
    made = [_draft(backfill, trigger, release, by_instant[one.at], one.run_id) for one in claims.claimed]
    creation.insert_runs(made, actor=backfill.requested_by.get_username(), reason=backfill.reason)
    rows: list[dict[str, Any]] = [
        {"id": by_instant[one.at].id, "state": BackfillTickState.DISPATCHED, "run": one.run_id, "before": one.before}
        for one in claims.claimed
    ]
    for at, run_id in claims.existing.items():
        row = {"id": by_instant[at].id, "state": BackfillTickState.SKIPPED, "run": run_id, "before": None}
        held_back = withheld.get(at)
        rows.append(row | ({"code": held_back.code, "message": held_back.text} if held_back else {}))
    execute(
        "UPDATE recovery_backfilltick k SET state = t.state, run = t.run, before = t.before,"
        " error_code = coalesce(t.code, ''), error_message = coalesce(t.message, '') FROM json_to_recordset(%s::json)"
        " AS t(id bigint, state text, run uuid, before jsonb, code text, message text) WHERE k.id = t.id",
        [recordset(rows)],
    )
    return len(rows)


def _draft(backfill: Backfill, trigger: Trigger, release: Managed, one: _Pending, run_id: uuid.UUID) -> Draft:
    return creation.managed_draft(
        Place(trigger.workspace_id, trigger.application_id, trigger.environment_id, trigger.environment.slug),
        release,
        one.input,
        run_id=run_id,
        keywords=tick_inputs.keywords(one.due),
        deadline_seconds=backfill.request["made_with"]["deadline_seconds"],
        user_id=backfill.requested_by_id,
        origin=Origin(
            trigger_id=trigger.id,
            tick_at=one.due.at,
            lane_id=backfill.id,
            lane_rank=lanes.rank(one.due.at, newest_first=backfill.order == BackfillOrder.NEWEST),
            held=True,
        ),
        through_blackout=bool(backfill.override_reason),
    )


def _release(backfill: Backfill) -> Managed:
    """The release that the plan named, whatever is in force by now; refused once it was revoked or retired."""
    told: Mapping[str, Any] = backfill.plan or {}
    ((release_id, pipeline_id, name, slug, definition, status),) = query(
        "SELECT r.id, p.id, p.name, p.slug, r.definition, r.status FROM pipelines_release r"
        " JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE r.id = %s",
        [told["release_id"]],
    )
    if status in (ReleaseStatus.REVOKED, ReleaseStatus.RETIRED):
        raise Refusal("release_not_active", f"the release is {status}: nothing is run on it any more")
    return Managed(release_id, pipeline_id, name, slug, json.loads(definition))


def _fail_pending(backfill: Backfill, refusal: Refusal) -> int:
    return execute(
        "UPDATE recovery_backfilltick SET state = 'failed', error_code = %s, error_message = %s"
        " WHERE backfill_id = %s AND state = 'pending'",
        [refusal.code, refusal.detail, backfill.id],
    )


def give_up_pending(backfill: Backfill) -> None:
    """Ticks that have no run get none."""
    execute(
        "UPDATE recovery_backfilltick SET state = 'cancelled' WHERE backfill_id = %s AND state = 'pending'",
        [backfill.id],
    )


def _fail(errors: Errors) -> None:
    """Keeps why the runs of these ticks could not be made; in the ledger they are missed as they were."""
    if errors:
        rows = [{"id": tick_id, "code": code, "message": message} for tick_id, (code, message) in errors.items()]
        execute(
            "UPDATE recovery_backfilltick k SET state = 'failed', error_code = t.code, error_message = t.message"
            " FROM json_to_recordset(%s::json) AS t(id bigint, code text, message text) WHERE k.id = t.id",
            [recordset(rows)],
        )


# what time alone does


def carry_on(seconds: float = SWEEP_SECONDS) -> dict[str, int]:
    """Goes on with what was left: makes runs that are still to be made, ends what a cancel left held, and completes
    what is over. Backfills that others hold are passed over; each stands for itself."""
    until = time.monotonic() + seconds
    return {
        "filled": _each(_with_pending, _fill_left, until),
        "cancelled": _each(_being_cancelled, cancel_held, until),
        "completed": _each(_perhaps_over, complete, until, once=True),
    }


def _each(
    find_left: Callable[[], list[uuid.UUID]], act: Callable[[uuid.UUID], int], until: float, *, once: bool = False
) -> int:
    """Acts on each in turn, again and again while there is something left and time."""
    total = 0
    left = find_left()
    while left:
        going = []
        for backfill_id in left:
            try:
                done = act(backfill_id)
            except (InterfaceError, OperationalError):
                raise  # the database is away: all of it waits
            except Exception:
                log.exception("backfills.carry_on_failed", backfill=str(backfill_id))
                continue
            total += done
            if done and not once:
                going.append(backfill_id)
            if time.monotonic() > until:
                return total
        left = going
    return total


def _with_pending() -> list[uuid.UUID]:
    return _ids(
        "SELECT b.id FROM recovery_backfill b WHERE b.state IN ('running', 'paused') AND EXISTS (SELECT FROM"
        " recovery_backfilltick t WHERE t.backfill_id = b.id AND t.state = 'pending')"
    )


def _being_cancelled() -> list[uuid.UUID]:
    return _ids("SELECT b.id FROM recovery_backfill b WHERE b.state = 'cancelled' AND b.finished_at IS NULL")


def _perhaps_over() -> list[uuid.UUID]:
    return _ids(f"SELECT b.id FROM recovery_backfill b WHERE b.state IN ('running', 'paused') AND {_OVER}")


def _is_over(backfill: Backfill) -> bool:
    return bool(query(f"SELECT 1 FROM recovery_backfill b WHERE b.id = %s AND {_OVER}", [backfill.id]))


_OVER = """NOT EXISTS (SELECT FROM recovery_backfilltick t WHERE t.backfill_id = b.id AND t.state = 'pending')
    AND NOT EXISTS (SELECT FROM pipelines_run r WHERE r.lane_id = b.id
        AND r.status NOT IN ('completed', 'failed', 'cancelled'))"""


def _ids(sql: str) -> list[uuid.UUID]:
    """The oldest of each workspace before the second of any, whose turn is drawn by lot: a pass may end before all had
    theirs, and no workspace holds up another by having many."""
    return [
        row[0]
        for row in query(f"{sql} ORDER BY row_number() OVER (PARTITION BY b.workspace_id ORDER BY b.id), random()")
    ]


def _fill_left(backfill_id: uuid.UUID) -> int:
    return fill(backfill_id, skip_locked=True)


def complete(backfill_id: uuid.UUID) -> int:
    """A backfill of which nothing is left: `completed`, or with failures where a tick or its run came to nothing."""
    with transaction.atomic():
        backfill = lock(backfill_id, skip_locked=True)
        if backfill is None or backfill.state not in FILLING:
            return 0
        # statements of their own, after the lock: nobody fills meanwhile
        if not _is_over(backfill):
            return 0
        end(backfill, "complete_with_failures" if progress(backfill).troubled else "complete")
        update(backfill)
    return 1


def end(backfill: Backfill, action: str) -> None:
    move(backfill, action)
    backfill.finished_at = database_now()


def cancel_held(backfill_id: uuid.UUID) -> int:
    """Ends the next held runs of a cancelled backfill and gives their ticks back; says how many. When none is left the
    backfill is finished, and its lane open again.

    Runs that people recovered are not its own to end: those that have begun, and forks, go on to wait for their turn.
    """
    with transaction.atomic():
        backfill = lock(backfill_id)
        if backfill is None or backfill.state != BackfillState.CANCELLED or backfill.finished_at is not None:
            return 0
        held = query(
            "SELECT r.id, r.tick_at FROM pipelines_run r WHERE r.lane_id = %s AND r.held"
            " AND r.started_at IS NULL AND r.recovered_from_id IS NULL"
            " AND r.status NOT IN ('completed', 'failed', 'cancelled') ORDER BY r.lane_rank, r.id LIMIT %s::int",
            [backfill_id, CANCEL_BATCH],
        )
        if not held:
            backfill.finished_at = database_now()
            update(backfill)
            lanes.set_lane(backfill.id, is_open=True)
            return 0
        ats = [at for _, at in held]
        # the ledger's rows before the runs, as whoever claims ticks takes them
        query(
            "SELECT 1 FROM pipelines_tick WHERE trigger_id = %s AND at = ANY(%s) ORDER BY at FOR NO KEY UPDATE",
            [backfill.trigger_id, ats],
        )
        by = backfill.cancelled_by.get_username() if backfill.cancelled_by else ""
        moves = Moves.lock([run_id for run_id, _ in held], actor=by)
        ending = [run for run in moves.runs.values() if run.held and run.started_at is None and not run.is_terminal]
        for run in ending:
            moves.end_run(run, RunStatus.CANCELLED, reason=backfill.cancel_reason or "its backfill was cancelled")
        moves.save()
        _give_back(backfill, [run.id for run in ending])
    return len(held)


def _give_back(backfill: Backfill, run_ids: Sequence[uuid.UUID]) -> None:
    rows = query(
        "UPDATE recovery_backfilltick SET state = 'cancelled' WHERE backfill_id = %s AND run = ANY(%s)"
        " AND state = 'dispatched' RETURNING at, run, before::text",
        [backfill.id, list(run_ids)],
    )
    claimed = [ledger.Claimed(at, run_id, json.loads(before) if before else None) for at, run_id, before in rows]
    ledger.give_back(backfill.trigger_id, claimed)
