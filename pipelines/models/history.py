"""What happened: the engine's events, and who did, tried or was refused what."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, insert_only


class Event(models.Model):
    """One state change or fact of a run, committed together with what it tells (I5). Read in the order of its id."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(
        "pipelines.Run",
        models.CASCADE,
        related_name="events",
        db_constraint=False,
        db_index=False,
    )
    stage = models.UUIDField(null=True)
    attempt = models.UUIDField(null=True)
    kind = models.CharField(max_length=60)
    from_state = models.CharField(max_length=20, blank=True)
    to_state = models.CharField(max_length=20, blank=True)
    at = models.DateTimeField(db_default=RecourseNow())
    actor = models.CharField(
        max_length=255,
        blank=True,
        help_text="person, application or worker; blank is the engine",
    )
    reason = models.TextField(blank=True)
    data = models.JSONField(null=True)

    class Meta:
        indexes = [models.Index(fields=["run", "id"], name="event_by_run")]
        triggers = [insert_only("event_insert_only")]


class AuditEvent(models.Model):
    """Who did, tried or was refused what, over which channel, and why; only ever added."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(
        "pipelines.Workspace",
        models.PROTECT,
        related_name="audit_events",
        db_index=False,
    )
    at = models.DateTimeField(db_default=RecourseNow())
    action = models.CharField(max_length=60)
    outcome = models.CharField(max_length=20, help_text="allowed, no_op, denied or failed")
    code = models.CharField(max_length=60, blank=True, help_text="the error code of a refusal")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    actor = models.CharField(max_length=255, help_text="how the actor was called at that time")
    channel = models.CharField(max_length=20, help_text="api, console, admin, command or application")
    run = models.UUIDField(null=True)
    stage = models.UUIDField(null=True)
    reason = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        indexes = [
            models.Index(fields=["workspace", "-at", "-id"], name="audit_newest"),
            models.Index(fields=["run", "-at"], name="audit_by_run"),
        ]
        triggers = [insert_only("audit_event_insert_only")]
