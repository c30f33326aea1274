"""The admin site for operations: there to be read."""

from __future__ import annotations

from django.contrib import admin

from pipelines.tenant_admin import TenantAdmin
from recovery.models import EffectEvidence, Operation, Reconciliation


@admin.register(Operation)
class OperationAdmin(TenantAdmin):
    found_by = ("pk", "run")
    list_display = ("id", "kind", "run_id", "state", "disposition", "requested_by", "channel", "created_at")
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
