"""The audit events of a workspace as a list: newest first, by any filters, in bounded work however many there are.

Each filter has an index in the list's order, but for what applications do all day, which is found by going back through
everything. One filter alone is answered by its index. Of several one leads: that whose newest `DEPTH` events reach
furthest back. The others are held against these events and no more; where that does not fill the page the page says how
far back was looked, and goes on from there. Serves F144, F145, F158, F159.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from pipelines.audit import ALLOWED, DENIED, FAILED, NO_OP
from pipelines.filters import Parameters
from pipelines.list_filters import AuditEventFilter
from pipelines.models import AuditEvent
from pipelines.models.history import APPLICATIONS, CREATION
from pipelines.paging import Cut, Page, cursor_at, page
from pipelines.sql import execute, planned

DEPTH = 5_000  # events that are looked at for one page, where several filters meet
CAP = 1000  # counts end here
MOST_ACTORS = 20
OUTCOMES = (DENIED, FAILED, NO_OP)  # that are not the normal day
CHANNELS = ("console", "api", "mcp", "admin", "command")

# filter → its column, and the one value that its index leaves out
FIELDS: dict[str, tuple[str, str | None]] = {
    "run": ("run", None),
    "stage": ("stage", None),
    "request_id": ("request_id", None),
    "bulk": ("data ->> 'bulk'", None),
    "action": ("action", CREATION),
    "outcome": ("outcome", str(ALLOWED)),
    "actor": ("actor", None),
    "channel": ("channel", APPLICATIONS),
}
ALSO = {"execution_id": "run", "stage_id": "stage"}  # further names of filters on the wire
TIMES = {"since": ">=", "created_after": ">=", "until": "<", "created_before": "<"}

Position = tuple[datetime, uuid.UUID]
LOWEST, HIGHEST = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events: each of `given` is a filter with the values of which any may match; `times` are comparisons."""

    given: Sequence[tuple[str, tuple[Any, ...]]] = ()
    times: Sequence[tuple[str, datetime]] = ()

    @property
    def is_narrowed(self) -> bool:
        return bool(self.given or self.times)


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of events. `horizon` is how far was looked for it, when that was not to the end."""

    page: Page[AuditEvent]
    horizon: datetime | None = None


@dataclass(frozen=True, slots=True)
class Facet:
    """One value to filter by, and how many events have it: above CAP at least that many; None: nobody counted."""

    field: str
    value: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class _Lead:
    """A filter that a page may be found by, by its place among those given: one condition for each of its values."""

    place: int | None = None
    conditions: Sequence[tuple[str, Sequence[Any]]] = field(default=(("true", ()),))

    @property
    def share(self) -> int:
        return max(DEPTH // len(self.conditions), 1)


def read(params: Parameters) -> Wanted:
    """What a request asks for. Refuses unknown filters and values that cannot be meant, by name."""
    AuditEventFilter.narrow(AuditEvent.objects.none(), params)
    asked = AuditEventFilter(data=params, queryset=AuditEvent.objects.none()).form
    asked.is_valid()
    told: Mapping[str, Any] = asked.cleaned_data
    given = [(ALSO.get(name, name), tuple(told[name])) for name in told if name not in TIMES and told[name]]
    times = [(side, told[name]) for name, side in TIMES.items() if told.get(name)]
    return Wanted(given, times)


def find(workspace_id: uuid.UUID, wanted: Wanted, cut: Cut) -> Listed:
    """One page of the events that are wanted."""
    places, last = positions(workspace_id, wanted, cut)
    rows = AuditEvent.objects.in_bulk([event_id for _, event_id in places])
    found = page([rows[event_id] for _, event_id in places], cut, lambda event: (event.at, event.id))
    if last is None or len(places) > cut.size:
        return Listed(found)
    further = cursor_at((last, HIGHEST if cut.backwards else LOWEST), backwards=cut.backwards)
    if cut.backwards:
        return Listed(Page(found.rows, next=found.next, previous=further), last)
    return Listed(Page(found.rows, next=further, previous=found.previous), last)


def positions(workspace_id: uuid.UUID, wanted: Wanted, cut: Cut) -> tuple[list[Position], datetime | None]:
    """Where the events stand that are wanted, up to `cut.reach`, in the cut's direction; and the time of the last one
    looked at, all of that time included, when that was not the end of all."""
    leads = [
        _Lead(place, [_is(name, (value,)) for value in values])
        for place, (name, values) in enumerate(wanted.given)
        if FIELDS[name][1] not in values
    ]
    if len(wanted.given) <= 1 and len(leads) == len(wanted.given):
        return _walk(workspace_id, leads[0] if leads else _Lead(), wanted, cut, None, cut.reach), None
    lead, last = _furthest(workspace_id, leads or [_Lead()], wanted, cut)
    return _walk(workspace_id, lead, wanted, cut, last), last


def newer(workspace_id: uuid.UUID, wanted: Wanted, than: datetime, most: int) -> int:
    """How many events that match are newer than the newest one shown, counted up to `most` + 1."""
    later = Wanted(wanted.given, [*wanted.times, (">=", than + timedelta(microseconds=1))])
    return len(positions(workspace_id, later, Cut(most))[0])


def narrowed(workspace_id: uuid.UUID, params: Parameters) -> QuerySet[AuditEvent]:
    """All events that are wanted, whatever it takes to read them: for an export."""
    return AuditEventFilter.narrow(AuditEvent.objects.filter(workspace_id=workspace_id), params)


def facets(workspace_id: uuid.UUID) -> dict[str, list[Facet]]:
    """What the list can be narrowed to, in three questions. The normal day is offered and not counted."""
    known = {"workspace": workspace_id, "outcomes": [*map(str, OUTCOMES)], "channels": [*CHANNELS]}
    with transaction.atomic():
        # whether a value has many events or none is not in the statistics; a guess of many would read the whole table
        execute("SET LOCAL enable_seqscan = off")
        execute("SET LOCAL enable_bitmapscan = off")
        rows = planned(
            f"{_every('action')} UNION ALL {_counted('outcome', 'unnest(%(outcomes)s::text[]) AS value')}"
            f" UNION ALL {_counted('channel', 'unnest(%(channels)s::text[]) AS value')}",
            known,
        )
        rows += planned(f"{_every('actor')} LIMIT {MOST_ACTORS}", known)
    found: dict[str, list[Facet]] = {
        "outcome": [Facet("outcome", str(ALLOWED))],
        "channel": [Facet("channel", APPLICATIONS)],
        "action": [Facet("action", CREATION)],
        "actor": [],
    }
    for name, value, count in rows:
        found[name].append(Facet(name, value, count))
    return found


# below: how one page is found


def _is(name: str, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The condition that a filter makes; one value is written as an equation, which keeps an index in its order."""
    column, left_out = FIELDS[name]
    also = " AND data ? 'bulk'" if name == "bulk" else ""
    told = [str(value) for value in values] if name == "bulk" else list(values)
    if len(told) > 1:
        return f"{column} = ANY(%s){also}", [told]
    # that the value is in the index is said in the words of the index
    within = f" AND {column} <> {_quoted(left_out)}" if left_out is not None and told[0] != left_out else ""
    return f"{column} = %s{also}{within}", told


def _furthest(
    workspace_id: uuid.UUID, leads: Sequence[_Lead], wanted: Wanted, cut: Cut
) -> tuple[_Lead, datetime | None]:
    """The lead whose share of events reaches furthest, and when they end; None: they are all that it has."""
    sql, params = [], []
    for number, lead in enumerate(leads):
        for condition in lead.conditions:
            where, given = _where(workspace_id, condition, wanted)
            if cut.position is not None:  # of the time alone, which the index has
                where += f" AND at {'>=' if cut.backwards else '<='} %s"
                given.append(cut.position[0])
            sql.append(
                f"(SELECT {number}, at FROM pipelines_auditevent WHERE {where}"  # noqa: S608 - our own text
                f" ORDER BY at {'' if cut.backwards else 'DESC'} OFFSET {lead.share} LIMIT 1)"
            )
            params += given
    ends: dict[int, list[datetime]] = {}
    for number, at in planned(" UNION ALL ".join(sql), params):
        ends.setdefault(number, []).append(at)
    nearest, furthest = (min, max) if cut.backwards else (max, min)
    for number, lead in enumerate(leads):
        if number not in ends:
            return lead, None
    number = furthest(ends, key=lambda one: nearest(ends[one]))
    return leads[number], nearest(ends[number])


def _walk(
    workspace_id: uuid.UUID, lead: _Lead, wanted: Wanted, cut: Cut, last: datetime | None, share: int | None = None
) -> list[Position]:
    """The events of the lead as far as `last`, held against the other filters. The fence of an OFFSET keeps the planner
    from going through all events instead, where it takes what is rare for common."""
    sql, params = [], []
    others = [(name, values) for place, (name, values) in enumerate(wanted.given) if place != lead.place]
    columns = ", ".join(dict.fromkeys(["id", "at", *(FIELDS[name][0].partition(" ")[0] for name, _ in others)]))
    end = f"LIMIT {share}" if share else "OFFSET 0"
    for condition in lead.conditions:
        where, given = _where(workspace_id, condition, wanted)
        if cut.position is not None:
            where += f" AND (at, id) {'>' if cut.backwards else '<'} (%s, %s)"
            given += cut.position
        if last is not None:
            where += f" AND at {'<=' if cut.backwards else '>='} %s"
            given.append(last)
        sql.append(f"(SELECT {columns} FROM pipelines_auditevent WHERE {where} {_order(cut)} {end})")  # noqa: S608
        params += given
    held = [_is(name, values) for name, values in others]
    rows = planned(
        f"SELECT at, id FROM ({' UNION ALL '.join(sql)}) e"  # noqa: S608 - our own text
        f" WHERE {' AND '.join(condition for condition, _ in held) or 'true'} {_order(cut)} LIMIT {cut.reach}",
        [*params, *(value for _, given in held for value in given)],
    )
    return [(at, event_id) for at, event_id in rows]


def _where(workspace_id: uuid.UUID, condition: tuple[str, Sequence[Any]], wanted: Wanted) -> tuple[str, list[Any]]:
    parts = ["workspace_id = %s", condition[0], *(f"at {side} %s" for side, _ in wanted.times)]
    return " AND ".join(parts), [workspace_id, *condition[1], *(moment for _, moment in wanted.times)]


def _order(cut: Cut) -> str:
    return "ORDER BY at, id" if cut.backwards else "ORDER BY at DESC, id DESC"


def _every(column: str) -> str:
    """All values of a column with their counts, found by jumping from one to the next in its index."""
    own = f"FROM pipelines_auditevent WHERE {_indexed(column)}"
    return (
        f"WITH RECURSIVE found(value) AS ((SELECT {column}::text {own} ORDER BY {column} LIMIT 1) UNION ALL"  # noqa: S608 - our own text
        f" SELECT (SELECT {column}::text {own} AND {column} > found.value ORDER BY {column} LIMIT 1)"
        f" FROM found WHERE found.value IS NOT NULL) {_counted(column, 'found')} WHERE value IS NOT NULL"
    )


def _counted(column: str, values: str) -> str:
    return (
        f"SELECT '{column}', value, (SELECT count(*) FROM (SELECT FROM pipelines_auditevent"  # noqa: S608 - our own text
        f" WHERE {_indexed(column)} AND {column} = value LIMIT {CAP + 1}) few) FROM {values}"
    )


def _indexed(column: str) -> str:
    left_out = FIELDS[column][1]
    return f"workspace_id = %(workspace)s{'' if left_out is None else f' AND {column} <> {_quoted(left_out)}'}"


def _quoted(word: str) -> str:
    return f"'{word}'"
