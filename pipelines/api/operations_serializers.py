"""The wire shapes of the operations API (contract §3): snake_case, in source 002's words: a run's id is `execution_id`.

Requests first, then answers, each beside the function that builds it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer

from pipelines import audit_chain, terminations
from pipelines.api.operations_endpoint import PlannedVerb, StartingVerb
from pipelines.api.serializers import HANDLER, MOST_APPROVERS, NAME, JobRecipient, Options, Recipient
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
    Text,
    Whole,
    Wrong,
    json_problem,
)
from pipelines.blockers import Blocker
from pipelines.console.differences import Change
from pipelines.context import REDACTED
from pipelines.definitions import DESCRIPTION, Slug
from pipelines.limits import TEN_YEARS
from pipelines.models import (
    Application,
    Attempt,
    AuditHead,
    ChildRun,
    DeadLetter,
    EffectMode,
    Environment,
    Event,
    Follow,
    LogLine,
    OnParentEnd,
    Pipeline,
    Policy,
    PolicyKind,
    PolicyStatus,
    Release,
    Run,
    Stage,
    StageOutput,
    Termination,
    WorkerSession,
)
from pipelines.queries import PolicyView, Progress
from pipelines.release_plan import ReleasePlan
from pipelines.states import (
    AttemptState,
    DeadLetterReason,
    DeadLetterState,
    ReleaseStatus,
    RunStatus,
    SessionState,
    StageState,
)

HUGE = 2**31 - 1
MOST_COUNTED = 10_000  # attempts of a policy: claims count them each time
RETRY_MODES = ("resume", "new_run")
MOST_RUN_RETRIES = 100  # of a run by itself: each may do all of it once more
MONTH = 31 * 86_400  # seconds

# requests


class EnvironmentRequest(Shape):
    """A rung of the ladder. What is left out stays as it is; a new one comes on top, unprotected."""

    slug = Slug()
    rank = Whole(min_value=0, max_value=1_000_000, required=False)
    protected = Flag(required=False)


class ApplicationRequest(Shape):
    name = Text(max_length=100, control=False)


class PipelineRequest(Shape):
    slug = Slug()
    name = Text(max_length=NAME, control=False)
    description = Text(blank=True, max_length=DESCRIPTION, default="")


class ReleaseRequest(Shape):
    """`definition` is checked as a whole, with its own paths in the errors."""

    pipeline = Slug()
    environment = Slug()
    definition = JsonObject(max_bytes=1024 * 1024, exact=True)
    activate = Flag(default=False)
    dry_run = Flag(default=False, help_text="answer what it would change, and register nothing")


class Match(Shape):
    """Which stages a policy targets: all that it names must fit. `error_codes` filters failures, it targets nothing."""

    pipeline = Slug(required=False)
    stage = Text(max_length=NAME, control=False, required=False)
    handler = Text(max_length=HANDLER, control=False, required=False)
    environment = Slug(required=False)
    error_codes = ListOf(child=Text(max_length=100), max_length=100, required=False)


class RetryRuleShape(Shape):
    """How often and how far apart, as in a stage's options (P31–P39)."""

    max_retries = Whole(min_value=0, max_value=10_000)
    retry_interval = Number(min_value=0, max_value=TEN_YEARS)
    backoff = OneOf(("fixed", "linear", "exponential"), required=False)
    max_retry_interval = Number(min_value=0, max_value=TEN_YEARS, required=False)
    jitter = Flag(required=False)


class TimeoutRuleShape(Shape):
    seconds = Number(min_value=0.001, max_value=TEN_YEARS)


class RateRuleShape(Shape):
    """So many dispatches in any stretch of so many seconds."""

    count = Whole(min_value=1, max_value=MOST_COUNTED)
    per_seconds = Number(min_value=0.1, max_value=MONTH)


class ConcurrencyRuleShape(Shape):
    """So many attempts at once."""

    max_active = Whole(min_value=1, max_value=MOST_COUNTED)


class RunRetryRuleShape(Shape):
    """Whether a run that failed is resumed at its failed stages or made anew, how often over all that is made of it,
    and how far apart."""

    mode = OneOf(RETRY_MODES, required=False)
    max_retries = Whole(min_value=1, max_value=MOST_RUN_RETRIES)
    retry_interval = Number(min_value=1, max_value=MONTH)
    backoff = OneOf(("fixed", "linear", "exponential"), required=False)
    max_retry_interval = Number(min_value=1, max_value=MONTH, required=False)
    jitter = Flag(required=False)


RULES: dict[str, type[Shape]] = {
    PolicyKind.RETRY: RetryRuleShape,
    PolicyKind.TIMEOUT: TimeoutRuleShape,
    PolicyKind.RATE: RateRuleShape,
    PolicyKind.CONCURRENCY: ConcurrencyRuleShape,
    PolicyKind.RUN_RETRY: RunRetryRuleShape,
}


class PolicyChange(Shape):
    """What of a policy may change; its kind never does."""

    name = Text(max_length=NAME, control=False, required=False)
    match = Match(required=False)
    rule_ = JsonObject(max_bytes=10_000, required=False, source="rule")
    status = OneOf(PolicyStatus.values, required=False)

    spelling = {"rule_": "rule"}  # the bare name is the shape's own


class PolicyRequest(PolicyChange):
    """A policy. `rule` holds what its kind knows: the options of a retry; `seconds` of a timeout; `count` and
    `per_seconds` of a rate; `max_active` of a concurrency; of a run retry `mode` and how often and how far apart, as of
    a retry."""

    name = Text(max_length=NAME, control=False)
    kind = OneOf(PolicyKind.values)
    match = Match(default=dict)
    rule_ = JsonObject(max_bytes=10_000, source="rule")
    status = OneOf(PolicyStatus.values, default=PolicyStatus.ACTIVE.value)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        return policy_problems(clean["kind"], clean["match"], clean["rule"])


def policy_problems(kind: str, match: Mapping[str, Any], rule: Any) -> Problems:
    """What is wrong with a policy's rule for its kind."""
    checked = RULES[kind].check(rule)
    problems = checked.below("rule") if type(checked) is Wrong else []
    if match.get("error_codes") and kind not in (PolicyKind.RETRY, PolicyKind.RUN_RETRY):
        problems.append(("match.error_codes", "only a retry policy looks at error codes"))
    if kind == PolicyKind.RUN_RETRY:
        told = "a policy for whole runs targets pipeline and environment"
        problems += [(f"match.{name}", told) for name in ("stage", "handler") if match.get(name)]
    return problems


class PauseRequest(PlannedVerb):
    """Nothing more is handed out, until somebody resumes the run or `until` has come."""

    until = Moment(required=False, help_text="when the engine resumes it by itself")


class RetryRequest(StartingVerb):
    """A new epoch of a stage, alone or with everything behind it. `input` replaces the stage's own from now on."""

    scope = OneOf(("stage", "stage_and_downstream"), default="stage")
    input = Text(blank=True, max_bytes=256 * 1024, required=False)
    acknowledge_effects = Flag(default=False)


class SkipRequest(PlannedVerb):
    """Leaves a stage out on purpose. `output`, where given, is what its dependants get."""

    output = AnyJson(required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        # unlike a worker's, it stands in the audit event too, whose JSON the database reads
        problem = json_problem(clean.get("output"))
        return [("output", problem)] if problem else []


class RedriveRequest(StartingVerb):
    acknowledge_effects = Flag(default=False)


# answers: runs


class FailureView(Shape):
    code = Text(blank=True)
    message = Text(blank=True)
    stage_id = Identifier(allow_null=True)


class ProgressView(Shape):
    """Where a run stands; `stage` is the one that speaks for it: at fault, active or next."""

    stages = Whole(min_value=0, max_value=HUGE)
    done = Whole(min_value=0, max_value=HUGE)
    stage = Text(blank=True)
    stage_status = Text(blank=True)


class ExecutionItem(Shape):
    execution_id = Identifier()
    name = Text(blank=True)
    status = OneOf(RunStatus.values)
    is_terminal = Flag()
    pause_reason = Text(allow_null=True)
    paused_until = Moment(allow_null=True)
    workspace_id = Identifier()
    application_id = Identifier()
    application = Text()
    environment = Text()
    pipeline = Text(allow_null=True)
    release_id = Identifier()
    recovered_from = Identifier(allow_null=True)
    parent_id = Identifier(allow_null=True, help_text="the run whose stage started it")
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    updated_at = Moment()
    deadline_at = Moment(allow_null=True)
    failure = FailureView(allow_null=True)


class ListedExecution(ExecutionItem):
    progress = ProgressView()


class WordView(Shape):
    key = Text()
    value = Text(blank=True)


class ContextItemView(WordView):
    is_sensitive = Flag()


class ChangedView(Shape):
    """Something that a run pinned and that is another one by now."""

    what = Text(help_text="definition or baseline")
    name = Text(blank=True)
    pinned = Text()
    found = Text()


class RunRetryView(Shape):
    """What was decided when the run last failed under a policy for whole runs, and what became of that. `number`: the
    how-manieth of the run and all that it was made out of. `held_by`: the blackout that it waits for. `made`: the run
    that it was made anew as."""

    id = Identifier()
    status = Text(help_text="due, declined, done, refused or called_off")
    mode = OneOf(RETRY_MODES)
    number = Whole(min_value=1, max_value=HUGE)
    max_retries = Whole(min_value=1, max_value=MOST_RUN_RETRIES)
    policy_id = Identifier()
    policy = Text()
    explanation = Text()
    failed_at = Moment()
    due_at = Moment(allow_null=True)
    held_by = Text(allow_null=True)
    ended_at = Moment(allow_null=True)
    ended_by = Text(allow_null=True)
    code = Text(allow_null=True)
    why = Text(allow_null=True)
    disposition = Text(allow_null=True)
    operations = ListOf(child=Identifier())
    made = Identifier(allow_null=True)


class ExecutionView(ExecutionItem):
    """`draining`: attempts that still run in a run that is pausing; it is paused when there is none."""

    draining = Whole(min_value=0, max_value=HUGE)
    inputs = AnyJson(allow_null=True)
    context_items = ListOf(child=ContextItemView())
    keywords = ListOf(child=WordView())
    trace_id = Text(allow_null=True)
    started_by = Text(allow_null=True)
    definition_changed = ListOf(child=ChangedView())
    run_retry = RunRetryView(allow_null=True)


def execution_item(run: Run) -> dict[str, Any]:
    failed = run.failure_code or run.failure_message or run.failure_stage
    return {
        "execution_id": str(run.id),
        "name": run.name,
        "status": run.status,
        "is_terminal": run.status in ("completed", "failed", "cancelled"),
        "pause_reason": run.pause_reason or None,
        "paused_until": time(run.paused_until),
        "workspace_id": str(run.workspace_id),
        "application_id": str(run.application_id),
        "application": run.application.name,
        "environment": run.environment.slug,
        "pipeline": run.pipeline.slug if run.pipeline else None,
        "release_id": str(run.release_id),
        "recovered_from": _id(run.recovered_from_id),
        "parent_id": _id(run.parent_id),
        "created_at": time(run.created_at),
        "started_at": time(run.started_at),
        "finished_at": time(run.finished_at),
        "updated_at": time(run.updated_at),
        "deadline_at": time(run.deadline_at),
        "failure": {
            "code": run.failure_code,
            "message": run.failure_message,
            "stage_id": _id(run.failure_stage),
        }
        if failed
        else None,
    }


def listed_execution(run: Run, progress: Progress) -> dict[str, Any]:
    told = {
        "stages": progress.total,
        "done": progress.done,
        "stage": progress.stage,
        "stage_status": progress.stage_state,
    }
    return {**execution_item(run), "progress": told}


_run_retries: list[Callable[[Run], dict[str, Any] | None]] = []


def tells_run_retries(tell: Callable[[Run], dict[str, Any] | None]) -> None:
    """From now on `tell` is asked whether a run is retried by itself."""
    if tell not in _run_retries:
        _run_retries.append(tell)


def execution_view(run: Run, draining: int) -> dict[str, Any]:
    items = [
        {
            "key": item.key,
            "value": REDACTED if item.is_sensitive else item.value,
            "is_sensitive": item.is_sensitive,
        }
        for item in run.context_items.all()
    ]
    return {
        **execution_item(run),
        "draining": draining,
        "inputs": _inputs(run),
        "context_items": items,
        "keywords": run.keywords,
        "trace_id": run.trace_id or None,
        "started_by": run.started_by.get_username() if run.started_by else None,
        "definition_changed": run.changed or [],
        "run_retry": next((told for tell in _run_retries if (told := tell(run))), None),
    }


def _inputs(run: Run) -> dict[str, Any] | None:
    """What the run was given; in a fork also `_recovery`, which says what it was made out of (O21)."""
    given = None if run.input is None else json.loads(run.input)
    return given if run.recovery is None else {**(given or {}), "_recovery": run.recovery}


class ChildView(Shape):
    """A run that a stage started. `execution_id` is the run that counts, `started_execution_id` the one that was
    started; `current` is false where a later epoch began anew under the same key. `taken_over`: the run that this one
    was forked from had started it."""

    id = Identifier()
    stage_id = Identifier()
    stage = Text()
    key = Text()
    execution_id = Identifier()
    started_execution_id = Identifier()
    name = Text(blank=True)
    status = OneOf(RunStatus.values)
    epoch = Whole(min_value=1, max_value=HUGE)
    on_parent_end = OneOf(OnParentEnd.values)
    follow = OneOf(Follow.values)
    taken_over = Flag()
    current = Flag()
    awaited = Flag()
    created_at = Moment()
    finished_at = Moment(allow_null=True)


def child_view(link: ChildRun) -> dict[str, Any]:
    return {
        "id": str(link.id),
        "stage_id": str(link.stage_id),
        "stage": link.stage.name,
        "key": link.key,
        "execution_id": str(link.run_id),
        "started_execution_id": str(link.started_id),
        "name": link.run.name,
        "status": link.run.status,
        "epoch": link.epoch,
        "on_parent_end": link.on_parent_end,
        "follow": link.follow,
        "taken_over": link.taken_over,
        "current": link.is_current,
        "awaited": link.awaited,
        "created_at": time(link.created_at),
        "finished_at": time(link.run.finished_at),
    }


class ApprovalView(Shape):
    when = Text()
    approver_role = Text(required=False)
    count = Whole(min_value=1, max_value=MOST_APPROVERS, required=False)
    expires_in = Whole(min_value=1, max_value=TEN_YEARS, required=False)
    require_person = Flag(required=False)


class StageView(Shape):
    """`id` and `stage_id` are the same: lists name their items by `id`, other answers name a stage by `stage_id`."""

    id = Identifier()
    stage_id = Identifier()
    execution_id = Identifier()
    name = Text()
    handler = Text()
    description = Text(blank=True)
    status = OneOf(StageState.values)
    is_terminal = Flag()
    epoch = Whole(min_value=1, max_value=HUGE)
    attempt = Whole(min_value=0, max_value=HUGE)
    retry_count = Whole(min_value=0, max_value=HUGE)
    recovery_count = Whole(min_value=0, max_value=HUGE)
    needs = ListOf(child=Text())
    run_next_if_failed = Flag()
    effect_mode = OneOf(EffectMode.values)
    approval = ApprovalView(allow_null=True)
    recipients = ListOf(child=Recipient(), help_text="to whom it may be sent, in order of fallback; none: to anyone")
    options = Options()
    next_retry_at = Moment(allow_null=True)
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    input = Text(allow_null=True, blank=True)
    output = AnyJson(allow_null=True)
    error_code = Text(allow_null=True)
    error_message = Text(allow_null=True)
    failure_disposition = Text(allow_null=True)
    stale = Flag()


def stage_view(stage: Stage, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "id": str(stage.id),
        "stage_id": str(stage.id),
        "execution_id": str(stage.run_id),
        "name": stage.name,
        "handler": stage.handler,
        "description": stage.description,
        "status": stage.state,
        "is_terminal": stage.state in ("completed", "failed", "skipped", "cancelled"),
        "epoch": stage.epoch,
        "attempt": stage.attempt_number,
        "retry_count": stage.retry_count,
        "recovery_count": stage.recovery_count,
        "needs": [names[position] for position in stage.depends_on],
        "run_next_if_failed": stage.run_next_if_failed,
        "effect_mode": stage.effect_mode,
        "approval": stage.approval,
        "recipients": stage.recipients or [],
        "options": stage.options,
        "next_retry_at": time(stage.available_at) if stage.state == StageState.RETRY_SCHEDULED else None,
        "started_at": time(stage.started_at),
        "finished_at": time(stage.finished_at),
        "input": stage.input,
        "output": json.loads(stage.output.body) if stage.output else None,
        "error_code": stage.last_error_code or None,
        "error_message": stage.last_error_message or None,
        "failure_disposition": stage.failure_disposition or None,
        "stale": stage.stale,
    }


class AttemptView(Shape):
    id = Identifier()
    attempt_id = Identifier()
    stage_id = Identifier()
    stage = Text()
    number = Whole(min_value=1, max_value=HUGE)
    epoch = Whole(min_value=1, max_value=HUGE)
    status = OneOf(AttemptState.values)
    worker = Text(blank=True)
    session_id = Identifier(allow_null=True)
    request_digest = Text(blank=True)
    recipient = JobRecipient(allow_null=True)
    dispatched_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    lease_expires_at = Moment(allow_null=True)
    error_code = Text(allow_null=True)
    error_message = Text(allow_null=True)
    traceback = Text(allow_null=True)
    cause = Text(allow_null=True)
    decision = AnyJson(allow_null=True)
    usage = AnyJson(allow_null=True)
    usage_complete = Flag(allow_null=True, help_text="false wherever its worker did not say that nothing is missing")
    termination = AnyJson(allow_null=True, help_text="how its processes ended, and `summary` as a sentence")
    late_evidence = Whole(min_value=0, max_value=HUGE)


def attempt_view(attempt: Attempt) -> dict[str, Any]:
    active = attempt.state in (AttemptState.DISPATCHED, AttemptState.RUNNING)
    return {
        "id": str(attempt.id),
        "attempt_id": str(attempt.id),
        "stage_id": str(attempt.stage_id),
        "stage": attempt.stage.name,
        "number": attempt.number,
        "epoch": attempt.epoch,
        "status": attempt.state,
        "worker": attempt.worker,
        "session_id": _id(attempt.session_id),
        "request_digest": attempt.request_digest,
        "recipient": attempt.recipient,
        "dispatched_at": time(attempt.dispatched_at),
        "started_at": time(attempt.started_at),
        "finished_at": time(attempt.finished_at),
        "lease_expires_at": time(attempt.expires_at) if active else None,
        "error_code": attempt.error_code or None,
        "error_message": attempt.error_message or None,
        "traceback": attempt.traceback or None,
        "cause": attempt.cause or None,
        "decision": attempt.decision,
        "usage": attempt.usage,
        "usage_complete": None if attempt.usage is None else attempt.usage.get("complete") is True,
        "termination": _termination(attempt),
        "late_evidence": len(attempt.late_evidence.all()),
    }


def _termination(attempt: Attempt) -> dict[str, Any] | None:
    told: Termination | None = getattr(attempt, "termination", None)
    if told is None:
        return None
    return {**told.body, "summary": terminations.sentence(told.body), "told_at": time(told.at)}


class OutputView(Shape):
    """One output of a stage. `attempt_id` is null where a person gave it, or where it is `restored_from` the source of
    a fork; `current`: what later stages get now."""

    id = Identifier()
    epoch = Whole(min_value=1, max_value=HUGE)
    attempt_id = Identifier(allow_null=True)
    restored_from = Identifier(allow_null=True)
    at = Moment()
    current = Flag()
    digest = Text()
    size = Whole(min_value=0, max_value=HUGE)
    output = AnyJson(allow_null=True)


def output_view(output: StageOutput, *, current: bool) -> dict[str, Any]:
    return {
        "id": str(output.id),
        "epoch": output.epoch,
        "attempt_id": _id(output.attempt),
        "restored_from": _id(output.restored_from),
        "at": time(output.at),
        "current": current,
        "digest": output.digest,
        "size": output.size,
        "output": json.loads(output.body),
    }


class EventView(Shape):
    id = Whole(min_value=1, max_value=2**63 - 1)
    at = Moment()
    kind = Text()
    stage_id = Identifier(allow_null=True)
    attempt_id = Identifier(allow_null=True)
    from_status = Text(allow_null=True)
    to_status = Text(allow_null=True)
    actor = Text(allow_null=True)
    reason = Text(allow_null=True)
    data_ = AnyJson(allow_null=True, source="data")

    spelling = {"data_": "data"}


def event_view(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": time(event.at),
        "kind": event.kind,
        "stage_id": _id(event.stage),
        "attempt_id": _id(event.attempt),
        "from_status": event.from_state or None,
        "to_status": event.to_state or None,
        "actor": event.actor or None,
        "reason": event.reason or None,
        "data": event.data,
    }


class LogLineView(Shape):
    id = Whole(min_value=1, max_value=2**63 - 1)
    at = Moment()
    level = Text()
    message = Text(blank=True)
    fields_ = AnyJson(source="fields", help_text="what was said besides the message, by name")
    stage_id = Identifier()
    stage = Text()
    attempt_id = Identifier()
    attempt = Whole(min_value=1, max_value=HUGE)

    spelling = {"fields_": "fields"}


def log_line_view(line: LogLine) -> dict[str, Any]:
    return {
        "id": line.id,
        "at": time(line.at),
        "level": line.level,
        "message": line.message,
        "fields": line.fields,
        "stage_id": str(line.attempt.stage_id),
        "stage": line.attempt.stage.name,
        "attempt_id": str(line.attempt_id),
        "attempt": line.attempt.number,
    }


class BlockerView(Shape):
    """`next_look` is when the engine looks again by itself; without it a person or a worker must act."""

    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    holder = Text()
    cause = Text()
    next_look = Moment(allow_null=True)


def blocker_view(blocker: Blocker) -> dict[str, Any]:
    return {
        "stage_id": _id(blocker.stage_id),
        "stage": blocker.stage or None,
        "holder": blocker.holder,
        "cause": blocker.cause,
        "next_look": time(blocker.next_look),
    }


class Signal(Shape):
    """The answer to pause and resume: exactly these two fields (O9, O10)."""

    execution_id = Identifier()
    status = Text()


# answers: what is configured


class EnvironmentView(Shape):
    id = Identifier()
    slug = Text()
    rank = Whole(min_value=0, max_value=HUGE)
    protected = Flag()


def environment_view(environment: Environment) -> dict[str, Any]:
    return {
        "id": str(environment.id),
        "slug": environment.slug,
        "rank": environment.rank,
        "protected": environment.protected,
    }


class ApplicationView(Shape):
    id = Identifier()
    name = Text()


def application_view(application: Application) -> dict[str, Any]:
    return {"id": str(application.id), "name": application.name}


class PipelineView(Shape):
    id = Identifier()
    slug = Text()
    name = Text()
    description = Text(blank=True)
    created_at = Moment()


def pipeline_view(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "id": str(pipeline.id),
        "slug": pipeline.slug,
        "name": pipeline.name,
        "description": pipeline.description,
        "created_at": time(pipeline.created_at),
    }


class MaterialChange(Shape):
    """What a release sends to others, or on other terms, than what was in force."""

    stage = Text()
    what = Text(help_text="organisation, service, billing, retention, added, removed or order")
    before = Text(blank=True)
    after = Text(blank=True)


class ReleaseView(Shape):
    id = Identifier()
    pipeline = Text()
    environment = Text()
    digest = Text()
    status = OneOf(ReleaseStatus.values)
    created_at = Moment()
    activated_at = Moment(allow_null=True)
    needs_review = Flag()
    changes = ListOf(child=MaterialChange())
    reviewed_at = Moment(allow_null=True)
    source_digest = Text(blank=True, help_text="SHA-256 of the code that it was deployed from")


class WholeRelease(ReleaseView):
    definition = AnyJson()


class PlaceChanged(Shape):
    """A place in a definition. Values are JSON texts; null where there is none on that side."""

    path = Text()
    before = Text(allow_null=True)
    after = Text(allow_null=True)


class StageChanged(Shape):
    stage = Text()
    places = ListOf(child=PlaceChanged())


class ReleasePlanView(Shape):
    """What registering a definition would change, against what is in force there or was last. `release_id` and `status`
    are of the same definition, where it is registered already. `code` is a unified difference, null where it is too
    long. `changes` must be reviewed by another person before it is in force.
    """

    pipeline = Text()
    environment = Text()
    digest = Text()
    source_digest = Text(blank=True)
    is_new_pipeline = Flag()
    release_id = Identifier(allow_null=True)
    status = OneOf(ReleaseStatus.values, allow_null=True)
    compared_with = Text(allow_null=True, help_text="the digest of the release in force, else of the last one")
    is_in_force = Flag(help_text="whether what it is compared with is in force")
    added = ListOf(child=Text())
    removed = ListOf(child=Text())
    changed = ListOf(child=StageChanged())
    other = ListOf(child=PlaceChanged())
    code = ListOf(child=Text(), allow_null=True)
    changes = ListOf(child=MaterialChange())


RELEASE_OR_PLAN = PolymorphicProxySerializer(
    "ReleaseViewOrPlan", [ReleaseView, ReleasePlanView], resource_type_field_name=None
)


def release_plan(found: ReleasePlan, pipeline: str, environment: str, *, is_new: bool, source: str) -> dict[str, Any]:
    compared = found.compared
    return {
        "pipeline": pipeline,
        "environment": environment,
        "digest": found.digest,
        "source_digest": source,
        "is_new_pipeline": is_new,
        "release_id": str(found.known.id) if found.known else None,
        "status": found.known.status if found.known else None,
        "compared_with": found.before.digest if found.before else None,
        "is_in_force": found.before is not None and found.before.status == ReleaseStatus.ACTIVE,
        "added": compared.added,
        "removed": compared.removed,
        "changed": [{"stage": stage, "places": _places(changes)} for stage, changes in compared.stages.items()],
        "other": _places(compared.other),
        "code": compared.code,
        "changes": found.changes,
    }


def _places(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [{"path": one.path, "before": one.before, "after": one.after} for one in changes]


def release_view(release: Release) -> dict[str, Any]:
    return {
        "id": str(release.id),
        "pipeline": release.pipeline.slug if release.pipeline else "",  # inline releases are not listed
        "environment": release.environment.slug if release.environment else "",
        "digest": release.digest,
        "status": release.status,
        "created_at": time(release.created_at),
        "activated_at": time(release.activated_at),
        "needs_review": release.needs_review,
        "changes": release.material_changes or [],
        "reviewed_at": time(release.reviewed_at),
        "source_digest": release.source_digest,
    }


def whole_release(release: Release) -> dict[str, Any]:
    return {**release_view(release), "definition": json.loads(release.definition)}


class PolicyItem(Shape):
    id = Identifier()
    name = Text()
    kind = OneOf(PolicyKind.values)
    match = Match()
    rule_ = AnyJson(source="rule")
    status = OneOf(PolicyStatus.values)
    created_at = Moment()

    spelling = {"rule_": "rule"}


def policy_item(policy: Policy) -> dict[str, Any]:
    return {
        "id": str(policy.id),
        "name": policy.name,
        "kind": policy.kind,
        "match": policy.match,
        "rule": policy.rule,
        "status": policy.status,
        "created_at": time(policy.created_at),
    }


class EffectivePolicy(Shape):
    kind = OneOf(PolicyKind.values)
    winner = PolicyItem(allow_null=True)
    shadowed = ListOf(child=PolicyItem())
    reason = Text()


class EffectivePolicies(Shape):
    stage_id = Identifier()
    policies = ListOf(child=EffectivePolicy())


def effective_policy(view: PolicyView) -> dict[str, Any]:
    return {
        "kind": view.kind,
        "winner": policy_item(view.winner) if view.winner else None,
        "shadowed": [policy_item(policy) for policy in view.shadowed],
        "reason": view.reason,
    }


# answers: other lists


class DeadLetterView(Shape):
    id = Identifier()
    execution_id = Identifier()
    stage_id = Identifier()
    stage = Text()
    handler = Text()
    execution_name = Text(blank=True)
    epoch = Whole(min_value=1, max_value=HUGE)
    reason = OneOf(DeadLetterReason.values)
    error_code = Text(allow_null=True)
    error_message = Text(allow_null=True)
    status = OneOf(DeadLetterState.values)
    opened_at = Moment()
    closed_at = Moment(allow_null=True)


def dead_letter_view(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": str(letter.id),
        "execution_id": str(letter.run_id),
        "stage_id": str(letter.stage_id),
        "stage": letter.stage.name,
        "handler": letter.stage.handler,
        "execution_name": letter.run.name,
        "epoch": letter.epoch,
        "reason": letter.reason,
        "error_code": letter.error_code or None,
        "error_message": (letter.stage.last_error_message or None) if letter.epoch == letter.stage.epoch else None,
        "status": letter.state,
        "opened_at": time(letter.opened_at),
        "closed_at": time(letter.closed_at),
    }


class WorkerView(Shape):
    id = Identifier()
    worker = Text(blank=True)
    instance_id = Text(allow_null=True)
    application = Text()
    environment = Text(allow_null=True)
    status = OneOf(SessionState.values)
    live = Flag()
    handlers = ListOf(child=Text())
    worker_version = Text(allow_null=True)
    sdk_version = Text(allow_null=True)
    host_name = Text(allow_null=True)
    pid = Whole(min_value=0, max_value=HUGE, allow_null=True)
    started_at = Moment()
    last_seen_at = Moment()
    ended_at = Moment(allow_null=True)


def worker_view(session: WorkerSession, *, live: bool) -> dict[str, Any]:
    return {
        "id": str(session.id),
        "worker": session.worker_name,
        "instance_id": session.instance_id or None,
        "application": session.application.name if session.application else "",
        "environment": session.environment.slug if session.environment else None,
        "status": session.state,
        "live": live,
        "handlers": session.handlers,
        "worker_version": session.worker_version or None,
        "sdk_version": session.sdk_version or None,
        "host_name": session.host_name or None,
        "pid": session.pid,
        "started_at": time(session.started_at),
        "last_seen_at": time(session.last_seen_at),
        "ended_at": time(session.ended_at),
    }


class AuditEventView(Shape):
    id = Identifier()
    at = Moment()
    sentence = Text(help_text="the event in words: who, what, where, and why; to read, not to parse")
    action = Text()
    outcome = Text()
    code = Text(allow_null=True)
    actor = Text(blank=True)
    channel = Text()
    on_behalf_of = Text(allow_null=True)
    execution_id = Identifier(allow_null=True)
    stage_id = Identifier(allow_null=True)
    reason = Text(allow_null=True)
    before = AnyJson(allow_null=True, help_text="the states that the action found; null where it looked at none")
    after = AnyJson(allow_null=True, help_text="the states that it left behind; null for a refusal")
    plan_digest = Text(allow_null=True)
    request_id = Text(allow_null=True)
    data_ = AnyJson(source="data")

    spelling = {"data_": "data"}


class AuditHeadView(Shape):
    id = Text()
    kind = OneOf(["recourse.audit_head"])
    workspace_id = Identifier()
    position = Whole(min_value=1, max_value=2**63 - 1)
    hash = Text()
    sealed_at = Moment()
    algorithm = Text()
    key_id = Text()
    signature = Text()


def audit_head_view(head: AuditHead) -> dict[str, Any]:
    return {"id": str(head.id), **audit_chain.head_of(head).document()}


def listed(item: type[Shape]) -> type[Shape]:
    """The page of a list of such items, for OpenAPI."""
    return type(
        f"{item.__name__}Page",
        (Shape,),
        {
            "next": Text(allow_null=True),
            "previous": Text(allow_null=True),
            "results": ListOf(child=item()),
            "__doc__": "One page of a list, with the URLs of its neighbours.",
        },
    )


def time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _id(found: uuid.UUID | None) -> str | None:
    return str(found) if found else None
