"""What a person could do to a run, a stage or a dead letter now, and why not: pure, from the tables that verbs check.

A screen shows every action; one that would be refused is disabled with the reason. The verbs check again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipelines.access import CANCEL, CAPABILITIES, FORK, RECOVER, RESOLVE, STEER, Actor
from pipelines.models import DeadLetter
from pipelines.states import (
    ACTIVE_STAGE,
    DEAD_LETTER_MOVES,
    RUN_VERBS,
    STAGE_MOVES,
    TERMINAL_RUN,
    RunStatus,
    StageState,
)

# Why there is nothing to retry in a stage whose work is still to come.
NOT_RUN_YET = {
    StageState.PENDING: "It still waits for other stages.",
    StageState.READY: "It is ready already: there is nothing to retry yet.",
    StageState.RETRY_SCHEDULED: "Its next retry is scheduled already.",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One action: `verb` names its address, `refusal` says why it is not possible (empty: it is).

    It opens as a dialog, unless `is_page` says that its form is a page of its own.
    """

    verb: str
    label: str
    target: uuid.UUID
    refusal: str = ""
    danger: bool = False
    is_page: bool = False

    @property
    def address(self) -> str:
        return f"console:{self.verb}"


def explain(offered: Sequence[Offer]) -> list[str]:
    """Why what is not possible is not, one line for each reason: `Pause, resume: the run has ended`."""
    by_reason: dict[str, list[str]] = {}
    for offer in offered:
        if offer.refusal:
            by_reason.setdefault(offer.refusal, []).append(offer.label.rstrip("…").lower())
    return [f"{', '.join(acts).capitalize()}: {reason[:1].lower()}{reason[1:]}" for reason, acts in by_reason.items()]


class RunFacts(Protocol):
    id: uuid.UUID
    status: str
    failure_code: str
    changed: Any  # what no longer is as it was pinned; nothing where all is


class StageFacts(Protocol):
    id: uuid.UUID
    name: str
    state: str


def for_run(run: RunFacts, actor: Actor) -> list[Offer]:
    """Pause, resume, cancel; rerun and replay, which make a new run out of one that has ended, or that stands still
    for good because what it pinned has changed."""
    return [
        Offer("pause", "Pause…", run.id, _run_refusal(run, actor, "pause")),
        Offer("resume", "Resume…", run.id, _run_refusal(run, actor, "resume")),
        Offer("rerun", "Rerun…", run.id, _fork_refusal(run, actor)),
        Offer("replay", "Replay…", run.id, _fork_refusal(run, actor)),
        Offer("cancel", "Cancel…", run.id, _run_refusal(run, actor, "cancel"), danger=True),
    ]


def for_stage(stage: StageFacts, run: RunFacts, actor: Actor, *, denied: bool) -> list[Offer]:
    """Retry and skip, and reconcile where that is what it needs. `denied`: its gate was rejected in this epoch."""
    doubtful = stage.state == StageState.NEEDS_RECONCILIATION
    refusal = "" if actor.may(RESOLVE) else missing_right(actor, RESOLVE)
    return [
        *([Offer("reconcile", "Reconcile…", stage.id, refusal)] if doubtful else []),
        Offer("retry", "Retry…", stage.id, _stage_refusal(stage, run, actor, "retry", denied)),
        Offer("skip", "Skip…", stage.id, _stage_refusal(stage, run, actor, "skip", denied)),
    ]


def for_letter(letter: DeadLetter, actor: Actor) -> list[Offer]:
    """Redrive, acknowledge, discard; `letter` with its stage and run."""
    return [
        Offer("redrive", "Redrive…", letter.id, _letter_refusal(letter, actor, "redrive")),
        Offer("acknowledge", "Acknowledge…", letter.id, _letter_refusal(letter, actor, "acknowledge")),
        Offer("discard", "Discard…", letter.id, _letter_refusal(letter, actor, "discard")),
    ]


def recovery_refusal(actor: Actor) -> str:
    """Why this person may recover nothing here; empty where they may."""
    return "" if actor.may(RECOVER) else missing_right(actor, RECOVER)


def _letter_refusal(letter: DeadLetter, actor: Actor, verb: str) -> str:
    if refusal := recovery_refusal(actor):
        return refusal
    if letter.state not in DEAD_LETTER_MOVES[verb]:
        return f"It is {letter.state} already."
    return _stage_refusal(letter.stage, letter.run, actor, "retry", denied=False) if verb == "redrive" else ""


def _run_refusal(run: RunFacts, actor: Actor, verb: str) -> str:
    needed = CANCEL if verb == "cancel" else STEER
    if not actor.may(needed):
        return missing_right(actor, needed)
    if run.status in RUN_VERBS[verb]:
        return ""
    if run.status == RunStatus.CANCELLED:
        return "The run is cancelled and stays so."
    if run.failure_code == "deadline_exceeded":
        return "The run passed its deadline for good."
    if run.status in TERMINAL_RUN:
        return f"The run has ended: it is {run.status}."
    return f"The run is {run.status} already." if verb == "pause" else f"The run is not paused; it is {run.status}."


def _fork_refusal(run: RunFacts, actor: Actor) -> str:
    if not actor.may(FORK):
        return missing_right(actor, FORK)
    if run.status in TERMINAL_RUN or (run.changed and run.status == RunStatus.BLOCKED):
        return ""
    return f"The run is {run.status}: only one that has ended is made anew."


def _stage_refusal(stage: StageFacts, run: RunFacts, actor: Actor, verb: str, denied: bool) -> str:
    if refusal := recovery_refusal(actor):
        return refusal
    if run.status == RunStatus.CANCELLED:
        return "A cancelled run stays cancelled; only a new run helps."
    if run.failure_code == "deadline_exceeded":
        return "The run passed its deadline for good; only a new run helps."
    if run.changed:
        return "What the run pinned has changed; only a fork goes on."
    if denied:
        return "Its gate was rejected; that is final in this run."
    if stage.state in STAGE_MOVES[verb]:
        return ""
    if stage.state == StageState.NEEDS_RECONCILIATION:
        return "What it did outside is unknown: that must be reconciled first."
    if stage.state in ACTIVE_STAGE:
        return f"It is {stage.state} now; wait for its end, or cancel the run."
    if stage.state == StageState.WAITING:
        return "It waits: for a decision, for an answer made elsewhere, or for runs that it started."
    if verb == "retry" and stage.state in NOT_RUN_YET:
        return NOT_RUN_YET[StageState(stage.state)]
    return f"A stage that is {stage.state.replace('_', ' ')} cannot be {'retried' if verb == 'retry' else 'skipped'}."


def missing_right(actor: Actor, capability: str, what: str = "do this") -> str:
    """That the actor's role is not enough for `what`, and which are."""
    roles = ", ".join(sorted(role.replace("_", " ") for role in CAPABILITIES[capability]))
    return f"Your role, {str(actor.role).replace('_', ' ')}, may not {what}; it needs one of: {roles}."
