"""The admin site for triggers, their ledgers and lanes. Who may release changes a trigger; all else is read."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from pipelines import triggers
from pipelines.access import CAPABILITIES, RELEASE, Actor, person
from pipelines.models import Lane, Tick, Trigger, TriggerVersion, Workspace
from pipelines.schedules import Schedule
from pipelines.tenant_admin import DefinitionAdmin, TenantAdmin, raise_denied
from pipelines.trigger_form import TriggerForm


@admin.register(Trigger)
class TriggerAdmin(DefinitionAdmin):
    """Who may release makes and changes them; a trigger stays what it was made for. Its past is in its ledger."""

    form = TriggerForm
    fieldsets = (
        (None, {"fields": ("workspace", *triggers.PLACE, "name", "enabled", "reason")}),
        ("When", {"fields": (*triggers.SCHEDULE, *triggers.MOMENTS, "kept")}),
        ("What it starts", {"fields": ("input", "deadline_seconds", "spread", "overlap_policy")}),
        ("What is found too late", {"fields": ("start_within", "catch_up", "catch_up_limit")}),
    )
    fixed = ("workspace", *triggers.PLACE)
    list_display = ("name", "workspace", "pipeline", "environment", "in_words", "enabled", "next_at")
    list_select_related = ("workspace", "pipeline", "environment")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_module_permission(request) and _released_by(request).exists()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request) and (obj is None or _releaser(request, obj) is not None)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*super().get_readonly_fields(request, obj), "kept")

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        theirs = _released_by(request)
        is_workspace = db_field.related_model is Workspace
        field.queryset = theirs if is_workspace else db_field.related_model.objects.filter(workspace__in=theirs)
        return field

    def save_model(self, request: HttpRequest, obj: Trigger, form: Any, change: bool) -> None:
        actor = _releaser(request, obj) or raise_denied(obj)
        told, reason = form.settings(), form.cleaned_data["reason"]
        if not change:
            place = {"pipeline": obj.pipeline.slug, "environment": obj.environment.slug}
            wanted = {**place, "application": str(obj.application_id), **told}
            row = triggers.create(actor=actor, wanted=wanted, reason=reason)
        else:
            row = self._change(obj, told, actor, reason)
        obj.pk, obj.name = row.pk, row.name
        self.message_user(request, self.in_words(row))

    def _change(self, obj: Trigger, told: dict[str, Any], actor: Actor, reason: str) -> Trigger:
        kept = Trigger.objects.get(pk=obj.pk)
        changes = {name: value for name, value in told.items() if getattr(kept, name) != value}
        if set(changes) == {"enabled"}:
            return triggers.switch(obj.pk, actor=actor, enabled=changes["enabled"], reason=reason)
        return triggers.change(obj.pk, actor=actor, changes=changes, reason=reason)

    @admin.display(description="in words")
    def in_words(self, obj: Trigger) -> str:
        return Schedule.of(obj).sentence()

    @admin.display(description="in words, as it is kept")
    def kept(self, obj: Trigger) -> str:
        row = Trigger.objects.filter(pk=obj.pk).first()  # a form that is refused has changed what it was given
        return self.in_words(row) if row else "-"


@admin.register(TriggerVersion)
class TriggerVersionAdmin(TenantAdmin):
    """How triggers were set, by whom and why."""

    tenant = "trigger__workspace"
    found_by = ("trigger",)
    list_display = ("trigger", "version", "actor", "reason", "at")
    list_select_related = ("trigger",)


@admin.register(Tick)
class TickAdmin(TenantAdmin):
    """The ledger."""

    tenant = "trigger__workspace"
    found_by = ("pk", "trigger", "run")
    list_display = ("at", "trigger", "state", "reason", "detail", "run", "error_code", "rule", "recorded_at")
    list_select_related = ("trigger",)


@admin.register(Lane)
class LaneAdmin(TenantAdmin):
    """What lets runs of a trigger or a backfill in, which has its id."""

    list_display = ("id", "capacity", "is_open", "is_background")


def _released_by(request: HttpRequest) -> QuerySet[Workspace]:
    """The workspaces in which the user may release."""
    return Workspace.objects.filter(members__user=cast(Any, request.user), members__role__in=CAPABILITIES[RELEASE])


def _releaser(request: HttpRequest, obj: Trigger) -> Actor | None:
    """The user as one who may release in the trigger's workspace; None when they may not."""
    actor = person(request.user, obj.workspace_id, "admin")
    return actor if actor is not None and actor.may(RELEASE) else None
