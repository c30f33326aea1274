"""The admin site for blackouts. Who may release switches them off and on; they are made and set elsewhere."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from pipelines import blackout_rows
from pipelines.access import RELEASE, person
from pipelines.models import Blackout
from pipelines.tenant_admin import DefinitionAdmin, raise_denied


@admin.register(Blackout)
class BlackoutAdmin(DefinitionAdmin):
    """The times in which nothing starts. A freeze is lifted through API or console, and not changed."""

    list_display = ("name", "kind", "environment", "trigger", "enabled", "is_freeze", "workspace", "created_at")
    list_select_related = ("environment", "trigger", "workspace")
    fields = ("workspace", "environment", "trigger", "is_freeze", *blackout_rows.FIELDS, "created_at")
    fixed = tuple(name for name in fields if name != "enabled")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if not self.has_module_permission(request) or obj is None:
            return self.has_module_permission(request)
        actor = person(request.user, obj.workspace_id, "admin")
        return actor is not None and actor.may(RELEASE) and not obj.is_freeze

    def save_model(self, request: HttpRequest, obj: Blackout, form: Any, change: bool) -> None:
        actor = person(request.user, obj.workspace_id, "admin") or raise_denied(obj)
        blackout_rows.change(obj.pk, actor=actor, changes={"enabled": form.cleaned_data["enabled"]})
