"""The lines in which stages wait for policies of kind concurrency and rate: put right when policies change, and woken.

A stage gets its line when it enters the queue. When a policy is made, changed, paused or let rule again, what waits in
its workspace is put into the right lines once that has committed, and once more by the sweep, `SETTLED_SECONDS` later:
then what entered the queue by policies read before is there to be seen. Until then a stage may look for room in the
wrong line; how much is handed out is right all the while, since claims ask the policies themselves.

Entries that others hold are passed over: who holds them is a claim, which puts them right itself, or a move, which
writes them anew; where neither did, the sweep comes by again.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

import structlog
from django.db import DatabaseError, transaction

from pipelines import wake
from pipelines.models.runs import NO_THROTTLE
from pipelines.sql import execute, query
from pipelines.wake import Queue

log = structlog.get_logger(__name__)
BATCH = 1000  # entries looked at in one transaction
SETTLED_SECONDS = 10.0  # longer than anything that fills the queue takes from reading the policies to its commit


def wake_later(policy_ids: Collection[uuid.UUID]) -> None:
    """Once this transaction has committed: wakes who waits in the lines of these policies.

    Looked for after the commit, and not in it: who came meanwhile saw no room yet, and would be missed.
    """
    if policy_ids:
        wanted = sorted(policy_ids)
        transaction.on_commit(lambda: _wake_now(wanted), robust=True)


def put_right_later(workspace_id: uuid.UUID, policy_id: uuid.UUID) -> None:
    """Once this transaction, which changes the policy, has committed: puts what waits into the right lines, and wakes
    who waits in the policy's. What comes to nothing then, the sweep does."""
    execute("UPDATE pipelines_policy SET unlined_at = recourse_now() WHERE id = %s", [policy_id])

    def now() -> None:
        try:
            put_right(workspace_id)
            _wake_now([policy_id])
        except DatabaseError as error:
            log.warning("throttles.left_to_the_sweep", error=str(error).strip())

    transaction.on_commit(now, robust=True)


def sweep() -> int:
    """Looks once more at workspaces whose policies changed some seconds ago; returns how many entries changed lines."""
    total = 0
    for (workspace_id,) in query(
        "SELECT DISTINCT workspace_id FROM pipelines_policy"
        " WHERE unlined_at <= recourse_now() - make_interval(secs => %s)",
        [SETTLED_SECONDS],
    ):
        ((now,),) = query("SELECT recourse_now()")
        moved, left = put_right(workspace_id)
        total += moved
        if not left:
            execute(
                "UPDATE pipelines_policy SET unlined_at = NULL WHERE workspace_id = %s"
                " AND unlined_at <= %s - make_interval(secs => %s)",
                [workspace_id, now, SETTLED_SECONDS],
            )
    return total


def put_right(workspace_id: uuid.UUID) -> tuple[int, int]:
    """Gives every entry of the workspace the line that is right by now and wakes who waits there, a batch a
    transaction: how many changed, and how many were passed over because others hold them."""
    moved, left, after = 0, 0, NO_THROTTLE
    while True:
        with transaction.atomic():
            rows = query(
                """
                WITH entry AS MATERIALIZED (
                    SELECT q.stage_id, q.throttle, r.environment_id, r.pipeline_id, s.name, s.handler
                    FROM pipelines_queueentry q JOIN pipelines_stage s ON s.id = q.stage_id
                    JOIN pipelines_run r ON r.id = s.run_id
                    WHERE q.stage_id > %(after)s AND r.workspace_id = %(workspace)s AND q.application_id IN (
                        SELECT id FROM pipelines_application WHERE workspace_id = %(workspace)s)
                    ORDER BY q.stage_id LIMIT %(batch)s
                ), stage AS MATERIALIZED (
                    SELECT one.*, recourse_throttle(%(workspace)s, environment_id, pipeline_id, name, handler) AS line
                    FROM (SELECT DISTINCT environment_id, pipeline_id, name, handler FROM entry) one
                ), wrong AS MATERIALIZED (
                    SELECT entry.stage_id, stage.line FROM entry
                    JOIN stage ON stage.environment_id = entry.environment_id
                        AND stage.pipeline_id IS NOT DISTINCT FROM entry.pipeline_id AND stage.name = entry.name
                        AND stage.handler = entry.handler
                    WHERE entry.throttle <> stage.line
                ), mine AS MATERIALIZED (
                    SELECT q.stage_id FROM pipelines_queueentry q WHERE q.stage_id IN (SELECT stage_id FROM wrong)
                    FOR NO KEY UPDATE SKIP LOCKED
                ), moved AS (
                    UPDATE pipelines_queueentry q SET throttle = wrong.line FROM wrong
                    WHERE q.stage_id = wrong.stage_id AND q.stage_id IN (SELECT stage_id FROM mine)
                    RETURNING q.application_id, q.environment_id, q.handler
                )
                SELECT NULL::uuid, application_id, environment_id, handler, count(*) FROM moved GROUP BY 2, 3, 4
                UNION ALL
                (SELECT stage_id, NULL, NULL, NULL, (SELECT count(*) FROM wrong) FROM entry
                 WHERE (SELECT count(*) FROM entry) = %(batch)s ORDER BY stage_id DESC LIMIT 1)
                UNION ALL
                SELECT NULL, NULL, NULL, NULL, count(*) FROM wrong
                """,
                {"after": after, "workspace": workspace_id, "batch": BATCH},
            )
            queues = {Queue(*row[1:4]): row[4] for row in rows if row[1] is not None}
            wake.announce(queues)
        moved += sum(queues.values())
        left += rows[-1][4] - sum(queues.values())
        following = [row[0] for row in rows if row[0] is not None]
        if not following:
            return moved, left
        after = following[0]


def _wake_now(policy_ids: Collection[uuid.UUID]) -> None:
    """Walks from one queue to the next, so that a backlog costs no more than one entry of each."""
    rows = query(
        """
        WITH RECURSIVE queue AS (
            SELECT first.* FROM unnest(%s::uuid[]) policy(id) CROSS JOIN LATERAL (
                SELECT throttle, application_id, environment_id, handler FROM pipelines_queueentry
                WHERE throttle = policy.id AND throttle <> %s
                ORDER BY application_id, environment_id, handler LIMIT 1
            ) first
            UNION ALL
            SELECT following.* FROM queue CROSS JOIN LATERAL (
                SELECT throttle, application_id, environment_id, handler FROM pipelines_queueentry
                WHERE throttle = queue.throttle AND throttle <> %s
                    AND (application_id, environment_id, handler)
                        > (queue.application_id, queue.environment_id, queue.handler)
                ORDER BY application_id, environment_id, handler LIMIT 1
            ) following
        )
        SELECT application_id, environment_id, handler FROM queue
        """,
        [list(policy_ids), NO_THROTTLE, NO_THROTTLE],
    )
    wake.announce(Queue(*row) for row in rows)
