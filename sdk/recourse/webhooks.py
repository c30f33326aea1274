"""For receivers of the console's webhooks: whether a request is from it, whole and fresh, and what it says.

message = verify_webhook(request.body, request.headers, secret)

A console sends at least once: keep `message["delivery_id"]`, and pass over what you have met.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from recourse.errors import RecourseError

TOLERANCE_SECONDS = 300


class WebhookInvalid(RecourseError):
    """It was not signed with this secret, was altered on the way, or is too old: do not act upon it."""


def sign_webhook(body: bytes, secret: str, timestamp: int) -> str:
    """The signature of a body sent at that time (Unix seconds): `v1=` and the hex HMAC-SHA-256 of "timestamp.body"."""
    signed = str(timestamp).encode() + b"." + body
    return f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def verify_webhook(
    body: bytes, headers: Mapping[str, str], secret: str, tolerance: float = TOLERANCE_SECONDS
) -> dict[str, Any]:
    """The message of a webhook: `{delivery_id, workspace, kind, count, messages, sent_at}`.

    `body` are the bytes as they came, before any parsing. Headers are found whatever the case of their names. Raises
    `WebhookInvalid` unless the signature fits and was made less than `tolerance` seconds ago, or ahead, by this clock.
    """
    found = {name.lower(): value for name, value in headers.items()}
    stamp, signature = found.get("recourse-timestamp", ""), found.get("recourse-signature", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12 and secret):
        raise WebhookInvalid("it bears no time, or there is no secret to verify it with")
    if not hmac.compare_digest(sign_webhook(body, secret, int(stamp)).encode(), signature.encode(errors="replace")):
        raise WebhookInvalid("the signature does not fit: another secret, or an altered body")
    if abs(time.time() - int(stamp)) > tolerance:
        raise WebhookInvalid(f"it was signed more than {tolerance:g} s away from now: it may be played again")
    try:
        message = json.loads(body)
    except ValueError:
        raise WebhookInvalid("the body is no JSON document") from None
    if not isinstance(message, dict) or message.get("delivery_id") != found.get("recourse-delivery"):
        raise WebhookInvalid("the header Recourse-Delivery is not the delivery that was signed")
    return message
