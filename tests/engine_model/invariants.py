"""What must always hold (model.md §4), asked of the database in SQL. Each query lists the rows that break one of them.

    assert_invariants()

Looks at every run there is, whatever made it, so any test may end with it. Two rows of the table are the database's own
work and are proven by name in test_guards.py: I6 and I7 (triggers).
"""

from __future__ import annotations

from pipelines.sql import query

ACTIVE = "('dispatched', 'running')"
TERMINAL_RUN = "('completed', 'failed', 'cancelled')"

INVARIANTS: dict[str, str] = {
    "I1 attempt numbers rise by one from 1, and the stage knows the last": """
        SELECT s.id, s.attempt_number, count(a.id), max(a.number)
        FROM pipelines_stage s LEFT JOIN pipelines_attempt a ON a.stage_id = s.id GROUP BY s.id
        HAVING s.attempt_number <> count(a.id) OR s.attempt_number <> coalesce(max(a.number), 0)
            OR count(DISTINCT a.number) <> count(a.id)
    """,
    "I1 a later attempt belongs to no earlier epoch": """
        SELECT a.id FROM pipelines_attempt a JOIN pipelines_attempt b ON b.stage_id = a.stage_id
        WHERE b.number > a.number AND b.epoch < a.epoch
    """,
    "N9 a stage that waits for runs awaits one at the least that has not ended, and no other stage awaits any": """
        SELECT s.id, s.state, array_agg(c.status) FROM pipelines_childrun l
        JOIN pipelines_stage s ON s.id = l.stage_id JOIN pipelines_run c ON c.id = l.run_id WHERE l.awaited
        GROUP BY s.id HAVING s.state <> 'waiting' OR bool_and(c.status IN ('completed', 'failed', 'cancelled')
            AND NOT EXISTS (SELECT FROM recovery_runretry t WHERE t.run_id = c.id AND t.state = 'due'))
    """,
    "N1, I10 a retry of a run by itself that was done has an operation, and its run where it is made anew": """
        SELECT t.id, t.mode, t.operations FROM recovery_runretry t WHERE t.state = 'done' AND (t.operations = '[]'
            OR (t.mode = 'new_run') <> EXISTS (SELECT FROM pipelines_run r WHERE r.id = t.made
                AND r.recovered_from_id = t.run_id))
    """,
    "F73 what was to end with a parent that has ended has ended": """
        SELECT l.id, c.status FROM pipelines_childrun l JOIN pipelines_run c ON c.id = l.run_id WHERE l.ending
    """,
    "F129 whose end concerns others says so: every parent, and every child with the forks of it": """
        SELECT l.id FROM pipelines_childrun l JOIN pipelines_run p ON p.id = l.parent_id
        JOIN pipelines_run c ON c.id = l.run_id WHERE NOT p.has_children OR c.parent_id IS NULL OR c.depth = 0
    """,
    "I2 an active stage, or an awaited import, has exactly one active attempt, its last; no other stage has any": f"""
        SELECT s.id, s.state, array_agg(a.state || a.number) FROM pipelines_stage s
        LEFT JOIN pipelines_attempt a ON a.stage_id = s.id AND a.state IN {ACTIVE} GROUP BY s.id
        HAVING (s.state IN {ACTIVE} OR (s.mode = 'import' AND s.state = 'waiting' AND NOT EXISTS
                (SELECT FROM pipelines_gate g WHERE g.stage_id = s.id AND g.state = 'open'))) <> (count(a.id) = 1)
            OR count(a.id) > 1
            OR (count(a.id) = 1 AND (max(a.number) <> s.attempt_number
                OR max(a.state) <> CASE WHEN s.mode = 'import' THEN 'dispatched' ELSE s.state END))
    """,
    "I3 a running attempt has a session, and times that go with its state": """
        SELECT id FROM pipelines_attempt
        WHERE (state = 'running' AND (session_id IS NULL OR started_at IS NULL))
            OR (state IN ('dispatched', 'running')) <> (finished_at IS NULL)
    """,
    "I4 a terminal run has no active stage, lease, dispatch, open gate or queue entry": f"""
        SELECT r.id, s.name, s.state FROM pipelines_run r JOIN pipelines_stage s ON s.run_id = r.id
        WHERE r.status IN {TERMINAL_RUN} AND (
            s.state NOT IN ('pending', 'completed', 'failed', 'skipped', 'cancelled')
            OR (r.status = 'cancelled' AND s.state = 'pending')
            OR EXISTS (SELECT FROM pipelines_attempt a WHERE a.stage_id = s.id AND a.state IN {ACTIVE})
            OR EXISTS (SELECT FROM pipelines_gate g WHERE g.stage_id = s.id AND g.state = 'open')
            OR EXISTS (SELECT FROM pipelines_queueentry q WHERE q.stage_id = s.id))
    """,
    "I4 a run that has ended says when, one that goes on does not": f"""
        SELECT id FROM pipelines_run WHERE (status IN {TERMINAL_RUN}) <> (finished_at IS NOT NULL)
            OR (status IN {TERMINAL_RUN} AND paused)
            OR (status IN ('pausing', 'paused')) <> paused
    """,
    "I5 a stage is where its last event took it, and its events are a chain": """
        SELECT * FROM (
            SELECT s.id, s.state, e.kind, e.from_state, e.to_state,
                lag(e.to_state, 1, CASE WHEN e.from_state = '' THEN '' ELSE 'pending' END)
                    OVER (PARTITION BY s.id ORDER BY e.id) AS before,
                lead(e.id) OVER (PARTITION BY s.id ORDER BY e.id) IS NULL AS is_last
            FROM pipelines_stage s JOIN pipelines_event e ON e.stage = s.id
            WHERE e.kind LIKE 'stage.%%' AND e.to_state <> ''
        ) told WHERE before <> from_state OR (is_last AND to_state <> state)
    """,
    "I5 a stage without an event is as it was made": """
        SELECT s.id, s.state FROM pipelines_stage s WHERE s.state <> 'pending'
            AND NOT EXISTS (SELECT FROM pipelines_event e WHERE e.stage = s.id AND e.to_state <> '')
    """,
    "I5 a run is where its last event took it, and its events are a chain": """
        SELECT * FROM (
            SELECT r.id, r.status, e.kind, e.from_state, e.to_state,
                lag(e.to_state, 1, '') OVER (PARTITION BY r.id ORDER BY e.id) AS before,
                lead(e.id) OVER (PARTITION BY r.id ORDER BY e.id) IS NULL AS is_last
            FROM pipelines_run r JOIN pipelines_event e ON e.run_id = r.id
            WHERE e.kind LIKE 'run.%%' AND e.to_state <> ''
        ) told WHERE before <> from_state OR (is_last AND to_state <> status)
    """,
    "I5 an attempt's beginning and end are told": f"""
        SELECT a.id, a.number, a.state FROM pipelines_attempt a
        WHERE NOT EXISTS (SELECT FROM pipelines_event e WHERE e.run_id = a.run_id AND e.attempt = a.id
                AND e.kind IN ('stage.dispatch', 'stage.acquire', 'stage.hand_on', 'stage.begin_import'))
            OR (a.state NOT IN {ACTIVE} AND 1 <> (SELECT count(*) FROM pipelines_event e WHERE e.run_id = a.run_id
                AND e.attempt = a.id AND e.data ->> 'is' = a.state))
            OR (a.state IN {ACTIVE} AND EXISTS (SELECT FROM pipelines_event e WHERE e.run_id = a.run_id
                AND e.attempt = a.id AND e.data ? 'is'))
    """,
    "I5 a gate's opening and end are told": """
        SELECT g.id, g.state FROM pipelines_gate g
        WHERE 1 <> (SELECT count(*) FROM pipelines_event e WHERE e.run_id = g.run_id AND e.kind = 'gate.open'
                AND e.data ->> 'gate' = g.id::text)
            OR (g.state <> 'open' AND 1 <> (SELECT count(*) FROM pipelines_event e WHERE e.run_id = g.run_id
                AND e.to_state = g.state AND e.data ->> 'gate' = g.id::text))
    """,
    "I5 an effect is where its last event took it, and its events are a chain": """
        SELECT * FROM (
            SELECT f.id, f.state, e.kind, e.from_state, e.to_state,
                lag(e.to_state, 1, '') OVER (PARTITION BY f.id ORDER BY e.id) AS before,
                lead(e.id) OVER (PARTITION BY f.id ORDER BY e.id) IS NULL AS is_last
            FROM pipelines_effect f LEFT JOIN pipelines_event e
                ON e.run_id = f.run_id AND e.kind LIKE 'effect.%%' AND e.data ->> 'effect' = f.id::text
        ) told WHERE before IS DISTINCT FROM from_state OR (is_last AND to_state <> state)
    """,
    "an effect is only declared while its attempt runs": """
        SELECT f.id, a.state FROM pipelines_effect f JOIN pipelines_attempt a ON a.id = f.attempt
        WHERE f.state = 'declared' AND a.state <> 'running'
    """,
    "R4 a stage that acts outside is never tried again by itself while an effect of it is, or may be, open": """
        SELECT f.id, f.state, e.kind FROM pipelines_effect f JOIN pipelines_stage s ON s.id = f.stage_id
        JOIN pipelines_event e ON e.run_id = f.run_id AND e.attempt = f.attempt AND e.data ? 'is'
        WHERE s.effect_mode = 'external' AND f.effect_class <> 'internal_state'
            AND e.to_state IN ('ready', 'retry_scheduled')
            AND (f.state NOT IN ('committed', 'absent') OR e.data ->> 'is' IN ('lost', 'timed_out'))
    """,
    "R4 without the intent protocol, or with an intent, a lost attempt of a stage that acts outside is a question": """
        SELECT a.id, e.kind FROM pipelines_attempt a JOIN pipelines_stage s ON s.id = a.stage_id
        JOIN pipelines_event e ON e.run_id = a.run_id AND e.attempt = a.id AND e.data ? 'is'
        WHERE s.effect_mode = 'external' AND a.state IN ('lost', 'timed_out')
            AND (s.effect_protocol <> 'intent' OR EXISTS (SELECT FROM pipelines_effect f WHERE f.attempt = a.id
                AND f.effect_class <> 'internal_state')) <> (e.to_state = 'needs_reconciliation')
    """,
    "I8 nothing leaves cancelled or deadline_exceeded": """
        SELECT e.run_id FROM pipelines_event e
        WHERE e.kind LIKE 'run.%%' AND e.from_state = 'cancelled'
        UNION ALL
        SELECT e.run_id FROM pipelines_event e JOIN pipelines_event b ON b.run_id = e.run_id AND b.id > e.id
        WHERE e.kind = 'run.failed' AND e.reason LIKE 'not finished by %%' AND b.to_state <> ''
            AND b.kind NOT LIKE 'dead_letter.%%' AND b.kind NOT LIKE 'effect.%%'
    """,
    "I9 what was rejected stays: its stage never moves on in that epoch": """
        SELECT g.id, s.state FROM pipelines_gate g JOIN pipelines_stage s ON s.id = g.stage_id
        WHERE g.state = 'rejected' AND (s.epoch <> g.epoch OR s.state NOT IN ('failed', 'cancelled'))
    """,
    "a gate is decided by as many as it needs, and by no application where a person is required": """
        SELECT g.id, g.state, g.count, array_agg(d.approved) FROM pipelines_gate g
        LEFT JOIN pipelines_gatedecision d ON d.gate_id = g.id GROUP BY g.id
        HAVING (g.state = 'approved') > (count(d.id) FILTER (WHERE d.approved) >= g.count)
            OR (g.state = 'rejected') <> (count(d.id) FILTER (WHERE NOT d.approved) = 1)
            OR count(d.id) FILTER (WHERE NOT d.approved) > 1
            OR (g.require_person AND count(d.application_id) > 0)
    """,
    "a waiting stage has one open gate, of its epoch, or is an awaited import, or awaits runs; no other has any": f"""
        SELECT s.id, s.state, count(g.id) FROM pipelines_stage s
        LEFT JOIN pipelines_gate g ON g.stage_id = s.id AND g.state = 'open' GROUP BY s.id
        HAVING (s.state = 'waiting' AND NOT (s.mode = 'import' AND EXISTS (SELECT FROM pipelines_attempt a
                WHERE a.stage_id = s.id AND a.state IN {ACTIVE})) AND NOT EXISTS (SELECT FROM pipelines_childrun l
                WHERE l.stage_id = s.id AND l.awaited)) <> (count(g.id) = 1) OR count(g.id) > 1
            OR (count(g.id) = 1 AND max(g.epoch) <> s.epoch)
    """,
    "I10, I11 every fork has the id that one operation reserved, with a verdict, and says so": """
        SELECT r.id, o.id, o.state FROM pipelines_run r LEFT JOIN recovery_operation o ON o.target = r.id
        WHERE (r.recovered_from_id IS NOT NULL OR r.recovery IS NOT NULL)
            AND (o.id IS NULL OR o.state NOT IN ('dispatched', 'succeeded', 'failed')
                OR o.run_id IS DISTINCT FROM r.recovered_from_id OR o.disposition = 'recovery_denied'
                OR r.recovery ->> 'operation_id' IS DISTINCT FROM o.id::text)
    """,
    "I10 what was dispatched is there": """
        SELECT o.id, o.target FROM recovery_operation o WHERE o.state IN ('dispatched', 'succeeded')
            AND o.kind IN ('rerun', 'replay') AND NOT EXISTS (SELECT FROM pipelines_run r WHERE r.id = o.target)
    """,
    "I15 every failure that the machine judged says why": """
        SELECT a.id, a.state FROM pipelines_attempt a JOIN pipelines_stage s ON s.id = a.stage_id
        WHERE (a.state = 'failed' OR (a.state = 'timed_out' AND s.effect_mode <> 'external'))
            AND coalesce(a.decision ->> 'explanation', '') = ''
        UNION ALL
        SELECT a.id, a.state FROM pipelines_attempt a
        WHERE a.state IN ('lost', 'undelivered', 'fenced', 'released', 'timed_out') AND a.cause = ''
        UNION ALL
        SELECT e.stage, e.kind FROM pipelines_event e WHERE e.reason = '' AND e.kind IN ('stage.schedule_retry',
            'stage.fail', 'stage.recover', 'stage.undeliver', 'stage.give_up_recovery', 'stage.give_up_delivery',
            'stage.doubt')
    """,
    "only what may be claimed stands in the queue, as its stage says": """
        SELECT s.id, s.state, s.available_at, q.available_at FROM pipelines_queueentry q
        LEFT JOIN pipelines_stage s ON s.id = q.stage_id LEFT JOIN pipelines_run r ON r.id = s.run_id
        WHERE s.state IS NULL OR s.state NOT IN ('ready', 'retry_scheduled') OR r.paused
            OR (q.available_at, q.application_id, q.environment_id, q.handler)
                IS DISTINCT FROM (s.available_at, s.application_id, s.environment_id, s.handler)
    """,
    "R25 of what may be claimed, as much stands in the queue as the run's concurrency leaves room for": """
        SELECT r.id, told.claimable, told.active, told.queued FROM pipelines_run r CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE s.state IN ('ready', 'retry_scheduled')) AS claimable,
                count(*) FILTER (WHERE s.state IN ('dispatched', 'running')) AS active, count(q.stage_id) AS queued
            FROM pipelines_stage s LEFT JOIN pipelines_queueentry q ON q.stage_id = s.id WHERE s.run_id = r.id) told
        WHERE NOT r.paused AND r.changed IS NULL AND (told.active > (r.limits ->> 'concurrency')::int
            OR told.queued <> least(told.claimable, greatest(0, (r.limits ->> 'concurrency')::int - told.active)))
    """,
    "I14 what is charged and what is reserved together never exceed the limits of the run": """
        SELECT r.id, told.charged, told.bytes, told.reserved, kept.size FROM pipelines_run r
        CROSS JOIN LATERAL (SELECT coalesce(sum(size), 0) AS size FROM pipelines_artifact WHERE run_id = r.id) kept
        CROSS JOIN LATERAL (
            SELECT sum(begun.attempts) AS charged, sum(begun.bytes) AS bytes,
                count(*) FILTER (WHERE asks.now) AS reserved,
                sum(least(coalesce((s.options ->> 'max_output_bytes')::bigint, 262144),
                    (r.limits ->> 'output_bytes_per_stage')::bigint)) FILTER (WHERE asks.now) AS reserved_bytes,
                max(begun.attempts + asks.now::int) AS of_a_stage
            FROM pipelines_stage s
            CROSS JOIN LATERAL (SELECT s.state IN ('ready', 'retry_scheduled', 'dispatched') AS now) asks
            CROSS JOIN LATERAL (SELECT count(*) AS attempts, coalesce(sum(a.reserved), 0) AS bytes
                FROM pipelines_attempt a WHERE a.stage_id = s.id AND a.started_at IS NOT NULL) begun
            WHERE s.run_id = r.id) told
        WHERE told.charged + told.reserved > (r.limits ->> 'total_attempts')::bigint
            OR told.bytes + kept.size + coalesce(told.reserved_bytes, 0) > (r.limits ->> 'total_output_bytes')::bigint
            OR told.of_a_stage > (r.limits ->> 'attempts_per_stage')::bigint
    """,
    "the queue says whose work it is, and what waits while a blackout holds": """
        SELECT s.id, q.is_background, q.is_start FROM pipelines_queueentry q JOIN pipelines_stage s ON s.id = q.stage_id
        JOIN pipelines_run r ON r.id = s.run_id
        WHERE q.is_background <> (r.lane_id IS DISTINCT FROM r.trigger_id) OR (q.is_start AND r.through_blackout)
            OR (NOT q.is_start AND NOT r.through_blackout
                AND (r.started_at IS NULL OR s.state = 'retry_scheduled'))
    """,
    "the queue says for which policy a stage waits": """
        SELECT s.id, q.throttle FROM pipelines_queueentry q JOIN pipelines_stage s ON s.id = q.stage_id
        JOIN pipelines_run r ON r.id = s.run_id
        WHERE q.throttle <> recourse_throttle(r.workspace_id, r.environment_id, r.pipeline_id, s.name, s.handler)
            AND NOT EXISTS (SELECT FROM pipelines_policy p WHERE p.workspace_id = r.workspace_id
                AND p.kind IN ('rate', 'concurrency') AND (p.unlined_at IS NOT NULL OR p.created_at > r.created_at))
    """,
    "R40, R41 the queue says to whom a stage may go now": """
        SELECT s.id, q.recipients FROM pipelines_queueentry q JOIN pipelines_stage s ON s.id = q.stage_id
        WHERE q.recipients IS DISTINCT FROM recourse_recipients(s.id)
    """,
    "a held run begins nothing, and its deadline runs only if it was in before": f"""
        SELECT r.id, s.name, s.state FROM pipelines_run r JOIN pipelines_stage s ON s.run_id = r.id
        WHERE r.held AND (r.lane_id IS NULL OR (r.deadline_at IS NOT NULL AND r.deadline_seconds IS NOT NULL)
            OR r.status IN {TERMINAL_RUN} OR s.state NOT IN ('pending', 'skipped', 'completed', 'failed')
            OR ((r.deadline_at IS NOT NULL OR r.started_at IS NOT NULL OR s.state = 'failed') AND NOT EXISTS (
                SELECT FROM pipelines_event e WHERE e.run_id = r.id AND e.kind IN ('run.stand_in_lane', 'run.fork'))))
    """,
    "no lane has more runs in than its capacity": f"""
        SELECT l.id, l.capacity, count(*) FROM pipelines_lane l JOIN pipelines_run r ON r.lane_id = l.id
        WHERE NOT r.held AND r.status NOT IN {TERMINAL_RUN} GROUP BY l.id HAVING count(*) > l.capacity
    """,
    "nothing moves on before what it depends on, except by a person's skip": """
        SELECT s.id, s.name, s.state FROM pipelines_stage s
        WHERE (s.state IN ('ready', 'retry_scheduled') OR (s.state IN ('dispatched', 'running') AND NOT s.stale))
            AND EXISTS (
            SELECT FROM pipelines_stage d WHERE d.run_id = s.run_id AND d.position = ANY(s.depends_on)
                AND NOT (d.state IN ('completed', 'skipped') OR (d.state = 'failed' AND d.run_next_if_failed)))
    """,
    "nothing that may go on stays pending": f"""
        SELECT s.id, s.name FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id
        WHERE s.state = 'pending' AND NOT r.held AND r.status NOT IN {TERMINAL_RUN} AND NOT EXISTS (
            SELECT FROM pipelines_stage d WHERE d.run_id = s.run_id AND d.position = ANY(s.depends_on)
                AND NOT (d.state IN ('completed', 'skipped') OR (d.state = 'failed' AND d.run_next_if_failed)))
    """,
    "only a stage the machine gave up on has an open dead letter": """
        SELECT d.id, s.state FROM pipelines_deadletter d JOIN pipelines_stage s ON s.id = d.stage_id
        WHERE d.state IN ('open', 'acknowledged') AND (s.state <> 'failed' OR s.epoch <> d.epoch)
    """,
    "a run's checkpoints are numbered without a hole": """
        SELECT run_id, count(*), max(sequence) FROM pipelines_checkpoint GROUP BY run_id
        HAVING min(sequence) <> 1 OR max(sequence) <> count(*)
    """,
    "the newest checkpoint of a run says what its stages say": """
        SELECT r.id, newest.done, now.done FROM pipelines_run r
        CROSS JOIN LATERAL (SELECT c.payload::jsonb -> 'done' AS done FROM pipelines_checkpoint c
            WHERE c.run_id = r.id ORDER BY c.sequence DESC LIMIT 1) newest
        CROSS JOIN LATERAL (SELECT coalesce(jsonb_agg(jsonb_build_object('stage', s.name, 'state', s.state,
            'epoch', s.epoch, 'output', nullif(s.output_digest, '')) ORDER BY s.position), '[]') AS done
            FROM pipelines_stage s WHERE s.run_id = r.id AND (s.state IN ('completed', 'skipped')
            OR (s.state = 'failed' AND s.run_next_if_failed))) now
        WHERE newest.done <> now.done
    """,
    "counters are within their limits": """
        SELECT s.id, s.retry_count, s.recovery_count FROM pipelines_stage s
        LEFT JOIN pipelines_attempt a ON a.stage_id = s.id AND a.epoch = s.epoch GROUP BY s.id
        HAVING s.recovery_count > coalesce((s.options ->> 'max_recoveries')::int, 3)
            OR s.retry_count > coalesce(max((a.decision ->> 'max_retries')::int), 0)
    """,
}


def broken() -> dict[str, list[tuple[object, ...]]]:
    """The invariants that do not hold now, each with the rows that break it."""
    found = {name: query(sql, []) for name, sql in INVARIANTS.items()}
    return {name: rows for name, rows in found.items() if rows}


def assert_invariants() -> None:
    found = broken()
    assert not found, "\n".join(f"{name}: {rows}" for name, rows in found.items())
