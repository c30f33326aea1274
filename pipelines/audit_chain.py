"""The audit events of a workspace, sealed into a chain whose end is signed, and checking it (I17, R44, F147).

Every event's canonical text is made by the database as the event is inserted, and waits in `AuditPending` in the same
transaction. Sealing gives what waits its positions and hashes, and signs the new end, all in one transaction under one
lock for each workspace: a crash leaves everything waiting, and two sealers never make two chains. What committed late
gets a late position; none is passed over, whatever the order of times or ids. Without a key nothing is sealed, and
nothing is lost. A chain is only gone on with from an end that was signed, so that nothing forged is ever signed over.

Found: an event that was edited, deleted, exchanged or put in between, also when all hashes were made to fit. Not found
without an exported head: a tail that was cut off together with its seals and heads, whatever was added since.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import rfc8785
import structlog
from cryptography.exceptions import InvalidSignature
from django.db import connection, transaction

from pipelines import audit_decisions, keyring, signing
from pipelines.keyring import Keyring, KeyState
from pipelines.models import AuditCheck, AuditHead
from pipelines.signing import Envelope, Verdict
from pipelines.sql import database_now, execute, planned, query

log = structlog.get_logger(__name__)

GENESIS = bytes(32)
UNSIGNED = Envelope()
SEALED_AT_ONCE = 5_000
CHECKED_AT_ONCE = 20_000
WAITING = 1000  # events that wait are counted up to here
BACKDATED_SECONDS = 3600  # how much earlier than events before it an event may say that it was
LOCK = 0x41554454  # what the advisory locks of sealing are called


class ChainBroken(Exception):
    """The end of the chain is not one that was signed: sealing would cover up what was done to it."""


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a workspace's chain at one time, and its signature. `hash` is in hex."""

    workspace_id: uuid.UUID
    position: int
    hash: str
    sealed_at: datetime
    envelope: Envelope = UNSIGNED

    @property
    def message(self) -> bytes:
        """What is signed: canonical JSON (RFC 8785) of everything but the signature."""
        return rfc8785.dumps(self._signed())

    def document(self) -> dict[str, Any]:
        """The head as it is exported: {kind, workspace_id, position, hash, sealed_at, algorithm, key_id, signature}."""
        signature = self.envelope
        return {
            **self._signed(),
            "algorithm": signature.algorithm,
            "key_id": signature.key_id,
            "signature": signature.signature,
        }

    def _signed(self) -> dict[str, Any]:
        return {
            "kind": "recourse.audit_head",
            "workspace_id": str(self.workspace_id),
            "position": self.position,
            "hash": self.hash,
            "sealed_at": self.sealed_at.astimezone(UTC).isoformat(),
        }


def read_head(text: str) -> Head:
    """An exported head. Raises `ValueError` for what is none."""
    try:
        told = json.loads(text)
        envelope = Envelope(str(told["algorithm"]), str(told["key_id"]), str(told["signature"]))
        moment = datetime.fromisoformat(told["sealed_at"])
        bytes.fromhex(told["hash"])
        return Head(uuid.UUID(told["workspace_id"]), int(told["position"]), told["hash"], moment, envelope)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("this is no exported audit head") from error


def newest_head(workspace_id: uuid.UUID) -> Head | None:
    """The signed end of a workspace's chain as it is now; None before anything was sealed."""
    rows = query(
        "SELECT position, hash, sealed_at, algorithm, key_id, signature FROM pipelines_audithead"
        " WHERE workspace_id = %s ORDER BY position DESC LIMIT 1",
        [workspace_id],
    )
    return _head(workspace_id, rows[0]) if rows else None


def head_of(row: AuditHead) -> Head:
    """A stored head."""
    told = (row.position, row.hash, row.sealed_at, row.algorithm, row.key_id, row.signature)
    return _head(row.workspace_id, told)


# sealing


def seal() -> int:
    """Seals whatever waits, in every workspace; returns how many events. One chain in trouble holds up no other."""
    sealed = 0
    for (workspace_id,) in query("SELECT DISTINCT workspace FROM pipelines_auditpending"):
        try:
            while count := seal_some(workspace_id):
                sealed += count
        except ChainBroken as broken:
            log.error("audit.chain_broken", workspace=str(workspace_id), why=str(broken))
        except keyring.Unavailable as error:
            log.error("audit.no_key", workspace=str(workspace_id), why=str(error))
    return sealed


def seal_some(workspace_id: uuid.UUID, limit: int = SEALED_AT_ONCE) -> int:
    """Seals up to so many waiting events of one workspace; 0 when none waits or somebody else is at it.

    Raises `ChainBroken`, and `keyring.Unavailable` when the end cannot be checked or signed; then nothing is sealed.
    """
    with transaction.atomic():
        if not query("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", [LOCK, str(workspace_id)])[0][0]:
            return 0
        waiting = _waiting(workspace_id, limit)
        if not waiting:
            return 0
        ring = keyring.read(workspace_id)
        end = _end(workspace_id)
        if end is not None and not _fits(ring, end):
            raise ChainBroken("the newest head was not signed with a key of this workspace")
        return _append(ring, end, waiting)


def go_on_without_old_keys(workspace_id: uuid.UUID) -> None:
    """After a keyring was given up for lost: what waits is sealed onto the old end, signed with the new key.

    Only when every event and hash up to that end holds; otherwise the chain stays as it is, for a person to look at.
    """
    with transaction.atomic():
        query("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK, str(workspace_id)])
        end = _end(workspace_id)
        if end is not None and (fault := _check_events(workspace_id, end.position, 1)):
            log.error("audit.chain_broken", workspace=str(workspace_id), why=str(fault))
            return
        if waiting := _waiting(workspace_id, SEALED_AT_ONCE):
            _append(keyring.read(workspace_id), end, waiting)


def _waiting(workspace_id: uuid.UUID, limit: int) -> list[tuple[uuid.UUID, str]]:
    rows = query(
        "SELECT e.id, e.canonical FROM pipelines_auditpending p JOIN pipelines_auditevent e"
        " ON e.id = p.event AND e.workspace_id = p.workspace WHERE p.workspace = %s"
        " AND NOT EXISTS (SELECT FROM pipelines_auditseal s WHERE s.event = e.id) ORDER BY e.at, e.id LIMIT %s",
        [workspace_id, limit],
    )
    return [(event_id, canonical) for event_id, canonical in rows]


def _append(ring: Keyring, end: Head | None, waiting: list[tuple[uuid.UUID, str]]) -> int:
    """Seals these events after that end, under the lock that the caller holds; returns how many, 0 without a key."""
    workspace_id = ring.workspace_id
    first, last_hash = (end.position, bytes.fromhex(end.hash)) if end else (0, GENESIS)
    hashes = list(_links(last_hash, (canonical for _, canonical in waiting)))
    head = Head(workspace_id, first + len(waiting), hashes[-1].hex(), database_now())
    envelope = _sign(ring, head)
    if not envelope.signature:
        return 0  # told by `sign`
    events = [event_id for event_id, _ in waiting]
    execute(
        "INSERT INTO pipelines_auditseal (workspace_id, position, event, hash)"
        " SELECT %s, link.* FROM unnest(%s::bigint[], %s::uuid[], %s::bytea[]) AS link",
        [workspace_id, list(range(first + 1, head.position + 1)), events, hashes],
    )
    execute("DELETE FROM pipelines_auditpending WHERE event = ANY(%s)", [events])
    signed = (envelope.algorithm, envelope.key_id, envelope.signature)
    execute(
        "INSERT INTO pipelines_audithead (workspace_id, position, hash, sealed_at, algorithm, key_id, signature)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)",
        [workspace_id, head.position, head.hash, head.sealed_at, *signed],
    )
    return len(waiting)


def _sign(ring: Keyring, head: Head) -> Envelope:
    """Signs with a key that is not revoked by now: signing itself may use one that it read seconds ago."""
    envelope = signing.sign(head.workspace_id, head.message)
    used = ring.keys.get(envelope.key_id)
    if used is not None and used.state == KeyState.REVOKED:
        keyring.forget_all()
        envelope = signing.sign(head.workspace_id, head.message)
    return envelope


def _links(last: bytes, texts: Iterator[str]) -> Iterator[bytes]:
    for text in texts:
        last = sha256(last + text.encode()).digest()
        yield last


def _end(workspace_id: uuid.UUID) -> Head | None:
    """The newest head, which is that of the last seal. Raises `ChainBroken` when it is not."""
    seals = query(
        "SELECT position, encode(hash, 'hex') FROM pipelines_auditseal WHERE workspace_id = %s"
        " ORDER BY position DESC LIMIT 1",
        [workspace_id],
    )
    head = newest_head(workspace_id)
    if (seals[0] if seals else None) != (None if head is None else (head.position, head.hash)):
        raise ChainBroken("the newest head is not that of the last seal")
    return head


def _fits(ring: Keyring, head: Head) -> bool:
    """Whether the head was signed by a key that the workspace has or had; one that was revoked since will do here."""
    found = ring.keys.get(head.envelope.key_id)
    if found is None or head.envelope.algorithm != signing.ED25519:
        return False
    try:
        found.key.verify(base64.b64decode(head.envelope.signature, validate=True), head.message)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


# how it stands, without going through it


@dataclass(frozen=True, slots=True)
class Standing:
    """What can be said of a workspace's chain at a glance: its signed end, how many events wait to be sealed (up to
    `WAITING` + 1), what the last check of all of it found, and what is wrong with the end itself, if anything."""

    head: Head | None
    verdict: Verdict | None
    waiting: int
    check: AuditCheck | None
    fault: str


@dataclass(frozen=True, slots=True)
class Link:
    """An event's place in the chain. `fault` says what does not hold between it and the event before it."""

    position: int
    hash: str
    fault: str


def standing(workspace_id: uuid.UUID) -> Standing:
    """How the chain of a workspace stands now. The signature is checked, and that it is that of the last seal."""
    try:
        head, fault = _end(workspace_id), ""
    except ChainBroken as broken:
        head, fault = newest_head(workspace_id), str(broken)
    verdict = signing.verify(workspace_id, head.envelope, head.message) if head else None
    waiting = query(
        "SELECT count(*) FROM (SELECT FROM pipelines_auditpending WHERE workspace = %s LIMIT %s) few",
        [workspace_id, WAITING + 1],
    )
    check = AuditCheck.objects.filter(workspace_id=workspace_id).order_by("-id").first()
    return Standing(head, verdict, waiting[0][0], check, fault)


def link_of(event_id: uuid.UUID, workspace_id: uuid.UUID) -> Link | None:
    """Where an event stands in the chain, looked through again from the one before it; None: it waits to be sealed."""
    rows = query(
        "SELECT position, encode(hash, 'hex') FROM pipelines_auditseal WHERE event = %s AND workspace_id = %s",
        [event_id, workspace_id],
    )
    if not rows:
        return None
    position, found = rows[0]
    fault = _check_part(workspace_id, range(position, position + 1))
    return Link(position, found, "" if fault is None else fault.what)


def links_of(event_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, tuple[int, str]]:
    """Position and hash of each of these events that is sealed."""
    rows = query(
        "SELECT event, position, encode(hash, 'hex') FROM pipelines_auditseal WHERE event = ANY(%s)",
        [list(event_ids)],
    )
    return {event: (position, digest) for event, position, digest in rows}


# checking


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that does not hold: where, which event as far as it is known, and what."""

    what: str
    position: int | None = None
    event: uuid.UUID | None = None

    def __str__(self) -> str:
        place = "" if self.position is None else f"position {self.position}: "
        return f"{place}{f'event {self.event} ' if self.event else ''}{self.what}"


@dataclass(slots=True)
class Report:
    """What a check found: how many sealed events hold, how many wait to be sealed, and the first fault."""

    checked: int = 0
    waiting: int = 0
    fault: Fault | None = None


def verify(workspace_id: uuid.UUID, exported: Head | None = None, *, connections: int = 1) -> Report:
    """Checks a workspace's whole chain: every event against its text, every hash, the signed end, an exported head;
    then decisions against the events that tell of them.

    With several connections parts of the chain are checked side by side; one is the caller's own.
    """
    report = Report()
    report.fault = _check(workspace_id, exported, connections, report)
    return report


def keep(workspace_id: uuid.UUID, report: Report, exported: Head | None = None) -> None:
    """Writes down what a check found, for whoever looks at the audit later."""
    fault = report.fault
    AuditCheck.objects.create(
        workspace_id=workspace_id,
        checked=report.checked,
        waiting=report.waiting,
        against=None if exported is None else exported.position,
        fault="" if fault is None else fault.what,
        position=None if fault is None else fault.position,
        event=None if fault is None else fault.event,
    )


def _check(workspace_id: uuid.UUID, exported: Head | None, connections: int, report: Report) -> Fault | None:
    # One statement sees one moment, and what is sealed then, no later sealing changes.
    end, head_position = query(
        "SELECT coalesce(max(position), 0), (SELECT coalesce(max(position), 0) FROM pipelines_audithead"
        " WHERE workspace_id = %(w)s) FROM pipelines_auditseal WHERE workspace_id = %(w)s",
        {"w": workspace_id},
    )[0]
    return (
        _check_chain(workspace_id, end, connections, report)
        or _check_heads(workspace_id, end, head_position)
        or _check_waiting(workspace_id, report)
        or (_check_exported(exported, end) if exported else None)
        or _check_decisions(workspace_id)
    )


def _check_decisions(workspace_id: uuid.UUID) -> Fault | None:
    differing = audit_decisions.first_differing(workspace_id)
    return None if differing is None else Fault(differing.what, event=differing.event)


def _check_chain(workspace_id: uuid.UUID, end: int, connections: int, report: Report) -> Fault | None:
    fault = _check_events(workspace_id, end, connections)
    report.checked = end if fault is None else (fault.position or 1) - 1
    return fault


def _check_events(workspace_id: uuid.UUID, end: int, connections: int) -> Fault | None:
    """Position by position: the seal is there and its event too, as it was written, and hashed after the one before."""
    parts = [range(first, min(first + CHECKED_AT_ONCE, end + 1)) for first in range(1, end + 1, CHECKED_AT_ONCE)]
    if connections <= 1 or len(parts) <= 1:
        return next(filter(None, (_check_part(workspace_id, part) for part in parts)), None)
    with ThreadPoolExecutor(connections) as pool:
        fault = next(filter(None, pool.map(lambda part: _check_part_apart(workspace_id, part), parts)), None)
        pool.shutdown(cancel_futures=True)  # a fault is known: what is left need not be looked at
    return fault


def _check_part_apart(workspace_id: uuid.UUID, part: range) -> Fault | None:
    try:
        return _check_part(workspace_id, part)
    finally:
        connection.close()


def _check_part(workspace_id: uuid.UUID, part: range) -> Fault | None:
    asked = {
        "workspace": workspace_id,
        "first": part[0],
        "last": part[-1],
        "genesis": GENESIS,
        "backdated": BACKDATED_SECONDS,
    }
    with transaction.atomic():
        # a few of very many events, found one by one: any other way would read the whole table for each part
        query(
            "SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),"
            " set_config('work_mem', '64MB', true)"
        )
        count, wrong = planned(_COUNT_AND_FIRST, asked)[0]
    if count < len(part) and (gap := _first_gap(workspace_id, part)) < (wrong or part[-1] + 1):
        return Fault("has no seal any more", gap)
    if wrong is None:
        return None
    event, what = planned(_WHAT_IS_WRONG, asked | {"wrong": wrong})[0]
    return Fault(what, wrong, event)


# What the database writes with `recourse_audit_text`; told here once more, as whoever owns the tables owns that too.
_TEXT = """
    json_build_array('recourse.audit.1', e.id, e.workspace_id, timezone('UTC', e.at), e.action, e.outcome, e.code,
        e.user_id, e.actor, e.channel, e.on_behalf_of, e.run, e.stage, e.reason, e.before, e.after, e.plan_digest,
        e.request_id, e.data)::text
"""
_LINKS = f"""
    WITH every_link AS (
        SELECT s.position, s.event, s.hash, lag(s.hash, 1, %(genesis)s::bytea) OVER in_order AS hash_before,
            e.id, e.at, e.canonical,
            e.workspace_id = s.workspace_id AND e.canonical = {_TEXT} AS is_as_written,
            max(e.at) OVER (in_order ROWS UNBOUNDED PRECEDING) AS latest
        FROM pipelines_auditseal s LEFT JOIN pipelines_auditevent e ON e.id = s.event
        WHERE s.workspace_id = %(workspace)s AND s.position BETWEEN %(first)s - 1 AND %(last)s
        WINDOW in_order AS (ORDER BY s.position)
    ), link AS (SELECT * FROM every_link WHERE position >= %(first)s)
"""  # noqa: S608 - our own text
_FOLLOWS = "sha256(hash_before || convert_to(canonical, 'UTF8')) = hash"
_IN_TIME = "at >= latest - make_interval(secs => %(backdated)s)"
_COUNT_AND_FIRST = f"""
    {_LINKS} SELECT count(*), min(position) FILTER (
        WHERE NOT coalesce(is_as_written AND {_FOLLOWS} AND {_IN_TIME}, false)) FROM link
"""  # noqa: S608 - our own text
_WHAT_IS_WRONG = f"""
    {_LINKS} SELECT event, CASE
        WHEN id IS NULL THEN 'was deleted'
        WHEN NOT is_as_written THEN 'was edited'
        WHEN NOT {_FOLLOWS} THEN 'does not follow from the one before it: edited, exchanged or put in between'
        ELSE 'was added later than it says' END
    FROM link WHERE position = %(wrong)s
"""  # noqa: S608 - our own text


def _first_gap(workspace_id: uuid.UUID, part: range) -> int:
    rows = query(
        "SELECT n FROM generate_series(%s::bigint, %s) n WHERE NOT EXISTS (SELECT FROM pipelines_auditseal"
        " WHERE workspace_id = %s AND position = n) ORDER BY n LIMIT 1",
        [part[0], part[-1], workspace_id],
    )
    return int(rows[0][0])


def _check_heads(workspace_id: uuid.UUID, end: int, head_position: int) -> Fault | None:
    """The end is signed, with a key that is trusted now, and every older head is one of this chain."""
    if head_position < end:
        return Fault("has a seal that no signed head vouches for", head_position + 1)
    if head_position > end:
        return Fault(f"was cut off: a signed head says that there were {head_position}", end + 1)
    wrong = query(
        "SELECT h.position FROM pipelines_audithead h LEFT JOIN pipelines_auditseal s"
        " ON s.workspace_id = h.workspace_id AND s.position = h.position WHERE h.workspace_id = %s"
        " AND h.position <= %s AND h.hash IS DISTINCT FROM encode(s.hash, 'hex') ORDER BY h.position LIMIT 1",
        [workspace_id, end],
    )
    if wrong:
        return Fault("or one before it was rewritten: its head was signed for another hash", wrong[0][0])
    # the newest vouches for all before it; the others only tell where the fault begins
    newest = _heads(workspace_id, end, end)
    if not newest or signing.verify(workspace_id, newest[0].envelope, newest[0].message) is Verdict.VALID:
        return None
    heads = _heads(workspace_id, 0, end)
    verdicts = signing.verify_all((workspace_id, head.envelope, head.message) for head in heads)
    trusted = [head.position for head, verdict in zip(heads, verdicts, strict=True) if verdict is Verdict.VALID]
    revoked = verdicts[-1] is Verdict.REVOKED_KEY
    why = "was signed with a key that was revoked" if revoked else "has no signature of this workspace"
    return Fault(f"and what follows is not vouched for: the head at {end} {why}", max(trusted, default=0) + 1)


def _heads(workspace_id: uuid.UUID, first: int, last: int) -> list[Head]:
    rows = query(
        "SELECT position, hash, sealed_at, algorithm, key_id, signature FROM pipelines_audithead"
        " WHERE workspace_id = %s AND position BETWEEN %s AND %s ORDER BY position",
        [workspace_id, first, last],
    )
    return [_head(workspace_id, row) for row in rows]


def _check_waiting(workspace_id: uuid.UUID, report: Report) -> Fault | None:
    """What waits to be sealed is as it was written, and there is no event that is neither sealed nor waiting."""
    waiting, wrong, known, there = planned(
        f"""
        SELECT count(*), (array_agg(p.event ORDER BY p.event) FILTER (
                WHERE e.id IS NULL OR e.workspace_id <> p.workspace OR e.canonical <> {_TEXT}))[1],
            count(*) FILTER (WHERE NOT EXISTS (SELECT FROM pipelines_auditseal s WHERE s.event = p.event))
                + (SELECT count(*) FROM pipelines_auditseal WHERE workspace_id = %(w)s),
            (SELECT count(*) FROM pipelines_auditevent WHERE workspace_id = %(w)s)
        FROM pipelines_auditpending p LEFT JOIN pipelines_auditevent e ON e.id = p.event WHERE p.workspace = %(w)s
        """,  # noqa: S608 - our own text
        {"w": workspace_id},
    )[0]
    report.waiting = waiting
    if wrong is not None:
        return Fault("was edited or deleted before it was sealed", event=wrong)
    if known == there:
        return None
    strays = planned(
        "SELECT e.id FROM pipelines_auditevent e WHERE e.workspace_id = %s"
        " AND NOT EXISTS (SELECT FROM pipelines_auditseal s WHERE s.event = e.id AND s.workspace_id = e.workspace_id)"
        " AND NOT EXISTS (SELECT FROM pipelines_auditpending p WHERE p.event = e.id) ORDER BY e.at, e.id LIMIT 1",
        [workspace_id],
    )
    return Fault("was put in: it is neither sealed nor waits for it", event=strays[0][0]) if strays else None


def _check_exported(exported: Head, end: int) -> Fault | None:
    """The exported head was signed here and its position still has its hash."""
    verdict = signing.verify(exported.workspace_id, exported.envelope, exported.message)
    if verdict is Verdict.INVALID:
        return Fault("the exported head was changed, or not signed by this workspace")
    if verdict is Verdict.REVOKED_KEY:
        return Fault("the exported head was signed with a key that was revoked; export a new one")
    if end < exported.position:
        return Fault(f"was cut off: the exported head says that there were {exported.position}", end + 1)
    rows = query(
        "SELECT event, encode(hash, 'hex') FROM pipelines_auditseal WHERE workspace_id = %s AND position = %s",
        [exported.workspace_id, exported.position],
    )
    event, found = rows[0]
    if found != exported.hash:
        return Fault("or one before it is not what it was when the head was exported", exported.position, event)
    return None


def _head(workspace_id: uuid.UUID, row: tuple[Any, ...]) -> Head:
    position, digest, sealed_at, *envelope = row
    return Head(workspace_id, position, digest, sealed_at, Envelope(*envelope))
