"""The verdict on an operation, from what is known of the effects that it might repeat. Pure.

The worst reason wins: denied > review > allowed, reconciled > allowed. A committed effect outside `internal_state` is
cleared by three things together: its idempotency key, a clean sealed summary from outside, and a reconciliation that
says the same. Serves O27, O28, O42–O48, I11, I15.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipelines.states import COMMITTED_EFFECT, OPEN_EFFECT, EffectClass, EffectState
from recovery.states import Disposition, Outcome

DENIED, REVIEW, RECONCILED, ALLOWED = (
    Disposition.RECOVERY_DENIED,
    Disposition.OPERATOR_REVIEW_REQUIRED,
    Disposition.RECOVERY_ALLOWED_RECONCILED,
    Disposition.RECOVERY_ALLOWED,
)
WORST_FIRST = tuple(Disposition)
GOES_ON = frozenset({RECONCILED, ALLOWED})
_SETTLED_ABSENT = frozenset({EffectState.ABSENT, EffectState.RECONCILED_ABSENT})

ACKNOWLEDGE = ", then say acknowledge_effects"  # in the words of the API; a form asks for it in its own


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
    epoch: int = 1  # of its stage, when it was told
    is_live: bool = False  # its attempt still runs and may yet tell more

    @property
    def told(self) -> str:
        """Its class, and its step where that is another word than its stage, in a sentence."""
        step = f", step {self.step_id}" if self.step_id and self.step_id != self.stage else ""
        return f"{self.effect_class.replace('_', ' ')}{step}"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a verdict: the disposition that it asks for, a stable code, a sentence, and what it is about."""

    disposition: Disposition
    code: str
    text: str
    stage: str = ""
    effect_id: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "disposition": self.disposition.value,
            "code": self.code,
            "text": self.text,
            "stage": self.stage or None,
            "effect_id": self.effect_id or None,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    disposition: Disposition
    reasons: tuple[Reason, ...] = ()

    @property
    def lets_go_on(self) -> bool:
        return self.disposition in GOES_ON

    def reasons_json(self) -> list[dict[str, Any]]:
        return [reason.as_json() for reason in self.reasons]


def judge(effects: Iterable[EffectFact], others: Iterable[Reason] = ()) -> Verdict:
    """The verdict on doing again what had these effects; `others` are reasons that lie elsewhere.

    The same for any order; one more effect or reason never makes it better. Reasons stand worst first.
    """
    reasons = {*others}
    for effect in effects:
        reasons.update(_reasons(effect))
    ordered = sorted(reasons, key=_rank)
    return Verdict(ordered[0].disposition if ordered else ALLOWED, tuple(ordered))


def _rank(reason: Reason) -> tuple[int, str, str, str, str]:
    return WORST_FIRST.index(reason.disposition), reason.stage, reason.effect_id, reason.code, reason.text


def undeclared(stage: str, *, may_acknowledge: bool = False) -> Reason:
    """A stage acted outside without saying what: nobody but a person can tell whether doing it again repeats it.

    Whoever asks may say so themselves where the verb takes `acknowledge_effects`; a fork does not.
    """
    then = ACKNOWLEDGE if may_acknowledge else " before it is done again"
    text = f"what {stage} did outside was never declared: check the outside system{then}"
    return Reason(REVIEW, "undeclared_effects", text, stage)


def denied_gate(stage: str) -> Reason:
    """A person has said no to this stage; that is final in its run, and nobody overrides it."""
    return Reason(DENIED, "gate_denied", f"the gate of {stage} was rejected; that is final in this run", stage)


def _reasons(effect: EffectFact) -> Iterator[Reason]:
    if effect.effect_class == EffectClass.INTERNAL_STATE:
        return
    claims = {*effect.evidence, *effect.reconciled}
    if effect.state == EffectState.CONTRADICTED or Outcome.CONTRADICTED in claims:
        yield _reason(DENIED, "effect_contradicted", effect, "what is known of it contradicts itself")
    elif effect.state in COMMITTED_EFFECT:
        yield from _committed(effect, claims)
    elif effect.state in _SETTLED_ABSENT:
        if Outcome.COMMITTED in claims:
            told = "it is told as absent, and evidence or reconciliation says that it was committed"
            yield _reason(DENIED, "evidence_contradicts", effect, told)
    elif claims >= {Outcome.COMMITTED, Outcome.ABSENT}:
        told = "one source says that it was committed, another that it was not"
        yield _reason(DENIED, "evidence_contradicts", effect, told)
    elif effect.state in OPEN_EFFECT:
        yield _reason(REVIEW, "effect_open", effect, f"it is {effect.state}, and whether it happened is not known")
    else:
        yield _reason(REVIEW, "effect_unclear", effect, f"its state {effect.state!r} is not known here")


def _committed(effect: EffectFact, claims: set[str]) -> Iterator[Reason]:
    if Outcome.ABSENT in claims:
        told = "it is told as committed, and evidence or reconciliation says that it is absent"
        yield _reason(DENIED, "evidence_contradicts", effect, told)
        return
    missing = [
        _reason(REVIEW, code, effect, told)
        for is_missing, code, told in (
            (not effect.key, "key_missing", "it was committed without an idempotency key"),
            (not effect.has_clean_seal, "evidence_missing", "no clean sealed evidence from outside tells of it"),
            (Outcome.COMMITTED not in effect.reconciled, "reconciliation_missing", "no reconciliation confirms it"),
        )
        if is_missing
    ]
    yield from missing or [_reason(RECONCILED, "effect_reconciled", effect, "it has key, sealed evidence and match")]


def _reason(disposition: Disposition, code: str, effect: EffectFact, told: str) -> Reason:
    return Reason(disposition, code, f"{effect.stage}: {effect.told}; {told}", effect.stage, effect.effect_id)
