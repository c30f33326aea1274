"""The admin site for operations: there to be read."""

from __future__ import annotations

from django.contrib import admin

from pipelines.tenant_admin import TenantAdmin
from recovery.models import (
    Backfill,
    BackfillTick,
    BulkItem,
    BulkOperation,
    EffectEvidence,
    Operation,
    Reconciliation,
    RunRetry,
)


@admin.register(Operation)
class OperationAdmin(TenantAdmin):
    found_by = ("pk", "run")
    list_display = ("id", "kind", "run_id", "state", "disposition", "asker", "channel", "created_at")
    list_select_related = ("requested_by",)


@admin.register(EffectEvidence)
class EffectEvidenceAdmin(TenantAdmin):
    tenant = "effect__run__workspace"
    found_by = ("pk", "effect")
    list_display = ("id", "effect_id", "source", "is_sealed", "is_clean", "user", "at")
    list_select_related = ("user",)


@admin.register(Reconciliation)
class ReconciliationAdmin(TenantAdmin):
    tenant = "run__workspace"
    found_by = ("pk", "run")
    list_display = ("id", "run_id", "stage_id", "effect_id", "outcome", "user", "at")
    list_select_related = ("user",)


@admin.register(Backfill)
class BackfillAdmin(TenantAdmin):
    found_by = ("pk", "trigger")
    list_display = ("id", "trigger", "state", "from_time", "to_time", "max_concurrent", "requested_by", "created_at")
    list_select_related = ("trigger", "requested_by")


@admin.register(BackfillTick)
class BackfillTickAdmin(TenantAdmin):
    """What backfills made of each tick of theirs."""

    tenant = "backfill__workspace"
    found_by = ("backfill", "run")
    list_display = ("backfill_id", "at", "local_time", "rule", "state", "run", "error_code")


@admin.register(BulkOperation)
class BulkOperationAdmin(TenantAdmin):
    list_display = ("id", "kind", "state", "total", "requested_by", "channel", "reason", "created_at", "finished_at")
    list_select_related = ("requested_by",)


@admin.register(BulkItem)
class BulkItemAdmin(TenantAdmin):
    """What bulk operations did to each of their targets."""

    tenant = "bulk__workspace"
    found_by = ("bulk", "run", "operation")
    list_display = ("bulk_id", "position", "run", "stage", "state", "code", "operation", "made", "decided_at")


@admin.register(RunRetry)
class RunRetryAdmin(TenantAdmin):
    """What was decided about runs that failed under a policy for whole runs, and what became of it."""

    found_by = ("pk", "run", "made")
    list_display = ("id", "run_id", "policy_name", "mode", "number", "state", "due_at", "code", "decided_at")
