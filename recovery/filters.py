"""What the lists of operations and dead letters may be filtered by."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from pipelines.filters import Parameters, chosen, identifiers, moment, values
from pipelines.models import DeadLetter
from pipelines.states import DeadLetterReason, DeadLetterState
from recovery.models import Operation
from recovery.states import OperationKind, OperationState

OPERATION_FILTERS = ("kind", "status", "execution_id", "stage_id", "requested_by", "created_after", "created_before")
LETTER_FILTERS = ("status", "reason", "error_code", "execution_id", "handler", "pipeline", "application")


def filter_operations(rows: QuerySet[Operation], params: Parameters) -> QuerySet[Operation]:
    """Operations by kind, state, run, stage, person and time."""
    wanted: dict[str, Any] = {
        "kind__in": chosen(params, "kind", OperationKind.values),
        "state__in": chosen(params, "status", OperationState.values),
        "run_id__in": identifiers(params, "execution_id"),
        "stage_id__in": identifiers(params, "stage_id"),
        "requested_by__username__in": values(params, "requested_by"),
    }
    for text in values(params, "created_after"):
        rows = rows.filter(created_at__gte=moment(text, "created_after"))
    for text in values(params, "created_before"):
        rows = rows.filter(created_at__lt=moment(text, "created_before"))
    return rows.filter(**{name: given for name, given in wanted.items() if given})


def filter_letters(rows: QuerySet[DeadLetter], params: Parameters) -> QuerySet[DeadLetter]:
    """Dead letters by state, reason, error, run, handler, pipeline and application."""
    wanted: dict[str, Any] = {
        "state__in": chosen(params, "status", DeadLetterState.values),
        "reason__in": chosen(params, "reason", DeadLetterReason.values),
        "error_code__in": values(params, "error_code"),
        "run_id__in": identifiers(params, "execution_id"),
        "stage__handler__in": values(params, "handler"),
        "run__pipeline__slug__in": values(params, "pipeline"),
        "run__application__name__in": values(params, "application"),
    }
    return rows.filter(**{name: given for name, given in wanted.items() if given})
