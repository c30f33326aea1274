"""The wire shapes of the application API (contract §2): the one home of its field names, limits and defaults.

Declared names are the engine's, the wire's are camelCase. Requests first, answers (for OpenAPI only) below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from pipelines.access import CAPABILITIES, DECIDE
from pipelines.api.shapes import (
    AnyJson,
    Flag,
    Identifier,
    JsonObject,
    ListOf,
    Moment,
    Number,
    OneOf,
    Problems,
    Shape,
    SmallJson,
    Text,
    Whole,
)
from pipelines.effects import FIRST_WORD, MOST_EFFECTS
from pipelines.limits import LARGEST_OUTPUT, MIB, MOST_ATTEMPTS, MOST_BYTES, TEN_YEARS
from pipelines.models import Follow, GateMoment, OnParentEnd, ReconciliationKind, Role
from pipelines.models.runs import EffectMode, EffectProtocol, StageMode
from pipelines.postures import MOST_SIDE_EFFECTS, Left
from pipelines.states import EffectClass, EffectState, RunStatus, StageState

NAME = 255
HANDLER = 300
INPUT_BYTES = 256 * 1024
MOST_STAGES = 100
MOST_RECIPIENTS = 10
MOST_BASELINES = 20
MOST_CHILDREN = 1_000  # looked at, or waited for, at once
MOST_SENDINGS = 200  # of a worker session, over all its handlers
MOST_PAIRS = 100
MOST_RESULTS = 200
MOST_JOBS = 200
LONGEST_WAIT = 30
KEY = 200
MOST_APPROVERS = 20
DECIDING_ROLES = [role for role in Role.values if role in CAPABILITIES[DECIDE]]
BACKOFFS = ("fixed", "linear", "exponential")


class Camel(Shape):
    """A shape of the application API."""

    camel = True


class Options(Shape):
    """How a stage is retried, bounded and recovered. All intervals are seconds; 0 stands for none (P32, P33)."""

    max_retries = Whole(min_value=0, max_value=10_000, required=False)
    retry_interval = Number(min_value=0, max_value=TEN_YEARS, required=False)
    retry_on_error_codes = ListOf(child=Text(max_length=100), max_length=100, required=False)
    backoff = OneOf(BACKOFFS, required=False)
    max_retry_interval = Number(min_value=0, max_value=TEN_YEARS, required=False)
    jitter = Flag(required=False)
    timeout = Number(min_value=0, max_value=TEN_YEARS, required=False)
    max_recoveries = Whole(min_value=0, max_value=10_000, required=False)
    max_output_bytes = Whole(min_value=1, max_value=LARGEST_OUTPUT, required=False)


class CamelOptions(Options):
    camel = True
    spelling = {"timeout": "timeOut"}


class Gated(Shape):
    """A gate of the stage, before or after its work. A role, or more than one approver, asks for people by itself."""

    when = OneOf(GateMoment.values)
    approver_role = OneOf(DECIDING_ROLES, required=False)
    count = Whole(min_value=1, max_value=MOST_APPROVERS, required=False)
    expires_in = Whole(min_value=1, max_value=TEN_YEARS, required=False)
    require_person = Flag(required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        # saying a default and leaving it out is one, also to digests and fingerprints that are older than these fields
        for name, default in (("count", 1), ("require_person", False)):
            if clean.get(name) == default:
                del clean[name]
        return []


class Approval(Gated):
    camel = True
    spelling = {"expires_in": "expiresInSeconds"}


class Bounds(Shape):
    """The limits of a run. Bytes and seconds; what is left out has a recorded default (R25)."""

    concurrency = Whole(min_value=1, max_value=MOST_STAGES, required=False)
    attempts_per_stage = Whole(min_value=1, max_value=MOST_ATTEMPTS, required=False)
    total_attempts = Whole(min_value=1, max_value=MOST_ATTEMPTS, required=False)
    output_bytes_per_stage = Whole(min_value=1, max_value=LARGEST_OUTPUT, required=False)
    total_output_bytes = Whole(min_value=1, max_value=MOST_BYTES, required=False)
    deadline_seconds = Whole(min_value=1, max_value=TEN_YEARS, required=False)
    revisions = Whole(min_value=0, max_value=MOST_ATTEMPTS, required=False)


class CamelBounds(Bounds):
    camel = True


class Recipient(Shape):
    """To whom a stage's adapter may send: whose it is, what runs there, who pays by which route, what is kept (R40)."""

    organisation = Text(max_length=NAME, trim=True, control=False)
    service = Text(max_length=NAME, trim=True, control=False)
    billing = Text(max_length=NAME, trim=True, control=False, blank=True, default="")
    retention = Text(max_length=NAME, trim=True, control=False, blank=True, default="")


class StageIntent(Camel):
    """One stage of an inline list. `input` is kept byte for byte (P16)."""

    spelling = {"name": "stageName", "handler": "stageHandlerName"}

    name = Text(max_length=NAME, control=False)
    handler = Text(max_length=HANDLER, control=False)
    input = Text(blank=True, max_bytes=INPUT_BYTES, required=False)
    description = Text(blank=True, max_length=10_000, required=False)
    depends_on = ListOf(child=Text(max_length=NAME), max_length=MOST_STAGES, required=False)
    run_next_if_failed = Flag(required=False)
    mode = OneOf(StageMode.values, required=False)
    effect_mode = OneOf(EffectMode.values, required=False)
    effect_protocol = OneOf(EffectProtocol.values, required=False)
    approval = Approval(required=False)
    recipients = ListOf(child=Recipient(), max_length=MOST_RECIPIENTS, required=False)
    options = CamelOptions(required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        return told_twice(clean.get("recipients") or ())


def told_twice(recipients: Sequence[Mapping[str, Any]]) -> Problems:
    """Recipients in order of fallback: each once."""
    return [
        (f"recipients[{position}]", "is named twice")
        for position, recipient in enumerate(recipients)
        if recipient in recipients[:position]
    ]


class ContextItem(Camel):
    """A business identifier that travels with the run. A sensitive value is never shown again."""

    key = Text(max_length=NAME, control=False)
    value = Text(blank=True, max_length=10_000)
    is_sensitive = Flag(default=False)


class Keyword(Camel):
    key = Text(max_length=NAME, control=False)
    value = Text(blank=True, max_length=NAME)


class BaselineOf(Camel):
    """An artifact that a run builds on, by the name under which its stages know it."""

    name = Text(max_length=NAME, control=False)
    artifact_id = Identifier()


def named_twice(baseline: Sequence[Mapping[str, Any]]) -> Problems:
    """Each name of a baseline once."""
    names = [one["name"] for one in baseline]
    return [(f"baseline[{at}].name", "is named twice") for at, name in enumerate(names) if name in names[:at]]


class RunIntent(Camel):
    """What is to be run: inline `stages`, or a managed `pipeline` with `input`."""

    name = Text(max_length=NAME, control=False, required=False)
    stages = ListOf(child=StageIntent(), min_length=1, max_length=MOST_STAGES, required=False)
    pipeline = Text(max_length=100, required=False)
    input = JsonObject(max_bytes=INPUT_BYTES, exact=True, required=False)
    environment = Text(max_length=100, required=False)
    context_items = ListOf(child=ContextItem(), max_length=MOST_PAIRS, default=list)
    keywords = ListOf(child=Keyword(), max_length=MOST_PAIRS, default=list)
    trace_id = Text(blank=True, max_length=255, required=False)
    traceparent = Text(blank=True, max_length=255, required=False)
    tracestate = Text(blank=True, max_length=512, required=False)
    deadline_seconds = Whole(min_value=1, max_value=TEN_YEARS, required=False)
    limits = CamelBounds(required=False)
    baseline = ListOf(child=BaselineOf(), max_length=MOST_BASELINES, required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        if twice := named_twice(clean.get("baseline") or ()):
            return twice
        if "pipeline" in clean:
            return [("stages", "give stages or a pipeline, not both")] if "stages" in clean else []
        missing = [(name, "this field is required") for name in ("name", "stages") if name not in clean]
        if "input" in clean:
            missing.append(("input", "input belongs to a managed pipeline; an inline stage has its own"))
        return missing


class IdempotentRunIntent(RunIntent):
    """As `RunIntent`, under the caller's own key for the business operation (P11)."""

    idempotency_key = Text(max_length=KEY, trim=True, control=False)


class Lookup(Camel):
    idempotency_key = Text(max_length=KEY, trim=True, control=False)


class Reason(Camel):
    reason = Text(blank=True, max_length=10_000, default="")


class GateAnswer(Camel):
    """The owning application's decision on a waiting stage. Nothing but a true boolean approves (F135)."""

    approved = Flag()
    rejection_reason = Text(blank=True, max_length=10_000, required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        if clean["approved"] and clean.get("rejection_reason"):
            return [("rejectionReason", "an approval has no rejection reason")]
        return []


# workers


class Sending(Recipient):
    """To whom the adapter of a handler sends."""

    handler = Text(max_length=HANDLER, control=False)


class Registration(Camel):
    worker_name = Text(max_length=NAME, control=False)
    supported_handlers = ListOf(child=Text(max_length=HANDLER, control=False), min_length=1, max_length=1_000)
    instance_id = Text(blank=True, max_length=255, default="")
    worker_version = Text(blank=True, max_length=100, default="")
    sdk_version = Text(blank=True, max_length=100, default="")
    host_name = Text(blank=True, max_length=255, default="")
    pid = Whole(min_value=0, max_value=2**31 - 1, required=False)
    metadata = JsonObject(max_bytes=16 * 1024, default=dict)
    recipients = ListOf(
        child=Sending(), max_length=MOST_SENDINGS, default=list, help_text="to whom the adapters of handlers send"
    )

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        return [
            (f"recipients[{at}].handler", "is none of supportedHandlers")
            for at, one in enumerate(clean["recipients"])
            if one["handler"] not in clean["supported_handlers"]
        ]


class Nothing(Camel):
    """An empty object."""


class Pull(Camel):
    handlers = ListOf(child=Text(max_length=HANDLER), min_length=1, max_length=1_000, required=False)
    max_jobs = Whole(min_value=1, max_value=MOST_JOBS, default=1)
    wait_seconds = Number(min_value=0, max_value=LONGEST_WAIT, default=0)
    acquire = Flag(default=False)


class OfAttempt(Camel):
    execution_id = Identifier()


class LeaseOf(OfAttempt):
    stage_id = Identifier()


class Renewal(Camel):
    leases = ListOf(child=LeaseOf(), max_length=1_000)


class LogEntry(Camel):
    spelling = {"fields_": "fields"}  # the bare name is DRF's own

    at = Moment(required=False)
    level = Text(max_length=20, control=False)
    message = Text(blank=True, max_length=64 * 1024)
    fields_ = JsonObject(max_bytes=64 * 1024, required=False, source="fields")


class EffectTold(Camel):
    """What was, or is about to be, done outside the run. Same class, step and key: the same effect of the attempt."""

    spelling = {"effect_class": "class", "key": "idempotencyKey"}

    # free here, so that an unknown one is refused by its own code
    effect_class = Text(blank=True, max_length=100, help_text="one of: " + ", ".join(EffectClass.values))
    step_id = Text(max_length=NAME, control=False, required=False, help_text="the stage's name when left out")
    key = Text(
        max_length=KEY, control=False, required=False, help_text="needed to commit what is outside `internal_state`"
    )
    state = OneOf([state.value for state in FIRST_WORD])
    external_ref = Text(blank=True, max_length=1_000, required=False)
    request_hash = Text(blank=True, max_length=200, control=False, required=False)
    detail = SmallJson(max_bytes=16 * 1024, required=False)


class EffectsTold(OfAttempt):
    """All or none of them is noted."""

    effects = ListOf(child=EffectTold(), min_length=1, max_length=MOST_EFFECTS)


class SideEffect(Shape):
    """An effect that a posture tells of. A committed one outside `internal_state` needs class, step and key (O48)."""

    spelling = {"effect_class": "class", "key": "idempotency_key"}

    # free and optional here, so that what is missing or unknown is refused by its own code
    effect_class = Text(
        blank=True, max_length=100, required=False, help_text="one of: " + ", ".join(EffectClass.values)
    )
    step_id = Text(max_length=NAME, control=False, required=False)
    key = Text(max_length=KEY, control=False, required=False)
    committed = Flag(required=False)
    external_ref = Text(blank=True, max_length=1_000, required=False)
    request_hash = Text(blank=True, max_length=200, control=False, required=False)


class Posture(Shape):
    """What a handler did, or is about to do, outside. What stands under `committed_side_effects` is committed."""

    side_effects = ListOf(child=SideEffect(), max_length=MOST_SIDE_EFFECTS, required=False)
    committed_side_effects = ListOf(child=SideEffect(), max_length=MOST_SIDE_EFFECTS, required=False)


class CamelSideEffect(SideEffect):
    camel = True
    spelling = {"effect_class": "class", "key": "idempotencyKey"}


class CamelPosture(Camel):
    side_effects = ListOf(child=CamelSideEffect(), max_length=MOST_SIDE_EFFECTS, required=False)
    committed_side_effects = ListOf(child=CamelSideEffect(), max_length=MOST_SIDE_EFFECTS, required=False)


class LeftBehind(Camel):
    """What a handler leaves for its stage's next attempt in the same epoch. Its state is any JSON but null."""

    state = AnyJson(help_text="at most 256 KiB as canonical JSON")
    recovery_posture = CamelPosture(required=False)


def left_behind(told: Mapping[str, Any], at: str = "") -> Left:
    """What was left, from its clean shape; `at` is where in the request that stands."""
    return Left(told["state"], told.get("recovery_posture"), Camel.wire_name, at)


class Leaving(OfAttempt, LeftBehind):
    """A checkpoint that a handler asks for while it runs."""


class Release(OfAttempt):
    checkpoint = LeftBehind(required=False)


class StageResult(OfAttempt):
    """What a worker reports of one attempt (P52). An output that is too large is taken, and fails the stage.

    With `awaitsRuns` one that is `waiting` waits for runs that the stage started, and for no decision (N9).
    """

    attempt = Whole(min_value=1, max_value=2**31 - 1)
    request_digest = Text(max_length=64, required=False)
    status = OneOf(["succeeded", "failed", "waiting"])
    output = AnyJson(required=False)
    error_code = Text(blank=True, max_length=100, default="")
    error_message = Text(blank=True, max_length=64 * 1024, default="")
    traceback = Text(blank=True, max_length=4 * MIB, default="")
    retryable = Flag(required=False)
    context_items = ListOf(child=ContextItem(), max_length=1_000, default=list)
    logs = ListOf(child=LogEntry(), max_length=10_000, default=list)
    usage = JsonObject(max_bytes=16 * 1024, required=False)
    effects = ListOf(child=EffectTold(), max_length=MOST_EFFECTS, default=list)
    checkpoint = LeftBehind(required=False)
    awaits_runs = ListOf(child=Identifier(), min_length=1, max_length=MOST_CHILDREN, required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        if "awaits_runs" in clean and clean["status"] != "waiting":
            return [("awaitsRuns", "belongs to a result that is waiting")]
        if "awaits_runs" in clean and "output" in clean:
            return [("output", "what waits for runs has none yet")]
        return []


class ChildIntent(OfAttempt):
    """The run that a stage wants under its key: inline `stages` with a `name`, or a managed `pipeline` with `input`."""

    key = Text(max_length=KEY, trim=True, control=False)
    name = Text(max_length=NAME, control=False, required=False)
    stages = ListOf(child=StageIntent(), min_length=1, max_length=MOST_STAGES, required=False)
    pipeline = Text(max_length=100, required=False)
    input = JsonObject(max_bytes=INPUT_BYTES, exact=True, required=False)
    environment = Text(max_length=100, required=False)
    on_parent_end = OneOf(OnParentEnd.values, default=OnParentEnd.CANCEL.value)
    follow = OneOf(Follow.values, default=Follow.FORK.value)

    rule = RunIntent.rule


class ChildrenLookedAt(OfAttempt):
    runs = ListOf(child=Identifier(), min_length=1, max_length=MOST_CHILDREN)


class SignalSent(Camel):
    signal = Text(max_length=20, control=False)
    after_seconds = Number(min_value=0, max_value=TEN_YEARS, help_text="since the command began")
    processes = Whole(min_value=0, max_value=2**31 - 1, help_text="to how many it went")


class LeftRunning(Camel):
    """A process that could not be ended; without `pid`: what nobody could look for."""

    pid = Whole(min_value=1, max_value=2**31 - 1, required=False)
    command = Text(blank=True, max_length=1_000, default="")
    why = Text(max_length=1_000)


class Termination(Camel):
    """How the processes of an attempt ended (R39). `complete`: everything is known to have ended."""

    reason = Text(max_length=100, control=False, help_text="why they were ended, such as cancelled, lost, wall_clock")
    signals = ListOf(child=SignalSent(), max_length=20, default=list)
    exit_code = Whole(min_value=0, max_value=2**31 - 1, required=False)
    signal = Text(max_length=20, control=False, required=False, help_text="that ended the command's own process")
    duration_seconds = Number(min_value=0, max_value=TEN_YEARS)
    grace_seconds = Number(min_value=0, max_value=TEN_YEARS, required=False)
    cpu_seconds = Number(min_value=0, max_value=2**53, required=False)
    max_rss_bytes = Whole(min_value=0, max_value=2**63 - 1, required=False)
    processes_seen = Whole(min_value=0, max_value=2**53, required=False)
    left = ListOf(child=LeftRunning(), max_length=200, default=list)
    left_count = Whole(min_value=0, max_value=2**31 - 1, required=False, help_text="where not all are named")
    complete = Flag()
    platform = Text(max_length=100, control=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        if clean["complete"] and (clean["left"] or clean.get("left_count")):
            return [("complete", "it is not complete while something is left")]
        return []


class Terminated(OfAttempt):
    termination = Termination()


class OneOfManyResults(StageResult):
    stage_id = Identifier()


class Results(Camel):
    """Items are checked one by one, so that one bad item spoils no other."""

    results = ListOf(child=AnyJson(), min_length=1, max_length=MOST_RESULTS)


class Acknowledgement(Camel):
    delivery_id = Text(max_length=100)


class Progress(OfAttempt):
    percent = Number(min_value=0, max_value=100, required=False)
    message = Text(blank=True, max_length=1_000, default="")


class LogLines(OfAttempt):
    lines = ListOf(child=LogEntry(), min_length=1, max_length=1_000)


# answers


class StageView(Camel):
    id = Identifier()
    pipeline_id = Identifier()
    stage_name = Text()
    stage_handler_name = Text()
    status = OneOf(StageState.values)
    epoch = Whole(min_value=1, max_value=2**31)
    attempt = Whole(min_value=0, max_value=2**31)
    retry_attempt = Whole(min_value=0, max_value=2**31)
    recovery_count = Whole(min_value=0, max_value=2**31)
    next_retry_at = Moment(allow_null=True)
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    input = Text(allow_null=True)
    output = AnyJson(allow_null=True)
    last_error_code = Text(allow_null=True)
    last_error_message = Text(allow_null=True)
    failure_disposition = Text(allow_null=True)
    depends_on = ListOf(child=Text())
    options = CamelOptions()
    effect_mode = OneOf(EffectMode.values)
    request_digest = Text(allow_null=True)
    is_terminal = Flag()


class Failure(Camel):
    code = Text(blank=True)
    message = Text(blank=True)
    stage_id = Identifier(allow_null=True)


class PipelineView(Camel):
    id = Identifier()
    name = Text()
    status = OneOf(RunStatus.values)
    is_terminal = Flag()
    application_id = Identifier()
    environment = Text()
    release_id = Identifier()
    idempotency_key = Text(allow_null=True)
    trace_id = Text(allow_null=True)
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    deadline_at = Moment(allow_null=True)
    failure = Failure(required=False)
    context_items = ListOf(child=ContextItem())
    keywords = ListOf(child=Keyword())
    stages = ListOf(child=StageView())


class Creation(Camel):
    created = Flag()
    was_existing = Flag()
    pipeline = PipelineView()


class StillOutside(Camel):
    """Something that may still go on outside, and what a person said of it since."""

    item_id = Identifier()
    stage_id = Identifier()
    attempt = Whole(min_value=0, max_value=2**31)
    kind = OneOf(ReconciliationKind.values)
    detail = Text()
    settled_at = Moment(allow_null=True)
    settled_by = Text(allow_null=True)
    note = Text(allow_null=True)


class Cancellation(Camel):
    pipeline = PipelineView()
    reconciliation = ListOf(child=StillOutside())


class GateOutcome(Camel):
    stage_id = Identifier()
    status = OneOf(StageState.values)
    approved = Flag()
    rejection_reason = Text(allow_null=True)


class ApplicationName(Camel):
    id = Identifier()
    name = Text()


class Session(Camel):
    worker_id = Identifier()
    session_token = Text()
    application = ApplicationName()
    lease_seconds = Whole(min_value=1, max_value=3600)
    renew_seconds = Whole(min_value=1, max_value=3600)
    visibility_seconds = Whole(min_value=1, max_value=3600)


class Command(Camel):
    command = OneOf(["pause", "cancel", "drain"])
    stage_id = Identifier(required=False)
    execution_id = Identifier(required=False)


class Commands(Camel):
    commands = ListOf(child=Command())


class LeaseView(Commands):
    acquired = Flag()
    attempt = Whole(min_value=1, max_value=2**31, allow_null=True)
    lease_expires_at = Moment(allow_null=True)
    reason = Text(allow_null=True)


class RenewedLease(LeaseView):
    stage_id = Identifier()
    execution_id = Identifier()


class RenewedLeases(Camel):
    leases = ListOf(child=RenewedLease())


class JobCheckpoint(Camel):
    """What an earlier attempt of the stage left in this epoch, or what a fork was handed."""

    checkpoint_id = Identifier()
    sequence = Whole(min_value=1, max_value=2**31)
    state = AnyJson()


class PinnedBaseline(BaselineOf):
    sha256 = Text()


class JobRecipient(Recipient):
    """To whom the attempt goes: which of those that its stage names, counted from 0."""

    position = Whole(min_value=0, max_value=MOST_RECIPIENTS)


class JobView(Camel):
    delivery_id = Identifier()
    stage_id = Identifier()
    stage_name = Text()
    stage_handler_name = Text()
    pipeline_id = Identifier()
    pipeline_name = Text()
    execution_id = Identifier()
    attempt = Whole(min_value=1, max_value=2**31)
    epoch = Whole(min_value=1, max_value=2**31)
    request_digest = Text()
    input = Text(allow_null=True)
    dependencies = serializers.DictField(child=AnyJson(allow_null=True))
    context_items = ListOf(child=ContextItem())
    timeout_seconds = Number(min_value=0, max_value=TEN_YEARS, allow_null=True)
    effect_mode = OneOf(EffectMode.values)
    effect_protocol = OneOf(EffectProtocol.values)
    idempotency_key = Text()
    deadline_at = Moment(allow_null=True)
    traceparent = Text(allow_null=True)
    lease = LeaseView(required=False)
    recipient = JobRecipient(required=False)
    baseline = ListOf(child=PinnedBaseline(), required=False)
    checkpoint = JobCheckpoint(required=False)
    recovery = AnyJson(required=False)


class Jobs(Camel):
    jobs = ListOf(child=JobView())


class StageStatus(Camel):
    stage_id = Identifier()
    status = OneOf(StageState.values)


class Accepted(Camel):
    accepted = Flag()
    stage_status = OneOf(StageState.values)


class ResultReceipt(Camel):
    spelling = {"errors_": "errors"}  # the bare name is DRF's own

    stage_id = Text(allow_null=True)
    execution_id = Text(allow_null=True)
    accepted = Flag()
    stage_status = OneOf(StageState.values, required=False)
    code = Text(required=False)
    detail = Text(required=False)
    errors_ = serializers.DictField(child=ListOf(child=Text()), required=False, source="errors")


class ResultReceipts(Camel):
    results = ListOf(child=ResultReceipt())


class EarlierEffect(Camel):
    attempt = Whole(min_value=1, max_value=2**31)
    state = OneOf(EffectState.values)
    external_ref = Text()


class EffectAnswer(Camel):
    """`earlier`: how an earlier attempt of the epoch left the effect that is intended now."""

    effect_id = Identifier()
    state = OneOf(EffectState.values)
    earlier = EarlierEffect(required=False)


class EffectAnswers(Camel):
    effects = ListOf(child=EffectAnswer())


class LeftCheckpoint(Camel):
    checkpoint_id = Identifier()
    sequence = Whole(min_value=1, max_value=2**31)


class Acknowledged(Camel):
    delivery_id = Identifier()


class Noted(Camel):
    accepted = Flag()
