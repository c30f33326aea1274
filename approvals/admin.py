"""The admin site for approvals: admins of a workspace change its rules; what was asked and decided is read."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest

from approvals import rule_rows
from approvals.models import ApprovalRequest, ApprovalRule, RequestDecision
from approvals.rule_form import RuleForm
from approvals.rules import sentence
from pipelines.tenant_admin import DefinitionAdmin, TenantAdmin, acting, raise_denied


@admin.register(ApprovalRule)
class ApprovalRuleAdmin(DefinitionAdmin):
    """Who must agree to what. After each save the rule is read back as a sentence, with what to know about it."""

    form = RuleForm
    fieldsets = (
        (None, {"fields": ("workspace", "name", "enabled", "says")}),
        ("What it is about", {"fields": ("kinds", "environments", "pipelines", "counted", "at_least")}),
        ("Who must agree", {"fields": ("role", "count", "expires_in")}),
    )
    list_display = ("name", "workspace", "says", "enabled")
    list_select_related = ("workspace",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*super().get_readonly_fields(request, obj), "says")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is not None and acting(request, obj.workspace_id) is not None

    def save_model(self, request: HttpRequest, obj: ApprovalRule, form: Any, change: bool) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        wanted = {name: form.cleaned_data[name] for name in (*rule_rows.FIELDS, "enabled")}
        if change:
            row = rule_rows.change_rule(obj.pk, actor=actor, changes=wanted)
        else:
            row = rule_rows.add_rule(actor=actor, wanted=wanted)
        obj.pk = row.pk
        self.message_user(request, sentence(rule_rows.as_rule(row)))
        for text in rule_rows.warnings([row], row.workspace_id)[row.pk]:
            self.message_user(request, text, messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: ApprovalRule) -> None:
        rule_rows.remove_rule(obj.pk, actor=acting(request, obj.workspace_id) or raise_denied(obj))

    @admin.display(description="in words")
    def says(self, obj: ApprovalRule) -> str:
        return sentence(rule_rows.as_rule(obj)) if obj.kinds else ""


@admin.register(ApprovalRequest)
class ApprovalRequestAdmin(TenantAdmin):
    found_by = ("pk", "subject", "run")
    list_display = ("subject", "round", "kind", "cause", "state", "requested_by", "approver_role", "count", "opened_at")
    list_select_related = ("requested_by",)


@admin.register(RequestDecision)
class RequestDecisionAdmin(TenantAdmin):
    tenant = "request__workspace"
    found_by = ("request",)
    list_display = ("request_id", "user", "role", "approved", "at")
    list_select_related = ("user",)
