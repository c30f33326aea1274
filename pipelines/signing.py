"""Signing what must be recognised later: Ed25519 over canonical bytes, with the keys of the workspace."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import structlog
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pipelines import keyring

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
        log.error("signing.no_key", workspace=str(workspace_id), why=str(error))
        return Envelope()
    return Envelope(ED25519, key.key_id, base64.b64encode(key.private.sign(message)).decode())


def verify(workspace_id: uuid.UUID, envelope: Envelope, message: bytes) -> Verdict:
    """Whether the envelope fits the message, by the key's state as it is now; whatever is missing or odd is invalid."""
    return verify_all([(workspace_id, envelope, message)])[0]


def verify_all(asked: Iterable[tuple[uuid.UUID, Envelope, bytes]]) -> list[Verdict]:
    """As `verify`, for many at one moment: each key is read once."""
    known: dict[tuple[uuid.UUID, str], tuple[Ed25519PublicKey | None, str]] = {}
    verdicts = []
    for workspace_id, envelope, message in asked:
        signature = _signature(envelope)
        if signature is None:
            verdicts.append(Verdict.INVALID)
            continue
        named = (workspace_id, envelope.key_id)
        if named not in known:
            known[named] = _public_key(*named)
        verdicts.append(_judge(*known[named], signature, message))
    return verdicts


def _signature(envelope: Envelope) -> bytes | None:
    if envelope.algorithm != ED25519 or not envelope.key_id or not envelope.signature:
        return None
    try:
        return base64.b64decode(envelope.signature, validate=True)
    except (binascii.Error, ValueError):
        return None


def _public_key(workspace_id: uuid.UUID, key_id: str) -> tuple[Ed25519PublicKey | None, str]:
    try:
        return keyring.public_key(workspace_id, key_id)
    except keyring.Unavailable as error:
        log.error("signing.cannot_verify", workspace=str(workspace_id), why=str(error))
        return None, "unknown"


def _judge(key: Ed25519PublicKey | None, state: str, signature: bytes, message: bytes) -> Verdict:
    if key is None:
        return Verdict.INVALID
    if state == "revoked":
        return Verdict.REVOKED_KEY
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return Verdict.INVALID
    return Verdict.VALID
