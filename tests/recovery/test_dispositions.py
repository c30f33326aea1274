"""The verdict on repeating what was done outside: exactly model §2, for every combination of what may be known."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.states import EffectClass, EffectState
from recovery.dispositions import WORST_FIRST, EffectFact, Reason, judge, undeclared
from recovery.states import Disposition, Outcome

DENIED, REVIEW = Disposition.RECOVERY_DENIED, Disposition.OPERATOR_REVIEW_REQUIRED
RECONCILED, ALLOWED = Disposition.RECOVERY_ALLOWED_RECONCILED, Disposition.RECOVERY_ALLOWED
OUTSIDE = [one for one in EffectClass if one != EffectClass.INTERNAL_STATE]
COMMITTED = ("committed", "reconciled_committed")
CLAIMS: list[tuple[str, ...]] = [(), *((one,) for one in Outcome.values), *itertools.combinations(Outcome.values, 2)]


def a_payment(**more: object) -> EffectFact:
    """A committed effect outside, with key, clean sealed evidence and a reconciliation that says the same."""
    whole = EffectFact(
        "pay",
        "external_http",
        "committed",
        "charge",
        key="k-1",
        has_clean_seal=True,
        evidence=("committed",),
        reconciled=("committed",),
    )
    return replace(whole, **more)  # type: ignore[arg-type]


def worse(one: Disposition, other: Disposition) -> bool:
    return WORST_FIRST.index(one) < WORST_FIRST.index(other)


def expected(effect: EffectFact) -> Disposition:
    """The model's sentences, read anew."""
    claims = {*effect.evidence, *effect.reconciled}
    if effect.effect_class == "internal_state":
        return ALLOWED
    if effect.state == "contradicted" or "contradicted" in claims:
        return DENIED
    if effect.state in COMMITTED:
        if "absent" in claims:
            return DENIED
        complete = bool(effect.key) and effect.has_clean_seal and "committed" in effect.reconciled
        return RECONCILED if complete else REVIEW
    if effect.state in ("absent", "reconciled_absent"):
        return DENIED if "committed" in claims else ALLOWED
    return DENIED if {"committed", "absent"} <= claims else REVIEW


facts = st.builds(
    EffectFact,
    stage=st.sampled_from(["pay", "mail", "book"]),
    effect_class=st.sampled_from(EffectClass.values),
    state=st.sampled_from(EffectState.values),
    step_id=st.sampled_from(["", "charge"]),
    key=st.sampled_from(["", "k-1"]),
    effect_id=st.sampled_from(["", "e-1", "e-2"]),
    has_clean_seal=st.booleans(),
    evidence=st.sampled_from(CLAIMS),
    reconciled=st.sampled_from(CLAIMS),
)
others = st.builds(
    Reason, st.sampled_from(Disposition), st.sampled_from(["a", "b"]), st.just("told"), st.sampled_from(["pay", ""])
)


def test_every_combination_of_what_is_known_has_the_verdict_of_the_model() -> None:
    """O42–O46: class × state × key × seal × evidence × reconciliation, all of them."""
    seen = set()
    for effect_class, state, key, seal, evidence, reconciled in itertools.product(
        EffectClass.values, EffectState.values, ("", "k-1"), (False, True), CLAIMS, CLAIMS
    ):
        effect = EffectFact(
            "pay",
            effect_class,
            state,
            key=key,
            has_clean_seal=seal,
            evidence=evidence,
            reconciled=reconciled,
        )
        verdict = judge([effect])
        assert verdict.disposition == expected(effect), effect
        assert all(reason.disposition == verdict.disposition for reason in verdict.reasons)
        assert (not verdict.reasons) == (verdict.disposition == ALLOWED), "every other verdict says why (I15)"
        seen.add(verdict.disposition)
    assert seen == set(Disposition)


@given(st.lists(facts, max_size=5), st.lists(others, max_size=3), facts)
def test_one_more_effect_never_makes_it_better(effects: list[EffectFact], told: list[Reason], more: EffectFact) -> None:
    before, after = judge(effects, told), judge([*effects, more], told)
    assert not worse(before.disposition, after.disposition)
    assert set(before.reasons) <= set(after.reasons)


@given(st.lists(facts, max_size=6), st.lists(others, max_size=3), st.randoms())
def test_the_order_does_not_matter_also_not_to_the_reasons(
    effects: list[EffectFact], told: list[Reason], random: object
) -> None:
    """The digest of a plan holds them, so they must come out the same."""
    mixed, mixed_told = list(effects), list(told)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    random.shuffle(mixed_told)  # type: ignore[attr-defined]
    assert judge(mixed, mixed_told) == judge(effects, told)


@given(st.lists(facts, max_size=6), st.lists(others, max_size=3))
def test_the_worst_reason_decides_and_stands_first(effects: list[EffectFact], told: list[Reason]) -> None:
    verdict = judge(effects, told)
    ranks = [WORST_FIRST.index(reason.disposition) for reason in verdict.reasons]
    assert ranks == sorted(ranks)
    assert verdict.disposition == (verdict.reasons[0].disposition if verdict.reasons else ALLOWED)


def test_a_run_that_did_nothing_outside_is_recovered_without_any_evidence() -> None:
    """O43: internal state alone, in every state that it may have."""
    effects = [EffectFact("book", "internal_state", state) for state in EffectState.values]
    assert judge(effects).disposition == ALLOWED
    assert judge([]).disposition == ALLOWED


@pytest.mark.parametrize("effect_class", OUTSIDE)
@pytest.mark.parametrize("state", COMMITTED)
@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ({"key": ""}, "key_missing"),
        ({"has_clean_seal": False}, "evidence_missing"),
        ({"reconciled": ()}, "reconciliation_missing"),
    ],
)
def test_each_of_the_three_that_is_dropped_asks_for_a_review(
    effect_class: str, state: str, missing: dict[str, object], code: str
) -> None:
    """O28, O44, O45: key, clean sealed evidence and matching reconciliation are needed together, in ten classes."""
    whole = a_payment(effect_class=effect_class, state=state)
    assert judge([whole]).disposition == RECONCILED
    verdict = judge([replace(whole, **missing)])  # type: ignore[arg-type]
    assert (verdict.disposition, [reason.code for reason in verdict.reasons]) == (REVIEW, [code])


def test_evidence_that_says_absent_of_a_committed_effect_denies() -> None:
    """O46: whatever else is there; nothing makes up for a contradiction."""
    assert judge([a_payment(evidence=("committed", "absent"))]).disposition == DENIED
    assert judge([a_payment(reconciled=("committed", "absent"))]).disposition == DENIED
    told_absent = EffectFact("pay", "external_http", "absent", evidence=("committed",))
    assert judge([told_absent]).disposition == DENIED


def test_a_reconciled_effect_beside_an_open_one_asks_for_a_review() -> None:
    verdict = judge([a_payment(), EffectFact("mail", "tool_side_effect", "unknown", key="m-1")])
    assert verdict.disposition == REVIEW
    assert [reason.code for reason in verdict.reasons] == ["effect_open", "effect_reconciled"]


def test_what_was_never_declared_asks_for_a_review_and_says_what_to_do() -> None:
    """P59, P87. A fork takes no `acknowledge_effects`, and nobody is told to send it."""
    verdict = judge([], [undeclared("pay", may_acknowledge=True)])
    assert (verdict.disposition, verdict.reasons[0].stage) == (REVIEW, "pay")
    assert "then say acknowledge_effects" in verdict.reasons[0].text
    assert "acknowledge_effects" not in undeclared("pay").text


def test_every_reason_names_its_stage_its_class_and_its_step() -> None:
    """Whoever reviews must know what to look for outside."""
    (reason,) = judge([EffectFact("pay", "external_http", "declared", "charge", "k-1", "e-1")]).reasons
    assert (reason.stage, reason.effect_id) == ("pay", "e-1")
    assert reason.text == "pay: external http, step charge; it is declared, and whether it happened is not known"
