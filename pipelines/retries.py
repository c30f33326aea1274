"""Whether a failed attempt is tried again, when, and why: pure, explained, recomputable from the stored row.

Order (model.md §3.3): terminal class → `retryable: false` → the policy that targets the stage → the stage's options.
Serves P30–P46, I15, F166.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

TERMINAL_CODES = frozenset(
    {
        "BUSINESS_REJECTED",
        "VALIDATION_ERROR",
        "INVALID_STATE",
        "MISSING_REQUIRED_DATA",
        "REQUIRED_DATA_MISSING",
        "PERMISSION_DENIED",
        "OUTPUT_TOO_LARGE",
    }
)
JITTER_SHARE = 0.1
CAP_FACTOR = 30  # the default cap is this many times the base interval
RETRY_OPTIONS = ("max_retries", "retry_interval", "retry_on_error_codes", "backoff", "max_retry_interval", "jitter")


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and how far apart. `source` says where it came from: `options`, or `policy:<name>`."""

    source: str
    max_retries: int
    interval: float  # seconds
    error_codes: tuple[str, ...] = ()
    backoff: str = "fixed"
    max_interval: float | None = None
    jitter: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any], source: str = "options") -> RetryRule:
        return cls(
            source=source,
            max_retries=options.get("max_retries") or 0,
            interval=options.get("retry_interval") or 0,
            error_codes=tuple(options.get("retry_on_error_codes") or ()),
            backoff=options.get("backoff") or "fixed",
            max_interval=options.get("max_retry_interval"),
            jitter=bool(options.get("jitter")),
        )


@dataclass(frozen=True, slots=True)
class PolicyFact:
    """What choosing among policies needs to know of one. `rank`: the most specific wins, then the newest."""

    name: str
    match: Mapping[str, Any]
    rule: Mapping[str, Any]
    created_at: float

    @property
    def rank(self) -> tuple[int, float]:
        for specificity, field in (
            (4, "stage"),
            (3, "handler"),
            (2, "pipeline"),
            (1, "environment"),
        ):
            if self.match.get(field):
                return specificity, self.created_at
        return 0, self.created_at


P = TypeVar("P", bound=PolicyFact)


@dataclass(frozen=True, slots=True)
class Target:
    """The stage a policy may target, in the words policies use."""

    stage: str
    handler: str
    pipeline: str
    environment: str


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The verdict, with all that is needed to compute it again. Stored on the attempt as it is."""

    retry: bool
    verdict: str  # retry | terminal_error | not_retryable | no_rule | code_not_listed | retries_exhausted
    explanation: str
    source: str
    code: str
    retries_used: int
    max_retries: int
    retries_left: int
    delay: float | None  # seconds
    seed: str
    # what it was decided on, as it stood then: options and policies may change afterwards
    retryable: bool | None
    options: Mapping[str, Any]
    policy: Mapping[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def targets(policy: PolicyFact, target: Target) -> bool:
    """Whether every field that the policy names matches the stage; `error_codes` filters later and is not targeting."""
    return all(
        not policy.match.get(field) or policy.match[field] == getattr(target, field)
        for field in ("stage", "handler", "pipeline", "environment")
    )


def effective_policy(policies: Sequence[P], target: Target) -> P | None:
    """The policy that rules the stage: most specific first (stage > handler > pipeline > environment), then newest."""
    matching = [policy for policy in policies if targets(policy, target)]
    return max(matching, key=lambda policy: policy.rank, default=None)


def decide_retry(
    *,
    code: str,
    retryable: bool | None,
    options: Mapping[str, Any],
    policy: PolicyFact | None,
    retries_used: int,
    seed: str,
) -> RetryDecision:
    """Decides on one failure. `retries_used`: automatic retries in this epoch; `seed` makes the jitter repeatable."""
    folded = code.upper()

    def decided(
        verdict: str, explanation: str, source: str, *, maximum: int = 0, left: int = 0, delay: float | None = None
    ) -> RetryDecision:
        return RetryDecision(
            retry=verdict == "retry",
            verdict=verdict,
            explanation=explanation,
            source=source,
            code=code,
            retries_used=retries_used,
            max_retries=maximum,
            retries_left=left,
            delay=delay,
            seed=seed,
            retryable=retryable,
            options={name: options[name] for name in RETRY_OPTIONS if name in options},
            policy=None if policy is None else asdict(policy),
        )

    if folded in TERMINAL_CODES:
        return decided("terminal_error", f"{folded} is always terminal: correct the input first", "terminal class")
    if retryable is False:
        return decided("not_retryable", "the worker said retryable: false", "worker")
    if policy is not None:
        rule = RetryRule.from_options(policy.rule, f"policy:{policy.name}")
        lists = (tuple(policy.match.get("error_codes") or ()), rule.error_codes)
        if not all(_names(listed, folded) for listed in lists if listed):
            explanation = f"policy {policy.name} rules this stage and does not list {code or 'a missing code'}"
            return decided("code_not_listed", explanation, rule.source, maximum=rule.max_retries)
    else:
        rule = RetryRule.from_options(options)
        if rule.max_retries > 0 and rule.interval > 0 and rule.error_codes and not _names(rule.error_codes, folded):
            explanation = f"the stage's list of codes does not name {code or 'a missing code'}"
            return decided("code_not_listed", explanation, rule.source, maximum=rule.max_retries)
    if rule.max_retries <= 0 or rule.interval <= 0:
        explanation = "no retries: a positive maximum and a positive interval are both needed"
        return decided("no_rule", explanation, rule.source)
    if retries_used >= rule.max_retries:
        explanation = f"{retries_used} of {rule.max_retries} retries are used"
        return decided("retries_exhausted", explanation, rule.source, maximum=rule.max_retries)
    number = retries_used + 1
    delay = retry_delay(rule, number, seed)
    explanation = f"retry {number} of {rule.max_retries} in {delay:g} s ({rule.backoff}, {rule.source})"
    left = rule.max_retries - number
    return decided("retry", explanation, rule.source, maximum=rule.max_retries, left=left, delay=delay)


def recompute(stored: Mapping[str, Any]) -> RetryDecision:
    """The decision once more, from what an attempt keeps of it and nothing else (F166)."""
    policy = stored["policy"]
    return decide_retry(
        code=stored["code"],
        retryable=stored["retryable"],
        options=stored["options"],
        policy=None if policy is None else PolicyFact(**policy),
        retries_used=stored["retries_used"],
        seed=stored["seed"],
    )


def retry_delay(rule: RetryRule, number: int, seed: str) -> float:
    """Seconds before retry `number` (from 1): fixed b · linear b·n · exponential b·2^(n-1), capped (default 30·b),
    with jitter ±10 %, never above the cap."""
    cap = rule.max_interval or CAP_FACTOR * rule.interval
    if rule.backoff == "linear":
        delay = rule.interval * number
    elif rule.backoff == "exponential":
        # the exponent is bounded so that a large count cannot overflow; the cap rules long before
        delay = rule.interval * 2 ** min(number - 1, 64)
    else:
        delay = rule.interval
    delay = min(delay, cap)
    if rule.jitter:
        share = int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8]) / 2**64
        delay *= 1 + JITTER_SHARE * (2 * share - 1)
    return min(round(delay, 3), cap)


def _names(listed: Sequence[str], folded: str) -> bool:
    return any(entry.upper() == folded for entry in listed)
