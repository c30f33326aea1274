"""What plans of backfills are made from: the request with its defaults, the schedule, the ledger, the release in force.

`read_wish` refuses what is wrong in itself, `plan_now` what the world does not take; a dry run and the backfill itself
ask the same. Serves O49–O56, F80, F108.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.conf import settings

from approvals.rules import Requirement
from pipelines import blackouts, input_schemas, tick_inputs
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Environment, Trigger
from pipelines.releases import Managed, managed
from pipelines.schedules import Due, Schedule
from pipelines.sql import database_now, planned, query
from recovery import agreements, redoing
from recovery.backfill_plans import (
    LISTED,
    MOST_TICKS,
    Around,
    Asked,
    Known,
    Occasion,
    Place,
    Plan,
    Unfit,
    done_again,
    estimate,
    occasions,
)
from recovery.models import BackfillOrder, Reprocess
from recovery.states import BACKFILL

MOST_CONCURRENT = 1_000
LEFT_TO_TRIGGER = ("cron", "timezone", "gap", "overlap")  # what a request need not say
LOOKED_AT = 1_000  # ticks whose input is held to the pipeline's schema beforehand
SAMPLED_RUNS = 500  # among which those are looked for by whose length an estimate is made


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for, before its defaults. `override_reason` lets it start in a blackout."""

    trigger_id: uuid.UUID
    from_time: datetime
    to_time: datetime
    cron: str | None = None
    timezone: str | None = None
    gap: str | None = None
    overlap: str | None = None
    max_concurrent: int = 1
    reprocess: str = Reprocess.NONE
    order: str = BackfillOrder.OLDEST
    max_ticks: int | None = None
    environment: str | None = None
    flow_slug: str | None = None
    workload_id: uuid.UUID | str | None = None
    reason: str = ""
    override_reason: str = ""


def read_wish(wish: Wish, trigger: Trigger) -> Asked:
    """The request with its defaults filled in: cron, zone and rules are the trigger's where none are given.

    Refused, by field: times without a zone, an unknown choice, another pipeline or application than the trigger's
    (`validation_error`), `from_time` after `to_time` (`backfill_window_invalid`), `cron_invalid`, `timezone_invalid`,
    an environment that the workspace has not (`environment_unknown`).
    """
    for name in ("from_time", "to_time"):
        if getattr(wish, name).tzinfo is None:
            raise _wrong(name, "must say its zone, such as 2026-05-20T08:00:00Z")
    if wish.flow_slug is not None and wish.flow_slug != trigger.pipeline.slug:
        raise _wrong("flow_slug", f"the trigger is one of {trigger.pipeline.slug!r}")
    if wish.workload_id is not None and str(wish.workload_id) != str(trigger.application_id):
        raise _wrong("workload_id", f"the trigger's application is {trigger.application_id}")
    for name, choices in (("reprocess", Reprocess.values), ("order", BackfillOrder.values)):
        if getattr(wish, name) not in choices:
            raise _wrong(name, f"is one of {', '.join(choices)}")
    if not 1 <= wish.max_concurrent <= MOST_CONCURRENT:
        raise _wrong("max_concurrent", f"must be from 1 to {MOST_CONCURRENT}")
    if wish.max_ticks is not None and wish.max_ticks < 1:
        raise _wrong("max_ticks", "must be at least 1")
    schedule = Schedule.read(
        trigger.cron if wish.cron is None else wish.cron,
        wish.timezone or trigger.timezone,
        wish.gap or trigger.gap,
        wish.overlap or trigger.overlap,
    )
    if wish.environment is not None and wish.environment != trigger.environment.slug:
        there = Environment.objects.filter(workspace_id=trigger.workspace_id, slug=wish.environment)
        if not there.exists():
            message = f"no environment is called {wish.environment!r}"
            raise Refusal("environment_unknown", message, errors={"environment": [message]})
    if wish.from_time > wish.to_time:
        message = "from_time must not be after to_time"
        raise Refusal("backfill_window_invalid", message, errors={"from_time": [message]})
    return Asked(
        trigger_id=trigger.id,
        from_time=wish.from_time.astimezone(UTC),
        to_time=wish.to_time.astimezone(UTC),
        cron=schedule.cron,
        timezone=schedule.timezone,
        gap=schedule.gap,
        overlap=schedule.overlap,
        max_concurrent=wish.max_concurrent,
        reprocess=wish.reprocess,
        order=wish.order,
    )


def check_past(asked: Asked) -> None:
    """Refuses to make up for what has not come yet; a dry run may look at it."""
    if asked.to_time > database_now():
        message = "to_time must not be in the future; only a dry run may reach there"
        raise Refusal("backfill_window_invalid", message, errors={"to_time": [message]})


def check_environment(wish: Wish, trigger: Trigger) -> None:
    """Refuses another environment than the trigger's: its ticks are made up for there and nowhere else."""
    if wish.environment is not None and wish.environment != trigger.environment.slug:
        slug = trigger.environment.slug
        detail = f"the trigger is of {slug}: its ticks are made up for there and nowhere else"
        raise Refusal("recovery_environment_mismatch", detail, extra={"environment": slug})


def plan_now(
    asked: Asked,
    trigger: Trigger,
    dues: Sequence[Due],
    *,
    actor: Actor,
    frozen: Requirement | None = None,
    release: Managed | None = None,
) -> Plan:
    """What the backfill would do now with these ticks (`dues_of`), and who must agree when `actor` asks: at least as
    many as `frozen`. Refused: no release in force (`release_not_active`), and inputs of which its schema takes none;
    where it takes some, the plan says which others will fail (`unfit`)."""
    release = release or managed(trigger.workspace_id, trigger.pipeline_id, trigger.environment_id)
    found = _occasions(asked, trigger, release, dues)
    unfit = _unfit(trigger, release, found)
    total = sum(1 for one in found if one.why)
    place = Place(
        trigger=trigger.name,
        pipeline=trigger.pipeline.slug,
        environment=trigger.environment.slug,
        is_protected=trigger.environment.protected,
        application=trigger.application.name,
    )
    plan = Plan(
        asked=asked,
        place=place,
        release_id=str(release.release_id),
        made_with=made_with_of(trigger),
        stages=len(release.definition["stages"]),
        occasions=found,
        total_ticks=total,
        around=replace(_around(asked, trigger, release, total), unfit=unfit),
    )
    if not total and frozen is None:
        return plan  # nobody need agree to nothing
    needed = agreements.needed(
        plan,
        workspace_id=trigger.workspace_id,
        kind=BACKFILL,
        environment=place.environment,
        is_protected=place.is_protected,
        pipeline=place.pipeline,
        actor=actor,
        frozen=frozen,
    )
    return agreements.with_agreement(plan, needed)


def made_with_of(trigger: Trigger) -> dict[str, Any]:
    """What a trigger says of the runs of its ticks. A backfill keeps it as it was planned: who agreed to it agreed to
    that, and whoever changes the trigger meanwhile changes nothing of it."""
    return {"input": trigger.input, "trigger": trigger.name, "deadline_seconds": trigger.deadline_seconds}


def dues_of(asked: Asked, max_ticks: int | None) -> list[Due]:
    """All ticks of the window. Refused when there are more than `max_ticks` allows, or than may ever be
    (`backfill_too_many_ticks`): of the body, so before anything else is looked at."""
    most = min(max_ticks or LISTED, MOST_TICKS)
    dues = list(islice(Schedule.of(asked).between(asked.from_time, asked.to_time), most + 1))
    if len(dues) > most:
        raise _too_many(most)
    return dues


def _occasions(asked: Asked, trigger: Trigger, release: Managed, dues: Sequence[Due]) -> list[Occasion]:
    before = next(iter(Schedule.of(asked).before(dues[0].at)), None) if dues else None
    known = _known(asked)
    again = []
    if asked.reprocess != Reprocess.NONE:
        asked_about = ((due.at, known.get(int(due.at.timestamp()))) for due in dues)
        again = [at for at, tick in asked_about if tick and tick.run and done_again(tick, asked.reprocess)]
    withheld = redoing.withheld(trigger.workspace_id, trigger.id, again, release.definition)
    return occasions(dues, before.at if before else None, known, asked.reprocess, withheld)


def _unfit(trigger: Trigger, release: Managed, found: Sequence[Occasion]) -> Unfit:
    """Which ticks that are to be filled have an input that the pipeline's schema does not take.

    Where the template says the same for every tick one is looked at, else all; of more than `LOOKED_AT` so many, spread
    evenly from the first to the last, and fewer where the schema makes that cost too much.
    """
    schema, wanted = release.definition.get("input_schema"), [one for one in found if one.why]
    if schema is None or not wanted:
        return Unfit()

    def filled(one: Occasion) -> dict[str, Any]:
        return tick_inputs.fill(trigger.input, due=one.due, previous=one.previous, trigger_name=trigger.name)

    most = max(1, input_schemas.MOST_CHECKS // max(1, input_schemas.cost(schema, filled(wanted[0]))))
    tried = _spread(wanted, min(LOOKED_AT, most) if tick_inputs.varies(trigger.input) else 1)
    refused: list[tuple[Due, Refusal]] = []
    for one in tried:
        try:
            input_schemas.check(schema, filled(one))
        except Refusal as refusal:
            refused.append((one.due, refusal))
    if len(refused) == len(tried):
        raise refused[0][1]
    return Unfit(len(tried), tuple((due, refusal.detail) for due, refusal in refused))


def _spread(wanted: Sequence[Occasion], most: int) -> list[Occasion]:
    """So many of them, from the first to the last."""
    if len(wanted) <= most:
        return list(wanted)
    return [wanted[number * (len(wanted) - 1) // max(1, most - 1)] for number in range(most)]


def _too_many(most: int) -> Refusal:
    if most == MOST_TICKS:
        message = f"the window has more than {MOST_TICKS} ticks, the most that one backfill fills; take a shorter one"
    else:
        message = f"the window has more than {most} ticks; allow more with max_ticks, up to {MOST_TICKS}"
    return Refusal("backfill_too_many_ticks", message, errors={"max_ticks": [message]})


def _known(asked: Asked) -> dict[int, Known]:
    """What the ledger has of the window, whichever schedule made it, by whole seconds: as plain numbers and texts, for
    there may be very many."""
    rows = planned(
        "SELECT extract(epoch FROM k.at)::bigint, k.state, k.reason, k.run::text, coalesce(r.status, '')"
        " FROM pipelines_tick k"
        " LEFT JOIN pipelines_run r ON r.id = k.run WHERE k.trigger_id = %s AND k.at BETWEEN %s AND %s",
        [asked.trigger_id, asked.from_time, asked.to_time],
    )
    return {row[0]: Known(*row[1:]) for row in rows}


def _around(asked: Asked, trigger: Trigger, release: Managed, total: int) -> Around:
    holds = blackouts.active(trigger.workspace_id, trigger.environment_id, trigger.id)
    return Around(
        estimate_seconds=estimate(total, asked.max_concurrent, mean_seconds(trigger)),
        without_worker=_without_worker(trigger, release.definition),
        trigger_version=trigger.version,
        blackout=holds.as_json() if holds else None,
    )


def mean_seconds(trigger: Trigger) -> float | None:
    """How long the pipeline's runs took on average, of the newest that its application completed there; None where
    there are none."""
    rows = query(
        "SELECT extract(epoch FROM avg(took))::float FROM (SELECT pipeline_id, finished_at - started_at AS took"
        " FROM pipelines_run WHERE application_id = %s AND environment_id = %s AND status = 'completed'"
        " ORDER BY created_at DESC, id DESC LIMIT %s) newest WHERE pipeline_id = %s",
        [trigger.application_id, trigger.environment_id, SAMPLED_RUNS, trigger.pipeline_id],
    )
    found: float | None = rows[0][0]
    return found


def _without_worker(trigger: Trigger, definition: Mapping[str, Any]) -> tuple[str, ...]:
    """The handlers that no worker of the application has which was heard of lately and may take more."""
    handlers = {stage["handler"] for stage in definition["stages"] if stage.get("mode", "execute") == "execute"}
    rows = query(
        "SELECT DISTINCT h.name FROM pipelines_workersession w CROSS JOIN unnest(w.handlers) h(name)"
        " WHERE w.last_seen_at > recourse_now() - make_interval(secs => %s) AND w.state = 'active'"
        " AND h.name = ANY(%s) AND (w.application_id IS NULL OR w.application_id = %s)"
        " AND (w.environment_id IS NULL OR w.environment_id = %s)",
        [settings.RECOURSE_LEASE_SECONDS, sorted(handlers), trigger.application_id, trigger.environment_id],
    )
    return tuple(sorted(handlers - {row[0] for row in rows}))


def _wrong(name: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{name}: {message}", errors={name: [message]})
