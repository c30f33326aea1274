"""The inbox: what waits for people, what one may decide, what one asked for, and what was decided."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from approvals import inbox
from approvals.inbox import ASKED, DECIDED, GATE, MINE, OPERATION, VIEWS, WAITING, Item
from approvals.models import ApprovalRequest, RequestDecision
from approvals.states import RequestState
from approvals.transitions import decide_gate
from pipelines.access import Actor, person
from pipelines.creation import Place
from pipelines.errors import Refusal
from pipelines.models import Application, Environment, Gate, GateDecision, Member, Run, Workspace
from pipelines.moves import Moves
from pipelines.paging import Cut, read_cut
from pipelines.states import RunStatus
from recovery.models import Operation
from tests.cast import Person, stages_of
from tests.clock import Clock
from tests.factories import ApplicationFactory, MemberFactory

StartRun = Callable[..., Run]
People = dict[str, Person]
BEFORE = {"name": "scope", "approval": {"when": "before"}}


def gated(name: str = "scope", **approval: Any) -> dict[str, Any]:
    return {"name": name, "approval": {"when": "before", **approval}}


def asked(run: Run, by: Any, **more: Any) -> ApprovalRequest:
    """A request as one that waits stands in the tables, and its operation."""
    user = getattr(by, "user", by)
    states = {"approval": "awaiting_approval", "review": "review_required"}
    told = {"workspace": run.workspace, "kind": "retry", "run": run, "requested_by": user, "plan_digest": "d1"}
    told |= {"plan": {"kind": "retry", "reasons": []}, "reason": "it failed", "cause": "approval"}
    told |= {"approver_role": "approver", **more}
    operation = Operation.objects.create(
        workspace=run.workspace,
        kind=told["kind"],
        run=run,
        requested_by=user,
        channel="api",
        fingerprint="f",
        state=states[told["cause"]],
        disposition="recovery_allowed",
    )
    made: ApprovalRequest = ApprovalRequest.objects.create(subject=operation.id, **told)
    made.refresh_from_db()
    return made


def requested_by(run: Run, *people: Person) -> Run:
    Run.objects.filter(id=run.id).update(requesters=[one.user.id for one in people])
    run.refresh_from_db()
    return run


def ids(actor: Actor, view: str, cut: Cut = Cut(), **more: Any) -> list[uuid.UUID]:  # noqa: B008 - it is frozen
    return [item.id for item in inbox.listed(actor, view, cut, **more).rows]


def gate_of(run: Run, name: str = "scope") -> Gate:
    return Gate.objects.get(run=run, stage__name=name)


# what they tell


def test_a_gate_tells_of_its_run_and_stage(start_run: StartRun, people: People) -> None:
    """P84: what waits, where, since when, for whom, and who asked for it."""
    run = start_run(gated(approver_role="release_manager", count=2, expires_in=60))
    gate, admin = gate_of(run), people["admin"].actor
    (item,) = inbox.listed(admin, WAITING, Cut()).rows
    assert (item.id, item.type, item.kind, item.state, item.status) == (gate.id, GATE, GATE, "open", "open")
    assert (item.run_id, item.run_name, item.stage) == (run.id, "nightly", "scope")
    assert (item.environment, item.is_protected, item.pipeline) == ("development", False, "")
    assert (item.moment, item.epoch, item.require_person) == ("before", 1, True)
    assert (item.role, item.count, item.have, item.decisions) == ("release_manager", 2, 0, ())
    assert item.opened_at == item.asked_at == gate.opened_at
    assert item.expires_at == gate.expires_at
    assert item.requested_by == "billing"  # an application's runs are asked for by it, and so by nobody
    assert (item.plan, item.plan_digest, item.may_decide, item.may_withdraw) == (None, "", True, False)
    assert inbox.find(admin, gate.id) == item


def test_a_request_tells_its_plan(start_run: StartRun, people: People) -> None:
    run = start_run("first")
    request = asked(run, people["operator"], why=["production is protected"])
    (item,) = inbox.listed(people["approver"].actor, WAITING, Cut()).rows
    assert item.id == request.subject, "links and routes know a request by its operation"
    assert (item.type, item.kind, item.state, item.status) == (OPERATION, "retry", "open", "awaiting_approval")
    assert (item.plan, item.plan_digest, item.round) == (request.plan, "d1", 1)
    assert (item.disposition, item.cause, item.why) == (
        "recovery_allowed",
        "approval",
        ("production is protected",),
    )
    assert (item.requested_by, item.reason) == (people["operator"].user.username, "it failed")
    assert item.may_decide
    mine = inbox.find(people["operator"].actor, request.subject)
    assert (mine.may_decide, mine.may_withdraw) == (False, True)


def test_the_newest_of_both_kinds_comes_first(start_run: StartRun, people: People, clock: Clock) -> None:
    run = start_run("first")
    expected = []
    for number in range(6):
        clock.advance(1)
        made = asked(run, people["operator"]).subject if number % 2 else gate_of(start_run(BEFORE)).id
        expected.insert(0, made)
    approver = people["approver"].actor
    assert ids(approver, WAITING) == ids(approver, MINE) == expected
    assert ids(approver, WAITING, types=[GATE]) == expected[1::2]
    assert ids(approver, WAITING, types=[OPERATION]) == expected[::2]


def test_who_decided_what_is_told(start_run: StartRun, people: People, clock: Clock) -> None:
    """P84: closed ones stand under decided, the last one first."""
    first, second = gate_of(start_run(BEFORE)), gate_of(start_run(gated(count=2)))
    approver, admin = people["approver"].actor, people["admin"].actor
    clock.advance(1)
    decide_gate(second.stage_id, actor=approver, approved=True, reason="looks right")
    assert ids(approver, DECIDED) == []
    clock.advance(1)
    decide_gate(second.stage_id, actor=admin, approved=True)
    clock.advance(1)
    decide_gate(first.stage_id, actor=approver, approved=False, reason="not today")
    rejected, approved = inbox.listed(people["viewer"].actor, DECIDED, Cut()).rows
    assert (rejected.id, rejected.state, approved.id, approved.state) == (first.id, "rejected", second.id, "approved")
    assert [(one.who, one.role, one.approved, one.reason) for one in approved.decisions] == [
        (approver.name, "approver", True, "looks right"),
        (admin.name, "admin", True, ""),
    ]
    assert (approved.have, rejected.have) == (2, 0)
    assert rejected.why_not is not None
    assert rejected.why_not.code == "gate_decision_conflict"
    assert ids(approver, WAITING) == []


# whose they are


def test_one_sees_what_one_asked_for(start_run: StartRun, people: People, clock: Clock) -> None:
    """Requests whatever became of them; gates of runs that one started, forked or retried while they wait."""
    operator, admin = people["operator"], people["admin"]
    run = start_run("first")
    mine = gate_of(requested_by(start_run(BEFORE), admin, operator))
    gate_of(requested_by(start_run(BEFORE), admin))
    clock.advance(1)
    over = asked(run, operator)
    ApprovalRequest.objects.filter(id=over.id).update(state="rejected", closed_at=clock.now())
    asked(run, admin)
    assert ids(operator.actor, ASKED) == [over.subject, mine.id]
    assert ids(people["viewer"].actor, ASKED) == []
    item = inbox.find(operator.actor, mine.id)
    assert item.requested_by == ", ".join(sorted([operator.user.username, admin.user.username]))


def test_who_asked_is_no_second_person(start_run: StartRun, people: People) -> None:
    """F130: not of a gate of their own run, nor of their own request, whatever their role."""
    admin = people["admin"]
    gate = gate_of(requested_by(start_run(BEFORE), admin))
    request = asked(start_run("first"), admin)
    assert ids(admin.actor, MINE) == []
    for found in (gate.id, request.subject):
        item = inbox.find(admin.actor, found)
        assert item.why_not is not None
        assert item.why_not.code == "self_approval"
        assert inbox.find(people["approver"].actor, found).may_decide


def test_nobody_decides_what_nobody_is_known_to_have_asked_for(start_run: StartRun, people: People) -> None:
    """F133: a fork of which nobody knows who made it."""
    source, fork = start_run("first"), start_run(BEFORE)
    Run.objects.filter(id=fork.id).update(recovered_from=source)
    admin = people["admin"].actor
    assert ids(admin, MINE) == []
    item = inbox.find(admin, gate_of(fork).id)
    assert item.why_not is not None
    assert (item.why_not.code, item.requested_by) == ("permission_denied", "")
    assert "nobody knows" in item.why_not.words


def test_a_role_gained_later_decides_nothing(start_run: StartRun, people: People, clock: Clock) -> None:
    """F135: of what waits already; of what is asked from then on, it does."""
    start_run(BEFORE)
    asked(start_run("first"), people["operator"])
    clock.advance(1)
    Member.objects.filter(user=people["viewer"].user).update(role="approver")
    late = person(people["viewer"].user, people["viewer"].actor.workspace_id, "api")
    assert late is not None
    assert ids(late, MINE) == []
    assert inbox.count_mine(late, 9) == 0
    clock.advance(1)
    newer = gate_of(start_run(BEFORE))
    assert ids(late, MINE) == [newer.id]


def test_an_approval_is_void_once_its_giver_left(start_run: StartRun, people: People, clock: Clock) -> None:
    """F131: it stays readable, and counts no more."""
    gate = gate_of(start_run(gated(count=2)))
    decide_gate(gate.stage_id, actor=people["approver"].actor, approved=True)
    admin = people["admin"].actor
    assert inbox.find(admin, gate.id).have == 1
    Member.objects.filter(user=people["approver"].user).delete()
    item = inbox.find(admin, gate.id)
    assert (item.have, [one.counts for one in item.decisions]) == (0, [False])


def test_who_agreed_already_is_asked_no_more(start_run: StartRun, people: People) -> None:
    gate = gate_of(start_run(gated(count=2)))
    request = asked(start_run("first"), people["operator"], count=2)
    approver = people["approver"]
    decide_gate(gate.stage_id, actor=approver.actor, approved=True)
    member = Member.objects.get(user=approver.user)
    RequestDecision.objects.create(
        request=request, user=approver.user, member=member.id, role="approver", approved=True
    )
    assert ids(approver.actor, MINE) == []
    assert ids(approver.actor, WAITING) == [request.subject, gate.id]
    assert ids(people["admin"].actor, MINE) == [request.subject, gate.id]
    assert inbox.find(approver.actor, request.subject).have == 1


def test_what_is_over_is_nobodys_to_decide(start_run: StartRun, people: People, clock: Clock) -> None:
    """F136, R30, R31: expired or past the run's deadline, also before a sweep has looked."""
    start_run(gated(expires_in=30))
    late = start_run(BEFORE, deadline_seconds=30)
    asked(late, people["operator"])
    approver = people["approver"].actor
    assert len(ids(approver, MINE)) == 3
    clock.advance(31)
    assert ids(approver, MINE) == []
    codes = {item.run_id: item.over.code for item in inbox.listed(approver, WAITING, Cut()).rows if item.over}
    assert set(codes.values()) == {"approval_stale", "deadline_exceeded"}
    assert codes[late.id] == "deadline_exceeded"


def test_a_round_that_was_asked_anew_is_told_by_the_next(start_run: StartRun, people: People, clock: Clock) -> None:
    """One address for all rounds; the older ones stay readable."""
    first = asked(start_run("first"), people["operator"])
    clock.advance(1)
    ApprovalRequest.objects.filter(id=first.id).update(state=RequestState.SUPERSEDED, closed_at=clock.now())
    fields = ("workspace_id", "subject", "kind", "cause", "run_id", "requested_by_id", "approver_role", "asked_at")
    told = {name: getattr(first, name) for name in fields}
    ApprovalRequest.objects.create(**told, round=2, plan={"reasons": []}, plan_digest="d2")
    approver = people["approver"].actor
    assert ids(approver, WAITING) == ids(approver, MINE) == ids(people["operator"].actor, ASKED) == [first.subject]
    assert ids(approver, DECIDED) == []
    assert (inbox.find(approver, first.subject).round, inbox.find(approver, first.subject).plan_digest) == (2, "d2")
    assert [item.round for item in inbox.rounds(approver, first.subject)] == [2, 1]
    assert inbox.find(approver, first.subject).asked_at == first.asked_at


def test_a_request_that_its_verdict_forbids_by_now_stands_under_decided(
    start_run: StartRun, people: People, clock: Clock
) -> None:
    only = asked(start_run("first"), people["operator"])
    ApprovalRequest.objects.filter(id=only.id).update(state=RequestState.SUPERSEDED, closed_at=clock.now())
    assert ids(people["approver"].actor, DECIDED) == ids(people["operator"].actor, ASKED) == [only.subject]


def test_another_workspace_sees_nothing(start_run: StartRun, people: People, outsider: Person) -> None:
    """I16: neither in a list nor by its id."""
    gate, request = gate_of(start_run(BEFORE)), asked(start_run("first"), people["operator"])
    for view in VIEWS:
        assert ids(outsider.actor, view) == []
    assert inbox.count_mine(outsider.actor, 9) == 0
    assert inbox.rounds(outsider.actor, request.subject) == []
    for found in (gate.id, request.subject, request.id, uuid.uuid4()):
        with pytest.raises(Refusal) as refused:
            inbox.find(outsider.actor, found)
        assert refused.value.code == "not_found"


def test_a_request_is_known_by_its_operation_alone(start_run: StartRun, people: People) -> None:
    request = asked(start_run("first"), people["operator"])
    with pytest.raises(Refusal, match="nothing of that id"):
        inbox.find(people["approver"].actor, request.id)


def test_an_application_sees_what_concerns_its_own_runs(
    start_run: StartRun,
    people: People,
    application_actor: Actor,
    environments: dict[str, Environment],
    place: Place,
) -> None:
    """Contract §3: of its own environment too, and of no other application; it decides where no person is needed."""
    own, asks_people = gate_of(start_run(BEFORE)), gate_of(start_run(gated(count=2)))
    request = asked(start_run("first"), people["operator"])
    sibling: Application = ApplicationFactory(workspace=people["admin"].user.memberships.get().workspace)
    elsewhere = Place(place.workspace_id, sibling.id, place.environment_id, place.environment_slug)
    staging = Place(place.workspace_id, place.application_id, environments["staging"].id, "staging")
    hidden = [gate_of(start_run(BEFORE, in_place=one)) for one in (elsewhere, staging)]
    assert ids(application_actor, WAITING) == [request.subject, asks_people.id, own.id]
    assert ids(application_actor, MINE) == ids(application_actor, ASKED) == []
    assert ids(application_actor, DECIDED) == []
    found = {item.id: item.may_decide for item in inbox.listed(application_actor, WAITING, Cut()).rows}
    assert found == {own.id: True, asks_people.id: False, request.subject: False}
    for gate in hidden:
        with pytest.raises(Refusal):
            inbox.find(application_actor, gate.id)


# the list of what one may decide, and the predicate that decides


@pytest.mark.parametrize("seed", range(8))
def test_what_stands_as_mine_is_what_i_may_decide(
    seed: int, start_run: StartRun, workspace: Workspace, people: People, clock: Clock
) -> None:
    """F140: the list asks in SQL what `four_eyes` answers. Any cast, whatever became of it since."""
    chance = random.Random(seed)
    roles = ["viewer", "operator", "approver", "release_manager", "admin"]
    users = [MemberFactory(workspace=workspace, role=chance.choice(roles)).user for _ in range(5)]
    _a_past(chance, users, start_run, workspace, clock)
    decidable = 0
    for user in users:
        actor = person(user, workspace.id, "api")
        if actor is None:
            continue
        waiting = inbox.listed(actor, WAITING, Cut(200)).rows
        expected = [item.id for item in waiting if item.may_decide]
        decidable += len(expected)
        assert ids(actor, MINE, Cut(200)) == expected
        assert inbox.count_mine(actor, 200) == len(expected)
        assert inbox.count_mine(actor, 1) == min(len(expected), 2)
        for item in waiting:
            assert _agrees(actor, item)
    assert Gate.objects.count() + ApprovalRequest.objects.count() == 40
    assert seed > 0 or decidable > 0, "a test that nobody may decide anything in shows nothing"


def _a_past(chance: random.Random, users: list[Any], start_run: StartRun, workspace: Workspace, clock: Clock) -> None:
    roles = ["approver", "release_manager", "admin"]
    for _ in range(20):
        some = chance.sample(users, chance.choice([0, 0, 1, 2]))
        expires = chance.choice([None, None, 300, 90_000])
        deadline = chance.choice([None, None, None, 300])
        approval = {"approver_role": chance.choice([*roles, None]), "count": chance.choice([1, 1, 2, 3])}
        run = start_run(gated(**approval, expires_in=expires), "last", deadline_seconds=deadline)
        forked = {"recovered_from": run} if chance.random() < 0.2 else {}
        Run.objects.filter(id=run.id).update(requesters=[one.id for one in some], **forked)
        role, count = chance.choice(roles), chance.choice([1, 2, 3])
        kind = chance.choice(["retry", "rerun"])
        request = asked(run, chance.choice(users), approver_role=role, count=count, kind=kind)
        voter = chance.choice(users)
        member = Member.objects.filter(user=voter).first()
        if member is not None and chance.random() < 0.4:
            vote = {"user": voter, "member": member.id, "role": member.role, "approved": True}
            GateDecision.objects.create(gate=gate_of(run), **vote)
            RequestDecision.objects.create(request=request, **vote)
        if chance.random() < 0.2:
            Member.objects.filter(user=chance.choice(users)).update(role=chance.choice(roles))
        if chance.random() < 0.1:
            left = chance.choice(users)
            Member.objects.filter(user=left).delete()
            if chance.random() < 0.7:
                MemberFactory(workspace=workspace, user=left, role=chance.choice(roles), since=clock.now())
        clock.advance(chance.choice([0, 0, 1]))
    clock.advance(600)  # far from every end, so that the seconds that a test takes change nothing


def _agrees(actor: Actor, item: Item) -> bool:
    """Whether deciding a gate is refused with just what the list says; a savepoint takes the decision back."""
    if item.type != GATE:
        return True
    code = None
    with transaction.atomic():
        try:
            assert item.stage_id is not None
            decide_gate(item.stage_id, actor=actor, approved=False, reason="no", gate_id=item.id)
        except Refusal as refusal:
            code = refusal.code
        transaction.set_rollback(True)
    return (code is None) == item.may_decide


# long lists


def many(start_run: StartRun, people: People, count: int) -> list[uuid.UUID]:
    """So many things that wait, the newest first."""
    made = []
    for number in range(count):
        run = start_run(BEFORE) if number % 2 else start_run("first")
        made.append(gate_of(run).id if number % 2 else asked(run, people["operator"]).subject)
    return made[::-1]


def test_pages_follow_each_other_to_the_end_and_back(start_run: StartRun, people: People, clock: Clock) -> None:
    expected, actor = many(start_run, people, 11), people["approver"].actor
    for view in (WAITING, MINE):
        cut, seen, pages = Cut(3), [], []
        while True:
            page = inbox.listed(actor, view, cut)
            pages.append([item.id for item in page.rows])
            seen += pages[-1]
            if page.next is None:
                break
            cut = read_cut({"cursor": page.next, "page_size": "3"})
        assert seen == expected
        assert page.previous is not None
        back = inbox.listed(actor, view, read_cut({"cursor": page.previous, "page_size": "3"}))
        assert [item.id for item in back.rows] == pages[-2]


def test_a_page_stays_where_it_is_while_others_decide(start_run: StartRun, people: People, clock: Clock) -> None:
    """What was decided between two pages is missing; nothing is told twice, and nothing that waits is left out."""
    runs = [start_run(BEFORE) for _ in range(9)]
    expected, actor = [gate_of(run).id for run in reversed(runs)], people["approver"].actor
    page = inbox.listed(actor, WAITING, Cut(3))
    assert [item.id for item in page.rows] == expected[:3]
    for gate_id in (expected[1], expected[2], expected[3], expected[7]):
        gate = Gate.objects.get(id=gate_id)
        decide_gate(gate.stage_id, actor=actor, approved=True)
    start_run(BEFORE)
    seen = []
    while page.next is not None:
        page = inbox.listed(actor, WAITING, read_cut({"cursor": page.next, "page_size": "3"}))
        seen += [item.id for item in page.rows]
    assert seen == [expected[4], expected[5], expected[6], expected[8]]


def test_what_was_closed_since_it_was_found_is_left_out(
    start_run: StartRun, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbours of the page stay right all the same."""
    runs = [start_run(BEFORE) for _ in range(4)]
    actor, own = people["approver"].actor, inbox._items

    def decided_meanwhile(*found: Any) -> list[Item]:
        decide_gate(stages_of(runs[3])[0].id, actor=actor, approved=True)
        return own(*found)

    monkeypatch.setattr(inbox, "_items", decided_meanwhile)
    page = inbox.listed(actor, WAITING, Cut(2))
    assert [item.run_id for item in page.rows] == [runs[2].id]
    assert page.next is not None


def test_a_page_takes_as_many_queries_however_long_it_is(start_run: StartRun, people: People, clock: Clock) -> None:
    """N+1: of either kind, with people who asked and people who decided."""
    actor = people["admin"].actor
    counts = []
    for more in (2, 12):
        many(start_run, people, more)
        for gate in Gate.objects.filter(state="open", count=1).order_by("id")[: more // 2]:
            requested_by(gate.run, people["operator"])
        for name in ("approver", "release_manager"):
            run = start_run(gated(count=3))
            decide_gate(gate_of(run).stage_id, actor=people[name].actor, approved=True)
            decide_gate(gate_of(start_run(BEFORE)).stage_id, actor=people[name].actor, approved=True)
        found = []
        for view in VIEWS:
            with CaptureQueriesContext(connection) as captured:
                inbox.listed(actor, view, Cut(100))
            found.append(len(captured))
        counts.append(found)
    assert counts[0] == counts[1]
    assert max(counts[0]) <= 10


def test_the_count_goes_no_further_than_it_must(start_run: StartRun, people: People) -> None:
    many(start_run, people, 5)
    actor = people["approver"].actor
    assert [inbox.count_mine(actor, most) for most in (1, 3, 5, 99)] == [2, 4, 5, 5]
    with CaptureQueriesContext(connection) as captured:
        inbox.count_mine(actor, 99)
    assert len(captured) == 2
    assert f"LIMIT {inbox.LOOKED_AT}" in captured[-1]["sql"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("backwards", [False, True])
def test_each_list_walks_an_index_in_its_own_order(
    view: str, backwards: bool, start_run: StartRun, people: People, clock: Clock
) -> None:
    """However much else waits: no table is read as a whole, and nothing is sorted but the two ends that meet."""
    many(start_run, people, 4)
    position = (clock.now(), uuid.uuid4())
    with CaptureQueriesContext(connection) as captured:
        inbox.listed(people["approver"].actor, view, Cut(50, position, backwards=backwards))
    (statement,) = [one["sql"] for one in captured if "UNION ALL" in one["sql"]]
    with connection.cursor() as cursor:
        for other in ("seqscan", "bitmapscan", "sort"):
            cursor.execute(f"SET LOCAL enable_{other} = off")
        cursor.execute(f"EXPLAIN {statement}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    expected = {DECIDED: ("gate_closed", "approval_request_closed")}
    expected[ASKED] = ("gate_waiting", "approval_request_by_person")
    for index in expected.get(view, ("gate_waiting", "approval_request_waiting")):
        assert f"using {index}" in plan, plan
    assert "Seq Scan" not in plan, plan
    assert "Sort  (" not in plan, plan


def test_moves_close_what_the_inbox_shows(start_run: StartRun, people: People) -> None:
    """A gate that ends with its run says so, and is nobody's any more."""
    run = start_run(BEFORE)
    gate = gate_of(run)
    with transaction.atomic():
        moves = Moves.lock([run.id])
        moves.end_run(moves.runs[run.id], RunStatus.CANCELLED, reason="gone")
        moves.save()
    item = inbox.find(people["approver"].actor, gate.id)
    assert (item.state, item.may_decide) == ("cancelled", False)
    assert item.over is not None
    assert item.over.code == "execution_state_invalid"
    assert ids(people["approver"].actor, DECIDED) == [gate.id]
