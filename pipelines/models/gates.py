"""Gates: points where a person or the owning application decides."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only, kept, not_emptied
from pipelines.models.definitions import Application, Workspace
from pipelines.models.runs import Run, Stage
from pipelines.states import GateState


class GateMoment(models.TextChoices):
    BEFORE = "before"
    AFTER = "after"


class Gate(models.Model):
    """After the work it is bound to its attempt and request digest; before the work, to the epoch.

    Who decides: `count` people of `approver_role` or a higher one (blank: of any role that decides); the owning
    application too, unless a person is required. What a gate asks for is fixed as it opens.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="gates")
    run = models.ForeignKey(Run, models.CASCADE, related_name="gates", db_constraint=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="gates", db_index=False, db_constraint=False)
    moment = models.CharField(max_length=10, choices=GateMoment.choices)
    epoch = models.PositiveIntegerField()
    attempt = models.UUIDField(null=True)
    request_digest = models.CharField(max_length=64, blank=True)
    output = models.UUIDField(
        null=True,
        help_text="what the stage completes with when approved after the work",
    )
    approver_role = models.CharField(max_length=20, blank=True, db_default="")
    count = models.PositiveSmallIntegerField(default=1, db_default=1)
    require_person = models.BooleanField(default=False, db_default=False)
    state = models.CharField(max_length=20, choices=GateState.choices, default=GateState.OPEN)
    opened_at = models.DateTimeField(db_default=RecourseNow())
    expires_at = models.DateTimeField(null=True)
    warned_at = models.DateTimeField(null=True, help_text="when it was told that it is about to expire")
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
            ),
            models.Index(
                fields=["workspace", "-opened_at", "-id"],
                name="gate_waiting",
                condition=Q(state=GateState.OPEN),
            ),
            models.Index(
                fields=["workspace", "-closed_at", "-id"],
                name="gate_closed",
                condition=~Q(state=GateState.OPEN),
            ),
        ]
        triggers = [
            frozen_when("gate_final", "OLD.state <> 'open'", "a decided gate stays decided"),
            frozen_when(
                "gate_asks_the_same",
                "NEW.stage_id <> OLD.stage_id OR NEW.run_id <> OLD.run_id OR NEW.workspace_id <> OLD.workspace_id"
                " OR NEW.moment <> OLD.moment OR NEW.epoch <> OLD.epoch"
                " OR NEW.attempt IS DISTINCT FROM OLD.attempt OR NEW.request_digest <> OLD.request_digest"
                " OR NEW.output IS DISTINCT FROM OLD.output"
                " OR NEW.approver_role <> OLD.approver_role OR NEW.count <> OLD.count"
                " OR NEW.require_person <> OLD.require_person OR NEW.opened_at <> OLD.opened_at"
                " OR NEW.expires_at IS DISTINCT FROM OLD.expires_at",
                "what a gate asks for is fixed as it opens",
            ),
            kept("gate_kept"),
            not_emptied("gate_not_emptied"),
        ]


class GateDecision(models.Model):
    """What somebody decided; only ever added. `member` is a person's membership then: another one if they come back."""

    gate = models.ForeignKey(Gate, models.CASCADE, related_name="decisions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    application = models.ForeignKey(Application, models.PROTECT, null=True, related_name="+")
    member = models.BigIntegerField(null=True)
    role = models.CharField(max_length=20, blank=True, db_default="", help_text="theirs at that time")
    approved = models.BooleanField()
    reason = models.TextField(blank=True)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, application__isnull=True)
                | Q(user__isnull=True, application__isnull=False),
                name="gate_decision_by_person_or_application",
            ),
            models.UniqueConstraint(
                fields=["gate", "user"], condition=Q(user__isnull=False), name="gate_decision_once_per_person"
            ),
        ]
        triggers = [insert_only("gate_decision_insert_only"), not_emptied("gate_decision_not_emptied")]
