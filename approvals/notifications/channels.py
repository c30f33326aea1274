"""What a channel keeps secret: a webhook's address, which lets whoever knows it post, and the secret it signs with.

Both are encrypted with RECOURSE_ENCRYPTION_KEY, written here only, and told nowhere again: not in rows, logs, errors
or the log of deliveries. With another key they cannot be read, and every try says so until they are set anew.
"""

from __future__ import annotations

import secrets

from cryptography.fernet import InvalidToken

from approvals.models import Channel
from approvals.notifications.addresses import NotTaken, Place, place_of
from pipelines.encryption import fernet
from pipelines.errors import Refusal

SHORTEST_SECRET, LONGEST_SECRET = 16, 255


def set_address(channel: Channel, url: str) -> None:
    """Keeps a webhook's address in the row; the caller saves it. Refuses with `validation_error` what is none, and an
    address that is private by its looks; names are looked up whenever something is sent."""
    place = place_of(url)
    channel.address = fernet().encrypt(url.encode())
    channel.host = place.host


def set_secret(channel: Channel, text: str | None = None) -> str:
    """Keeps the secret that signs, made here when none is given; the caller saves the row and shows the secret once."""
    made = secrets.token_urlsafe(32) if text is None else text
    if not (SHORTEST_SECRET <= len(made) <= LONGEST_SECRET and made.isascii() and made.isprintable()):
        message = f"must be {SHORTEST_SECRET} to {LONGEST_SECRET} printable ASCII characters"
        raise Refusal("validation_error", f"secret: {message}", errors={"secret": [message]})
    channel.secret = fernet().encrypt(made.encode())
    return made


def place(channel: Channel) -> Place:
    """Where the channel posts to. Raises `NotTaken` when that cannot be read, or may not be reached any more."""
    url = _opened(channel.address, "address")
    try:
        return place_of(url)
    except Refusal:
        raise NotTaken("the channel's address may not be used any more: set it anew") from None


def secret(channel: Channel) -> str:
    """The secret it signs with. Raises `NotTaken`."""
    return _opened(channel.secret, "secret")


def _opened(kept: bytes | memoryview | None, what: str) -> str:
    if kept is None:
        raise NotTaken(f"the channel has no {what}: set one")
    try:
        return fernet().decrypt(bytes(kept)).decode()
    except InvalidToken:
        raise NotTaken(
            f"the channel's {what} cannot be read: RECOURSE_ENCRYPTION_KEY is not the one that it was kept with; set"
            f" the {what} anew"
        ) from None
