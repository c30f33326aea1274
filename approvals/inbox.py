"""What waits for people and what became of it: gates and requests in one list, newest first (P84, F140, F144).

Each list walks an index of either table in its own order and merges the two, so a page costs the same however much
else waits. Who may decide is `four_eyes`' to say; the list of what one may decide asks the same in SQL. What the actor
may not know of is left out in the query itself.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet

from approvals.four_eyes import Approval, Question, Voter, counted, voters, why_not
from approvals.gates import Carried, Where, ending_with_run
from approvals.gates import told as operations_told
from approvals.models import ApprovalRequest, RequestDecision
from approvals.requests import question_of
from approvals.rules import DECIDING_ROLES, roles_from
from approvals.states import RequestState
from approvals.votes import asked_by_gate, requesters_of
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Gate, GateDecision
from pipelines.moves import DEADLINE_EXCEEDED
from pipelines.paging import Cut, Page, page
from pipelines.sql import database_now, planned
from pipelines.states import GateState, RunStatus

GATE, OPERATION = "gate", "operation"
TYPES = (GATE, OPERATION)
WAITING, MINE, ASKED, DECIDED = "waiting", "mine", "asked", "decided"
VIEWS = (WAITING, MINE, ASKED, DECIDED)
LOOKED_AT = 2_000  # for the count on every page, which must stay quick for who asked for most of what waits


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody decided, and whether it counts now: no more once they left or got another role."""

    user_id: int | None
    who: str
    approved: bool
    reason: str
    at: datetime
    role: str  # theirs at that time; blank of an application
    counts: bool


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why somebody may not decide: words, and the code of the refusal."""

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Item:
    """A gate, or one round of a request, as somebody may see it.

    `id` is its public one: of a request the operation's. `have` of `count` people agreed; of what is open only those
    who count now. `plan`, `plan_digest`, `disposition`, `reasons`, `cause`, `round` are a request's, `moment`, `epoch`,
    `attempt_id`, `output_id`, `require_person` a gate's. A request that is about no run has, as `run_name`, the name of
    what it is about instead.
    """

    id: uuid.UUID
    type: str
    kind: str  # of the operation; of a gate "gate"
    state: str
    status: str  # of the operation; of a gate its state
    run_id: uuid.UUID | None
    run_name: str
    environment: str
    is_protected: bool
    pipeline: str
    stage_id: uuid.UUID | None
    stage: str
    requested_by: str  # names; blank where nobody is known
    reason: str
    asked_at: datetime
    opened_at: datetime
    expires_at: datetime | None
    closed_at: datetime | None
    role: str  # it, or a higher one
    count: int
    have: int
    decisions: tuple[Verdict, ...]
    over: WhyNot | None  # why nobody can decide it any more
    why_not: WhyNot | None  # why the one who looks may not
    may_withdraw: bool
    why: tuple[str, ...] = ()  # what asks for agreement, a sentence each
    cause: str = ""
    round: int = 1
    plan: Mapping[str, Any] | None = None
    plan_digest: str = ""
    disposition: str = ""
    target: uuid.UUID | None = None  # the new run of a fork
    reasons: tuple[Mapping[str, Any], ...] = ()
    moment: str = ""
    epoch: int | None = None
    attempt_id: uuid.UUID | None = None
    output_id: uuid.UUID | None = None
    require_person: bool = True

    @property
    def is_open(self) -> bool:
        return self.state == RequestState.OPEN

    @property
    def may_decide(self) -> bool:
        return self.why_not is None


def listed(actor: Actor, view: str, cut: Cut, types: Collection[str] = TYPES) -> Page[Item]:
    """One page, newest first, of what waits in the workspace, of what the actor may decide now (`mine`), of what they
    asked for (their requests, whatever became of them, and the open gates of runs that they started, forked or
    retried), or of what is closed (`decided`). An application sees the gates of its own runs.

    As many queries for any page.
    """
    found = page(_places(actor, view, cut, types), cut, lambda place: (place.at, place.id))
    items = _items(actor, found.rows)
    if view in (WAITING, MINE):
        items = [item for item in items if item.is_open]  # what was closed since it was found
    return Page(items, next=found.next, previous=found.previous)


def count_mine(actor: Actor, most: int) -> int:
    """How many things the actor may decide now, counted no further than `most` + 1, among the newest `LOOKED_AT` of
    either type that their role may decide."""
    return len(_places(actor, MINE, Cut(most), reach=LOOKED_AT))


def find(actor: Actor, item_id: uuid.UUID) -> Item:
    """A gate, or the newest round of a request; 404 for what the actor may not know of."""
    gate = _visible(Gate.objects.all(), actor).filter(id=item_id).values_list("opened_at", "id").first()
    if gate is not None:
        return _items(actor, [_Place(database_now(), GATE, *gate)])[0]
    newest = rounds(actor, item_id, most=1)
    if not newest:
        raise Refusal("not_found", "there is nothing of that id to decide")
    return newest[0]


def rounds(actor: Actor, subject: uuid.UUID, most: int = 50) -> list[Item]:
    """The rounds of a request, newest first: each with its own plan and who decided about it."""
    rows = _visible(ApprovalRequest.objects.filter(subject=subject), actor).order_by("-round")
    now = database_now()
    return _items(actor, [_Place(now, OPERATION, *row) for row in rows.values_list("opened_at", "id")[:most]])


# finding them


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one stands in its list. `now` is when it was found."""

    now: datetime
    type: str
    at: datetime
    id: uuid.UUID


def _places(
    actor: Actor, view: str, cut: Cut, types: Collection[str] = TYPES, *, reach: int | None = None
) -> list[_Place]:
    params: dict[str, Any] = {
        "workspace": actor.workspace_id,
        "user": actor.user_id,
        "application": actor.application_id,
        "environment": actor.environment_id,
        "ending": sorted(ending_with_run()),
        "limit": cut.reach,
    }
    if cut.position:
        params["at"], params["id"] = cut.position
    if not actor.is_person and view in (MINE, ASKED):
        return []
    if view == MINE:
        voter = _voter(actor)
        if voter is None:
            return []
        params["since"], params["roles"] = voter.since, _decided_by(voter.role)
    direction = "ASC" if cut.backwards else "DESC"
    branches = [_branch(kind, actor, view, cut, direction, reach) for kind in TYPES if kind in types]
    rows = planned(
        f"SELECT recourse_now(), found.* FROM ({' UNION ALL '.join(branches)}) found"
        f" ORDER BY found.at {direction}, found.id {direction} LIMIT %(limit)s",
        params,
    )
    return [_Place(*row) for row in rows]


def _branch(kind: str, actor: Actor, view: str, cut: Cut, direction: str, reach: int | None) -> str:
    """One table's part of a list, in the list's order, of the first `reach` candidates where that is given.

    The fences (OFFSET 0) keep the walk on the table's own index.
    """
    at = "closed_at" if view == DECIDED else "opened_at"
    table, conditions, joined = (_of_gates if kind == GATE else _of_requests)(actor, view)
    if cut.position:
        conditions.append(f"(o.{at}, o.id) {'>' if cut.backwards else '<'} (%(at)s, %(id)s)")
    where = f" WHERE {' AND '.join(('o.workspace_id = %(workspace)s', *conditions))}"
    order = f" ORDER BY o.{at} {direction}, o.id {direction}"
    if reach:
        table, where = f"(SELECT o.* FROM {table} o{where}{order} LIMIT {reach})", ""
    return f"(SELECT '{kind}' AS type, o.{at} AS at, o.id FROM {table} o{joined}{where}{order} LIMIT %(limit)s)"


def _of_gates(actor: Actor, view: str) -> tuple[str, list[str], str]:
    """The table, what its rows must fulfil, and what is looked up for each of those."""
    conditions = ["o.state <> 'open'" if view == DECIDED else "o.state = 'open'"]
    of_run: tuple[str, ...] = () if actor.is_person else _OWN
    if view == ASKED:
        of_run = ("r.requesters @> ARRAY[%(user)s]",)
    elif view == MINE:
        conditions += [*_MAY_DECIDE, "o.opened_at >= %(since)s"]
        of_run = (
            "NOT r.requesters @> ARRAY[%(user)s]",
            "(r.recovered_from_id IS NULL OR r.requesters <> '{}')",
            f"{_RUN_IS_OVER} IS NOT TRUE",
            "NOT EXISTS (SELECT FROM pipelines_gatedecision d WHERE d.gate_id = o.id AND d.user_id = %(user)s)",
        )
    return "pipelines_gate", conditions, _fenced(f"{_ITS_RUN} AND {' AND '.join(of_run)}") if of_run else ""


def _of_requests(actor: Actor, view: str) -> tuple[str, list[str], str]:
    table = "approvals_approvalrequest"
    if view == ASKED:
        return table, ["o.requested_by_id = %(user)s"], _fenced(_NEWEST_ROUND)
    if view == MINE:
        # a later round was opened after it was asked for, so the first of the two times narrows the walk
        times = ("o.opened_at >= %(since)s", "o.asked_at >= %(since)s")
        voted = "SELECT FROM approvals_requestdecision d WHERE d.request_id = o.id AND d.user_id = %(user)s"
        is_over = f"o.kind = ANY(%(ending)s) AND EXISTS ({_ITS_RUN} AND {_RUN_IS_OVER})"
        conditions = ["o.state = 'open'", *_MAY_DECIDE, *times, "o.requested_by_id <> %(user)s"]
        return table, conditions, _fenced(f"SELECT WHERE NOT EXISTS ({voted}) AND NOT ({is_over})")
    conditions = ["o.state = 'open'"] if view == WAITING else ["o.state <> 'open'"]
    joined = _fenced(_NEWEST_ROUND) if view == DECIDED else ""
    if not actor.is_person:
        joined += _fenced(f"{_ITS_RUN} AND {' AND '.join(_OWN)}", "own")
    return table, conditions, joined


def _fenced(lookup: str, name: str = "fits") -> str:
    return f" CROSS JOIN LATERAL ({lookup} OFFSET 0) {name}"


_ITS_RUN = "SELECT FROM pipelines_run r WHERE r.id = o.run_id"
_OWN = ("r.application_id = %(application)s", "r.environment_id = %(environment)s")
_RUN_IS_OVER = (
    f"(r.status = '{RunStatus.CANCELLED}' OR r.failure_code = '{DEADLINE_EXCEEDED}' OR r.deadline_at <= recourse_now())"
)
# a round that was asked anew stands in the list as the one after it
_NEWEST_ROUND = (
    "SELECT WHERE o.state <> 'superseded' OR NOT EXISTS (SELECT FROM approvals_approvalrequest n"
    " WHERE n.subject = o.subject AND n.round > o.round)"
)
_MAY_DECIDE = ("o.approver_role = ANY(%(roles)s)", "(o.expires_at IS NULL OR o.expires_at > recourse_now())")


def _decided_by(role: str) -> list[str]:
    """What may be asked for so that this role may decide."""
    return [asked for asked in ("", *DECIDING_ROLES) if role in roles_from(asked)]


def _voter(actor: Actor) -> Voter | None:
    return voters(actor.workspace_id, [actor.user_id]).get(actor.user_id) if actor.user_id is not None else None


def _visible(rows: QuerySet[Any], actor: Actor) -> QuerySet[Any]:
    """The rows of the workspace; for an application those of its own runs in its environment (I16)."""
    rows = rows.filter(workspace_id=actor.workspace_id)
    if actor.application_id is not None and actor.environment_id is not None:
        rows = rows.filter(run__application_id=actor.application_id, run__environment_id=actor.environment_id)
    return rows


# telling them

_BULKY = ("run__input", "run__recovery", "run__keywords", "stage__input")
_FAR = ("run__environment", "run__pipeline", "stage")


@dataclass(frozen=True, slots=True)
class _Told:
    """What all items of a page need: who looks, when, and the people as they are now."""

    actor: Actor
    now: datetime
    people: Mapping[int, Voter]
    names: Mapping[int, str]


def _items(actor: Actor, places: Sequence[_Place]) -> list[Item]:
    """These in their order, as the actor may see them; what is gone by now is left out."""
    if not places:
        return []
    ids = [place.id for place in places]
    gates = Gate.objects.select_related(*_FAR, "run__application").defer(*_BULKY).in_bulk(ids)
    requests = ApprovalRequest.objects.select_related(*_FAR).defer(*_BULKY).in_bulk(ids)
    made = _decisions(GateDecision.objects.filter(gate__in=gates).select_related("application"), "gate_id")
    made |= _decisions(RequestDecision.objects.filter(request__in=requests), "request_id")
    users = {one.user_id for some in made.values() for one in some if one.user_id}
    users |= {user for gate in gates.values() for user in gate.run.requesters}
    users |= {request.requested_by_id for request in requests.values()}
    people = voters(actor.workspace_id, users | ({actor.user_id} if actor.user_id is not None else set()))
    names = dict(get_user_model().objects.filter(id__in=users).values_list("id", "username"))
    told = _Told(actor, places[0].now, people, names)
    found = {one.id: _gate_item(one, made.get(one.id, []), told) for one in gates.values()}
    carried = operations_told(requests.values())
    for one in requests.values():
        if one.subject in carried:
            found[one.id] = _request_item(one, carried[one.subject], made.get(one.id, []), told)
    return [found[place.id] for place in places if place.id in found]


def _decisions(rows: QuerySet[Any], of: str) -> dict[uuid.UUID, list[Any]]:
    found: dict[uuid.UUID, list[Any]] = {}
    for one in rows.order_by("at", "id"):
        found.setdefault(getattr(one, of), []).append(one)
    return found


def _gate_item(gate: Gate, made: Sequence[GateDecision], told: _Told) -> Item:
    run = gate.run
    asked_by = ", ".join(sorted(told.names[user] for user in run.requesters if user in told.names))
    if not asked_by and run.recovered_from_id is None:
        asked_by = run.application.name
    question = asked_by_gate(gate, requesters_of(run))
    return Item(
        id=gate.id,
        type=GATE,
        kind=GATE,
        status=gate.state,
        asked_at=gate.opened_at,
        requested_by=asked_by,
        reason="",
        may_withdraw=False,
        moment=gate.moment,
        epoch=gate.epoch,
        attempt_id=gate.attempt,
        output_id=gate.output,
        require_person=gate.require_person,
        **_common(gate, question, made, told, ends_with_run=True),
    )


def _request_item(request: ApprovalRequest, carried: Carried, made: Sequence[RequestDecision], told: _Told) -> Item:
    return Item(
        id=request.subject,
        type=OPERATION,
        kind=request.kind,
        status=carried.status,
        asked_at=request.asked_at,
        requested_by=told.names[request.requested_by_id],
        reason=request.reason,
        may_withdraw=request.state == RequestState.OPEN and request.requested_by_id == told.actor.user_id,
        why=tuple(request.why),
        cause=request.cause,
        round=request.round,
        plan=request.plan,
        plan_digest=request.plan_digest,
        disposition=carried.disposition,
        target=carried.target,
        reasons=tuple((request.plan or {}).get("reasons", ())),
        **{
            **_common(request, question_of(request), made, told, ends_with_run=request.kind in ending_with_run()),
            **_elsewhere(carried.where),
        },
    )


def _elsewhere(where: Where | None) -> dict[str, Any]:
    """What is told of a request that is about no run: what it is about instead, and where that acts."""
    if where is None:
        return {}
    return {
        "run_name": where.name,
        "environment": where.environment,
        "is_protected": where.is_protected,
        "pipeline": where.pipeline,
    }


def _common(row: Any, question: Question, made: Sequence[Any], told: _Told, *, ends_with_run: bool) -> dict[str, Any]:
    """What gates and requests tell alike."""
    run = row.run
    decisions = tuple(_verdict(one, question, told) for one in made)
    over = _over(row, told.now, ends_with_run=ends_with_run)
    return {
        "state": row.state,
        "run_id": row.run_id,
        "run_name": run.name if run else "",
        "environment": run.environment.slug if run else "",
        "is_protected": bool(run and run.environment.protected),
        "pipeline": run.pipeline.slug if run and run.pipeline else "",
        "stage_id": row.stage_id,
        "stage": row.stage.name if row.stage else "",
        "opened_at": row.opened_at,
        "expires_at": row.expires_at,
        "closed_at": row.closed_at,
        "role": row.approver_role or DECIDING_ROLES[0],
        "count": row.count,
        "have": sum(one.approved and (one.counts or row.closed_at is not None) for one in decisions),
        "decisions": decisions,
        "over": over,
        "why_not": over or _why_not(row, question, decisions, told),
    }


def _verdict(made: Any, question: Question, told: _Told) -> Verdict:
    application = getattr(made, "application", None)
    if application is not None:
        return Verdict(None, application.name, made.approved, made.reason, made.at, "", counts=True)
    counts = not made.approved or bool(counted(question, [Approval(made.user_id, made.member)], told.people))
    return Verdict(made.user_id, told.names[made.user_id], made.approved, made.reason, made.at, made.role, counts)


def _over(row: Any, now: datetime, *, ends_with_run: bool) -> WhyNot | None:
    """Why nobody can decide it any more: what a decision is refused with."""
    if row.state in (RequestState.APPROVED, RequestState.REJECTED):
        return WhyNot("gate_decision_conflict", f"it is {row.state} already; a decision is final")
    if row.state == RequestState.SUPERSEDED:
        return WhyNot("gate_decision_conflict", "its plan is another one by now, or forbidden")
    if ends_with_run and row.run:
        if row.run.failure_code == DEADLINE_EXCEEDED or (row.run.deadline_at and row.run.deadline_at <= now):
            return WhyNot("deadline_exceeded", "its run passed its deadline")
        if row.run.status == RunStatus.CANCELLED:
            return WhyNot("execution_state_invalid", "its run was cancelled")
    if row.state == GateState.CANCELLED:
        return WhyNot("stage_state_invalid", "it ended before anybody decided, with its run or its stage")
    if row.state == RequestState.WITHDRAWN:
        return WhyNot("approval_stale", "it was withdrawn by who asked for it")
    if row.state == RequestState.EXPIRED or (row.expires_at is not None and row.expires_at <= now):
        return WhyNot("approval_stale", "it expired; silence never consents")
    return None


def _why_not(row: Any, question: Question, made: Sequence[Verdict], told: _Told) -> WhyNot | None:
    """Why the one who looks may not decide what is open."""
    user_id = told.actor.user_id
    if user_id is None:
        if getattr(row, "require_person", True):
            return WhyNot("permission_denied", "people decide it, each with their own log-in")
        return None
    if refused := why_not(question, told.people.get(user_id)):
        return WhyNot(refused.code, refused.detail)
    if any(one.user_id == user_id for one in made):
        return WhyNot("gate_decision_conflict", "you have decided it already; one person counts once")
    return None
