"""What a person could do to an effect now, and why not: pure; the verbs check again."""

from __future__ import annotations

from pipelines.access import RESOLVE, Actor
from pipelines.console.offers import Offer, missing_right
from pipelines.models import Effect
from pipelines.states import StageState


def for_effect(effect: Effect, actor: Actor) -> list[Offer]:
    """Adding evidence, and saying what was found out; of a cancelled run's effects too. Where its stage waits for that,
    then of the stage."""
    refusal = "" if actor.may(RESOLVE) else missing_right(actor, RESOLVE)
    found = [
        Offer("effect-evidence", "Add evidence…", effect.id, refusal),
        Offer("effect-reconcile", "Reconcile…", effect.id, refusal),
    ]
    if effect.stage.state == StageState.NEEDS_RECONCILIATION:
        found.append(Offer("reconcile", "Reconcile the stage…", effect.stage_id, refusal))
    return found
