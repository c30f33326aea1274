"""Checkpoints that handlers ask for while they run: by their worker's session, or by a service with a runtime key.

Fenced like every write of a worker. A service has no session: it names the attempt, which must be running with a live
lease at that moment, so that what it leaves after the attempt was replaced is refused. Serves O6, O42, O47, O48.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from django.db import transaction

from pipelines.checkpoints import Written
from pipelines.errors import Refusal
from pipelines.leases import Holder, why_not_held
from pipelines.models import CheckpointEvidence
from pipelines.moves import AttemptRow, Moves, Owner
from pipelines.postures import Left, leave
from pipelines.results import save_late
from pipelines.sql import query
from pipelines.states import lets_go_on

TOO_LATE = "this session does not hold the lease of that attempt; nothing was left for the next one"
KEPT = f"{TOO_LATE}; the effects it told of are kept as late evidence"
NOT_LIVE = "no running attempt of this run has that id and a live lease; nothing was left for the next one"


def leave_checkpoint(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, left: Left) -> Written | None:
    """Keeps what a running attempt leaves; durable on return. None: no such attempt is visible to the holder.

    Refused as `postures.leave`, and with `stale_execution` without the live lease: then only the committed effects
    are kept, as late evidence.
    """
    checked = left.check()
    with transaction.atomic():
        found = query("SELECT run_id FROM pipelines_attempt WHERE id = %s AND stage_id = %s", [execution_id, stage_id])
        moves = Moves.lock([found[0][0]] if found else [], actor=holder.worker, owner=holder.owner)
        if not moves.runs:
            return None
        moves.end_overdue()
        attempt = moves.attempts("id = %s", execution_id)[0]
        why_not = why_not_held(holder, moves, attempt)
        if not why_not:
            checkpoint_id = leave(moves, moves.stages[stage_id], attempt, left)
        elif checked.told:
            _keep_as_evidence(holder, attempt, [asdict(one) for one in checked.told], why_not)
        moves.settle()
        moves.save()
    if why_not:
        raise Refusal("stale_execution", KEPT if checked.told else TOO_LATE)
    return moves.written[checkpoint_id]


def leave_for_service(
    owner: Owner,
    run_id: uuid.UUID,
    *,
    actor: str,
    attempt_id: uuid.UUID,
    step_id: str,
    previous_step_id: str | None,
    left: Left,
) -> Written:
    """As `leave_checkpoint`, for a service that names the attempt and its step; in the caller's transaction.

    The caller has found the run. Refused besides: `stale_execution` unless the attempt is the run's, is running and
    its lease is live; `validation_error` for a `step_id` other than the attempt's stage, and for a
    `previous_step_id` that is no finished stage of the run.
    """
    moves = Moves.lock([run_id], actor=actor, owner=owner)
    moves.end_overdue()
    found = moves.attempts("id = %s AND run_id = %s", attempt_id, run_id)
    run = moves.runs[run_id]
    if not found or run.is_terminal or found[0].state != "running" or found[0].expires_at <= moves.now:
        raise Refusal("stale_execution", NOT_LIVE)
    attempt = found[0]
    stage = moves.stages[attempt.stage_id]
    if step_id != stage.name:
        raise _wrong("step_id", f"the attempt is one of the step {stage.name!r}")
    if previous_step_id is not None and not any(one.name == previous_step_id and lets_go_on(one) for one in run.stages):
        raise _wrong("previous_step_id", "this is no finished step of the run")
    checkpoint_id = leave(moves, stage, attempt, left)
    moves.settle()
    moves.save()
    return moves.written[checkpoint_id]


def add_evidence(checkpoint_id: uuid.UUID, body: dict[str, Any], digest: str, added_by: str) -> bool:
    """Adds to what is known of a checkpoint; nothing changes what it says. False: the same had been added before."""
    _, is_new = CheckpointEvidence.objects.get_or_create(
        checkpoint_id=checkpoint_id, digest=digest, defaults={"body": body, "added_by": added_by}
    )
    return is_new


def _keep_as_evidence(holder: Holder, attempt: AttemptRow, told: list[dict[str, Any]], why_not: str) -> None:
    body = json.dumps({"effects": told})
    digest = sha256(body.encode()).hexdigest()
    late = {"attempt": attempt.id, "session": holder.session_id, "reason": why_not, "digest": digest, "body": body}
    save_late([late])


def _wrong(field: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{field}: {message}", errors={field: [message]})
