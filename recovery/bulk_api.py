"""The operations API's routes for bulks: one verb on many targets, done by the console, and steering it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.urls import path
from django.utils.datastructures import MultiValueDict
from drf_spectacular.utils import extend_schema

from pipelines.access import RECOVER, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, StartingVerb, Verb, page_answer
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
    text_problem,
)
from pipelines.errors import Refusal
from pipelines.filters import PAGING, chosen, read_run_filter
from pipelines.paging import number, page_of, read_cut
from recovery import bulks
from recovery.bulk_progress import BulkItemLine
from recovery.bulk_targets import OF_LETTERS
from recovery.filters import BulkFilter
from recovery.models import BulkOperation
from recovery.plans import AND_DOWNSTREAM, STAGE_ONLY
from recovery.serializers import or_plan
from recovery.states import BulkItemState, BulkState, OperationKind

MOST_IDS = 10_000  # in one request; more are chosen by a filter
ITEM_FILTERS = ("status",)


class BulkRequest(StartingVerb):
    """Names its targets by ids or by a filter of the list that shows them; `filter` holds that list's parameters.

    retry and skip act on the failed stages of runs. A rerun's `from_step_id` is `failed_stage` (the first), the name of
    a stage, or `checkpoint` (left out: the last that is believed); runs without it are skipped as `not_applicable`.
    """

    kind = OneOf([kind.value for kind in bulks.KINDS])
    execution_ids = ListOf(child=Identifier(), required=False, min_length=1, max_length=MOST_IDS)
    stage_ids = ListOf(child=Identifier(), required=False, min_length=1, max_length=MOST_IDS)
    dead_letter_ids = ListOf(child=Identifier(), required=False, min_length=1, max_length=MOST_IDS)
    filter = JsonObject(max_bytes=64 * 1024, required=False)
    scope = OneOf((STAGE_ONLY, AND_DOWNSTREAM), required=False)
    from_step_id = Text(max_length=255, required=False)
    environment = Text(max_length=100, required=False)
    freeze_release = Flag(required=False)
    until = Moment(required=False)
    rate = Whole(min_value=1, max_value=bulks.FASTEST, default=20, help_text="targets a second, at most")
    canary = Whole(min_value=0, max_value=HUGE, default=0, help_text="it waits for a person after the first so many")
    stop_ratio = Number(
        min_value=0, max_value=1, required=False, help_text="it halts when more of the last 1,000 came to nothing"
    )


class SteerBulk(Verb):
    """Steering has no plan: it touches nothing but the bulk itself."""

    later = ()


class BulkView(Shape):
    """A bulk and how it was asked for. `chosen`: how its targets were; `held_reason`: why it does not go on."""

    id = Identifier()
    bulk_id = Identifier()
    kind = OneOf(OperationKind.values)
    status = OneOf(BulkState.values)
    requested_by = Text()
    channel = Text()
    reason = Text(allow_null=True)
    override_reason = Text(allow_null=True)
    chosen = JsonObject(max_bytes=HUGE)
    choices = JsonObject(max_bytes=HUGE)
    rate = Whole(min_value=1, max_value=HUGE)
    canary = Whole(min_value=0, max_value=HUGE)
    stop_ratio = Number(min_value=0, max_value=1, allow_null=True)
    total = Whole(min_value=0, max_value=HUGE)
    plan_digest = Text(allow_null=True)
    held_reason = Text(allow_null=True)
    ended_by = Text(allow_null=True)
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)
    verified_at = Moment(allow_null=True)


class BulkProgressView(Shape):
    """`total` = pending + done + failed + skipped + denied. `failed_again`: done, and failed since; among the newest.
    `mismatched`: stood otherwise than they were left when they were looked at after the end."""

    total = Whole(min_value=0, max_value=HUGE)
    pending = Whole(min_value=0, max_value=HUGE)
    done = Whole(min_value=0, max_value=HUGE)
    failed = Whole(min_value=0, max_value=HUGE)
    skipped = Whole(min_value=0, max_value=HUGE)
    denied = Whole(min_value=0, max_value=HUGE)
    failed_again = Whole(min_value=0, max_value=HUGE)
    per_second = Number(min_value=0, max_value=HUGE)
    eta_seconds = Number(min_value=0, max_value=HUGE, allow_null=True)
    mismatched = Whole(min_value=0, max_value=HUGE)


class BulkDetail(BulkView):
    """The bulk with how far it is, counted at the moment of the answer."""

    progress = BulkProgressView()
    plan = JsonObject(max_bytes=HUGE, allow_null=True, help_text="what was judged as it was started")
    replayed = Flag(required=False)


class BulkItemView(Shape):
    """One target, and what became of it. `stands`: its state now; `found`: how it stood when it should not have."""

    id = Text(help_text="its position, which names it within its bulk")
    position = Whole(min_value=1, max_value=HUGE)
    status = OneOf(BulkItemState.values)
    code = Text(allow_null=True)
    message = Text(allow_null=True)
    execution_id = Identifier()
    execution_name = Text(allow_null=True)
    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    dead_letter_id = Identifier(allow_null=True)
    stands = Text(allow_null=True)
    operation_id = Identifier(allow_null=True)
    target_execution_id = Identifier(allow_null=True)
    decided_at = Moment(allow_null=True)
    verified = Flag(allow_null=True)
    found = Text(allow_null=True)


class BulkEndpoint(OperationsEndpoint):
    """One bulk of the workspace; any other id is 404."""

    def find(self, actor: Actor, **ids: uuid.UUID) -> BulkOperation:
        return bulks.find(actor, ids["bulk_id"])


class Bulks(OperationsEndpoint):
    """Bulks, newest first; and asking for one.

    With `dry_run` it answers the plan and keeps nothing. 201: it goes on, whether or not anybody watches; 202: others
    must agree first; 200: a repeat of the same request.
    """

    access = {"GET": VIEW, "POST": RECOVER}
    bodies = {"POST": BulkRequest}
    actions = {"POST": "bulk.start"}
    filters = BulkFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(BulkView))
    def get(self, call: Call) -> HttpResponse:
        page = page_of(BulkFilter.narrow(bulks.visible(call.actor), call.params), read_cut(call.params))
        return page_answer(call.request, page, [bulk_view(row) for row in page.rows])

    @extend_schema(request=BulkRequest, responses={200: or_plan(BulkDetail), 201: BulkDetail, 202: BulkDetail})
    def post(self, call: Call) -> HttpResponse:
        wish, key = wish_of(call.body), call.key
        if call.is_dry_run:
            return answer(bulks.preview(wish, actor=call.actor).shown())
        done = bulks.create(wish, actor=call.actor, key=key, plan_digest=call.plan_digest)
        return answer({**_detail(done), "replayed": done.replayed}, _status(done))


class OneBulk(BulkEndpoint):
    """A bulk and how far it is."""

    access = {"GET": VIEW}

    @extend_schema(responses=BulkDetail)
    def get(self, call: Call) -> HttpResponse:
        return answer(_detail(bulks.answer(call.target)))


class BulkItems(BulkEndpoint):
    """The targets of a bulk, in their order, with what became of each."""

    access = {"GET": VIEW}
    filters = ITEM_FILTERS

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(BulkItemView))
    def get(self, call: Call) -> HttpResponse:
        states = chosen(call.params, "status", BulkItemState.values)
        page = bulks.items(call.target, states=states, cut=read_cut(call.params, (number,)))
        return page_answer(call.request, page, [item_view(line) for line in page.rows])


class PauseBulk(BulkEndpoint):
    """Begins no more targets; what is under way ends."""

    access = {"POST": RECOVER}
    bodies = {"POST": SteerBulk}
    actions = {"POST": "bulk.pause"}

    @extend_schema(request=SteerBulk, responses=BulkDetail)
    def post(self, call: Call) -> HttpResponse:
        return answer(_detail(bulks.pause(call.target.id, actor=call.actor, reason=call.reason)))


class ContinueBulk(BulkEndpoint):
    """Goes on, exactly where it stopped: what was paused, halted, or waits after its canary."""

    access = {"POST": RECOVER}
    bodies = {"POST": SteerBulk}
    actions = {"POST": "bulk.resume"}

    @extend_schema(request=SteerBulk, responses=BulkDetail)
    def post(self, call: Call) -> HttpResponse:
        return answer(_detail(bulks.resume(call.target.id, actor=call.actor, reason=call.reason)))


class AbortBulk(BulkEndpoint):
    """Ends it for good: what is pending is left alone, what was done stays done."""

    access = {"POST": RECOVER}
    bodies = {"POST": SteerBulk}
    actions = {"POST": "bulk.abort"}

    @extend_schema(request=SteerBulk, responses=BulkDetail)
    def post(self, call: Call) -> HttpResponse:
        return answer(_detail(bulks.abort(call.target.id, actor=call.actor, reason=call.reason)))


def bulk_view(row: BulkOperation) -> dict[str, Any]:
    own = ("kind", "channel", "chosen", "choices", "rate", "canary", "stop_ratio", "total")
    return {
        "id": str(row.id),
        "bulk_id": str(row.id),
        "status": row.state,
        "requested_by": row.requested_by.get_username(),
        **{name: getattr(row, name) for name in own},
        **{name: getattr(row, name) or None for name in ("reason", "override_reason", "plan_digest", "held_reason")},
        "ended_by": row.ended_by.get_username() if row.ended_by else None,
        **{name: wire.time(getattr(row, name)) for name in ("created_at", "started_at", "finished_at", "verified_at")},
    }


def item_view(line: BulkItemLine) -> dict[str, Any]:
    return {
        "id": str(line.position),
        "position": line.position,
        "status": line.state,
        "code": line.code or None,
        "message": line.message or None,
        "execution_id": str(line.run_id),
        "execution_name": line.run or None,
        "stage_id": _id(line.stage_id),
        "stage": line.stage or None,
        "dead_letter_id": _id(line.dead_letter_id),
        "stands": line.stands or None,
        "operation_id": _id(line.operation_id),
        "target_execution_id": _id(line.made_id),
        "decided_at": wire.time(line.decided_at),
        "verified": line.verified,
        "found": line.found or None,
    }


def wish_of(body: Mapping[str, Any]) -> bulks.Wish:
    """The request's wish. Refused by name: a filter whose values are no strings, and what its list does not know."""
    kind = OperationKind(body["kind"])
    letters = body.get("dead_letter_ids", ())
    if kind in OF_LETTERS and body.get("execution_ids"):
        raise _wrong("execution_ids", f"{kind} acts on dead letters: name dead_letter_ids, or a filter")
    if letters and kind not in OF_LETTERS:
        raise _wrong("dead_letter_ids", f"{kind} acts on runs")
    choices = {name: body.get(name) for name in ("scope", "environment", "freeze_release", "until")}
    return bulks.Wish(
        kind=kind,
        selection=bulks.Selection(
            ids=tuple(letters or body.get("execution_ids", ())),
            stage_ids=tuple(body.get("stage_ids", ())),
            **_filter(kind, body["filter"]) if "filter" in body else {},
        ),
        choices={"from": body.get("from_step_id"), **choices},
        reason=body["reason"],
        override_reason=body.get("override_reason") or "",
        rate=body["rate"],
        canary=body["canary"],
        stop_ratio=body.get("stop_ratio"),
    )


def _filter(kind: OperationKind, given: Mapping[str, Any]) -> dict[str, Any]:
    params: MultiValueDict[str, str] = MultiValueDict()
    for name, value in given.items():
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) and text_problem(text) is None for text in texts):
            raise _wrong("filter", f"{name[:60]}: must be a string or a list of strings")
        params.setlist(name, texts)
    if strange := sorted(set(params) & PAGING):
        raise _wrong("filter", f"no such filter: {', '.join(strange)}")
    return {"letters": dict(params.lists())} if kind in OF_LETTERS else {"runs": read_run_filter(params)}


def _wrong(name: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{name}: {message}", errors={name: [message]})


def _detail(found: bulks.Answer) -> dict[str, Any]:
    return {**bulk_view(found.bulk), "progress": found.progress.as_json(), "plan": found.bulk.plan}


def _status(done: bulks.Answer) -> int:
    if done.status == BulkState.AWAITING_APPROVAL:
        return 202
    return 200 if done.replayed else 201


def _id(value: uuid.UUID | None) -> str | None:
    return str(value) if value else None


urlpatterns = [
    path("bulk-operations", Bulks.as_view()),
    path("bulk-operations/<str:bulk_id>", OneBulk.as_view()),
    path("bulk-operations/<str:bulk_id>/items", BulkItems.as_view()),
    path("bulk-operations/<str:bulk_id>/pause", PauseBulk.as_view()),
    path("bulk-operations/<str:bulk_id>/resume", ContinueBulk.as_view()),
    path("bulk-operations/<str:bulk_id>/abort", AbortBulk.as_view()),
]
