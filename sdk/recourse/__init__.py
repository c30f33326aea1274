"""Recourse for applications: a client that creates and watches runs, and a worker that runs their stages.

from recourse import Client, Worker, handler
"""

from recourse.client import Client, SyncClient
from recourse.commands import Command, command
from recourse.context import StageContext, StoredArtifact
from recourse.effects import Effect
from recourse.errors import (
    ApiError,
    ApprovalStale,
    ArtifactCorrupt,
    ArtifactImmutable,
    CheckpointInvalid,
    ConfigurationError,
    Conflict,
    EnvironmentMismatch,
    GateDecisionConflict,
    HandlerNotRegistered,
    IdempotencyConflict,
    InvalidRequest,
    NeedsReconciliation,
    NotFound,
    OperatorReviewRequired,
    OutcomeUnknown,
    PermissionDenied,
    PlanChanged,
    RecourseError,
    RecoveryDenied,
    Release,
    SelfApproval,
    StageFailure,
    StaleRequest,
    StateInvalid,
    Stopped,
    Unauthorized,
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
    "CheckpointInvalid",
    "Client",
    "Command",
    "ConfigurationError",
    "Conflict",
    "Effect",
    "EnvironmentMismatch",
    "Failure",
    "GateDecisionConflict",
    "HandlerNotRegistered",
    "IdempotencyConflict",
    "InvalidRequest",
    "Job",
    "NeedsReconciliation",
    "NotFound",
    "OperatorReviewRequired",
    "OutcomeUnknown",
    "PermissionDenied",
    "PlanChanged",
    "Recipient",
    "RecourseError",
    "RecoveryDenied",
    "Registry",
    "Release",
    "SelfApproval",
    "StageContext",
    "StageFailure",
    "StaleRequest",
    "StateInvalid",
    "Stopped",
    "StoredArtifact",
    "Success",
    "SyncClient",
    "Unauthorized",
    "Waiting",
    "WebhookInvalid",
    "Worker",
    "command",
    "default_registry",
    "handler",
    "verify_webhook",
]
