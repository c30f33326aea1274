"""Who decides a gate, and how many of them: four eyes, roles, quorum, and what a decision is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from approvals.transitions import Decision, decide_gate
from approvals.votes import so_far
from pipelines import sweeps
from pipelines.access import Actor, person
from pipelines.creation import Intent, Place, create_run
from pipelines.models import AuditEvent, Gate, GateDecision, Member, Notice, Run, Workspace
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person, stage_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.factories import MemberFactory
from tests.pipelines.engine import everything, gate, kinds, last_event, refused, stage, states, status
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
People = dict[str, Person]
DECIDERS = ("approver", "release_manager", "admin")


@pytest.fixture
def start_by(place: Place) -> StartRun:
    """A run that a person started: start_by(people["admin"], {"name": "post", "approval": {…}})."""

    def start(who: Person, *stages: Any) -> Run:
        intent = Intent(name="nightly", stages=[stage_of(one) for one in stages])
        run_id, _ = create_run(place, intent, key=None, actor=who.actor.name, user_id=who.user.id)
        return Run.objects.get(id=run_id)

    return start


@pytest.fixture
def colleague(workspace: Workspace) -> Callable[[str], Actor]:
    """Another member of a role: colleague("approver")."""

    def join(role: str) -> Actor:
        actor = person(MemberFactory(workspace=workspace, role=role).user, workspace.id, "api")
        assert actor is not None
        return actor

    return join


def gated(name: str = "post", when: str = "before", **asked: Any) -> dict[str, Any]:
    return {"name": name, "approval": {"when": when, **asked}}


def decide(run: Run, actor: Actor, approved: bool = True, name: str = "post", **told: Any) -> Decision:
    return decide_gate(stage(run, name).id, actor=actor, approved=approved, **told)


def denied() -> list[tuple[str, str]]:
    """Who was denied what, as the audit tells it."""
    return list(AuditEvent.objects.filter(outcome="denied").order_by("id").values_list("actor", "code"))


# who asked for it


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("is_superuser", [False, True])
def test_who_started_a_run_decides_none_of_its_gates(
    start_by: StartRun, people: People, approved: bool, is_superuser: bool
) -> None:
    """F130, F131: whatever their role, and as a superuser neither; the audit says who tried."""
    asker = people["admin"]
    asker.user.is_superuser = asker.user.is_staff = is_superuser
    asker.user.save()
    run = start_by(asker, gated())
    with refused("self_approval"):
        decide(run, asker.actor, approved, reason="trust me")
    assert denied() == [(asker.actor.name, "self_approval")]
    assert decide(run, people["approver"].actor).gate_state == "approved"


def test_who_retried_a_run_decides_none_of_its_gates_any_more(start_run: StartRun, hand: Hand, people: People) -> None:
    """Model §2: whoever started, forked or retried the run asked for its gates."""
    run = start_run("load", gated())
    hand.report(hand.take(), "failed", error_code="FOO")
    retry_stage(stage(run, "load").id, actor=people["admin"].actor)
    hand.report(hand.take())
    with refused("self_approval"):
        decide(run, people["admin"].actor)
    assert decide(run, people["release_manager"].actor).gate_state == "approved"


def test_an_approval_of_somebody_who_then_asks_for_it_counts_no_more(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """Four eyes are counted again with every decision."""
    run = start_run("load", gated("left", count=2), {"name": "join", "depends_on": ["load", "left"]})
    (job,) = hand.pull()
    hand.report(job, "failed", error_code="FOO")
    assert decide(run, people["admin"].actor, name="left").have == 1
    retry_stage(stage(run, "load").id, actor=people["admin"].actor)
    assert so_far(list(Gate.objects.filter(stage__name="left"))) == {gate(run, "left").id: 0}
    assert decide(run, people["approver"].actor, name="left").gate_state == "open"
    assert decide(run, people["release_manager"].actor, name="left").gate_state == "approved"
    assert_invariants()


def test_of_a_fork_whose_people_nobody_knows_no_person_can_be_the_second(
    start_run: StartRun, people: People, application_actor: Actor
) -> None:
    """F133: refused with what to do; the application, which asks for nothing, may still decide its own stage."""
    source, run = start_run("load", key="source"), start_run(gated(), key="fork")
    Run.objects.filter(id=run.id).update(recovered_from=source)
    for role in DECIDERS:
        with refused("permission_denied"):
            decide(run, people[role].actor)
    assert len(denied()) == 3
    with pytest.raises(Exception, match="cancel it and ask anew"):
        decide(run, people["admin"].actor)
    assert decide(run, application_actor).gate_state == "approved"


# roles


@pytest.mark.parametrize("role", ["", *DECIDERS])
def test_a_role_includes_those_above_it_and_no_other(start_run: StartRun, people: People, role: str) -> None:
    """F140."""
    asked = {"approver_role": role} if role else {}
    may = DECIDERS[DECIDERS.index(role) :] if role else DECIDERS
    for who in ("viewer", "operator", *DECIDERS):
        run = start_run(gated(**asked), key=who)
        if who in may:
            decide(run, people[who].actor)
            assert (states(run), GateDecision.objects.latest("id").role) == ({"post": "ready"}, who)
        else:
            with refused("permission_denied"):
                decide(run, people[who].actor)


def test_a_role_that_was_got_after_the_gate_opened_does_not_count(
    start_run: StartRun, workspace: Workspace, people: People, clock: Clock
) -> None:
    """F135: nobody makes themselves, or is made, a decider of what is asked already; of what is asked next, yes."""
    run = start_run(gated())
    clock.advance(1)
    Member.objects.filter(workspace=workspace, user=people["viewer"].user).update(role="approver")
    promoted = person(people["viewer"].user, workspace.id, "api")
    assert promoted is not None
    with refused("permission_denied"):
        decide(run, promoted)
    assert decide(start_run(gated(), key="next"), promoted).gate_state == "approved"


def test_what_a_session_says_of_the_role_is_not_believed(
    start_run: StartRun, workspace: Workspace, people: People
) -> None:
    """The membership is read again under the lock: an actor made before a demotion has nothing of it."""
    run = start_run(gated())
    Member.objects.filter(workspace=workspace, user=people["approver"].user).update(role="viewer")
    with refused("permission_denied"):
        decide(run, people["approver"].actor)
    Member.objects.filter(workspace=workspace, user=people["admin"].user).delete()
    with refused("permission_denied"):
        decide(run, people["admin"].actor)


@pytest.mark.parametrize("asked", [{"require_person": True}, {"approver_role": "approver"}, {"count": 2}])
@pytest.mark.parametrize("approved", [True, False])
def test_where_a_person_is_required_the_application_decides_nothing(
    start_run: StartRun, application_actor: Actor, people: People, asked: dict[str, Any], approved: bool
) -> None:
    """Model §5: 403, told, and nothing moved; also once people have decided."""
    run = start_run(gated(**asked))
    with refused("permission_denied"):
        decide(run, application_actor, approved)
    assert denied() == [("billing", "permission_denied")]
    decide(run, people["approver"].actor, False, reason="no")
    with refused("permission_denied"):
        decide(run, application_actor, approved)


# quorum


def test_the_last_approval_that_is_needed_closes_the_gate(start_run: StartRun, hand: Hand, people: People) -> None:
    """P79, P83: until then nothing moves but the count, and each vote stands in timeline and audit."""
    run = start_run(gated(count=2), "tell")
    first = decide(run, people["approver"].actor, reason="checked the sums")
    assert (first.stage_state, first.gate_state, first.have, first.need) == ("waiting", "open", 1, 2)
    assert (states(run)["post"], status(run), hand.pull()) == ("waiting", "waiting", [])
    vote = last_event(run, "gate.vote")
    assert (vote.actor, vote.reason) == ("approver-acme", "checked the sums")
    assert vote.data == {"gate": str(first.gate_id), "have": 1, "need": 2}
    assert not Notice.objects.filter(kind="decided").exists()

    last = decide(run, people["admin"].actor)
    assert (last.stage_state, last.gate_state, last.have, last.need) == ("ready", "approved", 2, 2)
    assert [kind for kind in kinds(run, "post") if kind in ("gate.vote", "gate.approve")] == [
        "gate.vote",
        "gate.approve",
    ]
    told = AuditEvent.objects.filter(action="gate.approve").order_by("id").values_list("actor", "outcome", "data")
    assert [(who, outcome, data["have"], data["need"]) for who, outcome, data in told] == [
        ("approver-acme", "allowed", 1, 2),
        ("admin-acme", "allowed", 2, 2),
    ]
    assert hand.take().stage.name == "post"
    assert_invariants()


def test_one_person_counts_once(start_run: StartRun, people: People) -> None:
    """Model §5: pressed again, by whichever token, it is the same approval; another one from them is a conflict."""
    run = start_run(gated(count=2))
    first = decide(run, people["approver"].actor, reason="fine")
    before = everything()
    for channel in ("api", "console"):
        again = person(people["approver"].user, run.workspace_id, channel)
        assert again is not None
        assert decide(run, again, reason="fine") == replace(first, replayed=True)
    assert everything() == before
    assert list(AuditEvent.objects.order_by("id").values_list("outcome", flat=True)) == ["allowed", "no_op", "no_op"]
    for approved, reason in ((True, "very fine"), (False, "on second thoughts"), (True, "")):
        with refused("gate_decision_conflict"):
            decide(run, people["approver"].actor, approved, reason=reason)
    with pytest.raises(IntegrityError), transaction.atomic():
        GateDecision.objects.create(gate=gate(run, "post"), user=people["approver"].user, approved=True)


def test_one_rejection_is_final_at_once_whoever_approved_before(start_run: StartRun, people: People) -> None:
    """P80, I9."""
    run = start_run(gated(count=3), "tell")
    decide(run, people["approver"].actor)
    decide(run, people["release_manager"].actor)
    ended = decide(run, people["admin"].actor, False, reason="the sums are wrong")
    assert (ended.gate_state, ended.have, ended.need) == ("rejected", 2, 3)
    assert (states(run)["post"], stage(run, "post").failure_disposition) == ("failed", "gate_denied")
    assert_invariants()


@pytest.mark.parametrize("how", ["removed", "back again", "demoted", "promoted", "locked out"])
def test_an_approval_is_void_once_its_giver_is_not_who_they_were(
    start_run: StartRun, workspace: Workspace, people: People, clock: Clock, how: str, colleague: Callable[[str], Actor]
) -> None:
    """Model §5, ADR 0069: whoever had the role when it was asked must look."""
    one, other = people["approver"], people["admin"]
    third = colleague("approver")
    run = start_run(gated(count=2))
    decide(run, one.actor, reason="fine")
    clock.advance(1)
    member = Member.objects.filter(workspace=workspace, user=one.user)
    if how in ("removed", "back again"):
        member.delete()
    if how == "back again":
        MemberFactory(workspace=workspace, user=one.user, role="approver")
    if how in ("demoted", "promoted"):
        member.update(role={"demoted": "operator", "promoted": "admin"}[how])
    if how == "locked out":
        one.user.is_active = False
        one.user.save()
    second = decide(run, other.actor)
    assert (second.gate_state, second.have) == ("open", 1)
    with refused("permission_denied"):
        decide(run, one.actor, reason="fine")
    assert decide(run, third).gate_state == "approved"
    assert_invariants()


def test_a_repeat_of_what_closed_a_gate_is_accepted_from_each_who_voted(
    start_run: StartRun, people: People, colleague: Callable[[str], Actor]
) -> None:
    """P81: also from the one whose vote did not close it; whoever comes new is too late."""
    third = colleague("approver")
    run = start_run(gated(count=2))
    decide(run, people["approver"].actor, reason="fine")
    closed = decide(run, people["admin"].actor)
    before = everything()
    again = decide(run, people["approver"].actor, reason="fine")
    assert (again.gate_state, again.have, again.need, again.replayed) == ("approved", 2, 2, True)
    assert decide(run, people["admin"].actor) == replace(closed, replayed=True) != closed
    assert everything() == before
    with refused("gate_decision_conflict"):
        decide(run, third)
    with refused("gate_decision_conflict"):
        decide(run, people["approver"].actor, False, reason="no")


def test_people_give_a_reason_to_reject_and_applications_need_none(
    start_run: StartRun, people: People, application_actor: Actor
) -> None:
    """P80: contract §2 lets the application leave it out."""
    run = start_run(gated())
    for nothing in ("", "   "):
        with refused("validation_error"):
            decide(run, people["approver"].actor, False, reason=nothing)
    assert decide(run, application_actor, False).gate_state == "rejected"


# which gate


def old_gate(run: Run, hand: Hand, people: People, clock: Clock, end: str) -> Gate:
    """A gate after the work of `post` that ended this way, with the stage waiting at a newer one in its next epoch."""
    hand.report(hand.take(), output={"total": 7})
    found = gate(run, "post")
    if end == "approved":
        decide(run, people["approver"].actor, reason="fine")
    else:
        clock.advance(600)
        sweeps.expire_gates()
    retry_stage(stage(run, "post").id, actor=people["operator"].actor, reason="again")
    hand.report(hand.take(), output={"total": 8})
    found.refresh_from_db()
    assert (found.state, states(run)["post"]) == (end, "waiting")
    return found


@pytest.mark.parametrize(("end", "code"), [("approved", "gate_decision_conflict"), ("expired", "approval_stale")])
def test_a_decision_about_an_older_gate_never_touches_a_newer_attempt(
    start_run: StartRun, hand: Hand, people: People, clock: Clock, end: str, code: str
) -> None:
    """F136, F139: who looked at the first result decides about the first result, or is told that it is over."""
    run = start_run(gated(when="after", expires_in=600))
    older = old_gate(run, hand, people, clock, end)
    for approved in (True, False):
        with refused(code):
            decide(run, people["admin"].actor, approved, reason="seen", gate_id=older.id)
    if end == "approved":
        before = everything()
        assert decide(run, people["approver"].actor, reason="fine", gate_id=older.id).gate_state == "approved"
        assert everything() == before
    newer = gate(run, "post")
    assert (newer.state, newer.epoch, newer.attempt == older.attempt) == ("open", 2, False)
    assert newer.request_digest != "" != older.request_digest
    assert decide(run, people["approver"].actor, reason="fine", gate_id=newer.id).stage_state == "completed"
    assert_invariants()


def test_a_gate_that_was_cancelled_says_so_although_another_is_open(
    start_run: StartRun, hand: Hand, people: People
) -> None:
    """A stage that waits again for an earlier one has its gate cancelled, and gets another."""
    run = start_run("load", gated())
    hand.finish()
    first = gate(run, "post")
    retry_stage(stage(run, "load").id, actor=people["operator"].actor, reason="wrong file", scope="stage")
    hand.finish()
    assert (Gate.objects.get(id=first.id).state, gate(run, "post").state) == ("cancelled", "open")
    with refused("stage_state_invalid"):
        decide(run, people["approver"].actor, gate_id=first.id)
    cancel_run(run.id, actor=people["operator"].actor)
    with refused("execution_state_invalid"):
        decide(run, people["approver"].actor, gate_id=first.id)


def test_the_gate_of_another_stage_is_not_found(start_run: StartRun, people: People) -> None:
    """I16: an id decides what it names, and nothing beside it."""
    run, other = start_run(gated(), key="one"), start_run(gated(), key="two")
    with refused("not_found"):
        decide(run, people["approver"].actor, gate_id=gate(other, "post").id)


@pytest.mark.parametrize("changed", ["request_digest = 'x'", "attempt = gen_random_uuid()"])
def test_a_gate_about_another_attempt_than_the_newest_is_not_decided(
    start_run: StartRun, hand: Hand, people: People, changed: str
) -> None:
    """Model §2: bound to attempt and request digest; nobody may write otherwise, and its owner is found out."""
    run = start_run(gated(when="after"))
    hand.report(hand.take(), output=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        execute(f"UPDATE pipelines_gate SET {changed}")
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    execute("ALTER TABLE pipelines_gate DISABLE TRIGGER USER")
    execute(f"UPDATE pipelines_gate SET {changed}")
    execute("ALTER TABLE pipelines_gate ENABLE TRIGGER USER")
    with refused("stale_execution"):
        decide(run, people["approver"].actor)


# what people are told


def test_what_was_decided_is_told_once(start_run: StartRun, people: People, clock: Clock) -> None:
    approved, rejected = start_run(gated(count=2), key="one"), start_run(gated(), key="two")
    silent = start_run(gated(count=2, expires_in=600), key="three")
    for role in ("approver", "admin", "admin"):
        decide(approved, people[role].actor)
    for _ in range(2):
        decide(rejected, people["admin"].actor, False, reason="no")
    decide(silent, people["approver"].actor)
    clock.advance(600)
    assert (sweeps.expire_gates(), sweeps.expire_gates()) == (1, 0)
    told = Notice.objects.exclude(kind="gate_opened").order_by("id").values_list("kind", "run", "subject", "data")
    assert list(told) == [
        (
            "decided",
            approved.id,
            gate(approved, "post").id,
            {"approved": True, "by": "admin-acme", "have": 2, "need": 2},
        ),
        (
            "decided",
            rejected.id,
            gate(rejected, "post").id,
            {"approved": False, "by": "admin-acme", "have": 0, "need": 1},
        ),
        ("expired", silent.id, gate(silent, "post").id, {"need": 2}),
    ]
    assert stage(silent, "post").last_error_message == "too few decided in time"
