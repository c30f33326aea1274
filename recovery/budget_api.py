"""The operations API's route for what a run has spent, and what it may still spend (R25–R29)."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines.access import VIEW
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, page_told
from pipelines.api.operations_serializers import listed, time
from pipelines.api.serializers import Bounds
from pipelines.api.shapes import Identifier, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.budget_queries import Charge, charges, standing
from pipelines.budgets import Charged
from pipelines.limits import MOST_ATTEMPTS, MOST_BYTES
from pipelines.paging import read_cut
from recovery import revisions


class Amount(Shape):
    """Attempts, and bytes of output."""

    attempts = Whole(min_value=0, max_value=MOST_ATTEMPTS)
    output_bytes = Whole(min_value=0, max_value=MOST_BYTES)


class RevisionsView(Shape):
    """Reruns, retries with all behind them or with another input: of the run and of what it was forked from."""

    used = Whole(min_value=0, max_value=MOST_ATTEMPTS)
    left = Whole(min_value=0, max_value=MOST_ATTEMPTS)


class ShareView(Shape):
    """What a stage was charged; `allowance` is what its next attempt would be, whatever it returns."""

    stage_id = Identifier()
    name = Text()
    attempts = Whole(min_value=0, max_value=MOST_ATTEMPTS)
    charged = Whole(min_value=0, max_value=MOST_BYTES)
    allowance = Whole(min_value=0, max_value=MOST_BYTES)


class ChargeView(Shape):
    """An attempt that began, or an artifact; `total` is what was charged up to it, in bytes."""

    id = Identifier()
    kind = OneOf(("attempt", "artifact"))
    at = Moment()
    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    attempt = Whole(min_value=1, max_value=MOST_ATTEMPTS, allow_null=True)
    bytes = Whole(min_value=0, max_value=MOST_BYTES)
    total = Whole(min_value=0, max_value=MOST_BYTES)


class Pinned(Bounds):
    """The limits of a run as it pinned them, defaults filled in; without a deadline it has none."""

    deadline_seconds = Whole(allow_null=True)


class BudgetView(Shape):
    """`reserved` is what stages may begin without asking again; what is left never rises."""

    limits = Pinned()
    charged = Amount()
    reserved = Amount()
    left = Amount()
    revisions = RevisionsView()
    stages = ListOf(child=ShareView())
    entries = listed(ChargeView)()


class Budget(OperationsEndpoint):
    """The limits of a run, what it has spent of them, and each charge, oldest first, in pages."""

    access = {"GET": VIEW}
    filters = ()
    for_key = True

    @extend_schema(parameters=list_parameters(), responses=BudgetView)
    def get(self, call: Call) -> HttpResponse:
        run = call.target
        found = standing(run)
        used = revisions.used([run.id]).get(run.id, 0)
        page = charges(run, read_cut(call.params))
        return answer(
            {
                "limits": found.limits.as_json(),
                "charged": _amount(found.charged),
                "reserved": _amount(found.reserved),
                "left": _amount(found.left),
                "revisions": {"used": used, "left": max(0, found.limits.revisions - used)},
                "stages": [
                    {
                        "stage_id": str(one.stage_id),
                        "name": one.name,
                        "attempts": one.attempts,
                        "charged": one.charged,
                        "allowance": one.allowance,
                    }
                    for one in found.stages
                ],
                "entries": page_told(call.request, page, [_charge(one) for one in page.rows]),
            }
        )


def _amount(told: Charged) -> dict[str, int]:
    return {"attempts": told.attempts, "output_bytes": told.bytes}


def _charge(one: Charge) -> dict[str, Any]:
    return {
        "id": str(one.id),
        "kind": one.kind,
        "at": time(one.at),
        "stage_id": str(one.stage_id) if one.stage_id else None,
        "stage": one.stage,
        "attempt": one.attempt,
        "bytes": one.bytes,
        "total": one.total,
    }


urlpatterns = [path("executions/<str:execution_id>/budget", Budget.as_view())]
