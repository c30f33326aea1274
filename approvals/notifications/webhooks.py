"""Signed webhooks: one JSON document, and three headers by which a receiver knows it and its repetitions.

The bytes that are signed are the bytes that are sent. Each try has its own time and signature; the delivery's id stays.
How a receiver verifies them: `recourse.verify_webhook`, and docs/howto/notifications.md for other languages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from recourse.webhooks import sign_webhook

from approvals.models import Delivery
from approvals.notifications import channels, sending
from approvals.notifications.addresses import checked

DIGEST = "digest"


def send(delivery: Delivery) -> str:
    """Posts the delivery; what was answered. Raises `NotTaken`."""
    deadline = time.monotonic() + sending.SECONDS
    place = channels.place(delivery.channel)
    secret = channels.secret(delivery.channel)
    now = datetime.now(UTC)
    body = document(delivery, now)
    headers = {
        "Content-Type": "application/json",
        "Recourse-Delivery": str(delivery.id),
        "Recourse-Timestamp": str(int(now.timestamp())),
        "Recourse-Signature": sign_webhook(body, secret, int(now.timestamp())),
    }
    return sending.post(place, checked(place, deadline), body, headers, deadline)


def document(delivery: Delivery, now: datetime) -> bytes:
    """What is sent, and signed."""
    messages = delivery.body
    told = {
        "delivery_id": str(delivery.id),
        "workspace": delivery.workspace.slug,
        "kind": kind_of(messages),
        "count": sum(message.get("count", 1) for message in messages),
        "messages": messages,
        "sent_at": now.isoformat(),
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def kind_of(messages: Sequence[dict[str, Any]]) -> str:
    """That of a message by itself; several are a digest."""
    return messages[0]["kind"] if len(messages) == 1 and messages[0].get("count", 1) == 1 else DIGEST
