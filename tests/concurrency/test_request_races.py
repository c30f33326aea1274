"""Approve, reject, withdraw, ask again, cancel, expire and the sweeps at once: each request ends one way.

Every round lets eight connections loose on one request. What each of them was answered must fit what it became; the
request, its operation, its decisions, the run, the notices, the audit and what the APIs show must tell the same; and
what was agreed to is done once, or not at all.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from approvals.models import ApprovalRequest
from approvals.requests import Answer, decide_request, expire_due, withdraw
from pipelines import sweeps
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Notice, Run, Workspace
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from recovery import forks
from recovery.models import Operation
from recovery.operations import Done
from recovery.states import OperationKind
from tests.approvals.asked import join, rounds, rule
from tests.cast import Api, Hand, Person
from tests.concurrency.crew import Act, Crew
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds, stage
from tests.verbs import retry_stage, skip_stage

StartRun = Callable[..., Run]
# what who comes too late is told of a request that ended this way
OVER = {"execution_state_invalid", "deadline_exceeded"}
TOO_LATE = {
    "approved": {"gate_decision_conflict"},
    "rejected": {"gate_decision_conflict", "recovery_denied", *OVER},
    "withdrawn": {"approval_stale", *OVER},
    "expired": {"approval_stale", *OVER},
}
FOLLOWED = {"rejected": "denied", "withdrawn": "withdrawn", "expired": "expired"}


@dataclass
class Arena:
    """One workspace, whose rules ask for one, two or three approvers, and eight people who may decide."""

    crew: Crew
    start_run: StartRun
    hand: Hand
    workspace: Workspace
    operator: Actor
    deciders: list[Actor]
    viewer: Api
    dice: random.Random

    def begin(self, kind: str, key: str) -> Run:
        """A run whose first stage can be retried, skipped or begun anew in a fork."""
        run = self.start_run("post", "tell", key=key, deadline_seconds=3600)
        if kind != "skip":
            self.hand.report(self.hand.take(), "failed", error_code="BUSINESS_REJECTED")
        return run

    def ask(self, kind: str, run: Run, key: str) -> Done:
        match kind:
            case "retry":
                return retry_stage(stage(run, "post").id, actor=self.operator, reason="again", key=key)
            case "skip":
                return skip_stage(stage(run, "post").id, actor=self.operator, reason="by hand", key=key)
            case _:
                found = Run.objects.select_related("environment", "pipeline").get(id=run.id)
                asked = forks.ask_fork(OperationKind.RERUN, found, forks.Wish(), actor=self.operator)
                return forks.fork(asked, actor=self.operator, key=key)

    def acts(self, kind: str, run: Run, asked: Done, key: str, end: str) -> list[Act]:
        """Eight of them, mixed: people decide, the requester asks again or withdraws, sweeps come by."""
        people = self.dice.sample(self.deciders, 5)
        subject = asked.operation_id

        def by(actor: Actor, approved: bool) -> Act:
            return lambda: decide_request(subject, actor=actor, approved=approved, reason="looked at it")

        rejects = self.dice.random() < 0.4
        acts = [by(actor, not (rejects and not number)) for number, actor in enumerate(people[:4])]
        acts.append(by(people[0], not rejects))  # a double click
        acts.append(lambda: self.ask(kind, run, key))
        match end:
            case "withdraw":
                acts.append(lambda: withdraw(subject, actor=self.operator))
            case "cancel":
                acts.append(lambda: cancel_run(run.id, actor=self.deciders[0], reason="wrong file"))
            case "deadline":
                acts.append(sweeps.enforce_deadlines)
            case _:
                acts.append(by(people[4], self.dice.random() < 0.8))
        acts.append(expire_due if end else lambda: forks.carry_on_reserved(quiet_seconds=0))
        self.dice.shuffle(acts)
        return acts

    def race(self, number: int) -> str:
        kind, count = self.dice.choice(["retry", "skip", "rerun"]), self.dice.choice([1, 1, 2, 3])
        ends = ["", "withdraw", "expire", *(["cancel", "deadline"] if kind == "skip" else [])]
        end, key = self.dice.choice(ends), str(uuid.UUID(int=number + 1))
        made = rule(self.workspace, kind, count=count)
        run = self.begin(kind, key)
        asked = self.ask(kind, run, key)
        assert asked.status == "awaiting_approval"
        soon = f"recourse_now() + interval '{self.dice.choice([0, 1, 2, 4, 8])} milliseconds'"
        if end == "expire":
            execute("ALTER TABLE approvals_approvalrequest DISABLE TRIGGER USER")
            execute(
                f"UPDATE approvals_approvalrequest SET expires_at = {soon} WHERE subject = %s", [asked.operation_id]
            )
            execute("ALTER TABLE approvals_approvalrequest ENABLE TRIGGER USER")
        if end == "deadline":
            execute(f"UPDATE pipelines_run SET deadline_at = {soon} WHERE id = %s", [run.id])
        answers = self.crew.at_once(*self.acts(kind, run, asked, key, end))
        sweeps.sweep()
        expire_due()
        forks.carry_on_reserved(quiet_seconds=0)
        made.delete()
        self.check(kind, run, asked.operation_id, count, answers)
        self.hand.finish()
        return str(rounds(asked.operation_id)[-1].state)

    def check(self, kind: str, run: Run, subject: uuid.UUID, count: int, answers: list[Any]) -> None:
        (found,) = rounds(subject)
        assert found.state != "open", "four approvals, or a rejection, settle every request"
        said = [answer for answer in answers if isinstance(answer, Answer)]
        refused = {answer.code for answer in answers if isinstance(answer, Refusal)}
        assert {one.state for one in said} <= {"open", found.state}
        assert refused <= TOO_LATE[found.state], (kind, found.state, refused)
        decisions = list(found.decisions.order_by("id"))
        yes, no = ([one for one in decisions if one.approved is wanted] for wanted in (True, False))
        assert len({one.user_id for one in decisions}) == len(decisions)
        assert (len(yes) == count and not no) == (found.state == "approved")
        assert (len(no) == 1) == (found.state == "rejected")
        assert len(yes) <= count
        again = [answer for answer in answers if isinstance(answer, Done)]
        assert {one.operation_id for one in again} <= {subject}
        self.check_work(kind, run, subject, found)
        self.check_views(run, subject, found, len(yes), len(no))

    def check_work(self, kind: str, run: Run, subject: uuid.UUID, found: ApprovalRequest) -> None:
        """What was agreed to is done once; after any other end, nothing of it."""
        operation = Operation.objects.get(id=subject)
        done = int(found.state == "approved")
        targets = list(Run.objects.filter(recovered_from=run))
        if kind == "rerun":
            assert len(targets) == done
            assert [target.id for target in targets] == ([operation.target] if done else [])
            assert operation.state == ("dispatched" if done else FOLLOWED[found.state])
            return
        assert targets == []
        assert kinds(run, "post").count(f"stage.{kind}") == done
        assert stage(run, "post").epoch == (2 if done and kind == "retry" else 1)
        assert operation.state == ("succeeded" if done else FOLLOWED[found.state])

    def check_views(self, run: Run, subject: uuid.UUID, found: ApprovalRequest, yes: int, no: int) -> None:
        """Audit, notices and what the API answers, against the request."""
        allowed = AuditEvent.objects.filter(run=run.id, outcome="allowed", action__startswith="operation.")
        wanted = {"operation.approve": yes, "operation.reject": no}
        wanted["operation.withdraw"] = int(found.state == "withdrawn")
        assert Counter(allowed.values_list("action", flat=True)) == Counter(wanted) - Counter()
        told = Counter(Notice.objects.filter(subject=subject).values_list("kind", flat=True))
        closing = {"approved": {"decided": 1}, "rejected": {"decided": 1}, "expired": {"expired": 1}}
        assert told == {"approval_asked": 1, **closing.get(found.state, {})}
        (listed,) = self.viewer.get(f"/v1/operations?execution_id={run.id}").json()["results"]
        operation = Operation.objects.get(id=subject)
        assert (listed["id"], listed["status"]) == (str(subject), operation.state)
        waiting = self.viewer.get("/v1/approvals").json()["results"]
        assert str(subject) not in {one["id"] for one in waiting}


@pytest.fixture
def arena(
    crew: Crew,
    start_run: StartRun,
    hand: Hand,
    workspace: Workspace,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
) -> Arena:
    roles = ("admin", "approver", "release_manager")
    deciders = [join(workspace, roles[number % 3], f"decider-{number}") for number in range(8)]
    viewer = as_person(people["viewer"])
    return Arena(crew, start_run, hand, workspace, people["operator"].actor, deciders, viewer, random.Random(77))


def races(arena: Arena, number: int) -> None:
    outcomes = Counter(arena.race(one) for one in range(number))
    assert set(outcomes) == set(TOO_LATE), f"each way to end must have won some time: {outcomes}"


def test_a_request_ends_one_way_whatever_comes_at_once(arena: Arena) -> None:
    """I10, F136, F138: hundreds of calls, eight at a time, on one request after the other."""
    races(arena, 100)


@pytest.mark.prove
def test_thousands_of_calls_leave_every_request_with_one_end(arena: Arena) -> None:
    """The same at length: eight thousand calls."""
    races(arena, 1000)
    assert_invariants()
