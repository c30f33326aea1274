"""Channels and deliveries for tests, as people and notices would make them."""

from __future__ import annotations

from typing import Any

from approvals.models import Channel, ChannelKind, Delivery
from approvals.notifications import channels
from approvals.notifications.deliveries import claim, deliver
from pipelines.models import Workspace

SECRET = "the secret of the tests"
MESSAGE = {
    "kind": "gate_opened",
    "sentence": "Somebody must decide about ship of nightly in production (1 approver)",
    "link": "https://console.example/console/approvals/7/?workspace=acme",
    "workspace": "acme",
}


def channel_to(workspace: Workspace, url: str, kind: str = ChannelKind.WEBHOOK, name: str = "on call") -> Channel:
    """A webhook's channel, its address allowed by the test's settings."""
    channel = Channel(workspace=workspace, name=name, kind=kind)
    channels.set_address(channel, url)
    channels.set_secret(channel, SECRET)
    channel.save()
    return channel


def mailing(workspace: Workspace, *recipients: str) -> Channel:
    return Channel.objects.create(workspace=workspace, name="post", kind=ChannelKind.EMAIL, recipients=list(recipients))


def delivery_for(channel: Channel, *messages: dict[str, Any], subject: str = "acme: 1 gate waits") -> Delivery:
    """A delivery that is due, with one message unless others are given."""
    made = Delivery.objects.create(
        workspace=channel.workspace, channel=channel, subject=subject, body=list(messages) or [MESSAGE]
    )
    made.refresh_from_db()
    return made


def log_of(delivery: Delivery) -> list[tuple[int, bool, str]]:
    """(number, succeeded, answer) of each try."""
    return list(delivery.log.order_by("number").values_list("number", "succeeded", "answer"))


def state_of(delivery: Delivery) -> str:
    delivery.refresh_from_db()
    return str(delivery.state)


def send_due(limit: int = 500) -> int:
    """Sends what is due, one after the other, in this thread; how many tries that were."""
    total = 0
    while total < limit and (claims := claim(limit - total)):
        for mine in claims:
            deliver(mine)
        total += len(claims)
    return total
