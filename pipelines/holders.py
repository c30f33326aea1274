"""Who holds a run's lock in the database, for whoever wonders why nothing of it moves (R21, R22, R24; model §3.7).

There is no lock file. What changes a run locks its row, in a transaction; the lock ends with that transaction, whatever
ends it, a `kill -9` of its process too, and never because it has been quiet. So nobody removes a lock: an operator sees
whose it is, and ends that process if it must not go on. What it had begun is undone by then (R23).

Limit: a row that several transactions hold at once (it is being referred to, besides) tells of none of them.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from pipelines.sql import planned

LONG_SECONDS = 5.0  # a lock is held for milliseconds


@dataclass(frozen=True, slots=True)
class Holder:
    """A connection of the database that holds a run: the number of its process there, what it calls itself, since
    when its transaction goes on, and whether it waits for its client."""

    pid: int
    name: str
    since: datetime
    is_idle: bool

    def sentence(self) -> str:
        does = "waits for its client" if self.is_idle else "is at work"
        held = f"{self.name or 'a connection'} has held the run since {self.since:%Y-%m-%d %H:%M:%S} UTC and {does}"
        return f"{held}; it lets go when its transaction or its process ends, and never because time passes"


def look(run_id: uuid.UUID) -> tuple[datetime, Holder | None]:
    """The database's time, and who has held the run's row for long, if anybody has. Waits for nobody."""
    ((now, pid, name, since, is_idle),) = planned(
        "SELECT recourse_now(), held.* FROM (SELECT) one LEFT JOIN LATERAL ("
        " SELECT a.pid, a.application_name, a.xact_start, a.state LIKE %(idle)s FROM pipelines_run r"
        " JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax"
        " JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE r.id = %(run)s AND l.pid <> pg_backend_pid()"
        " AND a.xact_start < clock_timestamp() - make_interval(secs => %(long)s) LIMIT 1) held ON true",
        {"run": run_id, "long": LONG_SECONDS, "idle": "idle in transaction%"},
    )
    return now, Holder(pid, name, since, is_idle) if pid is not None else None
