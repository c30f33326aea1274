"""What a bulk operation would do, as numbers: pure, from counts of its frozen targets.

No target is planned by itself before its turn comes: then it is planned, judged and done, or not, under its own lock,
as the single verb does it. What is told here is by states as they stand now; what stands otherwise by its turn is
skipped. The digest covers what is fixed, the verb, its choices, every target and who must agree, so it stays the same
while targets move. Serves F41, F152, F161.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.blackouts import Active
from recovery.plans import Agreement, digest_of
from recovery.states import OperationKind

SAMPLED = 20  # targets that a plan names
NAMED = 10  # pipelines and environments that it names
NOT_APPLICABLE = "not_applicable"  # a run that has no stage to act on (F39)
GONE = "gone"  # it was removed since

_TARGETS: Mapping[str, tuple[str, str]] = {
    OperationKind.RETRY: ("stage", "stages"),
    OperationKind.SKIP: ("stage", "stages"),
    OperationKind.REDRIVE: ("dead letter", "dead letters"),
    OperationKind.DISCARD: ("dead letter", "dead letters"),
}


def counted(kind: str, count: int) -> str:
    """So many of what the verb acts on: "1,200 dead letters"."""
    one, many = _TARGETS.get(kind, ("run", "runs"))
    return f"{count:,} {one if count == 1 else many}"


def called(kind: str, count: int) -> str:
    """A bulk by its verb and what it acts on: "redrive of 1,200 dead letters"."""
    return f"{kind} of {counted(kind, count)}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One of the first targets, how it stands now, and what its turn would do: act, or skip it."""

    position: int
    run_id: uuid.UUID
    run: str
    environment: str
    stage: str
    state: str
    acts: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "execution_id": str(self.run_id),
            "run": self.run,
            "environment": self.environment,
            "stage": self.stage or None,
            "state": self.state,
            "acts": self.acts,
        }


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """All of what is known of a bulk before it begins.

    `acts` targets stand so that the verb would be done, `may_repeat` of them with something outside at stake: the
    verdict on each is given on its turn, and what it holds back is denied here. `stands_otherwise` counts the others by
    state. `seconds` is what its rate takes at least.
    """

    kind: OperationKind
    total: int
    targets: str  # digest of them, in their order
    choices: Mapping[str, Any] = field(default_factory=dict)
    acts: int = 0
    stands_otherwise: Mapping[str, int] = field(default_factory=dict)
    may_repeat: int = 0
    by_pipeline: Sequence[tuple[str, int]] = ()
    by_environment: Sequence[tuple[str, int]] = ()
    protected: int = 0
    agreements: tuple[Agreement, ...] = ()
    samples: Sequence[Sample] = ()
    rate: int = 0
    blackout: Active | None = None  # what holds now; no part of what is kept, agreed to, or digested
    override_reason: str = ""

    @property
    def skips(self) -> int:
        return sum(self.stands_otherwise.values())

    @property
    def seconds(self) -> float:
        return self.acts / self.rate if self.rate else 0.0

    @property
    def is_held(self) -> bool:
        """A blackout holds it back, and nobody said why it is to start all the same."""
        return self.blackout is not None and not self.override_reason

    @property
    def digest(self) -> str:
        told = [one.as_json() for one in self.agreements]
        return digest_of([self.kind.value, dict(self.choices), self.targets, told])

    def as_json(self) -> dict[str, Any]:
        """The plan as it is kept and agreed to."""
        return {
            "kind": self.kind.value,
            "choices": dict(self.choices),
            "total": self.total,
            "acts": self.acts,
            "stands_otherwise": dict(self.stands_otherwise),
            "may_repeat": self.may_repeat,
            "by_pipeline": [{"pipeline": name or None, "count": count} for name, count in self.by_pipeline],
            "by_environment": [{"environment": name, "count": count} for name, count in self.by_environment],
            "protected": self.protected,
            "approvals": [one.as_json() for one in self.agreements],
            "rate": self.rate,
            "estimate_seconds": self.seconds,
            "samples": [one.as_json() for one in self.samples],
            "plan_digest": self.digest,
        }

    def shown(self) -> dict[str, Any]:
        """The plan with what holds it back now, as a dry run answers it."""
        return {**self.as_json(), "blackout": self.blackout.as_json() if self.blackout else None}
