"""States of an operation, its legal moves, and the closed set of verdicts on it (model.md §2)."""

from django.db.models import TextChoices


class OperationKind(TextChoices):
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"
    SKIP = "skip"
    RERUN = "rerun"
    REPLAY = "replay"
    RECONCILE = "reconcile"
    ACKNOWLEDGE = "acknowledge"
    REDRIVE = "redrive"
    DISCARD = "discard"


class OperationState(TextChoices):
    REQUESTED = "requested"
    EVALUATING = "evaluating"
    AWAITING_APPROVAL = "awaiting_approval"  # left by a decision, a withdrawal or its end in time
    REVIEW_REQUIRED = "review_required"  # left by somebody with the capability who did not ask for it
    DENIED = "denied"
    ALLOWED = "allowed"
    RESERVED = "reserved"  # the target's id is fixed; a sweep dispatches what its caller could not
    DISPATCHED = "dispatched"  # its change is committed; follows the target run's end
    SUCCEEDED = "succeeded"  # at once for verbs in place
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class Disposition(TextChoices):
    """The verdict on an operation; the worst of its reasons wins, in this order."""

    RECOVERY_DENIED = "recovery_denied"
    OPERATOR_REVIEW_REQUIRED = "operator_review_required"
    RECOVERY_ALLOWED_RECONCILED = "recovery_allowed_reconciled"
    RECOVERY_ALLOWED = "recovery_allowed"


class Outcome(TextChoices):
    """What somebody found out about something done outside."""

    COMMITTED = "committed"
    ABSENT = "absent"
    CONTRADICTED = "contradicted"


Op = OperationState

TERMINAL_OPERATION = frozenset({Op.DENIED, Op.SUCCEEDED, Op.FAILED, Op.WITHDRAWN, Op.EXPIRED})
PENDING_OPERATION = frozenset({Op.AWAITING_APPROVAL, Op.REVIEW_REQUIRED})  # they stand in /v1/approvals

OPERATION_MOVES: dict[str, dict[OperationState, OperationState]] = {
    "evaluate": {Op.REQUESTED: Op.EVALUATING},
    "deny": dict.fromkeys(
        (Op.EVALUATING, Op.AWAITING_APPROVAL, Op.REVIEW_REQUIRED, Op.ALLOWED, Op.RESERVED), Op.DENIED
    ),
    "ask_review": dict.fromkeys((Op.EVALUATING, Op.AWAITING_APPROVAL, Op.RESERVED), Op.REVIEW_REQUIRED),
    "ask_approval": {Op.EVALUATING: Op.AWAITING_APPROVAL, Op.REVIEW_REQUIRED: Op.AWAITING_APPROVAL},
    "allow": dict.fromkeys((Op.EVALUATING, Op.AWAITING_APPROVAL, Op.REVIEW_REQUIRED), Op.ALLOWED),
    "reserve": {Op.ALLOWED: Op.RESERVED},
    "dispatch": {Op.RESERVED: Op.DISPATCHED, Op.ALLOWED: Op.DISPATCHED},
    "succeed": {Op.DISPATCHED: Op.SUCCEEDED},
    "fail": dict.fromkeys((Op.DISPATCHED, Op.RESERVED), Op.FAILED),
    "withdraw": dict.fromkeys(PENDING_OPERATION, Op.WITHDRAWN),
    "expire": dict.fromkeys(PENDING_OPERATION, Op.EXPIRED),
}
