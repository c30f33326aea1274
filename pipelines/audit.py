"""Who did, tried or was refused what, over which channel, and why: one event per request, only ever added.

A request is what somebody known asked to be changed: a mutating call of `/v1`, a creation, cancel or gate decision by
an application, an act on a screen, a save or action of the admin site, a change that a command makes. It leaves one
event, whether it was allowed, changed nothing, was denied or failed, also when its body was wrong; what is recovered
has the event `execution.recovery_disposition` besides (O27). The event commits with what it tells of; a refusal's has a
transaction of its own. Not requests: reading (but for what turns out to be
damaged), previews, and what workers say, which the engine's own events tell.
Serves O4, F145, I7.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from django.db import DatabaseError, transaction

from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.models import AuditOutcome
from pipelines.sql import execute, recordset

ALLOWED, NO_OP, DENIED, FAILED = AuditOutcome.ALLOWED, AuditOutcome.NO_OP, AuditOutcome.DENIED, AuditOutcome.FAILED
INTERNAL_ERROR = "internal_error"
LONGEST_REASON = 10_000  # characters, over every way but the screens, which take less
SAYING_NO = frozenset({"checkpoint_integrity_invalid", "recovery_denied"})  # as final as a missing right

log = structlog.get_logger(__name__)
_inside: ContextVar[bool] = ContextVar("inside_audited", default=False)


@dataclass(slots=True)
class Entry:
    """The audit event in the making: the verb may change the outcome to `no_op`, and add what it found and did.

    `before` and `after` are the states that matter, such as {"run": "running", "stage": "failed", "epoch": 1}.
    """

    run: uuid.UUID | None = None
    stage: uuid.UUID | None = None
    reason: str = ""
    outcome: str = ALLOWED
    code: str = ""
    on_behalf_of: str = ""
    before: Any = None
    after: Any = None
    plan_digest: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def keep_refused(self, refusal: Refusal) -> None:
        """What was written commits although the request is refused, once the block has ended: its event says so."""
        self.outcome, self.code = DENIED, refusal.code
        self.data["detail"] = refusal.detail
        refusal.is_recorded = True


@contextmanager
def audited(
    actor: Actor,
    action: str,
    *,
    run: uuid.UUID | None = None,
    stage: uuid.UUID | None = None,
    reason: str = "",
    on_behalf_of: str = "",
    plan_digest: str = "",
    before: Any = None,
    after: Any = None,
    **data: Any,
) -> Iterator[Entry]:
    """One transaction for a verb and its audit event; a refusal undoes the verb and is recorded in one of its own.

    A refusal that comes out of here has its event: `record_refusal` further up adds no second one. Within another
    `audited` it is the outer one that records, as its end undoes all that was written within.
    """
    entry = Entry(
        run=run,
        stage=stage,
        reason=reason,
        on_behalf_of=on_behalf_of,
        plan_digest=plan_digest,
        before=before,
        after=after,
        data=dict(data),
    )
    is_outermost = not _inside.get()
    token = _inside.set(True)
    try:
        with transaction.atomic():
            yield entry
            write(actor, action, entry)
    except Refusal as refusal:
        if is_outermost:
            record_refusal(actor, action, refusal, entry)
        raise
    except Exception:
        if is_outermost:
            record_fault(actor, action, entry)
        raise
    finally:
        _inside.reset(token)


def record_refusal(actor: Actor, action: str, refusal: Refusal, entry: Entry) -> None:
    """Adds the event of a refused request, unless the refusal has one already."""
    if refusal.is_recorded:
        return
    tell_refusal(entry, refusal)
    write(actor, action, entry)


def tell_refusal(entry: Entry, refusal: Refusal) -> None:
    """Has the event say why the request was refused; writing it is the caller's."""
    entry.outcome = DENIED if refusal.status == 403 or refusal.code in SAYING_NO else FAILED
    entry.code = refusal.code
    if entry.outcome == DENIED:
        entry.data["detail"] = refusal.detail  # which right is missing, which rule says no
    entry.after = None
    refusal.is_recorded = True


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
    write(actor, action, Entry(run=run, stage=stage, reason=reason, outcome=outcome, code=code, data=data or {}))


def write(actor: Actor, action: str, entry: Entry) -> None:
    """Adds the event as it stands, in the caller's transaction where there is one."""
    write_all(actor, [(action, entry)])


def write_all(actor: Actor, entries: Sequence[tuple[str, Entry]]) -> None:
    """Adds these events of one actor, each (action, entry), in this order and in one statement."""
    if not entries:
        return
    rows = [
        {
            "id": new_id(),
            "action": action,
            "outcome": str(entry.outcome),
            "code": entry.code,
            "on_behalf_of": entry.on_behalf_of,
            "run": entry.run,
            "stage": entry.stage,
            "reason": entry.reason,
            "before": _json(entry.before),
            "after": _json(entry.after),
            "plan_digest": entry.plan_digest,
            "data": _json(entry.data),
        }
        for action, entry in entries
    ]
    execute(
        "INSERT INTO pipelines_auditevent (id, workspace_id, at, action, outcome, code, user_id, actor, channel,"
        " on_behalf_of, run, stage, reason, before, after, plan_digest, request_id, data)"
        " SELECT id, %s, recourse_now(), action, outcome, code, %s, %s, %s, on_behalf_of, run, stage, reason,"
        " before::jsonb, after::jsonb, plan_digest, %s, data::jsonb FROM json_to_recordset(%s::json) AS"
        " r(id uuid, action text, outcome text, code text, on_behalf_of text, run uuid, stage uuid, reason text,"
        " before text, after text, plan_digest text, data text)",
        [actor.workspace_id, actor.user_id, actor.name, actor.channel, request_id(), recordset(rows)],
    )


class RunStates(Protocol):
    """A run as far as an audit event tells of it."""

    @property
    def status(self) -> str: ...


class StageStates(Protocol):
    """A stage as far as an audit event tells of it."""

    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...


def standing(run: RunStates, stage: StageStates | None = None) -> dict[str, Any]:
    """Where a run and one stage of it stand now: {run, stage, epoch}, for an entry's `before` and `after`."""
    told: dict[str, Any] = {"run": str(run.status)}
    if stage is not None:
        told |= {"stage": str(stage.state), "epoch": stage.epoch}
    return told


def request_id() -> str:
    """The id of the request or command that is being served; the same stands in its log lines and its answer."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))


def record_fault(actor: Actor, action: str, entry: Entry) -> None:
    """A fault of ours, or of the database: told if it can be; what went wrong goes on up either way."""
    entry.outcome, entry.code, entry.after = FAILED, INTERNAL_ERROR, None
    try:
        with transaction.atomic():
            write(actor, action, entry)
    except DatabaseError as error:
        log.error("audit.not_recorded", action=action, actor=actor.name, error=str(error).strip())


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str)
