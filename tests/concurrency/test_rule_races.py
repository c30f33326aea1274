"""Rules that change in the middle of a decision: agreed to as it was seen, or asked anew; never half, never a 5xx."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from approvals import rule_rows
from approvals.models import ApprovalRequest
from approvals.requests import decide_request
from pipelines.errors import Refusal
from pipelines.models import Member, Run
from recovery import forks
from recovery.models import Operation
from recovery.states import OperationKind
from tests.cast import Hand, Person, stages_of
from tests.concurrency.crew import Crew
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
RULE = {
    "name": "careful",
    "kinds": ["rerun", "retry"],
    "environments": [],
    "pipelines": [],
    "counted": "",
    "at_least": 1,
    "role": "approver",
    "count": 1,
    "expires_in": 3600,
    "enabled": True,
}


class Between:
    """Has something committed on another connection just before this one's n-th look at a table."""

    def __init__(self, table: str, nth: int, act: Callable[[], Any], crew: Crew) -> None:
        self.table, self.nth, self.act, self.crew = table, nth, act, crew
        self.looks = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if f'FROM "{self.table}"' in sql:
            self.looks += 1
            if self.looks == self.nth:
                self.crew.at_once(self.act)
        return execute(sql, params, many, context)


@pytest.mark.parametrize("kind", ["retry", "rerun"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_rule_made_stricter_in_the_middle_of_a_decision_is_heeded_or_comes_too_late(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person], kind: str, nth: int
) -> None:
    """Model §4.6, ADR 0069: whenever it commits, one of two things is so, in all that is kept."""
    run = start_run("first", "second")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    rule = rule_rows.add_rule(actor=people["admin"].actor, wanted=RULE)
    operator, approver = people["operator"].actor, people["approver"].actor
    if kind == "retry":
        asked = retry_stage(stages_of(run)[1].id, actor=operator)
    else:
        wish = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=operator)
        asked = forks.fork(wish, actor=operator)
    assert asked.status == "awaiting_approval"
    boss = people["admin"].actor
    stricter = partial(rule_rows.change_rule, rule.id, actor=boss, changes={"count": 2})
    between = Between("approvals_approvalrule", nth, stricter, crew)
    try:
        with connection.execute_wrapper(between):
            answer: Any = decide_request(asked.operation_id, actor=approver, approved=True)
    except Refusal as refusal:
        answer = refusal
    operation = Operation.objects.get(id=asked.operation_id)
    rounds = list(ApprovalRequest.objects.filter(subject=operation.id).order_by("round"))
    epochs = [stage.epoch for stage in stages_of(run)]
    made = Run.objects.filter(recovered_from=run).count()
    if isinstance(answer, Refusal):
        assert answer.code == "plan_changed"
        assert answer.extra["plan"]["approvals"][0]["count"] == 2
        assert (epochs, made) == ([1, 1], 0)
        if operation.state == "failed":
            assert (kind, nth) == ("rerun", 3), "agreed to, and then another was asked for before the run was made"
        else:
            assert decide_again(operation, people) == "approved"
    else:
        assert answer.state == "approved"
        assert len(rounds) == 1
        assert (epochs, made) == (([1, 2], 0) if kind == "retry" else ([1, 1], 1))


@pytest.mark.parametrize("nth", range(1, 8))
def test_an_approval_that_becomes_void_in_the_middle_of_the_last_one_counts_all_through_or_not_at_all(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person], nth: int
) -> None:
    """F130's neighbour: who agreed first is removed between any two looks at the members."""
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    rule_rows.add_rule(actor=people["admin"].actor, wanted={**RULE, "count": 2})
    asked = retry_stage(stages_of(run)[0].id, actor=people["operator"].actor)
    decide_request(asked.operation_id, actor=people["release_manager"].actor, approved=True)
    leave = Member.objects.filter(user=people["release_manager"].user).delete
    with connection.execute_wrapper(Between("pipelines_member", nth, leave, crew)):
        try:
            answer: Any = decide_request(asked.operation_id, actor=people["approver"].actor, approved=True)
        except Refusal as refusal:
            answer = refusal
    request, (stage,) = ApprovalRequest.objects.get(subject=asked.operation_id), stages_of(run)
    if isinstance(answer, Refusal):
        assert (answer.code, request.state, stage.epoch) == ("approval_stale", "open", 1)
    elif answer.state == "open":
        assert (answer.have, request.state, stage.epoch) == (1, "open", 1)
    else:
        assert (answer.state, request.state, stage.epoch) == ("approved", "approved", 2)


def decide_again(operation: Operation, people: dict[str, Person]) -> str:
    """Both who are needed by now agree to the plan that waits; an admin has it asked for anew first."""
    waits = ApprovalRequest.objects.get(subject=operation.id, state="open")
    if waits.count == 1:
        with pytest.raises(Refusal) as refused:
            decide_request(operation.id, actor=people["admin"].actor, approved=True)
        assert refused.value.code == "plan_changed"
    for role in ("approver", "release_manager"):
        shown = ApprovalRequest.objects.get(subject=operation.id, state="open").plan_digest
        decided = decide_request(operation.id, actor=people[role].actor, approved=True, plan_digest=shown)
    return decided.state
