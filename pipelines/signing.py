"""Signing what must be recognised later: Ed25519 over canonical bytes, with the keys of the workspace."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog
from cryptography.exceptions import InvalidSignature

from pipelines import keyring
from pipelines.keyring import KeyState, PublicKey

log = structlog.get_logger(__name__)
ED25519 = "ed25519"


class Verdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"  # no envelope, an unknown algorithm or key, or another text than the one that was signed
    REVOKED_KEY = "revoked_key"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signature in base64 and what it was made with. All three blank: it was not signed, and is never trusted."""

    algorithm: str = ""
    key_id: str = ""
    signature: str = ""


def sign(workspace_id: uuid.UUID, message: bytes) -> Envelope:
    """Signs with the workspace's active key. Without one the envelope stays blank: work goes on, trust does not."""
    try:
        key = keyring.signing_key(workspace_id)
    except keyring.Unavailable as error:
        if not error.remembered:  # told once for each time that the store was asked, not for each signature
            log.error("signing.no_key", workspace=str(workspace_id), why=str(error))
        return Envelope()
    return Envelope(ED25519, key.key_id, base64.b64encode(key.private.sign(message)).decode())


def verify(workspace_id: uuid.UUID, envelope: Envelope, message: bytes) -> Verdict:
    """Whether the envelope fits the message, by the key's state as it is now; whatever is missing or odd is invalid,
    and so is everything while the keyring cannot be read."""
    return verify_all([(workspace_id, envelope, message)])[0]


def verify_all(asked: Iterable[tuple[uuid.UUID, Envelope, bytes]]) -> list[Verdict]:
    """As `verify`, for many at one moment: each workspace's keyring is read once, now."""
    known: dict[uuid.UUID, Mapping[str, PublicKey]] = {}
    verdicts = []
    for workspace_id, envelope, message in asked:
        if workspace_id not in known:
            known[workspace_id] = _keys(workspace_id)
        verdicts.append(_verdict(known[workspace_id], envelope, message))
    return verdicts


def can_check(workspace_id: uuid.UUID) -> bool:
    """Whether any signature can be checked now. Only for the words beside a verdict: one that is invalid stays so."""
    try:
        keyring.read(workspace_id)
    except keyring.Unavailable:
        return False
    return True


def _keys(workspace_id: uuid.UUID) -> Mapping[str, PublicKey]:
    try:
        return keyring.read(workspace_id).keys
    except keyring.Unavailable as error:
        log.error("signing.cannot_verify", workspace=str(workspace_id), why=str(error))
        return {}


def _verdict(keys: Mapping[str, PublicKey], envelope: Envelope, message: bytes) -> Verdict:
    key = keys.get(envelope.key_id)
    if key is None or envelope.algorithm != ED25519:
        return Verdict.INVALID
    if key.state == KeyState.REVOKED:
        return Verdict.REVOKED_KEY
    try:
        key.key.verify(base64.b64decode(envelope.signature, validate=True), message)
    except (InvalidSignature, binascii.Error, ValueError):
        return Verdict.INVALID
    return Verdict.VALID
