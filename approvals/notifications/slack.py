"""Webhooks as Slack takes them, and with it Mattermost, Rocket.Chat, Zulip and Discord's `/slack` addresses.

Names of runs come from outside: nothing in them may call people or lead anywhere. `&`, `<` and `>` are escaped, which
is all that Slack reads; for those that read more, a zero-width space breaks `@here`, `@**all**` and `[text](address)`,
and whatever a chat would make a link of by itself: `https://` and `evil.example`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from approvals.models import Delivery
from approvals.notifications import channels, sending
from approvals.notifications.addresses import checked

LINES = 20
CHARACTERS = 3500
BREAK = "\N{ZERO WIDTH SPACE}"


def send(delivery: Delivery) -> str:
    """Posts the delivery; what was answered. Raises `NotTaken`."""
    deadline = time.monotonic() + sending.SECONDS
    place = channels.place(delivery.channel)
    body = json.dumps({"text": text(delivery.subject, delivery.body)}).encode()
    headers = {"Content-Type": "application/json"}
    return sending.post(place, checked(place, deadline), body, headers, deadline)


def text(subject: str, messages: Sequence[dict[str, Any]]) -> str:
    """A message by itself as one line with its workspace; several under their subject, and how many were left out."""
    lines = [_line(message) for message in messages]
    if len(lines) == 1:
        workspace = str(messages[0].get("workspace") or "")
        return f"*{_safe(workspace)}* {lines[0]}" if workspace else lines[0]
    shown, size = [f"*{_safe(subject)}*"], len(subject)
    for line in lines[:LINES]:
        size += len(line) + 3
        if size > CHARACTERS:
            break
        shown.append(f"• {line}")
    rest = sum(message.get("count", 1) for message in messages[len(shown) - 1 :])
    return "\n".join([*shown, *([f"… and {rest:,} more"] if rest else [])])


def _line(message: dict[str, Any]) -> str:
    sentence, link = _safe(message["sentence"]), str(message.get("link") or "")
    if not re.match(r"https?://", link):
        return sentence
    return f"{sentence} <{_escaped(link).replace('|', '%7C')}|open>"


def _safe(told: str) -> str:
    return _escaped(re.sub(r"@|\](?=\()|:(?=//)|\.(?=[^\W\d_]{2})", rf"\g<0>{BREAK}", " ".join(told.split())))


def _escaped(told: str) -> str:
    return told.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
