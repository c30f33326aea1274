"""Typed refusals: one class, one table of codes (model.md §6). Caught once at each edge and shown as problem+json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATUS: dict[str, int] = {
    "validation_error": 400,
    "client_request_id_invalid": 400,
    "unauthorized": 401,
    "permission_denied": 403,
    "impersonation_rejected": 403,
    "self_approval": 403,
    "not_found": 404,
    "checkpoint_not_found": 404,
    "unsupported": 405,
    "idempotency_conflict": 409,
    "recovery_idempotency_conflict": 409,
    "execution_state_invalid": 409,
    "stage_state_invalid": 409,
    "stale_execution": 409,
    "gate_decision_conflict": 409,
    "approval_stale": 409,
    "gate_denied": 409,
    "stale_request": 409,
    "needs_reconciliation": 409,
    "budget_exhausted": 409,
    "deadline_exceeded": 409,
    "attempts_exhausted": 409,
    "definition_changed": 409,
    "recipient_not_allowed": 409,
    "artifact_immutable": 409,
    "artifact_corrupt": 409,
    "store_conflict": 409,
    "store_quota_exceeded": 409,
    "store_closed": 409,
    "recovery_environment_mismatch": 409,
    "checkpoint_integrity_invalid": 409,
    "operator_review_required": 409,
    "recovery_denied": 409,
    "plan_changed": 409,
    "release_not_active": 409,
    "blackout_active": 409,
    "payload_too_large": 413,
    "environment_unknown": 422,
    "cron_invalid": 422,
    "timezone_invalid": 422,
    "backfill_window_invalid": 422,
    "backfill_too_many_ticks": 422,
    "bulk_too_many_targets": 422,
    "effect_class_unknown": 422,
    "effect_key_required": 422,
    "rate_limited": 429,
    "result_not_confirmed": 503,
}


class Refusal(Exception):
    """An action that was not carried out and changed nothing. `code` is from `STATUS`; `errors` names input fields."""

    def __init__(
        self, code: str, detail: str, *, errors: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = STATUS[code]
        self.errors = dict(errors or {})
        self.extra = dict(extra or {})
        self.is_recorded = False  # whether the audit has it already
