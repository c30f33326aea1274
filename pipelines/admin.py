"""The admin site for what this app holds. History is there to be read; definitions may be changed by admins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin
from django.db.models import QuerySet
from django.http import HttpRequest

from pipelines import (  # noqa: F401 - the admins among them register their own
    audit_admin,
    blackout_admin,
    catalog,
    credentials,
    keyring,
    policy_admin,
    trigger_admin,
)
from pipelines.access import Actor, person
from pipelines.audit import audited, record
from pipelines.errors import Refusal
from pipelines.models import (
    ApiKey,
    Application,
    Artifact,
    ArtifactContent,
    Attempt,
    AttemptProgress,
    Checkpoint,
    CheckpointEvidence,
    ChildRun,
    ContextItem,
    DeadLetter,
    Effect,
    Environment,
    Event,
    Gate,
    GateDecision,
    LateEvidence,
    LocalKeyring,
    LogLine,
    Member,
    Notice,
    PersonalToken,
    Pipeline,
    QueueEntry,
    ReconciliationItem,
    Release,
    Role,
    Run,
    RunIdentity,
    RunSearch,
    Stage,
    StageOutput,
    StoreTable,
    Termination,
    WorkerSession,
    Workspace,
)
from pipelines.tenant_admin import DefinitionAdmin, TenantAdmin, acting, raise_denied
from pipelines.token_form import TokenForm

SHOWN_ONCE = "This is the only time that it is shown: {secret}"

# definitions


@admin.register(Workspace)
class WorkspaceAdmin(TenantAdmin):
    """A superuser may make one: it gets its ladder, and them as its first admin."""

    list_display = ("slug", "name", "created_at")
    tenant = "pk"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_superuser)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("created_at",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Workspace, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        catalog.furnish(obj)
        Member.objects.create(workspace=obj, user=cast(Any, request.user), role=Role.ADMIN)
        actor = Actor(request.user.get_username(), obj.id, "admin", user_id=request.user.pk, role=Role.ADMIN)
        record(actor, "workspace.save", "allowed", data={"workspace": obj.slug})


@admin.register(Member)
class MemberAdmin(DefinitionAdmin):
    list_display = ("user", "workspace", "role", "since")
    list_select_related = ("user", "workspace")
    autocomplete_fields = ("user",)
    fixed = ("workspace", "user", "since")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is not None and acting(request, obj.workspace_id) is not None

    def delete_model(self, request: HttpRequest, obj: Member) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        with audited(actor, "member.remove", user=obj.user.get_username(), role=obj.role):
            super().delete_model(request, obj)


class AccountAdmin(UserAdmin):  # type: ignore[type-arg] # generic for the type checker only
    """Django's own, for superusers. Whoever sets the password of another can act as them: the audit of each workspace
    of that other says who changed the account, and what of it. One that is a member somewhere is not deleted."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        user: Any = request.user
        for workspace_id in Member.objects.filter(user=obj).values_list("workspace_id", flat=True):
            actor = Actor(user.get_username(), workspace_id, "admin", user_id=user.pk)
            record(actor, "user.save", "allowed", data={"user": obj.get_username(), "change": message})
        return super().log_change(request, obj, message)


admin.site.unregister(get_user_model())
admin.site.register(get_user_model(), AccountAdmin)


@admin.register(Environment)
class EnvironmentAdmin(DefinitionAdmin):
    list_display = ("slug", "workspace", "rank", "protected")
    list_select_related = ("workspace",)
    fixed = ("workspace", "slug")


@admin.register(Application)
class ApplicationAdmin(DefinitionAdmin):
    list_display = ("name", "workspace", "created_at")
    list_select_related = ("workspace",)
    fixed = ("workspace", "created_at")


@admin.register(Pipeline)
class PipelineAdmin(DefinitionAdmin):
    list_display = ("slug", "name", "workspace", "created_at")
    list_select_related = ("workspace",)
    fixed = ("workspace", "slug", "created_at")


@admin.register(Release)
class ReleaseAdmin(TenantAdmin):
    list_display = ("id", "pipeline", "environment", "status", "digest", "created_at", "activated_at")
    list_select_related = ("pipeline", "environment")


class SecretAdmin(DefinitionAdmin):
    """Something secret: shown once when it is made, never changed, revoked by an action."""

    hidden: ClassVar[tuple[str, ...]] = ("digest", "revoked_at")
    fixed = ()
    actions = ("revoke",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def revoke_each(self, request: HttpRequest, rows: QuerySet[Any], verb: Callable[..., None]) -> None:
        """Revokes what the user may, and says of each other one why it stays."""
        for row in rows:
            actor = person(request.user, self.workspace_of(row), "admin")
            if actor is None:
                continue  # not theirs to see
            try:
                verb(row.pk, actor=actor)
            except Refusal as refusal:
                self.message_user(request, f"{row.prefix}: {refusal.detail}", messages.ERROR)

    def show(self, request: HttpRequest, secret: str) -> None:
        self.message_user(request, SHOWN_ONCE.format(secret=secret), messages.WARNING)


@admin.register(ApiKey)
class ApiKeyAdmin(SecretAdmin):
    tenant = "application__workspace"
    list_display = ("prefix", "application", "environment", "scope", "created_at", "expires_at", "revoked_at")
    list_select_related = ("application", "environment")

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        actor = acting(request, obj.application.workspace_id) or raise_denied(obj)
        if obj.environment.workspace_id != obj.application.workspace_id:
            raise_denied(obj)
        key, secret = credentials.issue_key(
            actor=actor,
            application=obj.application,
            environment=obj.environment,
            scope=obj.scope,
            expires_at=obj.expires_at,
        )
        obj.pk, obj.prefix = key.pk, key.prefix
        self.show(request, secret)

    @admin.action(description="Revoke the selected keys", permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        self.revoke_each(request, queryset.select_related("application"), credentials.revoke_key)


@admin.register(PersonalToken)
class PersonalTokenAdmin(SecretAdmin):
    """Whoever makes one makes their own: with another's they could agree to what they asked for themselves."""

    form = TokenForm
    hidden = (*SecretAdmin.hidden, "user")
    list_display = ("name", "prefix", "user", "workspace", "created_at", "last_used_at", "expires_at", "revoked_at")
    list_select_related = ("user", "workspace")

    def save_model(self, request: HttpRequest, obj: PersonalToken, form: Any, change: bool) -> None:
        actor = acting(request, obj.workspace_id) or raise_denied(obj)
        obj.user = cast(Any, request.user)
        token, secret = credentials.issue_token(actor=actor, user=obj.user, name=obj.name, expires_at=obj.expires_at)
        obj.pk, obj.prefix = token.pk, token.prefix
        self.show(request, secret)

    @admin.action(description="Revoke the selected tokens", permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[PersonalToken]) -> None:
        self.revoke_each(request, queryset, credentials.revoke_token)


# history


@admin.register(Run)
class RunAdmin(TenantAdmin):
    list_display = ("id", "name", "status", "application", "environment", "created_at", "finished_at")
    list_select_related = ("application", "environment")


@admin.register(RunSearch)
class RunSearchAdmin(TenantAdmin):
    tenant = "run__workspace"
    list_display = ("run_id",)


@admin.register(RunIdentity)
class RunIdentityAdmin(TenantAdmin):
    tenant = "run__workspace"
    list_display = ("run_id", "application", "environment", "key")
    list_select_related = ("application", "environment")


@admin.register(ContextItem)
class ContextItemAdmin(TenantAdmin):
    tenant = "run__workspace"
    found_by = ("run",)
    hidden = ("secret",)
    list_display = ("run_id", "key", "value", "is_sensitive", "at")


@admin.register(Stage)
class StageAdmin(TenantAdmin):
    tenant = "application__workspace"
    found_by = ("pk", "run")
    list_display = ("id", "run_id", "name", "handler", "state", "epoch", "attempt_number")


@admin.register(QueueEntry)
class QueueEntryAdmin(TenantAdmin):
    tenant = "application__workspace"
    list_display = ("stage_id", "application", "environment", "handler", "available_at")
    list_select_related = ("application", "environment")


@admin.register(StageOutput)
class StageOutputAdmin(TenantAdmin):
    tenant = "stage__run__workspace"
    found_by = ("pk", "stage")
    list_display = ("id", "stage_id", "epoch", "size", "digest", "at")


@admin.register(WorkerSession)
class WorkerSessionAdmin(TenantAdmin):
    tenant = "application__workspace"
    hidden = ("digest",)
    list_display = ("id", "worker_name", "application", "environment", "state", "started_at", "last_seen_at")
    list_select_related = ("application", "environment")


@admin.register(Attempt)
class AttemptAdmin(TenantAdmin):
    tenant = "stage__run__workspace"
    found_by = ("pk", "stage")
    list_display = ("id", "stage_id", "number", "epoch", "state", "worker", "error_code", "dispatched_at")


@admin.register(AttemptProgress)
class AttemptProgressAdmin(TenantAdmin):
    tenant = "attempt__stage__run__workspace"
    list_display = ("attempt_id", "percent", "message", "at")


@admin.register(LogLine)
class LogLineAdmin(TenantAdmin):
    tenant = "attempt__stage__run__workspace"
    found_by = ("attempt",)
    list_display = ("attempt_id", "at", "level", "message")


@admin.register(LateEvidence)
class LateEvidenceAdmin(TenantAdmin):
    tenant = "attempt__stage__run__workspace"
    found_by = ("attempt",)
    list_display = ("attempt_id", "reason", "digest", "at")


@admin.register(Artifact)
class ArtifactAdmin(TenantAdmin):
    found_by = ("pk", "run", "digest")
    list_display = ("name", "size", "digest", "run_id", "stage_id", "added_by", "at")


@admin.register(ArtifactContent)
class ArtifactContentAdmin(TenantAdmin):
    found_by = ("pk", "digest")
    list_display = ("digest", "size", "place", "at")
    hidden = ("body",)


@admin.register(StoreTable)
class StoreTableAdmin(TenantAdmin):
    found_by = ("pk", "written_by_run")
    list_display = ("name", "application_id", "environment_id", "rows", "bytes", "written_by_run", "written_at")


@admin.register(ChildRun)
class ChildRunAdmin(TenantAdmin):
    tenant = "parent__workspace"
    found_by = ("pk", "parent", "stage", "run", "started")
    list_display = ("id", "parent_id", "key", "run_id", "epoch", "on_parent_end", "is_current", "awaited", "created_at")


@admin.register(ReconciliationItem)
class ReconciliationItemAdmin(TenantAdmin):
    found_by = ("pk", "run", "stage")
    list_display = ("run_id", "kind", "detail", "opened_at", "resolved_at", "resolved_name")


@admin.register(Termination)
class TerminationAdmin(TenantAdmin):
    tenant = "attempt__stage__run__workspace"
    found_by = ("pk",)
    list_display = ("attempt_id", "complete", "at")


@admin.register(DeadLetter)
class DeadLetterAdmin(TenantAdmin):
    found_by = ("pk", "stage")
    list_display = ("id", "stage_id", "reason", "error_code", "state", "opened_at", "closed_at")


@admin.register(Gate)
class GateAdmin(TenantAdmin):
    tenant = "stage__run__workspace"
    found_by = ("pk", "stage")
    list_display = ("id", "stage_id", "moment", "epoch", "state", "opened_at", "closed_at")


@admin.register(GateDecision)
class GateDecisionAdmin(TenantAdmin):
    tenant = "gate__stage__run__workspace"
    found_by = ("gate",)
    list_display = ("gate_id", "user", "application", "approved", "at")
    list_select_related = ("user", "application")


@admin.register(Notice)
class NoticeAdmin(TenantAdmin):
    found_by = ("run", "stage", "subject")
    list_display = ("id", "kind", "run", "stage", "subject", "at")


@admin.register(Event)
class EventAdmin(TenantAdmin):
    tenant = "run__workspace"
    found_by = ("run",)
    list_display = ("id", "run_id", "kind", "from_state", "to_state", "at", "actor")


@admin.register(Checkpoint)
class CheckpointAdmin(TenantAdmin):
    tenant = "run__workspace"
    found_by = ("pk", "run")
    list_display = ("id", "run_id", "sequence", "moment", "current_step_id", "key_id", "recorded_at")


@admin.register(CheckpointEvidence)
class CheckpointEvidenceAdmin(TenantAdmin):
    tenant = "checkpoint__run__workspace"
    found_by = ("checkpoint",)
    list_display = ("checkpoint_id", "digest", "added_by", "at")


@admin.register(Effect)
class EffectAdmin(TenantAdmin):
    tenant = "run__workspace"
    found_by = ("pk", "run")
    list_display = ("id", "run_id", "effect_class", "step_id", "key", "state", "declared_at", "settled_at")


@admin.register(LocalKeyring)
class LocalKeyringAdmin(TenantAdmin):
    """Which keys there are; they are changed through the API and the commands."""

    hidden = ("document",)
    readonly_fields = ("signing_keys",)
    list_display = ("workspace", "version", "changed_at", "changed_by")
    list_select_related = ("workspace", "changed_by")

    @admin.display
    def signing_keys(self, obj: LocalKeyring) -> str:
        try:
            keys = keyring.read(obj.workspace_id).keys
        except keyring.Unavailable as fault:
            return str(fault)
        return ", ".join(f"{key.key_id} ({key.state})" for key in keys.values())
