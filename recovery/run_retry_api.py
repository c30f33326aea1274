"""Run retries over `/v1`: what was decided about a run that failed, and calling off what is due (N1, N2)."""

from __future__ import annotations

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines.access import RECOVER, VIEW
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb
from recovery import run_retry_rows, run_retry_work, serializers


class RunRetries(OperationsEndpoint):
    """What was decided each time that a run failed under a policy for whole runs, newest first; at most twenty."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=wire.listed(wire.RunRetryView))
    def get(self, call: Call) -> HttpResponse:
        found = run_retry_rows.history(call.target)
        results = [serializers.told_of(retry, call.target) for retry in found]
        return answer({"next": None, "previous": None, "results": results})


class Stop(OperationsEndpoint):
    """Calls off that a run retries itself; it stays failed until somebody does something about it. The same again: the
    same answer."""

    access = {"POST": RECOVER}
    bodies = {"POST": Verb}
    actions = {"POST": run_retry_work.STOP}

    @extend_schema(request=Verb, responses=wire.RunRetryView)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; that it is called off makes it safe to repeat
        retry = run_retry_work.stop(call.target.id, actor=call.actor, reason=call.reason)
        return answer(serializers.told_of(retry, call.target))


urlpatterns = [
    path("executions/<str:execution_id>/run-retry", RunRetries.as_view()),
    path("executions/<str:execution_id>/run-retry/stop", Stop.as_view()),
]
