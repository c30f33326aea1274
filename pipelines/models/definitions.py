"""Who may, and what is to run: workspaces, members, environments, applications, keys, pipelines, releases, policies."""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, TextDigest, closed_set, frozen_when, kept, not_emptied
from pipelines.states import ReleaseStatus


class Role(models.TextChoices):
    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    RELEASE_MANAGER = "release_manager"
    ADMIN = "admin"


class KeyScope(models.TextChoices):
    APPLICATION = "application"
    RUNTIME = "runtime"


class PolicyKind(models.TextChoices):
    RETRY = "retry"
    TIMEOUT = "timeout"
    RATE = "rate"
    CONCURRENCY = "concurrency"
    RUN_RETRY = "run_retry"  # of whole runs that failed; off without one


class PolicyStatus(models.TextChoices):
    ACTIVE = "active"
    PAUSED = "paused"


class Workspace(models.Model):
    """Tenant and permission boundary."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    slug = models.SlugField(max_length=100, unique=True)
    name = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    def __str__(self) -> str:
        return self.slug


class Member(models.Model):
    """One person's one role in one workspace. `since` is when they got this role: the database sees to it."""

    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role.choices)
    since = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "user"], name="member_one_role_per_workspace"),
            closed_set("role", Role, "member_role_known"),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="member_role_since",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.Condition("NEW.role <> OLD.role OR NEW.user_id <> OLD.user_id"),
                func="NEW.since := recourse_now(); RETURN NEW;",
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} in {self.workspace}"


class Environment(models.Model):
    """A rung of the workspace's ladder."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="environments")
    slug = models.SlugField(max_length=100)
    rank = models.PositiveIntegerField()
    protected = models.BooleanField(default=False)

    class Meta:
        ordering = ["workspace", "rank", "slug"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "slug"], name="environment_slug_once_per_workspace")
        ]

    def __str__(self) -> str:
        return self.slug


class Application(models.Model):
    """A program that creates runs and runs handlers."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="applications")
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="application_name_once_per_workspace")
        ]

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """An application's secret for one environment. Only its SHA-256 is kept; the prefix is shown to tell keys apart."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    application = models.ForeignKey(Application, models.CASCADE, related_name="keys")
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="keys")
    scope = models.CharField(max_length=20, choices=KeyScope.choices, default=KeyScope.APPLICATION)
    prefix = models.CharField(max_length=12, editable=False)
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API key"
        constraints = [closed_set("scope", KeyScope, "api_key_scope_known")]

    def __str__(self) -> str:
        return f"{self.prefix}… of {self.application}"


class PersonalToken(models.Model):
    """A person's bearer token for one workspace. Only its SHA-256 is kept; `last_used_at` is true to the minute."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="tokens")
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=12, editable=False)
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.prefix}… of {self.user}"


class Pipeline(models.Model):
    """A definition, known by its slug."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="pipelines")
    slug = models.SlugField(max_length=100)
    name = models.CharField(max_length=255)
    description = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "slug"], name="pipeline_slug_once_per_workspace")]

    def __str__(self) -> str:
        return self.slug


class Release(models.Model):
    """An immutable version of a pipeline for one environment; without a pipeline, an inline stage list found by digest.

    `definition` is canonical JSON (RFC 8785) and `digest` its SHA-256 in hex.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="releases")
    pipeline = models.ForeignKey(Pipeline, models.CASCADE, null=True, blank=True, related_name="releases")
    environment = models.ForeignKey(Environment, models.CASCADE, null=True, blank=True, related_name="releases")
    definition = models.TextField()
    digest = models.CharField(max_length=64)
    status = models.CharField(max_length=20, choices=ReleaseStatus.choices, default=ReleaseStatus.DRAFT)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
    )
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)
    activated_at = models.DateTimeField(null=True, blank=True)
    policy_digest = models.CharField(
        max_length=64, blank=True, db_default="", help_text="the policies in force when it was activated"
    )
    text_digest = models.GeneratedField(
        expression=TextDigest("definition"),
        output_field=models.CharField(max_length=64),
        db_persist=True,
        help_text="of the text as it stands, whoever changed it",
    )
    source_digest = models.CharField(
        max_length=64, blank=True, db_default="", editable=False, help_text="of the code that it was deployed with"
    )
    material_changes = models.JSONField(
        null=True, blank=True, help_text="[{stage, what, before, after}] of recipients, against what was in force"
    )
    reviewed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    reviewed_at = models.DateTimeField(null=True, blank=True, editable=False)
    review_note = models.TextField(blank=True, db_default="", editable=False)

    class Meta:
        constraints = [
            closed_set("status", ReleaseStatus, "release_status_known"),
            models.UniqueConstraint(
                fields=["pipeline", "environment"],
                condition=Q(status=ReleaseStatus.ACTIVE, pipeline__isnull=False),
                name="release_one_active_per_environment",
            ),
            models.UniqueConstraint(
                fields=["pipeline", "environment", "digest"],
                condition=Q(pipeline__isnull=False),
                name="release_digest_once_per_environment",
            ),
            models.UniqueConstraint(
                fields=["workspace", "digest"],
                condition=Q(pipeline__isnull=True),
                name="release_inline_digest_once",
            ),
            models.CheckConstraint(
                condition=Q(pipeline__isnull=True, environment__isnull=True)
                | Q(pipeline__isnull=False, environment__isnull=False),
                name="release_inline_or_managed",
            ),
        ]
        triggers = [
            frozen_when(
                "release_text_stays",
                "OLD.definition <> NEW.definition OR OLD.digest <> NEW.digest",
                "a release is never changed; register another one",
            ),
            frozen_when(  # another look is due only when what it was given for is otherwise
                "release_review_stays",
                "OLD.reviewed_at IS NOT NULL AND OLD.material_changes IS NOT DISTINCT FROM NEW.material_changes"
                " AND ((OLD.reviewed_at, OLD.review_note) IS DISTINCT FROM (NEW.reviewed_at, NEW.review_note)"
                " OR NEW.reviewed_by_id <> OLD.reviewed_by_id)",
                "a release that was reviewed stays so",
            ),
            frozen_when(
                "release_activation_stays",
                "NEW.status = 'draft' AND OLD.status <> 'draft'"
                " OR NEW.status <> OLD.status AND OLD.status IN ('retired', 'revoked')"
                " AND NEW.status NOT IN ('retired', 'revoked')"
                " OR NEW.status = 'active' AND OLD.status <> 'active'"
                " AND NEW.activated_at IS NOT DISTINCT FROM OLD.activated_at"
                " OR OLD.activated_at IS NOT NULL"
                " AND (NEW.activated_at IS NULL OR NEW.activated_at < OLD.activated_at)",
                "what was put in force is never set back; put another release in force",
            ),
            kept("release_kept"),
            not_emptied("release_not_emptied"),
        ]

    def __str__(self) -> str:
        return f"{self.pipeline or 'inline'} {self.digest[:12]}"

    @property
    def needs_review(self) -> bool:
        """Whether its recipients are otherwise than in force, and nobody reviewed that."""
        return bool(self.material_changes) and self.reviewed_at is None and self.status != ReleaseStatus.ACTIVE


class Policy(models.Model):
    """A rule that targets stages and outranks their own options.

    `match` holds any of pipeline, stage, handler, environment, error_codes; `rule` the options of a retry policy
    (`max_retries`, `retry_interval`, …), `{"seconds": n}` of a timeout policy, `{"count": n, "per_seconds": s}` of a
    rate policy, `{"max_active": n}` of a concurrency policy, or of a run retry policy `mode` and a retry's options: it
    targets whole runs, by pipeline and environment.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="policies")
    name = models.CharField(max_length=255)
    kind = models.CharField(max_length=20, choices=PolicyKind.choices)
    match = models.JSONField(default=dict)
    rule = models.JSONField(default=dict)
    status = models.CharField(max_length=20, choices=PolicyStatus.choices, default=PolicyStatus.ACTIVE)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)
    unlined_at = models.DateTimeField(
        null=True, editable=False, help_text="since when stages that wait may stand in lines that it changed"
    )

    class Meta:
        verbose_name_plural = "policies"
        constraints = [
            closed_set("kind", PolicyKind, "policy_kind_known"),
            closed_set("status", PolicyStatus, "policy_status_known"),
            models.UniqueConstraint("workspace", Lower("name"), name="policy_name_once_per_workspace"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
