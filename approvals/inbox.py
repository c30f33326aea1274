"""What waits for people and what became of it: gates and requests in one list, newest first (P84, F140, F144).

Each list walks an index of either table in its own order and merges the two, so a page costs the same however much
else waits. Who may decide is `four_eyes`' to say; the list of what one may decide asks the same in SQL. What the actor
may not know of is left out in the query itself.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet

from approvals.four_eyes import Approval, Question, Voter, counted, voters, why_not
from approvals.models import ApprovalRequest, RequestDecision
from approvals.rules import DECIDING_ROLES, roles_from
from approvals.states import RequestState
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Gate, GateDecision, Run
from pipelines.paging import Cut, Page, page
from pipelines.sql import database_now, planned
from pipelines.states import GateState

GATE, OPERATION = "gate", "operation"
TYPES = (GATE, OPERATION)
WAITING, MINE, ASKED, DECIDED = "waiting", "mine", "asked", "decided"
VIEWS = (WAITING, MINE, ASKED, DECIDED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody decided, and whether it counts now: no more once they left or got another role."""

    who: str
    approved: bool
    reason: str
    at: datetime
    role: str  # theirs at that time; blank of an application
    counts: bool


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why somebody may not decide: the code and words with which a decision would be refused."""

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Item:
    """A gate, or one round of a request, as somebody may see it.

    `id` is its public one: of a request the operation's. `have` of `count` people agreed; of what is open only those
    who count now. `plan`, `plan_digest`, `disposition`, `reasons`, `cause`, `round` are a request's, `moment`, `epoch`,
    `attempt_id`, `output_id`, `require_person` a gate's.
    """

    id: uuid.UUID
    type: str
    kind: str  # of the operation; of a gate "gate"
    state: str
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
    why_not: WhyNot | None
    may_withdraw: bool
    why: tuple[str, ...] = ()  # what asks for agreement, a sentence each
    cause: str = ""
    round: int = 1
    plan: Mapping[str, Any] | None = None
    plan_digest: str = ""
    disposition: str = ""
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
    """How many things the actor may decide now, counted no further than `most` + 1."""
    return len(_places(actor, MINE, Cut(most), TYPES))


def find(actor: Actor, item_id: uuid.UUID) -> Item:
    """A gate, or the newest round of a request; 404 for what the actor may not know of."""
    gate = _visible_gates(actor).filter(id=item_id).values_list("opened_at", "id").first()
    if gate is not None:
        return _items(actor, [_Place(database_now(), GATE, *gate)])[0]
    newest = rounds(actor, item_id, most=1)
    if not newest:
        raise Refusal("not_found", "there is nothing of that id to decide")
    return newest[0]


def rounds(actor: Actor, subject: uuid.UUID, most: int = 50) -> list[Item]:
    """The rounds of a request, newest first: each with its own plan and who decided about it."""
    if not actor.is_person:
        return []
    rows = ApprovalRequest.objects.filter(workspace_id=actor.workspace_id, subject=subject).order_by("-round")
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


def _places(actor: Actor, view: str, cut: Cut, types: Collection[str]) -> list[_Place]:
    params: dict[str, Any] = {
        "workspace": actor.workspace_id,
        "user": actor.user_id,
        "application": actor.application_id,
        "environment": actor.environment_id,
        "limit": cut.reach,
    }
    if cut.position:
        params["at"], params["id"] = cut.position
    if view == MINE:
        voter = _voter(actor)
        if voter is None:
            return []
        params["since"], params["roles"] = voter.since, _decided_by(voter.role)
    direction = "ASC" if cut.backwards else "DESC"
    branches = [_branch(kind, actor, view, cut, direction) for kind in TYPES if kind in types]
    if not actor.is_person:
        branches = branches[:1] if GATE in types and view in (WAITING, DECIDED) else []
    if not branches:
        return []
    rows = planned(
        f"SELECT recourse_now(), found.* FROM ({' UNION ALL '.join(branches)}) found"
        f" ORDER BY found.at {direction}, found.id {direction} LIMIT %(limit)s",
        params,
    )
    return [_Place(*row) for row in rows]


def _branch(kind: str, actor: Actor, view: str, cut: Cut, direction: str) -> str:
    """One table's part of a list, in the list's order. The fences (OFFSET 0) keep the walk on the table's own index."""
    at = "closed_at" if view == DECIDED else "opened_at"
    table, conditions, joined = (_of_gates if kind == GATE else _of_requests)(actor, view)
    if cut.position:
        conditions.append(f"(o.{at}, o.id) {'>' if cut.backwards else '<'} (%(at)s, %(id)s)")
    return (
        f"(SELECT '{kind}' AS type, o.{at} AS at, o.id FROM {table} o{joined}"
        f" WHERE {' AND '.join(('o.workspace_id = %(workspace)s', *conditions))}"
        f" ORDER BY o.{at} {direction}, o.id {direction} LIMIT %(limit)s)"
    )


def _of_gates(actor: Actor, view: str) -> tuple[str, list[str], str]:
    conditions = ["o.state <> 'open'" if view == DECIDED else "o.state = 'open'"]
    of_run = []
    if not actor.is_person:
        of_run = ["r.application_id = %(application)s", "r.environment_id = %(environment)s"]
    elif view == ASKED:
        of_run = ["r.requesters @> ARRAY[%(user)s]"]
    elif view == MINE:
        conditions += [*_MAY_DECIDE, "o.opened_at >= %(since)s"]
        of_run = [
            "NOT r.requesters @> ARRAY[%(user)s]",
            "(r.recovered_from_id IS NULL OR r.requesters <> '{}')",
            "(r.deadline_at IS NULL OR r.deadline_at > recourse_now())",
            "NOT EXISTS (SELECT FROM pipelines_gatedecision d WHERE d.gate_id = o.id AND d.user_id = %(user)s)",
        ]
    fence = f"SELECT FROM pipelines_run r WHERE r.id = o.run_id AND {' AND '.join(of_run)} OFFSET 0"
    return "pipelines_gate", conditions, f" CROSS JOIN LATERAL ({fence}) fits" if of_run else ""


def _of_requests(actor: Actor, view: str) -> tuple[str, list[str], str]:
    table = "approvals_approvalrequest"
    if view == ASKED:
        return table, ["o.requested_by_id = %(user)s", "o.state <> 'superseded'"], ""
    if view == DECIDED:
        return table, ["o.state <> 'open'", "o.state <> 'superseded'"], ""
    if view == WAITING:
        return table, ["o.state = 'open'"], ""
    # a later round was opened after it was asked for, so the first of the two times narrows the walk
    conditions = ["o.opened_at >= %(since)s", "o.asked_at >= %(since)s", "o.requested_by_id <> %(user)s"]
    voted = "SELECT FROM approvals_requestdecision d WHERE d.request_id = o.id AND d.user_id = %(user)s"
    fence = f"SELECT WHERE NOT EXISTS ({voted}) OFFSET 0"
    return table, ["o.state = 'open'", *_MAY_DECIDE, *conditions], f" CROSS JOIN LATERAL ({fence}) fits"


_MAY_DECIDE = ("o.approver_role = ANY(%(roles)s)", "(o.expires_at IS NULL OR o.expires_at > recourse_now())")


def _decided_by(role: str) -> list[str]:
    """What may be asked for so that this role may decide."""
    return [asked for asked in ("", *DECIDING_ROLES) if role in roles_from(asked)]


def _voter(actor: Actor) -> Voter | None:
    return voters(actor.workspace_id, [actor.user_id]).get(actor.user_id) if actor.user_id is not None else None


def _visible_gates(actor: Actor) -> QuerySet[Gate]:
    rows = Gate.objects.filter(workspace_id=actor.workspace_id)
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
    found |= {one.id: _request_item(one, made.get(one.id, []), told) for one in requests.values()}
    return [found[place.id] for place in places if place.id in found]


def _decisions(rows: QuerySet[Any], of: str) -> dict[uuid.UUID, list[Any]]:
    found: dict[uuid.UUID, list[Any]] = {}
    for one in rows.order_by("at", "id"):
        found.setdefault(getattr(one, of), []).append(one)
    return found


def gate_question(gate: Gate, run: Run) -> Question:
    """What a gate asks, of whom. Nobody knows who asked for a fork without people."""
    unknown = run.recovered_from_id is not None and not run.requesters
    asked_by = None if unknown else frozenset(run.requesters)
    return Question(gate.opened_at, roles_from(gate.approver_role), gate.count, asked_by)


def request_question(request: ApprovalRequest) -> Question:
    """What a request asks, of whom: of those who could have decided when it was first put."""
    roles = roles_from(request.approver_role)
    return Question(request.asked_at, roles, request.count, frozenset({request.requested_by_id}))


def _gate_item(gate: Gate, made: Sequence[GateDecision], told: _Told) -> Item:
    run, question = gate.run, gate_question(gate, gate.run)
    asked_by = ", ".join(sorted(told.names[user] for user in run.requesters if user in told.names))
    if not asked_by and run.recovered_from_id is None:
        asked_by = run.application.name
    is_overdue = run.deadline_at is not None and run.deadline_at <= told.now
    refused = _closed(gate.state) or (
        Refusal("deadline_exceeded", "the run passed its deadline") if is_overdue else None
    )
    if refused is None and told.actor.is_person:
        refused = _refused(question, gate.expires_at, made, told)
    elif refused is None and gate.require_person:
        refused = Refusal("permission_denied", "this gate is decided by people alone")
    return Item(
        id=gate.id,
        type=GATE,
        kind=GATE,
        asked_at=gate.opened_at,
        requested_by=asked_by,
        reason="",
        why_not=_words(refused),
        may_withdraw=False,
        moment=gate.moment,
        epoch=gate.epoch,
        attempt_id=gate.attempt,
        output_id=gate.output,
        require_person=gate.require_person,
        **_common(gate, question, made, told),
    )


def _request_item(request: ApprovalRequest, made: Sequence[RequestDecision], told: _Told) -> Item:
    question, plan = request_question(request), request.plan or {}
    refused = _closed(request.state) or _refused(question, request.expires_at, made, told)
    return Item(
        id=request.subject,
        type=OPERATION,
        kind=request.kind,
        asked_at=request.asked_at,
        requested_by=told.names.get(request.requested_by_id, ""),
        reason=request.reason,
        why_not=_words(refused),
        may_withdraw=request.state == RequestState.OPEN and request.requested_by_id == told.actor.user_id,
        why=tuple(request.why),
        cause=request.cause,
        round=request.round,
        plan=request.plan,
        plan_digest=request.plan_digest,
        disposition=plan.get("disposition", ""),
        reasons=tuple(plan.get("reasons", ())),
        **_common(request, question, made, told),
    )


def _common(row: Any, question: Question, made: Sequence[Any], told: _Told) -> dict[str, Any]:
    """What gates and requests tell alike."""
    run = row.run
    decisions = tuple(_verdict(one, question, told) for one in made)
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
    }


def _verdict(made: Any, question: Question, told: _Told) -> Verdict:
    application = getattr(made, "application", None)
    if application is not None:
        return Verdict(application.name, made.approved, made.reason, made.at, "", counts=True)
    counts = not made.approved or bool(counted(question, [Approval(made.user_id, made.member)], told.people))
    return Verdict(told.names[made.user_id], made.approved, made.reason, made.at, made.role, counts)


def _refused(question: Question, expires_at: datetime | None, made: Iterable[Any], told: _Told) -> Refusal | None:
    """Why the person who looks may not decide what is open."""
    voter = told.people.get(told.actor.user_id) if told.actor.user_id is not None else None
    if refused := why_not(question, voter):
        return refused
    if expires_at is not None and expires_at <= told.now:
        return Refusal("approval_stale", "it expired; silence never consents")
    if any(one.user_id == told.actor.user_id for one in made):
        return Refusal("gate_decision_conflict", "you decided it already; one person counts once")
    return None


_CLOSED: dict[str, tuple[str, str]] = {
    GateState.EXPIRED: ("approval_stale", "it expired; silence never consents"),
    GateState.CANCELLED: ("execution_state_invalid", "it ended with its run"),
    RequestState.WITHDRAWN: ("approval_stale", "it was withdrawn"),
    RequestState.SUPERSEDED: ("approval_stale", "it was asked anew, with another plan"),
}


def _closed(state: str) -> Refusal | None:
    if state == GateState.OPEN:
        return None
    code, words = _CLOSED.get(state, ("gate_decision_conflict", f"it is {state} already; a decision is final"))
    return Refusal(code, words)


def _words(refused: Refusal | None) -> WhyNot | None:
    return WhyNot(refused.code, refused.detail) if refused else None
