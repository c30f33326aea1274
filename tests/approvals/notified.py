"""What tests of notifications begin with: a channel, a rule, gates that open, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from approvals.models import Channel, Delivery, NotificationRule
from pipelines.models import Run, Workspace
from tests.cast import Hand

StartRun = Callable[..., Run]
GATED = {"name": "charge", "approval": {"when": "before"}}


def channel_of(workspace: Workspace, name: str = "chat", kind: str = "slack", **more: Any) -> Channel:
    made: Channel = Channel.objects.create(workspace=workspace, name=name, kind=kind, **more)
    return made


def rule_of(workspace: Workspace, name: str = "all", channel: Channel | None = None, **more: Any) -> NotificationRule:
    """A rule that sends each message by itself, unless told otherwise."""
    more = {"digest_seconds": 0, **more}
    channel = channel or Channel.objects.filter(workspace=workspace).first() or channel_of(workspace)
    made: NotificationRule = NotificationRule.objects.create(workspace=workspace, name=name, channel=channel, **more)
    return made


def sent() -> list[dict[str, Any]]:
    """All lines of all deliveries, in the order in which they were made."""
    return [line for delivery in Delivery.objects.order_by("created_at", "id") for line in delivery.body]


def told() -> list[str]:
    return [line["kind"] for line in sent()]


def fail(hand: Hand) -> None:
    """The next job fails for good: its stage becomes a dead letter."""
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", error_message="card 4111 of hunter2")
