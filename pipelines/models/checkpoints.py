"""Where a run stood, signed; and the keys it is signed with."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, insert_only, not_emptied
from pipelines.models.definitions import Workspace
from pipelines.models.runs import Run
from pipelines.states import CheckpointMoment


class Checkpoint(models.Model):
    """A signed record of where a run stands: which stages are done, with digests of their outputs, and handler state.

    `payload` is canonical JSON (RFC 8785) and stays as written. What is signed is its digest together with the
    identity (workspace, run, release, environment, stage, epoch, sequence). Whether a checkpoint is valid, superseded,
    invalid or of a revoked key is found out each time (`pipelines/checkpoints.py`), never stored.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="checkpoints", db_constraint=False, db_index=False)
    sequence = models.PositiveIntegerField(help_text="from 1, rising by one within the run")
    moment = models.CharField(max_length=20, choices=CheckpointMoment.choices)
    stage = models.UUIDField(null=True, help_text="the stage that caused it; none for the run as a whole")
    epoch = models.PositiveIntegerField(default=1, help_text="the stage's; 1 for the run as a whole")
    attempt = models.UUIDField(null=True)
    current_step_id = models.CharField(max_length=255, blank=True, help_text="the first stage not finished")
    previous_step_id = models.CharField(max_length=255, blank=True, help_text="the last finished stage")
    payload = models.TextField()
    payload_digest = models.CharField(max_length=64)
    algorithm = models.CharField(max_length=20, blank=True, help_text="ed25519; blank when no key could be had")
    key_id = models.CharField(max_length=64, blank=True)
    signature = models.CharField(max_length=128, blank=True, help_text="base64")
    recorded_at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "sequence"], name="checkpoint_sequence_once_per_run"),
            closed_set("moment", CheckpointMoment, "checkpoint_moment_known"),
        ]
        triggers = [insert_only("checkpoint_insert_only"), not_emptied("checkpoint_not_emptied")]

    def __str__(self) -> str:
        return f"checkpoint {self.sequence}"


class CheckpointEvidence(models.Model):
    """What was added to a checkpoint after it was written; only ever added."""

    checkpoint = models.ForeignKey(Checkpoint, models.CASCADE, related_name="evidence")
    body = models.JSONField()
    digest = models.CharField(max_length=64, help_text="SHA-256 of the body's RFC 8785 form")
    added_by = models.CharField(max_length=255)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        verbose_name_plural = "checkpoint evidence"
        constraints = [
            models.UniqueConstraint(fields=["checkpoint", "digest"], name="checkpoint_evidence_once"),
        ]
        triggers = [insert_only("checkpoint_evidence_insert_only"), not_emptied("checkpoint_evidence_not_emptied")]


class LocalKeyring(models.Model):
    """A workspace's signing keys, when the console keeps them itself: one document, changed by compare-and-swap.

    `document` is as Vault would hold it; private keys in it are encrypted with RECOURSE_ENCRYPTION_KEY.
    """

    workspace = models.OneToOneField(Workspace, models.CASCADE, primary_key=True, related_name="local_keyring")
    version = models.PositiveIntegerField()
    document = models.JSONField()
    changed_at = models.DateTimeField(db_default=RecourseNow())
    changed_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
