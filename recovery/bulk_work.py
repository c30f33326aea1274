"""The work on bulks that were let go on: their targets are dealt with at their rate, and what holds or ends them.

Each target's change commits together with its row (`bulk_acts.py`): whatever dies when, it is either still pending, or
was dealt with once (F162). Any number of processes may work on one bulk: a short transaction on the bulk's own row
hands out how many targets are due by now, and each takes the next that nobody else has. Its rate is kept by `next_at`,
which every target handed out moves on; what was not used for more than a second is not made up for, so a bulk that
stood still does not burst. Serves F41, F53, F64, F152, F153, F162, F165, F167, ADR 0075.

Limits: targets that were taken before a pause, a halt or an abort, up to `bulk_acts.TOGETHER`, are still dealt with.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines.access import Actor
from pipelines.moves import IllegalMove
from pipelines.sql import database_now, execute, query
from recovery import bulk_acts, bulk_progress, bulk_verify
from recovery.bulk_outcomes import Held
from recovery.models import BulkOperation
from recovery.states import BULK_MOVES, BulkState

log = structlog.get_logger(__name__)
DRAFTS_SECONDS = 3600  # that a draft waits to be started
BURST_SECONDS = 1.0  # of its rate, at most, that a bulk makes up for when its workers were away
ASIDE = 50  # targets handed out at once
LOOK_SECONDS = 0.25  # between looks at the stop rule, however long targets take
FEWEST = 20  # decided targets before the stop rule is asked
LAST = 1_000  # decided targets that the stop rule looks at
GIVEN_UP_AT_ONCE = 5_000  # targets that one pass leaves alone after an abort
HELD_SECONDS = 1.0  # until a bulk that a blackout holds tries again
WORK_SECONDS = 2.0
SWEEP_SECONDS = 1.0
NAP_SECONDS = 0.02
HINT_SECONDS = 5  # until a hint that nobody took is forgotten


def lock(bulk_id: uuid.UUID, *, skip_locked: bool = False) -> BulkOperation | None:
    """The bulk's row, locked: whoever starts, steers, paces, ends or agrees to it holds it."""
    rows = BulkOperation.objects.select_for_update(no_key=True, skip_locked=skip_locked, of=("self",))
    return rows.select_related("requested_by").filter(id=bulk_id).first()


def move(bulk: BulkOperation, action: str) -> None:
    """Moves a bulk as the table says; saving it is the caller's."""
    state = BulkState(bulk.state)
    if state not in BULK_MOVES[action]:
        raise IllegalMove(f"bulk {bulk.id} cannot {action} from {state}")
    bulk.state = BULK_MOVES[action][state]


def update(bulk: BulkOperation) -> None:
    bulk.updated_at = database_now()
    bulk.save(force_update=True)


def let_go(bulk: BulkOperation, action: str) -> None:
    """Has it go on from now: its pace and its stop rule begin here."""
    move(bulk, action)
    bulk.let_go_at = bulk.next_at = database_now()
    bulk.held_reason = ""


# one turn


def step(bulk_id: uuid.UUID) -> int:
    """Deals with the targets that are due by now, at most `ASIDE`; says how many. Then holds or ends the bulk where
    its canary, its stop rule, a blackout or its end says so."""
    due = hand_out(bulk_id)
    done, looked = 0, time.monotonic()
    while done < due:
        if time.monotonic() - looked > LOOK_SECONDS:
            settle(bulk_id)
            looked = time.monotonic()
        try:
            dealt_with = bulk_acts.act_on_next(bulk_id, due - done)
        except Held as held:
            _hold(bulk_id, held.sentence)
            break
        if not dealt_with:
            break
        done += dealt_with
    else:
        if done:
            _held_no_longer(bulk_id)
    settle(bulk_id)
    return done


def hand_out(bulk_id: uuid.UUID) -> int:
    """How many targets are due by now; they are the caller's to take. One short transaction.

    A caller that dies with some in hand leaves them pending, and the bulk a little behind its rate.
    """
    rows = query(
        """
        UPDATE recovery_bulkoperation b SET next_at = paced.at + make_interval(secs => paced.due / b.rate::float)
        FROM (
            SELECT o.id, clock.now, greatest(o.next_at, clock.now - make_interval(secs => %(burst)s)) AS at,
                least(%(aside)s, 1 + floor(extract(epoch FROM clock.now
                    - greatest(o.next_at, clock.now - make_interval(secs => %(burst)s))) * o.rate)::int) AS due
            FROM recovery_bulkoperation o CROSS JOIN (SELECT recourse_now()) AS clock(now)
            WHERE o.id = %(bulk)s AND o.state = 'running' AND o.next_at <= clock.now
            FOR NO KEY UPDATE OF o
        ) paced
        WHERE b.id = paced.id RETURNING paced.due
        """,
        {"bulk": bulk_id, "burst": BURST_SECONDS, "aside": ASIDE},
    )
    return int(rows[0][0]) if rows else 0


def _hold(bulk_id: uuid.UUID, sentence: str) -> None:
    """A blackout holds it: it tries again, and tells meanwhile why nothing happens."""
    execute(
        "UPDATE recovery_bulkoperation SET held_reason = %s, next_at = recourse_now() + make_interval(secs => %s)"
        " WHERE id = %s AND state = 'running'",
        [sentence, HELD_SECONDS, bulk_id],
    )


def _held_no_longer(bulk_id: uuid.UUID) -> None:
    execute(
        "UPDATE recovery_bulkoperation SET held_reason = '' WHERE id = %s AND state = 'running' AND held_reason <> ''",
        [bulk_id],
    )


def settle(bulk_id: uuid.UUID) -> None:
    """running → halted, waiting, or its end, where that is due; one look in a statement while it is not."""
    if not _is_due(bulk_id):
        return
    with transaction.atomic():
        bulk = lock(bulk_id)
        if bulk is None or bulk.state != BulkState.RUNNING:
            return
        ratio = bulk_progress.nothing_ratio(bulk, last=LAST, fewest=FEWEST)
        if not bulk_progress.is_left(bulk):
            _end(bulk)
        elif bulk.stop_ratio is not None and ratio is not None and ratio > bulk.stop_ratio:
            move(bulk, "halt")
            bulk.held_reason = f"{ratio:.0%} of the last targets came to nothing; it halts above {bulk.stop_ratio:.0%}"
        elif bulk.stops_after and not bulk_progress.is_left(bulk, up_to=bulk.stops_after):
            move(bulk, "wait")
            bulk.held_reason = f"its first {bulk.canary:,} are through: look at them, then let it go on or abort it"
        else:
            return
        update(bulk)


def _is_due(bulk_id: uuid.UUID) -> bool:
    """Whether something may hold or end it; read without its lock, which is then taken to look again."""
    bulk = BulkOperation.objects.filter(id=bulk_id, state=BulkState.RUNNING).first()
    if bulk is None:
        return False
    if not bulk_progress.is_left(bulk, up_to=bulk.stops_after or None):
        return True
    if bulk.stop_ratio is None:
        return False
    ratio = bulk_progress.nothing_ratio(bulk, last=LAST, fewest=FEWEST)
    return ratio is not None and ratio > bulk.stop_ratio


def _end(bulk: BulkOperation) -> None:
    move(bulk, "complete_with_failures" if bulk_progress.has_failures(bulk) else "complete")
    bulk.finished_at = database_now()
    bulk.held_reason = ""


def work(seconds: float = WORK_SECONDS) -> int:
    """Takes turns at all bulks that run, one after the other, for so long or until none does; says how many targets
    were dealt with. No bulk holds up another."""
    until = time.monotonic() + seconds
    total = 0
    while time.monotonic() < until and (running := _ids("state = 'running'")):
        done = 0
        for bulk_id in running:
            try:
                done += step(bulk_id)
            except (InterfaceError, OperationalError):
                raise  # the database is away: all of it waits
            except Exception:
                log.exception("bulks.turn_failed", bulk=str(bulk_id))
        total += done
        if not done:
            time.sleep(NAP_SECONDS)
    return total


def announce() -> None:
    """Hints to the workers, once this transaction has committed, that a bulk has work. A hint that is lost only delays:
    the sweep sends another each second."""
    transaction.on_commit(hint, robust=True)


def hint() -> None:
    from recovery.tasks import work_bulks

    try:
        work_bulks.apply_async(expires=HINT_SECONDS, retry=False)
    except Exception as error:  # noqa: BLE001 - whatever a broker's library raises, the targets stay in the database
        log.warning("bulks.hint_not_sent", error=str(error))


# what time alone does


def carry_on(seconds: float = SWEEP_SECONDS) -> dict[str, int]:
    """Goes on with what was left: hints that running bulks have work, leaves alone what an abort left pending, verifies
    what has ended, and ends drafts that nobody started. Each bulk stands for itself."""
    until = time.monotonic() + seconds
    hinted = 0
    for bulk_id in _ids("state = 'running'"):
        settle(bulk_id)
        hinted += 1
    if hinted:
        hint()
    return {
        "hinted": hinted,
        "given_up": _each("state = 'aborted' AND finished_at IS NULL", give_up, until),
        "verified": _each(
            "state IN ('completed', 'completed_with_failures', 'aborted') AND finished_at IS NOT NULL"
            " AND verified_at IS NULL",
            bulk_verify.verify,
            until,
        ),
        "expired": _each(
            f"state = 'draft' AND created_at < recourse_now() - interval '{DRAFTS_SECONDS} s'", expire, until
        ),
    }


def give_up(bulk_id: uuid.UUID) -> int:
    """Leaves alone the next targets of an aborted bulk; when none is left it is finished. One transaction."""
    with transaction.atomic():
        bulk = lock(bulk_id, skip_locked=True)
        if bulk is None or bulk.state != BulkState.ABORTED or bulk.finished_at is not None:
            return 0
        count = execute(
            # materialized: a plan that asked for the next ones again and again would take more than so many
            "WITH next AS MATERIALIZED (SELECT id FROM recovery_bulkitem WHERE bulk_id = %s AND state = 'pending'"
            " ORDER BY position LIMIT %s::int FOR NO KEY UPDATE) UPDATE recovery_bulkitem i SET state = 'skipped',"
            " code = 'aborted', message = 'the bulk was aborted', decided_at = recourse_now()"
            " FROM next WHERE i.id = next.id AND i.state = 'pending'",
            [bulk.id, GIVEN_UP_AT_ONCE],
        )
        if not bulk_progress.is_left(bulk):
            bulk.finished_at = database_now()
            update(bulk)
    return count


def expire(bulk_id: uuid.UUID) -> int:
    """A draft that nobody started: its targets go."""
    with transaction.atomic():
        bulk = lock(bulk_id, skip_locked=True)
        if bulk is None or bulk.state != BulkState.DRAFT:
            return 0
        move(bulk, "expire")
        bulk.finished_at = database_now()
        update(bulk)
        execute("DELETE FROM recovery_bulkitem WHERE bulk_id = %s", [bulk.id])
    return 1


def abort(bulk: BulkOperation, actor: Actor | None, reason: str) -> None:
    """Nothing more is begun. What is pending is left alone, at once as far as one pass goes; saving is done here."""
    move(bulk, "abort")
    bulk.ended_by_id = actor.user_id if actor else None
    bulk.held_reason = reason
    update(bulk)
    give_up(bulk.id)
    bulk.refresh_from_db()


def _ids(condition: str) -> list[uuid.UUID]:
    return [row[0] for row in query(f"SELECT id FROM recovery_bulkoperation WHERE {condition} ORDER BY random()")]  # noqa: S608


def _each(condition: str, act: Callable[[uuid.UUID], int], until: float) -> int:
    """Acts on each in turn, again and again while there is something left and time."""
    total = 0
    left = _ids(condition)
    while left:
        going = []
        for bulk_id in left:
            try:
                done = act(bulk_id)
            except (InterfaceError, OperationalError):
                raise  # the database is away: all of it waits
            except Exception:
                log.exception("bulks.carry_on_failed", bulk=str(bulk_id))
                continue
            total += done
            if done:
                going.append(bulk_id)
            if time.monotonic() > until:
                return total
        left = going
    return total
