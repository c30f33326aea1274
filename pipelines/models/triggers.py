"""Schedules of pipelines, the ledger of their ticks, the lanes that hold runs back, and the times in which nothing
starts."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, insert_only, not_emptied
from pipelines.models.definitions import Application, Environment, Pipeline, Workspace
from pipelines.schedules import Gap, Overlap
from pipelines.states import SkipReason, TickState


class OverlapPolicy(models.TextChoices):
    """What becomes of a tick while an earlier run of the same trigger is unfinished."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"


class CatchUp(models.TextChoices):
    """What becomes of ticks that were not recorded within `start_within` of their instant."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"  # the newest `catch_up_limit` of them


class BlackoutKind(models.TextChoices):
    WEEKLY = "weekly"  # on these days of the week, between these times of the zone's wall clock; over midnight too
    DATES = "dates"  # on these days of the zone, whole
    PERIOD = "period"  # between two instants; without an end until it is lifted


class Trigger(models.Model):
    """A schedule of a pipeline in one environment, on behalf of one application.

    Every tick up to `recorded_until` has its row in the ledger; `next_at` is only where the ledger looks next. Changing
    a trigger adds a `TriggerVersion`, and invents no past ticks.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="triggers", db_index=False)
    name = models.CharField(max_length=255, help_text="the pipeline's slug unless somebody names it otherwise")
    pipeline = models.ForeignKey(Pipeline, models.PROTECT, related_name="triggers")
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="triggers", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="triggers", db_index=False)
    cron = models.CharField(max_length=200)
    timezone = models.CharField(max_length=64)
    gap = models.CharField(max_length=20, choices=Gap.choices, default=Gap.FIRST_EXISTING)
    overlap = models.CharField(max_length=20, choices=Overlap.choices, default=Overlap.FIRST)
    input = models.JSONField(
        default=dict, help_text="a JSON object; {{names}} in its texts are filled in for each tick"
    )
    overlap_policy = models.CharField(max_length=20, choices=OverlapPolicy.choices, default=OverlapPolicy.SKIP)
    catch_up = models.CharField(max_length=20, choices=CatchUp.choices, default=CatchUp.NONE)
    catch_up_limit = models.PositiveIntegerField(default=100)
    start_within = models.PositiveIntegerField(default=60, help_text="seconds after which a tick counts as missed")
    spread = models.PositiveIntegerField(default=0, help_text="seconds over which starts are spread, each by its own")
    deadline_seconds = models.PositiveIntegerField(null=True, help_text="of its runs")
    enabled = models.BooleanField(default=True)
    starts_at = models.DateTimeField(null=True, help_text="no ticks before")
    ends_at = models.DateTimeField(null=True, help_text="no ticks after")
    version = models.PositiveIntegerField(default=1)
    recorded_until = models.DateTimeField(help_text="every tick up to here is in the ledger")
    next_at = models.DateTimeField(null=True, help_text="the next tick; none when there is none any more")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=RecourseNow())
    updated_at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            closed_set("gap", Gap, "trigger_gap_known"),
            closed_set("overlap", Overlap, "trigger_overlap_known"),
            closed_set("overlap_policy", OverlapPolicy, "trigger_overlap_policy_known"),
            closed_set("catch_up", CatchUp, "trigger_catch_up_known"),
        ]
        indexes = [
            models.Index(fields=["workspace", "-created_at", "-id"], name="trigger_newest"),
            models.Index(fields=["next_at", "id"], name="trigger_due", condition=Q(next_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.name


class TriggerVersion(models.Model):
    """How a trigger was set from a moment on, by whom and why; only ever added."""

    trigger = models.ForeignKey(Trigger, models.CASCADE, related_name="versions", db_index=False)
    version = models.PositiveIntegerField()
    settings = models.JSONField(help_text="all that may be changed of a trigger, as on the wire")
    actor = models.CharField(max_length=255)
    reason = models.TextField(blank=True)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["trigger", "version"], name="trigger_version_once")]
        triggers = [insert_only("trigger_version_insert_only"), not_emptied("trigger_version_not_emptied")]


class Tick(models.Model):
    """One instant at which a trigger was due: its row in the ledger, written before anything is made of it.

    `run` is reserved with the row and made later, in the transaction that makes it `dispatched`. A tick without a run
    is missed, whatever the reason (contract §4). Cron, zone and rule are those that produced it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    trigger = models.ForeignKey(Trigger, models.PROTECT, related_name="ticks", db_index=False)
    at = models.DateTimeField()
    state = models.CharField(max_length=20, choices=TickState.choices)
    reason = models.CharField(max_length=20, choices=SkipReason.choices, blank=True, db_default="")
    detail = models.CharField(max_length=255, blank=True, db_default="", help_text="such as the name of the blackout")
    cron = models.CharField(max_length=200)
    timezone = models.CharField(max_length=64)
    gap = models.CharField(max_length=20)
    overlap = models.CharField(max_length=20)
    rule = models.CharField(max_length=40, help_text="what made this instant: pipelines/schedules.py")
    local_time = models.CharField(max_length=40, help_text="ISO 8601 with its offset")
    version = models.PositiveIntegerField(help_text="of the trigger")
    previous_at = models.DateTimeField(null=True, help_text="the tick before it by the same schedule")
    start_at = models.DateTimeField(help_text="when its run may be made: the spread is in it")
    run = models.UUIDField(null=True, help_text="reserved, then made; it may be gone by retention")
    backfill = models.UUIDField(null=True, help_text="which backfill made its run")
    error_code = models.CharField(max_length=60, blank=True, db_default="")
    error_message = models.TextField(blank=True, db_default="")
    recorded_at = models.DateTimeField(db_default=RecourseNow())
    decided_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            # also the order of the ledger, and of the newest ticks first
            models.UniqueConstraint(fields=["trigger", "at"], name="tick_once"),
            closed_set("state", TickState, "tick_state_known"),
            models.CheckConstraint(condition=Q(reason__in=["", *SkipReason.values]), name="tick_reason_known"),
            models.CheckConstraint(
                condition=Q(state__in=[TickState.SKIPPED, TickState.FAILED], run__isnull=True)
                | Q(state__in=[TickState.DUE, TickState.DISPATCHED], run__isnull=False),
                name="tick_has_run_unless_missed",
            ),
            models.CheckConstraint(
                condition=Q(state=TickState.SKIPPED) ^ Q(reason=""), name="tick_says_why_it_was_skipped"
            ),
        ]
        indexes = [
            models.Index(fields=["start_at", "id"], name="tick_due", condition=Q(state=TickState.DUE)),
            models.Index(fields=["trigger", "at"], name="tick_missed", condition=Q(run__isnull=True)),
            models.Index(fields=["run"], name="tick_of_run", condition=Q(run__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} UTC"


class Lane(models.Model):
    """Lets in so many of its runs at once and holds the others.

    A trigger has one for its live runs, a backfill one of its own; its id is theirs. Who lets a run in holds the lock
    on the lane's row. How many are in is counted, never stored.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="+", db_index=False)
    capacity = models.PositiveIntegerField(null=True, help_text="none: no limit")
    is_open = models.BooleanField(default=True, help_text="closed: nothing is let in")
    is_background = models.BooleanField(help_text="its runs leave a share of every claim to live work")


class Blackout(models.Model):
    """A time in which nothing starts, in a workspace, one of its environments, or for one trigger.

    Whether one covers an instant says the function `recourse_covers`, and which holds somewhere `recourse_blackout`
    (migration 0011); nothing else does.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="blackouts")
    environment = models.ForeignKey(Environment, models.CASCADE, null=True, blank=True, related_name="+")
    trigger = models.ForeignKey(Trigger, models.CASCADE, null=True, blank=True, related_name="blackouts")
    name = models.CharField(max_length=255)
    kind = models.CharField(max_length=20, choices=BlackoutKind.choices)
    is_freeze = models.BooleanField(default=False, help_text="declared by hand for now, with a reason")
    timezone = models.CharField(max_length=64, default="UTC")
    days = ArrayField(models.PositiveSmallIntegerField(), default=list, blank=True, help_text="1 Monday … 7 Sunday")
    from_time = models.TimeField(null=True, blank=True)
    to_time = models.TimeField(null=True, blank=True, help_text="not after from_time: until this time of the next day")
    dates = ArrayField(models.DateField(), default=list, blank=True)
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    reason = models.TextField(blank=True)
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [
            closed_set("kind", BlackoutKind, "blackout_kind_known"),
            models.CheckConstraint(
                condition=Q(
                    kind=BlackoutKind.WEEKLY,
                    days__len__gt=0,
                    days__contained_by=[1, 2, 3, 4, 5, 6, 7],
                    from_time__isnull=False,
                    to_time__isnull=False,
                )
                | Q(kind=BlackoutKind.DATES, dates__len__gt=0)
                | Q(kind=BlackoutKind.PERIOD, starts_at__isnull=True)
                | Q(kind=BlackoutKind.PERIOD, ends_at__isnull=True)
                | Q(kind=BlackoutKind.PERIOD, ends_at__gte=models.F("starts_at")),
                name="blackout_says_when",
            ),
            models.CheckConstraint(
                condition=Q(is_freeze=False)
                | Q(kind=BlackoutKind.PERIOD, trigger__isnull=True, starts_at__isnull=False),
                name="blackout_freeze_is_a_period",
            ),
        ]

    def __str__(self) -> str:
        return self.name
