"""Triggers: making, changing and switching them, each in one transaction with its audit event and its version.

A change first records what is due by the settings that held until now, and then begins anew from now: no past tick is
invented, none is lost, and one that was off fires nothing that it missed. While it is off its ticks are recorded as
skipped. A trigger is of one pipeline, environment and application for good. Serves O49, F86, F99, F103.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from pipelines import input_schemas, lanes, ledger, tick_inputs
from pipelines.access import RELEASE, Actor
from pipelines.api.serializers import NAME
from pipelines.api.shapes import text_problem
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.limits import TEN_YEARS
from pipelines.models import Application, CatchUp, Environment, OverlapPolicy, Pipeline, Trigger, TriggerVersion
from pipelines.releases import managed
from pipelines.schedules import Due, Schedule
from pipelines.sql import database_now

CREATE, CHANGE, ENABLE, DISABLE = "trigger.create", "trigger.change", "trigger.enable", "trigger.disable"
PLACE = ("pipeline", "environment", "application")
SCHEDULE = ("cron", "timezone", "gap", "overlap")
MOMENTS = ("starts_at", "ends_at")
SETTINGS = (
    "name", *SCHEDULE, "input", "overlap_policy", "catch_up", "catch_up_limit", "start_within", "spread",
    "deadline_seconds", "enabled", *MOMENTS,
)  # fmt: skip
CHOICES: dict[str, list[str]] = {"overlap_policy": OverlapPolicy.values, "catch_up": CatchUp.values}
MOST_CAUGHT_UP = 1_000
A_DAY = 86_400
BOUNDS = {
    "catch_up_limit": (0, MOST_CAUGHT_UP),
    "start_within": (1, A_DAY),
    "spread": (0, A_DAY),
    "deadline_seconds": (1, TEN_YEARS),
}
Problems = dict[str, list[str]]


def create(*, actor: Actor, wanted: Mapping[str, Any], reason: str = "") -> Trigger:
    """A new trigger: its first tick is the first after now. `wanted` has the fields of the wire; a name, unless given,
    is the pipeline's slug."""
    return create_once(actor=actor, wanted=wanted, key="", reason=reason)[0]


def create_once(*, actor: Actor, wanted: Mapping[str, Any], key: str, reason: str = "") -> tuple[Trigger, bool]:
    """As `create`, and whether it is new: the same again under the same person's key is the trigger that was made then,
    as it is by now. Anything else under that key is refused."""
    with audited(actor, CREATE, reason=reason, **_told(wanted)) as entry:
        actor.require(RELEASE)
        _refuse_unknown(wanted, (*PLACE, *SETTINGS))
        pipeline, environment, application = _place(actor, wanted)
        row = Trigger(
            id=uuid.uuid5(actor.workspace_id, f"{actor.user_id}\n{key}") if key else new_id(),
            workspace_id=actor.workspace_id,
            name=pipeline.slug,
            pipeline=pipeline,
            environment=environment,
            application=application,
            cron="",
            timezone="",
            created_by_id=actor.user_id,
        )
        _set(row, {name: value for name, value in wanted.items() if name not in PLACE})
        _check(row)
        row.recorded_until = database_now()
        row.next_at = _next_at(row)
        entry.data |= {"id": str(row.id), "name": row.name}
        if not _is_inserted(row):
            entry.outcome = NO_OP
            return _made_before(row), False
        row.refresh_from_db()
        lanes.open_lane(row.id, row.workspace_id, _capacity(row), is_background=False)
        _keep_version(row, actor, reason)
        entry.after = settings_of(row)
    return row, True


def change(trigger_id: uuid.UUID, *, actor: Actor, changes: Mapping[str, Any], reason: str = "") -> Trigger:
    """Changes what is given of a trigger; saying what holds already changes nothing."""
    return _change(trigger_id, CHANGE, actor, changes, reason)


def switch(trigger_id: uuid.UUID, *, actor: Actor, enabled: bool, reason: str = "") -> Trigger:
    """Switches a trigger on or off. On again it fires nothing that it missed."""
    return _change(trigger_id, ENABLE if enabled else DISABLE, actor, {"enabled": enabled}, reason)


def settings_of(trigger: Trigger) -> dict[str, Any]:
    """All that may be changed of a trigger, as on the wire."""
    told: dict[str, Any] = {name: getattr(trigger, name) for name in SETTINGS}
    return {
        name: tick_inputs.instant_text(value) if isinstance(value, datetime) else value for name, value in told.items()
    }


def _change(trigger_id: uuid.UUID, action: str, actor: Actor, changes: Mapping[str, Any], reason: str) -> Trigger:
    with audited(actor, action, reason=reason, id=str(trigger_id)) as entry:
        actor.require(RELEASE)
        row = _locked(trigger_id, actor, entry)
        _refuse_unknown(changes, (*PLACE, *SETTINGS))
        _refuse_another_place(row, changes)
        before = settings_of(row)
        # what the locked row's last holder did is before this; what is due by now is due by the settings until now
        now = max(database_now(), row.recorded_until)
        ledger.record_locked(row, now)
        _set(row, {name: value for name, value in changes.items() if name not in PLACE})
        _check(row, {name for name in changes if name not in PLACE})
        after = settings_of(row)
        changed = [name for name in SETTINGS if before[name] != after[name]]
        entry.before, entry.after = ({name: told[name] for name in changed} for told in (before, after))
        if not changed:
            entry.outcome = NO_OP
            return row
        row.version += 1
        row.recorded_until, row.updated_at = now, now
        row.next_at = _next_at(row)
        row.save(update_fields=[*SETTINGS, "version", "recorded_until", "next_at", "updated_at"])
        if "overlap_policy" in changed:
            lanes.set_lane(row.id, capacity=_capacity(row))
        _keep_version(row, actor, reason)
    return row


def _is_inserted(row: Trigger) -> bool:
    """Whether the row is there now; False when it was before, which waits for whoever is just making it."""
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        if "pipelines_trigger_pkey" not in str(error):
            raise
        return False
    return True


def _made_before(row: Trigger) -> Trigger:
    """The trigger that the row's key made before; refused when it was made otherwise than the row."""
    known = Trigger.objects.get(id=row.id)
    first = TriggerVersion.objects.get(trigger=known, version=1)
    place = [f"{name}_id" for name in PLACE]
    if first.settings != settings_of(row) or any(getattr(known, name) != getattr(row, name) for name in place):
        raise Refusal("idempotency_conflict", f"the key made another trigger: {known.id}")
    return known


def _locked(trigger_id: uuid.UUID, actor: Actor, entry: Entry) -> Trigger:
    rows = Trigger.objects.select_for_update(no_key=True, of=("self",))
    row = rows.filter(id=trigger_id, workspace_id=actor.workspace_id).first()
    if row is None:
        raise Refusal("not_found", "there is no such trigger")
    entry.data["name"] = row.name
    return row


def _keep_version(row: Trigger, actor: Actor, reason: str) -> None:
    TriggerVersion.objects.create(
        trigger=row, version=row.version, settings=settings_of(row), actor=actor.name, reason=reason
    )


def _next_at(row: Trigger) -> datetime | None:
    due = next(Schedule.of(row).ahead(row.recorded_until, row.starts_at, row.ends_at), None)
    return due.at if due else None


def _capacity(row: Trigger) -> int | None:
    """How many of its runs are in at once, where they queue; elsewhere none is ever held."""
    return 1 if row.overlap_policy in (OverlapPolicy.QUEUE_ONE, OverlapPolicy.QUEUE_ALL) else None


# what may be asked for


def _told(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What an audit event tells of a trigger that is not there yet."""
    return {name: str(wanted[name])[:NAME] for name in ("name", *PLACE) if wanted.get(name)}


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if strange := [name for name in given if name not in known]:
        raise _refusal({name: ["is not known here"] for name in strange})


def _place(actor: Actor, wanted: Mapping[str, Any]) -> tuple[Pipeline, Environment, Application]:
    """Where it belongs; what other workspaces have is not there."""
    if missing := [name for name in (*PLACE, "cron", "timezone") if wanted.get(name) is None]:
        raise _refusal({name: ["is required"] for name in missing})
    named = {name: str(wanted[name]) for name in PLACE}
    if wrong := {name: [problem] for name, value in named.items() if (problem := text_problem(value))}:
        raise _refusal(wrong)
    here = Q(workspace_id=actor.workspace_id)
    environment = Environment.objects.filter(here, slug=named["environment"]).first()
    if environment is None:
        message = f"no environment is called {named['environment'][:NAME]!r}"
        raise Refusal("environment_unknown", message, errors={"environment": [message]})
    pipeline = Pipeline.objects.filter(here, slug=named["pipeline"]).first()
    application = Application.objects.filter(here & _called(named["application"])).first()
    problems = {
        name: [f"no {name} is called {named[name][:NAME]!r}"]
        for name, found in (("pipeline", pipeline), ("application", application))
        if found is None
    }
    if pipeline is None or application is None:
        raise _refusal(problems)
    return pipeline, environment, application


def _called(application: str) -> Q:
    try:
        return Q(id=uuid.UUID(application))
    except ValueError:
        return Q(name=application)


def _refuse_another_place(row: Trigger, changes: Mapping[str, Any]) -> None:
    is_same = {
        "pipeline": {row.pipeline.slug},
        "environment": {row.environment.slug},
        "application": {row.application.name, str(row.application_id)},
    }
    message = "a trigger is of one pipeline, environment and application for good; make another one"
    wrong = {name: [message] for name in PLACE if name in changes and changes[name] not in is_same[name]}
    if wrong:
        raise _refusal(wrong)


def _set(row: Trigger, given: Mapping[str, Any]) -> None:
    """Puts what is given into the row, once its types and limits are as they must be."""
    problems: Problems = {}
    for name, value in given.items():
        problem = problem_of(name, value)
        if problem:
            problems[name] = [problem]
        else:
            setattr(row, name, value.strip() if name == "name" else value)
    if problems:
        raise _refusal(problems)


def problem_of(name: str, value: Any) -> str | None:
    """What is wrong with one setting by itself; None when nothing is."""
    if name in MOMENTS:
        if value is None or (isinstance(value, datetime) and value.tzinfo is not None):
            return None
        return "must be a time with its offset"
    if name in BOUNDS:
        low, high = BOUNDS[name]
        if value is None and name == "deadline_seconds":
            return None
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if fits else f"must be a whole number from {low} to {high}"
    if name in CHOICES:
        return None if value in CHOICES[name] else f"must be one of {', '.join(CHOICES[name])}"
    if name == "enabled":
        return None if isinstance(value, bool) else "must be true or false"
    if name == "name":
        return _name_problem(value)
    return None  # the schedule and the input are read as a whole


def _name_problem(value: Any) -> str | None:
    if not isinstance(value, str) or not 1 <= len(value.strip()) <= NAME:
        return f"must be a text of 1 to {NAME} characters"
    if any(not character.isprintable() for character in value.strip()):
        return "must not contain control characters"
    return text_problem(value)


def _check(row: Trigger, given: set[str] | None = None) -> None:
    """Refuses what does not fit together: the schedule, its zone, the input once filled in, start and end.

    With `given`, only what these fields are about is looked at: what was good when it was written may stay.
    """
    if given is None or given & set(SCHEDULE):
        schedule = Schedule.read(*(getattr(row, name) for name in SCHEDULE))
        row.cron = schedule.cron
    if given is None or given & {"input", "timezone", "name"}:
        tick_inputs.check(row.input, timezone=row.timezone, trigger_name=row.name)
        _check_schema(row)
    if row.starts_at is not None and row.ends_at is not None and row.ends_at <= row.starts_at:
        raise _refusal({"ends_at": ["must be after starts_at"]})


def _check_schema(row: Trigger) -> None:
    """Refuses an input that the release in force would not take, filled in as for a tick that is due now."""
    try:
        release = managed(row.workspace_id, row.pipeline_id, row.environment_id)
    except Refusal:
        return  # none is in force yet: its ticks say so
    due = Due.kept(database_now(), row.timezone, "")
    filled = tick_inputs.fill(row.input, due=due, previous=None, trigger_name=row.name)
    input_schemas.check(release.definition.get("input_schema"), filled)


def _refusal(problems: Problems) -> Refusal:
    field, (message, *_) = next(iter(problems.items()))
    return Refusal("validation_error", f"{field}: {message}", errors=problems)
