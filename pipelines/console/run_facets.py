"""What the run list can be narrowed to, with counts, and what needs a person at all: counted from indexes, capped.

A count regards the other filters as far as an index knows them: states, environments and applications each other and
the time of creation; pipelines the environment and the time. `Group.without` names the filters that it does not regard,
for the screen to say. Counts end at `CAP`, so that a large table costs no more than a small one.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from pipelines import listing
from pipelines.access import Actor
from pipelines.filters import RUN_FILTERS, RunFilter
from pipelines.sql import execute, planned
from pipelines.states import RunStatus

CAP = 1000
LONGEST_GROUP = 20
MOST_ITEMS = 10_000  # that are looked at to count the runs that left something outside
ANY_RUN = RunFilter()
WINDOW = frozenset({"created_after", "created_before"})
# group → the other filters that its counts regard
REGARDED = {
    "status": frozenset({"application", "environment"}) | WINDOW,
    "pipeline": frozenset({"environment"}) | WINDOW,
    "environment": frozenset({"status", "application"}) | WINDOW,
    "application": frozenset({"status", "environment"}) | WINDOW,
}


@dataclass(frozen=True, slots=True)
class Facet:
    """One value to filter by, and how many runs have it (more than CAP: at least that many)."""

    field: str
    value: str
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """The values of one field, all or the first `LONGEST_GROUP` (`is_cut`); `without`: what counts do not regard."""

    field: str
    facets: Sequence[Facet]
    without: Sequence[str] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """What asks for a person now: runs that failed since `since`, that are blocked, that wait for a decision, that
    ended and left something outside."""

    since: datetime
    failed: int
    blocked: int
    waiting: int
    left: int

    @property
    def is_calm(self) -> bool:
        return not (self.failed or self.blocked or self.waiting or self.left)


def facets(actor: Actor, wanted: RunFilter = ANY_RUN) -> dict[str, Group]:
    """The groups of the rail, in one question besides those for the names that the filter holds."""
    places = listing.places(actor, wanted)
    params: dict[str, Any] = {
        "workspace": actor.workspace_id,
        "reach": CAP + 1,
        "longest": LONGEST_GROUP + 1,
        "statuses": RunStatus.values,
        "status": list(wanted.status),
        "applications": (places.applications or []) if places else [],
        "environments": (places.environments or []) if places else [],
        "after": wanted.created_after,
        "before": wanted.created_before,
    }
    window = _window(wanted)
    of_application = " AND a.id = ANY(%(applications)s)" if wanted.application else ""
    of_environment = " AND e.id = ANY(%(environments)s)" if wanted.environment else ""
    statuses = "unnest(%(status)s::text[]) w(one) CROSS JOIN" if wanted.status else ""
    one_status = " AND r.status = w.one" if wanted.status else ""
    few = f"(SELECT FROM pipelines_run r WHERE {{matches}}{window} LIMIT %(reach)s)"
    at_place = few.format(matches=f"r.application_id = a.id AND r.environment_id = e.id{one_status}")
    in_state = few.format(matches="r.application_id = a.id AND r.environment_id = e.id AND r.status = v.value")
    of_pipeline = few.format(matches="r.pipeline_id = p.id AND r.environment_id = e.id")
    applications = f"(SELECT id FROM pipelines_application a WHERE a.workspace_id = %(workspace)s{of_application}) a"
    environments = f"(SELECT id FROM pipelines_environment e WHERE e.workspace_id = %(workspace)s{of_environment}) e"
    statement = f"""
        SELECT 'status', v.value, 0 AS place, (SELECT sum(n) FROM {applications} CROSS JOIN {environments}
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM {in_state} few) part)
        FROM unnest(%(statuses)s::text[]) v(value)
        UNION ALL
        SELECT 'pipeline', p.slug, 0, (SELECT sum(n) FROM {environments}
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM {of_pipeline} few) part)
        FROM (SELECT id, slug FROM pipelines_pipeline WHERE workspace_id = %(workspace)s
            ORDER BY slug LIMIT %(longest)s) p
        UNION ALL
        SELECT 'environment', e.slug, e.rank, (SELECT sum(n) FROM {statuses} {applications}
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM {at_place} few) part)
        FROM (SELECT id, slug, rank FROM pipelines_environment WHERE workspace_id = %(workspace)s
            ORDER BY rank, slug LIMIT %(longest)s) e
        UNION ALL
        SELECT 'application', a.name, 0, (SELECT sum(n) FROM {statuses} {environments}
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM {at_place} few) part)
        FROM (SELECT id, name FROM pipelines_application WHERE workspace_id = %(workspace)s
            ORDER BY name LIMIT %(longest)s) a
        ORDER BY 1, 3, 2
    """
    found: dict[str, list[Facet]] = {name: [] for name in REGARDED}
    for field, value, _, count in _by_index(statement, params):
        found[field].append(Facet(field, value, min(int(count or 0), CAP + 1)))
    found["status"].sort(key=lambda one: RunStatus.values.index(one.value))
    return {name: _group(name, values, wanted) for name, values in found.items()}


def attention(actor: Actor, now: datetime) -> Attention:
    """What asks for a person, in one question. Blocked and waiting runs count whatever their age."""
    since = (now - timedelta(days=1)).replace(second=0, microsecond=0)
    rows = _by_index(
        """
        SELECT v.status, sum(part.n) FROM (VALUES ('failed', %(since)s::timestamptz), ('blocked', '-infinity'),
            ('waiting', '-infinity')) v(status, since)
        CROSS JOIN pipelines_application a CROSS JOIN pipelines_environment e
        CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM pipelines_run r WHERE r.application_id = a.id
            AND r.environment_id = e.id AND r.status = v.status AND r.created_at >= v.since LIMIT %(reach)s) few) part
        WHERE a.workspace_id = %(workspace)s AND e.workspace_id = %(workspace)s GROUP BY v.status
        UNION ALL
        SELECT 'left', count(DISTINCT run_id) FROM (SELECT run_id FROM pipelines_reconciliationitem
            WHERE workspace_id = %(workspace)s AND resolved_at IS NULL LIMIT %(items)s) still
        """,
        {"workspace": actor.workspace_id, "since": since, "reach": CAP + 1, "items": MOST_ITEMS},
    )
    counts = {status: min(int(count), CAP + 1) for status, count in rows}
    return Attention(since, *(counts.get(name, 0) for name in ("failed", "blocked", "waiting", "left")))


def _by_index(statement: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
    with transaction.atomic():
        # whether a value has many runs or none is not in the statistics; a guess of many would read the whole table
        execute("SET LOCAL enable_seqscan = off")
        execute("SET LOCAL jit = off")
        return planned(statement, params)


def _window(wanted: RunFilter) -> str:
    after = " AND r.created_at >= %(after)s" if wanted.created_after else ""
    return f"{after} AND r.created_at < %(before)s" if wanted.created_before else after


def _group(name: str, found: list[Facet], wanted: RunFilter) -> Group:
    longest = LONGEST_GROUP if name != "status" else len(found)
    others: Collection[str] = REGARDED[name] | {name}
    without = [one for one in RUN_FILTERS if getattr(wanted, one) and one not in others]
    return Group(name, found[:longest], without, is_cut=len(found) > longest)
