"""What happened: the engine's events, and who did, tried or was refused what."""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models.fields.json import KeyTextTransform

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, insert_only, not_emptied, only_added

CREATION, APPLICATIONS = "run.create", "application"  # the action and the channel of most audit events


class AuditOutcome(models.TextChoices):
    ALLOWED = "allowed"
    NO_OP = "no_op"
    DENIED = "denied"  # a right is missing
    FAILED = "failed"  # refused for any other reason, or a fault of ours


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
        triggers = [insert_only("event_insert_only"), not_emptied("event_not_emptied")]


class AuditEvent(models.Model):
    """Who did, tried or was refused what, over which channel, and why; only ever added, and never removed.

    `canonical` is the text of all other columns, made by the database as the row is inserted (`recourse_audit_text`);
    the chain of `AuditSeal` is made of it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(
        "pipelines.Workspace",
        models.PROTECT,
        related_name="audit_events",
        db_index=False,
    )
    at = models.DateTimeField(db_default=RecourseNow())
    action = models.CharField(max_length=60)
    outcome = models.CharField(max_length=20, choices=AuditOutcome.choices)
    code = models.CharField(max_length=60, blank=True, help_text="the error code of a refusal")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    actor = models.CharField(max_length=255, help_text="how the actor was called at that time")
    channel = models.CharField(max_length=20, help_text="api, console, admin, command, application, mcp, policy")
    on_behalf_of = models.CharField(
        max_length=255, blank=True, db_default="", help_text="whose request it was, when it was not the actor's own"
    )
    run = models.UUIDField(null=True)
    stage = models.UUIDField(null=True)
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, help_text="the states that the action found")
    after = models.JSONField(null=True, help_text="the states that it left behind")
    plan_digest = models.CharField(max_length=64, blank=True, db_default="")
    request_id = models.CharField(max_length=100, blank=True, db_default="", help_text="X-Request-Id")
    data = models.JSONField(default=dict)
    canonical = models.TextField(db_default="", editable=False)

    class Meta:
        constraints = [closed_set("outcome", AuditOutcome, "audit_outcome_known")]
        indexes = [
            models.Index(fields=["workspace", "-at", "-id"], name="audit_newest"),
            # one for each filter, in the list's order; what applications do all day is in few of them (ADR 0080)
            models.Index(fields=["run", "-at"], condition=models.Q(run__isnull=False), name="audit_by_run"),
            models.Index(fields=["stage", "-at"], condition=models.Q(stage__isnull=False), name="audit_by_stage"),
            models.Index(fields=["request_id", "-at"], condition=~models.Q(request_id=""), name="audit_by_request"),
            models.Index(fields=["workspace", "actor", "-at"], name="audit_by_actor"),
            models.Index(
                fields=["workspace", "action", "-at"], condition=~models.Q(action=CREATION), name="audit_by_action"
            ),
            models.Index(
                fields=["workspace", "outcome", "-at"],
                condition=~models.Q(outcome=AuditOutcome.ALLOWED),
                name="audit_by_outcome",
            ),
            models.Index(
                fields=["workspace", "channel", "-at"],
                condition=~models.Q(channel=APPLICATIONS),
                name="audit_by_channel",
            ),
            models.Index(
                KeyTextTransform("bulk", "data"),
                models.F("at").desc(),
                condition=models.Q(data__has_key="bulk"),
                name="audit_by_bulk",
            ),
        ]
        triggers = [
            only_added("audit_event_only_added"),
            not_emptied("audit_event_not_emptied"),
            pgtrigger.Trigger(
                name="audit_event_canonical",
                when=pgtrigger.Before,
                operation=pgtrigger.Insert,
                func="""
                    NEW.canonical := recourse_audit_text(NEW);
                    INSERT INTO pipelines_auditpending (event, workspace) VALUES (NEW.id, NEW.workspace_id);
                    RETURN NEW;
                """,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"


class AuditPending(models.Model):
    """An audit event that waits to be sealed: written by the event's own trigger, taken away by the sealing."""

    event = models.UUIDField(primary_key=True)
    workspace = models.UUIDField()

    class Meta:
        verbose_name_plural = "audit events to be sealed"


class AuditSeal(models.Model):
    """An event's place in the chain of its workspace: position 1, 2, 3 … without holes.

    `hash` is SHA-256 over the hash before it (32 zero bytes before the first) and the event's canonical text in UTF-8.
    """

    id = models.BigAutoField(primary_key=True)
    workspace = models.ForeignKey("pipelines.Workspace", models.PROTECT, related_name="+", db_index=False)
    position = models.BigIntegerField()
    event = models.UUIDField(unique=True)
    hash = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "position"], name="audit_seal_once_per_position")]
        triggers = [only_added("audit_seal_only_added"), not_emptied("audit_seal_not_emptied")]


class AuditHead(models.Model):
    """The end of a workspace's chain at one time, signed with the workspace's key; blank when none could be had."""

    id = models.BigAutoField(primary_key=True)
    workspace = models.ForeignKey("pipelines.Workspace", models.PROTECT, related_name="+", db_index=False)
    position = models.BigIntegerField()
    hash = models.CharField(max_length=64, help_text="in hex")
    sealed_at = models.DateTimeField()
    algorithm = models.CharField(max_length=20, blank=True)
    key_id = models.CharField(max_length=64, blank=True)
    signature = models.CharField(max_length=128, blank=True, help_text="base64")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workspace", "position"], name="audit_head_once_per_position")]
        triggers = [only_added("audit_head_only_added"), not_emptied("audit_head_not_emptied")]


class AuditCheck(models.Model):
    """What a check of a workspace's whole audit found: how many sealed events held, and the first fault, if any."""

    id = models.BigAutoField(primary_key=True)
    workspace = models.ForeignKey("pipelines.Workspace", models.PROTECT, related_name="+", db_index=False)
    at = models.DateTimeField(db_default=RecourseNow())
    checked = models.BigIntegerField(help_text="sealed events that hold, counted from the first")
    waiting = models.BigIntegerField(help_text="events that waited to be sealed")
    against = models.BigIntegerField(null=True, help_text="the position of the exported head it was held against")
    fault = models.TextField(blank=True, help_text="what does not hold; blank: all of it holds")
    position = models.BigIntegerField(null=True, help_text="where the fault is")
    event = models.UUIDField(null=True, help_text="the event that does not hold, as far as it is known")

    class Meta:
        indexes = [models.Index(fields=["workspace", "-id"], name="audit_check_newest")]
        triggers = [only_added("audit_check_only_added"), not_emptied("audit_check_not_emptied")]
