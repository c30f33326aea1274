"""The operations API's routes for what may still go on outside after a run was ended (contract §3, R37, P75)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines import aftermath
from pipelines.access import RESOLVE, VIEW, Actor
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb, page_answer
from pipelines.api.operations_serializers import HUGE, listed, time
from pipelines.api.shapes import Flag, Identifier, Moment, OneOf, Shape, Text, Whole
from pipelines.audit import LONGEST_REASON
from pipelines.models import ReconciliationItem, ReconciliationKind
from pipelines.paging import page_of, read_cut


class SettleRequest(Verb):
    """What became of it, in the words of who looked."""

    note = Text(trim=True, max_length=LONGEST_REASON)


class ItemView(Shape):
    """Something that may still go on outside; `subject_id` is the attempt, effect or gate that it is about."""

    id = Identifier()
    execution_id = Identifier()
    stage_id = Identifier()
    stage = Text()
    attempt = Whole(min_value=0, max_value=HUGE)
    kind = OneOf(ReconciliationKind.values)
    subject_id = Identifier(allow_null=True)
    detail = Text()
    opened_at = Moment()
    settled_at = Moment(allow_null=True)
    settled_by = Text(allow_null=True)
    note = Text(allow_null=True)


class SettledView(ItemView):
    replayed = Flag()


def item_view(item: ReconciliationItem) -> dict[str, Any]:
    return {
        "id": str(item.id),
        "execution_id": str(item.run_id),
        "stage_id": str(item.stage_id),
        "stage": item.stage.name,
        "attempt": item.attempt_number,
        "kind": item.kind,
        "subject_id": str(item.subject) if item.subject else None,
        "detail": item.detail,
        "opened_at": time(item.opened_at),
        "settled_at": time(item.resolved_at) if item.resolved_at else None,
        "settled_by": item.resolved_name or None,
        "note": item.note or None,
    }


class OfExecution(OperationsEndpoint):
    """What may still go on outside after a run was ended, newest first, with what became of it."""

    access = {"GET": VIEW}
    filters = aftermath.OfRunFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=listed(ItemView))
    def get(self, call: Call) -> HttpResponse:
        rows = aftermath.OfRunFilter.narrow(aftermath.of_run(call.target.id), call.params)
        page = page_of(rows, read_cut(call.params), aftermath.ORDER)
        return page_answer(call.request, page, [item_view(one) for one in page.rows])


class AllOpen(OperationsEndpoint):
    """What nobody has settled yet, of all runs, newest first."""

    access = {"GET": VIEW}
    filters = aftermath.OpenFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=listed(ItemView))
    def get(self, call: Call) -> HttpResponse:
        rows = aftermath.OpenFilter.narrow(aftermath.all_open(call.actor), call.params)
        page = page_of(rows, read_cut(call.params), aftermath.ORDER)
        return page_answer(call.request, page, [item_view(one) for one in page.rows])


class Settle(OperationsEndpoint):
    """Says what became of something outside, once and for good; it moves no stage. The same again: the same answer."""

    access = {"POST": RESOLVE}
    bodies = {"POST": SettleRequest}
    actions = {"POST": aftermath.ACTION}

    def find(self, actor: Actor, **ids: uuid.UUID) -> ReconciliationItem:
        item = aftermath.find(actor, ids["item_id"])
        if item.run_id != ids["execution_id"]:
            raise aftermath.unknown()
        return item

    @extend_schema(request=SettleRequest, responses=SettledView)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; the note itself makes it safe to repeat
        settled = aftermath.settle(
            call.target.run_id, call.target.id, actor=call.actor, note=call.body["note"], reason=call.reason
        )
        return answer({**item_view(settled.item), "replayed": settled.replayed})


urlpatterns = [
    path("executions/<str:execution_id>/reconciliation", OfExecution.as_view()),
    path("executions/<str:execution_id>/reconciliation/<str:item_id>/settle", Settle.as_view()),
    path("reconciliation", AllOpen.as_view()),
]
