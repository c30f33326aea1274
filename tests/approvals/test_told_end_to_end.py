"""From what happened to what a receiver gets: rules, messages and deliveries of life, to receivers on real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from recourse import verify_webhook

from approvals.models import Channel, Delivery, NotificationRule
from approvals.notifications.digests import close_digests
from approvals.notifications.notices import take_up
from pipelines.models import Gate, Run, Workspace
from pipelines.retention import remove_older_than
from tests.approvals.delivered import send_due
from tests.approvals.notified import GATED, StartRun, channel_of, rule_of
from tests.approvals.receivers import Receiver, mail_server, receiver_server
from tests.cast import Hand, Person
from tests.clock import Clock


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    settings.RECOURSE_PUBLIC_URL = "http://testserver"
    with receiver_server() as receiver:
        yield receiver


@pytest.fixture
def boss(people: dict[str, Person]) -> Client:
    """An admin of the workspace, of the site's staff."""
    return logged_in(people["admin"])


def logged_in(person: Person) -> Client:
    person.user.is_staff = True
    person.user.save()
    client = Client()
    client.force_login(person.user)
    return client


def set_up(boss: Client, workspace: Workspace, receiver: Receiver, **rule: str) -> str:
    """A signed webhook and a rule for all that happens, made in the admin site; the secret as it is shown."""
    workspace_id = str(workspace.id)
    form = {"workspace": workspace_id, "name": "ours", "kind": "webhook", "enabled": "on", "recipients": ""}
    made = boss.post("/admin/approvals/channel/add/", {**form, "new_address": receiver.url, "new_secret": ""})
    assert made.status_code == 302
    (shown,) = (str(message) for message in get_messages(made.wsgi_request) if "shown: " in str(message))
    form = {"workspace": workspace_id, "name": "all", "enabled": "on", "environments": "", "pipelines": ""}
    form |= {"channel": str(Channel.objects.get().id), "digest_seconds": "0", **rule}
    assert boss.post("/admin/approvals/notificationrule/add/", form).status_code == 302
    return shown.rpartition("shown: ")[2]


def test_what_the_admin_was_shown_verifies_what_comes_and_its_link_decides_nothing(
    boss: Client, workspace: Workspace, receiver: Receiver, start_run: StartRun, people: dict[str, Person]
) -> None:
    """F131: who follows the link of a message is asked who they are, and has decided nothing by that."""
    secret = set_up(boss, workspace, receiver)
    start_run(GATED)
    assert (take_up(), send_due()) == (1, 1)
    document = verify_webhook(receiver.received.body, receiver.received.headers, secret)
    gate = Gate.objects.get()
    (message,) = document["messages"]
    assert (document["kind"], document["count"], message["id"]) == ("gate_opened", 1, str(gate.id))
    assert message["link"] == f"http://testserver/console/approvals/{gate.id}/?workspace=acme"
    assert Client().get(message["link"]).status_code == 302, "to the log-in"
    page = logged_in(people["approver"]).get(message["link"])
    assert page.status_code == 200, page
    assert b"charge" in page.content
    gate.refresh_from_db()
    assert (gate.state, gate.decisions.count()) == ("open", 0)


def test_many_gates_within_a_minute_are_one_post(
    boss: Client, workspace: Workspace, receiver: Receiver, start_run: StartRun, clock: Clock
) -> None:
    secret = set_up(boss, workspace, receiver, digest_seconds="60")
    for _ in range(70):
        start_run(GATED)
    assert (take_up(), close_digests(), send_due()) == (70, 0, 0)
    clock.advance(60)
    assert (close_digests(), send_due()) == (1, 1)
    assert (take_up(), close_digests(), send_due()) == (0, 0, 0)
    document = verify_webhook(receiver.received.body, receiver.received.headers, secret)
    assert (document["kind"], document["count"]) == ("digest", 70)
    assert len(receiver.received.body) < 64 * 1024


def test_what_is_sent_again_comes_under_its_id(
    boss: Client, workspace: Workspace, receiver: Receiver, start_run: StartRun
) -> None:
    """A receiver that keeps the ids it has acted upon acts once."""
    secret = set_up(boss, workspace, receiver)
    start_run(GATED)
    take_up()
    receiver.answers = [(503, {})]
    send_due()
    delivery = Delivery.objects.get()
    Delivery.objects.update(state="failed", closed_at=delivery.due_at)
    boss.post("/admin/approvals/delivery/", {"action": "send_again", "_selected_action": [str(delivery.id)]})
    assert send_due() == 1
    first, second = (verify_webhook(request.body, request.headers, secret) for request in receiver.requests)
    assert first["delivery_id"] == second["delivery_id"] == str(delivery.id)
    assert first["messages"] == second["messages"]
    delivery.refresh_from_db()
    assert (delivery.state, delivery.tries, delivery.log.count()) == ("sent", 2, 2)


def test_a_test_message_arrives(boss: Client, workspace: Workspace, receiver: Receiver) -> None:
    secret = set_up(boss, workspace, receiver)
    channel = str(Channel.objects.get().id)
    boss.post("/admin/approvals/channel/", {"action": "send_test", "_selected_action": [channel]})
    assert send_due() == 1
    document = verify_webhook(receiver.received.body, receiver.received.headers, secret)
    assert (document["kind"], document["messages"][0]["workspace"]) == ("test", "acme")


def test_approvers_get_one_mail_of_many_gates(
    workspace: Workspace, start_run: StartRun, clock: Clock, people: dict[str, Person], settings: Any
) -> None:
    people["approver"].user.email = "ann@example.org"
    people["approver"].user.save()
    rule_of(workspace, channel=channel_of(workspace, "mail", "email", recipients=["role:approver"]), digest_seconds=60)
    for _ in range(60):
        start_run(GATED)
    take_up()
    clock.advance(60)
    close_digests()
    with mail_server() as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "Recourse <recourse@console.example>"
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        assert send_due() == 1
    (mailed,) = server.mails
    assert mailed.recipients == ["ann@example.org"]
    assert mailed.mail["Subject"] == "acme: 60 gates wait for a decision"
    text = mailed.mail.get_body(("plain",)).get_content()  # type: ignore[union-attr]
    assert text.count("Somebody must decide about charge of nightly") == 50
    assert "10 more are not listed here" in text


def test_runs_are_removed_whether_or_not_they_were_told_of(
    workspace: Workspace, start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """Model §3.13: what was told of them is the channels' log, and goes by its own time."""
    rule_of(workspace)
    gathered = rule_of(workspace, "slow", channel_of(workspace, "slow"), digest_seconds=60)
    start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    take_up()
    clock.advance(days=2)
    assert remove_older_than(1) == 1
    assert not Run.objects.exists()
    assert Delivery.objects.get().body[0]["kind"] == "dead_letter"
    assert gathered.messages.count() == 1
    assert close_digests() == 0, "its dead letter is gone, so there is nothing to tell"
    assert not NotificationRule.objects.get(id=gathered.id).messages.exists()
