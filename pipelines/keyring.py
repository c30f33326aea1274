"""The signing keys of a workspace, behind one interface: one document, read whole and changed by compare-and-swap.

A document is `{active: key_id, keys: {key_id: {public, state, created_at, private?, retiring_since?, revoked_at?}},
seal}`. Keys are raw Ed25519 keys in base64; times are ISO 8601. `state` is active (signs), retiring (verifies only) or
revoked. Only the active key has its private half, encrypted with RECOURSE_ENCRYPTION_KEY in either store. The seal
is made with the same key over the document, its workspace and its version: whoever may write to the store alone can
neither slip in a key nor pass an older document off as a newer version. Where the store lets a whole older version be
put back, as a table does, every process that has met the newer one refuses it.

Signing may use a key that was read `SIGNING_CACHE_SECONDS` ago; a fault of the store is remembered as long, so that
the engine, which signs in the run's transaction, does not wait for a dead store each time. Verifying reads the
document anew each time, so that a revocation holds at once. Serves O34–O36.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from time import monotonic
from typing import Any, Protocol

from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings
from django.db import connection, transaction

from pipelines.encryption import fernet
from pipelines.ids import new_id
from pipelines.sql import database_now, query

Document = dict[str, Any]
SIGNING_CACHE_SECONDS = 5.0
FAULT_SECONDS = 5.0


class KeyState(StrEnum):
    ACTIVE = "active"
    RETIRING = "retiring"
    REVOKED = "revoked"


class Conflict(Exception):
    """Somebody else changed the keyring since it was read."""


class Unavailable(Exception):
    """No key can be had: the store does not answer, or what it holds cannot be trusted. The text says what to do.

    `everywhere`: it is no matter of one workspace. `remembered`: nobody was asked, the last fault is still fresh.
    """

    def __init__(self, sentence: str, *, everywhere: bool = False, remembered: bool = False) -> None:
        super().__init__(sentence)
        self.everywhere = everywhere
        self.remembered = remembered


class Store(Protocol):
    """Where documents are kept. `transactional`: a write is part of the caller's database transaction."""

    transactional: bool

    def read(self, workspace_id: uuid.UUID) -> tuple[int, Document]:
        """(version, document); (0, {}) when there is none and never was. Raises `Unavailable`."""

    def write(self, workspace_id: uuid.UUID, document: Document, *, version: int, user_id: int | None = None) -> None:
        """Keeps the document as version + 1; raises `Conflict` when `version` is no longer the newest."""


class LocalStore:
    """Documents in the console's own database."""

    transactional = True

    def read(self, workspace_id: uuid.UUID) -> tuple[int, Document]:
        rows = query("SELECT version, document FROM pipelines_localkeyring WHERE workspace_id = %s", [workspace_id])
        return (rows[0][0], json.loads(rows[0][1])) if rows else (0, {})

    def write(self, workspace_id: uuid.UUID, document: Document, *, version: int, user_id: int | None = None) -> None:
        written = query(
            "INSERT INTO pipelines_localkeyring (workspace_id, version, document, changed_at, changed_by_id)"
            " VALUES (%(workspace)s, 1, %(document)s::jsonb, recourse_now(), %(user)s)"
            " ON CONFLICT (workspace_id) DO NOTHING RETURNING version"
            if version == 0
            else "UPDATE pipelines_localkeyring SET version = version + 1, document = %(document)s::jsonb,"
            " changed_at = recourse_now(), changed_by_id = %(user)s"
            " WHERE workspace_id = %(workspace)s AND version = %(version)s RETURNING version",
            {"workspace": workspace_id, "document": json.dumps(document), "version": version, "user": user_id},
        )
        if not written:
            raise Conflict


@dataclass(frozen=True, slots=True)
class SigningKey:
    key_id: str
    private: Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key to verify with, its raw bytes in base64, and its state as it is now."""

    key_id: str
    key: Ed25519PublicKey
    text: str
    state: KeyState
    created_at: datetime
    retiring_since: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Keyring:
    """A whole keyring as it was read: what the next change is compared with."""

    workspace_id: uuid.UUID
    version: int
    document: Document

    @property
    def active(self) -> str | None:
        """The key that signs; none only while there is no keyring yet."""
        return self.document.get("active")

    @property
    def keys(self) -> dict[str, PublicKey]:
        """All keys, the oldest first."""
        found = [_public(key_id, key) for key_id, key in self.document.get("keys", {}).items()]
        return {key.key_id: key for key in sorted(found, key=lambda key: (key.created_at, key.key_id))}

    def rotated(self, key_id: str | None = None, **told: str) -> Document:
        """The document with a new active key, of this id if one is given; the one before only verifies from now on.
        `told` is kept with the new key."""
        keys = {name: _retired(key) for name, key in self.document.get("keys", {}).items()}
        document = _with_new_key(keys, key_id or str(new_id()))
        document["keys"][document["active"]].update(told)
        return document

    def revoked(self, key_id: str) -> Document:
        """The document with this key revoked. When it is the active one, a new one takes its place in the same write:
        without one, whatever is signed meanwhile could never be trusted."""
        found = dict(self.document["keys"][key_id])
        found.pop("private", None)
        gone = {**found, "state": KeyState.REVOKED, "revoked_at": database_now().isoformat()}
        keys = {**self.document["keys"], key_id: gone}
        return _with_new_key(keys, str(new_id())) if self.active == key_id else {"active": self.active, "keys": keys}


def signing_key(workspace_id: uuid.UUID) -> SigningKey:
    """The workspace's active key, made when it has none yet. Raises `Unavailable`."""
    held = _held.get(workspace_id)
    if held is not None and held.until > monotonic():
        return held.key
    return _read_signing_key(workspace_id)


def read(workspace_id: uuid.UUID) -> Keyring:
    """The keyring as it is now, never from a cache. Raises `Unavailable`."""
    version, document = _store().read(workspace_id)
    place = settings.RECOURSE_KEYRING, workspace_id
    if version < _newest.get(place, 0):
        version, document = _store().read(workspace_id)  # somebody may have written since it was read
    if version < _newest.get(place, 0):
        raise Unavailable(_BROUGHT_BACK)
    if version:
        _check(workspace_id, version, document)
    if version > _newest.get(place, 0):
        _remember(place, version)
    return Keyring(workspace_id, version, document)


def unreadable(workspace_id: uuid.UUID) -> Keyring:
    """An empty keyring in the place of one that cannot be read any more, to begin anew from; whatever was signed with
    the old keys is never trusted again."""
    return Keyring(workspace_id, _store().read(workspace_id)[0], {})


def write(keyring: Keyring, document: Document, *, user_id: int | None = None) -> Keyring:
    """Puts `document` in the place of the keyring that was read. Raises `Conflict` when it has changed meanwhile."""
    workspace_id, version = keyring.workspace_id, keyring.version + 1
    sealed = _sealed(workspace_id, version, document)
    _store().write(workspace_id, sealed, version=keyring.version, user_id=user_id)
    _newest.pop((settings.RECOURSE_KEYRING, workspace_id), None)  # it is the newest, also where one was begun anew
    _forget(workspace_id)
    return Keyring(workspace_id, version, sealed)


def copy(workspace_id: uuid.UUID, destination: str) -> bool:
    """Puts the keyring into the other store as well, sealed for it; False when there is none. Raises `Conflict` when
    that store has one already: neither is ever written over."""
    found, store = read(workspace_id), store_called(destination)
    if not found.version:
        return False
    if store.read(workspace_id)[0]:
        raise Conflict
    store.write(workspace_id, _sealed(workspace_id, 1, found.document), version=0)
    return True


def prepare(workspace_id: uuid.UUID) -> None:
    """Gives a new workspace its keyring: with it, or, in a store of its own, once the workspace is there for good."""

    def make() -> None:
        with suppress(Unavailable):  # asked again, and told of, when there is something to sign
            signing_key(workspace_id)

    if _store().transactional:
        make()
    else:
        transaction.on_commit(make)


def forget_all() -> None:
    """Drops what this process knows of keys and faults, and what its transaction here has read."""
    for held in _waiting_for_commit():
        held.until = 0.0
    _held.clear()
    _faults.clear()


# The newest version that this process has met, by store and workspace: a row that was put back whole carries its seal.
_newest: dict[tuple[str, uuid.UUID], int] = {}


def _remember(place: tuple[str, uuid.UUID], version: int) -> None:
    transaction.on_commit(lambda: _newest.update({place: max(version, _newest.get(place, 0))}))


_BROUGHT_BACK = (
    "an older version of the keyring was brought back, with keys in it that may be revoked since; put back the document"
    " that the console wrote last, or restart the console when the whole database was restored on purpose"
)


# the signing key, held for seconds


@dataclass(slots=True)
class _Held:
    """A key that was read. Called when the transaction that read it has committed: what that transaction itself wrote
    and then undid must never be signed with."""

    workspace_id: uuid.UUID
    key: SigningKey
    until: float

    def __call__(self) -> None:
        if self.until > monotonic():
            _held[self.workspace_id] = self


_held: dict[uuid.UUID, _Held] = {}
_faults: dict[uuid.UUID | None, tuple[float, str]] = {}


def _read_signing_key(workspace_id: uuid.UUID) -> SigningKey:
    store = _store()
    if store.transactional and (mine := _read_in_this_transaction(workspace_id)):
        return mine.key
    _raise_remembered(workspace_id)
    until = monotonic() + SIGNING_CACHE_SECONDS
    try:
        keyring = read(workspace_id)
        key = _opened(keyring if keyring.version else _made(keyring))
    except Unavailable as fault:
        _faults[None if fault.everywhere else workspace_id] = (monotonic() + FAULT_SECONDS, str(fault))
        raise
    _faults.pop(workspace_id, None)
    _faults.pop(None, None)
    held = _Held(workspace_id, key, until)
    if store.transactional:
        transaction.on_commit(held)
    else:
        held()
    return key


def _read_in_this_transaction(workspace_id: uuid.UUID) -> _Held | None:
    """What waits for the commit is forgotten with its transaction or savepoint, as is what that wrote: it may be used
    until then."""
    now = monotonic()
    found = (held for held in _waiting_for_commit() if held.workspace_id == workspace_id and held.until > now)
    return next(found, None)


def _waiting_for_commit() -> list[_Held]:
    return [held for _, held, *_ in connection.run_on_commit if isinstance(held, _Held)]


def _made(none_yet: Keyring) -> Keyring:
    try:
        return write(none_yet, none_yet.rotated())
    except Conflict:
        return read(none_yet.workspace_id)  # somebody else's was first


def _raise_remembered(workspace_id: uuid.UUID) -> None:
    """Raises a fault that is still fresh. When it has grown old it is renewed before somebody asks again: one thread
    waits for the store, the others go on without."""
    for about in (None, workspace_id):
        until, sentence = _faults.get(about, (0.0, ""))
        if until > monotonic():
            raise Unavailable(sentence, everywhere=about is None, remembered=True)
        if sentence:
            _faults[about] = (monotonic() + FAULT_SECONDS, sentence)


def _forget(workspace_id: uuid.UUID) -> None:
    def drop() -> None:
        _held.pop(workspace_id, None)
        _faults.pop(workspace_id, None)

    drop()
    for held in _waiting_for_commit():
        if held.workspace_id == workspace_id:
            held.until = 0.0
    transaction.on_commit(drop)


# the document


def _with_new_key(keys: Mapping[str, Mapping[str, Any]], key_id: str) -> Document:
    private = Ed25519PrivateKey.generate()
    made = {
        "public": base64.b64encode(private.public_key().public_bytes_raw()).decode(),
        "private": fernet().encrypt(private.private_bytes_raw()).decode(),
        "state": KeyState.ACTIVE,
        "created_at": database_now().isoformat(),
    }
    return {"active": key_id, "keys": {**keys, key_id: made}}


def _retired(key: Mapping[str, Any]) -> dict[str, Any]:
    """What is no longer active never signs again: its private half is not kept."""
    if key["state"] != KeyState.ACTIVE:
        return dict(key)
    rest = {name: value for name, value in key.items() if name != "private"}
    return {**rest, "state": KeyState.RETIRING, "retiring_since": database_now().isoformat()}


def _check(workspace_id: uuid.UUID, version: int, document: Any) -> None:
    """Raises `Unavailable` unless the document is one that this console wrote there as that version."""
    try:
        told, seal = str(document["seal"]), _seal(workspace_id, version, document)
        is_whole = document["keys"][document["active"]]["state"] == KeyState.ACTIVE
    except (TypeError, LookupError, ValueError, AttributeError):
        raise Unavailable(
            "the keyring's document is malformed or lacks a field: bring back the version that the console wrote"
        ) from None
    if not is_whole or not hmac.compare_digest(told.encode(errors="replace"), seal.encode()):
        raise Unavailable(
            "the keyring does not carry its seal: it was altered, an older version was brought back, or"
            " RECOURSE_ENCRYPTION_KEY is not the one that it was written with; give the console that key, or the"
            " document that it wrote last"
        )


def _sealed(workspace_id: uuid.UUID, version: int, document: Document) -> Document:
    return {**document, "seal": _seal(workspace_id, version, document)}


def _seal(workspace_id: uuid.UUID, version: int, document: Mapping[str, Any]) -> str:
    sealed = {
        "active": document["active"],
        "keys": document["keys"],
        "version": version,
        "workspace": str(workspace_id),
    }
    text = json.dumps(sealed, sort_keys=True, separators=(",", ":"))
    key = hmac.digest(settings.RECOURSE_ENCRYPTION_KEY.encode(), b"recourse keyring seal", hashlib.sha256)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _public(key_id: str, key: Mapping[str, Any]) -> PublicKey:
    try:
        return PublicKey(
            key_id,
            Ed25519PublicKey.from_public_bytes(base64.b64decode(key["public"], validate=True)),
            key["public"],
            KeyState(key["state"]),
            datetime.fromisoformat(key["created_at"]),
            datetime.fromisoformat(key["retiring_since"]) if "retiring_since" in key else None,
            datetime.fromisoformat(key["revoked_at"]) if "revoked_at" in key else None,
        )
    except (TypeError, KeyError, ValueError, binascii.Error):
        raise Unavailable(f"the key {key_id} of the keyring is malformed") from None


def _opened(keyring: Keyring) -> SigningKey:
    key_id = str(keyring.active)
    try:
        secret = fernet().decrypt(keyring.document["keys"][key_id]["private"].encode())
        return SigningKey(key_id, Ed25519PrivateKey.from_private_bytes(secret))
    except (InvalidToken, KeyError, ValueError):
        raise Unavailable(f"the private half of the key {key_id} cannot be opened; rotate the signing key") from None


def _store() -> Store:
    return store_called(settings.RECOURSE_KEYRING)


def store_called(name: str) -> Store:
    """`local` or `vault`, as in RECOURSE_KEYRING."""
    if name == "vault":
        from pipelines.vault import VaultStore

        return VaultStore()
    return LocalStore()
