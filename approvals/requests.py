"""The life of a request for agreement: asked, decided by others, withdrawn, expired; asked anew when the world moved.

Every approval plans again under the lock of what it is about, a run's or its operation's own, so nobody agrees to what
would not be done; on the last one that is needed the operation is carried out in the same transaction
(`approvals/gates.py`). Silence never consents. Serves F130, F131, F133, F135, F138, F150, model §2 Operation and §5,
ADR 0069.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

import structlog
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q

from approvals import gates
from approvals.four_eyes import Approval, Question, Voter, counted, voters, why_not
from approvals.gates import Carried, Given, Held, Planned
from approvals.models import ApprovalRequest, RequestDecision
from approvals.plan_changes import changes
from approvals.rules import roles_from
from approvals.states import REQUEST_MOVES, RequestCause, RequestState
from pipelines import notices
from pipelines.access import VIEW, Actor
from pipelines.audit import NO_OP, Entry, audited
from pipelines.errors import Refusal
from pipelines.moves import DEADLINE_EXCEEDED, IllegalMove, Moves
from pipelines.sql import database_now, query
from pipelines.states import NoticeKind, RunStatus

log = structlog.get_logger(__name__)
BATCH = 200


@dataclass(frozen=True, slots=True)
class Matter:
    """What is put before others: an operation, in the words of the app that it is of."""

    workspace_id: uuid.UUID
    subject: uuid.UUID
    kind: str
    run_id: uuid.UUID | None  # that it is about, where it is about one
    stage_id: uuid.UUID | None
    requested_by_id: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a request and its operation stand. `have` of `need` approvals count; `target` is the new run of a fork."""

    subject: uuid.UUID
    run_id: uuid.UUID | None
    round: int
    state: str
    have: int
    need: int
    expires_at: datetime | None
    plan_digest: str
    status: str
    disposition: str
    target: uuid.UUID | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Agreed:
    """How many approvals of how many count now, and the plan that they are for: in rows that nobody changes."""

    have: int
    need: int
    plan_digest: str

    @property
    def holds(self) -> bool:
        return self.have >= self.need


def ask(matter: Matter, planned: Planned) -> ApprovalRequest:
    """Opens the first round, in the transaction that has the operation wait. Its plan is frozen as it was judged.

    What its verdict alone put before others never expires; what a rule or a protected environment did, in time.
    """
    return _open(ApprovalRequest(round=1, **_told(matter)), planned)


def find(subject: uuid.UUID, actor: Actor) -> ApprovalRequest:
    """The newest round of a request of the actor's workspace; any other id is 404."""
    if not actor.is_person:
        raise Refusal("permission_denied", "requests are decided by people, each with their own log-in")
    rows = ApprovalRequest.objects.filter(workspace_id=actor.workspace_id, subject=subject)
    found = rows.select_related("run", "stage", "requested_by").order_by("-round").first()
    if found is None:
        raise Refusal("not_found", "there is nothing of that id to decide")
    return found


def preview(subject: uuid.UUID, *, actor: Actor) -> Planned:
    """What agreeing would do now. Nothing is locked or written; refused when the request waits no longer."""
    request = find(subject, actor)
    actor.require(VIEW)
    _check_open(request, database_now())
    return gates.carrier(request.kind).preview(request)


def given(subject: uuid.UUID, *, actor: Actor) -> Given | None:
    """What who asks wrote for the stage, in full."""
    request = find(subject, actor)
    actor.require(VIEW)
    return gates.carrier(request.kind).given(request)


def question_of(request: ApprovalRequest) -> Question:
    """What a request asks, for `four_eyes`."""
    return Question(
        asked_at=request.asked_at,
        roles=roles_from(request.approver_role),
        count=request.count,
        requesters=frozenset([request.requested_by_id]),
    )


def decide_request(
    subject: uuid.UUID, *, actor: Actor, approved: bool, reason: str = "", plan_digest: str = ""
) -> Answer:
    """Agrees to the plan that waits, or rejects it for good with a reason.

    Approved by as many as are needed, the operation is carried out at once. Refused: who may not decide
    (`permission_denied`, `self_approval`); a plan that is not the waiting one, none where it was asked anew
    (`plan_changed`, with the waiting plan and what changed in it), or one that the world has moved away from: then it
    waits anew, in another round without approvals; `recovery_denied` when the verdict forbids it by now; withdrawn or
    expired (`approval_stale`); decided, or decided otherwise by the same person (`gate_decision_conflict`). The same
    decision and reason by the same person changes nothing.
    """
    found = find(subject, actor)
    with _audited(found, actor, "operation.approve" if approved else "operation.reject", reason) as entry:
        held, request = _locked(found, actor, entry)
        voter = _check_voter(request, actor)
        if not approved and not reason:
            message = "a request is rejected only with a reason"
            raise Refusal("validation_error", message, errors={"reason": [message]})
        answer: Answer | Refusal
        carried: Carried | None = None
        if _repeats(request, actor, approved, reason, held.now):
            entry.outcome = NO_OP
            answer = replace(_answer(request), replayed=True)
        else:
            _check_digest(request, plan_digest, actor, approved=approved)
            if approved:
                outcome = _approve(held, request, voter, actor, reason)
            else:
                outcome = _reject(request, voter, actor, reason)
            carried = outcome if isinstance(outcome, Carried) else None
            answer = outcome if isinstance(outcome, Refusal) else _answer(request)
        _tell_after(entry, request)
        if carried is not None and carried.target is not None:
            entry.after["target"] = str(carried.target)
        if isinstance(answer, Refusal):
            entry.keep_refused(answer)
    if isinstance(answer, Refusal):
        raise answer
    if carried is not None and carried.then is not None:
        return _with(answer, carried.then())
    return answer


def withdraw(subject: uuid.UUID, *, actor: Actor, reason: str = "") -> Answer:
    """Takes a request back: only who asked for it does. Its operation is withdrawn, for good.

    Again it changes nothing. Refused: anybody else (`permission_denied`); decided (`gate_decision_conflict`); expired
    (`approval_stale`).
    """
    found = find(subject, actor)
    with _audited(found, actor, "operation.withdraw", reason) as entry:
        held, request = _locked(found, actor, entry)
        actor.require(VIEW)
        if request.requested_by_id != actor.user_id:
            raise Refusal("permission_denied", "only who asked for it withdraws it; others reject it")
        if request.state == RequestState.WITHDRAWN:
            entry.outcome = NO_OP
            return replace(_answer(request), replayed=True)
        if request.state != RequestState.OPEN:
            raise _over(request)
        _close(request, "withdraw", held.now)
        gates.carrier(request.kind).close(request, "withdraw", actor=actor)
        _tell_after(entry, request)
        return _answer(request)


def agreed(subject: uuid.UUID) -> Agreed | None:
    """What the round that was approved agreed to, as its approvals count now; None when none was."""
    request = ApprovalRequest.objects.filter(subject=subject, state=RequestState.APPROVED).order_by("-round").first()
    return None if request is None else Agreed(have(request), request.count, request.plan_digest)


def have(request: ApprovalRequest) -> int:
    """How many approvals of this round count now."""
    return so_far([request])[request.id]


def so_far(requests: Sequence[ApprovalRequest]) -> dict[uuid.UUID, int]:
    """How many approvals count now, by round. A fixed number of queries for all rounds of one workspace."""
    given: dict[uuid.UUID, list[Approval]] = {request.id: [] for request in requests}
    approvals = RequestDecision.objects.filter(request__in=list(given), approved=True) if given else []
    for one in approvals:
        given[one.request_id].append(Approval(one.user_id, one.member))
    found: dict[uuid.UUID, int] = {}
    for workspace_id in {request.workspace_id for request in requests}:
        own = [request for request in requests if request.workspace_id == workspace_id]
        people = voters(workspace_id, {one.user_id for request in own for one in given[request.id]})
        found |= {request.id: counted(question_of(request), given[request.id], people) for request in own}
    return found


def expire_due(limit: int = BATCH) -> int:
    """open requests past their end, and those whose run ended before anybody agreed → expired; says how many.

    Each batch is a transaction of its own; runs that others hold are passed over and met again.
    """
    total, after = 0, uuid.UUID(int=0)
    while due := _due(after, limit):
        after = due[-1][0]
        try:
            total += _expire(due)
        except (InterfaceError, OperationalError):
            raise  # the database is away: all of it waits
        except Exception:
            log.exception("requests.batch_failed")
            total += sum(_expire_alone(*one) for one in due)
    return total


# below: under the locks of the operation and of the request


def _approve(held: Held, request: ApprovalRequest, voter: Voter, actor: Actor, reason: str) -> Carried | Refusal | None:
    """The refusal that is kept, what was carried out, or nothing while more people must agree."""
    carrier = gates.carrier(request.kind)
    planned = carrier.plan_again(request)
    if planned.denied is not None:
        _close(request, "supersede", held.now)
        carrier.asked_anew(request, planned, actor=actor)
        _decided(request, approved=False, by="", reason=planned.denied.detail)
        return planned.denied
    if planned.digest != request.plan_digest:
        another = _ask_anew(request, planned, held.now, shown_to=voter.user_id)
        carrier.asked_anew(another, planned, actor=actor)
        return _plan_changed(another, request.plan or {})
    _keep(request, voter, approved=True, reason=reason)
    if have(request) < request.count:
        return None
    _close(request, "approve", held.now)
    carried = carrier.carry_out(request, held, actor=actor)
    _decided(request, approved=True, by=actor.name, reason=reason)
    return carried


def _reject(request: ApprovalRequest, voter: Voter, actor: Actor, reason: str) -> Refusal | None:
    _keep(request, voter, approved=False, reason=reason)
    _close(request, "reject", database_now())
    gates.carrier(request.kind).close(request, "reject", actor=actor)
    _decided(request, approved=False, by=actor.name, reason=reason)
    return None


def _ask_anew(request: ApprovalRequest, planned: Planned, now: datetime, *, shown_to: int) -> ApprovalRequest:
    """Another round, with the plan of the world as it is now and no approvals; what was in review stays so."""
    _close(request, "supersede", now)
    was_in_review = request.cause == RequestCause.REVIEW
    told = {name: getattr(request, name) for name in ("workspace_id", "subject", "kind", "run_id", "stage_id")}
    told |= {"requested_by_id": request.requested_by_id, "reason": request.reason, "asked_at": request.asked_at}
    another = ApprovalRequest(round=request.round + 1, shown_to=shown_to, **told)
    return _open(another, replace(planned, in_review=planned.in_review or was_in_review))


def _open(request: ApprovalRequest, planned: Planned) -> ApprovalRequest:
    asked = planned.requirement
    request.cause = RequestCause.REVIEW if planned.in_review else RequestCause.APPROVAL
    request.plan, request.plan_digest = dict(planned.plan), planned.digest
    request.approver_role, request.count, request.why = asked.role, asked.count, list(asked.why)
    request.opened_at = database_now()
    if request.round == 1:
        request.asked_at = request.opened_at
    request.expires_at = request.opened_at + timedelta(seconds=asked.expires_in) if asked.expires_in else None
    request.save(force_insert=True)
    _notice(request, NoticeKind.REVIEW_ASKED if planned.in_review else NoticeKind.APPROVAL_ASKED)
    return request


def _close(request: ApprovalRequest, action: str, now: datetime) -> None:
    state = RequestState(request.state)
    if state not in REQUEST_MOVES[action]:
        raise IllegalMove(f"request {request.id} cannot {action} from {state}")
    request.state, request.closed_at = REQUEST_MOVES[action][state], now
    request.save(update_fields=["state", "closed_at"])


def _keep(request: ApprovalRequest, voter: Voter, *, approved: bool, reason: str) -> None:
    RequestDecision.objects.create(
        request=request, user_id=voter.user_id, member=voter.member, role=voter.role, approved=approved, reason=reason
    )


def _check_voter(request: ApprovalRequest, actor: Actor) -> Voter:
    who = cast(int, actor.user_id)  # people's alone
    voter = voters(request.workspace_id, [who]).get(who)
    refusal = why_not(question_of(request), voter)
    if refusal is not None:
        raise refusal
    return cast(Voter, voter)


def _repeats(request: ApprovalRequest, actor: Actor, approved: bool, reason: str, now: datetime) -> bool:
    """Whether the actor decided just this about this round before, and it waits still or was decided.

    Refused: what ended otherwise, whoever comes; another decision of theirs.
    """
    mine = request.decisions.filter(user_id=cast(int, actor.user_id)).first()
    repeats = mine is not None and (mine.approved, mine.reason) == (approved, reason)
    if not (repeats and request.state in (RequestState.APPROVED, RequestState.REJECTED)):
        _check_open(request, now)
    if mine is not None and not repeats:
        told = "approved" if mine.approved else "rejected"
        raise Refusal("gate_decision_conflict", f"you have {told} this request already; a decision is final")
    return repeats


def _check_open(request: ApprovalRequest, now: datetime) -> None:
    if request.state in (RequestState.APPROVED, RequestState.REJECTED, RequestState.SUPERSEDED):
        raise _over(request)
    if request.kind in gates.ending_with_run():
        _check_run(request, now)
    if request.state != RequestState.OPEN:
        raise _over(request)
    if request.expires_at is not None and request.expires_at <= now:
        raise Refusal("approval_stale", "this request expired; silence never consents")


def _check_run(request: ApprovalRequest, now: datetime) -> None:
    ((status, failure_code, deadline_at),) = query(
        "SELECT status, failure_code, deadline_at FROM pipelines_run WHERE id = %s", [request.run_id]
    )
    if failure_code == DEADLINE_EXCEEDED or (deadline_at is not None and deadline_at <= now):
        raise Refusal("deadline_exceeded", "the run passed its deadline: nothing is done to it any more")
    if status == RunStatus.CANCELLED:
        raise Refusal("execution_state_invalid", "the run was cancelled: nothing is done to it any more")


def _over(request: ApprovalRequest) -> Refusal:
    match request.state:
        case RequestState.WITHDRAWN:
            return Refusal("approval_stale", "this request was withdrawn by who asked for it")
        case RequestState.EXPIRED:
            return Refusal("approval_stale", "this request expired; silence never consents")
        case RequestState.SUPERSEDED:
            return Refusal("gate_decision_conflict", "its verdict forbids it by now: there is nothing left to decide")
        case state:
            return Refusal("gate_decision_conflict", f"this request is {state} already; a decision is final")


def _check_digest(request: ApprovalRequest, plan_digest: str, actor: Actor, *, approved: bool) -> None:
    """Who names no plan means the one that they were told of last: the first, or the one that answered their approval.
    Everybody else agrees to what was asked anew by its digest alone."""
    may_name_none = not approved or request.round == 1 or request.shown_to == actor.user_id
    if plan_digest == request.plan_digest or (may_name_none and not plan_digest):
        return
    meant = Q(plan_digest=plan_digest) if plan_digest else Q(round=request.round - 1)
    before = ApprovalRequest.objects.filter(meant, subject=request.subject).order_by("-round").first()
    raise _plan_changed(request, (before.plan or {}) if before else {})


def _plan_changed(request: ApprovalRequest, before: Mapping[str, Any]) -> Refusal:
    """What waits now, and what is otherwise in it than in the plan that was looked at, where that one is known."""
    after: Mapping[str, Any] = request.plan or {}
    return Refusal(
        "plan_changed",
        "what this would do has changed since it was planned; look at the new plan and decide again",
        extra={
            "plan": after,
            "plan_digest": request.plan_digest,
            "round": request.round,
            "changed": changes(before, after) if before else [],
        },
    )


def _audited(request: ApprovalRequest, actor: Actor, action: str, reason: str) -> Any:
    is_own = request.requested_by_id == actor.user_id
    behalf = "" if is_own else str(request.requested_by.get_username())
    told: dict[str, Any] = {"operation": str(request.subject), "kind": request.kind}
    if request.run_id is None:
        where = gates.carrier(request.kind).told(request).where
        told |= {"trigger": where.name, "environment": where.environment} if where else {}
    return audited(
        actor, action, run=request.run_id, stage=request.stage_id, reason=reason, on_behalf_of=behalf, **told
    )


def _locked(found: ApprovalRequest, actor: Actor, entry: Entry) -> tuple[Held, ApprovalRequest]:
    """What the operation is about first, then the newest round as it is by then."""
    held = gates.carrier(found.kind).lock(found, actor)
    rows = ApprovalRequest.objects.filter(subject=found.subject).order_by("-round")
    request = rows.select_for_update(no_key=True)[0]
    entry.plan_digest = request.plan_digest
    entry.before = {"request": request.state, "operation": gates.carrier(request.kind).told(request).status}
    entry.data |= {"round": request.round}
    return held, request


def _tell_after(entry: Entry, request: ApprovalRequest) -> None:
    told = {"request": request.state, "operation": gates.carrier(request.kind).told(request).status}
    entry.after = {**told, "approvals": have(request), "needed": request.count}


def _answer(request: ApprovalRequest) -> Answer:
    carried = gates.carrier(request.kind).told(request)
    answer = Answer(
        subject=request.subject,
        run_id=request.run_id,
        round=request.round,
        state=request.state,
        have=have(request),
        need=request.count,
        expires_at=request.expires_at,
        plan_digest=request.plan_digest,
        status=carried.status,
        disposition=carried.disposition,
    )
    return _with(answer, carried)


def _with(answer: Answer, carried: Carried) -> Answer:
    return replace(answer, status=carried.status, disposition=carried.disposition, target=carried.target)


def _told(matter: Matter) -> dict[str, Any]:
    return {
        "workspace_id": matter.workspace_id,
        "subject": matter.subject,
        "kind": matter.kind,
        "run_id": matter.run_id,
        "stage_id": matter.stage_id,
        "requested_by_id": matter.requested_by_id,
        "reason": matter.reason,
    }


def _decided(request: ApprovalRequest, *, approved: bool, by: str, reason: str) -> None:
    _notice(request, NoticeKind.DECIDED, {"approved": approved, "by": by or None, "reason": reason})


def _notice(request: ApprovalRequest, kind: NoticeKind, more: Mapping[str, Any] | None = None) -> None:
    told = {"kind": request.kind, "round": request.round, **(more or {})}
    notices.insert([notices.row(request.workspace_id, kind, request.run_id, request.stage_id, request.subject, told)])


# what time alone does


Due = tuple[uuid.UUID, uuid.UUID | None]  # a round, and the run that it is about


def _due(after: uuid.UUID, limit: int) -> list[Due]:
    return [
        (request_id, run_id)
        for request_id, run_id in query(
            "SELECT q.id, q.run_id FROM approvals_approvalrequest q LEFT JOIN pipelines_run r ON r.id = q.run_id"
            " WHERE q.state = 'open' AND q.id > %s AND (q.run_id IS NULL OR r.id IS NOT NULL)"
            " AND (q.expires_at <= recourse_now() OR (q.kind = ANY(%s) AND"
            " (r.status = 'cancelled' OR r.failure_code = %s OR r.deadline_at <= recourse_now())))"
            " ORDER BY q.id LIMIT %s",
            [after, sorted(gates.ending_with_run()), DEADLINE_EXCEEDED, limit],
        )
    ]


def _expire(due: Sequence[Due]) -> int:
    """Those about runs together; the others each by themselves, under the locks of their own."""
    alone = [request_id for request_id, run_id in due if run_id is None]
    about_runs = [(request_id, run_id) for request_id, run_id in due if run_id is not None]
    return _expire_with_runs(about_runs) + sum(_expire_without_run(request_id) for request_id in alone)


def _expire_with_runs(due: Sequence[tuple[uuid.UUID, uuid.UUID]]) -> int:
    if not due:
        return 0
    with transaction.atomic():
        moves = Moves.lock([run_id for _, run_id in due], skip_locked=True)
        over = [run.id for run in moves.runs.values() if run.is_final or run.is_past_deadline(moves.now)]
        is_over = Q(expires_at__lte=moves.now) | Q(kind__in=sorted(gates.ending_with_run()), run_id__in=over)
        rows = ApprovalRequest.objects.filter(is_over, id__in=[request_id for request_id, _ in due])
        found = rows.filter(state=RequestState.OPEN, run_id__in=list(moves.runs)).order_by("id")
        closing = list(found.select_for_update(no_key=True))
        for request in closing:
            _end_in_time(request, moves.now)
    return len(closing)


def _expire_without_run(request_id: uuid.UUID) -> int:
    with transaction.atomic():
        found = ApprovalRequest.objects.get(id=request_id)
        held = gates.carrier(found.kind).lock(found, Actor("", found.workspace_id, "command"))
        rows = ApprovalRequest.objects.filter(id=request_id, state=RequestState.OPEN, expires_at__lte=held.now)
        request = rows.select_for_update(no_key=True).first()
        if request is None:
            return 0
        _end_in_time(request, held.now)
    return 1


def _end_in_time(request: ApprovalRequest, now: datetime) -> None:
    _close(request, "expire", now)
    gates.carrier(request.kind).close(request, "expire", actor=None)
    _notice(request, NoticeKind.EXPIRED)


def _expire_alone(request_id: uuid.UUID, run_id: uuid.UUID | None) -> int:
    try:
        return _expire([(request_id, run_id)])
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("requests.expiry_failed", request=str(request_id))
        return 0
