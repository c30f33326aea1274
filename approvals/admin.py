"""The admin site for approvals: admins of a workspace change its rules; what was asked and decided is read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from approvals import rule_rows
from approvals.forms import ChannelForm, NotificationRuleForm
from approvals.models import (
    ApprovalRequest,
    ApprovalRule,
    Channel,
    Delivery,
    DeliveryTry,
    Message,
    NotificationRule,
    RequestDecision,
)
from approvals.notifications import upkeep
from approvals.rule_form import RuleForm
from approvals.rules import sentence
from approvals.states import DeliveryState
from pipelines.access import person
from pipelines.admin import SHOWN_ONCE
from pipelines.audit import audited
from pipelines.errors import Refusal
from pipelines.tenant_admin import DefinitionAdmin, TenantAdmin, acting, administered, raise_denied


@admin.register(ApprovalRule)
class ApprovalRuleAdmin(DefinitionAdmin):
    """Who must agree to what. After each save the rule is read back as a sentence, with what to know about it."""

    form = RuleForm
    fieldsets = (
        (None, {"fields": ("workspace", "name", "enabled", "kept")}),
        ("What it is about", {"fields": ("kinds", "environments", "pipelines", "counted", "at_least")}),
        ("Who must agree", {"fields": ("role", "count", "expires_in")}),
    )
    list_display = ("name", "workspace", "says", "enabled")
    list_select_related = ("workspace",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*super().get_readonly_fields(request, obj), "kept")

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
        return sentence(rule_rows.as_rule(obj))

    @admin.display(description="in words, as it is kept")
    def kept(self, obj: ApprovalRule) -> str:
        row = ApprovalRule.objects.filter(pk=obj.pk).first()  # a form that is refused has changed what it was given
        return self.says(row) if row else "-"


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


# who is told


class ToldAdmin(DefinitionAdmin):
    """What admins make, change and remove to say who is told. After each save it is said what would keep it silent."""

    list_select_related: ClassVar[Any] = ("workspace",)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is not None and acting(request, obj.workspace_id) is not None

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        before, after = self.changes(obj, form, change)
        action = f"{self.opts.model_name}.save"
        with audited(actor, action, id=str(obj.pk), name=obj.name, before=before, after=after):
            obj.save()
        for text in self.warnings(obj):
            self.message_user(request, text, messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        with audited(actor, f"{self.opts.model_name}.remove", id=str(obj.pk), name=obj.name):
            # held first: nothing new comes to hang on it, and what has come meanwhile is seen
            self.model.objects.select_for_update().filter(pk=obj.pk).first()
            if not self.has_delete_permission(request, obj):
                raise_denied(obj)
            obj.delete()

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Without a list of the messages that a rule has gathered: they may be thousands, and go with it."""
        return [str(obj) for obj in objs], {}, set(), []

    def changes(self, obj: Any, form: Any, change: bool) -> tuple[dict[str, str] | None, dict[str, str]]:
        """What the audit keeps: each changed field of the row as it was and as it is, and nothing else of the form."""
        kept = {field.name for field in self.opts.fields}
        names = [name for name in form.changed_data if name in kept]
        before = {name: str(form.initial.get(name)) for name in names} if change else None
        return before, {name: str(form.cleaned_data[name]) for name in names}

    def warnings(self, obj: Any) -> list[str]:
        raise NotImplementedError


def each_allowed(
    modeladmin: TenantAdmin, request: HttpRequest, rows: QuerySet[Any], act: Callable[..., Any]
) -> list[Any]:
    """Does it to each row as the person that asks; those that are refused are told why. Returns those that it did."""
    done = []
    for row in rows:
        actor = person(request.user, row.workspace_id, "admin")
        if actor is None:
            continue  # not theirs to see
        try:
            if act(row.pk, actor=actor):
                done.append(row)
        except Refusal as refusal:
            modeladmin.message_user(request, refusal.detail, messages.ERROR)
    return done


@admin.register(Channel)
class ChannelAdmin(ToldAdmin):
    """Address and secret go in and are never shown again; a channel that something was sent to stays, or is turned
    off, as long as the log of it is kept."""

    form = ChannelForm
    fixed = ("workspace", "kind")
    list_display = ("name", "workspace", "kind", "goes_to", "is_signed", "enabled")
    actions = ("send_test",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*super().get_readonly_fields(request, obj), "goes_to", "is_signed")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Of a new channel without what it has been set to, which is nothing."""
        address, secret = (("goes_to",), ("is_signed",)) if obj else ((), ())
        return (
            (None, {"fields": ("workspace", "name", "kind", "enabled")}),
            ("E-mail", {"fields": ("recipients",)}),
            ("Webhooks", {"fields": (*address, "new_address", *secret, "new_secret", "make_secret")}),
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and not obj.deliveries.exists() and not obj.rules.exists()

    def save_model(self, request: HttpRequest, obj: Channel, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if form.made:
            self.message_user(request, SHOWN_ONCE.format(secret=form.made), messages.WARNING)

    def changes(self, obj: Any, form: Any, change: bool) -> tuple[dict[str, str] | None, dict[str, str]]:
        """An address is told by its host, a secret by its having been set."""
        before, after = super().changes(obj, form, change)
        if form.cleaned_data.get("new_address"):
            after["address"] = obj.host
            if before is not None:
                before["address"] = Channel.objects.values_list("host", flat=True).get(pk=obj.pk)
        if form.made or form.cleaned_data.get("new_secret"):
            after["secret"] = "set anew"  # noqa: S105 - the words that are told instead of it
        return before, after

    def warnings(self, obj: Channel) -> list[str]:
        return upkeep.channel_warnings(obj)

    @admin.display(description="goes to")
    def goes_to(self, obj: Channel) -> str:
        return obj.host or ", ".join(obj.recipients) or "-"

    @admin.display(description="secret")
    def is_signed(self, obj: Channel) -> str:
        return "set" if obj.secret else "-"

    @admin.action(description="Send a test message", permissions=["view"])
    def send_test(self, request: HttpRequest, queryset: QuerySet[Channel]) -> None:
        for channel in each_allowed(self, request, queryset, upkeep.send_test):
            self.message_user(request, f"On its way to {channel.name}; its delivery says what comes of it")


@admin.register(NotificationRule)
class NotificationRuleAdmin(ToldAdmin):
    """Which notices go to which channel."""

    form = NotificationRuleForm
    fields = ("workspace", "name", "enabled", "channel", "digest_seconds", "kinds", "environments", "pipelines")
    list_display = ("name", "workspace", "channel", "kinds", "environments", "pipelines", "digest_seconds", "enabled")
    list_select_related = ("workspace", "channel")

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "channel":
            kwargs["queryset"] = Channel.objects.filter(workspace__in=administered(request))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def changes(self, obj: Any, form: Any, change: bool) -> tuple[dict[str, str] | None, dict[str, str]]:
        """A channel is told by its name."""
        before, after = super().changes(obj, form, change)
        if before and "channel" in before:
            before["channel"] = Channel.objects.values_list("name", flat=True).get(pk=form.initial["channel"])
        return before, after

    def warnings(self, obj: NotificationRule) -> list[str]:
        return upkeep.rule_warnings(obj)


class StateFilter(admin.SimpleListFilter):
    """Deliveries of one state."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.value, state.label) for state in DeliveryState]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:
        return queryset.filter(state=self.value()) if self.value() in DeliveryState.values else queryset


class ChannelFilter(admin.SimpleListFilter):
    """Deliveries to one of the channels that the user may see."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        theirs = Channel.objects.filter(workspace__members__user=request.user.pk).order_by("name")
        return [(str(pk), name) for pk, name in theirs.values_list("pk", "name")[:100]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:
        known = {value: uuid.UUID(value) for value, _ in self.lookup_choices}
        wanted = known.get(self.value() or "")
        return queryset.filter(channel=wanted) if wanted else queryset


@admin.register(Delivery)
class DeliveryAdmin(TenantAdmin):
    """What was sent, or is on its way, with its log."""

    found_by = ("pk", "channel")
    hidden = ("body",)
    list_display = ("subject", "channel", "state", "tries", "created_at", "closed_at")
    list_select_related = ("channel",)
    list_filter = (StateFilter, ChannelFilter)
    show_facets = admin.ShowFacets.NEVER
    readonly_fields = ("lines", "tried")
    actions = ("send_again",)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return lookup in (StateFilter.parameter_name, ChannelFilter.parameter_name)

    @admin.display(description="messages")
    def lines(self, obj: Delivery) -> str:
        return format_html("<pre>{}</pre>", json.dumps(obj.body, indent=2, ensure_ascii=False))

    @admin.display(description="log")
    def tried(self, obj: Delivery) -> str:
        rows = obj.log.order_by("id").values_list("number", "at", "answer", "milliseconds")
        told = ((number, f"{at:%Y-%m-%d %H:%M:%S} UTC", answer, took) for number, at, answer, took in rows)
        return format_html_join("", "<p>{}. {}: {} ({} ms)</p>", told) or "-"

    @admin.action(description="Send the selected ones that failed again", permissions=["view"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        again = each_allowed(self, request, queryset, upkeep.send_again)
        self.message_user(request, f"Sent again: {len(again)}; what is on its way or was taken stays as it is")


@admin.register(DeliveryTry)
class DeliveryTryAdmin(TenantAdmin):
    tenant = "delivery__workspace"
    found_by = ("delivery",)
    list_display = ("delivery_id", "number", "succeeded", "answer", "milliseconds", "at")


@admin.register(Message)
class MessageAdmin(TenantAdmin):
    tenant = "rule__workspace"
    found_by = ("delivery", "run", "subject")
    list_display = ("id", "rule", "kind", "run", "delivery_id", "at")
    list_select_related = ("rule",)
