"""Tells whoever waits that a queue has work: NOTIFY in the transaction, a broker hint after it. Both may be lost.

PostgreSQL is the truth: pulls and executors look there, these only make them look sooner.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from django.db import transaction

from pipelines.sql import execute

CHANNEL = "recourse_ready"
EVERYTHING = "*"  # a payload for more queues than one notification can name
MAX_PAYLOAD = 7_900  # bytes; PostgreSQL's limit is 8,000


class Queue(NamedTuple):
    """What a worker pulls from."""

    application_id: uuid.UUID
    environment_id: uuid.UUID
    handler: str


def announce(queues: Iterable[Queue]) -> None:
    """Within a transaction: wakes long polls and executors of these queues when it commits."""
    unique = set(queues)
    if not unique:
        return
    payload = json.dumps([[str(part) for part in queue] for queue in unique], separators=(",", ":"))
    execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload if len(payload) <= MAX_PAYLOAD else EVERYTHING])
    transaction.on_commit(lambda: _hint(unique), robust=True)


def read_payload(payload: str) -> frozenset[Queue] | None:
    """The queues that a notification names; None for all of them."""
    if payload == EVERYTHING:
        return None
    return frozenset(Queue(uuid.UUID(a), uuid.UUID(e), handler) for a, e, handler in json.loads(payload))


def _hint(queues: set[Queue]) -> None:
    # imported here: the executor stands above the engine, which must run without it
    from pipelines.executor import hint

    hint(queues)
