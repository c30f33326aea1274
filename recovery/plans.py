"""What a recovery verb would do, before it does it: pure, complete, and the same for the same world.

The plan that a dry run answers, a screen shows and an approval freezes is the object that is carried out. Its digest
covers all of it; when the world has moved, planning again gives another digest and the verb is refused with
`plan_changed` and the new plan. Nothing outside the plan is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import rfc8785

from recovery.dispositions import Verdict
from recovery.states import Disposition, OperationKind

NOTHING_TO_REPEAT = Verdict(Disposition.RECOVERY_ALLOWED)


@dataclass(frozen=True, slots=True)
class Line:
    """One stage in a plan. `to` is the state it will be in at once; `epoch` the one it will then be in."""

    stage: str
    was: str
    to: str
    epoch: int
    why: str
    output_digest: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """What the release that will run has otherwise than the source's: `what` is added, removed, or a field's name."""

    stage: str
    what: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class MayRepeat:
    """An effect that doing it again may repeat. `key` is what the outside system can recognise it by, or blank."""

    stage: str
    effect_class: str
    state: str
    step_id: str = ""
    key: str = ""
    effect_id: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Who must agree: `count` people of one of these roles, never the one who asks."""

    roles: tuple[str, ...]
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All of what a verb would do. Lists are in graph order; nothing in it depends on when it is made."""

    kind: OperationKind
    execution_id: str
    stage_id: str | None = None
    stage: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)  # scope, from_step_id, input digest, freeze_release …
    kept: tuple[Line, ...] = ()
    run_again: tuple[Line, ...] = ()
    then: tuple[Line, ...] = ()  # what else changes: falls back, goes stale, is let go on, is cancelled
    differences: tuple[Difference, ...] = ()
    may_repeat: tuple[MayRepeat, ...] = ()
    verdict: Verdict = NOTHING_TO_REPEAT
    agreements: tuple[Agreement, ...] = ()
    environment: str = ""
    source_release_id: str = ""
    release_id: str = ""
    checkpoint_id: str = ""
    goes_on_outside: tuple[str, ...] = ()  # of a cancel: what may still happen elsewhere

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON."""
        return sha256(rfc8785.dumps(self.as_json(with_digest=False))).hexdigest()

    def as_json(self, *, with_digest: bool = True) -> dict[str, Any]:
        """The plan as the operations API answers it."""
        raise NotImplementedError
