"""How stages reach workers: claim, acquire, renew, release. Each works on a batch in a fixed number of statements.

The fence is attempt id + number + the session that holds the lease; a worker's name proves nothing. Only the database's
clock counts. Guarantees: at most one active attempt per stage (I2), numbers that only rise (I1), at most one live lease
per attempt (I3). Claims take stage and run rows with SKIP LOCKED: they never wait, never deadlock, and pass over what
others are changing. Serves P48–P51, P57, P60, F08, F09, F13, F21, F22.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import random
from typing import Any

from django.conf import settings
from django.db import transaction

from pipelines import outcomes, pinned, policies, postures, recipients, throttles
from pipelines.ids import new_id
from pipelines.jobs import Job, Lease, Picked, insert_attempts, make_jobs
from pipelines.models.runs import NO_THROTTLE
from pipelines.moves import STAGE_COLUMNS, AttemptRow, Moves, Owner, event_row, insert_events, read_stage
from pipelines.sql import one_line, query
from pipelines.states import RunStatus, StageState
from pipelines.wake import Queue

CANDIDATES_PER_JOB = 4  # how far a claim looks past what it wants, so that claims side by side find something each
LEAST_SHARE = 0.25  # of what a claim hands out while live work waits: that of background work
MOST_SHARE = 0.5  # once its oldest has waited for so long:
AGING_SECONDS = 60
CLOSED_SECONDS = 5.0  # how often, at the least, who waits looks whether a blackout or a policy lets more go
TURNS = 3  # how often a claim looks, while policies have no room for what it found

# While a blackout holds, the lines in which runs begin are closed. Asked once for each environment of the queues, and
# of the function only where there are blackouts at all.
CLOSED = """
    SELECT e.id AS environment_id FROM pipelines_environment e WHERE e.id = ANY(%(environments)s::uuid[])
        AND CASE WHEN EXISTS (SELECT FROM pipelines_blackout b WHERE b.workspace_id = e.workspace_id AND b.enabled)
            THEN recourse_blackout(e.workspace_id, e.id, NULL, recourse_now()) IS NOT NULL ELSE false END
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker session on whose behalf a call is made. Without an application it is the console's executor."""

    session_id: uuid.UUID
    application_id: uuid.UUID | None
    environment_id: uuid.UUID | None
    worker: str
    draining: bool = False
    key_id: uuid.UUID | None = None
    sends_to: Sequence[str] = ()  # the keys of those to whom its adapters send

    @property
    def owner(self) -> Owner:
        """Whose runs it may write to."""
        return Owner(None, self.application_id, self.environment_id)

    def commands(self) -> list[dict[str, Any]]:
        return [{"command": "drain"}] if self.draining else []


def claim(holder: Holder, queues: Sequence[Queue], *, limit: int, acquire: bool) -> list[Job]:
    """Hands out up to `limit` ready or due stages of these queues, oldest first; of background work its share.

    While live work waits, background work gets one place in four, rising to one in two as its oldest waits; what one
    of them leaves free the other gets. Places that do not come out even are drawn by lot, so that with a limit of one
    neither starves. While a blackout holds nothing begins, and what has begun goes on. What waits for the slot or the
    rate of a policy stands in lines of its own, which are passed over while that has no room: it holds up nothing else.
    A stage that names its recipients goes only to a session that sends to one of those allowed now.

    ready, retry_scheduled → dispatched, and with `acquire` on to running. Nothing of a paused or ended run is handed
    out, nothing to a session that drains or whose key is no longer live. May return fewer than there are while others
    claim; `next_due` tells.
    """
    if not queues or holder.draining:
        return []
    jobs: list[Job] = []
    with transaction.atomic():
        for turn in range(TURNS):
            picked = _pick(holder, queues, limit - len(jobs))
            if not picked:
                break
            doubtful = {item.stage.run_id for item, _ in picked if not item.is_as_pinned}
            if doubtful and (stopped := pinned.stop_changed(doubtful)):
                picked = [(item, now) for item, now in picked if item.stage.run_id not in stopped]
            picked = [(item, picked[0][1]) for item in recipients.address([one for one, _ in picked], holder.sends_to)]
            if not picked:
                continue
            rules = policies.for_claims({item.workspace_id for item, _ in picked})
            found, now = [item for item, _ in picked], picked[0][1]
            admitted, counted_at = throttles.admit(found, rules, wait=turn == 0)
            if admitted:
                more = make_jobs(admitted, counted_at or now, rules, acquire=acquire)
                _write_claim(holder, more, counted_at or now, acquire)
                jobs += more
            if len(admitted) == len(picked):
                break
    return jobs


# Of `oldest` place n of a claim is background work's when its share of n places is a whole one more than that of n - 1;
# the lot says where the first one lies. One text without spare blanks: the driver reads longer ones anew each time.
_PICK = one_line(f"""
    WITH closed AS MATERIALIZED ({CLOSED}), let_through AS MATERIALIZED (
        SELECT head.* FROM (SELECT {CANDIDATES_PER_JOB} AS per_room WHERE {throttles.THROTTLED}) throttled
        CROSS JOIN LATERAL recourse_let_through(%(applications)s::uuid[], %(environments)s::uuid[],
            %(handlers)s::text[], ARRAY(SELECT environment_id FROM closed), %(reach)s, throttled.per_room,
            %(sends_to)s::text[]) head
    ), oldest AS MATERIALIZED (
        SELECT kind.is_background, numbered.* FROM (VALUES (false), (true)) kind(is_background)
        CROSS JOIN LATERAL (
            SELECT stage_id, available_at, row_number() OVER (ORDER BY available_at, stage_id) AS number FROM (
                SELECT head.stage_id, head.available_at
                FROM unnest(%(applications)s::uuid[], %(environments)s::uuid[], %(handlers)s::text[])
                    AS queue(application_id, environment_id, handler)
                CROSS JOIN (VALUES (false), (true)) line(is_start)
                CROSS JOIN LATERAL (
                    SELECT stage_id, available_at FROM pipelines_queueentry
                    WHERE application_id = queue.application_id AND environment_id = queue.environment_id
                        AND handler = queue.handler AND throttle = '{NO_THROTTLE}'
                        AND is_background = kind.is_background
                        AND is_start = line.is_start AND available_at <= recourse_now()
                        AND (recipients IS NULL OR recipients && %(sends_to)s::text[])
                    ORDER BY available_at, stage_id LIMIT %(reach)s
                ) head
                WHERE NOT (line.is_start AND queue.environment_id IN (SELECT environment_id FROM closed))
                UNION ALL
                SELECT stage_id, available_at FROM let_through WHERE is_background = kind.is_background
                ORDER BY available_at, stage_id LIMIT %(reach)s
            ) head
        ) numbered
    ), share AS MATERIALIZED (
        SELECT coalesce(%(least)s::float + (%(most)s::float - %(least)s::float) * least(1, greatest(0,
            extract(epoch FROM recourse_now() - min(available_at))::float / %(aging)s::float)), 0) AS part
        FROM oldest WHERE is_background
    ), heads AS MATERIALIZED (
        SELECT stage_id, CASE WHEN is_background THEN ceil((number - %(lot)s::float) / part)
            ELSE floor((number - 1 + %(lot)s::float) / (1 - part)) + 1 END AS place
        FROM oldest CROSS JOIN share ORDER BY place LIMIT %(reach)s
    )
    SELECT {", ".join(f"s.{column.strip()}" for column in STAGE_COLUMNS.split(","))},
        s.input, r.name, r.workspace_id, r.deadline_at, r.traceparent, e.slug, p.slug, r.recovery::text,
        r.limits::text, r.baseline::text, s.recipients::text, q.throttle,
        r.release_digest IN ('', v.text_digest) AND r.baseline = '[]', v.source_digest, recourse_now()
    FROM heads
    JOIN pipelines_queueentry q ON q.stage_id = heads.stage_id
    JOIN pipelines_stage s ON s.id = q.stage_id
    JOIN pipelines_run r ON r.id = s.run_id
    JOIN pipelines_environment e ON e.id = r.environment_id
    JOIN pipelines_release v ON v.id = r.release_id
    LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id
    WHERE s.state IN ('ready', 'retry_scheduled') AND NOT r.paused
        AND r.status NOT IN ('completed', 'failed', 'cancelled')
        AND (r.deadline_at IS NULL OR r.deadline_at > recourse_now())
        AND EXISTS (SELECT FROM pipelines_workersession w WHERE w.id = %(session)s AND w.state = 'active')
        AND (%(key)s::uuid IS NULL OR EXISTS (SELECT FROM pipelines_apikey k WHERE k.id = %(key)s
            AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > recourse_now())))
    ORDER BY heads.place
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF q, s, r SKIP LOCKED
""")


def _pick(holder: Holder, queues: Sequence[Queue], limit: int) -> list[tuple[Picked, datetime]]:
    """Up to `limit` stages that may be handed out as far as the queue tells, locked with their runs; each with the time
    by the database's clock."""
    rows = query(
        _PICK,
        {
            **in_columns(queues),
            "least": LEAST_SHARE,
            "most": MOST_SHARE,
            "aging": AGING_SECONDS,
            "lot": random(),  # noqa: S311
            "reach": limit * CANDIDATES_PER_JOB,
            "limit": limit,
            "session": holder.session_id,
            "key": holder.key_id,
            "sends_to": list(holder.sends_to),
        },
    )
    return [(_picked(row), row[-1]) for row in rows]


def hand_on(holder: Holder, moves: Moves, *, served: Callable[[Queue], bool], limit: int) -> Callable[[], list[Job]]:
    """Gives stages that became ready in this very transaction to the session that made them so, without the queue.

    ready → running, as `claim` with `acquire` would, for stages whose queue is `served`, `limit` at the most; the rest
    goes to the queue, and so does what waits for the slot or the rate of a policy, or names its recipients. A run that
    was begun is so brought to its end before others are. The moves are saved by the caller; what is returned then makes
    the attempts and gives their jobs.
    """
    ready = [stage for stage in moves.newly_ready() if served(moves.queue_of(stage))]
    free = throttles.unthrottled(moves, ready, holder.session_id)
    ready = [stage for stage in ready if stage.id in free][:limit]
    if not ready:
        return list
    attempt_ids = {stage.id: new_id() for stage in ready}
    for stage in ready:
        data = {"number": stage.attempt_number + 1, "worker": holder.worker}
        moves.stage(
            stage,
            "hand_on",
            data=data,
            attempt_id=attempt_ids[stage.id],
            attempt_number=stage.attempt_number + 1,
            started_at=stage.started_at or moves.now,
        )

    def make() -> list[Job]:
        rows = query(
            "SELECT s.id, s.input, r.traceparent, e.slug, p.slug, r.recovery::text, r.limits::text, r.baseline::text,"
            " v.source_digest FROM pipelines_stage s"
            " JOIN pipelines_run r ON r.id = s.run_id JOIN pipelines_environment e ON e.id = r.environment_id"
            " JOIN pipelines_release v ON v.id = r.release_id"
            " LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE s.id = ANY(%s)",
            [list(attempt_ids)],
        )
        picked = []
        for stage_id, text, traceparent, environment, pipeline, recovery, limits, baseline, source_digest in rows:
            stage = moves.stages[stage_id]
            run = moves.runs[stage.run_id]
            picked.append(
                Picked(
                    stage=stage,
                    attempt_id=attempt_ids[stage_id],
                    number=stage.attempt_number,
                    workspace_id=run.workspace_id,
                    run_name=run.name,
                    deadline_at=run.deadline_at,
                    input=text,
                    traceparent=traceparent,
                    environment=environment,
                    pipeline=pipeline,
                    recovery=recovery,
                    limits=limits,
                    baseline=baseline,
                    source_digest=source_digest,
                )
            )
        rules = policies.for_claims({item.workspace_id for item in picked})
        jobs = make_jobs(picked, moves.now, rules, acquire=True)
        insert_attempts(jobs, holder.session_id, holder.worker, moves.now)
        return jobs

    return make


_NEXT_DUE = one_line(f"""
    WITH closed AS MATERIALIZED ({CLOSED})
    SELECT least(min(CASE WHEN line.is_start AND closed.environment_id IS NOT NULL
            THEN greatest(head.seconds, %(closed)s::float) ELSE head.seconds END),
        CASE WHEN {throttles.THROTTLED} THEN recourse_throttled_due(%(applications)s::uuid[], %(environments)s::uuid[],
            %(handlers)s::text[], ARRAY(SELECT environment_id FROM closed), %(closed)s::float,
            %(sends_to)s::text[]) END)
    FROM unnest(%(applications)s::uuid[], %(environments)s::uuid[], %(handlers)s::text[])
        AS queue(application_id, environment_id, handler)
    CROSS JOIN (VALUES (false, false), (false, true), (true, false), (true, true)) line(is_background, is_start)
    LEFT JOIN closed ON closed.environment_id = queue.environment_id
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM available_at - recourse_now())::float AS seconds FROM pipelines_queueentry
        WHERE application_id = queue.application_id AND environment_id = queue.environment_id
            AND handler = queue.handler AND throttle = '{NO_THROTTLE}' AND is_background = line.is_background
            AND is_start = line.is_start AND (recipients IS NULL OR recipients && %(sends_to)s::text[])
        ORDER BY available_at, stage_id LIMIT 1
    ) head
""")


def next_due(queues: Sequence[Queue], sends_to: Sequence[str] = ()) -> float | None:
    """Seconds until the queues' next stage is due for who sends to those recipients; 0 or less when one is due now,
    None when none is in sight.

    What a blackout holds is looked for again a little later: its end need not be announced. What waits for a policy is
    due when that has room by the clock, and looked for a little later at the latest.
    """
    if not queues:
        return None
    return query(
        _NEXT_DUE,
        {**in_columns(queues), "closed": CLOSED_SECONDS, "sends_to": list(sends_to)},
    )[0][0]


def in_columns(queues: Sequence[Queue]) -> dict[str, list[Any]]:
    """Queues as the arrays that statements take."""
    return {
        "applications": [queue.application_id for queue in queues],
        "environments": [queue.environment_id for queue in queues],
        "handlers": [queue.handler for queue in queues],
    }


def acquire(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID) -> Lease | None:
    """Takes the lease of a dispatched attempt: dispatched → running. None when there is none for the holder.

    Asked again by the session that holds it: acquired. Everybody else is told why not; who does not send to whom the
    attempt goes, by a refusal: `recipient_not_allowed`. Serves P4, P50, R40.
    """
    with transaction.atomic():
        found = query(
            "SELECT run_id, recipient::text FROM pipelines_attempt WHERE id = %s AND stage_id = %s",
            [execution_id, stage_id],
        )
        moves = Moves.lock([found[0][0]] if found else [], owner=holder.owner)
        run = next(iter(moves.runs.values()), None)
        if run is None:
            return None
        attempt = moves.attempts("id = %s", execution_id)[0]
        stage = moves.stages[stage_id]
        lease = Lease(stage_id, execution_id, False, attempt.number, commands=holder.commands())
        if run.is_terminal or run.is_past_deadline(moves.now):
            lease.reason = "run_terminal"
        elif attempt.state == "running":
            if attempt.expires_at <= moves.now:
                lease.reason = "lease_expired"
            elif attempt.session_id == holder.session_id:
                lease.acquired, lease.expires_at = True, attempt.expires_at
            else:
                lease.reason = "lease_held"
        elif attempt.state != "dispatched":
            if run.paused and attempt.state == "released":
                lease.reason = "run_paused"
            else:
                lease.reason = "stale_execution" if stage.state in ("dispatched", "running") else "stage_not_active"
        elif attempt.expires_at <= moves.now:
            lease.reason = "lease_expired"
        else:
            recipient = json.loads(found[0][1]) if found[0][1] else None
            recipients.require_sender(stage.handler, recipient, holder.sends_to)
            lease.acquired = True
            lease.expires_at = moves.now + timedelta(seconds=settings.RECOURSE_LEASE_SECONDS)
            moves.acquire(attempt, stage, holder.session_id, holder.worker, lease.expires_at)
            moves.settle()
            moves.save()
    return lease


def renew(holder: Holder, wanted: Sequence[tuple[uuid.UUID, uuid.UUID]]) -> list[Lease]:
    """Extends the leases (stage id, execution id) that the holder's session still has; tells why not for the others.

    Never revives an expired lease. Rows that another transaction is changing keep their old end until the next call.
    Commands say what the worker should do: cancel what it lost, release what is paused.
    """
    if not wanted:
        return []
    ids = [execution_id for _, execution_id in wanted]
    with transaction.atomic():
        query(
            """
            WITH mine AS (
                SELECT id FROM pipelines_attempt
                WHERE id = ANY(%s) AND state = 'running' AND session_id = %s AND expires_at > recourse_now()
                ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
            )
            UPDATE pipelines_attempt a SET expires_at = recourse_now() + make_interval(secs => %s)
            FROM mine WHERE a.id = mine.id RETURNING a.id
            """,
            [ids, holder.session_id, settings.RECOURSE_LEASE_SECONDS],
        )
        known = {
            row[0]: row[1:]
            for row in query(
                """
                SELECT a.id, a.stage_id, a.number, a.state, a.session_id, a.expires_at, a.expires_at > recourse_now(),
                    r.application_id, r.environment_id, r.status, r.paused, s.state
                FROM pipelines_attempt a JOIN pipelines_run r ON r.id = a.run_id
                JOIN pipelines_stage s ON s.id = a.stage_id WHERE a.id = ANY(%s)
                """,
                [ids],
            )
        }
    return [_renewed(holder, stage_id, execution_id, known.get(execution_id)) for stage_id, execution_id in wanted]


def release(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, left: postures.Left | None = None
) -> str | None:
    """Gives a running stage back (pause, drain): attempt released, stage ready, nothing counted; `left` is kept.

    A stage of effect mode `external` with an effect whose outcome is not known waits for reconciliation instead.
    Returns the stage's state; None when the holder's application has no such attempt. Refused with `stale_execution`
    when the lease is not the holder's. The same again changes nothing.
    """
    from pipelines.errors import Refusal

    with transaction.atomic():
        found = query("SELECT run_id FROM pipelines_attempt WHERE id = %s AND stage_id = %s", [execution_id, stage_id])
        moves = Moves.lock([found[0][0]] if found else [], actor=holder.worker, owner=holder.owner)
        run = next(iter(moves.runs.values()), None)
        if run is None:
            return None
        attempt = moves.attempts("id = %s", execution_id)[0]
        stage = moves.stages[stage_id]
        if attempt.state == "released" and attempt.session_id == holder.session_id:
            return stage.state
        if why_not_held(holder, moves, attempt):
            raise Refusal("stale_execution", "this session does not hold the lease of that attempt")
        if left is not None:
            postures.leave(moves, stage, attempt, left)
        outcomes.give_back(moves, stage, attempt)
        moves.settle()
        moves.save()
        return stage.state


def why_not_held(holder: Holder, moves: Moves, attempt: AttemptRow) -> str:
    """Why the holder's session may not write for the attempt any more; blank while it holds the live lease."""
    if attempt.state != "running":
        return f"attempt {attempt.state}"
    if moves.runs[attempt.run_id].is_terminal:
        return "run ended"
    if attempt.session_id != holder.session_id:
        return "lease_not_owned"
    return "lease_expired" if attempt.expires_at <= moves.now else ""


def may_touch(holder: Holder, application_id: uuid.UUID, environment_id: uuid.UUID) -> bool:
    """Whether a session may write to a run: its own application and environment; the console's executor to any."""
    return holder.application_id is None or (
        holder.application_id == application_id and holder.environment_id == environment_id
    )


def _picked(row: tuple[Any, ...]) -> Picked:
    width = len(STAGE_COLUMNS.split(","))
    stage = read_stage(row[:width])
    text, run_name, workspace_id, deadline_at, traceparent, environment, pipeline, recovery = row[width : width + 8]
    limits, baseline, named, line, is_as_pinned, source_digest = row[width + 8 : width + 14]
    return Picked(
        stage=stage,
        attempt_id=new_id(),
        number=stage.attempt_number + 1,
        workspace_id=workspace_id,
        run_name=run_name,
        deadline_at=deadline_at,
        input=text,
        traceparent=traceparent,
        environment=environment,
        pipeline=pipeline,
        recovery=recovery,
        limits=limits,
        baseline=baseline,
        recipients=named,
        line=line,
        is_as_pinned=is_as_pinned,
        source_digest=source_digest,
    )


def _write_claim(holder: Holder, jobs: Sequence[Job], now: datetime, acquire: bool) -> None:
    insert_attempts(jobs, holder.session_id, holder.worker, now)
    to = StageState.RUNNING if acquire else StageState.DISPATCHED
    started = query(
        """
        WITH item AS (
            SELECT * FROM unnest(%(stages)s::uuid[], %(runs)s::uuid[]) AS r(stage_id, run_id)
        ), taken AS (
            DELETE FROM pipelines_queueentry WHERE stage_id = ANY(%(stages)s::uuid[])
        ), stage AS (
            UPDATE pipelines_stage s SET state = %(state)s, attempt_number = s.attempt_number + 1,
                started_at = coalesce(s.started_at, %(started)s::timestamptz)
            FROM item WHERE s.id = item.stage_id
        ), begun AS (
            -- The run has begun: what else is ready in it waits for no blackout's end. Fenced from run to entry, and
            -- found before it is written: statistics of a queue that was empty a minute ago would have it walked
            -- through once for each of its entries.
            UPDATE pipelines_queueentry SET is_start = false WHERE stage_id = ANY(ARRAY(
                SELECT q.stage_id
                FROM (SELECT r.id FROM item JOIN pipelines_run r ON r.id = item.run_id
                    WHERE r.started_at IS NULL OFFSET 0) fresh
                CROSS JOIN LATERAL (SELECT s.id FROM pipelines_stage s
                    WHERE s.run_id = fresh.id AND s.state = 'ready' AND s.id <> ALL(%(stages)s::uuid[]) OFFSET 0) s
                CROSS JOIN LATERAL (SELECT e.stage_id FROM pipelines_queueentry e
                    WHERE e.stage_id = s.id AND e.is_start FOR NO KEY UPDATE SKIP LOCKED) q
            ))
        )
        UPDATE pipelines_run r SET updated_at = %(now)s, started_at = coalesce(r.started_at, %(now)s),
            status = CASE WHEN r.status = 'blocked' THEN 'blocked' ELSE 'running' END
        FROM (SELECT DISTINCT run_id FROM item) AS picked, pipelines_run old
        WHERE r.id = picked.run_id AND old.id = r.id
            AND (r.status NOT IN ('running', 'blocked') OR r.started_at IS NULL)
        RETURNING r.id, old.status, r.status
        """,
        {
            "stages": [job.stage.id for job in jobs],
            "runs": [job.run_id for job in jobs],
            "state": to,
            "now": now,
            "started": now if acquire else None,
        },
    )
    events = [
        event_row(run_id, f"run.{status}", origin, status) for run_id, origin, status in started if origin != status
    ]
    # handed out and acquired in one transaction is one change, and one event
    kind = "stage.acquire" if acquire else "stage.dispatch"
    for job in jobs:
        data = {"number": job.number, "worker": holder.worker}
        stage = job.stage
        events.append(event_row(job.run_id, kind, stage.state, to, stage.id, job.attempt_id, holder.worker, data=data))
    insert_events(events)


def _renewed(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, row: tuple[Any, ...] | None) -> Lease:
    lease = Lease(stage_id, execution_id, False, commands=holder.commands())
    if row is None or row[0] != stage_id or not may_touch(holder, row[6], row[7]):
        lease.reason = "stale_execution"
        return lease
    _, lease.attempt, state, session_id, expires_at, live, _, _, run_status, paused, stage_state = row
    target = {"stageId": str(stage_id), "executionId": str(execution_id)}
    if state == "running" and session_id == holder.session_id and live:
        lease.acquired, lease.expires_at = True, expires_at
        if paused:
            lease.commands.append({"command": "pause", **target})
        return lease
    lease.commands.append({"command": "cancel", **target})
    if run_status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED):
        lease.reason = "run_terminal"
    elif session_id != holder.session_id:
        lease.reason = "lease_not_owned"
    elif state == "running":
        lease.reason = "lease_expired"
    elif stage_state in (StageState.DISPATCHED, StageState.RUNNING):
        lease.reason = "stale_execution"
    else:
        lease.reason = "lease_expired" if state == "lost" else "stage_not_active"
    return lease
