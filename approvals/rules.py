"""Which operations need agreement, and whose. Pure.

The strictest of all matching rules is asked for, dimension by dimension: the highest role, the most people, the
shortest time. So whatever one rule asks for is never lessened by another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# each includes those after it: what an approver may decide, an admin may too
DECIDING_ROLES = ("approver", "release_manager", "admin")
PROTECTED = "protected"  # among a rule's environments: those that are
DEFAULT_EXPIRY = 7 * 24 * 3600  # seconds
UNITS = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the workspace. Empty sets match everything; `counted` blank matches every size."""

    name: str
    kinds: frozenset[str]
    environments: frozenset[str] = frozenset()
    pipelines: frozenset[str] = frozenset()
    counted: str = ""
    at_least: int = 1
    role: str = DECIDING_ROLES[0]
    count: int = 1
    expires_in: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What somebody wants to do. `size` says how much it touches: {"runs": 1, "stages": 3, "ticks": 0}."""

    kind: str
    environment: str
    is_protected: bool
    pipeline: str = ""
    size: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Who must agree: `count` people of this role or a higher one, within `expires_in` seconds (None: for ever).

    `why` names what asks for it, a sentence each.
    """

    role: str = DECIDING_ROLES[0]
    count: int = 1
    expires_in: int | None = None
    why: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that count."""
        return roles_from(self.role)


def roles_from(role: str) -> tuple[str, ...]:
    """The role and those above it; a blank one stands for every role that decides."""
    return DECIDING_ROLES[DECIDING_ROLES.index(role) :] if role else DECIDING_ROLES


def matches(rule: Rule, subject: Subject) -> bool:
    """Whether the rule is about it. Slugs are compared as they are written; a size that nobody counted is any size."""
    places = {subject.environment, PROTECTED} if subject.is_protected else {subject.environment}
    size = subject.size.get(rule.counted)
    return (
        subject.kind in rule.kinds
        and (not rule.environments or not rule.environments.isdisjoint(places))
        and (not rule.pipelines or subject.pipeline in rule.pipelines)
        and (not rule.counted or size is None or size >= rule.at_least)
    )


def required(rules: Iterable[Rule], subject: Subject) -> Requirement | None:
    """What the matching rules ask for together; None when none matches. Each of them is told in `why`, by name."""
    found = [rule for rule in rules if matches(rule, subject)]
    if not found:
        return None
    return Requirement(
        role=max((rule.role for rule in found), key=DECIDING_ROLES.index),
        count=max(rule.count for rule in found),
        expires_in=min(rule.expires_in or DEFAULT_EXPIRY for rule in found),
        why=tuple(sorted(f"{rule.name}: {sentence(rule)}" for rule in found)),
    )


def strictest(one: Requirement | None, other: Requirement | None) -> Requirement | None:
    """What satisfies both. When one of them does already it is returned unchanged, `why` included."""
    if one is None or other is None:
        return one or other
    role = max(one.role, other.role, key=DECIDING_ROLES.index)
    count = max(one.count, other.count)
    ends = [seconds for seconds in (one.expires_in, other.expires_in) if seconds is not None]
    both = (role, count, min(ends, default=None))
    for known in (one, other):
        if (known.role, known.count, known.expires_in) == both:
            return known
    return Requirement(*both, why=tuple(dict.fromkeys(one.why + other.why)))


def sentence(rule: Rule) -> str:
    """The rule in words: "replay, rerun of 5 or more stages in production: 2 release managers within 8 hours"."""
    about = ", ".join(sorted(rule.kinds))
    if rule.counted:
        about += f" of {rule.at_least} or more {rule.counted}"
    if rule.environments:
        places = sorted(rule.environments - {PROTECTED})
        places += ["protected environments"] if PROTECTED in rule.environments else []
        about += f" in {' or '.join(places)}"
    if rule.pipelines:
        about += f" of the pipeline {' or '.join(sorted(rule.pipelines))}"
    return f"{about}: {people(rule.role, rule.count)} within {in_words(rule.expires_in or DEFAULT_EXPIRY)}"


def people(role: str, count: int) -> str:
    """So many of a role, in words."""
    return f"{count} {role.replace('_', ' ')}{'' if count == 1 else 's'}"


def in_words(seconds: int) -> str:
    """A length of time in words, exactly: "1 day 12 hours"."""
    told = []
    for name, length in UNITS.items():
        found, seconds = divmod(seconds, length)
        if found:
            told.append(f"{found} {name}{'' if found == 1 else 's'}")
    return " ".join(told) or "0 seconds"
