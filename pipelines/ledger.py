"""The ledger of ticks: a row for every instant at which a trigger was due, written before anything is made of it.

A tick is recorded in the transaction that moves its trigger's `recorded_until` past it, and once: trigger and instant
are unique. So whoever records, however often and beside whom, a crash leaves the tick unrecorded, to be found again, or
recorded. What is `due` has the id of its run reserved; `dispatch` makes it. Only the database's clock decides.

Of what one pass finds for a trigger only the newest `MOST_TICKS` get rows: older instants are missed without one.
Serves O49, F98–F100, F103, F110–F113, I18.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.models import CatchUp, Trigger
from pipelines.schedules import Due, Schedule
from pipelines.sql import database_now, execute, query, recordset
from pipelines.states import REDONE, REMOVED, TICK_MOVES, SkipReason, TickState

log = structlog.get_logger(__name__)
BATCH = 1_000  # triggers a transaction
MOST_ROWS = 20_000  # of a transaction, about
MOST_TICKS = 10_000  # of one trigger in one pass
LOOK_AGAIN = timedelta(minutes=1)  # at a trigger whose schedule cannot be read any more

COLUMNS = """id uuid, trigger uuid, at timestamptz, state text, reason text, detail text, cron text, timezone text,
    gap text, overlap text, rule text, local_time text, version int, previous_at timestamptz, start_at timestamptz,
    run uuid, backfill uuid"""
INSERT = f"""
    INSERT INTO pipelines_tick (id, trigger_id, at, state, reason, detail, cron, timezone, gap, overlap, rule,
        local_time, version, previous_at, start_at, run, backfill, recorded_at, decided_at)
    SELECT id, trigger, at, state, reason, detail, cron, timezone, gap, overlap, rule, local_time, version,
        previous_at, start_at, run, backfill, recourse_now(), CASE WHEN state <> 'due' THEN recourse_now() END
    FROM json_to_recordset(%s::json) AS t({COLUMNS})
    ORDER BY trigger, at
    ON CONFLICT (trigger_id, at) DO NOTHING
"""


@dataclass(slots=True)
class Subject:
    """A trigger as far as recording it goes; its row is locked."""

    id: uuid.UUID
    workspace_id: uuid.UUID
    environment_id: uuid.UUID
    cron: str
    timezone: str
    gap: str
    overlap: str
    enabled: bool
    catch_up: str
    catch_up_limit: int
    start_within: int
    spread: int
    starts_at: datetime | None
    ends_at: datetime | None
    version: int
    recorded_until: datetime


SUBJECT = ", ".join(name for name in Subject.__dataclass_fields__)


def record(trigger_ids: Sequence[uuid.UUID] | None = None) -> int:
    """Writes a row for every tick that has come, of all triggers or of these; how many rows were new.

    Triggers that somebody else holds are passed over: whoever holds them records, or the next pass does.
    """
    total = 0
    while True:
        with transaction.atomic():
            subjects = _due(trigger_ids)
            if not subjects:
                return total
            # a statement of its own: later than any change that the locks were waited for
            recorded, done = _record_each_for_itself(subjects, database_now())
        total += recorded
        if done == len(subjects) < BATCH:
            return total


def record_locked(trigger: Trigger, now: datetime) -> int:
    """Records what is due of one trigger by the settings that it has; the caller holds its row's lock.

    `recorded_until` and `next_at` of the row move; those of the object too.
    """
    subject = Subject(**{name: getattr(trigger, name) for name in Subject.__dataclass_fields__})
    recorded, _ = _record([subject], now)
    trigger.refresh_from_db(fields=["recorded_until", "next_at"])
    return recorded


def _due(trigger_ids: Sequence[uuid.UUID] | None) -> list[Subject]:
    wanted = None if trigger_ids is None else list(trigger_ids)
    rows = query(
        f"SELECT {SUBJECT} FROM pipelines_trigger WHERE next_at <= recourse_now()"
        " AND (%s::uuid[] IS NULL OR id = ANY(%s::uuid[]))"
        " ORDER BY next_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED",
        [wanted, wanted, BATCH],
    )
    return [Subject(*row) for row in rows]


def _record_each_for_itself(subjects: Sequence[Subject], now: datetime) -> tuple[int, int]:
    """Together; where that fails one by one: what cannot be recorded is looked at again later and holds up no other.

    Nothing of it is lost: what it is recorded up to stays where it was.
    """
    try:
        with transaction.atomic():
            return _record(subjects, now)
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("ledger.batch_failed", triggers=len(subjects))
    recorded = 0
    for subject in subjects:
        try:
            with transaction.atomic():
                recorded += _record([subject], now)[0]
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            log.exception("ledger.trigger_failed", trigger=str(subject.id))
            execute("UPDATE pipelines_trigger SET next_at = %s WHERE id = %s", [now + LOOK_AGAIN, subject.id])
    return recorded, len(subjects)


def _record(subjects: Sequence[Subject], now: datetime) -> tuple[int, int]:
    """Records as many of the triggers as one transaction should: (new rows, triggers that were looked at)."""
    clocks: dict[Schedule, _Clock] = {}
    found: list[tuple[Subject, list[_Found]]] = []
    pointers: list[dict[str, Any]] = []
    rows = done = 0
    for subject in subjects:
        done += 1
        try:
            schedule = Schedule.of(subject)
            clock = clocks.setdefault(schedule, _Clock(schedule, now))
            ticks = clock.since_recorded(subject)
            until = max(now, subject.recorded_until)
            following = clock.next(until, subject)
        except Refusal as refusal:
            log.error("ledger.schedule_unreadable", trigger=str(subject.id), error=refusal.detail)
            pointers.append({"id": subject.id, "recorded_until": subject.recorded_until, "next_at": now + LOOK_AGAIN})
            continue
        pointers.append({"id": subject.id, "recorded_until": until, "next_at": following})
        found.append((subject, ticks))
        rows += len(ticks)
        if rows >= MOST_ROWS:
            break
    recorded = execute(INSERT, [recordset(_rows(found, now))]) if rows else 0
    execute(
        "UPDATE pipelines_trigger g SET recorded_until = t.recorded_until, next_at = t.next_at"
        " FROM json_to_recordset(%s::json) AS t(id uuid, recorded_until timestamptz, next_at timestamptz)"
        " WHERE g.id = t.id",
        [recordset(pointers)],
    )
    return recorded, done


@dataclass(slots=True)
class _Found:
    """An instant that has come, and the one before it by the same schedule."""

    due: Due
    previous: datetime | None


class _Clock:
    """A schedule seen from now, walked once however many triggers share it."""

    def __init__(self, schedule: Schedule, now: datetime) -> None:
        self._schedule, self._now = schedule, now
        self._past: Iterator[Due] = schedule.before(now, inclusive=True)
        self._walked: list[Due] = []
        self._next: dict[tuple[datetime | None, ...], datetime | None] = {}

    def since_recorded(self, subject: Subject) -> list[_Found]:
        """What came after the instant up to which the trigger is recorded, oldest first."""
        found: list[_Found] = []
        index = 0
        while len(found) < MOST_TICKS and (due := self._back(index)) is not None:
            if due.at <= subject.recorded_until or (subject.starts_at is not None and due.at < subject.starts_at):
                break
            index += 1
            if subject.ends_at is None or due.at <= subject.ends_at:
                previous = self._back(index)
                found.append(_Found(due, previous.at if previous else None))
        return found[::-1]

    def next(self, after: datetime, subject: Subject) -> datetime | None:
        asked = (after, subject.starts_at, subject.ends_at)
        if asked not in self._next:
            due = next(self._schedule.ahead(*asked), None)
            self._next[asked] = due.at if due else None
        return self._next[asked]

    def _back(self, index: int) -> Due | None:
        while len(self._walked) <= index:
            due = next(self._past, None)
            if due is None:
                return None
            self._walked.append(due)
        return self._walked[index]


# what becomes of each


def _rows(found: Sequence[tuple[Subject, list[_Found]]], now: datetime) -> list[dict[str, Any]]:
    blackouts = _blackouts(found)
    return [row for subject, ticks in found for row in _judged(subject, ticks, blackouts.get(subject.id, {}), now)]


def _blackouts(found: Sequence[tuple[Subject, list[_Found]]]) -> dict[uuid.UUID, dict[datetime, str]]:
    """By trigger and instant: the name of the blackout in which a tick falls. Costs nothing where there is none."""
    asked = [
        {"trigger": one.id, "workspace": one.workspace_id, "environment": one.environment_id, "at": tick.due.at}
        for one, ticks in found
        if one.enabled
        for tick in ticks
    ]
    held: dict[uuid.UUID, dict[datetime, str]] = {}
    for trigger_id, at, name in query(
        """
        SELECT trigger, at, name FROM (
            SELECT t.trigger, t.at, CASE WHEN t.workspace = ANY(ARRAY(
                SELECT DISTINCT workspace_id FROM pipelines_blackout WHERE enabled
            )) THEN recourse_blackout(t.workspace, t.environment, t.trigger, t.at) END AS name
            FROM json_to_recordset(%s::json) AS t(trigger uuid, workspace uuid, environment uuid, at timestamptz)
        ) held WHERE name IS NOT NULL
        """,
        [recordset(asked)],
    ):
        held.setdefault(trigger_id, {})[at] = name
    return held


def _judged(
    subject: Subject, ticks: Sequence[_Found], blackouts: Mapping[datetime, str], now: datetime
) -> Iterator[dict[str, Any]]:
    """The rows of a trigger's ticks: due, or skipped and why."""
    open_ticks = [tick.due.at for tick in ticks if tick.due.at not in blackouts]
    late = [at for at in open_ticks if now - at > timedelta(seconds=subject.start_within)]
    missed = set(_not_caught_up(subject, open_ticks, late))
    for tick in ticks:
        at, reason, detail = tick.due.at, "", ""
        if not subject.enabled:
            reason = SkipReason.PAUSED
        elif at in blackouts:
            reason, detail = SkipReason.BLACKOUT, blackouts[at]
        elif at in missed:
            reason = SkipReason.CATCH_UP
        spread = timedelta(seconds=_spread(subject.id, at, subject.spread))
        yield {
            "id": new_id(),
            "trigger": subject.id,
            "at": at,
            "state": TickState.SKIPPED if reason else TickState.DUE,
            "reason": reason,
            "detail": detail,
            "cron": subject.cron,
            "timezone": subject.timezone,
            "gap": subject.gap,
            "overlap": subject.overlap,
            "rule": tick.due.rule,
            "local_time": tick.due.local.isoformat(),
            "version": subject.version,
            "previous_at": tick.previous,
            # what is caught up on is spread from now on: its own time has long passed for all of it alike
            "start_at": (now if at in late else at) + spread,
            "run": None if reason else new_id(),
        }


def _not_caught_up(subject: Subject, found: Sequence[datetime], late: Sequence[datetime]) -> Sequence[datetime]:
    """Of what one pass found, oldest first, what is missed for good unless somebody backfills it."""
    if subject.catch_up == CatchUp.LATEST:
        return found[:-1]
    if subject.catch_up == CatchUp.ALL:
        return late[: max(0, len(late) - subject.catch_up_limit)]
    return late


def _spread(trigger_id: uuid.UUID, at: datetime, seconds: int) -> int:
    """How much later than its instant a tick starts: its own share of the spread, the same whoever asks."""
    if not seconds:
        return 0
    digest = sha256(trigger_id.bytes + int(at.timestamp()).to_bytes(8, signed=True)).digest()
    return int.from_bytes(digest[:8]) % (seconds + 1)


# for backfills


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tick that a backfill fills, as its own schedule made it."""

    at: datetime
    local_time: str
    rule: str
    previous_at: datetime | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A tick that now belongs to the backfill: the run to make, and its row as it was, None when it had none."""

    at: datetime
    run_id: uuid.UUID
    before: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim came to: the ticks that are the backfill's, and the runs that the others have already."""

    claimed: list[Claimed]
    existing: dict[datetime, uuid.UUID]


# what of a row is the backfill's, and comes back when it is cancelled
KEPT = "state, reason, detail, cron, timezone, gap, overlap, rule, local_time, version, previous_at, start_at, run,\
 backfill, error_code, error_message, decided_at"


def claim(
    trigger_id: uuid.UUID,
    ticks: Sequence[Wanted],
    *,
    backfill_id: uuid.UUID,
    schedule: Schedule,
    version: int,
    reprocess: str = "none",
    withheld: Callable[[Sequence[datetime]], Collection[datetime]] | None = None,
) -> Claims:
    """Takes these ticks for a backfill: their rows become `dispatched`, each with a run reserved for it.

    In the caller's transaction, which makes the runs; one claim a transaction. Left as they are, and told with the run
    that they have: ticks whose run is unfinished or still to be made, and all with a run that `reprocess` does not
    name (`failed`: failed and cancelled ones; `all`: finished ones). Of those that it names `withheld` is asked, their
    runs being locked, which are to be left all the same. Whoever claims or dispatches the same ticks at the
    same time is waited for, so a tick never gets two runs.
    """
    ordered = sorted(ticks, key=lambda tick: tick.at)
    fresh = {tick.at: new_id() for tick in ordered}
    rows = [
        {
            "id": new_id(),
            "trigger": trigger_id,
            "at": tick.at,
            "state": TickState.DISPATCHED,
            "reason": "",
            "detail": "",
            "cron": schedule.cron,
            "timezone": schedule.timezone,
            "gap": schedule.gap,
            "overlap": schedule.overlap,
            "rule": tick.rule,
            "local_time": tick.local_time,
            "version": version,
            "previous_at": tick.previous_at,
            "start_at": tick.at,
            "run": fresh[tick.at],
            "backfill": backfill_id,
        }
        for tick in ordered
    ]
    document = recordset(rows)
    new = {row[0] for row in query(f"{INSERT} RETURNING at", [document])}
    befores = _held(trigger_id, [tick.at for tick in ordered if tick.at not in new])
    finished = _finished([before["run"] for before in befores.values() if before["run"]], reprocess)
    mine = {at: before for at, before in befores.items() if _is_free(before, finished)}
    if withheld is not None and (again := [at for at, before in mine.items() if before["run"]]):
        for at in withheld(again):
            del mine[at]
    if mine:
        execute(
            f"""
            UPDATE pipelines_tick k SET state = t.state, reason = '', detail = '', cron = t.cron,
                timezone = t.timezone, gap = t.gap, overlap = t.overlap, rule = t.rule, local_time = t.local_time,
                version = t.version, previous_at = t.previous_at, start_at = t.start_at, run = t.run,
                backfill = t.backfill, error_code = '', error_message = '', decided_at = recourse_now()
            FROM json_to_recordset(%s::json) AS t({COLUMNS}) WHERE k.trigger_id = t.trigger AND k.at = t.at
            """,
            [recordset([row for row in rows if row["at"] in mine])],
        )
    claimed = [Claimed(tick.at, fresh[tick.at], mine.get(tick.at)) for tick in ordered if tick.at in new | set(mine)]
    existing = {at: uuid.UUID(before["run"]) for at, before in befores.items() if at not in mine}
    return Claims(claimed, existing)


def give_back(trigger_id: uuid.UUID, claimed: Sequence[Claimed]) -> int:
    """Leaves these ticks as they were before they were claimed; how many. One that has another run by now stays."""
    rows = recordset([{"at": one.at, "run": one.run_id, "before": one.before} for one in claimed])
    given = "json_to_recordset(%s::json) AS t(at timestamptz, run uuid, before jsonb)"
    query(
        "SELECT 1 FROM pipelines_tick WHERE trigger_id = %s AND at = ANY(%s::timestamptz[]) ORDER BY at"
        " FOR NO KEY UPDATE",
        [trigger_id, [one.at for one in claimed]],
    )
    removed = execute(
        f"DELETE FROM pipelines_tick k USING {given} WHERE k.trigger_id = %s AND k.at = t.at AND k.run = t.run"
        " AND t.before IS NULL",
        [rows, trigger_id],
    )
    restored = execute(
        f"""
        UPDATE pipelines_tick k SET ({KEPT}) = (
            SELECT {KEPT} FROM jsonb_populate_record(NULL::pipelines_tick, t.before)
        )
        FROM {given} WHERE k.trigger_id = %s AND k.at = t.at AND k.run = t.run AND t.before IS NOT NULL
        """,
        [rows, trigger_id],
    )
    return removed + restored


def _held(trigger_id: uuid.UUID, instants: Sequence[datetime]) -> dict[datetime, dict[str, Any]]:
    """The rows of these ticks, locked, as they stand once nobody else holds them."""
    rows = query(
        "SELECT k.at, to_jsonb(k)::text FROM pipelines_tick k WHERE k.trigger_id = %s"
        " AND k.at = ANY(%s::timestamptz[]) ORDER BY k.at FOR NO KEY UPDATE",
        [trigger_id, list(instants)],
    )
    kept = {name.strip() for name in KEPT.split(",")}
    return {at: {name: value for name, value in json.loads(row).items() if name in kept} for at, row in rows}


def _finished(run_ids: Sequence[str], reprocess: str) -> set[str]:
    """Which of these runs may be done once more; locked, so that none is taken up again meanwhile.

    Unfinished ones are not waited for: whoever holds one may be about to give its tick back.
    """
    statuses = REDONE[reprocess]
    if not statuses or not run_ids:
        return set()
    ended = query(
        "SELECT id FROM pipelines_run WHERE id = ANY(%s::uuid[]) AND status = ANY(%s) ORDER BY id FOR NO KEY UPDATE",
        [list(run_ids), sorted(statuses)],
    )
    if REMOVED in statuses:
        ended += query(
            "SELECT gone.id FROM unnest(%s::uuid[]) AS gone(id)"
            " WHERE NOT EXISTS (SELECT FROM pipelines_run r WHERE r.id = gone.id)",
            [list(run_ids)],
        )
    return {str(row[0]) for row in ended}


def _is_free(before: Mapping[str, Any], finished: set[str]) -> bool:
    return before["state"] in TICK_MOVES["fill"] and (before["run"] is None or before["run"] in finished)
