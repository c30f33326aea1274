"""The operations API (`/v1`): what its requests and answers hold.

Written from the OpenAPI document by `python -m config.client_models`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from recourse.models.pages import Page


class AccountView(TypedDict):
    """A run in sentences. `remains`: what may still go on outside after it was ended; `shortened`: only the newest
    part of its story is told; `asked_by`: who reads.
    """

    execution_id: str
    name: str
    environment: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    is_paused: bool
    asked_by: str
    standing: str
    story: list[str]
    stages: list[StageAccountView]
    remains: list[str]
    budget: list[str]
    next: list[str]
    shortened: bool


class AddedEvidence(TypedDict):
    evidence: Any
    digest: str
    added_by: str
    at: str


class AgreementView(TypedDict):
    """Who must agree: so many people of this role or a higher one (`roles`), never the one who asks."""

    role: str
    roles: list[str]
    count: int
    # seconds; null: it may wait for ever
    expires_in: int | None
    why: str


class Amount(TypedDict):
    """Attempts, and bytes of output."""

    attempts: int
    output_bytes: int


class ApplicationRequest(TypedDict):
    name: str


class ApplicationView(TypedDict):
    id: str
    name: str


class ApprovalItem(TypedDict):
    """A gate, or a request for agreement to an operation. `plan` is what would be done, as it was judged and shown."""

    # of a request its operation's
    id: str
    # `gate`, `operation`
    type: str
    # the operation's; of a gate `gate`
    kind: str
    operation_id: str | None
    execution_id: str | None
    execution_name: str
    environment: str
    pipeline: str | None
    stage_id: str | None
    stage: str | None
    # the operation's; of a gate its state
    status: str
    # of the gate or the request itself: `open`, `approved`, `rejected`, `expired`, `cancelled`, `withdrawn`,
    # `superseded`
    state: str
    # what a request waits for: `approval`, `review`
    cause: str | None
    # of a gate: before the stage's work or after it: `before`, `after`
    moment: str | None
    # of a gate
    epoch: int | None
    # of a gate after the work: whose result is offered
    attempt_id: str | None
    # whether the owning application may not decide it
    require_person: bool
    # how often a request was asked anew, with another plan
    round: int
    disposition: str | None
    reasons: list[dict[str, Any]]
    plan: Any
    plan_digest: str | None
    # null when nobody knows any more
    requested_by: str | None
    reason: str | None
    # what asks for agreement
    why: list[str]
    # when it was asked for; who got their role later may not decide
    created_at: str
    # when this round was
    opened_at: str
    expires_at: str | None
    closed_at: str | None
    # it, or a higher one: `approver`, `release_manager`, `admin`
    approver_role: str
    need: int
    # how many of those agreed; of what waits: whose word counts
    have: int
    decisions: list[DecisionView]
    # whether you may, now
    may_decide: bool
    why_not: WhyNotView | None
    # whether you may: you asked for it, and it waits
    may_withdraw: bool


class ApprovalView(TypedDict):
    when: str
    approver_role: NotRequired[str]
    count: NotRequired[int]
    expires_in: NotRequired[int]
    require_person: NotRequired[bool]


class ArtifactView(TypedDict):
    """An artifact. Of a baseline all that tells of a run is null; its application and environment may be."""

    id: str
    name: str
    media_type: str | None
    sha256: str
    size: int
    is_baseline: bool
    execution_id: str | None
    stage_id: str | None
    stage: str | None
    attempt_id: str | None
    attempt: int | None
    application: str | None
    environment: str | None
    added_by: str | None
    created_at: str


class AskedAnswer(TypedDict):
    """A request that others must agree to before anything is done; its id in `/v1/approvals` is the operation's."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None


class AttemptView(TypedDict):
    id: str
    attempt_id: str
    stage_id: str
    stage: str
    number: int
    epoch: int
    # `dispatched`, `running`, `succeeded`, `failed`, `timed_out`, `waiting`, `released`, `undelivered`, `lost`,
    # `fenced`
    status: str
    worker: str
    session_id: str | None
    request_digest: str
    recipient: JobRecipient | None
    dispatched_at: str
    started_at: str | None
    finished_at: str | None
    lease_expires_at: str | None
    error_code: str | None
    error_message: str | None
    traceback: str | None
    cause: str | None
    decision: Any
    usage: Any
    # false wherever its worker did not say that nothing is missing
    usage_complete: bool | None
    # how its processes ended, and `summary` as a sentence
    termination: Any
    late_evidence: int


class AuditEventView(TypedDict):
    id: str
    at: str
    # the event in words: who, what, where, and why; to read, not to parse
    sentence: str
    action: str
    outcome: str
    code: str | None
    actor: str
    channel: str
    on_behalf_of: str | None
    execution_id: str | None
    stage_id: str | None
    reason: str | None
    # the states that the action found; null where it looked at none
    before: Any
    # the states that it left behind; null for a refusal
    after: Any
    plan_digest: str | None
    request_id: str | None
    data: Any


class AuditHeadView(TypedDict):
    id: str
    # `recourse.audit_head`
    kind: str
    workspace_id: str
    position: int
    hash: str
    sealed_at: str
    algorithm: str
    key_id: str
    signature: str


class BackfillAnswer(TypedDict):
    """The window and its ticks; of a dry run also what would be done, who must agree, and what to know first."""

    trigger_binding_id: str
    window: WindowView
    # that are filled
    total_ticks: int
    dispatched: int
    failed: int
    dry_run: bool
    ticks: list[BackfillTickView]
    backfill_id: str | None
    # `previewed`, `awaiting_approval`, `running`, `paused`, `completed`, `completed_with_failures`, `cancelled`
    status: str
    # ticks that have a run already
    skipped: int
    plan_digest: str
    operation_id: NotRequired[str]
    replayed: NotRequired[bool]
    approvals: NotRequired[list[AgreementView]]
    estimate_seconds: NotRequired[float | None]
    # whether its environment is: an operator's waits for approval
    protected: NotRequired[bool]
    # handlers that no live worker has
    without_worker: NotRequired[list[str]]
    blackout: NotRequired[BlackoutHolds | None]
    missed_because: NotRequired[dict[str, Any]]
    # of the skipped: ticks that `reprocess` names and whose runs did something outside that is not cleared: each is
    # replayed by itself
    withheld: NotRequired[int]
    # the first 20 of them
    withheld_ticks: NotRequired[list[dict[str, Any]]]
    # ticks that will fail: the schema of the pipeline does not take their input
    unfit: NotRequired[int]
    # ticks whose input was looked at
    unfit_of: NotRequired[int]
    # the first 20 that will fail
    unfit_ticks: NotRequired[list[dict[str, Any]]]


class BackfillDetail(TypedDict):
    """A backfill and how far it is, counted from its ticks and their runs at the moment of the answer."""

    id: str
    backfill_id: str
    trigger_binding_id: str
    trigger: str
    pipeline: str
    environment: str
    window: WindowView
    cron: str
    timezone: str
    # `first_existing`, `shift`, `skip`
    gap: str
    # `first`, `second`, `both`
    overlap: str
    max_concurrent: int
    # `none`, `failed`, `all`
    reprocess: str
    # `oldest`, `newest`
    order: str
    # `previewed`, `awaiting_approval`, `running`, `paused`, `completed`, `completed_with_failures`, `cancelled`
    status: str
    requested_by: str
    reason: str | None
    cancel_reason: str | None
    plan_digest: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    total_ticks: int
    dispatched: int
    failed: int
    skipped: int
    progress: BackfillProgress


class BackfillProgress(TypedDict):
    """How many ticks and runs there are of each state; `eta_seconds` is null where nothing can be said yet."""

    ticks: dict[str, int]
    runs: dict[str, int]
    active: int
    held: int
    eta_seconds: float | None


class BackfillRequest(TypedDict):
    """Both ends of the window belong to it. What is left out is the trigger's own: cron, zone, rules, environment."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # the trigger's id
    trigger_binding_id: str
    # the trigger's pipeline, if told at all
    flow_slug: NotRequired[str]
    # the trigger's application, if told at all
    workload_id: NotRequired[str]
    cron: NotRequired[str]
    timezone: NotRequired[str]
    gap: NotRequired[Literal["first_existing", "shift", "skip"]]
    overlap: NotRequired[Literal["first", "second", "both"]]
    from_time: str
    to_time: str
    # runs that are in at once
    max_concurrent: NotRequired[int]
    # the trigger's, if told at all
    environment: NotRequired[str]
    # ticks with an ended run to do once more
    reprocess: NotRequired[Literal["none", "failed", "all"]]
    # which are let in first
    order: NotRequired[Literal["oldest", "newest"]]
    # above 1,000 ticks it must allow them; 100,000 are the most
    max_ticks: NotRequired[int]
    # why it may start in a blackout
    override_reason: NotRequired[str]


class BackfillTickView(TypedDict):
    """One tick. `execution_id`: its run, made by this backfill, or had before when it is `skipped`; with the reason
    `acted-outside`, and an error that says why, it was to be done once more and must not be.
    """

    id: NotRequired[str]
    tick_time: str
    # `pending`, `dispatched`, `failed`, `skipped`, `cancelled`
    status: str
    execution_id: NotRequired[str]
    error: NotRequired[TickError]
    reason: NotRequired[str]
    # in the schedule's zone, with its offset
    local_time: str
    # what made this instant: `fixed_time`, `real_time`, `overlap_first`, `overlap_second`, `gap_shift`,
    # `gap_first_existing`
    rule: str


class BackfillVerb(TypedDict):
    """Pausing and cancelling have no plan: they touch nothing but the backfill itself."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]


class BackfillView(TypedDict):
    """A backfill and how far it is, counted from its ticks and their runs at the moment of the answer."""

    id: str
    backfill_id: str
    trigger_binding_id: str
    trigger: str
    pipeline: str
    environment: str
    window: WindowView
    cron: str
    timezone: str
    # `first_existing`, `shift`, `skip`
    gap: str
    # `first`, `second`, `both`
    overlap: str
    max_concurrent: int
    # `none`, `failed`, `all`
    reprocess: str
    # `oldest`, `newest`
    order: str
    # `previewed`, `awaiting_approval`, `running`, `paused`, `completed`, `completed_with_failures`, `cancelled`
    status: str
    requested_by: str
    reason: str | None
    cancel_reason: str | None
    plan_digest: str
    created_at: str
    started_at: str | None
    finished_at: str | None


class BaselineForm(TypedDict):
    """The same as a form (multipart/form-data): the file is called `content`; its own name is the default of `name`."""

    name: NotRequired[str]
    content: str
    sha256: NotRequired[str]
    media_type: NotRequired[str]
    application: NotRequired[str]
    environment: NotRequired[str]
    reason: NotRequired[str]


class BaselineRequest(TypedDict):
    """Bytes that runs build on. Without an application or an environment they are for all of the workspace."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    name: str
    content_base64: str
    # where it is given, it must be that of the bytes
    sha256: NotRequired[str]
    media_type: NotRequired[str]
    # its name: only its keys see it
    application: NotRequired[str]
    # its slug: only keys of it see it
    environment: NotRequired[str]


class BlackoutHolds(TypedDict):
    """What lets nothing start now. `until` is when nothing holds any more; null: no end is in sight."""

    id: str
    name: str
    reason: str
    is_freeze: bool
    by: str | None
    since: str | None
    until: str | None
    # its time zone, where the database does not know it: it holds always
    unknown_zone: str | None


class BlackoutItem(TypedDict):
    """A blackout. `holds`: it is on, and covers this moment."""

    id: str
    name: str
    # `weekly`, `dates`, `period`
    kind: str
    is_freeze: bool
    environment: str | None
    trigger_id: str | None
    timezone: str
    days: list[int]
    from_time: str | None
    to_time: str | None
    dates: list[str]
    starts_at: str | None
    ends_at: str | None
    reason: str
    enabled: bool
    holds: bool
    created_by: str | None
    created_at: str


class BlackoutRequest(TypedDict):
    """A time in which nothing starts: in the whole workspace, in one environment, or for one trigger. `weekly` has
    `days`, `from_time` and `to_time`; `dates` has `dates`; `period` has `starts_at`, `ends_at` or both.
    """

    name: str
    # of days, times and dates; UTC at first
    timezone: NotRequired[str]
    # of the week, on which it begins: 1 is Monday, 7 is Sunday
    days: NotRequired[list[int]]
    from_time: NotRequired[str]
    # not after from_time: until this time of the next day
    to_time: NotRequired[str]
    dates: NotRequired[list[str]]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    reason: NotRequired[str]
    enabled: NotRequired[bool]
    kind: Literal["weekly", "dates", "period"]
    # its slug; none: all of the workspace
    environment: NotRequired[str]
    # only this trigger's ticks
    trigger_id: NotRequired[str]


class BlockerView(TypedDict):
    """`next_look` is when the engine looks again by itself; without it a person or a worker must act."""

    stage_id: str | None
    stage: str | None
    holder: str
    cause: str
    next_look: str | None


class BudgetView(TypedDict):
    """`reserved` is what stages may begin without asking again; what is left never rises."""

    limits: Pinned
    charged: Amount
    reserved: Amount
    left: Amount
    revisions: RevisionsView
    stages: list[ShareView]
    entries: Page[ChargeView]


class BulkDetail(TypedDict):
    """The bulk with how far it is, counted at the moment of the answer."""

    id: str
    bulk_id: str
    # `pause`, `resume`, `cancel`, `retry`, `skip`, `rerun`, `replay`, `reconcile`, `acknowledge`, `redrive`, `discard`
    kind: str
    # `draft`, `awaiting_approval`, `running`, `waiting`, `paused`, `halted`, `completed`, `completed_with_failures`,
    # `aborted`, `expired`
    status: str
    requested_by: str
    channel: str
    reason: str | None
    override_reason: str | None
    chosen: dict[str, Any]
    choices: dict[str, Any]
    rate: int
    canary: int
    stop_ratio: float | None
    total: int
    plan_digest: str | None
    held_reason: str | None
    ended_by: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    verified_at: str | None
    progress: BulkProgressView
    # what was judged as it was started
    plan: dict[str, Any] | None
    replayed: NotRequired[bool]


class BulkItemView(TypedDict):
    """One target, and what became of it. `stands`: its state now; `found`: how it stood when it should not have."""

    # its position, which names it within its bulk
    id: str
    position: int
    # `pending`, `done`, `failed`, `skipped`, `denied`
    status: str
    code: str | None
    message: str | None
    execution_id: str
    execution_name: str | None
    stage_id: str | None
    stage: str | None
    dead_letter_id: str | None
    stands: str | None
    operation_id: str | None
    target_execution_id: str | None
    decided_at: str | None
    verified: bool | None
    found: str | None


class BulkProgressView(TypedDict):
    """`total` = pending + done + failed + skipped + denied. `failed_again`: done, and failed since; among the
    newest. `mismatched`: stood otherwise than they were left when they were looked at after the end.
    """

    total: int
    pending: int
    done: int
    failed: int
    skipped: int
    denied: int
    failed_again: int
    per_second: float
    eta_seconds: float | None
    mismatched: int


class BulkRequest(TypedDict):
    """Names its targets by ids or by a filter of the list that shows them; `filter` holds that list's parameters.
    retry and skip act on the failed stages of runs. A rerun's `from_step_id` is `failed_stage` (the first), the name
    of a stage, or `checkpoint` (left out: the last that is believed); runs without it are skipped as
    `not_applicable`.
    """

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # starts it although a blackout holds
    override_reason: NotRequired[str]
    kind: Literal["retry", "skip", "cancel", "pause", "resume", "redrive", "discard", "rerun", "replay"]
    execution_ids: NotRequired[list[str]]
    stage_ids: NotRequired[list[str]]
    dead_letter_ids: NotRequired[list[str]]
    filter: NotRequired[dict[str, Any]]
    scope: NotRequired[Literal["stage", "stage_and_downstream"]]
    from_step_id: NotRequired[str]
    environment: NotRequired[str]
    freeze_release: NotRequired[bool]
    until: NotRequired[str]
    # targets a second, at most
    rate: NotRequired[int]
    # it waits for a person after the first so many
    canary: NotRequired[int]
    # it halts when more of the last 1,000 came to nothing
    stop_ratio: NotRequired[float]


class BulkView(TypedDict):
    """A bulk and how it was asked for. `chosen`: how its targets were; `held_reason`: why it does not go on."""

    id: str
    bulk_id: str
    # `pause`, `resume`, `cancel`, `retry`, `skip`, `rerun`, `replay`, `reconcile`, `acknowledge`, `redrive`, `discard`
    kind: str
    # `draft`, `awaiting_approval`, `running`, `waiting`, `paused`, `halted`, `completed`, `completed_with_failures`,
    # `aborted`, `expired`
    status: str
    requested_by: str
    channel: str
    reason: str | None
    override_reason: str | None
    chosen: dict[str, Any]
    choices: dict[str, Any]
    rate: int
    canary: int
    stop_ratio: float | None
    total: int
    plan_digest: str | None
    held_reason: str | None
    ended_by: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    verified_at: str | None


class CancelAnswer(TypedDict):
    """`status` is the run's: cancelled. `reconciliation` lists what may still go on outside."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `cancelled`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: str
    reconciliation: list[StillOutside]


class CancelAnswerOrAskedAnswer(TypedDict):
    """`status` is the run's: cancelled. `reconciliation` lists what may still go on outside."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: NotRequired[str]
    reconciliation: NotRequired[list[StillOutside]]


class ChangedKey(TypedDict):
    """The key that was made or revoked, and the one that signs now."""

    id: str
    # `ed25519`
    algorithm: str
    public_key: str
    # `active`, `retiring`, `revoked`
    status: str
    created_at: str
    retiring_since: str | None
    revoked_at: str | None
    active: str
    replayed: bool


class ChangedView(TypedDict):
    """Something that a run pinned and that is another one by now."""

    # definition or baseline
    what: str
    name: str
    pinned: str
    found: str


class ChargeView(TypedDict):
    """An attempt that began, or an artifact; `total` is what was charged up to it, in bytes."""

    id: str
    # `attempt`, `artifact`
    kind: str
    at: str
    stage_id: str | None
    stage: str | None
    attempt: int | None
    bytes: int
    total: int


class CheckpointRequest(TypedDict):
    """What a service leaves for a running attempt. `step_id` is the attempt's own stage."""

    attempt_id: str
    step_id: str
    previous_step_id: NotRequired[str]
    # any JSON but null, at most 256 KiB
    state: Any
    recovery_posture: Posture


class CheckpointView(TypedDict):
    """A checkpoint without what it says. `integrity` is judged now; `superseded`: a newer one was written."""

    id: str
    checkpoint_id: str
    execution_id: str
    sequence: int
    # `run_start`, `stage_end`, `skip`, `gate`, `pause`, `retry`, `handler`, `restored`
    moment: str
    stage_id: str | None
    step_id: str | None
    epoch: int
    attempt_id: str | None
    current_step_id: str
    previous_step_id: str | None
    recorded_at: str
    payload_digest: str
    algorithm: str | None
    key_id: str | None
    # `valid`, `invalid`, `revoked_key`
    integrity: str
    superseded: bool


class ChildView(TypedDict):
    """A run that a stage started. `execution_id` is the run that counts, `started_execution_id` the one that was
    started; `current` is false where a later epoch began anew under the same key. `taken_over`: the run that this
    one was forked from had started it.
    """

    id: str
    stage_id: str
    stage: str
    key: str
    execution_id: str
    started_execution_id: str
    name: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    epoch: int
    # `cancel`, `leave`
    on_parent_end: str
    # `fork`, `original`
    follow: str
    taken_over: bool
    current: bool
    awaited: bool
    created_at: str
    finished_at: str | None


class ContextItemView(TypedDict):
    key: str
    value: str
    is_sensitive: bool


class DeadLetterView(TypedDict):
    id: str
    execution_id: str
    stage_id: str
    stage: str
    handler: str
    execution_name: str
    epoch: int
    # `retries_exhausted`, `recoveries_exhausted`, `terminal_error`, `undeliverable`
    reason: str
    error_code: str | None
    error_message: str | None
    # `open`, `acknowledged`, `redriven`, `discarded`, `resolved`
    status: str
    opened_at: str
    closed_at: str | None


class DecisionAnswer(TypedDict):
    """Where it stands after the decision: `open` while more people must agree."""

    id: str
    # `gate`, `operation`
    type: str
    operation_id: str | None
    # the run that was asked about
    execution_id: str | None
    stage_id: str | None
    status: str
    # `open`, `approved`, `rejected`, `expired`, `cancelled`, `withdrawn`, `superseded`
    state: str
    disposition: str | None
    round: int
    have: int
    need: int
    expires_at: str | None
    plan_digest: str | None
    replayed: bool
    approved: bool
    # the new run of a fork
    target_execution_id: str | None
    # of a gate: `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`,
    # `completed`, `failed`, `skipped`, `cancelled`
    stage_status: str | None


class DecisionRequest(TypedDict):
    """A reason is required to reject. A dry run answers what it would do now."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    approved: bool


class DecisionView(TypedDict):
    """What somebody decided. `counts` is false once they left, or got another role."""

    decided_by: str
    # theirs at that time; none of an application
    role: str | None
    approved: bool
    reason: str | None
    at: str
    counts: bool


class DifferenceView(TypedDict):
    """What the release that will run has otherwise: `what` is added, removed, or the name of a field."""

    stage: str
    what: str
    before: Any
    after: Any


class EdgeView(TypedDict):
    """From one node's id to another's; `kind` is asked_on, recorded, starts_from, judged, decided_by, made, was_due
    or filled_by.
    """

    from_id: str
    to_id: str
    kind: str


EffectView = TypedDict(
    "EffectView",
    {
        "id": "str",
        "effect_id": "str",
        "stage_id": "str",
        "stage": "str",
        "attempt_id": "str",
        "attempt": "int",
        "epoch": "int",
        # `internal_state`, `model_provider`, `retrieval`, `external_http`, `tool_side_effect`, `memory_write`,
        # `evidence_write`, `artifact_write`, `human_approval`, `runtime_limit`, `policy_obligation`
        "class": "str",
        "step_id": "str",
        "idempotency_key": "str | None",
        # `declared`, `committed`, `absent`, `unknown`, `reconciled_committed`, `reconciled_absent`, `contradicted`
        "state": "str",
        "external_ref": "str | None",
        "request_hash": "str | None",
        "detail": "Any",
        "declared_at": "str",
        "settled_at": "str | None",
    },
)
"""`settled_at`: when its outcome was told or found out; null for one that its attempt left open."""


class EffectivePolicies(TypedDict):
    stage_id: str
    policies: list[EffectivePolicy]


class EffectivePolicy(TypedDict):
    # `retry`, `timeout`, `rate`, `concurrency`, `run_retry`
    kind: str
    winner: PolicyItem | None
    shadowed: list[PolicyItem]
    reason: str


class EnvironmentRequest(TypedDict):
    """A rung of the ladder. What is left out stays as it is; a new one comes on top, unprotected."""

    slug: str
    rank: NotRequired[int]
    protected: NotRequired[bool]


class EnvironmentView(TypedDict):
    id: str
    slug: str
    rank: int
    protected: bool


class EventView(TypedDict):
    id: int
    at: str
    kind: str
    stage_id: str | None
    attempt_id: str | None
    from_status: str | None
    to_status: str | None
    actor: str | None
    reason: str | None
    data: Any


class EvidenceAnswer(TypedDict):
    id: str
    effect_id: str
    summary: Any
    source: str
    sealed: bool
    clean: bool
    digest: str
    # what the summary claims: `committed`, `absent`, `contradicted`
    outcome: str | None
    # whether the console's signature on it holds now: `valid`, `invalid`
    integrity: str
    key_id: str | None
    added_by: str
    at: str
    replayed: bool
    late_results: list[LateResult]


class EvidenceBody(TypedDict):
    """A summary from outside, any JSON. `digest` is the SHA-256 of its RFC 8785 form; without one it is unsealed."""

    summary: Any
    source: str
    sealed: NotRequired[bool]
    clean: NotRequired[bool]
    digest: NotRequired[str]


class EvidenceGraphView(TypedDict):
    """`complete` is false when older operations were left out."""

    nodes: list[NodeView]
    edges: list[EdgeView]
    complete: bool


class EvidenceRequest(TypedDict):
    """A summary from outside, as a request of its own."""

    summary: Any
    source: str
    sealed: NotRequired[bool]
    clean: NotRequired[bool]
    digest: NotRequired[str]
    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]


class EvidenceView(TypedDict):
    id: str
    effect_id: str
    summary: Any
    source: str
    sealed: bool
    clean: bool
    digest: str
    # what the summary claims: `committed`, `absent`, `contradicted`
    outcome: str | None
    # whether the console's signature on it holds now: `valid`, `invalid`
    integrity: str
    key_id: str | None
    added_by: str
    at: str


class ExecutionView(TypedDict):
    """`draining`: attempts that still run in a run that is pausing; it is paused when there is none."""

    execution_id: str
    name: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    is_terminal: bool
    pause_reason: str | None
    paused_until: str | None
    workspace_id: str
    application_id: str
    application: str
    environment: str
    pipeline: str | None
    release_id: str
    recovered_from: str | None
    # the run whose stage started it
    parent_id: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    updated_at: str
    deadline_at: str | None
    failure: FailureView | None
    draining: int
    inputs: Any
    context_items: list[ContextItemView]
    keywords: list[WordView]
    trace_id: str | None
    started_by: str | None
    definition_changed: list[ChangedView]
    run_retry: RunRetryView | None


class FailureView(TypedDict):
    code: str
    message: str
    stage_id: str | None


class ForkAnswer(TypedDict):
    """The new run, or where the request for it stands: `execution_id` is null while it awaits approval."""

    execution_id: str | None
    original_execution_id: str
    operation_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str
    from_step_id: str | None
    environment: str
    release_id: str
    release_changed: bool


class FreezeAnswer(TypedDict):
    """The freezes that hold now, the workspace's own first."""

    is_frozen: bool
    freezes: list[FreezeItem]


class FreezeItem(TypedDict):
    """A freeze that holds: who declared it, why, since when. `environment` is null: everywhere in the workspace."""

    id: str
    environment: str | None
    reason: str
    by: str | None
    since: str
    until: str | None


class FreezeRequest(TypedDict):
    """Nothing starts from now on, until it is lifted or until then."""

    reason: str
    # its slug; none: all of the workspace
    environment: NotRequired[str]
    until: NotRequired[str]


class GatePreview(TypedDict):
    """What a decision on a gate would do now: to the gate, and to its stage."""

    id: str
    # `gate`
    type: str
    execution_id: str
    stage_id: str
    stage: str
    approved: bool
    # `open`, `approved`, `rejected`, `expired`, `cancelled`
    state: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: str
    have: int
    need: int


class GivenView(TypedDict):
    """What who asks wrote for the stage, in full; a plan holds the digest of it alone."""

    # `input`, `output`, `override_reason`
    what: str
    text: str


class GuaranteesView(TypedDict):
    """What holds of this console and this workspace as they are set now."""

    statements: list[StatementView]


class ImportAnswered(TypedDict):
    """Where an answer led. No operation is kept of it, so `operation_id` is null: the attempt and the audit tell.
    `replayed`: it was taken before.
    """

    operation_id: str | None
    execution_id: str
    stage_id: str
    # `succeeded`
    status: str
    # `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: str


class ImportPreview(TypedDict):
    """Where an answer would lead. Nothing was changed."""

    # `import`
    kind: str
    execution_id: str
    stage_id: str
    replayed: bool
    plan_digest: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: str


class ImportRequest(TypedDict):
    """What was made elsewhere, as the fields of an answer file, and why it is brought in."""

    request_digest: str
    status: NotRequired[Literal["succeeded", "failed"]]
    output: NotRequired[Any]
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    source: NotRequired[str]
    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]


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


class ItemView(TypedDict):
    """Something that may still go on outside; `subject_id` is the attempt, effect or gate that it is about."""

    id: str
    execution_id: str
    stage_id: str
    stage: str
    attempt: int
    # `running_attempt`, `uncertain_effect`, `open_effect`, `open_gate`, `awaited_import`, `process_left`, `child_run`
    kind: str
    subject_id: str | None
    detail: str
    opened_at: str
    settled_at: str | None
    settled_by: str | None
    note: str | None


class JobRecipient(TypedDict):
    """To whom the attempt goes: which of those that its stage names, counted from 0."""

    organisation: str
    service: str
    billing: NotRequired[str]
    retention: NotRequired[str]
    position: int


class LaneStands(TypedDict):
    """The lane in which the run will be held until it is its turn, at once where there is room and none waits before
    it. `inside` runs are in, of at most `capacity`; counts end at 1,000.
    """

    capacity: int | None
    # false: it lets nothing in now, as its backfill is paused or being cancelled
    is_open: bool
    # a backfill's; else its trigger's own
    is_background: bool
    inside: int
    waiting: int
    text: str


class LateResult(TypedDict):
    """A result that came too late to move anything; it may tell what really happened."""

    id: int
    attempt_id: str
    attempt: int
    reason: str
    at: str
    result: Any


class LetterVerbAnswer(TypedDict):
    """What every verb that was carried out answers at least."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: str
    # `open`, `acknowledged`, `redriven`, `discarded`, `resolved`
    dead_letter_status: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: NotRequired[str]
    epoch: NotRequired[int]


class LetterVerbAnswerOrAskedAnswer(TypedDict):
    """What every verb that was carried out answers at least."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: NotRequired[str]
    # `open`, `acknowledged`, `redriven`, `discarded`, `resolved`
    dead_letter_status: NotRequired[str]
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: NotRequired[str]
    epoch: NotRequired[int]


class LiftAnswer(TypedDict):
    """What still holds, and what was lifted just now."""

    is_frozen: bool
    freezes: list[FreezeItem]
    lifted: list[FreezeItem]


class LiftRequest(TypedDict):
    """Lifts the freeze of the workspace, or of one environment."""

    reason: NotRequired[str]
    # its slug; none: the freeze of the workspace
    environment: NotRequired[str]


class LineView(TypedDict):
    """One stage in a plan: what it is, and what it will be at once. Without an `action` it follows from the others."""

    stage: str
    # blank: the source has no such stage
    was: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    to: str
    epoch: int
    why: str
    action: str | None
    output_digest: str | None
    stale: bool


class ListedExecution(TypedDict):
    execution_id: str
    name: str
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    is_terminal: bool
    pause_reason: str | None
    paused_until: str | None
    workspace_id: str
    application_id: str
    application: str
    environment: str
    pipeline: str | None
    release_id: str
    recovered_from: str | None
    # the run whose stage started it
    parent_id: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    updated_at: str
    deadline_at: str | None
    failure: FailureView | None
    progress: ProgressView


class LogLineView(TypedDict):
    id: int
    at: str
    level: str
    message: str
    # what was said besides the message, by name
    fields: Any
    stage_id: str
    stage: str
    attempt_id: str
    attempt: int


class Match(TypedDict):
    """Which stages a policy targets: all that it names must fit. `error_codes` filters failures, it targets nothing."""

    pipeline: NotRequired[str]
    stage: NotRequired[str]
    handler: NotRequired[str]
    environment: NotRequired[str]
    error_codes: NotRequired[list[str]]


class MaterialChange(TypedDict):
    """What a release sends to others, or on other terms, than what was in force."""

    stage: str
    # organisation, service, billing, retention, added, removed or order
    what: str
    before: str
    after: str


MayRepeatView = TypedDict(
    "MayRepeatView",
    {
        "stage": "str",
        # `internal_state`, `model_provider`, `retrieval`, `external_http`, `tool_side_effect`, `memory_write`,
        # `evidence_write`, `artifact_write`, `human_approval`, `runtime_limit`, `policy_obligation`
        "class": "str | None",
        "state": "str",
        "step_id": "str | None",
        "idempotency_key": "str | None",
        "effect_id": "str | None",
    },
)
"""What may be done a second time outside. Of a stage that never declares what it does only the stage is known."""


class NextTickView(TypedDict):
    """`rule`: what made it, in a word; `says`: in plain words."""

    tick_time: str
    # in the trigger's zone, with its offset
    local_time: str
    # `fixed_time`, `real_time`, `overlap_first`, `overlap_second`, `gap_shift`, `gap_first_existing`
    rule: str
    says: str


class NodeView(TypedDict):
    """`facts` holds the ids, names and reasons of its kind."""

    id: str
    # `source`, `checkpoint`, `operation`, `disposition`, `approval`, `target`, `trigger`, `tick`, `backfill`
    kind: str
    title: str
    status: str
    at: str | None
    facts: Any


class OperationView(TypedDict):
    id: str
    operation_id: str
    # `pause`, `resume`, `cancel`, `retry`, `skip`, `rerun`, `replay`, `reconcile`, `acknowledge`, `redrive`, `discard`
    kind: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    requested_by: str
    channel: str
    reason: str | None
    reasons: list[ReasonView]
    plan_digest: str | None
    target_execution_id: str | None
    resolved_by: str | None
    created_at: str


class Options(TypedDict):
    """How a stage is retried, bounded and recovered. All intervals are seconds; 0 stands for none."""

    max_retries: NotRequired[int]
    retry_interval: NotRequired[float]
    retry_on_error_codes: NotRequired[list[str]]
    # `fixed`, `linear`, `exponential`
    backoff: NotRequired[str]
    max_retry_interval: NotRequired[float]
    jitter: NotRequired[bool]
    timeout: NotRequired[float]
    max_recoveries: NotRequired[int]
    max_output_bytes: NotRequired[int]


class OutputView(TypedDict):
    """One output of a stage. `attempt_id` is null where a person gave it, or where it is `restored_from` the source
    of a fork; `current`: what later stages get now.
    """

    id: str
    epoch: int
    attempt_id: str | None
    restored_from: str | None
    at: str
    current: bool
    digest: str
    size: int
    output: Any


class PatchedAddedEvidenceRequest(TypedDict):
    """What is added to a checkpoint. Nothing that it says can be changed."""

    evidence: NotRequired[dict[str, Any]]


class PatchedApplicationRequest(TypedDict):
    name: NotRequired[str]


class PatchedBlackoutChange(TypedDict):
    """What of a blackout may change; what is left out stays. `null` takes away a start or an end."""

    name: NotRequired[str]
    # of days, times and dates; UTC at first
    timezone: NotRequired[str]
    # of the week, on which it begins: 1 is Monday, 7 is Sunday
    days: NotRequired[list[int]]
    from_time: NotRequired[str]
    # not after from_time: until this time of the next day
    to_time: NotRequired[str]
    dates: NotRequired[list[str]]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    reason: NotRequired[str]
    enabled: NotRequired[bool]


class PatchedPolicyChange(TypedDict):
    """What of a policy may change; its kind never does."""

    name: NotRequired[str]
    match: NotRequired[Match]
    rule: NotRequired[dict[str, Any]]
    status: NotRequired[Literal["active", "paused"]]


class PatchedRuleChange(TypedDict):
    """What of a rule may change; what is left out stays. What waits is asked for no less than before."""

    name: NotRequired[str]
    kinds: NotRequired[list[str]]
    # slugs; `protected` stands for those that are; none: all
    environments: NotRequired[list[str]]
    # slugs; none: all, and inline runs
    pipelines: NotRequired[list[str]]
    # what `at_least` is the number of; blank: any size
    counted: NotRequired[Literal["", "stages", "runs", "ticks"]]
    at_least: NotRequired[int]
    # theirs or a higher one
    role: NotRequired[Literal["approver", "release_manager", "admin"]]
    count: NotRequired[int]
    # seconds; 7 days at first
    expires_in: NotRequired[int]
    enabled: NotRequired[bool]


class PatchedTriggerChange(TypedDict):
    """What of a trigger may change; what is left out stays. `null` takes away its deadline, its start or its end.
    Pipeline, environment and application are those it was made with: others are refused.
    """

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    pipeline: NotRequired[str]
    environment: NotRequired[str]
    # its name or id: the runs are its own
    application: NotRequired[str]
    name: NotRequired[str]
    # five fields, read in the trigger's zone: 15 16 * * mon-fri
    cron: NotRequired[str]
    # a name of IANA: Europe/Berlin
    timezone: NotRequired[str]
    # what becomes of a fixed time that does not exist
    gap: NotRequired[Literal["first_existing", "shift", "skip"]]
    # what becomes of a fixed time that exists twice
    overlap: NotRequired[Literal["first", "second", "both"]]
    # of each run; {{tick_time}} is filled in
    input: NotRequired[dict[str, Any]]
    # while an earlier run is unfinished
    overlap_policy: NotRequired[Literal["allow", "skip", "queue_one", "queue_all"]]
    # what becomes of ticks that were found too late
    catch_up: NotRequired[Literal["none", "latest", "all"]]
    # at most so many are caught up on
    catch_up_limit: NotRequired[int]
    # seconds after which a tick is too late
    start_within: NotRequired[int]
    # seconds over which starts are spread
    spread: NotRequired[int]
    # of its runs
    deadline_seconds: NotRequired[int | None]
    enabled: NotRequired[bool]
    # no ticks before
    starts_at: NotRequired[str | None]
    # no ticks after
    ends_at: NotRequired[str | None]


class PauseRequest(TypedDict):
    """Nothing more is handed out, until somebody resumes the run or `until` has come."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # when the engine resumes it by itself
    until: NotRequired[str]


class Pinned(TypedDict):
    """The limits of a run as it pinned them, defaults filled in; without a deadline it has none."""

    concurrency: NotRequired[int]
    attempts_per_stage: NotRequired[int]
    total_attempts: NotRequired[int]
    output_bytes_per_stage: NotRequired[int]
    total_output_bytes: NotRequired[int]
    deadline_seconds: int | None
    revisions: NotRequired[int]


class PipelineRequest(TypedDict):
    slug: str
    name: str
    description: NotRequired[str]


class PipelineView(TypedDict):
    id: str
    slug: str
    name: str
    description: str
    created_at: str


class PlaceChanged(TypedDict):
    """A place in a definition. Values are JSON texts; null where there is none on that side."""

    path: str
    before: str | None
    after: str | None


class PlanView(TypedDict):
    """All of what a verb would do; nothing was changed. Its digest, told with the verb, holds the verb to it."""

    # `pause`, `resume`, `cancel`, `retry`, `skip`, `rerun`, `replay`, `reconcile`, `acknowledge`, `redrive`, `discard`
    kind: str
    execution_id: str
    stage_id: str | None
    stage: str | None
    choices: dict[str, Any]
    kept: list[LineView]
    run_again: list[LineView]
    then: list[LineView]
    added: list[str]
    removed: list[str]
    differences: list[DifferenceView]
    may_repeat: list[MayRepeatView]
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    reasons: list[ReasonView]
    approvals: list[AgreementView]
    environment: str
    source_release_id: str | None
    release_id: str | None
    release_changed: bool
    checkpoint_id: str | None
    goes_on_outside: list[str]
    # runs that it started, which are cancelled with it
    ends_too: NotRequired[list[str]]
    plan_digest: str
    # while it holds an override_reason is needed; no part of the digest
    blackout: NotRequired[BlackoutHolds | None]
    # where the run will wait for its turn; no part of the digest
    lane: NotRequired[LaneStands | None]


class PlannedVerb(TypedDict):
    """What a verb takes that can be planned first. Looking at a plan needs no more than the right to view."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]


class PolicyItem(TypedDict):
    id: str
    name: str
    # `retry`, `timeout`, `rate`, `concurrency`, `run_retry`
    kind: str
    match: Match
    rule: Any
    # `active`, `paused`
    status: str
    created_at: str


class PolicyRequest(TypedDict):
    """A policy. `rule` holds what its kind knows: the options of a retry; `seconds` of a timeout; `count` and
    `per_seconds` of a rate; `max_active` of a concurrency; of a run retry `mode` and how often and how far apart, as
    of a retry.
    """

    name: str
    match: NotRequired[Match]
    rule: dict[str, Any]
    status: NotRequired[Literal["active", "paused"]]
    kind: Literal["retry", "timeout", "rate", "concurrency", "run_retry"]


class Posture(TypedDict):
    """What a handler did, or is about to do, outside. What stands under `committed_side_effects` is committed."""

    side_effects: NotRequired[list[SideEffect]]
    committed_side_effects: NotRequired[list[SideEffect]]


class ProgressView(TypedDict):
    """Where a run stands; `stage` is the one that speaks for it: at fault, active or next."""

    stages: int
    done: int
    stage: str
    stage_status: str


class ReadinessLineView(TypedDict):
    """One line of the checklist; `see`: documents."""

    key: str
    title: str
    # `met`, `not_met`, `not_known`
    state: str
    why: str
    to_do: str
    see: list[str]


class ReadinessPlaceView(TypedDict):
    """A pipeline in one environment. `runs`: how many of its newest are of this release, and were looked at."""

    environment: str
    release_id: str
    digest: str
    runs: int
    checklist: list[ReadinessLineView]
    stages: list[RepeatView]


class ReadinessView(TypedDict):
    """What a pipeline lacks, for each environment in which a release is in force."""

    pipeline: str
    environments: list[ReadinessPlaceView]


class ReasonView(TypedDict):
    """Why a verdict is what it is; the worst reason of all decides."""

    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    code: str
    text: str
    stage: str | None
    effect_id: str | None


class Recipient(TypedDict):
    """To whom a stage's adapter may send: whose it is, what runs there, who pays by which route, what is kept."""

    organisation: str
    service: str
    billing: NotRequired[str]
    retention: NotRequired[str]


class ReconcileAnswer(TypedDict):
    """What every verb that was carried out answers at least."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: str
    reconciliation_id: str
    # `committed`, `absent`, `contradicted`
    outcome: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: str
    effect_id: NotRequired[str]
    # `declared`, `committed`, `absent`, `unknown`, `reconciled_committed`, `reconciled_absent`, `contradicted`
    effect_state: NotRequired[str]
    evidence: NotRequired[Any]
    late_results: list[LateResult]


class ReconcileRequest(TypedDict):
    """With `effect_id` about that effect; without, about the stage. `output` is what a committed one completes with."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    outcome: Literal["committed", "absent", "contradicted"]
    evidence: NotRequired[EvidenceBody]
    note: str
    effect_id: NotRequired[str]
    output: NotRequired[Any]


class ReconciliationRequest(TypedDict):
    """What somebody found out about one effect."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    outcome: Literal["committed", "absent", "contradicted"]
    evidence: NotRequired[EvidenceBody]
    note: str


class RedriveRequest(TypedDict):
    """What a verb takes that makes something start: while a blackout holds, it needs to be told why all the same."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # starts it although a blackout holds
    override_reason: NotRequired[str]
    acknowledge_effects: NotRequired[bool]


class ReleasePlanView(TypedDict):
    """What registering a definition would change, against what is in force there or was last. `release_id` and
    `status` are of the same definition, where it is registered already. `code` is a unified difference, null where
    it is too long. `changes` must be reviewed by another person before it is in force.
    """

    pipeline: str
    environment: str
    digest: str
    source_digest: str
    is_new_pipeline: bool
    release_id: str | None
    # `draft`, `active`, `superseded`, `retired`, `revoked`
    status: str | None
    # the digest of the release in force, else of the last one
    compared_with: str | None
    # whether what it is compared with is in force
    is_in_force: bool
    added: list[str]
    removed: list[str]
    changed: list[StageChanged]
    other: list[PlaceChanged]
    code: list[str] | None
    changes: list[MaterialChange]


class ReleaseRequest(TypedDict):
    """`definition` is checked as a whole, with its own paths in the errors."""

    pipeline: str
    environment: str
    definition: dict[str, Any]
    activate: NotRequired[bool]
    # answer what it would change, and register nothing
    dry_run: NotRequired[bool]


class ReleaseView(TypedDict):
    id: str
    pipeline: str
    environment: str
    digest: str
    # `draft`, `active`, `superseded`, `retired`, `revoked`
    status: str
    created_at: str
    activated_at: str | None
    needs_review: bool
    changes: list[MaterialChange]
    reviewed_at: str | None
    # SHA-256 of the code that it was deployed from
    source_digest: str


class RepeatView(TypedDict):
    """Whether a stage is safe to repeat. Every reason says whether it was declared, seen, or is not known."""

    stage: str
    handler: str
    # `none`, `idempotent`, `external`
    effect_mode: str
    # `none`, `intent`
    effect_protocol: str
    # `declared`, `seen`, `doubtful`, `intent`, `asks`, `awaits`
    verdict: str
    words: str
    reasons: list[str]


class ReplayRequest(TypedDict):
    """`freeze_release` is a hint in the new run's `_recovery`: the release is the one in force now all the same."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # starts it although a blackout holds
    override_reason: NotRequired[str]
    flow_slug: NotRequired[str]
    environment: NotRequired[str]
    actor_ref: NotRequired[str]
    freeze_release: NotRequired[bool]


class RequestPreview(TypedDict):
    """The plan of an operation as it is now, in full as a dry run of the verb itself tells it."""

    kind: str
    execution_id: str
    disposition: str
    plan_digest: str
    given: NotRequired[GivenView]


class RerunRequest(TypedDict):
    """`from_step_id` starts clean; left out, the run starts where the snapshot stands, with the handler's state."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # starts it although a blackout holds
    override_reason: NotRequired[str]
    flow_slug: NotRequired[str]
    environment: NotRequired[str]
    actor_ref: NotRequired[str]
    from_step_id: NotRequired[str]


class ResumeBackfill(TypedDict):
    """Resuming starts runs: in a blackout it needs a reason of its own."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    override_reason: NotRequired[str]


class RetryRequest(TypedDict):
    """A new epoch of a stage, alone or with everything behind it. `input` replaces the stage's own from now on."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    # starts it although a blackout holds
    override_reason: NotRequired[str]
    scope: NotRequired[Literal["stage", "stage_and_downstream"]]
    input: NotRequired[str]
    acknowledge_effects: NotRequired[bool]


class RevisionsView(TypedDict):
    """Reruns, retries with all behind them or with another input: of the run and of what it was forked from."""

    used: int
    left: int


class RotateRequest(TypedDict):
    """`replaces`: the key that the caller believes to be active; when it is another, nothing changes."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    replaces: NotRequired[str]


class RuleItem(TypedDict):
    """A rule, as it reads in words, and what to know about it: too few people to agree, or nothing to be about yet."""

    id: str
    name: str
    kinds: list[str]
    environments: list[str]
    pipelines: list[str]
    # `stages`, `runs`, `ticks`
    counted: str
    at_least: int
    # `approver`, `release_manager`, `admin`
    role: str
    count: int
    expires_in: int
    enabled: bool
    says: str
    warnings: list[str]
    created_at: str


class RuleRequest(TypedDict):
    """A rule. It binds every role, for what is asked from now on."""

    name: str
    kinds: list[str]
    # slugs; `protected` stands for those that are; none: all
    environments: NotRequired[list[str]]
    # slugs; none: all, and inline runs
    pipelines: NotRequired[list[str]]
    # what `at_least` is the number of; blank: any size
    counted: NotRequired[Literal["", "stages", "runs", "ticks"]]
    at_least: NotRequired[int]
    # theirs or a higher one
    role: Literal["approver", "release_manager", "admin"]
    count: NotRequired[int]
    # seconds; 7 days at first
    expires_in: NotRequired[int]
    enabled: NotRequired[bool]


class RunRetryView(TypedDict):
    """What was decided when the run last failed under a policy for whole runs, and what became of that. `number`:
    the how-manieth of the run and all that it was made out of. `held_by`: the blackout that it waits for. `made`:
    the run that it was made anew as.
    """

    id: str
    # due, declined, done, refused or called_off
    status: str
    # `resume`, `new_run`
    mode: str
    number: int
    max_retries: int
    policy_id: str
    policy: str
    explanation: str
    failed_at: str
    due_at: str | None
    held_by: str | None
    ended_at: str | None
    ended_by: str | None
    code: str | None
    why: str | None
    disposition: str | None
    operations: list[str]
    made: str | None


class SettleRequest(TypedDict):
    """What became of it, in the words of who looked."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    note: str


class SettledView(TypedDict):
    """Something that may still go on outside; `subject_id` is the attempt, effect or gate that it is about."""

    id: str
    execution_id: str
    stage_id: str
    stage: str
    attempt: int
    # `running_attempt`, `uncertain_effect`, `open_effect`, `open_gate`, `awaited_import`, `process_left`, `child_run`
    kind: str
    subject_id: str | None
    detail: str
    opened_at: str
    settled_at: str | None
    settled_by: str | None
    note: str | None
    replayed: bool


class ShareView(TypedDict):
    """What a stage was charged; `allowance` is what its next attempt would be, whatever it returns."""

    stage_id: str
    name: str
    attempts: int
    charged: int
    allowance: int


SideEffect = TypedDict(
    "SideEffect",
    {
        # one of: internal_state, model_provider, retrieval, external_http, tool_side_effect, memory_write,
        # evidence_write, artifact_write, human_approval, runtime_limit, policy_obligation
        "class": NotRequired["str"],
        "step_id": NotRequired["str"],
        "idempotency_key": NotRequired["str"],
        "committed": NotRequired["bool"],
        "external_ref": NotRequired["str"],
        "request_hash": NotRequired["str"],
    },
)
"""An effect that a posture tells of. A committed one outside `internal_state` needs class, step and key."""


class Signal(TypedDict):
    """The answer to pause and resume: exactly these two fields."""

    execution_id: str
    status: str


class SignatureEnvelope(TypedDict):
    algorithm: str | None
    key_id: str | None
    signature: str | None


class SignedIdentity(TypedDict):
    """What is signed, as canonical JSON, with the key that the envelope names."""

    workspace: str
    run: str
    release: str
    environment: str
    stage: str | None
    epoch: int
    sequence: int
    payload_digest: str


class SigningKeyView(TypedDict):
    """`public_key`: 32 raw bytes in base64. Active keys sign, retiring ones only verify, revoked ones do neither."""

    id: str
    # `ed25519`
    algorithm: str
    public_key: str
    # `active`, `retiring`, `revoked`
    status: str
    created_at: str
    retiring_since: str | None
    revoked_at: str | None


class SkipRequest(TypedDict):
    """Leaves a stage out on purpose. `output`, where given, is what its dependants get."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    output: NotRequired[Any]


class SnapshotView(TypedDict):
    """Where a run stands by its newest checkpoint; `status` and `pause_reason` are those of this moment."""

    execution_id: str
    current_step_id: str
    previous_step_id: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    status: str
    pause_reason: str | None
    workspace_id: str
    checkpoint_id: str
    sequence: int
    epoch: int
    recorded_at: str
    # `valid`, `invalid`, `revoked_key`
    integrity: str
    key_id: str | None


class StageAccountView(TypedDict):
    """A stage: how it stands, its story, what is uncertain of it, and what can be done next. `request_digest`: that
    of the answer that it awaits.
    """

    stage_id: str
    name: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    status: str
    standing: str
    request_digest: str | None
    story: list[str]
    uncertain: list[str]
    next: list[str]


class StageChanged(TypedDict):
    stage: str
    places: list[PlaceChanged]


class StageVerbAnswer(TypedDict):
    """What every verb that was carried out answers at least."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: str
    epoch: NotRequired[int]


class StageVerbAnswerOrAskedAnswer(TypedDict):
    """What every verb that was carried out answers at least."""

    operation_id: str
    execution_id: str
    stage_id: str | None
    # `requested`, `evaluating`, `awaiting_approval`, `review_required`, `denied`, `allowed`, `reserved`, `dispatched`,
    # `succeeded`, `failed`, `withdrawn`, `expired`
    status: str
    # `recovery_denied`, `operator_review_required`, `recovery_allowed_reconciled`, `recovery_allowed`
    disposition: str
    replayed: bool
    plan_digest: str | None
    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`, `completed`, `failed`, `cancelled`
    execution_status: NotRequired[str]
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    stage_status: NotRequired[str]
    epoch: NotRequired[int]


class StageView(TypedDict):
    """`id` and `stage_id` are the same: lists name their items by `id`, other answers name a stage by `stage_id`."""

    id: str
    stage_id: str
    execution_id: str
    name: str
    handler: str
    description: str
    # `pending`, `ready`, `dispatched`, `running`, `retry_scheduled`, `waiting`, `needs_reconciliation`, `completed`,
    # `failed`, `skipped`, `cancelled`
    status: str
    is_terminal: bool
    epoch: int
    attempt: int
    retry_count: int
    recovery_count: int
    needs: list[str]
    run_next_if_failed: bool
    # `none`, `idempotent`, `external`
    effect_mode: str
    approval: ApprovalView | None
    # to whom it may be sent, in order of fallback; none: to anyone
    recipients: list[Recipient]
    options: Options
    next_retry_at: str | None
    started_at: str | None
    finished_at: str | None
    input: str | None
    output: Any
    error_code: str | None
    error_message: str | None
    failure_disposition: str | None
    stale: bool


class Standing(TypedDict):
    """Where a gate or a request stands. `status` is the operation's; of a gate its state."""

    id: str
    # `gate`, `operation`
    type: str
    operation_id: str | None
    # the run that was asked about
    execution_id: str | None
    stage_id: str | None
    status: str
    # `open`, `approved`, `rejected`, `expired`, `cancelled`, `withdrawn`, `superseded`
    state: str
    disposition: str | None
    round: int
    have: int
    need: int
    expires_at: str | None
    plan_digest: str | None
    replayed: bool


class StatementView(TypedDict):
    """What is guaranteed, could be switched on, or is not guaranteed. `because`: what it hangs on; `see`: documents."""

    key: str
    # `promised`, `off`, `not_promised`
    standing: str
    title: str
    text: str
    because: str
    see: list[str]


class SteerBulk(TypedDict):
    """Steering has no plan: it touches nothing but the bulk itself."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]


class StillOutside(TypedDict):
    """Something that may still go on outside, and what a person said of it since."""

    item_id: str
    stage_id: str
    attempt: int
    # `running_attempt`, `uncertain_effect`, `open_effect`, `open_gate`, `awaited_import`, `process_left`, `child_run`
    kind: str
    detail: str
    settled_at: str | None
    settled_by: str | None
    note: str | None


class StoreRemoval(TypedDict):
    """Which rows are to go; without `where` the table with all of them."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    # answer the plan and change nothing
    dry_run: NotRequired[bool]
    # of the plan that was looked at; another is refused
    plan_digest: NotRequired[str]
    where: NotRequired[dict[str, Any]]


class StoreRemoved(TypedDict):
    """What went, or with `dry_run` would go; the digest is that of what was seen."""

    table_id: str
    table: str
    whole_table: bool
    rows: int
    bytes: int
    plan_digest: str
    dry_run: bool


class StoreRowView(TypedDict):
    """A row, and the run that wrote it last."""

    # its place in the order
    id: int
    row: dict[str, Any]
    execution_id: str | None
    written_at: str


class StoreTableView(TypedDict):
    """A table, and what it holds now. The run that wrote last may have been removed since."""

    id: str
    name: str
    # the key columns; none: the whole row is the key
    key: list[str]
    application: str
    environment: str
    rows: int
    bytes: int
    created_at: str
    written_at: str | None
    written_by_execution_id: str | None
    written_by_attempt_id: str | None


class TickError(TypedDict):
    code: str
    message: str


class TickErrorView(TypedDict):
    code: str
    message: str


class TickView(TypedDict):
    """A tick as the ledger has it, by the cron, the zone and the policies of its time. Without `execution_id` it has
    no run: it is missed, or due.
    """

    tick_time: str
    # in the trigger's zone, with its offset
    local_time: str
    # `fixed_time`, `real_time`, `overlap_first`, `overlap_second`, `gap_shift`, `gap_first_existing`
    rule: str
    says: str
    id: str
    # `due`, `dispatched`, `skipped`, `failed`
    status: str
    # `paused`, `overlap`, `blackout`, `catch-up`, `existing`
    reason: str | None
    # such as the name of the blackout
    detail: str | None
    execution_id: str | None
    backfill_id: str | None
    cron: str
    timezone: str
    error: TickErrorView | None
    recorded_at: str
    decided_at: str | None


class TriggerRequest(TypedDict):
    """A trigger. Without a name it is called by its pipeline's slug."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]
    pipeline: str
    environment: str
    # its name or id: the runs are its own
    application: str
    name: NotRequired[str]
    # five fields, read in the trigger's zone: 15 16 * * mon-fri
    cron: str
    # a name of IANA: Europe/Berlin
    timezone: str
    # what becomes of a fixed time that does not exist
    gap: NotRequired[Literal["first_existing", "shift", "skip"]]
    # what becomes of a fixed time that exists twice
    overlap: NotRequired[Literal["first", "second", "both"]]
    # of each run; {{tick_time}} is filled in
    input: NotRequired[dict[str, Any]]
    # while an earlier run is unfinished
    overlap_policy: NotRequired[Literal["allow", "skip", "queue_one", "queue_all"]]
    # what becomes of ticks that were found too late
    catch_up: NotRequired[Literal["none", "latest", "all"]]
    # at most so many are caught up on
    catch_up_limit: NotRequired[int]
    # seconds after which a tick is too late
    start_within: NotRequired[int]
    # seconds over which starts are spread
    spread: NotRequired[int]
    # of its runs
    deadline_seconds: NotRequired[int | None]
    enabled: NotRequired[bool]
    # no ticks before
    starts_at: NotRequired[str | None]
    # no ticks after
    ends_at: NotRequired[str | None]


class TriggerView(TypedDict):
    """A trigger and where it stands. `next_ticks` are told of one that is off, too: as they would be. `missed`: the
    ticks that have no run, between `missed_from` and `missed_to`; with `missed_capped` there are more.
    """

    id: str
    name: str
    pipeline: str
    environment: str
    application: str
    cron: str
    timezone: str
    # `first_existing`, `shift`, `skip`
    gap: str
    # `first`, `second`, `both`
    overlap: str
    input: Any
    # `allow`, `skip`, `queue_one`, `queue_all`
    overlap_policy: str
    # `none`, `latest`, `all`
    catch_up: str
    catch_up_limit: int
    start_within: int
    spread: int
    deadline_seconds: int | None
    enabled: bool
    starts_at: str | None
    ends_at: str | None
    version: int
    # the schedule in plain words
    description: str
    # one that holds now: nothing starts
    blackout: str | None
    next_ticks: list[NextTickView]
    last_tick: TickView | None
    missed: int
    missed_capped: bool
    missed_from: str | None
    missed_to: str | None
    created_at: str
    updated_at: str


class Verb(TypedDict):
    """What every verb takes. One that cannot be planned yet refuses the two fields about plans by name."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]


class WholeCheckpoint(TypedDict):
    """A checkpoint without what it says. `integrity` is judged now; `superseded`: a newer one was written."""

    id: str
    checkpoint_id: str
    execution_id: str
    sequence: int
    # `run_start`, `stage_end`, `skip`, `gate`, `pause`, `retry`, `handler`, `restored`
    moment: str
    stage_id: str | None
    step_id: str | None
    epoch: int
    attempt_id: str | None
    current_step_id: str
    previous_step_id: str | None
    recorded_at: str
    payload_digest: str
    algorithm: str | None
    key_id: str | None
    # `valid`, `invalid`, `revoked_key`
    integrity: str
    superseded: bool
    # null where what is stored is no JSON any more
    payload: Any
    envelope: SignatureEnvelope
    signed: SignedIdentity
    evidence: list[AddedEvidence]


class WholeRelease(TypedDict):
    id: str
    pipeline: str
    environment: str
    digest: str
    # `draft`, `active`, `superseded`, `retired`, `revoked`
    status: str
    created_at: str
    activated_at: str | None
    needs_review: bool
    changes: list[MaterialChange]
    reviewed_at: str | None
    # SHA-256 of the code that it was deployed from
    source_digest: str
    definition: Any


class WhyNotView(TypedDict):
    """Why you may not decide it, with the code of the refusal."""

    code: str
    detail: str


WindowView = TypedDict(
    "WindowView",
    {
        "from": "str",
        "to": "str",
    },
)
"""Both ends belong to it."""


class WithdrawRequest(TypedDict):
    """What every verb takes. One that cannot be planned yet refuses the two fields about plans by name."""

    reason: NotRequired[str]
    # a lowercase UUID that makes the request safe to repeat
    client_request_id: NotRequired[str]


class WordView(TypedDict):
    key: str
    value: str


class WorkerView(TypedDict):
    id: str
    worker: str
    instance_id: str | None
    application: str
    environment: str | None
    # `active`, `draining`, `revoked`
    status: str
    live: bool
    handlers: list[str]
    worker_version: str | None
    sdk_version: str | None
    host_name: str | None
    pid: int | None
    started_at: str
    last_seen_at: str
    ended_at: str | None


BulkDetailOrPlan = BulkDetail | PlanView


CancelAnswerOrPlan = CancelAnswer | PlanView


DecisionAnswerOrPreview = DecisionAnswer | GatePreview | RequestPreview


ForkAnswerOrPlan = ForkAnswer | PlanView


ImportAnsweredOrPreview = ImportAnswered | ImportPreview


LetterVerbAnswerOrPlan = LetterVerbAnswer | PlanView


ReconcileAnswerOrPlan = ReconcileAnswer | PlanView


ReleaseViewOrPlan = ReleaseView | ReleasePlanView


SignalOrPlan = Signal | PlanView


StageVerbAnswerOrPlan = StageVerbAnswer | PlanView
