"""Gates: points where a person or the owning application decides."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only
from pipelines.models.definitions import Application
from pipelines.models.runs import Run, Stage
from pipelines.states import GateState


class GateMoment(models.TextChoices):
    BEFORE = "before"
    AFTER = "after"


class Gate(models.Model):
    """After the work it is bound to its attempt and request digest; before the work, to the epoch."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="gates")
    run = models.ForeignKey(Run, models.CASCADE, related_name="gates", db_constraint=False)
    moment = models.CharField(max_length=10, choices=GateMoment.choices)
    epoch = models.PositiveIntegerField()
    attempt = models.UUIDField(null=True)
    request_digest = models.CharField(max_length=64, blank=True)
    output = models.UUIDField(
        null=True,
        help_text="what the stage completes with when approved after the work",
    )
    state = models.CharField(max_length=20, choices=GateState.choices, default=GateState.OPEN)
    opened_at = models.DateTimeField(db_default=RecourseNow())
    expires_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["stage"],
                condition=Q(state=GateState.OPEN),
                name="gate_one_open_per_stage",
            ),
            closed_set("state", GateState, "gate_state_known"),
            closed_set("moment", GateMoment, "gate_moment_known"),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"],
                name="gate_expiry",
                condition=Q(state=GateState.OPEN),
            )
        ]
        triggers = [frozen_when("gate_final", "OLD.state <> 'open'", "a decided gate stays decided")]


class GateDecision(models.Model):
    """What somebody decided; only ever added."""

    gate = models.ForeignKey(Gate, models.CASCADE, related_name="decisions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    application = models.ForeignKey(Application, models.PROTECT, null=True, related_name="+")
    approved = models.BooleanField()
    reason = models.TextField(blank=True)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, application__isnull=True)
                | Q(user__isnull=True, application__isnull=False),
                name="gate_decision_by_person_or_application",
            )
        ]
        triggers = [insert_only("gate_decision_insert_only")]
