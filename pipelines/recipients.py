"""To whom the adapter of a stage may send, and in which order: asked before a stage is handed out.

A stage names its recipients in order of fallback; a worker's session says of each of its handlers to whom that sends.
They match where all four fields are equal, character by character. The first recipient is allowed at once, each further
one after one more failed attempt of the epoch. A stage that names none goes to anyone. Serves R40, R41.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from pipelines.errors import Refusal
from pipelines.jobs import Picked
from pipelines.sql import query
from pipelines.states import AttemptState

FIELDS = ("organisation", "service", "billing", "retention")
FAILED = frozenset({AttemptState.FAILED, AttemptState.TIMED_OUT})  # ends of an attempt that allow one recipient more

Recipient = Mapping[str, Any]


def key(handler: str, recipient: Recipient) -> str:
    """Which adapter this is, as the queue notes it and `recourse_recipient_key` says in the database."""
    told = [handler, *(recipient.get(field) or "" for field in FIELDS)]
    return sha256("\x1f".join(told).encode()).hexdigest()


def keys_of(declared: Collection[Recipient]) -> list[str]:
    """Those of what a session declared: [{handler, organisation, service, billing, retention}]."""
    return sorted({key(one["handler"], one) for one in declared})


def in_words(recipient: Recipient) -> str:
    """Organisation and service, with billing and retention where those are said."""
    more = [f"{field} {recipient[field]}" for field in FIELDS[2:] if recipient.get(field)]
    named = f"{recipient['organisation']}/{recipient['service']}"
    return f"{named} ({', '.join(more)})" if more else named


def position(allowed: int, sends: Collection[int], failed: Collection[int]) -> int | None:
    """Which of a stage's recipients an attempt goes to, out of those that a session `sends` to.

    `allowed`: how many are, in the declared order. The first that has not `failed` in this epoch, else the lowest;
    None where the session sends to none that is allowed.
    """
    able = sorted(place for place in sends if place < allowed)
    return next((place for place in able if place not in failed), able[0] if able else None)


def allowed_of(recipients: Sequence[Recipient], failed_attempts: int) -> int:
    """How many of a stage's recipients are allowed after so many failed attempts of the epoch."""
    return min(len(recipients), failed_attempts + 1)


def address(picked: Sequence[Picked], sends_to: Collection[str]) -> list[Picked]:
    """Of these locked stages those that a session may have, each with its recipient where the stage names any."""
    told = {item.stage.id: json.loads(item.recipients) for item in picked if item.recipients}
    if not any(told.values()):
        return list(picked)
    failures = failed_positions([stage_id for stage_id, recipients in told.items() if recipients])
    addressed = []
    for item in picked:
        recipients = told.get(item.stage.id)
        if not recipients:
            addressed.append(item)
            continue
        failed = failures.get(item.stage.id, [])
        sends = {at for at, one in enumerate(recipients) if key(item.stage.handler, one) in sends_to}
        place = position(allowed_of(recipients, len(failed)), sends, {at for at in failed if at is not None})
        if place is not None:
            addressed.append(replace(item, recipient={"position": place, **recipients[place]}))
    return addressed


def failed_positions(stage_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[int | None]]:
    """Of each stage the recipients of this epoch's failed attempts, by position; None for an attempt without one."""
    found: dict[uuid.UUID, list[int | None]] = {}
    for stage_id, place in query(
        "SELECT s.id, (a.recipient ->> 'position')::int FROM pipelines_stage s"
        " JOIN pipelines_attempt a ON a.stage_id = s.id AND a.epoch = s.epoch"
        " WHERE s.id = ANY(%s) AND a.state = ANY(%s)",
        [list(stage_ids), sorted(FAILED)],
    ):
        found.setdefault(stage_id, []).append(place)
    return found


def require_sender(handler: str, recipient: Recipient | None, sends_to: Collection[str]) -> None:
    """Refuses a session that does not declare to send to whom an attempt goes: `recipient_not_allowed`."""
    if recipient is not None and key(handler, recipient) not in sends_to:
        raise Refusal("recipient_not_allowed", f"the attempt goes to {in_words(recipient)}; this worker does not")


def is_other(told: Any, recipient: Recipient | None) -> bool:
    """Whether the detail of an effect names somebody else than the recipient of its attempt."""
    if recipient is None or not isinstance(told, Mapping) or told.get("recipient") is None:
        return False
    named = told["recipient"]
    if not isinstance(named, Mapping):
        return True
    return any(_trimmed(named.get(field)) != recipient.get(field, "") for field in FIELDS)


def _trimmed(told: Any) -> Any:
    return told.strip() if isinstance(told, str) else told or ""
