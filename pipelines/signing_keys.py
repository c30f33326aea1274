"""Changing a workspace's signing keys: rotate, revoke, begin anew. For administrators, each with its audit event.

Every change replaces the keyring as it was read and is refused, or begun again, when somebody else was first. A
keyring in Vault is no part of the database's transaction: Vault is written last but for the audit event, and a crash
between the two leaves a change that only the times in the keyring tell of. Serves O35, O36.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pipelines import audit_chain, keyring
from pipelines.access import ADMINISTER, Actor
from pipelines.audit import NO_OP, audited
from pipelines.errors import Refusal
from pipelines.keyring import Conflict, Document, Keyring, KeyState, PublicKey, Unavailable

TRIES = 5


@dataclass(frozen=True, slots=True)
class Changed:
    """The key that the verb was about, the one that signs now, and whether an earlier request had done it already."""

    key: PublicKey
    active: str
    replayed: bool


def listed(workspace_id: uuid.UUID) -> list[PublicKey]:
    """All keys of the workspace, the newest first, as they are now. Private halves never leave the keyring."""
    return list(reversed(_read(workspace_id).keys.values()))


def rotate(
    *, actor: Actor, reason: str = "", replaces: str | None = None, key: str = "", begin_anew: bool = False
) -> Changed:
    """A new key signs from now on; the one before goes on verifying until it is revoked (O35).

    `replaces` is the key that the caller believes to be active. When it is another, or when somebody rotates at the
    same time, this is refused with `stale_request` and nothing changes: of many at once, one wins. The same `key`
    again answers with the signing key that it made, and with another `replaces` is 409 `idempotency_conflict`; the
    keyring itself remembers. `begin_anew` gives up a keyring that can no longer be read.
    """
    with audited(actor, "key.rotate", reason=reason) as entry:
        actor.require(ADMINISTER)
        found = _lost(actor.workspace_id) if begin_anew else _read(actor.workspace_id)
        made = str(uuid.uuid5(actor.workspace_id, key)) if key else None
        if made is not None and made in found.keys:
            if found.document["keys"][made].get("replaces") != (replaces or ""):
                raise Refusal("idempotency_conflict", "this key was used for a rotation that replaced another key")
            entry.outcome = NO_OP
            return Changed(found.keys[made], str(found.active), replayed=True)
        if replaces is not None and replaces != found.active:
            raise Refusal("stale_request", f"{replaces} is not the active key any more; look at the keys again")
        try:
            after = _written(found, found.rotated(made, replaces=replaces or ""), actor)
        except Conflict as conflict:
            detail = "somebody else changed the signing keys at the same moment; look at them before you try again"
            raise Refusal("stale_request", detail) from conflict
        entry.before, entry.after = {"active": found.active}, {"active": after.active}
        entry.data["begun_anew"] = begin_anew
    if begin_anew:
        audit_chain.go_on_without_old_keys(actor.workspace_id)
    return Changed(after.keys[str(after.active)], str(after.active), replayed=False)


def revoke(key_id: str, *, actor: Actor, reason: str = "") -> Changed:
    """The key stops at once, for good: nothing that it signed is trusted any more, whenever that was (O36).

    When it is the active one, a new key takes its place in the same write. Again: nothing changes. A change by
    somebody else meanwhile is no reason to refuse: it is done again on what they left.
    """
    with audited(actor, "key.revoke", reason=reason, key_id=key_id) as entry:
        actor.require(ADMINISTER)
        for _ in range(TRIES):
            found = _read(actor.workspace_id)
            if key_id not in found.keys:
                raise Refusal("not_found", "there is no such signing key")
            if found.keys[key_id].state == KeyState.REVOKED:
                entry.outcome = NO_OP
                return Changed(found.keys[key_id], str(found.active), replayed=True)
            try:
                after = _written(found, found.revoked(key_id), actor)
            except Conflict:
                continue
            entry.before = {"state": found.keys[key_id].state, "active": found.active}
            entry.after = {"state": after.keys[key_id].state, "active": after.active}
            return Changed(after.keys[key_id], str(after.active), replayed=False)
        raise Refusal("stale_request", "the signing keys change faster than one can be revoked; try again")


def copy(destination: str, *, actor: Actor) -> bool:
    """The workspace's keys into the store `destination` too, for a console that moves there. False when there are none.

    A keyring that is there already is never written over: 409 `stale_request`.
    """
    with audited(actor, "key.copy", destination=destination) as entry:
        actor.require(ADMINISTER)
        try:
            is_copied = keyring.copy(actor.workspace_id, destination)
        except Conflict as conflict:
            raise Refusal("stale_request", f"{destination} holds a keyring of this workspace already") from conflict
        except Unavailable as fault:
            raise Refusal("result_not_confirmed", str(fault)) from fault
        entry.outcome = entry.outcome if is_copied else NO_OP
    return is_copied


def _read(workspace_id: uuid.UUID) -> Keyring:
    return _answered(lambda: keyring.read(workspace_id))


def _lost(workspace_id: uuid.UUID) -> Keyring:
    try:
        keyring.read(workspace_id)
    except Unavailable:
        return _answered(lambda: keyring.unreadable(workspace_id))
    raise Refusal("validation_error", "the keyring can be read: there is no need to begin anew; rotate it")


def _written(found: Keyring, document: Document, actor: Actor) -> Keyring:
    return _answered(lambda: keyring.write(found, document, user_id=actor.user_id))


def _answered(ask: Callable[[], Keyring]) -> Keyring:
    try:
        return ask()
    except Unavailable as fault:
        raise Refusal("result_not_confirmed", str(fault)) from fault
