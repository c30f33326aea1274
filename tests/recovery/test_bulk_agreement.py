"""Bulks that others must agree to: one question for all of it, what it covers, and that nothing is done before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from approvals import inbox, requests
from approvals.models import ApprovalRequest
from pipelines.access import Actor
from pipelines.creation import Place
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Blackout, Environment, Run, Workspace
from pipelines.paging import Cut
from recovery import bulk_work, bulks
from recovery.models import BulkOperation
from recovery.screens import bulk_lines
from tests.approvals.asked import agree, reject, rounds, rule
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.recovery.bulked import REASON, K, counted, failing, of, refused, work_through

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


@pytest.fixture
def approver(people: dict[str, Person]) -> Actor:
    return people["approver"].actor


@pytest.fixture
def protected(
    workspace: Workspace, place: Place, environments: dict[str, Environment], start_run: StartRun, operator: Actor
) -> list[Run]:
    """Cancelled runs in production."""
    production = Place(workspace.id, place.application_id, environments["production"].id, "production")
    runs = [start_run(in_place=production) for _ in range(3)]
    for run in runs:
        done = bulks.create(of(K.CANCEL, [run]), actor=operator)
        bulk_work.step(done.bulk.id)
    return runs


def asked(wish: bulks.Wish, actor: Actor) -> BulkOperation:
    done = bulks.create(wish, actor=actor)
    assert done.status == "awaiting_approval"
    return done.bulk


def test_an_operators_replay_in_a_protected_environment_waits_for_one_approver(
    protected: list[Run], operator: Actor, approver: Actor, people: dict[str, Person], clock: Clock
) -> None:
    """Model §5: one question for all of it; once agreed, no target asks again."""
    assert bulks.preview(of(K.REPLAY, protected), actor=people["release_manager"].actor).agreements == ()
    bulk = asked(of(K.REPLAY, protected), operator)
    clock.advance(5)
    assert bulk_work.step(bulk.id) == 0
    assert counted(bulk) == {"pending": 3}
    refused("self_approval", lambda: agree(bulk.id, operator))
    refused("permission_denied", lambda: agree(bulk.id, people["viewer"].actor))
    told = agree(bulk.id, approver)
    assert (told.state, told.status) == ("approved", "running")
    work_through(bulk, clock)
    assert (bulk.state, counted(bulk)) == ("completed", {"done": 3})
    assert ApprovalRequest.objects.count() == 1
    assert Run.objects.filter(recovered_from__in=protected).count() == 3
    assert set(Run.objects.filter(recovered_from__in=protected).values_list("started_by", flat=True)) == {
        operator.user_id
    }


def test_the_strictest_rule_of_all_its_places_is_asked_for(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: dict[str, Person], approver: Actor
) -> None:
    """Rules for bulks by how many runs; rules for the verb; in whichever environment."""
    admin = people["admin"].actor
    rule(workspace, "bulk", count=1, counted="runs", at_least=3)
    rule(workspace, "retry", role="release_manager", count=1, environments=["staging"])
    runs = failing(start_run, hand, 3)
    assert bulks.create(of(K.RETRY, runs[:2]), actor=admin).status == "running"
    bulk = asked(of(K.RETRY, runs), admin)
    assert [(one["role"], one["count"]) for one in bulk.plan["approvals"]] == [("approver", 1)]
    assert agree(bulk.id, approver).status == "running"
    assert bulks.create(of(K.PAUSE, [start_run() for _ in range(3)]), actor=admin).status == "running", "it only stops"


def test_what_a_rule_asks_beyond_what_was_agreed_is_denied_for_that_target(
    start_run: StartRun, hand: Hand, workspace: Workspace, operator: Actor, approver: Actor, clock: Clock
) -> None:
    """The rule came after the question: nobody agreed to as much, and nobody is asked by a target."""
    rule(workspace, "retry", count=1)
    runs = failing(start_run, hand, 2)
    bulk = asked(of(K.RETRY, runs), operator)
    agree(bulk.id, approver)
    rule(workspace, "retry", role="admin", count=1)
    work_through(bulk, clock)
    assert counted(bulk) == {"denied": 2}
    assert set(bulk.items.values_list("code", flat=True)) == {"approval_stale"}
    assert ApprovalRequest.objects.count() == 1


@pytest.mark.parametrize("how", ["reject", "withdraw", "expire"])
def test_what_nobody_agreed_to_is_aborted(
    protected: list[Run], operator: Actor, approver: Actor, clock: Clock, how: str
) -> None:
    bulk = asked(of(K.REPLAY, protected), operator)
    for verb in (bulks.pause, bulks.resume, bulks.abort):
        refused("execution_state_invalid", partial(verb, bulk.id, actor=operator))
    if how == "reject":
        reject(bulk.id, approver, "not in production")
    elif how == "withdraw":
        requests.withdraw(bulk.id, actor=operator, reason="not needed")
    else:
        clock.advance(days=8)
        assert requests.expire_due() == 1
    bulk.refresh_from_db()
    assert (bulk.state, counted(bulk), bulk.finished_at is not None) == ("aborted", {"skipped": 3}, True)
    assert not Run.objects.filter(recovered_from__isnull=False).exists()
    with pytest.raises(Refusal):
        agree(bulk.id, approver)


def test_when_a_rule_asks_for_more_by_then_it_is_asked_anew(
    protected: list[Run], workspace: Workspace, operator: Actor, approver: Actor
) -> None:
    """F51: nobody agrees to what asks for more."""
    bulk = asked(of(K.REPLAY, protected), operator)
    rule(workspace, "bulk", count=2)
    refusal = refused("plan_changed", lambda: agree(bulk.id, approver))
    assert refusal.extra["round"] == 2
    assert [one.count for one in rounds(bulk.id)] == [1, 2]
    bulk.refresh_from_db()
    assert (bulk.state, bulk.plan_digest) == ("awaiting_approval", refusal.extra["plan_digest"])


def test_who_may_do_it_no_longer_has_nothing_done(
    protected: list[Run], operator: Actor, approver: Actor, people: dict[str, Person], workspace: Workspace
) -> None:
    """F150."""
    bulk = asked(of(K.REPLAY, protected), operator)
    workspace.members.filter(user=people["operator"].user).update(role="viewer")
    refused("permission_denied", lambda: agree(bulk.id, approver))
    assert counted(bulk) == {"pending": 3}


def test_in_a_blackout_it_waits_open_for_its_end(
    protected: list[Run], operator: Actor, approver: Actor, clock: Clock, workspace: Workspace
) -> None:
    bulk = asked(of(K.REPLAY, protected), operator)
    frozen = Blackout.objects.create(
        workspace_id=workspace.id, name="audit", kind="period", starts_at=clock.now(), is_freeze=True
    )
    refused("blackout_active", lambda: agree(bulk.id, approver))
    assert ApprovalRequest.objects.get().state == "open"
    frozen.delete()
    assert agree(bulk.id, approver).status == "running"


def test_the_inbox_its_api_and_the_audit_tell_what_it_is_about(
    protected: list[Run],
    operator: Actor,
    approver: Actor,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
) -> None:
    bulk = asked(of(K.REPLAY, protected), operator)
    (item,) = inbox.listed(approver, "mine", Cut()).rows
    assert (item.id, item.kind, item.run_id, item.run_name) == (bulk.id, "bulk", None, "bulk replay of 3 runs")
    assert (item.environment, item.is_protected, item.may_decide) == ("production", True, True)
    plan: Any = item.plan
    assert bulk_lines.gist(plan) == "replays 3 runs in production"
    told = [(step.word, step.text) for step in bulk_lines.lines(plan)]
    assert ("Does", "replays 3 runs; each is judged by itself on its turn") in told
    assert ("Protected", "3 in a protected environment") in told
    client = as_person(people["approver"])
    done = client.post(f"/v1/approvals/{bulk.id}/decision", {"approved": True, "reason": "fine"})
    assert (done.status_code, done.json()["status"]) == (200, "running"), done.content
    event = AuditEvent.objects.get(action="operation.approve", outcome="allowed")
    assert (event.data["trigger"], event.data["environment"]) == ("bulk replay of 3 runs", "production")
    waits = AuditEvent.objects.get(action="bulk.start", data__bulk=str(bulk.id))
    assert waits.data["approvals"] == [{"role": "approver", "count": 1}]
    assert Counter(AuditEvent.objects.filter(data__bulk=str(bulk.id)).values_list("action", flat=True)) == {
        "bulk.start": 1
    }
    assert REASON in waits.reason
