"""States of an operation and the closed set of verdicts on it (model.md §2)."""

from django.db.models import TextChoices


class OperationKind(TextChoices):
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"
    SKIP = "skip"
    ACKNOWLEDGE = "acknowledge"
    REDRIVE = "redrive"
    DISCARD = "discard"


class OperationState(TextChoices):
    REQUESTED = "requested"
    EVALUATING = "evaluating"
    AWAITING_APPROVAL = "awaiting_approval"
    REVIEW_REQUIRED = "review_required"
    DENIED = "denied"
    ALLOWED = "allowed"
    RESERVED = "reserved"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"  # at once for verbs in place
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class Disposition(TextChoices):
    RECOVERY_ALLOWED = "recovery_allowed"
    RECOVERY_ALLOWED_RECONCILED = "recovery_allowed_reconciled"
    OPERATOR_REVIEW_REQUIRED = "operator_review_required"
    RECOVERY_DENIED = "recovery_denied"
