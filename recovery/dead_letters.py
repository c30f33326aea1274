"""What people do to dead letters: acknowledge, redrive, discard. A letter is for one epoch of one stage.

Each verb holds the lock of the letter's run, so that a retry or a cancel cannot pass it by. Redriving is a retry that
closes the letter with it, in one transaction: a letter is either still open or its stage is queued (F162).
"""

from __future__ import annotations

import uuid
from typing import Any

from pipelines.access import RECOVER, Actor
from pipelines.audit import Entry
from pipelines.errors import Refusal
from pipelines.models import DeadLetter
from pipelines.moves import Moves, RunRow
from pipelines.sql import execute, query
from pipelines.states import DEAD_LETTER_MOVES, DeadLetterState
from recovery.states import OperationKind
from recovery.transitions import Done, on_run, retry_stage


def acknowledge(letter_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "") -> Done:
    """open → acknowledged: somebody has seen it and deals with it. The stage stays failed."""
    return _mark(OperationKind.ACKNOWLEDGE, letter_id, actor, reason, key)


def discard(letter_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "") -> Done:
    """open, acknowledged → discarded: it will not be done. A reason is required; the stage stays failed."""
    if not reason:
        message = "a dead letter is discarded only with a reason"
        raise Refusal("validation_error", message, errors={"reason": [message]})
    return _mark(OperationKind.DISCARD, letter_id, actor, reason, key)


def redrive(
    letter_id: uuid.UUID, *, actor: Actor, reason: str = "", acknowledge_effects: bool = False, key: str = ""
) -> Done:
    """open, acknowledged → redriven, and its stage begins a new epoch; refused whenever a retry of it is."""
    letter = _find(letter_id, actor)
    return retry_stage(
        letter.stage_id,
        actor=actor,
        reason=reason,
        acknowledge_effects=acknowledge_effects,
        key=key,
        letters=DeadLetterState.REDRIVEN,
        before=lambda moves: _check(moves, letter.id, "redrive"),
    )


def _mark(kind: OperationKind, letter_id: uuid.UUID, actor: Actor, reason: str, key: str) -> Done:
    letter = _find(letter_id, actor)

    def carry_out(moves: Moves, run: RunRow, entry: Entry) -> dict[str, Any]:
        origin, state = _check(moves, letter_id, kind)
        execute(
            "UPDATE pipelines_deadletter SET state = %s, closed_at = CASE WHEN %s THEN recourse_now() END"
            " WHERE id = %s",
            [state, state != DeadLetterState.ACKNOWLEDGED, letter_id],
        )
        moves.event(f"dead_letter.{state}", run.id, letter.stage_id, None, origin, state, reason=reason)
        moves.save()
        return {"dead_letter_status": state, "run_status": run.status}

    return on_run(
        kind,
        letter.run_id,
        actor=actor,
        capability=RECOVER,
        action=f"dead_letter.{kind}",
        reason=reason,
        key=key,
        request={"dead_letter": str(letter_id)},
        stage_id=letter.stage_id,
        carry_out=carry_out,
    )


def _find(letter_id: uuid.UUID, actor: Actor) -> DeadLetter:
    letter = DeadLetter.objects.filter(id=letter_id, workspace_id=actor.workspace_id).first()
    if letter is None:
        raise Refusal("not_found", "there is no such dead letter")
    return letter


def _check(moves: Moves, letter_id: uuid.UUID, verb: str) -> tuple[DeadLetterState, DeadLetterState]:
    """The letter's state as it is under the run's lock, and where the verb leads; refused when it leads nowhere."""
    state = DeadLetterState(query("SELECT state FROM pipelines_deadletter WHERE id = %s", [letter_id])[0][0])
    if state not in DEAD_LETTER_MOVES[verb]:
        raise Refusal("stage_state_invalid", f"a dead letter that is {state} cannot be {_PAST[verb]}")
    return state, DEAD_LETTER_MOVES[verb][state]


_PAST = {"acknowledge": "acknowledged", "redrive": "redriven", "discard": "discarded"}
