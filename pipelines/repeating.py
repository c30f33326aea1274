"""Whether a stage is safe to repeat, and why: what its definition declares beside what was seen of it. Pure.

The console cannot look into a handler. Declared is what the release says; seen is what attempts of the newest runs told
as effects. Where the two disagree it says so, and where nothing was seen it says that. Serves N5, N11, N21, N23, N28.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# Acts of adapters by what doing them once more comes to.
MERGING = frozenset({"upsert", "PUT", "DELETE"})
ADDING = frozenset({"insert", "POST", "PATCH"})


class Verdict(StrEnum):
    DECLARED = "declared"  # safe, as its definition says; nothing was seen that speaks for or against it
    SEEN = "seen"  # safe, as its definition says, and what was seen merges
    DOUBTFUL = "doubtful"  # its definition says that it is, and something was seen that speaks against it
    INTENT = "intent"  # until it has told of its first effect outside
    ASKS = "asks"  # never without a person's word
    AWAITS = "awaits"  # an answer that is made elsewhere: nothing of ours is done twice


WORDS = {
    Verdict.DECLARED: "Safe, as it says",
    Verdict.SEEN: "Safe, as it says, and as seen",
    Verdict.DOUBTFUL: "Doubtful",
    Verdict.INTENT: "Until its first effect",
    Verdict.ASKS: "Not without a person",
    Verdict.AWAITS: "Made elsewhere",
}


@dataclass(frozen=True, slots=True)
class Act:
    """A kind of effect outside that attempts told of. `connector` and `act` are what an adapter told, blank of effects
    that a handler tells itself; `open` is how many have no known outcome."""

    effect_class: str
    connector: str
    act: str
    count: int
    open: int = 0

    @property
    def merges(self) -> bool:
        return bool(self.connector) and self.act in MERGING

    @property
    def adds(self) -> bool:
        return bool(self.connector) and self.act in ADDING

    @property
    def words(self) -> str:
        return f"{self.act} by {self.connector}" if self.connector else self.effect_class.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the newest runs of the release in force came to, for one stage. `runs`: those in which it was attempted;
    `with_state`: of these, in how many a handler's state stands; `longest`: seconds of its longest attempt looked at.
    """

    runs: int = 0
    with_state: int = 0
    longest: float = 0.0
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A stage of the release in force. `gate`: before, after, or blank. `retries`: how often it is tried again, by
    `retry_source`; `timeout`: whether anything bounds an attempt's time."""

    name: str
    handler: str
    mode: str = "execute"
    effect_mode: str = "idempotent"
    effect_protocol: str = "none"
    gate: str = ""
    retries: int = 0
    retry_source: str = ""
    has_timeout: bool = False
    seen: Seen = field(default_factory=Seen)


@dataclass(frozen=True, slots=True)
class Repeat:
    """The verdict, and its reasons in the order in which they count."""

    verdict: Verdict
    reasons: tuple[str, ...]

    @property
    def words(self) -> str:
        return WORDS[self.verdict]


def judge(stage: StageFacts) -> Repeat:
    """Whether it is safe to repeat."""
    verdict, first = _declared(stage)
    reasons = [first, *_seen(stage)]
    if stage.gate:
        reasons.append(f"declared: people decide {stage.gate} its work, at a gate.")
    return Repeat(verdict, tuple(reasons))


def _declared(stage: StageFacts) -> tuple[Verdict, str]:
    acts = stage.seen.acts
    if stage.mode == "import":
        return Verdict.AWAITS, "declared: its answer is made elsewhere, and only one for its very request is taken."
    if stage.effect_mode == "external" and stage.effect_protocol == "intent":
        return (
            Verdict.INTENT,
            "declared: it acts outside, and tells each effect before it happens. After a lost worker it goes back to"
            " the queue only where it had told of none.",
        )
    if stage.effect_mode == "external":
        return (
            Verdict.ASKS,
            "declared: it acts outside. After a lost worker or a time-out a person says first what happened there.",
        )
    if stage.effect_mode == "none":
        declared = "declared: it has no effects outside."
        return (Verdict.DOUBTFUL if acts else Verdict.DECLARED), declared
    declared = "declared: idempotent, as is every stage that says nothing else; the console repeats it by itself."
    if any(one.adds for one in acts):
        return Verdict.DOUBTFUL, declared
    if acts and all(one.merges for one in acts):
        return Verdict.SEEN, declared
    return Verdict.DECLARED, declared


def _seen(stage: StageFacts) -> list[str]:
    seen = stage.seen
    if not seen.runs:
        return ["not known: no run of this release has attempted it."]
    newest = _newest(seen.runs)
    if not seen.acts:
        return [f"not known: in {newest} it told of no effect outside. One that is not told is not seen."]
    reasons = []
    if stage.effect_mode == "none":
        reasons.append(f"seen in {newest}: {told(seen.acts)}, which its definition denies.")
    elif adding := [one for one in seen.acts if one.adds]:
        harm = (
            "the connector leaves out what it knows to be done, and otherwise it would be there twice"
            if stage.effect_mode == "idempotent"
            else "it adds once more where it is repeated without looking"
        )
        reasons.append(f"seen in {newest}: {told(adding)}, which adds and does not merge; {harm}.")
    if merging := [one for one in seen.acts if one.merges and stage.effect_mode != "none"]:
        reasons.append(f"seen in {newest}: {told(merging)}, which comes to the same when it is done again.")
    others = [one for one in seen.acts if not one.merges and not one.adds and stage.effect_mode != "none"]
    if others:
        reasons.append(f"seen in {newest}: {told(others)}; what doing that again comes to is not known.")
    if (unknown := sum(one.open for one in seen.acts)) > 0:
        reasons.append(f"seen in {newest}: of {unknown} of these the outcome is not known.")
    return reasons


def told(acts: Sequence[Act]) -> str:
    """Kinds of effects in words, each once."""
    return ", ".join(dict.fromkeys(one.words for one in acts))


def _newest(runs: int) -> str:
    return "its newest run" if runs == 1 else f"its newest {runs} runs"
