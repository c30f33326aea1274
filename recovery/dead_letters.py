"""What people ask for dead letters: acknowledge, redrive, discard. A letter is for one epoch of one stage.

`transitions.perform` holds the lock of the letter's run, so that a retry or a cancel cannot pass it by. Redriving is a
retry that closes the letter with it, in one transaction: a letter is either still open or its stage is queued (F162).
"""

from __future__ import annotations

from pipelines.models import DeadLetter
from recovery.plans import STAGE_ONLY, Asked
from recovery.states import OperationKind


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
