"""What the rules ask for: which match, what they ask for together, and that more rules never ask for less."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.models import ApprovalRule
from approvals.models.rules import Counted
from approvals.rules import (
    DECIDING_ROLES,
    DEFAULT_EXPIRY,
    Requirement,
    Rule,
    Subject,
    in_words,
    matches,
    required,
    roles_from,
    sentence,
    strictest,
)

KINDS, PLACES, FLOWS = ("rerun", "replay", "skip"), ("production", "staging"), ("nightly", "billing")
SIZE = {"runs": 1, "stages": 5, "ticks": 0}
ANY = Rule("any", frozenset({"rerun"}))
IN_PRODUCTION = Subject("rerun", "production", True, "nightly", SIZE)

ends = st.none() | st.integers(1, 10)
roles = st.sampled_from(DECIDING_ROLES)
requirements = st.builds(
    Requirement, roles, st.integers(1, 4), ends, st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
)
rules = st.builds(
    Rule,
    name=st.sampled_from(["one", "two", "three"]),
    kinds=st.frozensets(st.sampled_from(KINDS), min_size=1),
    environments=st.frozensets(st.sampled_from((*PLACES, "protected"))),
    pipelines=st.frozensets(st.sampled_from(FLOWS)),
    counted=st.sampled_from(["", *Counted.values]),
    at_least=st.integers(0, 6),
    role=roles,
    count=st.integers(1, 4),
    expires_in=ends,
)
subjects = st.builds(
    Subject,
    kind=st.sampled_from(KINDS),
    environment=st.sampled_from(PLACES),
    is_protected=st.booleans(),
    pipeline=st.sampled_from(("", *FLOWS)),
    size=st.fixed_dictionaries({one: st.integers(0, 6) for one in Counted.values}),
)


def asks(requirement: Requirement | None) -> tuple[int, int, float]:
    """What is asked for as numbers, of which more is stricter; nothing at all is the least."""
    if requirement is None:
        return (-1, 0, float("-inf"))
    end = float("inf") if requirement.expires_in is None else requirement.expires_in
    return (DECIDING_ROLES.index(requirement.role), requirement.count, -end)


def covers(one: Requirement | None, other: Requirement | None) -> bool:
    return all(left >= right for left, right in zip(asks(one), asks(other), strict=True))


# which rules match


def test_a_rule_is_about_its_own_kinds_and_no_others() -> None:
    """Every kind must be named: a kind that is added later is bound by no rule by accident."""
    for kind in KINDS:
        assert matches(replace(ANY, kinds=frozenset({kind})), replace(IN_PRODUCTION, kind=kind))
        assert not matches(replace(ANY, kinds=frozenset(KINDS) - {kind}), replace(IN_PRODUCTION, kind=kind))


@pytest.mark.parametrize(
    ("named", "environment", "is_protected", "expected"),
    [
        ((), "production", True, True),
        ((), "development", False, True),
        (("production",), "production", True, True),
        (("production",), "production", False, True),
        (("production",), "staging", True, False),
        (("production", "staging"), "staging", False, True),
        (("protected",), "production", True, True),
        (("protected",), "production", False, False),
        (("protected",), "staging", True, True),
        (("protected", "staging"), "staging", False, True),
        (("protected", "staging"), "development", False, False),
        (("protected",), "protected", False, True),  # an environment may be called so
        (("Production",), "production", True, False),
        (("production ",), "production", True, False),
        (("prod",), "production", True, False),
    ],
)
def test_environments_match_by_their_exact_slugs_or_because_they_are_protected(
    named: tuple[str, ...], environment: str, is_protected: bool, expected: bool
) -> None:
    """F140."""
    subject = replace(IN_PRODUCTION, environment=environment, is_protected=is_protected)
    assert matches(replace(ANY, environments=frozenset(named)), subject) is expected


@pytest.mark.parametrize(
    ("named", "pipeline", "expected"),
    [
        ((), "nightly", True),
        ((), "", True),
        (("nightly",), "nightly", True),
        (("nightly",), "billing", False),
        (("nightly",), "", False),
        (("nightly", "billing"), "billing", True),
        (("Nightly",), "nightly", False),
    ],
)
def test_pipelines_match_by_their_exact_slugs_and_inline_runs_only_rules_for_all(
    named: tuple[str, ...], pipeline: str, expected: bool
) -> None:
    rule = replace(ANY, pipelines=frozenset(named))
    assert matches(rule, replace(IN_PRODUCTION, pipeline=pipeline)) is expected


@pytest.mark.parametrize("counted", Counted.values)
@pytest.mark.parametrize(("size", "expected"), [(4, False), (5, True), (6, True)])
def test_the_size_matches_from_the_limit_on(counted: str, size: int, expected: bool) -> None:
    """Both sides of the limit, in each of the three units; the other two do not matter."""
    rule = replace(ANY, counted=counted, at_least=5)
    others = dict.fromkeys(Counted.values, 100 - 100 * expected)
    assert matches(rule, replace(IN_PRODUCTION, size=others | {counted: size})) is expected


def test_a_size_that_nobody_counted_escapes_no_rule() -> None:
    assert matches(replace(ANY, counted="ticks", at_least=5), replace(IN_PRODUCTION, size={}))


def test_a_rule_matches_only_when_all_it_names_does() -> None:
    right = {"kinds": "rerun", "environments": "production", "pipelines": "nightly"}
    wrong = {"kinds": "skip", "environments": "staging", "pipelines": "billing"}
    for hits in product([True, False], repeat=4):
        named = {name: frozenset({(right if hit else wrong)[name]}) for name, hit in zip(right, hits[:3], strict=True)}
        rule = replace(ANY, **named, counted="stages", at_least=5 if hits[3] else 6)
        assert matches(rule, IN_PRODUCTION) is all(hits)


# what they ask for together


def test_nothing_is_asked_for_when_no_rule_matches() -> None:
    assert required([], IN_PRODUCTION) is None
    assert required([replace(ANY, kinds=frozenset({"skip"}))], IN_PRODUCTION) is None


def test_the_highest_role_the_most_people_and_the_shortest_time_are_asked_for() -> None:
    """Three rules, each the strictest in one thing: none undoes another."""
    found = required(
        [
            replace(ANY, name="b", role="admin", count=1, expires_in=900),
            replace(ANY, name="a", role="approver", count=3, expires_in=800),
            replace(ANY, name="c", role="release_manager", count=2, expires_in=60),
            replace(ANY, name="d", kinds=frozenset({"skip"}), role="admin", count=20, expires_in=1),
        ],
        IN_PRODUCTION,
    )
    assert found is not None
    assert (found.role, found.count, found.expires_in) == ("admin", 3, 60)
    assert [why[:2] for why in found.why] == ["a:", "b:", "c:"]


def test_a_rule_that_says_no_time_gives_seven_days() -> None:
    found = required([ANY], IN_PRODUCTION)
    assert found == Requirement("approver", 1, DEFAULT_EXPIRY, ("any: rerun: 1 approver within 7 days",))
    longer = required([ANY, replace(ANY, name="long", expires_in=DEFAULT_EXPIRY + 1)], IN_PRODUCTION)
    assert longer is not None
    assert longer.expires_in == DEFAULT_EXPIRY


@given(st.lists(rules, max_size=5), subjects)
def test_what_is_asked_for_satisfies_each_matching_rule_and_no_more(found: list[Rule], subject: Subject) -> None:
    together = required(found, subject)
    hits = [required([rule], subject) for rule in found if matches(rule, subject)]
    assert (together is None) is (hits == [])
    assert all(covers(together, one) for one in hits)
    for dimension, value in enumerate(asks(together)):
        assert hits == [] or value in [asks(one)[dimension] for one in hits]


@given(st.lists(rules, max_size=4), rules, subjects)
def test_another_rule_never_asks_for_less(found: list[Rule], another: Rule, subject: Subject) -> None:
    assert covers(required([*found, another], subject), required(found, subject))


@given(st.lists(rules, max_size=5).flatmap(lambda found: st.tuples(st.just(found), st.permutations(found))), subjects)
def test_the_order_of_rules_does_not_matter(orders: tuple[list[Rule], list[Rule]], subject: Subject) -> None:
    """`why` included: the plan's digest covers it, and rows come in any order."""
    assert required(orders[0], subject) == required(orders[1], subject)


@given(st.lists(rules, max_size=4), st.lists(rules, max_size=4), subjects)
def test_rules_ask_together_for_the_strictest_of_what_their_parts_ask(
    some: list[Rule], others: list[Rule], subject: Subject
) -> None:
    parts = strictest(required(some, subject), required(others, subject))
    assert asks(required(some + others, subject)) == asks(parts)


# the stricter of two


@given(st.none() | requirements, st.none() | requirements)
def test_the_stricter_of_two_covers_both_whichever_comes_first(
    one: Requirement | None, other: Requirement | None
) -> None:
    both = strictest(one, other)
    assert covers(both, one)
    assert covers(both, other)
    assert asks(both) == asks(strictest(other, one))
    for dimension, value in enumerate(asks(both)):
        assert value in (asks(one)[dimension], asks(other)[dimension])


@given(st.none() | requirements, st.none() | requirements, st.none() | requirements)
def test_the_strictest_of_three_is_the_same_however_they_are_taken(
    one: Requirement | None, two: Requirement | None, three: Requirement | None
) -> None:
    assert asks(strictest(strictest(one, two), three)) == asks(strictest(one, strictest(two, three)))


@given(requirements, st.none() | requirements)
def test_what_covers_the_other_already_comes_back_unchanged(one: Requirement, other: Requirement | None) -> None:
    """The digest of a plan that waits must not move because a rule was loosened, deleted, or said again."""
    assert strictest(one, one) is one
    if covers(one, other):
        assert strictest(one, other) is one
    elif covers(other, one):
        assert strictest(one, other) is other
    both = strictest(one, other)
    assert strictest(both, one) is both
    assert strictest(both, other) is both


def test_when_neither_covers_the_other_both_say_why() -> None:
    one = Requirement("admin", 1, None, ("a", "both"))
    other = Requirement("approver", 2, 60, ("both", "b"))
    assert strictest(one, other) == Requirement("admin", 2, 60, ("a", "both", "b"))


# roles


def test_a_role_includes_those_above_it() -> None:
    assert roles_from("approver") == ("approver", "release_manager", "admin")
    assert roles_from("release_manager") == ("release_manager", "admin")
    assert roles_from("admin") == ("admin",)
    assert roles_from("") == DECIDING_ROLES


# in words


def test_a_rule_reads_as_a_sentence() -> None:
    assert sentence(ANY) == "rerun: 1 approver within 7 days"
    rule = Rule(
        "big",
        frozenset({"rerun", "replay"}),
        frozenset({"staging", "protected", "production"}),
        frozenset({"nightly"}),
        counted="stages",
        at_least=5,
        role="release_manager",
        count=2,
        expires_in=8 * 3600,
    )
    assert sentence(rule) == (
        "replay, rerun of 5 or more stages in production or staging or protected environments of the pipeline nightly:"
        " 2 release managers within 8 hours"
    )


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "1 minute"),
        (3600, "1 hour"),
        (86_400, "1 day"),
        (DEFAULT_EXPIRY, "7 days"),
        (131_461, "1 day 12 hours 31 minutes 1 second"),
    ],
)
def test_a_length_of_time_is_told_exactly(seconds: int, told: str) -> None:
    assert in_words(seconds) == told


def test_the_columns_of_a_rule_are_the_fields_it_is_matched_by() -> None:
    """A column that no code reads would be a promise that nothing keeps."""
    own = {"id", "workspace", "enabled", "created_at"}
    assert {field.name for field in ApprovalRule._meta.fields} - own == set(Rule.__dataclass_fields__)
