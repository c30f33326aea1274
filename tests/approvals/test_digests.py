"""Digests: many messages, one delivery, of a size that anybody can read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from approvals.models import Channel, Delivery, Message, NotificationRule
from approvals.notifications import notices
from approvals.notifications.digests import LISTED, close_digests
from approvals.notifications.notices import take_up
from approvals.transitions import decide_gate
from pipelines import notices as outbox
from pipelines.ids import new_id
from pipelines.models import Gate, Run, Workspace
from pipelines.sql import database_now
from pipelines.states import NoticeKind
from tests.approvals.notified import GATED, StartRun, channel_of, fail, rule_of, sent, told
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import crew_of


@pytest.fixture
def minutely(workspace: Workspace) -> NotificationRule:
    return rule_of(workspace, digest_seconds=60)


def gather(rule: NotificationRule, count: int, kind: str = "decided", run: str | None = None) -> None:
    """Messages as `take_up` writes them, of so many runs, or of one."""
    Message.objects.bulk_create(
        Message(
            rule=rule,
            kind=kind,
            run=run or new_id(),
            subject=new_id(),
            content={
                "kind": kind,
                "sentence": f"sentence {number} {'x' * 300}",
                "link": "/console/",
                "workspace": "acme",
                "environment": "production",
                "execution_id": run,
                "execution_name": f"run {number}",
                "stage": f"stage {number}",
            },
            at=database_now(),
        )
        for number in range(count)
    )


def test_two_hundred_gates_within_a_minute_are_one_message(
    start_run: StartRun, minutely: NotificationRule, clock: Clock
) -> None:
    for _ in range(20):
        for _ in range(10):
            start_run(GATED)
        take_up()
        assert close_digests() == 0, "nothing is due"
        clock.advance(1)
    clock.advance(60)
    assert close_digests() == 1
    delivery = Delivery.objects.get()
    assert delivery.subject == "acme: 200 gates wait for a decision"
    assert len(delivery.body) == LISTED + 1
    assert delivery.body[-1]["sentence"] == "150 more are not listed here"
    assert delivery.body[-1]["link"] == "/console/approvals/?workspace=acme"
    assert Message.objects.filter(delivery=delivery).count() == 200
    clock.advance(3600)
    assert (take_up(), close_digests()) == (0, 0)
    assert Delivery.objects.count() == 1


def test_ten_thousand_messages_are_one_of_bounded_size_that_hides_no_kind(
    minutely: NotificationRule, clock: Clock
) -> None:
    gather(minutely, 9_990)
    gather(minutely, 10, "expired")
    clock.advance(60)
    assert close_digests() == 1
    delivery = Delivery.objects.get()
    assert delivery.subject == "acme: 10 questions expired, 9,990 decisions"
    assert [line["kind"] for line in delivery.body].count("expired") == 10
    assert [line["kind"] for line in delivery.body].count("decided") == LISTED - 10
    assert delivery.body[-1]["count"] == 9_990 - (LISTED - 10)
    assert len(json.dumps(delivery.body)) < 64 * 1024


def test_messages_about_one_run_are_one_line_for_each_kind(
    start_run: StartRun, hand: Hand, minutely: NotificationRule, clock: Clock
) -> None:
    gated = ({"name": name, "approval": {"when": "before"}, "depends_on": ["top"]} for name in "abcde")
    run = start_run("top", *gated)
    assert hand.finish() == 1
    other = start_run(GATED)
    start_run("last")
    fail(hand)
    take_up()
    clock.advance(60)
    close_digests()
    gates, alone, letter = sent()
    assert gates["sentence"] == "5 gates wait for a decision in nightly in development: a, b, c and 2 more"
    assert (gates["count"], gates["id"], gates["stage"]) == (5, None, "")
    assert gates["link"] == f"/console/runs/{run.id}/?workspace=acme"
    assert alone["link"] == f"/console/approvals/{Gate.objects.get(run=other).id}/?workspace=acme"
    assert letter["kind"] == "dead_letter"
    assert Delivery.objects.get().subject == "acme: 6 gates wait for a decision, 1 dead letter"


def test_both_sides_of_its_time(start_run: StartRun, minutely: NotificationRule, clock: Clock) -> None:
    start_run(GATED)
    take_up()
    clock.advance(59)
    assert close_digests() == 0
    clock.advance(1)
    assert close_digests() == 1


def test_a_backlog_is_one_digest_although_all_of_it_is_old(
    start_run: StartRun, minutely: NotificationRule, clock: Clock
) -> None:
    """Nobody took notices up for an hour: they are gathered from now on, not one batch after the other."""
    for _ in range(4):
        start_run(GATED)
    clock.advance(hours=1)
    assert take_up(limit=2) == 4
    assert close_digests() == 0
    clock.advance(60)
    assert close_digests() == 1
    assert len(sent()) == 4


def test_what_needs_nobody_any_more_is_left_out_and_no_digest_is_sent_for_it(
    start_run: StartRun, minutely: NotificationRule, clock: Clock, people: dict[str, Person]
) -> None:
    NotificationRule.objects.update(kinds=["gate_opened"])
    runs = [start_run(GATED) for _ in range(2)]
    take_up()
    decide_gate(runs[0].stages.get().id, actor=people["approver"].actor, approved=True)
    clock.advance(60)
    assert close_digests() == 1
    assert [line["execution_id"] for line in sent()] == [str(runs[1].id)]
    start_run(GATED)
    take_up()
    decide_gate(Run.objects.latest("created_at").stages.get().id, actor=people["approver"].actor, approved=True)
    clock.advance(60)
    assert close_digests() == 0
    assert Delivery.objects.count() == 1
    assert not Message.objects.filter(delivery=None).exists(), "it is forgotten, and makes no later digest due"


def test_what_was_asked_again_counts_once_in_its_newest_words(
    start_run: StartRun, minutely: NotificationRule, clock: Clock, workspace: Workspace
) -> None:
    run = start_run(GATED)
    stage, gate = run.stages.get(), Gate.objects.get()
    outbox.insert([outbox.row(workspace.id, NoticeKind.GATE_OPENED, run.id, stage.id, gate.id)])
    take_up()
    assert Message.objects.count() == 2
    clock.advance(60)
    close_digests()
    assert told() == ["gate_opened"]
    assert Delivery.objects.get().subject == "acme: 1 gate waits for a decision"


@pytest.mark.parametrize("off", ["rule", "channel"])
def test_what_was_gathered_is_forgotten_when_it_was_turned_off_since(
    start_run: StartRun, minutely: NotificationRule, clock: Clock, off: str
) -> None:
    start_run(GATED)
    take_up()
    (NotificationRule if off == "rule" else Channel).objects.update(enabled=False)
    clock.advance(60)
    assert close_digests() == 0
    assert not Message.objects.exists()
    assert not Delivery.objects.exists()


def test_each_rule_has_its_own_digest_and_time(
    start_run: StartRun, workspace: Workspace, other_workspace: Workspace, clock: Clock
) -> None:
    soon = rule_of(workspace, "soon", channel_of(workspace, "soon"), digest_seconds=10)
    late = rule_of(workspace, "late", channel_of(workspace, "late"), digest_seconds=3600)
    elsewhere = rule_of(other_workspace, "all", channel_of(other_workspace), digest_seconds=10)
    start_run(GATED)
    take_up()
    clock.advance(10)
    assert close_digests() == 1
    assert Delivery.objects.get().channel == soon.channel
    assert [message.rule for message in Message.objects.filter(delivery=None)] == [late]
    assert not elsewhere.messages.exists()


@pytest.mark.django_db(transaction=True)
def test_many_takers_and_closers_at_once_make_one_delivery_and_lose_nothing(
    start_run: StartRun, workspace: Workspace, clock: Clock
) -> None:
    """A crash would leave the same: notices go and messages come in one transaction."""
    rule = rule_of(workspace, digest_seconds=60)
    with crew_of(8) as crew:
        for turn in range(1, 6):
            for _ in range(20):
                start_run(GATED)
            answers = crew.at_once(*[lambda: take_up(limit=3)] * 8)
            take_up()
            assert sum(answers) <= 20
            assert rule.messages.filter(delivery=None).count() == 20
            assert len(set(rule.messages.values_list("subject", flat=True))) == 20 * turn
            clock.advance(60)
            assert sum(crew.at_once(*[close_digests] * 8)) <= 1
            close_digests()
            assert Delivery.objects.count() == turn
    assert all(delivery.subject == "acme: 20 gates wait for a decision" for delivery in Delivery.objects.all())
    assert Message.objects.filter(delivery=None).count() == 0


def test_a_flood_leaves_the_rest_to_the_next_call(
    start_run: StartRun, workspace: Workspace, minutely: NotificationRule, clock: Clock
) -> None:
    """The process that tells people has leases to end as well: no call of it works on for ever."""
    for _ in range(6):
        start_run(GATED)
    rules = [rule_of(workspace, f"r{number}", channel_of(workspace, f"c{number}")) for number in range(3)]
    NotificationRule.objects.filter(id__in=[rule.id for rule in rules]).update(digest_seconds=60)
    assert [take_up(limit=2, most=4) for _ in range(3)] == [4, 2, 0]
    clock.advance(60)
    assert [close_digests(most=3) for _ in range(3)] == [3, 1, 0]


@pytest.mark.django_db(transaction=True)
def test_a_taker_that_dies_before_it_commits_leaves_every_notice_to_the_next(
    start_run: StartRun, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule_of(workspace)
    start_run(GATED)

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as broken:
        broken.setattr(notices, "execute", die)
        with pytest.raises(SystemExit):
            take_up()
    assert not Delivery.objects.exists()
    assert take_up() == 1
    assert told() == ["gate_opened"]
