"""Retries of whole runs by a policy: what was decided as a run failed, and what became of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models import Run, Workspace
from pipelines.models.base import RecourseNow, closed_set, frozen_when, kept, not_emptied
from recovery.states import Disposition, RetryMode, RunRetryState

_DECIDED = (
    *("id", "workspace_id", "run_id", "failed_at", "policy", "policy_name", "mode", "number", "decision", "decided_at"),
    *("due_at", "explanation"),
)
_STANDING = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in _DECIDED)


class RunRetry(models.Model):
    """One decision, made in the transaction in which the run failed; while it is `due` a sweep will carry it out.

    What was decided never changes; what became of it is written once (I15).
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="+", db_index=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="run_retries", db_index=False)
    failed_at = models.DateTimeField(help_text="the end of the run that it is about")
    policy = models.UUIDField(help_text="the policy that ruled the run")
    policy_name = models.CharField(max_length=255, help_text="as it was called then")
    mode = models.CharField(max_length=20, choices=RetryMode.choices)
    number = models.PositiveIntegerField(help_text="the how-manieth of the run and all that it was made out of")
    decision = models.JSONField(help_text="all of it, so that it can be computed again")
    explanation = models.TextField()
    decided_at = models.DateTimeField(db_default=RecourseNow())
    due_at = models.DateTimeField(null=True, help_text="none where it was declined")
    state = models.CharField(max_length=20, choices=RunRetryState.choices)
    ended_at = models.DateTimeField(null=True)
    ended_by = models.CharField(max_length=255, blank=True, help_text="who called it off; blank: the engine")
    code = models.CharField(max_length=60, blank=True, help_text="the error code of a refusal")
    why = models.TextField(blank=True, help_text="why it was refused or called off")
    disposition = models.CharField(max_length=40, choices=Disposition.choices, blank=True)
    operations = models.JSONField(default=list, help_text="ids of what was carried out")
    made = models.UUIDField(null=True, help_text="the run that was made")

    class Meta:
        verbose_name_plural = "run retries"
        constraints = [
            closed_set("state", RunRetryState, "run_retry_state_known"),
            closed_set("mode", RetryMode, "run_retry_mode_known"),
            models.CheckConstraint(
                condition=Q(disposition="") | Q(disposition__in=Disposition.values), name="run_retry_disposition_known"
            ),
            models.CheckConstraint(
                condition=Q(state="due", due_at__isnull=False, ended_at__isnull=True)
                | (~Q(state="due") & Q(ended_at__isnull=False)),
                name="run_retry_is_due_or_ended",
            ),
            models.UniqueConstraint(fields=["run"], condition=Q(state="due"), name="run_retry_one_due"),
            models.UniqueConstraint(fields=["run", "number"], condition=Q(state="done"), name="run_retry_done_once"),
        ]
        indexes = [
            models.Index(fields=["run", "-decided_at", "-id"], name="run_retry_of_run"),
            # what the sweep looks for
            models.Index(fields=["due_at", "id"], name="run_retry_due", condition=Q(state="due")),
            # what is counted of the last day
            models.Index(fields=["state", "ended_at"], name="run_retry_ended", condition=~Q(state="due")),
        ]
        triggers = [
            frozen_when(
                "run_retry_decided_stays",
                f"OLD.state <> 'due' OR NOT ({_STANDING})",
                "what was decided about a run that failed, and what became of it, stay as they are",
            ),
            kept("run_retry_kept"),
            not_emptied("run_retry_not_emptied"),
        ]

    def __str__(self) -> str:
        return f"retry {self.number} of {self.run_id}"
