"""What attempts did, or were about to do, outside their run's own state."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, frozen_when, kept, not_emptied
from pipelines.models.runs import Run, Stage
from pipelines.states import EFFECT_MOVES, OPEN_EFFECT, EffectClass, EffectState

_FORWARD = " OR ".join(
    f"(OLD.state = '{origin}' AND NEW.state = '{to}')"
    for moves in EFFECT_MOVES.values()
    for origin, to in moves.items()
)


class Effect(models.Model):
    """An intent written down before the act, and its outcome after. Same attempt, class, step and key: one effect."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="effects", db_constraint=False, db_index=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="effects", db_constraint=False)
    attempt = models.UUIDField()
    epoch = models.PositiveIntegerField()
    effect_class = models.CharField(max_length=30, choices=EffectClass.choices)
    step_id = models.CharField(max_length=255, blank=True)
    key = models.CharField(max_length=200, blank=True, help_text="the idempotency key that the outside system got")
    state = models.CharField(max_length=30, choices=EffectState.choices)
    external_ref = models.CharField(max_length=1000, blank=True)
    request_hash = models.CharField(max_length=200, blank=True)
    detail = models.JSONField(null=True)
    declared_at = models.DateTimeField(db_default=RecourseNow())
    settled_at = models.DateTimeField(null=True, help_text="when its outcome was told, or reconciled")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "effect_class", "step_id", "key"], name="effect_once_per_attempt"
            ),
            closed_set("effect_class", EffectClass, "effect_class_known"),
            closed_set("state", EffectState, "effect_state_known"),
            models.CheckConstraint(
                condition=~Q(state__in=["committed", "reconciled_committed"])
                | Q(effect_class=EffectClass.INTERNAL_STATE)
                | ~Q(key=""),
                name="effect_committed_has_key",
            ),
        ]
        indexes = [
            models.Index(fields=["run", "declared_at", "id"], name="effect_by_run"),
            models.Index(fields=["run"], name="effect_open", condition=Q(state__in=sorted(OPEN_EFFECT))),
        ]
        triggers = [
            frozen_when(
                "effect_only_forward",
                f"OLD.state <> NEW.state AND NOT ({_FORWARD})",
                "an effect only moves forward",
            ),
            kept("effect_kept"),
            not_emptied("effect_not_emptied"),
        ]

    def __str__(self) -> str:
        return f"{self.effect_class} {self.step_id} {self.state}"
