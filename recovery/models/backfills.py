"""Backfills: what somebody asked to be made up for, and what became of each tick."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models import Trigger, Workspace
from pipelines.models.base import RecourseNow, closed_set, frozen_when
from recovery.states import TERMINAL_BACKFILL, BackfillState, BackfillTickState


class Reprocess(models.TextChoices):
    """Which ticks that have a run already are done once more; never one whose run is unfinished."""

    NONE = "none"
    FAILED = "failed"  # failed or cancelled ones
    ALL = "all"


class BackfillOrder(models.TextChoices):
    OLDEST = "oldest"
    NEWEST = "newest"


class Backfill(models.Model):
    """An operation that fills the ticks that a trigger missed in a window; both ends belong to it.

    Its ticks are frozen as it is asked for, and in `request` what the trigger said of its runs then. Its runs are made
    at once and held in the lane of its id, which lets in `max_concurrent`. How far it is, is counted from its ticks and
    their runs; nothing here stores it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="backfills", db_index=False)
    trigger = models.ForeignKey(Trigger, models.PROTECT, related_name="backfills")
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    channel = models.CharField(max_length=20)
    key = models.CharField(max_length=200, blank=True)
    fingerprint = models.CharField(max_length=64)
    reason = models.TextField(blank=True)
    override_reason = models.TextField(blank=True, help_text="why it may start in a blackout")
    state = models.CharField(max_length=30, choices=BackfillState.choices, default=BackfillState.PREVIEWED)
    from_time = models.DateTimeField()
    to_time = models.DateTimeField()
    cron = models.CharField(max_length=200)
    timezone = models.CharField(max_length=64)
    gap = models.CharField(max_length=20)
    overlap = models.CharField(max_length=20)
    max_concurrent = models.PositiveIntegerField(default=1)
    reprocess = models.CharField(max_length=10, choices=Reprocess.choices, default=Reprocess.NONE)
    order = models.CharField(max_length=10, choices=BackfillOrder.choices, default=BackfillOrder.OLDEST)
    request = models.JSONField(
        default=dict, help_text="the request after its defaults; `made_with`: what its trigger said of its runs then"
    )
    plan = models.JSONField(null=True, help_text="what was judged and shown: counts and a digest of all its ticks")
    plan_digest = models.CharField(max_length=64, blank=True)
    cancel_reason = models.TextField(blank=True)
    cancelled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+", help_text="none where time did it"
    )
    created_at = models.DateTimeField(db_default=RecourseNow())
    updated_at = models.DateTimeField(db_default=RecourseNow())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, help_text="of a cancelled one: when nothing of it was held any more")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "key"], condition=~Q(key=""), name="backfill_key_once"),
            closed_set("state", BackfillState, "backfill_state_known"),
            closed_set("reprocess", Reprocess, "backfill_reprocess_known"),
            closed_set("order", BackfillOrder, "backfill_order_known"),
        ]
        indexes = [
            models.Index(fields=["workspace", "-created_at", "-id"], name="backfill_newest"),
            # what the sweep carries on
            models.Index(
                fields=["state", "id"],
                name="backfill_unfinished",
                condition=~Q(state__in=sorted(TERMINAL_BACKFILL)),
            ),
            # of which something is held still
            models.Index(
                fields=["id"],
                name="backfill_being_cancelled",
                condition=Q(state=BackfillState.CANCELLED, finished_at__isnull=True),
            ),
        ]
        triggers = [
            frozen_when(
                "backfill_ended_stays",
                "OLD.state IN ('completed', 'completed_with_failures', 'cancelled') AND NEW.state <> OLD.state",
                "a backfill that has ended stays so",
            )
        ]

    def __str__(self) -> str:
        return f"backfill {self.id}"


class BackfillTick(models.Model):
    """One instant of a backfill's window, and what the backfill made of it."""

    id = models.BigAutoField(primary_key=True)
    backfill = models.ForeignKey(Backfill, models.CASCADE, related_name="ticks", db_index=False)
    at = models.DateTimeField()
    local_time = models.CharField(max_length=40, help_text="ISO 8601 with its offset")
    rule = models.CharField(max_length=40)
    previous_at = models.DateTimeField(null=True)
    state = models.CharField(max_length=20, choices=BackfillTickState.choices, default=BackfillTickState.PENDING)
    run = models.UUIDField(null=True, help_text="the run made for it; of a skipped one, the run that it had")
    before = models.JSONField(null=True, help_text="its row in the ledger before, to be given back; none: it had none")
    error_code = models.CharField(max_length=60, blank=True, db_default="")
    error_message = models.TextField(blank=True, db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["backfill", "at"], name="backfill_tick_once"),
            closed_set("state", BackfillTickState, "backfill_tick_state_known"),
        ]
        indexes = [
            models.Index(
                fields=["backfill", "at"],
                name="backfill_tick_pending",
                condition=Q(state=BackfillTickState.PENDING),
            ),
            models.Index(fields=["backfill", "state"], name="backfill_tick_states"),
        ]
