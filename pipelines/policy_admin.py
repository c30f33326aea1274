"""The admin site for policies: made and changed by admins, through the same checks and verbs as over the API (P45)."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from pipelines import catalog
from pipelines.models import Policy
from pipelines.policy_form import PolicyForm
from pipelines.tenant_admin import DefinitionAdmin, acting, raise_denied

CHANGEABLE = ("name", "match", "rule", "status")


@admin.register(Policy)
class PolicyAdmin(DefinitionAdmin):
    """Rules that outrank stages' own options. What is changed rules from now on; a policy is paused, not removed."""

    form = PolicyForm
    fields = ("workspace", "name", "kind", "match", "rule", "status", "created_at")
    list_display = ("name", "kind", "status", "workspace", "created_at")
    list_select_related = ("workspace",)
    fixed = ("workspace", "kind", "created_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.fixed if obj else ("created_at",)

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        told = {name: form.cleaned_data[name] for name in CHANGEABLE}
        if not change:
            obj.pk = catalog.add_policy(actor=actor, kind=obj.kind, **told).pk
            return
        changes = {name: told[name] for name in form.changed_data if name in told}
        catalog.change_policy(obj.pk, actor=actor, changes=changes)
