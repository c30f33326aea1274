"""Worker sessions, attempts with their leases, and what attempts leave behind."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only, not_emptied
from pipelines.models.definitions import Application, Environment
from pipelines.models.runs import Run, Stage
from pipelines.states import (
    ACTIVE_ATTEMPT,
    OPEN_DEAD_LETTER,
    TERMINAL_ATTEMPT,
    AttemptState,
    DeadLetterReason,
    DeadLetterState,
    SessionState,
)


class WorkerSession(models.Model):
    """One life of a worker process. It, and not the worker's name, is what a lease is bound to.

    Without an application it is the console's own executor, which serves several.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    application = models.ForeignKey(Application, models.CASCADE, null=True, related_name="sessions")
    environment = models.ForeignKey(Environment, models.CASCADE, null=True, related_name="+")
    digest = models.BinaryField(max_length=32, unique=True, null=True, help_text="SHA-256 of the session token")
    state = models.CharField(max_length=20, choices=SessionState.choices, default=SessionState.ACTIVE)
    worker_name = models.CharField(max_length=255)
    instance_id = models.CharField(max_length=255, blank=True)
    handlers = ArrayField(models.CharField(max_length=300), default=list)
    worker_version = models.CharField(max_length=100, blank=True)
    sdk_version = models.CharField(max_length=100, blank=True)
    host_name = models.CharField(max_length=255, blank=True)
    pid = models.PositiveIntegerField(null=True)
    metadata = models.JSONField(default=dict)
    recipients = models.JSONField(
        default=list, db_default=[], help_text="[{handler, organisation, service, billing, retention}]"
    )
    started_at = models.DateTimeField(db_default=RecourseNow())
    last_seen_at = models.DateTimeField(db_default=RecourseNow())
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [closed_set("state", SessionState, "worker_session_state_known")]
        indexes = [models.Index(fields=["-last_seen_at"], name="worker_session_seen")]

    def __str__(self) -> str:
        return f"{self.worker_name} {self.id}"


class Attempt(models.Model):
    """One dispatch of a stage to a worker, with its lease.

    `expires_at` is the end of the visibility time while dispatched and the end of the lease while running.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="attempts", db_index=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts", db_constraint=False, db_index=False)
    number = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField()
    state = models.CharField(max_length=20, choices=AttemptState.choices, default=AttemptState.DISPATCHED)
    session = models.ForeignKey(
        WorkerSession, models.SET_NULL, null=True, related_name="attempts", db_constraint=False, db_index=False
    )
    worker = models.CharField(max_length=255, help_text="the worker's name, for people; it proves nothing")
    request_digest = models.CharField(max_length=64)
    dispatched_at = models.DateTimeField(db_default=RecourseNow())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()
    timeout_seconds = models.FloatField(null=True)
    timeout_at = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=100, blank=True)
    error_message = models.TextField(blank=True)
    traceback = models.TextField(blank=True)
    result_digest = models.CharField(max_length=64, blank=True, help_text="tells a repeated result from another one")
    decision = models.JSONField(null=True, help_text="the retry decision, recomputable from here alone")
    cause = models.CharField(max_length=255, blank=True, help_text="why it ended, when no result ended it")
    usage = models.JSONField(null=True)
    reserved = models.BigIntegerField(
        default=0, db_default=0, help_text="bytes of its run's output allowance that it is charged, whatever it returns"
    )
    slot = models.UUIDField(null=True, help_text="the concurrency policy whose slot it holds while its lease lives")
    rate = models.UUIDField(null=True, help_text="the rate policy that it counts for")
    recipient = models.JSONField(null=True, help_text="{position, organisation, …}: to whom it may send")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["stage", "number"], name="attempt_number_once_per_stage"),
            models.UniqueConstraint(
                fields=["stage"],
                condition=Q(state__in=sorted(ACTIVE_ATTEMPT)),
                name="attempt_one_active_per_stage",
            ),
            closed_set("state", AttemptState, "attempt_state_known"),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"],
                name="attempt_expiry",
                condition=Q(state__in=sorted(ACTIVE_ATTEMPT)),
            ),
            models.Index(
                fields=["timeout_at"],
                name="attempt_timeout",
                condition=Q(state=AttemptState.RUNNING, timeout_at__isnull=False),
            ),
            models.Index(
                fields=["slot", "expires_at"],
                name="attempt_in_slot",
                condition=Q(state__in=sorted(ACTIVE_ATTEMPT), slot__isnull=False),
            ),
            models.Index(fields=["rate", "-dispatched_at"], name="attempt_by_rate", condition=Q(rate__isnull=False)),
        ]
        triggers = [
            frozen_when(
                "attempt_terminal_stays",
                "OLD.state IN ({})".format(", ".join(f"'{state}'" for state in sorted(TERMINAL_ATTEMPT))),
                "nothing changes an ended attempt",
            ),
            frozen_when(
                "attempt_charge_stays",
                "OLD.reserved <> NEW.reserved OR OLD.request_digest <> NEW.request_digest"
                " OR OLD.recipient IS DISTINCT FROM NEW.recipient",
                "what an attempt was charged and asked for stays",
            ),
        ]


class AttemptProgress(models.Model):
    """How far a running attempt says it is; the latest word only."""

    attempt = models.OneToOneField(Attempt, models.CASCADE, primary_key=True, related_name="progress")
    percent = models.FloatField(null=True)
    message = models.CharField(max_length=1000, blank=True)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        verbose_name_plural = "attempt progress"


class LogLine(models.Model):
    """A line that a handler wrote."""

    id = models.BigAutoField(primary_key=True)
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="log_lines")
    at = models.DateTimeField()
    level = models.CharField(max_length=20)
    message = models.TextField()
    fields = models.JSONField(default=dict)

    class Meta:
        triggers = [insert_only("log_line_insert_only"), not_emptied("log_line_not_emptied")]


class LateEvidence(models.Model):
    """A result that came too late: it changes no state, and is kept for who must find out what really happened."""

    id = models.BigAutoField(primary_key=True)
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="late_evidence")
    session = models.UUIDField(null=True)
    reason = models.CharField(max_length=40)
    digest = models.CharField(max_length=64)
    body = models.TextField(help_text="the result as JSON text")
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        verbose_name_plural = "late evidence"
        constraints = [
            # a worker that repeats its late result adds nothing
            models.UniqueConstraint(fields=["attempt", "digest"], name="late_evidence_once_per_result")
        ]
        triggers = [insert_only("late_evidence_insert_only"), not_emptied("late_evidence_not_emptied")]


class DeadLetter(models.Model):
    """A stage that the machine has given up on, waiting for a person."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="dead_letters", db_index=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="dead_letters", db_constraint=False)
    workspace = models.ForeignKey("pipelines.Workspace", models.CASCADE, related_name="+", db_index=False)
    epoch = models.PositiveIntegerField()
    reason = models.CharField(max_length=30, choices=DeadLetterReason.choices)
    error_code = models.CharField(max_length=100, blank=True)
    handler = models.CharField(
        max_length=300, blank=True, db_default="", help_text="the stage's: groups are counted by it"
    )
    state = models.CharField(max_length=20, choices=DeadLetterState.choices, default=DeadLetterState.OPEN)
    opened_at = models.DateTimeField(db_default=RecourseNow())
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["stage", "epoch"], name="dead_letter_once_per_epoch"),
            closed_set("state", DeadLetterState, "dead_letter_state_known"),
            closed_set("reason", DeadLetterReason, "dead_letter_reason_known"),
        ]
        indexes = [
            models.Index(fields=["workspace", "-opened_at", "-id"], name="dead_letter_newest"),
            # those that wait for a person: as a list, and as groups with the oldest of each
            models.Index(
                fields=["workspace", "-opened_at", "-id"],
                name="dead_letter_waiting",
                condition=Q(state__in=sorted(OPEN_DEAD_LETTER)),
            ),
            models.Index(
                fields=["workspace", "error_code", "handler", "opened_at"],
                name="dead_letter_groups",
                condition=Q(state__in=sorted(OPEN_DEAD_LETTER)),
            ),
        ]
        triggers = [
            frozen_when(
                "dead_letter_closed_stays",
                "OLD.state IN ('redriven', 'discarded', 'resolved') AND NEW.state <> OLD.state",
                "a closed dead letter stays closed",
            )
        ]
