"""States of operations, backfills and bulks, their legal moves, and the closed set of verdicts (model.md §2)."""

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


BACKFILL = "backfill"  # its kind, where rules and requests name it


class BackfillState(TextChoices):
    PREVIEWED = "previewed"  # being asked for; nobody else sees it so
    AWAITING_APPROVAL = "awaiting_approval"  # left by a decision, a withdrawal or its end in time
    RUNNING = "running"  # its runs are made, and let in a few at a time
    PAUSED = "paused"  # nothing more is let in
    COMPLETED = "completed"
    COMPLETED_WITH_FAILURES = "completed_with_failures"  # a tick failed, or its run did
    CANCELLED = "cancelled"  # also when others did not agree


class BackfillTickState(TextChoices):
    PENDING = "pending"  # its run is not made yet
    DISPATCHED = "dispatched"  # its run was made
    FAILED = "failed"  # its run could not be made; the others go on
    SKIPPED = "skipped"  # it had a run already
    CANCELLED = "cancelled"  # its run was never made, or was cancelled while it was held: the tick is missed again


Bf = BackfillState
TERMINAL_BACKFILL = frozenset({Bf.COMPLETED, Bf.COMPLETED_WITH_FAILURES, Bf.CANCELLED})

BACKFILL_MOVES: dict[str, dict[BackfillState, BackfillState]] = {
    "ask_approval": {Bf.PREVIEWED: Bf.AWAITING_APPROVAL},
    "start": {Bf.PREVIEWED: Bf.RUNNING, Bf.AWAITING_APPROVAL: Bf.RUNNING},
    "pause": {Bf.RUNNING: Bf.PAUSED},
    "resume": {Bf.PAUSED: Bf.RUNNING},
    "complete": {Bf.RUNNING: Bf.COMPLETED, Bf.PAUSED: Bf.COMPLETED},
    "complete_with_failures": {Bf.RUNNING: Bf.COMPLETED_WITH_FAILURES, Bf.PAUSED: Bf.COMPLETED_WITH_FAILURES},
    "cancel": dict.fromkeys((Bf.AWAITING_APPROVAL, Bf.RUNNING, Bf.PAUSED), Bf.CANCELLED),
}


BULK = "bulk"  # its kind, where rules and requests name it


class BulkState(TextChoices):
    DRAFT = "draft"  # its targets are frozen and looked at; nothing is done before it is started
    AWAITING_APPROVAL = "awaiting_approval"  # left by a decision, a withdrawal or its end in time
    RUNNING = "running"  # its targets are dealt with, in their order, at its rate
    WAITING = "waiting"  # its canary is through: a person looks, and lets it go on or ends it
    PAUSED = "paused"
    HALTED = "halted"  # its stop rule held it: too many came to nothing
    COMPLETED = "completed"  # every target was dealt with, and none failed or was denied
    COMPLETED_WITH_FAILURES = "completed_with_failures"
    ABORTED = "aborted"  # what was not dealt with by then is left alone; also when others did not agree
    EXPIRED = "expired"  # a draft that nobody started


class BulkItemState(TextChoices):
    PENDING = "pending"
    DONE = "done"  # the verb was carried out on it
    FAILED = "failed"  # it could not be: the code says why
    SKIPPED = "skipped"  # there was nothing to do: it stood otherwise by then, or the bulk was aborted
    DENIED = "denied"  # a right, a verdict or a rule forbids it here; one by one it may be asked for


Bk = BulkState
TERMINAL_BULK = frozenset({Bk.COMPLETED, Bk.COMPLETED_WITH_FAILURES, Bk.ABORTED, Bk.EXPIRED})
HELD_BULK = frozenset({Bk.WAITING, Bk.PAUSED, Bk.HALTED})  # a person lets it go on

BULK_MOVES: dict[str, dict[BulkState, BulkState]] = {
    "ask_approval": {Bk.DRAFT: Bk.AWAITING_APPROVAL},
    "start": {Bk.DRAFT: Bk.RUNNING, Bk.AWAITING_APPROVAL: Bk.RUNNING},
    "wait": {Bk.RUNNING: Bk.WAITING},
    "pause": {Bk.RUNNING: Bk.PAUSED, Bk.WAITING: Bk.PAUSED},
    "halt": {Bk.RUNNING: Bk.HALTED},
    "resume": dict.fromkeys(HELD_BULK, Bk.RUNNING),
    "complete": {Bk.RUNNING: Bk.COMPLETED},
    "complete_with_failures": {Bk.RUNNING: Bk.COMPLETED_WITH_FAILURES},
    "abort": dict.fromkeys((Bk.AWAITING_APPROVAL, Bk.RUNNING, *sorted(HELD_BULK)), Bk.ABORTED),
    "expire": {Bk.DRAFT: Bk.EXPIRED},
}


class RunRetryState(TextChoices):
    """Of a decision about a run that failed, by a policy: whether the console does it again by itself (N1, N2)."""

    DUE = "due"  # it will be, once its time has come and nothing holds it back
    DECLINED = "declined"  # it will not be: the policy, or what failed, does not admit it
    DONE = "done"  # it was: in place, or as a linked run
    REFUSED = "refused"  # its verdict, a rule or a limit said no when it was to be done; a person may look
    CALLED_OFF = "called_off"  # a person did something about the run, or the policy rules no more


Rr = RunRetryState
ENDED_RUN_RETRY = frozenset({Rr.DECLINED, Rr.DONE, Rr.REFUSED, Rr.CALLED_OFF})
RUN_RETRY_MOVES: dict[str, dict[RunRetryState, RunRetryState]] = {
    "carry_out": {Rr.DUE: Rr.DONE},
    "refuse": {Rr.DUE: Rr.REFUSED},
    "call_off": {Rr.DUE: Rr.CALLED_OFF},
}


class RetryMode(TextChoices):
    RESUME = "resume"  # the failed stages anew, in place, with what is behind them
    NEW_RUN = "new_run"  # all of it anew, as a linked run
