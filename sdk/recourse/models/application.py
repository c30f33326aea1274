"""The application API: what its requests and answers hold.

Written from the OpenAPI document by `python -m config.client_models`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Accepted(TypedDict):
    accepted: bool
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stageStatus: str


class Acknowledged(TypedDict):
    deliveryId: str


class Acknowledgement(TypedDict):
    deliveryId: str


class ApplicationName(TypedDict):
    id: str
    name: str


class Approval(TypedDict):
    """A gate of the stage, before or after its work. A role, or more than one approver, asks for people by itself."""

    when: Literal["before", "after"]
    approverRole: NotRequired[Literal["approver", "release_manager", "admin"]]
    count: NotRequired[int]
    expiresInSeconds: NotRequired[int]
    requirePerson: NotRequired[bool]


class ArtifactGiven(TypedDict):
    """Bytes under a name. `sha256` is the sender's word on them; where it is not theirs, nothing is stored."""

    executionId: str
    name: str
    contentBase64: str
    sha256: str
    mediaType: NotRequired[str]


class BaselineOf(TypedDict):
    """An artifact that a run builds on, by the name under which its stages know it."""

    name: str
    artifactId: str


class CamelBounds(TypedDict):
    """The limits of a run. Bytes and seconds; what is left out has a recorded default."""

    concurrency: NotRequired[int]
    attemptsPerStage: NotRequired[int]
    totalAttempts: NotRequired[int]
    outputBytesPerStage: NotRequired[int]
    totalOutputBytes: NotRequired[int]
    deadlineSeconds: NotRequired[int]
    revisions: NotRequired[int]


class CamelOptions(TypedDict):
    """How a stage is retried, bounded and recovered. All intervals are seconds; 0 stands for none."""

    maxRetries: NotRequired[int]
    retryInterval: NotRequired[float]
    retryOnErrorCodes: NotRequired[list[str]]
    backoff: NotRequired[Literal["fixed", "linear", "exponential"]]
    maxRetryInterval: NotRequired[float]
    jitter: NotRequired[bool]
    timeOut: NotRequired[float]
    maxRecoveries: NotRequired[int]
    maxOutputBytes: NotRequired[int]


class CamelPosture(TypedDict):
    sideEffects: NotRequired[list[CamelSideEffect]]
    committedSideEffects: NotRequired[list[CamelSideEffect]]


CamelSideEffect = TypedDict(
    "CamelSideEffect",
    {
        # one of: internal_state, model_provider, retrieval, external_http, tool_side_effect, memory_write,
        # evidence_write, artifact_write, human_approval, runtime_limit, policy_obligation
        "class": NotRequired["str"],
        "stepId": NotRequired["str"],
        "idempotencyKey": NotRequired["str"],
        "committed": NotRequired["bool"],
        "externalRef": NotRequired["str"],
        "requestHash": NotRequired["str"],
    },
)
"""An effect that a posture tells of. A committed one outside `internal_state` needs class, step and key."""


class Cancellation(TypedDict):
    pipeline: PipelineView
    reconciliation: list[StillOutside]


class ChildFailure(TypedDict):
    code: str
    message: str


class ChildIntent(TypedDict):
    """The run that a stage wants under its key: inline `stages` with a `name`, or a managed `pipeline` with `input`."""

    executionId: str
    key: str
    name: NotRequired[str]
    stages: NotRequired[list[StageIntent]]
    pipeline: NotRequired[str]
    input: NotRequired[dict[str, Any]]
    environment: NotRequired[str]
    onParentEnd: NotRequired[Literal["cancel", "leave"]]
    follow: NotRequired[Literal["fork", "original"]]


class ChildView(TypedDict):
    """A child as its stage sees it. `runId` is the run that counts, `startedRunId` the one that was started: they
    differ once the child was forked and forks are followed. `outputs` are by stage, of a completed run's last
    stages; `leftOut` names those that are too large together.
    """

    runId: str
    startedRunId: str
    key: str
    name: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    isTerminal: bool
    failure: NotRequired[ChildFailure]
    outputs: NotRequired[Any]
    leftOut: list[str]


class ChildrenLookedAt(TypedDict):
    executionId: str
    runs: list[str]


class ChildrenSeen(TypedDict):
    runs: list[ChildView]


class Command(TypedDict):
    # `pause`, `cancel`, `drain`
    command: str
    stageId: NotRequired[str]
    executionId: NotRequired[str]


class Commands(TypedDict):
    commands: list[Command]


class ContextItem(TypedDict):
    """A business identifier that travels with the run. A sensitive value is never shown again."""

    key: str
    value: str
    isSensitive: NotRequired[bool]


class Creation(TypedDict):
    created: bool
    wasExisting: bool
    pipeline: PipelineView


class EarlierEffect(TypedDict):
    attempt: int
    # `declared`, `committed`, `absent`, `unknown`, `reconciled_committed`, `reconciled_absent`, `contradicted`
    state: str
    externalRef: str


class EffectAnswer(TypedDict):
    """`earlier`: how an earlier attempt of the epoch left the effect that is intended now."""

    effectId: str
    # `declared`, `committed`, `absent`, `unknown`, `reconciled_committed`, `reconciled_absent`, `contradicted`
    state: str
    earlier: NotRequired[EarlierEffect]


class EffectAnswers(TypedDict):
    effects: list[EffectAnswer]


EffectTold = TypedDict(
    "EffectTold",
    {
        # one of: internal_state, model_provider, retrieval, external_http, tool_side_effect, memory_write,
        # evidence_write, artifact_write, human_approval, runtime_limit, policy_obligation
        "class": "str",
        # the stage's name when left out
        "stepId": NotRequired["str"],
        # needed to commit what is outside `internal_state`
        "idempotencyKey": NotRequired["str"],
        "state": Literal["declared", "committed", "absent", "unknown"],
        "externalRef": NotRequired["str"],
        "requestHash": NotRequired["str"],
        "detail": NotRequired["Any"],
    },
)
"""What was, or is about to be, done outside the run. Same class, step and key: the same effect of the attempt."""


class EffectsTold(TypedDict):
    """All or none of them is noted."""

    executionId: str
    effects: list[EffectTold]


class Failure(TypedDict):
    code: str
    message: str
    stageId: str | None


class GateAnswer(TypedDict):
    """The owning application's decision on a waiting stage. Nothing but a true boolean approves."""

    approved: bool
    rejectionReason: NotRequired[str]


class GateOutcome(TypedDict):
    stageId: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    status: str
    approved: bool
    rejectionReason: str | None


class IdempotentRunIntent(TypedDict):
    """As `RunIntent`, under the caller's own key for the business operation."""

    name: NotRequired[str]
    stages: NotRequired[list[StageIntent]]
    pipeline: NotRequired[str]
    input: NotRequired[dict[str, Any]]
    environment: NotRequired[str]
    contextItems: NotRequired[list[ContextItem]]
    keywords: NotRequired[list[Keyword]]
    traceId: NotRequired[str]
    traceparent: NotRequired[str]
    tracestate: NotRequired[str]
    deadlineSeconds: NotRequired[int]
    limits: NotRequired[CamelBounds]
    baseline: NotRequired[list[BaselineOf]]
    idempotencyKey: str


class ImportAnswer(TypedDict):
    """What was made elsewhere, for the request whose digest it carries."""

    requestDigest: str
    status: NotRequired[Literal["succeeded", "failed"]]
    output: NotRequired[Any]
    errorCode: NotRequired[str]
    errorMessage: NotRequired[str]
    source: NotRequired[str]


class ImportRequestView(TypedDict):
    """The request that is awaited, as it is handed to whoever makes the answer. `answer_by`: null where time is not
    bounded.
    """

    format: str
    version: int
    run: str
    run_name: str
    stage: str
    stage_id: str
    attempt: int
    epoch: int
    request_digest: str
    handler: str
    description: str
    input: str | None
    dependencies: dict[str, Any]
    baseline: list[Any]
    recipients: list[Recipient] | None
    max_output_bytes: int
    deadline_at: str | None
    answer_by: str | None


class JobCheckpoint(TypedDict):
    """What an earlier attempt of the stage left in this epoch, or what a fork was handed."""

    checkpointId: str
    sequence: int
    state: Any


class JobRecipient(TypedDict):
    """To whom the attempt goes: which of those that its stage names, counted from 0."""

    organisation: str
    service: str
    billing: NotRequired[str]
    retention: NotRequired[str]
    position: int


class JobView(TypedDict):
    deliveryId: str
    stageId: str
    stageName: str
    stageHandlerName: str
    pipelineId: str
    pipelineName: str
    executionId: str
    attempt: int
    epoch: int
    requestDigest: str
    input: str | None
    dependencies: dict[str, Any]
    contextItems: list[ContextItem]
    timeoutSeconds: float | None
    # `none`, `idempotent`, `external`
    effectMode: str
    # `none`, `intent`
    effectProtocol: str
    idempotencyKey: str
    deadlineAt: str | None
    traceparent: str | None
    lease: NotRequired[LeaseView]
    recipient: NotRequired[JobRecipient]
    baseline: NotRequired[list[PinnedBaseline]]
    checkpoint: NotRequired[JobCheckpoint]
    recovery: NotRequired[Any]


class Jobs(TypedDict):
    jobs: list[JobView]


class Keyword(TypedDict):
    key: str
    value: str


class LeaseOf(TypedDict):
    executionId: str
    stageId: str


class LeaseView(TypedDict):
    commands: list[Command]
    acquired: bool
    attempt: int | None
    leaseExpiresAt: str | None
    reason: str | None


class Leaving(TypedDict):
    """A checkpoint that a handler asks for while it runs."""

    executionId: str
    # at most 256 KiB as canonical JSON
    state: Any
    recoveryPosture: NotRequired[CamelPosture]


class LeftBehind(TypedDict):
    """What a handler leaves for its stage's next attempt in the same epoch. Its state is any JSON but null."""

    # at most 256 KiB as canonical JSON
    state: Any
    recoveryPosture: NotRequired[CamelPosture]


class LeftCheckpoint(TypedDict):
    checkpointId: str
    sequence: int


class LeftRunning(TypedDict):
    """A process that could not be ended; without `pid`: what nobody could look for."""

    pid: NotRequired[int]
    command: NotRequired[str]
    why: str


class LogEntry(TypedDict):
    at: NotRequired[str]
    level: str
    message: str
    fields: NotRequired[dict[str, Any]]


class LogLines(TypedDict):
    executionId: str
    lines: list[LogEntry]


class Lookup(TypedDict):
    idempotencyKey: str


class Noted(TypedDict):
    accepted: bool


class OfAttempt(TypedDict):
    executionId: str


class PinnedBaseline(TypedDict):
    """An artifact that a run builds on, by the name under which its stages know it."""

    name: str
    artifactId: str
    sha256: str


class PipelineView(TypedDict):
    id: str
    name: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    isTerminal: bool
    applicationId: str
    environment: str
    releaseId: str
    idempotencyKey: str | None
    traceId: str | None
    createdAt: str
    startedAt: str | None
    finishedAt: str | None
    deadlineAt: str | None
    failure: NotRequired[Failure]
    contextItems: list[ContextItem]
    keywords: list[Keyword]
    stages: list[StageView]


class Progress(TypedDict):
    executionId: str
    percent: NotRequired[float]
    message: NotRequired[str]


class Pull(TypedDict):
    handlers: NotRequired[list[str]]
    maxJobs: NotRequired[int]
    waitSeconds: NotRequired[float]
    acquire: NotRequired[bool]


class Reason(TypedDict):
    reason: NotRequired[str]


class Recipient(TypedDict):
    """To whom a stage's adapter may send: whose it is, what runs there, who pays by which route, what is kept."""

    organisation: str
    service: str
    billing: NotRequired[str]
    retention: NotRequired[str]


class Registration(TypedDict):
    workerName: str
    supportedHandlers: list[str]
    instanceId: NotRequired[str]
    workerVersion: NotRequired[str]
    sdkVersion: NotRequired[str]
    hostName: NotRequired[str]
    pid: NotRequired[int]
    metadata: NotRequired[dict[str, Any]]
    # to whom the adapters of handlers send
    recipients: NotRequired[list[Sending]]


class Release(TypedDict):
    executionId: str
    checkpoint: NotRequired[LeftBehind]


class Renewal(TypedDict):
    leases: list[LeaseOf]


class RenewedLease(TypedDict):
    commands: list[Command]
    acquired: bool
    attempt: int | None
    leaseExpiresAt: str | None
    reason: str | None
    stageId: str
    executionId: str


class RenewedLeases(TypedDict):
    leases: list[RenewedLease]


class ResultReceipt(TypedDict):
    stageId: str | None
    executionId: str | None
    accepted: bool
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stageStatus: NotRequired[str]
    code: NotRequired[str]
    detail: NotRequired[str]
    errors: NotRequired[dict[str, list[str]]]


class ResultReceipts(TypedDict):
    results: list[ResultReceipt]


class Results(TypedDict):
    """Items are checked one by one, so that one bad item spoils no other."""

    results: list[Any]


class RowsDeleted(TypedDict):
    """`more`: as many were deleted as a request deletes; ask again."""

    deleted: int
    more: bool


class RowsGiven(TypedDict):
    """Rows for a table; `key` declares the key columns of one that is not there, and must fit one that is."""

    executionId: str
    table: str
    rows: list[dict[str, Any]]
    key: NotRequired[list[str]]


class RowsRead(TypedDict):
    """`next` is the `after` of the following page; null where this is the last."""

    rows: list[dict[str, Any]]
    next: int | None


class RowsUnwanted(TypedDict):
    """Rows whose columns hold what `where` says; without one all of them, which `everything` has to say."""

    executionId: str
    table: str
    where: NotRequired[dict[str, Any]]
    everything: NotRequired[bool]


class RowsWanted(TypedDict):
    """Rows whose columns hold what `where` says, from behind `after` on."""

    executionId: str
    table: str
    where: NotRequired[dict[str, Any]]
    after: NotRequired[int]
    limit: NotRequired[int]


class RowsWritten(TypedDict):
    """What became of the rows, and what the table holds since."""

    inserted: int
    replaced: int
    unchanged: int
    rows: int
    bytes: int


class RunIntent(TypedDict):
    """What is to be run: inline `stages`, or a managed `pipeline` with `input`."""

    name: NotRequired[str]
    stages: NotRequired[list[StageIntent]]
    pipeline: NotRequired[str]
    input: NotRequired[dict[str, Any]]
    environment: NotRequired[str]
    contextItems: NotRequired[list[ContextItem]]
    keywords: NotRequired[list[Keyword]]
    traceId: NotRequired[str]
    traceparent: NotRequired[str]
    tracestate: NotRequired[str]
    deadlineSeconds: NotRequired[int]
    limits: NotRequired[CamelBounds]
    baseline: NotRequired[list[BaselineOf]]


class Sending(TypedDict):
    """To whom the adapter of a handler sends."""

    organisation: str
    service: str
    billing: NotRequired[str]
    retention: NotRequired[str]
    handler: str


class Session(TypedDict):
    workerId: str
    sessionToken: str
    application: ApplicationName
    leaseSeconds: int
    renewSeconds: int
    visibilitySeconds: int


class SignalSent(TypedDict):
    signal: str
    # since the command began
    afterSeconds: float
    # to how many it went
    processes: int


class StageIntent(TypedDict):
    """One stage of an inline list. `input` is kept byte for byte."""

    stageName: str
    stageHandlerName: str
    input: NotRequired[str]
    description: NotRequired[str]
    dependsOn: NotRequired[list[str]]
    runNextIfFailed: NotRequired[bool]
    mode: NotRequired[Literal["execute", "import"]]
    effectMode: NotRequired[Literal["none", "idempotent", "external"]]
    effectProtocol: NotRequired[Literal["none", "intent"]]
    approval: NotRequired[Approval]
    recipients: NotRequired[list[Recipient]]
    options: NotRequired[CamelOptions]


class StageResult(TypedDict):
    """What a worker reports of one attempt. An output that is too large is taken, and fails the stage. With
    `awaitsRuns` one that is `waiting` waits for runs that the stage started, and for no decision.
    """

    executionId: str
    attempt: int
    requestDigest: NotRequired[str]
    status: Literal["succeeded", "failed", "waiting"]
    output: NotRequired[Any]
    errorCode: NotRequired[str]
    errorMessage: NotRequired[str]
    traceback: NotRequired[str]
    retryable: NotRequired[bool]
    contextItems: NotRequired[list[ContextItem]]
    logs: NotRequired[list[LogEntry]]
    usage: NotRequired[dict[str, Any]]
    effects: NotRequired[list[EffectTold]]
    checkpoint: NotRequired[LeftBehind]
    awaitsRuns: NotRequired[list[str]]


class StageStatus(TypedDict):
    stageId: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    status: str


class StageView(TypedDict):
    id: str
    pipelineId: str
    stageName: str
    stageHandlerName: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    status: str
    epoch: int
    attempt: int
    retryAttempt: int
    recoveryCount: int
    nextRetryAt: str | None
    startedAt: str | None
    finishedAt: str | None
    input: str | None
    output: Any
    lastErrorCode: str | None
    lastErrorMessage: str | None
    failureDisposition: str | None
    dependsOn: list[str]
    options: CamelOptions
    # `none`, `idempotent`, `external`
    effectMode: str
    requestDigest: str | None
    isTerminal: bool


class StartedChild(TypedDict):
    """`created` is false where the key stood for a run already."""

    created: bool
    run: ChildView


class StillOutside(TypedDict):
    """Something that may still go on outside, and what a person said of it since."""

    itemId: str
    stageId: str
    attempt: int
    # `running_attempt`, `uncertain_effect`, `open_effect`, `open_gate`, `awaited_import`, `process_left`, `child_run`
    kind: str
    detail: str
    settledAt: str | None
    settledBy: str | None
    note: str | None


class StoredArtifact(TypedDict):
    """`created` is false where this attempt had stored the same bytes under that name before."""

    artifactId: str
    name: str
    sha256: str
    size: int
    created: bool


class TableDeclared(TypedDict):
    executionId: str
    table: str
    key: list[str]


class TableKept(TypedDict):
    """`created` is false where the table was there before."""

    key: list[str]
    created: bool


class Terminated(TypedDict):
    executionId: str
    termination: Termination


class Termination(TypedDict):
    """How the processes of an attempt ended. `complete`: everything is known to have ended."""

    # why they were ended, such as cancelled, lost, wall_clock
    reason: str
    signals: NotRequired[list[SignalSent]]
    exitCode: NotRequired[int]
    # that ended the command's own process
    signal: NotRequired[str]
    durationSeconds: float
    graceSeconds: NotRequired[float]
    cpuSeconds: NotRequired[float]
    maxRssBytes: NotRequired[int]
    processesSeen: NotRequired[int]
    left: NotRequired[list[LeftRunning]]
    # where not all are named
    leftCount: NotRequired[int]
    complete: bool
    platform: str
