"""Who is told when something needs a person: channels, rules, and what was sent.

A fact is a `Notice`, written by whoever makes it true, in that transaction (`pipelines/models/notices.py`). A rule that
it matches makes a `Message` of it; one `Delivery` takes one message, or all that a digest has gathered, to its channel.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

from approvals.states import DeliveryState
from pipelines.ids import new_id
from pipelines.models import Workspace
from pipelines.models.base import RecourseNow, closed_set, insert_only, not_emptied

LONGEST_DIGEST = 24 * 3600


class ChannelKind(models.TextChoices):
    EMAIL = "email", "e-mail"
    SLACK = "slack", "Slack-compatible webhook"
    WEBHOOK = "webhook", "signed webhook"


class Channel(models.Model):
    """A way to people or programs. A webhook's address and secret are kept encrypted and never shown again."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="channels")
    name = models.CharField(max_length=255)
    kind = models.CharField(max_length=20, choices=ChannelKind.choices)
    recipients = ArrayField(
        models.CharField(max_length=255),
        default=list,
        blank=True,
        help_text="of e-mail: addresses, or a role of the workspace's members such as role:approver",
    )
    address = models.BinaryField(null=True, editable=False, help_text="encrypted")
    host = models.CharField(max_length=255, blank=True, editable=False, help_text="of the address, to tell it by")
    secret = models.BinaryField(null=True, editable=False, help_text="encrypted; signs webhooks")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [
            closed_set("kind", ChannelKind, "channel_kind_known"),
            models.UniqueConstraint("workspace", Lower("name"), name="channel_name_once_per_workspace"),
        ]

    def __str__(self) -> str:
        return self.name


class NotificationRule(models.Model):
    """Notices of these kinds, of these environments and pipelines, go to this channel; empty lists match all.

    `digest_seconds`: how long messages are gathered before they go out as one; 0 sends each by itself.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="notification_rules")
    name = models.CharField(max_length=255)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="rules")
    kinds = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    environments = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    pipelines = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    digest_seconds = models.PositiveIntegerField(default=60, validators=[MaxValueValidator(LONGEST_DIGEST)])
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint("workspace", Lower("name"), name="notification_rule_name_once_per_workspace")
        ]

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """One message on its way: what is sent, frozen; tried until it is taken or given up. Its id lets a receiver see a
    repetition. A sender holds it until `held_until`, so that two never send it at once."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="deliveries", db_index=False)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    state = models.CharField(max_length=20, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    subject = models.CharField(max_length=255)
    body = models.JSONField(help_text="the messages: [{kind, sentence, link, …}]")
    tries = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(db_default=RecourseNow())
    held_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=RecourseNow())
    closed_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [closed_set("state", DeliveryState, "delivery_state_known")]
        indexes = [
            models.Index(fields=["channel", "due_at"], name="delivery_due", condition=Q(state=DeliveryState.PENDING)),
            models.Index(fields=["channel"], name="delivery_held", condition=Q(held_until__isnull=False)),
            models.Index(fields=["closed_at"], name="delivery_closed", condition=Q(closed_at__isnull=False)),
            models.Index(fields=["closed_at"], name="delivery_failed", condition=Q(state=DeliveryState.FAILED)),
            models.Index(fields=["workspace", "-created_at", "-id"], name="delivery_newest"),
        ]

    def __str__(self) -> str:
        return self.subject


class DeliveryTry(models.Model):
    """One try to send: what came of it. The delivery log; only ever added."""

    id = models.BigAutoField(primary_key=True)
    delivery = models.ForeignKey(Delivery, models.CASCADE, related_name="log")
    number = models.PositiveSmallIntegerField()
    succeeded = models.BooleanField()
    answer = models.CharField(max_length=500, help_text="the status, or why there is none; never a secret")
    milliseconds = models.PositiveIntegerField()
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        verbose_name_plural = "delivery tries"
        triggers = [insert_only("delivery_try_insert_only"), not_emptied("delivery_try_not_emptied")]


class Message(models.Model):
    """A notice as one rule sends it: in words, with its link. Gathered until its rule's digest is due."""

    id = models.BigAutoField(primary_key=True)
    rule = models.ForeignKey(NotificationRule, models.CASCADE, related_name="messages", db_index=False)
    delivery = models.ForeignKey(Delivery, models.CASCADE, null=True, related_name="messages")
    kind = models.CharField(max_length=40)
    run = models.UUIDField(null=True)
    subject = models.UUIDField(null=True, help_text="the gate, request or dead letter")
    content = models.JSONField(help_text="{kind, sentence, link, environment, pipeline, …}")
    at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["rule", "id"], name="message_gathered", condition=Q(delivery__isnull=True)),
        ]
