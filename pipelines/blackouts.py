"""Times in which nothing starts: whether one holds now, until when, and what a person may do all the same.

The database decides, with its own clock and its own data of time zones: the functions `recourse_covers` and
`recourse_blackout` (migrations 0011, 0016) are asked by claims, ledger, lanes and plans alike, and here. One of days in
a zone that the database does not know always holds: it says so, and fails nobody's claim. A blackout of the workspace
holds in all of its environments, one of a trigger only for that trigger. Serves F117, contract §4.

Limits: how long it lasts is looked for 366 days ahead; beyond, and for a freeze without an end, there is none to tell.
Clocks are expected to change on a quarter of an hour.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipelines.errors import Refusal
from pipelines.sql import query

OVERRIDE = "override_reason"
_AHEAD = (2, 9, 45, 366)  # days; most end tonight, and looking far takes long where there are many

# what is looked at: b is a blackout that is for this place
_IN_SCOPE = """b.workspace_id = %(workspace)s::uuid AND b.enabled
    AND (b.environment_id IS NULL OR b.environment_id = %(environment)s::uuid)
    AND (b.trigger_id IS NULL OR b.trigger_id = %(trigger)s::uuid)"""


@dataclass(frozen=True, slots=True)
class Active:
    """The blackout that holds now, a freeze first. `until`: when none holds any more; None when no end is in sight."""

    name: str
    reason: str
    until: datetime | None
    is_freeze: bool
    id: uuid.UUID
    by: str = ""
    since: datetime | None = None  # of a freeze or a period
    unknown_zone: str = ""  # its time zone, where the database does not know it

    def sentence(self) -> str:
        """That nothing starts, by what, whose, since when and until when."""
        kind = "freeze" if self.is_freeze else "blackout"
        by = f" by {self.by}" if self.is_freeze and self.by else ""
        since = f" since {_time(self.since)}" if self.since else ""
        return f"nothing starts: {kind} {self.name!r}{by}{since}, {self.ends()}"

    def ends(self) -> str:
        if self.unknown_zone:
            return f"until its time zone {self.unknown_zone}, which the database does not know, is changed"
        if self.until:
            return f"until {_time(self.until)}"
        return "until it is lifted" if self.is_freeze else "with no end in sight"

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Active:
        """As `as_json` told it."""
        since, until = (datetime.fromisoformat(told[name]) if told[name] else None for name in ("since", "until"))
        named = uuid.UUID(told["id"])
        by, zone = told["by"] or "", told.get("unknown_zone") or ""
        return cls(told["name"], told["reason"], until, told["is_freeze"], named, by, since, zone)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "name": self.name,
            "reason": self.reason,
            "is_freeze": self.is_freeze,
            "by": self.by or None,
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
            "unknown_zone": self.unknown_zone or None,
        }


def active(
    workspace_id: uuid.UUID, environment_id: uuid.UUID | None, trigger_id: uuid.UUID | None = None
) -> Active | None:
    """What holds in this place now; None when starts are free. One query where nothing holds.

    Without an environment only what is for the whole workspace is looked at.
    """
    place = {"workspace": workspace_id, "environment": environment_id, "trigger": trigger_id}
    rows = query(
        f"""
        SELECT b.id, b.name, b.reason, b.is_freeze, coalesce(u.username, ''),
            CASE WHEN b.kind = 'period' THEN b.starts_at END,
            CASE WHEN b.kind <> 'period' AND NOT recourse_knows_zone(b.timezone) THEN b.timezone ELSE '' END
        FROM pipelines_blackout b LEFT JOIN auth_user u ON u.id = b.created_by_id
        WHERE {_IN_SCOPE} AND recourse_covers(b, recourse_now())
        ORDER BY b.is_freeze DESC, b.created_at, b.id LIMIT 1
        """,
        place,
    )
    if not rows:
        return None
    found, name, reason, is_freeze, by, since, unknown_zone = rows[0]
    return Active(name, reason, _until(place), is_freeze, found, by, since, unknown_zone)


def require_open(
    workspace_id: uuid.UUID,
    environment_id: uuid.UUID | None,
    override_reason: str = "",
    trigger_id: uuid.UUID | None = None,
) -> bool:
    """Refuses with `blackout_active` while one holds and nobody said why it is to start all the same.

    True when a reason let it through: what starts is then to be marked, and the audit to tell.
    """
    holds = active(workspace_id, environment_id, trigger_id)
    if holds is None:
        return False
    if not override_reason.strip():
        raise refusal(holds)
    return True


def holding(ids: Sequence[uuid.UUID]) -> frozenset[uuid.UUID]:
    """Which of these blackouts are on and cover this moment. One query."""
    if not ids:
        return frozenset()
    return frozenset(
        row[0]
        for row in query(
            "SELECT b.id FROM pipelines_blackout b WHERE b.id = ANY(%s) AND b.enabled"
            " AND recourse_covers(b, recourse_now())",
            [list(ids)],
        )
    )


def refusal(holds: Active) -> Refusal:
    """That a blackout holds: which, until when, and the field that overrides it."""
    why = f" ({holds.reason})" if holds.reason else ""
    detail = f"{holds.sentence()}{why}; give {OVERRIDE} to start it all the same"
    return Refusal("blackout_active", detail, extra={"blackout": holds.as_json(), "override": OVERRIDE})


def _until(place: Mapping[str, Any]) -> datetime | None:
    """The first instant to come at which nothing holds."""
    if query(
        f"SELECT 1 FROM pipelines_blackout b WHERE {_IN_SCOPE} AND recourse_covers(b, recourse_now())"
        " AND (b.kind = 'period' AND b.ends_at IS NULL"
        " OR b.kind = 'weekly' AND b.from_time = b.to_time AND cardinality(b.days) = 7"
        " OR b.kind <> 'period' AND NOT recourse_knows_zone(b.timezone)) LIMIT 1",
        place,
    ):
        return None
    for days in _AHEAD:
        found = query(_FIRST_END, {**place, "days": days})
        if found:
            return found[0][0]
    return None


# Every instant at which one of them may end, in order, until one at which none holds. Wall clocks make it more than
# their times of end: a change of clocks may jump over the end of a window, or back out of it, and a time that the
# clocks show twice ends it twice. So on days of a change all quarters of an hour are looked at besides. OFFSET 0 keeps
# the planner from asking about instants that come later than the answer.
_FIRST_END = f"""
    WITH scoped AS MATERIALIZED (
        SELECT b.* FROM pipelines_blackout b WHERE {_IN_SCOPE} AND (b.ends_at IS NULL OR b.ends_at > recourse_now())
    ),
    days AS (
        SELECT s.id, day, s.timezone, day AT TIME ZONE s.timezone AS begins,
            (day + interval '1 day') AT TIME ZONE s.timezone AS ends,
            CASE s.kind WHEN 'weekly' THEN s.to_time ELSE '00:00' END AS ends_daily
        FROM scoped s, generate_series(
            date_trunc('day', recourse_now() AT TIME ZONE s.timezone) - interval '1 day',
            date_trunc('day', recourse_now() AT TIME ZONE s.timezone) + make_interval(days => %(days)s::int),
            interval '1 day') AS day
        WHERE s.kind <> 'period'
    ),
    candidates AS (
        SELECT ends_at AS at FROM scoped WHERE kind = 'period'
        UNION
        SELECT (day + ends_daily) AT TIME ZONE timezone + shift.by
        FROM days, unnest(ARRAY[interval '0', (ends - begins) - interval '24 hours',
            interval '24 hours' - (ends - begins)]) AS shift(by)
        UNION
        SELECT quarter FROM days, generate_series(date_trunc('hour', begins) - interval '1 hour',
            ends + interval '1 hour', interval '15 minutes') AS quarter
        WHERE ends - begins <> interval '24 hours'
    )
    SELECT at FROM (
        SELECT at FROM candidates WHERE at > recourse_now()
            AND at <= recourse_now() + make_interval(days => %(days)s::int)
        ORDER BY at OFFSET 0
    ) ordered
    WHERE NOT EXISTS (SELECT FROM pipelines_blackout b WHERE {_IN_SCOPE} AND recourse_covers(b, ordered.at))
    ORDER BY at LIMIT 1
"""


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
