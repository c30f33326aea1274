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
    raise NotImplementedError


def required(rules: Iterable[Rule], subject: Subject) -> Requirement | None:
    """What the matching rules ask for together; None when none matches."""
    raise NotImplementedError


def strictest(one: Requirement | None, other: Requirement | None) -> Requirement | None:
    """What satisfies both. When one of them does already it is returned unchanged, `why` included."""
    raise NotImplementedError
