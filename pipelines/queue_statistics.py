"""What the database's planner believes of the queue, kept near to what is there.

A queue that was empty when statistics were last taken counts as one row. Of ten thousand stages that a bulk put back
since, each claim would be planned as of one, and walk through all of them for each that it looks at. Autovacuum comes
by in a minute or two, or never where it is switched off.
"""

from __future__ import annotations

import structlog

from pipelines.sql import execute, query

log = structlog.get_logger(__name__)

MANY = 2_000  # fewer cost little, however they are walked through
FAR_OFF = 10  # times as many as were there when statistics were taken


def follow() -> bool:
    """Takes the queue's statistics anew where far more waits in it than they say; whether it did.

    One short look; taking them costs some 20 ms and holds up nobody.
    """
    ((known, there),) = query(
        "SELECT reltuples, (SELECT count(*) FROM (SELECT FROM pipelines_queueentry LIMIT %s) entry)"
        " FROM pg_class WHERE oid = 'pipelines_queueentry'::regclass",
        [MANY],
    )
    # never taken (-1): the planner goes by the size of the table, which is near enough
    if there < MANY or not 0 <= known < MANY / FAR_OFF:
        return False
    execute("ANALYZE pipelines_queueentry")
    log.info("queue.statistics_taken", known=int(known))
    return True
