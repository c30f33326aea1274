"""Operations: recovery actions that somebody asked for, with their verdict and their result."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models import Run, Stage, Workspace
from pipelines.models.base import RecourseNow, closed_set
from recovery.states import Disposition, OperationKind, OperationState


class Operation(models.Model):
    """One recovery action. Its key, where it has one, makes it safe to repeat: the same request gets `result` again."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="operations", db_index=False)
    kind = models.CharField(max_length=20, choices=OperationKind.choices)
    run = models.ForeignKey(Run, models.CASCADE, related_name="operations")
    stage = models.ForeignKey(Stage, models.CASCADE, null=True, related_name="operations", db_index=False)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    channel = models.CharField(max_length=20)
    key = models.CharField(max_length=200, blank=True)
    fingerprint = models.CharField(max_length=64)
    reason = models.TextField(blank=True)
    state = models.CharField(max_length=20, choices=OperationState.choices)
    disposition = models.CharField(max_length=40, choices=Disposition.choices)
    result = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workspace", "kind", "key"], condition=~Q(key=""), name="operation_key_once"
            ),
            closed_set("kind", OperationKind, "operation_kind_known"),
            closed_set("state", OperationState, "operation_state_known"),
            closed_set("disposition", Disposition, "operation_disposition_known"),
        ]
        indexes = [models.Index(fields=["workspace", "-created_at", "-id"], name="operation_newest")]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"
