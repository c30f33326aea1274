"""Approval rules: which operations of a workspace others must agree to."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

from approvals.rules import DECIDING_ROLES
from pipelines.ids import new_id
from pipelines.models import Workspace
from pipelines.models.base import RecourseNow, closed_set

LONGEST_EXPIRY = 366 * 24 * 3600


class Counted(models.TextChoices):
    """What the size of an operation is counted in."""

    STAGES = "stages"
    RUNS = "runs"
    TICKS = "ticks"


class ApproverRole(models.TextChoices):
    """The roles that decide, each including those after it."""

    APPROVER = "approver"
    RELEASE_MANAGER = "release_manager"
    ADMIN = "admin"


class ApprovalRule(models.Model):
    """Who must agree to operations of these kinds, environments and pipelines, of this size or more.

    An empty list of environments or pipelines matches all; `protected` among the environments stands for those that
    are. What matches is pure: `approvals/rules.py`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="approval_rules")
    name = models.CharField(max_length=255)
    kinds = ArrayField(models.CharField(max_length=20), help_text="operation kinds; at least one")
    environments = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    pipelines = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    counted = models.CharField(max_length=10, choices=Counted.choices, blank=True, help_text="blank: of any size")
    at_least = models.PositiveIntegerField(default=1)
    role = models.CharField(max_length=20, choices=ApproverRole.choices, default=ApproverRole.APPROVER)
    count = models.PositiveSmallIntegerField(default=1, validators=[MinValueValidator(1), MaxValueValidator(20)])
    expires_in = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LONGEST_EXPIRY)],
        help_text="seconds; blank: seven days",
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=RecourseNow(), editable=False)

    class Meta:
        constraints = [
            closed_set("role", ApproverRole, "approval_rule_role_known"),
            models.CheckConstraint(condition=Q(counted__in=["", *Counted.values]), name="approval_rule_counted_known"),
            models.CheckConstraint(condition=Q(count__gte=1), name="approval_rule_asks_somebody"),
            models.CheckConstraint(condition=~Q(kinds=[]), name="approval_rule_names_kinds"),
            models.UniqueConstraint("workspace", Lower("name"), name="approval_rule_name_once_per_workspace"),
        ]

    def __str__(self) -> str:
        return self.name


assert tuple(ApproverRole.values) == DECIDING_ROLES  # noqa: S101 - two spellings of one list
