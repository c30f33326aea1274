"""The operations API's routes for triggers: the schedules of pipelines, and the ledgers of their ticks (O60, F105).

Serves contract §3 and §4.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import trigger_queries, triggers
from pipelines.access import RELEASE, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb, page_answer
from pipelines.api.operations_serializers import time
from pipelines.api.serializers import INPUT_BYTES, NAME
from pipelines.api.shapes import AnyJson, Flag, Identifier, JsonObject, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.definitions import Slug
from pipelines.list_filters import TickFilter, TriggerFilter
from pipelines.models import Tick, Trigger
from pipelines.models.triggers import CatchUp, OverlapPolicy
from pipelines.paging import read_cut
from pipelines.schedules import Due, Gap, Overlap, Rule, Schedule
from pipelines.states import SkipReason, TickState
from pipelines.trigger_queries import MOST_MISSED, Standing

MAY_BE_NONE = ("deadline_seconds", "starts_at", "ends_at")  # null is a value of theirs: none


def _bounded(name: str, text: str, **more: Any) -> Whole:
    least, most = triggers.BOUNDS[name]
    return Whole(min_value=least, max_value=most, required=False, help_text=text, **more)


class TriggerChange(Verb):
    """What of a trigger may change; what is left out stays. `null` takes away its deadline, its start or its end.
    Pipeline, environment and application are those it was made with: others are refused."""

    pipeline = Slug(required=False)
    environment = Slug(required=False)
    application = Text(max_length=100, control=False, required=False, help_text="its name or id: the runs are its own")
    name = Text(max_length=NAME, control=False, trim=True, required=False)
    cron = Text(blank=True, required=False, help_text="five fields, read in the trigger's zone: 15 16 * * mon-fri")
    timezone = Text(blank=True, required=False, help_text="a name of IANA: Europe/Berlin")
    gap = OneOf(Gap.values, required=False, help_text="what becomes of a fixed time that does not exist")
    overlap = OneOf(Overlap.values, required=False, help_text="what becomes of a fixed time that exists twice")
    input_ = JsonObject(
        max_bytes=INPUT_BYTES,
        exact=True,
        required=False,
        source="input",
        help_text="of each run; {{tick_time}} is filled in",
    )
    overlap_policy = OneOf(OverlapPolicy.values, required=False, help_text="while an earlier run is unfinished")
    catch_up = OneOf(CatchUp.values, required=False, help_text="what becomes of ticks that were found too late")
    catch_up_limit = _bounded("catch_up_limit", "at most so many are caught up on")
    start_within = _bounded("start_within", "seconds after which a tick is too late")
    spread = _bounded("spread", "seconds over which starts are spread")
    deadline_seconds = _bounded("deadline_seconds", "of its runs", allow_null=True)
    enabled = Flag(required=False)
    starts_at = Moment(required=False, allow_null=True, help_text="no ticks before")
    ends_at = Moment(required=False, allow_null=True, help_text="no ticks after")

    spelling = {"input_": "input"}

    @classmethod
    def clean(cls, value: Any, *, partial: bool = False) -> dict[str, Any]:
        clean = super().clean(value, partial=partial)
        return clean | {name: None for name in MAY_BE_NONE if name in value and value[name] is None}


class TriggerRequest(TriggerChange):
    """A trigger. Without a name it is called by its pipeline's slug."""

    pipeline = Slug()
    environment = Slug()
    application = Text(max_length=100, control=False, help_text="its name or id: the runs are its own")
    cron = Text(blank=True, help_text="five fields, read in the trigger's zone: 15 16 * * mon-fri")
    timezone = Text(blank=True, help_text="a name of IANA: Europe/Berlin")


class NextTickView(Shape):
    """`rule`: what made it, in a word; `says`: in plain words."""

    tick_time = Moment()
    local_time = Text(help_text="in the trigger's zone, with its offset")
    rule_ = OneOf(Rule.values, source="rule")
    says = Text()

    spelling = {"rule_": "rule"}  # the bare name is the shape's own


class TickErrorView(Shape):
    code = Text()
    message = Text(blank=True)


class TickView(NextTickView):
    """A tick as the ledger has it, by the cron, the zone and the policies of its time. Without `execution_id` it has no
    run: it is missed, or due."""

    id = Identifier()
    status = OneOf(TickState.values)
    reason = OneOf(SkipReason.values, allow_null=True)
    detail = Text(allow_null=True, help_text="such as the name of the blackout")
    execution_id = Identifier(allow_null=True)
    backfill_id = Identifier(allow_null=True)
    cron = Text()
    timezone = Text()
    error = TickErrorView(allow_null=True)
    recorded_at = Moment()
    decided_at = Moment(allow_null=True)


class TriggerView(Shape):
    """A trigger and where it stands. `next_ticks` are told of one that is off, too: as they would be. `missed`: the
    ticks that have no run, between `missed_from` and `missed_to`; with `missed_capped` there are more."""

    id = Identifier()
    name = Text()
    pipeline = Text()
    environment = Text()
    application = Text()
    cron = Text()
    timezone = Text()
    gap = OneOf(Gap.values)
    overlap = OneOf(Overlap.values)
    input_ = AnyJson(source="input")
    overlap_policy = OneOf(OverlapPolicy.values)
    catch_up = OneOf(CatchUp.values)
    catch_up_limit = Whole(min_value=0, max_value=wire.HUGE)
    start_within = Whole(min_value=0, max_value=wire.HUGE)
    spread = Whole(min_value=0, max_value=wire.HUGE)
    deadline_seconds = Whole(min_value=1, max_value=wire.HUGE, allow_null=True)
    enabled = Flag()
    starts_at = Moment(allow_null=True)
    ends_at = Moment(allow_null=True)
    version = Whole(min_value=1, max_value=wire.HUGE)
    description = Text(help_text="the schedule in plain words")
    blackout = Text(allow_null=True, help_text="one that holds now: nothing starts")
    next_ticks = ListOf(child=NextTickView(), max_length=trigger_queries.NEXT)
    last_tick = TickView(allow_null=True)
    missed = Whole(min_value=0, max_value=MOST_MISSED)
    missed_capped = Flag()
    missed_from = Moment(allow_null=True)
    missed_to = Moment(allow_null=True)
    created_at = Moment()
    updated_at = Moment()

    spelling = {"input_": "input"}


class Triggers(OperationsEndpoint):
    """The schedules of pipelines, newest first; POST makes one. With a key (`client_request_id`, or the header) a POST
    is safe to repeat."""

    access = {"GET": VIEW, "POST": RELEASE}
    bodies = {"POST": TriggerRequest}
    actions = {"POST": triggers.CREATE}
    filters = TriggerFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(TriggerView))
    def get(self, call: Call) -> HttpResponse:
        page = trigger_queries.trigger_list(call.actor, call.params, read_cut(call.params))
        return page_answer(call.request, page, trigger_views(page.rows))

    @extend_schema(request=TriggerRequest, responses={201: TriggerView, 200: TriggerView})
    def post(self, call: Call) -> HttpResponse:
        made, is_new = triggers.create_once(actor=call.actor, wanted=_settings(call), key=call.key, reason=call.reason)
        return answer(one_trigger(call.actor, made.id), 201 if is_new else 200)


class OneTrigger(OperationsEndpoint):
    """A trigger and where it stands. PATCH changes it or switches it: no past tick is invented, and none fires that was
    due while it was off."""

    access = {"GET": VIEW, "PATCH": RELEASE}
    bodies = {"PATCH": TriggerChange}
    actions = {"PATCH": triggers.CHANGE}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Trigger:
        return trigger_queries.find_trigger(actor, ids["trigger_id"])

    @extend_schema(responses=TriggerView)
    def get(self, call: Call) -> HttpResponse:
        return answer(trigger_views([call.target])[0])

    @extend_schema(request=TriggerChange, responses=TriggerView)
    def patch(self, call: Call) -> HttpResponse:
        changes = _settings(call)
        _ = call.key  # checked like any other; saying what holds already changes nothing, so nothing is remembered
        if set(changes) == {"enabled"}:
            triggers.switch(call.target.id, actor=call.actor, enabled=changes["enabled"], reason=call.reason)
        else:
            triggers.change(call.target.id, actor=call.actor, changes=changes, reason=call.reason)
        return answer(one_trigger(call.actor, call.target.id))


class Ticks(OperationsEndpoint):
    """The ledger of a trigger, newest first: every tick, and what became of it (F103, F105, F106)."""

    access = {"GET": VIEW}
    filters = TickFilter.names()

    def find(self, actor: Actor, **ids: uuid.UUID) -> Trigger:
        return trigger_queries.find_trigger(actor, ids["trigger_id"])

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(TickView))
    def get(self, call: Call) -> HttpResponse:
        page = trigger_queries.ticks(call.target, call.params, read_cut(call.params, trigger_queries.BY_INSTANT))
        return page_answer(call.request, page, [tick_view(one) for one in page.rows])


def _settings(call: Call) -> dict[str, Any]:
    """What the body says of the trigger itself."""
    return {name: value for name, value in call.body.items() if name in (*triggers.PLACE, *triggers.SETTINGS)}


def one_trigger(actor: Actor, trigger_id: uuid.UUID) -> dict[str, Any]:
    return trigger_views([trigger_queries.find_trigger(actor, trigger_id)])[0]


def trigger_views(rows: Sequence[Trigger]) -> list[dict[str, Any]]:
    found = trigger_queries.standing(rows)
    return [trigger_view(one, found[one.id]) for one in rows]


def trigger_view(trigger: Trigger, standing: Standing) -> dict[str, Any]:
    schedule = Schedule.of(trigger)
    return {
        "id": str(trigger.id),
        "name": trigger.name,
        "pipeline": trigger.pipeline.slug,
        "environment": trigger.environment.slug,
        "application": trigger.application.name,
        "cron": trigger.cron,
        "timezone": trigger.timezone,
        "gap": trigger.gap,
        "overlap": trigger.overlap,
        "input": trigger.input,
        "overlap_policy": trigger.overlap_policy,
        "catch_up": trigger.catch_up,
        "catch_up_limit": trigger.catch_up_limit,
        "start_within": trigger.start_within,
        "spread": trigger.spread,
        "deadline_seconds": trigger.deadline_seconds,
        "enabled": trigger.enabled,
        "starts_at": time(trigger.starts_at),
        "ends_at": time(trigger.ends_at),
        "version": trigger.version,
        "description": schedule.sentence(),
        "blackout": standing.blackout or None,
        "next_ticks": [next_tick_view(due, schedule) for due in standing.next_ticks],
        "last_tick": tick_view(standing.last_tick) if standing.last_tick else None,
        "missed": standing.missed,
        "missed_capped": standing.is_capped,
        "missed_from": time(standing.missed_from),
        "missed_to": time(standing.missed_to),
        "created_at": time(trigger.created_at),
        "updated_at": time(trigger.updated_at),
    }


def next_tick_view(due: Due, schedule: Schedule) -> dict[str, Any]:
    return {
        "tick_time": time(due.at),
        "local_time": due.local.isoformat(),
        "rule": due.rule,
        "says": schedule.explain(due),
    }


def tick_view(tick: Tick) -> dict[str, Any]:
    return {
        "id": str(tick.id),
        "tick_time": time(tick.at),
        "local_time": tick.local_time,
        "rule": tick.rule,
        "says": trigger_queries.says(tick),
        "status": tick.state,
        "reason": tick.reason or None,
        "detail": tick.detail or None,
        "execution_id": str(tick.run) if tick.state == TickState.DISPATCHED else None,  # before, it is only reserved
        "backfill_id": str(tick.backfill) if tick.backfill else None,
        "cron": tick.cron,
        "timezone": tick.timezone,
        "error": {"code": tick.error_code, "message": tick.error_message} if tick.error_code else None,
        "recorded_at": time(tick.recorded_at),
        "decided_at": time(tick.decided_at),
    }


urlpatterns = [
    path("triggers", Triggers.as_view()),
    path("triggers/<str:trigger_id>", OneTrigger.as_view()),
    path("triggers/<str:trigger_id>/ticks", Ticks.as_view()),
]
