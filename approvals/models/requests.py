"""Requests for agreement: the frozen plan of an operation, who must agree to it, and who decided what."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from approvals.states import RequestCause, RequestState
from pipelines.ids import new_id
from pipelines.models import Run, Stage, Workspace
from pipelines.models.base import RecourseNow, closed_set, frozen_when, insert_only, kept, not_emptied

# all but how it ended, and when it was told that it would
PUT = (
    *("id", "workspace_id", "subject", "round", "kind", "cause", "run_id", "stage_id", "requested_by_id", "reason"),
    *("plan", "plan_digest", "approver_role", "count", "why", "shown_to", "asked_at", "opened_at", "expires_at"),
)
FROZEN = " OR ".join(["OLD.state <> 'open'", *(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in PUT)])


class ApprovalRequest(models.Model):
    """What an operation would do, put before others; closed once, and never altered.

    When the world has moved it is superseded by another `round`, with the plan of then; decisions are about one round.
    Outside, all rounds go by the `subject`: the operation's id. `asked_at` is when the first round was opened.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="approval_requests", db_index=False)
    subject = models.UUIDField(help_text="the operation")
    round = models.PositiveSmallIntegerField(default=1)
    kind = models.CharField(
        max_length=20, help_text="the operation's kind; approvals/gates.py knows what carries it out"
    )
    cause = models.CharField(max_length=20, choices=RequestCause.choices)
    run = models.ForeignKey(Run, models.CASCADE, null=True, related_name="approval_requests", db_constraint=False)
    stage = models.ForeignKey(Stage, models.CASCADE, null=True, related_name="+", db_index=False, db_constraint=False)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    reason = models.TextField(blank=True)
    plan = models.JSONField(null=True, help_text="what would be done, as it was judged and shown")
    plan_digest = models.CharField(max_length=64, blank=True)
    approver_role = models.CharField(max_length=20)
    count = models.PositiveSmallIntegerField(default=1)
    why = models.JSONField(default=list, help_text="what asks for it, a sentence each")
    shown_to = models.IntegerField(
        null=True, help_text="who got this plan in answer to their approval of the one before it"
    )
    state = models.CharField(max_length=20, choices=RequestState.choices, default=RequestState.OPEN)
    asked_at = models.DateTimeField(db_default=RecourseNow())
    opened_at = models.DateTimeField(db_default=RecourseNow())
    expires_at = models.DateTimeField(null=True)
    warned_at = models.DateTimeField(null=True, help_text="when it was told that it is about to expire")
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            closed_set("state", RequestState, "approval_request_state_known"),
            closed_set("cause", RequestCause, "approval_request_cause_known"),
            models.UniqueConstraint(fields=["subject", "round"], name="approval_request_round_once"),
            models.UniqueConstraint(
                fields=["subject"], condition=Q(state=RequestState.OPEN), name="approval_request_one_open"
            ),
        ]
        indexes = [
            models.Index(
                fields=["workspace", "-opened_at", "-id"],
                name="approval_request_waiting",
                condition=Q(state=RequestState.OPEN),
            ),
            models.Index(
                fields=["workspace", "-closed_at", "-id"],
                name="approval_request_closed",
                condition=~Q(state=RequestState.OPEN),
            ),
            models.Index(fields=["requested_by", "workspace", "-opened_at", "-id"], name="approval_request_by_person"),
            models.Index(fields=["expires_at"], name="approval_request_expiry", condition=Q(state=RequestState.OPEN)),
        ]
        triggers = [
            frozen_when("approval_request_frozen", FROZEN, "a request stays as it was put"),
            kept("approval_request_kept"),
            not_emptied("approval_request_not_emptied"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} round {self.round}"


class RequestDecision(models.Model):
    """What somebody decided about one round of a request; only ever added.

    `member` is the membership in which they decided: it is another one after they left and came back.
    """

    request = models.ForeignKey(ApprovalRequest, models.CASCADE, related_name="decisions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    member = models.BigIntegerField()
    role = models.CharField(max_length=20, help_text="theirs at that time")
    approved = models.BooleanField()
    reason = models.TextField(blank=True)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["request", "user"], name="request_decision_once_per_person")]
        triggers = [insert_only("request_decision_insert_only"), not_emptied("request_decision_not_emptied")]
