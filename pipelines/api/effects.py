"""The operations API's list of a run's effects: what its attempts did outside, or were about to do (contract §3)."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import queries
from pipelines.access import VIEW
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, page_answer
from pipelines.api.operations_serializers import HUGE, listed, time
from pipelines.api.shapes import AnyJson, Identifier, Moment, OneOf, Shape, Text, Whole
from pipelines.list_filters import EffectFilter
from pipelines.models import Effect
from pipelines.paging import page_of, read_cut
from pipelines.states import EffectClass, EffectState


class EffectView(Shape):
    """`settled_at`: when its outcome was told or found out; null for one that its attempt left open."""

    spelling = {"effect_class": "class"}

    id = Identifier()
    effect_id = Identifier()
    stage_id = Identifier()
    stage = Text()
    attempt_id = Identifier()
    attempt = Whole(min_value=1, max_value=HUGE)
    epoch = Whole(min_value=1, max_value=HUGE)
    effect_class = OneOf(EffectClass.values)
    step_id = Text()
    idempotency_key = Text(allow_null=True)
    state = OneOf(EffectState.values)
    external_ref = Text(allow_null=True)
    request_hash = Text(allow_null=True)
    detail = AnyJson(allow_null=True)
    declared_at = Moment()
    settled_at = Moment(allow_null=True)


def effect_view(effect: Effect, number: int) -> dict[str, Any]:
    """An effect, with the number of its attempt."""
    return {
        "id": str(effect.id),
        "effect_id": str(effect.id),
        "stage_id": str(effect.stage_id),
        "stage": effect.stage.name,
        "attempt_id": str(effect.attempt),
        "attempt": number,
        "epoch": effect.epoch,
        "class": effect.effect_class,
        "step_id": effect.step_id,
        "idempotency_key": effect.key or None,
        "state": effect.state,
        "external_ref": effect.external_ref or None,
        "request_hash": effect.request_hash or None,
        "detail": effect.detail,
        "declared_at": time(effect.declared_at),
        "settled_at": time(effect.settled_at),
    }


class Effects(OperationsEndpoint):
    """The effects of a run, newest first, those of earlier epochs too."""

    access = {"GET": VIEW}
    filters = EffectFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=listed(EffectView))
    def get(self, call: Call) -> HttpResponse:
        rows = EffectFilter.narrow(queries.effects(call.target), call.params)
        page = page_of(rows, read_cut(call.params), ("declared_at", "id"))
        numbers = queries.attempt_numbers(effect.attempt for effect in page.rows)
        return page_answer(call.request, page, [effect_view(effect, numbers[effect.attempt]) for effect in page.rows])


urlpatterns = [path("executions/<str:execution_id>/effects", Effects.as_view())]
