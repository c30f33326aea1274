"""Where a run stands and what one may do about it at once: what its page says first, above everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.access import Actor
from pipelines.console import offers
from pipelines.console.acts import short
from pipelines.console.offers import Offer
from pipelines.models import DeadLetter, Gate, Run, Stage, StageMode
from pipelines.states import OPEN_DEAD_LETTER, TERMINAL_RUN, GateState, RunStatus, StageState

LONGEST_ON_BUTTON = 32  # characters of a stage's name, beside other buttons
STANDS = frozenset({StageState.FAILED, StageState.NEEDS_RECONCILIATION, StageState.WAITING})


@dataclass(frozen=True, slots=True)
class Fault:
    """The stage at which a run stands. `offers` are the acts that are possible there, the likeliest first, each with
    its verb as a word and the stage's name where that is to be told; `gate` is the open one that asks for a decision.
    """

    stage: Stage
    offers: Sequence[tuple[Offer, str, str]]
    gate: Gate | None


def find(run: Run, stage: Stage, gates: Sequence[Gate], letter: DeadLetter | None, actor: Actor) -> Fault | None:
    """What `stage`, the one that speaks for the run, holds it up with; none where nothing of it asks for a person.

    `gates` are those of the stage, in the order of their opening; `letter` is its dead letter that waits for a person.
    """
    if run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED) or stage.state not in STANDS:
        return None
    if run.failure_code == "deadline_exceeded":
        return None  # the run failed of itself, and nothing of a stage helps it
    if stage.state == StageState.FAILED and stage.run_next_if_failed and run.status != RunStatus.FAILED:
        return None  # what follows goes on all the same
    gate = next((gate for gate in reversed(gates) if gate.epoch == stage.epoch), None)
    if stage.state == StageState.WAITING:
        is_open = gate is not None and gate.state == GateState.OPEN
        if not is_open and stage.mode != StageMode.IMPORT:
            return None  # it waits for runs that it started
        return Fault(stage, (), gate if is_open else None)
    denied = gate is not None and gate.state == GateState.REJECTED
    found = [*offers.for_stage(stage, run, actor, denied=denied), *of_letter(letter, actor)]
    return Fault(stage, [_named(offer, stage.name) for offer in found if not offer.refusal], None)


def headline(run: Run, stage: Stage) -> str:
    """The state of the run in words, with the stage that speaks for it; in short enough a line to be a title."""
    word = RunStatus(run.status).value.capitalize()
    if run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.QUEUED):
        return word
    if run.failure_code == "deadline_exceeded":
        return f"{word} at its deadline"
    name = short(stage.name)
    # of a run that goes on beside it, what has failed is not where it is
    if stage.state == StageState.FAILED and run.status not in TERMINAL_RUN:
        return f"{word}, {name} failed"
    return f"{word} at {name}"


def letter_of(stage: Stage, run: Run) -> DeadLetter | None:
    """The stage's dead letter that waits for a person, with its stage and its run."""
    letter = DeadLetter.objects.filter(stage=stage, state__in=sorted(OPEN_DEAD_LETTER)).first()
    if letter is not None:
        letter.stage, letter.run = stage, run
    return letter


def of_letter(letter: DeadLetter | None, actor: Actor) -> list[Offer]:
    """Acknowledging and discarding it; redriving is what retrying the stage does."""
    return [offer for offer in offers.for_letter(letter, actor) if offer.verb != "redrive"] if letter else []


def _named(offer: Offer, stage: str) -> tuple[Offer, str, str]:
    """The stage's own acts go with its name: they stand far from where it is shown."""
    is_own = offer.verb in ("reconcile", "retry", "skip")
    return offer, offer.label.rstrip("…"), short(stage, LONGEST_ON_BUTTON).rstrip("…") if is_own else ""
