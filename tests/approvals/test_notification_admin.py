"""The admin site for who is told: secrets go in and never come out, and what cannot work is said."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from approvals.models import Channel, Delivery, DeliveryTry, Message, NotificationRule
from approvals.notifications import channels
from approvals.notifications.notices import take_up
from pipelines.models import AuditEvent, Workspace
from tests.approvals.notified import GATED, StartRun, channel_of, rule_of
from tests.cast import Person
from tests.concurrency.crew import crew_of
from tests.factories import PipelineFactory

CHANNELS, RULES, DELIVERIES = (f"/admin/approvals/{model}/" for model in ("channel", "notificationrule", "delivery"))
ADDRESS = "https://hooks.example.org/services/T0/hunter2"
SECRET = "correct-horse-battery"


@pytest.fixture
def boss(people: dict[str, Person]) -> Client:
    return staff(people["admin"])


@pytest.fixture(autouse=True)
def set_up_well(settings: Any) -> None:
    settings.RECOURSE_PUBLIC_URL = "https://console.example.org"
    settings.EMAIL_HOST = "mail.example.org"


def staff(person: Person) -> Client:
    """Of the site's staff, and a superuser: what counts is their role in the workspace."""
    person.user.is_staff = person.user.is_superuser = True
    person.user.save()
    client = Client()
    client.force_login(person.user)
    return client


def channel_form(owner: Workspace, **more: Any) -> dict[str, Any]:
    filled = {"workspace": str(owner.id), "name": "chat", "kind": "webhook", "enabled": "on", "recipients": ""}
    return {**filled, "new_address": ADDRESS, "new_secret": ""} | more


def rule_form(owner: Workspace, to: Channel, **more: Any) -> dict[str, Any]:
    filled = {"workspace": str(owner.id), "name": "all", "channel": str(to.id), "enabled": "on"}
    return {**filled, "environments": "", "pipelines": "", "digest_seconds": "60"} | more


def told(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def errors(answer: Any) -> dict[str, str]:
    assert answer.status_code == 200, "a form that is refused comes back"
    return {name: " ".join(found) for name, found in answer.context["adminform"].form.errors.items()}


# channels


def test_a_secret_is_made_shown_once_and_kept_encrypted(boss: Client, workspace: Workspace) -> None:
    answer = boss.post(f"{CHANNELS}add/", channel_form(workspace))
    assert answer.status_code == 302, errors(answer)
    channel = Channel.objects.get()
    secret = channels.secret(channel)
    assert len(secret) >= 32
    assert f"This is the only time that it is shown: {secret}" in told(answer)
    assert (channel.host, channels.place(channel).path) == ("hooks.example.org", "/services/T0/hunter2")
    assert b"hunter2" not in bytes(channel.address or b"")
    assert secret.encode() not in bytes(channel.secret or b"")
    assert secret in boss.get(CHANNELS).content.decode(), "after the form, once"
    pages = "".join(boss.get(path).content.decode() for path in (CHANNELS, f"{CHANNELS}{channel.id}/change/"))
    assert "hooks.example.org" in pages
    assert "hunter2" not in pages
    assert secret not in pages
    event = AuditEvent.objects.get()
    assert (event.action, event.channel, event.data["name"]) == ("channel.save", "admin", "chat")
    assert (event.after["address"], event.after["secret"]) == ("hooks.example.org", "set anew")
    kept = json.dumps([event.before, event.after, event.data])
    assert "hunter2" not in kept
    assert secret not in kept


def test_a_secret_of_the_receivers_is_taken_and_never_shown(boss: Client, workspace: Workspace) -> None:
    answer = boss.post(f"{CHANNELS}add/", channel_form(workspace, new_secret=SECRET), follow=True)
    assert channels.secret(Channel.objects.get()) == SECRET
    assert SECRET not in answer.content.decode()
    assert SECRET not in json.dumps(list(AuditEvent.objects.values("before", "after", "data")))


def test_blank_keeps_what_is_set_and_each_change_is_audited(boss: Client, workspace: Workspace) -> None:
    boss.post(f"{CHANNELS}add/", channel_form(workspace, new_secret=SECRET))
    channel = Channel.objects.get()
    page = f"{CHANNELS}{channel.id}/change/"
    kept = {"name": "talk", "recipients": "", "new_address": "", "new_secret": "", "enabled": "on"}
    assert boss.post(page, kept).status_code == 302
    channel.refresh_from_db()
    assert (channel.name, channels.secret(channel), channels.place(channel).path) == (
        "talk",
        SECRET,
        "/services/T0/hunter2",
    )
    event = AuditEvent.objects.latest("at")
    assert (event.before, event.after) == ({"name": "chat"}, {"name": "talk"})
    answer = boss.post(page, {**kept, "new_address": "https://other.example.org/x", "make_secret": "on"})
    assert answer.status_code == 302, errors(answer)
    channel.refresh_from_db()
    assert channels.secret(channel) != SECRET
    event = AuditEvent.objects.latest("at")
    assert (event.before, event.after) == (
        {"address": "hooks.example.org"},
        {"address": "other.example.org", "secret": "set anew"},
    )


@pytest.mark.parametrize(
    ("wrong", "field", "says"),
    [
        ({"new_address": ""}, "new_address", "must be given"),
        ({"new_address": "ftp://hooks.example.org/"}, "new_address", "must look like https://"),
        ({"new_address": "hooks.example.org"}, "new_address", "must look like https://"),
        ({"new_address": "https://u:p@hooks.example.org/"}, "new_address", "no user name or password"),
        ({"new_address": "https://127.0.0.1/x"}, "new_address", "private address"),
        ({"new_address": "https://[::1]/x"}, "new_address", "private address"),
        ({"new_secret": "short"}, "new_secret", "16 to 255"),
        ({"new_secret": SECRET, "make_secret": "on"}, "make_secret", "either"),
        ({"recipients": "a@example.org"}, "recipients", "only e-mail"),
        ({"kind": "slack", "new_secret": SECRET}, "new_secret", "only a signed webhook"),
        ({"kind": "email", "recipients": "a@example.org"}, "new_address", "only webhooks"),
        ({"kind": "email", "new_address": ""}, "recipients", "at least one"),
        ({"kind": "email", "new_address": "", "recipients": "role:boss, a@example.org"}, "recipients", "'role:boss'"),
        ({"kind": "email", "new_address": "", "recipients": "a@x\r\nBcc: b@x.org"}, "recipients", "neither"),
        ({"kind": "email", "new_address": "", "recipients": ",".join(["a@x.org"] * 101)}, "recipients", "100"),
        ({"kind": "pigeon"}, "kind", "pigeon"),
        ({"name": ""}, "name", "required"),
        ({"name": "x" * 256}, "name", "255"),
        ({"workspace": ""}, "workspace", "required"),
    ],
)
def test_what_is_wrong_with_a_channel_is_said_at_its_field_and_nothing_is_kept(
    boss: Client, workspace: Workspace, wrong: dict[str, Any], field: str, says: str
) -> None:
    answer = boss.post(f"{CHANNELS}add/", channel_form(workspace, **wrong))
    assert says in errors(answer)[field], errors(answer)
    assert not Channel.objects.exists()
    assert SECRET not in json.dumps(errors(answer))


def test_a_name_is_taken_once_in_a_workspace_whatever_its_case(
    boss: Client, workspace: Workspace, other_workspace: Workspace
) -> None:
    channel_of(other_workspace, "chat")
    assert boss.post(f"{CHANNELS}add/", channel_form(workspace)).status_code == 302
    again = boss.post(f"{CHANNELS}add/", channel_form(workspace, name="CHAT"))
    assert "another channel has this name" in errors(again)["name"]
    second = channel_of(workspace, "second")
    filled = {"name": "Chat", "recipients": "", "new_address": "", "new_secret": ""}
    assert (
        "another channel"
        in errors(boss.post(f"{CHANNELS}{second.id}/change/", filled | {"new_address": ADDRESS}))["name"]
    )


def test_a_channel_keeps_its_kind(boss: Client, workspace: Workspace) -> None:
    channel = channel_of(workspace, "mails", "email", recipients=["a@example.org"])
    answer = boss.post(
        f"{CHANNELS}{channel.id}/change/",
        {"name": "mails", "kind": "webhook", "recipients": "b@example.org,role:approver", "enabled": "on"},
    )
    assert answer.status_code == 302, errors(answer)
    channel.refresh_from_db()
    assert (channel.kind, channel.recipients) == ("email", ["b@example.org", "role:approver"])


def test_a_channel_that_cannot_work_is_kept_with_a_warning(boss: Client, workspace: Workspace, settings: Any) -> None:
    settings.EMAIL_HOST = settings.RECOURSE_PUBLIC_URL = ""
    answer = boss.post(
        f"{CHANNELS}add/", channel_form(workspace, kind="email", new_address="", recipients="role:approver")
    )
    assert answer.status_code == 302, errors(answer)
    words = told(answer)
    assert "No mail server is set" in words
    assert "None of its recipients has an e-mail address" in words
    assert "RECOURSE_PUBLIC_URL is not set" in words


# rules


def test_a_rule_is_made_changed_and_removed_and_each_is_audited(boss: Client, workspace: Workspace) -> None:
    channel = channel_of(workspace)
    PipelineFactory(workspace=workspace, slug="nightly")
    filled = rule_form(
        workspace,
        channel,
        kinds=["gate_opened", "dead_letter"],
        environments="production, protected",
        pipelines="nightly",
        digest_seconds="300",
    )
    answer = boss.post(f"{RULES}add/", filled)
    assert answer.status_code == 302, errors(answer)
    rule = NotificationRule.objects.get()
    assert (rule.kinds, rule.environments, rule.pipelines, rule.digest_seconds) == (
        ["gate_opened", "dead_letter"],
        ["production", "protected"],
        ["nightly"],
        300,
    )
    assert told(answer).count("turned off") == 0
    page = f"{RULES}{rule.id}"
    answer = boss.post(f"{page}/change/", {**filled, "digest_seconds": "0", "enabled": ""})
    assert "It is turned off: it tells nobody." in told(answer)
    assert boss.post(f"{page}/delete/", {"post": "yes"}).status_code == 302
    assert not NotificationRule.objects.exists()
    events = AuditEvent.objects.order_by("at", "id")
    assert [event.action for event in events] == [
        "notificationrule.save",
        "notificationrule.save",
        "notificationrule.remove",
    ]
    assert events[1].before == {"digest_seconds": "300", "enabled": "True"}
    assert events[1].after == {"digest_seconds": "0", "enabled": "False"}


def test_a_rule_that_goes_to_another_channel_is_audited_by_their_names(boss: Client, workspace: Workspace) -> None:
    rule = rule_of(workspace, digest_seconds=60)
    mails = channel_of(workspace, "mails", "email", recipients=["a@example.org"])
    boss.post(f"{RULES}{rule.id}/change/", rule_form(workspace, mails))
    event = AuditEvent.objects.get()
    assert (event.before, event.after) == ({"channel": "chat"}, {"channel": "mails"})


@pytest.mark.parametrize(
    ("wrong", "field", "says"),
    [
        ({"kinds": ["birthday"]}, "kinds", "birthday"),
        ({"environments": "moon"}, "environments", "'moon'"),
        ({"pipelines": "unheard-of"}, "pipelines", "'unheard-of'"),
        ({"digest_seconds": "-1"}, "digest_seconds", "0"),
        ({"digest_seconds": "86401"}, "digest_seconds", "86400"),
        ({"digest_seconds": "soon"}, "digest_seconds", "whole number"),
        ({"channel": ""}, "channel", "required"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_at_its_field(
    boss: Client, workspace: Workspace, wrong: dict[str, Any], field: str, says: str
) -> None:
    answer = boss.post(f"{RULES}add/", rule_form(workspace, channel_of(workspace), **wrong))
    assert says in errors(answer)[field], errors(answer)
    assert not NotificationRule.objects.exists()


def test_a_rule_names_no_channel_of_another_workspace(
    boss: Client, people: dict[str, Person], workspace: Workspace, other_workspace: Workspace
) -> None:
    """I16; also not one of a workspace of which the user is an admin as well."""
    foreign = channel_of(other_workspace)
    assert "channel" in errors(boss.post(f"{RULES}add/", rule_form(workspace, foreign)))
    other_workspace.members.create(user=people["admin"].user, role="admin")
    assert "another workspace" in errors(boss.post(f"{RULES}add/", rule_form(workspace, foreign)))["channel"]
    assert not NotificationRule.objects.exists()


def test_a_rule_on_a_channel_that_is_off_is_kept_with_a_warning(boss: Client, workspace: Workspace) -> None:
    answer = boss.post(f"{RULES}add/", rule_form(workspace, channel_of(workspace, enabled=False)))
    assert answer.status_code == 302
    assert "Its channel chat: It is turned off: nothing is sent to it." in told(answer)


# who may


@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "release_manager"])
def test_only_admins_change_who_is_told(people: dict[str, Person], workspace: Workspace, role: str) -> None:
    """Model §5: superusers too have the role that they have here."""
    client = staff(people[role])
    rule = rule_of(workspace)
    delivery = failed(rule)
    for path, form in ((CHANNELS, channel_form(workspace, name="other")), (RULES, rule_form(workspace, rule.channel))):
        assert client.post(f"{path}add/", form).status_code == 403
    for path, row in ((CHANNELS, rule.channel), (RULES, rule)):
        assert client.post(f"{path}{row.pk}/change/", {"name": "x"}).status_code == 403
        assert client.post(f"{path}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    for path, row, action in ((CHANNELS, rule.channel, "send_test"), (DELIVERIES, delivery, "send_again")):
        page = client.post(path, {"action": action, "_selected_action": [str(row.pk)]}, follow=True)
        assert "may not administer" in page.content.decode()
    assert Delivery.objects.get().state == "failed"
    assert (Channel.objects.get().name, NotificationRule.objects.get().name) == ("chat", "all")
    assert set(AuditEvent.objects.values_list("outcome", "code")) == {("denied", "permission_denied")}


def test_another_workspaces_channels_rules_and_deliveries_are_not_there(
    boss: Client, other_workspace: Workspace
) -> None:
    """I16."""
    rule = rule_of(other_workspace, "theirs", channel_of(other_workspace, "elsewhere"))
    delivery = failed(rule)
    for path, row in ((CHANNELS, rule.channel), (RULES, rule), (DELIVERIES, delivery)):
        assert b"elsewhere" not in boss.get(path).content
        assert boss.get(f"{path}{row.pk}/change/").status_code == 302
    boss.post(CHANNELS, {"action": "send_test", "_selected_action": [str(rule.channel.pk)]})
    boss.post(DELIVERIES, {"action": "send_again", "_selected_action": [str(delivery.pk)]})
    assert list(Delivery.objects.values_list("state")) == [("failed",)]
    assert not AuditEvent.objects.exists()


# deliveries


def failed(rule: NotificationRule, **more: Any) -> Delivery:
    made: Delivery = Delivery.objects.create(
        workspace=rule.workspace,
        channel=rule.channel,
        subject="acme: <b>1 dead letter</b>",
        body=[{"kind": "dead_letter", "sentence": "<script>"}],
        **{"state": "failed", "tries": 11, **more},
    )
    DeliveryTry.objects.create(delivery=made, number=11, succeeded=False, answer="answered 503", milliseconds=12)
    return made


def test_a_test_message_is_a_delivery_of_its_own(boss: Client, workspace: Workspace) -> None:
    channel = channel_of(workspace)
    off = channel_of(workspace, "off", enabled=False)
    rows = [str(channel.id), str(off.id)]
    page = boss.post(CHANNELS, {"action": "send_test", "_selected_action": rows}, follow=True).content.decode()
    assert "On its way to chat;" in page
    assert "The channel off is turned off" in page
    delivery = Delivery.objects.get()
    assert (delivery.channel, delivery.state, delivery.body[0]["kind"]) == (channel, "pending", "test")
    assert delivery.body[0]["link"] == "https://console.example.org/console/approvals/?workspace=acme"
    assert delivery.body[0]["sentence"] == "This is a test of the channel chat, sent by admin-acme"
    told = AuditEvent.objects.order_by("outcome").values_list("action", "outcome")
    assert list(told) == [("channel.test", "allowed"), ("channel.test", "failed")]


def test_what_was_given_up_is_sent_again_under_its_id_and_nothing_else_is(boss: Client, workspace: Workspace) -> None:
    rule = rule_of(workspace)
    given_up, sent = failed(rule), failed(rule, state="sent")
    rows = [str(given_up.id), str(sent.id)]
    page = boss.post(DELIVERIES, {"action": "send_again", "_selected_action": rows}, follow=True).content.decode()
    assert "Sent again: 1;" in page
    assert dict(Delivery.objects.values_list("id", "state")) == {given_up.id: "pending", sent.id: "sent"}
    told = AuditEvent.objects.order_by("outcome").values_list("action", "outcome")
    assert list(told) == [("delivery.send_again", "allowed"), ("delivery.send_again", "no_op")]


def test_a_delivery_shows_what_was_sent_and_each_try_and_runs_nothing(boss: Client, workspace: Workspace) -> None:
    delivery = failed(rule_of(workspace))
    page = boss.get(f"{DELIVERIES}{delivery.id}/change/").content.decode()
    assert "answered 503 (12 ms)" in page
    assert "&lt;script&gt;" in page
    assert "<script>&quot;" not in page
    assert "<b>1 dead" not in page


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("state=failed", 1), ("state=sent", 1), ("state=bogus", 2), ("channel=nobody", 2), ("channel={id}", 1)],
)
def test_deliveries_are_narrowed_by_state_and_channel(
    boss: Client, workspace: Workspace, asked: str, shown: int
) -> None:
    first, second = rule_of(workspace), rule_of(workspace, "b", channel_of(workspace, "b"))
    failed(first)
    failed(second, state="sent")
    answer = boss.get(f"{DELIVERIES}?{asked.format(id=second.channel.id)}")
    assert len(answer.context["cl"].result_list) == shown


def test_the_list_of_deliveries_costs_the_same_however_long_it_is(boss: Client, workspace: Workspace) -> None:
    """F159."""
    rule = rule_of(workspace)
    failed(rule)
    boss.get(DELIVERIES)
    with CaptureQueriesContext(connection) as one:
        boss.get(DELIVERIES)
    for _ in range(20):
        failed(rule)
    with CaptureQueriesContext(connection) as many:
        boss.get(DELIVERIES)
    assert len(many) == len(one)


def test_a_channel_goes_only_when_nothing_hangs_on_it(boss: Client, workspace: Workspace) -> None:
    """The log of what was sent is not lost with it."""
    rule = rule_of(workspace)
    delivery = failed(rule)
    page = f"{CHANNELS}{rule.channel.id}/delete/"
    assert boss.post(page, {"post": "yes"}).status_code == 403
    rule.delete()
    assert boss.post(page, {"post": "yes"}).status_code == 403
    assert Delivery.objects.get() == delivery
    free = channel_of(workspace, "free")
    assert boss.get(f"{CHANNELS}{free.id}/delete/").status_code == 200
    assert boss.post(f"{CHANNELS}{free.id}/delete/", {"post": "yes"}).status_code == 302
    assert not Channel.objects.filter(id=free.id).exists()
    assert AuditEvent.objects.latest("at").action == "channel.remove"


def test_a_rule_goes_with_what_it_has_gathered(boss: Client, workspace: Workspace, start_run: StartRun) -> None:
    rule = rule_of(workspace, digest_seconds=60)
    start_run(GATED)
    take_up()
    assert boss.get(f"{RULES}{rule.id}/delete/").status_code == 200
    assert boss.post(f"{RULES}{rule.id}/delete/", {"post": "yes"}).status_code == 302
    assert not Message.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_rule_is_removed_while_notices_are_taken_up_and_neither_fails(
    boss: Client, workspace: Workspace, start_run: StartRun
) -> None:
    """What is being written for it is waited for, and goes with it."""
    with crew_of(5) as crew:
        for turn in range(8):
            rule = rule_of(workspace, f"rule {turn}", digest_seconds=60)
            for _ in range(8):
                start_run(GATED)
            remove = partial(boss.post, f"{RULES}{rule.id}/delete/", {"post": "yes"})
            answers = crew.at_once(remove, *[partial(take_up, limit=2)] * 4)
            assert answers[0].status_code == 302
            take_up()
    assert not NotificationRule.objects.exists()
    assert not Message.objects.exists()
