"""Backfills that others must agree to: who decides, what is then done, and that nothing is before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from approvals import inbox, requests
from approvals.models import ApprovalRequest
from approvals.notifications import notices
from pipelines import triggers
from pipelines.access import Actor
from pipelines.creation import Place
from pipelines.errors import Refusal
from pipelines.models import Application, AuditEvent, Blackout, Environment, Notice, Run, Tick, Trigger, Workspace
from pipelines.paging import Cut
from recovery import backfills
from recovery.models import Backfill
from recovery.screens import backfill_lines
from tests.approvals.asked import agree, reject, rounds, rule
from tests.approvals.notified import channel_of, rule_of, sent
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.recovery.backfilled import assert_accounted_for, finish, pipeline_of, runs_of, states, trigger_of, wish
from tests.recovery.bulked import refused
from tests.recovery.test_backfills import KEY, WINDOW

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trigger(people: dict[str, Person], environments: dict[str, Environment], application: Application) -> Trigger:
    """In production, which is protected."""
    return trigger_of(people["admin"].actor, environments["production"], application)


@pytest.fixture
def approver(people: dict[str, Person]) -> Actor:
    return people["approver"].actor


@pytest.fixture
def asked(trigger: Trigger, operator: Actor) -> Backfill:
    """An operator's backfill of three ticks in production, which waits."""
    done = backfills.start(wish(trigger, *WINDOW, reason="the feed was down"), operator, KEY)
    assert done.status == "awaiting_approval"
    return done.backfill


def assert_nothing_was_done() -> None:
    assert not Run.objects.exists()
    assert not Tick.objects.exists()


def test_an_operators_in_a_protected_environment_waits_for_one_approver(
    trigger: Trigger, operator: Actor, approver: Actor, asked: Backfill, people: dict[str, Person]
) -> None:
    """Model §5; release managers and admins need nobody. Its ticks are there to be looked at."""
    plan = backfills.preview(wish(trigger, *WINDOW), operator)
    assert [(one.role, one.count) for one in plan.agreements] == [("approver", 1)]
    assert backfills.preview(wish(trigger, *WINDOW), people["release_manager"].actor).agreements == ()
    assert states(asked.id) == {"pending": 3}
    assert_nothing_was_done()
    assert backfills.carry_on() == {"filled": 0, "cancelled": 0, "completed": 0}
    told = agree(asked.id, approver)
    assert (told.state, told.status) == ("approved", "running")
    assert len(runs_of(asked.id)) == 3
    assert {run.started_by_id for run in runs_of(asked.id)} == {operator.user_id}
    assert_accounted_for(trigger)
    again = backfills.start(wish(trigger, *WINDOW), operator, KEY)
    assert (again.replayed, again.status, len(again.ticks)) == (True, "running", 3)


def test_who_asked_agrees_to_nothing(asked: Backfill, operator: Actor, people: dict[str, Person]) -> None:
    """F130: not the one who asked, whatever role they have by then; nobody without the right."""
    refused("self_approval", lambda: agree(asked.id, operator))
    refused("permission_denied", lambda: agree(asked.id, people["viewer"].actor))
    assert_nothing_was_done()


def test_a_rule_binds_every_role_and_counts_ticks(
    trigger: Trigger, workspace: Workspace, people: dict[str, Person], approver: Actor
) -> None:
    rule(workspace, "backfill", count=1, counted="ticks", at_least=3)
    admin = people["admin"].actor
    small = backfills.start(wish(trigger, WINDOW[0], WINDOW[0]), admin)
    assert small.status == "running"
    large = backfills.start(wish(trigger, "2026-05-21T00:00:00+00:00", "2026-05-24T00:00:00+00:00"), admin)
    assert large.status == "awaiting_approval"
    refused("self_approval", lambda: agree(large.backfill.id, admin))
    assert agree(large.backfill.id, approver).status == "running"
    nothing = backfills.start(wish(trigger, WINDOW[0], WINDOW[0]), admin)
    assert nothing.status == "completed", "nobody need agree to nothing"


@pytest.mark.parametrize("how", ["reject", "withdraw", "expire"])
def test_what_nobody_agreed_to_is_cancelled(
    asked: Backfill, operator: Actor, approver: Actor, clock: Clock, how: str
) -> None:
    if how == "reject":
        reject(asked.id, approver, "not in production")
    elif how == "withdraw":
        requests.withdraw(asked.id, actor=operator, reason="not needed")
    else:
        clock.advance(days=8)
        refused("approval_stale", lambda: agree(asked.id, approver))
        assert requests.expire_due() == 1
        assert requests.expire_due() == 0
    asked.refresh_from_db()
    assert (asked.state, states(asked.id)) == ("cancelled", {"cancelled": 3})
    assert asked.finished_at is not None
    assert_nothing_was_done()
    assert backfills.carry_on() == {"filled": 0, "cancelled": 0, "completed": 0}
    with pytest.raises(Refusal):
        agree(asked.id, approver)
    assert_nothing_was_done()


def test_it_is_neither_steered_nor_cancelled_while_it_waits(asked: Backfill, operator: Actor) -> None:
    for verb in (backfills.pause, backfills.resume, backfills.cancel):
        refused("execution_state_invalid", partial(verb, asked.id, operator))
    asked.refresh_from_db()
    assert asked.state == "awaiting_approval"


def test_when_the_world_has_moved_it_is_asked_anew(
    trigger: Trigger, asked: Backfill, approver: Actor, people: dict[str, Person]
) -> None:
    """F51: nobody agrees to what would not be done. A tick was filled, and another release is in force."""
    backfills.start(wish(trigger, WINDOW[0], WINDOW[0]), people["admin"].actor)
    refusal = refused("plan_changed", lambda: agree(asked.id, approver))
    assert (refusal.extra["plan"]["total_ticks"], refusal.extra["round"]) == (2, 2)
    assert {"total_ticks", "ticks_digest"} <= {one["field"] for one in refusal.extra["changed"]}
    assert states(asked.id) == {"skipped": 1, "pending": 2}
    assert len(runs_of(asked.id)) == 0
    pipeline_of(people["admin"].actor, trigger.environment, "fetch", "publish")
    newer = refused("plan_changed", lambda: agree(asked.id, approver, plan_digest=refusal.extra["plan_digest"]))
    agree(asked.id, approver, plan_digest=newer.extra["plan_digest"])
    assert len(runs_of(asked.id)) == 2
    assert [one.state for one in rounds(asked.id)] == ["superseded", "superseded", "approved"]
    assert_accounted_for(trigger)


def test_who_may_do_it_no_longer_has_nothing_done(
    asked: Backfill, approver: Actor, people: dict[str, Person], workspace: Workspace
) -> None:
    """F150."""
    workspace.members.filter(user=people["operator"].user).update(role="viewer")
    refused("permission_denied", lambda: agree(asked.id, approver))
    assert_nothing_was_done()


def test_in_a_blackout_it_waits_open_unless_who_asked_gave_a_reason(
    trigger: Trigger, asked: Backfill, operator: Actor, approver: Actor, clock: Clock
) -> None:
    frozen = Blackout.objects.create(
        workspace_id=trigger.workspace_id, name="audit", kind="period", starts_at=clock.now(), is_freeze=True
    )
    refused("blackout_active", lambda: agree(asked.id, approver))
    assert ApprovalRequest.objects.get(subject=asked.id).state == "open"
    urgent = backfills.start(
        wish(trigger, WINDOW[0], WINDOW[0], max_concurrent=2, override_reason="month end"), operator
    )
    agree(urgent.backfill.id, approver)
    assert [run.through_blackout for run in runs_of(urgent.backfill.id)] == [True]
    frozen.delete()
    refused("plan_changed", lambda: agree(asked.id, approver))


def test_the_inbox_and_its_api_tell_what_it_is_about(
    asked: Backfill, approver: Actor, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    (item,) = inbox.listed(approver, "mine", Cut()).rows
    assert (item.id, item.kind, item.run_id, item.run_name) == (asked.id, "backfill", None, "rates")
    assert (item.environment, item.is_protected, item.pipeline) == ("production", True, "rates")
    assert item.may_decide
    assert item.plan is not None
    client = as_person(people["approver"])
    (told,) = client.get("/v1/approvals").json()["results"]
    assert (told["kind"], told["execution_id"], told["execution_name"]) == ("backfill", None, "rates")
    seen = client.post(f"/v1/approvals/{asked.id}/decision", {"approved": True, "dry_run": True})
    assert seen.status_code == 200, seen.content
    done = client.post(f"/v1/approvals/{asked.id}/decision", {"approved": True, "reason": "fine"})
    assert done.status_code == 200, done.content
    assert (done.json()["status"], done.json()["execution_id"]) == ("running", None)
    again = client.post(f"/v1/approvals/{asked.id}/decision", {"approved": True, "reason": "fine"})
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    event = AuditEvent.objects.get(action="operation.approve", outcome="allowed")
    assert (event.data["trigger"], event.data["environment"], event.run) == ("rates", "production", None)


def test_messages_say_what_is_to_be_backfilled(
    trigger: Trigger, workspace: Workspace, operator: Actor, approver: Actor
) -> None:
    """Rules for its environment and pipeline want them; the link leads to the page on which it is decided."""
    rule_of(workspace, environments=["protected"], pipelines=["rates"])
    rule_of(workspace, "elsewhere", channel=channel_of(workspace, "other"), environments=["staging"])
    done = backfills.start(wish(trigger, *WINDOW), operator)
    notices.take_up()
    reject(done.backfill.id, approver, "no")
    notices.take_up()
    first, second = sent()
    assert first["sentence"].startswith(f"{operator.name} asks for agreement to backfill rates in production")
    assert first["link"].startswith(f"/console/approvals/{done.backfill.id}/")
    assert (first["execution_id"], first["environment"], first["pipeline"]) == (None, "production", "rates")
    assert "backfill rates in production" in second["sentence"]
    assert not Notice.objects.exists()


def test_an_agreed_backfill_runs_to_its_end(asked: Backfill, approver: Actor, trigger: Trigger) -> None:
    agree(asked.id, approver)
    place = Place(trigger.workspace_id, trigger.application_id, trigger.environment_id, "production")
    finish(Hand(place, "hand-p", ["Handler"]), asked.id)
    asked.refresh_from_db()
    assert asked.state == "completed"


def test_other_inputs_than_were_agreed_to_are_asked_for_anew(
    asked: Backfill, approver: Actor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """F51, O57: the trigger's input was changed between plan and approval; what was agreed to is what is run."""
    triggers.change(trigger.id, actor=people["release_manager"].actor, changes={"input": {"pay": "twice"}})
    moved = refused("plan_changed", partial(agree, asked.id, approver))
    assert_nothing_was_done()
    assert moved.extra["plan"]["trigger_version"] == 2
    assert "as version 2 of rates says" in [line.text for line in backfill_lines.deeds(moved.extra["plan"])]
    agree(asked.id, approver)
    assert {run.input for run in runs_of(asked.id)} == {'{"pay":"twice"}'}


def test_a_trigger_that_is_changed_while_it_is_filled_changes_nothing_of_it(
    trigger: Trigger, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep makes the runs of a large one much later: with the inputs that the plan was for."""
    monkeypatch.setattr(backfills, "fill_up", lambda _: None)
    manager = people["release_manager"].actor
    done = backfills.start(wish(trigger, *WINDOW), manager)
    triggers.change(trigger.id, actor=manager, changes={"input": {"pay": "twice"}, "deadline_seconds": 1, "name": "x"})
    backfills.carry_on()
    assert {(run.input, run.deadline_seconds) for run in runs_of(done.backfill.id)} == {("{}", None)}


def test_who_could_not_start_it_alone_does_not_lead_it_through_a_blackout(
    asked: Backfill, approver: Actor, operator: Actor, trigger: Trigger, people: dict[str, Person], clock: Clock
) -> None:
    """Model §4: nobody agreed to start it in a blackout, so resuming it there is not an operator's, reason or not."""
    agree(asked.id, approver)
    backfills.pause(asked.id, operator)
    freeze = Blackout.objects.create(
        workspace_id=trigger.workspace_id, name="freeze", kind="period", is_freeze=True, starts_at=clock.now()
    )
    refused("permission_denied", partial(backfills.resume, asked.id, operator, "", "I must"))
    assert Backfill.objects.get().state == "paused"
    assert not Run.objects.filter(through_blackout=True).exists()
    backfills.resume(asked.id, people["release_manager"].actor, "", "the auditors agreed")
    assert Run.objects.filter(through_blackout=True).exists()
    assert freeze.name == "freeze"
