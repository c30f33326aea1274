"""Approve, reject, cancel, expire and the deadline in the same instant: each gate ends one way, and all views agree.

Every round lets eight connections loose on one gate. What each of them was answered must fit what the gate became, the
run, its stage, its decisions, its timeline and its audit must tell the same, and so must the APIs; and what follows an
approval is done once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from approvals.transitions import Decision, decide_gate
from pipelines import sweeps
from pipelines.access import Actor, person
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Event, Gate, Notice, Run, Workspace
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Api, Hand, Person
from tests.concurrency.crew import Act, Crew
from tests.engine_model.invariants import assert_invariants
from tests.factories import MemberFactory
from tests.pipelines.engine import attempts, gate, stage, states, status

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]
# what who comes too late is told of a gate that ended this way
TOO_LATE = {
    "approved": {"gate_decision_conflict"},
    "rejected": {"gate_decision_conflict"},
    "expired": {"approval_stale"},
    "cancelled": {"execution_state_invalid", "deadline_exceeded"},
}


@dataclass
class Arena:
    """One workspace, its application with two workers, and eight people who may decide."""

    crew: Crew
    start_run: StartRun
    hands: list[Hand]
    application: Actor
    operator: Actor
    deciders: list[Actor]
    viewer: Api
    dice: random.Random

    def open_gate(self, moment: str, count: int, end: str, key: int) -> Run:
        """A run whose stage `post` waits; its gate or deadline ends within the race where `end` says so."""
        approval = {"when": moment, "count": count, "expires_in": 3600}
        run = self.start_run({"name": "post", "approval": approval}, "tell", key=f"race-{key}", deadline_seconds=3600)
        if moment == "after":
            self.hands[0].report(self.hands[0].take(), output={"total": 7})
        assert states(run) == {"post": "waiting", "tell": "pending"}
        soon = f"recourse_now() + interval '{self.dice.choice([0, 1, 2, 4, 8])} milliseconds'"
        if end == "expire":
            execute("ALTER TABLE pipelines_gate DISABLE TRIGGER USER")
            execute(f"UPDATE pipelines_gate SET expires_at = {soon} WHERE run_id = %s", [run.id])
            execute("ALTER TABLE pipelines_gate ENABLE TRIGGER USER")
        if end == "deadline":
            execute(f"UPDATE pipelines_run SET deadline_at = {soon} WHERE id = %s", [run.id])
        return run

    def acts(self, run: Run, count: int, end: str) -> list[Act]:
        """Eight of them, mixed: people and the application decide, somebody cancels, the clock's sweeps come by."""
        target, waiting = stage(run, "post").id, gate(run, "post").id
        people = self.dice.sample(self.deciders, 6)

        def by(actor: Actor, approved: bool, reason: str) -> Act:
            return lambda: decide_gate(target, actor=actor, approved=approved, reason=reason, gate_id=waiting)

        reject = self.dice.random() < 0.5
        acts = [by(actor, not (reject and not number), "looked at it") for number, actor in enumerate(people[:4])]
        acts.append(by(people[0], not reject, "looked at it"))  # a double click
        if count == 1:
            acts.append(lambda: decide_gate(target, actor=self.application, approved=True))
        else:
            acts.append(by(people[4], True, ""))
        if end == "cancel":
            acts.append(lambda: self.cancel(run))
        else:
            acts.append(by(people[5], self.dice.random() < 0.8, "late"))
        acts.append(sweeps.enforce_deadlines if end == "deadline" else sweeps.expire_gates)
        self.dice.shuffle(acts)
        return acts

    def cancel(self, run: Run) -> None:
        """Takes the run away, unless a rejection has ended it already."""
        try:
            cancel_run(run.id, actor=self.operator, reason="wrong file")
        except Refusal as refusal:
            if (refusal.code, status(run)) != ("execution_state_invalid", "failed"):
                raise

    def race(self, number: int) -> str:
        moment, count = self.dice.choice(["before", "after"]), self.dice.choice([1, 1, 2, 3])
        end = self.dice.choice(["", "cancel", "expire", "deadline"])
        run = self.open_gate(moment, count, end, number)
        answers = self.crew.at_once(*self.acts(run, count, end))
        sweeps.sweep()
        self.check(run, moment, count, answers)
        return str(gate(run, "post").state)

    def check(self, run: Run, moment: str, count: int, answers: list[Any]) -> None:
        found = gate(run, "post")
        assert found.state != "open", "four approvals, or a rejection, settle every gate"
        said = [answer for answer in answers if isinstance(answer, Decision)]
        refused = {answer.code for answer in answers if isinstance(answer, Refusal)}
        assert {one.gate_state for one in said} <= {"open", found.state}
        assert refused <= TOO_LATE[found.state]
        decisions = list(found.decisions.order_by("id"))
        yes, no = ([one for one in decisions if one.approved is wanted] for wanted in (True, False))
        assert len({(one.user_id, one.application_id) for one in decisions}) == len(decisions)
        assert (len(yes) == count and not no) == (found.state == "approved")
        assert (len(no) == 1) == (found.state == "rejected")
        assert len(yes) <= count
        self.check_views(run, found, len(yes), len(no))
        self.check_work(run, found, moment)

    def check_views(self, run: Run, found: Gate, yes: int, no: int) -> None:
        """Timeline, audit, notices and what the API answers, against gate and stage."""
        verb = {"approved": "approve", "rejected": "reject", "expired": "expire", "cancelled": "cancel"}[found.state]
        told = Counter(Event.objects.filter(run=run, kind__startswith="gate.").values_list("kind", flat=True))
        closing = int(found.state == "approved")
        votes = {"gate.vote": yes - closing} if yes > closing else {}
        assert told == {"gate.open": 1, f"gate.{verb}": 1, **votes}
        allowed = AuditEvent.objects.filter(run=run.id, outcome="allowed", action__startswith="gate.")
        assert Counter(allowed.values_list("action", flat=True)) == Counter(
            {name: count for name, count in (("gate.approve", yes), ("gate.reject", no)) if count}
        )
        decided = found.state in ("approved", "rejected")
        notices = Counter(Notice.objects.filter(subject=found.id).values_list("kind", flat=True))
        wanted = {"decided": 1} if decided else {"expired": 1} if found.state == "expired" else {}
        assert notices == {"gate_opened": 1, **wanted}
        shown = self.viewer.get(f"/v1/executions/{run.id}").json()
        listed = self.viewer.get(f"/v1/executions/{run.id}/stages").json()["results"]
        assert shown["status"] == status(run)
        assert {one["name"]: one["status"] for one in listed} == states(run)
        closed = self.viewer.get("/v1/approvals?view=decided").json()["results"]
        assert {one["id"]: one["state"] for one in closed}[str(found.id)] == found.state
        assert self.viewer.get("/v1/approvals?view=waiting").json()["results"] == []

    def check_work(self, run: Run, found: Gate, moment: str) -> None:
        """What follows an approval is done once, whichever of two workers is faster; after any other end, nothing."""
        pulled = self.crew.at_once(*(lambda hand=hand: hand.pull(5) for hand in self.hands))
        jobs = [(hand, job) for hand, some in zip(self.hands, pulled, strict=True) for job in some]
        run.refresh_from_db()
        done_before = [] if moment == "before" else ["succeeded"]
        if found.state == "approved" and not (run.status == "cancelled" or run.failure_code == "deadline_exceeded"):
            assert [job.stage.name for _, job in jobs] == ["post" if moment == "before" else "tell"]
            for hand, job in jobs:
                assert hand.report(job, output=1).accepted
            self.hands[0].finish()
            assert (states(run), status(run)) == ({"post": "completed", "tell": "completed"}, "completed")
            assert (attempts(run, "post"), attempts(run, "tell")) == (["succeeded"], ["succeeded"])
            return
        assert jobs == []
        ended = {"rejected": "failed", "expired": "failed", "cancelled": "cancelled"}
        kept = "completed" if moment == "after" else "cancelled"  # approved, and the run taken away right after
        assert states(run)["post"] == ended.get(found.state, kept)
        assert run.status in ("failed", "cancelled")
        assert (attempts(run, "post"), attempts(run, "tell")) == (done_before, [])


@pytest.fixture
def arena(
    crew: Crew,
    start_run: StartRun,
    new_hand: NewHand,
    workspace: Workspace,
    application_actor: Actor,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
) -> Arena:
    deciders = []
    for number in range(8):
        role = ("approver", "release_manager", "admin")[number % 3]
        actor = person(MemberFactory(workspace=workspace, role=role).user, workspace.id, "api")
        assert actor is not None
        deciders.append(actor)
    hands = [new_hand(f"hand-{number}") for number in range(2)]
    operator = people["operator"].actor
    return Arena(
        crew, start_run, hands, application_actor, operator, deciders, as_person(people["viewer"]), random.Random(85)
    )


def races(arena: Arena, rounds: int) -> None:
    outcomes = Counter(arena.race(number) for number in range(rounds))
    assert set(outcomes) == set(TOO_LATE), f"each way to end must have won some time: {outcomes}"


def test_a_gate_ends_one_way_whatever_comes_at_once(arena: Arena) -> None:
    """P79–P82, I5, I9, F136, F138, R30: hundreds of calls, eight at a time, on one gate after the other."""
    races(arena, 100)


@pytest.mark.prove
def test_thousands_of_decisions_leave_every_gate_with_one_end(arena: Arena) -> None:
    """The same at length: eight thousand calls."""
    races(arena, 1000)
    assert_invariants()
