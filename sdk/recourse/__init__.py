"""Recourse for applications: a client that creates and watches runs, and a worker that runs their stages.

from recourse import Client, Worker, handler
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recourse.client import Client, SyncClient
    from recourse.commands import Command, command
    from recourse.context import StageContext, StoredArtifact
    from recourse.effects import Effect
    from recourse.errors import (
        ApiError,
        ApprovalStale,
        ArtifactCorrupt,
        ArtifactImmutable,
        AttemptsExhausted,
        BackfillTooManyTicks,
        BackfillWindowInvalid,
        BlackoutActive,
        BudgetExhausted,
        BulkTooManyTargets,
        CheckpointInvalid,
        CheckpointNotFound,
        ClientRequestIdInvalid,
        ConfigurationError,
        Conflict,
        CronInvalid,
        DeadlineExceeded,
        DefinitionChanged,
        EffectClassUnknown,
        EffectKeyRequired,
        EnvironmentMismatch,
        EnvironmentUnknown,
        GateDecisionConflict,
        GateDenied,
        HandlerNotRegistered,
        IdempotencyConflict,
        ImpersonationRejected,
        InvalidRequest,
        NeedsReconciliation,
        NotFound,
        OperatorReviewRequired,
        OutcomeUnknown,
        Parked,
        PayloadTooLarge,
        PermissionDenied,
        PlanChanged,
        RateLimited,
        RecipientNotAllowed,
        RecourseError,
        RecoveryDenied,
        Release,
        ReleaseNotActive,
        ResultNotConfirmed,
        SelfApproval,
        StageFailure,
        StaleExecution,
        StaleRequest,
        StateInvalid,
        Stopped,
        StoreClosed,
        StoreConflict,
        StoreQuotaExceeded,
        TimezoneInvalid,
        Unauthorized,
        Unsupported,
        ValidationError,
    )
    from recourse.handlers import Recipient, Registry, default_registry, handler
    from recourse.jobs import Job
    from recourse.results import Failure, Success, Waiting
    from recourse.version import VERSION
    from recourse.webhooks import WebhookInvalid, verify_webhook
    from recourse.worker import Worker

__all__ = [
    "VERSION",
    "ApiError",
    "ApprovalStale",
    "ArtifactCorrupt",
    "ArtifactImmutable",
    "AttemptsExhausted",
    "BackfillTooManyTicks",
    "BackfillWindowInvalid",
    "BlackoutActive",
    "BudgetExhausted",
    "BulkTooManyTargets",
    "CheckpointInvalid",
    "CheckpointNotFound",
    "Client",
    "ClientRequestIdInvalid",
    "Command",
    "ConfigurationError",
    "Conflict",
    "CronInvalid",
    "DeadlineExceeded",
    "DefinitionChanged",
    "Effect",
    "EffectClassUnknown",
    "EffectKeyRequired",
    "EnvironmentMismatch",
    "EnvironmentUnknown",
    "Failure",
    "GateDecisionConflict",
    "GateDenied",
    "HandlerNotRegistered",
    "IdempotencyConflict",
    "ImpersonationRejected",
    "InvalidRequest",
    "Job",
    "NeedsReconciliation",
    "NotFound",
    "OperatorReviewRequired",
    "OutcomeUnknown",
    "Parked",
    "PayloadTooLarge",
    "PermissionDenied",
    "PlanChanged",
    "RateLimited",
    "Recipient",
    "RecipientNotAllowed",
    "RecourseError",
    "RecoveryDenied",
    "Registry",
    "Release",
    "ReleaseNotActive",
    "ResultNotConfirmed",
    "SelfApproval",
    "StageContext",
    "StageFailure",
    "StaleExecution",
    "StaleRequest",
    "StateInvalid",
    "Stopped",
    "StoreClosed",
    "StoreConflict",
    "StoreQuotaExceeded",
    "StoredArtifact",
    "Success",
    "SyncClient",
    "TimezoneInvalid",
    "Unauthorized",
    "Unsupported",
    "ValidationError",
    "Waiting",
    "WebhookInvalid",
    "Worker",
    "command",
    "default_registry",
    "handler",
    "verify_webhook",
]

# Where each name is: fetched when it is first asked for, so that `recourse --help` loads neither HTTP nor asyncio. What
# is not named here is an error. Each name stands above too: for type checkers, and in `__all__`.
_HOMES = {
    "recourse.client": ("Client", "SyncClient"),
    "recourse.commands": ("Command", "command"),
    "recourse.context": ("StageContext", "StoredArtifact"),
    "recourse.effects": ("Effect",),
    "recourse.handlers": ("Recipient", "Registry", "default_registry", "handler"),
    "recourse.jobs": ("Job",),
    "recourse.results": ("Failure", "Success", "Waiting"),
    "recourse.version": ("VERSION",),
    "recourse.webhooks": ("WebhookInvalid", "verify_webhook"),
    "recourse.worker": ("Worker",),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((home for home, names in _HOMES.items() if name in names), "recourse.errors")
        value = globals()[name] = getattr(import_module(home), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
