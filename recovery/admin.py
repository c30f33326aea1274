"""The admin site for operations: there to be read."""

from __future__ import annotations

from django.contrib import admin

from pipelines.tenant_admin import TenantAdmin
from recovery.models import Operation


@admin.register(Operation)
class OperationAdmin(TenantAdmin):
    found_by = ("pk", "run")
    list_display = ("id", "kind", "run_id", "state", "disposition", "requested_by", "channel", "created_at")
    list_select_related = ("requested_by",)
