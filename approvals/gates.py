"""What carries out an operation once others have agreed: a registry from operation kind to its carrier.

Approvals know who must agree and who did; what is then done belongs to the app that registers it, when it is ready
(`recovery/apps.py`). Nothing else carries out what waits for agreement.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

from approvals.models import ApprovalRequest
from approvals.rules import Requirement
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.moves import Moves, RunRow
from pipelines.transitions import lock_run


@dataclass(frozen=True, slots=True)
class Planned:
    """What an operation would do in the world as it is now; `requirement` is at least what was asked for before."""

    plan: Mapping[str, Any]
    digest: str
    requirement: Requirement
    in_review: bool = False
    denied: Refusal | None = None  # its verdict forbids it by now: whoever asks gets this


@dataclass(frozen=True, slots=True)
class Where:
    """What an operation is about that is about no run, in words: its name, and where it acts."""

    name: str
    environment: str
    is_protected: bool
    pipeline: str


@dataclass(frozen=True, slots=True)
class Carried:
    """Where an operation stands. `then` is what is left to do once this transaction has committed; `where` is told of
    what is about no run."""

    status: str
    disposition: str
    target: uuid.UUID | None = None
    then: Callable[[], Carried] | None = None
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What is locked while somebody decides: the run that the operation is about, or the operation itself."""

    now: datetime
    moves: Moves | None = None
    run: RunRow | None = None

    @property
    def its_run(self) -> tuple[Moves, RunRow]:
        """For operations that are about a run."""
        return cast(Moves, self.moves), cast(RunRow, self.run)


@dataclass(frozen=True, slots=True)
class Given:
    """What an operation would hand to its stage, word for word; its plan holds the digest of it alone."""

    what: str  # input | output | override_reason
    text: str


class Carrier(Protocol):
    """What approvals ask of the app that an operation is of. All but `preview`, `given`, `told` and `all_told` in the
    transaction of the decision: `lock` first, the rest under that lock and the request's."""

    def lock(self, request: ApprovalRequest, actor: Actor) -> Held:
        """Locks what serialises whatever happens to the operation; 404 where the actor may not know of it."""

    def preview(self, request: ApprovalRequest) -> Planned:
        """The plan now, for a look; nothing is locked. Raises what the state no longer takes."""

    def given(self, request: ApprovalRequest) -> Given | None:
        """What of people's own words would be worked with, so that nobody agrees to what they could not read."""

    def plan_again(self, request: ApprovalRequest) -> Planned:
        """The plan now, from the locked rows. Raises what the state no longer takes, and what its requester may do no
        longer."""

    def carry_out(self, request: ApprovalRequest, held: Held, *, actor: Actor) -> Carried | Refusal:
        """Does what was agreed to. A returned refusal is kept with what was written; a raised one undoes it."""

    def asked_anew(self, request: ApprovalRequest, planned: Planned, *, actor: Actor) -> None:
        """The operation gets the plan and the verdict of the world as it is now; `request` is the new round.

        Where that verdict denies, there is no new round, and the operation is denied.
        """

    def close(self, request: ApprovalRequest, action: str, *, actor: Actor | None) -> None:
        """The operation follows its request: `reject`, `withdraw` or `expire`. Without an actor time did it."""

    def told(self, request: ApprovalRequest) -> Carried:
        """Where the operation stands now."""

    def all_told(self, requests: Sequence[ApprovalRequest]) -> Mapping[uuid.UUID, Carried]:
        """The same of many, by subject, in one query."""


_carriers: dict[str, Carrier] = {}
_end_with_run: set[str] = set()


def register(kinds: Iterable[str], carrier: Carrier, *, end_with_run: bool = False) -> None:
    """Says what carries out operations of these kinds; approval rules may name them from then on.

    `end_with_run`: once its run is cancelled, or past its deadline, nobody can agree to one of them any more.
    """
    for kind in kinds:
        _carriers[kind] = carrier
        if end_with_run:
            _end_with_run.add(kind)


def carrier(kind: str) -> Carrier:
    return _carriers[kind]


def kinds() -> list[str]:
    """The kinds that others may have to agree to, in the order in which they were registered."""
    return list(_carriers)


def lock_its_run(request: ApprovalRequest, actor: Actor) -> Held:
    """The lock of operations that are about a run: the run's."""
    moves, run = lock_run(cast(uuid.UUID, request.run_id), actor)
    return Held(moves.now, moves, run)


def ending_with_run() -> frozenset[str]:
    """The kinds that can never be carried out once their run is cancelled or past its deadline."""
    return frozenset(_end_with_run)


def told(requests: Iterable[ApprovalRequest]) -> dict[uuid.UUID, Carried]:
    """Where the operations of requests stand now, by subject: one query for each carrier among them."""
    by_carrier: dict[Carrier, list[ApprovalRequest]] = {}
    for request in requests:
        by_carrier.setdefault(carrier(request.kind), []).append(request)
    found: dict[uuid.UUID, Carried] = {}
    for one, some in by_carrier.items():
        found |= one.all_told(some)
    return found
