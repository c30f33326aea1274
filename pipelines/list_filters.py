"""What each list of a workspace's rows may be filtered by, in the words of the wire."""

from __future__ import annotations

from typing import Any

from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Lower

from pipelines.filters import AnyId, AnyOf, Before, ListFilter, Named, Since, Truth, Until
from pipelines.models import Application, Pipeline, PolicyKind, PolicyStatus
from pipelines.states import (
    DeadLetterReason,
    DeadLetterState,
    EffectClass,
    EffectState,
    ReleaseStatus,
    SessionState,
    SkipReason,
    TickState,
)


class AttemptFilter(ListFilter):
    """The attempts of a run, by stage."""

    stage_id = AnyId()


class Level(AnyOf):
    """Log lines of any of the levels given, in whatever case: workers say `info`, loggers `INFO`."""

    def filter(self, qs: Any, value: Any) -> Any:
        if not value:
            return qs
        return qs.alias(folded=Lower("level")).filter(folded__in=[one.lower() for one in value])


class LogLineFilter(ListFilter):
    """What handlers logged in a run by stage, attempt and level."""

    stage = AnyOf("attempt__stage__name")
    attempt_id = AnyId()
    level = Level()


class EffectFilter(ListFilter):
    """The effects of a run by class, state and stage."""

    state = AnyOf(choices=EffectState.values)
    stage = AnyOf("stage__name")
    stage_id = AnyId()


EffectFilter.base_filters["class"] = AnyOf("effect_class", choices=EffectClass.values)  # a word of Python itself


class PipelineFilter(ListFilter):
    """Pipelines by slug."""

    slug = AnyOf()


class ReleaseFilter(ListFilter):
    """Releases by where they belong and whether they are in force."""

    pipeline = AnyOf("pipeline__slug")
    environment = AnyOf("environment__slug")
    status = AnyOf(choices=ReleaseStatus.values)


class PolicyFilter(ListFilter):
    """Policies by what they rule and whether they do."""

    kind = AnyOf(choices=PolicyKind.values)
    status = AnyOf(choices=PolicyStatus.values)


class OfBulk(AnyId):
    """Audit events of bulk operations: of the request, and of what it did to each thing (F146)."""

    def filter(self, qs: Any, value: Any) -> Any:
        if not value:
            return qs
        told = qs.alias(bulk=KeyTextTransform("bulk", "data"))
        return told.filter(data__has_key="bulk", bulk__in=[str(one) for one in value])


class AuditEventFilter(ListFilter):
    """Audit events by what was tried, by whom, over which channel, on what, and when."""

    action = AnyOf()
    outcome = AnyOf()
    actor = AnyOf()
    channel = AnyOf()
    execution_id = AnyId("run")
    run = AnyId()
    stage_id = AnyId("stage")
    request_id = AnyOf()
    bulk = OfBulk()
    since = Since("at")
    until = Before("at")
    created_after = Since("at")
    created_before = Before("at")


class WorkerFilter(ListFilter):
    """Worker sessions by state, application and the handlers they have."""

    status = AnyOf("state", choices=SessionState.values)
    application = AnyOf("application__name")
    handler = AnyOf("handlers", lookup="overlap")


class DeadLetterFilter(ListFilter):
    """Dead letters by state, reason, error, run, handler, pipeline and application."""

    status = AnyOf("state", choices=DeadLetterState.values)
    reason = AnyOf(choices=DeadLetterReason.values)
    error_code = AnyOf()
    execution_id = AnyId("run_id")
    handler = AnyOf()
    pipeline = Named("run__pipeline", Pipeline, "slug")
    application = Named("run__application", Application, "name")


class TriggerFilter(ListFilter):
    """Triggers by what they start, where, for whom, and whether they do."""

    name = AnyOf()
    pipeline = AnyOf("pipeline__slug")
    environment = AnyOf("environment__slug")
    application = AnyOf("application__name")
    enabled = Truth()


class TickFilter(ListFilter):
    """The ledger of a trigger: what became of its ticks, and a window both ends of which belong to it."""

    status = AnyOf("state", choices=TickState.values)
    reason = AnyOf(choices=SkipReason.values)
    from_time = Since("at")
    to_time = Until("at")
