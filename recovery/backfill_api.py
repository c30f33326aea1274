"""The operations API's routes for backfills (contract §4): filling what a trigger missed, and steering it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers

from pipelines import trigger_queries
from pipelines.access import CANCEL, FORK, STEER, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, PlannedVerb, Verb, page_answer
from pipelines.api.operations_serializers import HUGE
from pipelines.api.shapes import (
    Flag,
    Identifier,
    JsonObject,
    ListOf,
    Moment,
    Number,
    OneOf,
    Shape,
    Text,
    Whole,
    read_id,
)
from pipelines.audit import LONGEST_REASON
from pipelines.paging import page_of, read_cut
from pipelines.schedules import Gap, Overlap, Rule
from recovery import backfills
from recovery.backfill_plans import LISTED
from recovery.backfill_progress import tick_told
from recovery.backfill_world import MOST_CONCURRENT
from recovery.filters import BackfillFilter, BackfillTickFilter
from recovery.models import Backfill, BackfillOrder, BackfillTick, Reprocess
from recovery.serializers import AgreementView, BlackoutHolds
from recovery.states import BackfillState, BackfillTickState

WISHED = frozenset(backfills.Wish.__dataclass_fields__)


class BackfillRequest(PlannedVerb):
    """Both ends of the window belong to it. What is left out is the trigger's own: cron, zone, rules, environment."""

    trigger_binding_id = Identifier(help_text="the trigger's id")
    flow_slug = Text(max_length=255, required=False, help_text="the trigger's pipeline, if told at all")
    workload_id = Identifier(required=False, help_text="the trigger's application, if told at all")
    cron = Text(max_length=200, required=False)
    timezone = Text(max_length=64, required=False)
    gap = OneOf(Gap.values, required=False)
    overlap = OneOf(Overlap.values, required=False)
    from_time = Moment()
    to_time = Moment()
    max_concurrent = Whole(min_value=1, max_value=MOST_CONCURRENT, default=1, help_text="runs that are in at once")
    environment = Text(max_length=100, required=False, help_text="the trigger's, if told at all")
    reprocess = OneOf(Reprocess.values, default=Reprocess.NONE, help_text="ticks with an ended run to do once more")
    order = OneOf(BackfillOrder.values, default=BackfillOrder.OLDEST, help_text="which are let in first")
    max_ticks = Whole(
        min_value=1,
        max_value=HUGE,
        required=False,
        help_text="above 1,000 ticks it must allow them; 100,000 are the most",
    )
    override_reason = Text(
        trim=True, max_length=LONGEST_REASON, required=False, help_text="why it may start in a blackout"
    )


class BackfillVerb(Verb):
    """Pausing and cancelling have no plan: they touch nothing but the backfill itself."""

    later = ()


class ResumeBackfill(BackfillVerb):
    """Resuming starts runs: in a blackout it needs a reason of its own."""

    override_reason = Text(trim=True, max_length=LONGEST_REASON, required=False)


class WindowView(Shape):
    """Both ends belong to it."""

    start = Moment()
    end = Moment()

    spelling = {"start": "from", "end": "to"}


class TickError(Shape):
    code = Text()
    message = Text()


class BackfillTickView(Shape):
    """One tick. `execution_id`: its run, made by this backfill, or had before when it is `skipped`; with the reason
    `acted-outside`, and an error that says why, it was to be done once more and must not be."""

    id = Text(required=False)
    tick_time = Moment()
    status = OneOf(BackfillTickState.values)
    execution_id = Identifier(required=False)
    error = TickError(required=False)
    reason = Text(required=False)
    local_time = Text(help_text="in the schedule's zone, with its offset")
    rule_ = OneOf(Rule.values, source="rule", help_text="what made this instant")

    spelling = {"rule_": "rule"}  # the bare name is the shape's own


class BackfillAnswer(Shape):
    """The window and its ticks; of a dry run also what would be done, who must agree, and what to know first."""

    trigger_binding_id = Identifier()
    window = WindowView()
    total_ticks = Whole(min_value=0, max_value=HUGE, help_text="that are filled")
    dispatched = Whole(min_value=0, max_value=HUGE)
    failed = Whole(min_value=0, max_value=HUGE)
    dry_run = Flag()
    ticks = ListOf(child=BackfillTickView())
    backfill_id = Identifier(allow_null=True)
    status = OneOf(BackfillState.values)
    skipped = Whole(min_value=0, max_value=HUGE, help_text="ticks that have a run already")
    plan_digest = Text()
    operation_id = Identifier(required=False)
    replayed = Flag(required=False)
    approvals = ListOf(child=AgreementView(), required=False)
    estimate_seconds = Number(min_value=0, max_value=HUGE, allow_null=True, required=False)
    protected = Flag(required=False, help_text="whether its environment is: an operator's waits for approval")
    without_worker = ListOf(child=Text(), required=False, help_text="handlers that no live worker has")
    blackout = BlackoutHolds(allow_null=True, required=False)
    missed_because = JsonObject(max_bytes=HUGE, required=False)
    withheld = Whole(
        min_value=0,
        max_value=HUGE,
        required=False,
        help_text="of the skipped: ticks that `reprocess` names and whose runs did something outside that is not"
        " cleared: each is replayed by itself",
    )
    withheld_ticks = ListOf(child=JsonObject(max_bytes=HUGE), required=False, help_text="the first 20 of them")
    unfit = Whole(
        min_value=0,
        max_value=HUGE,
        required=False,
        help_text="ticks that will fail: the schema of the pipeline does not take their input",
    )
    unfit_of = Whole(min_value=0, max_value=HUGE, required=False, help_text="ticks whose input was looked at")
    unfit_ticks = ListOf(child=JsonObject(max_bytes=HUGE), required=False, help_text="the first 20 that will fail")


class BackfillView(Shape):
    """A backfill and how far it is, counted from its ticks and their runs at the moment of the answer."""

    id = Identifier()
    backfill_id = Identifier()
    trigger_binding_id = Identifier()
    trigger = Text()
    pipeline = Text()
    environment = Text()
    window = WindowView()
    cron = Text()
    timezone = Text()
    gap = OneOf(Gap.values)
    overlap = OneOf(Overlap.values)
    max_concurrent = Whole(min_value=1, max_value=MOST_CONCURRENT)
    reprocess = OneOf(Reprocess.values)
    order = OneOf(BackfillOrder.values)
    status = OneOf(BackfillState.values)
    requested_by = Text()
    reason = Text(allow_null=True)
    cancel_reason = Text(allow_null=True)
    plan_digest = Text()
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)


class BackfillProgress(Shape):
    """How many ticks and runs there are of each state; `eta_seconds` is null where nothing can be said yet."""

    ticks = serializers.DictField(child=Whole(min_value=0, max_value=HUGE))
    runs = serializers.DictField(child=Whole(min_value=0, max_value=HUGE))
    active = Whole(min_value=0, max_value=HUGE)
    held = Whole(min_value=0, max_value=HUGE)
    eta_seconds = Number(min_value=0, max_value=HUGE, allow_null=True)


class BackfillDetail(BackfillView):
    total_ticks = Whole(min_value=0, max_value=HUGE)
    dispatched = Whole(min_value=0, max_value=HUGE)
    failed = Whole(min_value=0, max_value=HUGE)
    skipped = Whole(min_value=0, max_value=HUGE)
    progress = BackfillProgress()


class BackfillEndpoint(OperationsEndpoint):
    """One backfill of the workspace; any other id is 404."""

    def find(self, actor: Actor, **ids: uuid.UUID) -> Backfill:
        return backfills.find(actor, ids["backfill_id"])


class StartBackfill(OperationsEndpoint):
    """Computes the ticks that the trigger missed in a window and makes one run for each (O49–O56).

    With `dry_run` it only counts. 201: the runs are there, held but for `max_concurrent` of them; 202: others must
    agree first, or there are more than 1,000 and they are being made; 200: a repeat, or nothing to fill.
    """

    access = {"POST": FORK}
    bodies = {"POST": BackfillRequest}
    actions = {"POST": "backfill.start"}

    def _admit(self, actor: Actor, method: str, told: Any) -> None:
        """The body names what it is about: as with what a path names, 404 comes before 403."""
        trigger_id = read_id(told.get("trigger_binding_id")) if isinstance(told, dict) else None
        if trigger_id is not None:
            trigger_queries.find_trigger(actor, trigger_id)
        super()._admit(actor, method, told)

    @extend_schema(request=BackfillRequest, responses={200: BackfillAnswer, 201: BackfillAnswer, 202: BackfillAnswer})
    def post(self, call: Call) -> HttpResponse:
        wish, key = _wish(call.body), call.key
        if call.is_dry_run:
            return answer(backfills.preview(wish, call.actor).answer(LISTED))
        done = backfills.start(wish, call.actor, key=key, plan_digest=call.plan_digest)
        return answer(done.as_json(), _status(done))


class Backfills(OperationsEndpoint):
    """Backfills, newest first."""

    access = {"GET": VIEW}
    filters = BackfillFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(BackfillView))
    def get(self, call: Call) -> HttpResponse:
        rows = BackfillFilter.narrow(backfills.visible(call.actor), call.params)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, [backfill_view(row) for row in page.rows])


class OneBackfill(BackfillEndpoint):
    """A backfill and how far it is."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=BackfillDetail)
    def get(self, call: Call) -> HttpResponse:
        found = backfills.progress(call.target)
        told = {name: getattr(found, name) for name in ("dispatched", "failed", "skipped")}
        return answer({**backfill_view(call.target), "total_ticks": found.total, **told, "progress": found.as_json()})


class BackfillTicks(BackfillEndpoint):
    """The ticks of a backfill, oldest first."""

    access = {"GET": VIEW}
    filters = BackfillTickFilter.names()
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(BackfillTickView))
    def get(self, call: Call) -> HttpResponse:
        rows = BackfillTickFilter.narrow(BackfillTick.objects.filter(backfill=call.target), call.params)
        page = page_of(rows, read_cut(call.params, trigger_queries.BY_INSTANT), ("at",), descending=False)
        return page_answer(call.request, page, [tick_view(row) for row in page.rows])


class PauseBackfill(BackfillEndpoint):
    """Lets no more runs in; those that are in go on."""

    access = {"POST": STEER}
    bodies = {"POST": BackfillVerb}
    actions = {"POST": "backfill.pause"}

    @extend_schema(request=BackfillVerb, responses=BackfillAnswer)
    def post(self, call: Call) -> HttpResponse:
        return answer(backfills.pause(call.target.id, call.actor, call.reason).as_json())


class ContinueBackfill(BackfillEndpoint):
    """Lets runs in again."""

    access = {"POST": STEER}
    bodies = {"POST": ResumeBackfill}
    actions = {"POST": "backfill.resume"}

    @extend_schema(request=ResumeBackfill, responses=BackfillAnswer)
    def post(self, call: Call) -> HttpResponse:
        override = call.body.get("override_reason") or ""
        return answer(backfills.resume(call.target.id, call.actor, call.reason, override).as_json())


class CancelBackfill(BackfillEndpoint):
    """Cancels the runs that are held and gives their ticks back as missed; those that are in go on."""

    access = {"POST": CANCEL}
    bodies = {"POST": BackfillVerb}
    actions = {"POST": "backfill.cancel"}

    @extend_schema(request=BackfillVerb, responses=BackfillAnswer)
    def post(self, call: Call) -> HttpResponse:
        return answer(backfills.cancel(call.target.id, call.actor, call.reason).as_json())


def backfill_view(row: Backfill) -> dict[str, Any]:
    trigger = row.trigger
    own = ("cron", "timezone", "gap", "overlap", "max_concurrent", "reprocess", "order", "plan_digest")
    return {
        "id": str(row.id),
        "backfill_id": str(row.id),
        "trigger_binding_id": str(trigger.id),
        "trigger": trigger.name,
        "pipeline": trigger.pipeline.slug,
        "environment": trigger.environment.slug,
        "window": {"from": row.from_time.isoformat(), "to": row.to_time.isoformat()},
        **{name: getattr(row, name) for name in own},
        "status": row.state,
        "requested_by": row.requested_by.get_username(),
        "reason": row.reason or None,
        "cancel_reason": row.cancel_reason or None,
        **{name: wire.time(getattr(row, name)) for name in ("created_at", "started_at", "finished_at")},
    }


def tick_view(row: BackfillTick) -> dict[str, Any]:
    told = tick_told(row.at, row.local_time, row.rule, row.state, row.run, row.error_code, row.error_message)
    return {"id": str(row.id), **told}


def _wish(body: Mapping[str, Any]) -> backfills.Wish:
    told = {name: value for name, value in body.items() if name in WISHED}
    return backfills.Wish(trigger_id=body["trigger_binding_id"], **told)


def _status(done: backfills.Answer) -> int:
    if done.status == BackfillState.AWAITING_APPROVAL or done.progress.pending:
        return 202
    return 201 if done.progress.dispatched and not done.replayed else 200


urlpatterns = [
    path("triggers/backfill", StartBackfill.as_view()),
    path("backfills", Backfills.as_view()),
    path("backfills/<str:backfill_id>", OneBackfill.as_view()),
    path("backfills/<str:backfill_id>/ticks", BackfillTicks.as_view()),
    path("backfills/<str:backfill_id>/pause", PauseBackfill.as_view()),
    path("backfills/<str:backfill_id>/resume", ContinueBackfill.as_view()),
    path("backfills/<str:backfill_id>/cancel", CancelBackfill.as_view()),
]
