"""Blackouts as rows: made, changed, frozen and lifted, each checked and with its audit event.

API, console and admin site change them through here. Whatever may let something start wakes those who wait for it. A
freeze is a period without a plan: declared with a reason, lifted by hand or at its end; each declaration is a row that
stays, so that ticks which are recorded late still find it. Serves F117, contract §4, model §5.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DataError, transaction
from django.db.models import Q, QuerySet

from pipelines import wake, zones
from pipelines.access import RELEASE, Actor
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.models import Blackout, BlackoutKind, Environment, Trigger, Workspace
from pipelines.models.base import RecourseNow
from pipelines.sql import database_now, query
from pipelines.wake import Queue

SAVE, DECLARE, LIFT = "blackout.save", "freeze.declare", "freeze.lift"
MOST = 200  # of a workspace that are not over: claims look at all of them
MOST_DATES = 1_000
FREEZE = "freeze"  # what a freeze is called
# what may be said of a blackout, besides where it holds
FIELDS = (
    "name",
    "kind",
    "timezone",
    "days",
    "from_time",
    "to_time",
    "dates",
    "starts_at",
    "ends_at",
    "reason",
    "enabled",
)
# kind → the fields that say when; the others stay empty
WHEN: Mapping[str, tuple[str, ...]] = {
    BlackoutKind.WEEKLY: ("days", "from_time", "to_time"),
    BlackoutKind.DATES: ("dates",),
    BlackoutKind.PERIOD: ("starts_at", "ends_at"),
}
NEEDED: Mapping[str, tuple[str, ...]] = {**WHEN, BlackoutKind.PERIOD: ()}
Problems = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Declared:
    """A freeze that holds. Not `is_new`: it held already, in just these words."""

    row: Blackout
    is_new: bool


def rows(workspace_id: uuid.UUID) -> QuerySet[Blackout]:
    """The workspace's blackouts, freezes among them."""
    found = Blackout.objects.filter(workspace_id=workspace_id)
    return found.select_related("environment", "trigger", "created_by")


def freezes(workspace_id: uuid.UUID) -> list[Blackout]:
    """The freezes that hold now: the workspace's first, then the oldest. One query."""
    found = rows(workspace_id).filter(is_freeze=True, enabled=True, starts_at__lte=RecourseNow())
    found = found.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=RecourseNow()))
    return sorted(found, key=lambda row: (row.environment_id is not None, row.created_at, row.id))


def create(
    *, actor: Actor, wanted: Mapping[str, Any], environment: str | None = None, trigger_id: uuid.UUID | None = None
) -> Blackout:
    """A new blackout of the workspace, of one environment (by its slug), or of one trigger.

    Refused: `permission_denied`; `environment_unknown`; `timezone_invalid`, also for a zone that the database does not
    know; `validation_error` by field.
    """
    row, _ = _create(actor, wanted, environment, trigger_id, once=False)
    return row


def create_once(
    *, actor: Actor, wanted: Mapping[str, Any], environment: str | None = None, trigger_id: uuid.UUID | None = None
) -> tuple[Blackout, bool]:
    """As `create`, and whether it is new: one of the actor's own that says just this, for the same place, is the one
    that was wanted, so that whoever heard no answer may ask again.
    """
    return _create(actor, wanted, environment, trigger_id, once=True)


def _create(
    actor: Actor, wanted: Mapping[str, Any], environment: str | None, trigger_id: uuid.UUID | None, *, once: bool
) -> tuple[Blackout, bool]:
    with audited(actor, SAVE, name=wanted.get("name", "")) as entry:
        actor.require(RELEASE)
        _hold(actor.workspace_id)
        row = Blackout(workspace_id=actor.workspace_id, created_by_id=actor.user_id)
        row.environment = _environment(actor, environment)
        row.trigger = _trigger(actor, trigger_id, environment)
        for name, value in wanted.items():
            setattr(row, name, value)
        _check(row)
        if once and (same := _same(row)):
            entry.outcome = NO_OP
            entry.data |= {"id": str(same.id), **_where(same)}
            return same, False
        _check_room(actor.workspace_id)
        row.save()
        entry.data |= {"id": str(row.id), **_where(row)}
        entry.after = told(row)
    row.refresh_from_db(fields=["created_at"])
    return row, True


def _same(row: Blackout) -> Blackout | None:
    """The blackout of the same person that says just what this one would."""
    said = {name: getattr(row, name) for name in (*FIELDS, "environment_id", "trigger_id", "created_by_id")}
    left_out = {f"{name}__isnull": True for name, value in said.items() if value is None}
    given = {name: value for name, value in said.items() if value is not None}
    return rows(row.workspace_id).filter(is_freeze=False, **given, **left_out).first()


def change(blackout_id: uuid.UUID, *, actor: Actor, changes: Mapping[str, Any]) -> Blackout:
    """Changes what is given of a blackout; where it holds, and its kind, stay. A freeze is lifted instead."""
    with audited(actor, SAVE, id=str(blackout_id)) as entry:
        actor.require(RELEASE)
        _hold(actor.workspace_id)
        row = rows(actor.workspace_id).filter(id=blackout_id).first()
        if row is None:
            raise Refusal("not_found", "there is no such blackout")
        entry.data |= {"name": row.name, **_where(row)}
        if row.is_freeze:
            raise Refusal("stale_request", "a freeze is not changed: lift it, or declare it anew")
        before, was_over = told(row), _is_over(row)
        for name, value in changes.items():
            setattr(row, name, value)
        _check(row)
        if was_over and not _is_over(row):
            _check_room(actor.workspace_id)
        _note(entry, before, told(row))
        row.save()
        announce(row)
    return row


def declare(*, actor: Actor, reason: str, environment: str | None = None, until: datetime | None = None) -> Declared:
    """Nothing starts from now on, in the workspace or one environment of it, until then or until it is lifted.

    The same again changes nothing. With another reason or end the freeze that held ends now, and a new one begins.
    Refused: `permission_denied`; `environment_unknown`; an `until` that is past.
    """
    with audited(actor, DECLARE, reason=reason) as entry:
        actor.require(RELEASE)
        _hold(actor.workspace_id)
        where = _environment(actor, environment)
        entry.data |= {"environment": environment, "until": until.isoformat() if until else None}
        now = database_now()
        if until is not None and until <= now:
            message = "must lie ahead"
            raise Refusal("validation_error", f"until: {message}", errors={"until": [message]})
        held = [row for row in freezes(actor.workspace_id) if row.environment_id == (where and where.id)]
        if len(held) == 1 and (held[0].reason, held[0].ends_at) == (reason, until):
            entry.outcome = NO_OP
            return Declared(held[0], False)
        if not held:
            _check_room(actor.workspace_id)
        _end(held, now)
        row = Blackout(
            workspace_id=actor.workspace_id,
            environment=where,
            name=FREEZE,
            kind=BlackoutKind.PERIOD,
            is_freeze=True,
            starts_at=now,
            ends_at=until,
            reason=reason,
            created_by_id=actor.user_id,
        )
        row.save()
        entry.data["id"] = str(row.id)
    return Declared(rows(actor.workspace_id).get(id=row.id), True)


def lift(*, actor: Actor, reason: str = "", environment: str | None = None) -> list[Blackout]:
    """Ends the freeze of the workspace, or of one environment, and wakes who waits; what it ended.

    A freeze of the workspace is not lifted for one environment. Where nothing is frozen nothing changes.
    """
    with audited(actor, LIFT, reason=reason) as entry:
        actor.require(RELEASE)
        _hold(actor.workspace_id)
        where = _environment(actor, environment)
        entry.data["environment"] = environment
        held = [row for row in freezes(actor.workspace_id) if row.environment_id == (where and where.id)]
        entry.data["ids"] = [str(row.id) for row in held]
        if not held:
            entry.outcome = NO_OP
        _end(held, database_now())
        for row in held:
            announce(row)
    return held


def announce(row: Blackout) -> None:
    """Within a transaction: wakes who waits for the queues that this blackout may have closed."""
    found = query(
        "SELECT DISTINCT q.application_id, q.environment_id, q.handler FROM pipelines_queueentry q"
        " JOIN pipelines_environment e ON e.id = q.environment_id WHERE e.workspace_id = %s"
        " AND (%s::uuid IS NULL OR e.id = %s::uuid) AND q.is_start AND q.available_at <= recourse_now()",
        [row.workspace_id, row.environment_id, row.environment_id],
    )
    wake.announce(Queue(*one) for one in found)


def problems(row: Blackout) -> Problems:
    """What is wrong with when it holds, by field: what its kind needs and what only other kinds have."""
    found: Problems = {}
    for kind, fields in WHEN.items():
        for name in fields:
            value = getattr(row, name)
            if kind != row.kind and value not in (None, []):
                found[name] = [f"belongs to the kind {kind}, and this is {row.kind}"]
            elif kind == row.kind and name in NEEDED[kind] and value in (None, []):
                found[name] = [f"is needed for the kind {kind}"]
    row.days, row.dates = sorted(set(row.days)), sorted(set(row.dates))
    if not all(1 <= day <= 7 for day in row.days):
        found["days"] = ["must be days of the week: 1 is Monday, 7 is Sunday"]
    if len(row.dates) > MOST_DATES:
        found["dates"] = [f"must be at most {MOST_DATES} days"]
    if row.kind == BlackoutKind.PERIOD and row.starts_at is None and row.ends_at is None:
        found["starts_at"] = ["is needed, or ends_at"]
    if row.starts_at and row.ends_at and row.starts_at >= row.ends_at:
        found["ends_at"] = ["must come after starts_at"]
    return found


def check_zone(name: str) -> None:
    """Refuses with `timezone_invalid` a zone that the console or its database does not know: the latter decides."""
    zones.zone(name)
    try:
        with transaction.atomic():
            query("SELECT recourse_now() AT TIME ZONE %s::text", [name])
    except DataError as error:
        message = f"The database's own data of time zones has no {name}; name another that keeps the same time."
        raise Refusal("timezone_invalid", message, errors={"timezone": [message]}) from error


def told(row: Blackout) -> dict[str, Any]:
    """A blackout as the audit keeps it: what is said of its kind, and no more."""
    names = ("name", "kind", *WHEN.get(row.kind, ()), "timezone", "reason", "enabled")
    return {name: _plain(getattr(row, name)) for name in names}


def _check(row: Blackout) -> None:
    check_zone(row.timezone)
    if found := problems(row):
        field, (message, *_) = next(iter(found.items()))
        raise Refusal("validation_error", f"{field}: {message}", errors=found)


def _is_over(row: Blackout) -> bool:
    return row.ends_at is not None and row.ends_at <= database_now()


def _check_room(workspace_id: uuid.UUID) -> None:
    alive = rows(workspace_id).exclude(ends_at__lte=database_now()).values("id")[: MOST + 1]
    if len(alive) >= MOST:
        message = f"a workspace has at most {MOST} blackouts that are not over; change one of them"
        raise Refusal("validation_error", message, errors={"name": [message]})


def _end(held: Sequence[Blackout], now: datetime) -> None:
    for row in held:
        row.ends_at = now
        row.save(update_fields=["ends_at"])


def _hold(workspace_id: uuid.UUID) -> None:
    """Lets one change of a workspace's blackouts happen at a time, until the transaction ends."""
    Workspace.objects.select_for_update(no_key=True).get(id=workspace_id)


def _environment(actor: Actor, slug: str | None) -> Environment | None:
    if slug is None:
        return None
    found = Environment.objects.filter(workspace_id=actor.workspace_id, slug=slug).first()
    if found is None:
        message = f"no environment is called {slug!r}"
        raise Refusal("environment_unknown", message, errors={"environment": [message]})
    return found


def _trigger(actor: Actor, trigger_id: uuid.UUID | None, environment: str | None) -> Trigger | None:
    if trigger_id is None:
        return None
    if environment is not None:
        message = "leave it out: a trigger has its own"
        raise Refusal("validation_error", f"environment: {message}", errors={"environment": [message]})
    found = Trigger.objects.filter(workspace_id=actor.workspace_id, id=trigger_id).first()
    if found is None:
        message = "there is no such trigger"
        raise Refusal("validation_error", f"trigger: {message}", errors={"trigger": [message]})
    return found


def _where(row: Blackout) -> dict[str, Any]:
    where: dict[str, Any] = {}
    if row.environment is not None:
        where["environment"] = row.environment.slug
    if row.trigger is not None:
        where["trigger"] = row.trigger.name
    return where


def _note(entry: Entry, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = [name for name in after if before.get(name) != after[name]]
    entry.before = {name: before.get(name) for name in changed}
    entry.after = {name: after[name] for name in changed}
    if not changed:
        entry.outcome = NO_OP


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | str) else value.isoformat()
