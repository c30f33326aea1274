"""Runs that a stage of another run started: which one each key of a stage stands for."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow, closed_set, kept, not_emptied
from pipelines.models.runs import Run, Stage


class OnParentEnd(models.TextChoices):
    CANCEL = "cancel"  # the child is cancelled, however its parent ends
    LEAVE = "leave"  # the child goes on, and is listed where its parent was ended from outside


class Follow(models.TextChoices):
    FORK = "fork"  # the newest fork of the child counts
    ORIGINAL = "original"  # the child that was started counts, whatever is forked from it


class ChildRun(models.Model):
    """What a key of a stage stands for: `started` is the run that was started, `run` the one that counts now.

    Of a stage and key one is `current`; those before it failed or were cancelled, and a later epoch began anew. Written
    under the lock of the parent's run, and by a fork of the child, which moves `run` on.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    parent = models.ForeignKey(Run, models.CASCADE, related_name="child_links", db_index=False)
    stage = models.ForeignKey(Stage, models.CASCADE, related_name="child_links", db_index=False)
    key = models.CharField(max_length=200)
    started = models.ForeignKey(Run, models.PROTECT, related_name="+", db_index=False)
    run = models.ForeignKey(Run, models.PROTECT, related_name="parent_links", db_index=False)
    epoch = models.PositiveIntegerField(help_text="the stage's, when it was linked")
    on_parent_end = models.CharField(max_length=20, choices=OnParentEnd.choices)
    follow = models.CharField(max_length=20, choices=Follow.choices)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of what was asked for, defaults filled in")
    taken_over = models.BooleanField(default=False, help_text="the run that its own was forked from had started it")
    is_current = models.BooleanField(default=True)
    awaited = models.BooleanField(default=False, help_text="the stage waits for it, and holds no worker")
    ending = models.BooleanField(default=False, help_text="the parent has ended, and it is to be cancelled")
    created_at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["stage", "key"], condition=Q(is_current=True), name="child_run_once_per_stage_and_key"
            ),
            models.CheckConstraint(
                condition=Q(awaited=False) | Q(is_current=True, ending=False), name="child_run_awaited_while_current"
            ),
            closed_set("on_parent_end", OnParentEnd, "child_run_on_parent_end_known"),
            closed_set("follow", Follow, "child_run_follow_known"),
        ]
        indexes = [
            models.Index(fields=["parent", "-created_at", "-id"], name="child_run_of_parent"),
            models.Index(fields=["run"], name="child_run_by_run"),
            models.Index(fields=["started"], name="child_run_by_started"),
            # what the sweep walks
            models.Index(fields=["id"], name="child_run_awaited", condition=Q(awaited=True)),
            models.Index(fields=["id"], name="child_run_ending", condition=Q(ending=True)),
        ]
        triggers = [kept("child_run_kept"), not_emptied("child_run_not_emptied")]

    def __str__(self) -> str:
        return f"{self.key} {self.run_id}"
