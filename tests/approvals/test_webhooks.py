"""What receivers are sent: signed documents, Slack's texts, mails. Against receivers that really listen."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse import WebhookInvalid, verify_webhook
from recourse.webhooks import sign_webhook

from approvals.models import ChannelKind
from approvals.notifications import mail, slack
from pipelines.models import Role, Workspace
from tests.approvals.delivered import (
    MESSAGE,
    SECRET,
    channel_to,
    delivery_for,
    log_of,
    mailing,
    send_due,
    state_of,
)
from tests.approvals.receivers import MailServer, Receiver, mail_server, receiver_server
from tests.cast import Person
from tests.config.console_process import BASE_DIR
from tests.factories import MemberFactory

STAMP = 1_900_000_000


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    with receiver_server() as receiver:
        yield receiver


@pytest.fixture
def post_office(settings: Any) -> Iterator[MailServer]:
    """The mail server of this console."""
    with mail_server() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "Recourse <recourse@console.example>"
        yield server


# signed webhooks


def test_a_receiver_verifies_what_it_was_sent_with_the_secret_alone(workspace: Workspace, receiver: Receiver) -> None:
    delivery = delivery_for(channel_to(workspace, receiver.url))
    assert send_due() == 1
    came = receiver.received
    message = verify_webhook(came.body, came.headers, SECRET)
    assert message == {
        "delivery_id": str(delivery.id),
        "workspace": "acme",
        "kind": "gate_opened",
        "count": 1,
        "messages": [MESSAGE],
        "sent_at": message["sent_at"],
    }
    assert came.path == "/hook?token=t0p-s3cret"
    assert came.headers["Recourse-Delivery"] == str(delivery.id)
    assert came.headers["Content-Type"] == "application/json"
    assert abs(int(came.headers["Recourse-Timestamp"]) - time.time()) < 60
    assert state_of(delivery) == "sent"
    assert log_of(delivery) == [(1, True, "answered 200")]
    assert send_due() == 0


def test_the_signature_is_what_the_documents_say_made_of_the_bytes_that_came(
    workspace: Workspace, receiver: Receiver
) -> None:
    """Written out as another language would: HMAC-SHA-256 over "timestamp.body", in hex."""
    odd = MESSAGE | {"sentence": "Größe \u2028 \u0007 🦊"}
    delivery_for(channel_to(workspace, receiver.url), odd)
    send_due()
    came = receiver.received
    signed = came.headers["Recourse-Timestamp"].encode() + b"." + came.body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert came.headers["Recourse-Signature"] == f"v1={expected}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not there")
def test_the_shell_lines_of_the_documents_verify_what_came(workspace: Workspace, receiver: Receiver) -> None:
    page = (BASE_DIR / "docs" / "howto" / "notifications.md").read_text()
    (lines,) = re.findall(r"```sh\n(.*?openssl.*?)```", page, flags=re.DOTALL)
    delivery_for(channel_to(workspace, receiver.url))
    send_due()
    came = receiver.received
    known = {
        "SECRET": SECRET,
        "TIMESTAMP": came.headers["Recourse-Timestamp"],
        "SIGNATURE": came.headers["Recourse-Signature"],
    }

    def verdict(body: bytes) -> int:
        environment = {"PATH": "/usr/bin:/bin", **known}
        return subprocess.run(["sh", "-c", lines], input=body, env=environment, check=False).returncode

    assert verdict(came.body) == 0
    assert verdict(came.body + b" ") != 0


def test_several_messages_are_a_digest_with_their_number(workspace: Workspace, receiver: Receiver) -> None:
    delivery_for(channel_to(workspace, receiver.url), MESSAGE, MESSAGE | {"count": 199})
    send_due()
    assert (receiver.received.document["kind"], receiver.received.document["count"]) == ("digest", 200)


@given(
    body=st.binary(max_size=200),
    place=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_a_webhook_with_one_bit_changed_does_not_verify(body: bytes, place: int, bit: int) -> None:
    whole = json.dumps({"delivery_id": "7", "told": body.hex()}).encode()
    altered = bytearray(whole)
    altered[place % len(whole)] ^= 1 << bit
    headers = headers_of(whole, int(time.time()))
    assert verify_webhook(whole, headers, SECRET)["delivery_id"] == "7"
    with pytest.raises(WebhookInvalid, match="does not fit"):
        verify_webhook(bytes(altered), headers, SECRET)


def headers_of(body: bytes, stamp: int, secret: str = SECRET, delivery: str = "7") -> dict[str, str]:
    return {
        "recourse-delivery": delivery,
        "recourse-timestamp": str(stamp),
        "recourse-signature": sign_webhook(body, secret, stamp),
    }


@pytest.mark.parametrize(("age", "is_fresh"), [(0, True), (300, True), (301, False), (-300, True), (-301, False)])
def test_a_webhook_is_fresh_for_five_minutes_by_the_receivers_clock(
    monkeypatch: pytest.MonkeyPatch, age: int, is_fresh: bool
) -> None:
    monkeypatch.setattr("recourse.webhooks.time.time", lambda: float(STAMP + age))
    body = b'{"delivery_id":"7"}'
    if is_fresh:
        assert verify_webhook(body, headers_of(body, STAMP), SECRET)
    else:
        with pytest.raises(WebhookInvalid, match="more than 300 s away"):
            verify_webhook(body, headers_of(body, STAMP), SECRET)
    assert verify_webhook(body, headers_of(body, STAMP), SECRET, tolerance=301)


@pytest.mark.parametrize(
    "change",
    [
        {"recourse-timestamp": ""},
        {"recourse-timestamp": "soon"},
        {"recourse-timestamp": "-5"},
        {"recourse-timestamp": "9" * 400},
        {"recourse-timestamp": "²"},
        {"recourse-signature": ""},
        {"recourse-signature": "v1="},
        {"recourse-signature": "v0=" + "0" * 64},
        {"recourse-signature": "v1=\ud800"},
        {"recourse-delivery": "8"},
        {"recourse-delivery": ""},
    ],
)
def test_a_webhook_whose_headers_are_not_its_own_is_refused(change: dict[str, str]) -> None:
    body = b'{"delivery_id":"7"}'
    headers = headers_of(body, int(time.time()))
    assert verify_webhook(body, headers, SECRET)
    with pytest.raises(WebhookInvalid):
        verify_webhook(body, headers | change, SECRET)


def test_another_secret_and_no_secret_verify_nothing() -> None:
    body = b'{"delivery_id":"7"}'
    for secret in ("another secret of somebody", ""):
        with pytest.raises(WebhookInvalid):
            verify_webhook(body, headers_of(body, int(time.time()), secret="mine, and mine alone"), secret)
    with pytest.raises(WebhookInvalid, match="no secret"):
        verify_webhook(body, headers_of(body, int(time.time()), secret=""), "")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"7", b"[]", b'{"delivery_id":8}', b"{}"])
def test_what_was_signed_and_is_no_message_is_refused_as_well(body: bytes) -> None:
    with pytest.raises(WebhookInvalid):
        verify_webhook(body, headers_of(body, int(time.time())), SECRET)


# Slack


def test_slack_is_sent_a_text_with_the_link(workspace: Workspace, receiver: Receiver) -> None:
    """P85: a chat is told, and has nothing to answer with; people decide on the page that the link leads to."""
    delivery = delivery_for(channel_to(workspace, receiver.url, ChannelKind.SLACK))
    send_due()
    assert receiver.received.document == {
        "text": "*acme* Somebody must decide about ship of nightly in production (1 approver)"
        " <https://console.example/console/approvals/7/?workspace=acme|open>"
    }
    assert "Recourse-Signature" not in receiver.received.headers
    assert state_of(delivery) == "sent"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("<!channel>", "&lt;!channel&gt;"),
        ("<@U0123>", "&lt;@\u200bU0123&gt;"),
        ("<https://evil.example|free money>", "&lt;https:\u200b//evil.\u200bexample|free money&gt;"),
        ("http://192.0.2.7/login", "http:\u200b//192.0.2.7/login"),
        ("www.evil.example", "www.\u200bevil.\u200bexample"),
        ("v1.2 of load", "v1.2 of load"),
        ("@**all** @_**all** @*team*", "@\u200b**all** @\u200b_**all** @\u200b*team*"),
        ("a & b", "a &amp; b"),
        ("&lt;!here&gt;", "&amp;lt;!here&amp;gt;"),
        ("@here @channel @all", "@\u200bhere @\u200bchannel @\u200ball"),
        ("[pay](https://evil.example)", "[pay]\u200b(https:\u200b//evil.\u200bexample)"),
        ("two\nlines", "two lines"),
    ],
)
def test_a_name_from_outside_calls_nobody_and_leads_nowhere(name: str, told: str) -> None:
    assert slack.text("acme", [{"sentence": name, "link": "/console/"}]) == told
    assert slack.text(name, [{"sentence": "a"}, {"sentence": "b"}]).splitlines()[0] == f"*{told}*"


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_name_or_link_brings_brackets_of_its_own(sentence: str, rest: str) -> None:
    told = slack.text("acme", [{"sentence": sentence, "link": f"https://console.example/{rest}"}])
    link = told.rpartition(" <")[2]
    assert told.count("<") == told.count(">") == 1
    assert link.count("|") == 1
    assert link.endswith("|open>")


def test_a_long_digest_is_cut_and_says_how_much_it_left_out() -> None:
    few = [{"sentence": f"gate {number}"} for number in range(20)]
    assert slack.text("acme", few).splitlines()[-1] == "• gate 19"
    many = [{"sentence": f"gate {number}"} for number in range(57)]
    lines = slack.text("acme", many).splitlines()
    assert (lines[0], lines[20], lines[21], len(lines)) == ("*acme*", "• gate 19", "… and 37 more", 22)
    wide = [{"sentence": "x" * 400, "count": 3} for _ in range(20)]
    text = slack.text("acme", wide)
    assert len(text) <= 3600
    assert text.splitlines()[-1] == f"… and {3 * (20 - text.count('•'))} more"


# e-mail


def test_a_mail_has_words_for_people_and_links_that_lead_to_the_page(
    workspace: Workspace, post_office: MailServer
) -> None:
    hostile = MESSAGE | {"sentence": "<b>ship</b> & go"}
    delivery = delivery_for(mailing(workspace, "ann@example.org"), hostile, subject="acme: 1 gate\r\nBcc: x@y.example")
    send_due()
    (mailed,) = post_office.mails
    assert (mailed.sender, mailed.recipients) == ("recourse@console.example", ["ann@example.org"])
    assert mailed.mail["Subject"] == "acme: 1 gate Bcc: x@y.example"
    assert mailed.mail["Bcc"] is None
    assert mailed.mail["Message-ID"] == f"<{delivery.id}@console.example>"
    assert mailed.mail["Auto-Submitted"] == "auto-generated"
    plain, html = (mailed.mail.get_body([kind]).get_content() for kind in ("plain", "html"))
    assert "<b>ship</b> & go\n  https://console.example/console/approvals/7/?workspace=acme" in plain.replace("\r", "")
    assert 'href="https://console.example/console/approvals/7/?workspace=acme"' in html
    assert "&lt;b&gt;ship&lt;/b&gt; &amp; go</a>" in html
    assert log_of(delivery) == [(1, True, "taken for 1 recipient")]


def test_a_link_that_is_a_path_or_no_address_of_the_web_is_not_made_one(
    workspace: Workspace, post_office: MailServer
) -> None:
    links = [MESSAGE | {"link": "javascript:alert(1)"}, MESSAGE | {"link": "/console/approvals/"}]
    delivery_for(mailing(workspace, "ann@example.org"), *links)
    send_due()
    assert "href" not in post_office.mails[0].mail.get_body(["html"]).get_content()


def test_a_role_stands_for_its_members_who_have_an_address_and_are_not_gone(
    workspace: Workspace, other_workspace: Workspace, people: dict[str, Person], post_office: MailServer
) -> None:
    ann = people["approver"].user
    ann.email = "ann@example.org"
    ann.save()
    MemberFactory(workspace=workspace, role=Role.APPROVER, user__email="ANN@example.org")  # the same, written otherwise
    MemberFactory(workspace=workspace, role=Role.APPROVER, user__email="")
    MemberFactory(workspace=workspace, role=Role.APPROVER, user__email="gone@example.org", user__is_active=False)
    MemberFactory(workspace=workspace, role=Role.OPERATOR, user__email="operator@example.org")
    MemberFactory(workspace=other_workspace, role=Role.APPROVER, user__email="olga@example.org")
    delivery_for(mailing(workspace, "role:approver", "post@example.org", "ann@example.org"))
    send_due()
    (mailed,) = post_office.mails
    assert sorted(address.lower() for address in mailed.recipients) == ["ann@example.org", "post@example.org"]


def test_many_recipients_are_written_to_in_groups_on_one_connection(
    workspace: Workspace, post_office: MailServer
) -> None:
    names = [f"person{number}@example.org" for number in range(51)]
    delivery = delivery_for(mailing(workspace, *names))
    send_due()
    assert [len(mailed.recipients) for mailed in post_office.mails] == [50, 1]
    assert len({mailed.mail["Message-ID"] for mailed in post_office.mails}) == 2
    assert post_office.connections == 1
    assert log_of(delivery) == [(1, True, "taken for 51 recipients")]


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ({"RCPT": "550 no such person as ann@example.org"}, "refuses every recipient (550)"),
        ({"MAIL": "451 come back later"}, "answered 451"),
        ({"DATA": "554 we take no such mail"}, "answered 554"),
        ({"AUTH": "535 wrong: hunter2"}, "refuses the user name or password of RECOURSE_EMAIL_URL (535)"),
    ],
)
def test_what_a_mail_server_refuses_is_a_try_that_says_so_and_nothing_of_what_was_told(
    workspace: Workspace, post_office: MailServer, settings: Any, replies: dict[str, str], told: str
) -> None:
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "recourse", "hunter2"
    post_office.replies = replies
    delivery = delivery_for(mailing(workspace, "ann@example.org"))
    send_due()
    assert log_of(delivery) == [(1, False, f"the mail server 127.0.0.1 {told}")]
    assert state_of(delivery) == "pending"
    assert post_office.mails == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"EMAIL_HOST": ""}, "no mail server is set: RECOURSE_EMAIL_URL is empty"),
        ({"EMAIL_PORT": 9}, "the mail server 127.0.0.1 cannot be reached"),
        ({"EMAIL_USE_TLS": True}, "the mail server 127.0.0.1 does not offer what RECOURSE_EMAIL_URL asks for, such as"),
        ({"EMAIL_TIMEOUT": 0.2}, "the mail server 127.0.0.1 did not answer within 0.2 s"),
    ],
)
def test_a_mail_server_that_is_not_as_it_was_set_is_told_as_a_failed_try(
    workspace: Workspace, post_office: MailServer, settings: Any, change: dict[str, Any], told: str
) -> None:
    post_office.is_silent = "EMAIL_TIMEOUT" in change
    for name, value in change.items():
        setattr(settings, name, value)
    delivery = delivery_for(mailing(workspace, "ann@example.org"))
    send_due()
    ((number, succeeded, answer),) = log_of(delivery)
    assert (number, succeeded) == (1, False)
    assert answer.startswith(told)


def test_a_channel_without_anybody_to_write_to_says_so(workspace: Workspace, post_office: MailServer) -> None:
    delivery = delivery_for(mailing(workspace, "role:approver", "no address"))
    send_due()
    assert log_of(delivery) == [(1, False, "none of the channel's recipients has an e-mail address")]
    assert post_office.connections == 0


@pytest.mark.parametrize(
    ("entry", "is_one"),
    [
        *[("ann@example.org", True), ("role:approver", True), ("role:release_manager", True)],
        *[("role:king", False), ("role:", False), ("ann", False), ("", False), ("a@b.example\r\nBcc: x@y.z", False)],
    ],
)
def test_what_a_channel_may_name_as_a_recipient(entry: str, is_one: bool) -> None:
    assert mail.is_recipient(entry) is is_one
