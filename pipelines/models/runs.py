"""Runs, their stages, their context, and the identity that makes creating them safe to repeat."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only, not_emptied
from pipelines.models.definitions import (
    Application,
    Environment,
    Pipeline,
    Release,
    Workspace,
)
from pipelines.states import TERMINAL_RUN, RunStatus, StageState

NO_THROTTLE = uuid.UUID(int=0)  # stands for no policy, so that an index finds it


class EffectMode(models.TextChoices):
    NONE = "none"
    IDEMPOTENT = "idempotent"
    EXTERNAL = "external"


class EffectProtocol(models.TextChoices):
    NONE = "none"
    INTENT = "intent"  # every act outside is declared before it is done


class StageMode(models.TextChoices):
    EXECUTE = "execute"
    IMPORT = "import"  # its output is made elsewhere, and handed in with the digest of the request


class Run(models.Model):
    """One execution of a release. Whoever writes a stage, attempt or gate of a run holds the lock on its row here."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="runs", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="runs", db_index=False)
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="runs", db_index=False)
    pipeline = models.ForeignKey(Pipeline, models.PROTECT, null=True, related_name="runs", db_index=False)
    release = models.ForeignKey(Release, models.PROTECT, related_name="runs")
    name = models.CharField(max_length=255)
    status = models.CharField(max_length=20, choices=RunStatus.choices, default=RunStatus.QUEUED)
    paused = models.BooleanField(default=False, help_text="a person paused it; status says pausing or paused")
    pause_reason = models.CharField(max_length=255, blank=True)
    paused_until = models.DateTimeField(null=True, help_text="when a sweep resumes it; a resume by a person clears it")
    input = models.TextField(null=True, help_text="canonical JSON given to a managed run")
    keywords = models.JSONField(default=list, help_text="[{key, value}]")
    trace_id = models.CharField(max_length=255, blank=True)
    traceparent = models.CharField(max_length=255, blank=True)
    tracestate = models.CharField(max_length=512, blank=True)
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    requesters = ArrayField(
        models.IntegerField(),
        default=list,
        db_default=[],
        help_text="the people who started, forked or retried it: they decide none of its gates",
    )
    recovered_from = models.ForeignKey("self", models.PROTECT, null=True, related_name="forks", db_index=False)
    recovery = models.JSONField(
        null=True, help_text="of a fork: {type, original_execution_id, operation_id, checkpoint_id, frozen_input}"
    )
    policy_digest = models.CharField(
        max_length=64, blank=True, db_default="", help_text="the policies in force when it was made"
    )
    limits = models.JSONField(
        default=dict, db_default={}, help_text="pinned from its release, defaults filled in; empty in the oldest runs"
    )
    release_digest = models.CharField(
        max_length=64, blank=True, db_default="", help_text="of its release's text as it was; blank in the oldest runs"
    )
    baseline = models.JSONField(
        default=list, db_default=[], help_text="[{name, artifact_id, sha256}] it builds on, pinned"
    )
    changed = models.JSONField(
        null=True, help_text="[{what, name, pinned, found}]: its definition or baseline is no longer what it pinned"
    )
    trigger = models.ForeignKey("Trigger", models.PROTECT, null=True, related_name="runs", db_index=False)
    tick_at = models.DateTimeField(null=True, help_text="the tick of its trigger that it was made for")
    lane = models.ForeignKey(
        "Lane", models.PROTECT, null=True, related_name="runs", db_index=False, db_constraint=False
    )
    held = models.BooleanField(default=False, db_default=False, help_text="its lane has not let it in: nothing begins")
    lane_rank = models.BigIntegerField(null=True, help_text="its place in its lane, lowest first")
    deadline_seconds = models.FloatField(null=True, help_text="while it is held: its deadline, once it is let in")
    through_blackout = models.BooleanField(
        default=False, db_default=False, help_text="somebody gave a reason to start it in a blackout"
    )
    parent = models.ForeignKey(
        "self",
        models.DO_NOTHING,
        null=True,
        related_name="children",
        db_index=False,
        db_constraint=False,
        help_text="the run whose stage started it, or started what it was forked from; that may be gone",
    )
    depth = models.PositiveSmallIntegerField(default=0, db_default=0, help_text="how many runs stand above it")
    has_children = models.BooleanField(default=False, db_default=False, help_text="a stage of it started other runs")
    created_at = models.DateTimeField(db_default=RecourseNow())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField(db_default=RecourseNow())
    deadline_at = models.DateTimeField(null=True)
    failure_code = models.CharField(max_length=100, blank=True)
    failure_message = models.TextField(blank=True)
    failure_stage = models.UUIDField(null=True)

    class Meta:
        constraints = [closed_set("status", RunStatus, "run_status_known")]
        indexes = [
            models.Index(fields=["workspace", "-created_at", "-id"], name="run_newest"),
            # An API key sees one application in one environment. A person's filter takes each of these pairs in turn:
            # they are few, and so every list has an index in its own order.
            models.Index(fields=["application", "environment", "-created_at", "-id"], name="run_by_application"),
            models.Index(fields=["application", "environment", "status", "-created_at", "-id"], name="run_by_status"),
            models.Index(fields=["pipeline", "environment", "-created_at", "-id"], name="run_by_pipeline"),
            models.Index(fields=["trigger", "-tick_at", "-id"], name="run_by_tick", condition=Q(trigger__isnull=False)),
            # what a lane has let in, and whom it lets in next
            models.Index(
                fields=["lane", "held", "lane_rank", "id"],
                name="run_in_lane",
                condition=Q(lane__isnull=False) & ~Q(status__in=sorted(TERMINAL_RUN)),
            ),
            models.Index(
                fields=["recovered_from", "-created_at"],
                name="run_forks",
                condition=Q(recovered_from__isnull=False),
            ),
            models.Index(
                fields=["parent", "-created_at", "-id"], name="run_of_parent", condition=Q(parent__isnull=False)
            ),
            models.Index(
                fields=["deadline_at"],
                name="run_deadline",
                condition=Q(deadline_at__isnull=False) & ~Q(status__in=sorted(TERMINAL_RUN)),
            ),
            models.Index(
                fields=["paused_until", "id"], name="run_paused_until", condition=Q(paused_until__isnull=False)
            ),
            # retention and the stuck-run sweep walk these
            models.Index(
                fields=["finished_at"],
                name="run_finished",
                condition=Q(status__in=sorted(TERMINAL_RUN)),
            ),
            models.Index(
                fields=["updated_at"],
                name="run_unfinished",
                condition=~Q(status__in=sorted(TERMINAL_RUN)) & Q(held=False),
            ),
        ]
        triggers = [
            frozen_when(
                "run_cancelled_stays",
                "OLD.status = 'cancelled' AND NEW.status <> 'cancelled'",
                "a cancelled run stays cancelled",
            ),
            frozen_when(
                "run_deadline_stays",
                "OLD.status = 'failed' AND OLD.failure_code = 'deadline_exceeded' AND NEW.status <> 'failed'",
                "a run past its deadline stays failed",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class RunSearch(models.Model):
    """The words of a run's name, keywords and non-sensitive context values, apart so that moving a run costs no GIN.

    Two more lexemes, which no text yields, name the workspace, and application with environment: the index answers for
    one of them, whatever others hold.
    """

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="search")
    words = SearchVectorField()

    class Meta:
        verbose_name_plural = "run searches"
        indexes = [GinIndex(OpClass(models.F("words"), name="tsvector_ops"), name="run_search_words")]


class RunIdentity(models.Model):
    """Makes creation safe to repeat: one row per application and key, gone only with its run (P22, P25)."""

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="identity")
    application = models.ForeignKey(Application, models.CASCADE, related_name="+", db_index=False)
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="+", db_index=False)
    key = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of the creation intent, defaults filled in")

    class Meta:
        verbose_name_plural = "run identities"
        constraints = [models.UniqueConstraint(fields=["application", "key"], name="run_identity_once_per_application")]
        triggers = [insert_only("run_identity_insert_only"), not_emptied("run_identity_not_emptied")]


class ContextItem(models.Model):
    """A business identifier for the next operator. A sensitive value is kept encrypted in `secret` and never shown."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="context_items", db_index=False)
    key = models.CharField(max_length=255)
    value = models.TextField(blank=True)
    is_sensitive = models.BooleanField(default=False)
    secret = models.BinaryField(null=True)
    attempt = models.UUIDField(null=True, help_text="the attempt that set it; none when it came with the run")
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="context_key_once_per_run")]


class Stage(models.Model):
    """One step of a run, at a node of its graph."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="stages", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="+", db_index=False)
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="+", db_index=False)
    run_created_at = models.DateTimeField(db_default=RecourseNow(), help_text="its run's, which never changes")
    position = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=255)
    handler = models.CharField(max_length=300)
    description = models.TextField(blank=True)
    input = models.TextField(null=True, help_text="kept byte for byte")
    depends_on = ArrayField(models.PositiveSmallIntegerField(), default=list, help_text="positions")
    run_next_if_failed = models.BooleanField(default=False)
    mode = models.CharField(
        max_length=20, choices=StageMode.choices, default=StageMode.EXECUTE, db_default=StageMode.EXECUTE
    )
    recipients = models.JSONField(
        null=True, help_text="[{organisation, service, billing, retention}], to whom it may send, in order of fallback"
    )
    effect_mode = models.CharField(max_length=20, choices=EffectMode.choices, default=EffectMode.IDEMPOTENT)
    effect_protocol = models.CharField(
        max_length=20, choices=EffectProtocol.choices, default=EffectProtocol.NONE, db_default=EffectProtocol.NONE
    )
    approval = models.JSONField(null=True, help_text="{when, approver_role, count, expires_in, require_person}")
    options = models.JSONField(default=dict)
    state = models.CharField(max_length=20, choices=StageState.choices, default=StageState.PENDING)
    available_at = models.DateTimeField(null=True, help_text="ready since, or when a scheduled retry is due")
    epoch = models.PositiveIntegerField(default=1)
    attempt_number = models.PositiveIntegerField(default=0)
    retry_count = models.PositiveIntegerField(default=0, help_text="automatic retries in this epoch")
    recovery_count = models.PositiveIntegerField(default=0, help_text="recoveries after a lost worker in this epoch")
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    output = models.ForeignKey(
        "StageOutput", models.PROTECT, null=True, related_name="+", db_index=False, db_constraint=False
    )
    output_digest = models.CharField(max_length=64, blank=True, db_default="")
    checkpoint = models.UUIDField(null=True, help_text="the newest handler state of this epoch")
    last_error_code = models.CharField(max_length=100, blank=True)
    last_error_message = models.TextField(blank=True)
    failure_disposition = models.CharField(max_length=40, blank=True)
    stale = models.BooleanField(default=False, help_text="an earlier stage was done again after this one")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "position"], name="stage_position_once_per_run"),
            closed_set("state", StageState, "stage_state_known"),
            closed_set("mode", StageMode, "stage_mode_known"),
            closed_set("effect_mode", EffectMode, "stage_effect_mode_known"),
            closed_set("effect_protocol", EffectProtocol, "stage_effect_protocol_known"),
        ]
        indexes = [
            # lists of runs by handler or error walk these in the list's own order, newest first
            models.Index(
                fields=["application", "environment", "handler", "-run_created_at", "-run"], name="stage_by_handler"
            ),
            models.Index(
                fields=["application", "environment", "last_error_code", "-run_created_at", "-run"],
                name="stage_by_error",
                condition=~Q(last_error_code=""),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class QueueEntry(models.Model):
    """A stage that may be handed out, now or once it is due. What a claim walks.

    There is one exactly while the stage is ready or scheduled and its run is neither paused nor ended. Apart from the
    stage, so that moving a stage touches none of its indexes. Written by the engine alone, with the stage: no foreign
    keys to check on the hot path.
    """

    stage = models.OneToOneField(
        Stage, models.CASCADE, primary_key=True, related_name="queue_entry", db_constraint=False
    )
    application = models.ForeignKey(Application, models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    environment = models.ForeignKey(Environment, models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    handler = models.CharField(max_length=300)
    available_at = models.DateTimeField()
    is_background = models.BooleanField(
        default=False, db_default=False, help_text="of a backfill: live work has its share beside it"
    )
    is_start = models.BooleanField(
        default=False, db_default=False, help_text="begins a run or tries again: waits while a blackout holds"
    )
    throttle = models.UUIDField(
        default=NO_THROTTLE, db_default=NO_THROTTLE, help_text="the policy for whose slot or rate it waits, if any"
    )
    recipients = ArrayField(
        models.TextField(), null=True, help_text="keys of those to whom it may go now; none: to anyone"
    )

    class Meta:
        verbose_name_plural = "queue entries"
        indexes = [
            # one queue is one application, environment and handler; its lines are four for each throttle, each in its
            # own order
            models.Index(
                fields=[
                    *("application", "environment", "handler", "throttle"),
                    *("is_background", "is_start", "available_at", "stage"),
                ],
                name="queue_in_throttled_lines",
            ),
            # whom a freed slot is for, from one queue to the next
            models.Index(
                fields=["throttle", "application", "environment", "handler"],
                name="queue_by_throttle",
                condition=~Q(throttle=NO_THROTTLE),
            ),
        ]


class StageOutput(models.Model):
    """What a stage produced, as JSON text exactly as sent; kept for every epoch."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="outputs", db_constraint=False)
    epoch = models.PositiveIntegerField()
    attempt = models.UUIDField(null=True, help_text="none when a person gave it")
    restored_from = models.UUIDField(null=True, help_text="in a fork: the output of the source that this is a copy of")
    body = models.TextField()
    size = models.PositiveIntegerField(help_text="bytes of UTF-8")
    digest = models.CharField(max_length=64)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        triggers = [insert_only("stage_output_insert_only"), not_emptied("stage_output_not_emptied")]
