"""Notices: which facts are told to whom, in which words, once."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from approvals.models import Delivery, Message, NotificationRule
from approvals.notifications import notices, sentences
from approvals.notifications.notices import take_up
from approvals.notifications.sentences import Facts
from approvals.transitions import decide_gate
from pipelines import notices as outbox
from pipelines.access import Actor
from pipelines.creation import Place
from pipelines.models import DeadLetter, Environment, Gate, Notice, Run, Workspace
from pipelines.states import NoticeKind
from pipelines.transitions import cancel_run
from tests.approvals.notified import GATED, StartRun, channel_of, fail, rule_of, sent, told
from tests.cast import Hand, Person
from tests.factories import PipelineFactory


def only_line() -> dict[str, Any]:
    (line,) = sent()
    return line


# the words


@pytest.mark.parametrize("kind", NoticeKind.values)
def test_every_kind_of_notice_has_a_sentence_and_a_count(kind: str) -> None:
    told = sentences.tell(Facts(kind, "nightly", "production", "charge"))
    assert re.fullmatch(r"(Some|some|No|nightly|charge).*in production(.*[^.])?", told), told
    assert not re.search("[{}]|None", told), told
    assert kind in sentences.COUNTS
    assert sentences.subject("acme", {kind: 2}).startswith("acme: 2 ")


def test_sentences_name_who_asks_who_decided_of_how_many_and_until_when() -> None:
    at = datetime(2030, 5, 4, 13, 7, tzinfo=UTC)
    place: dict[str, Any] = {"run": "nightly", "environment": "production", "stage": "charge"}
    request: dict[str, Any] = {**place, "what": "request", "asked_by": ["ann"]}
    assert [
        sentences.tell(facts)
        for facts in (
            Facts("gate_opened", **place, count=2, role="release_manager", expires_at=at, asked_by=["ann", "bea"]),
            Facts("gate_opened", **place, moment="after"),
            Facts("approval_asked", **request, operation="rerun", count=2),
            Facts("review_asked", **request, operation="retry", role="admin"),
            Facts("decided", **place, decided_by="bob", approved=True, have=1, count=2),
            Facts("decided", **request, operation="skip", decided_by="bob"),
            Facts("expiring", **place, expires_at=at),
            Facts("expiring", **request, operation="rerun", expires_at=at),
            Facts("decided", **request, operation="retry"),
            Facts("expired", **request, operation="mend"),
            Facts("expired", **request, operation="retry", ended_with_run=True),
            Facts("dead_letter", **place, cause="retries_exhausted", code="PAYMENT_DOWN"),
            Facts("run_blocked", "nightly", "production"),
        )
    ] == [
        "Somebody must decide about charge of nightly in production (2 release managers, started by ann and bea,"
        " expires 4 May 2030, 13:07 UTC)",
        "Somebody must decide about charge of nightly in production after its work (1 approver)",
        "ann asks for agreement to rerun nightly in production from charge (2 approvers)",
        "ann asks to retry charge of nightly in production, and somebody must look at the evidence first (1 admin)",
        "bob approved charge of nightly in production (1 of 2 approvals)",
        "bob rejected ann's request to skip charge of nightly in production",
        "Nobody has decided about charge of nightly in production yet: it expires 4 May 2030, 13:07 UTC",
        "Nobody has decided about ann's request to rerun nightly in production from charge yet: it expires 4 May 2030,"
        " 13:07 UTC",
        "ann's request to retry charge of nightly in production was denied: what is known by now forbids it",
        "Nobody decided about ann's request to mend charge of nightly in production in time: it expired",
        "Nobody decided about ann's request to retry charge of nightly in production before its run was over",
        "charge of nightly in production became a dead letter: retries exhausted (PAYMENT_DOWN)",
        "nightly in production is blocked: somebody must act",
    ]


def test_names_are_one_line_of_bounded_length_and_break_no_pattern() -> None:
    told = sentences.tell(Facts("dead_letter", "{run}\r\nBcc: all", "", "x" * 300, cause="{0}"))
    assert told == f"{'x' * 79}… of {{run}} Bcc: all became a dead letter: {{0}}"
    assert len(sentences.subject("w" * 100, dict.fromkeys(NoticeKind.values, 10_000_000))) <= 200


# who is told


def test_a_gate_is_told_to_the_channel_of_a_rule_and_the_notice_is_gone(
    start_run: StartRun, workspace: Workspace, settings: Any
) -> None:
    settings.RECOURSE_PUBLIC_URL = "https://console.example.org/"
    rule = rule_of(workspace)
    run = start_run(GATED)
    assert take_up() == 1
    gate = Gate.objects.get()
    line = only_line()
    assert line == {
        "kind": "gate_opened",
        "sentence": "Somebody must decide about charge of nightly in development before it starts (1 approver)",
        "link": f"https://console.example.org/console/approvals/{gate.id}/?workspace=acme",
        "workspace": "acme",
        "environment": "development",
        "pipeline": "",
        "execution_id": str(run.id),
        "execution_name": "nightly",
        "stage": "charge",
        "id": str(gate.id),
        "at": line["at"],
        "expires_at": None,
    }
    delivery = Delivery.objects.get()
    assert (delivery.channel, delivery.workspace, delivery.state) == (rule.channel, workspace, "pending")
    assert delivery.subject == f"acme: {line['sentence']}"
    assert Message.objects.get().delivery == delivery
    assert not Notice.objects.exists()
    assert take_up() == 0
    assert Delivery.objects.count() == 1, "no notice is taken twice"


def test_what_nobody_wants_is_only_removed(start_run: StartRun, workspace: Workspace) -> None:
    start_run(GATED)
    assert take_up() == 1
    assert not Notice.objects.exists()
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("rule", "is_told"),
    [
        ({}, True),
        ({"kinds": ["gate_opened"]}, True),
        ({"kinds": ["dead_letter", "decided"]}, False),
        ({"environments": ["development"]}, True),
        ({"environments": ["production", "protected"]}, False),
        ({"pipelines": ["billing"]}, False),
        ({"kinds": ["gate_opened"], "environments": ["production"]}, False),
        ({"enabled": False}, False),
    ],
)
def test_a_rule_wants_its_kinds_environments_and_pipelines(
    start_run: StartRun, workspace: Workspace, rule: dict[str, Any], is_told: bool
) -> None:
    rule_of(workspace, **rule)
    start_run(GATED)
    take_up()
    assert Message.objects.exists() == Delivery.objects.exists() == is_told


def test_protected_stands_for_the_environments_that_are_and_a_pipeline_goes_by_its_slug(
    start_run: StartRun, workspace: Workspace, environment: Environment
) -> None:
    rule_of(workspace, environments=["protected"], pipelines=["billing"])
    Environment.objects.filter(pk=environment.pk).update(protected=True)
    run = start_run(GATED)
    take_up()
    assert not Message.objects.exists(), "a run of no pipeline"
    Run.objects.filter(pk=run.pk).update(pipeline=PipelineFactory(workspace=workspace, slug="billing"))
    start_run(GATED)
    outbox.insert([outbox.row(workspace.id, NoticeKind.DECIDED, run.id, None, Gate.objects.first().id)])  # type: ignore[union-attr]
    take_up()
    assert told() == ["decided"]


def test_rules_and_channels_of_another_workspace_are_never_asked(
    start_run: StartRun, workspace: Workspace, other_workspace: Workspace
) -> None:
    """I16; not even by a rule of this workspace that names a foreign channel, or a notice that names a foreign run."""
    foreign = channel_of(other_workspace)
    rule_of(other_workspace, channel=foreign)
    rule_of(workspace, channel=foreign)
    run = start_run(GATED)
    outbox.insert([outbox.row(other_workspace.id, NoticeKind.RUN_BLOCKED, run.id)])
    assert take_up() == 2
    assert not Message.objects.exists()
    assert not Delivery.objects.exists()


def test_a_channel_that_is_off_takes_nothing_and_holds_up_no_other(start_run: StartRun, workspace: Workspace) -> None:
    rule_of(workspace, "off", channel_of(workspace, "off", enabled=False))
    good = rule_of(workspace, "on", channel_of(workspace, "on"))
    start_run(GATED)
    take_up()
    assert Delivery.objects.get().channel == good.channel


def test_two_rules_tell_one_channel_once_by_the_quicker_one(start_run: StartRun, workspace: Workspace) -> None:
    channel = channel_of(workspace)
    rule_of(workspace, "slow", channel, digest_seconds=60)
    quick = rule_of(workspace, "quick", channel)
    rule_of(workspace, "elsewhere", channel_of(workspace, "mail", "email"), digest_seconds=60)
    start_run(GATED)
    take_up()
    assert Delivery.objects.get().channel == channel
    assert {message.rule.name for message in Message.objects.select_related("rule")} == {quick.name, "elsewhere"}


def test_messages_hold_no_error_text_context_value_output_or_reason(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: dict[str, Person]
) -> None:
    """A message leaves the console; whoever follows its link is asked who they are."""
    rule_of(workspace)
    start_run("first", context_items=[{"key": "card", "value": "hunter2", "is_sensitive": True}])
    fail(hand)
    run = start_run({"name": "charge", "approval": {"when": "after"}})
    hand.report(hand.take(), output={"card": "hunter2"})
    decide_gate(run.stages.get().id, actor=people["approver"].actor, approved=False, reason="not for hunter2")
    take_up()
    assert set(told()) == {"dead_letter", "decided"}
    assert "hunter2" not in json.dumps(sent())


# which facts


def test_a_gate_that_was_decided_before_anybody_was_told_is_told_as_decided_only(
    start_run: StartRun, workspace: Workspace, people: dict[str, Person]
) -> None:
    rule_of(workspace)
    run = start_run(GATED)
    decide_gate(run.stages.get().id, actor=people["approver"].actor, approved=True)
    assert take_up() == 2
    line = only_line()
    assert line["sentence"] == "approver-acme approved charge of nightly in development"
    assert line["link"].endswith(f"/console/approvals/{Gate.objects.get().id}/?workspace=acme")


def test_nobody_is_sent_to_a_run_that_was_cancelled(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: dict[str, Person]
) -> None:
    rule_of(workspace)
    run = start_run(GATED)
    cancel_run(run.id, actor=people["operator"].actor)
    start_run("first")
    fail(hand)
    DeadLetter.objects.update(state="acknowledged")
    take_up()
    assert told() == []


def test_a_dead_letter_is_told_with_what_gave_it_up(start_run: StartRun, hand: Hand, workspace: Workspace) -> None:
    rule_of(workspace, kinds=["dead_letter"])
    start_run("first")
    fail(hand)
    take_up()
    line = only_line()
    assert line["sentence"] == (
        "first of nightly in development became a dead letter: terminal error (BUSINESS_REJECTED)"
    )
    assert line["link"] == "/console/dead-letters/?workspace=acme", "a path, where no address is set"


def test_a_run_that_was_removed_is_told_of_no_more(workspace: Workspace, start_run: StartRun) -> None:
    rule_of(workspace)
    run = start_run("first")
    outbox.insert([outbox.row(workspace.id, NoticeKind.DECIDED, run.id)])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE pipelines_notice SET run = gen_random_uuid()")
    assert take_up() == 1
    assert not Message.objects.exists()


def test_what_cannot_be_put_in_words_is_told_by_what_is_known_and_holds_up_nothing(
    start_run: StartRun, hand: Hand, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule_of(workspace)
    run = start_run("first")
    outbox.insert(
        [
            outbox.row(workspace.id, NoticeKind.DECIDED, run.id, None, None, {"by": ["?"], "have": "x", "approved": 3}),
            outbox.row(workspace.id, NoticeKind.EXPIRED, run.id),
        ]
    )
    Notice.objects.filter(kind="expired").update(data=["no", "mapping"])
    take_up()
    assert [line["sentence"] for line in sent()] == [
        "['?'] rejected nightly in development",
        "Nobody decided about nightly in development in time: it expired",
    ]


# what it costs


def test_hundreds_of_notices_are_taken_in_as_many_statements_as_one(start_run: StartRun, workspace: Workspace) -> None:
    """F159."""

    def statements(notices: int) -> int:
        for _ in range(notices):
            start_run(GATED)
        with CaptureQueriesContext(connection) as captured:
            assert take_up() == notices
        return len(captured)

    for number in range(5):
        rule_of(workspace, f"rule {number}", channel_of(workspace, f"channel {number}"), digest_seconds=number % 2)
    one = statements(1)
    assert statements(40) == one <= 12
    assert Message.objects.count() == 41 * 5


def test_with_nothing_to_tell_it_is_one_statement(workspace: Workspace) -> None:
    rule_of(workspace)
    with CaptureQueriesContext(connection) as captured:
        assert take_up() == 0
    assert len([query for query in captured if "pipelines_notice" in query["sql"]]) == 1
    assert len(captured) <= 3, "that, in a transaction"


def test_a_run_that_needs_nobody_costs_no_statement_more(start_run: StartRun, hand: Hand, workspace: Workspace) -> None:
    """The engine writes a notice only where there is one: nothing of the hot path knows of rules or channels."""
    rule_of(workspace)
    with CaptureQueriesContext(connection) as captured:
        start_run("first", "second")
        assert hand.finish() == 2
    said = [query["sql"] for query in captured if re.search("notice|approvals_", query["sql"], re.IGNORECASE)]
    assert said == []


def test_a_rule_that_is_removed_takes_its_gathered_messages_along(start_run: StartRun, workspace: Workspace) -> None:
    rule = rule_of(workspace, digest_seconds=60)
    start_run(GATED)
    take_up()
    assert Message.objects.count() == 1
    NotificationRule.objects.filter(pk=rule.pk).delete()
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (notices.DECISION_PAGE, "approval"),
        (notices.INBOX, "approvals"),
        (notices.RUN_PAGE, "run"),
        (notices.LETTERS, "dead-letters"),
    ],
)
def test_links_lead_to_pages_of_the_console(path: str, name: str) -> None:
    found = resolve(path.format(id="0198c2a4-0000-7000-8000-000000000000"))
    assert (found.namespace, found.url_name) == ("console", name)


def test_an_application_that_decides_is_named(
    start_run: StartRun, workspace: Workspace, application_actor: Actor, place: Place
) -> None:
    rule_of(workspace, kinds=["decided"])
    run = start_run(GATED)
    decide_gate(run.stages.get().id, actor=application_actor, approved=True)
    take_up()
    assert only_line()["sentence"] == "billing approved charge of nightly in development"
