"""The wire shapes of operations: what was asked for, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer

from pipelines.api.operations_serializers import HUGE, time
from pipelines.api.shapes import AnyJson, Flag, Identifier, JsonObject, ListOf, Moment, OneOf, Shape, Text, Whole
from pipelines.models import ReconciliationKind, Run
from pipelines.states import DeadLetterState, EffectClass, RunStatus, StageState
from recovery import run_retry_rows
from recovery.models import Operation, RunRetry
from recovery.operations import Done
from recovery.states import Disposition, OperationKind, OperationState


class ReasonView(Shape):
    """Why a verdict is what it is; the worst reason of all decides."""

    disposition = OneOf(Disposition.values)
    code = Text()
    text = Text()
    stage = Text(allow_null=True)
    effect_id = Identifier(allow_null=True)


class OperationView(Shape):
    id = Identifier()
    operation_id = Identifier()
    kind = OneOf(OperationKind.values)
    execution_id = Identifier()
    stage_id = Identifier(allow_null=True)
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    requested_by = Text()
    channel = Text()
    reason = Text(allow_null=True)
    reasons = ListOf(child=ReasonView())
    plan_digest = Text(allow_null=True)
    target_execution_id = Identifier(allow_null=True)
    resolved_by = Text(allow_null=True)
    created_at = Moment()


def operation_view(operation: Operation) -> dict[str, Any]:
    return {
        "id": str(operation.id),
        "operation_id": str(operation.id),
        "kind": operation.kind,
        "execution_id": str(operation.run_id),
        "stage_id": str(operation.stage_id) if operation.stage_id else None,
        "status": operation.state,
        "disposition": operation.disposition,
        "requested_by": operation.asker,
        "channel": operation.channel,
        "reason": operation.reason or None,
        "reasons": operation.reasons,
        "plan_digest": operation.plan_digest or None,
        "target_execution_id": str(operation.target) if operation.target else None,
        "resolved_by": operation.resolved_by.get_username() if operation.resolved_by else None,
        "created_at": time(operation.created_at),
    }


class LineView(Shape):
    """One stage in a plan: what it is, and what it will be at once. Without an `action` it follows from the others."""

    stage = Text()
    was = Text(blank=True, help_text="blank: the source has no such stage")
    to = OneOf(StageState.values)
    epoch = Whole(min_value=1, max_value=HUGE)
    why = Text()
    action = Text(allow_null=True)
    output_digest = Text(allow_null=True)
    stale = Flag()


class DifferenceView(Shape):
    """What the release that will run has otherwise: `what` is added, removed, or the name of a field."""

    stage = Text()
    what = Text()
    before = AnyJson(allow_null=True)
    after = AnyJson(allow_null=True)


class MayRepeatView(Shape):
    """What may be done a second time outside. Of a stage that never declares what it does only the stage is known."""

    stage = Text()
    effect_class = OneOf(EffectClass.values, allow_null=True)
    state = Text()
    step_id = Text(allow_null=True)
    idempotency_key = Text(allow_null=True)
    effect_id = Identifier(allow_null=True)

    spelling = {"effect_class": "class"}


class AgreementView(Shape):
    """Who must agree: so many people of this role or a higher one (`roles`), never the one who asks."""

    role = Text()
    roles = ListOf(child=Text())
    count = Whole(min_value=1, max_value=HUGE)
    expires_in = Whole(min_value=1, max_value=HUGE, allow_null=True, help_text="seconds; null: it may wait for ever")
    why = Text()


class BlackoutHolds(Shape):
    """What lets nothing start now. `until` is when nothing holds any more; null: no end is in sight."""

    id = Identifier()
    name = Text()
    reason = Text(blank=True)
    is_freeze = Flag()
    by = Text(allow_null=True)
    since = Moment(allow_null=True)
    until = Moment(allow_null=True)
    unknown_zone = Text(
        allow_null=True, help_text="its time zone, where the database does not know it: it holds always"
    )


class LaneStands(Shape):
    """The lane in which the run will be held until it is its turn, at once where there is room and none waits before
    it. `inside` runs are in, of at most `capacity`; counts end at 1,000."""

    capacity = Whole(min_value=0, max_value=HUGE, allow_null=True)
    is_open = Flag(help_text="false: it lets nothing in now, as its backfill is paused or being cancelled")
    is_background = Flag(help_text="a backfill's; else its trigger's own")
    inside = Whole(min_value=0, max_value=HUGE)
    waiting = Whole(min_value=0, max_value=HUGE)
    text = Text()


class PlanView(Shape):
    """All of what a verb would do; nothing was changed. Its digest, told with the verb, holds the verb to it."""

    kind = OneOf(OperationKind.values)
    execution_id = Identifier()
    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    choices = JsonObject(max_bytes=HUGE)
    kept = ListOf(child=LineView())
    run_again = ListOf(child=LineView())
    then = ListOf(child=LineView())
    added = ListOf(child=Text())
    removed = ListOf(child=Text())
    differences = ListOf(child=DifferenceView())
    may_repeat = ListOf(child=MayRepeatView())
    disposition = OneOf(Disposition.values)
    reasons = ListOf(child=ReasonView())
    approvals = ListOf(child=AgreementView())
    environment = Text()
    source_release_id = Identifier(allow_null=True)
    release_id = Identifier(allow_null=True)
    release_changed = Flag()
    checkpoint_id = Identifier(allow_null=True)
    goes_on_outside = ListOf(child=Text())
    ends_too = ListOf(child=Text(), required=False, help_text="runs that it started, which are cancelled with it")
    plan_digest = Text()
    blackout = BlackoutHolds(
        allow_null=True, required=False, help_text="while it holds an override_reason is needed; no part of the digest"
    )
    lane = LaneStands(
        allow_null=True, required=False, help_text="where the run will wait for its turn; no part of the digest"
    )


def or_plan(answer: type[Shape]) -> Any:
    """A verb's answer as OpenAPI tells it: what was done or, of a dry run, the plan."""
    return PolymorphicProxySerializer(f"{answer.__name__}OrPlan", [answer, PlanView], resource_type_field_name=None)


class AskedAnswer(Shape):
    """A request that others must agree to before anything is done; its id in `/v1/approvals` is the operation's."""

    operation_id = Identifier()
    execution_id = Identifier()
    stage_id = Identifier(allow_null=True)
    status = OneOf(OperationState.values)
    disposition = OneOf(Disposition.values)
    replayed = Flag()
    plan_digest = Text(allow_null=True)


class VerbAnswer(AskedAnswer):
    """What every verb that was carried out answers at least."""

    execution_status = OneOf(RunStatus.values)


def or_asked(answer: type[Shape]) -> dict[int, Any]:
    """The answers of a verb that others may have to agree to."""
    return {200: or_plan(answer), 202: AskedAnswer}


class StageVerbAnswer(VerbAnswer):
    stage_status = OneOf(StageState.values)
    epoch = Whole(min_value=1, max_value=HUGE, required=False)


class LetterVerbAnswer(VerbAnswer):
    dead_letter_status = OneOf(DeadLetterState.values)
    stage_status = OneOf(StageState.values, required=False)
    epoch = Whole(min_value=1, max_value=HUGE, required=False)


class StillOutside(Shape):
    """Something that may still go on outside, and what a person said of it since."""

    item_id = Identifier()
    stage_id = Identifier()
    attempt = Whole(min_value=0, max_value=HUGE)
    kind = OneOf(ReconciliationKind.values)
    detail = Text()
    settled_at = Moment(allow_null=True)
    settled_by = Text(allow_null=True)
    note = Text(allow_null=True)


class CancelAnswer(VerbAnswer):
    """`status` is the run's: cancelled. `reconciliation` lists what may still go on outside."""

    status = OneOf([RunStatus.CANCELLED.value])
    reconciliation = ListOf(child=StillOutside())


def verb_answer(done: Done) -> dict[str, Any]:
    """A verb's answer: the fixed fields, and what the verb itself has to tell."""
    told = {("execution_status" if name == "run_status" else name): value for name, value in done.result.items()}
    return {
        "operation_id": str(done.operation_id),
        "execution_id": str(done.run_id),
        "stage_id": str(done.stage_id) if done.stage_id else None,
        "status": done.status,
        "disposition": done.disposition,
        "replayed": done.replayed,
        "plan_digest": done.plan_digest or None,
        **told,
    }


def cancel_answer(done: Done) -> dict[str, Any]:
    """A cancel's answer, with the reconciliation list in this API's spelling."""
    items = [_still_outside(item) for item in done.result["reconciliation"]]
    return {**verb_answer(done), "status": RunStatus.CANCELLED.value, "reconciliation": items}


def _still_outside(item: Mapping[str, Any]) -> dict[str, Any]:
    spelling = {"itemId": "item_id", "stageId": "stage_id", "settledAt": "settled_at", "settledBy": "settled_by"}
    return {spelling.get(name, name): value for name, value in item.items()}


def run_retry_view(run: Run) -> dict[str, Any] | None:
    """What the API tells of it: what was decided when the run last failed, and what became of that."""
    retry = run_retry_rows.newest(run)
    return told_of(retry, run) if retry else None


def told_of(retry: RunRetry, run: Run) -> dict[str, Any]:
    """One such decision."""
    held = run_retry_rows.holding(retry, run)
    return {
        "id": str(retry.id),
        "status": retry.state,
        "mode": retry.mode,
        "number": retry.number,
        "max_retries": retry.decision["max_retries"],
        "policy_id": str(retry.policy),
        "policy": retry.policy_name,
        "explanation": retry.explanation,
        "failed_at": time(retry.failed_at),
        "due_at": time(retry.due_at),
        "held_by": held.sentence() if held else None,
        "ended_at": time(retry.ended_at),
        "ended_by": retry.ended_by or None,
        "code": retry.code or None,
        "why": retry.why or None,
        "disposition": retry.disposition or None,
        "operations": retry.operations,
        "made": str(retry.made) if retry.made else None,
    }
