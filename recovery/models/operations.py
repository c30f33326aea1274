"""Operations: recovery actions that somebody asked for, with verdict and result; and what is known of effects."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models import Effect, Run, Stage, Workspace
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only, not_emptied
from recovery.states import TERMINAL_OPERATION, Disposition, OperationKind, OperationState, Outcome

TERMINAL = ", ".join(f"'{state}'" for state in sorted(TERMINAL_OPERATION))


class Operation(models.Model):
    """One recovery action. Its key, where it has one, makes it safe to repeat: the same request gets `result` again.

    What others must agree to first is in its request (`approvals/models/requests.py`, by `subject`), which it follows.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="operations", db_index=False)
    kind = models.CharField(max_length=20, choices=OperationKind.choices)
    run = models.ForeignKey(Run, models.CASCADE, related_name="operations")
    stage = models.ForeignKey(Stage, models.CASCADE, null=True, related_name="operations", db_index=False)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    requested_as = models.CharField(
        max_length=255, blank=True, db_default="", help_text="who asked, where it was no person: a policy"
    )
    channel = models.CharField(max_length=20)
    key = models.CharField(max_length=200, blank=True)
    fingerprint = models.CharField(max_length=64)
    reason = models.TextField(blank=True)
    state = models.CharField(max_length=20, choices=OperationState.choices)
    disposition = models.CharField(max_length=40, choices=Disposition.choices)
    reasons = models.JSONField(default=list, help_text="of the disposition: [{code, text, effect_id?, stage?}]")
    plan = models.JSONField(null=True, help_text="what was asked for and judged, as it was shown")
    plan_digest = models.CharField(max_length=64, blank=True)
    request = models.JSONField(default=dict, help_text="the request after its defaults, to carry it out later")
    target = models.UUIDField(null=True, unique=True, help_text="of a fork: the reserved id of the new run (I10)")
    checkpoint = models.UUIDField(null=True, help_text="what a rerun starts from")
    resolved_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    result = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=RecourseNow())
    updated_at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workspace", "kind", "key"], condition=~Q(key=""), name="operation_key_once"
            ),
            closed_set("kind", OperationKind, "operation_kind_known"),
            models.CheckConstraint(
                condition=Q(requested_by__isnull=False, requested_as="")
                | (Q(requested_by__isnull=True) & ~Q(requested_as="")),
                name="operation_asked_by_one",
            ),
            closed_set("state", OperationState, "operation_state_known"),
            closed_set("disposition", Disposition, "operation_disposition_known"),
        ]
        indexes = [
            models.Index(fields=["workspace", "-created_at", "-id"], name="operation_newest"),
            # what waits for a person, and what the sweep carries on
            models.Index(
                fields=["state", "updated_at"],
                name="operation_unfinished",
                condition=~Q(state__in=sorted(TERMINAL_OPERATION)),
            ),
        ]
        triggers = [
            frozen_when(
                "operation_decided_stays",
                f"OLD.state IN ({TERMINAL}) AND (NEW.state, NEW.disposition) IS DISTINCT FROM (OLD.state,"
                " OLD.disposition) OR OLD.state = 'dispatched' AND NEW.state NOT IN ('dispatched', 'succeeded',"
                " 'failed')",
                "what was decided and done about an operation stays so",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    @property
    def asker(self) -> str:
        """Who asked for it, by name."""
        return self.requested_by.get_username() if self.requested_by else self.requested_as


class EffectEvidence(models.Model):
    """A summary of what an outside system says about an effect; only ever added.

    Sealed: it came with the SHA-256 of its RFC 8785 form. The console signs what it stores.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    effect = models.ForeignKey(Effect, models.CASCADE, related_name="evidence")
    source = models.CharField(max_length=255)
    summary = models.TextField(help_text="canonical JSON")
    is_sealed = models.BooleanField()
    is_clean = models.BooleanField()
    digest = models.CharField(max_length=64)
    algorithm = models.CharField(max_length=20, blank=True)
    key_id = models.CharField(max_length=64, blank=True)
    signature = models.CharField(max_length=128, blank=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        verbose_name_plural = "effect evidence"
        triggers = [insert_only("effect_evidence_insert_only"), not_emptied("effect_evidence_not_emptied")]


class Reconciliation(models.Model):
    """What somebody found out about an effect, or about a stage as a whole; only ever added."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="reconciliations", db_constraint=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="reconciliations", db_constraint=False)
    effect = models.ForeignKey(Effect, models.CASCADE, null=True, related_name="reconciliations")
    outcome = models.CharField(max_length=20, choices=Outcome.choices)
    evidence = models.ForeignKey(EffectEvidence, models.CASCADE, null=True, related_name="+")
    note = models.TextField(blank=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [closed_set("outcome", Outcome, "reconciliation_outcome_known")]
        triggers = [insert_only("reconciliation_insert_only"), not_emptied("reconciliation_not_emptied")]
