"""What a running attempt tells of its effects: the intent before the act, the outcome after. Fenced like every write.

An intent is durable before its answer; one that comes too late is refused, so its handler must not act. An outcome that
comes too late moves nothing, and is kept as late evidence on its attempt for whoever must find out what happened. The
run is locked meanwhile, so an intent never races with a decision about its attempt. Serves R4, R5, P75, F03, F62, F65.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from django.db import transaction

from pipelines import effects, recipients
from pipelines.effects import Earlier, Told
from pipelines.errors import Refusal
from pipelines.leases import Holder, why_not_held
from pipelines.moves import Moves
from pipelines.results import save_late
from pipelines.sql import query
from pipelines.states import EffectState

TOO_LATE = "this session does not hold the lease of that attempt"
DO_NOT_ACT = f"{TOO_LATE}; nothing was noted, and what was intended must not be done"
KEPT = f"{TOO_LATE}; the outcomes are kept as late evidence and move nothing, and what was intended must not be done"

OTHERS = "nothing was noted, outcomes are kept as late evidence, and what was intended must not be done"


@dataclass(frozen=True, slots=True)
class Answer:
    """One effect as it stands, and how an earlier attempt of the epoch settled it, when an intent asks."""

    effect_id: uuid.UUID
    state: EffectState
    earlier: Earlier | None


def tell_effects(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, told: Sequence[Told]
) -> list[Answer] | None:
    """Notes effects of a running attempt, in order, all or none; durable on return. None: no such attempt is visible.

    Refused: `effect_class_unknown`, `effect_key_required`, `stage_state_invalid` for what would go back, and
    `stale_execution` without the live lease, `recipient_not_allowed` where a detail's `recipient` is not whom the
    attempt goes to; then outcomes are kept as late evidence.
    """
    with transaction.atomic():
        found = query(
            "SELECT run_id, recipient::text FROM pipelines_attempt WHERE id = %s AND stage_id = %s",
            [execution_id, stage_id],
        )
        moves = Moves.lock([found[0][0]] if found else [], actor=holder.worker, owner=holder.owner)
        if not moves.runs:
            return None
        effects.check(told)
        moves.end_overdue()
        attempt = moves.attempts("id = %s", execution_id)[0]
        why_not = why_not_held(holder, moves, attempt)
        recipient = json.loads(found[0][1]) if found[0][1] else None
        elsewhere = any(recipients.is_other(one.detail, recipient) for one in told)
        answers = []
        if elsewhere:
            save_late(_late(holder, execution_id, told, why_not or "another recipient"))
        elif why_not:
            late = _late(holder, execution_id, told, why_not)
            save_late(late)
        else:
            stage = moves.stages[stage_id]
            noted = moves.effects.tell(stage, attempt, told)
            intents = [one.identity for one in noted if one.state == EffectState.DECLARED]
            before = effects.earlier(stage, attempt, intents)
            answers = [Answer(one.id, one.state, before.get(one.identity)) for one in noted]
        moves.settle()
        moves.save()
    if elsewhere and recipient is not None:
        raise Refusal("recipient_not_allowed", f"the attempt goes to {recipients.in_words(recipient)}; {OTHERS}")
    if why_not:
        raise Refusal("stale_execution", KEPT if late else DO_NOT_ACT)
    return answers


def _late(holder: Holder, execution_id: uuid.UUID, told: Sequence[Told], why_not: str) -> list[dict[str, object]]:
    outcomes = [one.as_wire() for one in told if one.state != EffectState.DECLARED]
    if not outcomes:
        return []
    body = json.dumps({"effects": outcomes})
    digest = sha256(body.encode()).hexdigest()
    return [{"attempt": execution_id, "session": holder.session_id, "reason": why_not, "digest": digest, "body": body}]
