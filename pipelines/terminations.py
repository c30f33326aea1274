"""How the processes of an attempt ended, as its worker tells: kept once, and what runs on becomes something to settle.

Whoever holds or held the attempt may tell, also when it is ended, fenced, or its run is over: that is when it matters.
It changes no state. Serves R33, R34, R38, R39.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from pipelines.errors import Refusal
from pipelines.leases import Holder
from pipelines.models import ReconciliationItem, ReconciliationKind, Termination
from pipelines.moves import AttemptRow, Moves
from pipelines.sql import query

NOT_HELD = "this session never held that attempt; nothing was kept"
TOLD_OTHERWISE = "another end was told for this attempt before, and is kept; this one changes nothing"

REASONS = {
    "cancelled": "since the run was cancelled",
    "lost": "since the lease was lost",
    "drain": "since the worker ended",
    "timed out": "since the stage's time was over",
    "paused": "since the run was paused",
    "wall_clock": "since the command's time was over",
    "cpu": "since the processor time was used up",
    "processes": "since there were too many of them",
    "output": "since too much was written",
}


def tell(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, told: Mapping[str, Any]) -> bool:
    """Keeps what was told; durable on return. The same again adds nothing. False: no such attempt is visible.

    Refused with `stale_execution`: a session that never held the attempt, and an end other than what was told before.
    """
    with transaction.atomic():
        found = query("SELECT run_id FROM pipelines_attempt WHERE id = %s AND stage_id = %s", [execution_id, stage_id])
        moves = Moves.lock([found[0][0]] if found else [], actor=holder.worker, owner=holder.owner)
        if not moves.runs:
            return False
        attempt = moves.attempts("id = %s", execution_id)[0]
        if attempt.session_id != holder.session_id:
            raise Refusal("stale_execution", NOT_HELD)
        kept = Termination.objects.filter(attempt_id=execution_id).first()
        if kept is None:
            _keep(holder, moves, attempt, told)
        elif kept.body != told:
            raise Refusal("stale_execution", TOLD_OTHERWISE)
    return True


def sentence(body: Mapping[str, Any]) -> str:
    """What was told, for people: "ended by SIGKILL after 10 s grace, since the run was cancelled; …"."""
    names = [one["signal"] for one in body["signals"]]
    parts = []
    if names:
        ended = f"{'what the command left behind was ' if body['reason'] == 'left_behind' else ''}ended by {names[-1]}"
        if len(names) > 1:
            ended += f" after {body['grace_seconds']:g} s grace" if body.get("grace_seconds") else " without grace"
        why = REASONS.get(body["reason"])
        parts.append(f"{ended}, {why}" if why else ended)
    count = left_count(body)
    if count:
        parts.append(f"{count} {'process' if count == 1 else 'processes'} could not be stopped")
    elif not body["complete"]:
        parts.append("whether all of them ended is not known")
    return "; ".join(parts) or "ended by themselves"


def left_count(body: Mapping[str, Any]) -> int:
    """How many were left running; of very many only the first are named."""
    return max(body.get("left_count", 0), len(body["left"]))


def _keep(holder: Holder, moves: Moves, attempt: AttemptRow, told: Mapping[str, Any]) -> None:
    Termination.objects.create(attempt_id=attempt.id, session=holder.session_id, complete=told["complete"], body=told)
    data = {"number": attempt.number, "worker": holder.worker, "complete": told["complete"], "left": left_count(told)}
    moves.event("stage.terminated", attempt.run_id, attempt.stage_id, attempt.id, reason=sentence(told), data=data)
    _list_what_is_left(holder, moves, attempt, told)
    moves.save()


def _list_what_is_left(holder: Holder, moves: Moves, attempt: AttemptRow, told: Mapping[str, Any]) -> None:
    details = [_detail(holder, one) for one in told["left"]]
    unnamed = left_count(told) - len(details)
    if unnamed:
        details.append(f"{unnamed} further processes on {holder.worker}")
    ReconciliationItem.objects.bulk_create(
        ReconciliationItem(
            run_id=attempt.run_id,
            workspace_id=moves.runs[attempt.run_id].workspace_id,
            stage_id=attempt.stage_id,
            attempt_number=attempt.number,
            kind=ReconciliationKind.PROCESS_LEFT,
            subject=attempt.id,
            detail=detail,
        )
        for detail in details
    )


def _detail(holder: Holder, one: Mapping[str, Any]) -> str:
    which = f"process {one['pid']}" if "pid" in one else "processes that nobody could look for"
    command = f" ({one['command']})" if one.get("command") else ""
    return f"{which}{command} on {holder.worker}: {one['why']}"
