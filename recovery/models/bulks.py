"""Bulk operations: one verb on many targets, which are frozen before anybody looks at what it would do."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models import Workspace
from pipelines.models.base import RecourseNow, closed_set, frozen_when
from recovery.states import TERMINAL_BULK, BulkItemState, BulkState, OperationKind


class BulkOperation(models.Model):
    """One verb on many targets, done by the console itself, so that no browser has to stay open (F41, F167).

    Its targets are frozen as it is made, a draft; `total` is how many. It is carried out at `rate` targets a second,
    waits for a person after the first `canary`, and halts when more than `stop_ratio` of the last ones came to nothing.
    How far it is, is counted from its items; nothing here stores it (F152).
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.PROTECT, related_name="bulk_operations", db_index=False)
    kind = models.CharField(max_length=20, choices=OperationKind.choices)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    channel = models.CharField(max_length=20)
    key = models.CharField(max_length=200, blank=True)
    fingerprint = models.CharField(max_length=64)
    reason = models.TextField(blank=True)
    override_reason = models.TextField(blank=True, help_text="why it may start in a blackout")
    state = models.CharField(max_length=30, choices=BulkState.choices, default=BulkState.DRAFT)
    chosen = models.JSONField(
        default=dict, help_text="how its targets were chosen: their number, or the filter in words"
    )
    choices = models.JSONField(default=dict, help_text="what its verb takes, the same for every target")
    total = models.PositiveIntegerField(default=0)
    rate = models.PositiveIntegerField(default=20, help_text="targets a second, at most")
    canary = models.PositiveIntegerField(default=0, help_text="after so many it waits for a person; 0: it does not")
    stop_ratio = models.FloatField(null=True, help_text="of the last targets that came to nothing; none: it goes on")
    plan = models.JSONField(null=True, help_text="what was judged and shown: counts and a digest of all its targets")
    plan_digest = models.CharField(max_length=64, blank=True)
    stops_after = models.PositiveIntegerField(
        default=0, help_text="the position at which its canary ends; 0: none is on"
    )
    let_go_at = models.DateTimeField(
        null=True, help_text="when it was last let go on: its stop rule looks no further back"
    )
    next_at = models.DateTimeField(
        null=True, help_text="when its next target may be dealt with: its rate is kept by this"
    )
    held_reason = models.TextField(blank=True, help_text="why it waits or was ended, in words")
    ended_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=RecourseNow())
    updated_at = models.DateTimeField(db_default=RecourseNow())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    verified_at = models.DateTimeField(null=True, help_text="when its targets were last compared with what was done")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["workspace", "key"], condition=~Q(key=""), name="bulk_key_once"),
            closed_set("kind", OperationKind, "bulk_kind_known"),
            closed_set("state", BulkState, "bulk_state_known"),
        ]
        indexes = [
            models.Index(fields=["workspace", "-created_at", "-id"], name="bulk_newest"),
            # what the sweep carries on
            models.Index(fields=["state", "id"], name="bulk_unfinished", condition=~Q(state__in=sorted(TERMINAL_BULK))),
        ]
        triggers = [
            frozen_when(
                "bulk_ended_stays",
                "OLD.state IN ('completed', 'completed_with_failures', 'aborted', 'expired')"
                " AND NEW.state <> OLD.state",
                "a bulk operation that has ended stays so",
            )
        ]

    def __str__(self) -> str:
        return f"bulk {self.kind} {self.id}"


class BulkItem(models.Model):
    """One target of a bulk operation, and what became of it: a run, with the stage or the dead letter in it."""

    id = models.BigAutoField(primary_key=True)
    # no constraint: a hundred thousand are written at once, by whoever has just written the bulk itself
    bulk = models.ForeignKey(BulkOperation, models.CASCADE, related_name="items", db_index=False, db_constraint=False)
    position = models.PositiveIntegerField()
    run = models.UUIDField()
    stage = models.UUIDField(null=True)
    dead_letter = models.UUIDField(null=True)
    state = models.CharField(max_length=20, choices=BulkItemState.choices, default=BulkItemState.PENDING)
    operation = models.UUIDField(null=True, help_text="the operation that it was carried out as")
    made = models.UUIDField(null=True, help_text="the run that a rerun or a replay made of it")
    code = models.CharField(max_length=60, blank=True, db_default="")
    message = models.TextField(blank=True, db_default="")
    decided_at = models.DateTimeField(null=True)
    verified = models.BooleanField(
        null=True, help_text="whether the target stood as it was left, when it was looked at"
    )
    found = models.TextField(blank=True, db_default="", help_text="how it stood instead")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bulk", "position"], name="bulk_item_once"),
            closed_set("state", BulkItemState, "bulk_item_state_known"),
        ]
        indexes = [
            models.Index(fields=["bulk", "state", "position"], name="bulk_item_states"),
            models.Index(
                fields=["bulk", "-decided_at"], name="bulk_item_decided", condition=Q(decided_at__isnull=False)
            ),
        ]
