"""Handlers that no live worker has: work for them waits however long. Derived from what workers say, never stored.

A worker is live while it is active and was heard of within a lease's length. The console's own executor belongs to no
application and serves all of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass

from django.conf import settings

from pipelines.access import Actor
from pipelines.sql import EACH_QUEUE, planned

MOST_QUEUES = 200  # looked at for one list

_LIVE = """
    SELECT FROM pipelines_workersession w LEFT JOIN pipelines_application of_worker ON of_worker.id = w.application_id
    WHERE w.state = 'active' AND w.last_seen_at > recourse_now() - make_interval(secs => %(lease)s)
        AND (w.environment_id IS NULL OR w.environment_id = {environment}) AND {handler} = ANY(w.handlers)
        AND (w.application_id IS NULL OR {application})
"""


@dataclass(frozen=True, slots=True)
class Queue:
    """Stages of an application that are ready or due in an environment, and the handler that they wait for."""

    application: str
    environment: str
    handler: str


def lacking(
    handlers: Collection[str],
    *,
    workspace_id: uuid.UUID,
    environment_id: uuid.UUID,
    application_id: uuid.UUID | None = None,
) -> list[str]:
    """Which of the handlers no live worker has in the environment, in order; without an application, of no one's."""
    if not handlers:
        return []
    whose = (
        "of_worker.workspace_id = %(workspace)s AND (%(application)s::uuid IS NULL OR of_worker.id = %(application)s)"
    )
    live = _LIVE.format(environment="%(environment)s", handler="wanted.name", application=whose)
    rows = planned(
        f"SELECT wanted.name FROM unnest(%(handlers)s::text[]) wanted(name) WHERE NOT EXISTS ({live}) ORDER BY 1",  # noqa: S608 - our own text
        {
            "handlers": sorted(set(handlers)),
            "workspace": workspace_id,
            "environment": environment_id,
            "application": application_id,
            "lease": settings.RECOURSE_LEASE_SECONDS,
        },
    )
    return [name for (name,) in rows]


def queues(actor: Actor, most: int = 5) -> list[Queue]:
    """The first queues of the workspace that hold something and that no live worker serves.

    Walks the queue's index from one queue to the next, so that a backlog costs no more than a short one.
    """
    live = _LIVE.format(
        environment="queue.environment_id",
        handler="queue.handler",
        application="w.application_id = queue.application_id",
    )
    rows = planned(
        f"""
        WITH RECURSIVE queue AS (
            (SELECT first.* FROM pipelines_application a CROSS JOIN LATERAL (
                SELECT q.application_id, q.environment_id, q.handler FROM pipelines_queueentry q
                WHERE q.application_id = a.id ORDER BY q.application_id, q.environment_id, q.handler LIMIT 1
            ) first WHERE a.workspace_id = %(workspace)s LIMIT {MOST_QUEUES})
            UNION ALL
            SELECT following.* FROM queue CROSS JOIN LATERAL (
                SELECT q.application_id, q.environment_id, q.handler FROM pipelines_queueentry q
                WHERE q.application_id = queue.application_id
                    AND (q.environment_id, q.handler) > (queue.environment_id, queue.handler)
                ORDER BY q.application_id, q.environment_id, q.handler LIMIT 1
            ) following
        )
        SELECT a.name, e.slug, queue.handler FROM (SELECT * FROM queue LIMIT {MOST_QUEUES}) queue
        JOIN pipelines_application a ON a.id = queue.application_id
        JOIN pipelines_environment e ON e.id = queue.environment_id
        WHERE NOT EXISTS ({live}) ORDER BY e.rank DESC, a.name, queue.handler LIMIT %(most)s
        """,  # noqa: S608 - our own text
        {"workspace": actor.workspace_id, "lease": settings.RECOURSE_LEASE_SECONDS, "most": most},
    )
    return [Queue(*row) for row in rows]


def holding_places(most: int, looked_at: int) -> list[uuid.UUID]:
    """Runs, of every workspace, whose places in the queue are held by stages that no live worker may take, while
    another stage of theirs that one may take has none.

    Of each queue that nobody serves the oldest `looked_at` entries are looked at.
    """
    live = _LIVE.format(
        environment="queue.environment_id",
        handler="queue.handler",
        application="w.application_id = queue.application_id",
    )
    live_for_other = _LIVE.format(
        environment="r.environment_id", handler="other.handler", application="w.application_id = r.application_id"
    )
    rows = planned(
        f"""
        WITH RECURSIVE {EACH_QUEUE}
        SELECT DISTINCT r.id FROM queue CROSS JOIN LATERAL (
            SELECT q.stage_id FROM pipelines_queueentry q WHERE q.application_id = queue.application_id
                AND q.environment_id = queue.environment_id AND q.handler = queue.handler
            ORDER BY q.available_at LIMIT %(looked_at)s
        ) held JOIN pipelines_stage s ON s.id = held.stage_id JOIN pipelines_run r ON r.id = s.run_id
        WHERE NOT EXISTS ({live}) AND EXISTS (
            SELECT FROM pipelines_stage other WHERE other.run_id = r.id AND other.state IN ('ready', 'retry_scheduled')
                AND other.mode <> 'import' AND NOT EXISTS (
                    SELECT FROM pipelines_queueentry q WHERE q.stage_id = other.id)
                AND EXISTS ({live_for_other}))
        ORDER BY r.id LIMIT %(most)s
        """,  # noqa: S608 - our own text
        {"lease": settings.RECOURSE_LEASE_SECONDS, "looked_at": looked_at, "most": most},
    )
    return [run_id for (run_id,) in rows]
