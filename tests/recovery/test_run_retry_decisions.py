"""Deciding whether a run is retried by itself: pure, over every kind of failure, and recomputable."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.retries import TERMINAL_CODES, PolicyFact, RetryRule, retry_delay
from recovery.run_retries import FINAL, Failed, Failure, called, decide, recompute, ruling

RULE = {"mode": "resume", "max_retries": 3, "retry_interval": 60}
CODES = [*sorted(TERMINAL_CODES), "UPSTREAM_DOWN", "TIMEOUT", "LEASE_EXPIRED", "attempts_exhausted", ""]
DISPOSITIONS = [
    *FINAL,
    "terminal_error",
    "retries_exhausted",
    "recoveries_exhausted",
    "no_rule",
    "budget_exhausted",
    "",
]


def policy(name: str = "again", created: float = 0.0, match: dict[str, Any] | None = None, **rule: Any) -> PolicyFact:
    return PolicyFact(name, match or {}, {**RULE, **rule}, created)


def failed(*failures: Failure, used: int = 0, seconds_left: float | None = None) -> Failed:
    return Failed(failures or (Failure("pay", "UPSTREAM_DOWN"),), used, seconds_left, seed="run-1")


names = st.sampled_from(["", "nightly", "hourly"])
policies = st.builds(
    PolicyFact,
    name=st.sampled_from(["a", "b"]),
    match=st.fixed_dictionaries(
        {}, optional={"pipeline": names, "environment": names, "error_codes": st.lists(st.sampled_from(CODES[:-1]))}
    ),
    rule=st.fixed_dictionaries(
        {"max_retries": st.integers(1, 5), "retry_interval": st.floats(1, 1e6)},
        optional={
            "mode": st.sampled_from(["resume", "new_run"]),
            "backoff": st.sampled_from(["fixed", "linear", "exponential"]),
            "max_retry_interval": st.floats(1, 1e6),
            "jitter": st.booleans(),
        },
    ),
    created_at=st.floats(0, 1e9),
)
failures = st.builds(
    Failure, stage=st.just("pay"), code=st.sampled_from(CODES), disposition=st.sampled_from(DISPOSITIONS)
)
ends = st.builds(
    Failed,
    failures=st.lists(failures, min_size=1, max_size=4).map(tuple),
    used=st.integers(0, 7),
    seconds_left=st.none() | st.floats(-1e3, 1e7),
    seed=st.just("run-1"),
)


@given(policies, ends)
def test_a_decision_is_recomputed_from_its_stored_row(rule: PolicyFact, end: Failed) -> None:
    """I15, F166: from the JSON alone, and it says why."""
    decision = decide(rule, end)
    assert recompute(json.loads(json.dumps(decision.as_json()))).as_json() == decision.as_json()
    assert decision.explanation
    assert decision.retry == (decision.verdict == "retry") == (decision.delay is not None)


@given(policies, ends)
def test_it_is_bounded_and_never_repeats_what_is_final(rule: PolicyFact, end: Failed) -> None:
    """N1, I9: never more often than the policy says, never past a no, a terminal code or a deadline."""
    decision = decide(rule, end)
    if not decision.retry:
        return
    assert decision.number == end.used + 1 <= rule.rule["max_retries"]
    for failure in end.failures:
        assert failure.disposition not in FINAL
        assert failure.code.upper() not in TERMINAL_CODES
        listed = rule.match.get("error_codes")
        assert not listed or failure.code in listed
    assert decision.delay is not None
    assert decision.delay > 0
    if decision.mode == "resume" and end.seconds_left is not None:
        assert decision.delay < end.seconds_left


@given(policies, ends, failures)
def test_one_more_failure_never_makes_it_retry(rule: PolicyFact, end: Failed, more: Failure) -> None:
    """Every failure at fault must admit it."""
    with_more = Failed((*end.failures, more), end.used, end.seconds_left, end.seed)
    assert decide(rule, end).retry or not decide(rule, with_more).retry


@pytest.mark.parametrize(("code", "disposition"), list(product(CODES, DISPOSITIONS)))
def test_every_code_and_every_disposition_has_its_verdict(code: str, disposition: str) -> None:
    """The whole product: what is final by its disposition first, then terminal codes; all else is retried."""
    verdict = decide(policy(), failed(Failure("pay", code, disposition))).verdict
    if disposition in FINAL:
        assert verdict == FINAL[disposition][0]
    else:
        assert verdict == ("terminal_error" if code in TERMINAL_CODES else "retry")


@pytest.mark.parametrize(
    ("listed", "code", "verdict"),
    [
        (["UPSTREAM_DOWN"], "UPSTREAM_DOWN", "retry"),
        (["upstream_down"], "UPSTREAM_DOWN", "retry"),
        (["TIMEOUT"], "UPSTREAM_DOWN", "code_not_listed"),
        (["TIMEOUT"], "", "code_not_listed"),
        ([], "UPSTREAM_DOWN", "retry"),
        (["VALIDATION_ERROR"], "VALIDATION_ERROR", "terminal_error"),
    ],
)
def test_a_list_of_codes_filters(listed: list[str], code: str, verdict: str) -> None:
    """Without case; a terminal code is not made repeatable by naming it."""
    assert decide(policy(match={"error_codes": listed}), failed(Failure("pay", code))).verdict == verdict


def test_all_failures_must_be_listed() -> None:
    both = failed(Failure("pay", "TIMEOUT"), Failure("book", "DISK_FULL"))
    decision = decide(policy(match={"error_codes": ["TIMEOUT"]}), both)
    assert decision.verdict == "code_not_listed"
    assert decision.explanation == "book: policy again rules this run and does not list DISK_FULL"


@pytest.mark.parametrize(
    ("used", "verdict"), [(0, "retry"), (2, "retry"), (3, "retries_exhausted"), (9, "retries_exhausted")]
)
def test_it_ends_after_so_many(used: int, verdict: str) -> None:
    assert decide(policy(), failed(used=used)).verdict == verdict


@pytest.mark.parametrize(
    ("mode", "seconds_left", "verdict"),
    [
        ("resume", None, "retry"),
        ("resume", 60.001, "retry"),
        ("resume", 60.0, "past_deadline"),
        ("resume", -1.0, "past_deadline"),
        ("new_run", 1.0, "retry"),  # which has a deadline of its own
    ],
)
def test_a_deadline_ahead_of_the_retry_forbids_it_in_place(mode: str, seconds_left: float | None, verdict: str) -> None:
    """I8: both sides of the limit."""
    assert decide(policy(mode=mode), failed(seconds_left=seconds_left)).verdict == verdict


@pytest.mark.parametrize("backoff", ["fixed", "linear", "exponential"])
def test_delays_are_those_of_stages(backoff: str) -> None:
    """N2: one arithmetic for both kinds of retry."""
    rule = policy(max_retries=9, backoff=backoff, jitter=True, max_retry_interval=200)
    for used in range(9):
        told = RetryRule.from_options(rule.rule)
        assert decide(rule, failed(used=used)).delay == retry_delay(told, used + 1, "run-1")


def test_the_policy_of_the_pipeline_rules_before_that_of_the_environment() -> None:
    everywhere, there = policy("everywhere", 9.0), policy("there", 8.0, {"environment": "production"})
    nightly, newer = policy("nightly", 1.0, {"pipeline": "nightly"}), policy("newer", 2.0, {"pipeline": "nightly"})
    all_four = [everywhere, there, nightly, newer]
    assert ruling(all_four, pipeline="nightly", environment="production") is newer
    assert ruling(all_four, pipeline="hourly", environment="production") is there
    assert ruling(all_four, pipeline="", environment="staging") is everywhere
    assert ruling([nightly], pipeline="", environment="staging") is None
    assert ruling([], pipeline="nightly", environment="production") is None


def test_without_a_mode_it_resumes() -> None:
    assert decide(PolicyFact("a", {}, {"max_retries": 1, "retry_interval": 1}, 0.0), failed()).mode == "resume"


def test_records_call_it_by_its_name_within_their_columns() -> None:
    assert called("nights") == "policy nights"
    assert len(called("x" * 255)) == 255
