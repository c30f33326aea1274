"""The operations API's routes for blackouts and the freeze: the times in which nothing starts (contract §4, F117)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from datetime import date, time
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers

from pipelines import blackout_rows, blackouts
from pipelines.access import RELEASE, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, page_answer
from pipelines.api.serializers import NAME
from pipelines.api.shapes import Check, Flag, Identifier, ListOf, Moment, OneOf, Shape, Text, Whole, Wrong
from pipelines.audit import LONGEST_REASON
from pipelines.filters import AnyId, AnyOf, ListFilter, Truth
from pipelines.models import Blackout, BlackoutKind
from pipelines.paging import page_of, read_cut

SLUG = 100
MAY_BE_NONE = ("starts_at", "ends_at")  # null is a value of theirs: none
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class WallClock(serializers.TimeField):
    """What a clock on the wall shows: 22:00, or 22:00:30. 24:00 is 00:00 of the next day."""

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            if type(value) is not str or not _CLOCK.fullmatch(value):
                return Wrong.at_value("must be a time of day such as 22:00 or 06:30:15")
            return time.fromisoformat(value)

        return check


class Day(serializers.DateField):
    """A day of the calendar: 2026-12-24."""

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            try:
                day = date.fromisoformat(value) if type(value) is str and _DAY.fullmatch(value) else None
            except ValueError:
                day = None
            if day is None or not 1970 <= day.year <= 2200:
                return Wrong.at_value("must be a day such as 2026-12-24, from 1970 to 2200")
            return day

        return check


class BlackoutFilter(ListFilter):
    """Blackouts by where they hold, their kind, and whether they are on."""

    name = AnyOf()
    kind = AnyOf(choices=BlackoutKind.values)
    environment = AnyOf("environment__slug")
    trigger_id = AnyId()
    is_freeze = Truth()
    enabled = Truth()


class BlackoutChange(Shape):
    """What of a blackout may change; what is left out stays. `null` takes away a start or an end."""

    name = Text(max_length=NAME, control=False, trim=True, required=False)
    timezone = Text(blank=True, required=False, help_text="of days, times and dates; UTC at first")
    days = ListOf(
        child=Whole(min_value=1, max_value=7),
        max_length=7,
        required=False,
        help_text="of the week, on which it begins: 1 is Monday, 7 is Sunday",
    )
    from_time = WallClock(required=False)
    to_time = WallClock(required=False, help_text="not after from_time: until this time of the next day")
    dates = ListOf(child=Day(), max_length=blackout_rows.MOST_DATES, required=False)
    starts_at = Moment(required=False, allow_null=True)
    ends_at = Moment(required=False, allow_null=True)
    reason = Text(blank=True, trim=True, max_length=LONGEST_REASON, required=False)
    enabled = Flag(required=False)

    @classmethod
    def clean(cls, value: Any, *, partial: bool = False) -> dict[str, Any]:
        clean = super().clean(value, partial=partial)
        return clean | {name: None for name in MAY_BE_NONE if name in value and value[name] is None}


class BlackoutRequest(BlackoutChange):
    """A time in which nothing starts: in the whole workspace, in one environment, or for one trigger.

    `weekly` has `days`, `from_time` and `to_time`; `dates` has `dates`; `period` has `starts_at`, `ends_at` or both.
    """

    name = Text(max_length=NAME, control=False, trim=True)
    kind = OneOf(BlackoutKind.values)
    environment = Text(max_length=SLUG, required=False, help_text="its slug; none: all of the workspace")
    trigger_id = Identifier(required=False, help_text="only this trigger's ticks")


class BlackoutItem(Shape):
    """A blackout. `holds`: it is on, and covers this moment."""

    id = Identifier()
    name = Text()
    kind = OneOf(BlackoutKind.values)
    is_freeze = Flag()
    environment = Text(allow_null=True)
    trigger_id = Identifier(allow_null=True)
    timezone = Text()
    days = ListOf(child=Whole(min_value=1, max_value=7))
    from_time = WallClock(allow_null=True)
    to_time = WallClock(allow_null=True)
    dates = ListOf(child=Day())
    starts_at = Moment(allow_null=True)
    ends_at = Moment(allow_null=True)
    reason = Text(blank=True)
    enabled = Flag()
    holds = Flag()
    created_by = Text(allow_null=True)
    created_at = Moment()


class FreezeRequest(Shape):
    """Nothing starts from now on, until it is lifted or until then."""

    reason = Text(trim=True, max_length=LONGEST_REASON)
    environment = Text(max_length=SLUG, required=False, help_text="its slug; none: all of the workspace")
    until = Moment(required=False)


class LiftRequest(Shape):
    """Lifts the freeze of the workspace, or of one environment."""

    reason = Text(blank=True, trim=True, max_length=LONGEST_REASON, default="")
    environment = Text(max_length=SLUG, required=False, help_text="its slug; none: the freeze of the workspace")


class FreezeItem(Shape):
    """A freeze that holds: who declared it, why, since when. `environment` is null: everywhere in the workspace."""

    id = Identifier()
    environment = Text(allow_null=True)
    reason = Text()
    by = Text(allow_null=True)
    since = Moment()
    until = Moment(allow_null=True)


class FreezeAnswer(Shape):
    """The freezes that hold now, the workspace's own first."""

    is_frozen = Flag()
    freezes = ListOf(child=FreezeItem())


class LiftAnswer(FreezeAnswer):
    """What still holds, and what was lifted just now."""

    lifted = ListOf(child=FreezeItem())


class Blackouts(OperationsEndpoint):
    """The times in which nothing starts, newest first, freezes among them; POST makes one. The same again changes
    nothing, and answers 200.
    """

    access = {"GET": VIEW, "POST": RELEASE}
    bodies = {"POST": BlackoutRequest}
    actions = {"POST": blackout_rows.SAVE}
    filters = BlackoutFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(BlackoutItem))
    def get(self, call: Call) -> HttpResponse:
        rows = BlackoutFilter.narrow(blackout_rows.rows(call.actor.workspace_id), call.params)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, blackout_items(page.rows))

    @extend_schema(request=BlackoutRequest, responses={201: BlackoutItem, 200: BlackoutItem})
    def post(self, call: Call) -> HttpResponse:
        wanted = dict(call.body)
        where = {name: wanted.pop(name, None) for name in ("environment", "trigger_id")}
        row, is_new = blackout_rows.create_once(actor=call.actor, wanted=wanted, **where)
        return answer(blackout_items([row])[0], 201 if is_new else 200)


class OneBlackout(OperationsEndpoint):
    """Changes a blackout, or switches it off and on. Where it holds, and its kind, stay; a freeze is lifted instead."""

    access = {"PATCH": RELEASE}
    bodies = {"PATCH": BlackoutChange}
    actions = {"PATCH": blackout_rows.SAVE}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Blackout:
        found = blackout_rows.rows(actor.workspace_id).filter(id=ids["blackout_id"]).first()
        if found is None:
            raise not_found()
        return found

    @extend_schema(request=BlackoutChange, responses=BlackoutItem)
    def patch(self, call: Call) -> HttpResponse:
        row = blackout_rows.change(call.target.id, actor=call.actor, changes=call.body)
        return answer(blackout_items([row])[0])


class Freeze(OperationsEndpoint):
    """Declares that nothing starts from now on. The same again changes nothing, and answers 200 instead of 201."""

    access = {"GET": VIEW, "POST": RELEASE}
    bodies = {"POST": FreezeRequest}
    actions = {"POST": blackout_rows.DECLARE}

    @extend_schema(description="Who declared which freeze that holds, why, and since when.", responses=FreezeAnswer)
    def get(self, call: Call) -> HttpResponse:
        return answer(_freezes(call.actor))

    @extend_schema(request=FreezeRequest, responses={200: FreezeItem, 201: FreezeItem})
    def post(self, call: Call) -> HttpResponse:
        declared = blackout_rows.declare(actor=call.actor, **call.body)
        return answer(freeze_item(declared.row), 201 if declared.is_new else 200)


class Lift(OperationsEndpoint):
    """Ends a freeze: what waits is handed out. Where nothing is frozen nothing changes."""

    access = {"POST": RELEASE}
    bodies = {"POST": LiftRequest}
    actions = {"POST": blackout_rows.LIFT}

    @extend_schema(request=LiftRequest, responses=LiftAnswer)
    def post(self, call: Call) -> HttpResponse:
        lifted = blackout_rows.lift(actor=call.actor, **call.body)
        return answer({**_freezes(call.actor), "lifted": [freeze_item(row) for row in lifted]})


def blackout_items(rows: Sequence[Blackout]) -> list[dict[str, Any]]:
    holding = blackouts.holding([row.id for row in rows])
    return [
        {
            "id": str(row.id),
            "name": row.name,
            "kind": row.kind,
            "is_freeze": row.is_freeze,
            "environment": row.environment.slug if row.environment else None,
            "trigger_id": str(row.trigger_id) if row.trigger_id else None,
            "timezone": row.timezone,
            "days": row.days,
            "from_time": row.from_time.isoformat() if row.from_time else None,
            "to_time": row.to_time.isoformat() if row.to_time else None,
            "dates": [day.isoformat() for day in row.dates],
            "starts_at": wire.time(row.starts_at),
            "ends_at": wire.time(row.ends_at),
            "reason": row.reason,
            "enabled": row.enabled,
            "holds": row.id in holding,
            "created_by": row.created_by.get_username() if row.created_by else None,
            "created_at": wire.time(row.created_at),
        }
        for row in rows
    ]


def freeze_item(row: Blackout) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "environment": row.environment.slug if row.environment else None,
        "reason": row.reason,
        "by": row.created_by.get_username() if row.created_by else None,
        "since": wire.time(row.starts_at),
        "until": wire.time(row.ends_at),
    }


def _freezes(actor: Actor) -> dict[str, Any]:
    found = blackout_rows.freezes(actor.workspace_id)
    return {"is_frozen": bool(found), "freezes": [freeze_item(row) for row in found]}


urlpatterns = [
    path("blackouts", Blackouts.as_view()),
    path("blackouts/<str:blackout_id>", OneBlackout.as_view()),
    path("freeze", Freeze.as_view()),
    path("freeze/lift", Lift.as_view()),
]
