"""Who did, tried or was refused what, over which channel, and why: one row per request, only ever added."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import AuditEvent

ALLOWED, NO_OP, DENIED, FAILED = "allowed", "no_op", "denied", "failed"


@dataclass(slots=True)
class Entry:
    """The audit event in the making: the verb may change the outcome to `no_op` and add facts to `data`."""

    outcome: str = ALLOWED
    data: dict[str, Any] = field(default_factory=dict)


@contextmanager
def audited(
    actor: Actor,
    action: str,
    *,
    run: uuid.UUID | None = None,
    stage: uuid.UUID | None = None,
    reason: str = "",
    **data: Any,
) -> Iterator[Entry]:
    """One transaction for a verb and its audit event; a refusal undoes the verb and is recorded in one of its own."""
    entry = Entry(data=dict(data))
    try:
        with transaction.atomic():
            yield entry
            record(actor, action, entry.outcome, run=run, stage=stage, reason=reason, data=entry.data)
    except Refusal as refusal:
        outcome = DENIED if refusal.status == 403 else FAILED
        record(actor, action, outcome, run=run, stage=stage, reason=reason, code=refusal.code, data=entry.data)
        raise


def record(
    actor: Actor,
    action: str,
    outcome: str,
    *,
    run: uuid.UUID | None = None,
    stage: uuid.UUID | None = None,
    reason: str = "",
    code: str = "",
    data: dict[str, Any] | None = None,
) -> None:
    """Adds one audit event, in the caller's transaction where there is one."""
    AuditEvent.objects.create(
        workspace_id=actor.workspace_id,
        action=action,
        outcome=outcome,
        code=code,
        user_id=actor.user_id,
        actor=actor.name,
        channel=actor.channel,
        run=run,
        stage=stage,
        reason=reason,
        data=data or {},
    )
