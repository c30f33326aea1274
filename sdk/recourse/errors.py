"""Every error that this package raises on purpose.

An `ApiError` is a definite answer of the server. `OutcomeUnknown` is the lack of one: keep the idempotency key and
repeat.
`StageFailure`, `Release`, `Parked` and `Stopped` are raised by handlers, to say how their attempt ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

KEY_STAYS_USED = frozenset({"idempotency_conflict", "recovery_idempotency_conflict", "operator_review_required"})


class RecourseError(Exception):
    """Base of all."""


class ConfigurationError(RecourseError):
    """Something is missing before a request can be made; the text says what to set."""


class HandlerNotRegistered(RecourseError):
    """The registry has no handler of this name; the job was not touched."""


class OutcomeUnknown(RecourseError):
    """No definite answer came within the bounds of repeating: a timeout, a broken connection or 5xx each time.

    The request may or may not have been carried out. Repeat it with the same `key`, or look it up (P27, P29, F127).
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class ApiError(RecourseError):
    """The server refused, definitely. `errors` holds messages by field, `body` the whole problem document."""

    def __init__(self, status: int, code: str, detail: str, body: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {code}: {detail}" if detail else f"{status} {code}")
        self.status = status
        self.code = code
        self.detail = detail
        self.body = body
        self.errors: Any = body.get("errors") or {}

    @property
    def key_used(self) -> bool:
        """Whether the idempotency key of the refused request is taken; most refusals leave it free (F127)."""
        return self.code in KEY_STAYS_USED


class InvalidRequest(ApiError):
    """400, 413, 422: the request itself is wrong."""


class ValidationError(InvalidRequest):
    """400: `errors` says what is wrong with which field."""


class ClientRequestIdInvalid(InvalidRequest):
    """400: a `client_request_id` is a lowercase UUID."""


class PayloadTooLarge(InvalidRequest):
    """413: more than the route takes."""


class EnvironmentUnknown(InvalidRequest):
    """422: the workspace has no environment of this name."""


class CronInvalid(InvalidRequest):
    """422: no cron expression."""


class TimezoneInvalid(InvalidRequest):
    """422: no time zone of the console's or the database's."""


class BackfillWindowInvalid(InvalidRequest):
    """422: the window is empty, or reaches into the future."""


class BackfillTooManyTicks(InvalidRequest):
    """422: more ticks than `max_ticks` allows, or than any backfill may have."""


class BulkTooManyTargets(InvalidRequest):
    """422: more than one bulk operation may have."""


class EffectClassUnknown(InvalidRequest):
    """422: no class of effects."""


class EffectKeyRequired(InvalidRequest):
    """422: an effect outside is committed with the idempotency key that it was made under."""


class Unauthorized(ApiError):
    """401: no such key, token or session."""


class PermissionDenied(ApiError):
    """403: known, but not allowed."""


class SelfApproval(PermissionDenied):
    """403: you asked for it, so somebody else decides it."""


class ImpersonationRejected(PermissionDenied):
    """403: the actor is who calls, and nobody else."""


class NotFound(ApiError):
    """404: no such thing, or not yours to see."""


class CheckpointNotFound(NotFound):
    """404: the run has no checkpoint."""


class Unsupported(ApiError):
    """405, 406, 415: a method, or a media type, that the route does not have."""


class RateLimited(ApiError):
    """429: too many requests; nothing was done. Each try was answered so, after the waits that were told."""


class ResultNotConfirmed(ApiError):
    """503: a result could not be stored. The clients repeat it; it is then the cause of an `OutcomeUnknown`."""


class Conflict(ApiError):
    """409: the state of the run or stage, or an earlier decision, stands against it."""


class IdempotencyConflict(Conflict):
    """409: the key was used before for another intent."""


class GateDecisionConflict(Conflict):
    """409: the gate or request was decided before, otherwise."""


class ApprovalStale(Conflict):
    """409: the gate or request expired, or was withdrawn; nobody decides it any more."""


class StateInvalid(Conflict):
    """409: the run or the stage is not in a state from which this leads anywhere."""


class StaleRequest(Conflict):
    """409: it answers no request that is awaited now; it is kept as evidence, and changes nothing."""


class NeedsReconciliation(Conflict):
    """409: what the stage did outside has to be settled by a person first."""


class StaleExecution(Conflict):
    """409: the attempt is not the session's any more; what was told is kept as late evidence."""


class GateDenied(Conflict):
    """409: a gate was rejected, and what stands behind it does not run."""


class BudgetExhausted(Conflict):
    """409: the run has spent what its limits allow."""


class DeadlineExceeded(Conflict):
    """409: the run's deadline is over."""


class AttemptsExhausted(Conflict):
    """409: the stage had all the attempts that it may have."""


class DefinitionChanged(Conflict):
    """409: the stage is not any more what it was in the run's release."""


class RecipientNotAllowed(Conflict):
    """409: it may not be sent to whom it would go to."""


class ReleaseNotActive(Conflict):
    """409: the pipeline has no release in force there."""


class BlackoutActive(Conflict):
    """409: a blackout or the freeze holds; an `override_reason` starts it all the same."""


class EnvironmentMismatch(Conflict):
    """409: another environment was named than the source's, or the key's."""


class CheckpointInvalid(Conflict):
    """409: the checkpoint cannot be trusted; nothing was read from it."""


class ArtifactImmutable(Conflict):
    """409: the name has other bytes already, which stay."""


class ArtifactCorrupt(Conflict):
    """409: the bytes are not what was stored; nothing of them is given out."""


class StoreConflict(Conflict):
    """409: the workspace store has another row under that key, or another key; it stays."""


class StoreQuotaExceeded(Conflict):
    """409: the workspace store has no room for it; nothing was stored."""


class StoreClosed(Conflict):
    """409: the workspace store cannot be used; whoever runs the console has to open it."""


class PlanChanged(Conflict):
    """409: the world has moved since `plan_digest` was made. `plan` is the new plan, with its own digest."""

    @property
    def plan(self) -> Mapping[str, Any]:
        plan: Mapping[str, Any] = self.body.get("plan") or {}
        return plan


class Judged(Conflict):
    """409: the verdict on what might be repeated stands against it; it is kept as an operation."""

    @property
    def operation_id(self) -> str | None:
        return self.body.get("operation_id")

    @property
    def disposition(self) -> str:
        return str(self.body.get("disposition") or self.code)

    @property
    def reasons(self) -> list[Any]:
        return list(self.body.get("reasons") or [])


class OperatorReviewRequired(Judged):
    """409: someone else with the right must look first; after that the same key answers with the target."""


class RecoveryDenied(Judged):
    """409: denied for good; what is known of the effects contradicts itself, or a gate was rejected."""


_BY_CODE: dict[str, type[ApiError]] = {
    "validation_error": ValidationError,
    "client_request_id_invalid": ClientRequestIdInvalid,
    "unauthorized": Unauthorized,
    "permission_denied": PermissionDenied,
    "impersonation_rejected": ImpersonationRejected,
    "self_approval": SelfApproval,
    "not_found": NotFound,
    "checkpoint_not_found": CheckpointNotFound,
    "unsupported": Unsupported,
    "idempotency_conflict": IdempotencyConflict,
    "recovery_idempotency_conflict": IdempotencyConflict,
    "execution_state_invalid": StateInvalid,
    "stage_state_invalid": StateInvalid,
    "stale_execution": StaleExecution,
    "gate_decision_conflict": GateDecisionConflict,
    "approval_stale": ApprovalStale,
    "gate_denied": GateDenied,
    "stale_request": StaleRequest,
    "needs_reconciliation": NeedsReconciliation,
    "budget_exhausted": BudgetExhausted,
    "deadline_exceeded": DeadlineExceeded,
    "attempts_exhausted": AttemptsExhausted,
    "definition_changed": DefinitionChanged,
    "recipient_not_allowed": RecipientNotAllowed,
    "artifact_immutable": ArtifactImmutable,
    "artifact_corrupt": ArtifactCorrupt,
    "store_conflict": StoreConflict,
    "store_quota_exceeded": StoreQuotaExceeded,
    "store_closed": StoreClosed,
    "recovery_environment_mismatch": EnvironmentMismatch,
    "checkpoint_integrity_invalid": CheckpointInvalid,
    "operator_review_required": OperatorReviewRequired,
    "recovery_denied": RecoveryDenied,
    "plan_changed": PlanChanged,
    "release_not_active": ReleaseNotActive,
    "blackout_active": BlackoutActive,
    "payload_too_large": PayloadTooLarge,
    "environment_unknown": EnvironmentUnknown,
    "cron_invalid": CronInvalid,
    "timezone_invalid": TimezoneInvalid,
    "backfill_window_invalid": BackfillWindowInvalid,
    "backfill_too_many_ticks": BackfillTooManyTicks,
    "bulk_too_many_targets": BulkTooManyTargets,
    "effect_class_unknown": EffectClassUnknown,
    "effect_key_required": EffectKeyRequired,
    "rate_limited": RateLimited,
    "result_not_confirmed": ResultNotConfirmed,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    413: InvalidRequest,
    422: InvalidRequest,
    429: RateLimited,
}


def codes() -> Mapping[str, type[ApiError]]:
    """Every code that the console refuses with, and the class that is raised for it."""
    return dict(_BY_CODE)


def api_error(status: int, body: Mapping[str, Any]) -> ApiError:
    """The typed error for a problem document; the code decides, then the status."""
    code = str(body.get("code") or f"http_{status}")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    return kind(status, code, str(body.get("detail") or body.get("title") or ""), body)


class StageFailure(RecourseError):
    """Raised by a handler: the attempt failed with this code. `retryable=False` forbids an automatic retry (P42)."""

    def __init__(self, code: str, message: str = "", retryable: bool | None = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable


class Release(RecourseError):
    """Raised by a handler: give the stage back untouched, to be run from its beginning later. Nothing is counted."""


class Parked(BaseException):
    """Raised by `ctx.runs.wait`: the attempt ends here, and its handler starts again once these runs have ended.

    No `Exception`, so that a handler that catches those does not take it for a failure of what it waits for.
    """

    def __init__(self, run_ids: Iterable[str]) -> None:
        self.run_ids = list(dict.fromkeys(run_ids))
        super().__init__(f"waits for {', '.join(self.run_ids)}")


class Stopped(RecourseError):
    """Raised by `ctx.raise_if_stopped()`, `ctx.effect` and `ctx.checkpoint`: the attempt was cancelled or lost, its
    time-out is over, or the worker is ending.
    """
