"""Whether a run that failed is done again by itself, how, and when: pure, explained, recomputable from the stored row.

Nothing is done without a policy of kind `run_retry` (N1, N2, N4). One rules a run: a policy of its pipeline before one
of its environment, then the newest; where its `error_codes` do not name what failed there is no retry, and no other
policy steps in. Every failure at fault must admit it: what would fail again as surely is not repeated. How often counts
over the run and all that it was made out of, and never grows back. Delays are those of `pipelines.retries`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.retries import TERMINAL_CODES, PolicyFact, RetryRule, Target, effective_policy, retry_delay
from recovery.states import RetryMode

# what a stage's failure says about doing it again, by its disposition
FINAL: Mapping[str, tuple[str, str]] = {
    "gate_denied": ("gate_denied", "it was not approved: that is final in this run, and nobody is asked anew unasked"),
    "gate_expired": ("gate_denied", "nobody approved it in time, and nobody is asked anew unasked"),
    "contradicted": ("contradicted", "what is known of its work outside contradicts itself"),
    "not_retryable": ("not_retryable", "its worker said retryable: false"),
}
DEFAULT_MODE = RetryMode.RESUME
ACTOR = "policy"  # what records call the policy that acts: this, and its name


@dataclass(frozen=True, slots=True)
class Failure:
    """A stage at fault: it failed, and nothing passes its failure by."""

    stage: str
    code: str
    disposition: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A run as it fails. `used`: how often it, or what it was made out of, was retried by itself. `seconds_left`: until
    its deadline; None: it has none. `seed` makes the jitter repeatable."""

    failures: tuple[Failure, ...]
    used: int
    seconds_left: float | None
    seed: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict, with all that is needed to compute it again. Stored as it is."""

    retry: bool
    verdict: str  # retry | gate_denied | contradicted | terminal_error | not_retryable | code_not_listed
    # | retries_exhausted | past_deadline
    explanation: str
    mode: str
    number: int
    max_retries: int
    delay: float | None  # seconds
    # what it was decided on, as it stood then
    policy: Mapping[str, Any]
    failures: Sequence[Mapping[str, Any]]
    used: int
    seconds_left: float | None
    seed: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ruling(policies: Sequence[PolicyFact], *, pipeline: str, environment: str) -> PolicyFact | None:
    """The one policy that rules runs of this place; None: they stay as they are."""
    return effective_policy(policies, Target("", "", pipeline, environment))


def decide(policy: PolicyFact, failed: Failed) -> Decision:
    """Decides on one run that failed and that this policy rules."""
    rule = RetryRule.from_options(policy.rule, f"policy {policy.name}")
    mode = RetryMode(policy.rule.get("mode") or DEFAULT_MODE)
    number = failed.used + 1

    def decided(verdict: str, explanation: str, delay: float | None = None) -> Decision:
        return Decision(
            retry=verdict == "retry",
            verdict=verdict,
            explanation=explanation,
            mode=mode.value,
            number=number,
            max_retries=rule.max_retries,
            delay=delay,
            policy=asdict(policy),
            failures=tuple(asdict(one) for one in failed.failures),
            used=failed.used,
            seconds_left=failed.seconds_left,
            seed=failed.seed,
        )

    listed = {code.upper() for code in policy.match.get("error_codes") or ()}
    for failure in failed.failures:
        if found := _forbidden(failure, listed, policy.name):
            return decided(found[0], f"{failure.stage}: {found[1]}")
    if failed.used >= rule.max_retries:
        return decided("retries_exhausted", f"{failed.used} of {rule.max_retries} retries by {rule.source} are used")
    delay = retry_delay(rule, number, failed.seed)
    if mode == RetryMode.RESUME and failed.seconds_left is not None and failed.seconds_left <= delay:
        return decided("past_deadline", f"its deadline passes before its next retry in {delay:g} s")
    told = _IN_WORDS[mode]
    explanation = f"retry {number} of {rule.max_retries} in {delay:g} s by {rule.source} ({rule.backoff}), {told}"
    return decided("retry", explanation, delay)


def recompute(stored: Mapping[str, Any]) -> Decision:
    """The decision once more, from what is kept of it and nothing else (F166)."""
    failed = Failed(
        failures=tuple(Failure(**one) for one in stored["failures"]),
        used=stored["used"],
        seconds_left=stored["seconds_left"],
        seed=stored["seed"],
    )
    return decide(PolicyFact(**stored["policy"]), failed)


def called(policy_name: str) -> str:
    """How records call the policy that acts."""
    return f"{ACTOR} {policy_name}"[:255]


_IN_WORDS: Mapping[RetryMode, str] = {
    RetryMode.RESUME: "at the stages that failed",
    RetryMode.NEW_RUN: "as a new run",
}


def _forbidden(failure: Failure, listed: set[str], policy: str) -> tuple[str, str] | None:
    """Why this failure is not repeated, as (verdict, sentence)."""
    code = failure.code.upper()
    if failure.disposition in FINAL:
        return FINAL[failure.disposition]
    if code in TERMINAL_CODES:
        return "terminal_error", f"{code} is always terminal: correct the input first"
    if listed and code not in listed:
        return "code_not_listed", f"policy {policy} rules this run and does not list {failure.code or 'a missing code'}"
    return None
