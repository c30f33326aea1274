"""What is asked of triggers and their ledger, for API, screens and commands alike.

"Missed" is a query: rows of the ledger without a run, and instants that are overdue and have no row yet, counted no
further than `MOST_MISSED`. A page of triggers costs the same few statements however many they are; what is walked of
their schedules in all is bounded by `WALKED`. Limit: instants that one pass left without a row because it found more
than the ledger takes at once (pipelines/ledger.py) are not counted; there are thousands of missed rows beside them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from django.db.models import QuerySet

from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.filters import Parameters
from pipelines.list_filters import TickFilter, TriggerFilter
from pipelines.models import Run, Tick, Trigger, TriggerVersion
from pipelines.paging import Cut, Page, page_of
from pipelines.schedules import Due, Schedule
from pipelines.sql import planned

NEXT = 5  # ticks that are told ahead
MOST_MISSED = 10_000
WALKED = 20_000  # instants without a row that one page walks in all, each trigger its share of them
BY_INSTANT = (datetime.fromisoformat,)  # what a cursor of ticks holds


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a trigger stands now: what comes, what came last and what became of it, what is missed.

    `next_ticks` are told of one that is off, too: as they would be. `last_status` is that of the last tick's run, blank
    when there is none (any more). `blackout` is the name of one that holds now.
    """

    next_ticks: list[Due] = field(default_factory=list)
    last_tick: Tick | None = None
    last_status: str = ""
    missed: int = 0
    is_capped: bool = False
    missed_from: datetime | None = None
    missed_to: datetime | None = None
    blackout: str = ""


def visible(actor: Actor) -> QuerySet[Trigger]:
    """The triggers that the actor may know of, with pipeline, environment and application."""
    rows = Trigger.objects.filter(workspace_id=actor.workspace_id)
    if actor.application_id is not None:
        rows = rows.filter(application_id=actor.application_id)
    if actor.environment_id is not None:
        rows = rows.filter(environment_id=actor.environment_id)
    return rows.select_related("pipeline", "environment", "application")


def trigger_list(actor: Actor, params: Parameters, cut: Cut) -> Page[Trigger]:
    """One page of triggers, newest first."""
    return page_of(TriggerFilter.narrow(visible(actor), params), cut)


def find_trigger(actor: Actor, trigger_id: uuid.UUID) -> Trigger:
    """The trigger; 404 when the actor may not know of it."""
    found = visible(actor).filter(id=trigger_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such trigger")
    return found


def named(text: str, among: QuerySet[Trigger]) -> Trigger:
    """The trigger of that name or id. A name that several have is refused with their ids."""
    try:
        rows = among.filter(id=uuid.UUID(text))
    except ValueError:
        rows = among.filter(name=text)
    found = list(rows.select_related("pipeline", "environment", "application", "workspace").order_by("id")[:NEXT])
    if not found:
        raise Refusal("not_found", f"there is no trigger {text!r}")
    if len(found) > 1:
        told = ", ".join(f"{one.id} ({one.workspace.slug}, {one.environment.slug})" for one in found)
        message = f"several triggers are called {text!r}; say which by its id: {told}"
        raise Refusal("validation_error", message, errors={"trigger": [message]})
    return found[0]


def standing(triggers: Collection[Trigger]) -> dict[uuid.UUID, Standing]:
    """Where each of them stands, in two statements for all of them."""
    told = planned(
        """
        SELECT t.id, recourse_now(), last.id, coalesce(r.status, ''), missed.counted, first.at, latest.at,
            coalesce(recourse_blackout(t.workspace_id, t.environment_id, t.id, recourse_now()), '')
        FROM pipelines_trigger t
        LEFT JOIN LATERAL (
            SELECT k.id, k.run FROM pipelines_tick k WHERE k.trigger_id = t.id ORDER BY k.at DESC LIMIT 1
        ) last ON true
        LEFT JOIN pipelines_run r ON r.id = last.run
        CROSS JOIN LATERAL (
            SELECT count(*) AS counted FROM (
                SELECT FROM pipelines_tick k WHERE k.trigger_id = t.id AND k.run IS NULL LIMIT %(reach)s
            ) capped
        ) missed
        LEFT JOIN LATERAL (
            SELECT k.at FROM pipelines_tick k WHERE k.trigger_id = t.id AND k.run IS NULL ORDER BY k.at LIMIT 1
        ) first ON true
        LEFT JOIN LATERAL (
            SELECT k.at FROM pipelines_tick k WHERE k.trigger_id = t.id AND k.run IS NULL ORDER BY k.at DESC LIMIT 1
        ) latest ON true
        WHERE t.id = ANY(%(triggers)s)
        """,
        {"triggers": [one.id for one in triggers], "reach": MOST_MISSED + 1},
    )
    rows = {row[0]: row[1:] for row in told}
    ticks = Tick.objects.in_bulk([row[1] for row in rows.values() if row[1] is not None])
    share = WALKED // max(1, len(triggers))
    ahead: dict[tuple[Any, ...], list[Due]] = {}  # triggers that are due alike are looked ahead of once
    found = {}
    for trigger in triggers:
        if trigger.id not in rows:
            continue
        now, last_id, status, counted, first, latest, blackout = rows[trigger.id]
        room = min(share, MOST_MISSED + 1 - counted)
        alike = (Schedule.of(trigger), trigger.starts_at, trigger.ends_at)
        if alike not in ahead:
            ahead[alike] = upcoming(trigger, now)
        overdue = [due.at for due in islice(unrecorded(trigger, now), room)]
        found[trigger.id] = Standing(
            next_ticks=ahead[alike],
            last_tick=ticks.get(last_id),
            last_status=status,
            missed=min(MOST_MISSED, counted + len(overdue)),
            is_capped=counted + len(overdue) > MOST_MISSED or (0 < room == len(overdue)),
            missed_from=min([one for one in (first, *overdue[:1]) if one], default=None),
            missed_to=max([one for one in (latest, *overdue[-1:]) if one], default=None),
            blackout=blackout,
        )
    return found


def standing_of(trigger: Trigger) -> Standing:
    return standing([trigger])[trigger.id]


def upcoming(trigger: Trigger, now: datetime, count: int = NEXT) -> list[Due]:
    """The next ticks, within the trigger's start and end."""
    return list(islice(Schedule.of(trigger).ahead(now, trigger.starts_at, trigger.ends_at), count))


def unrecorded(trigger: Trigger, now: datetime) -> Iterator[Due]:
    """The instants that are overdue and that no pass has put into the ledger yet, in order."""
    until = now - timedelta(seconds=trigger.start_within)
    if trigger.next_at is None or trigger.next_at > until:
        return iter(())
    dues = Schedule.of(trigger).ahead(trigger.recorded_until, trigger.starts_at, trigger.ends_at)
    return takewhile(lambda due: due.at <= until, dues)


def ticks(trigger: Trigger, params: Parameters, cut: Cut) -> Page[Tick]:
    """One page of the ledger, newest first."""
    return page_of(TickFilter.narrow(Tick.objects.filter(trigger=trigger), params), cut, ("at",))


def runs_of(rows: Iterable[Tick]) -> dict[uuid.UUID, Run]:
    """The runs of ticks with how they stand, by id; those that are not made, or gone, are left out. One query."""
    runs = [row.run for row in rows if row.run is not None]
    told = Run.objects.only("id", "status", "held", "failure_code", "failure_message")
    return told.in_bulk(runs) if runs else {}


def versions(trigger: Trigger) -> QuerySet[TriggerVersion]:
    """How the trigger was set, newest first."""
    return TriggerVersion.objects.filter(trigger=trigger).order_by("-version")


def says(tick: Tick) -> str:
    """What made a tick of the ledger, in plain words, by the schedule of its time."""
    return Schedule.of(tick).explain(Due.kept(tick.at, tick.timezone, tick.rule))
