"""The admin site for policies: made and changed by admins, through the same checks and verbs as over the API (P45)."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join

from pipelines import catalog, throttle_use
from pipelines.models import Policy
from pipelines.policies import THROTTLES
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
        return (*self.fixed, "in_use") if obj else ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return tuple(name for name in self.fields if name != "created_at")
        return (*self.fields, "in_use") if obj.kind in THROTTLES else self.fields

    @admin.display(description="in use now")
    def in_use(self, policy: Policy) -> str:
        """How much of its room is taken, and of a concurrency policy by whom."""
        use = throttle_use.uses([policy.pk], throttle_use.LISTED).get(policy.pk)
        if use is None:
            return "It is paused: it holds up nothing."
        per = f" in the last {use.per_seconds:g} s" if use.per_seconds else ""
        opens = f"; the next may go at {use.opens:%Y-%m-%d %H:%M:%S} UTC at the latest" if use.opens else ""
        more = f" The first {len(use.slots)} are listed." if use.used > len(use.slots) > 0 else ""
        held = [(reverse("console:run", args=[slot.run.id]), slot.sentence()) for slot in use.slots]
        return format_html(
            "{} of {}{}{}.{}<ul>{}</ul>",
            use.used,
            use.most,
            per,
            opens,
            more,
            format_html_join("", '<li><a href="{}">{}</a></li>', held),
        )

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        told = {name: form.cleaned_data[name] for name in CHANGEABLE}
        if not change:
            obj.pk = catalog.add_policy(actor=actor, kind=obj.kind, **told).pk
            return
        changes = {name: told[name] for name in form.changed_data if name in told}
        catalog.change_policy(obj.pk, actor=actor, changes=changes)
