"""What bounds a run: artifacts with their contents, what remained to be settled after a cancel, how processes ended."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.attempts import Attempt
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only, kept, not_emptied
from pipelines.models.definitions import Workspace
from pipelines.models.runs import Run, Stage


class ContentPlace(models.TextChoices):
    DATABASE = "database"
    STORAGE = "storage"  # a directory or S3-compatible storage, as RECOURSE_ARTIFACTS says


class ArtifactContent(models.Model):
    """Bytes, known by their SHA-256 and kept once for each workspace. Only retention removes what nothing refers to."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="+", db_index=False)
    digest = models.CharField(max_length=64, help_text="SHA-256 in hex")
    size = models.PositiveIntegerField()
    place = models.CharField(max_length=20, choices=ContentPlace.choices)
    body = models.BinaryField(null=True, help_text="where the place is the database")
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "digest"], name="artifact_content_once_per_workspace"),
            closed_set("place", ContentPlace, "artifact_content_place_known"),
            models.CheckConstraint(
                condition=Q(place=ContentPlace.DATABASE, body__isnull=False)
                | Q(place=ContentPlace.STORAGE, body__isnull=True),
                name="artifact_content_is_where_it_says",
            ),
        ]
        triggers = [insert_only("artifact_content_insert_only"), not_emptied("artifact_content_not_emptied")]


class Artifact(models.Model):
    """A named result of an attempt, or a baseline that a person or an application gave. Never changed (R14, I7)."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="artifacts", db_index=False)
    application = models.ForeignKey("pipelines.Application", models.PROTECT, null=True, related_name="+")
    environment = models.ForeignKey("pipelines.Environment", models.PROTECT, null=True, related_name="+")
    run = models.ForeignKey(Run, models.CASCADE, null=True, related_name="artifacts", db_index=False)
    stage = models.ForeignKey(Stage, models.CASCADE, null=True, related_name="artifacts", db_index=False)
    attempt = models.UUIDField(null=True, help_text="none for a baseline")
    content = models.ForeignKey(ArtifactContent, models.PROTECT, related_name="artifacts")
    name = models.CharField(max_length=255)
    media_type = models.CharField(max_length=100, blank=True)
    digest = models.CharField(max_length=64, help_text="SHA-256 in hex, as it was given")
    size = models.PositiveIntegerField()
    added_by = models.CharField(max_length=255, blank=True, help_text="the worker's or person's name, for people")
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "name"], condition=Q(attempt__isnull=False), name="artifact_name_once_per_attempt"
            ),
            models.UniqueConstraint(
                fields=["workspace", "name"], condition=Q(run__isnull=True), name="artifact_baseline_name_once"
            ),
        ]
        indexes = [
            models.Index(fields=["run", "at", "id"], name="artifact_of_run", condition=Q(run__isnull=False)),
            models.Index(fields=["workspace", "-at", "-id"], name="artifact_newest"),
            models.Index(fields=["workspace", "name", "-at", "-id"], name="artifact_by_name"),
            models.Index(fields=["workspace", "-at", "-id"], name="artifact_baselines", condition=Q(run__isnull=True)),
        ]
        triggers = [insert_only("artifact_insert_only"), not_emptied("artifact_not_emptied")]

    def __str__(self) -> str:
        return f"{self.name} {self.digest[:12]}"


class ReconciliationKind(models.TextChoices):
    RUNNING_ATTEMPT = "running_attempt"  # its worker was told to stop
    UNCERTAIN_EFFECT = "uncertain_effect"  # a stage that waited to be reconciled
    OPEN_EFFECT = "open_effect"  # declared, or its outcome not known
    OPEN_GATE = "open_gate"
    AWAITED_IMPORT = "awaited_import"  # somebody elsewhere may still be at work on it
    PROCESS_LEFT = "process_left"  # a process that its worker could not stop
    CHILD_RUN = "child_run"  # a run that a stage had started, to go on when its own ends


class ReconciliationItem(models.Model):
    """Something that may still go on outside after a cancel, until a person says what became of it (R37, P75)."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="reconciliation_items", db_index=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="+", db_index=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="+", db_index=False)
    attempt_number = models.PositiveIntegerField()
    kind = models.CharField(max_length=30, choices=ReconciliationKind.choices)
    subject = models.UUIDField(null=True, help_text="the attempt, effect or gate it is about")
    detail = models.TextField()
    opened_at = models.DateTimeField(db_default=RecourseNow())
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.IntegerField(null=True, help_text="the person's id")
    resolved_name = models.CharField(max_length=255, blank=True)
    note = models.TextField(blank=True, help_text="what became of it, in the words of who looked")

    class Meta:
        constraints = [
            closed_set("kind", ReconciliationKind, "reconciliation_item_kind_known"),
            models.CheckConstraint(
                condition=Q(resolved_at__isnull=True, resolved_by__isnull=True, resolved_name="", note="")
                | Q(resolved_at__isnull=False) & ~Q(note=""),
                name="reconciliation_item_settled_with_a_note",
            ),
        ]
        indexes = [
            models.Index(fields=["run", "opened_at", "id"], name="reconciliation_item_of_run"),
            models.Index(
                fields=["workspace", "-opened_at", "-id"],
                name="reconciliation_item_open",
                condition=Q(resolved_at__isnull=True),
            ),
        ]
        triggers = [
            frozen_when(
                "reconciliation_item_stays_settled", "OLD.resolved_at IS NOT NULL", "a settled item is never changed"
            ),
            frozen_when(
                "reconciliation_item_says_the_same",
                "OLD.run_id <> NEW.run_id OR OLD.workspace_id <> NEW.workspace_id OR OLD.stage_id <> NEW.stage_id"
                " OR OLD.attempt_number <> NEW.attempt_number OR OLD.kind <> NEW.kind"
                " OR OLD.subject IS DISTINCT FROM NEW.subject OR OLD.detail <> NEW.detail"
                " OR OLD.opened_at <> NEW.opened_at",
                "what was listed stays as it was listed",
            ),
            kept("reconciliation_item_kept"),
            not_emptied("reconciliation_item_not_emptied"),
        ]


class Termination(models.Model):
    """How the processes of an attempt ended, as its worker tells (R39). `body` is what it told."""

    attempt = models.OneToOneField(Attempt, models.CASCADE, primary_key=True, related_name="termination")
    session = models.UUIDField()
    complete = models.BooleanField(help_text="everything is known to have ended")
    body = models.JSONField()
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        triggers = [insert_only("termination_insert_only"), not_emptied("termination_not_emptied")]
