"""What people do to dead letters: acknowledge, redrive, discard. A letter is for one epoch of one stage.

Each verb holds the lock of the letter's run, so that a retry or a cancel cannot pass it by. Redriving is a retry that
closes the letter with it, in one transaction: a letter is either still open or its stage is queued (F162).
"""

from __future__ import annotations

import uuid

from pipelines import queries
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import DeadLetter
from recovery.operations import Done
from recovery.plans import STAGE_ONLY, Asked
from recovery.states import OperationKind
from recovery.transitions import perform


def ask_mark(kind: OperationKind, letter: DeadLetter, *, reason: str = "") -> Asked:
    """open → acknowledged, or open, acknowledged → discarded (with a reason); the stage stays failed."""
    return Asked(kind, letter.run_id, letter.stage_id, {"dead_letter": str(letter.id)}, reason)


def ask_redrive(letter: DeadLetter, *, acknowledge_effects: bool = False, reason: str = "") -> Asked:
    """open, acknowledged → redriven, and its stage begins a new epoch; refused whenever a retry of it is."""
    choices = {
        "dead_letter": str(letter.id),
        "scope": STAGE_ONLY,
        "input": None,
        "acknowledge_effects": acknowledge_effects,
    }
    return Asked(OperationKind.REDRIVE, letter.run_id, letter.stage_id, choices, reason)


def acknowledge(letter_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "", plan_digest: str = "") -> Done:
    """Somebody has seen it and deals with it."""
    asked = ask_mark(OperationKind.ACKNOWLEDGE, _find(letter_id, actor), reason=reason)
    return perform(asked, actor=actor, key=key, plan_digest=plan_digest)


def discard(letter_id: uuid.UUID, *, actor: Actor, reason: str = "", key: str = "", plan_digest: str = "") -> Done:
    """It will not be done."""
    asked = ask_mark(OperationKind.DISCARD, _find(letter_id, actor), reason=reason)
    return perform(asked, actor=actor, key=key, plan_digest=plan_digest)


def redrive(
    letter_id: uuid.UUID,
    *,
    actor: Actor,
    reason: str = "",
    acknowledge_effects: bool = False,
    key: str = "",
    plan_digest: str = "",
) -> Done:
    asked = ask_redrive(_find(letter_id, actor), acknowledge_effects=acknowledge_effects, reason=reason)
    return perform(asked, actor=actor, key=key, plan_digest=plan_digest)


def _find(letter_id: uuid.UUID, actor: Actor) -> DeadLetter:
    letter = queries.dead_letters(actor).filter(id=letter_id).first()
    if letter is None:
        raise Refusal("not_found", "there is no such dead letter")
    return letter
