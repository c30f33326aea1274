"""Whether and when a failed attempt is tried again: every rule, every law of growth, and the row that explains it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.retries import (
    TERMINAL_CODES,
    PolicyFact,
    RetryDecision,
    RetryRule,
    Target,
    decide_retry,
    effective_policy,
    recompute,
    retry_delay,
)

OPTIONS: dict[str, Any] = {"max_retries": 3, "retry_interval": 10}


def decide(code: str = "FOO", **changes: Any) -> RetryDecision:
    given_ = {"retryable": None, "options": OPTIONS, "policy": None, "retries_used": 0, "seed": "s", **changes}
    return decide_retry(code=code, **given_)


def policy(name: str = "ours", *, created_at: float = 0, rule: Any = None, **match: Any) -> PolicyFact:
    return PolicyFact(name, match, {"max_retries": 1, "retry_interval": 5} if rule is None else rule, created_at)


def test_retries_are_counted_after_the_first_attempt() -> None:
    """P31: three retries are four attempts; both sides of the limit."""
    assert [decide(retries_used=used).retry for used in range(5)] == [True, True, True, False, False]
    assert decide(retries_used=3).verdict == "retries_exhausted"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_retries": 3},
        {"retry_interval": 10},
        {"max_retries": 3, "retry_interval": 0},
        {"max_retries": 0, "retry_interval": 10},
        {"max_retries": None, "retry_interval": None},
    ],
)
def test_options_need_a_positive_maximum_and_a_positive_interval(options: dict[str, Any]) -> None:
    """P33; and nothing happens unasked."""
    assert (decide(options=options).retry, decide(options=options).verdict) == (False, "no_rule")


@pytest.mark.parametrize("code", ["TIMEOUT", "UPSTREAM_ERROR", "RATE_LIMIT_EXCEEDED", "TRANSPORT_UNAVAILABLE"])
def test_a_list_of_codes_retries_those_and_no_others(code: str) -> None:
    """P34, P35: matched without case."""
    codes = ["TIMEOUT", "UPSTREAM_ERROR", "RATE_LIMIT_EXCEEDED", "TRANSPORT_UNAVAILABLE"]
    options = OPTIONS | {"retry_on_error_codes": codes}
    assert decide(code, options=options).retry
    assert decide(code.lower(), options=options).retry
    assert decide("FOO", options=options).verdict == "code_not_listed"


@pytest.mark.parametrize("codes", [None, []])
def test_without_a_list_any_code_is_retried(codes: list[str] | None) -> None:
    """P36."""
    assert decide("FOO", options=OPTIONS | {"retry_on_error_codes": codes}).retry
    assert decide("", options=OPTIONS | {"retry_on_error_codes": codes}).retry


def test_a_failure_without_a_code_is_on_no_list() -> None:
    """P41."""
    assert decide("", options=OPTIONS | {"retry_on_error_codes": ["TIMEOUT"]}).verdict == "code_not_listed"


def test_what_the_worker_calls_not_retryable_is_not_retried() -> None:
    """P42: listed or not, policy or not."""
    listed = OPTIONS | {"retry_on_error_codes": ["FOO"]}
    assert decide(options=listed, retryable=False).verdict == "not_retryable"
    assert decide(policy=policy(stage="s"), retryable=False).verdict == "not_retryable"
    assert decide(options=listed, retryable=True).retry


@pytest.mark.parametrize("code", sorted(TERMINAL_CODES))
def test_terminal_classes_are_never_retried_even_when_listed(code: str) -> None:
    """P43, R43: before everything else, whatever the worker, a policy or the options say."""
    listed = OPTIONS | {"retry_on_error_codes": [code]}
    for told in (code, code.lower(), code.title()):
        assert decide(told, options=listed, retryable=True).verdict == "terminal_error"
        assert decide(told, policy=policy(error_codes=[code]), retryable=True).verdict == "terminal_error"


def test_the_terminal_classes_are_those_of_the_model() -> None:
    assert sorted(TERMINAL_CODES) == [
        "BUSINESS_REJECTED",
        "INVALID_STATE",
        "MISSING_REQUIRED_DATA",
        "OUTPUT_TOO_LARGE",
        "PERMISSION_DENIED",
        "REQUIRED_DATA_MISSING",
        "VALIDATION_ERROR",
    ]


def test_a_policy_takes_precedence_over_the_stage_options() -> None:
    """P45: one retry by the policy, though the options allow three."""
    ours = policy(stage="s")
    assert [decide(policy=ours, retries_used=used).retry for used in range(3)] == [True, False, False]
    assert decide(policy=ours).source == "policy:ours"
    assert decide(policy=ours).delay == 5


def test_a_policy_that_does_not_list_the_code_does_not_fall_back_to_the_options() -> None:
    """P46."""
    ours = policy(stage="s", error_codes=["BAR"])
    assert decide("FOO", policy=ours).verdict == "code_not_listed"
    assert decide("bar", policy=ours).retry


def test_a_policy_that_filters_and_lists_wants_the_code_in_both() -> None:
    rule = {"max_retries": 1, "retry_interval": 5, "retry_on_error_codes": ["FOO"]}
    ours = policy(rule=rule, stage="s", error_codes=["FOO", "BAR"])
    assert decide("FOO", policy=ours).retry
    assert decide("BAR", policy=ours).verdict == "code_not_listed"


def test_a_policy_may_forbid_retries() -> None:
    assert decide(policy=policy(rule={"max_retries": 0}, stage="s")).verdict == "no_rule"


TARGET = Target(stage="import", handler="Load", pipeline="nightly", environment="production")


def test_the_most_specific_policy_wins_then_the_newest() -> None:
    """model.md §3.3: stage > handler > pipeline > environment."""
    rungs = [
        policy("everything", created_at=99),
        policy("environment", environment="production", created_at=98),
        policy("pipeline", pipeline="nightly", created_at=97),
        policy("handler", handler="Load", created_at=96),
        policy("stage", stage="import", created_at=1),
        policy("newer stage", stage="import", created_at=2),
    ]
    for count in range(1, len(rungs) + 1):
        for order in (rungs[:count], rungs[:count][::-1]):
            winner = effective_policy(order, TARGET)
            assert winner is not None
            assert winner.name == rungs[count - 1].name


def test_a_policy_targets_a_stage_only_when_all_it_names_matches() -> None:
    assert effective_policy([policy(stage="import", environment="staging")], TARGET) is None
    assert effective_policy([policy(stage="import", environment="production")], TARGET) is not None
    assert effective_policy([policy(error_codes=["FOO"])], TARGET) is not None
    assert effective_policy([], TARGET) is None


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("fixed", [10, 10, 10, 10, 10, 10]),
        ("linear", [10, 20, 30, 40, 50, 60]),
        ("exponential", [10, 20, 40, 80, 160, 300]),
    ],
)
def test_delays_follow_their_law_up_to_thirty_times_the_interval(backoff: str, delays: list[float]) -> None:
    """P37, P32."""
    rule = RetryRule.from_options({"max_retries": 9, "retry_interval": 10, "backoff": backoff})
    assert [retry_delay(rule, number, "s") for number in range(1, 7)] == delays


def test_the_largest_interval_caps_the_delay() -> None:
    """P38."""
    options = {"max_retries": 9, "retry_interval": 10, "backoff": "exponential", "max_retry_interval": 120}
    rule = RetryRule.from_options(options)
    assert [retry_delay(rule, number, "s") for number in range(1, 7)] == [10, 20, 40, 80, 120, 120]


@given(
    backoff=st.sampled_from(["fixed", "linear", "exponential"]),
    interval=st.floats(0.001, 1e7),
    cap=st.none() | st.floats(0.001, 1e7),
    number=st.integers(1, 10**9),
    seed=st.text(max_size=20),
)
def test_jitter_stays_within_a_tenth_below_the_cap_and_is_repeatable(
    backoff: str, interval: float, cap: float | None, number: int, seed: str
) -> None:
    """P39; no count and no interval overflows."""
    options = {"max_retries": number, "retry_interval": interval, "backoff": backoff, "max_retry_interval": cap}
    plain = retry_delay(RetryRule.from_options(options), number, seed)
    jittered = retry_delay(RetryRule.from_options(options | {"jitter": True}), number, seed)
    limit = cap or 30 * interval
    assert 0 <= plain <= limit
    assert plain * 0.9 - 0.001 <= jittered <= min(plain * 1.1 + 0.001, limit)
    assert jittered == retry_delay(RetryRule.from_options(options | {"jitter": True}), number, seed)


def test_jitter_spreads_attempts_apart() -> None:
    rule = RetryRule.from_options(OPTIONS | {"jitter": True})
    delays = [retry_delay(rule, 1, f"attempt {number}") for number in range(200)]
    assert len(set(delays)) > 150
    assert min(delays) < 9.2
    assert max(delays) > 10.8


POLICIES = st.none() | st.builds(
    PolicyFact,
    name=st.text(min_size=1, max_size=10),
    match=st.fixed_dictionaries({}, optional={"stage": st.just("s"), "error_codes": st.lists(st.text(max_size=5))}),
    rule=st.fixed_dictionaries(
        {},
        optional={
            "max_retries": st.integers(0, 5),
            "retry_interval": st.floats(0, 100),
            "jitter": st.booleans(),
            "retry_on_error_codes": st.lists(st.sampled_from(["FOO", "BAR"])),
        },
    ),
    created_at=st.floats(0, 2e9),
)


@given(
    code=st.sampled_from(["FOO", "bar", "", "VALIDATION_ERROR"]),
    retryable=st.sampled_from([None, True, False]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "max_retries": st.integers(0, 5),
            "retry_interval": st.floats(0, 100),
            "backoff": st.sampled_from(["fixed", "linear", "exponential"]),
            "jitter": st.booleans(),
            "max_recoveries": st.integers(0, 3),
        },
    ),
    ruling=POLICIES,
    used=st.integers(0, 6),
)
def test_a_stored_decision_can_be_computed_again_from_itself_alone(
    code: str, retryable: bool | None, options: dict[str, Any], ruling: PolicyFact | None, used: int
) -> None:
    """F166, I15: through JSON, as the row keeps it; it says why, and what is left."""
    decision = decide(code, retryable=retryable, options=options, policy=ruling, retries_used=used, seed="attempt-1")
    stored = json.loads(json.dumps(decision.as_json()))
    assert recompute(stored).as_json() == decision.as_json()
    assert decision.explanation
    assert decision.retry == (decision.verdict == "retry") == (decision.delay is not None)
    assert decision.retries_left >= 0
    assert not decision.retry or decision.retries_left == decision.max_retries - used - 1
