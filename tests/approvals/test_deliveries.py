"""Deliveries on their way: once when all is well, at least once whatever breaks, and never in each other's way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.conf import settings as django_settings
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from kombu import Connection
from recourse import verify_webhook

from approvals import tasks
from approvals.models import Channel, ChannelKind, Delivery, DeliveryTry, NotificationRule
from approvals.notifications import channels, deliveries, sending
from approvals.notifications.deliveries import PAUSES, claim, deliver, forget_old
from approvals.notifications.senders import Senders
from config.celery_settings import configuration
from config.console import clock as clock_service
from pipelines import transitions
from pipelines.errors import Refusal
from pipelines.models import Run, Workspace
from pipelines.moves import Moves
from pipelines.sql import query
from tests.approvals.delivered import MESSAGE, SECRET, channel_to, delivery_for, log_of, send_due, state_of
from tests.approvals.receivers import PATIENCE_SECONDS, Receiver, receiver_server
from tests.cast import Hand
from tests.clock import Clock
from tests.concurrency.crew import crew_of
from tests.config.console_process import BASE_DIR, wait_until
from tests.services import database_url

NewReceiver = Callable[[], Receiver]


@pytest.fixture
def new_receiver(settings: Any) -> Iterator[NewReceiver]:
    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(receiver_server())


@pytest.fixture
def receiver(new_receiver: NewReceiver) -> Receiver:
    return new_receiver()


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SECONDS", 0.3)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses without their jitter."""
    monkeypatch.setattr(deliveries, "SPREAD", 0.0)


def seconds_until_due(delivery: Delivery) -> float:
    ((seconds,),) = query(
        "SELECT extract(epoch FROM due_at - recourse_now()) FROM approvals_delivery WHERE id = %s", [delivery.id]
    )
    return float(seconds)


# trying again


def test_a_receiver_that_is_away_is_sent_the_same_delivery_when_it_is_back(
    workspace: Workspace, receiver: Receiver, clock: Clock, steady: None
) -> None:
    """The id and the messages stay; the time and the signature are of this try."""
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.answers = [(503, {}), (503, {})]
    assert send_due() == 1
    assert state_of(delivery) == "pending"
    assert seconds_until_due(delivery) == pytest.approx(5, abs=1)
    clock.advance(3.9)
    assert send_due() == 0
    clock.advance(1.2)
    assert send_due() == 1
    assert seconds_until_due(delivery) == pytest.approx(30, abs=1)
    clock.advance(31)
    assert send_due() == 1
    assert log_of(delivery) == [(1, False, "answered 503"), (2, False, "answered 503"), (3, True, "answered 200")]
    assert state_of(delivery) == "sent"
    assert delivery.tries == 3
    assert delivery.closed_at is not None
    told = [verify_webhook(came.body, came.headers, SECRET) for came in receiver.requests]
    assert {message["delivery_id"] for message in told} == {str(delivery.id)}
    assert all(message["messages"] == [MESSAGE] for message in told)
    clock.advance(days=2)
    assert send_due() == 0
    assert len(receiver.requests) == 3


def test_eleven_tries_in_about_a_day_and_then_it_is_given_up(
    workspace: Workspace, receiver: Receiver, clock: Clock, steady: None
) -> None:
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.answers = [(500, {})] * 20
    waited = 0.0
    for pause in PAUSES:
        assert send_due() == 1
        assert state_of(delivery) == "pending"
        assert seconds_until_due(delivery) == pytest.approx(pause, abs=2)
        waited += pause
        clock.advance(pause + 1)
    assert send_due() == 1
    assert state_of(delivery) == "failed"
    assert delivery.tries == 11
    assert delivery.closed_at is not None
    assert 23 * 3600 < waited < 24 * 3600
    clock.advance(days=2)
    assert send_due() == 0
    assert len(receiver.requests) == 11


def test_the_pauses_of_many_are_not_one(workspace: Workspace, receiver: Receiver) -> None:
    """Give or take a fifth: those that failed together do not come back together."""
    channel = channel_to(workspace, receiver.url)
    made = [delivery_for(channel) for _ in range(12)]
    receiver.answers = [(503, {})] * 12
    assert send_due() == 12
    pauses = {round(seconds_until_due(delivery), 2) for delivery in made}
    assert len(pauses) > 6
    assert all(2 < pause <= 6 for pause in pauses)


@pytest.mark.parametrize(
    ("status", "told", "seconds"),
    [
        (429, "120", 120),
        (503, "120", 120),
        (429, "1", 5),  # not before the pause is over
        (429, "999999999999", 3600),  # not for longer than an hour
        (429, "-7", 5),
        (429, "soon", 5),
        (429, "²", 5),
        (429, "", 5),
        (429, "Thu, 01 Jan 1970 00:00:00 GMT", 5),
        (429, "Thu, 01 Jan 2970 00:00:00 GMT", 3600),
        (429, "Thu, 99 Jan 2970 00:00:00 GMT", 5),
    ],
)
def test_a_receiver_may_ask_for_time(
    workspace: Workspace, receiver: Receiver, steady: None, status: int, told: str, seconds: int
) -> None:
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.answers = [(status, {"Retry-After": told.encode().decode("latin-1")})]
    send_due()
    assert seconds_until_due(delivery) == pytest.approx(seconds, abs=2)
    assert log_of(delivery) == [(1, False, f"answered {status}")]


def test_a_receiver_may_ask_for_time_until_a_date(workspace: Workspace, receiver: Receiver, steady: None) -> None:
    from datetime import UTC, datetime, timedelta

    delivery = delivery_for(channel_to(workspace, receiver.url))
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    receiver.answers = [(429, {"Retry-After": date})]
    send_due()
    assert seconds_until_due(delivery) == pytest.approx(600, abs=5)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    workspace: Workspace, receiver: Receiver, new_receiver: NewReceiver, status: int
) -> None:
    """It would lead past the address that was checked."""
    elsewhere = new_receiver()
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.answers = [(status, {"Location": elsewhere.url})]
    send_due()
    told = f"answered {status}, a redirect, which is not followed: set the address it leads to"
    assert log_of(delivery) == [(1, False, told)]
    assert (len(receiver.requests), elsewhere.requests) == (1, [])


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_answer_of_success_means_taken(workspace: Workspace, receiver: Receiver, status: int) -> None:
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.answers = [(status, {})]
    send_due()
    assert log_of(delivery) == [(1, True, f"answered {status}")]


@pytest.mark.parametrize("lever", ["silent", "drips"])
def test_a_receiver_that_does_not_come_to_an_end_is_left_in_time(
    workspace: Workspace, receiver: Receiver, short_patience: None, lever: str
) -> None:
    """One that answers a byte at a time is no better than one that is silent."""
    if lever == "silent":
        receiver.let_go.clear()
    else:
        receiver.drips = True
    delivery = delivery_for(channel_to(workspace, receiver.url))
    began = time.monotonic()
    send_due()
    assert time.monotonic() - began < 5
    assert log_of(delivery) == [(1, False, "no answer within 0.3 s")]


def test_no_more_of_an_answer_is_read_than_is_needed(workspace: Workspace, receiver: Receiver) -> None:
    receiver.talks = 50_000_000
    delivery = delivery_for(channel_to(workspace, receiver.url))
    began = time.monotonic()
    send_due()
    assert time.monotonic() - began < 5
    assert log_of(delivery) == [(1, True, "answered 200")]


def test_a_receiver_that_is_not_there_and_one_that_speaks_no_http_are_told_apart(
    workspace: Workspace, settings: Any
) -> None:
    import socket

    settings.RECOURSE_NOTIFY_ALLOW = ["127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65_536)
                line.sendall(b"220 mail.example ready\r\n")
                line.shutdown(socket.SHUT_WR)
                while line.recv(65_536):  # what is left unread would reset the line before its answer is read
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        strange = delivery_for(channel_to(workspace, f"http://127.0.0.1:{port}/"))
        send_due()
        thread.join(PATIENCE_SECONDS)
    away = delivery_for(channel_to(workspace, f"http://127.0.0.1:{port}/", name="away"))
    send_due()
    assert log_of(strange) == [(1, False, "the answer is no HTTP")]
    assert log_of(away) == [(1, False, "127.0.0.1 refuses the connection")]


def test_a_private_receiver_that_is_no_longer_allowed_gets_nothing(
    workspace: Workspace, receiver: Receiver, settings: Any
) -> None:
    delivery = delivery_for(channel_to(workspace, receiver.url))
    settings.RECOURSE_NOTIFY_ALLOW = []
    send_due()
    assert log_of(delivery) == [(1, False, "the channel's address may not be used any more: set it anew")]
    assert receiver.requests == []


# channels


def test_what_comes_due_for_a_channel_that_is_turned_off_is_given_up(
    workspace: Workspace, receiver: Receiver, clock: Clock
) -> None:
    channel = channel_to(workspace, receiver.url)
    delivery = delivery_for(channel)
    Channel.objects.filter(id=channel.id).update(enabled=False)
    assert send_due() == 1
    assert (state_of(delivery), log_of(delivery)) == ("failed", [(1, False, "the channel is turned off")])
    Channel.objects.filter(id=channel.id).update(enabled=True)
    clock.advance(days=1)
    assert send_due() == 0
    assert receiver.requests == []


@pytest.mark.parametrize("kind", [ChannelKind.WEBHOOK, ChannelKind.SLACK])
def test_another_encryption_key_is_told_and_setting_the_channel_anew_heals_it(
    workspace: Workspace, receiver: Receiver, settings: Any, clock: Clock, kind: str
) -> None:
    channel = channel_to(workspace, receiver.url, kind)
    delivery = delivery_for(channel)
    settings.RECOURSE_ENCRYPTION_KEY = Fernet.generate_key().decode()
    send_due()
    ((_, succeeded, answer),) = log_of(delivery)
    assert not succeeded
    assert answer == (
        "the channel's address cannot be read: RECOURSE_ENCRYPTION_KEY is not the one that it was kept with;"
        " set the address anew"
    )
    assert receiver.requests == []
    channels.set_address(channel, receiver.url)
    channels.set_secret(channel, SECRET)
    channel.save()
    clock.advance(10)
    send_due()
    assert state_of(delivery) == "sent"


def test_a_channel_without_address_or_secret_says_so(workspace: Workspace, receiver: Receiver) -> None:
    bare = Channel.objects.create(workspace=workspace, name="bare", kind=ChannelKind.SLACK)
    unsigned = channel_to(workspace, receiver.url)
    Channel.objects.filter(id=unsigned.id).update(secret=None)
    first, second = delivery_for(bare), delivery_for(unsigned)
    send_due()
    assert log_of(first) == [(1, False, "the channel has no address: set one")]
    assert log_of(second) == [(1, False, "the channel has no secret: set one")]
    assert receiver.requests == []


@pytest.mark.parametrize("secret", ["", "x" * 15, "x" * 256, "x" * 15 + "\n", "ß" * 20])
def test_a_secret_that_is_too_short_or_cannot_be_typed_is_refused(workspace: Workspace, secret: str) -> None:
    channel = Channel(workspace=workspace, name="x", kind=ChannelKind.WEBHOOK)
    with pytest.raises(Refusal) as caught:
        channels.set_secret(channel, secret)
    assert caught.value.errors == {"secret": ["must be 16 to 255 printable ASCII characters"]}
    assert channel.secret is None
    assert channels.set_secret(channel, "x" * 16) == "x" * 16
    assert len(channels.set_secret(channel)) >= 40
    assert channels.set_secret(channel) != channels.set_secret(channel)


def test_nothing_that_is_secret_stands_in_rows_logs_or_errors(
    workspace: Workspace,
    receiver: Receiver,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address too: who knows it may post. Every way to fail is gone through, with everything logged."""
    caplog.set_level(logging.DEBUG)
    channel = channel_to(workspace, receiver.url)
    receiver.answers = [(200, {}), (503, {}), (302, {"Location": receiver.url})]
    for _ in range(3):
        delivery_for(channel)
        send_due()

    def burst(*_: object) -> list[str]:
        raise RuntimeError(f"t0p-s3cret of {SECRET}")

    with monkeypatch.context() as odd:
        odd.setattr("approvals.notifications.webhooks.checked", burst)
        delivery_for(channel)
        send_due()
    settings.RECOURSE_NOTIFY_ALLOW = []
    delivery_for(channel)
    send_due()
    rows = [bytes(value) if isinstance(value, memoryview) else value for value in Channel.objects.values_list().get()]
    told = repr([rows, *DeliveryTry.objects.values_list(), *Delivery.objects.values_list(), caplog.text, str(channel)])
    told += "".join(capfd.readouterr())
    assert DeliveryTry.objects.count() == 5
    assert "a fault of the console (RuntimeError): see its log" in told
    assert "t0p-s3cret" not in told
    assert SECRET not in told
    assert channel.host == "127.0.0.1"


# two at once


@pytest.mark.django_db(transaction=True)
def test_of_many_senders_one_sends_each_delivery(workspace: Workspace, new_receiver: NewReceiver) -> None:
    receivers = [new_receiver() for _ in range(4)]
    kept = [channel_to(workspace, one.url, name=str(number)) for number, one in enumerate(receivers)]
    made = [delivery_for(kept[number % 4]) for number in range(40)]
    with crew_of(8) as crew:
        while Delivery.objects.filter(state="pending").exists():
            crew.at_once(*[send_due] * 8)
    assert all(log_of(delivery) == [(1, True, "answered 200")] for delivery in made)
    came = [request.document["delivery_id"] for one in receivers for request in one.requests]
    assert sorted(came) == sorted(str(delivery.id) for delivery in made)


@pytest.mark.django_db(transaction=True)
def test_of_many_claimers_no_two_hold_one_and_a_channel_has_two_on_their_way(
    workspace: Workspace, receiver: Receiver
) -> None:
    kept = [channel_to(workspace, receiver.url, name=str(number)) for number in range(3)]
    for _ in range(5):
        for channel in kept:
            delivery_for(channel)
    with crew_of(8) as crew:
        claims = [mine for _ in range(3) for answer in crew.at_once(*[lambda: claim(5)] * 8) for mine in answer]
    assert len({mine.id for mine in claims}) == len(claims) == 6
    held = Delivery.objects.filter(held_until__isnull=False).values_list("channel__name", flat=True)
    assert sorted(held) == ["0", "0", "1", "1", "2", "2"]


def test_channels_with_the_fewest_on_their_way_come_first(workspace: Workspace, receiver: Receiver) -> None:
    """A channel's flood does not stand before another's single message, however much older it is."""
    flooded, quiet = (channel_to(workspace, receiver.url, name=name) for name in ("flooded", "quiet"))
    for _ in range(50):
        delivery_for(flooded)
    single = delivery_for(quiet)
    first, second = claim(2)
    assert single.id in {first.id, second.id}
    assert len(claim(8)) == 1
    assert claim(8) == []


def test_who_held_it_too_long_may_say_that_it_was_taken_and_not_that_it_failed(
    workspace: Workspace, receiver: Receiver, clock: Clock
) -> None:
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.answers = [(503, {}), (200, {})]
    (slow,) = claim(1)
    clock.advance(deliveries.HOLD_SECONDS + 1)
    (quick,) = claim(1)
    assert (slow.id, slow.held_until < quick.held_until) == (quick.id, True)
    deliver(slow)
    assert (state_of(delivery), log_of(delivery)) == ("pending", [])
    assert claim(1) == []  # the quick one holds it
    deliver(slow)
    assert (state_of(delivery), log_of(delivery)) == ("sent", [(1, True, "answered 200")])
    deliver(quick)
    assert log_of(delivery) == [(1, True, "answered 200")]


def test_a_delivery_that_is_gone_meanwhile_is_not_sent(workspace: Workspace, receiver: Receiver) -> None:
    channel = channel_to(workspace, receiver.url)
    delivery_for(channel)
    (mine,) = claim(1)
    channel.delete()
    deliver(mine)
    assert receiver.requests == []


@pytest.mark.django_db(transaction=True)
def test_a_sender_that_dies_after_it_has_sent_leaves_the_same_delivery_to_another(
    workspace: Workspace, receiver: Receiver, clock: Clock
) -> None:
    """kill -9 between the request and the row: sent again, under the id by which the receiver passes it over."""
    delivery = delivery_for(channel_to(workspace, receiver.url))
    receiver.let_go.clear()
    code = "import django; django.setup(); from tests.approvals.delivered import send_due; send_due()"
    victim = subprocess.Popen([sys.executable, "-c", code], cwd=BASE_DIR, env=_process_environment())
    receiver.wait_for(1)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    receiver.let_go.set()
    assert send_due() == 0  # the dead one holds it still
    assert (state_of(delivery), log_of(delivery)) == ("pending", [])
    clock.advance(deliveries.HOLD_SECONDS + 1)
    assert send_due() == 1
    first, second = receiver.requests
    assert first.headers["Recourse-Delivery"] == second.headers["Recourse-Delivery"] == str(delivery.id)
    assert first.document["messages"] == second.document["messages"]
    assert (state_of(delivery), log_of(delivery)) == ("sent", [(1, True, "answered 200")])


def _process_environment(**more: str) -> dict[str, str]:
    return os.environ | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "RECOURSE_ENCRYPTION_KEY": django_settings.RECOURSE_ENCRYPTION_KEY,
        "RECOURSE_NOTIFY_ALLOW": "127.0.0.1",
        "PYTHONPATH": f"{BASE_DIR}{os.pathsep}{BASE_DIR / 'sdk'}",
        **more,
    }


def test_no_transaction_is_open_while_something_is_sent(
    workspace: Workspace, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    outer = len(connection.savepoint_ids)
    real = deliveries.SENDERS[ChannelKind.WEBHOOK]

    def look(delivery: Delivery) -> str:
        seen.append(len(connection.savepoint_ids) - outer)
        return real(delivery)

    monkeypatch.setitem(deliveries.SENDERS, ChannelKind.WEBHOOK, look)
    delivery_for(channel_to(workspace, receiver.url))
    send_due()
    assert seen == [0]


# threads


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_hangs_holds_nobody_elses_messages(workspace: Workspace, new_receiver: NewReceiver) -> None:
    """Nor the thread that asked for them to be sent; and what hangs is two deliveries, not all threads."""
    hanging, healthy = new_receiver(), new_receiver()
    hanging.let_go.clear()
    stuck = channel_to(workspace, hanging.url, name="hanging")
    fine = channel_to(workspace, healthy.url, name="healthy")
    waiting = [delivery_for(stuck) for _ in range(20)]
    senders = Senders()
    assert senders.go() == 2
    hanging.wait_for(2)
    made = [delivery_for(fine) for _ in range(20)]
    began = time.monotonic()
    assert senders.go() == 2
    wait_until(lambda: not Delivery.objects.filter(channel=fine, state="pending").exists(), why="the healthy one waits")
    assert time.monotonic() - began < sending.SECONDS
    assert all(log_of(delivery) == [(1, True, "answered 200")] for delivery in made)
    assert len(hanging.requests) == 2
    assert all(log_of(delivery) == [] for delivery in waiting)
    hanging.let_go.set()
    wait_until(lambda: not Delivery.objects.filter(state="pending").exists(), why="the rest does not follow")
    senders.close(PATIENCE_SECONDS)
    assert len(hanging.requests) == 20


@pytest.mark.django_db(transaction=True)
def test_there_are_never_more_threads_than_was_said_and_none_when_there_is_nothing(
    workspace: Workspace, receiver: Receiver
) -> None:
    receiver.let_go.clear()
    for number in range(6):
        delivery_for(channel_to(workspace, receiver.url, name=str(number)))
    senders = Senders(most=3)
    assert senders.go() == 3
    receiver.wait_for(3)
    assert senders.go() == 0
    assert len(_sender_threads()) == 3
    receiver.let_go.set()
    wait_until(lambda: not _sender_threads(), why="threads stay")
    assert len(receiver.requests) == 6
    assert senders.go() == 0
    assert not _sender_threads()


@pytest.mark.django_db(transaction=True)
def test_what_ends_lets_what_is_on_its_way_end_and_begins_nothing(workspace: Workspace, receiver: Receiver) -> None:
    channel = channel_to(workspace, receiver.url)
    made = [delivery_for(channel) for _ in range(4)]
    receiver.let_go.clear()
    senders = Senders()
    assert senders.go() == 2
    receiver.wait_for(2)
    threading.Timer(0.1, receiver.let_go.set).start()
    senders.close(PATIENCE_SECONDS)
    assert not _sender_threads()
    assert senders.go() == 0
    assert sorted(state_of(delivery) for delivery in made) == ["pending", "pending", "sent", "sent"]
    assert not Delivery.objects.filter(held_until__isnull=False).exists()


def _sender_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sender"]


@pytest.mark.django_db
def test_nothing_to_do_costs_a_statement_and_no_thread() -> None:
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert Senders().go() == 0
    assert sum("approvals_channel" in found["sql"] for found in seen) == 1
    assert not _sender_threads()


def test_no_step_of_telling_holds_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst() -> int:
        raise ValueError("odd notice")

    monkeypatch.setattr(tasks, "STEPS", {"first": burst, "second": lambda: 7})
    assert tasks.tell() == {"first": 0, "second": 7}


# the log


@pytest.mark.django_db
def test_deliveries_are_forgotten_thirty_days_after_they_ended(
    workspace: Workspace, receiver: Receiver, clock: Clock
) -> None:
    channel = channel_to(workspace, receiver.url)
    sent = delivery_for(channel)
    send_due()
    clock.advance(days=29)
    later = delivery_for(channel)
    send_due()
    waiting = delivery_for(channel)
    assert forget_old() == 0
    clock.advance(days=1, seconds=5)
    assert tasks.forget_deliveries() == 1
    assert set(Delivery.objects.values_list("id", flat=True)) == {later.id, waiting.id}
    assert not DeliveryTry.objects.filter(delivery_id=sent.id).exists()
    clock.advance(days=60)
    assert forget_old() == 1
    assert state_of(waiting) == "pending"


# Celery


def test_notifications_have_a_queue_of_their_own_that_the_clocks_process_serves(tmp_path: Path) -> None:
    """A handler that runs for hours holds no message, and no receiver holds a handler."""
    told = configuration("memory://", tmp_path)
    assert told["beat_schedule"]["notifications"]["task"] == "approvals.tasks.tell"
    assert told["beat_schedule"]["notifications"]["schedule"] == 1.0
    assert told["task_routes"]["approvals.tasks.*"] == {"queue": "recourse.notices"}
    argv = list(clock_service().argv)
    assert argv[argv.index("-Q") + 1] == "recourse.clock,recourse.notices"


@pytest.mark.parametrize(
    "broker",
    [
        "filesystem",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("rabbitmq", marks=pytest.mark.rabbitmq),
    ],
)
def test_every_broker_brings_the_task_by_its_own_queue(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str
) -> None:
    from celery import Celery

    url = "filesystem://" if broker == "filesystem" else request.getfixturevalue(f"{broker}_url")
    told = configuration(url, tmp_path)
    queue = f"recourse.notices.{os.getpid()}"  # of this test alone, on a broker that others use
    told["task_routes"] = {name: {"queue": queue if "approvals" in name else "x"} for name in told["task_routes"]}
    with Celery("test", set_as_current=False, changes=told) as app:
        app.send_task("approvals.tasks.tell")
        options = told["broker_transport_options"]
        with Connection(url, transport_options=options) as link:
            with link.SimpleQueue(queue) as found:
                message = found.get(timeout=PATIENCE_SECONDS)
                message.ack()
            link.default_channel.queue_delete(queue)
    assert message.headers["task"] == "approvals.tasks.tell"


@pytest.mark.django_db(transaction=True)
def test_the_clock_goes_on_while_a_receiver_hangs(
    workspace: Workspace, new_receiver: NewReceiver, start_run: Callable[..., Run], tmp_path: Path
) -> None:
    """A worker as `up` starts it, with beat: it sends, and ends a pause in time although nobody answers."""
    hanging, healthy = new_receiver(), new_receiver()
    hanging.let_go.clear()
    delivery_for(channel_to(workspace, hanging.url, name="hanging"))
    command = [sys.executable, "-m", "celery", "-A", "config.celery", "worker", "-B", "-P", "solo", "-l", "WARNING"]
    command += ["-Q", "recourse.clock,recourse.notices", "-s", str(tmp_path / "beat")]
    environment = _process_environment(RECOURSE_DATA=str(tmp_path), CELERY_BROKER_URL="")
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, env=environment, cwd=BASE_DIR, stdout=log, stderr=log)
    try:
        hanging.wait_for(1)
        run = start_run("first")
        with transaction.atomic():
            moves = Moves.lock([run.id])
            transitions.pause(moves, moves.runs[run.id], "", moves.now)
        delivery = delivery_for(channel_to(workspace, healthy.url, name="healthy"))
        healthy.wait_for(1)
        wait_until(lambda: not Run.objects.get(id=run.id).paused, seconds=8, why="the clock stands still")
        wait_until(lambda: state_of(delivery) == "sent", why="it is not written down")
        assert len(hanging.requests) == 1
    finally:
        hanging.let_go.set()
        worker.terminate()
        assert worker.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


# from end to end


def gated(count: int) -> list[Any]:
    """A first stage, and so many that all wait for somebody once it has ended."""
    return ["top"] + [
        {"name": f"ship {number}", "approval": {"when": "before"}, "depends_on": ["top"]} for number in range(count)
    ]


@pytest.mark.django_db(transaction=True)
def test_two_hundred_gates_of_a_minute_are_one_signed_message_at_the_receiver(
    workspace: Workspace, receiver: Receiver, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    """From the runs that wait to the request that tells of them, by the task that beat sends each second."""
    NotificationRule.objects.create(workspace=workspace, name="all", channel=channel_to(workspace, receiver.url))
    for _ in range(4):
        start_run(*gated(50))
    assert hand.finish() == 4
    tasks.tell()
    clock.advance(59)
    tasks.tell()
    assert receiver.requests == []
    clock.advance(2)
    tasks.tell()
    receiver.wait_for(1)
    wait_until(lambda: not _sender_threads(), why="the sender does not end")
    came = receiver.received
    message = verify_webhook(came.body, came.headers, SECRET)
    assert (message["kind"], message["count"], len(message["messages"])) == ("digest", 200, 4)
    assert state_of(Delivery.objects.get()) == "sent"
    clock.advance(hours=1)
    tasks.tell()
    assert not _sender_threads()
    assert len(receiver.requests) == 1
