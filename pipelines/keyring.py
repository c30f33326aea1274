"""The signing keys of a workspace, behind one interface: one document, read whole and changed by compare-and-swap.

A document is `{active: key_id, keys: {key_id: {public, private, state, created_at}}}`; keys are raw Ed25519 keys in
base64, `state` is active, retiring (verifies only) or revoked. Private keys are encrypted at rest. Signing may use a
key that was read seconds ago; verifying reads the document anew each time, so that a revocation holds at once.
Serves O34–O36.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings

from pipelines.sql import query

Document = dict[str, Any]
SIGNING_CACHE_SECONDS = 5.0


class Conflict(Exception):
    """Somebody else changed the keyring since it was read."""


class Unavailable(Exception):
    """No key can be had: the store does not answer, or what it holds cannot be opened."""


class Store(Protocol):
    """Where documents are kept. `read` answers (0, {}) when there is none."""

    def read(self, workspace_id: uuid.UUID) -> tuple[int, Document]: ...

    def write(self, workspace_id: uuid.UUID, document: Document, *, version: int) -> None:
        """Keeps the document as the one after `version`; raises `Conflict` when that is no longer the newest."""


class LocalStore:
    """Documents in the console's own database."""

    def read(self, workspace_id: uuid.UUID) -> tuple[int, Document]:
        rows = query("SELECT version, document FROM pipelines_localkeyring WHERE workspace_id = %s", [workspace_id])
        return (rows[0][0], json.loads(rows[0][1])) if rows else (0, {})

    def write(self, workspace_id: uuid.UUID, document: Document, *, version: int) -> None:
        written = query(
            "INSERT INTO pipelines_localkeyring (workspace_id, version, document, changed_at)"
            " VALUES (%(workspace)s, 1, %(document)s::jsonb, recourse_now())"
            " ON CONFLICT (workspace_id) DO NOTHING RETURNING version"
            if version == 0
            else "UPDATE pipelines_localkeyring SET version = version + 1, document = %(document)s::jsonb,"
            " changed_at = recourse_now() WHERE workspace_id = %(workspace)s AND version = %(version)s"
            " RETURNING version",
            {"workspace": workspace_id, "document": json.dumps(document), "version": version},
        )
        if not written:
            raise Conflict


@dataclass(frozen=True, slots=True)
class SigningKey:
    key_id: str
    private: Ed25519PrivateKey


def signing_key(workspace_id: uuid.UUID) -> SigningKey:
    """The workspace's active key, made when it has none yet; seconds old at the most."""
    cached = _cache.get(workspace_id)
    if cached is not None and cached[0] > time.monotonic():
        return cached[1]
    version, document = _store().read(workspace_id)
    if not document:
        document = _with_new_key({})
        try:
            _store().write(workspace_id, document, version=version)
        except Conflict:
            return signing_key(workspace_id)
        return _opened(document)  # not kept in the cache: the transaction that made it may yet be undone
    key = _opened(document)
    _cache[workspace_id] = (time.monotonic() + SIGNING_CACHE_SECONDS, key)
    return key


def public_key(workspace_id: uuid.UUID, key_id: str) -> tuple[Ed25519PublicKey | None, str]:
    """A key to verify with, and its state as it is now; (None, "unknown") for a key that the keyring does not hold."""
    _, document = _store().read(workspace_id)
    found = document.get("keys", {}).get(key_id)
    if found is None:
        return None, "unknown"
    return Ed25519PublicKey.from_public_bytes(base64.b64decode(found["public"])), found["state"]


def _with_new_key(document: Document) -> Document:
    private = Ed25519PrivateKey.generate()
    key_id = f"k{secrets.token_hex(8)}"
    keys = {
        name: {**key, "state": "retiring" if key["state"] == "active" else key["state"]}
        for name, key in document.get("keys", {}).items()
    }
    keys[key_id] = {
        "public": base64.b64encode(private.public_key().public_bytes_raw()).decode(),
        "private": _fernet().encrypt(private.private_bytes_raw()).decode(),
        "state": "active",
    }
    return {"active": key_id, "keys": keys}


def _opened(document: Document) -> SigningKey:
    key_id = document["active"]
    try:
        secret = _fernet().decrypt(document["keys"][key_id]["private"].encode())
    except InvalidToken as error:
        raise Unavailable("the keyring was encrypted with another RECOURSE_ENCRYPTION_KEY") from error
    return SigningKey(key_id, Ed25519PrivateKey.from_private_bytes(secret))


def _fernet() -> Fernet:
    return Fernet(settings.RECOURSE_ENCRYPTION_KEY)


def _store() -> Store:
    return LocalStore()


_cache: dict[uuid.UUID, tuple[float, SigningKey]] = {}
