"""The verdict on an operation, from what is known of the effects that it might repeat. Pure.

The worst reason wins: denied > review > allowed, reconciled > allowed. A committed effect outside `internal_state` is
cleared by three things together: its idempotency key, a clean sealed summary from outside, and a reconciliation that
says the same. Serves O27, O28, O42–O48, I11.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recovery.states import Disposition


@dataclass(frozen=True, slots=True)
class EffectFact:
    """What is known of one effect. `effect_id` is blank when only a checkpoint's posture tells of it.

    `evidence` are the outcomes that outside summaries claim; `reconciled` those of reconciliation events.
    """

    stage: str
    effect_class: str
    state: str
    step_id: str = ""
    key: str = ""
    effect_id: str = ""
    has_clean_seal: bool = False  # at least one summary that is sealed, clean, and whose signature by the console holds
    evidence: tuple[str, ...] = ()
    reconciled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a verdict: the disposition that it asks for, a stable code, a sentence, and what it is about."""

    disposition: Disposition
    code: str
    text: str
    stage: str = ""
    effect_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    disposition: Disposition
    reasons: tuple[Reason, ...] = ()


def judge(effects: Iterable[EffectFact], others: Iterable[Reason] = ()) -> Verdict:
    """The verdict on doing again what had these effects; `others` are reasons that lie elsewhere."""
    raise NotImplementedError
